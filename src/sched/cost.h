/* sched/cost.h: what a batch is going to cost, learned from those before it.
 *
 * Batches are sorted into classes by size (powers of two). A prediction is meant as an upper bound: it scales the
 * last figure of the same or the next smaller known class by size and by depth, which is never too little while the
 * true cost is a sum of a constant, a share per token and a share per token and cell (doubling a batch at most
 * doubles its time). What is smaller than all that is known is unknown: small batches can take slower kernels
 * (docs/engine.md "Speed on CPU").
 *
 * `depth` is the highest cell that attention walks to, in tokens, before the batch.
 *
 * Thread rule: none; one owner.
 */
#ifndef KV_SCHED_COST_H
#define KV_SCHED_COST_H

#include <stdint.h>

#define KV_COST_CLASSES 20 /* up to 2^20 tokens a batch */
/* Attention is padded to this many cells: below it, depth makes no difference. */
#define KV_COST_LEAST_DEPTH 256

typedef struct kv_cost_entry {
    int32_t n; /* tokens of the batch last seen in this class; 0 = none yet */
    int32_t depth;
    double us;       /* what n tokens at that depth cost: up at once, down slowly */
    int64_t last_us; /* what they cost when last seen */
} kv_cost_entry;

typedef struct kv_cost {
    int32_t least; /* batches with fewer tokens are not learned from: 2 where one token takes another kernel */
    kv_cost_entry by_size[KV_COST_CLASSES];
} kv_cost;

void kv_cost_init(kv_cost *c, int32_t least);
void kv_cost_observe(kv_cost *c, int32_t n, int32_t depth, int64_t us);
int64_t kv_cost_predict_us(const kv_cost *c, int32_t n, int32_t depth); /* -1 = unknown */
/* A lower bound for batches of this size, from the last one of its class; -1 when there was none. */
int64_t kv_cost_at_least_us(const kv_cost *c, int32_t n, int32_t depth);

#endif
