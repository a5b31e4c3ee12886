#include "traffic_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_fake.h"
#include "sched/sched.h"

/* A token's cells in bytes, and what else a model keeps. Real ones are some hundred times as large; what counts is how they
 * stand to each other. A hybrid's state takes as much as the cells of 1,536 tokens (48 MiB to 32 KiB: Qwen3.5's sizes);
 * five of six layers have a window, as Gemma's do. */
enum { CELL = 128, STATE = 1536 * CELL, GLOBAL_CELL = 32, WINDOW_CELL = 160 };
enum { BLOCK = 256, WINDOW = 512, CONTEXT = 65536, CHUNK = 512, SLOTS = 4 };
#define SECOND        1000000ll
#define SLEEPS_AFTER  (20 * 60 * SECOND) /* idle */
#define RESTART_EVERY (3 * 3600 * SECOND)

/* ── what was said before ──────────────────────────────────────────────────────────────────────────────────────── */

/* The set of all prefixes of all sequences, each by a hash of its tokens. */
typedef struct said {
    uint64_t *slots; /* 0 = free */
    size_t room, n;  /* room: a power of two */
} said;

static uint64_t longer(uint64_t prefix, kv_token token) {
    uint64_t z = prefix * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t)token + 1;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return z ? z : 1;
}

static bool has(const said *s, uint64_t h) {
    size_t i = s->room ? h & (s->room - 1) : 0;
    while (s->room && s->slots[i] && s->slots[i] != h) i = (i + 1) & (s->room - 1);
    return s->room && s->slots[i] == h;
}

static void put(said *s, uint64_t h) {
    if (2 * (s->n + 1) > s->room) {
        said larger = {.room = s->room ? s->room * 2 : 1 << 16};
        larger.slots = kv_alloc(larger.room * sizeof *larger.slots);
        for (size_t i = 0; i < s->room; i++)
            if (s->slots[i]) put(&larger, s->slots[i]);
        free(s->slots);
        *s = larger;
    }
    size_t i = h & (s->room - 1);
    while (s->slots[i] && s->slots[i] != h) i = (i + 1) & (s->room - 1);
    s->n += s->slots[i] == 0;
    s->slots[i] = h;
}

static uint64_t root_of(const char *scope) {
    uint64_t h = 1;
    for (; *scope; scope++) h = longer(h, *scope);
    return h;
}

/* ── the server ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct live {
    day_request r;
    kv_gen *gen;
    uint64_t path; /* of prompt and answer so far, in `said` */
    kv_tokens answer;
    int32_t n_new;
    bool hung_up;
} live;

typedef struct server {
    const run_params *p;
    run_result *out;
    kv_clock_virtual clock;
    kv_model *model;
    kv_engine *engine;
    kv_store *store;
    kv_io *io;
    kv_cache *cache;
    kv_sched *sched;
    live *live; /* owned, n_live */
    int n_live, cap_live;
    said said;
    int64_t restarted_us;
    bool failed;
} server;

static void fail(server *s, const char *what, const kv_error *err) {
    if (!s->failed) fprintf(stderr, "traffic: %s: %s\n", what, err->message);
    s->failed = true;
}

static int64_t seconds(void *clock) {
    return kv_now_us(clock) / SECOND;
}

static bool load_model(server *s) {
    const int32_t shrink = s->p->day.shrink;
    bool windowed = kv_memory_has_window(s->p->memory);
    kv_fake_params fake;
    kv_fake_params_defaults(&fake);
    fake.memory = s->p->memory;
    fake.chat_template = "";
    fake.end_one_in = -1;
    fake.n_window = WINDOW / shrink;
    fake.bytes_per_cell = (windowed ? GLOBAL_CELL : CELL) * shrink;
    fake.bytes_per_window_cell = WINDOW_CELL * shrink;
    fake.bytes_recurrent = STATE;
    /* About a 4B model on a small GPU: 600 tokens a second of prefill, half of that at 16K; 60 of decoding. */
    fake.cost = (kv_fake_cost){.call_ns = 15000000,
                               .per_token_ns = 1600000ll * shrink,
                               .per_depth_ns = 100ll * shrink * shrink,
                               .state_kib_ns = 2000,
                               .slow_factor = 1.0};
    fake.clock = &s->clock;
    kv_error err = {0};
    if (kv_model_load_fake(&s->model, &fake, &err) == KV_OK) return true;
    fail(s, "model", &err);
    return false;
}

static bool open_engine(server *s, int32_t n_ctx_served) {
    const int32_t shrink = s->p->day.shrink;
    kv_engine_params engine;
    kv_sched_config sched;
    kv_error err = {0};
    kv_engine_params_defaults(&engine);
    engine.n_ctx = CONTEXT / shrink;
    engine.n_slots = SLOTS;
    engine.n_batch = CHUNK / shrink + SLOTS;
    if (kv_engine_new(&s->engine, s->model, &engine, &err) != KV_OK) goto failed;
    if (!s->cache) {
        kv_cache_config cache = {.engine = kv_engine_get_info(s->engine),
                                 .block = BLOCK / shrink,
                                 .interval = s->p->day.shrink > 1 ? 2048 / s->p->day.shrink : 0,
                                 .only_intervals = s->p->fixed_intervals,
                                 .ns = {1, 2},
                                 .queue_bytes = 256u << 20,
                                 .read_bytes = 64u << 20,
                                 .store = s->store,
                                 .io = s->io,
                                 .clock = &s->clock.base};
        if (kv_cache_new(&s->cache, &cache, &err) != KV_OK) goto failed;
    }
    kv_sched_config_defaults(&sched);
    sched.n_ctx_served = n_ctx_served;
    sched.block = BLOCK / shrink;
    sched.chunk = CHUNK / shrink;
    sched.cache = s->cache;
    sched.evict_idle = true; /* as in a server with a disk cache */
    if (kv_sched_new(&s->sched, s->engine, &s->clock.base, &sched, &err) == KV_OK) return true;
failed:
    fail(s, "engine", &err);
    return false;
}

static void close_engine(server *s) {
    kv_sched_stats stats;
    if (s->sched) {
        kv_sched_get_stats(&stats, s->sched);
        s->out->n_computed += stats.n_prompt_computed;
        s->out->n_preempted += stats.n_preempted;
    }
    kv_sched_free(s->sched);
    s->sched = NULL;
    while (s->io && kv_io_run_one(s->io)) continue;
    kv_engine_free(s->engine);
    s->engine = NULL;
}

static bool open_store(server *s) {
    kv_error err = {0};
    const kv_store_config cfg = {.dir = s->p->dir,
                                 .budget = s->p->budget,
                                 .now = seconds,
                                 .now_ctx = &s->clock.base,
                                 .order = s->p->evicts_by_use ? KV_STORE_BY_USE : KV_STORE_BY_WORTH};
    s->io = kv_io_new_inline(0);
    if (kv_store_open(&s->store, &cfg, &err) == KV_OK) return true;
    fail(s, s->p->dir, &err);
    return false;
}

static void close_store(server *s) {
    kv_store_stats stats;
    if (s->cache) kv_cache_flush(s->cache, INT64_MAX / 4);
    kv_cache_free(s->cache);
    s->cache = NULL;
    if (s->store) {
        kv_store_get_stats(&stats, s->store);
        s->out->bytes_written += stats.bytes_written;
        s->out->n_evicted += stats.n_evicted;
        s->out->bytes_stored = stats.bytes;
        memcpy(s->out->bytes_by_kind, stats.by_kind_bytes, sizeof s->out->bytes_by_kind);
    }
    kv_store_close(s->store);
    s->store = NULL;
    kv_io_free(s->io);
    s->io = NULL;
}

/* Nothing runs: the process ends and begins anew, or the model goes while the cache stays. */
static bool restart(server *s, int32_t n_ctx_served) {
    close_engine(s);
    close_store(s);
    s->restarted_us = s->clock.us;
    s->out->n_restarts++;
    return open_store(s) && open_engine(s, n_ctx_served);
}

static bool fall_asleep(server *s, int32_t n_ctx_served) {
    close_engine(s);
    kv_cache_settle(s->cache, INT64_MAX / 4);
    kv_cache_let_go_of_copies(s->cache);
    s->out->n_sleeps++;
    return open_engine(s, n_ctx_served);
}

/* ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Counts and remembers the prompt, as far as it will be computed. */
static void remember(server *s, live *l) {
    size_t n = l->r.hang_up_at ? (size_t)l->r.hang_up_at : l->r.n_prompt;
    uint64_t h = root_of(l->r.scope);
    for (size_t i = 0; i < n; i++) {
        h = longer(h, l->r.prompt[i]);
        if (l->n_new == 0 && has(&s->said, h)) continue;
        l->n_new++;
        put(&s->said, h);
    }
    l->path = h;
}

static run_share *share_of(run_result *out, const char *kind) {
    int i = 0;
    while (i < RUN_KINDS - 1 && out->by_kind[i].kind && strcmp(out->by_kind[i].kind, kind) != 0) i++;
    out->by_kind[i].kind = kind;
    return &out->by_kind[i];
}

static void ignore(void *ctx) {
    (void)ctx;
}

/* As api/places.c tells them. */
static int places(kv_hint *hints, const day_request *r) {
    int n = 0;
    for (int i = 0; i < r->n_starts; i++) {
        kv_place_kind kind = i == r->n_starts - 1   ? KV_PLACE_GENERATION
                             : i == 1               ? KV_PLACE_SYSTEM_END
                             : i == r->n_starts - 2 ? KV_PLACE_LAST_MESSAGE
                                                    : KV_PLACE_MESSAGE;
        if (r->starts[i] > 0) hints[n++] = (kv_hint){.position = r->starts[i], .kind = kind};
    }
    return n;
}

static bool submit(server *s, const day_request *r) {
    kv_sampling sampling;
    kv_sampler *sampler = NULL;
    kv_error err = {0};
    kv_sampling_defaults(&sampling);
    sampling.temperature = r->seed ? 1.0f : 0;
    sampling.seed = r->seed;
    if (kv_sampler_new(&sampler, s->model, &sampling, NULL, &err) != KV_OK) goto failed;
    kv_hint *hints = kv_alloc((size_t)r->n_starts * sizeof *hints);
    int n_hints = places(hints, r);
    kv_gen_params params = {.prompt = r->prompt,
                            .n_prompt = r->n_prompt,
                            .sampler = sampler,
                            .n_predict = r->n_predict,
                            .cache_prompt = true,
                            .scope = r->scope,
                            .hints = hints,
                            .n_hints = n_hints,
                            .id_slot = -1,
                            .t_max_predict_ms = -1,
                            .wake = ignore};
    if (s->n_live == s->cap_live) {
        s->cap_live = s->cap_live * 2 + 8;
        s->live = kv_realloc(s->live, (size_t)s->cap_live * sizeof *s->live);
    }
    live *l = &s->live[s->n_live++];
    *l = (live){.r = *r, .gen = kv_gen_new(&params)};
    free(hints);
    remember(s, l);
    if (kv_sched_submit(s->sched, &l->gen, 1, &err) == KV_OK) return true;
failed:
    fail(s, "a request", &err);
    return false;
}

/* Greedy answers are what the naive model says, which knows no cells. */
static void check(server *s, const live *l) {
    int one_in = s->p->check_one_in;
    if (!one_in || s->out->n_requests % (uint64_t)one_in || l->r.seed || !l->answer.len) return;
    kv_tokens naive = {0};
    kv_fake_reference_greedy(&naive, s->model, l->r.prompt, l->r.n_prompt, (int32_t)l->answer.len);
    bool same = naive.len == l->answer.len && memcmp(naive.data, l->answer.data, naive.len * sizeof *naive.data) == 0;
    s->out->n_checked++;
    s->out->n_wrong += !same;
    kv_tokens_free(&naive);
}

static void count(server *s, const live *l, const kv_timings *t) {
    run_result *out = s->out;
    run_share *of = share_of(out, l->r.kind);
    out->n_requests++;
    out->n_prompt += l->r.n_prompt;
    out->n_new += (uint64_t)l->n_new;
    out->n_answer += l->answer.len;
    of->n_requests++;
    of->n_prompt += l->r.n_prompt;
    of->n_new += (uint64_t)l->n_new;
    of->n_computed += (uint64_t)t->n_prompt;
    if (s->p->tells)
        fprintf(stderr, "%8.1f s  session %3d %-9s prompt %5zu  new %5d  computed %5d  %s at %d%s\n",
                (double)s->clock.us / 1e6, l->r.session, l->r.kind, l->r.n_prompt, (int)l->n_new, (int)t->n_prompt,
                kv_miss_name(t->miss), (int)t->miss_position, l->hung_up ? "  hung up" : "");
}

/* True when it is over. */
static bool read_events(server *s, day *d, live *l) {
    kv_gen_event e;
    bool over = false;
    while (!over && kv_gen_next(&e, l->gen)) {
        if (e.kind == KV_EVENT_PROGRESS && l->r.hang_up_at && e.n_processed >= l->r.hang_up_at && !l->hung_up) {
            l->hung_up = true;
            kv_gen_cancel(l->gen);
        }
        if (e.kind == KV_EVENT_TOKEN && !l->r.hang_up_at) {
            kv_tokens_add(&l->answer, e.token);
            l->path = longer(l->path, e.token);
            put(&s->said, l->path);
        }
        over = e.kind == KV_EVENT_DONE;
        if (over && e.finish == KV_FINISH_ERROR) fail(s, "an answer", &e.error);
        if (over) {
            check(s, l);
            count(s, l, &e.timings);
        }
        kv_gen_event_free(&e);
    }
    if (!over) return false;
    day_answer(d, &l->r, l->answer.data, l->answer.len, s->clock.us);
    kv_gen_unref(l->gen);
    kv_tokens_free(&l->answer);
    return true;
}

static void harvest(server *s, day *d) {
    for (int i = 0; i < s->n_live;) {
        if (read_events(s, d, &s->live[i])) s->live[i] = s->live[--s->n_live];
        else i++;
    }
}

/* ── the day ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Nothing is left to do now: time goes on to the next request. */
static bool rest(server *s, const day *d) {
    int64_t due = day_due_us(d);
    if (due == INT64_MAX || s->n_live) {
        kv_error err = {0};
        kv_fail(&err, KV_INTERNAL, "nothing to do, but %d requests are not answered", s->n_live);
        fail(s, "the server", &err);
        return false;
    }
    bool ok = true;
    if (due - s->clock.us > SLEEPS_AFTER) ok = fall_asleep(s, day_longest(d));
    else if (s->clock.us - s->restarted_us > RESTART_EVERY) ok = restart(s, day_longest(d));
    if (due > s->clock.us) s->clock.us = due;
    return ok;
}

static void serve(server *s, day *d) {
    day_request r;
    while (!s->failed) {
        while (day_next(&r, d, s->clock.us))
            if (!submit(s, &r)) return;
        bool did = kv_sched_step(s->sched);
        while (kv_io_run_one(s->io)) did = true;
        harvest(s, d);
        if (did) continue;
        if (day_is_over(d)) return;
        if (day_due_us(d) > s->clock.us && !rest(s, d)) return;
    }
}

bool run_day(run_result *out, const run_params *p) {
    server s = {.p = p, .out = out};
    day *d = day_new(&p->day);
    *out = (run_result){0};
    kv_clock_virtual_init(&s.clock, SECOND);
    s.restarted_us = s.clock.us;
    if (load_model(&s) && open_store(&s) && open_engine(&s, day_longest(d))) serve(&s, d);
    out->hours = (double)s.clock.us / 3600e6;
    close_engine(&s);
    for (int i = 0; i < s.n_live; i++) {
        kv_gen_unref(s.live[i].gen);
        kv_tokens_free(&s.live[i].answer);
    }
    free(s.live);
    if (s.io) close_store(&s);
    if (s.model) kv_model_free(s.model);
    free(s.said.slots);
    day_free(d);
    return !s.failed;
}
