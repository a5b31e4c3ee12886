/* api/asleep.h: what the server says of its model while that is unloaded: /props, /v1/models, /slots and the numbers
 * behind /metrics and /kvasir/cache, noted before it falls asleep.
 *
 *   main thread: kv_asleep_note ─► the gate closes ─► engine's thread: kv_asleep_note_cache ─► connections read
 *
 * Thread rule: any thread; one mutex inside, a leaf.
 */
#ifndef KV_API_ASLEEP_H
#define KV_API_ASLEEP_H

#include "api/admin/metrics.h"

typedef struct kv_asleep kv_asleep;
struct kv_app;

typedef enum kv_asleep_page {
    KV_ASLEEP_PROPS,
    KV_ASLEEP_MODELS,
    KV_ASLEEP_SLOTS,
    KV_ASLEEP_OLLAMA,
    KV_ASLEEP_PAGES
} kv_asleep_page;

kv_asleep *kv_asleep_new(void);
void kv_asleep_free(kv_asleep *a);
/* The model is there, and nobody is inside the gate. */
void kv_asleep_note(kv_asleep *a, const struct kv_app *app);
/* The cache as it is once all is written and memory was given back. */
void kv_asleep_note_cache(kv_asleep *a, const kv_cache_stats *stats);
/* Appends the page. */
void kv_asleep_get_page(kv_buf *out, kv_asleep *a, kv_asleep_page page);
/* All but the ledger and what belongs to the moment. *cache is filled, and out->cache leads to it where there is one. */
void kv_asleep_get_metrics(kv_metrics_input *out, kv_cache_stats *cache, kv_asleep *a);

#endif
