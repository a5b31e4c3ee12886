/* sched/sched.h: who runs next, and in which batches.
 *
 * Owns the engine, its slots and the queue of waiting generations. One call of kv_sched_step is one round:
 *
 *   inbox ─► waiting ──admit──► slot: prefilling ──last prompt token──► decoding ──► done (slot idle, keeps tokens)
 *               ▲                  │                                        │
 *               └──── preempted ◄──┴────────── cells run out ◄──────────────┘
 *
 *   round = cancels; admit; [one prefill chunk] + [one token of each decoding slot] → decode → sample → events
 *
 * Full and windowed memory take chunk and tokens in one call, prefill rows first; with recurrent layers there are
 * two, first the tokens sorted by sequence, then the chunk (docs/engine.md "Batches").
 * Prompts are prefilled one after the other, the one with least left to compute first, but nobody is overtaken for
 * longer than max_wait_ms (queue.h). Where all slots are taken, a prompt that goes before one that is being computed takes
 * its place, if what there is of that one is in the cache, and it comes back; to one that it has overtaken for max_wait_ms
 * it gives way in any case.
 * While somebody decodes, a chunk is a power of two, the largest predicted to take at most max_stall_ms, less what restores
 * took in the same round. The last prompt token is always decoded alone, and the first token that comes of it waits for
 * nobody's chunk: such a round has none, but not two in a row.
 * When cells run out, idle slots are emptied, then the youngest generation goes back to the queue with its sampler,
 * grammar and RNG, and is computed again later. Nobody gets an error for it. A call that fails, or gives NaN, is tried
 * again a few times; who gave NaN computes alone then, so that no one beside it gets an error (sched_private.h).
 *
 * Times are taken around kv_engine_decode and the sampling after it: the engine must return from the two only when
 * the work is done, or the stall bound is learned from wrong figures.
 *
 * Thread rule: kv_sched_new, _step, _run, _dump, _self_check and _free: the engine thread. Everything else: any thread.
 * Lock order: the cache's mutex (it wakes us under it), the scheduler's, then a generation's.
 */
#ifndef KV_SCHED_SCHED_H
#define KV_SCHED_SCHED_H

#include "cache/cache.h"
#include "sched/gen.h"

typedef struct kv_sched kv_sched;

typedef struct kv_sched_config {
    int32_t n_ctx_served; /* most tokens of prompt + answer of one generation; 0 = the engine's n_ctx */
    int32_t block;        /* B: chunk edges are absolute multiples of it */
    int32_t chunk;        /* prefill chunk when nobody decodes, k × block */
    int32_t min_chunk;    /* smallest chunk while somebody decodes; rounded down to a power of two */
    int32_t max_stall_ms;
    int32_t max_wait_ms;
    int32_t max_queue; /* generations beyond one a slot; more are refused with KV_BUSY */
    kv_cache *cache;   /* borrowed, NULL = none: what leaves a slot is kept there and found again */
    bool evict_idle;   /* the cache is large enough that idle slots need not keep what it has */
    bool exact; /* one slot, and memory emptied before each request: what it computes depends on its prompt alone */
    /* A slot is chosen for what it holds when that is a larger share of the prompt (llama-server's -sps); 0: never for that */
    float slot_similarity;
} kv_sched_config;

void kv_sched_config_defaults(kv_sched_config *c);

/* `engine` is borrowed, is cleared and outlives the scheduler. KV_INVALID for a configuration that the engine cannot
 * carry: a served context above its cells, fewer rows a batch than slots. */
kv_status kv_sched_new(kv_sched **out, kv_engine *engine, const kv_clock *clock, const kv_sched_config *cfg,
                       kv_error *err);
void kv_sched_free(kv_sched *s); /* every generation still there ends with KV_FINISH_ERROR / KV_BUSY */

/* Checks that come before any state changes: KV_CONTEXT_FULL, KV_INVALID (slot number, empty prompt, a token that
 * the vocabulary lacks, more choices than slots), KV_BUSY (queue full or draining). Any thread; submit makes them
 * itself. */
kv_status kv_sched_check(kv_sched *s, const kv_token *prompt, size_t n_prompt, int n_gens, kv_error *err);
/* All or none of the n generations are queued; the scheduler takes its own references. They are one request: of the
 * same group, and equal in their prompt or not. */
kv_status kv_sched_submit(kv_sched *s, kv_gen *const *gens, int n, kv_error *err);

/* One round. False when there was nothing to do; then nothing waits or runs. */
bool kv_sched_step(kv_sched *s);
/* Rounds until kv_sched_stop; sleeps while there is nothing to do. */
void kv_sched_run(kv_sched *s);
void kv_sched_drain(kv_sched *s); /* refuse new generations with KV_BUSY; the running ones go on */
/* Drain, end what waits and runs (KV_FINISH_ERROR, KV_BUSY "server is shutting down"), and leave kv_sched_run. */
void kv_sched_stop(kv_sched *s);
/* Empty an idle slot's sequence, before the next round. *n_erased: what kv_sched_read_slot would have told. KV_INVALID for
 * a number out of range, KV_BUSY while it runs. */
kv_status kv_sched_erase_slot(kv_sched *s, int slot, int32_t *n_erased, kv_error *err);

/* What an idle slot holds, or held last: its cells may have been needed since, and the cache has them. Appends the tokens;
 * *scope: whose they are, owned by the caller, NULL when there is nothing (or nothing that may be used again). KV_INVALID
 * for a number out of range, KV_BUSY while it runs. Any thread. */
kv_status kv_sched_read_slot(kv_tokens *tokens, char **scope, kv_sched *s, int slot, kv_error *err);

/* What the generation that runs in the slot, or ran last, said about itself (kv_gen_params). Owned by the caller; NULL:
 * nothing. */
char *kv_sched_about_slot(kv_sched *s, int slot);

typedef struct kv_slot_view {
    int id;
    bool processing, prefilling;
    int32_t n_ctx, n_tokens; /* tokens it holds now */
    int32_t n_prompt, n_prompt_done, n_decoded, n_remain;
    uint64_t gen_id; /* running number of the generation, 0 = idle */
} kv_slot_view;

typedef struct kv_sched_stats { /* counters since start; times in seconds */
    uint64_t n_prompt_restored; /* of those cached: out of the cache, not found in a slot */
    uint64_t n_restore_failed;  /* stored state that turned out to be damaged or gone */
    uint64_t n_prompt_computed; /* also what was computed again */
    uint64_t n_prompt_cached, n_decoded, n_decode_calls, n_requests, n_preempted, n_cancelled;
    double prompt_seconds, decode_seconds; /* a shared call counts by its rows */
    uint64_t n_busy_slots_sum;             /* Σ over decode calls of busy slots */
    int32_t n_processing, n_waiting, n_tokens_max;
    int32_t cells_used, cells_total;          /* of the main pool; 0 for a memory without cells */
    uint64_t n_no_cells, n_damaged, n_failed; /* batches that the engine refused for lack of cells, broke, refused */
    uint64_t n_gave_way; /* prompts that left a slot to one that goes before them, and came back later */
    uint64_t n_led;      /* prompts that waited for another generation to compute their beginning */
    uint64_t n_forked;   /* prompts taken over from a generation of the same request */
    uint64_t n_steps;    /* of kv_sched_step; stands still while a call does not return */
} kv_sched_stats;

void kv_sched_get_stats(kv_sched_stats *out, kv_sched *s);
int kv_sched_get_slots(kv_slot_view *out, int room, kv_sched *s); /* number written */
bool kv_sched_idle(kv_sched *s);                                  /* nothing waiting or running */
/* For people; and a walk over everything that aborts on a broken promise. Engine thread. */
void kv_sched_dump(kv_buf *out, kv_sched *s);
void kv_sched_self_check(kv_sched *s);

#endif
