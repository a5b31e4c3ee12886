/* /v1/chat/completions: the answer as OpenAI's assistant message, whole or in deltas.
 *
 * A stream's order is llama-server's: one chunk {"role":"assistant","content":null} with the choice's first token, the
 * deltas, one chunk with the finish reason and an empty delta, with include_usage one chunk without choices, [DONE].
 * Timings stand in the last of those.
 */
#include <string.h>

#include "api/account.h"
#include "api/body.h"
#include "api/chat_answer.h"
#include "api/chat_body.h"
#include "api/endpoints.h"
#include "api/shapes.h"
#include "api/stream.h"

static json_t *chunk(const kv_job *j, const kv_choice *c, const char *finish, json_t *delta) {
    json_t *choice = json_pack("{s:o, s:i, s:o}", "finish_reason", finish ? json_string(finish) : json_null(), "index",
                               c->index, "delta", delta);
    return kv_shape_completion(j, "chat.completion.chunk", json_pack("[o]", choice));
}

static void add_probs(const kv_job *j, kv_choice *c, json_t *chunk_or_body) {
    json_t *probs = kv_shape_take_probs(j, c);
    if (!probs) return;
    json_t *choice = json_array_get(json_object_get(chunk_or_body, "choices"), 0);
    json_object_set_new(choice, "logprobs", json_pack("{s:o}", "content", probs));
}

static json_t *role_chunk(const kv_job *j, const kv_choice *c) {
    return chunk(j, c, NULL, json_pack("{s:s, s:n}", "role", "assistant", "content"));
}

static void send_role(kv_buf *out, const kv_job *j, kv_choice *c) {
    if (c->started) return;
    c->started = true;
    kv_sse_event_new(out, role_chunk(j, c));
}

static void send_deltas(kv_buf *out, kv_job *j, kv_choice *c, json_t *deltas) {
    size_t n = json_array_size(deltas);
    for (size_t i = 0; i < n; i++) {
        json_t *event = chunk(j, c, NULL, json_incref(json_array_get(deltas, i)));
        if (i == n - 1 && !c->done) {
            add_probs(j, c, event);
            if (j->params.timings_per_token) json_object_set_new(event, "timings", kv_shape_timings(&c->timings));
        }
        kv_sse_event_new(out, event);
    }
    json_decref(deltas);
}

static void on_progress(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    json_t *event = role_chunk(j, c);
    kv_shape_tell_progress(event, j, e);
    kv_sse_event_new(out, event);
}

static void on_token(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    send_role(out, j, c);
    send_deltas(out, j, c, kv_chat_answer_feed(c, e->text ? e->text : "", e->n_text, false));
}

static void on_done(kv_buf *out, kv_job *j, kv_choice *c) {
    send_role(out, j, c);
    send_deltas(out, j, c, kv_chat_answer_feed(c, "", 0, true));
    json_t *event = chunk(j, c, kv_chat_answer_finish(c), json_object());
    add_probs(j, c, event);
    if (!j->params.include_usage) json_object_set_new(event, "timings", kv_shape_timings(&c->timings));
    kv_account a;
    kv_account_of_prompt(&a, j, c->prompt);
    kv_account_tell(event, j, &a);
    kv_sse_event_new(out, event);
}

static void on_end(kv_buf *out, kv_job *j) {
    if (j->params.include_usage) {
        kv_timings total = kv_shape_total(j);
        json_t *event = kv_shape_completion(j, "chat.completion.chunk", json_array());
        json_object_set_new(event, "usage", kv_chat_answer_usage(j));
        json_object_set_new(event, "timings", kv_shape_timings(&total));
        kv_sse_event_new(out, event);
    }
    kv_sse_done(out);
}

static json_t *body(kv_job *j) {
    json_t *choices = json_array();
    for (int i = 0; i < j->n_choices; i++) {
        kv_choice *c = &j->choice[i];
        json_t *message = kv_chat_answer_message(c);
        json_t *choice = json_pack("{s:s, s:i, s:o}", "finish_reason", kv_chat_answer_finish(c), "index", c->index,
                                   "message", message);
        json_t *probs = kv_shape_take_probs(j, c);
        if (probs) json_object_set_new(choice, "logprobs", json_pack("{s:o}", "content", probs));
        json_array_append_new(choices, choice);
    }
    kv_timings total = kv_shape_total(j);
    json_t *o = kv_shape_completion(j, "chat.completion", choices);
    json_object_set_new(o, "usage", kv_chat_answer_usage(j));
    json_object_set_new(o, "timings", kv_shape_timings(&total));
    kv_account a = kv_account_of_job(j);
    kv_account_tell(o, j, &a);
    return o;
}

static const kv_dialect chat = {
    .id_prefix = "chatcmpl-",
    .progress = on_progress,
    .token = on_token,
    .done = on_done,
    .end = on_end,
    .body = body,
};

kv_status kv_serve_chat_completions(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_status st = kv_app_require_ready(app, err);
    json_t *parsed = NULL;
    kv_job *j = NULL;
    if (st == KV_OK) st = kv_body_read(&parsed, req, err);
    if (st == KV_OK) st = kv_chat_job_new(&j, &chat, parsed, req, app, err);
    json_decref(parsed);
    return st == KV_OK ? kv_job_run(j, req, res, err) : st;
}

/* llama-server's token count: {"object":"response.input_tokens","input_tokens":N} */
kv_status kv_serve_chat_input_tokens(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_status st = kv_app_require_model(app, err);
    json_t *parsed = NULL;
    size_t n_tokens;
    if (st == KV_OK) st = kv_body_read(&parsed, req, err);
    if (st == KV_OK) st = kv_chat_count_tokens(&n_tokens, parsed, req, app, err);
    json_decref(parsed);
    if (st == KV_OK) kv_buf_addf(&res->body, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", n_tokens);
    return st;
}

kv_status kv_serve_apply_template(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    json_t *parsed = NULL;
    kv_params params;
    kv_chat_prompt *prompt;
    size_t n;
    st = kv_body_read(&parsed, req, err);
    if (st == KV_OK) st = kv_chat_body_read(&params, &prompt, parsed, req, app, err);
    json_decref(parsed);
    if (st != KV_OK) return st;
    const char *text = kv_chat_prompt_text(prompt, &n);
    json_t *o = json_pack("{s:o}", "prompt", kv_json_text(text, n));
    kv_json_dump_new(&res->body, o);
    kv_chat_prompt_free(prompt);
    kv_params_free(&params);
    return KV_OK;
}
