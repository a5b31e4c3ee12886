/* Cells of the attention layers, as llama-kv-cells.h and llama-kv-cache.cpp keep them.
 *
 * Invariants, walked by kv_fake_pool_check:
 *   1. a cell has a position if and only if it has an owner
 *   2. used = number of cells with an owner, top = the highest of them + 1
 *   3. seqs[s] counts, sums and bounds exactly the cells that s owns
 *
 * All changes go through cell_own, cell_disown and cell_part, which keep 3: that is what makes the sum of a whole
 * sequence free of charge at any depth. */
#include "engine/engine_fake_internal.h"

#include <stdlib.h>
#include <string.h>

void kv_fake_pool_init(kv_fake_pool *p, int32_t n_cells, int32_t n_seq, int32_t window, bool chunked) {
    memset(p, 0, sizeof *p);
    p->n_cells = n_cells;
    p->n_seq = n_seq;
    p->n_words = (n_seq + 63) / 64;
    p->window = window;
    p->chunked = chunked;
    p->cells = kv_alloc((size_t)n_cells * sizeof *p->cells);
    p->owners = kv_alloc((size_t)n_cells * (size_t)p->n_words * sizeof *p->owners);
    p->seqs = kv_alloc((size_t)n_seq * sizeof *p->seqs);
    p->nan = kv_alloc((size_t)n_cells * sizeof *p->nan);
    p->top = n_cells; /* so that clear reaches every cell */
    kv_fake_pool_clear(p);
}

void kv_fake_pool_free(kv_fake_pool *p) {
    free(p->cells);
    free(p->owners);
    free(p->seqs);
    free(p->nan);
    memset(p, 0, sizeof *p);
}

void kv_fake_pool_clear(kv_fake_pool *p) {
    for (int32_t i = 0; i < p->top; i++) p->cells[i] = (kv_fake_cell){.pos = -1};
    if (p->top > 0) memset(p->owners, 0, (size_t)p->top * (size_t)p->n_words * sizeof *p->owners);
    for (kv_seq s = 0; s < p->n_seq; s++) p->seqs[s] = (kv_fake_seq_stat){.min = -1, .max = -1};
    p->head = p->used = p->top = 0;
}

void kv_fake_pool_zero(kv_fake_pool *p) {
    memset(p->nan, 0, (size_t)p->n_cells * sizeof *p->nan);
    p->n_nan = 0;
}

/* ── one cell ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t *owners_of(const kv_fake_pool *p, int32_t i) {
    return p->owners + (size_t)i * (size_t)p->n_words;
}

bool kv_fake_pool_owns(const kv_fake_pool *p, int32_t i, kv_seq s) {
    return owners_of(p, i)[s >> 6] >> (s & 63) & 1;
}

static int n_owners(const kv_fake_pool *p, int32_t i) {
    int n = 0;
    for (int w = 0; w < p->n_words; w++) n += __builtin_popcountll(owners_of(p, i)[w]);
    return n;
}

static kv_seq first_owner(const kv_fake_pool *p, int32_t i) {
    for (int w = 0; w < p->n_words; w++)
        if (owners_of(p, i)[w]) return w * 64 + __builtin_ctzll(owners_of(p, i)[w]);
    return -1;
}

/* An empty cell gets its position; it counts as used once it has an owner, which must follow. */
static void cell_open(kv_fake_pool *p, int32_t i, kv_pos pos) {
    p->cells[i] = (kv_fake_cell){.pos = pos};
    p->used++;
    if (i >= p->top) p->top = i + 1;
}

static void cell_close(kv_fake_pool *p, int32_t i) {
    p->cells[i] = (kv_fake_cell){.pos = -1};
    p->used--;
    while (p->top > 0 && p->cells[p->top - 1].pos < 0) p->top--;
}

static void cell_own(kv_fake_pool *p, int32_t i, kv_seq s) {
    if (kv_fake_pool_owns(p, i, s)) return; /* a copy onto itself */
    const kv_fake_cell *c = &p->cells[i];
    kv_fake_seq_stat *q = &p->seqs[s];
    owners_of(p, i)[s >> 6] |= 1ull << (s & 63);
    q->sum += c->part;
    if (q->n++ == 0) {
        q->min = q->max = c->pos;
        q->stale = false;
    } else if (!q->stale) {
        if (c->pos < q->min) q->min = c->pos;
        if (c->pos > q->max) q->max = c->pos;
    }
}

/* True when nobody owns the cell any more; then it is empty. */
static bool cell_disown(kv_fake_pool *p, int32_t i, kv_seq s) {
    const kv_fake_cell *c = &p->cells[i];
    kv_fake_seq_stat *q = &p->seqs[s];
    owners_of(p, i)[s >> 6] &= ~(1ull << (s & 63));
    q->sum -= c->part;
    if (--q->n == 0) {
        q->min = q->max = -1;
        q->stale = false;
    } else if (c->pos == q->min || c->pos == q->max) {
        q->stale = true;
    }
    if (first_owner(p, i) >= 0) return false;
    cell_close(p, i);
    return true;
}

static void cell_part(kv_fake_pool *p, int32_t i, uint64_t digest, uint64_t part) {
    kv_fake_cell *c = &p->cells[i];
    uint64_t more = part - c->part;
    c->digest = digest;
    c->part = part;
    for (int w = 0; w < p->n_words; w++)
        for (uint64_t set = owners_of(p, i)[w]; set; set &= set - 1) p->seqs[w * 64 + __builtin_ctzll(set)].sum += more;
}

static void cell_empty(kv_fake_pool *p, int32_t i) {
    for (kv_seq s; (s = first_owner(p, i)) >= 0;)
        if (cell_disown(p, i, s)) break;
}

void kv_fake_pool_write(kv_fake_pool *p, int32_t i, uint64_t digest) {
    cell_part(p, i, digest, kv_fake_part(digest, p->cells[i].pos));
    p->n_nan += (digest == KV_FAKE_NAN) - p->nan[i];
    p->nan[i] = digest == KV_FAKE_NAN;
}

/* ── sequences ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_fake_seq_stat *fresh(kv_fake_pool *p, kv_seq s) {
    kv_fake_seq_stat *q = &p->seqs[s];
    if (!q->stale) return q;
    q->min = INT32_MAX;
    q->max = -1;
    for (int32_t i = 0; i < p->top; i++) {
        kv_pos pos = p->cells[i].pos;
        if (pos < 0 || !kv_fake_pool_owns(p, i, s)) continue;
        if (pos < q->min) q->min = pos;
        if (pos > q->max) q->max = pos;
    }
    q->stale = false;
    return q;
}

kv_pos kv_fake_pool_min(kv_fake_pool *p, kv_seq s) {
    return fresh(p, s)->min;
}
kv_pos kv_fake_pool_max(kv_fake_pool *p, kv_seq s) {
    return fresh(p, s)->max;
}

kv_pos kv_fake_pool_sees_from(const kv_fake_pool *p, kv_pos pos) {
    if (p->window == 0) return 0;
    if (p->chunked) return pos / p->window * p->window;
    return pos - p->window + 1 > 0 ? pos - p->window + 1 : 0;
}

void kv_fake_pool_rm(kv_fake_pool *p, kv_seq s, kv_pos p0, kv_pos p1) {
    int32_t freed = p->n_cells;
    for (int32_t i = 0; i < p->top && p->seqs[s].n > 0; i++) {
        kv_pos pos = p->cells[i].pos;
        if (pos < p0 || pos >= p1 || !kv_fake_pool_owns(p, i, s)) continue;
        if (cell_disown(p, i, s) && freed == p->n_cells) freed = i;
    }
    /* the search goes on at the lowest freed cell when that lies below the head */
    if (freed < p->head) p->head = freed;
}

void kv_fake_pool_cp(kv_fake_pool *p, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1) {
    if (src == dst) return;
    for (int32_t i = 0; i < p->top; i++) {
        kv_pos pos = p->cells[i].pos;
        if (pos >= 0 && pos >= p0 && pos < p1 && kv_fake_pool_owns(p, i, src)) cell_own(p, i, dst);
    }
}

/* ── finding and taking cells ──────────────────────────────────────────────────────────────────────────────────── */

/* Empty, or with a single owner that has left it behind its window (counted from the owner's next position). */
static bool can_take(kv_fake_pool *p, int32_t i) {
    kv_pos pos = p->cells[i].pos;
    if (pos < 0) return true;
    if (p->window == 0 || n_owners(p, i) != 1) return false;
    return pos < kv_fake_pool_sees_from(p, kv_fake_pool_max(p, first_owner(p, i)) + 1);
}

bool kv_fake_pool_find(int32_t *idx, kv_fake_pool *p, int32_t n) {
    if (n > p->n_cells) return false;
    /* as libllama: with that much room below, start over from the bottom in the hope of filling it */
    int32_t at = p->head > p->used + 2 * n ? 0 : p->head;
    int32_t got = 0;
    for (int32_t tested = 0; got < n; tested++) {
        if (tested == p->n_cells) return false;
        if (at == p->n_cells) at = 0;
        if (can_take(p, at)) idx[got++] = at;
        at++;
    }
    return true;
}

void kv_fake_pool_place(kv_fake_pool *p, const int32_t *idx, const kv_pos *pos, const kv_seq *seq, int32_t n,
                        kv_fake_saved *saved) {
    kv_pos overwritten[KV_FAKE_MAX_SEQ]; /* by sequence: the highest position that lost its cell */
    for (kv_seq s = 0; s < p->n_seq; s++) overwritten[s] = -1;
    for (int32_t k = 0; k < n; k++) {
        int32_t i = idx[k];
        kv_fake_cell *c = &p->cells[i];
        if (saved) {
            saved[k] = (kv_fake_saved){.idx = i, .cell = *c};
            memcpy(saved[k].owners, owners_of(p, i), (size_t)p->n_words * sizeof(uint64_t));
        }
        if (c->pos >= 0) {
            kv_seq s = first_owner(p, i);
            if (c->pos > overwritten[s]) overwritten[s] = c->pos;
            cell_empty(p, i);
        }
        cell_open(p, i, pos[k]);
        cell_own(p, i, seq[k]);
    }
    /* A sequence has all positions between its lowest and its highest: what lies below a lost one goes too. */
    for (kv_seq s = 0; s < p->n_seq; s++)
        if (overwritten[s] >= 0 && p->seqs[s].n > 0 && kv_fake_pool_min(p, s) <= overwritten[s])
            kv_fake_pool_rm(p, s, kv_fake_pool_min(p, s), overwritten[s] + 1);
    p->head = idx[n - 1] + 1;
}

void kv_fake_pool_restore(kv_fake_pool *p, const kv_fake_saved *saved, int32_t n, int32_t head) {
    for (int32_t k = 0; k < n; k++) {
        int32_t i = saved[k].idx;
        if (p->cells[i].pos >= 0) cell_empty(p, i);
        if (saved[k].cell.pos < 0) continue;
        cell_open(p, i, saved[k].cell.pos);
        for (kv_seq s = 0; s < p->n_seq; s++)
            if (saved[k].owners[s >> 6] >> (s & 63) & 1) cell_own(p, i, s);
        cell_part(p, i, saved[k].cell.digest, saved[k].cell.part);
    }
    p->head = head;
}

/* ── check ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_fake_pool_check(kv_fake_pool *p) {
    int32_t used = 0, top = 0;
    kv_fake_seq_stat *real = kv_alloc((size_t)p->n_seq * sizeof *real);
    for (kv_seq s = 0; s < p->n_seq; s++) real[s] = (kv_fake_seq_stat){.min = -1, .max = -1};
    for (int32_t i = 0; i < p->n_cells; i++) {
        const kv_fake_cell *c = &p->cells[i];
        KV_CHECK((c->pos >= 0) == (n_owners(p, i) > 0)); /* 1 */
        if (c->pos < 0) continue;
        used++;
        top = i + 1;
        KV_CHECK(first_owner(p, i) < p->n_seq);
        KV_CHECK(c->part == kv_fake_part(c->digest, c->pos));
        for (kv_seq s = 0; s < p->n_seq; s++) {
            if (!kv_fake_pool_owns(p, i, s)) continue;
            real[s].sum += c->part;
            if (real[s].n++ == 0 || c->pos < real[s].min) real[s].min = c->pos;
            if (c->pos > real[s].max) real[s].max = c->pos;
        }
    }
    KV_CHECK(used == p->used && top == p->top); /* 2 */
    KV_CHECK(p->head >= 0 && p->head <= p->n_cells);
    for (kv_seq s = 0; s < p->n_seq; s++) { /* 3 */
        const kv_fake_seq_stat *q = fresh(p, s);
        KV_CHECK(q->n == real[s].n && q->sum == real[s].sum && q->min == real[s].min && q->max == real[s].max);
    }
    free(real);
}
