/* tests/store/watch.h: how many bytes lie below a folder, known after every file call without a walk over all of it.
 *
 * A kv_files between the faulty one and the operating system that notes which folders a call changes; only these are
 * looked at again. The folder itself and tmp/ always are: files in them are written by descriptor, and SQLite goes its
 * own ways. Once in 512 times everything is counted after all, and must come to the same.
 */
#ifndef KV_TESTS_STORE_WATCH_H
#define KV_TESTS_STORE_WATCH_H

#include "rig.h"

enum { WATCH_DIRS = 4096 }; /* a power of two, more than folders there can be */

typedef struct watch {
    kv_files files; /* borrowed by the faulty one; stays where it is */
    const char *dir;
    struct watch_dir {
        char *path; /* NULL = free */
        uint64_t bytes;
        bool changed;
    } dirs[WATCH_DIRS];
    uint64_t sum, looks, calls;
    uint64_t allowed; /* 0: nothing is checked now */
    uint64_t every;   /* between the calls of a job it is checked after one call in so many */
} watch;

static inline struct watch_dir *watch_find(watch *w, const char *path) {
    size_t at = (size_t)kv_hash_bytes64(path, strlen(path)) % WATCH_DIRS, n = 0;
    while (w->dirs[at].path && strcmp(w->dirs[at].path, path) != 0) {
        at = (at + 1) % WATCH_DIRS;
        assert_true(n++ < WATCH_DIRS);
    }
    return &w->dirs[at];
}

/* The folder's own bytes and those of the files in it. 0 when it is gone. */
static inline uint64_t watch_count(watch *w, const char *path, bool deep);

static inline void watch_recount(watch *w, struct watch_dir *d) {
    w->sum -= d->bytes;
    d->bytes = watch_count(w, d->path, false);
    w->sum += d->bytes;
    d->changed = false;
}

static inline void watch_changed(watch *w, const char *path) {
    size_t n = strlen(w->dir);
    if (strncmp(path, w->dir, n) != 0 || (path[n] != '/' && path[n] != '\0')) return;
    struct watch_dir *d = watch_find(w, path);
    if (!d->path) d->path = kv_strdup(path);
    d->changed = true;
}

static inline void watch_changed_in(watch *w, const char *path) {
    char dir[512];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) *slash = '\0';
    watch_changed(w, dir);
}

static inline uint64_t watch_count(watch *w, const char *path, bool deep) {
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return 0;
    uint64_t bytes = (uint64_t)st.st_blocks * 512;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char child[512];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        if (lstat(child, &st) != 0) continue;
        if (!S_ISDIR(st.st_mode)) {
            bytes += (uint64_t)st.st_blocks * 512;
        } else if (deep) {
            watch_changed(w, child);
            (void)watch_count(w, child, true);
        }
    }
    closedir(dir);
    return bytes;
}

static inline void watch_forget(watch *w) {
    for (int i = 0; i < WATCH_DIRS; i++) free(w->dirs[i].path);
    memset(w->dirs, 0, sizeof w->dirs);
    w->sum = 0;
}

/* All bytes below the folder now. */
static inline uint64_t watch_bytes(watch *w) {
    char tmp[512];
    snprintf(tmp, sizeof tmp, "%s/tmp", w->dir);
    watch_changed(w, w->dir);
    watch_changed(w, tmp);
    for (int i = 0; i < WATCH_DIRS; i++)
        if (w->dirs[i].changed) watch_recount(w, &w->dirs[i]);
    if (++w->looks % 512 == 0) {
        uint64_t all = tree_bytes(w->dir, false);
        if (all != w->sum) all = tree_bytes(w->dir, false); /* the system may just have moved delayed blocks */
        if (all > w->sum)
            fail_msg("%llu bytes counted, %llu known", (unsigned long long)all, (unsigned long long)w->sum);
    }
    return w->sum;
}

/* Begin with what is there. */
static inline void watch_begin(watch *w) {
    watch_forget(w);
    watch_changed(w, w->dir);
    (void)watch_count(w, w->dir, true);
}

static inline void watch_look(watch *w) {
    if (!w->allowed || ++w->calls % w->every) return;
    uint64_t there = watch_bytes(w);
    if (there > w->allowed) there = watch_bytes(w);
    if (there > w->allowed)
        fail_msg("%llu bytes there in the middle of a job, %llu allowed", (unsigned long long)there,
                 (unsigned long long)w->allowed);
}

static inline int watch_open(const kv_files *self, const char *path, kv_open_mode mode) {
    int fd = kv_files_real()->open(kv_files_real(), path, mode);
    if (mode == KV_OPEN_CREATE) watch_changed_in(self->ctx, path);
    return fd;
}

static inline int64_t watch_write(const kv_files *self, int fd, const void *src, size_t n, uint64_t offset) {
    int64_t put = kv_files_real()->write_at(kv_files_real(), fd, src, n, offset);
    watch_look(self->ctx);
    return put;
}

static inline int watch_rename(const kv_files *self, const char *from, const char *to) {
    int code = kv_files_real()->rename(kv_files_real(), from, to);
    watch_changed_in(self->ctx, from);
    watch_changed_in(self->ctx, to);
    watch_look(self->ctx);
    return code;
}

static inline int watch_remove(const kv_files *self, const char *path) {
    watch_changed_in(self->ctx, path);
    return kv_files_real()->remove(kv_files_real(), path);
}

static inline int watch_make_dir(const kv_files *self, const char *path) {
    int code = kv_files_real()->make_dir(kv_files_real(), path);
    watch_changed(self->ctx, path);
    watch_changed_in(self->ctx, path);
    watch_look(self->ctx);
    return code;
}

static inline int watch_remove_dir(const kv_files *self, const char *path) {
    watch_changed(self->ctx, path);
    watch_changed_in(self->ctx, path);
    return kv_files_real()->remove_dir(kv_files_real(), path);
}

/* After rig_init, before the store is opened. */
static inline void watch_init(watch *w, rig *r, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->files = *kv_files_real();
    w->files.ctx = w;
    w->files.open = watch_open;
    w->files.write_at = watch_write;
    w->files.rename = watch_rename;
    w->files.remove = watch_remove;
    w->files.make_dir = watch_make_dir;
    w->files.remove_dir = watch_remove_dir;
    w->dir = r->dir;
    w->every = 4;
    kv_files_faulty_free(r->faulty);
    r->faulty = kv_files_faulty_new(&w->files, r->dir, r->grave, seed);
    r->cfg.files = kv_files_faulty_files(r->faulty);
}

#endif
