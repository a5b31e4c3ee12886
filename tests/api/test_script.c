/* Scripted answers (api/script.h): which rule answers, over which API, and scripts that are refused. */
#include "api/rig.h"

#include <unistd.h>

#include "api/script.h"

static rig r;
static char file[] = "/tmp/kvasir-script-XXXXXX";

static void write_script(const char *rules) {
    char *text = json_text(rules);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) >= 0, 1);
    assert_int_equal(fclose(f), 0);
    free(text);
}

static int open_file(void **state) {
    (void)state;
    int fd = mkstemp(file);
    if (fd >= 0) close(fd);
    return fd < 0;
}

static int remove_file(void **state) {
    (void)state;
    return unlink(file);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *rules, *said;
    } bad[] = {
        {"[", "line 1"},
        {"{'answer':'x'}", "not a list of rules"},
        {"['x']", "rule 0 must be an object with a text 'answer'"},
        {"[{'answer':'x'},{'last':'y'}]", "rule 1 must be an object with a text 'answer'"},
        {"[{'answer':'x','role':1}]", "'role' of rule 0 must be a text"},
        {"[{'answer':'x','lats':'y'}]", "rule 0 has more than"},
    };
    kv_options opt = {.test_script = file, .test_sampler = true};
    kv_script *s;
    kv_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_script(bad[i].rules);
        err = (kv_error){0};
        assert_int_equal(kv_script_open(&s, &opt, &err), KV_INVALID);
        assert_null(s);
        if (!strstr(err.message, bad[i].said)) fail_msg("%s: %s", bad[i].rules, err.message);
    }
    opt.test_sampler = false;
    assert_int_equal(kv_script_open(&s, &opt, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "--test-sampler"));
    opt.test_script = NULL;
    assert_int_equal(kv_script_open(&s, &opt, &err), KV_OK);
    assert_null(s);
    kv_script_close(s);
}

/* What a chat with these messages is answered; "" when it is refused. The caller's. */
static char *said(const char *messages) {
    kv_buf body = {0};
    answer a = {0};
    kv_buf_addf(&body, "{'messages':[%s],'max_tokens':100}", messages);
    int status = rig_ask(&a, &r, "/v1/chat/completions", body.data);
    json_t *v = json_loads(kv_buf_str(&a.body), 0, NULL);
    char *text = kv_strdup(status == 200 ? str_at(v, "choices.0.message.content") : "");
    if (status != 200) {
        assert_int_equal(status, 400);
        assert_non_null(strstr(kv_buf_str(&a.body), "no rule of --test-script fits"));
    }
    json_decref(v);
    free_answer(&a);
    kv_buf_free(&body);
    return text;
}

static void assert_said(const char *messages, const char *wanted) {
    char *text = said(messages);
    if (strcmp(text, wanted) != 0) fail_msg("%s: \"%s\" instead of \"%s\"", messages, text, wanted);
    free(text);
}

static void serve(const char *rules) {
    write_script(rules);
    r = (rig){0};
    rig_open(&r);
    r.opt.test_sampler = true;
    r.opt.test_script = kv_strdup(file);
    kv_error err = {0};
    if (kv_script_open(&r.app.script, &r.opt, &err) != KV_OK) fail_msg("%s", err.message);
    rig_serve(&r);
}

static void stop(void) {
    kv_script *s = r.app.script;
    rig_close(&r);
    kv_script_close(s);
}

#define USER(text)   "{'role':'user','content':'" text "'}"
#define SYSTEM(text) "{'role':'system','content':'" text "'}"

static void test_rules(void **state) {
    (void)state;
    serve("[{'role':'user','last':'red','answer':'one'},{'prompt':'rules of blue','last':'b','answer':'two'},"
          "{'role':'assistant','answer':'three'},{'last':'b','answer':''}]");
    assert_said(USER("a red one"), "one");
    assert_said("{'role':'user','content':[{'type':'text','text':'re'},{'type':'text','text':'d'}]}", "one");
    assert_said(SYSTEM("rules of blue") "," USER("b"), "two");
    assert_said(USER("red") "," SYSTEM("more instructions"), "one");
    assert_said(USER("b"), "");
    assert_said(USER("green"), "");
    assert_said(SYSTEM("red"), "");
    stop();
}

static void test_every_api(void **state) {
    (void)state;
    serve("[{'last':'red','answer':'one'}]");
    json_t *v = rig_json(&r, "/v1/messages", "{'max_tokens':50,'messages':[" USER("red") "]}");
    assert_string_equal(str_at(v, "content.0.text"), "one");
    json_decref(v);
    v = rig_json(&r, "/v1/responses", "{'input':'red','store':false}");
    assert_string_equal(str_at(v, "output.0.content.0.text"), "one");
    json_decref(v);
    v = rig_json(&r, "/api/chat", "{'model':'m','stream':false,'messages':[" USER("red") "]}");
    assert_string_equal(str_at(v, "message.content"), "one");
    json_decref(v);
    v = rig_json(&r, "/v1/chat/completions", "{'messages':[" USER("red") "],'kvasir':{'play':'its own'}}");
    assert_string_equal(str_at(v, "choices.0.message.content"), "its own");
    json_decref(v);
    stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_every_api),
    };
    return cmocka_run_group_tests(tests, open_file, remove_file);
}
