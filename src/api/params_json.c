/* The parameters of a generation as llama-server shows them ("generation_settings"). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/params.h"

/* A float as the shortest decimal that reads back as the same float: 0.8, not 0.800000011920929. */
static json_t *number(float f) {
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f) break;
    }
    return json_real(strtod(text, NULL));
}

static json_t *texts(const char *const *list, int n) {
    json_t *out = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(out, kv_json_text0(list[i]));
    return out;
}

static void add_sampling(json_t *o, const kv_sampling *s) {
    json_object_set_new(o, "seed", json_integer(s->seed));
    const struct {
        const char *name;
        float value;
    } floats[] = {
        {"temperature", s->temperature},
        {"dynatemp_range", s->dynatemp_range},
        {"dynatemp_exponent", s->dynatemp_exponent},
        {"top_p", s->top_p},
        {"min_p", s->min_p},
        {"top_n_sigma", s->top_n_sigma},
        {"xtc_probability", s->xtc_probability},
        {"xtc_threshold", s->xtc_threshold},
        {"typical_p", s->typical_p},
        {"repeat_penalty", s->repeat_penalty},
        {"presence_penalty", s->presence_penalty},
        {"frequency_penalty", s->frequency_penalty},
        {"dry_multiplier", s->dry_multiplier},
        {"dry_base", s->dry_base},
        {"mirostat_tau", s->mirostat_tau},
        {"mirostat_eta", s->mirostat_eta},
        {"adaptive_target", s->adaptive_target},
        {"adaptive_decay", s->adaptive_decay},
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        json_object_set_new(o, floats[i].name, number(floats[i].value));
    const struct {
        const char *name;
        int32_t value;
    } ints[] = {
        {"top_k", s->top_k},
        {"repeat_last_n", s->repeat_last_n},
        {"dry_allowed_length", s->dry_allowed_length},
        {"dry_penalty_last_n", s->dry_penalty_last_n},
        {"mirostat", s->mirostat},
        {"min_keep", s->min_keep},
    };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        json_object_set_new(o, ints[i].name, json_integer(ints[i].value));
}

static json_t *sampler_list(const kv_sampling *s) {
    /* the engine's own order when nobody gives one */
    static const char *const defaults[] = {"penalties", "dry",   "top_n_sigma", "top_k",      "typ_p",
                                           "top_p",     "min_p", "xtc",         "temperature"};
    if (s->samplers) return texts(s->samplers, s->n_samplers);
    return texts(defaults, sizeof defaults / sizeof *defaults);
}

/* The request's own, then the tokens that ignore_eos bans. */
static json_t *bias_list(const kv_sampling *s, const kv_model *model) {
    json_t *out = json_array();
    for (int i = 0; i < s->n_logit_bias; i++) {
        float bias = s->logit_bias[i].bias;
        json_array_append_new(out, json_pack("{s:o, s:i}", "bias", isinf(bias) ? json_null() : number(bias), "token",
                                             (int)s->logit_bias[i].token));
    }
    const int32_t n_vocab = s->ignore_eos ? kv_model_get_info(model)->n_vocab : 0;
    for (kv_token t = 0; t < n_vocab; t++)
        if (kv_model_is_eog(model, t)) json_array_append_new(out, json_pack("{s:n, s:i}", "bias", "token", (int)t));
    return out;
}

static void add_lists(json_t *o, const kv_params *p, const kv_model *model) {
    static const char *const breakers[] = {"\n", ":", "\"", "*"};
    const kv_sampling *s = &p->sampling;
    json_object_set_new(o, "dry_sequence_breakers",
                        s->dry_breakers ? texts(s->dry_breakers, s->n_dry_breakers) : texts(breakers, 4));
    json_object_set_new(o, "stop", texts((const char *const *)p->stops, p->n_stops));
    json_object_set_new(o, "logit_bias", bias_list(s, model));
    json_object_set_new(o, "grammar", kv_json_text0(p->grammar));
    json_object_set_new(o, "grammar_lazy", json_false());
    json_object_set_new(o, "grammar_triggers", json_array());
    json_object_set_new(o, "preserved_tokens", json_array());
}

json_t *kv_params_json(const kv_params *p, const kv_model *model, bool brief) {
    json_t *o = json_object();
    add_sampling(o, &p->sampling);
    json_object_set_new(o, "max_tokens", json_integer(p->n_predict));
    json_object_set_new(o, "n_predict", json_integer(p->n_predict));
    json_object_set_new(o, "n_keep", json_integer(p->n_keep));
    json_object_set_new(o, "n_discard", json_integer(p->n_discard));
    json_object_set_new(o, "ignore_eos", json_boolean(p->sampling.ignore_eos));
    json_object_set_new(o, "stream", json_boolean(p->stream));
    json_object_set_new(o, "n_probs", json_integer(p->n_probs));
    if (!brief) add_lists(o, p, model);
    json_object_set_new(o, "chat_format", json_string("Content-only"));
    json_object_set_new(o, "reasoning_format", json_string(p->reasoning_format));
    json_object_set_new(o, "reasoning_in_content",
                        json_boolean(p->stream && strcmp(p->reasoning_format, "deepseek-legacy") == 0));
    json_object_set_new(o, "generation_prompt", json_string(""));
    json_object_set_new(o, "samplers", sampler_list(&p->sampling));
    json_object_set_new(o, "speculative.types", json_string("none"));
    json_object_set_new(o, "timings_per_token", json_boolean(p->timings_per_token));
    json_object_set_new(o, "post_sampling_probs", json_boolean(p->post_sampling_probs));
    json_object_set_new(o, "backend_sampling", json_false());
    json_object_set_new(o, "lora", json_array());
    return o;
}
