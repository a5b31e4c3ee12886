/* Tool calls and reasoning through real templates of the engine's source: what a model would say is played, what the
 * client gets is checked, whole and streamed. */
#include "api/rig.h"

#include "os/machine.h"

#ifndef KVASIR_ENGINE_SOURCE
#define KVASIR_ENGINE_SOURCE ""
#endif

static rig r;
static kv_buf template_text;

/* False when the engine's source has no such template (a user's own build). */
static bool serve(const char *name) {
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/models/templates/%s", KVASIR_ENGINE_SOURCE, name);
    kv_status st = kv_file_read(&template_text, path.data, 1 << 20, NULL);
    if (st != KV_OK) print_message("skipped: no %s\n", path.data);
    kv_buf_free(&path);
    if (st != KV_OK) return false;
    r.chat_template = kv_buf_str(&template_text);
    rig_open(&r);
    r.app.n_ctx_served = 4096;
    r.opt.test_sampler = true;
    rig_serve(&r);
    return true;
}

static void stop(void) {
    rig_close(&r);
    kv_buf_free(&template_text);
}

#define USER "'messages':[{'role':'user','content':'hi'}]"
#define TOOLS                                                                                                          \
    "'tools':[{'type':'function','function':{'name':'get_time','description':'d','parameters':{'type':'object',"       \
    "'properties':{'city':{'type':'string'}},'required':['city']}}}]"
#define CALL                                                                                                           \
    "<tool_call>\\n{\\\"name\\\": \\\"get_time\\\", \\\"arguments\\\": {\\\"city\\\": \\\"Rome\\\"}}\\n</tool_call>"

typedef struct whole {
    kv_buf content, reasoning, name, arguments;
    int n_calls;
    const char *finish;
    json_t *events;
} whole;

/* A stream's deltas put together again. */
static whole collect(const char *body) {
    whole w = {.events = rig_stream(&r, "/v1/chat/completions", body), .finish = ""};
    json_t *e;
    size_t i;
    json_array_foreach(w.events, i, e) {
        const json_t *d = at(e, "choices.0.delta"), *call = at(d, "tool_calls.0.function");
        if (json_is_string(at(d, "content"))) kv_buf_adds(&w.content, str_at(d, "content"));
        if (json_is_string(at(d, "reasoning_content"))) kv_buf_adds(&w.reasoning, str_at(d, "reasoning_content"));
        if (json_is_string(at(d, "tool_calls.0.id"))) w.n_calls++;
        if (json_is_string(at(call, "name"))) kv_buf_adds(&w.name, str_at(call, "name"));
        if (json_is_string(at(call, "arguments"))) kv_buf_adds(&w.arguments, str_at(call, "arguments"));
        if (json_is_string(at(e, "choices.0.finish_reason"))) w.finish = str_at(e, "choices.0.finish_reason");
    }
    return w;
}

static void free_whole(whole *w) {
    kv_buf_free(&w->content);
    kv_buf_free(&w->reasoning);
    kv_buf_free(&w->name);
    kv_buf_free(&w->arguments);
    json_decref(w->events);
}

static void assert_rome(const char *arguments) {
    json_t *v = json_loads(arguments, 0, NULL);
    assert_string_equal(str_at(v, "city"), "Rome");
    json_decref(v);
}

static void test_tool_call(void **state) {
    (void)state;
    if (!serve("Qwen-Qwen2.5-7B-Instruct.jinja")) skip();
    static const char said[] = USER "," TOOLS ",'kvasir':{'play':'" CALL "'}";
    kv_buf body = {0};
    kv_buf_addf(&body, "{%s}", said);
    json_t *v = rig_json(&r, "/v1/chat/completions", body.data);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(str_at(v, "choices.0.message.tool_calls.0.type"), "function");
    assert_string_equal(str_at(v, "choices.0.message.tool_calls.0.function.name"), "get_time");
    assert_true(json_string_length(at(v, "choices.0.message.tool_calls.0.id")) > 0);
    assert_rome(str_at(v, "choices.0.message.tool_calls.0.function.arguments"));
    json_decref(v);

    kv_buf_clear(&body);
    kv_buf_addf(&body, "{%s,'stream':true}", said);
    whole w = collect(body.data);
    assert_string_equal(w.finish, "tool_calls");
    assert_int_equal(w.n_calls, 1);
    assert_string_equal(kv_buf_str(&w.name), "get_time");
    assert_rome(kv_buf_str(&w.arguments));
    assert_string_equal(kv_buf_str(&w.content), "");
    free_whole(&w);

    /* cut off in the middle of the call: an answer all the same, and "length" */
    kv_buf_clear(&body);
    kv_buf_addf(&body, "{%s,'stream':true,'max_tokens':30}", said);
    w = collect(body.data);
    assert_string_equal(w.finish, "length");
    assert_string_equal(json_string_value(json_array_get(w.events, json_array_size(w.events) - 1)), "[DONE]");
    free_whole(&w);
    kv_buf_clear(&body);
    kv_buf_addf(&body, "{%s,'max_tokens':30}", said);
    v = rig_json(&r, "/v1/chat/completions", body.data);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "length");
    assert_string_equal(str_at(v, "choices.0.message.role"), "assistant");
    json_decref(v);
    kv_buf_free(&body);
    stop();
}

/* tool_choice by name leaves the one tool in the prompt; history with calls and results renders. */
static void test_tool_choice(void **state) {
    (void)state;
    if (!serve("Qwen-Qwen2.5-7B-Instruct.jinja")) skip();
    json_t *v =
        rig_json(&r, "/apply-template",
                 "{" USER ",'tools':[{'type':'function','function':{'name':'alpha'}},{'type':'function','function':"
                 "{'name':'beta'}}],'tool_choice':{'type':'function','function':{'name':'beta'}}}");
    assert_non_null(strstr(str_at(v, "prompt"), "alpha")); /* the prompt is the same whatever is to be called */
    assert_non_null(strstr(str_at(v, "prompt"), "beta"));
    json_decref(v);
    v = rig_json(
        &r, "/apply-template",
        "{'messages':[{'role':'user','content':'time?'},{'role':'assistant','content':null,'tool_calls':[{'id':'c1',"
        "'type':'function','function':{'name':'get_time','arguments':'{\\\"city\\\":\\\"Rome\\\"}'}}]},"
        "{'role':'tool','tool_call_id':'c1','content':'noon'}]," TOOLS "}");
    const char *prompt = str_at(v, "prompt");
    assert_non_null(strstr(prompt, "Rome"));
    assert_non_null(strstr(prompt, "noon"));
    json_decref(v);
    stop();
}

static void test_reasoning(void **state) {
    (void)state;
    if (!serve("Qwen-Qwen3-0.6B.jinja")) skip();
    static const char said[] = USER ",'kvasir':{'play':'<think>\\nLet me see.\\n</think>\\n\\nIt is noon.'}";
    kv_buf body = {0};
    kv_buf_addf(&body, "{%s}", said);
    json_t *v = rig_json(&r, "/v1/chat/completions", body.data);
    assert_non_null(strstr(str_at(v, "choices.0.message.reasoning_content"), "Let me see."));
    assert_string_equal(str_at(v, "choices.0.message.content"), "It is noon.");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    json_decref(v);

    kv_buf_clear(&body);
    kv_buf_addf(&body, "{%s,'stream':true}", said);
    whole w = collect(body.data);
    assert_non_null(strstr(kv_buf_str(&w.reasoning), "Let me see."));
    assert_string_equal(kv_buf_str(&w.content), "It is noon.");
    free_whole(&w);

    kv_buf_clear(&body);
    kv_buf_addf(&body, "{%s,'reasoning_format':'none'}", said);
    v = rig_json(&r, "/v1/chat/completions", body.data);
    assert_non_null(strstr(str_at(v, "choices.0.message.content"), "Let me see."));
    assert_null(at(v, "choices.0.message.reasoning_content"));
    json_decref(v);

    /* both ways to switch thinking off leave their mark in the prompt */
    static const char *const off[] = {"'chat_template_kwargs':{'enable_thinking':false}", "'reasoning_effort':'none'"};
    for (int i = 0; i < 2; i++) {
        kv_buf_clear(&body);
        kv_buf_addf(&body, "{" USER ",%s}", off[i]);
        v = rig_json(&r, "/apply-template", body.data);
        assert_non_null(strstr(str_at(v, "prompt"), "</think>"));
        json_decref(v);
    }
    kv_buf_free(&body);
    stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tool_call),
        cmocka_unit_test(test_tool_choice),
        cmocka_unit_test(test_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
