/* Ollama's bodies into OpenAI's, durations, names, errors. */
#include "api/rig.h"

#include "api/gate.h"
#include "api/ollama/ollama.h"

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

static kv_status read_text(kv_ollama **o, json_t **openai, const char *body, kv_error *err) {
    json_t *v = json_of(body);
    kv_status st = kv_ollama_read(o, openai, v, false, &r.app, err);
    json_decref(v);
    return st;
}

static void durations(void **state) {
    (void)state;
    static const struct {
        const char *json;
        bool right;
        double seconds;
    } rows[] = {
        {"300", true, 300},     {"-1", true, -1},
        {"0", true, 0},         {"2.5", true, 2.5},
        {"'5m'", true, 300},    {"'1h30m'", true, 5400},
        {"'1.5h'", true, 5400}, {"'300ms'", true, 0.3},
        {"'-1'", true, -1},     {"'-1m'", true, -60},
        {"'0'", true, 0},       {"'0s'", true, 0},
        {"'60'", true, 60},     {"'10\\u00b5s'", true, 1e-5},
        {"''", false, 0},       {"'-'", false, 0},
        {"'m'", false, 0},      {"'5x'", false, 0},
        {"'5m3'", false, 0},    {"'5 m'", false, 0},
        {"'0x10s'", false, 0},  {"'inf'", false, 0},
        {"'nan'", false, 0},    {"true", false, 0},
        {"[]", false, 0},       {"{}", false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *v = json_of(rows[i].json);
        double seconds = 0;
        if (kv_ollama_seconds(&seconds, v) != rows[i].right) fail_msg("%s", rows[i].json);
        if (rows[i].right) assert_true(seconds > rows[i].seconds - 1e-9 && seconds < rows[i].seconds + 1e-9);
        json_decref(v);
    }
}

static void names(void **state) {
    (void)state;
    kv_error err = {0};
    assert_int_equal(kv_ollama_check_model(&r.app, "whatever", &err), KV_OK);
    assert_false(kv_ollama_knows_model(&r.app, "whatever"));
    r.opt.strict_model = true;
    assert_int_equal(kv_ollama_check_model(&r.app, "fake-model", &err), KV_OK);
    assert_int_equal(kv_ollama_check_model(&r.app, "fake-model:latest", &err), KV_OK);
    assert_int_equal(kv_ollama_check_model(&r.app, "fake-model:7b", &err), KV_NOT_FOUND);
    assert_non_null(strstr(err.message, "not found"));
    assert_int_equal(kv_ollama_check_model(&r.app, ":latest", &err), KV_NOT_FOUND);
}

static void options_become_openai_s(void **state) {
    (void)state;
    kv_ollama *o;
    json_t *openai;
    kv_error err = {0};
    const char *body = "{'model':'m','stream':false,'keep_alive':'0s','think':'low','format':'json','options':{"
                       "'temperature':0.5,'num_predict':-2,'repeat_last_n':-1,'stop':['a'],'num_ctx':4096,'num_gpu':1,"
                       "'seed':3.0}}";
    assert_int_equal(read_text(&o, &openai, body, &err), KV_OK);
    assert_string_equal(o->model, "m");
    assert_true(o->unload && o->thinks && !o->stream);
    assert_int_equal(json_array_size(o->warnings), 2); /* no sleep here, and a smaller context */
    assert_int_equal(int_at(openai, "n_predict"), -1);
    assert_int_equal(int_at(openai, "repeat_last_n"), 1024);
    assert_int_equal(int_at(openai, "seed"), 3);
    assert_string_equal(str_at(openai, "stop.0"), "a");
    assert_string_equal(str_at(openai, "reasoning_effort"), "low");
    assert_true(json_is_true(at(openai, "chat_template_kwargs.enable_thinking")));
    assert_string_equal(str_at(openai, "response_format.type"), "json_object");
    assert_null(json_object_get(openai, "num_ctx"));
    assert_null(json_object_get(openai, "model"));
    kv_ollama_free(o);
    json_decref(openai);
    assert_int_equal(read_text(&o, &openai, "{'options':{'top_k':'x'}}", &err), KV_INVALID);
    assert_string_equal(err.field, "options.top_k");
    assert_null(o);
    assert_null(openai);
}

static void messages_become_openai_s(void **state) {
    (void)state;
    kv_error err = {0};
    json_t *out,
        *in = json_of(
            "[{'role':'User','content':'hi'},"
            "{'role':'assistant','thinking':'hm','tool_calls':[{'function':{'name':'a','arguments':{}}},"
            "{'function':{'name':'b','arguments':{'x':1}}},{'id':'mine','function':{'name':'a'}}]},"
            "{'role':'tool','tool_name':'b','content':'B'},{'role':'tool','content':'A'},"
            "{'role':'tool','tool_call_id':'mine','content':'A2'},{'role':'tool','tool_name':'z','content':'Z'}]");
    assert_int_equal(kv_ollama_messages(&out, in, &r.app, &err), KV_OK);
    assert_string_equal(str_at(out, "0.role"), "user");
    assert_string_equal(str_at(out, "1.content"), "");
    assert_string_equal(str_at(out, "1.reasoning_content"), "hm");
    assert_string_equal(str_at(out, "1.tool_calls.0.id"), "call00001");
    assert_string_equal(str_at(out, "1.tool_calls.1.id"), "call00002");
    assert_string_equal(str_at(out, "2.tool_call_id"), "call00002"); /* by name */
    assert_string_equal(str_at(out, "3.tool_call_id"), "call00001"); /* the first that is open */
    assert_string_equal(str_at(out, "3.name"), "a");
    assert_string_equal(str_at(out, "4.tool_call_id"), "mine");
    assert_string_equal(str_at(out, "4.name"), "a");
    assert_null(at(out, "5.tool_call_id")); /* answers nothing */
    assert_string_equal(str_at(out, "5.name"), "z");
    json_decref(out);
    json_decref(in);
}

/* Many calls in one message, some of one name or one id, answered in another order. */
static void many_calls_are_answered(void **state) {
    (void)state;
    enum { N = 20000 };
    kv_error err = {0};
    json_t *calls = json_array(), *in = json_array(), *out;
    json_array_append_new(in, json_pack("{s:s, s:O}", "role", "assistant", "tool_calls", calls));
    for (int i = 0; i < N; i++) {
        char id[16], name[16];
        snprintf(id, sizeof id, "i%d", i);
        snprintf(name, sizeof name, "n%d", i % 2);
        json_array_append_new(calls, json_pack("{s:s, s:{s:s}}", "id", id, "function", "name", name));
    }
    json_decref(calls);
    for (int i = 0; i < N / 4;
         i++) { /* the last quarter by id, from its end; then each of the name n1; then the rest */
        char id[16];
        snprintf(id, sizeof id, "i%d", N - 1 - i);
        json_array_append_new(in, json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", id, "content", "x"));
    }
    for (int i = 0; i < N / 2; i++)
        json_array_append_new(in, json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_name", "n1", "content", "x"));
    for (int i = 0; i < N / 2; i++) json_array_append_new(in, json_pack("{s:s, s:s}", "role", "tool", "content", "x"));
    assert_int_equal(kv_ollama_messages(&out, in, &r.app, &err), KV_OK);
    for (int i = 0; i < N / 4; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(out, 1 + i), "name")),
                            i % 2 ? "n0" : "n1");
    for (int i = 0; i < N / 2; i++) {
        const json_t *by_name = json_array_get(out, 1 + N / 4 + i), *first = json_array_get(out, 1 + 3 * N / 4 + i);
        char id[16];
        snprintf(id, sizeof id, "i%d", 2 * i + 1);
        const char *got = json_string_value(json_object_get(by_name, "tool_call_id"));
        if (i < N * 3 / 8) assert_string_equal(got, id);
        else assert_null(got); /* all of the name are answered */
        snprintf(id, sizeof id, "i%d", 2 * i);
        got = json_string_value(json_object_get(first, "tool_call_id"));
        if (i < N * 3 / 8) assert_string_equal(got, id);
        else assert_null(got);
    }
    json_decref(out);
    while (json_array_size(in) <= 100000) json_array_append(in, json_array_get(in, 1));
    assert_int_equal(kv_ollama_messages(&out, in, &r.app, &err), KV_INVALID);
    assert_string_equal(err.message, "'messages' has 100001 messages; at most 100000 are possible");
    assert_null(out);
    json_decref(in);
    in = json_of("[{'role':'assistant','tool_calls':[{'id':'x','function':{'name':'a'}},{'id':'x','function':{'name':"
                 "'b'}}]},{'role':'tool','tool_call_id':'x'},{'role':'tool','tool_call_id':'x'},{'role':'tool',"
                 "'tool_call_id':'x'}]");
    assert_int_equal(kv_ollama_messages(&out, in, &r.app, &err), KV_OK);
    assert_string_equal(str_at(out, "1.name"), "a");
    assert_string_equal(str_at(out, "2.name"), "b");
    assert_null(at(out, "3.name"));
    json_decref(out);
    json_decref(in);
}

static void errors_have_ollama_s_names(void **state) {
    (void)state;
    kv_error err = {0};
    kv_buf body = {0};
    kv_fail_field(&err, "response_format.json_schema.schema", "'response_format.json_schema.schema' must be an object");
    kv_ollama_rename(&err);
    assert_string_equal(err.field, "format.json_schema.schema");
    kv_fail_field(&err, "stop[1]", "'stop[1]' must be a string");
    kv_ollama_rename(&err);
    assert_string_equal(err.message, "'options.stop[1]' must be a string");
    kv_fail_field(&err, "stopping", "'stopping' is something else");
    kv_ollama_rename(&err);
    assert_string_equal(err.field, "stopping");
    kv_fail_field(&err, "think", "no \"thought\"");
    kv_ollama_error_body(&body, &err);
    assert_string_equal(kv_buf_str(&body), "{\"error\":\"think: no \\\"thought\\\"\"}");
    kv_buf_free(&body);
}

/* ── the gate: closing when asked ──────────────────────────────────────────────────────────────────────────────── */

static void closes_when_asked(void **state) {
    (void)state;
    const int64_t hour = 3600000000;
    kv_wake w;
    kv_ticket one = {0}, two = {0};
    kv_gate *g = kv_gate_new();
    assert_int_equal(kv_wake_init(&w, NULL), KV_OK);
    kv_gate_set_tender(g, &w);
    assert_int_equal(kv_gate_enter(g, &one, NULL), KV_ENTRY_INSIDE);
    kv_gate_ask_to_close(g);
    assert_int_equal(kv_wake_wait(&w, -1, 0), KV_WAIT_TIMEOUT); /* somebody is inside */
    assert_false(kv_gate_close(g, hour));
    kv_gate_leave(g, &one);
    assert_int_equal(kv_wake_wait(&w, -1, 0), KV_WAIT_WOKEN);
    assert_int_equal(kv_gate_idle_left(g, hour), 0);
    assert_int_equal(kv_gate_enter(g, &two, NULL), KV_ENTRY_INSIDE); /* who comes later wants it */
    kv_gate_leave(g, &two);
    assert_false(kv_gate_close(g, hour));
    kv_gate_ask_to_close(g); /* from outside */
    assert_int_equal(kv_wake_wait(&w, -1, 0), KV_WAIT_WOKEN);
    assert_true(kv_gate_close(g, hour));
    assert_true(kv_gate_was_asked(g));
    kv_gate_ask_to_close(g); /* it is closed */
    assert_int_equal(kv_wake_wait(&w, -1, 0), KV_WAIT_TIMEOUT);
    kv_gate_open(g);
    assert_false(kv_gate_was_asked(g));
    assert_false(kv_gate_close(g, hour));
    kv_gate_free(g);
    kv_wake_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations),
        cmocka_unit_test_setup_teardown(names, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(options_become_openai_s, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(messages_become_openai_s, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(many_calls_are_answered, open_rig, close_rig),
        cmocka_unit_test(errors_have_ollama_s_names),
        cmocka_unit_test(closes_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
