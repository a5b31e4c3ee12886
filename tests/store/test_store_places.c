/* What a record was kept for, and for how long: both survive the index, an older index is brought up to date, counts by
 * kind add up over restarts, and what is to be kept goes last. */
#include <sqlite3.h>

#include "rig.h"
#include "store/index.h"

typedef struct found {
    int n;
    kv_place_kind place[16];
    uint32_t keep[16];
} found;

static void find(void *ctx, const kv_store_row *row) {
    found *f = ctx;
    f->place[f->n] = row->head.place;
    f->keep[f->n++] = row->head.keep_seconds;
}

static found rows_of(rig *r, const rec *x) {
    found f = {0};
    kv_error err;
    assert_int_equal(kv_store_load(r->store, x->head.ns, find, &f, &err), KV_OK);
    return f;
}

static void exec_index(rig *r, const char *sql) {
    char path[256];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/index.sqlite", r->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    char *message = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK) fail_msg("%s: %s", sql, message);
    sqlite3_close(db);
}

static void assert_marked(rig *r, const rec *x) {
    found f = rows_of(r, x);
    assert_int_equal(f.n, 2);
    assert_int_equal(f.place[0], KV_PLACE_UNKNOWN);
    assert_int_equal(f.keep[0], 300);
    assert_int_equal(f.place[1], KV_PLACE_BRANCH);
    assert_int_equal(f.keep[1], 3600);
}

static void test_kinds_survive(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 64 << 20, 1);
    rig_open(&r);
    rec b = make_rec(KV_RECORD_BLOCK, NULL, 1, 5000, 10), c = make_rec(KV_RECORD_CHECKPOINT, NULL, 1, 9000, 10);
    b.head.keep_seconds = 300;
    c.head.place = KV_PLACE_BRANCH;
    c.head.keep_seconds = 3600;
    assert_int_equal(store_rec(&r, &b, 1), KV_OK);
    assert_int_equal(store_rec(&r, &c, 1), KV_OK);
    kv_store_count_place(r.store, KV_PLACE_BRANCH, 3, 1);
    kv_store_count_place(r.store, KV_PLACE_ANSWER_END, 1, 0);
    uint64_t kept[KV_PLACE_COUNT], hits[KV_PLACE_COUNT];
    assert_marked(&r, &b);
    for (int start = 0; start < 4; start++) {
        rig_close(&r);
        if (start == 1) /* as an index of layout 1 was */
            exec_index(&r,
                       "ALTER TABLE record DROP COLUMN place; ALTER TABLE record DROP COLUMN keep; DROP TABLE place;"
                       "DELETE FROM record; PRAGMA user_version=1;");
        if (start == 2) kv_index_delete(kv_files_real(), r.dir);
        rig_open(&r);
        assert_marked(&r, &b);
        kv_store_get_places(r.store, kept, hits);
        assert_int_equal(kept[KV_PLACE_BRANCH], start == 0 ? 3 : start == 3 ? 7 : 0); /* they are the index's own */
        assert_int_equal(hits[KV_PLACE_BRANCH], start == 0 ? 1 : start == 3 ? 2 : 0);
        if (start == 2) kv_store_count_place(r.store, KV_PLACE_BRANCH, 7, 2);
        kv_store_check(r.store);
    }
    free(b.payload);
    free(c.payload);
    rig_free(&r);
}

/* Ten records fill the budget; of each pair one is to be kept. What comes pushes out those that are not, however little
 * the others are worth, until their time is over. */
static void test_kept_go_last(void **state) {
    (void)state;
    enum { N = 20, BYTES = 60000 };
    rig r;
    rig_init(&r, 2 << 20, 1);
    rig_open(&r);
    rec old[N], fresh[N];
    int n = 0;
    for (; n < N; n++) {
        old[n] = make_rec(KV_RECORD_BLOCK, NULL, (uint32_t)n + 1, BYTES, n % 2 ? 1 : 1000);
        old[n].head.keep_seconds = n % 2 ? 300 : 0;
        assert_int_equal(store_rec(&r, &old[n], 1), KV_OK);
    }
    kv_store_stats stats;
    int n_fresh = 0, n_stored = 0;
    for (; n_fresh < N; n_fresh++) { /* worth more than all of them */
        fresh[n_fresh] = make_rec(KV_RECORD_BLOCK, NULL, 100 + (uint32_t)n_fresh, BYTES, 9000);
        n_stored += store_rec(&r, &fresh[n_fresh], 9000.0 / BYTES) == KV_OK;
        for (int i = 1; i < N; i += 2) assert_true(kv_store_has(r.store, &old[i].head)); /* kept */
        rig_check(&r);
    }
    kv_store_get_stats(&stats, r.store);
    assert_true(n_stored >= N / 2 && stats.n_evicted > 0);
    /* a use begins their time anew; without one it is over */
    r.now += 200;
    kv_store_touch(r.store, &old[1].head, 0);
    r.now += 150;
    rec more[N];
    int n_kept = 0;
    for (int i = 0; i < N / 2; i++) {
        more[i] = make_rec(KV_RECORD_BLOCK, NULL, 200 + (uint32_t)i, BYTES, 9000);
        (void)store_rec(&r, &more[i], 9000.0 / BYTES);
        rig_check(&r);
    }
    for (int i = 1; i < N; i += 2) n_kept += kv_store_has(r.store, &old[i].head);
    assert_true(kv_store_has(r.store, &old[1].head));
    assert_true(n_kept < N / 2);
    for (int i = 0; i < N; i++) {
        free(old[i].payload);
        free(fresh[i].payload);
        if (i < N / 2) free(more[i].payload);
    }
    rig_free(&r);
}

/* When all are to be kept, the budget holds all the same: the worst go for one that is to be kept, too, and for a smaller
 * budget at the next start. */
static void test_all_kept(void **state) {
    (void)state;
    enum { N = 40, BYTES = 60000 };
    rig r;
    rig_init(&r, 2 << 20, 1);
    rig_open(&r);
    rec x[N];
    for (int i = 0; i < N; i++) {
        x[i] = make_rec(KV_RECORD_BLOCK, NULL, (uint32_t)i + 1, BYTES, 10 + (uint32_t)i * 5);
        x[i].head.keep_seconds = 3600;
        (void)store_rec(&r, &x[i], (10.0 + i * 5) / BYTES);
        rig_check(&r);
    }
    assert_true(kv_store_has(r.store, &x[N - 1].head));
    assert_false(kv_store_has(r.store, &x[0].head));
    rec other = make_rec(KV_RECORD_BLOCK, NULL, 999, BYTES, 100000);
    assert_int_equal(store_rec(&r, &other, 100000.0 / BYTES), KV_NO_MEMORY); /* not for one that need not be */
    rig_close(&r);
    r.cfg.budget = 1200 << 10;
    rig_open(&r);
    rig_check(&r);
    assert_true(kv_store_has(r.store, &x[N - 1].head));
    for (int i = 0; i < N; i++) free(x[i].payload);
    free(other.payload);
    rig_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_survive),
        cmocka_unit_test(test_kept_go_last),
        cmocka_unit_test(test_all_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
