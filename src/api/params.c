#include "api/params.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/endpoints.h"
#include "api/native/lora.h"
#include "api/params_fields.h"
#include "api/spell.h"

#define ALL    (KV_API_NATIVE | KV_API_COMPLETIONS | KV_API_CHAT)
#define OPENAI (KV_API_COMPLETIONS | KV_API_CHAT)

typedef enum kind { BOOL, INT, LONG, FLOAT, READER } kind;

typedef enum limit { CLAMP, REFUSE } limit; /* what happens outside [min, max] */

typedef struct field {
    const char *names[4]; /* the first that is there and not null counts */
    unsigned apis;
    kind kind;
    size_t offset; /* in kv_params, unless READER */
    limit limit;
    double min, max;
    kv_field_reader reader;
} field;

#define AT(member) offsetof(kv_params, member)
#define FLAG(api, member, ...)                                                                                         \
    { {__VA_ARGS__}, api, BOOL, AT(member), CLAMP, 0, 0, NULL }
#define NUMBER(kind, api, member, limit, min, max, ...)                                                                \
    { {__VA_ARGS__}, api, kind, AT(member), limit, min, max, NULL }
#define FREE(member, name)                                                                                             \
    { {name}, ALL, FLOAT, AT(sampling.member), CLAMP, -FLT_MAX, FLT_MAX, NULL }
#define READ(api, reader, ...)                                                                                         \
    { {__VA_ARGS__}, api, READER, 0, CLAMP, 0, 0, reader }

/* Limits and aliases are llama-server's (tools/server/server-schema.cpp of the pinned release). */
static const field fields[] = {
    FLAG(ALL, stream, "stream"),
    FLAG(ALL, timings_per_token, "timings_per_token"),
    FLAG(ALL, cache_prompt, "cache_prompt"),
    FLAG(ALL, return_tokens, "return_tokens"),
    FLAG(ALL, return_progress, "return_progress"),
    FLAG(ALL, post_sampling_probs, "post_sampling_probs"),
    FLAG(KV_API_COMPLETIONS, echo, "echo"),
    FLAG(ALL, sampling.ignore_eos, "ignore_eos"),
    NUMBER(INT, ALL, sse_ping_interval, REFUSE, -1, INT32_MAX, "sse_ping_interval"),
    READ(ALL, kv_field_n_predict, "n_predict", "max_completion_tokens", "max_tokens"),
    NUMBER(INT, ALL, n_indent, REFUSE, 0, INT32_MAX, "n_indent"),
    NUMBER(INT, ALL, n_keep, REFUSE, -1, INT32_MAX, "n_keep"),
    NUMBER(INT, ALL, n_discard, REFUSE, 0, INT32_MAX, "n_discard"),
    NUMBER(INT, ALL, n_cache_reuse, REFUSE, 0, INT32_MAX, "n_cache_reuse"),
    NUMBER(LONG, ALL, t_max_predict_ms, REFUSE, -1, 0x1p53, "t_max_predict_ms"),
    NUMBER(INT, ALL, sampling.top_k, CLAMP, 0, INT32_MAX, "top_k"),
    NUMBER(FLOAT, ALL, sampling.top_p, CLAMP, 0, 1, "top_p"),
    NUMBER(FLOAT, ALL, sampling.min_p, CLAMP, 0, 1, "min_p"),
    FREE(top_n_sigma, "top_n_sigma"),
    NUMBER(FLOAT, ALL, sampling.xtc_probability, CLAMP, 0, 1, "xtc_probability"),
    NUMBER(FLOAT, ALL, sampling.xtc_threshold, CLAMP, 0, 1, "xtc_threshold"),
    FREE(typical_p, "typical_p"),
    NUMBER(FLOAT, ALL, sampling.temperature, CLAMP, 0, FLT_MAX, "temperature"),
    FREE(dynatemp_range, "dynatemp_range"),
    FREE(dynatemp_exponent, "dynatemp_exponent"),
    NUMBER(INT, ALL, sampling.repeat_last_n, REFUSE, 0, INT32_MAX, "repeat_last_n"),
    FREE(repeat_penalty, "repeat_penalty"),
    FREE(frequency_penalty, "frequency_penalty"),
    FREE(presence_penalty, "presence_penalty"),
    FREE(dry_multiplier, "dry_multiplier"),
    READ(ALL, kv_field_dry_base, "dry_base"),
    NUMBER(INT, ALL, sampling.dry_allowed_length, REFUSE, 0, INT32_MAX, "dry_allowed_length"),
    NUMBER(INT, ALL, sampling.dry_penalty_last_n, REFUSE, 0, INT32_MAX, "dry_penalty_last_n"),
    READ(ALL, kv_field_breakers, "dry_sequence_breakers"),
    NUMBER(INT, ALL, sampling.mirostat, CLAMP, 0, 2, "mirostat"),
    FREE(mirostat_tau, "mirostat_tau"),
    FREE(mirostat_eta, "mirostat_eta"),
    NUMBER(FLOAT, ALL, sampling.adaptive_target, CLAMP, -FLT_MAX, 1, "adaptive_target"),
    NUMBER(FLOAT, ALL, sampling.adaptive_decay, REFUSE, 0, 0.99, "adaptive_decay"),
    NUMBER(INT, ALL, sampling.min_keep, REFUSE, 0, INT32_MAX, "min_keep"),
    NUMBER(INT, KV_API_CHAT, sampling.reasoning_budget, REFUSE, -1, INT32_MAX, "reasoning_budget_tokens",
           "thinking_budget_tokens"),
    READ(KV_API_CHAT, kv_field_budget_message, "reasoning_budget_message"),
    READ(KV_API_CHAT, kv_field_reasoning_format, "reasoning_format"),
    READ(ALL, kv_field_seed, "seed"),
    READ(KV_API_NATIVE | KV_API_COMPLETIONS, kv_field_n_probs, "n_probs", "logprobs"),
    READ(KV_API_CHAT, kv_field_n_probs, "n_probs"),
    READ(ALL, kv_field_n, "n_cmpl", "n"),
    READ(ALL, kv_field_id_slot, "id_slot"),
    READ(ALL, kv_field_stop, "stop"),
    READ(ALL, kv_field_logit_bias, "logit_bias"),
    READ(ALL, kv_field_samplers, "samplers"),
    READ(ALL, kv_field_stream_options, "stream_options"),
    READ(KV_API_NATIVE, kv_field_response_fields, "response_fields"),
    READ(ALL, kv_field_cache_salt, "cache_salt"),
    READ(ALL, kv_field_kvasir, "kvasir"), /* after cache_prompt, which it may turn off */
    /* OpenAI's fields that change nothing here: read, so that a wrong type is told, and without effect. None of them makes
     * a cache of its own (scope.h). */
    READ(OPENAI, kv_field_text_without_effect, "user"),
    READ(OPENAI, kv_field_text_without_effect, "prompt_cache_key"),
    READ(OPENAI, kv_field_text_without_effect, "prompt_cache_retention"),
    READ(OPENAI, kv_field_text_without_effect, "safety_identifier"),
    READ(OPENAI, kv_field_text_without_effect, "service_tier"),
    READ(KV_API_CHAT, kv_field_text_without_effect, "verbosity"),
    READ(KV_API_CHAT, kv_field_metadata, "metadata"),
    READ(KV_API_CHAT, kv_field_store, "store"),
    READ(KV_API_CHAT, kv_field_prediction, "prediction"),
    /* llama-server's and OpenAI's features that are not there */
    READ(ALL, kv_field_lora, "lora"),
    READ(ALL, kv_field_unsupported, "grammar_lazy"),
    READ(KV_API_COMPLETIONS, kv_field_unsupported, "suffix"),
    READ(KV_API_COMPLETIONS, kv_field_best_of, "best_of"),
    READ(KV_API_CHAT, kv_field_unsupported, "echo"),
    READ(KV_API_CHAT, kv_field_unsupported, "audio"),
    READ(KV_API_CHAT, kv_field_modalities, "modalities"),
    READ(KV_API_CHAT, kv_field_unsupported, "functions"),
    READ(KV_API_CHAT, kv_field_web_search, "web_search_options"),
};

/* ── reading one row ───────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status out_of_range(const field *f, const char *name, double got, kv_error *err) {
    if (f->max >= INT32_MAX) return kv_fail_field(err, name, "'%s' must be %g or more, but got %g", name, f->min, got);
    return kv_fail_field(err, name, "'%s' must be between %g and %g, but got %g", name, f->min, f->max, got);
}

/* The value inside the row's limits, or an error. */
static kv_status read_number(double *out, const field *f, const json_t *value, const char *name, kv_error *err) {
    if (!json_is_number(value)) return kv_fail_field(err, name, "'%s' must be a number", name);
    double d = json_number_value(value);
    if (f->kind != FLOAT && d != floor(d))
        return kv_fail_field(err, name, "'%s' must be an integer, but got %g", name, d);
    if (d < f->min) {
        if (f->limit == REFUSE) return out_of_range(f, name, d, err);
        d = f->min;
    }
    if (d > f->max) {
        if (f->limit == REFUSE) return out_of_range(f, name, d, err);
        d = f->max;
    }
    *out = d;
    return KV_OK;
}

static kv_status read_field(kv_params *p, const field *f, const kv_app *app, const json_t *value, const char *name,
                            kv_error *err) {
    char *at = (char *)p + f->offset;
    double d = 0;
    kv_status st;
    switch (f->kind) {
    case READER: return f->reader(p, app, value, name, err);
    case BOOL:
        if (!json_is_boolean(value)) return kv_fail_field(err, name, "'%s' must be a boolean", name);
        *(bool *)at = json_is_true(value);
        return KV_OK;
    default: break;
    }
    st = read_number(&d, f, value, name, err);
    if (st != KV_OK) return st;
    if (f->kind == INT) *(int32_t *)at = (int32_t)d;
    else if (f->kind == LONG) *(int64_t *)at = (int64_t)d;
    else *(float *)at = (float)d;
    return KV_OK;
}

static kv_status read_table(kv_params *p, const json_t *body, const kv_app *app, kv_error *err) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        if (!(f->apis & p->api)) continue;
        for (int k = 0; k < 4 && f->names[k]; k++) {
            const json_t *value = kv_json_get(body, f->names[k]);
            if (!value) continue;
            kv_status st = read_field(p, f, app, value, f->names[k], err);
            if (st != KV_OK) return st;
            break;
        }
    }
    return KV_OK;
}

/* ── the whole body ────────────────────────────────────────────────────────────────────────────────────────────── */

static void set_defaults(kv_params *p, kv_api api, const kv_app *app) {
    const kv_options *opt = app->opt;
    *p = (kv_params){
        .api = api,
        .sampling = app->sampling_defaults,
        .n = 1,
        .n_predict = (int32_t)opt->n_predict,
        .id_slot = -1,
        .t_max_predict_ms = -1,
        .cache_prompt = opt->cache_prompt,
        .sse_ping_interval = (int32_t)opt->sse_ping_interval,
        .reasoning_format = opt->reasoning_format ? opt->reasoning_format : "auto",
    };
    p->sampling.reasoning_budget = -1;
    if (opt->reasoning_budget_message) p->sampling.reasoning_budget_message = opt->reasoning_budget_message;
}

/* The engine sets aside memory for what the penalties look back on; nothing older than the context exists. */
static void clamp_lookback(kv_params *p, const kv_app *app) {
    if (app->n_ctx_served <= 0) return;
    if (p->sampling.repeat_last_n > app->n_ctx_served) p->sampling.repeat_last_n = app->n_ctx_served;
    if (p->sampling.dry_penalty_last_n > app->n_ctx_served) p->sampling.dry_penalty_last_n = app->n_ctx_served;
}

kv_status kv_params_parse(kv_params *out, const json_t *body, kv_api api, const kv_app *app, kv_error *err) {
    set_defaults(out, api, app);
    kv_status st = read_table(out, body, app, err);
    if (st == KV_OK && api == KV_API_CHAT) st = kv_fields_chat_logprobs(out, body, err);
    if (st == KV_OK) st = kv_fields_format(out, body, app, err);
    if (st == KV_OK && out->echo && out->want_probs)
        st = kv_fail_field(err, "echo", "'echo' together with 'logprobs' is not supported");
    if (st != KV_OK) {
        kv_params_free(out);
        return st;
    }
    clamp_lookback(out, app);
    if (out->sampling.reasoning_budget < 0) out->sampling.reasoning_budget = (int32_t)app->opt->reasoning_budget;
    return KV_OK;
}

static void free_texts(char **list) {
    for (char **s = list; s && *s; s++) free(*s);
    free(list);
}

void kv_params_free(kv_params *p) {
    json_decref(p->response_fields);
    free_texts(p->stops);
    free_texts(p->samplers);
    free_texts(p->breakers);
    free(p->grammar);
    free(p->json_schema);
    free(p->logit_bias);
    free(p->budget_message);
    free(p->cache_salt);
    kv_spell_free(p->spell);
    json_decref(p->messages);
    json_decref(p->tools);
    kv_tokens_free(&p->play);
    *p = (kv_params){0};
}

/* ── what comes before any field ───────────────────────────────────────────────────────────────────────────────── */

kv_status kv_params_check_body(const json_t *body, const kv_app *app, kv_error *err) {
    if (!json_is_object(body)) return kv_fail(err, KV_INVALID, "the request body must be a JSON object");
    const char *model = NULL;
    kv_status st = kv_json_str(&model, body, "model", err);
    if (st != KV_OK || !app->opt->strict_model || !model || kv_models_has(app, model)) return st;
    return kv_models_refuse(app, model, err);
}
