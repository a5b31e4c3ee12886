#include "api/params_fields.h"
#include "api/scope.h"
#include "chat/schema.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static float to_float(double d) {
    if (d > FLT_MAX) return FLT_MAX;
    if (d < -FLT_MAX) return -FLT_MAX;
    return (float)d;
}

static bool plain_text(const json_t *v) {
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static kv_status read_int(int64_t *out, const json_t *value, const char *name, int64_t min, int64_t max,
                          kv_error *err) {
    if (kv_json_as_int(out, value, min, max)) return KV_OK;
    if (!json_is_number(value)) return kv_fail_field(err, name, "'%s' must be an integer", name);
    return kv_fail_field(err, name, "'%s' must be an integer between %lld and %lld", name, (long long)min,
                         (long long)max);
}

/* An array of at most `max` non-empty texts (empty ones are left out) as a list ended by NULL. */
static kv_status read_texts(char ***out, int *n, const json_t *value, const char *name, int max, kv_error *err) {
    char **list = kv_alloc((json_array_size(value) + 1) * sizeof *list);
    char path[64];
    const json_t *item;
    size_t i;
    *n = 0;
    *out = list; /* owned by the params from here on, also after an error */
    json_array_foreach(value, i, item) {
        snprintf(path, sizeof path, "%s[%zu]", name, i);
        if (!plain_text(item)) return kv_fail_field(err, path, "'%s' must be a string without NUL characters", path);
        if (json_string_length(item) == 0) continue;
        if (*n >= max) return kv_fail_field(err, name, "'%s' must not have more than %d entries", name, max);
        list[(*n)++] = kv_strdup(json_string_value(item));
    }
    return KV_OK;
}

/* ── sampling ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* OpenAI's seed is a 64-bit integer; the engine's has 32 bits. -1 is a random one in both spellings. */
kv_status kv_field_seed(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    int64_t seed;
    if (!kv_json_as_int(&seed, value, INT64_MIN, INT64_MAX))
        return kv_fail_field(err, name, "'%s' must be an integer", name);
    p->sampling.seed = (uint32_t)(uint64_t)seed;
    return KV_OK;
}

/* Below 1 the penalty would shrink with the repetition: llama-server takes its default instead, and so do we. */
kv_status kv_field_dry_base(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    if (!json_is_number(value)) return kv_fail_field(err, name, "'%s' must be a number", name);
    double d = json_number_value(value);
    p->sampling.dry_base = d < 1 ? app->sampling_defaults.dry_base : to_float(d);
    return KV_OK;
}

kv_status kv_field_breakers(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    if (!json_is_array(value)) return kv_fail_field(err, name, "'%s' must be an array of strings", name);
    int n;
    kv_status st = read_texts(&p->breakers, &n, value, name, KV_PARAMS_MAX_STOPS, err);
    if (st != KV_OK) return st;
    if (n == 0) return kv_fail_field(err, name, "'%s' must not be empty", name);
    p->sampling.dry_breakers = (const char *const *)p->breakers;
    p->sampling.n_dry_breakers = n;
    return KV_OK;
}

/* Names in the engine's spelling, their letters, and what else people write. Compared without '-', '_' and case. */
static const struct {
    const char *name;
    char letter;
    const char *others[3];
} sampler_names[] = {
    {"penalties", 'e', {0}},
    {"dry", 'd', {0}},
    {"top_n_sigma", 's', {0}},
    {"top_k", 'k', {0}},
    {"typ_p", 'y', {"typ", "typicalp"}},
    {"top_p", 'p', {"nucleus"}},
    {"min_p", 'm', {0}},
    {"xtc", 'x', {0}},
    {"temperature", 't', {"temp"}},
    {"infill", 'i', {0}},
    {"adaptive_p", 'a', {0}},
};
#define N_SAMPLER_NAMES (sizeof sampler_names / sizeof *sampler_names)

static bool same_name(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a == '_' || *a == '-') a++;
        while (*b == '_' || *b == '-') b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
        if (*a == '\0') return true;
    }
}

static const char *sampler_by_name(const char *text) {
    for (size_t i = 0; i < N_SAMPLER_NAMES; i++) {
        if (same_name(sampler_names[i].name, text)) return sampler_names[i].name;
        for (int k = 0; k < 3 && sampler_names[i].others[k]; k++)
            if (same_name(sampler_names[i].others[k], text)) return sampler_names[i].name;
    }
    return NULL;
}

static const char *sampler_by_letter(char c) {
    for (size_t i = 0; i < N_SAMPLER_NAMES; i++)
        if (sampler_names[i].letter == c) return sampler_names[i].name;
    return NULL;
}

kv_status kv_field_samplers(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    if (!json_is_array(value) && !plain_text(value))
        return kv_fail_field(err, name, "'%s' must be an array of names or a string of letters", name);
    bool letters = json_is_string(value);
    size_t n = letters ? json_string_length(value) : json_array_size(value);
    if (n > KV_PARAMS_MAX_STOPS)
        return kv_fail_field(err, name, "'%s' must not have more than %d entries", name, KV_PARAMS_MAX_STOPS);
    p->samplers = kv_alloc((n + 1) * sizeof *p->samplers);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = letters ? NULL : json_array_get(value, i);
        if (!letters && !plain_text(item))
            return kv_fail_field(err, name, "'%s' must be an array of names or a string of letters", name);
        const char *found =
            letters ? sampler_by_letter(json_string_value(value)[i]) : sampler_by_name(json_string_value(item));
        if (!found) {
            const char *shown = letters ? json_string_value(value) : json_string_value(item);
            return kv_fail_field(err, name, "'%s' names an unknown sampler: '%.40s'", name, shown);
        }
        p->samplers[i] = kv_strdup(found);
    }
    p->sampling.samplers = (const char *const *)p->samplers;
    p->sampling.n_samplers = (int)n;
    p->sampling.sampler_chars = NULL;
    return KV_OK;
}

/* ── logit_bias ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_bias(kv_params *p, kv_token token, float bias) {
    if (p->n_logit_bias == p->cap_logit_bias) {
        p->cap_logit_bias = p->cap_logit_bias ? 2 * p->cap_logit_bias : 16;
        p->logit_bias = kv_realloc(p->logit_bias, p->cap_logit_bias * sizeof *p->logit_bias);
    }
    p->logit_bias[p->n_logit_bias++] = (kv_logit_bias){token, bias};
}

/* Every token of the text gets the bias, as in llama-server. */
static kv_status bias_text(kv_params *p, const kv_app *app, const char *text, size_t n, float bias, kv_error *err) {
    kv_tokens tokens = {0};
    kv_status st = kv_model_tokenize(&tokens, app->model, text, n, false, false, err);
    for (size_t i = 0; st == KV_OK && i < tokens.len; i++) add_bias(p, tokens.data[i], bias);
    kv_tokens_free(&tokens);
    return st;
}

/* Ids that this vocabulary does not have are left out: clients send lists made for other models. */
static void bias_id(kv_params *p, const kv_app *app, int64_t id, float bias) {
    if (id >= 0 && id < kv_model_get_info(app->model)->n_vocab) add_bias(p, (kv_token)id, bias);
}

static kv_status read_bias(float *out, const json_t *value, const char *path, kv_error *err) {
    if (json_is_number(value)) *out = to_float(json_number_value(value));
    else if (json_is_false(value)) *out = -INFINITY;
    else return kv_fail_field(err, path, "'%s' must be a number, or false to ban the token", path);
    return KV_OK;
}

static kv_status bias_pair(kv_params *p, const kv_app *app, const json_t *pair, const char *path, kv_error *err) {
    if (!json_is_array(pair) || json_array_size(pair) != 2)
        return kv_fail_field(err, path, "'%s' must be a pair of token and bias", path);
    float bias;
    kv_status st = read_bias(&bias, json_array_get(pair, 1), path, err);
    if (st != KV_OK) return st;
    const json_t *token = json_array_get(pair, 0);
    int64_t id;
    if (json_is_string(token)) return bias_text(p, app, json_string_value(token), json_string_length(token), bias, err);
    if (!kv_json_as_int(&id, token, INT64_MIN, INT64_MAX))
        return kv_fail_field(err, path, "'%s' must begin with a token id or a text", path);
    bias_id(p, app, id, bias);
    return KV_OK;
}

static kv_status bias_member(kv_params *p, const kv_app *app, const char *key, const json_t *value, kv_error *err) {
    char path[64], *end;
    snprintf(path, sizeof path, "logit_bias.%.40s", key);
    float bias;
    kv_status st = read_bias(&bias, value, path, err);
    if (st != KV_OK) return st;
    long id = strtol(key, &end, 10);
    if (*key && *end == '\0') bias_id(p, app, id, bias);
    else st = bias_text(p, app, key, strlen(key), bias, err);
    return st;
}

kv_status kv_field_logit_bias(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    kv_status st = KV_OK;
    if (json_is_array(value)) {
        for (size_t i = 0; st == KV_OK && i < json_array_size(value); i++) {
            char path[64];
            snprintf(path, sizeof path, "%s[%zu]", name, i);
            st = bias_pair(p, app, json_array_get(value, i), path, err);
        }
    } else if (json_is_object(value)) {
        const char *key;
        json_t *bias;
        json_object_foreach((json_t *)value, key, bias) {
            st = bias_member(p, app, key, bias, err);
            if (st != KV_OK) break;
        }
    } else {
        return kv_fail_field(err, name, "'%s' must be an object or an array of pairs", name);
    }
    p->sampling.logit_bias = p->logit_bias;
    p->sampling.n_logit_bias = (int)p->n_logit_bias;
    return st;
}

/* ── limits and output ─────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_field_stop(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    if (json_is_array(value)) return read_texts(&p->stops, &p->n_stops, value, name, KV_PARAMS_MAX_STOPS, err);
    if (!plain_text(value)) return kv_fail_field(err, name, "'%s' must be a string or an array of strings", name);
    if (json_string_length(value) == 0) return KV_OK;
    p->stops = kv_alloc(2 * sizeof *p->stops);
    p->stops[0] = kv_strdup(json_string_value(value));
    p->n_stops = 1;
    return KV_OK;
}

/* Below 0 means none. Some clients send chat's boolean `logprobs` to completions. */
kv_status kv_field_n_probs(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    int64_t n = json_is_true(value) ? 1 : 0;
    if (!json_is_boolean(value)) {
        kv_status st = read_int(&n, value, name, INT32_MIN, KV_PARAMS_MAX_PROBS, err);
        if (st != KV_OK) return st;
    }
    p->n_probs = n > 0 ? (int32_t)n : 0;
    p->want_probs = n > 0;
    return KV_OK;
}

/* llama-server's own name has its hard limit. Under OpenAI's names a large number asks for as much as there is room for,
 * and the context limit ends the answer anyway. */
kv_status kv_field_n_predict(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    int64_t n;
    kv_status st = read_int(&n, value, name, -1, strcmp(name, "n_predict") == 0 ? INT32_MAX : INT64_MAX, err);
    if (st == KV_OK) p->n_predict = n > INT32_MAX ? INT32_MAX : (int32_t)n;
    return st;
}

kv_status kv_field_n(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    int64_t n, max = app->engine_info.n_slots > 0 ? app->engine_info.n_slots : 1;
    if (!kv_json_as_int(&n, value, 1, max))
        return kv_fail_field(err, name, "'%s' must be an integer between 1 and %d, the number of slots (-np)", name,
                             (int)max);
    p->n = (int32_t)n;
    return KV_OK;
}

kv_status kv_field_id_slot(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    int64_t id;
    kv_status st = read_int(&id, value, name, -1, app->engine_info.n_slots - 1, err);
    if (st == KV_OK) p->id_slot = (int32_t)id;
    return st;
}

kv_status kv_field_stream_options(kv_params *p, const kv_app *app, const json_t *value, const char *name,
                                  kv_error *err) {
    (void)app;
    if (!json_is_object(value)) return kv_fail_field(err, name, "'%s' must be an object", name);
    kv_status st = kv_json_bool(&p->include_usage, value, "include_usage", err);
    if (st != KV_OK && err) snprintf(err->field, sizeof err->field, "stream_options.include_usage");
    return st;
}

kv_status kv_field_response_fields(kv_params *p, const kv_app *app, const json_t *value, const char *name,
                                   kv_error *err) {
    (void)app;
    if (!json_is_array(value)) return kv_fail_field(err, name, "'%s' must be an array of strings", name);
    if (json_array_size(value) > KV_PARAMS_MAX_FIELDS)
        return kv_fail_field(err, name, "'%s' must not have more than %d entries", name, KV_PARAMS_MAX_FIELDS);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_string(json_array_get(value, i)))
            return kv_fail_field(err, name, "'%s' must be an array of strings", name);
    if (json_array_size(value) > 0) p->response_fields = json_copy((json_t *)value);
    return KV_OK;
}

kv_status kv_field_reasoning_format(kv_params *p, const kv_app *app, const json_t *value, const char *name,
                                    kv_error *err) {
    (void)app;
    static const char *const known[] = {"none", "auto", "deepseek", "deepseek-legacy"};
    for (size_t i = 0; i < sizeof known / sizeof *known && json_is_string(value); i++) {
        if (strcmp(known[i], json_string_value(value)) != 0) continue;
        p->reasoning_format = known[i];
        return KV_OK;
    }
    return kv_fail_field(err, name, "'%s' must be \"none\", \"auto\", \"deepseek\" or \"deepseek-legacy\"", name);
}

kv_status kv_field_budget_message(kv_params *p, const kv_app *app, const json_t *value, const char *name,
                                  kv_error *err) {
    (void)app;
    if (!plain_text(value)) return kv_fail_field(err, name, "'%s' must be a string", name);
    p->budget_message = kv_strdup(json_string_value(value));
    p->sampling.reasoning_budget_message = p->budget_message;
    return KV_OK;
}

/* vLLM's name and meaning: what was computed under one salt is not found under another. */
kv_status kv_field_cache_salt(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    if (!plain_text(value) || json_string_length(value) > KV_SCOPE_SALT_MAX)
        return kv_fail_field(err, name, "'%s' must be a string of at most %d bytes, without NUL characters", name,
                             KV_SCOPE_SALT_MAX);
    p->cache_salt = kv_strdup(json_string_value(value));
    return KV_OK;
}

/* An empty answer is one, too. */
static void play_tokens(kv_params *p) {
    static const kv_token nothing;
    p->sampling.play = p->play.len ? p->play.data : &nothing;
    p->sampling.n_play = (int)p->play.len;
}

kv_status kv_params_play(kv_params *p, const kv_model *model, const char *text, size_t n, kv_error *err) {
    kv_status st = kv_model_tokenize(&p->play, model, text, n, false, true, err);
    play_tokens(p);
    return st;
}

/* "play": text or token ids. Only a server started for tests looks at it. */
static kv_status read_play(kv_params *p, const kv_app *app, const json_t *play, kv_error *err) {
    int64_t id;
    if (json_is_string(play))
        return kv_params_play(p, app->model, json_string_value(play), json_string_length(play), err);
    if (!json_is_array(play)) return kv_fail_field(err, "kvasir.play", "'kvasir.play' must be a text or token ids");
    for (size_t i = 0; i < json_array_size(play); i++) {
        if (!kv_json_as_int(&id, json_array_get(play, i), 0, kv_model_get_info(app->model)->n_vocab - 1))
            return kv_fail_field(err, "kvasir.play", "'kvasir.play[%zu]' is not a token id", i);
        kv_tokens_add(&p->play, (kv_token)id);
    }
    play_tokens(p);
    return KV_OK;
}

/* What only this server has: {"store": false} reads and writes nothing of the cache, as "cache_prompt": false. */
kv_status kv_field_kvasir(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    if (!json_is_object(value)) return kv_fail_field(err, name, "'%s' must be an object", name);
    bool store = true;
    const json_t *given = kv_json_get(value, "store"), *play = kv_json_get(value, "play");
    if (given && !json_is_boolean(given)) return kv_fail_field(err, "kvasir.store", "'kvasir.store' must be a boolean");
    if (given) store = json_is_true(given);
    if (!store) p->cache_prompt = false;
    return play && app->opt->test_sampler ? read_play(p, app, play, err) : KV_OK;
}

/* ── what is not there ─────────────────────────────────────────────────────────────────────────────────────────── */

static bool asks_for_nothing(const json_t *v) {
    return json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

kv_status kv_field_unsupported(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p, (void)app;
    if (asks_for_nothing(value)) return KV_OK;
    return kv_fail_field(err, name, "'%s' is not supported by this server", name);
}

kv_status kv_field_web_search(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p, (void)app, (void)value;
    return kv_fail_field(err, name, "'%s' is not supported: this server does not search the web", name);
}

kv_status kv_field_best_of(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)app;
    int64_t n;
    /* As many candidates as answers is no choice at all. `n` stands before this row in the table. */
    if (kv_json_as_int(&n, value, p->n, p->n)) return KV_OK;
    return kv_fail_field(err, name, "'%s' is not supported by this server, unless it equals 'n'", name);
}

kv_status kv_field_text_without_effect(kv_params *p, const kv_app *app, const json_t *value, const char *name,
                                       kv_error *err) {
    (void)p, (void)app;
    return json_is_string(value) ? KV_OK : kv_fail_field(err, name, "'%s' must be a string", name);
}

kv_status kv_field_metadata(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p, (void)app;
    return json_is_object(value) ? KV_OK : kv_fail_field(err, name, "'%s' must be an object", name);
}

/* There is no list of stored completions to be looked into, and none is promised by accepting it. */
kv_status kv_field_store(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p, (void)app;
    return json_is_boolean(value) ? KV_OK : kv_fail_field(err, name, "'%s' must be a boolean", name);
}

/* A guess can make an answer faster, never another one. */
kv_status kv_field_prediction(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p, (void)app;
    const char *type = json_string_value(kv_json_get(value, "type"));
    if (!json_is_object(value)) return kv_fail_field(err, name, "'%s' must be an object", name);
    if (!type || strcmp(type, "content") != 0)
        return kv_fail_field(err, "prediction.type", "'prediction.type' must be \"content\"");
    return KV_OK;
}

kv_status kv_field_modalities(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p, (void)app;
    if (!json_is_array(value)) return kv_fail_field(err, name, "'%s' must be an array", name);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *s = json_string_value(json_array_get(value, i));
        if (!s || strcmp(s, "text") != 0)
            return kv_fail_field(err, name, "'%s' can only be [\"text\"] on this server", name);
    }
    return KV_OK;
}

/* ── fields that belong together ───────────────────────────────────────────────────────────────────────────────── */

/* Chat: `logprobs` switches, `top_logprobs` counts; llama-server gives 20 when it is absent. */
kv_status kv_fields_chat_logprobs(kv_params *p, const json_t *body, kv_error *err) {
    bool on = false;
    kv_status st = kv_json_bool(&on, body, "logprobs", err);
    if (st != KV_OK) return st;
    int64_t top = 20;
    st = kv_json_int(&top, body, "top_logprobs", 0, KV_PARAMS_MAX_PROBS, err);
    if (st != KV_OK) return st;
    if (on) {
        p->want_probs = true;
        p->n_probs = (int32_t)top;
    } else if (kv_json_get(body, "top_logprobs")) {
        return kv_fail_field(err, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    }
    return KV_OK;
}

/* *schema is a reference of the caller's; it is replaced when the format says more. *field names where it came from. */
static kv_status read_response_format(json_t **schema, const char **field, bool *strict, const json_t *body,
                                      kv_error *err) {
    json_t *format = kv_json_get(body, "response_format");
    if (!format) return KV_OK;
    if (!json_is_object(format)) return kv_fail_field(err, "response_format", "'response_format' must be an object");
    const char *type = json_string_value(kv_json_get(format, "type"));
    if (type && strcmp(type, "text") == 0) return KV_OK;
    bool any = type && strcmp(type, "json_object") == 0;
    if (!any && (!type || strcmp(type, "json_schema") != 0))
        return kv_fail_field(err, "response_format.type",
                             "'response_format.type' must be \"text\", \"json_object\" or \"json_schema\"");
    json_t *inside = any ? NULL : kv_json_get(format, "json_schema");
    if (inside && !json_is_object(inside))
        return kv_fail_field(err, "response_format.json_schema", "'response_format.json_schema' must be an object");
    const json_t *loose = kv_json_get(inside, "strict");
    if (loose && !json_is_boolean(loose))
        return kv_fail_field(err, "response_format.json_schema.strict",
                             "'response_format.json_schema.strict' must be a boolean");
    *strict = !json_is_false(loose);
    const char *path = inside ? "response_format.json_schema.schema" : "response_format.schema";
    json_t *found = kv_json_get(inside ? inside : format, "schema"); /* some write it beside the type */
    if (found && !json_is_object(found)) return kv_fail_field(err, path, "'%s' must be an object", path);
    if (any && !found && *schema) return KV_OK; /* the body's `json_schema` says more */
    json_decref(*schema);
    *schema = found ? json_incref(found) : json_object();
    *field = path;
    return KV_OK;
}

static char *schema_text(const json_t *schema) {
    kv_buf text = {0};
    if (json_object_size(schema) == 0) kv_buf_adds(&text, "{\"type\":\"object\"}"); /* any object */
    else kv_json_dump(&text, schema);
    return kv_buf_take(&text);
}

static void use_grammar(kv_params *p, const char *text, kv_grammar_type type) {
    p->grammar = kv_strdup(text);
    p->sampling.grammar = p->grammar;
    p->sampling.grammar_type = type;
}

static kv_status use_schema(kv_params *p, const json_t *schema, const char *field, bool strict, kv_error *err) {
    json_t *tidy;
    kv_status st = kv_chat_schema(&tidy, schema, field, strict, err);
    if (st != KV_OK) return st;
    p->json_schema = schema_text(tidy);
    json_decref(tidy);
    if (p->api == KV_API_CHAT) return KV_OK;
    kv_buf gbnf = {0};
    st = kv_schema_to_grammar(&gbnf, p->json_schema, err);
    if (st == KV_OK) use_grammar(p, kv_buf_str(&gbnf), KV_GRAMMAR_SCHEMA);
    else if (err) snprintf(err->field, sizeof err->field, "%s", field);
    kv_buf_free(&gbnf);
    return st;
}

/* json_schema, grammar and response_format. Without a chat template the schema becomes a grammar here; with one, the
 * renderer combines it with the template's own tool and reasoning syntax. */
kv_status kv_fields_format(kv_params *p, const json_t *body, const kv_app *app, kv_error *err) {
    json_t *schema = json_incref(kv_json_get(body, "json_schema"));
    const char *field = "json_schema", *grammar = NULL, *fallback = app->sampling_defaults.grammar;
    bool strict = true; /* nobody says that less would do */
    kv_status st = KV_OK;
    if (schema && !json_is_object(schema)) st = kv_fail_field(err, field, "'%s' must be an object", field);
    if (st == KV_OK) st = kv_json_str(&grammar, body, "grammar", err);
    if (st == KV_OK && p->api != KV_API_NATIVE) st = read_response_format(&schema, &field, &strict, body, err);
    if (st != KV_OK) goto done;
    if (grammar && *grammar == '\0') grammar = NULL;
    if (schema && grammar) {
        st = kv_fail_field(err, "grammar", "'grammar' and '%s' cannot be used together", field);
        goto done;
    }
    p->sampling.grammar = NULL;
    p->sampling.grammar_type = KV_GRAMMAR_NONE;
    if (schema) st = use_schema(p, schema, field, strict, err);
    else if (grammar) use_grammar(p, grammar, KV_GRAMMAR_USER);
    else if (fallback && *fallback) use_grammar(p, fallback, app->sampling_defaults.grammar_type);
done:
    json_decref(schema);
    return st;
}
