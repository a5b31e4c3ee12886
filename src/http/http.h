/* http/http.h: the HTTP server under the APIs, over libmicrohttpd.
 *
 * One thread a connection: handlers are straight code and may block. While a handler or a stream waits, it polls its
 * own socket beside its wake, so that a hang-up is seen at once (libmicrohttpd would not look).
 *
 *   accept ─► limits, Host, CORS, key ─► route ─► body ─► handler ─► fixed response
 *                                                           └─────► stream: next() until it says end, then free()
 *
 * Nothing here knows models, JSON schemas or tokens. What a handler returns as kv_error becomes the error body of the
 * route's family (OpenAI's shape by default).
 *
 * Thread rule: kv_http_start/stop/quiesce: the main thread. Handlers and streams: the connection's thread.
 */
#ifndef KV_HTTP_HTTP_H
#define KV_HTTP_HTTP_H

#include "base/buf.h"
#include "base/error.h"
#include "os/wake.h"
#include <stdbool.h>

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
    const char *content_type; /* static; NULL = "application/json; charset=utf-8", of a stream "text/event-stream" */
    kv_buf body;              /* owned; sent when stream.next is NULL */
    kv_http_stream stream;    /* when next is set: chunked, every piece sent at once, the header before the first */
    char headers[8][2][160];  /* extra headers, n_headers of them */
    int n_headers;
    /* For the request's log line; "" = none. One line, no prompt text. A stream knows more at its end: kv_http_note. */
    char note[256];
};

/* Adds a header. A value that does not fit, or has control characters, is left out and logged. */
void kv_http_header(kv_http_response *res, const char *name, const char *value);

/* Return KV_OK with `res` filled, or an error that becomes the error body (res->body is dropped then, headers stay;
 * KV_BUSY gets "Retry-After: 1" unless the handler set another). A res->status of 400 or more is kept beside the error:
 * some APIs have another one for it. */
typedef kv_status (*kv_http_handler)(void *app, kv_http_request *req, kv_http_response *res, kv_error *err);
/* Writes an error body of the route's family; err->request_id is set. */
typedef void (*kv_http_error_body)(kv_buf *out, const kv_error *err);
/* OpenAI's, as llama-server fills it: {"error":{"code":404,"message":…,"type":…}}, with "param" when err->field is set,
 * and for CONTEXT_FULL the code "context_length_exceeded", n_prompt_tokens and n_ctx. */
void kv_http_openai_error(kv_buf *out, const kv_error *err);

typedef struct kv_http_route {
    const char *method; /* "GET", "POST", … HEAD is served where GET is; OPTIONS is answered by the server */
    /* Exact, without a trailing slash: "/v1/chat/completions". "/slots/{}": one segment of any text, see
     * kv_http_segment; "/models/{*}": all that comes, slashes too; of several routes that fit the first counts. */
    const char *path;
    kv_http_handler handler;
    bool open;                     /* no key needed (/health, /v1/models in llama-server's public list) */
    kv_http_error_body error_body; /* NULL = OpenAI's */
} kv_http_route;

/* Everything is copied but routes and app. 0 or NULL stands for the default. */
typedef struct kv_http_config {
    const char *const *hosts; /* none = "127.0.0.1"; "::1", "0.0.0.0", "::" (both families), a name; with a '/' or
                                * ending in ".sock": the path of a UNIX socket, which is made 0600 */
    int n_hosts;
    int port;                                 /* of all TCP addresses; 0 = any free one, kv_http_port tells */
    bool reuse_port;                          /* SO_REUSEPORT: others may listen there too */
    const char *tls_key_file, *tls_cert_file; /* PEM; both: HTTPS on the TCP addresses. Not kept */
    size_t max_body;                          /* bytes, default 64 MiB; 413 above it */
    size_t max_headers;                       /* bytes of request line and headers, default 64 KiB; 431 above it */
    int max_connections;         /* default 512. One more closes the longest idle one; if all are busy it gets a 503 */
    int idle_timeout_s;          /* default 60, -1 = none. Closes a connection on which for so long no request came, no
                                * whole header, no part of a body (1 KiB/s on average), or no answer was taken. A
                                * request being handled is never cut */
    const char *api_key_file;    /* lines as in auth.h; NULL = none. Re-read by kv_http_reload_keys */
    const char *const *api_keys; /* keys given on the command line */
    int n_api_keys;
    const char
        *cors_origins; /* "localhost" (default), "*", or a comma-separated list; "" = off. Pages from elsewhere get
                                * no CORS headers, and a 403 for anything but GET and HEAD */
    const char
        *no_cors; /* paths that begin so are for pages of this server only, whatever cors_origins says; NULL = none */
    const char *const *allowed_hosts; /* further names for the Host check; loopback names and IPs always pass */
    int n_allowed_hosts;
    const char *prefix;          /* --api-prefix, "" = none */
    const kv_http_route *routes; /* static, ended by a NULL path */
    void *app;                   /* passed to handlers */
} kv_http_config;

kv_status kv_http_start(kv_http **out, const kv_http_config *cfg, kv_error *err);
int kv_http_port(const kv_http *h);                   /* 0: only UNIX sockets */
const char *kv_http_address(const kv_http *h, int i); /* "http://127.0.0.1:8080", "unix:/x.sock"; NULL past the last */
void kv_http_quiesce(kv_http *h);                     /* close the listening sockets; connections go on */
int kv_http_in_flight(const kv_http *h);              /* requests being handled or streamed */
void kv_http_stop(kv_http *h); /* wakes every waiting handler with KV_WAIT_HUNG_UP, joins all threads, frees */
kv_status kv_http_reload_keys(kv_http *h, kv_error *err); /* on an error the old keys stay */

/* What a handler can ask. Strings are borrowed until the request ends. */
const char *kv_http_method(const kv_http_request *req);
const char *
kv_http_path(const kv_http_request *req); /* normalised: prefix, "//", trailing "/" and a doubled "/v1/v1" gone */
const char *kv_http_segment(const kv_http_request *req); /* what stands for the route's "{}" or "{*}"; "" without one */
const char *kv_http_query(const kv_http_request *req, const char *name); /* NULL = absent */
const char *kv_http_get_header(const kv_http_request *req, const char *name);
int kv_http_count_header(const kv_http_request *req, const char *name); /* how many times it was sent */
const char *kv_http_body(const kv_http_request *req, size_t *n);        /* "" for none */
const char *kv_http_request_id(const kv_http_request *req);             /* also sent as x-request-id and request-id */
/* The peer is on this machine, and does not say that it forwards for somebody else (X-Forwarded-For, Forwarded). */
bool kv_http_is_loopback(const kv_http_request *req);
/* The scope that the request's key names in the key file; "" = the default one, also without keys. */
const char *kv_http_key_scope(const kv_http_request *req);
/* May look at everybody's cache: with a key marked `admin`; without any keys, from this machine. */
bool kv_http_is_admin(const kv_http_request *req);
/* Wait for `w` (NULL = none), the client's hang-up or server stop, or the timeout (-1 = none). */
kv_wait kv_http_wait(kv_http_request *req, kv_wake *w, int timeout_ms);
/* Replaces the note of the request's log line; no prompt text. For streams, which outlive the response struct. */
void kv_http_note(kv_http_request *req, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
