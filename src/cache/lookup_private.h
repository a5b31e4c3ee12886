/* cache/lookup_private.h: a look-up and its plan, shared by lookup.c, which makes it, and restore.c, which carries it out.
 *
 *   group     0          1        …       n_groups-1
 *          [block]    [block]          [block window checkpoint]     what one step of the engine thread needs at once
 *             └──────────┴── read in this order, ahead of the engine thread as far as there is room
 *
 * Two readers take turns at the groups: while one checks what came, the drive works for the other. Room for a group is
 * reserved when it is taken, so that nobody waits for room while he holds what cannot be used yet.
 *
 * Thread rule: made on an I/O thread before `ready`; then the parts of group i belong to its reader until n_read > i, and
 * to the engine thread from then on.
 */
#ifndef KV_CACHE_LOOKUP_PRIVATE_H
#define KV_CACHE_LOOKUP_PRIVATE_H

#include "cache/cache_private.h"
#include <stdatomic.h>

typedef struct kv_part {
    kv_record *record; /* referenced; NULL: not needed, or not read yet */
    kv_record_head head;
    int32_t upto; /* its tokens up to here must be the prompt's */
    bool is_needed, from_disk;
} kv_part;

typedef struct kv_restore_part {
    kv_part block, window;
    int32_t q, e; /* of the block's record; e may lie beyond P */
} kv_restore_part;

struct kv_lookup {
    kv_cache *cache;
    _Atomic int refs; /* the caller's and the job's */
    kv_token *tokens; /* owned */
    int32_t n;
    kv_radix_node *root; /* referenced */
    void (*wake)(void *);
    void *wake_ctx;
    _Atomic bool ready, abandoned;
    uint64_t after; /* captures that came before it: what a conversation just left is found by its next turn */
    kv_lookup_result result;
    kv_restore_part *steps; /* owned, n_steps: blocks from 0 on, in order */
    int n_steps;
    kv_part checkpoint; /* or the whole record */
    kv_spot *kept;      /* owned, n_kept: places along the prompt's path that have what cannot be cut */
    int n_kept;

    /* restore */
    _Atomic int n_read;    /* leading groups that are in memory */
    int n_claimed;         /* groups that a reader has taken, in order; this and the next two under the cache's mutex */
    int n_readers;         /* jobs that read, or wait for room */
    bool *done;            /* owned; one a group: it is in memory */
    _Atomic bool starving; /* the engine thread waits */
    _Atomic int failure;   /* kv_miss: why the next group cannot be read; NONE: it can */
    int next;              /* step to be put next; the engine thread's */
    int32_t n_ram, n_disk; /* tokens put so far, by source; the engine thread's */
    bool begun;
};

/* The record's tokens are the prompt's, as far as they are to be used. */
bool kv_part_matches(const kv_lookup *l, const kv_part *p, const kv_record *r);
void kv_lookup_drop(kv_lookup *l); /* a reference */

#endif
