/* engine/sampler_play.c: a sampler for tests that answers with given tokens, whatever the logits say. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

typedef struct play_sampler {
    kv_sampler base;
    kv_token *tokens; /* owned */
    int n, next;
    kv_token end, last;
} play_sampler;

static play_sampler *self(kv_sampler *s) {
    return (play_sampler *)s;
}

static void play_free(kv_sampler *s) {
    free(self(s)->tokens);
    free(s);
}

static kv_status play_prime(kv_sampler *s, const kv_token *prompt, size_t n, kv_error *err) {
    (void)s, (void)prompt, (void)n, (void)err;
    return KV_OK;
}

static kv_status play_sample(kv_token *out, kv_sampler *s, kv_engine *e, int row, kv_error *err) {
    play_sampler *p = self(s);
    *out = -1;
    /* As strict as a real one: a caller that samples a row without logits is wrong, whatever is played. */
    if (!kv_engine_logits(e, row)) return kv_fail(err, KV_INTERNAL, "row %d of the last batch has no logits", row);
    *out = p->last = p->next < p->n ? p->tokens[p->next++] : p->end;
    return KV_OK;
}

/* The played token is certain. */
static kv_status play_probs(kv_token_prob *top, int *n_top, kv_token_prob *chosen, kv_sampler *s, kv_engine *e, int row,
                            bool post_sampling, kv_error *err) {
    (void)e, (void)row, (void)post_sampling, (void)err;
    *chosen = (kv_token_prob){.token = self(s)->last, .logprob = 0};
    if (*n_top > 1) *n_top = 1;
    if (*n_top == 1) top[0] = *chosen;
    return KV_OK;
}

static uint32_t play_seed(const kv_sampler *s) {
    (void)s;
    return 0;
}

static const kv_sampler_ops ops = {
    .free = play_free, .prime = play_prime, .sample = play_sample, .probs = play_probs, .seed = play_seed};

kv_status kv_sampler_play_new(kv_sampler **out, const kv_token *tokens, int n, kv_token end) {
    play_sampler *p = kv_alloc(sizeof *p);
    p->base.ops = &ops;
    p->tokens = kv_alloc((size_t)n * sizeof *p->tokens);
    if (n > 0) memcpy(p->tokens, tokens, (size_t)n * sizeof *p->tokens);
    p->n = n;
    p->end = end;
    p->last = -1;
    *out = &p->base;
    return KV_OK;
}
