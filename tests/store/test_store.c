/* store: what is published is read back, also after a restart; damage is seen and set aside; budgets and modes hold. */
#include "rig.h"

static rec chain[8];

static void make_chain(void) {
    for (uint32_t i = 0; i < 8; i++) chain[i] = make_rec(KV_RECORD_BLOCK, i ? &chain[i - 1] : NULL, i, 20000 + i, 100);
}
static void free_chain(void) {
    for (int i = 0; i < 8; i++) free(chain[i].payload);
}

static void publish_and_read(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 32 << 20, 1);
    make_chain();
    rig_open(&r);
    rig_check(&r);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(kv_store_reserve(r.store, &chain[i].head, 1, false, NULL), KV_OK);
        assert_int_equal(kv_store_reserve(r.store, &chain[i].head, 1, false, NULL), KV_INVALID); /* being stored */
        rig_check(&r);
        assert_int_equal(kv_store_write(r.store, &chain[i].head, chain[i].tokens, chain[i].payload, NULL), KV_OK);
        rig_check(&r);
        assert_false(kv_store_has(r.store, &chain[i].head));
    }
    assert_int_equal(kv_store_commit(r.store, NULL, NULL, NULL), KV_OK);
    rig_check(&r);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            assert_true(kv_store_has(r.store, &chain[i].head));
            assert_int_equal(read_rec(&r, &chain[i]), KV_OK);
            assert_int_equal(kv_store_read(r.store, NULL, NULL, 0, NULL, &chain[i].head, NULL), KV_OK);
        }
        rig_close(&r);
        rig_open(&r);
        rig_check(&r);
    }
    struct stat st;
    char path[512];
    rec_path(path, &r, &chain[0]);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(r.dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    snprintf(path, sizeof path, "%s/index.sqlite", r.dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(count_files(r.dir, "CACHEDIR.TAG"), 1);
    assert_int_equal(count_files(r.dir, ".tmp"), 0);
    assert_int_equal(count_files(r.dir, ".alive"), 1);
    rig_free(&r);
    free_chain();
}

typedef struct loaded {
    int n;
    int32_t last_q;
    double hits;
    int64_t last_used;
    int n_pinned;
} loaded;
static void on_row(void *ctx, const kv_store_row *row) {
    loaded *l = ctx;
    assert_true(row->head.q >= l->last_q); /* parents before children */
    assert_int_equal(row->head.n_tokens, 16);
    l->last_q = row->head.q;
    l->n++;
    l->n_pinned += row->pinned;
    if (row->hits > l->hits) l->hits = row->hits;
    if (row->last_used > l->last_used) l->last_used = row->last_used;
}
static loaded load(rig *r) {
    loaded l = {0};
    assert_int_equal(kv_store_load(r->store, kv_hash_bytes("test", 4), on_row, &l, NULL), KV_OK);
    return l;
}

/* Deleted, damaged, replaced, locked: the files stand. Uses survive only with the index, pins always. */
static void index_is_derived(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 32 << 20, 1);
    make_chain();
    rig_open(&r);
    for (int i = 0; i < 8; i++) assert_int_equal(store_rec(&r, &chain[i], 1), KV_OK);
    r.now += 1000;
    kv_store_touch(r.store, &chain[3].head, 2.5);
    assert_int_equal(kv_store_pin(r.store, &chain[7].head, true, NULL), KV_OK);
    rig_check(&r);
    rig_close(&r);
    rig_open(&r);
    loaded l = load(&r);
    assert_int_equal(l.n, 8);
    assert_true(l.hits > 2.4 && l.hits < 2.6);
    assert_int_equal(l.last_used, 1700001000);
    assert_int_equal(l.n_pinned, 1);
    char index[256];
    snprintf(index, sizeof index, "%s/index.sqlite", r.dir);
    for (int how = 0; how < 4; how++) {
        rig_close(&r);
        if (how == 0) assert_int_equal(unlink(index), 0);
        if (how > 0 && how < 3) {
            FILE *f = fopen(index, how == 1 ? "r+b" : "wb");
            assert_non_null(f);
            for (int i = 0; i < 3000; i++) fputc(i * 7, f);
            fclose(f);
        }
        if (how == 3) { /* cut in the middle */
            struct stat st;
            assert_int_equal(stat(index, &st), 0);
            assert_int_equal(truncate(index, st.st_size / 2), 0);
        }
        rig_open(&r);
        rig_check(&r);
        l = load(&r);
        assert_int_equal(l.n, 8);
        assert_int_equal(l.n_pinned, 1);
        for (int i = 0; i < 8; i++) assert_int_equal(read_rec(&r, &chain[i]), KV_OK);
    }
    /* Without faults in between it has come back whole. */
    kv_store_touch(r.store, &chain[3].head, 2.5);
    rig_close(&r);
    rig_open(&r);
    assert_true(load(&r).hits > 2.4);
    rig_free(&r);
    free_chain();
}

static void damage_is_set_aside(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 32 << 20, 1);
    make_chain();
    rig_open(&r);
    for (int i = 0; i < 8; i++) assert_int_equal(store_rec(&r, &chain[i], 1), KV_OK);
    char path[8][512];
    for (int i = 0; i < 8; i++) rec_path(path[i], &r, &chain[i]);
    assert_int_equal(truncate(path[0], 5000), 0); /* cut short */
    FILE *f = fopen(path[1], "r+b");              /* one bit of the payload */
    fseek(f, 9000, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, 9000, SEEK_SET);
    fputc(byte ^ 4, f);
    fclose(f);
    assert_int_equal(rename(path[2], path[3]), 0); /* swapped with another; 2 itself is gone */
    assert_int_equal(unlink(path[4]), 0);
    assert_int_equal(symlink(path[5], path[4]), 0);
    f = fopen(path[6], "r+b"); /* a newer format */
    fseek(f, 8, SEEK_SET);
    fputc(9, f);
    fclose(f);
    const kv_status want[8] = {KV_CORRUPT, KV_CORRUPT, KV_NOT_FOUND,   KV_CORRUPT,
                               KV_CORRUPT, KV_OK,      KV_UNSUPPORTED, KV_OK};
    for (int i = 0; i < 8; i++) assert_int_equal(read_rec(&r, &chain[i]), want[i]);
    rig_check(&r);
    assert_int_equal(r.n_gone, 4);
    assert_int_equal(access(path[6], F_OK), 0);
    char quarantine[256];
    snprintf(quarantine, sizeof quarantine, "%s/quarantine", r.dir);
    assert_int_equal(count_files(quarantine, "-"), 4);
    for (int i = 0; i < 8; i++) assert_int_equal(kv_store_has(r.store, &chain[i].head), want[i] == KV_OK);
    /* An unreadable one, by the file system's word. */
    kv_files_faulty_fail(r.faulty, KV_CALL_READ, 1, 2, EIO);
    assert_int_equal(read_rec(&r, &chain[7]), KV_CORRUPT);
    kv_files_faulty_fail(r.faulty, KV_CALL_OPEN, 1, 1, EMFILE);
    assert_int_equal(read_rec(&r, &chain[5]), KV_IO); /* not the file's fault */
    assert_int_equal(read_rec(&r, &chain[5]), KV_OK);
    kv_files_faulty_flip(r.faulty, 2);
    assert_int_equal(read_rec(&r, &chain[5]), KV_CORRUPT);
    kv_store_stats stats;
    kv_store_get_stats(&stats, r.store);
    assert_int_equal(stats.n_quarantined, 6);
    rig_check(&r);
    rig_close(&r);
    rig_open(&r);
    assert_int_equal(load(&r).n, 0);
    assert_int_equal(access(path[6], F_OK), 0);
    /* They can be stored again. */
    assert_int_equal(store_rec(&r, &chain[1], 1), KV_NOT_FOUND);                      /* an orphan */
    for (int i = 0; i < 7; i++) assert_int_equal(store_rec(&r, &chain[i], 1), KV_OK); /* 6 in the newer one's place */
    assert_int_equal(read_rec(&r, &chain[6]), KV_OK);
    rig_check(&r);
    rig_free(&r);
    free_chain();
}

static void quarantine_is_bounded(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 2 << 20, 1); /* an eighth: 256 KiB */
    rig_open(&r);
    for (uint32_t i = 0; i < 12; i++) {
        rec x = make_rec(KV_RECORD_BLOCK, NULL, i, 60000, 100);
        assert_int_equal(store_rec(&r, &x, 1e9), KV_OK);
        char path[512];
        rec_path(path, &r, &x);
        assert_int_equal(truncate(path, 65000), 0);
        r.now++;
        assert_int_equal(read_rec(&r, &x), KV_CORRUPT);
        rig_check(&r);
        free(x.payload);
    }
    char quarantine[256];
    snprintf(quarantine, sizeof quarantine, "%s/quarantine", r.dir);
    assert_true(tree_bytes(quarantine, false) <= (256 << 10) + 8192);
    assert_true(count_files(quarantine, "-") >= 2);
    rig_free(&r);
}

/* A state or a window is of use to nobody without the blocks that lead to it; inside a block, without that before it. */
static void nothing_without_its_path(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 2 << 20, 1);
    rig_open(&r);
    make_chain();
    static const kv_record_kind kinds[] = {KV_RECORD_WINDOW, KV_RECORD_CHECKPOINT};
    rec at_end[2], inside[2];
    for (int k = 0; k < 2; k++) {
        at_end[k] = make_rec(kinds[k], &chain[0], 1, 40000, 100);
        inside[k] = make_rec(kinds[k], &chain[0], 1, 40000, 100);
        inside[k].head.e -= 4;
        inside[k].head.n_tokens -= 4;
        inside[k].head.key = kv_hash_chain(inside[k].head.parent, inside[k].tokens, 12);
    }
    for (int n_blocks = 0; n_blocks <= 2; n_blocks++) {
        if (n_blocks) assert_int_equal(store_rec(&r, &chain[n_blocks - 1], 1), KV_OK);
        for (int k = 0; k < 2; k++) {
            if (n_blocks < 2) assert_int_equal(store_rec(&r, &inside[k], 1e9), n_blocks ? KV_OK : KV_NOT_FOUND);
            assert_int_equal(store_rec(&r, &at_end[k], 1e9), n_blocks == 2 ? KV_OK : KV_NOT_FOUND);
        }
        rig_check(&r);
    }
    for (int k = 0; k < 2; k++) {
        free(at_end[k].payload);
        free(inside[k].payload);
    }
    rig_free(&r);
    free_chain();
}

/* What hangs on a block goes before it; the least worth first; what is worth no less than the new stays. */
static void eviction_by_worth(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 1 << 20, 1);
    rig_open(&r);
    enum { N = 24, SIZE = 40960 };
    rec block[N];
    int n = 0;
    for (; n < N; n++) { /* a root with leaves that are worth more and more */
        block[n] = make_rec(KV_RECORD_BLOCK, n ? &block[0] : NULL, (uint32_t)n, SIZE, n ? 10u * (uint32_t)n : 1);
        kv_status status = store_rec(&r, &block[n], kv_store_worth(block[n].head.compute_ms, 0, SIZE + 4096));
        assert_int_equal(status, KV_OK); /* by evicting, once it is full */
        rig_check(&r);
    }
    int first = 1;
    while (first < N && !kv_store_has(r.store, &block[first].head)) first++;
    assert_true(first > 1 && first < N); /* the cheapest leaves went */
    for (int i = first; i < N; i++) assert_int_equal(read_rec(&r, &block[i]), KV_OK);
    assert_int_equal(read_rec(&r, &block[0]), KV_OK); /* the cheapest of all, but the others hang on it */
    assert_int_equal(r.n_gone, first - 1);
    size_t gone = r.n_gone;
    rec poor = make_rec(KV_RECORD_BLOCK, &block[0], 900, SIZE, 10);
    assert_int_equal(store_rec(&r, &poor, kv_store_worth(10, 0, SIZE + 4096)), KV_NO_MEMORY);
    rec equal = make_rec(KV_RECORD_BLOCK, &block[0], 901, SIZE, 10u * (uint32_t)first);
    assert_int_equal(store_rec(&r, &equal, kv_store_worth(equal.head.compute_ms, 0, SIZE + 4096)), KV_NO_MEMORY);
    assert_int_equal(r.n_gone, gone); /* a refusal costs nobody anything */
    /* Use makes worth: the cheapest leaf is used, the second goes. */
    kv_store_touch(r.store, &block[first].head, 1000);
    rec rich = make_rec(KV_RECORD_BLOCK, &block[N - 1], 902, SIZE, 10000);
    assert_int_equal(store_rec(&r, &rich, kv_store_worth(10000, 0, SIZE)), KV_OK);
    assert_true(kv_store_has(r.store, &block[first].head));
    assert_false(kv_store_has(r.store, &block[first + 1].head));
    /* Pinned: nothing worth however much takes it. Weeks decay what was used. */
    assert_int_equal(kv_store_pin(r.store, &block[first + 2].head, true, NULL), KV_OK);
    r.now += 20 * 604800;
    for (uint32_t i = 0; i < 40; i++) {
        rec x = make_rec(KV_RECORD_BLOCK, NULL, 1000 + i, SIZE, 100000);
        (void)store_rec(&r, &x, 1e9);
        rig_check(&r);
        free(x.payload);
    }
    assert_true(kv_store_has(r.store, &block[first + 2].head));
    assert_true(kv_store_has(r.store, &block[0].head)); /* the pinned one hangs on it */
    assert_false(kv_store_has(r.store, &block[first].head));
    assert_int_equal(read_rec(&r, &block[first + 2]), KV_OK);
    rig_free(&r);
    for (int i = 0; i < N; i++) free(block[i].payload);
    free(poor.payload);
    free(equal.payload);
    free(rich.payload);
}

/* What was used often, long ago, goes before what was used once, just now; at one age what was used more often stays. */
static void worth_fades(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 1 << 20, 1);
    rig_open(&r);
    enum { N = 64, SIZE = 40960, MS = 100 };
    const double worth = kv_store_worth(MS, 0, SIZE + 4096);
    rec old[N], new[N];
    int n = 0;
    for (int i = 0; i < N; i++) old[i] = make_rec(KV_RECORD_BLOCK, NULL, (uint32_t)i, SIZE, MS);
    for (int i = 0; i < N; i++) new[i] = make_rec(KV_RECORD_BLOCK, NULL, N + (uint32_t)i, SIZE, MS);
    while (n < N && store_rec(&r, &old[n], worth) == KV_OK) {
        kv_store_touch(r.store, &old[n].head, n == 2 ? 20 : 5);
        n++;
    }
    assert_true(n > 8 && n < N); /* full, and all that is there is worth six times as much */
    assert_int_equal(store_rec(&r, &new[0], worth), KV_NO_MEMORY);
    r.now += 3600;
    int m = 0;
    while (m < n / 2) assert_int_equal(store_rec(&r, &new[m++], worth), KV_OK);
    assert_true(r.n_gone > 0);
    assert_true(kv_store_has(r.store, &old[2].head));
    while (m < N && store_rec(&r, &new[m], worth) == KV_OK) m++;
    assert_true(m > n / 2 && m < N); /* equals do not push each other out */
    int left = 0;                    /* one, perhaps, that is not enough for a record and its folder */
    for (int i = 0; i < n; i++) left += kv_store_has(r.store, &old[i].head);
    assert_true(left <= 1);
    for (int i = 0; i < m; i++) assert_true(kv_store_has(r.store, &new[i].head));
    assert_true(kv_store_fade(0) == 1 && kv_store_fade(-5) == 1 && kv_store_fade(100) < kv_store_fade(50));
    rig_check(&r);
    rig_free(&r);
    for (int i = 0; i < N; i++) {
        free(old[i].payload);
        free(new[i].payload);
    }
}

/* A chain longer than the budget: its beginning stays, it does not eat its own tail. */
static void no_thrash(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 1 << 20, 1);
    rig_open(&r);
    rec block[40];
    int stored = 0;
    for (uint32_t i = 0; i < 40; i++) {
        block[i] = make_rec(KV_RECORD_BLOCK, i ? &block[i - 1] : NULL, i, 40960, 100 + 2 * i);
        r.now++;
        if (store_rec(&r, &block[i], kv_store_worth(100 + 2 * i, 0, 45056)) == KV_OK) stored++;
        rig_check(&r);
    }
    kv_store_stats stats;
    kv_store_get_stats(&stats, r.store);
    assert_int_equal(stats.n_evicted, 0);
    assert_true(stored > 10 && stored < 40);
    for (int i = 0; i < stored; i++) assert_true(kv_store_has(r.store, &block[i].head));
    /* Window parts and checkpoints may go before the block that they hang on, never the other way round. */
    rec window = make_rec(KV_RECORD_WINDOW, &block[stored - 2], (uint32_t)stored - 1, 40960, 100000);
    assert_true(kv_hash_equal(window.head.key, block[stored - 1].head.key));
    assert_int_equal(store_rec(&r, &window, 1e-9), KV_NO_MEMORY);
    rec other = make_rec(KV_RECORD_CHECKPOINT, &block[stored - 2], (uint32_t)stored - 1, 40960, 1);
    assert_int_equal(store_rec(&r, &other, 1e9), KV_NO_MEMORY); /* only its own block could go, and that is protected */
    rig_free(&r);
    for (int i = 0; i < 40; i++) free(block[i].payload);
    free(window.payload);
    free(other.payload);
}

static void limits_and_modes(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 32 << 20, 1);
    make_chain();
    kv_error err;
    r.cfg.budget = 1000;
    assert_int_equal(kv_store_open(&r.store, &r.cfg, &err), KV_INVALID);
    r.cfg.budget = 32 << 20;
    r.cfg.read_only = true;
    assert_int_equal(kv_store_open(&r.store, &r.cfg, &err), KV_NOT_FOUND);
    assert_null(r.store);
    r.cfg.read_only = false;
    r.cfg.write_max_day = 70000; /* two of 28 KiB, with what is reserved for each */
    rig_open(&r);
    assert_int_equal(store_rec(&r, &chain[0], 1), KV_OK);
    assert_int_equal(store_rec(&r, &chain[1], 1), KV_OK);
    assert_int_equal(store_rec(&r, &chain[2], 1), KV_NO_MEMORY);
    assert_int_equal(kv_store_reserve(r.store, &chain[2].head, 1, true, &err), KV_OK); /* a path that was hit */
    kv_store_unreserve(r.store, &chain[2].head);
    rig_close(&r);
    rig_open(&r); /* the day's count outlives the process */
    assert_int_equal(store_rec(&r, &chain[2], 1), KV_NO_MEMORY);
    r.now += 86400;
    assert_int_equal(store_rec(&r, &chain[2], 1), KV_OK);
    /* The volume's free space. */
    r.cfg.write_max_day = 0;
    r.cfg.keep_free = 1 << 20;
    rig_close(&r);
    rig_open(&r);
    kv_files_faulty_free_space(r.faulty, (1 << 20) + 1000);
    assert_int_equal(kv_store_reserve(r.store, &chain[3].head, 1e-12, false, &err), KV_NO_MEMORY);
    assert_non_null(strstr(err.message, "volume"));
    kv_files_faulty_free_space(r.faulty, UINT64_MAX);
    assert_int_equal(store_rec(&r, &chain[3], 1), KV_OK);
    /* Read-only: reads, and changes nothing. */
    rig_close(&r);
    r.cfg.read_only = true;
    uint64_t writes = kv_files_faulty_count(r.faulty, KV_CALL_WRITE) + kv_files_faulty_count(r.faulty, KV_CALL_RENAME) +
                      kv_files_faulty_count(r.faulty, KV_CALL_REMOVE);
    int files = count_files(r.dir, "");
    rig_open(&r);
    assert_int_equal(load(&r).n, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(read_rec(&r, &chain[i]), KV_OK);
    assert_int_equal(store_rec(&r, &chain[4], 1), KV_NO_MEMORY);
    assert_int_equal(kv_store_remove(r.store, &chain[0].head, NULL), KV_FORBIDDEN);
    kv_files_faulty_flip(r.faulty, 2); /* the payload's read: in the first page most bits mean nothing */
    assert_int_equal(read_rec(&r, &chain[0]), KV_CORRUPT);
    rig_close(&r);
    assert_int_equal(count_files(r.dir, ""), files);
    assert_int_equal(kv_files_faulty_count(r.faulty, KV_CALL_WRITE) + kv_files_faulty_count(r.faulty, KV_CALL_RENAME) +
                         kv_files_faulty_count(r.faulty, KV_CALL_REMOVE),
                     writes);
    r.cfg.read_only = false;
    rig_open(&r);
    assert_int_equal(read_rec(&r, &chain[0]), KV_OK);
    rig_free(&r);
    free_chain();
}

static void on_progress(void *ctx, uint64_t done, uint64_t total) {
    assert_true(done <= total);
    *(uint64_t *)ctx = done;
}

typedef struct listing {
    char about[64];
    uint64_t bytes, records;
    int n;
} listing;
static void on_namespace(void *ctx, kv_hash ns, const char *about, uint64_t bytes, uint64_t records) {
    (void)ns;
    listing *l = ctx;
    snprintf(l->about, sizeof l->about, "%s", about);
    l->bytes = bytes;
    l->records = records;
    l->n++;
}

static void housekeeping(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 32 << 20, 1);
    make_chain();
    r.cfg.max_age_s = 30 * 86400;
    rig_open(&r);
    uint64_t bytes, records, bad, done = 0;
    kv_hash ns = kv_hash_bytes("test", 4);
    for (int i = 0; i < 8; i++) assert_int_equal(store_rec(&r, &chain[i], 1), KV_OK);
    assert_int_equal(kv_store_set_about(r.store, ns, "{\"model\":\"x\"}", NULL), KV_OK);
    rig_check(&r);
    listing l = {0};
    assert_int_equal(kv_store_namespaces(r.store, on_namespace, &l, NULL), KV_OK);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.records, 8);
    assert_string_equal(l.about, "{\"model\":\"x\"}");
    /* verify */
    char path[512];
    rec_path(path, &r, &chain[7]);
    FILE *f = fopen(path, "r+b");
    fseek(f, 12000, SEEK_SET);
    fputc(0x55, f);
    fputc(0x55, f);
    fclose(f);
    assert_int_equal(kv_store_verify(r.store, true, on_progress, &done, &bad, NULL), KV_OK);
    assert_int_equal(bad, 1);
    assert_true(kv_store_has(r.store, &chain[7].head));
    assert_int_equal(kv_store_verify(r.store, false, NULL, NULL, &bad, NULL), KV_OK);
    assert_int_equal(bad, 1);
    assert_false(kv_store_has(r.store, &chain[7].head));
    assert_int_equal(kv_store_verify(r.store, false, NULL, NULL, &bad, NULL), KV_OK);
    assert_int_equal(bad, 0);
    /* age: used ones keep what they hang on */
    r.now += 20 * 86400;
    for (int i = 0; i < 3; i++) kv_store_touch(r.store, &chain[i].head, 1);
    r.now += 20 * 86400;
    assert_int_equal(kv_store_gc(r.store, true, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 4);
    assert_true(kv_store_has(r.store, &chain[6].head));
    assert_int_equal(kv_store_gc(r.store, false, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 4);
    for (int i = 0; i < 7; i++) assert_int_equal(kv_store_has(r.store, &chain[i].head), i < 3);
    rig_check(&r);
    /* remove, and all of a namespace */
    assert_int_equal(kv_store_remove(r.store, &chain[2].head, NULL), KV_OK);
    assert_int_equal(kv_store_remove(r.store, &chain[2].head, NULL), KV_NOT_FOUND);
    assert_int_equal(kv_store_pin(r.store, &chain[1].head, true, NULL), KV_OK);
    assert_int_equal(kv_store_remove_namespace(r.store, ns, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 2);
    assert_int_equal(count_files(r.dir, ".b"), 0);
    rig_check(&r);
    /* a smaller budget than last time */
    for (int i = 0; i < 8; i++) {
        free(chain[i].payload);
        chain[i] = make_rec(KV_RECORD_BLOCK, i ? &chain[i - 1] : NULL, (uint32_t)i, 300000, 100);
        assert_int_equal(store_rec(&r, &chain[i], 1), KV_OK);
    }
    rig_close(&r);
    r.cfg.budget = 2 << 20;
    rig_open(&r);
    rig_check(&r);
    assert_true(kv_store_has(r.store, &chain[0].head));
    assert_false(kv_store_has(r.store, &chain[7].head));
    rig_free(&r);
    free_chain();
}

/* Two servers on one directory: one budget, published files stay whole, tmp of the living stays, of the dead goes. */
static void two_share(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 1 << 20, 1);
    rig_open(&r);
    kv_store *first = r.store, *second = NULL;
    assert_int_equal(kv_store_open(&second, &r.cfg, NULL), KV_OK);
    kv_store_on_gone(second, rig_gone, &r);
    rec block[40];
    for (uint32_t i = 0; i < 40; i++) {
        block[i] = make_rec(KV_RECORD_BLOCK, NULL, i, 30000, 100 * (i + 1));
        r.store = i % 2 ? first : second;
        (void)store_rec(&r, &block[i], kv_store_worth(100 * (i + 1), 0, 32768));
        rig_check(&r);
    }
    kv_store_stats a, b;
    kv_store_get_stats(&a, first);
    kv_store_get_stats(&b, second);
    assert_int_equal(a.bytes, b.bytes);
    assert_true(a.n_evicted > 0 && b.n_evicted > 0);
    /* The same record from both. */
    rec same = make_rec(KV_RECORD_BLOCK, NULL, 777, 30000, 100000);
    r.store = first;
    assert_int_equal(store_rec(&r, &same, 1e9), KV_OK);
    r.store = second;
    assert_int_equal(store_rec(&r, &same, 1e9), KV_OK);
    rig_check(&r);
    r.store = first;
    assert_int_equal(read_rec(&r, &same), KV_OK);
    /* What one evicts the other finds gone. */
    assert_int_equal(kv_store_remove(second, &same.head, NULL), KV_OK);
    assert_int_equal(read_rec(&r, &same), KV_NOT_FOUND);
    /* A third opening while one is writing. */
    assert_int_equal(kv_store_reserve(second, &same.head, 1e9, false, NULL), KV_OK);
    assert_int_equal(kv_store_write(second, &same.head, same.tokens, same.payload, NULL), KV_OK);
    kv_store *third = NULL;
    assert_int_equal(kv_store_open(&third, &r.cfg, NULL), KV_OK);
    assert_int_equal(count_files(r.dir, ".tmp"), 1);
    assert_int_equal(kv_store_commit(second, NULL, NULL, NULL), KV_OK);
    kv_store_close(third);
    rig_check(&r);
    kv_store_close(second);
    rig_check(&r);
    rig_close(&r);
    char left[300];
    snprintf(left, sizeof left, "%s/tmp/0123456789abcdef0123456789abcdef-1.tmp", r.dir);
    FILE *f = fopen(left, "wb"); /* of a process that was killed */
    fputs("half a record", f);
    fclose(f);
    rig_open(&r);
    assert_int_equal(count_files(r.dir, ".tmp"), 0);
    for (int i = 0; i < 40; i++) {
        if (kv_store_has(r.store, &block[i].head)) assert_int_equal(read_rec(&r, &block[i]), KV_OK);
        free(block[i].payload);
    }
    rig_check(&r);
    rig_free(&r);
    free(same.payload);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(publish_and_read),
        cmocka_unit_test(index_is_derived),
        cmocka_unit_test(damage_is_set_aside),
        cmocka_unit_test(quarantine_is_bounded),
        cmocka_unit_test(nothing_without_its_path),
        cmocka_unit_test(eviction_by_worth),
        cmocka_unit_test(worth_fades),
        cmocka_unit_test(no_thrash),
        cmocka_unit_test(limits_and_modes),
        cmocka_unit_test(housekeeping),
        cmocka_unit_test(two_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
