/* What several requests have in common is computed once, on every memory: agents that begin alike, a retry beside the
 * request that it repeats, and one whose leader hangs up. */
#include "alone.h"

enum { SHARED = 512, OWN = 40, AGENTS = 6, BLOCK = 32 };

static world_params params(kv_memory_kind kind) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = -1;
    p.engine.n_ctx = 8192;
    p.engine.n_slots = AGENTS;
    p.cache_queue = p.cache_ram = 64 << 20;
    return p;
}

static uint64_t computed(world *w) {
    kv_sched_stats s;
    kv_sched_get_stats(&s, w->sched);
    return s.n_prompt_computed;
}

static void assert_alone(kv_memory_kind kind, const request *got) {
    world w;
    world_params p = params(kind);
    p.cache_queue = 0;
    world_open(&w, &p);
    compare_alone(&w, got);
    world_close(&w);
}

static void ask(request *r, world *w, const kv_tokens *shared, dice *d, int own) {
    request_init(r, shared->data, shared->len);
    random_tokens(&r->prompt, d, own);
    r->params.n_predict = 12;
    request_submit(r, w);
}

static void test_agents_that_begin_alike(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k]);
        dice d = {(uint64_t)k + 1};
        kv_tokens shared = {0};
        random_tokens(&shared, &d, SHARED + 7);
        world_open(&w, &p);
        request r[AGENTS];
        for (int i = 0; i < AGENTS; i++) ask(&r[i], &w, &shared, &d, OWN);
        world_finish(&w, r, AGENTS);
        /* the beginning once, then each its own and the open block before it */
        uint64_t most = SHARED + 7 + AGENTS * OWN + (AGENTS - 1) * BLOCK;
        if (computed(&w) > most)
            fail_msg("%s: %d prompt tokens computed, at most %d expected", kv_memory_kind_name(all_kinds[k]),
                     (int)computed(&w), (int)most);
        kv_sched_stats s;
        kv_sched_get_stats(&s, w.sched);
        assert_int_equal(s.n_led, AGENTS - 1);
        world_close(&w);
        for (int i = 0; i < AGENTS; i++) {
            assert_alone(all_kinds[k], &r[i]);
            request_free(&r[i]);
        }
        kv_tokens_free(&shared);
    }
}

/* The same body again while the first is in its prefill: each samples its own answer, the prompt is computed once. */
static void test_a_retry(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int hang_up = 0; hang_up < 2; hang_up++) {
            world w;
            world_params p = params(all_kinds[k]);
            dice d = {(uint64_t)k + 10};
            kv_tokens shared = {0};
            random_tokens(&shared, &d, SHARED);
            world_open(&w, &p);
            request r[2];
            ask(&r[0], &w, &shared, &d, 0);
            for (int i = 0; i < 5; i++) world_step(&w);
            assert_true(computed(&w) > 0 && computed(&w) < SHARED);
            ask(&r[1], &w, &shared, &d, 0);
            for (int i = 0; i < 2; i++) world_step(&w);
            if (hang_up) kv_gen_cancel(r[0].gen);
            world_finish(&w, r, 2);
            uint64_t most = SHARED + (uint64_t)p.sched.chunk + BLOCK;
            if (computed(&w) > most)
                fail_msg("%s, hang-up %d: %d prompt tokens computed, at most %d expected",
                         kv_memory_kind_name(all_kinds[k]), hang_up, (int)computed(&w), (int)most);
            world_close(&w);
            assert_alone(all_kinds[k], &r[1]);
            if (!hang_up) assert_alone(all_kinds[k], &r[0]);
            for (int i = 0; i < 2; i++) request_free(&r[i]);
            kv_tokens_free(&shared);
        }
}

/* Others' scopes, and requests that shall leave nothing, lead nobody. */
static void test_nobody_waits_for_strangers(void **state) {
    (void)state;
    world w;
    world_params p = params(KV_MEMORY_FULL);
    dice d = {5};
    kv_tokens shared = {0};
    random_tokens(&shared, &d, SHARED);
    world_open(&w, &p);
    request r[3];
    for (int i = 0; i < 3; i++) {
        request_init(&r[i], shared.data, shared.len);
        r[i].params.n_predict = 4;
        r[i].params.scope = i == 1 ? "b" : "";
        r[i].params.cache_prompt = i < 2;
        request_submit(&r[i], &w);
    }
    world_finish(&w, r, 3);
    kv_sched_stats s;
    kv_sched_get_stats(&s, w.sched);
    assert_int_equal(s.n_led, 0);
    assert_int_equal(s.n_prompt_computed, 3 * SHARED);
    for (int i = 0; i < 3; i++) request_free(&r[i]);
    kv_tokens_free(&shared);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agents_that_begin_alike),
        cmocka_unit_test(test_a_retry),
        cmocka_unit_test(test_nobody_waits_for_strangers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
