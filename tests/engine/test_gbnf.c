/* Grammars that are taken, refused with a reason, or would hurt the engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "engine/gbnf.h"

static void takes(const char *grammar) {
    kv_error err = {0};
    if (kv_gbnf_check(grammar, NULL, NULL, &err) != KV_OK) fail_msg("refused: %s\n%.200s", err.message, grammar);
}

static void refuses(const char *grammar, const char *why) {
    kv_error err = {0};
    if (kv_gbnf_check(grammar, NULL, NULL, &err) != KV_INVALID) fail_msg("taken: %.200s", grammar);
    if (!strstr(err.message, why)) fail_msg("\"%s\" does not say \"%s\"", err.message, why);
    assert_string_equal(err.field, "grammar");
}

static void test_takes_what_the_engine_takes(void **state) {
    (void)state;
    takes("root ::= \"a\"");
    takes("# comment\n\nroot ::= \"yes\" | \"no\" # more\n");
    takes("root ::= item+\nitem ::= [^\\x00-\\x1F\"\\\\]* \"\\n\"\r\n");
    takes("root ::= (\"a\" | ( \"b\"\n \"c\" ))? end\nend ::= \"\"");
    takes("root ::= [a-z-]{2,5} . \"\\u00e9\" \"\xC3\xA9\"{3} [0-9]{1,}");
    takes("root ::= \"a\" root | \"\"");
    takes("root ::= ws \"x\"\nws ::= [ \\t]*");
    takes("root ::= <[1234]> !<|end|>");
    takes("root ::= \"a\"{0} \"b\"");
    takes("root ::= \"a\"\nroot ::= \"b\" ");
    takes("root ::= []\"a\" ");
    takes("root ::= \"a\"{0,5000}");
}

static void test_syntax_errors_name_the_place(void **state) {
    (void)state;
    refuses("root ::= \"a", "line 1, column 12: it ends inside");
    refuses("root ::= (\"a\"", "expected ')'");
    refuses("root = \"a\"", "line 1, column 6: expected '::='");
    refuses("root ::= \"a\"\n\n_x ::= \"b\"", "line 3, column 1: expected the name");
    refuses("root ::= \"\\q\"", "unknown escape");
    refuses("root ::= \"\\x4\"", "2 hexadecimal digits");
    refuses("root ::= * \"a\"", "nothing to repeat");
    refuses("root ::= \"\"*", "nothing to repeat");
    refuses("root ::= \"a\"{x}", "expected a number");
    refuses("root ::= \"a\" )", "expected the end of the line");
    refuses("%llguidance {}", "expected the name");
    refuses("root ::= <[x]>", "token number");
    refuses("root ::= <abc", "expected '>'");
    refuses("root ::= !\"a\"", "expected '<'");
}

static void test_rules_that_are_missing(void **state) {
    (void)state;
    refuses("", "no rule named \"root\"");
    refuses("start ::= \"a\"", "no rule named \"root\"");
    refuses("root ::= thing", "\"thing\" but does not define it");
}

static void test_repetitions_are_bounded(void **state) {
    (void)state;
    refuses("root ::= \"a\"{5,2}", "n below m");
    refuses("root ::= \"a\"{2001}", "more than 2000 repetitions");
    refuses("root ::= \"a\"{99999999999999999999999}", "more than 2000 repetitions");
    refuses("root ::= (\"a\"{0,50}){0,50}", "repetitions of repetitions");
    takes("root ::= ((\"a\"{100}){100}){100}"); /* references: nothing is multiplied */
    refuses("root ::= (\"a\" | \"\")* \"b\"", "without end what may be empty: a group");
    refuses("root ::= x+\nx ::= \"a\"{0}", "may be empty: the rule x");
    refuses("root ::= \"a\"?* \"b\"", "endless repetition of what may be empty");
    takes("root ::= (\"a\"?)* \"b\""); /* the engine knows how to */
    takes("root ::= (\"a\" | \"\"){0,5}");
    kv_buf g = {0};
    kv_buf_adds(&g, "root ::= \"");
    for (int i = 0; i < 100000; i++) kv_buf_adds(&g, "0123456789");
    kv_buf_adds(&g, "\"{2000}");
    refuses(kv_buf_str(&g), "too large");
    kv_buf_free(&g);
}

static void test_left_recursion(void **state) {
    (void)state;
    refuses("root ::= root \"a\" | \"b\"", "left recursive: the rule \"root\"");
    refuses("root ::= a\na ::= b \"x\"\nb ::= a", "left recursive");
    refuses("root ::= ws root \"x\"\nws ::= \"\"", "left recursive");
    refuses("root ::= \"a\"? root", "left recursive");
    /* Empty only by way of another rule: the engine does not see it, and never ends. */
    refuses("root ::= a root \"x\" | \"y\"\na ::= b\nb ::= \"\"", "left recursive");
    refuses("root ::= (\"a\" | (\"\")) root", "left recursive");
}

static void test_depth_and_ambiguity_are_bounded(void **state) {
    (void)state;
    kv_buf g = {0};
    kv_buf_adds(&g, "root ::= ");
    for (int i = 0; i < 1000000; i++) kv_buf_adds(&g, "(");
    refuses(kv_buf_str(&g), "groups inside each other");
    kv_buf_clear(&g);
    kv_buf_adds(&g, "root ::= r0\n");
    for (int i = 0; i < 100000; i++) kv_buf_addf(&g, "r%d ::= r%d\n", i, i + 1);
    kv_buf_adds(&g, "r100000 ::= \"a\"");
    refuses(kv_buf_str(&g), "too deep");
    kv_buf_clear(&g);
    kv_buf_adds(&g, "root ::= r0\n");
    for (int i = 0; i < 60; i++) kv_buf_addf(&g, "r%d ::= r%d \"x\" | r%d \"y\"\n", i, i + 1, i + 1);
    kv_buf_adds(&g, "r60 ::= \"a\"");
    refuses(kv_buf_str(&g), "too ambiguous");
    kv_buf_clear(&g);
    /* Long is fine when it is not deep. */
    kv_buf_adds(&g, "root ::= ");
    for (int i = 0; i < 20000; i++) kv_buf_addf(&g, "%sr%d", i ? " | " : "", i);
    kv_buf_adds(&g, "\n");
    for (int i = 0; i < 20000; i++) kv_buf_addf(&g, "r%d ::= \"word%d\" ws\n", i, i);
    kv_buf_adds(&g, "ws ::= [ ]?\n");
    takes(kv_buf_str(&g));
    kv_buf_free(&g);
}

/* Damaged grammars: an answer for each, and a reason with each no. */
static void test_random_damage(void **state) {
    (void)state;
    unsigned seed = 4242;
    print_message("seed %u\n", seed);
    static const char *const good[] = {
        "root ::= (\"a\" | ( \"b\"\n \"c\" ))? end{2,3} [^a-z\\x00-]+\nend ::= <[12]> | !<x> # end\n",
        "root ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= str \":\" ws str\nstr ::= \"\\\"\" [^\"]* "
        "\"\\\"\"\nws ::= \" \"?\n",
    };
    static const char noise[] = "()[]{}<>!\"\\|*+?.,:=#-\n\r\t az09\xC3\xFF";
    for (int round = 0; round < 20000; round++) {
        kv_buf g = {0};
        kv_buf_adds(&g, good[round % 2]);
        for (int i = 0; i < 1 + round % 3; i++) {
            seed = seed * 1103515245u + 12345u;
            size_t at = (seed >> 8) % g.len;
            seed = seed * 1103515245u + 12345u;
            g.data[at] = noise[(seed >> 16) % (sizeof noise - 1)];
            if (seed & 0x100) g.data[g.len = at + 1] = '\0';
        }
        kv_error err = {0};
        if (kv_gbnf_check(kv_buf_str(&g), NULL, NULL, &err) != KV_OK) assert_true(err.message[0]);
        kv_buf_free(&g);
    }
}

static bool only_end(void *ctx, const char *text, size_t n) {
    (void)ctx;
    return n == 7 && memcmp(text, "<|end|>", 7) == 0;
}

static void test_tokens_are_asked_for(void **state) {
    (void)state;
    kv_error err = {0};
    assert_int_equal(kv_gbnf_check("root ::= <|end|>", only_end, NULL, &err), KV_OK);
    assert_int_equal(kv_gbnf_check("root ::= <|start|>", only_end, NULL, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "not one token"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_what_the_engine_takes),
        cmocka_unit_test(test_syntax_errors_name_the_place),
        cmocka_unit_test(test_rules_that_are_missing),
        cmocka_unit_test(test_repetitions_are_bounded),
        cmocka_unit_test(test_left_recursion),
        cmocka_unit_test(test_depth_and_ambiguity_are_bounded),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_tokens_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
