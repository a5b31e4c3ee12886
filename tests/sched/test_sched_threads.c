/* sched on real threads: many submit, read, cancel, erase and look while one runs the rounds. For TSan; and each
 * answer still equals the model's own. */
#include <pthread.h>
#include <stdatomic.h>

#include "testing.h"

#include "engine/engine_fake.h"
#include "sched/sched.h"

enum { CLIENTS = 6, REQUESTS = 40 };

typedef struct shared {
    kv_model *model;
    kv_sched *sched;
    uint64_t seed;
    _Atomic int n_done, n_busy, n_wrong;
} shared;

typedef struct client {
    shared *shared;
    int number;
    pthread_mutex_t mutex; /* a wake may not call back, but it may signal */
    pthread_cond_t cond;
    bool woken;
} client;

static void wake(void *ctx) {
    client *c = ctx;
    pthread_mutex_lock(&c->mutex);
    c->woken = true;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
}

static void wait_woken(client *c) {
    pthread_mutex_lock(&c->mutex);
    while (!c->woken) pthread_cond_wait(&c->cond, &c->mutex);
    c->woken = false;
    pthread_mutex_unlock(&c->mutex);
}

static kv_gen *make(client *c, dice *d, kv_tokens *prompt) {
    kv_sampling sampling;
    kv_sampling_defaults(&sampling);
    sampling.temperature = 0;
    kv_gen_params p = {.cache_prompt = true, .id_slot = -1, .wake = wake, .wake_ctx = c};
    p.n_predict = dice_from(d, 0, 20);
    if (p.n_predict && kv_sampler_new(&p.sampler, c->shared->model, &sampling, NULL, NULL) != KV_OK) return NULL;
    p.prompt = prompt->data;
    p.n_prompt = prompt->len;
    return kv_gen_new(&p);
}

/* Reads to the end; true when every token was right. */
static bool read_all(client *c, dice *d, kv_gen *g, const kv_tokens *prompt) {
    kv_tokens expect = {0};
    size_t at = 0;
    bool right = true, done = false;
    int cancel_after = dice_one_in(d, 4) ? dice_below(d, 10) : -1;
    kv_fake_reference_greedy(&expect, c->shared->model, prompt->data, prompt->len, 20);
    while (!done) {
        kv_gen_event e;
        if (!kv_gen_next(&e, g)) {
            wait_woken(c);
            continue;
        }
        if (cancel_after-- == 0) kv_gen_cancel(g);
        if (e.kind == KV_EVENT_TOKEN) {
            right = right && at < expect.len && e.token == expect.data[at];
            at++;
        }
        done = e.kind == KV_EVENT_DONE;
        kv_gen_event_free(&e);
    }
    kv_tokens_free(&expect);
    return right;
}

static void *run_client(void *arg) {
    client *c = arg;
    shared *s = c->shared;
    dice d = {s->seed + (uint64_t)c->number};
    for (int i = 0; i < REQUESTS; i++) {
        kv_tokens prompt = {0};
        for (int k = dice_from(&d, 1, 60); k > 0; k--) kv_tokens_add(&prompt, 'a' + dice_below(&d, 4));
        kv_gen *g = make(c, &d, &prompt);
        kv_status status = g ? kv_sched_submit(s->sched, &g, 1, NULL) : KV_INTERNAL;
        if (status == KV_OK) {
            if (dice_one_in(&d, 10)) { /* a reader that just goes away */
                kv_gen_cancel(g);
                kv_gen_detach(g);
                atomic_fetch_add(&s->n_done, 1);
            } else {
                if (!read_all(c, &d, g, &prompt)) atomic_fetch_add(&s->n_wrong, 1);
                atomic_fetch_add(&s->n_done, 1);
            }
        } else {
            atomic_fetch_add(status == KV_BUSY ? &s->n_busy : &s->n_wrong, 1);
        }
        kv_sched_stats stats;
        kv_slot_view views[3];
        kv_sched_get_stats(&stats, s->sched);
        kv_sched_get_slots(views, 3, s->sched);
        if (dice_one_in(&d, 6)) kv_sched_erase_slot(s->sched, dice_below(&d, 3), NULL, NULL);
        (void)kv_sched_idle(s->sched);
        kv_gen_unref(g);
        kv_tokens_free(&prompt);
    }
    return NULL;
}

/* The engine belongs to the thread that makes it. */
static void *run_engine(void *arg) {
    kv_sched_run(arg);
    return NULL;
}

static void run_kind(kv_memory_kind kind, uint64_t seed) {
    kv_fake_params fake;
    kv_engine_params params;
    kv_sched_config config;
    kv_engine *engine;
    shared s = {.seed = seed};
    kv_fake_params_defaults(&fake);
    kv_engine_params_defaults(&params);
    kv_sched_config_defaults(&config);
    fake.memory = kind;
    fake.chat_template = "";
    fake.n_window = 16;
    params.n_ctx = 256;
    params.n_slots = 3;
    params.n_batch = 32 + 3;
    config.block = 16;
    config.chunk = 32;
    config.min_chunk = 8;
    config.max_queue = 2; /* six clients on three slots: some are refused */
    assert_int_equal(kv_model_load_fake(&s.model, &fake, NULL), KV_OK);
    assert_int_equal(kv_engine_new(&engine, s.model, &params, NULL), KV_OK);
    assert_int_equal(kv_sched_new(&s.sched, engine, kv_clock_real(), &config, NULL), KV_OK);
    pthread_t runner, threads[CLIENTS];
    static client clients[CLIENTS];
    assert_int_equal(pthread_create(&runner, NULL, run_engine, s.sched), 0);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.shared = &s, .number = i};
        pthread_mutex_init(&clients[i].mutex, NULL);
        pthread_cond_init(&clients[i].cond, NULL);
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    kv_sched_drain(s.sched);
    kv_sched_stop(s.sched);
    pthread_join(runner, NULL);
    assert_true(kv_sched_idle(s.sched));
    kv_sched_self_check(s.sched);
    kv_fake_check(engine);
    assert_int_equal(s.n_wrong, 0);
    assert_int_equal(s.n_done + s.n_busy, CLIENTS * REQUESTS);
    assert_true(s.n_done > REQUESTS);
    kv_sched_free(s.sched);
    kv_engine_free(engine);
    kv_model_free(s.model);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_mutex_destroy(&clients[i].mutex);
        pthread_cond_destroy(&clients[i].cond);
    }
}

static void many_threads(void **state) {
    (void)state;
    uint64_t seed = testing_seed("threads");
    run_kind(KV_MEMORY_FULL, seed);
    run_kind(KV_MEMORY_WINDOW, seed + 100);
    run_kind(KV_MEMORY_HYBRID, seed + 200);
    run_kind(KV_MEMORY_RECURRENT, seed + 300);
}

/* Stop while clients are in the middle of their answers. */
static void *stop_soon(void *arg) {
    shared *s = arg;
    while (atomic_load(&s->n_done) < 10) { /* spins: a few milliseconds */
    }
    kv_sched_stop(s->sched);
    return NULL;
}

static void stop_under_load(void **state) {
    (void)state;
    kv_fake_params fake;
    kv_engine_params params;
    kv_sched_config config;
    kv_engine *engine;
    shared s = {.seed = testing_seed("stop")};
    kv_fake_params_defaults(&fake);
    kv_engine_params_defaults(&params);
    kv_sched_config_defaults(&config);
    fake.chat_template = "";
    assert_int_equal(kv_model_load_fake(&s.model, &fake, NULL), KV_OK);
    assert_int_equal(kv_engine_new(&engine, s.model, &params, NULL), KV_OK);
    assert_int_equal(kv_sched_new(&s.sched, engine, kv_clock_real(), &config, NULL), KV_OK);
    pthread_t runner, stopper, threads[CLIENTS];
    static client clients[CLIENTS];
    assert_int_equal(pthread_create(&runner, NULL, run_engine, s.sched), 0);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.shared = &s, .number = i};
        pthread_mutex_init(&clients[i].mutex, NULL);
        pthread_cond_init(&clients[i].cond, NULL);
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &clients[i]), 0);
    }
    assert_int_equal(pthread_create(&stopper, NULL, stop_soon, &s), 0);
    pthread_join(stopper, NULL);
    pthread_join(runner, NULL);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL); /* each got a DONE or KV_BUSY */
    assert_int_equal(s.n_wrong, 0);
    assert_int_equal(s.n_done + s.n_busy, CLIENTS * REQUESTS);
    kv_sched_free(s.sched);
    kv_engine_free(engine);
    kv_model_free(s.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads),
        cmocka_unit_test(stop_under_load),
    };
    return cmocka_run_group_tests_name("sched/threads", tests, NULL, NULL);
}
