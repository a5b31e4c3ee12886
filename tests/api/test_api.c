/* All endpoints end to end: handlers behind a real HTTP server, on the fake engine with its scheduler thread. The
 * sampler that plays given tokens makes the answers known. */
#include "api/rig.h"

static rig r;

#define CHAT       "/v1/chat/completions"
#define USER       "'messages':[{'role':'user','content':'hi'}]"
#define PLAY(text) "'kvasir':{'play':'" text "'}"

/* Keys that `want` names, separated by blanks, are all there. */
static void assert_keys(const json_t *v, const char *want) {
    char *list = kv_strdup(want);
    for (char *save = NULL, *key = strtok_r(list, " ", &save); key; key = strtok_r(NULL, " ", &save))
        if (!at(v, key)) fail_msg("no '%s' in %s", key, json_dumps(v, 0));
    free(list);
}

static void assert_timings(const json_t *v) {
    assert_keys(
        v, "timings.cache_n timings.prompt_n timings.prompt_ms timings.prompt_per_token_ms timings.prompt_per_second "
           "timings.predicted_n timings.predicted_ms timings.predicted_per_token_ms timings.predicted_per_second");
}

/* ── states ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *const paths[][2] = {
    {"GET", "/models"},          {"GET", "/v1/models"},       {"GET", "/props"},
    {"GET", "/slots"},           {"GET", "/metrics"},         {"POST", CHAT},
    {"POST", "/v1/completions"}, {"POST", "/completion"},     {"POST", "/tokenize"},
    {"POST", "/v1/detokenize"},  {"POST", "/apply-template"},
};

static void test_loading(void **state) {
    (void)state;
    atomic_store(&r.app.state, KV_APP_LOADING);
    answer a = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig_ask(&a, &r, i ? "/v1/health" : "/health", NULL), 503);
        assert_string_equal(kv_buf_str(&a.body),
                            "{\"error\":{\"code\":503,\"message\":\"Loading model\",\"type\":\"unavailable_error\"}}");
        free_answer(&a);
    }
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        assert_int_equal(rig_ask(&a, &r, paths[i][1], strcmp(paths[i][0], "POST") == 0 ? "{}" : NULL), 503);
        free_answer(&a);
    }
    assert_int_equal(rig_ask(&a, &r, "/", NULL), 200);
    assert_non_null(strstr(header_of(&a, "Content-Type"), "text/html"));
    assert_non_null(strstr(kv_buf_str(&a.body), "<!doctype html>"));
    free_answer(&a);
    atomic_store(&r.app.state, KV_APP_READY);
    json_t *v = rig_json(&r, "/health", NULL);
    assert_string_equal(str_at(v, "status"), "ok");
    json_decref(v);
}

/* New work is refused, looking is not. */
static void test_draining(void **state) {
    (void)state;
    atomic_store(&r.app.state, KV_APP_DRAINING);
    answer a = {0};
    static const char *const refused[] = {"/health", CHAT, "/v1/completions", "/completion"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(rig_ask(&a, &r, refused[i], i ? "{}" : NULL), 503);
        assert_non_null(strstr(error_of(&a, 503, "unavailable_error"), "shutting down"));
        free_answer(&a);
    }
    json_decref(rig_json(&r, "/slots", NULL));
    json_decref(rig_json(&r, "/v1/models", NULL));
    json_decref(rig_json(&r, "/tokenize", "{'content':'a'}"));
    /* told to stop before the model was there: nothing to look at */
    atomic_store(&r.app.has_model, false);
    assert_int_equal(rig_ask(&a, &r, "/v1/models", NULL), 503);
    free_answer(&a);
    atomic_store(&r.app.has_model, true);
    atomic_store(&r.app.state, KV_APP_READY);
}

/* ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_models(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/v1/models", NULL);
    assert_string_equal(str_at(v, "object"), "list");
    assert_string_equal(str_at(v, "data.0.id"), "fake-model");
    assert_int_equal(int_at(v, "data.0.max_model_len"), 1024);
    assert_int_equal(int_at(v, "data.0.meta.n_ctx"), 1024);
    assert_int_equal(int_at(v, "data.0.created"), 1700000000);
    assert_keys(
        v, "data.0.aliases data.0.tags data.0.owned_by data.0.meta.vocab_type data.0.meta.n_vocab "
           "data.0.meta.n_ctx_train data.0.meta.n_embd data.0.meta.n_params data.0.meta.size data.0.meta.ftype "
           "models.0.name models.0.model models.0.capabilities.0 models.0.details.format models.0.details.families.0");
    json_decref(v);
}

static void test_props(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/props", NULL);
    assert_keys(v,
                "default_generation_settings.params.temperature model_path chat_template chat_template_caps bos_token "
                "eos_token build_info modalities.vision media_marker endpoint_slots ui_settings kvasir.memory");
    assert_int_equal(int_at(v, "total_slots"), 4);
    assert_int_equal(int_at(v, "default_generation_settings.n_ctx"), 1024);
    assert_string_equal(str_at(v, "model_alias"), "fake-model");
    json_decref(v);
    r.opt.plain_json = true;
    v = rig_json(&r, "/v1/props", NULL);
    assert_null(at(v, "kvasir"));
    json_decref(v);
    r.opt.plain_json = false;
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, "/props", "{}"), 501);
    error_of(&a, 501, "not_supported_error");
    free_answer(&a);
}

static void test_slots_and_metrics(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/slots", NULL);
    assert_int_equal(json_array_size(v), 4);
    assert_keys(v, "0.id 0.n_ctx 0.speculative 0.is_processing");
    assert_int_equal(int_at(v, "3.id"), 3);
    assert_int_equal(int_at(v, "0.n_ctx"), 1024);
    json_decref(v);
    r.opt.metrics_endpoint = true;
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, "/metrics", NULL), 200);
    assert_non_null(strstr(header_of(&a, "Content-Type"), "text/plain; version=0.0.4"));
    assert_string_equal(header_of(&a, "Process-Start-Time-Unix"), "1700000000");
    assert_non_null(strstr(kv_buf_str(&a.body), "\nllamacpp:requests_processing 0\n"));
    free_answer(&a);
    r.opt.metrics_endpoint = r.opt.slots_endpoint = false;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig_ask(&a, &r, i ? "/v1/slots" : "/metrics", NULL), 501);
        assert_non_null(strstr(error_of(&a, 501, "not_supported_error"), i ? "--slots" : "--metrics"));
        free_answer(&a);
    }
    r.opt.slots_endpoint = true;
}

static void test_tokens(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *want;
    } list[] = {
        {"/tokenize", "{'content':'ab'}", "{'tokens':[97,98]}"},
        {"/tokenize", "{'content':'ab','add_special':true}", "{'tokens':[256,97,98]}"},
        {"/tokenize", "{'content':'<s>'}", "{'tokens':[256]}"},
        {"/tokenize", "{'content':'<s>','parse_special':false}", "{'tokens':[60,115,62]}"},
        {"/v1/tokenize", "{'content':['a',5,'b']}", "{'tokens':[97,5,98]}"},
        {"/tokenize", "{'content':'a\xC3','with_pieces':true}", NULL}, /* no UTF-8: refused as JSON */
        {"/tokenize", "{'content':'\xC3\xA1','with_pieces':true}",
         "{'tokens':[{'id':195,'piece':[195]},{'id':161,'piece':[161]}]}"},
        {"/tokenize", "{'content':'a<s>','with_pieces':true}",
         "{'tokens':[{'id':97,'piece':'a'},{'id':256,'piece':'<s>'}]}"},
        {"/tokenize", "{'content':''}", "{'tokens':[]}"},
        {"/tokenize", "{}", NULL},
        {"/detokenize", "{'tokens':[97,195,161,256]}", "{'content':'a\xC3\xA1<s>'}"},
        {"/v1/detokenize", "{'tokens':[]}", "{'content':''}"},
        {"/detokenize", "{}", NULL},
        {"/detokenize", "{'tokens':[261]}", NULL},
        {"/detokenize", "{'tokens':['a']}", NULL},
        {"/detokenize", "{'tokens':5}", NULL},
        {"/tokenize", "{'content':5}", NULL},
        {"/tokenize", "{'content':'a','add_special':1}", NULL},
        {"/tokenize", "[]", NULL},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (!list[i].want) {
            answer a = {0};
            assert_int_equal(rig_ask(&a, &r, list[i].path, list[i].body), 400);
            error_of(&a, 400, "invalid_request_error");
            free_answer(&a);
            continue;
        }
        json_t *got = rig_json(&r, list[i].path, list[i].body), *want = json_of(list[i].want);
        if (!json_equal(got, want)) fail_msg("%s: %s", list[i].body, json_dumps(got, 0));
        json_decref(got);
        json_decref(want);
    }
}

static void test_template(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/apply-template", "{" USER "}");
    const char *prompt = str_at(v, "prompt");
    assert_non_null(strstr(prompt, "<|im_start|>user\nhi<|im_end|>"));
    assert_non_null(strstr(prompt, "<|im_start|>assistant"));
    json_decref(v);
    v = rig_json(&r, "/apply-template", "{" USER ",'add_generation_prompt':false}");
    assert_null(strstr(str_at(v, "prompt"), "<|im_start|>assistant"));
    json_decref(v);
    v = rig_json(&r, "/apply-template",
                 "{'messages':[{'role':'user','content':'hi'},{'role':'assistant','content':'Well'}]}");
    prompt = str_at(v, "prompt");
    assert_string_equal(prompt + strlen(prompt) - 4, "Well");
    json_decref(v);
    v = rig_json(&r, CHAT "/input_tokens", "{" USER "}");
    assert_string_equal(str_at(v, "object"), "response.input_tokens");
    assert_true(int_at(v, "input_tokens") > 5);
    json_decref(v);
}

/* ── chat ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_chat(void **state) {
    (void)state;
    json_t *v = rig_json(&r, CHAT, "{" USER "," PLAY("Hello!") "}");
    assert_string_equal(str_at(v, "object"), "chat.completion");
    assert_string_equal(str_at(v, "choices.0.message.role"), "assistant");
    assert_string_equal(str_at(v, "choices.0.message.content"), "Hello!");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_string_equal(str_at(v, "model"), "fake-model");
    assert_int_equal(strncmp(str_at(v, "id"), "chatcmpl-", 9), 0);
    assert_int_equal(int_at(v, "usage.completion_tokens"), 7); /* six and the end */
    assert_int_equal(int_at(v, "usage.total_tokens"), 7 + int_at(v, "usage.prompt_tokens"));
    assert_keys(v, "created system_fingerprint usage.prompt_tokens_details.cached_tokens");
    assert_timings(v);
    json_decref(v);
}

static void test_chat_stream(void **state) {
    (void)state;
    for (int usage = 0; usage < 2; usage++) {
        kv_buf body = {0};
        kv_buf_addf(&body, "{" USER "," PLAY("Hey") ",'stream':true%s}",
                    usage ? ",'stream_options':{'include_usage':true}" : "");
        json_t *v = rig_stream(&r, "/chat/completions", body.data), *e;
        kv_buf_free(&body);
        size_t n = json_array_size(v), i;
        kv_buf text = {0};
        assert_string_equal(str_at(v, "0.choices.0.delta.role"), "assistant");
        assert_true(json_is_null(at(v, "0.choices.0.delta.content")));
        json_array_foreach(v, i, e) {
            if (i == n - 1) continue;
            assert_string_equal(str_at(e, "object"), "chat.completion.chunk");
            assert_string_equal(str_at(e, "id"), str_at(v, "0.id"));
            if (i > 0) assert_null(at(e, "choices.0.delta.role"));
            if (json_is_string(at(e, "choices.0.delta.content")))
                kv_buf_adds(&text, str_at(e, "choices.0.delta.content"));
        }
        assert_string_equal(kv_buf_str(&text), "Hey");
        kv_buf_free(&text);
        assert_string_equal(json_string_value(json_array_get(v, n - 1)), "[DONE]");
        const json_t *finish = json_array_get(v, n - 2 - (size_t)usage), *last = json_array_get(v, n - 2);
        assert_string_equal(str_at(finish, "choices.0.finish_reason"), "stop");
        assert_int_equal(json_object_size(at(finish, "choices.0.delta")), 0);
        assert_timings(last);
        if (usage) {
            assert_int_equal(json_array_size(at(last, "choices")), 0);
            assert_int_equal(int_at(last, "usage.completion_tokens"), 4);
            assert_null(at(finish, "timings"));
        } else {
            assert_null(at(last, "usage"));
        }
        json_decref(v);
    }
}

static void test_chat_finish(void **state) {
    (void)state;
    static const struct {
        const char *extra, *content, *finish;
    } list[] = {
        {"'max_tokens':3," PLAY("abcdef"), "abc", "length"},
        {"'max_tokens':0," PLAY("abcdef"), "", "length"},
        {"'max_tokens':1000000000000," PLAY("ab"), "ab", "stop"},
        {"'stop':'cd'," PLAY("abcdef"), "ab", "stop"},
        {"'stop':['zz','ef']," PLAY("abcdef"), "abcd", "stop"},
        {"'stop':['fg']," PLAY("abcdef"), "abcdef", "stop"}, /* what was held back comes at the end */
        {PLAY("h\xC3\xA9"), "h\xC3\xA9", "stop"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        kv_buf body = {0}, text = {0};
        kv_buf_addf(&body, "{" USER ",%s}", list[i].extra);
        json_t *v = rig_json(&r, CHAT, body.data), *e;
        assert_string_equal(str_at(v, "choices.0.message.content"), list[i].content);
        assert_string_equal(str_at(v, "choices.0.finish_reason"), list[i].finish);
        json_decref(v);
        kv_buf_clear(&body);
        kv_buf_addf(&body, "{'stream':true," USER ",%s}", list[i].extra);
        v = rig_stream(&r, CHAT, body.data);
        size_t k;
        const char *finish = "";
        json_array_foreach(v, k, e) {
            if (json_is_string(at(e, "choices.0.delta.content")))
                kv_buf_adds(&text, str_at(e, "choices.0.delta.content"));
            if (json_is_string(at(e, "choices.0.finish_reason"))) finish = str_at(e, "choices.0.finish_reason");
        }
        assert_string_equal(kv_buf_str(&text), list[i].content);
        assert_string_equal(finish, list[i].finish);
        assert_string_equal(str_at(v, "0.choices.0.delta.role"), "assistant");
        json_decref(v);
        kv_buf_free(&body);
        kv_buf_free(&text);
    }
}

static void test_chat_choices(void **state) {
    (void)state;
    json_t *v = rig_json(&r, CHAT, "{" USER ",'n':3,'max_tokens':2," PLAY("xyz") "}");
    assert_int_equal(json_array_size(at(v, "choices")), 3);
    for (int i = 0; i < 3; i++) {
        const json_t *c = json_array_get(at(v, "choices"), (size_t)i);
        assert_int_equal(int_at(c, "index"), i);
        assert_string_equal(str_at(c, "message.content"), "xy");
    }
    long long n_prompt = int_at(v, "usage.prompt_tokens");
    assert_int_equal(int_at(v, "usage.completion_tokens"), 6);
    json_decref(v);
    v = rig_stream(&r, CHAT,
                   "{" USER
                   ",'n':3,'max_tokens':2,'stream':true,'stream_options':{'include_usage':true}," PLAY("xyz") "}");
    int finished[3] = {0}, roles[3] = {0};
    json_t *e;
    size_t k;
    json_array_foreach(v, k, e) {
        long long i = int_at(e, "choices.0.index");
        if (i < 0) continue;
        assert_true(i < 3);
        if (at(e, "choices.0.delta.role")) roles[i]++;
        if (json_is_string(at(e, "choices.0.finish_reason"))) finished[i]++;
    }
    for (int i = 0; i < 3; i++) assert_true(finished[i] == 1 && roles[i] == 1);
    const json_t *usage = json_array_get(v, json_array_size(v) - 2);
    assert_int_equal(int_at(usage, "usage.completion_tokens"), 6);
    assert_int_equal(int_at(usage, "usage.prompt_tokens"), n_prompt);
    json_decref(v);
}

static void test_chat_logprobs(void **state) {
    (void)state;
    json_t *v = rig_json(&r, CHAT, "{" USER ",'logprobs':true,'top_logprobs':1,'max_tokens':3," PLAY("abcdef") "}"), *e;
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.content")), 3);
    assert_string_equal(str_at(v, "choices.0.logprobs.content.1.token"), "b");
    assert_int_equal(int_at(v, "choices.0.logprobs.content.1.bytes.0"), 'b');
    assert_int_equal(int_at(v, "choices.0.logprobs.content.1.id"), 'b');
    assert_true(json_is_real(at(v, "choices.0.logprobs.content.1.logprob")));
    assert_string_equal(str_at(v, "choices.0.logprobs.content.1.top_logprobs.0.token"), "b");
    json_decref(v);
    /* none asked for: the chosen one all the same */
    v = rig_json(&r, CHAT, "{" USER ",'logprobs':true,'top_logprobs':0,'max_tokens':3," PLAY("abcdef") "}");
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.content")), 3);
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.content.0.top_logprobs")), 0);
    json_decref(v);
    /* in a stream each token's comes with the text it is part of, and none behind a stop string */
    v = rig_stream(&r, CHAT,
                   "{" USER ",'stream':true,'logprobs':true,'top_logprobs':1,'stop':'de'," PLAY("abcdef") "}");
    kv_buf text = {0}, probs = {0};
    size_t i, k;
    json_array_foreach(v, i, e) {
        if (json_is_string(at(e, "choices.0.delta.content"))) kv_buf_adds(&text, str_at(e, "choices.0.delta.content"));
        json_t *p;
        json_array_foreach(at(e, "choices.0.logprobs.content"), k, p) kv_buf_adds(&probs, str_at(p, "token"));
    }
    assert_string_equal(kv_buf_str(&text), "abc");
    assert_string_equal(kv_buf_str(&probs), "abc");
    kv_buf_free(&text);
    kv_buf_free(&probs);
    json_decref(v);
}

static void test_progress(void **state) {
    (void)state;
    kv_buf body = {0};
    kv_buf_adds(&body, "{'messages':[{'role':'user','content':'");
    for (int i = 0; i < 800; i++) kv_buf_adds(&body, i % 7 ? "p" : " ");
    kv_buf_adds(&body, "'}],'stream':true,'return_progress':true,'timings_per_token':true,'cache_prompt':false," PLAY(
                           "ok") "}");
    json_t *v = rig_stream(&r, CHAT, body.data), *e;
    size_t i;
    long long last = -1, total = 0;
    json_array_foreach(v, i, e) {
        const json_t *p = at(e, "prompt_progress");
        if (!p) continue;
        assert_true(int_at(p, "processed") > last);
        assert_int_equal(int_at(p, "cache"), 0);
        /* the first is always from before anything was computed, however late it is read */
        if (last < 0) {
            assert_int_equal(int_at(p, "processed"), 0);
            assert_true(json_real_value(at(e, "timings.prompt_ms")) == 0);
        }
        assert_int_equal(int_at(e, "timings.prompt_n"), int_at(p, "processed"));
        last = int_at(p, "processed");
        total = int_at(p, "total");
        assert_true(json_is_integer(at(p, "time_ms")));
    }
    assert_int_equal(last, total);
    assert_true(total > 800);
    json_decref(v);
    kv_buf_free(&body);
}

/* ── completions ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_completions(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/v1/completions", "{'prompt':'abc'," PLAY("def") "}"), *e;
    assert_string_equal(str_at(v, "object"), "text_completion");
    assert_string_equal(str_at(v, "choices.0.text"), "def");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(at(v, "choices.0.logprobs")));
    assert_int_equal(int_at(v, "usage.prompt_tokens"), 4);
    assert_timings(v);
    json_decref(v);

    v = rig_json(&r, "/v1/completions", "{'prompt':'abc','echo':true,'max_tokens':2," PLAY("def") "}");
    assert_string_equal(str_at(v, "choices.0.text"), "abcde");
    json_decref(v);

    v = rig_json(&r, "/v1/completions", "{'prompt':['a',[98,99]],'n':2,'echo':true," PLAY("!") "}");
    static const char *const want[] = {"a!", "a!", "bc!", "bc!"};
    assert_int_equal(json_array_size(at(v, "choices")), 4);
    size_t i;
    json_array_foreach(at(v, "choices"), i, e) {
        assert_int_equal(int_at(e, "index"), i);
        assert_string_equal(str_at(e, "text"), want[i]);
    }
    assert_int_equal(int_at(v, "usage.prompt_tokens"), 4); /* BOS a, b c: a prompt counts once */
    json_decref(v);

    v = rig_json(&r, "/v1/completions", "{'prompt':'a','logprobs':1,'max_tokens':2," PLAY("xyz") "}");
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.content")), 2);
    assert_string_equal(str_at(v, "choices.0.logprobs.tokens.1"), "y");
    assert_int_equal(int_at(v, "choices.0.logprobs.text_offset.1"), 1);
    assert_non_null(at(v, "choices.0.logprobs.top_logprobs.0.x"));
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.token_logprobs")), 2);
    json_decref(v);

    v = rig_stream(&r, "/v1/completions", "{'prompt':'abc','echo':true,'stream':true," PLAY("de") "}");
    size_t n = json_array_size(v);
    kv_buf text = {0};
    json_array_foreach(v, i, e) if (at(e, "choices.0.text")) kv_buf_adds(&text, str_at(e, "choices.0.text"));
    assert_string_equal(kv_buf_str(&text), "abcde");
    kv_buf_free(&text);
    assert_string_equal(json_string_value(json_array_get(v, n - 1)), "[DONE]");
    e = json_array_get(v, n - 2);
    assert_string_equal(str_at(e, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(e, "usage.completion_tokens"), 3);
    assert_timings(e);
    json_decref(v);
}

/* More prompts than slots, more than the queue takes at once. */
static void test_large_batch(void **state) {
    (void)state;
    kv_buf body = {0};
    kv_buf_adds(&body, "{'prompt':[");
    for (int i = 0; i < 100; i++) kv_buf_addf(&body, "%s[%d]", i ? "," : "", i);
    kv_buf_adds(&body, "],'echo':true,'max_tokens':1," PLAY("z") "}");
    json_t *v = rig_json(&r, "/v1/completions", body.data), *e;
    size_t i;
    assert_int_equal(json_array_size(at(v, "choices")), 100);
    json_array_foreach(at(v, "choices"), i, e) {
        char want[3] = {(char)i, 'z', 0};
        assert_int_equal(json_string_length(at(e, "text")), 2);
        assert_memory_equal(json_string_value(at(e, "text")), want, 2);
    }
    json_decref(v);
    kv_buf_free(&body);
}

/* ── llama-server's own ────────────────────────────────────────────────────────────────────────────────────────── */

static void test_native(void **state) {
    (void)state;
    static const char *const three[] = {"/completion", "/completions", "/v1/completion"};
    for (int i = 0; i < 3; i++) {
        json_t *v = rig_json(&r, three[i], "{'prompt':'ab','return_tokens':true,'stop':['q']," PLAY("x\\nyq") "}");
        assert_string_equal(str_at(v, "content"), "x\ny");
        assert_string_equal(str_at(v, "stop_type"), "word");
        assert_string_equal(str_at(v, "stopping_word"), "q");
        assert_string_equal(str_at(v, "prompt"), "<s>ab");
        assert_true(json_is_true(at(v, "stop")) && json_is_true(at(v, "has_new_line")) &&
                    json_is_false(at(v, "truncated")));
        assert_int_equal(json_array_size(at(v, "tokens")), 4);
        assert_int_equal(int_at(v, "tokens_evaluated"), 3);
        assert_int_equal(int_at(v, "tokens_predicted"), 4);
        assert_keys(v, "index id_slot model generation_settings.n_predict tokens_cached");
        assert_timings(v);
        json_decref(v);
    }
    json_t *v = rig_json(
        &r, "/completion",
        "{'prompt':'ab','n_predict':2,'response_fields':['content','generation_settings/n_predict','no']," PLAY(
            "xyz") "}");
    assert_int_equal(json_object_size(v), 2);
    assert_string_equal(str_at(v, "content"), "xy");
    assert_int_equal(int_at(v, "generation_settings/n_predict"), 2);
    json_decref(v);
    v = rig_json(&r, "/completion", "{'prompt':['a','b'],'n_predict':1," PLAY("x") "}");
    assert_int_equal(json_array_size(v), 2);
    assert_string_equal(str_at(v, "1.prompt"), "<s>b");
    assert_int_equal(int_at(v, "1.index"), 1);
    assert_int_equal(json_array_size(at(v, "0.tokens")), 0);
    json_decref(v);
    v = rig_json(&r, "/completion",
                 "{'prompt':'ab','n_predict':2,'n_probs':1,'post_sampling_probs':true," PLAY("xy") "}");
    assert_int_equal(json_array_size(at(v, "completion_probabilities")), 2);
    assert_true(json_real_value(at(v, "completion_probabilities.0.prob")) == 1);
    assert_string_equal(str_at(v, "completion_probabilities.0.top_probs.0.token"), "x");
    json_decref(v);
}

static void test_native_stream(void **state) {
    (void)state;
    json_t *v =
        rig_stream(&r, "/completion",
                   "{'prompt':'ab','n_predict':2,'n_probs':1,'stream':true,'timings_per_token':true," PLAY("xyz") "}");
    assert_int_equal(json_array_size(v), 3); /* two tokens and the whole; no [DONE] */
    assert_string_equal(str_at(v, "0.content"), "x");
    assert_int_equal(int_at(v, "1.tokens.0"), 'y');
    assert_true(json_is_false(at(v, "1.stop")));
    assert_int_equal(int_at(v, "1.tokens_predicted"), 2);
    assert_int_equal(json_array_size(at(v, "1.completion_probabilities")), 1);
    assert_timings(json_array_get(v, 0));
    assert_true(json_is_true(at(v, "2.stop")));
    assert_string_equal(str_at(v, "2.content"), "");
    assert_int_equal(json_array_size(at(v, "2.tokens")), 0);
    assert_string_equal(str_at(v, "2.stop_type"), "limit");
    json_decref(v);
}

/* ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char *path, *body;
    int status;
    const char *field; /* NULL: param is null */
} errors[] = {
    {CHAT, "{'messages':[", 400, NULL},
    {CHAT, "[]", 400, NULL},
    {CHAT, "{}", 400, "messages"},
    {CHAT, "{'messages':[{'role':'user','content':[{'type':'image_url','image_url':{'url':'x'}}]}]}", 400,
     "messages[0].content[0]"},
    {CHAT, "{" USER ",'n':9}", 400, "n"},
    {CHAT, "{" USER ",'tools':[{}]}", 400, "tools[0].type"},
    {CHAT, "{" USER ",'tool_choice':'required'}", 400, "tool_choice"},
    {CHAT, "{" USER ",'tools':[{'type':'function','function':{'name':'f'}}],'grammar':'root ::= \\\"a\\\"'}", 400,
     "grammar"},
    {CHAT, "{" USER ",'chat_template_kwargs':5}", 400, "chat_template_kwargs"},
    {CHAT, "{" USER ",'chat_template_kwargs':{'enable_thinking':'x'}}", 400, "chat_template_kwargs.enable_thinking"},
    {CHAT, "{" USER ",'continue_final_message':true}", 400, "continue_final_message"},
    {CHAT, "{" USER ",'response_format':{'type':'json_schema','json_schema':{'schema':{'type':'hiccup'}}}}", 400,
     "response_format.json_schema.schema"},
    {CHAT, "{'messages':[{'role':'assistant','content':'a'},{'role':'assistant','content':'b'}]}", 400, "messages"},
    {CHAT, "{" USER ",'model':3}", 400, "model"},
    {"/v1/completions", "{}", 400, "prompt"},
    {"/v1/completions", "{'prompt':[1,999]}", 400, "prompt[1]"},
    {"/v1/completions", "{'prompt':'a','suffix':'b'}", 400, "suffix"},
    {"/completion", "{'prompt':'a','n_predict':-5}", 400, "n_predict"},
    {"/completion", "{'prompt':'a','grammar':'%llguidance {}'}", 400, "grammar"},
    {"/completion", "{'prompt':'a','id_slot':9}", 400, "id_slot"},
    {"/apply-template", "{'messages':'x'}", 400, "messages"},
};

static void test_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        /* a stream's first answer is a 4xx all the same */
        for (int stream = 0; stream < 2; stream++) {
            kv_buf body = {0};
            if (stream && errors[i].body[0] == '{' && errors[i].body[1] != '}')
                kv_buf_addf(&body, "{'stream':true,%s", errors[i].body + 1);
            else kv_buf_adds(&body, errors[i].body);
            answer a = {0};
            int status = rig_ask(&a, &r, errors[i].path, body.data);
            if (status != errors[i].status) fail_msg("%s: %d %s", body.data, status, kv_buf_str(&a.body));
            json_t *v = json_loads(kv_buf_str(&a.body), 0, NULL);
            assert_string_equal(str_at(v, "error.type"), "invalid_request_error");
            if (errors[i].field) assert_string_equal(str_at(v, "error.param"), errors[i].field);
            else assert_true(json_is_null(at(v, "error.param")));
            json_decref(v);
            free_answer(&a);
            kv_buf_free(&body);
        }
    }
    json_decref(rig_json(&r, CHAT, "{" USER "," PLAY("still here") "}"));
}

static void test_context_full(void **state) {
    (void)state;
    kv_buf body = {0};
    for (int stream = 0; stream < 2; stream++) {
        kv_buf_clear(&body);
        kv_buf_addf(&body, "{'stream':%s,'prompt':'", stream ? "true" : "false");
        for (int i = 0; i < 1023; i++) kv_buf_adds(&body, "w");
        kv_buf_adds(&body, "'," PLAY("x") "}"); /* BOS and 1023: not even one token of room */
        answer a = {0};
        assert_int_equal(rig_ask(&a, &r, "/completion", body.data), 400);
        json_t *v = json_loads(kv_buf_str(&a.body), 0, NULL);
        assert_string_equal(str_at(v, "error.type"), "exceed_context_size_error");
        assert_string_equal(str_at(v, "error.code"), "context_length_exceeded");
        assert_int_equal(int_at(v, "error.n_prompt_tokens"), 1024);
        assert_int_equal(int_at(v, "error.n_ctx"), 1024);
        assert_non_null(strstr(str_at(v, "error.message"), "maximum context length is 1024 tokens"));
        json_decref(v);
        free_answer(&a);
    }
    /* one less goes, and ends with the context */
    kv_buf_clear(&body);
    kv_buf_adds(&body, "{'max_tokens':50,'prompt':'");
    for (int i = 0; i < 1021; i++) kv_buf_adds(&body, "w");
    kv_buf_adds(&body, "'," PLAY("abcdef") "}");
    json_t *v = rig_json(&r, "/completion", body.data);
    assert_string_equal(str_at(v, "stop_type"), "limit");
    assert_true(json_is_true(at(v, "truncated")));
    json_decref(v);
    kv_buf_free(&body);
}

static void test_strict_model(void **state) {
    (void)state;
    r.opt.strict_model = true;
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, CHAT, "{'model':'gpt-4'," USER "}"), 404);
    json_t *v = json_loads(kv_buf_str(&a.body), 0, NULL);
    assert_string_equal(str_at(v, "error.code"), "model_not_found");
    assert_string_equal(str_at(v, "error.param"), "model");
    json_decref(v);
    free_answer(&a);
    v = rig_json(&r, CHAT, "{'model':'fake-model'," USER "," PLAY("a") "}");
    json_decref(v);
    r.opt.strict_model = false;
    v = rig_json(&r, CHAT, "{'model':'gpt-4'," USER "," PLAY("a") "}");
    assert_string_equal(str_at(v, "model"), "fake-model");
    json_decref(v);
}

/* ── tools and reasoning through the parser ────────────────────────────────────────────────────────────────────── */

#define TOOLS                                                                                                          \
    "'tools':[{'type':'function','function':{'name':'get_time','description':'d','parameters':{'type':'object',"       \
    "'properties':{'city':{'type':'string'}}}}}]"

static void test_tools_are_rendered(void **state) {
    (void)state;
    json_t *v = rig_json(&r, "/apply-template", "{" USER "," TOOLS "}");
    assert_true(strlen(str_at(v, "prompt")) > 0);
    json_decref(v);
    v = rig_json(&r, CHAT, "{" USER "," TOOLS ",'tool_choice':'none'," PLAY("no tools") "}");
    assert_string_equal(str_at(v, "choices.0.message.content"), "no tools");
    json_decref(v);
}

/* ── going away ────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool all_idle(void) {
    return kv_sched_idle(r.app.sched);
}

/* A client that leaves: its generation ends before its million tokens are done. */
static void test_hang_up(void **state) {
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        kv_buf text = {0};
        char *body = json_text(stream ? "{'prompt':'a','stream':true}" : "{'prompt':'a'}");
        kv_buf_addf(&text, "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
                    strlen(body), body);
        client c = dial(kv_http_port(r.http));
        say(&c, text.data);
        if (stream) {
            answer a = {0};
            assert_true(read_head(&c, &a));
            assert_int_equal(a.status, 200);
            assert_true(read_chunk(&c, &a));
            free_answer(&a);
        }
        hang_up(&c);
        kv_buf_free(&text);
        free(body);
        /* every later request still gets a slot; and in the end nothing runs */
        for (int i = 0; i < 6; i++) json_decref(rig_json(&r, CHAT, "{" USER "," PLAY("ok") "}"));
        while (!all_idle()) sched_yield();
    }
}

/* The scheduler stops under a stream: one error event after the 200, no [DONE]. The last test: nothing runs after it. */
static void test_stop_in_stream(void **state) {
    (void)state;
    char *body = json_text("{'prompt':'a','stream':true}");
    kv_buf text = {0};
    kv_buf_addf(&text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
                strlen(body), body);
    client c = dial(kv_http_port(r.http));
    say(&c, text.data);
    answer a = {0};
    assert_true(read_head(&c, &a));
    assert_true(read_chunk(&c, &a));
    kv_sched_stop(r.app.sched);
    while (read_chunk(&c, &a)) {
    }
    assert_false(a.closed);
    json_t *v = events_of(&a);
    const json_t *last = json_array_get(v, json_array_size(v) - 1);
    assert_string_equal(str_at(last, "error.type"), "unavailable_error");
    json_decref(v);
    free_answer(&a);
    hang_up(&c);
    kv_buf_free(&text);
    free(body);
    assert_int_equal(rig_ask(&a, &r, CHAT, "{" USER "}"), 503);
    free_answer(&a);
}

static int open_rig(void **state) {
    (void)state;
    rig_open(&r);
    r.opt.test_sampler = true;
    rig_serve(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    rig_close(&r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_draining),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_props),
        cmocka_unit_test(test_slots_and_metrics),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_stream),
        cmocka_unit_test(test_chat_finish),
        cmocka_unit_test(test_chat_choices),
        cmocka_unit_test(test_chat_logprobs),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_large_batch),
        cmocka_unit_test(test_native),
        cmocka_unit_test(test_native_stream),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_context_full),
        cmocka_unit_test(test_strict_model),
        cmocka_unit_test(test_tools_are_rendered),
        cmocka_unit_test(test_hang_up),
        cmocka_unit_test(test_stop_in_stream),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
