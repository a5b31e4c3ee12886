/* cache/disk.c: between the tree and the store: scopes come in, records go out behind the engine and come back.
 *
 *   writes:  record ─ reserve ─ write ─┐
 *            record ─ reserve ─ write ─┼─ commit ─► on disk: the queue's room is given back, a copy stays in memory while
 *            record ─ reserve ─ write ─┘            there is room for it
 *                        └ refused (full, capped, no parent) ─► memory, or nothing
 */
#include "cache/cache_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* One commit: many small records share an fsync, and a stream of large ones is on disk within about a second. */
#define GROUP_BYTES (64u << 20)
/* At the end groups are small, so that what a commit syncs when the time is up is soon done. */
#define LAST_GROUP_BYTES (4u << 20)
#define LAST_GROUP       8
/* Uses, the making not counted, from which on a path is worth a write although the day's are used up. */
#define HITS_WANTED 0.5
#define GC_EVERY_S  600

/* ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_hash root_key(const kv_radix_node *node) {
    for (const kv_radix_node *up = kv_radix_parent(node); up; up = kv_radix_parent(node)) node = up;
    return kv_radix_key(node);
}

bool kv_cache_head_of(kv_record_head *out, kv_cache *c, const kv_radix_node *node, kv_radix_slot slot) {
    kv_radix_record rec;
    if (!c->cfg.store || !kv_radix_get_record(&rec, c->tree, node, slot) || !rec.on_disk) return false;
    int32_t q = kv_radix_start(node), e = q + kv_radix_n_tokens(node);
    *out = (kv_record_head){.kind = kv_cache_kind_of(slot),
                            .canonical = rec.canonical,
                            .ns = root_key(node),
                            .key = kv_radix_key(node),
                            .parent = kv_radix_key(kv_radix_parent(node)),
                            .q = q,
                            .e = e,
                            .n_tokens = slot == KV_RADIX_WHOLE ? e : e - q,
                            .compute_ms = rec.compute_ms,
                            .n_payload = rec.bytes};
    return true;
}

bool kv_cache_is_pinned(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot) {
    kv_record_head head;
    return c->cfg.store && kv_cache_head_of(&head, c, node, slot) && kv_store_is_pinned(c->cfg.store, &head);
}

/* The record is not on disk any more. */
static void lost(kv_cache *c, kv_radix_node *node, kv_radix_slot slot) {
    pthread_mutex_lock(&c->mutex);
    kv_radix_record rec;
    if (kv_radix_get_record(&rec, c->tree, node, slot) && rec.on_disk) {
        rec.on_disk = false;
        kv_radix_set_record(c->tree, node, slot, rec.ram ? &rec : &(kv_radix_record){0});
    }
    pthread_mutex_unlock(&c->mutex);
}

void kv_cache_gone(void *cache, const kv_record_head *head) {
    kv_cache *c = cache;
    kv_radix_node *node = kv_radix_get(c->tree, head->key);
    if (!node) return;
    lost(c, node, kv_cache_slot_of(head->kind));
    kv_cache_prune(c, node);
}

void kv_cache_touch(kv_cache *c, kv_radix_node *node, unsigned slots) {
    int64_t now = kv_cache_now_s(c), used;
    double hits;
    kv_radix_touch(c->tree, node, now);
    kv_radix_use(&hits, &used, c->tree, node, now);
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_record_head head;
        if (slots >> slot & 1 && kv_cache_head_of(&head, c, node, slot)) kv_store_touch(c->cfg.store, &head, hits);
    }
}

/* ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Whether asking the store again could help. */
static bool is_temporary(kv_status status) {
    return status != KV_CORRUPT && status != KV_NOT_FOUND && status != KV_UNSUPPORTED;
}

static bool tokens_on_disk(kv_cache *c, const kv_radix_node *node, kv_radix_slot slot, kv_token *out) {
    kv_record_head head;
    if (!kv_cache_head_of(&head, c, node, slot)) return false;
    int32_t n = kv_radix_n_tokens(node); /* a whole record has the tokens of all its path */
    kv_token *tokens = kv_alloc((size_t)head.n_tokens * sizeof *tokens);
    kv_status status = kv_store_read(c->cfg.store, tokens, NULL, 0, NULL, &head, NULL);
    if (status == KV_OK) memcpy(out, tokens + (head.n_tokens - n), (size_t)n * sizeof *out);
    else if (!is_temporary(status)) lost(c, (kv_radix_node *)node, slot);
    free(tokens);
    return status == KV_OK;
}

bool kv_cache_tokens_of(void *cache, const kv_radix_node *node, kv_token *out) {
    kv_cache *c = cache;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_record *r = kv_cache_record(c, node, slot);
        if (!r) continue;
        int32_t n = kv_radix_n_tokens(node);
        memcpy(out, r->tokens + (r->head.n_tokens - n), (size_t)n * sizeof *out);
        kv_record_unref(r);
        return true;
    }
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++)
        if (tokens_on_disk(c, node, slot, out)) return true;
    return false;
}

kv_status kv_cache_read(kv_cache *c, kv_record *r, bool *from_drive, kv_error *err) {
    size_t n = (size_t)r->head.n_payload;
    kv_status status = kv_record_make_room(r, err);
    if (status != KV_OK) return status;
    status = kv_store_read(c->cfg.store, r->tokens, r->payload.data, r->payload.cap, from_drive, &r->head, err);
    if (status == KV_OK) r->payload.len = n;
    kv_radix_node *node = status == KV_OK || is_temporary(status) ? NULL : kv_radix_get(c->tree, r->head.key);
    if (node) {
        lost(c, node, kv_cache_slot_of(r->head.kind));
        kv_cache_prune(c, node);
    }
    pthread_mutex_lock(&c->mutex);
    if (status == KV_OK) {
        c->stats.n_read++;
        c->stats.bytes_read += n;
    } else {
        c->stats.n_read_failed++;
    }
    pthread_mutex_unlock(&c->mutex);
    return status;
}

/* ── what is of no use ──────────────────────────────────────────────────────────────────────────────────────────── */

void kv_cache_remove(kv_cache *c, kv_radix_node *node, kv_radix_slot slot) {
    kv_record_head head;
    kv_radix_record rec;
    pthread_mutex_lock(&c->mutex); /* the writing job may be about to say that it is on disk now */
    bool found = kv_radix_get_record(&rec, c->tree, node, slot), on_disk = kv_cache_head_of(&head, c, node, slot);
    if (found) kv_radix_set_record(c->tree, node, slot, &(kv_radix_record){0});
    pthread_mutex_unlock(&c->mutex);
    if (found) kv_record_unref(rec.ram);
    if (on_disk) kv_store_remove(c->cfg.store, &head, NULL);
}

static void remove_all(kv_cache *c, kv_radix_node *node) {
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) kv_cache_remove(c, node, slot);
    kv_cache_prune(c, node);
}

void kv_cache_forget_from(kv_cache *c, kv_radix_node *top) {
    size_t n;
    kv_radix_node **nodes = kv_cache_below(&n, c, top);
    for (size_t i = 0; i < n; i++) remove_all(c, nodes[i]);
    free(nodes);
    remove_all(c, top);
}

bool kv_cache_forget_if_lost(kv_cache *c, kv_radix_node *node) {
    bool lost = true;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_radix_record rec;
        if (kv_radix_get_record(&rec, c->tree, node, slot)) lost = false;
    }
    if (lost) kv_cache_forget_from(c, node);
    else kv_cache_prune(c, node);
    return lost;
}

/* ── scopes ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct loading {
    kv_cache *c;
    kv_radix_node *root;
    bool is_shared; /* others write into the directory: a parent may have come after the walk that found its child */
    uint64_t n, n_orphans;
} loading;

static void load_row(void *ctx, const kv_store_row *row) {
    loading *l = ctx;
    kv_cache *c = l->c;
    const kv_record_head *h = &row->head;
    kv_radix_node *parent = kv_radix_get(c->tree, h->parent);
    bool whole_node = parent && (parent == l->root || kv_radix_n_tokens(parent) == c->cfg.block);
    if (!whole_node || h->e - h->q > c->cfg.block || h->e <= h->q) {
        /* Nothing leads to it: its parent was damaged, or went while the store was open elsewhere. */
        if (parent) kv_radix_unref(c->tree, parent);
        if (!c->cfg.readonly && !l->is_shared) kv_store_remove(c->cfg.store, h, NULL);
        l->n_orphans++;
        return;
    }
    kv_radix_node *node = kv_radix_add_known(c->tree, parent, h->key, h->e - h->q);
    kv_radix_slot slot = kv_cache_slot_of(h->kind);
    kv_radix_record rec;
    pthread_mutex_lock(&c->mutex);
    bool there = kv_radix_get_record(&rec, c->tree, node, slot);
    if (!there) rec = (kv_radix_record){.bytes = h->n_payload, .canonical = h->canonical, .compute_ms = h->compute_ms};
    rec.place = (uint8_t)h->place;
    rec.keep_300s = kv_radix_keep_300s(h->keep_seconds);
    rec.on_disk = true;
    kv_radix_set_record(c->tree, node, slot, &rec);
    pthread_mutex_unlock(&c->mutex);
    kv_radix_set_use(c->tree, node, row->hits, row->last_used);
    kv_radix_unref(c->tree, node);
    kv_radix_unref(c->tree, parent);
    l->n++;
}

static void describe(kv_cache *c, kv_hash ns, const char *name) {
    char *json = c->cfg.about && !c->cfg.readonly ? c->cfg.about(c->cfg.about_ctx, name) : NULL;
    kv_error err;
    if (json && kv_store_set_about(c->cfg.store, ns, json, &err) != KV_OK)
        KV_DEBUG("the cache cannot describe itself: %s", err.message);
    free(json);
}

void kv_cache_load_scope(kv_cache *c, kv_hash ns) {
    if (!c->cfg.store) return;
    char *name = NULL;
    pthread_mutex_lock(&c->scope_mutex);
    pthread_mutex_lock(&c->mutex);
    for (int i = 0; i < c->n_scopes; i++)
        if (kv_hash_equal(c->scopes[i].ns, ns) && !c->scopes[i].loaded) {
            c->scopes[i].loaded = true;
            name = kv_strdup(c->scopes[i].name);
        }
    pthread_mutex_unlock(&c->mutex);
    if (name) {
        kv_error err;
        loading l = {.c = c, .root = kv_radix_root(c->tree, ns), .is_shared = kv_store_sharers(c->cfg.store) > 0};
        describe(c, ns, name);
        if (kv_store_load(c->cfg.store, ns, load_row, &l, &err) != KV_OK)
            KV_WARN("the stored cache cannot be listed: %s", err.message);
        kv_radix_unref(c->tree, l.root);
        pthread_mutex_lock(&c->mutex);
        c->stats.n_orphans += l.n_orphans;
        pthread_mutex_unlock(&c->mutex);
        free(name);
    }
    pthread_mutex_unlock(&c->scope_mutex);
}

/* ── writing behind ────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct group {
    kv_cache *c;
    kv_record *records[KV_STORE_GROUP_MAX];
    kv_status status[KV_STORE_GROUP_MAX];
    int n;
} group;

static void committed(void *ctx, const kv_record_head *head, kv_status status) {
    group *g = ctx;
    for (int i = 0; i < g->n; i++)
        if (g->status[i] == KV_OK && g->records[i]->head.kind == head->kind &&
            kv_hash_equal(g->records[i]->head.key, head->key))
            g->status[i] = status;
}

static kv_status write_one(kv_cache *c, const kv_record *r) {
    kv_radix_node *node = kv_radix_get(c->tree, r->head.key);
    if (!node) return KV_NOT_FOUND; /* superseded meanwhile */
    kv_record *now = kv_cache_record(c, node, kv_cache_slot_of(r->head.kind));
    kv_record_unref(now);
    if (now != r) { /* forgotten, and another captured */
        kv_cache_prune(c, node);
        return KV_NOT_FOUND;
    }
    double hits, parent_hits;
    int64_t used;
    kv_radix_use(&hits, &used, c->tree, node, kv_cache_now_s(c));
    kv_radix_use(&parent_hits, &used, c->tree, kv_radix_parent(node), kv_cache_now_s(c));
    kv_radix_unref(c->tree, node);
    double worth = kv_store_worth(r->head.compute_ms, hits, kv_format_file_bytes(r->head.n_tokens, r->head.n_payload));
    kv_error err;
    kv_status status =
        kv_store_reserve(c->cfg.store, &r->head, worth, hits >= HITS_WANTED || parent_hits >= HITS_WANTED, &err);
    if (status == KV_OK) status = kv_store_write(c->cfg.store, &r->head, r->tokens, r->payload.data, &err);
    if (status == KV_INVALID && kv_store_has(c->cfg.store, &r->head)) return KV_OK; /* by somebody else */
    return status;
}

/* What became of a record; the write list's reference is given back. */
static void settle(kv_cache *c, kv_record *r, kv_status status) {
    kv_radix_node *node = kv_radix_get(c->tree, r->head.key);
    kv_radix_slot slot = kv_cache_slot_of(r->head.kind);
    bool keep = node && kv_cache_keep_in_ram(c, r);
    bool ours = false;
    kv_record *drop = NULL;
    pthread_mutex_lock(&c->mutex);
    kv_radix_record rec;
    if (node && kv_radix_get_record(&rec, c->tree, node, slot) && rec.ram == r) {
        ours = true;
        rec.on_disk = status == KV_OK;
        if (!keep) {
            drop = rec.ram;
            rec.ram = NULL;
        }
        kv_radix_set_record(c->tree, node, slot, rec.ram || rec.on_disk ? &rec : &(kv_radix_record){0});
    }
    if (status == KV_OK) {
        c->stats.n_written++;
        uint64_t bytes = kv_format_file_bytes(r->head.n_tokens, r->head.n_payload);
        c->stats.bytes_written += bytes;
        if (r->head.kind != KV_RECORD_BLOCK) c->stats.place_bytes_written[r->head.place] += bytes;
    } else if (ours) {
        c->stats.n_not_written++;
    }
    if (status == KV_OK) c->loses_records = false;
    else if (ours && !keep) c->loses_records = true;
    uint64_t tokens = kv_cache_block_tokens(r);
    c->tokens_in_hand -= tokens;
    if (status == KV_CANCELLED) c->tokens_given_up += tokens;
    pthread_mutex_unlock(&c->mutex);
    kv_record_unref(drop);
    if (!ours && status == KV_OK) kv_store_remove(c->cfg.store, &r->head, NULL); /* erased or superseded meanwhile */
    if (ours && status == KV_OK && (slot == KV_RADIX_BLOCK || slot == KV_RADIX_WINDOW)) kv_cache_supersede(c, node);
    if (node) kv_cache_prune(c, node);
    kv_record_unref(r);
}

static void gather(group *g, kv_cache *c) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&c->mutex);
    bool ends = c->give_up_at != INT64_MAX;
    int most = ends ? LAST_GROUP : KV_STORE_GROUP_MAX;
    while (g->n < most && c->writes.first && (g->n == 0 || bytes < (ends ? LAST_GROUP_BYTES : GROUP_BYTES))) {
        bytes += c->writes.first->counted;
        c->tokens_in_hand += kv_cache_block_tokens(c->writes.first);
        g->records[g->n++] = kv_cache_pop(&c->writes);
    }
    if (!g->n) {
        c->writing = false;
        pthread_cond_broadcast(&c->quiet);
    }
    pthread_mutex_unlock(&c->mutex);
}

/* Past the moment until which a flush may write. */
static bool time_is_up(kv_cache *c) {
    pthread_mutex_lock(&c->mutex);
    int64_t at = c->give_up_at;
    pthread_mutex_unlock(&c->mutex);
    return at != INT64_MAX && kv_now_us(c->cfg.clock) >= at;
}

static void collect_garbage(kv_cache *c) {
    int64_t now = kv_cache_now_s(c);
    uint64_t bytes, records;
    if (now - c->last_gc_s < GC_EVERY_S) return;
    c->last_gc_s = now;
    kv_store_gc(c->cfg.store, false, &bytes, &records, NULL);
}

static void write_some(void *cache) {
    kv_cache *c = cache;
    group g = {.c = c};
    gather(&g, c);
    if (!g.n) return;
    int n_written = 0;
    for (int i = 0; i < g.n; i++) {
        g.status[i] = time_is_up(c) ? KV_CANCELLED : write_one(c, g.records[i]);
        n_written += g.status[i] == KV_OK;
    }
    if (n_written) kv_store_commit(c->cfg.store, committed, &g, NULL);
    for (int i = 0; i < g.n; i++) settle(c, g.records[i], g.status[i]);
    collect_garbage(c);
    kv_io_submit(c->cfg.io, KV_IO_WRITE, write_some, c); /* until nothing is left; others get a turn in between */
}

void kv_cache_write_later(kv_cache *c, kv_record *r) {
    pthread_mutex_lock(&c->mutex);
    kv_cache_append(&c->writes, r);
    bool start = !c->writing;
    c->writing = true;
    pthread_mutex_unlock(&c->mutex);
    if (start) kv_io_submit(c->cfg.io, KV_IO_WRITE, write_some, c);
}
