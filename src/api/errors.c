/* Error bodies in OpenAI's shape, with llama-server's members:
 *
 *   {"error":{"code":400,"message":"…","type":"invalid_request_error","param":"stop[1]"}}
 *
 * `code` is the HTTP status, as in llama-server, but for two errors that clients tell apart by OpenAI's words. `param`
 * comes with every 4xx and is null where no field is at fault. A 5xx has none: those are llama-server's exact bodies.
 */
#include "api/errors.h"

#include <string.h>

#include "api/app.h"
#include "base/json.h"

kv_status kv_fail_context(kv_error *err, int64_t n_prompt_tokens, int64_t n_ctx) {
    kv_fail(err, KV_CONTEXT_FULL,
            "the request (%lld tokens) exceeds the available context size: this model's maximum context length is %lld "
            "tokens, with room for at least one new token",
            (long long)n_prompt_tokens, (long long)n_ctx);
    if (err) {
        err->n_prompt_tokens = n_prompt_tokens;
        err->n_ctx = n_ctx;
    }
    return KV_CONTEXT_FULL;
}

static json_t *code_of(const kv_error *err) {
    if (err->status == KV_CONTEXT_FULL) return json_string("context_length_exceeded");
    if (err->status == KV_NOT_FOUND && strcmp(err->field, "model") == 0) return json_string("model_not_found");
    if (err->status == KV_NOT_FOUND && strcmp(err->field, "previous_response_id") == 0)
        return json_string("previous_response_not_found");
    return json_integer(kv_status_http(err->status));
}

void kv_api_error_body(kv_buf *out, const kv_error *err) {
    kv_error context;
    if (err->status == KV_CONTEXT_FULL && err->n_ctx > 0) { /* one wording, whoever noticed */
        kv_fail_context(&context, err->n_prompt_tokens, err->n_ctx);
        err = &context;
    }
    int http = kv_status_http(err->status);
    json_t *e = json_object(), *body = json_object();
    json_object_set_new(e, "code", code_of(err));
    json_object_set_new(e, "message", kv_json_text0(err->message));
    json_object_set_new(e, "type", json_string(kv_status_type(err->status)));
    if (http < 500) json_object_set_new(e, "param", err->field[0] ? kv_json_text0(err->field) : json_null());
    if (err->status == KV_CONTEXT_FULL) {
        json_object_set_new(e, "n_prompt_tokens", json_integer(err->n_prompt_tokens));
        json_object_set_new(e, "n_ctx", json_integer(err->n_ctx));
    }
    json_object_set_new(body, "error", e);
    kv_json_dump_new(out, body);
}
