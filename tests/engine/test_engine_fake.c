/* The fake engine, rule by rule: pools and their limits, forks, cuts, damage, cost, logits. Blobs are in
 * test_engine_fake_state.c, random workloads in test_engine_fake_random.c, vocabulary and sampler in
 * test_engine_fake_model.c. */
#include "engine/engine_fake_internal.h"
#include "engine/fake_rig.h"

static kv_memory_kind kinds[N_KINDS] = {KV_MEMORY_FULL,          KV_MEMORY_WINDOW,    KV_MEMORY_HYBRID,
                                        KV_MEMORY_HYBRID_WINDOW, KV_MEMORY_RECURRENT, KV_MEMORY_WHOLE};
static bool has_window(kv_memory_kind k) {
    return kv_memory_has_window(k);
}
static bool has_state(kv_memory_kind k) {
    return kv_memory_has_recurrent(k) || k == KV_MEMORY_WHOLE;
}

static kv_token text[4096]; /* the same random tokens for every test here */

static int make_text(void **state) {
    uint64_t seed = 7;
    (void)state;
    random_tokens(text, 4096, &seed);
    return 0;
}

/* ── one stream ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void a_lone_stream_is_right_in_any_chunks(void **state) {
    (void)state;
    static const int32_t chunks[] = {1, 3, 17, 64};
    for (int k = 0; k < N_KINDS; k++) {
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            rig r;
            rig_params(&r, kinds[k]);
            r.ep.n_ctx = 1024;
            rig_start(&r);
            for (int32_t p = 0; p < 960; p += chunks[c]) { /* the window pool has 256 cells: several times round */
                assert_int_equal(try_run(&r, 1, text + p, chunks[c], p), KV_OK);
                assert_true(same_logits(&r, chunks[c] - 1, text, p + chunks[c]));
                kv_fake_check(r.e);
            }
            rig_close(&r);
        }
    }
}

static void a_chunked_window_is_right_too(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.mp.window_is_chunked = true;
    r.ep.n_ctx = 1024;
    rig_start(&r);
    assert_true(r.e->info.window_is_chunked);
    for (int32_t p = 0; p < 900; p += 9) {
        assert_int_equal(try_run(&r, 0, text + p, 9, p), KV_OK);
        assert_true(same_logits(&r, 8, text, p + 9));
    }
    rig_close(&r);
}

static void another_token_seed_or_kind_answers_otherwise(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, kinds[k]);
        kv_token other[50];
        memcpy(other, text, sizeof other);
        other[0] = other[0] == 5 ? 6 : 5; /* the first of 50: beyond the window, but its cells and states know */
        run(&r, 0, text, 0, 50, 64);
        assert_true(same_logits(&r, 49, text, 50));
        assert_false(same_logits(&r, 49, other, 50));
        rig_close(&r);
    }
    for (int k = 0; k < N_KINDS; k++) {
        rig a, b;
        rig_open(&a, kinds[k]);
        rig_params(&b, kinds[(k + 1) % N_KINDS]);
        if (kinds[k] == KV_MEMORY_HYBRID) b.mp.seed = 2;
        rig_start(&b);
        run(&a, 0, text, 0, 60, 64);
        /* whole pretends the layers of a hybrid */
        if (!(kinds[k] == KV_MEMORY_WHOLE && b.mp.memory == KV_MEMORY_HYBRID)) {
            kv_fake_reference(b.want, b.m, text, 60);
            assert_memory_not_equal(kv_engine_logits(a.e, 59), b.want, sizeof(float) * (size_t)a.m->info.n_vocab);
        }
        rig_close(&a);
        rig_close(&b);
    }
}

static void several_sequences_do_not_see_each_other(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, kinds[k]);
        kv_token t[4];
        kv_pos p[4];
        kv_seq s[4];
        bool w[4] = {true, true, true, true};
        for (int32_t step = 0; step < 90; step++) { /* sequence i runs on text + 100 i */
            for (int i = 0; i < 4; i++) {
                s[i] = (i * 3 + step) % 4;
                t[i] = text[100 * s[i] + step];
                p[i] = step;
            }
            kv_batch b = {4, t, p, s, w};
            assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_OK);
            for (int i = 0; i < 4; i++) assert_true(same_logits(&r, i, text + 100 * s[i], step + 1));
        }
        rig_close(&r);
    }
}

/* ── pools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void pool_sizes_are_libllamas(void **state) {
    (void)state;
    static const struct {
        int32_t n_ctx, n_slots, n_batch, W, main, window;
    } table[] = {
        {512, 4, 64, 32, 512, 256},            /* 5 × 32 + 64 = 224 → 256 */
        {500, 4, 64, 32, 512, 256},            /* the pool is rounded up to 256 */
        {4096, 4, 260, 512, 4096, 2820 + 252}, /* 5 × 512 + 260 = 2820 → 3072 */
        {1024, 4, 260, 512, 1024, 1024},       /* no larger than the main pool */
        {8192, 1, 254, 1024, 8192, 2304},      /* 2 × 1024 + 254 = 2302 → 2304 */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        rig r;
        rig_params(&r, KV_MEMORY_WINDOW);
        r.ep.n_ctx = table[i].n_ctx;
        r.ep.n_slots = table[i].n_slots;
        r.ep.n_batch = table[i].n_batch;
        r.mp.n_window = table[i].W;
        rig_start(&r);
        assert_int_equal(r.e->info.n_ctx, table[i].main);
        assert_int_equal(r.e->info.n_window_cells, table[i].window);
        assert_int_equal(r.e->info.n_window, table[i].W);
        rig_close(&r);
    }
}

static void a_full_main_pool_says_no_and_does_nothing(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (kinds[k] == KV_MEMORY_RECURRENT) continue; /* has no cells to run out of */
        rig r;
        rig_open(&r, kinds[k]);
        run(&r, 0, text, 0, 300, 50);
        run(&r, 1, text + 1000, 0, 211, 50);
        assert_int_equal(kv_fake_cells_used(r.e), 511);
        blob before = get_blob(&r, 1, 0);
        uint64_t passes = kv_fake_n_passes(r.e);
        int64_t us = r.clock.us;
        assert_int_equal(try_run(&r, 1, text + 1211, 2, 211), KV_NO_CELLS);
        assert_null(kv_engine_logits(r.e, 1));
        assert_int_equal(kv_fake_n_passes(r.e), passes);
        assert_int_equal(r.clock.us, us);
        blob after = get_blob(&r, 1, 0);
        assert_int_equal(after.n, before.n);
        assert_memory_equal(after.data, before.data, before.n);
        assert_int_equal(try_run(&r, 1, text + 1211, 1, 211), KV_OK); /* the last cell */
        assert_true(same_logits(&r, 0, text + 1000, 212));
        assert_int_equal(kv_fake_cells_used(r.e), 512);
        assert_int_equal(try_run(&r, 0, text + 300, 1, 300), KV_NO_CELLS);
        assert_true(kv_engine_seq_rm(r.e, 1, -1, -1));
        assert_int_equal(try_run(&r, 0, text + 300, 1, 300), KV_OK);
        assert_true(same_logits(&r, 0, text, 301));
        free_blob(&before);
        free_blob(&after);
        rig_close(&r);
    }
}

static void freed_cells_below_are_taken_first(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_FULL);
    run(&r, 0, text, 0, 100, 50);
    run(&r, 1, text + 500, 0, 100, 50);
    assert_int_equal(kv_fake_cells_top(r.e), 200);
    kv_engine_seq_rm(r.e, 0, 40, 60); /* a hole of 20 cells */
    run(&r, 2, text + 900, 0, 20, 50);
    assert_int_equal(kv_fake_cells_top(r.e), 200); /* filled it */
    run(&r, 2, text + 900, 20, 25, 50);
    assert_int_equal(kv_fake_cells_top(r.e), 205);
    kv_engine_seq_rm(r.e, 0, -1, -1);
    run(&r, 2, text + 900, 25, 60, 50);
    assert_int_equal(kv_fake_cells_top(r.e), 205);
    kv_engine_seq_rm(r.e, 2, 20, -1); /* the top sinks as cells above go */
    assert_int_equal(kv_fake_cells_top(r.e), 200);
    assert_true(step_is_right(&r, 1, text + 500, 101));
    rig_close(&r);
}

static void a_lone_stream_walks_the_whole_window_pool(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.ep.n_ctx = 1024;
    rig_start(&r);
    run(&r, 0, text, 0, 256, 32);
    assert_int_equal(kv_fake_window_cells_used(r.e), 256); /* nothing is freed by passing out of the window … */
    assert_int_equal(kv_engine_pos_min(r.e, 0), 0);
    run(&r, 0, text, 256, 257, 1);
    assert_int_equal(kv_fake_window_cells_used(r.e), 256); /* … only by being taken again */
    assert_int_equal(kv_engine_pos_min(r.e, 0), 1);
    run(&r, 0, text, 257, 300, 43);
    assert_int_equal(kv_engine_pos_min(r.e, 0), 44);
    assert_int_equal(kv_fake_cells_used(r.e), 300);
    rig_close(&r);
}

/* libllama goes on from where it last took a cell, unless that lies far above what is in use. */
static void the_search_starts_over_when_there_is_room_below(void **state) {
    (void)state;
    kv_fake_pool p;
    kv_fake_pool_init(&p, 32, 2, 4, false);
    int32_t idx[10];
    kv_pos pos[10];
    kv_seq seq[10] = {0};
    for (int i = 0; i < 10; i++) {
        idx[i] = i;
        pos[i] = 9 - i; /* positions 9 … 0 in cells 0 … 9; 0 … 6 are behind the window of 4 */
    }
    kv_fake_pool_place(&p, idx, pos, seq, 10, NULL);
    for (int i = 0; i < 10; i++) kv_fake_pool_write(&p, i, 1000 + (uint64_t)i);
    kv_seq one = 1;
    kv_fake_pool_place(&p, (int32_t[]){3}, (kv_pos[]){0}, &one, 1, NULL); /* takes position 6: 0 … 5 go with it */
    kv_fake_pool_write(&p, 3, 5);
    assert_int_equal(p.used, 4);
    assert_int_equal(kv_fake_pool_min(&p, 0), 7);
    kv_fake_pool_place(&p, (int32_t[]){20}, (kv_pos[]){1}, &one, 1, NULL);
    kv_fake_pool_write(&p, 20, 6);
    assert_true(kv_fake_pool_find(idx, &p, 4)); /* head 21 > 5 used + 2 × 4 */
    for (int i = 0; i < 4; i++) assert_int_equal(idx[i], 4 + i);
    assert_true(kv_fake_pool_find(idx, &p, 8)); /* not > 5 + 2 × 8 */
    for (int i = 0; i < 8; i++) assert_int_equal(idx[i], 21 + i);
    kv_fake_pool_check(&p);
    kv_fake_pool_free(&p);
}

/* With all four slots and the scratch sequence full, the window pool still suffices: that is what its size is for. */
static void every_sequence_has_room_for_its_window(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.ep.n_ctx = 2048;
    rig_start(&r);
    for (int32_t p = 0; p < 320; p += 32)
        for (kv_seq s = 0; s < 5; s++) {
            assert_int_equal(try_run(&r, s, text + 400 * s + p, 32, p), KV_OK);
            assert_true(same_logits(&r, 31, text + 400 * s, p + 32));
        }
    rig_close(&r);
}

/* docs/engine.md: a fork that shares its window pins the parent's cells until decode fails with room left. */
static void shared_window_cells_are_pinned(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.ep.n_ctx = 4096;
    r.ep.n_slots = 8;
    r.ep.n_batch = 16;
    rig_start(&r); /* 9 × 32 + 16 → 512 window cells */
    run(&r, 0, text, 0, 500, 16);
    for (kv_seq s = 1; s < 8; s++) kv_engine_seq_cp(r.e, 0, s, 0, 500);
    kv_status st = KV_OK;
    int32_t p = 500;
    for (; p < 1000 && st == KV_OK; p++) st = try_run(&r, 0, text + p, 1, p);
    assert_int_equal(st, KV_NO_CELLS);
    assert_int_equal(p, 513); /* the pool's last 12 cells, then the thirteenth failed */
    assert_true(kv_fake_cells_used(r.e) < 600);
    for (kv_seq s = 1; s < 8; s++) kv_engine_seq_rm(r.e, s, -1, -1);
    assert_true(step_is_right(&r, 0, text, 513));
    rig_close(&r);
}

/* ── forks, cuts ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void a_fork_goes_on_as_its_parent_would(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, kinds[k]);
        kv_token other[200];
        memcpy(other, text, sizeof other);
        for (int i = 150; i < 200; i++) other[i] = text[2000 + i];
        run(&r, 0, text, 0, 150, 50);
        int32_t used = kv_fake_cells_used(r.e);
        kv_error err = {0};
        if (kv_engine_fork(r.e, 0, 1, 150, &err) != KV_OK) fail_msg("%s", err.message);
        if (kinds[k] != KV_MEMORY_WHOLE) assert_int_equal(kv_fake_cells_used(r.e), used); /* shared */
        assert_int_equal(kv_engine_pos_max(r.e, 1), 149);
        for (int32_t p = 151; p <= 200; p++) {
            assert_true(step_is_right(&r, 0, text, p));
            assert_true(step_is_right(&r, 1, other, p));
        }
        kv_engine_seq_rm(r.e, 0, -1, -1);
        kv_fake_check(r.e);
        assert_int_equal(kv_engine_pos_max(r.e, 1), 199);
        rig_close(&r);
    }
}

static void a_fork_behind_the_end_without_its_state_is_silently_wrong(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_params(&r, kinds[k]);
        r.ep.n_ctx = 1024;
        rig_start(&r);
        if (kinds[k] == KV_MEMORY_WHOLE) {
            run(&r, 0, text, 0, 100, 50);
            kv_engine_seq_cp(r.e, 0, 1, 0, 100);
            assert_int_equal(kv_engine_pos_max(r.e, 1), -1); /* nothing was copied */
            rig_close(&r);
            continue;
        }
        run(&r, 0, text, 0, 250, 50);
        blob partial = get_blob(&r, 0, KV_STATE_PARTIAL); /* the window or checkpoint of 250 */
        run(&r, 0, text, 250, 600, 50);
        kv_engine_seq_cp(r.e, 0, 1, 0, 250);
        if (kinds[k] == KV_MEMORY_FULL) {
            assert_true(step_is_right(&r, 1, text, 251));
        } else if (has_window(kinds[k])) {
            assert_int_equal(kv_engine_pos_max(r.e, 1), -1); /* its window is gone: looks empty */
        } else if (kinds[k] == KV_MEMORY_HYBRID) {
            assert_int_equal(kv_engine_pos_max(r.e, 1), 249); /* looks well, … */
            assert_false(step_is_right(&r, 1, text, 251));    /* … but has the state of 600 */
        } else {
            assert_int_equal(kv_engine_pos_max(r.e, 1), 599); /* the state alone */
        }
        kv_engine_seq_rm(r.e, 1, -1, -1);
        if (kinds[k] != KV_MEMORY_RECURRENT) kv_engine_seq_cp(r.e, 0, 1, 0, 250);
        if (kinds[k] != KV_MEMORY_FULL) assert_true(set_blob(&r, &partial, 1, KV_STATE_PARTIAL));
        assert_true(step_is_right(&r, 1, text, 251));
        assert_true(step_is_right(&r, 0, text, 601));
        free_blob(&partial);
        rig_close(&r);
    }
}

/* A window that lacks a few of its positions: pos_max is right, the answer is not. */
static void a_fork_with_half_a_window_is_silently_wrong(void **state) {
    (void)state;
    for (int32_t P = 45; P < 110; P++) {
        rig r;
        rig_params(&r, KV_MEMORY_WINDOW);
        r.ep.n_ctx = 1024;
        rig_start(&r);
        run(&r, 0, text, 0, 300, 50); /* 256 window cells: 44 … 299 */
        assert_int_equal(kv_engine_pos_min(r.e, 0), 44);
        kv_engine_seq_cp(r.e, 0, 1, 0, P);
        assert_int_equal(kv_engine_pos_max(r.e, 1), P - 1);
        bool whole = P - 32 + 1 >= 44;
        assert_int_equal(step_is_right(&r, 1, text, P + 1), whole);
        rig_close(&r);
    }
}

static void a_cut_works_where_the_memory_can(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_params(&r, kinds[k]);
        r.ep.n_ctx = 1024;
        rig_start(&r);
        run(&r, 0, text, 0, 400, 50);
        int32_t used = kv_fake_cells_used(r.e);
        for (int32_t P = 399; P > 0; P -= 7) {
            bool can = kinds[k] == KV_MEMORY_FULL || (kinds[k] == KV_MEMORY_WINDOW && P - 31 >= 144);
            bool did = kv_engine_trim(r.e, 0, P);
            assert_int_equal(did, can);
            if (did) {
                assert_int_equal(kv_engine_pos_max(r.e, 0), P - 1);
                assert_true(step_is_right(&r, 0, text, P + 1));
            } else {
                assert_int_equal(kv_fake_cells_used(r.e), kinds[k] == KV_MEMORY_WINDOW ? P + 8 : used);
            }
            if (!did) break;
        }
        if (has_state(kinds[k])) {
            assert_false(kv_engine_seq_rm(r.e, 0, 399, -1));
            assert_int_equal(kv_engine_pos_max(r.e, 0), 399);
            assert_true(kv_engine_seq_rm(r.e, 0, 400, -1)); /* nothing to cut */
            assert_true(step_is_right(&r, 0, text, 401));
        }
        assert_true(kv_engine_seq_rm(r.e, 0, -1, -1)); /* a whole sequence always goes */
        assert_int_equal(kv_engine_pos_max(r.e, 0), -1);
        assert_int_equal(kv_fake_cells_used(r.e), 0);
        assert_int_equal(kv_fake_window_cells_used(r.e), 0);
        assert_int_equal(kv_fake_rows_used(r.e), 0);
        rig_close(&r);
    }
}

/* seq_rm does not ask whether the window is whole; kv_engine_trim does. */
static void a_cut_past_the_window_is_silently_wrong(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_WINDOW);
    r.ep.n_ctx = 1024;
    rig_start(&r);
    run(&r, 0, text, 0, 400, 50);
    assert_int_equal(kv_engine_pos_min(r.e, 0), 144);
    assert_false(kv_engine_trim(r.e, 0, 160));
    assert_true(kv_engine_seq_rm(r.e, 0, 160, -1));
    assert_int_equal(kv_engine_pos_max(r.e, 0), 159);
    assert_false(step_is_right(&r, 0, text, 161));
    rig_close(&r);
}

/* Rewinding a hybrid in place: the checkpoint first, then the cut succeeds. */
static void a_checkpoint_rewinds_a_hybrid(void **state) {
    (void)state;
    static const kv_memory_kind two[] = {KV_MEMORY_HYBRID, KV_MEMORY_HYBRID_WINDOW};
    for (int k = 0; k < 2; k++) {
        rig r;
        rig_open(&r, two[k]);
        run(&r, 0, text, 0, 120, 60);
        blob at120 = get_blob(&r, 0, KV_STATE_PARTIAL);
        run(&r, 0, text, 120, 300, 60);
        assert_false(kv_engine_seq_rm(r.e, 0, 120, -1));
        assert_true(set_blob(&r, &at120, 0, KV_STATE_PARTIAL));
        assert_true(kv_engine_seq_rm(r.e, 0, 120, -1));
        assert_int_equal(kv_engine_pos_max(r.e, 0), 119);
        assert_int_equal(kv_fake_cells_used(r.e), 120);
        assert_true(step_is_right(&r, 0, text, 121));
        free_blob(&at120);
        rig_close(&r);
    }
}

/* A window put back without the cut that must follow: the main cells from there on are masked one by one as the new
 * tokens pass them, so that it makes no difference how many lie ahead, and every answer is wrong. */
static void a_window_put_back_without_a_cut_is_silently_wrong(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_WINDOW);
    size_t n = (size_t)r.m->info.n_vocab * sizeof(float);
    float *first = kv_alloc(n);
    for (int cut = 101; cut >= 60; cut--) { /* main cells up to cut - 1 stay */
        kv_engine_clear(r.e);
        run(&r, 0, text, 0, 60, 60);
        blob at60 = get_blob(&r, 0, KV_STATE_PARTIAL);
        run(&r, 0, text, 60, 100, 40);
        if (cut <= 100) kv_engine_seq_rm(r.e, 0, cut, -1);
        assert_true(set_blob(&r, &at60, 0, KV_STATE_PARTIAL));
        assert_int_equal(kv_engine_pos_max(r.e, 0), 59); /* windows alone report positions */
        assert_int_equal(step_is_right(&r, 0, text, 61), cut == 60);
        if (cut == 101) memcpy(first, kv_engine_logits(r.e, 0), n);
        else if (cut > 60) assert_memory_equal(first, kv_engine_logits(r.e, 0), n);
        free_blob(&at60);
    }
    free(first);
    rig_close(&r);
}

/* ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct injection {
    uint64_t at;
    kv_status status;
} injection;

static kv_status inject(void *ctx, uint64_t no) {
    const injection *i = ctx;
    return no == i->at ? i->status : KV_OK;
}

static void injected_no_cells_does_nothing(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        injection i = {2, KV_NO_CELLS};
        rig_params(&r, kinds[k]);
        r.mp.inject = inject;
        r.mp.inject_ctx = &i;
        rig_start(&r);
        run(&r, 0, text, 0, 100, 50);
        assert_int_equal(try_run(&r, 0, text + 100, 10, 100), KV_NO_CELLS);
        assert_int_equal(kv_engine_pos_max(r.e, 0), 99);
        assert_true(step_is_right(&r, 0, text, 101));
        assert_int_equal(kv_fake_n_decodes(r.e), 4);
        /* after ret 1 windowed memory must not be cut in place below where it was */
        assert_int_equal(kv_engine_seq_rm(r.e, 0, 99, -1), kinds[k] == KV_MEMORY_FULL);
        rig_close(&r);
    }
}

static void damage_is_half_done_work(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        injection i = {4, KV_ENGINE_DAMAGED};
        rig_params(&r, kinds[k]);
        r.mp.inject = inject;
        r.mp.inject_ctx = &i;
        rig_start(&r);
        run(&r, 0, text, 0, 100, 50);
        run(&r, 1, text + 1000, 0, 100, 50);
        assert_int_equal(try_run(&r, 0, text + 100, 10, 100), KV_ENGINE_DAMAGED);
        assert_null(kv_engine_logits(r.e, 9));
        if (!has_state(kinds[k])) {
            assert_int_equal(kv_engine_pos_max(r.e, 0), 99); /* cut back by the engine */
            assert_true(step_is_right(&r, 1, text + 1000, 101));
        } else {
            assert_int_equal(kv_engine_pos_max(r.e, 0), 109); /* a lie */
            assert_false(step_is_right(&r, 0, text, 111));
            assert_false(step_is_right(&r, 1, text + 1000, 101)); /* its state was in the way */
        }
        kv_engine_clear(r.e);
        assert_int_equal(kv_fake_cells_used(r.e), 0);
        run(&r, 0, text, 0, 100, 50);
        assert_true(step_is_right(&r, 0, text, 101));
        rig_close(&r);
    }
}

/* A sequence that began in the failed batch is gone: there the engine's own cut succeeds. */
static void damage_of_a_fresh_sequence_leaves_nothing(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        injection i = {0, KV_ENGINE_DAMAGED};
        rig_params(&r, kinds[k]);
        r.mp.inject = inject;
        r.mp.inject_ctx = &i;
        rig_start(&r);
        assert_int_equal(try_run(&r, 0, text, 10, 0), KV_ENGINE_DAMAGED);
        assert_int_equal(kv_engine_pos_max(r.e, 0), -1);
        assert_int_equal(kv_fake_cells_used(r.e) + kv_fake_window_cells_used(r.e) + kv_fake_rows_used(r.e), 0);
        rig_close(&r);
    }
}

/* A chunk without wanted rows becomes NaN, and says nothing. Whatever shares its memory is NaN from then on, also what
 * comes when it is gone; only a clear helps, and what was taken out before brings it back. */
static void nan_spreads_until_a_clear(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        injection i = {2, KV_NOT_NUMBERS};
        rig_params(&r, kinds[k]);
        r.mp.inject = inject;
        r.mp.inject_ctx = &i;
        rig_start(&r);
        run(&r, 0, text, 0, 50, 50);
        run(&r, 1, text + 1000, 0, 50, 50);
        kv_batch silent = {1, &text[1050], &(kv_pos){50}, &(kv_seq){1}, &(bool){false}};
        assert_int_equal(kv_engine_decode(r.e, &silent, NULL), KV_OK);
        size_t n = kv_engine_state_size(r.e, 1, 0);
        char *blob = malloc(n);
        assert_int_equal(kv_engine_state_get(r.e, blob, n, 1, 0), n);
        bool shared = kinds[k] != KV_MEMORY_RECURRENT; /* states lie apart */
        assert_int_equal(try_run(&r, 0, text + 50, 1, 50), shared ? KV_NOT_NUMBERS : KV_OK);
        assert_int_equal(try_run(&r, 1, text + 1051, 1, 51), KV_NOT_NUMBERS);
        assert_null(kv_engine_logits(r.e, 0));
        kv_engine_seq_rm(r.e, 0, -1, -1);
        kv_engine_seq_rm(r.e, 1, -1, -1);
        assert_int_equal(try_run(&r, 2, text, 1, 0), shared ? KV_NOT_NUMBERS : KV_OK);
        kv_engine_clear(r.e);
        run(&r, 0, text, 0, 50, 50);
        assert_true(step_is_right(&r, 0, text, 51));
        assert_int_equal(kv_engine_state_set(r.e, blob, n, 1, 0), n);
        assert_int_equal(try_run(&r, 1, text + 1051, 1, 51), KV_NOT_NUMBERS);
        free(blob);
        rig_close(&r);
    }
}

static void bad_batches_are_refused(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        rig r;
        rig_open(&r, kinds[k]);
        run(&r, 0, text, 0, 10, 10);
        kv_token t[65] = {1, 2, 3};
        bool w[65] = {false};
        kv_pos p[65] = {10, 11, 12};
        kv_seq s[65] = {0, 0, 0};
        kv_batch b = {0, t, p, s, w};
        assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_ENGINE);
        b.n = 65;
        assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_ENGINE);
        b.n = 3;
        for (int bad = 0; bad < 6; bad++) {
            kv_token t2[] = {1, 2, bad == 0 ? 261 : bad == 1 ? -1 : 3};
            kv_seq s2[] = {0, 0, bad == 2 ? 5 : bad == 3 ? -1 : 0};
            kv_pos p2[] = {10, 11, bad == 4 ? 13 : bad == 5 ? 11 : 12};
            b.token = t2, b.seq = s2, b.pos = p2;
            assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_ENGINE);
        }
        kv_pos ahead[] = {1, 2, 3};
        kv_seq other[] = {1, 1, 1};
        b.token = t, b.seq = other, b.pos = ahead; /* an empty sequence begins at 0 */
        assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_ENGINE);
        kv_pos mixed[] = {10, 0, 1};
        kv_seq uneven[] = {0, 1, 1};
        b.seq = uneven, b.pos = mixed;
        kv_status st = kv_engine_decode(r.e, &b, NULL);
        assert_int_equal(st, has_state(kinds[k]) ? KV_ENGINE : KV_OK);
        rig_close(&r);
    }
}

static void engine_params_are_checked(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_FULL);
    kv_engine *e;
    kv_error err = {0};
    kv_engine_params p = r.ep;
    p.n_slots = 0;
    assert_int_equal(kv_engine_new(&e, r.m, &p, &err), KV_INVALID);
    assert_null(e);
    p.n_slots = 256;
    assert_int_equal(kv_engine_new(&e, r.m, &p, &err), KV_INVALID);
    p = r.ep;
    p.n_batch = 4; /* n_seq_max 5 > n_batch would abort libllama */
    assert_int_equal(kv_engine_new(&e, r.m, &p, &err), KV_INVALID);
    assert_true(strlen(err.message) > 0);
    rig_close(&r);
}

/* ── cost, passes, edges, logits ───────────────────────────────────────────────────────────────────────────────── */

static void time_follows_the_cost_model(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_FULL);
    r.mp.cost = (kv_fake_cost){.call_ns = 1000500,
                               .per_token_ns = 2000,
                               .per_depth_ns = 10,
                               .state_kib_ns = 1024000,
                               .slow_below = 8,
                               .slow_factor = 3.0};
    rig_start(&r);
    int64_t us = r.clock.us;
    run(&r, 0, text, 0, 10, 10); /* 1000500 + 20000 + 10 × 10 × 10 ns */
    assert_int_equal(r.clock.us, us + 1021);
    us = r.clock.us;
    run(&r, 0, text, 10, 11, 1); /* 1000500 + 2000 + 10 × 11, and the half µs of before */
    assert_int_equal(r.clock.us, us + 1003);
    us = r.clock.us;
    run(&r, 0, text, 11, 15, 4); /* slow: 1000500 + 8000 × 3 + 10 × 4 × 15 */
    assert_int_equal(r.clock.us, us + 1025);
    us = r.clock.us;
    blob b = get_blob(&r, 0, 0); /* 1 µs a byte */
    assert_in_range(r.clock.us, us + (int64_t)b.n - 1, us + (int64_t)b.n + 1);
    free_blob(&b);
    rig_close(&r);
}

/* On purely recurrent memory every gap in the ids costs a pass (docs/engine.md "Batches"). */
static void gaps_in_sequence_ids_cost_passes(void **state) {
    (void)state;
    static const struct {
        kv_seq seq[4];
        uint64_t passes;
    } table[] = {{{0, 1, 2, 3}, 1}, {{0, 1, 3, 4}, 2}, {{0, 2, 4, 3}, 3}, {{3, 2, 1, 0}, 4}};
    for (int k = 0; k < N_KINDS; k++)
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            rig r;
            rig_open(&r, kinds[k]);
            kv_token t[4] = {1, 2, 3, 4};
            kv_pos p[4] = {0};
            bool w[4] = {true, true, true, true};
            kv_batch b = {4, t, p, (kv_seq *)(uintptr_t)table[i].seq, w};
            assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_OK);
            assert_int_equal(kv_fake_n_passes(r.e), kinds[k] == KV_MEMORY_RECURRENT ? table[i].passes : 1);
            for (int j = 0; j < 4; j++) assert_true(same_logits(&r, j, &t[j], 1));
            rig_close(&r);
        }
}

static void edges_matter_only_when_asked(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        for (int sensitive = 0; sensitive < 2; sensitive++) {
            rig r;
            rig_params(&r, kinds[k]);
            r.mp.edge_sensitive = sensitive;
            rig_start(&r);
            size_t n = (size_t)r.m->info.n_vocab * sizeof(float);
            float *one = kv_alloc(n);
            run(&r, 0, text, 0, 60, 60);
            run(&r, 1, text, 0, 60, 20);
            memcpy(one, kv_engine_logits(r.e, 19), n);
            kv_engine_clear(r.e);
            run(&r, 0, text, 0, 60, 60);
            assert_true(same_logits(&r, 59, text, 60)); /* one chunk is the reference's default */
            assert_int_equal(memcmp(one, kv_engine_logits(r.e, 59), n) != 0, sensitive);
            kv_fake_ref *ref = kv_fake_ref_new(r.m);
            for (int i = 0; i < 60; i++) kv_fake_ref_feed(ref, text[i], i % 20 == 19);
            kv_fake_ref_logits(r.want, ref);
            assert_memory_equal(one, r.want, n);
            kv_fake_ref_free(ref);
            free(one);
            rig_close(&r);
        }
    }
}

/* Sharing a call with others is another shape. */
static void company_is_an_edge_too(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_FULL);
    r.mp.edge_sensitive = true;
    rig_start(&r);
    kv_token t[2] = {7, 7};
    kv_pos p[2] = {0, 0};
    kv_seq s[2] = {0, 1};
    bool w[2] = {true, true};
    kv_batch b = {2, t, p, s, w};
    assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_OK);
    assert_false(same_logits(&r, 0, t, 1));
    kv_engine_clear(r.e);
    assert_true(step_is_right(&r, 0, t, 1));
    rig_close(&r);
}

static void logits_are_there_for_wanted_rows_only(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_WINDOW);
    kv_token t[64];
    kv_pos p[64];
    kv_seq s[64] = {0};
    bool w[64];
    memcpy(t, text, sizeof t);
    for (int i = 0; i < 64; i++) {
        p[i] = i;
        w[i] = i % 3 == 0;
    }
    kv_batch b = {64, t, p, s, w};
    assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_OK);
    const float *first = kv_engine_logits(r.e, 0);
    for (int i = 63; i >= 0; i--) {
        if (w[i]) assert_true(same_logits(&r, i, t, i + 1));
        else assert_null(kv_engine_logits(r.e, i));
    }
    assert_ptr_equal(first, kv_engine_logits(r.e, 0)); /* borrowed until the next decode */
    assert_null(kv_engine_logits(r.e, -1));
    assert_null(kv_engine_logits(r.e, 64));
    for (int i = 0; i < 64; i += 3) { /* one largest */
        const float *l = kv_engine_logits(r.e, i);
        float max = l[0];
        int n = 0;
        for (int v = 1; v < r.m->info.n_vocab; v++) max = l[v] > max ? l[v] : max;
        for (int v = 0; v < r.m->info.n_vocab; v++) n += l[v] == max;
        assert_int_equal(n, 1);
    }
    b.n = 0;
    assert_int_equal(kv_engine_decode(r.e, &b, NULL), KV_ENGINE);
    assert_null(kv_engine_logits(r.e, 0)); /* gone with the next call, even a refused one */
    rig_close(&r);
}

static void the_dump_is_for_people(void **state) {
    (void)state;
    rig r;
    kv_buf out = {0};
    rig_open(&r, KV_MEMORY_HYBRID_WINDOW);
    run(&r, 2, text, 0, 40, 40);
    kv_fake_dump(&out, r.e);
    assert_non_null(strstr(kv_buf_str(&out), "hybrid-window"));
    assert_non_null(strstr(kv_buf_str(&out), "sequence 2: 40 cells, positions 0 to 39"));
    kv_buf_free(&out);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_stream_is_right_in_any_chunks),
        cmocka_unit_test(a_chunked_window_is_right_too),
        cmocka_unit_test(another_token_seed_or_kind_answers_otherwise),
        cmocka_unit_test(several_sequences_do_not_see_each_other),
        cmocka_unit_test(pool_sizes_are_libllamas),
        cmocka_unit_test(a_full_main_pool_says_no_and_does_nothing),
        cmocka_unit_test(freed_cells_below_are_taken_first),
        cmocka_unit_test(a_lone_stream_walks_the_whole_window_pool),
        cmocka_unit_test(the_search_starts_over_when_there_is_room_below),
        cmocka_unit_test(every_sequence_has_room_for_its_window),
        cmocka_unit_test(shared_window_cells_are_pinned),
        cmocka_unit_test(a_fork_goes_on_as_its_parent_would),
        cmocka_unit_test(a_fork_behind_the_end_without_its_state_is_silently_wrong),
        cmocka_unit_test(a_fork_with_half_a_window_is_silently_wrong),
        cmocka_unit_test(a_cut_works_where_the_memory_can),
        cmocka_unit_test(a_cut_past_the_window_is_silently_wrong),
        cmocka_unit_test(a_checkpoint_rewinds_a_hybrid),
        cmocka_unit_test(a_window_put_back_without_a_cut_is_silently_wrong),
        cmocka_unit_test(injected_no_cells_does_nothing),
        cmocka_unit_test(damage_is_half_done_work),
        cmocka_unit_test(damage_of_a_fresh_sequence_leaves_nothing),
        cmocka_unit_test(nan_spreads_until_a_clear),
        cmocka_unit_test(bad_batches_are_refused),
        cmocka_unit_test(engine_params_are_checked),
        cmocka_unit_test(time_follows_the_cost_model),
        cmocka_unit_test(gaps_in_sequence_ids_cost_passes),
        cmocka_unit_test(edges_matter_only_when_asked),
        cmocka_unit_test(company_is_an_edge_too),
        cmocka_unit_test(logits_are_there_for_wanted_rows_only),
        cmocka_unit_test(the_dump_is_for_people),
    };
    return cmocka_run_group_tests(tests, make_text, NULL);
}
