/* /v1/completions: OpenAI's text completions, whole or in chunks.
 *
 * A stream's order is llama-server's: chunks of text, one chunk with the finish reason, [DONE]. Usage stands in the
 * last of them, or with include_usage in one more chunk without choices.
 */
#include <string.h>

#include "api/account.h"
#include "api/endpoints.h"
#include "api/shapes.h"
#include "api/stream.h"

/* llama-server's {"content":[…]} and OpenAI's four arrays, which say the same. `offset` is where the first of these
 * tokens begins in the choice's text, in bytes. */
static json_t *logprobs(const kv_job *j, kv_choice *c, size_t offset) {
    json_t *probs = kv_shape_take_probs(j, c), *entry;
    if (!probs) return json_null();
    bool post = j->params.post_sampling_probs;
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    size_t i;
    json_array_foreach(probs, i, entry) {
        json_t *top = json_object(), *alternative;
        size_t k;
        json_array_foreach(json_object_get(entry, post ? "top_probs" : "top_logprobs"), k, alternative)
            json_object_set(top, json_string_value(json_object_get(alternative, "token")),
                            json_object_get(alternative, post ? "prob" : "logprob"));
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, post ? "prob" : "logprob"));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)offset));
        offset += json_array_size(json_object_get(entry, "bytes"));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "content", probs, "tokens", tokens, "token_logprobs", values,
                     "top_logprobs", tops, "text_offset", offsets);
}

static json_t *choice_json(const kv_choice *c, json_t *text, json_t *probs, const char *finish) {
    return json_pack("{s:o, s:i, s:o, s:o}", "text", text, "index", c->index, "logprobs", probs, "finish_reason",
                     finish ? json_string(finish) : json_null());
}

/* `echo`: the prompt's text comes before the answer's. */
static void add_echo(kv_buf *text, const kv_job *j, const kv_choice *c) {
    const kv_tokens *prompt = &j->prompts.list[c->prompt];
    if (j->params.echo) kv_prompt_spell(text, j->app->model, prompt->data, prompt->len, false);
}

static void send(kv_buf *out, json_t *event) {
    kv_sse_event_new(out, event);
}

static json_t *chunk(kv_job *j, kv_choice *c, const char *text, size_t n, json_t *probs, const char *finish) {
    return kv_shape_completion(j, "text_completion",
                               json_pack("[o]", choice_json(c, kv_json_text(text, n), probs, finish)));
}

static void send_echo(kv_buf *out, kv_job *j, kv_choice *c) {
    if (c->started) return;
    c->started = true;
    kv_buf text = {0};
    add_echo(&text, j, c);
    if (text.len) send(out, chunk(j, c, kv_buf_str(&text), text.len, json_null(), NULL));
    kv_buf_free(&text);
}

static void on_progress(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    json_t *event = chunk(j, c, "", 0, json_null(), NULL);
    kv_shape_tell_progress(event, j, e);
    send(out, event);
}

/* Where the pending tokens begin: the text of those that were told is all that was sent. */
static size_t pending_offset(const kv_job *j, const kv_choice *c) {
    kv_buf text = {0};
    size_t told = c->tokens.len - json_array_size(c->probs);
    kv_prompt_spell(&text, j->app->model, c->tokens.data, told, false);
    size_t n = text.len;
    kv_buf_free(&text);
    return n;
}

static json_t *pending_logprobs(kv_job *j, kv_choice *c) {
    return c->probs ? logprobs(j, c, pending_offset(j, c)) : json_null();
}

static void on_token(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    send_echo(out, j, c);
    if (e->n_text == 0) return; /* its probabilities come with the next text */
    json_t *event = chunk(j, c, e->text, e->n_text, pending_logprobs(j, c), NULL);
    if (j->params.timings_per_token) json_object_set_new(event, "timings", kv_shape_timings(&c->timings));
    send(out, event);
}

static void on_done(kv_buf *out, kv_job *j, kv_choice *c) {
    send_echo(out, j, c);
    json_t *event = chunk(j, c, "", 0, pending_logprobs(j, c), kv_shape_finish(c));
    if (!j->params.include_usage) {
        if (j->n_done == j->n_choices) json_object_set_new(event, "usage", kv_shape_usage(j));
        json_object_set_new(event, "timings", kv_shape_timings(&c->timings));
    }
    kv_account a;
    kv_account_of_prompt(&a, j, c->prompt);
    kv_account_tell(event, j, &a);
    send(out, event);
}

static void on_end(kv_buf *out, kv_job *j) {
    if (j->params.include_usage) {
        kv_timings total = kv_shape_total(j);
        json_t *event = kv_shape_completion(j, "text_completion", json_array());
        json_object_set_new(event, "usage", kv_shape_usage(j));
        json_object_set_new(event, "timings", kv_shape_timings(&total));
        send(out, event);
    }
    kv_sse_done(out);
}

static json_t *body(kv_job *j) {
    json_t *choices = json_array();
    for (int i = 0; i < j->n_choices; i++) {
        kv_choice *c = &j->choice[i];
        kv_buf text = {0};
        add_echo(&text, j, c);
        kv_buf_add(&text, kv_buf_str(&c->text), c->text.len);
        json_array_append_new(
            choices, choice_json(c, kv_json_text(kv_buf_str(&text), text.len), logprobs(j, c, 0), kv_shape_finish(c)));
        kv_buf_free(&text);
    }
    kv_timings total = kv_shape_total(j);
    json_t *o = kv_shape_completion(j, "text_completion", choices);
    json_object_set_new(o, "usage", kv_shape_usage(j));
    json_object_set_new(o, "timings", kv_shape_timings(&total));
    kv_account a = kv_account_of_job(j);
    kv_account_tell(o, j, &a);
    return o;
}

static const kv_dialect completions = {
    .id_prefix = "cmpl-",
    .progress = on_progress,
    .token = on_token,
    .done = on_done,
    .end = on_end,
    .body = body,
};

kv_status kv_serve_completions(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return kv_job_serve_prompt(app, req, res, KV_API_COMPLETIONS, &completions, err);
}
