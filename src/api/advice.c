#include "api/advice.h"

#include <string.h>

#include "chat/hint.h"

/* Tokens around the place, for a text that is not at hand. */
#define AROUND 48

kv_asked kv_asked_of(const kv_app *app, const kv_params *params, const kv_tokens *tokens, const kv_chat_prompt *chat) {
    kv_asked q = {.model = app->model, .tokens = tokens};
    if (chat && params->messages) {
        q.chat = chat;
        q.messages = params->messages;
        q.tools = params->tools;
        q.turn = app->turns.any;
    }
    return q;
}

/* Where the place lies in the chat's text: what the tokens from there on spell is how it ends. They are those that are
 * computed, so that this costs little beside. False when they spell something else. */
static bool find_byte(size_t *at, const kv_asked *q, size_t place, const char *text, size_t n) {
    kv_buf rest = {0};
    kv_prompt_spell(&rest, q->model, q->tokens->data + place, q->tokens->len - place, true);
    bool same = rest.len <= n && memcmp(text + n - rest.len, kv_buf_str(&rest), rest.len) == 0;
    *at = n - rest.len;
    kv_buf_free(&rest);
    return same;
}

static bool advise_text(kv_buf *out, const kv_asked *q, size_t place, size_t n_piece, bool early) {
    kv_buf text = {0};
    const kv_tokens *t = q->tokens;
    size_t from = place > AROUND ? place - AROUND : 0, to = t->len - place > AROUND ? place + AROUND : t->len;
    kv_prompt_spell(&text, q->model, t->data + from, place - from, true);
    size_t at = text.len;
    kv_prompt_spell(&text, q->model, t->data + place, to - place, true);
    bool said = kv_hint_of_text(out, kv_buf_str(&text), text.len, at, at + n_piece, early);
    kv_buf_free(&text);
    return said;
}

/* Bytes that a message's texts take. */
static size_t bytes_of(const json_t *message) {
    const json_t *content = json_object_get(message, "content"), *part;
    size_t n = json_string_length(content), i;
    json_array_foreach(content, i, part) n += json_string_length(json_object_get(part, "text"));
    return n;
}

/* The last `rest` bytes of the prompt are no more than what came after the last answer: it is the usual turn, and the
 * messages need not be looked through. */
static bool is_new(const kv_asked *q, size_t rest) {
    const size_t turn = 32; /* bytes of a template around a message */
    size_t n = turn;
    for (size_t i = json_array_size(q->messages); i-- > 0;) {
        const json_t *message = json_array_get(q->messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "assistant") == 0) return rest <= n;
        n += bytes_of(message) + turn;
    }
    return false;
}

/* The caller's text differs at `place`. */
static bool advise_place(kv_buf *out, const kv_asked *q, size_t place, bool early) {
    kv_buf piece = {0};
    kv_model_piece(&piece, q->model, q->tokens->data[place], true);
    size_t n_piece = piece.len ? piece.len : 1, n, at;
    kv_buf_free(&piece);
    if (!q->chat) return advise_text(out, q, place, n_piece, early);
    const char *text = kv_chat_prompt_text(q->chat, &n);
    if (!find_byte(&at, q, place, text, n)) return advise_text(out, q, place, n_piece, early);
    if (is_new(q, n - at)) return false;
    const kv_hint_chat chat = {.text = text, .n = n, .messages = q->messages, .tools = q->tools, .turn = q->turn};
    return kv_hint_of_chat(out, &chat, at, at + n_piece, early);
}

static const char *general(const kv_account *a) {
    switch (a->miss) {
    case KV_MISS_NOT_STORED: return "more memory for what is kept (--cache-ram) keeps it longer";
    case KV_MISS_DISABLED: return "cache_prompt is false, kvasir.store is false, or the server runs without its cache";
    case KV_MISS_OTHER_NAMESPACE: return "start the server with the settings it was stored under to use it again";
    case KV_MISS_NO_MEMORY: return "the context was full: a larger -c, or fewer requests at a time, leave room";
    default: return NULL;
    }
}

static bool parts(kv_miss miss) {
    return miss == KV_MISS_DIVERGED || miss == KV_MISS_NO_CHECKPOINT || miss == KV_MISS_NO_WINDOW ||
           miss == KV_MISS_EXACT;
}

bool kv_advice(kv_buf *out, const kv_asked *q, const kv_account *a) {
    const char *words = general(a);
    kv_buf said = {0};
    if (words) {
        kv_buf_adds(out, words);
    } else if (parts(a->miss)) {
        int32_t place = a->matched > a->position ? a->matched : a->position;
        bool early = place > 0 && (size_t)place < q->tokens->len / 2 && a->miss == KV_MISS_DIVERGED;
        if (place >= 0 && (size_t)place + 1 < q->tokens->len) advise_place(&said, q, (size_t)place, early);
        json_t *valid = kv_json_text(kv_buf_str(&said), said.len);
        kv_buf_add(out, json_string_value(valid), json_string_length(valid));
        json_decref(valid);
    }
    bool any = words || said.len;
    kv_buf_free(&said);
    return any;
}
