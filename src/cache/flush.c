/* cache/flush.c: the end of a cache with a store. What waits for the disk is written while there is time for it.
 *
 *   insertions ─► (all, they only hash) ─► writes ─► ordered by worth ─► written until the time is up ─► counted
 *
 * Worth is milliseconds of computing a byte. A record that others hang on is worth at least what they are: without it
 * they would be of no use, so it goes first.
 */
#include "cache/cache_private.h"

#include <stdlib.h>
#include <time.h>

/* Of the time, the end: for the commit of what is just being written. */
#define LAST_SHARE   8
#define LAST_MOST_US 500000

uint64_t kv_cache_block_tokens(const kv_record *r) {
    return r->head.kind == KV_RECORD_BLOCK ? (uint64_t)(r->head.e - r->head.q) : 0;
}

/* ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct waiting {
    kv_record *r;
    double worth; /* its own, or of the most valuable record that leans on it */
    size_t place; /* in the queue, where parents come before what hangs on them */
} waiting;

static int by_name(const void *a, const void *b) {
    const kv_record_head *x = &(*(waiting *const *)a)->r->head, *y = &(*(waiting *const *)b)->r->head;
    if (x->key.hi != y->key.hi) return x->key.hi < y->key.hi ? -1 : 1;
    if (x->key.lo != y->key.lo) return x->key.lo < y->key.lo ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

static int by_worth(const void *a, const void *b) {
    const waiting *x = a, *y = b;
    if (x->worth != y->worth) return x->worth > y->worth ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* The record of this name, if it waits too, is worth as much. */
static void lift(waiting *const *names, size_t n, kv_hash key, kv_record_kind kind, double worth) {
    kv_record r = {.head = {.key = key, .kind = kind}};
    waiting wanted = {.r = &r};
    const waiting *name = &wanted;
    waiting *const *found = bsearch(&name, names, n, sizeof *names, by_name);
    if (found && (*found)->worth < worth) (*found)->worth = worth;
}

/* Caller holds the mutex. Linear but for the sorting: some thousand records at most, by the queue's bytes. */
static void order_by_worth(kv_record_list *list) {
    size_t n = 0;
    for (const kv_record *r = list->first; r; r = r->next) n++;
    if (n < 2) return;
    waiting *all = kv_alloc(n * sizeof *all), **names = kv_alloc(n * sizeof(waiting *));
    size_t i = 0;
    for (kv_record *r; (r = kv_cache_pop(list)); i++) {
        uint64_t bytes = kv_format_file_bytes(r->head.n_tokens, r->head.n_payload);
        all[i] = (waiting){r, kv_store_worth(r->head.compute_ms, 0, bytes), i};
        names[i] = &all[i];
    }
    qsort(names, n, sizeof(waiting *), by_name);
    for (i = n; i-- > 0;) { /* children first: they lift what lifts on */
        const kv_record_head *h = &all[i].r->head;
        lift(names, n, h->parent, KV_RECORD_BLOCK, all[i].worth);
        if (h->kind != KV_RECORD_BLOCK) lift(names, n, h->key, KV_RECORD_BLOCK, all[i].worth);
        if (h->kind == KV_RECORD_WINDOW) lift(names, n, h->parent, KV_RECORD_WINDOW, all[i].worth);
    }
    qsort(all, n, sizeof *all, by_worth);
    for (i = 0; i < n; i++) kv_cache_append(list, all[i].r);
    free(all);
    free(names);
}

/* ── flush ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_cache_wait_while(kv_cache *c, const bool *one, const bool *other, int64_t until) {
    while (*one || *other) {
        int64_t left = until - kv_now_us(c->cfg.clock);
        if (left <= 0) return;
        if (kv_io_is_inline(c->cfg.io)) {
            pthread_mutex_unlock(&c->mutex);
            bool ran = kv_io_run_one(c->cfg.io);
            pthread_mutex_lock(&c->mutex);
            if (!ran) return;
            continue;
        }
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        int64_t ns = at.tv_nsec + left % 1000000 * 1000;
        at.tv_sec += left / 1000000 + ns / 1000000000;
        at.tv_nsec = ns % 1000000000;
        pthread_cond_timedwait(&c->quiet, &c->mutex, &at);
    }
}

uint64_t kv_cache_flush(kv_cache *c, int64_t timeout_us) {
    if (!c->cfg.store) return 0;
    int64_t now = kv_now_us(c->cfg.clock), last = timeout_us / LAST_SHARE;
    if (timeout_us < 0) timeout_us = last = 0;
    if (last > LAST_MOST_US) last = LAST_MOST_US;
    pthread_mutex_lock(&c->mutex);
    c->give_up_at = now + timeout_us - last;
    kv_cache_wait_while(c, &c->inserting, &c->inserting, c->give_up_at);
    order_by_worth(&c->writes);
    kv_cache_wait_while(c, &c->inserting, &c->writing, now + timeout_us);
    uint64_t dropped = c->tokens_given_up + c->tokens_in_hand; /* in hand: a disk that hangs */
    const kv_record_list *const lists[] = {&c->insertions, &c->writes};
    for (int i = 0; i < 2; i++)
        for (const kv_record *r = lists[i]->first; r; r = r->next) dropped += kv_cache_block_tokens(r);
    pthread_mutex_unlock(&c->mutex);
    return dropped;
}
