/* sched/cost.c: see cost.h. */
#include "sched/cost.h"

#include <math.h>
#include <string.h>

void kv_cost_init(kv_cost *c, int32_t least) {
    memset(c, 0, sizeof *c);
    c->least = least;
}

static int class_of(int32_t n) {
    int k = 0;
    while (n > 1 && k < KV_COST_CLASSES - 1) {
        n /= 2;
        k++;
    }
    return k;
}

/* Upper bound for (n, depth) from an entry of at most that size class. */
static double scaled(const kv_cost_entry *e, int32_t n, int32_t depth) {
    double us = e->us;
    if (n > e->n) us *= (double)n / e->n;
    if (depth > e->depth) us *= (double)depth / e->depth;
    return us;
}

/* A single slow batch (a page fault, another process) must not lock a class out for ever: while smaller batches say
 * that it should cost less, its figure sinks towards theirs, and some day it is tried again. */
static void fade_larger(kv_cost *c, int k) {
    for (int j = k + 1; j < KV_COST_CLASSES; j++) {
        kv_cost_entry *e = &c->by_size[j];
        if (!e->n) continue;
        double bound = scaled(&c->by_size[k], e->n, e->depth);
        if (e->us > bound) e->us -= (e->us - bound) / 16;
    }
}

void kv_cost_observe(kv_cost *c, int32_t n, int32_t depth, int64_t us) {
    if (n < c->least || n < 1) return;
    if (depth < KV_COST_LEAST_DEPTH) depth = KV_COST_LEAST_DEPTH;
    int k = class_of(n);
    kv_cost_entry *e = &c->by_size[k];
    double before = e->n ? scaled(e, n, depth) : 0;
    e->us = (double)us >= before ? (double)us : before - (before - (double)us) / 4;
    e->last_us = us;
    e->n = n;
    e->depth = depth;
    fade_larger(c, k);
}

int64_t kv_cost_predict_us(const kv_cost *c, int32_t n, int32_t depth) {
    if (depth < KV_COST_LEAST_DEPTH) depth = KV_COST_LEAST_DEPTH;
    for (int k = class_of(n); k >= 0; k--) {
        const kv_cost_entry *e = &c->by_size[k];
        if (e->n) return (int64_t)ceil(scaled(e, n, depth));
    }
    return -1;
}

int64_t kv_cost_at_least_us(const kv_cost *c, int32_t n, int32_t depth) {
    const kv_cost_entry *e = &c->by_size[class_of(n)];
    if (!e->n) return -1;
    if (depth < KV_COST_LEAST_DEPTH) depth = KV_COST_LEAST_DEPTH;
    double us = (double)e->last_us;
    if (n < e->n) us *= (double)n / e->n;
    if (depth < e->depth) us *= (double)depth / e->depth;
    return (int64_t)us;
}
