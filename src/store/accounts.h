/* store/accounts.h: how many bytes below DIR are in use or promised, summed over all processes that share it.
 *
 *   DIR/accounts (4096 bytes, little-endian as the machine; read and written under its own flock, for microseconds)
 *        0   8  magic "KVACCT\0\1"
 *        8   8  stored: bytes of records, quarantine, directories and small files; not the index, not spellings, not tmp/
 *       16   8  day: days since 1970 (UTC) that `written` counts
 *       24   8  written: bytes of records written that day
 *       32  32n one slot a process: its 16-byte id (0 = free), bytes that it reserved, 8 zero bytes
 *     2080   8  budget of the last opening that named one (0 = none did): what tools beside the server go by
 *     4088   8  XXH3-64 of [0, 4088)
 *
 *   free to reserve = budget − stored − Σ reserved − (index files as they are + room for its next change)
 *                     − (files of the spellings as they are; their growth is reserved while they grow)
 *
 * Whoever removes a file takes its bytes off `stored`; unlink succeeds for one process only, so nothing is taken twice.
 * Where the file cannot be read or written (out of descriptors, say) the process goes on with what it last saw and
 * adds its own changes later.
 *
 * Thread rule: any thread; one mutex, the last in the store's order.
 */
#ifndef KV_STORE_ACCOUNTS_H
#define KV_STORE_ACCOUNTS_H

#include "base/hash.h"
#include "os/files.h"
#include <pthread.h>

#define KV_ACCOUNTS_SLOTS 64
#define KV_ACCOUNTS_SIZE  4096

typedef struct kv_accounts {
    pthread_mutex_t mutex;
    const kv_files *files;
    char *path;
    char *index[6]; /* files that are measured: the index's three and those of the spellings, or NULL: none */
    uint64_t budget, index_room;
    kv_hash id;
    bool shared; /* false: kept in memory alone (read-only) */
    /* what was last seen, and what of ours is not in the file yet */
    uint64_t stored, reserved_by_others, reserved, index_bytes, written;
    int64_t stored_delta, written_delta, day;
    uint64_t n_faults;
    bool index_unseen; /* its files could not be measured the last time */
} kv_accounts;

void kv_accounts_init(kv_accounts *a, const kv_files *files, const char *dir, uint64_t budget, kv_hash id, bool shared);
void kv_accounts_free(kv_accounts *a);
void kv_accounts_with_index(kv_accounts *a, const char *const paths[3], uint64_t room); /* before threads use it */
void kv_accounts_with_spellings(kv_accounts *a, const char *const paths[3]);            /* likewise */
/* Begins: takes a slot. alive tells whether another process's id still lives; slots of others are given back. With
 * nobody else alive, or no valid file, `stored` is what `count` finds (called under the file's lock), else what the
 * file says. */
void kv_accounts_open(kv_accounts *a, bool (*alive)(void *ctx, kv_hash id), uint64_t (*count)(void *ctx), void *ctx);
void kv_accounts_close(kv_accounts *a); /* gives the slot back */
/* Reads the file without a lock and without making it, before kv_accounts_open: the last budget (0: not known), and
 * takes over the day and what was written in it. */
uint64_t kv_accounts_peek(kv_accounts *a);

/* Reserve n bytes. 0, or how many are missing. */
uint64_t kv_accounts_take(kv_accounts *a, uint64_t n);
/* Give n reserved bytes back; `stored` grows by stored_delta (which may be negative), today's written bytes by written. */
void kv_accounts_settle(kv_accounts *a, uint64_t n, int64_t stored_delta, uint64_t written);
uint64_t kv_accounts_over(kv_accounts *a); /* bytes above the budget now, the index's room counted; 0 mostly */
/* Room for one more change of the index: there is some, and how large its files are is known. */
bool kv_accounts_index_may_grow(kv_accounts *a);
typedef struct kv_accounts_view {
    uint64_t stored, reserved, index, written_today;
} kv_accounts_view;
void kv_accounts_see(kv_accounts_view *out, kv_accounts *a);
void kv_accounts_set_day(kv_accounts *a, int64_t day); /* a new one sets `written` to 0 */

#endif
