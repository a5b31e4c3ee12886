/* sched/cells.c: see cells.h. */
#include "sched/cells.h"

#include "base/buf.h"
#include "base/error.h"
#include <stdlib.h>
#include <string.h>

static int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}
static int32_t max32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t *share(const kv_cells *c, int a, int b) {
    return &c->share[(size_t)a * (size_t)c->n_seq + (size_t)b];
}

static void set_share(kv_cells *c, int a, int b, int32_t n) {
    *share(c, a, b) = n;
    *share(c, b, a) = n;
}

void kv_cells_init(kv_cells *c, int n_seq, int32_t total, bool forks_share) {
    memset(c, 0, sizeof *c);
    c->n_seq = n_seq;
    c->total = total;
    c->forks_share = forks_share;
    c->len = kv_alloc((size_t)n_seq * sizeof *c->len);
    c->peak = kv_alloc((size_t)n_seq * sizeof *c->peak);
    c->share = kv_alloc((size_t)n_seq * (size_t)n_seq * sizeof *c->share);
}

void kv_cells_set_window(kv_cells *c, int32_t window, int32_t window_total) {
    c->window = window;
    c->window_total = window_total;
}

void kv_cells_free(kv_cells *c) {
    free(c->len);
    free(c->peak);
    free(c->share);
    memset(c, 0, sizeof *c);
}

/* Every change of a length goes through here. */
static void set_len(kv_cells *c, int seq, int32_t len) {
    c->window_held += min32(len, c->window) - min32(c->len[seq], c->window);
    c->len[seq] = len;
}

void kv_cells_append(kv_cells *c, int seq, int32_t n) {
    KV_CHECK(n >= 0 && n <= c->total - c->used);
    set_len(c, seq, c->len[seq] + n);
    c->used += n;
    c->peak[seq] = max32(c->peak[seq], c->used);
}

/* The longest prefix that another sequence holds too. */
static int32_t longest_share(const kv_cells *c, int seq) {
    int32_t longest = 0;
    for (int b = 0; b < c->n_seq; b++)
        if (b != seq) longest = max32(longest, *share(c, seq, b));
    return longest;
}

void kv_cells_cut(kv_cells *c, int seq, int32_t len) {
    KV_CHECK(len >= 0 && len <= c->len[seq]);
    c->used -= c->len[seq] - max32(len, longest_share(c, seq));
    set_len(c, seq, len);
    if (len == 0) c->peak[seq] = 0;
    for (int b = 0; b < c->n_seq; b++)
        if (b != seq) set_share(c, seq, b, min32(*share(c, seq, b), len));
}

bool kv_cells_can_fork(const kv_cells *c, int src, int32_t more) {
    int32_t main_cells = c->forks_share ? 0 : c->len[src];
    if (c->total - c->used < main_cells + more) return false;
    return !c->window || c->window_total - c->window_held >= min32(c->len[src], c->window) + more;
}

void kv_cells_fork(kv_cells *c, int src, int dst) {
    KV_CHECK(src != dst && c->len[dst] == 0);
    if (!c->forks_share) {
        kv_cells_append(c, dst, c->len[src]);
        return;
    }
    for (int b = 0; b < c->n_seq; b++)
        if (b != src && b != dst) set_share(c, dst, b, *share(c, src, b));
    set_share(c, src, dst, c->len[src]);
    set_len(c, dst, c->len[src]);
    c->peak[dst] = c->peak[src];
}

static void swap32(int32_t *a, int32_t *b) {
    int32_t t = *a;
    *a = *b;
    *b = t;
}

void kv_cells_swap(kv_cells *c, int a, int b) {
    if (a == b) return;
    swap32(&c->len[a], &c->len[b]);
    swap32(&c->peak[a], &c->peak[b]);
    for (int k = 0; k < c->n_seq; k++) {
        if (k == a || k == b) continue;
        swap32(share(c, a, k), share(c, b, k));
        swap32(share(c, k, a), share(c, k, b));
    }
}

int32_t kv_cells_beside(const kv_cells *c, const bool *in, int seq, int32_t len) {
    int32_t shared = 0;
    for (int b = 0; b < c->n_seq; b++)
        if (in[b] && b != seq) shared = max32(shared, *share(c, seq, b));
    return len - min32(len, shared);
}

int32_t kv_cells_of(const kv_cells *c, const bool *in) {
    int32_t used = 0;
    for (int a = 0; a < c->n_seq; a++) {
        if (!in[a]) continue;
        int32_t counted = 0; /* of its cells, those that a sequence before it brought in */
        for (int b = 0; b < a; b++)
            if (in[b]) counted = max32(counted, *share(c, a, b));
        used += c->len[a] - counted;
    }
    return used;
}

int32_t kv_cells_top(const kv_cells *c) {
    int32_t top = 0;
    for (int a = 0; a < c->n_seq; a++) top = max32(top, c->peak[a]);
    return top;
}

void kv_cells_check(const kv_cells *c) {
    int32_t used = 0, held = 0;
    for (int a = 0; a < c->n_seq; a++) {
        int32_t counted = 0;
        held += min32(c->len[a], c->window);
        KV_CHECK(c->len[a] >= 0 && c->peak[a] >= c->len[a]);
        for (int b = 0; b < c->n_seq; b++) {
            if (a == b) continue;
            int32_t n = *share(c, a, b);
            KV_CHECK(n >= 0 && n == *share(c, b, a) && n <= c->len[a]);
            if (b < a) counted = max32(counted, n);
            for (int k = 0; k < c->n_seq; k++)
                if (k != a && k != b) KV_CHECK(*share(c, a, k) >= min32(n, *share(c, b, k)));
        }
        used += c->len[a] - counted;
    }
    KV_CHECK(used == c->used && used <= c->total);
    KV_CHECK(held == c->window_held);
}
