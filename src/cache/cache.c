#include "cache/cache_private.h"

#include <stdlib.h>
#include <string.h>

const char *kv_miss_name(kv_miss m) {
    static const char *const names[KV_MISS_COUNT] = {
#define X(name, text) #name,
        KV_MISS_TABLE(X)
#undef X
    };
    return (unsigned)m < KV_MISS_COUNT ? names[m] : "UNKNOWN";
}

const char *kv_miss_text(kv_miss m) {
    static const char *const texts[KV_MISS_COUNT] = {
#define X(name, text) text,
        KV_MISS_TABLE(X)
#undef X
    };
    return (unsigned)m < KV_MISS_COUNT ? texts[m] : "";
}

kv_status kv_cache_new(kv_cache **out, const kv_cache_config *cfg, kv_error *err) {
    *out = NULL;
    const kv_engine_info *info = cfg->engine;
    /* A block that is larger than the window loses window cells before it is full. */
    bool window = kv_memory_has_window(info->memory);
    if (cfg->block < 1 || (window && cfg->block > info->n_window))
        return kv_fail(err, KV_INVALID, "a cache with blocks of %d tokens and a window of %d", (int)cfg->block,
                       (int)info->n_window);
    kv_cache *c = kv_alloc(sizeof *c);
    c->cfg = *cfg;
    c->cfg.engine = NULL;
    c->memory = info->memory;
    c->window = window ? info->n_window : 0;
    c->window_is_chunked = info->window_is_chunked;
    uint64_t state = info->bytes_recurrent + (uint64_t)c->window * info->bytes_per_window_cell;
    c->policy = (kv_policy){cfg->block, cfg->interval ? cfg->interval
                                                      : kv_policy_interval(cfg->block, state, info->bytes_per_cell)};
    c->tree = kv_radix_new(cfg->block);
    kv_pool_init(&c->pool, cfg->queue_bytes, cfg->ram_bytes);
    pthread_mutex_init(&c->mutex, NULL);
    *out = c;
    return KV_OK;
}

static bool remove_record(kv_cache *c, kv_radix_node *node, kv_radix_slot slot) {
    pthread_mutex_lock(&c->mutex);
    kv_radix_record rec;
    bool found = kv_radix_get_record(&rec, c->tree, node, slot);
    if (found) kv_radix_set_record(c->tree, node, slot, &(kv_radix_record){0});
    pthread_mutex_unlock(&c->mutex);
    if (found) kv_record_unref(rec.ram);
    return found;
}

static void drop_records(void *cache, kv_radix_node *node) {
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) remove_record(cache, node, slot);
}

void kv_cache_free(kv_cache *c) {
    if (!c) return;
    KV_CHECK(!c->inserting && !c->first);
    kv_radix_walk(c->tree, drop_records, c);
    kv_radix_free(c->tree);
    KV_CHECK(atomic_load(&c->pool.used[KV_ACCOUNT_QUEUE]) == 0 && atomic_load(&c->pool.used[KV_ACCOUNT_RAM]) == 0);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

int32_t kv_cache_next_edge(const kv_cache *c, int32_t pos, int32_t n_prompt) {
    return kv_policy_next(&c->policy, pos, n_prompt);
}

kv_hash kv_cache_scope(const kv_cache *c, const char *scope) {
    kv_buf b = {0};
    kv_buf_add(&b, &c->cfg.ns, sizeof c->cfg.ns);
    kv_buf_adds(&b, scope && *scope ? scope : "default");
    kv_hash h = kv_hash_bytes(b.data, b.len);
    kv_buf_free(&b);
    return h;
}

kv_radix_slot kv_cache_slot_of(kv_record_kind kind) {
    switch (kind) {
    case KV_RECORD_WINDOW: return KV_RADIX_WINDOW;
    case KV_RECORD_CHECKPOINT: return KV_RADIX_CHECKPOINT;
    case KV_RECORD_WHOLE: return KV_RADIX_WHOLE;
    default: return KV_RADIX_BLOCK;
    }
}

kv_record *kv_cache_record(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot) {
    /* The record is let go of only by who first took it from the tree, under the same mutex. */
    pthread_mutex_lock(&c->mutex);
    kv_radix_record rec;
    kv_record *r = kv_radix_get_record(&rec, c->tree, node, slot) && rec.ram ? kv_record_ref(rec.ram) : NULL;
    pthread_mutex_unlock(&c->mutex);
    return r;
}

bool kv_cache_tokens_of(void *cache, const kv_radix_node *node, kv_token *out) {
    kv_cache *c = cache;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_record *r = kv_cache_record(c, node, slot);
        if (!r) continue;
        int32_t n = kv_radix_n_tokens(node); /* a whole record has the tokens of all its path */
        memcpy(out, r->tokens + (r->head.n_tokens - n), (size_t)n * sizeof *out);
        kv_record_unref(r);
        return true;
    }
    return false;
}

/* ── insertion (I/O thread, one at a time) ─────────────────────────────────────────────────────────────────────── */

/* Removes a node without records and, going up, what it leaves empty. Takes over the reference. */
static void prune(kv_cache *c, kv_radix_node *node) {
    while (node) {
        kv_radix_node *parent = kv_radix_parent(node);
        kv_radix_record rec;
        bool empty = parent != NULL;
        for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++)
            empty = empty && !kv_radix_get_record(&rec, c->tree, node, slot);
        if (empty) kv_radix_ref(c->tree, parent);
        if (!empty || !kv_radix_remove(c->tree, node)) {
            kv_radix_unref(c->tree, node);
            if (empty) kv_radix_unref(c->tree, parent);
            return;
        }
        node = parent;
    }
}

void kv_cache_forget(kv_cache *c, kv_radix_node *node) {
    drop_records(c, node);
    prune(c, node);
}

typedef struct victim {
    kv_radix_node *node;
    double worth; /* seconds saved × hits ÷ bytes, of all records of the node */
    uint64_t bytes;
} victim;

typedef struct victims {
    kv_cache *c;
    victim *v;
    size_t n, cap;
    int64_t now;
} victims;

static void consider(void *ctx, kv_radix_node *node) {
    victims *all = ctx;
    double hits;
    int64_t used;
    uint64_t bytes = 0;
    double seconds = 0;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_radix_record rec;
        if (!kv_radix_get_record(&rec, all->c->tree, node, slot)) continue;
        bytes += rec.bytes;
        seconds += rec.compute_ms / 1e3;
    }
    if (bytes == 0) return;
    kv_radix_use(&hits, &used, all->c->tree, node, all->now);
    if (all->n == all->cap) {
        all->cap = all->cap ? all->cap * 2 : 256;
        all->v = kv_realloc(all->v, all->cap * sizeof *all->v);
    }
    kv_radix_ref(all->c->tree, node);
    all->v[all->n++] = (victim){node, (seconds + 1e-3) * (hits + 1e-3) / (double)bytes, bytes};
}

static int by_worth(const void *a, const void *b) {
    double x = ((const victim *)a)->worth, y = ((const victim *)b)->worth;
    return x < y ? -1 : x > y;
}

/* Nodes without children and other holders go, the least worth first, until `bytes` are free or none is left. A parent
 * becomes a leaf when its last child is gone: several passes. True when something went. */
static bool evict(kv_cache *c, uint64_t bytes) {
    victims all = {.c = c, .now = kv_now_us(c->cfg.clock) / 1000000};
    kv_radix_walk(c->tree, consider, &all);
    if (all.n) qsort(all.v, all.n, sizeof *all.v, by_worth);
    uint64_t freed = 0;
    uint64_t n_gone = 0;
    for (size_t i = 0; i < all.n; i++) {
        kv_radix_node *node = all.v[i].node;
        if (freed < bytes && kv_radix_is_free_leaf(c->tree, node)) {
            freed += all.v[i].bytes;
            n_gone++;
            kv_cache_forget(c, node);
        } else {
            kv_radix_unref(c->tree, node);
        }
    }
    free(all.v);
    pthread_mutex_lock(&c->mutex);
    c->stats.n_evicted += n_gone;
    pthread_mutex_unlock(&c->mutex);
    return n_gone > 0;
}

/* Room in the RAM account, by eviction of a twentieth at a time so that the walk is rare. */
static bool keep_in_ram(kv_cache *c, kv_record *r) {
    if (r->counted > c->pool.max[KV_ACCOUNT_RAM]) return false;
    while (!kv_record_to_ram(r)) {
        uint64_t want = c->pool.max[KV_ACCOUNT_RAM] / 20;
        if (!evict(c, want > r->counted ? want : r->counted)) return false;
    }
    return true;
}

/* A longer block holds what shorter ones below the same parent hold. */
static void supersede(kv_cache *c, kv_radix_node *node) {
    kv_radix_node *shorter[16];
    int n = kv_radix_prefixes(shorter, 16, c->tree, node);
    for (int i = 0; i < n; i++) {
        kv_radix_record rec;
        if (kv_radix_get_record(&rec, c->tree, node, KV_RADIX_BLOCK)) remove_record(c, shorter[i], KV_RADIX_BLOCK);
        if (kv_radix_get_record(&rec, c->tree, node, KV_RADIX_WINDOW)) remove_record(c, shorter[i], KV_RADIX_WINDOW);
        prune(c, shorter[i]);
    }
}

static bool insert(kv_cache *c, kv_record *r) {
    r->head.payload_hash = kv_hash_bytes(r->payload.data, r->payload.len);
    kv_radix_node *parent = kv_radix_get(c->tree, r->head.parent), *node = NULL, *bad = NULL;
    if (!parent) return false; /* it found no room; what hangs on it is of no use */
    int32_t own = r->head.e - r->head.q;
    bool created;
    kv_status status = kv_radix_add(&node, &created, &bad, c->tree, parent, r->tokens + (r->head.n_tokens - own),
                                    (size_t)own, kv_cache_tokens_of, c, NULL);
    kv_radix_unref(c->tree, parent);
    if (bad) kv_radix_unref(c->tree, bad);
    if (status != KV_OK) return false;
    kv_radix_slot slot = kv_cache_slot_of(r->head.kind);
    kv_radix_record have;
    bool ok = !kv_radix_get_record(&have, c->tree, node, slot) && keep_in_ram(c, r);
    if (ok) {
        kv_radix_set_record(c->tree, node, slot,
                            &(kv_radix_record){.bytes = r->counted,
                                               .ram = kv_record_ref(r),
                                               .canonical = r->head.canonical,
                                               .compute_ms = r->head.compute_ms});
        kv_radix_touch(c->tree, node, kv_now_us(c->cfg.clock) / 1000000);
        if (slot == KV_RADIX_BLOCK || slot == KV_RADIX_WINDOW) supersede(c, node);
        kv_radix_unref(c->tree, node);
    } else {
        prune(c, node);
    }
    return ok;
}

static void count_inserted(kv_cache *c, const kv_record *r, bool ok) {
    if (!ok) {
        c->stats.n_dropped++;
        return;
    }
    c->stats.bytes_captured += r->counted;
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
        pthread_mutex_lock(&c->mutex);
        kv_record *r = c->first;
        if (r) c->first = r->next;
        if (!c->first) c->last = NULL;
        if (!r) c->inserting = false;
        pthread_mutex_unlock(&c->mutex);
        if (!r) return;
        r->next = NULL;
        bool ok = insert(c, r);
        pthread_mutex_lock(&c->mutex);
        count_inserted(c, r, ok);
        pthread_mutex_unlock(&c->mutex);
        kv_record_unref(r);
    }
}

void kv_cache_insert_later(kv_cache *c, kv_record *r) {
    r->next = NULL;
    pthread_mutex_lock(&c->mutex);
    if (c->last) c->last->next = r;
    else c->first = r;
    c->last = r;
    bool start = !c->inserting;
    c->inserting = true;
    pthread_mutex_unlock(&c->mutex);
    /* The READ lane, though nobody waits: the next turn of this conversation soon looks for it. */
    if (start) kv_io_submit(c->cfg.io, KV_IO_READ, insert_all, c);
}

/* ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_cache_get_stats(kv_cache_stats *out, kv_cache *c) {
    pthread_mutex_lock(&c->mutex);
    *out = c->stats;
    pthread_mutex_unlock(&c->mutex);
    out->queue_bytes = atomic_load(&c->pool.used[KV_ACCOUNT_QUEUE]);
    out->ram_bytes = atomic_load(&c->pool.used[KV_ACCOUNT_RAM]);
    out->nodes = kv_radix_count(c->tree);
    out->tree_bytes = kv_radix_bytes(c->tree);
}

static void check_node(void *cache, kv_radix_node *node) {
    kv_cache *c = cache;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_record *r = kv_cache_record(c, node, slot);
        if (!r) continue;
        KV_CHECK(kv_cache_slot_of(r->head.kind) == slot);
        KV_CHECK(kv_hash_equal(r->head.key, kv_radix_key(node)));
        KV_CHECK(r->head.e == kv_radix_start(node) + kv_radix_n_tokens(node));
        KV_CHECK(kv_hash_equal(r->head.payload_hash, kv_hash_bytes(r->payload.data, r->payload.len)));
        KV_CHECK(atomic_load(&r->account) == KV_ACCOUNT_RAM);
        kv_record_unref(r);
    }
}

void kv_cache_self_check(kv_cache *c) {
    kv_radix_check(c->tree, kv_cache_tokens_of, c);
    kv_radix_walk(c->tree, check_node, c);
    for (int a = 0; a < KV_ACCOUNT_COUNT; a++) KV_CHECK(atomic_load(&c->pool.used[a]) <= c->pool.max[a]);
}
