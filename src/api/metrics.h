/* api/metrics.h: counters as Prometheus text: llama-server's names under `llamacpp:`, kvasir's own under `kvasir_`.
 *
 * Thread rule: none; the caller brings the numbers.
 */
#ifndef KV_API_METRICS_H
#define KV_API_METRICS_H

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
} kv_metrics_input;

void kv_metrics_render(kv_buf *out, const kv_metrics_input *in);

#endif
