/* What the rules of a request change, and what looks alike and stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chat/canonical.h"

#define BILLING "x-anthropic-billing-header: "

/* ── the billing line ──────────────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char *in, *out; /* NULL: as it was */
} prompts[] = {
    {BILLING "cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;\nYou are",
     BILLING "cc_version=2.1.101.000; cc_entrypoint=cli; cch=00000;\nYou are"},
    {BILLING "cc_version=2.1.37.0d9; cc_entrypoint=sdk-cli; cch=fa690;",
     BILLING "cc_version=2.1.37.000; cc_entrypoint=sdk-cli; cch=00000;"},
    /* some clients put the next block right behind it */
    {BILLING "cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;You are; cch=abcde is not one",
     BILLING "cc_version=2.1.101.000; cc_entrypoint=cli; cch=00000;You are; cch=abcde is not one"},
    {BILLING "cch=a5145;You say; cch=abcde;", BILLING "cch=00000;You say; cch=abcde;"},
    {BILLING "a b=c; cch=abcde;", NULL},
    /* one of the two; other members; another order */
    {BILLING "cc_version=2.1.227.7d1; cc_entrypoint=sdk-cli;",
     BILLING "cc_version=2.1.227.000; cc_entrypoint=sdk-cli;"},
    {BILLING "cch=1; x=cch=2; cc_version=10.20.30.abcdef;", BILLING "cch=0; x=cch=2; cc_version=10.20.30.000000;"},
    {BILLING "cch=DEADBEEF;", BILLING "cch=00000000;"},
    /* already blank */
    {BILLING "cc_version=2.1.101.000; cch=00000;", NULL},
    /* no hash: what it is stays */
    {BILLING "cch=test;", NULL},
    {BILLING "cch=a514g;", NULL},
    {BILLING "cch=;", NULL},
    {BILLING "cch=a5145", NULL},
    {BILLING "cch= a5145;", NULL},
    {BILLING "cch=a5145 ;", NULL},
    {BILLING "cch=a51\n45;", NULL},
    {BILLING "cch=0123456789abcdef0123456789abcdef0;", NULL},
    {BILLING "xcch=a5145;", NULL},
    {BILLING "CCH=a5145;", NULL},
    {BILLING "cc_version=2.1.101;", NULL},
    {BILLING "cc_version=2.1.101.e51.e52;", NULL},
    {BILLING "cc_version=2.1.e51;", NULL},
    {BILLING "cc_version=2.1..e51;", NULL},
    {BILLING "cc_version=2.1.101.beta;", NULL},
    {BILLING, NULL},
    /* not that line, or not at the beginning */
    {"cch=a5145;", NULL},
    {"x-anthropic-billing-header:cch=a5145;", NULL},
    {"X-Anthropic-Billing-Header: cch=a5145;", NULL},
    {" " BILLING "cch=a5145;", NULL},
    {"\n" BILLING "cch=a5145;", NULL},
    {"Explain this:\n" BILLING "cch=a5145;", NULL},
    {"\"" BILLING "cch=a5145;\"", NULL},
    {BILLING "a=b;\n" BILLING "cch=a5145;", NULL},
    {"x-anthropic-billing-heade", NULL},
    {"", NULL},
};

static json_t *system_message(const char *text, bool parts) {
    if (!parts) return json_pack("[{s:s, s:s}]", "role", "system", "content", text);
    return json_pack("[{s:s, s:[{s:s, s:s}, {s:s, s:s}]}]", "role", "system", "content", "type", "text", "text", text,
                     "type", "text", "text", BILLING "cch=a5145;");
}

static const char *text_of(const json_t *messages, int i, int part) {
    const json_t *content = json_object_get(json_array_get(messages, (size_t)i), "content");
    if (part >= 0) content = json_object_get(json_array_get(content, (size_t)part), "text");
    return json_string_value(content);
}

static void test_billing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        for (int parts = 0; parts < 2; parts++) {
            json_t *m = system_message(prompts[i].in, parts);
            kv_rules did = kv_canonical_messages(m, KV_RULES_ALL);
            const char *want = prompts[i].out ? prompts[i].out : prompts[i].in, *got = text_of(m, 0, parts ? 0 : -1);
            if (strcmp(got, want) != 0) fail_msg("%s\ngot  %s\nwant %s", prompts[i].in, got, want);
            assert_int_equal(did, prompts[i].out ? 1u << KV_RULE_BILLING_HEADER : 0);
            if (parts) assert_string_equal(text_of(m, 0, 1), BILLING "cch=a5145;"); /* only the first */
            assert_int_equal(kv_canonical_messages(m, KV_RULES_ALL), 0);            /* again: nothing */
            json_decref(m);
            m = system_message(prompts[i].in, parts);
            assert_int_equal(kv_canonical_messages(m, KV_RULES_ALL & ~(1u << KV_RULE_BILLING_HEADER)), 0);
            assert_string_equal(text_of(m, 0, parts ? 0 : -1), prompts[i].in);
            json_decref(m);
        }
    }
}

/* Whoever only quotes the line keeps it, and the request's own texts are not written to. */
static void test_where(void **state) {
    (void)state;
    static const char line[] = BILLING "cch=a5145;\n";
    static const char *const others[] = {"user", "assistant", "tool", "ipython", "System"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        json_t *m = json_pack("[{s:s, s:s}]", "role", others[i], "content", line);
        assert_int_equal(kv_canonical_messages(m, KV_RULES_ALL), 0);
        assert_string_equal(text_of(m, 0, -1), line);
        json_decref(m);
    }
    json_t *m = json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "developer", "content", line, "role",
                          "system", "content", line, "role", "user", "content", line);
    json_t *shared = json_incref(json_object_get(json_array_get(m, 0), "content"));
    assert_int_equal(kv_canonical_messages(m, KV_RULES_ALL), 1u << KV_RULE_BILLING_HEADER);
    assert_string_equal(text_of(m, 0, -1), BILLING "cch=00000;\n");
    assert_string_equal(text_of(m, 1, -1), line);
    assert_string_equal(text_of(m, 2, -1), line);
    assert_string_equal(json_string_value(shared), line);
    json_decref(shared);
    json_decref(m);
    static const char *const odd[] = {"[]", "[{\"role\":\"system\",\"content\":null}]", "[{\"role\":\"system\"}]",
                                      "[{\"role\":\"system\",\"content\":[]}]", "[{\"content\":\"x\"}]"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        m = json_loads(odd[i], 0, NULL);
        assert_non_null(m);
        assert_int_equal(kv_canonical_messages(m, KV_RULES_ALL), 0);
        json_decref(m);
    }
    assert_int_equal(kv_canonical_messages(NULL, KV_RULES_ALL), 0);
}

/* ── the option ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_rules(void **state) {
    (void)state;
    char *all[] = {"all"}, *none[] = {"none"}, *two[] = {"tool-schemas", "billing-header"}, *odd[] = {"billing"};
    const kv_rules billing = 1u << KV_RULE_BILLING_HEADER, schemas = 1u << KV_RULE_TOOL_SCHEMAS;
    assert_int_equal(kv_canonical_rules(NULL, 0, false), KV_RULES_ALL);
    assert_int_equal(kv_canonical_rules(all, 1, false), KV_RULES_ALL);
    assert_int_equal(kv_canonical_rules(none, 1, false), KV_RULES_NONE);
    assert_int_equal(kv_canonical_rules(two, 2, false), billing | schemas);
    assert_int_equal(kv_canonical_rules(odd, 1, false), KV_RULES_NONE);
    /* with --exact: what depends on the request alone */
    assert_int_equal(kv_canonical_rules(NULL, 0, true), billing);
    assert_int_equal(kv_canonical_rules(two, 2, true), billing);
    for (int r = 0; r < KV_RULE_COUNT; r++) {
        char *one[] = {(char *)kv_rule_name((kv_rule)r)};
        assert_int_equal(kv_canonical_rules(one, 1, false), 1u << r);
        assert_true(strlen(kv_rule_text((kv_rule)r)) > 20);
        assert_true(kv_canonical_has(1u << r, (kv_rule)r));
        assert_false(kv_canonical_has(~(1u << r), (kv_rule)r));
    }
    json_t *names = kv_canonical_names(billing | schemas);
    assert_int_equal(json_array_size(names), 2);
    assert_string_equal(json_string_value(json_array_get(names, 0)), "billing-header");
    assert_string_equal(json_string_value(json_array_get(names, 1)), "tool-schemas");
    json_decref(names);
    assert_string_equal(kv_rule_name(KV_RULE_COUNT), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_billing),
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
