/* /completion: llama-server's own completions.
 *
 * Whole: one object, for several prompts or choices an array of them. As a stream: one object a token with "stop":
 * false, then the whole one with an empty content; no [DONE].
 */
#include "api/native/native.h"

#include <string.h>

#include "api/account.h"
#include "api/endpoints.h"
#include "api/shapes.h"
#include "api/stream.h"

/* Where it runs, once that is known. */
static int slot_of(const kv_job *j, const kv_choice *c) {
    return c->timings.n_decoded > 0 || c->done ? c->timings.slot : (int)j->params.id_slot;
}

static json_t *partial(const kv_job *j, const kv_choice *c, const char *text, size_t n, json_t *tokens) {
    return json_pack("{s:i, s:o, s:o, s:b, s:i, s:i, s:I}", "index", c->index, "content", kv_json_text(text, n),
                     "tokens", tokens, "stop", 0, "id_slot", slot_of(j, c), "tokens_predicted",
                     (int)c->timings.n_decoded, "tokens_evaluated", (json_int_t)j->prompts.list[c->prompt].len);
}

static void on_progress(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    json_t *event = partial(j, c, "", 0, json_array());
    kv_shape_tell_progress(event, j, e);
    kv_sse_event_new(out, event);
}

static void on_token(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    json_t *event = partial(j, c, e->text ? e->text : "", e->n_text, json_pack("[i]", (int)e->token));
    if (j->params.timings_per_token) json_object_set_new(event, "timings", kv_shape_timings(&c->timings));
    json_t *probs = kv_shape_take_probs(j, c);
    if (probs) json_object_set_new(event, "completion_probabilities", probs);
    kv_sse_event_new(out, event);
}

static const char *stop_type(const kv_choice *c) {
    switch (c->finish) {
    case KV_FINISH_EOS: return "eos";
    case KV_FINISH_WORD: return "word";
    case KV_FINISH_LENGTH: return "limit";
    default: return "none";
    }
}

static json_t *prompt_text(const kv_job *j, const kv_choice *c) {
    const kv_tokens *t = &j->prompts.list[c->prompt];
    kv_buf text = {0};
    kv_prompt_spell(&text, j->app->model, t->data, t->len, true);
    json_t *v = kv_json_text(kv_buf_str(&text), text.len);
    kv_buf_free(&text);
    return v;
}

static json_t *token_list(const kv_choice *c) {
    json_t *list = json_array();
    for (size_t i = 0; i < c->tokens.len; i++) json_array_append_new(list, json_integer(c->tokens.data[i]));
    return list;
}

/* In a stream text and tokens were told piece by piece. */
static json_t *whole(kv_job *j, kv_choice *c) {
    const kv_params *p = &j->params;
    json_int_t n_prompt = (json_int_t)j->prompts.list[c->prompt].len, n_decoded = c->timings.n_decoded;
    json_int_t n_kept = n_prompt + (n_decoded > 0 ? n_decoded - 1 : 0); /* the last token was not computed on */
    const char *name = j->app->model_name;
    json_t *o = json_object();
    json_object_set_new(o, "index", json_integer(c->index));
    json_object_set_new(o, "content", p->stream ? json_string("") : kv_json_text(kv_buf_str(&c->text), c->text.len));
    json_object_set_new(o, "tokens", p->stream || !p->return_tokens ? json_array() : token_list(c));
    json_object_set_new(o, "id_slot", json_integer(slot_of(j, c)));
    json_object_set_new(o, "stop", json_true());
    json_object_set_new(o, "model", kv_json_text0(name));
    json_object_set_new(o, "tokens_predicted", json_integer(n_decoded));
    json_object_set_new(o, "tokens_evaluated", json_integer(n_prompt));
    json_object_set_new(o, "generation_settings", kv_params_json(p, j->app->model, false));
    json_object_set_new(o, "prompt", prompt_text(j, c));
    json_object_set_new(o, "has_new_line", json_boolean(c->text.len && memchr(c->text.data, '\n', c->text.len)));
    json_object_set_new(o, "truncated",
                        json_boolean(c->finish == KV_FINISH_LENGTH && n_kept + 1 >= j->app->n_ctx_served));
    json_object_set_new(o, "stop_type", json_string(stop_type(c)));
    json_object_set_new(o, "stopping_word",
                        kv_json_text(c->stop_word ? c->stop_word : "", c->stop_word ? strlen(c->stop_word) : 0));
    json_object_set_new(o, "tokens_cached", json_integer(n_kept));
    json_object_set_new(o, "timings", kv_shape_timings(&c->timings));
    json_t *probs = kv_shape_take_probs(j, c);
    if (probs) json_object_set_new(o, "completion_probabilities", probs);
    kv_account a;
    kv_account_of_prompt(&a, j, c->prompt);
    kv_account_tell(o, j, &a);
    if (!p->response_fields) return o;
    json_t *picked = kv_shape_pick(o, p->response_fields);
    json_decref(o);
    return picked;
}

static void on_done(kv_buf *out, kv_job *j, kv_choice *c) {
    kv_sse_event_new(out, whole(j, c));
}

static void on_end(kv_buf *out, kv_job *j) {
    (void)out, (void)j;
}

static json_t *body(kv_job *j) {
    if (j->n_choices == 1) return whole(j, &j->choice[0]);
    json_t *list = json_array();
    for (int i = 0; i < j->n_choices; i++) json_array_append_new(list, whole(j, &j->choice[i]));
    return list;
}

const kv_dialect kv_native_dialect = {
    .id_prefix = "cmpl-",
    .progress = on_progress,
    .token = on_token,
    .done = on_done,
    .end = on_end,
    .body = body,
};

kv_status kv_serve_native(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return kv_job_serve_prompt(app, req, res, KV_API_NATIVE, &kv_native_dialect, err);
}
