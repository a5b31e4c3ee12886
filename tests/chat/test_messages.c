/* Messages and tools: what passes and how it is tidied, what is refused and which place the error names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chat/messages.h"

static json_t *parse(const char *text) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!v) fail_msg("bad JSON in the test: %s", text);
    return v;
}

static void assert_json(const json_t *got, const char *want) {
    json_t *w = parse(want);
    if (!json_equal(got, w)) {
        kv_buf text = {0};
        kv_json_dump(&text, got);
        fail_msg("got  %s\nwant %s", kv_buf_str(&text), want);
    }
    json_decref(w);
}

/* ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char *in, *out;
} good_messages[] = {
    {"[{\"role\":\"user\",\"content\":\"hi\"}]", "[{\"role\":\"user\",\"content\":\"hi\"}]"},
    /* roles: OpenAI's, and a template's own */
    {"[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"ipython\",\"content\":\"b\"}]",
     "[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"ipython\",\"content\":\"b\"}]"},
    /* parts keep their order; a refusal is text */
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"x\":1},{\"type\":\"refusal\",\"refusal\":"
     "\"b\"}]}]",
     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]"},
    {"[{\"role\":\"user\",\"content\":[]}]", "[{\"role\":\"user\",\"content\":\"\"}]"},
    /* null content is nothing said */
    {"[{\"role\":\"assistant\",\"content\":null}]", "[{\"role\":\"assistant\",\"content\":\"\"}]"},
    {"[{\"role\":\"tool\",\"content\":null,\"tool_call_id\":\"c\"}]",
     "[{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"c\"}]"},
    /* unknown members and nulls go */
    {"[{\"role\":\"assistant\",\"content\":\"x\",\"refusal\":null,\"audio\":{},\"annotations\":[],\"name\":null,"
     "\"reasoning_content\":null,\"tool_calls\":null,\"function_call\":null}]",
     "[{\"role\":\"assistant\",\"content\":\"x\"}]"},
    {"[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\",\"name\":\"n\"}]",
     "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\",\"name\":\"n\"}]"},
    /* tool calls: arguments as text, as an object, missing; type missing; empty list */
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"arguments\":\"{\\\"a\\\":1}\"}}]}]",
     "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
     "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]}]"},
    {"[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}"
     "},"
     "{\"function\":{\"name\":\"g\"}}]}]",
     "[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"arguments\":\"{\\\"a\\\":1}\"}},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}]"},
    {"[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[]}]", "[{\"role\":\"assistant\",\"content\":\"t\"}]"},
};

static const struct {
    const char *in, *field;
} bad_messages[] = {
    {"null", "messages"},
    {"\"x\"", "messages"},
    {"{}", "messages"},
    {"[]", "messages"},
    {"[123]", "messages[0]"},
    {"[{\"role\":\"user\",\"content\":\"a\"},null]", "messages[1]"},
    {"[{}]", "messages[0].role"},
    {"[{\"role\":null,\"content\":\"a\"}]", "messages[0].role"},
    {"[{\"role\":1,\"content\":\"a\"}]", "messages[0].role"},
    {"[{\"role\":\"\",\"content\":\"a\"}]", "messages[0].role"},
    {"[{\"role\":\"user\"}]", "messages[0].content"},
    {"[{\"role\":\"assistant\"}]", "messages[0].content"},
    {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content"},
    {"[{\"role\":\"user\",\"content\":{\"type\":\"text\"}}]", "messages[0].content"},
    {"[{\"role\":\"user\",\"content\":[\"a\"]}]", "messages[0].content[0]"},
    {"[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]", "messages[0].content[0].type"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":7}]}]", "messages[0].content[0].text"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"hologram\"}]}]", "messages[0].content[0]"},
    {"[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
     "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]",
     "messages[1].content[1]"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"\"}}]}]",
     "messages[0].content[0]"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"file\"}]}]", "messages[0].content[0]"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"video_url\"}]}]", "messages[0].content[0]"},
    {"[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":1}]", "messages[0].reasoning_content"},
    {"[{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":1}]", "messages[0].tool_call_id"},
    {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls[0]"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0].function"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"custom\"}]}]", "messages[0].tool_calls[0].type"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":1}]}]", "messages[0].tool_calls[0].function"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", "messages[0].tool_calls[0].function.name"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":3}}]}]",
     "messages[0].tool_calls[0].function.arguments"},
    {"[{\"role\":\"assistant\",\"content\":\"a\",\"function_call\":{\"name\":\"f\"}}]", "messages[0].function_call"},
};

static void test_good_messages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good_messages / sizeof *good_messages; i++) {
        json_t *in = parse(good_messages[i].in), *before = json_deep_copy(in), *out;
        kv_error err = {0};
        if (kv_chat_check_messages(&out, in, KV_IMAGE_ERROR, &err) != KV_OK)
            fail_msg("%s: %s", good_messages[i].in, err.message);
        assert_json(out, good_messages[i].out);
        assert_true(json_equal(in, before));
        json_decref(in);
        json_decref(before);
        json_decref(out);
    }
}

static void test_bad_messages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_messages / sizeof *bad_messages; i++) {
        json_t *in = parse(bad_messages[i].in), *out;
        kv_error err = {0};
        if (kv_chat_check_messages(&out, in, KV_IMAGE_ERROR, &err) != KV_INVALID)
            fail_msg("accepted: %s", bad_messages[i].in);
        assert_null(out);
        assert_string_equal(err.field, bad_messages[i].field);
        if (!strstr(err.message, bad_messages[i].field))
            fail_msg("'%s' not in: %s", bad_messages[i].field, err.message);
        json_decref(in);
    }
}

/* A path that is longer than an error's field is cut, not overrun. */
static void test_long_place(void **state) {
    (void)state;
    json_t *list = json_array(), *out;
    for (int i = 0; i < 1234567 / 100; i++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "user", "content", "x"));
    json_array_append_new(list, json_pack("{s:s, s:[{s:{s:s, s:i}}]}", "role", "assistant", "tool_calls", "function",
                                          "name", "f", "arguments", 1));
    kv_error err = {0};
    assert_int_equal(kv_chat_check_messages(&out, list, KV_IMAGE_ERROR, &err), KV_INVALID);
    assert_string_equal(err.field, "messages[12345].tool_calls[0].function.arguments");
    json_decref(list);
}

/* Images stand as a text where they may; nothing else does. */
static void test_media(void **state) {
    (void)state;
    static const char *const images[] = {
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,x\"}}",
        "{\"type\":\"input_image\",\"image_url\":\"x\"}",
        "{\"type\":\"image\",\"source\":{}}",
    };
    static const char *const others[] = {"input_audio", "video_url", "file", "input_file", "document"};
    char text[300];
    json_t *out;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        snprintf(text, sizeof text, "[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},%s]}]",
                 images[i]);
        json_t *in = parse(text);
        kv_error err = {0};
        assert_int_equal(kv_chat_check_messages(&out, in, KV_IMAGE_ERROR, &err), KV_INVALID);
        assert_string_equal(err.field, "messages[0].content[1]");
        assert_non_null(strstr(err.message, "image"));
        assert_non_null(strstr(err.message, "--on-image placeholder"));
        assert_int_equal(kv_chat_check_messages(&out, in, KV_IMAGE_PLACEHOLDER, &err), KV_OK);
        assert_json(out, "[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                         "\"text\":\"[image]\"}]}]");
        json_decref(out);
        json_decref(in);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(text, sizeof text, "[{\"role\":\"user\",\"content\":[{\"type\":\"%s\"}]}]", others[i]);
        json_t *in = parse(text);
        kv_error err = {0};
        assert_int_equal(kv_chat_check_messages(&out, in, KV_IMAGE_PLACEHOLDER, &err), KV_INVALID);
        assert_string_equal(err.field, "messages[0].content[0]");
        assert_non_null(strstr(err.message, kv_chat_media_kind(others[i])));
        json_decref(in);
    }
    assert_int_equal(kv_chat_on_image("placeholder"), KV_IMAGE_PLACEHOLDER);
    assert_int_equal(kv_chat_on_image("error"), KV_IMAGE_ERROR);
    assert_int_equal(kv_chat_on_image(NULL), KV_IMAGE_ERROR);
}

/* ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

#define NAMED(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define TOOL(name)  "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":{}}}"

static void test_tools(void **state) {
    (void)state;
    json_t *in = parse("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null,\"strict\":true}},"
                       "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"description\":\"d\",\"parameters\":{"
                       "\"type\":\"object\"}}}]");
    json_t *out;
    kv_error err = {0};
    assert_int_equal(kv_chat_check_tools(&out, in, &err), KV_OK);
    assert_json(out, "[" TOOL("f") ",{\"type\":\"function\",\"function\":{\"name\":\"g\",\"description\":\"d\","
                                   "\"parameters\":{\"type\":\"object\"}}}]");
    json_decref(in);
    json_decref(out);

    static const char *const none[] = {"null", "[]"};
    for (int i = 0; i < 2; i++) {
        in = parse(none[i]);
        assert_int_equal(kv_chat_check_tools(&out, in, &err), KV_OK);
        assert_null(out);
        json_decref(in);
    }
    assert_int_equal(kv_chat_check_tools(&out, NULL, &err), KV_OK);
    assert_null(out);
}

static const struct {
    const char *in, *field;
} bad_tools[] = {
    {"{}", "tools"},
    {"\"x\"", "tools"},
    {"[1]", "tools[0]"},
    {"[{}]", "tools[0].type"},
    {"[" TOOL("f") ",{\"type\":\"web_search\"}]", "tools[1].type"},
    {"[{\"type\":\"function\"}]", "tools[0].function"},
    {"[{\"type\":\"function\",\"function\":[]}]", "tools[0].function"},
    {"[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":1}}]", "tools[0].function.description"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":\"x\"}}]", "tools[0].function.parameters"},
};

static void test_bad_tools(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_tools / sizeof *bad_tools; i++) {
        json_t *in = parse(bad_tools[i].in), *out;
        kv_error err = {0};
        if (kv_chat_check_tools(&out, in, &err) != KV_INVALID) fail_msg("accepted: %s", bad_tools[i].in);
        assert_null(out);
        assert_string_equal(err.field, bad_tools[i].field);
        json_decref(in);
    }
}

/* The engine names rules of its grammars after tools and their parameters, with regular expressions that recurse. */
static void test_long_names(void **state) {
    (void)state;
    static char name[500001];
    memset(name, '_', sizeof name - 1);
    for (int i = 0; i < 2; i++) {
        json_t *in = json_pack("[{s:s, s:{s:s, s:{s:{s:{}}}}}]", "type", "function", "function", "name", i ? "f" : name,
                               "parameters", "properties", i ? name : "x"),
               *out;
        kv_error err = {0};
        assert_int_equal(kv_chat_check_tools(&out, in, &err), KV_INVALID);
        assert_string_equal(err.field, i ? "tools[0].function.parameters" : "tools[0].function.name");
        json_decref(in);
    }
}

/* Templates that take the object get it from a parser that recurses. */
static void test_deep_arguments(void **state) {
    (void)state;
    for (int depth = 256; depth <= 100000; depth += 99744) {
        kv_buf text = {0};
        for (int i = 0; i < depth; i++) kv_buf_adds(&text, "[");
        for (int i = 0; i < depth; i++) kv_buf_adds(&text, "]");
        json_t *in = json_pack("[{s:s, s:n, s:[{s:{s:s, s:s}}]}]", "role", "assistant", "content", "tool_calls",
                               "function", "name", "f", "arguments", text.data),
               *out = NULL;
        kv_error err = {0};
        assert_int_equal(kv_chat_check_messages(&out, in, KV_IMAGE_ERROR, &err), depth == 256 ? KV_OK : KV_INVALID);
        if (depth > 256) assert_string_equal(err.field, "messages[0].tool_calls[0].function.arguments");
        json_decref(out);
        json_decref(in);
        kv_buf_free(&text);
    }
}

static const struct {
    const char *in;
    bool tools;
    const char *choice, *field;
    int n_left; /* of two tools, f and g */
} choices[] = {
    {"null", true, NULL, NULL, 2},
    {"\"auto\"", false, "auto", NULL, 0},
    {"\"none\"", true, "none", NULL, 2},
    {"\"required\"", true, "required", NULL, 2},
    {"\"required\"", false, NULL, "tool_choice", 0},
    {"\"any\"", true, NULL, "tool_choice", 2},
    {"5", true, NULL, "tool_choice", 2},
    {"{\"type\":\"function\",\"function\":{\"name\":\"g\"}}", true, "required", NULL, 1},
    {"{\"type\":\"function\",\"function\":{\"name\":\"h\"}}", true, NULL, "tool_choice.function.name", 2},
    {"{\"type\":\"function\",\"function\":{\"name\":\"g\"}}", false, NULL, "tool_choice.function.name", 0},
    {"{\"type\":\"function\",\"name\":\"g\"}", true, "required", NULL, 1},
    {"{\"type\":\"function\",\"name\":\"h\"}", true, NULL, "tool_choice.name", 2},
    {"{\"type\":\"custom\",\"custom\":{\"name\":\"g\"}}", true, NULL, "tool_choice.type", 2},
    {"{\"type\":\"allowed_tools\"}", true, NULL, "tool_choice.allowed_tools", 2},
    {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[" NAMED("g") "]}}", true, "auto",
     NULL, 1},
    {"{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[" NAMED("g") "," NAMED("f") "]}", true, "required",
     NULL, 2},
    {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"tools\":[]}}", true, "none", NULL, 2},
    {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[]}}", true, NULL,
     "tool_choice.allowed_tools.tools", 2},
    {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"any\",\"tools\":[]}}", true, NULL,
     "tool_choice.allowed_tools.mode", 2},
    {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\"}}", true, NULL,
     "tool_choice.allowed_tools.tools", 2},
    {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[" NAMED("f") "," NAMED("h") "]}}",
     true, NULL, "tool_choice.allowed_tools.tools[1].function.name", 2},
    {"{\"type\":\"function\"}", true, NULL, "tool_choice.function", 2},
    {"{}", true, NULL, "tool_choice.type", 2},
};

static void test_tool_choice(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        json_t *tools = choices[i].tools ? parse("[" TOOL("f") "," TOOL("g") "]") : NULL, *in = parse(choices[i].in);
        const char *choice;
        kv_error err = {0};
        kv_status st = kv_chat_check_tool_choice(&choice, tools, in, &err);
        assert_int_equal(st, choices[i].field ? KV_INVALID : KV_OK);
        if (choices[i].field) assert_string_equal(err.field, choices[i].field);
        else if (choices[i].choice) assert_string_equal(choice, choices[i].choice);
        else assert_null(choice);
        assert_int_equal(json_array_size(tools), choices[i].n_left);
        json_decref(tools);
        json_decref(in);
    }
}

static void test_too_many(void **state) {
    (void)state;
    json_t *tools = json_array(), *messages = json_array(), *out;
    kv_error err = {0};
    for (int i = 0; i <= KV_CHAT_MAX_TOOLS; i++)
        json_array_append_new(tools, json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", "f"));
    assert_int_equal(kv_chat_check_tools(&out, tools, &err), KV_INVALID);
    assert_null(out);
    assert_string_equal(err.message, "'tools' has 1025 tools; at most 1024 are possible");
    json_array_remove(tools, 0);
    assert_int_equal(kv_chat_check_tools(&out, tools, &err), KV_OK);
    json_decref(out);
    for (int i = 0; i <= KV_CHAT_MAX_MESSAGES; i++)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "x"));
    assert_int_equal(kv_chat_check_messages(&out, messages, KV_IMAGE_ERROR, &err), KV_INVALID);
    assert_null(out);
    assert_string_equal(err.message, "'messages' has 100001 messages; at most 100000 are possible");
    json_array_remove(messages, 0);
    assert_int_equal(kv_chat_check_messages(&out, messages, KV_IMAGE_ERROR, &err), KV_OK);
    json_decref(out);
    json_decref(tools);
    json_decref(messages);
}

static void test_tools_too_large_together(void **state) {
    (void)state;
    json_t *properties = json_object(), *tools = json_array(), *out;
    kv_error err = {0};
    for (int i = 0; i < 400; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(properties, name, json_object());
    }
    for (int n = 1; n <= 3; n++) {
        json_array_append_new(tools, json_pack("{s:s, s:{s:s, s:{s:s, s:O}}}", "type", "function", "function", "name",
                                               "f", "parameters", "type", "object", "properties", properties));
        assert_int_equal(kv_chat_check_tools(&out, tools, &err), n < 3 ? KV_OK : KV_INVALID);
        json_decref(out);
    }
    assert_null(out);
    assert_string_equal(err.field, "tools");
    assert_non_null(strstr(err.message, "1.3 times"));
    json_decref(tools);
    json_decref(properties);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_messages),
        cmocka_unit_test(test_bad_messages),
        cmocka_unit_test(test_long_place),
        cmocka_unit_test(test_media),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_bad_tools),
        cmocka_unit_test(test_tool_choice),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_deep_arguments),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_tools_too_large_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
