#include "api/shapes.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static double per(double a, double b) {
    return b > 0 ? a / b : 0.0;
}

json_t *kv_shape_timings(const kv_timings *t) {
    double steps = t->n_decoded > 1 ? t->n_decoded - 1 : 0;
    return json_pack("{s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:f}", "cache_n", (int)t->n_cached, "prompt_n",
                     (int)t->n_prompt, "prompt_ms", t->prompt_ms, "prompt_per_token_ms", per(t->prompt_ms, t->n_prompt),
                     "prompt_per_second", per(1e3 * t->n_prompt, t->prompt_ms), "predicted_n", (int)t->n_decoded,
                     "predicted_ms", t->decode_ms, "predicted_per_token_ms", per(t->decode_ms, steps),
                     "predicted_per_second", per(1e3 * steps, t->decode_ms));
}

const kv_timings *kv_shape_prompt_timings(const kv_job *j, int prompt) {
    const kv_timings *found = NULL;
    for (int i = 0; i < j->n_choices; i++) {
        const kv_choice *c = &j->choice[i];
        if (c->prompt == prompt && (!found || c->timings.n_prompt > found->n_prompt)) found = &c->timings;
    }
    return found;
}

kv_timings kv_shape_total(const kv_job *j) {
    kv_timings total = {0};
    for (int p = 0; p < j->prompts.n; p++) {
        const kv_timings *t = kv_shape_prompt_timings(j, p);
        if (!t) continue;
        total.n_cached += t->n_cached;
        total.n_prompt += t->n_prompt;
        total.prompt_ms += t->prompt_ms;
        if (t->queue_ms > total.queue_ms) total.queue_ms = t->queue_ms;
    }
    for (int i = 0; i < j->n_choices; i++) {
        const kv_timings *t = &j->choice[i].timings;
        total.n_decoded += t->n_decoded;
        if (t->decode_ms > total.decode_ms) total.decode_ms = t->decode_ms;
    }
    return total;
}

json_t *kv_shape_usage(const kv_job *j) {
    kv_timings t = kv_shape_total(j);
    json_int_t n_prompt = 0;
    for (int p = 0; p < j->prompts.n; p++) n_prompt += (json_int_t)j->prompts.list[p].len;
    return json_pack("{s:i, s:I, s:I, s:{s:i}}", "completion_tokens", (int)t.n_decoded, "prompt_tokens", n_prompt,
                     "total_tokens", n_prompt + t.n_decoded, "prompt_tokens_details", "cached_tokens", (int)t.n_cached);
}

void kv_shape_tell_progress(json_t *event, const kv_job *j, const kv_gen_event *e) {
    json_object_set_new(event, "prompt_progress",
                        json_pack("{s:i, s:i, s:i, s:I}", "total", (int)e->n_total, "cache", (int)e->n_cache,
                                  "processed", (int)e->n_processed, "time_ms", (json_int_t)e->time_ms));
    if (!j->params.timings_per_token) return;
    kv_timings t = {.n_cached = e->n_cache, .n_prompt = e->n_processed - e->n_cache};
    if (t.n_prompt > 0) t.prompt_ms = e->time_ms; /* before that it went into the restore */
    json_object_set_new(event, "timings", kv_shape_timings(&t));
}

/* ── token probabilities ───────────────────────────────────────────────────────────────────────────────────────── */

/* JSON has no infinity; llama-server writes the lowest float for a probability of 0. */
static json_t *logprob(float value) {
    return json_real(isfinite(value) ? value : -FLT_MAX);
}

static json_t *prob_entry(const kv_job *j, const kv_token_prob *p) {
    kv_buf piece = {0};
    kv_model_piece(&piece, j->app->model, p->token, j->chat != NULL);
    const char *s = kv_buf_str(&piece);
    json_t *bytes = json_array();
    for (size_t i = 0; i < piece.len; i++) json_array_append_new(bytes, json_integer((unsigned char)s[i]));
    bool post = j->params.post_sampling_probs;
    json_t *o =
        json_pack("{s:i, s:o, s:o, s:o}", "id", (int)p->token, "token", kv_json_text(s, kv_utf8_complete(s, piece.len)),
                  "bytes", bytes, post ? "prob" : "logprob", post ? json_real(exp(p->logprob)) : logprob(p->logprob));
    kv_buf_free(&piece);
    return o;
}

json_t *kv_shape_prob(const kv_job *j, const kv_gen_event *e) {
    bool post = j->params.post_sampling_probs;
    kv_token_prob chosen = e->chosen;
    chosen.token = e->token;
    json_t *o = prob_entry(j, &chosen), *top = json_array();
    for (int i = 0; i < e->n_top && i < j->params.n_probs; i++) {
        if (post && exp(e->top[i].logprob) == 0) break; /* what cannot be drawn is no alternative */
        json_array_append_new(top, prob_entry(j, &e->top[i]));
    }
    json_object_set_new(o, post ? "top_probs" : "top_logprobs", top);
    return o;
}

/* Tokens that lie wholly behind the end of the text belong to the stop string that was cut off. */
static size_t n_visible_tokens(const kv_job *j, const kv_choice *c) {
    if (c->finish != KV_FINISH_WORD) return c->tokens.len;
    kv_buf spelled = {0};
    size_t n = 0;
    while (n < c->tokens.len && spelled.len < c->text.len)
        kv_model_piece(&spelled, j->app->model, c->tokens.data[n++], j->chat != NULL);
    kv_buf_free(&spelled);
    return n;
}

json_t *kv_shape_take_probs(const kv_job *j, kv_choice *c) {
    json_t *probs = c->probs;
    if (!probs || json_array_size(probs) == 0) return NULL;
    c->probs = c->done ? NULL : json_array();
    if (!c->done) return probs;
    /* pending are the last ones of all that were sampled */
    size_t told = c->tokens.len - json_array_size(probs), visible = n_visible_tokens(j, c);
    while (json_array_size(probs) > 0 && told + json_array_size(probs) > visible)
        json_array_remove(probs, json_array_size(probs) - 1);
    if (json_array_size(probs) > 0) return probs;
    json_decref(probs);
    return NULL;
}

/* ── OpenAI's envelope ─────────────────────────────────────────────────────────────────────────────────────────── */

json_t *kv_shape_completion(const kv_job *j, const char *object, json_t *choices) {
    char fingerprint[64];
    kv_shape_fingerprint(fingerprint, sizeof fingerprint, j->app);
    return json_pack("{s:o, s:I, s:o, s:s, s:s, s:s}", "choices", choices, "created", (json_int_t)j->created, "model",
                     kv_json_text0(j->app->model_name), "system_fingerprint", fingerprint, "object", object, "id",
                     j->id);
}

const char *kv_shape_finish(const kv_choice *c) {
    return c->finish == KV_FINISH_EOS || c->finish == KV_FINISH_WORD ? "stop" : "length";
}

void kv_shape_fingerprint(char *out, size_t room, const kv_app *app) {
    const char *engine = app->engine_info.version;
    snprintf(out, room, "kvasir-%s%s%s", KVASIR_VERSION, engine ? "+" : "", engine ? engine : "");
}

void kv_shape_id(char *out, size_t room, const char *prefix) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char random[32];
    KV_CHECK(getentropy(random, sizeof random) == 0);
    char text[sizeof random + 1] = {0};
    for (size_t i = 0; i < sizeof random; i++) text[i] = digits[random[i] % (sizeof digits - 1)];
    snprintf(out, room, "%s%s", prefix, text);
}

/* ── response_fields ───────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *find_path(const json_t *from, const char *path) {
    const json_t *at = from;
    while (at) {
        size_t n = strcspn(path, "/");
        char *key = kv_strndup(path, n);
        at = json_object_get(at, key);
        free(key);
        if (path[n] == '\0') break;
        path += n + 1;
    }
    return (json_t *)at;
}

json_t *kv_shape_pick(const json_t *from, const json_t *paths) {
    json_t *out = json_object();
    for (size_t i = 0; i < json_array_size(paths); i++) {
        const char *path = json_string_value(json_array_get(paths, i));
        json_t *found = find_path(from, path);
        if (found) json_object_set(out, path, found);
    }
    return out;
}

json_t *kv_shape_time(int64_t unix_seconds) {
    char text[32] = "";
    time_t t = (time_t)unix_seconds;
    struct tm tm;
    if (gmtime_r(&t, &tm)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return json_string(text);
}
