/* Where checkpoints are kept, and where prefills stop for them: each position of many prompts against a naive rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cache/policy.h"

enum { B = 16, INTERVAL = 64 };

static bool marked(int32_t P, const kv_places *prompt) {
    for (int i = 0; i < prompt->n_hints; i++)
        if (prompt->hints[i].position == P) return true;
    return false;
}

static void test_kept_places(void **state) {
    (void)state;
    const kv_policy p = {.block = B, .interval = INTERVAL};
    const kv_hint hints[] = {{.position = 100}, {.position = 17}, {.position = 64}, {.position = 250}};
    for (int32_t n_prompt = 1; n_prompt < 300; n_prompt++)
        for (int n_hints = 0; n_hints <= 4; n_hints += 2) {
            const kv_places prompt = {n_prompt, hints, n_hints};
            for (int32_t P = 0; P < n_prompt + 80; P++) {
                bool keeps = P > 0 && P < n_prompt && (P == n_prompt - 1 || P % INTERVAL == 0 || marked(P, &prompt));
                assert_int_equal(kv_policy_keeps(&p, P, &prompt), keeps);
            }
            /* a prefill that goes from stop to stop passes by everything that is kept */
            for (int32_t pos = 0, next; pos < n_prompt; pos = next) {
                next = kv_policy_next(&p, pos, &prompt);
                assert_true(next > pos && next <= n_prompt);
                for (int32_t P = pos + 1; P < next; P++) assert_false(kv_policy_keeps(&p, P, &prompt));
                assert_true(next == n_prompt || kv_policy_keeps(&p, next, &prompt));
            }
        }
}

/* Exact answers resume only where a cold run's chunk ends, wherever the client's marks are. */
static void test_exact(void **state) {
    (void)state;
    const kv_policy p = {.block = B, .interval = INTERVAL, .exact_chunk = 2 * B};
    const kv_hint hints[] = {{.position = 33}, {.position = 48}};
    for (int32_t n_prompt = 1; n_prompt < 300; n_prompt++) {
        const kv_places prompt = {n_prompt, hints, 2};
        for (int32_t P = 0; P < n_prompt + 40; P++)
            if (kv_policy_keeps(&p, P, &prompt)) assert_true(P % (2 * B) == 0 && P < n_prompt);
        assert_int_equal(kv_policy_next(&p, 0, &prompt), n_prompt > 1 ? n_prompt - 1 : 1);
        if (n_prompt > 2 * B) assert_true(kv_policy_keeps(&p, (n_prompt - 1) / (2 * B) * 2 * B, &prompt));
    }
    assert_int_equal(kv_policy_resumes(&p, 95), 64);
}

static void test_interval(void **state) {
    (void)state;
    assert_int_equal(kv_policy_interval(256, 0, 1000), 2048);
    assert_int_equal(kv_policy_interval(256, 2048 * 1000, 1000), 2048);
    assert_int_equal(kv_policy_interval(256, 2048 * 1000 + 1, 1000), 4096);
    assert_int_equal(kv_policy_interval(4096, 0, 1000), 4096);
    assert_int_equal(kv_policy_interval(256, UINT64_MAX, 0), 2048);
}

static void test_near(void **state) {
    (void)state;
    assert_int_equal(kv_policy_near(2048, 0, 1000), 0);
    assert_int_equal(kv_policy_near(2048, 50 << 20, 0), 0);
    assert_int_equal(kv_policy_near(2048, 50 << 20, 40 << 10), 160); /* 50 MiB of state, 40 KiB a token */
    assert_int_equal(kv_policy_near(2048, UINT64_MAX, 1), 512);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_places),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_interval),
        cmocka_unit_test(test_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
