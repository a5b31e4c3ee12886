#include "http/server.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "os/machine.h"

/* Templates, JSON schemas and grammars of libllama-common recurse on these threads; only touched pages cost memory.
 * The default of macOS (512 KiB) would not do. */
#define STACK_BYTES (8u << 20)

/* ── configuration ── */

static const char **copy_list(const char *const *list, int n, const char *one_more) {
    const char **copy = kv_alloc(((size_t)n + 1) * sizeof *copy);
    for (int i = 0; i < n; i++) copy[i] = kv_strdup(list[i]);
    copy[n] = kv_strdup(one_more);
    return copy;
}

static void free_list(const char *const *list, int n) {
    for (int i = 0; list && i < n; i++) free((void *)list[i]);
    free((void *)list);
}

static void copy_config(kv_http *h, const kv_http_config *cfg) {
    kv_http_config *c = &h->cfg;
    *c = *cfg;
    c->host = kv_strdup(cfg->host && cfg->host[0] ? cfg->host : "127.0.0.1");
    if (c->max_body == 0) c->max_body = (size_t)64 << 20;
    if (c->max_headers == 0) c->max_headers = 64 << 10;
    if (c->max_connections <= 0) c->max_connections = 512;
    if (c->idle_timeout_s == 0) c->idle_timeout_s = 60;
    c->api_key_file = kv_strdup(cfg->api_key_file);
    c->api_keys = copy_list(cfg->api_keys, cfg->n_api_keys, NULL);
    c->cors_origins = kv_strdup(cfg->cors_origins ? cfg->cors_origins : "localhost");
    /* who binds to a name wants to be called by it */
    c->allowed_hosts = copy_list(cfg->allowed_hosts, cfg->n_allowed_hosts, c->host);
    c->n_allowed_hosts = cfg->n_allowed_hosts + 1;
    c->prefix = kv_strdup(cfg->prefix);
}

static void free_config(kv_http_config *c) {
    free((void *)c->host);
    free((void *)c->api_key_file);
    free_list(c->api_keys, c->n_api_keys);
    free((void *)c->cors_origins);
    free_list(c->allowed_hosts, c->n_allowed_hosts);
    free((void *)c->prefix);
}

/* ── the listening socket: our own, so that a failure can be explained and ::1, names and port 0 work alike ── */

static int listen_at(const struct addrinfo *at) {
    int on = 1, off = 0;
    int fd = socket(at->ai_family, SOCK_STREAM, at->ai_protocol);
    if (fd < 0) return -1;
    bool ok = fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0 &&
              setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (ok && at->ai_family == AF_INET6) ok = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    if (ok && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static int bound_port(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } a;
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n) != 0) return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.six.sin6_port : a.four.sin_port);
}

static kv_status open_socket(kv_http *h, kv_error *err) {
    char name[256], port[16];
    const char *host = h->cfg.host;
    size_t n = strlen(host);
    bool brackets = n > 2 && host[0] == '[' && host[n - 1] == ']';
    snprintf(name, sizeof name, "%.*s", (int)(brackets ? n - 2 : n), brackets ? host + 1 : host);
    snprintf(port, sizeof port, "%d", h->cfg.port);

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    int code = getaddrinfo(name, port, &hints, &list);
    if (code != 0) return kv_fail_field(err, "--host", "cannot find the address of %s: %s", name, gai_strerror(code));
    /* IPv4 first: clients that are told "localhost" try it more often, and it is what llama-server binds */
    for (int pass = 0; pass < 2 && h->listen_fd < 0; pass++)
        for (const struct addrinfo *at = list; at && h->listen_fd < 0; at = at->ai_next)
            if ((at->ai_family == AF_INET) == (pass == 0)) h->listen_fd = listen_at(at);
    int bind_errno = errno;
    freeaddrinfo(list);
    if (h->listen_fd < 0) {
        errno = bind_errno;
        return kv_fail_errno(err,
                             bind_errno == EADDRINUSE ? "listen on %s port %d: another program has it; choose "
                                                        "another with --port"
                                                      : "listen on %s port %d",
                             name, h->cfg.port);
    }
    h->port = bound_port(h->listen_fd);
    return KV_OK;
}

/* ── start and stop ── */

static void mhd_log(void *unused, const char *fmt, va_list args) {
    (void)unused;
    if (!kv_log_enabled(KV_LOG_DEBUG)) return;
    char text[512];
    int n = vsnprintf(text, sizeof text, fmt, args);
    while (n > 0 && (size_t)n < sizeof text && text[n - 1] == '\n') text[--n] = '\0';
    kv_log(KV_LOG_DEBUG, "http: %s", text);
}

static kv_status start_daemon(kv_http *h, kv_error *err) {
    const kv_http_config *c = &h->cfg;
    /* Some connections above the limit get in, to be told 503; libmicrohttpd closes what comes on top of them. */
    unsigned limit = (unsigned)c->max_connections + 8 + (unsigned)c->max_connections / 8;
    /* Per connection, touched only as needed: headers above the limit are still to be read, to be answered in our own
     * words, with room for the response's header and a chunk. */
    size_t memory = 2 * c->max_headers + 65536;
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG;
    kv_machine_raise_open_files((uint64_t)limit * 3 + 256); /* a socket, a wake and something to spare each */
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, kv_request_access, h,           //
                                 MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL,            //
                                 MHD_OPTION_LISTEN_SOCKET, h->listen_fd,               //
                                 MHD_OPTION_CONNECTION_LIMIT, limit,                   //
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory,           //
                                 MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,    //
                                 MHD_OPTION_URI_LOG_CALLBACK, kv_request_uri, h,       //
                                 MHD_OPTION_NOTIFY_COMPLETED, kv_request_completed, h, //
                                 MHD_OPTION_NOTIFY_CONNECTION, kv_conn_notify, h, MHD_OPTION_END);
    if (!h->daemon) return kv_fail(err, KV_INTERNAL, "the HTTP server could not start its thread");
    return KV_OK;
}

/* No signal is ever delivered to the threads started here: they are the main thread's to handle. */
static kv_status start_threads(kv_http *h, bool *watching, kv_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    kv_status status = kv_conn_watch_start(h, err);
    *watching = status == KV_OK;
    if (status == KV_OK) status = start_daemon(h, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void destroy(kv_http *h) {
    if (h->listen_fd >= 0) close(h->listen_fd);
    kv_wake_free(&h->stop);
    kv_wake_free(&h->tick);
    kv_keys_free(&h->keys);
    pthread_mutex_destroy(&h->mutex);
    free_config(&h->cfg);
    free(h);
}

kv_status kv_http_start(kv_http **out, const kv_http_config *cfg, kv_error *err) {
    *out = NULL;
    bool watching = false;
    kv_http *h = kv_alloc(sizeof *h);
    h->listen_fd = -1;
    h->stop = h->tick = (kv_wake){{-1, -1}};
    kv_keys_init(&h->keys);
    pthread_mutex_init(&h->mutex, NULL);
    copy_config(h, cfg);
    kv_status status = kv_http_reload_keys(h, err);
    if (status == KV_OK) status = kv_wake_init(&h->stop, err);
    if (status == KV_OK) status = kv_wake_init(&h->tick, err);
    if (status == KV_OK) status = open_socket(h, err);
    if (status == KV_OK) status = start_threads(h, &watching, err);
    if (status != KV_OK) {
        if (watching) {
            kv_wake_set(&h->stop);
            kv_conn_watch_join(h);
        }
        destroy(h);
        return status;
    }
    *out = h;
    return KV_OK;
}

int kv_http_port(const kv_http *h) {
    return h->port;
}

void kv_http_quiesce(kv_http *h) {
    if (atomic_exchange(&h->quiesced, true)) return;
    MHD_quiesce_daemon(h->daemon);
    /* The listener thread may still poll the socket: on Linux shutdown() refuses new connections at once and the number
     * stays taken; elsewhere shutdown() of a listening socket fails, and closing it is the way. */
    if (shutdown(h->listen_fd, SHUT_RDWR) != 0) {
        close(h->listen_fd);
        h->listen_fd = -1;
    }
}

int kv_http_in_flight(const kv_http *h) {
    return atomic_load(&h->in_flight);
}

void kv_http_stop(kv_http *h) {
    if (!h) return;
    atomic_store(&h->stopping, true);
    kv_wake_set(&h->stop);
    kv_conn_watch_join(h);
    if (!atomic_load(&h->quiesced)) h->listen_fd = -1; /* MHD_stop_daemon closes it */
    MHD_stop_daemon(h->daemon);
    destroy(h);
}

kv_status kv_http_reload_keys(kv_http *h, kv_error *err) {
    return kv_keys_load(&h->keys, h->cfg.api_keys, h->cfg.n_api_keys, h->cfg.api_key_file, err);
}
