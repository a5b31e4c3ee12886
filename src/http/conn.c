#include "http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"

/* A new connection may be cut to make room for a newer one only when it has said nothing for this long: in a burst, one
 * whose first bytes are still on the way gets its turn, and the newest gets a 503. */
#define FIRST_BYTES_US 1000000

/* An answer's reader has this long to stop sending; nginx's default is 5 s, browsers and curl need milliseconds. */
#define LINGER_MS 2000

/* Under h->mutex. */
static void set_deadline(kv_conn *c, int64_t deadline, bool idle) {
    kv_http *h = c->http;
    c->deadline = deadline;
    c->idle = idle;
    if (deadline < h->next_deadline) {
        h->next_deadline = deadline;
        kv_wake_set(&h->tick);
    }
}

static int64_t from_now(const kv_http *h, int64_t more_us) {
    if (h->cfg.idle_timeout_s < 0) return KV_CONN_NEVER;
    return kv_now_us(kv_clock_real()) + (int64_t)h->cfg.idle_timeout_s * 1000000 + more_us;
}

void kv_conn_deadline(kv_conn *c, int64_t more_us) {
    pthread_mutex_lock(&c->http->mutex);
    set_deadline(c, from_now(c->http, more_us), false);
    pthread_mutex_unlock(&c->http->mutex);
}

void kv_conn_no_deadline(kv_conn *c) {
    pthread_mutex_lock(&c->http->mutex);
    set_deadline(c, KV_CONN_NEVER, false);
    pthread_mutex_unlock(&c->http->mutex);
}

void kv_conn_idle(kv_conn *c) {
    pthread_mutex_lock(&c->http->mutex);
    c->idle_since = kv_now_us(kv_clock_real());
    set_deadline(c, from_now(c->http, 0), !c->over_limit);
    pthread_mutex_unlock(&c->http->mutex);
}

/* The connection's own thread sees the end of its socket and winds up. Under h->mutex, which keeps the fd open. */
static void cut(kv_conn *c) {
    shutdown(c->fd, SHUT_RDWR);
    c->deadline = KV_CONN_NEVER;
    c->idle = false;
}

static void *watch(void *arg) {
    kv_http *h = arg;
    for (;;) {
        pthread_mutex_lock(&h->mutex);
        int64_t now = kv_now_us(kv_clock_real()), next = KV_CONN_NEVER;
        for (kv_conn *c = h->conns; c; c = c->next) {
            if (c->deadline <= now) cut(c);
            if (c->deadline < next) next = c->deadline;
        }
        h->next_deadline = next;
        pthread_mutex_unlock(&h->mutex);
        int64_t ms = next == KV_CONN_NEVER ? -1 : (next - now + 999) / 1000;
        if (kv_wake_wait_or(&h->tick, &h->stop, -1, ms > INT_MAX ? INT_MAX : (int)ms) == KV_WAIT_HUNG_UP) return NULL;
    }
}

kv_status kv_conn_watch_start(kv_http *h, kv_error *err) {
    h->next_deadline = KV_CONN_NEVER;
    errno = pthread_create(&h->watchdog, NULL, watch, h);
    return errno ? kv_fail_errno(err, "start a thread") : KV_OK;
}

void kv_conn_watch_join(kv_http *h) {
    pthread_join(h->watchdog, NULL);
}

static bool is_loopback(const struct sockaddr *a) {
    if (a && a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a && a->sa_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(six)) return six->s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(six);
    }
    return false;
}

/* Makes room for one connection by ending the one that waited longest for a next request. Under h->mutex. */
static bool cut_idlest(kv_http *h, int64_t now) {
    kv_conn *oldest = NULL;
    for (kv_conn *c = h->conns; c; c = c->next)
        if (c->idle && c->idle_since <= now && (!oldest || c->idle_since < oldest->idle_since)) oldest = c;
    if (oldest) cut(oldest);
    return oldest != NULL;
}

static void opened(kv_listener *l, struct MHD_Connection *mhd, void **context) {
    kv_http *h = l->http;
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *peer = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    kv_conn *c = kv_alloc(sizeof *c);
    int on = 1;
    /* Every piece of a stream is to leave at once. libmicrohttpd sees to that too, in its own order of calls. */
    (void)setsockopt(fd->connect_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->http = h;
    c->fd = fd->connect_fd;
    c->loopback = l->local || is_loopback(peer ? peer->client_addr : NULL);
    *context = c;

    pthread_mutex_lock(&h->mutex);
    int64_t now = kv_now_us(kv_clock_real());
    if (h->n_conns >= h->cfg.max_connections) c->over_limit = !cut_idlest(h, now);
    h->n_conns += !c->over_limit;
    c->next = h->conns;
    if (h->conns) h->conns->prev = c;
    h->conns = c;
    c->idle_since = now + FIRST_BYTES_US;
    set_deadline(c, from_now(h, 0), !c->over_limit);
    pthread_mutex_unlock(&h->mutex);
}

static void closed(kv_http *h, kv_conn *c) {
    pthread_mutex_lock(&h->mutex);
    h->n_conns -= !c->over_limit;
    if (c->prev) c->prev->next = c->next;
    else h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    pthread_mutex_unlock(&h->mutex);
    free(c);
}

void kv_conn_notify(void *listener, struct MHD_Connection *mhd, void **context,
                    enum MHD_ConnectionNotificationCode code) {
    kv_listener *l = listener;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) opened(l, mhd, context);
    else if (*context) {
        closed(l->http, *context);
        *context = NULL;
    }
}

void kv_conn_linger(kv_conn *c) {
    char away[16384];
    int64_t end = kv_now_us(kv_clock_real()) + LINGER_MS * 1000;
    struct pollfd p[2] = {{.fd = c->fd, .events = POLLIN}, {.fd = c->http->stop.fd[0], .events = POLLIN}};
    shutdown(c->fd, SHUT_WR);
    for (;;) {
        int64_t left = end - kv_now_us(kv_clock_real());
        if (left <= 0) return;
        int n = poll(p, 2, (int)((left + 999) / 1000));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || p[1].revents) return;
        ssize_t got = recv(c->fd, away, sizeof away, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
    }
}
