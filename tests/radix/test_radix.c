/* radix: longest common prefixes and structure against a naive model (a plain list of token paths). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "radix/radix.h"

enum { B = 8, MAX_LEN = 64, MAX_NODES = 4000 };

/* What the store would hold: each node's tokens by key. */
typedef struct entry {
    kv_radix_node *node; /* referenced by the model */
    kv_token path[MAX_LEN];
    int n; /* tokens from the root on */
} entry;

typedef struct model {
    kv_radix *r;
    kv_radix_node *root;
    entry *e;
    int n;
    uint64_t rng;
    bool unreadable;
} model;

static uint32_t rnd(model *m, uint32_t n) {
    m->rng = m->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->rng >> 33) % n;
}

static uint64_t seed_of_day(void) {
    const char *given = getenv("KVASIR_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("KVASIR_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static bool tokens_of(void *ctx, const kv_radix_node *node, kv_token *out) {
    model *m = ctx;
    if (m->unreadable) return false;
    for (int i = 0; i < m->n; i++) {
        if (m->e[i].node != node) continue;
        int q = kv_radix_start(node);
        memcpy(out, m->e[i].path + q, (size_t)(m->e[i].n - q) * sizeof *out);
        return true;
    }
    return false;
}

static entry *find_path(model *m, const kv_token *path, int n) {
    for (int i = 0; i < m->n; i++)
        if (m->e[i].n == n && memcmp(m->e[i].path, path, (size_t)n * sizeof *path) == 0) return &m->e[i];
    return NULL;
}

/* Adds every block of a path, as capture would. */
static void add_path(model *m, const kv_token *path, int n) {
    kv_radix_node *parent = m->root;
    for (int q = 0; q < n; q += B) {
        int e = q + B < n ? q + B : n;
        kv_radix_node *node, *bad;
        bool created;
        kv_error err;
        assert_int_equal(
            kv_radix_add(&node, &created, &bad, m->r, parent, path + q, (size_t)(e - q), tokens_of, m, &err), KV_OK);
        entry *known = find_path(m, path, e);
        assert_int_equal(created, known == NULL);
        if (known) {
            assert_ptr_equal(known->node, node);
            kv_radix_unref(m->r, node);
        } else {
            assert_true(m->n < MAX_NODES);
            entry *fresh = &m->e[m->n++];
            fresh->node = node;
            fresh->n = e;
            memcpy(fresh->path, path, (size_t)e * sizeof *path);
        }
        parent = node;
    }
}

static int random_path(model *m, kv_token *path) {
    int n = 1 + (int)rnd(m, MAX_LEN);
    /* Mostly an old path with a change, so that prompts share long prefixes; few token values, so that siblings do. */
    if (m->n && rnd(m, 4)) {
        entry *old = &m->e[rnd(m, (uint32_t)m->n)];
        int keep = (int)rnd(m, (uint32_t)old->n + 1);
        memcpy(path, old->path, (size_t)keep * sizeof *path);
        for (int i = keep; i < n; i++) path[i] = (kv_token)rnd(m, 3);
        return n > keep ? n : keep ? keep : n;
    }
    for (int i = 0; i < n; i++) path[i] = rnd(m, 9) ? (kv_token)rnd(m, 3) : (kv_token)rnd(m, 1u << 31);
    return n;
}

static void check_find(model *m) {
    kv_token prompt[MAX_LEN];
    int n = random_path(m, prompt), best = 0;
    for (int i = 0; i < m->n; i++) {
        int common = (int)kv_tokens_common(prompt, (size_t)n, m->e[i].path, (size_t)m->e[i].n);
        if (common > best) best = common;
    }
    kv_radix_match match;
    kv_radix_find(&match, m->r, m->root, prompt, (size_t)n);
    assert_false(match.unsettled);
    int found = match.n_path * B;
    if (match.candidate) {
        assert_int_equal(kv_radix_start(match.candidate), found);
        kv_token tokens[B];
        assert_true(tokens_of(m, match.candidate, tokens));
        int extra = (int)kv_tokens_common(prompt + found, (size_t)(n - found), tokens,
                                          (size_t)kv_radix_n_tokens(match.candidate));
        /* Its peers are exactly the siblings with that much in common. */
        kv_radix_node *peers[MAX_NODES];
        int n_peers = kv_radix_peers(peers, MAX_NODES, m->r, match.candidate, extra), want = 0;
        for (int i = 0; i < m->n; i++) {
            if (kv_radix_parent(m->e[i].node) != kv_radix_parent(match.candidate)) continue;
            int c = (int)kv_tokens_common(m->e[i].path + found, (size_t)(m->e[i].n - found), tokens,
                                          (size_t)kv_radix_n_tokens(match.candidate));
            want += c >= extra;
        }
        assert_int_equal(n_peers, want);
        for (int i = 0; i < n_peers; i++) kv_radix_unref(m->r, peers[i]);
        /* The ends are exactly the short siblings that are prefixes of the candidate and end before the prompt does,
         * as far as prompt and candidate agree. */
        int ends = 0, want_ends = 0;
        for (int i = 0; i < match.n_ends; i++) ends += kv_radix_n_tokens(match.ends[i]) <= extra;
        for (int i = 0; i < m->n; i++) {
            int len = kv_radix_n_tokens(m->e[i].node);
            if (kv_radix_parent(m->e[i].node) != kv_radix_parent(match.candidate) || m->e[i].node == match.candidate)
                continue;
            want_ends += len <= extra && found + len < n &&
                         memcmp(m->e[i].path + found, prompt + found, (size_t)len * sizeof *prompt) == 0;
        }
        assert_int_equal(ends, want_ends);
        found += extra;
    }
    assert_int_equal(found, best);
    kv_radix_match_free(&match, m->r);
}

/* Where siblings go on otherwise than a node, and the siblings that are found there, are those of the list. */
static void check_partings(model *m) {
    const entry *own = &m->e[rnd(m, (uint32_t)m->n)];
    kv_radix_node *node = own->node, *parent = kv_radix_parent(node);
    int q = kv_radix_start(node), len = kv_radix_n_tokens(node), n_want = 0;
    bool want[B + 1] = {false}, unsettled;
    for (int i = 0; i < m->n; i++) {
        const entry *e = &m->e[i];
        if (kv_radix_parent(e->node) != parent || e->node == node) continue;
        int shared = (int)kv_tokens_common(own->path + q, (size_t)len, e->path + q, (size_t)(e->n - q));
        if (q + shared == e->n) continue;
        want[shared] = true;
        kv_token mine = shared < len ? own->path[q + shared] : 0, other = e->path[q + shared];
        kv_radix_node *found = kv_radix_sibling_at(m->r, node, shared, mine, other);
        kv_token tokens[B];
        assert_non_null(found);
        assert_true(tokens_of(m, found, tokens) && kv_radix_n_tokens(found) > shared);
        assert_memory_equal(tokens, e->path + q, (size_t)(shared + 1) * sizeof *tokens);
        kv_radix_unref(m->r, found);
        if (shared < len) assert_null(kv_radix_sibling_at(m->r, node, shared, other, other)); /* no parting */
    }
    int32_t partings[B + 1];
    int n = kv_radix_partings(partings, B + 1, m->r, node);
    for (int i = 0; i <= B; i++) n_want += want[i];
    assert_int_equal(n, n_want);
    for (int i = 0; i < n; i++) assert_true(want[partings[i]] && (i == 0 || partings[i] > partings[i - 1]));
    kv_radix_node *any = kv_radix_any_child(&unsettled, m->r, parent);
    assert_true(!unsettled && any && kv_radix_parent(any) == parent);
    kv_radix_unref(m->r, any);
}

static void remove_some(model *m) {
    int i = (int)rnd(m, (uint32_t)m->n);
    bool has_child = false;
    for (int k = 0; k < m->n; k++) has_child |= kv_radix_parent(m->e[k].node) == m->e[i].node;
    kv_radix_ref(m->r, m->e[i].node);
    assert_false(kv_radix_remove(m->r, m->e[i].node)); /* somebody else holds it */
    kv_radix_unref(m->r, m->e[i].node);
    bool removed = kv_radix_remove(m->r, m->e[i].node);
    assert_int_equal(removed, !has_child);
    if (removed) m->e[i] = m->e[--m->n];
}

static void init(model *m, uint64_t seed) {
    *m = (model){.r = kv_radix_new(B), .e = calloc(MAX_NODES, sizeof(entry)), .rng = seed};
    m->root = kv_radix_root(m->r, kv_hash_bytes("ns", 2));
}

static void done(model *m) {
    kv_radix_free(m->r);
    free(m->e);
}

static void random_operations_equal_the_naive_model(void **state) {
    (void)state;
    model m;
    init(&m, seed_of_day());
    for (int step = 0; step < 6000; step++) {
        kv_token path[MAX_LEN];
        uint32_t what = rnd(&m, 10);
        if (what < 3 && m.n < MAX_NODES - MAX_LEN / B - 1) add_path(&m, path, random_path(&m, path));
        else if (what < 5 && m.n) remove_some(&m);
        else if (what < 8 || !m.n) check_find(&m);
        else check_partings(&m);
        if (step % 100 == 0) kv_radix_check(m.r, tokens_of, &m);
    }
    kv_radix_check(m.r, tokens_of, &m);
    assert_int_equal(kv_radix_count(m.r), m.n + 1);
    done(&m);
}

/* A tree made again from keys alone, as at start-up, finds the same. */
static void known_nodes_settle_when_needed(void **state) {
    (void)state;
    model m;
    init(&m, seed_of_day() + 1);
    kv_token path[MAX_LEN];
    for (int i = 0; i < 60; i++) add_path(&m, path, random_path(&m, path));
    model again;
    init(&again, m.rng);
    for (int len = 1; len <= MAX_LEN; len++) { /* parents before children */
        for (int i = 0; i < m.n; i++) {
            if (m.e[i].n != len) continue;
            kv_radix_node *old = kv_radix_parent(m.e[i].node);
            kv_radix_node *parent = again.root;
            for (int k = 0; k < again.n; k++)
                if (kv_hash_equal(kv_radix_key(again.e[k].node), kv_radix_key(old))) parent = again.e[k].node;
            again.e[again.n] = m.e[i];
            again.e[again.n++].node =
                kv_radix_add_known(again.r, parent, kv_radix_key(m.e[i].node), kv_radix_n_tokens(m.e[i].node));
        }
    }
    kv_radix_check(again.r, tokens_of, &again);
    kv_radix_node *bad;
    kv_error err;
    again.unreadable = true;
    kv_status status = kv_radix_settle(&bad, again.r, again.root, tokens_of, &again, &err);
    assert_int_equal(status, KV_CORRUPT); /* many siblings start at the root */
    assert_non_null(bad);
    kv_radix_unref(again.r, bad);
    again.unreadable = false;
    for (int i = 0; i < again.n; i++)
        assert_int_equal(kv_radix_settle(&bad, again.r, again.e[i].node, tokens_of, &again, &err), KV_OK);
    assert_int_equal(kv_radix_settle(&bad, again.r, again.root, tokens_of, &again, &err), KV_OK);
    kv_radix_check(again.r, tokens_of, &again);
    for (int i = 0; i < 500; i++) check_find(&again);
    done(&again);
    done(&m);
}

static void records_hang_on_nodes(void **state) {
    (void)state;
    model m;
    init(&m, 1);
    kv_token path[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    add_path(&m, path, 10);
    kv_radix_node *first = find_path(&m, path, 8)->node;
    kv_radix_record rec = {.bytes = 100, .on_disk = true}, got;
    kv_radix_set_record(m.r, first, KV_RADIX_CHECKPOINT, &rec);
    rec.bytes = 7;
    kv_radix_set_record(m.r, first, KV_RADIX_BLOCK, &rec);
    rec.bytes = 8;
    kv_radix_set_record(m.r, first, KV_RADIX_BLOCK, &rec);
    assert_true(kv_radix_get_record(&got, m.r, first, KV_RADIX_BLOCK));
    assert_int_equal(got.bytes, 8);
    assert_true(kv_radix_get_record(&got, m.r, first, KV_RADIX_CHECKPOINT));
    assert_int_equal(got.bytes, 100);
    assert_false(kv_radix_get_record(&got, m.r, first, KV_RADIX_WINDOW));
    rec.bytes = 0;
    kv_radix_set_record(m.r, first, KV_RADIX_CHECKPOINT, &rec);
    assert_false(kv_radix_get_record(&got, m.r, first, KV_RADIX_CHECKPOINT));
    kv_radix_check(m.r, tokens_of, &m);
    kv_radix_touch(m.r, first, 1000);
    kv_radix_touch(m.r, first, 1000 + 7 * 24 * 3600);
    double hits;
    int64_t used;
    kv_radix_use(&hits, &used, m.r, first, 1000 + 7 * 24 * 3600);
    assert_true(hits > 1.49 && hits < 1.51);
    assert_int_equal(used, 1000 + 7 * 24 * 3600);
    done(&m);
}

static void short_blocks_end_a_path(void **state) {
    (void)state;
    model m;
    init(&m, 1);
    kv_token path[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    add_path(&m, path, 4);
    kv_radix_node *node, *bad;
    bool created;
    kv_error err;
    kv_radix_node *tail = find_path(&m, path, 4)->node;
    assert_int_equal(kv_radix_add(&node, &created, &bad, m.r, tail, path, 2, tokens_of, &m, &err), KV_INVALID);
    assert_int_equal(kv_radix_add(&node, &created, &bad, m.r, m.root, path, B + 1, tokens_of, &m, &err), KV_INVALID);
    assert_int_equal(kv_radix_add(&node, &created, &bad, m.r, m.root, path, 0, tokens_of, &m, &err), KV_INVALID);
    add_path(&m, path, 10); /* the full block beside its short forerunner */
    kv_radix_match match;
    kv_radix_find(&match, m.r, m.root, path, 4);
    assert_non_null(match.candidate);
    assert_int_equal(match.n_path, 0);
    kv_radix_match_free(&match, m.r);
    done(&m);
}

static void memory_a_block_is_bounded(void **state) {
    (void)state;
    kv_radix *r = kv_radix_new(256);
    kv_radix_node *root = kv_radix_root(r, kv_hash_bytes("ns", 2)), *at = root;
    enum { N = 100000 };
    for (int i = 0; i < N; i++) {
        if (i % 100 == 0) at = root;
        kv_token t = i;
        kv_radix_node *next = kv_radix_add_known(r, at, kv_hash_chain(kv_radix_key(at), &t, 1), 256);
        kv_radix_set_record(r, next, KV_RADIX_BLOCK, &(kv_radix_record){.bytes = 1 << 20, .on_disk = true});
        at = next;
        kv_radix_unref(r, next);
    }
    print_message("%.0f bytes a block\n", (double)kv_radix_bytes(r) / N);
    assert_true(kv_radix_bytes(r) <= 256u * N);
    kv_radix_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_equal_the_naive_model),
        cmocka_unit_test(known_nodes_settle_when_needed),
        cmocka_unit_test(records_hang_on_nodes),
        cmocka_unit_test(short_blocks_end_a_path),
        cmocka_unit_test(memory_a_block_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
