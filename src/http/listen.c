/* The listening sockets: our own, so that a failure can be explained, and so that several addresses, names, port 0 and
 * UNIX sockets work alike.
 *
 * A UNIX socket is a file. It is made 0600 between bind() and listen(): before listen() nobody can connect. A file that
 * a server left behind is known by nobody answering there; it is removed, anything else at that path is not. At the end
 * the file is removed if it is still the one that was made here. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/server.h"

static int close_keeping_errno(int fd) {
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static int new_socket(int family, int protocol) {
    int fd = socket(family, SOCK_STREAM, protocol);
    if (fd < 0) return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return close_keeping_errno(fd);
    return fd;
}

/* ── TCP ── */

static int listen_at(const struct addrinfo *at, bool only_v6, bool share_port) {
    int on = 1, v6only = only_v6;
    int fd = new_socket(at->ai_family, at->ai_protocol);
    if (fd < 0) return -1;
    bool ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (ok && share_port) ok = setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0;
    if (ok && at->ai_family == AF_INET6) ok = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only) == 0;
    if (ok && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    return close_keeping_errno(fd);
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

/* Who names "::" beside an IPv4 address means IPv6 by it: alone it takes both families, and then the other's port. */
static bool has_v4(const kv_http_config *c) {
    struct in_addr four;
    for (int i = 0; i < c->n_hosts; i++)
        if (inet_pton(AF_INET, c->hosts[i], &four) == 1) return true;
    return false;
}

static kv_status open_tcp(kv_http *h, kv_listener *l, const char *host, kv_error *err) {
    char name[256], port[16];
    kv_buf address = {0};
    size_t n = strlen(host);
    int want = h->port ? h->port : h->cfg.port; /* port 0: what the first address got, for all */
    bool brackets = n > 2 && host[0] == '[' && host[n - 1] == ']';
    snprintf(name, sizeof name, "%.*s", (int)(brackets ? n - 2 : n), brackets ? host + 1 : host);
    snprintf(port, sizeof port, "%d", want);

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    int code = getaddrinfo(name, port, &hints, &list);
    if (code != 0) return kv_fail_field(err, "--host", "cannot find the address of %s: %s", name, gai_strerror(code));
    /* IPv4 first: clients that are told "localhost" try it more often, and it is what llama-server binds */
    for (int pass = 0; pass < 2 && l->fd < 0; pass++)
        for (const struct addrinfo *at = list; at && l->fd < 0; at = at->ai_next)
            if ((at->ai_family == AF_INET) == (pass == 0)) l->fd = listen_at(at, has_v4(&h->cfg), h->cfg.reuse_port);
    int bind_errno = errno;
    freeaddrinfo(list);
    if (l->fd < 0) {
        errno = bind_errno;
        return kv_fail_errno(err,
                             bind_errno == EADDRINUSE ? "listen on %s port %d: another program has it; choose "
                                                        "another with --port"
                                                      : "listen on %s port %d",
                             name, want);
    }
    int bound = bound_port(l->fd);
    if (h->port == 0) h->port = bound;
    bool v6 = strchr(name, ':') != NULL;
    kv_buf_addf(&address, "%s://%s%s%s:%d", h->tls_key.len ? "https" : "http", v6 ? "[" : "", name, v6 ? "]" : "",
                bound);
    l->address = kv_buf_take(&address);
    return KV_OK;
}

/* ── UNIX ── */

static bool answers(const struct sockaddr_un *at) {
    int fd = new_socket(AF_UNIX, 0); /* not blocking: who has no room for us in its queue is there, too */
    if (fd < 0) return true;         /* not to be told: then it is not ours to remove */
    bool there = connect(fd, (const struct sockaddr *)at, sizeof *at) == 0 || errno != ECONNREFUSED;
    close(fd);
    return there;
}

/* Nothing may be at the path but a socket at which nobody answers, which goes. */
static kv_status clear_path(const struct sockaddr_un *at, kv_error *err) {
    struct stat s;
    if (lstat(at->sun_path, &s) != 0) return KV_OK; /* bind() says what else is wrong */
    if (!S_ISSOCK(s.st_mode))
        return kv_fail_field(err, "--host",
                             "--host %s: a file that is no socket is there; remove it, or choose another path",
                             at->sun_path);
    if (answers(at))
        return kv_fail_field(err, "--host", "--host %s: another program listens there; stop it, or choose another path",
                             at->sun_path);
    if (unlink(at->sun_path) != 0) return kv_fail_errno(err, "remove the old socket %s", at->sun_path);
    return KV_OK;
}

static kv_status open_unix(kv_listener *l, const char *path, kv_error *err) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat s;
    kv_buf address = {0};
    size_t n = strlen(path);
    if (n >= sizeof at.sun_path)
        return kv_fail_field(err, "--host",
                             "--host %.60s…: the path of a UNIX socket has at most %zu bytes, this one has %zu", path,
                             sizeof at.sun_path - 1, n);
    memcpy(at.sun_path, path, n + 1);
    kv_status status = clear_path(&at, err);
    if (status != KV_OK) return status;
    int fd = new_socket(AF_UNIX, 0);
    if (fd < 0) return kv_fail_errno(err, "make a UNIX socket");
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) != 0) {
        close_keeping_errno(fd);
        return kv_fail_errno(err, "listen on %s", path);
    }
    if (chmod(path, 0600) != 0 || listen(fd, SOMAXCONN) != 0 || lstat(path, &s) != 0) {
        close_keeping_errno(fd);
        status = kv_fail_errno(err, "listen on %s", path);
        unlink(path);
        return status;
    }
    l->fd = fd;
    l->local = true;
    l->device = (uint64_t)s.st_dev;
    l->inode = (uint64_t)s.st_ino;
    l->socket_path = kv_strdup(path);
    kv_buf_addf(&address, "unix:%s", path);
    l->address = kv_buf_take(&address);
    return KV_OK;
}

/* ── all ── */

static bool is_path(const char *host) {
    size_t n = strlen(host);
    return strchr(host, '/') || (n > 5 && strcmp(host + n - 5, ".sock") == 0);
}

kv_status kv_listen_open(kv_http *h, kv_error *err) {
    kv_status status = KV_OK;
    h->listeners = kv_alloc((size_t)h->cfg.n_hosts * sizeof *h->listeners);
    for (int i = 0; i < h->cfg.n_hosts && status == KV_OK; i++) {
        kv_listener *l = &h->listeners[h->n_listeners++];
        *l = (kv_listener){.http = h, .fd = -1};
        status = is_path(h->cfg.hosts[i]) ? open_unix(l, h->cfg.hosts[i], err) : open_tcp(h, l, h->cfg.hosts[i], err);
    }
    return status;
}

static void remove_file(kv_listener *l) {
    struct stat s;
    if (l->socket_path && lstat(l->socket_path, &s) == 0 && S_ISSOCK(s.st_mode) && (uint64_t)s.st_dev == l->device &&
        (uint64_t)s.st_ino == l->inode)
        unlink(l->socket_path);
    free(l->socket_path);
    l->socket_path = NULL;
}

void kv_listen_quiesce(kv_http *h) {
    for (int i = 0; i < h->n_listeners; i++) {
        kv_listener *l = &h->listeners[i];
        if (l->daemon) MHD_quiesce_daemon(l->daemon);
        remove_file(l);
        /* The listener thread may still poll the socket: on Linux shutdown() refuses new connections at once and the
         * number stays taken; elsewhere shutdown() of a listening socket fails, and closing it is the way. */
        if (l->fd >= 0 && shutdown(l->fd, SHUT_RDWR) != 0) {
            close(l->fd);
            l->fd = -1;
        }
    }
}

void kv_listen_stop(kv_http *h) {
    for (int i = 0; i < h->n_listeners; i++) {
        kv_listener *l = &h->listeners[i];
        if (!l->daemon) continue;
        if (!atomic_load(&h->quiesced)) l->fd = -1; /* MHD_stop_daemon closes it */
        MHD_stop_daemon(l->daemon);
        l->daemon = NULL;
    }
}

void kv_listen_close(kv_http *h) {
    for (int i = 0; i < h->n_listeners; i++) {
        kv_listener *l = &h->listeners[i];
        remove_file(l);
        if (l->fd >= 0) close(l->fd);
        free(l->address);
    }
    free(h->listeners);
    h->listeners = NULL;
    h->n_listeners = 0;
}
