/* The fields of a Responses body: which there are, what they must be, and what becomes of them.
 *
 * What this API does not know itself (seed, top_k, stop, cache_salt, chat_template_kwargs …) goes on to the chat body as
 * it is, as in llama-server.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/responses/responses.h"

#define METADATA_MAX   16 /* pairs; OpenAI's limits */
#define METADATA_KEY   64 /* characters, counted as bytes here */
#define METADATA_VALUE 512

/* ── small readers ─────────────────────────────────────────────────────────────────────────────────────────────── */

/* A member that must be one of the words; *word: it, NULL when absent. Path: as errors name it. */
static kv_status read_word(const char **word, const json_t *obj, const char *member, const char *path,
                           const char *const *words, kv_error *err) {
    const json_t *v = kv_json_get(obj, member);
    const char *s = json_string_value(v);
    *word = NULL;
    if (!v) return KV_OK;
    kv_buf list = {0};
    for (int i = 0; words[i]; i++) {
        if (s && strcmp(s, words[i]) == 0) *word = words[i];
        kv_buf_addf(&list, "%s\"%s\"", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    }
    kv_status st = *word ? KV_OK
                   : s   ? kv_fail_field(err, path, "'%s' must be %s, but is \"%.40s\"", path, list.data, s)
                         : kv_fail_field(err, path, "'%s' must be %s", path, list.data);
    kv_buf_free(&list);
    return st;
}

static kv_status read_object(const json_t **out, const json_t *body, const char *member, kv_error *err) {
    *out = kv_json_get(body, member);
    if (!*out || json_is_object(*out)) return KV_OK;
    return kv_fail_field(err, member, "'%s' must be an object", member);
}

static void echo(kv_response *r, const char *name, const json_t *value) {
    if (value) json_object_set(r->echo, name, (json_t *)value);
    else json_object_set_new(r->echo, name, json_null());
}

/* ── fields without effect on the prompt ───────────────────────────────────────────────────────────────────────── */

static kv_status refuse_absent_features(const json_t *body, kv_error *err) {
    static const struct {
        const char *field, *what;
    } absent[] = {
        {"conversation", "this server has no Conversations API; use 'previous_response_id'"},
        {"prompt", "this server keeps no prompt templates; send 'instructions' and 'input'"},
        {"context_management", "this server does not compact conversations"},
        {"messages", "that is chat's; use 'input' and 'instructions'"},
        {"response_format", "that is chat's; use 'text.format'"},
        {"functions", "use 'tools'"},
    };
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        const json_t *v = kv_json_get(body, absent[i].field);
        if (v && !(json_is_array(v) && json_array_size(v) == 0))
            return kv_fail_field(err, absent[i].field, "'%s' is not supported: %s", absent[i].field, absent[i].what);
    }
    bool background = false;
    kv_status st = kv_json_bool(&background, body, "background", err);
    if (st != KV_OK || !background) return st;
    return kv_fail_field(err, "background",
                         "'background' is not supported: the response is made while the client waits; use 'stream'");
}

static kv_status read_metadata(kv_response *r, const json_t *body, kv_error *err) {
    const json_t *metadata;
    const char *key;
    json_t *value;
    kv_status st = read_object(&metadata, body, "metadata", err);
    if (st != KV_OK) return st;
    if (json_object_size(metadata) > METADATA_MAX)
        return kv_fail_field(err, "metadata", "'metadata' has %zu pairs, at most %d are possible",
                             json_object_size(metadata), METADATA_MAX);
    json_object_foreach((json_t *)metadata, key, value) {
        char path[96];
        snprintf(path, sizeof path, "metadata.%.60s", key);
        if (strlen(key) > METADATA_KEY)
            return kv_fail_field(err, path, "'%s' is longer than %d characters", path, METADATA_KEY);
        if (!json_is_string(value) || json_string_length(value) > METADATA_VALUE)
            return kv_fail_field(err, path, "'%s' must be a string of at most %d characters", path, METADATA_VALUE);
    }
    if (metadata) echo(r, "metadata", metadata);
    else json_object_set_new(r->echo, "metadata", json_object());
    return KV_OK;
}

static kv_status read_labels(kv_response *r, const json_t *body, kv_error *err) {
    static const char *const labels[] = {"user", "safety_identifier", "prompt_cache_key"};
    static const char *const retentions[] = {"in-memory", "in_memory", "24h", NULL};
    static const char *const tiers[] = {"auto", "default", "flex", "scale", "priority", NULL};
    static const char *const truncations[] = {"auto", "disabled", NULL};
    const char *word, *truncation;
    int64_t n = 0;
    kv_status st = KV_OK;
    for (size_t i = 0; st == KV_OK && i < 3; i++) {
        st = kv_json_str(&word, body, labels[i], err);
        echo(r, labels[i], kv_json_get(body, labels[i]));
    }
    if (st == KV_OK) st = read_word(&word, body, "prompt_cache_retention", "prompt_cache_retention", retentions, err);
    echo(r, "prompt_cache_retention", kv_json_get(body, "prompt_cache_retention"));
    if (st == KV_OK) st = read_word(&word, body, "service_tier", "service_tier", tiers, err);
    json_object_set_new(r->echo, "service_tier", json_string("default"));
    if (st == KV_OK) st = read_word(&truncation, body, "truncation", "truncation", truncations, err);
    if (st == KV_OK) json_object_set_new(r->echo, "truncation", json_string(truncation ? truncation : "disabled"));
    if (st == KV_OK) st = kv_json_int(&n, body, "max_tool_calls", 1, INT32_MAX, err); /* of tools that are not there */
    echo(r, "max_tool_calls", kv_json_get(body, "max_tool_calls"));
    return st;
}

static kv_status read_stream_options(const json_t *body, kv_error *err) {
    const json_t *options;
    bool obfuscation;
    kv_status st = read_object(&options, body, "stream_options", err);
    if (st == KV_OK && options) {
        st = kv_json_bool(&obfuscation, options, "include_obfuscation", err);
        if (st != KV_OK && err) snprintf(err->field, sizeof err->field, "stream_options.include_obfuscation");
    }
    return st;
}

/* ── what the answer carries ───────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_include(kv_response *r, const json_t *body, kv_error *err) {
    static const char *const known[] = {"reasoning.encrypted_content",    "message.output_text.logprobs",
                                        "message.input_image.image_url",  "web_search_call.results",
                                        "web_search_call.action.sources", "file_search_call.results",
                                        "code_interpreter_call.outputs",  "computer_call_output.output.image_url"};
    const json_t *list = kv_json_get(body, "include"), *one;
    if (list && !json_is_array(list)) return kv_fail_field(err, "include", "'include' must be an array of strings");
    size_t i, k;
    json_array_foreach(list, i, one) {
        char path[40];
        const char *s = json_string_value(one);
        snprintf(path, sizeof path, "include[%zu]", i);
        for (k = 0; k < sizeof known / sizeof *known; k++)
            if (s && strcmp(s, known[k]) == 0) break;
        if (k == 0) r->encrypted = true;
        if (k == 1) r->logprobs = true;
        if (k == sizeof known / sizeof *known)
            return kv_fail_field(err, path,
                                 "'%s' is not known; \"%s\" and \"%s\" are, and those of tools that this server does "
                                 "not run",
                                 path, known[0], known[1]);
    }
    return KV_OK;
}

static kv_status read_logprobs(kv_response *r, const json_t *body, kv_error *err) {
    int64_t top = 0;
    kv_status st = kv_json_int(&top, body, "top_logprobs", 0, 20, err);
    if (st != KV_OK) return st;
    if (top > 0) r->logprobs = true;
    json_object_set_new(r->echo, "top_logprobs", json_integer(top));
    json_object_del(r->chat, "top_logprobs");
    if (!r->logprobs) return KV_OK;
    json_object_set_new(r->chat, "logprobs", json_true());
    json_object_set_new(r->chat, "top_logprobs", json_integer(top));
    return KV_OK;
}

/* ── reasoning and text ────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_reasoning(kv_response *r, const json_t *body, kv_error *err) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", NULL};
    static const char *const summaries[] = {"auto", "concise", "detailed", NULL};
    const json_t *reasoning;
    const char *effort = NULL, *summary = NULL, *older = NULL;
    kv_status st = read_object(&reasoning, body, "reasoning", err);
    if (st == KV_OK) st = read_word(&effort, reasoning, "effort", "reasoning.effort", efforts, err);
    if (st == KV_OK) st = read_word(&summary, reasoning, "summary", "reasoning.summary", summaries, err);
    if (st == KV_OK)
        st = read_word(&older, reasoning, "generate_summary", "reasoning.generate_summary", summaries, err);
    if (st != KV_OK) return st;
    if (!summary) summary = older;
    r->summary = summary != NULL;
    if (effort) json_object_set_new(r->chat, "reasoning_effort", json_string(effort));
    json_object_set_new(r->echo, "reasoning",
                        json_pack("{s:o, s:o}", "effort", effort ? json_string(effort) : json_null(), "summary",
                                  summary ? json_string(summary) : json_null()));
    return KV_OK;
}

/* {"type": "json_schema", "name", "schema", "strict"} → chat's response_format */
static kv_status read_format(kv_response *r, const json_t *format, kv_error *err) {
    static const char *const types[] = {"text", "json_schema", "json_object", NULL};
    const char *type;
    if (!json_is_object(format)) return kv_fail_field(err, "text.format", "'text.format' must be an object");
    kv_status st = read_word(&type, format, "type", "text.format.type", types, err);
    if (st != KV_OK) return st;
    if (!type) return kv_fail_field(err, "text.format.type", "'text.format.type' is required");
    if (strcmp(type, "text") == 0) return KV_OK;
    if (strcmp(type, "json_object") == 0) {
        json_object_set_new(r->chat, "response_format", json_pack("{s:s}", "type", type));
        return KV_OK;
    }
    json_t *schema = kv_json_get(format, "schema"), *name = kv_json_get(format, "name"), *strict;
    if (!schema) return kv_fail_field(err, "text.format.schema", "'text.format.schema' is required");
    if (!json_is_object(schema))
        return kv_fail_field(err, "text.format.schema", "'text.format.schema' must be an object");
    if (name && !json_is_string(name))
        return kv_fail_field(err, "text.format.name", "'text.format.name' must be a string");
    strict = kv_json_get(format, "strict");
    if (strict && !json_is_boolean(strict))
        return kv_fail_field(err, "text.format.strict", "'text.format.strict' must be a boolean");
    json_object_set_new(r->chat, "response_format",
                        json_pack("{s:s, s:{s:O*, s:O, s:O*}}", "type", type, "json_schema", "name", name, "schema",
                                  schema, "strict", strict));
    return KV_OK;
}

static kv_status read_text(kv_response *r, const json_t *body, kv_error *err) {
    static const char *const verbosities[] = {"low", "medium", "high", NULL};
    const json_t *text, *format;
    const char *verbosity = NULL;
    kv_status st = read_object(&text, body, "text", err);
    if (st == KV_OK) st = read_word(&verbosity, text, "verbosity", "text.verbosity", verbosities, err);
    format = kv_json_get(text, "format");
    if (st == KV_OK && format) st = read_format(r, format, err);
    if (st != KV_OK) return st;
    json_t *told = json_object();
    if (format) json_object_set(told, "format", (json_t *)format);
    else json_object_set_new(told, "format", json_pack("{s:s}", "type", "text"));
    json_object_set_new(told, "verbosity", json_string(verbosity ? verbosity : "medium"));
    json_object_set_new(r->echo, "text", told);
    return KV_OK;
}

/* ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_tools(kv_response *r, const json_t *body, kv_error *err) {
    json_t *tools = NULL, *choice = NULL;
    const json_t *given = kv_json_get(body, "tools"), *given_choice = kv_json_get(body, "tool_choice");
    bool parallel = true;
    kv_status st = kv_response_tools(&tools, r->names, given, err);
    if (st == KV_OK) st = kv_response_tool_choice(&choice, tools, given_choice, err);
    if (st == KV_OK) st = kv_json_bool(&parallel, body, "parallel_tool_calls", err);
    if (st == KV_OK) {
        if (json_array_size(tools) > 0) json_object_set(r->chat, "tools", tools);
        else json_object_del(r->chat, "tools");
        if (choice && json_array_size(tools) > 0) json_object_set(r->chat, "tool_choice", choice);
        else json_object_del(r->chat, "tool_choice");
        if (given) echo(r, "tools", given);
        else json_object_set_new(r->echo, "tools", json_array());
        if (given_choice) echo(r, "tool_choice", given_choice);
        else json_object_set_new(r->echo, "tool_choice", json_string("auto"));
        json_object_set_new(r->echo, "parallel_tool_calls", json_boolean(parallel));
    }
    json_decref(tools);
    json_decref(choice);
    return st;
}

/* ── conversation ──────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_conversation(kv_response *r, const json_t *body, const kv_app *app, kv_error *err) {
    const char *instructions = NULL, *previous = NULL;
    const json_t *input = kv_json_get(body, "input");
    json_t *messages = NULL, *all = json_array();
    r->store = true;
    kv_status st = kv_json_bool(&r->store, body, "store", err);
    if (st == KV_OK) st = kv_json_str(&instructions, body, "instructions", err);
    if (st == KV_OK) st = kv_json_str(&previous, body, "previous_response_id", err);
    if (st == KV_OK && previous && *previous) {
        r->previous = kv_strdup(previous);
        st = kv_response_load(all, &r->before, previous, r->scope, app, err);
        if (st != KV_OK && err) snprintf(err->field, sizeof err->field, "previous_response_id");
    }
    size_t n_before = json_array_size(all);
    if (st == KV_OK) st = kv_response_items(r->input, input, app, r->scope, err);
    if (st == KV_OK && n_before + json_array_size(r->input) == 0)
        st = kv_fail_field(err, "input",
                           input ? "'input' must not be empty, unless 'previous_response_id' is given"
                                 : "'input' is required, unless 'previous_response_id' is given");
    if (st == KV_OK) {
        json_array_extend(all, r->input);
        st = kv_response_messages(&messages, &r->origin, instructions, all, n_before, err);
    }
    if (st == KV_OK && json_array_size(messages) == 0)
        st = kv_fail_field(err, "input", "'input' has nothing that the model could read");
    if (st == KV_OK) json_object_set(r->chat, "messages", messages);
    echo(r, "instructions", kv_json_get(body, "instructions"));
    echo(r, "previous_response_id", kv_json_get(body, "previous_response_id"));
    json_decref(messages);
    json_decref(all);
    return st;
}

static kv_status read_limits(kv_response *r, const json_t *body, kv_error *err) {
    int64_t n = 0;
    kv_status st = kv_json_int(&n, body, "max_output_tokens", 1, INT64_MAX, err);
    if (st != KV_OK) return st;
    echo(r, "max_output_tokens", kv_json_get(body, "max_output_tokens"));
    if (n) json_object_set_new(r->chat, "max_tokens", json_integer(n > INT32_MAX ? INT32_MAX : n));
    n = 1;
    st = kv_json_int(&n, body, "n", 1, 1, err);
    return st;
}

/* The chat body begins as a copy without what is this API's own. */
static json_t *begin_chat(const json_t *body) {
    static const char *const own[] = {"input",
                                      "instructions",
                                      "include",
                                      "previous_response_id",
                                      "store",
                                      "metadata",
                                      "user",
                                      "safety_identifier",
                                      "prompt_cache_key",
                                      "prompt_cache_retention",
                                      "service_tier",
                                      "truncation",
                                      "background",
                                      "conversation",
                                      "prompt",
                                      "context_management",
                                      "max_output_tokens",
                                      "max_tool_calls",
                                      "reasoning",
                                      "text",
                                      "stream_options",
                                      "messages",
                                      "response_format",
                                      "functions",
                                      "logprobs",
                                      "n"};
    json_t *chat = json_copy((json_t *)body);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) json_object_del(chat, own[i]);
    return chat;
}

kv_status kv_response_read(kv_response **out, const json_t *body, const char *scope, const kv_app *app, kv_error *err) {
    *out = NULL;
    kv_status st = kv_params_check_body(body, app, err);
    if (st != KV_OK) return st;
    kv_response *r = kv_alloc(sizeof *r);
    r->chat = begin_chat(body);
    r->echo = json_object();
    r->input = json_array();
    r->names = json_object();
    r->output = json_array();
    r->scope = kv_strdup(scope);
    st = refuse_absent_features(body, err);
    if (st == KV_OK) st = read_metadata(r, body, err);
    if (st == KV_OK) st = read_labels(r, body, err);
    if (st == KV_OK) st = read_stream_options(body, err);
    if (st == KV_OK) st = read_include(r, body, err);
    if (st == KV_OK) st = read_logprobs(r, body, err);
    if (st == KV_OK) st = read_limits(r, body, err);
    if (st == KV_OK) st = read_reasoning(r, body, err);
    if (st == KV_OK) st = read_text(r, body, err);
    if (st == KV_OK) st = read_tools(r, body, err);
    if (st == KV_OK) st = read_conversation(r, body, app, err);
    if (st == KV_OK) *out = r;
    else kv_response_free(r);
    return st;
}

void kv_response_free(kv_response *r) {
    if (!r) return;
    json_decref(r->chat);
    json_decref(r->echo);
    json_decref(r->input);
    json_decref(r->names);
    json_decref(r->origin);
    json_decref(r->output);
    json_decref(r->probs);
    kv_response_tokens_free(&r->before);
    kv_buf_free(&r->text);
    free(r->previous);
    free(r->scope);
    free(r);
}

/* ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* "messages[3].content" begins with the input item that message 3 began with. */
static void rename_message(kv_buf *out, const char *rest, const kv_response *r) {
    char *end = NULL;
    long i = *rest == '[' ? strtol(rest + 1, &end, 10) : -1;
    const json_t *origin = i < 0 ? NULL : json_array_get(r->origin, (size_t)i);
    kv_buf_adds(out, "input");
    if (!origin || json_integer_value(origin) < 0 || !end || *end != ']') return;
    kv_buf_addf(out, "[%lld]%s", (long long)json_integer_value(origin), end + 1);
}

static void rename_field(kv_buf *out, const char *field, const kv_response *r) {
    static const char *const names[][2] = {
        {"response_format.json_schema", "text.format"}, {"response_format", "text.format"},
        {"json_schema", "text.format.schema"},          {"max_tokens", "max_output_tokens"},
        {"reasoning_effort", "reasoning.effort"},       {"logprobs", "include"},
    };
    if (strncmp(field, "messages", 8) == 0) {
        rename_message(out, field + 8, r);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(field, names[i][0], n) != 0 || (field[n] && !strchr(".[", field[n]))) continue;
        kv_buf_addf(out, "%s%s", names[i][1], field + n);
        return;
    }
    kv_buf_adds(out, field);
}

void kv_response_rename_error(kv_error *err, const kv_response *r) {
    if (!err || !err->field[0]) return;
    kv_buf name = {0}, message = {0};
    rename_field(&name, err->field, r);
    size_t n = strlen(err->field);
    const char *p = err->message, *found;
    while (strcmp(name.data, err->field) != 0 && (found = strstr(p, err->field)) != NULL) {
        kv_buf_add(&message, p, (size_t)(found - p));
        kv_buf_adds(&message, name.data);
        p = found + n;
    }
    kv_buf_adds(&message, p);
    snprintf(err->field, sizeof err->field, "%s", name.data);
    size_t len = message.len < sizeof err->message ? message.len : sizeof err->message - 1;
    if (len < message.len)
        while (len > 0 && ((unsigned char)message.data[len] & 0xc0) == 0x80) len--; /* not inside a character */
    memcpy(err->message, kv_buf_str(&message), len);
    err->message[len] = '\0';
    kv_buf_free(&name);
    kv_buf_free(&message);
}
