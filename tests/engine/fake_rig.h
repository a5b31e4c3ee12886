/* tests/engine/fake_rig.h: a fake engine with what a test does to it most, and the recipes of docs/engine.md on it. */
#ifndef KV_TESTS_ENGINE_FAKE_RIG_H
#define KV_TESTS_ENGINE_FAKE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_fake.h"

#define N_KINDS 6 /* kv_memory_kind: KV_MEMORY_FULL … KV_MEMORY_WHOLE */

typedef struct rig {
    kv_fake_params mp;
    kv_engine_params ep;
    kv_model *m;
    kv_engine *e;
    kv_seq scratch;
    kv_clock_virtual clock;
    float *want; /* n_vocab floats */
    void *empty; /* the empty partial blob */
    size_t n_empty;
} rig;

typedef struct blob {
    char *data;
    size_t n;
} blob;

/* A deterministic generator of its own, so that tests replay on every platform. */
static inline uint32_t rnd(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}
static inline int32_t below(uint64_t *state, int32_t n) {
    return (int32_t)(rnd(state) % (uint32_t)n);
}

/* The seed of this run: KVASIR_SEED, or one from the clock; printed, so that a failure can be replayed. */
static inline uint64_t rig_seed(const char *test) {
    const char *given = getenv("KVASIR_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)kv_wall_seconds() * 1000003u;
    printf("%s: KVASIR_SEED=%llu\n", test, (unsigned long long)seed);
    return seed;
}

static inline void rig_params(rig *r, kv_memory_kind kind) {
    memset(r, 0, sizeof *r);
    kv_fake_params_defaults(&r->mp);
    r->mp.memory = kind;
    r->mp.chat_template = "";
    r->mp.n_window = 32;
    kv_engine_params_defaults(&r->ep);
    r->ep.n_ctx = 512;
    r->ep.n_slots = 4;
    r->ep.n_batch = 64;
    kv_clock_virtual_init(&r->clock, 0);
    r->mp.clock = &r->clock;
}

static inline blob get_blob(rig *r, kv_seq s, uint32_t flags) {
    blob b = {NULL, kv_engine_state_size(r->e, s, flags)};
    b.data = kv_alloc(b.n);
    assert_int_equal(kv_engine_state_get(r->e, b.data, b.n, s, flags), b.n);
    return b;
}
static inline bool set_blob(rig *r, const blob *b, kv_seq s, uint32_t flags) {
    return kv_engine_state_set(r->e, b->data, b->n, s, flags) == b->n;
}
static inline void free_blob(blob *b) {
    free(b->data);
    *b = (blob){0};
}

static inline void rig_start(rig *r) {
    kv_error err = {0};
    if (kv_model_load_fake(&r->m, &r->mp, &err) != KV_OK) fail_msg("%s", err.message);
    if (kv_engine_new(&r->e, r->m, &r->ep, &err) != KV_OK) fail_msg("%s", err.message);
    r->scratch = r->ep.n_slots;
    r->want = kv_alloc((size_t)r->m->info.n_vocab * sizeof *r->want);
    if (r->mp.memory != KV_MEMORY_WHOLE) {
        blob b = get_blob(r, r->scratch, KV_STATE_PARTIAL);
        r->empty = b.data;
        r->n_empty = b.n;
    }
}

static inline void rig_open(rig *r, kv_memory_kind kind) {
    rig_params(r, kind);
    rig_start(r);
}

static inline void rig_close(rig *r) {
    kv_fake_check(r->e);
    kv_engine_free(r->e);
    kv_model_free(r->m);
    free(r->want);
    free(r->empty);
}

/* n tokens of one sequence from its end on; logits of the last one. */
static inline kv_status try_run(rig *r, kv_seq s, const kv_token *tokens, int32_t n, kv_pos pos) {
    kv_pos p[4096];
    kv_seq q[4096];
    bool w[4096];
    assert_true(n <= 4096);
    for (int32_t i = 0; i < n; i++) {
        p[i] = pos + i;
        q[i] = s;
        w[i] = i == n - 1;
    }
    kv_batch b = {n, (kv_token *)(uintptr_t)tokens, p, q, w};
    return kv_engine_decode(r->e, &b, NULL);
}

/* Tokens [from, to) in chunks of at most `chunk`. */
static inline void run(rig *r, kv_seq s, const kv_token *tokens, int32_t from, int32_t to, int32_t chunk) {
    for (int32_t p = from; p < to; p += chunk) {
        int32_t n = to - p < chunk ? to - p : chunk;
        assert_int_equal(try_run(r, s, tokens + p, n, p), KV_OK);
    }
}

static inline bool same_logits(rig *r, int row, const kv_token *tokens, int32_t n) {
    const float *got = kv_engine_logits(r->e, row);
    assert_non_null(got);
    kv_fake_reference(r->want, r->m, tokens, (size_t)n);
    return memcmp(got, r->want, (size_t)r->m->info.n_vocab * sizeof *got) == 0;
}

/* Decode token n-1 of `tokens` alone: does the engine say what the naive model says? */
static inline bool step_is_right(rig *r, kv_seq s, const kv_token *tokens, int32_t n) {
    if (try_run(r, s, tokens + n - 1, 1, n - 1) != KV_OK) return false;
    return same_logits(r, 0, tokens, n);
}

static inline void random_tokens(kv_token *out, int32_t n, uint64_t *state) {
    for (int32_t i = 0; i < n; i++) out[i] = below(state, 261);
}

/* ── docs/engine.md "Capture", "Restore" ─────────────────────────────────────────────────────────────────────────── */

/* Tokens [q, e) of s as a loadable block, and their window part (empty without windows). */
static inline void capture_block(blob *block, blob *part, rig *r, kv_seq s, kv_pos q, kv_pos e) {
    bool window = kv_memory_has_window(r->mp.memory);
    *part = (blob){0};
    kv_engine_seq_cp(r->e, s, r->scratch, q, e);
    if (kv_memory_has_recurrent(r->mp.memory))
        assert_int_equal(kv_engine_state_set(r->e, r->empty, r->n_empty, r->scratch, KV_STATE_PARTIAL), r->n_empty);
    *block = get_blob(r, r->scratch, 0);
    if (window) {
        *part = get_blob(r, r->scratch, KV_STATE_PARTIAL);
        block->n -= part->n - 8;
        block->data = kv_realloc(block->data, block->n + r->n_empty - 8);
        memcpy(block->data + block->n, (char *)r->empty + 8, r->n_empty - 8);
        block->n += r->n_empty - 8;
    }
    assert_true(kv_engine_seq_rm(r->e, r->scratch, -1, -1));
}

/* Append a block [q, e) to s through scratch; part may be NULL. */
static inline bool load_block(rig *r, const blob *block, const blob *part, kv_seq s, kv_pos q, kv_pos e) {
    bool ok = set_blob(r, block, r->scratch, 0) && (!part || set_blob(r, part, r->scratch, KV_STATE_PARTIAL));
    if (ok) kv_engine_seq_cp(r->e, r->scratch, s, q, e);
    kv_engine_seq_rm(r->e, r->scratch, -1, -1);
    return ok;
}

#endif
