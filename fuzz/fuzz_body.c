/* fuzz/fuzz_body.c: a request body, from its bytes to a prompt and a sampler, as the generating endpoints take it.
 *
 * The first byte chooses the endpoint, the rest is the body. The model is the fake engine's, with bytes for tokens and
 * ChatML for a template, so messages go through the real renderer and schemas through the real converter.
 *
 *  1. each step ends in KV_OK or in a status that a client gets as 4xx or 501, with a message that is valid UTF-8
 *  2. what was parsed is inside the stated limits
 *  3. whatever happens, everything is freed and the next input finds the same app
 */
#include "api/chat_body.h"
#include "api/params.h"
#include "api/prompt.h"
#include "app.h"

static void check_params(const kv_params *p) {
    KV_CHECK(p->n >= 1 && p->n <= app.engine_info.n_slots);
    KV_CHECK(p->n_predict >= -1 && p->n_probs >= 0 && p->n_probs <= KV_PARAMS_MAX_PROBS);
    KV_CHECK(p->n_stops >= 0 && p->n_stops <= KV_PARAMS_MAX_STOPS);
    KV_CHECK(p->sampling.mirostat >= 0 && p->sampling.mirostat <= 2);
    json_t *shown = kv_params_json(p, app.model, false);
    KV_CHECK(json_is_object(shown));
    json_decref(shown);
}

/* The sampler of what was asked: grammars and logit biases meet the engine here. */
static void check_sampler(const kv_params *p, const kv_chat_prompt *chat) {
    kv_sampler *sampler = NULL;
    kv_error err = {0};
    kv_status st = kv_sampler_new(&sampler, app.model, &p->sampling, chat, &err);
    if (st != KV_OK) check_status(st, &err);
    kv_sampler_free(sampler);
}

static void run_completion(const json_t *body, kv_api api) {
    kv_params p = {0};
    kv_prompts prompts = {0};
    kv_error err = {0};
    kv_status st = kv_params_parse(&p, body, api, &app, &err);
    if (st == KV_OK) {
        check_params(&p);
        st = kv_prompts_parse(&prompts, app.model, json_object_get(body, "prompt"), &err);
    }
    if (st == KV_OK) {
        KV_CHECK(prompts.n >= 1 && prompts.n <= KV_PROMPTS_MAX);
        check_sampler(&p, NULL);
    } else {
        check_status(st, &err);
    }
    kv_prompts_free(&prompts);
    kv_params_free(&p);
}

static void run_chat(const char *text, size_t n) {
    json_t *body = NULL;
    kv_params p = {0};
    kv_chat_prompt *prompt = NULL;
    kv_error err = {0};
    kv_status st = kv_json_parse(&body, text, n, &err);
    if (st == KV_OK) st = kv_chat_body_read(&p, &prompt, body, NULL, &app, &err);
    json_decref(body);
    if (st != KV_OK) {
        KV_CHECK(!prompt);
        check_status(st, &err);
        return;
    }
    check_params(&p);
    size_t len = 0;
    KV_CHECK(kv_chat_prompt_text(prompt, &len) && len > 0);
    check_sampler(&p, prompt);
    kv_chat_prompt_free(prompt);
    kv_params_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    open_app(4096);
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    if (data[0] % 4 >= 2) {
        run_chat(text, n);
        return 0;
    }
    json_t *body = NULL;
    kv_error err = {0};
    kv_status st = kv_json_parse(&body, text, n, &err);
    if (st == KV_OK) st = kv_params_check_body(body, &app, &err);
    if (st == KV_OK) run_completion(body, data[0] % 4 ? KV_API_COMPLETIONS : KV_API_NATIVE);
    else check_status(st, &err);
    json_decref(body);
    return 0;
}
