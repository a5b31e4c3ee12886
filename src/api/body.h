/* api/body.h: a request's JSON.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_BODY_H
#define KV_API_BODY_H

#include "api/app.h"
#include "base/json.h"

/* The body, owned by the caller; NULL on failure. KV_INVALID says where it is no JSON, by line and column. */
kv_status kv_body_read(json_t **out, const kv_http_request *req, kv_error *err);
/* Of a request that the model is to work for: also what kv_params_check_body checks. */
kv_status kv_body_read_for_model(json_t **out, const kv_http_request *req, const kv_app *app, kv_error *err);

#endif
