/* engine_llama on real models: load, tokenise, decode, fork, cut, blobs, errors. */
#include "engine/real.h"

#include <math.h>

static kv_model *smol, *gemma;

static int load_models(void **state) {
    (void)state;
    smol = load(SMOL);
    gemma = load(GEMMA);
    return 0;
}

static int free_models(void **state) {
    (void)state;
    kv_model_free(smol);
    kv_model_free(gemma);
    return 0;
}

/* ── load, text, greedy answer ── */

static void test_answers_a_chat_prompt(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 512, 2, 128);
    kv_tokens t =
        tokens_of(smol, "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n");
    check(run(e, 0, t.data, (int)t.len, &err), &err);
    kv_sampling s;
    kv_sampling_defaults(&s);
    s.temperature = 0;
    kv_sampler *sampler;
    check(kv_sampler_new(&sampler, smol, &s, NULL, &err), &err);
    check(kv_sampler_prime(sampler, t.data, t.len, &err), &err);
    kv_buf text = {0};
    int row = (int)t.len - 1;
    for (int i = 0; i < 32; i++) {
        kv_token token;
        check(kv_sampler_sample(&token, sampler, e, row, &err), &err);
        if (kv_model_is_eog(smol, token)) break;
        kv_model_piece(&text, smol, token, false);
        check(run(e, 0, &token, 1, &err), &err);
        row = 0;
    }
    if (!strstr(kv_buf_str(&text), "Paris")) fail_msg("an answer without Paris: %s", kv_buf_str(&text));
    kv_buf_free(&text);
    kv_sampler_free(sampler);
    kv_tokens_free(&t);
    kv_engine_free(e);
}

static void test_info(void **state) {
    (void)state;
    const kv_model_info *info = kv_model_get_info(smol);
    assert_string_equal(info->arch, "llama");
    assert_int_equal(info->n_vocab, 49152);
    assert_int_equal(info->n_ctx_train, 8192);
    assert_int_equal(info->n_window, 0);
    assert_string_equal(info->eos_text, "<|im_end|>");
    assert_true(info->chat_template_explicit);
    assert_non_null(strstr(info->chat_template, "<|im_start|>"));
    info = kv_model_get_info(gemma);
    assert_string_equal(info->arch, "gemma3");
    assert_int_equal(info->n_window, 512);
    assert_false(info->chat_template_explicit);
}

static kv_tokens long_text(const kv_model *m, size_t n) {
    kv_buf b = {0};
    for (int i = 0; b.len < n * 8; i++)
        kv_buf_addf(&b, "Line %d of the story tells how the %dth ship came home. ", i, i * 7 % 13);
    kv_tokens t = tokens_of(m, kv_buf_str(&b));
    assert_true(t.len >= n);
    t.len = n;
    kv_buf_free(&b);
    return t;
}

static void test_tokens_and_pieces(void **state) {
    (void)state;
    kv_error err = {0};
    static const char *const texts[] = {"", "Hello, world", "caf\xC3\xA9 \xF0\x9F\x8E\x89 \xE2\x82\xAC",
                                        "  two  spaces\n\n", "bad \xFF\xFE bytes"};
    kv_model *models[] = {smol, gemma};
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            kv_tokens t = {0};
            check(kv_model_tokenize(&t, models[m], texts[i], strlen(texts[i]), false, false, &err), &err);
            kv_buf b = {0};
            for (size_t k = 0; k < t.len; k++) kv_model_piece(&b, models[m], t.data[k], false);
            if (i < 4) assert_string_equal(kv_buf_str(&b), texts[i]);
            kv_buf_free(&b);
            kv_tokens_free(&t);
        }
    kv_tokens with = {0}, without = {0};
    check(kv_model_tokenize(&with, smol, "<|im_start|>", 12, false, true, &err), &err);
    check(kv_model_tokenize(&without, smol, "<|im_start|>", 12, false, false, &err), &err);
    assert_int_equal(with.len, 1);
    assert_true(without.len > 1);
    kv_buf b = {0};
    kv_model_piece(&b, smol, with.data[0], false);
    assert_int_equal(b.len, 0);
    kv_model_piece(&b, smol, with.data[0], true);
    assert_string_equal(kv_buf_str(&b), "<|im_start|>");
    kv_model_piece(&b, smol, -1, true);
    kv_model_piece(&b, smol, 1 << 30, true);
    assert_string_equal(kv_buf_str(&b), "<|im_start|>");
    assert_true(kv_model_is_eog(smol, kv_model_get_info(smol)->eos));
    assert_false(kv_model_is_eog(smol, -1));
    assert_false(kv_model_is_eog(smol, 1 << 30));
    kv_buf_free(&b);
    kv_tokens_free(&with);
    kv_tokens_free(&without);
}

/* ── refusals at load ── */

static void refuses(kv_model_params p, kv_status expected, const char *why) {
    kv_error err = {0};
    kv_model *m;
    assert_int_equal(kv_model_load_llama(&m, &p, &err), expected);
    assert_null(m);
    if (!strstr(err.message, why)) fail_msg("\"%s\" does not say \"%s\"", err.message, why);
}

static bool stop_loading(void *ctx, float done) {
    (void)ctx, (void)done;
    return false;
}

static void test_refusals(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", fixture(SMOL));
    refuses((kv_model_params){.path = NULL}, KV_INVALID, "no model file");
    refuses((kv_model_params){.path = "/nowhere/x.gguf"}, KV_INVALID, "No such file");
    refuses((kv_model_params){.path = "/dev/null"}, KV_INVALID, "GGUF");
    refuses((kv_model_params){.path = path, .devices = "GPU99"}, KV_INVALID, "GPU99");
    refuses((kv_model_params){.path = path, .split_mode = "diagonal"}, KV_INVALID, "diagonal");
    refuses((kv_model_params){.path = path, .tensor_split = "3,x"}, KV_INVALID, "3,x");
    const char *override = "no-equals-sign";
    refuses((kv_model_params){.path = path, .kv_overrides = &override, .n_kv_overrides = 1}, KV_INVALID,
            "KEY=TYPE:VALUE");
    kv_lora_spec lora = {"/nowhere/lora.gguf", 1};
    refuses((kv_model_params){.path = path, .loras = &lora, .n_loras = 1}, KV_INVALID, "/nowhere/lora.gguf");
    lora.path = path;
    refuses((kv_model_params){.path = path, .loras = &lora, .n_loras = 1}, KV_INVALID, "cannot load the adapter");
    refuses((kv_model_params){.path = path, .chat_template = "{% endfor %}"}, KV_INVALID, "chat template");
    refuses((kv_model_params){.path = path, .progress = stop_loading}, KV_CANCELLED, "stopped");
}

static void test_overrides_and_vocab_only(void **state) {
    (void)state;
    const char *overrides[] = {"llama.context_length=int:1234", "general.name=str:Renamed"};
    kv_model *m =
        load_with((kv_model_params){.vocab_only = true, .kv_overrides = overrides, .n_kv_overrides = 2}, SMOL);
    kv_tokens a = tokens_of(m, "the same tokens"), b = tokens_of(smol, "the same tokens");
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len * sizeof *a.data);
    kv_error err = {0};
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    kv_engine *e;
    assert_int_equal(kv_engine_new(&e, m, &p, &err), KV_UNSUPPORTED);
    assert_null(e);
    kv_tokens_free(&a);
    kv_tokens_free(&b);
    kv_model_free(m);
}

static void refuses_engine(kv_engine_params p, const char *field) {
    kv_error err = {0};
    kv_engine *e;
    assert_int_equal(kv_engine_new(&e, smol, &p, &err), KV_INVALID);
    assert_null(e);
    assert_string_equal(err.field, field);
}

static void test_engine_parameters(void **state) {
    (void)state;
    kv_engine_params d, p;
    kv_engine_params_defaults(&d);
    d.n_ctx = 512;
    d.flash_attn = KV_FA_OFF;
    p = d, p.n_slots = 0, refuses_engine(p, "parallel");
    p = d, p.n_slots = 100000, refuses_engine(p, "parallel");
    p = d, p.n_ctx = 0, refuses_engine(p, "ctx-size");
    p = d, p.n_batch = p.n_slots, refuses_engine(p, "batch-size");
    p = d, p.type_k = "q3", refuses_engine(p, "cache-type-k");
    p = d, p.type_v = "q8_0", refuses_engine(p, "cache-type-v");
    p = d, p.rope_scaling = "round", refuses_engine(p, "rope-scaling");
}

/* ── what the engine says it allocated (docs/engine.md) ── */

static void test_bytes_full(void **state) {
    (void)state;
    kv_engine *e = engine_sized(smol, 1000, 3, 64);
    const kv_engine_info *info = kv_engine_get_info(e);
    assert_int_equal(info->memory, KV_MEMORY_FULL);
    assert_int_equal(info->n_ctx, 1024);
    assert_int_equal(info->n_slots, 3);
    assert_int_equal(info->n_batch, 64);
    assert_int_equal(info->n_window, 0);
    assert_int_equal(info->n_window_cells, 0);
    assert_int_equal(info->bytes_per_cell, 30 * (3 * 64) * 2 * 2); /* layers × heads × size × (K, V) × f16 */
    assert_int_equal(info->bytes_per_window_cell, 0);
    assert_int_equal(info->bytes_recurrent, 0);
    assert_int_equal(info->bytes_state_total, 1024 * info->bytes_per_cell);
    assert_true(info->bytes_compute > 0);
    assert_string_equal(info->type_k, "f16");
    assert_false(info->flash_attn);
    assert_non_null(strstr(info->backends, "CPU"));
    kv_engine_free(e);
}

static void test_flash_attention_is_told(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model *models[] = {smol, gemma};
    for (int m = 0; m < 2; m++) {
        kv_engine_params p;
        kv_engine_params_defaults(&p);
        p.n_ctx = 512;
        kv_engine *automatic, *on;
        p.flash_attn = KV_FA_AUTO;
        check(kv_engine_new(&automatic, models[m], &p, &err), &err);
        p.flash_attn = KV_FA_ON;
        check(kv_engine_new(&on, models[m], &p, &err), &err);
        /* On the CPU libllama takes it wherever it can. */
        assert_true(kv_engine_get_info(automatic)->flash_attn);
        assert_true(kv_engine_get_info(on)->flash_attn);
        kv_engine_free(automatic);
        kv_engine_free(on);
    }
}

static void test_bytes_quantised(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = 256;
    p.flash_attn = KV_FA_ON;
    p.type_k = "q8_0";
    p.type_v = "q4_0";
    kv_engine *e;
    check(kv_engine_new(&e, smol, &p, &err), &err);
    assert_true(kv_engine_get_info(e)->flash_attn);
    assert_int_equal(kv_engine_get_info(e)->bytes_per_cell, 30 * (192 / 32 * 34 + 192 / 32 * 18));
    kv_engine_free(e);
}

static void test_bytes_window(void **state) {
    (void)state;
    kv_engine *e = engine_sized(gemma, 4096, 2, 128);
    const kv_engine_info *info = kv_engine_get_info(e);
    assert_int_equal(info->memory, KV_MEMORY_WINDOW);
    assert_int_equal(info->n_window, 512);
    assert_false(info->window_is_chunked);
    assert_int_equal(info->n_window_cells, (512 * 3 + 128 + 255) / 256 * 256);
    assert_int_equal(info->bytes_per_cell, 3 * 256 * 2 * 2); /* each sixth of 18 layers is global */
    assert_int_equal(info->bytes_per_window_cell, 15 * 256 * 2 * 2);
    assert_int_equal(info->bytes_state_total,
                     info->n_ctx * info->bytes_per_cell + info->n_window_cells * info->bytes_per_window_cell);
    kv_engine_free(e);
    e = engine_sized(gemma, 512, 2, 128); /* the window cache is never larger than the main one */
    info = kv_engine_get_info(e);
    assert_int_equal(info->n_window_cells, 512);
    assert_int_equal(info->bytes_state_total, 512 * (info->bytes_per_cell + info->bytes_per_window_cell));
    kv_engine_free(e);
}

/* ── decode and its errors ── */

static kv_status decode_one(kv_engine *e, kv_token token, kv_pos pos, kv_seq seq) {
    kv_error err = {0};
    bool want = true;
    return kv_engine_decode(e, &(kv_batch){1, &token, &pos, &seq, &want}, &err);
}

static void test_wrong_batches_are_refused(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 256, 2, 16);
    kv_tokens t = long_text(smol, 40);
    run_all(e, 0, t.data, 10, 10);
    assert_int_equal(decode_one(e, t.data[10], 11, 0), KV_ENGINE); /* a gap */
    assert_int_equal(decode_one(e, t.data[10], 9, 0), KV_ENGINE);  /* again */
    assert_int_equal(decode_one(e, t.data[10], 1, 1), KV_ENGINE);  /* not from 0 */
    assert_int_equal(decode_one(e, -1, 10, 0), KV_ENGINE);
    assert_int_equal(decode_one(e, 49152, 10, 0), KV_ENGINE);
    assert_int_equal(decode_one(e, 5, 0, 3), KV_ENGINE);
    assert_int_equal(decode_one(e, 5, 0, -1), KV_ENGINE);
    assert_int_equal(run(e, 0, t.data + 10, 17, &err), KV_ENGINE); /* over n_batch */
    assert_int_equal(kv_engine_decode(e, &(kv_batch){0}, &err), KV_ENGINE);
    assert_true(err.message[0]);
    assert_int_equal(kv_engine_pos_max(e, 0), 9);
    assert_int_equal(kv_engine_pos_max(e, 1), -1);
    assert_int_equal(decode_one(e, t.data[10], 10, 0), KV_OK);
    /* Sequences that are not there. */
    assert_int_equal(kv_engine_pos_max(e, 99), -1);
    assert_int_equal(kv_engine_pos_min(e, -1), -1);
    assert_false(kv_engine_seq_rm(e, 99, -1, -1));
    kv_engine_seq_cp(e, 0, 99, -1, -1);
    assert_int_equal(kv_engine_state_size(e, 99, 0), 0);
    assert_int_equal(kv_engine_state_set(e, "x", 1, 0, 0), 0);
    kv_tokens_free(&t);
    kv_engine_free(e);
}

static void test_logits_only_where_wanted(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 256, 1, 8);
    kv_token token[4] = {10, 20, 30, 40};
    kv_pos pos[4] = {0, 1, 2, 3};
    kv_seq seq[4] = {0};
    bool want[4] = {false, true, false, true};
    check(kv_engine_decode(e, &(kv_batch){4, token, pos, seq, want}, &err), &err);
    for (int row = -1; row < 9; row++) assert_int_equal(kv_engine_logits(e, row) != NULL, row == 1 || row == 3);
    assert_true(kv_engine_logits(e, 1) != kv_engine_logits(e, 3));
    kv_engine_clear(e);
    want[0] = true; /* more than one a sequence (scratch included) must be asked for when the engine is made */
    assert_int_equal(kv_engine_decode(e, &(kv_batch){4, token, pos, seq, want}, &err), KV_ENGINE);
    assert_int_equal(kv_engine_pos_max(e, 0), -1);
    kv_engine_free(e);
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = 256;
    p.n_slots = 1;
    p.n_batch = p.n_outputs = 8;
    check(kv_engine_new(&e, smol, &p, &err), &err);
    check(kv_engine_decode(e, &(kv_batch){4, token, pos, seq, want}, &err), &err);
    kv_engine_free(e);
}

/* A full pool says so, changes nothing, and works again when room was made. */
static void test_pool_full(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 256, 2, 64);
    kv_tokens t = long_text(smol, 300);
    run_all(e, 0, t.data, 192, 64);
    run_all(e, 1, t.data, 40, 40);
    assert_int_equal(run(e, 0, t.data + 192, 64, &err), KV_NO_CELLS);
    assert_true(err.message[0]);
    assert_int_equal(kv_engine_pos_max(e, 0), 191);
    assert_int_equal(kv_engine_pos_max(e, 1), 39);
    for (int row = 0; row < 64; row++) assert_null(kv_engine_logits(e, row));
    assert_true(kv_engine_seq_rm(e, 1, -1, -1));
    check(run(e, 0, t.data + 192, 64, &err), &err);
    assert_int_equal(kv_engine_pos_max(e, 0), 255);
    assert_int_equal(run(e, 0, t.data + 256, 1, &err), KV_NO_CELLS);
    kv_engine_clear(e);
    assert_int_equal(kv_engine_pos_max(e, 0), -1);
    check(run(e, 0, t.data, 64, &err), &err);
    kv_tokens_free(&t);
    kv_engine_free(e);
}

/* ── fork, cut, blobs: equal to the bit ── */

static void same_logits(kv_engine *a, int row_a, kv_engine *b, int row_b) {
    const float *x = kv_engine_logits(a, row_a), *y = kv_engine_logits(b, row_b);
    assert_non_null(x);
    assert_non_null(y);
    int n = kv_model_get_info(a->model)->n_vocab;
    float worst = 0;
    for (int i = 0; i < n; i++) worst = fmaxf(worst, fabsf(x[i] - y[i]));
    if (worst != 0) fail_msg("logits differ by up to %g", (double)worst);
}

/* After P tokens (gemma: past its window) the fork and its origin go on with other tokens, each as the run that was
 * never forked does. One engine decodes each step twice in the same cells, so zero is what to expect. */
static void fork_and_go_on(kv_model *m, int P) {
    kv_error err = {0};
    kv_engine *plain = engine_sized(m, 2048, 2, 128), *forked = engine_sized(m, 2048, 2, 128);
    kv_tokens t = long_text(m, (size_t)P + 40);
    run_all(plain, 0, t.data, P, 128);
    run_all(forked, 0, t.data, P, 128);
    check(kv_engine_fork(forked, 0, 1, P, &err), &err);
    assert_int_equal(kv_engine_pos_max(forked, 1), P - 1);
    /* The fork goes on where the plain run does: the same cells are free in both. */
    for (int i = 0; i < 8; i++) {
        check(run(plain, 0, t.data + P + i, 1, &err), &err);
        check(run(forked, 1, t.data + P + i, 1, &err), &err);
        same_logits(plain, 0, forked, 0);
    }
    /* And the origin is untouched by what the fork did. */
    assert_true(kv_engine_seq_rm(forked, 1, -1, -1));
    kv_engine_clear(plain);
    run_all(plain, 0, t.data, P, 128);
    for (int i = 0; i < 8; i++) {
        check(run(plain, 0, t.data + P + 32 + i, 1, &err), &err);
        check(run(forked, 0, t.data + P + 32 + i, 1, &err), &err);
        same_logits(plain, 0, forked, 0);
    }
    kv_tokens_free(&t);
    kv_engine_free(plain);
    kv_engine_free(forked);
}

static void test_fork_full(void **state) {
    (void)state;
    fork_and_go_on(smol, 200);
}

static void test_fork_window(void **state) {
    (void)state;
    fork_and_go_on(gemma, 640);
}

static void test_fork_refuses(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 256, 2, 64);
    kv_tokens t = long_text(smol, 20);
    run_all(e, 0, t.data, 20, 20);
    assert_int_equal(kv_engine_fork(e, 0, 1, 19, &err), KV_ENGINE);
    assert_int_equal(kv_engine_fork(e, 0, 0, 20, &err), KV_ENGINE);
    assert_int_equal(kv_engine_fork(e, 0, 99, 20, &err), KV_ENGINE);
    check(kv_engine_fork(e, 1, 2, 0, &err), &err);
    assert_int_equal(kv_engine_pos_max(e, 1), -1);
    kv_tokens_free(&t);
    kv_engine_free(e);
}

/* Cut back and go on another way: as if the cut part had never been. */
static void trim_and_go_on(kv_model *m, kv_pos end, kv_pos P) {
    kv_error err = {0};
    kv_engine *plain = engine_sized(m, 2048, 2, 128), *cut = engine_sized(m, 2048, 2, 128);
    kv_tokens t = long_text(m, 1000);
    run_all(plain, 0, t.data, P, 128);
    run_all(cut, 0, t.data, P, 128);
    run_all(cut, 0, t.data + P, end - P, 32);
    assert_true(kv_engine_trim(cut, 0, P));
    assert_int_equal(kv_engine_pos_max(cut, 0), P - 1);
    for (int i = 0; i < 4; i++) {
        check(run(plain, 0, t.data + 900 + i, 1, &err), &err);
        check(run(cut, 0, t.data + 900 + i, 1, &err), &err);
        same_logits(plain, 0, cut, 0);
    }
    kv_tokens_free(&t);
    kv_engine_free(plain);
    kv_engine_free(cut);
}

static void test_trim_full(void **state) {
    (void)state;
    trim_and_go_on(smol, 200, 130);
}

static void test_trim_window(void **state) {
    (void)state;
    trim_and_go_on(gemma, 300, 130); /* inside the window */
    trim_and_go_on(gemma, 800, 700); /* past it: the cells behind are still there */
}

static void test_trim_refuses(void **state) {
    (void)state;
    kv_engine *e = engine_sized(gemma, 4096, 1, 128);
    kv_tokens t = long_text(gemma, 1500);
    run_all(e, 0, t.data, 1500, 128);
    kv_pos min = kv_engine_pos_min(e, 0);
    assert_true(min > 100);
    assert_false(kv_engine_trim(e, 0, min + 100)); /* its window is gone */
    assert_false(kv_engine_trim(e, 0, 1501));
    assert_false(kv_engine_trim(e, 0, -1));
    assert_int_equal(kv_engine_pos_max(e, 0), 1499);
    assert_true(kv_engine_trim(e, 0, 1500));
    assert_true(kv_engine_trim(e, 0, 1499));
    assert_int_equal(kv_engine_pos_max(e, 0), 1498);
    assert_true(kv_engine_trim(e, 0, 0));
    assert_int_equal(kv_engine_pos_max(e, 0), -1);
    assert_true(kv_engine_trim(e, 0, 0));
    kv_tokens_free(&t);
    kv_engine_free(e);
}

/* After "no cells" on windowed memory the engine may have dropped window cells without telling. */
static void test_no_trim_after_no_cells_on_windows(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(gemma, 1024, 1, 128);
    kv_tokens t = long_text(gemma, 1100);
    run_all(e, 0, t.data, 960, 128);
    assert_int_equal(run(e, 0, t.data + 960, 100, &err), KV_NO_CELLS);
    assert_int_equal(kv_engine_pos_max(e, 0), 959);
    assert_false(kv_engine_trim(e, 0, 950));
    check(run(e, 0, t.data + 960, 20, &err), &err);
    assert_true(kv_engine_trim(e, 0, 970));
    assert_false(kv_engine_trim(e, 0, 950));
    assert_true(kv_engine_trim(e, 0, 0));
    run_all(e, 0, t.data, 300, 128);
    assert_true(kv_engine_trim(e, 0, 200));
    kv_tokens_free(&t);
    kv_engine_free(e);
}

/* A whole sequence out of one engine, into another: it goes on with the same bits. */
static void blob_round_trip(kv_model *m, int P) {
    kv_error err = {0};
    kv_engine *a = engine_sized(m, 2048, 2, 128), *b = engine_sized(m, 2048, 2, 128);
    kv_tokens t = long_text(m, (size_t)P + 8);
    run_all(a, 0, t.data, P, 128);
    size_t n = kv_engine_state_size(a, 0, 0);
    char *blob = kv_alloc(n);
    assert_int_equal(kv_engine_state_get(a, blob, n, 0, 0), n);
    assert_int_equal(kv_engine_state_get(a, blob, n - 1, 0, 0),
                     0); /* no room: nothing half-written is taken for good */
    assert_int_equal(kv_engine_state_get(a, blob, n, 0, 0), n);
    assert_int_equal(kv_engine_state_set(b, blob, n, 1, 0), n);
    assert_int_equal(kv_engine_pos_max(b, 1), P - 1);
    for (int i = 0; i < 4; i++) {
        check(run(a, 0, t.data + P + i, 1, &err), &err);
        check(run(b, 1, t.data + P + i, 1, &err), &err);
        same_logits(a, 0, b, 0);
    }
    /* A cut or garbled blob is refused, and the engine lives on. */
    assert_int_not_equal(kv_engine_state_set(b, blob, n / 2, 0, 0), n);
    memset(blob, 0x5a, n < 4096 ? n : 4096);
    assert_int_not_equal(kv_engine_state_set(b, blob, n, 0, 0), n);
    assert_true(kv_engine_seq_rm(b, 0, -1, -1));
    check(run(b, 1, t.data + P + 4, 1, &err), &err);
    free(blob);
    kv_tokens_free(&t);
    kv_engine_free(a);
    kv_engine_free(b);
}

static void test_blobs_full(void **state) {
    (void)state;
    blob_round_trip(smol, 150);
}

static void test_blobs_window(void **state) {
    (void)state;
    blob_round_trip(gemma, 640);
}

/* Several sequences in one call answer as each alone, within what another batch shape does to quantised weights. */
static void test_sequences_share_a_call(void **state) {
    (void)state;
    kv_error err = {0};
    kv_engine *e = engine_sized(smol, 1024, 3, 64);
    kv_tokens t = long_text(smol, 100);
    run_all(e, 0, t.data, 40, 40);
    run_all(e, 1, t.data, 60, 60);
    kv_token token[12];
    kv_pos pos[12];
    kv_seq seq[12];
    bool want[12];
    for (int i = 0; i < 10; i++) token[i] = t.data[i], pos[i] = i, seq[i] = 2, want[i] = i == 9;
    token[10] = t.data[40], pos[10] = 40, seq[10] = 0, want[10] = true;
    token[11] = t.data[60], pos[11] = 60, seq[11] = 1, want[11] = true;
    check(kv_engine_decode(e, &(kv_batch){12, token, pos, seq, want}, &err), &err);
    static const struct { int row, n; } rows[] = {{9, 10}, {10, 41}, {11, 61}};
    int n_vocab = kv_model_get_info(smol)->n_vocab;
    kv_engine *alone = engine_sized(smol, 256, 1, 64);
    for (int i = 0; i < 3; i++) {
        kv_engine_clear(alone);
        run_all(alone, 0, t.data, rows[i].n, 64);
        const float *x = kv_engine_logits(e, rows[i].row), *y = kv_engine_logits(alone, rows[i].n - 1);
        double sum = 0;
        for (int k = 0; k < n_vocab; k++) sum += fabs((double)x[k] - (double)y[k]);
        if (sum / n_vocab > 1) fail_msg("row %d: mean difference %g", i, sum / n_vocab);
    }
    kv_tokens_free(&t);
    kv_engine_free(e);
    kv_engine_free(alone);
}

/* NaN in one sequence's cells: without flash attention others see it through the mask, and also once the cells are nobody's,
 * since 0 × NaN is NaN; with it they are left out. A clear heals both. */
static void test_nan_spoils_all_until_a_clear(void **state) {
    (void)state;
    kv_tokens t = long_text(smol, 100);
    size_t n_vocab = (size_t)kv_model_get_info(smol)->n_vocab;
    float *want = malloc(n_vocab * sizeof *want);
    for (int flash = 0; flash < 2; flash++) {
        kv_error err = {0};
        kv_engine_params p;
        kv_engine_params_defaults(&p);
        p.n_ctx = 512, p.n_slots = 3, p.n_batch = 64;
        p.n_threads = p.n_threads_batch = 1;
        p.flash_attn = flash ? KV_FA_ON : KV_FA_OFF;
        kv_engine *e;
        check(kv_engine_new(&e, smol, &p, &err), &err);
        check(run(e, 0, t.data, 40, &err), &err);
        check(run(e, 1, t.data + 50, 30, &err), &err);
        size_t n = kv_engine_state_size(e, 1, 0);
        char *blob = malloc(n);
        assert_int_equal(kv_engine_state_get(e, blob, n, 1, 0), n);
        memcpy(blob + n - 2, (uint16_t[]){0x7e00}, 2); /* the last cell's last value of the last layer, f16 */
        assert_int_equal(kv_engine_state_set(e, blob, n, 1, 0), n);
        kv_status beside = run(e, 0, t.data + 40, 1, &err), after;
        if (beside == KV_OK) memcpy(want, kv_engine_logits(e, 0), n_vocab * sizeof *want);
        assert_int_equal(run(e, 1, t.data + 80, 1, &err), KV_NOT_NUMBERS);
        assert_null(kv_engine_logits(e, 0));
        assert_true(kv_engine_seq_rm(e, 1, -1, -1) && kv_engine_seq_rm(e, 0, -1, -1));
        after = run(e, 2, t.data, 5, &err);
        assert_int_equal(beside, flash ? KV_OK : KV_NOT_NUMBERS);
        assert_int_equal(after, flash ? KV_OK : KV_NOT_NUMBERS);
        kv_engine_clear(e);
        check(run(e, 0, t.data, 40, &err), &err);
        check(run(e, 0, t.data + 40, 1, &err), &err);
        if (flash) assert_memory_equal(kv_engine_logits(e, 0), want, n_vocab * sizeof *want);
        free(blob);
        kv_engine_free(e);
    }
    free(want);
    kv_tokens_free(&t);
}

int main(void) {
    cmocka_set_test_filter(getenv("KVASIR_TEST_FILTER"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_a_chat_prompt),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_tokens_and_pieces),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_overrides_and_vocab_only),
        cmocka_unit_test(test_engine_parameters),
        cmocka_unit_test(test_bytes_full),
        cmocka_unit_test(test_flash_attention_is_told),
        cmocka_unit_test(test_bytes_quantised),
        cmocka_unit_test(test_bytes_window),
        cmocka_unit_test(test_wrong_batches_are_refused),
        cmocka_unit_test(test_logits_only_where_wanted),
        cmocka_unit_test(test_pool_full),
        cmocka_unit_test(test_fork_full),
        cmocka_unit_test(test_fork_window),
        cmocka_unit_test(test_fork_refuses),
        cmocka_unit_test(test_trim_full),
        cmocka_unit_test(test_trim_window),
        cmocka_unit_test(test_trim_refuses),
        cmocka_unit_test(test_no_trim_after_no_cells_on_windows),
        cmocka_unit_test(test_blobs_full),
        cmocka_unit_test(test_blobs_window),
        cmocka_unit_test(test_sequences_share_a_call),
        cmocka_unit_test(test_nan_spoils_all_until_a_clear),
    };
    return cmocka_run_group_tests(tests, load_models, free_models);
}
