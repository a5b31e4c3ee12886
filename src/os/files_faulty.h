/* os/files_faulty.h: file calls that go wrong on demand, for tests.
 *
 * Wraps another kv_files for everything below `root`:
 *   - the n-th call of a kind (or of any kind) fails with a given errno, once or from then on; a failing write has put
 *     half of its bytes first, as a full disk does
 *   - the disk is full after so many more bytes
 *   - a read comes back with one bit flipped
 *   - a crash: what was not fsynced is lost as a power cut may lose it. Each file whose data was not synced is cut short
 *     or has pages of zeros; each name (made, renamed, removed) whose directory was not synced since may be undone, by
 *     a draw from the seed. From the crash until kv_files_faulty_revive every call fails with EIO.
 *
 *   create a ─ write ─ rename a→b ─ crash     before sync(a): b or a, cut short; before sync_dir: a, b or nothing
 *
 * What is removed waits in `grave` (beside root, on the same file system) until its directory is synced.
 *
 * Thread rule: any thread; one mutex, calls run one after the other (but lock, which may wait for another).
 */
#ifndef KV_OS_FILES_FAULTY_H
#define KV_OS_FILES_FAULTY_H

#include "os/files.h"

typedef enum kv_files_call {
    KV_CALL_OPEN,
    KV_CALL_READ,
    KV_CALL_WRITE,
    KV_CALL_SYNC,
    KV_CALL_CLOSE,
    KV_CALL_RENAME,
    KV_CALL_REMOVE,
    KV_CALL_MAKE_DIR,
    KV_CALL_REMOVE_DIR,
    KV_CALL_SYNC_DIR,
    KV_CALL_STAT,
    KV_CALL_DISK,
    KV_CALL_LIST,
    KV_CALL_LOCK,
    KV_CALL_COUNT,
    KV_CALL_ANY = KV_CALL_COUNT,
} kv_files_call;

typedef struct kv_files_faulty kv_files_faulty;

/* root and grave are folders that exist; inner is borrowed. */
kv_files_faulty *kv_files_faulty_new(const kv_files *inner, const char *root, const char *grave, uint64_t seed);
void kv_files_faulty_free(kv_files_faulty *f);
const kv_files *kv_files_faulty_files(const kv_files_faulty *f); /* borrowed */

/* The nth call (1 = the next) of this kind fails with `code` (an errno), and `times` - 1 after it. Replaces the last
 * such wish; nth 0 withdraws it. */
void kv_files_faulty_fail(kv_files_faulty *f, kv_files_call call, uint64_t nth, uint64_t times, int code);
/* Writes fail with ENOSPC once this many more bytes were written; UINT64_MAX: never. */
void kv_files_faulty_room(kv_files_faulty *f, uint64_t bytes);
void kv_files_faulty_flip(kv_files_faulty *f, uint64_t nth); /* the nth read from now on has one bit flipped */
/* What disk() tells as free; UINT64_MAX: the truth. */
void kv_files_faulty_free_space(kv_files_faulty *f, uint64_t bytes);

/* everything: lose all that was not synced, instead of drawing for each. */
void kv_files_faulty_crash(kv_files_faulty *f, bool everything);
/* The nth call from now on (of any kind) meets the crash in its middle. 0: none. */
void kv_files_faulty_crash_at(kv_files_faulty *f, uint64_t nth);
bool kv_files_faulty_crashed(kv_files_faulty *f);
void kv_files_faulty_revive(kv_files_faulty *f);

uint64_t kv_files_faulty_count(kv_files_faulty *f, kv_files_call call); /* calls so far; ANY: all */
int kv_files_faulty_open_files(kv_files_faulty *f);                     /* descriptors not closed */

#endif
