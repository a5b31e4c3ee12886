#include "cache/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "cache/cache_private.h"

#define NOTE_FORMAT 1
#define BUILD_MAX   64
/* A best token counts as found when it is among the two best, or as good as that. */
#define AMONG     2
#define NEAR_TIE  1.0f
#define LOGIT_MAX 1e6

typedef struct note {
    char build[BUILD_MAX + 1];
    kv_tokens tokens;
    int n_top;
    kv_token token[KV_PROBE_TOP];
    float logit[KV_PROBE_TOP];
} note;

/* ── the note ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What people will read in the log, whoever wrote it. */
static bool is_build(const char *s) {
    size_t n = s ? strlen(s) : 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] > 0x7e) return false;
    return n > 0 && n <= BUILD_MAX;
}

/* Of the whole object but for its sum. */
static void sum_of(char hex[33], const json_t *root) {
    kv_buf text = {0};
    kv_json_dump(&text, root);
    kv_hash_hex(hex, kv_hash_bytes(text.data, text.len));
    kv_buf_free(&text);
}

static bool sum_is_right(json_t *root) {
    const char *said = NULL;
    char hex[33], is[33] = "";
    if (kv_json_str(&said, root, "sum", NULL) != KV_OK || !said || strlen(said) != 32) return false;
    memcpy(hex, said, sizeof hex);
    json_object_del(root, "sum");
    sum_of(is, root);
    return strcmp(hex, is) == 0;
}

static void write_note(kv_buf *out, const note *n, const char *build) {
    json_t *root = json_object(), *tokens = json_array(), *top = json_array();
    KV_CHECK(root && tokens && top);
    for (size_t i = 0; i < n->tokens.len; i++) json_array_append_new(tokens, json_integer(n->tokens.data[i]));
    for (int i = 0; i < n->n_top; i++)
        json_array_append_new(top, json_pack("[i, f]", (int)n->token[i], (double)n->logit[i]));
    json_object_set_new(root, "format", json_integer(NOTE_FORMAT));
    json_object_set_new(root, "engine", kv_json_text0(build));
    json_object_set_new(root, "tokens", tokens);
    json_object_set_new(root, "top", top);
    char sum[33];
    sum_of(sum, root);
    json_object_set_new(root, "sum", json_string(sum));
    kv_json_dump(out, root);
    json_decref(root);
}

static bool read_token(kv_token *out, const json_t *value, int32_t n_vocab) {
    int64_t token;
    if (!kv_json_as_int(&token, value, 0, n_vocab - 1)) return false;
    *out = (kv_token)token;
    return true;
}

static bool read_tokens(note *out, const json_t *list, int32_t n_vocab) {
    size_t n = json_array_size(list); /* 0 of anything but an array */
    if (n < KV_PROBE_MIN || n > KV_PROBE_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        kv_token token;
        if (!read_token(&token, json_array_get(list, i), n_vocab)) return false;
        kv_tokens_add(&out->tokens, token);
    }
    return true;
}

static bool read_top(note *out, const json_t *list, int32_t n_vocab) {
    size_t n = json_array_size(list);
    if (n < 1 || n > KV_PROBE_TOP) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i), *logit = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !read_token(&out->token[i], json_array_get(pair, 0), n_vocab)) return false;
        if (!json_is_number(logit) || !(fabs(json_number_value(logit)) <= LOGIT_MAX)) return false;
        out->logit[i] = (float)json_number_value(logit);
        if (i > 0 && out->logit[i] > out->logit[i - 1]) return false;
    }
    out->n_top = (int)n;
    return true;
}

/* KV_NOT_FOUND, KV_CORRUPT, KV_UNSUPPORTED: of a newer format. */
static kv_status read_note(note *out, kv_cache *c, kv_hash ns, int32_t n_vocab) {
    kv_buf text = {0};
    json_t *root = NULL;
    const char *build = NULL;
    int64_t format = 0;
    kv_status status = KV_NOT_FOUND;
    if (!kv_store_get_note(&text, c->cfg.store, ns)) goto done;
    status = KV_CORRUPT;
    if (kv_json_parse(&root, kv_buf_str(&text), text.len, NULL) != KV_OK || !json_is_object(root)) goto done;
    if (kv_json_int(&format, root, "format", 1, INT32_MAX, NULL) != KV_OK || format == 0) goto done;
    if (format > NOTE_FORMAT) {
        status = KV_UNSUPPORTED;
        goto done;
    }
    if (!sum_is_right(root) || kv_json_str(&build, root, "engine", NULL) != KV_OK || !is_build(build)) goto done;
    strcpy(out->build, build);
    if (read_tokens(out, kv_json_get(root, "tokens"), n_vocab) && read_top(out, kv_json_get(root, "top"), n_vocab))
        status = KV_OK;
done:
    json_decref(root);
    kv_buf_free(&text);
    return status;
}

static void put_note(kv_cache *c, kv_hash ns, const note *n) {
    kv_buf text = {0};
    kv_error err;
    write_note(&text, n, c->probe_build);
    if (kv_store_set_note(c->cfg.store, ns, kv_buf_str(&text), &err) != KV_OK) {
        KV_DEBUG("the cache's probe is not kept: %s", err.message);
        atomic_store(&c->probe_wanted, true); /* the next prompt tries again */
    }
    kv_buf_free(&text);
}

/* ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────── */

bool kv_probe_wants(const kv_cache *c, const char *scope, int32_t n) {
    if (!atomic_load(&c->probe_wanted) || n < KV_PROBE_MIN || n > KV_PROBE_MAX) return false;
    return !scope || !*scope || strcmp(scope, "default") == 0;
}

/* The best tokens, best first. */
static int best_of(kv_token *token, float *logit, int room, const float *logits, int32_t n_vocab) {
    int n = 0;
    for (kv_token t = 0; t < n_vocab; t++) {
        if (!(n < room || logits[t] > logit[n - 1])) continue;
        int i = n < room ? n++ : n - 1;
        for (; i > 0 && logits[t] > logit[i - 1]; i--) {
            token[i] = token[i - 1];
            logit[i] = logit[i - 1];
        }
        token[i] = t;
        logit[i] = logits[t];
    }
    return n;
}

typedef struct keeping {
    kv_cache *c;
    note note;
} keeping;

static void keep(void *ctx) {
    keeping *k = ctx;
    put_note(k->c, kv_cache_root_key(k->c, ""), &k->note);
    kv_tokens_free(&k->note.tokens);
    free(k);
}

void kv_probe_keep(kv_cache *c, const kv_token *tokens, int32_t n, const float *logits, int32_t n_vocab) {
    keeping *k = kv_alloc(sizeof *k);
    k->c = c;
    k->note.n_top = best_of(k->note.token, k->note.logit, KV_PROBE_TOP, logits, n_vocab);
    kv_tokens_append(&k->note.tokens, tokens, (size_t)n);
    atomic_store(&c->probe_wanted, false);
    kv_io_submit(c->cfg.io, KV_IO_WRITE, keep, k);
}

/* ── checking ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool is_among(float logit, const float *best, int n) {
    int last = (n < AMONG ? n : AMONG) - 1;
    return logit >= best[last] || logit >= best[0] - NEAR_TIE;
}

bool kv_probe_agrees(const kv_token *token, const float *then, int n, const float *now, int32_t n_vocab) {
    kv_token best[KV_PROBE_TOP];
    float logit[KV_PROBE_TOP], sum = 0;
    int n_best = best_of(best, logit, AMONG, now, n_vocab), place = 0;
    for (int i = 0; i < n; i++) sum += fabsf(now[token[i]] - then[i]);
    if (!(sum / (float)n <= KV_PROBE_MEAN_MAX)) return false; /* NaN too */
    while (place < n && token[place] != best[0]) place++;
    return is_among(now[token[0]], logit, n_best) && place < n && is_among(then[place], then, n);
}

/* Jobs of the I/O threads that the engine thread waits for. */
typedef struct waiting {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool woken;
} waiting;

static void wake(void *ctx) {
    waiting *w = ctx;
    pthread_mutex_lock(&w->mutex);
    w->woken = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static void wait_for_wake(waiting *w, kv_io *io) {
    if (kv_io_is_inline(io)) {
        KV_CHECK(kv_io_run_one(io));
        return;
    }
    pthread_mutex_lock(&w->mutex);
    while (!w->woken) pthread_cond_wait(&w->changed, &w->mutex);
    w->woken = false;
    pthread_mutex_unlock(&w->mutex);
}

/* KV_OK: agrees; KV_CORRUPT: differs, or the engine does not take the stored state; KV_IO: it could not be read. */
static kv_status try_note(const note *n, kv_cache *c, kv_lookup *l, waiting *w, kv_engine *engine) {
    kv_state state = {0};
    kv_error err = {0};
    int32_t last = (int32_t)n->tokens.len - 1, n_vocab = engine->model->info.n_vocab;
    kv_restore step;
    kv_status status = kv_state_init(&state, engine, &err);
    if (status != KV_OK) goto done;
    while ((step = kv_restore_step(l, &state, 0, 0, INT64_MAX, &err)) == KV_RESTORE_MORE || step == KV_RESTORE_WAIT)
        if (step == KV_RESTORE_WAIT) wait_for_wake(w, c->cfg.io);
    status = step == KV_RESTORE_DONE ? KV_OK : err.status == KV_IO ? KV_IO : KV_CORRUPT;
    if (status != KV_OK) goto done;
    kv_batch one = {1, &n->tokens.data[last], &(kv_pos){last}, &(kv_seq){0}, &(bool){true}};
    status = kv_engine_decode(engine, &one, &err);
    if (status == KV_NOT_NUMBERS) status = KV_CORRUPT;
    if (status != KV_OK) goto done;
    if (!kv_probe_agrees(n->token, n->logit, n->n_top, kv_engine_logits(engine, 0), n_vocab)) status = KV_CORRUPT;
done:
    kv_state_free(&state);
    kv_engine_clear(engine);
    return status;
}

/* KV_NOT_FOUND: not all of its path is stored any more. Where this build made it, nothing is computed. */
static kv_status look_up_and_try(const note *n, kv_cache *c, kv_engine *engine, bool same_build) {
    waiting w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    int32_t len = (int32_t)n->tokens.len;
    kv_lookup *l = kv_lookup_start(c, "", n->tokens.data, (size_t)len, wake, &w);
    while (!kv_lookup_ready(l)) wait_for_wake(&w, c->cfg.io);
    kv_status status = kv_lookup_get(l)->position == len - 1 ? KV_OK : KV_NOT_FOUND;
    bool fits = len + c->cfg.block <= kv_engine_get_info(engine)->n_ctx; /* the last block is loaded whole, then cut */
    if (status == KV_OK && !same_build) status = fits ? try_note(n, c, l, &w, engine) : KV_IO;
    kv_lookup_free(l); /* nobody wakes w any more */
    return status;
}

typedef struct maker {
    kv_hash ns;
    char build[BUILD_MAX + 1]; /* "" = not known */
} maker;

static void see_about(void *ctx, kv_hash ns, const char *about_json, uint64_t bytes, uint64_t records) {
    (void)bytes;
    maker *m = ctx;
    json_t *about = NULL;
    const char *build = NULL;
    if (!records || !kv_hash_equal(ns, m->ns)) return;
    if (kv_json_parse(&about, about_json, strlen(about_json), NULL) == KV_OK && json_is_object(about) &&
        kv_json_str(&build, about, "engine", NULL) == KV_OK && is_build(build))
        strcpy(m->build, build);
    json_decref(about);
}

/* Without a note: the build that is in about.json. */
static kv_probe_result ask_about(kv_cache *c, kv_hash ns) {
    maker m = {.ns = ns};
    (void)kv_store_namespaces(c->cfg.store, see_about, &m, NULL);
    if (!*m.build || strcmp(m.build, c->probe_build) == 0) return KV_PROBE_SAME;
    KV_WARN("the cache was made by engine %s, this is %s, and nothing is noted that would tell whether they agree; it "
            "is used",
            m.build, c->probe_build);
    return KV_PROBE_UNKNOWN;
}

static kv_probe_result judge(kv_cache *c, kv_hash ns, const note *n, kv_engine *engine) {
    bool same = strcmp(n->build, c->probe_build) == 0, want = false;
    kv_status status = look_up_and_try(n, c, engine, same);
    kv_probe_result result = same ? KV_PROBE_SAME : KV_PROBE_UNKNOWN;
    if (status == KV_OK && !same) {
        KV_INFO("the cache was made by engine %s; a probe of %zu tokens agrees with engine %s: it is used", n->build,
                n->tokens.len, c->probe_build);
        if (!c->cfg.readonly) put_note(c, ns, n);
        return KV_PROBE_AGREES;
    }
    if (status == KV_CORRUPT) {
        KV_WARN(
            "the cache was made by engine %s, and a probe of %zu tokens is answered otherwise by engine %s: what is "
            "stored is not used with it",
            n->build, n->tokens.len, c->probe_build);
        return KV_PROBE_DIFFERS;
    }
    if (status == KV_NOT_FOUND && !c->cfg.readonly) { /* its records went, and so does its text */
        (void)kv_store_set_note(c->cfg.store, ns, NULL, NULL);
        want = true;
    }
    if (!same)
        KV_WARN("the cache was made by engine %s, this is %s, and the probe's path is not to be had; it is used",
                n->build, c->probe_build);
    atomic_store(&c->probe_wanted, want);
    return result;
}

kv_probe_result kv_probe_run(kv_cache *c, kv_engine *engine) {
    const char *build = kv_engine_get_info(engine)->version;
    note n = {0};
    kv_probe_result result = KV_PROBE_UNKNOWN;
    if (!c->cfg.store || !is_build(build)) return KV_PROBE_SAME;
    free(c->probe_build);
    c->probe_build = kv_strdup(build);
    kv_hash ns = kv_cache_root_key(c, "");
    atomic_store(&c->probe_wanted, false);
    switch (read_note(&n, c, ns, engine->model->info.n_vocab)) {
    case KV_OK: result = judge(c, ns, &n, engine); break;
    case KV_NOT_FOUND:
        result = ask_about(c, ns);
        atomic_store(&c->probe_wanted, !c->cfg.readonly);
        break;
    case KV_UNSUPPORTED: KV_WARN("the cache's probe has a newer format and is left alone"); break;
    default:
        KV_WARN("the cache's probe is damaged: whether this engine agrees with the one before is not known");
        atomic_store(&c->probe_wanted, !c->cfg.readonly);
    }
    kv_tokens_free(&n.tokens);
    return result;
}
