#include "api/script.h"

#include <stdlib.h>
#include <string.h>

#include "os/machine.h"

#define SCRIPT_BYTES (1u << 20) /* a test's script is a page */

struct kv_script {
    json_t *rules; /* owned array of checked objects */
};

/* ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_rule(const json_t *rule, size_t i, kv_error *err) {
    static const char *const conditions[] = {"role", "last", "prompt"};
    if (!json_is_object(rule) || !json_is_string(json_object_get(rule, "answer")))
        return kv_fail_field(err, "--test-script", "--test-script: rule %zu must be an object with a text 'answer'", i);
    size_t known = 1;
    for (size_t k = 0; k < sizeof conditions / sizeof *conditions; k++) {
        const json_t *value = json_object_get(rule, conditions[k]);
        known += value != NULL;
        if (value && !json_is_string(value))
            return kv_fail_field(err, "--test-script", "--test-script: '%s' of rule %zu must be a text", conditions[k],
                                 i);
    }
    if (json_object_size(rule) == known) return KV_OK;
    return kv_fail_field(err, "--test-script",
                         "--test-script: rule %zu has more than 'role', 'last', 'prompt' and 'answer'", i);
}

static kv_status read_rules(json_t **out, const char *path, kv_error *err) {
    kv_buf text = {0};
    *out = NULL;
    kv_status st = kv_file_read(&text, path, SCRIPT_BYTES, err);
    if (st == KV_OK) st = kv_json_parse(out, kv_buf_str(&text), text.len, err);
    kv_buf_free(&text);
    if (st != KV_OK) return st;
    if (!json_is_array(*out))
        st = kv_fail_field(err, "--test-script", "--test-script: %s is not a list of rules", path);
    for (size_t i = 0; st == KV_OK && i < json_array_size(*out); i++) st = check_rule(json_array_get(*out, i), i, err);
    if (st == KV_OK) return KV_OK;
    json_decref(*out);
    *out = NULL;
    return st;
}

kv_status kv_script_open(kv_script **out, const kv_options *opt, kv_error *err) {
    *out = NULL;
    if (!opt->test_script) return KV_OK;
    if (!opt->test_sampler)
        return kv_fail_field(err, "--test-script", "--test-script is only taken together with --test-sampler");
    json_t *rules;
    kv_status st = read_rules(&rules, opt->test_script, err);
    if (st != KV_OK) return st;
    *out = kv_alloc(sizeof **out);
    (*out)->rules = rules;
    return KV_OK;
}

void kv_script_close(kv_script *s) {
    if (!s) return;
    json_decref(s->rules);
    free(s);
}

/* ── a chat ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The text of a message, its parts one after the other. */
static void spell(kv_buf *out, const json_t *message) {
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    if (json_is_string(content)) kv_buf_adds(out, json_string_value(content));
    json_array_foreach(content, i, part) {
        const char *text = json_string_value(json_object_get(part, "text"));
        if (text) kv_buf_adds(out, text);
    }
}

static bool holds(const json_t *rule, const char *condition, const char *text) {
    const char *part = json_string_value(json_object_get(rule, condition));
    return !part || strstr(text, part);
}

static const json_t *find_rule(const kv_script *s, const char *role, const char *last, const char *prompt) {
    const json_t *rule;
    size_t i;
    json_array_foreach(s->rules, i, rule) {
        const char *wanted = json_string_value(json_object_get(rule, "role"));
        if ((!wanted || strcmp(wanted, role) == 0) && holds(rule, "last", last) && holds(rule, "prompt", prompt))
            return rule;
    }
    return NULL;
}

/* What is answered: some clients send their instructions anew behind the question. */
static const json_t *last_message(const json_t *messages) {
    const json_t *message = NULL;
    for (size_t i = json_array_size(messages); i > 0; i--) {
        message = json_array_get(messages, i - 1);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "system") != 0 && strcmp(role, "developer") != 0) return message;
    }
    return message;
}

kv_status kv_script_play(kv_params *params, const kv_app *app, const json_t *body, const kv_chat_prompt *prompt,
                         kv_error *err) {
    if (!app->script || params->sampling.play) return KV_OK;
    const json_t *last = last_message(json_object_get(body, "messages"));
    const char *role = json_string_value(json_object_get(last, "role"));
    kv_buf text = {0};
    size_t n;
    spell(&text, last);
    const json_t *rule = find_rule(app->script, role ? role : "", kv_buf_str(&text), kv_chat_prompt_text(prompt, &n));
    kv_buf_free(&text);
    if (!rule)
        return kv_fail_field(err, "messages", "no rule of --test-script fits a last message of role \"%s\"",
                             role ? role : "");
    const json_t *answer = json_object_get(rule, "answer");
    return kv_params_play(params, app->model, json_string_value(answer), json_string_length(answer), err);
}
