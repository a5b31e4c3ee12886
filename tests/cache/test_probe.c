/* cache/probe: a note of one prompt's answer is kept, and another engine build is held against it at the next start. */
#include "conversations.h"
#include <math.h>

#include "base/json.h"
#include "cache/probe.h"

enum { LARGE = 1 << 26, N = 301, TAIL = 330 };

static int64_t disk_now(void *ctx) {
    return kv_now_us(&((world *)ctx)->clock.base) / 1000000;
}

static char *about(void *ctx, const char *scope) {
    (void)scope;
    kv_buf text = {0};
    kv_buf_addf(&text, "{\"format\":1,\"engine\":\"%s\"}", (const char *)ctx);
    return kv_buf_take(&text);
}

static void start(world *w) {
    kv_error err = {0};
    check(kv_store_open(&w->disk->store, &w->disk->cfg, &err), &err);
    w->cfg.store = w->disk->store;
    check(kv_cache_new(&w->cache, &w->cfg, &err), &err);
}

static void stop(world *w) {
    settle(w);
    kv_cache_free(w->cache);
    kv_store_close(w->disk->store);
    w->disk->store = NULL;
}

static void open_disk(world *w, rig *r, kv_memory_kind kind, uint64_t budget) {
    open_world(w, kind, 1, LARGE, 0, false);
    kv_cache_free(w->cache);
    rig_init(r, budget, 1);
    r->cfg.now = disk_now;
    r->cfg.now_ctx = w;
    w->disk = r;
    w->cfg.read_bytes = LARGE;
    w->cfg.about = about;
    w->cfg.about_ctx = (void *)w->engine->info.version;
    start(w);
}

/* The next start is one with this build, or with other weights that call themselves the same. */
static void restart(world *w, const char *build, uint64_t seed) {
    stop(w);
    if (seed) {
        kv_error err = {0};
        kv_fake_params fp;
        kv_engine_params p;
        kv_memory_kind kind = w->engine->info.memory;
        kv_engine_free(w->engine);
        kv_model_free(w->model);
        kv_fake_params_defaults(&fp);
        fp.memory = kind;
        fp.n_window = W;
        fp.clock = &w->clock;
        fp.seed = seed;
        check(kv_model_load_fake(&w->model, &fp, &err), &err);
        kv_engine_params_defaults(&p);
        p.n_ctx = 4 * MAX;
        p.n_slots = 3;
        p.n_batch = CHUNK + 4;
        check(kv_engine_new(&w->engine, w->model, &p, &err), &err);
        w->state.engine = w->engine;
        w->cfg.engine = kv_engine_get_info(w->engine);
    }
    w->engine->info.version = build;
    start(w);
}

/* A request, and then its last prompt token's logits as the scheduler would hand them over. */
static void serve_and_note(world *w, const char *scope, const kv_token *tokens) {
    kv_lookup_result res;
    serve(w, scope, tokens, N, TAIL, &res);
    settle(w);
    kv_fake_reference(w->want, w->model, tokens, N);
    if (kv_probe_wants(w->cache, scope, N)) kv_probe_keep(w->cache, tokens, N, w->want, w->n_vocab);
    settle(w);
}

static void note_path(char out[512], world *w) {
    char hex[33];
    kv_hash_hex(hex, kv_cache_root_key(w->cache, ""));
    snprintf(out, 512, "%s/ns/%s/probe.json", w->disk->dir, hex);
}

static bool noted(world *w, kv_buf *text) {
    kv_buf mine = {0};
    bool yes = kv_store_get_note(text ? text : &mine, w->disk->store, kv_cache_root_key(w->cache, ""));
    kv_buf_free(&mine);
    return yes;
}

static bool notes_build(world *w, const char *build) {
    kv_buf text = {0}, want = {0};
    kv_buf_addf(&want, "\"engine\":\"%s\"", build);
    bool yes = noted(w, &text) && strstr(kv_buf_str(&text), kv_buf_str(&want));
    kv_buf_free(&text);
    kv_buf_free(&want);
    return yes;
}

static void assert_engine_empty(world *w) {
    for (kv_seq s = 0; s <= 3; s++) assert_int_equal(kv_engine_pos_max(w->engine, s), -1);
    assert_int_equal(kv_fake_cells_used(w->engine), 0);
}

static void another_build_that_agrees_is_noted(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        kv_token tokens[MAX];
        kv_buf before = {0}, after = {0};
        open_disk(&w, &r, kind, LARGE);
        fill(tokens, 0, MAX, 7);
        assert_false(kv_probe_wants(w.cache, "", N));
        assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_SAME);
        serve_and_note(&w, "", tokens);
        assert_true(notes_build(&w, "fake"));
        assert_false(kv_probe_wants(w.cache, "", N));
        uint64_t decodes = kv_fake_n_decodes(w.engine);
        restart(&w, "fake", 0);
        assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_SAME);
        assert_int_equal(kv_fake_n_decodes(w.engine), decodes);
        assert_false(kv_probe_wants(w.cache, "", N));
        assert_true(noted(&w, &before));
        restart(&w, "fake 2", 0);
        assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_AGREES);
        assert_int_equal(kv_fake_n_decodes(w.engine), decodes + 1);
        assert_engine_empty(&w);
        assert_true(notes_build(&w, "fake 2"));
        assert_true(noted(&w, &after)); /* the first one's answer stays what the next is held against */
        const char *a = strstr(before.data, "\"tokens\""), *b = strstr(after.data, "\"tokens\"");
        size_t n = (size_t)(strstr(a, "\"sum\"") - a);
        assert_int_equal((size_t)(strstr(b, "\"sum\"") - b), n);
        assert_memory_equal(a, b, n);
        kv_lookup_result res;
        assert_int_equal(serve(&w, "", tokens, N, TAIL, &res), 1);
        restart(&w, "fake 2", 0);
        assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_SAME);
        settle(&w);
        rig_check(&r);
        kv_buf_free(&before);
        kv_buf_free(&after);
        close_world(&w);
    }
}

static kv_status gives_nan(kv_engine *e, const kv_batch *b, kv_error *err) {
    (void)e, (void)b;
    return kv_fail(err, KV_NOT_NUMBERS, "not numbers");
}

static void no_numbers_differ(void **state) {
    (void)state;
    world w;
    rig r;
    kv_token tokens[MAX];
    open_disk(&w, &r, KV_MEMORY_FULL, LARGE);
    fill(tokens, 0, MAX, 7);
    kv_probe_run(w.cache, w.engine);
    serve_and_note(&w, "", tokens);
    restart(&w, "fake 2", 0);
    const kv_engine_ops *real = w.engine->ops;
    kv_engine_ops ops = *real;
    ops.decode = gives_nan;
    w.engine->ops = &ops;
    assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_DIFFERS);
    w.engine->ops = real;
    close_world(&w);
}

static void other_answers_differ(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        kv_token tokens[MAX];
        open_disk(&w, &r, kind, LARGE);
        fill(tokens, 0, MAX, 7);
        kv_probe_run(w.cache, w.engine);
        serve_and_note(&w, "", tokens);
        restart(&w, "fake 2", 99);
        assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_DIFFERS);
        assert_engine_empty(&w);
        assert_true(notes_build(&w, "fake")); /* for that one it is still true */
        assert_false(kv_probe_wants(w.cache, "", N));
        /* A namespace of its own has none of it. */
        settle(&w);
        kv_cache_free(w.cache);
        kv_error err = {0};
        w.cfg.ns = kv_hash_bytes("apart", 5);
        check(kv_cache_new(&w.cache, &w.cfg, &err), &err);
        kv_lookup_result res;
        assert_int_equal(serve(&w, "", tokens, N, TAIL, &res), N);
        w.cfg.ns = kv_hash_bytes("test", 4);
        close_world(&w);
    }
}

/* Engines that answer nearly the same, and those that do not. */
static void the_bound(void **state) {
    (void)state;
    enum { V = 40 };
    float then[V], now[V];
    kv_token token[8];
    float logit[8];
    for (int i = 0; i < V; i++) then[i] = 10.0f - 2.0f * (float)i;
    for (int i = 0; i < 8; i++) token[i] = i, logit[i] = then[i];
    struct {
        int at;
        float by;
        bool agrees;
    } cases[] = {{0, 0, true},     {3, 7.9f, false}, {6, 7.9f, true},  {0, -3, true},    {0, -4.5f, false},
                 {20, 41, false},  {20, 20, true},   {1, 2.5f, true},  {2, 4.5f, false}, {5, NAN, false},
                 {7, 8.5f, false}, {7, -7.5f, true}, {7, -8.5f, false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        memcpy(now, then, sizeof now);
        now[cases[c].at] += cases[c].by;
        if (kv_probe_agrees(token, logit, 8, now, V) != cases[c].agrees) fail_msg("case %d", (int)c);
    }
    /* A constant over all logits changes no answer, but no engine adds one: it is held to the same bound. */
    for (int i = 0; i < V; i++) now[i] = then[i] + 0.9f;
    assert_true(kv_probe_agrees(token, logit, 8, now, V));
    for (int i = 0; i < V; i++) now[i] = then[i] + 1.1f;
    assert_false(kv_probe_agrees(token, logit, 8, now, V));
}

/* Other scopes' prompts are theirs; short and long ones are left alone; read-only caches change nothing. */
static void only_some_are_noted(void **state) {
    (void)state;
    world w;
    rig r;
    kv_token tokens[MAX];
    open_disk(&w, &r, KV_MEMORY_FULL, LARGE);
    fill(tokens, 0, MAX, 7);
    kv_probe_run(w.cache, w.engine);
    serve_and_note(&w, "b", tokens);
    assert_false(noted(&w, NULL));
    assert_true(kv_probe_wants(w.cache, "", KV_PROBE_MIN));
    assert_true(kv_probe_wants(w.cache, "default", KV_PROBE_MAX));
    assert_false(kv_probe_wants(w.cache, "", KV_PROBE_MIN - 1));
    assert_false(kv_probe_wants(w.cache, "", KV_PROBE_MAX + 1));
    assert_false(kv_probe_wants(w.cache, "1:b", N));
    w.cfg.readonly = true;
    restart(&w, "fake", 0);
    kv_probe_run(w.cache, w.engine);
    assert_false(kv_probe_wants(w.cache, "", N));
    w.cfg.readonly = false;
    restart(&w, "fake", 0);
    kv_probe_run(w.cache, w.engine);
    serve_and_note(&w, "", tokens);
    w.cfg.readonly = true;
    restart(&w, "fake 2", 0);
    assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_AGREES);
    assert_true(notes_build(&w, "fake"));
    close_world(&w);
}

/* Without a note the namespace's own description tells that another build made it; nothing is computed. */
static void without_a_note(void **state) {
    (void)state;
    world w;
    rig r;
    kv_token tokens[MAX];
    open_disk(&w, &r, KV_MEMORY_HYBRID, LARGE);
    fill(tokens, 0, MAX, 7);
    kv_probe_run(w.cache, w.engine);
    kv_lookup_result res;
    serve(&w, "", tokens, N, TAIL, &res);
    restart(&w, "fake 2", 0);
    uint64_t decodes = kv_fake_n_decodes(w.engine);
    assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_UNKNOWN);
    assert_int_equal(kv_fake_n_decodes(w.engine), decodes);
    serve_and_note(&w, "", tokens); /* from now on there is one */
    assert_true(notes_build(&w, "fake 2"));
    restart(&w, "fake 2", 0);
    assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_SAME);
    close_world(&w);
}

/* What is noted goes with its records. */
static void a_note_without_its_path(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (int erased = 0; erased < 2; erased++) {
            world w;
            rig r;
            kv_token tokens[MAX];
            kv_error err = {0};
            kv_buf text = {0};
            open_disk(&w, &r, kind, LARGE);
            fill(tokens, 0, MAX, 7);
            kv_probe_run(w.cache, w.engine);
            serve_and_note(&w, "", tokens);
            assert_true(noted(&w, &text));
            assert_true(kv_cache_erase(w.cache, "", &err) > 0);
            assert_false(noted(&w, NULL));
            kv_hash ns = kv_cache_root_key(w.cache, "");
            if (!erased) check(kv_store_set_note(r.store, ns, kv_buf_str(&text), &err), &err);
            restart(&w, "fake 2", 0);
            assert_int_equal(kv_probe_run(w.cache, w.engine), erased ? KV_PROBE_SAME : KV_PROBE_UNKNOWN);
            assert_false(noted(&w, NULL));
            assert_true(kv_probe_wants(w.cache, "", N));
            settle(&w);
            rig_check(&r);
            kv_buf_free(&text);
            close_world(&w);
        }
}

static void put_file(const char *path, const char *text, size_t n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

/* As the note's writer would sum it up, so that the other checks are met. */
static void sum_again(kv_buf *text) {
    json_t *root = NULL;
    char hex[33];
    if (kv_json_parse(&root, kv_buf_str(text), text->len, NULL) != KV_OK || !json_is_object(root)) goto done;
    json_object_del(root, "sum");
    kv_buf_clear(text);
    kv_json_dump(text, root);
    kv_hash_hex(hex, kv_hash_bytes(text->data, text->len));
    json_object_set_new(root, "sum", json_string(hex));
    kv_buf_clear(text);
    kv_json_dump(text, root);
done:
    json_decref(root);
}

/* Whatever stands in the file: no crash, nothing computed, and a new one is kept. */
static void bad_notes(void **state) {
    (void)state;
    world w;
    rig r;
    kv_token tokens[MAX];
    kv_buf good = {0};
    char path[512];
    open_disk(&w, &r, KV_MEMORY_FULL, LARGE);
    fill(tokens, 0, MAX, 7);
    kv_probe_run(w.cache, w.engine);
    serve_and_note(&w, "", tokens);
    assert_true(noted(&w, &good));
    note_path(path, &w);
    restart(&w, "fake 2", 0);
    uint64_t decodes = kv_fake_n_decodes(w.engine);
    static const char *const whole[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{}",
                                        "{\"format\":1}",
                                        "{\"format\":0}",
                                        "{\"format\":-1}",
                                        "{\"format\":\"1\"}",
                                        "{\"format\":1,\"engine\":\"x\",\"tokens\":{},\"top\":{}}",
                                        "{\"format\":1,\"engine\":\"x\",\"tokens\":[1,2],\"top\":[[1,1.0]]}"};
    /* of the good one: what is replaced, by what */
    static const char *const change[][2] = {
        {"\"engine\":\"fake\"", "\"engine\":\"a\\u001b[2Jb\""},
        {"\"engine\":\"fake\"", "\"engine\":\"\""},
        {"\"engine\":\"fake\"", "\"engine\":7"},
        {"\"engine\":\"fake\"", "\"engine\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
        {"\"tokens\":[", "\"tokens\":[-1,"},
        {"\"tokens\":[", "\"tokens\":[261,"},
        {"\"tokens\":[", "\"tokens\":[99999999999999999999,"},
        {"\"tokens\":[", "\"tokens\":[\"1\","},
        {"\"tokens\":[", "\"tokens\":[[1],"},
        {"\"top\":[", "\"top\":[[1,1e300],"},
        {"\"top\":[", "\"top\":[[1],"},
        {"\"top\":[", "\"top\":[[1,1.0,2],"},
        {"\"top\":[", "\"top\":[[999,1.0],"},
        {"\"top\":[", "\"top\":[[1,-1000.0],"},
        {"\"top\":[", "\"top\":[[1,null],"},
        {"\"top\":[", "\"top\":[],\"old\":["}};
    size_t n_whole = sizeof whole / sizeof *whole, n_change = sizeof change / sizeof *change;
    for (size_t i = 0; i < n_whole + n_change + good.len - 1; i++) {
        kv_buf text = {0};
        if (i < n_whole) {
            kv_buf_adds(&text, whole[i]);
        } else if (i < n_whole + n_change) {
            const char *const *c = change[i - n_whole], *at = strstr(good.data, c[0]);
            assert_non_null(at);
            kv_buf_add(&text, good.data, (size_t)(at - good.data));
            kv_buf_adds(&text, c[1]);
            kv_buf_adds(&text, at + strlen(c[0]));
            sum_again(&text);
        } else { /* cut short */
            kv_buf_add(&text, good.data, i - n_whole - n_change);
            if (i % 37) { /* a few will do */
                kv_buf_free(&text);
                continue;
            }
        }
        put_file(path, kv_buf_str(&text), text.len);
        if (kv_probe_run(w.cache, w.engine) != KV_PROBE_UNKNOWN) fail_msg("bad note %d: %.200s", (int)i, text.data);
        assert_true(kv_probe_wants(w.cache, "", N));
        kv_buf_free(&text);
    }
    assert_int_equal(kv_fake_n_decodes(w.engine), decodes);
    serve_and_note(&w, "", tokens);
    assert_true(notes_build(&w, "fake 2"));
    /* A newer format is another kvasir's. */
    put_file(path, "{\"format\":2}", 12);
    assert_int_equal(kv_probe_run(w.cache, w.engine), KV_PROBE_UNKNOWN);
    assert_false(kv_probe_wants(w.cache, "", N));
    /* Too long a file is not even read. */
    kv_buf_reserve(&good, 70000);
    while (good.len < 70000) kv_buf_adds(&good, " ");
    put_file(path, good.data, good.len);
    kv_probe_run(w.cache, w.engine);
    assert_true(kv_probe_wants(w.cache, "", N));
    kv_buf_free(&good);
    close_world(&w);
}

/* A file of the path that cannot be read, or is damaged, says nothing about the engine. */
static void a_damaged_path(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (int flip = 0; flip < 2; flip++) {
            int n_unknown = 0;
            for (uint64_t nth = 1; nth < 24; nth += nth < 4 ? 1 : 5) {
                world w;
                rig r;
                kv_token tokens[MAX];
                open_disk(&w, &r, kind, LARGE);
                fill(tokens, 0, MAX, 7);
                kv_probe_run(w.cache, w.engine);
                serve_and_note(&w, "", tokens);
                restart(&w, "fake 2", 0);
                if (flip) kv_files_faulty_flip(r.faulty, nth);
                else kv_files_faulty_fail(r.faulty, KV_CALL_READ, nth, 1, EIO);
                kv_probe_result result = kv_probe_run(w.cache, w.engine);
                if (flip) kv_files_faulty_flip(r.faulty, 0);
                else kv_files_faulty_fail(r.faulty, KV_CALL_READ, 0, 0, 0);
                if (result != KV_PROBE_UNKNOWN && result != KV_PROBE_AGREES)
                    fail_msg("%s, read %d: result %d", kv_memory_kind_name(kind), (int)nth, result);
                n_unknown += result == KV_PROBE_UNKNOWN;
                assert_engine_empty(&w);
                settle(&w);
                close_world(&w);
            }
            /* The note itself, and what leads to the state; a flipped bit may lie where nobody looks. */
            assert_true(n_unknown >= (flip ? 1 : 2));
        }
}

/* A full cache makes room for the note, and never passes its budget. */
static void a_full_cache(void **state) {
    (void)state;
    world w;
    rig r;
    kv_token tokens[MAX];
    kv_lookup_result res;
    open_disk(&w, &r, KV_MEMORY_FULL, KV_STORE_MIN);
    kv_probe_run(w.cache, w.engine);
    kv_store_stats stats = {.budget = KV_STORE_MIN};
    for (uint32_t salt = 100; salt < 130 && stats.budget - stats.bytes >= 64u << 10; salt++) {
        fill(tokens, 0, MAX, salt);
        serve(&w, "", tokens, 400, 420, &res);
        settle(&w);
        kv_store_get_stats(&stats, r.store);
    }
    assert_true(stats.budget - stats.bytes < 64u << 10);
    fill(tokens, 0, MAX, 7);
    serve_and_note(&w, "", tokens);
    assert_true(noted(&w, NULL));
    rig_check(&r);
    for (int i = 0; i < 3; i++) { /* replaced, and counted once */
        kv_error err = {0};
        check(kv_store_set_note(r.store, kv_cache_root_key(w.cache, ""), "{}", &err), &err);
        rig_check(&r);
    }
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_build_that_agrees_is_noted),
        cmocka_unit_test(other_answers_differ),
        cmocka_unit_test(no_numbers_differ),
        cmocka_unit_test(the_bound),
        cmocka_unit_test(only_some_are_noted),
        cmocka_unit_test(without_a_note),
        cmocka_unit_test(a_note_without_its_path),
        cmocka_unit_test(bad_notes),
        cmocka_unit_test(a_damaged_path),
        cmocka_unit_test(a_full_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
