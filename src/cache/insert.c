/* cache/insert.c: captured records into the tree, one at a time and in order, and what goes when memory is short. */
#include "cache/cache_private.h"

#include <stdlib.h>

/* Siblings found to be damaged that one insertion clears away. */
#define MAX_LOST 16

/* ── eviction from memory ──────────────────────────────────────────────────────────────────────────────────────── */

typedef struct victim {
    kv_radix_node *node;
    bool is_kept;   /* the time for which it is to be kept is not over */
    double worth;   /* of all records of the node that are in the account */
    uint64_t bytes; /* of them */
} victim;

typedef struct victims {
    kv_cache *c;
    victim *v;
    size_t n, cap;
    int64_t now;
} victims;

/* The slot's record, if it lies in the RAM account: nothing writes it any more. Else NULL. Caller holds the mutex. */
static const kv_record *in_ram(kv_radix_record *rec, const kv_cache *c, const kv_radix_node *node, kv_radix_slot slot) {
    const kv_record *r = kv_radix_get_record(rec, c->tree, node, slot) ? rec->ram : NULL;
    return r && atomic_load(&r->account) == KV_ACCOUNT_RAM ? r : NULL;
}

/* What of a node lies in the RAM account, and whether all of that is on disk too. */
static uint64_t bytes_in_ram(kv_cache *c, const kv_radix_node *node, uint32_t *compute_ms, uint32_t *keep,
                             bool *on_disk) {
    uint64_t bytes = 0;
    *compute_ms = *keep = 0;
    *on_disk = true;
    pthread_mutex_lock(&c->mutex);
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_radix_record rec;
        const kv_record *r = in_ram(&rec, c, node, slot);
        if (!r) continue;
        bytes += r->counted;
        *compute_ms += rec.compute_ms;
        if (rec.keep_300s * 300u > *keep) *keep = rec.keep_300s * 300u;
        *on_disk = *on_disk && rec.on_disk;
    }
    pthread_mutex_unlock(&c->mutex);
    return bytes;
}

static void consider(void *ctx, kv_radix_node *node) {
    victims *all = ctx;
    double hits;
    int64_t used;
    uint32_t compute_ms, keep;
    bool on_disk;
    uint64_t bytes = bytes_in_ram(all->c, node, &compute_ms, &keep, &on_disk);
    if (bytes == 0) return;
    kv_radix_use(&hits, &used, all->c->tree, node, all->now);
    if (all->n == all->cap) {
        all->cap = all->cap ? all->cap * 2 : 256;
        all->v = kv_realloc(all->v, all->cap * sizeof *all->v);
    }
    kv_radix_ref(all->c->tree, node);
    all->v[all->n++] = (victim){node, used + keep > all->now && !on_disk,
                                kv_store_worth(compute_ms, hits, bytes) * kv_store_fade(all->now - used), bytes};
}

static int by_worth(const void *a, const void *b) {
    const victim *x = a, *y = b;
    if (x->is_kept != y->is_kept) return x->is_kept ? 1 : -1;
    return x->worth < y->worth ? -1 : x->worth > y->worth;
}

static bool is_in_ram(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot) {
    kv_radix_record rec;
    pthread_mutex_lock(&c->mutex);
    bool yes = in_ram(&rec, c, node, slot) != NULL;
    pthread_mutex_unlock(&c->mutex);
    return yes;
}

/* What is on disk too only leaves memory; a new state at an old block, which waits for the disk, stays. Else all is gone
 * then, so it goes leaves first. */
static bool take_out(kv_cache *c, victim *v) {
    uint32_t compute_ms, keep;
    bool on_disk;
    if (bytes_in_ram(c, v->node, &compute_ms, &keep, &on_disk) == 0) return false;
    if (!on_disk && !kv_radix_is_free_leaf(c->tree, v->node)) return false;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++)
        if (!on_disk || is_in_ram(c, v->node, slot)) kv_cache_let_go(c, v->node, slot, true);
    return true;
}

/* The least worth first, what is to be kept for a time last, until `bytes` are free or none is left. A parent becomes a
 * leaf when its last child is gone: several passes. True when something went. */
static bool evict(kv_cache *c, uint64_t bytes) {
    victims all = {.c = c, .now = kv_cache_now_s(c)};
    kv_radix_walk(c->tree, consider, &all);
    if (all.n) qsort(all.v, all.n, sizeof *all.v, by_worth);
    uint64_t freed = 0, n_gone = 0;
    bool enough = false;
    for (size_t i = 0; i < all.n; i++) {
        /* What is to be kept goes only once nothing else can: parents may be leaves in the next pass. */
        if (all.v[i].is_kept && i > 0 && !all.v[i - 1].is_kept) enough = n_gone > 0;
        if (freed < bytes && !enough && take_out(c, &all.v[i])) {
            freed += all.v[i].bytes;
            n_gone++;
            kv_cache_prune(c, all.v[i].node);
        } else {
            kv_radix_unref(c->tree, all.v[i].node);
        }
    }
    free(all.v);
    pthread_mutex_lock(&c->mutex);
    c->stats.n_evicted += n_gone;
    pthread_mutex_unlock(&c->mutex);
    return n_gone > 0;
}

bool kv_cache_keep_in_ram(kv_cache *c, kv_record *r) {
    if (r->counted > c->pool.max[KV_ACCOUNT_RAM]) return false;
    while (!kv_record_to_ram(r)) {
        uint64_t want = c->pool.max[KV_ACCOUNT_RAM] / 20; /* a twentieth at a time, so that the walk is rare */
        if (!evict(c, want > r->counted ? want : r->counted)) return false;
    }
    return true;
}

/* ── insertion ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What somebody pinned stays: the longer block may be evicted, this one may not. */
void kv_cache_supersede(kv_cache *c, kv_radix_node *node) {
    kv_radix_node *shorter[16];
    int n = kv_radix_prefixes(shorter, 16, c->tree, node);
    for (int i = 0; i < n; i++) {
        kv_radix_record rec;
        for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WINDOW; slot++)
            if (kv_radix_get_record(&rec, c->tree, node, slot) && (!c->cfg.store || rec.on_disk) &&
                !kv_cache_is_pinned(c, shorter[i], slot))
                kv_cache_remove(c, shorter[i], slot);
        kv_cache_prune(c, shorter[i]);
    }
}

/* Into the node's slot; with a store it waits in the queue for the disk. */
static bool put(kv_cache *c, kv_radix_node *node, kv_record *r) {
    kv_radix_slot slot = kv_cache_slot_of(r->head.kind);
    kv_radix_record have;
    if (kv_radix_get_record(&have, c->tree, node, slot)) return false;
    if (!kv_cache_make_path_room(c, node, r)) return false;
    if (!c->cfg.store && !kv_cache_keep_in_ram(c, r)) return false;
    pthread_mutex_lock(&c->mutex);
    kv_radix_set_record(c->tree, node, slot,
                        &(kv_radix_record){.bytes = r->payload.len,
                                           .ram = kv_record_ref(r),
                                           .canonical = r->head.canonical,
                                           .place = (uint8_t)r->head.place,
                                           .keep_300s = kv_radix_keep_300s(r->head.keep_seconds),
                                           .compute_ms = r->head.compute_ms});
    pthread_mutex_unlock(&c->mutex);
    return true;
}

static bool insert(kv_cache *c, kv_record *r) {
    kv_cache_load_scope(c, r->head.ns);
    r->head.payload_hash = kv_hash_bytes(r->payload.data, r->payload.len);
    r->head.created = kv_cache_now_s(c);
    kv_radix_node *parent = kv_radix_get(c->tree, r->head.parent), *node = NULL, *bad = NULL;
    if (!parent) return false; /* it found no room; what hangs on it is of no use */
    int32_t own = r->head.e - r->head.q;
    bool created;
    kv_status status = KV_CORRUPT;
    for (int tries = 0; tries < MAX_LOST; tries++) {
        status = kv_radix_add(&node, &created, &bad, c->tree, parent, r->tokens + (r->head.n_tokens - own), (size_t)own,
                              kv_cache_tokens_of, c, NULL);
        if (!bad || !kv_cache_forget_if_lost(c, bad)) break; /* else a sibling's records turned out to be gone */
    }
    kv_radix_unref(c->tree, parent);
    if (status != KV_OK) return false;
    if (!put(c, node, r)) {
        kv_cache_prune(c, node);
        return false;
    }
    if (created) kv_radix_set_use(c->tree, node, 0, kv_cache_now_s(c));
    if (c->cfg.store) kv_cache_write_later(c, kv_record_ref(r));
    else if (r->head.kind == KV_RECORD_BLOCK || r->head.kind == KV_RECORD_WINDOW) kv_cache_supersede(c, node);
    kv_radix_unref(c->tree, node);
    return true;
}

static void count_inserted(kv_cache *c, const kv_record *r, bool ok) {
    if (!ok) {
        c->stats.n_dropped++;
        return;
    }
    c->stats.bytes_captured += r->counted;
    if (r->head.kind != KV_RECORD_BLOCK) c->stats.place_bytes[r->head.place] += r->counted;
    switch (r->head.kind) {
    case KV_RECORD_BLOCK: c->stats.n_blocks++; break;
    case KV_RECORD_WINDOW: c->stats.n_windows++; break;
    case KV_RECORD_CHECKPOINT:
    case KV_RECORD_WHOLE: c->stats.n_checkpoints++; break;
    }
}

static void insert_all(void *cache) {
    kv_cache *c = cache;
    for (;;) {
        bool ok = false;
        pthread_mutex_lock(&c->mutex);
        kv_forgetting *f = kv_cache_next_forgetting(c);
        kv_record *r = f ? NULL : kv_cache_pop(&c->insertions);
        if (!f && !r) {
            c->inserting = false;
            pthread_cond_broadcast(&c->quiet);
        }
        pthread_mutex_unlock(&c->mutex);
        if (!f && !r) return;
        if (f) kv_cache_carry_out(c, f);
        else ok = insert(c, r);
        if (ok && r->head.kind != KV_RECORD_BLOCK) kv_cache_count_place(c, r->head.place, false);
        pthread_mutex_lock(&c->mutex);
        if (r) count_inserted(c, r, ok);
        c->n_settled++;
        pthread_cond_broadcast(&c->settled);
        pthread_mutex_unlock(&c->mutex);
        kv_record_unref(r);
    }
}

void kv_cache_start_inserting(kv_cache *c) {
    pthread_mutex_lock(&c->mutex);
    bool start = !c->inserting;
    c->inserting = true;
    pthread_mutex_unlock(&c->mutex);
    /* The READ lane, though nobody waits: the next turn of this conversation soon looks for it. */
    if (start) kv_io_submit(c->cfg.io, KV_IO_READ, insert_all, c);
    pthread_mutex_lock(&c->mutex);
    c->n_captured++; /* only now: who waits for it stands behind its job */
    pthread_mutex_unlock(&c->mutex);
}

void kv_cache_insert_later(kv_cache *c, kv_record *r) {
    pthread_mutex_lock(&c->mutex);
    r->order = ++c->n_ordered;
    kv_cache_append(&c->insertions, r);
    pthread_mutex_unlock(&c->mutex);
    kv_cache_start_inserting(c);
}
