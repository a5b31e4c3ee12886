#include "api/native/infill.h"

#include <string.h>

#include "api/body.h"
#include "api/endpoints.h"
#include "api/native/native.h"

/* llama-server's --batch-size where none is given: how much of prefix and suffix is taken hangs on it. */
#define DEFAULT_BATCH 2048

static kv_status check_model(const kv_model *model, kv_error *err) {
    const kv_fim_tokens *fim = &kv_model_get_info(model)->fim;
    if (fim->pre >= 0 && fim->suf >= 0 && fim->mid >= 0) return KV_OK;
    return kv_fail(err, KV_UNSUPPORTED, "Infill is not supported by this model: %s%s%s",
                   fim->pre < 0 ? "prefix token is missing. " : "", fim->suf < 0 ? "suffix token is missing. " : "",
                   fim->mid < 0 ? "middle token is missing. " : "");
}

static kv_status add_text(kv_tokens *out, const kv_model *model, const char *text, kv_error *err) {
    return kv_model_tokenize(out, model, text, strlen(text), false, false, err);
}

static kv_status add_line(kv_tokens *out, const kv_model *model, const char *text, kv_error *err) {
    kv_buf line = {0};
    kv_buf_addf(&line, "%s\n", text);
    kv_status st = kv_model_tokenize(out, model, line.data, line.len, false, false, err);
    kv_buf_free(&line);
    return st;
}

/* ── other files ───────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status add_chunk(kv_tokens *out, const kv_model *model, const json_t *chunk, size_t i, kv_error *err) {
    const kv_fim_tokens *fim = &kv_model_get_info(model)->fim;
    char path[64];
    const char *text = json_string_value(kv_json_get(chunk, "text"));
    const json_t *name = kv_json_get(chunk, "filename");
    snprintf(path, sizeof path, "input_extra[%zu].text", i);
    if (!text)
        return kv_fail_field(err, path, "extra_context chunk must contain a \"text\" field with a string value: '%s'",
                             path);
    snprintf(path, sizeof path, "input_extra[%zu].filename", i);
    if (name && !json_is_string(name))
        return kv_fail_field(err, path, "extra_context chunk's \"filename\" field must be a string: '%s'", path);
    kv_status st;
    if (fim->sep >= 0) {
        kv_tokens_add(out, fim->sep);
        st = add_line(out, model, name ? json_string_value(name) : "tmp", err);
    } else {
        st = add_text(out, model, "\n\n--- snippet ---\n\n", err);
    }
    return st == KV_OK ? add_text(out, model, text, err) : st;
}

static kv_status add_extra(kv_tokens *out, const kv_model *model, const json_t *body, kv_error *err) {
    const kv_fim_tokens *fim = &kv_model_get_info(model)->fim;
    const json_t *extra = kv_json_get(body, "input_extra");
    kv_status st = KV_OK;
    if (extra && !json_is_array(extra))
        return kv_fail_field(err, "input_extra",
                             "\"input_extra\" must be an array of {\"filename\": string, \"text\": string}");
    if (fim->rep >= 0) {
        kv_tokens_add(out, fim->rep);
        st = add_line(out, model, "myproject", err);
    }
    for (size_t i = 0; st == KV_OK && i < json_array_size(extra); i++)
        st = add_chunk(out, model, json_array_get(extra, i), i, err);
    if (st == KV_OK && fim->sep >= 0) {
        kv_tokens_add(out, fim->sep);
        st = add_line(out, model, "filename", err);
    }
    return st;
}

/* ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct parts {
    kv_tokens extra, prefix, suffix, prompt;
} parts;

static kv_status read_side(kv_tokens *out, const kv_model *model, const json_t *body, const char *field,
                           kv_error *err) {
    const json_t *value = kv_json_get(body, field);
    if (!value) return kv_fail_field(err, field, "\"%s\" is required", field);
    return kv_prompt_mixed(out, model, value, field, false, false, err);
}

static kv_status read_parts(parts *p, const kv_model *model, const json_t *body, kv_error *err) {
    const char *prompt = "";
    if (kv_json_str(&prompt, body, "prompt", NULL) != KV_OK)
        return kv_fail_field(err, "prompt", "\"prompt\" must be a string");
    kv_status st = read_side(&p->prefix, model, body, "input_prefix", err);
    if (st == KV_OK) st = read_side(&p->suffix, model, body, "input_suffix", err);
    if (st == KV_OK) st = add_extra(&p->extra, model, body, err);
    if (st == KV_OK) st = kv_model_tokenize(&p->prompt, model, prompt, strlen(prompt), false, true, err);
    return st;
}

static size_t at_most(size_t n, int64_t limit) {
    return limit <= 0 ? 0 : n < (size_t)limit ? n : (size_t)limit;
}

static void add_last(kv_tokens *out, const kv_tokens *from, size_t n) {
    kv_tokens_append(out, from->data + (from->len - n), n);
}

static void put_together(kv_tokens *out, const kv_model_info *info, const parts *p, const kv_infill_limits *limits) {
    int64_t quarter = limits->n_batch / 4;
    size_t n_prefix = at_most(p->prefix.len, 3 * quarter);
    size_t n_suffix = at_most(p->suffix.len, quarter - 2 - (int64_t)p->prompt.len);
    size_t n_extra = at_most(p->extra.len, (int64_t)limits->n_ctx - limits->n_batch - 2ll * limits->n_predict);
    add_last(out, &p->extra, n_extra);
    if (info->add_bos && info->bos >= 0) kv_tokens_add(out, info->bos);
    for (int side = 0; side < 2; side++) {
        if ((side == 0) == limits->suffix_first) {
            kv_tokens_add(out, info->fim.suf);
            kv_tokens_append(out, p->suffix.data, n_suffix);
        } else {
            kv_tokens_add(out, info->fim.pre);
            add_last(out, &p->prefix, n_prefix);
            kv_tokens_append(out, p->prompt.data, p->prompt.len);
        }
    }
    kv_tokens_add(out, info->fim.mid);
}

kv_status kv_infill_prompt(kv_tokens *out, const kv_model *model, const json_t *body, const kv_infill_limits *limits,
                           kv_error *err) {
    parts p = {0};
    kv_status st = check_model(model, err);
    if (st == KV_OK) st = read_parts(&p, model, body, err);
    if (st == KV_OK) put_together(out, kv_model_get_info(model), &p, limits);
    kv_tokens_free(&p.extra);
    kv_tokens_free(&p.prefix);
    kv_tokens_free(&p.suffix);
    kv_tokens_free(&p.prompt);
    return st;
}

kv_status kv_serve_infill(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    const kv_app *app = ctx;
    kv_status st = kv_app_require_ready(app, err);
    if (st != KV_OK) return st;
    kv_job *j = kv_job_new(app, &kv_native_dialect);
    json_t *body;
    const kv_infill_limits limits = {
        .n_batch = app->opt->n_batch > 0 ? (int32_t)app->opt->n_batch : DEFAULT_BATCH,
        .n_predict = (int32_t)app->opt->n_predict,
        .n_ctx = app->n_ctx_served,
        .suffix_first = app->opt->spm_infill,
    };
    j->prompts = (kv_prompts){.list = kv_alloc(sizeof *j->prompts.list), .n = 1};
    st = kv_body_read_for_model(&body, req, app, err);
    if (st == KV_OK) st = kv_infill_prompt(&j->prompts.list[0], app->model, body, &limits, err);
    if (st == KV_OK) st = kv_params_parse(&j->params, body, KV_API_NATIVE, app, err);
    json_decref(body);
    if (st == KV_OK) return kv_job_run(j, req, res, err);
    kv_job_free(j);
    return st;
}
