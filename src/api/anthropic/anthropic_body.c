/* Anthropic's request body, field by field, as an OpenAI chat body. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/anthropic/anthropic.h"
#include "chat/messages.h"

/* ── members ───────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_path kv_path_of(const char *fmt, ...) {
    kv_path p;
    va_list args;
    va_start(args, fmt);
    vsnprintf(p.s, sizeof p.s, fmt, args);
    va_end(args);
    return p;
}

static kv_path member_path(const char *at, const char *name) {
    return kv_path_of("%.70s%s%s", at, *at ? "." : "", name);
}

kv_status kv_anthropic_text(json_t **out, const json_t *obj, const char *name, const char *at, bool need,
                            kv_error *err) {
    *out = kv_json_get(obj, name);
    if (json_is_string(*out) || (!*out && !need)) return KV_OK;
    kv_path p = member_path(at, name);
    if (!*out) return kv_fail_field(err, p.s, "'%s' is required", p.s);
    *out = NULL;
    return kv_fail_field(err, p.s, "'%s' must be a string", p.s);
}

kv_status kv_anthropic_object(json_t **out, const json_t *obj, const char *name, const char *at, kv_error *err) {
    *out = kv_json_get(obj, name);
    if (!*out || json_is_object(*out)) return KV_OK;
    kv_path p = member_path(at, name);
    *out = NULL;
    return kv_fail_field(err, p.s, "'%s' must be an object", p.s);
}

kv_status kv_anthropic_array(json_t **out, const json_t *obj, const char *name, const char *at, kv_error *err) {
    *out = kv_json_get(obj, name);
    if (!*out || json_is_array(*out)) return KV_OK;
    kv_path p = member_path(at, name);
    *out = NULL;
    return kv_fail_field(err, p.s, "'%s' must be an array", p.s);
}

kv_status kv_anthropic_type(const char **out, const json_t *obj, const char *at, kv_error *err) {
    *out = NULL;
    if (!json_is_object(obj)) return kv_fail_field(err, at, "'%s' must be an object", at);
    json_t *type;
    kv_status st = kv_anthropic_text(&type, obj, "type", at, true, err);
    if (st == KV_OK) *out = json_string_value(type);
    return st;
}

/* A switch of an object; absent: *out as it was. */
static kv_status read_switch(bool *out, const json_t *obj, const char *name, const char *at, kv_error *err) {
    const json_t *v = kv_json_get(obj, name);
    if (v && !json_is_boolean(v)) {
        kv_path p = member_path(at, name);
        return kv_fail_field(err, p.s, "'%s' must be a boolean", p.s);
    }
    if (v) *out = json_is_true(v);
    return KV_OK;
}

static bool among(const char *word, const char *const *words) {
    while (*words && strcmp(*words, word) != 0) words++;
    return *words != NULL;
}

/* ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool has_tool(const json_t *tools, const char *name) {
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const json_t *known = json_object_get(json_object_get(tool, "function"), "name");
        if (strcmp(json_string_value(known), name) == 0) return true;
    }
    return false;
}

static kv_status check_tool_kind(const json_t *tool, const char *at, kv_error *err) {
    json_t *type;
    if (!json_is_object(tool)) return kv_fail_field(err, at, "'%s' must be an object", at);
    kv_status st = kv_anthropic_text(&type, tool, "type", at, false, err);
    if (st != KV_OK || !type || strcmp(json_string_value(type), "custom") == 0) return st;
    return kv_fail_field(err, at,
                         "'%s' is the built-in tool \"%.60s\", which this server does not have; only tools with a "
                         "name and an 'input_schema' of their own (type \"custom\") are supported",
                         at, json_string_value(type));
}

static kv_status read_schema(json_t **schema, const json_t *tool, const char *at, kv_error *err) {
    kv_status st = kv_anthropic_object(schema, tool, "input_schema", at, err);
    if (st != KV_OK) return st;
    kv_path p = member_path(at, "input_schema");
    if (!*schema) return kv_fail_field(err, p.s, "'%s' is required", p.s);
    const json_t *type = kv_json_get(*schema, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0))
        return kv_fail_field(err, p.s, "'%s.type' must be \"object\"", p.s);
    return KV_OK;
}

static kv_status read_tool(json_t *out, kv_anthropic *a, const json_t *tool, const char *at, kv_error *err) {
    json_t *name, *description, *schema = NULL;
    int32_t keep = 0;
    kv_status st = check_tool_kind(tool, at, err);
    if (st == KV_OK) st = kv_anthropic_text(&name, tool, "name", at, true, err);
    if (st == KV_OK) st = kv_anthropic_text(&description, tool, "description", at, false, err);
    if (st == KV_OK) st = read_schema(&schema, tool, at, err);
    if (st == KV_OK) st = kv_anthropic_cache_control(&keep, tool, at, err);
    if (st != KV_OK) return st;
    kv_path p = member_path(at, "name");
    if (json_string_length(name) == 0) return kv_fail_field(err, p.s, "'%s' must not be empty", p.s);
    if (has_tool(out, json_string_value(name)))
        return kv_fail_field(err, p.s, "'%s' is \"%.60s\", which an earlier tool is called, too", p.s,
                             json_string_value(name));
    json_array_append_new(out, json_pack("{s:s, s:{s:O, s:O*, s:O}}", "type", "function", "function", "name", name,
                                         "description", description, "parameters", schema));
    return keep ? kv_anthropic_add_mark(a, NULL, keep, at, err) : KV_OK;
}

static kv_status read_tools(kv_anthropic *a, const json_t *body, kv_error *err) {
    json_t *tools, *tool;
    size_t i;
    kv_status st = kv_anthropic_array(&tools, body, "tools", "", err);
    if (st != KV_OK || json_array_size(tools) == 0) return st;
    if (json_array_size(tools) > KV_CHAT_MAX_TOOLS)
        return kv_fail_field(err, "tools", "'tools' has %zu tools; at most %d are possible", json_array_size(tools),
                             KV_CHAT_MAX_TOOLS);
    json_t *list = json_array();
    json_object_set_new(a->chat, "tools", list);
    json_array_foreach(tools, i, tool) {
        kv_path p = kv_path_of("tools[%zu]", i);
        st = read_tool(list, a, tool, p.s, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static kv_status choose_named(kv_anthropic *a, const json_t *choice, kv_error *err) {
    json_t *name;
    kv_status st = kv_anthropic_text(&name, choice, "name", "tool_choice", true, err);
    if (st != KV_OK) return st;
    if (!has_tool(json_object_get(a->chat, "tools"), json_string_value(name)))
        return kv_fail_field(err, "tool_choice.name", "'tool_choice.name' is \"%.60s\", which is not among 'tools'",
                             json_string_value(name));
    json_object_set_new(a->chat, "tool_choice",
                        json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
    return KV_OK;
}

static kv_status read_tool_choice(kv_anthropic *a, const json_t *body, kv_error *err) {
    static const char *const types[] = {"auto", "any", "tool", "none", NULL};
    json_t *choice;
    const char *type;
    kv_status st = kv_anthropic_object(&choice, body, "tool_choice", "", err);
    if (st != KV_OK || !choice) return st;
    st = kv_anthropic_type(&type, choice, "tool_choice", err);
    if (st != KV_OK) return st;
    if (!among(type, types))
        return kv_fail_field(err, "tool_choice.type",
                             "'tool_choice.type' must be \"auto\", \"any\", \"tool\" or \"none\"");
    bool any = strcmp(type, "any") == 0, named = strcmp(type, "tool") == 0;
    if ((any || named) && !json_object_get(a->chat, "tools"))
        return kv_fail_field(err, "tool_choice", "'tool_choice' is \"%s\", but there are no 'tools'", type);
    if (named) st = choose_named(a, choice, err);
    else json_object_set_new(a->chat, "tool_choice", json_string(any ? "required" : type));
    bool single = false;
    if (st == KV_OK) st = read_switch(&single, choice, "disable_parallel_tool_use", "tool_choice", err);
    if (st == KV_OK && kv_json_get(choice, "disable_parallel_tool_use"))
        json_object_set_new(a->chat, "parallel_tool_calls", json_boolean(!single));
    return st;
}

/* ── thinking ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *kwargs_of(kv_anthropic *a) {
    json_t *kwargs = json_object_get(a->chat, "chat_template_kwargs");
    if (!kwargs) json_object_set_new(a->chat, "chat_template_kwargs", kwargs = json_object());
    return kwargs;
}

static kv_status read_budget(kv_anthropic *a, const json_t *thinking, kv_error *err) {
    const json_t *v = kv_json_get(thinking, "budget_tokens");
    int64_t budget;
    if (!v) return kv_fail_field(err, "thinking.budget_tokens", "'thinking.budget_tokens' is required");
    if (!kv_json_as_int(&budget, v, 1, INT32_MAX))
        return kv_fail_field(err, "thinking.budget_tokens",
                             "'thinking.budget_tokens' must be an integer between 1 and %d", INT32_MAX);
    json_object_set_new(a->chat, "thinking_budget_tokens", json_integer(budget));
    return KV_OK;
}

static kv_status read_display(kv_anthropic *a, const json_t *thinking, kv_error *err) {
    static const char *const words[] = {"summarized", "omitted", NULL};
    json_t *display;
    kv_status st = kv_anthropic_text(&display, thinking, "display", "thinking", false, err);
    if (st != KV_OK || !display) return st;
    if (!among(json_string_value(display), words))
        return kv_fail_field(err, "thinking.display", "'thinking.display' must be \"summarized\" or \"omitted\"");
    a->omit_thinking = strcmp(json_string_value(display), "omitted") == 0;
    return KV_OK;
}

/* Without the field the template's own default stands, as in llama-server. */
static kv_status read_thinking(kv_anthropic *a, const json_t *body, kv_error *err) {
    json_t *thinking;
    const char *type;
    kv_status st = kv_anthropic_object(&thinking, body, "thinking", "", err);
    if (st != KV_OK || !thinking) return st;
    st = kv_anthropic_type(&type, thinking, "thinking", err);
    if (st != KV_OK) return st;
    bool enabled = strcmp(type, "enabled") == 0, adaptive = strcmp(type, "adaptive") == 0;
    if (!enabled && !adaptive && strcmp(type, "disabled") != 0)
        return kv_fail_field(err, "thinking.type",
                             "'thinking.type' is \"%.40s\"; this server has \"enabled\", \"adaptive\" and \"disabled\"",
                             type);
    json_object_set_new(kwargs_of(a), "enable_thinking", json_boolean(enabled || adaptive));
    if (enabled) st = read_budget(a, thinking, err);
    return st == KV_OK ? read_display(a, thinking, err) : st;
}

/* ── how the answer must look ──────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_format(kv_anthropic *a, const json_t *format, const char *at, kv_error *err) {
    json_t *schema;
    const char *type;
    kv_status st = kv_anthropic_type(&type, format, at, err);
    if (st == KV_OK && strcmp(type, "json_schema") != 0)
        st = kv_fail_field(err, at, "'%s.type' must be \"json_schema\"", at);
    if (st == KV_OK) st = kv_anthropic_object(&schema, format, "schema", at, err);
    if (st != KV_OK) return st;
    if (!schema) return kv_fail_field(err, at, "'%s.schema' is required", at);
    json_object_set_new(a->chat, "response_format",
                        json_pack("{s:s, s:{s:O, s:O*}}", "type", "json_schema", "json_schema", "schema", schema,
                                  "strict", kv_json_get(format, "strict"))); /* not Anthropic's: follow what can be */
    return KV_OK;
}

/* The templates that know an effort know these three. */
static const char *effort_word(const char *effort) {
    static const char *const same[] = {"low", "medium", "high", NULL}, *const more[] = {"xhigh", "max", NULL};
    return among(effort, same) ? effort : among(effort, more) ? "high" : NULL;
}

static kv_status read_output(kv_anthropic *a, const json_t *body, kv_error *err) {
    json_t *config, *effort, *format;
    kv_status st = kv_anthropic_object(&format, body, "output_format", "", err); /* as betas had it */
    if (st == KV_OK && format) st = read_format(a, format, "output_format", err);
    if (st == KV_OK) st = kv_anthropic_object(&config, body, "output_config", "", err);
    if (st != KV_OK || !config) return st;
    st = kv_anthropic_text(&effort, config, "effort", "output_config", false, err);
    if (st != KV_OK) return st;
    if (effort) {
        const char *word = effort_word(json_string_value(effort));
        if (!word)
            return kv_fail_field(err, "output_config.effort",
                                 "'output_config.effort' must be \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
        json_object_set_new(a->chat, "reasoning_effort", json_string(word));
    }
    format = kv_json_get(config, "format");
    return format ? read_format(a, format, "output_config.format", err) : KV_OK;
}

/* ── limits and the rest ───────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_max_tokens(kv_anthropic *a, const json_t *body, bool count_only, kv_error *err) {
    const json_t *v = kv_json_get(body, "max_tokens");
    int64_t n;
    if (!v && count_only) return KV_OK;
    if (!v) return kv_fail_field(err, "max_tokens", "'max_tokens' is required: the most tokens to generate");
    if (!kv_json_as_int(&n, v, 0, INT64_MAX))
        return kv_fail_field(err, "max_tokens", "'max_tokens' must be an integer of 0 or more; 0 only fills the cache");
    json_object_set_new(a->chat, "max_tokens", json_integer(n > INT32_MAX ? INT32_MAX : n));
    return KV_OK;
}

static kv_status read_stops(kv_anthropic *a, const json_t *body, kv_error *err) {
    json_t *stops, *stop;
    size_t i;
    kv_status st = kv_anthropic_array(&stops, body, "stop_sequences", "", err);
    if (st != KV_OK || !stops) return st;
    if (json_array_size(stops) > KV_PARAMS_MAX_STOPS)
        return kv_fail_field(err, "stop_sequences", "'stop_sequences' has %zu entries; at most %d are possible",
                             json_array_size(stops), KV_PARAMS_MAX_STOPS);
    json_array_foreach(stops, i, stop) {
        kv_path p = kv_path_of("stop_sequences[%zu]", i);
        const char *s = json_string_value(stop);
        if (!s || !*s || strlen(s) != json_string_length(stop))
            return kv_fail_field(err, p.s, "'%s' must be a text, not empty and without NUL characters", p.s);
    }
    json_object_set(a->chat, "stop", stops);
    return KV_OK;
}

static kv_status read_metadata(const json_t *body, kv_error *err) {
    json_t *metadata, *text;
    kv_status st = kv_anthropic_object(&metadata, body, "metadata", "", err);
    if (st == KV_OK && metadata) st = kv_anthropic_text(&text, metadata, "user_id", "metadata", false, err);
    if (st == KV_OK) st = kv_anthropic_text(&text, body, "service_tier", "", false, err);
    return st;
}

/* What would change the answer and is not there. */
static kv_status refuse_missing(const json_t *body, kv_error *err) {
    static const char *const fields[] = {"container", "mcp_servers", "thread", "compaction"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = kv_json_get(body, fields[i]);
        bool nothing = !v || (json_is_array(v) && json_array_size(v) == 0);
        if (!nothing) return kv_fail_field(err, fields[i], "'%s' is not supported by this server", fields[i]);
    }
    return KV_OK;
}

static kv_status read_limits(kv_anthropic *a, const json_t *body, bool count_only, kv_error *err) {
    /* Checked where OpenAI's are. The second line is not Anthropic's, but of use to a client that knows this server. */
    static const char *const same[] = {"model",      "stream", "temperature", "top_p",        "top_k",
                                       "cache_salt", "kvasir", "seed",        "cache_prompt", "sse_ping_interval"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *v = kv_json_get(body, same[i]);
        if (v) json_object_set(a->chat, same[i], v);
    }
    json_t *kwargs;
    kv_status st = kv_anthropic_object(&kwargs, body, "chat_template_kwargs", "", err);
    if (st == KV_OK && kwargs) json_object_set_new(a->chat, "chat_template_kwargs", json_copy(kwargs));
    if (st == KV_OK) st = read_max_tokens(a, body, count_only, err);
    if (st == KV_OK) st = read_stops(a, body, err);
    if (st == KV_OK) st = read_metadata(body, err);
    return st == KV_OK ? refuse_missing(body, err) : st;
}

kv_status kv_anthropic_read(kv_anthropic *out, const json_t *body, bool count_only, const kv_app *app, kv_error *err) {
    *out = (kv_anthropic){0};
    json_t *messages = NULL, *edits = NULL;
    kv_status st = kv_params_check_body(body, app, err);
    if (st != KV_OK) return st;
    out->chat = json_object();
    st = kv_anthropic_object(&edits, body, "context_management", "", err);
    out->wants_edits = edits != NULL;
    if (st == KV_OK) st = read_limits(out, body, count_only, err);
    if (st == KV_OK) st = read_tools(out, body, err);
    if (st == KV_OK) st = read_tool_choice(out, body, err);
    if (st == KV_OK) st = read_thinking(out, body, err);
    if (st == KV_OK) st = read_output(out, body, err);
    if (st == KV_OK) st = kv_anthropic_messages(&messages, out, body, app, err);
    if (st == KV_OK) json_object_set_new(out->chat, "messages", messages);
    else kv_anthropic_free(out);
    return st;
}

void kv_anthropic_free(kv_anthropic *a) {
    json_decref(a->chat);
    for (int i = 0; i < a->n_marks; i++) json_decref(a->mark[i].messages);
    *a = (kv_anthropic){0};
}
