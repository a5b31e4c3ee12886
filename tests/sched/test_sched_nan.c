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

/* It goes wrong in a prompt that hangs up before its logits could tell: what is stored is no numbers. Whoever comes back
 * to it gets the right answer all the same, and from then on it is as if it had never been. */
static void what_is_stored_is_found_out(void **state) {
    (void)state;
    enum { N = 400 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k]);
        dice d = {(uint64_t)k + 700};
        request gone, r[3];
        world_open(&w, &p);
        w.trouble.nan_at = 1; /* the second call */
        ask(&gone, &w, &d, N, 4);
        while (gone.gen->run.n_prompt_done < 4 * CHUNK) world_step(&w);
        kv_gen_cancel(gone.gen);
        world_finish(&w, &gone, 1);
        assert_int_equal(gone.finish, KV_FINISH_CANCELLED);
        for (int i = 0; i < 3; i++) {
            uint64_t damaged = stats_of(&w).n_damaged, computed = stats_of(&w).n_prompt_computed;
            ask_again(&r[i], &w, &gone, N);
            world_finish(&w, &r[i], 1);
            assert_right(&r[i], &p);
            computed = stats_of(&w).n_prompt_computed - computed;
            if (i == 0) assert_in_range(stats_of(&w).n_damaged - damaged, 1, 2);
            else assert_int_equal(stats_of(&w).n_damaged, damaged);
            /* What the first started over with is in its slot alone, for memories that can be cut. */
            bool cuts = all_kinds[k] == KV_MEMORY_FULL || all_kinds[k] == KV_MEMORY_WINDOW;
            if (i > 0) assert_int_equal(computed, i == 1 && !cuts ? N : 1);
        }
        world_close(&w);
        for (int i = 0; i < 3; i++) request_free(&r[i]);
        request_free(&gone);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_always_gives_nan_is_alone_with_it),
        cmocka_unit_test(once_is_made_good),
        cmocka_unit_test(what_is_stored_is_found_out),
    };
    return cmocka_run_group_tests_name("sched: not numbers", tests, NULL, NULL);
}
