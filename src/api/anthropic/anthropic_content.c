/* Anthropic's `system` and `messages` as OpenAI messages. */
#include <stdio.h>
#include <string.h>

#include "api/anthropic/anthropic.h"
#include "base/hash.h"
#include "chat/media.h"

/* The conversation as it grows. */
typedef struct builder {
    kv_anthropic *a;
    kv_on_image on_image;
    json_t *messages; /* owned */
    json_t *open;     /* the last of them, while blocks of its role go on in it; borrowed, NULL = none */
    kv_path at;       /* the block that is read */
    kv_buf text;      /* owned: a text that many blocks add to, until settle() makes it a member */
    json_t *text_in;  /* the message that it is of; borrowed, NULL = none */
    const char *text_name;
} builder;

/* ── building ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Turns of one role that follow each other are one turn. */
static json_t *open_message(builder *b, const char *role) {
    if (b->open && strcmp(json_string_value(json_object_get(b->open, "role")), role) == 0) return b->open;
    b->open = json_pack("{s:s, s:[]}", "role", role, "content");
    json_array_append_new(b->messages, b->open);
    return b->open;
}

static void add_text(builder *b, const char *role, json_t *text) {
    json_t *message = open_message(b, role);
    if (json_string_length(text))
        json_array_append_new(json_object_get(message, "content"),
                              json_pack("{s:s, s:O}", "type", "text", "text", text));
}

/* Sets the member that b->text is gathered for. More may be added to it afterwards. */
static void settle(builder *b) {
    if (b->text_in) json_object_set_new(b->text_in, b->text_name, kv_json_text(kv_buf_str(&b->text), b->text.len));
}

/* Appends to the text that `message` has under `name`. */
static void append_text(builder *b, json_t *message, const char *name, const char *s, size_t n) {
    if (b->text_in != message || strcmp(b->text_name, name) != 0) {
        settle(b);
        const json_t *before = json_object_get(message, name);
        kv_buf_clear(&b->text);
        if (before) kv_buf_add(&b->text, json_string_value(before), json_string_length(before));
        b->text_in = message;
        b->text_name = name;
    }
    kv_buf_add(&b->text, s, n);
}

/* A breakpoint behind what was read. */
static kv_status add_mark(builder *b, int32_t keep, const char *at, kv_error *err) {
    settle(b);
    return kv_anthropic_add_mark(b->a, b->messages, keep, at, err);
}

static void add_line(kv_buf *text, const json_t *line) {
    if (text->len) kv_buf_adds(text, "\n");
    kv_buf_add(text, json_string_value(line), json_string_length(line));
}

void kv_anthropic_tidy(json_t *messages) {
    json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) {
        json_t *content = json_object_get(message, "content");
        if (!json_is_array(content) || json_array_size(content) > 1) continue;
        json_t *text = json_object_get(json_array_get(content, 0), "text");
        bool nothing = !text && json_object_get(message, "tool_calls");
        json_object_set_new(message, "content", text ? json_incref(text) : nothing ? json_null() : json_string(""));
    }
}

/* ── texts that stand in several places ────────────────────────────────────────────────────────────────────────── */

/* {"type":"text"} blocks as one text, a line break between them. */
static kv_status join_blocks(kv_buf *out, const json_t *blocks, const char *at, kv_error *err) {
    const json_t *block;
    size_t i;
    json_array_foreach(blocks, i, block) {
        kv_path p = kv_path_of("%.80s[%zu]", at, i);
        const char *type;
        json_t *text;
        kv_status st = kv_anthropic_type(&type, block, p.s, err);
        if (st == KV_OK && strcmp(type, "text") != 0)
            st = kv_fail_field(err, p.s, "'%s' has the type \"%.60s\"; here only \"text\" is possible", p.s, type);
        if (st == KV_OK) st = kv_anthropic_text(&text, block, "text", p.s, true, err);
        if (st != KV_OK) return st;
        add_line(out, text);
    }
    return KV_OK;
}

static kv_status refuse_source(const char *what, const char *type, const char *at, kv_error *err) {
    return kv_fail_field(err, at,
                         "'%s' is a %s with a source of the type \"%.40s\", which this server cannot read; send its "
                         "text",
                         at, what, type);
}

static kv_status document_source(kv_buf *out, const json_t *document, const char *at, kv_error *err) {
    json_t *source, *data, *content;
    const char *type;
    kv_path p = kv_path_of("%.80s.source", at);
    kv_status st = kv_anthropic_object(&source, document, "source", at, err);
    if (st != KV_OK) return st;
    if (!source) return kv_fail_field(err, p.s, "'%s' is required", p.s);
    st = kv_anthropic_type(&type, source, p.s, err);
    if (st != KV_OK) return st;
    if (strcmp(type, "text") == 0) {
        st = kv_anthropic_text(&data, source, "data", p.s, true, err);
        if (st == KV_OK) add_line(out, data);
        return st;
    }
    if (strcmp(type, "content") != 0) return refuse_source("document", type, p.s, err);
    content = kv_json_get(source, "content");
    kv_path inside = kv_path_of("%.80s.content", p.s);
    if (json_is_array(content)) return join_blocks(out, content, inside.s, err);
    if (!json_is_string(content))
        return kv_fail_field(err, inside.s, "'%s' must be a string or an array of text blocks", inside.s);
    add_line(out, content);
    return KV_OK;
}

static kv_status refuse_citations(const json_t *block, const char *at, kv_error *err) {
    const json_t *citations = kv_json_get(block, "citations");
    if (!json_is_true(json_object_get(citations, "enabled"))) return KV_OK;
    kv_path p = kv_path_of("%.80s.citations", at);
    return kv_fail_field(err, p.s, "'%s' is enabled, but this server cannot cite; leave it out", p.s);
}

/* A document or a search result: its title and what else is told about it, then its text. */
static kv_status read_document(kv_buf *out, const json_t *block, const char *type, const char *at, kv_error *err) {
    bool found = strcmp(type, "search_result") == 0;
    const char *const about[] = {"title", found ? "source" : "context"};
    kv_status st = refuse_citations(block, at, err);
    for (size_t i = 0; st == KV_OK && i < 2; i++) {
        json_t *text;
        st = kv_anthropic_text(&text, block, about[i], at, found, err);
        if (st == KV_OK && text) add_line(out, text);
    }
    if (st != KV_OK) return st;
    if (!found) return document_source(out, block, at, err);
    kv_path p = kv_path_of("%.80s.content", at);
    json_t *content = kv_json_get(block, "content");
    if (!json_is_array(content)) return kv_fail_field(err, p.s, "'%s' must be an array of text blocks", p.s);
    return join_blocks(out, content, p.s, err);
}

/* Blocks that a user's turn and a tool's result have in common. *text: a new string, NULL when it is another block. */
static kv_status read_common(json_t **text, const builder *b, const json_t *block, const char *type, const char *at,
                             kv_error *err) {
    *text = NULL;
    kv_status st = KV_OK;
    if (strcmp(type, "text") == 0) {
        st = kv_anthropic_text(text, block, "text", at, true, err);
        json_incref(*text);
    } else if (strcmp(type, "image") == 0) {
        json_t *part;
        st = kv_chat_media_part(&part, "image", at, b->on_image, err);
        if (st != KV_OK) return st;
        *text = json_incref(json_object_get(part, "text"));
        json_decref(part);
    } else if (strcmp(type, "document") == 0 || strcmp(type, "search_result") == 0) {
        kv_buf all = {0};
        st = read_document(&all, block, type, at, err);
        if (st == KV_OK) *text = kv_json_text(kv_buf_str(&all), all.len);
        kv_buf_free(&all);
    }
    return st;
}

static kv_status refuse_block(const char *type, const char *role, const char *at, kv_error *err) {
    static const char *const known[] = {"text",     "image",       "document", "search_result",
                                        "tool_use", "tool_result", "thinking", "redacted_thinking"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], type) == 0)
            return kv_fail_field(err, at,
                                 "'%s' has the type \"%s\", which cannot stand in a message of the role "
                                 "\"%.20s\"",
                                 at, type, role);
    return kv_fail_field(err, at,
                         "'%s' has the type \"%.60s\", which this server does not support: it has no server tools, "
                         "containers or files",
                         at, type);
}

/* ── a tool's result ───────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_result_block(kv_buf *out, const builder *b, const json_t *block, const char *at, kv_error *err) {
    const char *type;
    json_t *text = NULL;
    kv_status st = kv_anthropic_type(&type, block, at, err);
    if (st != KV_OK) return st;
    if (strcmp(type, "tool_reference") == 0) { /* all tools are there from the start */
        st = kv_anthropic_text(&text, block, "tool_name", at, true, err);
        json_incref(text);
    } else {
        st = read_common(&text, b, block, type, at, err);
    }
    if (st == KV_OK && !text) st = refuse_block(type, "tool", at, err);
    if (st == KV_OK) add_line(out, text);
    json_decref(text);
    return st;
}

static kv_status read_result_content(kv_buf *out, builder *b, const json_t *result, int32_t *keep, kv_error *err) {
    const json_t *content = kv_json_get(result, "content"), *block;
    size_t i;
    kv_path at = kv_path_of("%.80s.content", b->at.s);
    if (!content) return KV_OK;
    if (json_is_string(content)) {
        add_line(out, content);
        return KV_OK;
    }
    if (!json_is_array(content)) return kv_fail_field(err, at.s, "'%s' must be a string or an array of blocks", at.s);
    json_array_foreach(content, i, block) {
        kv_path p = kv_path_of("%.80s[%zu]", at.s, i);
        int32_t inside = 0;
        kv_status st = read_result_block(out, b, block, p.s, err);
        if (st == KV_OK) st = kv_anthropic_cache_control(&inside, block, p.s, err);
        if (st != KV_OK) return st;
        if (inside > *keep) *keep = inside; /* one message cannot be cut inside: its end stands for both */
    }
    return KV_OK;
}

static kv_status add_result(builder *b, const json_t *block, int32_t *keep, kv_error *err) {
    json_t *id;
    kv_buf text = {0};
    const json_t *failed = kv_json_get(block, "is_error");
    kv_status st = kv_anthropic_text(&id, block, "tool_use_id", b->at.s, true, err);
    if (st == KV_OK && failed && !json_is_boolean(failed)) {
        kv_path p = kv_path_of("%.80s.is_error", b->at.s);
        st = kv_fail_field(err, p.s, "'%s' must be a boolean", p.s);
    }
    if (st == KV_OK) st = read_result_content(&text, b, block, keep, err);
    if (st == KV_OK) {
        kv_buf told = {0};
        kv_buf_addf(&told, "%s", json_is_true(failed) ? text.len ? "Error: " : "Error" : ""); /* no template knows it */
        kv_buf_add(&told, kv_buf_str(&text), text.len);
        json_array_append_new(b->messages, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content",
                                                     kv_json_text(kv_buf_str(&told), told.len)));
        b->open = NULL;
        kv_buf_free(&told);
    }
    kv_buf_free(&text);
    return st;
}

/* ── what the assistant said ───────────────────────────────────────────────────────────────────────────────────── */

static kv_status add_call(builder *b, const json_t *block, kv_error *err) {
    json_t *id, *name, *input;
    kv_status st = kv_anthropic_text(&id, block, "id", b->at.s, true, err);
    if (st == KV_OK) st = kv_anthropic_text(&name, block, "name", b->at.s, true, err);
    if (st == KV_OK) st = kv_anthropic_object(&input, block, "input", b->at.s, err);
    if (st != KV_OK) return st;
    kv_buf arguments = {0};
    if (input) kv_json_dump(&arguments, input);
    else kv_buf_adds(&arguments, "{}");
    json_t *message = open_message(b, "assistant"), *calls = json_object_get(message, "tool_calls");
    if (!calls) json_object_set_new(message, "tool_calls", calls = json_array());
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name",
                                           name, "arguments", kv_json_text(kv_buf_str(&arguments), arguments.len)));
    kv_buf_free(&arguments);
    return KV_OK;
}

json_t *kv_anthropic_sign(const char *thinking, size_t n, bool keep) {
    char hex[33];
    kv_hash_hex(hex, kv_hash_bytes(thinking, n));
    kv_buf text = {0};
    kv_buf_addf(&text, "%s%s%s", KV_ANTHROPIC_SIGNED, hex, keep ? "." : "");
    if (keep) kv_buf_add(&text, thinking, n);
    json_t *signature = kv_json_text(kv_buf_str(&text), text.len);
    kv_buf_free(&text);
    return signature;
}

bool kv_anthropic_signed_text(kv_buf *out, const char *signature) {
    size_t n_prefix = strlen(KV_ANTHROPIC_SIGNED), n = strlen(signature);
    if (n < n_prefix + 33 || memcmp(signature, KV_ANTHROPIC_SIGNED, n_prefix) != 0) return false;
    if (signature[n_prefix + 32] != '.') return false;
    kv_buf_adds(out, signature + n_prefix + 33);
    return true;
}

/* Any signature is taken: it proves nothing here. One of ours may hold the text that was not told. */
static kv_status add_thinking(builder *b, const json_t *block, kv_error *err) {
    json_t *thinking, *signature;
    kv_status st = kv_anthropic_text(&thinking, block, "thinking", b->at.s, true, err);
    if (st == KV_OK) st = kv_anthropic_text(&signature, block, "signature", b->at.s, false, err);
    if (st != KV_OK) return st;
    json_t *message = open_message(b, "assistant");
    kv_buf kept = {0};
    if (json_string_length(thinking)) {
        append_text(b, message, "reasoning_content", json_string_value(thinking), json_string_length(thinking));
    } else if (signature && kv_anthropic_signed_text(&kept, json_string_value(signature))) {
        append_text(b, message, "reasoning_content", kv_buf_str(&kept), kept.len);
    }
    kv_buf_free(&kept);
    return KV_OK;
}

/* Another server's secret: there is nothing in it to render. */
static kv_status skip_redacted(builder *b, const json_t *block, kv_error *err) {
    json_t *data;
    kv_status st = kv_anthropic_text(&data, block, "data", b->at.s, true, err);
    if (st == KV_OK) open_message(b, "assistant");
    return st;
}

/* ── blocks and messages ───────────────────────────────────────────────────────────────────────────────────────── */

static kv_status add_assistant_block(builder *b, const json_t *block, const char *type, kv_error *err) {
    json_t *text;
    if (strcmp(type, "tool_use") == 0) return add_call(b, block, err);
    if (strcmp(type, "thinking") == 0) return add_thinking(b, block, err);
    if (strcmp(type, "redacted_thinking") == 0) return skip_redacted(b, block, err);
    if (strcmp(type, "text") != 0) return refuse_block(type, "assistant", b->at.s, err);
    kv_status st = kv_anthropic_text(&text, block, "text", b->at.s, true, err);
    if (st == KV_OK) add_text(b, "assistant", text);
    return st;
}

static kv_status add_user_block(builder *b, const json_t *block, const char *type, int32_t *keep, kv_error *err) {
    json_t *text;
    if (strcmp(type, "tool_result") == 0) return add_result(b, block, keep, err);
    kv_status st = read_common(&text, b, block, type, b->at.s, err);
    if (st == KV_OK && !text) st = refuse_block(type, "user", b->at.s, err);
    if (st == KV_OK) add_text(b, "user", text);
    json_decref(text);
    return st;
}

static kv_status add_block(builder *b, const char *role, const json_t *block, kv_error *err) {
    const char *type;
    int32_t keep = 0, inside = 0;
    kv_status st = kv_anthropic_type(&type, block, b->at.s, err);
    if (st == KV_OK) st = kv_anthropic_cache_control(&keep, block, b->at.s, err);
    if (st != KV_OK) return st;
    if (strcmp(role, "user") == 0) {
        st = add_user_block(b, block, type, &inside, err);
    } else if (strcmp(role, "assistant") == 0) {
        st = add_assistant_block(b, block, type, err);
    } else if (strcmp(type, "text") == 0) {
        json_t *text;
        st = kv_anthropic_text(&text, block, "text", b->at.s, true, err);
        if (st == KV_OK) add_text(b, role, text);
    } else {
        st = refuse_block(type, role, b->at.s, err);
    }
    if (inside > keep) keep = inside;
    return st == KV_OK && keep ? add_mark(b, keep, b->at.s, err) : st;
}

/* A role "system" among the messages stands where it stands, as in llama-server; the template decides. */
static kv_status read_role(const char **role, const json_t *message, const char *at, kv_error *err) {
    static const char *const roles[] = {"user", "assistant", "system"};
    json_t *text;
    *role = NULL;
    if (!json_is_object(message)) return kv_fail_field(err, at, "'%s' must be an object", at);
    kv_status st = kv_anthropic_text(&text, message, "role", at, true, err);
    for (size_t i = 0; st == KV_OK && i < 3; i++)
        if (strcmp(json_string_value(text), roles[i]) == 0) *role = roles[i];
    if (st != KV_OK || *role) return st;
    kv_path p = kv_path_of("%.80s.role", at);
    return kv_fail_field(err, p.s, "'%s' must be \"user\", \"assistant\" or \"system\"", p.s);
}

static kv_status add_message(builder *b, const json_t *message, const char *at, kv_error *err) {
    const char *role;
    int32_t keep = 0;
    kv_status st = read_role(&role, message, at, err);
    if (st == KV_OK) st = kv_anthropic_cache_control(&keep, message, at, err);
    if (st != KV_OK || !role) return st; /* with KV_OK there is one, which clang-tidy cannot know */
    const json_t *content = kv_json_get(message, "content"), *block;
    kv_path p = kv_path_of("%.80s.content", at);
    size_t i;
    if (!content) return kv_fail_field(err, p.s, "'%s' is required", p.s);
    if (strcmp(role, "system") == 0) b->open = NULL;
    if (json_is_string(content)) {
        add_text(b, role, (json_t *)content);
    } else if (json_is_array(content)) {
        if (json_array_size(content) == 0) open_message(b, role);
        json_array_foreach(content, i, block) {
            b->at = kv_path_of("%.80s[%zu]", p.s, i);
            st = add_block(b, role, block, err);
            if (st != KV_OK) return st;
        }
    } else {
        return kv_fail_field(err, p.s, "'%s' must be a string or an array of content blocks", p.s);
    }
    return keep ? add_mark(b, keep, at, err) : KV_OK;
}

/* ── system ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_system(builder *b, const json_t *text) {
    json_t *message = json_array_get(b->messages, 0);
    if (message) append_text(b, message, "content", "\n", 1);
    else json_array_append_new(b->messages, message = json_pack("{s:s}", "role", "system"));
    append_text(b, message, "content", json_string_value(text), json_string_length(text));
}

static kv_status add_system_blocks(builder *b, const json_t *blocks, kv_error *err) {
    const json_t *block;
    size_t i;
    json_array_foreach(blocks, i, block) {
        kv_path p = kv_path_of("system[%zu]", i);
        const char *type;
        json_t *text;
        int32_t keep = 0;
        kv_status st = kv_anthropic_type(&type, block, p.s, err);
        if (st == KV_OK && strcmp(type, "text") != 0)
            st = kv_fail_field(err, p.s, "'%s' has the type \"%.60s\"; here only \"text\" is possible", p.s, type);
        if (st == KV_OK) st = kv_anthropic_text(&text, block, "text", p.s, true, err);
        if (st == KV_OK) st = kv_anthropic_cache_control(&keep, block, p.s, err);
        if (st != KV_OK) return st;
        if (json_string_length(text)) add_system(b, text);
        bool last = i + 1 == json_array_size(blocks);
        if (keep) st = last ? kv_anthropic_add_mark(b->a, NULL, keep, p.s, err) : add_mark(b, keep, p.s, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static kv_status read_system(builder *b, const json_t *body, kv_error *err) {
    const json_t *system = kv_json_get(body, "system");
    kv_status st = KV_OK;
    if (json_is_array(system)) st = add_system_blocks(b, system, err);
    else if (json_is_string(system)) {
        if (json_string_length(system)) add_system(b, system);
    } else if (system) {
        return kv_fail_field(err, "system", "'system' must be a string or an array of text blocks");
    }
    b->a->has_system = json_array_size(b->messages) > 0;
    return st;
}

/* ── all of it ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_messages(builder *b, const json_t *body, kv_error *err) {
    json_t *messages, *message;
    size_t i;
    kv_status st = kv_anthropic_array(&messages, body, "messages", "", err);
    if (st != KV_OK) return st;
    if (!messages) return kv_fail_field(err, "messages", "'messages' is required");
    if (json_array_size(messages) == 0)
        return kv_fail_field(err, "messages", "'messages' must have at least one message");
    if (json_array_size(messages) > KV_ANTHROPIC_MESSAGES_MAX)
        return kv_fail_field(err, "messages", "'messages' has %zu messages; at most %d are possible",
                             json_array_size(messages), KV_ANTHROPIC_MESSAGES_MAX);
    json_array_foreach(messages, i, message) {
        kv_path p = kv_path_of("messages[%zu]", i);
        st = add_message(b, message, p.s, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

kv_status kv_anthropic_messages(json_t **out, kv_anthropic *a, const json_t *body, const kv_app *app, kv_error *err) {
    *out = NULL;
    builder b = {.a = a, .on_image = kv_chat_on_image(app->opt->on_image), .messages = json_array()};
    int32_t keep = 0;
    kv_status st = read_system(&b, body, err);
    if (st == KV_OK) st = read_messages(&b, body, err);
    if (st == KV_OK) st = kv_anthropic_cache_control(&keep, body, "", err);
    if (st == KV_OK && keep) st = add_mark(&b, keep, "cache_control", err);
    settle(&b);
    kv_buf_free(&b.text);
    if (st != KV_OK) {
        json_decref(b.messages);
        return st;
    }
    kv_anthropic_tidy(b.messages);
    *out = b.messages;
    return KV_OK;
}
