#include "cli/service.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/gate.h"
#include "base/log.h"

#define LOADING_MS 500 /* between two looks at the percentage */
#define RETRY_MS   500 /* when READY=1 could not be sent */
/* With nothing done since the last sign of life, the next look comes after this share of the watchdog's time: often
 * enough that a call that returns at the last moment still counts. */
#define LOOK_SHARE 20

void kv_service_open(kv_service *s) {
    kv_error err = {0};
    *s = (kv_service){.percent = -1, .name = "the model"};
    if (kv_notify_open(&s->notify, &err) != KV_OK) KV_WARN("the service manager is told nothing: %s", err.message);
}

void kv_service_close(kv_service *s) {
    kv_notify_close(&s->notify);
}

/* One line of plain text, whatever a model may be called. */
static void copy_line(char *out, size_t cap, const char *text) {
    snprintf(out, cap, "%s", text);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
}

void kv_service_name(kv_service *s, const char *model, const char *url) {
    copy_line(s->name, sizeof s->name, model);
    copy_line(s->at, sizeof s->at, url);
}

void kv_service_look(kv_service_view *out, kv_app *app) {
    kv_sched_stats stats;
    *out =
        (kv_service_view){.state = (kv_app_state)atomic_load(&app->state), .percent = atomic_load(&app->load_percent)};
    if (out->state == KV_APP_READY) { /* only this thread ends that state, so the scheduler is there */
        kv_sched_get_stats(&stats, app->sched);
        out->busy = !kv_sched_idle(app->sched); /* from the submission on, not only from the end of its first step */
        out->marker = stats.n_steps;
    } else if (out->state == KV_APP_ASLEEP) {
        out->busy = kv_gate_wanted(app->gate);
        out->marker = (uint64_t)out->percent;
    }
}

static bool send_ready(kv_service *s) {
    char lines[800];
    snprintf(lines, sizeof lines, "READY=1\nSTATUS=serving %s on %s", s->name, s->at);
    return kv_notify_send(&s->notify, lines);
}

static void tell_status(kv_service *s, const kv_service_view *v) {
    char lines[400];
    bool loading = v->state == KV_APP_LOADING || (v->state == KV_APP_ASLEEP && v->busy);
    if (loading && v->percent != s->percent) {
        s->percent = v->percent;
        snprintf(lines, sizeof lines, "STATUS=loading %s: %d %%", s->name, v->percent);
        kv_notify_send(&s->notify, lines);
    } else if (v->state == KV_APP_ASLEEP && !s->asleep) {
        s->percent = -1;
        snprintf(lines, sizeof lines, "STATUS=asleep: the next request loads %s again", s->name);
        kv_notify_send(&s->notify, lines);
    }
    if (v->state == KV_APP_READY && s->asleep) s->told = false; /* READY=1 once more is harmless, and has the status */
    s->asleep = v->state == KV_APP_ASLEEP;
}

/* Microseconds until the next look. */
static int64_t tend_watchdog(kv_service *s, const kv_service_view *v, int64_t now_us) {
    int64_t half = s->notify.watchdog_us / 2, due = s->ping_us > s->look_us ? s->ping_us : s->look_us;
    if (now_us < due) return due - now_us;
    if (v->busy && v->marker == s->marker) {
        s->look_us = now_us + s->notify.watchdog_us / LOOK_SHARE;
        return s->look_us - now_us;
    }
    /* Idle, the next work may begin at once: a marker that nothing equals lets it count from there. */
    s->marker = v->busy ? v->marker : UINT64_MAX;
    if (!kv_notify_send(&s->notify, "WATCHDOG=1")) {
        s->look_us = now_us + s->notify.watchdog_us / LOOK_SHARE;
        return s->look_us - now_us;
    }
    s->ping_us = now_us + half;
    return half;
}

int kv_service_tend(kv_service *s, const kv_service_view *v, int64_t now_us) {
    if (!kv_notify_on(&s->notify)) return -1;
    tell_status(s, v);
    if (v->state == KV_APP_LOADING) return LOADING_MS;
    if (v->state == KV_APP_READY && !s->ready) {
        s->ready = true;
        s->marker = UINT64_MAX;
        s->ping_us = now_us; /* the manager counts from READY=1 on */
    }
    if (!s->ready) return -1;
    if (v->state == KV_APP_READY && !s->told) s->told = send_ready(s);
    int64_t left_us = s->notify.watchdog_us > 0 ? tend_watchdog(s, v, now_us) : -1;
    int64_t ms = left_us < 0 ? -1 : (left_us + 999) / 1000;
    if (v->state == KV_APP_READY && !s->told && (ms < 0 || ms > RETRY_MS)) ms = RETRY_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

void kv_service_reloading(kv_service *s) {
    char lines[80];
    if (!s->ready) return;
    snprintf(lines, sizeof lines, "RELOADING=1\nMONOTONIC_USEC=%" PRId64, kv_notify_monotonic_us());
    kv_notify_send(&s->notify, lines);
}

void kv_service_reloaded(kv_service *s) {
    if (!s->ready) return;
    if (s->asleep) kv_notify_send(&s->notify, "READY=1"); /* the status stays */
    else s->told = send_ready(s);                         /* tried again by the next tend */
}

void kv_service_stopping(kv_service *s, const char *why) {
    char text[500], lines[600];
    copy_line(text, sizeof text, why ? why : "stopping");
    snprintf(lines, sizeof lines, "STOPPING=1\nSTATUS=%s", text);
    kv_notify_send(&s->notify, lines);
}
