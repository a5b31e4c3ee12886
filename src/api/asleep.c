#include "api/asleep.h"

#include <pthread.h>
#include <stdlib.h>

#include "api/endpoints.h"
#include "api/ollama/ollama.h"

struct kv_asleep {
    pthread_mutex_t mutex;
    kv_buf page[KV_ASLEEP_PAGES]; /* JSON bodies */
    kv_metrics_input metrics;     /* its cache leads to the next member */
    kv_cache_stats cache;
};

kv_asleep *kv_asleep_new(void) {
    kv_asleep *a = kv_alloc(sizeof *a);
    pthread_mutex_init(&a->mutex, NULL);
    return a;
}

void kv_asleep_free(kv_asleep *a) {
    if (!a) return;
    for (int i = 0; i < KV_ASLEEP_PAGES; i++) kv_buf_free(&a->page[i]);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

void kv_asleep_note(kv_asleep *a, const kv_app *app) {
    kv_buf page[KV_ASLEEP_PAGES] = {{0}};
    kv_metrics_input in = {0};
    kv_cache_stats cache = {0};
    kv_props_write(&page[KV_ASLEEP_PROPS], app, true, NULL);
    kv_models_write(&page[KV_ASLEEP_MODELS], app);
    kv_slots_write(&page[KV_ASLEEP_SLOTS], NULL, app, true);
    kv_ollama_facts_write(&page[KV_ASLEEP_OLLAMA], app);
    kv_metrics_collect(&in, &cache, app);
    /* what goes with model and context */
    in.asleep = true;
    in.n_sleeps++;
    in.bytes_context = in.bytes_weights = 0;
    in.sched.cells_used = in.sched.n_processing = in.sched.n_waiting = 0;
    pthread_mutex_lock(&a->mutex);
    for (int i = 0; i < KV_ASLEEP_PAGES; i++) {
        kv_buf_free(&a->page[i]);
        a->page[i] = page[i];
    }
    a->metrics = in;
    a->cache = cache;
    pthread_mutex_unlock(&a->mutex);
}

void kv_asleep_note_cache(kv_asleep *a, const kv_cache_stats *stats) {
    pthread_mutex_lock(&a->mutex);
    a->cache = *stats;
    pthread_mutex_unlock(&a->mutex);
}

void kv_asleep_get_page(kv_buf *out, kv_asleep *a, kv_asleep_page page) {
    pthread_mutex_lock(&a->mutex);
    kv_buf_add(out, a->page[page].data, a->page[page].len);
    pthread_mutex_unlock(&a->mutex);
}

void kv_asleep_get_metrics(kv_metrics_input *out, kv_cache_stats *cache, kv_asleep *a) {
    pthread_mutex_lock(&a->mutex);
    *out = a->metrics;
    *cache = a->cache;
    pthread_mutex_unlock(&a->mutex);
    if (out->cache) out->cache = cache;
}
