/* engine/embedder on tiny models: what each pooling gives is put together from the vectors of the single tokens. */
#include "engine/real.h"

#include <math.h>

#include "engine/embedder.h"

#define LLAMA   "tiny/llama.gguf"
#define RERANK  "tiny/rerank/qwen3.gguf"
#define ENCODER "tiny/encoder/embeds.gguf"

static kv_embedder *embedder(kv_model *m, kv_pooling pooling, int32_t n_batch, int32_t n_ctx, int32_t n_texts) {
    kv_embedder_params p = {.pooling = pooling, .n_batch = n_batch, .n_ctx = n_ctx, .n_texts = n_texts};
    kv_error err = {0};
    kv_embedder *e;
    kv_engine_params_defaults(&p.engine);
    p.engine.n_threads = p.engine.n_threads_batch = 1;
    p.engine.flash_attn = KV_FA_OFF;
    check(kv_embedder_new(&e, m, &p, &err), &err);
    return e;
}

static float *rows(kv_embedder *e, const kv_tokens *texts, int n, size_t n_rows) {
    kv_error err = {0};
    float *out = kv_alloc(n_rows * (size_t)kv_embedder_get_info(e)->width * sizeof *out);
    check(kv_embedder_run(out, e, texts, n, &err), &err);
    return out;
}

static void assert_near(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) < 1e-3f)) fail_msg("number %zu: %g, not %g", i, (double)a[i], (double)b[i]);
}

static void poolings_agree(void **state) {
    (void)state;
    kv_model *m = load(LLAMA);
    kv_tokens texts[2] = {tokens_of(m, "the quick brown fox"), tokens_of(m, "jumps")};
    kv_embedder *e = embedder(m, KV_POOLING_NONE, 64, 0, 2);
    size_t width = (size_t)kv_embedder_get_info(e)->width, n0 = texts[0].len, n1 = texts[1].len;
    assert_int_equal(width, kv_model_get_info(m)->n_embd);
    float *each = rows(e, texts, 2, n0 + n1);
    kv_embedder_free(e);

    static const kv_pooling kinds[] = {KV_POOLING_MEAN, KV_POOLING_CLS, KV_POOLING_LAST};
    float *wanted = kv_alloc(2 * width * sizeof *wanted);
    for (int k = 0; k < 3; k++) {
        for (size_t t = 0, from = 0; t < 2; t++) {
            size_t n = texts[t].len;
            for (size_t i = 0; i < width; i++) {
                float sum = 0;
                for (size_t r = 0; r < n; r++) sum += each[(from + r) * width + i];
                size_t at = from + (kinds[k] == KV_POOLING_LAST ? n - 1 : 0);
                wanted[t * width + i] = kinds[k] == KV_POOLING_MEAN ? sum / (float)n : each[at * width + i];
            }
            from += n;
        }
        e = embedder(m, kinds[k], 64, 0, 2);
        assert_int_equal(kv_embedder_get_info(e)->pooling, kinds[k]);
        float *got = rows(e, texts, 2, 2);
        assert_near(got, wanted, 2 * width);
        float *alone = rows(e, texts + 1, 1, 1); /* nothing of the last run is left */
        assert_near(alone, wanted + width, width);
        free(got);
        free(alone);
        kv_embedder_free(e);
    }
    free(wanted);
    free(each);
    for (int t = 0; t < 2; t++) kv_tokens_free(&texts[t]);
    kv_model_free(m);
}

/* Longer than a call, which only the last token's vector allows. */
static void long_texts(void **state) {
    (void)state;
    kv_model *m = load(LLAMA);
    kv_tokens text = {0};
    for (int i = 0; i < 100; i++) kv_tokens_add(&text, (kv_token)('a' + i % 26));
    kv_embedder *whole = embedder(m, KV_POOLING_LAST, 128, 0, 1), *cut = embedder(m, KV_POOLING_LAST, 32, 256, 1);
    size_t width = (size_t)kv_embedder_get_info(whole)->width;
    assert_true(kv_embedder_get_info(cut)->n_text_max >= 256);
    assert_int_equal(kv_embedder_get_info(cut)->n_batch, 32);
    float *a = rows(whole, &text, 1, 1), *b = rows(cut, &text, 1, 1);
    assert_near(a, b, width);
    free(a);
    free(b);
    kv_embedder_free(whole);
    kv_embedder_free(cut);
    kv_embedder *mean = embedder(m, KV_POOLING_MEAN, 32, 256, 1);
    kv_error err = {0};
    assert_int_equal(kv_embedder_get_info(mean)->n_text_max, 32);
    assert_int_equal(kv_embedder_run(NULL, mean, &text, 1, &err), KV_INVALID);
    kv_embedder_free(mean);
    kv_tokens_free(&text);
    kv_model_free(m);
}

/* Whatever the layers are: the same text gives the same vector alone and among others. */
static void every_memory(void **state) {
    (void)state;
    static const char *const names[] = {"tiny/gemma3.gguf", "tiny/lfm2.gguf", "tiny/mamba2.gguf", "tiny/qwen35.gguf"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        kv_model *m = load(names[k]);
        kv_tokens texts[2] = {tokens_of(m, "one two three four five six"), tokens_of(m, "seven")};
        kv_embedder *e = embedder(m, KV_POOLING_MEAN, 128, 0, 2);
        size_t width = (size_t)kv_embedder_get_info(e)->width;
        int both = kv_embedder_get_info(e)->n_texts; /* recurrent layers: one */
        float *first = rows(e, texts, both, (size_t)both), *second = rows(e, texts + 1, 1, 1);
        float *again = rows(e, texts, 1, 1);
        assert_near(first, again, width);
        if (both == 2) assert_near(first + width, second, width);
        free(first);
        free(second);
        free(again);
        kv_embedder_free(e);
        for (int t = 0; t < 2; t++) kv_tokens_free(&texts[t]);
        kv_model_free(m);
    }
}

static void scores(void **state) {
    (void)state;
    kv_model *m = load(RERANK);
    assert_non_null(kv_model_get_info(m)->rerank_template);
    kv_embedder *e = embedder(m, KV_POOLING_MODEL, 128, 0, 3);
    assert_int_equal(kv_embedder_get_info(e)->pooling, KV_POOLING_RANK);
    assert_int_equal(kv_embedder_get_info(e)->width, 1);
    kv_tokens texts[3] = {tokens_of(m, "a cat"), tokens_of(m, "a dog that barks"), tokens_of(m, "x")};
    float *all = rows(e, texts, 3, 3);
    for (int i = 0; i < 3; i++) {
        float *one = rows(e, texts + i, 1, 1);
        assert_true(all[i] > 0 && all[i] < 1); /* a softmax of two */
        assert_near(&all[i], one, 1);
        free(one);
    }
    free(all);
    kv_embedder_free(e);
    for (int i = 0; i < 3; i++) kv_tokens_free(&texts[i]);
    kv_model_free(m);
}

/* No memory: a text is seen whole, both ways, and no further than there are positions. */
static void encoders(void **state) {
    (void)state;
    kv_model *m = load(ENCODER);
    assert_true(kv_model_get_info(m)->is_encoder);
    assert_int_equal(kv_model_get_info(m)->n_ctx_train, 512);
    kv_tokens texts[3] = {tokens_of(m, "the quick brown fox"), tokens_of(m, "jumps"), {0}};
    assert_int_equal(texts[1].len, 1 + 5 + 1); /* [CLS] j u m p s [SEP] */
    kv_embedder_params p = {.pooling = KV_POOLING_MODEL, .n_batch = 1024, .n_texts = 4};
    kv_error err = {0};
    kv_embedder *e;
    kv_engine_params_defaults(&p.engine);
    p.engine.n_threads = p.engine.n_threads_batch = 1;
    check(kv_embedder_new(&e, m, &p, &err), &err);
    assert_int_equal(kv_embedder_get_info(e)->pooling, KV_POOLING_CLS);
    assert_int_equal(kv_embedder_get_info(e)->n_text_max, 512);
    size_t width = (size_t)kv_embedder_get_info(e)->width;
    float *both = rows(e, texts, 2, 2), *second = rows(e, texts + 1, 1, 1), *first = rows(e, texts, 1, 1);
    assert_near(both, first, width);
    assert_near(both + width, second, width);
    kv_token last = texts[0].data[texts[0].len - 2];
    texts[0].data[texts[0].len - 2] = texts[1].data[1]; /* the first token's vector tells of the last ones */
    float *other = rows(e, texts, 1, 1);
    float most = 0;
    for (size_t i = 0; i < width; i++) most = fmaxf(most, fabsf(other[i] - first[i]));
    assert_true(most > 1e-3f);
    for (int i = 0; i < 513; i++) kv_tokens_add(&texts[2], last);
    assert_int_equal(kv_embedder_run(both, e, texts + 2, 1, &err), KV_INVALID);
    texts[2].len = 512;
    float *longest = rows(e, texts + 2, 1, 1);
    free(both), free(second), free(first), free(other), free(longest);
    kv_embedder_free(e);
    for (int t = 0; t < 3; t++) kv_tokens_free(&texts[t]);
    kv_model_free(m);
}

static void encoders_score(void **state) {
    (void)state;
    kv_model *m = load("tiny/encoder/ranks.gguf");
    kv_embedder *e = embedder(m, KV_POOLING_MODEL, 128, 0, 2);
    assert_int_equal(kv_embedder_get_info(e)->pooling, KV_POOLING_RANK);
    kv_tokens texts[2] = {tokens_of(m, "a cat"), tokens_of(m, "a dog that barks")};
    float *both = rows(e, texts, 2, 2), *second = rows(e, texts + 1, 1, 1);
    assert_near(both + 1, second, 1);
    assert_true(fabsf(both[0] - both[1]) > 1e-4f);
    free(both);
    free(second);
    kv_embedder_free(e);
    for (int t = 0; t < 2; t++) kv_tokens_free(&texts[t]);
    kv_model_free(m);
}

/* What stands on engines finds one that holds nothing. */
static void an_encoder_has_no_engine_to_speak_of(void **state) {
    (void)state;
    kv_model *m = load(ENCODER);
    kv_engine *e = engine_sized(m, 512, 2, 34);
    const kv_engine_info *info = kv_engine_get_info(e);
    kv_error err = {0};
    kv_token token = 2;
    kv_pos pos = 0;
    kv_seq seq = 0;
    bool want = true;
    assert_int_equal(info->memory, KV_MEMORY_NONE);
    assert_string_equal(kv_memory_kind_name(info->memory), "none");
    assert_int_equal(info->n_slots, 2);
    assert_int_equal(kv_engine_decode(e, &(kv_batch){1, &token, &pos, &seq, &want}, &err), KV_ENGINE);
    assert_null(kv_engine_logits(e, 0));
    assert_int_equal(kv_engine_pos_max(e, 0), -1);
    assert_int_equal(kv_engine_state_size(e, 0, 0), 0);
    assert_true(kv_engine_seq_rm(e, 0, -1, -1));
    kv_engine_clear(e);
    kv_engine_free(e);
    kv_model_free(m);
}

static void refusals(void **state) {
    (void)state;
    kv_model *m = load(LLAMA);
    kv_error err = {0};
    kv_embedder_params p = {.pooling = KV_POOLING_RANK, .n_batch = 64, .n_texts = 1};
    kv_embedder *e;
    kv_engine_params_defaults(&p.engine);
    assert_int_equal(kv_embedder_new(&e, m, &p, &err), KV_UNSUPPORTED);
    assert_null(e);
    assert_non_null(strstr(err.message, "llama.pooling_type"));
    e = embedder(m, KV_POOLING_MODEL, 64, 0, 2);
    assert_int_equal(kv_embedder_get_info(e)->pooling, KV_POOLING_NONE);
    kv_tokens texts[2] = {0};
    float out[1];
    assert_int_equal(kv_embedder_run(out, e, texts, 0, &err), KV_INVALID);
    assert_int_equal(kv_embedder_run(out, e, texts, 3, &err), KV_INVALID);
    assert_int_equal(kv_embedder_run(out, e, texts, 1, &err), KV_INVALID); /* empty */
    kv_tokens_add(&texts[0], kv_model_get_info(m)->n_vocab);
    assert_int_equal(kv_embedder_run(out, e, texts, 1, &err), KV_INVALID);
    kv_tokens_free(&texts[0]);
    kv_embedder_free(e);
    kv_embedder_free(NULL);
    kv_model_free(m);
    m = load_with((kv_model_params){.vocab_only = true}, LLAMA);
    assert_int_equal(kv_embedder_new(&e, m, &p, &err), KV_UNSUPPORTED);
    kv_model_free(m);
}

static void names(void **state) {
    (void)state;
    for (int i = KV_POOLING_NONE; i <= KV_POOLING_RANK; i++) {
        kv_pooling p;
        assert_true(kv_pooling_from_name(&p, kv_pooling_name((kv_pooling)i)));
        assert_int_equal(p, i);
    }
    kv_pooling p;
    assert_false(kv_pooling_from_name(&p, "max"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poolings_agree),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(every_memory),
        cmocka_unit_test(scores),
        cmocka_unit_test(refusals),
        cmocka_unit_test(names),
        cmocka_unit_test(encoders),
        cmocka_unit_test(encoders_score),
        cmocka_unit_test(an_encoder_has_no_engine_to_speak_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
