/* /api/embed: {"model", "input": "text" | ["a", "b"]} ─► {"model", "embeddings": [[…], …], "total_duration", …}
 * /api/embeddings, deprecated there: {"model", "prompt": "text"} ─► {"embedding": […]}, as the model gives it
 *
 * Texts that are too long are cut, unless `truncate` is false.
 */
#include <stdlib.h>
#include <string.h>

#include "api/body.h"
#include "api/embed.h"
#include "api/endpoints.h"
#include "api/ollama/ollama.h"

#define INPUTS_MAX 2048 /* as OpenAI's */

typedef struct question {
    json_t *body;      /* owned */
    const char *model; /* of body, or the app's */
    kv_prompts texts;  /* owned */
    bool truncate;
    int64_t width; /* numbers of a vector that are wanted */
    float *rows;   /* owned */
} question;

static void free_question(question *q) {
    json_decref(q->body);
    kv_prompts_free(&q->texts);
    free(q->rows);
}

static kv_status check_pooling(const kv_app *app, kv_error *err) {
    if (!app->embed) return kv_fail(err, KV_UNSUPPORTED, "this server makes no embeddings: start it with --embeddings");
    kv_pooling pooling = kv_embed_get_info(app->embed)->pooling;
    if (pooling == KV_POOLING_RANK || pooling == KV_POOLING_NONE)
        return kv_fail(err, KV_UNSUPPORTED,
                       "this server's pooling, '%s', gives no vector a text: start it with --pooling mean, cls or last",
                       kv_pooling_name(pooling));
    return KV_OK;
}

/* Texts only: numbers and lists are no input there. */
static kv_status check_input(const json_t *input, const char *field, bool many, kv_error *err) {
    if (json_is_string(input)) return KV_OK;
    if (!many) return kv_fail_field(err, field, "'%s' must be a string", field);
    const json_t *text;
    size_t i;
    bool right = json_is_array(input);
    json_array_foreach(input, i, text) if (!json_is_string(text)) right = false;
    return right ? KV_OK : kv_fail_field(err, field, "'%s' must be a string or an array of strings", field);
}

static kv_status read_question(question *q, bool many, const kv_app *app, const kv_http_request *req, kv_error *err) {
    double seconds;
    const char *field = many ? "input" : "prompt";
    kv_status st = kv_body_read(&q->body, req, err);
    if (st == KV_OK) st = kv_ollama_model_of(&q->model, q->body, app, err);
    if (st != KV_OK) return st;
    const json_t *input = kv_json_get(q->body, field), *keep_alive = kv_json_get(q->body, "keep_alive");
    q->width = kv_embed_get_info(app->embed)->width;
    int64_t wanted = 0;
    st = kv_json_bool(&q->truncate, q->body, "truncate", err);
    if (st == KV_OK) st = kv_json_int(&wanted, q->body, "dimensions", 0, INT32_MAX, err);
    if (st == KV_OK && keep_alive && !kv_ollama_seconds(&seconds, keep_alive))
        st = kv_fail_field(err, "keep_alive", "'keep_alive' must be a number of seconds or a duration such as \"5m\"");
    if (wanted > 0 && wanted < q->width) q->width = wanted;
    if (st == KV_OK && input) st = check_input(input, field, many, err);
    if (st != KV_OK || !input || (json_is_array(input) && json_array_size(input) == 0)) return st;
    return kv_prompts_parse_field(&q->texts, app->model, input, field, INPUTS_MAX, err);
}

static void cut(question *q, const kv_app *app) {
    size_t most = (size_t)kv_embed_get_info(app->embed)->n_text_max;
    for (int i = 0; i < q->texts.n && q->truncate; i++)
        if (q->texts.list[i].len > most) q->texts.list[i].len = most;
}

static json_t *many_answer(const question *q, const kv_app *app, int64_t started_us) {
    size_t width = (size_t)kv_embed_get_info(app->embed)->width;
    json_t *list = json_array();
    json_int_t n_tokens = 0;
    for (int i = 0; i < q->texts.n; i++) {
        float *row = q->rows + (size_t)i * width;
        kv_embed_normalise(row, (size_t)q->width, 2);
        json_array_append_new(list, kv_embed_json(row, (size_t)q->width));
        n_tokens += (json_int_t)q->texts.list[i].len;
    }
    return json_pack("{s:o, s:o, s:I, s:I, s:I}", "model", kv_json_text0(q->model), "embeddings", list,
                     "total_duration", (json_int_t)(kv_now_us(kv_clock_real()) - started_us) * 1000, "load_duration",
                     (json_int_t)0, "prompt_eval_count", n_tokens);
}

static kv_status serve_inside(kv_app *app, bool many, kv_http_request *req, kv_http_response *res, kv_error *err) {
    question q = {.truncate = true};
    int64_t started_us = kv_now_us(kv_clock_real());
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = check_pooling(app, err);
    if (st == KV_OK) st = read_question(&q, many, app, req, err);
    if (st == KV_OK) cut(&q, app);
    if (st == KV_OK && q.texts.n)
        st = kv_embed_run(&q.rows, app, q.texts.list, q.texts.n, many ? "input" : "prompt", req, err);
    if (st == KV_OK) {
        json_t *o = many ? many_answer(&q, app, started_us)
                         : json_pack("{s:o}", "embedding", kv_embed_json(q.rows, q.texts.n ? (size_t)q.width : 0));
        kv_json_dump_new(&res->body, o);
    }
    free_question(&q);
    return st;
}

static kv_status inside_embed(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve_inside(app, true, req, res, err);
}

static kv_status inside_embeddings(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve_inside(app, false, req, res, err);
}

kv_status kv_serve_ollama_embed(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return kv_gate_serve(inside_embed, false, app, req, res, err);
}

kv_status kv_serve_ollama_embeddings(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return kv_gate_serve(inside_embeddings, false, app, req, res, err);
}
