/* engine_llama on real models: load, tokenise, decode, fork, cut, blobs, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"

#define SMOL "SmolLM2-135M-Instruct.Q4_1.gguf"
#define GEMMA "gemma-3-270m-q4_k_m.gguf"

/* A missing model is a failure, not a skip: these tests are the only ones that see the real engine. */
static const char *fixture(const char *name) {
    static char path[4096];
    const char *dir = getenv("KVASIR_FIXTURES");
    if (!dir) fail_msg("KVASIR_FIXTURES is not set: run the tests through ctest or `make test`");
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, R_OK) != 0) fail_msg("%s is missing: scripts/fetch-models.sh makes it", path);
    return path;
}

static void check(kv_status status, const kv_error *err) {
    if (status != KV_OK) fail_msg("%s: %s", kv_status_name(status), err->message);
}

static kv_model *load(const char *name) {
    kv_error err = {0};
    kv_model *m;
    kv_model_params p = {.path = fixture(name), .n_gpu_layers = 0, .use_mmap = true};
    check(kv_model_load_llama(&m, &p, &err), &err);
    return m;
}

static kv_model *smol, *gemma;

static int load_models(void **state) {
    (void)state;
    smol = load(SMOL);
    gemma = load(GEMMA);
    return 0;
}

static int free_models(void **state) {
    (void)state;
    kv_model_free(smol);
    kv_model_free(gemma);
    return 0;
}

static kv_engine *engine_sized(kv_model *m, int32_t n_ctx, int32_t n_slots, int32_t n_batch) {
    kv_error err = {0};
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = n_ctx;
    p.n_slots = n_slots;
    p.n_batch = n_batch;
    p.n_threads = p.n_threads_batch = 2;
    p.flash_attn = KV_FA_OFF;
    kv_engine *e;
    check(kv_engine_new(&e, m, &p, &err), &err);
    return e;
}

/* Decode n tokens of one sequence at its end; the last one's logits are wanted. */
static kv_status run(kv_engine *e, kv_seq seq, const kv_token *tokens, int n, kv_error *err) {
    kv_token token[1024];
    kv_pos pos[1024];
    kv_seq seqs[1024];
    bool want[1024];
    kv_pos start = kv_engine_pos_max(e, seq) + 1;
    for (int i = 0; i < n; i++) {
        token[i] = tokens[i];
        pos[i] = start + i;
        seqs[i] = seq;
        want[i] = i == n - 1;
    }
    return kv_engine_decode(e, &(kv_batch){n, token, pos, seqs, want}, err);
}

__attribute__((unused)) static kv_token argmax(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static kv_tokens tokens_of(const kv_model *m, const char *text) {
    kv_error err = {0};
    kv_tokens t = {0};
    check(kv_model_tokenize(&t, m, text, strlen(text), true, true, &err), &err);
    return t;
}

/* ── load, text, greedy answer ── */

static void test_answers_a_chat_prompt(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 512, 2, 128);
    kv_tokens t = tokens_of(smol, "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n");
    check(run(e, 0, t.data, (int)t.len, &err), &err);
    kv_sampling s;
    kv_sampling_defaults(&s);
    s.temperature = 0;
    kv_sampler *sampler;
    check(kv_sampler_new(&sampler, smol, &s, NULL, &err), &err);
    check(kv_sampler_prime(sampler, t.data, t.len, &err), &err);
    kv_buf text = {0};
    int row = (int)t.len - 1;
    for (int i = 0; i < 32; i++) {
        kv_token token;
        check(kv_sampler_sample(&token, sampler, e, row, &err), &err);
        if (kv_model_is_eog(smol, token)) break;
        kv_model_piece(&text, smol, token, false);
        check(run(e, 0, &token, 1, &err), &err);
        row = 0;
    }
    if (!strstr(kv_buf_str(&text), "Paris")) fail_msg("an answer without Paris: %s", kv_buf_str(&text));
    kv_buf_free(&text);
    kv_sampler_free(sampler);
    kv_tokens_free(&t);
    kv_engine_free(e);
}

static void test_info(void **state) {
    (void)state;
    const kv_model_info *info = kv_model_get_info(smol);
    assert_string_equal(info->arch, "llama");
    assert_int_equal(info->n_vocab, 49152);
    assert_int_equal(info->n_ctx_train, 8192);
    assert_int_equal(info->n_window, 0);
    assert_string_equal(info->eos_text, "<|im_end|>");
    assert_true(info->chat_template_explicit);
    assert_non_null(strstr(info->chat_template, "<|im_start|>"));
    info = kv_model_get_info(gemma);
    assert_string_equal(info->arch, "gemma3");
    assert_int_equal(info->n_window, 512);
    assert_false(info->chat_template_explicit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_a_chat_prompt),
        cmocka_unit_test(test_info),
    };
    return cmocka_run_group_tests(tests, load_models, free_models);
}
