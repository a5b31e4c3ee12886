/* sched/chunk.h: how many prompt tokens the next prefill chunk takes. A pure function.
 *
 *   tokens  0        B        2B       3B      n-1 n
 *           ├────────┼────────┼────────┼────────┤·│   nobody decodes: up to the last edge within `chunk`
 *           ├──┼─────┼────────┼────┼───┼────────┤·│   somebody decodes: a power of two inside one block
 *                                                └ the last prompt token is never part of a chunk: it is decoded
 *                                                  alone, so that the same prompt again costs one token
 *
 * What is left before an edge or the end can be less than min_chunk. It goes with the chunk before it when the two are
 * predicted to take no longer than the budget and one smallest chunk, which is the bound anyway; else by itself, whole when
 * that is predicted to take no longer than what is allowed. But there are kernels that are many times slower below a
 * certain size (CPU flash attention below 64 rows), and then it is cut further. Never into single tokens where a chunk has
 * a call of its own (recurrent layers): one token takes another kernel than two, so that nothing would be learned from
 * it, and a rest would cost as many calls as it has tokens.
 *
 * Chunks end on absolute multiples of the block B wherever they can, so that blocks come out whole and the same
 * prompt is cut the same way.
 *
 * Thread rule: none.
 */
#ifndef KV_SCHED_CHUNK_H
#define KV_SCHED_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kv_chunk_input {
    int32_t pos;       /* tokens already there */
    int32_t n_tokens;  /* tokens in all, the last one included */
    int32_t block;     /* B ≥ 1 */
    int32_t chunk;     /* when nobody decodes; ≥ 1 */
    int32_t min_chunk; /* smallest while somebody decodes; ≥ 1, a power of two */
    int32_t least;     /* smallest piece of a rest below it, as long as more than that is left: 1 or 2 */
    int32_t room;      /* most rows that the call can take for it */
    bool streaming;    /* somebody decodes */
    int64_t budget_us; /* longest time that the chunk may take while somebody decodes */
    /* Predicted time of a chunk of n tokens, -1 = unknown: then nothing above min_chunk is tried, and of a rest below
     * it `least` tokens. */
    int64_t (*predict_us)(const void *ctx, int32_t n);
    const void *predict_ctx;
    int64_t smallest_us; /* what a chunk of min_chunk tokens takes at least: it is allowed anyway; -1 = unknown */
} kv_chunk_input;

/* 0 when only the last token is left (or room is 0). */
int32_t kv_chunk_next(const kv_chunk_input *in);

#endif
