/* sched: random workloads on every kind of memory. Whatever else runs, is cancelled, is preempted or breaks: each
 * answer equals, token by token, that of the same request alone on an engine of its own. */
#include <signal.h>

#include "alone.h"

enum { MOST = 8, SIZES = 3 };
static const int32_t sizes[SIZES] = {256, 512, 1024};
static int round_no;

/* Where requests run alone: one slot, nothing reused, nothing goes wrong. And where they run together: its model is
 * loaded once, engine and scheduler are new in each round. */
static world alone[SIZES], together;

static world_params kind_params(kv_memory_kind kind) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = 150;
    p.fake.cost.per_depth_ns = 500;
    return p;
}

static void open_worlds(kv_memory_kind kind) {
    world_params p = kind_params(kind);
    world_load(&together, &p);
    for (int i = 0; i < SIZES; i++) {
        p = kind_params(kind);
        p.engine.n_ctx = sizes[i];
        p.engine.n_slots = 1;
        p.engine.n_batch = 65;
        world_open(&alone[i], &p);
    }
}

static void close_worlds(void) {
    for (int i = 0; i < SIZES; i++) world_close(&alone[i]);
    kv_model_free(together.model);
}

/* ── a workload ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct workload {
    dice d;
    world *w;
    int32_t n_ctx;
    int n_slots;
    bool tight;             /* few cells, long answers */
    kv_tokens documents[3]; /* what prompts begin with, so that they share prefixes */
    request r[MOST];
    int n, n_submitted;
    int cancel_at[MOST]; /* step; -1 = never */
} workload;

static void random_prompt(workload *l, kv_tokens *out) {
    dice *d = &l->d;
    int most = l->n_ctx - 1;
    const request *before = l->n ? &l->r[dice_below(d, l->n)] : NULL;
    if (before && before->gen && dice_one_in(d, 3)) { /* goes on with a conversation */
        kv_tokens_append(out, before->prompt.data, before->prompt.len);
        kv_tokens_append(out, before->answer.data, before->answer.len);
    } else if (!dice_one_in(d, 4)) {
        const kv_tokens *doc = &l->documents[dice_below(d, 3)];
        kv_tokens_append(out, doc->data, (size_t)dice_from(d, 0, (int)doc->len));
    }
    bool is_long = dice_one_in(d, l->tight ? 20 : 6);
    if (!before || !dice_one_in(d, 8)) random_tokens(out, d, dice_from(d, 1, is_long ? most : 40));
    if (!out->len) random_tokens(out, d, 1);
    if (out->len > (size_t)most) out->len = (size_t)dice_from(d, most / 2, most);
}

static void random_request(workload *l, request *r) {
    dice *d = &l->d;
    static const char *const words[] = {"e", "th", "ab", "\n", "q", "xyz"};
    kv_tokens prompt = {0};
    random_prompt(l, &prompt);
    request_init(r, prompt.data, prompt.len);
    kv_tokens_free(&prompt);
    r->temperature = dice_one_in(d, 3) ? 0 : dice_one_in(d, 2) ? 0.8f : 2.0f;
    r->seed = (uint32_t)dice_below(d, 1000);
    r->params.n_predict = l->tight ? dice_from(d, 20, 200) : dice_from(d, 1, 20);
    if (dice_one_in(d, 10)) r->params.n_predict = dice_from(d, -1, 0);
    r->params.cache_prompt = !dice_one_in(d, 6);
    if (dice_one_in(d, 2)) request_hint(r, d);
    r->params.n_probs = dice_one_in(d, 5) ? dice_from(d, 1, 5) : 0;
    r->params.post_sampling_probs = dice_one_in(d, 2);
    if (dice_one_in(d, 8)) r->params.id_slot = dice_below(d, l->n_slots);
    if (dice_one_in(d, 12)) r->params.n_indent = dice_from(d, 1, 3);
    for (int i = 0; dice_one_in(d, 4) && i < 3; i++) r->stops[i] = words[dice_below(d, 6)];
}

/* One request, or n choices of one. False when the queue was full. */
static void submit_some(workload *l) {
    dice *d = &l->d;
    int room = MOST - l->n, n = dice_one_in(d, 4) ? dice_from(d, 2, 4) : 1;
    if (n > room) n = room;
    if (n > l->n_slots) n = l->n_slots;
    kv_gen *gens[MOST];
    bool same = !dice_one_in(d, 4);
    uint64_t group = n > 1 ? (uint64_t)l->n + 1 : 0;
    for (int i = 0; i < n; i++) {
        request *r = &l->r[l->n + i];
        random_request(l, r);
        if (i && same) {
            r->prompt.len = 0;
            kv_tokens_append(&r->prompt, l->r[l->n].prompt.data, l->r[l->n].prompt.len);
        }
        r->params.group = group;
        l->cancel_at[l->n + i] = dice_one_in(d, 5) ? dice_below(d, 60) : -1;
    }
    for (int i = 0; i < n; i++) {
        request_make(&l->r[l->n + i], l->w, NULL);
        gens[i] = l->r[l->n + i].gen;
        if (dice_one_in(d, 40)) kv_gen_cancel(gens[i]); /* gone before it was queued */
    }
    kv_error err = {0};
    if (kv_sched_submit(l->w->sched, gens, n, &err) != KV_OK) fail_msg("%s", err.message);
    l->n += n;
}

static void random_trouble(dice *d, trouble *t) {
    t->d.state = dice_next(d);
    t->always = KV_OK;
    t->damage_one_in = dice_one_in(d, 4) ? dice_from(d, 15, 60) : 0;
    t->no_cells_one_in = dice_one_in(d, 6) ? dice_from(d, 10, 60) : 0;
    t->refuse_one_in = dice_one_in(d, 12) ? dice_from(d, 15, 60) : 0;
    t->nan_one_in = dice_one_in(d, 8) ? dice_from(d, 20, 200) : 0;
}

static void run_workload(workload *l) {
    dice *d = &l->d;
    int pause = 0;
    for (int step = 0; l->n < MOST || !kv_sched_idle(l->w->sched); step++) {
        assert_true(step < 200000); /* no livelock */
        while (l->n < MOST && pause-- <= 0) {
            submit_some(l);
            pause = dice_one_in(d, 2) ? 0 : dice_one_in(d, 6) && !l->tight ? 200 : dice_from(d, 1, 12);
        }
        if (!world_step(l->w)) pause = 0;
        if (dice_one_in(d, 16)) kv_fake_check(l->w->engine);
        if (dice_one_in(d, 50)) kv_sched_erase_slot(l->w->sched, dice_below(d, l->n_slots), NULL, NULL);
        for (int i = 0; i < l->n; i++) {
            if (dice_one_in(d, 2)) request_read(&l->r[i]);
            if (l->cancel_at[i] >= 0 && l->cancel_at[i]-- == 0) kv_gen_cancel(l->r[i].gen);
        }
    }
    for (int i = 0; i < l->n; i++) request_read(&l->r[i]);
}

typedef struct totals {
    uint64_t requests, preempted, preempted_in_peace, cancelled, errors, damaged, no_cells, forked, cached, restored,
        computed;
} totals;

static void count(totals *t, const workload *l) {
    kv_sched_stats s;
    bool trouble = l->w->trouble.damage_one_in || l->w->trouble.no_cells_one_in || l->w->trouble.refuse_one_in ||
                   l->w->trouble.nan_one_in;
    kv_sched_get_stats(&s, l->w->sched);
    assert_int_equal(s.n_processing + s.n_waiting, 0);
    if (!trouble) assert_int_equal(s.n_no_cells + s.n_damaged + s.n_failed, 0); /* cells were counted right */
    t->requests += s.n_requests;
    t->preempted += s.n_preempted;
    if (!trouble) t->preempted_in_peace += s.n_preempted;
    t->damaged += s.n_damaged;
    t->no_cells += s.n_no_cells;
    t->forked += s.n_forked;
    t->cached += s.n_prompt_cached;
    t->restored += s.n_prompt_restored;
    t->computed += s.n_prompt_computed;
    for (int i = 0; i < l->n; i++) {
        t->cancelled += l->r[i].finish == KV_FINISH_CANCELLED;
        if (l->r[i].finish != KV_FINISH_ERROR) continue;
        assert_true(trouble); /* nobody gets an error for lack of cells */
        t->errors++;
    }
}

static void one_round(kv_memory_kind kind, uint64_t seed, totals *t) {
    workload l = {.d = {seed}, .w = &together};
    dice *d = &l.d;
    l.tight = dice_one_in(d, 4);
    int size = l.tight ? 0 : dice_below(d, SIZES);
    world_params p = kind_params(kind);
    l.n_ctx = p.engine.n_ctx = sizes[size];
    l.n_slots = p.engine.n_slots = dice_one_in(d, 2) ? 8 : dice_from(d, l.tight ? 4 : 1, 8);
    p.engine.n_batch = dice_from(d, l.n_slots + 1, 128 + l.n_slots);
    p.sched.block = 1 << dice_from(d, 4, 6);
    p.sched.chunk = p.sched.block * dice_from(d, 1, 2);
    p.sched.min_chunk = 1 << dice_from(d, 2, 5);
    p.sched.max_stall_ms = dice_from(d, 5, 200);
    p.sched.max_wait_ms = dice_one_in(d, 3) ? dice_below(d, 500) : 10000;
    p.sched.slot_similarity = dice_one_in(d, 4) ? 0 : 0.1f;
    random_trouble(d, &l.w->trouble);
    if (dice_one_in(d, 2)) { /* with a cache, often a small one */
        if (kv_memory_has_window(kind) && p.sched.block > p.fake.n_window) p.sched.block = p.sched.chunk = 32;
        p.cache_queue = (uint64_t)1 << dice_from(d, 14, 22);
        p.cache_ram = (uint64_t)1 << dice_from(d, 14, 24);
        p.path_bytes = dice_one_in(d, 2) ? 0 : (uint64_t)1 << dice_from(d, 8, 16);
        p.sched.evict_idle = dice_one_in(d, 2);
        p.io_seed = dice_one_in(d, 2) ? dice_next(d) | 1 : 0;
    }
    for (int i = 0; i < 3; i++) random_tokens(&l.documents[i], d, dice_from(d, 1, l.tight ? 40 : l.n_ctx / 2));
    world_start(l.w, &p);
    run_workload(&l);
    count(t, &l);
    for (int i = 0; i < l.n; i++) {
        compare_alone(&alone[size], &l.r[i]);
        request_free(&l.r[i]);
    }
    for (int i = 0; i < 3; i++) kv_tokens_free(&l.documents[i]);
    world_end(l.w);
}

static int from_env(const char *name, int otherwise) {
    const char *given = getenv(name);
    return given ? atoi(given) : otherwise;
}

/* KVASIR_ROUNDS: how many in all, over the kinds. KVASIR_ROUND: only this one of each kind (to replay a failure). */
static void equals_alone(void **state) {
    kv_memory_kind kind = *(kv_memory_kind *)*state;
    uint64_t seed = testing_seed(kv_memory_kind_name(kind));
    int rounds = (from_env("KVASIR_ROUNDS", 5000) + N_KINDS - 1) / N_KINDS, only = from_env("KVASIR_ROUND", -1);
    totals t = {0};
    open_worlds(kind);
    for (int i = 0; i < rounds; i++) {
        dice d = {seed + (uint64_t)i};
        round_no = i;
        if (only < 0 || only == i) one_round(kind, dice_next(&d), &t);
    }
    close_worlds();
    print_message(
        "%s: %d rounds, %llu requests, %llu preempted (%llu for lack of cells alone), %llu cancelled,\n"
        "  %llu errors, %llu damaged, %llu without cells, %llu forked, prompt tokens: %llu cached, %llu of them "
        "restored, %llu computed\n",
        kv_memory_kind_name(kind), rounds, (unsigned long long)t.requests, (unsigned long long)t.preempted,
        (unsigned long long)t.preempted_in_peace, (unsigned long long)t.cancelled, (unsigned long long)t.errors,
        (unsigned long long)t.damaged, (unsigned long long)t.no_cells, (unsigned long long)t.forked,
        (unsigned long long)t.cached, (unsigned long long)t.restored, (unsigned long long)t.computed);
    if (rounds < 100 || only >= 0) return;
    /* the workload reaches what it is meant to reach */
    assert_true(t.cancelled > 0 && t.damaged > 0 && t.no_cells > 0 && t.forked > 0 && t.cached > 0 && t.restored > 0);
    assert_true(t.preempted > 0);
    assert_true(t.preempted_in_peace > 0 || kind == KV_MEMORY_RECURRENT);
    assert_true(t.errors * 50 < t.requests);
}

static int report_round(void **state) {
    (void)state;
    print_message("last round: KVASIR_ROUND=%d\n", round_no);
    return 0;
}

/* A failed check aborts: say which round it was. */
static void on_abort(int sig) {
    (void)sig;
    fprintf(stderr, "in round %d (KVASIR_ROUND=%d replays it)\n", round_no, round_no);
}

int main(void) {
    static kv_memory_kind kinds[N_KINDS];
    struct CMUnitTest tests[N_KINDS];
    memcpy(kinds, all_kinds, sizeof kinds);
    for (int i = 0; i < N_KINDS; i++)
        tests[i] = (struct CMUnitTest){kv_memory_kind_name(kinds[i]), equals_alone, NULL, report_round, &kinds[i]};
    signal(SIGABRT, on_abort);
    return cmocka_run_group_tests_name("sched/random", tests, NULL, NULL);
}
