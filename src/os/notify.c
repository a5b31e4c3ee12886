#ifdef __linux__
#define _GNU_SOURCE 1
#endif
#include "os/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS; the process ignores SIGPIPE */
#endif

/* A whole positive number, else 0. */
static int64_t number(const char *text) {
    char *end;
    if (!text || text[0] < '0' || text[0] > '9') return 0;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0' ? n : 0;
}

static int64_t watchdog_us(void) {
    const char *pid = getenv("WATCHDOG_PID");
    if (pid && number(pid) != (int64_t)getpid()) return 0;
    return number(getenv("WATCHDOG_USEC"));
}

/* The address and its length; 0 for one that is too long. */
static socklen_t fill_address(struct sockaddr_un *a, const char *path) {
    size_t n = strlen(path);
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n > sizeof a->sun_path) return 0;
    memcpy(a->sun_path, path, n);
    if (path[0] == '@') a->sun_path[0] = '\0'; /* an abstract name is as long as the address, and has no NUL behind */
    else if (n == sizeof a->sun_path) return 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] != '@'));
}

static kv_status open_socket(kv_notify *n, const char *path, kv_error *err) {
    struct sockaddr_un address;
    bool abstract = path[0] == '@';
    if ((path[0] != '/' && !abstract) || path[1] == '\0')
        return kv_fail(err, KV_UNSUPPORTED, "NOTIFY_SOCKET=%.120s is neither a path nor an abstract socket's name",
                       path);
#ifndef __linux__
    if (abstract) return kv_fail(err, KV_UNSUPPORTED, "NOTIFY_SOCKET=%.120s: only Linux has abstract sockets", path);
#endif
    if (fill_address(&address, path) == 0)
        return kv_fail(err, KV_INVALID, "NOTIFY_SOCKET=%.120s… has %zu bytes, at most %zu are possible", path,
                       strlen(path), sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0) return kv_fail_errno(err, "a socket for NOTIFY_SOCKET");
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    n->fd = fd;
    snprintf(n->path, sizeof n->path, "%s", path);
    return KV_OK;
}

kv_status kv_notify_open(kv_notify *n, kv_error *err) {
    *n = (kv_notify){.fd = -1};
    const char *path = getenv("NOTIFY_SOCKET");
    kv_status st = path && path[0] ? open_socket(n, path, err) : KV_OK;
    if (n->fd >= 0) n->watchdog_us = watchdog_us();
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return st;
}

void kv_notify_close(kv_notify *n) {
    if (n->fd >= 0) close(n->fd);
    *n = (kv_notify){.fd = -1};
}

bool kv_notify_on(const kv_notify *n) {
    return n->fd >= 0;
}

bool kv_notify_send(const kv_notify *n, const char *lines) {
    struct sockaddr_un address;
    if (n->fd < 0) return true;
    socklen_t length = fill_address(&address, n->path);
    size_t size = strlen(lines);
    ssize_t sent;
    /* Addressed each time: a manager that was started anew has another socket under the same name. */
    do sent = sendto(n->fd, lines, size, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&address, length);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

int64_t kv_notify_monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
