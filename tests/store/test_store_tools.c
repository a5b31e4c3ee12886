/* store: what tools beside the server call, and a namespace that travels as a file. */
#include "rig.h"

#include "store/transfer.h"

static kv_hash ns_of(const char *name) {
    return kv_hash_bytes(name, strlen(name));
}

/* A record of `name`'s namespace below `parent` (NULL: the namespace itself). */
static rec below(const char *name, const rec *parent, kv_record_kind kind, uint32_t salt) {
    rec r = make_rec(kind, parent, salt, 5000 + salt, 100);
    r.head.ns = ns_of(name);
    r.head.parent = parent ? parent->head.key : r.head.ns;
    if (kind == KV_RECORD_WHOLE && parent) { /* has the tokens of all its path */
        memmove(r.tokens + 16, r.tokens, 16 * sizeof *r.tokens);
        memcpy(r.tokens, parent->tokens, 16 * sizeof *r.tokens);
        r.head.n_tokens = 32;
        r.head.key = kv_hash_chain(r.head.parent, r.tokens + 16, 16);
    } else {
        r.head.key = kv_hash_chain(r.head.parent, r.tokens, 16);
    }
    return r;
}

enum { N = 6 };
static rec recs[N];

/* 0 ── 1 ── 2, a window of 1, a state at the end of 2, a whole record at the end of 1 */
static void fill(rig *r, const char *name) {
    recs[0] = below(name, NULL, KV_RECORD_BLOCK, 1);
    recs[1] = below(name, &recs[0], KV_RECORD_BLOCK, 2);
    recs[2] = below(name, &recs[1], KV_RECORD_BLOCK, 3);
    recs[3] = below(name, &recs[0], KV_RECORD_WINDOW, 2);
    recs[4] = below(name, &recs[1], KV_RECORD_CHECKPOINT, 3);
    recs[5] = below(name, &recs[0], KV_RECORD_WHOLE, 2);
    for (int i = 0; i < N; i++) assert_int_equal(store_rec(r, &recs[i], 1), KV_OK);
}
static void drop(void) {
    for (int i = 0; i < N; i++) free(recs[i].payload);
}

static void count_row(void *ctx, const kv_store_row *row) {
    (void)row;
    ++*(int *)ctx;
}
static int count_all(kv_store *s) {
    int n = 0;
    assert_int_equal(kv_store_load_all(s, count_row, &n, NULL), KV_OK);
    return n;
}

/* A tool goes by the budget that the server named, sees the server, and read-only it sees the same. */
static void last_budget_and_sharers(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 24 << 20, 1);
    rig_open(&r);
    fill(&r, "a");
    kv_store *tool;
    kv_store_stats mine, theirs;
    kv_store_config cfg = r.cfg;
    cfg.budget = KV_STORE_BUDGET_LAST;
    kv_store_get_stats(&mine, r.store);
    assert_true(mine.bytes_written_today > 0);
    for (int read_only = 0; read_only < 2; read_only++) {
        cfg.read_only = read_only;
        assert_int_equal(kv_store_open(&tool, &cfg, NULL), KV_OK);
        kv_store_get_stats(&theirs, tool);
        assert_int_equal(theirs.budget, 24 << 20);
        assert_int_equal(theirs.bytes_written_today, mine.bytes_written_today);
        assert_int_equal(count_all(tool), N);
        assert_int_equal(kv_store_sharers(tool), 1);
        assert_int_equal(kv_store_sharers(r.store), !read_only);
        kv_store_close(tool);
    }
    rig_close(&r);
    cfg.read_only = false;
    assert_int_equal(kv_store_open(&tool, &cfg, NULL), KV_OK); /* also when nobody else is there */
    kv_store_get_stats(&theirs, tool);
    assert_int_equal(theirs.budget, 24 << 20);
    assert_int_equal(kv_store_sharers(tool), 0);
    kv_store_close(tool);
    char path[256];
    snprintf(path, sizeof path, "%s/accounts", r.dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(kv_store_open(&tool, &cfg, NULL), KV_OK); /* forgotten: no limit */
    kv_store_get_stats(&theirs, tool);
    assert_true(theirs.budget == KV_STORE_BUDGET_LAST);
    kv_store_close(tool);
    drop();
    rig_free(&r);
}

static void old_ones_go_leaves_first(void **state) {
    (void)state;
    rig r;
    uint64_t bytes, records;
    rig_init(&r, 24 << 20, 1);
    rig_open(&r);
    fill(&r, "a");
    int64_t before = r.now + 1;
    r.now += 1000;
    kv_store_touch(r.store, &recs[4].head, 1); /* hangs on 0, 1 and 2 */
    assert_int_equal(kv_store_remove_old(r.store, ns_of("b"), before, false, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 0);
    assert_int_equal(kv_store_remove_old(r.store, ns_of("a"), before, true, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 2);
    assert_int_equal(count_all(r.store), N);
    rig_check(&r);
    assert_int_equal(kv_store_remove_old(r.store, ns_of("a"), before, false, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 2);
    assert_true(bytes > 0);
    for (int i = 0; i < N; i++) assert_int_equal(kv_store_has(r.store, &recs[i].head), i != 3 && i != 5);
    rig_check(&r);
    drop();
    rig_free(&r);
}

/* What a tool pins, a server that was open before does not evict, nor what it hangs on. */
static void pin_of_another_process(void **state) {
    (void)state;
    rig r;
    uint64_t bytes, records;
    rig_init(&r, 24 << 20, 1);
    rig_open(&r);
    fill(&r, "a");
    kv_store *tool;
    kv_store_config cfg = r.cfg;
    cfg.budget = KV_STORE_BUDGET_LAST;
    assert_int_equal(kv_store_open(&tool, &cfg, NULL), KV_OK);
    assert_int_equal(kv_store_pin(tool, &recs[1].head, true, NULL), KV_OK);
    kv_store_close(tool);
    assert_int_equal(kv_store_remove_old(r.store, ns_of("a"), r.now + 1, false, &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 4);
    assert_true(kv_store_has(r.store, &recs[0].head) && kv_store_has(r.store, &recs[1].head));
    assert_int_equal(read_rec(&r, &recs[1]), KV_OK);
    rig_check(&r);
    assert_int_equal(kv_store_remove_namespace(r.store, ns_of("a"), &bytes, &records, NULL), KV_OK);
    assert_int_equal(records, 2);
    assert_int_equal(count_files(r.dir, ".pin"), 0);
    rig_check(&r);
    drop();
    rig_free(&r);
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 0x10, f);
    fclose(f);
}

static void quarantine_of_a_namespace(void **state) {
    (void)state;
    rig r;
    char path[512];
    uint64_t bytes, files;
    kv_hash a = ns_of("a"), b = ns_of("b");
    rig_init(&r, 24 << 20, 1);
    rig_open(&r);
    fill(&r, "a");
    rec_path(path, &r, &recs[2]);
    flip(path, 4096);
    assert_int_equal(read_rec(&r, &recs[2]), KV_CORRUPT);
    rec_path(path, &r, &recs[4]);
    flip(path, 0); /* it no longer says whose it is */
    assert_int_equal(read_rec(&r, &recs[4]), KV_CORRUPT);
    assert_int_equal(kv_store_clear_quarantine(r.store, &b, true, &bytes, &files, NULL), KV_OK);
    assert_int_equal(files, 1);
    assert_int_equal(kv_store_clear_quarantine(r.store, &a, true, &bytes, &files, NULL), KV_OK);
    assert_int_equal(files, 2);
    assert_int_equal(kv_store_clear_quarantine(r.store, &b, false, &bytes, &files, NULL), KV_OK);
    assert_int_equal(files, 1);
    rig_check(&r);
    assert_int_equal(kv_store_clear_quarantine(r.store, NULL, false, &bytes, &files, NULL), KV_OK);
    assert_int_equal(files, 1);
    rig_check(&r);
    assert_int_equal(kv_store_clear_quarantine(r.store, NULL, false, &bytes, &files, NULL), KV_OK);
    assert_int_equal(files, 0);
    drop();
    rig_free(&r);
}

/* ── export and import ── */

static kv_status take_in(rig *r, const char *file, kv_hash ns, kv_transfer_sum *sum, kv_error *err) {
    kv_import *m;
    *sum = (kv_transfer_sum){0};
    kv_status status = kv_import_open(&m, r->cfg.files, file, err);
    if (status == KV_OK) status = kv_import_verify(m, NULL, NULL, err);
    if (status == KV_OK) status = kv_import_store(sum, m, r->store, ns, NULL, NULL, err);
    kv_import_close(m);
    return status;
}

static void same_records_below(rig *r, kv_hash ns) {
    for (int i = 0; i < N; i++) {
        rec x = recs[i];
        int own = x.head.e - x.head.q, depth = x.head.q / 16;
        x.head.ns = x.head.parent = ns;
        for (int k = 0; k < depth; k++) x.head.parent = kv_hash_chain(x.head.parent, recs[k].tokens, 16);
        x.head.key = kv_hash_chain(x.head.parent, x.tokens + x.head.n_tokens - own, (size_t)own);
        assert_int_equal(read_rec(r, &x), KV_OK);
    }
}

static void travels(void **state) {
    (void)state;
    rig from, to;
    char file[256];
    struct stat st;
    kv_transfer_sum sum;
    kv_error err;
    rig_init(&from, 24 << 20, 1);
    rig_init(&to, 24 << 20, 2);
    rig_open(&from);
    rig_open(&to);
    fill(&from, "a");
    snprintf(file, sizeof file, "%s/out.kvx", from.base);
    assert_int_equal(kv_transfer_export(&sum, from.store, ns_of("a"), "{\"model\":\"m\"}", file, NULL, NULL, &err),
                     KV_OK);
    assert_int_equal(sum.records, N);
    assert_int_equal(sum.left_out, 0);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(count_files(from.base, ".tmp"), 0);
    assert_int_equal(kv_transfer_export(&sum, from.store, ns_of("a"), "", file, NULL, NULL, &err), KV_INVALID);
    for (int i = 0; i < 2; i++) { /* as it was, and under another namespace; twice each */
        kv_hash ns = ns_of(i ? "other" : "a");
        assert_int_equal(take_in(&to, file, ns, &sum, &err), KV_OK);
        assert_int_equal(sum.records, N);
        same_records_below(&to, ns);
        assert_int_equal(take_in(&to, file, ns, &sum, &err), KV_OK);
        assert_int_equal(sum.records, 0);
        assert_int_equal(sum.left_out, N);
        rig_check(&to);
    }
    rig_close(&to);
    rig_open(&to);
    same_records_below(&to, ns_of("other"));
    drop();
    rig_free(&from);
    rig_free(&to);
}

/* No byte of the file can be changed, and no end cut off, without being seen, before anything is stored. */
static void damaged_file_is_refused(void **state) {
    (void)state;
    rig r;
    char file[256];
    struct stat st;
    kv_transfer_sum sum;
    kv_error err;
    rig_init(&r, 24 << 20, 1);
    rig_open(&r);
    fill(&r, "a");
    snprintf(file, sizeof file, "%s/out.kvx", r.base);
    assert_int_equal(kv_transfer_export(&sum, r.store, ns_of("a"), "{\"model\":\"m\"}", file, NULL, NULL, &err), KV_OK);
    assert_int_equal(stat(file, &st), 0);
    uint64_t seed = 4711;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 400; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        long at = i < 270 ? i : (long)((seed >> 33) % (uint64_t)st.st_size); /* all of the header, and here and there */
        if (at >= 256 + 13 && at < 4096) continue;                           /* zeros that nobody reads */
        flip(file, at);
        kv_status status = take_in(&r, file, ns_of("b"), &sum, &err);
        if (status != KV_CORRUPT && status != KV_UNSUPPORTED) fail_msg("byte %ld: %d", at, status);
        flip(file, at);
    }
    assert_int_equal(count_all(r.store), N);
    assert_int_equal(take_in(&r, file, ns_of("b"), &sum, &err), KV_OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(truncate(file, st.st_size * (5 - i) / 6), 0);
        assert_int_equal(take_in(&r, file, ns_of("c"), &sum, &err), KV_CORRUPT);
    }
    assert_int_equal(unlink(file), 0);
    assert_int_equal(take_in(&r, file, ns_of("c"), &sum, &err), KV_IO);
    drop();
    rig_free(&r);
}

/* A block that is damaged, and what hangs on it, stay out; a full cache ends an import with what fits. */
static void what_cannot_travel(void **state) {
    (void)state;
    rig r, small;
    char file[256], path[512];
    kv_transfer_sum sum;
    kv_error err;
    rig_init(&r, 24 << 20, 1);
    rig_open(&r);
    fill(&r, "a");
    rec_path(path, &r, &recs[1]);
    flip(path, 4096);
    snprintf(file, sizeof file, "%s/out.kvx", r.base);
    assert_int_equal(kv_transfer_export(&sum, r.store, ns_of("a"), "", file, NULL, NULL, &err), KV_OK);
    assert_int_equal(sum.records, 3); /* 0, the window and the whole record */
    assert_int_equal(sum.left_out, 3);
    drop();
    rig_close(&r);
    rig_open(&r);
    rec big[3];
    for (uint32_t i = 0; i < 3; i++) {
        big[i] = make_rec(KV_RECORD_BLOCK, i ? &big[i - 1] : NULL, 50 + i, 600 << 10, 100);
        big[i].head.ns = ns_of("big");
        if (!i) big[i].head.parent = big[i].head.ns;
        big[i].head.key =
            kv_hash_chain(big[i].head.parent = i ? big[i - 1].head.key : big[i].head.ns, big[i].tokens, 16);
        assert_int_equal(store_rec(&r, &big[i], 1), KV_OK);
    }
    assert_int_equal(unlink(file), 0);
    assert_int_equal(kv_transfer_export(&sum, r.store, ns_of("big"), "", file, NULL, NULL, &err), KV_OK);
    assert_int_equal(sum.records, 3);
    rig_init(&small, 1 << 20, 3);
    rig_open(&small);
    assert_int_equal(take_in(&small, file, ns_of("x"), &sum, &err), KV_NO_MEMORY);
    assert_int_equal(sum.records, 1);
    assert_int_equal(count_all(small.store), 1);
    rig_check(&small);
    for (int i = 0; i < 3; i++) free(big[i].payload);
    rig_free(&small);
    rig_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_budget_and_sharers),
        cmocka_unit_test(old_ones_go_leaves_first),
        cmocka_unit_test(pin_of_another_process),
        cmocka_unit_test(quarantine_of_a_namespace),
        cmocka_unit_test(travels),
        cmocka_unit_test(damaged_file_is_refused),
        cmocka_unit_test(what_cannot_travel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
