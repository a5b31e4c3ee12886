#include "cache/record.h"

#include <stdlib.h>
#include <string.h>

void kv_pool_init(kv_pool *p, uint64_t queue_max, uint64_t ram_max, uint64_t read_max) {
    p->max[KV_ACCOUNT_QUEUE] = queue_max;
    p->max[KV_ACCOUNT_RAM] = ram_max;
    p->max[KV_ACCOUNT_READ] = read_max;
    for (int a = 0; a < KV_ACCOUNT_COUNT; a++) atomic_init(&p->used[a], 0);
    pthread_mutex_init(&p->spare_mutex, NULL);
}

/* ── spare buffers ─────────────────────────────────────────────────────────────────────────────────────────────── */

#define SPARE_BYTES (64u << 20) /* most that lies about */

/* Caller holds the mutex. The oldest go, until `bytes` fit into READ beside the others. */
static void drop_spare(kv_pool *p, uint64_t bytes) {
    int n = 0;
    uint64_t used = atomic_load(&p->used[KV_ACCOUNT_READ]), max = p->max[KV_ACCOUNT_READ];
    for (; n < p->n_spare && used + p->spare_bytes + bytes > max; n++) {
        p->spare_bytes -= p->spare[n].cap;
        kv_buf_free(&p->spare[n]);
    }
    p->n_spare -= n;
    memmove(p->spare, p->spare + n, (size_t)p->n_spare * sizeof *p->spare);
}

static void keep_spare(kv_pool *p, kv_buf *b) {
    uint64_t used = atomic_load(&p->used[KV_ACCOUNT_READ]), all = p->spare_bytes + b->cap;
    if (!b->data || p->n_spare == KV_POOL_SPARE || all > SPARE_BYTES || used + all > p->max[KV_ACCOUNT_READ]) return;
    p->spare[p->n_spare++] = *b;
    p->spare_bytes = all;
    *b = (kv_buf){0};
}

/* The last used one that is large enough and not much larger: part of it may still lie in the CPU's caches. */
static bool find_spare(kv_buf *out, kv_pool *p, size_t cap) {
    for (int i = p->n_spare - 1; i >= 0; i--) {
        kv_buf *b = &p->spare[i];
        if (b->cap < cap || b->cap > cap + cap / 4) continue;
        *out = *b;
        p->spare_bytes -= b->cap;
        p->n_spare--;
        memmove(b, b + 1, (size_t)(p->n_spare - i) * sizeof *b);
        return true;
    }
    return false;
}

kv_status kv_record_make_room(kv_record *r, kv_error *err) {
    kv_pool *p = r->pool;
    size_t n = (size_t)r->head.n_payload, cap = (n + KV_FORMAT_ALIGN - 1) / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN;
    pthread_mutex_lock(&p->spare_mutex);
    bool found = find_spare(&r->payload, p, cap);
    pthread_mutex_unlock(&p->spare_mutex);
    if (found) return KV_OK;
    r->payload.data = aligned_alloc(KV_FORMAT_ALIGN, cap);
    if (!r->payload.data) return kv_fail(err, KV_NO_MEMORY, "no memory to read a record of %zu bytes", n);
    r->payload.cap = cap;
    return KV_OK;
}

void kv_pool_free_spare(kv_pool *p) {
    pthread_mutex_lock(&p->spare_mutex);
    for (int i = 0; i < p->n_spare; i++) kv_buf_free(&p->spare[i]);
    p->n_spare = 0;
    p->spare_bytes = 0;
    pthread_mutex_unlock(&p->spare_mutex);
}

void kv_pool_check(kv_pool *p) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&p->spare_mutex);
    for (int i = 0; i < p->n_spare; i++) bytes += p->spare[i].cap;
    KV_CHECK(bytes == p->spare_bytes);
    KV_CHECK(bytes == 0 || bytes + atomic_load(&p->used[KV_ACCOUNT_READ]) <= p->max[KV_ACCOUNT_READ]);
    pthread_mutex_unlock(&p->spare_mutex);
}

void kv_pool_free(kv_pool *p) {
    kv_pool_free_spare(p);
    pthread_mutex_destroy(&p->spare_mutex);
}

/* ── accounts and records ──────────────────────────────────────────────────────────────────────────────────────── */

static bool take(kv_pool *p, kv_account account, uint64_t bytes) {
    uint64_t used = atomic_load(&p->used[account]);
    do {
        if (bytes > p->max[account] || used > p->max[account] - bytes) return false;
    } while (!atomic_compare_exchange_weak(&p->used[account], &used, used + bytes));
    return true;
}

static void give_back(kv_pool *p, kv_account account, uint64_t bytes) {
    atomic_fetch_sub(&p->used[account], bytes);
}

uint64_t kv_record_bytes(int32_t n_tokens, uint64_t n_payload) {
    return sizeof(kv_record) + (uint64_t)n_tokens * sizeof(kv_token) + n_payload + 1;
}

kv_record *kv_record_new(kv_pool *p, kv_account account, const kv_record_head *head, const kv_token *tokens) {
    uint64_t bytes = kv_record_bytes(head->n_tokens, head->n_payload);
    if (account == KV_ACCOUNT_READ) pthread_mutex_lock(&p->spare_mutex);
    if (account == KV_ACCOUNT_READ) drop_spare(p, bytes);
    bool taken = take(p, account, bytes);
    if (account == KV_ACCOUNT_READ) pthread_mutex_unlock(&p->spare_mutex);
    if (!taken) return NULL;
    kv_record *r = kv_alloc(sizeof *r + (size_t)head->n_tokens * sizeof *tokens);
    r->head = *head;
    r->tokens = (kv_token *)(r + 1);
    if (tokens) memcpy(r->tokens, tokens, (size_t)head->n_tokens * sizeof *tokens);
    atomic_init(&r->refs, 1);
    atomic_init(&r->account, account);
    r->counted = bytes;
    r->pool = p;
    return r;
}

kv_record *kv_record_ref(kv_record *r) {
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void kv_record_unref(kv_record *r) {
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    kv_account account = (kv_account)atomic_load(&r->account);
    if (account == KV_ACCOUNT_READ) pthread_mutex_lock(&r->pool->spare_mutex);
    give_back(r->pool, account, r->counted);
    if (account == KV_ACCOUNT_READ) keep_spare(r->pool, &r->payload);
    if (account == KV_ACCOUNT_READ) pthread_mutex_unlock(&r->pool->spare_mutex);
    kv_buf_free(&r->payload);
    free(r);
}

bool kv_record_to_ram(kv_record *r) {
    kv_account from = (kv_account)atomic_load(&r->account);
    if (from == KV_ACCOUNT_RAM) return true;
    if (!take(r->pool, KV_ACCOUNT_RAM, r->counted)) return false;
    atomic_store(&r->account, KV_ACCOUNT_RAM);
    give_back(r->pool, from, r->counted);
    return true;
}
