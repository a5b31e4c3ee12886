#include "cli/engine_thread.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/asleep.h"
#include "api/embed.h"
#include "api/gate.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/load.h"
#include "os/machine.h"

/* Between two looks whether somebody wants the model back while what it left is still being written. */
#define SETTLE_SLICE_US 100000
/* What was spelled before, where there is no directory to keep it. */
#define SPELLINGS_BYTES (8ull << 20)

struct kv_engine_thread {
    const kv_options *opt;
    kv_app *app;
    kv_wake *wake;
    pthread_t thread;
    atomic_bool cancel;
    pthread_mutex_t mutex; /* guards over, released, err; held while the scheduler is told to stop for a sleep */
    pthread_cond_t changed;
    bool over, released;
    double flush_seconds;
    kv_error err;            /* status KV_OK while nothing failed */
    kv_spellings *spellings; /* owned; NULL until a load found no directory to keep them */
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
    if (e->memory == KV_MEMORY_NONE) {
        KV_INFO("an encoder: it serves vectors or scores, generates nothing and needs no cache; threads %d",
                e->n_threads);
        KV_INFO("engine %s on %s", e->version ? e->version : "?", e->backends ? e->backends : "?");
        return;
    }
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

/* The scheduler, and what handlers read. */
static kv_status put_up(kv_engine_thread *t, kv_loaded *l, kv_error *err) {
    kv_app *app = t->app;
    kv_sched_config cfg;
    kv_load_sched_config(&cfg, l, t->opt);
    kv_status st = kv_sched_new(&app->sched, l->engine, kv_clock_real(), &cfg, err);
    if (st != KV_OK) return st;
    app->model = l->model;
    kv_turns_free(&app->turns);
    kv_turns_learn(&app->turns, l->model);
    app->cache = l->cache;
    app->cache_base = l->cache ? kv_namespace_hash(&l->ns) : (kv_hash){0, 0};
    if (!l->store && !t->spellings)
        t->spellings = kv_spellings_new(&(kv_spellings_config){.max_bytes = SPELLINGS_BYTES});
    app->spellings = l->store ? kv_store_spellings(l->store) : t->spellings;
    app->engine_info = *kv_engine_get_info(l->engine);
    app->plan = l->plan;
    app->n_ctx_served = l->plan.n_ctx_served;
    if (l->memory == KV_MEMORY_NONE) app->n_ctx_served = kv_embed_get_info(app->embed)->n_text_max; /* it has one */
    kv_load_sampling(&app->sampling_defaults, l, t->opt);
    return KV_OK;
}

/* Before the cache, which takes of what memory is left. */
static kv_status open_embedder(kv_engine_thread *t, kv_loaded *l, kv_error *err) {
    kv_status st = kv_embed_open(&t->app->embed, l->model, &l->params, t->opt, l->plan.n_ctx_served, err);
    if (st != KV_OK || !t->app->embed) return st;
    uint64_t bytes = kv_embed_get_info(t->app->embed)->bytes;
    l->plan.bytes_left -= bytes < l->plan.bytes_left ? bytes : l->plan.bytes_left;
    return KV_OK;
}

/* Before the model goes. */
static void close_embedder(kv_app *app) {
    kv_embed_free(app->embed);
    app->embed = NULL;
}

static kv_status load(kv_engine_thread *t, kv_loaded *l, kv_error *err) {
    kv_status st = kv_load_plan(l, t->opt, on_progress, t, err);
    if (st == KV_OK && atomic_load(&t->cancel)) st = kv_fail(err, KV_CANCELLED, "stopped while loading");
    if (st == KV_OK) st = kv_load_engine(l, t->opt, err);
    if (st == KV_OK) st = open_embedder(t, l, err);
    if (st == KV_OK) st = kv_load_cache(l, t->opt, err);
    if (st == KV_OK) st = put_up(t, l, err);
    if (st != KV_OK) return st;
    atomic_store(&t->app->load_percent, 100);
    atomic_store(&t->app->has_model, true);
    log_start(l, t->opt);
    return KV_OK;
}

/* ── sleep ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static double seconds_since(int64_t us) {
    return (double)(kv_now_us(kv_clock_real()) - us) / 1e6;
}

static double mib(uint64_t bytes) {
    return (double)bytes / (1 << 20);
}

/* Nobody is inside the gate, which is closed, or looks. What the slots held was captured when their generations left. */
static void fall_asleep(kv_engine_thread *t, kv_loaded *l) {
    kv_app *app = t->app;
    kv_sched_stats stats;
    kv_cache_stats cache = {0};
    uint64_t before = kv_machine_rss();
    pthread_mutex_lock(&t->mutex); /* who told the scheduler to stop has let go of it */
    pthread_mutex_unlock(&t->mutex);
    kv_sched_get_stats(&stats, app->sched);
    kv_metrics_add(&app->sched_before, &stats);
    app->n_sleeps++;
    kv_sched_free(app->sched);
    app->sched = NULL;
    app->model = NULL;
    close_embedder(app);
    kv_load_unload(l);
    if (l->cache) {
        while (!kv_cache_settle(l->cache, SETTLE_SLICE_US) && !kv_gate_wanted(app->gate)) continue;
        if (!kv_gate_wanted(app->gate)) kv_cache_let_go_of_copies(l->cache);
        kv_cache_get_stats(&cache, l->cache);
        kv_asleep_note_cache(app->asleep, &cache);
    }
    kv_machine_give_back_memory();
    char reason[64] = "as a request asked";
    if (!kv_gate_was_asked(app->gate))
        snprintf(reason, sizeof reason, "after %g s without requests", t->opt->sleep_idle_seconds);
    KV_INFO(
        "asleep %s: the model is unloaded, %.0f MiB of memory in use instead of %.0f, %.0f MiB of them conversations",
        reason, mib(kv_machine_rss()), mib(before), mib(cache.ram_bytes));
}

/* For those who wait. */
static void tell_failure(kv_engine_thread *t, const kv_error *err) {
    kv_error told = {0};
    kv_fail(&told, KV_BUSY, "the model is asleep and could not be loaded again: %s", err->message);
    KV_ERROR("%s; the next request tries again", told.message);
    kv_gate_fail(t->app->gate, &told);
}

static kv_status wake_up(kv_engine_thread *t, kv_loaded *l, kv_error *err) {
    kv_status st = kv_load_again(l, t->opt, on_progress, t, err);
    if (st != KV_OK) return st;
    st = open_embedder(t, l, err);
    if (st == KV_OK) st = put_up(t, l, err);
    if (st == KV_OK) return KV_OK;
    close_embedder(t->app);
    kv_load_unload(l);
    return st;
}

/* From the scheduler's end to the model's return. False: the server ends. */
static bool sleep_until_wanted(kv_engine_thread *t, kv_loaded *l) {
    kv_app *app = t->app;
    int64_t since = kv_now_us(kv_clock_real());
    fall_asleep(t, l);
    while (kv_gate_wait(app->gate)) {
        kv_error err = {0};
        double slept = seconds_since(since);
        int64_t start = kv_now_us(kv_clock_real());
        kv_status st = wake_up(t, l, &err);
        if (atomic_load(&t->cancel)) return false;
        if (st != KV_OK) {
            tell_failure(t, &err);
            continue;
        }
        int asleep = KV_APP_ASLEEP;
        if (!atomic_compare_exchange_strong(&app->state, &asleep, KV_APP_READY)) return false;
        KV_INFO("awake: the model was loaded again in %.1f s, after %.0f s of sleep", seconds_since(start), slept);
        kv_gate_open(app->gate);
        kv_wake_set(t->wake); /* the main thread counts the idle time anew */
        return true;
    }
    return false;
}

int kv_engine_thread_tend(kv_engine_thread *t) {
    kv_app *app = t->app;
    if (t->opt->sleep_idle_seconds <= 0 || atomic_load(&app->state) != KV_APP_READY) return -1;
    int64_t idle_us = (int64_t)(t->opt->sleep_idle_seconds * 1e6), left = kv_gate_idle_left(app->gate, idle_us);
    if (left == 0) {
        kv_asleep_note(app->asleep, app); /* the model stays: only this thread closes the gate */
        if (kv_gate_close(app->gate, idle_us)) {
            pthread_mutex_lock(&t->mutex);
            atomic_store(&app->state, KV_APP_ASLEEP);
            kv_sched_stop(app->sched);
            pthread_mutex_unlock(&t->mutex);
            return -1;
        }
        left = kv_gate_idle_left(app->gate, idle_us);
    }
    int64_t ms = (left + 999) / 1000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────── */

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
        KV_INFO("ready after %.1f s", seconds_since(start));
        kv_gate_open(app->gate); /* nobody waits; the idle time begins */
        kv_wake_set(t->wake);
        do kv_sched_run(app->sched);
        while (atomic_load(&app->state) == KV_APP_ASLEEP && sleep_until_wanted(t, &l));
    }
    leave_loop(t, &err);

    pthread_mutex_lock(&t->mutex);
    while (!t->released) pthread_cond_wait(&t->changed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
    kv_sched_free(app->sched); /* captures what is still open */
    app->sched = NULL;
    kv_load_flush_cache(&l, t->flush_seconds);
    app->cache = NULL;
    app->spellings = NULL;
    app->model = NULL;
    kv_turns_free(&app->turns);
    close_embedder(app);
    kv_loaded_free(&l);
    kv_spellings_free(t->spellings);
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
