/* plan/tune: what is chosen, within which time, and what is remembered. Costs come from the table of docs/engine.md, on
 * a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "os/machine.h"
#include "plan/remember.h"
#include "plan/stub_engine.h"
#include "plan/tune.h"

static const kv_engine_params params = {
    .n_slots = 4, .n_threads = 2, .n_threads_batch = 2, .type_k = "f16", .type_v = "f16"};
static const kv_tune_ask ask_all = {.flash_attn = KV_FA_AUTO, .block = 256};

static kv_tuning tune(stub_model *m, const kv_tune_ask *ask) {
    kv_tuning t;
    kv_error err = {0};
    kv_status st = kv_tune(&t, &m->base, &params, ask, &m->clock.base, &err);
    if (st != KV_OK) fail_msg("%s", err.message);
    assert_int_equal(m->n_alive, 0);
    return t;
}

/* SmolLM2's figures: flash attention makes decode and suffixes slow, prefill the same. */
static void smollm(stub_model *m) {
    stub_init(m);
    m->cost[0] = (stub_cost){.call = 6000, .token = 5000, .depth = 1};
    m->cost[1] = (stub_cost){.call = 6000, .token = 5000, .depth = 12, .slow = 2};
}

static void test_slow_decode_turns_it_off(void **state) {
    (void)state;
    stub_model m;
    smollm(&m);
    int64_t start = m.clock.us;
    kv_tuning t = tune(&m, &ask_all);
    assert_false(t.flash_attn);
    assert_true(t.measured && t.on_cpu && !t.remembered);
    assert_int_equal(t.chunk, 256);
    assert_int_equal(t.min_chunk, 16);
    assert_non_null(strstr(t.reason, " with it prefill "));
    assert_true(m.clock.us - start <= KV_TUNE_BUDGET_US + 200000); /* and the uncounted first tokens */
}

static void test_faster_prefill_turns_it_on(void **state) {
    (void)state;
    stub_model m;
    stub_init(&m);
    m.cost[0] = (stub_cost){.call = 2000, .token = 2800, .depth = 1};
    m.cost[1] = (stub_cost){.call = 2000, .token = 2300, .depth = 0.2};
    kv_tuning t = tune(&m, &ask_all);
    assert_true(t.flash_attn && t.measured);
    assert_int_equal(t.min_chunk, 64); /* the CPU kernel's tiles */
}

/* A little faster in prefill, much slower in decode far down: what a short measurement hardly shows must still count. */
static void test_decode_at_depth_counts(void **state) {
    (void)state;
    for (double speed = 1; speed <= 6; speed += 0.5) {
        stub_model m;
        stub_init(&m); /* the figures of the llama-1B shape, and of machines up to six times as slow */
        m.cost[0] = (stub_cost){.call = 80e3 * speed, .token = 18e3 * speed, .depth = 8};
        m.cost[1] = (stub_cost){.call = 80e3 * speed, .token = 16e3 * speed, .depth = 60 * speed};
        assert_false(tune(&m, &ask_all).flash_attn);
    }
}

/* Equal within noise: the default stays. */
static void test_a_small_gain_does_not_decide(void **state) {
    (void)state;
    static const char *const backends[] = {"CPU (stub)", "CUDA0 (stub), CPU (stub)"};
    for (int i = 0; i < 2; i++) {
        stub_model m;
        stub_init(&m);
        m.backends = backends[i];
        m.cost[0] = (stub_cost){.call = 1000, .token = i ? 98 : 100};
        m.cost[1] = (stub_cost){.call = 1000, .token = i ? 100 : 98};
        kv_tuning t = tune(&m, &ask_all);
        assert_true(t.measured);
        assert_int_equal(t.flash_attn, i);
        assert_int_equal(t.on_cpu, !i);
        assert_int_equal(t.min_chunk, 16);
    }
}

/* A model too slow to measure: the default, and the budget is kept at every speed. */
static void test_budget_holds_at_any_speed(void **state) {
    (void)state;
    bool seen_measured = false, seen_default = false;
    for (double token = 10; token < 20e6; token *= 1.5) {
        stub_model m;
        stub_init(&m);
        m.cost[0] = (stub_cost){.call = 500, .token = token, .depth = token / 500};
        m.cost[1] = (stub_cost){.call = 500, .token = token, .depth = token / 100, .slow = 4};
        int64_t start = m.clock.us;
        kv_tuning t = tune(&m, &ask_all);
        /* one token on each setting first, not counted; then the budget, and one token on each to predict from */
        double free_of_charge = 4 * (500 + token * 4.1);
        if ((double)(m.clock.us - start) > KV_TUNE_BUDGET_US * 1.05 + free_of_charge)
            fail_msg("%.0f us a token: took %lld us", token, (long long)(m.clock.us - start));
        assert_false(t.flash_attn);
        if (!t.measured) assert_non_null(strstr(t.reason, "the default on CPU, 5 s did not suffice"));
        seen_measured |= t.measured;
        seen_default |= !t.measured;
    }
    assert_true(seen_measured && seen_default);
}

static void test_unmeasurable_elsewhere_is_on(void **state) {
    (void)state;
    stub_model m;
    stub_init(&m);
    m.backends = "Vulkan0 (stub), CPU (stub)";
    m.cost[0] = m.cost[1] = (stub_cost){.token = 1e6};
    kv_tuning t = tune(&m, &ask_all);
    assert_true(t.flash_attn && !t.measured && !t.on_cpu);
    assert_int_equal(t.chunk, KV_CHUNK_GPU);

    /* the same device, but no layer on it */
    kv_tune_ask ask = ask_all;
    ask.cpu_only = true;
    t = tune(&m, &ask);
    assert_true(!t.flash_attn && t.on_cpu);
    assert_int_equal(t.chunk, KV_CHUNK_CPU);
}

static void test_what_the_engine_cannot_do(void **state) {
    (void)state;
    stub_model m;
    kv_tuning t;
    kv_error err = {0};
    stub_init(&m);
    m.refuse[0] = true; /* quantised V */
    t = tune(&m, &ask_all);
    assert_true(t.flash_attn);
    assert_non_null(strstr(t.reason, "cannot run without it"));
    stub_init(&m);
    m.refuse[1] = true;
    t = tune(&m, &ask_all);
    assert_false(t.flash_attn);
    assert_non_null(strstr(t.reason, "cannot run with it"));
    m.refuse[0] = true;
    assert_int_equal(kv_tune(&t, &m.base, &params, &ask_all, &m.clock.base, &err), KV_ENGINE);
    assert_true(err.message[0] != 0);
    assert_int_equal(m.n_alive, 0);
    /* a decode that fails on the way leaves the default */
    for (int n = 1; n < 40; n++) {
        smollm(&m);
        m.fail_after = n;
        t = tune(&m, &ask_all);
        assert_true(t.chunk == 256 && !t.flash_attn);
    }
}

static void test_fixed_choices(void **state) {
    (void)state;
    stub_model m;
    smollm(&m);
    kv_tune_ask ask = ask_all;
    ask.flash_attn = KV_FA_ON;
    ask.chunk = 1000;
    kv_tuning t = tune(&m, &ask);
    assert_true(t.flash_attn);
    assert_int_equal(t.chunk, 768);
    assert_int_equal(t.min_chunk, 64);
    assert_int_equal(m.n_decodes, 0);
    ask.chunk = 100; /* below a block */
    assert_int_equal(tune(&m, &ask).chunk, 256);
    ask.flash_attn = KV_FA_OFF;
    ask.block = 32;
    assert_int_equal(tune(&m, &ask).chunk, 96);
}

static void test_chunk(void **state) {
    (void)state;
    static const struct {
        const char *backends;
        double factor; /* time of large batches */
        int32_t max, block, want;
    } cases[] = {
        {"CPU (stub)", 1.1, 0, 256, 256},   {"CPU (stub)", 0.8, 0, 256, 512},  {"CPU (stub)", 0.99, 0, 256, 256},
        {"CPU (stub)", 0.8, 300, 256, 256}, {"CPU (stub)", 0.8, 511, 64, 256}, {"CUDA0 (stub)", 1, 0, 256, 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stub_model m;
        stub_init(&m);
        m.backends = cases[i].backends;
        m.chunk_512_factor = cases[i].factor;
        m.cost[0] = m.cost[1] = (stub_cost){.token = 500};
        kv_tune_ask ask = ask_all;
        ask.chunk_max = cases[i].max;
        ask.block = cases[i].block;
        int32_t got = tune(&m, &ask).chunk;
        if (got != cases[i].want) fail_msg("case %zu: %d", i, got);
        ask.flash_attn = KV_FA_OFF; /* measured also where flash attention is fixed */
        got = tune(&m, &ask).chunk;
        if (got != cases[i].want) fail_msg("case %zu, fixed: %d", i, got);
    }
    /* a device whose calls cost much: large chunks win, up to the largest */
    stub_model m;
    stub_init(&m);
    m.backends = "CUDA0 (stub)";
    m.cost[0] = m.cost[1] = (stub_cost){.call = 50000, .token = 50};
    assert_int_equal(tune(&m, &ask_all).chunk, 2048);
}

/* ── remembering ── */

static void make_dir(char path[64]) {
    strcpy(path, "/tmp/kvasir-tune-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static void drop_dir(const char *path) {
    char file[128];
    snprintf(file, sizeof file, "%s/measured.json", path);
    unlink(file);
    rmdir(path);
}

static void test_remembered(void **state) {
    (void)state;
    char dir[64], file[128];
    stub_model m;
    kv_tune_ask ask = ask_all;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/measured.json", dir);
    ask.state_dir = dir;
    smollm(&m);
    kv_tuning first = tune(&m, &ask);
    assert_false(first.remembered);

    smollm(&m);
    m.cost[0].token = 50000; /* now it would come out otherwise, but it must not flap */
    kv_tuning again = tune(&m, &ask);
    assert_true(again.remembered);
    assert_int_equal(again.flash_attn, first.flash_attn);
    assert_int_equal(again.chunk, first.chunk);
    assert_int_equal(again.min_chunk, first.min_chunk);
    assert_string_equal(again.reason, first.reason);
    assert_int_equal(m.n_decodes, 0);

    /* another model, other types, threads, placement, cap: measured anew */
    for (int i = 0; i < 5; i++) {
        kv_engine_params p = params;
        kv_tune_ask other = ask;
        kv_tuning t;
        smollm(&m);
        if (i == 0) m.base.info.size_bytes++;
        if (i == 1) p.type_k = "q8_0";
        if (i == 2) p.n_threads = 8;
        if (i == 3) other.placement = "-ngl 3";
        if (i == 4) other.chunk_max = 1024;
        assert_int_equal(kv_tune(&t, &m.base, &p, &other, &m.clock.base, NULL), KV_OK);
        assert_false(t.remembered);
        assert_int_equal(kv_tune(&t, &m.base, &p, &other, &m.clock.base, NULL), KV_OK);
        assert_true(t.remembered);
    }
    smollm(&m);
    assert_true(tune(&m, &ask).remembered); /* the first one is still there */

    /* damaged files are measured over, and replaced */
    static const char *const damaged[] = {"",
                                          "{",
                                          "[]",
                                          "{\"version\":2,\"entries\":[]}",
                                          "{\"version\":1}",
                                          "{\"version\":1,\"entries\":[1,{},{\"key\":5}]}"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        assert_int_equal(kv_file_publish(file, damaged[i], strlen(damaged[i]), NULL), KV_OK);
        smollm(&m);
        assert_false(tune(&m, &ask).remembered);
        assert_true(tune(&m, &ask).remembered);
    }
    drop_dir(dir);
}

static void test_unmeasurable_is_remembered_too(void **state) {
    (void)state;
    char dir[64];
    stub_model m;
    kv_tune_ask ask = ask_all;
    make_dir(dir);
    ask.state_dir = dir;
    stub_init(&m);
    m.cost[0] = m.cost[1] = (stub_cost){.token = 1e6};
    assert_false(tune(&m, &ask).measured);
    stub_init(&m);
    m.cost[0] = (stub_cost){.token = 1000};
    m.cost[1] = (stub_cost){.token = 100};
    kv_tuning t = tune(&m, &ask);
    assert_true(t.remembered && !t.measured && !t.flash_attn);
    drop_dir(dir);
}

static void test_remember_is_bounded(void **state) {
    (void)state;
    char dir[64], key[32];
    make_dir(dir);
    for (int i = 0; i < KV_REMEMBER_MAX + 10; i++) {
        snprintf(key, sizeof key, "key %d", i);
        assert_int_equal(kv_remember_put(dir, key, json_integer(i), NULL), KV_OK);
    }
    assert_null(kv_remember_get(dir, "key 9"));
    for (int i = 10; i < KV_REMEMBER_MAX + 10; i++) {
        snprintf(key, sizeof key, "key %d", i);
        json_t *v = kv_remember_get(dir, key);
        assert_int_equal(json_integer_value(v), i);
        json_decref(v);
    }
    assert_int_equal(kv_remember_put(dir, "key 20", json_integer(-1), NULL), KV_OK); /* replaces */
    json_t *v = kv_remember_get(dir, "key 20");
    assert_int_equal(json_integer_value(v), -1);
    json_decref(v);
    assert_null(kv_remember_get(NULL, "key 20"));
    assert_int_equal(kv_remember_put(NULL, "key", json_integer(1), NULL), KV_OK);
    kv_error err = {0};
    assert_int_not_equal(kv_remember_put("/proc/nowhere", "key", json_integer(1), &err), KV_OK);
    drop_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_decode_turns_it_off),
        cmocka_unit_test(test_faster_prefill_turns_it_on),
        cmocka_unit_test(test_decode_at_depth_counts),
        cmocka_unit_test(test_a_small_gain_does_not_decide),
        cmocka_unit_test(test_budget_holds_at_any_speed),
        cmocka_unit_test(test_unmeasurable_elsewhere_is_on),
        cmocka_unit_test(test_what_the_engine_cannot_do),
        cmocka_unit_test(test_fixed_choices),
        cmocka_unit_test(test_chunk),
        cmocka_unit_test(test_remembered),
        cmocka_unit_test(test_unmeasurable_is_remembered_too),
        cmocka_unit_test(test_remember_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
