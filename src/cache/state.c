#include "cache/state.h"

#include <stdlib.h>
#include <string.h>

bool kv_state_has_blocks(kv_memory_kind kind) {
    return kind != KV_MEMORY_RECURRENT && kind != KV_MEMORY_WHOLE;
}
bool kv_state_has_windows(kv_memory_kind kind) {
    return kind == KV_MEMORY_WINDOW;
}
bool kv_state_has_checkpoints(kv_memory_kind kind) {
    return kv_memory_has_recurrent(kind) || kind == KV_MEMORY_WHOLE;
}

/* Every blob begins with a magic number and the number of the sequence it was taken from, 4 bytes each. The engine
 * reads the second and does not use it; a record must not depend on it. */
enum { BLOB_SEQ_AT = 4, BLOB_HEADER = 8 };

static kv_status get(kv_buf *out, kv_state *s, kv_seq seq, uint32_t flags, kv_error *err) {
    kv_buf_clear(out);
    size_t n = kv_engine_state_size(s->engine, seq, flags);
    if (n < BLOB_HEADER) return kv_fail(err, KV_ENGINE, "the engine gives no state for sequence %d", seq);
    kv_buf_reserve(out, n);
    if (kv_engine_state_get(s->engine, out->data, n, seq, flags) != n)
        return kv_fail(err, KV_ENGINE, "the engine gave less state than the %zu bytes it promised", n);
    out->len = n;
    memset(out->data + BLOB_SEQ_AT, 0, BLOB_HEADER - BLOB_SEQ_AT);
    return KV_OK;
}

static kv_status set(kv_state *s, kv_seq seq, const void *blob, size_t n, uint32_t flags, kv_error *err) {
    if (kv_engine_state_set(s->engine, blob, n, seq, flags) != n)
        return kv_fail(err, KV_ENGINE, "the engine refused a stored state of %zu bytes", n);
    return KV_OK;
}

kv_status kv_state_init(kv_state *s, kv_engine *engine, kv_error *err) {
    const kv_engine_info *info = kv_engine_get_info(engine);
    *s = (kv_state){.engine = engine,
                    .memory = info->memory,
                    .scratch = info->n_slots,
                    .window = kv_memory_has_window(info->memory) ? info->n_window : 0,
                    .window_is_chunked = info->window_is_chunked};
    if (!kv_state_has_blocks(s->memory) || s->memory == KV_MEMORY_FULL) return KV_OK;
    return get(&s->empty, s, s->scratch, KV_STATE_PARTIAL, err);
}

void kv_state_free(kv_state *s) {
    kv_buf_free(&s->empty);
    *s = (kv_state){0};
}

kv_pos kv_state_window_start(const kv_state *s, kv_pos P) {
    return s->window ? kv_window_start(s->window, s->window_is_chunked, P) : P;
}

/* The attention cells of scratch: the whole blob with its partial part, which stands at the end, replaced by an empty
 * one. Recurrent states are dropped from scratch before, so that they are not even copied; window cells stay (an empty
 * part is read as "nothing to do"), so they are cut off. */
static kv_status get_block(kv_buf *block, kv_state *s, kv_error *err) {
    kv_status status = KV_OK;
    if (kv_memory_has_recurrent(s->memory))
        status = set(s, s->scratch, s->empty.data, s->empty.len, KV_STATE_PARTIAL, err);
    if (status == KV_OK) status = get(block, s, s->scratch, 0, err);
    if (status != KV_OK || s->memory == KV_MEMORY_FULL) return status;
    size_t part = kv_engine_state_size(s->engine, s->scratch, KV_STATE_PARTIAL);
    if (part < BLOB_HEADER || part - BLOB_HEADER > block->len)
        return kv_fail(err, KV_ENGINE, "a partial state of %zu bytes in a whole one of %zu", part, block->len);
    block->len -= part - BLOB_HEADER;
    kv_buf_add(block, s->empty.data + BLOB_HEADER, s->empty.len - BLOB_HEADER);
    return KV_OK;
}

kv_status kv_state_capture(kv_buf *block, kv_buf *window, kv_state *s, kv_seq seq, kv_pos q, kv_pos e, kv_error *err) {
    KV_CHECK(kv_state_has_blocks(s->memory) && q < e);
    kv_status status = KV_OK;
    kv_engine_seq_cp(s->engine, seq, s->scratch, q, e);
    if (window) status = get(window, s, s->scratch, KV_STATE_PARTIAL, err);
    if (status == KV_OK && block) status = get_block(block, s, err);
    kv_engine_seq_rm(s->engine, s->scratch, -1, -1);
    return status;
}

kv_status kv_state_checkpoint(kv_buf *checkpoint, kv_state *s, kv_seq seq, kv_error *err) {
    KV_CHECK(kv_state_has_checkpoints(s->memory));
    return get(checkpoint, s, seq, s->memory == KV_MEMORY_WHOLE ? 0 : KV_STATE_PARTIAL, err);
}

kv_status kv_state_put(kv_state *s, kv_seq seq, const void *block, size_t n_block, const void *window, size_t n_window,
                       kv_pos q, kv_pos from, kv_pos e, kv_error *err) {
    KV_CHECK(kv_state_has_blocks(s->memory) && q <= from && from < e);
    kv_status status = set(s, s->scratch, block, n_block, 0, err);
    if (status == KV_OK && window) status = set(s, s->scratch, window, n_window, KV_STATE_PARTIAL, err);
    if (status == KV_OK) kv_engine_seq_cp(s->engine, s->scratch, seq, from, e);
    kv_engine_seq_rm(s->engine, s->scratch, -1, -1);
    if (status != KV_OK) kv_engine_seq_rm(s->engine, seq, -1, -1); /* parts of a blob may be in: none is believed */
    return status;
}

kv_status kv_state_finish(kv_state *s, kv_seq seq, const void *checkpoint, size_t n_checkpoint, kv_pos P,
                          kv_error *err) {
    kv_status status = KV_OK;
    if (kv_state_has_checkpoints(s->memory)) {
        if (!checkpoint) status = kv_fail(err, KV_ENGINE, "no checkpoint for position %d", P);
        /* Last, since each copy into the slot wiped its recurrent state. */
        else status = set(s, seq, checkpoint, n_checkpoint, s->memory == KV_MEMORY_WHOLE ? 0 : KV_STATE_PARTIAL, err);
    }
    if (status == KV_OK && !kv_engine_seq_rm(s->engine, seq, P, -1) && kv_engine_pos_max(s->engine, seq) != P - 1)
        status = kv_fail(err, KV_ENGINE, "the engine could not cut a restored sequence at %d", P);
    if (status == KV_OK && !kv_engine_holds(s->engine, seq, P))
        status = kv_fail(err, KV_ENGINE, "a sequence restored to %d came out as positions %d to %d", P,
                         kv_engine_pos_min(s->engine, seq), kv_engine_pos_max(s->engine, seq));
    if (status != KV_OK) kv_engine_seq_rm(s->engine, seq, -1, -1);
    return status;
}

/* Window parts of [first, P), put back one by one: the first replaces what the sequence has, the others join it. */
static kv_status repack_parts(kv_state *s, kv_seq seq, kv_pos first, kv_pos P, int32_t block, kv_error *err) {
    kv_status status = KV_OK;
    int n = (int)((P - first + block - 1) / block);
    kv_buf *parts = kv_alloc((size_t)n * sizeof *parts);
    for (int i = 0; i < n && status == KV_OK; i++) {
        kv_pos q = first + i * block, e = q + block < P ? q + block : P;
        kv_engine_seq_cp(s->engine, seq, s->scratch, q, e);
        status = get(&parts[i], s, s->scratch, KV_STATE_PARTIAL, err);
        kv_engine_seq_rm(s->engine, s->scratch, -1, -1);
    }
    for (int i = 0; i < n && status == KV_OK; i++) {
        kv_pos q = first + i * block, e = q + block < P ? q + block : P;
        status = set(s, i ? s->scratch : seq, parts[i].data, parts[i].len, KV_STATE_PARTIAL, err);
        if (i && status == KV_OK) kv_engine_seq_cp(s->engine, s->scratch, seq, q, e);
        if (i) kv_engine_seq_rm(s->engine, s->scratch, -1, -1);
    }
    for (int i = 0; i < n; i++) kv_buf_free(&parts[i]);
    free(parts);
    return status;
}

kv_status kv_state_repack(kv_state *s, kv_seq seq, kv_pos P, int32_t block, kv_error *err) {
    kv_status status = KV_OK;
    if (s->memory == KV_MEMORY_WINDOW) {
        status = repack_parts(s, seq, kv_state_window_start(s, P) / block * block, P, block, err);
    } else if (s->memory == KV_MEMORY_HYBRID_WINDOW) { /* here a restore puts all of it at once */
        kv_buf whole = {0};
        status = get(&whole, s, seq, KV_STATE_PARTIAL, err);
        if (status == KV_OK) status = set(s, seq, whole.data, whole.len, KV_STATE_PARTIAL, err);
        kv_buf_free(&whole);
    }
    if (status == KV_OK && !kv_engine_holds(s->engine, seq, P))
        status = kv_fail(err, KV_ENGINE, "a window laid anew at %d is not whole", P);
    if (status != KV_OK) kv_engine_seq_rm(s->engine, seq, -1, -1);
    return status;
}
