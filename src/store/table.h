/* store/table.h: the rows of all records, and which of them would go first.
 *
 *   by_key ──► row ─next_key─► row          one bucket chain a hash of `key`: a node's block, window and checkpoint
 *   by_parent ──► row ⇄ row ⇄ row           the same of `parent`: what hangs on a node
 *   heap: rows that may be evicted, the least worth on top
 *
 * A row that hangs on block K: parent == K, or a window part or checkpoint with key == K. A block with such rows is not
 * in the heap, nor is a row that is pinned, pending (being published: it protects its parent) or stuck (its file could
 * not be removed).
 *
 * score = log2(worth × fade) of store.h, as of the instant when the table was last scored: rows fade at different speeds,
 * the old ones slowly, so the order changes while nothing happens.
 *
 * A row that is to be kept until last_used + keep goes after all others: its score has KV_TABLE_KEPT on top of that until
 * then, by the table's own time (kv_table_tell).
 *
 * Memory: 128 bytes a row, 4 for the heap and 4 to 16 for the buckets; an eighth more for what comes next.
 *
 * Invariants
 *   T1 a row is in the heap exactly when it may be evicted, and heap[row.heap] is that row
 *   T2 ns, key and kind are unique
 *   T3 each row is in the chain of its key and in that of its parent
 *
 * Thread rule: none; the store's mutex.
 */
#ifndef KV_STORE_TABLE_H
#define KV_STORE_TABLE_H

#include "store/format.h"

#define KV_NO_ROW UINT32_MAX

enum {
    KV_ROW_PINNED = 1,
    KV_ROW_PENDING = 2,
    KV_ROW_STUCK = 4,
    KV_ROW_CANONICAL = 8,
    KV_ROW_USED = 16, /* not in the index yet */
    KV_ROW_KEPT = 32  /* its time to be kept is not over; the table's own */
};
#define KV_TABLE_KEPT 1e6 /* more than any score */

typedef struct kv_table_row {
    kv_hash key, parent, shape_class;
    double score;
    uint64_t n_payload, disk;
    int32_t q, e;
    uint32_t compute_ms;
    float hits;
    uint32_t last_used, created; /* Unix seconds, to 2106 */
    uint32_t keep;               /* seconds after last_used */
    uint32_t next_key, next_parent, prev_parent, heap;
    uint16_t ns;
    uint8_t kind, flags; /* kind 0: a free slot */
    uint8_t place;       /* kv_place_kind */
} kv_table_row;

typedef struct kv_table {
    kv_table_row *rows; /* owned; slots stay where they are, so a number names a row until it is taken out */
    uint32_t n_slots, cap, free_slot, n_rows;
    uint32_t *by_key, *by_parent; /* n_buckets each, a power of two */
    uint32_t n_buckets;
    uint32_t *heap, n_heap;
    int64_t scored_at; /* Unix seconds that the scores are of */
    bool by_use;       /* set before the first row: score is the last use alone (kv_store_order) */
    kv_hash *ns;       /* namespaces that were ever seen */
    uint16_t n_ns;
    uint64_t bytes_of_kind[5]; /* disk bytes, by kv_record_kind; pending rows not counted */
    uint32_t now;              /* Unix seconds, as last told */
    uint32_t next_end;         /* no row's time to be kept is over before */
} kv_table;

void kv_table_free(kv_table *t);
/* Number of a namespace, made when new. False: 65,535 are there. */
bool kv_table_ns(uint16_t *out, kv_table *t, kv_hash ns);
uint32_t kv_table_find(const kv_table *t, kv_hash ns, kv_hash key, kv_record_kind kind);
/* Copies the row in; links and score are set here. The row must not be there yet. */
uint32_t kv_table_add(kv_table *t, const kv_table_row *row);
void kv_table_take_out(kv_table_row *out, kv_table *t, uint32_t i); /* out may be NULL */
/* After hits, last_used or flags were changed by the caller. */
void kv_table_changed(kv_table *t, uint32_t i);
/* What time it is: whose time to be kept is over goes like others from now on. */
void kv_table_tell(kv_table *t, int64_t now);
void kv_table_finish(kv_table *t, uint32_t i, uint64_t disk);               /* pending → there, with its bytes */
bool kv_table_has_dependents(const kv_table *t, const kv_table_row *block); /* rows that hang on it, itself in or out */
/* Scores become those of now, Unix seconds, when they are older than a moment: before it is asked what is worst. */
void kv_table_rescore(kv_table *t, int64_t now);
uint32_t kv_table_worst(const kv_table *t); /* KV_NO_ROW when nothing may go */
int32_t kv_table_n_tokens(const kv_table_row *row);
void kv_table_head(kv_record_head *out, const kv_table *t, const kv_table_row *row);
size_t kv_table_bytes(const kv_table *t);
void kv_table_check(const kv_table *t);

#endif
