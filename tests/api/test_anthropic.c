/* Anthropic's bodies as OpenAI's, the places of breakpoints in the tokens, signatures, error bodies of every status, and
 * what a stream says while nothing comes. How the official client reads answers: tests/http-node/anthropic.test.mjs. */
#include "api/rig.h"

#include "api/anthropic/anthropic.h"
#include "api/asleep.h"
#include "api/chat_body.h"
#include "api/gate.h"

static rig r;

#define SYS     "{'role':'system','content':'S'}"
#define USR(t)  "{'role':'user','content':'" t "'}"
#define TXT(t)  "{'type':'text','text':'" t "'}"
#define MARK    "'cache_control':{'type':'ephemeral'}"
#define HOUR    "'cache_control':{'type':'ephemeral','ttl':'1h'}"
#define USE     "{'type':'tool_use','id':'t1','name':'f','input':{'a':1}}"
#define RESULT  "{'type':'tool_result','tool_use_id':'t1','content':'R'}"
#define CALLS   "'tool_calls':[{'id':'t1','type':'function','function':{'name':'f','arguments':'{#a#:1}'}}]"
#define TOOL(n) "{'name':'" n "','input_schema':{'type':'object'}}"

/* ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Also '#' for a quote inside a text. */
static json_t *json_deep(const char *text) {
    kv_buf s = {0};
    for (; *text; text++) kv_buf_adds(&s, *text == '#' ? "\\\"" : (const char[]){*text, 0});
    json_t *v = json_of(kv_buf_str(&s));
    kv_buf_free(&s);
    return v;
}

static const struct {
    const char *messages, *chat;
} conversations[] = {
    {"[" USR("a") "]", "[" USR("a") "]"},
    {"[{'role':'user','content':[" TXT("a") "]}]", "[" USR("a") "]"},
    {"[{'role':'user','content':[" TXT("a") "," TXT("") "," TXT("b") "]}]",
     "[{'role':'user','content':[" TXT("a") "," TXT("b") "]}]"},
    {"[{'role':'user','content':[]}]", "[" USR("") "]"},
    {"[" USR("a") "," USR("b") "]", "[{'role':'user','content':[" TXT("a") "," TXT("b") "]}]"},
    {"[" USR("a") "," SYS "," USR("b") "]", "[" USR("a") "," SYS "," USR("b") "]"},
    {"[" SYS "," SYS "]", "[" SYS "," SYS "]"},
    {"[" USR("a") ",{'role':'assistant','content':[" TXT("x") "," USE "]},{'role':'user','content':[" RESULT
                                                              "," TXT("b") "]}]",
     "[" USR("a") ",{'role':'assistant','content':'x'," CALLS
                  "},{'role':'tool','tool_call_id':'t1','content':'R'}," USR("b") "]"},
    {"[" USR("a") ",{'role':'assistant','content':[" USE "]},{'role':'user','content':[" TXT("b") "," RESULT
                                                                                                  "," TXT("c") "]}]",
     "[" USR("a") ",{'role':'assistant','content':null," CALLS "}," USR("b") ",{'role':'tool','tool_call_id':'t1',"
                                                                             "'content':'R'}," USR("c") "]"},
    {"[" USR("a") ",{'role':'assistant','content':[{'type':'thinking','thinking':'T1','signature':'?'}," TXT(
         "x") ",{'type':'thinking','thinking':'T2'},{'type':'redacted_thinking','data':'zzz'}]}]",
     "[" USR("a") ",{'role':'assistant','content':'x','reasoning_content':'T1T2'}]"},
    {"[" USR("a") ",{'role':'assistant','content':[{'type':'redacted_thinking','data':'zzz'}]}]",
     "[" USR("a") ",{'role':'assistant','content':''}]"},
    {"[" USR("a") ",{'role':'assistant','content':[" USE "]},{'role':'user','content':[{'type':'tool_result',"
                  "'tool_use_id':'t1','is_error':true}]}]",
     "[" USR("a") ",{'role':'assistant','content':null," CALLS
                  "},{'role':'tool','tool_call_id':'t1','content':'Error'}]"},
};

static void test_conversations(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof conversations / sizeof *conversations; i++) {
        json_t *body = json_pack("{s:i, s:o}", "max_tokens", 3, "messages", json_deep(conversations[i].messages));
        json_t *expected = json_deep(conversations[i].chat);
        kv_anthropic a;
        kv_error err = {0};
        if (kv_anthropic_read(&a, body, false, &r.app, &err) != KV_OK) fail_msg("%zu: %s", i, err.message);
        json_t *got = json_object_get(a.chat, "messages");
        if (!json_equal(got, expected)) fail_msg("%zu: %s", i, json_dumps(got, 0));
        kv_anthropic_free(&a);
        json_decref(expected);
        json_decref(body);
    }
}

/* Many blocks that add to one text; a breakpoint in their midst has what stands before it. */
static void test_many_blocks(void **state) {
    (void)state;
    enum { N = 20000 };
    json_t *system = json_array(), *thinking = json_array();
    kv_buf joined = {0}, thought = {0};
    for (int i = 0; i < N; i++) {
        char text[16];
        snprintf(text, sizeof text, "t%d", i);
        kv_buf_addf(&joined, "%s%s", i ? "\n" : "", text);
        kv_buf_addf(&thought, "%s", text);
        json_array_append_new(system, json_pack("{s:s, s:s}", "type", "text", "text", text));
        json_array_append_new(thinking, json_pack("{s:s, s:s}", "type", "thinking", "thinking", text));
    }
    json_object_set_new(json_array_get(system, 1), "cache_control", json_pack("{s:s}", "type", "ephemeral"));
    json_array_append_new(thinking, json_pack("{s:s, s:s}", "type", "text", "text", "said"));
    json_t *body =
        json_pack("{s:i, s:o, s:[{s:s, s:s}, {s:s, s:O}, {s:s, s:s}, {s:s, s:[O]}]}", "max_tokens", 3, "system", system,
                  "messages", "role", "user", "content", "a", "role", "assistant", "content", thinking, "role", "user",
                  "content", "b", "role", "assistant", "content", json_array_get(thinking, 7));
    kv_anthropic a;
    kv_error err = {0};
    assert_int_equal(kv_anthropic_read(&a, body, false, &r.app, &err), KV_OK);
    json_t *messages = json_object_get(a.chat, "messages");
    assert_string_equal(str_at(messages, "0.content"), kv_buf_str(&joined));
    assert_string_equal(str_at(messages, "2.reasoning_content"), kv_buf_str(&thought));
    assert_string_equal(str_at(messages, "2.content"), "said");
    assert_string_equal(str_at(messages, "4.reasoning_content"), "t7");
    assert_int_equal(a.n_marks, 1);
    assert_string_equal(str_at(a.mark[0].messages, "0.content"), "t0\nt1");
    kv_anthropic_free(&a);
    json_decref(body);
    json_decref(thinking);
    kv_buf_free(&joined);
    kv_buf_free(&thought);
}

static const struct {
    const char *fields, *path, *value; /* value NULL: nothing is there */
} fields[] = {
    {"'system':'S'", "messages.0", SYS},
    {"'system':[" TXT("a") "," TXT("b") "]", "messages.0.content", "'a\\nb'"},
    {"'system':''", "messages.0.role", "'user'"},
    {"'system':[" TXT("x-anthropic-billing-header: v=1; cch=a5145; e=2\\ncch=a5") "]", "messages.0.content",
     "'x-anthropic-billing-header: v=1; cch=a5145; e=2\\ncch=a5'"},
    {"'system':'cch=a5145;'", "messages.0.content", "'cch=a5145;'"},
    {"'max_tokens':9000000000", "max_tokens", "2147483647"},
    {"'stop_sequences':['a','b']", "stop", "['a','b']"},
    {"'stop_sequences':null", "stop", NULL},
    {"'temperature':0.5,'top_k':3,'top_p':0.9,'stream':true", "top_k", "3"},
    {"'metadata':{'user_id':'u'}", "user", NULL},
    {"'n':4", "n", NULL},
    {"'tools':[" TOOL("f") "]", "tools.0.function", "{'name':'f','parameters':{'type':'object'}}"},
    {"'tools':[]", "tools", NULL},
    {"'tools':[" TOOL("f") "],'tool_choice':{'type':'any'}", "tool_choice", "'required'"},
    {"'tools':[" TOOL("f") "],'tool_choice':{'type':'auto','disable_parallel_tool_use':true}", "parallel_tool_calls",
     "false"},
    {"'tools':[" TOOL("f") "],'tool_choice':{'type':'auto'}", "parallel_tool_calls", NULL},
    {"'tools':[" TOOL("f") "],'tool_choice':{'type':'tool','name':'f'}", "tool_choice",
     "{'type':'function','function':{'name':'f'}}"},
    {"'tool_choice':{'type':'none'}", "tool_choice", "'none'"},
    {"'thinking':{'type':'enabled','budget_tokens':7}", "thinking_budget_tokens", "7"},
    {"'thinking':{'type':'enabled','budget_tokens':7}", "chat_template_kwargs", "{'enable_thinking':true}"},
    {"'thinking':{'type':'disabled'},'chat_template_kwargs':{'enable_thinking':true,'x':1}", "chat_template_kwargs",
     "{'enable_thinking':false,'x':1}"},
    {"'thinking':{'type':'adaptive'}", "thinking_budget_tokens", NULL},
    {"'output_config':{'effort':'xhigh'}", "reasoning_effort", "'high'"},
    {"'output_config':{'format':{'type':'json_schema','schema':{'type':'object'}}}", "response_format",
     "{'type':'json_schema','json_schema':{'schema':{'type':'object'}}}"},
    {"'output_config':null,'thinking':null,'tool_choice':null,'tools':null,'system':null,'cache_control':null",
     "response_format", NULL},
    {"'messages':[{'role':'user','content':[{'type':'image','source':{}}]}]", "messages.0.content", "'[image]'"},
};

static void test_fields(void **state) {
    (void)state;
    free(r.opt.on_image);
    r.opt.on_image = kv_strdup("placeholder");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        kv_buf text = {0};
        kv_buf_addf(&text, "{'messages':[" USR("a") "],'max_tokens':5,%s}", fields[i].fields);
        json_t *body = json_deep(kv_buf_str(&text));
        kv_anthropic a;
        kv_error err = {0};
        if (kv_anthropic_read(&a, body, false, &r.app, &err) != KV_OK) fail_msg("%s: %s", text.data, err.message);
        json_t *got = at(a.chat, fields[i].path), *expected = fields[i].value ? json_deep(fields[i].value) : NULL;
        if (got != expected && !json_equal(got, expected))
            fail_msg("%s: %s", fields[i].fields, json_dumps(a.chat, JSON_ENCODE_ANY));
        json_decref(expected);
        kv_anthropic_free(&a);
        json_decref(body);
        kv_buf_free(&text);
    }
}

static void test_signatures(void **state) {
    (void)state;
    kv_buf text = {0};
    json_t *plain = kv_anthropic_sign("thought", 7, false), *kept = kv_anthropic_sign("tho\"ught. é", 12, true);
    assert_false(kv_anthropic_signed_text(&text, json_string_value(plain)));
    assert_true(kv_anthropic_signed_text(&text, json_string_value(kept)));
    assert_string_equal(kv_buf_str(&text), "tho\"ught. é");
    for (size_t n = 0; n < strlen(KV_ANTHROPIC_SIGNED) + 33; n++) { /* cut anywhere */
        char *cut = kv_strndup(json_string_value(kept), n);
        assert_false(kv_anthropic_signed_text(&text, cut));
        free(cut);
    }
    assert_false(kv_anthropic_signed_text(&text, "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"));
    json_decref(plain);
    json_decref(kept);
    kv_buf_free(&text);
}

/* ── breakpoints ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* Where the prompt's first tokens end that the client marked: behind `before`, or at the end but one when it is "". */
static const struct {
    const char *fields;
    int n;
    struct {
        const char *before;
        int seconds;
    } mark[4];
} marked[] = {
    {"'messages':[" USR("aaa") "]", 0, {{0}}},
    {"'messages':[" USR("aaa") "]," MARK, 1, {{"", 300}}},
    {"'system':[{'type':'text','text':'one'," HOUR "},{'type':'text','text':'two'," MARK
     "}],'messages':[" USR("aaa") "]",
     2,
     {{"one", 3600}, {"two<|im_end|>\n<|im_start|>user\n", 300}}},
    {"'messages':[{'role':'user','content':[{'type':'text','text':'aaa'," MARK
     "}]},{'role':'assistant','content':'bbb'},"
     "{'role':'user','content':[{'type':'text','text':'ccc'," MARK "}," TXT("ddd") "]}]",
     2,
     {{"aaa<|im_end|>\n<|im_start|>assistant\n", 300}, {"ccc", 300}}},
    {"'messages':[" USR("aaa") ",{'role':'assistant','content':[{'type':'text','text':'bbb'," MARK
                               "}]}," USR("ccc") "]",
     1,
     {{"bbb<|im_end|>\n<|im_start|>user\n", 300}}},
    /* the same place twice: the longer time counts */
    {"'messages':[{'role':'user','content':[{'type':'text','text':'aaa'," MARK "}]," HOUR "}]", 1, {{"", 3600}}},
    {"'cache_prompt':false,'messages':[" USR("aaa") "]," MARK, 0, {{0}}},
};

static void check_marks(size_t i) {
    static const kv_dialect nothing = {.id_prefix = "x"};
    kv_buf text = {0}, spelled = {0};
    kv_buf_addf(&text, "{'max_tokens':5,%s}", marked[i].fields);
    json_t *body = json_deep(kv_buf_str(&text));
    kv_anthropic a;
    kv_job *j;
    kv_error err = {0};
    if (kv_anthropic_read(&a, body, false, &r.app, &err) != KV_OK) fail_msg("%s: %s", text.data, err.message);
    if (kv_chat_job_new(&j, &nothing, a.chat, NULL, &r.app, &err) != KV_OK) fail_msg("%s: %s", text.data, err.message);
    kv_anthropic_find_marks(j, &a);
    assert_int_equal(j->n_hints, marked[i].n);
    for (int k = 0; k < j->n_hints; k++) {
        const char *before = marked[i].mark[k].before;
        int32_t position = j->hints[k].position;
        assert_int_equal(j->hints[k].keep_seconds, marked[i].mark[k].seconds);
        assert_true(position < (int32_t)j->prompts.list[0].len && (!k || position > j->hints[k - 1].position));
        kv_buf_clear(&spelled);
        kv_prompt_spell(&spelled, r.app.model, j->prompts.list[0].data, (size_t)position, true);
        if (!*before) assert_int_equal(position, j->prompts.list[0].len - 1);
        else if (spelled.len < strlen(before) || strcmp(spelled.data + spelled.len - strlen(before), before) != 0)
            fail_msg("%s: %d is behind \"%s\"", marked[i].fields, (int)position, kv_buf_str(&spelled));
    }
    kv_job_free(j);
    kv_anthropic_free(&a);
    json_decref(body);
    kv_buf_free(&text);
    kv_buf_free(&spelled);
}

static void test_marks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof marked / sizeof *marked; i++) check_marks(i);
}

/* ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_error_bodies(void **state) {
    (void)state;
    static const char *const types[KV_STATUS_COUNT] = {
        [KV_INVALID] = "invalid_request_error",     [KV_CONTEXT_FULL] = "invalid_request_error",
        [KV_UNAUTHORIZED] = "authentication_error", [KV_FORBIDDEN] = "permission_error",
        [KV_NOT_FOUND] = "not_found_error",         [KV_BAD_METHOD] = "invalid_request_error",
        [KV_TOO_LARGE] = "request_too_large",       [KV_BUSY] = "overloaded_error",
        [KV_CANCELLED] = "invalid_request_error",
    };
    for (int s = KV_OK + 1; s < KV_STATUS_COUNT; s++) {
        kv_buf out = {0};
        kv_error err = {0};
        kv_fail(&err, (kv_status)s, "what \"it\" is");
        if (s % 2) err.request_id = "req_7";
        if (s == KV_CONTEXT_FULL) err.n_prompt_tokens = 5000, err.n_ctx = 4096;
        kv_anthropic_error_body(&out, &err);
        json_t *v = json_loads(kv_buf_str(&out), 0, NULL);
        assert_string_equal(str_at(v, "type"), "error");
        assert_string_equal(str_at(v, "error.type"), types[s] ? types[s] : "api_error");
        assert_string_equal(str_at(v, "error.message"),
                            s == KV_CONTEXT_FULL ? "prompt is too long: 5000 tokens > 4095 maximum" : "what \"it\" is");
        if (s % 2) assert_string_equal(str_at(v, "request_id"), "req_7");
        else assert_true(json_is_null(at(v, "request_id")));
        json_decref(v);
        kv_buf_free(&out);
    }
}

/* ── over HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────── */

#define ASK "{'max_tokens':3,'messages':[" USR("hello") "],'kvasir':{'play':'ab'}"

#define PING "event: ping\ndata: {\"type\":\"ping\"}\n\n"

static void test_whole_and_streamed(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/v1/messages", ASK "}");
    assert_string_equal(str_at(v, "content.0.text"), "ab");
    assert_string_equal(str_at(v, "stop_reason"), "end_turn");
    assert_int_equal(int_at(v, "usage.cache_creation_input_tokens"), 0); /* there is no cache here */
    long long n = int_at(v, "usage.input_tokens") + int_at(v, "usage.cache_read_input_tokens");
    json_decref(v);
    v = rig_json(&r, "/messages/count_tokens", "{'messages':[" USR("hello") "]}");
    assert_int_equal(int_at(v, "input_tokens"), n);
    json_decref(v);
}

/* Waits for one ping, which is one second. */
static void test_silence(void **state) {
    (void)state;
    rig_set(&r, true, false);
    client c = rig_post(&r, "/v1/messages", ASK ",'stream':true,'sse_ping_interval':1}");
    answer a = {0};
    assert_true(read_head(&c, &a));
    assert_int_equal(a.status, 200);
    assert_non_null(header_of(&a, "request-id"));
    while (!strstr(kv_buf_str(&a.body), PING)) assert_true(read_chunk(&c, &a)); /* the engine stands still */
    assert_null(strstr(kv_buf_str(&a.body), "content_block_start"));
    rig_set(&r, false, false);
    while (read_chunk(&c, &a)) {
    }
    assert_non_null(strstr(kv_buf_str(&a.body), "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    free_answer(&a);
    hang_up(&c);
}

static void assert_last_error(const answer *a, const char *type) {
    const char *event = strstr(kv_buf_str(&a->body), "event: error\ndata: ");
    assert_non_null(event);
    json_t *v = json_loads(event + strlen("event: error\ndata: "), JSON_DISABLE_EOF_CHECK, NULL);
    assert_string_equal(str_at(v, "type"), "error");
    assert_string_equal(str_at(v, "error.type"), type);
    assert_string_equal(str_at(v, "request_id"), header_of(a, "request-id"));
    json_decref(v);
    assert_null(strstr(event + 1, "event: "));
    assert_null(strstr(kv_buf_str(&a->body), "message_start"));
}

static void test_broken_engine(void **state) {
    (void)state;
    rig_set(&r, true, true);
    client c =
        rig_post(&r, "/v1/messages",
                 "{'max_tokens':3,'stream':true,'messages':[" USR("Something else: never computed before.") "]}");
    answer a = {0};
    assert_true(read_head(&c, &a));
    rig_set(&r, false, true);
    while (read_chunk(&c, &a)) {
    }
    assert_non_null(strstr(kv_buf_str(&a.body), "event: error\n"));
    assert_non_null(strstr(kv_buf_str(&a.body), "\"type\":\"api_error\""));
    assert_null(strstr(kv_buf_str(&a.body), "message_stop"));
    free_answer(&a);
    hang_up(&c);
    assert_int_equal(rig_ask(&a, &r, "/v1/messages", ASK "}"), 500);
    assert_non_null(strstr(kv_buf_str(&a.body), "api_error"));
    free_answer(&a);
    rig_set(&r, false, false);
}

static void test_overloaded(void **state) {
    (void)state;
    static const int states[] = {KV_APP_LOADING, KV_APP_DRAINING};
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&r.app.state, states[i]);
        answer a = {0};
        assert_int_equal(rig_ask(&a, &r, "/v1/messages", ASK "}"), 529);
        assert_string_equal(header_of(&a, "Retry-After"), "1");
        json_t *v = json_loads(kv_buf_str(&a.body), 0, NULL);
        assert_string_equal(str_at(v, "error.type"), "overloaded_error");
        assert_string_equal(str_at(v, "request_id"), header_of(&a, "request-id"));
        json_decref(v);
        free_answer(&a);
    }
    atomic_store(&r.app.state, KV_APP_READY);
}

static void fall_asleep(void) {
    kv_asleep_note(r.app.asleep, &r.app);
    while (!kv_gate_close(r.app.gate, 0)) sched_yield(); /* the last request's connection still cleans up */
    atomic_store(&r.app.state, KV_APP_ASLEEP);
}

/* The model is asleep: pings, and what happens then, in Anthropic's words. Waits for one ping. */
static void test_asleep(void **state) {
    (void)state;
    fall_asleep();
    client c = rig_post(&r, "/v1/messages", ASK ",'stream':true,'sse_ping_interval':1}");
    answer a = {0};
    assert_true(read_head(&c, &a));
    assert_true(read_chunk(&c, &a));
    assert_string_equal(kv_buf_str(&a.body), PING);
    atomic_store(&r.app.state, KV_APP_READY);
    kv_gate_open(r.app.gate);
    while (read_chunk(&c, &a)) {
    }
    assert_non_null(strstr(kv_buf_str(&a.body), "event: message_stop\n"));
    free_answer(&a);
    hang_up(&c);

    fall_asleep();
    c = rig_post(&r, "/v1/messages", ASK ",'stream':true}");
    assert_true(read_head(&c, &a));
    assert_true(kv_gate_wait(r.app.gate));
    kv_error why = {0};
    kv_fail(&why, KV_BUSY, "the disk is on fire");
    kv_gate_fail(r.app.gate, &why);
    while (read_chunk(&c, &a)) {
    }
    assert_last_error(&a, "overloaded_error");
    free_answer(&a);
    hang_up(&c);
    atomic_store(&r.app.state, KV_APP_READY);
    kv_gate_open(r.app.gate);
}

static int open_rig(void **state) {
    (void)state;
    rig_open(&r);
    r.opt.test_sampler = true;
    r.app.gate = kv_gate_new();
    r.app.asleep = kv_asleep_new();
    rig_serve(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    kv_gate *gate = r.app.gate;
    kv_asleep *asleep = r.app.asleep;
    rig_close(&r);
    kv_gate_free(gate);
    kv_asleep_free(asleep);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_many_blocks),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_signatures),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_error_bodies),
        cmocka_unit_test(test_whole_and_streamed),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_broken_engine),
        cmocka_unit_test(test_overloaded),
        cmocka_unit_test(test_asleep),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
