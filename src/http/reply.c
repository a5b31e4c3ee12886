#include "http/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/log.h"
#include "http/cors.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: libmicrohttpd has set SO_NOSIGPIPE */
#endif

#define DEFAULT_TYPE "application/json; charset=utf-8"
/* A reader must take a fixed answer at this rate on average, beyond the idle timeout. */
#define MIN_ANSWER_BYTES_PER_S 8192
/* What an HTTP/1.0 client, which gets a stream without chunks, is sent at most at a time. */
#define STREAM_BLOCK 16384

/* ── error bodies ── */

static void error_body(kv_buf *out, int code, const kv_error *err) {
    if (err->status == KV_CONTEXT_FULL)
        kv_buf_adds(out, "{\"error\":{\"code\":\"context_length_exceeded\",\"message\":");
    else kv_buf_addf(out, "{\"error\":{\"code\":%d,\"message\":", code);
    kv_json_quote(out, err->message, strlen(err->message));
    kv_buf_addf(out, ",\"type\":\"%s\"", kv_status_type(err->status));
    if (err->field[0]) {
        kv_buf_adds(out, ",\"param\":");
        kv_json_quote(out, err->field, strlen(err->field));
    }
    if (err->status == KV_CONTEXT_FULL)
        kv_buf_addf(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)err->n_prompt_tokens,
                    (long long)err->n_ctx);
    kv_buf_adds(out, "}}");
}

void kv_http_openai_error(kv_buf *out, const kv_error *err) {
    error_body(out, kv_status_http(err->status), err);
}

void kv_reply_error(kv_http_request *req, int http_status, const kv_error *err) {
    kv_http_response *res = &req->res;
    if (res->stream.free) res->stream.free(res->stream.ctx);
    res->stream = (kv_http_stream){0};
    kv_buf_clear(&res->body);
    res->status = http_status;
    res->content_type = NULL;
    if (req->error_body == kv_http_openai_error)
        error_body(&res->body, http_status, err); /* 415 and 431 have no kv_status of their own */
    else {
        kv_error named = *err;
        named.request_id = req->id;
        req->error_body(&res->body, &named);
    }
}

/* ── headers ── */

void kv_http_header(kv_http_response *res, const char *name, const char *value) {
    const int most = (int)(sizeof res->headers / sizeof *res->headers);
    bool fits = strlen(name) < sizeof res->headers[0][0] && strlen(value) < sizeof res->headers[0][1];
    for (const char *p = value; fits && *p; p++) fits = (unsigned char)*p >= ' ' && *p != 0x7f;
    if (!fits || res->n_headers >= most || !kv_header_name_valid(name)) {
        KV_WARN("response header %s is left out: too many, too long or not printable", name);
        return;
    }
    char(*h)[160] = res->headers[res->n_headers++];
    snprintf(h[0], sizeof h[0], "%s", name);
    snprintf(h[1], sizeof h[1], "%s", value);
}

static bool has_header(const kv_http_response *res, const char *name) {
    for (int i = 0; i < res->n_headers; i++)
        if (strcasecmp(res->headers[i][0], name) == 0) return true;
    return false;
}

typedef void (*add_fn)(void *to, const char *name, const char *value);

static void cors_headers(const kv_http_request *req, add_fn add, void *to) {
    if (!req->origin) return;
    bool any = strcmp(req->http->cfg.cors_origins, "*") == 0;
    add(to, "Access-Control-Allow-Origin", any ? "*" : req->origin);
    if (!any) add(to, "Vary", "Origin");
    if (strcmp(req->method, "OPTIONS") != 0) {
        add(to, "Access-Control-Expose-Headers", "x-request-id, X-Kvasir-Cache");
        return;
    }
    const char *wanted = kv_http_get_header(req, "Access-Control-Request-Headers");
    if (!any) add(to, "Access-Control-Allow-Credentials", "true");
    add(to, "Access-Control-Allow-Methods", req->allow[0] ? req->allow : "GET, POST");
    /* "*" does not cover Authorization, so what is asked for is named */
    add(to, "Access-Control-Allow-Headers", wanted && kv_header_names_valid(wanted) ? wanted : "*");
    add(to, "Access-Control-Max-Age", "600");
    if (kv_http_get_header(req, "Access-Control-Request-Private-Network"))
        add(to, "Access-Control-Allow-Private-Network", "true");
}

static void all_headers(const kv_http_request *req, add_fn add, void *to) {
    const kv_http_response *res = &req->res;
    bool streamed = res->stream.next != NULL;
    add(to, "Server", "kvasir/" KVASIR_VERSION);
    add(to, "x-request-id", req->id);
    add(to, "request-id", req->id); /* where Anthropic's clients look for it */
    add(to, "Content-Type", res->content_type ? res->content_type : streamed ? "text/event-stream" : DEFAULT_TYPE);
    if (streamed) {
        add(to, "Cache-Control", "no-cache");
        add(to, "X-Accel-Buffering", "no"); /* nginx would collect the stream */
    }
    cors_headers(req, add, to);
    if (res->status == 405 || (req->allow[0] && strcmp(req->method, "OPTIONS") == 0)) add(to, "Allow", req->allow);
    if (res->status == 401) add(to, "WWW-Authenticate", "Bearer");
    if (res->status == 503 && !has_header(res, "Retry-After")) add(to, "Retry-After", "1");
    for (int i = 0; i < res->n_headers; i++) add(to, res->headers[i][0], res->headers[i][1]);
    if (req->close || atomic_load(&req->http->quiesced)) add(to, "Connection", "close");
}

/* ── streams ── */

/* libmicrohttpd's content reader: gives what is there, and waits in next() only when nothing is. */
static ssize_t read_stream(void *arg, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    kv_http_request *req = arg;
    kv_http_stream *s = &req->res.stream;
    kv_conn_no_deadline(req->conn);
    if (req->pending_at == req->pending.len) {
        kv_buf_clear(&req->pending);
        req->pending_at = 0;
        while (req->pending.len == 0) {
            if (atomic_load(&req->http->stopping)) req->hung_up = true;
            bool more = !req->hung_up && s->next(s->ctx, req, &req->pending);
            if (req->hung_up) return MHD_CONTENT_READER_END_WITH_ERROR; /* not to look like a whole answer */
            if (!more) return MHD_CONTENT_READER_END_OF_STREAM;
        }
    }
    size_t n = req->pending.len - req->pending_at;
    if (n > max) n = max;
    memcpy(buf, req->pending.data + req->pending_at, n);
    req->pending_at += n;
    req->bytes += n;
    kv_conn_deadline(req->conn, 0); /* to be taken by the peer */
    return (ssize_t)n;
}

/* ── sending ── */

static void add_to_mhd(void *to, const char *name, const char *value) {
    MHD_add_response_header(to, name, value);
}

enum MHD_Result kv_reply_send(kv_http_request *req) {
    kv_http_response *res = &req->res;
    struct MHD_Response *mhd;
    size_t n = res->body.len;
    req->status = res->status;
    if (res->stream.next && !req->head) { /* libmicrohttpd 0.9.75 would end a chunked answer to HEAD with a chunk */
        mhd = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, req, NULL);
    } else {
        req->bytes = req->head ? 0 : n;
        mhd = n ? MHD_create_response_from_buffer(n, res->body.data, MHD_RESPMEM_PERSISTENT) /* lives as long as req */
                : MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    }
    if (!mhd) return MHD_NO;
    all_headers(req, add_to_mhd, mhd);
    kv_conn_deadline(req->conn, (int64_t)(n / MIN_ANSWER_BYTES_PER_S) * 1000000);
    enum MHD_Result ok = MHD_queue_response(req->mhd, (unsigned)res->status, mhd);
    MHD_destroy_response(mhd);
    return ok;
}

static void add_to_text(void *to, const char *name, const char *value) {
    kv_buf_addf(to, "%s: %s\r\n", name, value);
}

void kv_reply_raw(kv_http_request *req) {
    kv_http_response *res = &req->res;
    kv_buf text = {0};
    req->status = res->status;
    req->bytes = res->body.len;
    kv_buf_addf(&text, "HTTP/1.1 %d %s\r\n", res->status, MHD_get_reason_phrase_for((unsigned)res->status));
    all_headers(req, add_to_text, &text);
    kv_buf_addf(&text, "Content-Length: %zu\r\n\r\n", res->body.len);
    kv_buf_add(&text, kv_buf_str(&res->body), res->body.len);
    /* Some hundred bytes on a socket that sent nothing yet: they fit its buffer, or the peer is gone. */
    (void)!send(req->conn->fd, text.data, text.len, MSG_NOSIGNAL);
    kv_buf_free(&text);
}

/* ── the log line ── */

void kv_reply_log(const kv_http_request *req, enum MHD_RequestTerminationCode code) {
    char method[17];
    size_t n = 0;
    const char *sent = req->method ? req->method : "?"; /* its headers were not read to their end */
    for (; sent[n] && n < sizeof method - 1; n++) method[n] = sent[n] > ' ' && sent[n] < 0x7f ? sent[n] : '?';
    method[n] = '\0';
    const char *end = "";
    if (req->hung_up && atomic_load(&req->http->stopping)) end = ", cut short by the stop";
    else if (req->hung_up || code == MHD_REQUEST_TERMINATED_CLIENT_ABORT || code == MHD_REQUEST_TERMINATED_READ_ERROR)
        end = ", the client hung up";
    else if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && !req->close) end = ", not sent to its end";
    double ms = (double)(kv_now_us(kv_clock_real()) - req->started_us) / 1000.0;
    const char *path = req->path_status == KV_INVALID ? "?" : kv_buf_str(&req->path);
    const char *note = req->res.note;
    KV_INFO("%s %.200s %d %llu B %.1f ms %s%s%s%s", method, path, req->status, (unsigned long long)req->bytes, ms,
            req->id, note[0] ? " " : "", note, end);
}
