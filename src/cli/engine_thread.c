#include "cli/engine_thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/load.h"

struct kv_engine_thread {
    const kv_options *opt;
    kv_app *app;
    kv_wake *wake;
    pthread_t thread;
    atomic_bool cancel;
    pthread_mutex_t mutex; /* guards over, released, err; a leaf */
    pthread_cond_t changed;
    bool over, released;
    double flush_seconds;
    kv_error err; /* status KV_OK while nothing failed */
};

static bool on_progress(void *ctx, float done) {
    kv_engine_thread *t = ctx;
    atomic_store(&t->app->load_percent, (int)(done * 100));
    return !atomic_load(&t->cancel);
}

/* What people want to know of a start, in a few lines. */
static void log_start(const kv_loaded *l, const kv_options *opt) {
    const kv_model_info *m = kv_model_get_info(l->model);
    const kv_engine_info *e = kv_engine_get_info(l->engine);
    kv_buf plan = {0};
    KV_INFO("model %s: %s, architecture %s, memory %s", m->name, m->desc, m->arch, kv_memory_kind_name(e->memory));
    if (!m->chat_template_explicit) KV_WARN("the model has no chat template: ChatML stands in (--chat-template)");
    kv_plan_print(&plan, &l->plan, &l->shape);
    for (char *line = plan.data, *end; line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        KV_INFO("plan: %s", line);
    }
    kv_buf_free(&plan);
    if (l->plan.capped)
        KV_WARN("the model was trained on %d tokens, longer requests are refused: --rope-scaling stretches it",
                l->shape.n_ctx_train);
    KV_INFO("slots %d, prefill chunk %d, block %d, threads %d, prefill threads %d", e->n_slots, l->tuning.chunk,
            l->block, e->n_threads, e->n_threads_batch);
    KV_INFO("%s%s", l->tuning.reason, l->tuning.remembered ? " (remembered)" : "");
    KV_INFO("engine %s on %s", e->version ? e->version : "?", e->backends ? e->backends : "?");
    if (opt->test_sampler) KV_WARN("--test-sampler: requests can name their answer; not for real use");
}

static kv_status load(kv_engine_thread *t, kv_loaded *l, kv_error *err) {
    kv_app *app = t->app;
    kv_sched_config cfg;
    kv_status st = kv_load_plan(l, t->opt, on_progress, t, err);
    if (st == KV_OK && atomic_load(&t->cancel)) st = kv_fail(err, KV_CANCELLED, "stopped while loading");
    if (st == KV_OK) st = kv_load_engine(l, t->opt, err);
    if (st != KV_OK) return st;
    st = kv_load_cache(l, t->opt, err);
    if (st != KV_OK) return st;
    kv_load_sched_config(&cfg, l, t->opt);
    st = kv_sched_new(&app->sched, l->engine, kv_clock_real(), &cfg, err);
    if (st != KV_OK) return st;
    app->model = l->model;
    app->cache = l->cache;
    app->engine_info = *kv_engine_get_info(l->engine);
    app->plan = l->plan;
    app->n_ctx_served = l->plan.n_ctx_served;
    kv_load_sampling(&app->sampling_defaults, l, t->opt);
    atomic_store(&app->load_percent, 100);
    atomic_store(&app->has_model, true);
    log_start(l, t->opt);
    return KV_OK;
}

static void leave_loop(kv_engine_thread *t, const kv_error *err) {
    pthread_mutex_lock(&t->mutex);
    t->over = true;
    t->err = *err;
    pthread_mutex_unlock(&t->mutex);
    kv_wake_set(t->wake);
}

static void *engine_main(void *ctx) {
    kv_engine_thread *t = ctx;
    kv_app *app = t->app;
    kv_loaded l = {0};
    kv_error err = {0};
    int64_t start = kv_now_us(kv_clock_real());
    kv_status st = load(t, &l, &err);
    err.status = st;
    int loading = KV_APP_LOADING;
    /* Not READY when the main thread has begun to stop in the meantime. */
    bool mine = atomic_compare_exchange_strong(&app->state, &loading, st == KV_OK ? KV_APP_READY : KV_APP_FAILED);
    if (mine && st == KV_OK) {
        KV_INFO("ready after %.1f s", (double)(kv_now_us(kv_clock_real()) - start) / 1e6);
        kv_sched_run(app->sched);
    }
    leave_loop(t, &err);

    pthread_mutex_lock(&t->mutex);
    while (!t->released) pthread_cond_wait(&t->changed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
    kv_sched_free(app->sched); /* captures what is still open */
    app->sched = NULL;
    kv_load_flush_cache(&l, t->flush_seconds);
    app->cache = NULL;
    app->model = NULL;
    kv_loaded_free(&l);
    return NULL;
}

kv_status kv_engine_thread_start(kv_engine_thread **out, const kv_options *opt, kv_app *app, kv_wake *wake,
                                 kv_error *err) {
    kv_engine_thread *t = kv_alloc(sizeof *t);
    *out = NULL;
    t->opt = opt;
    t->app = app;
    t->wake = wake;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->changed, NULL);
    int code = pthread_create(&t->thread, NULL, engine_main, t);
    if (code != 0) {
        pthread_mutex_destroy(&t->mutex);
        pthread_cond_destroy(&t->changed);
        free(t);
        errno = code;
        return kv_fail_errno(err, "start the engine's thread");
    }
    *out = t;
    return KV_OK;
}

bool kv_engine_thread_over(kv_engine_thread *t) {
    pthread_mutex_lock(&t->mutex);
    bool over = t->over;
    pthread_mutex_unlock(&t->mutex);
    return over;
}

kv_status kv_engine_thread_result(kv_engine_thread *t, kv_error *err) {
    pthread_mutex_lock(&t->mutex);
    kv_status st = t->err.status;
    if (err) *err = t->err;
    pthread_mutex_unlock(&t->mutex);
    return st;
}

void kv_engine_thread_cancel(kv_engine_thread *t) {
    atomic_store(&t->cancel, true);
}

void kv_engine_thread_join(kv_engine_thread *t, double flush_seconds) {
    if (!t) return;
    pthread_mutex_lock(&t->mutex);
    t->flush_seconds = flush_seconds;
    t->released = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->mutex);
    pthread_cond_destroy(&t->changed);
    free(t);
}
