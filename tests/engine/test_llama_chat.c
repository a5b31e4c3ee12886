/* Rendering conversations and parsing answers, with the templates of many model families and no model at all. */
#include "engine/real.h"

#include "base/json.h"
#include "engine/llama_border.h"

#define TOOLS                                                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather of a city\","            \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]"
#define HELLO "[{\"role\":\"user\",\"content\":\"Hello\"}]"

static char *read_template(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/models/templates/%s.jinja", KVASIR_ENGINE_SOURCE, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing: scripts/fetch-engine.sh unpacks it", path);
    kv_buf b = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) kv_buf_add(&b, part, n);
    fclose(f);
    return kv_buf_take(&b);
}

/* A model that has nothing but a template. */
static kv_model template_only(const char *name) {
    kv_error err = {0};
    kv_model m = {0};
    char *source = read_template(name);
    check(kv_border_model_new(&m.border, NULL, source, "<s>", "</s>", &err), &err);
    free(source);
    return m;
}

static kv_chat_params params(const char *messages) {
    return (kv_chat_params){.messages_json = messages,
                            .enable_thinking = -1,
                            .add_generation_prompt = true,
                            .reasoning_format = "auto",
                            .now_seconds = 1700000000};
}

static kv_chat_prompt *render(const kv_model *m, kv_chat_params p) {
    kv_error err = {0};
    kv_chat_prompt *c;
    check(kv_chat_render(&c, m, &p, &err), &err);
    return c;
}

static void refuses(const kv_model *m, kv_chat_params p, const char *why) {
    kv_error err = {0};
    kv_chat_prompt *c;
    if (kv_chat_render(&c, m, &p, &err) != KV_INVALID) fail_msg("taken, though %s", why);
    assert_null(c);
    if (!strstr(err.message, why)) fail_msg("\"%s\" does not say \"%s\"", err.message, why);
}

/* ── rendering ── */

static void test_chatml(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model m = {0};
    check(kv_border_model_new(&m.border, NULL, NULL, NULL, NULL, &err), &err);
    bool is_explicit = true;
    assert_non_null(strstr(kv_border_template(m.border, &is_explicit), "<|im_start|>"));
    assert_false(is_explicit);
    kv_chat_prompt *c = render(&m, params("[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                                          "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]}]"));
    size_t n;
    assert_string_equal(kv_chat_prompt_text(c, &n), "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi"
                                                    "<|im_end|>\n<|im_start|>assistant\n");
    assert_int_equal(n, strlen(kv_chat_prompt_text(c, NULL)));
    assert_string_equal(kv_chat_prompt_generation(c), "<|im_start|>assistant\n");
    assert_false(kv_chat_prompt_thinks(c));
    kv_chat_prompt_free(c);
    kv_border_model_free(m.border);
}

static void test_template_errors_reach_the_caller(void **state) {
    (void)state;
    kv_model m = template_only("google-gemma-2-2b-it");
    refuses(&m, params("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]"),
            "refused this conversation: Conversation roles must alternate");
    kv_border_model_free(m.border);

    kv_error err = {0};
    assert_int_equal(kv_border_model_new(&m.border, NULL, "{% if %}", NULL, NULL, &err), KV_INVALID);
    if (strstr(err.message, "std::exception") || !strstr(err.message, "template cannot be used"))
        fail_msg("%s", err.message);
    assert_null(m.border);
}

static void test_wrong_input_is_refused(void **state) {
    (void)state;
    kv_model m = template_only("Qwen-Qwen3-0.6B");
    refuses(&m, params("{"), "parse error");
    refuses(&m, params("{}"), "array");
    refuses(&m, params("[]"), "messages is empty");
    refuses(&m, params("[1]"), "object");
    refuses(&m, params("[{\"content\":\"x\"}]"), "role");
    refuses(&m, params("[{\"role\":5,\"content\":\"x\"}]"), "");
    refuses(&m, params("[{\"role\":\"user\",\"content\":5}]"), "content");
    refuses(&m, params("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]"), "image_url");
    kv_chat_params p = params(HELLO);
    p.tools_json = "[{}]";
    refuses(&m, p, "tool");
    p.tools_json = "5";
    refuses(&m, p, "");
    p = params(HELLO);
    p.tool_choice = "maybe";
    refuses(&m, p, "maybe");
    p.tool_choice = "required";
    refuses(&m, p, "there are no tools");
    p = params(HELLO);
    p.reasoning_format = "loud";
    refuses(&m, p, "loud");
    p = params(HELLO);
    p.kwargs_json = "[]";
    refuses(&m, p, "must be an object");
    p.kwargs_json = "{\"enable_thinking\":\"yes\"}";
    refuses(&m, p, "true or false");
    p = params(HELLO);
    p.grammar = "root ::= \"a\"";
    p.tools_json = TOOLS;
    refuses(&m, p, "grammar and tools");
    p.tools_json = NULL;
    p.json_schema = "{}";
    refuses(&m, p, "grammar and a JSON schema");
    p = params(HELLO);
    p.continue_final_message = true;
    refuses(&m, p, "last message of the assistant");
    kv_border_model_free(m.border);
}

static void test_builtin_templates_by_name(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model m = {0};
    check(kv_border_model_new(&m.border, NULL, "llama3", NULL, NULL, &err), &err);
    kv_chat_prompt *c = render(&m, params(HELLO));
    assert_non_null(strstr(kv_chat_prompt_text(c, NULL), "<|start_header_id|>user<|end_header_id|>\n\nHello"));
    kv_chat_prompt_free(c);
    kv_chat_params p = params(HELLO);
    p.tools_json = TOOLS;
    refuses(&m, p, "built-in");
    kv_border_model_free(m.border);
}

static void test_thinking_and_kwargs(void **state) {
    (void)state;
    kv_model m = template_only("Qwen-Qwen3-0.6B");
    kv_chat_params p = params(HELLO);
    kv_chat_prompt *c = render(&m, p);
    assert_true(kv_chat_prompt_thinks(c));
    assert_null(strstr(kv_chat_prompt_text(c, NULL), "</think>"));
    kv_chat_prompt_free(c);
    p.enable_thinking = 0;
    c = render(&m, p);
    assert_non_null(strstr(kv_chat_prompt_text(c, NULL), "<think>\n\n</think>"));
    kv_chat_prompt_free(c);
    p.kwargs_json = "{\"enable_thinking\":true}";
    c = render(&m, p);
    assert_null(strstr(kv_chat_prompt_text(c, NULL), "</think>"));
    kv_chat_prompt_free(c);
    kv_border_model_free(m.border);
}

static void test_the_date_is_the_callers(void **state) {
    (void)state;
    kv_model m = template_only("meta-llama-Llama-3.1-8B-Instruct");
    kv_chat_prompt *c = render(&m, params(HELLO));
    if (!strstr(kv_chat_prompt_text(c, NULL), "Nov 2023")) fail_msg("%s", kv_chat_prompt_text(c, NULL));
    kv_chat_prompt_free(c);
    kv_chat_params p = params(HELLO);
    p.kwargs_json = "{\"date_string\":\"1 Jan 1970\"}";
    c = render(&m, p);
    assert_non_null(strstr(kv_chat_prompt_text(c, NULL), "1 Jan 1970"));
    kv_chat_prompt_free(c);
    kv_border_model_free(m.border);
}

static void test_caps_and_schema(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model m = template_only("Qwen-Qwen3-0.6B");
    kv_buf b = {0};
    check(kv_chat_caps(&b, &m, &err), &err);
    json_t *caps;
    check(kv_json_parse(&caps, b.data, b.len, &err), &err);
    assert_true(json_is_true(json_object_get(caps, "supports_tools")));
    json_decref(caps);
    kv_border_model_free(m.border);
    kv_buf_clear(&b);
    check(kv_schema_to_grammar(&b, "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}}}", &err), &err);
    assert_non_null(strstr(kv_buf_str(&b), "root ::="));
    assert_int_equal(kv_schema_to_grammar(&b, "{\"type\":\"wish\"}", &err), KV_INVALID);
    assert_int_equal(kv_schema_to_grammar(&b, "{", &err), KV_INVALID);
    assert_int_equal(kv_schema_to_grammar(&b, "{\"$ref\":\"#/nowhere\"}", &err), KV_INVALID);
    kv_buf_free(&b);
}

/* ── parsing ── */

typedef struct answer {
    const char *template_name;
    bool tools;
    const char *text; /* as generated */
    const char *content, *reasoning;
    const char *call; /* name of the one call, NULL = none; its arguments are {"city":"Paris"} */
} answer;

#define CITY "{\"city\": \"Paris\"}"
static const answer answers[] = {
    {"Qwen-Qwen3-0.6B", false, "<think>\nhmm</think>\n\nHi.", "Hi.", "hmm", NULL},
    {"Qwen-Qwen3-0.6B", true,
     "<think>\nhmm</think>\n\nLook.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " CITY "}\n</tool_call>",
     "Look.\n", "hmm", "get_weather"},
    {"Qwen-Qwen2.5-7B-Instruct", true,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " CITY "}\n</tool_call>", "", "", "get_weather"},
    {"Qwen-Qwen2.5-7B-Instruct", true, "No tool, caf\xC3\xA9.", "No tool, caf\xC3\xA9.", "", NULL},
    {"meta-llama-Llama-3.1-8B-Instruct", true, "{\"name\": \"get_weather\", \"parameters\": " CITY "}", "", "",
     "get_weather"},
    {"mistralai-Mistral-Nemo-Instruct-2407", true,
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " CITY ", \"id\": \"abcdef123\"}]", "", "",
     "get_weather"},
    {"openai-gpt-oss-120b", true,
     "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
     "<|constrain|>json<|message|>" CITY,
     "", "hmm", "get_weather"},
    {"openai-gpt-oss-120b", false,
     "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>Hi.", "Hi.", "hmm", NULL},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", false, "hmm</think>Hi.", "Hi.", "\nhmm",
     NULL}, /* its prompt ends in "<think>\n" */
    {"Qwen3-Coder", true,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", "", "",
     "get_weather"},
    {"google-gemma-2-2b-it", false, "Hi.", "Hi.", "", NULL},
};

/* What a client has that appends every delta to what it got before. */
typedef struct client {
    kv_buf content, reasoning, name, args, id;
    int n_named;
} client;

static void append(kv_buf *b, const json_t *obj, const char *key) {
    const char *s = json_string_value(json_object_get(obj, key));
    if (s) kv_buf_adds(b, s);
}

static void client_takes(client *c, const kv_buf *deltas) {
    kv_error err = {0};
    json_t *list, *delta;
    check(kv_json_parse(&list, deltas->data, deltas->len, &err), &err);
    size_t i;
    json_array_foreach(list, i, delta) {
        append(&c->content, delta, "content");
        append(&c->reasoning, delta, "reasoning_content");
        json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
        if (!call) continue;
        assert_int_equal(json_integer_value(json_object_get(call, "index")), 0);
        json_t *function = json_object_get(call, "function");
        if (json_object_get(function, "name")) {
            c->n_named++;
            assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
        }
        append(&c->id, call, "id");
        append(&c->name, function, "name");
        append(&c->args, function, "arguments");
    }
    json_decref(list);
}

static void client_free(client *c) {
    kv_buf_free(&c->content);
    kv_buf_free(&c->reasoning);
    kv_buf_free(&c->name);
    kv_buf_free(&c->args);
    kv_buf_free(&c->id);
}

static void check_city(const char *args) {
    kv_error err = {0};
    json_t *v;
    check(kv_json_parse(&v, args, strlen(args), &err), &err);
    assert_string_equal(json_string_value(json_object_get(v, "city")), "Paris");
    json_decref(v);
}

static void check_message(kv_chat_stream *s, const answer *a, const client *c) {
    kv_error err = {0};
    kv_buf b = {0};
    check(kv_chat_stream_message(&b, s, &err), &err);
    json_t *msg;
    check(kv_json_parse(&msg, b.data, b.len, &err), &err);
    assert_string_equal(json_string_value(json_object_get(msg, "role")), "assistant");
    const char *content = json_string_value(json_object_get(msg, "content"));
    assert_string_equal(content ? content : "", a->content);
    json_t *call = json_array_get(json_object_get(msg, "tool_calls"), 0);
    assert_int_equal(call != NULL, a->call != NULL);
    assert_int_equal(kv_chat_stream_has_tool_calls(s), a->call != NULL);
    if (call) {
        assert_string_equal(json_string_value(json_object_get(call, "id")), kv_buf_str(&c->id));
        assert_true(c->id.len >= 9);
    }
    json_decref(msg);
    kv_buf_free(&b);
}

/* The text comes in pieces of any size; what the deltas add up to is the same. */
static void parse_in_pieces(const kv_chat_prompt *prompt, const answer *a, unsigned *seed) {
    kv_error err = {0};
    kv_chat_stream *s;
    check(kv_chat_stream_new(&s, prompt, &err), &err);
    client c = {0};
    kv_buf deltas = {0};
    size_t n = strlen(a->text), at = 0;
    for (;;) {
        *seed = *seed * 1103515245u + 12345u;
        size_t piece = 1 + (*seed >> 16) % 7;
        if (piece > n - at) piece = n - at;
        while (at + piece < n && ((unsigned char)a->text[at + piece] & 0xC0) == 0x80) piece++;
        bool final = at + piece == n;
        kv_buf_clear(&deltas);
        check(kv_chat_stream_feed(&deltas, s, a->text + at, piece, final, &err), &err);
        client_takes(&c, &deltas);
        at += piece;
        if (final) break;
    }
    assert_string_equal(kv_buf_str(&c.content), a->content);
    assert_string_equal(kv_buf_str(&c.reasoning), a->reasoning);
    assert_int_equal(c.n_named, a->call ? 1 : 0);
    if (a->call) {
        assert_string_equal(kv_buf_str(&c.name), a->call);
        check_city(kv_buf_str(&c.args));
    }
    check_message(s, a, &c);
    client_free(&c);
    kv_buf_free(&deltas);
    kv_chat_stream_free(s);
}

static void test_answers_in_pieces(void **state) {
    (void)state;
    unsigned seed = 20240607;
    print_message("seed %u\n", seed);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const answer *a = &answers[i];
        kv_model m = template_only(a->template_name);
        kv_chat_params p = params(HELLO);
        if (a->tools) p.tools_json = TOOLS;
        kv_chat_prompt *c = render(&m, p);
        print_message("%s: %.40s\n", a->template_name, a->text);
        for (int round = 0; round < 20; round++) parse_in_pieces(c, a, &seed);
        kv_chat_prompt_free(c);
        kv_border_model_free(m.border);
    }
}

static void test_reasoning_stays_inside_with_format_none(void **state) {
    (void)state;
    kv_model m = template_only("Qwen-Qwen3-0.6B");
    kv_chat_params p = params(HELLO);
    p.reasoning_format = "none";
    kv_chat_prompt *c = render(&m, p);
    unsigned seed = 7;
    parse_in_pieces(c, &(answer){NULL, false, "<think>\nhmm</think>\n\nHi.", "<think>\nhmm</think>\n\nHi.", "", NULL},
                    &seed);
    kv_chat_prompt_free(c);
    kv_border_model_free(m.border);
}

/* Cut off in the middle, or not what the format promises: nothing is lost, nothing fails. */
static void test_broken_answers(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model m = template_only("Qwen-Qwen2.5-7B-Instruct");
    kv_chat_params p = params(HELLO);
    p.tools_json = TOOLS;
    kv_chat_prompt *c = render(&m, p);
    static const char *const texts[] = {"Look: <tool_call>\n{\"name\": \"get_weather\", \"argu",
                                        "<tool_call>nonsense</tool_call>",
                                        "</tool_call>",
                                        "",
                                        "<",
                                        NULL};
    for (int i = 0; texts[i]; i++) {
        kv_chat_stream *s;
        check(kv_chat_stream_new(&s, c, &err), &err);
        kv_buf b = {0};
        check(kv_chat_stream_feed(&b, s, texts[i], strlen(texts[i]), true, &err), &err);
        client got = {0};
        client_takes(&got, &b);
        if (!kv_chat_stream_has_tool_calls(s)) assert_string_equal(kv_buf_str(&got.content), texts[i]);
        client_free(&got);
        kv_buf_free(&b);
        kv_chat_stream_free(s);
    }
    kv_chat_prompt_free(c);
    kv_border_model_free(m.border);
}

static void test_continued_message(void **state) {
    (void)state;
    kv_model m = template_only("Qwen-Qwen2.5-7B-Instruct");
    kv_chat_params p =
        params("[{\"role\":\"user\",\"content\":\"Count.\"},{\"role\":\"assistant\",\"content\":\"One, two\"}]");
    p.continue_final_message = true;
    kv_chat_prompt *c = render(&m, p);
    size_t n;
    const char *text = kv_chat_prompt_text(c, &n);
    assert_true(n > 8 && strcmp(text + n - 8, "One, two") == 0);
    kv_error err = {0};
    kv_chat_stream *s;
    check(kv_chat_stream_new(&s, c, &err), &err);
    kv_buf b = {0};
    check(kv_chat_stream_feed(&b, s, ", three", 7, true, &err), &err);
    client got = {0};
    client_takes(&got, &b);
    assert_string_equal(kv_buf_str(&got.content), ", three");
    client_free(&got);
    kv_buf_free(&b);
    kv_chat_stream_free(s);
    kv_chat_prompt_free(c);
    kv_border_model_free(m.border);
}

/* Brackets without end, as a model may repeat them: the parser calls itself for each. */
static void test_deep_answers(void **state) {
    (void)state;
    kv_error err = {0};
    kv_model m = template_only("Qwen-Qwen2.5-7B-Instruct");
    kv_chat_params p = params(HELLO);
    p.tools_json = TOOLS;
    kv_chat_prompt *c = render(&m, p);
    for (int depth = 100; depth <= 1000000; depth *= 10) {
        kv_buf text = {0}, b = {0};
        kv_chat_stream *s;
        kv_buf_adds(&text, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": ");
        for (int i = 0; i < depth; i++) kv_buf_adds(&text, "[");
        check(kv_chat_stream_new(&s, c, &err), &err);
        check(kv_chat_stream_feed(&b, s, text.data, text.len, true, &err), &err);
        client got = {0};
        client_takes(&got, &b);
        if (!kv_chat_stream_has_tool_calls(s)) assert_string_equal(kv_buf_str(&got.content), text.data);
        else assert_int_equal(depth, 100);
        client_free(&got);
        kv_buf_free(&b);
        kv_chat_stream_free(s);

        /* in pieces: what was told stays, and the rest is told */
        check(kv_chat_stream_new(&s, c, &err), &err);
        for (size_t at = 0; at < text.len; at += 50000)
            check(
                kv_chat_stream_feed(&b, s, text.data + at, text.len - at < 50000 ? text.len - at : 50000, false, &err),
                &err);
        check(kv_chat_stream_feed(&b, s, " end", 4, true, &err), &err);
        if (depth > 1000) assert_non_null(strstr(b.data, " end"));
        kv_buf_free(&b);
        kv_chat_stream_free(s);
        kv_buf_free(&text);
    }
    kv_chat_prompt_free(c);

    kv_buf messages = {0}; /* the same, begun by the client */
    kv_buf_adds(&messages,
                "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"<tool_call>\\n"
                "{\\\"name\\\": \\\"get_weather\\\", \\\"arguments\\\": {\\\"city\\\": ");
    for (int i = 0; i < 100000; i++) kv_buf_adds(&messages, "[");
    kv_buf_adds(&messages, "\"}]");
    p = params(messages.data);
    p.tools_json = TOOLS;
    p.continue_final_message = true;
    c = render(&m, p);
    kv_chat_stream *s;
    kv_buf b = {0};
    check(kv_chat_stream_new(&s, c, &err), &err);
    check(kv_chat_stream_feed(&b, s, "[]", 2, true, &err), &err);
    assert_non_null(strstr(b.data, "[]"));
    kv_buf_free(&b);
    kv_chat_stream_free(s);
    kv_chat_prompt_free(c);
    kv_buf_free(&messages);
    kv_border_model_free(m.border);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_template_errors_reach_the_caller),
        cmocka_unit_test(test_wrong_input_is_refused),
        cmocka_unit_test(test_builtin_templates_by_name),
        cmocka_unit_test(test_thinking_and_kwargs),
        cmocka_unit_test(test_the_date_is_the_callers),
        cmocka_unit_test(test_caps_and_schema),
        cmocka_unit_test(test_answers_in_pieces),
        cmocka_unit_test(test_reasoning_stays_inside_with_format_none),
        cmocka_unit_test(test_broken_answers),
        cmocka_unit_test(test_continued_message),
        cmocka_unit_test(test_deep_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
