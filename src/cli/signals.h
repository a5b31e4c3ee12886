/* cli/signals.h: signals as a level that the main thread waits for, and the watchdog of the stop.
 *
 *   SIGTERM, SIGINT   the first asks for a stop; the second ends the process at once with status 1
 *   SIGHUP            log file and keys are to be read anew
 *   SIGALRM           the watchdog: a stop took longer than --stop-timeout, whatever hangs; status 1
 *   SIGPIPE           ignored
 *
 * Thread rule: process-wide; the main thread. Threads that should never be interrupted are started between
 * kv_signals_block and kv_signals_unblock: they inherit the mask.
 */
#ifndef KV_CLI_SIGNALS_H
#define KV_CLI_SIGNALS_H

#include "base/error.h"
#include "os/wake.h"
#include <signal.h>
#include <stdbool.h>

/* `wake` is set by each signal; borrowed until kv_signals_stop. */
kv_status kv_signals_start(kv_wake *wake, kv_error *err);
void kv_signals_stop(void); /* the defaults again, the watchdog off; SIGHUP is ignored, the process is to end */
bool kv_signals_asked_to_stop(void);
bool kv_signals_take_hup(void); /* true once for each SIGHUP (or several close together) */
void kv_signals_block(sigset_t *before);
void kv_signals_unblock(const sigset_t *before);
/* The process ends with status 1 when kv_signals_stop is not called within `seconds`. */
void kv_watchdog_arm(double seconds);

#endif
