/* /v1/models: the one model, in OpenAI's list, in llama-server's, and with vLLM's max_model_len. /v1/models/{name}: its
 * entry of that list, for all names that it goes by, with the members of Anthropic's API, which has the same path. */
#include <string.h>

#include "api/anthropic/anthropic.h"
#include "api/endpoints.h"
#include "api/shapes.h"
#include "base/json.h"

bool kv_models_has(const kv_app *app, const char *name) {
    if (strcmp(name, app->model_name) == 0) return true;
    for (int i = 0; i < app->n_aliases; i++)
        if (strcmp(name, app->aliases[i]) == 0) return true;
    return false;
}

kv_status kv_models_refuse(const kv_app *app, const char *name, kv_error *err) {
    kv_fail_field(err, "model", "the model '%.100s' does not exist; this server has '%s'", name, app->model_name);
    if (err) err->status = KV_NOT_FOUND;
    return KV_NOT_FOUND;
}

static json_t *alias_list(const kv_app *app) {
    json_t *list = json_array();
    const int n = app->n_listed ? app->n_listed : app->n_aliases;
    for (int i = 0; i < n; i++) json_array_append_new(list, kv_json_text0(app->aliases[i]));
    return list;
}

static json_t *meta(const kv_app *app) {
    const kv_model_info *m = kv_model_get_info(app->model);
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:s}", "vocab_type", m->vocab_type, "n_vocab",
                     (int)m->n_vocab, "n_ctx", (int)app->n_ctx_served, "n_ctx_train", (int)m->n_ctx_train, "n_embd",
                     (int)m->n_embd, "n_params", (json_int_t)m->n_params, "size", (json_int_t)m->size_bytes, "ftype",
                     m->ftype ? m->ftype : "");
}

static json_t *data_entry(const kv_app *app) {
    return json_pack("{s:o, s:o, s:[], s:s, s:I, s:s, s:i, s:o}", "id", kv_json_text0(app->model_name), "aliases",
                     alias_list(app), "tags", "object", "model", "created", (json_int_t)app->started_at, "owned_by",
                     "kvasir", "max_model_len", (int)app->n_ctx_served, "meta", meta(app));
}

/* Ollama's members, as llama-server fills them. */
static json_t *models_entry(const kv_app *app) {
    json_t *name = kv_json_text0(app->model_name);
    const char *can = app->engine_info.memory == KV_MEMORY_NONE ? "embedding" : "completion";
    return json_pack("{s:O, s:o, s:s, s:s, s:s, s:s, s:s, s:[s], s:[s], s:s, s:{s:s, s:s, s:s, s:[s], s:s, s:s}}",
                     "name", name, "model", name, "modified_at", "", "size", "", "digest", "", "type", "model",
                     "description", "", "tags", "", "capabilities", can, "parameters", "", "details", "parent_model",
                     "", "format", "gguf", "family", "", "families", "", "parameter_size", "", "quantization_level",
                     "");
}

void kv_models_write(kv_buf *out, const kv_app *app) {
    json_t *o =
        json_pack("{s:[o], s:s, s:[o]}", "models", models_entry(app), "object", "list", "data", data_entry(app));
    kv_json_dump_new(out, o);
}

static kv_status add_page(kv_buf *out, kv_app *app, kv_error *err) {
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    if (kv_gate_look(app->gate)) {
        kv_models_write(out, app);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_page(out, app->asleep, KV_ASLEEP_MODELS);
    }
    return KV_OK;
}

kv_status kv_serve_models(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    return add_page(&res->body, app, err);
}

/* ── one by its name ───────────────────────────────────────────────────────────────────────────────────────────── */

static void add_anthropic(json_t *entry) {
    json_t *n_ctx = json_object_get(entry, "max_model_len");
    json_object_set_new(entry, "type", json_string("model"));
    json_object_set(entry, "display_name", json_object_get(entry, "id"));
    json_object_set_new(entry, "created_at", kv_shape_time(json_integer_value(json_object_get(entry, "created"))));
    json_object_set(entry, "max_input_tokens", n_ctx);
    json_object_set(entry, "max_tokens", n_ctx);
}

static kv_status no_model(const kv_app *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_status st = kv_models_refuse(app, kv_http_segment(req), err);
    if (!kv_http_get_header(req, "anthropic-version")) return st;
    err->request_id = kv_http_request_id(req);
    kv_anthropic_error_body(&res->body, err);
    res->status = kv_status_http(st);
    return KV_OK;
}

kv_status kv_serve_model(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    kv_buf page = {0};
    json_t *list = NULL;
    kv_status st = add_page(&page, app, err);
    if (st == KV_OK && !kv_models_has(app, kv_http_segment(req))) {
        kv_buf_free(&page);
        return no_model(app, req, res, err);
    }
    if (st == KV_OK) st = kv_json_parse(&list, kv_buf_str(&page), page.len, err);
    if (st == KV_OK) {
        json_t *entry = json_array_get(json_object_get(list, "data"), 0);
        add_anthropic(entry);
        kv_json_dump(&res->body, entry);
    }
    json_decref(list);
    kv_buf_free(&page);
    return st;
}
