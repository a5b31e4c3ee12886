/* engine/embedder.h: vectors of texts: a context of its own on a model, beside the one that generates. Of an encoder, a
 * model without memory, they are all there is.
 *
 *   texts ─► one call ─► a vector a token ─► pooling ─► one row a text     (rank: one number, how well it answers)
 *                                      └─ none ──────► one row a token
 *
 * Nothing is kept between two runs. Several short texts share a call. A text that is pooled must fit into one call,
 * since the engine pools what one call computes; only the last token's vector does not need the others', so with
 * KV_POOLING_LAST a longer text goes through in several.
 *
 * Thread rule: one thread at a time, any thread. The model outlives it.
 */
#ifndef KV_ENGINE_EMBEDDER_H
#define KV_ENGINE_EMBEDDER_H

#include "engine/engine.h"

/* libllama's numbers */
typedef enum kv_pooling {
    KV_POOLING_MODEL = -1, /* what the model's file says; without that none */
    KV_POOLING_NONE = 0,
    KV_POOLING_MEAN,
    KV_POOLING_CLS,
    KV_POOLING_LAST,
    KV_POOLING_RANK,
} kv_pooling;

const char *kv_pooling_name(kv_pooling p); /* "mean"; static */
bool kv_pooling_from_name(kv_pooling *out, const char *name);

struct kv_embedder_params {
    kv_engine_params engine; /* threads, flash attention, types, RoPE; its sizes do not count */
    kv_pooling pooling;
    int32_t n_batch; /* most tokens of one call */
    int32_t n_ctx;   /* most tokens of one text, where it can be larger than n_batch */
    int32_t n_texts; /* most texts of one call; less where the memory does not allow it */
};
typedef struct kv_embedder_params kv_embedder_params;

typedef struct kv_embedder_info {
    kv_pooling pooling; /* never KV_POOLING_MODEL */
    int32_t width;      /* numbers of a row; 1 with KV_POOLING_RANK */
    int32_t n_batch, n_texts;
    int32_t n_text_max; /* most tokens of one text */
    uint64_t bytes;     /* cells and compute buffers, as allocated */
} kv_embedder_info;

typedef struct kv_embedder kv_embedder;
struct kv_embedder {
    kv_embedder_info info;
};

/* KV_UNSUPPORTED: the model cannot do that, with the reason (rank without a head for it). */
static inline kv_status kv_embedder_new(kv_embedder **out, kv_model *m, const kv_embedder_params *p, kv_error *err) {
    *out = NULL;
    if (!m->ops->embedder_new) return kv_fail(err, KV_UNSUPPORTED, "this kind of model makes no embeddings");
    return m->ops->embedder_new(out, m, p, err);
}
static inline const kv_embedder_info *kv_embedder_get_info(const kv_embedder *e) {
    return &e->info;
}
void kv_embedder_free(kv_embedder *e);

/* The rows of n texts (1 ≤ n ≤ n_texts), one after the other; `out` has room for them: width numbers a text, without
 * pooling a token. No text is empty; together they have at most n_batch tokens, or n is 1 and it at most n_text_max.
 * KV_INVALID for other lengths and for tokens that the vocabulary lacks. Not normalised. */
kv_status kv_embedder_run(float *out, kv_embedder *e, const kv_tokens *texts, int n, kv_error *err);

#endif
