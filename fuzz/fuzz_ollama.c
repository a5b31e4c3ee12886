/* fuzz/fuzz_ollama.c: a body of /api/chat or /api/generate, from its bytes to a job.
 *
 * The first byte chooses between the two, and what becomes of images; the rest is the body. The model is the fake
 * engine's, with bytes for tokens and ChatML for a template.
 *
 *  1. it ends in KV_OK or in a status that a client gets as 4xx or 501, with a message that is valid UTF-8
 *  2. a refusal's body is a JSON object with an `error` that is a text
 *  3. a job has one prompt, of tokens that the model has
 */
#include <stdlib.h>
#include <string.h>

#include "api/ollama/ollama.h"
#include "engine/engine_fake.h"
#include "fuzz.h"

static kv_options options[2]; /* images: refused; replaced */
static kv_app app;

static void set_up(void) {
    if (app.model) return;
    for (int i = 0; i < 2; i++) kv_options_defaults(&options[i]);
    free(options[1].on_image);
    options[1].on_image = kv_strdup("placeholder");
    kv_fake_params fake;
    kv_fake_params_defaults(&fake);
    KV_CHECK(kv_model_load_fake(&app.model, &fake, NULL) == KV_OK);
    app.n_ctx_served = 1 << 20;
    app.engine_info.n_slots = 4;
    strcpy(app.model_name, "fuzz");
    kv_sampling_defaults(&app.sampling_defaults);
}

static void check_refusal(kv_status st, const kv_error *err) {
    int http = kv_status_http(st);
    KV_CHECK((http >= 400 && http < 500) || st == KV_UNSUPPORTED);
    KV_CHECK(err->status == st && err->message[0] && kv_utf8_valid(err->message, strlen(err->message)));
    KV_CHECK(kv_utf8_valid(err->field, strlen(err->field)));
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
    set_up();
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
