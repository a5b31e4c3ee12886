/* Answers of /api/chat and /api/generate: one object, or objects a line each.
 *
 *   {"model", "created_at", "message": {"role", "content", "thinking"?, "tool_calls"?} or "response", "thinking"?,
 *    "done": false, "logprobs"?}
 *   {…, "done": true, "done_reason", "context"?, durations and counts, "kvasir"}
 *
 * Lines have no comments, so a ping is an object that says nothing. A tool call is told once it is complete: its
 * arguments are an object here.
 */
#include <string.h>
#include <time.h>

#include "api/account.h"
#include "api/chat_answer.h"
#include "api/endpoints.h"
#include "api/ollama/ollama.h"
#include "api/shapes.h"

/* ── objects ───────────────────────────────────────────────────────────────────────────────────────────────────── */

json_t *kv_ollama_object(const kv_ollama *o, const char *text, size_t n, bool done) {
    json_t *v =
        json_pack("{s:o, s:o}", "model", kv_json_text0(o->model), "created_at", kv_shape_time(kv_wall_seconds()));
    if (o->generate) json_object_set_new(v, "response", kv_json_text(text, n));
    else
        json_object_set_new(v, "message",
                            json_pack("{s:s, s:o}", "role", "assistant", "content", kv_json_text(text, n)));
    json_object_set_new(v, "done", json_boolean(done));
    return v;
}

/* Where `thinking` and `tool_calls` go. */
static json_t *inside(const kv_ollama *o, json_t *object) {
    return o->generate ? object : json_object_get(object, "message");
}

static void send(kv_buf *out, json_t *object) {
    kv_json_dump(out, object);
    kv_buf_adds(out, "\n");
    json_decref(object);
}

void kv_ollama_warn(json_t *answer, const kv_ollama *o, const kv_app *app) {
    if (!o->warnings || app->opt->plain_json) return;
    json_t *own = json_object_get(answer, "kvasir");
    if (!own) {
        own = json_object();
        json_object_set_new(answer, "kvasir", own);
    }
    json_object_set(own, "warnings", o->warnings);
}

/* ── token probabilities ───────────────────────────────────────────────────────────────────────────────────────── */

static void add_probs(const kv_job *j, kv_choice *c, json_t *object) {
    const kv_ollama *o = j->state;
    json_t *probs = kv_shape_take_probs(j, c), *entry, *top;
    size_t i, k;
    if (!probs) return;
    json_array_foreach(probs, i, entry) {
        json_object_del(entry, "id");
        json_t *tops = json_object_get(entry, "top_logprobs");
        if (o->n_top == 0) json_object_del(entry, "top_logprobs");
        else json_array_foreach(tops, k, top) json_object_del(top, "id");
    }
    json_object_set_new(object, "logprobs", probs);
}

/* ── the last object ───────────────────────────────────────────────────────────────────────────────────────────── */

static json_int_t nanoseconds(double ms) {
    return ms > 0 ? (json_int_t)(ms * 1e6) : 0;
}

/* Never 0 where there are tokens: clients divide by it. */
static json_int_t duration(double ms, json_int_t count) {
    json_int_t ns = nanoseconds(ms);
    return ns || !count ? ns : 1;
}

/* Prompt and answer as token ids, without what ended the turn. */
static json_t *context(const kv_job *j, const kv_choice *c) {
    const kv_tokens *prompt = &j->prompts.list[c->prompt];
    json_t *list = json_array();
    for (size_t i = 0; i < prompt->len; i++) json_array_append_new(list, json_integer(prompt->data[i]));
    for (size_t i = 0; i < c->tokens.len; i++)
        if (!kv_model_is_eog(j->app->model, c->tokens.data[i]))
            json_array_append_new(list, json_integer(c->tokens.data[i]));
    return list;
}

/* What stands only in the last object. Loading is putting stored state back; the prompt counts with what was cached. */
static void finish(json_t *object, kv_job *j, kv_choice *c) {
    const kv_ollama *o = j->state;
    const kv_timings *t = &c->timings;
    json_int_t n_prompt = (json_int_t)j->prompts.list[c->prompt].len, n_answer = t->n_decoded;
    int64_t total_us = kv_now_us(kv_clock_real()) - j->started_us;
    json_object_set_new(object, "done_reason", json_string(kv_shape_finish(c)));
    if (o->tells_context) json_object_set_new(object, "context", context(j, c));
    json_object_set_new(object, "total_duration", json_integer(total_us * 1000));
    json_object_set_new(object, "load_duration", json_integer(nanoseconds(t->restore_ms)));
    json_object_set_new(object, "prompt_eval_count", json_integer(n_prompt));
    json_object_set_new(object, "prompt_eval_duration", json_integer(duration(t->prompt_ms, n_prompt)));
    json_object_set_new(object, "eval_count", json_integer(n_answer));
    json_object_set_new(object, "eval_duration", json_integer(duration(t->decode_ms, n_answer)));
    add_probs(j, c, object);
    kv_account a;
    kv_account_of_prompt(&a, j, c->prompt);
    kv_account_tell(object, j, &a);
    kv_ollama_warn(object, o, j->app);
    if (o->unload && j->app->opt->sleep_idle_seconds > 0) kv_gate_ask_to_close(j->app->gate);
}

/* ── tool calls ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* OpenAI's call as Ollama's, into `calls`; false when its arguments are no JSON object: it broke off. */
static bool add_call(json_t *calls, const json_t *call) {
    const json_t *function = json_object_get(call, "function"), *id = json_object_get(call, "id");
    json_t *text = json_object_get(function, "arguments"), *arguments = NULL;
    if (json_string_length(text) == 0) arguments = json_object();
    else kv_json_parse(&arguments, json_string_value(text), json_string_length(text), NULL);
    if (!json_is_object(arguments)) {
        json_decref(arguments);
        return false;
    }
    json_t *told = json_object();
    if (json_string_length(id)) json_object_set(told, "id", (json_t *)id);
    json_object_set_new(told, "function",
                        json_pack("{s:i, s:O, s:o}", "index", (int)json_array_size(calls), "name",
                                  json_object_get(function, "name"), "arguments", arguments));
    json_array_append_new(calls, told);
    return true;
}

/* A call that broke off is text: nothing of what was sampled is lost. */
static void add_broken(kv_buf *content, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const char *arguments = json_string_value(json_object_get(function, "arguments"));
    kv_buf_addf(content, "%s%s%s", name ? name : "", name && arguments ? " " : "", arguments ? arguments : "");
}

/* A delta's piece of a call, appended to what is known of that call. */
static void gather(kv_ollama *o, const json_t *piece) {
    size_t index = (size_t)json_integer_value(json_object_get(piece, "index"));
    const json_t *function = json_object_get(piece, "function");
    json_t *id = json_object_get(piece, "id"), *name = json_object_get(function, "name");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!o->calls) o->calls = json_array();
    while (json_array_size(o->calls) <= index)
        json_array_append_new(o->calls, json_pack("{s:{s:s, s:s}}", "function", "name", "", "arguments", ""));
    json_t *call = json_array_get(o->calls, index), *into = json_object_get(call, "function");
    if (json_is_string(id)) json_object_set(call, "id", id);
    if (json_is_string(name)) json_object_set(into, "name", name);
    if (!json_is_string(arguments)) return;
    kv_buf text = {0};
    const json_t *so_far = json_object_get(into, "arguments");
    kv_buf_add(&text, json_string_value(so_far), json_string_length(so_far));
    kv_buf_add(&text, json_string_value(arguments), json_string_length(arguments));
    json_object_set_new(into, "arguments", kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_free(&text);
}

/* All calls that were gathered, in one object before the last. */
static void send_calls(kv_buf *out, const kv_ollama *o) {
    if (!o->calls) return;
    json_t *calls = json_array(), *call;
    kv_buf broken = {0};
    size_t i;
    json_array_foreach(o->calls, i, call) if (!add_call(calls, call)) add_broken(&broken, call);
    json_t *object = kv_ollama_object(o, kv_buf_str(&broken), broken.len, false);
    if (json_array_size(calls)) json_object_set(inside(o, object), "tool_calls", calls);
    json_decref(calls);
    kv_buf_free(&broken);
    send(out, object);
}

/* ── the stream ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* One object for a text, a thought, or both; NULL when a delta has neither. */
static json_t *object_of_delta(kv_ollama *o, const json_t *delta) {
    const json_t *text = json_object_get(delta, "content"), *piece;
    json_t *thinking = json_object_get(delta, "reasoning_content");
    size_t i;
    json_array_foreach(json_object_get(delta, "tool_calls"), i, piece) gather(o, piece);
    if (json_string_length(text) == 0 && json_string_length(thinking) == 0) return NULL;
    json_t *object =
        kv_ollama_object(o, json_is_string(text) ? json_string_value(text) : "", json_string_length(text), false);
    if (json_string_length(thinking)) json_object_set(inside(o, object), "thinking", thinking);
    return object;
}

/* The objects of some deltas; the pending probabilities stand in the last. */
static void send_deltas(kv_buf *out, kv_job *j, kv_choice *c, json_t *deltas) {
    json_t *delta, *last = NULL;
    size_t i;
    json_array_foreach(deltas, i, delta) {
        json_t *object = object_of_delta(j->state, delta);
        if (!object) continue;
        if (last) send(out, last);
        last = object;
    }
    json_decref(deltas);
    if (!last) return;
    if (!c->done) add_probs(j, c, last);
    send(out, last);
}

static void on_token(kv_buf *out, kv_job *j, kv_choice *c, const kv_gen_event *e) {
    if (c->chat) {
        send_deltas(out, j, c, kv_chat_answer_feed(c, e->text ? e->text : "", e->n_text, false));
    } else if (e->n_text) {
        json_t *object = kv_ollama_object(j->state, e->text, e->n_text, false);
        add_probs(j, c, object);
        send(out, object);
    }
}

static void on_done(kv_buf *out, kv_job *j, kv_choice *c) {
    if (c->chat) send_deltas(out, j, c, kv_chat_answer_feed(c, "", 0, true));
    send_calls(out, j->state);
    json_t *object = kv_ollama_object(j->state, "", 0, true);
    finish(object, j, c);
    send(out, object);
}

static void on_end(kv_buf *out, kv_job *j) {
    (void)out, (void)j; /* the only choice's last object was the end */
}

static void on_error(kv_buf *out, kv_job *j) {
    kv_ollama_error_body(out, &j->error);
    kv_buf_adds(out, "\n");
}

static void on_ping(kv_buf *out, kv_job *j) {
    send(out, kv_ollama_object(j->state, "", 0, false));
}

/* ── the whole answer ──────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *whole_chat(const kv_ollama *o, kv_choice *c) {
    json_t *message = kv_chat_answer_message(c), *calls = json_array(), *call;
    const json_t *text = json_object_get(message, "content");
    json_t *thinking = json_object_get(message, "reasoning_content");
    kv_buf content = {0};
    size_t i;
    if (json_is_string(text)) kv_buf_add(&content, json_string_value(text), json_string_length(text));
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) if (!add_call(calls, call))
        add_broken(&content, call);
    json_t *object = kv_ollama_object(o, kv_buf_str(&content), content.len, true);
    if (json_string_length(thinking)) json_object_set(inside(o, object), "thinking", thinking);
    if (json_array_size(calls)) json_object_set(inside(o, object), "tool_calls", calls);
    kv_buf_free(&content);
    json_decref(calls);
    json_decref(message);
    return object;
}

static json_t *body(kv_job *j) {
    kv_choice *c = &j->choice[0];
    json_t *object =
        c->chat ? whole_chat(j->state, c) : kv_ollama_object(j->state, kv_buf_str(&c->text), c->text.len, true);
    finish(object, j, c);
    return object;
}

static void free_state(kv_job *j) {
    kv_ollama_free(j->state);
    j->state = NULL;
}

const kv_dialect kv_ollama_dialect = {
    .id_prefix = "ollama-",
    .stream_type = "application/x-ndjson",
    .token = on_token,
    .done = on_done,
    .end = on_end,
    .error = on_error,
    .ping = on_ping,
    .body = body,
    .free = free_state,
};
