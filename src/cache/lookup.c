/* cache/lookup.c: from a prompt to a position and the records that lead there, and those records into the engine.
 *
 * All blocks that lead to P, with the last one cut:
 *
 *     path[0]      path[1]       …      path[k-1]        sibling
 *   ├────────────┼────────────┼──────┼────────────┼─────────┤P─ ─ ─ ─┤
 *   full blocks, found by hash                    its first L tokens are the prompt's
 *
 * A position is usable when every block before it has its cells, and what is bound to the position (window parts of
 * the blocks in the window, or a checkpoint) is there. The largest usable one below the prompt's last token wins.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cache/cache_private.h"

/* Siblings looked at for a record of the shared part; more than that share it only when somebody regenerates an answer
 * very often, and then the first ones have the cells. */
#define MAX_PEERS 64

typedef struct item {
    kv_record *block, *window; /* referenced; window NULL where none of its cells is needed */
    int32_t q, e;
} item;

struct kv_lookup {
    kv_cache *cache;
    _Atomic int refs; /* the caller's and the job's */
    kv_token *tokens; /* owned */
    int32_t n;
    kv_radix_node *root; /* referenced */
    void (*wake)(void *);
    void *wake_ctx;
    _Atomic bool ready, abandoned;
    kv_lookup_result result;
    item *items; /* owned, n_items: blocks from 0 on, in order */
    int n_items;
    kv_record *checkpoint; /* referenced; or the whole record */
    int next;              /* item to be put next; the engine thread's */
    bool begun;
};

/* What the tree says, while it is being looked at. */
typedef struct sight {
    kv_radix_match match;
    kv_radix_node *peers[MAX_PEERS]; /* siblings that share the first `shared` tokens of the candidate */
    int n_peers;
    int32_t path_end; /* tokens of the path's full blocks */
    int32_t shared;   /* tokens of the prompt behind them that the candidate has too */
} sight;

static void drop(kv_lookup *l) {
    if (atomic_fetch_sub(&l->refs, 1) != 1) return;
    for (int i = 0; i < l->n_items; i++) {
        kv_record_unref(l->items[i].block);
        kv_record_unref(l->items[i].window);
    }
    kv_record_unref(l->checkpoint);
    kv_radix_unref(l->cache->tree, l->root);
    free(l->items);
    free(l->tokens);
    free(l);
}

static void sight_free(sight *s, kv_cache *c) {
    for (int i = 0; i < s->n_peers; i++) kv_radix_unref(c->tree, s->peers[i]);
    s->n_peers = 0;
    kv_radix_match_free(&s->match, c->tree);
}

/* How many tokens of the prompt behind the path the candidate has. */
static int32_t compare_candidate(const kv_lookup *l, const sight *s) {
    kv_radix_node *node = s->match.candidate;
    if (!node) return 0;
    int32_t n = kv_radix_n_tokens(node);
    kv_token *tokens = kv_alloc((size_t)n * sizeof *tokens);
    size_t shared = 0;
    if (kv_cache_tokens_of(l->cache, node, tokens))
        shared = kv_tokens_common(tokens, (size_t)n, l->tokens + s->path_end, (size_t)(l->n - s->path_end));
    free(tokens);
    return (int32_t)shared;
}

static void see(sight *s, kv_lookup *l) {
    kv_cache *c = l->cache;
    memset(s, 0, sizeof *s);
    /* Children known by key alone are put apart first; one that cannot be read is forgotten. */
    for (int tries = 0; tries < 100; tries++) {
        kv_radix_find(&s->match, c->tree, l->root, l->tokens, (size_t)l->n);
        if (!s->match.unsettled) break;
        kv_radix_node *parent = s->match.n_path ? s->match.path[s->match.n_path - 1] : l->root, *bad;
        if (kv_radix_settle(&bad, c->tree, parent, kv_cache_tokens_of, c, NULL) != KV_OK && bad)
            kv_cache_forget(c, bad);
        kv_radix_match_free(&s->match, c->tree);
    }
    s->path_end = s->match.n_path * c->cfg.block;
    s->shared = compare_candidate(l, s);
    if (s->shared) s->n_peers = kv_radix_peers(s->peers, MAX_PEERS, c->tree, s->match.candidate, s->shared);
}

/* ── which records ─────────────────────────────────────────────────────────────────────────────────────────────── */

/* A record of the block that begins at q and covers the prompt up to `upto` at least. Tokens decide: a record is only
 * taken when its own are the prompt's. Referenced, or NULL. */
static kv_record *find_block(const kv_lookup *l, const sight *s, int32_t q, int32_t upto, kv_radix_slot slot) {
    kv_cache *c = l->cache;
    kv_radix_node *const *nodes = q < s->path_end ? &s->match.path[q / c->cfg.block] : s->peers;
    int n_nodes = q < s->path_end ? 1 : s->n_peers;
    for (int i = 0; i < n_nodes; i++) {
        if (kv_radix_start(nodes[i]) + kv_radix_n_tokens(nodes[i]) < upto) continue;
        kv_record *r = kv_cache_record(c, nodes[i], slot);
        if (!r) continue;
        size_t n = (size_t)(upto - q);
        if (kv_tokens_common(r->tokens, (size_t)r->head.n_tokens, l->tokens + q, n) == n) return r;
        kv_record_unref(r);
    }
    return NULL;
}

/* How far blocks reach from 0 on without a gap, at most `limit`. */
static int32_t covered(const kv_lookup *l, const sight *s, int32_t limit) {
    int32_t block = l->cache->cfg.block;
    for (int32_t q = 0; q < limit; q += block) {
        int32_t upto = q + block < limit ? q + block : limit;
        kv_record *r = find_block(l, s, q, upto, KV_RADIX_BLOCK);
        if (!r) return q;
        kv_record_unref(r);
    }
    return limit;
}

static int32_t window_start(const kv_cache *c, int32_t P) {
    return kv_window_start(c->window, c->window_is_chunked, P);
}

/* The largest P ≤ limit whose window parts are all there. A block that lacks its part can only lie outside. */
static int32_t windowed(const kv_lookup *l, const sight *s, int32_t limit) {
    const kv_cache *c = l->cache;
    int32_t block = c->cfg.block, P = limit;
    while (P > 0) {
        int32_t missing = -1;
        for (int32_t q = (P - 1) / block * block; q >= 0 && q + block > window_start(c, P); q -= block) {
            kv_record *r = find_block(l, s, q, q + block < P ? q + block : P, KV_RADIX_WINDOW);
            if (!r) {
                missing = q;
                break;
            }
            kv_record_unref(r);
        }
        if (missing < 0) return P;
        P = missing;
    }
    return 0;
}

/* The node that ends at a usable checkpoint, the farthest one ≤ limit; borrowed from the sight. */
static kv_radix_node *checkpointed(const kv_lookup *l, const sight *s, int32_t limit, kv_radix_slot slot) {
    kv_cache *c = l->cache;
    kv_radix_record rec;
    kv_radix_node *last = s->match.candidate;
    if (last && kv_radix_n_tokens(last) == s->shared && s->path_end + s->shared <= limit &&
        kv_radix_get_record(&rec, c->tree, last, slot))
        return last;
    for (int i = s->match.n_ends - 1; i >= 0; i--) {
        kv_radix_node *node = s->match.ends[i];
        int32_t n = kv_radix_n_tokens(node);
        if (n <= s->shared && s->path_end + n <= limit && kv_radix_get_record(&rec, c->tree, node, slot)) return node;
    }
    for (int i = s->match.n_path - 1; i >= 0; i--)
        if ((i + 1) * c->cfg.block <= limit && kv_radix_get_record(&rec, c->tree, s->match.path[i], slot))
            return s->match.path[i];
    return NULL;
}

/* ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Takes the blocks of [0, P). False when one went away meanwhile. */
static bool take_blocks(kv_lookup *l, const sight *s, int32_t P) {
    kv_cache *c = l->cache;
    int32_t block = c->cfg.block, from = kv_state_has_windows(c->memory) ? window_start(c, P) : P;
    l->items = kv_alloc((size_t)(P / block + 1) * sizeof *l->items);
    for (int32_t q = 0; q < P; q += block) {
        item *it = &l->items[l->n_items++];
        int32_t upto = q + block < P ? q + block : P;
        it->q = q;
        it->block = find_block(l, s, q, upto, KV_RADIX_BLOCK);
        if (!it->block) return false;
        it->e = it->block->head.e;
        l->result.bytes += it->block->payload.len;
        if (upto <= from) continue;
        it->window = find_block(l, s, q, upto, KV_RADIX_WINDOW);
        if (!it->window) return false;
        l->result.bytes += it->window->payload.len;
    }
    return true;
}

static void touch(kv_lookup *l, const sight *s) {
    int64_t now = kv_now_us(l->cache->cfg.clock) / 1000000;
    for (int i = 0; i < s->match.n_path && i * l->cache->cfg.block < l->result.position; i++)
        kv_radix_touch(l->cache->tree, s->match.path[i], now);
    if (s->match.candidate && l->result.position > s->path_end) kv_radix_touch(l->cache->tree, s->match.candidate, now);
}

static void forget_plan(kv_lookup *l) {
    for (int i = 0; i < l->n_items; i++) {
        kv_record_unref(l->items[i].block);
        kv_record_unref(l->items[i].window);
    }
    free(l->items);
    l->items = NULL;
    l->n_items = 0;
    kv_record_unref(l->checkpoint);
    l->checkpoint = NULL;
    l->result.position = 0;
    l->result.bytes = 0;
}

/* The position with a checkpoint that blocks lead to; sets l->checkpoint. */
static int32_t plan_checkpoint(kv_lookup *l, const sight *s, int32_t limit) {
    kv_cache *c = l->cache;
    kv_radix_slot slot = c->memory == KV_MEMORY_WHOLE ? KV_RADIX_WHOLE : KV_RADIX_CHECKPOINT;
    while (limit > 0) {
        kv_radix_node *node = checkpointed(l, s, limit, slot);
        if (!node) return 0;
        int32_t P = kv_radix_start(node) + kv_radix_n_tokens(node);
        int32_t reach = kv_state_has_blocks(c->memory) ? covered(l, s, P) : P;
        kv_record *r = reach == P ? kv_cache_record(c, node, slot) : NULL;
        int32_t from = r ? P - r->head.n_tokens : 0;
        if (r && kv_tokens_common(r->tokens, (size_t)r->head.n_tokens, l->tokens + from, (size_t)(P - from)) ==
                     (size_t)(P - from)) {
            l->checkpoint = r;
            l->result.bytes += r->payload.len;
            return P;
        }
        kv_record_unref(r);
        limit = reach < P ? reach : P - 1;
    }
    return 0;
}

static kv_miss why(const kv_lookup *l, const sight *s, int32_t match, int32_t limit, int32_t reach) {
    const kv_cache *c = l->cache;
    if (l->result.position >= l->n - 1) return KV_MISS_NONE;
    if (l->result.position == match)
        return s->match.n_path == 0 && !s->match.candidate ? KV_MISS_EMPTY : KV_MISS_DIVERGED;
    if (reach < match && reach < limit) return KV_MISS_NOT_STORED;
    return kv_state_has_windows(c->memory)       ? KV_MISS_NO_WINDOW
           : kv_state_has_checkpoints(c->memory) ? KV_MISS_NO_CHECKPOINT
                                                 : KV_MISS_DIVERGED;
}

static void plan(kv_lookup *l) {
    kv_cache *c = l->cache;
    kv_lookup_result *res = &l->result;
    for (int tries = 0; tries < 3; tries++) {
        sight s;
        see(&s, l);
        int32_t match = s.path_end + s.shared, limit = match < l->n - 1 ? match : l->n - 1;
        int32_t reach = kv_state_has_blocks(c->memory) ? covered(l, &s, limit) : limit;
        if (kv_state_has_windows(c->memory)) res->position = windowed(l, &s, reach);
        else if (kv_state_has_checkpoints(c->memory)) res->position = plan_checkpoint(l, &s, limit);
        else res->position = reach;
        bool ok = !kv_state_has_blocks(c->memory) || take_blocks(l, &s, res->position);
        res->n_match = match;
        res->miss = why(l, &s, match, limit, reach);
        res->miss_position = res->miss == KV_MISS_DIVERGED || res->miss == KV_MISS_EMPTY ? match : res->position;
        if (ok) touch(l, &s);
        sight_free(&s, c);
        if (ok) return;
        forget_plan(l); /* evicted while it was looked at */
    }
    res->miss = KV_MISS_NOT_STORED;
}

static void resolve(void *ctx) {
    kv_lookup *l = ctx;
    kv_cache *c = l->cache;
    if (!atomic_load(&l->abandoned)) plan(l);
    pthread_mutex_lock(&c->mutex);
    c->stats.n_lookups++;
    c->stats.tokens_looked_up += (uint64_t)l->n;
    c->stats.tokens_matched += (uint64_t)l->result.n_match;
    c->stats.n_miss[l->result.miss]++;
    atomic_store(&l->ready, true);
    /* Under the mutex: once kv_lookup_free has returned, nobody is woken any more. */
    if (!atomic_load(&l->abandoned) && l->wake) l->wake(l->wake_ctx);
    pthread_mutex_unlock(&c->mutex);
    drop(l);
}

kv_lookup *kv_lookup_start(kv_cache *c, const char *scope, const kv_token *tokens, size_t n, void (*wake)(void *),
                           void *ctx) {
    KV_CHECK(n >= 1 && n <= INT32_MAX);
    kv_lookup *l = kv_alloc(sizeof *l);
    l->cache = c;
    atomic_init(&l->refs, 2);
    l->tokens = kv_alloc(n * sizeof *l->tokens);
    memcpy(l->tokens, tokens, n * sizeof *l->tokens);
    l->n = (int32_t)n;
    l->root = kv_radix_root(c->tree, kv_cache_scope(c, scope));
    l->wake = wake;
    l->wake_ctx = ctx;
    kv_io_submit(c->cfg.io, KV_IO_READ, resolve, l);
    return l;
}

bool kv_lookup_ready(kv_lookup *l) {
    return atomic_load(&l->ready);
}

const kv_lookup_result *kv_lookup_get(kv_lookup *l) {
    return &l->result;
}

void kv_lookup_free(kv_lookup *l) {
    if (!l) return;
    pthread_mutex_lock(&l->cache->mutex);
    atomic_store(&l->abandoned, true);
    pthread_mutex_unlock(&l->cache->mutex);
    drop(l);
}

/* ── restore ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status put(kv_lookup *l, kv_state *state, kv_seq seq, int32_t have, kv_error *err) {
    const item *it = &l->items[l->next++];
    int32_t from = have > it->q ? have : it->q;
    return kv_state_put(state, seq, it->block->payload.data, it->block->payload.len,
                        it->window ? it->window->payload.data : NULL, it->window ? it->window->payload.len : 0, it->q,
                        from, it->e, err);
}

kv_restore kv_restore_step(kv_lookup *l, kv_state *state, kv_seq seq, int32_t have, int64_t budget_us, kv_error *err) {
    const kv_clock *clock = l->cache->cfg.clock;
    int64_t start = kv_now_us(clock);
    int32_t P = l->result.position;
    KV_CHECK(kv_lookup_ready(l) && have <= P);
    if (!l->begun) {
        l->begun = true;
        /* The last block may reach beyond P; what lies there is not needed. */
        while (l->next < l->n_items && (l->items[l->next].e < P ? l->items[l->next].e : P) <= have) l->next++;
    }
    while (l->next + 1 < l->n_items) {
        if (put(l, state, seq, have, err) != KV_OK) return KV_RESTORE_FAILED;
        if (kv_now_us(clock) - start >= budget_us) return KV_RESTORE_MORE;
    }
    /* The last block, the checkpoint and the cut are one step: between them, window cells that P needs count as free. */
    if (l->next < l->n_items && put(l, state, seq, have, err) != KV_OK) return KV_RESTORE_FAILED;
    const kv_record *r = l->checkpoint;
    kv_status status = kv_state_finish(state, seq, r ? r->payload.data : NULL, r ? r->payload.len : 0, P, err);
    if (status != KV_OK) return KV_RESTORE_FAILED;
    pthread_mutex_lock(&l->cache->mutex);
    l->cache->stats.tokens_restored += (uint64_t)(P - have);
    pthread_mutex_unlock(&l->cache->mutex);
    return KV_RESTORE_DONE;
}
