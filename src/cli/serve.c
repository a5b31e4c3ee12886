/* The main thread's part of a server's life. See cli.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/app.h"
#include "api/asleep.h"
#include "api/gate.h"
#include "api/ledger.h"
#include "api/script.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/engine_thread.h"
#include "cli/load.h"
#include "cli/service.h"
#include "cli/signals.h"
#include "os/machine.h"
#include "state/stored.h"

/* Shares of --stop-timeout (8 s), and at most so much: running requests get 3 s of it; after that their error events
 * get half a second to be sent; the rest is for a batch that is just being computed, and for joining threads. */
#define GRACE_SHARE     0.6
#define GRACE_MOST_S    3.0
#define FAREWELL_SHARE  0.06
#define FAREWELL_MOST_S 0.5
/* What is left at this share is for the disk, and then for what cannot be hurried. */
#define FLUSH_SHARE 0.9
#define POLL_MS     10

typedef struct server {
    const kv_options *opt;
    kv_app app;
    kv_wake wake;
    kv_http *http;
    kv_engine_thread *engine;
    kv_service service;
    kv_str_list names;
} server;

/* ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_name(kv_str_list *l, const char *s, size_t n) {
    while (n > 0 && *s == ' ') s++, n--;
    while (n > 0 && s[n - 1] == ' ') n--;
    if (n > 0 && l->n < KV_OPTIONS_MAX_LIST) l->item[l->n++] = kv_strndup(s, n);
}

/* Aliases, the repository as -hf named it, the file's name, and that without ".gguf"; responses carry the first. */
static void fill_names(server *s) {
    const kv_options *opt = s->opt;
    for (const char *p = opt->alias; p && *p;) {
        size_t n = strcspn(p, ",");
        add_name(&s->names, p, n);
        p += n + (p[n] == ',');
    }
    s->app.n_listed = s->names.n;
    if (opt->hf_repo) add_name(&s->names, opt->hf_repo, strlen(opt->hf_repo));
    const char *file = opt->model ? opt->model : "fake.gguf", *slash = strrchr(file, '/');
    if (slash && slash[1]) file = slash + 1;
    size_t n = strlen(file);
    add_name(&s->names, file, n);
    if (n > 5 && strcmp(file + n - 5, ".gguf") == 0) add_name(&s->names, file, n - 5);
    snprintf(s->app.model_name, sizeof s->app.model_name, "%s", s->names.n ? s->names.item[0] : "model");
    s->app.aliases = s->names.item;
    s->app.n_aliases = s->names.n;
}

/* ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A fake engine is for tests: only a directory that was named is written to. */
static kv_stored *open_responses(const kv_options *opt) {
    kv_buf dir = {0};
    kv_error err;
    if (opt->state_dir) kv_buf_adds(&dir, opt->state_dir);
    else if (!opt->fake && kv_dir_state(&dir, &err) != KV_OK)
        KV_WARN("responses are kept in memory only: %s (--state-dir names a place)", err.message);
    kv_stored *responses = kv_stored_open(&(kv_stored_config){.dir = dir.len ? dir.data : NULL,
                                                              .max_age_s = opt->responses_max_age,
                                                              .max_bytes = (uint64_t)opt->responses_max_size});
    kv_buf_free(&dir);
    return responses;
}

static kv_status start_http(server *s, kv_error *err) {
    const kv_options *o = s->opt;
    return kv_http_start(&s->http,
                         &(kv_http_config){
                             .hosts = (const char *const *)o->host.item,
                             .n_hosts = o->host.n,
                             .port = (int)o->port,
                             .reuse_port = o->reuse_port,
                             .tls_key_file = o->ssl_key_file,
                             .tls_cert_file = o->ssl_cert_file,
                             .max_body = (size_t)o->max_body_mib << 20,
                             .max_headers = (size_t)o->max_headers_kib << 10,
                             .max_connections = (int)o->max_connections,
                             .idle_timeout_s = (int)o->idle_timeout,
                             .api_key_file = o->api_key_file,
                             .api_keys = (const char *const *)o->api_key.item,
                             .n_api_keys = o->api_key.n,
                             .cors_origins = o->cors_origins ? o->cors_origins : "",
                             .no_cors = "/kvasir/",
                             .allowed_hosts = (const char *const *)o->allowed_host.item,
                             .n_allowed_hosts = o->allowed_host.n,
                             .prefix = o->api_prefix ? o->api_prefix : "",
                             .routes = kv_api_routes(),
                             .app = &s->app,
                         },
                         err);
}

/* Where the log does not show it, on stdout all the same. */
static void tell(const kv_options *o, const char *line) {
    KV_INFO("%s", line);
    if (!o->log_file && !o->log_jsonl && kv_log_enabled(KV_LOG_INFO)) return;
    printf("%s\n", line);
    fflush(stdout);
}

static void tell_addresses(server *s) {
    const kv_options *o = s->opt;
    const char *address, *outside = NULL;
    char line[400];
    for (int i = 0; (address = kv_http_address(s->http, i)); i++) {
        bool local = strncmp(address, "unix:", 5) == 0;
        snprintf(line, sizeof line, "listening on %.255s%.100s", address, o->api_prefix && !local ? o->api_prefix : "");
        tell(o, line);
        if (i == 0) kv_service_name(&s->service, s->app.model_name, line + strlen("listening on "));
    }
    bool keys = o->api_key.n > 0 || o->api_key_file;
    if (keys) return;
    for (int i = 0; i < o->host.n; i++)
        if (!kv_options_host_is_loopback(o->host.item[i])) outside = o->host.item[i];
    if (!outside) KV_INFO("no API key is set: every program on this machine that may connect can use the server");
    else KV_WARN("--no-auth: everyone who reaches %s can use the server", outside);
}

/* ── running ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void reload(server *s) {
    kv_error err = {0};
    kv_service_reloading(&s->service);
    if (kv_log_reopen(&err) != KV_OK) KV_ERROR("SIGHUP: the log goes on where it was: %s", err.message);
    if (kv_http_reload_keys(s->http, &err) != KV_OK) KV_ERROR("SIGHUP: the keys stay as they were: %s", err.message);
    else KV_INFO("SIGHUP: log file and keys are read anew");
    kv_service_reloaded(&s->service);
}

/* Until a signal asks for a stop or the engine's thread is over. */
static void wait_for_end(server *s) {
    while (!kv_signals_asked_to_stop() && !kv_engine_thread_over(s->engine)) {
        kv_service_view view;
        int sleep_ms = kv_engine_thread_tend(s->engine);
        kv_service_look(&view, &s->app);
        int service_ms = kv_service_tend(&s->service, &view, kv_now_us(kv_clock_real()));
        /* -1, "when something happens", is the largest of unsigned numbers. */
        kv_wake_wait(&s->wake, -1, (unsigned)sleep_ms < (unsigned)service_ms ? sleep_ms : service_ms);
        if (kv_signals_take_hup()) reload(s);
    }
}

/* Until no request is in flight, at most `seconds`. */
static void wait_for_requests(server *s, double seconds) {
    int64_t until = kv_now_us(kv_clock_real()) + (int64_t)(seconds * 1e6);
    while (kv_http_in_flight(s->http) > 0 && kv_now_us(kv_clock_real()) < until) kv_wake_wait(&s->wake, -1, POLL_MS);
}

static double share(double timeout, double part, double most) {
    return timeout * part < most ? timeout * part : most;
}

/* From the first signal, or the engine thread's end, to the last thread. The watchdog bounds it. */
static void stop(server *s) {
    double timeout = s->opt->stop_timeout, grace = share(timeout, GRACE_SHARE, GRACE_MOST_S);
    kv_error failure = {0};
    int64_t began_us = kv_now_us(kv_clock_real());
    kv_watchdog_arm(timeout);
    bool failed = kv_engine_thread_over(s->engine) && kv_engine_thread_result(s->engine, &failure) != KV_OK;
    kv_service_stopping(&s->service, failed ? failure.message : NULL);
    int before = atomic_exchange(&s->app.state, KV_APP_DRAINING);
    if (before == KV_APP_READY) kv_sched_drain(s->app.sched);
    kv_engine_thread_cancel(s->engine);
    kv_gate_stop(s->app.gate);
    kv_http_quiesce(s->http);
    if (before == KV_APP_READY) {
        KV_INFO("stopping: no new requests; %d running get up to %.1f s", kv_http_in_flight(s->http), grace);
        wait_for_requests(s, grace);
        if (kv_http_in_flight(s->http) > 0) KV_WARN("stopping: %d requests are cut off", kv_http_in_flight(s->http));
        kv_sched_stop(s->app.sched);
        wait_for_requests(s, share(timeout, FAREWELL_SHARE, FAREWELL_MOST_S));
    } else if (before == KV_APP_ASLEEP) {
        KV_INFO("stopping: the model is asleep");
        wait_for_requests(s, share(timeout, FAREWELL_SHARE, FAREWELL_MOST_S)); /* those who waited for it are told */
    }
    kv_http_stop(s->http);
    kv_engine_thread_join(s->engine, timeout * FLUSH_SHARE - (double)(kv_now_us(kv_clock_real()) - began_us) / 1e6);
}

/* "--ctx-size: …": the option at fault in front, unless the message names it. */
static void log_failure(const kv_error *err) {
    bool named = !err->field[0] || strstr(err->message, err->field);
    KV_ERROR("the model cannot be served: %s%s%s", named ? "" : err->field, named ? "" : ": ", err->message);
}

/* KV_EXIT_FAILURE when the thread ended by itself. */
static int judge(server *s) {
    kv_error err = {0};
    if (kv_signals_asked_to_stop()) return KV_EXIT_OK;
    if (kv_engine_thread_result(s->engine, &err) != KV_OK) log_failure(&err);
    else KV_ERROR("the engine's thread ended unasked");
    return KV_EXIT_FAILURE;
}

int kv_serve(const kv_options *opt) {
    server s = {.opt = opt, .app = {.opt = opt, .started_at = kv_wall_seconds(), .sampling_defaults = opt->sampling}};
    kv_error err = {0};
    sigset_t before;
    int exit_status = KV_EXIT_FAILURE;
    kv_machine_set_up_memory();
    tzset(); /* read once here, the zone is not set up by several threads at a time later */
    kv_service_open(&s.service);
    kv_status st = kv_wake_init(&s.wake, &err);
    if (st == KV_OK) st = kv_signals_start(&s.wake, &err);
    fill_names(&s);
    s.app.ledger = kv_ledger_new();
    s.app.gate = kv_gate_new();
    kv_gate_set_tender(s.app.gate, &s.wake);
    s.app.asleep = kv_asleep_new();
    if (st == KV_OK) s.app.responses = open_responses(opt);
    if (st == KV_OK) st = kv_script_open(&s.app.script, opt, &err);
    if (st == KV_OK) st = start_http(&s, &err);
    if (st != KV_OK) goto done;
    tell_addresses(&s);
    kv_signals_block(&before); /* also for the threads that the engine starts */
    st = kv_engine_thread_start(&s.engine, opt, &s.app, &s.wake, &err);
    kv_signals_unblock(&before);
    if (st != KV_OK) {
        kv_http_stop(s.http);
        goto done;
    }
    wait_for_end(&s);
    exit_status = judge(&s);
    stop(&s);
    if (exit_status == KV_EXIT_OK) KV_INFO("stopped");
done:
    if (st != KV_OK) KV_ERROR("%s", err.message);
    if (st != KV_OK) kv_watchdog_arm(opt->stop_timeout);
    kv_stored_close(s.app.responses); /* writes to a disk, which may hang: within the watchdog's time */
    kv_service_close(&s.service);
    kv_signals_stop();
    kv_wake_free(&s.wake);
    kv_ledger_free(s.app.ledger);
    kv_gate_free(s.app.gate);
    kv_asleep_free(s.app.asleep);
    kv_script_close(s.app.script);
    for (int i = 0; i < s.names.n; i++) free(s.names.item[i]);
    return exit_status;
}

/* ── --check ───────────────────────────────────────────────────────────────────────────────────────────────────── */

int kv_serve_check(const kv_options *opt) {
    kv_loaded l = {0};
    kv_error err = {0};
    kv_buf out = {0};
    kv_status st = kv_load_plan(&l, opt, NULL, NULL, &err);
    if (st == KV_OK) st = kv_load_engine(&l, opt, &err);
    if (st == KV_OK) {
        const kv_model_info *m = kv_model_get_info(l.model);
        const kv_engine_info *e = kv_engine_get_info(l.engine);
        kv_buf_addf(&out, "model       %s: %s, architecture %s, memory %s\n", m->name, m->desc, m->arch,
                    kv_memory_kind_name(e->memory));
        if (e->memory == KV_MEMORY_NONE) {
            kv_buf_addf(&out, "context     %d tokens of one text at most, and no more than -ub\n", l.plan.n_ctx_served);
        } else {
            kv_plan_print(&out, &l.plan, &l.shape);
            kv_buf_addf(&out, "chunk       %d tokens, %d at least while others decode, in blocks of %d\n",
                        l.tuning.chunk, l.tuning.min_chunk, l.block);
        }
        kv_buf_addf(&out, "choice      %s%s\n", l.tuning.reason, l.tuning.remembered ? " (remembered)" : "");
        kv_buf_addf(&out, "threads     %d, %d for prefill\n", e->n_threads, e->n_threads_batch);
        kv_buf_addf(&out, "engine      %s on %s\n", e->version ? e->version : "?", e->backends ? e->backends : "?");
        fputs(kv_buf_str(&out), stdout);
    } else {
        log_failure(&err);
    }
    kv_buf_free(&out);
    kv_loaded_free(&l);
    return st == KV_OK ? KV_EXIT_OK : KV_EXIT_FAILURE;
}
