/* sched: what is refused, how generations end, what of a slot is reused, how choices share a prompt, cells, stop. */
#include "world.h"

/* A request that answers `answer` (each byte a token) and then ends its turn. */
static void submit_playing(request *r, world *w, const char *answer) {
    kv_token tokens[256];
    int n = 0;
    for (; answer[n]; n++) tokens[n] = (unsigned char)answer[n];
    kv_sampler *sampler;
    kv_error err = {0};
    assert_int_equal(kv_sampler_play_new(&sampler, tokens, n, w->model->info.eos), KV_OK);
    request_make(r, w, sampler);
    if (kv_sched_submit(w->sched, &r->gen, 1, &err) != KV_OK) fail_msg("%s", err.message);
}

static void play(request *r, world *w, const char *prompt, const char *answer) {
    request_init_text(r, prompt);
    submit_playing(r, w, answer);
}

static void finish_and_free(world *w, request *r) {
    world_finish(w, r, 1);
    request_free(r);
}

/* ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void refusals(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL);
    p.sched.n_ctx_served = 300;
    p.sched.max_queue = 2;
    p.engine.n_slots = 2;
    world_open(&w, &p);
    kv_error err = {0};
    kv_tokens t = {0};
    dice d = {1};
    random_tokens(&t, &d, 300);
    assert_int_equal(kv_sched_check(w.sched, t.data, 299, 1, &err), KV_OK);
    assert_int_equal(kv_sched_check(w.sched, t.data, 300, 1, &err), KV_CONTEXT_FULL);
    assert_int_equal(err.n_prompt_tokens, 300);
    assert_int_equal(err.n_ctx, 300);
    assert_non_null(strstr(err.message, "exceeds the available context size"));
    assert_non_null(strstr(err.message, "maximum context length is 300 tokens"));
    assert_int_equal(kv_sched_check(w.sched, t.data, 0, 1, &err), KV_INVALID);
    assert_int_equal(kv_sched_check(w.sched, t.data, 10, 3, &err), KV_INVALID);
    assert_string_equal(err.field, "n");
    assert_int_equal(kv_sched_check(w.sched, t.data, 10, 0, &err), KV_INVALID);
    t.data[5] = w.model->info.n_vocab;
    assert_int_equal(kv_sched_check(w.sched, t.data, 10, 1, &err), KV_INVALID);
    t.data[5] = -1;
    assert_int_equal(kv_sched_check(w.sched, t.data, 10, 1, &err), KV_INVALID);
    assert_int_equal(kv_sched_check(w.sched, t.data, 10, 1, NULL), KV_INVALID);
    kv_tokens_free(&t);

    request r[6];
    for (int i = 0; i < 6; i++) {
        request_init_text(&r[i], "abc");
        r[i].params.n_predict = 3;
        if (i == 4) r[i].params.id_slot = 2;
        request_make(&r[i], &w, NULL);
    }
    assert_int_equal(kv_sched_submit(w.sched, &r[4].gen, 1, &err), KV_INVALID);
    assert_string_equal(err.field, "id_slot");
    kv_gen *first[2] = {r[0].gen, r[1].gen};
    assert_int_equal(kv_sched_submit(w.sched, first, 2, &err), KV_OK);
    assert_int_equal(kv_sched_submit(w.sched, &r[2].gen, 1, &err), KV_OK); /* two slots, a queue of two: one left */
    kv_gen *two[2] = {r[3].gen, r[5].gen};
    assert_int_equal(kv_sched_submit(w.sched, two, 2, &err), KV_BUSY); /* all or none */
    assert_int_equal(kv_sched_submit(w.sched, &r[3].gen, 1, &err), KV_OK);
    assert_int_equal(kv_sched_submit(w.sched, &r[5].gen, 1, &err), KV_BUSY);
    assert_int_equal(kv_sched_check(w.sched, r[0].prompt.data, 3, 1, &err), KV_BUSY);
    world_finish(&w, r, 4);
    assert_int_equal(kv_sched_submit(w.sched, &r[5].gen, 1, &err), KV_OK);
    kv_sched_drain(w.sched);
    assert_int_equal(kv_sched_check(w.sched, r[0].prompt.data, 3, 1, &err), KV_BUSY);
    world_finish(&w, &r[5], 1); /* what was there goes on */
    assert_int_equal(r[5].finish, KV_FINISH_LENGTH);
    for (int i = 0; i < 6; i++) request_free(&r[i]);
    world_close(&w);
}

static void bad_configurations(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL);
    kv_sched *s;
    kv_error err = {0};
    world_open(&w, &p);
    kv_sched_config c = p.sched;
    c.n_ctx_served = w.engine->info.n_ctx + 1;
    assert_int_equal(kv_sched_new(&s, w.engine, &w.clock.base, &c, &err), KV_INVALID);
    assert_null(s);
    c = p.sched;
    c.block = 0;
    assert_int_equal(kv_sched_new(&s, w.engine, &w.clock.base, &c, &err), KV_INVALID);
    world_close(&w);
}

/* ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void ends(void **state) {
    (void)state;
    static const struct {
        const char *answer, *stop;
        int32_t n_predict, n_indent;
        const char *text;
        kv_finish finish;
        int n_sampled;
    } rows[] = {
        {"hello", NULL, -1, 0, "hello", KV_FINISH_EOS, 6},
        {"", NULL, -1, 0, "", KV_FINISH_EOS, 1},
        {"hello", NULL, 3, 0, "hel", KV_FINISH_LENGTH, 3},
        {"hello", NULL, 6, 0, "hello", KV_FINISH_EOS, 6}, /* the end counts as well */
        {"one STOP two", "STOP", -1, 0, "one ", KV_FINISH_WORD, 8},
        {"one STO", "STOP", -1, 0, "one STO", KV_FINISH_EOS, 8},
        {"one STO", "STOP", 6, 0, "one ST", KV_FINISH_LENGTH, 6}, /* held back until the end */
        {"a\n  b\nc\n", NULL, -1, 1, "a\n  b\n", KV_FINISH_LENGTH, 7},
        {"hello", NULL, 0, 0, "", KV_FINISH_LENGTH, 0},
    };
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = world_defaults(all_kinds[k]);
        world_open(&w, &p);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            request r;
            request_init_text(&r, "a prompt");
            r.params.n_predict = rows[i].n_predict;
            r.params.n_indent = rows[i].n_indent;
            r.stops[0] = rows[i].stop;
            submit_playing(&r, &w, rows[i].answer);
            world_finish(&w, &r, 1);
            assert_string_equal(kv_buf_str(&r.text), rows[i].text);
            assert_int_equal(r.finish, rows[i].finish);
            assert_int_equal(r.answer.len, rows[i].n_sampled);
            assert_int_equal(r.timings.n_decoded, rows[i].n_sampled);
            assert_string_equal(r.stop_word, rows[i].finish == KV_FINISH_WORD ? rows[i].stop : "");
            assert_int_equal(r.progress, 8);
            request_free(&r);
        }
        world_close(&w);
    }
}

static void context_limit_and_what_is_kept(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = world_defaults(all_kinds[k]);
        p.sched.n_ctx_served = 20;
        p.fake.end_one_in = -1;
        world_open(&w, &p);
        request r;
        request_init_text(&r, "0123456789");
        request_submit(&r, &w);
        world_finish(&w, &r, 1);
        assert_int_equal(r.finish, KV_FINISH_LENGTH);
        assert_int_equal(r.answer.len, 10); /* 20 in all */
        kv_slot_view v;
        assert_int_equal(kv_sched_get_slots(&v, 1, w.sched), 1);
        assert_int_equal(v.n_tokens, 19); /* the one that ends is not computed */
        assert_false(v.processing);
        request_free(&r);
        world_close(&w);
    }
}

static void time_limit_waits_for_a_newline(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL); /* 2 ms a token */
    world_open(&w, &p);
    request r;
    request_init_text(&r, "p");
    r.params.t_max_predict_ms = 5;
    submit_playing(&r, &w, "a\nbcdefg\nh\n");
    world_finish(&w, &r, 1);
    assert_int_equal(r.finish, KV_FINISH_LENGTH);
    assert_string_equal(kv_buf_str(&r.text), "a\nbcdefg\n");
    request_free(&r);
    world_close(&w);
}

static void cancels(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = world_defaults(all_kinds[k]);
        p.engine.n_slots = 1;
        world_open(&w, &p);
        dice d = {7};
        request r[3];
        for (int i = 0; i < 3; i++) {
            request_init(&r[i], NULL, 0);
            random_tokens(&r[i].prompt, &d, 400);
            request_submit(&r[i], &w);
        }
        kv_gen_cancel(r[1].gen); /* while it waits */
        world_step(&w);
        request_read(&r[1]);
        assert_int_equal(r[1].finish, KV_FINISH_CANCELLED);
        kv_gen_cancel(r[0].gen); /* in the middle of its prompt */
        kv_gen_detach(r[0].gen);
        int woken = r[0].n_woken;
        world_step(&w);
        assert_int_equal(r[0].n_woken, woken); /* its reader is gone */
        request_read(&r[0]);
        assert_int_equal(r[0].finish, KV_FINISH_CANCELLED);
        assert_true(r[0].progress > 0 && r[0].progress < 400);
        while (r[2].answer.len < 3) {
            assert_true(world_step(&w));
            request_read(&r[2]);
        }
        kv_gen_cancel(r[2].gen); /* in the middle of its answer */
        world_finish(&w, &r[2], 1);
        assert_int_equal(r[2].finish, KV_FINISH_CANCELLED);
        kv_gen_cancel(r[2].gen); /* after its end */
        assert_false(world_step(&w));
        kv_sched_stats s;
        kv_sched_get_stats(&s, w.sched);
        assert_int_equal(s.n_cancelled, 3);
        assert_int_equal(s.n_requests, 3);
        for (int i = 0; i < 3; i++) request_free(&r[i]);
        world_close(&w);
    }
}

static void stop_and_free_end_everything(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        world w;
        world_params p = world_defaults(KV_MEMORY_HYBRID);
        p.engine.n_slots = 2;
        world_open(&w, &p);
        request r[4];
        kv_error err = {0};
        for (int i = 0; i < 4; i++) {
            request_init_text(&r[i], "some prompt");
            if (i < 3) request_submit(&r[i], &w);
            else request_make(&r[i], &w, NULL);
            if (i == 1) world_step(&w);
        }
        if (way == 0) {
            kv_sched_stop(w.sched);
            assert_int_equal(kv_sched_submit(w.sched, &r[3].gen, 1, &err), KV_BUSY);
            kv_sched_run(w.sched); /* returns */
            assert_true(kv_sched_idle(w.sched));
        }
        world_end(&w);
        for (int i = 0; i < 4; i++) {
            request_read(&r[i]);
            assert_int_equal(r[i].finish, i < 3 ? KV_FINISH_ERROR : KV_FINISH_NONE);
            if (i < 3) assert_int_equal(r[i].error.status, KV_BUSY);
            request_free(&r[i]);
        }
        kv_model_free(w.model);
    }
}

/* ── reuse ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Two requests after each other; how much of the second one's prompt came from the slot. */
static void reuse_table(void **state) {
    (void)state;
    enum { ALL = -1 }; /* all but the last token */
    static const struct {
        const char *what, *first, *answer, *second;
        int32_t cached[N_KINDS]; /* full, window (32), hybrid, hybrid window, recurrent, whole */
    } rows[] = {
        {"the same again", "0123456789", "abc", "0123456789", {ALL, ALL, 0, 0, 0, 0}},
        {"its continuation", "0123456789", "abc", "0123456789abcXYZ", {13, 13, 13, 13, 13, 13}},
        {"exactly what is held", "0123456789", "abc", "0123456789abc", {ALL, ALL, 0, 0, 0, 0}},
        {"another ending", "0123456789", "abc", "0123456xyz", {7, 7, 0, 0, 0, 0}},
        {"nothing in common", "0123456789", "abc", "x123456789", {0, 0, 0, 0, 0, 0}},
        {"less than the least share", "0123456789", "abc", "0xxxxxxxxxxxxxx", {1, 1, 0, 0, 0, 0}},
        /* 60 tokens back, the window of 32 is partly gone once its cells were used again; here they were not */
        {"far back",
         "0123456789012345678901234567890123456789012345678901234567890123456789",
         "abc",
         "0123456789x",
         {10, 10, 0, 0, 0, 0}},
    };
    for (int k = 0; k < N_KINDS; k++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            world w;
            world_params p = world_defaults(all_kinds[k]);
            p.engine.n_slots = 1;
            world_open(&w, &p);
            request r;
            play(&r, &w, rows[i].first, rows[i].answer);
            finish_and_free(&w, &r);
            play(&r, &w, rows[i].second, "ok");
            world_finish(&w, &r, 1);
            int32_t n = (int32_t)r.prompt.len, expect = rows[i].cached[k] == ALL ? n - 1 : rows[i].cached[k];
            if (r.timings.n_cached != expect)
                print_message("%s, %s: %d\n", kv_memory_kind_name(all_kinds[k]), rows[i].what, (int)r.timings.n_cached);
            assert_int_equal(r.timings.n_cached, expect);
            assert_int_equal(r.timings.n_prompt, n - expect);
            request_free(&r);
            world_close(&w);
        }
    }
}

static void a_window_that_was_left_is_not_reused(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_WINDOW);
    p.engine.n_slots = 1;
    p.engine.n_batch = 65;
    p.engine.n_ctx = 1024;
    world_open(&w, &p);
    request r;
    dice d = {3};
    request_init(&r, NULL, 0);
    random_tokens(&r.prompt, &d, 900);
    r.params.n_predict = 2;
    request_submit(&r, &w);
    world_finish(&w, &r, 1);
    request again;
    request_init(&again, r.prompt.data, 100);
    again.params.n_predict = 2;
    request_submit(&again, &w);
    world_finish(&w, &again, 1);
    assert_int_equal(again.timings.n_cached, 0);
    request_free(&again);
    request_init(&again, r.prompt.data, 900);
    again.params.n_predict = 4;
    request_submit(&again, &w);
    world_finish(&w, &again, 1);
    assert_int_equal(again.timings.n_cached, 100); /* what the second one left */
    request_free(&again);
    request_free(&r);
    world_close(&w);
}

static void which_slot(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL);
    p.engine.n_slots = 3;
    world_open(&w, &p);
    kv_slot_view v[3];
    request r;
    play(&r, &w, "aaaaaaaaaaaa", "1");
    finish_and_free(&w, &r);
    play(&r, &w, "bbbbbbbbbbbb", "2"); /* an empty slot goes before one that holds something */
    finish_and_free(&w, &r);
    play(&r, &w, "aaaaaaaaaaaa1a", "3"); /* the longest prefix */
    finish_and_free(&w, &r);
    assert_int_equal(kv_sched_get_slots(v, 3, w.sched), 3);
    assert_int_equal(v[0].n_tokens, 15);
    assert_int_equal(v[1].n_tokens, 13);
    assert_int_equal(v[2].n_tokens, 0);
    play(&r, &w, "cccc", "4");
    finish_and_free(&w, &r);
    play(&r, &w, "dddddddd", "5"); /* the least recently used: b's */
    finish_and_free(&w, &r);
    kv_sched_get_slots(v, 3, w.sched);
    assert_int_equal(v[1].n_tokens, 9);
    play(&r, &w, "axxxxxxxxxxxxxxxxxxx", "6"); /* too little in common to keep a's slot: c's is older than it … */
    world_finish(&w, &r, 1);
    assert_int_equal(r.timings.n_cached, 1); /* … no: a's is the least recently used, so its one token counts */
    request_free(&r);
    request_init_text(&r, "dddddddd5dd");
    r.params.id_slot = 2;
    submit_playing(&r, &w, "7");
    world_finish(&w, &r, 1);
    assert_int_equal(r.timings.n_cached, 0); /* slot 1 has it, but slot 2 was asked for */
    request_free(&r);
    world_close(&w);
}

static void without_cache_prompt(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        world w;
        world_params p = world_defaults(all_kinds[k]);
        p.engine.n_slots = 1;
        world_open(&w, &p);
        kv_slot_view v;
        request r;
        play(&r, &w, "0123456789", "abc");
        finish_and_free(&w, &r);
        request_init_text(&r, "0123456789abcX");
        r.params.cache_prompt = false;
        submit_playing(&r, &w, "d");
        world_finish(&w, &r, 1);
        assert_int_equal(r.timings.n_cached, 0);
        kv_sched_get_slots(&v, 1, w.sched);
        assert_int_equal(v.n_tokens, 0);
        request_free(&r);
        world_close(&w);
    }
}

/* More conversations than slots, each longer than a window pool has to spare: each goes on where it was. */
static void conversations_come_back_to_any_slot(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int n_slots = 1; n_slots <= 4; n_slots++) {
            world w;
            world_params p = world_defaults(all_kinds[k]);
            p.engine.n_slots = n_slots;
            p.cache_queue = p.cache_ram = 1 << 26;
            p.sched.evict_idle = n_slots % 2 == 0;
            world_open(&w, &p);
            kv_tokens talk[5] = {0};
            for (int turn = 0; turn < 3; turn++)
                for (int c = 0; c < 5; c++) {
                    request r;
                    int n_new = turn ? 40 : 300;
                    for (int i = 0; i < n_new; i++)
                        kv_tokens_add(&talk[c], (kv_token)(c * 31 + turn * 7 + i * i) % 250);
                    request_init(&r, talk[c].data, talk[c].len);
                    submit_playing(&r, &w, "answer");
                    world_finish(&w, &r, 1);
                    if (turn && r.timings.n_prompt > n_new + 1)
                        fail_msg("%s, %d slots, turn %d: %d tokens computed for %d new ones, miss %s at %d",
                                 kv_memory_kind_name(all_kinds[k]), n_slots, turn, (int)r.timings.n_prompt, n_new,
                                 kv_miss_name(r.timings.miss), (int)r.timings.miss_position);
                    /* the end-of-turn token is not computed */
                    for (size_t i = 0; i + 1 < r.answer.len; i++) kv_tokens_add(&talk[c], r.answer.data[i]);
                    request_free(&r);
                    while (kv_io_run_one(w.io)) continue;
                }
            for (int c = 0; c < 5; c++) kv_tokens_free(&talk[c]);
            world_close(&w);
        }
}

static void erase(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_WINDOW);
    p.engine.n_slots = 1;
    world_open(&w, &p);
    kv_error err = {0};
    int32_t n = -1;
    request r;
    play(&r, &w, "0123456789", "abc");
    world_step(&w);
    assert_int_equal(kv_sched_erase_slot(w.sched, 0, &n, &err), KV_BUSY);
    finish_and_free(&w, &r);
    assert_int_equal(kv_sched_erase_slot(w.sched, 1, &n, &err), KV_INVALID);
    assert_int_equal(kv_sched_erase_slot(w.sched, 0, &n, &err), KV_OK);
    assert_int_equal(n, 13);
    assert_int_equal(kv_sched_erase_slot(w.sched, 0, &n, &err), KV_OK);
    assert_int_equal(n, 0);
    play(&r, &w, "0123456789abcX", "d");
    world_finish(&w, &r, 1);
    assert_int_equal(r.timings.n_cached, 0);
    request_free(&r);
    world_close(&w);
}

static void what_a_slot_was_left_with(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL);
    p.engine.n_slots = 1;
    world_open(&w, &p);
    kv_error err = {0};
    kv_tokens tokens = {0};
    char *scope;
    request r;
    assert_int_equal(kv_sched_read_slot(&tokens, &scope, w.sched, 0, &err), KV_OK);
    assert_null(scope);
    assert_int_equal(tokens.len, 0);
    play(&r, &w, "0123456789", "abc");
    world_step(&w);
    assert_int_equal(kv_sched_read_slot(&tokens, &scope, w.sched, 0, &err), KV_BUSY);
    assert_int_equal(kv_sched_read_slot(&tokens, &scope, w.sched, 1, &err), KV_INVALID);
    assert_string_equal(err.field, "id_slot");
    finish_and_free(&w, &r);
    assert_int_equal(kv_sched_read_slot(&tokens, &scope, w.sched, 0, &err), KV_OK);
    assert_string_equal(scope, "");
    assert_int_equal(tokens.len, 13);
    for (int i = 0; i < 13; i++) assert_int_equal(tokens.data[i], "0123456789abc"[i]);
    free(scope);
    int32_t n;
    tokens.len = 0;
    assert_int_equal(kv_sched_erase_slot(w.sched, 0, &n, &err), KV_OK);
    assert_int_equal(kv_sched_read_slot(&tokens, &scope, w.sched, 0, &err), KV_OK);
    assert_null(scope);
    assert_int_equal(tokens.len, 0);
    kv_tokens_free(&tokens);
    world_close(&w);
}

/* ── choices ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void choices_compute_the_prompt_once(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        for (int n_prompt = 1; n_prompt <= 300; n_prompt += n_prompt == 1 ? 1 : 298) {
            world w;
            world_params p = world_defaults(all_kinds[k]);
            p.fake.end_one_in = -1;
            world_open(&w, &p);
            request r[4];
            kv_gen *gens[4];
            dice d = {11};
            for (int i = 0; i < 4; i++) {
                request_init(&r[i], i ? r[0].prompt.data : NULL, i ? r[0].prompt.len : 0);
                if (!i) random_tokens(&r[0].prompt, &d, n_prompt);
                r[i].params.group = 5;
                r[i].params.n_predict = 10;
                r[i].temperature = 2.0f;
                r[i].seed = (uint32_t)i;
                request_make(&r[i], &w, NULL);
                gens[i] = r[i].gen;
            }
            assert_int_equal(kv_sched_submit(w.sched, gens, 4, NULL), KV_OK);
            world_finish(&w, r, 4);
            kv_sched_stats s;
            kv_sched_get_stats(&s, w.sched);
            assert_int_equal(s.n_prompt_computed, n_prompt + 3);
            assert_int_equal(s.n_forked, n_prompt > 1 ? 3 : 0);
            assert_int_equal(r[0].timings.n_cached, 0);
            for (int i = 1; i < 4; i++) {
                assert_int_equal(r[i].timings.n_cached, n_prompt - 1);
                assert_int_equal(r[i].answer.len, 10);
                assert_memory_not_equal(r[i].answer.data, r[0].answer.data, 10 * sizeof(kv_token));
            }
            if (counts_cells(&w) && all_kinds[k] != KV_MEMORY_WHOLE) /* shared cells count once */
                assert_int_equal(s.cells_used, n_prompt - 1 + 4 * 10);
            for (int i = 0; i < 4; i++) request_free(&r[i]);
            world_close(&w);
        }
    }
}

static void choices_without_slots_come_later(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL);
    p.engine.n_slots = 3;
    world_open(&w, &p);
    request busy;
    play(&busy, &w, "xxxxxxxx", "a long answer that takes its time, much longer than the others' answers are");
    world_step(&w);
    request r[3];
    kv_gen *gens[3];
    for (int i = 0; i < 3; i++) {
        request_init_text(&r[i], "the prompt of three");
        r[i].params.group = 9;
        r[i].params.n_predict = 5;
        request_make(&r[i], &w, NULL);
        gens[i] = r[i].gen;
    }
    assert_int_equal(kv_sched_submit(w.sched, gens, 3, NULL), KV_OK);
    world_finish(&w, r, 3);
    kv_sched_stats s;
    kv_sched_get_stats(&s, w.sched);
    assert_int_equal(s.n_forked, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].timings.n_cached, i ? 18 : 0); /* the last one found it in a slot */
        request_free(&r[i]);
    }
    finish_and_free(&w, &busy);
    world_close(&w);
}

/* ── cells and damage ──────────────────────────────────────────────────────────────────────────────────────────── */

static void preemption(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (all_kinds[k] == KV_MEMORY_RECURRENT) continue; /* no cells to run out of */
        world w;
        world_params p = world_defaults(all_kinds[k]);
        p.engine.n_ctx = 256;
        p.fake.end_one_in = -1;
        world_open(&w, &p);
        request r[3];
        dice d = {13};
        for (int i = 0; i < 3; i++) {
            request_init(&r[i], NULL, 0);
            random_tokens(&r[i].prompt, &d, 20);
            r[i].params.n_predict = 200;
            r[i].seed = (uint32_t)i;
            r[i].temperature = 1.0f;
            request_submit(&r[i], &w);
        }
        world_finish(&w, r, 3);
        kv_sched_stats s;
        kv_sched_get_stats(&s, w.sched);
        assert_true(s.n_preempted >= 2 && s.n_preempted <= 4);
        assert_int_equal(s.n_no_cells, 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r[i].finish, KV_FINISH_LENGTH);
            assert_int_equal(r[i].answer.len, 200);
        }
        /* The oldest was never sent back: nothing came between its tokens but rounds (3 tokens and a short prompt, 1 ms
         * each). The youngest waited for it to finish. */
        assert_true(r[0].longest_gap_ms < 40);
        assert_true(r[2].longest_gap_ms > 200);
        for (int i = 0; i < 3; i++) request_free(&r[i]);
        world_close(&w);
    }
}

static void idle_slots_give_way_first(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (all_kinds[k] == KV_MEMORY_RECURRENT) continue;
        world w;
        world_params p = world_defaults(all_kinds[k]);
        p.engine.n_ctx = 256;
        p.sched.slot_similarity = 0.5f;
        world_open(&w, &p);
        dice d = {17};
        for (int i = 0; i < 4; i++) {
            request r;
            request_init(&r, NULL, 0);
            random_tokens(&r.prompt, &d, i < 3 ? 60 : 240);
            r.params.n_predict = 2;
            request_submit(&r, &w);
            finish_and_free(&w, &r);
        }
        kv_sched_stats s;
        kv_slot_view v[4];
        kv_sched_get_stats(&s, w.sched);
        kv_sched_get_slots(v, 4, w.sched);
        assert_int_equal(s.n_preempted, 0);
        assert_true(v[3].n_tokens >= 240);
        assert_true(v[2].n_tokens <= 16);
        /* with full attention the blocks before the missing ones stay: 60 → 32 or nothing */
        assert_true(v[0].n_tokens + v[1].n_tokens + v[2].n_tokens <= 16);
        world_close(&w);
    }
}

static void a_call_that_always_fails(void **state) {
    (void)state;
    static const kv_status status[] = {KV_ENGINE_DAMAGED, KV_ENGINE, KV_NO_CELLS};
    for (int k = 0; k < N_KINDS; k++) {
        for (int i = 0; i < 3; i++) {
            world w;
            world_params p = world_defaults(all_kinds[k]);
            world_open(&w, &p);
            request r[3];
            for (int n = 0; n < 3; n++) {
                request_init_text(&r[n], "a prompt");
                request_submit(&r[n], &w);
            }
            w.trouble.always = status[i];
            world_finish(&w, r, 3); /* ends: with an error for each, never in a loop */
            for (int n = 0; n < 3; n++) {
                assert_int_equal(r[n].finish, KV_FINISH_ERROR);
                assert_int_equal(r[n].error.status, status[i]);
                request_free(&r[n]);
            }
            w.trouble.always = KV_OK;
            request after;
            play(&after, &w, "another", "fine");
            world_finish(&w, &after, 1);
            assert_string_equal(kv_buf_str(&after.text), "fine");
            request_free(&after);
            world_close(&w);
        }
    }
}

static void recurrent_ids_stay_dense(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_RECURRENT);
    p.engine.n_slots = 6;
    world_open(&w, &p);
    /* slots 0 … 5; those with even numbers end early, and what they hold is worth keeping */
    request r[6];
    for (int i = 0; i < 6; i++) {
        char prompt[] = "prompt 0";
        prompt[7] = (char)('0' + i);
        request_init_text(&r[i], prompt);
        r[i].params.n_predict = i % 2 ? 60 : 3;
        submit_playing(&r[i], &w, "................................................................................");
    }
    while (r[0].finish == KV_FINISH_NONE || r[2].finish == KV_FINISH_NONE || r[4].finish == KV_FINISH_NONE) {
        world_step(&w);
        for (int i = 0; i < 6; i++) request_read(&r[i]);
    }
    uint64_t decodes = kv_fake_n_decodes(w.engine), passes = kv_fake_n_passes(w.engine);
    for (int i = 0; i < 10; i++) world_step(&w);
    assert_int_equal(kv_fake_n_decodes(w.engine) - decodes, 10);
    assert_int_equal(kv_fake_n_passes(w.engine) - passes, 10); /* one pass a call: no gaps */
    world_finish(&w, r, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(r[i].answer.len, r[i].params.n_predict);
    for (int i = 0; i < 6; i += 2) { /* what was idle moved, and is still there */
        char prompt[] = "prompt 0..more";
        prompt[7] = (char)('0' + i);
        request again;
        play(&again, &w, prompt, "x");
        world_finish(&w, &again, 1);
        assert_int_equal(again.timings.n_cached, 10);
        request_free(&again);
    }
    for (int i = 0; i < 6; i++) request_free(&r[i]);
    world_close(&w);
}

static void dump_names_everything(void **state) {
    (void)state;
    world w;
    world_params p = world_defaults(KV_MEMORY_FULL);
    p.engine.n_slots = 1;
    world_open(&w, &p);
    request a, b;
    play(&a, &w, "abc", "x");
    play(&b, &w, "def", "y");
    world_step(&w);
    kv_buf out = {0};
    kv_sched_dump(&out, w.sched);
    assert_non_null(strstr(out.data, "slot 0: "));
    assert_non_null(strstr(out.data, "waiting: gen 2"));
    kv_buf_free(&out);
    kv_slot_view v;
    kv_sched_get_slots(&v, 1, w.sched);
    assert_true(v.processing);
    assert_int_equal(v.gen_id, 1);
    finish_and_free(&w, &a);
    world_finish(&w, &b, 1);
    request_free(&b);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(bad_configurations),
        cmocka_unit_test(ends),
        cmocka_unit_test(context_limit_and_what_is_kept),
        cmocka_unit_test(time_limit_waits_for_a_newline),
        cmocka_unit_test(cancels),
        cmocka_unit_test(stop_and_free_end_everything),
        cmocka_unit_test(reuse_table),
        cmocka_unit_test(a_window_that_was_left_is_not_reused),
        cmocka_unit_test(which_slot),
        cmocka_unit_test(without_cache_prompt),
        cmocka_unit_test(conversations_come_back_to_any_slot),
        cmocka_unit_test(erase),
        cmocka_unit_test(what_a_slot_was_left_with),
        cmocka_unit_test(choices_compute_the_prompt_once),
        cmocka_unit_test(choices_without_slots_come_later),
        cmocka_unit_test(preemption),
        cmocka_unit_test(idle_slots_give_way_first),
        cmocka_unit_test(a_call_that_always_fails),
        cmocka_unit_test(recurrent_ids_stay_dense),
        cmocka_unit_test(dump_names_everything),
    };
    return cmocka_run_group_tests_name("sched/sched", tests, NULL, NULL);
}
