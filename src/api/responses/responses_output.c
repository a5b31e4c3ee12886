/* The answer as a response object and as its events.
 *
 *   response.created, response.in_progress
 *   for each item   response.output_item.added
 *     reasoning       content_part.added, reasoning_text.delta …, reasoning_text.done, content_part.done;
 *                     with reasoning.summary: reasoning_summary_part.added, reasoning_summary_text.delta … in their place
 *     message         content_part.added, output_text.delta …, output_text.done, content_part.done
 *     function_call   function_call_arguments.delta …, function_call_arguments.done
 *     custom call     custom_tool_call_input.delta, custom_tool_call_input.done: once its arguments are whole
 *                   response.output_item.done
 *   response.completed | response.incomplete | response.failed and error
 *
 * One item is open at a time; text of another kind closes it. Whole answers go the same way without events.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/account.h"
#include "api/chat_answer.h"
#include "api/responses/responses.h"
#include "api/shapes.h"
#include "api/stream.h"

/* ── the response object ───────────────────────────────────────────────────────────────────────────────────────── */

/* How many sampled tokens have some of `part` in them; -1: the text has no such part. */
static int64_t tokens_of(const kv_job *j, const char *part, size_t *first) {
    const kv_choice *c = &j->choice[0];
    const char *text = kv_buf_str(&c->text), *found = *part ? strstr(text, part) : NULL;
    if (!found) return -1;
    size_t from = (size_t)(found - text), to = from + strlen(part), i = 0;
    int64_t n = 0;
    kv_buf spelled = {0};
    for (; i < c->tokens.len && spelled.len < to; i++) {
        kv_model_piece(&spelled, j->app->model, c->tokens.data[i], true);
        if (spelled.len <= from) continue;
        if (n++ == 0) *first = i;
    }
    kv_buf_free(&spelled);
    return n;
}

static json_t *usage_of(const kv_job *j) {
    kv_timings t = kv_shape_total(j);
    json_int_t n_prompt = (json_int_t)j->prompts.list[0].len, computed = n_prompt - t.n_cached;
    /* the last token is always computed */
    json_int_t written = j->params.cache_prompt && j->app->cache && computed > 1 ? computed - 1 : 0;
    return json_pack("{s:I, s:{s:i, s:I}, s:i, s:{s:i}, s:I}", "input_tokens", n_prompt, "input_tokens_details",
                     "cached_tokens", (int)t.n_cached, "cache_write_tokens", written, "output_tokens", (int)t.n_decoded,
                     "output_tokens_details", "reasoning_tokens", kv_chat_answer_reasoning_tokens(j, &j->choice[0]),
                     "total_tokens", n_prompt + t.n_decoded);
}

/* A float as a person would write it: 0.8, not 0.800000011920929. */
static json_t *number(float f) {
    return json_real(round((double)f * 1e6) / 1e6);
}

static void set(json_t *o, const char *name, json_t *value) {
    json_object_set_new(o, name, value ? value : json_null());
}

/* status: "in_progress", "completed", "incomplete", "failed". Only what is over has usage. */
static json_t *object_of(const kv_response *r, const kv_job *j, const char *status) {
    bool over = strcmp(status, "in_progress") != 0, failed = strcmp(status, "failed") == 0;
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:b}", "id", j->id, "object", "response", "created_at",
                          (json_int_t)j->created, "status", status, "background", 0);
    set(o, "completed_at", strcmp(status, "completed") == 0 ? json_integer(kv_wall_seconds()) : NULL);
    set(o, "error", NULL);
    set(o, "access_programs", NULL);
    set(o, "incomplete_details",
        strcmp(status, "incomplete") == 0 ? json_pack("{s:s}", "reason", "max_output_tokens") : NULL);
    set(o, "model", kv_json_text0(j->app->model_name));
    json_object_set(o, "output", r->output);
    json_object_update(o, r->echo);
    set(o, "store", json_boolean(over ? r->stored : r->store));
    set(o, "temperature", number(j->params.sampling.temperature));
    set(o, "top_p", number(j->params.sampling.top_p));
    set(o, "usage", over && !failed ? usage_of(j) : NULL);
    return o;
}

/* ── events ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Takes the reference of `members`. Without `out` nothing is sent. */
static void emit(kv_buf *out, kv_response *r, const char *type, json_t *members) {
    if (out) {
        json_t *event = json_pack("{s:s, s:I}", "type", type, "sequence_number", r->n_events++);
        json_object_update(event, members);
        kv_buf_addf(out, "event: %s\ndata: ", type);
        kv_json_dump(out, event);
        kv_buf_adds(out, "\n\n");
        json_decref(event);
    }
    json_decref(members);
}

static json_int_t index_of_open(const kv_response *r) {
    return (json_int_t)json_array_size(r->output) - 1;
}

static const char *id_of_open(const kv_response *r) {
    return json_string_value(json_object_get(r->item, "id"));
}

/* An event about the open item, which has `n` parts to point to: part_name is "content_index", "summary_index", NULL. */
static void emit_open(kv_buf *out, kv_response *r, const char *type, const char *part_name, json_t *members) {
    if (out) {
        json_object_set_new(members, "item_id", json_string(id_of_open(r)));
        json_object_set_new(members, "output_index", json_integer(index_of_open(r)));
        if (part_name) json_object_set_new(members, part_name, json_integer(0));
    }
    emit(out, r, type, members);
}

static void emit_item(kv_buf *out, kv_response *r, const char *type) {
    emit(out, r, type, json_pack("{s:I, s:O}", "output_index", index_of_open(r), "item", r->item));
}

static void begin(kv_buf *out, kv_response *r, kv_job *j) {
    if (r->begun) return;
    r->begun = true;
    if (!out) return;
    json_t *o = object_of(r, j, "in_progress");
    emit(out, r, "response.created", json_pack("{s:O}", "response", o));
    emit(out, r, "response.in_progress", json_pack("{s:o}", "response", o));
}

/* ── closing the open item ─────────────────────────────────────────────────────────────────────────────────────── */

static json_t *open_text(const kv_response *r) {
    return kv_json_text(kv_buf_str(&r->text), r->text.len);
}

static void close_reasoning(kv_buf *out, kv_response *r) {
    json_t *text = open_text(r);
    const char *list = r->summary ? "summary" : "content";
    json_t *part = json_pack("{s:s, s:O}", "type", r->summary ? "summary_text" : "reasoning_text", "text", text);
    json_object_set_new(r->item, list, json_pack("[O]", part));
    if (r->encrypted) {
        kv_buf kept = {0};
        kv_buf_adds(&kept, KV_RESPONSE_REASONING);
        kv_buf_add(&kept, kv_buf_str(&r->text), r->text.len);
        json_object_set_new(r->item, "encrypted_content", kv_json_text(kept.data, kept.len));
        kv_buf_free(&kept);
    }
    const char *at = r->summary ? "summary_index" : "content_index";
    emit_open(out, r, r->summary ? "response.reasoning_summary_text.done" : "response.reasoning_text.done", at,
              json_pack("{s:o}", "text", text));
    emit_open(out, r, r->summary ? "response.reasoning_summary_part.done" : "response.content_part.done", at,
              json_pack("{s:o}", "part", part));
}

static json_t *text_part(json_t *text, json_t *logprobs) {
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text, "annotations", "logprobs",
                     logprobs ? logprobs : json_array());
}

static void close_message(kv_buf *out, kv_response *r) {
    json_t *text = open_text(r), *logprobs = r->probs ? r->probs : json_array();
    r->probs = NULL;
    json_t *part = text_part(json_incref(text), json_incref(logprobs));
    json_object_set_new(r->item, "content", json_pack("[O]", part));
    emit_open(out, r, "response.output_text.done", "content_index",
              json_pack("{s:o, s:o}", "text", text, "logprobs", logprobs));
    emit_open(out, r, "response.content_part.done", "content_index", json_pack("{s:o}", "part", part));
}

static bool is_custom(const kv_response *r) {
    return strcmp(json_string_value(json_object_get(r->item, "type")), "custom_tool_call") == 0;
}

/* A custom tool's text is the one argument; where that cannot be read, the arguments themselves. */
static json_t *custom_input(const kv_response *r) {
    json_t *arguments = NULL, *input = NULL;
    if (kv_json_parse(&arguments, kv_buf_str(&r->text), r->text.len, NULL) == KV_OK)
        input = json_object_get(arguments, "input");
    input = json_is_string(input) ? json_incref(input) : open_text(r);
    json_decref(arguments);
    return input;
}

static void close_call(kv_buf *out, kv_response *r) {
    if (is_custom(r)) {
        json_t *input = custom_input(r);
        json_object_set(r->item, "input", input);
        emit_open(out, r, "response.custom_tool_call_input.delta", NULL, json_pack("{s:O}", "delta", input));
        emit_open(out, r, "response.custom_tool_call_input.done", NULL, json_pack("{s:o}", "input", input));
        return;
    }
    json_t *arguments = open_text(r);
    json_object_set(r->item, "arguments", arguments);
    emit_open(out, r, "response.function_call_arguments.done", NULL,
              json_pack("{s:o, s:O}", "arguments", arguments, "name", json_object_get(r->item, "name")));
}

static void close_item(kv_buf *out, kv_response *r, const char *status) {
    if (r->open == KV_OPEN_NOTHING) return;
    if (r->open == KV_OPEN_REASONING) close_reasoning(out, r);
    if (r->open == KV_OPEN_MESSAGE) close_message(out, r);
    if (r->open == KV_OPEN_CALL) close_call(out, r);
    json_object_set_new(r->item, "status", json_string(status));
    emit_item(out, r, "response.output_item.done");
    r->open = KV_OPEN_NOTHING;
    r->item = NULL;
    kv_buf_clear(&r->text);
}

/* ── opening one ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void open_item(kv_buf *out, kv_response *r, kv_response_open what, const char *id_prefix, json_t *item) {
    char id[64];
    close_item(out, r, "completed");
    kv_shape_id(id, sizeof id, id_prefix);
    json_object_set_new(item, "id", json_string(id));
    json_object_set_new(item, "status", json_string("in_progress"));
    json_array_append_new(r->output, item);
    r->item = item;
    r->open = what;
    emit_item(out, r, "response.output_item.added");
}

static void open_reasoning(kv_buf *out, kv_response *r) {
    open_item(out, r, KV_OPEN_REASONING, "rs_",
              json_pack("{s:s, s:[], s:[]}", "type", "reasoning", "summary", "content"));
    json_t *part = json_pack("{s:s, s:s}", "type", r->summary ? "summary_text" : "reasoning_text", "text", "");
    emit_open(out, r, r->summary ? "response.reasoning_summary_part.added" : "response.content_part.added",
              r->summary ? "summary_index" : "content_index", json_pack("{s:o}", "part", part));
}

static void open_message(kv_buf *out, kv_response *r) {
    open_item(out, r, KV_OPEN_MESSAGE, "msg_",
              json_pack("{s:s, s:s, s:[]}", "type", "message", "role", "assistant", "content"));
    if (r->logprobs) r->probs = json_array();
    emit_open(out, r, "response.content_part.added", "content_index",
              json_pack("{s:o}", "part", text_part(json_string(""), NULL)));
}

static void open_call(kv_buf *out, kv_response *r, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const char *call_id = json_string_value(json_object_get(call, "id"));
    const json_t *tool = name ? json_object_get(r->names, name) : NULL;
    const char *type = json_string_value(json_object_get(tool, "type"));
    bool custom = type && strcmp(type, "custom") == 0;
    char made[64];
    kv_shape_id(made, sizeof made, "call_");
    if (tool) name = json_string_value(json_object_get(tool, "name"));
    json_t *item =
        json_pack("{s:s, s:s, s:s, s:s}", "type", custom ? "custom_tool_call" : "function_call", "call_id",
                  call_id && *call_id ? call_id : made, "name", name ? name : "", custom ? "input" : "arguments", "");
    json_t *namespace = json_object_get(tool, "namespace");
    if (namespace) json_object_set(item, "namespace", namespace);
    open_item(out, r, KV_OPEN_CALL, custom ? "ctc_" : "fc_", item);
}

/* ── deltas ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What a delta event has beside its text. */
typedef struct extra {
    json_t *probs;   /* NULL = none; borrowed */
    json_t *timings; /* likewise */
} extra;

static void add_reasoning(kv_buf *out, kv_response *r, const json_t *text) {
    if (!json_is_string(text) || json_string_length(text) == 0) return;
    if (r->open != KV_OPEN_REASONING) open_reasoning(out, r);
    kv_buf_add(&r->text, json_string_value(text), json_string_length(text));
    emit_open(out, r, r->summary ? "response.reasoning_summary_text.delta" : "response.reasoning_text.delta",
              r->summary ? "summary_index" : "content_index", json_pack("{s:O}", "delta", text));
}

static void add_text(kv_buf *out, kv_response *r, const json_t *text, const extra *x) {
    if (!json_is_string(text) || json_string_length(text) == 0) return;
    if (r->open != KV_OPEN_MESSAGE) open_message(out, r);
    kv_buf_add(&r->text, json_string_value(text), json_string_length(text));
    if (r->probs && x->probs) json_array_extend(r->probs, x->probs);
    json_t *event = json_pack("{s:O, s:o}", "delta", text, "logprobs", x->probs ? json_incref(x->probs) : json_array());
    if (x->timings) json_object_set(event, "timings", x->timings);
    emit_open(out, r, "response.output_text.delta", "content_index", event);
}

static void add_call(kv_buf *out, kv_response *r, const json_t *call, json_int_t place) {
    const json_t *index = json_object_get(call, "index");
    json_int_t i = index ? json_integer_value(index) : place;
    if (r->open != KV_OPEN_CALL || r->call != i) {
        open_call(out, r, call);
        r->call = i;
    }
    const json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
    if (!json_is_string(arguments) || json_string_length(arguments) == 0) return;
    kv_buf_add(&r->text, json_string_value(arguments), json_string_length(arguments));
    if (is_custom(r)) return;
    emit_open(out, r, "response.function_call_arguments.delta", NULL, json_pack("{s:O}", "delta", arguments));
}

/* A delta of chat's. */
static void add_delta(kv_buf *out, kv_response *r, const json_t *delta, const extra *x) {
    const json_t *call;
    size_t i;
    add_reasoning(out, r, json_object_get(delta, "reasoning_content"));
    add_text(out, r, json_object_get(delta, "content"), x);
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call) add_call(out, r, call, (json_int_t)i);
}

static bool has_text(const json_t *delta) {
    return json_string_length(json_object_get(delta, "content")) > 0;
}

/* Token probabilities go with the text that they are of: those of reasoning and of calls are dropped. */
static void add_deltas(kv_buf *out, kv_response *r, kv_job *j, kv_choice *c, json_t *deltas) {
    size_t n = json_array_size(deltas), last = n;
    for (size_t i = 0; i < n; i++)
        if (has_text(json_array_get(deltas, i))) last = i;
    extra with = {0}, without = {0};
    if (last < n || r->open != KV_OPEN_MESSAGE) with.probs = kv_shape_take_probs(j, c);
    if (j->params.timings_per_token && !c->done) with.timings = kv_shape_timings(&c->timings);
    for (size_t i = 0; i < n; i++) add_delta(out, r, json_array_get(deltas, i), i == last ? &with : &without);
    json_decref(with.probs);
    json_decref(with.timings);
    json_decref(deltas);
}

/* ── the dialect ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void on_begin(kv_buf *out, kv_job *j, kv_choice *c) {
    (void)c;
    begin(out, j->state, j);
}

static void on_progress(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    (void)c;
    kv_response *r = j->state;
    begin(out, r, j);
    json_t *event = json_pack("{s:o}", "response", object_of(r, j, "in_progress"));
    kv_shape_tell_progress(event, j, e);
    emit(out, r, "response.in_progress", event);
}

static void on_token(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    kv_response *r = j->state;
    begin(out, r, j);
    add_deltas(out, r, j, c, kv_chat_answer_feed(c, e->text ? e->text : "", e->n_text, false));
}

static const char *status_of(const kv_choice *c) {
    return strcmp(kv_shape_finish(c), "length") == 0 ? "incomplete" : "completed";
}

/* No answer is an empty message. */
static void close_all(kv_buf *out, kv_response *r, const kv_choice *c) {
    if (json_array_size(r->output) == 0) open_message(out, r);
    close_item(out, r, status_of(c));
}

static void on_done(kv_buf *out, kv_job *j, kv_choice *c) {
    kv_response *r = j->state;
    begin(out, r, j);
    add_deltas(out, r, j, c, kv_chat_answer_feed(c, "", 0, true));
    close_all(out, r, c);
}

/* The finished object, kept before the client can know of it. */
static json_t *finish(kv_response *r, kv_job *j) {
    const char *status = status_of(&j->choice[0]);
    r->stored = r->store;
    json_t *o = object_of(r, j, status);
    kv_account a = kv_account_of_job(j);
    kv_account_tell(o, j, &a);
    if (r->store && !kv_response_save(r, j, o)) {
        r->stored = false;
        json_object_set_new(o, "store", json_false());
    }
    return o;
}

static void on_end(kv_buf *out, kv_job *j) {
    kv_response *r = j->state;
    bool complete = strcmp(status_of(&j->choice[0]), "completed") == 0;
    kv_timings total = kv_shape_total(j);
    emit(out, r, complete ? "response.completed" : "response.incomplete",
         json_pack("{s:o, s:o}", "response", finish(r, j), "timings", kv_shape_timings(&total)));
}

/* "context_length_exceeded" is what agents look for; OpenAI's own words for the rest. "server_error" means to clients
 * that trying again may help, which it does not where the request is at fault. */
static const char *code_of(const kv_error *err) {
    if (err->status == KV_CONTEXT_FULL) return "context_length_exceeded";
    if (err->status == KV_NOT_FOUND && strcmp(err->field, "previous_response_id") == 0)
        return "previous_response_not_found";
    return kv_status_http(err->status) < 500 && err->status != KV_CANCELLED ? "invalid_prompt" : "server_error";
}

static json_t *param_of(const kv_error *err) {
    return err->field[0] ? kv_json_text0(err->field) : json_null();
}

/* For those who look for an error alone; `error` inside makes OpenAI's clients throw it. */
static json_t *error_members(const kv_error *err) {
    json_t *message = kv_json_text0(err->message);
    return json_pack("{s:s, s:O, s:o, s:{s:s, s:s, s:o, s:o}}", "code", code_of(err), "message", message, "param",
                     param_of(err), "error", "type", kv_status_type(err->status), "code", code_of(err), "message",
                     message, "param", param_of(err));
}

static void on_error(kv_buf *out, kv_job *j) {
    kv_response *r = j->state;
    begin(out, r, j);
    close_item(out, r, "incomplete");
    json_t *failed = object_of(r, j, "failed");
    set(failed, "error",
        json_pack("{s:s, s:o}", "code", code_of(&j->error), "message", kv_json_text0(j->error.message)));
    emit(out, r, "response.failed", json_pack("{s:o}", "response", failed));
    emit(out, r, "error", error_members(&j->error));
}

/* Before there is a response: the model that it waited for does not come. */
static void say_error(kv_buf *out, const kv_http_request *req, const kv_error *err) {
    (void)req;
    kv_response none = {0};
    emit(out, &none, "error", error_members(err));
}

const kv_gate_voice kv_response_voice = {.ping = kv_sse_ping, .error = say_error};

/* Each message gets the probabilities of its own tokens, of those of the whole answer. */
static void share_probs(const kv_response *r, kv_job *j, kv_choice *c) {
    json_t *all = kv_shape_take_probs(j, c), *item;
    size_t k, first = 0;
    json_array_foreach(r->output, k, item) {
        json_t *part = json_array_get(json_object_get(item, "content"), 0), *own = json_object_get(part, "logprobs");
        const char *text = json_string_value(json_object_get(part, "text"));
        int64_t n = own && text ? tokens_of(j, text, &first) : 0;
        for (int64_t i = 0; i < n; i++) {
            json_t *one = json_array_get(all, first + (size_t)i);
            if (one) json_array_append(own, one);
        }
    }
    json_decref(all);
}

/* The deltas of the whole text at once. (A message would have what was continued in front.) */
static json_t *body(kv_job *j) {
    kv_response *r = j->state;
    kv_choice *c = &j->choice[0];
    const extra none = {0};
    json_t *deltas = kv_chat_answer_feed(c, kv_buf_str(&c->text), c->text.len, true), *delta;
    size_t i;
    if (json_array_size(deltas) == 0 && c->text.len)
        json_array_append_new(deltas, json_pack("{s:o}", "content", kv_json_text(c->text.data, c->text.len)));
    json_array_foreach(deltas, i, delta) add_delta(NULL, r, delta, &none);
    json_decref(deltas);
    close_all(NULL, r, c);
    if (r->logprobs) share_probs(r, j, c);
    return finish(r, j);
}

static void free_state(kv_job *j) {
    kv_response_free(j->state);
}

const kv_dialect kv_response_dialect = {
    .id_prefix = "resp_",
    .begin = on_begin,
    .progress = on_progress,
    .token = on_token,
    .done = on_done,
    .end = on_end,
    .error = on_error,
    .body = body,
    .free = free_state,
};
