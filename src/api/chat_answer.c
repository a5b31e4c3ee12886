#include "api/chat_answer.h"

#include <stdlib.h>
#include <string.h>

#include "api/shapes.h"
#include "base/log.h"

json_t *kv_chat_answer_feed(kv_choice *c, const char *text, size_t n, bool final) {
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

json_t *kv_chat_answer_message(kv_choice *c) {
    json_decref(kv_chat_answer_feed(c, kv_buf_str(&c->text), c->text.len, true));
    kv_buf text = {0};
    json_t *message = NULL;
    if (kv_chat_stream_message(&text, c->chat, NULL) == KV_OK)
        kv_json_parse(&message, kv_buf_str(&text), text.len, NULL);
    kv_buf_free(&text);
    if (json_is_object(message)) return message;
    json_decref(message);
    return json_pack("{s:s, s:o}", "role", "assistant", "content", kv_json_text(kv_buf_str(&c->text), c->text.len));
}

const char *kv_chat_answer_finish(const kv_choice *c) {
    const char *finish = kv_shape_finish(c);
    return strcmp(finish, "stop") == 0 && kv_chat_stream_has_tool_calls(c->chat) ? "tool_calls" : finish;
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

static bool was_thinking(kv_choice *c) {
    kv_buf text = {0};
    json_t *message = NULL;
    if (kv_chat_stream_message(&text, c->chat, NULL) == KV_OK)
        kv_json_parse(&message, kv_buf_str(&text), text.len, NULL);
    bool thought = json_string_length(json_object_get(message, "reasoning_content")) > 0;
    json_decref(message);
    kv_buf_free(&text);
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
