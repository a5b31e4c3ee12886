#include "http/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "os/machine.h"

/* Templates, JSON schemas and grammars of libllama-common recurse on these threads; only touched pages cost memory.
 * The default of macOS (512 KiB) would not do. */
#define STACK_BYTES (8u << 20)
#define MAX_PEM     (1u << 20) /* bytes of a key or a chain of certificates */

/* ── configuration ── */

static const char **copy_list(const char *const *list, int n, const char *const *more, int n_more) {
    const char **copy = kv_alloc(((size_t)n + (size_t)n_more + 1) * sizeof *copy);
    for (int i = 0; i < n; i++) copy[i] = kv_strdup(list[i]);
    for (int i = 0; i < n_more; i++) copy[n + i] = kv_strdup(more[i]);
    return copy;
}

static void free_list(const char *const *list, int n) {
    for (int i = 0; list && i < n; i++) free((void *)list[i]);
    free((void *)list);
}

static void copy_config(kv_http *h, const kv_http_config *cfg) {
    kv_http_config *c = &h->cfg;
    *c = *cfg;
    const char *const standard = "127.0.0.1";
    c->hosts = cfg->n_hosts > 0 ? copy_list(cfg->hosts, cfg->n_hosts, NULL, 0) : copy_list(&standard, 1, NULL, 0);
    if (c->n_hosts <= 0) c->n_hosts = 1;
    if (c->max_body == 0) c->max_body = (size_t)64 << 20;
    if (c->max_headers == 0) c->max_headers = 64 << 10;
    if (c->max_connections <= 0) c->max_connections = 512;
    if (c->idle_timeout_s == 0) c->idle_timeout_s = 60;
    c->api_key_file = kv_strdup(cfg->api_key_file);
    c->api_keys = copy_list(cfg->api_keys, cfg->n_api_keys, NULL, 0);
    c->cors_origins = kv_strdup(cfg->cors_origins ? cfg->cors_origins : "localhost");
    c->no_cors = kv_strdup(cfg->no_cors);
    /* who binds to a name wants to be called by it */
    c->allowed_hosts = copy_list(cfg->allowed_hosts, cfg->n_allowed_hosts, c->hosts, c->n_hosts);
    c->n_allowed_hosts = cfg->n_allowed_hosts + c->n_hosts;
    c->prefix = kv_strdup(cfg->prefix);
}

static void free_config(kv_http_config *c) {
    free_list(c->hosts, c->n_hosts);
    free((void *)c->api_key_file);
    free_list(c->api_keys, c->n_api_keys);
    free((void *)c->cors_origins);
    free((void *)c->no_cors);
    free_list(c->allowed_hosts, c->n_allowed_hosts);
    free((void *)c->prefix);
}

/* ── TLS ── */

static kv_status read_pem(kv_buf *out, const char *path, const char *option, kv_error *err) {
    kv_error inner = {0};
    kv_status status = kv_file_read(out, path, MAX_PEM, &inner);
    if (status == KV_OK) return KV_OK;
    kv_fail_field(err, option, "%s: %s", option, inner.message);
    if (err) err->status = status;
    return status;
}

static kv_status read_tls(kv_http *h, const char *key, const char *cert, kv_error *err) {
    if (!key && !cert) return KV_OK;
    if (!key || !cert)
        return kv_fail_field(err, "--ssl-key-file", "HTTPS needs both --ssl-key-file and --ssl-cert-file");
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        kv_fail_field(err, "--ssl-key-file",
                      "--ssl-key-file: this libmicrohttpd was built without TLS; put a reverse proxy "
                      "in front");
        if (err) err->status = KV_UNSUPPORTED;
        return KV_UNSUPPORTED;
    }
    kv_status status = read_pem(&h->tls_key, key, "--ssl-key-file", err);
    return status == KV_OK ? read_pem(&h->tls_cert, cert, "--ssl-cert-file", err) : status;
}

/* ── start and stop ── */

/* libmicrohttpd's last words stay in the http, for a start that fails. */
static void mhd_log(void *http, const char *fmt, va_list args) {
    kv_http *h = http;
    char text[512];
    int n = vsnprintf(text, sizeof text, fmt, args);
    while (n > 0 && (size_t)n < sizeof text && text[n - 1] == '\n') text[--n] = '\0';
    if (kv_log_enabled(KV_LOG_DEBUG)) kv_log(KV_LOG_DEBUG, "http: %s", text);
    if (!h->started) snprintf(h->trouble, sizeof h->trouble, "%.*s", (int)sizeof h->trouble - 1, text);
}

static kv_status start_daemon(kv_listener *l, kv_error *err) {
    kv_http *h = l->http;
    const kv_http_config *c = &h->cfg;
    bool tls = h->tls_key.len > 0 && !l->local; /* what stays on this machine is not encrypted */
    /* Some connections above the limit get in, to be told 503; libmicrohttpd closes what comes on top of them. */
    unsigned limit = (unsigned)c->max_connections + 8 + (unsigned)c->max_connections / 8;
    /* Per connection, touched only as needed: headers above the limit are still to be read, to be answered in our own
     * words, with room for the response's header and a chunk. */
    size_t memory = 2 * c->max_headers + 65536;
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem pem[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)kv_buf_str(&h->tls_key)},
                                   {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)kv_buf_str(&h->tls_cert)},
                                   {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    kv_machine_raise_open_files((uint64_t)limit * 3 + 256); /* a socket, a wake and something to spare each */
    l->daemon = MHD_start_daemon(flags, 0, NULL, NULL, kv_request_access, h,           //
                                 MHD_OPTION_EXTERNAL_LOGGER, mhd_log, h,               //
                                 MHD_OPTION_ARRAY, tls ? pem : none,                   //
                                 MHD_OPTION_LISTEN_SOCKET, l->fd,                      //
                                 MHD_OPTION_CONNECTION_LIMIT, limit,                   //
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory,           //
                                 MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,    //
                                 MHD_OPTION_URI_LOG_CALLBACK, kv_request_uri, h,       //
                                 MHD_OPTION_NOTIFY_COMPLETED, kv_request_completed, h, //
                                 MHD_OPTION_NOTIFY_CONNECTION, kv_conn_notify, l, MHD_OPTION_END);
    if (l->daemon) return KV_OK;
    if (tls && h->trouble[0])
        return kv_fail(err, KV_INVALID,
                       "HTTPS cannot be served with this --ssl-key-file and --ssl-cert-file (PEM, the key "
                       "without a passphrase, and the certificate's own): %s",
                       h->trouble);
    return kv_fail(err, KV_INTERNAL, "the HTTP server could not start its thread");
}

/* No signal is ever delivered to the threads started here: they are the main thread's to handle. */
static kv_status start_threads(kv_http *h, bool *watching, kv_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    kv_status status = kv_conn_watch_start(h, err);
    *watching = status == KV_OK;
    for (int i = 0; i < h->n_listeners && status == KV_OK; i++) status = start_daemon(&h->listeners[i], err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void destroy(kv_http *h) {
    kv_listen_close(h);
    kv_wake_free(&h->stop);
    kv_wake_free(&h->tick);
    kv_keys_free(&h->keys);
    pthread_mutex_destroy(&h->mutex);
    free_config(&h->cfg);
    kv_buf_free(&h->tls_key);
    kv_buf_free(&h->tls_cert);
    free(h);
}

kv_status kv_http_start(kv_http **out, const kv_http_config *cfg, kv_error *err) {
    *out = NULL;
    bool watching = false;
    kv_http *h = kv_alloc(sizeof *h);
    h->stop = h->tick = (kv_wake){{-1, -1}};
    kv_keys_init(&h->keys);
    pthread_mutex_init(&h->mutex, NULL);
    copy_config(h, cfg);
    kv_status status = kv_http_reload_keys(h, err);
    if (status == KV_OK) status = kv_wake_init(&h->stop, err);
    if (status == KV_OK) status = kv_wake_init(&h->tick, err);
    if (status == KV_OK) status = read_tls(h, cfg->tls_key_file, cfg->tls_cert_file, err);
    if (status == KV_OK) status = kv_listen_open(h, err);
    if (status == KV_OK) status = start_threads(h, &watching, err);
    if (status != KV_OK) {
        if (watching) {
            kv_wake_set(&h->stop);
            kv_conn_watch_join(h);
        }
        kv_listen_stop(h);
        destroy(h);
        return status;
    }
    h->started = true;
    *out = h;
    return KV_OK;
}

int kv_http_port(const kv_http *h) {
    return h->port;
}

const char *kv_http_address(const kv_http *h, int i) {
    return i >= 0 && i < h->n_listeners ? h->listeners[i].address : NULL;
}

void kv_http_quiesce(kv_http *h) {
    if (!atomic_exchange(&h->quiesced, true)) kv_listen_quiesce(h);
}

int kv_http_in_flight(const kv_http *h) {
    return atomic_load(&h->in_flight);
}

void kv_http_stop(kv_http *h) {
    if (!h) return;
    atomic_store(&h->stopping, true);
    kv_wake_set(&h->stop);
    kv_conn_watch_join(h);
    kv_listen_stop(h);
    destroy(h);
}

kv_status kv_http_reload_keys(kv_http *h, kv_error *err) {
    return kv_keys_load(&h->keys, h->cfg.api_keys, h->cfg.n_api_keys, h->cfg.api_key_file, err);
}
