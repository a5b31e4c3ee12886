/* api/admin/metrics.h: counters as Prometheus text: llama-server's names under `llamacpp:`, kvasir's own under
 * `kvasir_`.
 *
 * Thread rule: none; the caller brings the numbers.
 */
#ifndef KV_API_ADMIN_METRICS_H
#define KV_API_ADMIN_METRICS_H

#include "api/ledger.h"
#include "base/buf.h"
#include "sched/sched.h"

typedef struct kv_metrics_input {
    kv_sched_stats sched;
    kv_ledger_totals ledger;     /* from kv_ledger_get, also where there is none */
    const kv_cache_stats *cache; /* NULL without a cache */
    int32_t n_slots, n_ctx;
    uint64_t bytes_rss, bytes_context, bytes_weights;
    int64_t started_at, now;      /* Unix time */
    const char *version, *engine; /* may be NULL */
    bool asleep;
    uint64_t n_sleeps;
    uint64_t n_embedded, n_embed_calls; /* tokens of texts whose vectors or scores were computed; engine calls */
    double embed_seconds;
} kv_metrics_input;

struct kv_app;
/* The numbers of a model that is there, without the ledger and those of the moment. *cache is filled where there is a
 * cache, and out->cache leads to it then. */
void kv_metrics_collect(kv_metrics_input *out, kv_cache_stats *cache, const struct kv_app *app);
/* Adds the counters of a scheduler that is over to those of its predecessors. */
void kv_metrics_add(kv_sched_stats *sum, const kv_sched_stats *more);

void kv_metrics_render(kv_buf *out, const kv_metrics_input *in);

#endif
