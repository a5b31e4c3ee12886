/* base: buffers, errors, JSON reading and UTF-8. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

static void buf_grows_and_drops(void **state) {
    (void)state;
    kv_buf b = {0};
    assert_string_equal(kv_buf_str(&b), "");
    for (int i = 0; i < 1000; i++) kv_buf_addf(&b, "%d,", i);
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    kv_buf_drop_front(&b, b.len - 4);
    assert_string_equal(b.data, "999,");
    char *taken = kv_buf_take(&b);
    assert_string_equal(taken, "999,");
    assert_null(b.data);
    free(taken);
    taken = kv_buf_take(&b);
    assert_string_equal(taken, "");
    free(taken);
}

static void tokens_common_prefix(void **state) {
    (void)state;
    const kv_token a[] = {1, 2, 3, 4}, b[] = {1, 2, 9, 4};
    assert_int_equal(kv_tokens_common(a, 4, b, 4), 2);
    assert_int_equal(kv_tokens_common(a, 4, a, 3), 3);
    assert_int_equal(kv_tokens_common(a, 0, b, 4), 0);
}

static void error_message_stays_utf8(void **state) {
    (void)state;
    kv_error err;
    char text[2000];
    for (size_t pad = 0; pad < 4; pad++) {
        memset(text, 'x', pad);
        for (size_t i = pad; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 4); /* € */
        assert_int_equal(kv_fail_field(&err, "prompt", "%s", text), KV_INVALID);
        assert_true(strlen(err.message) > 700);
        assert_true(kv_utf8_valid(err.message, strlen(err.message)));
        assert_string_equal(err.field, "prompt");
    }
    assert_int_equal(kv_fail(NULL, KV_BUSY, "unused"), KV_BUSY);
    assert_int_equal(kv_status_http(KV_BUSY), 503);
    assert_string_equal(kv_status_name(KV_CONTEXT_FULL), "CONTEXT_FULL");
}

static void utf8_edges(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t n, complete;
        bool valid;
    } rows[] = {
        {"", 0, 0, true},
        {"abc", 3, 3, true},
        {"\xC3\xA9", 2, 2, true},
        {"a\xC3", 2, 1, false},
        {"\xE2\x82", 2, 0, false},
        {"\xF0\x9F\x98", 3, 0, false},
        {"\xF0\x9F\x98\x80", 4, 4, true},
        {"\x80", 1, 1, false},             /* a stray continuation byte will never become whole */
        {"\xC0\xAF", 2, 2, false},         /* overlong */
        {"\xED\xA0\x80", 3, 3, false},     /* surrogate */
        {"\xF4\x90\x80\x80", 4, 4, false}, /* past U+10FFFF */
        {"\xF4\x90", 2, 2, false},         /* already invalid, so nothing to wait for */
        {"\xE0\x9F", 2, 2, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(kv_utf8_complete(rows[i].s, rows[i].n), rows[i].complete);
        assert_int_equal(kv_utf8_valid(rows[i].s, rows[i].n), rows[i].valid);
    }
}

static json_t *parse(const char *text) {
    json_t *v;
    kv_error err;
    assert_int_equal(kv_json_parse(&v, text, strlen(text), &err), KV_OK);
    return v;
}

static void json_numbers_in_any_spelling(void **state) {
    (void)state;
    json_t *o = parse("{\"a\":1.0,\"b\":2,\"c\":1.5,\"d\":null,\"e\":\"x\",\"f\":1e300,\"g\":9223372036854775807}");
    int64_t i = 42;
    kv_error err;
    assert_int_equal(kv_json_int(&i, o, "a", 0, 10, &err), KV_OK);
    assert_int_equal(i, 1);
    i = 42;
    assert_int_equal(kv_json_int(&i, o, "d", 0, 10, &err), KV_OK);
    assert_int_equal(kv_json_int(&i, o, "absent", 0, 10, &err), KV_OK);
    assert_int_equal(i, 42);
    assert_int_equal(kv_json_int(&i, o, "c", 0, 10, &err), KV_INVALID);
    assert_string_equal(err.field, "c");
    assert_int_equal(kv_json_int(&i, o, "e", 0, 10, &err), KV_INVALID);
    assert_int_equal(kv_json_int(&i, o, "f", INT64_MIN, INT64_MAX, &err), KV_INVALID);
    assert_int_equal(kv_json_int(&i, o, "b", 3, 10, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "between 3 and 10, but got 2"));
    assert_int_equal(i, 42);
    assert_int_equal(kv_json_int(&i, o, "g", INT64_MIN, INT64_MAX, &err), KV_OK);
    assert_true(i == INT64_MAX);
    double d = 7;
    assert_int_equal(kv_json_double(&d, o, "b", 0, 10, &err), KV_OK);
    assert_true(d == 2);
    assert_int_equal(kv_json_double(&d, o, "f", 0, 10, &err), KV_INVALID);
    bool yes = true;
    assert_int_equal(kv_json_bool(&yes, o, "b", &err), KV_INVALID);
    json_decref(o);
}

static void json_refuses_what_it_cannot_carry(void **state) {
    (void)state;
    static const char *const bad[] = {"", "{", "{\"a\":1}x", "\"\xC3\"", "nul", "[1,]", "{\"a\":1,}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *v;
        kv_error err;
        assert_int_equal(kv_json_parse(&v, bad[i], strlen(bad[i]), &err), KV_INVALID);
        assert_null(v);
        assert_non_null(strstr(err.message, "invalid JSON"));
    }
    kv_buf deep = {0};
    for (int i = 0; i < 100000; i++) kv_buf_adds(&deep, "[");
    json_t *v;
    kv_error err;
    assert_int_equal(kv_json_parse(&v, deep.data, deep.len, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "nested deeper"));
    kv_buf_free(&deep);
    v = parse("[\"[[[[\\\"[[[\"]"); /* brackets in strings are not nesting */
    json_decref(v);
    v = parse("{\"s\":\"a\\u0000b\"}");
    const char *s = NULL;
    assert_int_equal(kv_json_str(&s, v, "s", &err), KV_INVALID);
    assert_non_null(strstr(err.message, "NUL"));
    json_decref(v);
}

/* n times `one` in an array. */
static kv_status check_many(const char *one, size_t n, kv_error *err) {
    kv_buf text = {0};
    kv_buf_adds(&text, "[");
    for (size_t i = 0; i < n; i++) {
        if (i) kv_buf_adds(&text, ",");
        kv_buf_adds(&text, one);
    }
    kv_buf_adds(&text, "]");
    kv_status st = kv_json_check_depth(text.data, text.len, err);
    kv_buf_free(&text);
    return st;
}

static void json_has_bounds(void **state) {
    (void)state;
    kv_error err = {0};
    assert_int_equal(check_many("{}", KV_JSON_MAX_CONTAINERS - 1, &err), KV_OK);
    assert_int_equal(check_many("[]", KV_JSON_MAX_CONTAINERS, &err), KV_INVALID);
    assert_string_equal(err.message, "the JSON has 1000001 objects and arrays; at most 1000000 are possible");
    assert_int_equal(check_many("1", KV_JSON_MAX_VALUES, &err), KV_OK);
    assert_int_equal(check_many("1", KV_JSON_MAX_VALUES + 1, &err), KV_INVALID);
    assert_string_equal(err.message, "the JSON has 8000001 values and names of members; at most 8000000 are possible");
    assert_int_equal(check_many("{\"a\":1,\"b\":2}", 999999, &err), KV_OK);
    assert_int_equal(check_many("{\"a\":1,\"b\":2,\"c\":3,\"d\":4}", 999999, &err), KV_INVALID);
    /* what stands in a text is no value, and a long prompt, a long conversation and many tools are far from the bounds */
    assert_int_equal(check_many("\"[{,:\\\"[{,:\"", 1000000, &err), KV_OK);
    assert_int_equal(check_many("12345", 1000000, &err), KV_OK);
    assert_int_equal(
        check_many("{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{}}],"
                   "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}",
                   100000, &err),
        KV_OK);
}

static void json_errors_carry_no_text(void **state) {
    (void)state;
    json_t *v;
    kv_error err;
    const char *body = "{\"prompt\": secretword}";
    assert_int_equal(kv_json_parse(&v, body, strlen(body), &err), KV_INVALID);
    assert_null(strstr(err.message, "secretword"));
}

static void json_quote_takes_any_bytes(void **state) {
    (void)state;
    kv_buf b = {0};
    kv_json_quote(&b, "a\"\n\xFFz\0!", 7);
    assert_string_equal(b.data, "\"a\\\"\\n\xEF\xBF\xBDz\\u0000!\"");
    kv_buf_free(&b);
}

static void virtual_clock_only_moves_by_hand(void **state) {
    (void)state;
    kv_clock_virtual c;
    kv_clock_virtual_init(&c, 5);
    assert_int_equal(kv_now_us(&c.base), 5);
    c.us += 10;
    assert_int_equal(kv_now_us(&c.base), 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_grows_and_drops),
        cmocka_unit_test(tokens_common_prefix),
        cmocka_unit_test(error_message_stays_utf8),
        cmocka_unit_test(utf8_edges),
        cmocka_unit_test(json_numbers_in_any_spelling),
        cmocka_unit_test(json_refuses_what_it_cannot_carry),
        cmocka_unit_test(json_has_bounds),
        cmocka_unit_test(json_errors_carry_no_text),
        cmocka_unit_test(json_quote_takes_any_bytes),
        cmocka_unit_test(virtual_clock_only_moves_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
