#include "api/gate.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api/app.h"
#include "api/body.h"
#include "api/stream.h"
#include "base/clock.h"
#include "base/json.h"

struct kv_gate {
    pthread_mutex_t mutex;  /* guards all that follows; a leaf */
    pthread_cond_t changed; /* somebody waits, the last one looked away, or the server ends */
    bool open, stopping;
    bool asked;      /* to close as soon as nobody is inside */
    kv_wake *tender; /* borrowed; NULL = none */
    int n_inside, n_looking;
    int64_t used_us;           /* when the last one left, or the gate was opened */
    kv_ticket *first_in, *end; /* those that wait, in the order they came */
};

kv_gate *kv_gate_new(void) {
    kv_gate *g = kv_alloc(sizeof *g);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->open = true;
    g->used_us = kv_now_us(kv_clock_real());
    return g;
}

void kv_gate_free(kv_gate *g) {
    if (!g) return;
    KV_CHECK(!g->n_inside && !g->n_looking && !g->first_in);
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->changed);
    free(g);
}

/* ── tickets; under the mutex ──────────────────────────────────────────────────────────────────────────────────── */

static void append(kv_gate *g, kv_ticket *t) {
    t->waits = true;
    t->prev = g->end;
    t->next = NULL;
    if (g->end) g->end->next = t;
    else g->first_in = t;
    g->end = t;
}

static void take_out(kv_gate *g, kv_ticket *t) {
    if (t->prev) t->prev->next = t->next;
    else g->first_in = t->next;
    if (t->next) t->next->prev = t->prev;
    else g->end = t->prev;
    t->waits = false;
}

static void let_in(kv_gate *g, kv_ticket *t) {
    t->inside = true;
    g->n_inside++;
    g->asked = false; /* it is used again */
}

static void refuse_all(kv_gate *g, const kv_error *err) {
    while (g->first_in) {
        kv_ticket *t = g->first_in;
        take_out(g, t);
        t->error = *err;
        kv_wake_set(&t->wake);
    }
}

static void wake_tender(kv_gate *g) {
    if (g->asked && g->open && !g->n_inside && g->tender) kv_wake_set(g->tender);
}

static kv_status ends(kv_error *err) {
    return kv_fail(err, KV_BUSY, "The server is shutting down and takes no new requests");
}

/* ── connections' threads ──────────────────────────────────────────────────────────────────────────────────────── */

static kv_entry begin_waiting(kv_gate *g, kv_ticket *t, kv_error *err) {
    if (!t->has_wake && kv_wake_init(&t->wake, err) != KV_OK) return KV_ENTRY_REFUSED;
    t->has_wake = true;
    append(g, t);
    pthread_cond_broadcast(&g->changed);
    return KV_ENTRY_WAIT;
}

static kv_entry enter(kv_gate *g, kv_ticket *t, kv_error *err) {
    if (t->inside) return KV_ENTRY_INSIDE;
    if (t->waits) return KV_ENTRY_WAIT;
    if (t->error.status != KV_OK) {
        if (err) *err = t->error;
        return KV_ENTRY_REFUSED;
    }
    if (g->open) {
        let_in(g, t);
        return KV_ENTRY_INSIDE;
    }
    if (!g->stopping) return begin_waiting(g, t, err);
    ends(err);
    return KV_ENTRY_REFUSED;
}

kv_entry kv_gate_enter(kv_gate *g, kv_ticket *t, kv_error *err) {
    if (!g) return KV_ENTRY_INSIDE;
    pthread_mutex_lock(&g->mutex);
    kv_entry got = enter(g, t, err);
    pthread_mutex_unlock(&g->mutex);
    return got;
}

/* Without waiting. */
static bool try_to_enter(kv_gate *g, kv_ticket *t) {
    pthread_mutex_lock(&g->mutex);
    if (g->open) let_in(g, t);
    bool inside = t->inside;
    pthread_mutex_unlock(&g->mutex);
    return inside;
}

void kv_gate_leave(kv_gate *g, kv_ticket *t) {
    if (!g) return;
    pthread_mutex_lock(&g->mutex);
    if (t->waits) take_out(g, t);
    if (t->inside) {
        t->inside = false;
        g->n_inside--;
        g->used_us = kv_now_us(kv_clock_real());
        wake_tender(g);
    }
    pthread_mutex_unlock(&g->mutex);
    if (t->has_wake) kv_wake_free(&t->wake); /* out of the list, nobody sets it any more */
    t->has_wake = false;
}

void kv_gate_ask_to_close(kv_gate *g) {
    if (!g) return;
    pthread_mutex_lock(&g->mutex);
    if (g->open) g->asked = true;
    wake_tender(g);
    pthread_mutex_unlock(&g->mutex);
}

bool kv_gate_look(kv_gate *g) {
    if (!g) return true;
    pthread_mutex_lock(&g->mutex);
    bool open = g->open;
    if (open) g->n_looking++;
    pthread_mutex_unlock(&g->mutex);
    return open;
}

void kv_gate_look_away(kv_gate *g) {
    if (!g) return;
    pthread_mutex_lock(&g->mutex);
    if (--g->n_looking == 0) pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

/* ── main thread, engine's thread ──────────────────────────────────────────────────────────────────────────────── */

void kv_gate_set_tender(kv_gate *g, kv_wake *w) {
    pthread_mutex_lock(&g->mutex);
    g->tender = w;
    pthread_mutex_unlock(&g->mutex);
}

static int64_t idle_left(const kv_gate *g, int64_t idle_us) {
    if (!g->open || g->n_inside) return idle_us > 0 ? idle_us : 1;
    if (g->asked) return 0;
    int64_t left = g->used_us + idle_us - kv_now_us(kv_clock_real());
    return left > 0 ? left : 0;
}

int64_t kv_gate_idle_left(kv_gate *g, int64_t idle_us) {
    pthread_mutex_lock(&g->mutex);
    int64_t left = idle_left(g, idle_us);
    pthread_mutex_unlock(&g->mutex);
    return left;
}

bool kv_gate_close(kv_gate *g, int64_t idle_us) {
    pthread_mutex_lock(&g->mutex);
    bool closed = !g->stopping && idle_left(g, idle_us) == 0;
    if (closed) g->open = false;
    while (closed && g->n_looking) pthread_cond_wait(&g->changed, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return closed;
}

void kv_gate_stop(kv_gate *g) {
    kv_error err = {0};
    ends(&err);
    pthread_mutex_lock(&g->mutex);
    g->stopping = true;
    refuse_all(g, &err);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

void kv_gate_open(kv_gate *g) {
    pthread_mutex_lock(&g->mutex);
    g->open = true;
    g->asked = false;
    g->used_us = kv_now_us(kv_clock_real());
    while (g->first_in) {
        kv_ticket *t = g->first_in;
        take_out(g, t);
        let_in(g, t);
        kv_wake_set(&t->wake);
    }
    pthread_mutex_unlock(&g->mutex);
}

void kv_gate_fail(kv_gate *g, const kv_error *err) {
    pthread_mutex_lock(&g->mutex);
    refuse_all(g, err);
    pthread_mutex_unlock(&g->mutex);
}

bool kv_gate_was_asked(kv_gate *g) {
    pthread_mutex_lock(&g->mutex);
    bool asked = g->asked;
    pthread_mutex_unlock(&g->mutex);
    return asked;
}

bool kv_gate_wanted(kv_gate *g) {
    pthread_mutex_lock(&g->mutex);
    bool wanted = g->first_in || g->stopping;
    pthread_mutex_unlock(&g->mutex);
    return wanted;
}

bool kv_gate_wait(kv_gate *g) {
    pthread_mutex_lock(&g->mutex);
    while (!g->first_in && !g->stopping) pthread_cond_wait(&g->changed, &g->mutex);
    bool go_on = !g->stopping;
    pthread_mutex_unlock(&g->mutex);
    return go_on;
}

/* ── a handler inside ──────────────────────────────────────────────────────────────────────────────────────────── */

/* One request's passage. Lives as long as its stream. */
typedef struct passage {
    kv_gate *gate;
    kv_app *app;
    kv_http_handler handler;
    const kv_gate_voice *voice;
    kv_ticket ticket;
    int ping_ms;           /* -1 = none */
    kv_http_stream stream; /* the handler's, once it has run; zeroed: it has none */
    bool ran, over;
} passage;

static void free_passage(void *ctx) {
    passage *p = ctx;
    if (p->stream.free) p->stream.free(p->stream.ctx);
    kv_gate_leave(p->gate, &p->ticket);
    free(p);
}

static void say_error(kv_buf *out, const kv_http_request *req, const kv_error *err) {
    (void)req;
    kv_sse_error(out, err);
}

static const kv_gate_voice plain_voice = {.ping = kv_sse_ping, .error = say_error};

/* The handler of a request whose 200 is out: what it says becomes events. */
static void run_late(passage *p, kv_http_request *req, kv_buf *out) {
    kv_http_response res = {.status = 200};
    kv_error err = {0};
    p->ran = true;
    kv_status st = p->handler(p->app, req, &res, &err);
    if (st == KV_OK && res.stream.next) {
        p->stream = res.stream;
    } else if (st == KV_OK && p->voice->whole) {
        p->voice->whole(out, &res.body);
        p->over = true;
    } else if (st == KV_OK) {
        kv_buf_adds(out, "data: ");
        kv_buf_add(out, res.body.data, res.body.len);
        kv_buf_adds(out, "\n\n");
        p->over = true;
    } else {
        err.status = st;
        p->voice->error(out, req, &err);
        p->over = true;
    }
    kv_buf_free(&res.body);
}

static bool next_late(void *ctx, kv_http_request *req, kv_buf *out) {
    passage *p = ctx;
    size_t before = out->len;
    while (!p->ran && !p->over) {
        kv_error err = {0};
        kv_entry entry = kv_gate_enter(p->gate, &p->ticket, &err);
        if (entry == KV_ENTRY_INSIDE) {
            run_late(p, req, out);
        } else if (entry == KV_ENTRY_REFUSED) {
            p->voice->error(out, req, &err);
            p->over = true;
        } else {
            kv_wait got = kv_http_wait(req, &p->ticket.wake, p->ping_ms);
            if (got == KV_WAIT_HUNG_UP) return false;
            if (got == KV_WAIT_TIMEOUT) {
                p->voice->ping(out);
                return true;
            }
        }
    }
    if (out->len > before) return true;
    return !p->over && p->stream.next(p->stream.ctx, req, out);
}

static bool next_inside(void *ctx, kv_http_request *req, kv_buf *out) {
    passage *p = ctx;
    return p->stream.next(p->stream.ctx, req, out);
}

/* What of the body matters before there is a model. KV_INVALID for what is no JSON, which need not wake anybody. */
static kv_status read_wishes(passage *p, bool *stream, const kv_http_request *req, kv_error *err) {
    json_t *body;
    int64_t ping = p->app->opt->sse_ping_interval;
    if (strcmp(kv_http_method(req), "POST") != 0) return KV_OK; /* without a body */
    kv_status st = kv_body_read(&body, req, err);
    if (st != KV_OK) return st;
    const json_t *wish = kv_json_get(body, "stream");
    *stream = p->voice->by_default ? !json_is_false(wish) : json_is_true(wish);
    kv_json_as_int(&ping, kv_json_get(body, "sse_ping_interval"), -1, INT_MAX / 1000);
    p->ping_ms = ping > 0 && ping <= INT_MAX / 1000 ? (int)(ping * 1000) : -1;
    json_decref(body);
    return KV_OK;
}

static kv_status wait_inside(passage *p, kv_http_request *req, kv_error *err) {
    for (;;) {
        kv_entry entry = kv_gate_enter(p->gate, &p->ticket, err);
        if (entry == KV_ENTRY_INSIDE) return KV_OK;
        if (entry == KV_ENTRY_REFUSED) return err->status;
        if (kv_http_wait(req, &p->ticket.wake, -1) == KV_WAIT_HUNG_UP)
            return kv_fail(err, KV_CANCELLED, "the client hung up");
    }
}

/* The model is asleep. *later: the request is answered by a stream that waits. */
static kv_status come_late(passage *p, bool *later, bool streams, kv_http_request *req, kv_http_response *res,
                           kv_error *err) {
    bool stream = false;
    kv_status st = read_wishes(p, &stream, req, err);
    if (st != KV_OK) return st;
    *later = stream && streams;
    if (!*later) return wait_inside(p, req, err);
    res->content_type = p->voice->stream_type;
    res->stream = (kv_http_stream){.next = next_late, .free = free_passage, .ctx = p};
    return KV_OK;
}

kv_status kv_gate_serve(kv_http_handler handler, bool streams, kv_app *app, kv_http_request *req, kv_http_response *res,
                        kv_error *err) {
    return kv_gate_serve_as(&plain_voice, handler, streams, app, req, res, err);
}

kv_status kv_gate_serve_as(const kv_gate_voice *voice, kv_http_handler handler, bool streams, kv_app *app,
                           kv_http_request *req, kv_http_response *res, kv_error *err) {
    if (!app->gate) return handler(app, req, res, err);
    passage *p = kv_alloc(sizeof *p);
    *p = (passage){.gate = app->gate, .app = app, .handler = handler, .voice = voice};
    bool later = false;
    kv_status st = KV_OK;
    /* The body is read before anybody is waked by it. */
    if (!try_to_enter(p->gate, &p->ticket)) st = come_late(p, &later, streams, req, res, err);
    if (later) return KV_OK;
    if (st == KV_OK) st = handler(app, req, res, err);
    if (st == KV_OK && res->stream.next) {
        p->stream = res->stream;
        res->stream = (kv_http_stream){.next = next_inside, .free = free_passage, .ctx = p};
        return KV_OK;
    }
    if (res->stream.free) res->stream.free(res->stream.ctx); /* it may look at the model, so before leaving */
    res->stream = (kv_http_stream){0};
    free_passage(p);
    return st;
}
