/* tests/api/rig.h: an app on the fake engine, alone (rig_open) or behind a real HTTP server (rig_serve). */
#ifndef KV_TESTS_API_RIG_H
#define KV_TESTS_API_RIG_H

#include "http/client.h"

#include <pthread.h>
#include <stdatomic.h>

#include "api/app.h"
#include "api/ledger.h"
#include "api/params.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/engine_fake.h"

typedef struct rig {
    kv_options opt;
    kv_app app;
    kv_engine *engine;
    kv_http *http;
    pthread_t thread;
    /* to be set before rig_open */
    const char *chat_template; /* NULL = ChatML */
    int32_t max_queue;         /* 0 = the scheduler's default */
    /* the engine's mood: it stands still while `closed`, and refuses to compute while `broken` */
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool closed, broken;
} rig;

static inline kv_status rig_inject(void *ctx, uint64_t decode_no) {
    rig *r = ctx;
    (void)decode_no;
    pthread_mutex_lock(&r->mutex);
    while (r->closed) pthread_cond_wait(&r->opened, &r->mutex);
    kv_status st = r->broken ? KV_ENGINE : KV_OK;
    pthread_mutex_unlock(&r->mutex);
    return st;
}

static inline void rig_set(rig *r, bool closed, bool broken) {
    pthread_mutex_lock(&r->mutex);
    r->closed = closed;
    r->broken = broken;
    pthread_cond_broadcast(&r->opened);
    pthread_mutex_unlock(&r->mutex);
}

/* A model and options, no engine: for what only parses. `r` is zeroed but for what its comments name. */
static inline void rig_open(rig *r) {
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->opened, NULL);
    kv_log_config quiet = {.level = KV_LOG_WARN};
    kv_log_init(&quiet, NULL);
    kv_options_defaults(&r->opt);
    kv_fake_params mp;
    kv_fake_params_defaults(&mp);
    mp.end_one_in = -1; /* only what a test plays ends a turn */
    mp.chat_template = r->chat_template;
    mp.inject = rig_inject;
    mp.inject_ctx = r;
    kv_error err = {0};
    if (kv_model_load_fake(&r->app.model, &mp, &err) != KV_OK) fail_msg("%s", err.message);
    r->app.opt = &r->opt;
    r->app.sampling_defaults = r->opt.sampling;
    r->app.n_ctx_served = 1024;
    r->app.engine_info.n_slots = 4;
    r->app.engine_info.version = "fake";
    r->app.started_at = 1700000000;
    r->app.ledger = kv_ledger_new();
    snprintf(r->app.model_name, sizeof r->app.model_name, "fake-model");
    atomic_store(&r->app.has_model, true);
    atomic_store(&r->app.state, KV_APP_READY);
}

static inline void *rig_run(void *ctx) {
    kv_sched_run(ctx);
    return NULL;
}

/* The same with engine, scheduler thread and HTTP server. Change r->opt between the two. */
static inline void rig_serve(rig *r) {
    kv_error err = {0};
    kv_engine_params ep;
    kv_engine_params_defaults(&ep);
    ep.n_ctx = 4096;
    ep.n_slots = 4;
    ep.n_batch = 256 + 4;
    if (kv_engine_new(&r->engine, r->app.model, &ep, &err) != KV_OK) fail_msg("%s", err.message);
    r->app.engine_info = *kv_engine_get_info(r->engine);
    kv_sched_config sc;
    kv_sched_config_defaults(&sc);
    sc.n_ctx_served = r->app.n_ctx_served;
    sc.chunk = 256;
    if (r->max_queue) sc.max_queue = r->max_queue;
    if (kv_sched_new(&r->app.sched, r->engine, kv_clock_real(), &sc, &err) != KV_OK) fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&r->thread, NULL, rig_run, r->app.sched), 0);
    kv_http_config hc = {.routes = kv_api_routes(), .app = &r->app};
    if (kv_http_start(&r->http, &hc, &err) != KV_OK) fail_msg("%s", err.message);
}

static inline void rig_close(rig *r) {
    if (r->http) {
        kv_sched_stop(r->app.sched);
        kv_http_stop(r->http);
        pthread_join(r->thread, NULL);
        kv_sched_free(r->app.sched);
        kv_engine_free(r->engine);
    }
    kv_ledger_free(r->app.ledger);
    kv_model_free(r->app.model);
    kv_options_free(&r->opt);
    pthread_cond_destroy(&r->opened);
    pthread_mutex_destroy(&r->mutex);
    memset(r, 0, sizeof *r);
}

/* ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* '…' for "…", so that JSON reads well in C. Both quotes cannot be had in one text. */
static inline char *json_text(const char *text) {
    char *s = kv_strdup(text);
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    return s;
}

static inline json_t *json_of(const char *text) {
    char *s = json_text(text);
    json_t *v = json_loads(s, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v) fail_msg("bad JSON in the test: %s", s);
    free(s);
    return v;
}

/* POST with quotes replaced; GET when body is NULL. */
static inline int rig_ask(answer *a, rig *r, const char *path, const char *body) {
    kv_buf line = {0}, rest = {0};
    kv_buf_addf(&line, "%s %s", body ? "POST" : "GET", path);
    if (body) {
        char *text = json_text(body);
        kv_buf_addf(&rest, "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                    strlen(text), text);
        free(text);
    }
    int status = ask(a, kv_http_port(r->http), line.data, body ? rest.data : NULL);
    kv_buf_free(&line);
    kv_buf_free(&rest);
    return status;
}

/* The request is sent, and the answer not waited for. rig_serve first. */
static inline client rig_post(rig *r, const char *path, const char *body) {
    kv_buf text = {0};
    char *json = json_text(body);
    kv_buf_addf(&text, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(json),
                json);
    client c = dial(kv_http_port(r->http));
    say(&c, text.data);
    kv_buf_free(&text);
    free(json);
    return c;
}

/* The JSON of a 200; the caller's. */
static inline json_t *rig_json(rig *r, const char *path, const char *body) {
    answer a = {0};
    if (rig_ask(&a, r, path, body) != 200) fail_msg("%s: %d %s", path, a.status, kv_buf_str(&a.body));
    json_t *v = json_loadb(kv_buf_str(&a.body), a.body.len, JSON_ALLOW_NUL, NULL);
    if (!v) fail_msg("%s: no JSON: %s", path, kv_buf_str(&a.body));
    free_answer(&a);
    return v;
}

/* The events of a stream as an array; "[DONE]" is a string, a ping is null. */
static inline json_t *events_of(const answer *a) {
    json_t *list = json_array();
    for (const char *p = kv_buf_str(&a->body), *end; *p; p = end + 2) {
        end = strstr(p, "\n\n");
        if (!end) fail_msg("an event without its end: %s", p);
        if (*p == ':') {
            json_array_append_new(list, json_null());
            continue;
        }
        if (strncmp(p, "data: ", 6) != 0) fail_msg("neither event nor ping: %s", p);
        json_t *v = strncmp(p + 6, "[DONE]", 6) == 0 ? json_string("[DONE]")
                                                     : json_loadb(p + 6, (size_t)(end - p - 6), JSON_ALLOW_NUL, NULL);
        if (!v) fail_msg("an event that is no JSON: %s", p);
        json_array_append_new(list, v);
    }
    return list;
}

static inline json_t *rig_stream(rig *r, const char *path, const char *body) {
    answer a = {0};
    if (rig_ask(&a, r, path, body) != 200) fail_msg("%s: %d %s", path, a.status, kv_buf_str(&a.body));
    assert_non_null(strstr(header_of(&a, "Content-Type"), "text/event-stream"));
    json_t *list = events_of(&a);
    free_answer(&a);
    return list;
}

/* ── looking into JSON: at(v, "choices", 0, "delta") ───────────────────────────────────────────────────────────── */

/* "choices.0.message.content"; NULL where there is none. Borrowed. */
static inline json_t *at(const json_t *v, const char *path) {
    char key[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(key)) : json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    return (json_t *)v;
}
static inline const char *str_at(const json_t *v, const char *path) {
    const char *s = json_string_value(at(v, path));
    return s ? s : "(none)";
}
static inline long long int_at(const json_t *v, const char *path) {
    const json_t *x = at(v, path);
    return json_is_integer(x) ? json_integer_value(x) : -999;
}

#endif
