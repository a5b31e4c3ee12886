/* /tokenize and /detokenize. */
#include "api/body.h"
#include "api/endpoints.h"
#include "api/params.h"
#include "api/prompt.h"

static kv_status read_body(json_t **body, kv_app *app, kv_http_request *req, kv_error *err) {
    *body = NULL;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    st = kv_body_read(body, req, err);
    if (st == KV_OK && !json_is_object(*body)) st = kv_fail(err, KV_INVALID, "the request body must be a JSON object");
    return st;
}

#define ANSWER_MAX ((size_t)64 << 20) /* bytes: nine million token ids, or two million with their pieces */

static kv_status refuse_length(const char *field, size_t n, kv_error *err) {
    return kv_fail_field(err, field,
                         "'%s' has %zu tokens, and the answer to them would be longer than %zu MiB; send it in parts",
                         field, n, ANSWER_MAX >> 20);
}

/* A piece is a text, or where it is no whole characters, its bytes. `piece` is scratch. */
static void write_token_with_piece(kv_buf *out, kv_buf *piece, const kv_model *model, kv_token token) {
    kv_buf_clear(piece);
    kv_model_piece(piece, model, token, true);
    const char *s = kv_buf_str(piece);
    kv_buf_addf(out, "{\"id\":%d,\"piece\":", (int)token);
    if (kv_utf8_valid(s, piece->len)) {
        kv_json_quote(out, s, piece->len);
    } else {
        for (size_t i = 0; i < piece->len; i++) kv_buf_addf(out, "%c%d", i ? ',' : '[', (unsigned char)s[i]);
        kv_buf_adds(out, "]");
    }
    kv_buf_adds(out, "}");
}

/* As text at once: a tree of millions of tokens would be gigabytes. */
static kv_status write_tokens(kv_buf *out, const kv_model *model, const kv_tokens *tokens, bool with_pieces,
                              kv_error *err) {
    kv_buf piece = {0};
    kv_buf_adds(out, "{\"tokens\":[");
    for (size_t i = 0; i < tokens->len && out->len <= ANSWER_MAX; i++) {
        if (i) kv_buf_adds(out, ",");
        if (with_pieces) write_token_with_piece(out, &piece, model, tokens->data[i]);
        else kv_buf_addf(out, "%d", (int)tokens->data[i]);
    }
    kv_buf_adds(out, "]}");
    kv_buf_free(&piece);
    if (out->len <= ANSWER_MAX) return KV_OK;
    kv_buf_free(out);
    return refuse_length("content", tokens->len, err);
}

kv_status kv_serve_tokenize(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    json_t *body;
    bool add_special = false, parse_special = true, with_pieces = false;
    kv_tokens tokens = {0};
    kv_status st = read_body(&body, app, req, err);
    if (st == KV_OK) st = kv_json_bool(&add_special, body, "add_special", err);
    if (st == KV_OK) st = kv_json_bool(&parse_special, body, "parse_special", err);
    if (st == KV_OK) st = kv_json_bool(&with_pieces, body, "with_pieces", err);
    const json_t *content = st == KV_OK ? kv_json_get(body, "content") : NULL;
    if (content) st = kv_prompt_mixed(&tokens, app->model, content, "content", add_special, parse_special, err);
    else if (st == KV_OK) st = kv_fail_field(err, "content", "'content' is required");
    if (st == KV_OK) st = write_tokens(&res->body, app->model, &tokens, with_pieces, err);
    kv_tokens_free(&tokens);
    json_decref(body);
    return st;
}

kv_status kv_serve_detokenize(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    json_t *body;
    kv_tokens tokens = {0};
    kv_buf text = {0};
    kv_status st = read_body(&body, app, req, err);
    const json_t *list = st == KV_OK ? kv_json_get(body, "tokens") : NULL;
    if (st == KV_OK && !list) st = kv_fail_field(err, "tokens", "'tokens' is required");
    if (list && !json_is_array(list)) st = kv_fail_field(err, "tokens", "'tokens' must be an array of token ids");
    for (size_t i = 0; st == KV_OK && i < json_array_size(list); i++) {
        int64_t id;
        if (kv_json_as_int(&id, json_array_get(list, i), 0, kv_model_get_info(app->model)->n_vocab - 1))
            kv_tokens_add(&tokens, (kv_token)id);
        else st = kv_fail_field(err, "tokens", "'tokens[%zu]' is not a token of this vocabulary", i);
    }
    for (size_t i = 0; st == KV_OK && i < tokens.len; i++) {
        kv_model_piece(&text, app->model, tokens.data[i], true);
        if (text.len > ANSWER_MAX) st = refuse_length("tokens", tokens.len, err);
    }
    if (st == KV_OK) {
        json_t *o = json_pack("{s:o}", "content", kv_json_text(kv_buf_str(&text), text.len));
        kv_json_dump_new(&res->body, o);
    }
    kv_buf_free(&text);
    kv_tokens_free(&tokens);
    json_decref(body);
    return st;
}
