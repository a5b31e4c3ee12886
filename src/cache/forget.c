/* cache/forget.c: what turned out to be no numbers is not found again.
 *
 *   root ── [0,256) ── [256,512) ─┬─ [512,768) ── …      forgotten from 300 on: [256,512), and all that was computed
 *                                 └─ [512,530)           on top of it, by whomever
 */
#include <stdlib.h>
#include <string.h>

#include "cache/cache_private.h"

/* Siblings that one forgetting looks at. */
enum { MOST = 64 };

void kv_cache_forget(kv_cache *c, const char *scope, const kv_token *tokens, int32_t n, int32_t from) {
    if (from >= n) return;
    kv_forgetting *f = kv_alloc(sizeof *f), **last = &c->forgettings;
    *f = (kv_forgetting){.ns = kv_cache_root_key(c, scope), .n = n, .from = from};
    f->tokens = kv_alloc((size_t)n * sizeof *tokens);
    memcpy(f->tokens, tokens, (size_t)n * sizeof *tokens);
    kv_radix_unref(c->tree, kv_cache_root(c, scope)); /* what is on disk of it can be loaded */
    pthread_mutex_lock(&c->mutex);
    f->after = c->n_ordered;
    while (*last) last = &(*last)->next;
    *last = f;
    pthread_mutex_unlock(&c->mutex);
    kv_cache_start_inserting(c);
}

kv_forgetting *kv_cache_next_forgetting(kv_cache *c) {
    kv_forgetting *f = c->forgettings;
    if (!f || (c->insertions.first && c->insertions.first->order <= f->after)) return NULL;
    c->forgettings = f->next;
    return f;
}

/* The node's tokens are the path's, as far as that goes. */
static bool is_on_path(kv_cache *c, const kv_radix_node *node, const kv_forgetting *f) {
    int32_t q = kv_radix_start(node), n = kv_radix_n_tokens(node), n_common = f->n - q < n ? f->n - q : n;
    kv_token *own = kv_alloc((size_t)n * sizeof *own);
    bool same = kv_cache_tokens_of(c, node, own) && memcmp(own, f->tokens + q, (size_t)n_common * sizeof *own) == 0;
    free(own);
    return same;
}

static void find(kv_radix_match *m, kv_cache *c, kv_radix_node *root, const kv_forgetting *f) {
    kv_radix_find(m, c->tree, root, f->tokens, (size_t)f->n);
    if (!m->unsettled || !kv_cache_settle_children(c, m->n_path ? m->path[m->n_path - 1] : root)) return;
    kv_radix_match_free(m, c->tree);
    kv_radix_find(m, c->tree, root, f->tokens, (size_t)f->n);
}

/* The nodes with which the path goes on behind `from`, each referenced: the first full block that ends there, and short
 * ones inside it; where the path ends before that, the short ones at its end and whatever may have lent its tail. Returns how
 * many; they are not compared with the path yet. */
static int first_behind(kv_radix_node **out, kv_cache *c, const kv_radix_match *m, const kv_forgetting *f) {
    int n = 0, first = f->from / c->cfg.block;
    if (first < m->n_path) {
        kv_cache_settle_children(c, kv_radix_parent(m->path[first])); /* where it cannot, short ones stay for now */
        n = kv_radix_prefixes(out, MOST - 1, c->tree, m->path[first]);
        kv_radix_ref(c->tree, out[n++] = m->path[first]);
        return n;
    }
    if (m->candidate && is_on_path(c, m->candidate, f))
        n = kv_radix_peers(out, MOST / 2, c->tree, m->candidate, f->n - kv_radix_start(m->candidate));
    for (int i = 0; i < m->n_ends && n < MOST; i++) kv_radix_ref(c->tree, out[n++] = m->ends[i]);
    return n;
}

void kv_cache_carry_out(kv_cache *c, kv_forgetting *f) {
    kv_cache_load_scope(c, f->ns);
    kv_radix_node *root = kv_radix_root(c->tree, f->ns), *nodes[MOST];
    kv_radix_match m;
    find(&m, c, root, f);
    int n = first_behind(nodes, c, &m, f);
    kv_radix_match_free(&m, c->tree); /* which holds what is to go */
    for (int i = 0; i < n; i++) {
        bool behind = kv_radix_start(nodes[i]) + kv_radix_n_tokens(nodes[i]) > f->from;
        if (behind && is_on_path(c, nodes[i], f)) kv_cache_forget_from(c, nodes[i]);
        else kv_radix_unref(c->tree, nodes[i]);
    }
    kv_radix_unref(c->tree, root);
    free(f->tokens);
    free(f);
}
