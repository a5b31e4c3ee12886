/* cache: conversations on the fake engine, of every kind of memory: whatever is restored, the logits are those of a run
 * that computed everything, and what need not be computed is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "engine/engine_fake.h"

enum { B = 16, W = 40, CHUNK = 32, INTERVAL = 64, MAX = 600 };

typedef struct world {
    kv_model *model;
    kv_engine *engine;
    kv_state state;
    kv_io *io;
    kv_cache *cache;
    kv_clock_virtual clock;
    float *got, *want;
    int n_vocab;
    uint64_t rng;
} world;

static uint32_t rnd(world *w, uint32_t n) {
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

static void check(kv_status status, const kv_error *err) {
    if (status != KV_OK) fail_msg("%s: %s", kv_status_name(status), err->message);
}

static void open_world(world *w, kv_memory_kind kind, uint64_t seed, uint64_t queue, uint64_t ram, bool shuffle) {
    kv_error err = {0};
    memset(w, 0, sizeof *w);
    w->rng = seed;
    kv_clock_virtual_init(&w->clock, 1000000);
    kv_fake_params fp;
    kv_fake_params_defaults(&fp);
    fp.memory = kind;
    fp.n_window = W;
    fp.clock = &w->clock;
    check(kv_model_load_fake(&w->model, &fp, &err), &err);
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = 4 * MAX;
    p.n_slots = 3;
    p.n_batch = CHUNK + 4;
    check(kv_engine_new(&w->engine, w->model, &p, &err), &err);
    check(kv_state_init(&w->state, w->engine, &err), &err);
    w->io = kv_io_new_inline(shuffle ? seed | 1 : 0);
    kv_cache_config cfg = {.engine = kv_engine_get_info(w->engine),
                           .block = B,
                           .ns = kv_hash_bytes("test", 4),
                           .queue_bytes = queue,
                           .ram_bytes = ram,
                           .interval = INTERVAL,
                           .io = w->io,
                           .clock = &w->clock.base};
    check(kv_cache_new(&w->cache, &cfg, &err), &err);
    w->n_vocab = kv_model_get_info(w->model)->n_vocab;
    w->got = malloc((size_t)w->n_vocab * sizeof(float));
    w->want = malloc((size_t)w->n_vocab * sizeof(float));
}

static void close_world(world *w) {
    while (kv_io_run_one(w->io)) continue;
    kv_cache_self_check(w->cache);
    kv_cache_free(w->cache);
    kv_io_free(w->io);
    kv_state_free(&w->state);
    kv_engine_free(w->engine);
    kv_model_free(w->model);
    free(w->got);
    free(w->want);
}

static void decode(world *w, kv_seq seq, const kv_token *tokens, int q, int e) {
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

static void assert_logits(world *w, const kv_token *tokens, int n) {
    kv_fake_reference(w->want, w->model, tokens, (size_t)n);
    if (memcmp(w->got, w->want, (size_t)w->n_vocab * sizeof(float)) != 0) fail_msg("other logits after %d tokens", n);
}

/* What a request does: look up, restore, prefill, answer, leave. Returns the prompt tokens that were computed. */
static int serve(world *w, const char *scope, const kv_token *tokens, int n_prompt, int n, kv_lookup_result *result) {
    kv_error err = {0};
    kv_seq seq = (kv_seq)rnd(w, 3);
    kv_lookup *l = kv_lookup_start(w->cache, scope, tokens, (size_t)n_prompt, NULL, NULL);
    while (!kv_lookup_ready(l)) assert_true(kv_io_run_one(w->io));
    *result = *kv_lookup_get(l);
    int P = result->position;
    assert_true(P < n_prompt && P <= result->n_match);
    if (P > 0) {
        kv_restore step;
        while ((step = kv_restore_step(l, &w->state, seq, 0, 0, &err)) == KV_RESTORE_MORE) continue;
        if (step != KV_RESTORE_DONE) fail_msg("restore to %d: %s", P, err.message);
    }
    kv_lookup_free(l);
    kv_trail *t = kv_trail_new(w->cache);
    kv_trail_reset(t, scope, tokens, P);
    int pos = P;
    while (pos < n) {
        int e = pos + 1;
        if (pos < n_prompt - 1) {
            e = kv_cache_next_edge(w->cache, pos, n_prompt);
            int edge = (pos / B + CHUNK / B) * B;
            if (e > edge) e = edge;
            if (e > n_prompt - 1) e = n_prompt - 1;
        }
        decode(w, seq, tokens, pos, e);
        pos = e;
        kv_trail_advance(t, &w->state, seq, tokens, pos, n_prompt, 100);
        if (rnd(w, 4) == 0) kv_io_run_one(w->io);
        if (pos == n_prompt) assert_logits(w, tokens, n_prompt);
    }
    assert_logits(w, tokens, n);
    kv_trail_end(t, &w->state, seq, tokens, n);
    kv_trail_free(t);
    kv_engine_seq_rm(w->engine, seq, -1, -1);
    return n_prompt - P;
}

static void settle(world *w) {
    while (kv_io_run_one(w->io)) continue;
}

static void fill(kv_token *tokens, int from, int to, uint32_t salt) {
    for (int i = from; i < to; i++) tokens[i] = (kv_token)(((uint32_t)i * 2654435761u ^ salt * 40503u) >> 8 & 0xff);
}

static void the_same_prompt_again_costs_one_token(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        open_world(&w, kind, 1, 1 << 26, 1 << 26, false);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result r;
        assert_int_equal(serve(&w, "", tokens, 301, 330, &r), 301);
        assert_int_equal(r.miss, KV_MISS_EMPTY);
        settle(&w);
        assert_int_equal(serve(&w, "", tokens, 301, 320, &r), 1);
        assert_int_equal(r.miss, KV_MISS_NONE);
        settle(&w);
        /* regenerate: another answer, then the next turn of the first one */
        fill(tokens, 301, MAX, 9);
        assert_int_equal(serve(&w, "", tokens, 301, 325, &r), 1);
        settle(&w);
        fill(tokens, 301, MAX, 7);
        assert_int_equal(serve(&w, "", tokens, 360, 380, &r), 30); /* goes on at the first answer's end */
        assert_int_equal(r.position, 330);
        /* another scope sees nothing */
        assert_int_equal(serve(&w, "other", tokens, 301, 302, &r), 301);
        assert_int_equal(r.miss, KV_MISS_EMPTY);
        close_world(&w);
    }
}

static void a_parting_prompt_goes_back_to_what_is_kept(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        open_world(&w, kind, 1, 1 << 26, 1 << 26, false);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result r;
        serve(&w, "", tokens, 301, 310, &r);
        settle(&w);
        fill(tokens, 205, MAX, 8); /* parts inside a block */
        serve(&w, "", tokens, 301, 310, &r);
        assert_int_equal(r.n_match, 205);
        if (kind == KV_MEMORY_FULL) {
            assert_int_equal(r.position, 205);
            assert_int_equal(r.miss, KV_MISS_DIVERGED);
        } else {
            assert_int_equal(r.position, 192); /* 3 × INTERVAL */
            assert_int_equal(r.miss, kv_state_has_windows(kind) ? KV_MISS_NO_WINDOW : KV_MISS_NO_CHECKPOINT);
        }
        close_world(&w);
    }
}

static uint64_t seed_of_day(void) {
    const char *given = getenv("KVASIR_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("KVASIR_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Conversations that branch and go on, small budgets, I/O in any order: always the right logits. */
static void random_conversations(void **state) {
    (void)state;
    uint64_t seed = seed_of_day(), restored = 0, evicted = 0, dropped = 0;
    for (int round = 0; round < 60; round++) {
        kv_memory_kind kind = (kv_memory_kind)(round % (KV_MEMORY_WHOLE + 1));
        world w;
        open_world(&w, kind, seed + (uint64_t)round, 1 << (16 + round % 7), 1 << (17 + round % 9), round % 2);
        kv_token talk[4][MAX];
        int len[4] = {0};
        for (int step = 0; step < 40; step++) {
            int i = (int)rnd(&w, 4), j = (int)rnd(&w, 4);
            if (rnd(&w, 3) == 0 && len[j]) { /* branch off another conversation */
                len[i] = 1 + (int)rnd(&w, (uint32_t)len[j]);
                memmove(talk[i], talk[j], (size_t)len[i] * sizeof *talk[i]);
            } else if (rnd(&w, 6) == 0) {
                len[i] = 0;
            }
            int n_prompt = len[i] + 1 + (int)rnd(&w, 120), n = n_prompt + (int)rnd(&w, 30);
            if (n > MAX) {
                len[i] = 0;
                continue;
            }
            for (int k = len[i]; k < n; k++) talk[i][k] = (kv_token)rnd(&w, 3);
            kv_lookup_result r;
            serve(&w, rnd(&w, 5) ? "" : "b", talk[i], n_prompt, n, &r);
            len[i] = n;
            if (rnd(&w, 2)) settle(&w);
            kv_cache_self_check(w.cache);
        }
        settle(&w);
        kv_cache_stats stats;
        kv_cache_get_stats(&stats, w.cache);
        restored += stats.tokens_restored;
        evicted += stats.n_evicted;
        dropped += stats.n_dropped;
        close_world(&w);
    }
    print_message("restored %llu tokens, evicted %llu nodes, dropped %llu captures\n", (unsigned long long)restored,
                  (unsigned long long)evicted, (unsigned long long)dropped);
    assert_true(restored > 0 && evicted > 0 && dropped > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_prompt_again_costs_one_token),
        cmocka_unit_test(a_parting_prompt_goes_back_to_what_is_kept),
        cmocka_unit_test(random_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
