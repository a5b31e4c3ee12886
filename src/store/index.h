/* store/index.h: the rows of the table in a SQLite file, so that opening needs no look into every record, and uses
 * survive. Derived: whatever is wrong with it, the files stand, and it is made anew.
 *
 *   record(key, kind | ns, parent, shape, canonical, q, e, compute_ms, n_payload, created, disk, last_used, hits, place,
 *          keep)
 *   place(kind | kept, hits)       how often positions of each kind were kept and gone on at, of all that used DIR
 *
 * Layout 1 had neither place nor keep: it is brought up to this one as it is opened for writing.
 *
 * WAL mode, synchronous NORMAL: a power cut may lose the last changes, never damages the file. Checkpoints are made
 * here, after a change that left the WAL long, so that its size stays bounded.
 *
 * Thread rule: one connection behind one mutex; any thread.
 */
#ifndef KV_STORE_INDEX_H
#define KV_STORE_INDEX_H

#include "os/files.h"
#include "store/table.h"

typedef struct kv_index kv_index;

/* Opens or makes DIR/index.sqlite. KV_CORRUPT: not a database, or of another layout: kv_index_delete and again. */
kv_status kv_index_open(kv_index **out, const char *dir, bool read_only, uint64_t max_wal, kv_error *err);
void kv_index_close(kv_index *x); /* NULL is fine */
void kv_index_delete(const kv_files *files, const char *dir);
void kv_index_paths(char *paths[3], const char *dir); /* owned by the caller */

/* All rows, by key; row->ns is not set. KV_CORRUPT as soon as one is not whole. */
kv_status kv_index_load(kv_index *x, void (*fn)(void *ctx, kv_table_row *row, kv_hash ns), void *ctx, kv_error *err);

typedef struct kv_index_row {
    kv_table_row row;
    kv_hash ns;
} kv_index_row;
/* One transaction each. KV_BUSY: locked by another for too long; KV_CORRUPT; KV_IO. */
kv_status kv_index_put(kv_index *x, const kv_index_row *rows, size_t n, kv_error *err);
/* Adds to the counts, KV_PLACE_COUNT of each, in one transaction; reads them: those that are not there are 0. */
kv_status kv_index_add_places(kv_index *x, const uint64_t *kept, const uint64_t *hits, kv_error *err);
kv_status kv_index_get_places(kv_index *x, uint64_t *kept, uint64_t *hits, kv_error *err);
kv_status kv_index_remove(kv_index *x, const kv_index_row *rows, size_t n, kv_error *err);

#endif
