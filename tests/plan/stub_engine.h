/* tests/plan/stub_engine.h: an engine that computes nothing and costs what a table says, on a virtual clock. */
#ifndef KV_TESTS_PLAN_STUB_ENGINE_H
#define KV_TESTS_PLAN_STUB_ENGINE_H

#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* µs of a decode of n tokens at depth d: call + n × token (× slow below 64 tokens) + n × d × depth / 1000 */
typedef struct stub_cost {
    double call, token, depth, slow;
} stub_cost;

typedef struct stub_model {
    kv_model base;
    kv_clock_virtual clock;
    stub_cost cost[2];       /* without and with flash attention */
    double chunk_512_factor; /* time of batches of at least 512 tokens, relative; 0 = 1 */
    bool refuse[2];          /* engines of this setting cannot be made */
    int fail_after;          /* decodes that succeed, over all engines; 0 = all */
    int n_engines, n_decodes, n_alive;
    int64_t first_timed_us;
    const char *backends;
    uint64_t cell, window_cell, state, compute, compute_cell;
    kv_memory_kind memory;
    int32_t n_window;
} stub_model;

typedef struct stub_engine {
    kv_engine base;
    kv_pos end;
} stub_engine;

static stub_model *stub_of(kv_engine *e) {
    return (stub_model *)e->model;
}

static void stub_engine_free(kv_engine *e) {
    stub_of(e)->n_alive--;
    free(e);
}

static kv_status stub_decode(kv_engine *e, const kv_batch *b, kv_error *err) {
    stub_model *m = stub_of(e);
    stub_engine *s = (stub_engine *)e;
    if (b->n > e->info.n_batch || b->pos[0] != s->end || s->end + b->n > e->info.n_ctx) abort();
    if (m->fail_after && m->n_decodes >= m->fail_after) return kv_fail(err, KV_ENGINE_DAMAGED, "stub");
    const stub_cost *c = &m->cost[e->info.flash_attn];
    double token = b->n < 64 && c->slow > 0 ? c->token * c->slow : c->token;
    double us = c->call + b->n * (token + s->end * c->depth / 1000);
    if (b->n >= 512 && m->chunk_512_factor > 0) us *= m->chunk_512_factor;
    m->clock.us += (int64_t)us;
    m->n_decodes++;
    s->end += b->n;
    return KV_OK;
}

static const float *stub_logits(kv_engine *e, int row) {
    static const float none[1] = {0};
    (void)e, (void)row;
    return none;
}

static void stub_clear(kv_engine *e) {
    ((stub_engine *)e)->end = 0;
}

static const kv_engine_ops stub_engine_ops = {
    .free = stub_engine_free, .decode = stub_decode, .logits = stub_logits, .clear = stub_clear};

static kv_status stub_engine_new(kv_engine **out, kv_model *model, const kv_engine_params *p, kv_error *err) {
    stub_model *m = (stub_model *)model;
    bool fa = p->flash_attn == KV_FA_ON;
    *out = NULL;
    if (m->refuse[fa]) return kv_fail(err, KV_ENGINE, "stub refuses flash attention %s", fa ? "on" : "off");
    stub_engine *e = kv_alloc(sizeof *e);
    e->base = (kv_engine){.ops = &stub_engine_ops, .model = model};
    e->base.info = (kv_engine_info){.memory = m->memory,
                                    .n_ctx = p->n_ctx,
                                    .n_slots = p->n_slots,
                                    .n_batch = p->n_batch,
                                    .flash_attn = fa,
                                    .n_window = m->n_window,
                                    .bytes_per_cell = m->cell,
                                    .bytes_per_window_cell = m->window_cell,
                                    .bytes_recurrent = m->state,
                                    .bytes_compute = m->compute + m->compute_cell * (uint64_t)p->n_ctx,
                                    .backends = m->backends};
    m->n_engines++;
    m->n_alive++;
    *out = &e->base;
    return KV_OK;
}

static const kv_model_ops stub_model_ops = {.engine_new = stub_engine_new};

static void stub_init(stub_model *m) {
    *m = (stub_model){.backends = "CPU (stub)", .cell = 1000};
    m->base.ops = &stub_model_ops;
    m->base.info = (kv_model_info){.name = "stub",
                                   .arch = "stub",
                                   .desc = "stub 1B",
                                   .n_vocab = 1000,
                                   .n_ctx_train = 8192,
                                   .n_head = 8,
                                   .n_params = 1000000000,
                                   .size_bytes = 500000000};
    kv_clock_virtual_init(&m->clock, 1000);
}

#endif
