/* os/notify.h: tells the service manager how the process fares, in sd_notify's protocol.
 *
 * One datagram of "NAME=value" lines to the socket that NOTIFY_SOCKET names: a path, or "@name" in Linux's abstract
 * namespace. The protocol is stable and this small, so that libsystemd (which a relocatable binary would have to find
 * on each machine) is not linked. Without the variable every call is a no-op.
 *
 * Thread rule: kv_notify_open before other threads start (it takes the variables out of the environment, so that no
 * child process speaks for us); the rest from one thread.
 */
#ifndef KV_OS_NOTIFY_H
#define KV_OS_NOTIFY_H

#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

#define KV_NOTIFY_PATH_MAX 108 /* sun_path of Linux; macOS has 104 */

typedef struct kv_notify {
    int fd; /* -1: nobody listens */
    char path[KV_NOTIFY_PATH_MAX + 1];
    int64_t watchdog_us; /* within which the manager wants a sign of life; 0 = it does not */
} kv_notify;

/* KV_OK also when nobody listens. KV_INVALID or KV_UNSUPPORTED for an address that cannot be used; `n` is then as
 * without one. WATCHDOG_USEC counts only where WATCHDOG_PID is missing or names this process. */
kv_status kv_notify_open(kv_notify *n, kv_error *err);
void kv_notify_close(kv_notify *n);
bool kv_notify_on(const kv_notify *n);
/* Lines as sd_notify(3) has them, separated by '\n'. Never waits: false when the manager's queue is full or its socket
 * is gone, and the caller may try again. True when nobody listens. */
bool kv_notify_send(const kv_notify *n, const char *lines);
/* CLOCK_MONOTONIC in microseconds, for MONOTONIC_USEC=. */
int64_t kv_notify_monotonic_us(void);

#endif
