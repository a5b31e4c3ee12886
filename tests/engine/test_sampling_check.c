/* What of sampling parameters is refused before the engine sees it: each field in turn, and the field is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/sampling_check.h"

#define N_VOCAB 100

static void refused(const kv_sampling *s, const char *field) {
    kv_error err = {0};
    assert_int_equal(kv_sampling_check(s, N_VOCAB, &err), KV_INVALID);
    assert_string_equal(err.field, field);
    assert_non_null(strstr(err.message, strcmp(field, "logit_bias") == 0 ? "token" : field));
}

static void test_numbers(void **state) {
    (void)state;
    kv_sampling good;
    kv_sampling_defaults(&good);
    assert_int_equal(kv_sampling_check(&good, N_VOCAB, NULL), KV_OK);
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        const float v = wrong[i];
        kv_sampling s = good;
        s.temperature = v;
        refused(&s, "temperature");
        s = good, s.top_p = v;
        refused(&s, "top_p");
        s = good, s.dry_base = v;
        refused(&s, "dry_base");
        s = good, s.adaptive_decay = v;
        refused(&s, "adaptive_decay");
        s = good, s.repeat_penalty = v;
        refused(&s, "repeat_penalty");
    }
    kv_sampling s = good;
    s.repeat_penalty = 1e-40f; /* its inverse is infinite */
    refused(&s, "repeat_penalty");
    s = good, s.mirostat = 3;
    refused(&s, "mirostat");
    s = good, s.min_keep = -1;
    refused(&s, "min_keep");
}

static void test_bias(void **state) {
    (void)state;
    kv_sampling s;
    kv_sampling_defaults(&s);
    const struct {
        kv_logit_bias bias;
        bool fine;
    } list[] = {{{0, 1}, true},    {{N_VOCAB - 1, -INFINITY}, true},
                {{-1, 1}, false},  {{N_VOCAB, 1}, false},
                {{1, NAN}, false}, {{1, INFINITY}, false}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        kv_logit_bias bias = list[i].bias;
        s.logit_bias = &bias;
        s.n_logit_bias = 1;
        if (list[i].fine) assert_int_equal(kv_sampling_check(&s, N_VOCAB, NULL), KV_OK);
        else refused(&s, "logit_bias");
    }
}

static void test_texts(void **state) {
    (void)state;
    kv_sampling s;
    kv_sampling_defaults(&s);
    char text[KV_SAMPLING_TEXT_MAX + 2];
    memset(text, 'x', sizeof text);
    text[KV_SAMPLING_TEXT_MAX] = 0;
    s.reasoning_budget_message = text;
    assert_int_equal(kv_sampling_check(&s, N_VOCAB, NULL), KV_OK);
    text[KV_SAMPLING_TEXT_MAX] = 'x', text[KV_SAMPLING_TEXT_MAX + 1] = 0;
    refused(&s, "reasoning_budget_message");
    s.reasoning_budget_message = NULL;
    const char *breakers[] = {"\n", ""};
    s.dry_breakers = breakers;
    s.n_dry_breakers = 1;
    assert_int_equal(kv_sampling_check(&s, N_VOCAB, NULL), KV_OK);
    s.n_dry_breakers = 2;
    refused(&s, "dry_sequence_breakers");
    s.n_dry_breakers = 0;
    refused(&s, "dry_sequence_breakers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
