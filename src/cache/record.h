/* cache/record.h: a record in memory: what was captured or read, and in whose account it is.
 *
 *   captured ─► QUEUE: waits for its insertion into the tree, and for the disk
 *                  └─► RAM: kept
 *   disk ─────► READ: on its way into the engine, let go of once it is there
 *
 * Each account has a hard maximum: the bytes are reserved before the memory is. A record in the queue moves to RAM, or
 * goes when its last holder lets it go.
 *
 * Buffers that were read into are kept for the next ones, a few and within READ's maximum: fresh memory costs a page
 * fault every 4 KiB, which takes as long as reading the page out of the page cache.
 *
 * Thread rule: reference-counted, any thread. Tokens and payload are written by who made it, before it is shared.
 */
#ifndef KV_CACHE_RECORD_H
#define KV_CACHE_RECORD_H

#include "store/format.h"
#include <pthread.h>
#include <stdatomic.h>

typedef enum kv_account { KV_ACCOUNT_QUEUE, KV_ACCOUNT_RAM, KV_ACCOUNT_READ, KV_ACCOUNT_COUNT } kv_account;

enum { KV_POOL_SPARE = 64 }; /* buffers */

typedef struct kv_pool {
    uint64_t max[KV_ACCOUNT_COUNT];          /* bytes */
    _Atomic uint64_t used[KV_ACCOUNT_COUNT]; /* never more than max; READ's not with the spare bytes either */
    pthread_mutex_t spare_mutex;             /* guards what follows, and READ's used */
    kv_buf spare[KV_POOL_SPARE];             /* owned, aligned, the last used one last */
    int n_spare;
    uint64_t spare_bytes;
} kv_pool;

typedef struct kv_record {
    kv_record_head head;
    kv_token *tokens; /* head.n_tokens, in the same allocation */
    kv_buf payload;   /* owned; head.n_payload bytes */
    _Atomic int refs;
    _Atomic int account;
    uint64_t counted;       /* bytes in the account */
    kv_pool *pool;          /* borrowed; outlives its records */
    struct kv_record *next; /* of the list it waits in; its owner's */
    uint64_t order;         /* among those that came for insertion; the cache's */
} kv_record;

void kv_pool_init(kv_pool *p, uint64_t queue_max, uint64_t ram_max, uint64_t read_max);
void kv_pool_free_spare(kv_pool *p); /* the memory of spare buffers goes back; at the end and while nothing is read */
void kv_pool_free(kv_pool *p);       /* after all records */
void kv_pool_check(kv_pool *p);      /* aborts when READ and the spare buffers together hold more than they may */
/* Bytes that a record of this size counts for. */
uint64_t kv_record_bytes(int32_t n_tokens, uint64_t n_payload);
/* One reference. NULL: no room in that account now. The payload, head->n_payload bytes, is counted and still empty: the
 * caller puts it there. tokens NULL: zeros for now. */
kv_record *kv_record_new(kv_pool *p, kv_account account, const kv_record_head *head, const kv_token *tokens);
/* Memory for the payload of a record in READ, aligned to KV_FORMAT_ALIGN, so that it can be read around the page cache.
 * KV_NO_MEMORY. */
kv_status kv_record_make_room(kv_record *r, kv_error *err);
kv_record *kv_record_ref(kv_record *r);
void kv_record_unref(kv_record *r); /* NULL is fine */
/* Into the RAM account. False: no room there, nothing changed. True too when it is there already. */
bool kv_record_to_ram(kv_record *r);

#endif
