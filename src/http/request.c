#include "http/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

#include "http/cors.h"
#include "http/path.h"

/* A refused request's body up to this size is read and thrown away, which keeps the connection for the next one. */
#define MAX_SWALLOWED 65536
/* A body must come at this average rate once its connection has used up the idle timeout. */
#define MIN_BODY_BYTES_PER_S 1024
/* Content-Length is a promise, not a payment: memory is taken ahead only up to this. */
#define MAX_RESERVED (1u << 20)

static void make_id(char id[132]) {
    unsigned char raw[16];
    if (getentropy(raw, sizeof raw) != 0) memset(raw, 0, sizeof raw);
    snprintf(id, 5, "req_");
    for (size_t i = 0; i < sizeof raw; i++) snprintf(id + 4 + 2 * i, 3, "%02x", raw[i]);
}

/* The first thing libmicrohttpd tells about a request: its target, before it decodes it. */
void *kv_request_uri(void *http, const char *uri, struct MHD_Connection *mhd) {
    kv_http *h = http;
    kv_http_request *req = kv_alloc(sizeof *req);
    req->http = h;
    req->mhd = mhd;
    req->conn = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    req->started_us = kv_now_us(kv_clock_real());
    req->error_body = kv_http_openai_error;
    req->path_status = kv_path_normalise(&req->path, uri ? uri : "", h->cfg.prefix, &req->err);
    make_id(req->id);
    kv_conn_deadline(req->conn, 0); /* for the headers */
    return req;
}

static const char *header(const kv_http_request *req, const char *name) {
    return MHD_lookup_connection_value(req->mhd, MHD_HEADER_KIND, name);
}

static bool is_method(const kv_http_request *req, const char *method) {
    return strcmp(req->method, method) == 0;
}

/* Refuses with the status of the table; `refuse_as` with another. Both return false, for the checks below. */
#define refuse(req, status, ...) refuse_as(req, kv_status_http(status), status, __VA_ARGS__)
#define refuse_as(req, http_status, status, ...)                                                                       \
    (kv_fail(&(req)->err, status, __VA_ARGS__), (req)->refused = (http_status), false)

/* ── the checks, in their order ── */

typedef struct header_sum {
    int hosts, lengths, encodings;
    bool bad_name;
} header_sum;

static enum MHD_Result sum_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind, (void)value;
    header_sum *sum = arg;
    sum->hosts += strcasecmp(name, "Host") == 0;
    sum->lengths += strcasecmp(name, "Content-Length") == 0;
    sum->encodings += strcasecmp(name, "Transfer-Encoding") == 0;
    sum->bad_name |= !kv_header_name_valid(name);
    return MHD_YES;
}

/* What a proxy before us and libmicrohttpd could read differently is refused, and the connection ended with it. */
static bool check_framing(kv_http_request *req, const char *version) {
    header_sum sum = {0};
    MHD_get_connection_values(req->mhd, MHD_HEADER_KIND, sum_header, &sum);
    const char *coding = header(req, "Transfer-Encoding");
    bool old = strcmp(version, "HTTP/1.1") != 0;
    req->close = true;
    if (sum.bad_name) return refuse(req, KV_INVALID, "a header name has a character that is not allowed there");
    if (sum.hosts > 1) return refuse(req, KV_INVALID, "the request has more than one Host header");
    if (sum.hosts == 0 && !old) return refuse(req, KV_INVALID, "an HTTP/1.1 request must have a Host header");
    if (sum.lengths + sum.encodings > 1)
        return refuse(req, KV_INVALID, "the request has more than one of Content-Length and Transfer-Encoding");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return refuse(req, KV_UNSUPPORTED, "the only Transfer-Encoding that is understood is chunked");
    if (coding && old) return refuse(req, KV_INVALID, "an HTTP/1.0 request cannot be chunked");
    req->close = false;
    return true;
}

static bool check_limits(kv_http_request *req) {
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(req->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (req->conn->over_limit) {
        req->close = true;
        return refuse(req, KV_BUSY, "the server has its maximum of %d connections; try again",
                      req->http->cfg.max_connections);
    }
    if (size && size->header_size > req->http->cfg.max_headers) {
        req->close = true;
        return refuse_as(req, 431, KV_TOO_LARGE, "the request's headers are larger than the limit of %zu bytes",
                         req->http->cfg.max_headers);
    }
    return true;
}

/* After this, `origin` is set when the page it names may read the answer. */
static bool check_browser(kv_http_request *req) {
    const kv_http_config *cfg = &req->http->cfg;
    const char *host = header(req, "Host"), *origin = header(req, "Origin");
    if (host && !kv_host_allowed(host, cfg->allowed_hosts, cfg->n_allowed_hosts))
        return refuse(req, KV_FORBIDDEN,
                      "this server does not answer to the name in the Host header; "
                      "name it with --allowed-host if it is yours");
    if (!origin) return true;
    if (kv_origin_allowed(cfg->cors_origins, origin)) {
        req->origin = origin;
        return true;
    }
    if (host && kv_origin_is_host(origin, host)) return true;
    if (is_method(req, "GET") || is_method(req, "HEAD") || is_method(req, "OPTIONS")) return true;
    return refuse(req, KV_FORBIDDEN, "web pages of this Origin may not use this server; allow it with --cors-origins");
}

static void allow_method(kv_http_request *req, const char *method) {
    size_t n = strlen(req->allow);
    snprintf(req->allow + n, sizeof req->allow - n, "%s%s", n ? ", " : "", method);
}

/* Sets route, error_body and allow from path and method. */
static void find_route(kv_http_request *req) {
    const char *method = req->head ? "GET" : req->method;
    for (const kv_http_route *r = req->http->cfg.routes; r->path; r++) {
        const char *segment;
        size_t n;
        if (req->path_status != KV_OK || !kv_path_fits(&segment, &n, r->path, kv_buf_str(&req->path))) continue;
        if (r->error_body) req->error_body = r->error_body;
        allow_method(req, r->method);
        if (strcmp(r->method, "GET") == 0) allow_method(req, "HEAD");
        if (strcmp(r->method, method) != 0 || req->route) continue;
        req->route = r;
        if (segment) kv_buf_add(&req->segment, segment, n);
    }
    if (req->allow[0]) allow_method(req, "OPTIONS");
    if (req->route && req->route->error_body) req->error_body = req->route->error_body;
}

/* What --cors-origins lets read the answers of other paths is kept from these, and may not change anything through them. */
static bool check_private(kv_http_request *req) {
    const char *paths = req->http->cfg.no_cors;
    if (!paths || !req->origin || strncmp(kv_buf_str(&req->path), paths, strlen(paths)) != 0) return true;
    const char *host = header(req, "Host");
    bool own = host && kv_origin_is_host(req->origin, host);
    req->origin = NULL;
    if (own || is_method(req, "GET") || is_method(req, "HEAD") || is_method(req, "OPTIONS")) return true;
    return refuse(req, KV_FORBIDDEN, "web pages of another Origin may not use this path");
}

static bool check_key(kv_http_request *req) {
    req->keyed = kv_keys_any(&req->http->keys);
    if (!req->keyed || (req->route && req->route->open)) return true;
    if (kv_keys_match(&req->rights, &req->http->keys, header(req, "Authorization"), header(req, "x-api-key")))
        return true;
    return refuse(req, KV_UNAUTHORIZED, "Invalid API Key"); /* llama-server's words, which clients look for */
}

static bool check_route(kv_http_request *req) {
    if (req->route) return true;
    if (req->allow[0]) return refuse(req, KV_BAD_METHOD, "%.64s takes %s only", kv_buf_str(&req->path), req->allow);
    if (req->path_status == KV_NOT_FOUND &&
        req->err.message[0]) { /* outside of the prefix: said by kv_path_normalise */
        req->refused = 404;
        return false;
    }
    return refuse(req, KV_NOT_FOUND, "File Not Found: this server has no path %.256s", kv_buf_str(&req->path));
}

static bool check_body(kv_http_request *req) {
    const char *coding = header(req, "Content-Encoding"), *length = header(req, "Content-Length");
    bool packed = coding && coding[0] && strcasecmp(coding, "identity") != 0;
    if (packed && !kv_inflate_knows(coding))
        return refuse_as(req, 415, KV_INVALID,
                         "the Content-Encoding \"%.40s\" is not supported: send gzip, deflate, or without one", coding);
    uint64_t n = length ? strtoull(length, NULL, 10) : 0;
    if (n > req->http->cfg.max_body)
        return refuse(req, KV_TOO_LARGE, "the request body of %llu bytes is larger than the limit of %zu",
                      (unsigned long long)n, req->http->cfg.max_body);
    if (packed) req->inflate = kv_inflate_new();
    else if (n) kv_buf_reserve(&req->body, n < MAX_RESERVED ? (size_t)n : MAX_RESERVED);
    return true;
}

static bool check_path(kv_http_request *req) {
    if (req->path_status != KV_INVALID) return true;
    req->refused = 400; /* err was filled when the path was read */
    return false;
}

/* OPTIONS is answered here, for every path and without a key (a preflight cannot carry one). */
static bool check_options(kv_http_request *req) {
    if (!is_method(req, "OPTIONS")) return true;
    req->refused = 200;
    return false;
}

static void screen(kv_http_request *req, const char *version) {
    if (!check_path(req) || !check_framing(req, version) || !check_limits(req) || !check_browser(req)) return;
    find_route(req);
    if (!check_private(req) || !check_options(req) || !check_key(req) || !check_route(req)) return;
    (void)check_body(req);
}

/* ── the three calls of libmicrohttpd: headers there, a piece of body, all there ── */

static enum MHD_Result reply(kv_http_request *req) {
    if (req->refused == 200) req->res.status = 200, req->res.content_type = "text/html";
    else kv_reply_error(req, req->refused, &req->err);
    req->stage = KV_STAGE_REPLIED;
    return kv_reply_send(req);
}

static enum MHD_Result begin(kv_http_request *req, const char *method, const char *version) {
    const char *id = MHD_lookup_connection_value(req->mhd, MHD_HEADER_KIND, "x-request-id");
    if (id && kv_request_id_valid(id)) snprintf(req->id, sizeof req->id, "%s", id);
    req->stage = KV_STAGE_BODY;
    req->method = method;
    req->head = is_method(req, "HEAD");
    req->res = (kv_http_response){.status = 200};
    atomic_fetch_add(&req->http->in_flight, 1);
    screen(req, version);
    kv_conn_deadline(req->conn, 0);
    if (!req->refused) return MHD_YES;

    /* Answering in this call makes libmicrohttpd end the connection. That is meant for a body that we will not read. */
    const char *length = header(req, "Content-Length"), *expect = header(req, "Expect");
    uint64_t n = length ? strtoull(length, NULL, 10) : 0;
    bool chunked = header(req, "Transfer-Encoding") != NULL;
    if (!req->close && !expect && !chunked && n <= MAX_SWALLOWED) return MHD_YES;
    req->close = true;
    req->has_unread_body = n > 0 || chunked;
    return reply(req);
}

/* Only a chunked or packed body can still be too large here. libmicrohttpd takes no response in the middle of a body, so
 * it is written to the socket, on which nothing else is on its way, and the connection is ended. Under TLS the socket is
 * not ours to write to: there the connection is only ended. */
static enum MHD_Result too_large(kv_http_request *req) {
    kv_reply_error(req, req->refused, &req->err);
    req->close = req->has_unread_body = true;
    req->stage = KV_STAGE_REPLIED;
    if (MHD_get_connection_info(req->mhd, MHD_CONNECTION_INFO_PROTOCOL))
        req->status = req->res.status; /* for the log */
    else kv_reply_raw(req);
    return MHD_NO;
}

/* False when it was refused: as too large at once, else when all of it has come. */
static bool add_to_body(kv_http_request *req, const char *data, size_t n) {
    size_t max = req->http->cfg.max_body;
    if (req->inflate && req->received <= max) { /* packed bytes count, too: what they become may be nothing */
        kv_status st = kv_inflate_feed(&req->body, req->inflate, data, n, max, &req->err);
        if (st != KV_OK) req->refused = kv_status_http(st);
        return st == KV_OK;
    }
    if (req->inflate || n > max - req->body.len)
        return refuse(req, KV_TOO_LARGE, "the request body is larger than the limit of %zu bytes", max);
    kv_buf_add(&req->body, data, n);
    return true;
}

static enum MHD_Result take_body(kv_http_request *req, const char *data, size_t *n) {
    req->received += *n;
    if (!req->refused && !add_to_body(req, data, *n) && req->err.status == KV_TOO_LARGE) return too_large(req);
    /* What cannot be unpacked is refused when all of it was read and thrown away, which must come to an end. */
    if (req->refused && req->inflate && req->received > req->http->cfg.max_body) return MHD_NO;
    *n = 0;
    /* Each piece may take the idle timeout, all together not more than it and the time at the least rate. */
    int64_t spent = kv_now_us(kv_clock_real()) - req->started_us;
    int64_t due = (int64_t)req->received * 1000000 / MIN_BODY_BYTES_PER_S;
    kv_conn_deadline(req->conn, due < spent ? due - spent : 0);
    return MHD_YES;
}

static bool check_unpacked(kv_http_request *req) {
    if (!req->inflate) return true;
    kv_status st = kv_inflate_end(req->inflate, &req->err);
    kv_inflate_free(req->inflate);
    req->inflate = NULL;
    if (st != KV_OK) req->refused = kv_status_http(st);
    return st == KV_OK;
}

static enum MHD_Result handle(kv_http_request *req) {
    kv_error err = {0};
    kv_conn_no_deadline(req->conn);
    req->res = (kv_http_response){.status = 200};
    kv_status status = req->route->handler(req->http->cfg.app, req, &req->res, &err);
    if (status != KV_OK) {
        if (err.status != status) { /* a handler that told no reason */
            err.status = status;
            if (!err.message[0]) snprintf(err.message, sizeof err.message, "%s", kv_status_name(status));
        }
        int own = req->res.status; /* of an API that has another one for this */
        kv_reply_error(req, own >= 400 ? own : kv_status_http(status), &err);
    }
    req->stage = KV_STAGE_REPLIED;
    return kv_reply_send(req);
}

enum MHD_Result kv_request_access(void *http, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **context) {
    (void)http, (void)mhd, (void)url;
    kv_http_request *req = *context;
    if (!req) return MHD_NO;
    if (req->stage == KV_STAGE_HEAD) return begin(req, method, version);
    if (*n_data) return take_body(req, data, n_data);
    if (req->stage == KV_STAGE_REPLIED) return MHD_YES;
    return req->refused || !check_unpacked(req) ? reply(req) : handle(req);
}

void kv_request_completed(void *http, struct MHD_Connection *mhd, void **context,
                          enum MHD_RequestTerminationCode code) {
    kv_http *h = http;
    kv_http_request *req = *context;
    if (!req) return;
    *context = NULL;
    if (req->res.stream.free) req->res.stream.free(req->res.stream.ctx);
    kv_conn_idle(req->conn);
    if (req->status ==
        0) { /* not answered by us, but by libmicrohttpd (headers or chunks it cannot read), or not at all */
        const union MHD_ConnectionInfo *own = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_HTTP_STATUS);
        req->status = own ? (int)own->http_status : 499;
    }
    kv_reply_log(req, code);
    if (req->stage != KV_STAGE_HEAD) atomic_fetch_sub(&h->in_flight, 1);
    if (req->has_unread_body) kv_conn_linger(req->conn);
    kv_buf_free(&req->path);
    kv_buf_free(&req->segment);
    kv_buf_free(&req->body);
    kv_inflate_free(req->inflate);
    kv_buf_free(&req->res.body);
    kv_buf_free(&req->pending);
    free(req);
}

/* ── what a handler can ask ── */

const char *kv_http_method(const kv_http_request *req) {
    return req->method;
}

const char *kv_http_path(const kv_http_request *req) {
    return kv_buf_str(&req->path);
}

const char *kv_http_segment(const kv_http_request *req) {
    return kv_buf_str(&req->segment);
}

const char *kv_http_query(const kv_http_request *req, const char *name) {
    return MHD_lookup_connection_value(req->mhd, MHD_GET_ARGUMENT_KIND, name);
}

const char *kv_http_get_header(const kv_http_request *req, const char *name) {
    return header(req, name);
}

typedef struct header_count {
    const char *name;
    int n;
} header_count;

static enum MHD_Result count_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind, (void)value;
    header_count *count = arg;
    count->n += strcasecmp(name, count->name) == 0;
    return MHD_YES;
}

int kv_http_count_header(const kv_http_request *req, const char *name) {
    header_count count = {.name = name};
    MHD_get_connection_values(req->mhd, MHD_HEADER_KIND, count_header, &count);
    return count.n;
}

const char *kv_http_body(const kv_http_request *req, size_t *n) {
    if (n) *n = req->body.len;
    return kv_buf_str(&req->body);
}

const char *kv_http_request_id(const kv_http_request *req) {
    return req->id;
}

bool kv_http_is_loopback(const kv_http_request *req) {
    return req->conn->loopback && !header(req, "X-Forwarded-For") && !header(req, "Forwarded");
}

const char *kv_http_key_scope(const kv_http_request *req) {
    return req->rights.scope;
}

bool kv_http_is_admin(const kv_http_request *req) {
    return req->keyed ? req->rights.admin : kv_http_is_loopback(req);
}

kv_wait kv_http_wait(kv_http_request *req, kv_wake *w, int timeout_ms) {
    kv_wait got = kv_wake_wait_or(w, &req->http->stop, req->conn->fd, timeout_ms);
    if (got == KV_WAIT_HUNG_UP) req->hung_up = true;
    return got;
}

void kv_http_note(kv_http_request *req, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(req->res.note, sizeof req->res.note, fmt, args);
    va_end(args);
}
