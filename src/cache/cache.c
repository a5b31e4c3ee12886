#include "cache/cache_private.h"
#include "cache/namespace.h"
#include "cache/pieces.h"

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

/* What the store has counted before. */
static void remember_places(kv_cache *c) {
    uint64_t kept[KV_PLACE_COUNT], hits[KV_PLACE_COUNT];
    kv_store_get_places(c->cfg.store, kept, hits);
    for (int k = 0; k < KV_PLACE_COUNT; k++) c->stats.places[k] = (kv_place_count){kept[k], hits[k]};
}

kv_status kv_cache_new(kv_cache **out, const kv_cache_config *cfg, kv_error *err) {
    *out = NULL;
    const kv_engine_info *info = cfg->engine;
    /* A block that is larger than the window loses window cells before it is full. */
    bool window = kv_memory_has_window(info->memory);
    if (cfg->block < 1 || (window && cfg->block > info->n_window))
        return kv_fail(err, KV_INVALID, "a cache with blocks of %d tokens and a window of %d", (int)cfg->block,
                       (int)info->n_window);
    if (cfg->exact_chunk % cfg->block)
        return kv_fail(err, KV_INVALID, "exact chunks of %d tokens are no multiple of blocks of %d",
                       (int)cfg->exact_chunk, (int)cfg->block);
    kv_cache *c = kv_alloc(sizeof *c);
    c->cfg = *cfg;
    c->cfg.engine = NULL;
    c->memory = info->memory;
    c->window = window ? info->n_window : 0;
    c->window_is_chunked = info->window_is_chunked;
    uint64_t state = info->bytes_recurrent + (uint64_t)c->window * info->bytes_per_window_cell;
    c->policy = (kv_policy){cfg->block,
                            cfg->interval ? cfg->interval : kv_policy_interval(cfg->block, state, info->bytes_per_cell),
                            .exact_chunk = cfg->exact_chunk, .only_intervals = cfg->only_intervals};
    c->state_bytes = info->bytes_recurrent;
    c->cell_bytes = info->bytes_per_cell;
    c->window_cell_bytes = info->bytes_per_window_cell;
    c->near = kv_policy_near(c->policy.interval, info->bytes_recurrent, info->bytes_per_cell);
    if (cfg->clock == kv_clock_real()) c->wall_offset_s = kv_wall_seconds() - kv_now_us(cfg->clock) / 1000000;
    c->give_up_at = INT64_MAX;
    c->tree = kv_radix_new(cfg->block);
    kv_pool_init(&c->pool, cfg->queue_bytes, cfg->ram_bytes, cfg->read_bytes);
    pthread_mutex_init(&c->scope_mutex, NULL);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_mutex_init(&c->pieces_mutex, NULL);
    pthread_cond_init(&c->quiet, NULL);
    pthread_cond_init(&c->settled, NULL);
    if (cfg->store) kv_store_on_gone(cfg->store, kv_cache_gone, c);
    if (cfg->store) remember_places(c);
    *out = c;
    return KV_OK;
}

static void let_go_of_memory(void *cache, kv_radix_node *node) {
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) kv_cache_let_go(cache, node, slot, true);
}

void kv_cache_free(kv_cache *c) {
    if (!c) return;
    KV_CHECK(!c->inserting && !c->writing && !c->n_hungry);
    if (c->cfg.store) kv_store_on_gone(c->cfg.store, NULL, NULL);
    kv_radix_walk(c->tree, let_go_of_memory, c);
    kv_radix_free(c->tree);
    for (int a = 0; a < KV_ACCOUNT_COUNT; a++) KV_CHECK(atomic_load(&c->pool.used[a]) == 0);
    kv_pool_free(&c->pool);
    for (int i = 0; i < c->n_scopes; i++) free(c->scopes[i].name);
    free(c->scopes);
    free(c->hungry);
    free(c->probe_build);
    kv_pieces_free(c->pieces);
    pthread_mutex_destroy(&c->scope_mutex);
    pthread_mutex_destroy(&c->mutex);
    pthread_mutex_destroy(&c->pieces_mutex);
    pthread_cond_destroy(&c->quiet);
    pthread_cond_destroy(&c->settled);
    free(c);
}

int32_t kv_cache_next_edge(const kv_cache *c, int32_t pos, const kv_places *prompt) {
    return kv_policy_next(&c->policy, pos, prompt);
}

bool kv_cache_is_readonly(const kv_cache *c) {
    return c->cfg.readonly;
}

int32_t kv_cache_near(const kv_cache *c) {
    return c->near;
}

bool kv_cache_keeps_places(const kv_cache *c) {
    return c->memory != KV_MEMORY_FULL && !c->policy.exact_chunk;
}

int64_t kv_cache_now_s(const kv_cache *c) {
    return kv_now_us(c->cfg.clock) / 1000000 + c->wall_offset_s;
}

/* ── scopes ────────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_hash kv_cache_root_key(const kv_cache *c, const char *scope) {
    return kv_namespace_root(c->cfg.ns, scope);
}

kv_radix_node *kv_cache_root(kv_cache *c, const char *scope) {
    kv_hash ns = kv_cache_root_key(c, scope);
    bool known = false;
    pthread_mutex_lock(&c->mutex); /* not the scopes' own: this is the engine thread too */
    for (int i = 0; i < c->n_scopes && !known; i++) known = kv_hash_equal(c->scopes[i].ns, ns);
    if (!known) {
        c->scopes = kv_realloc(c->scopes, ((size_t)c->n_scopes + 1) * sizeof *c->scopes);
        c->scopes[c->n_scopes++] = (kv_scope){.ns = ns, .name = kv_strdup(scope ? scope : ""), .loaded = !c->cfg.store};
    }
    pthread_mutex_unlock(&c->mutex);
    return kv_radix_root(c->tree, ns);
}

void kv_cache_warm(kv_cache *c) {
    kv_radix_unref(c->tree, kv_cache_root(c, ""));
    kv_cache_load_scope(c, kv_cache_root_key(c, ""));
}

/* ── records of nodes ──────────────────────────────────────────────────────────────────────────────────────────── */

kv_radix_slot kv_cache_slot_of(kv_record_kind kind) {
    switch (kind) {
    case KV_RECORD_WINDOW: return KV_RADIX_WINDOW;
    case KV_RECORD_CHECKPOINT: return KV_RADIX_CHECKPOINT;
    case KV_RECORD_WHOLE: return KV_RADIX_WHOLE;
    default: return KV_RADIX_BLOCK;
    }
}

kv_record_kind kv_cache_kind_of(kv_radix_slot slot) {
    static const kv_record_kind kinds[] = {KV_RECORD_BLOCK, KV_RECORD_WINDOW, KV_RECORD_CHECKPOINT, KV_RECORD_WHOLE};
    return kinds[slot];
}

kv_record *kv_cache_record(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot) {
    /* The record is let go of only by who first took it from the tree, under the same mutex. */
    pthread_mutex_lock(&c->mutex);
    kv_radix_record rec;
    kv_record *r = kv_radix_get_record(&rec, c->tree, node, slot) && rec.ram ? kv_record_ref(rec.ram) : NULL;
    pthread_mutex_unlock(&c->mutex);
    return r;
}

bool kv_cache_let_go(kv_cache *c, kv_radix_node *node, kv_radix_slot slot, bool keep_disk) {
    pthread_mutex_lock(&c->mutex);
    kv_radix_record rec;
    bool found = kv_radix_get_record(&rec, c->tree, node, slot);
    kv_record *ram = found ? rec.ram : NULL;
    rec.ram = NULL;
    if (found) kv_radix_set_record(c->tree, node, slot, keep_disk && rec.on_disk ? &rec : &(kv_radix_record){0});
    pthread_mutex_unlock(&c->mutex);
    kv_record_unref(ram);
    return found;
}

void kv_cache_prune(kv_cache *c, kv_radix_node *node) {
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

typedef struct subtree {
    kv_cache *c;
    const kv_radix_node *top;
    kv_radix_node **nodes;
    size_t n, cap;
} subtree;

static void gather_below(void *ctx, kv_radix_node *node) {
    subtree *t = ctx;
    const kv_radix_node *up = kv_radix_parent(node);
    while (up && up != t->top) up = kv_radix_parent(up);
    if (!up) return;
    if (t->n == t->cap) {
        t->cap = t->cap * 2 + 64;
        t->nodes = kv_realloc(t->nodes, t->cap * sizeof *t->nodes);
    }
    kv_radix_ref(t->c->tree, node);
    t->nodes[t->n++] = node;
}

kv_radix_node **kv_cache_below(size_t *n, kv_cache *c, const kv_radix_node *top) {
    subtree t = {.c = c, .top = top};
    kv_radix_walk(c->tree, gather_below, &t); /* which holds all nodes: none could be removed meanwhile */
    *n = t.n;
    return t.nodes;
}

void kv_cache_append(kv_record_list *list, kv_record *r) {
    r->next = NULL;
    if (list->last) list->last->next = r;
    else list->first = r;
    list->last = r;
}

kv_record *kv_cache_pop(kv_record_list *list) {
    kv_record *r = list->first;
    if (!r) return NULL;
    list->first = r->next;
    if (!list->first) list->last = NULL;
    r->next = NULL;
    return r;
}

/* ── erasing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Takes a scope's records out of a list. */
static void drop_waiting(kv_cache *c, kv_record_list *list, kv_hash ns) {
    kv_record_list keep = {0}, drop = {0};
    pthread_mutex_lock(&c->mutex);
    for (kv_record *r; (r = kv_cache_pop(list));) {
        bool goes = kv_hash_equal(r->head.ns, ns);
        kv_cache_append(goes ? &drop : &keep, r);
        if (goes && list == &c->insertions) c->n_settled++;
    }
    pthread_cond_broadcast(&c->settled);
    *list = keep;
    pthread_mutex_unlock(&c->mutex);
    for (kv_record *r; (r = kv_cache_pop(&drop));) kv_record_unref(r);
}

static uint64_t erase_scope(kv_cache *c, kv_hash ns, kv_error *err) {
    kv_radix_node *root = kv_radix_root(c->tree, ns), **nodes;
    uint64_t n = 0, bytes, on_disk = 0;
    size_t n_nodes;
    drop_waiting(c, &c->insertions, ns);
    drop_waiting(c, &c->writes, ns);
    nodes = kv_cache_below(&n_nodes, c, root);
    for (size_t i = 0; i < n_nodes; i++) {
        for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++)
            n += kv_cache_let_go(c, nodes[i], slot, false); /* their files go with the folder */
        kv_cache_prune(c, nodes[i]);
    }
    free(nodes);
    kv_radix_unref(c->tree, root);
    if (c->cfg.store && !c->cfg.readonly) kv_store_remove_namespace(c->cfg.store, ns, &bytes, &on_disk, err);
    return n > on_disk ? n : on_disk;
}

uint64_t kv_cache_erase(kv_cache *c, const char *scope, kv_error *err) {
    if (scope) {
        kv_radix_unref(c->tree, kv_cache_root(c, scope));
        return erase_scope(c, kv_cache_root_key(c, scope), err);
    }
    uint64_t n = 0;
    pthread_mutex_lock(&c->mutex);
    int n_scopes = c->n_scopes;
    pthread_mutex_unlock(&c->mutex);
    for (int i = 0; i < n_scopes; i++) {
        pthread_mutex_lock(&c->mutex);
        kv_hash ns = c->scopes[i].ns; /* never removed */
        pthread_mutex_unlock(&c->mutex);
        n += erase_scope(c, ns, err);
    }
    return n;
}

/* ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_cache_get_stats(kv_cache_stats *out, kv_cache *c) {
    pthread_mutex_lock(&c->mutex);
    *out = c->stats;
    pthread_mutex_unlock(&c->mutex);
    out->queue_bytes = atomic_load(&c->pool.used[KV_ACCOUNT_QUEUE]);
    out->ram_bytes = atomic_load(&c->pool.used[KV_ACCOUNT_RAM]);
    out->read_bytes = atomic_load(&c->pool.used[KV_ACCOUNT_READ]);
    out->nodes = kv_radix_count(c->tree);
    out->tree_bytes = kv_radix_bytes(c->tree);
}

static void check_node(void *cache, kv_radix_node *node) {
    kv_cache *c = cache;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_radix_record rec;
        if (kv_radix_get_record(&rec, c->tree, node, slot)) KV_CHECK(rec.ram || (rec.on_disk && c->cfg.store));
        kv_record *r = kv_cache_record(c, node, slot);
        if (!r) continue;
        KV_CHECK(kv_cache_slot_of(r->head.kind) == slot);
        KV_CHECK(kv_hash_equal(r->head.key, kv_radix_key(node)));
        KV_CHECK(r->head.e == kv_radix_start(node) + kv_radix_n_tokens(node));
        KV_CHECK(kv_hash_equal(r->head.payload_hash, kv_hash_bytes(r->payload.data, r->payload.len)));
        KV_CHECK(atomic_load(&r->account) == KV_ACCOUNT_RAM || (c->cfg.store && !rec.on_disk));
        KV_CHECK(r->payload.cap <= r->payload.len + 1 ||
                 rec.on_disk); /* as counted; read buffers are a little larger */
        kv_record_unref(r);
    }
}

void kv_cache_self_check(kv_cache *c) {
    /* Tokens on disk are not read: a record that turned out to be damaged would have to leave the tree meanwhile. */
    kv_radix_check(c->tree, c->cfg.store ? NULL : kv_cache_tokens_of, c);
    kv_radix_walk(c->tree, check_node, c);
    for (int a = 0; a < KV_ACCOUNT_COUNT; a++) KV_CHECK(atomic_load(&c->pool.used[a]) <= c->pool.max[a]);
    kv_pool_check(&c->pool);
}
