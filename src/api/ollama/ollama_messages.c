/* Ollama's messages and tools as OpenAI's: `thinking`, `images`, `tool_name`, arguments as objects, calls without ids.
 *
 * An id is made up for each call that has none, and given to the tool's message that answers it: some templates want
 * one. It counts calls, so that the same conversation gives the same prompt the next time. What is wrong in other ways
 * goes on unchanged, for kv_chat_check_messages to name it.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ollama/ollama.h"
#include "chat/media.h"
#include "chat/messages.h"

enum { BY_ID, BY_NAME };

/* A call of the last assistant's message. Those of one id and those of one name are lists, in their order. */
typedef struct open_call {
    json_t *text[2]; /* its id and its name; borrowed from the translated message */
    size_t next[2];  /* the next call that has the same; NONE behind the last */
    bool answered;
} open_call;
#define NONE SIZE_MAX

typedef struct reading {
    open_call *calls; /* owned */
    size_t n_open, cap, first;
    json_t *heads[2]; /* owned: an id or a name → the first of its list in `calls` that may be open */
    int n_calls;
} reading;

static json_t *new_id(reading *r) {
    char id[16];
    snprintf(id, sizeof id, "call%05d", ++r->n_calls % 100000); /* nine letters and digits: what Mistral's want */
    return json_string(id);
}

static json_t *translate_call(reading *r, const json_t *call) {
    json_t *copy = json_copy((json_t *)call);
    if (!json_is_object(call)) return copy;
    if (!kv_json_get(copy, "id")) json_object_set_new(copy, "id", new_id(r));
    json_t *name = json_object_get(json_object_get(copy, "function"), "name");
    if (!json_is_string(name)) return copy;
    if (r->n_open == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 8;
        r->calls = kv_realloc(r->calls, r->cap * sizeof *r->calls);
    }
    r->calls[r->n_open++] = (open_call){.text = {json_object_get(copy, "id"), name}, .next = {NONE, NONE}};
    return copy;
}

/* From the last to the first, so that each list begins with its first. */
static void link_calls(reading *r) {
    for (size_t i = r->n_open; i-- > 0;) {
        for (int by = BY_ID; by <= BY_NAME; by++) {
            const char *key = json_string_value(r->calls[i].text[by]);
            if (!key) continue; /* an id that is no text is refused later */
            const json_t *head = json_object_get(r->heads[by], key);
            if (head) r->calls[i].next[by] = (size_t)json_integer_value(head);
            json_object_set_new(r->heads[by], key, json_integer((json_int_t)i));
        }
    }
}

static void translate_calls(reading *r, json_t *to, const json_t *msg) {
    json_t *calls = kv_json_get(msg, "tool_calls"), *call;
    size_t i;
    r->n_open = r->first = 0;
    for (int by = BY_ID; by <= BY_NAME; by++) json_object_clear(r->heads[by]);
    if (!calls) return;
    if (!json_is_array(calls)) {
        json_object_set(to, "tool_calls", calls);
        return;
    }
    json_t *list = json_array();
    json_array_foreach(calls, i, call) json_array_append_new(list, translate_call(r, call));
    json_object_set_new(to, "tool_calls", list);
    link_calls(r);
}

static open_call *first_of(reading *r, int by, const json_t *text) {
    const char *key = json_string_value(text);
    const json_t *head = key ? json_object_get(r->heads[by], key) : NULL;
    if (!head) return NULL;
    size_t i = (size_t)json_integer_value(head);
    while (i != NONE && r->calls[i].answered) i = r->calls[i].next[by];
    if (i == NONE) json_object_del(r->heads[by], key);
    else json_object_set_new(r->heads[by], key, json_integer((json_int_t)i)); /* who is answered is passed only once */
    return i == NONE ? NULL : &r->calls[i];
}

static open_call *first_open(reading *r) {
    while (r->first < r->n_open && r->calls[r->first].answered) r->first++;
    return r->first < r->n_open ? &r->calls[r->first] : NULL;
}

/* The call that a tool's message answers: by id, else the first open one of that name, else the first. */
static void answer_call(reading *r, json_t *to, const json_t *msg) {
    json_t *id = kv_json_get(msg, "tool_call_id"), *name = kv_json_get(msg, "tool_name");
    if (!name) name = kv_json_get(msg, "name");
    open_call *call = id ? first_of(r, BY_ID, id) : name ? first_of(r, BY_NAME, name) : first_open(r);
    if (call) {
        call->answered = true;
        if (!id) id = call->text[BY_ID];
        if (!name) name = call->text[BY_NAME];
    }
    if (id) json_object_set(to, "tool_call_id", id);
    if (name) json_object_set(to, "name", name);
}

kv_status kv_ollama_images(json_t *parts, const json_t *images, const char *path, const kv_app *app, kv_error *err) {
    char at[96];
    const char *dot = *path ? "." : "";
    snprintf(at, sizeof at, "%.60s%simages", path, dot);
    if (!images || (json_is_array(images) && json_array_size(images) == 0)) return KV_OK;
    if (!json_is_array(images)) return kv_fail_field(err, at, "'%s' must be an array of base64 texts", at);
    kv_status st = KV_OK;
    for (size_t i = 0; st == KV_OK && i < json_array_size(images); i++) {
        json_t *part;
        snprintf(at, sizeof at, "%.60s%simages[%zu]", path, dot, i);
        if (!json_is_string(json_array_get(images, i)))
            return kv_fail_field(err, at, "'%s' must be an image as a base64 text", at);
        st = kv_chat_media_part(&part, "image", at, kv_chat_on_image(app->opt->on_image), err);
        if (st == KV_OK) json_array_append_new(parts, part);
    }
    return st;
}

static kv_status translate_content(json_t *to, const json_t *msg, size_t i, const kv_app *app, kv_error *err) {
    json_t *content = kv_json_get(msg, "content"), *parts = json_array();
    char path[48];
    snprintf(path, sizeof path, "messages[%zu]", i);
    kv_status st = kv_ollama_images(parts, kv_json_get(msg, "images"), path, app, err);
    if (st == KV_OK && json_array_size(parts) && (!content || json_is_string(content))) {
        if (json_string_length(content))
            json_array_insert_new(parts, 0, json_pack("{s:s, s:O}", "type", "text", "text", content));
        json_object_set(to, "content", parts);
    } else if (st == KV_OK) {
        json_object_set_new(to, "content", content ? json_incref(content) : json_string(""));
    }
    json_decref(parts);
    return st;
}

/* Ollama takes roles in any case. */
static json_t *translate_role(json_t *role) {
    if (!json_is_string(role)) return role ? json_incref(role) : json_null();
    char *low = kv_strndup(json_string_value(role), json_string_length(role));
    for (char *p = low; *p; p++) *p = (char)tolower((unsigned char)*p);
    json_t *v = json_stringn(low, json_string_length(role));
    free(low);
    return v ? v : json_incref(role);
}

static kv_status translate_message(json_t *list, reading *r, const json_t *msg, size_t i, const kv_app *app,
                                   kv_error *err) {
    if (!json_is_object(msg)) {
        json_array_append(list, (json_t *)msg);
        return KV_OK;
    }
    json_t *to = json_object(), *thinking = kv_json_get(msg, "thinking");
    json_array_append_new(list, to);
    json_object_set_new(to, "role", translate_role(kv_json_get(msg, "role")));
    if (thinking && !json_is_string(thinking)) {
        char path[64];
        snprintf(path, sizeof path, "messages[%zu].thinking", i);
        return kv_fail_field(err, path, "'%s' must be a string", path);
    }
    if (json_string_length(thinking)) json_object_set(to, "reasoning_content", thinking);
    const char *role = json_string_value(json_object_get(to, "role"));
    if (role && strcmp(role, "assistant") == 0) translate_calls(r, to, msg);
    if (role && strcmp(role, "tool") == 0) answer_call(r, to, msg);
    return translate_content(to, msg, i, app, err);
}

kv_status kv_ollama_messages(json_t **out, const json_t *messages, const kv_app *app, kv_error *err) {
    if (!json_is_array(messages)) {
        *out = messages ? json_incref((json_t *)messages) : NULL;
        return KV_OK;
    }
    *out = NULL;
    if (json_array_size(messages) > KV_CHAT_MAX_MESSAGES)
        return kv_fail_field(err, "messages", "'messages' has %zu messages; at most %d are possible",
                             json_array_size(messages), KV_CHAT_MAX_MESSAGES);
    reading r = {.heads = {json_object(), json_object()}};
    json_t *list = json_array(), *msg;
    size_t i;
    kv_status st = KV_OK;
    json_array_foreach(messages, i, msg) {
        st = translate_message(list, &r, msg, i, app, err);
        if (st != KV_OK) break;
    }
    for (int by = BY_ID; by <= BY_NAME; by++) json_decref(r.heads[by]);
    free(r.calls);
    if (st == KV_OK) *out = list;
    else json_decref(list);
    return st;
}

json_t *kv_ollama_tools(const json_t *tools) {
    if (!json_is_array(tools)) return json_incref((json_t *)tools);
    json_t *list = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        json_t *copy = json_copy(tool);
        if (json_is_object(copy) && !kv_json_get(copy, "type"))
            json_object_set_new(copy, "type", json_string("function"));
        json_array_append_new(list, copy);
    }
    return list;
}
