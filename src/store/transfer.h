/* store/transfer.h: one namespace as one file, to be carried to another machine or kept apart.
 *
 *   offset size  field (little-endian)
 *        0    8  magic "KVEXPORT"
 *        8    4  version of this layout: KV_TRANSFER_VERSION
 *       12    4  A: bytes of about.json, at most 64 KiB
 *       16   16  namespace
 *       32    8  number of records
 *       40    8  bytes of all records
 *       48   16  chained checksum: c(0) = XXH3-128 of about.json, c(i) = XXH3-128(c(i-1) ‖ XXH3-128 of record i)
 *       64  184  zero
 *      248    8  XXH3-64 of [0, 248)
 *      256    A  about.json, then zeros up to a multiple of 4096
 *        …    …  the records, each exactly as its file (store/format.h), a multiple of 4096 long
 *
 * A record comes after the block that it hangs on; the first ones hang on the namespace itself. What hangs on nothing
 * (its block was damaged, say) is left out. Checksums find damage, not malice: who writes a file can write any state.
 *
 * Into another namespace every key changes, since the chain begins with the namespace's hash: keys are computed anew,
 * parents first.
 *
 * Thread rule: one thread an export or import; the store may be used by others meanwhile.
 */
#ifndef KV_STORE_TRANSFER_H
#define KV_STORE_TRANSFER_H

#include "store/store.h"

#define KV_TRANSFER_VERSION 1

typedef void (*kv_transfer_progress)(void *ctx, uint64_t done, uint64_t total); /* bytes */

typedef struct kv_transfer_sum {
    uint64_t records, bytes;
    uint64_t left_out; /* export: hang on nothing, gone or damaged; import: stored already */
} kv_transfer_sum;

/* Writes `path` (0600, published whole; KV_INVALID when there is a file of this name). */
kv_status kv_transfer_export(kv_transfer_sum *out, kv_store *s, kv_hash ns, const char *about, const char *path,
                             kv_transfer_progress progress, void *ctx, kv_error *err);

typedef struct kv_import kv_import;
/* Reads header and about.json. KV_CORRUPT: not such a file, or damaged; KV_UNSUPPORTED: a newer one. */
kv_status kv_import_open(kv_import **out, const kv_files *files, const char *path, kv_error *err);
void kv_import_close(kv_import *m); /* NULL is fine */
kv_hash kv_import_ns(const kv_import *m);
kv_hash kv_import_content(const kv_import *m);   /* the chained checksum: equal files, equal numbers */
const char *kv_import_about(const kv_import *m); /* borrowed */
/* Reads all: checksums, format, keys, and that each record hangs on one before it. */
kv_status kv_import_verify(kv_import *m, kv_transfer_progress progress, void *ctx, kv_error *err);
/* Stores all records as ones of `ns`, each checked again. KV_NO_MEMORY: the cache is full; what was stored stays. */
kv_status kv_import_store(kv_transfer_sum *out, kv_import *m, kv_store *s, kv_hash ns, kv_transfer_progress progress,
                          void *ctx, kv_error *err);

#endif
