#include "api/chat_answer.h"

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
