/* Tools and tool_choice of a Responses body as chat completions have them.
 *
 *   function    {"type", "name", "description", "parameters"}     the same, one level deeper
 *   custom      {"type", "name", "description", "format"}         a function whose one argument `input` is the text; a
 *                                                                 grammar is told to the model, not enforced
 *   namespace   {"type", "name", "tools": [function, custom]}     namespace__name
 *
 * Tools that OpenAI's servers run are not there. Those that agents name by themselves are left out with a line in the
 * log; the others are refused.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "api/responses/responses.h"
#include "base/log.h"

void kv_response_tool_name(kv_buf *out, const char *namespace, const char *name) {
    if (namespace && *namespace) {
        kv_buf_adds(out, namespace);
        size_t n = strlen(namespace);
        if (n < 2 || strcmp(namespace + n - 2, "__") != 0) kv_buf_adds(out, "__");
    }
    kv_buf_adds(out, name);
}

static kv_status need_text(const char **out, const json_t *obj, const char *member, const char *path, kv_error *err) {
    char full[96];
    snprintf(full, sizeof full, "%.70s.%s", path, member);
    const json_t *v = kv_json_get(obj, member);
    *out = json_string_value(v);
    if (!v) return kv_fail_field(err, full, "'%s' is required", full);
    if (!*out || !**out) return kv_fail_field(err, full, "'%s' must be a string that is not empty", full);
    return KV_OK;
}

static kv_status optional_text(const char **out, const json_t *obj, const char *member, const char *path,
                               kv_error *err) {
    const json_t *v = kv_json_get(obj, member);
    *out = json_string_value(v);
    if (!v || *out) return KV_OK;
    char full[96];
    snprintf(full, sizeof full, "%.70s.%s", path, member);
    return kv_fail_field(err, full, "'%s' must be a string", full);
}

/* ── one tool ──────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct place {
    const char *path;      /* of the tool in the body */
    const char *namespace; /* NULL = none */
} place;

static void add(json_t *chat, json_t *names, const place *at, const char *type, const char *name,
                const char *description, json_t *parameters) {
    kv_buf full = {0};
    kv_response_tool_name(&full, at->namespace, name);
    json_object_set_new(names, full.data,
                        json_pack("{s:s, s:s, s:s*}", "type", type, "name", name, "namespace", at->namespace));
    json_array_append_new(chat, json_pack("{s:s, s:{s:s, s:s*, s:o}}", "type", "function", "function", "name",
                                          full.data, "description", description, "parameters", parameters));
    kv_buf_free(&full);
}

/* `tool` may also be chat's own form, which some clients send here. */
static kv_status add_function(json_t *chat, json_t *names, const json_t *tool, const place *at, kv_error *err) {
    const char *name, *description;
    const json_t *inside = kv_json_get(tool, "function");
    if (json_is_object(inside) && !kv_json_get(tool, "name")) tool = inside;
    kv_status st = need_text(&name, tool, "name", at->path, err);
    if (st == KV_OK) st = optional_text(&description, tool, "description", at->path, err);
    if (st != KV_OK) return st;
    json_t *parameters = kv_json_get(tool, "parameters");
    if (parameters && !json_is_object(parameters)) {
        char full[96];
        snprintf(full, sizeof full, "%.70s.parameters", at->path);
        return kv_fail_field(err, full, "'%s' must be a JSON schema object", full);
    }
    add(chat, names, at, "function", name, description, parameters ? json_incref(parameters) : json_object());
    return KV_OK;
}

/* {"type": "text"} or {"type": "grammar", "syntax", "definition"}: what the model is told of it. */
static kv_status describe_format(kv_buf *out, const json_t *tool, const char *tool_path, kv_error *err) {
    char path[96];
    const char *type, *syntax, *definition;
    const json_t *format = kv_json_get(tool, "format");
    if (!format) return KV_OK;
    snprintf(path, sizeof path, "%.80s.format", tool_path);
    if (!json_is_object(format)) return kv_fail_field(err, path, "'%s' must be an object", path);
    kv_status st = need_text(&type, format, "type", path, err);
    if (st != KV_OK || strcmp(type, "text") == 0) return st;
    if (strcmp(type, "grammar") != 0)
        return kv_fail_field(err, path, "'%s.type' must be \"text\" or \"grammar\"", path);
    st = need_text(&syntax, format, "syntax", path, err);
    if (st == KV_OK) st = need_text(&definition, format, "definition", path, err);
    if (st != KV_OK) return st;
    if (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0)
        return kv_fail_field(err, path, "'%s.syntax' must be \"lark\" or \"regex\"", path);
    kv_buf_addf(out, "\n\nThe input must match this %s:\n%s", strcmp(syntax, "lark") == 0 ? "Lark grammar" : "regex",
                definition);
    return KV_OK;
}

static kv_status add_custom(json_t *chat, json_t *names, const json_t *tool, const place *at, kv_error *err) {
    const char *name, *description;
    kv_buf text = {0};
    kv_status st = need_text(&name, tool, "name", at->path, err);
    if (st == KV_OK) st = optional_text(&description, tool, "description", at->path, err);
    if (st == KV_OK) {
        kv_buf_addf(&text, "%s%sIts argument `input` is plain text, not JSON.", description ? description : "",
                    description && *description ? "\n\n" : "");
        st = describe_format(&text, tool, at->path, err);
    }
    if (st == KV_OK)
        add(chat, names, at, "custom", name, text.data,
            json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type", "object", "properties", "input", "type", "string",
                      "required", "input"));
    kv_buf_free(&text);
    return st;
}

/* ── tools of OpenAI's servers ─────────────────────────────────────────────────────────────────────────────────── */

/* Agents add these whatever the server is, and go without them. */
static const char *const left_out[] = {
    "web_search",       "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
    "image_generation", "tool_search",           "local_shell"};
#define N_LEFT_OUT (sizeof left_out / sizeof *left_out)

static int find_left_out(const char *type) {
    for (size_t i = 0; i < N_LEFT_OUT; i++)
        if (strcmp(left_out[i], type) == 0) return (int)i;
    return -1;
}

static kv_status refuse_or_leave_out(const char *type, const char *path, kv_error *err) {
    static _Atomic unsigned told;
    int i = find_left_out(type);
    if (i < 0)
        return kv_fail_field(err, path,
                             "'%s' is the tool \"%.40s\", which this server does not run; it knows \"function\", "
                             "\"custom\" and \"namespace\"",
                             path, type);
    unsigned bit = 1u << i;
    if (!(atomic_fetch_or(&told, bit) & bit))
        KV_WARN("the tool \"%s\" is one that OpenAI's servers run: it is left out, here and from now on", type);
    return KV_OK;
}

/* ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status add_tool(json_t *chat, json_t *names, const json_t *tool, const place *at, kv_error *err);

static kv_status add_namespace(json_t *chat, json_t *names, const json_t *tool, const place *at, kv_error *err) {
    char path[96];
    const char *name;
    kv_status st = need_text(&name, tool, "name", at->path, err);
    if (st != KV_OK) return st;
    const json_t *list = kv_json_get(tool, "tools"), *inner;
    snprintf(path, sizeof path, "%.60s.tools", at->path);
    if (at->namespace || !json_is_array(list))
        return kv_fail_field(err, path, "'%s' must be an array of functions and custom tools", path);
    size_t i;
    json_array_foreach(list, i, inner) {
        snprintf(path, sizeof path, "%.60s.tools[%zu]", at->path, i);
        st = add_tool(chat, names, inner, &(place){path, name}, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static kv_status add_tool(json_t *chat, json_t *names, const json_t *tool, const place *at, kv_error *err) {
    const char *type;
    if (!json_is_object(tool)) return kv_fail_field(err, at->path, "'%s' must be an object", at->path);
    kv_status st = need_text(&type, tool, "type", at->path, err);
    if (st != KV_OK) return st;
    if (strcmp(type, "function") == 0) return add_function(chat, names, tool, at, err);
    if (strcmp(type, "custom") == 0) return add_custom(chat, names, tool, at, err);
    if (strcmp(type, "namespace") == 0) return add_namespace(chat, names, tool, at, err);
    return refuse_or_leave_out(type, at->path, err);
}

kv_status kv_response_tools(json_t **chat, json_t *names, const json_t *tools, kv_error *err) {
    *chat = NULL;
    if (!tools || json_is_null(tools)) return KV_OK;
    if (!json_is_array(tools)) return kv_fail_field(err, "tools", "'tools' must be an array");
    json_t *list = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        char path[40];
        snprintf(path, sizeof path, "tools[%zu]", i);
        kv_status st = add_tool(list, names, tool, &(place){path, NULL}, err);
        if (st == KV_OK) continue;
        json_decref(list);
        return st;
    }
    if (json_array_size(list) > 0) *chat = list;
    else json_decref(list);
    return KV_OK;
}

/* ── tool_choice ───────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *name_of(const json_t *chat_tool) {
    return json_string_value(json_object_get(json_object_get(chat_tool, "function"), "name"));
}

static bool has_tool(const json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (strcmp(name_of(json_array_get(tools, i)), name) == 0) return true;
    return false;
}

/* {"type": "function" | "custom", "name"}: the name in the chat, checked against `tools`. */
static kv_status read_named(kv_buf *name, const json_t *choice, const json_t *tools, const char *path, kv_error *err) {
    const char *type, *given, *namespace;
    kv_status st = need_text(&type, choice, "type", path, err);
    if (st != KV_OK) return st;
    if (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)
        return kv_fail_field(err, path, "'%s' names the tool \"%.40s\", which this server does not run", path, type);
    const json_t *inside = kv_json_get(choice, "function"); /* chat's own form */
    if (json_is_object(inside) && !kv_json_get(choice, "name")) choice = inside;
    st = need_text(&given, choice, "name", path, err);
    if (st == KV_OK) st = optional_text(&namespace, choice, "namespace", path, err);
    if (st != KV_OK) return st;
    kv_response_tool_name(name, namespace, given);
    if (has_tool(tools, name->data)) return KV_OK;
    char full[96];
    snprintf(full, sizeof full, "%.80s.name", path);
    return kv_fail_field(err, full, "'%s' is \"%.60s\", which is not among 'tools'", full, given);
}

static kv_status allow_only(json_t *tools, const json_t *choice, kv_error *err) {
    const json_t *list = kv_json_get(choice, "tools"), *one;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return kv_fail_field(err, "tool_choice.tools", "'tool_choice.tools' must be an array that is not empty");
    json_t *allowed = json_object();
    kv_status st = KV_OK;
    size_t i;
    json_array_foreach(list, i, one) {
        char path[40];
        kv_buf name = {0};
        const char *type = json_string_value(kv_json_get(one, "type"));
        snprintf(path, sizeof path, "tool_choice.tools[%zu]", i);
        if (type && find_left_out(type) >= 0) continue;
        st = read_named(&name, one, tools, path, err);
        if (st == KV_OK) json_object_set_new(allowed, name.data, json_true());
        kv_buf_free(&name);
        if (st != KV_OK) break;
    }
    for (i = json_array_size(tools); st == KV_OK && i-- > 0;)
        if (!json_object_get(allowed, name_of(json_array_get(tools, i)))) json_array_remove(tools, i);
    json_decref(allowed);
    return st;
}

static bool is_word(const char *s, const char *const *words) {
    for (; s && *words; words++)
        if (strcmp(s, *words) == 0) return true;
    return false;
}

static kv_status read_allowed(json_t **chat, json_t *tools, const json_t *choice, kv_error *err) {
    static const char *const modes[] = {"auto", "required", NULL};
    const char *mode = json_string_value(kv_json_get(choice, "mode"));
    if (!is_word(mode, modes))
        return kv_fail_field(err, "tool_choice.mode", "'tool_choice.mode' must be \"auto\" or \"required\"");
    kv_status st = allow_only(tools, choice, err);
    if (st != KV_OK) return st;
    if (json_array_size(tools) == 0) mode = "none";
    *chat = json_string(mode);
    return KV_OK;
}

kv_status kv_response_tool_choice(json_t **chat, json_t *tools, const json_t *choice, kv_error *err) {
    static const char *const words[] = {"auto", "none", "required", NULL};
    *chat = NULL;
    if (!choice || json_is_null(choice)) return KV_OK;
    if (json_is_object(choice)) {
        const char *type = json_string_value(kv_json_get(choice, "type"));
        if (type && strcmp(type, "allowed_tools") == 0) return read_allowed(chat, tools, choice, err);
        kv_buf name = {0};
        kv_status st = read_named(&name, choice, tools, "tool_choice", err);
        if (st == KV_OK) *chat = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", kv_buf_str(&name));
        kv_buf_free(&name);
        return st;
    }
    const char *word = json_string_value(choice);
    if (!is_word(word, words))
        return kv_fail_field(err, "tool_choice",
                             "'tool_choice' must be \"auto\", \"none\", \"required\" or an object that names a tool or "
                             "those allowed");
    if (strcmp(word, "required") == 0 && !tools)
        return kv_fail_field(err, "tool_choice", "'tool_choice' is \"required\", but there are no 'tools'");
    *chat = json_string(word);
    return KV_OK;
}
