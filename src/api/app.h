/* api/app.h: what every handler can reach.
 *
 *   KV_APP_LOADING ──► KV_APP_READY ◄──► KV_APP_ASLEEP          each but FAILED ──► KV_APP_DRAINING
 *          └────────► KV_APP_FAILED (the process ends with status 1)
 *
 * A server that is told to stop while it loads goes from LOADING to DRAINING, too: only `has_model` says whether there
 * is something to look at. ASLEEP: the model is unloaded until a request wants it; loading it again is a part of that.
 *
 * Thread rule: state, load_percent, has_model and embedded are atomic; model, turns, engine_info, plan, n_ctx_served,
 * sampling_defaults, sched, sched_before, n_sleeps, cache, spellings and embed are set before has_model and READY. They stay while
 * the gate is open and somebody is inside or looks: from other threads they are reached only so. Everything else is
 * read-only.
 */
#ifndef KV_API_APP_H
#define KV_API_APP_H

#include "chat/canonical.h"
#include "chat/turns.h"
#include "engine/engine.h"
#include "http/http.h"
#include "options/options.h"
#include "plan/memory.h"
#include "sched/sched.h"
#include <stdatomic.h>

typedef enum kv_app_state { KV_APP_LOADING, KV_APP_READY, KV_APP_ASLEEP, KV_APP_DRAINING, KV_APP_FAILED } kv_app_state;

typedef struct kv_app {
    const kv_options *opt;
    _Atomic int state; /* kv_app_state */
    _Atomic int load_percent;
    _Atomic bool has_model; /* set once, before state becomes READY */
    kv_model *model;
    kv_turns turns; /* of the model's template; owned */
    kv_engine_info engine_info;
    kv_plan plan;
    kv_sched *sched;
    kv_sched_stats sched_before; /* counters of the schedulers before the last sleep */
    uint64_t n_sleeps;
    kv_cache *cache;          /* NULL = none beside the slots */
    struct kv_gate *gate;     /* NULL = always open */
    struct kv_asleep *asleep; /* NULL only without a gate */
    struct kv_embed *embed;   /* embeddings and reranking (embed.h); NULL = not asked for */
    struct {
        _Atomic uint64_t n_tokens, n_calls, us;
    } embedded;                     /* tokens of the texts that it computed, its calls, their time */
    struct kv_spellings *spellings; /* what was spelled here first (spell.h); NULL = nothing is kept */
    kv_hash cache_base; /* of model and engine settings, without scopes: kv_cache_config.ns, 0 without a cache */
    struct kv_stored *responses; /* stored ones (state/stored.h); NULL = none are stored */
    struct kv_ledger *ledger;    /* what prompts cost (ledger.h); NULL = not kept */
    struct kv_script *script;    /* answers for tests (script.h); NULL = none */
    int32_t n_ctx_served;        /* the one limit */
    char model_name[256];        /* what responses name: first alias, or the file's base name */
    char **aliases;              /* all names that --strict-model takes, n_aliases of them */
    int n_aliases;
    int n_listed;                  /* how many of them, from the first, GET /models lists: those of --alias; 0 = all */
    int64_t started_at;            /* Unix time */
    kv_sampling sampling_defaults; /* from options */
} kv_app;

/* The routes of all APIs, ended by a NULL path. Static. */
const kv_http_route *kv_api_routes(void);
/* KV_OK when requests can be served; else KV_BUSY with llama-server's "Loading model" or the draining message. */
kv_status kv_app_require_ready(const kv_app *app, kv_error *err);
/* The canonicaliser's rules that are on (--canonicalise, --exact). */
kv_rules kv_app_rules(const kv_app *app);
/* KV_INVALID on an encoder: nothing can be generated. */
kv_status kv_app_require_generator(const kv_app *app, kv_error *err);
/* OpenAI's error body: {"error":{"code":…,"message":…,"type":…,"param":…}} plus n_prompt_tokens, n_ctx. */
void kv_api_error_body(kv_buf *out, const kv_error *err);

#endif
