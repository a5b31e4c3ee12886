/* A small sampler for the fake: greedy, or softmax with top_k, top_p, min_p, temperature and logit_bias. Penalties,
 * DRY, XTC and the other samplers are accepted and change nothing; a grammar needs the engine's own sampler. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/engine_fake_internal.h"

typedef struct fake_sampler {
    kv_sampler base;
    const kv_fake_model *m; /* borrowed */
    float temperature, top_p, min_p;
    int32_t top_k, min_keep;
    uint32_t seed;
    uint64_t n_drawn;
    kv_logit_bias *bias; /* owned */
    int32_t n_bias;
    kv_token last;
    kv_token_prob *kept; /* what the last draw was made from, best first; logprobs of that distribution */
    int32_t n_kept;
} fake_sampler;

static int by_logit(const void *a, const void *b) { /* best first; of equals the lower id, so that sorts agree */
    const kv_token_prob *x = a, *y = b;
    if (x->logprob != y->logprob) return x->logprob < y->logprob ? 1 : -1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* The k best of n logits, sorted, to out: a heap of the k best so far with the worst of them on top. */
static void best_of(kv_token_prob *out, int32_t k, const float *logits, int32_t n) {
    for (int32_t t = 0; t < n; t++) {
        kv_token_prob c = {t, logits[t]};
        int32_t i;
        if (t < k) { /* sift up */
            for (i = t; i > 0 && by_logit(&out[(i - 1) / 2], &c) < 0; i = (i - 1) / 2) out[i] = out[(i - 1) / 2];
        } else { /* replace the worst and sift down */
            if (by_logit(&c, &out[0]) > 0) continue;
            for (i = 0;;) {
                int32_t child = 2 * i + 1;
                if (child >= k) break;
                if (child + 1 < k && by_logit(&out[child + 1], &out[child]) > 0) child++;
                if (by_logit(&out[child], &c) < 0) break;
                out[i] = out[child];
                i = child;
            }
        }
        out[i] = c;
    }
    qsort(out, (size_t)(k < n ? k : n), sizeof *out, by_logit);
}

/* Turn sorted logits into log probabilities; -inf stays. */
static void normalise(kv_token_prob *p, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((double)p[i].logprob - p[0].logprob);
    float log_sum = (float)log(sum) + p[0].logprob;
    for (int32_t i = 0; i < n; i++) p[i].logprob -= log_sum;
}

/* How many of the sorted candidates top_p and min_p leave, before temperature as in llama-server's order. */
static int32_t cut(const fake_sampler *s, int32_t n) {
    double sum = 0;
    int32_t kept = 0;
    while (kept < n) {
        double p = exp(s->kept[kept].logprob);
        bool enough = kept >= (s->min_keep > 1 ? s->min_keep : 1);
        if (enough && ((s->top_p < 1.0f && sum >= s->top_p) || p < s->min_p * exp(s->kept[0].logprob))) break;
        sum += p;
        kept++;
    }
    return kept;
}

static double draw(fake_sampler *s) { /* [0, 1), a function of the seed and how many came before */
    uint64_t in[2] = {s->seed, s->n_drawn++};
    return (double)(XXH3_64bits(in, sizeof in) >> 11) * 0x1p-53;
}

static kv_status fake_sample(kv_token *out, kv_sampler *base, kv_engine *e, int row, kv_error *err) {
    fake_sampler *s = (fake_sampler *)base;
    int32_t n = s->m->base.info.n_vocab;
    *out = -1;
    const float *row_logits = kv_engine_logits(e, row);
    if (!row_logits) return kv_fail(err, KV_INTERNAL, "sampling from row %d, which has no logits", row);
    float *logits = kv_alloc((size_t)n * sizeof *logits);
    memcpy(logits, row_logits, (size_t)n * sizeof *logits);
    for (int32_t i = 0; i < s->n_bias; i++) logits[s->bias[i].token] += s->bias[i].bias;
    s->n_kept = s->temperature <= 0 ? 1 : s->top_k > 0 && s->top_k < n ? s->top_k : n;
    best_of(s->kept, s->n_kept, logits, n);
    free(logits);
    if (s->kept[0].logprob == -INFINITY) return kv_fail(err, KV_INVALID, "logit_bias bans every token");
    normalise(s->kept, s->n_kept);
    int32_t pick = 0;
    if (s->temperature > 0) {
        s->n_kept = cut(s, s->n_kept);
        for (int32_t i = 0; i < s->n_kept; i++) s->kept[i].logprob /= s->temperature;
        normalise(s->kept, s->n_kept);
        double left = draw(s);
        while (pick + 1 < s->n_kept && (left -= exp(s->kept[pick].logprob)) >= 0) pick++;
        while (s->kept[pick].logprob == -INFINITY) pick--; /* rounding ran into banned ones */
    }
    *out = s->last = s->kept[pick].token;
    return KV_OK;
}

static kv_status fake_probs(kv_token_prob *top, int *n_top, kv_token_prob *chosen, kv_sampler *base, kv_engine *e,
                            int row, bool post_sampling, kv_error *err) {
    fake_sampler *s = (fake_sampler *)base;
    int32_t n = s->m->base.info.n_vocab;
    int room = *n_top;
    *n_top = 0;
    *chosen = (kv_token_prob){s->last, -INFINITY};
    const float *logits = kv_engine_logits(e, row);
    if (!logits || s->last < 0) return kv_fail(err, KV_INTERNAL, "probabilities of row %d, which was not sampled", row);
    if (post_sampling) {
        int k = room < s->n_kept ? room : s->n_kept;
        if (k > 0) memcpy(top, s->kept, (size_t)k * sizeof *top);
        for (int32_t i = 0; i < s->n_kept; i++)
            if (s->kept[i].token == s->last) *chosen = s->kept[i];
        *n_top = k;
        return KV_OK;
    }
    float max = -INFINITY;
    for (kv_token t = 0; t < n; t++) max = fmaxf(max, logits[t]);
    double sum = 0;
    for (kv_token t = 0; t < n; t++) sum += exp((double)logits[t] - max);
    float log_sum = (float)log(sum) + max;
    int k = room < n ? room : n;
    if (k > 0) best_of(top, k, logits, n);
    for (int i = 0; i < k; i++) top[i].logprob -= log_sum;
    chosen->logprob = logits[s->last] - log_sum;
    *n_top = k;
    return KV_OK;
}

static kv_status fake_prime(kv_sampler *s, const kv_token *prompt, size_t n, kv_error *err) {
    (void)s, (void)prompt, (void)n, (void)err; /* no penalties, nothing to remember */
    return KV_OK;
}

static uint32_t fake_seed(const kv_sampler *s) {
    return ((const fake_sampler *)s)->seed;
}

static void fake_free(kv_sampler *base) {
    fake_sampler *s = (fake_sampler *)base;
    free(s->bias);
    free(s->kept);
    free(s);
}

static const kv_sampler_ops fake_sampler_ops = {fake_free, fake_prime, fake_sample, fake_probs, fake_seed};

static kv_status check_sampling(const kv_fake_model *m, const kv_sampling *p, kv_error *err) {
    static const char *const known[] = {"penalties", "dry",   "top_n_sigma", "top_k",       "typ_p",      "typical_p",
                                        "top_p",     "min_p", "xtc",         "temperature", "adaptive_p", "infill"};
    if (p->grammar && strncmp(p->grammar, "%llguidance", 11) == 0)
        return kv_fail_field(err, "grammar", "llguidance grammars are not supported");
    if (p->grammar && *p->grammar)
        return kv_fail(err, KV_UNSUPPORTED, "the fake engine has no grammars; play a list of tokens instead");
    if (p->mirostat < 0 || p->mirostat > 2)
        return kv_fail_field(err, "mirostat", "mirostat is %d; it must be 0, 1 or 2", p->mirostat);
    for (int i = 0; p->samplers && i < p->n_samplers; i++) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(known[k], p->samplers[i]) != 0) k++;
        if (k == sizeof known / sizeof *known)
            return kv_fail_field(err, "samplers", "there is no sampler \"%s\"", p->samplers[i]);
    }
    for (int i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].token < 0 || p->logit_bias[i].token >= m->base.info.n_vocab)
            return kv_fail_field(err, "logit_bias", "token %d is outside the vocabulary of %d", p->logit_bias[i].token,
                                 m->base.info.n_vocab);
    return KV_OK;
}

/* Reproducible all the same: the same model hands out the same seeds in the same order. */
static uint32_t fresh_seed(const kv_fake_model *m) {
    uint64_t in[2] = {m->params.seed, atomic_fetch_add(&((kv_fake_model *)(uintptr_t)m)->n_seeds, 1)};
    uint32_t seed = (uint32_t)XXH3_64bits(in, sizeof in);
    return seed == KV_SEED_RANDOM ? 0 : seed;
}

kv_status kv_fake_sampler_new(kv_sampler **out, const kv_model *model, const kv_sampling *p, const kv_chat_prompt *chat,
                              kv_error *err) {
    const kv_fake_model *m = kv_fake_model_of(model);
    (void)chat; /* only its lazy grammar would matter */
    *out = NULL;
    if (p->play) return kv_sampler_play_new(out, p->play, p->n_play, m->end >= 0 ? m->end : 0);
    kv_status st = check_sampling(m, p, err);
    if (st != KV_OK) return st;
    fake_sampler *s = kv_alloc(sizeof *s);
    *s = (fake_sampler){
        .base = {&fake_sampler_ops},
        .m = m,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .min_keep = p->min_keep,
        .seed = p->seed == KV_SEED_RANDOM ? fresh_seed(m) : p->seed,
        .last = -1,
        .kept = kv_alloc((size_t)m->base.info.n_vocab * sizeof *s->kept),
    };
    int32_t n_banned = p->ignore_eos ? m->n_eog : 0;
    s->bias = kv_alloc((size_t)(p->n_logit_bias + n_banned) * sizeof *s->bias);
    for (int i = 0; i < p->n_logit_bias; i++) s->bias[s->n_bias++] = p->logit_bias[i];
    for (int32_t i = 0; i < n_banned; i++) s->bias[s->n_bias++] = (kv_logit_bias){m->eog[i], -INFINITY};
    *out = &s->base;
    return KV_OK;
}
