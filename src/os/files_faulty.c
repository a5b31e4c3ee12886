#include "os/files_faulty.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

/* A name that was changed and whose directory was not synced since. */
typedef enum op_kind { OP_CREATE, OP_RENAME, OP_REMOVE, OP_MAKE_DIR, OP_REMOVE_DIR } op_kind;
typedef struct name_op {
    op_kind kind;
    bool from_open, to_open; /* not yet synced: the directory of `path`, of `to` */
    char *path, *to;         /* to: OP_RENAME only */
    char *grave;             /* what was removed or replaced */
} name_op;

/* A file whose data was written and not synced. */
typedef struct dirty_file {
    ino_t ino;
    uint64_t from; /* first byte written since the last sync */
} dirty_file;

struct kv_files_faulty {
    kv_files files;
    const kv_files *inner;
    char *root, *grave;
    pthread_mutex_t mutex;
    uint64_t random;
    uint64_t counts[KV_CALL_COUNT + 1];
    uint64_t fail_at, fail_times; /* as a count of fail_call; 0 = none */
    kv_files_call fail_call;
    int fail_code;
    uint64_t room, flip_at, free_space, crash_at;
    bool crashed;
    name_op *ops;
    size_t n_ops, cap_ops;
    dirty_file *dirty;
    size_t n_dirty, cap_dirty;
    uint64_t n_graves;
    int n_open;
};

static kv_files_faulty *of(const kv_files *self) {
    return self->ctx;
}

static uint64_t draw(kv_files_faulty *f, uint64_t below) {
    f->random ^= f->random >> 12;
    f->random ^= f->random << 25;
    f->random ^= f->random >> 27;
    return below ? (f->random * 0x2545f4914f6cdd1dULL >> 32) % below : 0;
}

static bool below_root(const kv_files_faulty *f, const char *path) {
    size_t n = strlen(f->root);
    return strncmp(path, f->root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static void crash(kv_files_faulty *f, bool everything);

/* Counts the call; 0, or the -errno it must fail with. With the mutex held. */
static int enter(kv_files_faulty *f, kv_files_call call) {
    f->counts[call]++;
    f->counts[KV_CALL_ANY]++;
    if (f->crash_at && f->counts[KV_CALL_ANY] == f->crash_at && !f->crashed) crash(f, draw(f, 2));
    if (f->crashed) return -EIO;
    if (f->fail_at == 0 || (f->fail_call != KV_CALL_ANY && f->fail_call != call)) return 0;
    uint64_t n = f->counts[f->fail_call];
    return n >= f->fail_at && n - f->fail_at < f->fail_times ? -f->fail_code : 0;
}

static void add_op(kv_files_faulty *f, name_op op) {
    if (f->n_ops == f->cap_ops) {
        f->cap_ops = f->cap_ops ? f->cap_ops * 2 : 64;
        f->ops = kv_realloc(f->ops, f->cap_ops * sizeof *f->ops);
    }
    f->ops[f->n_ops++] = op;
}

static void free_op(name_op *op) {
    free(op->path);
    free(op->to);
    free(op->grave);
}

static dirty_file *find_dirty(kv_files_faulty *f, ino_t ino) {
    for (size_t i = 0; i < f->n_dirty; i++)
        if (f->dirty[i].ino == ino) return &f->dirty[i];
    return NULL;
}

static void forget_dirty(kv_files_faulty *f, ino_t ino) {
    dirty_file *d = find_dirty(f, ino);
    if (d) *d = f->dirty[--f->n_dirty];
}

static void mark_dirty(kv_files_faulty *f, int fd, uint64_t from) {
    struct stat st;
    if (fstat(fd, &st) != 0) return;
    dirty_file *d = find_dirty(f, st.st_ino);
    if (d) {
        if (from < d->from) d->from = from;
        return;
    }
    if (f->n_dirty == f->cap_dirty) {
        f->cap_dirty = f->cap_dirty ? f->cap_dirty * 2 : 64;
        f->dirty = kv_realloc(f->dirty, f->cap_dirty * sizeof *f->dirty);
    }
    f->dirty[f->n_dirty++] = (dirty_file){st.st_ino, from};
}

/* A second name that keeps what `path` names alive until its removal is durable. NULL when there is nothing. */
static char *bury(kv_files_faulty *f, const char *path) {
    kv_buf to = {0};
    kv_buf_addf(&to, "%s/%llu", f->grave, (unsigned long long)f->n_graves++);
    if (link(path, to.data) == 0) return to.data;
    kv_buf_free(&to);
    return NULL;
}

static void dig_up(kv_files_faulty *f, const char *grave) { /* removed for good */
    struct stat st;
    if (!grave) return;
    if (stat(grave, &st) == 0 && st.st_nlink == 1) forget_dirty(f, st.st_ino);
    (void)unlink(grave);
}

static int faulty_open(const kv_files *self, const char *path, kv_open_mode mode) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int fd = enter(f, KV_CALL_OPEN);
    if (fd == 0) fd = f->inner->open(f->inner, path, mode);
    if (fd >= 0) f->n_open++;
    if (fd >= 0 && mode == KV_OPEN_CREATE && below_root(f, path)) {
        add_op(f, (name_op){.kind = OP_CREATE, .from_open = true, .path = kv_strdup(path)});
        mark_dirty(f, fd, 0);
    }
    pthread_mutex_unlock(&f->mutex);
    return fd;
}

static int64_t faulty_read_at(const kv_files *self, int fd, void *dst, size_t n, uint64_t offset) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int64_t got = enter(f, KV_CALL_READ);
    if (got == 0) got = f->inner->read_at(f->inner, fd, dst, n, offset);
    if (got > 0 && f->flip_at && f->counts[KV_CALL_READ] == f->flip_at)
        ((unsigned char *)dst)[draw(f, (uint64_t)got)] ^= (unsigned char)(1 << draw(f, 8));
    pthread_mutex_unlock(&f->mutex);
    return got;
}

static int64_t faulty_write_at(const kv_files *self, int fd, const void *src, size_t n, uint64_t offset) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int64_t status = enter(f, KV_CALL_WRITE);
    size_t part = status == 0 ? n : n / 2;
    if (status == 0 && n > f->room) {
        status = -ENOSPC;
        part = (size_t)f->room;
    }
    if (part > 0 && !f->crashed) {
        mark_dirty(f, fd, offset);
        int64_t put = f->inner->write_at(f->inner, fd, src, part, offset);
        if (status == 0) status = put;
        if (put > 0 && f->room != UINT64_MAX) f->room -= (uint64_t)put;
    }
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_cached(const kv_files *self, int fd, uint64_t offset) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int cached = offset / 4096 % 2 ? f->inner->cached(f->inner, fd, offset) : 0; /* both ways of reading are tried */
    pthread_mutex_unlock(&f->mutex);
    return cached;
}

static int faulty_sync(const kv_files *self, int fd) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_SYNC);
    struct stat st;
    if (status == 0 && fstat(fd, &st) == 0) forget_dirty(f, st.st_ino); /* the drive is not asked: this is quicker */
    pthread_mutex_unlock(&f->mutex);
    return status;
}

/* A close that fails has closed all the same. */
static int faulty_close(const kv_files *self, int fd) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int injected = enter(f, KV_CALL_CLOSE);
    int status = f->inner->close(f->inner, fd);
    f->n_open--;
    pthread_mutex_unlock(&f->mutex);
    return injected ? injected : status;
}

static int faulty_rename(const kv_files *self, const char *from, const char *to) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_RENAME);
    if (status == 0) {
        char *grave = below_root(f, to) ? bury(f, to) : NULL;
        status = f->inner->rename(f->inner, from, to);
        if (status == 0 && below_root(f, to))
            add_op(f, (name_op){OP_RENAME, true, true, kv_strdup(from), kv_strdup(to), grave});
        else {
            dig_up(f, grave);
            free(grave);
        }
    }
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_remove(const kv_files *self, const char *path) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_REMOVE);
    if (status == 0) {
        char *grave = below_root(f, path) ? bury(f, path) : NULL;
        status = f->inner->remove(f->inner, path);
        if (status == 0 && grave)
            add_op(f, (name_op){.kind = OP_REMOVE, .from_open = true, .path = kv_strdup(path), .grave = grave});
        else {
            dig_up(f, grave);
            free(grave);
        }
    }
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_make_dir(const kv_files *self, const char *path) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_MAKE_DIR);
    struct stat st;
    bool was_there = stat(path, &st) == 0;
    if (status == 0) status = f->inner->make_dir(f->inner, path);
    if (status == 0 && !was_there && below_root(f, path))
        add_op(f, (name_op){.kind = OP_MAKE_DIR, .from_open = true, .path = kv_strdup(path)});
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_remove_dir(const kv_files *self, const char *path) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_REMOVE_DIR);
    if (status == 0) status = f->inner->remove_dir(f->inner, path);
    if (status == 0 && below_root(f, path))
        add_op(f, (name_op){.kind = OP_REMOVE_DIR, .from_open = true, .path = kv_strdup(path)});
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static bool lies_in(const char *path, const char *dir) {
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/' && !strchr(path + n + 1, '/');
}

static int faulty_sync_dir(const kv_files *self, const char *path) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_SYNC_DIR);
    size_t kept = 0;
    for (size_t i = 0; status == 0 && i < f->n_ops; i++) {
        name_op *op = &f->ops[i];
        if (lies_in(op->path, path)) op->from_open = false;
        if (op->to && lies_in(op->to, path)) op->to_open = false;
        if (op->from_open || op->to_open) {
            f->ops[kept++] = *op;
        } else {
            dig_up(f, op->grave);
            free_op(op);
        }
    }
    if (status == 0) f->n_ops = kept;
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_stat(const kv_files *self, const char *path, kv_file_info *out) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_STAT);
    memset(out, 0, sizeof *out);
    if (status == 0) status = f->inner->stat(f->inner, path, out);
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_disk(const kv_files *self, const char *path, kv_disk_info *out) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_DISK);
    memset(out, 0, sizeof *out);
    if (status == 0) status = f->inner->disk(f->inner, path, out);
    if (status == 0 && f->free_space != UINT64_MAX) out->free = f->free_space;
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static int faulty_list(const kv_files *self, const char *path, bool (*fn)(void *, const char *), void *ctx) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int status = enter(f, KV_CALL_LIST);
    pthread_mutex_unlock(&f->mutex); /* fn may call back */
    return status == 0 ? f->inner->list(f->inner, path, fn, ctx) : status;
}

static int faulty_lock(const kv_files *self, const char *path, bool wait) {
    kv_files_faulty *f = of(self);
    pthread_mutex_lock(&f->mutex);
    int fd = enter(f, KV_CALL_LOCK);
    pthread_mutex_unlock(&f->mutex); /* who holds the lock must be able to give it back */
    if (fd == 0) fd = f->inner->lock(f->inner, path, wait);
    pthread_mutex_lock(&f->mutex);
    if (fd >= 0) f->n_open++;
    pthread_mutex_unlock(&f->mutex);
    return fd;
}

kv_files_faulty *kv_files_faulty_new(const kv_files *inner, const char *root, const char *grave, uint64_t seed) {
    kv_files_faulty *f = kv_alloc(sizeof *f);
    pthread_mutex_init(&f->mutex, NULL);
    f->inner = inner;
    f->root = kv_strdup(root);
    f->grave = kv_strdup(grave);
    f->random = seed ? seed : 1;
    f->room = f->free_space = UINT64_MAX;
    f->files = (kv_files){.open = faulty_open,
                          .read_at = faulty_read_at,
                          .write_at = faulty_write_at,
                          .cached = faulty_cached,
                          .sync = faulty_sync,
                          .close = faulty_close,
                          .rename = faulty_rename,
                          .remove = faulty_remove,
                          .make_dir = faulty_make_dir,
                          .remove_dir = faulty_remove_dir,
                          .sync_dir = faulty_sync_dir,
                          .stat = faulty_stat,
                          .disk = faulty_disk,
                          .list = faulty_list,
                          .lock = faulty_lock,
                          .ctx = f};
    return f;
}

static void drop_ops(kv_files_faulty *f) {
    for (size_t i = 0; i < f->n_ops; i++) {
        if (f->ops[i].grave) (void)unlink(f->ops[i].grave);
        free_op(&f->ops[i]);
    }
    f->n_ops = 0;
}

void kv_files_faulty_free(kv_files_faulty *f) {
    if (!f) return;
    drop_ops(f);
    free(f->ops);
    free(f->dirty);
    free(f->root);
    free(f->grave);
    pthread_mutex_destroy(&f->mutex);
    free(f);
}

const kv_files *kv_files_faulty_files(const kv_files_faulty *f) {
    return &f->files;
}

void kv_files_faulty_fail(kv_files_faulty *f, kv_files_call call, uint64_t nth, uint64_t times, int code) {
    pthread_mutex_lock(&f->mutex);
    f->fail_call = call;
    f->fail_at = nth ? f->counts[call] + nth : 0;
    f->fail_times = times;
    f->fail_code = code;
    pthread_mutex_unlock(&f->mutex);
}

void kv_files_faulty_room(kv_files_faulty *f, uint64_t bytes) {
    pthread_mutex_lock(&f->mutex);
    f->room = bytes;
    pthread_mutex_unlock(&f->mutex);
}

void kv_files_faulty_flip(kv_files_faulty *f, uint64_t nth) {
    pthread_mutex_lock(&f->mutex);
    f->flip_at = nth ? f->counts[KV_CALL_READ] + nth : 0;
    pthread_mutex_unlock(&f->mutex);
}

void kv_files_faulty_free_space(kv_files_faulty *f, uint64_t bytes) {
    pthread_mutex_lock(&f->mutex);
    f->free_space = bytes;
    pthread_mutex_unlock(&f->mutex);
}

static void remove_tree(const char *path);
static bool remove_entry(void *ctx, const char *name) {
    kv_buf child = {0};
    kv_buf_addf(&child, "%s/%s", (const char *)ctx, name);
    if (unlink(child.data) != 0) remove_tree(child.data);
    kv_buf_free(&child);
    return true;
}
static void remove_tree(const char *path) {
    const kv_files *real = kv_files_real();
    (void)real->list(real, path, remove_entry, (void *)path);
    (void)rmdir(path);
}

static void undo(name_op *op) {
    struct stat st;
    switch (op->kind) {
    case OP_CREATE: (void)unlink(op->path); break;
    case OP_MAKE_DIR: remove_tree(op->path); break;
    case OP_REMOVE_DIR: (void)mkdir(op->path, 0700); break;
    case OP_REMOVE:
        if (stat(op->path, &st) != 0) (void)rename(op->grave, op->path);
        break;
    case OP_RENAME: /* one directory may have been written and the other not: both names, or neither */
        if (op->from_open && op->to_open) (void)rename(op->to, op->path);
        else if (op->from_open) (void)link(op->to, op->path);
        else (void)unlink(op->to);
        if (op->grave && op->to_open) (void)rename(op->grave, op->to);
        break;
    }
}

/* Damages the file as a power cut may: it ends early, or pages that never reached the disk are zeros. */
static void lose_data(kv_files_faulty *f, const char *path, const dirty_file *d, uint64_t size) {
    if (size <= d->from) return;
    uint64_t at = d->from + draw(f, size - d->from);
    if (draw(f, 2)) {
        (void)!truncate(path, (off_t)at);
        return;
    }
    FILE *file = fopen(path, "r+b");
    if (!file) return;
    uint64_t n = size - at < 4096 ? size - at : 4096;
    char zeros[4096] = {0};
    if (fseek(file, (long)at, SEEK_SET) == 0) (void)!fwrite(zeros, 1, (size_t)n, file);
    (void)fclose(file);
}

typedef struct walk {
    kv_files_faulty *f;
    const char *path;
} walk;

static bool crash_entry(void *ctx, const char *name) {
    walk *w = ctx;
    kv_buf child = {0};
    struct stat st;
    kv_buf_addf(&child, "%s/%s", w->path, name);
    if (lstat(child.data, &st) == 0 && S_ISDIR(st.st_mode)) {
        walk below = {w->f, child.data};
        (void)w->f->inner->list(w->f->inner, child.data, crash_entry, &below);
    } else if (S_ISREG(st.st_mode)) {
        dirty_file *d = find_dirty(w->f, st.st_ino);
        if (d) lose_data(w->f, child.data, d, (uint64_t)st.st_size);
    }
    kv_buf_free(&child);
    return true;
}

/* With the mutex held. */
static void crash(kv_files_faulty *f, bool everything) {
    f->crashed = true;
    for (size_t i = f->n_ops; i-- > 0;)
        if (everything || draw(f, 2)) undo(&f->ops[i]);
    drop_ops(f);
    walk w = {f, f->root};
    (void)f->inner->list(f->inner, f->root, crash_entry, &w);
    f->n_dirty = 0;
}

void kv_files_faulty_crash(kv_files_faulty *f, bool everything) {
    pthread_mutex_lock(&f->mutex);
    crash(f, everything);
    pthread_mutex_unlock(&f->mutex);
}

void kv_files_faulty_crash_at(kv_files_faulty *f, uint64_t nth) {
    pthread_mutex_lock(&f->mutex);
    f->crash_at = nth ? f->counts[KV_CALL_ANY] + nth : 0;
    pthread_mutex_unlock(&f->mutex);
}

bool kv_files_faulty_crashed(kv_files_faulty *f) {
    pthread_mutex_lock(&f->mutex);
    bool crashed = f->crashed;
    pthread_mutex_unlock(&f->mutex);
    return crashed;
}

void kv_files_faulty_revive(kv_files_faulty *f) {
    pthread_mutex_lock(&f->mutex);
    f->crashed = false;
    f->fail_at = f->flip_at = f->crash_at = 0;
    f->room = f->free_space = UINT64_MAX;
    pthread_mutex_unlock(&f->mutex);
}

uint64_t kv_files_faulty_count(kv_files_faulty *f, kv_files_call call) {
    pthread_mutex_lock(&f->mutex);
    uint64_t n = f->counts[call];
    pthread_mutex_unlock(&f->mutex);
    return n;
}

int kv_files_faulty_open_files(kv_files_faulty *f) {
    pthread_mutex_lock(&f->mutex);
    int n = f->n_open;
    pthread_mutex_unlock(&f->mutex);
    return n;
}
