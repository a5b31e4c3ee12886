/* engine/llama_internal.h: what model_llama.c and engine_llama.c share. */
#ifndef KV_ENGINE_LLAMA_INTERNAL_H
#define KV_ENGINE_LLAMA_INTERNAL_H

#include "engine/engine.h"
#include "llama.h"

/* A loaded GGUF. kv_model first, so that a kv_model * of this kind can be cast. */
typedef struct kv_llama_model {
    kv_model base;
    struct llama_model *model;
    const struct llama_vocab *vocab;   /* borrowed from model */
    struct llama_adapter_lora **loras; /* owned by model; one set, applied to every context */
    float *lora_scales;
    int n_loras;
    bool vocab_only;
    char *name, *arch, *desc, *path, *bos_text, *eos_text, *ftype; /* owned; info points here */
} kv_llama_model;

kv_status kv_llama_engine_new(kv_engine **out, kv_model *model, const kv_engine_params *p, kv_error *err);
struct llama_context *kv_llama_engine_context(kv_engine *e);

#endif
