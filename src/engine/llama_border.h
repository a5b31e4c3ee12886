/* engine/llama_border.h: the extern "C" face of the one C++ file.
 *
 * llama_border.cpp is the only C++ in kvasir and the only place where an exception can appear; every function here
 * catches it and returns a status. Everything that loads, computes, samples, parses or renders goes through it. Only
 * files in engine/ include this header.
 *
 * Thread rule: as engine.h for the object each call takes.
 */
#ifndef KV_ENGINE_LLAMA_BORDER_H
#define KV_ENGINE_LLAMA_BORDER_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/engine.h"

struct llama_model;
struct llama_context;
struct llama_batch;
struct llama_model_params;
struct llama_context_params;
struct llama_model_kv_override;
struct llama_model_tensor_buft_override;
struct llama_adapter_lora;
struct gguf_context;

/* ── loading ── */

typedef struct kv_gguf_head {
    kv_buf arch, type;      /* general.architecture, general.type; owned */
    int32_t n_ctx_longrope; /* longrope models: the original length, else 0 */
} kv_gguf_head;

/* Reads only a GGUF's head. KV_INVALID when it is no GGUF. */
kv_status kv_border_gguf_head(kv_gguf_head *out, const char *path, kv_error *err);
/* The same as gguf.h's object: metadata and table of tensors, no data. Owned (gguf_free). */
kv_status kv_border_gguf_open(struct gguf_context **out, const char *path, kv_error *err);
/* As many layers on the devices as fit beside a context of n_ctx cells, as llama-server does by default. Changes
 * params, which afterwards points into split (llama_max_devices() floats) and `overrides`
 * (llama_max_tensor_buft_overrides() entries). Leaves everything as it is when it finds no way. */
void kv_border_fit_layers(struct llama_model_params *params, float *split,
                          struct llama_model_tensor_buft_override *overrides, const char *path, uint32_t n_ctx);
/* "KEY=TYPE:VALUE" */
kv_status kv_border_parse_override(struct llama_model_kv_override *out, const char *text, kv_error *err);
kv_status kv_border_model_load(struct llama_model **out, const char *path, const struct llama_model_params *params,
                               kv_error *err);
kv_status kv_border_lora_load(struct llama_adapter_lora **out, struct llama_model *model, const char *path,
                              kv_error *err);
kv_status kv_border_context_new(struct llama_context **out, struct llama_model *model,
                                const struct llama_context_params *params, kv_error *err);
kv_status kv_border_set_loras(struct llama_context *ctx, struct llama_adapter_lora **loras, float *scales, size_t n,
                              kv_error *err);
/* Bytes as allocated: the memory's buffers (cells and states), and the compute buffers. */
kv_status kv_border_memory_bytes(uint64_t *state, uint64_t *compute, const struct llama_context *ctx, kv_error *err);

/* ── text ── */

kv_status kv_border_tokenize(kv_tokens *out, const struct llama_model *model, const char *text, size_t n,
                             bool add_special, bool parse_special, kv_error *err);

/* ── templates ── */

/* Templates of a model, or, with model NULL, of `template_src` alone (the fake's byte vocabulary). template_src may
 * also be one of libllama's built-in names; NULL: the model's own, or ChatML. */
typedef struct kv_border_model kv_border_model;
kv_status kv_border_model_new(kv_border_model **out, const struct llama_model *model, const char *template_src,
                              const char *bos, const char *eos, kv_error *err);
const char *kv_border_template(const kv_border_model *, bool *explicit_template);
void kv_border_model_free(kv_border_model *);

/* ── compute ── */

/* llama_decode with exceptions caught: its return value, or INT32_MIN with err set when it threw. */
int32_t kv_border_decode(struct llama_context *ctx, struct llama_batch batch, kv_error *err);
/* Bytes, or 0 when the engine refused or threw. */
size_t kv_border_state_size(struct llama_context *ctx, int32_t seq, uint32_t flags);
size_t kv_border_state_get(struct llama_context *ctx, void *dst, size_t cap, int32_t seq, uint32_t flags);
size_t kv_border_state_set(struct llama_context *ctx, const void *src, size_t n, int32_t seq, uint32_t flags);

/* ── sampling ── */

/* common_sampler behind kv_sampler. `ctx_of` gets the llama_context of an engine. */
kv_status kv_border_sampler_new(kv_sampler **out, const struct llama_model *model, const kv_sampling *s,
                                const kv_chat_prompt *chat, struct llama_context *(*ctx_of)(kv_engine *),
                                kv_error *err);

#ifdef __cplusplus
}
#endif

#endif
