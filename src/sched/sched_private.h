/* sched/sched_private.h: the inside of the scheduler. Only files in sched/ include this header.
 *
 *   sched.c   what other threads call; the step; ends, views and checks
 *   admit.c   from the queue into slots: which one, what of it is reused
 *   share.c   what several generations have in common is computed once
 *   room.c    cells: emptying idle slots, preemption, damage; dense sequence ids
 *   round.c   what a round computes, the calls, sampling
 *   resume.c  between slots and the cache: look-ups, restores, captures
 *
 * Where a call's logits are NaN, all memory is given up. Whoever was in a slot is a suspect then, until it gives numbers,
 * and what the cache got of it since its last good ones (`sound`) is forgotten. One suspect has a slot at a time; it is
 * restored in one go, computes in rounds of its own, the first at once and then every other one, and shows logits with
 * each chunk: so nobody computes beside what has not shown numbers, and a second NaN is its own. Then it starts over
 * without what is stored; if that helps, what is stored of the tokens that it had resumed behind is forgotten.
 *
 * A generation in a slot is described by two lengths: `tokens` of the generation, what is known of it, and `held` of
 * the slot, what the engine has of it. held is a prefix of tokens, and
 *
 *     tokens.len - held.len ≥ 2   prefilling: all but the last are computed in chunks
 *     tokens.len - held.len = 1   decoding: the last is computed alone, its logits are sampled
 *
 * so that a prompt, a reused prefix, a fork and a generation that was preempted in mid-answer all go on the same way.
 *
 * Invariants, walked by kv_sched_self_check:
 *   S1 a slot's sequence in the engine holds exactly held's tokens, unless it is being restored, and cells counts as
 *      many for it
 *   S2 a generation is in exactly one place: the inbox, waiting, a slot, or done
 *   S3 of a slot's generation held is a prefix, and at least one token is left to compute
 *   S4 cells in use never exceed the pool, and what runs alone always fits: n_ctx_served ≤ the pool
 *
 * Thread rule: the engine's thread, but for what the mutex guards.
 */
#ifndef KV_SCHED_SCHED_PRIVATE_H
#define KV_SCHED_SCHED_PRIVATE_H

#include "sched/cells.h"
#include "sched/cost.h"
#include "sched/gen_private.h"
#include "sched/queue.h"
#include "sched/sched.h"
#include <pthread.h>

/* Batches that may fail in a row without a token of the generation in between. */
#define KV_SCHED_RETRIES 3
/* Cells that must be free for each running generation before another is admitted beside them, so that it is not
 * preempted again after a few tokens. */
#define KV_SCHED_HEADROOM 32

typedef struct kv_slot {
    kv_tokens held;       /* owned */
    char *scope;          /* owned; whose tokens they are; NULL before the first */
    kv_gen *gen;          /* owned reference; NULL = idle */
    uint64_t used_at;     /* when it last became idle, by the scheduler's counter: the smallest is the least recent */
    uint64_t version;     /* of held; differs from every earlier content of any slot */
    bool restoring;       /* held is what it will hold once its generation's look-up is carried out */
    int32_t restore_from; /* tokens that it had before */
    int32_t window_from;  /* from here on no window cell was left out: a restore puts back those of its own end alone */
    bool is_kept;         /* idle: the cache brings back all that it holds */
    int32_t captured_at;  /* tokens that it held when that was found out; -1 = not since it began */
    int32_t sound;        /* tokens, the last of which gave numbers, or with which its generation began */
    kv_trail *trail;      /* owned; what of it is in the cache. NULL without one */
} kv_slot;

/* What a slot was left with; tokens are empty where nobody may use it again. */
typedef struct kv_slot_last {
    kv_tokens tokens; /* owned */
    char *scope;      /* owned; NULL = nothing yet */
    char *about;      /* owned; of the generation that runs in it, or ran last */
} kv_slot_last;

/* What the next round computes. */
typedef struct kv_round {
    int chunk_slot;  /* -1 = no chunk */
    int32_t n_chunk; /* tokens */
    int n_decode;    /* slots that decode a token: s->decoding[0 … n_decode-1], ascending */
    bool is_alone;   /* a suspect's: the last row of its chunk wants logits, to see whether they are numbers */
} kv_round;

struct kv_sched {
    kv_engine *engine; /* borrowed */
    const kv_engine_info *info;
    const kv_clock *clock;
    kv_sched_config cfg;
    int n_slots;
    bool two_calls; /* decode tokens and chunk in calls of their own */
    bool cut_free;  /* any prefix of a sequence can be kept */
    kv_state state; /* with a cache */

    /* engine thread */
    kv_slot *slots;   /* owned; a slot's number is its sequence id */
    kv_gen **waiting; /* owned references */
    int n_waiting, waiting_room;
    kv_cells cells;
    kv_cost cost, decode_cost; /* with two calls the tokens have their own */
    uint64_t ticks;            /* counter behind used_at and version */
    int64_t round_us;          /* when the last round's time was accounted */
    bool short_of_cells;       /* the engine had no room where we counted some; until a call succeeds */
    int64_t restore_us;        /* of this round, spent on putting stored state back */
    int restore_turn;          /* slot that may restore first */
    int chunked;               /* slot that got this round's chunk, -1 */
    bool suspect_ran;          /* the last round was a suspect's, or this one is */
    int *decoding;
    bool *mask, *in_call; /* scratch: one a slot */
    kv_batch batch;
    kv_buf piece;
    kv_sched_stats stats;
    kv_error last_failure; /* of a call, for the dump */

    /* under `mutex`, which may be held while a generation's is taken */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    kv_gen **inbox; /* owned references, n_inbox */
    int n_inbox, inbox_room;
    int n_live; /* in inbox, waiting and slots: at most n_slots + max_queue */
    uint64_t n_ids;
    bool draining, stopping;
    bool woken;         /* a look-up has its result */
    bool *busy, *erase; /* one a slot: it runs; empty it before the next round */
    kv_slot_view *views;
    kv_slot_last *last; /* one a slot */
    kv_sched_stats stats_view;
};

/* It computes, or could. */
static inline bool kv_slot_runs(const kv_slot *slot) {
    return slot->gen && !slot->restoring;
}
static inline int32_t kv_slot_left(const kv_slot *slot) {
    return (int32_t)(slot->gen->tokens.len - slot->held.len);
}
/* The cache gets what it computes. */
static inline bool kv_slot_is_captured(const kv_slot *slot) {
    return slot->trail && slot->gen && slot->gen->cache_prompt && !slot->gen->run.starts_over;
}
static inline kv_queue_key kv_run_key(const kv_gen *g, int32_t left) {
    return (kv_queue_key){g->run.id, g->run.overtaken_us, left};
}
/* Of one that runs: its own, or that of the most urgent one that waits for what it computes. */
kv_queue_key kv_slot_key(const kv_sched *s, const kv_slot *slot);

/* sched.c */
void kv_sched_end(kv_sched *s, kv_gen *g, kv_finish finish, const kv_error *err); /* from waiting or its slot */
void kv_sched_wait(kv_sched *s, kv_gen *g);                /* transfer a reference to the waiting ones */
void kv_sched_note_last(kv_sched *s, int slot, bool keep); /* what it holds is what was left in it */
void kv_sched_count_failure(kv_sched *s, kv_gen *g, const kv_error *err);
kv_timings kv_sched_timings(const kv_gen *g, int64_t now_us);

/* admit.c */
bool kv_sched_admit(kv_sched *s); /* true when somebody got a slot */
/* The idle slot that loses least (`wanted`, when that is ≥ 0); -1: none is idle. */
int kv_sched_least_valuable(const kv_sched *s, int wanted);
/* Room for g in `slot` beside what runs in others, were all idle slots emptied: g's tokens, what the others are still
 * going to compute, and some headroom for what they generate. Where nothing runs it always fits. `shared`: cells that it
 * takes over. */
bool kv_sched_fits(kv_sched *s, const kv_gen *g, int slot, int32_t usable, int32_t shared);
/* From here on nobody may erase the slot. False when somebody just did: choose again. */
bool kv_sched_claim(kv_sched *s, int slot);
void kv_sched_stop_waiting(kv_sched *s, const kv_gen *g);
void kv_sched_seat(kv_sched *s, kv_gen *g, int slot); /* g, no longer among the waiting ones, has the slot */
/* The slot's generation goes on after the `cached` tokens that it holds. */
void kv_sched_start_computing(kv_sched *s, int slot, int32_t cached);
void kv_sched_tell_progress(kv_gen *g, int64_t now_us);

/* share.c */
bool kv_sched_twin_computes(const kv_sched *s, const kv_gen *g); /* of the same request, the prompt that g waits for */
bool kv_sched_share_prompts(kv_sched *s);                        /* true when somebody took one over */
void kv_sched_look_up_anew(kv_sched *s, kv_gen *g);              /* what it found may be gone */
/* Its look-up has no result yet. Whoever computes what it may wait for then keeps something for it already now. */
bool kv_sched_waits_for_look_up(const kv_sched *s, kv_gen *g);
/* Of g's prompt a slot computes more at this moment than the `have` tokens that g could have now: it is better to wait.
 * Also true while g looks up anew what such a one left. */
bool kv_sched_is_led(kv_sched *s, kv_gen *g, int32_t have);

/* resume.c; all do nothing without a cache */
kv_status kv_sched_open_cache(kv_sched *s, kv_error *err);
void kv_sched_close_cache(kv_sched *s);
void kv_sched_look_up(kv_sched *s, kv_gen *g); /* any thread */
bool kv_sched_looks_up(const kv_gen *g);       /* its result is not there yet */
int32_t kv_sched_resumable(const kv_gen *g);   /* tokens that the cache could put into a slot */
/* The claimed slot has `usable` tokens of g: begin to put more into it if there are. False: no more can be had (the slot
 * may be empty now). */
bool kv_sched_begin_restore(kv_sched *s, int slot, kv_gen *g, int32_t usable);
bool kv_sched_restore_some(kv_sched *s);            /* a slice of each restore; true when something was done */
void kv_sched_note_miss(kv_gen *g, int32_t cached); /* why no more than `cached` tokens were there */
void kv_sched_begin_trail(kv_sched *s, int slot, const kv_gen *g);
void kv_sched_capture(kv_sched *s, int slot, double us_per_token);
/* A row of a call came of the last token that the slot holds; before it is sampled. */
void kv_sched_keep_probe(kv_sched *s, int slot, int row);
void kv_sched_capture_end(kv_sched *s, int slot); /* before its generation leaves */
/* What the cache has of the slot's first n tokens from `from` on may be no numbers. */
void kv_sched_forget(kv_sched *s, int slot, int32_t from, int32_t n);
/* Somebody is about to run in `slot`: idle ones that the cache brings back in milliseconds give up their cells, which
 * attention would walk for every token: an idle conversation stays only while it costs nothing. */
void kv_sched_clear_way(kv_sched *s, int slot);

/* room.c */
int kv_sched_n_running(const kv_sched *s);
void kv_sched_touch(kv_sched *s, int slot); /* the content of held changed */
void kv_sched_empty_slot(kv_sched *s, int slot);
void kv_sched_requeue(kv_sched *s, int slot); /* its generation goes back to the queue */
/* The prompt that comes last of those that are being computed, where g with this key goes before it and would have room in
 * its place: back to the queue, if all that was computed of it is kept, or if it came later than g and g was overtaken for
 * max_wait. False: there is none. */
bool kv_sched_give_way(kv_sched *s, const kv_gen *g, const kv_queue_key *key);
void kv_sched_release_slot(kv_sched *s, int slot, bool keep); /* its generation leaves; keep what it holds? */
bool kv_sched_evict(kv_sched *s, int32_t need); /* give up an idle slot's cells; false when no idle one has any */
/* Until `need` tokens fit: empty idle slots, then preempt. False when somebody was preempted: plan again. */
bool kv_sched_make_room(kv_sched *s, int32_t need);
void kv_sched_no_cells(kv_sched *s, const kv_error *err); /* the engine found no room although we counted some */
/* The call was refused, broke half-way, or gave no numbers; `in` are the slots of its rows. */
void kv_sched_refused(kv_sched *s, const bool *in, const kv_error *err);
void kv_sched_damaged(kv_sched *s, const bool *in, const kv_error *err);
void kv_sched_not_numbers(kv_sched *s, const bool *in, const kv_error *err);
void kv_sched_make_dense(kv_sched *s);

/* round.c */
bool kv_sched_round(kv_sched *s); /* true when something was computed or changed */

#endif
