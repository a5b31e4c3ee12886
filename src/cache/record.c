#include "cache/record.h"

#include <stdlib.h>
#include <string.h>

void kv_pool_init(kv_pool *p, uint64_t queue_max, uint64_t ram_max, uint64_t read_max) {
    p->max[KV_ACCOUNT_QUEUE] = queue_max;
    p->max[KV_ACCOUNT_RAM] = ram_max;
    p->max[KV_ACCOUNT_READ] = read_max;
    for (int a = 0; a < KV_ACCOUNT_COUNT; a++) atomic_init(&p->used[a], 0);
}

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
    if (!take(p, account, bytes)) return NULL;
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
    give_back(r->pool, (kv_account)atomic_load(&r->account), r->counted);
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
