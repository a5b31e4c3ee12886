/* The names that --canonicalise takes are those of the rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/app.h"

static kv_rules rules_of(const char *value, bool exact) {
    kv_options opt;
    kv_buf warnings = {0};
    kv_error err = {0};
    char *argv[] = {"kvasir", exact ? "--exact" : "--warmup", value ? "--canonicalise" : NULL, (char *)value, NULL};
    char *env[] = {NULL};
    kv_options_defaults(&opt);
    if (kv_options_parse(&opt, value ? 4 : 2, argv, env, &warnings, &err) != KV_OK)
        fail_msg("%s: %s", value ? value : "", err.message);
    const kv_app app = {.opt = &opt};
    kv_rules rules = kv_app_rules(&app);
    kv_options_free(&opt);
    kv_buf_free(&warnings);
    return rules;
}

static void test_names(void **state) {
    (void)state;
    kv_buf all = {0};
    for (int r = 0; r < KV_RULE_COUNT; r++) {
        const char *name = kv_rule_name((kv_rule)r);
        assert_int_equal(rules_of(name, false), 1u << r);
        kv_buf_addf(&all, "%s%s", r ? "," : "", name);
    }
    assert_int_equal(rules_of(kv_buf_str(&all), false), KV_RULES_ALL);
    assert_int_equal(rules_of(NULL, false), KV_RULES_ALL);
    assert_int_equal(rules_of("all", false), KV_RULES_ALL);
    assert_int_equal(rules_of("none", false), KV_RULES_NONE);
    assert_int_equal(rules_of(NULL, true), 1u << KV_RULE_BILLING_HEADER);
    assert_int_equal(rules_of("tool-calls", true), KV_RULES_NONE);
    kv_buf_free(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
