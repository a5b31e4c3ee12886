/* engine/engine_fake_internal.h: what the engine_fake_*.c files share. Nobody else includes it.
 *
 *   engine_fake.c          the engine: passes, decode, sequences, checks
 *   engine_fake_pool.c     cells of attention layers      ─┐ pure bookkeeping: they know positions, owners and
 *   engine_fake_rows.c     states of recurrent layers     ─┘ digests, and nothing of tokens or batches
 *   engine_fake_state.c    blobs
 *   engine_fake_digest.c   hashes, logits, the naive reference
 *   engine_fake_model.c    vocabulary, template, parameters
 *   engine_fake_sampler.c  sampler
 *
 * Thread rule: as engine.h.
 */
#ifndef KV_ENGINE_ENGINE_FAKE_INTERNAL_H
#define KV_ENGINE_ENGINE_FAKE_INTERNAL_H

#include "engine/engine_fake.h"
#include <stdatomic.h>

#define KV_FAKE_MAX_SEQ 256 /* LLAMA_MAX_SEQ of the pinned engine */

/* ── digests ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The digest of what is not a number. */
#define KV_FAKE_NAN UINT64_MAX

/* All that one token's layers saw. No padding: it is hashed as bytes. */
typedef struct kv_fake_seen {
    int64_t token, pos; /* pos is 0 for memories without attention: nothing there knows positions */
    uint64_t main, window, recurrent, edge;
} kv_fake_seen;

typedef enum kv_fake_layer { KV_FAKE_MAIN = 1, KV_FAKE_WINDOW, KV_FAKE_RECURRENT, KV_FAKE_LOGITS } kv_fake_layer;

uint64_t kv_fake_hidden(uint64_t seed, const kv_fake_seen *seen);
/* What a layer keeps of a token; `before` is the state before it (recurrent), else 0. */
uint64_t kv_fake_derive(uint64_t hidden, uint64_t before, kv_fake_layer layer);
/* What a cell adds to the sum of those who see it. */
uint64_t kv_fake_part(uint64_t digest, kv_pos pos);
/* A run of n tokens from `start` on, computed in a pass of n_pass tokens. */
uint64_t kv_fake_edge(kv_pos start, int32_t n, int32_t n_pass);
/* n bytes that stand for the K and V (or state) of a digest: the digest, then noise that follows from it. */
void kv_fake_expand(char *out, size_t n, uint64_t digest);
/* The digest that n bytes stand for: the one they were made from, or another when a bit was changed. */
uint64_t kv_fake_collapse(const char *bytes, size_t n);

/* ── cell pool ─────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct kv_fake_cell {
    kv_pos pos;      /* -1 = empty */
    uint64_t digest; /* 0 while placed and not yet computed */
    uint64_t part;   /* kv_fake_part(digest, pos), 0 like digest */
} kv_fake_cell;

typedef struct kv_fake_seq_stat {
    int32_t n;       /* cells it owns */
    kv_pos min, max; /* -1 with n 0; not valid while stale */
    bool stale;      /* an extreme was removed: look for min and max before use */
    uint64_t sum;    /* Σ part over its cells */
} kv_fake_seq_stat;

typedef struct kv_fake_pool {
    int32_t n_cells, n_seq, n_words; /* words of an owner set */
    int32_t window;                  /* W; 0 = sees everything */
    bool chunked;
    int32_t head, used, top; /* top: highest used cell + 1 */
    kv_fake_cell *cells;
    uint64_t *owners; /* n_cells × n_words */
    bool *nan;        /* n_cells: what lies in the cell's memory, whoever owns it, or nobody */
    int32_t n_nan;
    kv_fake_seq_stat *seqs; /* n_seq */
} kv_fake_pool;

/* A cell as it was before a trial placement. */
typedef struct kv_fake_saved {
    int32_t idx;
    kv_fake_cell cell;
    uint64_t owners[KV_FAKE_MAX_SEQ / 64];
} kv_fake_saved;

void kv_fake_pool_init(kv_fake_pool *p, int32_t n_cells, int32_t n_seq, int32_t window, bool chunked);
void kv_fake_pool_free(kv_fake_pool *p);
void kv_fake_pool_clear(kv_fake_pool *p);
void kv_fake_pool_zero(kv_fake_pool *p); /* the memory of a cleared pool */
kv_pos kv_fake_pool_min(kv_fake_pool *p, kv_seq s);
kv_pos kv_fake_pool_max(kv_fake_pool *p, kv_seq s);
bool kv_fake_pool_owns(const kv_fake_pool *p, int32_t i, kv_seq s);
/* The first position that a token at `pos` sees. */
kv_pos kv_fake_pool_sees_from(const kv_fake_pool *p, kv_pos pos);
void kv_fake_pool_rm(kv_fake_pool *p, kv_seq s, kv_pos p0, kv_pos p1); /* [p0, p1), already clamped */
void kv_fake_pool_cp(kv_fake_pool *p, kv_seq src, kv_seq dst, kv_pos p0, kv_pos p1);
/* n cells for n new tokens; false and idx undefined when there is no room. Changes nothing. */
bool kv_fake_pool_find(int32_t *idx, kv_fake_pool *p, int32_t n);
/* Take those cells. `saved`, n entries or NULL, receives what they held. */
void kv_fake_pool_place(kv_fake_pool *p, const int32_t *idx, const kv_pos *pos, const kv_seq *seq, int32_t n,
                        kv_fake_saved *saved);
/* Put saved cells back. Cells that the placement purged beyond them stay gone, as in libllama. */
void kv_fake_pool_restore(kv_fake_pool *p, const kv_fake_saved *saved, int32_t n, int32_t head);
/* Fill a placed cell. */
void kv_fake_pool_write(kv_fake_pool *p, int32_t i, uint64_t digest);
void kv_fake_pool_check(kv_fake_pool *p);

/* ── state rows ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct kv_fake_row {
    kv_pos pos;       /* last position consumed; what the engine believes, after damage a lie */
    int32_t n_owners; /* 0 = free */
    uint64_t digest;
} kv_fake_row;

typedef struct kv_fake_rows {
    int32_t n_seq; /* as many rows as sequences */
    kv_fake_row *rows;
    int32_t *tail; /* sequence → its row, -1 without one */
} kv_fake_rows;

void kv_fake_rows_init(kv_fake_rows *r, int32_t n_seq);
void kv_fake_rows_free(kv_fake_rows *r);
void kv_fake_rows_clear(kv_fake_rows *r);
kv_pos kv_fake_rows_pos(const kv_fake_rows *r, kv_seq s);      /* -1 without a row */
uint64_t kv_fake_rows_digest(const kv_fake_rows *r, kv_seq s); /* 0 without a row */
/* False, nothing changed, where the state would have to be cut. */
bool kv_fake_rows_rm(kv_fake_rows *r, kv_seq s, kv_pos p0, kv_pos p1);
void kv_fake_rows_cp(kv_fake_rows *r, kv_seq src, kv_seq dst);
/* Give s a row of its own (with what it had) that ends at `pos`. */
void kv_fake_rows_advance(kv_fake_rows *r, kv_seq s, kv_pos pos);
void kv_fake_rows_write(kv_fake_rows *r, kv_seq s, uint64_t digest);
/* Half-written states: every row holds something else, positions stay. */
void kv_fake_rows_spoil(kv_fake_rows *r);
void kv_fake_rows_check(const kv_fake_rows *r);

/* ── model ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct kv_fake_model {
    kv_model base;
    kv_fake_params params;             /* its strings are NULL: borrowed for the load only */
    kv_model *vocab;                   /* owned; the GGUF's tokenizer, NULL with bytes */
    struct kv_border_model *templates; /* owned; with bytes only */
    char *desc;
    char **extra;    /* owned; texts of tokens past the bytes, n_vocab - 256 of them; bytes only */
    float *bias;     /* n_vocab; added to every row, so that control tokens are unlikely */
    kv_token *plain; /* tokens that answers are made of */
    int32_t n_plain;
    kv_token *eog;
    int32_t n_eog;
    kv_token end;        /* the one of eog that ends a turn; -1 without */
    atomic_uint n_seeds; /* for KV_SEED_RANDOM */
} kv_fake_model;

static inline const kv_fake_model *kv_fake_model_of(const kv_model *m) {
    return (const kv_fake_model *)m;
}
bool kv_fake_has_main(kv_memory_kind k);
bool kv_fake_has_window(kv_memory_kind k);
bool kv_fake_has_rows(kv_memory_kind k);
void kv_fake_fill_logits(float *logits, const kv_fake_model *m, uint64_t hidden);
kv_status kv_fake_engine_new(kv_engine **out, kv_model *m, const kv_engine_params *p, kv_error *err);
kv_status kv_fake_fingerprint(struct kv_fingerprint *out, const kv_model *m, kv_error *err);
kv_status kv_fake_sampler_new(kv_sampler **out, const kv_model *m, const kv_sampling *s, const kv_chat_prompt *chat,
                              kv_error *err);

/* ── engine ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The tokens of one sequence inside one pass. */
typedef struct kv_fake_run {
    kv_seq seq;
    kv_pos start;
    int32_t n;
    bool main_ahead; /* the main pool holds cells of seq at or past start already */
} kv_fake_run;

/* What one run sees of one pool, kept while its tokens are computed in order. */
typedef struct kv_fake_view {
    const kv_fake_pool *pool;
    uint64_t *at;     /* Σ part by position, from `base` on; borrowed from the engine's arena */
    kv_pos base, end; /* positions [base, end) have an entry */
    kv_pos left;      /* entries below it are out of the sum */
    uint64_t sum;
} kv_fake_view;

typedef struct kv_fake_engine {
    kv_engine base;
    const kv_fake_model *model;
    bool has_main, has_window, has_rows, is_whole;
    int32_t n_seq;
    kv_fake_pool main, window;
    kv_fake_rows rows;
    int32_t k_bytes, v_bytes, kw_bytes, vw_bytes, r_bytes, s_bytes; /* of a cell, a window cell, a state */
    int32_t type_k, type_v;                                         /* numbers that stand for the names, in blobs */
    char *type_k_name, *type_v_name;
    kv_pos *no_trim_below; /* by sequence: after a KV_NO_CELLS of windowed memory, as in engine_llama; 0 = none */
    bool damaged;          /* as engine_llama's: a clear zeroes the memory, too */
    bool gives_nan;        /* this call does */
    uint64_t n_decodes, n_passes;
    int64_t ns_left; /* of the clock, which counts µs */
    /* the current batch; arrays of n_batch entries. order[] lists its rows pass by pass; main_idx and window_idx are
     * the cells of order's rows. */
    int32_t *order, *pass_end, n_pass;
    int32_t *main_idx, *window_idx, *next_row;
    kv_pos *pos;
    kv_seq *seq;
    kv_fake_saved *saved; /* made when a call first needs several passes */
    uint64_t *arena;      /* of views */
    /* runs of the current pass; arrays of n_seq entries. cursor: scratch of the splitting */
    kv_fake_run *runs;
    kv_fake_view *main_views, *window_views;
    int32_t *run_of, *cursor, *chosen;
    /* rows of the last batch */
    int32_t *slot_of; /* row → place in logits, -1 = not wanted; n_batch entries */
    uint64_t *hidden; /* by place */
    bool *filled;
    float *logits;
    int32_t n_wanted, logits_room; /* in rows */
} kv_fake_engine;

static inline kv_fake_engine *kv_fake_engine_of(kv_engine *e) {
    return (kv_fake_engine *)e;
}
void kv_fake_spend(kv_fake_engine *e, int64_t ns);
size_t kv_fake_state_size(kv_engine *e, kv_seq s, uint32_t flags);
size_t kv_fake_state_get(kv_engine *e, void *dst, size_t cap, kv_seq s, uint32_t flags);
size_t kv_fake_state_set(kv_engine *e, const void *src, size_t n, kv_seq s, uint32_t flags);

#endif
