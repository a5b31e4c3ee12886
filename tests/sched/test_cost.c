/* sched/cost: predictions are upper bounds, and one slow batch is forgiven. */
#include "testing.h"

#include "sched/cost.h"

static void table(void **state) {
    (void)state;
    kv_cost c;
    kv_cost_init(&c, 16);
    assert_int_equal(kv_cost_predict_us(&c, 16, 0), -1);
    kv_cost_observe(&c, 8, 0, 5);
    assert_int_equal(kv_cost_predict_us(&c, 8, 0), -1); /* too small to learn from */
    kv_cost_observe(&c, 64, 0, 6400);
    assert_int_equal(kv_cost_predict_us(&c, 32, 0), -1); /* smaller ones can be slower */
    assert_int_equal(kv_cost_predict_us(&c, 64, 0), 6400);
    assert_int_equal(kv_cost_predict_us(&c, 64, KV_COST_LEAST_DEPTH), 6400);
    assert_int_equal(kv_cost_predict_us(&c, 64, 2 * KV_COST_LEAST_DEPTH), 12800);
    assert_int_equal(kv_cost_predict_us(&c, 65, 0), 6500);
    assert_int_equal(kv_cost_predict_us(&c, 128, 0), 12800);
    assert_int_equal(kv_cost_at_least_us(&c, 128, 0), -1);
    assert_int_equal(kv_cost_at_least_us(&c, 64, 0), 6400);
    assert_int_equal(kv_cost_at_least_us(&c, 100, 0), 6400);
    kv_cost_observe(&c, 128, 0, 8000);
    assert_int_equal(kv_cost_predict_us(&c, 128, 0), 8000);
    assert_int_equal(kv_cost_predict_us(&c, 64, 0), 6400);
    assert_int_equal(kv_cost_predict_us(&c, 256, 0), 16000);
    kv_cost_observe(&c, 64, 0, 9000); /* up at once */
    assert_int_equal(kv_cost_predict_us(&c, 64, 0), 9000);
    kv_cost_observe(&c, 64, 0, 5000); /* down slowly */
    assert_int_equal(kv_cost_predict_us(&c, 64, 0), 8000);
    assert_int_equal(kv_cost_at_least_us(&c, 64, 0), 5000);
}

static void an_outlier_is_forgiven(void **state) {
    (void)state;
    kv_cost c;
    kv_cost_init(&c, 16);
    kv_cost_observe(&c, 64, 0, 60000);
    kv_cost_observe(&c, 128, 0, 9000000);
    int rounds = 0;
    for (; kv_cost_predict_us(&c, 128, 0) > 250000; rounds++) {
        kv_cost_observe(&c, 64, 0, 60000);
        assert_true(rounds < 1000);
    }
    assert_true(rounds > 10); /* but not at once */
    assert_true(kv_cost_predict_us(&c, 128, 0) >= 120000);
}

/* True costs a + b n + c n depth: nothing that was predicted is exceeded. */
static void never_too_little(void **state) {
    (void)state;
    dice d = {testing_seed("cost")};
    for (int round = 0; round < 500; round++) {
        int64_t a = dice_below(&d, 20000), b = dice_from(&d, 1, 2000), per_depth = dice_below(&d, 4);
        kv_cost c;
        kv_cost_init(&c, 16);
        int32_t depth = 256;
        for (int i = 0; i < 200; i++) {
            int32_t n = dice_from(&d, 16, 600);
            depth = dice_one_in(&d, 10) ? dice_from(&d, 256, 9000) : depth + dice_below(&d, 64);
            int64_t us = a + b * n + per_depth * n * depth / 16;
            int64_t predicted = kv_cost_predict_us(&c, n, depth);
            assert_true(predicted < 0 || predicted + 1 >= us);
            assert_true(kv_cost_at_least_us(&c, n, depth) <= us);
            kv_cost_observe(&c, n, depth, us);
            assert_true(kv_cost_predict_us(&c, n, depth) >= us);
            /* doubling at most doubles */
            assert_true(kv_cost_predict_us(&c, n, depth) * 2 >= a + b * 2 * n + per_depth * 2 * n * depth / 16);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(an_outlier_is_forgiven),
        cmocka_unit_test(never_too_little),
    };
    return cmocka_run_group_tests_name("sched/cost", tests, NULL, NULL);
}
