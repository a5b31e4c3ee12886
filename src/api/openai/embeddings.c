/* /v1/embeddings, OpenAI's, and /embedding and /embeddings, llama-server's own.
 *
 *   {"input": "text" | ["a", "b"] | [1, 2] | [[1], [2, 3]], "encoding_format": "float" | "base64"}
 *     ─► {"object": "list", "model", "data": [{"object": "embedding", "index", "embedding": […]}], "usage"}
 *   {"content": as input}, or any at llama-server's own paths
 *     ─► [{"index", "embedding": [[…], …]}]      without pooling a row a token
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "api/body.h"
#include "api/embed.h"
#include "api/endpoints.h"
#include "api/params.h"
#include "api/prompt.h"

#define INPUTS_MAX 2048 /* OpenAI's */

typedef struct question {
    json_t *body;      /* owned */
    const char *model; /* what the request calls it; of body, or the app's */
    kv_prompts texts;  /* owned */
    const char *field; /* "input" or "content" */
    bool own;          /* llama-server's own answer */
    bool base64;
    int normalise;
    float *rows; /* owned */
} question;

static void free_question(question *q) {
    json_decref(q->body);
    kv_prompts_free(&q->texts);
    free(q->rows);
}

/* ── request ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_pooling(const kv_app *app, bool own, kv_error *err) {
    if (!app->embed)
        return kv_fail(err, KV_UNSUPPORTED, "This server does not support embeddings. Start it with `--embeddings`");
    kv_pooling pooling = kv_embed_get_info(app->embed)->pooling;
    if (pooling == KV_POOLING_RANK)
        return kv_fail(
            err, KV_UNSUPPORTED,
            "This server ranks documents (--reranking, or a ranking model) and makes no embeddings. Start it "
            "with `--embeddings` and another `--pooling`");
    if (!own && pooling == KV_POOLING_NONE)
        return kv_fail(
            err, KV_INVALID,
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type (start the server "
            "with --pooling mean, cls or last)");
    return KV_OK;
}

static kv_status read_options(question *q, const kv_app *app, kv_error *err) {
    const char *format = "float";
    int64_t how = app->opt->embd_normalize, width = kv_embed_get_info(app->embed)->width, wanted = width;
    kv_status st = kv_json_str(&format, q->body, "encoding_format", err);
    if (st != KV_OK) return st;
    q->base64 = strcmp(format, "base64") == 0;
    if (!q->base64 && strcmp(format, "float") != 0)
        return kv_fail_field(
            err, "encoding_format",
            "'encoding_format' is the format to return the embeddings in: float or base64, not \"%.40s\"", format);
    st = kv_json_int(&how, q->body, "embd_normalize", -1, 65536, err);
    if (st == KV_OK) st = kv_json_int(&wanted, q->body, "dimensions", 1, INT32_MAX, err);
    if (st == KV_OK && wanted != width)
        st =
            kv_fail_field(err, "dimensions", "'dimensions' is not supported: this model's embeddings have %lld numbers",
                          (long long)width);
    q->normalise = (int)how;
    return st;
}

static kv_status read_question(question *q, const kv_app *app, kv_http_request *req, kv_error *err) {
    kv_status st = kv_body_read_for_model(&q->body, req, app, err);
    if (st != KV_OK) return st;
    q->model = app->model_name;
    st = kv_json_str(&q->model, q->body, "model", err);
    q->field = kv_json_get(q->body, "input") ? "input" : "content";
    const json_t *input = kv_json_get(q->body, q->field);
    if (strcmp(q->field, "content") == 0) q->own = true;
    if (st == KV_OK && !input) st = kv_fail_field(err, "input", "\"input\" or \"content\" must be provided");
    if (st == KV_OK) st = read_options(q, app, err);
    if (st == KV_OK) st = kv_prompts_parse_field(&q->texts, app->model, input, q->field, INPUTS_MAX, err);
    return st;
}

/* ── answer ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Little-endian floats, as the machine has them. */
static json_t *base64(const float *row, size_t n) {
    size_t room = sodium_base64_encoded_len(n * sizeof *row, sodium_base64_VARIANT_ORIGINAL);
    char *text = kv_alloc(room);
    sodium_bin2base64(text, room, (const unsigned char *)row, n * sizeof *row, sodium_base64_VARIANT_ORIGINAL);
    json_t *v = json_string(text);
    free(text);
    return v;
}

static json_t *own_answer(const question *q, const kv_embedder_info *info) {
    json_t *list = json_array();
    const float *row = q->rows;
    for (int i = 0; i < q->texts.n; i++) {
        size_t n_rows = info->pooling == KV_POOLING_NONE ? q->texts.list[i].len : 1;
        json_t *rows = json_array();
        for (size_t k = 0; k < n_rows; k++, row += info->width)
            json_array_append_new(rows, kv_embed_json(row, (size_t)info->width));
        json_array_append_new(list, json_pack("{s:i, s:o}", "index", i, "embedding", rows));
    }
    return list;
}

static json_t *openai_answer(const question *q, const kv_embedder_info *info) {
    json_t *list = json_array();
    size_t n_tokens = 0, width = (size_t)info->width;
    for (int i = 0; i < q->texts.n; i++) {
        const float *row = q->rows + (size_t)i * width;
        json_t *o =
            json_pack("{s:o, s:i, s:s}", "embedding", q->base64 ? base64(row, width) : kv_embed_json(row, width),
                      "index", i, "object", "embedding");
        if (q->base64) json_object_set_new(o, "encoding_format", json_string("base64"));
        json_array_append_new(list, o);
        n_tokens += q->texts.list[i].len;
    }
    return json_pack("{s:o, s:s, s:{s:I, s:I}, s:o}", "model", kv_json_text0(q->model), "object", "list", "usage",
                     "prompt_tokens", (json_int_t)n_tokens, "total_tokens", (json_int_t)n_tokens, "data", list);
}

static kv_status serve(kv_app *app, bool own, kv_http_request *req, kv_http_response *res, kv_error *err) {
    question q = {.own = own};
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = check_pooling(app, own, err);
    if (st == KV_OK) st = read_question(&q, app, req, err);
    if (st == KV_OK) st = kv_embed_run(&q.rows, app, q.texts.list, q.texts.n, q.field, req, err);
    if (st == KV_OK) {
        const kv_embedder_info *info = kv_embed_get_info(app->embed);
        size_t n_rows = kv_embed_room(app->embed, q.texts.list, q.texts.n) / (size_t)info->width;
        for (size_t i = 0; i < n_rows && info->pooling != KV_POOLING_NONE; i++)
            kv_embed_normalise(q.rows + i * (size_t)info->width, (size_t)info->width, q.normalise);
        json_t *o = q.own ? own_answer(&q, info) : openai_answer(&q, info);
        kv_json_dump_new(&res->body, o);
        kv_http_note(req, "embeddings of %d texts", q.texts.n);
    }
    free_question(&q);
    return st;
}

kv_status kv_serve_embeddings(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve(app, false, req, res, err);
}

kv_status kv_serve_embedding(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve(app, true, req, res, err);
}
