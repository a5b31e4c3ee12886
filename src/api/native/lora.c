/* GET and POST /lora-adapters, and the field `lora`: the adapters that the model was loaded with, at their scales.
 *
 * Other scales make other states: they are a part of the cache's namespace, which is the server's, not a request's. So
 * what asks for the scales in effect is granted, and anything else is told how to get it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/body.h"
#include "api/endpoints.h"
#include "api/native/lora.h"

kv_status kv_serve_loras(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    const kv_app *app = ctx;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    const kv_model_info *m = kv_model_get_info(app->model);
    json_t *list = json_array();
    for (int i = 0; i < m->n_loras; i++) {
        const kv_lora_info *l = &m->loras[i];
        json_array_append_new(list, json_pack("{s:i, s:o, s:f, s:o, s:o}", "id", i, "path", kv_json_text0(l->path),
                                              "scale", (double)l->scale, "task_name", kv_json_text0(l->task_name),
                                              "prompt_prefix", kv_json_text0(l->prompt_prefix)));
    }
    kv_json_dump_new(&res->body, list);
    return KV_OK;
}

/* One entry of the list: which adapter, and the scale asked for. */
static kv_status read_entry(int *id, float *scale, const json_t *entry, size_t i, const char *field, int n_loras,
                            kv_error *err) {
    char path[96];
    int64_t number = -1;
    snprintf(path, sizeof path, "%.60s[%zu]", field, i);
    if (!json_is_object(entry))
        return kv_fail_field(err, path, "'%s' must be an object {\"id\": number, \"scale\": number}", path);
    snprintf(path, sizeof path, "%.60s[%zu].id", field, i);
    if (!kv_json_as_int(&number, kv_json_get(entry, "id"), 0, n_loras - 1))
        return n_loras ? kv_fail_field(err, path, "'%s' must be the id of an adapter, 0 to %d", path, n_loras - 1)
                       : kv_fail_field(err, path,
                                       "'%s' names an adapter, and the server was started without any (--lora)", path);
    const json_t *value = kv_json_get(entry, "scale");
    snprintf(path, sizeof path, "%.60s[%zu].scale", field, i);
    if (value && !json_is_number(value)) return kv_fail_field(err, path, "'%s' must be a number", path);
    *id = (int)number;
    *scale = value ? (float)json_number_value(value) : 0; /* as in llama-server */
    return KV_OK;
}

kv_status kv_lora_check(const json_t *list, const char *field, const kv_model_info *m, kv_error *err) {
    if (!json_is_array(list))
        return kv_fail_field(err, field, "'%s' must be an array of {\"id\": number, \"scale\": number}", field);
    float *asked = kv_alloc((size_t)(m->n_loras + 1) * sizeof *asked); /* what the list leaves out is off */
    kv_status st = KV_OK;
    for (size_t i = 0; st == KV_OK && i < json_array_size(list); i++) {
        int id = 0;
        float scale = 0;
        st = read_entry(&id, &scale, json_array_get(list, i), i, field, m->n_loras, err);
        if (st == KV_OK) asked[id] = scale;
    }
    for (int i = 0; st == KV_OK && i < m->n_loras; i++)
        if (fabsf(asked[i] - m->loras[i].scale) > 1e-6f)
            st = kv_fail_field(err, field,
                               "'%s' asks for adapter %d at scale %g, and the server runs it at %g: scales belong to "
                               "what is cached, so they are chosen at start (--lora-scaled FILE:%g)",
                               field, i, (double)asked[i], (double)m->loras[i].scale, (double)asked[i]);
    free(asked);
    return st;
}

kv_status kv_serve_set_loras(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    const kv_app *app = ctx;
    json_t *body = NULL;
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = kv_body_read(&body, req, err);
    if (st == KV_OK && !json_is_array(body)) st = kv_fail(err, KV_INVALID, "Request body must be an array");
    if (st == KV_OK) st = kv_lora_check(body, "lora", kv_model_get_info(app->model), err);
    json_decref(body);
    if (st == KV_OK) kv_buf_adds(&res->body, "{\"success\":true}");
    return st;
}

kv_status kv_field_lora(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err) {
    (void)p;
    if (json_is_array(value) && json_array_size(value) == 0) return KV_OK; /* llama-server: as the server's */
    return kv_lora_check(value, name, kv_model_get_info(app->model), err);
}
