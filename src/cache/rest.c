/* cache/rest.c: while the engine is gone and the cache stays: all that was captured goes to disk, and memory keeps what
 * is nowhere else. */
#include "cache/cache_private.h"
#include "cache/pieces.h"

bool kv_cache_settle(kv_cache *c, int64_t timeout_us) {
    int64_t until = kv_now_us(c->cfg.clock) + timeout_us;
    pthread_mutex_lock(&c->mutex);
    kv_cache_wait_while(c, &c->inserting, &c->writing, until);
    bool settled = !c->inserting && !c->writing;
    pthread_mutex_unlock(&c->mutex);
    return settled;
}

static void let_go_of_copies(void *cache, kv_radix_node *node) {
    kv_cache *c = cache;
    for (kv_radix_slot slot = KV_RADIX_BLOCK; slot <= KV_RADIX_WHOLE; slot++) {
        kv_radix_record rec;
        kv_record *copy = NULL;
        pthread_mutex_lock(&c->mutex);
        if (kv_radix_get_record(&rec, c->tree, node, slot) && rec.ram && rec.on_disk) {
            copy = rec.ram;
            rec.ram = NULL;
            kv_radix_set_record(c->tree, node, slot, &rec);
        }
        pthread_mutex_unlock(&c->mutex);
        kv_record_unref(copy);
    }
}

void kv_cache_let_go_of_copies(kv_cache *c) {
    if (c->cfg.store) kv_radix_walk(c->tree, let_go_of_copies, c);
    kv_pool_free_spare(&c->pool);
    pthread_mutex_lock(&c->pieces_mutex); /* no prompt is looked at meanwhile */
    kv_pieces_free(c->pieces);
    c->pieces = NULL;
    pthread_mutex_unlock(&c->pieces_mutex);
}
