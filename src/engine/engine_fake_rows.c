/* States of the recurrent layers, as llama-memory-recurrent.cpp keeps them (n_rs_seq 0).
 *
 * libllama moves rows about so that those of one pass lie side by side; that has no effect that can be seen from
 * outside but after damage, which kv_fake_rows_spoil stands for. There are as many rows as sequences, and a sequence
 * needs at most one, so they never run out.
 *
 * Invariant: a row's n_owners is the number of tails that point to it; a row is free if and only if that is 0. */
#include "engine/engine_fake_internal.h"

#include <stdlib.h>
#include <string.h>

void kv_fake_rows_init(kv_fake_rows *r, int32_t n_seq) {
    r->n_seq = n_seq;
    r->rows = kv_alloc((size_t)n_seq * sizeof *r->rows);
    r->tail = kv_alloc((size_t)n_seq * sizeof *r->tail);
    kv_fake_rows_clear(r);
}

void kv_fake_rows_free(kv_fake_rows *r) {
    free(r->rows);
    free(r->tail);
    memset(r, 0, sizeof *r);
}

void kv_fake_rows_clear(kv_fake_rows *r) {
    for (int32_t i = 0; i < r->n_seq; i++) {
        r->rows[i] = (kv_fake_row){.pos = -1};
        r->tail[i] = -1;
    }
}

kv_pos kv_fake_rows_pos(const kv_fake_rows *r, kv_seq s) {
    return r->tail[s] < 0 ? -1 : r->rows[r->tail[s]].pos;
}

uint64_t kv_fake_rows_digest(const kv_fake_rows *r, kv_seq s) {
    return r->tail[s] < 0 ? 0 : r->rows[r->tail[s]].digest;
}

static void leave(kv_fake_rows *r, kv_seq s) {
    if (r->tail[s] < 0) return;
    kv_fake_row *row = &r->rows[r->tail[s]];
    if (--row->n_owners == 0) *row = (kv_fake_row){.pos = -1};
    r->tail[s] = -1;
}

bool kv_fake_rows_rm(kv_fake_rows *r, kv_seq s, kv_pos p0, kv_pos p1) {
    kv_pos pos = kv_fake_rows_pos(r, s);
    if (pos < 0) return true;
    if (p0 > 0 && p0 <= pos && p1 > pos) return false; /* a state knows no earlier position */
    if (p0 <= pos && pos < p1) leave(r, s);
    return true; /* also where the range ends before pos: nothing happens to the state, and libllama says true */
}

/* Whatever the range was, the whole state is shared; and dst loses its own first, even when src has none. */
void kv_fake_rows_cp(kv_fake_rows *r, kv_seq src, kv_seq dst) {
    if (src == dst) return;
    leave(r, dst);
    if (r->tail[src] < 0) return;
    r->tail[dst] = r->tail[src];
    r->rows[r->tail[dst]].n_owners++;
}

void kv_fake_rows_advance(kv_fake_rows *r, kv_seq s, kv_pos pos) {
    int32_t old = r->tail[s];
    if (old < 0 || r->rows[old].n_owners > 1) {
        int32_t i = 0;
        while (i < r->n_seq && r->rows[i].n_owners > 0) i++;
        KV_CHECK(i < r->n_seq);
        r->rows[i].digest = old < 0 ? 0 : r->rows[old].digest;
        r->rows[i].n_owners = 1;
        leave(r, s);
        r->tail[s] = i;
    }
    r->rows[r->tail[s]].pos = pos;
}

void kv_fake_rows_write(kv_fake_rows *r, kv_seq s, uint64_t digest) {
    r->rows[r->tail[s]].digest = digest;
}

void kv_fake_rows_spoil(kv_fake_rows *r) {
    for (int32_t i = 0; i < r->n_seq; i++)
        if (r->rows[i].n_owners > 0) r->rows[i].digest = kv_fake_derive(r->rows[i].digest, 1, KV_FAKE_RECURRENT);
}

void kv_fake_rows_check(const kv_fake_rows *r) {
    int32_t n[KV_FAKE_MAX_SEQ] = {0};
    for (kv_seq s = 0; s < r->n_seq; s++) {
        KV_CHECK(r->tail[s] >= -1 && r->tail[s] < r->n_seq);
        if (r->tail[s] >= 0) n[r->tail[s]]++;
    }
    for (int32_t i = 0; i < r->n_seq; i++) {
        KV_CHECK(r->rows[i].n_owners == n[i]);
        KV_CHECK((n[i] > 0) == (r->rows[i].pos >= 0));
    }
}
