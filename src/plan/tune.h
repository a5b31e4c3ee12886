/* plan/tune.h: choices made by measuring once: flash attention, and the prefill chunk.
 *
 * `-fa auto`: with each setting, time a prefill, a short suffix (16 tokens) and decode at depth on a small context,
 * interleaved, within a budget of 5 s; the lower weighted cost wins. Where the budget does not suffice: off on CPU,
 * on elsewhere. The result is remembered per (model, machine, types, threads) in the state directory, because it is
 * part of the cache's namespace and must not flap.
 *
 * Thread rule: the engine thread, before it serves.
 */
#ifndef KV_PLAN_TUNE_H
#define KV_PLAN_TUNE_H

#include "engine/engine.h"

typedef struct kv_tuning {
    bool flash_attn;
    int32_t chunk;       /* prefill chunk in tokens, a multiple of the block */
    int32_t min_chunk;   /* smallest chunk while a stream decodes: 16, or 64 where the kernel wants it */
    bool remembered;     /* read from the state directory */
    char reason[160];    /* one sentence for the log: figures, or why it was not measured */
} kv_tuning;

/* fa_asked KV_FA_ON/OFF fixes flash attention; chunk_asked > 0 fixes the chunk. `params` gives the other engine
 * settings. state_dir NULL: measure and do not remember. */
kv_status kv_tune(kv_tuning *out, kv_model *model, const kv_engine_params *params, kv_flash_attn fa_asked,
                  int32_t chunk_asked, int32_t block, const char *state_dir, const kv_clock *clock, kv_error *err);

#endif
