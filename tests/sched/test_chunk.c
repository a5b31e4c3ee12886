/* sched/chunk: where prefill chunks end. */
#include "testing.h"

#include "sched/chunk.h"

static int64_t unknown(const void *ctx, int32_t n) {
    (void)ctx, (void)n;
    return -1;
}
static int64_t ms_each(const void *ctx, int32_t n) {
    (void)ctx;
    return (int64_t)n * 1000;
}
/* A kernel that is slow below 64. */
static int64_t slow_small(const void *ctx, int32_t n) {
    (void)ctx;
    return n < 64 ? (int64_t)n * 10000 : (int64_t)n * 1000;
}

static void table(void **state) {
    (void)state;
    static const struct {
        const char *what;
        int32_t pos, n_tokens, block, chunk, min_chunk, room;
        bool streaming;
        int64_t budget_ms;
        int64_t (*predict)(const void *, int32_t);
        int32_t expect;
        int64_t smallest_ms; /* 0 = unknown */
    } rows[] = {
        {"whole chunk", 0, 1000, 256, 512, 16, 516, false, 0, NULL, 512, 0},
        {"to the next edge from inside a block", 100, 1000, 256, 256, 16, 260, false, 0, NULL, 156, 0},
        {"two blocks' worth from inside one", 100, 1000, 256, 512, 16, 516, false, 0, NULL, 412, 0},
        {"all but the last token", 0, 100, 256, 256, 16, 260, false, 0, NULL, 99, 0},
        {"ends on the edge before the last token", 0, 257, 256, 256, 16, 260, false, 0, NULL, 256, 0},
        {"the last token is left", 99, 100, 256, 256, 16, 260, false, 0, NULL, 0, 0},
        {"a prompt of one token", 0, 1, 256, 256, 16, 260, false, 0, NULL, 0, 0},
        {"nothing left", 100, 100, 256, 256, 16, 260, false, 0, NULL, 0, 0},
        {"a batch smaller than the chunk", 0, 1000, 256, 1024, 16, 700, false, 0, NULL, 512, 0},
        {"a batch smaller than a block", 0, 1000, 256, 256, 16, 100, false, 0, NULL, 64, 0},
        {"no room", 0, 1000, 256, 256, 16, 0, false, 0, NULL, 0, 0},
        {"unknown cost starts small", 0, 1000, 256, 512, 16, 512, true, 250, unknown, 16, 0},
        {"no prediction at all", 0, 1000, 256, 512, 16, 512, true, 250, NULL, 16, 0},
        {"largest within the budget", 0, 1000, 256, 512, 16, 512, true, 130, ms_each, 128, 0},
        {"exactly the budget", 0, 1000, 256, 512, 16, 512, true, 128, ms_each, 128, 0},
        {"one below", 0, 1000, 256, 512, 16, 512, true, 127, ms_each, 64, 0},
        {"never past a block", 0, 10000, 256, 2048, 16, 2048, true, 100000, ms_each, 256, 0},
        {"inside the block from inside it", 144, 1000, 256, 512, 16, 512, true, 250, ms_each, 64, 0},
        {"the rest of the block", 250, 1000, 256, 512, 16, 512, true, 1, ms_each, 6, 16},
        {"the rest of the prompt", 0, 8, 256, 512, 16, 512, true, 1, ms_each, 7, 16},
        {"nothing fits the budget", 0, 1000, 256, 512, 16, 512, true, 1, ms_each, 16, 0},
        {"a budget below zero", 0, 1000, 256, 512, 16, 512, true, -5, ms_each, 16, 0},
        {"the larger is the faster", 0, 1000, 256, 512, 16, 512, true, 130, slow_small, 128, 0},
        {"room for few rows", 0, 1000, 256, 512, 16, 10, true, 250, ms_each, 10, 0},
        {"room between powers", 0, 1000, 256, 512, 16, 100, true, 250, ms_each, 64, 0},
        {"a rest of unknown cost", 250, 1000, 256, 512, 16, 512, true, 250, unknown, 1, 0},
        {"a rest within the cost of the smallest chunk", 241, 1000, 256, 512, 16, 512, true, 1, ms_each, 15, 16},
        {"a rest with a slow kernel", 200, 1000, 256, 512, 64, 512, true, 170, slow_small, 16, 0},
        {"a rest with a slow kernel, by the smallest chunk", 200, 1000, 256, 512, 64, 512, true, 1, slow_small, 4, 64},
        {"a rest over the budget, the smallest chunk unknown", 241, 1000, 256, 512, 16, 512, true, 9, ms_each, 8, 0},
        {"a short rest with a slow kernel", 252, 1000, 256, 512, 64, 512, true, 50, slow_small, 4, 0},
        {"a rest with the chunk before it", 0, 122, 256, 512, 64, 512, true, 100, ms_each, 121, 64},
        {"both together over the bound", 0, 122, 256, 512, 64, 512, true, 100, ms_each, 64, 20},
        {"the chunk before it is the smallest, and over the budget", 0, 122, 256, 512, 64, 512, true, 1, ms_each, 64,
         64},
        {"blocks below the smallest chunk", 0, 1000, 16, 512, 64, 512, true, 1, ms_each, 64, 0},
        {"the same from inside a block", 8, 1000, 16, 512, 64, 512, true, 1, ms_each, 56, 64},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kv_chunk_input in = {
            .pos = rows[i].pos,
            .n_tokens = rows[i].n_tokens,
            .block = rows[i].block,
            .chunk = rows[i].chunk,
            .min_chunk = rows[i].min_chunk,
            .least = 1,
            .room = rows[i].room,
            .streaming = rows[i].streaming,
            .budget_us = rows[i].budget_ms * 1000,
            .predict_us = rows[i].predict,
            .smallest_us = rows[i].smallest_ms ? rows[i].smallest_ms * 1000 : -1,
        };
        int32_t got = kv_chunk_next(&in);
        if (got != rows[i].expect) print_message("%s: %d, not %d\n", rows[i].what, (int)got, (int)rows[i].expect);
        assert_int_equal(got, rows[i].expect);
    }
}

/* Where a chunk has a call of its own: no single token of a rest of which nothing is known, nor one that would be left. */
static void no_single_tokens(void **state) {
    (void)state;
    static const struct { int32_t pos, expect; } rows[] = {{250, 2}, {252, 2}, {253, 3}, {254, 2}, {255, 1}, {241, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kv_chunk_input in = {.pos = rows[i].pos,
                             .n_tokens = 1000,
                             .block = 256,
                             .chunk = 512,
                             .min_chunk = 16,
                             .least = 2,
                             .room = 512,
                             .streaming = true,
                             .budget_us = 250000,
                             .predict_us = unknown,
                             .smallest_us = -1};
        assert_int_equal(kv_chunk_next(&in), rows[i].expect);
    }
}

static bool power_of_two(int32_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

/* Any prompt is consumed up to its last token, chunks obey every bound, and edges lie where they must. */
static void random_promises(void **state) {
    (void)state;
    dice d = {testing_seed("chunk")};
    for (int round = 0; round < 5000; round++) {
        int32_t block = 1 << dice_from(&d, 4, 9);
        kv_chunk_input in = {
            .pos = dice_below(&d, 3000),
            .block = block,
            .chunk = block * dice_from(&d, 1, 4),
            .min_chunk = 1 << dice_from(&d, 0, 6),
            .least = dice_from(&d, 1, 2),
            .room = dice_from(&d, 1, 2048),
            .budget_us = dice_below(&d, 400000),
            .predict_us = dice_one_in(&d, 4) ? unknown : ms_each,
            .smallest_us = dice_one_in(&d, 2) ? -1 : dice_below(&d, 400000),
        };
        in.n_tokens = in.pos + dice_from(&d, 1, 3000);
        for (int32_t n; (n = kv_chunk_next(&in)) > 0; in.pos += n) {
            int32_t end = in.pos + n;
            assert_true(n <= in.room && end <= in.n_tokens - 1);
            bool last = end == in.n_tokens - 1, edge = end % block == 0;
            if (!in.streaming) {
                assert_true(n <= in.chunk);
                assert_true(last || edge || in.room < block);
            } else {
                int64_t with_rest_us = last || edge || n == in.room ? in.smallest_us : 0;
                assert_true(n <= in.min_chunk ||
                            in.predict_us(NULL, n) <= in.budget_us + (with_rest_us > 0 ? with_rest_us : 0));
                assert_true(n <= 2 * in.least - 1 || n == in.min_chunk || in.predict_us(NULL, n) >= 0 ||
                            block < in.min_chunk);
                if (block >= in.min_chunk) assert_true(in.pos / block == (end - 1) / block); /* inside one block */
                assert_true(last || edge || power_of_two(n) || n == in.room);
                if (in.least == 2 && in.min_chunk > 1) assert_true(n > 1 || last || edge || in.room == 1);
            }
            in.streaming = dice_one_in(&d, 2);
        }
        assert_true(in.pos == in.n_tokens - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(no_single_tokens),
        cmocka_unit_test(random_promises),
    };
    return cmocka_run_group_tests_name("sched/chunk", tests, NULL, NULL);
}
