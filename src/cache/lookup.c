/* cache/lookup.c: from a prompt to a position and the records that lead there.
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
#include "cache/lookup_private.h"
#include "cache/namespace.h"

#include <stdlib.h>
#include <string.h>

/* Siblings looked at for a record of the shared part; more than that share it only when somebody regenerates an answer
 * very often, and then the first ones have the cells. */
#define MAX_PEERS 64
/* Damaged siblings that one look-up clears away. */
#define MAX_FORGOTTEN 8

/* What the tree says, while it is being looked at. */
typedef struct sight {
    kv_radix_match match;
    kv_radix_node *peers[MAX_PEERS]; /* siblings that share the first `shared` tokens of the candidate */
    int n_peers;
    int32_t path_end;     /* tokens of the path's full blocks */
    int32_t shared;       /* tokens of the prompt behind them that the candidate has too */
    kv_radix_node **held; /* owned, referenced: siblings of path blocks that were of use */
    int n_held, cap_held;
} sight;

static void part_free(kv_part *p) {
    kv_record_unref(p->record);
    p->record = NULL;
    p->is_needed = false;
}

static void forget_plan(kv_lookup *l) {
    for (int i = 0; i < l->n_steps; i++) {
        part_free(&l->steps[i].block);
        part_free(&l->steps[i].window);
    }
    free(l->steps);
    l->steps = NULL;
    l->n_steps = 0;
    part_free(&l->checkpoint);
    free(l->kept);
    l->kept = NULL;
    l->n_kept = 0;
    l->result.position = 0;
    l->result.bytes = 0;
}

/* Gives back n references at once. */
static void drop(kv_lookup *l, int n) {
    if (atomic_fetch_sub(&l->refs, n) != n) return;
    kv_cache *c = l->cache;
    forget_plan(l);
    kv_radix_unref(c->tree, l->root);
    free(l->done);
    free(l->tokens);
    free(l);
    kv_cache_feed_hungry(c); /* what was read and not used gave room back */
}

void kv_lookup_drop(kv_lookup *l) {
    drop(l, 1);
}

static void sight_free(sight *s, kv_cache *c) {
    for (int i = 0; i < s->n_held; i++) kv_radix_unref(c->tree, s->held[i]);
    free(s->held);
    s->held = NULL;
    s->n_held = s->cap_held = 0;
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

bool kv_cache_settle_children(kv_cache *c, kv_radix_node *parent) {
    for (int tries = 0; tries < MAX_FORGOTTEN; tries++) {
        kv_radix_node *bad;
        if (kv_radix_settle(&bad, c->tree, parent, kv_cache_tokens_of, c, NULL) == KV_OK) return true;
        if (!kv_cache_forget_if_lost(c, bad)) return false;
    }
    return false;
}

static void see(sight *s, kv_lookup *l) {
    kv_cache *c = l->cache;
    memset(s, 0, sizeof *s);
    for (bool again = true; again;) {
        kv_radix_find(&s->match, c->tree, l->root, l->tokens, (size_t)l->n);
        if (!s->match.unsettled) break;
        kv_radix_node *parent = s->match.n_path ? s->match.path[s->match.n_path - 1] : l->root;
        again = kv_cache_settle_children(c, parent); /* else go without a sibling */
        if (again) kv_radix_match_free(&s->match, c->tree);
    }
    s->path_end = s->match.n_path * c->cfg.block;
    s->shared = compare_candidate(l, s);
    if (s->shared) s->n_peers = kv_radix_peers(s->peers, MAX_PEERS, c->tree, s->match.candidate, s->shared);
}

/* ── which records ─────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_there(const kv_lookup *l, const kv_radix_node *node, kv_radix_slot slot) {
    kv_radix_record rec;
    return kv_radix_get_record(&rec, l->cache->tree, node, slot);
}

/* Keeps a sibling until the sight is over. Takes over the reference. */
static kv_radix_node *hold(sight *s, kv_radix_node *node) {
    if (s->n_held == s->cap_held) {
        s->cap_held = s->cap_held * 2 + 8;
        s->held = kv_realloc(s->held, (size_t)s->cap_held * sizeof(kv_radix_node *));
    }
    return s->held[s->n_held++] = node;
}

static bool covers(const kv_lookup *l, const kv_radix_node *node, int32_t upto, kv_radix_slot slot) {
    return kv_radix_start(node) + kv_radix_n_tokens(node) >= upto && is_there(l, node, slot);
}

/* A sibling of a path block that has what the block itself lacks. */
static kv_radix_node *sibling_of(const kv_lookup *l, sight *s, kv_radix_node *node, int32_t upto, kv_radix_slot slot) {
    kv_radix_node *peers[MAX_PEERS], *found = NULL;
    if (!kv_cache_settle_children(l->cache, kv_radix_parent(node))) return NULL;
    int n = kv_radix_peers(peers, MAX_PEERS, l->cache->tree, node, upto - kv_radix_start(node));
    for (int i = 0; i < n; i++) {
        if (!found && covers(l, peers[i], upto, slot)) found = hold(s, peers[i]);
        else kv_radix_unref(l->cache->tree, peers[i]);
    }
    return found;
}

/* A node whose record has the cells of [q, upto) at least, borrowed from the sight; NULL: there is none. */
static kv_radix_node *find_node(const kv_lookup *l, sight *s, int32_t q, int32_t upto, kv_radix_slot slot) {
    if (q < s->path_end) {
        kv_radix_node *node = s->match.path[q / l->cache->cfg.block];
        return covers(l, node, upto, slot) ? node : sibling_of(l, s, node, upto, slot);
    }
    for (int i = 0; i < s->n_peers; i++)
        if (covers(l, s->peers[i], upto, slot)) return s->peers[i];
    for (int i = 0; i < s->match.n_ends; i++) /* they share less than the candidate does, but all that they have */
        if (kv_radix_n_tokens(s->match.ends[i]) <= s->shared && covers(l, s->match.ends[i], upto, slot))
            return s->match.ends[i];
    return NULL;
}

/* The farthest node of the block at q that ends at `limit` or before, on the prompt's tokens, with such a record: the
 * block itself, or a shorter sibling that is a prefix of it. Borrowed from the sight. */
static kv_radix_node *kept_in_block(const kv_lookup *l, sight *s, int32_t q, int32_t limit, kv_radix_slot slot) {
    kv_radix_node *prefixes[MAX_PEERS], *found = NULL, *last = s->match.candidate;
    if (q >= s->path_end) {
        if (last && kv_radix_n_tokens(last) == s->shared && s->path_end + s->shared <= limit && is_there(l, last, slot))
            return last;
        for (int i = s->match.n_ends - 1; i >= 0; i--) {
            kv_radix_node *node = s->match.ends[i];
            int32_t n = kv_radix_n_tokens(node);
            if (n <= s->shared && s->path_end + n <= limit && is_there(l, node, slot)) return node;
        }
        return NULL;
    }
    kv_radix_node *node = s->match.path[q / l->cache->cfg.block];
    if (q + l->cache->cfg.block <= limit && is_there(l, node, slot)) return node;
    if (!kv_cache_settle_children(l->cache, kv_radix_parent(node))) return NULL;
    int n = kv_radix_prefixes(prefixes, MAX_PEERS, l->cache->tree, node); /* the longest first */
    for (int i = 0; i < n; i++) {
        bool fits = q + kv_radix_n_tokens(prefixes[i]) <= limit && is_there(l, prefixes[i], slot);
        if (!found && fits) found = hold(s, prefixes[i]);
        else kv_radix_unref(l->cache->tree, prefixes[i]);
    }
    return found;
}

bool kv_part_matches(const kv_lookup *l, const kv_part *p, const kv_record *r) {
    int32_t from = r->head.e - r->head.n_tokens;
    size_t n = (size_t)(p->upto - from);
    return kv_tokens_common(r->tokens, (size_t)r->head.n_tokens, l->tokens + from, n) == n;
}

/* What is in memory is compared now, what is on disk when it was read. False: it went meanwhile. */
static bool take(kv_lookup *l, kv_part *p, const kv_radix_node *node, kv_radix_slot slot, int32_t upto) {
    if (!node) return false;
    p->upto = upto;
    p->record = kv_cache_record(l->cache, node, slot);
    p->from_disk = !p->record;
    if (p->from_disk && !kv_cache_head_of(&p->head, l->cache, node, slot)) return false;
    if (!p->from_disk) p->head = p->record->head;
    if (!p->from_disk && !kv_part_matches(l, p, p->record)) return false;
    p->is_needed = true;
    l->result.bytes += p->head.n_payload;
    return true;
}

/* How far blocks reach from 0 on without a gap, at most `limit`. */
static int32_t covered(const kv_lookup *l, sight *s, int32_t limit) {
    int32_t block = l->cache->cfg.block;
    for (int32_t q = 0; q < limit; q += block) {
        int32_t upto = q + block < limit ? q + block : limit;
        if (find_node(l, s, q, upto, KV_RADIX_BLOCK)) continue;
        /* A shorter block may have its cells as far as another conversation went. */
        kv_radix_node *shorter = kept_in_block(l, s, q, upto, KV_RADIX_BLOCK);
        return shorter ? q + kv_radix_n_tokens(shorter) : q;
    }
    return limit;
}

static int32_t window_start(const kv_cache *c, int32_t P) {
    return kv_window_start(c->window, c->window_is_chunked, P);
}

/* The first block, from P's own back to where its window begins, that lacks its part; -1: none does. */
static int32_t lacks_window(const kv_lookup *l, sight *s, int32_t P) {
    int32_t block = l->cache->cfg.block, from = window_start(l->cache, P);
    for (int32_t q = (P - 1) / block * block; q >= 0 && q + block > from; q -= block)
        if (!find_node(l, s, q, q + block < P ? q + block : P, KV_RADIX_WINDOW)) return q;
    return -1;
}

/* The largest P ≤ limit whose window parts are all there. A block that lacks its part can only lie outside, but a part of
 * its beginning may be there: the end of that is a position that was kept. */
static int32_t windowed(const kv_lookup *l, sight *s, int32_t limit) {
    const kv_policy *policy = &l->cache->policy;
    int32_t P = kv_policy_resumes(policy, limit);
    while (P > 0) {
        int32_t missing = lacks_window(l, s, P);
        if (missing < 0) return P;
        kv_radix_node *shorter = kept_in_block(l, s, missing, P - 1, KV_RADIX_WINDOW);
        P = kv_policy_resumes(policy, shorter ? missing + kv_radix_n_tokens(shorter) : missing);
    }
    return 0;
}

/* The node that ends at a usable checkpoint, the farthest one ≤ limit; borrowed from the sight. */
static kv_radix_node *checkpointed(const kv_lookup *l, sight *s, int32_t limit, kv_radix_slot slot) {
    int32_t block = l->cache->cfg.block;
    for (int32_t q = s->path_end; q >= 0; q -= block) {
        kv_radix_node *node = q < limit ? kept_in_block(l, s, q, limit, slot) : NULL;
        if (node) return node;
    }
    return NULL;
}

/* ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Takes the blocks of [0, P). False when one went away meanwhile. */
static bool take_blocks(kv_lookup *l, sight *s, int32_t P) {
    kv_cache *c = l->cache;
    int32_t block = c->cfg.block, from = kv_state_has_windows(c->memory) ? window_start(c, P) : P;
    l->steps = kv_alloc((size_t)(P / block + 1) * sizeof *l->steps);
    for (int32_t q = 0; q < P; q += block) {
        kv_restore_part *step = &l->steps[l->n_steps++];
        int32_t upto = q + block < P ? q + block : P;
        step->q = q;
        if (!take(l, &step->block, find_node(l, s, q, upto, KV_RADIX_BLOCK), KV_RADIX_BLOCK, upto)) return false;
        step->e = step->block.head.e;
        if (upto <= from) continue;
        if (!take(l, &step->window, find_node(l, s, q, upto, KV_RADIX_WINDOW), KV_RADIX_WINDOW, upto)) return false;
    }
    return true;
}

/* Where no cells are read that would tell, the path's own tokens are compared. */
static bool path_matches(const kv_lookup *l, const sight *s, int32_t P) {
    int32_t block = l->cache->cfg.block;
    kv_token *tokens = kv_alloc((size_t)block * sizeof *tokens);
    bool ok = true;
    for (int i = 0; ok && i < s->match.n_path && (i + 1) * block <= P; i++)
        ok = kv_cache_tokens_of(l->cache, s->match.path[i], tokens) &&
             memcmp(tokens, l->tokens + i * block, (size_t)block * sizeof *tokens) == 0;
    free(tokens);
    return ok;
}

static bool is_of(const kv_part *p, const kv_radix_node *node) {
    return p->is_needed && kv_hash_equal(p->head.key, kv_radix_key(node));
}

/* The node on the prompt's path was used, with those of its records that the plan has. */
static void touch_node(kv_lookup *l, kv_radix_node *node, int step) {
    unsigned slots = 1u << KV_RADIX_BLOCK;
    if (step < l->n_steps && is_of(&l->steps[step].window, node)) slots |= 1u << KV_RADIX_WINDOW;
    if (is_of(&l->checkpoint, node)) slots |= 1u << kv_cache_slot_of(l->checkpoint.head.kind);
    kv_cache_touch(l->cache, node, slots);
}

/* A record of the plan that another node than `on` has. */
static void touch_other(kv_lookup *l, const kv_part *p, const kv_radix_node *on) {
    if (!p->is_needed || (on && is_of(p, on))) return;
    kv_radix_node *node = kv_radix_get(l->cache->tree, p->head.key);
    if (!node) return;
    kv_cache_touch(l->cache, node, 1u << kv_cache_slot_of(p->head.kind));
    kv_radix_unref(l->cache->tree, node);
}

/* What the plan goes over is of use; states on the way that it does not need are not, for that. */
static void touch(kv_lookup *l, const sight *s) {
    int32_t P = l->result.position, block = l->cache->cfg.block;
    int n_on_path = (P + block - 1) / block;
    const kv_radix_node *last = NULL;
    for (int i = 0; i < n_on_path; i++) {
        kv_radix_node *node = i < s->match.n_path ? s->match.path[i] : i == s->match.n_path ? s->match.candidate : NULL;
        if (node) touch_node(l, node, i);
        if (i < l->n_steps) {
            touch_other(l, &l->steps[i].block, node);
            touch_other(l, &l->steps[i].window, node);
        }
        last = node;
    }
    touch_other(l, &l->checkpoint, last);
}

/* What is kept along the part of the path that is the prompt's. */
static void note_kept(kv_lookup *l, const sight *s) {
    const kv_radix_match *m = &s->match;
    kv_radix_node *more[MAX_PEERS + 1];
    int n = 0;
    if (!kv_cache_keeps_places(l->cache)) return;
    for (int i = 0; i < m->n_ends && n < MAX_PEERS; i++)
        if (kv_radix_n_tokens(m->ends[i]) <= s->shared) more[n++] = m->ends[i];
    if (m->candidate && kv_radix_n_tokens(m->candidate) == s->shared) more[n++] = m->candidate;
    l->kept = kv_path_kept(&l->n_kept, l->cache, m->n_path ? m->path[m->n_path - 1] : NULL, more, n);
}

/* The position with a checkpoint that blocks lead to; sets l->checkpoint. */
static int32_t plan_checkpoint(kv_lookup *l, sight *s, int32_t limit) {
    kv_cache *c = l->cache;
    kv_radix_slot slot = c->memory == KV_MEMORY_WHOLE ? KV_RADIX_WHOLE : KV_RADIX_CHECKPOINT;
    while (limit > 0) {
        kv_radix_node *node = checkpointed(l, s, limit, slot);
        if (!node) return 0;
        int32_t P = kv_radix_start(node) + kv_radix_n_tokens(node);
        int32_t reach = kv_state_has_blocks(c->memory) ? covered(l, s, P) : P;
        if (reach == P && take(l, &l->checkpoint, node, slot, P)) return P;
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
    if (c->policy.exact_chunk) return KV_MISS_EXACT;
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
        else res->position = kv_policy_resumes(&c->policy, reach);
        bool ok =
            kv_state_has_blocks(c->memory) ? take_blocks(l, &s, res->position) : path_matches(l, &s, res->position);
        res->n_match = match;
        res->miss = why(l, &s, match, limit, reach);
        res->miss_position = res->miss == KV_MISS_DIVERGED || res->miss == KV_MISS_EMPTY ? match : res->position;
        if (ok) touch(l, &s);
        if (ok) note_kept(l, &s);
        sight_free(&s, c);
        if (ok) return;
        forget_plan(l); /* evicted while it was looked at */
    }
    res->miss = KV_MISS_NOT_STORED;
}

/* The scope's name, owned by the caller. */
static char *scope_of(const kv_lookup *l) {
    kv_cache *c = l->cache;
    kv_hash root = kv_radix_key(l->root);
    char *name = NULL;
    pthread_mutex_lock(&c->mutex);
    for (int i = 0; i < c->n_scopes && !name; i++)
        if (kv_hash_equal(c->scopes[i].ns, root)) name = kv_strdup(c->scopes[i].name);
    pthread_mutex_unlock(&c->mutex);
    return name;
}

/* Some record of the prompt's first blocks is there under that root. Keys tell: they are hashes of root and tokens. */
static bool is_stored_below(const kv_lookup *l, kv_hash root) {
    const int32_t block = l->cache->cfg.block;
    kv_record_head h = {.ns = root, .key = root};
    for (int32_t q = 0; q + block <= l->n; q += block) {
        h.key = kv_hash_chain(h.key, l->tokens + q, (size_t)block);
        for (int kind = KV_RECORD_BLOCK; kind <= KV_RECORD_WHOLE; kind++) {
            h.kind = (kv_record_kind)kind;
            if (kv_store_has(l->cache->cfg.store, &h)) return true;
        }
    }
    return false;
}

/* Not even the first block is here: it may be that other settings made it useless. */
static void look_elsewhere(kv_lookup *l) {
    const kv_namespace_others *others = l->cache->cfg.others;
    kv_lookup_result *res = &l->result;
    if (!others || others->n == 0 || res->n_match >= l->cache->cfg.block) return;
    if (res->miss != KV_MISS_EMPTY && res->miss != KV_MISS_DIVERGED) return;
    char *scope = scope_of(l);
    for (int i = 0; i < others->n; i++) {
        if (!is_stored_below(l, kv_namespace_root(others->list[i].base, scope))) continue;
        res->miss = KV_MISS_OTHER_NAMESPACE;
        res->elsewhere = others->list[i].why;
        break;
    }
    free(scope);
}

/* Their job was submitted before this one, so it runs, or has run: nobody waits for somebody behind them. */
static void wait_for_captures(kv_lookup *l) {
    kv_cache *c = l->cache;
    if (kv_io_is_inline(c->cfg.io)) return;
    pthread_mutex_lock(&c->mutex);
    while (c->n_settled < l->after && !atomic_load(&l->abandoned)) pthread_cond_wait(&c->settled, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

static void resolve(void *ctx) {
    kv_lookup *l = ctx;
    kv_cache *c = l->cache;
    wait_for_captures(l);
    kv_cache_load_scope(c, kv_radix_key(l->root));
    if (!atomic_load(&l->abandoned)) plan(l);
    if (!atomic_load(&l->abandoned)) look_elsewhere(l);
    pthread_mutex_lock(&c->mutex);
    c->stats.n_lookups++;
    c->stats.tokens_looked_up += (uint64_t)l->n;
    c->stats.tokens_matched += (uint64_t)l->result.n_match;
    c->stats.n_miss[l->result.miss]++;
    atomic_store(&l->ready, true);
    /* Under the mutex: once kv_lookup_free has returned, nobody is woken any more. */
    if (!atomic_load(&l->abandoned) && l->wake) l->wake(l->wake_ctx);
    pthread_mutex_unlock(&c->mutex);
    kv_lookup_drop(l);
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
    l->root = kv_cache_root(c, scope);
    l->wake = wake;
    l->wake_ctx = ctx;
    pthread_mutex_lock(&c->mutex);
    l->after = c->n_captured;
    pthread_mutex_unlock(&c->mutex);
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
    kv_cache *c = l->cache;
    bool was_hungry = false;
    pthread_mutex_lock(&c->mutex);
    atomic_store(&l->abandoned, true);
    for (int i = 0; i < c->n_hungry && !was_hungry; i++) {
        if (c->hungry[i] != l) continue;
        was_hungry = true;
        memmove(&c->hungry[i], &c->hungry[i + 1], (size_t)(--c->n_hungry - i) * sizeof *c->hungry);
    }
    pthread_mutex_unlock(&c->mutex);
    drop(l, was_hungry ? 2 : 1); /* the list's, too */
}
