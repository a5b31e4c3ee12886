/* /v1/models: the one model, in OpenAI's list, in llama-server's, and with vLLM's max_model_len. */

#include "api/endpoints.h"
#include "base/json.h"

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

kv_status kv_serve_models(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_app *app = ctx;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    if (kv_gate_look(app->gate)) {
        kv_models_write(&res->body, app);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_page(&res->body, app->asleep, KV_ASLEEP_MODELS);
    }
    return KV_OK;
}
