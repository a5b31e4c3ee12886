/* sched/cells.h: how many cells of the main pool are in use: a mirror of the engine's own count.
 *
 * A sequence of n tokens takes n cells; a fork takes none, its tokens lie in the same cells as the source's until
 * one of the two goes on. What two sequences share is always a prefix, so one number a pair says all:
 *
 *     a  0──────────────5───────9        len[a] = 9
 *     b  0──────────────5──7             len[b] = 7   share[a][b] = 5     (cells: 9 + 7 - 5 = 11)
 *     c  0────3──4                       len[c] = 4   share[a][c] = share[b][c] = 3
 *
 * Invariants: share is symmetric; share[a][b] ≤ len of both; share[a][c] ≥ min(share[a][b], share[b][c]).
 *
 * The window pool cannot overflow where it has its full size, pad256(W × n_seq_max + n_batch): a sequence keeps fewer
 * than W cells from being used again (what lies W behind its end is free for everyone), whether it runs, is idle or
 * was forked, so n_seq_max sequences leave n_batch cells, and a call has no more rows than that. The engine makes it
 * no larger than the main pool, though. That alone would do no harm (who has no cell in the main pool needs none in
 * the window pool), but a fork shares its main cells and gets a copy of its window. So the window cells that may be
 * pinned, Σ min(len, W), are kept beside the exact count, and "left" is what both pools have. Recurrent states have
 * one row a sequence and nothing to count.
 *
 * Thread rule: none; the engine thread's.
 */
#ifndef KV_SCHED_CELLS_H
#define KV_SCHED_CELLS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kv_cells {
    int n_seq;
    int32_t total;    /* cells of the pool; INT32_MAX: this memory has none to count */
    bool forks_share; /* false: a fork copies (KV_MEMORY_WHOLE) */
    int32_t used;
    int32_t window; /* W, 0 = no window pool */
    int32_t window_total;
    int32_t window_held; /* Σ min(len, W): upper bound of what cannot be used again */
    int32_t *len;        /* owned, n_seq */
    int32_t *share;      /* owned, n_seq × n_seq; the diagonal is unused */
    int32_t *peak;       /* owned, n_seq: cells in use when the sequence last grew */
} kv_cells;

void kv_cells_init(kv_cells *c, int n_seq, int32_t total, bool forks_share);
void kv_cells_set_window(kv_cells *c, int32_t window, int32_t window_total); /* before the first append */
void kv_cells_free(kv_cells *c);

void kv_cells_append(kv_cells *c, int seq, int32_t n);
void kv_cells_cut(kv_cells *c, int seq, int32_t len); /* to its first `len` tokens */
void kv_cells_fork(kv_cells *c, int src, int dst);    /* dst is empty */
void kv_cells_swap(kv_cells *c, int a, int b);        /* the two sequences change names */

/* Tokens that can be computed now. */
static inline int32_t kv_cells_left(const kv_cells *c) {
    int32_t left = c->total - c->used;
    int32_t window_left = c->window ? c->window_total - c->window_held : INT32_MAX;
    return left < window_left ? left : window_left;
}
/* True when a sequence that holds `have` tokens can be brought to P by whole blocks: its first one may lie partly below
 * `have`, its last one partly behind P, but never behind the pool's end. Of the window pool they take only what lies within
 * the window, and the rest of a block at either end of it. */
static inline bool kv_cells_can_restore(const kv_cells *c, int32_t have, int32_t P, int32_t block) {
    int32_t n = P - have, window = n < c->window ? n : c->window, over = (block - P % block) % block;
    int32_t upto = over < c->total - P ? P + over : c->total;
    int32_t need = upto - have > block ? upto - have : block;
    return c->total - c->used >= need && (!c->window || c->window_total - c->window_held > window + block);
}
/* True when `src` can be forked and `more` tokens computed after it. */
bool kv_cells_can_fork(const kv_cells *c, int src, int32_t more);
/* Cells that the sequences with in[seq] take together. */
int32_t kv_cells_of(const kv_cells *c, const bool *in);
/* Cells of the first `len` tokens of `seq` that no sequence of in[] holds too. */
int32_t kv_cells_beside(const kv_cells *c, const bool *in, int seq, int32_t len);
/* Upper bound of the highest cell in use, as new cells go to the lowest free place: a sequence lies below what was in
 * use when it last grew. */
int32_t kv_cells_top(const kv_cells *c);
void kv_cells_check(const kv_cells *c); /* aborts on a broken invariant */

#endif
