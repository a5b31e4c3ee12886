/* Timings, usage, totals, ids, response_fields. */
#include "api/rig.h"

#include "api/shapes.h"

static double real_at(const json_t *v, const char *path) {
    return json_number_value(at(v, path));
}

static void test_timings(void **state) {
    (void)state;
    /* the first token comes with the prompt's last batch: 10 tokens are 9 steps */
    kv_timings t = {.n_cached = 5, .n_prompt = 20, .n_decoded = 10, .prompt_ms = 100, .decode_ms = 90};
    json_t *o = kv_shape_timings(&t);
    assert_int_equal(int_at(o, "cache_n"), 5);
    assert_int_equal(int_at(o, "prompt_n"), 20);
    assert_true(real_at(o, "prompt_per_token_ms") == 5);
    assert_true(real_at(o, "prompt_per_second") == 200);
    assert_int_equal(int_at(o, "predicted_n"), 10);
    assert_true(real_at(o, "predicted_per_token_ms") == 10);
    assert_true(real_at(o, "predicted_per_second") == 100);
    json_decref(o);
    t = (kv_timings){.n_decoded = 1};
    o = kv_shape_timings(&t);
    assert_true(real_at(o, "predicted_per_second") == 0);
    assert_true(real_at(o, "prompt_per_second") == 0);
    assert_true(real_at(o, "prompt_per_token_ms") == 0);
    json_decref(o);
}

/* Two prompts with two choices each: the second choice takes the prompt over from the first. */
static void test_usage(void **state) {
    (void)state;
    kv_tokens prompts[2] = {{.len = 100}, {.len = 50}};
    kv_choice c[4] = {
        {.prompt = 0, .timings = {.n_cached = 40, .n_prompt = 60, .n_decoded = 7, .prompt_ms = 6, .decode_ms = 10}},
        {.prompt = 0, .timings = {.n_cached = 99, .n_prompt = 1, .n_decoded = 5, .prompt_ms = 1, .decode_ms = 30}},
        {.prompt = 1, .timings = {.n_cached = 49, .n_prompt = 1, .n_decoded = 1, .prompt_ms = 1}},
        {.prompt = 1, .timings = {.n_cached = 0, .n_prompt = 50, .n_decoded = 2, .prompt_ms = 5, .decode_ms = 1}},
    };
    kv_job j = {.prompts = {.list = prompts, .n = 2}, .choice = c, .n_choices = 4};
    kv_timings t = kv_shape_total(&j);
    assert_int_equal(t.n_cached, 40);
    assert_int_equal(t.n_prompt, 110);
    assert_int_equal(t.n_decoded, 15);
    assert_true(t.prompt_ms == 11 && t.decode_ms == 30);
    json_t *o = kv_shape_usage(&j);
    assert_int_equal(int_at(o, "prompt_tokens"), 150);
    assert_int_equal(int_at(o, "completion_tokens"), 15);
    assert_int_equal(int_at(o, "total_tokens"), 165);
    assert_int_equal(int_at(o, "prompt_tokens_details.cached_tokens"), 40);
    json_decref(o);
}

static void test_ids(void **state) {
    (void)state;
    char a[64], b[64];
    kv_shape_id(a, sizeof a, "chatcmpl-");
    kv_shape_id(b, sizeof b, "chatcmpl-");
    assert_int_equal(strlen(a), strlen("chatcmpl-") + 32);
    assert_int_equal(strspn(a + 9, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 32);
    assert_string_not_equal(a, b);
}

static void test_pick(void **state) {
    (void)state;
    json_t *from = json_of("{'a':1,'b':{'c':{'d':2}},'e':[3]}");
    json_t *paths = json_of("['a','b/c','b/c/d','nope','a/x','e/0','','b//c']");
    json_t *out = kv_shape_pick(from, paths), *want = json_of("{'a':1,'b/c':{'d':2},'b/c/d':2}");
    assert_true(json_equal(out, want));
    json_decref(from);
    json_decref(paths);
    json_decref(out);
    json_decref(want);
}

/* Probabilities of tokens behind the cut of a stop string are not told. */
static void test_probs_behind_stop(void **state) {
    (void)state;
    rig r = {0};
    rig_open(&r);
    kv_job j = {.app = &r.app};
    kv_token tokens[] = {'a', 'b', 'S', 'T'};
    for (int visible = 0; visible <= 3; visible++) {
        kv_choice c = {.done = true, .finish = KV_FINISH_WORD, .probs = json_of("[0,1,2,3]")};
        for (int i = 0; i < 4; i++) kv_tokens_add(&c.tokens, tokens[i]);
        kv_buf_add(&c.text, "abS", (size_t)visible);
        json_t *got = kv_shape_take_probs(&j, &c);
        assert_int_equal(json_array_size(got), visible);
        assert_null(c.probs);
        json_decref(got);
        /* the first two were told before: the rest is what is pending */
        c.probs = json_of("[2,3]");
        got = kv_shape_take_probs(&j, &c);
        assert_int_equal(json_array_size(got), visible > 2 ? visible - 2 : 0);
        json_decref(got);
        kv_tokens_free(&c.tokens);
        kv_buf_free(&c.text);
    }
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timings),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_pick),
        cmocka_unit_test(test_probs_behind_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
