/* Texts with runs so long that the engine's regular expressions would use up the stack. */
#include "engine/real.h"

#define STACK_USED_UP 100000 /* characters: 20 MiB of stack and more; threads have 8 */

/* Vocabularies that the engine splits by std::regex, and one that it does not. */
static const char *const splitters[] = {"deepseek-v3", "tekken", "bloom", "smollm"};

static kv_model *load_split(const char *splitter) {
    static char text[64];
    static const char *overrides[] = {text};
    snprintf(text, sizeof text, "tokenizer.ggml.pre=str:%s", splitter);
    return load_with((kv_model_params){.vocab_only = true, .kv_overrides = overrides, .n_kv_overrides = 1}, SMOL);
}

static char *run_of(const char *unit, size_t n) {
    char *text = malloc(n + 1);
    for (size_t i = 0; i < n; i++) text[i] = unit[i % strlen(unit)];
    text[n] = '\0';
    return text;
}

static void spells(const kv_model *m, const kv_tokens *tokens, const char *text) {
    kv_buf b = {0};
    for (size_t i = 0; i < tokens->len; i++) kv_model_piece(&b, m, tokens->data[i], true);
    assert_int_equal(b.len, strlen(text));
    assert_memory_equal(kv_buf_str(&b), text, b.len);
    kv_buf_free(&b);
}

static void long_runs(void **state) {
    (void)state;
    static const char *const units[] = {"a", "_", " ", "\n", "a1B2+/", "\xe6\x97\xa5\xe6\x9c\xac"};
    for (size_t s = 0; s < sizeof splitters / sizeof *splitters; s++) {
        kv_model *m = load_split(splitters[s]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            char *text = run_of(units[u], STACK_USED_UP / strlen(units[u]) * strlen(units[u]));
            kv_tokens tokens = {0};
            kv_error err = {0};
            check(kv_model_tokenize(&tokens, m, text, strlen(text), false, false, &err), &err);
            spells(m, &tokens, text);
            kv_tokens_free(&tokens);
            free(text);
        }
        kv_model_free(m);
    }
}

static void longest_run(void **state) {
    (void)state;
    kv_model *m = load_split("smollm");
    kv_tokens tokens = {0};
    kv_error err = {0};
    char *text = run_of("a", 2 * (size_t)KV_MODEL_LONGEST_RUN + 1);
    assert_int_equal(kv_model_tokenize(&tokens, m, text, KV_MODEL_LONGEST_RUN + 1, false, false, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "1048577 bytes in a row"));
    text[KV_MODEL_LONGEST_RUN] = '\n'; /* two of the longest */
    check(kv_model_tokenize(&tokens, m, text, strlen(text), false, false, &err), &err);
    spells(m, &tokens, text);
    kv_tokens_free(&tokens);
    free(text);
    kv_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_runs),
        cmocka_unit_test(longest_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
