/* plan/ on the engine itself: what is planned for every family of models is exactly what the engine then allocates, and
 * tuning comes to a choice on each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "plan/memory.h"
#include "plan/tune.h"

static const char *const families[] = {"llama",      "gemma3",        "gpt-oss", "qwen35",      "qwen3next",
                                       "nemotron_h", "granitehybrid", "lfm2",    "lfm2-window", "mamba2",
                                       "deepseek2",  "falcon-h1",     "llama4",  "qwen4exp"};

/* A missing model is a failure: these tests are the only ones that see the engine's own sizes. */
static kv_model *load(const char *family) {
    const char *dir = getenv("KVASIR_FIXTURES");
    char path[512];
    kv_model *m;
    kv_error err = {0};
    if (!dir) fail_msg("KVASIR_FIXTURES is not set: run the tests through ctest or `make test`");
    snprintf(path, sizeof path, "%s/tiny/%s.gguf", dir, family);
    if (kv_model_load_llama(&m, &(kv_model_params){.path = path, .use_mmap = true}, &err) != KV_OK)
        fail_msg("%s: %s", family, err.message);
    return m;
}

static void check_sizes(const char *family, kv_model *m, kv_flash_attn fa, int32_t n_ctx, int32_t n_slots,
                        int32_t n_batch) {
    kv_engine_params p;
    kv_shape shape;
    kv_plan plan;
    kv_engine *e;
    kv_error err = {0};
    kv_memory_kind memory;
    kv_engine_params_defaults(&p);
    p.n_slots = n_slots;
    p.n_batch = n_batch;
    p.flash_attn = fa;
    if (kv_shape_probe(&shape, &memory, m, &p, &err) != KV_OK) fail_msg("%s: %s", family, err.message);
    if (kv_plan_make(&plan, &shape, (uint64_t)64 << 30, n_ctx, n_slots, false, false, n_batch, &err) != KV_OK)
        fail_msg("%s: %s", family, err.message);
    p.n_ctx = plan.n_ctx;
    if (kv_engine_new(&e, m, &p, &err) != KV_OK) fail_msg("%s: %s", family, err.message);
    const kv_engine_info *i = kv_engine_get_info(e);
    if (plan.n_ctx != i->n_ctx || plan.n_window_cells != i->n_window_cells || memory != i->memory)
        fail_msg("%s: planned %d + %d cells, got %d + %d", family, plan.n_ctx, plan.n_window_cells, i->n_ctx,
                 i->n_window_cells);
    if (plan.bytes_context != i->bytes_state_total)
        fail_msg("%s: planned %llu bytes, got %llu", family, (unsigned long long)plan.bytes_context,
                 (unsigned long long)i->bytes_state_total);
    if (plan.bytes_compute < i->bytes_compute)
        fail_msg("%s, context %d: bound %llu bytes of compute buffers, got %llu", family, n_ctx,
                 (unsigned long long)plan.bytes_compute, (unsigned long long)i->bytes_compute);
    kv_engine_free(e);
}

static void test_plans_are_exact(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        kv_model *m = load(families[f]);
        check_sizes(families[f], m, KV_FA_OFF, 512, 1, 65);
        check_sizes(families[f], m, KV_FA_OFF, 4096, 4, 260);
        check_sizes(families[f], m, KV_FA_ON, 16384, 2, 514);
        kv_model_free(m);
    }
}

static void test_tuning_comes_to_a_choice(void **state) {
    (void)state;
    static const char *const some[] = {"llama", "gemma3", "lfm2"};
    for (size_t f = 0; f < sizeof some / sizeof *some; f++) {
        kv_model *m = load(some[f]);
        kv_engine_params p;
        kv_tuning t;
        kv_error err = {0};
        kv_tune_ask ask = {.flash_attn = KV_FA_AUTO, .block = 256, .cpu_only = true};
        kv_engine_params_defaults(&p);
        if (kv_tune(&t, m, &p, &ask, kv_clock_real(), &err) != KV_OK) fail_msg("%s: %s", some[f], err.message);
        assert_true(t.on_cpu);
        assert_true(t.chunk == 256 || t.chunk == 512);
        assert_true(t.min_chunk == (t.flash_attn ? 64 : 16));
        assert_true(t.reason[0] != 0);
        kv_model_free(m);
    }
}

int main(void) {
    kv_log_init(&(kv_log_config){.level = KV_LOG_ERROR}, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_are_exact),
        cmocka_unit_test(test_tuning_comes_to_a_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
