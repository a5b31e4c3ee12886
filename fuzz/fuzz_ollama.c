/* fuzz/fuzz_ollama.c: a body of /api/chat or /api/generate, from its bytes to a job.
 *
 * The first byte chooses between the two, and what becomes of images; the rest is the body. The model is the fake
 * engine's, with bytes for tokens and ChatML for a template.
 *
 *  1. it ends in KV_OK or in a status that a client gets as 4xx or 501, with a message that is valid UTF-8
 *  2. a refusal's body is a JSON object with an `error` that is a text
 *  3. a job has one prompt, of tokens that the model has
 */
#include "api/ollama/ollama.h"
#include "app.h"

static void check_refusal(kv_status st, const kv_error *err) {
    check_status(st, err);
    kv_buf out = {0};
    kv_ollama_error_body(&out, err);
    json_t *v = json_loadb(kv_buf_str(&out), out.len, JSON_ALLOW_NUL, NULL);
    KV_CHECK(json_is_string(json_object_get(v, "error")));
    json_decref(v);
    kv_buf_free(&out);
}

static void check_job(const kv_job *j) {
    KV_CHECK(j->state && j->prompts.n == 1);
    const kv_tokens *t = &j->prompts.list[0];
    for (size_t i = 0; i < t->len; i++) KV_CHECK(t->data[i] >= 0 && t->data[i] < kv_model_get_info(app.model)->n_vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    open_app(1 << 20);
    if (size == 0) return 0;
    app.opt = &options[data[0] >> 1 & 1];
    json_t *body = NULL;
    kv_job *j = NULL;
    kv_error err = {0};
    kv_status st = kv_json_parse(&body, (const char *)data + 1, size - 1, &err);
    if (st == KV_OK) st = kv_ollama_job(&j, body, data[0] & 1, &app, &err);
    json_decref(body);
    KV_CHECK(st == KV_OK || !j);
    if (j) check_job(j);
    if (st != KV_OK) check_refusal(st, &err);
    kv_job_free(j);
    return 0;
}
