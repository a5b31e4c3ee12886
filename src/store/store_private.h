/* store/store_private.h: what the store's files share. Only src/store includes it.
 *
 *   store.c    open, close, load, uses, pins, namespaces, numbers      recover.c  the walk over the files at open
 *   publish.c  reserve, write, commit                                  evict.c    eviction, remove, gc
 *   read.c     read, quarantine, verify                                paths.c    names, small files, faults
 *   table.c    rows and their order   index.c  SQLite   accounts.c  the shared budget   spellings.c  SQLite, apart
 *
 * Thread rule: any thread; what a mutex guards, and its place in the order, stands at the mutex.
 */
#ifndef KV_STORE_STORE_PRIVATE_H
#define KV_STORE_STORE_PRIVATE_H

#include "store/accounts.h"
#include "store/index.h"
#include "store/store.h"
#include <pthread.h>
#include <stdatomic.h>

/* Besides its own blocks a new record may cost: two new directories and growth of their parents and of tmp/ (4 KiB
 * each on ext4, three for one that turns into a tree), and extent blocks of its file. Reserved with each record, given
 * back when the true numbers are known. */
#define KV_STORE_SLACK     (24u << 10)
#define KV_STORE_DIR_MAX   800
#define KV_STORE_ABOUT_MAX (64u << 10)

typedef struct kv_path {
    char s[1024];
} kv_path;

/* What directories of a namespace were seen to take, so that growth is counted once. */
typedef struct kv_ns_dirs {
    uint32_t own, sub[256]; /* bytes; 0 = not known to be there */
    bool made, sub_made[256];
} kv_ns_dirs;

typedef struct kv_written { /* in tmp/, waiting for commit */
    kv_record_head head;
    uint64_t n; /* its number in tmp/ */
    uint64_t reserved;
    int fd; /* -1: synced already */
} kv_written;

struct kv_store {
    kv_store_config cfg; /* cfg.dir is owned */
    const kv_files *f;
    uint64_t quarantine_max, index_room;
    kv_hash id; /* of this opening */
    int alive_fd;
    kv_accounts acc;

    pthread_mutex_t mutex; /* second in the order; guards from here on */
    kv_table table;
    kv_written *written;
    size_t n_written, cap_written;
    int n_held;        /* of those, descriptors held open */
    kv_ns_dirs **dirs; /* by number of the namespace */
    uint16_t n_dirs;
    uint64_t places_kept[KV_PLACE_COUNT], places_hit[KV_PLACE_COUNT]; /* of all that used the directory */
    uint64_t new_kept[KV_PLACE_COUNT], new_hit[KV_PLACE_COUNT];       /* of those the index does not know yet */
    uint32_t n_used; /* about how many rows the index does not have as they are */
    uint32_t root_size, ns_size, tmp_size, quarantine_size; /* directories, as last seen */

    pthread_mutex_t index_mutex; /* first; guards `index` being opened and closed, held while it is changed */
    kv_index *index;

    kv_spellings *spellings; /* locked in itself, outside of `mutex` and the accounts' */

    pthread_mutex_t quarantine_mutex; /* its folder is trimmed by one thread at a time; taken under no other lock */

    void (*gone)(void *ctx, const kv_record_head *head);
    void *gone_ctx;
    atomic_uint_fast64_t next_tmp, bytes_written, n_evicted, n_quarantined, n_fsyncs;
    atomic_uint_fast64_t n_faults[KV_STORE_FAULT_COUNT];
    atomic_bool faulty[KV_STORE_FAULT_COUNT];
};

/* paths.c */
void kv_store_path(kv_path *out, const kv_store *s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void kv_store_record_path(kv_path *out, const kv_store *s, const kv_record_head *head);
void kv_store_tmp_path(kv_path *out, const kv_store *s, uint64_t n);
bool kv_store_parse_name(kv_hash *key, kv_record_kind *kind, const char *name); /* "<hex>.b" */
/* Counts a fault and, when its kind begins, logs one line. code: -errno. Returns the status for callers. */
kv_status kv_store_faulted(kv_store *s, kv_store_fault kind, int64_t code, const char *path, kv_error *err);
void kv_store_went_well(kv_store *s, kv_store_fault kind); /* logs one line when faults of this kind end */
int64_t kv_store_now(const kv_store *s);
/* Reads a small file whole; false when it is not there, not ours, or longer than max. */
bool kv_store_read_small(kv_buf *out, kv_store *s, const char *path, size_t max);
kv_status kv_store_write_small(kv_store *s, const char *dir, const char *path, const void *data, size_t n,
                               kv_error *err);
/* Removes a small file, and its bytes from the accounts. 0, also when there is none, or -errno. */
int kv_store_remove_small(kv_store *s, const char *path);
/* Measures a directory; its growth since *known goes into the accounts. */
void kv_store_note_dir(kv_store *s, uint32_t *known, const char *path);

/* recover.c */
/* Walks the files, with rows of the index in the table already; opens the accounts; removes or adds rows. */
kv_status kv_store_recover(kv_store *s, kv_error *err);
uint64_t kv_store_clean_tmp(kv_store *s, bool dry_run);

/* publish.c */
kv_ns_dirs *kv_store_dirs(kv_store *s, uint16_t ns); /* with the mutex held */
/* Reserves `need` bytes in the accounts, by eviction of what is worth less than `worth`; is_kept: also of what is kept for
 * a time that is not over. */
kv_status kv_store_make_room(kv_store *s, uint64_t need, double worth, bool is_kept, kv_error *err);

/* read.c */
/* Counts, moves the file aside (not when read-only), forgets the row and tells. */
void kv_store_quarantine(kv_store *s, const kv_record_head *head, const char *why);

/* evict.c */
/* Frees `want` bytes by removing what is worth less than `limit` (milliseconds a byte; INFINITY: whatever it is worth).
 * What is to be kept for a time that is not over goes after all else, and with is_kept or INFINITY only.
 * All or nothing, unless partly. Bytes freed; dry_run: that would be. */
uint64_t kv_store_evict(kv_store *s, uint64_t want, double limit, bool is_kept, bool partly, bool dry_run,
                        uint64_t *records);
/* The row goes (its file went, or is damaged): index, and callback if tell. */
void kv_store_forget(kv_store *s, const kv_record_head *head, bool tell);

/* store.c: the index; n rows in bounded changes. */
void kv_store_index_put(kv_store *s, kv_index_row *rows, size_t n);
void kv_store_index_remove(kv_store *s, const kv_index_row *rows, size_t n);
void kv_store_index_flush(kv_store *s); /* all rows that it does not have as they are */

#endif
