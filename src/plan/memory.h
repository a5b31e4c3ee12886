/* plan/memory.h: how many bytes a context needs, and how large a context fits.
 *
 * A pure function of the model's shape and the memory at hand, so that it is table-tested. Bytes are exact per kind
 * of layer: for KV type t with ts(t) bytes a block of bs(t) values,
 *   main cell    = Σ over full-attention layers  n_embd_k × ts(k)/bs(k) + n_embd_v × ts(v)/bs(v)
 *   window cell  = the same over window layers; the pool has pad256(W × n_seq_max + n_batch) cells, at most n_ctx
 *   recurrent    = Σ over recurrent layers (conv + ssm state) × 4 bytes, one row a sequence
 *   compute      = a fixed part, and one that grows with the context: attention without flash attention writes
 *                  n_head × n_batch numbers for each cell
 * They are measured, not guessed: kv_shape_probe makes tiny contexts and reads what the engine allocates.
 * n_seq_max is one more than the slots: the scratch sequence.
 *
 *   memory at hand ─┬─ weights
 *                   ├─ compute, fixed part
 *                   └─ left ─┬─ half: automatic context (cells, states, compute that grows with it)
 *                            └─ half: everything else (write-behind queue, buffers, page cache)
 *
 * Thread rule: none.
 */
#ifndef KV_PLAN_MEMORY_H
#define KV_PLAN_MEMORY_H

#include "base/buf.h"
#include "engine/engine.h"

typedef struct kv_shape {
    uint64_t bytes_per_cell;        /* main pool */
    uint64_t bytes_per_window_cell; /* window pool, 0 without */
    uint64_t bytes_recurrent;       /* a sequence, 0 without */
    int32_t n_window;               /* W */
    int32_t n_ctx_train;
    bool longrope_limit; /* longrope model: do not cross n_ctx_orig by itself */
    int32_t n_ctx_orig;
    uint64_t bytes_weights;
    uint64_t bytes_compute;          /* compute buffers at n_batch, upper bound: the part that does not grow … */
    uint64_t bytes_compute_per_cell; /* … and what each cell of the main pool adds */
} kv_shape;

typedef struct kv_plan {
    int32_t n_ctx;        /* cells of the main pool */
    int32_t n_ctx_served; /* the one limit that clients see */
    int32_t n_slots;
    int32_t n_window_cells;
    uint64_t bytes_main, bytes_window, bytes_recurrent, bytes_context; /* context = their sum */
    uint64_t bytes_compute;                                            /* both parts */
    uint64_t bytes_memory;                                             /* memory at hand */
    uint64_t bytes_left; /* after weights, compute and context; 0 when they are more than there is */
    bool weights_paged;  /* weights and compute alone exceed the memory: the file is read again and again */
    bool capped;         /* n_ctx_served was lowered to the trained length */
} kv_plan;

/* Cells of the window pool, docs/engine.md "Set-up": pad256(W × n_seq_max + n_batch); 0 when W is 0 */
int32_t kv_plan_window_cells(int32_t n_window, int32_t n_seq_max, int32_t n_batch);

/* n_ctx_asked 0: automatic, at most the trained length and half of what is left after weights and compute buffers,
 * a multiple of 256, at least 512 (however little memory there is). n_ctx_asked > 0: exactly that (rounded up to 256),
 * KV_INVALID with the arithmetic when it cannot fit. slots_explicit without kv_unified: the served limit is
 * n_ctx / n_slots, rounded up to 256, as in llama-server; nor is it ever above the trained length. Weights that alone
 * exceed the memory are paged in from their file; then the context may take half of the memory. */
kv_status kv_plan_make(kv_plan *out, const kv_shape *shape, uint64_t bytes_memory, int32_t n_ctx_asked, int32_t n_slots,
                       bool slots_explicit, bool kv_unified, int32_t n_batch, kv_error *err);
/* The plan as lines for people (`kvasir serve --check`). */
void kv_plan_print(kv_buf *out, const kv_plan *plan, const kv_shape *shape);

/* Measure the shape of a loaded model by making two small contexts with these parameters (n_ctx is not looked at).
 * *memory (may be NULL) gets the kind of memory that was seen. */
kv_status kv_shape_probe(kv_shape *out, kv_memory_kind *memory, kv_model *model, const kv_engine_params *params,
                         kv_error *err);

#endif
