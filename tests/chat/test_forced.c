/* A required call on a template without tools: messages, schema, and the call that an answer is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chat/forced.h"

static json_t *parse(const char *text) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!v) fail_msg("bad JSON in the test: %s", text);
    return v;
}

#define TOOLS                                                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}},{\"type\":\"function\",\"function\":{"   \
    "\"name\":\"g\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":"        \
    "\"#/$defs/x\"}},\"$defs\":{\"x\":{\"enum\":[1]}}}}}]"

static void test_messages(void **state) {
    (void)state;
    json_t *tools = parse(TOOLS), *out;
    json_t *in =
        parse("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
              "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]");
    kv_chat_forced_messages(&out, in, tools);
    assert_int_equal(json_array_size(out), 3);
    const json_t *first = json_array_get(out, 0);
    assert_string_equal(json_string_value(json_object_get(first, "role")), "system");
    assert_non_null(strstr(json_string_value(json_object_get(first, "content")), "\"name\":\"g\""));
    const json_t *call = json_array_get(out, 2);
    assert_string_equal(json_string_value(json_object_get(call, "content")), "{\"name\": \"f\", \"arguments\": {}}");
    assert_null(json_object_get(call, "tool_calls"));
    json_decref(out);
    json_decref(in);

    in = parse("[{\"role\":\"developer\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"a\"}]");
    kv_chat_forced_messages(&out, in, tools);
    assert_int_equal(json_array_size(out), 2);
    first = json_array_get(out, 0);
    assert_string_equal(json_string_value(json_object_get(first, "role")), "developer");
    assert_memory_equal(json_string_value(json_object_get(first, "content")), "Be brief.\n\nAnswer", 17);
    json_decref(out);
    json_decref(in);
    json_decref(tools);
}

static void test_schema(void **state) {
    (void)state;
    json_t *tools = parse(TOOLS), *out;
    kv_error err = {0};
    assert_int_equal(kv_chat_forced_schema(&out, tools, &err), KV_OK);
    const json_t *g = json_array_get(json_object_get(out, "anyOf"), 1);
    const json_t *properties = json_object_get(g, "properties");
    assert_string_equal(json_string_value(json_object_get(json_object_get(properties, "name"), "const")), "g");
    const json_t *a = json_object_get(json_object_get(json_object_get(properties, "arguments"), "properties"), "a");
    assert_string_equal(json_string_value(json_object_get(a, "$ref")), "#/anyOf/1/properties/arguments/$defs/x");
    json_decref(out);
    json_decref(tools);
    tools = parse("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"wish\"}}}]");
    assert_int_equal(kv_chat_forced_schema(&out, tools, &err), KV_INVALID);
    assert_string_equal(err.field, "tools[0].function.parameters");
    assert_null(out);
    json_decref(tools);
}

static void test_call(void **state) {
    (void)state;
    static const char *const broken[] = {"", "{\"name\": \"f\", \"arg", "[]", "{\"name\":1,\"arguments\":{}}",
                                         "{\"name\":\"f\",\"arguments\":[]}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_null(kv_chat_forced_call(broken[i], strlen(broken[i])));
    const char *text = "{ \"name\": \"f\", \"arguments\": {\"a\": \"\\u00e9\"} }";
    json_t *call = kv_chat_forced_call(text, strlen(text));
    assert_int_equal(json_string_length(json_object_get(call, "id")), 9);
    const json_t *function = json_object_get(call, "function");
    assert_string_equal(json_string_value(json_object_get(function, "name")), "f");
    assert_string_equal(json_string_value(json_object_get(function, "arguments")), "{\"a\":\"\xc3\xa9\"}");
    json_decref(call);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
