/* cli/doctor: what it finds of made-up directories and settings, in a process of its own as users run it. What the
 * machine itself is like (memory, load, speed) decides nothing here. */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

static char base[128], dir[160];
static kv_buf out;
static json_t *report; /* of the last run with --json */

static int set_up(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(base, sizeof base, "%s/kvasir-doctor.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(base)) return -1;
    snprintf(dir, sizeof dir, "%s/cache", base);
    return mkdir(dir, 0700);
}

static int tear_down(void **state) {
    (void)state;
    json_decref(report);
    report = NULL;
    (void)chmod(dir, 0700);
    (void)unlink(dir);
    (void)rmdir(dir);
    return rmdir(base);
}

/* `kvasir doctor LINE`; leaves `out`. The exit status. */
static int run(const char *env, const char *line) {
    char copy[1024], *argv[48] = {"kvasir", "doctor"}, *vars[] = {(char *)env, NULL};
    int argc = 2, status;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    FILE *o = tmpfile();
    assert_non_null(o);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(o), STDOUT_FILENO);
        exit(kv_cli_main(argc, argv, vars));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    char piece[4096];
    kv_buf_clear(&out);
    rewind(o);
    for (size_t n; (n = fread(piece, 1, sizeof piece, o)) > 0;) kv_buf_add(&out, piece, n);
    fclose(o);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The same with --json, into `report`, on `where` with 16 MiB. */
static int examine(const char *env, const char *where, const char *more) {
    char line[1024];
    kv_error err;
    snprintf(line, sizeof line, "--json --cache-dir %s --cache-disk 16M %s", where, more);
    int status = run(env, line);
    json_decref(report);
    report = NULL;
    if (kv_json_parse(&report, kv_buf_str(&out), out.len, &err) != KV_OK)
        fail_msg("%s in: %s", err.message, kv_buf_str(&out));
    return status;
}

/* The first finding of that check whose text has `what` in it; NULL when there is none. */
static json_t *finding(const char *check, const char *what) {
    size_t i;
    json_t *f;
    json_array_foreach(json_object_get(report, "findings"), i, f) {
        if (strcmp(json_string_value(json_object_get(f, "check")), check) == 0 &&
            strstr(json_string_value(json_object_get(f, "text")), what))
            return f;
    }
    return NULL;
}

static void assert_found(const char *level, const char *check, const char *what) {
    json_t *f = finding(check, what);
    if (!f) fail_msg("no finding %s with \"%s\" in: %s", check, what, kv_buf_str(&out));
    const char *got = json_string_value(json_object_get(f, "level"));
    if (strcmp(got, level) != 0) fail_msg("%s \"%s\" is %s, not %s", check, what, got, level);
    if (strcmp(level, "ok") != 0 && !json_object_get(f, "advice")) fail_msg("no advice for %s \"%s\"", check, what);
}

static int count_entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

/* ── usage ── */

static void usage_and_lines(void **state) {
    (void)state;
    char line[400];
    assert_int_equal(run(NULL, "--nonsense"), 2);
    assert_int_equal(out.len, 0);
    assert_int_equal(run(NULL, "-c many"), 2);
    assert_int_equal(run(NULL, "--help"), 0);
    assert_non_null(strstr(kv_buf_str(&out), "usage: kvasir doctor"));
    snprintf(line, sizeof line, "--no-speed --cache-dir %s --cache-disk 16M", dir);
    assert_int_equal(run(NULL, line), 0);
    for (const char *p = kv_buf_str(&out); *p;) { /* a line each, which begins with its level */
        if (strncmp(p, "ok    ", 6) != 0 && strncmp(p, "warn  ", 6) != 0) fail_msg("a line is: %s", p);
        p += strcspn(p, "\n");
        p += *p == '\n';
    }
    assert_non_null(strstr(kv_buf_str(&out), "ok    settings         none that costs cache"));
}

/* ── directory ── */

static void directories(void **state) {
    (void)state;
    char below[300];
    assert_int_equal(examine(NULL, dir, "--no-speed"), 0);
    assert_found("ok", "cache directory", "mode 0700, yours");
    assert_found("ok", "room", "of 16.0 MiB");
    assert_null(finding("disk speed", ""));
    assert_int_equal(count_entries(dir), 0);

    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(examine(NULL, dir, "--no-speed"), 0);
    assert_found("warn", "cache directory", "mode 0755");

    snprintf(below, sizeof below, "%s/not/yet", dir);
    assert_int_equal(examine(NULL, below, "--no-speed"), 0);
    assert_found("ok", "cache directory", "not there yet");
    assert_int_equal(count_entries(dir), 0);

    if (geteuid() != 0) { /* nothing is closed to root */
        assert_int_equal(chmod(dir, 0500), 0);
        assert_int_equal(examine(NULL, dir, "--no-speed"), 1);
        assert_found("bad", "cache directory", "cannot be written");
        assert_int_equal(examine(NULL, dir, "--no-speed --cache-readonly"), 0);
        assert_int_equal(examine(NULL, below, "--no-speed"), 1);
        assert_found("bad", "cache directory", "cannot be made");
    }
    assert_int_equal(rmdir(dir), 0);
    FILE *f = fopen(dir, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(examine(NULL, dir, "--no-speed"), 1);
    assert_found("bad", "cache directory", dir);
    assert_int_equal(examine(NULL, below, "--no-speed"), 1);
}

static void a_tiny_budget_is_bad(void **state) {
    (void)state;
    assert_int_equal(examine(NULL, dir, "--no-speed --cache-disk 1000"), 1);
    assert_found("bad", "room", "1000 B");
}

static void speed_leaves_nothing(void **state) {
    (void)state;
    (void)examine(NULL, dir, "");
    json_t *f = finding("disk speed", "MB/s");
    if (!f) fail_msg("no speed in: %s", kv_buf_str(&out));
    static const char *const names[] = {"write_mb_s", "direct_mb_s", "buffered_mb_s", "fsync_ms"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(json_real_value(json_object_get(json_object_get(f, "values"), names[i])) > 0);
    assert_int_equal(count_entries(dir), 0);
}

/* ── settings ── */

static void settings_that_cost(void **state) {
    (void)state;
    static const struct {
        const char *line, *what;
    } list[] = {
        {"--cache-disk 0", "--cache-disk 0: every conversation"},
        {"-cram 0", "--cache-ram 0: "},
        {"--no-cache-prompt", "--no-cache-prompt: "},
        {"--cache-readonly", "--cache-readonly: nothing new"},
        {"--exact", "--exact: one request"},
        {"-ub 64", "--ubatch-size 64: less than a block"},
        {"-b 128", "--batch-size 128: less than a block"},
        {"-b 64 -ub 512", "--batch-size 64: "},
        {"-fa on -ngl 0", "--flash-attn on: on a CPU"},
        {"-fa on --device none", "--flash-attn on: on a CPU"},
        {"--cache-max-age 1h", "--cache-max-age "},
        {"--cache-write-max 1M", "--cache-write-max "},
        {"-ctk q8_0", "--cache-type-k q8_0: has a cache of its own"},
        {"--rope-freq-base 12345", "--rope-freq-base 12345: "},
        {"--lora a.gguf", "--lora a.gguf: "},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char line[200];
        snprintf(line, sizeof line, "--no-speed %s", list[i].line);
        if (examine(NULL, dir, line) != 0) fail_msg("%s: %s", list[i].line, kv_buf_str(&out));
        assert_found("warn", "setting", list[i].what);
        if (finding("settings", "none that costs")) fail_msg("%s costs nothing?", list[i].line);
    }
    static const char *const fine[] = {"-fa off", "-fa auto", "-ub 256", "-b 2048 -ub 512", "-np 3 -c 4096"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        char line[200];
        snprintf(line, sizeof line, "--no-speed %s", fine[i]);
        assert_int_equal(examine(NULL, dir, line), 0);
        assert_found("ok", "settings", "none that costs cache");
    }
}

static void settings_name_their_place(void **state) {
    (void)state;
    (void)examine("LLAMA_ARG_CACHE_TYPE_V=q8_0", dir, "--no-speed");
    assert_found("warn", "setting", "--cache-type-v q8_0 (from LLAMA_ARG_CACHE_TYPE_V): ");
    (void)examine("KVASIR_CACHE_RAM=0", dir, "--no-speed");
    assert_found("warn", "setting", "--cache-ram 0 (from KVASIR_CACHE_RAM): ");
    (void)examine("KVASIR_CACHE_RAM=100", dir, "--no-speed -cram 0");
    assert_found("warn", "setting", "--cache-ram 0: ");
    (void)examine("LLAMA_ATTN_ROT_DISABLE=1", dir, "--no-speed");
    assert_found("warn", "setting", "LLAMA_ATTN_ROT_DISABLE");
}

static void settings_that_stop_a_server(void **state) {
    (void)state;
    assert_int_equal(examine(NULL, dir, "--no-speed -fa off -ctv q8_0"), 1);
    assert_found("bad", "settings", "needs flash attention");
    assert_int_equal(examine(NULL, dir, "--no-speed -m /nonexistent/model.gguf"), 1);
    assert_found("bad", "model", "/nonexistent/model.gguf");
}

static void a_model(void **state) {
    (void)state;
    assert_int_equal(examine(NULL, dir, "--no-speed --test-fake window -c 4096"), 0);
    assert_found("ok", "model", "memory window");
    assert_found("ok", "model's cache", "nothing is stored yet");
    assert_int_equal(count_entries(dir), 0);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(usage_and_lines),
        T(directories),
        T(a_tiny_budget_is_bad),
        T(speed_leaves_nothing),
        T(settings_that_cost),
        T(settings_name_their_place),
        T(settings_that_stop_a_server),
        T(a_model),
    };
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    kv_buf_free(&out);
    return status;
}
