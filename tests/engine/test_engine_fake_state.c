/* Blobs of the fake engine: their layout, docs/engine.md's capture and restore, wrong uses, damage by bad blobs. */
#include "engine/fake_rig.h"

static kv_token text[4096];

static int make_text(void **state) {
    uint64_t seed = 11;
    (void)state;
    random_tokens(text, 4096, &seed);
    return 0;
}

static uint32_t u32_at(const blob *b, size_t at) {
    uint32_t v;
    memcpy(&v, b->data + at, sizeof v);
    return v;
}

/* ── layout ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* n cells of c bytes, a state of r bytes; docs/engine.md "State blobs". */
static size_t cells_size(size_t n, size_t c) {
    return 8 + (n ? n * (12 + c) + 8 + 24 : 0);
}
static size_t state_size(size_t n, size_t r) {
    return 4 + n * (8 + r) + 8 + 24;
}

static void blobs_are_laid_out_as_libllamas(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        kv_memory_kind kind = (kv_memory_kind)k;
        rig r;
        rig_params(&r, kind);
        r.mp.bytes_per_cell = 40;
        r.mp.bytes_per_window_cell = 24;
        r.mp.bytes_recurrent = 100;
        rig_start(&r);
        run(&r, 3, text, 0, 100, 50);
        bool main = kind != KV_MEMORY_RECURRENT, window = kv_memory_has_window(kind);
        bool rows = kv_memory_has_recurrent(kind) || kind == KV_MEMORY_WHOLE;
        size_t main_n = main ? cells_size(100, 40) : 0;
        size_t window_n = window ? cells_size(32, 24) : 0; /* the last W cells only */
        size_t rows_n = rows ? state_size(1, 100) : 0;
        size_t index_n = kind == KV_MEMORY_WHOLE ? 4 + 4 * 100 : 0;
        blob full = get_blob(&r, 3, 0);
        assert_int_equal(full.n, 8 + main_n + window_n + rows_n + index_n);
        assert_int_equal(u32_at(&full, 0), 0xaf143cd8);
        assert_int_equal(u32_at(&full, 4), 3); /* the sequence it came from */
        if (kind == KV_MEMORY_WHOLE) {
            assert_int_equal(kv_engine_state_size(r.e, 3, KV_STATE_PARTIAL), 0);
        } else {
            blob part = get_blob(&r, 3, KV_STATE_PARTIAL);
            bool ignored = !window && !rows; /* plain attention ignores the flag, pure recurrent has nothing else */
            assert_int_equal(part.n, 8 + (ignored ? main_n : window_n + rows_n));
            /* what the capture recipe cuts off: the partial payload is the full one's end */
            if (!ignored) assert_memory_equal(full.data + full.n - (part.n - 8), part.data + 8, part.n - 8);
            assert_int_equal(r.n_empty, 8 + (ignored ? 8 : 0) + (window ? 8 : 0) + (rows ? state_size(0, 100) : 0));
            free_blob(&part);
        }
        char small[16];
        assert_int_equal(kv_engine_state_get(r.e, small, sizeof small, 3, 0), 0); /* no room */
        free_blob(&full);
        rig_close(&r);
    }
}

static void an_empty_partial_restores_nothing(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (k == KV_MEMORY_WHOLE) continue;
        rig r;
        rig_open(&r, (kv_memory_kind)k);
        assert_int_equal(kv_engine_state_set(r.e, r.empty, r.n_empty, 2, KV_STATE_PARTIAL), r.n_empty);
        assert_int_equal(kv_engine_pos_max(r.e, 2), -1);
        run(&r, 2, text, 0, 80, 40);
        run(&r, 1, text, 0, 80, 40);
        kv_engine_seq_cp(r.e, 2, r.scratch, 64, 80);
        assert_int_equal(kv_engine_state_set(r.e, r.empty, r.n_empty, r.scratch, KV_STATE_PARTIAL), r.n_empty);
        bool rows = kv_memory_has_recurrent((kv_memory_kind)k);
        assert_int_equal(kv_fake_rows_used(r.e), rows ? 2 : 0); /* scratch's share is gone, the owners' not */
        kv_engine_seq_rm(r.e, r.scratch, -1, -1);
        assert_true(step_is_right(&r, 2, text, 81));
        assert_int_equal(kv_engine_state_set(r.e, r.empty, r.n_empty, 1, KV_STATE_PARTIAL), r.n_empty);
        if (!rows) assert_true(step_is_right(&r, 1, text, 81)); /* windows stay as they were */
        else assert_int_equal(kv_engine_pos_max(r.e, 1), -1);   /* a state is dropped */
        rig_close(&r);
    }
}

static void bytes_are_raw(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, (kv_memory_kind)k);
        run(&r, 0, text, 0, 90, 45);
        blob a = get_blob(&r, 0, 0);
        assert_true(set_blob(&r, &a, 1, 0));
        blob b = get_blob(&r, 1, 0);
        assert_int_equal(a.n, b.n);
        size_t cells = k == KV_MEMORY_RECURRENT ? 0 : 90, i = 8;
        assert_memory_equal(a.data + 8, b.data + 8, 8);
        for (i = 16; i < 16 + 12 * cells; i += 12) assert_memory_equal(a.data + i, b.data + i, 8); /* pos, 1, not seq */
        kv_engine_clear(r.e);
        assert_true(set_blob(&r, &a, 0, 0));
        blob c = get_blob(&r, 0, 0);
        assert_int_equal(a.n, c.n);
        assert_memory_equal(a.data, c.data, a.n); /* the same sequence, an empty context: the same bytes */
        assert_true(step_is_right(&r, 0, text, 91));
        free_blob(&a), free_blob(&b), free_blob(&c);
        rig_close(&r);
    }
}

/* ── capture and restore ───────────────────────────────────────────────────────────────────────────────────────── */

enum { B = 16, N = 400 };

/* A path of N tokens, captured at each block edge while it was computed, as the cache does. */
typedef struct path {
    blob block[N / B], part[N / B], at[N / B + 1]; /* at[i]: partial (or whole) state at i × B */
} path;

static void record(path *p, rig *r, kv_seq s, const kv_token *tokens) {
    memset(p, 0, sizeof *p);
    for (int i = 0; i < N / B; i++) {
        run(r, s, tokens, i * B, i * B + B, B);
        bool whole = r->mp.memory == KV_MEMORY_WHOLE;
        p->at[i + 1] = get_blob(r, s, whole ? 0 : KV_STATE_PARTIAL);
        if (!whole && r->mp.memory != KV_MEMORY_RECURRENT)
            capture_block(&p->block[i], &p->part[i], r, s, i * B, i * B + B);
    }
}

static void free_path(path *p) {
    for (int i = 0; i <= N / B; i++) {
        if (i < N / B) free_blob(&p->block[i]), free_blob(&p->part[i]);
        free_blob(&p->at[i]);
    }
}

typedef struct omit {
    int part;       /* leave out the window part of this block; -1 = none */
    int checkpoint; /* use the state of this many blocks instead; -1 = the right one, -2 = none */
} omit;

/* [0, P) to the empty sequence s; P is any position without recurrent layers, else a multiple of B. */
static bool restore(rig *r, const path *p, kv_seq s, kv_pos P, omit o) {
    kv_memory_kind kind = r->mp.memory;
    const blob *state = &p->at[o.checkpoint >= 0 ? o.checkpoint : P / B];
    if (kind == KV_MEMORY_WHOLE) return set_blob(r, state, s, 0);
    bool parts = kind == KV_MEMORY_WINDOW, ok = true;
    for (int i = 0; ok && i * B < P && kind != KV_MEMORY_RECURRENT; i++) {
        bool in_window = parts && i * B + B > P - r->mp.n_window + 1 && i != o.part;
        ok = load_block(r, &p->block[i], in_window ? &p->part[i] : NULL, s, i * B, i * B + B);
    }
    if (ok && kv_memory_has_recurrent(kind) && o.checkpoint != -2) ok = set_blob(r, state, s, KV_STATE_PARTIAL);
    return ok && kv_engine_seq_rm(r->e, s, P, -1);
}

static const omit nothing = {-1, -1};

/* After every restore: docs/engine.md's check of positions. */
static bool positions_hold(rig *r, kv_seq s, kv_pos P) {
    if (kv_engine_pos_max(r->e, s) != P - 1) return false;
    if (r->mp.memory != KV_MEMORY_WINDOW) return true;
    return kv_engine_pos_min(r->e, s) <= (P - r->mp.n_window + 1 > 0 ? P - r->mp.n_window + 1 : 0);
}

static void a_restore_goes_on_as_if_never_interrupted(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        path p;
        rig_params(&r, (kv_memory_kind)k);
        r.ep.n_ctx = 1024;
        rig_start(&r);
        record(&p, &r, 0, text);
        int step = kv_memory_has_recurrent((kv_memory_kind)k) || k == KV_MEMORY_WHOLE ? B : 7;
        for (kv_pos P = step; P <= N; P += step) {
            if (P % 3 == 0) kv_engine_clear(r.e); /* into an empty context, or beside the others */
            assert_true(restore(&r, &p, 1, P, nothing));
            assert_true(positions_hold(&r, 1, P));
            kv_fake_check(r.e);
            run(&r, 1, text, P, P + 40, 20);
            assert_true(same_logits(&r, 19, text, P + 40));
            kv_engine_seq_rm(r.e, 1, -1, -1);
        }
        free_path(&p);
        rig_close(&r);
    }
}

static void a_missing_window_part_is_noticed_or_wrong(void **state) {
    (void)state;
    rig r;
    path p;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.ep.n_ctx = 1024;
    rig_start(&r);
    record(&p, &r, 0, text);
    int n_wrong = 0;
    for (kv_pos P = 100; P <= 300; P += 9) {
        int n_noticed = 0;
        for (int part = P / B - 3; part <= (P - 1) / B; part++) {
            kv_engine_clear(r.e);
            assert_true(restore(&r, &p, 1, P, (omit){part, -1}));
            bool needed = part * B + B > P - r.mp.n_window + 1;
            bool noticed = !positions_hold(&r, 1, P);
            n_noticed += noticed;
            if (noticed) continue;
            bool right = step_is_right(&r, 1, text, P + 1);
            assert_int_equal(right, !needed);
            n_wrong += !right;
        }
        assert_true(n_noticed >= 2); /* the first or the last one missing: positions tell */
    }
    assert_true(n_wrong > 10); /* one in the middle missing: "count your blocks" */
    free_path(&p);
    rig_close(&r);
}

static void a_checkpoint_of_another_position_is_noticed_or_wrong(void **state) {
    (void)state;
    static const kv_memory_kind three[] = {KV_MEMORY_HYBRID, KV_MEMORY_HYBRID_WINDOW, KV_MEMORY_RECURRENT};
    for (int k = 0; k < 3; k++) {
        rig r;
        path p;
        rig_params(&r, three[k]);
        r.ep.n_ctx = 1024;
        rig_start(&r);
        record(&p, &r, 0, text);
        const kv_pos P = 10 * B;
        for (int other = 1; other <= N / B; other++) {
            kv_engine_clear(r.e);
            bool ok = restore(&r, &p, 1, P, (omit){-1, other}) && positions_hold(&r, 1, P);
            assert_int_equal(ok, other == 10);
        }
        kv_engine_clear(r.e);
        (void)restore(&r, &p, 1, P, (omit){-1, -2}); /* without any: looks empty */
        assert_int_equal(kv_engine_pos_max(r.e, 1), -1);
        free_path(&p);
        rig_close(&r);
    }
}

/* Positions are right, the state is another path's. */
static void state_of_other_tokens_is_silently_wrong(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        path p, q;
        kv_token other[N + 1];
        memcpy(other, text, sizeof other);
        other[3] = other[3] == 9 ? 8 : 9;
        rig_params(&r, (kv_memory_kind)k);
        r.ep.n_ctx = 1024;
        rig_start(&r);
        record(&p, &r, 0, text);
        record(&q, &r, 1, other);
        kv_engine_clear(r.e);
        path mixed = p; /* one record of the other path, from behind the place where they part */
        if (k == KV_MEMORY_FULL) mixed.block[2] = q.block[2];
        else if (k == KV_MEMORY_WINDOW) mixed.part[9] = q.part[9];
        else mixed.at[10] = q.at[10];
        assert_true(restore(&r, &mixed, 1, 10 * B, nothing));
        assert_true(positions_hold(&r, 1, 10 * B));
        assert_false(step_is_right(&r, 1, text, 10 * B + 1));
        free_path(&p);
        free_path(&q);
        rig_close(&r);
    }
}

/* docs/engine.md: with B = W the block's first window cell is free the moment the block is complete. Captured one decode
 * later, the part lacks it. */
static void a_window_part_captured_late_has_lost_cells(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.mp.n_window = B;
    r.ep.n_ctx = 1024;
    rig_start(&r);
    run(&r, 0, text, 0, 256, B); /* the pool is full */
    blob block, part, late_block, late;
    capture_block(&block, &part, &r, 0, 256 - B, 256);
    run(&r, 1, text + 999, 0, 1, 1); /* anybody's decode */
    capture_block(&late_block, &late, &r, 0, 256 - B, 256);
    assert_int_equal(u32_at(&part, 12), B);
    assert_int_equal(u32_at(&late, 12), B); /* lowest first: the cells that went were older ones */
    free_blob(&late_block), free_blob(&late);
    for (int i = 1; i <= 240; i++) run(&r, 1, text + 999, i, i + 1, 1);
    capture_block(&late_block, &late, &r, 0, 256 - B, 256);
    assert_int_equal(u32_at(&late, 12), B - 1);
    assert_true(step_is_right(&r, 0, text, 257)); /* which the sequence itself did not need any more */
    free_blob(&block), free_blob(&part), free_blob(&late_block), free_blob(&late);
    rig_close(&r);
}

/* Two slices: in between, window cells that P needs count as free. */
static void a_restore_in_two_slices_loses_window_cells(void **state) {
    (void)state;
    rig r;
    path p;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.ep.n_ctx = 1024;
    rig_start(&r);
    record(&p, &r, 0, text);
    kv_engine_clear(r.e);
    const kv_pos P = 10 * B + 1; /* the last block is loaded to 11 B and cut back to one token of it */
    for (int i = 0; i * B < P; i++)
        assert_true(load_block(&r, &p.block[i], i * B + B > P - 31 ? &p.part[i] : NULL, 1, i * B, i * B + B));
    run(&r, 2, text + 999, 0, 230, 46); /* somebody else's work, before the cut */
    assert_true(kv_engine_seq_rm(r.e, 1, P, -1));
    assert_false(positions_hold(&r, 1, P) && step_is_right(&r, 1, text, P + 1));
    free_path(&p);
    rig_close(&r);
}

static void compaction_moves_a_sequence_down(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, (kv_memory_kind)k);
        run(&r, 0, text, 0, 200, 50);
        run(&r, 1, text + 500, 0, 200, 50);
        kv_engine_seq_rm(r.e, 0, -1, -1);
        if (k != KV_MEMORY_RECURRENT) assert_int_equal(kv_fake_cells_top(r.e), 400);
        blob b = get_blob(&r, 1, 0);
        kv_engine_seq_rm(r.e, 1, -1, -1);
        assert_true(set_blob(&r, &b, 1, 0));
        if (k != KV_MEMORY_RECURRENT) assert_int_equal(kv_fake_cells_top(r.e), 200);
        assert_true(step_is_right(&r, 1, text + 500, 201));
        free_blob(&b);
        rig_close(&r);
    }
}

/* ── bad blobs ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void a_cut_off_blob_sets_nothing_whole(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, (kv_memory_kind)k);
        run(&r, 0, text, 0, 20, 20);
        blob b = get_blob(&r, 0, 0);
        for (size_t n = 0; n < b.n; n++) {
            run(&r, 1, text + 100, 0, 5, 5);
            assert_int_equal(kv_engine_state_set(r.e, b.data, n, 1, 0), 0);
            kv_fake_check(r.e);
            if (n < 8) assert_int_equal(kv_engine_pos_max(r.e, 1), 4); /* not even begun */
            else assert_true(kv_engine_pos_max(r.e, 1) <= 4);          /* parts of it may be gone */
            kv_engine_seq_rm(r.e, 1, -1, -1);
            assert_int_equal(kv_engine_pos_max(r.e, 1), -1);
        }
        assert_int_equal(kv_engine_state_set(r.e, b.data, b.n, 1, 0), b.n);
        assert_true(step_is_right(&r, 0, text, 21));
        assert_true(step_is_right(&r, 1, text, 21));
        free_blob(&b);
        rig_close(&r);
    }
}

/* Parts load one by one: of a blob that fails in its last part the first stays. */
static void a_failing_part_leaves_the_parts_before_it(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_WINDOW);
    run(&r, 0, text, 0, 100, 50);
    blob b = get_blob(&r, 0, 0);
    assert_int_equal(kv_engine_state_set(r.e, b.data, b.n - 1, 1, 0), 0);
    assert_int_equal(kv_engine_pos_max(r.e, 1), -1); /* windows alone report positions, */
    assert_int_equal(kv_fake_cells_used(r.e), 200);  /* but a hundred cells are taken */
    kv_engine_seq_rm(r.e, 1, -1, -1);
    assert_int_equal(kv_fake_cells_used(r.e), 100);
    free_blob(&b);
    rig_close(&r);
}

static void a_failing_partial_destroys_a_live_state(void **state) {
    (void)state;
    static const kv_memory_kind four[] = {KV_MEMORY_WINDOW, KV_MEMORY_HYBRID, KV_MEMORY_HYBRID_WINDOW,
                                          KV_MEMORY_RECURRENT};
    for (int k = 0; k < 4; k++) {
        rig r;
        rig_open(&r, four[k]);
        run(&r, 0, text, 0, 100, 50);
        blob b = get_blob(&r, 0, KV_STATE_PARTIAL);
        assert_int_equal(kv_engine_state_set(r.e, b.data, b.n - 1, 0, KV_STATE_PARTIAL), 0);
        assert_int_equal(kv_engine_pos_max(r.e, 0), -1);
        free_blob(&b);
        rig_close(&r);
    }
}

static void a_blob_without_room_sets_nothing(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (k == KV_MEMORY_RECURRENT) continue;
        rig r;
        rig_open(&r, (kv_memory_kind)k);
        run(&r, 0, text, 0, 260, 52);
        blob b = get_blob(&r, 0, 0);
        assert_int_equal(kv_engine_state_set(r.e, b.data, b.n, 1, 0), 0); /* 520 of 512 */
        assert_int_equal(kv_engine_pos_max(r.e, 1), -1);
        assert_int_equal(kv_fake_cells_used(r.e), 260);
        assert_true(step_is_right(&r, 0, text, 261));
        free_blob(&b);
        rig_close(&r);
    }
}

/* No byte is without meaning but the ids of sequences, which are read over, and a state's position on a hybrid, where
 * the lower end of the two parts is the sequence's. */
static void every_byte_of_a_blob_counts(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_params(&r, (kv_memory_kind)k);
        r.mp.bytes_per_cell = 20;
        r.mp.bytes_recurrent = 37;
        rig_start(&r);
        const int32_t n = 12;
        run(&r, 0, text, 0, n, n);
        blob b = get_blob(&r, 0, 0);
        int harmless = 0;
        for (size_t i = 0; i < b.n; i++) {
            b.data[i] ^= 0x10;
            bool set = set_blob(&r, &b, 1, 0);
            kv_fake_check(r.e);
            if (set && kv_engine_pos_max(r.e, 1) == n - 1) harmless += step_is_right(&r, 1, text, n + 1);
            kv_engine_seq_rm(r.e, 1, -1, -1);
            b.data[i] ^= 0x10;
        }
        int pools = k == KV_MEMORY_RECURRENT ? 0 : kv_memory_has_window((kv_memory_kind)k) ? 2 : 1;
        int positions = pools > 0 && k != KV_MEMORY_FULL && k != KV_MEMORY_WINDOW ? 4 : 0;
        assert_int_equal(harmless, 4 + pools * 4 * n + positions);
        free_blob(&b);
        rig_close(&r);
    }
}

static void blobs_of_other_settings_are_refused(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        for (int what = 0; what < 3; what++) {
            rig a, b;
            rig_open(&a, (kv_memory_kind)k);
            rig_params(&b, (kv_memory_kind)k);
            if (what == 0) b.ep.type_k = "q8_0";
            if (what == 1) b.ep.flash_attn = KV_FA_ON;
            if (what == 2) b.mp.bytes_per_cell = b.mp.bytes_recurrent = b.mp.bytes_per_window_cell = 64;
            rig_start(&b);
            run(&a, 0, text, 0, 40, 40);
            blob full = get_blob(&a, 0, 0);
            bool taken = set_blob(&b, &full, 0, 0);
            assert_int_equal(taken, k == KV_MEMORY_RECURRENT && what < 2); /* states are always F32 */
            free_blob(&full);
            rig_close(&a);
            rig_close(&b);
        }
    }
}

static void random_bytes_never_break_the_engine(void **state) {
    (void)state;
    uint64_t seed = rig_seed("random_bytes_never_break_the_engine");
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, (kv_memory_kind)k);
        run(&r, 0, text, 0, 60, 60);
        blob b = get_blob(&r, 0, 0);
        char *bad = kv_alloc(b.n);
        for (int round = 0; round < 3000; round++) {
            memcpy(bad, b.data, b.n);
            for (int n = 1 + below(&seed, 4); n > 0; n--) bad[8 + below(&seed, (int32_t)b.n - 8)] = (char)rnd(&seed);
            uint32_t flags = below(&seed, 2) ? KV_STATE_PARTIAL : 0;
            size_t n = (size_t)below(&seed, (int32_t)b.n + 1);
            (void)kv_engine_state_set(r.e, bad, below(&seed, 2) ? n : b.n, 1 + below(&seed, 4), flags);
            if (round % 50 == 0) kv_fake_check(r.e);
        }
        for (kv_seq s = 1; s <= 4; s++) kv_engine_seq_rm(r.e, s, -1, -1);
        assert_true(step_is_right(&r, 0, text, 61)); /* nobody else's state was touched */
        free(bad);
        free_blob(&b);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blobs_are_laid_out_as_libllamas),
        cmocka_unit_test(an_empty_partial_restores_nothing),
        cmocka_unit_test(bytes_are_raw),
        cmocka_unit_test(a_restore_goes_on_as_if_never_interrupted),
        cmocka_unit_test(a_missing_window_part_is_noticed_or_wrong),
        cmocka_unit_test(a_checkpoint_of_another_position_is_noticed_or_wrong),
        cmocka_unit_test(state_of_other_tokens_is_silently_wrong),
        cmocka_unit_test(a_window_part_captured_late_has_lost_cells),
        cmocka_unit_test(a_restore_in_two_slices_loses_window_cells),
        cmocka_unit_test(compaction_moves_a_sequence_down),
        cmocka_unit_test(a_cut_off_blob_sets_nothing_whole),
        cmocka_unit_test(a_failing_part_leaves_the_parts_before_it),
        cmocka_unit_test(a_failing_partial_destroys_a_live_state),
        cmocka_unit_test(a_blob_without_room_sets_nothing),
        cmocka_unit_test(every_byte_of_a_blob_counts),
        cmocka_unit_test(blobs_of_other_settings_are_refused),
        cmocka_unit_test(random_bytes_never_break_the_engine),
    };
    return cmocka_run_group_tests(tests, make_text, NULL);
}
