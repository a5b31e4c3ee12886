/* os/wake.h: one thread tells another that something happened, in a form that poll() can wait for beside a socket.
 *
 * A kv_wake is a level: signalled until it is cleared, however often it was set. eventfd on Linux, a pipe elsewhere.
 *
 * Thread rule: kv_wake_set from any thread (async-signal-safe); wait and clear from one. A wake that is only ever
 * passed as `stop` (never cleared) may be waited for by any number of threads.
 */
#ifndef KV_OS_WAKE_H
#define KV_OS_WAKE_H

#include "base/error.h"

typedef struct kv_wake {
    int fd[2]; /* [0] is polled; [1] is written (the same one with eventfd); -1 when closed */
} kv_wake;

typedef enum kv_wait { KV_WAIT_WOKEN, KV_WAIT_TIMEOUT, KV_WAIT_HUNG_UP } kv_wait;

kv_status kv_wake_init(kv_wake *w, kv_error *err);
void kv_wake_free(kv_wake *w);
void kv_wake_set(kv_wake *w);
/* Wait until `w` is set (and clear it), the peer of `sock` hangs up, or timeout_ms passes (-1 = no limit).
 * sock -1: none. A half-closed peer (FIN received) counts as hung up: POLLRDHUP on Linux, POLLHUP on macOS. Bytes
 * that the peer sent and nobody has read yet do not. Where several are true, a hang-up is told first, `w` stays set. */
kv_wait kv_wake_wait(kv_wake *w, int sock, int timeout_ms);
/* The same with a second wake: `stop` being set reads as KV_WAIT_HUNG_UP and is not cleared. w and stop may be NULL. */
kv_wait kv_wake_wait_or(kv_wake *w, const kv_wake *stop, int sock, int timeout_ms);

#endif
