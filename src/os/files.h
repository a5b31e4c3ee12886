/* os/files.h: every file call of the cache, so that tests can inject faults, crashes and count fsyncs.
 *
 * kv_files is a table of calls with the meaning of their POSIX namesakes; all return 0 or a positive count, or
 * -errno. kv_files_real() is the operating system. kv_files_faulty (tests) wraps another one: it can fail the n-th
 * call, cut writes short, fill the disk, flip bits on reads, and "crash": everything that was not fsynced (data of a
 * file, names in a directory) is lost as a power cut may lose it.
 *
 * Thread rule: any thread.
 */
#ifndef KV_OS_FILES_H
#define KV_OS_FILES_H

#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct kv_file_info {
    uint64_t size;                    /* bytes */
    uint64_t disk;                    /* bytes it takes on disk (st_blocks × 512) */
    int64_t mtime;                    /* Unix seconds */
    bool is_dir, is_regular, is_mine; /* is_mine: owned by this process's user */
    uint32_t mode, owner;             /* permission bits; user id */
} kv_file_info;

typedef struct kv_disk_info {
    uint64_t total, free;                     /* bytes; free: for this user */
    bool read_only, network, memory, overlay; /* memory: tmpfs and the like; overlay: a container's own layer */
} kv_disk_info;

/* CREATE: exclusive, 0600. READ_DIRECT: around the page cache where the file system can, else like READ; buffer, length
 * and offset of its reads must be multiples of 4096. No mode follows a symbolic link at the path's end or waits for a
 * fifo. */
typedef enum kv_open_mode { KV_OPEN_READ, KV_OPEN_READ_DIRECT, KV_OPEN_CREATE } kv_open_mode;

typedef struct kv_files kv_files;
struct kv_files {
    int (*open)(const kv_files *, const char *path, kv_open_mode mode);                 /* file descriptor or -errno */
    int64_t (*read_at)(const kv_files *, int fd, void *dst, size_t n, uint64_t offset); /* n, less only at the end */
    int64_t (*write_at)(const kv_files *, int fd, const void *src, size_t n, uint64_t offset); /* n, or -errno */
    int (*cached)(const kv_files *, int fd, uint64_t offset); /* 1: the byte there is in the page cache or nobody can
                                                                 tell; 0: a read would wait for the disk */
    int (*sync)(const kv_files *, int fd);                    /* fsync (F_FULLFSYNC on macOS) */
    int (*close)(const kv_files *, int fd);
    int (*rename)(const kv_files *, const char *from, const char *to);
    int (*remove)(const kv_files *, const char *path);
    int (*make_dir)(const kv_files *, const char *path); /* 0700; 0 when it is there */
    int (*remove_dir)(const kv_files *, const char *path);
    int (*sync_dir)(const kv_files *, const char *path);
    int (*stat)(const kv_files *, const char *path, kv_file_info *out); /* of a symbolic link itself */
    int (*disk)(const kv_files *, const char *path, kv_disk_info *out);
    /* Calls fn for each name but "." and ".."; false from fn ends the walk. */
    int (*list)(const kv_files *, const char *path, bool (*fn)(void *ctx, const char *name), void *ctx);
    /* An exclusive advisory lock on a file, made when missing (0600): a descriptor, open for reading and writing, whose
     * close gives the lock back, or -errno (-EWOULDBLOCK: taken, and `wait` was false). */
    int (*lock)(const kv_files *, const char *path, bool wait);
    void *ctx;
};

const kv_files *kv_files_real(void); /* static */

/* The same for root who looks at what another user has: is_mine says whether a file is that user's. &out->files can be used
 * while `out` lives, and is not copied. False, and nothing is made: this process is not root's. */
typedef struct kv_files_of_user {
    kv_files files;
    uint32_t owner;
} kv_files_of_user;
bool kv_files_as_root(kv_files_of_user *out, uint32_t owner);

#endif
