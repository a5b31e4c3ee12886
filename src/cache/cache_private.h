/* cache/cache_private.h: shared by cache.c, lookup.c and trail.c. */
#ifndef KV_CACHE_CACHE_PRIVATE_H
#define KV_CACHE_CACHE_PRIVATE_H

#include "cache/cache.h"
#include "cache/policy.h"
#include "cache/record.h"
#include <pthread.h>

struct kv_cache {
    kv_cache_config cfg;
    kv_memory_kind memory;
    kv_policy policy;
    int32_t window;
    bool window_is_chunked;
    kv_radix *tree;
    kv_pool pool;
    pthread_mutex_t mutex;   /* guards what follows; look-ups wake their callers under it */
    kv_record *first, *last; /* captured, not yet inserted; in order of capture, so parents come first */
    bool inserting;          /* a job is on its way or runs: one at a time keeps the order */
    kv_cache_stats stats;
};

kv_hash kv_cache_scope(const kv_cache *c, const char *scope); /* root key */
kv_radix_slot kv_cache_slot_of(kv_record_kind kind);
/* Takes over the reference; the record will be hashed and inserted on an I/O thread. */
void kv_cache_insert_later(kv_cache *c, kv_record *r);
/* kv_radix_tokens_fn over the records in memory. */
bool kv_cache_tokens_of(void *cache, const kv_radix_node *node, kv_token *out);
/* The record of a node, referenced, or NULL. */
kv_record *kv_cache_record(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot);
/* Let go of records (all slots) of a node and of the node itself if nothing holds it. Takes over the reference. */
void kv_cache_forget(kv_cache *c, kv_radix_node *node);

#endif
