/* bench/cache_restore.c: what the cache itself costs, for `make bench`: restores against memcpy and against reading the
 * same files, bytes written against bytes captured, and a start with many records.
 *
 * usage: cache_restore MODEL FA(0|1) TOKENS THREADS DIR     one line a figure on stdout; DIR is made and filled
 *        cache_restore --start N DIR                        a store of N small records, opened and loaded
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* nftw, O_DIRECT */
#endif
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache.h"
#include "engine/engine_fake.h"

enum { B = 256, ROUNDS = 5 };
#define READ_BYTES (256ull << 20)
#define QUEUE      (4096ull << 20)
#define BUDGET     (16ull << 30)

static void must(kv_status status, const char *what, const kv_error *err) {
    if (status == KV_OK) return;
    fprintf(stderr, "cache_restore: %s: %s\n", what, err->message);
    exit(1);
}

static double now_ms(void) {
    return (double)kv_now_us(kv_clock_real()) / 1e3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

/* ── the files, by themselves ──────────────────────────────────────────────────────────────────────────────────── */

static bool dropping;      /* out of the page cache; else read */
static uint64_t raw_bytes; /* of all records */
static void *raw_buffer;
#define RAW_BUFFER (8u << 20)

static int visit(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)walk;
    if (type != FTW_F || !strstr(path, "/ns/") || strstr(path, "about.json")) return 0;
    raw_bytes += (uint64_t)st->st_size;
#ifdef O_DIRECT
    int fd = open(path, O_RDONLY | (dropping ? 0 : O_DIRECT));
#else
    int fd = open(path, O_RDONLY);
#endif
    if (fd < 0) return 0;
#ifdef POSIX_FADV_DONTNEED
    if (dropping) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    if (!dropping)
        while (read(fd, raw_buffer, RAW_BUFFER) > 0) continue;
    close(fd);
    return 0;
}

static double walk(const char *dir, bool drop) {
    dropping = drop;
    raw_bytes = 0;
    double start = now_ms();
    nftw(dir, visit, 16, FTW_PHYS);
    return now_ms() - start;
}

/* ── a cache on an engine ──────────────────────────────────────────────────────────────────────────────────────── */

typedef struct world {
    kv_model *model;
    kv_engine *engine;
    kv_state state;
    kv_io *io;
    kv_store *store;
    kv_cache *cache;
} world;

static void open_cache(world *w, const char *dir) {
    kv_error err;
    must(kv_store_open(&w->store, &(kv_store_config){.dir = dir, .budget = BUDGET}, &err), dir, &err);
    w->io = kv_io_new_threads(2, 1);
    kv_cache_config cfg = {.engine = kv_engine_get_info(w->engine),
                           .block = B,
                           .ns = {7, 7},
                           .queue_bytes = QUEUE,
                           .read_bytes = READ_BYTES,
                           .store = w->store,
                           .io = w->io,
                           .clock = kv_clock_real()};
    must(kv_cache_new(&w->cache, &cfg, &err), "the cache", &err);
    kv_cache_warm(w->cache);
}

/* Bytes that were captured: of each record once, whatever its kind. */
static uint64_t close_cache(world *w) {
    kv_cache_flush(w->cache, 60000000);
    kv_cache_stats stats;
    kv_cache_get_stats(&stats, w->cache);
    kv_io_free(w->io);
    kv_cache_free(w->cache);
    kv_store_close(w->store);
    return stats.bytes_captured;
}

static void decode(world *w, const kv_token *tokens, int q, int e) {
    kv_error err;
    static kv_token token[B];
    static kv_pos pos[B];
    static kv_seq seq[B];
    static bool want[B];
    for (int i = 0; i < e - q; i++) {
        token[i] = tokens[q + i];
        pos[i] = q + i;
    }
    must(kv_engine_decode(w->engine, &(kv_batch){e - q, token, pos, seq, want}, &err), "decode", &err);
}

/* Prefill with captures, as the scheduler does it. */
static void prefill(world *w, const kv_token *tokens, int n) {
    kv_trail *t = kv_trail_new(w->cache);
    kv_trail_reset(t, "", tokens, 0);
    for (int pos = 0, e; pos < n; pos = e) {
        e = pos + B < n - 1 ? pos + B : pos < n - 1 ? n - 1 : n;
        double start = now_ms();
        decode(w, tokens, pos, e);
        kv_trail_advance(t, &w->state, 0, tokens, e, &(kv_places){.n_prompt = n}, (now_ms() - start) * 1e3 / (e - pos));
    }
    kv_trail_end(t, &w->state, 0, tokens, n);
    kv_trail_free(t);
}

/* As the server waits: woken when there is something. */
typedef struct bell {
    pthread_mutex_t mutex;
    pthread_cond_t rung;
    bool rings;
} bell;

static void ring(void *ctx) {
    bell *b = ctx;
    pthread_mutex_lock(&b->mutex);
    b->rings = true;
    pthread_cond_signal(&b->rung);
    pthread_mutex_unlock(&b->mutex);
}

static void wait_for(bell *b) {
    pthread_mutex_lock(&b->mutex);
    while (!b->rings) pthread_cond_wait(&b->rung, &b->mutex);
    b->rings = false;
    pthread_mutex_unlock(&b->mutex);
}

/* Milliseconds from the first step to the last; the look-up is done before. */
static double restore(world *w, const kv_token *tokens, int n, uint64_t *bytes) {
    kv_error err;
    kv_engine_seq_rm(w->engine, 0, -1, -1);
    bell b = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rung = PTHREAD_COND_INITIALIZER};
    kv_lookup *l = kv_lookup_start(w->cache, "", tokens, (size_t)n, ring, &b);
    while (!kv_lookup_ready(l)) wait_for(&b);
    const kv_lookup_result *r = kv_lookup_get(l);
    if (r->position != n - 1) {
        fprintf(stderr, "cache_restore: only %d of %d tokens are there\n", (int)r->position, n - 1);
        exit(1);
    }
    *bytes = r->bytes;
    double start = now_ms();
    kv_restore step;
    while ((step = kv_restore_step(l, &w->state, 0, 0, INT64_MAX, &err)) != KV_RESTORE_DONE) {
        if (step == KV_RESTORE_FAILED) must(KV_IO, "restore", &err);
        if (step == KV_RESTORE_WAIT) wait_for(&b);
    }
    double ms = now_ms() - start;
    kv_lookup_free(l);
    return ms;
}

static double copy_ms(uint64_t bytes) {
    char *from = malloc(bytes), *to = malloc(bytes);
    if (!from || !to) exit(1);
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    double v[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double start = now_ms();
        memcpy(to, from, bytes);
        v[i] = now_ms() - start;
        if (to[bytes / 2] != 1) exit(1);
    }
    free(from);
    free(to);
    return median(v, ROUNDS);
}

static int run_restore(const char *path, bool fa, int n, int threads, const char *dir) {
    kv_error err;
    world w = {0};
    must(kv_model_load_llama(&w.model, &(kv_model_params){.path = path, .use_mmap = true}, &err), path, &err);
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = (n + B + 255) / 256 * 256;
    p.n_slots = 1;
    p.n_batch = B + 1;
    p.n_threads = p.n_threads_batch = threads;
    p.flash_attn = fa ? KV_FA_ON : KV_FA_OFF;
    must(kv_engine_new(&w.engine, w.model, &p, &err), "the engine", &err);
    must(kv_state_init(&w.state, w.engine, &err), "the engine", &err);
    int n_vocab = kv_model_get_info(w.model)->n_vocab;
    kv_token *tokens = malloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++) tokens[i] = 1000 + (int)((unsigned)i * 7919u % 10000u) % (n_vocab - 1000);

    open_cache(&w, dir);
    prefill(&w, tokens, n);
    uint64_t bytes, unique = close_cache(&w);
    open_cache(&w, dir);
    double cached[ROUNDS], uncached[ROUNDS], raw[ROUNDS];
    restore(&w, tokens, n, &bytes);
    for (int i = 0; i < ROUNDS; i++) cached[i] = restore(&w, tokens, n, &bytes);
    if (posix_memalign(&raw_buffer, 4096, RAW_BUFFER) != 0) exit(1);
    for (int i = 0; i < ROUNDS; i++) {
        walk(dir, true);
        uncached[i] = restore(&w, tokens, n, &bytes);
        walk(dir, true);
        raw[i] = walk(dir, false);
    }
    double warm = median(cached, ROUNDS), cold = median(uncached, ROUNDS), read = median(raw, ROUNDS),
           copy = copy_ms(bytes);
    printf("restore_cached tokens=%d mib=%.1f ms=%.1f memcpy_ms=%.1f ratio=%.3f\n", n, (double)bytes / (1 << 20), warm,
           copy, copy / warm);
    printf("restore_uncached ms=%.1f read_ms=%.1f read_mib=%.1f ratio=%.3f\n", cold, read,
           (double)raw_bytes / (1 << 20), read / cold * ((double)bytes / (double)raw_bytes));
    printf("written mib=%.2f unique_mib=%.2f ratio=%.3f\n", (double)raw_bytes / (1 << 20), (double)unique / (1 << 20),
           (double)raw_bytes / (double)unique);
    close_cache(&w);
    kv_state_free(&w.state);
    kv_engine_free(w.engine);
    kv_model_free(w.model);
    free(tokens);
    free(raw_buffer);
    return 0;
}

/* ── a start with many records ─────────────────────────────────────────────────────────────────────────────────── */

static int run_start(int n, const char *dir) {
    kv_error err;
    world w = {0};
    kv_fake_params fp;
    kv_engine_params p;
    kv_fake_params_defaults(&fp);
    kv_engine_params_defaults(&p);
    must(kv_model_load_fake(&w.model, &fp, &err), "the fake model", &err);
    p.n_ctx = 4096;
    p.n_slots = 1;
    p.n_batch = B + 1;
    must(kv_engine_new(&w.engine, w.model, &p, &err), "the fake engine", &err);
    open_cache(&w, dir);
    /* conversations of 64 blocks: a path each, below the scope's root */
    kv_hash root = kv_cache_root_key(w.cache, "");
    kv_token tokens[B];
    char payload[64] = {0};
    kv_record_head h = {
        .kind = KV_RECORD_BLOCK, .ns = root, .n_tokens = B, .n_payload = sizeof payload, .compute_ms = 100};
    for (int i = 0; i < n; i++) {
        h.q = i % 64 * B;
        h.e = h.q + B;
        h.parent = h.q ? h.key : root;
        for (int k = 0; k < B; k++)
            tokens[k] = (kv_token)((unsigned)(i / 64 * 31 + i % 64 * 7 + k) * 2654435761u >> 20);
        h.key = kv_hash_chain(h.parent, tokens, B);
        must(kv_store_reserve(w.store, &h, 1, false, &err), "reserve", &err);
        must(kv_store_write(w.store, &h, tokens, payload, &err), "write", &err);
        if (i % 64 == 63 || i == n - 1) must(kv_store_commit(w.store, NULL, NULL, &err), "commit", &err);
    }
    close_cache(&w);
    double v[ROUNDS];
    kv_cache_stats stats;
    for (int i = 0; i < ROUNDS; i++) {
        double start = now_ms();
        open_cache(&w, dir);
        v[i] = now_ms() - start;
        kv_cache_get_stats(&stats, w.cache);
        close_cache(&w);
    }
    double ms = median(v, ROUNDS);
    printf("start records=%d nodes=%llu ms=%.0f\n", n, (unsigned long long)stats.nodes, ms);
    kv_engine_free(w.engine);
    kv_model_free(w.model);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--start") == 0) return run_start(atoi(argv[2]), argv[3]);
    if (argc == 6) return run_restore(argv[1], atoi(argv[2]) != 0, atoi(argv[3]), atoi(argv[4]), argv[5]);
    fprintf(stderr, "usage: cache_restore MODEL FA TOKENS THREADS DIR | cache_restore --start N DIR\n");
    return 2;
}
