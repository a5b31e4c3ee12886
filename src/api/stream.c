#include "api/stream.h"

#include <limits.h>

#include "api/account.h"

void kv_sse_event(kv_buf *out, const json_t *value) {
    kv_buf_adds(out, "data: ");
    kv_json_dump(out, value);
    kv_buf_adds(out, "\n\n");
}

void kv_sse_event_new(kv_buf *out, json_t *value) {
    kv_sse_event(out, value);
    json_decref(value);
}

void kv_sse_ping(kv_buf *out) {
    kv_buf_adds(out, ":\n\n");
}

void kv_sse_error(kv_buf *out, const kv_error *err) {
    kv_buf_adds(out, "data: ");
    kv_api_error_body(out, err);
    kv_buf_adds(out, "\n\n");
}

void kv_sse_done(kv_buf *out) {
    kv_buf_adds(out, "data: [DONE]\n\n");
}

/* Milliseconds until the next ping is due; -1 when there are none. */
static int ping_timeout(const kv_job *j, int64_t now_us) {
    if (j->params.sse_ping_interval <= 0) return -1;
    int64_t due = j->last_sent_us + (int64_t)j->params.sse_ping_interval * 1000000;
    int64_t ms = (due - now_us + 999) / 1000;
    if (ms < 0) return 0;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

bool kv_stream_next(void *ctx, kv_http_request *req, kv_buf *out) {
    kv_job *j = ctx;
    size_t before = out->len;
    while (!j->over) {
        kv_job_pump(j, out);
        if (j->error.status != KV_OK) {
            if (j->dialect->error) j->dialect->error(out, j);
            else kv_sse_error(out, &j->error);
            kv_job_cancel(j);
        } else if (j->n_done == j->n_choices) {
            j->dialect->end(out, j);
            j->over = true;
        }
        if (out->len > before) break;
        int64_t now = kv_now_us(kv_clock_real());
        int timeout = ping_timeout(j, now);
        if (timeout == 0) {
            if (j->dialect->ping) j->dialect->ping(out, j);
            else kv_sse_ping(out);
            break;
        }
        if (!j->over && kv_http_wait(req, &j->wake, timeout) == KV_WAIT_HUNG_UP) kv_job_cancel(j);
    }
    kv_job_note(req, j); /* now: the client may go away before the next call */
    if (j->over) kv_account_record(j);
    if (out->len == before) return false;
    j->last_sent_us = kv_now_us(kv_clock_real());
    return true;
}

void kv_stream_free(void *ctx) {
    kv_job_free(ctx);
}
