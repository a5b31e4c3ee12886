/* sched/chunk.c: see chunk.h. */
#include "sched/chunk.h"

static int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* From pos to the last multiple of the block that `most` tokens reach; inside one block where they reach none (a
 * batch smaller than a block). */
static int32_t to_last_edge(int32_t pos, int32_t block, int32_t most) {
    int32_t edge = (int32_t)(((int64_t)pos + most) / block * block);
    if (edge > pos) return edge - pos;
    int32_t power = 1;
    while (power <= most / 2) power *= 2;
    return power;
}

static bool fits(const kv_chunk_input *in, int32_t n, int64_t limit_us) {
    int64_t us = in->predict_us ? in->predict_us(in->predict_ctx, n) : -1;
    return us >= 0 && us <= limit_us;
}

/* The largest power of two from `least` to `most` that is predicted to stay within the limit, else `least`. Every
 * size is asked, not only the next one: with some kernels a larger batch is the faster one. */
static int32_t largest_that_fits(const kv_chunk_input *in, int32_t least, int32_t most, int64_t limit_us) {
    int32_t best = least;
    for (int64_t n = (int64_t)least * 2; n <= most; n *= 2)
        if (fits(in, (int32_t)n, limit_us)) best = (int32_t)n;
    return best;
}

/* Less than the smallest chunk. */
static int32_t of_rest(const kv_chunk_input *in, int32_t rest) {
    int64_t limit_us = in->smallest_us > in->budget_us ? in->smallest_us : in->budget_us;
    if (fits(in, rest, limit_us)) return rest;
    int32_t n = largest_that_fits(in, min32(in->least, rest), rest, limit_us);
    return rest - n < in->least ? rest : n; /* what then is left would be below the least */
}

int32_t kv_chunk_next(const kv_chunk_input *in) {
    int32_t left = in->n_tokens - 1 - in->pos;
    if (left <= 0 || in->room <= 0) return 0;
    if (!in->streaming) return min32(left, to_last_edge(in->pos, in->block, min32(in->chunk, in->room)));
    int32_t most = min32(left, in->room);
    if (in->block < in->min_chunk) { /* as many whole blocks as make up the smallest chunk */
        most = min32(left, to_last_edge(in->pos, in->block, min32(in->min_chunk, in->room)));
        return most < in->min_chunk ? of_rest(in, most) : most;
    }
    most = min32(most, in->block - in->pos % in->block);
    if (most < in->min_chunk) return of_rest(in, most);
    int32_t n = largest_that_fits(in, in->min_chunk, most, in->budget_us), rest = most - n;
    bool with_rest = rest > 0 && rest < in->min_chunk && in->smallest_us >= 0 &&
                     fits(in, n + rest, (in->budget_us > 0 ? in->budget_us : 0) + in->smallest_us);
    return with_rest ? n + rest : n;
}
