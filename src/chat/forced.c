#include "chat/forced.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "chat/schema.h"

static const json_t *function_of(const json_t *tool) {
    return json_object_get(tool, "function");
}

static const char *name_of(const json_t *tool) {
    return json_string_value(json_object_get(function_of(tool), "name"));
}

/* ── the messages ──────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *instruction(const json_t *tools) {
    kv_buf text = {0};
    const json_t *tool;
    size_t i;
    kv_buf_adds(&text, "Answer by calling one of these functions:\n");
    json_array_foreach(tools, i, tool) {
        kv_json_dump(&text, function_of(tool));
        kv_buf_adds(&text, "\n");
    }
    kv_buf_adds(&text,
                "Write nothing but one JSON object: {\"name\": the function's name, \"arguments\": its arguments}");
    json_t *out = kv_json_text(kv_buf_str(&text), text.len);
    kv_buf_free(&text);
    return out;
}

/* The calls of an earlier turn as content, which is where this template shows them. */
static json_t *spell_calls(const json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls"), *call, *content = json_object_get(message, "content");
    json_t *out = json_copy((json_t *)message);
    kv_buf text = {0};
    size_t i;
    if (json_is_string(content)) kv_buf_adds(&text, json_string_value(content));
    json_array_foreach(calls, i, call) {
        const json_t *function = function_of(call);
        if (text.len) kv_buf_adds(&text, "\n");
        kv_buf_adds(&text, "{\"name\": ");
        kv_json_dump(&text, json_object_get(function, "name"));
        kv_buf_addf(&text, ", \"arguments\": %s}", json_string_value(json_object_get(function, "arguments")));
    }
    json_object_del(out, "tool_calls");
    json_object_set_new(out, "content", kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_free(&text);
    return out;
}

/* The system message that was there, and the tools behind it; many templates take no second one. */
static json_t *system_message(bool *merged, const json_t *first, const json_t *tools) {
    const char *role = json_string_value(json_object_get(first, "role"));
    const json_t *content = json_object_get(first, "content");
    json_t *told = instruction(tools);
    *merged = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) && json_is_string(content);
    if (!*merged) return json_pack("{s:s, s:o}", "role", "system", "content", told);
    kv_buf text = {0};
    kv_buf_addf(&text, "%s\n\n%s", json_string_value(content), json_string_value(told));
    json_decref(told);
    json_t *out = json_pack("{s:s, s:o}", "role", role, "content", kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_free(&text);
    return out;
}

void kv_chat_forced_messages(json_t **out, const json_t *messages, const json_t *tools) {
    const json_t *message;
    bool merged;
    json_t *head = system_message(&merged, json_array_get(messages, 0), tools);
    size_t i;
    *out = json_array();
    json_array_append_new(*out, head);
    json_array_foreach(messages, i, message) {
        if (i == 0 && merged) continue;
        if (json_object_get(message, "tool_calls")) json_array_append_new(*out, spell_calls(message));
        else json_array_append(*out, (json_t *)message);
    }
}

/* ── the schema ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The parameters stand deeper than their references say. */
static void move_refs(json_t *s, const char *below) {
    const char *ref = json_string_value(json_object_get(s, "$ref")), *key;
    json_t *value;
    size_t i;
    if (ref && ref[0] == '#') {
        kv_buf moved = {0};
        kv_buf_addf(&moved, "%s%s", below, ref + 1);
        json_object_set_new(s, "$ref", json_string(kv_buf_str(&moved)));
        kv_buf_free(&moved);
    }
    json_object_foreach(s, key, value) {
        move_refs(value, below);
    }
    json_array_foreach(s, i, value) {
        move_refs(value, below);
    }
}

kv_status kv_chat_forced_schema(json_t **out, const json_t *tools, kv_error *err) {
    json_t *choices = json_array();
    const json_t *tool;
    size_t i;
    *out = NULL;
    json_array_foreach(tools, i, tool) {
        char path[64];
        json_t *arguments;
        snprintf(path, sizeof path, "tools[%zu].function.parameters", i);
        json_t *parameters = json_object_get(function_of(tool), "parameters");
        kv_status st = kv_chat_schema(&arguments, parameters, path, false, err);
        if (st != KV_OK) {
            json_decref(choices);
            return st;
        }
        if (!json_object_get(arguments, "type") && !json_object_get(arguments, "$ref"))
            json_object_set_new(arguments, "type", json_string("object"));
        snprintf(path, sizeof path, "#/anyOf/%zu/properties/arguments", i);
        move_refs(arguments, path);
        json_array_append_new(choices, json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s, s], s:b}", "type", "object",
                                                 "properties", "name", "const", name_of(tool), "arguments", arguments,
                                                 "required", "name", "arguments", "additionalProperties", 0));
    }
    *out = json_pack("{s:o}", "anyOf", choices);
    return KV_OK;
}

/* ── the call ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Nine letters or digits: what every template takes. */
static void make_id(char id[10]) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char random[9];
    KV_CHECK(getentropy(random, sizeof random) == 0);
    for (size_t i = 0; i < sizeof random; i++) id[i] = letters[random[i] % (sizeof letters - 1)];
    id[9] = '\0';
}

json_t *kv_chat_forced_call(const char *text, size_t n) {
    json_t *answer = NULL, *call = NULL;
    kv_json_parse(&answer, text, n, NULL);
    json_t *name = json_object_get(answer, "name"), *arguments = json_object_get(answer, "arguments");
    if (json_is_string(name) && json_is_object(arguments)) {
        char id[10];
        kv_buf written = {0};
        make_id(id);
        kv_json_dump(&written, arguments);
        call = json_pack("{s:s, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name", name,
                         "arguments", kv_json_text(kv_buf_str(&written), written.len));
        kv_buf_free(&written);
    }
    json_decref(answer);
    return call;
}
