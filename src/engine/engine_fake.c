/* The fake engine: how a batch becomes passes, cells and digests.
 *
 *   decode:  check the batch ─► inject? ─► split into passes, find cells (nothing changed yet; or KV_NO_CELLS)
 *            for each pass:  take the cells and rows ─► compute its tokens in order ─► write cells and rows
 *
 * Within a pass cells are taken for all tokens before any is computed, as libllama does: a token sees what was there
 * and the earlier tokens of its own sequence. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_fake_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ── making one ────────────────────────────────────────────────────────────────────────────────────────────────── */

static int32_t pad256(int64_t n) {
    return (int32_t)((n + 255) / 256 * 256);
}

static int32_t type_number(const char *name) {
    return (int32_t)(XXH32(name, strlen(name), 0) & 0x7fffffff);
}

static int32_t at_least16(int32_t bytes) {
    return bytes < 16 ? 16 : bytes;
}

static kv_status check_engine_params(int32_t *n_ctx, const kv_fake_model *m, const kv_engine_params *p, kv_error *err) {
    *n_ctx = p->n_ctx > 0 ? p->n_ctx : m->base.info.n_ctx_train;
    if (*n_ctx > 1 << 26) return kv_fail(err, KV_INVALID, "fake engine: a context of %d tokens is too large", *n_ctx);
    if (p->n_slots < 1 || p->n_slots >= KV_FAKE_MAX_SEQ)
        return kv_fail(err, KV_INVALID, "fake engine: %d slots; it must be from 1 to %d", p->n_slots,
                       KV_FAKE_MAX_SEQ - 1);
    if (p->n_batch <= p->n_slots)
        return kv_fail(err, KV_INVALID, "fake engine: a batch of %d cannot hold a token of each of %d sequences",
                       p->n_batch, p->n_slots + 1);
    return KV_OK;
}

static void fill_info(kv_fake_engine *e, const kv_engine_params *p) {
    const kv_fake_params *fp = &e->model->params;
    kv_engine_info *info = &e->base.info;
    e->type_k_name = kv_strdup(p->type_k ? p->type_k : "f16");
    e->type_v_name = kv_strdup(p->type_v ? p->type_v : "f16");
    e->type_k = type_number(e->type_k_name);
    e->type_v = type_number(e->type_v_name);
    e->k_bytes = at_least16(fp->bytes_per_cell) / 2;
    e->v_bytes = at_least16(fp->bytes_per_cell) - e->k_bytes;
    e->kw_bytes = at_least16(fp->bytes_per_window_cell) / 2;
    e->vw_bytes = at_least16(fp->bytes_per_window_cell) - e->kw_bytes;
    e->r_bytes = at_least16(fp->bytes_recurrent) / 2;
    e->s_bytes = at_least16(fp->bytes_recurrent) - e->r_bytes;
    *info = (kv_engine_info){
        .memory = fp->memory,
        .n_ctx = e->main.n_cells,
        .n_window_cells = e->window.n_cells,
        .n_window = e->has_window ? fp->n_window : 0,
        .window_is_chunked = e->has_window && fp->window_is_chunked,
        .n_slots = p->n_slots,
        .n_batch = p->n_batch,
        .n_threads = p->n_threads,
        .n_threads_batch = p->n_threads_batch,
        .flash_attn = p->flash_attn == KV_FA_ON,
        .type_k = e->type_k_name,
        .type_v = e->type_v_name,
        .bytes_per_cell = e->has_main ? (uint64_t)(e->k_bytes + e->v_bytes) : 0,
        .bytes_per_window_cell = e->has_window ? (uint64_t)(e->kw_bytes + e->vw_bytes) : 0,
        .bytes_recurrent = e->has_rows ? (uint64_t)(e->r_bytes + e->s_bytes) : 0,
        .rope = {.yarn_ext_factor = -1, .yarn_attn_factor = -1, .yarn_beta_fast = -1, .yarn_beta_slow = -1},
        .state_format = "fake 1",
        .version = "fake",
        .backends = "fake",
    };
    info->bytes_state_total = (uint64_t)info->n_ctx * info->bytes_per_cell * e->has_main +
                              (uint64_t)info->n_window_cells * info->bytes_per_window_cell +
                              (uint64_t)e->n_seq * info->bytes_recurrent;
}

static void make_scratch(kv_fake_engine *e, int32_t n_batch) {
    size_t n = (size_t)n_batch, n_seq = (size_t)e->n_seq;
    e->order = kv_alloc(n * sizeof *e->order);
    e->pass_end = kv_alloc(n * sizeof *e->pass_end);
    e->main_idx = kv_alloc(n * sizeof *e->main_idx);
    e->window_idx = kv_alloc(n * sizeof *e->window_idx);
    e->next_row = kv_alloc(n * sizeof *e->next_row);
    e->pos = kv_alloc(n * sizeof *e->pos);
    e->seq = kv_alloc(n * sizeof *e->seq);
    e->slot_of = kv_alloc(n * sizeof *e->slot_of);
    e->hidden = kv_alloc(n * sizeof *e->hidden);
    e->filled = kv_alloc(n * sizeof *e->filled);
    /* views of both pools: the runs' own tokens, and before each run its window */
    e->arena = kv_alloc((2 * n + n_seq * (size_t)e->base.info.n_window) * sizeof *e->arena);
    e->runs = kv_alloc(n_seq * sizeof *e->runs);
    e->main_views = kv_alloc(n_seq * sizeof *e->main_views);
    e->window_views = kv_alloc(n_seq * sizeof *e->window_views);
    e->run_of = kv_alloc(n_seq * sizeof *e->run_of);
    e->cursor = kv_alloc(n_seq * sizeof *e->cursor);
    e->chosen = kv_alloc(n_seq * sizeof *e->chosen);
    e->no_trim_below = kv_alloc(n_seq * sizeof *e->no_trim_below);
}

static void fake_free(kv_engine *base) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    kv_fake_pool_free(&e->main);
    kv_fake_pool_free(&e->window);
    kv_fake_rows_free(&e->rows);
    void *owned[] = {e->type_k_name, e->type_v_name, e->order,        e->pass_end,     e->main_idx, e->window_idx,
                     e->next_row,    e->pos,         e->seq,          e->saved,        e->slot_of,  e->hidden,
                     e->filled,      e->logits,      e->arena,        e->runs,         e->run_of,   e->cursor,
                     e->chosen,      e->main_views,  e->window_views, e->no_trim_below};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(e);
}

/* ── clock ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_fake_spend(kv_fake_engine *e, int64_t ns) {
    kv_clock_virtual *clock = e->model->params.clock;
    if (!clock) return;
    e->ns_left += ns;
    clock->us += e->ns_left / 1000;
    e->ns_left %= 1000;
}

static int64_t pass_cost(const kv_fake_engine *e, int32_t n) {
    const kv_fake_cost *c = &e->model->params.cost;
    double factor = n >= 2 && n < c->slow_below && c->slow_factor > 0 ? c->slow_factor : 1.0;
    return c->call_ns + (int64_t)((double)(c->per_token_ns * n) * factor) + c->per_depth_ns * n * e->main.top;
}

/* ── sequences ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Positions as libllama reports them: windowed memory those of the window pool alone, hybrids what both parts have. */
static kv_pos attention_min(kv_fake_engine *e, kv_seq s) {
    return kv_fake_pool_min(e->has_window ? &e->window : &e->main, s);
}
static kv_pos attention_max(kv_fake_engine *e, kv_seq s) {
    return kv_fake_pool_max(e->has_window ? &e->window : &e->main, s);
}

static kv_pos fake_pos_min(kv_engine *base, kv_seq s) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    KV_CHECK(s >= 0 && s < e->n_seq);
    kv_pos row = e->has_rows ? kv_fake_rows_pos(&e->rows, s) : -1;
    if (!e->has_main) return row;
    kv_pos pos = attention_min(e, s);
    return row > pos ? row : pos;
}

static kv_pos fake_pos_max(kv_engine *base, kv_seq s) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    KV_CHECK(s >= 0 && s < e->n_seq);
    if (!e->has_main) return kv_fake_rows_pos(&e->rows, s);
    kv_pos pos = attention_max(e, s);
    if (!e->has_rows) return pos;
    kv_pos row = kv_fake_rows_pos(&e->rows, s);
    return row < pos ? row : pos;
}

static bool fake_seq_rm(kv_engine *base, kv_seq s, kv_pos p0, kv_pos p1) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    KV_CHECK(s >= 0 && s < e->n_seq);
    if (p0 < 0) p0 = 0;
    if (p1 < 0) p1 = INT32_MAX;
    if (e->is_whole && p1 != INT32_MAX) return false;
    bool all = p0 == 0 && p1 > fake_pos_max(base, s);
    if (!all && p0 < e->no_trim_below[s]) return false;
    if (all) e->no_trim_below[s] = 0;
    /* the states first: they alone can refuse, and then nothing else may have changed */
    if (e->has_rows && !kv_fake_rows_rm(&e->rows, s, p0, p1)) return false;
    if (e->has_main) kv_fake_pool_rm(&e->main, s, p0, p1);
    if (e->has_window) kv_fake_pool_rm(&e->window, s, p0, p1);
    return true;
}

static void fake_seq_cp(kv_engine *base, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    KV_CHECK(src >= 0 && src < e->n_seq && dst >= 0 && dst < e->n_seq);
    if (e->is_whole) return; /* the engine would abort on a range; engine_llama lets nothing through either */
    if (p0 < 0) p0 = 0;
    if (p1 < 0) p1 = INT32_MAX;
    if (e->has_main) kv_fake_pool_cp(&e->main, src, dst, p0, p1);
    if (e->has_window) kv_fake_pool_cp(&e->window, src, dst, p0, p1);
    if (e->has_rows) kv_fake_rows_cp(&e->rows, src, dst);
    if (e->no_trim_below[src] > e->no_trim_below[dst]) e->no_trim_below[dst] = e->no_trim_below[src];
}

static void zero(kv_fake_engine *e) {
    if (e->has_main) kv_fake_pool_zero(&e->main);
    if (e->has_window) kv_fake_pool_zero(&e->window);
    e->damaged = false;
}

static void fake_clear(kv_engine *base) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    if (e->has_main) kv_fake_pool_clear(&e->main);
    if (e->has_window) kv_fake_pool_clear(&e->window);
    if (e->has_rows) kv_fake_rows_clear(&e->rows);
    if (e->damaged) zero(e);
    memset(e->no_trim_below, 0, (size_t)e->n_seq * sizeof *e->no_trim_below);
}

/* ── batches: what libllama refuses ────────────────────────────────────────────────────────────────────────────── */

/* Recurrent layers take runs of one length in a pass; engine_llama refuses any other mix, and so does the fake. */
static kv_status check_runs(kv_fake_engine *e, const kv_batch *b, kv_error *err) {
    int32_t *n = e->cursor, run = 0;
    for (kv_seq s = 0; s < e->n_seq; s++) n[s] = 0;
    for (int32_t i = 0; i < b->n; i++) n[b->seq[i]]++;
    for (kv_seq s = 0; s < e->n_seq; s++) {
        if (n[s] == 0) continue;
        if (run > 0 && n[s] != run)
            return kv_fail(err, KV_ENGINE, "sequences with %d and with %d tokens in one batch of recurrent memory", run,
                           n[s]);
        run = n[s];
    }
    return KV_OK;
}

static kv_status check_batch(kv_fake_engine *e, const kv_batch *b, kv_error *err) {
    int32_t n_vocab = e->model->base.info.n_vocab;
    if (b->n < 1 || b->n > e->base.info.n_batch)
        return kv_fail(err, KV_ENGINE, "a batch of %d tokens; it must be from 1 to %d", b->n, e->base.info.n_batch);
    kv_pos *next = e->cursor; /* by sequence: where it goes on */
    for (kv_seq s = 0; s < e->n_seq; s++) next[s] = fake_pos_max(&e->base, s) + 1;
    for (int32_t i = 0; i < b->n; i++) {
        kv_seq s = b->seq[i];
        if (b->token[i] < 0 || b->token[i] >= n_vocab)
            return kv_fail(err, KV_ENGINE, "token %d at row %d is outside the vocabulary", b->token[i], i);
        if (s < 0 || s >= e->n_seq) return kv_fail(err, KV_ENGINE, "sequence %d at row %d does not exist", s, i);
        if (b->pos[i] != next[s])
            return kv_fail(err, KV_ENGINE, "position %d at row %d of sequence %d, which goes on at %d", b->pos[i], i, s,
                           next[s]);
        next[s]++;
    }
    return e->has_rows ? check_runs(e, b, err) : KV_OK;
}

/* ── batches: passes ───────────────────────────────────────────────────────────────────────────────────────────── */

static void split_simple(kv_fake_engine *e, const kv_batch *b) {
    for (int32_t i = 0; i < b->n; i++) e->order[i] = i;
    e->pass_end[0] = b->n;
    e->n_pass = 1;
}

/* The sequences of the next pass to chosen[], in the order in which their next rows stand; with `dense` (pure
 * recurrent memory) only as long as their ids follow each other. cursor[s]: the next row of s not yet in a pass. */
static int32_t choose_sequences(kv_fake_engine *e, const kv_batch *b, bool dense) {
    int32_t n = 0;
    for (kv_seq s = 0; s < e->n_seq; s++) e->run_of[s] = -1;
    for (int32_t i = 0; i < b->n; i++) {
        kv_seq s = b->seq[i];
        if (e->cursor[s] < 0 || i < e->cursor[s] || e->run_of[s] >= 0) continue; /* row i is done, or s is in */
        if (dense && n > 0 && s != e->chosen[n - 1] + 1) continue;
        e->run_of[s] = n;
        e->chosen[n++] = s;
    }
    return n;
}

/* Passes in which all sequences have the same number of tokens, as recurrent layers need it. */
static void split_equal(kv_fake_engine *e, const kv_batch *b, bool dense) {
    for (kv_seq s = 0; s < e->n_seq; s++) e->cursor[s] = -1;
    for (int32_t i = b->n - 1; i >= 0; i--) {
        e->next_row[i] = e->cursor[b->seq[i]];
        e->cursor[b->seq[i]] = i;
    }
    int32_t done = 0;
    for (e->n_pass = 0; done < b->n; e->n_pass++) {
        int32_t n_seq = choose_sequences(e, b, dense);
        int32_t n_each = e->base.info.n_batch / n_seq; /* the shortest one's, and no more than fit a pass */
        for (int32_t k = 0; k < n_seq; k++) {
            int32_t n = 0;
            for (int32_t i = e->cursor[e->chosen[k]]; i >= 0 && n < n_each; i = e->next_row[i]) n++;
            n_each = n;
        }
        for (int32_t k = 0; k < n_seq; k++)
            for (int32_t n = 0; n < n_each; n++) {
                int32_t *next = &e->cursor[e->chosen[k]];
                e->order[done++] = *next;
                *next = e->next_row[*next];
            }
        e->pass_end[e->n_pass] = done;
    }
}

/* Cells for every pass, each found with the earlier ones placed; all put back at the end. */
static bool find_cells(kv_fake_engine *e, kv_fake_pool *p, int32_t *idx) {
    if (e->n_pass == 1) return kv_fake_pool_find(idx, p, e->pass_end[0]);
    if (!e->saved) e->saved = kv_alloc((size_t)e->base.info.n_batch * sizeof *e->saved);
    int32_t *heads = kv_alloc((size_t)e->n_pass * sizeof *heads);
    int32_t k = 0;
    bool ok = true;
    for (int32_t at = 0; k < e->n_pass; at = e->pass_end[k++]) {
        int32_t n = e->pass_end[k] - at;
        ok = kv_fake_pool_find(idx + at, p, n);
        if (!ok) break;
        heads[k] = p->head;
        kv_fake_pool_place(p, idx + at, e->pos + at, e->seq + at, n, e->saved + at);
    }
    while (k-- > 0) {
        int32_t at = k > 0 ? e->pass_end[k - 1] : 0;
        kv_fake_pool_restore(p, e->saved + at, e->pass_end[k] - at, heads[k]);
    }
    free(heads);
    return ok;
}

static bool find_all_cells(kv_fake_engine *e, const kv_batch *b) {
    for (int32_t k = 0; k < b->n; k++) {
        e->pos[k] = b->pos[e->order[k]];
        e->seq[k] = b->seq[e->order[k]];
    }
    if (e->has_main && !find_cells(e, &e->main, e->main_idx)) return false;
    return !e->has_window || find_cells(e, &e->window, e->window_idx);
}

/* False: no room, nothing processed. */
static bool prepare(kv_fake_engine *e, const kv_batch *b) {
    if (e->has_rows) {
        split_equal(e, b, !e->has_main);
        return find_all_cells(e, b);
    }
    split_simple(e, b);
    if (find_all_cells(e, b)) return true;
    if (!e->has_window) return false;
    split_equal(e, b, false); /* several passes may find cells that one cannot: each frees some behind itself */
    return find_all_cells(e, b);
}

/* ── computing a pass ──────────────────────────────────────────────────────────────────────────────────────────── */

/* What `run` sees of the pool. The sum of the whole sequence is at hand, and all of it is visible without a window
 * when nothing lies ahead; else the cells are looked at one by one. */
static uint64_t *view_begin(kv_fake_view *v, uint64_t *arena, const kv_fake_pool *p, const kv_fake_run *run,
                            bool whole_sum) {
    kv_pos base = p->window ? kv_fake_pool_sees_from(p, run->start) : run->start;
    *v = (kv_fake_view){.pool = p, .at = arena, .base = base, .end = run->start + run->n, .left = base};
    memset(v->at, 0, (size_t)(v->end - base) * sizeof *v->at);
    if (whole_sum) {
        v->sum = p->seqs[run->seq].sum;
    } else {
        for (int32_t i = 0; i < p->top; i++) {
            kv_pos pos = p->cells[i].pos;
            if (pos < 0 || pos >= v->end || !kv_fake_pool_owns(p, i, run->seq)) continue;
            if (pos >= base) v->at[pos - base] += p->cells[i].part;
            else if (!p->window) v->sum += p->cells[i].part;
        }
        for (kv_pos q = base; q < run->start; q++) v->sum += v->at[q - base];
    }
    return arena + (v->end - base);
}

/* The sum that the token at `pos` sees; called for the run's positions in order. A cell that already stood at `pos`
 * (the sequence was damaged or cut wrongly) is seen too. */
static uint64_t view_at(kv_fake_view *v, kv_pos pos) {
    v->sum += v->at[pos - v->base];
    for (kv_pos from = v->pool->window ? kv_fake_pool_sees_from(v->pool, pos) : v->left; v->left < from; v->left++)
        v->sum -= v->at[v->left - v->base];
    return v->sum;
}

static void view_add(kv_fake_view *v, kv_pos pos, uint64_t part) {
    v->at[pos - v->base] += part;
    v->sum += part;
}

/* The runs of the pass order[from … to); what they see is looked up after the cells are taken. */
static int32_t find_runs(kv_fake_engine *e, int32_t from, int32_t to) {
    int32_t n = 0;
    for (kv_seq s = 0; s < e->n_seq; s++) e->run_of[s] = -1;
    for (int32_t k = from; k < to; k++) {
        kv_seq s = e->seq[k];
        if (e->run_of[s] < 0) {
            e->run_of[s] = n;
            bool ahead = e->has_main && kv_fake_pool_max(&e->main, s) >= e->pos[k];
            e->runs[n++] = (kv_fake_run){.seq = s, .start = e->pos[k], .main_ahead = ahead};
        }
        e->runs[e->run_of[s]].n++;
    }
    return n;
}

static void take_pass(kv_fake_engine *e, int32_t n_runs, int32_t from, int32_t to) {
    if (e->has_main) kv_fake_pool_place(&e->main, e->main_idx + from, e->pos + from, e->seq + from, to - from, NULL);
    if (e->has_window)
        kv_fake_pool_place(&e->window, e->window_idx + from, e->pos + from, e->seq + from, to - from, NULL);
    uint64_t *arena = e->arena;
    for (int32_t i = 0; i < n_runs; i++) {
        const kv_fake_run *run = &e->runs[i];
        if (e->has_rows) kv_fake_rows_advance(&e->rows, run->seq, run->start + run->n - 1);
        if (e->has_main) arena = view_begin(&e->main_views[i], arena, &e->main, run, !run->main_ahead);
        if (e->has_window) arena = view_begin(&e->window_views[i], arena, &e->window, run, false);
    }
}

static void write_token(kv_fake_engine *e, int32_t k, uint64_t hidden, uint64_t state) {
    kv_seq s = e->seq[k];
    int32_t run = e->run_of[s];
    if (e->has_main) {
        kv_fake_pool_write(&e->main, e->main_idx[k], kv_fake_derive(hidden, 0, KV_FAKE_MAIN));
        view_add(&e->main_views[run], e->pos[k], e->main.cells[e->main_idx[k]].part);
    }
    if (e->has_window) {
        kv_fake_pool_write(&e->window, e->window_idx[k], kv_fake_derive(hidden, 0, KV_FAKE_WINDOW));
        view_add(&e->window_views[run], e->pos[k], e->window.cells[e->window_idx[k]].part);
    }
    if (e->has_rows) kv_fake_rows_write(&e->rows, s, kv_fake_derive(hidden, state, KV_FAKE_RECURRENT));
}

/* `n_good` tokens come out right, the others are written but wrong: a compute that stopped half-way. */
static void compute_pass(kv_fake_engine *e, const kv_batch *b, int32_t from, int32_t to, int32_t n_good) {
    int32_t n_runs = find_runs(e, from, to);
    bool nan = e->gives_nan || (e->has_main && e->main.n_nan) || (e->has_window && e->window.n_nan);
    take_pass(e, n_runs, from, to);
    for (int32_t k = from; k < to; k++) {
        kv_seq s = e->seq[k];
        const kv_fake_run *run = &e->runs[e->run_of[s]];
        kv_fake_seen seen = {.token = b->token[e->order[k]], .pos = e->has_main ? e->pos[k] : 0};
        if (e->model->params.edge_sensitive) seen.edge = kv_fake_edge(run->start, run->n, to - from);
        if (e->has_main) seen.main = view_at(&e->main_views[e->run_of[s]], e->pos[k]);
        if (e->has_window) seen.window = view_at(&e->window_views[e->run_of[s]], e->pos[k]);
        if (e->has_rows) seen.recurrent = kv_fake_rows_digest(&e->rows, s);
        uint64_t hidden = kv_fake_hidden(e->model->params.seed, &seen);
        if (k - from >= n_good) hidden = ~hidden;
        if (seen.token == e->model->params.nan_token && seen.token > 0) nan = true;
        if (nan || seen.recurrent == KV_FAKE_NAN) hidden = KV_FAKE_NAN;
        write_token(e, k, hidden, seen.recurrent);
        int32_t slot = e->slot_of[e->order[k]];
        if (slot >= 0) e->hidden[slot] = hidden;
    }
}

/* What libllama does when a pass fails: it tries to cut the pass's sequences back to where they were, which memories
 * with recurrent layers refuse unless the sequence began in this batch. */
static void cut_back(kv_fake_engine *e, int32_t from, int32_t to) {
    int32_t n_runs = find_runs(e, from, to);
    if (e->has_rows) kv_fake_rows_spoil(&e->rows);
    for (int32_t i = 0; i < n_runs; i++) (void)fake_seq_rm(&e->base, e->runs[i].seq, e->runs[i].start, -1);
}

static void compute(kv_fake_engine *e, const kv_batch *b, bool damaged) {
    int32_t bad = damaged ? e->n_pass / 2 : -1;
    for (int32_t k = 0, from = 0; k < e->n_pass; from = e->pass_end[k++]) {
        int32_t to = e->pass_end[k], n = to - from;
        compute_pass(e, b, from, to, k == bad ? n / 2 : n);
        int64_t ns = pass_cost(e, n);
        kv_fake_spend(e, k == bad ? ns / 2 : ns);
        e->n_passes++;
        if (k == bad) {
            cut_back(e, from, to);
            return;
        }
    }
}

/* A failed second try of windowed memory may have purged cells that were behind their windows, and put back others
 * below them: what a cut would bring into the window again can have holes. */
static kv_status no_cells(kv_fake_engine *e, const kv_batch *b, kv_error *err) {
    for (kv_seq s = 0; e->has_window && s < e->n_seq; s++) e->no_trim_below[s] = fake_pos_max(&e->base, s) + 1;
    return kv_fail(err, KV_NO_CELLS, "no room for %d tokens: %d of %d cells and %d of %d window cells are in use", b->n,
                   e->main.used, e->main.n_cells, e->window.used, e->window.n_cells);
}

static kv_status fake_decode(kv_engine *base, const kv_batch *b, kv_error *err) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    const kv_fake_params *p = &e->model->params;
    for (int32_t i = 0; i < base->info.n_batch; i++) e->slot_of[i] = -1;
    e->n_wanted = 0;
    kv_status st = check_batch(e, b, err);
    if (st != KV_OK) return st;
    uint64_t no = e->n_decodes++;
    kv_status injected = p->inject ? p->inject(p->inject_ctx, no) : KV_OK;
    if (injected != KV_OK && injected != KV_ENGINE_DAMAGED && injected != KV_NO_CELLS && injected != KV_NOT_NUMBERS)
        return kv_fail(err, injected, "decode %llu: an injected failure", (unsigned long long)no);
    if (injected == KV_NO_CELLS || !prepare(e, b)) return no_cells(e, b, err);
    if (injected == KV_ENGINE_DAMAGED) {
        e->damaged = true;
        compute(e, b, true);
        return kv_fail(err, KV_ENGINE_DAMAGED, "decode %llu: an injected failure half-way", (unsigned long long)no);
    }
    for (int32_t i = 0; i < b->n; i++) {
        if (!b->want_logits[i]) continue;
        e->filled[e->n_wanted] = false;
        e->slot_of[i] = e->n_wanted++;
    }
    e->gives_nan = injected == KV_NOT_NUMBERS;
    compute(e, b, false);
    for (int32_t i = 0; i < e->n_wanted; i++) {
        if (e->hidden[i] != KV_FAKE_NAN) continue;
        e->damaged = true;
        for (int32_t k = 0; k < b->n; k++) e->slot_of[k] = -1;
        return kv_fail(err, KV_NOT_NUMBERS, "decode %llu: the logits are not numbers", (unsigned long long)no);
    }
    return KV_OK;
}

/* Made when asked for: most rows are looked at once, and some never. */
static const float *fake_logits(kv_engine *base, int row) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    if (row < 0 || row >= base->info.n_batch || e->slot_of[row] < 0) return NULL;
    size_t n_vocab = (size_t)e->model->base.info.n_vocab;
    int32_t slot = e->slot_of[row];
    if (e->n_wanted > e->logits_room) { /* only before the first row of a batch was handed out */
        free(e->logits);
        e->logits_room = e->n_wanted;
        e->logits = kv_alloc((size_t)e->logits_room * n_vocab * sizeof *e->logits);
    }
    float *out = e->logits + (size_t)slot * n_vocab;
    if (!e->filled[slot]) kv_fake_fill_logits(out, e->model, e->hidden[slot]);
    e->filled[slot] = true;
    return out;
}

static const kv_engine_ops fake_engine_ops = {
    .free = fake_free,
    .decode = fake_decode,
    .logits = fake_logits,
    .clear = fake_clear,
    .seq_rm = fake_seq_rm,
    .seq_cp = fake_seq_cp,
    .pos_min = fake_pos_min,
    .pos_max = fake_pos_max,
    .state_size = kv_fake_state_size,
    .state_get = kv_fake_state_get,
    .state_set = kv_fake_state_set,
};

kv_status kv_fake_engine_new(kv_engine **out, kv_model *model, const kv_engine_params *p, kv_error *err) {
    const kv_fake_model *m = kv_fake_model_of(model);
    int32_t n_ctx;
    *out = NULL;
    kv_status st = check_engine_params(&n_ctx, m, p, err);
    if (st != KV_OK) return st;
    kv_fake_engine *e = kv_alloc(sizeof *e);
    e->base.ops = &fake_engine_ops;
    e->base.model = model;
    e->model = m;
    e->has_main = kv_fake_has_main(m->params.memory);
    e->has_window = kv_fake_has_window(m->params.memory);
    e->has_rows = kv_fake_has_rows(m->params.memory);
    e->is_whole = m->params.memory == KV_MEMORY_WHOLE;
    e->n_seq = p->n_slots + 1;
    n_ctx = pad256(n_ctx);
    int64_t n_window = (int64_t)m->params.n_window * e->n_seq + p->n_batch;
    if (e->has_main) kv_fake_pool_init(&e->main, n_ctx, e->n_seq, 0, false);
    if (e->has_window)
        kv_fake_pool_init(&e->window, pad256(n_window < n_ctx ? n_window : n_ctx), e->n_seq, m->params.n_window,
                          m->params.window_is_chunked);
    if (e->has_rows) kv_fake_rows_init(&e->rows, e->n_seq);
    fill_info(e, p);
    e->base.info.n_ctx = n_ctx; /* also without a main pool: the limit that was asked for */
    make_scratch(e, p->n_batch);
    *out = &e->base;
    return KV_OK;
}

/* ── for checks ────────────────────────────────────────────────────────────────────────────────────────────────── */

int32_t kv_fake_cells_used(kv_engine *e) {
    return kv_fake_engine_of(e)->main.used;
}
int32_t kv_fake_cells_top(kv_engine *e) {
    return kv_fake_engine_of(e)->main.top;
}
int32_t kv_fake_window_cells_used(kv_engine *e) {
    return kv_fake_engine_of(e)->window.used;
}
uint64_t kv_fake_n_decodes(kv_engine *e) {
    return kv_fake_engine_of(e)->n_decodes;
}
uint64_t kv_fake_n_passes(kv_engine *e) {
    return kv_fake_engine_of(e)->n_passes;
}

int32_t kv_fake_rows_used(kv_engine *base) {
    const kv_fake_rows *r = &kv_fake_engine_of(base)->rows;
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_seq; i++) n += r->rows[i].n_owners > 0;
    return n;
}

void kv_fake_check(kv_engine *base) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    if (e->has_main) kv_fake_pool_check(&e->main);
    if (e->has_window) kv_fake_pool_check(&e->window);
    if (e->has_rows) kv_fake_rows_check(&e->rows);
    KV_CHECK(e->n_wanted <= base->info.n_batch);
}

static void dump_pool(kv_buf *out, const char *name, kv_fake_pool *p) {
    kv_buf_addf(out, "%s: %d of %d cells used, top %d, head %d\n", name, p->used, p->n_cells, p->top, p->head);
    for (kv_seq s = 0; s < p->n_seq; s++)
        if (p->seqs[s].n > 0)
            kv_buf_addf(out, "  sequence %d: %d cells, positions %d to %d\n", s, p->seqs[s].n, kv_fake_pool_min(p, s),
                        kv_fake_pool_max(p, s));
}

void kv_fake_dump(kv_buf *out, kv_engine *base) {
    kv_fake_engine *e = kv_fake_engine_of(base);
    kv_buf_addf(out, "fake engine, %s memory: %llu decodes in %llu passes\n", kv_memory_kind_name(base->info.memory),
                (unsigned long long)e->n_decodes, (unsigned long long)e->n_passes);
    if (e->has_main) dump_pool(out, "main pool", &e->main);
    if (e->has_window) dump_pool(out, "window pool", &e->window);
    for (kv_seq s = 0; e->has_rows && s < e->n_seq; s++)
        if (e->rows.tail[s] >= 0)
            kv_buf_addf(out, "state of sequence %d: row %d, position %d, %d owners\n", s, e->rows.tail[s],
                        e->rows.rows[e->rows.tail[s]].pos, e->rows.rows[e->rows.tail[s]].n_owners);
}
