#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

/* More than any run here needs: nothing may be dropped for want of room. */
#define ROOM ((uint64_t)2 << 30)
void die(const char *what, const kv_error *err) {
    fprintf(stderr, "parity: %s%s%s\n", what, err ? ": " : "", err ? err->message : "");
    exit(1);
}

void must(kv_status status, const char *what, const kv_error *err) {
    if (status != KV_OK) die(what, err);
}

float largest_difference(const float *a, const float *b, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; i++) {
        float d = fabsf(a[i] - b[i]);
        if (!(d <= most)) most = d; /* a NaN is a difference too */
    }
    return most;
}

/* ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Words in an order that depends on the salt alone, as tokens of this model. */
static void write_tokens(kv_tokens *out, const kv_model *m, int32_t n, uint64_t salt) {
    static const char *const words[] = {"river", "the",  "stone", "under", "light", "of",   "seven", "walks",
                                        "and",   "cold", "house", "in",    "bread", "with", "never", "green",
                                        "a",     "bell", "rings", "north", "who",   "salt", "opens", "door"};
    kv_buf text = {0};
    kv_error err = {0};
    for (uint64_t x = salt * 2654435769u + 1; text.len < (size_t)n * 8;) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        kv_buf_addf(&text, "%s%s", words[(x >> 33) % (sizeof words / sizeof *words)], (x >> 40) % 9 ? " " : ".\n");
    }
    must(kv_model_tokenize(out, m, kv_buf_str(&text), text.len, true, false, &err), "tokenising", &err);
    if (out->len < (size_t)n) die("the text is too short", NULL);
    kv_buf_free(&text);
}

static void run_init(run *r, const world *w, uint64_t salt) {
    write_tokens(&r->tokens, w->model, r->n, salt);
    r->logits = kv_alloc((size_t)r->n_stops * (size_t)w->tail * (size_t)w->n_vocab * sizeof *r->logits);
}

static void run_free(run *r) {
    kv_tokens_free(&r->tokens);
    free(r->logits);
}

/* Room for chunks of other sizes than a block's, see world_play. */
static int32_t batch_size(const world *w) {
    return w->block * 3 / 2 + N_SLOTS;
}

/* As libllama sizes its window pool. */
static int32_t window_cells(int32_t window, int32_t n_batch) {
    return (window * (N_SLOTS + 1) + n_batch + 255) / 256 * 256;
}

void world_init(world *w, kv_model *model, kv_types types, bool tiny) {
    const kv_model_info *info = kv_model_get_info(model);
    memset(w, 0, sizeof *w);
    w->model = model;
    w->types = types;
    w->tiny = tiny;
    w->tail = tiny ? 8 : 4;
    w->n_vocab = info->n_vocab;
    /* Small blocks keep the runs short; a window no larger than 128 makes B = W, where a block's first cell is free for
     * others the moment the block is complete. */
    w->block = 64;
    if (info->n_window)
        for (w->block = 32; w->block < 128 && w->block * 2 <= info->n_window;) w->block *= 2;
    int32_t B = w->block;
    w->interval = tiny ? 3 * B : B;
    run *m = &w->main;
    m->n_stops = 3;
    m->stop[STOP_EDGE] = w->interval;
    m->stop[STOP_INSIDE] = w->interval + (tiny ? B / 2 + 1 : w->tail + 3);
    m->stop[STOP_CHECKPOINT] = tiny ? 4 * B + B / 4 + 3 : m->stop[STOP_INSIDE] + w->tail + 3;
    m->n_prompt = m->stop[STOP_CHECKPOINT] + 1;
    m->n = m->stop[STOP_CHECKPOINT] + w->tail + 3;
    w->n_ctx = 1024;
    if (info->n_window && info->n_window <= 1024) {
        run *l = &w->wrap;
        l->n_stops = 1;
        l->stop[0] = (window_cells(info->n_window, batch_size(w)) / w->interval + 1) * w->interval;
        l->n = l->stop[0] + w->tail + 3;
        l->n_prompt = l->n + 2;
        if (w->n_ctx < l->n + 256) w->n_ctx = l->n + 256;
        run_init(l, w, 2);
    }
    run_init(m, w, 1);
}

void world_free(world *w) {
    run_free(&w->main);
    run_free(&w->wrap);
}

/* ── open and close ────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status world_open_engine(world *w, kv_error *err) {
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = w->n_ctx;
    p.n_slots = N_SLOTS;
    p.n_batch = batch_size(w);
    p.n_threads = p.n_threads_batch = 1; /* more would spin against each other on a busy machine */
    p.flash_attn = w->types.flash_attn ? KV_FA_ON : KV_FA_OFF;
    p.type_k = w->types.k;
    p.type_v = w->types.v;
    kv_status status = kv_engine_new(&w->engine, w->model, &p, err);
    if (status == KV_OK) status = kv_state_init(&w->state, w->engine, err);
    return status;
}

void world_open_cache(world *w) {
    kv_error err = {0};
    kv_store_config store = {.dir = w->dir, .budget = ROOM};
    must(kv_store_open(&w->store, &store, &err), "the store", &err);
    w->io = kv_io_new_inline(0);
    kv_cache_config cfg = {.engine = kv_engine_get_info(w->engine),
                           .block = w->block,
                           .ns = kv_hash_bytes("parity", 6),
                           .queue_bytes = ROOM,
                           .ram_bytes = ROOM,
                           .read_bytes = ROOM,
                           .store = w->store,
                           .interval = w->interval,
                           .io = w->io,
                           .clock = kv_clock_real()};
    must(kv_cache_new(&w->cache, &cfg, &err), "the cache", &err);
}

void world_close(world *w) {
    if (w->cache) {
        kv_cache_flush(w->cache, 60000000);
        kv_cache_self_check(w->cache);
        kv_cache_free(w->cache);
        kv_store_close(w->store);
        kv_io_free(w->io);
    }
    if (w->state.engine) kv_state_free(&w->state);
    kv_engine_free(w->engine);
    w->cache = NULL;
    w->store = NULL;
    w->io = NULL;
    w->engine = NULL;
}

void world_settle(world *w) {
    while (kv_io_run_one(w->io)) continue;
    kv_cache_stats s;
    kv_cache_get_stats(&s, w->cache);
    if (s.n_dropped || s.n_not_written || !s.n_written || s.queue_bytes)
        die("not all that was captured is stored", NULL);
}

/* ── decoding ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* One batch [q, e) of a sequence; returns the logits of its last token. */
static const float *decode(world *w, kv_seq seq, const kv_token *tokens, kv_pos q, kv_pos e) {
    kv_error err = {0};
    kv_token token[256];
    kv_pos pos[256];
    kv_seq seqs[256];
    bool want[256];
    int32_t n = e - q;
    for (int32_t i = 0; i < n; i++) {
        token[i] = tokens[q + i];
        pos[i] = q + i;
        seqs[i] = seq;
        want[i] = i == n - 1;
    }
    must(kv_engine_decode(w->engine, &(kv_batch){n, token, pos, seqs, want}, &err), "decoding", &err);
    return kv_engine_logits(w->engine, n - 1);
}

/* Where the chunk of a run that begins at pos ends. *stop: the stop whose single tokens pos is one of, else -1. */
static kv_pos chunk_end(int *stop, const world *w, const run *r, kv_pos pos, int32_t chunk) {
    kv_pos e = (pos / chunk + 1) * chunk;
    if (e > r->n) e = r->n;
    *stop = -1;
    for (int i = 0; i < r->n_stops; i++) {
        if (pos >= r->stop[i] && pos < r->stop[i] + w->tail) {
            *stop = i;
            return pos + 1;
        }
        if (pos < r->stop[i] && e > r->stop[i]) e = r->stop[i];
    }
    return e;
}

static void empty(world *w) {
    for (kv_seq s = 0; s < N_SLOTS; s++) kv_engine_seq_rm(w->engine, s, -1, -1);
}

void world_play(float *out, world *w, const run *r, int32_t chunk, bool capture) {
    const kv_token *tokens = r->tokens.data;
    size_t n = (size_t)w->n_vocab;
    kv_trail *t = capture ? kv_trail_new(w->cache) : NULL;
    if (t) kv_trail_reset(t, "", tokens, 0);
    for (kv_pos pos = 0, e; pos < r->n; pos = e) {
        int stop;
        e = chunk_end(&stop, w, r, pos, chunk);
        const float *logits = decode(w, 0, tokens, pos, e);
        if (stop >= 0) memcpy(out + (size_t)(stop * w->tail + pos - r->stop[stop]) * n, logits, n * sizeof *out);
        if (t) kv_trail_advance(t, &w->state, 0, tokens, e, &(kv_places){.n_prompt = r->n_prompt}, 100);
    }
    if (t) kv_trail_end(t, &w->state, 0, tokens, r->n);
    kv_trail_free(t);
    empty(w);
}

/* ── visits ─────────────────────────────────────────────────────────────────────────────────────────── */

static void restore(world *w, const run *r, kv_pos ask, kv_pos expect, source from) {
    kv_error err = {0};
    kv_lookup *l = kv_lookup_start(w->cache, "", r->tokens.data, (size_t)ask + 1, NULL, NULL);
    while (!kv_lookup_ready(l))
        if (!kv_io_run_one(w->io)) die("a look-up waits for ever", NULL);
    const kv_lookup_result *found = kv_lookup_get(l);
    if (found->position != expect) {
        fprintf(stderr, "parity: asked for %d, offered %d (%s), expected %d\n", ask, found->position,
                kv_miss_name(found->miss), expect);
        exit(1);
    }
    kv_restore step;
    while ((step = kv_restore_step(l, &w->state, 0, 0, 0, &err)) == KV_RESTORE_MORE || step == KV_RESTORE_WAIT)
        if (step == KV_RESTORE_WAIT && !kv_io_run_one(w->io)) die("a restore waits for ever", NULL);
    if (step == KV_RESTORE_FAILED) die("a restore failed", &err);
    int32_t n_ram, n_disk;
    kv_restore_sources(&n_ram, &n_disk, l);
    if ((from == FROM_DISK ? n_disk : n_ram) != expect) die("what was restored came from elsewhere", NULL);
    kv_lookup_free(l);
}

static void compute(world *w, const run *r, kv_pos upto) {
    int stop;
    for (kv_pos pos = 0, e; pos < upto; pos = e) {
        e = chunk_end(&stop, w, r, pos, w->block);
        decode(w, 0, r->tokens.data, pos, e);
    }
}

float world_visit(world *w, const run *r, kv_pos ask, kv_pos expect, twist twist, source from) {
    kv_error err = {0};
    size_t n = (size_t)w->n_vocab;
    float most = 0;
    int stop = 0;
    while (r->stop[stop] != expect) stop++;
    /* The run's own tokens from the second on: some other text. As many as are no multiple of any vector's length, so
     * that cells behind it are summed in other lanes. */
    if (twist == MOVED) decode(w, 1, r->tokens.data + 1, 0, w->block + 5);
    if (from == COMPUTED) compute(w, r, expect);
    else restore(w, r, ask, expect, from);
    if (twist == MOVED) kv_engine_seq_rm(w->engine, 1, -1, -1);
    if (twist == FORKED) must(kv_engine_fork(w->engine, 0, 1, expect, &err), "a fork", &err);
    for (int i = 0; i < w->tail; i++)
        for (kv_seq s = 0; s <= (twist == FORKED); s++) {
            const float *got = decode(w, s, r->tokens.data, expect + i, expect + i + 1);
            float d = largest_difference(got, r->logits + (size_t)(stop * w->tail + i) * n, n);
            if (!(d <= most)) most = d;
        }
    empty(w);
    return most;
}
