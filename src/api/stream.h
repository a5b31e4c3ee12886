/* api/stream.h: server-sent events: how they are spelled, and the stream that carries a job.
 *
 *   data: {…}\n\n          an event
 *   :\n\n                  a ping: a comment, in whatever state the job is, when nothing was sent for a while
 *   data: {"error": {…}}   the only way to tell an error after the 200; the stream ends with it
 *   data: [DONE]           the end of OpenAI's streams
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_STREAM_H
#define KV_API_STREAM_H

#include "api/job.h"

void kv_sse_event(kv_buf *out, const json_t *value);
/* The same, taking the reference. */
void kv_sse_event_new(kv_buf *out, json_t *value);
void kv_sse_ping(kv_buf *out);
void kv_sse_error(kv_buf *out, const kv_error *err);
void kv_sse_done(kv_buf *out);

/* kv_http_stream over a kv_job: ctx is the job, freed by kv_stream_free. */
bool kv_stream_next(void *ctx, kv_http_request *req, kv_buf *out);
void kv_stream_free(void *ctx);

#endif
