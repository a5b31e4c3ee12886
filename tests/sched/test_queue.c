/* sched/queue: least left first, and nobody is overtaken for longer than max_wait. */
#include "testing.h"

#include "sched/queue.h"

static void table(void **state) {
    (void)state;
    static const struct {
        kv_queue_key a, b;
        int expect;
    } rows[] = {
        {{1, 0, 10}, {2, 0, 20}, -1},     {{1, 0, 20}, {2, 0, 10}, 1},
        {{1, 0, 10}, {2, 0, 10}, -1},     {{1, 100, 20}, {2, 0, 10}, -1}, /* overtaken for long enough */
        {{1, 99, 20}, {2, 0, 10}, 1},                                     /* not quite */
        {{1, 100, 20}, {2, 500, 10}, -1},                                 /* both: by arrival */
        {{3, 100, 20}, {2, 500, 10}, 1},  {{3, 100, 90}, {2, 0, 10}, -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(kv_queue_compare(&rows[i].a, &rows[i].b, 100), rows[i].expect);
        assert_int_equal(kv_queue_compare(&rows[i].b, &rows[i].a, 100), -rows[i].expect);
    }
}

/* One server, jobs in steps of at most 10 time units; counts how long each was overtaken. */
static void bound_holds(void **state) {
    (void)state;
    enum { JOBS = 300, STEP = 10 };
    dice d = {testing_seed("queue")};
    for (int round = 0; round < 60; round++) {
        kv_queue_key jobs[JOBS];
        int64_t done_at[JOBS], came_at[JOBS];
        int n = 0, n_done = 0;
        int64_t now = 0, max_wait = dice_one_in(&d, 4) ? INT64_MAX : dice_from(&d, 0, 2000);
        memset(done_at, 0, sizeof done_at);
        while (n_done < JOBS) {
            while (n < JOBS && (n == n_done || dice_one_in(&d, 6))) {
                bool is_long = dice_one_in(&d, 8);
                jobs[n] = (kv_queue_key){(uint64_t)n, 0, is_long ? dice_from(&d, 500, 3000) : dice_from(&d, 1, 60)};
                came_at[n++] = now;
            }
            int best = -1;
            for (int i = 0; i < n; i++)
                if (!done_at[i] && (best < 0 || kv_queue_compare(&jobs[i], &jobs[best], max_wait) < 0)) best = i;
            int took = jobs[best].left < STEP ? jobs[best].left : STEP;
            if (max_wait == INT64_MAX) /* then it is shortest first and nothing else */
                for (int i = 0; i < n; i++) assert_true(done_at[i] || jobs[i].left >= jobs[best].left);
            for (int i = 0; i < best; i++)
                if (!done_at[i]) {
                    jobs[i].overtaken_us += took;
                    assert_true(max_wait == INT64_MAX || jobs[i].overtaken_us <= max_wait + STEP);
                }
            now += took;
            jobs[best].left -= took;
            if (!jobs[best].left) {
                done_at[best] = now;
                assert_true(now > came_at[best]);
                n_done++;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(bound_holds),
    };
    return cmocka_run_group_tests_name("sched/queue", tests, NULL, NULL);
}
