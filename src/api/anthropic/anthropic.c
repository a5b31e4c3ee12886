/* /v1/messages and /v1/messages/count_tokens: the answer as Anthropic's message, whole or in events.
 *
 *   ping …  message_start ─┬─► content_block_start ─► content_block_delta … ─► content_block_stop ─┐
 *                          │     ▲                                                               │
 *                          │     └───────────── another kind, or another tool call ◄─────────────┤
 *                          └──────────────────────────────────────────────────────► message_delta ─► message_stop
 *
 * message_start comes once the prompt is restored as far as the cache has it, so its usage is the final one. An error
 * after the 200 is an event "error", and the last.
 */
#include "api/anthropic/anthropic.h"

#include <stdlib.h>
#include <string.h>

#include "api/account.h"
#include "api/body.h"
#include "api/chat_answer.h"
#include "api/chat_body.h"
#include "api/endpoints.h"
#include "api/shapes.h"
#include "api/stream.h"

#define HTTP_OVERLOADED 529

typedef enum block_kind { NOTHING, TEXT, THINKING, TOOL } block_kind;

/* j->state */
typedef struct telling {
    bool omit_thinking, wants_edits;
    block_kind open; /* the block that is told */
    int index;       /* its number; of the next one when none is open */
    json_int_t call; /* TOOL: its number among the calls */
    kv_buf thought;  /* THINKING: its text so far */
} telling;

/* ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *error_type(kv_status status) {
    switch (status) {
    case KV_TOO_LARGE: return "request_too_large";
    case KV_UNAUTHORIZED: return "authentication_error";
    case KV_FORBIDDEN: return "permission_error";
    case KV_NOT_FOUND: return "not_found_error";
    case KV_BUSY: return "overloaded_error";
    default: return kv_status_http(status) < 500 ? "invalid_request_error" : "api_error";
    }
}

static json_t *error_value(const kv_error *err, const char *request_id) {
    json_t *message = NULL;
    if (err->status == KV_CONTEXT_FULL && err->n_ctx > 0) /* the words that agents look for before they compact */
        message = json_sprintf("prompt is too long: %lld tokens > %lld maximum", (long long)err->n_prompt_tokens,
                               (long long)err->n_ctx - 1); /* one is for the answer */
    if (!message) message = kv_json_text0(err->message);
    return json_pack("{s:s, s:{s:s, s:o}, s:o}", "type", "error", "error", "type", error_type(err->status), "message",
                     message, "request_id", request_id ? kv_json_text0(request_id) : json_null());
}

void kv_anthropic_error_body(kv_buf *out, const kv_error *err) {
    json_t *body = error_value(err, err->request_id);
    kv_json_dump_new(out, body);
}

/* ── usage ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Of what was newly kept, what lies before the last breakpoint of one hour. */
static int32_t kept_an_hour(const kv_job *j, int32_t from, int32_t to) {
    int32_t end = from;
    for (int i = 0; i < j->n_hints; i++)
        if (j->hints[i].keep_seconds >= 3600 && j->hints[i].position > end) end = j->hints[i].position;
    return (end < to ? end : to) - from;
}

/* anthropic.h says how the prompt's tokens are split. */
static json_t *usage(const kv_job *j, const kv_choice *c, int32_t n_output) {
    int32_t n_prompt = (int32_t)j->prompts.list[0].len, read = c->timings.n_cached;
    int32_t computed = n_prompt > read ? n_prompt - read : 0;
    int32_t kept = j->params.cache_prompt && j->app->cache && computed > 1 ? computed - 1 : 0;
    int32_t hour = kept_an_hour(j, read, read + kept);
    return json_pack("{s:i, s:i, s:i, s:{s:i, s:i}, s:i, s:n, s:n, s:n, s:n, s:s}", "input_tokens",
                     (int)(computed - kept), "cache_creation_input_tokens", (int)kept, "cache_read_input_tokens",
                     (int)read, "cache_creation", "ephemeral_5m_input_tokens", (int)(kept - hour),
                     "ephemeral_1h_input_tokens", (int)hour, "output_tokens", (int)n_output, "output_tokens_details",
                     "server_tool_use", "inference_geo", "speed", "service_tier", "standard");
}

/* Of an answer that is done. */
static json_t *full_usage(const kv_job *j, kv_choice *c) {
    json_t *u = usage(j, c, c->timings.n_decoded);
    json_object_set_new(u, "output_tokens_details",
                        json_pack("{s:i}", "thinking_tokens", kv_chat_answer_reasoning_tokens(j, c)));
    return u;
}

/* ── why it ended ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* A stop string of the request; those that the chat format adds end a turn. */
static const char *own_stop(const kv_job *j, const kv_choice *c) {
    if (c->finish != KV_FINISH_WORD || !c->stop_word) return NULL;
    for (int i = 0; i < j->params.n_stops; i++)
        if (strcmp(j->params.stops[i], c->stop_word) == 0) return c->stop_word;
    return NULL;
}

static const char *stop_reason(const kv_job *j, const kv_choice *c) {
    if (c->finish == KV_FINISH_LENGTH) {
        bool cut = j->params.n_predict < 0 || c->timings.n_decoded < j->params.n_predict;
        bool full = (int64_t)j->prompts.list[0].len + c->timings.n_decoded >= j->app->n_ctx_served;
        return cut && full ? "model_context_window_exceeded" : "max_tokens";
    }
    if (own_stop(j, c)) return "stop_sequence";
    return strcmp(kv_chat_answer_finish(c), "tool_calls") == 0 ? "tool_use" : "end_turn";
}

static void add_stop(json_t *to, const kv_job *j, const kv_choice *c) {
    const char *word = own_stop(j, c);
    json_object_set_new(to, "stop_reason", json_string(stop_reason(j, c)));
    json_object_set_new(to, "stop_sequence", word ? kv_json_text0(word) : json_null());
    json_object_set_new(to, "stop_details", json_null());
}

/* ── parts of messages ─────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *text_block(json_t *text) {
    return json_pack("{s:s, s:o, s:n}", "type", "text", "text", text, "citations");
}

static json_t *thinking_block(json_t *text, json_t *signature) {
    return json_pack("{s:s, s:o, s:o}", "type", "thinking", "thinking", text, "signature", signature);
}

/* A call's id as its format spells it, for the same prompt to come back; one of ours where the format has none. */
static json_t *call_id(const json_t *call) {
    json_t *id = json_object_get(call, "id");
    if (json_string_length(id)) return json_incref(id);
    char fresh[64];
    kv_shape_id(fresh, sizeof fresh, "toolu_");
    return json_string(fresh);
}

static json_t *tool_block(const json_t *call, json_t *input) {
    json_t *name = json_object_get(json_object_get(call, "function"), "name");
    return json_pack("{s:s, s:o, s:o, s:o, s:{s:s}}", "type", "tool_use", "id", call_id(call), "name",
                     name ? json_incref(name) : json_string(""), "input", input, "caller", "type", "direct");
}

static json_t *message(const kv_job *j, json_t *content) {
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:n, s:n, s:n, s:n, s:n}", "id", j->id, "type", "message", "role",
                     "assistant", "model", kv_json_text0(j->app->model_name), "content", content, "stop_reason",
                     "stop_sequence", "stop_details", "container", "diagnostics");
}

static void add_edits(json_t *to, const kv_job *j) {
    const telling *t = j->state;
    if (t->wants_edits) json_object_set_new(to, "context_management", json_pack("{s:[]}", "applied_edits"));
}

/* ── events ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void event(kv_buf *out, const char *name, json_t *value) {
    kv_buf_addf(out, "event: %s\n", name);
    kv_sse_event_new(out, value);
}

static void send_delta(kv_buf *out, const telling *t, json_t *delta) {
    event(out, "content_block_delta",
          json_pack("{s:s, s:i, s:o}", "type", "content_block_delta", "index", t->index, "delta", delta));
}

static void close_block(kv_buf *out, telling *t) {
    if (t->open == NOTHING) return;
    if (t->open == THINKING) {
        json_t *signature = kv_anthropic_sign(kv_buf_str(&t->thought), t->thought.len, t->omit_thinking);
        send_delta(out, t, json_pack("{s:s, s:o}", "type", "signature_delta", "signature", signature));
        kv_buf_clear(&t->thought);
    }
    event(out, "content_block_stop", json_pack("{s:s, s:i}", "type", "content_block_stop", "index", t->index));
    t->open = NOTHING;
    t->index++;
}

/* Takes the reference of `block`. */
static void open_block(kv_buf *out, telling *t, block_kind kind, json_t *block) {
    close_block(out, t);
    t->open = kind;
    event(out, "content_block_start",
          json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", t->index, "content_block", block));
}

static void send_thinking(kv_buf *out, telling *t, const json_t *text) {
    if (!json_string_length(text)) return;
    if (t->open != THINKING) open_block(out, t, THINKING, thinking_block(json_string(""), json_string("")));
    kv_buf_add(&t->thought, json_string_value(text), json_string_length(text));
    if (!t->omit_thinking) send_delta(out, t, json_pack("{s:s, s:O}", "type", "thinking_delta", "thinking", text));
}

static void send_text(kv_buf *out, telling *t, const json_t *text) {
    if (!json_string_length(text)) return;
    if (t->open != TEXT) open_block(out, t, TEXT, text_block(json_string("")));
    send_delta(out, t, json_pack("{s:s, s:O}", "type", "text_delta", "text", text));
}

static void send_call(kv_buf *out, telling *t, const json_t *call) {
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    json_int_t number = json_integer_value(json_object_get(call, "index"));
    if (t->open != TOOL || t->call != number) {
        open_block(out, t, TOOL, tool_block(call, json_object()));
        t->call = number;
    }
    if (json_string_length(arguments))
        send_delta(out, t, json_pack("{s:s, s:O}", "type", "input_json_delta", "partial_json", arguments));
}

/* Takes the reference of `deltas`. */
static void send_deltas(kv_buf *out, telling *t, json_t *deltas) {
    json_t *delta, *call;
    size_t i, k;
    json_array_foreach(deltas, i, delta) {
        send_thinking(out, t, json_object_get(delta, "reasoning_content"));
        send_text(out, t, json_object_get(delta, "content"));
        json_array_foreach(json_object_get(delta, "tool_calls"), k, call) send_call(out, t, call);
    }
    json_decref(deltas);
}

static void on_begin(kv_buf *out, kv_job *j, kv_choice *c) {
    json_t *start = message(j, json_array());
    json_object_set_new(start, "usage", usage(j, c, 0));
    event(out, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", start));
}

static void on_token(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    send_deltas(out, j->state, kv_chat_answer_feed(c, e->text ? e->text : "", e->n_text, false));
}

static void on_done(kv_buf *out, kv_job *j, kv_choice *c) {
    send_deltas(out, j->state, kv_chat_answer_feed(c, "", 0, true));
    close_block(out, j->state);
    json_t *delta = json_pack("{s:n}", "container");
    add_stop(delta, j, c);
    json_t *end = json_pack("{s:s, s:o, s:o}", "type", "message_delta", "delta", delta, "usage", full_usage(j, c));
    add_edits(end, j);
    kv_account a;
    kv_account_of_prompt(&a, j, c->prompt);
    kv_account_tell(end, j, &a);
    event(out, "message_delta", end);
}

static void on_end(kv_buf *out, kv_job *j) {
    (void)j;
    event(out, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static void write_error(kv_buf *out, const kv_error *err, const char *request_id) {
    event(out, "error", error_value(err, request_id));
}

static void on_error(kv_buf *out, kv_job *j) {
    write_error(out, &j->error, j->request_id);
}

static void write_ping(kv_buf *out) {
    event(out, "ping", json_pack("{s:s}", "type", "ping"));
}

static void say_error(kv_buf *out, const kv_http_request *req, const kv_error *err) {
    write_error(out, err, kv_http_request_id(req));
}

static const kv_gate_voice voice = {.ping = write_ping, .error = say_error};

static void on_ping(kv_buf *out, kv_job *j) {
    (void)j;
    write_ping(out);
}

/* ── the whole message ─────────────────────────────────────────────────────────────────────────────────────────── */

/* What the call says, {} where it broke off. */
static json_t *call_input(const json_t *arguments) {
    json_t *input = NULL;
    size_t n = json_string_length(arguments);
    if (n && kv_json_parse(&input, json_string_value(arguments), n, NULL) == KV_OK && json_is_object(input))
        return input;
    json_decref(input);
    return json_object();
}

/* The last block if it is of that type, else a new one. Borrowed. */
static json_t *block_for(json_t *content, const char *type, json_t *fresh) {
    json_t *last = json_array_get(content, json_array_size(content) - 1);
    const char *is = json_string_value(json_object_get(last, "type"));
    if (is && strcmp(is, type) == 0) {
        json_decref(fresh);
        return last;
    }
    json_array_append_new(content, fresh);
    return fresh;
}

static void append_to(json_t *block, const char *name, const json_t *more) {
    const json_t *before = json_object_get(block, name);
    kv_buf text = {0};
    kv_buf_add(&text, json_string_value(before), json_string_length(before));
    kv_buf_add(&text, json_string_value(more), json_string_length(more));
    json_object_set_new(block, name, kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_free(&text);
}

/* arguments: the calls' texts so far, by their number. */
static void gather_call(json_t *content, json_t *arguments, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    size_t number = (size_t)json_integer_value(json_object_get(call, "index"));
    if (number >= json_array_size(arguments)) {
        json_array_append_new(content, tool_block(call, json_null()));
        json_array_append_new(arguments, json_pack("{s:s}", "text", ""));
    }
    append_to(json_array_get(arguments, number), "text", json_object_get(function, "arguments"));
}

static void gather(json_t *content, json_t *arguments, const json_t *delta) {
    const json_t *thought = json_object_get(delta, "reasoning_content"), *text = json_object_get(delta, "content");
    json_t *call;
    size_t i;
    if (json_string_length(thought))
        append_to(block_for(content, "thinking", thinking_block(json_string(""), json_null())), "thinking", thought);
    if (json_string_length(text)) append_to(block_for(content, "text", text_block(json_string(""))), "text", text);
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call) gather_call(content, arguments, call);
}

/* The blocks that a stream would have told: not the beginning of the answer that the request gave. */
static json_t *whole_content(kv_choice *c, bool omit_thinking) {
    json_t *deltas = kv_chat_answer_feed(c, kv_buf_str(&c->text), c->text.len, true), *content = json_array();
    json_t *arguments = json_array(), *delta, *block;
    size_t i, n_calls = 0;
    json_array_foreach(deltas, i, delta) gather(content, arguments, delta);
    json_array_foreach(content, i, block) {
        const json_t *thought = json_object_get(block, "thinking");
        if (thought) {
            json_object_set_new(
                block, "signature",
                kv_anthropic_sign(json_string_value(thought), json_string_length(thought), omit_thinking));
            if (omit_thinking) json_object_set_new(block, "thinking", json_string(""));
        } else if (json_object_get(block, "input")) {
            const json_t *text = json_object_get(json_array_get(arguments, n_calls++), "text");
            json_object_set_new(block, "input", call_input(text));
        }
    }
    json_decref(arguments);
    json_decref(deltas);
    return content;
}

static json_t *body(kv_job *j) {
    const telling *t = j->state;
    kv_choice *c = &j->choice[0];
    json_t *o = message(j, whole_content(c, t->omit_thinking));
    add_stop(o, j, c);
    json_object_set_new(o, "usage", full_usage(j, c));
    add_edits(o, j);
    kv_account a = kv_account_of_job(j);
    kv_account_tell(o, j, &a);
    return o;
}

static void free_state(kv_job *j) {
    telling *t = j->state;
    if (t) kv_buf_free(&t->thought);
    free(t);
}

static const kv_dialect dialect = {
    .id_prefix = "msg_",
    .begin = on_begin,
    .token = on_token,
    .done = on_done,
    .end = on_end,
    .error = on_error,
    .ping = on_ping,
    .body = body,
    .free = free_state,
};

/* ── endpoints ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The schema has another place in OpenAI's body: the error names it as the client wrote it. */
static void rename_field(kv_error *err, const json_t *asked) {
    static const char theirs[] = "response_format.json_schema";
    if (!err || strncmp(err->field, "response_format", 15) != 0) return;
    const char *ours = json_is_object(kv_json_get(asked, "output_format")) ? "output_format" : "output_config.format";
    kv_error before = *err;
    const char *at = strstr(before.message, theirs);
    kv_fail_field(err, ours, "%.*s%s%s", at ? (int)(at - before.message) : 0, before.message, at ? ours : "",
                  at ? at + sizeof theirs - 1 : before.message);
    err->status = before.status;
}

static kv_status read_request(json_t **asked, kv_anthropic *a, kv_http_request *req, bool count_only, const kv_app *app,
                              kv_error *err) {
    kv_status st = kv_body_read(asked, req, err);
    return st == KV_OK ? kv_anthropic_read(a, *asked, count_only, app, err) : st;
}

static kv_status serve_messages(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_anthropic a = {0};
    json_t *asked = NULL;
    kv_job *j = NULL;
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = read_request(&asked, &a, req, false, app, err);
    if (st == KV_OK) {
        st = kv_chat_job_new(&j, &dialect, a.chat, req, app, err);
        if (st != KV_OK) rename_field(err, asked);
    }
    if (st == KV_OK) {
        telling *t = kv_alloc(sizeof *t);
        *t = (telling){.omit_thinking = a.omit_thinking, .wants_edits = a.wants_edits};
        j->state = t;
        kv_anthropic_find_marks(j, &a);
    }
    kv_anthropic_free(&a);
    json_decref(asked);
    return st == KV_OK ? kv_job_run(j, req, res, err) : st;
}

static kv_status serve_count(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_anthropic a = {0};
    json_t *asked = NULL;
    size_t n_tokens = 0;
    kv_status st = kv_app_require_model(app, err);
    if (st == KV_OK) st = read_request(&asked, &a, req, true, app, err);
    if (st == KV_OK) {
        st = kv_chat_count_tokens(&n_tokens, a.chat, req, app, err);
        if (st != KV_OK) rename_field(err, asked);
    }
    if (st == KV_OK) {
        json_t *o = json_pack("{s:I}", "input_tokens", (json_int_t)n_tokens);
        if (a.wants_edits)
            json_object_set_new(o, "context_management",
                                json_pack("{s:I}", "original_input_tokens", (json_int_t)n_tokens));
        kv_json_dump_new(&res->body, o);
    }
    kv_anthropic_free(&a);
    json_decref(asked);
    return st;
}

/* Anthropic has a status of its own for "try again". */
static kv_status overloaded(kv_http_response *res, kv_status st) {
    if (st != KV_BUSY) return st;
    res->status = HTTP_OVERLOADED;
    kv_http_header(res, "Retry-After", "1");
    return st;
}

kv_status kv_serve_messages(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return overloaded(res, kv_gate_serve_as(&voice, serve_messages, true, app, req, res, err));
}

kv_status kv_serve_count_message_tokens(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return overloaded(res, kv_gate_serve(serve_count, false, app, req, res, err));
}

kv_status kv_serve_no_batches(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)req, (void)res;
    return kv_fail(err, KV_NOT_FOUND, "this server has no message batches; send each to /v1/messages");
}
