/* The one model as Ollama's clients look at it: /api/tags, /api/show, /api/ps, /api/version; and what manages models
 * there, which is refused by name.
 *
 * Clients size their prompts by `<arch>.context_length`: it is what this server serves, not what the model was trained
 * for. A name without a tag gets ":latest", as there.
 */
#include <stdio.h>
#include <string.h>

#include "api/body.h"
#include "api/endpoints.h"
#include "api/ollama/ollama.h"
#include "api/shapes.h"
#include "base/hash.h"

#define NEVER_SECONDS 7258118400 /* expires_at of a model that stays: the year 2200 */

/* ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *text(const char *s) {
    return kv_json_text(s ? s : "", s ? strlen(s) : 0);
}

static json_t *parameter_size(uint64_t n) {
    char s[32];
    if (n >= 1000000000) snprintf(s, sizeof s, "%.1fB", (double)n / 1e9);
    else if (n >= 1000000) snprintf(s, sizeof s, "%.2fM", (double)n / 1e6);
    else snprintf(s, sizeof s, "%.2fK", (double)n / 1e3);
    return json_string(s);
}

static json_t *details(const kv_app *app) {
    const kv_model_info *m = kv_model_get_info(app->model);
    json_t *family = text(m->arch);
    return json_pack("{s:s, s:s, s:O, s:[o], s:o, s:o, s:i, s:i}", "parent_model", "", "format", "gguf", "family",
                     family, "families", family, "parameter_size", parameter_size(m->n_params), "quantization_level",
                     text(m->ftype), "context_length", (int)app->n_ctx_served, "embedding_length", (int)m->n_embd);
}

/* `<arch>.what` */
static void set_of_arch(json_t *info, const kv_model_info *m, const char *what, int64_t value) {
    char key[128];
    snprintf(key, sizeof key, "%.60s.%s", m->arch ? m->arch : "", what);
    json_object_set_new(info, key, json_integer(value));
}

static json_t *model_info(const kv_app *app) {
    const kv_model_info *m = kv_model_get_info(app->model);
    json_t *info = json_pack("{s:o, s:o, s:I, s:i, s:i}", "general.architecture", text(m->arch), "general.name",
                             text(m->name), "general.parameter_count", (json_int_t)m->n_params,
                             "tokenizer.ggml.bos_token_id", (int)m->bos, "tokenizer.ggml.eos_token_id", (int)m->eos);
    set_of_arch(info, m, "context_length", app->n_ctx_served);
    set_of_arch(info, m, "embedding_length", m->n_embd);
    set_of_arch(info, m, "block_count", m->n_layer);
    set_of_arch(info, m, "attention.head_count", m->n_head);
    set_of_arch(info, m, "attention.head_count_kv", m->n_head_kv);
    set_of_arch(info, m, "vocab_size", m->n_vocab);
    if (m->n_window) set_of_arch(info, m, "attention.sliding_window", m->n_window);
    return info;
}

static bool fills_between(const kv_model_info *m) {
    return m->fim.pre >= 0 && m->fim.suf >= 0 && m->fim.mid >= 0;
}

static bool template_takes_tools(const kv_app *app) {
    kv_buf caps_text = {0};
    json_t *caps = NULL;
    if (kv_chat_caps(&caps_text, app->model, NULL) == KV_OK)
        kv_json_parse(&caps, kv_buf_str(&caps_text), caps_text.len, NULL);
    bool yes = json_is_true(json_object_get(caps, "supports_tools")) ||
               json_is_true(json_object_get(caps, "supports_tool_calls"));
    kv_buf_free(&caps_text);
    json_decref(caps);
    return yes;
}

/* Only a rendering tells. */
static bool template_thinks(const kv_app *app) {
    kv_chat_prompt *p = NULL;
    kv_chat_params cp = {.messages_json = "[{\"role\":\"user\",\"content\":\"?\"}]",
                         .reasoning_format = "auto",
                         .enable_thinking = 1,
                         .add_generation_prompt = true,
                         .now_seconds = kv_wall_seconds()};
    bool yes = kv_chat_render(&p, app->model, &cp, NULL) == KV_OK && kv_chat_prompt_thinks(p);
    kv_chat_prompt_free(p);
    return yes;
}

static json_t *capabilities(const kv_app *app) {
    if (app->engine_info.memory == KV_MEMORY_NONE) return json_pack("[s]", "embedding");
    json_t *list = json_pack("[s]", "completion");
    if (template_takes_tools(app)) json_array_append_new(list, json_string("tools"));
    if (fills_between(kv_model_get_info(app->model))) json_array_append_new(list, json_string("insert"));
    if (template_thinks(app)) json_array_append_new(list, json_string("thinking"));
    return list;
}

/* As a Modelfile's PARAMETER lines: what a request gets that says nothing. */
static json_t *parameters(const kv_app *app) {
    const kv_sampling *s = &app->sampling_defaults;
    kv_buf lines = {0};
    kv_buf_addf(&lines, "%-30s %d", "num_ctx", (int)app->n_ctx_served);
    kv_buf_addf(&lines, "\n%-30s %g", "temperature", (double)s->temperature);
    kv_buf_addf(&lines, "\n%-30s %d", "top_k", (int)s->top_k);
    kv_buf_addf(&lines, "\n%-30s %g", "top_p", (double)s->top_p);
    kv_buf_addf(&lines, "\n%-30s %g", "min_p", (double)s->min_p);
    kv_buf_addf(&lines, "\n%-30s %g", "repeat_penalty", (double)s->repeat_penalty);
    json_t *v = kv_json_text(kv_buf_str(&lines), lines.len);
    kv_buf_free(&lines);
    return v;
}

/* Continue looks for Ollama's ".Suffix" in the template to know whether the model fills in between; a comment of the
 * template's own language says it. */
static json_t *template_text(const kv_model_info *m) {
    kv_buf t = {0};
    kv_buf_adds(&t, m->chat_template ? m->chat_template : "");
    if (fills_between(m)) kv_buf_adds(&t, "{#- /api/generate fills in before its .Suffix -#}");
    json_t *v = kv_json_text(kv_buf_str(&t), t.len);
    kv_buf_free(&t);
    return v;
}

/* Names the weights well enough for clients, which only show and compare it. */
static json_t *digest(const kv_model_info *m) {
    kv_buf b = {0};
    char hex[33];
    kv_buf_addf(&b, "%s|%s|%s|%llu|%llu", m->name, m->desc ? m->desc : "", m->ftype ? m->ftype : "",
                (unsigned long long)m->n_params, (unsigned long long)m->size_bytes);
    kv_hash_hex(hex, kv_hash_bytes(b.data, b.len));
    kv_buf_free(&b);
    return json_string(hex);
}

void kv_ollama_facts_write(kv_buf *out, const kv_app *app) {
    const kv_model_info *m = kv_model_get_info(app->model);
    uint64_t in_memory = m->size_bytes + app->plan.bytes_context + app->plan.bytes_compute;
    json_t *o = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:i}", "details", details(app), "model_info",
                          model_info(app), "capabilities", capabilities(app), "parameters", parameters(app), "template",
                          template_text(m), "digest", digest(m), "size", (json_int_t)m->size_bytes, "in_memory",
                          (json_int_t)in_memory, "n_layer", (int)m->n_layer);
    kv_json_dump_new(out, o);
}

/* *awake (may be NULL): the model is there. A new object. */
static kv_status read_facts(json_t **out, bool *awake, const kv_app *app, kv_error *err) {
    *out = NULL;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    kv_buf text_of = {0};
    bool there = kv_gate_look(app->gate);
    if (there) {
        kv_ollama_facts_write(&text_of, app);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_page(&text_of, app->asleep, KV_ASLEEP_OLLAMA);
    }
    if (awake) *awake = there;
    st = kv_json_parse(out, kv_buf_str(&text_of), text_of.len, err);
    kv_buf_free(&text_of);
    return st;
}

/* ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *tagged(const char *name) {
    char s[300];
    snprintf(s, sizeof s, "%.280s%s", name, strchr(name, ':') ? "" : ":latest");
    return text(s);
}

/* {"name", "model", "digest", "details"} and what differs. */
static json_t *entry(const char *name, const json_t *facts) {
    json_t *full = tagged(name);
    return json_pack("{s:O, s:o, s:O, s:O}", "name", full, "model", full, "digest", json_object_get(facts, "digest"),
                     "details", json_object_get(facts, "details"));
}

/* ── what reads ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_tag(json_t *models, const kv_app *app, const char *name, const json_t *facts) {
    json_t *e = entry(name, facts);
    json_object_set_new(e, "modified_at", kv_shape_time(app->started_at));
    json_object_set(e, "size", json_object_get(facts, "size"));
    json_object_set(e, "capabilities", json_object_get(facts, "capabilities"));
    json_array_append_new(models, e);
}

kv_status kv_serve_ollama_tags(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_app *app = ctx;
    json_t *facts;
    kv_status st = read_facts(&facts, NULL, app, err);
    if (st != KV_OK) return st;
    json_t *models = json_array(), *o = json_pack("{s:o}", "models", models);
    if (app->n_aliases == 0) add_tag(models, app, app->model_name, facts);
    for (int i = 0; i < app->n_aliases; i++) add_tag(models, app, app->aliases[i], facts);
    kv_json_dump_new(&res->body, o);
    json_decref(facts);
    return KV_OK;
}

/* No partial offload is known here: it is in the GPU's memory when all layers were to go there, and there is one. */
static json_int_t size_on_gpu(const kv_app *app, const json_t *facts) {
    const char *devices = app->engine_info.backends;
    bool gpu = devices && strstr(devices, ", "); /* the processor is always one of them */
    int64_t asked = app->opt->n_gpu_layers;
    bool all = asked < 0 || asked >= json_integer_value(json_object_get(facts, "n_layer"));
    return gpu && all ? json_integer_value(json_object_get(facts, "in_memory")) : 0;
}

kv_status kv_serve_ollama_ps(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_app *app = ctx;
    json_t *facts;
    bool awake;
    kv_status st = read_facts(&facts, &awake, app, err);
    if (st != KV_OK) return st;
    json_t *models = json_array(), *o = json_pack("{s:o}", "models", models);
    if (awake) {
        double idle = app->opt->sleep_idle_seconds;
        json_t *e = entry(app->model_name, facts);
        json_object_set(e, "size", json_object_get(facts, "in_memory"));
        json_object_set_new(e, "size_vram", json_integer(size_on_gpu(app, facts)));
        json_object_set_new(e, "expires_at",
                            kv_shape_time(idle > 0 ? kv_wall_seconds() + (int64_t)idle : NEVER_SECONDS));
        json_object_set(e, "context_length", json_object_get(json_object_get(facts, "details"), "context_length"));
        json_array_append_new(models, e);
    }
    kv_json_dump_new(&res->body, o);
    json_decref(facts);
    return KV_OK;
}

kv_status kv_serve_ollama_show(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    json_t *asked = NULL, *facts = NULL;
    const char *name;
    kv_status st = kv_body_read(&asked, req, err);
    if (st == KV_OK) st = kv_ollama_model_of(&name, asked, app, err);
    if (st == KV_OK) st = read_facts(&facts, NULL, app, err);
    if (st == KV_OK) {
        kv_buf modelfile = {0};
        kv_buf_addf(&modelfile, "# What this server serves; it cannot be changed here.\nFROM %s\n", app->model_name);
        json_t *o = json_pack("{s:s, s:o, s:O, s:O, s:O, s:O, s:O, s:o}", "license", "", "modelfile",
                              kv_json_text(kv_buf_str(&modelfile), modelfile.len), "parameters",
                              json_object_get(facts, "parameters"), "template", json_object_get(facts, "template"),
                              "details", json_object_get(facts, "details"), "model_info",
                              json_object_get(facts, "model_info"), "capabilities",
                              json_object_get(facts, "capabilities"), "modified_at", kv_shape_time(app->started_at));
        kv_json_dump(&res->body, o);
        kv_buf_free(&modelfile);
        json_decref(o);
    }
    json_decref(facts);
    json_decref(asked);
    return st;
}

kv_status kv_serve_ollama_version(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)req, (void)err;
    kv_buf_addf(&res->body, "{\"version\":\"%s\"}", KV_OLLAMA_VERSION);
    return KV_OK;
}

/* ── what manages models ───────────────────────────────────────────────────────────────────────────────────────── */

/* Clients pull before they ask: what is served is there already. */
kv_status kv_serve_ollama_pull(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    json_t *asked = NULL;
    const char *name = NULL;
    bool stream = true;
    kv_status st = kv_body_read(&asked, req, err);
    if (st == KV_OK) st = kv_ollama_model_of(&name, asked, app, err);
    if (st == KV_OK) st = kv_json_bool(&stream, asked, "stream", err);
    if (st == KV_OK && !kv_ollama_knows_model(app, name)) {
        kv_fail_field(err, "model",
                      "'%.100s' cannot be pulled: this server serves '%s', and loads another model only "
                      "when it is started anew (-m, -hf)",
                      name, app->model_name);
        if (err) err->status = KV_NOT_FOUND;
        st = KV_NOT_FOUND;
    }
    if (st == KV_OK) {
        if (stream) res->content_type = "application/x-ndjson";
        kv_buf_addf(&res->body, "{\"status\":\"success\"}%s", stream ? "\n" : "");
    }
    json_decref(asked);
    return st;
}

kv_status kv_serve_ollama_refused(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)res;
    return kv_fail(err, KV_UNSUPPORTED,
                   "%s is not supported: this server serves the model that it was started with, and neither makes, "
                   "copies, deletes nor publishes models",
                   kv_http_path(req));
}
