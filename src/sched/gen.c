/* sched/gen.c: see gen.h. */
#include "sched/gen.h"

#include "sched/gen_private.h"
#include <stdlib.h>
#include <string.h>

static kv_gen_node *pack(const kv_gen_event *event) {
    size_t n = event->kind == KV_EVENT_DONE ? sizeof *event : offsetof(kv_gen_event, error);
    kv_gen_node *node = kv_alloc(sizeof *node + n);
    node->n = n;
    memcpy(node->event, event, n);
    return node;
}

static kv_gen_event unpack(const kv_gen_node *node) {
    kv_gen_event event;
    memset(&event, 0, sizeof event);
    memcpy(&event, node->event, node->n);
    return event;
}

kv_gen *kv_gen_new(const kv_gen_params *p) {
    KV_CHECK(p->sampler || p->n_predict == 0);
    kv_gen *g = kv_alloc(sizeof *g);
    atomic_init(&g->refs, 1);
    atomic_init(&g->cancelled, false);
    kv_tokens_append(&g->tokens, p->prompt, p->n_prompt);
    g->n_prompt = (int32_t)p->n_prompt;
    g->sampler = p->sampler;
    g->n_predict = p->n_predict;
    g->n_probs = p->n_probs > 0 ? p->n_probs : 0;
    g->id_slot = p->id_slot;
    g->post_sampling_probs = p->post_sampling_probs;
    g->cache_prompt = p->cache_prompt;
    g->special_pieces = p->special_pieces;
    g->t_max_predict_ms = p->t_max_predict_ms;
    g->group = p->group;
    g->scope = kv_strdup(p->scope ? p->scope : "");
    g->about = kv_strdup(p->about);
    if (p->n_hints > 0) {
        g->n_hints = p->n_hints;
        g->hints = kv_alloc((size_t)p->n_hints * sizeof *g->hints);
        memcpy(g->hints, p->hints, (size_t)p->n_hints * sizeof *g->hints);
    }
    kv_text_init(&g->text, p->stops, p->n_stops, p->n_indent);
    g->run.slot = -1;
    pthread_mutex_init(&g->mutex, NULL);
    g->wake = p->wake;
    g->wake_ctx = p->wake_ctx;
    /* Here, and not before the first sample: a long prompt takes its time, and this is no engine thread. */
    if (g->sampler && p->n_prompt)
        g->prime_status = kv_sampler_prime(g->sampler, g->tokens.data, g->tokens.len, &g->prime_error);
    return g;
}

void kv_gen_add_hint(kv_gen *g, int32_t position, kv_place_kind kind) {
    const kv_hint hint = {.position = position, .kind = kind};
    for (int i = 0; i < g->n_hints; i++) {
        if (g->hints[i].position != position) continue;
        kv_hint_join(&g->hints[i], &hint);
        return;
    }
    if (g->n_hints >= KV_GEN_HINTS) return;
    g->hints = kv_realloc(g->hints, (size_t)(g->n_hints + 1) * sizeof *g->hints);
    g->hints[g->n_hints++] = hint;
}

void kv_gen_ref(kv_gen *g) {
    atomic_fetch_add(&g->refs, 1);
}

void kv_gen_unref(kv_gen *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) return;
    free(g->scope);
    free(g->about);
    free(g->hints);
    for (kv_gen_node *n = g->head, *next; n; n = next) {
        kv_gen_event event = unpack(n);
        next = n->next;
        kv_gen_event_free(&event);
        free(n);
    }
    kv_lookup_free(g->run.lookup);
    kv_sampler_free(g->sampler);
    kv_text_free(&g->text);
    kv_tokens_free(&g->tokens);
    free(g->run.match);
    free(g->run.led);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

void kv_gen_event_free(kv_gen_event *e) {
    free(e->text);
    free(e->top);
    free(e->stop_word);
    e->text = NULL;
    e->top = NULL;
    e->stop_word = NULL;
}

void kv_gen_push(kv_gen *g, const kv_gen_event *event) {
    kv_gen_node *node = pack(event);
    pthread_mutex_lock(&g->mutex);
    if (event->kind == KV_EVENT_PROGRESS && g->progress) {
        /* nobody has read the older one: it is worth nothing any more */
        memcpy(g->progress->event, node->event, node->n);
        free(node);
    } else {
        if (g->tail) g->tail->next = node;
        else g->head = node;
        g->tail = node;
        if (event->kind == KV_EVENT_PROGRESS) g->progress = node;
    }
    if (g->wake) g->wake(g->wake_ctx);
    pthread_mutex_unlock(&g->mutex);
}

bool kv_gen_next(kv_gen_event *out, kv_gen *g) {
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&g->mutex);
    kv_gen_node *node = g->head;
    if (node) {
        g->head = node->next;
        if (!g->head) g->tail = NULL;
        if (g->progress == node) g->progress = NULL;
    }
    pthread_mutex_unlock(&g->mutex);
    if (!node) return false;
    *out = unpack(node);
    free(node);
    return true;
}

void kv_gen_cancel(kv_gen *g) {
    atomic_store(&g->cancelled, true);
}

void kv_gen_detach(kv_gen *g) {
    pthread_mutex_lock(&g->mutex);
    g->wake = NULL;
    pthread_mutex_unlock(&g->mutex);
}
