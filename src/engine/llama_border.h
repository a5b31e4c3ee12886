/* engine/llama_border.h: the extern "C" face of the one C++ file.
 *
 * llama_border.cpp is the only C++ in kvasir and the only place where an exception can appear; every function here
 * catches it and returns a status. Everything that computes, samples, parses or renders goes through it. Only files
 * in engine/ include this header.
 *
 * Thread rule: as engine.h for the object each call takes.
 */
#ifndef KV_ENGINE_LLAMA_BORDER_H
#define KV_ENGINE_LLAMA_BORDER_H

#include "engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_model;
struct llama_context;
struct llama_batch;

/* Templates of a model, or, with model NULL, of `template_src` alone (the fake's byte vocabulary). */
typedef struct kv_border_model kv_border_model;
kv_status kv_border_model_new(kv_border_model **out, const struct llama_model *model, const char *template_src,
                              const char *bos, const char *eos, kv_error *err);
const char *kv_border_template(const kv_border_model *, bool *explicit_template);
void kv_border_model_free(kv_border_model *);

/* llama_decode with exceptions caught: its return value, or INT32_MIN with err set when it threw. */
int32_t kv_border_decode(struct llama_context *ctx, struct llama_batch batch, kv_error *err);
size_t kv_border_state_size(struct llama_context *ctx, int32_t seq, uint32_t flags);
size_t kv_border_state_get(struct llama_context *ctx, void *dst, size_t cap, int32_t seq, uint32_t flags);
size_t kv_border_state_set(struct llama_context *ctx, const void *src, size_t n, int32_t seq, uint32_t flags);

/* common_sampler behind kv_sampler. `ctx_of` gets the llama_context of an engine. */
kv_status kv_border_sampler_new(kv_sampler **out, const struct llama_model *model, const kv_sampling *s,
                                const kv_chat_prompt *chat, struct llama_context *(*ctx_of)(kv_engine *), kv_error *err);

#ifdef __cplusplus
}
#endif

#endif
