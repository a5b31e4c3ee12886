/* cli/engine_thread.h: the thread that owns the model's context: it loads, serves, and frees what it made.
 *
 *   LOADING ──► SERVING ──kv_sched_run returned──► OVER ──release──► (joined)
 *      │         ▲   │ tend: idle for long            ▲
 *      │  loaded │   ▼                                │
 *      │        ASLEEP ───────── the server ends ─────┤
 *      └──────► FAILED / CANCELLED ───────────────────┘
 *
 * Asleep, scheduler, engine and model are freed. What was captured is written to disk, and leaves memory then; where
 * there is no disk, the cache in memory is all there is of the conversations and stays. The first request at the gate
 * (api/gate.h) has the model loaded again, with the choices of the first time. Should that fail, those who wait are told,
 * and the next request tries again.
 *
 * Thread rule: created, asked and joined by the main thread. Model, scheduler and engine_info in the kv_app stay valid
 * while the gate says so, and then until kv_engine_thread_join, which is called when no HTTP thread is left.
 */
#ifndef KV_CLI_ENGINE_THREAD_H
#define KV_CLI_ENGINE_THREAD_H

#include "api/app.h"
#include "os/wake.h"

typedef struct kv_engine_thread kv_engine_thread;

/* `wake` is set when the thread fails or leaves its loop, and when it begins to serve. It moves app->state from LOADING to
 * READY, or to FAILED. */
kv_status kv_engine_thread_start(kv_engine_thread **out, const kv_options *opt, kv_app *app, kv_wake *wake,
                                 kv_error *err);
/* Puts it to sleep if nobody wanted the model for --sleep-idle-seconds. Milliseconds until to call again, -1 = when the
 * wake is set. */
int kv_engine_thread_tend(kv_engine_thread *t);
/* True once there is nothing more to come from it: it failed, was cancelled, or left its loop. */
bool kv_engine_thread_over(kv_engine_thread *t);
/* KV_OK, or why the load failed. Valid once it is over. */
kv_status kv_engine_thread_result(kv_engine_thread *t, kv_error *err);
/* Ends a load at its next step. */
void kv_engine_thread_cancel(kv_engine_thread *t);
/* Lets it free scheduler, engine and model, and waits for it. */
void kv_engine_thread_join(kv_engine_thread *t, double flush_seconds);

#endif
