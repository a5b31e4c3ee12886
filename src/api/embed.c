#include "api/embed.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

struct kv_embed {
    pthread_mutex_t mutex; /* held while the embedder computes; a leaf */
    kv_embedder *embedder; /* owned */
};

/* llama-server's --ubatch-size where none is given: the longest text that it takes, too. */
#define DEFAULT_BATCH 512
/* Short texts that share a call. */
#define TEXTS_A_CALL 16
/* Of an encoder, which sees a text only whole: as many as its positions, up to this. Its compute buffers grow with the
 * square: 200 MiB at 2,048 tokens of a model of BERT-base's size. */
#define ENCODER_BATCH_MOST 2048
/* With last-token pooling, without -c: cells are cheap, but for whole contexts they would be as many as the engine's. */
#define LONG_TEXT 8192
/* In one answer: 2048 texts of 8192 numbers, about 700 MiB while it is written as JSON. */
#define NUMBERS_MAX (1 << 24)

static int32_t choose_batch(const kv_model_info *m, const kv_options *opt, int32_t n_ctx_served) {
    if (opt->n_ubatch > 0) return (int32_t)opt->n_ubatch;
    if (!m->is_encoder || n_ctx_served < DEFAULT_BATCH) return DEFAULT_BATCH;
    return n_ctx_served < ENCODER_BATCH_MOST ? n_ctx_served : ENCODER_BATCH_MOST;
}

kv_status kv_embed_open(kv_embed **out, kv_model *model, const kv_engine_params *params, const kv_options *opt,
                        int32_t n_ctx_served, kv_error *err) {
    *out = NULL;
    const kv_model_info *m = kv_model_get_info(model);
    if (!opt->embeddings && !opt->reranking && !m->is_encoder) return KV_OK;
    int32_t long_text = opt->n_ctx > 0 || n_ctx_served < LONG_TEXT ? n_ctx_served : LONG_TEXT;
    kv_embedder_params p = {
        .engine = *params,
        .pooling = opt->reranking ? KV_POOLING_RANK : KV_POOLING_MODEL,
        .n_batch = choose_batch(m, opt, n_ctx_served),
        .n_ctx = long_text,
        .n_texts = TEXTS_A_CALL,
    };
    p.engine.flash_attn =
        (kv_flash_attn)opt->flash_attn; /* where it is not given, libllama decides as in llama-server */
    if (opt->pooling) kv_pooling_from_name(&p.pooling, opt->pooling);
    if (p.pooling != KV_POOLING_LAST && p.pooling != KV_POOLING_MODEL) p.n_ctx = 0;
    kv_embedder *embedder;
    kv_status st = kv_embedder_new(&embedder, model, &p, err);
    if (st != KV_OK) return st;
    kv_embed *e = kv_alloc(sizeof *e);
    pthread_mutex_init(&e->mutex, NULL);
    e->embedder = embedder;
    const kv_embedder_info *info = &embedder->info;
    KV_INFO("embeddings: pooling %s, %d numbers, texts of at most %d tokens, %.0f MiB", kv_pooling_name(info->pooling),
            (int)info->width, (int)info->n_text_max, (double)info->bytes / (1 << 20));
    *out = e;
    return KV_OK;
}

void kv_embed_free(kv_embed *e) {
    if (!e) return;
    kv_embedder_free(e->embedder);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

const kv_embedder_info *kv_embed_get_info(const kv_embed *e) {
    return kv_embedder_get_info(e->embedder);
}

/* ── running ───────────────────────────────────────────────────────────────────────────────────────────────────── */

size_t kv_embed_room(const kv_embed *e, const kv_tokens *texts, int n) {
    const kv_embedder_info *info = &e->embedder->info;
    size_t rows = (size_t)n;
    if (info->pooling == KV_POOLING_NONE) {
        rows = 0;
        for (int i = 0; i < n; i++) rows += texts[i].len;
    }
    return rows * (size_t)info->width;
}

kv_status kv_embed_check_text(const kv_embed *e, const kv_tokens *text, const char *field, int i, kv_error *err) {
    const kv_embedder_info *info = &e->embedder->info;
    char path[96];
    if (i >= 0) snprintf(path, sizeof path, "%.60s[%d]", field, i);
    else snprintf(path, sizeof path, "%.60s", field);
    if (text->len == 0) return kv_fail_field(err, path, "Input content cannot be empty: '%s' has no tokens", path);
    if (text->len <= (size_t)info->n_text_max) return KV_OK;
    const char *how = info->n_text_max < info->n_batch   ? "the model has no more positions"
                      : info->n_text_max > info->n_batch ? "or start the server with a larger -c"
                                                         : "or start the server with a larger -ub";
    return kv_fail_field(
        err, path, "'%s' has %zu tokens, and the maximum is %d: the input is too large to process; shorten it, %s",
        path, text->len, (int)info->n_text_max, how);
}

static kv_status check_lengths(const kv_embed *e, const kv_tokens *texts, int n, const char *field, kv_error *err) {
    kv_status st = KV_OK;
    for (int i = 0; st == KV_OK && i < n; i++) st = kv_embed_check_text(e, &texts[i], field, n > 1 ? i : -1, err);
    size_t room = st == KV_OK ? kv_embed_room(e, texts, n) : 0;
    if (room > NUMBERS_MAX)
        st = kv_fail_field(err, field,
                           "the answer to '%.60s' would have %zu numbers; at most %d are possible: send its texts in "
                           "several requests",
                           field, room, NUMBERS_MAX);
    return st;
}

/* JSON has no way to write them. */
static kv_status check_numbers(const float *rows, size_t n, kv_error *err) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(rows[i])) return kv_fail(err, KV_ENGINE, "what the model computed of a text is not a number");
    return KV_OK;
}

/* How many of the texts go into one call, at least one. */
static int take_some(const kv_embed *e, const kv_tokens *texts, int n) {
    const kv_embedder_info *info = &e->embedder->info;
    size_t total = texts[0].len;
    int taken = 1;
    while (taken < n && taken < info->n_texts && total + texts[taken].len <= (size_t)info->n_batch)
        total += texts[taken++].len;
    return taken;
}

/* One call; its tokens and its time are counted where the metrics find them. */
static kv_status compute(float *at, kv_app *app, const kv_tokens *texts, int n, kv_error *err) {
    kv_embed *e = app->embed;
    uint64_t n_tokens = 0;
    for (int i = 0; i < n; i++) n_tokens += texts[i].len;
    pthread_mutex_lock(&e->mutex);
    int64_t began_us = kv_now_us(kv_clock_real());
    kv_status st = kv_embedder_run(at, e->embedder, texts, n, err);
    int64_t took_us = kv_now_us(kv_clock_real()) - began_us;
    pthread_mutex_unlock(&e->mutex);
    if (st != KV_OK) return st;
    atomic_fetch_add(&app->embedded.n_tokens, n_tokens);
    atomic_fetch_add(&app->embedded.n_calls, 1);
    atomic_fetch_add(&app->embedded.us, (uint64_t)took_us);
    return KV_OK;
}

kv_status kv_embed_run(float **rows, kv_app *app, const kv_tokens *texts, int n, const char *field,
                       kv_http_request *req, kv_error *err) {
    const kv_embed *e = app->embed;
    *rows = NULL;
    kv_status st = check_lengths(e, texts, n, field, err);
    if (st != KV_OK) return st;
    size_t room = kv_embed_room(e, texts, n);
    float *all = kv_alloc(room * sizeof *all + 1), *at = all;
    for (int i = 0; st == KV_OK && i < n;) {
        int some = take_some(e, texts + i, n - i);
        st = compute(at, app, texts + i, some, err);
        at += kv_embed_room(e, texts + i, some);
        i += some;
        if (st == KV_OK && req && i < n && kv_http_wait(req, NULL, 0) == KV_WAIT_HUNG_UP)
            st = kv_fail(err, KV_CANCELLED, "the client hung up");
    }
    if (st == KV_OK) st = check_numbers(all, room, err);
    if (st == KV_OK) *rows = all;
    else free(all);
    return st;
}

void kv_embed_normalise(float *row, size_t n, int how) {
    double sum = 0;
    if (how < 0) return;
    for (size_t i = 0; i < n; i++) {
        double size = fabs((double)row[i]);
        if (how == 0) sum = size > sum ? size : sum;
        else sum += how == 1 ? size : how == 2 ? size * size : pow(size, how);
    }
    if (how == 0) sum /= 32760; /* fits 16 bits */
    else if (how == 2) sum = sqrt(sum);
    else if (how > 2) sum = pow(sum, 1.0 / how);
    double factor = sum > 0 ? 1 / sum : 0;
    for (size_t i = 0; i < n; i++) row[i] = (float)(row[i] * factor);
}

json_t *kv_embed_json(const float *row, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_real((double)row[i]));
    return list;
}
