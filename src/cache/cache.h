/* cache/cache.h: what was computed once is found again: look-up, restore and capture over the tree and the pool.
 *
 *   HTTP thread        kv_lookup_start ──► tree (shared lock)
 *   I/O threads        compare tokens, choose P, read payloads ahead ──► lookup ready, wake
 *   engine thread      kv_restore_step (slices) ──► slot holds [0, P)
 *   I/O threads        … reading ahead of it what is on disk
 *   engine thread      decode … kv_trail_advance (captures before the next engine call) … kv_trail_end
 *   I/O threads        hash, insert into the tree (in order), write behind, keep in RAM within the budget
 *
 * Positions P that a look-up may end at (docs/architecture.md "What is reused"), the largest ≤ min(match, n - 1):
 *   full            any position covered by block records
 *   window          any position whose window parts are there, covered by blocks
 *   hybrid(-window) a node with a checkpoint, covered by blocks
 *   recurrent       a node with a checkpoint
 *   whole           a node with a whole record
 *
 * Invariants of docs/architecture.md that it keeps: 2 (tokens decide), 3 (nothing past P, positions checked), 5, 6, 8
 * and 9.
 *
 * Thread rule: as drawn. The cache outlives lookups and trails.
 */
#ifndef KV_CACHE_CACHE_H
#define KV_CACHE_CACHE_H

#include "cache/policy.h"
#include "cache/state.h"
#include "os/io.h"
#include "radix/radix.h"
#include "store/store.h"

typedef struct kv_cache kv_cache;
typedef struct kv_lookup kv_lookup;
typedef struct kv_trail kv_trail;

/* Why less was used than one could wish. X(name, the sentence that users read) */
#define KV_MISS_TABLE(X)                                                                                               \
    X(NONE, "everything that can be reused was")                                                                       \
    X(EMPTY, "nothing is stored yet for this model and scope")                                                         \
    X(DIVERGED, "the prompt differs from what is stored from here on")                                                 \
    X(NO_CHECKPOINT, "the prompt matches further, but the model's recurrent state was kept only here")                 \
    X(NO_WINDOW, "the prompt matches further, but the sliding window's cells were kept only here")                     \
    X(NOT_STORED, "the prompt matches further, but these cells were evicted or never stored")                          \
    X(DAMAGED, "a stored record was damaged and was set aside")                                                        \
    X(IO_ERROR, "a stored record could not be read")                                                                   \
    X(EXACT, "the prompt matches further, but exact answers resume only where a cold run's chunk ends")                \
    X(CHEAPER, "computing was cheaper than restoring")                                                                 \
    X(DISABLED, "the request or the server asked not to use the cache")                                                \
    X(NO_MEMORY, "there was no memory to restore into")                                                                \
    X(OTHER_NAMESPACE, "these tokens are stored, but not for the model and settings that run now")

typedef enum kv_miss {
#define X(name, text) KV_MISS_##name,
    KV_MISS_TABLE(X)
#undef X
        KV_MISS_COUNT
} kv_miss;
const char *kv_miss_name(kv_miss m); /* "diverged" */
const char *kv_miss_text(kv_miss m);

typedef struct kv_cache_config {
    const kv_engine_info *engine; /* borrowed for the call */
    int32_t block;
    kv_hash ns;           /* of model and engine settings, without the scope */
    uint64_t queue_bytes; /* most that waits for insertion and disk */
    uint64_t ram_bytes;   /* most that is kept in memory */
    uint64_t read_bytes;  /* buffers of what is on its way from disk into the engine */
    kv_store *store;      /* borrowed, opened for this cache alone; NULL = memory only */
    /* What a new scope's directory says about itself, as JSON (owned by the caller of it); NULL = nothing. */
    char *(*about)(void *ctx, const char *scope);
    void *about_ctx;
    /* Where else the store may have a prompt's tokens; borrowed, outlives the cache. NULL = nowhere. */
    const struct kv_namespace_others *others;
    int32_t interval;      /* 0 = by kv_policy_interval */
    bool only_intervals;   /* policy.h */
    uint64_t path_bytes;   /* most bytes of checkpoints or window parts along one path; 0 = by kv_policy_budget */
    int32_t exact_chunk;   /* --exact: the prefill chunk, a multiple of block; 0 = off (policy.h) */
    kv_io *io;             /* borrowed; outlives the cache */
    const kv_clock *clock; /* borrowed */
    bool readonly;         /* capture nothing */
} kv_cache_config;

kv_status kv_cache_new(kv_cache **out, const kv_cache_config *cfg, kv_error *err);
/* The namespace of a scope's records in the store. */
kv_hash kv_cache_root_key(const kv_cache *c, const char *scope);
/* Reads what is stored of the default scope, so that the first request need not wait for that. */
void kv_cache_warm(kv_cache *c);
/* Forgets everything of a scope ("" = the default one; NULL: of all scopes of this namespace), in memory and on disk.
 * Not on the engine thread; look-ups that run keep what they hold. What a running request captures meanwhile may stay.
 * Returns how many records went. */
uint64_t kv_cache_erase(kv_cache *c, const char *scope, kv_error *err);
/* From position `from` on these n tokens' path is not found again, in memory and on disk, nor what hangs on it: what was
 * captured of it turned out to be no numbers. Look-ups that start later do not see it. The engine thread; I/O is done
 * elsewhere. */
void kv_cache_forget(kv_cache *c, const char *scope, const kv_token *tokens, int32_t n, int32_t from);
/* No captures come any more: waits until all is on disk, at most timeout_us (with an inline io: runs its jobs as long
 * as that). What is worth most goes first; returns how many tokens' cells were dropped. */
uint64_t kv_cache_flush(kv_cache *c, int64_t timeout_us);
/* Waits until what was captured is in the tree and, with a store, on disk or refused by it, at most timeout_us (with an
 * inline io: runs its jobs as long as that). True: nothing waits any more. More may be captured afterwards. */
bool kv_cache_settle(kv_cache *c, int64_t timeout_us);
/* Memory keeps only what is not on disk. Nobody looks at a prompt meanwhile (respell.h). */
void kv_cache_let_go_of_copies(kv_cache *c);
/* Every lookup and trail is freed before, and the io has nothing left to run. */
void kv_cache_free(kv_cache *c);

/* ── look-up ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct kv_lookup_result {
    int32_t n_match;  /* tokens that some stored path shares with the prompt */
    int32_t position; /* P: where it can resume; 0 = nothing */
    uint64_t bytes;   /* to be moved into the engine */
    kv_miss miss;     /* why P < n - 1; NONE otherwise */
    int32_t miss_position;
    const char *elsewhere; /* of OTHER_NAMESPACE: what differs there; borrowed from the config. Else NULL */
} kv_lookup_result;

/* scope: "" = default. wake is called on an I/O thread when the result is there, and then whenever a restore that had
 * to wait can go on. Tokens are copied. */
kv_lookup *kv_lookup_start(kv_cache *c, const char *scope, const kv_token *tokens, size_t n, void (*wake)(void *),
                           void *ctx);
bool kv_lookup_ready(kv_lookup *l);                  /* any thread */
const kv_lookup_result *kv_lookup_get(kv_lookup *l); /* once ready */
void kv_lookup_free(kv_lookup *l);                   /* also while it runs */

/* ── restore (engine thread) ───────────────────────────────────────────────────────────────────────────────────── */

typedef enum kv_restore { KV_RESTORE_MORE, KV_RESTORE_WAIT, KV_RESTORE_DONE, KV_RESTORE_FAILED } kv_restore;
/* `seq` holds [0, have) of the prompt already, have ≤ P (0 = empty); the same `have` in every call. Moves what is
 * missing up to P, for about budget_us of time, at least one block.
 * MORE: call again, other sequences may decode meanwhile; WAIT: the same, once the look-up's wake was called, since
 * what comes next is not read yet; DONE: seq holds exactly [0, P); FAILED: seq is empty. */
kv_restore kv_restore_step(kv_lookup *l, kv_state *state, kv_seq seq, int32_t have, int64_t budget_us, kv_error *err);
kv_miss kv_restore_failure(kv_lookup *l); /* after FAILED: why */
/* Of the tokens that steps moved: from memory, from disk. */
void kv_restore_sources(int32_t *ram, int32_t *disk, const kv_lookup *l);

/* ── capture (engine thread) ───────────────────────────────────────────────────────────────────────────────────── */

/* A sequence's path, and how far it is captured. */
kv_trail *kv_trail_new(kv_cache *c);
/* The sequence holds these n tokens now, of which nothing is left to capture (it was restored, or is empty). */
void kv_trail_reset(kv_trail *t, const char *scope, const kv_token *tokens, int32_t n);
/* After a decode that brought `seq` to n tokens, before any other engine call. prompt: places checkpoints; us_per_token:
 * what computing one of the new tokens took. Captures what is complete and wanted. */
void kv_trail_advance(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n,
                      const kv_places *prompt, double us_per_token);
/* Before the sequence is removed, or when it stops growing: captures the open tail, window and state at its end. It
 * may go on afterwards. True: all of it is in the cache or on its way there,
 * and what was last on that way arrived. */
bool kv_trail_end(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n);
void kv_trail_free(kv_trail *t);

/* The next position > pos, ≤ n_prompt, where a prefill chunk must end because something is kept there. */
int32_t kv_cache_next_edge(const kv_cache *c, int32_t pos, const kv_places *prompt);
bool kv_cache_is_readonly(const kv_cache *c);
/* True where positions can only be resumed at that were kept: branch points are worth keeping. */
bool kv_cache_keeps_places(const kv_cache *c);
/* Tokens: a place that nobody marked must lie so far behind a kept one to be kept, too (policy.h). */
int32_t kv_cache_near(const kv_cache *c);
/* Which of a prompt's places are worth being kept when it is computed from `cached` on: hints (*n_hints of them, owned by
 * the caller, may be NULL) are marked as left out or not, and such between them are added. l: what its look-up found, or
 * NULL. Only where places are kept; the prompt's kv_places then are_chosen. */
void kv_cache_choose_places(kv_cache *c, kv_hint **hints, int *n_hints, int32_t n_prompt, int32_t cached,
                            const kv_lookup *l);
/* A prompt is computed from that position on: a hit for the kind of what is stored there. */
void kv_cache_note_resumed(kv_cache *c, const kv_lookup *l, int32_t position);

typedef struct kv_cache_stats { /* counters since start, and gauges */
    uint64_t n_lookups, tokens_looked_up, tokens_matched, tokens_restored;
    uint64_t n_miss[KV_MISS_COUNT];
    uint64_t n_blocks, n_windows, n_checkpoints, bytes_captured; /* inserted */
    uint64_t n_dropped; /* captures that found no room in the queue or in their path's budget, or no parent */
    /* Of states and window parts, by the kind of position that they were kept for; the counts are of all times that the
     * store has seen, bytes since start: captured, and written to disk. */
    kv_place_count places[KV_PLACE_COUNT];
    uint64_t place_bytes[KV_PLACE_COUNT], place_bytes_written[KV_PLACE_COUNT];
    uint64_t n_evicted;                               /* from memory */
    uint64_t n_written, bytes_written, n_not_written; /* records that went to disk, and that the store refused */
    uint64_t n_read, bytes_read, n_read_failed;       /* from disk into the engine */
    uint64_t n_orphans;                               /* found on disk without what they hang on */
    uint64_t queue_bytes, ram_bytes, read_bytes, nodes, tree_bytes;
} kv_cache_stats;
void kv_cache_get_stats(kv_cache_stats *out, kv_cache *c);
/* Walks everything and aborts on a broken promise. Nobody else may use the cache meanwhile. */
void kv_cache_self_check(kv_cache *c);

#endif
