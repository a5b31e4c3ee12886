/* cache/policy.h: where checkpoints and window parts are kept. Pure functions.
 *
 *   system, tools │ message │ message │ last message │ generation prompt │ answer …
 *   0 ────────────▲─────────▲─────────▲──────────────▲───────────────────▲─────── … ▲
 *          system_end   message   last_message   generation        prompt_end   answer_end
 *
 * The last prompt token is always decoded alone, so the same prompt again costs one token; the end is where the next
 * turn goes on; what begins a message may be edited; where two prompts parted a third one may; and where none of these
 * is near, an interval bounds what a prompt that parts anywhere has to compute again.
 *
 * Each of these is worth what it saves: kept at P behind a place kept at R, it saves computing P - R tokens each time
 * that a prompt goes on at P, or behind it and before the next one that is kept. So
 *
 *   worth of P = (P - R) × time of a token × (chances of all spots from P to the next kept) ÷ bytes
 *
 * and within the budget of its conversation the worthiest is taken first, the rest valued anew, and so on. A spot's
 * chance is that of its kind, which a store learns from its own hits.
 *
 * Thread rule: none.
 */
#ifndef KV_CACHE_POLICY_H
#define KV_CACHE_POLICY_H

#include "store/format.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct kv_policy {
    int32_t block;       /* B */
    int32_t interval;    /* tokens between kept positions in long prompts, a multiple of B */
    int32_t exact_chunk; /* C, a multiple of B, or 0. Then nothing is kept, and nothing resumed, but where a chunk of a
                          * cold run ends, whatever the prompt: at multiples of C before its last token */
    bool only_intervals; /* nothing is kept but at multiples of the interval. Nobody serves with it: bench/traffic.c
                          * compares the two */
} kv_policy;

/* A position to come back to: a prompt's first `position` tokens. */
typedef struct kv_hint {
    int32_t position;     /* 1 … n_prompt - 1 */
    int32_t keep_seconds; /* what is stored up to there is worth keeping at least that long after its last use */
    kv_place_kind kind;
    bool is_left_out; /* nothing is kept there after all */
} kv_hint;

/* The largest position ≤ P that a restore may end at, as far as chunks are concerned. */
static inline int32_t kv_policy_resumes(const kv_policy *p, int32_t P) {
    return p->exact_chunk ? P / p->exact_chunk * p->exact_chunk : P;
}

/* A prompt as far as the policy looks at it. */
typedef struct kv_places {
    int32_t n_prompt;
    const kv_hint *hints; /* borrowed, n_hints of them, in any order; NULL = none */
    int n_hints;
    bool are_chosen; /* the hints are all that is kept (kv_policy_choose); else intervals are, too */
} kv_places;

/* True when position P (of a prompt of n_prompt tokens; the answer lies behind it) is one to come back to. */
bool kv_policy_keeps(const kv_policy *p, int32_t P, const kv_places *prompt);
/* What kind it is, as one that is kept. */
kv_place_kind kv_policy_kind(int32_t P, const kv_places *prompt);
/* How long what ends at P, or holds tokens up to it, is worth keeping after its last use: the longest time of a hint at
 * or behind P. */
int32_t kv_policy_keep_seconds(int32_t P, const kv_places *prompt);
/* The next position > pos that a prefill of n_prompt tokens must stop at, at most n_prompt. */
int32_t kv_policy_next(const kv_policy *p, int32_t pos, const kv_places *prompt);
/* A place nearer than this behind one that is kept is not worth a state of its own: tokens whose cells take an eighth of
 * the state's bytes, at most a quarter of the interval. 0 where states cost nothing beside windows that are shared. */
int32_t kv_policy_near(int32_t interval, uint64_t state_bytes, uint64_t cell_bytes);
/* The interval for this model: 2,048 tokens, doubled until checkpoints cost no more bytes than the blocks between. */
int32_t kv_policy_interval(int32_t block, uint64_t checkpoint_bytes, uint64_t cell_bytes);
/* Most bytes of checkpoints or window parts of a conversation of n tokens when nobody said: one for each interval, by
 * which they cost no more than its blocks, and KV_POLICY_LEAST more, without which a short one could not be rewound. */
#define KV_POLICY_LEAST 24
uint64_t kv_policy_budget(int32_t interval, uint64_t checkpoint_bytes, int32_t n);
/* Of two kinds of one position the one that is likelier to be asked for. */
kv_place_kind kv_policy_likelier(kv_place_kind a, kv_place_kind b);
/* One more hint of the same position: the likelier kind and the longer time count. */
void kv_hint_join(kv_hint *there, const kv_hint *more);

/* ── chances ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What became of positions of one kind, since counting began. */
typedef struct kv_place_count {
    uint64_t n_kept; /* states or window parts that were stored */
    uint64_t n_hits; /* prompts that went on there */
} kv_place_count;

/* The chance that a position of each kind is gone on at, 0 … 1: of what was counted, and while that is little, of what
 * conversations are like (docs/architecture.md "Checkpoints"). */
void kv_policy_chances(double chance[KV_PLACE_COUNT], const kv_place_count count[KV_PLACE_COUNT]);

/* ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A position as the choice sees it. */
typedef struct kv_spot {
    int32_t position;
    kv_place_kind kind;
    uint64_t bytes; /* of its state; what a window takes is reckoned from the terms */
    bool is_stored; /* its state is there */
    bool
        is_possible; /* the prompt is about to be computed past it. If neither, nothing can be kept, yet it may be asked for */
    bool is_fixed; /* is kept whatever it is worth, and whatever the budget */
    bool is_kept;  /* the answer */
} kv_spot;

typedef struct kv_policy_terms {
    uint64_t budget;            /* bytes of all that is kept */
    double us_per_token;        /* what computing one takes; > 0 */
    int32_t window;             /* tokens whose window cells a position needs, which near positions share; 0 = none */
    uint64_t window_cell_bytes; /* of one token */
    int32_t spacing;            /* a message that begins nearer than this behind a kept place is not worth one */
    int32_t end;                /* tokens of the path */
    int32_t interval;           /* chance[KV_PLACE_INTERVAL] is of a prompt that parts in so many tokens, anywhere */
    double chance[KV_PLACE_COUNT];
} kv_policy_terms;

/* Sets is_kept. spots: n of them, ascending, no two at one position. With the same input always the same choice. */
void kv_policy_choose(kv_spot *spots, int n, const kv_policy_terms *t);
/* Spots of kind INTERVAL where between `from` and the path's end nothing is kept for longer than the interval; spots
 * must have room for `room`; returns how many there are now, ascending. block: they lie on multiples of it. */
int kv_policy_fill(kv_spot *spots, int n, int room, int32_t from, int32_t block, uint64_t bytes,
                   const kv_policy_terms *t);
/* What is kept takes so many bytes, and saves so many microseconds for a prompt on an average: what the choice makes
 * large. */
uint64_t kv_policy_bytes(const kv_spot *spots, int n, const kv_policy_terms *t);
double kv_policy_saves_us(const kv_spot *spots, int n, const kv_policy_terms *t);

#endif
