/* The fake's vocabulary, template and sampler. */
#include <math.h>
#include <unistd.h>

#include "engine/fake_rig.h"

static kv_model *load_fake(const kv_fake_params *p) {
    kv_model *m;
    kv_error err = {0};
    if (kv_model_load_fake(&m, p, &err) != KV_OK) fail_msg("%s", err.message);
    return m;
}

static void expect_tokens(const kv_model *m, const char *text, size_t n, bool add, bool special, const kv_token *want,
                          size_t n_want) {
    kv_tokens got = {0};
    assert_int_equal(kv_model_tokenize(&got, m, text, n, add, special, NULL), KV_OK);
    assert_int_equal(got.len, n_want);
    if (n_want) assert_memory_equal(got.data, want, n_want * sizeof *want);
    kv_tokens_free(&got);
}

/* ── vocabulary ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void bytes_are_tokens(void **state) {
    (void)state;
    kv_fake_params p;
    kv_fake_params_defaults(&p);
    p.chat_template = "";
    p.n_vocab = 264;
    kv_model *m = load_fake(&p);
    char all[256];
    kv_token want[257] = {256};
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
        want[i + 1] = i;
    }
    expect_tokens(m, all, 256, false, true, want + 1, 256);
    expect_tokens(m, all, 256, true, false, want, 257); /* bos first */
    expect_tokens(m, "", 0, false, true, NULL, 0);
    kv_buf back = {0};
    for (int i = 0; i < 256; i++) kv_model_piece(&back, m, i, false);
    assert_int_equal(back.len, 256);
    assert_memory_equal(back.data, all, 256);
    kv_buf_free(&back);
    kv_model_free(m);
}

static void special_texts_are_one_token_when_asked(void **state) {
    (void)state;
    kv_fake_params p;
    kv_fake_params_defaults(&p);
    p.chat_template = "";
    p.n_vocab = 280;
    kv_model *m = load_fake(&p);
    static const char text[] = "a<|im_start|><|im_end|><s></s><|endoftext|><|extra_1|><|extra_12|><|x|>";
    static const kv_token want[] = {'a', 258, 259, 256, 257, 260, 262, 273, '<', '|', 'x', '|', '>'};
    expect_tokens(m, text, strlen(text), false, true, want, sizeof want / sizeof *want);
    kv_tokens plain = {0};
    kv_model_tokenize(&plain, m, text, strlen(text), false, false, NULL);
    assert_int_equal(plain.len, strlen(text));
    kv_tokens_free(&plain);
    kv_buf b = {0};
    kv_model_piece(&b, m, 258, false);
    assert_int_equal(b.len, 0);
    kv_model_piece(&b, m, 258, true);
    kv_model_piece(&b, m, 279, true);
    assert_string_equal(b.data, "<|im_start|><|extra_18|>");
    kv_buf_free(&b);
    for (kv_token t = 0; t < 280; t++) assert_int_equal(kv_model_is_eog(m, t), t == 257 || t == 259 || t == 260);
    const kv_model_info *info = kv_model_get_info(m);
    assert_int_equal(info->n_vocab, 280);
    assert_int_equal(info->n_ctx_train, 131072);
    assert_string_equal(info->bos_text, "<s>");
    assert_null(m->border);
    kv_model_free(m);
}

static void kinds_describe_themselves(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        kv_fake_params p;
        kv_fake_params_defaults(&p);
        p.chat_template = "";
        assert_true(kv_fake_kind_parse(&p.memory, kv_memory_kind_name((kv_memory_kind)k)));
        assert_int_equal(p.memory, k);
        kv_model *m = load_fake(&p);
        assert_non_null(strstr(m->info.desc, kv_memory_kind_name((kv_memory_kind)k)));
        assert_int_equal(m->info.n_window, kv_memory_has_window((kv_memory_kind)k) ? 64 : 0);
        assert_int_equal(m->info.is_recurrent, k == KV_MEMORY_RECURRENT);
        kv_model_free(m);
    }
    kv_memory_kind kind = KV_MEMORY_FULL;
    assert_true(kv_fake_kind_parse(&kind, "hybrid_window"));
    assert_int_equal(kind, KV_MEMORY_HYBRID_WINDOW);
    assert_false(kv_fake_kind_parse(&kind, "hybrid-win"));
    assert_false(kv_fake_kind_parse(&kind, "full "));
    assert_false(kv_fake_kind_parse(&kind, ""));
}

static void bad_params_are_refused(void **state) {
    (void)state;
    for (int bad = 0; bad < 6; bad++) {
        kv_fake_params p;
        kv_model *m;
        kv_error err = {0};
        kv_fake_params_defaults(&p);
        if (bad == 0) p.memory = (kv_memory_kind)17;
        if (bad == 1) p.memory = KV_MEMORY_WINDOW, p.n_window = 1;
        if (bad == 2) p.n_vocab = 260;
        if (bad == 3) p.bytes_recurrent = -1;
        if (bad == 4) p.vocab_path = "/nowhere/at/all.gguf";
        if (bad == 5) p.chat_template = "{% for %}";
        assert_int_equal(kv_model_load_fake(&m, &p, &err), KV_INVALID);
        assert_null(m);
        assert_true(strlen(err.message) > 0);
    }
}

/* ── template ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void chatml_renders(void **state) {
    (void)state;
    kv_fake_params p;
    kv_fake_params_defaults(&p);
    kv_model *m = load_fake(&p);
    assert_false(m->info.chat_template_explicit);
    assert_true(strlen(m->info.chat_template) > 0);
    kv_chat_params cp = {
        .messages_json = "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"hi\"}]",
        .add_generation_prompt = true,
        .reasoning_format = "auto",
        .enable_thinking = -1,
    };
    kv_chat_prompt *prompt;
    kv_error err = {0};
    if (kv_chat_render(&prompt, m, &cp, &err) != KV_OK) fail_msg("%s", err.message);
    size_t n;
    const char *text = kv_chat_prompt_text(prompt, &n);
    static const char want[] = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                               "<|im_start|>assistant\n";
    assert_int_equal(n, strlen(want));
    assert_memory_equal(text, want, n);
    kv_tokens t = {0};
    kv_model_tokenize(&t, m, text, n, true, true, NULL);
    assert_int_equal(t.data[0], 256);
    assert_int_equal(t.data[1], 258);
    kv_tokens_free(&t);
    kv_chat_prompt_free(prompt);
    kv_model_free(m);
}

static void a_template_can_be_given(void **state) {
    (void)state;
    kv_fake_params p;
    kv_fake_params_defaults(&p);
    p.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}";
    kv_model *m = load_fake(&p);
    assert_true(m->info.chat_template_explicit);
    kv_chat_params cp = {
        .messages_json = "[{\"role\":\"user\",\"content\":\"hi\"}]", .reasoning_format = "none", .enable_thinking = -1};
    kv_chat_prompt *prompt;
    kv_error err = {0};
    if (kv_chat_render(&prompt, m, &cp, &err) != KV_OK) fail_msg("%s", err.message);
    size_t n;
    assert_non_null(strstr(kv_chat_prompt_text(prompt, &n), "[user] hi"));
    kv_chat_prompt_free(prompt);
    kv_model_free(m);
}

/* A GGUF's own vocabulary and template, on fake memory. */
static void a_gguf_lends_its_vocabulary(void **state) {
    (void)state;
    char path[4096];
    kv_error err = {0};
    const char *dir = getenv("KVASIR_FIXTURES");
    if (!dir) fail_msg("KVASIR_FIXTURES is not set: run the tests through ctest or `make test`");
    snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", dir);
    if (access(path, R_OK) != 0) fail_msg("%s is missing: scripts/fetch-models.sh makes it", path);
    kv_model *real;
    kv_model_params mp = {.path = path, .vocab_only = true, .use_mmap = true};
    if (kv_model_load_llama(&real, &mp, &err) != KV_OK) fail_msg("%s", err.message);
    rig r;
    rig_params(&r, KV_MEMORY_HYBRID_WINDOW);
    r.mp.vocab_path = path;
    r.mp.chat_template = NULL;
    rig_start(&r);
    assert_int_equal(r.m->info.n_vocab, real->info.n_vocab);
    assert_int_equal(r.m->info.n_ctx_train, 131072);
    assert_string_equal(r.m->info.chat_template, real->info.chat_template);
    assert_non_null(r.m->border);
    static const char text[] = "<|im_start|>user\nHello, wörld! ";
    kv_tokens a = {0}, b = {0};
    assert_int_equal(kv_model_tokenize(&a, real, text, strlen(text), true, true, NULL), KV_OK);
    assert_int_equal(kv_model_tokenize(&b, r.m, text, strlen(text), true, true, NULL), KV_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len * sizeof *a.data);
    kv_buf piece = {0}, same = {0};
    for (kv_token t = 0; t < r.m->info.n_vocab; t += 101) {
        kv_model_piece(&piece, real, t, true);
        kv_model_piece(&same, r.m, t, true);
        assert_int_equal(kv_model_is_eog(real, t), kv_model_is_eog(r.m, t));
    }
    assert_string_equal(kv_buf_str(&piece), kv_buf_str(&same));
    run(&r, 0, b.data, 0, (int32_t)b.len, 4);
    assert_true(step_is_right(&r, 1, b.data, 1));
    kv_tokens answer = {0};
    kv_fake_reference_greedy(&answer, r.m, b.data, b.len, 20);
    assert_true(answer.len > 0);
    kv_tokens_free(&answer), kv_tokens_free(&a), kv_tokens_free(&b);
    kv_buf_free(&piece), kv_buf_free(&same);
    kv_model_free(real);
    rig_close(&r);
}

/* ── sampler ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_sampler *sampler(rig *r, const kv_sampling *p) {
    kv_sampler *s;
    kv_error err = {0};
    if (kv_sampler_new(&s, r->m, p, NULL, &err) != KV_OK) fail_msg("%s", err.message);
    assert_int_equal(kv_sampler_prime(s, NULL, 0, NULL), KV_OK);
    return s;
}

/* n tokens after "prompt" on a fresh sequence 0. */
static void generate(kv_token *out, rig *r, kv_sampler *s, const kv_token *prompt, int32_t n_prompt, int32_t n) {
    kv_engine_seq_rm(r->e, 0, -1, -1);
    run(r, 0, prompt, 0, n_prompt, 64);
    int row = (n_prompt - 1) % 64;
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(kv_sampler_sample(&out[i], s, r->e, row, NULL), KV_OK);
        assert_int_equal(try_run(r, 0, &out[i], 1, n_prompt + i), KV_OK);
        row = 0;
    }
}

static void greedy_takes_the_largest(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_WINDOW);
    kv_sampling p;
    kv_sampling_defaults(&p);
    p.temperature = 0;
    kv_sampler *s = sampler(&r, &p);
    kv_token prompt[] = {256, 'h', 'i'}, got[100];
    generate(got, &r, s, prompt, 3, 100);
    kv_tokens want = {0};
    kv_fake_reference_greedy(&want, r.m, prompt, 3, 100);
    assert_memory_equal(got, want.data, want.len * sizeof *got); /* it may end earlier, we went on */
    kv_tokens_free(&want);
    kv_sampler_free(s);
    p.temperature = 2;
    p.top_k = 1;
    s = sampler(&r, &p);
    kv_token again[100];
    generate(again, &r, s, prompt, 3, 100);
    assert_memory_equal(got, again, sizeof got);
    kv_sampler_free(s);
    rig_close(&r);
}

static void seeds_repeat(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_FULL);
    kv_sampling p;
    kv_sampling_defaults(&p);
    p.temperature = 3;
    p.top_k = 0;
    p.min_p = 0;
    p.top_p = 1;
    kv_token prompt[] = {256, 'h', 'i'}, got[4][60];
    uint32_t fresh[2];
    for (int i = 0; i < 4; i++) {
        p.seed = i < 2 ? 42 : KV_SEED_RANDOM;
        kv_sampler *s = sampler(&r, &p);
        if (i < 2) assert_int_equal(kv_sampler_seed(s), 42);
        else fresh[i - 2] = kv_sampler_seed(s);
        generate(got[i], &r, s, prompt, 3, 60);
        kv_sampler_free(s);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_not_equal(got[1], got[2], sizeof got[0]);
    assert_memory_not_equal(got[2], got[3], sizeof got[0]);
    assert_true(fresh[0] != fresh[1] && fresh[0] != KV_SEED_RANDOM && fresh[1] != KV_SEED_RANDOM);
    rig_close(&r);
}

static void bias_and_ignore_eos_ban(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_FULL);
    r.mp.end_one_in = 3;
    rig_start(&r);
    kv_sampling p;
    kv_sampling_defaults(&p);
    p.temperature = 1;
    kv_token prompt[] = {256, 'h', 'i'}, got[200];
    int ends = 0;
    kv_sampler *s = sampler(&r, &p);
    generate(got, &r, s, prompt, 3, 200);
    for (int i = 0; i < 200; i++) ends += kv_model_is_eog(r.m, got[i]);
    assert_in_range(ends, 20, 120);
    kv_sampler_free(s);
    p.ignore_eos = true;
    kv_logit_bias bias[] = {{'e', -INFINITY}, {' ', -INFINITY}, {'q', 30}};
    p.logit_bias = bias;
    p.n_logit_bias = 2;
    s = sampler(&r, &p);
    generate(got, &r, s, prompt, 3, 200);
    for (int i = 0; i < 200; i++) assert_false(kv_model_is_eog(r.m, got[i]) || got[i] == 'e' || got[i] == ' ');
    kv_sampler_free(s);
    p.n_logit_bias = 3;
    s = sampler(&r, &p);
    generate(got, &r, s, prompt, 3, 50);
    for (int i = 0; i < 50; i++) assert_int_equal(got[i], 'q');
    kv_sampler_free(s);
    kv_logit_bias *all = kv_alloc(261 * sizeof *all);
    for (int i = 0; i < 261; i++) all[i] = (kv_logit_bias){i, -INFINITY};
    p.logit_bias = all;
    p.n_logit_bias = 261;
    s = sampler(&r, &p);
    kv_token t;
    assert_int_equal(kv_sampler_sample(&t, s, r.e, 0, NULL), KV_INVALID);
    kv_sampler_free(s);
    free(all);
    rig_close(&r);
}

/* With the default parameters a turn ends now and then, and hardly ever shows a control token. */
static void turns_end_now_and_then(void **state) {
    (void)state;
    rig r;
    rig_params(&r, KV_MEMORY_FULL);
    r.ep.n_ctx = 4096;
    rig_start(&r);
    kv_sampling p;
    kv_sampling_defaults(&p);
    p.seed = 1;
    kv_sampler *s = sampler(&r, &p);
    kv_token prompt[] = {256, 'h', 'i'};
    kv_token *got = kv_alloc(3000 * sizeof *got);
    generate(got, &r, s, prompt, 3, 3000);
    int ends = 0, odd = 0;
    for (int i = 0; i < 3000; i++) {
        bool end = kv_model_is_eog(r.m, got[i]);
        ends += end;
        odd += !end && (got[i] >= 127 || (got[i] < 32 && got[i] != '\n'));
    }
    assert_in_range(ends, 8, 60); /* 3000 / 128 = 23 */
    assert_in_range(odd, 0, 30);
    kv_sampler_free(s);
    free(got);
    rig_close(&r);
}

static void probabilities_add_up(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_FULL);
    kv_sampling p;
    kv_sampling_defaults(&p);
    p.temperature = 1.5f;
    p.top_k = 7;
    p.min_p = 0;
    p.seed = 5;
    kv_sampler *s = sampler(&r, &p);
    kv_token_prob top[300], chosen;
    int n = 300;
    kv_token t, prompt[] = {'a', 'b', 'c'};
    run(&r, 0, prompt, 0, 3, 3);
    assert_int_equal(kv_sampler_probs(top, &n, &chosen, s, r.e, 2, false, NULL), KV_INTERNAL); /* nothing sampled yet */
    assert_int_equal(kv_sampler_sample(&t, s, r.e, 1, NULL), KV_INTERNAL); /* that row's logits were not asked for */
    assert_int_equal(kv_sampler_sample(&t, s, r.e, 2, NULL), KV_OK);
    for (int post = 0; post < 2; post++) {
        n = 300;
        assert_int_equal(kv_sampler_probs(top, &n, &chosen, s, r.e, 2, post, NULL), KV_OK);
        if (post) assert_in_range(n, 1, 7);
        else assert_int_equal(n, 261);
        double sum = 0;
        bool found = false;
        for (int i = 0; i < n; i++) {
            sum += exp(top[i].logprob);
            if (i > 0) assert_true(top[i].logprob <= top[i - 1].logprob);
            if (top[i].token == t) found = fabsf(top[i].logprob - chosen.logprob) < 1e-4f;
        }
        assert_true(fabs(sum - 1) < 1e-3);
        assert_int_equal(chosen.token, t);
        assert_true(found);
        n = 3;
        assert_int_equal(kv_sampler_probs(top, &n, &chosen, s, r.e, 2, post, NULL), KV_OK);
        assert_in_range(n, 1, 3);
        n = 0;
        assert_int_equal(kv_sampler_probs(NULL, &n, &chosen, s, r.e, 2, post, NULL), KV_OK);
    }
    kv_sampler_free(s);
    rig_close(&r);
}

/* Frequencies follow the distribution that probs reports. */
static void draws_follow_the_probabilities(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_FULL);
    kv_sampling p;
    kv_sampling_defaults(&p);
    p.temperature = 4;
    p.top_k = 5;
    p.top_p = 1;
    p.min_p = 0;
    p.seed = 3;
    kv_sampler *s = sampler(&r, &p);
    kv_token t, prompt[] = {'x'};
    run(&r, 0, prompt, 0, 1, 1);
    int seen[261] = {0};
    const int draws = 20000;
    for (int i = 0; i < draws; i++) {
        assert_int_equal(kv_sampler_sample(&t, s, r.e, 0, NULL), KV_OK);
        seen[t]++;
    }
    kv_token_prob top[5], chosen;
    int n = 5;
    assert_int_equal(kv_sampler_probs(top, &n, &chosen, s, r.e, 0, true, NULL), KV_OK);
    assert_int_equal(n, 5);
    for (int i = 0; i < n; i++) assert_true(fabs(seen[top[i].token] / (double)draws - exp(top[i].logprob)) < 0.02);
    kv_sampler_free(s);
    rig_close(&r);
}

static void samplings_are_checked(void **state) {
    (void)state;
    rig r;
    rig_open(&r, KV_MEMORY_FULL);
    kv_sampler *s;
    kv_sampling p;
    kv_error err = {0};
    const char *names[] = {"top_k", "tepmerature"};
    kv_logit_bias bias = {261, 1};
    kv_token played[] = {'o', 'k'};
    kv_sampling_defaults(&p);
    p.grammar = "root ::= \"a\"";
    assert_int_equal(kv_sampler_new(&s, r.m, &p, NULL, &err), KV_UNSUPPORTED);
    assert_null(s);
    p.play = played; /* a played answer needs no grammar */
    p.n_play = 2;
    assert_int_equal(kv_sampler_new(&s, r.m, &p, NULL, &err), KV_OK);
    kv_token got[3];
    generate(got, &r, s, (kv_token[]){'x'}, 1, 3);
    assert_int_equal(got[0], 'o');
    assert_int_equal(got[1], 'k');
    assert_true(kv_model_is_eog(r.m, got[2]));
    kv_sampler_free(s);
    p.play = NULL;
    p.grammar = "%llguidance {}";
    assert_int_equal(kv_sampler_new(&s, r.m, &p, NULL, &err), KV_INVALID);
    assert_string_equal(err.field, "grammar");
    kv_sampling_defaults(&p);
    p.mirostat = 3;
    assert_int_equal(kv_sampler_new(&s, r.m, &p, NULL, &err), KV_INVALID);
    kv_sampling_defaults(&p);
    p.samplers = names;
    p.n_samplers = 2;
    assert_int_equal(kv_sampler_new(&s, r.m, &p, NULL, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "tepmerature"));
    kv_sampling_defaults(&p);
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    assert_int_equal(kv_sampler_new(&s, r.m, &p, NULL, &err), KV_INVALID);
    assert_string_equal(err.field, "logit_bias");
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_tokens),
        cmocka_unit_test(special_texts_are_one_token_when_asked),
        cmocka_unit_test(kinds_describe_themselves),
        cmocka_unit_test(bad_params_are_refused),
        cmocka_unit_test(chatml_renders),
        cmocka_unit_test(a_template_can_be_given),
        cmocka_unit_test(a_gguf_lends_its_vocabulary),
        cmocka_unit_test(greedy_takes_the_largest),
        cmocka_unit_test(seeds_repeat),
        cmocka_unit_test(bias_and_ignore_eos_ban),
        cmocka_unit_test(turns_end_now_and_then),
        cmocka_unit_test(probabilities_add_up),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(samplings_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
