/* The fields that /api/chat and /api/generate have in common, as an OpenAI body.
 *
 * Fields that Ollama knows and that have no meaning here (num_keep, num_batch, num_gpu …: the server's own options
 * decide) are checked and dropped; names that nobody knows are ignored, as there.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/endpoints.h"
#include "api/errors.h"
#include "api/ollama/ollama.h"

void kv_ollama_free(kv_ollama *o) {
    if (!o) return;
    free(o->model);
    json_decref(o->warnings);
    json_decref(o->calls);
    free(o);
}

/* ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char *openai, *ollama;
} renamed[] = {
    {"response_format", "format"},        {"json_schema", "format"},      {"reasoning_effort", "think"},
    {"n_predict", "options.num_predict"}, {"n_keep", "options.num_keep"}, {"stop", "options.stop"},
};

/* Replaces `from` at the start of `text`; false and unchanged when it does not begin a whole name there. */
static bool swap_name(char *text, size_t room, const char *from, const char *to) {
    size_t n = strlen(from);
    if (strncmp(text, from, n) != 0 || isalnum((unsigned char)text[n]) || text[n] == '_') return false;
    char *rest = kv_strdup(text + n);
    snprintf(text, room, "%s%s", to, rest);
    free(rest);
    return true;
}

void kv_ollama_rename(kv_error *err) {
    if (!err) return;
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        if (!swap_name(err->field, sizeof err->field, renamed[i].openai, renamed[i].ollama)) continue;
        char *quote = strchr(err->message, '\'');
        if (quote) {
            quote++;
            swap_name(quote, sizeof err->message - (size_t)(quote - err->message), renamed[i].openai,
                      renamed[i].ollama);
        }
        return;
    }
}

void kv_ollama_error_body(kv_buf *out, const kv_error *err) {
    kv_error context;
    if (err->status == KV_CONTEXT_FULL && err->n_ctx > 0) { /* one wording, whoever noticed */
        kv_fail_context(&context, err->n_prompt_tokens, err->n_ctx);
        err = &context;
    }
    kv_buf text = {0};
    if (err->field[0] && !strstr(err->message, err->field)) kv_buf_addf(&text, "%s: ", err->field);
    kv_buf_adds(&text, err->message);
    kv_buf_adds(out, "{\"error\":");
    kv_json_quote(out, kv_buf_str(&text), text.len);
    kv_buf_adds(out, "}");
    kv_buf_free(&text);
}

/* ── the model's name ──────────────────────────────────────────────────────────────────────────────────────────── */

#define LATEST ":latest"

/* Are they equal, but for a ":latest" that only one of them has? */
static bool same_name(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b), tag = strlen(LATEST);
    if (na > tag && strcmp(a + na - tag, LATEST) == 0) na -= tag;
    if (nb > tag && strcmp(b + nb - tag, LATEST) == 0) nb -= tag;
    return na == nb && memcmp(a, b, na) == 0;
}

bool kv_ollama_knows_model(const kv_app *app, const char *name) {
    if (same_name(name, app->model_name)) return true;
    for (int i = 0; i < app->n_aliases; i++)
        if (same_name(name, app->aliases[i])) return true;
    return false;
}

kv_status kv_ollama_check_model(const kv_app *app, const char *name, kv_error *err) {
    if (!app->opt->strict_model || kv_ollama_knows_model(app, name)) return KV_OK;
    kv_fail_field(err, "model", "model '%.100s' not found; this server has '%s'", name, app->model_name);
    if (err) err->status = KV_NOT_FOUND;
    return KV_NOT_FOUND;
}

kv_status kv_ollama_model_of(const char **out, const json_t *body, const kv_app *app, kv_error *err) {
    *out = NULL;
    if (!json_is_object(body)) return kv_fail(err, KV_INVALID, "the request body must be a JSON object");
    const char *name = NULL;
    kv_status st = kv_json_str(&name, body, "name", err); /* deprecated there, still sent */
    if (st == KV_OK) st = kv_json_str(&name, body, "model", err);
    if (st != KV_OK) return st;
    if (!name || !*name) name = app->model_name;
    *out = name;
    return kv_ollama_check_model(app, name, err);
}

/* ── options ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef enum kind { INT, FLOAT, BOOL, PREDICT, LOOKBACK, CONTEXT, STOP } kind;

static const struct option {
    const char *name, *openai; /* NULL: the server's own options decide */
    kind kind;
} options[] = {
    {"temperature", "temperature", FLOAT},
    {"top_k", "top_k", INT},
    {"top_p", "top_p", FLOAT},
    {"min_p", "min_p", FLOAT},
    {"typical_p", "typical_p", FLOAT},
    {"repeat_penalty", "repeat_penalty", FLOAT},
    {"repeat_last_n", "repeat_last_n", LOOKBACK},
    {"presence_penalty", "presence_penalty", FLOAT},
    {"frequency_penalty", "frequency_penalty", FLOAT},
    {"mirostat", "mirostat", INT}, /* of earlier versions */
    {"mirostat_tau", "mirostat_tau", FLOAT},
    {"mirostat_eta", "mirostat_eta", FLOAT},
    {"seed", "seed", INT},
    {"num_predict", "n_predict", PREDICT},
    {"stop", "stop", STOP},
    {"num_ctx", NULL, CONTEXT},
    {"num_keep", NULL, INT},
    {"num_batch", NULL, INT},
    {"num_gpu", NULL, INT},
    {"main_gpu", NULL, INT},
    {"num_thread", NULL, INT},
    {"draft_num_predict", NULL, INT},
    {"use_mmap", NULL, BOOL},
};

static kv_status wrong_type(const struct option *f, kv_error *err) {
    static const char *const types[] = {
        [INT] = "an integer",      [FLOAT] = "a number",     [BOOL] = "a boolean",          [PREDICT] = "an integer",
        [LOOKBACK] = "an integer", [CONTEXT] = "an integer", [STOP] = "an array of strings"};
    char path[64];
    snprintf(path, sizeof path, "options.%s", f->name);
    return kv_fail_field(err, path, "'%s' must be %s", path, types[f->kind]);
}

static void warn(kv_ollama *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void warn(kv_ollama *o, const char *fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!o->warnings) o->warnings = json_array();
    json_array_append_new(o->warnings, kv_json_text0(text));
}

/* The value as OpenAI's body has it; NULL: it says nothing there. */
static json_t *translate(kv_ollama *o, const struct option *f, json_t *value, int64_t n, const kv_app *app) {
    switch (f->kind) {
    case PREDICT: return json_integer(n <= 0 ? -1 : n > INT32_MAX ? INT32_MAX : n); /* none of them is a limit there */
    case LOOKBACK: return json_integer(n < 0 || n > INT32_MAX ? app->n_ctx_served : n); /* -1: all of the context */
    case INT: return f->openai ? json_integer(n) : NULL;
    case CONTEXT:
        /* Clients send what they were configured with. A prompt that is too long is refused, with the numbers. */
        if (n > app->n_ctx_served)
            warn(o, "options.num_ctx is %lld, but this server's context is %d tokens (--ctx-size)", (long long)n,
                 (int)app->n_ctx_served);
        return NULL;
    default: return f->openai ? json_incref(value) : NULL;
    }
}

static kv_status read_option(kv_ollama *o, json_t *openai, const struct option *f, json_t *value, const kv_app *app,
                             kv_error *err) {
    int64_t n = 0;
    bool right;
    switch (f->kind) {
    case FLOAT: right = json_is_number(value); break;
    case BOOL: right = json_is_boolean(value); break;
    case STOP: right = json_is_array(value) || json_is_string(value); break;
    default: right = kv_json_as_int(&n, value, INT64_MIN, INT64_MAX);
    }
    if (!right) return wrong_type(f, err);
    json_t *told = translate(o, f, value, n, app);
    if (told) json_object_set_new(openai, f->openai, told);
    return KV_OK;
}

static kv_status read_options(kv_ollama *o, json_t *openai, const json_t *body, const kv_app *app, kv_error *err) {
    const json_t *given = kv_json_get(body, "options");
    if (given && !json_is_object(given)) return kv_fail_field(err, "options", "'options' must be an object");
    kv_status st = KV_OK;
    for (size_t i = 0; st == KV_OK && i < sizeof options / sizeof *options; i++) {
        json_t *value = kv_json_get(given, options[i].name);
        if (value) st = read_option(o, openai, &options[i], value, app, err);
    }
    return st;
}

/* ── keep_alive ────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool unit_seconds(double *out, const char **at) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"\xc2\xb5s", 1e-6}, {"\xce\xbcs", 1e-6},
                 {"ms", 1e-3}, {"s", 1},     {"m", 60},           {"h", 3600}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(units[i].name);
        if (strncmp(*at, units[i].name, n) != 0) continue;
        *at += n;
        *out = units[i].seconds;
        return true;
    }
    return false;
}

/* Go's time.ParseDuration, and numbers without a unit, which clients send as texts, too. */
static bool parse_duration(double *out, const char *text) {
    const char *start = text + (*text == '-' || *text == '+'), *at = start;
    double sum = 0;
    if (!*at) return false;
    while (*at) {
        char *end;
        double unit = 1;
        if (!isdigit((unsigned char)*at) && *at != '.') return false;
        if (at[0] == '0' && tolower((unsigned char)at[1]) == 'x') return false;
        double n = strtod(at, &end);
        if (end == at) return false;
        bool first = at == start;
        at = end;
        if (*at ? !unit_seconds(&unit, &at) : !first) return false;
        sum += n * unit;
    }
    *out = *text == '-' ? -sum : sum;
    return isfinite(sum);
}

bool kv_ollama_seconds(double *out, const json_t *keep_alive) {
    if (json_is_string(keep_alive)) return parse_duration(out, json_string_value(keep_alive));
    if (!json_is_number(keep_alive)) return false;
    *out = json_number_value(keep_alive);
    return true;
}

/* How long the model stays is --sleep-idle-seconds'; only 0 is more than a wish. */
static kv_status read_keep_alive(kv_ollama *o, const json_t *body, const kv_app *app, kv_error *err) {
    const json_t *given = kv_json_get(body, "keep_alive");
    double seconds;
    if (!given) return KV_OK;
    if (!kv_ollama_seconds(&seconds, given))
        return kv_fail_field(err, "keep_alive",
                             "'keep_alive' must be a number of seconds or a duration such as \"5m\"");
    o->unload = seconds == 0;
    if (o->unload && (app->opt->sleep_idle_seconds <= 0 || !app->gate))
        warn(o, "keep_alive is 0, but this server keeps its model: it was started without --sleep-idle-seconds");
    return KV_OK;
}

/* ── think, format, logprobs ───────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_think(kv_ollama *o, json_t *openai, const json_t *body, kv_error *err) {
    static const char *const levels[] = {"low", "medium", "high", "max"};
    const json_t *think = kv_json_get(body, "think");
    if (!think) return KV_OK;
    const char *level = json_string_value(think);
    for (size_t i = 0; level && i < sizeof levels / sizeof *levels; i++)
        if (strcmp(level, levels[i]) == 0) o->thinks = true;
    if (!o->thinks && !json_is_boolean(think))
        return kv_fail_field(err, "think", "'think' must be true, false, \"low\", \"medium\", \"high\" or \"max\"");
    if (json_is_true(think)) o->thinks = true;
    json_object_set_new(openai, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", (int)o->thinks));
    if (level) json_object_set_new(openai, "reasoning_effort", json_string(level));
    return KV_OK;
}

static kv_status read_format(json_t *openai, const json_t *body, kv_error *err) {
    json_t *format = kv_json_get(body, "format");
    const char *word = json_string_value(format);
    if (!format || (word && !*word)) return KV_OK;
    if (word && strcmp(word, "json") == 0)
        json_object_set_new(openai, "response_format", json_pack("{s:s}", "type", "json_object"));
    else if (json_is_object(format))
        json_object_set_new(openai, "response_format",
                            json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format));
    else return kv_fail_field(err, "format", "'format' must be \"json\" or a JSON schema object");
    return KV_OK;
}

#define MAX_TOP 20 /* Ollama's */

static kv_status read_logprobs(kv_ollama *o, const json_t *body, kv_error *err) {
    kv_status st = kv_json_bool(&o->logprobs, body, "logprobs", err);
    if (st == KV_OK) st = kv_json_int(&o->n_top, body, "top_logprobs", 0, MAX_TOP, err);
    return st;
}

/* ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status read_common(kv_ollama *o, json_t *openai, const json_t *body, const kv_app *app, kv_error *err) {
    const char *model;
    bool ignored = false;
    kv_status st = kv_ollama_model_of(&model, body, app, err);
    if (st != KV_OK) return st;
    o->model = kv_strdup(model);
    st = kv_json_bool(&o->stream, body, "stream", err);
    if (st == KV_OK) st = kv_json_bool(&o->render_only, body, "_debug_render_only", err);
    if (st == KV_OK) st = kv_json_bool(&ignored, body, "truncate", err); /* what is too long is refused */
    if (st == KV_OK) st = kv_json_bool(&ignored, body, "shift", err);
    if (st == KV_OK) st = read_keep_alive(o, body, app, err);
    if (st == KV_OK) st = read_think(o, openai, body, err);
    if (st == KV_OK) st = read_format(openai, body, err);
    if (st == KV_OK) st = read_logprobs(o, body, err);
    if (st == KV_OK) st = read_options(o, openai, body, app, err);
    if (st != KV_OK) return st;
    static const char *const own[] = {"kvasir", "cache_salt", "cache_prompt", "sse_ping_interval"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        json_t *value = kv_json_get(body, own[i]);
        if (value) json_object_set(openai, own[i], value);
    }
    json_object_set_new(openai, "stream", json_boolean(o->stream));
    return KV_OK;
}

kv_status kv_ollama_read(kv_ollama **out, json_t **openai, const json_t *body, bool generate, const kv_app *app,
                         kv_error *err) {
    kv_ollama *o = kv_alloc(sizeof *o);
    *out = NULL;
    *openai = json_object();
    o->generate = generate;
    o->stream = true;
    kv_status st = read_common(o, *openai, body, app, err);
    if (st == KV_OK) {
        *out = o;
        return KV_OK;
    }
    kv_ollama_free(o);
    json_decref(*openai);
    *openai = NULL;
    return st;
}
