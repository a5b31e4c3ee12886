/* sched/chunk.c: see chunk.h. */
#include "sched/chunk.h"

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

/* From pos to the last multiple of the block that `most` tokens reach; inside one block where they reach none (a
 * batch smaller than a block). */
static int32_t to_last_edge(int32_t pos, int32_t block, int32_t most) {
    int32_t edge = (int32_t)(((int64_t)pos + most) / block * block);
    if (edge > pos) return edge - pos;
    int32_t power = 1;
    while (power <= most / 2) power *= 2;
    return power;
}

/* The largest power of two up to `most` that is predicted to stay within the budget. Every size is asked, not only
 * the next one: with some kernels a larger batch is the faster one. */
static int32_t largest_in_budget(const kv_chunk_input *in, int32_t most) {
    int32_t best = in->min_chunk;
    for (int64_t n = (int64_t)in->min_chunk * 2; n <= most; n *= 2) {
        int64_t us = in->predict_us ? in->predict_us(in->predict_ctx, (int32_t)n) : -1;
        if (us >= 0 && us <= in->budget_us) best = (int32_t)n;
    }
    return best;
}

int32_t kv_chunk_next(const kv_chunk_input *in) {
    int32_t left = in->n_tokens - 1 - in->pos;
    if (left <= 0 || in->room <= 0) return 0;
    if (!in->streaming) return min32(left, to_last_edge(in->pos, in->block, min32(in->chunk, in->room)));
    /* Blocks below the smallest chunk: as many whole ones as make it up. */
    if (in->block < in->min_chunk)
        return min32(left, to_last_edge(in->pos, in->block, min32(in->min_chunk, in->room)));
    int32_t most = min32(min32(left, in->room), in->block - in->pos % in->block);
    /* Less than the smallest chunk closes the block or the prompt: cheaper than what is allowed anyway. */
    return most <= in->min_chunk ? most : largest_in_budget(in, most);
}
