/* What parsing leaves to do: lists inside texts, and the pointers of `sampling` into them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "options/table.h"

/* "top_k;top_p" → names */
static kv_status split_samplers(kv_options *o, kv_error *err) {
    kv_list_free(&o->sampler_name);
    for (const char *p = o->samplers; p && *p;) {
        size_t n = strcspn(p, ";");
        if (n > 0) {
            if (o->sampler_name.n == KV_OPTIONS_MAX_LIST)
                return kv_fail_field(err, "--samplers", "--samplers: more than %d names", KV_OPTIONS_MAX_LIST);
            kv_list_add(&o->sampler_name, p, n);
        }
        p += n + (p[n] == ';');
    }
    return KV_OK;
}

/* "15043+1.5", "15043-inf" */
static bool read_bias(kv_logit_bias *out, const char *text) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    long token = strtol(text, &end, 10);
    if (token > INT32_MAX || (*end != '+' && *end != '-')) return false;
    float sign = *end == '-' ? -1.0f : 1.0f;
    const char *number = end + 1;
    if (*number == '+' || *number == '-') return false;
    float bias = strtof(number, &end);
    if (end == number || *end || isnan(bias)) return false;
    *out = (kv_logit_bias){.token = (kv_token)token, .bias = sign * bias};
    return true;
}

static kv_status read_biases(kv_options *o, kv_error *err) {
    free(o->logit_bias_item);
    o->logit_bias_item = kv_alloc(sizeof(kv_logit_bias) * (size_t)(o->logit_bias.n + 1));
    for (int i = 0; i < o->logit_bias.n; i++) {
        if (!read_bias(&o->logit_bias_item[i], o->logit_bias.item[i]))
            return kv_fail_field(err, "--logit-bias",
                                 "--logit-bias: got \"%.100s\", takes a token id, a sign and a "
                                 "number, such as 15043-1",
                                 o->logit_bias.item[i]);
    }
    return KV_OK;
}

/* --reasoning-effort and --reasoning-preserve are values for the template. */
static kv_status fill_template_kwargs(kv_options *o, kv_error *err) {
    json_t *kwargs = NULL;
    kv_status st = KV_OK;
    if (o->reasoning_effort && strcmp(o->reasoning_effort, "default") == 0) {
        free(o->reasoning_effort);
        o->reasoning_effort = NULL;
    }
    if (!o->chat_template_kwargs && !o->reasoning_effort && o->reasoning_preserve < 0) return KV_OK;
    const char *text = o->chat_template_kwargs ? o->chat_template_kwargs : "{}";
    kv_error inner = {0};
    if (kv_json_parse(&kwargs, text, strlen(text), &inner) != KV_OK)
        return kv_fail_field(err, "--chat-template-kwargs", "--chat-template-kwargs: takes a JSON object: %s",
                             inner.message);
    if (!json_is_object(kwargs)) {
        st = kv_fail_field(err, "--chat-template-kwargs", "--chat-template-kwargs: takes a JSON object");
        goto done;
    }
    if (o->reasoning_effort) json_object_set_new(kwargs, "reasoning_effort", kv_json_text0(o->reasoning_effort));
    if (o->reasoning_preserve >= 0)
        json_object_set_new(kwargs, "preserve_reasoning", json_boolean(o->reasoning_preserve));
    kv_buf merged = {0};
    kv_json_dump(&merged, kwargs);
    free(o->chat_template_kwargs);
    o->chat_template_kwargs = kv_buf_take(&merged);
done:
    json_decref(kwargs);
    return st;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* llama-server's escapes: n r t ' " \ and xHH; what else stands behind a backslash stays, with it. */
static void add_unescaped(kv_str_list *out, const char *text) {
    static const char letters[] = "nrt'\"\\", meant[] = "\n\r\t'\"\\";
    kv_buf b = {0};
    for (const char *p = text; *p; p++) {
        const char *at = p[0] == '\\' && p[1] ? strchr(letters, p[1]) : NULL;
        int high = p[0] == '\\' && p[1] == 'x' ? hex_value(p[2]) : -1, low = high >= 0 ? hex_value(p[3]) : -1;
        char byte = at ? meant[at - letters] : low >= 0 ? (char)(high * 16 + low) : *p;
        if (byte) kv_buf_add(&b, &byte, 1); /* a NUL cannot be in a text */
        p += at ? 1 : low >= 0 ? 3 : 0;
    }
    kv_list_add(out, kv_buf_str(&b), b.len);
    kv_buf_free(&b);
}

static void read_breakers(kv_options *o) {
    kv_list_free(&o->dry_breaker_text);
    for (int i = 0; i < o->dry_breaker.n; i++) {
        const char *text = o->dry_breaker.item[i];
        if (o->escape) add_unescaped(&o->dry_breaker_text, text);
        else kv_list_add(&o->dry_breaker_text, text, strlen(text));
    }
}

kv_status kv_opt_finish(kv_options *o, kv_error *err) {
    kv_sampling *s = &o->sampling;
    o->n_parallel_set = o->n_parallel > 0;
    kv_status st = split_samplers(o, err);
    if (st == KV_OK) st = read_biases(o, err);
    if (st == KV_OK) st = fill_template_kwargs(o, err);
    if (st != KV_OK) return st;
    s->samplers = o->sampler_name.n ? (const char *const *)o->sampler_name.item : NULL;
    s->n_samplers = o->sampler_name.n;
    s->sampler_chars = o->sampler_seq;
    bool none = o->dry_breaker.n == 1 && strcmp(o->dry_breaker.item[0], "none") == 0;
    read_breakers(o);
    s->dry_breakers = o->dry_breaker.n ? (const char *const *)o->dry_breaker_text.item : NULL;
    s->n_dry_breakers = none ? 0 : o->dry_breaker.n;
    s->logit_bias = o->logit_bias.n ? o->logit_bias_item : NULL;
    s->n_logit_bias = o->logit_bias.n;
    s->reasoning_budget = (int32_t)o->reasoning_budget;
    s->reasoning_budget_message = o->reasoning_budget_message;
    if (s->n_prev < s->repeat_last_n) s->n_prev = s->repeat_last_n; /* the history that penalties look into */
    return KV_OK;
}
