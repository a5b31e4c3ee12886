/* cli/service.h: what the service manager is told: when it may count on us, what we do, that we live.
 *
 *   LOADING ──STATUS=loading NAME: 42 %──► READY=1 ──► WATCHDOG=1 at half of WATCHDOG_USEC, while the engine gets on
 *                                             │ SIGHUP: RELOADING=1 … READY=1
 *   STOPPING=1 ◄──────────────────────────────┘ asleep: STATUS=…
 *
 * The sign of life is the engine thread's, not the main thread's: with requests at hand it is given only when the thread
 * did something since the last one. So a call into a driver that never returns ends in a restart; a server without work,
 * or asleep, is alive.
 *
 * Thread rule: the main thread; kv_service_open before others start.
 */
#ifndef KV_CLI_SERVICE_H
#define KV_CLI_SERVICE_H

#include "api/app.h"
#include "os/notify.h"

typedef struct kv_service {
    kv_notify notify;
    bool ready;   /* READY=1 was due */
    bool told;    /* and was sent */
    int percent;  /* of the last STATUS while loading; -1 = none */
    bool asleep;  /* what the last STATUS said */
    char at[400]; /* "http://127.0.0.1:8080" */
    char name[256];
    uint64_t marker;          /* the engine's progress at the last sign of life */
    int64_t ping_us, look_us; /* when the next sign of life is due; when to look again for progress */
} kv_service;

/* What counts of the server's state. */
typedef struct kv_service_view {
    kv_app_state state;
    int percent;     /* while loading, also when waking */
    bool busy;       /* the engine thread has something to do */
    uint64_t marker; /* changes whenever it has done something */
} kv_service_view;

/* Says by a warning in the log when NOTIFY_SOCKET cannot be used. */
void kv_service_open(kv_service *s);
void kv_service_close(kv_service *s);
/* Names for STATUS: of the model, and where it is served. Copied. */
void kv_service_name(kv_service *s, const char *model, const char *url);
void kv_service_look(kv_service_view *out, kv_app *app);
/* Sends what is due. Milliseconds until to call again, -1 = when something happens. now_us: any clock that runs on. */
int kv_service_tend(kv_service *s, const kv_service_view *view, int64_t now_us);
/* Around a reload. Nothing is sent before READY=1 was. */
void kv_service_reloading(kv_service *s);
void kv_service_reloaded(kv_service *s);
/* why: a failure's one line, NULL = we were asked to. */
void kv_service_stopping(kv_service *s, const char *why);

#endif
