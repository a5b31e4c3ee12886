#ifdef __linux__
#define _GNU_SOURCE 1 /* mkstemp, realpath, O_DIRECTORY */
#endif
#include "os/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __APPLE__
#include <limits.h>
#include <mach-o/dyld.h>
#include <malloc/malloc.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

uint64_t kv_machine_raise_open_files(uint64_t want) {
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) return 0;
    if (lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= want) return lim.rlim_cur;
    struct rlimit more = lim;
    more.rlim_cur = lim.rlim_max == RLIM_INFINITY || lim.rlim_max > want ? (rlim_t)want : lim.rlim_max;
#ifdef __APPLE__
    if (more.rlim_cur > OPEN_MAX) more.rlim_cur = OPEN_MAX; /* setrlimit refuses more, whatever rlim_max says */
#endif
    return setrlimit(RLIMIT_NOFILE, &more) == 0 ? more.rlim_cur : lim.rlim_cur;
}

/* glibc by itself learns from large buffers that are freed to keep up to 64 MiB at the top of each thread's arena, where
 * malloc_trim does not look. Set once, neither is learned any more. */
#define MALLOC_KEEPS (2 << 20)

void kv_machine_set_up_memory(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, MALLOC_KEEPS);
    mallopt(M_TRIM_THRESHOLD, MALLOC_KEEPS);
#endif
}

void kv_machine_give_back_memory(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#elif defined(__APPLE__)
    malloc_zone_pressure_relief(NULL, 0);
#endif
}

/* What systemd made for the service, of a list "/var/cache/kvasir:/var/cache/more" the first. A directory of another
 * name belongs to whoever started us, and we take a folder in it. */
static bool manager_dir(kv_buf *out, const char *variable) {
    const char *list = variable ? getenv(variable) : NULL, *own = "/kvasir";
    if (!list || list[0] != '/') return false;
    size_t n = strcspn(list, ":"), n_own = strlen(own);
    while (n > 1 && list[n - 1] == '/') n--;
    kv_buf_add(out, list, n);
    if (n < n_own || memcmp(list + n - n_own, own, n_own) != 0) kv_buf_adds(out, own);
    return true;
}

/* `manager` as above, else `variable`/kvasir, else `below`/kvasir in the home directory. */
static kv_status home_dir(kv_buf *out, const char *manager, const char *variable, const char *below,
                          const char *purpose, kv_error *err) {
    const char *home = getenv("HOME"), *xdg = variable ? getenv(variable) : NULL;
    if (manager_dir(out, manager)) return KV_OK;
    if (xdg && xdg[0] == '/') { /* the specification says to ignore a relative one */
        kv_buf_addf(out, "%s/kvasir", xdg);
        return KV_OK;
    }
    if (!home || home[0] != '/')
        return kv_fail(err, KV_NOT_FOUND, "there is no home directory to %s in: set HOME", purpose);
    kv_buf_addf(out, "%s/%s/kvasir", home, below);
    return KV_OK;
}

kv_status kv_dir_state(kv_buf *out, kv_error *err) {
#ifdef __APPLE__
    return home_dir(out, NULL, NULL, "Library/Application Support", "remember settings", err);
#else
    return home_dir(out, "STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state", "remember settings", err);
#endif
}

kv_status kv_dir_cache(kv_buf *out, kv_error *err) {
#ifdef __APPLE__
    return home_dir(out, NULL, NULL, "Library/Caches", "keep the cache", err);
#else
    return home_dir(out, "CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache", "keep the cache", err);
#endif
}

kv_status kv_dir_executable(kv_buf *out, kv_error *err) {
    char *path = NULL;
#ifdef __APPLE__
    char raw[PATH_MAX];
    uint32_t n = sizeof raw;
    if (_NSGetExecutablePath(raw, &n) != 0)
        return kv_fail(err, KV_INTERNAL, "the path of the running program is longer than %d bytes", PATH_MAX);
    path = realpath(raw, NULL);
#else
    path = realpath("/proc/self/exe", NULL);
#endif
    if (!path) return kv_fail_errno(err, "find the running program");
    char *slash = strrchr(path, '/');
    KV_CHECK(slash != NULL);
    kv_buf_add(out, path, slash == path ? 1 : (size_t)(slash - path));
    free(path);
    return KV_OK;
}

static bool is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

kv_status kv_dir_make(const char *path, kv_error *err) {
    if (!path[0]) return kv_fail(err, KV_INVALID, "an empty directory name cannot be made");
    char *p = kv_strdup(path);
    kv_status status = KV_OK;
    for (char *s = p + 1;; s++) {
        if (*s != '/' && *s != '\0') continue;
        char kept = *s;
        *s = '\0';
        /* EEXIST also when it is a file; EACCES or EROFS for a parent that is there all the same */
        if (mkdir(p, 0700) != 0) {
            int code = errno;
            if (!is_directory(p)) {
                errno = code == EEXIST ? ENOTDIR : code;
                status = kv_fail_errno(err, "make directory %s", p);
                break;
            }
        }
        *s = kept;
        if (kept == '\0') break;
    }
    free(p);
    return status;
}

kv_status kv_file_read(kv_buf *out, const char *path, size_t max, kv_error *err) {
    kv_buf_clear(out);
    kv_status status = KV_OK;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not blocking: a fifo must not hang us before fstat */
    if (fd < 0) {
        bool missing = errno == ENOENT;
        status = kv_fail_errno(err, "open %s", path);
        if (missing) status = KV_NOT_FOUND;
        if (err) err->status = status;
        return status;
    }
    if (fstat(fd, &st) != 0) {
        status = kv_fail_errno(err, "stat %s", path);
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        status = kv_fail(err, KV_INVALID, "%s is not a regular file", path);
        goto done;
    }
    /* st_size is 0 under /proc and may change while we read: it is only a hint */
    kv_buf_reserve(out, st.st_size > 0 && (uint64_t)st.st_size <= max ? (size_t)st.st_size + 1 : 4096);
    for (;;) {
        kv_buf_reserve(out, 4096);
        ssize_t n = read(fd, out->data + out->len, out->cap - out->len - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            status = kv_fail_errno(err, "read %s", path);
            break;
        }
        if (n == 0) break;
        out->len += (size_t)n;
        if (out->len > max) {
            status = kv_fail(err, KV_TOO_LARGE, "%s is larger than %zu bytes", path, max);
            break;
        }
    }
    out->data[out->len] = '\0';
done:
    close(fd);
    if (status != KV_OK) kv_buf_clear(out);
    return status;
}

static int sync_file(int fd) {
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0; /* fsync on macOS leaves the data in the drive's cache */
#endif
    return fsync(fd);
}

static bool write_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        data += done;
        n -= (size_t)done;
    }
    return true;
}

/* After the rename the file is there for every process, so a directory that cannot be synced (some network file
 * systems refuse) is not an error: only a power cut could undo it. */
static void sync_directory(const char *path) {
    char *dir = kv_strdup(path);
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = '\0';
    int fd = open(slash ? dir : ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd >= 0) {
        (void)sync_file(fd);
        close(fd);
    }
    free(dir);
}

kv_status kv_file_publish(const char *path, const void *data, size_t n, kv_error *err) {
    kv_status status = KV_OK;
    kv_buf temp = {0};
    kv_buf_addf(&temp, "%s.XXXXXX", path);
    int fd = mkstemp(temp.data); /* mode 0600 */
    if (fd < 0) {
        status = kv_fail_errno(err, "create a temporary file beside %s", path);
        goto done;
    }
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!write_all(fd, data, n) || sync_file(fd) != 0) status = kv_fail_errno(err, "write %s", temp.data);
    if (close(fd) != 0 && status == KV_OK) status = kv_fail_errno(err, "close %s", temp.data);
    if (status == KV_OK && rename(temp.data, path) != 0)
        status = kv_fail_errno(err, "rename %s to %s", temp.data, path);
    if (status != KV_OK) unlink(temp.data);
    else sync_directory(path);
done:
    kv_buf_free(&temp);
    return status;
}
