/* Conversations on the fake engine, in one thread: a model, an engine, a cache with inline I/O, and a request's whole way
 * through them, which compares every answer's logits with those of an uninterrupted run. */
#ifndef KV_TESTS_CACHE_CONVERSATIONS_H
#define KV_TESTS_CACHE_CONVERSATIONS_H

#include "../store/rig.h"
#include "cache/cache.h"
#include "engine/engine_fake.h"

enum { B = 16, W = 40, CHUNK = 32, INTERVAL = 64, MAX = 600 };

typedef struct world {
    kv_model *model;
    kv_engine *engine;
    kv_state state;
    kv_io *io;
    kv_cache *cache;
    kv_cache_config cfg;
    rig *disk; /* NULL: memory only */
    kv_clock_virtual clock;
    float *got, *want;
    int n_vocab;
    uint64_t rng;
    int exact_chunk;      /* 0: what was computed does not depend on chunks */
    int n_prompt;         /* of the last request */
    const kv_hint *hints; /* borrowed, n_hints of them: places of the next request, to be chosen from */
    int n_hints;
    bool at_once;          /* I/O is done before the next call, not at random */
    bool may_fail;         /* restores, since files are made to */
    double us_per_token;   /* what computing one is said to have taken; 0 = 100 */
    int n_failed;          /* restores that did */
    kv_miss failure;       /* the last one's reason */
    int32_t n_ram, n_disk; /* of the last request */
} world;

static inline uint32_t rnd(world *w, uint32_t n) {
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

static inline void check(kv_status status, const kv_error *err) {
    if (status != KV_OK) fail_msg("%s: %s", kv_status_name(status), err->message);
}

static inline void open_exact_world(world *w, kv_memory_kind kind, uint64_t seed, uint64_t queue, uint64_t ram,
                                    bool shuffle, int exact_chunk) {
    kv_error err = {0};
    memset(w, 0, sizeof *w);
    w->rng = seed;
    w->exact_chunk = exact_chunk;
    kv_clock_virtual_init(&w->clock, 1000000);
    kv_fake_params fp;
    kv_fake_params_defaults(&fp);
    fp.memory = kind;
    fp.n_window = W;
    fp.clock = &w->clock;
    fp.edge_sensitive = exact_chunk > 0;
    check(kv_model_load_fake(&w->model, &fp, &err), &err);
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = 4 * MAX;
    p.n_slots = 3;
    p.n_batch = CHUNK + 4;
    check(kv_engine_new(&w->engine, w->model, &p, &err), &err);
    check(kv_state_init(&w->state, w->engine, &err), &err);
    w->io = kv_io_new_inline(shuffle ? seed | 1 : 0);
    w->cfg = (kv_cache_config){.engine = kv_engine_get_info(w->engine),
                               .block = B,
                               .ns = kv_hash_bytes("test", 4),
                               .queue_bytes = queue,
                               .ram_bytes = ram,
                               .interval = INTERVAL,
                               .exact_chunk = exact_chunk,
                               .io = w->io,
                               .clock = &w->clock.base};
    check(kv_cache_new(&w->cache, &w->cfg, &err), &err);
    w->n_vocab = kv_model_get_info(w->model)->n_vocab;
    w->got = malloc((size_t)w->n_vocab * sizeof(float));
    w->want = malloc((size_t)w->n_vocab * sizeof(float));
}

static inline void open_world(world *w, kv_memory_kind kind, uint64_t seed, uint64_t queue, uint64_t ram,
                              bool shuffle) {
    open_exact_world(w, kind, seed, queue, ram, shuffle, 0);
}

static inline void settle(world *w) {
    while (kv_io_run_one(w->io)) continue;
}

static inline void close_world(world *w) {
    settle(w);
    kv_cache_self_check(w->cache);
    kv_cache_free(w->cache);
    if (w->disk) rig_free(w->disk);
    kv_io_free(w->io);
    kv_state_free(&w->state);
    kv_engine_free(w->engine);
    kv_model_free(w->model);
    free(w->got);
    free(w->want);
}

static inline void decode(world *w, kv_seq seq, const kv_token *tokens, int q, int e) {
    kv_error err = {0};
    kv_token token[CHUNK];
    kv_pos pos[CHUNK];
    kv_seq seqs[CHUNK];
    bool want[CHUNK];
    int n = e - q;
    for (int i = 0; i < n; i++) {
        token[i] = tokens[q + i];
        pos[i] = q + i;
        seqs[i] = seq;
        want[i] = i == n - 1;
    }
    check(kv_engine_decode(w->engine, &(kv_batch){n, token, pos, seqs, want}, &err), &err);
    memcpy(w->got, kv_engine_logits(w->engine, n - 1), (size_t)w->n_vocab * sizeof(float));
}

static inline void assert_logits(world *w, const kv_token *tokens, int n) {
    if (w->exact_chunk) {
        kv_fake_ref *ref = kv_fake_ref_new(w->model);
        for (int i = 0; i < n; i++)
            kv_fake_ref_feed(ref, tokens[i], (i + 1) % w->exact_chunk == 0 || i >= w->n_prompt - 2);
        kv_fake_ref_logits(w->want, ref);
        kv_fake_ref_free(ref);
    } else {
        kv_fake_reference(w->want, w->model, tokens, (size_t)n);
    }
    if (memcmp(w->got, w->want, (size_t)w->n_vocab * sizeof(float)) != 0) fail_msg("other logits after %d tokens", n);
}

/* What a request does: look up, restore, prefill, answer, leave. Returns the prompt tokens that were computed. */
static inline int serve(world *w, const char *scope, const kv_token *tokens, int n_prompt, int n,
                        kv_lookup_result *result) {
    kv_error err = {0};
    kv_seq seq = (kv_seq)rnd(w, 3);
    w->n_prompt = n_prompt;
    kv_lookup *l = kv_lookup_start(w->cache, scope, tokens, (size_t)n_prompt, NULL, NULL);
    while (!kv_lookup_ready(l)) assert_true(kv_io_run_one(w->io));
    *result = *kv_lookup_get(l);
    int P = result->position;
    assert_true(P < n_prompt && P <= result->n_match);
    if (P > 0) {
        kv_restore step;
        while ((step = kv_restore_step(l, &w->state, seq, 0, 0, &err)) == KV_RESTORE_MORE || step == KV_RESTORE_WAIT)
            if (step == KV_RESTORE_WAIT && !kv_io_run_one(w->io)) fail_msg("a restore waits for ever");
        if (step == KV_RESTORE_FAILED) {
            w->n_failed++;
            w->failure = kv_restore_failure(l);
            if (!w->may_fail) fail_msg("restore to %d: %s", P, err.message);
            assert_true(kv_engine_pos_max(w->engine, seq) == -1);
            P = 0;
        }
        kv_restore_sources(&w->n_ram, &w->n_disk, l);
        assert_true(step == KV_RESTORE_FAILED || w->n_ram + w->n_disk == P);
    }
    kv_hint *hints = NULL;
    int n_hints = w->n_hints;
    if (n_hints) {
        hints = malloc((size_t)n_hints * sizeof *hints);
        memcpy(hints, w->hints, (size_t)n_hints * sizeof *hints);
        kv_cache_note_resumed(w->cache, l, P);
        kv_cache_choose_places(w->cache, &hints, &n_hints, n_prompt, P, l);
    }
    kv_lookup_free(l);
    kv_trail *t = kv_trail_new(w->cache);
    kv_trail_reset(t, scope, tokens, P);
    const kv_places places = {.n_prompt = n_prompt, .hints = hints, .n_hints = n_hints, .are_chosen = hints != NULL};
    int pos = P;
    while (pos < n) {
        int e = pos + 1;
        if (pos < n_prompt - 1) {
            e = kv_cache_next_edge(w->cache, pos, &places);
            int edge = (pos / B + CHUNK / B) * B;
            if (e > edge) e = edge;
            if (e > n_prompt - 1) e = n_prompt - 1;
        }
        decode(w, seq, tokens, pos, e);
        pos = e;
        kv_trail_advance(t, &w->state, seq, tokens, pos, &places, w->us_per_token > 0 ? w->us_per_token : 100);
        if (w->at_once) settle(w);
        else if (rnd(w, 4) == 0) kv_io_run_one(w->io);
        if (pos == n_prompt) assert_logits(w, tokens, n_prompt);
    }
    assert_logits(w, tokens, n);
    kv_trail_end(t, &w->state, seq, tokens, n);
    kv_trail_free(t);
    free(hints);
    kv_engine_seq_rm(w->engine, seq, -1, -1);
    return n_prompt - P;
}

static inline void fill(kv_token *tokens, int from, int to, uint32_t salt) {
    for (int i = from; i < to; i++) tokens[i] = (kv_token)(((uint32_t)i * 2654435761u ^ salt * 40503u) >> 8 & 0xff);
}

#endif
