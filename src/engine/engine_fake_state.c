/* State blobs, laid out as libllama's (all little-endian, nothing aligned):
 *
 *   blob       u32 magic, i32 sequence it came from, then the parts below: full = all that the kind has, in this
 *              order; partial = without main (plain attention and pure recurrent: the flag is ignored)
 *   main, window   u32 1 (streams), u32 n cells, and with n > 0:
 *                  n × (i32 pos, u32 1, i32 sequence), in order of the cells;
 *                  u32 V transposed, u32 1 (layers), i32 K type, u64 K row size, n K rows, the same of V
 *   rows       u32 n (0 or 1), n × (i32 pos, u32 0), u32 0, u32 1 (layers), i32 type, u64 R row size, n R rows, the
 *              same of S
 *   index      (whole only) u32 n cells, n × i32 pos
 *
 * Window cells that the sequence has left behind are not written. A row of bytes is kv_fake_expand of the digest, so
 * that every byte of it matters.
 *
 * Setting follows libllama in its damage as well: parts are read one after the other; an empty attention part leaves
 * the sequence as it was, any other first removes what the sequence had in that part, and a part that fails half-way
 * is removed again while the parts before it stay. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_fake_internal.h"

#define MAGIC    0xaf143cd8u
#define TYPE_F32 0

/* ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct writer {
    char *to; /* NULL: only count */
    size_t cap, n;
} writer;

static void put(writer *w, const void *bytes, size_t n) {
    if (w->to && w->n + n <= w->cap) memcpy(w->to + w->n, bytes, n);
    w->n += n;
}

static void put_u32(writer *w, uint32_t v) {
    put(w, &v, sizeof v);
}
static void put_i32(writer *w, int32_t v) {
    put(w, &v, sizeof v);
}
static void put_u64(writer *w, uint64_t v) {
    put(w, &v, sizeof v);
}

/* Bytes [from, from + n) of what stands for the digest; `all` is scratch of from + n bytes at least. */
static void put_row(writer *w, char *all, int32_t from, int32_t n, uint64_t digest) {
    if (w->to) kv_fake_expand(all, (size_t)(from + n), digest);
    put(w, all + from, (size_t)n);
}

static bool is_written(const kv_fake_pool *p, int32_t i, kv_seq s, kv_pos first) {
    return p->cells[i].pos >= first && kv_fake_pool_owns(p, i, s);
}

static void put_pool(writer *w, const kv_fake_engine *e, kv_fake_pool *p, kv_seq s, int32_t k_bytes, int32_t v_bytes) {
    kv_pos max = kv_fake_pool_max(p, s);
    kv_pos first = max < 0 ? 0 : kv_fake_pool_sees_from(p, max);
    uint32_t n = 0;
    for (int32_t i = 0; i < p->top; i++) n += is_written(p, i, s, first);
    put_u32(w, 1);
    put_u32(w, n);
    if (n == 0) return;
    if (!w->to) { /* sizes follow a formula */
        w->n += n * (size_t)(12 + k_bytes + v_bytes) + 8 + 2 * 12;
        return;
    }
    for (int32_t i = 0; i < p->top; i++) {
        if (!is_written(p, i, s, first)) continue;
        put_i32(w, p->cells[i].pos);
        put_u32(w, 1);
        put_i32(w, s);
    }
    char *scratch = kv_alloc((size_t)(k_bytes + v_bytes));
    put_u32(w, !e->base.info.flash_attn);
    put_u32(w, 1);
    put_i32(w, e->type_k);
    put_u64(w, (uint64_t)k_bytes);
    for (int32_t i = 0; i < p->top; i++)
        if (is_written(p, i, s, first)) put_row(w, scratch, 0, k_bytes, p->cells[i].digest);
    put_i32(w, e->type_v);
    put_u64(w, (uint64_t)v_bytes);
    for (int32_t i = 0; i < p->top; i++)
        if (is_written(p, i, s, first)) put_row(w, scratch, k_bytes, v_bytes, p->cells[i].digest);
    free(scratch);
}

static void put_rows(writer *w, const kv_fake_engine *e, kv_seq s) {
    kv_pos pos = kv_fake_rows_pos(&e->rows, s);
    uint32_t n = pos >= 0;
    uint64_t digest = kv_fake_rows_digest(&e->rows, s);
    char *scratch = kv_alloc((size_t)(e->r_bytes + e->s_bytes));
    put_u32(w, n);
    if (n) {
        put_i32(w, pos);
        put_u32(w, 0);
    }
    put_u32(w, 0);
    put_u32(w, 1);
    put_i32(w, TYPE_F32);
    put_u64(w, (uint64_t)e->r_bytes);
    if (n) put_row(w, scratch, 0, e->r_bytes, digest);
    put_i32(w, TYPE_F32);
    put_u64(w, (uint64_t)e->s_bytes);
    if (n) put_row(w, scratch, e->r_bytes, e->s_bytes, digest);
    free(scratch);
}

static void put_index(writer *w, const kv_fake_engine *e, kv_seq s) {
    const kv_fake_pool *p = &e->main;
    put_u32(w, (uint32_t)p->seqs[s].n);
    for (int32_t i = 0; i < p->top; i++)
        if (kv_fake_pool_owns(p, i, s)) put_i32(w, p->cells[i].pos);
}

/* Plain attention and pure recurrent memory have nothing to leave out. */
static bool leaves_main_out(const kv_fake_engine *e, uint32_t flags) {
    return (flags & KV_STATE_PARTIAL) && (e->has_window || e->has_rows);
}

static size_t write_state(kv_fake_engine *e, char *to, size_t cap, kv_seq s, uint32_t flags) {
    writer w = {to, cap, 0};
    bool partial = leaves_main_out(e, flags);
    KV_CHECK(s >= 0 && s < e->n_seq);
    if (e->is_whole && partial) return 0;
    put_u32(&w, MAGIC);
    put_i32(&w, s);
    if (e->has_main && !partial) put_pool(&w, e, &e->main, s, e->k_bytes, e->v_bytes);
    if (e->has_window) put_pool(&w, e, &e->window, s, e->kw_bytes, e->vw_bytes);
    if (e->has_rows) put_rows(&w, e, s);
    if (e->is_whole) put_index(&w, e, s);
    return to && w.n > cap ? 0 : w.n;
}

static void spend_bytes(kv_fake_engine *e, size_t n) {
    kv_fake_spend(e, (int64_t)n * e->model->params.cost.state_kib_ns / 1024);
}

size_t kv_fake_state_size(kv_engine *e, kv_seq s, uint32_t flags) {
    return write_state(kv_fake_engine_of(e), NULL, 0, s, flags);
}

size_t kv_fake_state_get(kv_engine *base, void *dst, size_t cap, kv_seq s, uint32_t flags) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    KV_CHECK(dst);
    size_t n = write_state(e, dst, cap, s, flags);
    spend_bytes(e, n);
    return n;
}

/* ── setting ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct reader {
    const char *from;
    size_t n, at;
} reader;

static const char *take(reader *r, size_t n) { /* NULL past the end */
    if (n > r->n - r->at) return NULL;
    r->at += n;
    return r->from + r->at - n;
}

static bool take_u32(uint32_t *v, reader *r) {
    const char *p = take(r, sizeof *v);
    if (p) memcpy(v, p, sizeof *v);
    return p != NULL;
}

static bool expect_u32(reader *r, uint32_t want) {
    uint32_t v;
    return take_u32(&v, r) && v == want;
}

/* A type and a row size, then n rows; *rows points at them. */
static bool take_rows(const char **rows, reader *r, uint32_t n, int32_t type, int32_t row_bytes) {
    uint64_t size = (uint64_t)row_bytes;
    const char *p;
    if (!expect_u32(r, (uint32_t)type) || !(p = take(r, sizeof size)) || memcmp(p, &size, sizeof size) != 0)
        return false;
    *rows = take(r, (size_t)n * (size_t)row_bytes);
    return *rows != NULL;
}

/* The positions of n cells, and n free cells for them. */
static bool take_cells(int32_t *idx, kv_pos *pos, kv_seq *seq, reader *r, kv_fake_pool *p, kv_seq s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t where;
        if (!take_u32(&where, r) || where > INT32_MAX || !expect_u32(r, 1) || !take(r, sizeof(kv_seq))) return false;
        pos[i] = (kv_pos)where;
        seq[i] = s;
    }
    return kv_fake_pool_find(idx, p, (int32_t)n);
}

static bool take_cell_data(reader *r, kv_fake_engine *e, kv_fake_pool *p, const int32_t *idx, uint32_t n,
                           int32_t k_bytes, int32_t v_bytes) {
    const char *k, *v;
    if (!expect_u32(r, !e->base.info.flash_attn) || !expect_u32(r, 1)) return false;
    if (!take_rows(&k, r, n, e->type_k, k_bytes) || !take_rows(&v, r, n, e->type_v, v_bytes)) return false;
    char *both = kv_alloc((size_t)(k_bytes + v_bytes));
    for (uint32_t i = 0; i < n; i++) {
        memcpy(both, k + (size_t)i * (size_t)k_bytes, (size_t)k_bytes);
        memcpy(both + k_bytes, v + (size_t)i * (size_t)v_bytes, (size_t)v_bytes);
        kv_fake_pool_write(p, idx[i], kv_fake_collapse(both, (size_t)(k_bytes + v_bytes)));
    }
    free(both);
    return true;
}

static bool set_pool(reader *r, kv_fake_engine *e, kv_fake_pool *p, kv_seq s, int32_t k_bytes, int32_t v_bytes) {
    uint32_t n;
    if (!expect_u32(r, 1) || !take_u32(&n, r)) return false;
    if (n == 0) return true; /* what the sequence holds here stays */
    kv_fake_pool_rm(p, s, 0, INT32_MAX);
    if (n > (uint32_t)p->n_cells) return false;
    int32_t *idx = kv_alloc(n * sizeof *idx);
    kv_pos *pos = kv_alloc(n * sizeof *pos);
    kv_seq *seq = kv_alloc(n * sizeof *seq);
    bool ok = take_cells(idx, pos, seq, r, p, s, n);
    if (ok) {
        kv_fake_pool_place(p, idx, pos, seq, (int32_t)n, NULL);
        ok = take_cell_data(r, e, p, idx, n, k_bytes, v_bytes);
        if (!ok) kv_fake_pool_rm(p, s, 0, INT32_MAX);
    }
    free(idx);
    free(pos);
    free(seq);
    return ok;
}

static bool set_rows(reader *r, kv_fake_engine *e, kv_seq s) {
    uint32_t n, pos = 0;
    const char *state[2];
    if (!take_u32(&n, r)) return false;
    kv_fake_rows_rm(&e->rows, s, 0, INT32_MAX); /* an empty one too: that drops a share */
    if (n > 1) return false;
    if (n == 1 && (!take_u32(&pos, r) || pos > INT32_MAX || !expect_u32(r, 0))) return false;
    if (!expect_u32(r, 0) || !expect_u32(r, 1) || !take_rows(&state[0], r, n, TYPE_F32, e->r_bytes) ||
        !take_rows(&state[1], r, n, TYPE_F32, e->s_bytes))
        return false;
    if (n == 0) return true;
    size_t n_bytes = (size_t)(e->r_bytes + e->s_bytes);
    char *both = kv_alloc(n_bytes);
    memcpy(both, state[0], (size_t)e->r_bytes);
    memcpy(both + e->r_bytes, state[1], (size_t)e->s_bytes);
    kv_fake_rows_advance(&e->rows, s, (kv_pos)pos);
    kv_fake_rows_write(&e->rows, s, kv_fake_collapse(both, n_bytes));
    free(both);
    return true;
}

/* The index must hold the positions that the attention part brought. */
static bool set_index(reader *r, const kv_fake_engine *e, kv_seq s) {
    const kv_fake_pool *p = &e->main;
    if (!expect_u32(r, (uint32_t)p->seqs[s].n)) return false;
    int64_t sum = 0;
    for (int32_t i = 0; i < p->top; i++)
        if (kv_fake_pool_owns(p, i, s)) sum += p->cells[i].pos;
    for (int32_t i = 0; i < p->seqs[s].n; i++) {
        uint32_t pos;
        if (!take_u32(&pos, r)) return false;
        sum -= pos;
    }
    return sum == 0;
}

size_t kv_fake_state_set(kv_engine *base, const void *src, size_t n, kv_seq s, uint32_t flags) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    reader r = {src, n, 0};
    bool partial = leaves_main_out(e, flags);
    KV_CHECK(s >= 0 && s < e->n_seq);
    if (e->is_whole && partial) return 0;
    if (!expect_u32(&r, MAGIC) || !take(&r, sizeof(kv_seq))) return 0; /* nothing happened yet */
    bool ok = true;
    if (e->has_main && !partial) ok = set_pool(&r, e, &e->main, s, e->k_bytes, e->v_bytes);
    if (ok && e->has_window) ok = set_pool(&r, e, &e->window, s, e->kw_bytes, e->vw_bytes);
    if (ok && e->has_rows) ok = set_rows(&r, e, s);
    if (ok && e->is_whole) ok = set_index(&r, e, s);
    if (!ok && e->is_whole) { /* these drop the sequence from all their parts */
        kv_fake_pool_rm(&e->main, s, 0, INT32_MAX);
        kv_fake_rows_rm(&e->rows, s, 0, INT32_MAX);
    }
    if (ok && r.at == n) e->no_trim_below[s] = 0; /* the window is the blob's now, without holes */
    spend_bytes(e, r.at);
    return ok ? r.at : 0;
}
