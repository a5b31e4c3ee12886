/* engine/engine_fake.h: a deterministic engine for tests, with libllama's rules and damage.
 *
 * A fake cell holds the token it was computed from and a digest of what its layer saw, so that logits are a pure
 * function of exactly what each kind of layer has consumed:
 *
 *   main pool      cells (pos, seqs, digest)        lowest free cell first; never compacted
 *   window pool    cells, reusable once pos ≤ end - W of every owner; W × n_seq_max + n_batch, padded to 256
 *   recurrent      one running digest a sequence (order and edges of tokens, all of them)
 *
 *   row logits = hash(main digests visible at pos, window digests of the last W positions, recurrent digest
 *                     [, chunk edges])  →  n_vocab floats
 *
 * It imitates LIBLLAMA.md: a seq_cp that leaves the window out decodes silently other logits; partial blobs are laid
 * out as there; a full pool is KV_NO_CELLS with nothing done; an injected failure is KV_ENGINE_DAMAGED with half of
 * the work done. Each decode advances the virtual clock by the cost model.
 *
 * Thread rule: as engine.h. With a NULL clock no time passes (for HTTP tests on real threads).
 */
#ifndef KV_ENGINE_ENGINE_FAKE_H
#define KV_ENGINE_ENGINE_FAKE_H

#include "engine/engine.h"

/* Time of one decode: call + per_token × n + per_row_depth × Σ over tokens of the highest used cell, in ns.
 * `slow_below`: batches of 2 … slow_below-1 tokens cost slow_factor times as much a token (CPU flash attention). */
typedef struct kv_fake_cost {
    int64_t call_ns, per_token_ns, per_depth_ns;
    int32_t slow_below;
    double slow_factor;
} kv_fake_cost;

typedef struct kv_fake_params {
    kv_memory_kind memory;
    int32_t n_window;        /* W, used when the kind has a window */
    int32_t n_ctx_train;     /* 0 = 131072 */
    int32_t n_vocab;         /* with the byte tokenizer: ≥ 261; 0 = 261 (256 bytes, bos, eos, 3 chat marks) */
    const char *vocab_path;  /* a GGUF whose tokenizer and template are used (loaded vocab-only); NULL = bytes */
    const char *chat_template; /* NULL: the GGUF's, or ChatML */
    bool edge_sensitive;     /* chunk edges are hashed too, for --exact */
    uint64_t seed;           /* "weights" */
    kv_fake_cost cost;
    kv_clock_virtual *clock; /* borrowed, may be NULL */
    /* Injection: called before each decode with its running number; returns KV_OK, KV_NO_CELLS or KV_ENGINE_DAMAGED. */
    kv_status (*inject)(void *ctx, uint64_t decode_no);
    void *inject_ctx;
} kv_fake_params;

void kv_fake_params_defaults(kv_fake_params *p);
kv_status kv_model_load_fake(kv_model **out, const kv_fake_params *params, kv_error *err);

/* For checks: cells in use, and the number of decode calls so far. */
int32_t kv_fake_cells_used(kv_engine *e);
int32_t kv_fake_window_cells_used(kv_engine *e);
uint64_t kv_fake_n_decodes(kv_engine *e);
/* The logits that an uninterrupted run over exactly these tokens ends with: the naive model that tests compare with.
 * Writes n_vocab floats. Independent of any engine's cells. */
void kv_fake_reference(float *logits, const kv_model *m, const kv_token *tokens, size_t n);
/* Walks every cell and aborts on a broken promise. */
void kv_fake_check(kv_engine *e);

#endif
