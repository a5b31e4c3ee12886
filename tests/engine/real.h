/* tests/engine/real.h: what the tests on real models share. */
#ifndef KV_TESTS_ENGINE_REAL_H
#define KV_TESTS_ENGINE_REAL_H

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

#define SMOL  "SmolLM2-135M-Instruct.Q4_1.gguf"
#define GEMMA "gemma-3-270m-q4_k_m.gguf"

/* A missing model is a failure, not a skip: these tests are the only ones that see the real engine. */
static inline const char *fixture(const char *name) {
    static char path[4096];
    const char *dir = getenv("KVASIR_FIXTURES");
    if (!dir) fail_msg("KVASIR_FIXTURES is not set: run the tests through ctest or `make test`");
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, R_OK) != 0) fail_msg("%s is missing: scripts/fetch-models.sh makes it", path);
    return path;
}

static inline void check(kv_status status, const kv_error *err) {
    if (status != KV_OK) fail_msg("%s: %s", kv_status_name(status), err->message);
}

static inline kv_model *load_with(kv_model_params p, const char *name) {
    kv_error err = {0};
    kv_model *m;
    p.path = fixture(name);
    p.use_mmap = true;
    check(kv_model_load_llama(&m, &p, &err), &err);
    return m;
}

static inline kv_model *load(const char *name) {
    return load_with((kv_model_params){0}, name);
}

static inline kv_engine *engine_sized(kv_model *m, int32_t n_ctx, int32_t n_slots, int32_t n_batch) {
    kv_error err = {0};
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = n_ctx;
    p.n_slots = n_slots;
    p.n_batch = n_batch;
    p.n_threads = p.n_threads_batch = 1; /* more would spin against each other on a busy machine */
    p.flash_attn = KV_FA_OFF;
    kv_engine *e;
    check(kv_engine_new(&e, m, &p, &err), &err);
    return e;
}

#define RUN_MAX 1024

/* Decode n tokens of one sequence at its end; the last one's logits are wanted, at row n - 1. */
static inline kv_status run(kv_engine *e, kv_seq seq, const kv_token *tokens, int n, kv_error *err) {
    static kv_token token[RUN_MAX];
    static kv_pos pos[RUN_MAX];
    static kv_seq seqs[RUN_MAX];
    static bool want[RUN_MAX];
    assert_true(n <= RUN_MAX);
    kv_pos start = kv_engine_pos_max(e, seq) + 1;
    for (int i = 0; i < n; i++) {
        token[i] = tokens[i];
        pos[i] = start + i;
        seqs[i] = seq;
        want[i] = i == n - 1;
    }
    return kv_engine_decode(e, &(kv_batch){n, token, pos, seqs, want}, err);
}

/* The same in chunks. */
static inline void run_all(kv_engine *e, kv_seq seq, const kv_token *tokens, int n, int chunk) {
    kv_error err = {0};
    for (int i = 0; i < n; i += chunk) check(run(e, seq, tokens + i, n - i < chunk ? n - i : chunk, &err), &err);
}

static inline kv_tokens tokens_of(const kv_model *m, const char *text) {
    kv_error err = {0};
    kv_tokens t = {0};
    check(kv_model_tokenize(&t, m, text, strlen(text), true, true, &err), &err);
    return t;
}

#endif
