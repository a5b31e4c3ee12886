/* radix/radix.c: nodes, the key table, and the PATRICIA tree among siblings.
 *
 * A block's tokens are read as a string of bits, 33 a token: a 1, then the token's 32 bits from the highest down;
 * after the last token comes a 0. No block is then a prefix of another, and "its tokens end here" is a branch like
 * any other. A trie link is either a node (leaf) or an inner node, told apart by the pointer's lowest bit.
 */
#include "radix/radix.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BITS_PER_TOKEN 33u
/* Hits halve in a week: what was used daily last month still outranks what was used once yesterday. */
#define HIT_HALF_LIFE_S (7.0 * 24 * 3600)

typedef uintptr_t link_t; /* 0, a kv_radix_node *, or an inner * with the lowest bit set */

typedef struct inner {
    struct inner *up;
    link_t child[2]; /* by the bit's value */
    uint32_t bit;    /* where the two sides part; grows downwards */
} inner;

typedef struct record {
    struct record *next; /* ascending slot */
    kv_radix_record data;
    uint8_t slot;
} record;

struct kv_radix_node {
    kv_hash key;
    kv_radix_node *parent;    /* NULL at a root */
    link_t trie;              /* settled children */
    inner *up;                /* the inner node above this leaf; NULL: the only settled child, or unsettled */
    kv_radix_node *unsettled; /* first of the children that are not in the trie yet */
    kv_radix_node *next_unsettled;
    record *records;
    uint32_t n_children;
    uint32_t version; /* of the set of children */
    int32_t start;
    uint16_t n_tokens;
    bool in_trie;
    _Atomic uint32_t refs;
    float hits; /* as of last_used */
    uint32_t last_used;
};

struct kv_radix {
    pthread_rwlock_t lock;
    int32_t block;
    kv_radix_node **table; /* open addressing, linear probing; `cap` is a power of two, at most 2/3 full */
    size_t n, cap;
    size_t n_inner, n_records;
};

/* ── links and bits ────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_inner(link_t l) {
    return l & 1;
}
static inner *as_inner(link_t l) {
    return (inner *)(l - 1);
}
static kv_radix_node *as_node(link_t l) {
    return (kv_radix_node *)l;
}
static link_t link_inner(inner *i) {
    return (link_t)i | 1;
}
static link_t link_node(kv_radix_node *n) {
    return (link_t)n;
}

static int bit_of(const kv_token *tokens, size_t n, uint32_t bit) {
    size_t t = bit / BITS_PER_TOKEN;
    uint32_t b = bit % BITS_PER_TOKEN;
    if (t >= n) return 0;
    return b == 0 ? 1 : (int)((uint32_t)tokens[t] >> (32 - b) & 1);
}

/* The first bit where two different token strings part. */
static uint32_t parting_bit(const kv_token *a, size_t na, const kv_token *b, size_t nb) {
    size_t t = kv_tokens_common(a, na, b, nb);
    uint32_t bit = (uint32_t)t * BITS_PER_TOKEN;
    if (t == na || t == nb) return bit;
    return bit + 1 + (uint32_t)__builtin_clz((uint32_t)a[t] ^ (uint32_t)b[t]);
}

/* The leaf that shares the longest prefix with the tokens; NULL only for an empty trie. */
static kv_radix_node *blind_walk(link_t l, const kv_token *tokens, size_t n) {
    while (is_inner(l)) l = as_inner(l)->child[bit_of(tokens, n, as_inner(l)->bit)];
    return as_node(l);
}

/* ── table ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_radix_node *table_find(const kv_radix *r, kv_hash key) {
    if (r->cap == 0) return NULL;
    for (size_t i = key.lo & (r->cap - 1); r->table[i]; i = (i + 1) & (r->cap - 1))
        if (kv_hash_equal(r->table[i]->key, key)) return r->table[i];
    return NULL;
}

static void table_put(kv_radix_node **table, size_t cap, kv_radix_node *n) {
    size_t i = n->key.lo & (cap - 1);
    while (table[i]) i = (i + 1) & (cap - 1);
    table[i] = n;
}

static void table_add(kv_radix *r, kv_radix_node *n) {
    if ((r->n + 1) * 3 > r->cap * 2) {
        size_t cap = r->cap ? r->cap * 2 : 64;
        kv_radix_node **table = kv_alloc(cap * sizeof(*table));
        for (size_t i = 0; i < r->cap; i++)
            if (r->table[i]) table_put(table, cap, r->table[i]);
        free(r->table);
        r->table = table;
        r->cap = cap;
    }
    table_put(r->table, r->cap, n);
    r->n++;
}

/* Linear probing without tombstones: what follows in the same run moves up when the gap lies on its way. */
static void table_remove(kv_radix *r, const kv_radix_node *n) {
    size_t mask = r->cap - 1, gap = n->key.lo & mask;
    while (r->table[gap] != n) gap = (gap + 1) & mask;
    for (size_t i = (gap + 1) & mask; r->table[i]; i = (i + 1) & mask) {
        size_t home = r->table[i]->key.lo & mask;
        if (((i - home) & mask) < ((i - gap) & mask)) continue;
        r->table[gap] = r->table[i];
        gap = i;
    }
    r->table[gap] = NULL;
    r->n--;
}

/* ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_radix *kv_radix_new(int32_t block) {
    KV_CHECK(block >= 1 && block <= UINT16_MAX);
    kv_radix *r = kv_alloc(sizeof *r);
    r->block = block;
    KV_CHECK(pthread_rwlock_init(&r->lock, NULL) == 0);
    return r;
}

static void free_inners(link_t l) {
    if (!is_inner(l)) return;
    free_inners(as_inner(l)->child[0]);
    free_inners(as_inner(l)->child[1]);
    free(as_inner(l));
}

static void free_node(kv_radix *r, kv_radix_node *n) {
    for (record *rec = n->records, *next; rec; rec = next) {
        next = rec->next;
        free(rec);
        r->n_records--;
    }
    free(n);
}

void kv_radix_free(kv_radix *r) {
    if (!r) return;
    for (size_t i = 0; i < r->cap; i++) {
        if (!r->table[i]) continue;
        free_inners(r->table[i]->trie);
        free_node(r, r->table[i]);
    }
    free(r->table);
    pthread_rwlock_destroy(&r->lock);
    free(r);
}

static kv_radix_node *referenced(kv_radix_node *n) {
    atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
    return n;
}

static kv_radix_node *new_node(kv_radix *r, kv_radix_node *parent, kv_hash key, int32_t n_tokens) {
    kv_radix_node *n = kv_alloc(sizeof *n);
    n->key = key;
    n->parent = parent;
    n->n_tokens = (uint16_t)n_tokens;
    if (parent) {
        n->start = parent->start + parent->n_tokens;
        parent->n_children++;
        parent->version++;
    }
    table_add(r, n);
    return referenced(n);
}

kv_radix_node *kv_radix_root(kv_radix *r, kv_hash ns) {
    pthread_rwlock_wrlock(&r->lock);
    kv_radix_node *n = table_find(r, ns);
    n = n ? referenced(n) : new_node(r, NULL, ns, 0);
    pthread_rwlock_unlock(&r->lock);
    return n;
}

void kv_radix_ref(kv_radix *r, kv_radix_node *node) {
    (void)r;
    referenced(node);
}

void kv_radix_unref(kv_radix *r, kv_radix_node *node) {
    (void)r;
    KV_CHECK(atomic_fetch_sub_explicit(&node->refs, 1, memory_order_release) > 0);
}

kv_hash kv_radix_key(const kv_radix_node *n) {
    return n->key;
}
int32_t kv_radix_start(const kv_radix_node *n) {
    return n->start;
}
int32_t kv_radix_n_tokens(const kv_radix_node *n) {
    return n->n_tokens;
}
kv_radix_node *kv_radix_parent(const kv_radix_node *n) {
    return n->parent;
}

/* ── finding ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The blind walk once more, keeping the leaves that end where the walk goes on. */
static void walk_siblings(kv_radix_match *out, link_t l, const kv_token *tokens, size_t n) {
    int room = 0;
    while (is_inner(l)) {
        inner *i = as_inner(l);
        int side = bit_of(tokens, n, i->bit);
        if (side && i->bit % BITS_PER_TOKEN == 0) {
            if (out->n_ends == room) {
                room = room ? room * 2 : 8;
                out->ends = kv_realloc(out->ends, (size_t)room * sizeof(*out->ends));
            }
            out->ends[out->n_ends++] = referenced(as_node(i->child[0])); /* only one of them ends there */
        }
        l = i->child[side];
    }
    if (l) out->candidate = referenced(as_node(l));
}

void kv_radix_find(kv_radix_match *out, kv_radix *r, kv_radix_node *root, const kv_token *tokens, size_t n) {
    *out = (kv_radix_match){0};
    size_t block = (size_t)r->block, done = 0;
    out->path = kv_alloc((n / block + 1) * sizeof(*out->path));
    pthread_rwlock_rdlock(&r->lock);
    kv_radix_node *at = root;
    while (n - done >= block && at->n_children) {
        kv_radix_node *next = table_find(r, kv_hash_chain(at->key, tokens + done, block));
        if (!next || next->parent != at) break;
        out->path[out->n_path++] = referenced(next);
        at = next;
        done += block;
    }
    out->unsettled = at->unsettled != NULL;
    if (done < n) walk_siblings(out, at->trie, tokens + done, n - done);
    pthread_rwlock_unlock(&r->lock);
}

void kv_radix_match_free(kv_radix_match *m, kv_radix *r) {
    for (int i = 0; i < m->n_path; i++) kv_radix_unref(r, m->path[i]);
    for (int i = 0; i < m->n_ends; i++) kv_radix_unref(r, m->ends[i]);
    free(m->ends);
    if (m->candidate) kv_radix_unref(r, m->candidate);
    free(m->path);
    *m = (kv_radix_match){0};
}

static int collect(kv_radix_node **out, int n, int room, link_t l) {
    if (n == room) return n;
    if (!is_inner(l)) {
        out[n] = referenced(as_node(l));
        return n + 1;
    }
    n = collect(out, n, room, as_inner(l)->child[0]);
    return collect(out, n, room, as_inner(l)->child[1]);
}

kv_radix_node *kv_radix_get(kv_radix *r, kv_hash key) {
    pthread_rwlock_rdlock(&r->lock);
    kv_radix_node *n = table_find(r, key);
    if (n) referenced(n);
    pthread_rwlock_unlock(&r->lock);
    return n;
}

int kv_radix_prefixes(kv_radix_node **out, int room, kv_radix *r, kv_radix_node *node) {
    pthread_rwlock_rdlock(&r->lock);
    int found = 0;
    link_t below = link_node(node);
    for (inner *i = node->up; i; i = i->up) {
        if (i->bit % BITS_PER_TOKEN == 0 && i->child[1] == below && found < room)
            out[found++] = referenced(as_node(i->child[0]));
        below = link_inner(i);
    }
    pthread_rwlock_unlock(&r->lock);
    return found;
}

int kv_radix_peers(kv_radix_node **out, int room, kv_radix *r, kv_radix_node *node, int32_t n) {
    pthread_rwlock_rdlock(&r->lock);
    link_t top = link_node(node);
    /* All below an inner node agree in the bits before its own. */
    for (inner *i = node->up; i && i->bit >= (uint32_t)n * BITS_PER_TOKEN; i = i->up) top = link_inner(i);
    int found = collect(out, 0, room, top);
    pthread_rwlock_unlock(&r->lock);
    return found;
}

/* A leaf below a link: by the bits of the token number `at`, and from there on one that ends as late as may be. */
static kv_radix_node *walk_to(link_t l, int32_t at, kv_token token) {
    while (is_inner(l)) {
        uint32_t t = as_inner(l)->bit / BITS_PER_TOKEN, b = as_inner(l)->bit % BITS_PER_TOKEN;
        int side = b == 0;
        if (b && (int32_t)t == at) side = (int)((uint32_t)token >> (32 - b) & 1);
        l = as_inner(l)->child[side];
    }
    return as_node(l);
}

kv_radix_node *kv_radix_any_child(bool *unsettled, kv_radix *r, kv_radix_node *node) {
    pthread_rwlock_rdlock(&r->lock);
    kv_radix_node *n = walk_to(node->trie, -1, 0);
    if (n) referenced(n);
    *unsettled = node->unsettled != NULL;
    pthread_rwlock_unlock(&r->lock);
    return n;
}

int kv_radix_partings(int32_t *out, int room, kv_radix *r, kv_radix_node *node) {
    int n = 0;
    pthread_rwlock_rdlock(&r->lock);
    link_t below = link_node(node);
    for (inner *i = node->up; i; below = link_inner(i), i = i->up) {
        int32_t t = (int32_t)(i->bit / BITS_PER_TOKEN);
        bool only_ends = i->bit % BITS_PER_TOKEN == 0 && i->child[1] == below;
        if (only_ends || (n && out[n - 1] == t)) continue;
        if (n == room) break;
        out[n++] = t;
    }
    pthread_rwlock_unlock(&r->lock);
    for (int a = 0, b = n - 1; a < b; a++, b--) {
        int32_t t = out[a];
        out[a] = out[b];
        out[b] = t;
    }
    return n;
}

kv_radix_node *kv_radix_sibling_at(kv_radix *r, kv_radix_node *node, int32_t shared, kv_token own, kv_token other) {
    uint32_t bit = (uint32_t)shared * BITS_PER_TOKEN;
    if (shared < node->n_tokens) {
        if (own == other) return NULL;
        bit += 1 + (uint32_t)__builtin_clz((uint32_t)own ^ (uint32_t)other);
    }
    kv_radix_node *found = NULL;
    pthread_rwlock_rdlock(&r->lock);
    link_t below = link_node(node);
    inner *i = node->up;
    for (; i && i->bit > bit; i = i->up) below = link_inner(i);
    /* All below this inner node agree before `bit`; the other side has there what `other` has. */
    if (i && i->bit == bit) found = referenced(walk_to(i->child[i->child[0] == below], shared, other));
    pthread_rwlock_unlock(&r->lock);
    return found;
}

/* ── adding ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void set_up(link_t l, inner *up) {
    if (is_inner(l)) as_inner(l)->up = up;
    else as_node(l)->up = up;
}

/* Hang `n` with these tokens into its parent's trie, where it parts from all others at `bit` (unused for the first). */
static void trie_insert(kv_radix *r, kv_radix_node *n, const kv_token *tokens, size_t n_tokens, uint32_t bit) {
    kv_radix_node *parent = n->parent;
    n->in_trie = true;
    n->up = NULL;
    if (!parent->trie) {
        parent->trie = link_node(n);
        return;
    }
    link_t *at = &parent->trie;
    inner *up = NULL;
    while (is_inner(*at) && as_inner(*at)->bit < bit) {
        up = as_inner(*at);
        at = &up->child[bit_of(tokens, n_tokens, up->bit)];
    }
    inner *i = kv_alloc(sizeof *i);
    r->n_inner++;
    i->bit = bit;
    i->up = up;
    int side = bit_of(tokens, n_tokens, bit);
    i->child[side] = link_node(n);
    i->child[!side] = *at;
    set_up(*at, i);
    n->up = i;
    *at = link_inner(i);
}

static void unsettle(kv_radix_node *n) {
    n->next_unsettled = n->parent->unsettled;
    n->parent->unsettled = n;
}

static void drop_unsettled(kv_radix_node *n) {
    kv_radix_node **at = &n->parent->unsettled;
    while (*at != n) at = &(*at)->next_unsettled;
    *at = n->next_unsettled;
    n->next_unsettled = NULL;
}

/* Reads the tokens of the trie's leaf nearest to `tokens` and finds where they part. False: unreadable, or the same
 * tokens under another key, which only damaged data can say. */
static bool part_from(uint32_t *bit, const kv_radix_node *leaf, const kv_token *tokens, size_t n,
                      kv_radix_tokens_fn tokens_of, void *ctx) {
    kv_token *other = kv_alloc((size_t)leaf->n_tokens * sizeof *other);
    bool ok = tokens_of(ctx, leaf, other);
    if (ok) {
        ok = kv_tokens_common(other, leaf->n_tokens, tokens, n) < n || leaf->n_tokens != n;
        if (ok) *bit = parting_bit(other, leaf->n_tokens, tokens, n);
    }
    free(other);
    return ok;
}

/* One unsettled child goes into the trie. KV_BUSY: the children changed meanwhile, try again. */
static kv_status settle_one(kv_radix_node **bad, kv_radix *r, kv_radix_node *child, kv_radix_tokens_fn tokens_of,
                            void *ctx, kv_error *err) {
    kv_radix_node *parent = child->parent, *leaf = NULL;
    kv_token *tokens = kv_alloc((size_t)child->n_tokens * sizeof *tokens);
    uint32_t bit = 0;
    kv_status status = KV_OK;
    if (!tokens_of(ctx, child, tokens)) {
        *bad = referenced(child);
        status = kv_fail(err, KV_CORRUPT, "the tokens of a stored block could not be read");
        goto done;
    }
    pthread_rwlock_rdlock(&r->lock);
    uint32_t version = parent->version;
    leaf = blind_walk(parent->trie, tokens, child->n_tokens);
    if (leaf) referenced(leaf);
    pthread_rwlock_unlock(&r->lock);
    if (leaf && !part_from(&bit, leaf, tokens, child->n_tokens, tokens_of, ctx)) {
        *bad = referenced(leaf);
        status = kv_fail(err, KV_CORRUPT, "the tokens of a stored block could not be read");
        goto done;
    }
    pthread_rwlock_wrlock(&r->lock);
    if (version != parent->version) {
        status = KV_BUSY;
    } else if (!child->in_trie) {
        drop_unsettled(child);
        trie_insert(r, child, tokens, child->n_tokens, bit);
        parent->version++;
    }
    pthread_rwlock_unlock(&r->lock);
done:
    if (leaf) kv_radix_unref(r, leaf);
    free(tokens);
    return status;
}

kv_status kv_radix_settle(kv_radix_node **bad, kv_radix *r, kv_radix_node *parent, kv_radix_tokens_fn tokens_of,
                          void *ctx, kv_error *err) {
    *bad = NULL;
    for (;;) {
        pthread_rwlock_rdlock(&r->lock);
        kv_radix_node *child = parent->unsettled ? referenced(parent->unsettled) : NULL;
        pthread_rwlock_unlock(&r->lock);
        if (!child) return KV_OK;
        kv_status status = settle_one(bad, r, child, tokens_of, ctx, err);
        kv_radix_unref(r, child);
        if (status != KV_OK && status != KV_BUSY) return status;
    }
}

kv_status kv_radix_add(kv_radix_node **out, bool *created, kv_radix_node **bad, kv_radix *r, kv_radix_node *parent,
                       const kv_token *tokens, size_t n, kv_radix_tokens_fn tokens_of, void *ctx, kv_error *err) {
    *out = *bad = NULL;
    *created = false;
    if (n < 1 || n > (size_t)r->block)
        return kv_fail(err, KV_INVALID, "a block of %zu tokens; it takes 1 to %d", n, r->block);
    if (parent->parent && parent->n_tokens != r->block)
        return kv_fail(err, KV_INVALID, "a short block cannot be continued");
    kv_hash key = kv_hash_chain(parent->key, tokens, n);
    for (;;) {
        kv_status status = kv_radix_settle(bad, r, parent, tokens_of, ctx, err);
        if (status != KV_OK) return status;
        pthread_rwlock_rdlock(&r->lock);
        uint32_t version = parent->version;
        kv_radix_node *same = table_find(r, key), *leaf = NULL;
        if (same) *out = referenced(same);
        else if ((leaf = blind_walk(parent->trie, tokens, n))) referenced(leaf);
        pthread_rwlock_unlock(&r->lock);
        if (same) return KV_OK;
        uint32_t bit = 0;
        if (leaf && !part_from(&bit, leaf, tokens, n, tokens_of, ctx)) {
            *bad = leaf;
            return kv_fail(err, KV_CORRUPT, "the tokens of a stored block could not be read");
        }
        if (leaf) kv_radix_unref(r, leaf);
        pthread_rwlock_wrlock(&r->lock);
        bool unchanged = version == parent->version;
        if (unchanged) {
            *out = new_node(r, parent, key, (int32_t)n);
            trie_insert(r, *out, tokens, n, bit);
            *created = true;
        }
        pthread_rwlock_unlock(&r->lock);
        if (unchanged) return KV_OK;
    }
}

kv_radix_node *kv_radix_add_known(kv_radix *r, kv_radix_node *parent, kv_hash key, int32_t n_tokens) {
    KV_CHECK(n_tokens >= 1 && n_tokens <= r->block);
    pthread_rwlock_wrlock(&r->lock);
    kv_radix_node *n = table_find(r, key);
    if (n) {
        referenced(n);
    } else {
        n = new_node(r, parent, key, n_tokens);
        if (parent->n_children == 1) { /* an only child needs no telling apart */
            parent->trie = link_node(n);
            n->in_trie = true;
        } else {
            unsettle(n);
        }
    }
    pthread_rwlock_unlock(&r->lock);
    return n;
}

/* ── removing ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void trie_remove(kv_radix *r, kv_radix_node *n) {
    inner *i = n->up;
    if (!i) {
        n->parent->trie = 0;
        return;
    }
    link_t other = i->child[as_node(i->child[0]) == n ? 1 : 0];
    if (!i->up) n->parent->trie = other;
    else i->up->child[i->up->child[1] == link_inner(i)] = other;
    set_up(other, i->up);
    free(i);
    r->n_inner--;
}

static bool is_free_leaf(const kv_radix_node *node) {
    return node->parent && node->n_children == 0 && atomic_load_explicit(&node->refs, memory_order_acquire) == 1;
}

bool kv_radix_is_free_leaf(kv_radix *r, kv_radix_node *node) {
    pthread_rwlock_rdlock(&r->lock);
    bool yes = is_free_leaf(node);
    pthread_rwlock_unlock(&r->lock);
    return yes;
}

bool kv_radix_remove(kv_radix *r, kv_radix_node *node) {
    pthread_rwlock_wrlock(&r->lock);
    bool ok = is_free_leaf(node);
    if (ok) {
        if (node->in_trie) trie_remove(r, node);
        else drop_unsettled(node);
        node->parent->n_children--;
        node->parent->version++;
        table_remove(r, node);
        free_node(r, node);
    }
    pthread_rwlock_unlock(&r->lock);
    return ok;
}

/* ── records and use ───────────────────────────────────────────────────────────────────────────────────────────── */

/* The place of a slot in the node's list: where it is, or where it would go. */
static record **record_at(kv_radix_node *n, kv_radix_slot slot) {
    record **at = &n->records;
    while (*at && (*at)->slot < slot) at = &(*at)->next;
    return at;
}

bool kv_radix_get_record(kv_radix_record *out, kv_radix *r, const kv_radix_node *n, kv_radix_slot slot) {
    pthread_rwlock_rdlock(&r->lock);
    const record *rec = *record_at((kv_radix_node *)n, slot);
    bool found = rec && rec->slot == slot;
    if (found) *out = rec->data;
    pthread_rwlock_unlock(&r->lock);
    return found;
}

void kv_radix_set_record(kv_radix *r, kv_radix_node *n, kv_radix_slot slot, const kv_radix_record *rec) {
    pthread_rwlock_wrlock(&r->lock);
    record **at = record_at(n, slot);
    bool found = *at && (*at)->slot == slot;
    if (rec->bytes == 0 && found) {
        record *gone = *at;
        *at = gone->next;
        free(gone);
        r->n_records--;
    } else if (rec->bytes) {
        if (!found) {
            record *fresh = kv_alloc(sizeof *fresh);
            fresh->slot = (uint8_t)slot;
            fresh->next = *at;
            *at = fresh;
            r->n_records++;
        }
        (*at)->data = *rec;
    }
    pthread_rwlock_unlock(&r->lock);
}

static double decayed(const kv_radix_node *n, int64_t now) {
    double age = (double)(now - (int64_t)n->last_used);
    return age > 0 ? n->hits * exp2(-age / HIT_HALF_LIFE_S) : n->hits;
}

void kv_radix_touch(kv_radix *r, kv_radix_node *n, int64_t now) {
    pthread_rwlock_wrlock(&r->lock);
    n->hits = (float)(decayed(n, now) + 1);
    if (now > (int64_t)n->last_used) n->last_used = (uint32_t)now; /* a clock set back does not make it older */
    pthread_rwlock_unlock(&r->lock);
}

void kv_radix_set_use(kv_radix *r, kv_radix_node *n, double hits, int64_t last_used) {
    pthread_rwlock_wrlock(&r->lock);
    n->hits = (float)hits;
    n->last_used = (uint32_t)last_used;
    pthread_rwlock_unlock(&r->lock);
}

void kv_radix_use(double *hits, int64_t *last_used, kv_radix *r, const kv_radix_node *n, int64_t now) {
    pthread_rwlock_rdlock(&r->lock);
    *hits = decayed(n, now);
    *last_used = n->last_used;
    pthread_rwlock_unlock(&r->lock);
}

/* ── the whole tree ────────────────────────────────────────────────────────────────────────────────────────────── */

static int by_start_down(const void *a, const void *b) {
    int32_t x = (*(kv_radix_node *const *)a)->start, y = (*(kv_radix_node *const *)b)->start;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* All nodes, deepest first; owned array. A root (start 0, no tokens) comes after its first blocks. */
static kv_radix_node **all_nodes(size_t *n, const kv_radix *r) {
    kv_radix_node **nodes = kv_alloc((r->n + 1) * sizeof(*nodes));
    *n = 0;
    for (size_t i = 0; i < r->cap; i++)
        if (r->table[i] && r->table[i]->parent) nodes[(*n)++] = r->table[i];
    qsort(nodes, *n, sizeof(*nodes), by_start_down);
    for (size_t i = 0; i < r->cap; i++)
        if (r->table[i] && !r->table[i]->parent) nodes[(*n)++] = r->table[i];
    return nodes;
}

void kv_radix_walk(kv_radix *r, void (*fn)(void *ctx, kv_radix_node *n), void *ctx) {
    pthread_rwlock_rdlock(&r->lock);
    size_t n;
    kv_radix_node **nodes = all_nodes(&n, r);
    for (size_t i = 0; i < n; i++) referenced(nodes[i]);
    pthread_rwlock_unlock(&r->lock);
    for (size_t i = 0; i < n; i++) {
        fn(ctx, nodes[i]);
        kv_radix_unref(r, nodes[i]);
    }
    free(nodes);
}

size_t kv_radix_count(kv_radix *r) {
    pthread_rwlock_rdlock(&r->lock);
    size_t n = r->n;
    pthread_rwlock_unlock(&r->lock);
    return n;
}

size_t kv_radix_bytes(kv_radix *r) {
    enum { MALLOC_OVERHEAD = 16 };
    pthread_rwlock_rdlock(&r->lock);
    size_t bytes = sizeof *r + r->cap * sizeof(*r->table) + r->n * (sizeof(kv_radix_node) + MALLOC_OVERHEAD) +
                   r->n_inner * (sizeof(inner) + MALLOC_OVERHEAD) + r->n_records * (sizeof(record) + MALLOC_OVERHEAD);
    pthread_rwlock_unlock(&r->lock);
    return bytes;
}

/* One trie: links upwards are right, bits grow, and each leaf lies where its tokens lead. Returns its leaves. */
static uint32_t check_trie(const kv_radix_node *parent, link_t l, inner *up, kv_radix_tokens_fn tokens_of, void *ctx) {
    if (!l) return 0;
    if (is_inner(l)) {
        inner *i = as_inner(l);
        KV_CHECK(i->up == up && (!up || i->bit > up->bit));
        return check_trie(parent, i->child[0], i, tokens_of, ctx) + check_trie(parent, i->child[1], i, tokens_of, ctx);
    }
    kv_radix_node *n = as_node(l);
    KV_CHECK(n->up == up && n->parent == parent && n->in_trie);
    kv_token *tokens = kv_alloc((size_t)n->n_tokens * sizeof *tokens);
    if (tokens_of && tokens_of(ctx, n, tokens)) {
        KV_CHECK(kv_hash_equal(n->key, kv_hash_chain(parent->key, tokens, n->n_tokens)));
        KV_CHECK(blind_walk(parent->trie, tokens, n->n_tokens) == n);
    }
    free(tokens);
    return 1;
}

void kv_radix_check(kv_radix *r, kv_radix_tokens_fn tokens_of, void *ctx) {
    size_t n = 0, n_records = 0;
    for (size_t i = 0; i < r->cap; i++) {
        kv_radix_node *node = r->table[i];
        if (!node) continue;
        n++;
        KV_CHECK(table_find(r, node->key) == node);
        if (node->parent) {
            KV_CHECK(table_find(r, node->parent->key) == node->parent);            /* R1 */
            KV_CHECK(!node->parent->parent || node->parent->n_tokens == r->block); /* R4 */
            KV_CHECK(node->start == node->parent->start + node->parent->n_tokens);
        }
        uint32_t children = check_trie(node, node->trie, NULL, tokens_of, ctx); /* R3 */
        for (kv_radix_node *c = node->unsettled; c; c = c->next_unsettled) {
            KV_CHECK(c->parent == node && !c->in_trie);
            children++;
        }
        KV_CHECK(children == node->n_children);
        for (record *rec = node->records; rec; rec = rec->next) {
            n_records++;
            KV_CHECK(rec->data.bytes > 0);
            KV_CHECK(!rec->next || rec->slot < rec->next->slot);
        }
    }
    KV_CHECK(n == r->n && n_records == r->n_records);
}

void kv_radix_dump(kv_buf *out, kv_radix *r) {
    static const char *const slot_names[] = {"block", "window", "checkpoint", "whole"};
    pthread_rwlock_rdlock(&r->lock);
    size_t n;
    kv_radix_node **nodes = all_nodes(&n, r);
    for (size_t i = n; i-- > 0;) {
        char key[33];
        kv_hash_hex(key, nodes[i]->key);
        kv_buf_addf(out, "%.12s [%d, %d) children %u refs %u", key, nodes[i]->start,
                    nodes[i]->start + nodes[i]->n_tokens, nodes[i]->n_children, atomic_load(&nodes[i]->refs));
        for (record *rec = nodes[i]->records; rec; rec = rec->next)
            kv_buf_addf(out, " | %s %llu B%s%s", slot_names[rec->slot], (unsigned long long)rec->data.bytes,
                        rec->data.ram ? " ram" : "", rec->data.on_disk ? " disk" : "");
        kv_buf_adds(out, "\n");
    }
    free(nodes);
    pthread_rwlock_unlock(&r->lock);
}
