/* engine/engine_llama.c: one llama context as a kv_engine.
 *
 * Set-up (docs/engine.md "Set-up"): one unified pool, the small window cache (swa_full = false), one
 * sequence more than slots for scratch, no recurrent rollback rows, and n_ubatch = n_batch, so that one decode is one
 * ubatch: a second ubatch inside a call could overwrite window cells before they were captured.
 *
 * What the memory is like is not asked from the model but seen (probe_memory): one token, then a second, are decoded,
 * and the sizes of full and partial state blobs tell which parts grow with tokens and which do not.
 *
 *   full  F(n) = header + n × (main cell + window cell)  + recurrent state
 *   part  P(n) = header + n × window cell                + recurrent state      (= F without windows and states)
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/llama_border.h"
#include "engine/llama_internal.h"
#include "engine/llama_lib.h"

typedef struct llama_engine {
    kv_engine base;
    struct llama_context *ctx;
    llama_memory_t memory;
    const float **row_logits; /* n_batch entries: rows of the last decode, NULL where none were asked for */
    struct llama_batch batch; /* arrays of n_batch entries, owned */
    llama_seq_id *seq_value;  /* what batch.seq_id[i] points to */
    kv_pos *seq_next;         /* n_seq entries, scratch of check_batch */
    int32_t *seq_count;       /* n_seq entries, scratch of check_batch */
    /* Windowed memory, after a decode that found no cells: the engine has already dropped cells behind the window of
     * a sequence without telling (it restores only those it wanted to use), so cutting it back below the end that it
     * had then could leave holes. n_seq entries; 0 = none. */
    kv_pos *no_trim_below;
    int32_t n_outputs; /* most rows with logits in a batch */
    bool damaged;      /* a compute failed since the last clear, or gave NaN: buffers may hold them */
} llama_engine;

static llama_engine *self(kv_engine *e) {
    return (llama_engine *)e;
}

struct llama_context *kv_llama_engine_context(kv_engine *e) {
    return self(e)->ctx;
}

static int32_t n_seq(const llama_engine *e) {
    return e->base.info.n_slots + 1;
}
static bool seq_ok(const llama_engine *e, kv_seq s) {
    return s >= 0 && s < n_seq(e);
}

/* ── decode ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Everything that the engine would answer with an abort, a split into several ubatches, or a half-done job. */
static kv_status check_batch(llama_engine *e, const kv_batch *b, kv_error *err) {
    const kv_engine_info *info = &e->base.info;
    if (b->n < 1 || b->n > info->n_batch)
        return kv_fail(err, KV_ENGINE, "a batch of %d tokens; it takes 1 to %d", b->n, info->n_batch);
    memset(e->seq_count, 0, (size_t)n_seq(e) * sizeof *e->seq_count);
    int32_t n_wanted = 0;
    for (int32_t i = 0; i < b->n; i++) {
        kv_seq s = b->seq[i];
        if (!seq_ok(e, s)) return kv_fail(err, KV_ENGINE, "batch entry %d: there is no sequence %d", i, s);
        if (b->token[i] < 0 || b->token[i] >= e->base.model->info.n_vocab)
            return kv_fail(err, KV_ENGINE, "batch entry %d: token %d is not in the vocabulary", i, b->token[i]);
        if (e->seq_count[s]++ == 0) e->seq_next[s] = llama_memory_seq_pos_max(e->memory, s) + 1;
        if (b->pos[i] != e->seq_next[s])
            return kv_fail(err, KV_ENGINE, "batch entry %d: position %d of sequence %d, which continues at %d", i,
                           b->pos[i], s, e->seq_next[s]);
        e->seq_next[s]++;
        n_wanted += b->want_logits[i];
    }
    if (n_wanted > e->n_outputs)
        return kv_fail(err, KV_ENGINE, "%d rows with logits in one batch; the context was made for %d", n_wanted,
                       e->n_outputs);
    /* Recurrent layers take equally long runs in one ubatch: anything else is split in two, which makes other shapes
     * and, on failure, half-written states. */
    if (kv_memory_has_recurrent(info->memory) || info->memory == KV_MEMORY_WHOLE) {
        int32_t run = 0;
        for (kv_seq s = 0; s < n_seq(e); s++) {
            if (e->seq_count[s] == 0) continue;
            if (run && e->seq_count[s] != run)
                return kv_fail(err, KV_ENGINE,
                               "with recurrent layers the sequences of one batch must have equally many "
                               "tokens; here are %d and %d",
                               run, e->seq_count[s]);
            run = e->seq_count[s];
        }
    }
    return KV_OK;
}

static void forget_rows(llama_engine *e) {
    memset(e->row_logits, 0, (size_t)e->base.info.n_batch * sizeof *e->row_logits);
}

static kv_status on_failed_decode(llama_engine *e, int32_t ret, kv_error *err) {
    if (ret == 1) {
        if (kv_memory_has_window(e->base.info.memory))
            for (kv_seq s = 0; s < n_seq(e); s++) e->no_trim_below[s] = llama_memory_seq_pos_max(e->memory, s) + 1;
        return kv_fail(err, KV_NO_CELLS, "no free cells for this batch in the engine's pool");
    }
    if (ret == -1) {
        if (err) err->status = KV_ENGINE;
        return KV_ENGINE;
    }
    e->damaged = true; /* 2, below -1, or an exception */
    if (err) err->status = KV_ENGINE_DAMAGED;
    return KV_ENGINE_DAMAGED;
}

static kv_status on_nan(llama_engine *e, kv_error *err) {
    forget_rows(e);
    e->damaged = true;
    return kv_fail(
        err, KV_NOT_NUMBERS,
        "the model's logits are not numbers (NaN): its weights are damaged, or its backend overflows; another "
        "--cache-type-k, --flash-attn off or --gpu-layers 0 may help");
}

static kv_status decode(kv_engine *base, const kv_batch *b, kv_error *err) {
    llama_engine *e = self(base);
    kv_status status = check_batch(e, b, err);
    if (status != KV_OK) return status;
    forget_rows(e);
    e->batch.n_tokens = b->n;
    for (int32_t i = 0; i < b->n; i++) {
        e->batch.token[i] = b->token[i];
        e->batch.pos[i] = b->pos[i];
        e->seq_value[i] = b->seq[i];
        e->batch.logits[i] = b->want_logits[i];
    }
    int32_t ret = kv_border_decode(e->ctx, e->batch, err);
    if (ret != 0) return on_failed_decode(e, ret, err);
    for (int32_t i = 0; i < b->n; i++) {
        if (!b->want_logits[i]) continue;
        e->row_logits[i] = llama_get_logits_ith(e->ctx, i);
        /* One number says it: each is a product with all of the last hidden state. */
        if (e->row_logits[i] && isnan(e->row_logits[i][0])) return on_nan(e, err);
    }
    return KV_OK;
}

static const float *logits(kv_engine *base, int row) {
    llama_engine *e = self(base);
    return row >= 0 && row < e->base.info.n_batch ? e->row_logits[row] : NULL;
}

/* ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void clear(kv_engine *base) {
    llama_engine *e = self(base);
    /* Old cell contents are masked, and 0 × a finite value is 0; but a failed compute may have left NaN. */
    llama_memory_clear(e->memory, e->damaged);
    e->damaged = false;
    memset(e->no_trim_below, 0, (size_t)n_seq(e) * sizeof *e->no_trim_below);
}

static bool seq_rm(kv_engine *base, kv_seq s, kv_pos p0, kv_pos p1) {
    llama_engine *e = self(base);
    if (!seq_ok(e, s)) return false;
    if (p0 < 0) p0 = 0; /* not below a no_trim_below of 0 */
    bool whole = p0 == 0 && (p1 < 0 || p1 > llama_memory_seq_pos_max(e->memory, s));
    if (!whole && p0 < e->no_trim_below[s]) return false;
    if (!llama_memory_seq_rm(e->memory, s, p0, p1)) return false;
    if (whole) e->no_trim_below[s] = 0;
    return true;
}

static void seq_cp(kv_engine *base, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1) {
    llama_engine *e = self(base);
    if (!seq_ok(e, src) || !seq_ok(e, dst) || src == dst) return;
    /* These memories abort the process on a range. Without a copy dst stays as it is, which callers see by its
     * positions; kv_engine_fork goes through whole blobs. */
    if (e->base.info.memory == KV_MEMORY_WHOLE) return;
    llama_memory_seq_cp(e->memory, src, dst, p0, p1);
    if (e->no_trim_below[src] > e->no_trim_below[dst]) e->no_trim_below[dst] = e->no_trim_below[src];
}

static kv_pos pos_min(kv_engine *base, kv_seq s) {
    return seq_ok(self(base), s) ? llama_memory_seq_pos_min(self(base)->memory, s) : -1;
}

static kv_pos pos_max(kv_engine *base, kv_seq s) {
    return seq_ok(self(base), s) ? llama_memory_seq_pos_max(self(base)->memory, s) : -1;
}

static size_t state_size(kv_engine *base, kv_seq s, uint32_t flags) {
    return seq_ok(self(base), s) ? kv_border_state_size(self(base)->ctx, s, flags) : 0;
}

static size_t state_get(kv_engine *base, void *dst, size_t cap, kv_seq s, uint32_t flags) {
    return seq_ok(self(base), s) ? kv_border_state_get(self(base)->ctx, dst, cap, s, flags) : 0;
}

static size_t state_set(kv_engine *base, const void *src, size_t n, kv_seq s, uint32_t flags) {
    llama_engine *e = self(base);
    if (!seq_ok(e, s)) return 0;
    size_t used = kv_border_state_set(e->ctx, src, n, s, flags);
    /* The window was replaced by the blob's, without holes. */
    if (used == n) e->no_trim_below[s] = 0;
    return used;
}

static void engine_free(kv_engine *base) {
    llama_engine *e = self(base);
    if (e->ctx) llama_free(e->ctx);
    free(e->row_logits);
    kv_llama_batch_free(&e->batch, e->seq_value);
    free(e->seq_next);
    free(e->seq_count);
    free(e->no_trim_below);
    free(e);
}

static const kv_engine_ops ops = {
    .free = engine_free,
    .decode = decode,
    .logits = logits,
    .clear = clear,
    .seq_rm = seq_rm,
    .seq_cp = seq_cp,
    .pos_min = pos_min,
    .pos_max = pos_max,
    .state_size = state_size,
    .state_get = state_get,
    .state_set = state_set,
};

/* ── set-up ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The KV types that the engine takes for a cache, as llama-server's -ctk lists them. */
static const enum ggml_type kv_types[] = {GGML_TYPE_F32,    GGML_TYPE_F16,  GGML_TYPE_BF16,
                                          GGML_TYPE_Q8_0,   GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                          GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1};

static kv_status parse_kv_type(enum ggml_type *out, const char *name, const char *field, kv_error *err) {
    *out = GGML_TYPE_F16;
    if (!name || !*name) return KV_OK;
    for (size_t i = 0; i < sizeof kv_types / sizeof *kv_types; i++) {
        if (strcmp(name, ggml_type_name(kv_types[i])) != 0) continue;
        *out = kv_types[i];
        return KV_OK;
    }
    return kv_fail_field(err, field, "\"%s\" is none of f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1", name);
}

static kv_status parse_rope_scaling(enum llama_rope_scaling_type *out, const char *name, kv_error *err) {
    static const struct {
        const char *name;
        enum llama_rope_scaling_type type;
    } types[] = {{"none", LLAMA_ROPE_SCALING_TYPE_NONE},
                 {"linear", LLAMA_ROPE_SCALING_TYPE_LINEAR},
                 {"yarn", LLAMA_ROPE_SCALING_TYPE_YARN},
                 {"longrope", LLAMA_ROPE_SCALING_TYPE_LONGROPE}};
    *out = LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED;
    if (!name || !*name) return KV_OK;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        *out = types[i].type;
        return KV_OK;
    }
    return kv_fail_field(err, "rope-scaling", "\"%s\" is none of none, linear, yarn, longrope", name);
}

/* None, or more than the engine's table holds, aborts it. */
static int32_t thread_count(int32_t n) {
    return n < 1 ? 1 : n > GGML_MAX_N_THREADS ? GGML_MAX_N_THREADS : n;
}

kv_status kv_llama_context_params(struct llama_context_params *cp, const kv_engine_params *p, kv_error *err) {
    *cp = llama_context_default_params();
    int32_t n_seq_max = p->n_slots + 1;
    if (p->n_slots < 1 || n_seq_max > (int32_t)llama_max_parallel_sequences())
        return kv_fail_field(err, "parallel", "%d slots; the engine takes 1 to %zu", p->n_slots,
                             llama_max_parallel_sequences() - 1);
    if (p->n_ctx < 1) return kv_fail_field(err, "ctx-size", "a context of %d tokens", p->n_ctx);
    /* A batch smaller than the number of sequences aborts the engine: each takes at least one token of it. */
    if (p->n_batch < n_seq_max)
        return kv_fail_field(err, "batch-size", "a batch of %d tokens; with %d slots it needs at least %d", p->n_batch,
                             p->n_slots, n_seq_max);
    enum ggml_type type_k, type_v;
    kv_status status = parse_kv_type(&type_k, p->type_k, "cache-type-k", err);
    if (status == KV_OK) status = parse_kv_type(&type_v, p->type_v, "cache-type-v", err);
    if (status == KV_OK) status = parse_rope_scaling(&cp->rope_scaling_type, p->rope_scaling, err);
    if (status != KV_OK) return status;
    if (ggml_is_quantized(type_v) && p->flash_attn == KV_FA_OFF)
        return kv_fail_field(err, "cache-type-v", "V cache type %s needs flash attention: give -fa on, or f16",
                             ggml_type_name(type_v));
    cp->n_ctx = (uint32_t)p->n_ctx;
    cp->n_batch = cp->n_ubatch = (uint32_t)p->n_batch;
    cp->n_seq_max = (uint32_t)n_seq_max;
    cp->n_rs_seq = 0;
    /* With the default (n_batch) the compute buffers hold logits of every row: gemma's 262,144 words × 260 rows are
     * 261 MiB instead of 49. Never below n_seq_max, which the engine asserts. */
    cp->n_outputs_max = (uint32_t)(p->n_outputs > n_seq_max ? p->n_outputs : n_seq_max);
    if (cp->n_outputs_max > cp->n_batch) cp->n_outputs_max = cp->n_batch;
    cp->kv_unified = true;
    cp->swa_full = false;
    cp->n_threads = thread_count(p->n_threads);
    cp->n_threads_batch = thread_count(p->n_threads_batch > 0 ? p->n_threads_batch : p->n_threads);
    cp->flash_attn_type = (enum llama_flash_attn_type)p->flash_attn;
    cp->type_k = type_k;
    cp->type_v = type_v;
    cp->offload_kqv = p->offload_kqv;
    cp->op_offload = p->op_offload;
    cp->rope_freq_base = p->rope_freq_base;
    cp->rope_freq_scale = p->rope_freq_scale;
    cp->yarn_ext_factor = p->yarn_ext_factor;
    cp->yarn_attn_factor = p->yarn_attn_factor;
    cp->yarn_beta_fast = p->yarn_beta_fast;
    cp->yarn_beta_slow = p->yarn_beta_slow;
    cp->yarn_orig_ctx = p->yarn_orig_ctx > 0 ? (uint32_t)p->yarn_orig_ctx : 0;
    cp->embeddings = false;
    cp->no_perf = true;
    return KV_OK;
}

/* A value of the model's metadata, "" when it has none. */
static void meta_value(char *out, size_t cap, const kv_llama_model *m, const char *suffix, char key[128]) {
    snprintf(key, 128, "%s.%s", m->base.info.arch, suffix);
    if (llama_model_meta_val_str(m->model, key, out, cap) < 0) *out = 0;
}

static float meta_float(const kv_llama_model *m, const char *suffix, float otherwise) {
    char text[64], key[128];
    meta_value(text, sizeof text, m, suffix, key);
    const struct llama_model_kv_override *o = kv_llama_override(m, key, LLAMA_KV_OVERRIDE_TYPE_FLOAT);
    return o ? (float)o->val_f64 : *text ? strtof(text, NULL) : otherwise;
}

int32_t kv_llama_meta_int(const kv_llama_model *m, const char *suffix, int32_t otherwise) {
    char text[64], key[128];
    meta_value(text, sizeof text, m, suffix, key);
    const struct llama_model_kv_override *o = kv_llama_override(m, key, LLAMA_KV_OVERRIDE_TYPE_INT);
    return o ? (int32_t)o->val_i64 : *text ? (int32_t)strtol(text, NULL, 10) : otherwise;
}

static const char *scaling_name(const kv_llama_model *m, enum llama_rope_scaling_type type) {
    static const char *const names[] = {"none", "linear", "yarn", "longrope"};
    char text[128], key[128];
    if (type >= LLAMA_ROPE_SCALING_TYPE_NONE && type <= LLAMA_ROPE_SCALING_TYPE_LONGROPE) return names[type];
    meta_value(text, sizeof text, m, "rope.scaling.type", key);
    const struct llama_model_kv_override *o = kv_llama_override(m, key, LLAMA_KV_OVERRIDE_TYPE_STR);
    const char *own = o ? o->val_str : *text ? text : "linear"; /* as the engine without the key */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(own, names[i]) == 0) return names[i];
    return NULL;
}

/* As the context puts asked and own values together. Asking for what the model has anyway is the same as not asking.
 * What an architecture reads on its own (grok's and mistral3's YaRN) is not known here, so whoever asks for a YaRN value
 * is taken to ask for another one. */
static void fill_rope(kv_rope *r, const kv_llama_model *m, const struct llama_context_params *cp) {
    bool own_base = strcmp(m->base.info.arch, "hunyuan_vl") == 0; /* computes it from a second key */
    int32_t own_orig_ctx = kv_llama_meta_int(m, "rope.scaling.original_context_length", m->base.info.n_ctx_train);
    r->scaling = scaling_name(m, cp->rope_scaling_type);
    r->freq_base = cp->rope_freq_base != 0 ? cp->rope_freq_base : own_base ? 0 : meta_float(m, "rope.freq_base", 10000);
    r->freq_scale = cp->rope_freq_scale != 0 ? cp->rope_freq_scale : llama_model_rope_freq_scale_train(m->model);
    if (r->scaling && strcmp(r->scaling, "none") == 0) r->freq_scale = 1;
    r->yarn_ext_factor = cp->yarn_ext_factor >= 0 ? cp->yarn_ext_factor : -1;
    r->yarn_attn_factor = cp->yarn_attn_factor >= 0 ? cp->yarn_attn_factor : -1;
    r->yarn_beta_fast = cp->yarn_beta_fast >= 0 ? cp->yarn_beta_fast : -1;
    r->yarn_beta_slow = cp->yarn_beta_slow >= 0 ? cp->yarn_beta_slow : -1;
    r->yarn_orig_ctx = (int32_t)cp->yarn_orig_ctx != own_orig_ctx ? (int32_t)cp->yarn_orig_ctx : 0;
}

/* As the engine reads it: rotation is only ever applied to quantised K or V. */
static bool attn_rot_disabled(const struct llama_context_params *cp) {
    const char *text = getenv("LLAMA_ATTN_ROT_DISABLE");
    return text && atoi(text) != 0 && (ggml_is_quantized(cp->type_k) || ggml_is_quantized(cp->type_v));
}

#define TEXT_OF(x)   #x
#define NUMBER_OF(x) TEXT_OF(x)

void kv_llama_batch_alloc(struct llama_batch *b, llama_seq_id **seq_value, int32_t n) {
    size_t room = (size_t)n;
    *b = (struct llama_batch){
        .token = kv_alloc(room * sizeof *b->token),
        .pos = kv_alloc(room * sizeof *b->pos),
        .n_seq_id = kv_alloc(room * sizeof *b->n_seq_id),
        .seq_id = kv_alloc(room * sizeof *b->seq_id),
        .logits = kv_alloc(room * sizeof *b->logits),
    };
    *seq_value = kv_alloc(room * sizeof **seq_value);
    for (size_t i = 0; i < room; i++) {
        b->n_seq_id[i] = 1;
        b->seq_id[i] = &(*seq_value)[i];
    }
}

void kv_llama_batch_free(struct llama_batch *b, llama_seq_id *seq_value) {
    free(b->token);
    free(b->pos);
    free(b->n_seq_id);
    free(b->seq_id);
    free(b->logits);
    free(seq_value);
}

static void alloc_arrays(llama_engine *e, int32_t n_batch, int32_t n_seq_max) {
    e->row_logits = kv_alloc((size_t)n_batch * sizeof *e->row_logits);
    kv_llama_batch_alloc(&e->batch, &e->seq_value, n_batch);
    e->seq_next = kv_alloc((size_t)n_seq_max * sizeof *e->seq_next);
    e->seq_count = kv_alloc((size_t)n_seq_max * sizeof *e->seq_count);
    e->no_trim_below = kv_alloc((size_t)n_seq_max * sizeof *e->no_trim_below);
}

/* ── what the memory is like ───────────────────────────────────────────────────────────────────────────────────── */

/* Memories without range copies that the sizes alone would not give away. */
static bool is_whole_only(const char *arch) {
    return strcmp(arch, "deepseek4") == 0 || strcmp(arch, "qwen4exp") == 0;
}

typedef struct probe_sizes {
    int64_t full[3], part[3]; /* bytes of sequence 0's blobs with 0, 1 and 2 tokens */
} probe_sizes;

static kv_status probe_blobs(llama_engine *e, probe_sizes *s, kv_error *err) {
    kv_token token = e->base.model->info.bos >= 0 ? e->base.model->info.bos : 0;
    for (int n = 0; n < 3; n++) {
        if (n > 0) {
            kv_pos pos = n - 1;
            kv_seq seq = 0;
            bool want = false;
            kv_status status = decode(&e->base, &(kv_batch){1, &token, &pos, &seq, &want}, err);
            if (status != KV_OK) return status;
        }
        s->full[n] = (int64_t)kv_border_state_size(e->ctx, 0, 0);
        s->part[n] = (int64_t)kv_border_state_size(e->ctx, 0, KV_STATE_PARTIAL);
        if (s->full[n] == 0 || s->part[n] == 0)
            return kv_fail(err, KV_UNSUPPORTED, "the engine cannot export the state of this model's memory");
    }
    return KV_OK;
}

/* A blob with cells also has a header a layer (types and row sizes, 24 or 28 bytes), an empty one has not. */
#define LAYER_HEADER_MAX 64

static kv_memory_kind kind_of(const probe_sizes *s, const kv_model_info *mi) {
    if (is_whole_only(mi->arch)) return KV_MEMORY_WHOLE;
    int64_t full_grows = s->full[2] - s->full[1], part_grows = s->part[2] - s->part[1];
    bool has_fixed = s->part[1] - part_grows - s->part[0] > (int64_t)LAYER_HEADER_MAX * (mi->n_layer + 1);
    bool same = s->full[2] == s->part[2]; /* the flag is ignored: one kind of layer only */
    if (same) return full_grows > 0 ? KV_MEMORY_FULL : KV_MEMORY_RECURRENT;
    if (part_grows > 0) return has_fixed ? KV_MEMORY_HYBRID_WINDOW : KV_MEMORY_WINDOW;
    return KV_MEMORY_HYBRID;
}

/* As libllama sizes its window cache: W for each sequence and one ubatch, padded, and no larger than the main one. */
static int32_t window_cells(const kv_engine_info *info) {
    int64_t n = (int64_t)info->n_window * (info->n_slots + 1) + info->n_batch;
    if (n > info->n_ctx) n = info->n_ctx;
    return (int32_t)((n + 255) / 256 * 256);
}

/* Bytes of a cell and of a state, exactly as allocated. A blob holds per cell what the cell takes in the cache and a
 * note of position and owner, whose length is not told (12 bytes, 24 where cells also remember 2D positions or the
 * token). It is found by the sum: cells × bytes + states × bytes must be what the engine allocated. */
static void count_bytes(kv_engine_info *info, const probe_sizes *s) {
    int64_t total = (int64_t)info->bytes_state_total, n_states = info->n_slots + 1;
    int64_t part_grows = s->part[2] - s->part[1], full_grows = s->full[2] - s->full[1];
    bool window = kv_memory_has_window(info->memory);
    if (info->memory == KV_MEMORY_RECURRENT) {
        info->bytes_recurrent = (uint64_t)(total / n_states);
        return;
    }
    if (info->memory == KV_MEMORY_FULL || info->memory == KV_MEMORY_WHOLE) {
        info->bytes_per_cell = (uint64_t)(total / info->n_ctx);
        return;
    }
    int64_t main_grows = window ? full_grows - part_grows : full_grows;
    int64_t fixed = s->part[1] - part_grows - s->part[0]; /* the state and a few bytes a layer */
    int64_t best_gap = INT64_MAX;
    for (int64_t note = 12; note <= 24; note += 12) {
        int64_t cell = main_grows - note, window_cell = window ? part_grows - note : 0;
        int64_t rest = total - info->n_ctx * cell - info->n_window_cells * window_cell;
        int64_t state = kv_memory_has_recurrent(info->memory) ? rest / n_states : 0;
        int64_t gap = kv_memory_has_recurrent(info->memory) ? llabs(fixed - state) : llabs(rest);
        if (cell < 0 || window_cell < 0 || state < 0 || gap >= best_gap) continue;
        best_gap = gap;
        info->bytes_per_cell = (uint64_t)cell;
        info->bytes_per_window_cell = (uint64_t)window_cell;
        info->bytes_recurrent = (uint64_t)state;
    }
}

/* What KV_FA_AUTO came to: V lies transposed in the cache exactly when flash attention is off, and the first cache of a
 * blob says so. Layout: 8 bytes of header, streams, cells (u32 each), a note a cell, transposed, layers (u32 each). */
static bool saw_flash_attn(llama_engine *e, const probe_sizes *s) {
    const kv_engine_info *info = &e->base.info;
    int64_t grows = s->full[2] - s->full[1];
    if (kv_memory_has_window(info->memory)) grows -= s->part[2] - s->part[1];
    int64_t note = grows - (int64_t)info->bytes_per_cell;
    size_t at = 16 + 2 * (size_t)note;
    uint32_t value[2] = {0, 0}; /* not to be found: as libllama decides where the backend can do it */
    if (note != 12 && note != 24) return true;
    char *blob = kv_alloc((size_t)s->full[2]);
    if (kv_border_state_get(e->ctx, blob, (size_t)s->full[2], 0, 0) == (size_t)s->full[2] &&
        at + sizeof value <= (size_t)s->full[2])
        memcpy(value, blob + at, sizeof value);
    free(blob);
    return value[0] == 0;
}

static kv_status probe_memory(llama_engine *e, kv_flash_attn flash_attn, kv_error *err) {
    kv_engine_info *info = &e->base.info;
    const kv_model_info *mi = &e->base.model->info;
    probe_sizes sizes;
    kv_status status = probe_blobs(e, &sizes, err);
    if (status != KV_OK) return status;
    info->memory = kind_of(&sizes, mi);
    if (kv_memory_has_window(info->memory)) {
        info->n_window = mi->n_window;
        info->window_is_chunked = mi->window_is_chunked;
        info->n_window_cells = window_cells(info);
    }
    status = kv_border_memory_bytes(&info->bytes_state_total, &info->bytes_compute, e->ctx, err);
    if (status != KV_OK) return status;
    count_bytes(info, &sizes);
    info->flash_attn = flash_attn == KV_FA_AUTO ? saw_flash_attn(e, &sizes) : flash_attn == KV_FA_ON;
    llama_memory_clear(e->memory, false);
    return KV_OK;
}

kv_status kv_llama_engine_new(kv_engine **out, kv_model *base, const kv_engine_params *p, kv_error *err) {
    *out = NULL;
    kv_llama_model *m = (kv_llama_model *)base;
    if (m->vocab_only) return kv_fail(err, KV_UNSUPPORTED, "%s was loaded for its vocabulary only", m->path);
    if (base->info.is_encoder) return kv_llama_engine_none(out, base, p, err);
    struct llama_context_params cp;
    kv_status status = kv_llama_context_params(&cp, p, err);
    if (status != KV_OK) return status;

    llama_engine *e = kv_alloc(sizeof *e);
    kv_engine_info *info = &e->base.info;
    e->base.ops = &ops;
    e->base.model = base;
    info->n_slots = p->n_slots;
    info->n_batch = p->n_batch;
    e->n_outputs = (int32_t)cp.n_outputs_max;
    alloc_arrays(e, p->n_batch, p->n_slots + 1);
    status = kv_border_context_new(&e->ctx, m->model, &cp, err);
    if (status != KV_OK) goto done;
    e->memory = llama_get_memory(e->ctx);
    if (!e->memory) {
        status = kv_fail(err, KV_UNSUPPORTED, "%s has no memory to continue from: it cannot generate text", m->path);
        goto done;
    }
    if (m->n_loras > 0) {
        status = kv_border_set_loras(e->ctx, m->loras, m->lora_scales, (size_t)m->n_loras, err);
        if (status != KV_OK) goto done;
    }
    info->n_ctx = (int32_t)llama_n_ctx(e->ctx);
    if ((int32_t)llama_n_ubatch(e->ctx) < info->n_batch)
        info->n_batch = (int32_t)llama_n_ubatch(e->ctx); /* a tiny context */
    info->n_threads = llama_n_threads(e->ctx);
    info->n_threads_batch = llama_n_threads_batch(e->ctx);
    info->type_k = ggml_type_name(cp.type_k);
    info->type_v = ggml_type_name(cp.type_v);
    fill_rope(&info->rope, m, &cp);
    info->attn_rot_disabled = attn_rot_disabled(&cp);
    info->state_format = "ggsq " NUMBER_OF(LLAMA_STATE_SEQ_VERSION);
    info->version = KVASIR_ENGINE_RELEASE;
    info->backends = kv_llama_lib_backends();
    status = probe_memory(e, p->flash_attn, err);
    if (status != KV_OK) goto done;
    *out = &e->base;
    e = NULL;
done:
    if (e) engine_free(&e->base);
    return status;
}
