/* state/: stored responses are found, belong to their scope, go when they should, and no state of the files stops
 * anything. */
#define _GNU_SOURCE /* memmem */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "os/files.h"
#include "os/wipe.h"
#include "state/stored.h"

static char base[128], dir[160];
static int64_t wall;

static int64_t now(void) {
    return wall;
}

static int set_up(void **state) {
    (void)state;
    kv_log_config quiet = {.level = KV_LOG_ERROR};
    kv_log_init(&quiet, NULL);
    const char *tmp = getenv("TMPDIR");
    snprintf(base, sizeof base, "%s/kvasir-state.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(base)) return -1;
    snprintf(dir, sizeof dir, "%s/deep/state", base);
    wall = 1700000000;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return wipe(base);
}

static kv_stored *open_state(void) {
    return kv_stored_open(&(kv_stored_config){.dir = dir, .max_age_s = 1000, .max_bytes = 1 << 20, .now = now});
}

static const char *file(const char *end) {
    static char path[256];
    snprintf(path, sizeof path, "%s/" KV_STORED_FILE "%s", dir, end);
    return path;
}

static bool exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

static kv_status put(kv_stored *s, const char *scope, const char *id, const char *previous, size_t n_object) {
    kv_stored_response r = {.id = (char *)id, .previous = (char *)previous, .n_shared = previous ? 2 : 0};
    while (r.object.len < n_object) kv_buf_adds(&r.object, id);
    kv_buf_addf(&r.input, "said to %s", id);
    for (kv_token t = 0; t < 5; t++) kv_tokens_add(&r.tokens, t * 1000);
    char item[64];
    snprintf(item, sizeof item, "msg_of_%.40s", id);
    kv_status st = kv_stored_put(s, scope, &r, (const char *const[]){item, "msg_of_all"}, 2, NULL);
    kv_buf_free(&r.object);
    kv_buf_free(&r.input);
    kv_tokens_free(&r.tokens);
    return st;
}

static bool has(kv_stored *s, const char *scope, const char *id) {
    kv_stored_response r;
    kv_error err;
    kv_status st = kv_stored_get(&r, s, scope, id, &err);
    assert_true(st == KV_OK || st == KV_NOT_FOUND);
    kv_stored_response_free(&r);
    return st == KV_OK;
}

/* ── what was put ──────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_round_trip(void **state) {
    (void)state;
    kv_stored *s = open_state();
    assert_false(has(s, "", "resp_a"));
    assert_false(exists(dir)); /* nothing is made for who only looks */
    assert_int_equal(put(s, "", "resp_a", NULL, 10), KV_OK);
    struct stat st;
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    const char *const ends[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stat(file(ends[i]), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    for (int again = 0; again < 2; again++) {
        kv_stored_response r;
        assert_int_equal(kv_stored_get(&r, s, "", "resp_a", NULL), KV_OK);
        assert_string_equal(r.id, "resp_a");
        assert_null(r.previous);
        assert_string_equal(kv_buf_str(&r.object), "resp_aresp_a");
        assert_string_equal(kv_buf_str(&r.input), "said to resp_a");
        assert_int_equal(r.tokens.len, 5);
        assert_int_equal(r.tokens.data[4], 4000);
        kv_stored_response_free(&r);
        kv_stored_close(s);
        s = open_state();
    }
    kv_stored_stats stats;
    kv_stored_get_stats(&stats, s);
    assert_int_equal(stats.responses, 1);
    assert_false(stats.in_memory);
    kv_stored_close(s);
}

static void test_survives_a_kill(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        kv_stored *s = open_state();
        if (put(s, "", "resp_a", NULL, 10) != KV_OK || put(s, "", "resp_b", "resp_a", 10) != KV_OK) _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    kv_stored *s = open_state();
    kv_stored_chain c;
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_b", NULL), KV_OK);
    assert_int_equal(c.n, 2);
    kv_stored_chain_free(&c);
    kv_stored_close(s);
}

static void test_chains_branch_and_break(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    put(s, "", "resp_b", "resp_a", 10);
    put(s, "", "resp_c", "resp_b", 10);
    put(s, "", "resp_d", "resp_b", 10);
    kv_stored_chain c;
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_d", NULL), KV_OK);
    assert_int_equal(c.n, 3);
    assert_string_equal(c.list[0].id, "resp_a");
    assert_string_equal(c.list[1].id, "resp_b");
    assert_string_equal(c.list[2].id, "resp_d");
    assert_int_equal(c.list[2].n_shared, 2);
    kv_stored_chain_free(&c);

    kv_error err;
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_x", &err), KV_NOT_FOUND);
    assert_non_null(strstr(err.message, "resp_x"));
    assert_int_equal(kv_stored_delete(s, "", "resp_a", &err), KV_OK);
    assert_int_equal(kv_stored_delete(s, "", "resp_a", &err), KV_NOT_FOUND);
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_d", &err), KV_NOT_FOUND);
    assert_non_null(strstr(err.message, "'resp_a', which came before it, is gone"));
    assert_int_equal(c.n, 0);
    assert_true(has(s, "", "resp_d"));
    /* a circle can only come from elsewhere, and ends all the same */
    put(s, "", "resp_a", "resp_d", 10);
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_d", &err), KV_NOT_FOUND);
    kv_stored_close(s);
}

static void test_items(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    put(s, "", "resp_b", NULL, 10);
    char *id;
    assert_int_equal(kv_stored_find_item(&id, s, "", "msg_of_resp_a", NULL), KV_OK);
    assert_string_equal(id, "resp_a");
    free(id);
    assert_int_equal(kv_stored_find_item(&id, s, "", "msg_of_all", NULL), KV_OK);
    assert_string_equal(id, "resp_b");
    free(id);
    kv_error err;
    assert_int_equal(kv_stored_find_item(&id, s, "", "msg_no", &err), KV_NOT_FOUND);
    assert_null(id);
    assert_non_null(strstr(err.message, "msg_no"));
    assert_int_equal(kv_stored_find_item(&id, s, "other", "msg_of_all", NULL), KV_NOT_FOUND);
    kv_stored_delete(s, "", "resp_a", NULL);
    assert_int_equal(kv_stored_find_item(&id, s, "", "msg_of_resp_a", NULL), KV_NOT_FOUND);
    kv_stored_close(s);
}

static void test_scopes(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    put(s, "team", "resp_b", NULL, 10);
    put(s, "team", "resp_a", NULL, 30); /* the same id is another response */
    assert_false(has(s, "", "resp_b"));
    assert_false(has(s, "tea", "resp_b"));
    kv_stored_chain c;
    put(s, "", "resp_c", "resp_b", 10);
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_c", NULL), KV_NOT_FOUND);
    assert_int_equal(kv_stored_delete(s, "", "resp_b", NULL), KV_NOT_FOUND);
    assert_int_equal(kv_stored_erase(s, "team"), 2);
    assert_int_equal(kv_stored_erase(s, "team"), 0);
    assert_true(has(s, "", "resp_a"));
    assert_int_equal(kv_stored_erase(s, NULL), 2);
    assert_false(has(s, "", "resp_a"));
    kv_stored_close(s);
}

static bool file_holds(const char *path, const char *text) {
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    static char data[4 << 20];
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    return memmem(data, n, text, strlen(text)) != NULL;
}

static void test_erased_is_overwritten(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_secret", NULL, 20000);
    put(s, "", "resp_other", NULL, 20000);
    assert_true(file_holds(file("-wal"), "resp_secretresp_secret"));
    assert_int_equal(kv_stored_delete(s, "", "resp_secret", NULL), KV_OK);
    const char *const ends[] = {"", "-wal"};
    for (int i = 0; i < 2; i++) assert_false(file_holds(file(ends[i]), "resp_secretresp_secret"));
    assert_true(has(s, "", "resp_other"));
    kv_stored_close(s);
}

/* ── what goes ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_age(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    put(s, "", "resp_b", "resp_a", 10);
    put(s, "", "resp_c", NULL, 10);
    wall += 900;
    kv_stored_chain c;
    assert_int_equal(kv_stored_get_chain(&c, s, "", "resp_b", NULL), KV_OK); /* use of b is use of a */
    kv_stored_chain_free(&c);
    wall += 900;
    assert_false(has(s, "", "resp_c"));
    assert_true(has(s, "", "resp_a"));
    assert_true(has(s, "", "resp_b"));
    wall += 1001;
    kv_stored_close(s);
    s = open_state(); /* a start removes what is too old */
    kv_stored_stats stats;
    kv_stored_get_stats(&stats, s);
    assert_int_equal(stats.responses, 0);
    kv_stored_close(s);
}

static void test_size(void **state) {
    (void)state;
    kv_stored *s = open_state();
    char id[32];
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        wall++;
        assert_int_equal(put(s, "", id, NULL, 100000), KV_OK);
        if (i > 0) assert_true(has(s, "", "resp_0")); /* in use */
        kv_stored_stats stats;
        kv_stored_get_stats(&stats, s);
        assert_true(stats.bytes <= 1 << 20);
        assert_true(stats.bytes >= 700000 || i < 7);
    }
    assert_true(has(s, "", "resp_39"));
    assert_false(has(s, "", "resp_1"));
    assert_int_equal(put(s, "", "resp_big", NULL, 2 << 20), KV_TOO_LARGE);
    assert_false(has(s, "", "resp_big"));
    kv_stored_close(s);
}

/* ── the files ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void write_file(const char *path, const void *data, size_t n, long at) {
    FILE *f = fopen(path, at < 0 ? "wb" : "r+b");
    assert_non_null(f);
    if (at > 0) fseek(f, at, SEEK_SET);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void test_garbage_is_put_aside(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    kv_stored_close(s);
    static char garbage[5000];
    memset(garbage, 'x', sizeof garbage);
    write_file(file(""), garbage, sizeof garbage, -1);
    s = open_state();
    assert_false(has(s, "", "resp_a"));
    assert_true(exists(file(".damaged")));
    assert_int_equal(put(s, "", "resp_b", NULL, 10), KV_OK);
    kv_stored_close(s);
    s = open_state();
    assert_true(has(s, "", "resp_b"));
    kv_stored_close(s);
    /* again: the one put aside before gives way */
    write_file(file(""), garbage, 3000, -1);
    s = open_state();
    assert_int_equal(put(s, "", "resp_c", NULL, 10), KV_OK);
    struct stat st;
    assert_int_equal(stat(file(".damaged"), &st), 0);
    assert_int_equal(st.st_size, 3000);
    kv_stored_close(s);
}

/* Any byte of any page: what is read is right or gone, and what is put afterwards is there. */
static void test_flips(void **state) {
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    const char *given = getenv("KVASIR_SEED");
    if (given) seed = (unsigned)strtoul(given, NULL, 10);
    print_message("KVASIR_SEED=%u\n", seed);
    srand(seed);
    for (int round = 0; round < 40; round++) {
        kv_stored *s = open_state();
        char id[32];
        for (int i = 0; i < 20; i++) {
            snprintf(id, sizeof id, "resp_%d", i);
            put(s, "", id, NULL, 3000);
        }
        kv_stored_close(s);
        struct stat st;
        assert_int_equal(stat(file(""), &st), 0);
        for (int k = 0; k < 30; k++) {
            char byte = (char)rand();
            write_file(file(""), &byte, 1, 1 + rand() % (st.st_size - 1));
        }
        if (round % 4 == 0) assert_int_equal(truncate(file(""), rand() % st.st_size), 0);
        s = open_state();
        for (int i = 0; i < 20; i++) {
            snprintf(id, sizeof id, "resp_%d", i);
            kv_stored_response r;
            kv_status status = kv_stored_get(&r, s, "", id, NULL);
            assert_true(status == KV_OK || status == KV_NOT_FOUND || status == KV_IO);
            kv_stored_response_free(&r);
        }
        kv_stored_erase(s, NULL);
        kv_status status = put(s, "", "resp_new", NULL, 10);
        if (status == KV_OK) assert_true(has(s, "", "resp_new"));
        kv_stored_close(s);
        unlink(file(""));
        unlink(file("-wal"));
        unlink(file("-shm"));
    }
}

static void test_damage_found_while_running(void **state) {
    (void)state;
    kv_stored *s = open_state();
    char id[32];
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        put(s, "", id, NULL, 3000);
    }
    kv_stored_close(s);
    struct stat st;
    assert_int_equal(stat(file(""), &st), 0);
    static char zeros[1 << 20];
    memset(zeros, 0xee, sizeof zeros);
    write_file(file(""), zeros, (size_t)st.st_size - 4096, 4096); /* all but the first page */
    s = open_state();
    assert_false(has(s, "", "resp_7"));
    assert_int_equal(put(s, "", "resp_new", NULL, 10), KV_OK);
    assert_true(has(s, "", "resp_new"));
    assert_true(exists(file(".damaged")));
    (void)kv_stored_erase(s, "somebody"); /* whose responses may be in it */
    assert_false(exists(file(".damaged")));
    assert_true(has(s, "", "resp_new"));
    kv_stored_close(s);
}

static void test_newer_layout_is_left_alone(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    kv_stored_close(s);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(file(""), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    s = open_state();
    assert_false(has(s, "", "resp_a"));
    assert_int_equal(put(s, "", "resp_b", NULL, 10), KV_OK);
    assert_true(has(s, "", "resp_b"));
    kv_stored_stats stats;
    kv_stored_get_stats(&stats, s);
    assert_true(stats.in_memory);
    kv_stored_close(s);
    assert_false(exists(file(".damaged")));
    s = open_state();
    assert_false(has(s, "", "resp_b"));
    kv_stored_close(s);
}

/* Somebody else's database, or one whose tables are gone. */
static void test_other_tables(void **state) {
    (void)state;
    static const char *const changes[] = {"DROP TABLE response", "DROP TABLE item",
                                          "ALTER TABLE response DROP COLUMN input",
                                          "DROP TABLE response; CREATE TABLE response(x); PRAGMA user_version=0"};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        kv_stored *s = open_state();
        put(s, "", "resp_a", NULL, 10);
        kv_stored_close(s);
        sqlite3 *db;
        assert_int_equal(sqlite3_open(file(""), &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, changes[i], NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        s = open_state();
        kv_stored_response r;
        kv_status st = kv_stored_get(&r, s, "", "resp_a", NULL);
        assert_true(st == KV_NOT_FOUND || (st == KV_OK && i == 1));
        kv_stored_response_free(&r);
        assert_int_equal(put(s, "", "resp_b", NULL, 10), KV_OK);
        assert_true(has(s, "", "resp_b"));
        kv_stored_close(s);
        assert_true(exists(file(".damaged")));
        unlink(file(".damaged"));
    }
}

static void test_no_directory(void **state) {
    (void)state;
    /* a file is in the way */
    snprintf(dir, sizeof dir, "%s/file", base);
    write_file(dir, "x", 1, -1);
    snprintf(dir, sizeof dir, "%s/file/state", base);
    kv_stored *s = open_state();
    assert_int_equal(put(s, "", "resp_a", NULL, 10), KV_OK);
    assert_true(has(s, "", "resp_a"));
    kv_stored_close(s);
    /* a directory where the file should be */
    snprintf(dir, sizeof dir, "%s/other", base);
    mkdir(dir, 0700);
    mkdir(file(""), 0700);
    s = open_state();
    assert_int_equal(put(s, "", "resp_a", NULL, 10), KV_OK);
    assert_true(has(s, "", "resp_a"));
    kv_stored_stats stats;
    kv_stored_get_stats(&stats, s);
    assert_true(stats.in_memory);
    kv_stored_close(s);
    /* none asked for */
    s = kv_stored_open(&(kv_stored_config){0});
    assert_int_equal(put(s, "", "resp_a", NULL, 10), KV_OK);
    assert_true(has(s, "", "resp_a"));
    kv_stored_close(s);
    kv_stored_close(NULL);
}

static void test_strange_ids(void **state) {
    (void)state;
    kv_stored *s = open_state();
    put(s, "", "resp_a", NULL, 10);
    char longest[2000];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    const char *const ids[] = {"", "' OR 1=1 --", "%", longest, "resp_A"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_false(has(s, "", ids[i]));
        assert_int_equal(kv_stored_delete(s, "", ids[i], NULL), KV_NOT_FOUND);
    }
    assert_true(has(s, "", "resp_a"));
    kv_stored_close(s);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_round_trip),
        T(test_survives_a_kill),
        T(test_chains_branch_and_break),
        T(test_items),
        T(test_scopes),
        T(test_erased_is_overwritten),
        T(test_age),
        T(test_size),
        T(test_garbage_is_put_aside),
        T(test_flips),
        T(test_damage_found_while_running),
        T(test_newer_layout_is_left_alone),
        T(test_other_tables),
        T(test_no_directory),
        T(test_strange_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
