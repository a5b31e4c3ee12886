/* os/files: the real calls keep their contract; the faulty ones fail, fill up, flip and crash as they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/files.h"
#include "os/files_faulty.h"
#include "os/wipe.h"

static char base[128], root[160], grave[160];

static char *at(const char *name) {
    static char paths[8][256];
    static int i;
    char *p = paths[i++ % 8];
    snprintf(p, 256, "%s/%s", root, name);
    return p;
}

static int set_up(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(base, sizeof base, "%s/kvasir-files.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(base)) return -1;
    snprintf(root, sizeof root, "%s/root", base);
    snprintf(grave, sizeof grave, "%s/grave", base);
    return mkdir(root, 0700) == 0 && mkdir(grave, 0700) == 0 ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return wipe(base);
}

static int put(const kv_files *f, const char *path, const char *text, bool sync) {
    int fd = f->open(f, path, KV_OPEN_CREATE);
    if (fd < 0) return fd;
    int64_t status = f->write_at(f, fd, text, strlen(text), 0);
    if (status >= 0 && sync) status = f->sync(f, fd);
    f->close(f, fd);
    return status < 0 ? (int)status : 0;
}

static bool holds(const char *path, const char *text) {
    char got[64] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    size_t n = fread(got, 1, sizeof got - 1, file);
    fclose(file);
    return n == strlen(text) && memcmp(got, text, n) == 0;
}

static bool count_entry(void *ctx, const char *name) {
    (void)name;
    return ++*(int *)ctx < 2;
}

static void test_real_calls(void **state) {
    (void)state;
    const kv_files *f = kv_files_real();
    char buf[16] = {0};
    kv_file_info info;
    assert_int_equal(put(f, at("a"), "hello", true), 0);
    assert_int_equal(f->open(f, at("a"), KV_OPEN_CREATE), -EEXIST);
    assert_int_equal(f->open(f, at("none"), KV_OPEN_READ), -ENOENT);
    assert_int_equal(f->stat(f, at("a"), &info), 0);
    assert_int_equal(info.size, 5);
    assert_true(info.is_regular && info.is_mine && !info.is_dir && info.disk <= 8192);
    struct stat st;
    assert_int_equal(stat(at("a"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(info.mode, 0600);
    assert_int_equal(info.owner, geteuid());
    int fd = f->open(f, at("a"), KV_OPEN_READ);
    assert_true(fd >= 0);
    assert_int_equal(f->read_at(f, fd, buf, 16, 0), 5);
    assert_string_equal(buf, "hello");
    assert_int_equal(f->read_at(f, fd, buf, 16, 4), 1);
    assert_int_equal(f->read_at(f, fd, buf, 16, 99), 0);
    assert_int_equal(f->write_at(f, fd, "x", 1, 0), -EBADF);
    assert_int_equal(f->cached(f, fd, 0), 1);
    assert_int_equal(f->close(f, fd), 0);
    assert_int_equal(symlink(at("a"), at("link")), 0);
    assert_int_equal(f->open(f, at("link"), KV_OPEN_READ), -ELOOP);
    assert_int_equal(f->stat(f, at("link"), &info), 0);
    assert_false(info.is_regular);
    assert_int_equal(f->remove(f, at("link")), 0);
    assert_int_equal(f->remove(f, at("link")), -ENOENT);
    assert_int_equal(f->make_dir(f, at("d")), 0);
    assert_int_equal(f->make_dir(f, at("d")), 0);
    assert_int_equal(f->make_dir(f, at("a")), -ENOTDIR);
    assert_int_equal(stat(at("d"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(f->rename(f, at("a"), at("d/b")), 0);
    assert_int_equal(f->remove_dir(f, at("d")), -ENOTEMPTY);
    assert_int_equal(f->sync_dir(f, at("d")), 0);
    assert_int_equal(f->sync_dir(f, at("none")), -ENOENT);
    assert_int_equal(put(f, at("d/c"), "", false), 0);
    assert_int_equal(put(f, at("d/e"), "", false), 0);
    int n = 0;
    assert_int_equal(f->list(f, at("d"), count_entry, &n), 0);
    assert_int_equal(n, 2); /* false ended it */
    assert_int_equal(f->list(f, at("none"), count_entry, &n), -ENOENT);
    kv_disk_info disk;
    assert_int_equal(f->disk(f, root, &disk), 0);
    assert_true(disk.total > 0 && disk.free <= disk.total && !disk.read_only);
}

static void test_lock_excludes(void **state) {
    (void)state;
    const kv_files *f = kv_files_real();
    int fd = f->lock(f, at("lock"), false);
    assert_true(fd >= 0);
    assert_int_equal(f->lock(f, at("lock"), false), -EWOULDBLOCK);
    assert_int_equal(f->write_at(f, fd, "ab", 2, 0), 2);
    assert_int_equal(f->close(f, fd), 0);
    fd = f->lock(f, at("lock"), true);
    assert_true(fd >= 0);
    f->close(f, fd);
}

static void test_direct_reads(void **state) {
    (void)state;
    const kv_files *f = kv_files_real();
    char *page = aligned_alloc(4096, 8192);
    memset(page, 'x', 8192);
    int fd = f->open(f, at("p"), KV_OPEN_CREATE);
    assert_int_equal(f->write_at(f, fd, page, 8192, 0), 8192);
    f->close(f, fd);
    memset(page, 0, 8192);
    fd = f->open(f, at("p"), KV_OPEN_READ_DIRECT);
    assert_true(fd >= 0);
    assert_int_equal(f->read_at(f, fd, page, 4096, 4096), 4096);
    assert_int_equal(page[4095], 'x');
    f->close(f, fd);
    free(page);
}

static void test_faults(void **state) {
    (void)state;
    kv_files_faulty *ff = kv_files_faulty_new(kv_files_real(), root, grave, 1);
    const kv_files *f = kv_files_faulty_files(ff);
    kv_files_faulty_fail(ff, KV_CALL_OPEN, 2, 2, EMFILE);
    assert_int_equal(put(f, at("1"), "a", false), 0);
    assert_int_equal(put(f, at("2"), "a", false), -EMFILE);
    assert_int_equal(put(f, at("2"), "a", false), -EMFILE);
    assert_int_equal(put(f, at("2"), "a", false), 0);
    kv_files_faulty_fail(ff, KV_CALL_WRITE, 1, 1, EIO);
    assert_int_equal(put(f, at("3"), "abcd", false), -EIO);
    assert_true(holds(at("3"), "ab"));
    kv_files_faulty_fail(ff, KV_CALL_ANY, 0, 0, 0);
    kv_files_faulty_room(ff, 3);
    assert_int_equal(put(f, at("4"), "ab", false), 0);
    assert_int_equal(put(f, at("5"), "abcd", false), -ENOSPC);
    assert_true(holds(at("5"), "a"));
    kv_files_faulty_room(ff, UINT64_MAX);
    kv_files_faulty_flip(ff, 2);
    char buf[4] = {0};
    int fd = f->open(f, at("4"), KV_OPEN_READ);
    f->read_at(f, fd, buf, 2, 0);
    assert_memory_equal(buf, "ab", 2);
    f->read_at(f, fd, buf, 2, 0);
    assert_memory_not_equal(buf, "ab", 2);
    f->read_at(f, fd, buf, 2, 0);
    assert_memory_equal(buf, "ab", 2);
    assert_int_equal(kv_files_faulty_open_files(ff), 1);
    f->close(f, fd);
    assert_int_equal(kv_files_faulty_open_files(ff), 0);
    assert_int_equal(kv_files_faulty_count(ff, KV_CALL_READ), 3);
    kv_files_faulty_free(ff);
}

/* What the model of a power cut promises, in its worst form: only what was synced, names and data, is left. */
static void test_crash_loses_what_was_not_synced(void **state) {
    (void)state;
    kv_files_faulty *ff = kv_files_faulty_new(kv_files_real(), root, grave, 2);
    const kv_files *f = kv_files_faulty_files(ff);
    assert_int_equal(f->make_dir(f, at("kept")), 0);
    assert_int_equal(f->make_dir(f, at("tmp")), 0);
    assert_int_equal(put(f, at("kept/old"), "old", true), 0);
    assert_int_equal(f->sync_dir(f, root), 0);
    assert_int_equal(f->sync_dir(f, at("kept")), 0);

    assert_int_equal(put(f, at("tmp/a"), "whole", true), 0);
    assert_int_equal(f->rename(f, at("tmp/a"), at("kept/a")), 0);
    assert_int_equal(f->sync_dir(f, at("kept")), 0); /* published */
    assert_int_equal(put(f, at("tmp/b"), "data not synced", false), 0);
    assert_int_equal(f->rename(f, at("tmp/b"), at("kept/b")), 0);
    assert_int_equal(f->sync_dir(f, at("kept")), 0);
    assert_int_equal(put(f, at("tmp/c"), "name not synced", true), 0);
    assert_int_equal(f->rename(f, at("tmp/c"), at("kept/c")), 0);
    assert_int_equal(f->remove(f, at("kept/old")), 0); /* and not synced */
    assert_int_equal(f->make_dir(f, at("new")), 0);
    assert_int_equal(put(f, at("new/d"), "in a lost folder", true), 0);
    assert_int_equal(f->sync_dir(f, at("new")), 0);

    kv_files_faulty_crash(ff, true);
    kv_file_info info;
    assert_int_equal(f->stat(f, root, &info), -EIO);
    kv_files_faulty_revive(ff);
    assert_true(holds(at("kept/a"), "whole"));
    assert_int_equal(access(at("kept/b"), F_OK), 0);
    assert_false(holds(at("kept/b"), "data not synced"));
    assert_int_not_equal(access(at("kept/c"), F_OK), 0);
    assert_true(holds(at("kept/old"), "old"));
    assert_int_not_equal(access(at("new"), F_OK), 0);
    kv_files_faulty_free(ff);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_real_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lock_excludes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_direct_reads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_crash_loses_what_was_not_synced, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
