#include "api/prompt.h"

#include <stdio.h>
#include <stdlib.h>

static kv_status wrong_kind(const char *field, kv_error *err) {
    return kv_fail_field(
        err, field, "'%s' must be a text, an array of token ids and texts, or an object with 'prompt_string'", field);
}

static kv_status add_text(kv_tokens *out, const kv_model *model, const json_t *text, bool add_special,
                          bool parse_special, kv_error *err) {
    return kv_model_tokenize(out, model, json_string_value(text), json_string_length(text), add_special, parse_special,
                             err);
}

kv_status kv_prompt_mixed(kv_tokens *out, const kv_model *model, const json_t *value, const char *field,
                          bool add_special, bool parse_special, kv_error *err) {
    if (json_is_string(value)) return add_text(out, model, value, add_special, parse_special, err);
    if (!json_is_array(value)) return wrong_kind(field, err);
    int64_t n_vocab = kv_model_get_info(model)->n_vocab;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        kv_status st = KV_OK;
        int64_t id;
        if (json_is_string(item)) {
            st = add_text(out, model, item, add_special && i == 0, parse_special, err);
        } else if (kv_json_as_int(&id, item, 0, n_vocab - 1)) {
            kv_tokens_add(out, (kv_token)id);
        } else {
            char path[96];
            snprintf(path, sizeof path, "%s[%zu]", field, i);
            if (!json_is_number(item)) return kv_fail_field(err, path, "'%s' must be a token id or a text", path);
            return kv_fail_field(err, path, "'%s' is not a token of this vocabulary (0 to %lld)", path,
                                 (long long)n_vocab - 1);
        }
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static kv_status add_prompt(kv_prompts *out, const kv_model *model, const json_t *value, const char *field,
                            kv_error *err) {
    char path[96];
    snprintf(path, sizeof path, "%.60s", field);
    if (json_is_object(value)) {
        if (kv_json_get(value, "multimodal_data")) {
            snprintf(path, sizeof path, "%.60s.multimodal_data", field);
            return kv_fail_field(err, path, "'%s' is not supported; send text", path);
        }
        value = kv_json_get(value, "prompt_string");
        if (!value) return wrong_kind(field, err);
        snprintf(path, sizeof path, "%.60s.prompt_string", field);
    }
    out->is_given[out->n] = json_is_array(value);
    kv_tokens *tokens = &out->list[out->n++];
    kv_status st = kv_prompt_mixed(tokens, model, value, path, true, true, err);
    if (st == KV_OK && tokens->len == 0) st = kv_fail_field(err, path, "'%s' must not be empty", path);
    return st;
}

static bool is_batch(const json_t *prompt) {
    if (!json_is_array(prompt)) return false;
    for (size_t i = 0; i < json_array_size(prompt); i++)
        if (json_is_number(json_array_get(prompt, i))) return false;
    return true;
}

kv_status kv_prompts_parse_field(kv_prompts *out, const kv_model *model, const json_t *value, const char *field,
                                 size_t n_max, kv_error *err) {
    *out = (kv_prompts){0};
    if (!value || json_is_null(value)) return kv_fail_field(err, field, "'%s' is required", field);
    bool batch = is_batch(value);
    size_t n = batch ? json_array_size(value) : 1;
    if (n == 0) return kv_fail_field(err, field, "'%s' must not be empty", field);
    if (n > n_max)
        return kv_fail_field(err, field, "'%s' holds %zu prompts and must not hold more than %zu", field, n, n_max);
    out->list = kv_alloc(n * sizeof *out->list);
    out->is_given = kv_alloc(n * sizeof *out->is_given);
    kv_status st = KV_OK;
    for (size_t i = 0; st == KV_OK && i < n; i++) {
        char path[64];
        if (batch) snprintf(path, sizeof path, "%.32s[%zu]", field, i);
        else snprintf(path, sizeof path, "%.32s", field);
        st = add_prompt(out, model, batch ? json_array_get(value, i) : value, path, err);
    }
    if (st != KV_OK) kv_prompts_free(out);
    return st;
}

kv_status kv_prompts_parse(kv_prompts *out, const kv_model *model, const json_t *prompt, kv_error *err) {
    return kv_prompts_parse_field(out, model, prompt, "prompt", KV_PROMPTS_MAX, err);
}

kv_status kv_prompts_from_text(kv_prompts *out, const kv_model *model, const char *text, size_t n, kv_error *err) {
    *out = (kv_prompts){.list = kv_alloc(sizeof *out->list), .n = 1};
    kv_status st = kv_model_tokenize(out->list, model, text, n, true, true, err);
    if (st != KV_OK) kv_prompts_free(out);
    return st;
}

void kv_prompts_free(kv_prompts *p) {
    for (int i = 0; i < p->n; i++) kv_tokens_free(&p->list[i]);
    free(p->list);
    free(p->is_given);
    *p = (kv_prompts){0};
}

void kv_prompt_spell(kv_buf *out, const kv_model *model, const kv_token *tokens, size_t n, bool special) {
    for (size_t i = 0; i < n; i++) kv_model_piece(out, model, tokens[i], special);
}
