/* engine/engine_none.c: the engine of a model that has no memory. Its slots stay empty, it takes no batch, and it costs
 * nothing; what such a model is for is the embedder's. */
#include <stdlib.h>

#include "engine/llama_internal.h"
#include "engine/llama_lib.h"

static void engine_free(kv_engine *e) {
    free(e);
}

static kv_status decode(kv_engine *e, const kv_batch *b, kv_error *err) {
    (void)b;
    return kv_fail(err, KV_ENGINE, "%s is an encoder: it cannot generate text", e->model->info.path);
}

static const float *logits(kv_engine *e, int row) {
    (void)e;
    (void)row;
    return NULL;
}

static void clear(kv_engine *e) {
    (void)e;
}

static bool seq_rm(kv_engine *e, kv_seq s, kv_pos p0, kv_pos p1) {
    (void)e;
    (void)s;
    (void)p0;
    (void)p1;
    return true;
}

static void seq_cp(kv_engine *e, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1) {
    (void)e;
    (void)src;
    (void)dst;
    (void)p0;
    (void)p1;
}

static kv_pos pos_of_none(kv_engine *e, kv_seq s) {
    (void)e;
    (void)s;
    return -1;
}

static size_t state_size(kv_engine *e, kv_seq s, uint32_t flags) {
    (void)e;
    (void)s;
    (void)flags;
    return 0;
}

static size_t state_get(kv_engine *e, void *dst, size_t cap, kv_seq s, uint32_t flags) {
    (void)dst;
    (void)cap;
    return state_size(e, s, flags);
}

static size_t state_set(kv_engine *e, const void *src, size_t n, kv_seq s, uint32_t flags) {
    (void)src;
    (void)n;
    return state_size(e, s, flags);
}

static const kv_engine_ops ops = {
    .free = engine_free,
    .decode = decode,
    .logits = logits,
    .clear = clear,
    .seq_rm = seq_rm,
    .seq_cp = seq_cp,
    .pos_min = pos_of_none,
    .pos_max = pos_of_none,
    .state_size = state_size,
    .state_get = state_get,
    .state_set = state_set,
};

kv_status kv_llama_engine_none(kv_engine **out, kv_model *m, const kv_engine_params *p, kv_error *err) {
    struct llama_context_params cp;
    *out = NULL;
    kv_status status = kv_llama_context_params(&cp, p, err); /* what the options say wrong is wrong here, too */
    if (status != KV_OK) return status;
    kv_engine *e = kv_alloc(sizeof *e);
    *e = (kv_engine){
        .ops = &ops,
        .model = m,
        .info = {.memory = KV_MEMORY_NONE,
                 .n_ctx = p->n_ctx,
                 .n_slots = p->n_slots,
                 .n_batch = p->n_batch,
                 .n_threads = p->n_threads,
                 .n_threads_batch = p->n_threads_batch,
                 .flash_attn = p->flash_attn == KV_FA_ON,
                 .type_k = ggml_type_name(cp.type_k),
                 .type_v = ggml_type_name(cp.type_v),
                 .state_format = "none",
                 .version = KVASIR_ENGINE_RELEASE,
                 .backends = kv_llama_lib_backends()},
    };
    *out = e;
    return KV_OK;
}
