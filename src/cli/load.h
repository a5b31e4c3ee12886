/* cli/load.h: from options to an engine that can serve: model, choices, plan, context.
 *
 * Thread rule: one thread, the one that will use the engine.
 */
#ifndef KV_CLI_LOAD_H
#define KV_CLI_LOAD_H

#include "cache/namespace.h"
#include "options/options.h"
#include "os/files_slow.h"
#include "plan/memory.h"
#include "plan/tune.h"
#include "sched/sched.h"

typedef struct kv_loaded {
    kv_model *model;    /* owned */
    kv_engine *engine;  /* owned; NULL after kv_load_plan alone */
    kv_io *io;          /* owned; NULL without a cache */
    kv_files_slow slow; /* --test-slow-disk; the store's, when it asks for that */
    kv_store *store;    /* owned; NULL: nothing on disk */
    kv_namespace ns;
    kv_namespace_others others; /* what else the store has records of, at the time the cache was made */
    bool engine_apart; /* ns names the engine's build, since it does not agree with the one before (cache/probe.h) */
    bool keeps_well;   /* there is a disk, or memory for twice the context: idle slots need not help the cache */
    kv_cache *cache;   /* owned; NULL: --cache-ram 0 without a disk, or the model's memory does not allow it */
    kv_engine_params params;
    kv_tuning tuning;
    kv_shape shape;
    kv_plan plan;
    int32_t block; /* B */
    kv_memory_kind memory;
    kv_buf placement; /* options that decide where layers run, as one text */
    char *grammar;    /* owned; the default grammar of all requests, NULL = none */
    kv_grammar_type grammar_type;
    uint64_t bytes_available; /* before anything was loaded */
    char *identity;           /* owned; what makes it the same model for plan and tuning */
} kv_loaded;

/* Model, tuning, shape and plan; of an encoder (KV_MEMORY_NONE) the plan is only how long a text can be. progress may be
 * NULL; it gets 0 … 1, and false from it ends the load (KV_CANCELLED). */
kv_status kv_load_plan(kv_loaded *out, const kv_options *opt, bool (*progress)(void *ctx, float done), void *ctx,
                       kv_error *err);
/* The engine of that plan, warmed up. Where the context was chosen automatically and the device has not so much
 * memory, a smaller one is taken. */
kv_status kv_load_engine(kv_loaded *l, const kv_options *opt, kv_error *err);
/* The cache beside the slots, within what the plan leaves of memory, and on disk where that is of use; says what it
 * found there. */
kv_status kv_load_cache(kv_loaded *l, const kv_options *opt, kv_error *err);
/* l->ns for the engine in `l`: what its records stand under. kv_load_cache does it, too. */
kv_status kv_load_namespace(kv_loaded *l, const kv_options *opt, kv_error *err);
/* Tokens a block; n_window: 0 = none. */
int32_t kv_load_choose_block(const kv_options *opt, int32_t n_window);
/* No request runs any more: what is not on disk yet is written within `seconds`; says what was not. */
void kv_load_flush_cache(kv_loaded *l, double seconds);
/* Model and engine go; the cache, and what was chosen for the engine, stay. */
void kv_load_unload(kv_loaded *l);
/* Model and engine after kv_load_unload, with the same choices; a context that does not fit any more is chosen anew. The
 * cache stays if it still belongs to that model and engine, else a new one is made. After a failure as after
 * kv_load_unload, perhaps without cache: it can be tried again. progress as above. */
kv_status kv_load_again(kv_loaded *l, const kv_options *opt, bool (*progress)(void *ctx, float done), void *ctx,
                        kv_error *err);
/* The part of that which load_cache.c does: the cache of `before`, if it suits the engine in `l`. */
bool kv_load_cache_suits(const kv_loaded *before, kv_loaded *l, const kv_options *opt, kv_error *err);
/* Cache, I/O threads, store. */
void kv_load_drop_cache(kv_loaded *l);
void kv_load_sched_config(kv_sched_config *out, const kv_loaded *l, const kv_options *opt);
/* Sampling of a request that says nothing; points into opt and l. */
void kv_load_sampling(kv_sampling *out, const kv_loaded *l, const kv_options *opt);
/* Cache, engine, model, after everything that uses them; a zeroed one is fine. */
void kv_loaded_free(kv_loaded *l);

#endif
