#include "store/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

/* Seconds for which scores stay as they are. What all rows have aged by meanwhile is little beside what makes one go
 * before another; 100,000 rows take some milliseconds. */
#define RESCORE_S 30

void kv_table_free(kv_table *t) {
    free(t->rows);
    free(t->by_key);
    free(t->by_parent);
    free(t->heap);
    free(t->ns);
    memset(t, 0, sizeof *t);
}

bool kv_table_ns(uint16_t *out, kv_table *t, kv_hash ns) {
    for (uint16_t i = 0; i < t->n_ns; i++) {
        if (!kv_hash_equal(t->ns[i], ns)) continue;
        *out = i;
        return true;
    }
    if (t->n_ns == UINT16_MAX) return false;
    t->ns = kv_realloc(t->ns, (t->n_ns + 1u) * sizeof *t->ns);
    t->ns[t->n_ns] = ns;
    *out = t->n_ns++;
    return true;
}

/* Keys are hashes: their low bits are as good as any. */
static uint32_t *bucket(const kv_table *t, uint32_t *buckets, kv_hash h) {
    return &buckets[h.lo & (t->n_buckets - 1)];
}

uint32_t kv_table_find(const kv_table *t, kv_hash ns, kv_hash key, kv_record_kind kind) {
    if (!t->n_buckets) return KV_NO_ROW;
    for (uint32_t i = *bucket(t, t->by_key, key); i != KV_NO_ROW; i = t->rows[i].next_key) {
        const kv_table_row *r = &t->rows[i];
        if (r->kind == kind && kv_hash_equal(r->key, key) && kv_hash_equal(t->ns[r->ns], ns)) return i;
    }
    return KV_NO_ROW;
}

/* ── the heap ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void place(kv_table *t, uint32_t at, uint32_t i) {
    t->heap[at] = i;
    t->rows[i].heap = at;
}

static bool less(const kv_table *t, uint32_t a, uint32_t b) {
    return t->rows[a].score < t->rows[b].score;
}

static void sift_up(kv_table *t, uint32_t at, uint32_t i) {
    while (at > 0 && less(t, i, t->heap[(at - 1) / 2])) {
        place(t, at, t->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(t, at, i);
}

static void sift_down(kv_table *t, uint32_t at, uint32_t i) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= t->n_heap) break;
        if (child + 1 < t->n_heap && less(t, t->heap[child + 1], t->heap[child])) child++;
        if (!less(t, t->heap[child], i)) break;
        place(t, at, t->heap[child]);
        at = child;
    }
    place(t, at, i);
}

static void heap_remove(kv_table *t, uint32_t i) {
    uint32_t at = t->rows[i].heap;
    if (at == KV_NO_ROW) return;
    t->rows[i].heap = KV_NO_ROW;
    uint32_t last = t->heap[--t->n_heap];
    if (last == i) return;
    if (at > 0 && less(t, last, t->heap[(at - 1) / 2])) sift_up(t, at, last);
    else sift_down(t, at, last);
}

static void heap_add(kv_table *t, uint32_t i) {
    t->n_heap++;
    sift_up(t, t->n_heap - 1, i);
}

/* ── who may go ────────────────────────────────────────────────────────────────────────────────────────────────── */

bool kv_table_has_dependents(const kv_table *t, const kv_table_row *block) {
    for (uint32_t i = *bucket(t, t->by_parent, block->key); i != KV_NO_ROW; i = t->rows[i].next_parent)
        if (kv_hash_equal(t->rows[i].parent, block->key)) return true;
    for (uint32_t i = *bucket(t, t->by_key, block->key); i != KV_NO_ROW; i = t->rows[i].next_key)
        if (t->rows[i].kind != KV_RECORD_BLOCK && kv_hash_equal(t->rows[i].key, block->key)) return true;
    return false;
}

static bool may_go(const kv_table *t, const kv_table_row *r) {
    if (r->flags & (KV_ROW_PINNED | KV_ROW_PENDING | KV_ROW_STUCK)) return false;
    return r->kind != KV_RECORD_BLOCK || !kv_table_has_dependents(t, r);
}

static void settle(kv_table *t, uint32_t i) {
    bool go = may_go(t, &t->rows[i]), in = t->rows[i].heap != KV_NO_ROW;
    if (go && !in) heap_add(t, i);
    if (!go && in) heap_remove(t, i);
}

/* Rows that this one hangs on: blocks of its parent's key, and of its own. */
static void settle_bases(kv_table *t, kv_hash key, kv_hash parent) {
    const kv_hash of[2] = {parent, key};
    for (int k = 0; k < 2; k++)
        for (uint32_t i = *bucket(t, t->by_key, of[k]); i != KV_NO_ROW; i = t->rows[i].next_key)
            if (t->rows[i].kind == KV_RECORD_BLOCK && kv_hash_equal(t->rows[i].key, of[k])) settle(t, i);
}

static double score(const kv_table *t, const kv_table_row *r) {
    if (t->by_use) return r->last_used;
    double fade = kv_store_fade(t->scored_at - (int64_t)r->last_used);
    double kept = r->flags & KV_ROW_KEPT ? KV_TABLE_KEPT : 0;
    return log2(kv_store_worth(r->compute_ms, (double)r->hits, r->disk) * fade) + kept;
}

static uint32_t kept_until(const kv_table_row *r) {
    uint64_t end = (uint64_t)r->last_used + r->keep;
    return end < UINT32_MAX ? (uint32_t)end : UINT32_MAX - 1;
}

/* Whether it is kept now, and its score, from what else the row says. */
static void rate(kv_table *t, kv_table_row *r) {
    bool kept = r->keep && kept_until(r) > t->now;
    r->flags = (uint8_t)(kept ? r->flags | KV_ROW_KEPT : r->flags & ~KV_ROW_KEPT);
    r->score = score(t, r);
    if (kept && (kept_until(r) < t->next_end || !t->next_end)) t->next_end = kept_until(r);
}

/* ── rows in and out ───────────────────────────────────────────────────────────────────────────────────────────── */

static void link_row(kv_table *t, uint32_t i) {
    kv_table_row *r = &t->rows[i];
    uint32_t *head = bucket(t, t->by_key, r->key);
    r->next_key = *head;
    *head = i;
    head = bucket(t, t->by_parent, r->parent);
    r->next_parent = *head;
    r->prev_parent = KV_NO_ROW;
    if (*head != KV_NO_ROW) t->rows[*head].prev_parent = i;
    *head = i;
}

static void rehash(kv_table *t, uint32_t n_buckets) {
    free(t->by_key);
    free(t->by_parent);
    t->n_buckets = n_buckets;
    t->by_key = kv_alloc(n_buckets * sizeof *t->by_key);
    t->by_parent = kv_alloc(n_buckets * sizeof *t->by_parent);
    memset(t->by_key, 0xff, n_buckets * sizeof *t->by_key);
    memset(t->by_parent, 0xff, n_buckets * sizeof *t->by_parent);
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->rows[i].kind) link_row(t, i);
}

static void grow(kv_table *t) {
    uint32_t cap =
        t->cap ? t->cap + t->cap / (t->cap < 4096 ? 2 : 8) : 64; /* rows are the bulk of the store's memory */
    t->rows = kv_realloc(t->rows, cap * sizeof *t->rows);
    t->heap = kv_realloc(t->heap, cap * sizeof *t->heap);
    t->cap = cap;
    if (t->n_buckets < cap / 2) rehash(t, t->n_buckets ? t->n_buckets * 2 : 64);
}

uint32_t kv_table_add(kv_table *t, const kv_table_row *row) {
    KV_CHECK(row->kind >= KV_RECORD_BLOCK && row->kind <= KV_RECORD_WHOLE && row->ns < t->n_ns);
    uint32_t i = t->free_slot; /* kept plus one, so that a zeroed table is an empty one */
    if (i) {
        i--;
        t->free_slot = t->rows[i].next_key;
    } else {
        if (t->n_slots == t->cap) grow(t);
        i = t->n_slots++;
    }
    kv_table_row *r = &t->rows[i];
    *r = *row;
    r->heap = KV_NO_ROW;
    rate(t, r);
    link_row(t, i);
    t->n_rows++;
    if (!(r->flags & KV_ROW_PENDING)) t->bytes_of_kind[r->kind] += r->disk;
    settle(t, i);
    settle_bases(t, r->key, r->parent);
    return i;
}

void kv_table_take_out(kv_table_row *out, kv_table *t, uint32_t i) {
    kv_table_row *r = &t->rows[i];
    KV_CHECK(r->kind != 0);
    heap_remove(t, i);
    uint32_t *at = bucket(t, t->by_key, r->key);
    while (*at != i) at = &t->rows[*at].next_key;
    *at = r->next_key;
    if (r->prev_parent != KV_NO_ROW) t->rows[r->prev_parent].next_parent = r->next_parent;
    else *bucket(t, t->by_parent, r->parent) = r->next_parent;
    if (r->next_parent != KV_NO_ROW) t->rows[r->next_parent].prev_parent = r->prev_parent;
    if (!(r->flags & KV_ROW_PENDING)) t->bytes_of_kind[r->kind] -= r->disk;
    kv_table_row copy = *r;
    r->kind = 0;
    r->next_key = t->free_slot;
    t->free_slot = i + 1;
    t->n_rows--;
    settle_bases(t, copy.key, copy.parent);
    if (out) *out = copy;
}

void kv_table_changed(kv_table *t, uint32_t i) {
    heap_remove(t, i);
    rate(t, &t->rows[i]);
    settle(t, i);
}

void kv_table_tell(kv_table *t, int64_t now) {
    t->now = now < 0 ? 0 : now < UINT32_MAX ? (uint32_t)now : UINT32_MAX;
    if (!t->next_end || t->now < t->next_end) return;
    t->next_end = 0;
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->rows[i].kind && t->rows[i].flags & KV_ROW_KEPT) kv_table_changed(t, i);
}

void kv_table_finish(kv_table *t, uint32_t i, uint64_t disk) {
    kv_table_row *r = &t->rows[i];
    KV_CHECK(r->flags & KV_ROW_PENDING);
    r->flags &= (uint8_t)~KV_ROW_PENDING;
    r->disk = disk;
    t->bytes_of_kind[r->kind] += disk;
    kv_table_changed(t, i);
}

void kv_table_rescore(kv_table *t, int64_t now) {
    if (t->by_use || (now >= t->scored_at && now - t->scored_at < RESCORE_S)) return;
    t->scored_at = now;
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->rows[i].kind) t->rows[i].score = score(t, &t->rows[i]);
    for (uint32_t at = t->n_heap / 2; at-- > 0;) sift_down(t, at, t->heap[at]);
}

uint32_t kv_table_worst(const kv_table *t) {
    return t->n_heap ? t->heap[0] : KV_NO_ROW;
}

int32_t kv_table_n_tokens(const kv_table_row *r) {
    return r->kind == KV_RECORD_WHOLE ? r->e : r->e - r->q;
}

void kv_table_head(kv_record_head *out, const kv_table *t, const kv_table_row *r) {
    *out = (kv_record_head){
        .kind = r->kind,
        .canonical = r->flags & KV_ROW_CANONICAL,
        .ns = t->ns[r->ns],
        .key = r->key,
        .parent = r->parent,
        .q = r->q,
        .e = r->e,
        .n_tokens = kv_table_n_tokens(r),
        .compute_ms = r->compute_ms,
        .n_payload = r->n_payload,
        .shape_class = r->shape_class,
        .created = r->created,
        .place = (kv_place_kind)r->place,
        .keep_seconds = r->keep,
    };
}

size_t kv_table_bytes(const kv_table *t) {
    return t->cap * (sizeof *t->rows + sizeof *t->heap) + 2 * sizeof(uint32_t) * (size_t)t->n_buckets;
}

void kv_table_check(const kv_table *t) {
    uint32_t n = 0, in_heap = 0, by_key = 0, by_parent = 0;
    for (uint32_t i = 0; i < t->n_slots; i++) {
        const kv_table_row *r = &t->rows[i];
        if (!r->kind) continue;
        n++;
        KV_CHECK(may_go(t, r) == (r->heap != KV_NO_ROW)); /* T1 */
        if (r->heap != KV_NO_ROW) {
            KV_CHECK(r->heap < t->n_heap && t->heap[r->heap] == i);
            KV_CHECK(r->heap == 0 || !less(t, i, t->heap[(r->heap - 1) / 2]));
            in_heap++;
        }
        KV_CHECK(kv_table_find(t, t->ns[r->ns], r->key, r->kind) == i); /* T2 */
    }
    KV_CHECK(n == t->n_rows && in_heap == t->n_heap);
    for (uint32_t b = 0; b < t->n_buckets; b++) { /* T3 */
        for (uint32_t i = t->by_key[b]; i != KV_NO_ROW; i = t->rows[i].next_key) by_key++;
        for (uint32_t i = t->by_parent[b]; i != KV_NO_ROW; i = t->rows[i].next_parent) by_parent++;
    }
    KV_CHECK(by_key == n && by_parent == n);
}
