/* The Responses API below HTTP: tokens taken again, items into messages, errors in its own words; and streams whose
 * engine fails. What a client sees is tested with OpenAI's own (tests/http-node/responses.test.mjs). */
#include "api/rig.h"

#include "api/responses/responses.h"

static rig r;

static int open_rig(void **state) {
    (void)state;
    r = (rig){0};
    rig_open(&r);
    r.opt.test_sampler = true;
    return 0;
}

static int close_rig(void **state) {
    (void)state;
    kv_stored *responses = r.app.responses;
    rig_close(&r);
    kv_stored_close(responses);
    return 0;
}

/* ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A vocabulary in which texts have several spellings: 0…4 are "a", "b", "ab", "ba", "c"; 5 is empty; 6 and 7 end a
 * generation. */
static void piece(kv_buf *out, const kv_model *m, kv_token token, bool special) {
    (void)m, (void)special;
    static const char *const pieces[] = {"a", "b", "ab", "ba", "c", "", "<6>", "<7>"};
    kv_buf_adds(out, pieces[token]);
}
static bool is_end(const kv_model *m, kv_token token) {
    (void)m;
    return token == 6 || token == 7;
}

static const kv_model_ops ops = {.piece = piece, .is_eog = is_end};
static const kv_model spelling = {.ops = &ops, .info = {.n_vocab = 8}};

/* answers: of `before`, n of them. */
static void check_answers(const char *before, kv_response_answer *answers, size_t n, const char *prompt,
                          const char *expected) {
    kv_response_tokens b = {.answers = answers, .n = n};
    kv_tokens p = {0};
    kv_buf got = {0};
    for (const char *c = before; *c; c++) kv_tokens_add(&b.all, *c - '0');
    for (const char *c = prompt; *c; c++) kv_tokens_add(&p, *c - '0');
    kv_response_reuse(&p, &b, &spelling);
    for (size_t i = 0; i < p.len; i++) kv_buf_addf(&got, "%d", (int)p.data[i]);
    if (strcmp(kv_buf_str(&got), expected) != 0)
        fail_msg("%s before %s gave %s, not %s", before, prompt, kv_buf_str(&got), expected);
    kv_tokens_free(&b.all);
    kv_tokens_free(&p);
    kv_buf_free(&got);
}

static void check_reuse(const char *before, const char *prompt, const char *expected) {
    check_answers(before, NULL, 0, prompt, expected);
}

static void test_answers_as_sampled(void **state) {
    (void)state;
    kv_response_answer one[] = {{3, 7, 0}};                    /* the prompt 0 0 1, the answer 0 4 4 6 */
    check_answers("0010446", one, 1, "00104641", "001044641"); /* c for c c */
    check_answers("0010446", one, 1, "0014641", "001044641");  /* nothing in common */
    check_answers("0010446", one, 1, "001641", "001044641");   /* nothing at all */
    check_answers("0010446", one, 1, "00104461", "00104461");
    check_answers("0010446", one, 1, "001047641", "001047641"); /* another end comes first */
    check_answers("0010946", one, 1, "00104641", "00104641");   /* 9 is no token of this model */
    check_answers("0010446", one, 1, "00104", "00104");         /* no end: it is being continued */
    check_answers("0010446", one, 1, "014641", "014641");       /* apart in the prompt already: not this conversation */
    check_answers("001044", (kv_response_answer[]){{3, 6, 0}}, 1, "0010461", "0010461"); /* cut off by a limit */
    /* two tokens of thought: left out by the template, or there and something behind them is spelled otherwise */
    kv_response_answer thought[] = {{3, 7, 2}};
    check_answers("0010416", thought, 1, "001161", "001161");
    check_answers("0010416", thought, 1, "0010461", "00104161");
    /* two answers, both spelled otherwise */
    kv_response_answer two[] = {{1, 4, 0}, {6, 9, 0}};
    check_answers("044600446", two, 2, "0460146011", "04460146011"); /* apart behind the first */
    check_answers("044600116", two, 2, "0460014611", "04460011611");
}

static void test_reuse(void **state) {
    (void)state;
    check_reuse("", "01", "01");
    check_reuse("01", "", "");
    check_reuse("012", "0124", "0124");
    check_reuse("01", "24", "014");       /* a b | ab c: the end is common */
    check_reuse("2", "014", "24");        /* the other way round */
    check_reuse("031", "204", "034");     /* a ba | b, ab a | c: common up to "aba" */
    check_reuse("0131", "0120", "0120");  /* a b ba b | a b ab a */
    check_reuse("234", "2014", "2014");   /* ab ba c | ab a b c */
    check_reuse("0914", "0104", "0104");  /* 9 is no token of this model */
    check_reuse("0154", "0140", "01540"); /* an empty piece goes along */
}

/* Random spellings: the bytes stay, what is common of the tokens is taken from `before`. */
static void test_reuse_keeps_the_bytes(void **state) {
    (void)state;
    unsigned seed = (unsigned)kv_now_us(kv_clock_real());
    const char *given = getenv("KVASIR_SEED");
    if (given) seed = (unsigned)strtoul(given, NULL, 10);
    print_message("KVASIR_SEED=%u\n", seed);
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        kv_response_tokens before = {0};
        kv_tokens b = {0}, p = {0};
        kv_buf was = {0}, is = {0}, first = {0};
        int n_b = rand() % 8, n_p = rand() % 10, kinds = 5 + round % 2;
        for (int i = 0; i < n_b; i++) kv_tokens_add(&b, rand() % 100 == 0 ? 8 + rand() % 3 : rand() % kinds);
        for (int i = 0; i < n_p; i++) kv_tokens_add(&p, rand() % kinds);
        if (rand() % 2) /* mostly the same text */
            for (int i = 0; i < n_b && i < n_p && b.data[i] < 6; i++) p.data[i] = b.data[i];
        for (size_t i = 0; i < p.len; i++) piece(&was, &spelling, p.data[i], true);
        before.all = b;
        kv_response_reuse(&p, &before, &spelling);
        for (size_t i = 0; i < p.len; i++) piece(&is, &spelling, p.data[i], true);
        assert_string_equal(kv_buf_str(&was), kv_buf_str(&is));
        size_t common = kv_tokens_common(b.data, b.len, p.data, p.len);
        for (size_t i = 0; i < b.len && b.data[i] < 6; i++) piece(&first, &spelling, b.data[i], true);
        bool whole = common == b.len, spells = true;
        for (size_t i = 0; i < b.len; i++) spells = spells && b.data[i] < 6;
        /* Where `before` is not in front with all its tokens, its text is not the prompt's, or ends inside a token. */
        if (kinds == 5 && !whole && spells && was.len == first.len)
            assert_int_not_equal(strcmp(kv_buf_str(&was), kv_buf_str(&first)), 0);
        kv_tokens_free(&b);
        kv_tokens_free(&p);
        kv_buf_free(&was);
        kv_buf_free(&is);
        kv_buf_free(&first);
    }
}

/* ── items into messages ───────────────────────────────────────────────────────────────────────────────────────── */

static void check_messages(const char *body, const char *expected) {
    json_t *b = json_of(body), *e = json_of(expected);
    kv_response *read;
    kv_error err = {0};
    if (kv_response_read(&read, b, "", &r.app, &err) != KV_OK) fail_msg("%s: %s", body, err.message);
    json_t *messages = json_object_get(read->chat, "messages");
    if (!json_equal(messages, e)) {
        char *got = json_dumps(messages, JSON_ENCODE_ANY);
        fail_msg("%s\ngave %s\nnot  %s", body, got, expected);
    }
    kv_response_free(read);
    json_decref(b);
    json_decref(e);
}

static void test_messages(void **state) {
    (void)state;
    check_messages("{'input':'hi'}", "[{'role':'user','content':'hi'}]");
    check_messages("{'input':'hi','instructions':'be'}",
                   "[{'role':'system','content':'be'},{'role':'user','content':'hi'}]");
    check_messages("{'input':[{'role':'developer','content':'a'},{'role':'system','content':'b'},{'role':'user',"
                   "'content':[{'type':'input_text','text':'x'},{'type':'input_text','text':'y'}]},"
                   "{'role':'developer','content':'later'}]}",
                   "[{'role':'system','content':'a\\n\\nb'},{'role':'user','content':[{'type':'text','text':'x'},"
                   "{'type':'text','text':'y'}]},{'role':'developer','content':'later'}]");
    check_messages(
        "{'input':[{'role':'user','content':'q'},{'type':'reasoning','summary':[],'content':[{'type':"
        "'reasoning_text','text':'hm'}]},{'role':'assistant','content':'I '},{'role':'assistant','content':"
        "'see'},{'type':'function_call','name':'f','call_id':'1','arguments':'{}'},{'type':'custom_tool_call',"
        "'name':'g','call_id':'2','input':'raw'},{'type':'function_call_output','call_id':'2','output':'two'},"
        "{'type':'function_call_output','call_id':'1','output':[{'type':'input_text','text':'one'}]}]}",
        "[{'role':'user','content':'q'},{'role':'assistant','reasoning_content':'hm','content':'I see',"
        "'tool_calls':[{'id':'1','type':'function','function':{'name':'f','arguments':'{}'}},{'id':'2','type':"
        "'function','function':{'name':'g','arguments':'{\\\"input\\\":\\\"raw\\\"}'}}]},{'role':'tool',"
        "'tool_call_id':'2','name':'g','content':'two'},{'role':'tool','tool_call_id':'1','name':'f','content':"
        "'one'}]");
    check_messages("{'input':[{'role':'user','content':'q'},{'type':'function_call','namespace':'mcp__x__','name':'f',"
                   "'call_id':'1','arguments':{'a':1}},{'type':'function_call_output','call_id':'1','output':''}]}",
                   "[{'role':'user','content':'q'},{'role':'assistant','content':'','tool_calls':[{'id':'1','type':"
                   "'function','function':{'name':'mcp__x__f','arguments':'{\\\"a\\\":1}'}}]},{'role':'tool',"
                   "'tool_call_id':'1','name':'mcp__x__f','content':''}]");
    check_messages("{'input':'a\\u0000b'}", "[{'role':'user','content':'a\\u0000b'}]");
    check_messages("{'input':[{'role':'assistant','content':'a\\u0000'},{'role':'assistant','content':'b'}]}",
                   "[{'role':'assistant','content':'a\\u0000b'}]");
}

/* Many items that add to one text. */
static void test_many_items(void **state) {
    (void)state;
    enum { N = 20000 };
    json_t *input = json_array(), *parts = json_array();
    kv_buf system = {0}, thought = {0}, said = {0};
    kv_buf_adds(&system, "be");
    for (int i = 0; i < N; i++) {
        char text[16];
        snprintf(text, sizeof text, "t%d", i);
        kv_buf_addf(&system, "\n\n%s", text);
        json_array_append_new(input, json_pack("{s:s, s:s}", "role", "developer", "content", text));
    }
    json_array_append_new(input, json_pack("{s:s, s:s}", "role", "user", "content", "q"));
    for (int i = 0; i < N; i++) {
        char text[16];
        snprintf(text, sizeof text, "t%d", i);
        kv_buf_addf(&thought, "%s%s", i ? "\n\n" : "", text);
        kv_buf_addf(&said, "%s", text);
        json_array_append_new(input, json_pack("{s:s, s:[{s:s, s:s}]}", "type", "reasoning", "summary", "type",
                                               "summary_text", "text", text));
        json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "output_text", "text", text));
    }
    json_array_append_new(input, json_pack("{s:s, s:o}", "role", "assistant", "content", parts));
    json_array_append_new(input, json_pack("{s:s, s:s}", "role", "user", "content", "q"));
    json_array_append_new(input, json_pack("{s:s, s:s}", "role", "assistant", "content", "other"));
    json_t *body = json_pack("{s:s, s:o}", "instructions", "be", "input", input);
    kv_response *read;
    kv_error err = {0};
    if (kv_response_read(&read, body, "", &r.app, &err) != KV_OK) fail_msg("%s", err.message);
    json_t *messages = json_object_get(read->chat, "messages");
    assert_int_equal(json_array_size(messages), 5);
    assert_string_equal(str_at(messages, "0.content"), kv_buf_str(&system));
    assert_string_equal(str_at(messages, "2.reasoning_content"), kv_buf_str(&thought));
    assert_string_equal(str_at(messages, "2.content"), kv_buf_str(&said));
    assert_string_equal(str_at(messages, "4.content"), "other");
    assert_null(at(messages, "4.reasoning_content"));
    kv_response_free(read);
    json_decref(body);
    kv_buf_free(&system);
    kv_buf_free(&thought);
    kv_buf_free(&said);
}

/* ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void check_renamed(const char *field, const char *message, const char *new_field, const char *new_message) {
    kv_response one = {.origin = json_pack("[i,i,i]", -1, 0, 4)};
    kv_error err;
    kv_fail_field(&err, field, "%s", message);
    kv_response_rename_error(&err, &one);
    assert_string_equal(err.field, new_field);
    assert_string_equal(err.message, new_message);
    json_decref(one.origin);
}

static void test_errors_in_its_own_words(void **state) {
    (void)state;
    check_renamed("messages[2].content[1]", "'messages[2].content[1]' is bad", "input[4].content[1]",
                  "'input[4].content[1]' is bad");
    check_renamed("messages[0]", "'messages[0]' is bad", "input", "'input' is bad");
    check_renamed("messages[9]", "'messages[9]' is bad", "input", "'input' is bad");
    check_renamed("messages", "template: no", "input", "template: no");
    check_renamed("response_format.json_schema.schema", "'response_format.json_schema.schema' is bad",
                  "text.format.schema", "'text.format.schema' is bad");
    check_renamed("max_tokens", "'max_tokens', max_tokens", "max_output_tokens",
                  "'max_output_tokens', max_output_tokens");
    check_renamed("max_tokens_more", "x", "max_tokens_more", "x");
    check_renamed("temperature", "'temperature' is bad", "temperature", "'temperature' is bad");
    char longest[700] = "";
    for (int i = 0; i < 60; i++) strcat(longest, "max_tokens ");
    kv_response one = {0};
    kv_error err;
    kv_fail_field(&err, "max_tokens", "%s", longest);
    kv_response_rename_error(&err, &one); /* longer than there is room */
    assert_true(strlen(err.message) < sizeof err.message);
}

/* The events of a stream in which each has its name: "event: …" before "data: …". */
static json_t *rig_stream_named(rig *rig, const char *path, const char *body) {
    answer a = {0};
    if (rig_ask(&a, rig, path, body) != 200) fail_msg("%s: %d %s", path, a.status, kv_buf_str(&a.body));
    json_t *list = json_array();
    for (const char *p = kv_buf_str(&a.body), *end; *p; p = end + 2) {
        const char *data = strstr(p, "\ndata: ");
        end = strstr(p, "\n\n");
        if (strncmp(p, "event: ", 7) != 0 || !data || !end || data > end) fail_msg("no event: %s", p);
        json_t *v = json_loadb(data + 7, (size_t)(end - data - 7), JSON_ALLOW_NUL, NULL);
        assert_int_equal(strncmp(p + 7, str_at(v, "type"), (size_t)(data - p - 7)), 0);
        json_array_append_new(list, v);
    }
    free_answer(&a);
    return list;
}

/* ── served ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_without_a_store(void **state) {
    (void)state;
    rig_serve(&r);
    json_t *v = rig_json(&r, "/v1/responses", "{'input':'hi','kvasir':{'play':'yes'}}");
    assert_string_equal(str_at(v, "output.0.content.0.text"), "yes");
    assert_true(json_is_false(at(v, "store")));
    json_decref(v);
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, "/v1/responses/resp_x", NULL), 404);
    free_answer(&a);
    assert_int_equal(rig_ask(&a, &r, "/v1/responses", "{'input':'hi','previous_response_id':'resp_x'}"), 404);
    assert_non_null(strstr(a.body.data, "previous_response_not_found"));
    free_answer(&a);
    assert_int_equal(rig_ask(&a, &r, "/v1/responses", "{'input':[{'type':'item_reference','id':'x'}]}"), 404);
    free_answer(&a);
    assert_int_equal(rig_ask(&a, &r, "/v1/responses/resp_x/input_items", NULL), 404);
    free_answer(&a);
}

static void test_engine_fails_in_a_stream(void **state) {
    (void)state;
    r.app.responses = kv_stored_open(&(kv_stored_config){0});
    rig_serve(&r);
    rig_set(&r, false, true);
    json_t *events = rig_stream_named(&r, "/v1/responses", "{'input':'hi','stream':true}");
    size_t n = json_array_size(events);
    assert_int_equal(n, 4);
    static const char *const types[] = {"response.created", "response.in_progress", "response.failed", "error"};
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(str_at(json_array_get(events, i), "type"), types[i]);
        assert_int_equal(int_at(json_array_get(events, i), "sequence_number"), i);
    }
    assert_string_equal(str_at(events, "2.response.status"), "failed");
    assert_string_equal(str_at(events, "2.response.error.code"), "server_error");
    assert_true(strlen(str_at(events, "3.message")) > 0);
    json_decref(events);
    kv_stored_stats stats;
    kv_stored_get_stats(&stats, r.app.responses);
    assert_int_equal(stats.responses, 0);
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, "/v1/responses", "{'input':'hi'}"), 500);
    free_answer(&a);
    rig_set(&r, false, false);
    json_t *v = rig_json(&r, "/v1/responses", "{'input':'hi','kvasir':{'play':'yes'}}");
    assert_true(json_is_true(at(v, "store")));
    json_decref(v);
}

/* Items that were stored, and are not what they were: left out. */
static void test_damaged_items(void **state) {
    (void)state;
    static const char *const damaged[] = {
        "{\"type\":\"message\"}",
        "{\"type\":\"message\",\"role\":5,\"content\":[]}",
        "{\"type\":\"function_call\"}",
        "{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}",
        "{\"type\":\"function_call\",\"name\":\"f\",\"call_id\":\"c\",\"arguments\":{}}",
        "{\"type\":\"custom_tool_call\",\"name\":\"f\",\"call_id\":\"c\"}",
        "{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"input\":\"\"}",
        "{\"type\":\"local_shell_call\",\"call_id\":\"c\"}",
        "{\"type\":7}",
        "{}"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        json_t *items = json_array(), *messages, *origin;
        kv_error err = {0};
        json_array_append_new(items, json_loads(damaged[i], 0, NULL));
        json_array_append_new(items, json_pack("{s:s, s:s, s:s}", "type", "message", "role", "user", "content", "hi"));
        if (kv_response_messages(&messages, &origin, NULL, items, 2, &err) != KV_OK)
            fail_msg("%s: %s", damaged[i], err.message);
        if (json_array_size(messages) != 1) fail_msg("%s gave %zu messages", damaged[i], json_array_size(messages));
        json_decref(messages);
        json_decref(origin);
        json_decref(items);
    }
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, open_rig, close_rig)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_reuse_keeps_the_bytes),
        cmocka_unit_test(test_damaged_items),
        cmocka_unit_test(test_answers_as_sampled),
        T(test_messages),
        T(test_many_items),
        cmocka_unit_test(test_errors_in_its_own_words),
        T(test_without_a_store),
        T(test_engine_fails_in_a_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
