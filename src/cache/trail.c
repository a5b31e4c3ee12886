/* cache/trail.c: what a running sequence leaves behind in the cache.
 *
 *   0            edge                n
 *   ├─── … ───────┼─────────┤        captured up to `edge`, a multiple of B; the open tail behind it
 *                  open tail
 *
 * Blocks are taken as soon as they are full. Window parts of a block are taken with it, but only kept once a position
 * that needs them is reached: until then the trail holds those of the last W tokens. Without room in the queue blocks
 * are tried again later, as long as their cells are there; window parts and checkpoints are gone.
 */
#include <stdlib.h>
#include <string.h>

#include "cache/cache_private.h"

/* Window parts held: the blocks that overlap the W tokens before a block ago, and what came since. */
typedef struct held {
    kv_record *part; /* NULL = free */
} held;

struct kv_trail {
    kv_cache *cache;
    kv_radix_node *root; /* referenced; NULL before the first reset */
    int32_t edge;
    kv_hash edge_key; /* of [0, edge) */
    held *held;       /* owned, n_held */
    int n_held;
    int32_t seen;         /* tokens of the sequence when it was last looked at */
    bool has_gaps;        /* something of it was dropped */
    double us_per_token;  /* of the last tokens computed */
    int32_t keep_seconds; /* of what lies behind the edge */
    kv_buf scratch_block, scratch_window;
};

kv_trail *kv_trail_new(kv_cache *c) {
    kv_trail *t = kv_alloc(sizeof *t);
    t->cache = c;
    if (kv_state_has_windows(c->memory)) {
        t->n_held = c->window / c->cfg.block + 3;
        t->held = kv_alloc((size_t)t->n_held * sizeof *t->held);
    }
    return t;
}

/* The next prompt often takes back a little of a sequence, in its slot: a reminder, an answer rendered otherwise. A place
 * soon behind that has a window that begins before the one at the sequence's end. */
static int32_t a_block_before(const kv_trail *t, int32_t n) {
    return n > t->cache->cfg.block ? n - t->cache->cfg.block : 0;
}

/* Of the held parts those that end at or before `e`. */
static void let_go_to(kv_trail *t, int32_t e) {
    for (int i = 0; i < t->n_held; i++) {
        if (!t->held[i].part || t->held[i].part->head.e > e) continue;
        kv_record_unref(t->held[i].part);
        t->held[i].part = NULL;
    }
}

static void let_go(kv_trail *t) {
    let_go_to(t, INT32_MAX);
}

void kv_trail_free(kv_trail *t) {
    if (!t) return;
    let_go(t);
    if (t->root) kv_radix_unref(t->cache->tree, t->root);
    kv_buf_free(&t->scratch_block);
    kv_buf_free(&t->scratch_window);
    free(t->held);
    free(t);
}

void kv_trail_reset(kv_trail *t, const char *scope, const kv_token *tokens, int32_t n) {
    kv_cache *c = t->cache;
    let_go(t);
    if (t->root) kv_radix_unref(c->tree, t->root);
    t->root = kv_cache_root(c, scope);
    t->edge = 0;
    t->edge_key = kv_radix_key(t->root);
    t->us_per_token = 0;
    t->has_gaps = false;
    t->keep_seconds = 0;
    t->seen = n;
    while (t->edge + c->cfg.block <= n) {
        t->edge_key = kv_hash_chain(t->edge_key, tokens + t->edge, (size_t)c->cfg.block);
        t->edge += c->cfg.block;
    }
}

static bool is_stored(const kv_trail *t, kv_hash key, kv_radix_slot slot) {
    kv_radix_node *node = kv_radix_get(t->cache->tree, key);
    if (!node) return false;
    kv_radix_record rec;
    bool yes = kv_radix_get_record(&rec, t->cache->tree, node, slot);
    kv_radix_unref(t->cache->tree, node);
    return yes;
}

static void count_dropped(kv_trail *t) {
    kv_cache *c = t->cache;
    t->has_gaps = true;
    pthread_mutex_lock(&c->mutex);
    c->stats.n_dropped++;
    pthread_mutex_unlock(&c->mutex);
}

/* Tokens that need not be computed because a record of [q, e) is there. A state saves the way from the one before it, which
 * none says: not more than an interval, and than there is. Window parts save as much together, all that a position needs;
 * each its share, but what its own tokens took at least. */
static int32_t tokens_saved(const kv_cache *c, kv_record_kind kind, int32_t q, int32_t e) {
    int32_t own = e - q, way = e < c->policy.interval ? e : c->policy.interval;
    if (kind == KV_RECORD_BLOCK) return own;
    if (kind != KV_RECORD_WINDOW) return way;
    int32_t share = (int32_t)((int64_t)way * own / c->window);
    return share > own ? share : own;
}

/* A record of [q, e) with this payload, which is taken out of `payload`. NULL: no room in the queue. */
static kv_record *new_record(kv_trail *t, kv_record_kind kind, kv_hash key, const kv_token *tokens, int32_t q,
                             int32_t e, kv_buf *payload) {
    bool whole = kind == KV_RECORD_WHOLE;
    kv_record_head head = {.kind = kind,
                           .canonical = t->cache->policy.exact_chunk > 0,
                           .ns = kv_radix_key(t->root),
                           .key = key,
                           .parent = t->edge_key,
                           .q = q,
                           .e = e,
                           .n_tokens = whole ? e : e - q,
                           .compute_ms = (uint32_t)(t->us_per_token * tokens_saved(t->cache, kind, q, e) / 1e3),
                           .n_payload = payload->len,
                           .keep_seconds = (uint32_t)t->keep_seconds};
    kv_record *r = kv_record_new(&t->cache->pool, KV_ACCOUNT_QUEUE, &head, whole ? tokens : tokens + q);
    if (!r) {
        kv_buf_free(payload); /* as large as a state; what comes next may be a block */
        return NULL;
    }
    /* A block was taken out of a blob with its window cells: only what is counted is held. */
    kv_buf_fit(payload);
    r->payload = *payload;
    *payload = (kv_buf){0};
    return r;
}

/* Captures [t->edge, e) of a sequence that holds n tokens. False: no room for the block now. */
static bool capture_block(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t e, int32_t n) {
    kv_cache *c = t->cache;
    kv_hash key = kv_hash_chain(t->edge_key, tokens + t->edge, (size_t)(e - t->edge));
    bool windows = kv_state_has_windows(c->memory);
    bool want_block = !is_stored(t, key, KV_RADIX_BLOCK);
    /* Are all its window cells still there? When the last call completed it; else only what lies within the window. */
    bool intact = e > t->seen || t->edge >= kv_state_window_start(state, n);
    bool want_window = windows && intact && !is_stored(t, key, KV_RADIX_WINDOW);
    if (!want_block && !want_window) return true;
    kv_error err = {0};
    if (!kv_state_has_blocks(c->memory)) {
        /* No cells to keep, but checkpoints need their path: a record that only says the tokens. */
        kv_buf_clear(&t->scratch_block);
        kv_buf_add(&t->scratch_block, "", 1);
    } else if (kv_state_capture(want_block ? &t->scratch_block : NULL, want_window ? &t->scratch_window : NULL, state,
                                seq, t->edge, e, &err) != KV_OK) {
        count_dropped(t);
        return true;
    }
    if (want_window) {
        held *oldest = &t->held[t->edge / c->cfg.block % t->n_held];
        kv_record_unref(oldest->part); /* its room may be what the next one needs */
        oldest->part = new_record(t, KV_RECORD_WINDOW, key, tokens, t->edge, e, &t->scratch_window);
        if (!oldest->part) count_dropped(t);
    }
    if (!want_block) return true;
    kv_record *r = new_record(t, KV_RECORD_BLOCK, key, tokens, t->edge, e, &t->scratch_block);
    if (!r) return false;
    kv_cache_insert_later(c, r);
    return true;
}

/* A kept position inside a block needs the part of what the block has by now; the whole one comes when it is full, if
 * some position needs it then. */
static void capture_tail_window(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n,
                                kv_place_kind place) {
    kv_cache *c = t->cache;
    int32_t q = t->edge;
    if (n == q || n - q >= c->cfg.block) return; /* nothing open, or blocks wait for room */
    kv_hash key = kv_hash_chain(t->edge_key, tokens + q, (size_t)(n - q));
    if (is_stored(t, key, KV_RADIX_WINDOW)) return;
    kv_record *r = NULL;
    kv_error err;
    if (kv_state_capture(NULL, &t->scratch_window, state, seq, q, n, &err) == KV_OK)
        r = new_record(t, KV_RECORD_WINDOW, key, tokens, q, n, &t->scratch_window);
    if (!r) {
        count_dropped(t);
        return;
    }
    r->head.place = place;
    kv_cache_insert_later(c, r);
}

/* The window parts that position P needs are kept from now on. */
static void keep_windows(kv_trail *t, const kv_state *state, int32_t P, kv_place_kind place) {
    int32_t from = kv_state_window_start(state, P);
    for (int i = 0; i < t->n_held; i++) {
        kv_record *part = t->held[i].part;
        if (!part || part->head.e <= from || part->head.q >= P) continue;
        part->head.place = place;
        kv_cache_insert_later(t->cache, part);
        t->held[i].part = NULL;
    }
}

static void capture_checkpoint(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n,
                               kv_place_kind place) {
    kv_cache *c = t->cache;
    bool whole = c->memory == KV_MEMORY_WHOLE;
    /* On an edge the node is the full block that ended there: its parent lies one block back. */
    int32_t q = n == t->edge ? n - c->cfg.block : t->edge;
    kv_hash key = t->edge_key, parent = t->edge_key;
    if (n == t->edge) {
        parent = kv_radix_key(t->root);
        for (int32_t i = 0; i < q; i += c->cfg.block) parent = kv_hash_chain(parent, tokens + i, (size_t)c->cfg.block);
    } else {
        key = kv_hash_chain(t->edge_key, tokens + q, (size_t)(n - q));
    }
    if (is_stored(t, key, whole ? KV_RADIX_WHOLE : KV_RADIX_CHECKPOINT)) return;
    kv_error err;
    kv_record *r = NULL;
    if (kv_state_checkpoint(&t->scratch_block, state, seq, &err) == KV_OK)
        r = new_record(t, whole ? KV_RECORD_WHOLE : KV_RECORD_CHECKPOINT, key, tokens, q, n, &t->scratch_block);
    if (!r) {
        count_dropped(t);
        return;
    }
    r->head.parent = parent;
    r->head.place = place;
    kv_cache_insert_later(c, r);
}

/* Full blocks that are complete. prompt: says how long they are to be kept; NULL: as before. */
static void capture_blocks(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n,
                           const kv_places *prompt) {
    int32_t block = t->cache->cfg.block;
    /* What lies behind that window, and so behind those of all positions from there on, holds no room in the queue. */
    let_go_to(t, kv_state_window_start(state, a_block_before(t, n)));
    while (t->edge + block <= n) {
        if (prompt) t->keep_seconds = kv_policy_keep_seconds(t->edge + 1, prompt);
        if (!capture_block(t, state, seq, tokens, t->edge + block, n)) return;
        t->edge_key = kv_hash_chain(t->edge_key, tokens + t->edge, (size_t)block);
        t->edge += block;
    }
}

void kv_trail_advance(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n,
                      const kv_places *prompt, double us_per_token) {
    kv_cache *c = t->cache;
    if (c->cfg.readonly || n == 0) return;
    /* What was computed in other shapes than any cold run's is of no use there. */
    int32_t chunk = c->policy.exact_chunk;
    if (chunk && (n % chunk || n >= prompt->n_prompt)) return;
    t->us_per_token = us_per_token;
    capture_blocks(t, state, seq, tokens, n, prompt);
    t->seen = n;
    if (n <= prompt->n_prompt) t->keep_seconds = kv_policy_keep_seconds(t->edge + 1, prompt);
    if (!kv_policy_keeps(&c->policy, n, prompt)) return;
    kv_place_kind place = kv_policy_kind(n, prompt);
    if (kv_state_has_checkpoints(c->memory)) capture_checkpoint(t, state, seq, tokens, n, place);
    if (!kv_state_has_windows(c->memory)) return;
    capture_tail_window(t, state, seq, tokens, n, place);
    keep_windows(t, state, n, place);
}

/* An idle sequence holds no room in the queue: what is not kept now is gone. */
static void keep_last_windows(kv_trail *t, const kv_state *state, int32_t n) {
    keep_windows(t, state, a_block_before(t, n), KV_PLACE_ANSWER_END);
    keep_windows(t, state, n, KV_PLACE_ANSWER_END);
    let_go(t);
}

bool kv_trail_end(kv_trail *t, kv_state *state, kv_seq seq, const kv_token *tokens, int32_t n) {
    kv_cache *c = t->cache;
    if (c->cfg.readonly || n == 0 || c->policy.exact_chunk) {
        let_go(t); /* what no position asked for holds no room in the queue */
        return false;
    }
    capture_blocks(t, state, seq, tokens, n, NULL);
    if (n - t->edge >= c->cfg.block) t->has_gaps = true; /* there was no room for them */
    else if (n > t->edge && !capture_block(t, state, seq, tokens, n, n)) count_dropped(t);
    bool keeps = !c->policy.only_intervals;
    if (keeps && kv_state_has_checkpoints(c->memory)) capture_checkpoint(t, state, seq, tokens, n, KV_PLACE_ANSWER_END);
    if (keeps && kv_state_has_windows(c->memory)) keep_last_windows(t, state, n);
    pthread_mutex_lock(&c->mutex);
    bool kept = !t->has_gaps && !c->loses_records;
    pthread_mutex_unlock(&c->mutex);
    return kept;
}
