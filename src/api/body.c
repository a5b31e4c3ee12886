#include "api/body.h"

#include "api/params.h"

kv_status kv_body_read(json_t **out, const kv_http_request *req, kv_error *err) {
    size_t n;
    const char *text = kv_http_body(req, &n);
    return kv_json_parse(out, text, n, err);
}

kv_status kv_body_read_for_model(json_t **out, const kv_http_request *req, const kv_app *app, kv_error *err) {
    kv_status st = kv_body_read(out, req, err);
    if (st == KV_OK) st = kv_params_check_body(*out, app, err);
    if (st == KV_OK) return KV_OK;
    json_decref(*out);
    *out = NULL;
    return st;
}
