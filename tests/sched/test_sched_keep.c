/* sched: what was computed is kept, on every kind of memory: retries and hang-ups in the middle of a prompt, one that is
 * led by another, places in the order that change hands, restores beside streams. */
#include "alone.h"
#include "watched.h"

enum { BLOCK = 32, CHUNK = 64, LARGE = 256, LONG = 40000 };

static world_params params(kv_memory_kind kind, int n_slots) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = -1;
    p.sched.block = BLOCK;
    p.sched.chunk = CHUNK;
    p.engine.n_ctx = 16384;
    p.engine.n_slots = n_slots;
    p.engine.n_batch = CHUNK + n_slots;
    p.cache_queue = p.cache_ram = 256 << 20;
    p.cache_read = 16 << 20;
    return p;
}

static kv_sched_stats stats_of(world *w) {
    kv_sched_stats s;
    kv_sched_get_stats(&s, w->sched);
    return s;
}

static uint64_t computed(world *w) {
    return stats_of(w).n_prompt_computed;
}

static void ask(request *r, world *w, const kv_tokens *prompt, dice *d, int own, int n_predict) {
    request_init(r, prompt->data, prompt->len);
    random_tokens(&r->prompt, d, own);
    r->params.n_predict = n_predict;
    request_submit(r, w);
}

static void until_computed(world *w, uint64_t n) {
    for (int steps = 0; computed(w) < n; steps++) {
        assert_true(steps < 100000);
        world_step(w);
    }
}

static void begin_stream(request *r, world *w, dice *d) {
    kv_tokens none = {0};
    ask(r, w, &none, d, 20, 8000);
    while (!r->answer.len) world_step(w), request_read(r);
}

/* As where it ran, but with a slot for itself. */
static void assert_alone(const world_params *where, const request *got) {
    world w;
    world_params p = *where;
    p.engine.n_ctx = (int32_t)(got->prompt.len + got->answer.len) + 2 * LARGE;
    p.engine.n_slots = 1;
    p.sched.n_ctx_served = where->sched.n_ctx_served;
    p.cache_queue = 0;
    p.disk = NULL;
    world_open(&w, &p);
    compare_alone(&w, got);
    world_close(&w);
}

static void at_most(kv_memory_kind kind, const char *what, uint64_t got, uint64_t bound) {
    if (got > bound)
        fail_msg("%s, %s: %llu prompt tokens computed, at most %llu expected", kv_memory_kind_name(kind), what,
                 (unsigned long long)got, (unsigned long long)bound);
}

/* Others take every slot, so that what comes back comes from the cache. */
static void others_come(world *w, dice *d) {
    request r[8];
    kv_tokens none = {0};
    int n = w->sched->n_slots;
    for (int i = 0; i < n; i++) ask(&r[i], w, &none, d, 90, 3);
    world_finish(w, r, n);
    for (int i = 0; i < n; i++) request_free(&r[i]);
}

/* ── retries ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* F14: the same body three times more, in the middle of a prefill: the one before was hung up at once, is hung up a
 * little later, or runs on and each gets an answer of its own. */
enum { AT_ONCE, LATER, NEVER, N_WAYS };

static void retries_in_a_long_prompt(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int way = 0; way < N_WAYS; way++) {
            world w;
            world_params p = params(all_kinds[k], 4);
            dice d = {(uint64_t)(10 * k + way)};
            kv_tokens prompt = {0};
            request r[4];
            p.engine.n_ctx = way == NEVER ? 4 * LONG + 8192 : 2 * LONG;
            p.sched.block = p.sched.chunk = LARGE;
            p.engine.n_batch = LARGE + 4;
            p.fake.n_window = LARGE;
            random_tokens(&prompt, &d, LONG);
            world_open(&w, &p);
            for (int i = 0; i < 4; i++) {
                if (i && way == AT_ONCE) kv_gen_cancel(r[i - 1].gen);
                request_init(&r[i], prompt.data, prompt.len);
                r[i].params.n_predict = 6;
                r[i].temperature = 1;
                r[i].seed = (uint32_t)i;
                request_submit(&r[i], &w);
                if (i && way == LATER) {
                    for (int n = 0; n < 3; n++) world_step(&w);
                    kv_gen_cancel(r[i - 1].gen);
                }
                if (i < 3) until_computed(&w, (uint64_t)(i + 1) * LONG / 4 + 17);
            }
            world_finish(&w, r, 4);
            at_most(all_kinds[k], way == NEVER ? "retries beside" : "retries", computed(&w), LONG + 3 * LARGE);
            world_close(&w);
            for (int i = 0; i < 4; i++) {
                bool hung_up = i < 3 && way != NEVER;
                assert_int_equal(r[i].finish, hung_up ? KV_FINISH_CANCELLED : KV_FINISH_LENGTH);
                if (!hung_up && (way == NEVER || i == 3) && k < 3) assert_alone(&p, &r[i]);
                request_free(&r[i]);
            }
            kv_tokens_free(&prompt);
        }
}

/* A hang-up while stored state is put back, and one where a prompt leaves a conversation: nothing is computed again. */
static void hang_ups_in_what_was_there(void **state) {
    (void)state;
    enum { TALK = 6000 };
    for (int k = 0; k < N_KINDS; k++)
        for (int others = 0; others < 2; others++) {
            world w;
            world_params p = params(all_kinds[k], 2);
            dice d = {(uint64_t)k + 70};
            kv_tokens talk = {0}, half = {0};
            request r;
            p.fake.cost.state_kib_ns = 20000000; /* a slice moves a few blocks */
            random_tokens(&talk, &d, TALK);
            kv_tokens_append(&half, talk.data, TALK / 2);
            world_open(&w, &p);
            ask(&r, &w, &talk, &d, 0, 5);
            world_finish(&w, &r, 1);
            kv_tokens_append(&talk, r.answer.data, r.answer.len);
            request_free(&r);
            if (others) others_come(&w, &d);
            request stream;
            begin_stream(&stream, &w, &d);
            uint64_t before = computed(&w);
            ask(&r, &w, &talk, &d, 10, 5); /* hung up at once, in the queue or while it is put back */
            bool in_one_step = all_kinds[k] == KV_MEMORY_RECURRENT || all_kinds[k] == KV_MEMORY_WHOLE; /* one record */
            bool slowly = others && !in_one_step, restoring = false;
            for (int i = 0; i < (slowly ? 4000 : 3) && !restoring; i++) {
                world_step(&w);
                restoring = w.sched->slots[0].restoring || w.sched->slots[1].restoring;
            }
            assert_int_equal(restoring, slowly);
            kv_gen_cancel(r.gen);
            while (r.finish == KV_FINISH_NONE) world_step(&w), request_read(&r);
            request_free(&r);
            if (slowly) assert_int_equal(computed(&w), before);
            uint64_t after_first = computed(&w);
            ask(&r, &w, &half, &d, 400, 5); /* takes the conversation's slot, and leaves it */
            for (int i = 0; i < 2; i++) world_step(&w);
            kv_gen_cancel(r.gen);
            while (r.finish == KV_FINISH_NONE) world_step(&w), request_read(&r);
            request_free(&r);
            at_most(all_kinds[k], "a branch that was hung up", computed(&w) - after_first, 4 * BLOCK + 2 * CHUNK);
            before = computed(&w);
            ask(&r, &w, &talk, &d, 20, 5);
            while (r.finish == KV_FINISH_NONE) world_step(&w), request_read(&r);
            at_most(all_kinds[k], "after the hang-ups", computed(&w) - before,
                    20 + 1 + 5); /* the answer may be without a place */
            assert_int_equal(r.timings.n_cached + r.timings.n_prompt, r.prompt.len);
            kv_gen_cancel(stream.gen);
            world_finish(&w, &stream, 1);
            world_close(&w);
            assert_alone(&p, &r);
            request_free(&r);
            request_free(&stream);
            kv_tokens_free(&talk);
            kv_tokens_free(&half);
        }
}

static void open_store(rig *disk) {
    kv_error err = {0};
    if (kv_store_open(&disk->store, &disk->cfg, &err) != KV_OK) fail_msg("%s", err.message);
}

/* A hang-up at 93 % keeps 93 %: alone or beside a stream, found in memory after others took the slots, or on disk by the
 * next server. */
static void hang_up_at_93_percent(void **state) {
    (void)state;
    enum { N = 3000, DONE = N * 93 / 100 };
    for (int k = 0; k < N_KINDS; k++)
        for (int way = 0; way < 4; way++) {
            bool streaming = way & 1, restart = way & 2;
            world w;
            rig disk;
            world_params p = params(all_kinds[k], 3);
            dice d = {(uint64_t)k + 170};
            kv_tokens prompt = {0};
            request r, stream = {0};
            random_tokens(&prompt, &d, N);
            world_load(&w, &p);
            if (restart) {
                rig_init(&disk, 64 << 20, 1);
                disk.cfg.now = world_seconds;
                disk.cfg.now_ctx = &w;
                open_store(&disk);
                p.disk = &disk;
            }
            world_start(&w, &p);
            if (streaming) {
                begin_stream(&stream, &w, &d);
            }
            uint64_t before = computed(&w);
            ask(&r, &w, &prompt, &d, 0, 5);
            until_computed(&w, before + DONE);
            uint64_t done = computed(&w) - before;
            kv_gen_cancel(r.gen);
            if (streaming) kv_gen_cancel(stream.gen);
            world_finish(&w, &r, 1);
            request_free(&r);
            if (streaming) {
                world_finish(&w, &stream, 1);
                request_free(&stream);
            }
            if (restart) {
                world_end(&w);
                rig_close(&disk);
                open_store(&disk);
                world_start(&w, &p);
            } else {
                others_come(&w, &d);
            }
            before = computed(&w);
            ask(&r, &w, &prompt, &d, 0, 5);
            world_finish(&w, &r, 1);
            at_most(all_kinds[k], "hung up at 93 %", computed(&w) - before, N - done);
            assert_int_equal(r.timings.n_cached, done);
            assert_int_equal(restart, r.timings.n_cached_disk > 0);
            world_close(&w);
            if (restart) rig_free(&disk);
            assert_alone(&p, &r);
            request_free(&r);
            kv_tokens_free(&prompt);
        }
}

/* A restore on top of a beginning that the slot has still: of the window cells between the two there are none, although
 * there are older ones. Whoever shares more than the beginning does not go on there. */
static void a_window_with_a_hole(void **state) {
    (void)state;
    enum { N = 300 };
    for (int k = 0; k < N_KINDS; k++)
        for (int round = 0; round < 40; round++) {
            world w;
            world_params p = params(all_kinds[k], 1);
            dice d = {(uint64_t)(40 * k + round)};
            kv_tokens talk = {0}, part = {0};
            request r;
            random_tokens(&talk, &d, N);
            p.sched.slot_similarity = 0.01f;
            world_open(&w, &p);
            ask(&r, &w, &talk, &d, 0, 3);
            world_finish(&w, &r, 1);
            request_free(&r);
            others_come(&w, &d);
            kv_tokens_append(&part, talk.data, (size_t)dice_from(&d, 2, 60));
            ask(&r, &w, &part, &d, 0, 0);
            world_finish(&w, &r, 1);
            request_free(&r);
            ask(&r, &w, &talk, &d, 1, 3);
            world_finish(&w, &r, 1);
            assert_true(r.timings.n_cached >= N - 1);
            assert_alone(&p, &r);
            request_free(&r);
            part.len = 0;
            kv_tokens_append(&part, talk.data, (size_t)dice_from(&d, 1, N - 1));
            ask(&r, &w, &part, &d, dice_from(&d, 1, 30), 10);
            world_finish(&w, &r, 1);
            world_close(&w);
            assert_alone(&p, &r);
            request_free(&r);
            kv_tokens_free(&talk);
            kv_tokens_free(&part);
        }
}

/* ── what begins alike ─────────────────────────────────────────────────────────────────────────────────────────── */

/* Whoever begins alike computes it once, in any order of arrival and length, as long as nobody is past it; and when one
 * after the other of those who compute it hang up, the next one goes on where that was. */
static void alike_in_any_order(void **state) {
    (void)state;
    enum { N = 6, SHARED = 700 };
    dice seeds = {testing_seed("alike")};
    for (int k = 0; k < N_KINDS; k++)
        for (int round = 0; round < 12; round++) {
            world w;
            bool hang_up = round % 2;
            dice d = {dice_next(&seeds)};
            world_params p = params(all_kinds[k], dice_from(&d, 1, N));
            kv_tokens shared = {0};
            request r[N];
            int own[N], sum = 0, hung_up = 0;
            random_tokens(&shared, &d, SHARED);
            world_open(&w, &p);
            for (int i = 0; i < N; i++) {
                own[i] = dice_from(&d, 1, 300);
                sum += own[i];
                ask(&r[i], &w, &shared, &d, own[i], 4);
                if (computed(&w) < SHARED - 3 * CHUNK) world_step(&w);
            }
            for (int i = 0; hang_up && i < 3; i++) {
                for (int n = dice_from(&d, 1, 3); n > 0; n--) world_step(&w);
                for (int s = 0; s < w.sched->n_slots; s++) { /* whoever computes it */
                    kv_gen *g = w.sched->slots[s].gen;
                    if (!g || w.sched->slots[s].held.len >= SHARED / BLOCK * BLOCK || atomic_load(&g->cancelled))
                        continue;
                    kv_gen_cancel(g);
                    hung_up++;
                    break;
                }
            }
            world_finish(&w, r, N);
            int answered = 0;
            for (int i = 0; i < N; i++) answered += r[i].finish == KV_FINISH_LENGTH;
            assert_int_equal(answered, N - hung_up);
            at_most(all_kinds[k], hang_up ? "alike, with hang-ups" : "alike", computed(&w),
                    (uint64_t)(SHARED + sum + N * BLOCK));
            world_close(&w);
            for (int i = 0; i < N; i++) {
                assert_alone(&p, &r[i]);
                request_free(&r[i]);
            }
            kv_tokens_free(&shared);
        }
}

/* Eight choices of one prompt, and one of another request with the same prompt that comes in the middle of it. */
static void choices_and_a_late_one(void **state) {
    (void)state;
    enum { N = 8, PROMPT = 600 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k], N);
        dice d = {(uint64_t)k + 3};
        kv_gen *gens[N];
        request r[N + 1];
        kv_tokens prompt = {0};
        kv_error err;
        random_tokens(&prompt, &d, PROMPT);
        world_open(&w, &p);
        for (int i = 0; i <= N; i++) {
            request_init(&r[i], prompt.data, prompt.len);
            r[i].params.n_predict = 20;
            r[i].params.group = i < N ? 7 : 0;
            r[i].seed = (uint32_t)i;
            r[i].temperature = 1;
            if (i == N) break;
            request_make(&r[i], &w, NULL);
            gens[i] = r[i].gen;
        }
        assert_int_equal(kv_sched_submit(w.sched, gens, N, &err), KV_OK);
        until_computed(&w, PROMPT / 2);
        request_submit(&r[N], &w);
        world_finish(&w, r, N + 1);
        /* the prompt once, the last token of each choice, and the late one's open block */
        at_most(all_kinds[k], "eight choices and a late one", computed(&w), PROMPT + N - 1 + BLOCK);
        world_close(&w);
        for (int i = 0; i <= N; i++) {
            assert_alone(&p, &r[i]);
            request_free(&r[i]);
        }
        kv_tokens_free(&prompt);
    }
}

/* Equal prompts of two scopes: each computes all of its own, whoever is ahead, and is told that nothing was cached. */
static void strangers(void **state) {
    (void)state;
    enum { PROMPT = 500 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k], 2);
        dice d = {(uint64_t)k + 5};
        request r[4];
        kv_tokens prompt = {0};
        random_tokens(&prompt, &d, PROMPT);
        world_open(&w, &p);
        for (int i = 0; i < 4; i++) {
            request_init(&r[i], prompt.data, prompt.len);
            r[i].params.n_predict = 4;
            r[i].params.scope = (const char *[]){"", "a", "b", "ab"}[i];
            request_submit(&r[i], &w);
            world_step(&w);
        }
        world_finish(&w, r, 4);
        assert_int_equal(stats_of(&w).n_led, 0);
        assert_int_equal(computed(&w), 4 * PROMPT);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(r[i].timings.n_cached, 0);
            request_free(&r[i]);
        }
        kv_tokens_free(&prompt);
        world_close(&w);
    }
}

/* ── places in the order ───────────────────────────────────────────────────────────────────────────────────────── */

/* A short prompt that waits for what a long one computes does not wait with it for those between. */
static void who_is_led_keeps_its_place(void **state) {
    (void)state;
    enum { SHARED = 512 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k], 4);
        dice d = {(uint64_t)k + 40};
        kv_tokens shared = {0}, none = {0};
        request r[3];
        random_tokens(&shared, &d, SHARED);
        world_open(&w, &p);
        ask(&r[0], &w, &shared, &d, 5000, 1);
        until_computed(&w, CHUNK);
        ask(&r[1], &w, &none, &d, 2000, 1); /* has less left than the first */
        ask(&r[2], &w, &shared, &d, 20, 1); /* has least, and waits for the first */
        world_finish(&w, r, 3);
        assert_true(r[2].first_ms < r[1].first_ms && r[1].first_ms < r[0].first_ms);
        at_most(all_kinds[k], "a led one between others", computed(&w), SHARED + 5000 + 2000 + 20 + BLOCK);
        assert_int_equal(stats_of(&w).n_led, 1);
        world_close(&w);
        for (int i = 0; i < 3; i++) request_free(&r[i]);
        kv_tokens_free(&shared);
    }
}

static double first_at_ms(const request *r) {
    return (double)r->gen->run.submitted_us / 1000 + r->first_ms;
}

/* Every slot has a long prompt in it and a short one comes: it does not wait for one of them to end. Nothing is computed
 * twice for that; where nothing would be kept, it waits. (It came last, and is overtaken by nobody.) */
static void the_last_in_order_gives_way(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int n_slots = 1; n_slots <= 2; n_slots++)
            for (int kept = 0; kept < 3; kept++) { /* without a cache; a request that leaves nothing; all is kept */
                world w;
                world_params p = params(all_kinds[k], n_slots);
                dice d = {(uint64_t)k + 50};
                request r[3];
                if (kept == 0) p.cache_queue = 0;
                world_open(&w, &p);
                for (int i = 0; i < n_slots; i++) {
                    request_init(&r[i], NULL, 0);
                    random_tokens(&r[i].prompt, &d, 3000 + 500 * i);
                    r[i].params.n_predict = 30;
                    r[i].params.cache_prompt = kept != 1;
                    request_submit(&r[i], &w);
                    for (int n = 0; n < 12; n++) world_step(&w);
                }
                request *last = &r[n_slots];
                request_init(last, NULL, 0);
                random_tokens(&last->prompt, &d, 100);
                last->params.n_predict = 3;
                request_submit(last, &w);
                world_finish(&w, r, n_slots + 1);
                uint64_t sum = 0;
                for (int i = 0; i <= n_slots; i++) sum += r[i].prompt.len;
                assert_int_equal(computed(&w), sum);
                bool unstarted = n_slots == 2; /* the longer one waits in its slot, and has computed nothing */
                assert_int_equal(stats_of(&w).n_gave_way, kept == 2 || unstarted ? 1 : 0);
                assert_int_equal(first_at_ms(last) < first_at_ms(&r[0]), kept == 2 || unstarted);
                world_close(&w);
                for (int i = 0; i <= n_slots; i++) {
                    assert_alone(&p, &r[i]);
                    request_free(&r[i]);
                }
            }
}

/* What cannot be had again keeps its slot, but not against one that it has overtaken for max_wait. */
static void who_overtook_gives_way(void **state) {
    (void)state;
    enum { WAIT = 500 };
    static const struct {
        int n_slots, prompt[3], n_predict[3], n_gave_way;
    } cases[] = {
        {1, {300, 3000, 2000}, {1, 1, 1}, 1},  /* the third goes before the second, until that is overdue */
        {2, {5000, 300, 100}, {1, 1, 400}, 0}, /* the third streams; the first has overtaken nobody */
    };
    for (int k = 0; k < N_KINDS; k++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            world w;
            world_params p = params(all_kinds[k], cases[c].n_slots);
            dice d = {(uint64_t)k + 60};
            request r[3];
            kv_tokens none = {0};
            uint64_t sum = 0;
            p.cache_queue = 0;
            p.sched.max_wait_ms = WAIT;
            p.fake.cost = (kv_fake_cost){.per_token_ns = 1000000, .call_ns = 1000000, .slow_factor = 1};
            world_open(&w, &p);
            for (int i = 0; i < 3; i++) {
                ask(&r[i], &w, &none, &d, cases[c].prompt[i], cases[c].n_predict[i]);
                sum += r[i].prompt.len;
                if (i == 0) until_computed(&w, 1);
            }
            world_finish(&w, r, 3);
            assert_int_equal(stats_of(&w).n_gave_way, cases[c].n_gave_way);
            assert_true(r[1].gen->run.overtaken_us >= WAIT * 1000);
            if (cases[c].n_gave_way) {
                assert_true(first_at_ms(&r[1]) < first_at_ms(&r[2]));
                assert_in_range(computed(&w) - sum, 1, WAIT + CHUNK); /* a token takes a ms at least */
            } else {
                assert_true(first_at_ms(&r[0]) < first_at_ms(&r[1]));
                assert_int_equal(computed(&w), sum);
            }
            world_close(&w);
            for (int i = 0; i < 3; i++) {
                assert_alone(&p, &r[i]);
                request_free(&r[i]);
            }
        }
}

/* ── restores beside a stream ──────────────────────────────────────────────────────────────────────────────────── */

/* Three stored conversations come back at once, and an unknown prompt: slices and chunk share the time of a round. */
static void restores_share_the_stall(void **state) {
    (void)state;
    enum { TALKS = 3, TALK = 2000, STALL = 100 };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k], TALKS + 2);
        dice d = {(uint64_t)k + 90};
        request r[TALKS + 1], stream;
        kv_tokens talk[TALKS], none = {0};
        p.sched.max_stall_ms = STALL;
        p.fake.cost.state_kib_ns = 4000000; /* some ms a block */
        world_open(&w, &p);
        for (int i = 0; i < TALKS; i++) {
            talk[i] = (kv_tokens){0};
            random_tokens(&talk[i], &d, TALK);
            ask(&r[i], &w, &talk[i], &d, 0, 2);
            world_finish(&w, &r[i], 1);
            request_free(&r[i]);
        }
        for (int i = 0; i < 2; i++) others_come(&w, &d);
        begin_stream(&stream, &w, &d);
        watch_world(&w);
        uint64_t before = computed(&w);
        for (int i = 0; i < TALKS; i++) ask(&r[i], &w, &talk[i], &d, 100, 2);
        ask(&r[TALKS], &w, &none, &d, 3000, 2);
        int most_restoring = 0;
        for (bool open = true; open;) {
            int restoring = 0;
            watch_step();
            world_step(&w);
            for (int i = 0; i < w.sched->n_slots; i++) restoring += w.sched->slots[i].restoring;
            if (restoring > most_restoring) most_restoring = restoring;
            request_read(&stream);
            open = false;
            for (int i = 0; i <= TALKS; i++) {
                request_read(&r[i]);
                open = open || r[i].finish == KV_FINISH_NONE;
            }
        }
        /* A block that is put is a block, a window part and a state; so is what is taken at an edge. */
        double group_ms = (double)(3 * watched.most_set_once_us + watched.most_get_us) / 1000;
        double bound = STALL + 2 + (8 + TALKS + 2) * 1.0 + group_ms;
        if (stream.longest_gap_ms > bound)
            fail_msg("%s: a gap of %.1f ms beside restores, bound %.1f, of it %.1f for moving state",
                     kv_memory_kind_name(all_kinds[k]), stream.longest_gap_ms, bound, group_ms);
        if (all_kinds[k] != KV_MEMORY_RECURRENT && all_kinds[k] != KV_MEMORY_WHOLE) /* theirs is one record */
            assert_int_equal(most_restoring, TALKS);
        at_most(all_kinds[k], "three restored", computed(&w) - before, 3000 + TALKS * (100 + BLOCK));
        kv_gen_cancel(stream.gen);
        world_finish(&w, &stream, 1);
        world_close(&w);
        request_free(&stream);
        for (int i = 0; i <= TALKS; i++) request_free(&r[i]);
        for (int i = 0; i < TALKS; i++) kv_tokens_free(&talk[i]);
    }
}

/* ── what cannot fit, and what fits only in turn ───────────────────────────────────────────────────────────────── */

static void what_can_never_fit(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = params(all_kinds[k], 2);
        dice d = {(uint64_t)k + 60};
        kv_tokens none = {0};
        kv_error err = {0};
        request running, r;
        p.engine.n_ctx = 1024;
        world_open(&w, &p);
        ask(&running, &w, &none, &d, 500, 100);
        until_computed(&w, 100);
        kv_sched_stats before = stats_of(&w);
        request_init(&r, NULL, 0);
        random_tokens(&r.prompt, &d, 1024);
        request_make(&r, &w, NULL);
        assert_int_equal(kv_sched_submit(w.sched, &r.gen, 1, &err), KV_CONTEXT_FULL);
        assert_int_equal(err.n_prompt_tokens, 1024);
        assert_int_equal(err.n_ctx, 1024);
        assert_non_null(strstr(err.message, "1024"));
        kv_sched_stats after = stats_of(&w);
        assert_int_equal(after.n_waiting, before.n_waiting);
        assert_int_equal(after.n_requests, before.n_requests);
        request_free(&r);
        ask(&r, &w, &none, &d, 1023, 1); /* the longest that fits waits its turn */
        world_finish(&w, &running, 1);
        world_finish(&w, &r, 1);
        assert_int_equal(r.finish, KV_FINISH_LENGTH);
        world_close(&w);
        assert_alone(&p, &running);
        assert_alone(&p, &r);
        request_free(&running);
        request_free(&r);
    }
}

/* S16, with a cache and without. */
static void two_that_overflow_both_finish(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int cached = 0; cached < 2; cached++) {
            world w;
            world_params p = params(all_kinds[k], 2);
            dice d = {(uint64_t)k + 80};
            kv_tokens none = {0};
            request r[2];
            p.engine.n_ctx = 1024;
            if (!cached) p.cache_queue = 0;
            world_open(&w, &p);
            for (int i = 0; i < 2; i++) ask(&r[i], &w, &none, &d, 300, 500);
            world_finish(&w, r, 2);
            kv_sched_stats s = stats_of(&w);
            assert_int_equal(s.n_no_cells, 0);
            if (all_kinds[k] != KV_MEMORY_RECURRENT) assert_true(s.n_preempted > 0);
            /* who comes back computes the open tail at most */
            if (cached) at_most(all_kinds[k], "two that overflow", s.n_prompt_computed, 600 + s.n_preempted * CHUNK);
            world_close(&w);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(r[i].answer.len, 500);
                assert_alone(&p, &r[i]);
                request_free(&r[i]);
            }
        }
}

/* F15: two conversations run, one ends, another one takes its place: never another's state, and what is told of it as
 * cached is what it has in common with something that was computed. */
static void nothing_of_others(void **state) {
    (void)state;
    dice seeds = {testing_seed("others")};
    for (int k = 0; k < N_KINDS; k++)
        for (int round = 0; round < 10; round++) {
            world w;
            dice d = {dice_next(&seeds)};
            world_params p = params(all_kinds[k], 2);
            kv_tokens none = {0};
            request busy[2], r, again;
            if (round % 3 == 0) p.cache_queue = 0;
            world_open(&w, &p);
            ask(&busy[0], &w, &none, &d, dice_from(&d, 1, 400), dice_from(&d, 1, 60));
            ask(&busy[1], &w, &none, &d, dice_from(&d, 1, 400), 600);
            while (busy[0].finish == KV_FINISH_NONE) world_step(&w), request_read(&busy[0]), request_read(&busy[1]);
            assert_int_equal(busy[1].finish, KV_FINISH_NONE);
            int shared = round % 2 ? 0 : dice_from(&d, 0, (int)busy[0].prompt.len);
            request_init(&r, busy[0].prompt.data, (size_t)shared);
            kv_tokens_add(&r.prompt, '#'); /* where it parts */
            random_tokens(&r.prompt, &d, dice_from(&d, 1, 300));
            r.params.n_predict = 30;
            request_submit(&r, &w);
            while (r.finish == KV_FINISH_NONE) world_step(&w), request_read(&r), request_read(&busy[1]);
            assert_true(r.timings.n_cached <= shared);
            if (all_kinds[k] == KV_MEMORY_FULL) /* its slot, or the blocks and the tail in the cache */
                assert_true(r.timings.n_cached == shared || r.timings.n_cached == 0);
            ask(&again, &w, &r.prompt, &d, 0, 30);
            while (again.finish == KV_FINISH_NONE) world_step(&w), request_read(&again), request_read(&busy[1]);
            if (w.cache || kv_memory_has_recurrent(all_kinds[k]) == false) assert_true(again.timings.n_prompt >= 1);
            if (w.cache) assert_int_equal(again.timings.n_prompt, 1);
            kv_gen_cancel(busy[1].gen);
            world_finish(&w, &busy[1], 1);
            world_close(&w);
            const request *all[] = {&busy[0], &busy[1], &r, &again};
            for (int i = 0; i < 4; i++) assert_alone(&p, all[i]);
            for (int i = 0; i < 2; i++) request_free(&busy[i]);
            request_free(&r);
            request_free(&again);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retries_in_a_long_prompt),
        cmocka_unit_test(hang_ups_in_what_was_there),
        cmocka_unit_test(hang_up_at_93_percent),
        cmocka_unit_test(a_window_with_a_hole),
        cmocka_unit_test(alike_in_any_order),
        cmocka_unit_test(choices_and_a_late_one),
        cmocka_unit_test(strangers),
        cmocka_unit_test(who_is_led_keeps_its_place),
        cmocka_unit_test(the_last_in_order_gives_way),
        cmocka_unit_test(who_overtook_gives_way),
        cmocka_unit_test(restores_share_the_stall),
        cmocka_unit_test(what_can_never_fit),
        cmocka_unit_test(two_that_overflow_both_finish),
        cmocka_unit_test(nothing_of_others),
    };
    return cmocka_run_group_tests_name("sched/keep", tests, NULL, NULL);
}
