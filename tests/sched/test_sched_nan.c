/* sched: what a model computes that is no number is kept nowhere, spoils nobody else's answer, and costs those beside it no
 * more than to be computed again.
 */
#include "alone.h"

enum { BLOCK = 32, CHUNK = 64, SLOTS = 4, CURSED = '#' };

static world_params params(kv_memory_kind kind) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = -1;
    p.fake.nan_token = CURSED;
    p.sched.block = BLOCK;
    p.sched.max_stall_ms = 20;
    p.sched.chunk = CHUNK;
    p.engine.n_ctx = 8192;
    p.engine.n_slots = SLOTS;
    p.engine.n_batch = CHUNK + SLOTS;
    p.cache_queue = p.cache_ram = 64 << 20;
    return p;
}

static void ask(request *r, world *w, dice *d, int n, int n_predict) {
    request_init(r, NULL, 0);
    random_tokens(&r->prompt, d, n);
    r->params.n_predict = n_predict;
    request_submit(r, w);
}

static void ask_again(request *r, world *w, const request *like, size_t n) {
    request_init(r, like->prompt.data, n);
    r->params.n_predict = 4;
    request_submit(r, w);
}

static void assert_right(const request *r, const world_params *p) {
    world alone;
    world_params quiet = *p;
    quiet.cache_queue = 0;
    assert_int_equal(r->finish, KV_FINISH_LENGTH);
    world_open(&alone, &quiet);
    compare_alone(&alone, r);
    world_close(&alone);
}

static kv_sched_stats stats_of(const world *w) {
    kv_sched_stats s;
    kv_sched_get_stats(&s, w->sched);
    return s;
}

/* One prompt that gives NaN wherever it is computed gets an error; streams and prompts beside it their answers. What it has
 * before the cursed token is of use to others, and right. */
static void who_always_gives_nan_is_alone_with_it(void **state) {
    (void)state;
    enum { LONG = 500 };
    for (int k = 0; k < N_KINDS; k++)
        for (int at = 0; at < LONG; at += LONG / 3 - 1) { /* 0, 165, 330, 495 */
            world w;
            world_params p = params(all_kinds[k]);
            dice d = {(uint64_t)k + 7};
            request stream[2], guilty, late, shares;
            world_open(&w, &p);
            for (int i = 0; i < 2; i++) ask(&stream[i], &w, &d, 40 + i, 100);
            for (int i = 0; i < 12; i++) world_step(&w);
            request_init(&guilty, NULL, 0);
            random_tokens(&guilty.prompt, &d, LONG);
            guilty.prompt.data[at] = CURSED;
            guilty.params.n_predict = 4;
            request_submit(&guilty, &w);
            ask(&late, &w, &d, 700, 4);
            world_finish(&w, &guilty, 1);
            request *innocent[] = {&stream[0], &stream[1], &late};
            for (int i = 0; i < 3; i++) {
                request_read(innocent[i]);
                if (i < 2)
                    assert_true(innocent[i]->longest_gap_ms < 1000); /* 1,800 if it had all rounds until it ends */
                assert_right(innocent[i], &p);
            }
            assert_int_equal(guilty.finish, KV_FINISH_ERROR);
            assert_int_equal(guilty.error.status, KV_NOT_NUMBERS);
            assert_int_equal(guilty.answer.len, 0);
            assert_in_range(stats_of(&w).n_damaged, 1, KV_SCHED_RETRIES + 2);
            ask_again(&shares, &w, &guilty, at ? (size_t)at : LONG);
            if (!at) shares.prompt.data[0] = 'a'; /* copied already: the same prompt once more */
            world_finish(&w, &shares, 1);
            if (at) assert_right(&shares, &p);
            else assert_int_equal(shares.finish, KV_FINISH_ERROR);
            world_close(&w);
            for (int i = 0; i < 3; i++) request_free(innocent[i]);
            request_free(&guilty);
            request_free(&shares);
        }
}

/* One call goes wrong once, whichever it is: everybody's answer is right, and so is what is found later. */
static void once_is_made_good(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        bool happened = true;
        for (uint64_t call = 1; happened; call++) {
            world w;
            world_params p = params(all_kinds[k]);
            dice d = {(uint64_t)k + 70};
            request r[4], again[4];
            world_open(&w, &p);
            w.trouble.nan_at = call;
            for (int i = 0; i < 4; i++) ask(&r[i], &w, &d, 50 + 130 * i, 12);
            world_finish(&w, r, 4);
            for (int i = 0; i < 4; i++) assert_right(&r[i], &p);
            happened = kv_fake_n_decodes(w.engine) > call;
            w.trouble.nan_at = 0;
            kv_sched_stats before = stats_of(&w);
            assert_int_equal(before.n_damaged > 0, happened);
            for (int i = 0; i < 4; i++) {
                ask_again(&again[i], &w, &r[i], r[i].prompt.len);
                world_finish(&w, &again[i], 1);
                assert_right(&again[i], &p);
            }
            assert_int_equal(stats_of(&w).n_damaged, before.n_damaged); /* nothing of it is found */
            world_close(&w);
            for (int i = 0; i < 4; i++) request_free(&r[i]), request_free(&again[i]);
        }
    }
}

static void empty_slots(world *w) {
    for (int i = 0; i < w->sched->n_slots; i++)
        if (!w->sched->slots[i].gen) assert_int_equal(kv_sched_erase_slot(w->sched, i, NULL, NULL), KV_OK);
    world_step(w);
}

/* It goes wrong in a chunk of a prompt that hangs up before its logits could tell: what is stored is no numbers. */
static void store_nan(request *gone, world *w, dice *d, int n, uint64_t chunk) {
    request other;
    ask(&other, w, d, 5, 1); /* call 0 is none (world.h) */
    world_finish(w, &other, 1);
    request_free(&other);
    w->trouble.nan_at = kv_fake_n_decodes(w->engine) + chunk;
    ask(gone, w, d, n, 4);
    while (gone->gen->run.n_prompt_done < 4 * CHUNK) world_step(w);
    kv_gen_cancel(gone->gen);
    world_finish(w, gone, 1);
    assert_int_equal(gone->finish, KV_FINISH_CANCELLED);
    w->trouble.nan_at = 0;
    empty_slots(w);
}

/* Whoever comes back to it gets the right answer all the same, and from then on it is as if it had never been. */
static void what_is_stored_is_found_out(void **state) {
    (void)state;
    enum { N = 400 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k]);
        dice d = {(uint64_t)k + 700};
        request gone, r[3];
        world_open(&w, &p);
        store_nan(&gone, &w, &d, N, 1);
        for (int i = 0; i < 3; i++) {
            uint64_t damaged = stats_of(&w).n_damaged, computed = stats_of(&w).n_prompt_computed;
            ask_again(&r[i], &w, &gone, N);
            world_finish(&w, &r[i], 1);
            assert_right(&r[i], &p);
            computed = stats_of(&w).n_prompt_computed - computed;
            if (i == 0) assert_in_range(stats_of(&w).n_damaged - damaged, 1, 2);
            else assert_int_equal(stats_of(&w).n_damaged, damaged);
            if (i == 1) assert_int_equal(computed, N); /* the first kept nothing of what it started over with */
            if (i == 2) assert_int_equal(computed, 1);
        }
        world_close(&w);
        for (int i = 0; i < 3; i++) request_free(&r[i]);
        request_free(&gone);
    }
}

/* The same beside streams: they get their answers, and what they and others have stored stays. */
static void it_comes_back_beside_streams(void **state) {
    (void)state;
    enum { N = 400, STREAMS = 3, SHARED = 200 };
    for (int k = 0; k < N_KINDS; k++)
        for (int slowly = 0; slowly < 2; slowly++) { /* restores in slices, or in one go */
            world w;
            world_params p = params(all_kinds[k]);
            dice d = {(uint64_t)k + 7000};
            kv_tokens shared = {0};
            request gone, culprit, stream[STREAMS], again[STREAMS];
            p.fake.bytes_per_cell = 1024;
            p.fake.cost.state_kib_ns = slowly ? 200000 : 0;
            world_open(&w, &p);
            store_nan(&gone, &w, &d, N, 1);
            random_tokens(&shared, &d, SHARED);
            for (int i = 0; i < STREAMS; i++) {
                request_init(&stream[i], shared.data, SHARED);
                random_tokens(&stream[i].prompt, &d, 50 + i);
                stream[i].params.n_predict = 150;
                request_submit(&stream[i], &w);
            }
            for (int i = 0; i < 12; i++) world_step(&w);
            ask_again(&culprit, &w, &gone, N);
            world_finish(&w, &culprit, 1);
            assert_right(&culprit, &p);
            assert_in_range(stats_of(&w).n_damaged, 1, 3);
            empty_slots(&w);
            for (int i = 0; i < STREAMS; i++) {
                request_read(&stream[i]);
                assert_right(&stream[i], &p);
                ask_again(&again[i], &w, &stream[i], stream[i].prompt.len);
                world_finish(&w, &again[i], 1);
                assert_right(&again[i], &p);
                assert_true(again[i].timings.n_cached >= SHARED);
                request_free(&stream[i]);
                request_free(&again[i]);
            }
            world_close(&w);
            request_free(&gone);
            request_free(&culprit);
            kv_tokens_free(&shared);
        }
}

/* A call goes wrong while a stored conversation is on its way into a slot: that has computed nothing, and loses nothing. */
static void what_is_being_restored_is_not_blamed(void **state) {
    (void)state;
    enum { N = 1500 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k]);
        dice d = {(uint64_t)k + 900};
        request first, stream, back, again;
        p.fake.cost.state_kib_ns = 100000;
        p.fake.bytes_per_cell = 1024;
        p.fake.bytes_recurrent = 40000;
        p.fake.bytes_per_window_cell = 4096;
        world_open(&w, &p);
        ask(&first, &w, &d, N, 4);
        world_finish(&w, &first, 1);
        empty_slots(&w);
        ask(&stream, &w, &d, 40, 200);
        for (int i = 0; i < 12; i++) world_step(&w);
        ask_again(&back, &w, &first, N);
        while (!restores(&w) && back.finish == KV_FINISH_NONE) world_step(&w), request_read(&back);
        w.trouble.nan_at = kv_fake_n_decodes(w.engine);
        world_finish(&w, &back, 1);
        request_read(&stream);
        assert_right(&stream, &p);
        assert_right(&back, &p);
        assert_int_equal(back.timings.n_cached, N - 1);
        empty_slots(&w);
        ask_again(&again, &w, &first, N);
        world_finish(&w, &again, 1);
        assert_right(&again, &p);
        assert_int_equal(again.timings.n_cached, N - 1);
        world_close(&w);
        request *all[] = {&first, &stream, &back, &again};
        for (int i = 0; i < 4; i++) request_free(all[i]);
    }
}

/* Of a block that is no numbers others use the part that their prompts begin with: it is not used for ever. */
static void a_part_of_it_is_found_out(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int part = 20; part <= 4 * BLOCK; part += 54) { /* 20, 74, 128 */
            world w;
            world_params p = params(all_kinds[k]);
            dice d = {(uint64_t)k + 77};
            request gone, r[4];
            world_open(&w, &p);
            store_nan(&gone, &w, &d, 400, 0);
            for (int i = 0; i < 4; i++) {
                request_init(&r[i], gone.prompt.data, (size_t)part);
                random_tokens(&r[i].prompt, &d, 200);
                r[i].params.n_predict = 4;
                request_submit(&r[i], &w);
                world_finish(&w, &r[i], 1);
                assert_right(&r[i], &p);
                empty_slots(&w);
                request_free(&r[i]);
            }
            /* one for what the hung-up prompt left in cells that are free, two of the first that used what is stored */
            assert_in_range(stats_of(&w).n_damaged, 0, 3);
            world_close(&w);
            request_free(&gone);
        }
}

/* --exact: what is computed again, and what is stored of it, has the shapes of a cold run. */
static void exact_answers_stay_exact(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (uint64_t call = 0; call < 8; call++) { /* 0: none */
            world w;
            world_params p = params(all_kinds[k]);
            dice d = {5};
            request r[2], cold;
            p.fake.edge_sensitive = true;
            p.engine.n_slots = 1;
            p.sched.exact = true;
            world_open(&w, &p);
            w.trouble.nan_at = call;
            for (int i = 0; i < 2; i++) {
                request_init(&r[i], NULL, 0);
                d.state = 5;
                random_tokens(&r[i].prompt, &d, 301);
                r[i].params.n_predict = 8;
                request_submit(&r[i], &w);
                world_finish(&w, &r[i], 1);
            }
            assert_int_equal(stats_of(&w).n_damaged > 0, call > 0);
            assert_true(r[1].timings.n_cached > 0);
            world_close(&w);
            p.cache_queue = 0;
            world_open(&w, &p);
            request_init(&cold, r[0].prompt.data, 301);
            cold.params.n_predict = 8;
            request_submit(&cold, &w);
            world_finish(&w, &cold, 1);
            for (int i = 0; i < 2; i++) assert_memory_equal(r[i].answer.data, cold.answer.data, 8 * sizeof(kv_token));
            world_close(&w);
            request_free(&cold);
            for (int i = 0; i < 2; i++) request_free(&r[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_always_gives_nan_is_alone_with_it),
        cmocka_unit_test(once_is_made_good),
        cmocka_unit_test(what_is_stored_is_found_out),
        cmocka_unit_test(it_comes_back_beside_streams),
        cmocka_unit_test(what_is_being_restored_is_not_blamed),
        cmocka_unit_test(a_part_of_it_is_found_out),
        cmocka_unit_test(exact_answers_stay_exact),
    };
    return cmocka_run_group_tests_name("sched: not numbers", tests, NULL, NULL);
}
