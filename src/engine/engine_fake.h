/* engine/engine_fake.h: a deterministic engine for tests, with libllama's rules and damage.
 *
 * Each token gets a `hidden` digest of exactly what its layers saw when it was computed; its cells and its state row
 * are derived from that digest, and its logits too. So a wrong restore, a stolen cell or a missing window changes the
 * answer at once, and whatever was computed on wrong state stays wrong.
 *
 *   main pool      cells (pos, owners, digest)      searched from a moving head as in llama-kv-cache.cpp: the lowest
 *                                                   free cell after a removal; never compacted
 *   window pool    the same; a cell that one sequence owns is reusable once it is W behind that sequence's end, and
 *                  then takes every earlier cell of the sequence with it. pad256(min(n_ctx, W × n_seq_max + n_batch))
 *   state rows     one digest a sequence, shared by seq_cp until one of the sharers computes; cannot be cut
 *
 *   hidden = hash(token, pos, Σ main cells visible, Σ window cells visible, state [, chunk edges])
 *            each cell counts as hash(digest, pos), so a sum names a set of (content, position) pairs
 *   logits = n_vocab floats from a generator seeded by hidden; the largest is unique
 *
 * Which kind has what:
 *   full  main · window  main + window · hybrid  main + rows · hybrid-window  all · recurrent  rows ·
 *   whole  main + rows; seq_cp does nothing (deepseek4 would abort: engine_llama keeps it away), no partial blobs
 *
 * It imitates docs/engine.md: a seq_cp that leaves the window out decodes silently other logits; blobs are laid out as
 * there, and a failing state_set leaves its damage; a full pool is KV_NO_CELLS with nothing done; an injected failure
 * is KV_ENGINE_DAMAGED with half of the work done; an injected KV_NOT_NUMBERS makes NaN of what the call computes, which
 * is told only where a wanted row is one, and from then on of everything, until a clear: cells that are masked or free
 * are multiplied all the same. It lives on in blobs. A call is split into passes as libllama splits it into ubatches.
 * What engine_llama refuses (positions that do not follow, unequal runs on recurrent memory, a cut after KV_NO_CELLS on
 * windowed memory) is refused here too.
 *
 * Each decode advances the virtual clock by the cost model. With a NULL clock no time passes (for HTTP tests on real
 * threads).
 *
 * Thread rule: as engine.h.
 */
#ifndef KV_ENGINE_ENGINE_FAKE_H
#define KV_ENGINE_ENGINE_FAKE_H

#include "engine/engine.h"

/* Time in ns. A decode costs, for each pass over the weights (docs/engine.md "Batches": one a call; more on recurrent
 * memory where sequence ids have gaps), call + per_token × n + per_depth × n × (highest used main cell + 1).
 * `slow_below`: passes of 2 … slow_below-1 tokens cost slow_factor times as much a token (CPU flash attention).
 * state_kib: each KiB of blob that is read out or set. A NO_CELLS costs nothing, a DAMAGED one its half. */
typedef struct kv_fake_cost {
    int64_t call_ns, per_token_ns, per_depth_ns, state_kib_ns;
    int32_t slow_below;
    double slow_factor;
} kv_fake_cost;

typedef struct kv_fake_params {
    kv_memory_kind memory;
    int32_t n_window;          /* W, used when the kind has a window; default 64 */
    bool window_is_chunked;    /* llama4's: the window of P is [⌊P/W⌋·W, P) */
    int32_t n_ctx_train;       /* 0 = 131072 */
    int32_t n_vocab;           /* with the byte tokenizer: ≥ 261; 0 = 261 (256 bytes, bos, eos, 3 chat marks) */
    const char *vocab_path;    /* a GGUF whose tokenizer and template are used (loaded vocab-only); NULL = bytes */
    const char *chat_template; /* NULL: the GGUF's, or ChatML; "" with bytes: none, kv_model.border stays NULL */
    bool edge_sensitive;       /* chunk edges and the pass's size are hashed too, for --exact */
    kv_token nan_token;        /* computing it gives NaN; 0 = none does */
    int32_t end_one_in;        /* the likeliest token ends the turn once in this many rows; 0 = 128, -1 = never */
    int32_t bytes_per_cell, bytes_per_window_cell, bytes_recurrent; /* in blobs; at least (and with 0) 16 each */
    uint64_t seed;                                                  /* "weights" */
    kv_fake_cost cost;
    kv_clock_virtual *clock; /* borrowed, may be NULL */
    /* Injection: called before each decode with its running number; returns KV_OK, KV_NO_CELLS, KV_ENGINE_DAMAGED or
     * KV_NOT_NUMBERS (any other status: refused before anything happened). */
    kv_status (*inject)(void *ctx, uint64_t decode_no);
    void *inject_ctx;
} kv_fake_params;

/* Full attention, bytes, and costs about those of a 135M model on two cores. */
void kv_fake_params_defaults(kv_fake_params *p);
/* "full", "window", … as kv_memory_kind_name spells them, or with _ for -; false for anything else. */
bool kv_fake_kind_parse(kv_memory_kind *out, const char *name);
/* Strings are borrowed for the call. KV_INVALID for sizes out of range and for a GGUF that does not load. */
kv_status kv_model_load_fake(kv_model **out, const kv_fake_params *params, kv_error *err);

/* ── for checks ────────────────────────────────────────────────────────────────────────────────────────────────── */

int32_t kv_fake_cells_used(kv_engine *e);        /* main pool */
int32_t kv_fake_cells_top(kv_engine *e);         /* highest used cell + 1: what attention walks */
int32_t kv_fake_window_cells_used(kv_engine *e); /* masked ones that were not yet reused count */
int32_t kv_fake_rows_used(kv_engine *e);         /* state rows */
uint64_t kv_fake_n_decodes(kv_engine *e);        /* calls of decode that passed its checks */
uint64_t kv_fake_n_passes(kv_engine *e);
/* Walks every cell and aborts on a broken promise. */
void kv_fake_check(kv_engine *e);
/* For people: pools, rows and sequences, a line each. Appends. */
void kv_fake_dump(kv_buf *out, kv_engine *e);

/* The naive model: logits from tokens alone, without any cells. Feed tokens one by one; `edge` true: a chunk ends
 * after this token (only matters with edge_sensitive; the run is taken to be alone in its calls). Logits can be read
 * where a chunk ended, else of the last token fed when edges do not matter. */
typedef struct kv_fake_ref kv_fake_ref;
kv_fake_ref *kv_fake_ref_new(const kv_model *m); /* borrows the model */
void kv_fake_ref_feed(kv_fake_ref *r, kv_token token, bool edge);
void kv_fake_ref_logits(float *logits, const kv_fake_ref *r); /* n_vocab floats */
void kv_fake_ref_free(kv_fake_ref *r);
/* The logits that an uninterrupted run over exactly these n ≥ 1 tokens ends with (edges: one chunk of n). */
void kv_fake_reference(float *logits, const kv_model *m, const kv_token *tokens, size_t n);
/* The n_new tokens that greedy sampling appends, or fewer when a token ends the turn (it is appended too). With
 * edge_sensitive: the prompt in one chunk, but its last token alone. */
void kv_fake_reference_greedy(kv_tokens *out, const kv_model *m, const kv_token *prompt, size_t n, int32_t n_new);

#endif
