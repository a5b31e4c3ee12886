/* engine/recipes.c: what stands on the engine's calls alone, for every kind of memory and both implementations. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

const char *kv_memory_kind_name(kv_memory_kind kind) {
    switch (kind) {
    case KV_MEMORY_FULL: return "full";
    case KV_MEMORY_WINDOW: return "window";
    case KV_MEMORY_HYBRID: return "hybrid";
    case KV_MEMORY_HYBRID_WINDOW: return "hybrid-window";
    case KV_MEMORY_RECURRENT: return "recurrent";
    case KV_MEMORY_WHOLE: return "whole";
    case KV_MEMORY_NONE: return "none";
    }
    return "unknown";
}

/* llama-server's defaults. */
void kv_sampling_defaults(kv_sampling *s) {
    *s = (kv_sampling){
        .seed = KV_SEED_RANDOM,
        .n_prev = 64,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .xtc_threshold = 0.1f,
        .typical_p = 1.0f,
        .temperature = 0.8f,
        .dynatemp_exponent = 1.0f,
        .repeat_last_n = 64,
        .repeat_penalty = 1.0f,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_penalty_last_n = 64,
        .adaptive_target = -1.0f,
        .adaptive_decay = 0.9f,
        .mirostat_tau = 5.0f,
        .mirostat_eta = 0.1f,
        .top_n_sigma = -1.0f,
        .reasoning_budget = -1,
    };
}

void kv_engine_params_defaults(kv_engine_params *p) {
    *p = (kv_engine_params){
        .n_ctx = 4096,
        .n_slots = 4,
        .n_batch = 256 + 4,
        .n_threads = 1,
        .n_threads_batch = 1,
        .flash_attn = KV_FA_AUTO,
        .offload_kqv = true,
        .op_offload = true,
        .yarn_ext_factor = -1,
        .yarn_attn_factor = -1,
        .yarn_beta_fast = -1,
        .yarn_beta_slow = -1,
    };
}

static kv_pos window_start(const kv_engine_info *info, kv_pos P) {
    return kv_window_start(info->n_window, info->window_is_chunked, P);
}

bool kv_engine_holds(kv_engine *e, kv_seq seq, kv_pos P) {
    const kv_engine_info *info = kv_engine_get_info(e);
    if (kv_engine_pos_max(e, seq) != P - 1) return false;
    if (P == 0 || !kv_memory_has_window(info->memory)) return true;
    if (kv_memory_has_recurrent(info->memory))
        return true; /* pos_min is the state's position there, not the window's */
    kv_pos need = window_start(info, P);
    return need >= P || kv_engine_pos_min(e, seq) <= need;
}

kv_status kv_engine_fork(kv_engine *e, kv_seq src, kv_seq dst, kv_pos P, kv_error *err) {
    const kv_engine_info *info = kv_engine_get_info(e);
    if (src == dst || kv_engine_pos_max(e, src) != P - 1)
        return kv_fail(err, KV_ENGINE, "sequence %d ends at %d and cannot be forked at %d", src,
                       kv_engine_pos_max(e, src) + 1, P);
    kv_engine_seq_rm(e, dst, -1, -1);
    if (P == 0) return KV_OK;
    /* Where ranges can be shared only what cannot be shared is copied; else the whole sequence is. */
    bool share = info->memory != KV_MEMORY_WHOLE && info->memory != KV_MEMORY_RECURRENT;
    uint32_t flags = share ? KV_STATE_PARTIAL : 0;
    void *blob = NULL;
    kv_status status = KV_OK;
    if (share) kv_engine_seq_cp(e, src, dst, 0, P);
    if (info->memory != KV_MEMORY_FULL) {
        size_t n = kv_engine_state_size(e, src, flags);
        blob = malloc(n ? n : 1);
        if (!blob) {
            status = kv_fail(err, KV_NO_MEMORY, "no memory for the %zu bytes of state that a fork copies", n);
            goto done;
        }
        if (n == 0 || kv_engine_state_get(e, blob, n, src, flags) != n ||
            kv_engine_state_set(e, blob, n, dst, flags) != n) {
            status = kv_fail(err, KV_ENGINE, "the engine could not copy the state of sequence %d at %d", src, P);
            goto done;
        }
    }
    if (!kv_engine_holds(e, dst, P))
        status = kv_fail(err, KV_ENGINE, "a fork at %d came out as positions %d to %d", P, kv_engine_pos_min(e, dst),
                         kv_engine_pos_max(e, dst));
done:
    if (status != KV_OK) kv_engine_seq_rm(e, dst, -1, -1);
    free(blob);
    return status;
}

bool kv_engine_trim(kv_engine *e, kv_seq s, kv_pos P) {
    const kv_engine_info *info = kv_engine_get_info(e);
    kv_pos end = kv_engine_pos_max(e, s) + 1;
    if (P < 0 || P > end) return false;
    if (P == end) return true;
    if (P == 0) return kv_engine_seq_rm(e, s, -1, -1);
    if (kv_memory_has_recurrent(info->memory) || info->memory == KV_MEMORY_WHOLE) return false;
    if (kv_memory_has_window(info->memory)) {
        /* Where a chunked window just begins nothing is needed; but positions are those of the window pool, and
         * without the cell of P - 1 the sequence would look empty. */
        kv_pos need = window_start(info, P) < P ? window_start(info, P) : P - 1;
        if (kv_engine_pos_min(e, s) > need) return false;
    }
    return kv_engine_seq_rm(e, s, P, -1);
}
