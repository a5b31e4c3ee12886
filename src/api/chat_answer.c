#include "api/chat_answer.h"

#include <stdlib.h>
#include <string.h>

#include "api/shapes.h"
#include "api/spell.h"
#include "base/log.h"
#include "chat/forced.h"

static json_t *feed(kv_choice *c, const char *text, size_t n, bool final) {
    kv_buf deltas = {0};
    kv_error err = {0};
    json_t *list = NULL;
    kv_status st = kv_chat_stream_feed(&deltas, c->chat, text, n, final, &err);
    if (st != KV_OK && final) {
        KV_DEBUG("chat parser: %s", err.message);
        kv_buf_clear(&deltas);
        st = kv_chat_stream_feed(&deltas, c->chat, "", 0, false, &err);
    }
    if (st != KV_OK) KV_DEBUG("chat parser: %s", err.message);
    else kv_json_parse(&list, kv_buf_str(&deltas), deltas.len, NULL);
    kv_buf_free(&deltas);
    return list ? list : json_array();
}

/* The parsed message, a new value; NULL when nothing could be parsed. */
static json_t *parsed_message(const kv_choice *c) {
    kv_buf text = {0};
    json_t *message = NULL;
    if (kv_chat_stream_message(&text, c->chat, NULL) == KV_OK)
        kv_json_parse(&message, kv_buf_str(&text), text.len, NULL);
    kv_buf_free(&text);
    if (json_is_object(message)) return message;
    json_decref(message);
    return NULL;
}

/* A call without a syntax of its own is known when it is complete: until then there are only thoughts to be told. One that
 * broke off is told as the text that it is. */
static json_t *only_call(kv_choice *c, json_t *deltas, bool final) {
    json_t *out = json_array(), *delta;
    size_t i;
    json_array_foreach(deltas, i, delta) {
        json_object_del(delta, "content");
        if (json_object_size(delta) > 0) json_array_append(out, delta);
    }
    json_decref(deltas);
    if (!final) return out;
    json_t *message = parsed_message(c), *content = json_object_get(message, "content");
    json_decref(c->call);
    c->call =
        kv_chat_forced_call(json_string_value(content) ? json_string_value(content) : "", json_string_length(content));
    if (c->call) {
        json_t *head = json_copy(c->call);
        json_object_set_new(head, "index", json_integer(0));
        json_array_append_new(out, json_pack("{s:[o]}", "tool_calls", head));
    } else if (json_string_length(content) > 0) {
        json_array_append_new(out, json_pack("{s:O}", "content", content));
    }
    json_decref(message);
    return out;
}

/* The answer is complete: how it is spelled will be known when it comes back. */
static void learn(kv_choice *c) {
    json_t *message = parsed_message(c);
    if (message && c->call) {
        json_object_set_new(message, "content", json_null());
        json_object_set_new(message, "tool_calls", json_pack("[O]", c->call));
    }
    kv_spell_learn(c->spell, message, &c->text);
    json_decref(message);
}

json_t *kv_chat_answer_feed(kv_choice *c, const char *text, size_t n, bool final) {
    json_t *deltas = feed(c, text, n, final);
    if (c->forced_call) deltas = only_call(c, deltas, final);
    if (final && c->spell) learn(c);
    return deltas;
}

json_t *kv_chat_answer_message(kv_choice *c) {
    json_decref(kv_chat_answer_feed(c, kv_buf_str(&c->text), c->text.len, true));
    json_t *message = parsed_message(c);
    if (message && c->call) {
        json_object_set_new(message, "content", json_null());
        json_object_set_new(message, "tool_calls", json_pack("[O]", c->call));
    }
    if (message) return message;
    return json_pack("{s:s, s:o}", "role", "assistant", "content", kv_json_text(kv_buf_str(&c->text), c->text.len));
}

const char *kv_chat_answer_finish(const kv_choice *c) {
    const char *finish = kv_shape_finish(c);
    bool calls = c->call || kv_chat_stream_has_tool_calls(c->chat);
    return strcmp(finish, "stop") == 0 && calls ? "tool_calls" : finish;
}

/* ── reasoning tokens ──────────────────────────────────────────────────────────────────────────────────────────── */

/* Does the parser see an answer or a call in the first n bytes of the choice's text? */
static bool answer_begins(const kv_job *j, const kv_buf *text, size_t n) {
    kv_chat_stream *s;
    kv_buf deltas = {0};
    json_t *list = NULL, *delta;
    bool begins = false;
    size_t i;
    if (kv_chat_stream_new(&s, j->chat, NULL) != KV_OK) return false;
    if (kv_chat_stream_feed(&deltas, s, kv_buf_str(text), n, false, NULL) == KV_OK)
        kv_json_parse(&list, kv_buf_str(&deltas), deltas.len, NULL);
    json_array_foreach(list, i, delta) {
        begins = begins || json_object_get(delta, "content") || json_object_get(delta, "tool_calls");
    }
    begins = begins || kv_chat_stream_has_tool_calls(s);
    json_decref(list);
    kv_buf_free(&deltas);
    kv_chat_stream_free(s);
    return begins;
}

static bool was_thinking(const kv_choice *c) {
    json_t *message = parsed_message(c);
    bool thought = json_string_length(json_object_get(message, "reasoning_content")) > 0;
    json_decref(message);
    return thought;
}

/* The parser reads from the start each time, so the place is found by halving: what has begun does not end again. */
int kv_chat_answer_reasoning_tokens(const kv_job *j, kv_choice *c) {
    if (!c->chat || c->tokens.len == 0 || !was_thinking(c)) return 0;
    kv_buf text = {0};
    size_t *end = kv_alloc((c->tokens.len + 1) * sizeof *end); /* of the first i tokens' text */
    for (size_t i = 0; i < c->tokens.len; i++) {
        kv_model_piece(&text, j->app->model, c->tokens.data[i], true);
        end[i + 1] = text.len;
    }
    size_t low = 0, high = c->tokens.len + 1; /* begins with more than `low` tokens, and with `high` of them */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (answer_begins(j, &text, end[middle])) high = middle;
        else low = middle;
    }
    kv_buf_free(&text);
    free(end);
    return (int)low;
}

json_t *kv_chat_answer_usage(kv_job *j) {
    json_t *usage = kv_shape_usage(j);
    int n = 0;
    for (int i = 0; i < j->n_choices; i++) n += kv_chat_answer_reasoning_tokens(j, &j->choice[i]);
    json_object_set_new(usage, "completion_tokens_details", json_pack("{s:i}", "reasoning_tokens", n));
    return usage;
}
