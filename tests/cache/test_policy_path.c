/* Places of every kind, chosen within budgets along paths: whatever is kept and whatever goes, each answer is that of an
 * uninterrupted run, in memory and from disk, and no path has more than its budget. */
#include "conversations.h"

#include "cache/cache_private.h"

static const kv_memory_kind kinds[] = {KV_MEMORY_FULL,          KV_MEMORY_WINDOW,    KV_MEMORY_HYBRID,
                                       KV_MEMORY_HYBRID_WINDOW, KV_MEMORY_RECURRENT, KV_MEMORY_WHOLE};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void reopen(world *w, bool flush) {
    kv_error err = {0};
    if (w->cache) {
        kv_cache_flush(w->cache, flush ? INT64_MAX / 4 : 0);
        settle(w);
        kv_cache_self_check(w->cache);
        kv_cache_free(w->cache);
        rig_close(w->disk);
        rig_open(w->disk);
        w->cfg.store = w->disk->store;
    }
    check(kv_cache_new(&w->cache, &w->cfg, &err), &err);
}

static void start(world *w, kv_memory_kind kind, uint64_t seed, uint64_t path_bytes, rig *disk) {
    open_world(w, kind, seed, 64 << 20, 64 << 20, seed % 2);
    kv_cache_free(w->cache);
    w->cache = NULL;
    w->cfg.path_bytes = path_bytes;
    w->cfg.read_bytes = 8 << 20;
    if (disk) {
        rig_init(disk, 64 << 20, seed);
        rig_open(disk);
        w->disk = disk;
        w->cfg.store = disk->store;
    }
    reopen(w, false);
}

typedef struct walk {
    world *w;
    uint64_t most;
} walk;

/* All that is kept from the root to this node. */
static void sum_path(void *ctx, kv_radix_node *node) {
    walk *all = ctx;
    int n;
    uint64_t sum = 0;
    kv_spot *spots = kv_path_kept(&n, all->w->cache, node, NULL, 0);
    for (int i = 0; i < n; i++) sum += spots[i].bytes;
    free(spots);
    if (sum > all->most) all->most = sum;
}

static uint64_t most_on_a_path(world *w) {
    walk all = {.w = w};
    kv_radix_walk(w->cache->tree, sum_path, &all);
    return all.most;
}

static int random_hints(world *w, kv_hint *hints, int n_prompt) {
    int n = 1 + (int)rnd(w, 6);
    for (int i = 0; i < n; i++)
        hints[i] = (kv_hint){.position = 1 + (int32_t)rnd(w, (uint32_t)n_prompt),
                             .kind = (kv_place_kind)rnd(w, KV_PLACE_COUNT),
                             .keep_seconds = rnd(w, 4) ? 0 : (int32_t)rnd(w, 1000)};
    return n;
}

static void test_random(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int with_disk = 0; with_disk < 2; with_disk++) {
            world w;
            rig disk;
            kv_hint hints[8];
            kv_token tokens[MAX];
            start(&w, kinds[k], 11 + (uint64_t)k, 6000, with_disk ? &disk : NULL);
            w.hints = hints;
            for (int i = 0; i < 90; i++) {
                /* one of three stems, parted somewhere; then the request's own */
                int part = 20 + (int)rnd(&w, 360), n_prompt = part + 1 + (int)rnd(&w, 80);
                int n = n_prompt + (int)rnd(&w, 40);
                fill(tokens, 0, part, rnd(&w, 3));
                fill(tokens, part, n, 100 + rnd(&w, 1000));
                w.n_hints = kv_cache_keeps_places(w.cache) ? random_hints(&w, hints, n_prompt) : 0;
                kv_lookup_result result;
                serve(&w, "", tokens, n_prompt, n, &result);
                if (i % 10 == 9) {
                    settle(&w);
                    /* A path that goes on behind what is added to it gets its turn when it grows itself. */
                    assert_true(kinds[k] == KV_MEMORY_FULL || most_on_a_path(&w) <= 3 * w.cfg.path_bytes);
                }
                if (with_disk && i % 30 == 29) reopen(&w, true);
            }
            close_world(&w);
        }
}

/* A branch that was seen is a place also for the next process, and its kind says so; what was gone on at is counted. */
static void test_branch_survives(void **state) {
    (void)state;
    static const kv_memory_kind without_cut[] = {KV_MEMORY_WINDOW, KV_MEMORY_HYBRID, KV_MEMORY_HYBRID_WINDOW,
                                                 KV_MEMORY_RECURRENT};
    for (size_t k = 0; k < sizeof without_cut / sizeof *without_cut; k++) {
        world w;
        rig disk;
        kv_token tokens[MAX];
        kv_lookup_result result;
        start(&w, without_cut[k], 3, 1 << 20, &disk);
        const kv_hint branch[] = {{.position = 151, .kind = KV_PLACE_BRANCH}};
        fill(tokens, 0, 300, 1);
        w.hints = branch;
        w.n_hints = 1;
        serve(&w, "", tokens, 280, 300, &result);
        reopen(&w, true);
        w.n_hints = 0;
        kv_cache_stats before, after;
        kv_cache_get_stats(&before, w.cache);
        assert_true(before.places[KV_PLACE_BRANCH].n_kept > 0);
        assert_int_equal(before.places[KV_PLACE_BRANCH].n_hits, 0);
        fill(tokens, 151, 250, 2);
        w.n_hints = 1;
        serve(&w, "", tokens, 240, 250, &result);
        assert_int_equal(result.position, 151);
        kv_cache_get_stats(&after, w.cache);
        assert_int_equal(after.places[KV_PLACE_BRANCH].n_hits, 1);
        reopen(&w, true);
        kv_cache_get_stats(&after, w.cache);
        assert_int_equal(after.places[KV_PLACE_BRANCH].n_hits, 1);
        close_world(&w);
    }
}

/* A budget that nobody named holds KV_POLICY_LEAST states however much larger they are than the engine said. */
static void test_unnamed_budget(void **state) {
    (void)state;
    static const kv_memory_kind with_states[] = {KV_MEMORY_HYBRID, KV_MEMORY_HYBRID_WINDOW, KV_MEMORY_RECURRENT};
    for (size_t k = 0; k < sizeof with_states / sizeof *with_states; k++) {
        world w;
        kv_token tokens[MAX];
        kv_lookup_result result;
        start(&w, with_states[k], 7, 0, NULL);
        fill(tokens, 0, MAX, 1);
        enum { TURNS = KV_POLICY_LEAST / 2 };
        for (int i = 1; i <= TURNS; i++) serve(&w, "", tokens, 20 * i, 20 * i + 4, &result);
        settle(&w);
        for (int i = 1; i <= TURNS; i++) { /* the end of each turn's prompt */
            serve(&w, "", tokens, 20 * i, 20 * i + 1, &result);
            assert_int_equal(result.position, 20 * i - 1);
        }
        close_world(&w);
    }
}

/* Without a disk, what is to be kept leaves memory last. */
static void test_kept_in_memory(void **state) {
    (void)state;
    world w;
    kv_token tokens[MAX];
    kv_lookup_result result;
    start(&w, KV_MEMORY_HYBRID, 5, 1 << 20, NULL);
    kv_cache_free(w.cache);
    w.cfg.ram_bytes = 40000;
    w.cache = NULL;
    reopen(&w, false);
    const kv_hint mark[] = {{.position = 100, .kind = KV_PLACE_MARK, .keep_seconds = 600}};
    fill(tokens, 0, 200, 1);
    w.hints = mark;
    w.n_hints = 1;
    serve(&w, "", tokens, 110, 120, &result);
    settle(&w);
    w.n_hints = 0;
    for (int i = 0; i < 40; i++) {
        kv_token other[MAX];
        fill(other, 0, 200, 50 + (uint32_t)i);
        serve(&w, "", other, 180, 200, &result);
        settle(&w);
    }
    kv_cache_stats stats;
    kv_cache_get_stats(&stats, w.cache);
    assert_true(stats.n_evicted > 0);
    serve(&w, "", tokens, 110, 112, &result);
    assert_true(result.position >= 100);
    close_world(&w);
}

typedef struct rows {
    int n_kept, n_not, n_states_kept, n_states_not;
} rows;

static void count_row(void *ctx, const kv_store_row *row) {
    rows *r = ctx;
    bool state = row->head.kind == KV_RECORD_CHECKPOINT, kept = row->head.keep_seconds > 0;
    if (kept) assert_true(row->head.q < 100 && row->head.keep_seconds == 600 && (!state || row->head.e <= 100));
    else assert_true(state ? row->head.e > 100 : row->head.q >= 100);
    if (state) *(kept ? &r->n_states_kept : &r->n_states_not) += 1;
    else *(kept ? &r->n_kept : &r->n_not) += 1;
}

/* The time of a mark stands in the records of what leads to it, and in no other. */
static void test_marked_records(void **state) {
    (void)state;
    world w;
    rig disk;
    kv_token tokens[MAX];
    kv_lookup_result result;
    kv_error err;
    start(&w, KV_MEMORY_HYBRID, 5, 1 << 20, &disk);
    const kv_hint hints[] = {{.position = 50, .kind = KV_PLACE_SYSTEM_END},
                             {.position = 100, .kind = KV_PLACE_MARK, .keep_seconds = 600},
                             {.position = 170, .kind = KV_PLACE_LAST_MESSAGE}};
    fill(tokens, 0, 260, 1);
    w.hints = hints;
    w.n_hints = 3;
    serve(&w, "", tokens, 240, 260, &result);
    reopen(&w, true);
    rows r = {0};
    assert_int_equal(kv_store_load_all(w.disk->store, count_row, &r, &err), KV_OK);
    assert_int_equal(r.n_states_kept, 2); /* the mark, and what lies before it */
    assert_int_equal(r.n_states_not, 3);  /* the last message, both ends */
    assert_int_equal(r.n_kept, 100 / B + 1);
    assert_true(r.n_not > 0);
    close_world(&w);
}

static void find_first(void *ctx, const kv_store_row *row) {
    if (row->head.kind == KV_RECORD_CHECKPOINT && row->head.e == 50) *(kv_record_head *)ctx = row->head;
}

/* What is pinned stays on its path, whatever the budget lets go. */
static void test_pinned_stays(void **state) {
    (void)state;
    world w;
    rig disk;
    kv_token tokens[MAX];
    kv_lookup_result result;
    kv_error err;
    start(&w, KV_MEMORY_HYBRID, 5, 400, &disk);
    const kv_hint hints[] = {{.position = 50, .kind = KV_PLACE_UNKNOWN}, {.position = 120, .kind = KV_PLACE_MESSAGE}};
    fill(tokens, 0, MAX, 1);
    w.hints = hints;
    w.n_hints = 1;
    serve(&w, "", tokens, 60, 70, &result);
    settle(&w);
    kv_record_head first = {0};
    check(kv_store_load_all(w.disk->store, find_first, &first, &err), &err);
    check(kv_store_pin(w.disk->store, &first, true, &err), &err);
    w.n_hints = 2;
    for (int n = 130; n < MAX - 20; n += 40) {
        serve(&w, "", tokens, n, n + 10, &result);
        settle(&w);
        assert_true(result.position >= 50 && most_on_a_path(&w) <= 400);
    }
    kv_token other[MAX];
    memcpy(other, tokens, sizeof other);
    fill(other, 52, 100, 9);
    serve(&w, "", other, 90, 100, &result);
    assert_int_equal(result.position, 50);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),         cmocka_unit_test(test_branch_survives),
        cmocka_unit_test(test_unnamed_budget), cmocka_unit_test(test_kept_in_memory),
        cmocka_unit_test(test_marked_records), cmocka_unit_test(test_pinned_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
