/* sched, cache and store together, under everything that can happen to a server: conversations that go on, fork, are
 * edited and branch off, hang-ups, preemption, scopes, restarts, kills, power cuts, budgets that change, files and an
 * engine that fail. Each token equals that of the same request alone on an engine of its own; after every step all
 * self-checks hold and what lies in the cache directory is within its budget.
 *
 *   round    one directory and some conversations
 *     session    a process: an engine, a scheduler, a cache, a store, with sizes and budgets of its own
 *       operation    a prompt, a fork, a hang-up, a fault, …; then some steps of the scheduler, each with an I/O job
 *
 * KVASIR_OPS: operations in all, over the kinds of memory. KVASIR_SEED and KVASIR_ROUND replay a round.
 */
#include <signal.h>

#include "../store/watch.h"
#include "alone.h"

enum { MOST = 8, TALKS = 6, SIZES = 2 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OPS = 4000 }; /* they are slow */
#else
enum { OPS = 20000 };
#endif
static const int32_t sizes[SIZES] = {192, 384};
static const char *const scopes[] = {"", "a", "b"};
static int round_no;

static world alone[SIZES], together;
static watch eye;

typedef struct totals {
    uint64_t ops, rounds, sessions, requests, forked, cancelled, errors, refused, preempted, damaged, restarts, kills,
        power_cuts, faults, no_store, smaller, cached, restored, from_disk, computed, restore_failed, written, evicted,
        quarantined, orphans, most_bytes;
} totals;

typedef struct running {
    request *r; /* owned; NULL: free */
    int talk;
} running;

typedef struct soak {
    dice d;
    world *w;
    int size;
    world_params p; /* what stays over a round: block, sizes */
    rig disk;
    watch *watch;
    bool store_is_open, files_failed, engine_failed; /* in this session */
    kv_tokens talks[TALKS];
    int scope_of[TALKS];
    running run[MOST];
    totals *t;
} soak;

/* ── the directory ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void make_disk(soak *k) {
    rig *r = &k->disk;
    rig_init(r, 1 << 20, 1);
    watch_init(k->watch, r, dice_next(&k->d));
    r->cfg.now = world_seconds;
    r->cfg.now_ctx = k->w;
}

static void no_faults(soak *k) {
    kv_files_faulty_fail(k->disk.faulty, KV_CALL_ANY, 0, 0, 0);
    kv_files_faulty_room(k->disk.faulty, UINT64_MAX);
    kv_files_faulty_flip(k->disk.faulty, 0);
    kv_files_faulty_free_space(k->disk.faulty, UINT64_MAX);
    kv_files_faulty_crash_at(k->disk.faulty, 0);
    kv_files_faulty_revive(k->disk.faulty);
}

static void some_fault(soak *k) {
    static const int codes[] = {EIO, EIO, ENOSPC, EMFILE, EROFS, EACCES};
    dice *d = &k->d;
    kv_files_faulty *f = k->disk.faulty;
    switch (dice_below(d, 10)) {
    case 0: kv_files_faulty_room(f, (uint64_t)dice_below(d, 100000)); break;
    case 1: kv_files_faulty_free_space(f, (uint64_t)dice_below(d, 8 << 20)); break;
    case 2:
    case 3: kv_files_faulty_flip(f, (uint64_t)dice_from(d, 1, 60)); break;
    case 4: kv_files_faulty_crash_at(f, (uint64_t)dice_from(d, 1, 200)); break;
    default: {
        kv_files_call call = dice_one_in(d, 2) ? KV_CALL_ANY : (kv_files_call)dice_below(d, KV_CALL_COUNT);
        int times = dice_one_in(d, 4) ? dice_from(d, 1, 1000) : dice_from(d, 1, 4), code = codes[dice_below(d, 6)];
        int nth = dice_from(d, 1, call == KV_CALL_ANY ? 100 : 30);
        kv_files_faulty_fail(f, call, (uint64_t)nth, (uint64_t)times, code);
    }
    }
    k->files_failed = true;
    k->t->faults++;
}

/* What is above the budget since the start, because it could not be removed then, may only become less. After a power
 * cut, which may have brought removed files back, the next opening sees to it. */
static void check_disk(soak *k) {
    if (!k->store_is_open) return;
    rig *r = &k->disk;
    kv_store_stats stats;
    kv_store_check(r->store);
    kv_store_get_stats(&stats, r->store); /* reads the accounts: this too may meet the power cut */
    if (kv_files_faulty_crashed(r->faulty)) return;
    uint64_t there = watch_bytes(k->watch), budget = r->cfg.budget, believed = stats.bytes;
    /* Of an index whose files cannot be measured the last size stands; its next change has room of its own. */
    if (k->files_failed && budget >= KV_STORE_INDEX_MIN) believed += 512 << 10;
    if (there > k->watch->allowed || there > believed) there = watch_bytes(k->watch);
    if (there > k->watch->allowed || there > believed)
        fail_msg("%llu bytes there, %llu believed, %llu allowed", (unsigned long long)there,
                 (unsigned long long)believed, (unsigned long long)k->watch->allowed);
    k->watch->allowed = there > budget ? there : budget;
    if (there > k->t->most_bytes) k->t->most_bytes = there;
}

static void open_store(soak *k) {
    dice *d = &k->d;
    rig *r = &k->disk;
    kv_error err = {0};
    uint64_t before = r->cfg.budget;
    r->cfg.budget = (uint64_t)dice_from(d, 1 << 20, dice_one_in(d, 6) ? 20 << 20 : 2 << 20);
    r->cfg.keep_free = dice_one_in(d, 6) ? 1 << 20 : 0;
    r->cfg.write_max_day = dice_one_in(d, 8) ? 200000 : 0;
    r->cfg.max_age_s = dice_one_in(d, 8) ? 3600 : 0;
    k->t->smaller += r->cfg.budget < before;
    k->watch->allowed = 0;
    k->files_failed = false;
    if (dice_one_in(d, 5)) some_fault(k);
    kv_status status = kv_store_open(&r->store, &r->cfg, &err);
    k->store_is_open = status == KV_OK;
    if (status != KV_OK) { /* a server goes on without */
        if (!k->files_failed) fail_msg("the store does not open: %s", err.message);
        k->t->no_store++;
        no_faults(k);
        return;
    }
    if (kv_files_faulty_crashed(r->faulty)) return;
    if (dice_one_in(d, 2)) no_faults(k);
    watch_begin(k->watch);
    uint64_t there = watch_bytes(k->watch), bad = 0;
    if (there > r->cfg.budget && !k->files_failed)
        fail_msg("%llu bytes there after opening with a budget of %llu", (unsigned long long)there,
                 (unsigned long long)r->cfg.budget);
    k->watch->allowed = there > r->cfg.budget ? there : r->cfg.budget;
    check_disk(k);
    if (k->files_failed) return;
    assert_int_equal(count_files(r->dir, ".tmp"), 0);
    if (!dice_one_in(d, 8)) return;
    kv_store_verify(r->store, false, NULL, NULL, &bad, NULL);
    kv_store_verify(r->store, false, NULL, NULL, &bad, NULL);
    assert_int_equal(bad, 0); /* what was damaged was set aside the first time */
}

/* ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void cut(kv_tokens *t, size_t n) {
    if (t->len > n) t->len = n;
}

/* Goes on, again, edited, branched off, or something new. */
static void next_prompt(soak *k, kv_tokens *out, int talk) {
    dice *d = &k->d;
    size_t most = (size_t)sizes[k->size] - 1;
    const kv_tokens *said = &k->talks[talk], *other = &k->talks[dice_below(d, TALKS)];
    switch (dice_below(d, 8)) {
    case 0: break; /* from the start */
    case 1: kv_tokens_append(out, other->data, other->len); break;
    case 2: /* branch off somewhere */
        kv_tokens_append(out, other->data, (size_t)dice_from(d, 0, (int)other->len));
        break;
    case 3: /* one token is another one */
        kv_tokens_append(out, said->data, said->len);
        if (out->len) out->data[dice_below(d, (int)out->len)] = 'a' + dice_below(d, 26);
        break;
    case 4: /* the same once more */
        kv_tokens_append(out, said->data, said->len);
        cut(out, most);
        if (out->len) return;
        break;
    default: kv_tokens_append(out, said->data, said->len); break;
    }
    random_tokens(out, d, dice_one_in(d, 5) ? dice_from(d, 1, (int)most) : dice_from(d, 1, 30));
    if (out->len > most) out->len = (size_t)dice_from(d, 1, (int)most);
}

static request *make_request(soak *k, const kv_tokens *prompt, int talk) {
    static const char *const words[] = {"e", "th", "ab", "\n", "q", "xyz"};
    dice *d = &k->d;
    request *r = kv_alloc(sizeof *r);
    request_init(r, prompt->data, prompt->len);
    r->temperature = dice_one_in(d, 2) ? 0 : 1.0f;
    r->seed = (uint32_t)dice_below(d, 1000);
    r->params.scope = scopes[dice_one_in(d, 10) ? dice_below(d, 3) : k->scope_of[talk]];
    r->params.n_predict = dice_one_in(d, 8) ? dice_from(d, -1, 100) : dice_from(d, 1, 20);
    r->params.cache_prompt = !dice_one_in(d, 12);
    if (dice_one_in(d, 2)) request_hint(r, d);
    if (dice_one_in(d, 10)) r->params.id_slot = dice_below(d, k->p.engine.n_slots);
    if (dice_one_in(d, 4)) r->stops[0] = words[dice_below(d, 6)];
    return r;
}

static int free_place(const soak *k) {
    for (int i = 0; i < MOST; i++)
        if (!k->run[i].r) return i;
    return -1;
}

/* One request, or n choices of one. */
static void submit_some(soak *k) {
    static uint64_t groups;
    dice *d = &k->d;
    int n = dice_one_in(d, 5) ? dice_from(d, 2, 4) : 1, talk = dice_below(d, TALKS), got = 0, places[4];
    kv_gen *gens[4];
    kv_tokens prompt = {0};
    kv_error err = {0};
    if (n > k->p.engine.n_slots) n = k->p.engine.n_slots;
    next_prompt(k, &prompt, talk);
    groups++;
    for (int i; got < n && (i = free_place(k)) >= 0; got++) {
        request *r = k->run[i].r = make_request(k, &prompt, talk);
        k->run[i].talk = talk;
        r->params.group = n > 1 ? groups : 0;
        request_make(r, k->w, NULL);
        places[got] = i;
        gens[got] = r->gen;
        if (dice_one_in(d, 60)) kv_gen_cancel(r->gen); /* gone before it was queued */
    }
    kv_tokens_free(&prompt);
    kv_status status = got ? kv_sched_submit(k->w->sched, gens, got, &err) : KV_OK;
    k->t->requests += (uint64_t)got;
    if (status == KV_OK) return;
    if (status != KV_BUSY || k->p.sched.max_queue > MOST) fail_msg("%s", err.message);
    for (int i = 0; i < got; i++) {
        request_free(k->run[places[i]].r);
        free(k->run[places[i]].r);
        k->run[places[i]].r = NULL;
    }
    k->t->refused += (uint64_t)got;
}

/* What came to an end is compared, and its conversation has become longer. */
static void harvest(soak *k, bool session_ends) {
    for (int i = 0; i < MOST; i++) {
        request *r = k->run[i].r;
        if (!r) continue;
        request_read(r);
        if (r->finish == KV_FINISH_NONE && !session_ends) continue;
        assert_int_not_equal(r->finish, KV_FINISH_NONE);
        if (r->finish == KV_FINISH_ERROR && !session_ends) {
            if (!k->engine_failed) fail_msg("a request failed, though only files did: %s", r->error.message);
            k->t->errors++;
        }
        compare_alone(&alone[k->size], r);
        k->t->cancelled += r->finish == KV_FINISH_CANCELLED;
        k->t->from_disk += (uint64_t)r->timings.n_cached_disk;
        kv_tokens *said = &k->talks[k->run[i].talk];
        said->len = 0;
        kv_tokens_append(said, r->prompt.data, r->prompt.len);
        kv_tokens_append(said, r->answer.data, r->answer.len);
        request_free(r);
        free(r);
        k->run[i].r = NULL;
    }
}

/* ── a session ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void engine_trouble(soak *k) {
    dice *d = &k->d;
    trouble *t = &k->w->trouble;
    bool any = dice_one_in(d, 2);
    t->d.state = dice_next(d);
    t->damage_one_in = any ? dice_from(d, 15, 60) : 0;
    t->no_cells_one_in = any && dice_one_in(d, 2) ? dice_from(d, 10, 60) : 0;
    t->refuse_one_in = any && dice_one_in(d, 3) ? dice_from(d, 15, 60) : 0;
    k->engine_failed = k->engine_failed || any;
}

static void operate(soak *k) {
    dice *d = &k->d;
    k->t->ops++;
    switch (dice_below(d, 20)) {
    case 0:
    case 1: {
        request *r = k->run[dice_below(d, MOST)].r;
        if (r) kv_gen_cancel(r->gen);
        break;
    }
    case 2: kv_sched_erase_slot(k->w->sched, dice_below(d, k->p.engine.n_slots), NULL, NULL); break;
    case 3: some_fault(k); break;
    case 4:
        if (!kv_files_faulty_crashed(k->disk.faulty)) no_faults(k);
        break;
    case 5: k->w->disk_is_slow = dice_one_in(d, 2) ? 1 : dice_from(d, 2, 60); break;
    case 6: k->w->clock.us += (int64_t)dice_below(d, dice_one_in(d, 5) ? 100000 : 100) * 1000000; break;
    case 7: engine_trouble(k); break;
    default: submit_some(k); break;
    }
}

/* Calls that make files larger or more, so far. */
static uint64_t changes(soak *k) {
    static const kv_files_call calls[] = {KV_CALL_WRITE, KV_CALL_RENAME, KV_CALL_REMOVE, KV_CALL_MAKE_DIR,
                                          KV_CALL_LOCK};
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) n += kv_files_faulty_count(k->disk.faulty, calls[i]);
    return n;
}

static void step(soak *k) {
    uint64_t before = changes(k);
    world_step(k->w);
    if (k->w->ran_io) kv_cache_self_check(k->w->cache);
    if (k->w->ran_io && k->store_is_open) kv_store_check(k->disk.store);
    if (changes(k) != before) check_disk(k);
    harvest(k, false);
}

/* Sizes that may differ from one process to the next. */
static void session_params(soak *k) {
    dice *d = &k->d;
    world_params *p = &k->p;
    p->engine.n_slots = dice_from(d, 1, 6);
    p->engine.n_batch = dice_from(d, p->engine.n_slots + 1, 96 + p->engine.n_slots);
    p->sched.chunk = p->sched.block * dice_from(d, 1, 2);
    p->sched.min_chunk = 1 << dice_from(d, 2, 5);
    p->sched.max_stall_ms = dice_from(d, 5, 200);
    p->sched.max_wait_ms = dice_one_in(d, 3) ? dice_below(d, 500) : 10000;
    p->sched.max_queue = dice_one_in(d, 5) ? dice_below(d, 4) : 256;
    p->cache_queue = (uint64_t)1 << dice_from(d, 12, 21);
    p->cache_ram = dice_one_in(d, 2) ? 0 : (uint64_t)1 << dice_from(d, 12, 19);
    p->path_bytes = dice_one_in(d, 2) ? 0 : (uint64_t)1 << dice_from(d, 8, 14);
    p->sched.evict_idle = dice_one_in(d, 2);
    p->cache_read = (uint64_t)1 << (dice_one_in(d, 5) ? dice_from(d, 12, 15) : dice_from(d, 15, 20));
    p->io_seed = dice_one_in(d, 2) ? dice_next(d) | 1 : 0;
    p->disk = k->store_is_open ? &k->disk : NULL;
    k->w->disk_is_slow = dice_one_in(d, 2) ? 1 : dice_from(d, 2, 40);
}

static void count(soak *k) {
    kv_sched_stats s;
    kv_cache_stats c;
    totals *t = k->t;
    kv_sched_get_stats(&s, k->w->sched);
    kv_cache_get_stats(&c, k->w->cache);
    if (!k->engine_failed) assert_int_equal(s.n_no_cells + s.n_damaged + s.n_failed, 0); /* cells were counted right */
    t->sessions++;
    t->preempted += s.n_preempted;
    t->damaged += s.n_damaged;
    t->forked += s.n_forked;
    t->cached += s.n_prompt_cached;
    t->restored += s.n_prompt_restored;
    t->computed += s.n_prompt_computed;
    t->restore_failed += s.n_restore_failed;
    t->written += c.n_written;
    t->orphans += c.n_orphans;
    if (!k->store_is_open) return;
    kv_store_stats store;
    kv_store_get_stats(&store, k->disk.store);
    t->evicted += store.n_evicted;
    t->quarantined += store.n_quarantined;
}

/* The process ends in one of four ways. */
static void end_session(soak *k) {
    dice *d = &k->d;
    kv_files_faulty *f = k->disk.faulty;
    bool flush = false;
    count(k);
    switch (dice_below(d, 4)) {
    case 0: /* killed: nothing more is written */
        kv_files_faulty_fail(f, KV_CALL_ANY, 1, UINT64_MAX / 2, EIO);
        k->t->kills++;
        break;
    case 1:
        kv_files_faulty_crash(f, dice_one_in(d, 2));
        k->t->power_cuts++;
        break;
    case 2: flush = true; /* fall through */
    default: k->t->restarts++; break;
    }
    world_end_with(k->w, flush);
    harvest(k, true);
    check_disk(k);
    if (k->store_is_open) rig_close(&k->disk);
    assert_int_equal(kv_files_faulty_open_files(f), 0);
    k->store_is_open = false;
    k->watch->allowed = 0;
    no_faults(k);
}

static void run_session(soak *k, int ops) {
    dice *d = &k->d;
    open_store(k);
    session_params(k);
    k->engine_failed = false;
    memset(&k->w->trouble, 0, sizeof k->w->trouble);
    if (dice_one_in(d, 4)) engine_trouble(k);
    world_start(k->w, &k->p);
    for (int i = 0; i < ops; i++) {
        operate(k);
        for (int n = dice_one_in(d, 12) ? 400 : dice_below(d, 24); n > 0; n--) step(k);
    }
    if (dice_one_in(d, 2)) /* all answers are over, and what they left is on its way to the disk */
        for (int n = 0; n < 100000 && !kv_sched_idle(k->w->sched); n++) step(k);
    end_session(k);
}

static world_params kind_params(kv_memory_kind kind) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = 100;
    p.fake.cost.per_depth_ns = 500;
    p.fake.bytes_per_cell = 200;
    p.fake.bytes_per_window_cell = 100;
    p.fake.bytes_recurrent = 3000;
    return p;
}

static void run_round(kv_memory_kind kind, uint64_t seed, totals *t) {
    soak k = {.d = {seed}, .w = &together, .p = kind_params(kind), .watch = &eye, .t = t};
    dice *d = &k.d;
    k.size = dice_below(d, SIZES);
    k.p.engine.n_ctx = sizes[k.size];
    k.p.sched.block = 1 << dice_from(d, 4, kv_memory_has_window(kind) ? 5 : 6);
    k.w->clock.us = 1000000;
    make_disk(&k);
    for (int i = 0; i < TALKS; i++) {
        k.scope_of[i] = dice_one_in(d, 2) ? 0 : dice_below(d, 3);
        random_tokens(&k.talks[i], d, dice_below(d, 60));
    }
    for (int n = dice_from(d, 2, 6); n > 0; n--) run_session(&k, dice_from(d, 5, 50));
    for (int i = 0; i < TALKS; i++) kv_tokens_free(&k.talks[i]);
    rig_free(&k.disk);
    watch_forget(k.watch);
    t->rounds++;
}

/* ── all kinds ─────────────────────────────────────────────────────────────────────────────────────────────────── */

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

static void tell(const char *kind, const totals *t) {
#define N(x) (unsigned long long)t->x
    print_message(
        "%s: %llu operations in %llu rounds, %llu sessions; %llu requests, %llu forked, %llu hung up, %llu "
        "failed, %llu refused, %llu preempted, %llu calls damaged\n"
        "  %llu restarts, %llu kills, %llu power cuts, %llu file faults, %llu sessions without a store, %llu "
        "with a smaller budget\n"
        "  prompt tokens: %llu cached, %llu of them restored (%llu from disk), %llu computed; %llu restores "
        "failed\n"
        "  records: %llu written, %llu evicted, %llu set aside, %llu orphans; most bytes in a directory %llu\n",
        kind, N(ops), N(rounds), N(sessions), N(requests), N(forked), N(cancelled), N(errors), N(refused), N(preempted),
        N(damaged), N(restarts), N(kills), N(power_cuts), N(faults), N(no_store), N(smaller), N(cached), N(restored),
        N(from_disk), N(computed), N(restore_failed), N(written), N(evicted), N(quarantined), N(orphans),
        N(most_bytes));
#undef N
}

static uint64_t from_env(const char *name, uint64_t otherwise) {
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 10) : otherwise;
}

static void soaks(void **state) {
    kv_memory_kind kind = *(kv_memory_kind *)*state;
    uint64_t seed = testing_seed(kv_memory_kind_name(kind)),
             ops = (from_env("KVASIR_OPS", OPS) + N_KINDS - 1) / N_KINDS;
    uint64_t only = from_env("KVASIR_ROUND", UINT64_MAX);
    totals t = {0};
    open_worlds(kind);
    for (uint64_t i = only == UINT64_MAX ? 0 : only; t.ops < ops; i++) {
        dice d = {seed + i};
        round_no = (int)i;
        run_round(kind, dice_next(&d), &t);
        if (only != UINT64_MAX) break;
    }
    close_worlds();
    tell(kv_memory_kind_name(kind), &t);
    if (t.ops < 2000) return;
    /* the workload reaches what it is meant to reach */
    assert_true(t.forked > 0 && t.cancelled > 0 && t.preempted > 0 && t.damaged > 0 && t.refused > 0);
    assert_true(t.restarts > 0 && t.kills > 0 && t.power_cuts > 0 && t.smaller > 0);
    assert_true(t.no_store > 0 || t.sessions < 1000); /* one in twenty: a short run may well have none */
    assert_true(t.restored > 0 && t.from_disk > 0 && t.restore_failed > 0);
    assert_true(t.written > 0 && t.evicted > 0 && t.quarantined > 0);
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
        tests[i] = (struct CMUnitTest){kv_memory_kind_name(kinds[i]), soaks, NULL, report_round, &kinds[i]};
    signal(SIGABRT, on_abort);
    /* In memory it is three times as fast, and blocks are not delayed, so that a seed replays to the byte. */
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    return cmocka_run_group_tests_name("sched/soak", tests, NULL, NULL);
}
