#include "chat/messages.h"

#include <stdio.h>
#include <string.h>

#include "chat/schema.h"

/* Bytes. OpenAI's limit is 64; the engine names rules of grammars after tools with a regular expression that recurses. */
#define MAX_TOOL_NAME 1024

/* Where we are in the request, for errors: "messages[3].content[1]". Long paths are cut, never overrun. */
typedef struct place {
    char path[96];
} place;

static place at_index(const place *base, const char *name, size_t i) {
    place p;
    snprintf(p.path, sizeof p.path, "%.60s%s%s[%zu]", base ? base->path : "", base ? "." : "", name, i);
    return p;
}

static place at_member(const place *base, const char *name) {
    place p;
    snprintf(p.path, sizeof p.path, "%.70s.%s", base->path, name);
    return p;
}

/* A string member. Absent or null: KV_OK and *out NULL. */
static kv_status get_text(json_t **out, const json_t *obj, const char *name, const place *at, kv_error *err) {
    *out = kv_json_get(obj, name);
    if (!*out || json_is_string(*out)) return KV_OK;
    place p = at_member(at, name);
    *out = NULL;
    return kv_fail_field(err, p.path, "'%s' must be a string", p.path);
}

/* The same, but it must be there. */
static kv_status need_text(json_t **out, const json_t *obj, const char *name, const place *at, kv_error *err) {
    kv_status st = get_text(out, obj, name, at, err);
    if (st != KV_OK || *out) return st;
    place p = at_member(at, name);
    return kv_fail_field(err, p.path, "'%s' is required", p.path);
}

/* ── content ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_part(json_t *out, const json_t *part, const place *at, kv_on_image on_image, kv_error *err) {
    if (!json_is_object(part)) return kv_fail_field(err, at->path, "'%s' must be an object", at->path);
    json_t *type, *text;
    kv_status st = need_text(&type, part, "type", at, err);
    if (st != KV_OK) return st;
    const char *name = json_string_value(type);
    const char *media = kv_chat_media_kind(name);
    if (media) {
        json_t *stand_in;
        st = kv_chat_media_part(&stand_in, media, at->path, on_image, err);
        if (st == KV_OK) json_array_append_new(out, stand_in);
        return st;
    }
    /* A refusal that comes back in a conversation is what the assistant said. */
    const char *member = strcmp(name, "refusal") == 0 ? "refusal" : "text";
    if (strcmp(name, member) != 0)
        return kv_fail_field(err, at->path, "'%s' has the unknown type \"%.40s\"; known is \"text\"", at->path, name);
    st = need_text(&text, part, member, at, err);
    if (st != KV_OK) return st;
    json_array_append_new(out, json_pack("{s:s, s:O}", "type", "text", "text", text));
    return KV_OK;
}

/* *out: a new string or array of parts; NULL when absent. */
static kv_status check_content(json_t **out, const json_t *msg, const place *at, kv_on_image on_image, kv_error *err) {
    *out = NULL;
    json_t *content = kv_json_get(msg, "content");
    if (!content) return KV_OK;
    if (json_is_string(content)) {
        *out = json_incref(content);
        return KV_OK;
    }
    if (!json_is_array(content)) {
        place p = at_member(at, "content");
        return kv_fail_field(err, p.path, "'%s' must be a string or an array of content parts", p.path);
    }
    if (json_array_size(content) == 0) {
        *out = json_string("");
        return KV_OK;
    }
    json_t *parts = json_array(), *part;
    size_t i;
    json_array_foreach(content, i, part) {
        place p = at_index(at, "content", i);
        kv_status st = check_part(parts, part, &p, on_image, err);
        if (st != KV_OK) {
            json_decref(parts);
            return st;
        }
    }
    *out = parts;
    return KV_OK;
}

/* ── tool calls ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Arguments are a JSON text in OpenAI's API; some clients send the object itself, and none stand for {}. */
static kv_status check_arguments(json_t **out, const json_t *function, const place *at, kv_error *err) {
    *out = NULL;
    json_t *args = kv_json_get(function, "arguments");
    if (!args) {
        *out = json_string("{}");
    } else if (json_is_string(args)) {
        /* Templates that take the object get it parsed, by what recurses. */
        if (kv_json_check_depth(json_string_value(args), json_string_length(args), NULL) != KV_OK) {
            place p = at_member(at, "arguments");
            return kv_fail_field(err, p.path, "'%s' is JSON that is nested deeper than %d levels", p.path,
                                 KV_JSON_MAX_DEPTH);
        }
        *out = json_incref(args);
    } else if (json_is_object(args)) {
        kv_buf text = {0};
        kv_json_dump(&text, args);
        *out = kv_json_text(kv_buf_str(&text), text.len);
        kv_buf_free(&text);
    } else {
        place p = at_member(at, "arguments");
        return kv_fail_field(err, p.path, "'%s' must be a string that holds JSON", p.path);
    }
    return KV_OK;
}

static kv_status check_type_function(const json_t *obj, const place *at, kv_error *err) {
    json_t *type;
    kv_status st = get_text(&type, obj, "type", at, err);
    if (st != KV_OK || !type || strcmp(json_string_value(type), "function") == 0) return st;
    place p = at_member(at, "type");
    return kv_fail_field(err, p.path, "'%s' is \"%.40s\", but only \"function\" is supported", p.path,
                         json_string_value(type));
}

static kv_status get_function(json_t **out, const json_t *obj, const place *at, kv_error *err) {
    *out = kv_json_get(obj, "function");
    if (json_is_object(*out)) return KV_OK;
    place p = at_member(at, "function");
    if (!*out) return kv_fail_field(err, p.path, "'%s' is required", p.path);
    return kv_fail_field(err, p.path, "'%s' must be an object", p.path);
}

static kv_status check_tool_call(json_t *out, const json_t *call, const place *at, kv_error *err) {
    if (!json_is_object(call)) return kv_fail_field(err, at->path, "'%s' must be an object", at->path);
    json_t *id, *function, *name, *args;
    kv_status st = get_text(&id, call, "id", at, err);
    if (st == KV_OK) st = check_type_function(call, at, err);
    if (st == KV_OK) st = get_function(&function, call, at, err);
    if (st != KV_OK) return st;
    place inside = at_member(at, "function");
    st = need_text(&name, function, "name", &inside, err);
    if (st == KV_OK) st = check_arguments(&args, function, &inside, err);
    if (st != KV_OK) return st;
    json_array_append_new(out, json_pack("{s:O*, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name",
                                         name, "arguments", args));
    return KV_OK;
}

/* *out: a new array; NULL when there are none. */
static kv_status check_tool_calls(json_t **out, const json_t *msg, const place *at, kv_error *err) {
    *out = NULL;
    json_t *calls = kv_json_get(msg, "tool_calls");
    if (!calls) return KV_OK;
    if (!json_is_array(calls)) {
        place p = at_member(at, "tool_calls");
        return kv_fail_field(err, p.path, "'%s' must be an array", p.path);
    }
    if (json_array_size(calls) == 0) return KV_OK;
    json_t *list = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        place p = at_index(at, "tool_calls", i);
        kv_status st = check_tool_call(list, call, &p, err);
        if (st != KV_OK) {
            json_decref(list);
            return st;
        }
    }
    *out = list;
    return KV_OK;
}

/* ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Optional text members that go through unchanged. */
static const char *const text_members[] = {"reasoning_content", "name", "tool_call_id"};

static kv_status copy_text_members(json_t *out, const json_t *msg, const place *at, kv_error *err) {
    for (size_t i = 0; i < sizeof text_members / sizeof *text_members; i++) {
        json_t *text;
        kv_status st = get_text(&text, msg, text_members[i], at, err);
        if (st != KV_OK) return st;
        if (text) json_object_set(out, text_members[i], text);
    }
    return KV_OK;
}

static kv_status check_role(json_t **role, const json_t *msg, const place *at, kv_error *err) {
    kv_status st = need_text(role, msg, "role", at, err);
    if (st != KV_OK) return st;
    size_t n = json_string_length(*role);
    if (n > 0 && n <= 64 && strlen(json_string_value(*role)) == n) return KV_OK;
    place p = at_member(at, "role");
    return kv_fail_field(err, p.path, "'%s' must be a short name such as \"user\"", p.path);
}

static kv_status check_message(json_t *out, const json_t *msg, const place *at, kv_on_image on_image, kv_error *err) {
    if (!json_is_object(msg)) return kv_fail_field(err, at->path, "'%s' must be an object", at->path);
    json_t *role, *content = NULL, *calls = NULL, *tidy = NULL;
    kv_status st = check_role(&role, msg, at, err);
    if (st != KV_OK) return st;
    if (kv_json_get(msg, "function_call")) {
        place p = at_member(at, "function_call");
        return kv_fail_field(err, p.path, "'%s' is not supported; use 'tool_calls'", p.path);
    }
    st = check_content(&content, msg, at, on_image, err);
    if (st == KV_OK) st = check_tool_calls(&calls, msg, at, err);
    if (st != KV_OK) goto done;

    bool assistant = strcmp(json_string_value(role), "assistant") == 0;
    /* "content": null is how agents spell "nothing was said"; a message without the member is a mistake. */
    if (!content && !(assistant && calls) && !json_object_get(msg, "content")) {
        place p = at_member(at, "content");
        st = kv_fail_field(err, p.path,
                           assistant ? "'%s' is required when there are no 'tool_calls'" : "'%s' is required", p.path);
        goto done;
    }
    tidy = json_pack("{s:O}", "role", role);
    if (content) json_object_set(tidy, "content", content);
    else json_object_set_new(tidy, "content", calls ? json_null() : json_string(""));
    if (calls) json_object_set(tidy, "tool_calls", calls);
    st = copy_text_members(tidy, msg, at, err);
    if (st == KV_OK) json_array_append(out, tidy);
done:
    json_decref(content);
    json_decref(calls);
    json_decref(tidy);
    return st;
}

kv_status kv_chat_check_messages(json_t **out, const json_t *messages, kv_on_image on_image, kv_error *err) {
    *out = NULL;
    if (!messages || json_is_null(messages)) return kv_fail_field(err, "messages", "'messages' is required");
    if (!json_is_array(messages)) return kv_fail_field(err, "messages", "'messages' must be an array");
    if (json_array_size(messages) == 0) return kv_fail_field(err, "messages", "'messages' must not be empty");
    if (json_array_size(messages) > KV_CHAT_MAX_MESSAGES)
        return kv_fail_field(err, "messages", "'messages' has %zu messages; at most %d are possible",
                             json_array_size(messages), KV_CHAT_MAX_MESSAGES);
    json_t *list = json_array(), *msg;
    size_t i;
    json_array_foreach(messages, i, msg) {
        place at = at_index(NULL, "messages", i);
        kv_status st = check_message(list, msg, &at, on_image, err);
        if (st != KV_OK) {
            json_decref(list);
            return st;
        }
    }
    *out = list;
    return KV_OK;
}

/* ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* *out: a new value. Without "strict" the grammar follows what it can of them, and the template shows all; "strict": true
 * asks for a promise, and gets it or an error. */
static kv_status check_parameters(json_t **out, const json_t *function, const place *at, kv_error *err) {
    *out = NULL;
    bool strict = false;
    json_t *parameters = kv_json_get(function, "parameters"), *flag = kv_json_get(function, "strict");
    place p = at_member(at, "parameters");
    if (flag && !json_is_boolean(flag)) {
        p = at_member(at, "strict");
        return kv_fail_field(err, p.path, "'%s' must be a boolean", p.path);
    }
    strict = json_is_true(flag);
    if (parameters && !json_is_object(parameters))
        return kv_fail_field(err, p.path, "'%s' must be a JSON schema object", p.path);
    if (strict && json_object_size(parameters) > 0) return kv_chat_schema(out, parameters, p.path, true, err);
    kv_status st = kv_chat_schema_size(parameters, p.path, err);
    if (st != KV_OK) return st;
    *out = parameters ? json_incref(parameters) : json_object();
    return KV_OK;
}

static kv_status check_tool(json_t *out, const json_t *tool, const place *at, kv_error *err) {
    if (!json_is_object(tool)) return kv_fail_field(err, at->path, "'%s' must be an object", at->path);
    json_t *type, *function, *name, *description, *parameters;
    kv_status st = need_text(&type, tool, "type", at, err);
    if (st == KV_OK) st = check_type_function(tool, at, err);
    if (st == KV_OK) st = get_function(&function, tool, at, err);
    if (st != KV_OK) return st;
    place inside = at_member(at, "function");
    st = need_text(&name, function, "name", &inside, err);
    if (st == KV_OK) st = get_text(&description, function, "description", &inside, err);
    if (st != KV_OK) return st;
    if (json_string_length(name) == 0) {
        place p = at_member(&inside, "name");
        return kv_fail_field(err, p.path, "'%s' must not be empty", p.path);
    }
    if (json_string_length(name) > MAX_TOOL_NAME) {
        place p = at_member(&inside, "name");
        return kv_fail_field(err, p.path, "'%s' has %zu bytes; at most %d are possible", p.path,
                             json_string_length(name), MAX_TOOL_NAME);
    }
    st = check_parameters(&parameters, function, &inside, err);
    if (st != KV_OK) return st;
    json_array_append_new(out, json_pack("{s:s, s:{s:O, s:O*, s:o}}", "type", "function", "function", "name", name,
                                         "description", description, "parameters", parameters));
    return KV_OK;
}

/* Each alone is possible; all go into one grammar. */
static kv_status check_cost(json_t **tools, kv_error *err) {
    double cost = 0;
    const json_t *tool;
    size_t i;
    json_array_foreach(*tools, i, tool) cost +=
        kv_chat_schema_cost(json_object_get(json_object_get(tool, "function"), "parameters"));
    if (cost <= KV_SCHEMA_MAX_COST) return KV_OK;
    json_decref(*tools);
    *tools = NULL;
    return kv_fail_field(err, "tools",
                         "'tools': the optional properties of all parameters are too many, %.1f times of what is "
                         "possible: make some 'required', shorten their names, or send fewer tools",
                         cost / KV_SCHEMA_MAX_COST);
}

kv_status kv_chat_check_tools(json_t **out, const json_t *tools, kv_error *err) {
    *out = NULL;
    if (!tools || json_is_null(tools)) return KV_OK;
    if (!json_is_array(tools)) return kv_fail_field(err, "tools", "'tools' must be an array");
    if (json_array_size(tools) == 0) return KV_OK;
    if (json_array_size(tools) > KV_CHAT_MAX_TOOLS)
        return kv_fail_field(err, "tools", "'tools' has %zu tools; at most %d are possible", json_array_size(tools),
                             KV_CHAT_MAX_TOOLS);
    json_t *list = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        place at = at_index(NULL, "tools", i);
        kv_status st = check_tool(list, tool, &at, err);
        if (st != KV_OK) {
            json_decref(list);
            return st;
        }
    }
    *out = list;
    return check_cost(out, err);
}

static const char *tool_name(const json_t *tool) {
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* Keeps the tools whose names are the keys of `names`. */
static void keep_tools(json_t *tools, const json_t *names) {
    for (size_t i = json_array_size(tools); i-- > 0;)
        if (!json_object_get(names, tool_name(json_array_get(tools, i)))) json_array_remove(tools, i);
}

static bool has_tool(const json_t *tools, const char *name) {
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (strcmp(tool_name(tool), name) == 0) return true;
    }
    return false;
}

/* {"type":"function","function":{"name":…}}, or with the name beside the type, as OpenAI's newer API has it, at `at`: one
 * more key in `names`. */
static kv_status take_name(json_t *names, const json_t *tools, const json_t *value, const place *at, kv_error *err) {
    json_t *type, *name, *function = kv_json_get(value, "function");
    place inside = at_member(at, "function");
    if (!json_is_object(value)) return kv_fail_field(err, at->path, "'%s' must be an object", at->path);
    kv_status st = need_text(&type, value, "type", at, err);
    if (st == KV_OK) st = check_type_function(value, at, err);
    if (st != KV_OK) return st;
    if (!function && kv_json_get(value, "name")) function = (json_t *)value, inside = *at;
    else st = get_function(&function, value, at, err);
    if (st == KV_OK) st = need_text(&name, function, "name", &inside, err);
    if (st != KV_OK) return st;
    place p = at_member(&inside, "name");
    if (!has_tool(tools, json_string_value(name)))
        return kv_fail_field(err, p.path, "'%s' is \"%.60s\", which is not among 'tools'", p.path,
                             json_string_value(name));
    json_object_set_new(names, json_string_value(name), json_true());
    return KV_OK;
}

/* {"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[…]}}, or without the object inside. */
static kv_status take_allowed(const char **choice, json_t *names, const json_t *tools, const json_t *value,
                              kv_error *err) {
    json_t *inside = kv_json_get(value, "allowed_tools"), *mode, *tool;
    place at = {"tool_choice.allowed_tools"};
    if (!inside && kv_json_get(value, "tools")) inside = (json_t *)value, at = (place){"tool_choice"};
    if (!json_is_object(inside)) return kv_fail_field(err, at.path, "'%s' must be an object", at.path);
    kv_status st = get_text(&mode, inside, "mode", &at, err);
    if (st != KV_OK) return st;
    const char *word = mode ? json_string_value(mode) : "auto";
    if (strcmp(word, "auto") == 0) *choice = "auto";
    else if (strcmp(word, "required") == 0) *choice = "required";
    place p = at_member(&at, "mode");
    if (!*choice) return kv_fail_field(err, p.path, "'%s' must be \"auto\" or \"required\"", p.path);
    json_t *list = kv_json_get(inside, "tools");
    p = at_member(&at, "tools");
    if (!json_is_array(list)) return kv_fail_field(err, p.path, "'%s' must be an array of functions", p.path);
    size_t i;
    json_array_foreach(list, i, tool) {
        place one = at_index(&at, "tools", i);
        st = take_name(names, tools, tool, &one, err);
        if (st != KV_OK) return st;
    }
    if (json_array_size(list) > 0) return KV_OK;
    if (strcmp(*choice, "required") == 0)
        return kv_fail_field(err, p.path, "'%s' is empty, but a call is required", p.path);
    *choice = "none";
    return KV_OK;
}

static kv_status check_choice_object(const char **choice, json_t *tools, const json_t *value, kv_error *err) {
    place at = {"tool_choice"};
    json_t *type, *names = json_object();
    kv_status st = need_text(&type, value, "type", &at, err);
    if (st == KV_OK && strcmp(json_string_value(type), "allowed_tools") == 0) {
        st = take_allowed(choice, names, tools, value, err);
    } else if (st == KV_OK) {
        st = take_name(names, tools, value, &at, err);
        *choice = "required";
    }
    if (st == KV_OK && strcmp(*choice, "none") != 0) keep_tools(tools, names);
    if (st != KV_OK) *choice = NULL;
    json_decref(names);
    return st;
}

kv_status kv_chat_check_tool_choice(const char **choice, json_t *tools, const json_t *tool_choice, kv_error *err) {
    *choice = NULL;
    if (!tool_choice || json_is_null(tool_choice)) return KV_OK;
    if (json_is_object(tool_choice)) return check_choice_object(choice, tools, tool_choice, err);
    static const char *const words[] = {"auto", "none", "required"};
    for (size_t i = 0; i < 3 && json_is_string(tool_choice); i++)
        if (strcmp(json_string_value(tool_choice), words[i]) == 0) *choice = words[i];
    if (!*choice)
        return kv_fail_field(
            err, "tool_choice",
            "'tool_choice' must be \"auto\", \"none\", \"required\" or an object that names functions");
    if (!tools && strcmp(*choice, "required") == 0)
        return kv_fail_field(err, "tool_choice", "'tool_choice' is \"required\", but there are no 'tools'");
    return KV_OK;
}
