/* plan/memory: exact arithmetic against numbers worked out by hand, and properties against a naive search. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "plan/memory.h"
#include "plan/stub_engine.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static void test_window_cells(void **state) {
    (void)state;
    static const struct {
        int32_t w, seqs, batch, want;
    } cases[] = {{0, 5, 260, 0},
                 {512, 1, 256, 768},
                 {512, 3, 258, 2048}, /* 1794 */
                 {1024, 3, 258, 3584},
                 {128, 5, 260, 1024},
                 {1, 1, 1, 256},
                 {8192, 5, 2052, 43264},
                 {1 << 30, 256, 1 << 20, INT32_MAX / 256 * 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(kv_plan_window_cells(cases[i].w, cases[i].seqs, cases[i].batch), cases[i].want);
}

/* name; shape; memory; asked, slots, explicit, unified, batch → cells, served */
typedef struct plan_case {
    const char *name;
    kv_shape shape;
    uint64_t memory;
    int32_t asked, slots;
    bool slots_explicit, unified;
    int32_t batch, n_ctx, served;
} plan_case;

static const plan_case plans[] = {
    {"small model, plenty of memory: the trained length",
     {.bytes_per_cell = 23040, .n_ctx_train = 8192, .bytes_weights = 98 * MIB, .bytes_compute = 50 * MIB},
     16 * GIB,
     0,
     4,
     false,
     false,
     260,
     8192,
     8192},
    /* (8 GiB − 4 GiB − 256 MiB) / 2 = 1920 MiB = 15360 cells of 128 KiB */
    {"half of what is left",
     {.bytes_per_cell = 128 * KIB, .n_ctx_train = 131072, .bytes_weights = 4 * GIB, .bytes_compute = 256 * MIB},
     8 * GIB,
     0,
     4,
     false,
     false,
     260,
     15360,
     15360},
    /* the same, each cell also adds 32 KiB of compute: 1920 MiB / 160 KiB = 12288 */
    {"compute buffers grow with the context",
     {.bytes_per_cell = 128 * KIB,
      .bytes_compute_per_cell = 32 * KIB,
      .n_ctx_train = 131072,
      .bytes_weights = 4 * GIB,
      .bytes_compute = 256 * MIB},
     8 * GIB,
     0,
     4,
     false,
     false,
     260,
     12288,
     12288},
    /* window pool: 512 × 3 + 258 → 2048 cells × 64 KiB = 128 MiB; states 3 × 64 MiB: (2048 − 320) MiB / 64 KiB = 27648 */
    {"windows and states are paid first",
     {.bytes_per_cell = 64 * KIB,
      .bytes_per_window_cell = 64 * KIB,
      .bytes_recurrent = 64 * MIB,
      .n_window = 512,
      .n_ctx_train = 262144,
      .bytes_weights = 4 * GIB},
     8 * GIB,
     0,
     2,
     false,
     false,
     258,
     27648,
     27648},
    {"longrope does not cross its original length by itself",
     {.bytes_per_cell = KIB, .n_ctx_train = 131072, .longrope_limit = true, .n_ctx_orig = 4096, .bytes_weights = GIB},
     16 * GIB,
     0,
     4,
     false,
     false,
     260,
     4096,
     4096},
    {"longrope crosses it when asked",
     {.bytes_per_cell = KIB, .n_ctx_train = 131072, .longrope_limit = true, .n_ctx_orig = 4096, .bytes_weights = GIB},
     16 * GIB,
     8192,
     4,
     false,
     false,
     260,
     8192,
     8192},
    {"hardly any memory: the least",
     {.bytes_per_cell = MIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     GIB + 10 * MIB,
     0,
     4,
     false,
     false,
     260,
     512,
     512},
    {"weights larger than the memory: half of it is the bound", /* (1 GiB / 2) / 2 = 256 MiB = 4096 × 64 KiB */
     {.bytes_per_cell = 64 * KIB, .n_ctx_train = 8192, .bytes_weights = 4 * GIB},
     GIB,
     0,
     4,
     false,
     false,
     260,
     4096,
     4096},
    {"explicit, rounded up",
     {.bytes_per_cell = KIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     4 * GIB,
     1000,
     4,
     false,
     false,
     260,
     1024,
     1024},
    {"explicit slots divide",
     {.bytes_per_cell = KIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     4 * GIB,
     4096,
     4,
     true,
     false,
     260,
     4096,
     1024},
    {"explicit slots divide, rounded as llama-server does", /* 4096 / 3 = 1365 → 1536, × 3 = 4608 */
     {.bytes_per_cell = KIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     4 * GIB,
     4096,
     3,
     true,
     false,
     260,
     4608,
     1536},
    {"explicit slots, unified",
     {.bytes_per_cell = KIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     4 * GIB,
     4096,
     4,
     true,
     true,
     260,
     4096,
     4096},
    {"one explicit slot has it all",
     {.bytes_per_cell = KIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     4 * GIB,
     4096,
     1,
     true,
     false,
     260,
     4096,
     4096},
    {"automatic with explicit slots",
     {.bytes_per_cell = KIB, .n_ctx_train = 8192, .bytes_weights = GIB},
     4 * GIB,
     0,
     4,
     true,
     false,
     260,
     8192,
     2048},
    {"more than trained is not served",
     {.bytes_per_cell = KIB, .n_ctx_train = 2048, .bytes_weights = GIB},
     4 * GIB,
     8192,
     4,
     false,
     false,
     260,
     8192,
     2048},
    {"a tiny trained length",
     {.bytes_per_cell = KIB, .n_ctx_train = 128, .bytes_weights = MIB},
     GIB,
     0,
     4,
     false,
     false,
     260,
     512,
     128},
    {"recurrent only: cells cost nothing",
     {.bytes_recurrent = MIB, .n_ctx_train = 4096, .bytes_weights = MIB},
     GIB,
     0,
     4,
     false,
     false,
     260,
     4096,
     4096},
};

static void test_plans(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const plan_case *c = &plans[i];
        kv_plan p;
        kv_error err = {0};
        kv_status st =
            kv_plan_make(&p, &c->shape, c->memory, c->asked, c->slots, c->slots_explicit, c->unified, c->batch, &err);
        if (st != KV_OK) fail_msg("%s: %s", c->name, err.message);
        if (p.n_ctx != c->n_ctx || p.n_ctx_served != c->served)
            fail_msg("%s: %d cells, %d served", c->name, p.n_ctx, p.n_ctx_served);
        assert_int_equal(p.bytes_context, p.bytes_main + p.bytes_window + p.bytes_recurrent);
    }
}

static void test_bytes(void **state) {
    (void)state;
    kv_shape s = {.bytes_per_cell = 40 * KIB,
                  .bytes_per_window_cell = 200 * KIB,
                  .bytes_recurrent = 5 * MIB,
                  .n_window = 1024,
                  .n_ctx_train = 262144,
                  .bytes_weights = 14 * GIB,
                  .bytes_compute = 300 * MIB,
                  .bytes_compute_per_cell = 100};
    kv_plan p;
    assert_int_equal(kv_plan_make(&p, &s, 32 * GIB, 65536, 2, false, false, 514, NULL), KV_OK);
    assert_int_equal(p.n_window_cells, 3840); /* 1024 × 3 + 514 = 3586 */
    assert_int_equal(p.bytes_main, 65536 * 40 * KIB);
    assert_int_equal(p.bytes_window, 3840 * 200 * KIB);
    assert_int_equal(p.bytes_recurrent, 15 * MIB);
    assert_int_equal(p.bytes_compute, 300 * MIB + 65536 * 100);
    assert_int_equal(p.bytes_left, 32 * GIB - 14 * GIB - p.bytes_compute - p.bytes_context);
    assert_false(p.weights_paged);

    /* the window pool is never larger than the main one */
    assert_int_equal(kv_plan_make(&p, &s, 32 * GIB, 1024, 2, false, false, 514, NULL), KV_OK);
    assert_int_equal(p.n_window_cells, 1024);
}

static void test_refusal_tells_the_sum(void **state) {
    (void)state;
    kv_shape s = {.bytes_per_cell = 128 * KIB,
                  .bytes_per_window_cell = 64 * KIB,
                  .bytes_recurrent = 20 * MIB,
                  .n_window = 512,
                  .n_ctx_train = 131072,
                  .bytes_weights = 4 * GIB,
                  .bytes_compute = 256 * MIB};
    kv_plan p;
    kv_error err = {0};
    assert_int_equal(kv_plan_make(&p, &s, 8 * GIB, 131072, 4, false, false, 260, &err), KV_INVALID);
    assert_string_equal(err.field, "--ctx-size");
    assert_has(err.message, "--ctx-size 131072 does not fit");
    assert_has(err.message, "131072 cells × 128 KiB = 16.0 GiB");
    assert_has(err.message, "3072 window cells × 64.0 KiB = 192 MiB"); /* 512 × 5 + 260 = 2820 */
    assert_has(err.message, "5 states × 20.0 MiB = 100 MiB");
    assert_has(err.message, "compute 256 MiB");
    assert_has(err.message, "weights 4.00 GiB");
    assert_has(err.message, "8.00 GiB of memory are there");
    assert_has(err.message, "the largest that fits is -c ");
}

static void test_refusal_names_what_fits(void **state) {
    (void)state;
    kv_shape s = {.bytes_per_cell = 128 * KIB, .n_ctx_train = 131072, .bytes_weights = 4 * GIB};
    kv_plan p;
    kv_error err = {0};
    int fits = 0;
    assert_int_equal(kv_plan_make(&p, &s, 8 * GIB, 65536, 4, false, false, 260, &err), KV_INVALID);
    const char *at = strstr(err.message, "fits is -c ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "fits is -c %d", &fits), 1);
    assert_int_equal(fits, 32768); /* 4 GiB / 128 KiB */
    assert_int_equal(kv_plan_make(&p, &s, 8 * GIB, fits, 4, false, false, 260, &err), KV_OK);
    assert_int_equal(p.bytes_left, 0);
    assert_int_equal(kv_plan_make(&p, &s, 8 * GIB, fits + 1, 4, false, false, 260, &err), KV_INVALID);

    s.bytes_per_cell = 4 * GIB;
    assert_int_equal(kv_plan_make(&p, &s, 8 * GIB, 512, 4, false, false, 260, &err), KV_INVALID);
    assert_has(err.message, "no context fits");
    s.bytes_per_cell = 16 * MIB;
    s.bytes_weights = 16 * GIB;
    assert_int_equal(kv_plan_make(&p, &s, 8 * GIB, 512, 4, false, false, 260, &err), KV_INVALID);
    assert_has(err.message, "half, as the weights do not fit either");
}

static void test_print(void **state) {
    (void)state;
    kv_shape s = {.bytes_per_cell = 22 * KIB + 512,
                  .bytes_recurrent = MIB,
                  .n_ctx_train = 4096,
                  .bytes_weights = 98 * MIB,
                  .bytes_compute = 10 * MIB};
    kv_plan p;
    kv_buf out = {0};
    assert_int_equal(kv_plan_make(&p, &s, 4 * GIB, 8192, 4, false, false, 260, NULL), KV_OK);
    kv_plan_print(&out, &p, &s);
    assert_has(out.data, "8192 tokens in 4 slots, each request up to 4096 (the trained length)");
    assert_has(out.data, "8192 cells × 22.5 KiB = 180 MiB");
    assert_has(out.data, "5 states × 1.00 MiB = 5.00 MiB");
    assert_has(out.data, "4.00 GiB at hand");
    kv_buf_free(&out);
}

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

/* Bytes beside the weights, straight from the header's formulas. */
static uint64_t naive_bytes(const kv_shape *s, int64_t n, int32_t slots, int32_t batch) {
    int64_t window = ((int64_t)s->n_window * (slots + 1) + batch + 255) / 256 * 256;
    if (window > n) window = n;
    uint64_t sum = (uint64_t)n * (s->bytes_per_cell + s->bytes_compute_per_cell);
    if (s->bytes_per_window_cell) sum += (uint64_t)window * s->bytes_per_window_cell;
    return sum + (uint64_t)(slots + 1) * s->bytes_recurrent + s->bytes_compute;
}

/* Random shapes: the automatic context is the largest multiple of 256 within its bounds, found here by walking. */
static void test_automatic_against_a_walk(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)time(NULL) * 2654435761u + 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 2000; round++) {
        kv_shape s = {.bytes_per_cell = next_random(&seed) % (256 * KIB),
                      .n_ctx_train = 512 + (int32_t)(next_random(&seed) % 65536),
                      .bytes_weights = next_random(&seed) % (8 * GIB),
                      .bytes_compute = next_random(&seed) % (512 * MIB),
                      .bytes_compute_per_cell = next_random(&seed) % (16 * KIB)};
        if (next_random(&seed) % 2) {
            s.n_window = 1 + (int32_t)(next_random(&seed) % 4096);
            s.bytes_per_window_cell = next_random(&seed) % (64 * KIB);
        }
        if (next_random(&seed) % 2) s.bytes_recurrent = next_random(&seed) % (64 * MIB);
        uint64_t memory = s.bytes_weights + s.bytes_compute + 1 + next_random(&seed) % (8 * GIB);
        int32_t slots = 1 + (int32_t)(next_random(&seed) % 8), batch = 256 + slots;
        uint64_t room = (memory - s.bytes_weights - s.bytes_compute) / 2;
        int64_t want = 512;
        for (int64_t n = 768; n <= s.n_ctx_train; n += 256) {
            if (naive_bytes(&s, n, slots, batch) - s.bytes_compute > room) break;
            want = n;
        }
        kv_plan p;
        assert_int_equal(kv_plan_make(&p, &s, memory, 0, slots, false, false, batch, NULL), KV_OK);
        assert_int_equal(p.n_ctx, want);
        uint64_t used = naive_bytes(&s, p.n_ctx, slots, batch);
        assert_true(used == (uint64_t)p.bytes_context + p.bytes_compute);
    }
}

/* Nothing wraps: absurd sizes are refused, not planned. */
static void test_huge_numbers(void **state) {
    (void)state;
    kv_shape s = {.bytes_per_cell = UINT64_MAX / 2,
                  .bytes_per_window_cell = UINT64_MAX,
                  .bytes_recurrent = UINT64_MAX,
                  .n_window = INT32_MAX,
                  .n_ctx_train = INT32_MAX,
                  .bytes_weights = UINT64_MAX,
                  .bytes_compute = UINT64_MAX,
                  .bytes_compute_per_cell = UINT64_MAX};
    kv_plan p;
    kv_error err = {0};
    assert_int_equal(kv_plan_make(&p, &s, GIB, 16777216, 255, true, false, 65536, &err), KV_INVALID);
    assert_int_equal(kv_plan_make(&p, &s, GIB, 0, 255, false, false, 65536, &err), KV_OK);
    assert_int_equal(p.bytes_left, 0);
    assert_int_equal(kv_plan_make(&p, &s, GIB, -1, 4, false, false, 260, &err), KV_INVALID);
    assert_int_equal(kv_plan_make(&p, &s, GIB, 0, 0, false, false, 260, &err), KV_INVALID);
}

static void test_probe(void **state) {
    (void)state;
    kv_memory_kind kind;
    stub_model m;
    kv_shape s;
    kv_engine_params params = {.n_slots = 4, .n_batch = 260, .flash_attn = KV_FA_OFF};
    stub_init(&m);
    m.cell = 22528, m.window_cell = 100, m.state = 7, m.compute = 1000000, m.compute_cell = 20000;
    m.memory = KV_MEMORY_WINDOW, m.n_window = 512;
    m.base.info.n_ctx_longrope = 4096;
    assert_int_equal(kv_shape_probe(&s, NULL, &m.base, &params, NULL), KV_OK);
    assert_int_equal(s.bytes_per_cell, 22528);
    assert_int_equal(s.bytes_per_window_cell, 100);
    assert_int_equal(s.bytes_recurrent, 7);
    assert_int_equal(s.n_window, 512);
    assert_int_equal(s.bytes_weights, 500000000);
    assert_int_equal(s.bytes_compute_per_cell, 20000); /* seen, above the bound 260 × (8 × 4 + 6) */
    assert_int_equal(s.bytes_compute, 1000000 + (2048 - 512) * 20000);
    assert_true(s.longrope_limit);
    assert_int_equal(s.n_ctx_orig, 4096);
    assert_int_equal(m.n_alive, 0);

    /* where the small contexts do not show the growth, the bound counts; never less than what was seen */
    m.compute_cell = 0;
    assert_int_equal(kv_shape_probe(&s, &kind, &m.base, &params, NULL), KV_OK);
    assert_int_equal(s.bytes_compute_per_cell, 260 * 38);
    assert_true(s.bytes_compute + 512 * s.bytes_compute_per_cell >= 1000000);
    assert_int_equal(kind, KV_MEMORY_WINDOW);
    m.refuse[0] = true;
    kv_error err = {0};
    assert_int_equal(kv_shape_probe(&s, &kind, &m.base, &params, &err), KV_ENGINE);
    assert_int_equal(m.n_alive, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_cells),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_refusal_tells_the_sum),
        cmocka_unit_test(test_refusal_names_what_fits),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_automatic_against_a_walk),
        cmocka_unit_test(test_huge_numbers),
        cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
