/* bench/bare_decode.c: what the engine does alone, for `make bench` to hold the server against.
 *
 * A plain llama_decode loop with greedy sampling and nothing around it. It loads a model once and then obeys one
 * command a line on stdin, so that the driver (bench/throughput.mjs) can alternate it with requests over HTTP:
 *
 *   prefill N        clear, decode N tokens in chunks          → "prefill MS"
 *   decode N DEPTH   prefill DEPTH tokens where they are not there from the last time, then N steps → "decode MS" (of
 *                    the N steps alone)
 *   quit
 *
 * usage: bare_decode MODEL N_CTX CHUNK N_SEQ THREADS FA(0|1)
 * It includes llama.h although it is not in src/engine/: it stands for a program that does not have kvasir.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

static struct llama_context *ctx;
static const struct llama_vocab *vocab;
static int chunk;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

/* The same ids that the driver sends over HTTP (bench/throughput.mjs, tokenAt). */
static llama_token token_at(int i) {
    return 1000 + (i * 7919) % 30000;
}

static void decode(const llama_token *tokens, int n, int pos) {
    struct llama_batch b = llama_batch_init(n, 0, 1);
    b.n_tokens = n;
    for (int i = 0; i < n; i++) {
        b.token[i] = tokens[i];
        b.pos[i] = pos + i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = i == n - 1;
    }
    int ret = llama_decode(ctx, b);
    llama_batch_free(b);
    if (ret != 0) {
        fprintf(stderr, "bare_decode: llama_decode returned %d\n", ret);
        exit(1);
    }
}

static llama_token best(void) {
    const float *logits = llama_get_logits_ith(ctx, -1);
    int n = llama_vocab_n_tokens(vocab), top = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[top]) top = i;
    return top;
}

static void prefill(int n) {
    llama_token *tokens = malloc(sizeof *tokens * (size_t)chunk);
    if (!tokens) exit(1);
    for (int pos = 0; pos < n; pos += chunk) {
        int k = n - pos < chunk ? n - pos : chunk;
        for (int i = 0; i < k; i++) tokens[i] = token_at(pos + i);
        decode(tokens, k, pos);
    }
    free(tokens);
}

static int at; /* tokens of the prompt that the context holds, its answer behind them; 0 = none */

/* The prompt's first `depth` tokens, and the logits of the last. */
static void go_to(int depth) {
    llama_token last = token_at(depth - 1);
    if (at == depth && llama_memory_seq_rm(llama_get_memory(ctx), 0, depth - 1, -1)) {
        decode(&last, 1, depth - 1);
        return;
    }
    llama_memory_clear(llama_get_memory(ctx), false);
    prefill(depth);
    at = depth;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: bare_decode MODEL N_CTX CHUNK N_SEQ THREADS FA(0|1)\n");
        return 2;
    }
    chunk = atoi(argv[3]);
    int n_seq = atoi(argv[4]);
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(KVASIR_ENGINE_LIB_DIR);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    vocab = llama_model_get_vocab(model);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t)atoi(argv[2]);
    cp.n_batch = cp.n_ubatch = (uint32_t)(chunk + n_seq);
    cp.n_seq_max = (uint32_t)n_seq;
    cp.kv_unified = true;
    cp.swa_full = false;
    cp.n_threads = cp.n_threads_batch = atoi(argv[5]);
    cp.flash_attn_type = atoi(argv[6]) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    ctx = llama_init_from_model(model, cp);
    if (!ctx) return 1;
    puts("ready");
    fflush(stdout);
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        int n, depth;
        if (sscanf(line, "prefill %d", &n) == 1) {
            llama_memory_clear(llama_get_memory(ctx), false);
            at = 0;
            double start = now_ms();
            prefill(n);
            (void)best();
            printf("prefill %.3f\n", now_ms() - start);
        } else if (sscanf(line, "decode %d %d", &n, &depth) == 2) {
            if (depth < 1) depth = 1;
            go_to(depth);
            double start = now_ms();
            for (int i = 0; i < n; i++) {
                llama_token t = best();
                decode(&t, 1, depth + i);
            }
            printf("decode %.3f\n", now_ms() - start);
        } else {
            break;
        }
        fflush(stdout);
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
