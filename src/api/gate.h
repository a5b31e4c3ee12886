/* api/gate.h: who uses the model, and how it may be taken away and brought back (--sleep-idle-seconds).
 *
 *                 ┌────────────── open: the model is there ◄──────────────┐
 *   request ─► enter ─► inside ─► leave                                   │ kv_gate_open: those waiting are let in
 *                 │        nobody inside for long: kv_gate_close          │ kv_gate_fail: each waiting one gets the error,
 *                 └─► waits ─────────────► closed ── kv_gate_wanted ─► loading      and the next request tries again
 *
 * What needs the model runs inside, from its entry to the end of its handler or of its stream. What only reads (health,
 * metrics, props …) looks: while it does the model stays, but looking neither wakes it nor counts as use; where the gate
 * is closed it reads what was noted before (api/asleep.h).
 *
 * A request that finds the gate closed asks for waking and waits, watching for its client's hang-up. Asked for a stream,
 * it is answered at once with 200, and pings until the model is there; an error then is an event of the stream.
 *
 * Thread rule: enter, leave and look: connections' threads. close: the main thread. open, fail, wait: the engine's
 * thread. One mutex inside, a leaf. A NULL gate is always open.
 */
#ifndef KV_API_GATE_H
#define KV_API_GATE_H

#include "http/http.h"

typedef struct kv_gate kv_gate;
struct kv_app;

kv_gate *kv_gate_new(void); /* open */
void kv_gate_free(kv_gate *g);

/* ── connections' threads ──────────────────────────────────────────────────────────────────────────────────────── */

/* One request at the gate. All but the wake is the gate's own. */
typedef struct kv_ticket {
    struct kv_ticket *prev, *next; /* of those that wait */
    bool waits, inside, has_wake;
    kv_wake wake;   /* set when it is let in or refused */
    kv_error error; /* of a refusal */
} kv_ticket;

typedef enum kv_entry { KV_ENTRY_INSIDE, KV_ENTRY_WAIT, KV_ENTRY_REFUSED } kv_entry;
/* Asks, or looks how the wish fares. WAIT: wait for ticket->wake and call again. REFUSED: err says why. A zeroed ticket
 * begins. */
kv_entry kv_gate_enter(kv_gate *g, kv_ticket *t, kv_error *err);
void kv_gate_leave(kv_gate *g, kv_ticket *t); /* in whatever state it is */
/* The model may be unloaded as soon as nobody is inside, unless somebody else comes in before: the tender is waked
 * then. From inside or outside; an idle time must be in use. */
void kv_gate_ask_to_close(kv_gate *g);

/* True: the model is there until kv_gate_look_away. False: it is asleep; nothing is to be given back. */
bool kv_gate_look(kv_gate *g);
void kv_gate_look_away(kv_gate *g);

/* Runs a handler inside, waiting for the model where need be. streams: a body that asks for it is answered by one. */
kv_status kv_gate_serve(kv_http_handler handler, bool streams, struct kv_app *app, kv_http_request *req,
                        kv_http_response *res, kv_error *err);

/* What a stream says while it waits, and when the model does not come. */
typedef struct kv_gate_voice {
    void (*ping)(kv_buf *out);
    void (*error)(kv_buf *out, const kv_http_request *req, const kv_error *err); /* the last that is said */
    void (*whole)(kv_buf *out, const kv_buf *body); /* an answer that is no stream; NULL = an SSE event of it */
    const char *stream_type;                        /* NULL = "text/event-stream" */
    bool by_default;                                /* a body streams unless it has "stream": false */
} kv_gate_voice;
/* The same in an API's own words; `voice` is static. kv_gate_serve speaks OpenAI's. */
kv_status kv_gate_serve_as(const kv_gate_voice *voice, kv_http_handler handler, bool streams, struct kv_app *app,
                           kv_http_request *req, kv_http_response *res, kv_error *err);

/* ── main thread ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* Who closes it, to be waked when that was asked for. Before anybody enters; `w` outlives their last leaving. */
void kv_gate_set_tender(kv_gate *g, kv_wake *w);
/* Microseconds until nobody was inside for idle_us; ≥ 1 while somebody is, or before the gate was opened anew. */
int64_t kv_gate_idle_left(kv_gate *g, int64_t idle_us);
/* Closes if that is 0; then waits for those who look. False: somebody came. */
bool kv_gate_close(kv_gate *g, int64_t idle_us);
/* The server ends: nobody is let in by waking any more, who waits is refused with KV_BUSY, and kv_gate_wait returns. */
void kv_gate_stop(kv_gate *g);

/* ── engine's thread ───────────────────────────────────────────────────────────────────────────────────────────── */

void kv_gate_open(kv_gate *g);
void kv_gate_fail(kv_gate *g, const kv_error *err);
bool kv_gate_was_asked(kv_gate *g); /* it is closed because somebody asked for it */
bool kv_gate_wanted(kv_gate *g);    /* somebody waits, or the server ends */
/* Until somebody waits. False: the server ends. */
bool kv_gate_wait(kv_gate *g);

#endif
