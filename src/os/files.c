#ifdef __linux__
#define _GNU_SOURCE 1 /* O_DIRECT, preadv2 */
#endif
#include "os/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#else
#include <sys/mount.h>
#include <sys/param.h>
#endif

/* One call moves at most this much: Linux stops a little under 2 GiB, macOS refuses more than INT_MAX. */
#define MAX_TRANSFER ((size_t)1 << 30)

static int do_open(const kv_files *self, const char *path, kv_open_mode mode) {
    (void)self;
    int common = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK; /* not blocking: a fifo must not hang the thread */
    int fd = -1;
    if (mode == KV_OPEN_CREATE) {
        fd = open(path, common | O_RDWR | O_CREAT | O_EXCL, 0600);
        return fd < 0 ? -errno : fd;
    }
#ifdef O_DIRECT
    if (mode == KV_OPEN_READ_DIRECT) fd = open(path, common | O_RDONLY | O_DIRECT);
    if (mode == KV_OPEN_READ_DIRECT && fd < 0 && errno != EINVAL) return -errno; /* EINVAL: not on this file system */
#endif
    if (fd < 0) fd = open(path, common | O_RDONLY);
    if (fd < 0) return -errno;
#ifdef F_NOCACHE
    if (mode == KV_OPEN_READ_DIRECT) (void)fcntl(fd, F_NOCACHE, 1);
#endif
    return fd;
}

static int64_t do_read_at(const kv_files *self, int fd, void *dst, size_t n, uint64_t offset) {
    (void)self;
    size_t done = 0;
    while (done < n) {
        size_t part = n - done < MAX_TRANSFER ? n - done : MAX_TRANSFER;
        ssize_t got = pread(fd, (char *)dst + done, part, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (int64_t)done;
}

static int64_t do_write_at(const kv_files *self, int fd, const void *src, size_t n, uint64_t offset) {
    (void)self;
    size_t done = 0;
    while (done < n) {
        size_t part = n - done < MAX_TRANSFER ? n - done : MAX_TRANSFER;
        ssize_t put = pwrite(fd, (const char *)src + done, part, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return -errno;
        if (put == 0) return -EIO; /* a file system that takes nothing and names no reason */
        done += (size_t)put;
    }
    return (int64_t)done;
}

static int do_cached(const kv_files *self, int fd, uint64_t offset) {
    (void)self;
#ifdef RWF_NOWAIT
    char byte;
    struct iovec one = {&byte, 1};
    ssize_t n = preadv2(fd, &one, 1, (off_t)offset, RWF_NOWAIT);
    if (n < 0 && errno == EAGAIN) return 0;
#else
    (void)fd, (void)offset;
#endif
    return 1;
}

static int do_sync(const kv_files *self, int fd) {
    (void)self;
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0; /* fsync on macOS leaves the data in the drive's cache */
#endif
    int status;
    do status = fsync(fd);
    while (status != 0 && errno == EINTR);
    return status == 0 ? 0 : -errno;
}

/* After EINTR the descriptor is gone on Linux and macOS alike: never again. */
static int do_close(const kv_files *self, int fd) {
    (void)self;
    return close(fd) == 0 || errno == EINTR ? 0 : -errno;
}

static int do_rename(const kv_files *self, const char *from, const char *to) {
    (void)self;
    return rename(from, to) == 0 ? 0 : -errno;
}

static int do_remove(const kv_files *self, const char *path) {
    (void)self;
    return unlink(path) == 0 ? 0 : -errno;
}

static int do_make_dir(const kv_files *self, const char *path) {
    (void)self;
    if (mkdir(path, 0700) == 0) return 0;
    int code = errno;
    struct stat st;
    if (stat(path, &st) == 0) return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR; /* EROFS where it is there all the same */
    return -code;
}

static int do_remove_dir(const kv_files *self, const char *path) {
    (void)self;
    return rmdir(path) == 0 ? 0 : -errno;
}

static int do_sync_dir(const kv_files *self, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd < 0) return -errno;
    int status = do_sync(self, fd);
    close(fd);
    return status == -EINVAL || status == -ENOTSUP ? 0 : status; /* file systems that order names by themselves */
}

static int do_stat(const kv_files *self, const char *path, kv_file_info *out) {
    (void)self;
    struct stat st;
    memset(out, 0, sizeof *out);
    if (lstat(path, &st) != 0) return -errno;
    out->size = (uint64_t)st.st_size;
    out->disk = (uint64_t)st.st_blocks * 512;
    out->mtime = (int64_t)st.st_mtime;
    out->is_dir = S_ISDIR(st.st_mode);
    out->is_regular = S_ISREG(st.st_mode);
    out->is_mine = st.st_uid == geteuid();
    out->mode = (uint32_t)st.st_mode & 07777;
    out->owner = (uint32_t)st.st_uid;
    return 0;
}

#ifdef __linux__
/* Numbers of linux/magic.h and of the file systems' own sources; statfs(2) lists them. */
static void classify(const char *path, kv_disk_info *out) {
    struct statfs fs;
    if (statfs(path, &fs) != 0) return;
    switch ((unsigned long)fs.f_type & 0xffffffffUL) {
    case 0x01021994: /* tmpfs */
    case 0x858458f6: /* ramfs */ out->memory = true; break;
    case 0x794c7630: /* overlayfs */
    case 0x61756673: /* aufs */ out->overlay = true; break;
    case 0x6969:     /* nfs */
    case 0x517b:     /* smb */
    case 0xff534d42: /* cifs */
    case 0xfe534d42: /* smb2 */
    case 0x00c36400: /* ceph */
    case 0x01021997: /* 9p */
    case 0x5346414f: /* afs */
    case 0x47504653: /* gpfs */
    case 0x0bd00bd0: /* lustre */
    case 0x73757245: /* coda */ out->network = true; break;
    default: break; /* a local disk, or FUSE, behind which anything may be */
    }
}
#else
static void classify(const char *path, kv_disk_info *out) {
    struct statfs fs;
    if (statfs(path, &fs) != 0) return;
    out->network = !(fs.f_flags & MNT_LOCAL);
    out->memory = strcmp(fs.f_fstypename, "tmpfs") == 0;
}
#endif

static int do_disk(const kv_files *self, const char *path, kv_disk_info *out) {
    (void)self;
    struct statvfs vfs;
    memset(out, 0, sizeof *out);
    if (statvfs(path, &vfs) != 0) return -errno;
    out->total = (uint64_t)vfs.f_blocks * vfs.f_frsize;
    out->free = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    out->read_only = vfs.f_flag & ST_RDONLY;
    classify(path, out);
    return 0;
}

static int do_list(const kv_files *self, const char *path, bool (*fn)(void *ctx, const char *name), void *ctx) {
    (void)self;
    DIR *dir = opendir(path);
    if (!dir) return -errno;
    int status = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            status = -errno;
            break;
        }
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (!fn(ctx, name)) break;
    }
    closedir(dir);
    return status;
}

static int do_lock(const kv_files *self, const char *path, bool wait) {
    (void)self;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -errno;
    int status;
    do status = flock(fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB);
    while (status != 0 && errno == EINTR);
    if (status == 0) return fd;
    int code = errno;
    close(fd);
    return -code;
}

static const kv_files real_files = {
    .open = do_open,
    .read_at = do_read_at,
    .write_at = do_write_at,
    .cached = do_cached,
    .sync = do_sync,
    .close = do_close,
    .rename = do_rename,
    .remove = do_remove,
    .make_dir = do_make_dir,
    .remove_dir = do_remove_dir,
    .sync_dir = do_sync_dir,
    .stat = do_stat,
    .disk = do_disk,
    .list = do_list,
    .lock = do_lock,
};

const kv_files *kv_files_real(void) {
    return &real_files;
}

static int stat_of_user(const kv_files *self, const char *path, kv_file_info *out) {
    const kv_files_of_user *user = self->ctx;
    int code = do_stat(self, path, out);
    out->is_mine = out->owner == user->owner;
    return code;
}

bool kv_files_as_root(kv_files_of_user *out, uint32_t owner) {
    if (geteuid() != 0) return false;
    out->files = *kv_files_real();
    out->files.stat = stat_of_user;
    out->files.ctx = out;
    out->owner = owner;
    return true;
}
