/* /props: what this server is and how it generates when a request says nothing. */
#include <string.h>

#include "api/endpoints.h"
#include "api/params.h"
#include "api/shapes.h"

static json_t *caps(const kv_app *app) {
    kv_buf json = {0};
    json_t *v = NULL;
    if (kv_chat_caps(&json, app->model, NULL) == KV_OK) kv_json_parse(&v, kv_buf_str(&json), json.len, NULL);
    kv_buf_free(&json);
    return v ? v : json_object();
}

static kv_status default_settings(json_t **out, const kv_app *app, kv_error *err) {
    json_t *nothing = json_object();
    kv_params p;
    kv_status st = kv_params_parse(&p, nothing, KV_API_NATIVE, app, err);
    json_decref(nothing);
    if (st != KV_OK) return st;
    *out = json_pack("{s:o, s:i}", "params", kv_params_json(&p, NULL, true), "n_ctx", (int)app->n_ctx_served);
    kv_params_free(&p);
    return KV_OK;
}

/* What llama-server has no word for. */
static json_t *own_members(const kv_app *app) {
    const kv_engine_info *e = &app->engine_info;
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:b, s:s, s:s, s:i, s:i}", "version", KVASIR_VERSION, "arch",
                     kv_model_get_info(app->model)->arch, "memory", kv_memory_kind_name(e->memory), "n_ctx_pool",
                     (int)e->n_ctx, "n_batch", (int)e->n_batch, "flash_attn", (int)e->flash_attn, "type_k",
                     e->type_k ? e->type_k : "f16", "type_v", e->type_v ? e->type_v : "f16", "n_threads",
                     (int)e->n_threads, "n_threads_batch", (int)e->n_threads_batch);
}

kv_status kv_props_write(kv_buf *out, const kv_app *app, bool asleep, kv_error *err) {
    json_t *settings = NULL;
    kv_status st = default_settings(&settings, app, err);
    if (st != KV_OK) return st;
    const kv_options *opt = app->opt;
    const kv_model_info *m = kv_model_get_info(app->model);
    char build[64];
    kv_shape_fingerprint(build, sizeof build, app);
    json_t *o = json_object();
    json_object_set_new(o, "default_generation_settings", settings);
    json_object_set_new(o, "total_slots", json_integer(app->engine_info.n_slots));
    json_object_set_new(o, "model_alias", kv_json_text0(app->model_name));
    json_object_set_new(o, "model_ftype", kv_json_text0(m->ftype));
    json_object_set_new(o, "model_path", kv_json_text0(m->path));
    json_object_set_new(o, "modalities", json_pack("{s:b, s:b, s:b}", "vision", 0, "video", 0, "audio", 0));
    json_object_set_new(o, "media_marker",
                        json_string("<__media__>")); /* nothing replaces it while there is no vision */
    json_object_set_new(o, "endpoint_slots", json_boolean(opt->slots_endpoint));
    json_object_set_new(o, "endpoint_props", json_boolean(opt->props_endpoint));
    json_object_set_new(o, "endpoint_metrics", json_boolean(opt->metrics_endpoint));
    json_object_set_new(o, "ui", json_true());
    json_object_set_new(o, "ui_settings", json_object());
    json_object_set_new(o, "chat_template", kv_json_text0(m->chat_template));
    json_object_set_new(o, "chat_template_caps", caps(app));
    json_object_set_new(o, "bos_token", kv_json_text0(m->bos_text));
    json_object_set_new(o, "eos_token", kv_json_text0(m->eos_text));
    json_object_set_new(o, "build_info", json_string(build));
    json_object_set_new(o, "is_sleeping", json_boolean(asleep));
    json_object_set_new(o, "cors_proxy_enabled", json_false());
    if (!opt->plain_json) json_object_set_new(o, "kvasir", own_members(app));
    kv_json_dump_new(out, o);
    return KV_OK;
}

kv_status kv_serve_props(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_app *app = ctx;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    if (kv_gate_look(app->gate)) {
        st = kv_props_write(&res->body, app, false, err);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_page(&res->body, app->asleep, KV_ASLEEP_PROPS);
    }
    return st;
}

/* llama-server has no property that can be set either. */
kv_status kv_serve_set_props(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_app *app = ctx;
    if (!app->opt->props_endpoint)
        return kv_fail(err, KV_UNSUPPORTED,
                       "This server does not support changing global properties. Start it with `--props`");
    kv_buf_adds(&res->body, "{\"success\":true}");
    return KV_OK;
}
