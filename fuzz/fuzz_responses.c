/* fuzz/fuzz_responses.c: a body of /v1/responses, from its bytes to a prompt.
 *
 * The first byte chooses what becomes of images, and whether a conversation is there to go on with ("resp_1", with the
 * item "msg_1"); the rest is the body. The model is the fake engine's, with bytes for tokens and ChatML for a template.
 *
 *  1. each step ends in KV_OK or in a status that a client gets as 4xx or 501, with a message that is valid UTF-8
 *  2. an error about the chat body is renamed without being cut inside a character
 *  3. taking tokens again leaves the prompt's text as it is
 *  4. what is stored of a request can be read again
 */
#include "api/chat_body.h"
#include "api/responses/responses.h"
#include "app.h"

static kv_stored *stored;

static void store_one(void) {
    kv_stored_response r = {.id = (char *)"resp_1"};
    kv_buf_adds(&r.object, "{\"output\":[{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"assistant\",\"content\":"
                           "[{\"type\":\"output_text\",\"text\":\"yes\",\"annotations\":[]}]}]}");
    kv_buf_adds(&r.input, "[{\"type\":\"message\",\"id\":\"msg_0\",\"role\":\"user\",\"content\":"
                          "[{\"type\":\"input_text\",\"text\":\"hi\"}]}]");
    for (const char *c = "<|im_start|>user\nhi"; *c; c++) kv_tokens_add(&r.tokens, *c);
    KV_CHECK(kv_stored_put(stored, "", &r, (const char *const[]){"msg_0", "msg_1"}, 2, NULL) == KV_OK);
    kv_buf_free(&r.object);
    kv_buf_free(&r.input);
    kv_tokens_free(&r.tokens);
}

static void set_up(void) {
    if (!open_app(1 << 20)) return;
    stored = kv_stored_open(&(kv_stored_config){0});
    store_one();
}

static void spell(kv_buf *out, const kv_tokens *t) {
    for (size_t i = 0; i < t->len; i++) kv_model_piece(out, app.model, t->data[i], true);
}

static void check_prompt(kv_tokens *prompt, const kv_response *r) {
    kv_buf before = {0}, after = {0};
    spell(&before, prompt);
    KV_CHECK(r->before.n == 0); /* the stored one does not say where its answer is */
    kv_response_reuse(prompt, &r->before, app.model);
    spell(&after, prompt);
    KV_CHECK(before.len == after.len && memcmp(kv_buf_str(&before), kv_buf_str(&after), before.len) == 0);
    kv_buf_free(&before);
    kv_buf_free(&after);
}

/* The request's own items, stored and read again, are the same items. */
static void check_items(const kv_response *r) {
    json_t *again = json_array();
    kv_error err = {0};
    KV_CHECK(kv_response_items(again, json_array_size(r->input) ? r->input : NULL, &app, "", &err) == KV_OK);
    KV_CHECK(json_array_size(again) == json_array_size(r->input));
    json_decref(again);
}

static void check_job(kv_response *r) {
    static const kv_dialect nothing = {.id_prefix = "x"};
    kv_job *j = NULL;
    kv_error err = {0};
    kv_status st = kv_chat_job_new(&j, &nothing, r->chat, NULL, &app, &err);
    if (st != KV_OK) {
        kv_response_rename_error(&err, r);
        check_status(st, &err);
        return;
    }
    check_prompt(&j->prompts.list[0], r);
    kv_job_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    set_up();
    if (size == 0) return 0;
    app.opt = &options[data[0] & 1];
    app.responses = data[0] & 2 ? stored : NULL;
    json_t *body = NULL;
    kv_response *r = NULL;
    kv_error err = {0};
    kv_status st = kv_json_parse(&body, (const char *)data + 1, size - 1, &err);
    if (st == KV_OK) st = kv_response_read(&r, body, "", &app, &err);
    json_decref(body);
    if (st == KV_OK) {
        check_items(r);
        check_job(r);
    } else {
        check_status(st, &err);
    }
    KV_CHECK((st == KV_OK) == (r != NULL));
    kv_response_free(r);
    return 0;
}
