/* Slot files: names, and what is read back of what was written. The actions are tests/http-node/native.test.mjs. */
#include "api/rig.h"

#include "api/native/slot_files.h"

static const kv_hash space = {1, 2}, other = {3, 4};

static void test_names(void **state) {
    (void)state;
    static const char *const good[] = {"a", "slot1.bin", "a b", ".hidden", "caf\xc3\xa9", "\xf0\x9f\x90\xb1", "a.b.c"};
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      "a..b",
                                      "/",
                                      "a/b",
                                      "a\\b",
                                      "a:b",
                                      "a*",
                                      "a?",
                                      "a\"",
                                      "a<",
                                      "a>",
                                      "a|",
                                      " a",
                                      "a ",
                                      "a.",
                                      "a\n",
                                      "a\x7f",
                                      "a\xc2\x85",
                                      "\xef\xbc\x8e",
                                      "a\xe2\x88\x95",
                                      "\xef\xbf\xbd",
                                      "\xef\xbb\xbf"
                                      "a",
                                      "\xff",
                                      "a\xc3"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!kv_slot_file_name_ok(good[i])) fail_msg("%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kv_slot_file_name_ok(bad[i])) fail_msg("%s", bad[i]);
    char name[257];
    memset(name, 'x', 256);
    name[256] = 0;
    assert_false(kv_slot_file_name_ok(name));
    name[255] = 0;
    assert_true(kv_slot_file_name_ok(name));
}

static void test_round_trip(void **state) {
    (void)state;
    static const kv_token tokens[] = {0, 1, 256, 2147483647};
    for (size_t n = 0; n <= 4; n++) {
        kv_buf file = {0};
        kv_tokens got = {0};
        kv_error err = {0};
        kv_slot_file_write(&file, space, "a \"model\"", tokens, n);
        assert_int_equal(kv_slot_file_read(&got, file.data, file.len, space, "f", &err), KV_OK);
        assert_int_equal(got.len, n);
        if (n) assert_memory_equal(got.data, tokens, n * sizeof *tokens);
        got.len = 0;
        assert_int_equal(kv_slot_file_read(&got, file.data, file.len, other, "f", &err), KV_INVALID);
        assert_non_null(strstr(err.message, "a \"model\""));
        assert_string_equal(err.field, "filename");
        assert_int_equal(got.len, 0);
        kv_tokens_free(&got);
        kv_buf_free(&file);
    }
}

/* Whatever byte is changed or missing: the same tokens or an error, never others. */
static void test_damage(void **state) {
    (void)state;
    static const kv_token tokens[] = {5, 77, 1234};
    kv_buf file = {0};
    kv_slot_file_write(&file, space, "m", tokens, 3);
    for (size_t i = 0; i < file.len; i++)
        for (int how = 0; how < 3; how++) {
            kv_tokens got = {0};
            char *copy = kv_strndup(file.data, file.len);
            size_t n = file.len;
            if (how == 0) copy[i] ^= 1;
            else if (how == 1) copy[i] = '9';
            else n = i;
            if (kv_slot_file_read(&got, copy, n, space, "f", NULL) == KV_OK) {
                assert_int_equal(got.len, 3);
                assert_memory_equal(got.data, tokens, sizeof tokens);
            } else {
                assert_int_equal(got.len, 0);
            }
            kv_tokens_free(&got);
            free(copy);
        }
    kv_buf_free(&file);
}

static void test_folders(void **state) {
    (void)state;
    static const char *const scopes[] = {"", "a", "b", "1:a1:b0:", "../x"};
    kv_buf folder[5] = {0};
    for (int i = 0; i < 5; i++) {
        kv_slot_folder(&folder[i], "dir", scopes[i]);
        for (int k = 0; k < i; k++) assert_string_not_equal(folder[i].data, folder[k].data);
    }
    assert_string_equal(folder[0].data, "dir"); /* as users of llama-server have it */
    for (int i = 1; i < 5; i++) {
        assert_memory_equal(folder[i].data, "dir/scope:", 10);
        assert_null(strchr(folder[i].data + 4, '/'));
        assert_false(kv_slot_file_name_ok(folder[i].data + 4)); /* no file of the default scope is in its place */
    }
    for (int i = 0; i < 5; i++) kv_buf_free(&folder[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
