/* cache/policy.h: where checkpoints and window parts are kept. Pure functions.
 *
 *   0 ──── interval ──── 2·interval ─ … ─ n_prompt-1 │ answer … end
 *          ▲             ▲                ▲                     ▲
 *
 * The last prompt token is always decoded alone, so the same prompt again costs one token; intervals bound what a
 * prompt that parts anywhere has to compute again; the end is where the next turn goes on. Beside these, a prompt has
 * places of its own: those that the client marked, and where it parted from what is stored, since where two prompts
 * part a third one may.
 *
 * Thread rule: none.
 */
#ifndef KV_CACHE_POLICY_H
#define KV_CACHE_POLICY_H

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

/* A position that the client asked to come back to (Anthropic's cache_control): a prompt's first `position` tokens. */
typedef struct kv_hint {
    int32_t position;     /* 1 … n_prompt - 1 */
    int32_t keep_seconds; /* what is stored up to there is worth keeping at least that long after its last use */
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
} kv_places;

/* True when position P (of a prompt of n_prompt tokens; the answer lies behind it) is one to come back to. */
bool kv_policy_keeps(const kv_policy *p, int32_t P, const kv_places *prompt);
/* The next position > pos that a prefill of n_prompt tokens must stop at, at most n_prompt. */
int32_t kv_policy_next(const kv_policy *p, int32_t pos, const kv_places *prompt);
/* A place nearer than this behind one that is kept is not worth a state of its own: tokens whose cells take an eighth of
 * the state's bytes, at most a quarter of the interval. 0 where states cost nothing beside windows that are shared. */
int32_t kv_policy_near(int32_t interval, uint64_t state_bytes, uint64_t cell_bytes);
/* The interval for this model: 2,048 tokens, doubled until checkpoints cost no more bytes than the blocks between. */
int32_t kv_policy_interval(int32_t block, uint64_t checkpoint_bytes, uint64_t cell_bytes);

#endif
