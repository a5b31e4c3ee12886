#ifdef __linux__
#define _GNU_SOURCE 1 /* POLLRDHUP */
#endif
#include "os/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>
#define PEER_GONE POLLRDHUP
#else
#define PEER_GONE POLLHUP
#endif

#include "base/clock.h"

/* Without descriptors this request cannot be served, the next one can when others have ended. */
static kv_status failed(kv_error *err, const char *what) {
    if (errno != EMFILE && errno != ENFILE) return kv_fail_errno(err, "%s", what);
    return kv_fail(err, KV_BUSY, "too many files are open for another request: try again (more: ulimit -n)");
}

kv_status kv_wake_init(kv_wake *w, kv_error *err) {
    w->fd[0] = w->fd[1] = -1;
#ifdef __linux__
    w->fd[0] = w->fd[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd[0] < 0) return failed(err, "eventfd");
#else
    if (pipe(w->fd) != 0) return failed(err, "pipe");
    for (int i = 0; i < 2; i++) {
        if (fcntl(w->fd[i], F_SETFD, FD_CLOEXEC) != 0 || fcntl(w->fd[i], F_SETFL, O_NONBLOCK) != 0) {
            kv_status status = kv_fail_errno(err, "fcntl on a pipe");
            kv_wake_free(w);
            return status;
        }
    }
#endif
    return KV_OK;
}

void kv_wake_free(kv_wake *w) {
    if (w->fd[0] >= 0) close(w->fd[0]);
    if (w->fd[1] >= 0 && w->fd[1] != w->fd[0]) close(w->fd[1]);
    w->fd[0] = w->fd[1] = -1;
}

/* A failed write means that the counter or pipe is full, which is as set as it can be. */
void kv_wake_set(kv_wake *w) {
    int saved = errno; /* also called from signal handlers */
    uint64_t one = 1;
    ssize_t n;
    do n = write(w->fd[1], &one, sizeof one);
    while (n < 0 && errno == EINTR);
    errno = saved;
}

static void clear(kv_wake *w) {
    uint64_t bytes[8];
    ssize_t n;
    do n = read(w->fd[0], bytes, sizeof bytes);
    while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
}

static int time_left_ms(int64_t deadline_us) {
    int64_t left = deadline_us - kv_now_us(kv_clock_real());
    if (left <= 0) return 0;
    left = (left + 999) / 1000; /* rounded up: poll must not return before the deadline and spin */
    return left > INT_MAX ? INT_MAX : (int)left;
}

kv_wait kv_wake_wait_or(kv_wake *w, const kv_wake *stop, int sock, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? 0 : kv_now_us(kv_clock_real()) + (int64_t)timeout_ms * 1000;
    struct pollfd p[3] = {
        {.fd = w ? w->fd[0] : -1, .events = POLLIN}, /* poll skips an fd of -1 */
        {.fd = stop ? stop->fd[0] : -1, .events = POLLIN},
        {.fd = sock, .events = PEER_GONE},
    };
    for (;;) {
        int left = timeout_ms < 0 ? -1 : time_left_ms(deadline);
        int n = poll(p, 3, left);
        if (n < 0 && errno != EINTR && errno != EAGAIN) return KV_WAIT_HUNG_UP; /* waiting on could last for ever */
        if (n > 0 && (p[1].revents || p[2].revents)) return KV_WAIT_HUNG_UP;
        if (n > 0 && p[0].revents) {
            clear(w);
            return KV_WAIT_WOKEN;
        }
        if (n == 0 && timeout_ms >= 0 && time_left_ms(deadline) == 0) return KV_WAIT_TIMEOUT;
#ifndef __linux__
        /* Some BSD polls return early, telling nothing, while bytes of a next request lie in the socket. Then look at
         * it only every 100 ms; the wakes are still seen at once. */
        if (n == 0) poll(p, 2, timeout_ms >= 0 && time_left_ms(deadline) < 100 ? time_left_ms(deadline) : 100);
#endif
    }
}

kv_wait kv_wake_wait(kv_wake *w, int sock, int timeout_ms) {
    return kv_wake_wait_or(w, NULL, sock, timeout_ms);
}
