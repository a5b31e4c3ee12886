/* sched: what it promises about time, in random workloads on the virtual clock, with the costs of a CPU.
 *
 *   a  no token of a stream comes later than max_stall plus one minimum batch after the one before
 *   b  nobody is overtaken for longer than max_wait, plus the batch under way
 *   c  prompts that come together get their first tokens as if computed one after the other, the shortest first
 *   d  beside one stream a newcomer of 1,000 to 20,000 tokens has its first one after at most 1.8 times what it takes alone
 *   e  with recurrent layers a chunk is never a single token where more is left before an edge
 *
 * KVASIR_ROUNDS: workloads, over the kinds of memory. KVASIR_SEED and KVASIR_ROUND replay one.
 */
#include <math.h>
#include <signal.h>

#include "watched.h"

enum { MOST = 8, LONGEST = 20000 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 120 }; /* they are slow */
#else
enum { ROUNDS = 1000 };
#endif
static int round_no;

static int from_env(const char *name, int otherwise) {
    const char *given = getenv(name);
    return given ? atoi(given) : otherwise;
}

/* Small numbers as often as large ones. */
static double log_uniform(dice *d, double lo, double hi) {
    return lo * pow(hi / lo, dice_below(d, 10001) / 10000.0);
}

/* ── the cost model ────────────────────────────────────────────────────────────────────────────────────────────── */

static bool has_two_calls(kv_memory_kind kind) {
    return kv_memory_has_recurrent(kind) || kind == KV_MEMORY_WHOLE;
}

/* From 135M to some 3B parameters: a token of prefill takes 0.3 to 20 ms, a pass over the weights two to five times
 * that (docs/engine.md "Speed on CPU"), and some kernels are many times slower below 64 rows. */
static void cpu_costs(world_params *p, dice *d) {
    kv_fake_cost *c = &p->fake.cost;
    double token_ns = log_uniform(d, 3e5, 2e7);
    *c = (kv_fake_cost){.per_token_ns = (int64_t)token_ns,
                        .call_ns = (int64_t)(token_ns * log_uniform(d, 2, 5)),
                        .per_depth_ns = dice_one_in(d, 3) ? 0 : (int64_t)(token_ns * log_uniform(d, 1e-5, 6e-4)),
                        .slow_factor = 1,
                        .state_kib_ns = (int64_t)log_uniform(d, 50, 2000)};
    p->sched.min_chunk = 16;
    if (!dice_one_in(d, 3)) return;
    p->sched.min_chunk = c->slow_below = 64;
    c->slow_factor = dice_from(d, 2, 8);
}

static world_params bounds_params(kv_memory_kind kind, dice *d) {
    world_params p = world_defaults(kind);
    cpu_costs(&p, d);
    p.fake.end_one_in = -1;
    p.fake.n_window = 128 << dice_below(d, 3);
    p.sched.block = kv_memory_has_window(kind) && p.fake.n_window < 256 ? p.fake.n_window : 256;
    p.sched.chunk = p.sched.block * dice_from(d, 1, 2);
    p.sched.max_stall_ms = dice_from(d, 100, 300);
    p.sched.max_wait_ms = dice_from(d, 500, 20000);
    p.sched.evict_idle = true;
    p.engine.n_slots = dice_from(d, 2, 6);
    p.engine.n_batch = p.sched.chunk + p.engine.n_slots;
    if (!dice_one_in(d, 3)) p.cache_queue = p.cache_ram = (uint64_t)256 << 20;
    return p;
}

static double pass_ms(const kv_fake_cost *c, int32_t n, int32_t depth) {
    double factor = n >= 2 && n < c->slow_below ? c->slow_factor : 1;
    return ((double)c->call_ns + (double)c->per_token_ns * n * factor + (double)c->per_depth_ns * n * depth) / 1e6;
}

/* At most n rows: where few rows are slow, less can take longer. */
static double up_to_ms(const kv_fake_cost *c, int32_t n, int32_t depth) {
    double longest = 0;
    for (int32_t k = 1; k <= n; k++) longest = fmax(longest, pass_ms(c, k, depth));
    return longest;
}

/* One minimum batch: the smallest chunk, or a single token of a rest, beside a token of each slot. */
static double smallest_batch_ms(const world_params *p, int32_t depth) {
    const kv_fake_cost *c = &p->fake.cost;
    int32_t rows = p->sched.min_chunk, tokens = p->engine.n_slots;
    if (!has_two_calls(p->fake.memory)) return fmax(pass_ms(c, rows + tokens, depth), up_to_ms(c, tokens + 1, depth));
    /* A purely recurrent memory passes once for each run of adjacent ids. */
    double decode = up_to_ms(c, tokens, depth);
    if (p->fake.memory == KV_MEMORY_RECURRENT) decode = fmax(decode, tokens * pass_ms(c, 1, depth));
    return pass_ms(c, rows, depth) + decode;
}

/* ── a workload ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct job {
    request r;
    int64_t arrives_us, hangs_up_us; /* INT64_MAX: never */
    bool submitted, hung_up;
    int64_t overtaken_us;
} job;

typedef struct workload {
    dice d;
    world_params p;
    world w;
    job jobs[MOST];
    int n;
    int64_t longest_step_us;
    bool is_replay; /* tell what happens */
} workload;

typedef struct totals {
    uint64_t jobs, cached, gaps, overtaken, gave_way, led, single;
    double worst_gap, worst_wait; /* part of the bound */
} totals;

static uint64_t id_of(const job *j) {
    return j->r.gen->run.id;
}

static void add_job(workload *l, int64_t at_us) {
    dice *d = &l->d;
    job *j = &l->jobs[l->n];
    const job *like = l->n && dice_one_in(d, 3) ? &l->jobs[dice_below(d, l->n)] : NULL;
    int n = (int)log_uniform(d, 4, dice_one_in(d, 8) ? LONGEST : 3000);
    request_init(&j->r, NULL, 0);
    if (like) {
        const kv_tokens *old = &like->r.prompt;
        size_t shared = dice_one_in(d, 3) ? old->len : (size_t)dice_from(d, 1, (int)old->len);
        kv_tokens_append(&j->r.prompt, old->data, shared);
        n = dice_one_in(d, 3) ? 0 : n / 4;
    }
    random_tokens(&j->r.prompt, d, n);
    j->r.params.n_predict = dice_one_in(d, 3) ? 1 : dice_from(d, 2, 80);
    j->r.params.cache_prompt = !dice_one_in(d, 8);
    j->arrives_us = at_us;
    j->hangs_up_us = dice_one_in(d, 7) ? at_us + (int64_t)log_uniform(d, 1e4, 3e7) : INT64_MAX;
    l->n++;
}

static void make_workload(workload *l) {
    dice *d = &l->d;
    int64_t at_us = 1000000, cells = 0;
    int n = dice_from(d, 2, MOST);
    double spread_us = dice_one_in(d, 3) ? 0 : log_uniform(d, 1e4, 2e7);
    while (l->n < n) {
        add_job(l, at_us);
        at_us += (int64_t)(spread_us * dice_below(d, 1000) / 500);
        cells += (int64_t)l->jobs[l->n - 1].r.prompt.len + l->jobs[l->n - 1].r.params.n_predict + 64;
    }
    /* Room for all: who is sent back for want of cells is no matter of order. */
    l->p.engine.n_ctx = (int32_t)(cells + 4096);
}

static int32_t common(const job *a, const job *b) {
    return (int32_t)kv_tokens_common(a->r.prompt.data, a->r.prompt.len, b->r.prompt.data, b->r.prompt.len);
}

static job *job_in(workload *l, kv_seq seq) {
    const kv_gen *g = l->w.sched->slots[seq].gen;
    for (int i = 0; g && i < l->n; i++)
        if (l->jobs[i].r.gen == g) return &l->jobs[i];
    return NULL;
}

/* What waits, could go on, and does not. */
static bool stands_still(const workload *l, const job *j) {
    if (!j->submitted || j->r.finish != KV_FINISH_NONE || j->r.answer.len) return false;
    const kv_run *run = &j->r.gen->run;
    if (run->state == KV_RUN_IN_SLOT) return !l->w.sched->slots[run->slot].restoring;
    return !kv_sched_looks_up(j->r.gen);
}

/* The chunk is of what some request that came no later than `j` begins with, too, and waits for. */
static bool serves_older(const workload *l, const job *j, const job *served, const watched_call *chunk) {
    for (int i = 0; i < l->n; i++) {
        const job *x = &l->jobs[i];
        if (!x->submitted || x->r.finish != KV_FINISH_NONE || x->r.answer.len || id_of(x) > id_of(j)) continue;
        if (x->r.gen->run.leader == id_of(served) && chunk->chunk_pos < common(x, served)) return true;
    }
    return false;
}

/* Everybody who came earlier than the prompt that got the step's chunk, and could have been computed instead. */
static void count_overtaking(workload *l, const watched_call *chunk, int64_t us) {
    job *served = job_in(l, chunk->chunk_seq);
    if (!served) return; /* it hung up in this very step */
    for (int i = 0; i < l->n; i++) {
        job *j = &l->jobs[i];
        if (j == served || !stands_still(l, j) || id_of(j) > id_of(served)) continue;
        if (serves_older(l, j, served, chunk)) continue;
        j->overtaken_us += us;
        if (l->is_replay)
            print_message(
                "%lld: request %d (of %d tokens, slot %d, waits for %llu) overtaken by %d (at %d of %d%s), %lld us "
                "in all; the scheduler says %lld\n",
                (long long)l->w.clock.us, i, (int)j->r.prompt.len, j->r.gen->run.slot,
                (unsigned long long)j->r.gen->run.leader, (int)(served - l->jobs), (int)chunk->chunk_pos,
                (int)served->r.prompt.len, served->r.params.cache_prompt ? "" : ", not cached",
                (long long)j->overtaken_us, (long long)j->r.gen->run.overtaken_us);
    }
}

/* (e) A chunk of one token only where that is all that is left before an edge or the prompt's last token. */
static void check_chunk(workload *l, const watched_call *chunk, totals *t) {
    if (!has_two_calls(l->p.fake.memory)) return;
    assert_false(chunk->has_tokens);
    if (chunk->n_chunk > 1) return;
    const job *j = job_in(l, chunk->chunk_seq);
    kv_pos end = chunk->chunk_pos + 1;
    t->single++;
    if (!j || end % l->p.sched.block == 0 || end == (kv_pos)j->r.gen->n_prompt - 1) return;
    for (int i = 0; i < j->r.gen->n_hints; i++)
        if (j->r.gen->hints[i].position == end) return;
    if (end == (kv_pos)j->r.gen->tokens.len - 1) return;
    fail_msg("a chunk of one token at %d of %d", (int)chunk->chunk_pos, (int)j->r.prompt.len);
}

static bool step(workload *l, totals *t) {
    int64_t start_us = l->w.clock.us;
    for (int i = 0; i < l->n; i++) {
        job *j = &l->jobs[i];
        if (!j->submitted && j->arrives_us <= start_us) {
            request_submit(&j->r, &l->w);
            j->submitted = true;
        }
        if (j->submitted && !j->hung_up && j->hangs_up_us <= start_us) {
            kv_gen_cancel(j->r.gen);
            j->hung_up = true;
        }
    }
    while (l->w.io && kv_io_run_one(l->w.io)) continue;
    watch_step();
    bool did = kv_sched_step(l->w.sched);
    int64_t us = l->w.clock.us - start_us;
    if (us > l->longest_step_us) l->longest_step_us = us;
    const watched_call *chunk = watched_chunk();
    for (int i = 0; l->is_replay && i < watched.n_calls; i++)
        print_message("%lld: call of %d rows, %d of them a prompt's from %d on, %lld us\n", (long long)start_us,
                      (int)watched.calls[i].n_rows, (int)watched.calls[i].n_chunk, (int)watched.calls[i].chunk_pos,
                      (long long)watched.calls[i].us);
    for (int i = 0; i < l->n; i++) request_read(&l->jobs[i].r);
    if (chunk) {
        count_overtaking(l, chunk, us);
        check_chunk(l, chunk, t);
    }
    return did;
}

static void run_workload(workload *l, totals *t) {
    for (int steps = 0;; steps++) {
        assert_true(steps < 1000000); /* no livelock */
        if (steps % 64 == 0) kv_sched_self_check(l->w.sched);
        if (step(l, t) || (l->w.io && kv_io_run_one(l->w.io))) continue;
        int64_t next_us = INT64_MAX;
        for (int i = 0; i < l->n; i++)
            if (!l->jobs[i].submitted && l->jobs[i].arrives_us < next_us) next_us = l->jobs[i].arrives_us;
        if (next_us == INT64_MAX && kv_sched_idle(l->w.sched)) break;
        assert_true(next_us != INT64_MAX);
        l->w.clock.us = next_us;
    }
}

static void judge(workload *l, totals *t) {
    kv_sched_stats s;
    kv_sched_get_stats(&s, l->w.sched);
    assert_int_equal(s.n_preempted + s.n_no_cells + s.n_damaged + s.n_failed + s.n_restore_failed, 0);
    double state_ms = (double)(watched.most_get_us + 3 * watched.most_set_once_us) / 1000;
    double gap = l->p.sched.max_stall_ms + smallest_batch_ms(&l->p, watched.most_depth) + state_ms;
    double wait = l->p.sched.max_wait_ms + (double)l->longest_step_us / 1000;
    for (int i = 0; i < l->n; i++) {
        const job *j = &l->jobs[i];
        double overtaken = (double)j->overtaken_us / 1000;
        assert_int_equal(j->r.finish,
                         j->hung_up && j->r.finish == KV_FINISH_CANCELLED ? KV_FINISH_CANCELLED : KV_FINISH_LENGTH);
        if (j->r.longest_gap_ms > gap)
            fail_msg("%s: a gap of %.2f ms, bound %.2f = %d + %.2f + %.2f for state",
                     kv_memory_kind_name(l->p.fake.memory), j->r.longest_gap_ms, gap, (int)l->p.sched.max_stall_ms,
                     gap - l->p.sched.max_stall_ms - state_ms, state_ms);
        if (overtaken > wait)
            fail_msg("%s: request %d was overtaken for %.0f ms, bound %.0f = %d + %.0f",
                     kv_memory_kind_name(l->p.fake.memory), i, overtaken, wait, (int)l->p.sched.max_wait_ms,
                     wait - l->p.sched.max_wait_ms);
        t->gaps += j->r.answer.len > 1 && j->r.longest_gap_ms > l->p.sched.max_stall_ms / 2.0;
        t->overtaken += overtaken >= l->p.sched.max_wait_ms;
        t->worst_gap = fmax(t->worst_gap, j->r.longest_gap_ms / gap);
        t->worst_wait = fmax(t->worst_wait, overtaken / wait);
    }
    t->jobs += s.n_requests;
    t->cached += s.n_prompt_cached;
    t->gave_way += s.n_gave_way;
    t->led += s.n_led;
}

static void one_round(kv_memory_kind kind, uint64_t seed, bool is_replay, totals *t) {
    static workload l;
    memset(&l, 0, sizeof l);
    l.d.state = seed;
    l.is_replay = is_replay;
    l.p = bounds_params(kind, &l.d);
    make_workload(&l);
    world_open(&l.w, &l.p);
    watch_world(&l.w);
    run_workload(&l, t);
    judge(&l, t);
    world_close(&l.w);
    for (int i = 0; i < l.n; i++) request_free(&l.jobs[i].r);
}

static void random_workloads(void **state) {
    (void)state;
    uint64_t seed = testing_seed("bounds");
    int rounds = from_env("KVASIR_ROUNDS", ROUNDS), only = from_env("KVASIR_ROUND", -1);
    totals t = {0};
    for (round_no = 0; round_no < rounds; round_no++) {
        dice d = {seed + (uint64_t)round_no};
        if (only < 0 || only == round_no) one_round(all_kinds[round_no % N_KINDS], dice_next(&d), only >= 0, &t);
    }
    print_message(
        "%d workloads: %llu requests, %llu prompt tokens cached, %llu led, %llu gave way; gaps: %llu above half "
        "of max_stall, the longest %.3f of its bound; overtaken for max_wait: %llu, the longest %.3f of its "
        "bound; chunks of one token with recurrent layers: %llu\n",
        rounds, (unsigned long long)t.jobs, (unsigned long long)t.cached, (unsigned long long)t.led,
        (unsigned long long)t.gave_way, (unsigned long long)t.gaps, t.worst_gap, (unsigned long long)t.overtaken,
        t.worst_wait, (unsigned long long)t.single);
    if (rounds < 100 || only >= 0) return;
    /* the workloads reach what they are meant to reach */
    assert_true(t.gaps > 0 && t.overtaken > 0 && t.gave_way > 0 && t.led > 0 && t.cached > 0);
    assert_true(t.worst_gap > 0.7 && t.worst_wait > 0.7);
}

/* ── (c) mixed prompts at once ─────────────────────────────────────────────────────────────────────────────────── */

static void open_six(world *w, request *r, world_params *p, const int *lengths, int n, int n_predict) {
    dice d = {77};
    world_open(w, p);
    for (int i = 0; i < n; i++) {
        request_init(&r[i], NULL, 0);
        random_tokens(&r[i].prompt, &d, lengths[i]);
        r[i].params.n_predict = n_predict;
    }
}

static void close_six(world *w, request *r, int n) {
    for (int i = 0; i < n; i++) request_free(&r[i]);
    world_close(w);
}

static void run_all(world *w, request *r, int n) {
    do { /* a look-up takes no time against a batch */
        while (w->io && kv_io_run_one(w->io)) continue;
    } while (world_step(w));
    world_finish(w, r, n);
}

/* Mean time to the first token in ms, all submitted at once. */
static double mean_ttft(world_params *p, const int *lengths, int n, int n_predict) {
    world w;
    request r[MOST];
    double sum = 0;
    open_six(&w, r, p, lengths, n, n_predict);
    for (int i = 0; i < n; i++) request_submit(&r[i], &w);
    run_all(&w, r, n);
    for (int i = 0; i < n; i++) sum += r[i].first_ms;
    close_six(&w, r, n);
    return sum / n;
}

static int by_size(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* The same on a server of the same size where each comes when the one before is through, the shortest first. What that
 * leaves in memory is walked here as there. *all: when all would be through, which is when each has its first token if
 * they are computed as one big batch. Sorts the lengths. */
static double ideal_mean(double *all, world_params *p, int *lengths, int n) {
    world w;
    request r[MOST];
    double sum = 0;
    *all = 0;
    qsort(lengths, (size_t)n, sizeof *lengths, by_size);
    open_six(&w, r, p, lengths, n, 1);
    for (int i = 0; i < n; i++) {
        request_submit(&r[i], &w);
        run_all(&w, &r[i], 1);
        sum += *all += r[i].first_ms;
    }
    close_six(&w, r, n);
    return sum / n;
}

static void mixed_prompts(void **state) {
    (void)state;
    enum { SIX = 6, ROUNDS_A_KIND = 6 };
    dice d = {testing_seed("mixed")};
    for (int k = 0; k < N_KINDS; k++) {
        double worst = 0, of_batch = 0, talking = 0;
        for (int round = 0; round < ROUNDS_A_KIND; round++) {
            world_params p = bounds_params(all_kinds[k], &d);
            int lengths[SIX], sorted[SIX];
            double all;
            p.engine.n_ctx = 32768;
            p.sched.max_wait_ms = 100000000;
            for (int i = 0; i < SIX; i++) sorted[i] = lengths[i] = (int)log_uniform(&d, 300, 3000);
            double ideal = ideal_mean(&all, &p, sorted, SIX), ours = mean_ttft(&p, lengths, SIX, 1);
            worst = fmax(worst, ours / ideal);
            of_batch = fmax(of_batch, ours / all);
            /* those that have their first token go on */
            talking = fmax(talking, mean_ttft(&p, lengths, SIX, 40) / all);
        }
        print_message(
            "%s: six mixed prompts, mean time to first token ÷ ideal order %.3f at most, ÷ one big batch %.3f, "
            "with answers of 40 tokens %.3f\n",
            kv_memory_kind_name(all_kinds[k]), worst, of_batch, talking);
        assert_true(worst <= 1.02);
        assert_true(of_batch <= 0.7);
        assert_true(talking < 1); /* answers that go on beside them cost less than the order saves */
    }
}

/* ── (d) a newcomer beside a stream ────────────────────────────────────────────────────────────────────────────── */

static double newcomer_ttft(world_params *p, int n, bool with_stream, uint64_t seed) {
    world w;
    request r[2];
    dice d = {seed};
    int first = with_stream ? 0 : 1;
    world_open(&w, p);
    for (int i = 0; i < 2; i++) {
        request_init(&r[i], NULL, 0);
        random_tokens(&r[i].prompt, &d, i ? n : 200);
        r[i].params.n_predict = i ? 1 : -1;
    }
    if (with_stream) {
        request_submit(&r[0], &w);
        for (int i = dice_from(&d, 10, 60); i > 0; i--) world_step(&w);
    }
    request_submit(&r[1], &w);
    while (r[1].finish == KV_FINISH_NONE) {
        world_step(&w);
        for (int i = first; i < 2; i++) request_read(&r[i]);
    }
    if (with_stream) {
        assert_int_equal(r[0].finish, KV_FINISH_NONE); /* it went on all the time */
        kv_gen_cancel(r[0].gen);
    }
    world_finish(&w, r + first, 2 - first);
    double ms = r[1].first_ms;
    for (int i = 0; i < 2; i++) request_free(&r[i]);
    world_close(&w);
    return ms;
}

static void a_newcomer(void **state) {
    (void)state;
    dice d = {testing_seed("newcomer")};
    for (int k = 0; k < N_KINDS; k++) {
        double worst = 0;
        for (int round = 0; round < 12; round++) {
            world_params p = bounds_params(all_kinds[k], &d);
            int n = round ? (int)log_uniform(&d, 1000, 8000) : LONGEST;
            uint64_t seed = dice_next(&d);
            p.engine.n_ctx = 65536;
            p.sched.max_stall_ms = 250;
            double alone = newcomer_ttft(&p, n, false, seed), beside = newcomer_ttft(&p, n, true, seed);
            worst = fmax(worst, beside / alone);
            if (beside > 1.8 * alone)
                fail_msg("%s: %d tokens, %.1f ms beside a stream, %.1f alone: %.3f; a call %.2f ms, a token %.2f ms",
                         kv_memory_kind_name(all_kinds[k]), n, beside, alone, beside / alone,
                         (double)p.fake.cost.call_ns / 1e6, (double)p.fake.cost.per_token_ns / 1e6);
        }
        print_message("%s: a newcomer's time to first token beside a stream ÷ alone: %.3f at most\n",
                      kv_memory_kind_name(all_kinds[k]), worst);
    }
}

/* A failed check aborts: say which workload it was. */
static void on_abort(int sig) {
    (void)sig;
    fprintf(stderr, "in workload %d (KVASIR_ROUND=%d replays it)\n", round_no, round_no);
}

static int report_round(void **state) {
    (void)state;
    print_message("last workload: KVASIR_ROUND=%d\n", round_no);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(random_workloads, report_round),
        cmocka_unit_test(mixed_prompts),
        cmocka_unit_test(a_newcomer),
    };
    signal(SIGABRT, on_abort);
    return cmocka_run_group_tests_name("sched/bounds", tests, NULL, NULL);
}
