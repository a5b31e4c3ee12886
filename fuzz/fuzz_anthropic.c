/* fuzz/fuzz_anthropic.c: a body of /v1/messages, from its bytes to a prompt with its breakpoints.
 *
 * The first byte chooses between messages and count_tokens, and what becomes of images; the rest is the body. The model
 * is the fake engine's, with bytes for tokens and ChatML for a template.
 *
 *  1. each step ends in KV_OK or in a status that a client gets as 4xx or 501, with a message that is valid UTF-8
 *  2. what was translated is a chat body that the chat machinery takes or refuses, never one that it stumbles over
 *  3. breakpoints are inside of the prompt, in ascending order, with a time
 */
#include "api/anthropic/anthropic.h"
#include "api/chat_body.h"
#include "app.h"

static void check_refusal(kv_status st, const kv_error *err) {
    check_status(st, err);
    kv_buf out = {0};
    kv_anthropic_error_body(&out, err);
    json_t *v = json_loadb(kv_buf_str(&out), out.len, JSON_ALLOW_NUL, NULL);
    KV_CHECK(json_is_string(json_object_get(json_object_get(v, "error"), "message")));
    json_decref(v);
    kv_buf_free(&out);
}

static void check_job(const kv_anthropic *a) {
    static const kv_dialect nothing = {.id_prefix = "x"};
    kv_job *j = NULL;
    kv_error err = {0};
    kv_status st = kv_chat_job_new(&j, &nothing, a->chat, NULL, &app, &err);
    if (st != KV_OK) {
        check_refusal(st, &err);
        return;
    }
    kv_anthropic_find_marks(j, a);
    KV_CHECK(j->n_hints <= a->n_marks);
    for (int i = 0; i < j->n_hints; i++) {
        KV_CHECK(j->hints[i].position >= 1 && j->hints[i].position < (int32_t)j->prompts.list[0].len);
        KV_CHECK(i == 0 || j->hints[i].position > j->hints[i - 1].position);
        KV_CHECK(j->hints[i].keep_seconds > 0);
    }
    kv_job_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    open_app(1 << 20);
    if (size == 0) return 0;
    app.opt = &options[data[0] >> 1 & 1];
    json_t *body = NULL;
    kv_anthropic a = {0};
    kv_error err = {0};
    kv_status st = kv_json_parse(&body, (const char *)data + 1, size - 1, &err);
    if (st == KV_OK) st = kv_anthropic_read(&a, body, data[0] & 1, &app, &err);
    json_decref(body);
    if (st == KV_OK) check_job(&a);
    else check_refusal(st, &err);
    KV_CHECK(st == KV_OK || (!a.chat && a.n_marks == 0));
    kv_anthropic_free(&a);
    return 0;
}
