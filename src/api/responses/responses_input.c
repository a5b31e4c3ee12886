/* Input items of a Responses body: checked and made complete as they are stored, and turned into chat messages.
 *
 *   system, developer, instructions at the front      one system message
 *   user                                              a user message
 *   reasoning, assistant, function_call … in a row    one assistant message: reasoning_content, content, tool_calls
 *   function_call_output …                            a tool message
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/responses/responses.h"
#include "api/shapes.h"
#include "chat/messages.h"

#define PATH 80

/* ── reading members ───────────────────────────────────────────────────────────────────────────────────────────── */

static const char *text_of(const json_t *obj, const char *member) {
    return json_string_value(kv_json_get(obj, member));
}

static kv_status need_text(const json_t *obj, const char *member, const char *path, kv_error *err) {
    const json_t *v = kv_json_get(obj, member);
    if (json_is_string(v)) return KV_OK;
    char full[96];
    snprintf(full, sizeof full, "%.70s.%s", path, member);
    if (!v) return kv_fail_field(err, full, "'%s' is required", full);
    return kv_fail_field(err, full, "'%s' must be a string", full);
}

static kv_status optional_text(const json_t *obj, const char *member, const char *path, kv_error *err) {
    return kv_json_get(obj, member) ? need_text(obj, member, path, err) : KV_OK;
}

static kv_status need_name(const json_t *obj, const char *member, const char *path, kv_error *err) {
    kv_status st = need_text(obj, member, path, err);
    if (st != KV_OK || *text_of(obj, member)) return st;
    char full[96];
    snprintf(full, sizeof full, "%.70s.%s", path, member);
    return kv_fail_field(err, full, "'%s' must not be empty", full);
}

/* Most of a member that says something about an item and is no part of the prompt. */
#define SHORT_MAX 4096

static size_t json_size(const json_t *value) {
    return json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
}

/* Takes the member over, unless it is long. */
static void keep_short(json_t *out, const json_t *from, const char *member) {
    json_t *value = json_object_get(from, member);
    if (value && json_size(value) <= SHORT_MAX) json_object_set(out, member, value);
}

/* ── content parts ─────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_part(json_t *out, const json_t *part, bool assistant, const char *path, kv_error *err) {
    if (!json_is_object(part)) return kv_fail_field(err, path, "'%s' must be an object", path);
    kv_status st = need_text(part, "type", path, err);
    if (st != KV_OK) return st;
    const char *type = text_of(part, "type");
    if (strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0 || strcmp(type, "text") == 0) {
        st = need_text(part, "text", path, err);
        if (st != KV_OK) return st;
        json_t *text = kv_json_get(part, "text");
        json_array_append_new(
            out, assistant ? json_pack("{s:s, s:O, s:[]}", "type", "output_text", "text", text, "annotations")
                           : json_pack("{s:s, s:O}", "type", "input_text", "text", text));
        return KV_OK;
    }
    if (strcmp(type, "refusal") == 0) {
        st = need_text(part, "refusal", path, err);
        if (st == KV_OK)
            json_array_append_new(out, json_pack("{s:s, s:O}", "type", type, "refusal", kv_json_get(part, "refusal")));
        return st;
    }
    if (strcmp(type, "input_image") == 0) {
        if (!kv_json_get(part, "image_url") && kv_json_get(part, "file_id"))
            return kv_fail_field(err, path, "'%s.file_id' names an uploaded file, and this server keeps none", path);
        st = need_text(part, "image_url", path, err);
        if (st == KV_OK) st = optional_text(part, "detail", path, err);
        if (st != KV_OK) return st;
        json_t *image = json_pack("{s:s, s:O}", "type", type, "image_url", kv_json_get(part, "image_url"));
        keep_short(image, part, "detail");
        json_array_append_new(out, image);
        return KV_OK;
    }
    if (strcmp(type, "input_file") == 0 || strcmp(type, "input_audio") == 0)
        return kv_fail_field(err, path, "'%s' is of the type \"%s\", which this server does not support; send text",
                             path, type);
    return kv_fail_field(err, path,
                         "'%s' has the unknown type \"%.40s\"; known are \"input_text\", \"output_text\", \"refusal\" "
                         "and \"input_image\"",
                         path, type);
}

/* A text or parts, as a new array of parts. */
static kv_status read_content(json_t **out, const json_t *item, const char *member, bool assistant, const char *path,
                              kv_error *err) {
    char full[96];
    const json_t *content = kv_json_get(item, member), *part;
    *out = NULL;
    snprintf(full, sizeof full, "%.60s.%s", path, member);
    if (!content) return kv_fail_field(err, full, "'%s' is required", full);
    json_t *parts = json_array();
    kv_status st = KV_OK;
    if (json_is_string(content)) {
        json_t *one = json_pack("{s:s, s:O}", "type", "text", "text", content);
        st = read_part(parts, one, assistant, full, err);
        json_decref(one);
    } else if (json_is_array(content)) {
        size_t i;
        json_array_foreach(content, i, part) {
            snprintf(full, sizeof full, "%.60s.%s[%zu]", path, member, i);
            st = read_part(parts, part, assistant, full, err);
            if (st != KV_OK) break;
        }
    } else {
        st = kv_fail_field(err, full, "'%s' must be a string or an array of content parts", full);
    }
    if (st == KV_OK) *out = parts;
    else json_decref(parts);
    return st;
}

/* ── items, one kind after the other ───────────────────────────────────────────────────────────────────────────── */

typedef struct reading {
    const kv_app *app;
    const char *scope;
    json_t *out;
    json_t *found; /* id: the stored item that item_reference items of this id stand for */
    size_t n_found_bytes;
} reading;

/* `item` is a copy that may be changed. */
typedef kv_status (*item_reader)(json_t *item, const char *path, kv_error *err);

static kv_status read_message(json_t *item, const char *path, kv_error *err) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    kv_status st = need_text(item, "role", path, err);
    if (st != KV_OK) return st;
    const char *role = text_of(item, "role");
    bool known = false;
    for (size_t i = 0; i < 4; i++) known = known || strcmp(role, roles[i]) == 0;
    if (!known) {
        char full[96];
        snprintf(full, sizeof full, "%.80s.role", path);
        return kv_fail_field(err, full,
                             "'%s' is \"%.40s\"; known are \"user\", \"assistant\", \"system\" and \"developer\"", full,
                             role);
    }
    json_t *content;
    st = read_content(&content, item, "content", strcmp(role, "assistant") == 0, path, err);
    if (st != KV_OK) return st;
    json_object_set_new(item, "content", content);
    json_object_set_new(item, "type", json_string("message"));
    if (!kv_json_get(item, "status")) json_object_set_new(item, "status", json_string("completed"));
    return KV_OK;
}

static kv_status read_function_call(json_t *item, const char *path, kv_error *err) {
    kv_status st = need_name(item, "name", path, err);
    if (st == KV_OK) st = need_name(item, "call_id", path, err);
    if (st == KV_OK) st = optional_text(item, "namespace", path, err);
    if (st != KV_OK) return st;
    if (json_is_object(kv_json_get(item, "arguments"))) { /* some clients send the object itself */
        kv_buf text = {0};
        kv_json_dump(&text, kv_json_get(item, "arguments"));
        json_object_set_new(item, "arguments", kv_json_text(kv_buf_str(&text), text.len));
        kv_buf_free(&text);
    }
    return need_text(item, "arguments", path, err);
}

static kv_status read_custom_call(json_t *item, const char *path, kv_error *err) {
    kv_status st = need_name(item, "name", path, err);
    if (st == KV_OK) st = need_name(item, "call_id", path, err);
    if (st == KV_OK) st = optional_text(item, "namespace", path, err);
    return st == KV_OK ? need_text(item, "input", path, err) : st;
}

/* Of a function or a custom tool: a text stays one. */
static kv_status read_call_output(json_t *item, const char *path, kv_error *err) {
    kv_status st = need_name(item, "call_id", path, err);
    if (st != KV_OK || json_is_string(kv_json_get(item, "output"))) return st;
    json_t *parts;
    st = read_content(&parts, item, "output", false, path, err);
    if (st == KV_OK) json_object_set_new(item, "output", parts);
    return st;
}

/* Codex's older shell: the call has an `action`, and call_id may be missing beside id. */
static kv_status read_shell_call(json_t *item, const char *path, kv_error *err) {
    if (!text_of(item, "call_id") && text_of(item, "id")) json_object_set(item, "call_id", json_object_get(item, "id"));
    kv_status st = need_name(item, "call_id", path, err);
    if (st != KV_OK) return st;
    if (json_is_object(kv_json_get(item, "action"))) return KV_OK;
    char full[96];
    snprintf(full, sizeof full, "%.80s.action", path);
    return kv_fail_field(err, full, "'%s' must be an object", full);
}

static kv_status read_shell_output(json_t *item, const char *path, kv_error *err) {
    if (!text_of(item, "call_id") && text_of(item, "id")) json_object_set(item, "call_id", json_object_get(item, "id"));
    return read_call_output(item, path, err);
}

/* [{"type"?, "text"}, …] or nothing */
static kv_status read_texts(json_t *item, const char *member, const char *path, kv_error *err) {
    char full[96];
    const json_t *list = kv_json_get(item, member), *one;
    snprintf(full, sizeof full, "%.70s.%s", path, member);
    if (!list) return KV_OK;
    if (!json_is_array(list)) return kv_fail_field(err, full, "'%s' must be an array", full);
    json_t *texts = json_array();
    kv_status st = KV_OK;
    size_t i;
    json_array_foreach(list, i, one) {
        snprintf(full, sizeof full, "%.60s.%s[%zu]", path, member, i);
        st = need_text(one, "text", full, err);
        if (st != KV_OK) break;
        json_t *text = json_object();
        keep_short(text, one, "type");
        json_object_set(text, "text", kv_json_get(one, "text"));
        json_array_append_new(texts, text);
    }
    if (st == KV_OK) json_object_set(item, member, texts);
    json_decref(texts);
    return st;
}

static kv_status read_reasoning(json_t *item, const char *path, kv_error *err) {
    kv_status st = read_texts(item, "summary", path, err);
    if (st == KV_OK) st = read_texts(item, "content", path, err);
    if (st == KV_OK) st = optional_text(item, "encrypted_content", path, err);
    if (st == KV_OK && !kv_json_get(item, "summary")) json_object_set_new(item, "summary", json_array());
    return st;
}

static kv_status read_nothing(json_t *item, const char *path, kv_error *err) {
    (void)item, (void)path, (void)err;
    return KV_OK;
}

/* What is stored of an item: its type, its id, and the members named here. */
static const struct {
    const char *type, *id_prefix;
    item_reader read;
    const char *members[5];
    const char *labels[3]; /* not read by the model: kept only while they are short */
} kinds[] = {
    {"message", "msg_", read_message, {"role", "content"}, {"status", "phase"}},
    {"reasoning", "rs_", read_reasoning, {"summary", "content", "encrypted_content"}, {"status"}},
    {"function_call", "fc_", read_function_call, {"call_id", "namespace", "name", "arguments"}, {"status"}},
    {"function_call_output", "fco_", read_call_output, {"call_id", "output"}, {"status"}},
    {"custom_tool_call", "ctc_", read_custom_call, {"call_id", "namespace", "name", "input"}, {"status"}},
    {"custom_tool_call_output", "ctco_", read_call_output, {"call_id", "output"}, {"status"}},
    {"local_shell_call", "lsh_", read_shell_call, {"call_id", "action"}, {"status"}},
    {"local_shell_call_output", "lsho_", read_shell_output, {"call_id", "output"}, {"status"}},
    /* What another server's tools did. Nothing of it is text for a model: they stay in the list, and are not rendered. */
    {"web_search_call", "ws_", read_nothing, {NULL}, {"status", "action"}},
    {"image_generation_call", "ig_", read_nothing, {NULL}, {"status", "result"}},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* A new object of what is known of the item. */
static json_t *known_members(const json_t *item, size_t kind) {
    json_t *known = json_object();
    for (size_t i = 0; i < sizeof kinds->members / sizeof *kinds->members && kinds[kind].members[i]; i++) {
        json_t *value = json_object_get(item, kinds[kind].members[i]);
        if (value) json_object_set(known, kinds[kind].members[i], value);
    }
    for (size_t i = 0; i < sizeof kinds->labels / sizeof *kinds->labels && kinds[kind].labels[i]; i++)
        keep_short(known, item, kinds[kind].labels[i]);
    json_object_set_new(known, "type", json_string(kinds[kind].type));
    return known;
}

static kv_status check_id(const json_t *item, const char *path, kv_error *err) {
    const json_t *id = kv_json_get(item, "id");
    if (!json_is_string(id) || json_string_length(id) <= KV_STORED_ID_MAX) return KV_OK;
    char full[96];
    snprintf(full, sizeof full, "%.80s.id", path);
    return kv_fail_field(err, full, "'%s' has %zu bytes; at most %d are possible", full, json_string_length(id),
                         KV_STORED_ID_MAX);
}

/* The item itself is shared, however often it is referred to; what is made of all of them is not. */
static kv_status add_reference(reading *rd, const json_t *item, const char *path, kv_error *err) {
    kv_status st = need_name(item, "id", path, err);
    if (st != KV_OK) return st;
    json_t *found = json_object_get(rd->found, text_of(item, "id"));
    size_t most = (size_t)rd->app->opt->max_body_mib << 20;
    rd->n_found_bytes += json_size(found);
    if (rd->n_found_bytes <= most) {
        json_array_append(rd->out, found);
        return KV_OK;
    }
    char full[96];
    snprintf(full, sizeof full, "%.80s.id", path);
    return kv_fail_field(err, full,
                         "with '%s' the items that 'input' refers to are %zu bytes of JSON, each counted as often as "
                         "it is referred to; at most %zu are possible (--max-body): refer to fewer, or to each once",
                         full, rd->n_found_bytes, most);
}

/* NULL: it has none, and nothing that tells. */
static const char *type_of(const json_t *item) {
    const char *type = text_of(item, "type");
    if (!type && kv_json_get(item, "role")) type = "message";
    if (!type && text_of(item, "id")) type = "item_reference";
    return type;
}

static kv_status add_item(reading *rd, const json_t *item, const char *path, kv_error *err) {
    if (!json_is_object(item)) return kv_fail_field(err, path, "'%s' must be an object", path);
    kv_status st = optional_text(item, "type", path, err);
    if (st != KV_OK) return st;
    const char *type = type_of(item);
    if (!type) return need_text(item, "type", path, err);
    if (strcmp(type, "item_reference") == 0) return add_reference(rd, item, path, err);
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i].type, type) != 0) continue;
        json_t *known = known_members(item, i);
        st = check_id(item, path, err);
        if (text_of(item, "id")) json_object_set(known, "id", json_object_get(item, "id"));
        if (st == KV_OK) st = kinds[i].read(known, path, err);
        if (st == KV_OK && !text_of(known, "id")) {
            char id[64];
            kv_shape_id(id, sizeof id, kinds[i].id_prefix);
            json_object_set_new(known, "id", json_string(id));
        }
        if (st == KV_OK) json_array_append(rd->out, known);
        json_decref(known);
        return st;
    }
    return kv_fail_field(err, path,
                         "'%s' is an item of the type \"%.60s\", which this server does not know; known are messages, "
                         "reasoning, function and custom tool calls with their outputs, and item_reference",
                         path, type);
}

/* Looks up all that `input` refers to, each id once. */
static kv_status find_references(reading *rd, const json_t *input, kv_error *err) {
    const json_t *item;
    const char *missing;
    size_t i;
    json_array_foreach(input, i, item) {
        bool typed = json_is_object(item) && optional_text(item, "type", "", NULL) == KV_OK;
        const char *type = typed ? type_of(item) : NULL, *id = text_of(item, "id");
        if (type && strcmp(type, "item_reference") == 0 && id && *id && !json_object_get(rd->found, id))
            json_object_set_new(rd->found, id, json_integer((json_int_t)i));
    }
    if (json_object_size(rd->found) == 0) return KV_OK;
    kv_status st = kv_response_find_items(rd->found, &missing, rd->scope, rd->app, err);
    if (st != KV_OK && err)
        snprintf(err->field, sizeof err->field, "input[%lld].id",
                 (long long)json_integer_value(json_object_get(rd->found, missing)));
    return st;
}

static kv_status add_items(reading *rd, const json_t *input, kv_error *err) {
    char path[PATH];
    const json_t *item;
    size_t i;
    kv_status st = find_references(rd, input, err);
    if (st != KV_OK) return st;
    json_array_foreach(input, i, item) {
        snprintf(path, sizeof path, "input[%zu]", i);
        st = add_item(rd, item, path, err);
        if (st != KV_OK) break;
    }
    return st;
}

kv_status kv_response_items(json_t *out, const json_t *input, const kv_app *app, const char *scope, kv_error *err) {
    reading rd = {.app = app, .scope = scope, .out = out};
    if (!input) return KV_OK;
    if (json_is_string(input)) {
        json_t *item = json_pack("{s:s, s:O}", "role", "user", "content", input);
        kv_status st = add_item(&rd, item, "input", err);
        json_decref(item);
        return st;
    }
    if (!json_is_array(input))
        return kv_fail_field(err, "input", "'input' must be a string or an array of input items");
    if (json_array_size(input) > KV_CHAT_MAX_MESSAGES)
        return kv_fail_field(err, "input", "'input' has %zu items; at most %d are possible", json_array_size(input),
                             KV_CHAT_MAX_MESSAGES);
    rd.found = json_object();
    kv_status st = add_items(&rd, input, err);
    json_decref(rd.found);
    return st;
}

/* ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A text of a message that many items add to. */
typedef struct gathered {
    json_t *message; /* borrowed, NULL = none */
    kv_buf text;     /* owned; a member of the message from settle() on */
} gathered;

typedef struct building {
    json_t *messages, *origin;
    json_t *calls;  /* call_id: the tool's name */
    json_t *answer; /* borrowed: the assistant message that is being put together, NULL = none */
    json_int_t at;  /* index of the item in the request's input, negative before */
    gathered content, reasoning;
} building;

static json_t *add_message(building *b, json_t *message) {
    json_array_append_new(b->messages, message);
    json_array_append_new(b->origin, json_integer(b->at < 0 ? -1 : b->at));
    b->answer = NULL;
    return message;
}

static json_t *answer_of(building *b) {
    if (!b->answer) b->answer = add_message(b, json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
    return b->answer;
}

static void append(kv_buf *out, const json_t *text) {
    if (text) kv_buf_add(out, json_string_value(text), json_string_length(text));
}

static void settle(gathered *g, const char *member) {
    if (g->message) json_object_set_new(g->message, member, kv_json_text(kv_buf_str(&g->text), g->text.len));
    g->message = NULL;
    kv_buf_free(&g->text);
}

/* Appends to a text of the message, `between` in front unless it is empty. */
static void append_text(building *b, json_t *message, bool reasoning, const char *between, const json_t *text) {
    const char *member = reasoning ? "reasoning_content" : "content";
    gathered *g = reasoning ? &b->reasoning : &b->content;
    if (g->message != message) {
        settle(g, member);
        append(&g->text, json_object_get(message, member));
        g->message = message;
    }
    if (g->text.len) kv_buf_adds(&g->text, between);
    append(&g->text, text);
}

/* Parts as chat has them: a text where there is but one. */
static json_t *chat_content(const json_t *parts) {
    if (json_is_string(parts)) return json_incref((json_t *)parts);
    json_t *out = json_array(), *part;
    size_t i;
    json_array_foreach(parts, i, part) {
        if (kv_json_get(part, "text"))
            json_array_append_new(out, json_pack("{s:s, s:O}", "type", "text", "text", kv_json_get(part, "text")));
        else if (kv_json_get(part, "refusal"))
            json_array_append_new(out, json_pack("{s:s, s:O}", "type", "text", "text", kv_json_get(part, "refusal")));
        else
            json_array_append_new(out, json_pack("{s:s, s:{s:O*}}", "type", "image_url", "image_url", "url",
                                                 kv_json_get(part, "image_url")));
    }
    if (json_array_size(out) != 1 || !json_object_get(json_array_get(out, 0), "text")) return out;
    json_t *text = json_incref(json_object_get(json_array_get(out, 0), "text"));
    json_decref(out);
    return text;
}

/* Templates know one system message, at the front. */
static bool joins_system(const building *b, const json_t *content) {
    return json_array_size(b->messages) == 1 && json_is_string(content) &&
           strcmp(text_of(json_array_get(b->messages, 0), "role"), "system") == 0 &&
           json_is_string(json_object_get(json_array_get(b->messages, 0), "content"));
}

static void put_message(building *b, const json_t *item) {
    const char *role = text_of(item, "role");
    json_t *content = chat_content(kv_json_get(item, "content"));
    bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
    if (strcmp(role, "assistant") == 0) {
        json_t *part;
        size_t i;
        if (json_is_string(content)) append_text(b, answer_of(b), false, "", content);
        else
            json_array_foreach(content, i, part) if (kv_json_get(part, "text"))
                append_text(b, answer_of(b), false, "", kv_json_get(part, "text"));
    } else if (system && joins_system(b, content)) {
        append_text(b, json_array_get(b->messages, 0), false, "\n\n", content);
    } else {
        if (system && json_array_size(b->messages) == 0) role = "system";
        add_message(b, json_pack("{s:s, s:O}", "role", role, "content", content));
    }
    json_decref(content);
}

static void put_call(building *b, const json_t *item, const char *name, json_t *arguments) {
    json_t *message = answer_of(b), *calls = json_object_get(message, "tool_calls");
    kv_buf full = {0};
    kv_response_tool_name(&full, text_of(item, "namespace"), name);
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    json_object_set_new(b->calls, text_of(item, "call_id"), json_string(full.data));
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:s, s:o}}", "id", kv_json_get(item, "call_id"), "type",
                                           "function", "function", "name", full.data, "arguments", arguments));
    kv_buf_free(&full);
}

static json_t *dumped(json_t *value) {
    kv_buf text = {0};
    kv_json_dump(&text, value);
    json_t *s = kv_json_text(kv_buf_str(&text), text.len);
    kv_buf_free(&text);
    json_decref(value);
    return s;
}

static kv_status put_output(building *b, const json_t *item, kv_error *err) {
    const char *name = text_of(b->calls, text_of(item, "call_id"));
    if (!name) {
        char path[PATH];
        snprintf(path, sizeof path, "input[%lld].call_id", (long long)b->at);
        return kv_fail_field(err, b->at < 0 ? "input" : path,
                             "no tool call found for the output with the call_id '%.80s': the call must come before it",
                             text_of(item, "call_id"));
    }
    add_message(b, json_pack("{s:s, s:O, s:s, s:o}", "role", "tool", "tool_call_id", kv_json_get(item, "call_id"),
                             "name", name, "content", chat_content(kv_json_get(item, "output"))));
    return KV_OK;
}

static void join_texts(kv_buf *out, const json_t *list, const char *between) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (i) kv_buf_adds(out, between);
        append(out, kv_json_get(one, "text"));
    }
}

/* The text itself where it is there, else what of it came back. */
static void put_reasoning(building *b, const json_t *item) {
    kv_buf text = {0};
    const char *kept = text_of(item, "encrypted_content");
    size_t n = strlen(KV_RESPONSE_REASONING);
    join_texts(&text, kv_json_get(item, "content"), "");
    if (!text.len && kept && strncmp(kept, KV_RESPONSE_REASONING, n) == 0) kv_buf_adds(&text, kept + n);
    if (!text.len) join_texts(&text, kv_json_get(item, "summary"), "\n\n");
    if (text.len) {
        json_t *s = kv_json_text(text.data, text.len);
        append_text(b, answer_of(b), true, "\n\n", s);
        json_decref(s);
    }
    kv_buf_free(&text);
}

/* Has it what its kind is rendered from? What clients send was checked; what was stored may be anybody's by now. */
static bool is_complete(const json_t *item, const char *type) {
    static const struct {
        const char *type, *needs[3];
    } kinds_of[] = {{"message", {"role"}},
                    {"function_call", {"name", "call_id", "arguments"}},
                    {"custom_tool_call", {"name", "call_id", "input"}},
                    {"local_shell_call", {"call_id"}}};
    for (size_t i = 0; i < sizeof kinds_of / sizeof *kinds_of; i++)
        for (int k = 0; strcmp(kinds_of[i].type, type) == 0 && k < 3 && kinds_of[i].needs[k]; k++)
            if (!text_of(item, kinds_of[i].needs[k])) return false;
    return strcmp(type, "local_shell_call") != 0 || json_is_object(kv_json_get(item, "action"));
}

static kv_status put_item(building *b, const json_t *item, kv_error *err) {
    const char *type = text_of(item, "type");
    if (!type || !is_complete(item, type)) return KV_OK;
    if (strcmp(type, "message") == 0) {
        put_message(b, item);
    } else if (strcmp(type, "reasoning") == 0) {
        put_reasoning(b, item);
    } else if (strcmp(type, "function_call") == 0) {
        put_call(b, item, text_of(item, "name"), json_incref(kv_json_get(item, "arguments")));
    } else if (strcmp(type, "custom_tool_call") == 0) {
        put_call(b, item, text_of(item, "name"), dumped(json_pack("{s:O}", "input", kv_json_get(item, "input"))));
    } else if (strcmp(type, "local_shell_call") == 0) {
        put_call(b, item, "local_shell", dumped(json_incref(kv_json_get(item, "action"))));
    } else if (strstr(type, "_call_output")) {
        return put_output(b, item, err);
    }
    return KV_OK;
}

kv_status kv_response_messages(json_t **messages, json_t **origin, const char *instructions, const json_t *items,
                               size_t n_before, kv_error *err) {
    building b = {.messages = json_array(), .origin = json_array(), .calls = json_object(), .at = -1};
    if (instructions && *instructions)
        add_message(&b, json_pack("{s:s, s:s}", "role", "system", "content", instructions));
    const json_t *item;
    size_t i;
    kv_status st = KV_OK;
    json_array_foreach(items, i, item) {
        b.at = (json_int_t)i - (json_int_t)n_before;
        st = put_item(&b, item, err);
        if (st != KV_OK) break;
    }
    settle(&b.content, "content");
    settle(&b.reasoning, "reasoning_content");
    json_decref(b.calls);
    *messages = b.messages;
    *origin = b.origin;
    if (st == KV_OK) return st;
    json_decref(b.messages);
    json_decref(b.origin);
    *messages = *origin = NULL;
    return st;
}
