#include "api/ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"

/* A restore moves some GB/s, so a long conversation takes tenths of a second; a first token may take minutes. */
static const double restore_bounds[KV_HISTOGRAM_BOUNDS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                           0.1,    0.25,  0.5,    1,     2.5,  5,     10};
static const double first_token_bounds[KV_HISTOGRAM_BOUNDS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                               2.5,  5,     10,   20,  40,   80,  160};

struct kv_ledger {
    pthread_mutex_t mutex; /* guards the rest; a leaf */
    kv_ledger_totals totals;
    kv_ledger_miss miss[KV_LEDGER_MISSES]; /* a ring: the k-th is at k % KV_LEDGER_MISSES */
    char *scope[KV_LEDGER_MISSES];         /* owned; each miss's */
    uint64_t n_misses;
};

kv_ledger *kv_ledger_new(void) {
    kv_ledger *l = kv_alloc(sizeof *l);
    pthread_mutex_init(&l->mutex, NULL);
    l->totals.restore.bounds = restore_bounds;
    l->totals.first_token.bounds = first_token_bounds;
    return l;
}

void kv_ledger_free(kv_ledger *l) {
    if (!l) return;
    for (int i = 0; i < KV_LEDGER_MISSES; i++) {
        free(l->miss[i].text);
        free(l->miss[i].hint);
        free(l->scope[i]);
    }
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

static void observe(kv_histogram *h, double seconds) {
    int i = 0;
    while (i < KV_HISTOGRAM_BOUNDS && seconds > h->bounds[i]) i++;
    h->count[i]++;
    h->n++;
    h->sum += seconds;
}

static char *shortened(const char *text) {
    size_t n = strlen(text);
    return kv_strndup(text, n > KV_LEDGER_TEXT_MAX ? kv_utf8_complete(text, KV_LEDGER_TEXT_MAX) : n);
}

void kv_ledger_add(kv_ledger *l, const char *id, const char *scope, const kv_account *a, const char *text,
                   const char *hint) {
    if (!l) return;
    char *copy = text ? shortened(text) : NULL, *advice = hint ? shortened(hint) : NULL;
    char *whose = kv_strdup(scope ? scope : "");
    pthread_mutex_lock(&l->mutex);
    l->totals.engine += (uint64_t)a->engine;
    l->totals.ram += (uint64_t)a->ram;
    l->totals.disk += (uint64_t)a->disk;
    l->totals.computed += (uint64_t)a->computed;
    l->totals.respelled += (uint64_t)a->respelled;
    l->totals.n_miss[a->miss]++;
    if (a->ram + a->disk > 0) observe(&l->totals.restore, a->restore_ms / 1e3);
    if (a->miss != KV_MISS_NONE) {
        uint64_t at = l->n_misses++ % KV_LEDGER_MISSES;
        kv_ledger_miss *m = &l->miss[at];
        char *old = m->text, *old_hint = m->hint, *old_scope = l->scope[at];
        *m = (kv_ledger_miss){.time = kv_wall_seconds(), .account = *a, .text = copy, .hint = advice};
        snprintf(m->id, sizeof m->id, "%s", id);
        l->scope[at] = whose;
        copy = old;
        advice = old_hint;
        whose = old_scope;
    }
    pthread_mutex_unlock(&l->mutex);
    free(copy);
    free(advice);
    free(whose);
}

void kv_ledger_forget_texts(kv_ledger *l, const char *scope) {
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    for (int i = 0; i < KV_LEDGER_MISSES; i++) {
        kv_ledger_miss *m = &l->miss[i];
        if ((!m->text && !m->hint) || (scope && strcmp(l->scope[i], scope) != 0)) continue;
        free(m->text);
        free(m->hint);
        m->text = m->hint = NULL;
    }
    pthread_mutex_unlock(&l->mutex);
}

void kv_ledger_canonicalised(kv_ledger *l, kv_rules rules) {
    if (!l || !rules) return;
    pthread_mutex_lock(&l->mutex);
    for (int r = 0; r < KV_RULE_COUNT; r++)
        if (kv_canonical_has(rules, (kv_rule)r)) l->totals.n_canonicalised[r]++;
    pthread_mutex_unlock(&l->mutex);
}

void kv_ledger_first_token(kv_ledger *l, double ms) {
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    observe(&l->totals.first_token, ms / 1e3);
    pthread_mutex_unlock(&l->mutex);
}

void kv_ledger_get(kv_ledger_totals *out, kv_ledger *l) {
    *out = (kv_ledger_totals){.restore.bounds = restore_bounds, .first_token.bounds = first_token_bounds};
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    *out = l->totals;
    pthread_mutex_unlock(&l->mutex);
}

bool kv_ledger_find(kv_ledger_miss *out, kv_ledger *l, const char *id) {
    *out = (kv_ledger_miss){0};
    if (!l) return false;
    bool found = false;
    pthread_mutex_lock(&l->mutex);
    uint64_t kept = l->n_misses < KV_LEDGER_MISSES ? l->n_misses : KV_LEDGER_MISSES;
    for (uint64_t i = 1; i <= kept && !found; i++) {
        const kv_ledger_miss *m = &l->miss[(l->n_misses - i) % KV_LEDGER_MISSES];
        found = !id || strcmp(m->id, id) == 0;
        if (!found) continue;
        *out = *m;
        out->text = kv_strdup(m->text);
        out->hint = kv_strdup(m->hint);
    }
    pthread_mutex_unlock(&l->mutex);
    return found;
}
