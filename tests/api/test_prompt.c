/* `prompt` in all its spellings. The fake's vocabulary: bytes are tokens 0-255, BOS is 256, 261 tokens in all. */
#include "api/rig.h"

#include "api/prompt.h"

static rig r;

static const struct {
    const char *body;
    int n;
    const char *tokens; /* of all prompts, "|" between them */
} good[] = {
    {"'ab'", 1, "256 97 98"},
    {"[97,98]", 1, "97 98"},
    {"[97.0]", 1, "97"},
    {"[1,'b',2]", 1, "1 98 2"},
    {"[97,{}]", 0, NULL},
    {"{'prompt_string':'a'}", 1, "256 97"},
    {"['a','b']", 2, "256 97|256 98"},
    {"[[1,2],'a',{'prompt_string':'b'},[3,'c'],['d',4]]", 5, "1 2|256 97|256 98|3 99|256 100 4"},
    {"''", 1, "256"}, /* BOS alone */
    {"'<|im_start|>'", 1, "256 258"},
    {"'a\\u0000b'", 1, "256 97 0 98"},
};

static void test_good(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        json_t *v = json_of(good[i].body);
        kv_prompts p;
        kv_error err = {0};
        kv_status st = kv_prompts_parse(&p, r.app.model, v, &err);
        json_decref(v);
        if (!good[i].tokens) {
            assert_int_equal(st, KV_INVALID);
            continue;
        }
        if (st != KV_OK) fail_msg("%s: %s", good[i].body, err.message);
        kv_buf text = {0};
        for (int k = 0; k < p.n; k++)
            for (size_t t = 0; t < p.list[k].len; t++)
                kv_buf_addf(&text, "%s%d", t ? " " : k ? "|" : "", (int)p.list[k].data[t]);
        assert_int_equal(p.n, good[i].n);
        assert_string_equal(kv_buf_str(&text), good[i].tokens);
        kv_buf_free(&text);
        kv_prompts_free(&p);
    }
}

/* Ids of tokens are told from texts, which may be spelled by other tokens. */
static void test_given(void **state) {
    (void)state;
    static const bool want[] = {true, false, false, true, true, true};
    json_t *v = json_of("[[1,2],'a',{'prompt_string':'b'},[3,'c'],['d',4],{'prompt_string':[5]}]");
    kv_prompts p;
    assert_int_equal(kv_prompts_parse(&p, r.app.model, v, NULL), KV_OK);
    for (int i = 0; i < p.n; i++) assert_int_equal(p.is_given[i], want[i]);
    assert_int_equal(p.n, sizeof want / sizeof *want);
    kv_prompts_free(&p);
    json_decref(v);
}

static const struct {
    const char *body, *field;
} bad[] = {
    {"null", "prompt"},
    {"5", "prompt"},
    {"true", "prompt"},
    {"[]", "prompt"},
    {"{}", "prompt"},
    {"{'prompt_string':5}", "prompt.prompt_string"},
    {"{'prompt_string':'a','multimodal_data':['x']}", "prompt.multimodal_data"},
    {"[261]", "prompt[0]"},
    {"[-1]", "prompt[0]"},
    {"[1,99999999999]", "prompt[1]"},
    {"[1,1.5]", "prompt[1]"},
    {"[1,null]", "prompt[1]"},
    {"[[]]", "prompt[0]"},
    {"[true]", "prompt[0]"},
    {"['a',[1,261]]", "prompt[1][1]"},
    {"['a',{'prompt_string':[]}]", "prompt[1].prompt_string"},
    {"['a',{'multimodal_data':[1]}]", "prompt[1].multimodal_data"},
};

static void test_bad(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *v = json_of(bad[i].body);
        kv_prompts p;
        kv_error err = {0};
        if (kv_prompts_parse(&p, r.app.model, v, &err) != KV_INVALID) fail_msg("accepted: %s", bad[i].body);
        assert_string_equal(err.field, bad[i].field);
        assert_null(p.list);
        json_decref(v);
    }
    kv_prompts p;
    kv_error err = {0};
    json_t *many = json_array();
    for (int i = 0; i <= KV_PROMPTS_MAX; i++) json_array_append_new(many, json_string("a"));
    assert_int_equal(kv_prompts_parse(&p, r.app.model, many, &err), KV_INVALID);
    json_decref(many);
    assert_int_equal(kv_prompts_parse(&p, r.app.model, NULL, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "required"));
}

static int open_rig(void **state) {
    (void)state;
    rig_open(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    rig_close(&r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_given),
                                       cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
