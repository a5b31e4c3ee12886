/* cache/cache_private.h: the inside of the cache. Only files in cache/ include this header.
 *
 *   cache.c    making, freeing, numbers, checks; scopes
 *   insert.c   captured records into the tree; what goes when memory is short
 *   disk.c     scopes from the store into the tree; records written behind, read back, gone
 *   forget.c   what turned out to be no numbers
 *   flush.c    the end: what waits for the disk, the most valuable first
 *   rest.c     while the engine is gone and the cache stays
 *   lookup.c   from a prompt to a position and the records that lead there
 *   respell.c  the prompt's bytes in the tokens that are stored for them
 *   pieces.c   a vocabulary by its bytes
 *   restore.c  those records into the engine, read from the disk while others compute
 *   state.c    between the engine's blobs and records
 *   record.c   records in memory, and their accounts
 *   policy.c   which positions are worth keeping
 *   namespace.c  what stored state depends on
 *   trail.c    what a running sequence leaves behind
 *   path.c     what is kept along a path: which places, and within which budget
 *   probe.c    whether what another engine build left can be used
 *
 * A record's way:
 *
 *   captured ──► insertions ──► tree, in memory ──┬─ no store ──► RAM account, evicted by worth
 *   (trail)      (one at a time)                  └─ writes ──► store ──► on disk; in memory too while there is room
 *                                                   (one at a time)         read again when a restore needs it
 *
 * Thread rule: as cache.h; what a mutex guards, and its place in the order, stands at the mutex.
 */
#ifndef KV_CACHE_CACHE_PRIVATE_H
#define KV_CACHE_CACHE_PRIVATE_H

#include "cache/cache.h"
#include "cache/policy.h"
#include "cache/record.h"
#include <pthread.h>

/* A scope that was named since the start. Never removed, so its number of bytes is bounded by the keys in use. */
typedef struct kv_scope {
    kv_hash ns;  /* its root's key */
    char *name;  /* owned */
    bool loaded; /* or being loaded, under the scopes' mutex */
} kv_scope;

/* Records that wait for the same thing, in order. */
typedef struct kv_record_list {
    kv_record *first, *last;
} kv_record_list;

/* A path that is to be forgotten from a position on, once what was captured before that is in the tree. */
typedef struct kv_forgetting {
    kv_hash ns;
    kv_token *tokens; /* owned, n of them */
    int32_t n, from;
    uint64_t after; /* records of this order and earlier ones come first */
    struct kv_forgetting *next;
} kv_forgetting;

struct kv_cache {
    kv_cache_config cfg;
    kv_memory_kind memory;
    kv_policy policy;
    int32_t near; /* see kv_policy_near */
    int32_t window;
    bool window_is_chunked;
    uint64_t state_bytes, cell_bytes, window_cell_bytes; /* of one recurrent state; of one token */
    kv_radix *tree;
    kv_pool pool;
    int64_t wall_offset_s;       /* what the clock lacks to Unix time */
    pthread_mutex_t scope_mutex; /* first in the order; held while a scope is loaded */
    int64_t last_gc_s;           /* the writing job's */
    pthread_mutex_t mutex; /* guards what follows, and the records of all nodes; look-ups wake their callers under it */
    kv_scope *scopes;      /* owned, n_scopes */
    int n_scopes;
    kv_record_list insertions, writes; /* parents before what hangs on them */
    kv_forgetting *forgettings;        /* owned, in order; each counts as captured and settled, too */
    uint64_t n_ordered;                /* records that were put into `insertions` */
    bool inserting, writing;           /* a job is on its way or runs: one at a time keeps the order */
    int64_t give_up_at;             /* what is not written by then shall not be; INT64_MAX: nobody waits for an end */
    uint64_t tokens_in_hand;        /* of blocks that the writing job took out of `writes` */
    uint64_t tokens_given_up;       /* of blocks that were not written in time */
    uint64_t n_captured, n_settled; /* records that came for insertion, and those that are in the tree or dropped */
    pthread_cond_t settled;         /* n_settled grew */
    pthread_cond_t quiet;           /* nothing waits any more */
    bool loses_records;             /* the disk refused the last one that it was asked for, and memory had no room */
    kv_lookup **hungry;             /* owned; restores that wait for room to read into, in order; each referenced */
    int n_hungry, cap_hungry;
    kv_cache_stats stats;
    char *probe_build;            /* owned; the engine's, once kv_probe_run has looked */
    atomic_bool probe_wanted;     /* the next prompt that suits is noted */
    pthread_mutex_t pieces_mutex; /* held while they are made; nothing else is locked then */
    struct kv_pieces *pieces;     /* owned; the model's vocabulary, once a prompt was respelled. NULL = not yet */
};

/* cache.c */
kv_radix_slot kv_cache_slot_of(kv_record_kind kind);
kv_record_kind kv_cache_kind_of(kv_radix_slot slot);
/* The root of a scope, referenced. Any thread. */
kv_radix_node *kv_cache_root(kv_cache *c, const char *scope);
void kv_cache_append(kv_record_list *list, kv_record *r);
kv_record *kv_cache_pop(kv_record_list *list); /* NULL: empty */
/* The record of a node that is in memory, referenced, or NULL. */
kv_record *kv_cache_record(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot);
/* Removes a node without records and, going up, what it leaves empty. Takes over the reference. */
void kv_cache_prune(kv_cache *c, kv_radix_node *node);
/* The record is nowhere any more, or (keep_disk) not in memory. True when there was one. */
bool kv_cache_let_go(kv_cache *c, kv_radix_node *node, kv_radix_slot slot, bool keep_disk);
/* All nodes below `top`, children first, each referenced; the array is the caller's (NULL for none). */
kv_radix_node **kv_cache_below(size_t *n, kv_cache *c, const kv_radix_node *top);
int64_t kv_cache_now_s(const kv_cache *c); /* the tree's time, seconds */

/* insert.c */
/* Takes over the reference; the record will be hashed and inserted on an I/O thread. */
void kv_cache_insert_later(kv_cache *c, kv_record *r);
/* Room in the RAM account, by eviction of what is worth less. False: there is none. */
bool kv_cache_keep_in_ram(kv_cache *c, kv_record *r);
void kv_cache_supersede(kv_cache *c, kv_radix_node *node); /* a longer block holds what shorter ones hold */

/* Something was added to what the inserting job does, and counts as captured from now on. */
void kv_cache_start_inserting(kv_cache *c);

/* forget.c */
kv_forgetting *kv_cache_next_forgetting(kv_cache *c); /* the one whose turn it is, or NULL. Caller holds the mutex */
void kv_cache_carry_out(kv_cache *c, kv_forgetting *f);

/* disk.c; I/O threads. All do nothing without a store. */
void kv_cache_load_scope(kv_cache *c, kv_hash ns); /* its records on disk into the tree, once */
void kv_cache_write_later(kv_cache *c, kv_record *r);
/* Tokens whose cells the record holds: those of a block, else 0. */
uint64_t kv_cache_block_tokens(const kv_record *r);
void kv_cache_gone(void *cache, const kv_record_head *head); /* kv_store_on_gone */
/* kv_radix_tokens_fn over memory and disk. A record that turns out to be damaged or missing is forgotten. */
bool kv_cache_tokens_of(void *cache, const kv_radix_node *node, kv_token *out);
/* Reads into `r` (tokens and payload), whose head names it; from_drive: around the page cache. On failure the tree has forgotten it unless it may come
 * back (KV_IO). */
kv_status kv_cache_read(kv_cache *c, kv_record *r, bool *from_drive, kv_error *err);
/* The head by which the store finds a node's record. False: there is none on disk. */
bool kv_cache_head_of(kv_record_head *out, kv_cache *c, const kv_radix_node *node, kv_radix_slot slot);
bool kv_cache_is_pinned(kv_cache *c, const kv_radix_node *node,
                        kv_radix_slot slot); /* on disk, as this process knows */
/* A use of the node, in the tree, and of some of its records, on disk. slots: bits, 1 << kv_radix_slot. */
void kv_cache_touch(kv_cache *c, kv_radix_node *node, unsigned slots);
/* The record goes from the tree, from memory and from disk. */
void kv_cache_remove(kv_cache *c, kv_radix_node *node, kv_radix_slot slot);
/* The records of the node and of all below it go. Takes over the reference. */
void kv_cache_forget_from(kv_cache *c, kv_radix_node *top);
/* A node that has no record any more goes with all that hangs on it. Takes over the reference; false: it has some. */
bool kv_cache_forget_if_lost(kv_cache *c, kv_radix_node *node);

/* flush.c */
/* Caller holds the mutex, which is given up while waiting. Until both flags are false, at most until the clock says
 * `until`; an inline io's jobs are run meanwhile. */
void kv_cache_wait_while(kv_cache *c, const bool *one, const bool *other, int64_t until);

/* lookup.c */
/* Children known by key alone are put apart; one whose tokens are gone is forgotten. False: one cannot be read now. */
bool kv_cache_settle_children(kv_cache *c, kv_radix_node *parent);

/* path.c */
/* What is kept from the root to `last` (NULL = nothing) and at `more`, known by tokens already: n spots, the caller's. */
kv_spot *kv_path_kept(int *n, kv_cache *c, kv_radix_node *last, kv_radix_node *const *more, int n_more);
/* Room in its path's budget for a state or window part of `node`, which has none yet; what is worth least there goes.
 * False: there is none. Other records need no such room. */
bool kv_cache_make_path_room(kv_cache *c, kv_radix_node *node, const kv_record *r);
void kv_cache_count_place(kv_cache *c, kv_place_kind kind, bool hit); /* one more was gone on at, or kept */

/* restore.c */
void kv_cache_feed_hungry(kv_cache *c); /* after room to read into was given back */

#endif
