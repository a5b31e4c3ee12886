/* engine/engine.h: the border to the inference engine. Nothing above it knows llama.h.
 *
 * Nouns
 *   model    weights, vocabulary and chat template. Immutable once loaded.
 *   engine   one llama context on a model: the KV cells, recurrent states and logits of the running sequences.
 *   sampler  what turns one row of logits into a token: penalties, grammar, RNG. One a request.
 *   row      an entry of the last decoded batch whose logits were asked for, named by its index in the batch.
 *
 *            kv_model ───────────┬───────────────┐
 *   any thread: tokenise,        │               │
 *   render, parse, build         ▼               ▼
 *   samplers                 kv_engine      kv_sampler ×N
 *                            engine thread  built anywhere, then engine thread
 *
 * Two implementations stand behind the same calls: engine_llama.c (libllama) and engine_fake.c (deterministic, for
 * tests). Each object begins with a pointer to its operations; the inline functions below dispatch.
 *
 * Thread rule: kv_model: any thread, read-only. kv_engine: only the thread that made it. kv_sampler: one thread at a
 * time; made on an HTTP thread, handed over with its request.
 *
 * Errors: no call lets a C++ exception or a known abort() through: llama_border.cpp catches, and what the engine
 * would abort on is checked first and returned as KV_INVALID or KV_UNSUPPORTED.
 */
#ifndef KV_ENGINE_ENGINE_H
#define KV_ENGINE_ENGINE_H

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t kv_pos;
typedef int32_t kv_seq;

/* How a model remembers, hence where a sequence can be cut (docs/architecture.md "What is reused"). */
typedef enum kv_memory_kind {
    KV_MEMORY_FULL,          /* every layer attends to everything: cut anywhere */
    KV_MEMORY_WINDOW,        /* some layers only see the last W tokens (iSWA) */
    KV_MEMORY_HYBRID,        /* attention + recurrent layers: the recurrent state cannot be cut */
    KV_MEMORY_HYBRID_WINDOW, /* all three */
    KV_MEMORY_RECURRENT,     /* recurrent only */
    KV_MEMORY_WHOLE,         /* no copy of position ranges (deepseek4, qwen4exp): whole sequences only */
    KV_MEMORY_NONE,          /* an encoder: it makes vectors (embedder.h), and generates nothing */
} kv_memory_kind;

const char *kv_memory_kind_name(kv_memory_kind kind); /* "full", "window", "hybrid", … ; static */
static inline bool kv_memory_has_window(kv_memory_kind k) {
    return k == KV_MEMORY_WINDOW || k == KV_MEMORY_HYBRID_WINDOW;
}
static inline bool kv_memory_has_recurrent(kv_memory_kind k) {
    return k == KV_MEMORY_HYBRID || k == KV_MEMORY_HYBRID_WINDOW || k == KV_MEMORY_RECURRENT;
}

/* The first position whose window cells a sequence that continues at P still needs. */
static inline kv_pos kv_window_start(int32_t n_window, bool is_chunked, kv_pos P) {
    if (is_chunked) return P / n_window * n_window;
    return P - n_window + 1 > 0 ? P - n_window + 1 : 0;
}

/* ── model ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct kv_model kv_model;
typedef struct kv_engine kv_engine;
typedef struct kv_sampler kv_sampler;
typedef struct kv_chat_prompt kv_chat_prompt;
typedef struct kv_chat_stream kv_chat_stream;
typedef struct kv_engine_params kv_engine_params;
typedef struct kv_sampling kv_sampling;
struct kv_fingerprint; /* engine/fingerprint.h */
struct kv_embedder;    /* engine/embedder.h */
struct kv_embedder_params;

typedef struct kv_lora_spec {
    const char *path; /* borrowed for the load call */
    float scale;
} kv_lora_spec;

/* What loading needs. Names follow llama-server's options. Strings are borrowed for the call. */
typedef struct kv_model_params {
    const char *path;         /* GGUF file; of a split model its first part */
    const char *alias;        /* NULL: the file's base name */
    int n_gpu_layers;         /* -1 = all that fit */
    const char *devices;      /* comma-separated device names, "none" = CPU only, NULL = all */
    const char *split_mode;   /* none | layer | row | tensor */
    const char *tensor_split; /* "3,1", NULL = by memory */
    int main_gpu;
    bool use_mmap, use_mlock, check_tensors;
    bool vocab_only;           /* tokenizer and template only: no engine can be made on it */
    const char *chat_template; /* a Jinja source or a built-in name that overrides the model's; NULL = the model's */
    const char *const *kv_overrides; /* "KEY=TYPE:VALUE", n_kv_overrides of them */
    int n_kv_overrides;
    const kv_lora_spec *loras; /* applied to the context as one set */
    int n_loras;
    bool (*progress)(void *ctx, float done); /* may be NULL; false aborts the load */
    void *progress_ctx;
} kv_model_params;

/* An adapter that every context of the model applies. Strings live as long as the model. */
typedef struct kv_lora_info {
    const char *path;
    float scale;
    const char *task_name, *prompt_prefix; /* as the file describes itself; "" without */
} kv_lora_info;

/* What fills in the middle: FIM tokens of the vocabulary, -1 when absent. */
typedef struct kv_fim_tokens {
    kv_token pre, suf, mid, rep, sep; /* rep: before a repository's name, sep: before a file's */
} kv_fim_tokens;

/* Facts about a loaded model. Strings live as long as the model. */
typedef struct kv_model_info {
    const char *name; /* general.name, or the file's base name */
    const char *arch; /* "llama", "gemma3", … */
    const char *desc; /* "llama 1B Q4_1" */
    const char *path;
    const char *chat_template;       /* Jinja source in use */
    bool chat_template_explicit;     /* false: the model has none and ChatML stands in */
    const char *bos_text, *eos_text; /* "" when the vocabulary has none */
    kv_token bos, eos, eot, sep;     /* -1 when absent */
    bool add_bos, add_eos, add_sep;
    kv_fim_tokens fim;
    const kv_lora_info *loras; /* n_loras of them, in the order given */
    int n_loras;
    const char *rerank_template; /* with {query} and {document}; NULL: the model has none */
    int vocab_type;              /* llama_vocab_type */
    int32_t n_vocab;
    int32_t n_ctx_train;
    int32_t n_ctx_longrope; /* longrope models: the original length, above which other factors apply; else 0 */
    int32_t n_embd, n_layer, n_head, n_head_kv;
    int32_t n_window;       /* W in tokens, 0 without sliding-window layers */
    bool window_is_chunked; /* llama4: the window of P is [⌊P/W⌋·W, P) */
    uint64_t n_params;
    uint64_t size_bytes; /* weights */
    bool is_recurrent, is_hybrid;
    bool is_encoder;   /* no memory: its engine is one of KV_MEMORY_NONE */
    const char *ftype; /* "Q4_1" */
} kv_model_info;

/* Load. KV_INVALID for a missing or broken file, KV_UNSUPPORTED for a kind of model kvasir cannot serve
 * (encoder-decoder, diffusion, draft-only), always with the reason. Takes seconds to minutes. */
kv_status kv_model_load_llama(kv_model **out, const kv_model_params *params, kv_error *err);

/* ── text and tokens ───────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct kv_model_ops {
    void (*free)(kv_model *);
    kv_status (*tokenize)(kv_tokens *out, const kv_model *, const char *text, size_t n, bool add_special,
                          bool parse_special, kv_error *);
    void (*piece)(kv_buf *out, const kv_model *, kv_token token, bool special);
    bool (*is_eog)(const kv_model *, kv_token token);
    bool (*is_special)(const kv_model *, kv_token token);
    kv_status (*engine_new)(kv_engine **out, kv_model *, const kv_engine_params *, kv_error *);
    kv_status (*sampler_new)(kv_sampler **out, const kv_model *, const kv_sampling *, const kv_chat_prompt *,
                             kv_error *);
    kv_status (*fingerprint)(struct kv_fingerprint *out, const kv_model *, kv_error *); /* zeroed at entry */
    kv_status (*embedder_new)(struct kv_embedder **out, kv_model *, const struct kv_embedder_params *,
                              kv_error *); /* NULL: this kind of model has none */
} kv_model_ops;

struct kv_model {
    const kv_model_ops *ops;
    kv_model_info info;
    struct kv_border_model *border; /* llama_border.h: vocabulary and templates; NULL only on a fake with bytes */
};

static inline void kv_model_free(kv_model *m) {
    if (m) m->ops->free(m);
}
static inline const kv_model_info *kv_model_get_info(const kv_model *m) {
    return &m->info;
}
/* Appends to `out`. add_special: BOS/EOS as the vocabulary wants; parse_special: "<|im_start|>" in the text becomes
 * its one token. Text of any bytes is taken. KV_INVALID: more than KV_MODEL_LONGEST_RUN bytes stand in a row without a
 * blank, or are all blanks: the engine's splitters recurse on them. */
#define KV_MODEL_LONGEST_RUN (1 << 20)
static inline kv_status kv_model_tokenize(kv_tokens *out, const kv_model *m, const char *text, size_t n,
                                          bool add_special, bool parse_special, kv_error *err) {
    return m->ops->tokenize(out, m, text, n, add_special, parse_special, err);
}
/* Appends the bytes of one token; they need not be whole UTF-8 characters. special: also spell control tokens. */
static inline void kv_model_piece(kv_buf *out, const kv_model *m, kv_token token, bool special) {
    m->ops->piece(out, m, token, special);
}
static inline bool kv_model_is_eog(const kv_model *m, kv_token t) {
    return m->ops->is_eog(m, t);
}

/* A token that means more than the bytes it spells: control and unknown tokens, those that end an answer, and tokens that
 * were added to the vocabulary by their text ("<think>"), but for added runs of blanks. */
static inline bool kv_model_is_special(const kv_model *m, kv_token t) {
    return m->ops->is_special(m, t);
}

/* ── chat: templates, parsing, schemas (libllama-common, JSON in and out) ──────────────────────────────────────── */

typedef struct kv_chat_params {
    const char *messages_json;    /* OpenAI "messages" array */
    const char *tools_json;       /* OpenAI "tools" array, NULL = none */
    const char *shown_tools_json; /* the tools that the template shows, when not all may be called; NULL = tools_json */
    const char *tool_choice;      /* "auto" | "none" | "required", NULL = auto */
    const char *json_schema;      /* a JSON schema text for the answer, NULL = none */
    const char *grammar;          /* GBNF, NULL = none */
    const char *kwargs_json;      /* object for chat_template_kwargs, NULL = none */
    const char *reasoning_format; /* "none" | "auto" | "deepseek" | "deepseek-legacy" */
    int enable_thinking;          /* 0, 1; -1 = the template's default */
    bool parallel_tool_calls;
    bool add_generation_prompt;
    bool continue_final_message; /* the last message is the assistant's and is continued */
    int64_t now_seconds;         /* for templates that print the date; Unix time */
} kv_chat_params;

/* The rendered conversation and what goes with it. Opaque parts (tool-call triggers, parser) stay inside. Immutable
 * once made, any thread. */
const char *kv_chat_prompt_text(const kv_chat_prompt *, size_t *n); /* borrowed */
const char *kv_chat_prompt_generation(const kv_chat_prompt *);      /* the generation prompt's text; "" if none */
int kv_chat_prompt_n_stops(const kv_chat_prompt *);                 /* stop strings that the format adds */
const char *kv_chat_prompt_stop(const kv_chat_prompt *, int i);
bool kv_chat_prompt_thinks(const kv_chat_prompt *); /* the template knows a thinking section */
bool kv_chat_prompt_binds(
    const kv_chat_prompt *); /* a grammar holds the answer from its first token, or from a trigger */
void kv_chat_prompt_free(kv_chat_prompt *);

/* Render. KV_INVALID with the template's own message when it throws, or when a message or tool is malformed. */
kv_status kv_chat_render(kv_chat_prompt **out, const kv_model *, const kv_chat_params *, kv_error *);

/* Parsing generated text as it grows, into OpenAI message parts. One stream a choice; one thread at a time.
 * `feed` appends text and writes to *deltas_json a JSON array of OpenAI `delta` objects (content, reasoning_content,
 * tool_calls) since the last call; "[]" when nothing new can be told. final: the text is complete. */
kv_status kv_chat_stream_new(kv_chat_stream **out, const kv_chat_prompt *, kv_error *);
kv_status kv_chat_stream_feed(kv_buf *deltas_json, kv_chat_stream *, const char *text, size_t n, bool final,
                              kv_error *);
/* The whole message so far as one OpenAI assistant message object. */
kv_status kv_chat_stream_message(kv_buf *message_json, kv_chat_stream *, kv_error *);
bool kv_chat_stream_has_tool_calls(const kv_chat_stream *);
void kv_chat_stream_free(kv_chat_stream *);

/* JSON schema → GBNF. KV_INVALID naming what the converter cannot express. */
kv_status kv_schema_to_grammar(kv_buf *gbnf, const char *schema_json, kv_error *);
/* Template capabilities as a JSON object, for /props. */
kv_status kv_chat_caps(kv_buf *json, const kv_model *, kv_error *);

/* ── sampler ───────────────────────────────────────────────────────────────────────────────────────────────────── */

#define KV_SEED_RANDOM 0xFFFFFFFFu

typedef struct kv_logit_bias {
    kv_token token;
    float bias; /* -INFINITY bans */
} kv_logit_bias;

typedef enum kv_grammar_type { KV_GRAMMAR_NONE, KV_GRAMMAR_USER, KV_GRAMMAR_SCHEMA, KV_GRAMMAR_CHAT } kv_grammar_type;

/* Sampling parameters under llama-server's names, units and meanings. Fill with kv_sampling_defaults first. */
struct kv_sampling {
    uint32_t seed; /* KV_SEED_RANDOM = a fresh one */
    int32_t n_prev, min_keep, top_k;
    float top_p, min_p, xtc_probability, xtc_threshold, typical_p, temperature, dynatemp_range, dynatemp_exponent;
    int32_t repeat_last_n;
    float repeat_penalty, frequency_penalty, presence_penalty;
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_penalty_last_n;
    float adaptive_target, adaptive_decay;
    int32_t mirostat; /* 0, 1 or 2: anything else aborts the engine, so it is refused here */
    float mirostat_tau, mirostat_eta, top_n_sigma;
    bool ignore_eos;
    const char *const *dry_breakers; /* NULL = the engine's defaults */
    int n_dry_breakers;
    const char *const *samplers; /* names in order ("top_k", "temperature", …); NULL = the engine's defaults */
    int n_samplers;
    const char *sampler_chars; /* the same as one string ("edskypmxt"), NULL = unused */
    const kv_logit_bias *logit_bias;
    int n_logit_bias;
    const char *grammar; /* GBNF, NULL = none, or the chat prompt's own */
    kv_grammar_type grammar_type;
    int32_t reasoning_budget;             /* tokens, -1 = unlimited; needs a chat prompt that thinks */
    const char *reasoning_budget_message; /* NULL = none */
    /* Test aid, both engines: answer with exactly these tokens, then end of generation. NULL = off. */
    const kv_token *play;
    int n_play;
};

void kv_sampling_defaults(kv_sampling *s);

typedef struct kv_token_prob {
    kv_token token;
    float logprob; /* natural log; of the raw softmax, or of the sampled distribution when post_sampling */
} kv_token_prob;

typedef struct kv_sampler_ops {
    void (*free)(kv_sampler *);
    kv_status (*prime)(kv_sampler *, const kv_token *prompt, size_t n, kv_error *);
    kv_status (*sample)(kv_token *out, kv_sampler *, kv_engine *, int row, kv_error *);
    kv_status (*probs)(kv_token_prob *top, int *n_top, kv_token_prob *chosen, kv_sampler *, kv_engine *, int row,
                       bool post_sampling, kv_error *);
    uint32_t (*seed)(const kv_sampler *);
} kv_sampler_ops;

struct kv_sampler {
    const kv_sampler_ops *ops;
};

/* Build a sampler, grammar included (can take tens of milliseconds: never on the engine thread). `chat` may be NULL;
 * it gives the lazy grammar of its tools, their triggers, and the reasoning tags. KV_INVALID for a grammar that does
 * not parse, an unknown sampler name, a token id out of range, or "%llguidance". */
static inline kv_status kv_sampler_new(kv_sampler **out, const kv_model *m, const kv_sampling *s,
                                       const kv_chat_prompt *chat, kv_error *err) {
    return m->ops->sampler_new(out, m, s, chat, err);
}
static inline void kv_sampler_free(kv_sampler *s) {
    if (s) s->ops->free(s);
}
/* Let penalties see the prompt. Once, before the first sample. */
static inline kv_status kv_sampler_prime(kv_sampler *s, const kv_token *prompt, size_t n, kv_error *err) {
    return s->ops->prime(s, prompt, n, err);
}
/* Sample from `row` of the engine's last batch and accept the token. Engine thread. */
static inline kv_status kv_sampler_sample(kv_token *out, kv_sampler *s, kv_engine *e, int row, kv_error *err) {
    return s->ops->sample(out, s, e, row, err);
}
/* The *n_top most likely tokens of the row just sampled (in: room, out: filled), best first, and the chosen one's. */
static inline kv_status kv_sampler_probs(kv_token_prob *top, int *n_top, kv_token_prob *chosen, kv_sampler *s,
                                         kv_engine *e, int row, bool post_sampling, kv_error *err) {
    return s->ops->probs(top, n_top, chosen, s, e, row, post_sampling, err);
}
static inline uint32_t kv_sampler_seed(const kv_sampler *s) {
    return s->ops->seed(s);
}

/* A sampler that plays `tokens` (copied) and then `end`; stands on both engines. engine/sampler_play.c. */
kv_status kv_sampler_play_new(kv_sampler **out, const kv_token *tokens, int n, kv_token end);

/* ── engine ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef enum kv_flash_attn { KV_FA_AUTO = -1, KV_FA_OFF = 0, KV_FA_ON = 1 } kv_flash_attn;

struct kv_engine_params {
    int32_t n_ctx;     /* cells of the main pool, in tokens, shared by all sequences (unified) */
    int32_t n_slots;   /* sequences 0 … n_slots-1 run requests; n_slots is the scratch sequence */
    int32_t n_batch;   /* largest batch in tokens; one decode is one ubatch, so n_ubatch is the same */
    int32_t n_outputs; /* most rows of one batch whose logits are wanted; 0 = one a sequence. Each takes room for
                            n_vocab floats in the compute buffers */
    int32_t n_threads, n_threads_batch;
    kv_flash_attn flash_attn;    /* KV_FA_AUTO leaves it to libllama; kvasir resolves it first (plan/tune.h) */
    const char *type_k, *type_v; /* "f16", "q8_0", …; NULL = f16 */
    bool offload_kqv, op_offload;
    float rope_freq_base, rope_freq_scale;                                   /* 0 = the model's */
    const char *rope_scaling;                                                /* NULL = the model's */
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow; /* -1 = the model's */
    int32_t yarn_orig_ctx;
};

void kv_engine_params_defaults(kv_engine_params *p);

/* How positions are turned into K, after the model's own values and the asked ones were put together: on one model
 * equal values give equal K. What was left to the model and is not known here has its neutral value. */
typedef struct kv_rope {
    const char *scaling; /* "none", "linear", "yarn", "longrope"; NULL: the model's; static */
    float freq_base;     /* 0: the model's */
    float freq_scale;    /* 0: the model's */
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow; /* -1: the model's */
    int32_t yarn_orig_ctx;                                                   /* 0: the model's */
} kv_rope;

/* What the engine allocated and can do. */
typedef struct kv_engine_info {
    kv_memory_kind memory;
    int32_t n_ctx;          /* cells of the main pool (the engine may round up what was asked) */
    int32_t n_window_cells; /* cells of the window pool, 0 without one */
    int32_t n_window;       /* W in tokens */
    bool window_is_chunked;
    int32_t n_slots, n_batch;
    int32_t n_threads, n_threads_batch;
    bool flash_attn;
    const char *type_k, *type_v;
    kv_rope rope;
    bool attn_rot_disabled;         /* LLAMA_ATTN_ROT_DISABLE is set where it matters: K or V is quantised */
    const char *state_format;       /* names the layout of state blobs, "ggsq 3"; static */
    uint64_t bytes_per_cell;        /* main pool, all its layers */
    uint64_t bytes_per_window_cell; /* window pool, all its layers */
    uint64_t bytes_recurrent;       /* one sequence's recurrent state, 0 without recurrent layers */
    uint64_t bytes_state_total;     /* all KV and state buffers as allocated */
    uint64_t bytes_compute;         /* compute buffers as allocated, for batches of n_batch */
    const char *version;            /* engine release, "v0.5.0" */
    const char *backends;           /* devices and CPU level in use, for logs and /props */
} kv_engine_info;

/* One decode call. Arrays of n entries, in the caller's order; each token belongs to one sequence. */
typedef struct kv_batch {
    int32_t n;
    kv_token *token;
    kv_pos *pos;
    kv_seq *seq;
    bool *want_logits;
} kv_batch;

#define KV_STATE_PARTIAL 1u /* only what cannot be cut: window cells and recurrent state (docs/engine.md) */

typedef struct kv_engine_ops {
    void (*free)(kv_engine *);
    kv_status (*decode)(kv_engine *, const kv_batch *, kv_error *);
    const float *(*logits)(kv_engine *, int row);
    void (*clear)(kv_engine *);
    bool (*seq_rm)(kv_engine *, kv_seq, kv_pos p0, kv_pos p1);
    void (*seq_cp)(kv_engine *, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1);
    kv_pos (*pos_min)(kv_engine *, kv_seq);
    kv_pos (*pos_max)(kv_engine *, kv_seq);
    size_t (*state_size)(kv_engine *, kv_seq, uint32_t flags);
    size_t (*state_get)(kv_engine *, void *dst, size_t cap, kv_seq, uint32_t flags);
    size_t (*state_set)(kv_engine *, const void *src, size_t n, kv_seq, uint32_t flags);
} kv_engine_ops;

struct kv_engine {
    const kv_engine_ops *ops;
    kv_engine_info info;
    kv_model *model; /* borrowed; outlives the engine */
};

/* On an encoder: an engine that holds nothing and refuses every batch, so that what stands on engines need not know. */
static inline kv_status kv_engine_new(kv_engine **out, kv_model *m, const kv_engine_params *p, kv_error *err) {
    return m->ops->engine_new(out, m, p, err);
}
static inline void kv_engine_free(kv_engine *e) {
    if (e) e->ops->free(e);
}
static inline const kv_engine_info *kv_engine_get_info(const kv_engine *e) {
    return &e->info;
}

/* Compute one batch (1 ≤ n ≤ info.n_batch). Positions of a sequence continue where it ends.
 *   KV_OK             logits of the wanted rows can be read until the next decode
 *   KV_NO_CELLS       no room in a pool; nothing was processed and every sequence is as before
 *   KV_ENGINE_DAMAGED failed half-way: on full and windowed memory the batch's sequences, with recurrent layers
 *                     every sequence, must be removed and computed again
 *   KV_NOT_NUMBERS    a wanted row's logits are NaN. They come of memory that is, and it spoils all others: cells that are
 *                     masked, and those that were given back, are still multiplied by 0. Only kv_engine_clear helps
 *   KV_ENGINE         refused before anything happened */
static inline kv_status kv_engine_decode(kv_engine *e, const kv_batch *b, kv_error *err) {
    return e->ops->decode(e, b, err);
}
/* n_vocab floats, borrowed until the next decode; NULL when that row's logits were not asked for. */
static inline const float *kv_engine_logits(kv_engine *e, int row) {
    return e->ops->logits(e, row);
}
/* Every sequence is removed; after a call that failed half-way, or was not numbers, memory is zeroed too. */
static inline void kv_engine_clear(kv_engine *e) {
    e->ops->clear(e);
}
/* Remove positions [p0, p1) of a sequence; p0 < 0: from the start, p1 < 0: to the end. False and unchanged when the
 * memory cannot cut there. Removing a whole sequence (-1, -1) never fails. */
static inline bool kv_engine_seq_rm(kv_engine *e, kv_seq s, kv_pos p0, kv_pos p1) {
    return e->ops->seq_rm(e, s, p0, p1);
}
/* Share positions [p0, p1) of src with dst without using cells. On windowed and recurrent memory dst is not usable
 * before its partial state was set: use kv_engine_fork. */
static inline void kv_engine_seq_cp(kv_engine *e, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1) {
    e->ops->seq_cp(e, src, dst, p0, p1);
}
static inline kv_pos kv_engine_pos_min(kv_engine *e, kv_seq s) {
    return e->ops->pos_min(e, s);
} /* -1 when empty */
static inline kv_pos kv_engine_pos_max(kv_engine *e, kv_seq s) {
    return e->ops->pos_max(e, s);
} /* -1 when empty */
/* State blobs; bytes as in docs/engine.md "State blobs": 8 of header, then payload. get/set return bytes or 0. */
static inline size_t kv_engine_state_size(kv_engine *e, kv_seq s, uint32_t flags) {
    return e->ops->state_size(e, s, flags);
}
static inline size_t kv_engine_state_get(kv_engine *e, void *dst, size_t cap, kv_seq s, uint32_t flags) {
    return e->ops->state_get(e, dst, cap, s, flags);
}
static inline size_t kv_engine_state_set(kv_engine *e, const void *src, size_t n, kv_seq s, uint32_t flags) {
    return e->ops->state_set(e, src, n, s, flags);
}

/* ── recipes over the calls above (engine/recipes.c), for every memory kind ────────────────────────────────────── */

/* Make the empty sequence dst hold exactly what src holds, which ends at P (pos_max(src) == P - 1). Window and
 * recurrent state are copied right away (without that a windowed fork decodes silently wrong). KV_ENGINE and dst
 * emptied when the positions do not come out right. */
kv_status kv_engine_fork(kv_engine *e, kv_seq src, kv_seq dst, kv_pos P, kv_error *err);
/* Cut a sequence to [0, P) in place. False and unchanged when this memory cannot: with recurrent layers unless it
 * already ends at P, with a window unless pos_min ≤ max(0, P - W + 1). */
bool kv_engine_trim(kv_engine *e, kv_seq s, kv_pos P);
/* True when the sequence holds [0, P), as far as positions can tell: to be asked after every restore and fork. */
bool kv_engine_holds(kv_engine *e, kv_seq s, kv_pos P);

/* ── fake engine ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* engine/engine_fake.c. Logits are a hash of exactly what each kind of layer has consumed, so that a wrong restore,
 * a stolen cell or a missing window changes the answer. The header engine_fake.h has the knobs. */

#endif
