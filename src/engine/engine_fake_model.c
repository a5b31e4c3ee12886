/* The fake's model: a vocabulary (bytes, or a GGUF's own), a chat template, and what sort of memory it pretends. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_fake_internal.h"
#include "engine/fingerprint.h"
#include "engine/llama_border.h"

/* The byte vocabulary: tokens 0 … 255 are bytes, then these, then fillers up to n_vocab. */
enum { BOS = 256, EOS, IM_START, IM_END, END_OF_TEXT, N_VOCAB_MIN };
static const char *const special_text[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"};

/* Answers of a byte model look like words: a space about every sixth letter. */
static const char plain_bytes[] = "etaoinshrdlucmfwypvbgkjqxzetaoinshrdlu          \n.,";

bool kv_fake_has_main(kv_memory_kind k) {
    return k != KV_MEMORY_RECURRENT;
}
bool kv_fake_has_window(kv_memory_kind k) {
    return kv_memory_has_window(k);
}
bool kv_fake_has_rows(kv_memory_kind k) {
    return kv_memory_has_recurrent(k) || k == KV_MEMORY_WHOLE;
}

void kv_fake_params_defaults(kv_fake_params *p) {
    *p = (kv_fake_params){
        .memory = KV_MEMORY_FULL,
        .n_window = 64,
        .seed = 1,
        /* SmolLM2-135M on two cores: 31 ms a token at depth 2,048, about 170 tokens/s of prefill */
        .cost = {.call_ns = 20000000, .per_token_ns = 5000000, .per_depth_ns = 3000, .slow_factor = 1.0},
    };
}

bool kv_fake_kind_parse(kv_memory_kind *out, const char *name) {
    for (int k = KV_MEMORY_FULL; k <= KV_MEMORY_WHOLE; k++) {
        const char *a = kv_memory_kind_name((kv_memory_kind)k), *b = name;
        while (*a && (*a == *b || (*a == '-' && *b == '_'))) a++, b++;
        if (*a || *b) continue;
        *out = (kv_memory_kind)k;
        return true;
    }
    return false;
}

/* ── vocabulary ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The special token whose text stands at text[0 … n); the longest where several do. -1 without one. */
static kv_token special_at(const kv_fake_model *m, const char *text, size_t n) {
    kv_token best = -1;
    size_t best_len = 0;
    for (int32_t i = 0; i < m->base.info.n_vocab - 256; i++) {
        size_t len = strlen(m->extra[i]);
        if (len <= best_len || len > n || memcmp(text, m->extra[i], len) != 0) continue;
        best = 256 + i;
        best_len = len;
    }
    return best;
}

static kv_status fake_tokenize(kv_tokens *out, const kv_model *model, const char *text, size_t n, bool add_special,
                               bool parse_special, kv_error *err) {
    const kv_fake_model *m = kv_fake_model_of(model);
    if (m->vocab) return kv_model_tokenize(out, m->vocab, text, n, add_special, parse_special, err);
    kv_tokens_reserve(out, n + 1);
    if (add_special && model->info.add_bos) kv_tokens_add(out, BOS);
    for (size_t i = 0; i < n;) {
        kv_token special = parse_special && text[i] == '<' ? special_at(m, text + i, n - i) : -1;
        kv_tokens_add(out, special >= 0 ? special : (kv_token)(unsigned char)text[i]);
        i += special >= 0 ? strlen(m->extra[special - 256]) : 1;
    }
    return KV_OK;
}

static void fake_piece(kv_buf *out, const kv_model *model, kv_token token, bool special) {
    const kv_fake_model *m = kv_fake_model_of(model);
    if (m->vocab) {
        kv_model_piece(out, m->vocab, token, special);
    } else if (token >= 0 && token < 256) {
        char byte = (char)token;
        kv_buf_add(out, &byte, 1);
    } else if (special && token >= 256 && token < model->info.n_vocab) {
        kv_buf_adds(out, m->extra[token - 256]);
    }
}

static bool fake_is_eog(const kv_model *model, kv_token token) {
    const kv_fake_model *m = kv_fake_model_of(model);
    if (m->vocab) return kv_model_is_eog(m->vocab, token);
    return token == EOS || token == IM_END || token == END_OF_TEXT;
}

static bool fake_is_special(const kv_model *model, kv_token token) {
    const kv_fake_model *m = kv_fake_model_of(model);
    return m->vocab ? kv_model_is_special(m->vocab, token) : token < 0 || token > 255;
}

/* Which tokens an answer is made of, which end it, and which should hardly ever be drawn. */
static void sort_tokens(kv_fake_model *m) {
    int32_t n = m->base.info.n_vocab;
    kv_buf text = {0};
    m->bias = kv_alloc((size_t)n * sizeof *m->bias);
    m->eog = kv_alloc((size_t)n * sizeof *m->eog);
    m->plain = kv_alloc(((size_t)n + sizeof plain_bytes) * sizeof *m->plain);
    for (kv_token t = 0; t < n; t++) {
        kv_buf_clear(&text);
        kv_model_piece(&text, &m->base, t, false);
        if (kv_model_is_eog(&m->base, t)) {
            m->eog[m->n_eog++] = t;
            m->bias[t] = -8;
        } else if (text.len == 0) {
            m->bias[t] = -12; /* control tokens */
        } else if (m->vocab) {
            m->plain[m->n_plain++] = t;
        } else if (t != '\n' && (t < 0x20 || t > 0x7e)) {
            m->bias[t] = -6; /* bytes that alone are no text come up, but seldom */
        }
    }
    if (!m->vocab)
        for (const char *c = plain_bytes; *c; c++) m->plain[m->n_plain++] = (kv_token)*c;
    const kv_model_info *info = &m->base.info;
    m->end = info->eot >= 0 ? info->eot : info->eos >= 0 ? info->eos : m->n_eog > 0 ? m->eog[0] : -1;
    kv_buf_free(&text);
}

/* ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_params(const kv_fake_params *p, kv_error *err) {
    if ((int)p->memory < KV_MEMORY_FULL || p->memory > KV_MEMORY_WHOLE)
        return kv_fail(err, KV_INVALID, "fake model: memory kind %d does not exist", (int)p->memory);
    if (kv_fake_has_window(p->memory) && p->n_window < 2)
        return kv_fail(err, KV_INVALID, "fake model: a window of %d tokens; it must be at least 2", p->n_window);
    if (p->n_vocab != 0 && !p->vocab_path && (p->n_vocab < N_VOCAB_MIN || p->n_vocab > 1 << 20))
        return kv_fail(err, KV_INVALID, "fake model: n_vocab %d; with bytes it must be from %d to %d", p->n_vocab,
                       (int)N_VOCAB_MIN, 1 << 20);
    if (p->bytes_per_cell < 0 || p->bytes_per_window_cell < 0 || p->bytes_recurrent < 0)
        return kv_fail(err, KV_INVALID, "fake model: sizes of cells and states cannot be negative");
    return KV_OK;
}

/* A vocabulary of bytes, with ChatML or the caller's template. */
static kv_status init_bytes(kv_fake_model *m, const kv_fake_params *p, kv_error *err) {
    kv_model_info *info = &m->base.info;
    info->name = "fake";
    info->bos_text = special_text[BOS - 256];
    info->eos_text = special_text[EOS - 256];
    info->bos = BOS;
    info->eos = EOS;
    info->eot = IM_END;
    info->sep = -1;
    info->fim = (kv_fim_tokens){-1, -1, -1, -1, -1};
    info->add_bos = true;
    info->vocab_type = 2; /* LLAMA_VOCAB_TYPE_BPE */
    info->n_vocab = p->n_vocab ? p->n_vocab : N_VOCAB_MIN;
    m->extra = kv_alloc((size_t)(info->n_vocab - 256) * sizeof *m->extra);
    for (int32_t i = 0; i < info->n_vocab - 256; i++) {
        kv_buf text = {0};
        if (i < N_VOCAB_MIN - 256) kv_buf_adds(&text, special_text[i]);
        else kv_buf_addf(&text, "<|extra_%d|>", i - (N_VOCAB_MIN - 256));
        m->extra[i] = kv_buf_take(&text);
    }
    info->chat_template = "";
    if (p->chat_template && *p->chat_template == '\0') return KV_OK;
    kv_status st = kv_border_model_new(&m->templates, NULL, p->chat_template, info->bos_text, info->eos_text, err);
    if (st != KV_OK) return st;
    m->base.border = m->templates;
    info->chat_template = kv_border_template(m->templates, &info->chat_template_explicit);
    return KV_OK;
}

/* A GGUF's vocabulary and template; everything about weights and memory stays the fake's. */
static kv_status init_gguf(kv_fake_model *m, const kv_fake_params *p, kv_error *err) {
    kv_model_params mp = {
        .path = p->vocab_path, .vocab_only = true, .use_mmap = true, .chat_template = p->chat_template};
    kv_status st = kv_model_load_llama(&m->vocab, &mp, err);
    if (st != KV_OK) return st;
    m->base.info = m->vocab->info;
    m->base.border = m->vocab->border;
    return KV_OK;
}

static void fake_free(kv_model *model) {
    kv_fake_model *m = (kv_fake_model *)model;
    for (int32_t i = 0; m->extra && i < model->info.n_vocab - 256; i++) free(m->extra[i]);
    if (m->templates) kv_border_model_free(m->templates);
    kv_model_free(m->vocab);
    free(m->extra);
    free(m->desc);
    free(m->bias);
    free(m->plain);
    free(m->eog);
    free(m);
}

static const kv_model_ops fake_model_ops = {
    .free = fake_free,
    .tokenize = fake_tokenize,
    .piece = fake_piece,
    .is_eog = fake_is_eog,
    .is_special = fake_is_special,
    .engine_new = kv_fake_engine_new,
    .sampler_new = kv_fake_sampler_new,
    .fingerprint = kv_fake_fingerprint,
};

/* All that its states depend on. Clocks, costs, injection and how often an answer ends do not show in a state. */
kv_status kv_fake_fingerprint(kv_fingerprint *out, const kv_model *model, kv_error *err) {
    const kv_fake_model *m = kv_fake_model_of(model);
    const kv_fake_params *p = &m->params;
    kv_fingerprint vocab = {0};
    char vocab_hex[33] = "bytes";
    if (m->vocab) {
        kv_status st = kv_model_fingerprint(&vocab, m->vocab, err);
        if (st != KV_OK) return st;
        kv_hash_hex(vocab_hex, vocab.weights);
        kv_fingerprint_free(&vocab);
    }
    kv_buf text = {0};
    kv_buf_addf(&text, "fake %s window %d%s vocab %s %d edges %d cell %d %d state %d seed %llu",
                kv_memory_kind_name(p->memory), model->info.n_window, p->window_is_chunked ? " chunked" : "", vocab_hex,
                model->info.n_vocab, p->edge_sensitive, p->bytes_per_cell, p->bytes_per_window_cell, p->bytes_recurrent,
                (unsigned long long)p->seed);
    out->weights = kv_hash_bytes(text.data, text.len);
    out->adapters = kv_strdup("none");
    out->overrides = kv_strdup("none");
    kv_buf_free(&text);
    return KV_OK;
}

static void describe(kv_fake_model *m) {
    kv_model_info *info = &m->base.info;
    const kv_fake_params *p = &m->params;
    kv_buf desc = {0};
    kv_buf_addf(&desc, "fake, %s memory", kv_memory_kind_name(p->memory));
    m->desc = kv_buf_take(&desc);
    info->desc = m->desc;
    info->arch = "fake";
    info->path = "fake";
    info->ftype = "none";
    info->n_ctx_train = p->n_ctx_train > 0 ? p->n_ctx_train : 131072;
    info->n_embd = 64;
    info->n_layer = kv_fake_has_main(p->memory) + kv_fake_has_window(p->memory) + kv_fake_has_rows(p->memory);
    info->n_head = info->n_head_kv = 1;
    info->n_window = kv_fake_has_window(p->memory) ? p->n_window : 0;
    info->window_is_chunked = kv_fake_has_window(p->memory) && p->window_is_chunked;
    info->n_params = 1;
    info->size_bytes = 1;
    info->is_recurrent = p->memory == KV_MEMORY_RECURRENT;
    info->is_hybrid = kv_fake_has_main(p->memory) && kv_fake_has_rows(p->memory);
}

kv_status kv_model_load_fake(kv_model **out, const kv_fake_params *params, kv_error *err) {
    *out = NULL;
    kv_status st = check_params(params, err);
    if (st != KV_OK) return st;
    kv_fake_model *m = kv_alloc(sizeof *m);
    m->base.ops = &fake_model_ops;
    m->params = *params;
    m->params.vocab_path = m->params.chat_template = NULL;
    if (m->params.end_one_in == 0) m->params.end_one_in = 128;
    st = params->vocab_path ? init_gguf(m, params, err) : init_bytes(m, params, err);
    if (st != KV_OK) {
        fake_free(&m->base);
        return st;
    }
    describe(m);
    sort_tokens(m);
    *out = &m->base;
    return KV_OK;
}
