/* cli/engine_thread.h: the thread that owns the model's context: it loads, serves, and frees what it made.
 *
 *   LOADING ──► SERVING ──kv_sched_run returned──► OVER ──release──► (joined)
 *      └──────► FAILED / CANCELLED ────────────────┘
 *
 * Thread rule: created, asked and joined by the main thread. Model, scheduler and engine_info in the kv_app stay valid
 * until kv_engine_thread_join, which is called when no HTTP thread is left.
 */
#ifndef KV_CLI_ENGINE_THREAD_H
#define KV_CLI_ENGINE_THREAD_H

#include "api/app.h"
#include "os/wake.h"

typedef struct kv_engine_thread kv_engine_thread;

/* `wake` is set when the thread fails or leaves its loop. It moves app->state from LOADING to READY, or to FAILED. */
kv_status kv_engine_thread_start(kv_engine_thread **out, const kv_options *opt, kv_app *app, kv_wake *wake,
                                 kv_error *err);
/* True once there is nothing more to come from it: it failed, was cancelled, or left its loop. */
bool kv_engine_thread_over(kv_engine_thread *t);
/* KV_OK, or why the load failed. Valid once it is over. */
kv_status kv_engine_thread_result(kv_engine_thread *t, kv_error *err);
/* Ends a load at its next step. */
void kv_engine_thread_cancel(kv_engine_thread *t);
/* Lets it free scheduler, engine and model, and waits for it. */
void kv_engine_thread_join(kv_engine_thread *t, double flush_seconds);

#endif
