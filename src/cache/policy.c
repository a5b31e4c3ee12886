#include "cache/policy.h"

#define FIRST_INTERVAL 2048

static bool is_hinted(int32_t P, const kv_places *prompt) {
    for (int i = 0; i < prompt->n_hints; i++)
        if (prompt->hints[i].position == P) return true;
    return false;
}

bool kv_policy_keeps(const kv_policy *p, int32_t P, const kv_places *prompt) {
    const int32_t n_prompt = prompt->n_prompt;
    if (P <= 0) return false;
    if (p->only_intervals) return P % p->interval == 0;
    if (p->exact_chunk) { /* the last full chunk, and the first one behind each interval */
        bool edge = P % p->exact_chunk == 0 && P < n_prompt;
        return edge && (P + p->exact_chunk > n_prompt - 1 || P / p->interval != (P - p->exact_chunk) / p->interval);
    }
    return P == n_prompt - 1 || (P < n_prompt && (P % p->interval == 0 || is_hinted(P, prompt)));
}

int32_t kv_policy_next(const kv_policy *p, int32_t pos, const kv_places *prompt) {
    const int32_t n_prompt = prompt->n_prompt;
    int32_t next = p->exact_chunk ? n_prompt : (pos / p->interval + 1) * p->interval;
    for (int i = 0; i < prompt->n_hints && !p->exact_chunk && !p->only_intervals; i++)
        if (prompt->hints[i].position > pos && prompt->hints[i].position < next) next = prompt->hints[i].position;
    if (pos < n_prompt - 1 && next > n_prompt - 1) next = n_prompt - 1;
    return next < n_prompt ? next : n_prompt;
}

int32_t kv_policy_near(int32_t interval, uint64_t state_bytes, uint64_t cell_bytes) {
    if (!state_bytes || !cell_bytes) return 0;
    uint64_t tokens = state_bytes / cell_bytes / 8;
    return tokens < (uint64_t)interval / 4 ? (int32_t)tokens : interval / 4;
}

int32_t kv_policy_interval(int32_t block, uint64_t checkpoint_bytes, uint64_t cell_bytes) {
    int32_t interval = FIRST_INTERVAL > block ? FIRST_INTERVAL / block * block : block;
    /* Without cells (recurrent only) there is nothing to hold them against. */
    while (cell_bytes && interval < 1 << 20 && checkpoint_bytes > cell_bytes * (uint64_t)interval) interval *= 2;
    return interval;
}
