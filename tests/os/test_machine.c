/* The readers of /proc and /sys run on made-up machines: each test writes a small tree below a temporary directory. */
#define _GNU_SOURCE 1 /* nftw */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/machine.h"
#include "os/machine_linux.h"

static char root[128];

static int make_root(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/kvasir-machine.XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int drop(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static int remove_root(void **state) {
    (void)state;
    return nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *text) {
    kv_buf full = {0}, dir = {0};
    kv_error err;
    kv_buf_addf(&full, "%s%s", root, path);
    kv_buf_add(&dir, full.data, (size_t)(strrchr(full.data, '/') - full.data));
    if (kv_dir_make(dir.data, &err) != KV_OK) fail_msg("%s", err.message);
    FILE *f = fopen(full.data, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    kv_buf_free(&full);
    kv_buf_free(&dir);
}

static void read_back(kv_buf *out, const char *path) {
    kv_error err = {0};
    if (kv_file_read(out, path, 1 << 20, &err) != KV_OK) fail_msg("%s", err.message);
}

static void test_dir_make(void **state) {
    (void)state;
    char path[256];
    kv_error err;
    struct stat st;
    snprintf(path, sizeof path, "%s/a//b/c/", root);
    assert_int_equal(kv_dir_make(path, NULL), KV_OK);
    assert_int_equal(kv_dir_make(path, NULL), KV_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    put("/a/file", "x");
    snprintf(path, sizeof path, "%s/a/file/d", root);
    assert_int_equal(kv_dir_make(path, &err), KV_IO);
    assert_non_null(strstr(err.message, "a/file"));
    snprintf(path, sizeof path, "%s/a/file", root);
    assert_int_equal(kv_dir_make(path, &err), KV_IO);
    assert_int_equal(kv_dir_make("", &err), KV_INVALID);
    assert_int_equal(kv_dir_make("/", &err), KV_OK);
}

static int count_entries;
static int count(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)path, (void)st, (void)flag, (void)ftw;
    count_entries++;
    return 0;
}

static void test_publish_and_read(void **state) {
    (void)state;
    char path[256];
    kv_buf got = {0};
    kv_error err;
    struct stat st;
    snprintf(path, sizeof path, "%s/facts.json", root);
    assert_int_equal(kv_file_read(&got, path, 100, &err), KV_NOT_FOUND);
    assert_int_equal(err.status, KV_NOT_FOUND);
    assert_int_equal(kv_file_publish(path, "one\0two", 7, &err), KV_OK);
    read_back(&got, path);
    assert_int_equal(got.len, 7);
    assert_memory_equal(got.data, "one\0two", 8); /* with the NUL behind */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    size_t n = 300000;
    char *large = kv_alloc(n);
    memset(large, 'k', n);
    assert_int_equal(kv_file_publish(path, large, n, &err), KV_OK);
    read_back(&got, path);
    assert_int_equal(got.len, n);
    assert_memory_equal(got.data, large, n);
    assert_int_equal(kv_file_read(&got, path, n, NULL), KV_OK);
    assert_int_equal(kv_file_read(&got, path, n - 1, &err), KV_TOO_LARGE);
    assert_int_equal(got.len, 0);
    assert_int_equal(kv_file_publish(path, "", 0, &err), KV_OK);
    read_back(&got, path);
    assert_int_equal(got.len, 0);
    free(large);

    /* a failed publish says where, keeps the old file and leaves nothing behind */
    snprintf(path, sizeof path, "%s/missing/facts.json", root);
    assert_int_equal(kv_file_publish(path, "x", 1, &err), KV_IO);
    snprintf(path, sizeof path, "%s/dir", root);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(kv_file_publish(path, "x", 1, &err), KV_IO); /* a file cannot replace a directory */
    assert_non_null(strstr(err.message, "/dir"));
    count_entries = 0;
    assert_int_equal(nftw(root, count, 8, FTW_PHYS), 0);
    assert_int_equal(count_entries, 3); /* the root, dir, facts.json */

    assert_int_equal(kv_file_read(&got, path, 100, &err), KV_INVALID); /* a directory */
    snprintf(path, sizeof path, "%s/fifo", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(kv_file_read(&got, path, 100, &err), KV_INVALID); /* and no hanging */
    kv_buf_free(&got);
}

static void test_dirs(void **state) {
    (void)state;
    kv_buf out = {0};
    kv_error err;
    setenv("HOME", "/home/k", 1);
#ifdef __APPLE__
    assert_int_equal(kv_dir_state(&out, &err), KV_OK);
    assert_string_equal(out.data, "/home/k/Library/Application Support/kvasir");
    kv_buf_clear(&out);
    assert_int_equal(kv_dir_cache(&out, &err), KV_OK);
    assert_string_equal(out.data, "/home/k/Library/Caches/kvasir");
#else
    setenv("XDG_STATE_HOME", "/var/state", 1);
    assert_int_equal(kv_dir_state(&out, &err), KV_OK);
    assert_string_equal(out.data, "/var/state/kvasir");
    kv_buf_clear(&out);
    setenv("XDG_STATE_HOME", "relative", 1);
    assert_int_equal(kv_dir_state(&out, &err), KV_OK);
    assert_string_equal(out.data, "/home/k/.local/state/kvasir");
    unsetenv("XDG_STATE_HOME");
    kv_buf_clear(&out);
    setenv("XDG_CACHE_HOME", "/var/cache", 1);
    assert_int_equal(kv_dir_cache(&out, &err), KV_OK);
    assert_string_equal(out.data, "/var/cache/kvasir");
    kv_buf_clear(&out);
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(kv_dir_cache(&out, &err), KV_OK);
    assert_string_equal(out.data, "/home/k/.cache/kvasir");
    static const char *const rows[][2] = {
        /* what systemd made, and what becomes of it */
        {"/var/cache/kvasir", "/var/cache/kvasir"},
        {"/var/cache/private/kvasir/", "/var/cache/private/kvasir"},
        {"/var/cache/kvasir:/var/cache/more", "/var/cache/kvasir"},
        {"/var/cache/llama-swap", "/var/cache/llama-swap/kvasir"},
        {"/x", "/x/kvasir"},
        {"relative", "/home/k/.cache/kvasir"},
        {"", "/home/k/.cache/kvasir"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kv_buf_clear(&out);
        setenv("CACHE_DIRECTORY", rows[i][0], 1);
        assert_int_equal(kv_dir_cache(&out, &err), KV_OK);
        assert_string_equal(out.data, rows[i][1]);
    }
    unsetenv("CACHE_DIRECTORY");
    setenv("STATE_DIRECTORY", "/var/lib/kvasir", 1);
    setenv("XDG_STATE_HOME", "/var/state", 1); /* the manager's is meant for this very service */
    kv_buf_clear(&out);
    assert_int_equal(kv_dir_state(&out, &err), KV_OK);
    assert_string_equal(out.data, "/var/lib/kvasir");
    unsetenv("STATE_DIRECTORY");
    unsetenv("XDG_STATE_HOME");
#endif
    kv_buf_clear(&out);
    unsetenv("HOME");
    assert_int_equal(kv_dir_state(&out, &err), KV_NOT_FOUND);
    assert_int_equal(kv_dir_cache(&out, &err), KV_NOT_FOUND);
    assert_int_equal(kv_dir_executable(&out, &err), KV_OK);
    assert_int_equal(out.data[0], '/');
    kv_buf_adds(&out, "/test_machine");
    assert_int_equal(access(out.data, X_OK), 0);
    kv_buf_free(&out);
}

static void test_this_machine(void **state) {
    (void)state;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int cores = kv_machine_cores();
    assert_in_range(cores, 1, online);
    assert_in_range(kv_machine_processors(), cores, online);
    uint64_t total = kv_machine_memory_total(), available = kv_machine_memory_available(), rss = kv_machine_rss();
    assert_true(total > 64u << 20);
    assert_true(available > 0 && available <= total);
    assert_true(rss > 100000 && rss < total);
    kv_buf one = {0}, two = {0};
    kv_machine_fingerprint(&one);
    kv_machine_fingerprint(&two);
    assert_string_equal(one.data, two.data);
    assert_non_null(strstr(one.data, " cores; "));
    kv_buf_free(&one);
    kv_buf_free(&two);
    uint64_t files = kv_machine_raise_open_files(0);
    assert_true(files > 0);
    assert_true(kv_machine_raise_open_files(files + 1) >= files);
}

#ifdef __linux__

#define GIB ((uint64_t)1 << 30)

static void put_cpu(int cpu, const char *file, const char *siblings) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, file);
    put(path, siblings);
}

static const int all[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void test_cores_of_hyperthreads(void **state) {
    (void)state;
    assert_int_equal(kv_linux_cores(root, all, 6), 6); /* an empty tree: every processor is a core */
    const char *pairs[4] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};
    for (int i = 0; i < 8; i++) put_cpu(i, i % 2 ? "core_cpus_list" : "thread_siblings_list", pairs[i % 4]);
    assert_int_equal(kv_linux_cores(root, all, 8), 4);
    const int half[] = {0, 4}, odd[] = {1, 4, 5, 7};
    assert_int_equal(kv_linux_cores(root, half, 2), 1);
    assert_int_equal(kv_linux_cores(root, odd, 4), 3);
}

static void test_cores_fast_and_slow(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) put_cpu(i, "core_cpus_list", (const char *[]){"0-1", "2-3", "4-5", "6-7"}[i / 2]);
    for (int i = 8; i < 16; i++) {
        char self[8];
        snprintf(self, sizeof self, "%d", i);
        put_cpu(i, "core_cpus_list", self);
    }
    assert_int_equal(kv_linux_cores(root, all, 16), 12);
    put("/sys/devices/cpu_core/cpus", "0-7\n");
    assert_int_equal(kv_linux_cores(root, all, 16), 4);
    assert_int_equal(kv_linux_cores(root, all + 8, 5), 5); /* bound to slow cores: those, then */
}

/* cgroup v2, three levels deep: each level's limit holds. */
static void test_cgroup_v2(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/user.slice/kv.service\n");
    put("/proc/self/mountinfo", "22 1 0:21 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
    assert_int_equal(kv_linux_cores(root, all, 8), 8);
    assert_int_equal(kv_linux_memory_total(root), 16 * GIB);
    assert_int_equal(kv_linux_memory_available(root), 8 * GIB);

    put("/sys/fs/cgroup/user.slice/kv.service/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "350000 100000\n");
    put("/sys/fs/cgroup/user.slice/kv.service/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "4294967296\n");
    assert_int_equal(kv_linux_cores(root, all, 8), 3);
    assert_int_equal(kv_linux_memory_total(root), 4 * GIB);

    put("/sys/fs/cgroup/user.slice/kv.service/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/user.slice/kv.service/memory.high", "3221225472\n");
    assert_int_equal(kv_linux_cores(root, all, 8), 1); /* half a CPU is still one thread */
    assert_int_equal(kv_linux_memory_total(root), 3 * GIB);

    /* 2 GiB used of 3, of which 1 GiB is page cache */
    put("/sys/fs/cgroup/user.slice/kv.service/memory.current", "2147483648\n");
    assert_int_equal(kv_linux_memory_available(root), 1 * GIB);
    put("/sys/fs/cgroup/user.slice/kv.service/memory.stat",
        "anon 1073741824\ninactive_file 805306368\nactive_file 268435456\n");
    assert_int_equal(kv_linux_memory_available(root), 2 * GIB);
    put("/sys/fs/cgroup/user.slice/memory.current", "4294967296\n"); /* the neighbours have filled the parent */
    assert_int_equal(kv_linux_memory_available(root), 0);
}

/* v1 in a container that sees its own group as the mount point, v2 mounted beside it without controllers. */
static void test_cgroup_v1(void **state) {
    (void)state;
    put("/proc/self/cgroup",
        "9:name=systemd:/docker/ab\n4:memory:/docker/ab/in\n2:cpu,cpuacct:/docker/ab\n0::/docker/ab\n");
    put("/proc/self/mountinfo",
        "30 1 0:3 / / rw - overlay overlay rw,lowerdir=/x\n"
        "31 30 0:4 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro master:11 - cgroup cgroup rw,cpu,cpuacct\n"
        "32 30 0:5 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "33 30 0:6 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n");
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:   15728640 kB\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/unified/memory.max", "1\n"); /* not ours */
    put("/sys/fs/cgroup/unified/cpu.max", "1 100000\n");
    assert_int_equal(kv_linux_cores(root, all, 4), 4);
    assert_int_equal(kv_linux_memory_total(root), 16 * GIB);
    assert_int_equal(kv_linux_memory_available(root), 15 * GIB);

    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6442450944\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4294967296\n");
    put("/sys/fs/cgroup/memory/memory.stat",
        "cache 5\ninactive_file 7\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
    assert_int_equal(kv_linux_cores(root, all, 4), 2);
    assert_int_equal(kv_linux_memory_total(root), 6 * GIB);
    assert_int_equal(kv_linux_memory_available(root), 3 * GIB);
    put("/sys/fs/cgroup/memory/in/memory.limit_in_bytes", "1073741824\n"); /* the inner group */
    assert_int_equal(kv_linux_memory_total(root), 1 * GIB);
}

/* What a kernel never writes must not crash or read as a limit. */
static void test_damaged_trees(void **state) {
    (void)state;
    static const char *const groups[] = {
        "", "\n", ":", "::", "0:", "0::", "0::/../../x", "cpu", "0::/a\n0::/b\n", "1:memory,cpu:\n"};
    put("/proc/self/mountinfo",
        "a\n - \n1 2 3 - cgroup2 x\n1 2 3 /r /sys/fs/cgroup - cgroup2 cgroup2 rw\n - cgroup2 c r");
    put("/proc/meminfo", "MemTotal: 1024 kB\nMemAvailable");
    put("/sys/fs/cgroup/cpu.max", "99999999999999999999999 0\n");
    put("/sys/fs/cgroup/memory.max", "lots\n");
    put("/sys/devices/cpu_core/cpus", "x-y,,9-\n");
    put_cpu(0, "core_cpus_list", "\n");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        put("/proc/self/cgroup", groups[i]);
        assert_int_equal(kv_linux_cores(root, all, 2), 2);
        assert_int_equal(kv_linux_memory_total(root), 1 << 20);
        assert_int_equal(kv_linux_memory_available(root), 0);
    }
    kv_buf out = {0};
    put("/proc/cpuinfo", "\n\nmodel name\nflags\n:\nflags\t:");
    kv_linux_fingerprint(&out, root, 2);
    assert_non_null(strstr(out.data, "; 2 cores; "));
    kv_buf_free(&out);
}

static void fingerprint(kv_buf *out, const char *cpuinfo, int cores) {
    put("/proc/cpuinfo", cpuinfo);
    kv_buf_clear(out);
    kv_linux_fingerprint(out, root, cores);
}

static void test_fingerprint(void **state) {
    (void)state;
    kv_buf a = {0}, b = {0};
    fingerprint(&a, "processor\t: 0\nmodel\t\t: 1\nmodel name\t: Fast CPU 9\ncpu MHz\t: 1000.0\nflags\t\t: fpu avx2\n",
                2);
    assert_memory_equal(a.data, "Fast CPU 9; 2 cores; ", 21);
    fingerprint(&b,
                "processor\t: 0\nmodel name\t: Fast CPU 9\ncpu MHz\t: 2222.2\nflags\t\t: fpu avx2\n\n"
                "processor\t: 1\nmodel name\t: Fast CPU 9\ncpu MHz\t: 1234.5\nflags\t\t: fpu avx2\n",
                2);
    assert_string_equal(a.data, b.data);
    fingerprint(&b, "processor\t: 0\nmodel name\t: Fast CPU 9\nflags\t\t: fpu avx2 avx512f\n", 2);
    assert_string_not_equal(a.data, b.data);
    fingerprint(&b, "processor\t: 0\nmodel name\t: Fast CPU 9\nflags\t\t: fpu avx2\n", 4);
    assert_string_not_equal(a.data, b.data);

    fingerprint(&a,
                "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd05\n\n"
                "Hardware : Board\nModel : Small Board 5\n",
                4);
    assert_memory_equal(a.data, "Small Board 5; 4 cores; ", 24);
    fingerprint(&b,
                "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0c\n\n"
                "Hardware : Board\nModel : Small Board 5\n",
                4);
    assert_string_not_equal(a.data, b.data);
    kv_buf_free(&a);
    kv_buf_free(&b);
}

#endif

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_ROOT(test_dir_make),
        WITH_ROOT(test_publish_and_read),
        cmocka_unit_test(test_dirs),
        cmocka_unit_test(test_this_machine),
#ifdef __linux__
        WITH_ROOT(test_cores_of_hyperthreads),
        WITH_ROOT(test_cores_fast_and_slow),
        WITH_ROOT(test_cgroup_v2),
        WITH_ROOT(test_cgroup_v1),
        WITH_ROOT(test_damaged_trees),
        WITH_ROOT(test_fingerprint),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
