/* tests/sched/world.h: a scheduler on a fake engine under a virtual clock, and requests that remember what came back.
 *
 * One thread, no sleeping: time passes only inside kv_engine_decode, by the fake's cost model, or when a test adds it.
 */
#ifndef KV_TESTS_SCHED_WORLD_H
#define KV_TESTS_SCHED_WORLD_H

#include "testing.h"

#include "../store/rig.h"
#include "engine/engine_fake.h"
#include "sched/sched_private.h"

static const kv_memory_kind all_kinds[] = {KV_MEMORY_FULL,          KV_MEMORY_WINDOW,    KV_MEMORY_HYBRID,
                                           KV_MEMORY_HYBRID_WINDOW, KV_MEMORY_RECURRENT, KV_MEMORY_WHOLE};
enum { N_KINDS = sizeof all_kinds / sizeof *all_kinds };

/* What goes wrong, by the number of the decode call. */
typedef struct trouble {
    dice d;
    int damage_one_in, no_cells_one_in, refuse_one_in, nan_one_in; /* 0 = never */
    uint64_t nan_at;                                               /* this call gives NaN; 0 = none does */
    kv_status always;                                              /* KV_OK, or what every call says */
} trouble;

typedef struct world {
    kv_clock_virtual clock;
    trouble trouble;
    kv_model *model;
    kv_engine *engine;
    kv_sched *sched;
    kv_io *io; /* with a cache; its jobs run one a step, or with `disk_is_slow` one in so many steps */
    kv_cache *cache;
    rig *disk; /* NULL: no store */
    int disk_is_slow, n_steps;
    bool ran_io; /* in the last step */
    bool owns_model;
} world;

typedef struct world_params {
    kv_fake_params fake;
    kv_engine_params engine;
    kv_sched_config sched;
    uint64_t cache_queue, cache_ram, cache_read; /* bytes; queue 0 = no cache */
    uint64_t path_bytes;                         /* of states and window parts along a path; 0 = the cache's own */
    uint64_t io_seed;                            /* 0 = jobs run in order */
    rig *disk;                                   /* borrowed; its store is open. NULL: no store */
} world_params;

static inline kv_status world_inject(void *ctx, uint64_t no) {
    trouble *t = ctx;
    if (t->nan_at && no == t->nan_at) return KV_NOT_NUMBERS;
    if (t->always != KV_OK) return t->always;
    if (t->damage_one_in && dice_one_in(&t->d, t->damage_one_in)) return KV_ENGINE_DAMAGED;
    if (t->no_cells_one_in && dice_one_in(&t->d, t->no_cells_one_in)) return KV_NO_CELLS;
    if (t->refuse_one_in && dice_one_in(&t->d, t->refuse_one_in)) return KV_ENGINE;
    if (t->nan_one_in && dice_one_in(&t->d, t->nan_one_in)) return KV_NOT_NUMBERS;
    return KV_OK;
}

static inline world_params world_defaults(kv_memory_kind kind) {
    world_params p = {0};
    kv_fake_params_defaults(&p.fake);
    kv_engine_params_defaults(&p.engine);
    kv_sched_config_defaults(&p.sched);
    p.fake.memory = kind;
    p.fake.chat_template = ""; /* no template: nothing to parse, loads at once */
    p.fake.n_window = 32;
    p.fake.cost.call_ns = 1000000;
    p.fake.cost.per_token_ns = 1000000;
    p.fake.cost.per_depth_ns = 0;
    p.engine.n_ctx = 2048;
    p.engine.n_slots = 4;
    p.engine.n_batch = 64 + 4;
    p.sched.block = 32;
    p.sched.chunk = 64;
    p.sched.min_chunk = 8;
    return p;
}

/* `w` stays where it is: clock and trouble are pointed to. */
static inline void world_load(world *w, world_params *p) {
    memset(w, 0, sizeof *w);
    kv_clock_virtual_init(&w->clock, 1000000);
    p->fake.clock = &w->clock;
    p->fake.inject = world_inject;
    p->fake.inject_ctx = &w->trouble;
    kv_error err = {0};
    if (kv_model_load_fake(&w->model, &p->fake, &err) != KV_OK) fail_msg("%s", err.message);
}

static inline int64_t world_seconds(void *ctx) {
    return kv_now_us(&((world *)ctx)->clock.base) / 1000000;
}

static inline void world_start(world *w, const world_params *p) {
    kv_error err = {0};
    if (kv_engine_new(&w->engine, w->model, &p->engine, &err) != KV_OK) fail_msg("%s", err.message);
    kv_sched_config cfg = p->sched;
    w->disk = p->disk;
    if (p->cache_queue) {
        w->io = kv_io_new_inline(p->io_seed);
        kv_cache_config cache = {.engine = kv_engine_get_info(w->engine),
                                 .block = cfg.block,
                                 .interval = 4 * cfg.block,
                                 .ns = {1, 2},
                                 .queue_bytes = p->cache_queue,
                                 .ram_bytes = p->cache_ram,
                                 .read_bytes = p->cache_read,
                                 .path_bytes = p->path_bytes,
                                 .exact_chunk = cfg.exact ? cfg.chunk : 0,
                                 .store = p->disk ? p->disk->store : NULL,
                                 .io = w->io,
                                 .clock = &w->clock.base};
        if (kv_cache_new(&w->cache, &cache, &err) != KV_OK) fail_msg("%s", err.message);
        cfg.cache = w->cache;
    }
    if (kv_sched_new(&w->sched, w->engine, &w->clock.base, &cfg, &err) != KV_OK) fail_msg("%s", err.message);
}

/* With a store: what waits is written first (flush), or not any more. The store itself stays open. */
static inline void world_end_with(world *w, bool flush) {
    kv_sched_free(w->sched);
    if (w->cache) {
        if (w->disk) kv_cache_flush(w->cache, flush ? INT64_MAX / 4 : 0);
        while (kv_io_run_one(w->io)) continue;
        kv_cache_self_check(w->cache);
        kv_cache_free(w->cache);
        kv_io_free(w->io);
        w->cache = NULL;
        w->io = NULL;
    }
    kv_engine_free(w->engine);
    w->sched = NULL;
    w->engine = NULL;
    w->disk = NULL;
}

static inline void world_end(world *w) {
    world_end_with(w, true);
}

static inline void world_open(world *w, world_params *p) {
    world_load(w, p);
    world_start(w, p);
}

static inline void world_close(world *w) {
    world_end(w);
    kv_model_free(w->model);
    w->model = NULL;
}

static inline bool counts_cells(const world *w) {
    return w->engine->info.memory != KV_MEMORY_RECURRENT;
}

/* A slot that waits for its stored state: its cells are promised and not in use yet. */
static inline bool restores(const world *w) {
    bool any = false;
    for (int i = 0; i < w->sched->n_slots; i++) any = any || w->sched->slots[i].restoring;
    return any;
}

/* One round with every check there is. */
static inline bool world_step(world *w) {
    bool did = kv_sched_step(w->sched);
    kv_sched_stats stats;
    kv_sched_self_check(w->sched);
    kv_sched_get_stats(&stats, w->sched);
    if (counts_cells(w) && restores(w)) assert_true(kv_fake_cells_used(w->engine) <= w->engine->info.n_ctx);
    else if (counts_cells(w)) assert_int_equal(stats.cells_used, kv_fake_cells_used(w->engine));
    bool turn = w->disk_is_slow < 2 || ++w->n_steps % w->disk_is_slow == 0;
    w->ran_io = w->io && (turn || !did) && kv_io_run_one(w->io);
    if (w->ran_io) did = true;
    if (!did && !kv_sched_idle(w->sched)) {
        kv_buf dump = {0};
        kv_sched_dump(&dump, w->sched);
        fail_msg("nothing to do, but not idle:\n%s", dump.data);
    }
    return did;
}

/* ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct request {
    kv_gen *gen;
    kv_tokens prompt;
    float temperature; /* 0 = greedy */
    uint32_t seed;
    kv_gen_params params; /* prompt, sampler and stops are filled in when it is submitted */
    const char *stops[4];
    kv_hint hints[3];
    /* what came */
    kv_tokens answer; /* every sampled token */
    kv_buf text;
    kv_finish finish; /* NONE = not over */
    kv_error error;
    char stop_word[32];
    kv_timings timings;
    int32_t progress;                         /* last n_processed */
    double first_ms, last_ms, longest_gap_ms; /* of tokens, on the virtual clock; first: since submit */
    int n_progress, n_woken;
} request;

static inline void request_woken(void *ctx) {
    ((request *)ctx)->n_woken++;
}

static inline void request_init(request *r, const kv_token *prompt, size_t n) {
    memset(r, 0, sizeof *r);
    kv_tokens_append(&r->prompt, prompt, n);
    r->params = (kv_gen_params){.n_predict = -1, .cache_prompt = true, .id_slot = -1, .t_max_predict_ms = -1};
}

static inline void request_init_text(request *r, const char *prompt) {
    request_init(r, NULL, 0);
    for (const char *c = prompt; *c; c++) kv_tokens_add(&r->prompt, (unsigned char)*c);
}

/* Places to come back to, some of them outside the prompt, in any order. */
static inline void request_hint(request *r, dice *d) {
    r->params.hints = r->hints;
    r->params.n_hints = dice_from(d, 0, 3);
    for (int i = 0; i < r->params.n_hints; i++)
        r->hints[i] = (kv_hint){.position = dice_from(d, 0, (int)r->prompt.len + 2),
                                .keep_seconds = dice_one_in(d, 3) ? dice_below(d, 99) : 0,
                                .kind = (kv_place_kind)dice_below(d, KV_PLACE_COUNT)};
}

static inline void request_free(request *r) {
    kv_gen_unref(r->gen);
    kv_tokens_free(&r->prompt);
    kv_tokens_free(&r->answer);
    kv_buf_free(&r->text);
}

/* Give it a generation. `sampler` NULL: the model's, by temperature and seed. */
static inline void request_make(request *r, world *w, kv_sampler *sampler) {
    kv_error err = {0};
    if (!sampler && r->params.n_predict != 0) {
        kv_sampling sampling;
        kv_sampling_defaults(&sampling);
        sampling.temperature = r->temperature;
        sampling.seed = r->seed;
        sampling.top_p = 1.0f; /* the fake's logits are steep: leave the draw something to choose from */
        sampling.min_p = 0;
        if (kv_sampler_new(&sampler, w->model, &sampling, NULL, &err) != KV_OK) fail_msg("%s", err.message);
    }
    r->params.prompt = r->prompt.data;
    r->params.n_prompt = r->prompt.len;
    r->params.sampler = sampler;
    r->params.stops = r->stops;
    while (r->params.n_stops < 4 && r->stops[r->params.n_stops]) r->params.n_stops++;
    r->params.wake = request_woken;
    r->params.wake_ctx = r;
    r->gen = kv_gen_new(&r->params);
}

static inline void request_submit(request *r, world *w) {
    kv_error err = {0};
    request_make(r, w, NULL);
    if (kv_sched_submit(w->sched, &r->gen, 1, &err) != KV_OK) fail_msg("%s", err.message);
}

static inline void request_take(request *r, kv_gen_event *e) {
    assert_int_equal(r->finish, KV_FINISH_NONE); /* nothing comes after DONE */
    r->timings = e->timings;
    switch (e->kind) {
    case KV_EVENT_PROGRESS:
        assert_int_equal(r->answer.len, 0);
        assert_int_equal(e->n_total, r->prompt.len);
        assert_true(e->n_processed >= r->progress && e->n_processed <= e->n_total && e->n_cache <= e->n_processed);
        r->progress = e->n_processed;
        r->n_progress++;
        break;
    case KV_EVENT_TOKEN: {
        kv_tokens_add(&r->answer, e->token);
        kv_buf_add(&r->text, e->text, e->n_text);
        assert_int_equal(e->timings.n_decoded, r->answer.len);
        assert_int_equal(e->n_top > 0, r->params.n_probs > 0);
        if (r->params.n_probs) assert_int_equal(e->chosen.token, e->token);
        double at = e->timings.decode_ms;
        if (r->answer.len == 1) r->first_ms = e->timings.queue_ms + e->timings.prompt_ms;
        else if (at - r->last_ms > r->longest_gap_ms) r->longest_gap_ms = at - r->last_ms;
        r->last_ms = at;
        break;
    }
    case KV_EVENT_DONE:
        r->finish = e->finish;
        r->error = e->error;
        snprintf(r->stop_word, sizeof r->stop_word, "%s", e->stop_word ? e->stop_word : "");
        break;
    }
}

static inline void request_read(request *r) {
    kv_gen_event e;
    while (r->gen && kv_gen_next(&e, r->gen)) {
        assert_true(r->n_woken > 0);
        request_take(r, &e);
        kv_gen_event_free(&e);
    }
}

/* Rounds until nothing is left to do; then everything that came is in the requests. */
static inline void world_finish(world *w, request *r, int n) {
    for (int steps = 0; world_step(w); steps++) {
        assert_true(steps < 1000000); /* no livelock */
        for (int i = 0; i < n; i++) request_read(&r[i]);
    }
    for (int i = 0; i < n; i++) {
        request_read(&r[i]);
        if (r[i].gen) assert_int_not_equal(r[i].finish, KV_FINISH_NONE);
    }
}

static inline void random_tokens(kv_tokens *out, dice *d, int n) {
    for (int i = 0; i < n; i++) kv_tokens_add(out, 'a' + dice_below(d, 26));
}

#endif
