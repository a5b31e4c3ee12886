#include "api/chat_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/places.h"
#include "api/scope.h"
#include "api/script.h"
#include "api/spell.h"
#include "chat/canonical.h"
#include "chat/forced.h"
#include "chat/messages.h"

/* What was read of the body, and the texts that the renderer's parameters point to. */
typedef struct reading {
    json_t *messages, *tools, *kwargs; /* owned */
    json_t *shown;                     /* owned: all tools, when `tools` are fewer; else NULL */
    const char *tool_choice;           /* static */
    bool parallel, generation_prompt, continue_final;
    int thinking; /* 0, 1, -1 = the template's default */
} reading;

static void free_reading(reading *r) {
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->shown);
    json_decref(r->kwargs);
}

/* ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool template_calls_in_parallel(const kv_model *model) {
    kv_buf text = {0};
    json_t *caps = NULL;
    bool yes = false;
    if (kv_chat_caps(&text, model, NULL) == KV_OK && kv_json_parse(&caps, kv_buf_str(&text), text.len, NULL) == KV_OK)
        yes = json_is_true(json_object_get(caps, "supports_parallel_tool_calls"));
    json_decref(caps);
    kv_buf_free(&text);
    return yes;
}

static kv_status read_tools(reading *r, const json_t *body, kv_params *params, const kv_app *app, kv_error *err) {
    kv_status st = kv_chat_check_tools(&r->tools, json_object_get(body, "tools"), err);
    params->canonicalised |= kv_spell_tools(params->spell, r->tools);
    json_t *all = r->tools ? json_copy(r->tools) : NULL;
    if (st == KV_OK)
        st = kv_chat_check_tool_choice(&r->tool_choice, r->tools, json_object_get(body, "tool_choice"), err);
    if (json_array_size(all) > json_array_size(r->tools)) r->shown = all;
    else json_decref(all);
    if (st == KV_OK) st = kv_json_bool(&r->parallel, body, "parallel_tool_calls", err);
    if (st != KV_OK || !r->tools) return st;
    if (!kv_json_get(body, "parallel_tool_calls")) r->parallel = template_calls_in_parallel(app->model);
    bool used = !r->tool_choice || strcmp(r->tool_choice, "none") != 0;
    const char *grammar = json_string_value(kv_json_get(body, "grammar"));
    if (used && grammar && *grammar)
        return kv_fail_field(err, "grammar", "'grammar' cannot be used together with 'tools'");
    return KV_OK;
}

/* ── template arguments ────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_kwargs(reading *r, const json_t *body, const kv_app *app, kv_error *err) {
    const kv_options *opt = app->opt;
    const char *given = opt->chat_template_kwargs;
    if (given && *given && kv_json_parse(&r->kwargs, given, strlen(given), NULL) == KV_OK &&
        !json_is_object(r->kwargs)) {
        json_decref(r->kwargs);
        r->kwargs = NULL;
    }
    if (!r->kwargs) r->kwargs = json_object();
    json_t *kwargs = kv_json_get(body, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs))
        return kv_fail_field(err, "chat_template_kwargs", "'chat_template_kwargs' must be an object");
    if (kwargs) json_object_update(r->kwargs, kwargs);

    r->thinking = opt->reasoning;
    const json_t *thinking = json_object_get(r->kwargs, "enable_thinking");
    if (json_is_boolean(thinking)) r->thinking = json_is_true(thinking);
    else if (json_is_string(thinking))
        return kv_fail_field(err, "chat_template_kwargs.enable_thinking",
                             "'chat_template_kwargs.enable_thinking' must be a boolean, not a string");

    const char *effort = NULL;
    kv_status st = kv_json_str(&effort, body, "reasoning_effort", err);
    if (st != KV_OK || !effort || !*effort) return st;
    if (strcmp(effort, "none") == 0) {
        r->thinking = 0;
        json_object_del(r->kwargs, "reasoning_effort");
    } else {
        json_object_set_new(r->kwargs, "reasoning_effort", json_string(effort));
    }
    return KV_OK;
}

/* ── the last message ──────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_assistant(const json_t *message) {
    return message && strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

/* true, or which part is continued; the renderer finds the part by itself. */
static kv_status read_continue(bool *out, const json_t *body, kv_error *err) {
    const json_t *v = kv_json_get(body, "continue_final_message");
    const char *word = json_string_value(v);
    if (word && (strcmp(word, "content") == 0 || strcmp(word, "reasoning_content") == 0)) *out = true;
    else if (v && !json_is_boolean(v))
        return kv_fail_field(err, "continue_final_message", "'continue_final_message' must be a boolean");
    else *out = json_is_true(v);
    return KV_OK;
}

/* An assistant message at the end is the beginning of the answer (llama-server's --prefill-assistant). */
static kv_status read_ending(reading *r, const json_t *body, kv_error *err) {
    r->generation_prompt = true;
    kv_status st = kv_json_bool(&r->generation_prompt, body, "add_generation_prompt", err);
    if (st == KV_OK) st = read_continue(&r->continue_final, body, err);
    if (st != KV_OK) return st;
    size_t n = json_array_size(r->messages);
    const json_t *last = json_array_get(r->messages, n - 1);
    if (!r->continue_final && is_assistant(last)) {
        if (n >= 2 && is_assistant(json_array_get(r->messages, n - 2)))
            return kv_fail_field(err, "messages", "'messages' must not end with two messages of the assistant");
        r->continue_final = true;
        r->generation_prompt = false;
    }
    if (!r->continue_final) return KV_OK;
    if (r->generation_prompt)
        return kv_fail_field(err, "continue_final_message",
                             "'continue_final_message' and 'add_generation_prompt' cannot both be true");
    if (is_assistant(last) && json_object_get(last, "tool_calls"))
        return kv_fail_field(err, "messages",
                             "'messages' ends with tool calls of the assistant, which cannot be continued");
    return KV_OK;
}

kv_rules kv_app_rules(const kv_app *app) {
    return kv_canonical_rules(app->opt->canonicalise.item, app->opt->canonicalise.n, app->opt->exact);
}

/* ── rendering ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static char *dump(const json_t *value) {
    if (!value) return NULL;
    kv_buf text = {0};
    kv_json_dump(&text, value);
    return kv_buf_take(&text);
}

/* The renderer's errors do not say which field it was; a schema that does not convert is found by converting it. */
static void blame(kv_error *err, const kv_params *params, const json_t *body) {
    if (!err || err->field[0] || err->status != KV_INVALID) return;
    const char *field = "messages";
    kv_buf gbnf = {0};
    if (params->json_schema && kv_schema_to_grammar(&gbnf, params->json_schema, NULL) != KV_OK)
        field = kv_json_get(body, "response_format") ? "response_format" : "json_schema";
    kv_buf_free(&gbnf);
    snprintf(err->field, sizeof err->field, "%s", field);
}

static kv_status render(kv_chat_prompt **out, const reading *r, const kv_params *params, const kv_app *app,
                        kv_error *err) {
    char *messages = dump(r->messages), *tools = dump(r->tools), *kwargs = dump(r->kwargs), *shown = dump(r->shown);
    bool tool_grammar = r->tools && (!r->tool_choice || strcmp(r->tool_choice, "none") != 0);
    kv_chat_params cp = {
        .messages_json = messages,
        .tools_json = tools,
        .shown_tools_json = shown,
        .tool_choice = r->tool_choice,
        .json_schema = params->json_schema,
        .grammar = tool_grammar ? NULL : params->grammar, /* a default one steps back before tools */
        .kwargs_json = kwargs,
        .reasoning_format = params->reasoning_format,
        .enable_thinking = r->thinking,
        .parallel_tool_calls = r->parallel,
        .add_generation_prompt = r->generation_prompt,
        .continue_final_message = r->continue_final,
        .now_seconds = kv_wall_seconds(),
    };
    kv_status st = kv_chat_render(out, app->model, &cp, err);
    free(messages);
    free(tools);
    free(kwargs);
    free(shown);
    return st;
}

/* A call is required, but nothing would hold the answer to it: the template knows no tools. */
static bool must_force(const reading *r, const kv_chat_prompt *prompt) {
    bool required = r->tools && r->tool_choice && strcmp(r->tool_choice, "required") == 0;
    return required && !kv_chat_prompt_binds(prompt);
}

static kv_status render_forced(kv_chat_prompt **out, reading *r, kv_params *params, const kv_app *app, kv_error *err) {
    json_t *schema, *messages;
    if (params->json_schema)
        return kv_fail_field(err, "response_format",
                             "'response_format' cannot be used together with a required tool call on this model, whose "
                             "chat template knows no tools");
    kv_status st = kv_chat_forced_schema(&schema, r->tools, err);
    if (st != KV_OK) return st;
    params->json_schema = dump(schema);
    params->forced_call = true;
    json_decref(schema);
    kv_chat_forced_messages(&messages, r->messages, r->shown ? r->shown : r->tools);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->shown);
    r->messages = messages;
    r->tools = r->shown = NULL;
    r->tool_choice = NULL;
    return render(out, r, params, app, err);
}

kv_status kv_chat_body_render(kv_chat_prompt **out, const json_t *body, kv_params *params, const kv_app *app,
                              kv_error *err) {
    *out = NULL;
    reading r = {0};
    kv_status st = kv_chat_check_messages(&r.messages, json_object_get(body, "messages"),
                                          kv_chat_on_image(app->opt->on_image), err);
    if (st == KV_OK) params->canonicalised = kv_canonical_messages(r.messages, kv_app_rules(app));
    if (st == KV_OK) params->canonicalised |= kv_spell_messages(params->spell, r.messages);
    if (st == KV_OK) st = read_tools(&r, body, params, app, err);
    if (st == KV_OK) st = read_kwargs(&r, body, app, err);
    if (st == KV_OK) st = read_ending(&r, body, err);
    if (st == KV_OK) kv_spell_expect(params->spell, r.messages, r.kwargs, r.thinking, r.continue_final);
    if (st == KV_OK) {
        st = render(out, &r, params, app, err);
        if (st == KV_OK && must_force(&r, *out)) {
            kv_chat_prompt_free(*out);
            *out = NULL;
            st = render_forced(out, &r, params, app, err);
        }
        if (st != KV_OK) blame(err, params, body);
    }
    if (st == KV_OK) {
        params->messages = json_incref(r.messages);
        params->tools = json_incref(r.shown ? r.shown : r.tools);
    }
    free_reading(&r);
    if (st != KV_OK) return st;
    if (!kv_chat_prompt_thinks(*out)) params->sampling.reasoning_budget = -1;
    /* The sampler takes the grammar from the prompt: it knows the template's own syntax around it. */
    params->sampling.grammar = NULL;
    params->sampling.grammar_type = KV_GRAMMAR_NONE;
    return KV_OK;
}

/* What the request's scope has spelled before. */
static kv_status open_spell(kv_params *params, const kv_http_request *req, const kv_app *app, kv_error *err) {
    char *scope = NULL;
    if (!params->cache_prompt) return KV_OK;
    kv_status st = KV_OK;
    if (req) st = kv_scope_of(&scope, req, params->cache_salt, err);
    else scope = kv_scope_join(NULL, NULL, params->cache_salt);
    if (st == KV_OK) params->spell = kv_spell_new(app, scope);
    free(scope);
    return st;
}

kv_status kv_chat_body_read(kv_params *params, kv_chat_prompt **prompt, const json_t *body, const kv_http_request *req,
                            const kv_app *app, kv_error *err) {
    *params = (kv_params){0};
    *prompt = NULL;
    kv_status st = kv_params_check_body(body, app, err);
    if (st == KV_OK) st = kv_params_parse(params, body, KV_API_CHAT, app, err);
    if (st == KV_OK) st = open_spell(params, req, app, err);
    if (st == KV_OK) st = kv_chat_body_render(prompt, body, params, app, err);
    if (st != KV_OK) kv_params_free(params);
    return st;
}

/* What the template made of the conversation, in tokens. */
static kv_status tokenize(kv_prompts *out, const kv_chat_prompt *prompt, const kv_app *app, kv_error *err) {
    size_t n;
    const char *text = kv_chat_prompt_text(prompt, &n);
    return kv_prompts_from_text(out, app->model, text, n, err);
}

kv_status kv_chat_job_new(kv_job **out, const kv_dialect *dialect, const json_t *body, const kv_http_request *req,
                          const kv_app *app, kv_error *err) {
    *out = NULL;
    kv_job *j = kv_job_new(app, dialect);
    kv_status st = kv_chat_body_read(&j->params, &j->chat, body, req, app, err);
    if (st == KV_OK) st = tokenize(&j->prompts, j->chat, app, err);
    if (st == KV_OK) st = kv_script_play(&j->params, app, body, j->chat, err);
    if (st == KV_OK) kv_places_add_turns(j);
    if (st == KV_OK) *out = j;
    else kv_job_free(j);
    return st;
}

kv_status kv_chat_count_tokens(size_t *n_tokens, const json_t *body, const kv_http_request *req, const kv_app *app,
                               kv_error *err) {
    *n_tokens = 0;
    kv_params params;
    kv_chat_prompt *prompt;
    kv_status st = kv_chat_body_read(&params, &prompt, body, req, app, err);
    if (st != KV_OK) return st;
    kv_prompts prompts = {0};
    st = tokenize(&prompts, prompt, app, err);
    if (st == KV_OK) *n_tokens = prompts.list[0].len;
    kv_prompts_free(&prompts);
    kv_chat_prompt_free(prompt);
    kv_params_free(&params);
    return st;
}
