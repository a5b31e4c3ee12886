/* plan/tune.h: choices made by measuring once: flash attention, and the prefill chunk.
 *
 * `-fa auto`: with each setting, time a prefill, a short suffix (16 tokens) and decode at depth on a small context,
 * interleaved, within a budget of 5 s; the lower weighted cost wins. Where the budget does not suffice: off on CPU,
 * on elsewhere. What remains of the budget goes to the chunk: the same text in chunks of each size.
 * The result is remembered per (model, machine, types, threads, what was asked) in the state directory, because it is
 * part of the cache's namespace and must not flap: also where it is only the default.
 *
 *   budget  ├─ 1, 16, 64, 128 tokens ─┼─ 256 … while the rest fits behind ─┼─ suffix ─┼─ decode ─┼─ chunks ─┤
 *           each step on both settings, and only if its predicted time fits
 *
 * Thread rule: the engine thread, before it serves.
 */
#ifndef KV_PLAN_TUNE_H
#define KV_PLAN_TUNE_H

#include "engine/engine.h"

#define KV_TUNE_BUDGET_US 5000000
#define KV_CHUNK_CPU      256 /* where nothing was measured; docs/engine.md "Speed on CPU" */
#define KV_CHUNK_GPU      512

typedef struct kv_tuning {
    bool flash_attn;
    int32_t chunk;     /* prefill chunk in tokens, a multiple of the block */
    int32_t min_chunk; /* smallest chunk while a stream decodes: 16, or 64 where the kernel wants it */
    bool on_cpu;       /* no layer runs on another device */
    bool measured;     /* flash attention was decided by figures */
    bool remembered;   /* read from the state directory */
    char reason[200];  /* one sentence for the log: figures, or why it was not measured */
} kv_tuning;

typedef struct kv_tune_ask {
    kv_flash_attn flash_attn; /* ON, OFF: fixed */
    int32_t chunk;            /* > 0: fixed (rounded down to a multiple of the block, at least one) */
    int32_t chunk_max;        /* upper bound, 0 = none */
    int32_t block;
    bool cpu_only;         /* asked for: -ngl 0, -dev none */
    const char *placement; /* whatever else decides where layers run (-ngl, -ts …), as one text; may be NULL */
    const char *state_dir; /* NULL: do not remember */
} kv_tune_ask;

/* `params` gives the other engine settings. Fails only when no engine can be made at all. */
kv_status kv_tune(kv_tuning *out, kv_model *model, const kv_engine_params *params, const kv_tune_ask *ask,
                  const kv_clock *clock, kv_error *err);

#endif
