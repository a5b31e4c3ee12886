/* cli/load_cache: a start with another build of the engine probes what the one before left, and uses it or does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/probe.h"
#include "cli/load.h"

enum { N = 400 };

static void check(kv_status status, const kv_error *err) {
    if (status != KV_OK) fail_msg("%s: %s", kv_status_name(status), err->message);
}

static void remove_tree(const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0) return;
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char child[600];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        remove_tree(child);
    }
    if (d) closedir(d);
    (void)(d ? rmdir(path) : unlink(path));
}

/* The engine's answers, the other way round. */
static float wrong[4096];
static const kv_engine_ops *right;
static const float *answers_wrongly(kv_engine *e, int row) {
    const float *logits = right->logits(e, row);
    int32_t n = e->model->info.n_vocab;
    assert_true(logits && n <= (int32_t)(sizeof wrong / sizeof *wrong));
    for (int32_t i = 0; i < n; i++) wrong[i] = logits[n - 1 - i];
    return wrong;
}

typedef struct server {
    kv_options opt;
    kv_loaded l;
    kv_engine_ops ops;
    kv_sched *sched;
} server;

static void start(server *s, const char *kind, const char *dir, const char *build, bool wrongly, bool exact) {
    kv_error err = {0};
    kv_buf warnings = {0};
    kv_sched_config cfg;
    char *argv[] = {"kvasir",     "--test-fake",
                    (char *)kind, "--cache-dir",
                    (char *)dir,  "--cache-ram",
                    "64",         "--cache-disk",
                    "64M",        "-c",
                    "4096",       "-ub",
                    "64",         exact ? "--exact" : "-v",
                    NULL};
    int argc = 14;
    memset(s, 0, sizeof *s);
    kv_options_defaults(&s->opt);
    check(kv_options_parse(&s->opt, argc, argv, (char *[]){NULL}, &warnings, &err), &err);
    check(kv_load_plan(&s->l, &s->opt, NULL, NULL, &err), &err);
    check(kv_load_engine(&s->l, &s->opt, &err), &err);
    s->l.engine->info.version = build;
    right = s->l.engine->ops;
    s->ops = *right;
    s->ops.logits = answers_wrongly;
    if (wrongly) s->l.engine->ops = &s->ops;
    check(kv_load_cache(&s->l, &s->opt, &err), &err);
    assert_non_null(s->l.store);
    kv_load_sched_config(&cfg, &s->l, &s->opt);
    check(kv_sched_new(&s->sched, s->l.engine, kv_clock_real(), &cfg, &err), &err);
    kv_buf_free(&warnings);
}

static void stop(server *s) {
    kv_sched_free(s->sched);
    kv_load_flush_cache(&s->l, 60);
    kv_loaded_free(&s->l);
    kv_options_free(&s->opt);
}

/* Prompt tokens that came from the disk. */
static int ask(server *s, const char *scope, int n) {
    kv_error err = {0};
    kv_token tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = (i * 37 + i / 7) % 200;
    kv_gen_params p = {.prompt = tokens, .n_prompt = (size_t)n, .cache_prompt = true, .scope = scope, .id_slot = -1};
    kv_gen *g = kv_gen_new(&p);
    kv_gen_event e = {0};
    int n_disk = -1;
    check(kv_sched_submit(s->sched, &g, 1, &err), &err);
    while (n_disk < 0) {
        if (!kv_sched_step(s->sched)) sched_yield();
        while (kv_gen_next(&e, g)) {
            if (e.kind == KV_EVENT_DONE) {
                assert_int_equal(e.finish, KV_FINISH_LENGTH);
                n_disk = e.timings.n_cached_disk;
            }
            kv_gen_event_free(&e);
        }
    }
    kv_gen_unref(g);
    return n_disk;
}

static bool noted(server *s) {
    kv_buf text = {0};
    assert_true(kv_cache_settle(s->l.cache, 60000000));
    while (kv_io_waiting(s->l.io, KV_IO_WRITE)) sched_yield();
    bool yes = kv_store_get_note(&text, s->l.store, kv_cache_root_key(s->l.cache, ""));
    kv_buf_free(&text);
    return yes;
}

static void lives_of_a_server(void **state) {
    (void)state;
    static const char *const kinds[] = {"full", "window", "hybrid", "hybrid-window", "recurrent", "whole"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char base[128];
        const char *tmp = getenv("TMPDIR");
        snprintf(base, sizeof base, "%s/kvasir-probe.XXXXXX", tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(base));
        server s;
        start(&s, kinds[k], base, "one", false, false);
        ask(&s, "other", N);
        ask(&s, "", KV_PROBE_MIN - 1);
        assert_false(noted(&s));
        ask(&s, "", N);
        stop(&s); /* the note is written by then */
        start(&s, kinds[k], base, "one", false, false);
        assert_true(noted(&s));
        assert_false(kv_probe_wants(s.l.cache, "", N));
        assert_int_equal(ask(&s, "", N), N - 1);
        stop(&s);
        start(&s, kinds[k], base, "two", false, false); /* agrees */
        assert_false(s.l.engine_apart);
        assert_int_equal(ask(&s, "", N), N - 1);
        stop(&s);
        start(&s, kinds[k], base, "three", true, false); /* differs */
        assert_true(s.l.engine_apart);
        assert_int_equal(ask(&s, "", N), 0);
        stop(&s);
        start(&s, kinds[k], base, "three", true, false); /* and finds its own again */
        assert_true(s.l.engine_apart);
        assert_int_equal(ask(&s, "", N), N - 1);
        /* asleep and awake: it is the same namespace */
        server next;
        kv_error err = {0};
        start(&next, kinds[k], base, "three", true, false);
        kv_namespace_free(&next.l.ns);
        assert_true(kv_load_cache_suits(&s.l, &next.l, &next.opt, &err));
        stop(&next);
        stop(&s);
        start(&s, kinds[k], base, "two", false, false); /* theirs is untouched */
        assert_false(s.l.engine_apart);
        assert_int_equal(ask(&s, "", N), N - 1);
        stop(&s);
        start(&s, kinds[k], base, "two", false, true); /* --exact asks nobody */
        assert_false(kv_probe_wants(s.l.cache, "", N));
        stop(&s);
        remove_tree(base);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lives_of_a_server)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
