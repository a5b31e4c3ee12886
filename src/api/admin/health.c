/* /health, the states behind it, and the status page. */
#include <string.h>

#include "api/endpoints.h"
#include "ui/ui.h"

static kv_status loading(kv_error *err) {
    return kv_fail(err, KV_BUSY, "Loading model");
}

static kv_status draining(kv_error *err) {
    return kv_fail(err, KV_BUSY, "The server is shutting down and takes no new requests");
}

static kv_status failed(kv_error *err) {
    return kv_fail(err, KV_BUSY, "The model could not be loaded");
}

kv_status kv_app_require_model(const kv_app *app, kv_error *err) {
    switch (atomic_load(&app->state)) {
    case KV_APP_READY:
    case KV_APP_ASLEEP: return KV_OK;
    case KV_APP_DRAINING: return atomic_load(&app->has_model) ? KV_OK : draining(err);
    case KV_APP_FAILED: return failed(err);
    default: return loading(err);
    }
}

kv_status kv_app_require_ready(const kv_app *app, kv_error *err) {
    switch (atomic_load(&app->state)) {
    case KV_APP_READY:
    case KV_APP_ASLEEP: return KV_OK;
    case KV_APP_DRAINING: return draining(err);
    case KV_APP_FAILED: return failed(err);
    default: return loading(err);
    }
}

kv_status kv_app_require_generator(const kv_app *app, kv_error *err) {
    if (app->engine_info.memory != KV_MEMORY_NONE) return KV_OK;
    return kv_fail_field(err, "model",
                         "%.200s is an encoder (%.40s): it turns texts into vectors or scores (/v1/embeddings, "
                         "/v1/rerank, /api/embed) and does not support generating text",
                         app->model_name, kv_model_get_info(app->model)->arch);
}

kv_status kv_serve_health(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK) kv_buf_adds(&res->body, "{\"status\":\"ok\"}");
    return st;
}

/* The page is there while the model loads, too, and waits for it. Without one GET is a 404, as of llama-server; HEAD,
 * by which Ollama's programs look whether a server is there, is told that it is. */
kv_status kv_serve_page(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    if (!((const kv_app *)app)->opt->ui && strcmp(kv_http_method(req), "HEAD") == 0) {
        kv_buf_adds(&res->body, "This is a kvasir server.\n");
        res->content_type = "text/plain; charset=utf-8";
        return KV_OK;
    }
    if (!((const kv_app *)app)->opt->ui) return kv_fail(err, KV_NOT_FOUND, "the status page is off (--no-ui)");
    size_t n;
    const char *page = kv_ui_page(&n);
    kv_buf_add(&res->body, page, n);
    res->content_type = "text/html; charset=utf-8";
    kv_http_header(res, "Cache-Control", "no-cache");
    /* The page brings its own script and style and talks to nobody but this server. */
    kv_http_header(
        res, "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'");
    return KV_OK;
}
