/* POST /v1/responses and /v1/responses/input_tokens. */
#include <stdlib.h>

#include "api/body.h"
#include "api/chat_body.h"
#include "api/endpoints.h"
#include "api/responses/responses.h"
#include "api/scope.h"

/* The request's body as a response to be made, with its chat body. */
static kv_status read_request(kv_response **out, const kv_app *app, const kv_http_request *req, kv_error *err) {
    json_t *body = NULL;
    char *scope = NULL;
    *out = NULL;
    kv_status st = kv_body_read(&body, req, err);
    if (st == KV_OK) st = kv_scope_of(&scope, req, json_string_value(kv_json_get(body, "cache_salt")), err);
    if (st == KV_OK) st = kv_response_read(out, body, scope, app, err);
    json_decref(body);
    free(scope);
    return st;
}

/* A job with the prompt as it is to be computed. On failure `r` stays the caller's. */
static kv_status make_job(kv_job **out, kv_response *r, const kv_http_request *req, const kv_app *app, kv_error *err) {
    kv_status st = kv_chat_job_new(out, &kv_response_dialect, r->chat, req, app, err);
    if (st != KV_OK) {
        kv_response_rename_error(err, r);
        return st;
    }
    kv_response_reuse(&(*out)->prompts.list[0], &r->before, app->model);
    (*out)->state = r;
    return KV_OK;
}

static kv_status serve(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    const kv_app *app = ctx;
    kv_response *r;
    kv_job *j;
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = read_request(&r, app, req, err);
    if (st != KV_OK) return st;
    st = make_job(&j, r, req, app, err);
    if (st == KV_OK) return kv_job_run(j, req, res, err);
    kv_response_free(r);
    return st;
}

kv_status kv_serve_responses(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return kv_gate_serve_as(&kv_response_voice, serve, true, app, req, res, err);
}

kv_status kv_serve_response_input_tokens(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    const kv_app *app = ctx;
    kv_response *r;
    kv_job *j;
    kv_status st = kv_app_require_model(app, err);
    if (st == KV_OK) st = read_request(&r, app, req, err);
    if (st != KV_OK) return st;
    st = make_job(&j, r, req, app, err);
    if (st != KV_OK) {
        kv_response_free(r);
        return st;
    }
    kv_buf_addf(&res->body, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", j->prompts.list[0].len);
    kv_job_free(j);
    return KV_OK;
}
