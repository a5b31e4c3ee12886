#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "http/path.h"

static const struct {
    const char *target, *prefix, *path; /* path NULL: refused with `status` */
    kv_status status;
} table[] = {
    {"/", "", "/", KV_OK},
    {"/", NULL, "/", KV_OK},
    {"//", "", "/", KV_OK},
    {"/v1/models", "", "/v1/models", KV_OK},
    {"/v1/models/", "", "/v1/models", KV_OK},
    {"/v1/models//", "", "/v1/models", KV_OK},
    {"//v1///models", "", "/v1/models", KV_OK},
    {"/v1/models?x=/a//b/", "", "/v1/models", KV_OK},
    {"/v1/models#frag", "", "/v1/models", KV_OK},
    {"/?x", "", "/", KV_OK},
    {"/v1/v1/chat/completions", "", "/v1/chat/completions", KV_OK},
    {"/v1/v1/v1/models", "", "/v1/models", KV_OK},
    {"/v1//v1/models", "", "/v1/models", KV_OK},
    {"/v1/v1", "", "/v1", KV_OK},
    {"/v1/v1/", "", "/v1", KV_OK},
    {"/v1/v10/models", "", "/v1/v10/models", KV_OK},
    {"/a/v1/v1/b", "", "/a/v1/v1/b", KV_OK},
    {"/v1%2Fmodels", "", "/v1/models", KV_OK},
    {"/v1/%6dodels%2f", "", "/v1/models", KV_OK},
    {"/a+b%20c%25d", "", "/a+b c%d", KV_OK},
    {"/caf%C3%A9", "", "/caf\xc3\xa9", KV_OK},
    {"/a/../b/./c", "", "/a/../b/./c", KV_OK},
    {"*", "", "*", KV_OK},
    {"*", "/api", "*", KV_OK},
    {"http://localhost:8080/v1/models?x", "", "/v1/models", KV_OK},
    {"HTTPS://h/v1/v1/models", "", "/v1/models", KV_OK},
    {"http://h", "", "/", KV_OK},
    {"http://h?x=/y", "", "/", KV_OK},
    {"/api/v1/models", "/api", "/v1/models", KV_OK},
    {"/api/v1/models", "api/", "/v1/models", KV_OK},
    {"/api/v1/models", "//api//", "/v1/models", KV_OK},
    {"//api//v1/v1/models/", "/api", "/v1/models", KV_OK},
    {"/api", "/api", "/", KV_OK},
    {"/api/", "/api", "/", KV_OK},
    {"/a/b/c", "/a/b", "/c", KV_OK},
    {"/api/v1", "/", "/api/v1", KV_OK},
    {"/apix/v1", "/api", NULL, KV_NOT_FOUND},
    {"/v1/models", "/api", NULL, KV_NOT_FOUND},
    {"/", "/api", NULL, KV_NOT_FOUND},
    {"", "", NULL, KV_INVALID},
    {"v1/models", "", NULL, KV_INVALID},
    {"**", "", NULL, KV_INVALID},
    {"ftp://h/x", "", NULL, KV_INVALID},
    {"/a%", "", NULL, KV_INVALID},
    {"/a%2", "", NULL, KV_INVALID},
    {"/a%zz", "", NULL, KV_INVALID},
    {"/a%00b", "", NULL, KV_INVALID},
    {"/a%0ab", "", NULL, KV_INVALID},
    {"/a%7f", "", NULL, KV_INVALID},
    {"/a\x1b[2J", "", NULL, KV_INVALID},
    {"/a%ff", "", NULL, KV_INVALID},
    {"/a\xc3", "", NULL, KV_INVALID},
};

static void test_table(void **state) {
    (void)state;
    kv_buf out = {0};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        kv_error err = {0};
        kv_status status = kv_path_normalise(&out, table[i].target, table[i].prefix, &err);
        if (status != table[i].status) fail_msg("%s: %s", table[i].target, kv_status_name(status));
        if (table[i].path && strcmp(kv_buf_str(&out), table[i].path) != 0)
            fail_msg("%s: got %s", table[i].target, kv_buf_str(&out));
        if (!table[i].path) assert_true(err.status == status && err.message[0] != '\0');
    }
    kv_buf_free(&out);
}

static void test_fits(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *path, *segment; /* segment: NULL = does not fit, "" = fits without one */
    } cases[] = {
        {"/slots", "/slots", ""},
        {"/slots", "/slots/1", NULL},
        {"/slots/{}", "/slots/3", "3"},
        {"/slots/{}", "/slots/a b", "a b"},
        {"/slots/{}", "/slots/{}", "{}"},
        {"/slots/{}", "/slots", NULL},
        {"/slots/{}", "/slots/", NULL},
        {"/slots/{}", "/slots/3/x", NULL},
        {"/slots/{}", "/slot/3", NULL},
        {"/r/{}/cancel", "/r/abc/cancel", "abc"},
        {"/r/{}/cancel", "/r//cancel", NULL},
        {"/r/{}/cancel", "/r/abc", NULL},
        {"/r/{}/cancel", "/r/abc/cancel/d", NULL},
        {"/models/{*}", "/models/a", "a"},
        {"/models/{*}", "/models/a/b:c", "a/b:c"},
        {"/models/{*}", "/models/", NULL},
        {"/models/{*}", "/models", NULL},
        {"/models/{*}", "/model/a", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *segment;
        size_t n;
        bool fits = kv_path_fits(&segment, &n, cases[i].pattern, cases[i].path);
        if (fits != (cases[i].segment != NULL)) fail_msg("%s on %s", cases[i].pattern, cases[i].path);
        if (!fits) continue;
        assert_int_equal(n, strlen(cases[i].segment));
        if (n) assert_memory_equal(segment, cases[i].segment, n);
        else assert_null(segment);
    }
}

/* Whatever comes, what is accepted is in normal form, and normalising it again changes nothing. */
static void test_random(void **state) {
    (void)state;
    static const char *const bits[] = {"/",  "//", "v1", "api",      "%2f",  "%", "%41",
                                       "..", "?",  "#",  "\xc3\xa9", "\xff", "x"};
    unsigned seed = getenv("KVASIR_SEED") ? (unsigned)atoi(getenv("KVASIR_SEED")) : (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    kv_buf out = {0}, again = {0}, target = {0};
    for (int i = 0; i < 20000; i++) {
        kv_buf_clear(&target);
        kv_buf_adds(&target, rand() % 8 ? "/" : "");
        for (int n = rand() % 10; n > 0; n--) kv_buf_adds(&target, bits[(size_t)rand() % (sizeof bits / sizeof *bits)]);
        if (kv_path_normalise(&out, kv_buf_str(&target), rand() % 2 ? "/api" : "", NULL) != KV_OK) continue;
        assert_int_equal(out.data[0], '/');
        assert_null(strstr(out.data, "//"));
        assert_true(out.len == 1 || out.data[out.len - 1] != '/');
        assert_true(strncmp(out.data, "/v1/v1/", 7) != 0);
        assert_true(kv_utf8_valid(out.data, out.len));
        assert_int_equal(strlen(out.data), out.len);
        if (strpbrk(out.data, "%?#")) continue; /* these would be read anew */
        assert_int_equal(kv_path_normalise(&again, out.data, "", NULL), KV_OK);
        assert_string_equal(again.data, out.data);
    }
    kv_buf_free(&out);
    kv_buf_free(&again);
    kv_buf_free(&target);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
