#include "api/spell.h"

#include <stdlib.h>
#include <string.h>

#include "cache/namespace.h"
#include "chat/spelling.h"
#include "store/spellings.h"

#define WAITING_MAX 4096 /* rows of one request that are entered; more of them come again */

struct kv_spell {
    const kv_app *app;
    kv_rules rules; /* those of memory that are on */
    kv_hash ns;
    kv_spelling_book book;
    /* rows that are not written yet; their texts are owned */
    kv_spelling_row *waiting;
    size_t n_waiting, cap_waiting;
    /* what the answer follows */
    bool expects, continued;
    kv_hash place;
    char *kwargs; /* owned; JSON text, NULL = none */
    int thinking;
};

/* ── the book ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void drop_waiting(kv_spell *s) {
    for (size_t i = 0; i < s->n_waiting; i++) free((char *)s->waiting[i].text);
    s->n_waiting = 0;
}

void kv_spell_keep(kv_spell *s) {
    if (!s || !s->n_waiting) return;
    kv_spellings_put(s->app->spellings, s->app->cache_base, s->ns, s->waiting, s->n_waiting);
    drop_waiting(s);
}

static kv_spelling_row *find_waiting(const kv_spell *s, kv_hash key) {
    for (size_t i = s->n_waiting; i-- > 0;)
        if (kv_hash_equal(s->waiting[i].key, key)) return &s->waiting[i];
    return NULL;
}

static bool get(void *ctx, kv_buf *out, kv_hash key) {
    kv_spell *s = ctx;
    const kv_spelling_row *row = find_waiting(s, key);
    if (!row) return kv_spellings_get(out, s->app->spellings, s->ns, key);
    kv_buf_clear(out);
    kv_buf_add(out, row->text, row->n);
    return true;
}

static void put(void *ctx, kv_hash key, const char *text, size_t n, bool replace) {
    kv_spell *s = ctx;
    if (s->n_waiting == WAITING_MAX || (!replace && find_waiting(s, key))) return;
    if (s->n_waiting == s->cap_waiting) {
        s->cap_waiting = s->cap_waiting ? 2 * s->cap_waiting : 16;
        s->waiting = kv_realloc(s->waiting, s->cap_waiting * sizeof *s->waiting);
    }
    char *copy = kv_alloc(n);
    memcpy(copy, text, n);
    s->waiting[s->n_waiting++] = (kv_spelling_row){key, copy, n, replace};
}

/* ── life ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_spell *kv_spell_new(const kv_app *app, const char *scope) {
    const kv_rules of_memory = 1u << KV_RULE_TOOL_CALLS | 1u << KV_RULE_ASSISTANT_TEXT | 1u << KV_RULE_TOOL_SCHEMAS;
    kv_rules rules = kv_app_rules(app) & of_memory;
    if (!rules || !app->spellings) return NULL;
    kv_spell *s = kv_alloc(sizeof *s);
    s->app = app;
    s->rules = rules;
    s->ns = kv_namespace_root(app->cache_base, scope);
    s->book = (kv_spelling_book){get, put, s};
    return s;
}

void kv_spell_free(kv_spell *s) {
    if (!s) return;
    drop_waiting(s);
    free(s->waiting);
    free(s->kwargs);
    free(s);
}

/* ── a request ─────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_rules kv_spell_tools(kv_spell *s, json_t *tools) {
    if (!s || !tools || !kv_canonical_has(s->rules, KV_RULE_TOOL_SCHEMAS)) return KV_RULES_NONE;
    return kv_spelling_tools(tools, &s->book) ? 1u << KV_RULE_TOOL_SCHEMAS : KV_RULES_NONE;
}

kv_rules kv_spell_messages(kv_spell *s, json_t *messages) {
    kv_rules changed = KV_RULES_NONE;
    if (!s) return changed;
    if (kv_canonical_has(s->rules, KV_RULE_TOOL_CALLS) && kv_spelling_calls(messages, &s->book))
        changed |= 1u << KV_RULE_TOOL_CALLS;
    if (kv_canonical_has(s->rules, KV_RULE_ASSISTANT_TEXT) && kv_spelling_texts(messages, &s->book))
        changed |= 1u << KV_RULE_ASSISTANT_TEXT;
    return changed;
}

void kv_spell_expect(kv_spell *s, const json_t *messages, const json_t *kwargs, int thinking, bool continued) {
    if (!s || s->expects) return;
    s->expects = true;
    s->continued = continued;
    s->thinking = thinking;
    s->place = kv_spelling_place(json_array_get(messages, json_array_size(messages) - 1));
    kv_buf text = {0};
    if (json_object_size(kwargs)) kv_json_dump(&text, kwargs);
    if (text.len) s->kwargs = kv_buf_take(&text);
}

/* ── its answer ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The message as a template writes it, in a conversation that is about nothing. */
static bool render(void *ctx, kv_buf *out, const json_t *message) {
    const kv_spell *s = ctx;
    const json_t *call;
    size_t i;
    json_t *messages = json_pack("[{s:s, s:s}, O]", "role", "user", "content", "kvasir~question", message);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
        json_array_append_new(messages, json_pack("{s:s, s:O*, s:s}", "role", "tool", "tool_call_id",
                                                  json_object_get(call, "id"), "content", "kvasir~result"));
    kv_buf text = {0};
    kv_json_dump_new(&text, messages);
    const kv_chat_params cp = {
        .messages_json = text.data,
        .kwargs_json = s->kwargs,
        .reasoning_format = s->app->opt->reasoning_format,
        .enable_thinking = s->thinking,
        .now_seconds = kv_wall_seconds(),
    };
    kv_chat_prompt *prompt;
    bool ok = kv_chat_render(&prompt, s->app->model, &cp, NULL) == KV_OK;
    if (ok) {
        size_t n;
        const char *written = kv_chat_prompt_text(prompt, &n);
        kv_buf_add(out, written, n);
        kv_chat_prompt_free(prompt);
    }
    kv_buf_free(&text);
    return ok;
}

/* What decides on blanks beside the message itself. */
static kv_hash shape_of(const kv_spell *s) {
    const kv_model_info *m = kv_model_get_info(s->app->model);
    kv_buf parts = {0};
    kv_buf_addf(&parts, "%d;%s;%s", s->thinking, s->kwargs ? s->kwargs : "", m->chat_template ? m->chat_template : "");
    kv_hash shape = kv_hash_bytes(parts.data, parts.len);
    kv_buf_free(&parts);
    return shape;
}

void kv_spell_learn(kv_spell *s, const json_t *message, const kv_buf *sampled) {
    if (!s || !message) return;
    if (kv_canonical_has(s->rules, KV_RULE_TOOL_CALLS)) kv_spelling_learn_calls(message, &s->book);
    if (kv_canonical_has(s->rules, KV_RULE_ASSISTANT_TEXT) && s->expects && !s->continued && sampled->len)
        kv_spelling_learn_text(message, sampled->data, sampled->len, s->place, shape_of(s), render, s, &s->book);
    kv_spell_keep(s);
}
