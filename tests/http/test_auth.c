#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/auth.h"

static char file[] = "/tmp/kvasir-keys.XXXXXX";

static int make_file(void **state) {
    (void)state;
    strcpy(file + strlen(file) - 6, "XXXXXX");
    int fd = mkstemp(file);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(file);
}

static void put(const char *text) {
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_headers(void **state) {
    (void)state;
    static const char *const given[] = {"sk-one", "sk-two"};
    kv_keys k;
    kv_keys_init(&k);
    assert_false(kv_keys_any(&k));
    assert_false(kv_keys_match(NULL, &k, "Bearer sk-one", NULL));
    assert_int_equal(kv_keys_load(&k, given, 2, NULL, NULL), KV_OK);
    assert_true(kv_keys_any(&k));
    assert_true(kv_keys_match(NULL, &k, "Bearer sk-one", NULL));
    assert_true(kv_keys_match(NULL, &k, "bearer  sk-two", NULL));
    assert_true(kv_keys_match(NULL, &k, NULL, "sk-two"));
    assert_true(kv_keys_match(NULL, &k, "Bearer wrong", "sk-one"));
    assert_true(kv_keys_match(NULL, &k, "Basic abc", "sk-one"));

    assert_false(kv_keys_match(NULL, &k, NULL, NULL));
    assert_false(kv_keys_match(NULL, &k, "", ""));
    assert_false(kv_keys_match(NULL, &k, "sk-one", NULL));
    assert_false(kv_keys_match(NULL, &k, "Bearer", NULL));
    assert_false(kv_keys_match(NULL, &k, "Bearer ", NULL));
    assert_false(kv_keys_match(NULL, &k, "Bearer sk-on", "sk-on"));
    assert_false(kv_keys_match(NULL, &k, "Bearer sk-onee", "sk-onee"));
    assert_false(kv_keys_match(NULL, &k, "Bearer sk-one x", "SK-ONE"));
    assert_false(kv_keys_match(NULL, &k, "Basic sk-one", NULL));
    char *huge = malloc(100001);
    memset(huge, 's', 100000);
    huge[100000] = '\0';
    assert_false(kv_keys_match(NULL, &k, huge, huge));
    free(huge);
    kv_keys_free(&k);
}

static void test_file(void **state) {
    (void)state;
    static const char *const given[] = {"sk-line"};
    kv_keys k;
    kv_error err;
    kv_keys_init(&k);
    put("# team\n\n  sk-a\t\r\nsk-b\n#sk-c\nsk-d");
    assert_int_equal(kv_keys_load(&k, given, 1, file, &err), KV_OK);
    static const char *const right[] = {"sk-line", "sk-a", "sk-b", "sk-d"}, *const wrong[] = {"#sk-c", "sk-c",
                                                                                              "# team"};
    for (size_t i = 0; i < 4; i++) assert_true(kv_keys_match(NULL, &k, NULL, right[i]));
    for (size_t i = 0; i < 3; i++) assert_false(kv_keys_match(NULL, &k, NULL, wrong[i]));

    put("sk-new\n"); /* read again: the old ones of the file are gone, the given one stays */
    assert_int_equal(kv_keys_load(&k, given, 1, file, &err), KV_OK);
    assert_true(kv_keys_match(NULL, &k, NULL, "sk-new"));
    assert_true(kv_keys_match(NULL, &k, NULL, "sk-line"));
    assert_false(kv_keys_match(NULL, &k, NULL, "sk-a"));

    /* every failure keeps the set, and names the place */
    static const char *const bad[] = {"", "# only a comment\n\n", "sk-x\nsk y\n", "\x01\n"};
    for (size_t i = 0; i < 4; i++) {
        put(bad[i]);
        assert_int_equal(kv_keys_load(&k, given, 1, file, &err), KV_INVALID);
        assert_string_equal(err.field, "--api-key-file");
        assert_true(kv_keys_match(NULL, &k, NULL, "sk-new"));
    }
    assert_non_null(strstr(err.message, " line 1"));
    assert_int_equal(kv_keys_load(&k, given, 1, "/nonexistent/keys", &err), KV_NOT_FOUND);
    assert_int_equal(kv_keys_load(&k, (const char *const[]){""}, 1, NULL, &err), KV_INVALID);
    assert_int_equal(kv_keys_load(&k, (const char *const[]){"a b"}, 1, NULL, &err), KV_INVALID);
    assert_null(strstr(err.message, "a b")); /* secrets stay out of messages */
    assert_true(kv_keys_match(NULL, &k, NULL, "sk-new"));

    char longest[258];
    memset(longest, 'k', sizeof longest);
    longest[255] = '\0';
    assert_int_equal(kv_keys_load(&k, (const char *const[]){longest}, 1, NULL, &err), KV_OK);
    assert_true(kv_keys_match(NULL, &k, NULL, longest));
    longest[255] = 'k', longest[256] = '\0';
    assert_false(kv_keys_match(NULL, &k, NULL, longest));
    assert_int_equal(kv_keys_load(&k, (const char *const[]){longest}, 1, NULL, &err), KV_INVALID);
    kv_keys_free(&k);
}

static kv_rights rights_of(kv_keys *k, const char *key) {
    kv_rights r = {.scope = "stale", .admin = true};
    assert_true(kv_keys_match(&r, k, NULL, key));
    return r;
}

static void test_rights(void **state) {
    (void)state;
    static const char *const given[] = {"sk-given", "sk-both"};
    kv_keys k;
    kv_error err;
    kv_keys_init(&k);
    put("sk-plain\nsk-team scope=Team_1.a-b\n\tsk-boss \t admin  scope=ops\t\r\nsk-default scope=default\n"
        "sk-both admin\nsk-twice scope=a\nsk-twice scope=b\nsk-scope=x\nadmin\n");
    assert_int_equal(kv_keys_load(&k, given, 2, file, &err), KV_OK);
    static const struct {
        const char *key, *scope;
        bool admin;
    } want[] = {
        {"sk-given", "", false},  {"sk-plain", "", false},   {"sk-team", "Team_1.a-b", false},
        {"sk-boss", "ops", true}, {"sk-default", "", false}, {"sk-both", "", true},
        {"sk-twice", "b", false}, {"sk-scope=x", "", false}, /* that is the key */
        {"admin", "", false},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kv_rights r = rights_of(&k, want[i].key);
        assert_string_equal(r.scope, want[i].scope);
        assert_int_equal(r.admin, want[i].admin);
    }
    kv_rights r = {.scope = "stale", .admin = true};
    assert_false(kv_keys_match(&r, &k, "Bearer sk-wrong", NULL));
    assert_string_equal(r.scope, "");
    assert_false(r.admin);
    assert_true(kv_keys_match(&r, &k, "Bearer sk-wrong", "sk-boss"));
    assert_true(r.admin);

    char too_long[100] = "sk-x scope=", longest[100] = "sk-x scope=";
    memset(too_long + 11, 'n', 65);
    memset(longest + 11, 'n', 64);
    const char *bad[] = {"sk-x scope=\n",    "sk-x scope=a:b\n", "sk-x scope=a scope=b\n",
                         "sk-x Admin\n",     "sk-x admins\n",    "sk-x scope=\xc3\xa4\n",
                         "sk-x # comment\n", "sk-x scope = a\n", too_long};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i]);
        assert_int_equal(kv_keys_load(&k, given, 2, file, &err), KV_INVALID);
        assert_non_null(strstr(err.message, " line 1"));
        assert_null(strstr(err.message, "sk-x"));
        assert_true(rights_of(&k, "sk-boss").admin); /* the old set stays */
    }
    put(longest);
    assert_int_equal(kv_keys_load(&k, given, 2, file, &err), KV_OK);
    assert_string_equal(rights_of(&k, "sk-x").scope, longest + 11);
    kv_keys_free(&k);
}

/* One key is in every set that is ever loaded: it must match at every instant. */
static void *keep_asking(void *arg) {
    kv_keys *k = arg;
    for (int i = 0; i < 5000; i++)
        if (!kv_keys_match(NULL, k, "Bearer sk-always", NULL) || kv_keys_match(NULL, k, "Bearer sk-never", NULL))
            return NULL;
    return k;
}

static void test_reload_while_asked(void **state) {
    (void)state;
    static const char *const sets[2][2] = {{"sk-always", "sk-1"}, {"sk-2", "sk-always"}};
    kv_keys k;
    pthread_t threads[3];
    kv_keys_init(&k);
    assert_int_equal(kv_keys_load(&k, sets[0], 2, NULL, NULL), KV_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, keep_asking, &k), 0);
    for (int i = 0; i < 500; i++) assert_int_equal(kv_keys_load(&k, sets[i % 2], 2, NULL, NULL), KV_OK);
    for (int i = 0; i < 3; i++) {
        void *ok = NULL;
        pthread_join(threads[i], &ok);
        assert_non_null(ok);
    }
    kv_keys_free(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),
        cmocka_unit_test_setup_teardown(test_file, make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_rights, make_file, remove_file),
        cmocka_unit_test(test_reload_while_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
