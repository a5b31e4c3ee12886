/* hub/: what names mean, and what is found in caches laid out as llama-server and the Hugging Face tools do. Fetching is
 * tested over HTTP in tests/http-node/hub.test.mjs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cmocka.h>

#include "hub/hub_private.h"
#include "os/machine.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OLDER  "fedcba9876543210fedcba9876543210fedcba98"

static char home[64];

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* ── names ── */

static void test_repositories(void **state) {
    (void)state;
    static const struct {
        const char *name, *repo, *quant; /* repo NULL: refused */
    } cases[] = {{"a/b", "a/b", NULL},
                 {"ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M"},
                 {"a/b:", "a/b", NULL},
                 {"a/b:UD-Q4_K_XL", "a/b", "UD-Q4_K_XL"},
                 {"a.b/c_d", "a.b/c_d", NULL},
                 {"b", NULL, NULL},
                 {"", NULL, NULL},
                 {"a/b/c", NULL, NULL},
                 {"/b", NULL, NULL},
                 {"a/", NULL, NULL},
                 {"a/../b", NULL, NULL},
                 {"../b", NULL, NULL},
                 {"a--b/c", NULL, NULL},
                 {"a/b c", NULL, NULL},
                 {"a/b:Q4/../..", NULL, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *repo, *quant;
        kv_error err = {0};
        kv_status st = kv_hub_split_name(&repo, &quant, cases[i].name, &err);
        if ((st == KV_OK) != (cases[i].repo != NULL)) fail_msg("%s: %s", cases[i].name, kv_status_name(st));
        if (st != KV_OK) assert_has(err.message, "USER/REPO");
        else assert_string_equal(repo, cases[i].repo);
        if (cases[i].quant) assert_string_equal(quant, cases[i].quant);
        else assert_null(quant);
        free(repo);
        free(quant);
    }
}

static void test_paths(void **state) {
    (void)state;
    static const char *const good[] = {"a.gguf", "a/b/c.gguf", "a..b", ".a/b"};
    static const char *const bad[] = {"", "/a", "a//b", "a/", "../a", "a/../b", "a/./b", "a/..", "a\nb", "a\\b"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!kv_hub_path_safe(good[i])) fail_msg("%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kv_hub_path_safe(bad[i])) fail_msg("%s", bad[i]);
    assert_false(kv_hub_path_safe(NULL));
}

static void test_parts(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int index, count;
    } cases[] = {{"m-00001-of-00003.gguf", 1, 3},   {"d/m-00003-of-00003.GGUF", 3, 3}, {"m.gguf", 1, 1},
                 {"m-00004-of-00003.gguf", 1, 1},   {"m-00000-of-00003.gguf", 1, 1},   {"m-0001-of-0003.gguf", 1, 1},
                 {"-00001-of-00002.gguf", 1, 1},    {"m-00001-of-00002", 1, 1},        {"m-00001-of-00002.bin", 1, 1},
                 {"m-00001-of-00002-Q4.gguf", 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_hub_part p = kv_hub_part_of(cases[i].path);
        if (p.index != cases[i].index || p.count != cases[i].count)
            fail_msg("%s: %d of %d", cases[i].path, p.index, p.count);
    }
    kv_buf b = {0};
    kv_hub_part_path(&b, "d/m-00001-of-00012.gguf", 7);
    assert_string_equal(kv_buf_str(&b), "d/m-00007-of-00012.gguf");
    kv_buf_free(&b);
}

static void test_choice(void **state) {
    (void)state;
    static const char *const repo[] = {"README.md",
                                       "m-BF16.gguf",
                                       "m-Q4_K_M.gguf",
                                       "m-Q5_K_M-00001-of-00002.gguf",
                                       "m-Q5_K_M-00002-of-00002.gguf",
                                       "m-Q8_0.gguf",
                                       "mmproj-m-Q4_K_M.gguf",
                                       "sub/m-UD-Q2_K_XL.gguf"};
    static const struct {
        const char *quant, *file, *want;
    } cases[] = {{NULL, NULL, "m-Q4_K_M.gguf"},
                 {"q8_0", NULL, "m-Q8_0.gguf"},
                 {"Q5_K_M", NULL, "m-Q5_K_M-00001-of-00002.gguf"},
                 {"Q2_K_XL", NULL, "sub/m-UD-Q2_K_XL.gguf"},
                 {"Q4_K", NULL, NULL},
                 {"F16", NULL, "m-BF16.gguf"}, /* llama-server's rule */
                 {"Q6_K", NULL, NULL},
                 {NULL, "README.md", "README.md"},
                 {NULL, "none.gguf", NULL}};
    kv_hub_files f = {0};
    for (size_t i = 0; i < sizeof repo / sizeof *repo; i++) kv_hub_files_add(&f, repo[i], NULL, NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int at = kv_hub_choose(&f, cases[i].quant, cases[i].file);
        if (!cases[i].want ? at >= 0 : at < 0 || strcmp(f.item[at].path, cases[i].want) != 0)
            fail_msg("%zu: %s", i, at < 0 ? "none" : f.item[at].path);
    }
    kv_hub_files_free(&f);
}

static void test_quants(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"a/m-Q4_K_M.gguf", "Q4_K_M"},
                                           {"m.q8_0-00001-of-00002.gguf", "q8_0"},
                                           {"m-UD-Q2_K_XL.gguf", "Q2_K_XL"},
                                           {"m.gguf", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_buf b = {0};
        assert_int_equal(kv_hub_quant_of(&b, cases[i][0]), cases[i][1] != NULL);
        if (cases[i][1]) assert_string_equal(kv_buf_str(&b), cases[i][1]);
        kv_buf_free(&b);
    }
}

/* ── caches ── */

static void put(const char *path, const char *text) {
    char full[512], dir[512];
    kv_error err = {0};
    snprintf(full, sizeof full, "%s/%s", home, path);
    snprintf(dir, sizeof dir, "%s", full);
    *strrchr(dir, '/') = 0;
    if (kv_dir_make(dir, &err) != KV_OK) fail_msg("%s", err.message);
    FILE *f = fopen(full, "w");
    if (!f) fail_msg("%s", full);
    fputs(text, f);
    fclose(f);
}

static int set_home(void **state) {
    (void)state;
    static const char *const others[] = {"LLAMA_CACHE", "HF_HUB_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE",
                                         "XDG_CACHE_HOME"};
    strcpy(home, "/tmp/kvasir-hub-XXXXXX");
    if (!mkdtemp(home)) return -1;
    setenv("HOME", home, 1);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]);
    return 0;
}

static int clear_home(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    return system(command);
}

/* Asks offline; wants the path below home, or NULL. */
static void expect_found(const char *repo, const char *file, const char *want) {
    char *path, full[512];
    kv_error err = {0};
    kv_hub_ask ask = {.repo = repo, .file = file, .offline = true};
    kv_status st = kv_hub_find(&path, &ask, &err);
    if (!want) {
        if (st != KV_NOT_FOUND) fail_msg("%s: %s", repo, path ? path : err.message);
        assert_null(path);
        assert_has(err.message, "--offline");
        assert_has(err.message, home);
        return;
    }
    if (st != KV_OK) fail_msg("%s: %s", repo, err.message);
    snprintf(full, sizeof full, "%s/%s", home, want);
    assert_string_equal(path, full);
    free(path);
}

#define HUB  ".cache/huggingface/hub/"
#define REPO HUB "models--a--b-GGUF/"

static void test_hub_cache(void **state) {
    (void)state;
    expect_found("a/b-GGUF", NULL, NULL);
    put(REPO "refs/main", COMMIT);
    put(REPO "blobs/x", "GGUF");
    put(REPO "snapshots/" COMMIT "/m-Q4_K_M.gguf", "GGUF");
    put(REPO "snapshots/" COMMIT "/mmproj-F16.gguf", "GGUF");
    put(REPO "snapshots/" OLDER "/m-Q8_0.gguf", "GGUF");
    put(REPO "snapshots/" COMMIT "/deep/m-IQ2-00001-of-00002.gguf", "GGUF");
    expect_found("a/b-GGUF", NULL, REPO "snapshots/" COMMIT "/m-Q4_K_M.gguf");
    expect_found("a/b-GGUF:q4_k_m", NULL, REPO "snapshots/" COMMIT "/m-Q4_K_M.gguf");
    expect_found("a/b-GGUF:Q8_0", NULL, REPO "snapshots/" OLDER "/m-Q8_0.gguf"); /* an older state of the repository */
    expect_found("a/b-GGUF:Q6_K", NULL, NULL);
    expect_found("a/b-GGUF", "mmproj-F16.gguf", REPO "snapshots/" COMMIT "/mmproj-F16.gguf");
    expect_found("a/b-GGUF:IQ2", NULL, NULL); /* half of it is missing */
    put(REPO "snapshots/" COMMIT "/deep/m-IQ2-00002-of-00002.gguf", "GGUF");
    expect_found("a/b-GGUF:IQ2", NULL, REPO "snapshots/" COMMIT "/deep/m-IQ2-00001-of-00002.gguf");
    expect_found("a/b", NULL, NULL);

    char link[512];
    snprintf(link, sizeof link, "%s/" REPO "snapshots/" COMMIT "/m-Q3_K.gguf", home);
    assert_int_equal(symlink("../../blobs/gone", link), 0);
    expect_found("a/b-GGUF:Q3_K", NULL, NULL); /* its content was removed */
    unlink(link);
    assert_int_equal(symlink("../../blobs/x", link), 0);
    expect_found("a/b-GGUF:Q3_K", NULL, REPO "snapshots/" COMMIT "/m-Q3_K.gguf");

    kv_buf list = {0};
    kv_hub_list(&list);
    assert_has(kv_buf_str(&list), "a/b-GGUF:Q4_K_M\n");
    assert_has(kv_buf_str(&list), "a/b-GGUF:IQ2\n");
    assert_null(strstr(kv_buf_str(&list), "F16"));
    kv_buf_free(&list);
}

/* Each variable moves the cache; the ones behind it are looked through too. */
static void test_places(void **state) {
    (void)state;
    char dir[128];
    put(REPO "refs/main", COMMIT);
    put(REPO "snapshots/" COMMIT "/m-Q4_0.gguf", "GGUF");
    put("hf/hub/models--a--b-GGUF/refs/main", COMMIT "\n");
    put("hf/hub/models--a--b-GGUF/snapshots/" COMMIT "/m-Q4_0.gguf", "GGUF");
    put("llama/models--a--b-GGUF/refs/other", COMMIT);
    put("llama/models--a--b-GGUF/snapshots/" COMMIT "/m-Q4_0.gguf", "GGUF");
    snprintf(dir, sizeof dir, "%s/hf", home);
    setenv("HF_HOME", dir, 1);
    expect_found("a/b-GGUF", NULL, "hf/hub/models--a--b-GGUF/snapshots/" COMMIT "/m-Q4_0.gguf");
    snprintf(dir, sizeof dir, "%s/llama/", home);
    setenv("LLAMA_CACHE", dir, 1);
    expect_found("a/b-GGUF", NULL, "llama/models--a--b-GGUF/snapshots/" COMMIT "/m-Q4_0.gguf");
    snprintf(dir, sizeof dir, "%s/empty", home);
    setenv("LLAMA_CACHE", dir, 1);
    setenv("HF_HOME", dir, 1);
    expect_found("a/b-GGUF", NULL, REPO "snapshots/" COMMIT "/m-Q4_0.gguf");
}

static void test_flat_cache(void **state) {
    (void)state;
    put(".cache/llama.cpp/a_b-GGUF_sub_m-Q4_K_M.gguf", "GGUF");
    put(".cache/llama.cpp/a_b-GGUF_m-Q8_0.gguf", "GGUF");
    expect_found("a/b-GGUF", NULL, ".cache/llama.cpp/a_b-GGUF_sub_m-Q4_K_M.gguf");
    expect_found("a/b-GGUF:Q8_0", NULL, ".cache/llama.cpp/a_b-GGUF_m-Q8_0.gguf");
    expect_found("a/b-GGUF", "sub/m-Q4_K_M.gguf", ".cache/llama.cpp/a_b-GGUF_sub_m-Q4_K_M.gguf");
    expect_found("a/b", NULL, NULL);
}

static void test_check_parts(void **state) {
    (void)state;
    char path[512];
    kv_error err = {0};
    put("m-00001-of-00003.gguf", "GGUF");
    put("m-00003-of-00003.gguf", "GGUF");
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", home);
    assert_int_equal(kv_hub_check_parts(path, &err), KV_NOT_FOUND);
    assert_has(err.message, "part 2 of 3");
    assert_has(err.message, "m-00002-of-00003.gguf");
    snprintf(path, sizeof path, "%s/m-00003-of-00003.gguf", home);
    assert_int_equal(kv_hub_check_parts(path, &err), KV_INVALID);
    assert_has(err.message, "m-00001-of-00003.gguf");
    put("m-00002-of-00003.gguf", "GGUF");
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", home);
    assert_int_equal(kv_hub_check_parts(path, &err), KV_OK);
    assert_int_equal(kv_hub_check_parts("/nonexistent/m-00001-of-00003.gguf", &err), KV_OK);
    assert_int_equal(kv_hub_check_parts("m.gguf", &err), KV_OK);
}

static void test_bad_asks(void **state) {
    (void)state;
    static const struct {
        kv_hub_ask ask;
        const char *told;
    } cases[] = {{{.repo = "b"}, "USER/REPO"},
                 {{.repo = "a/b", .file = "../../x"}, "--hf-file"},
                 {{.url = "ftp://a/b.gguf"}, "--model-url"},
                 {{.url = "http://a/"}, "--model-url"},
                 {{.url = "http://a"}, "--model-url"},
                 {{.url = "http://a/.."}, "--model-url"},
                 {{.url = "http://a/m-00002-of-00002.gguf"}, "first one"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path;
        kv_error err = {0};
        if (kv_hub_find(&path, &cases[i].ask, &err) != KV_INVALID) fail_msg("%zu: %s", i, err.message);
        assert_has(err.message, cases[i].told);
    }
}

static void test_shown_urls(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"https://h/a/b.gguf", "https://h/a/b.gguf"},
                                           {"https://me:secret@h:8/a.gguf?sig=secret", "https://h:8/a.gguf?…"},
                                           {"https://h/a@b.gguf#x?y", "https://h/a@b.gguf?…"},
                                           {"a@b", "b"},
                                           {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_buf b = {0};
        kv_hub_show_url(&b, cases[i][0]);
        assert_string_equal(kv_buf_str(&b), cases[i][1]);
        kv_buf_free(&b);
    }
    char *path;
    kv_error err = {0};
    assert_int_equal(kv_hub_find(&path, &(kv_hub_ask){.url = "https://me:secret@h/?sig=secret"}, &err), KV_INVALID);
    assert_null(strstr(err.message, "secret"));
}

#ifdef __linux__ /* where the lock below can be asked of the kernel itself */

static char renamed_from[512], renamed_to[512]; /* "" = nothing happens */

/* Stands in for the C library's: another program publishes the file between our opening it and our locking it. */
int flock(int fd, int operation) {
    if (renamed_from[0]) rename(renamed_from, renamed_to);
    renamed_from[0] = '\0';
    return (int)syscall(SYS_flock, fd, operation);
}

static void test_published_meanwhile(void **state) {
    (void)state;
    kv_error err = {0};
    kv_buf text = {0};
    put("m.gguf.downloadInProgress", "all of it");
    snprintf(renamed_from, sizeof renamed_from, "%s/m.gguf.downloadInProgress", home);
    snprintf(renamed_to, sizeof renamed_to, "%s/m.gguf", home);
    kv_hub_fetch f = {.url = "http://127.0.0.1:1/m.gguf", .path = renamed_to, .name = "m.gguf"};
    assert_int_equal(kv_hub_fetch_file(&f, &err), KV_OK);
    assert_int_equal(kv_file_read(&text, renamed_to, 100, &err), KV_OK);
    assert_string_equal(kv_buf_str(&text), "all of it");
    kv_buf_free(&text);
    char unfinished[560];
    snprintf(unfinished, sizeof unfinished, "%s.downloadInProgress", renamed_to);
    assert_int_not_equal(access(unfinished, F_OK), 0);
}

#endif

#define WITH_HOME(test) cmocka_unit_test_setup_teardown(test, set_home, clear_home)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repositories),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_quants),
        WITH_HOME(test_hub_cache),
        WITH_HOME(test_places),
        WITH_HOME(test_flat_cache),
        WITH_HOME(test_check_parts),
        WITH_HOME(test_bad_asks),
        cmocka_unit_test(test_shown_urls),
#ifdef __linux__
        WITH_HOME(test_published_meanwhile),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
