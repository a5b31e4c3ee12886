/* Anthropic's cache_control: a breakpoint is a place that the client means to come back to. Nothing depends on it here,
 * since every prompt is cached; it is a hint where to keep what cannot be cut, and for how long at least.
 *
 * Where a breakpoint stands in the tokens is found by rendering the conversation up to it, with a turn of a text that
 * nobody writes behind it: as far as that and the whole prompt are the same text, it is the text before the breakpoint.
 */
#include <string.h>

#include "api/anthropic/anthropic.h"
#include "api/chat_body.h"
#include "api/places.h"

/* A control character: no turn begins with it. */
#define NOBODYS_TEXT "\x7f"

kv_status kv_anthropic_cache_control(int32_t *keep_seconds, const json_t *block, const char *at, kv_error *err) {
    *keep_seconds = 0;
    json_t *control, *ttl;
    const char *type;
    kv_path p = kv_path_of("%.70s%scache_control", at, *at ? "." : "");
    kv_status st = kv_anthropic_object(&control, block, "cache_control", at, err);
    if (st != KV_OK || !control) return st;
    st = kv_anthropic_type(&type, control, p.s, err);
    if (st == KV_OK && strcmp(type, "ephemeral") != 0)
        st = kv_fail_field(err, p.s, "'%s.type' must be \"ephemeral\"", p.s);
    if (st == KV_OK) st = kv_anthropic_text(&ttl, control, "ttl", p.s, false, err);
    if (st != KV_OK) return st;
    const char *word = ttl ? json_string_value(ttl) : "5m";
    if (strcmp(word, "5m") == 0) *keep_seconds = 300;
    else if (strcmp(word, "1h") == 0) *keep_seconds = 3600;
    else return kv_fail_field(err, p.s, "'%s.ttl' must be \"5m\" or \"1h\"", p.s);
    return KV_OK;
}

/* The last message may grow on; what stands before it stays as it is. */
static json_t *copy_messages(const json_t *messages) {
    json_t *copy = json_copy((json_t *)messages);
    size_t n = json_array_size(copy);
    if (n) json_array_set_new(copy, n - 1, json_deep_copy(json_array_get(copy, n - 1)));
    return copy;
}

kv_status kv_anthropic_add_mark(kv_anthropic *a, const json_t *messages, int32_t keep_seconds, const char *at,
                                kv_error *err) {
    if (a->n_marks == KV_ANTHROPIC_MARKS_MAX)
        return kv_fail_field(err, at, "'%s' is the breakpoint number %d of 'cache_control'; at most %d are possible",
                             at, KV_ANTHROPIC_MARKS_MAX + 1, KV_ANTHROPIC_MARKS_MAX);
    a->mark[a->n_marks++] = (kv_anthropic_mark){
        .messages = messages ? copy_messages(messages) : NULL,
        .keep_seconds = keep_seconds,
    };
    return KV_OK;
}

/* ── from breakpoint to text ───────────────────────────────────────────────────────────────────────────────────── */

static bool has_role(const json_t *message, const char *role) {
    const char *s = json_string_value(json_object_get(message, "role"));
    return s && strcmp(s, role) == 0;
}

/* The conversation up to the mark, and a turn of the other side. A new array. */
static json_t *conversation_at(const kv_anthropic *a, const kv_anthropic_mark *mark) {
    json_t *messages = mark->messages ? json_incref(mark->messages) : json_array();
    if (!mark->messages && a->has_system)
        json_array_append(messages, json_array_get(json_object_get(a->chat, "messages"), 0));
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    bool asked = has_role(last, "user") || has_role(last, "tool");
    json_array_append_new(messages,
                          json_pack("{s:s, s:s}", "role", asked ? "assistant" : "user", "content", NOBODYS_TEXT));
    return messages;
}

static size_t common_bytes(const char *a, size_t na, const char *b, size_t nb) {
    size_t n = na < nb ? na : nb, i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* Behind all that is there: before the generation prompt, or nearly. */
static bool is_end(const kv_anthropic *a, const json_t *messages) {
    const json_t *all = json_object_get(a->chat, "messages");
    size_t n = json_array_size(all);
    return messages && json_array_size(messages) == n &&
           json_equal(json_array_get(messages, n - 1), json_array_get(all, n - 1));
}

/* 0: cannot be told, as the template does not render such a conversation. */
static size_t find_mark(const kv_job *j, const kv_anthropic *a, const kv_anthropic_mark *mark) {
    size_t n, n_cut, found = 0;
    const char *text = kv_chat_prompt_text(j->chat, &n);
    if (mark->messages) kv_anthropic_tidy(mark->messages);
    if (is_end(a, mark->messages)) return j->prompts.list[0].len;
    json_t *body = json_copy(a->chat);
    json_object_set_new(body, "messages", conversation_at(a, mark));
    json_object_set_new(body, "tool_choice", json_string("none")); /* the same prompt without the time for a grammar */
    kv_params params = j->params; /* only borrowed: what rendering sets in it stays here */
    kv_chat_prompt *prompt = NULL;
    if (kv_chat_body_render(&prompt, body, &params, j->app, NULL) == KV_OK) {
        const char *cut = kv_chat_prompt_text(prompt, &n_cut);
        found = kv_places_tokens(j, common_bytes(text, n, cut, n_cut));
        kv_chat_prompt_free(prompt);
        json_decref(params.messages);
        json_decref(params.tools);
    }
    json_decref(body);
    return found;
}

void kv_anthropic_find_marks(kv_job *j, const kv_anthropic *a) {
    if (!a->n_marks || !j->params.cache_prompt) return;
    int32_t last = (int32_t)j->prompts.list[0].len - 1;
    if (last + 1 >= j->app->n_ctx_served) return; /* it will be refused */
    for (int i = 0; i < a->n_marks; i++) {
        const kv_anthropic_mark *m = &a->mark[i];
        size_t found = find_mark(j, a, m);
        kv_places_add(j, found < (size_t)last ? found : (size_t)last, KV_PLACE_MARK, m->keep_seconds);
    }
}
