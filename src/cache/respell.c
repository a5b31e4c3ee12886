/* cache/respell.c: the search, depth first.
 *
 *   enter(node)   below a full block: the blocks that the prompt's own tokens lead to by hash, then a child to read
 *   follow(child) its tokens as far as they spell the prompt; where siblings part from it and could spell it too, they
 *                 wait on the stack, and so do the blocks that were passed by hash
 *
 * Which prompt byte a stored path has come to depends on nothing but the path, so each is followed once.
 */
#include "cache/respell.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/cache_private.h"
#include "cache/pieces.h"

/* Nodes read for a prompt of n blocks: once through a conversation that is spelled otherwise from end to end, and the
 * same again for what leads nowhere. */
#define READS(blocks) (64 + 2 * (blocks))
#define STACK_MAX     16384
/* Blocks passed by hash beside which is looked, the last ones: those of a very long prompt are not to fill the stack. */
#define PASSED_MAX 4096
/* Bytes that a sibling's next token is looked for by, and how many such tokens: vocabularies have runs of blanks and rules
 * that are longer, which are found only where they are the next of their siblings that is read. */
enum { AHEAD = 256, BEGINNINGS = 256 };

/* Captures are in the tree within milliseconds. */
#define CAPTURES_WAIT_S 5

/* A byte of the prompt: `o` bytes into its token number `i`. */
typedef struct spot {
    int32_t i;
    size_t o;
} spot;

typedef enum way { WAY_ANY, WAY_TOKEN, WAY_PASSED } way;

typedef struct branch {
    kv_radix_node *node; /* referenced */
    way way;             /* PASSED: it has the prompt's tokens, and its siblings are to be looked at */
    int32_t shared;      /* its first tokens that are known to be those of the path */
    kv_token next;       /* TOKEN: what it has to have then */
    spot at;             /* of the prompt, behind the shared ones */
} branch;

typedef struct walk {
    kv_cache *c;
    const kv_model *model;
    const kv_pieces *pieces; /* NULL: not needed so far */
    const kv_token *tokens;  /* the prompt, n of them */
    int32_t n, block;
    kv_tokens taken; /* the stored path that is being followed */
    spot at;         /* what it spells goes up to here */
    int32_t even_i;  /* tokens of the prompt up to the last place where both have a token's end */
    size_t even_taken;
    kv_tokens best; /* the path that is even farthest */
    int32_t best_i;
    branch *stack; /* owned */
    int n_stack, cap_stack;
    int32_t n_read, reads_max;
    kv_token *buf;     /* owned; tokens of one node */
    int32_t *partings; /* owned; block + 1 */
} walk;

/* ── the vocabulary ────────────────────────────────────────────────────────────────────────────────────────────── */

static const kv_pieces *pieces_of(walk *w) {
    kv_cache *c = w->c;
    if (w->pieces) return w->pieces;
    pthread_mutex_lock(&c->pieces_mutex);
    if (!c->pieces) c->pieces = kv_pieces_new(w->model);
    w->pieces = c->pieces;
    pthread_mutex_unlock(&c->pieces_mutex);
    return w->pieces;
}

/* Moves `at` over the bytes of a stored token. False: the prompt has others there, or a special token. */
static bool spells(spot *at, walk *w, kv_token stored) {
    const kv_pieces *p = pieces_of(w);
    if (kv_pieces_is_special(p, stored)) return false;
    size_t n, n_own;
    for (const char *s = kv_pieces_bytes(&n, p, stored); n;) {
        if (at->i == w->n || kv_pieces_is_special(p, w->tokens[at->i])) return false;
        const char *own = kv_pieces_bytes(&n_own, p, w->tokens[at->i]);
        size_t len = n_own - at->o < n ? n_own - at->o : n;
        if (memcmp(own + at->o, s, len) != 0) return false;
        s += len;
        n -= len;
        at->o += len;
        if (at->o < n_own) continue;
        at->i++;
        at->o = 0;
    }
    return true;
}

/* The prompt's next bytes, up to a special token or `room` of them. */
static size_t look_ahead(char *out, size_t room, walk *w, spot at) {
    size_t n = 0, n_own;
    for (; at.i < w->n && n < room && !kv_pieces_is_special(pieces_of(w), w->tokens[at.i]); at.i++, at.o = 0) {
        const char *own = kv_pieces_bytes(&n_own, pieces_of(w), w->tokens[at.i]);
        size_t len = n_own - at.o < room - n ? n_own - at.o : room - n;
        memcpy(out + n, own + at.o, len);
        n += len;
    }
    return n;
}

/* Tokens that a stored path could go on with at a place of the prompt; its own one comes last. */
static int possible(kv_token *out, walk *w, spot at) {
    char text[AHEAD];
    if (at.i == w->n) return 0;
    kv_token own = w->tokens[at.i];
    int n = kv_pieces_beginning(out, BEGINNINGS, pieces_of(w), text, look_ahead(text, sizeof text, w, at));
    if (at.o > 0) return n;
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (out[i] != own) out[kept++] = out[i];
    out[kept++] = own;
    return kept;
}

/* ── the stack ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Takes over the reference. */
static void push(walk *w, const branch *b) {
    if (w->n_stack == STACK_MAX) {
        kv_radix_unref(w->c->tree, b->node);
        return;
    }
    if (w->n_stack == w->cap_stack) {
        w->cap_stack = w->cap_stack * 2 + 64;
        w->stack = kv_realloc(w->stack, (size_t)w->cap_stack * sizeof *w->stack);
    }
    w->stack[w->n_stack++] = *b;
}

/* The siblings of `node` that part from it behind `shared` tokens, where it has `own`, and could spell the prompt. */
static void push_siblings(walk *w, kv_radix_node *node, int32_t shared, kv_token own, spot at) {
    kv_token next[BEGINNINGS + 1];
    int n = possible(next, w, at);
    for (int i = 0; i < n; i++) {
        kv_radix_node *sibling = kv_radix_sibling_at(w->c->tree, node, shared, own, next[i]);
        if (sibling) push(w, &(branch){sibling, WAY_TOKEN, shared, next[i], at});
    }
}

/* ── following ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void note_even(walk *w) {
    if (w->at.o) return;
    w->even_i = w->at.i;
    w->even_taken = w->taken.len;
}

/* One more token of the stored path; false where it does not spell the prompt. */
static bool take(walk *w, kv_token stored) {
    spot at = w->at;
    if (at.i == w->n) return false;
    if (at.o == 0 && w->tokens[at.i] == stored) at.i++;
    else if (!spells(&at, w, stored)) return false;
    kv_tokens_add(&w->taken, stored);
    w->at = at;
    note_even(w);
    return true;
}

/* A child to begin with: the one that shares most tokens with the prompt, where the two are even. Referenced, or NULL. */
static kv_radix_node *first_child(walk *w, kv_radix_node *node) {
    kv_radix *tree = w->c->tree;
    kv_radix_node *child = NULL;
    for (int tries = 0; tries < 2; tries++) {
        bool unsettled;
        if (w->at.o) {
            child = kv_radix_any_child(&unsettled, tree, node);
        } else {
            kv_radix_match m;
            kv_radix_find(&m, tree, node, w->tokens + w->at.i, (size_t)(w->n - w->at.i));
            child = m.n_path ? m.path[0] : m.candidate; /* a block may have come just now */
            unsettled = !m.n_path && m.unsettled;
            if (child) kv_radix_ref(tree, child);
            kv_radix_match_free(&m, tree);
        }
        if (!unsettled || !kv_cache_settle_children(w->c, node)) break;
        if (child) kv_radix_unref(tree, child);
        child = NULL;
    }
    return child;
}

/* Below a full block, or the root, that the path has come to the end of. */
static void enter(walk *w, kv_radix_node *node) {
    kv_radix *tree = w->c->tree;
    kv_radix_match m = {0};
    if (w->at.i == w->n) return;
    if (w->at.o == 0) kv_radix_find(&m, tree, node, w->tokens + w->at.i, (size_t)(w->n - w->at.i));
    for (int i = 0; i < m.n_path; i++) {
        if (i + PASSED_MAX >= m.n_path) {
            kv_radix_ref(tree, m.path[i]);
            push(w, &(branch){m.path[i], WAY_PASSED, 0, 0, w->at});
        }
        kv_tokens_append(&w->taken, w->tokens + w->at.i, (size_t)w->block);
        w->at.i += w->block;
        note_even(w);
    }
    kv_radix_node *last = m.n_path ? m.path[m.n_path - 1] : node;
    kv_radix_node *child = w->at.i < w->n ? first_child(w, last) : NULL;
    if (child) push(w, &(branch){child, WAY_ANY, 0, 0, w->at});
    kv_radix_match_free(&m, tree);
}

/* What parts from a block that has the prompt's own tokens. */
static void look_beside(walk *w, const branch *b) {
    int n = kv_radix_partings(w->partings, w->block + 1, w->c->tree, b->node);
    for (int i = 0; i < n && w->partings[i] < w->block; i++) {
        spot at = {b->at.i + w->partings[i], 0};
        push_siblings(w, b->node, w->partings[i], w->tokens[at.i], at);
    }
}

/* Its tokens, n of them, begin as the tree's blind walk supposed. */
static bool is_meant(const walk *w, const branch *b, int32_t n) {
    if (b->way == WAY_ANY) return true;
    if (n <= b->shared || w->buf[b->shared] != b->next) return false;
    const kv_token *path = w->taken.data + kv_radix_start(b->node);
    return b->shared == 0 || memcmp(path, w->buf, (size_t)b->shared * sizeof *path) == 0;
}

static void follow(walk *w, const branch *b) {
    kv_radix_node *node = b->node;
    int32_t n = kv_radix_n_tokens(node), t = b->shared, k = 0;
    w->n_read++;
    if (!kv_cache_tokens_of(w->c, node, w->buf)) return;
    if (!is_meant(w, b, n)) return;
    int n_partings = kv_radix_partings(w->partings, w->block + 1, w->c->tree, node);
    for (;; t++) {
        while (k < n_partings && w->partings[k] < t) k++;
        bool others = k < n_partings && w->partings[k] == t && (t > b->shared || b->way == WAY_ANY);
        if (others) push_siblings(w, node, t, t < n ? w->buf[t] : 0, w->at);
        if (t == n || !take(w, w->buf[t])) break;
    }
    if (t == n && n == w->block) enter(w, node);
}

/* Whether the path that was followed is even with the prompt farther than any before. */
static void keep_best(walk *w) {
    if (w->even_i <= w->best_i) return;
    w->best_i = w->even_i;
    w->best.len = 0;
    kv_tokens_append(&w->best, w->taken.data, w->even_taken);
}

/* The last token is always computed: what reaches it cannot be bettered. */
static bool is_over(const walk *w) {
    return w->best_i >= w->n - 1 || w->even_i >= w->n - 1 || w->n_read >= w->reads_max;
}

/* Back to where the branch begins, unless the path has just come there. What was taken up to there is still its path:
 * all that was followed since it was put on the stack lies below it. */
static void go_back(walk *w, const branch *b) {
    size_t n = (size_t)(kv_radix_start(b->node) + b->shared);
    KV_CHECK(n <= w->taken.len);
    if (n == w->taken.len && w->at.i == b->at.i && w->at.o == b->at.o) return;
    keep_best(w);
    w->taken.len = n;
    w->at = b->at;
    w->even_i = 0; /* places before this one counted with the path that came here first */
    note_even(w);
}

static void search(walk *w, kv_radix_node *root) {
    enter(w, root);
    while (w->n_stack && !is_over(w)) {
        branch b = w->stack[--w->n_stack];
        if (b.way == WAY_PASSED) {
            look_beside(w, &b);
        } else {
            go_back(w, &b);
            follow(w, &b);
        }
        kv_radix_unref(w->c->tree, b.node);
    }
    keep_best(w);
    while (w->n_stack) kv_radix_unref(w->c->tree, w->stack[--w->n_stack].node);
}

/* ── the result ────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool spell_the_same(const walk *w, const kv_respelled_run *run) {
    kv_buf before = {0}, after = {0};
    for (int32_t i = run->from; i < run->to; i++) kv_model_piece(&before, w->model, w->tokens[i], true);
    for (int32_t i = run->at; i < run->end; i++) kv_model_piece(&after, w->model, w->best.data[i], true);
    bool same = before.len == after.len && memcmp(kv_buf_str(&before), kv_buf_str(&after), before.len) == 0;
    kv_buf_free(&before);
    kv_buf_free(&after);
    return same;
}

static void add_run(kv_respelling *out, const kv_respelled_run *run) {
    if (out->n_runs % 16 == 0) out->runs = kv_realloc(out->runs, (size_t)(out->n_runs + 16) * sizeof(kv_respelled_run));
    out->runs[out->n_runs++] = *run;
    out->n_respelled += run->end - run->at;
}

/* Where the best path differs from the prompt; false when it does not spell the same, which cannot be. */
static bool find_runs(kv_respelling *out, walk *w) {
    int32_t k = 0, n = (int32_t)w->best.len;
    spot at = {0, 0};
    while (k < n) {
        if (at.i < w->n && w->tokens[at.i] == w->best.data[k]) {
            at.i++;
            k++;
            continue;
        }
        kv_respelled_run run = {.from = at.i, .at = k};
        do {
            if (k == n || !spells(&at, w, w->best.data[k++])) return false;
        } while (at.o);
        run.to = at.i;
        run.end = k;
        if (!spell_the_same(w, &run)) return false;
        add_run(out, &run);
    }
    return at.i == w->best_i;
}

static void conclude(kv_respelling *out, walk *w) {
    if (w->best_i == 0 || !w->best.data) return;
    bool differs =
        w->best.len != (size_t)w->best_i || memcmp(w->best.data, w->tokens, w->best.len * sizeof *w->tokens) != 0;
    if (!differs) return;
    if (!find_runs(out, w)) {
        kv_respelling_free(out);
        return;
    }
    kv_tokens_append(&out->tokens, w->best.data, w->best.len);
    kv_tokens_append(&out->tokens, w->tokens + w->best_i, (size_t)(w->n - w->best_i));
}

/* As a look-up does: what a conversation just left is found by its next turn. False: a drive that hangs keeps them. */
static bool wait_for_captures(kv_cache *c) {
    if (kv_io_is_inline(c->cfg.io)) return true;
    const struct timespec until = {.tv_sec = (time_t)kv_wall_seconds() + CAPTURES_WAIT_S};
    int timed_out = 0;
    pthread_mutex_lock(&c->mutex);
    uint64_t after = c->n_captured;
    while (c->n_settled < after && !timed_out) timed_out = pthread_cond_timedwait(&c->settled, &c->mutex, &until);
    bool settled = c->n_settled >= after;
    pthread_mutex_unlock(&c->mutex);
    return settled;
}

void kv_respell(kv_respelling *out, kv_cache *c, const char *scope, const kv_model *model, const kv_token *tokens,
                size_t n) {
    *out = (kv_respelling){0};
    if (c->cfg.exact_chunk || n < 2 || n > INT32_MAX) return;
    if (!wait_for_captures(c)) return;
    kv_radix_node *root = kv_cache_root(c, scope);
    kv_cache_load_scope(c, kv_radix_key(root));
    walk w = {.c = c, .model = model, .tokens = tokens, .n = (int32_t)n, .block = c->cfg.block};
    w.reads_max = READS(w.n / w.block + 1);
    w.buf = kv_alloc((size_t)w.block * sizeof *w.buf);
    w.partings = kv_alloc(((size_t)w.block + 1) * sizeof *w.partings);
    search(&w, root);
    conclude(out, &w);
    out->n_read = w.n_read;
    kv_radix_unref(c->tree, root);
    kv_tokens_free(&w.taken);
    kv_tokens_free(&w.best);
    free(w.stack);
    free(w.buf);
    free(w.partings);
}

int32_t kv_respelling_position(const kv_respelling *r, int32_t position) {
    int32_t moved = 0;
    for (int i = 0; i < r->n_runs && r->runs[i].from < position; i++) {
        if (position < r->runs[i].to) return r->runs[i].at;
        moved = r->runs[i].end - r->runs[i].to;
    }
    return position + moved;
}

void kv_respelling_free(kv_respelling *r) {
    kv_tokens_free(&r->tokens);
    free(r->runs);
    *r = (kv_respelling){0};
}
