#include "engine/embedder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/llama_border.h"
#include "engine/llama_internal.h"

typedef struct llama_embedder {
    kv_embedder base;
    kv_llama_model *model;
    struct llama_context *ctx;
    llama_memory_t memory;    /* NULL: an encoder's */
    struct llama_batch batch; /* arrays of n_batch entries, owned */
    llama_seq_id *seq_value;  /* what batch.seq_id[i] points to */
    bool damaged;             /* a compute failed since the memory was last cleared: cells may hold NaN */
} llama_embedder;

static const char *const names[] = {"none", "mean", "cls", "last", "rank"};

const char *kv_pooling_name(kv_pooling p) {
    return p >= KV_POOLING_NONE && p <= KV_POOLING_RANK ? names[p] : "the model's";
}

bool kv_pooling_from_name(kv_pooling *out, const char *name) {
    for (int i = 0; i <= KV_POOLING_RANK; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (kv_pooling)i;
        return true;
    }
    return false;
}

/* ── making ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The engine scores with any model, and takes the first number of a hidden state where there is no head. */
static kv_status check_rank(const kv_llama_model *m, kv_error *err) {
    if (kv_llama_meta_int(m, "pooling_type", -1) == KV_POOLING_RANK) return KV_OK;
    return kv_fail(err, KV_UNSUPPORTED,
                   "%s is no reranking model: its metadata (%s.pooling_type) names no ranking head; start the server "
                   "with one that has it, or without --reranking",
                   m->path, m->arch);
}

static bool is_causal(const kv_llama_model *m) {
    char key[128], text[16];
    snprintf(key, sizeof key, "%s.attention.causal", m->arch);
    return llama_model_meta_val_str(m->model, key, text, sizeof text) < 0 || strcmp(text, "false") != 0;
}

/* Each position has a vector of its own in the file, and behind the last one the engine aborts. */
static bool has_learnt_positions(const kv_llama_model *m) {
    static const char *const archs[] = {"bert", "gpt2", "starcoder", "mpt", NULL};
    for (const char *const *arch = archs; *arch; arch++)
        if (strcmp(m->arch, *arch) == 0) return true;
    return false;
}

static void alloc_batch(llama_embedder *e, int32_t n) {
    kv_llama_batch_alloc(&e->batch, &e->seq_value, n);
    /* The engine computes every row here, and warns of others. */
    for (int32_t i = 0; i < n; i++) e->batch.logits[i] = true;
}

void kv_embedder_free(kv_embedder *base) {
    if (!base) return;
    llama_embedder *e = (llama_embedder *)base;
    if (e->ctx) llama_free(e->ctx);
    kv_llama_batch_free(&e->batch, e->seq_value);
    free(e);
}

/* Sequences of a call. Recurrent layers take equally long runs in one ubatch: texts of other lengths would be cut, and
 * pooled in parts. */
static int32_t choose_texts(const kv_llama_model *m, const kv_embedder_params *p) {
    int32_t n = m->base.info.is_recurrent || m->base.info.is_hybrid ? 1 : p->n_texts;
    if (n > p->n_batch / 2) n = p->n_batch / 2;
    return n > 1 ? n : 1;
}

/* The engine reserves its graphs for a whole number of tokens a sequence, and aborts where it has rounded up the tokens
 * but not the rows that it pools: the batch is rounded up here. */
static kv_status make_context(llama_embedder *e, const kv_embedder_params *p, int32_t n_texts, kv_error *err) {
    kv_llama_model *m = e->model;
    kv_engine_params ep = p->engine;
    if (p->n_batch < 2) return kv_fail_field(err, "ubatch-size", "a batch of %d tokens is too small", (int)p->n_batch);
    ep.n_batch = ep.n_outputs = (p->n_batch + n_texts - 1) / n_texts * n_texts;
    ep.n_ctx = p->n_ctx > ep.n_batch ? p->n_ctx : ep.n_batch;
    ep.n_slots = n_texts;
    struct llama_context_params cp;
    kv_status status = kv_llama_context_params(&cp, &ep, err);
    if (status != KV_OK) return status;
    cp.n_seq_max = (uint32_t)n_texts;
    cp.n_outputs_max_per_seq = 0; /* all */
    cp.embeddings = true;
    cp.pooling_type = (enum llama_pooling_type)p->pooling;
    status = kv_border_context_new(&e->ctx, m->model, &cp, err);
    if (status != KV_OK) return status;
    e->memory = llama_get_memory(e->ctx);
    if (!e->memory && !m->base.info.is_encoder)
        return kv_fail(err, KV_UNSUPPORTED, "%s has no memory: it cannot be served", m->path);
    return m->n_loras ? kv_border_set_loras(e->ctx, m->loras, m->lora_scales, (size_t)m->n_loras, err) : KV_OK;
}

kv_status kv_llama_embedder_new(kv_embedder **out, kv_model *model, const kv_embedder_params *p, kv_error *err) {
    *out = NULL;
    kv_llama_model *m = (kv_llama_model *)model;
    if (m->vocab_only) return kv_fail(err, KV_UNSUPPORTED, "%s was loaded for its vocabulary only", m->path);
    llama_embedder *e = kv_alloc(sizeof *e);
    e->model = m;
    int32_t n_texts = choose_texts(m, p);
    kv_status status = make_context(e, p, n_texts, err);
    if (status != KV_OK) goto done;
    kv_embedder_info *info = &e->base.info;
    info->pooling = (kv_pooling)llama_pooling_type(e->ctx);
    if (info->pooling == KV_POOLING_RANK) status = check_rank(m, err);
    if (status != KV_OK) goto done;
    info->width = info->pooling == KV_POOLING_RANK ? 1 : llama_model_n_embd_out(m->model);
    info->n_batch = p->n_batch;
    info->n_texts = n_texts;
    bool in_parts = info->pooling == KV_POOLING_LAST && e->memory && is_causal(m);
    info->n_text_max = in_parts ? (int32_t)llama_n_ctx(e->ctx) : info->n_batch;
    if (has_learnt_positions(m) && m->base.info.n_ctx_train < info->n_text_max)
        info->n_text_max = m->base.info.n_ctx_train;
    uint64_t cells, compute;
    status = kv_border_memory_bytes(&cells, &compute, e->ctx, err);
    if (status != KV_OK) goto done;
    info->bytes = cells + compute;
    alloc_batch(e, info->n_batch);
    *out = &e->base;
    e = NULL;
done:
    if (e) kv_embedder_free(&e->base);
    return status;
}

/* ── running ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_texts(const llama_embedder *e, const kv_tokens *texts, int n, kv_error *err) {
    const kv_embedder_info *info = &e->base.info;
    size_t total = 0, most = n == 1 ? (size_t)info->n_text_max : (size_t)info->n_batch;
    if (n < 1 || n > info->n_texts) return kv_fail(err, KV_INVALID, "%d texts; a call takes 1 to %d", n, info->n_texts);
    for (int i = 0; i < n; i++) {
        total += texts[i].len;
        if (texts[i].len == 0) return kv_fail(err, KV_INVALID, "text %d is empty", i);
        if (texts[i].len > (size_t)info->n_text_max)
            return kv_fail(err, KV_INVALID, "text %d has %zu tokens; at most %d are possible", i, texts[i].len,
                           (int)info->n_text_max);
        for (size_t k = 0; k < texts[i].len; k++)
            if (texts[i].data[k] < 0 || texts[i].data[k] >= e->model->base.info.n_vocab)
                return kv_fail(err, KV_INVALID, "token %zu of text %d is %d, the vocabulary has 0 to %d", k, i,
                               (int)texts[i].data[k], (int)e->model->base.info.n_vocab - 1);
    }
    return total <= most ? KV_OK : kv_fail(err, KV_INVALID, "%zu tokens; a call takes %zu", total, most);
}

static void add(llama_embedder *e, kv_token token, kv_pos pos, kv_seq seq) {
    int32_t i = e->batch.n_tokens++;
    e->batch.token[i] = token;
    e->batch.pos[i] = pos;
    e->seq_value[i] = seq;
}

static kv_status missing(kv_error *err) {
    return kv_fail(err, KV_ENGINE, "the engine computed no embedding for a text");
}

/* Decodes the batch; without pooling its rows go to *out, which moves on. */
static kv_status compute(float **out, llama_embedder *e, kv_error *err) {
    if (kv_border_decode(e->ctx, e->batch, err) != 0) {
        e->damaged = true;
        if (err) err->status = KV_ENGINE;
        return KV_ENGINE;
    }
    size_t width = (size_t)e->base.info.width;
    for (int32_t i = 0; i < e->batch.n_tokens && e->base.info.pooling == KV_POOLING_NONE; i++) {
        const float *row = llama_get_embeddings_ith(e->ctx, i);
        if (!row) return missing(err);
        memcpy(*out, row, width * sizeof *row);
        *out += width;
    }
    e->batch.n_tokens = 0;
    return KV_OK;
}

kv_status kv_embedder_run(float *out, kv_embedder *base, const kv_tokens *texts, int n, kv_error *err) {
    llama_embedder *e = (llama_embedder *)base;
    const kv_embedder_info *info = &base->info;
    kv_status status = check_texts(e, texts, n, err);
    if (status != KV_OK) return status;
    if (e->memory) llama_memory_clear(e->memory, e->damaged);
    e->damaged = false;
    e->batch.n_tokens = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < texts[i].len && status == KV_OK; k++) {
            if (e->batch.n_tokens == info->n_batch) status = compute(&out, e, err);
            add(e, texts[i].data[k], (kv_pos)k, i);
        }
    if (status == KV_OK) status = compute(&out, e, err);
    for (int i = 0; status == KV_OK && info->pooling != KV_POOLING_NONE && i < n; i++) {
        const float *row = llama_get_embeddings_seq(e->ctx, i);
        if (!row) return missing(err);
        memcpy(out, row, (size_t)info->width * sizeof *row);
        out += info->width;
    }
    return status;
}
