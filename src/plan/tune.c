#include "plan/tune.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "os/machine.h"
#include "plan/remember.h"

#define DEPTH_MAX     2048 /* as in docs/engine.md "Speed on CPU"; deeper is not needed to tell the settings apart */
#define DEPTH_STEP    256
#define SUFFIX        16 /* a short last message; below 64 tokens CPU flash attention leaves its tiled path */
#define DECODES       6  /* single tokens timed at depth; the fastest counts */
#define DECODES_FIRST 3  /* and at the start */
/* Costs are compared at the depth of a conversation. What could be reached in the budget is laid on by a straight line
 * through start and end, but by no more than this factor: it multiplies the noise, too. */
#define DEPTH_COMPARED 1024
#define STRETCH_MOST   4
#define CHUNK_TOP      2048 /* the largest chunk that is tried */
#define SLACK          64   /* cells for what is decoded at the end */

/* What one request costs: a new message of 512 tokens after a cached prefix, two short suffixes (tool results), an
 * answer of 200 tokens. */
#define COST_PREFILL  512
#define COST_SUFFIXES 2
#define COST_DECODED  200
/* A setting other than the default must be this much cheaper, and a larger chunk this much faster: noise of a first
 * start must not decide. */
#define MARGIN 0.97

/* One engine under test. */
typedef struct side {
    kv_engine *engine; /* owned; NULL when this setting cannot be had */
    int32_t depth;     /* tokens in sequence 0 */
    double prefill;    /* µs a token, over all pieces of at least 64 */
    double prefill_us;
    int32_t n_prefill;
    double suffix_0, suffix; /* µs of SUFFIX tokens, at the start and at depth */
    double decode_0, decode; /* µs of one token, likewise */
} side;

typedef struct tuner {
    kv_model *model;
    const kv_engine_params *params;
    const kv_tune_ask *ask;
    const kv_clock *clock;
    int64_t deadline; /* set once, after the first tokens */
    bool started;     /* it is set */
    int turn;         /* counts run_both */
    kv_batch batch;   /* arrays of CHUNK_TOP entries, owned */
    side side[2];     /* [0] off, [1] on */
} tuner;

/* ── running pieces ────────────────────────────────────────────────────────────────────────────────────────────── */

static void alloc_batch(tuner *t) {
    size_t n = CHUNK_TOP;
    t->batch.token = kv_alloc(n * sizeof *t->batch.token);
    t->batch.pos = kv_alloc(n * sizeof *t->batch.pos);
    t->batch.seq = kv_alloc(n * sizeof *t->batch.seq);
    t->batch.want_logits = kv_alloc(n * sizeof *t->batch.want_logits);
}

static void tuner_free(tuner *t) {
    for (int i = 0; i < 2; i++) kv_engine_free(t->side[i].engine);
    free(t->batch.token);
    free(t->batch.pos);
    free(t->batch.seq);
    free(t->batch.want_logits);
}

/* Decodes n tokens at the end of sequence 0; microseconds, or -1 when the engine says no. */
static double run(tuner *t, side *s, int32_t n) {
    int32_t n_vocab = kv_model_get_info(t->model)->n_vocab;
    t->batch.n = n;
    for (int32_t i = 0; i < n; i++) {
        /* Any tokens will do, but different ones: a mixture of experts reads other weights for each. */
        t->batch.token[i] = (kv_token)((uint32_t)(s->depth + i) * 7919u % (uint32_t)n_vocab);
        t->batch.pos[i] = s->depth + i;
        t->batch.seq[i] = 0;
        t->batch.want_logits[i] = i == n - 1;
    }
    int64_t start = kv_now_us(t->clock);
    if (kv_engine_decode(s->engine, &t->batch, NULL) != KV_OK) return -1;
    kv_engine_logits(s->engine, n - 1); /* devices work behind the call's back until their result is read */
    s->depth += n;
    return (double)(kv_now_us(t->clock) - start);
}

/* The first tokens touch the weights, which may have to be read from disk: the budget begins behind them. */
static void start_budget(tuner *t) {
    if (!t->started) t->deadline = kv_now_us(t->clock) + KV_TUNE_BUDGET_US;
    t->started = true;
}

static bool fits(const tuner *t, double predicted_us) {
    return (double)kv_now_us(t->clock) + predicted_us <= (double)t->deadline;
}

/* The same piece on both sides, if it fits; the times go to us[2]. Who begins changes, for what a machine does over
 * time (clock, caches, other programs) to hit both. */
static bool run_both(tuner *t, int32_t n, double predicted_us, double us[2]) {
    if (!fits(t, predicted_us)) return false;
    bool first = t->turn++ % 2;
    for (int k = 0; k < 2; k++) {
        int i = k ^ first;
        us[i] = run(t, &t->side[i], n);
        if (us[i] < 0) return false;
        if (n < 64) continue;
        t->side[i].prefill_us += us[i];
        t->side[i].n_prefill += n;
        t->side[i].prefill = t->side[i].prefill_us / t->side[i].n_prefill;
    }
    return true;
}

static double max2(double a, double b) {
    return a > b ? a : b;
}
static double min2(double a, double b) {
    return a < b ? a : b;
}

/* The batch is no larger than needed: compute buffers hold a row of logits for each of its tokens. */
static kv_status open_side(tuner *t, bool on, int32_t chunk, kv_error *err) {
    kv_engine_params p = *t->params;
    p.flash_attn = on ? KV_FA_ON : KV_FA_OFF;
    p.n_batch = chunk + p.n_slots;
    p.n_ctx = DEPTH_MAX + DEPTH_STEP + SLACK;
    kv_engine_free(t->side[on].engine);
    t->side[on].engine = NULL;
    t->side[on].depth = 0;
    return kv_engine_new(&t->side[on].engine, t->model, &p, err);
}

/* ── flash attention ───────────────────────────────────────────────────────────────────────────────────────────── */

/* A few single tokens on both sides; the fastest of each goes to us[2]. False when not one fits. */
static bool run_singles(tuner *t, int n, double predicted_us, double best[2]) {
    double us[2];
    for (int k = 0; k < n; k++) {
        if (!run_both(t, 1, predicted_us, us)) return k > 0;
        for (int i = 0; i < 2; i++) best[i] = k ? min2(best[i], us[i]) : us[i];
        predicted_us = 2 * (best[0] + best[1]);
    }
    return true;
}

/* Pieces of growing size, each predicted from the one before: no step is begun that could take too long. */
static bool warm_and_ramp(tuner *t) {
    double one[2], us[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        if (run(t, &t->side[i], 1) < 0) return false;
    }
    start_budget(t);
    if (!run_singles(t, DECODES_FIRST, 0, one)) return false;
    for (int i = 0; i < 2; i++) t->side[i].decode_0 = one[i];
    if (!run_both(t, SUFFIX, SUFFIX * (one[0] + one[1]), us)) return false;
    for (int i = 0; i < 2; i++) t->side[i].suffix_0 = us[i];
    if (!run_both(t, 64, 64.0 / SUFFIX * (us[0] + us[1]), us)) return false;
    double need = 2 * (us[0] + us[1]);
    if (2 * need > (double)(t->deadline - kv_now_us(t->clock))) return true; /* the rest is needed for the end */
    return run_both(t, 128, need, us);
}

/* Deeper, while the rest still fits behind it: differences grow with the depth. */
static bool deepen(tuner *t) {
    double us[2];
    double rest =
        3 * (t->side[0].suffix_0 + t->side[1].suffix_0) + 2 * DECODES * (t->side[0].decode_0 + t->side[1].decode_0);
    while (t->side[0].depth + DEPTH_STEP <= DEPTH_MAX) {
        double need = 1.2 * DEPTH_STEP * (t->side[0].prefill + t->side[1].prefill);
        if (!fits(t, need + rest)) return true;
        if (!run_both(t, DEPTH_STEP, need, us)) return false;
    }
    return true;
}

static bool time_suffix_and_decode(tuner *t) {
    double us[2], start[2] = {t->side[0].decode_0, t->side[1].decode_0};
    /* what they took at the start, and as much again for the depth */
    if (!run_both(t, SUFFIX, 2 * (t->side[0].suffix_0 + t->side[1].suffix_0), us)) return false;
    for (int i = 0; i < 2; i++) t->side[i].suffix = us[i];
    if (!run_singles(t, DECODES, 2 * (start[0] + start[1]), us)) return false;
    for (int i = 0; i < 2; i++) t->side[i].decode = us[i];
    return true;
}

/* What a piece would take at the compared depth. */
static double at_depth(const side *s, double start, double end) {
    double most = STRETCH_MOST * (double)s->depth, depth = most < DEPTH_COMPARED ? most : DEPTH_COMPARED;
    if (end <= start || s->depth >= depth) return end;
    return end + (end - start) / s->depth * (depth - s->depth);
}

static double cost(const side *s) {
    return COST_PREFILL * s->prefill + COST_SUFFIXES * at_depth(s, s->suffix_0, s->suffix) +
           COST_DECODED * at_depth(s, s->decode_0, s->decode);
}

static void choose_flash_attn(tuner *t, kv_tuning *out) {
    const side *off = &t->side[0], *on = &t->side[1];
    bool by_default = !out->on_cpu;
    if (!warm_and_ramp(t) || !deepen(t) || !time_suffix_and_decode(t)) {
        out->flash_attn = by_default;
        snprintf(out->reason, sizeof out->reason, "flash attention %s: the default %s, 5 s did not suffice to measure",
                 by_default ? "on" : "off", out->on_cpu ? "on CPU" : "on this device");
        return;
    }
    out->measured = true;
    out->flash_attn = by_default ? cost(off) >= MARGIN * cost(on) : cost(on) < MARGIN * cost(off);
    snprintf(
        out->reason, sizeof out->reason,
        "flash attention %s: at depth %d with it prefill %.0f tok/s, 16 tokens %.0f ms, a token %.1f ms; without %.0f, "
        "%.0f, %.1f",
        out->flash_attn ? "on" : "off", on->depth, 1e6 / max2(on->prefill, 1e-3), on->suffix / 1e3, on->decode / 1e3,
        1e6 / max2(off->prefill, 1e-3), off->suffix / 1e3, off->decode / 1e3);
}

/* Which settings there are to choose from. */
static kv_status decide_flash_attn(tuner *t, kv_tuning *out, kv_error *err) {
    kv_error off_err = {0};
    if (t->ask->flash_attn != KV_FA_AUTO) {
        out->flash_attn = t->ask->flash_attn == KV_FA_ON;
        snprintf(out->reason, sizeof out->reason, "flash attention %s: asked for", out->flash_attn ? "on" : "off");
        return t->ask->chunk > 0 ? KV_OK : open_side(t, out->flash_attn, DEPTH_STEP, err);
    }
    bool has_off = open_side(t, false, DEPTH_STEP, &off_err) == KV_OK;
    bool has_on = open_side(t, true, DEPTH_STEP, err) == KV_OK;
    if (!has_off && !has_on) {
        if (err) *err = off_err;
        return off_err.status;
    }
    if (has_off && has_on) {
        choose_flash_attn(t, out);
        return KV_OK;
    }
    out->flash_attn = has_on;
    snprintf(out->reason, sizeof out->reason, "flash attention %s: the engine cannot run %s it here",
             has_on ? "on" : "off", has_on ? "without" : "with");
    return KV_OK;
}

/* ── chunk ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int32_t to_block(int32_t n, int32_t block) {
    return n / block * block > block ? n / block * block : block;
}

/* Candidate sizes, smallest first; returns how many. */
static int candidates(int32_t out[4], const tuner *t, bool on_cpu) {
    static const int32_t cpu[] = {KV_CHUNK_CPU, 2 * KV_CHUNK_CPU}, gpu[] = {KV_CHUNK_GPU, 2 * KV_CHUNK_GPU, CHUNK_TOP};
    const int32_t *all = on_cpu ? cpu : gpu;
    int n = 0, n_all = on_cpu ? 2 : 3;
    for (int i = 0; i < n_all; i++) {
        int32_t size = to_block(all[i], t->ask->block); /* blocks are at most 256, so no larger than CHUNK_TOP */
        if (t->ask->chunk_max > 0 && size > t->ask->chunk_max) size = to_block(t->ask->chunk_max, t->ask->block);
        if (n == 0 || size > out[n - 1]) out[n++] = size;
    }
    return n;
}

/* µs for `span` tokens from the start in pieces of `chunk`; -1 on failure. */
static double time_span(tuner *t, side *s, int32_t span, int32_t chunk) {
    double sum = 0;
    kv_engine_clear(s->engine);
    s->depth = 0;
    for (int32_t done = 0; done < span;) {
        int32_t n = span - done < chunk ? span - done : chunk;
        double us = run(t, s, n);
        if (us < 0) return -1;
        sum += us;
        done += n;
    }
    return sum;
}

/* A rate to predict with, where flash attention was not measured. */
static bool know_rate(tuner *t, side *s) {
    if (s->prefill > 0) return true;
    if (t->started || run(t, s, 1) < 0) return false; /* started: it was tried, and too slow */
    start_budget(t);
    double one = run(t, s, 1);
    if (one < 0 || !fits(t, SUFFIX * one)) return false;
    double few = run(t, s, SUFFIX);
    if (few < 0 || !fits(t, 64.0 / SUFFIX * few)) return false;
    double us = run(t, s, 64);
    if (us < 0) return false;
    s->prefill = us / 64;
    return true;
}

static void decide_chunk(tuner *t, kv_tuning *out) {
    int32_t size[4];
    side *s = &t->side[out->flash_attn];
    int n = candidates(size, t, out->on_cpu);
    if (t->ask->chunk > 0) {
        out->chunk = to_block(t->ask->chunk, t->ask->block);
        return;
    }
    out->chunk = size[0];
    if (n < 2 || !know_rate(t, s)) return;
    while (n > 1 && !fits(t, 1.2 * n * size[n - 1] * s->prefill)) n--;
    if (n < 2 || open_side(t, out->flash_attn, size[n - 1], NULL) != KV_OK) return;
    double best = 0;
    for (int i = 0; i < n; i++) {
        double us = time_span(t, s, size[n - 1], size[i]);
        if (us < 0) return;
        if (i > 0 && us >= MARGIN * best) continue;
        out->chunk = size[i];
        best = us;
    }
}

/* ── remembering ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_key(kv_buf *key, const tuner *t, const char *backends) {
    const kv_model_info *m = kv_model_get_info(t->model);
    const kv_engine_params *p = t->params;
    kv_buf machine = {0};
    kv_machine_fingerprint(&machine);
    kv_buf_addf(key, "tune/%s/%s/%llu/%llu/%d/%s/%s", m->arch, m->desc, (unsigned long long)m->size_bytes,
                (unsigned long long)m->n_params, m->n_vocab, KVASIR_ENGINE_RELEASE, kv_buf_str(&machine));
    kv_buf_addf(key, "/%s/%s/%s-%s/t%d-%d/s%d/o%d%d", backends, t->ask->placement ? t->ask->placement : "",
                p->type_k ? p->type_k : "f16", p->type_v ? p->type_v : "f16", p->n_threads, p->n_threads_batch,
                p->n_slots, p->offload_kqv, p->op_offload);
    kv_buf_addf(key, "/fa%d/c%d-%d/b%d", (int)t->ask->flash_attn, t->ask->chunk, t->ask->chunk_max, t->ask->block);
    kv_buf_free(&machine);
}

static bool recall(kv_tuning *out, const tuner *t, const char *key) {
    json_t *value = kv_remember_get(t->ask->state_dir, key);
    bool fa = false, measured = false;
    int64_t chunk = 0;
    bool ok = json_is_object(value) && kv_json_get(value, "flash_attn") &&
              kv_json_bool(&fa, value, "flash_attn", NULL) == KV_OK &&
              kv_json_bool(&measured, value, "measured", NULL) == KV_OK &&
              kv_json_int(&chunk, value, "chunk", t->ask->block, 65536, NULL) == KV_OK && chunk % t->ask->block == 0 &&
              chunk > 0;
    if (ok) {
        const char *reason = json_string_value(kv_json_get(value, "reason"));
        out->flash_attn = fa;
        out->measured = measured;
        out->chunk = (int32_t)chunk;
        out->remembered = true;
        snprintf(out->reason, sizeof out->reason, "%s", reason ? reason : "");
    }
    json_decref(value);
    return ok;
}

static void keep(const kv_tuning *out, const tuner *t, const char *key) {
    kv_error err = {0};
    json_t *value = json_object();
    json_object_set_new(value, "flash_attn", json_boolean(out->flash_attn));
    json_object_set_new(value, "measured", json_boolean(out->measured));
    json_object_set_new(value, "chunk", json_integer(out->chunk));
    json_object_set_new(value, "reason", kv_json_text0(out->reason));
    if (kv_remember_put(t->ask->state_dir, key, value, &err) != KV_OK)
        KV_WARN("what was measured cannot be remembered, the next start measures again: %s", err.message);
}

/* ── all together ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* "CPU (…)" and helpers of the CPU only? Entries are "NAME (description)", joined by ", ". */
static bool only_cpu(const char *backends) {
    static const char *const cpu[] = {"CPU", "BLAS", "AMX", "Accelerate"};
    for (const char *p = backends; p && *p;) {
        bool known = false;
        for (size_t i = 0; i < sizeof cpu / sizeof *cpu; i++) known |= strncmp(p, cpu[i], strlen(cpu[i])) == 0;
        if (!known) return false;
        p = strstr(p, "), ");
        if (p) p += 3;
    }
    return true;
}

/* Devices in use, as the engine tells them; any small engine will do. Quantised V exists with flash attention only. */
static kv_status ask_backends(kv_buf *out, tuner *t, kv_error *err) {
    kv_engine *e = NULL;
    kv_engine_params p = *t->params;
    p.n_ctx = DEPTH_STEP;
    p.n_batch = p.n_slots + 1;
    p.n_threads = p.n_threads_batch = 1;
    p.flash_attn = t->ask->flash_attn == KV_FA_ON ? KV_FA_ON : KV_FA_OFF;
    kv_status st = kv_engine_new(&e, t->model, &p, err);
    if (st != KV_OK && t->ask->flash_attn == KV_FA_AUTO) {
        p.flash_attn = KV_FA_ON;
        st = kv_engine_new(&e, t->model, &p, err);
    }
    if (st == KV_OK && kv_engine_get_info(e)->backends) kv_buf_adds(out, kv_engine_get_info(e)->backends);
    kv_engine_free(e);
    return st;
}

kv_status kv_tune(kv_tuning *out, kv_model *model, const kv_engine_params *params, const kv_tune_ask *ask,
                  const kv_clock *clock, kv_error *err) {
    *out = (kv_tuning){0};
    tuner t = {.model = model, .params = params, .ask = ask, .clock = clock};
    kv_buf key = {0}, backends = {0};
    KV_CHECK(ask->block > 0 && ask->block <= DEPTH_STEP);
    alloc_batch(&t);
    kv_status st = ask_backends(&backends, &t, err);
    if (st != KV_OK) goto done;
    out->on_cpu = ask->cpu_only || only_cpu(kv_buf_str(&backends));
    add_key(&key, &t, kv_buf_str(&backends));
    if (!recall(out, &t, kv_buf_str(&key))) {
        st = decide_flash_attn(&t, out, err);
        if (st != KV_OK) goto done;
        decide_chunk(&t, out);
        if (ask->flash_attn == KV_FA_AUTO || ask->chunk <= 0) keep(out, &t, kv_buf_str(&key));
    }
    out->min_chunk = out->flash_attn && out->on_cpu ? 64 : 16;
done:
    tuner_free(&t);
    kv_buf_free(&key);
    kv_buf_free(&backends);
    return st;
}
