#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "http/cors.h"

static void test_host(void **state) {
    (void)state;
    static const char *const names[] = {"Box.Lan", "kvasir"};
    static const char *const right[] = {
        "localhost",         "LocalHost",           "localhost:8080", "localhost.",    "localhost.:80", "localhost:",
        "127.0.0.1",         "127.0.0.1:8080",      "10.1.2.3",       "192.168.0.9:1", "[::1]",         "[::1]:8080",
        "[2001:db8::7]:443", "[fe80::1%25eth0]:80", "box.lan",        "BOX.LAN:8080",  "box.lan.",      "kvasir",
    };
    static const char *const wrong[] = {
        "",
        ":",
        ":80",
        ".",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "0x7f.1",
        "::1",
        "[::1",
        "[]",
        "[::1]x",
        "[::1]:x",
        "[nonsense]",
        "localhost:80x",
        "localhost:123456",
        "localhost/",
        "localhost@evil.example",
        "a.box.lan",
        "xkvasir",
        "kvasir x",
        "[box.lan]",
        "localhost..",
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        if (!kv_host_allowed(right[i], names, 2)) fail_msg("refused: %s", right[i]);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (kv_host_allowed(wrong[i], names, 2)) fail_msg("allowed: %s", wrong[i]);
    assert_false(kv_host_allowed("box.lan", NULL, 0));
    assert_true(kv_host_allowed("evil.example", (const char *const[]){"*"}, 1));
}

static void test_origin(void **state) {
    (void)state;
    static const struct {
        const char *config, *origin;
        bool allowed;
    } table[] = {
        {"localhost", "http://localhost", true},
        {"localhost", "https://localhost:3000", true},
        {"localhost", "HTTP://LOCALHOST:3000", true},
        {"localhost", "http://127.0.0.1:5173", true},
        {"localhost", "http://[::1]:8080", true},
        {"localhost", "http://127.0.0.2", false},
        {"localhost", "http://localhost.evil.example", false},
        {"localhost", "http://evil.example", false},
        {"localhost", "http://localhost@evil.example", false},
        {"localhost", "http://localhost/", false},
        {"localhost", "ftp://localhost", false},
        {"localhost", "null", false},
        {"localhost", "file://", false},
        {"localhost", "", false},
        {"localhost", "http://", false},
        {"localhost", "http://[::1", false},
        {"", "http://localhost", false},
        {"*", "null", true},
        {"*", "https://any.example", true},
        {"https://a.example", "https://a.example", true},
        {"https://a.example/", "https://A.example", true},
        {"https://a.example", "http://a.example", false},
        {"https://a.example", "https://a.example:444", false},
        {"https://a.example", "https://a.example.evil", false},
        {"https://a.example", "http://localhost", false},
        {" https://a.example , localhost ,app://obsidian.md", "http://localhost:1", true},
        {" https://a.example , localhost ,app://obsidian.md", "https://a.example", true},
        {" https://a.example , localhost ,app://obsidian.md", "app://obsidian.md", true},
        {",,", "", false},
        {"null", "null", true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (kv_origin_allowed(table[i].config, table[i].origin) != table[i].allowed)
            fail_msg("'%s' with '%s'", table[i].config, table[i].origin);
}

static void test_same_origin(void **state) {
    (void)state;
    assert_true(kv_origin_is_host("http://box.lan:8080", "box.lan:8080"));
    assert_true(kv_origin_is_host("http://Box.lan", "box.lan"));
    assert_true(kv_origin_is_host("http://box.lan", "box.lan:80"));
    assert_true(kv_origin_is_host("https://box.lan", "box.lan"));
    assert_true(kv_origin_is_host("https://box.lan:443", "box.lan"));
    assert_true(kv_origin_is_host("http://10.0.0.2:8080", "10.0.0.2:8080"));
    assert_false(kv_origin_is_host("http://box.lan:8081", "box.lan:8080"));
    assert_false(kv_origin_is_host("http://box.lan", "box.lan:8080"));
    assert_false(kv_origin_is_host("http://evil.example", "box.lan"));
    assert_false(kv_origin_is_host("null", "null"));
    assert_false(kv_origin_is_host("", ""));
}

static void test_names(void **state) {
    (void)state;
    char id[130];
    memset(id, 'a', sizeof id);
    id[128] = '\0';
    assert_true(kv_request_id_valid(id));
    id[128] = 'a', id[129] = '\0';
    assert_false(kv_request_id_valid(id));
    assert_true(kv_request_id_valid("req_0-9.A:z"));
    assert_false(kv_request_id_valid(""));
    assert_false(kv_request_id_valid("a b"));
    assert_false(kv_request_id_valid("a\tb"));
    assert_false(kv_request_id_valid("\xc3\xa9"));

    assert_true(kv_header_name_valid("X-Api-Key"));
    assert_false(kv_header_name_valid(""));
    assert_false(kv_header_name_valid("Content-Length "));
    assert_false(kv_header_name_valid("a:b"));
    assert_false(kv_header_name_valid("a\r"));

    assert_true(kv_header_names_valid("authorization, content-type,x-stainless-os"));
    assert_false(kv_header_names_valid(""));
    assert_false(kv_header_names_valid("a\r\nSet-Cookie: x"));
    assert_false(kv_header_names_valid("a;b"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_same_origin),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
