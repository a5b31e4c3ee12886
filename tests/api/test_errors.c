/* Error bodies, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/app.h"
#include "api/errors.h"
#include "api/stream.h"

static void assert_body(const kv_error *err, const char *want) {
    kv_buf out = {0};
    kv_api_error_body(&out, err);
    assert_string_equal(kv_buf_str(&out), want);
    kv_buf_free(&out);
}

static void test_bodies(void **state) {
    (void)state;
    kv_error err;
    kv_fail(&err, KV_BUSY, "Loading model");
    assert_body(&err, "{\"error\":{\"code\":503,\"message\":\"Loading model\",\"type\":\"unavailable_error\"}}");
    kv_fail(&err, KV_INVALID, "bad");
    assert_body(&err,
                "{\"error\":{\"code\":400,\"message\":\"bad\",\"type\":\"invalid_request_error\",\"param\":null}}");
    kv_fail_field(&err, "stop[1]", "'%s' \"x\"", "stop[1]");
    assert_body(&err, "{\"error\":{\"code\":400,\"message\":\"'stop[1]' \\\"x\\\"\",\"type\":\"invalid_request_error\","
                      "\"param\":\"stop[1]\"}}");
    kv_fail_field(&err, "model", "no such model");
    err.status = KV_NOT_FOUND;
    assert_body(&err,
                "{\"error\":{\"code\":\"model_not_found\",\"message\":\"no such model\",\"type\":\"not_found_error\","
                "\"param\":\"model\"}}");
    kv_fail(&err, KV_UNSUPPORTED, "off");
    assert_body(&err, "{\"error\":{\"code\":501,\"message\":\"off\",\"type\":\"not_supported_error\"}}");
    kv_fail(&err, KV_ENGINE_DAMAGED, "broken");
    assert_body(&err, "{\"error\":{\"code\":500,\"message\":\"broken\",\"type\":\"server_error\"}}");
}

/* The words that agents look for, whoever noticed that the context is full. */
static void test_context_full(void **state) {
    (void)state;
    kv_error err;
    assert_int_equal(kv_fail_context(&err, 9000, 8192), KV_CONTEXT_FULL);
    for (int from_elsewhere = 0; from_elsewhere < 2; from_elsewhere++) {
        if (from_elsewhere) strcpy(err.message, "too long");
        kv_buf out = {0};
        kv_api_error_body(&out, &err);
        json_t *e = json_loads(kv_buf_str(&out), 0, NULL), *body = json_object_get(e, "error");
        const char *message = json_string_value(json_object_get(body, "message"));
        assert_non_null(strstr(message, "exceeds the available context size"));
        assert_non_null(strstr(message, "maximum context length is 8192 tokens"));
        assert_string_equal(json_string_value(json_object_get(body, "type")), "exceed_context_size_error");
        assert_string_equal(json_string_value(json_object_get(body, "code")), "context_length_exceeded");
        assert_int_equal(json_integer_value(json_object_get(body, "n_prompt_tokens")), 9000);
        assert_int_equal(json_integer_value(json_object_get(body, "n_ctx")), 8192);
        json_decref(e);
        kv_buf_free(&out);
    }
    assert_int_equal(kv_fail_context(NULL, 1, 1), KV_CONTEXT_FULL);
}

static void test_events(void **state) {
    (void)state;
    kv_buf out = {0};
    kv_sse_event_new(&out, json_pack("{s:s}", "a", "line\nbreak"));
    kv_sse_ping(&out);
    kv_error err;
    kv_fail(&err, KV_ENGINE, "it broke");
    kv_sse_error(&out, &err);
    kv_sse_done(&out);
    assert_string_equal(kv_buf_str(&out),
                        "data: {\"a\":\"line\\nbreak\"}\n\n:\n\n"
                        "data: {\"error\":{\"code\":500,\"message\":\"it broke\",\"type\":\"server_error\"}}\n\n"
                        "data: [DONE]\n\n");
    kv_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bodies), cmocka_unit_test(test_context_full),
                                       cmocka_unit_test(test_events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
