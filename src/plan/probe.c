/* Measuring a model's shape. Two contexts of different length tell what grows with the context and what does not. */
#include "plan/memory.h"

/* Cells of the two contexts. Small, because their memory is really used (up to 320 KiB a cell on a 70B model); large
 * enough that attention, not the output layer, decides how large the compute buffer is. */
#define PROBE_SMALL 1024
#define PROBE_LARGE 2048
#define CELLS_LEAST 512 /* the smallest context that is planned */

/* An upper bound of what one more cell adds to the compute buffers, whatever the probe saw: without flash attention a
 * row of KQ in 32 bits for each head and token of the batch (softmax works in place), and the mask in 32 and 16 bits.
 * Buffers are the largest of several sets alive at different times, so their size is convex in the context, and a
 * small context alone can show a slope that is too low. */
static uint64_t compute_slope_bound(const kv_model_info *m, const kv_engine_params *p) {
    uint64_t rows = (uint64_t)p->n_batch, heads = (uint64_t)(m->n_head > 0 ? m->n_head : 1);
    return rows * (p->flash_attn == KV_FA_ON ? 6 : heads * 4 + 6);
}

static kv_status measure(kv_engine_info *out, kv_model *model, const kv_engine_params *params, int32_t n_ctx,
                         kv_error *err) {
    kv_engine_params p = *params;
    kv_engine *engine = NULL;
    p.n_ctx = n_ctx;
    p.n_threads = p.n_threads_batch = 1; /* sizes do not depend on it, and one thread waits for nobody */
    kv_status st = kv_engine_new(&engine, model, &p, err);
    if (st == KV_OK) *out = *kv_engine_get_info(engine);
    kv_engine_free(engine);
    return st;
}

kv_status kv_shape_probe(kv_shape *out, kv_memory_kind *memory, kv_model *model, const kv_engine_params *params,
                         kv_error *err) {
    const kv_model_info *m = kv_model_get_info(model);
    kv_engine_info small, large;
    *out = (kv_shape){0};
    kv_status st = measure(&small, model, params, PROBE_SMALL, err);
    if (st == KV_OK) st = measure(&large, model, params, PROBE_LARGE, err);
    if (st != KV_OK) return st;
    if (memory) *memory = large.memory;
    out->bytes_per_cell = large.bytes_per_cell;
    out->bytes_per_window_cell = large.bytes_per_window_cell;
    out->bytes_recurrent = large.bytes_recurrent;
    if (large.memory == KV_MEMORY_WHOLE && large.n_ctx > small.n_ctx) { /* the engine tells the sum of its parts only */
        uint64_t cells = (uint64_t)(large.n_ctx - small.n_ctx),
                 grown = large.bytes_state_total - small.bytes_state_total;
        out->bytes_per_cell = grown / cells;
        out->bytes_recurrent =
            (small.bytes_state_total - out->bytes_per_cell * (uint64_t)small.n_ctx) / (uint64_t)(params->n_slots + 1);
    }
    out->n_window = kv_memory_has_window(large.memory) ? large.n_window : 0;
    out->n_ctx_train = m->n_ctx_train;
    out->n_ctx_orig = m->n_ctx_longrope;
    out->longrope_limit = m->n_ctx_longrope > 0;
    out->bytes_weights = m->size_bytes;

    uint64_t slope = compute_slope_bound(m, params);
    if (large.bytes_compute > small.bytes_compute && large.n_ctx > small.n_ctx) {
        uint64_t seen = (large.bytes_compute - small.bytes_compute) / (uint64_t)(large.n_ctx - small.n_ctx);
        if (seen > slope) slope = seen;
    }
    /* For n cells: at most what the large probe took plus the slope for each cell above it, and never less than what
     * it took. Both hold for every n from CELLS_LEAST on when the line is laid through (CELLS_LEAST, large). */
    uint64_t grown = slope * CELLS_LEAST;
    out->bytes_compute_per_cell = large.bytes_compute > 0 ? slope : 0; /* the fake has none */
    out->bytes_compute = large.bytes_compute > grown ? large.bytes_compute - grown : 0;
    return KV_OK;
}
