/* sched on the virtual clock: the stall bound, the wait bound, shortest first, and how chunks grow. */
#include "world.h"

/* Time of one pass of the fake, as its header says. */
static double pass_ms(const kv_fake_cost *c, int32_t n, int32_t depth) {
    double factor = n >= 2 && n < c->slow_below ? c->slow_factor : 1;
    return ((double)c->call_ns + (double)c->per_token_ns * n * factor + (double)c->per_depth_ns * n * depth) / 1e6;
}

/* ── the stall bound ───────────────────────────────────────────────────────────────────────────────────────────── */

enum { STREAMS = 4, PROMPTS = 3 };

typedef struct stall_result {
    double longest_gap_ms;
    double bound_ms;
    double prompt_tokens_per_s; /* of the prompts that came while others decoded */
} stall_result;

/* At most n rows: where few rows are slow, less can take longer. */
static double up_to_ms(const kv_fake_cost *c, int32_t n, int32_t depth) {
    double longest = 0;
    for (int32_t k = 1; k <= n; k++)
        if (pass_ms(c, k, depth) > longest) longest = pass_ms(c, k, depth);
    return longest;
}

/* The least that a round of prefill can be made to take: a chunk of the smallest size (or a single token) beside a
 * token for each slot. */
static double smallest_round_ms(const world_params *p) {
    const kv_fake_cost *c = &p->fake.cost;
    int32_t rows = p->sched.min_chunk, tokens = p->engine.n_slots, depth = p->engine.n_ctx;
    bool two_calls = kv_memory_has_recurrent(p->fake.memory) || p->fake.memory == KV_MEMORY_WHOLE;
    if (two_calls) return pass_ms(c, rows, depth) + up_to_ms(c, tokens, depth);
    double chunk = pass_ms(c, rows + tokens, depth), single = up_to_ms(c, tokens + 1, depth);
    return chunk > single ? chunk : single;
}

static stall_result run_stall(world_params *p, uint64_t seed) {
    world w;
    dice d = {seed};
    stall_result result = {0};
    world_open(&w, p);
    request r[STREAMS + PROMPTS];
    for (int i = 0; i < STREAMS; i++) {
        request_init(&r[i], NULL, 0);
        random_tokens(&r[i].prompt, &d, dice_from(&d, 1, 300));
        r[i].params.n_predict = 400;
        request_submit(&r[i], &w);
        for (int k = dice_from(&d, 0, 20); k > 0; k--) world_step(&w);
    }
    for (int i = STREAMS; i < STREAMS + PROMPTS; i++) { /* long prompts come while they decode */
        request_init(&r[i], NULL, 0);
        random_tokens(&r[i].prompt, &d, dice_from(&d, 500, 1500));
        r[i].params.n_predict = 20;
        request_submit(&r[i], &w);
        for (int k = dice_from(&d, 0, 60); k > 0; k--) world_step(&w);
    }
    world_finish(&w, r, STREAMS + PROMPTS);
    kv_sched_stats s;
    kv_sched_get_stats(&s, w.sched);
    assert_int_equal(s.n_preempted, 0);
    for (int i = 0; i < STREAMS + PROMPTS; i++) {
        if (r[i].longest_gap_ms > result.longest_gap_ms) result.longest_gap_ms = r[i].longest_gap_ms;
        request_free(&r[i]);
    }
    result.bound_ms = p->sched.max_stall_ms + smallest_round_ms(p);
    result.prompt_tokens_per_s = (double)s.n_prompt_computed / s.prompt_seconds;
    world_close(&w);
    return result;
}

static world_params stall_params(kv_memory_kind kind, dice *d) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = -1;
    p.fake.cost.call_ns = dice_from(d, 0, 20) * 1000000;
    p.fake.cost.per_token_ns = dice_from(d, 200, 3000) * 1000;
    p.fake.cost.per_depth_ns = dice_one_in(d, 2) ? dice_from(d, 0, 1000) : 0;
    p.fake.cost.slow_factor = dice_from(d, 1, 8);
    p.sched.min_chunk = 1 << dice_from(d, 3, 6);
    p.fake.cost.slow_below = dice_one_in(d, 2) ? p.sched.min_chunk : 0;
    p.sched.block = 1 << dice_from(d, 5, 8);
    p.sched.chunk = p.sched.block * dice_from(d, 1, 2);
    p.sched.max_stall_ms = dice_from(d, 20, 250);
    p.engine.n_slots = STREAMS + PROMPTS;
    p.engine.n_batch = p.sched.chunk + p.engine.n_slots;
    p.engine.n_ctx = 8192;
    return p;
}

static void stall_bound(void **state) {
    (void)state;
    dice d = {testing_seed("stall")};
    for (int round = 0; round < 60; round++) {
        world_params p = stall_params(all_kinds[round % N_KINDS], &d);
        stall_result r = run_stall(&p, dice_next(&d));
        if (r.longest_gap_ms > r.bound_ms)
            print_message("%s: a gap of %.2f ms, bound %.2f ms (%d + %.2f); round %d\n",
                          kv_memory_kind_name(p.fake.memory), r.longest_gap_ms, r.bound_ms, (int)p.sched.max_stall_ms,
                          r.bound_ms - p.sched.max_stall_ms, round);
        assert_true(r.longest_gap_ms <= r.bound_ms);
    }
}

/* The bound is no accident: a larger budget makes larger gaps, and faster prefill. */
static void a_budget_is_used(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world_params p = world_defaults(all_kinds[k]);
        p.fake.end_one_in = -1;
        p.fake.cost = (kv_fake_cost){.call_ns = 20000000, .per_token_ns = 500000};
        p.sched.block = 256;
        p.sched.chunk = 256;
        p.engine.n_slots = STREAMS + PROMPTS;
        p.engine.n_batch = p.sched.chunk + p.engine.n_slots;
        p.engine.n_ctx = 8192;
        p.sched.max_stall_ms = 40;
        stall_result small = run_stall(&p, 21);
        p.sched.max_stall_ms = 250;
        stall_result large = run_stall(&p, 21);
        assert_true(small.longest_gap_ms <= small.bound_ms && large.longest_gap_ms <= large.bound_ms);
        assert_true(large.longest_gap_ms > small.bound_ms);
        assert_true(large.prompt_tokens_per_s > 2 * small.prompt_tokens_per_s);
    }
}

/* With recurrent layers a round is two calls, and the budget is for both: 148 ms for a chunk of 256 would do by itself,
 * but not beside 22 ms for the tokens. */
static void two_calls_share_a_budget(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world_params p = world_defaults(all_kinds[k]);
        p.fake.end_one_in = -1;
        p.fake.cost = (kv_fake_cost){.call_ns = 20000000, .per_token_ns = 500000};
        p.sched.block = p.sched.chunk = 256;
        p.engine.n_slots = STREAMS + PROMPTS;
        p.engine.n_batch = p.sched.chunk + p.engine.n_slots;
        p.engine.n_ctx = 8192;
        p.sched.max_stall_ms = 160;
        for (uint64_t seed = 0; seed < 5; seed++) assert_true(run_stall(&p, seed).longest_gap_ms <= 160);
    }
}

/* Alone, prompts go in whole chunks from edge to edge: ⌈(n - 1) / chunk⌉ calls and one for the last token. */
static void alone_in_whole_chunks(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = world_defaults(all_kinds[k]);
        p.sched.block = 32;
        p.sched.chunk = 64;
        world_open(&w, &p);
        request r;
        dice d = {5};
        request_init(&r, NULL, 0);
        random_tokens(&r.prompt, &d, 64 * 5 + 10);
        r.params.n_predict = 1;
        request_submit(&r, &w);
        world_finish(&w, &r, 1);
        assert_int_equal(kv_fake_n_decodes(w.engine), 5 + 1 + 1);
        assert_int_equal(r.progress, 330);
        request_free(&r);
        world_close(&w);
    }
}

/* ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* All at once; mean time to the first token in ms. max_wait 0 makes it first come, first served. */
static double mean_ttft(kv_memory_kind kind, int32_t max_wait_ms, int n_slots, const int *lengths, int n) {
    world w;
    world_params p = world_defaults(kind);
    p.engine.n_slots = n_slots;
    p.engine.n_batch = 64 + n_slots;
    p.engine.n_ctx = 16384;
    p.sched.max_wait_ms = max_wait_ms;
    world_open(&w, &p);
    request r[8];
    double sum = 0;
    dice d = {9};
    for (int i = 0; i < n; i++) {
        request_init(&r[i], NULL, 0);
        random_tokens(&r[i].prompt, &d, lengths[i]);
        r[i].params.n_predict = 1;
        request_submit(&r[i], &w);
    }
    world_finish(&w, r, n);
    for (int i = 0; i < n; i++) {
        sum += r[i].first_ms;
        request_free(&r[i]);
    }
    world_close(&w);
    return sum / n;
}

static void shortest_first(void **state) {
    (void)state;
    dice d = {testing_seed("order")};
    static const int worst[] = {940, 800, 660, 500, 420, 330}; /* six mixed prompts, the longest first */
    for (int k = 0; k < N_KINDS; k++) {
        double fifo = mean_ttft(all_kinds[k], 0, 6, worst, 6), ours = mean_ttft(all_kinds[k], 1000000, 6, worst, 6);
        assert_true(ours < 0.8 * fifo);
        for (int round = 0; round < 10; round++) {
            int lengths[8], n = dice_from(&d, 2, 8), n_slots = dice_from(&d, 1, 8);
            for (int i = 0; i < n; i++) lengths[i] = dice_from(&d, 1, 900);
            fifo = mean_ttft(all_kinds[k], 0, 1, lengths, n); /* one after the other */
            ours = mean_ttft(all_kinds[k], 1000000, n_slots, lengths, n);
            /* A first token shares its call with a chunk of the next prompt, of at most a block here (1 ms a token),
             * which makes a call or two more of it. */
            assert_true(ours <= fifo + 32 + 3 * n);
        }
    }
}

/* One long prompt, and short ones without end: each new one has less left. Time to the long one's first token. */
static double long_one_ttft(kv_memory_kind kind, int32_t max_wait_ms, int n_slots, int n_ctx, double until_ms) {
    enum { MOST = 4000 };
    world w;
    world_params p = world_defaults(kind);
    p.engine.n_slots = n_slots;
    p.engine.n_batch = 64 + n_slots;
    p.engine.n_ctx = n_ctx;
    p.sched.max_wait_ms = max_wait_ms;
    p.sched.slot_similarity = 0;
    world_open(&w, &p);
    static request r[MOST];
    dice d = {31};
    double ttft = -1;
    int n = 0;
    int64_t start_us = w.clock.us;
    while (n < MOST && ttft < 0 && (double)(w.clock.us - start_us) / 1000 < until_ms) {
        int n_open = 0;
        for (int i = 1; i < n; i++) n_open += r[i].finish == KV_FINISH_NONE;
        while (n < MOST && n_open < n_slots + 2) {
            request_init(&r[n], NULL, 0);
            random_tokens(&r[n].prompt, &d, n ? 60 : 640);
            r[n].params.n_predict = 1;
            request_submit(&r[n], &w);
            n_open += n++ > 0;
        }
        world_step(&w);
        for (int i = 0; i < n; i++) request_read(&r[i]);
        if (r[0].finish != KV_FINISH_NONE) ttft = r[0].first_ms;
    }
    for (int i = 0; i < n; i++) kv_gen_cancel(r[i].gen);
    world_finish(&w, r, n);
    for (int i = 0; i < n; i++) request_free(&r[i]);
    world_close(&w);
    return ttft;
}

static void nobody_is_overtaken_for_long(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        for (int n_slots = 1; n_slots <= 3; n_slots++) {
            /* its own prefill takes 640 tokens at a bit more than 1 ms; rounds under way add at most a chunk each */
            double bound = 3000 + 640 * 1.1 + 2 * 80;
            double ttft = long_one_ttft(all_kinds[k], 3000, n_slots, 2048, 2 * bound);
            assert_true(ttft >= 0 && ttft <= bound);
            if (n_slots > 1) assert_true(ttft > 2000); /* it was overtaken before */
            /* Cells for it or for others, not for both: those that run must end first, two prompts at the most. */
            ttft = long_one_ttft(all_kinds[k], 3000, n_slots, 768, 2 * bound);
            assert_true(ttft >= 0 && ttft <= bound + 2 * 70);
        }
        assert_true(long_one_ttft(all_kinds[k], INT32_MAX, 2, 2048, 8000) < 0); /* without the bound it starves */
    }
}

/* ── idle conversations ────────────────────────────────────────────────────────────────────────────────────────── */

/* S29: decode time a token, ms, of one conversation beside n_idle idle ones of 3,000 tokens. */
static double decode_beside(kv_memory_kind kind, int n_idle) {
    enum { IDLE = 6, LENGTH = 3000 };
    world w;
    world_params p = world_defaults(kind);
    p.fake.end_one_in = -1;
    p.fake.cost = (kv_fake_cost){.call_ns = 30000000, .per_token_ns = 1000000, .per_depth_ns = 4000};
    p.fake.n_window = 256;
    p.sched.block = p.sched.chunk = 256;
    p.sched.evict_idle = true;
    p.engine.n_slots = IDLE + 1;
    p.engine.n_batch = p.sched.chunk + p.engine.n_slots;
    p.engine.n_ctx = 32768;
    p.cache_queue = p.cache_ram = (uint64_t)1 << 30;
    world_open(&w, &p);
    request r[IDLE + 1];
    dice d = {29};
    for (int i = 0; i < n_idle; i++) {
        request_init(&r[i], NULL, 0);
        random_tokens(&r[i].prompt, &d, LENGTH);
        r[i].params.n_predict = 1;
        request_submit(&r[i], &w);
        world_finish(&w, &r[i], 1);
    }
    request *running = &r[n_idle];
    request_init(running, NULL, 0);
    random_tokens(&running->prompt, &d, 300);
    running->params.n_predict = 200;
    request_submit(running, &w);
    world_finish(&w, running, 1);
    double ms = running->timings.decode_ms / 199;
    for (int i = 0; i <= n_idle; i++) request_free(&r[i]);
    world_close(&w);
    return ms;
}

static void idle_ones_cost_nothing(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        double empty = decode_beside(all_kinds[k], 0), beside = decode_beside(all_kinds[k], 6);
        print_message("%s: %.2f ms a token, beside six idle ones %.2f, ratio %.3f\n", kv_memory_kind_name(all_kinds[k]),
                      empty, beside, empty / beside);
        assert_true(empty >= 0.97 * beside);
    }
}

/* A first token waits for no chunk, but one that is due in every round does not keep a prompt from going on. */
static void first_tokens_shut_nobody_out(void **state) {
    (void)state;
    enum { CHUNK = 64, CHUNKS = 10, MOST_STEPS = 2 * CHUNKS + 4 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        dice d = {3};
        request longer, shorts[MOST_STEPS];
        int steps = 0;
        world_params p = world_defaults(all_kinds[k]);
        p.fake.cost.per_token_ns = 1000;
        p.sched.block = p.sched.chunk = p.sched.min_chunk = CHUNK;
        p.engine.n_slots = 2;
        p.engine.n_batch = CHUNK + 2;
        p.engine.n_ctx = 4096;
        world_open(&w, &p);
        request_init(&longer, NULL, 0);
        random_tokens(&longer.prompt, &d, CHUNK * CHUNKS);
        longer.params.n_predict = 1;
        request_submit(&longer, &w);
        for (; !longer.answer.len; steps++) {
            assert_true(steps < MOST_STEPS);
            request *r = &shorts[steps];
            request_init(r, NULL, 0);
            random_tokens(&r->prompt, &d, 1);
            r->params.n_predict = 1;
            request_submit(r, &w);
            world_step(&w);
            request_read(&longer);
        }
        assert_true(steps > CHUNKS); /* rounds without a chunk */
        world_finish(&w, shorts, steps);
        for (int i = 0; i < steps; i++) request_free(&shorts[i]);
        request_free(&longer);
        world_close(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stall_bound),
        cmocka_unit_test(a_budget_is_used),
        cmocka_unit_test(two_calls_share_a_budget),
        cmocka_unit_test(alone_in_whole_chunks),
        cmocka_unit_test(shortest_first),
        cmocka_unit_test(nobody_is_overtaken_for_long),
        cmocka_unit_test(idle_ones_cost_nothing),
        cmocka_unit_test(first_tokens_shut_nobody_out),
    };
    return cmocka_run_group_tests_name("sched/time", tests, NULL, NULL);
}
