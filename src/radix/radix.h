/* radix/radix.h: which token paths are stored, and the longest one that a prompt shares.
 *
 * A path is cut into blocks of B tokens on absolute multiples of B (the last may be short). A node is one block below
 * its parent; its identity is the chained hash of every token from the root on, seeded with the namespace:
 *
 *      root(namespace)                      key(child) = XXH3-128(key(parent) ‖ tokens of the child)
 *        ├── [0,256) ── [256,512) ─┬─ [512,768) ── …
 *        │                         ├─ [512,768)'          siblings differ somewhere in their tokens
 *        │                         └─ [512,530)''         a short last block (a leaf always)
 *        └── [0,256)'
 *
 * Full blocks are found by hash, one table look-up each. Where no full block matches, the best sibling is found by a
 * PATRICIA tree over the siblings' tokens: an inner node holds only the position where its sides part and the tokens
 * there, so a blind walk with the prompt's tokens ends at a leaf that shares the longest prefix of all siblings with
 * the prompt (where the walk finds no branch, every leaf below shares the same prefix). How long that prefix is only
 * the leaf's own tokens can tell, and the tree does not hold them: whoever reads the record compares.
 *
 *      depth 3:  a ┬ depth 9: c ─ leaf 1        look-up of  x x x a x x x x x d …
 *                  │          d ─ leaf 2   ◄──  ends at leaf 2; comparing its tokens gives the exact length
 *                b ─ leaf 3
 *
 * A short block that is a prefix of a sibling parts from it at its own end ("end of tokens" is a branch of its own).
 *
 * Records hang on nodes: attention cells and window cells of the node's own tokens, and a checkpoint at its end. A
 * position that has only a checkpoint (one token before a prompt's end, say) is a short node without cells: its cells
 * are those of any sibling that shares its tokens. So what two prompts share they find, whoever computed it.
 *
 * Memory: ≤ 256 bytes a node with its table slot and inner node, measured by kv_radix_bytes.
 *
 * Invariants
 *   R1 a node's parent is in the tree; a node with children or references is not removed
 *   R2 key, q and n_tokens never change; a full block and its short forerunner are different nodes
 *   R3 siblings have pairwise different tokens, and the inner nodes above them are exactly where they part
 *   R4 only full blocks have children
 *
 * Thread rule: kv_radix has one read-write lock, a leaf. kv_radix_find and kv_radix_unref take it shared, what
 * changes the tree takes it alone. A node pointer is valid while the caller holds a reference on it.
 */
#ifndef KV_RADIX_RADIX_H
#define KV_RADIX_RADIX_H

#include "base/buf.h"
#include "base/error.h"
#include "base/hash.h"
#include <stdbool.h>

typedef struct kv_radix kv_radix;
typedef struct kv_radix_node kv_radix_node;

/* Where a record is and what it is worth. */
typedef struct kv_radix_record {
    uint64_t bytes; /* payload; 0 = there is no such record */
    void *ram;      /* the RAM tier's entry, NULL = not in memory; owned by the tier */
    bool on_disk;
    bool canonical;
    uint8_t place;     /* kv_place_kind: what it was kept for */
    uint8_t keep_300s; /* five minutes, so many times: how long after its last use it goes after what is not so kept */
    uint32_t compute_ms; /* what computing its tokens took */
} kv_radix_record;

/* `keep_300s` of a time in seconds: rounded up, and no more than fits. */
static inline uint8_t kv_radix_keep_300s(uint32_t seconds) {
    return seconds < 300u * UINT8_MAX ? (uint8_t)((seconds + 299) / 300) : UINT8_MAX;
}

typedef struct kv_radix_match {
    kv_radix_node **path; /* full blocks that match by hash, from the root on; owned array, each referenced */
    int n_path;
    /* The child of the path's end (of the root, when the path is empty) that shares most of what comes after it, or
     * NULL. Its tokens are not compared yet: 0 … min(n_tokens, rest of the prompt) of them may be equal. Referenced. */
    kv_radix_node *candidate;
    /* Children that end on the way to the candidate, shortest first: each is a prefix of the candidate, so of the
     * prompt too when it is no longer than what the two share. Owned array, each referenced. */
    kv_radix_node **ends;
    int n_ends;
    bool unsettled; /* the children there are not yet put apart: kv_radix_settle, then find again for a candidate */
} kv_radix_match;

kv_radix *kv_radix_new(int32_t block);
void kv_radix_free(kv_radix *r);
/* The root of a namespace, made when new. Roots are never removed; referenced for the caller. */
kv_radix_node *kv_radix_root(kv_radix *r, kv_hash ns);

void kv_radix_find(kv_radix_match *out, kv_radix *r, kv_radix_node *root, const kv_token *tokens, size_t n);
void kv_radix_match_free(kv_radix_match *m, kv_radix *r); /* drops its references */

/* Tokens of a node, for telling siblings apart: called without the tree's lock, may do I/O. False: unreadable. */
typedef bool (*kv_radix_tokens_fn)(void *ctx, const kv_radix_node *node, kv_token *out /* n_tokens */);

/* Add (or find) the child of `parent` with these tokens. *created tells. Referenced for the caller. Fails with
 * KV_INVALID for a child below a short block, or more than B tokens, with KV_CORRUPT when a sibling's tokens could
 * not be read (*bad is then that sibling, referenced). */
kv_status kv_radix_add(kv_radix_node **out, bool *created, kv_radix_node **bad, kv_radix *r, kv_radix_node *parent,
                       const kv_token *tokens, size_t n, kv_radix_tokens_fn tokens_of, void *ctx, kv_error *err);
/* Start-up: add (or find) a node that is known by its key alone (its tokens lie on disk). Where it is not an only
 * child, siblings are put apart later, when first needed, by reading their tokens. Referenced for the caller. */
kv_radix_node *kv_radix_add_known(kv_radix *r, kv_radix_node *parent, kv_hash key, int32_t n_tokens);
/* Put the children of `parent` apart. KV_CORRUPT with *bad (referenced) when one's tokens could not be read. */
kv_status kv_radix_settle(kv_radix_node **bad, kv_radix *r, kv_radix_node *parent, kv_radix_tokens_fn tokens_of,
                          void *ctx, kv_error *err);
/* The node with this key, referenced, or NULL. */
kv_radix_node *kv_radix_get(kv_radix *r, kv_hash key);
/* Siblings that are prefixes of `node`, longest first, at most `room`, each referenced: what a longer block supersedes. */
int kv_radix_prefixes(kv_radix_node **out, int room, kv_radix *r, kv_radix_node *node);
/* The siblings (`node` itself among them) that share their first `n` tokens with `node`, at most `room` of them, each
 * referenced: any of them may have the cells of the shared part. */
int kv_radix_peers(kv_radix_node **out, int room, kv_radix *r, kv_radix_node *node, int32_t n);
/* A child of `node`, any but the ones that another child goes on from; NULL without one. *unsettled as in a match.
 * Referenced. */
kv_radix_node *kv_radix_any_child(bool *unsettled, kv_radix *r, kv_radix_node *node);
/* Where siblings go on otherwise than `node`: how many of its first tokens they share with it, ascending, each number
 * once, at most `room`; its own length where siblings go on from its end. Those that only end earlier do not count. */
int kv_radix_partings(int32_t *out, int room, kv_radix *r, kv_radix_node *node);
/* A sibling that shares the first `shared` tokens of `node` and may have `other` behind them, where `node` has `own`
 * (meaningless at its end). Blind, as a match's candidate is: its tokens tell. Referenced; NULL: no sibling has. */
kv_radix_node *kv_radix_sibling_at(kv_radix *r, kv_radix_node *node, int32_t shared, kv_token own, kv_token other);
/* Remove a leaf that only the caller references (its reference is consumed). False: it has children or other
 * references; nothing changed and the caller keeps its reference. */
bool kv_radix_remove(kv_radix *r, kv_radix_node *node);
/* True when kv_radix_remove would succeed now. */
bool kv_radix_is_free_leaf(kv_radix *r, kv_radix_node *node);
void kv_radix_ref(kv_radix *r, kv_radix_node *node);
void kv_radix_unref(kv_radix *r, kv_radix_node *node);

/* Facts of a node; no lock needed while referenced. A namespace's root has start 0 and no tokens. */
kv_hash kv_radix_key(const kv_radix_node *n);
int32_t kv_radix_start(const kv_radix_node *n);         /* q */
int32_t kv_radix_n_tokens(const kv_radix_node *n);      /* e - q */
kv_radix_node *kv_radix_parent(const kv_radix_node *n); /* NULL at a root; borrowed */

/* Records of a node, under the tree's lock: copies go out and in. Setting one with bytes 0 removes it. */
typedef enum kv_radix_slot {
    KV_RADIX_BLOCK,      /* attention cells of the node's tokens */
    KV_RADIX_WINDOW,     /* window cells of the node's tokens */
    KV_RADIX_CHECKPOINT, /* recurrent state at the node's end */
    KV_RADIX_WHOLE,      /* everything up to the node's end, for memories without range copy */
} kv_radix_slot;
bool kv_radix_get_record(kv_radix_record *out, kv_radix *r, const kv_radix_node *n, kv_radix_slot slot);
void kv_radix_set_record(kv_radix *r, kv_radix_node *n, kv_radix_slot slot, const kv_radix_record *rec);

/* Use, for eviction by worth: each hit counts one and halves in a week. `now` in Unix seconds. */
void kv_radix_touch(kv_radix *r, kv_radix_node *n, int64_t now);
void kv_radix_use(double *hits, int64_t *last_used, kv_radix *r, const kv_radix_node *n, int64_t now);
void kv_radix_set_use(kv_radix *r, kv_radix_node *n, double hits, int64_t last_used); /* start-up, from the index */
/* Calls fn for every node that was there when it began, children before parents, without the tree's lock. */
void kv_radix_walk(kv_radix *r, void (*fn)(void *ctx, kv_radix_node *n), void *ctx);

size_t kv_radix_count(kv_radix *r); /* nodes, roots included */
size_t kv_radix_bytes(kv_radix *r); /* memory of the tree itself */
/* Walks everything and aborts on a broken invariant. Nobody else may use the tree meanwhile: no lock is held, so that
 * tokens_of (may be NULL) can take those that come before the tree's. */
void kv_radix_check(kv_radix *r, kv_radix_tokens_fn tokens_of, void *ctx);
void kv_radix_dump(kv_buf *out, kv_radix *r);

#endif
