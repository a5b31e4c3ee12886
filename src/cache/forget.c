/* cache/forget.c: what turned out to be no numbers is not found again.
 *
 *   root ── [0,256) ── [256,512) ─┬─ [512,768) ── …      forgotten from 300 on: [256,512), and all that was computed
 *                                 └─ [512,530)           on top of it, by whomever
 */
#include <stdlib.h>
#include <string.h>

#include "cache/cache_private.h"

void kv_cache_forget(kv_cache *c, const char *scope, const kv_token *tokens, int32_t n, int32_t from) {
    if (from >= n) return;
    kv_forgetting *f = kv_alloc(sizeof *f), **last = &c->forgettings;
    *f = (kv_forgetting){.ns = kv_cache_root_key(c, scope), .n = n, .from = from};
    f->tokens = kv_alloc((size_t)n * sizeof *tokens);
    memcpy(f->tokens, tokens, (size_t)n * sizeof *tokens);
    kv_radix_unref(c->tree, kv_cache_root(c, scope)); /* what is on disk of it can be loaded */
    pthread_mutex_lock(&c->mutex);
    f->after = c->n_captured;
    while (*last) last = &(*last)->next;
    *last = f;
    pthread_mutex_unlock(&c->mutex);
    kv_cache_start_inserting(c);
}

kv_forgetting *kv_cache_next_forgetting(kv_cache *c) {
    kv_forgetting *f = c->forgettings;
    if (!f || (c->insertions.first && c->n_settled < f->after)) return NULL;
    c->forgettings = f->next;
    return f;
}

/* Takes over the reference. */
static void forget_node(kv_cache *c, kv_radix_node *node) {
    kv_cache_forget_below(c, node);
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) kv_cache_remove(c, node, slot);
    kv_cache_prune(c, node);
}

/* The node's tokens are all the path's. */
static bool is_on_path(kv_cache *c, const kv_radix_node *node, const kv_forgetting *f) {
    int32_t q = kv_radix_start(node), n = kv_radix_n_tokens(node);
    if (q + n > f->n) return false;
    kv_token *own = kv_alloc((size_t)n * sizeof *own);
    bool same = kv_cache_tokens_of(c, node, own) && memcmp(own, f->tokens + q, (size_t)n * sizeof *own) == 0;
    free(own);
    return same;
}

static void find(kv_radix_match *m, kv_cache *c, kv_radix_node *root, const kv_forgetting *f) {
    kv_radix_find(m, c->tree, root, f->tokens, (size_t)f->n);
    if (!m->unsettled || !kv_cache_settle_children(c, m->n_path ? m->path[m->n_path - 1] : root)) return;
    kv_radix_match_free(m, c->tree);
    kv_radix_find(m, c->tree, root, f->tokens, (size_t)f->n);
}

/* The first full block that ends behind `from` takes the rest with it. Where the path ends before that, short ones may. */
void kv_cache_carry_out(kv_cache *c, kv_forgetting *f) {
    kv_cache_load_scope(c, f->ns);
    kv_radix_node *root = kv_radix_root(c->tree, f->ns), **goes;
    kv_radix_match m;
    int n = 0, first = f->from / c->cfg.block;
    find(&m, c, root, f);
    goes = kv_alloc((size_t)(m.n_ends + 2) * sizeof(kv_radix_node *));
    if (first < m.n_path) goes[n++] = m.path[first];
    for (int i = 0; first >= m.n_path && i < m.n_ends; i++) goes[n++] = m.ends[i];
    if (first >= m.n_path && m.candidate) goes[n++] = m.candidate;
    for (int i = 0; i < n; i++) kv_radix_ref(c->tree, goes[i]);
    kv_radix_match_free(&m, c->tree); /* which holds what is to go */
    for (int i = 0; i < n; i++) {
        bool behind = kv_radix_start(goes[i]) + kv_radix_n_tokens(goes[i]) > f->from;
        if (behind && is_on_path(c, goes[i], f)) forget_node(c, goes[i]);
        else kv_radix_unref(c->tree, goes[i]);
    }
    kv_radix_unref(c->tree, root);
    free(goes);
    free(f->tokens);
    free(f);
}
