/* engine/llama_internal.h: what model_llama.c and engine_llama.c share.
 *
 * Thread rule: as engine.h: a model is read-only once loaded, a context has one thread.
 */
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
    char **lora_paths;        /* owned, as the texts */
    kv_lora_info *lora_infos; /* owned, as its task_name and prompt_prefix */
    int n_loras;
    /* Owned; n_overrides, in the order given: of equal keys the first counts. */
    struct llama_model_kv_override *overrides;
    int n_overrides;
    bool vocab_only;
    char *name, *arch, *desc, *path, *bos_text, *eos_text, *ftype; /* owned; info points here */
} kv_llama_model;

kv_status kv_llama_engine_new(kv_engine **out, kv_model *model, const kv_engine_params *p, kv_error *err);
struct llama_context *kv_llama_engine_context(kv_engine *e);
/* Room for n rows, each of one sequence: row i's is (*seq_value)[i]. Both are the caller's, for kv_llama_batch_free. */
void kv_llama_batch_alloc(struct llama_batch *b, llama_seq_id **seq_value, int32_t n);
void kv_llama_batch_free(struct llama_batch *b, llama_seq_id *seq_value);
/* The override that counts for a key, or NULL. A wrong type is as none: the engine ignores it too. */
const struct llama_model_kv_override *kv_llama_override(const kv_llama_model *m, const char *key,
                                                        enum llama_model_kv_override_type type);
/* Like an engine's: context size, batch, threads, K and V types, RoPE. KV_INVALID names the option at fault. */
kv_status kv_llama_context_params(struct llama_context_params *cp, const kv_engine_params *p, kv_error *err);
/* A number of the model's own metadata, "<arch>.<suffix>", or what overrides it. */
int32_t kv_llama_meta_int(const kv_llama_model *m, const char *suffix, int32_t otherwise);
/* engine/embedder.c */
kv_status kv_llama_embedder_new(struct kv_embedder **out, kv_model *m, const struct kv_embedder_params *p,
                                kv_error *err);
/* engine/engine_none.c: on an encoder. p->n_slots, n_batch and n_ctx are taken as they are. */
kv_status kv_llama_engine_none(kv_engine **out, kv_model *m, const kv_engine_params *p, kv_error *err);
/* engine/fingerprint.c */
kv_status kv_llama_fingerprint(struct kv_fingerprint *out, const kv_model *m, kv_error *err);

#endif
