/* The fake against libllama: the same random calls on a tiny model of each kind of memory and on a fake of that kind.
 * Statuses, positions, refusals and sizes must agree after every call, and the cells: blobs list them in the order in
 * which they lie, so that equal lists of positions mean that both allocators took the same ones.
 *
 * It keeps the fake honest when the pinned engine changes. KVASIR_SEED replays a run, KVASIR_ROUNDS makes it longer. */
#include "engine/fake_rig.h"
#include <unistd.h>

enum { W = 32, MAX_BATCH = 96, N_SAVED = 8, MAX_SLOTS = 7 };

typedef struct pair {
    kv_engine *real, *fake;
    kv_memory_kind kind;
    int32_t n_seq, n_batch;
    uint64_t rng;
    blob saved_real[N_SAVED], saved_fake[N_SAVED];
    uint32_t saved_flags[N_SAVED];
} pair;

typedef struct counts {
    int decodes, no_cells, many_passes, copies, cuts, refused, sets, failed_sets;
    int64_t cells;
} counts;
static counts done;

static kv_model *load_tiny(const char *name) {
    char path[4096];
    kv_model *m;
    kv_error err = {0};
    const char *dir = getenv("KVASIR_FIXTURES");
    if (!dir) fail_msg("KVASIR_FIXTURES is not set: run the tests through ctest or `make test`");
    snprintf(path, sizeof path, "%s/tiny/%s.gguf", dir, name);
    if (access(path, R_OK) != 0) fail_msg("%s is missing: the build makes it with tools/mkmodel", path);
    kv_model_params p = {.path = path, .use_mmap = true};
    if (kv_model_load_llama(&m, &p, &err) != KV_OK) fail_msg("%s", err.message);
    return m;
}

static kv_engine *open_engine(kv_model *m, const kv_engine_params *p) {
    kv_engine *e;
    kv_error err = {0};
    if (kv_engine_new(&e, m, p, &err) != KV_OK) fail_msg("%s", err.message);
    return e;
}

static blob take(kv_engine *e, kv_seq s, uint32_t flags) {
    blob b = {NULL, kv_engine_state_size(e, s, flags)};
    b.data = kv_alloc(b.n);
    assert_int_equal(kv_engine_state_get(e, b.data, b.n, s, flags), b.n);
    return b;
}

static uint32_t u32_at(const blob *b, size_t at) {
    uint32_t v;
    assert_true(at + 4 <= b->n);
    memcpy(&v, b->data + at, sizeof v);
    return v;
}

/* ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The first part of both blobs: cells with position and sequence, or a state with its position. */
static void compare_blobs(const pair *p, kv_seq s, uint32_t flags) {
    blob a = take(p->real, s, flags), b = take(p->fake, s, flags);
    bool cells = p->kind != KV_MEMORY_RECURRENT && !(flags && p->kind == KV_MEMORY_HYBRID);
    size_t at = cells ? 12 : 8, each = cells ? 12 : 8;
    assert_memory_equal(a.data, b.data, 8);
    uint32_t n = u32_at(&a, at);
    assert_int_equal(n, u32_at(&b, at));
    assert_true(at + 4 + n * each <= a.n);
    assert_memory_equal(a.data + at + 4, b.data + at + 4, n * each);
    done.cells += cells ? n : 0;
    free_blob(&a);
    free_blob(&b);
}

static void compare(const pair *p) {
    kv_fake_check(p->fake);
    for (kv_seq s = 0; s < p->n_seq; s++) {
        assert_int_equal(kv_engine_pos_min(p->real, s), kv_engine_pos_min(p->fake, s));
        assert_int_equal(kv_engine_pos_max(p->real, s), kv_engine_pos_max(p->fake, s));
        for (uint32_t flags = 0; flags <= KV_STATE_PARTIAL; flags++) compare_blobs(p, s, flags);
    }
}

/* ── the calls ─────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct tokens {
    kv_token token[MAX_BATCH];
    kv_pos pos[MAX_BATCH];
    kv_seq seq[MAX_BATCH];
    bool want[MAX_BATCH];
    int32_t n;
} tokens;

static void add(tokens *t, pair *p, kv_seq s, int32_t n) {
    kv_pos pos = kv_engine_pos_max(p->fake, s) + 1;
    for (int32_t i = 0; i < n; i++, t->n++) {
        t->token[t->n] = below(&p->rng, 200);
        t->pos[t->n] = pos + i;
        t->seq[t->n] = s;
        t->want[t->n] = i == n - 1;
    }
}

static void do_decode(pair *p) {
    static tokens t;
    t.n = 0;
    bool recurrent = kv_memory_has_recurrent(p->kind);
    int32_t each = recurrent ? 1 + below(&p->rng, p->n_batch / p->n_seq) : 1;
    kv_seq first = below(&p->rng, p->n_seq), chunk = recurrent ? -1 : below(&p->rng, p->n_seq);
    for (int k = 0; k < p->n_seq; k++) {
        kv_seq s = (first + k) % p->n_seq;
        if (s != chunk && below(&p->rng, 3) && t.n + each < p->n_batch) add(&t, p, s, each);
    }
    if (chunk >= 0) add(&t, p, chunk, 1 + below(&p->rng, p->n_batch - t.n));
    if (t.n == 0) return;
    kv_batch b = {t.n, t.token, t.pos, t.seq, t.want};
    uint64_t passes = kv_fake_n_passes(p->fake);
    kv_status st = kv_engine_decode(p->real, &b, NULL);
    assert_int_equal(st, kv_engine_decode(p->fake, &b, NULL));
    assert_true(st == KV_OK || st == KV_NO_CELLS);
    done.decodes++;
    done.many_passes += kv_fake_n_passes(p->fake) > passes + 1;
    for (int32_t i = 0; i < p->n_batch; i++)
        assert_int_equal(kv_engine_logits(p->real, i) != NULL, kv_engine_logits(p->fake, i) != NULL);
    if (st != KV_NO_CELLS) return;
    done.no_cells++;
    if (below(&p->rng, 3) == 0) return; /* else make room */
    kv_seq s = below(&p->rng, p->n_seq);
    kv_engine_seq_rm(p->real, s, -1, -1);
    kv_engine_seq_rm(p->fake, s, -1, -1);
}

static void do_copy(pair *p) {
    kv_seq a = below(&p->rng, p->n_seq), b = below(&p->rng, p->n_seq);
    kv_pos end = kv_engine_pos_max(p->fake, a) + 1;
    if (a == b || end == 0) return;
    kv_pos p0 = below(&p->rng, 3) ? 0 : below(&p->rng, end), p1 = below(&p->rng, 3) ? end : below(&p->rng, end + 1);
    kv_engine_seq_rm(p->real, b, -1, -1); /* into an empty one: two cells of one position are nobody's recipe */
    kv_engine_seq_rm(p->fake, b, -1, -1);
    kv_engine_seq_cp(p->real, a, b, p0, p1);
    kv_engine_seq_cp(p->fake, a, b, p0, p1);
    done.copies++;
}

static void do_cut(pair *p) {
    kv_seq s = below(&p->rng, p->n_seq);
    kv_pos end = kv_engine_pos_max(p->fake, s) + 1;
    kv_pos p0 = below(&p->rng, 4) ? below(&p->rng, end + 1) : -1, p1 = below(&p->rng, 4) ? -1 : below(&p->rng, end + 2);
    bool did = kv_engine_seq_rm(p->real, s, p0, p1);
    assert_int_equal(did, kv_engine_seq_rm(p->fake, s, p0, p1));
    done.cuts += did;
    done.refused += !did;
}

static void do_save(pair *p) {
    int i = below(&p->rng, N_SAVED);
    kv_seq s = below(&p->rng, p->n_seq);
    free_blob(&p->saved_real[i]);
    free_blob(&p->saved_fake[i]);
    p->saved_flags[i] = below(&p->rng, 2) ? KV_STATE_PARTIAL : 0;
    p->saved_real[i] = take(p->real, s, p->saved_flags[i]);
    p->saved_fake[i] = take(p->fake, s, p->saved_flags[i]);
}

/* Sometimes cut off by a byte: the damage must be the same too. */
static void do_set(pair *p) {
    int i = below(&p->rng, N_SAVED);
    kv_seq s = below(&p->rng, p->n_seq);
    blob *a = &p->saved_real[i], *b = &p->saved_fake[i];
    if (!a->data) return;
    size_t off = below(&p->rng, 8) == 0;
    size_t real = kv_engine_state_set(p->real, a->data, a->n - off, s, p->saved_flags[i]);
    size_t fake = kv_engine_state_set(p->fake, b->data, b->n - off, s, p->saved_flags[i]);
    assert_int_equal(real == a->n, fake == b->n);
    assert_int_equal(real == 0, fake == 0);
    done.sets++;
    done.failed_sets += real == 0;
}

static void round_of(kv_model *real, kv_memory_kind kind, uint64_t seed) {
    pair p = {.kind = kind, .rng = seed};
    rig r;
    rig_params(&r, kind);
    r.mp.n_window = real->info.n_window > 0 ? real->info.n_window : W;
    r.ep.n_slots = 1 + below(&p.rng, MAX_SLOTS);
    r.ep.n_ctx = below(&p.rng, 3) ? 256 << below(&p.rng, 2) : 2048; /* with plenty of cells the windows are the limit */
    r.ep.n_batch = r.ep.n_slots + 1 + below(&p.rng, MAX_BATCH - r.ep.n_slots);
    r.ep.n_threads = r.ep.n_threads_batch = 1;
    r.ep.flash_attn = KV_FA_OFF;
    rig_start(&r);
    p.fake = r.e;
    p.real = open_engine(real, &r.ep);
    p.n_seq = r.ep.n_slots + 1;
    p.n_batch = r.ep.n_batch;
    assert_int_equal(p.real->info.memory, kind);
    assert_int_equal(p.real->info.n_ctx, p.fake->info.n_ctx);
    assert_int_equal(p.real->info.n_window_cells, p.fake->info.n_window_cells);
    for (int op = 0; op < 60; op++) {
        int what = below(&p.rng, 100);
        if (what < 55) do_decode(&p);
        else if (what < 70) do_copy(&p);
        else if (what < 80) do_cut(&p);
        else if (what < 90) do_save(&p);
        else do_set(&p);
        compare(&p);
    }
    for (int i = 0; i < N_SAVED; i++) free_blob(&p.saved_real[i]), free_blob(&p.saved_fake[i]);
    kv_engine_free(p.real);
    rig_close(&r);
}

static void run_kind(kv_memory_kind kind, const char *name) {
    uint64_t seed = rig_seed(name);
    const char *given = getenv("KVASIR_ROUNDS");
    int rounds = given ? atoi(given) : 4;
    kv_model *m = load_tiny(name);
    done = (counts){0};
    for (int i = 0; i < rounds; i++) round_of(m, kind, seed + 0x10001u * (uint64_t)i);
    printf("%s (%s): %d rounds, %d decodes (%d without cells, %d in several passes), %d copies, %d cuts (%d refused), "
           "%d sets (%d failed), %lld cells compared\n",
           kv_memory_kind_name(kind), name, rounds, done.decodes, done.no_cells, done.many_passes, done.copies,
           done.cuts, done.refused, done.sets, done.failed_sets, (long long)done.cells);
    kv_model_free(m);
}

static void full_is_like_llama(void **state) {
    (void)state;
    run_kind(KV_MEMORY_FULL, "llama");
}
static void window_is_like_gemma3(void **state) {
    (void)state;
    run_kind(KV_MEMORY_WINDOW, "gemma3");
}
static void hybrid_is_like_lfm2(void **state) {
    (void)state;
    run_kind(KV_MEMORY_HYBRID, "lfm2");
}
static void hybrid_window_is_like_lfm2_with_windows(void **state) {
    (void)state;
    run_kind(KV_MEMORY_HYBRID_WINDOW, "lfm2-window");
}
static void recurrent_is_like_mamba2(void **state) {
    (void)state;
    run_kind(KV_MEMORY_RECURRENT, "mamba2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_is_like_llama),       cmocka_unit_test(window_is_like_gemma3),
        cmocka_unit_test(hybrid_is_like_lfm2),      cmocka_unit_test(hybrid_window_is_like_lfm2_with_windows),
        cmocka_unit_test(recurrent_is_like_mamba2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
