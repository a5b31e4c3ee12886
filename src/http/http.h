/* http/http.h: the HTTP server under the APIs, over libmicrohttpd.
 *
 * One thread a connection: handlers are straight code and may block. While a handler or a stream waits, it polls its
 * own socket beside its wake, so that a hang-up is seen at once (libmicrohttpd would not look).
 *
 *   accept ─► limits, Host, CORS, key ─► route ─► handler ─► fixed response
 *                                                    └─────► stream: next() until it says end, then free()
 *
 * Nothing here knows models, JSON schemas or tokens. What a handler returns as kv_error becomes the error body of the
 * route's family (OpenAI's shape by default).
 *
 * Thread rule: kv_http_start/stop/quiesce: the main thread. Handlers and streams: the connection's thread.
 */
#ifndef KV_HTTP_HTTP_H
#define KV_HTTP_HTTP_H

#include <stdbool.h>
#include "base/buf.h"
#include "base/error.h"
#include "os/wake.h"

typedef struct kv_http kv_http;
typedef struct kv_http_request kv_http_request;
typedef struct kv_http_response kv_http_response;

/* A streamed body (SSE). */
typedef struct kv_http_stream {
    /* Append what comes next to `out`; blocks (with kv_http_wait) until there is something. False: the stream is
     * over, nothing was appended. A hang-up seen here also ends it. Called again and again. */
    bool (*next)(void *ctx, kv_http_request *req, kv_buf *out);
    void (*free)(void *ctx); /* once, at the end or when the client went away before */
    void *ctx;
} kv_http_stream;

struct kv_http_response {
    int status;               /* preset 200 */
    const char *content_type; /* static; preset "application/json; charset=utf-8" */
    kv_buf body;              /* owned; sent when stream.next is NULL */
    kv_http_stream stream;    /* when next is set: chunked, Content-Type text/event-stream unless set, no buffering */
    char headers[8][2][160];  /* extra headers, n_headers of them */
    int n_headers;
    /* For the request's log line; "" = none. One line, no prompt text. */
    char note[256];
};

void kv_http_header(kv_http_response *res, const char *name, const char *value);

/* Return KV_OK with `res` filled, or an error that becomes the error body. */
typedef kv_status (*kv_http_handler)(void *app, kv_http_request *req, kv_http_response *res, kv_error *err);
/* Writes an error body of the route's family. retry_after_s > 0 asks for a Retry-After header. */
typedef void (*kv_http_error_body)(kv_buf *out, const kv_error *err);

typedef struct kv_http_route {
    const char *method; /* "GET", "POST", … HEAD is served where GET is; OPTIONS is answered by the server */
    const char *path;   /* exact, without a trailing slash: "/v1/chat/completions" */
    kv_http_handler handler;
    bool open;          /* no key needed (/health, /v1/models in llama-server's public list) */
    kv_http_error_body error_body; /* NULL = OpenAI's */
} kv_http_route;

typedef struct kv_http_config {
    const char *host;          /* "127.0.0.1" by default; "::1", "0.0.0.0" … */
    int port;                  /* 0 = any free one; kv_http_port tells */
    size_t max_body;           /* bytes; 413 above it */
    size_t max_headers;        /* bytes; 431 above it */
    int max_connections;       /* more wait in the backlog or are refused with 503 */
    int idle_timeout_s;        /* a connection without a request in flight is closed after it */
    const char *api_key_file;  /* one key a line, '#' comments; NULL = none. Re-read by kv_http_reload_keys */
    const char *const *api_keys; /* keys given on the command line */
    int n_api_keys;
    const char *cors_origins;  /* "localhost" (default), "*", or a comma-separated list; "" = off */
    const char *const *allowed_hosts; /* further names for the Host check; loopback names and IPs always pass */
    int n_allowed_hosts;
    const char *prefix;        /* --api-prefix, "" = none */
    const kv_http_route *routes; /* static, ended by a NULL path */
    void *app;                 /* passed to handlers */
} kv_http_config;

kv_status kv_http_start(kv_http **out, const kv_http_config *cfg, kv_error *err);
int kv_http_port(const kv_http *h);
void kv_http_quiesce(kv_http *h); /* close the listening socket; connections go on */
int kv_http_in_flight(const kv_http *h); /* requests being handled or streamed */
void kv_http_stop(kv_http *h);    /* wakes every waiting handler with KV_WAIT_HUNG_UP, joins all threads, frees */
kv_status kv_http_reload_keys(kv_http *h, kv_error *err);

/* What a handler can ask. Strings are borrowed until the request ends. */
const char *kv_http_method(const kv_http_request *req);
const char *kv_http_path(const kv_http_request *req);                     /* normalised: prefix, "//", trailing "/" and a doubled "/v1/v1" gone */
const char *kv_http_query(const kv_http_request *req, const char *name);  /* NULL = absent */
const char *kv_http_get_header(const kv_http_request *req, const char *name);
const char *kv_http_body(const kv_http_request *req, size_t *n);          /* "" for none */
const char *kv_http_request_id(const kv_http_request *req);               /* also sent as x-request-id */
bool kv_http_is_loopback(const kv_http_request *req);
/* Wait for `w`, the client's hang-up or server stop, or the timeout (-1 = none). */
kv_wait kv_http_wait(kv_http_request *req, kv_wake *w, int timeout_ms);

#endif
