/* Samplers on SmolLM2: seeds, biases, grammars, schemas, tool grammars, and everything a request can get wrong. */
#include "engine/real.h"

#include <math.h>

#include "base/json.h"

static kv_model *model;
static kv_engine *engine;
static kv_tokens prompt;

static int set_up(void **state) {
    (void)state;
    model = load(SMOL);
    engine = engine_sized(model, 1024, 2, 256);
    prompt = tokens_of(model, "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kv_tokens_free(&prompt);
    kv_engine_free(engine);
    kv_model_free(model);
    return 0;
}

static kv_sampling sampling(void) {
    kv_sampling s;
    kv_sampling_defaults(&s);
    return s;
}

static kv_sampler *sampler(const kv_sampling *s, const kv_chat_prompt *chat) {
    kv_error err = {0};
    kv_sampler *out;
    check(kv_sampler_new(&out, model, s, chat, &err), &err);
    return out;
}

/* Up to n tokens after the given prompt; false when the last one did not end the text. */
static bool generate(kv_tokens *out, kv_buf *text, kv_sampler *s, const kv_tokens *from, int n) {
    kv_error err = {0};
    kv_engine_clear(engine);
    run_all(engine, 0, from->data, (int)from->len, 256);
    check(kv_sampler_prime(s, from->data, from->len, &err), &err);
    int row = (int)((from->len - 1) % 256);
    for (int i = 0; i < n; i++) {
        kv_token token;
        check(kv_sampler_sample(&token, s, engine, row, &err), &err);
        if (out) kv_tokens_add(out, token);
        if (kv_model_is_eog(model, token)) return true;
        if (text) kv_model_piece(text, model, token, true);
        check(run(engine, 0, &token, 1, &err), &err);
        row = 0;
    }
    return false;
}

static void refuses(kv_sampling s, const char *field, const char *why) {
    kv_error err = {0};
    kv_sampler *out;
    if (kv_sampler_new(&out, model, &s, NULL, &err) != KV_INVALID) fail_msg("taken, though %s", why);
    assert_null(out);
    if (!strstr(err.message, why)) fail_msg("\"%s\" does not say \"%s\"", err.message, why);
    assert_string_equal(err.field, field);
}

/* ── seeds and numbers ── */

static void test_a_seed_decides(void **state) {
    (void)state;
    kv_tokens got[3] = {{0}, {0}, {0}};
    for (int i = 0; i < 3; i++) {
        kv_sampling s = sampling();
        s.temperature = 1.5f;
        s.seed = i < 2 ? 42 : 43;
        kv_sampler *sm = sampler(&s, NULL);
        assert_int_equal(kv_sampler_seed(sm), s.seed);
        generate(&got[i], NULL, sm, &prompt, 24);
        kv_sampler_free(sm);
    }
    assert_int_equal(got[0].len, got[1].len);
    assert_memory_equal(got[0].data, got[1].data, got[0].len * sizeof(kv_token));
    assert_true(kv_tokens_common(got[0].data, got[0].len, got[2].data, got[2].len) < got[0].len);
    for (int i = 0; i < 3; i++) kv_tokens_free(&got[i]);
}

static void test_a_random_seed_is_told(void **state) {
    (void)state;
    kv_sampling s = sampling();
    kv_sampler *a = sampler(&s, NULL), *b = sampler(&s, NULL);
    assert_true(kv_sampler_seed(a) != KV_SEED_RANDOM);
    assert_true(kv_sampler_seed(a) != kv_sampler_seed(b));
    kv_sampler_free(a);
    kv_sampler_free(b);
}

static void test_biases(void **state) {
    (void)state;
    kv_tokens plain = {0}, banned = {0}, pushed = {0};
    kv_sampling s = sampling();
    s.temperature = 0;
    kv_sampler *sm = sampler(&s, NULL);
    generate(&plain, NULL, sm, &prompt, 1);
    kv_sampler_free(sm);
    kv_logit_bias ban = {plain.data[0], -INFINITY}, push = {1234, 100};
    s.logit_bias = &ban;
    s.n_logit_bias = 1;
    sm = sampler(&s, NULL);
    generate(&banned, NULL, sm, &prompt, 1);
    kv_sampler_free(sm);
    assert_int_not_equal(banned.data[0], plain.data[0]);
    s.logit_bias = &push;
    sm = sampler(&s, NULL);
    generate(&pushed, NULL, sm, &prompt, 1);
    kv_sampler_free(sm);
    assert_int_equal(pushed.data[0], 1234);
    kv_tokens_free(&plain);
    kv_tokens_free(&banned);
    kv_tokens_free(&pushed);
}

static void test_ignore_eos(void **state) {
    (void)state;
    kv_tokens yes = tokens_of(model, "<|im_start|>user\nSay only: ok<|im_end|>\n<|im_start|>assistant\nok");
    kv_sampling s = sampling();
    s.temperature = 0;
    kv_logit_bias push = {kv_model_get_info(model)->eos, 100};
    s.logit_bias = &push;
    s.n_logit_bias = 1;
    kv_sampler *sm = sampler(&s, NULL);
    assert_true(generate(NULL, NULL, sm, &yes, 1));
    kv_sampler_free(sm);
    s.ignore_eos = true;
    sm = sampler(&s, NULL);
    assert_false(generate(NULL, NULL, sm, &yes, 8));
    kv_sampler_free(sm);
    kv_tokens_free(&yes);
}

/* Penalties see the prompt when it was primed. */
static void test_prime_counts_the_prompt(void **state) {
    (void)state;
    kv_tokens abc = tokens_of(model, "one two three one two three one two three one two");
    kv_sampling s = sampling();
    s.temperature = 0;
    kv_tokens plain = {0}, penalised = {0};
    kv_sampler *sm = sampler(&s, NULL);
    generate(&plain, NULL, sm, &abc, 1);
    kv_sampler_free(sm);
    s.presence_penalty = 50;
    sm = sampler(&s, NULL);
    generate(&penalised, NULL, sm, &abc, 1);
    kv_sampler_free(sm);
    bool seen = false;
    for (size_t i = 0; i < abc.len; i++) seen = seen || abc.data[i] == plain.data[0];
    assert_true(seen);
    for (size_t i = 0; i < abc.len; i++) assert_int_not_equal(abc.data[i], penalised.data[0]);
    kv_tokens_free(&abc);
    kv_tokens_free(&plain);
    kv_tokens_free(&penalised);
}

static void test_probs(void **state) {
    (void)state;
    kv_error err = {0};
    kv_sampling s = sampling();
    s.seed = 1;
    kv_sampler *sm = sampler(&s, NULL);
    kv_engine_clear(engine);
    run_all(engine, 0, prompt.data, (int)prompt.len, 256);
    int row = (int)prompt.len - 1;
    kv_token token;
    check(kv_sampler_sample(&token, sm, engine, row, &err), &err);
    /* Raw: a log-softmax of the row, computed here in the plainest way. */
    const float *logits = kv_engine_logits(engine, row);
    int n_vocab = kv_model_get_info(model)->n_vocab;
    double sum = 0;
    for (int i = 0; i < n_vocab; i++) sum += exp(logits[i]);
    kv_token_prob top[10], chosen;
    int n = 10;
    check(kv_sampler_probs(top, &n, &chosen, sm, engine, row, false, &err), &err);
    assert_int_equal(n, 10);
    assert_int_equal(chosen.token, token);
    assert_true(fabs(chosen.logprob - (logits[token] - log(sum))) < 1e-3);
    for (int i = 0; i < n; i++) {
        assert_true(fabs(top[i].logprob - (logits[top[i].token] - log(sum))) < 1e-3);
        int better = 0;
        for (int t = 0; t < n_vocab; t++) better += logits[t] > logits[top[i].token];
        assert_int_equal(better, i);
    }
    /* After sampling: what is left sums to 1 and has the chosen one. */
    static kv_token_prob all[64];
    n = 64;
    check(kv_sampler_probs(all, &n, &chosen, sm, engine, row, true, &err), &err);
    assert_true(n > 0 && n <= 40); /* top_k */
    sum = 0;
    bool found = false;
    for (int i = 0; i < n; i++) {
        sum += exp(all[i].logprob);
        if (i) assert_true(all[i].logprob <= all[i - 1].logprob);
        found = found || (all[i].token == token && all[i].logprob == chosen.logprob);
    }
    assert_true(found && fabs(sum - 1) < 1e-4);
    kv_sampler_free(sm);
}

static void test_rows_without_logits_are_refused(void **state) {
    (void)state;
    kv_error err = {0};
    kv_sampling s = sampling();
    kv_sampler *sm = sampler(&s, NULL);
    kv_engine_clear(engine);
    run_all(engine, 0, prompt.data, (int)prompt.len, 256);
    kv_token token;
    kv_token_prob chosen;
    int n = 0;
    for (int row = -1; row < 300; row += 7) {
        if (row == (int)prompt.len - 1) continue;
        assert_int_equal(kv_sampler_sample(&token, sm, engine, row, &err), KV_INTERNAL);
        assert_int_equal(kv_sampler_probs(NULL, &n, &chosen, sm, engine, row, false, &err), KV_INTERNAL);
    }
    kv_sampler_free(sm);
}

/* ── grammars ── */

static void test_grammar_is_obeyed(void **state) {
    (void)state;
    kv_sampling s = sampling();
    s.grammar = "root ::= (\"yes\" | \"no\") \"!\"";
    s.grammar_type = KV_GRAMMAR_USER;
    for (unsigned seed = 0; seed < 5; seed++) {
        s.seed = seed;
        s.temperature = 2;
        kv_sampler *sm = sampler(&s, NULL);
        kv_buf text = {0};
        assert_true(generate(NULL, &text, sm, &prompt, 16));
        assert_true(strcmp(kv_buf_str(&text), "yes!") == 0 || strcmp(kv_buf_str(&text), "no!") == 0);
        kv_buf_free(&text);
        kv_sampler_free(sm);
    }
}

static void test_schema_is_obeyed(void **state) {
    (void)state;
    kv_error err = {0};
    kv_buf gbnf = {0};
    check(kv_schema_to_grammar(
              &gbnf,
              "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
              "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":120}},\"required\":[\"name\",\"age\"],"
              "\"additionalProperties\":false}",
              &err),
          &err);
    kv_sampling s = sampling();
    s.grammar = kv_buf_str(&gbnf);
    s.grammar_type = KV_GRAMMAR_SCHEMA;
    s.seed = 5;
    kv_sampler *sm = sampler(&s, NULL);
    kv_buf text = {0};
    assert_true(generate(NULL, &text, sm, &prompt, 100));
    json_t *v;
    check(kv_json_parse(&v, text.data, text.len, &err), &err);
    assert_true(json_is_string(json_object_get(v, "name")));
    json_int_t age = json_integer_value(json_object_get(v, "age"));
    assert_true(json_is_integer(json_object_get(v, "age")) && age >= 0 && age <= 120);
    json_decref(v);
    kv_buf_free(&text);
    kv_buf_free(&gbnf);
    kv_sampler_free(sm);
}

static void test_bad_grammars(void **state) {
    (void)state;
    kv_sampling s = sampling();
    static const struct {
        const char *grammar, *why;
    } bad[] = {{"root ::= \"a", "ends inside"},
               {"%llguidance {}", "expected the name"},
               {"root ::= root \"x\"", "left recursive"},
               {"x ::= \"a\"", "no rule named"},
               {"root ::= <|nonsense|>", "not one token"},
               {"root ::= \"a\"{9,1}", "n below m"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        s.grammar = bad[i].grammar;
        refuses(s, "grammar", bad[i].why);
    }
    s.grammar = "root ::= <|im_end|>";
    kv_sampler_free(sampler(&s, NULL));
}

static void test_dead_ends_are_errors(void **state) {
    (void)state;
    kv_error err = {0};
    kv_sampling s = sampling();
    s.grammar = "root ::= \"a\\x00b\"";
    kv_sampler *sm = sampler(&s, NULL);
    kv_engine_clear(engine);
    run_all(engine, 0, prompt.data, (int)prompt.len, 256);
    kv_token token;
    kv_status status = KV_OK;
    int row = (int)prompt.len - 1;
    for (int i = 0; i < 4 && status == KV_OK; i++) {
        status = kv_sampler_sample(&token, sm, engine, row, &err);
        if (status != KV_OK) break;
        check(run(engine, 0, &token, 1, &err), &err);
        row = 0;
    }
    assert_int_equal(status, KV_INVALID);
    kv_sampler_free(sm);
    /* All tokens banned by biases. */
    int n_vocab = kv_model_get_info(model)->n_vocab;
    kv_logit_bias *all = kv_alloc((size_t)n_vocab * sizeof *all);
    for (int i = 0; i < n_vocab; i++) all[i] = (kv_logit_bias){i, -INFINITY};
    s = sampling();
    s.logit_bias = all;
    s.n_logit_bias = n_vocab;
    for (int greedy = 0; greedy < 2; greedy++) {
        s.temperature = greedy ? 0 : 1;
        sm = sampler(&s, NULL);
        kv_engine_clear(engine);
        run_all(engine, 0, prompt.data, (int)prompt.len, 256);
        assert_int_equal(kv_sampler_sample(&token, sm, engine, (int)prompt.len - 1, &err), KV_INVALID);
        kv_sampler_free(sm);
    }
    free(all);
}

/* Random texts of grammar characters: whatever passes our check must pass the engine's parser, or be refused with a
 * message; nothing may abort, hang or run away. */
static void test_random_grammars(void **state) {
    (void)state;
    unsigned seed = 77;
    print_message("seed %u\n", seed);
    static const char *const parts[] = {"root",  " ::= ",       "a",        "b",        "\n",    " | ", "\"x\"",
                                        "\"\"",  "[a-z]",       "[^x]",     "(",        ")",     "*",   "+",
                                        "?",     "{2}",         "{0,3}",    "{1,}",     "{3,1}", ".",   " ",
                                        "<[5]>", "\nroot ::= ", "\na ::= ", "\nb ::= ", "\\",    "\"",  "#c\n"};
    int taken = 0;
    for (int round = 0; round < 3000; round++) {
        kv_buf g = {0};
        kv_buf_adds(&g, "root ::= ");
        seed = seed * 1103515245u + 12345u;
        int n = 1 + (int)((seed >> 16) % 14);
        for (int i = 0; i < n; i++) {
            seed = seed * 1103515245u + 12345u;
            kv_buf_adds(&g, parts[(seed >> 16) % (sizeof parts / sizeof *parts)]);
        }
        kv_sampling s = sampling();
        s.grammar = kv_buf_str(&g);
        kv_error err = {0};
        kv_sampler *sm;
        kv_status status = kv_sampler_new(&sm, model, &s, NULL, &err);
        if (status == KV_OK) taken++;
        else if (status != KV_INVALID || !err.message[0]) fail_msg("%s for %s", kv_status_name(status), kv_buf_str(&g));
        kv_sampler_free(sm);
        kv_buf_free(&g);
    }
    print_message("%d of 3000 were grammars\n", taken);
    assert_true(taken > 100);
}

/* ── tools ── */

#define TOOLS                                                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","              \
    "\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":20}},\"required\":[\"city\"]}}}]"

static kv_chat_prompt *render(kv_model *m, const char *tool_choice, const char *schema) {
    kv_error err = {0};
    kv_chat_prompt *c;
    kv_chat_params p = {.messages_json = "[{\"role\":\"user\",\"content\":\"Weather in Paris?\"}]",
                        .tools_json = schema ? NULL : TOOLS,
                        .tool_choice = tool_choice,
                        .json_schema = schema,
                        .enable_thinking = -1,
                        .add_generation_prompt = true};
    check(kv_chat_render(&c, m, &p, &err), &err);
    return c;
}

static kv_model *with_template(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/models/templates/%s.jinja", KVASIR_ENGINE_SOURCE, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing: scripts/fetch-engine.sh unpacks it", path);
    kv_buf b = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) kv_buf_add(&b, part, n);
    fclose(f);
    kv_model *m = load_with((kv_model_params){.chat_template = kv_buf_str(&b)}, SMOL);
    kv_buf_free(&b);
    return m;
}

/* However much the model wants to end: a required call must come first, an optional one need not. */
static void test_required_tool_keeps_the_answer_open(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model *m = with_template("Qwen-Qwen2.5-7B-Instruct");
    kv_logit_bias push = {kv_model_get_info(m)->eos, 100};
    for (int required = 0; required < 2; required++) {
        kv_chat_prompt *c = render(m, required ? "required" : "auto", NULL);
        kv_sampling s = sampling();
        s.logit_bias = &push;
        s.n_logit_bias = 1;
        kv_sampler *sm;
        check(kv_sampler_new(&sm, m, &s, c, &err), &err);
        kv_tokens t = tokens_of(model, kv_chat_prompt_text(c, NULL));
        assert_int_equal(generate(NULL, NULL, sm, &t, 10), !required);
        kv_tokens_free(&t);
        kv_sampler_free(sm);
        kv_chat_prompt_free(c);
    }
    kv_model_free(m);
}

static void test_answer_schema_of_a_chat(void **state) {
    (void)state;
    kv_error err = {0};
    kv_chat_prompt *c = render(model, NULL,
                               "{\"type\":\"object\",\"properties\":{\"warm\":{\"type\":\"boolean\"}},"
                               "\"required\":[\"warm\"],\"additionalProperties\":false}");
    kv_sampling s = sampling();
    s.seed = 4;
    kv_sampler *sm = sampler(&s, c);
    kv_tokens t = tokens_of(model, kv_chat_prompt_text(c, NULL));
    kv_buf text = {0}, deltas = {0}, msg = {0};
    assert_true(generate(NULL, &text, sm, &t, 100));
    kv_chat_stream *stream;
    check(kv_chat_stream_new(&stream, c, &err), &err);
    /* The end token was spelled too: it is not part of the answer. */
    char *end = strstr(kv_buf_str(&text), "<|im_end|>");
    check(
        kv_chat_stream_feed(&deltas, stream, kv_buf_str(&text), end ? (size_t)(end - text.data) : text.len, true, &err),
        &err);
    check(kv_chat_stream_message(&msg, stream, &err), &err);
    json_t *v, *content;
    check(kv_json_parse(&v, msg.data, msg.len, &err), &err);
    const char *answer = json_string_value(json_object_get(v, "content"));
    check(kv_json_parse(&content, answer, strlen(answer), &err), &err);
    assert_true(json_is_boolean(json_object_get(content, "warm")));
    json_decref(content);
    json_decref(v);
    kv_chat_stream_free(stream);
    kv_buf_free(&text);
    kv_buf_free(&deltas);
    kv_buf_free(&msg);
    kv_tokens_free(&t);
    kv_sampler_free(sm);
    kv_chat_prompt_free(c);
}

/* Samplers for every template that ships with the engine, tools asked for and required, and a schema: their grammars
 * pass our check and the engine's parser. */
static void test_chat_grammars_of_many_families(void **state) {
    (void)state;
    static const char *const names[] = {"Qwen-Qwen3-0.6B",
                                        "Qwen3-Coder",
                                        "meta-llama-Llama-3.1-8B-Instruct",
                                        "openai-gpt-oss-120b",
                                        "mistralai-Mistral-Nemo-Instruct-2407",
                                        "deepseek-ai-DeepSeek-V3.1",
                                        "LFM2-8B-A1B",
                                        "google-gemma-4-31B-it",
                                        "Kimi-K2-Instruct",
                                        "GLM-4.6",
                                        "google-gemma-2-2b-it",
                                        "ibm-granite-granite-4.0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        kv_model *m = with_template(names[i]);
        for (int what = 0; what < 3; what++) {
            kv_error err = {0};
            kv_chat_prompt *c =
                render(m, what == 1 ? "required" : NULL,
                       what == 2 ? "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"}}}" : NULL);
            kv_sampling s = sampling();
            s.reasoning_budget = 10;
            s.reasoning_budget_message = "enough";
            kv_sampler *sm;
            if (kv_sampler_new(&sm, m, &s, c, &err) != KV_OK) fail_msg("%s, %d: %s", names[i], what, err.message);
            kv_sampler_free(sm);
            kv_chat_prompt_free(c);
        }
        kv_model_free(m);
    }
}

static void test_reasoning_budget_ends_the_thought(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model *m = with_template("Qwen-QwQ-32B"); /* its prompt ends inside <think> */
    kv_chat_params p = {.messages_json = "[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]",
                        .enable_thinking = -1,
                        .add_generation_prompt = true};
    kv_chat_prompt *c;
    check(kv_chat_render(&c, m, &p, &err), &err);
    assert_true(kv_chat_prompt_thinks(c));
    kv_sampling s = sampling();
    s.temperature = 0;
    s.reasoning_budget = 5;
    s.reasoning_budget_message = " Enough.";
    kv_sampler *sm;
    check(kv_sampler_new(&sm, m, &s, c, &err), &err);
    kv_tokens t = tokens_of(model, kv_chat_prompt_text(c, NULL));
    kv_buf text = {0};
    generate(NULL, &text, sm, &t, 24);
    const char *end = strstr(kv_buf_str(&text), " Enough.</think>");
    if (!end || end - kv_buf_str(&text) > 80) fail_msg("%s", kv_buf_str(&text));
    kv_buf_free(&text);
    kv_tokens_free(&t);
    kv_sampler_free(sm);
    kv_chat_prompt_free(c);
    kv_model_free(m);
}

/* ── what a request can get wrong ── */

static void test_wrong_parameters(void **state) {
    (void)state;
    kv_sampling s = sampling();
    s.mirostat = 3;
    refuses(s, "mirostat", "0, 1 or 2");
    s.mirostat = -1;
    refuses(s, "mirostat", "0, 1 or 2");
    const char *names[] = {"top_k", "nonsense"};
    s = sampling();
    s.samplers = names;
    s.n_samplers = 2;
    refuses(s, "samplers", "\"nonsense\"");
    names[1] = "infill";
    s.top_k = 0;
    refuses(s, "samplers", "top_k");
    s = sampling();
    s.sampler_chars = "kZp";
    refuses(s, "samplers", "stands for no sampler");
    s = sampling();
    kv_logit_bias far = {1 << 30, 1};
    s.logit_bias = &far;
    s.n_logit_bias = 1;
    refuses(s, "logit_bias", "not in the vocabulary");
    far.token = -1;
    refuses(s, "logit_bias", "not in the vocabulary");
    far = (kv_logit_bias){1, NAN};
    refuses(s, "logit_bias", "neither a number");
    far.bias = INFINITY;
    refuses(s, "logit_bias", "neither a number");
    s = sampling();
    const char *breakers[] = {"\n", ""};
    s.dry_breakers = breakers;
    refuses(s, "dry_sequence_breakers", "empty list");
    s.n_dry_breakers = 2;
    refuses(s, "dry_sequence_breakers", "empty string");
    s = sampling();
    s.repeat_penalty = 0;
    refuses(s, "repeat_penalty", "above 0");
    s.repeat_penalty = 1e-40f;
    refuses(s, "repeat_penalty", "finite");
    s = sampling();
    s.presence_penalty = NAN;
    refuses(s, "presence_penalty", "finite");
    s = sampling();
    s.min_keep = -1;
    refuses(s, "min_keep", "not negative");
}

/* Extreme but legal values must sample something; histories of 2^31 tokens must not be allocated. */
static void test_extreme_parameters_work(void **state) {
    (void)state;
    const char *none[] = {NULL};
    const char *all[] = {"dry",   "top_k",       "top_p", "top_n_sigma", "typ_p",
                         "min_p", "temperature", "xtc",   "penalties",   "adaptive_p"};
    for (int i = 0; i < 12; i++) {
        kv_sampling s = sampling();
        s.seed = 9;
        switch (i) {
        case 0:
            s.repeat_last_n = s.dry_penalty_last_n = INT32_MAX, s.repeat_penalty = 1.1f, s.dry_multiplier = 1;
            break;
        case 1: s.repeat_last_n = s.dry_penalty_last_n = -1, s.repeat_penalty = 1.1f, s.dry_multiplier = 1; break;
        case 2: s.top_k = INT32_MAX, s.n_prev = INT32_MAX, s.min_keep = INT32_MAX; break;
        case 3: s.temperature = -1; break;
        case 4: s.temperature = 1e30f; break;
        case 5: s.mirostat = 1; break;
        case 6: s.mirostat = 2, s.mirostat_tau = -5, s.mirostat_eta = 1e9f; break;
        case 7: s.samplers = none, s.n_samplers = 0; break;
        case 8:
            s.samplers = all, s.n_samplers = 10, s.xtc_probability = 1, s.xtc_threshold = 0, s.top_n_sigma = 1e-9f;
            break;
        case 9: s.top_p = 0, s.min_p = 5, s.typical_p = -1; break;
        case 10: s.dynatemp_range = 1e9f, s.dynatemp_exponent = -1e9f; break;
        case 11: s.sampler_chars = "edskypmxti", s.adaptive_decay = 5; break;
        }
        kv_sampler *sm = sampler(&s, NULL);
        kv_tokens out = {0};
        generate(&out, NULL, sm, &prompt, 3);
        assert_true(out.len > 0);
        for (size_t k = 0; k < out.len; k++) assert_in_range(out.data[k], 0, kv_model_get_info(model)->n_vocab - 1);
        kv_tokens_free(&out);
        kv_sampler_free(sm);
    }
}

static void test_play(void **state) {
    (void)state;
    kv_error err = {0};
    kv_token play[] = {5, 6, 7};
    kv_sampling s = sampling();
    s.play = play;
    s.n_play = 3;
    kv_sampler *sm = sampler(&s, NULL);
    kv_tokens out = {0};
    assert_true(generate(&out, NULL, sm, &prompt, 10));
    assert_int_equal(out.len, 4);
    assert_memory_equal(out.data, play, sizeof play);
    kv_token_prob top[3], chosen;
    int n = 3;
    check(kv_sampler_probs(top, &n, &chosen, sm, engine, 0, false, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(chosen.token, out.data[3]);
    kv_tokens_free(&out);
    kv_sampler_free(sm);
}

int main(void) {
    cmocka_set_test_filter(getenv("KVASIR_TEST_FILTER"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_decides),
        cmocka_unit_test(test_a_random_seed_is_told),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_ignore_eos),
        cmocka_unit_test(test_prime_counts_the_prompt),
        cmocka_unit_test(test_probs),
        cmocka_unit_test(test_rows_without_logits_are_refused),
        cmocka_unit_test(test_grammar_is_obeyed),
        cmocka_unit_test(test_schema_is_obeyed),
        cmocka_unit_test(test_bad_grammars),
        cmocka_unit_test(test_dead_ends_are_errors),
        cmocka_unit_test(test_random_grammars),
        cmocka_unit_test(test_required_tool_keeps_the_answer_open),
        cmocka_unit_test(test_answer_schema_of_a_chat),
        cmocka_unit_test(test_chat_grammars_of_many_families),
        cmocka_unit_test(test_reasoning_budget_ends_the_thought),
        cmocka_unit_test(test_wrong_parameters),
        cmocka_unit_test(test_extreme_parameters_work),
        cmocka_unit_test(test_play),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
