/* How the prompt of an infill is put together, on the fake's bytes: BOS is 256. */
#include "api/rig.h"

#include "api/native/infill.h"

enum { BOS = 256, PRE = 1, SUF = 2, MID = 3, REP = 4, SEP = 5 };

static rig r;

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

static void set_fim(kv_token rep, kv_token sep) {
    r.app.model->info.fim = (kv_fim_tokens){.pre = PRE, .suf = SUF, .mid = MID, .rep = rep, .sep = sep};
}

/* `wanted`: marks as digits in it, '$' for BOS, everything else as its byte; '1' to '5' are the FIM tokens. */
static void expect(const char *body, kv_infill_limits limits, const char *wanted) {
    json_t *v = json_of(body);
    kv_tokens got = {0};
    kv_error err = {0};
    kv_status st = kv_infill_prompt(&got, r.app.model, v, &limits, &err);
    if (st != KV_OK) fail_msg("%s: %s", body, err.message);
    kv_buf text = {0};
    for (size_t i = 0; i < got.len; i++)
        kv_buf_addf(&text, "%c",
                    got.data[i] == BOS   ? '$'
                    : got.data[i] <= SEP ? '0' + (int)got.data[i]
                                         : (int)got.data[i]);
    assert_string_equal(kv_buf_str(&text), wanted);
    kv_buf_free(&text);
    kv_tokens_free(&got);
    json_decref(v);
}

static const kv_infill_limits roomy = {.n_batch = 2048, .n_predict = -1, .n_ctx = 8192};

static void test_order(void **state) {
    (void)state;
    kv_infill_limits suffix_first = roomy;
    suffix_first.suffix_first = true;
    set_fim(-1, -1);
    expect("{'input_prefix':'ab','input_suffix':'cd'}", roomy, "$1ab2cd3");
    expect("{'input_prefix':'ab','input_suffix':'cd','prompt':'xy'}", roomy, "$1abxy2cd3");
    expect("{'input_prefix':'ab','input_suffix':'cd','prompt':'xy'}", suffix_first, "$2cd1abxy3");
    expect("{'input_prefix':['a',98],'input_suffix':[99],'prompt':null}", roomy, "$1ab2c3");
    expect("{'input_prefix':'','input_suffix':'','input_extra':[{'text':'t','filename':'f'}]}", roomy,
           "\n\n--- snippet ---\n\nt$123");
    set_fim(REP, SEP);
    expect("{'input_prefix':'a','input_suffix':'b'}", roomy, "4myproject\n5filename\n$1a2b3");
    expect("{'input_prefix':'a','input_suffix':'b','input_extra':[{'text':'t','filename':'f'},{'text':'u'}]}", roomy,
           "4myproject\n5f\nt5tmp\nu5filename\n$1a2b3");
}

static void test_cuts(void **state) {
    (void)state;
    set_fim(-1, -1);
    /* a batch of 16: of the prefix the last 12, of the suffix the first 4 - 2 less the prompt */
    kv_infill_limits small = {.n_batch = 16, .n_predict = 4, .n_ctx = 32};
    expect("{'input_prefix':'0abcdefghijklm','input_suffix':'pqrst'}", small, "$1bcdefghijklm2pq3");
    expect("{'input_prefix':'a','input_suffix':'pqrst','prompt':'x'}", small, "$1ax2p3");
    expect("{'input_prefix':'a','input_suffix':'pqrst','prompt':'xyz'}", small, "$1axyz23");
    /* 32 - 16 - 2 × 4 = 8 of the extra text */
    expect("{'input_prefix':'a','input_suffix':'b','input_extra':[{'text':'ABCDEFGHIJ'}]}", small, "CDEFGHIJ$1a2b3");
    small.n_ctx = 16;
    expect("{'input_prefix':'a','input_suffix':'b','input_extra':[{'text':'ABCDEFGHIJ'}]}", small, "$1a2b3");
}

static void test_no_tokens(void **state) {
    (void)state;
    json_t *v = json_of("{'input_prefix':'a','input_suffix':'b'}");
    kv_tokens got = {0};
    kv_error err = {0};
    r.app.model->info.fim = (kv_fim_tokens){.pre = 1, .suf = -1, .mid = -1, .rep = -1, .sep = -1};
    assert_int_equal(kv_infill_prompt(&got, r.app.model, v, &roomy, &err), KV_UNSUPPORTED);
    assert_string_equal(err.message,
                        "Infill is not supported by this model: suffix token is missing. middle token is missing. ");
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_no_tokens),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
