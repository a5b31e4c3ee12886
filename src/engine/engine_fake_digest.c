/* Hashes that stand for computation, and the naive model that the cells are compared with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/engine_fake_internal.h"

/* ── digests ───────────────────────────────────────────────────────────────────────────────────────────────────── */

uint64_t kv_fake_hidden(uint64_t seed, const kv_fake_seen *seen) {
    return XXH3_64bits_withSeed(seen, sizeof *seen, seed);
}

static uint64_t hash2(uint64_t a, uint64_t b, uint64_t salt) {
    uint64_t in[2] = {a, b};
    return XXH3_64bits_withSeed(in, sizeof in, salt);
}

uint64_t kv_fake_derive(uint64_t hidden, uint64_t before, kv_fake_layer layer) {
    if (hidden == KV_FAKE_NAN || before == KV_FAKE_NAN) return KV_FAKE_NAN;
    return hash2(hidden, before, layer);
}

uint64_t kv_fake_part(uint64_t digest, kv_pos pos) {
    return digest == 0 ? 0 : hash2(digest, (uint64_t)pos, 0x70617274);
}

uint64_t kv_fake_edge(kv_pos start, int32_t n, int32_t n_pass) {
    return hash2((uint64_t)start << 32 | (uint32_t)n, (uint64_t)n_pass, 0x65646765);
}

void kv_fake_expand(char *out, size_t n, uint64_t digest) {
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = i == 0 ? digest : hash2(digest, i, 0x6b76);
        memcpy(out + i, &word, n - i < 8 ? n - i : 8);
    }
}

uint64_t kv_fake_collapse(const char *bytes, size_t n) {
    uint64_t digest;
    memcpy(&digest, bytes, sizeof digest);
    for (size_t i = 8; i < n; i += 8) {
        uint64_t word = hash2(digest, i, 0x6b76);
        if (memcmp(bytes + i, &word, n - i < 8 ? n - i : 8) != 0) return XXH3_64bits(bytes, n);
    }
    return digest;
}

/* ── logits ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint32_t scramble(uint32_t h) { /* Murmur3's finaliser: cheap, and every bit of h reaches every other */
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

void kv_fake_fill_logits(float *logits, const kv_fake_model *m, uint64_t hidden) {
    uint64_t seed = kv_fake_derive(hidden, 0, KV_FAKE_LOGITS);
    uint32_t lo = (uint32_t)seed, hi = (uint32_t)(seed >> 32);
    int32_t n = m->base.info.n_vocab;
    for (int32_t t = 0; t < n; t++) {
        uint32_t r = scramble(scramble((uint32_t)t * 0x9e3779b1u ^ lo) + hi);
        logits[t] = (float)(r >> 8) * (8.0f / 16777216.0f) - 4.0f + m->bias[t]; /* 24 bits onto [-4, 4) */
    }
    /* One token stands out: nine tenths of the probability whatever the size of the vocabulary. */
    uint64_t pick = kv_fake_derive(hidden, 1, KV_FAKE_LOGITS);
    int32_t one_in = m->params.end_one_in;
    bool ends = one_in > 0 && m->end >= 0 && (pick >> 32) % (uint64_t)one_in == 0;
    kv_token top = ends ? m->end : m->plain[(uint32_t)pick % (uint32_t)m->n_plain];
    logits[top] = 4.0f + logf((float)n);
}

/* ── the naive model ───────────────────────────────────────────────────────────────────────────────────────────── */

/* It holds every token's contribution by position and knows nothing of cells, owners, heads or passes. Tokens wait
 * in `chunk` until it ends when edges matter, because a chunk's length goes into each of its tokens. */
struct kv_fake_ref {
    const kv_fake_model *m;
    int32_t n;        /* tokens computed */
    uint64_t *window; /* part of each of them in the window pool */
    size_t room;
    uint64_t main, state, hidden;
    kv_tokens chunk;
};

kv_fake_ref *kv_fake_ref_new(const kv_model *m) {
    kv_fake_ref *r = kv_alloc(sizeof *r);
    r->m = kv_fake_model_of(m);
    return r;
}

void kv_fake_ref_free(kv_fake_ref *r) {
    if (!r) return;
    free(r->window);
    kv_tokens_free(&r->chunk);
    free(r);
}

/* Σ over the positions that `pos` sees through the window, said as plainly as can be. */
static uint64_t window_sum(const kv_fake_ref *r, kv_pos pos) {
    const kv_fake_params *p = &r->m->params;
    kv_pos from = p->window_is_chunked ? pos / p->n_window * p->n_window : pos - p->n_window + 1;
    uint64_t sum = 0;
    for (kv_pos q = from < 0 ? 0 : from; q < pos; q++) sum += r->window[q];
    return sum;
}

static void ref_compute(kv_fake_ref *r, kv_token token, uint64_t edge) {
    const kv_fake_model *m = r->m;
    kv_memory_kind kind = m->params.memory;
    bool main = kv_fake_has_main(kind), window = kv_fake_has_window(kind), state = kv_fake_has_rows(kind);
    kv_fake_seen seen = {.token = token, .pos = main ? r->n : 0, .edge = edge};
    if (main) seen.main = r->main;
    if (window) seen.window = window_sum(r, r->n);
    if (state) seen.recurrent = r->state;
    r->hidden = kv_fake_hidden(m->params.seed, &seen);
    if (main) r->main += kv_fake_part(kv_fake_derive(r->hidden, 0, KV_FAKE_MAIN), r->n);
    if (window) {
        if ((size_t)r->n == r->room) {
            r->room = r->room ? 2 * r->room : 64;
            r->window = kv_realloc(r->window, r->room * sizeof *r->window);
        }
        r->window[r->n] = kv_fake_part(kv_fake_derive(r->hidden, 0, KV_FAKE_WINDOW), r->n);
    }
    if (state) r->state = kv_fake_derive(r->hidden, r->state, KV_FAKE_RECURRENT);
    r->n++;
}

void kv_fake_ref_feed(kv_fake_ref *r, kv_token token, bool edge) {
    if (!r->m->params.edge_sensitive) {
        ref_compute(r, token, 0);
        return;
    }
    kv_tokens_add(&r->chunk, token);
    if (!edge) return;
    int32_t n = (int32_t)r->chunk.len;
    uint64_t e = kv_fake_edge(r->n, n, n);
    for (int32_t i = 0; i < n; i++) ref_compute(r, r->chunk.data[i], e);
    r->chunk.len = 0;
}

void kv_fake_ref_logits(float *logits, const kv_fake_ref *r) {
    KV_CHECK(r->n > 0 && r->chunk.len == 0);
    kv_fake_fill_logits(logits, r->m, r->hidden);
}

void kv_fake_reference(float *logits, const kv_model *m, const kv_token *tokens, size_t n) {
    kv_fake_ref *r = kv_fake_ref_new(m);
    for (size_t i = 0; i < n; i++) kv_fake_ref_feed(r, tokens[i], i + 1 == n);
    kv_fake_ref_logits(logits, r);
    kv_fake_ref_free(r);
}

void kv_fake_reference_greedy(kv_tokens *out, const kv_model *m, const kv_token *prompt, size_t n, int32_t n_new) {
    int32_t n_vocab = m->info.n_vocab;
    float *logits = kv_alloc((size_t)n_vocab * sizeof *logits);
    kv_fake_ref *r = kv_fake_ref_new(m);
    for (size_t i = 0; i < n; i++) kv_fake_ref_feed(r, prompt[i], i + 2 >= n);
    for (int32_t k = 0; k < n_new; k++) {
        kv_fake_ref_logits(logits, r);
        kv_token best = 0;
        for (kv_token t = 1; t < n_vocab; t++)
            if (logits[t] > logits[best]) best = t;
        kv_tokens_add(out, best);
        if (kv_model_is_eog(m, best)) break;
        kv_fake_ref_feed(r, best, true);
    }
    kv_fake_ref_free(r);
    free(logits);
}
