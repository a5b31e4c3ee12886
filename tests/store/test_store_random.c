/* store under random work, faults and power cuts, against a model that knows which records were reported stored.
 *
 * After every call: the budget holds (a walk counts), accounts are not below the truth, the table's invariants hold,
 * what is read is what was stored, and what was reported stored and not reported gone is there. After a crash: every
 * record that is there is whole, all that was reported stored is there (where nothing was removed since, so that no
 * file came back and pushed others out), no temporary files are left.
 *
 * KVASIR_SEED sets the seed, KVASIR_ROUNDS the number of rounds.
 */
#include "rig.h"

#include "base/clock.h"

enum { N = 48, STEPS = 250 };

typedef struct world {
    rig r;
    uint64_t random;
    rec recs[N];
    bool stored[N]; /* reported so, and not gone since */
    bool pinned[N];
    bool removed; /* something was removed since the last crash */
    int n_crashes, n_faults, n_stored;
} world;

static uint64_t draw(world *w, uint64_t below) {
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return (w->random * 0x2545f4914f6cdd1dULL >> 32) % below;
}

static int find(world *w, const kv_record_head *h) {
    for (int i = 0; i < N; i++)
        if (w->recs[i].head.kind == h->kind && kv_hash_equal(w->recs[i].head.key, h->key)) return i;
    fail_msg("a record that nobody stored");
    return 0;
}

static void on_gone(void *ctx, const kv_record_head *h) {
    world *w = ctx;
    int i = find(w, h);
    w->stored[i] = w->pinned[i] = false;
    w->removed = true;
}

static void on_done(void *ctx, const kv_record_head *h, kv_status status) {
    world *w = ctx;
    if (status == KV_OK) {
        w->stored[find(w, h)] = true;
        w->n_stored++;
    }
}

static void make_world(world *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->random = seed * 0x9e3779b97f4a7c15ULL + 1;
    rig_init(&w->r, draw(w, 2) ? 1 << 20 : 20 << 20, draw(w, UINT32_MAX) + 1);
    for (int i = 0; i < N; i++) {
        int parent = i == 0 || draw(w, 8) == 0 ? -1 : (int)draw(w, (uint64_t)i);
        while (parent >= 0 && w->recs[parent].head.kind != KV_RECORD_BLOCK) parent--;
        static const kv_record_kind kinds[] = {KV_RECORD_BLOCK, KV_RECORD_BLOCK, KV_RECORD_BLOCK, KV_RECORD_WINDOW,
                                               KV_RECORD_CHECKPOINT};
        kv_record_kind kind = i == 0 ? KV_RECORD_BLOCK : kinds[draw(w, 5)];
        uint32_t salt = (uint32_t)i;
        const rec *above = parent < 0 ? NULL : &w->recs[parent];
        if (kind != KV_RECORD_BLOCK) { /* of the same node as a block, when there is one before it */
            int block = (int)draw(w, (uint64_t)i);
            while (block >= 0 && w->recs[block].head.kind != KV_RECORD_BLOCK) block--;
            bool taken = false;
            for (int k = 0; k < i; k++)
                taken |= w->recs[k].head.kind == kind && kv_hash_equal(w->recs[k].head.key, w->recs[block].head.key);
            if (!taken) {
                salt = (uint32_t)block;
                for (int k = 0; k < i; k++)
                    if (kv_hash_equal(w->recs[k].head.key, w->recs[block].head.parent) &&
                        w->recs[k].head.kind == KV_RECORD_BLOCK)
                        above = &w->recs[k];
                if (w->recs[block].head.q == 0) above = NULL;
            }
        }
        size_t bytes = draw(w, 10) == 0 ? 300000 : 1 + draw(w, 60000);
        w->recs[i] = make_rec(kind, above, salt, bytes, (uint32_t)draw(w, 1000));
    }
}

static void free_world(world *w) {
    rig_free(&w->r);
    for (int i = 0; i < N; i++) free(w->recs[i].payload);
}

static void spoil_index(world *w) {
    char path[256];
    snprintf(path, sizeof path, "%s/index.sqlite", w->r.dir);
    int how = (int)draw(w, 4);
    if (how == 0) (void)unlink(path);
    if (how == 1) (void)!truncate(path, (off_t)draw(w, 20000));
    if (how == 2) {
        FILE *f = fopen(path, "r+b");
        if (!f) return;
        (void)fseek(f, (long)draw(w, 16000), SEEK_SET);
        for (int i = 0; i < 500; i++) fputc((int)draw(w, 256), f);
        fclose(f);
    }
}

static void check(world *w) {
    rig_check(&w->r);
    for (int i = 0; i < N; i++)
        if (w->stored[i] && !kv_store_has(w->r.store, &w->recs[i].head))
            fail_msg("record %d was stored and is not there", i);
}

static void reopen(world *w, bool crashed) {
    kv_store_close(w->r.store);
    w->r.store = NULL;
    if (!crashed && !kv_files_faulty_crashed(w->r.faulty) && draw(w, 3) == 0) { /* an opening that fails or not */
        kv_files_faulty_fail(w->r.faulty, KV_CALL_ANY, 1 + draw(w, 80), 1 + draw(w, 3), EIO);
        if (kv_store_open(&w->r.store, &w->r.cfg, NULL) == KV_OK) kv_store_close(w->r.store);
        kv_files_faulty_fail(w->r.faulty, KV_CALL_ANY, 0, 0, 0);
        w->removed = true; /* records may have been quarantined */
    }
    kv_files_faulty_revive(w->r.faulty);
    assert_int_equal(kv_files_faulty_open_files(w->r.faulty), 0);
    if (crashed || draw(w, 4) == 0) spoil_index(w);
    rig_open(&w->r);
    kv_store_on_gone(w->r.store, on_gone, w);
    assert_int_equal(count_files(w->r.dir, ".tmp"), 0);
    for (int i = 0; i < N; i++) {
        bool has = kv_store_has(w->r.store, &w->recs[i].head);
        if (w->stored[i] && !has && !w->removed) {
            kv_store_stats stats;
            char path[512];
            kv_store_get_stats(&stats, w->r.store);
            rec_path(path, &w->r, &w->recs[i]);
            fail_msg("record %d was stored and is lost: %d evicted, %d quarantined, its file is %s (%s)", i,
                     (int)stats.n_evicted, (int)stats.n_quarantined, access(path, F_OK) == 0 ? "there" : "gone", path);
        }
        /* Removed ones may have come back: a removal is not synced. */
        kv_status status = has ? read_rec(&w->r, &w->recs[i]) : KV_NOT_FOUND;
        if (has && w->stored[i]) assert_int_equal(status, KV_OK);
        if (has && !w->removed) assert_int_equal(status, KV_OK);
        w->stored[i] = status == KV_OK;
    }
    kv_store_stats stats;
    kv_store_get_stats(&stats, w->r.store);
    /* Without a crash a later one may still undo removals; what opening removed it may undo as well. */
    w->removed = (w->removed && !crashed) || stats.n_evicted + stats.n_quarantined > 0;
    check(w);
}

/* Several in one commit: a random record and, so that chains grow, what hangs on it. */
static void store_some(world *w) {
    int n = 1 + (int)draw(w, 4), at = (int)draw(w, N);
    for (int k = 0; k < n; k++) {
        const rec *x = &w->recs[(at + k) % N];
        double worth = kv_store_worth(x->head.compute_ms, 0, x->head.n_payload + 4096);
        if (kv_store_reserve(w->r.store, &x->head, worth, false, NULL) != KV_OK) continue;
        if (draw(w, 10) == 0) kv_store_unreserve(w->r.store, &x->head);
        else (void)kv_store_write(w->r.store, &x->head, x->tokens, x->payload, NULL);
        if (!kv_files_faulty_crashed(w->r.faulty)) rig_check(&w->r);
    }
    if (draw(w, 8)) (void)kv_store_commit(w->r.store, on_done, w, NULL); /* else with the next */
}

static void read_one(world *w, int i) {
    bool had = kv_store_has(w->r.store, &w->recs[i].head);
    kv_status status = read_rec(&w->r, &w->recs[i]);
    if (status == KV_OK) kv_store_touch(w->r.store, &w->recs[i].head, (double)draw(w, 5));
    if (status != KV_OK && had && !kv_store_has(w->r.store, &w->recs[i].head)) w->removed = true, w->stored[i] = false;
}

static void step(world *w) {
    uint64_t bytes, records, bad;
    int i = (int)draw(w, N);
    w->r.now += (int64_t)draw(w, 5000);
    switch (draw(w, 16)) {
    case 0:
        w->removed = true; /* even when it only half worked */
        if (kv_store_remove(w->r.store, &w->recs[i].head, NULL) == KV_OK) w->stored[i] = w->pinned[i] = false;
        break;
    case 1:
        if (i < 3 && kv_store_pin(w->r.store, &w->recs[i].head, draw(w, 2), NULL) == KV_OK) w->pinned[i] = true;
        break;
    case 2: (void)kv_store_gc(w->r.store, draw(w, 2), &bytes, &records, NULL); break;
    case 3:
        if (draw(w, 4) == 0) (void)kv_store_verify(w->r.store, false, NULL, NULL, &bad, NULL);
        for (int k = 0; k < N; k++) /* under a fault a newer format may have been read, and was let be */
            if (w->stored[k] && !kv_store_has(w->r.store, &w->recs[k].head)) w->stored[k] = false, w->removed = true;
        break;
    case 4:
    case 5:
    case 6:
    case 7: read_one(w, i); break;
    default: store_some(w); break;
    }
}

static void fault(world *w) {
    static const int codes[] = {EIO, ENOSPC, EMFILE, EACCES, EROFS};
    if (draw(w, 6) == 0) kv_files_faulty_flip(w->r.faulty, 1 + draw(w, 6));
    else if (draw(w, 6) == 0) kv_files_faulty_room(w->r.faulty, draw(w, 100000));
    else
        kv_files_faulty_fail(w->r.faulty, draw(w, 2) ? KV_CALL_ANY : (kv_files_call)draw(w, KV_CALL_COUNT),
                             1 + draw(w, 20), 1 + draw(w, 4), codes[draw(w, 5)]);
    w->n_faults++;
}

static void run(uint64_t seed, world *w) {
    make_world(w, seed);
    rig_open(&w->r);
    kv_store_on_gone(w->r.store, on_gone, w);
    for (int k = 0; k < STEPS; k++) {
        uint64_t what = draw(w, 20);
        if (what == 0) kv_files_faulty_crash_at(w->r.faulty, 1 + draw(w, 60));
        if (what == 1 || what == 2) fault(w);
        step(w);
        if (what == 0 && !kv_files_faulty_crashed(w->r.faulty)) kv_files_faulty_crash(w->r.faulty, draw(w, 2));
        if (what == 0) {
            w->n_crashes++;
            reopen(w, true);
        } else {
            kv_files_faulty_revive(w->r.faulty); /* the fault is over */
            check(w);
        }
        if (what == 3) reopen(w, false);
    }
    kv_files_faulty_revive(w->r.faulty);
    free_world(w);
}

static void random_work(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_SEED"), *many = getenv("KVASIR_ROUNDS");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)kv_wall_seconds();
    int rounds = many ? atoi(many) : 12;
    static world w;
    int crashes = 0, faults = 0, stored = 0;
    for (int i = 0; i < rounds; i++) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)(seed + (uint64_t)i));
        run(seed + (uint64_t)i, &w);
        crashes += w.n_crashes;
        faults += w.n_faults;
        stored += w.n_stored;
    }
    fprintf(stderr, "%d rounds: %d records stored, %d faults, %d crashes\n", rounds, stored, faults, crashes);
    assert_true(stored > 0 && crashes > 0 && faults > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
