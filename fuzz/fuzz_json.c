/* fuzz/fuzz_json.c: base/json.h on arbitrary bytes.
 *
 *  1. parsing either gives a value, or KV_INVALID with a message that is valid UTF-8
 *  2. a value's own text parses again, to the same text
 *  3. any bytes quoted are a JSON string; valid UTF-8 comes back unchanged
 *  4. the getters never take a value of the wrong type or range
 */
#include <string.h>

#include "base/json.h"
#include "fuzz.h"

static void check_member(const json_t *obj, const char *key) {
    bool b = false;
    int64_t i = -1;
    double d = -1;
    const char *s = NULL;
    kv_error err;
    const json_t *v = kv_json_get(obj, key);
    if (kv_json_bool(&b, obj, key, NULL) == KV_OK) KV_CHECK(!v || json_is_boolean(v));
    if (kv_json_int(&i, obj, key, 0, 1000, &err) == KV_OK) KV_CHECK(v ? i >= 0 && i <= 1000 : i == -1);
    else KV_CHECK(err.status == KV_INVALID && strlen(err.message) > 0);
    if (kv_json_double(&d, obj, key, 0, 2, NULL) == KV_OK) KV_CHECK(v ? d >= 0 && d <= 2 : d == -1);
    if (kv_json_str(&s, obj, key, NULL) == KV_OK) KV_CHECK(!v || json_is_string(v));
}

static void check_value(json_t *value) {
    kv_buf once = {0}, twice = {0};
    kv_json_dump(&once, value);
    json_t *again = NULL;
    KV_CHECK(kv_json_parse(&again, once.data, once.len, NULL) == KV_OK);
    kv_json_dump(&twice, again);
    KV_CHECK(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    const char *key;
    json_t *member;
    if (json_is_object(value)) {
        json_object_foreach(value, key, member) {
            check_member(value, key);
        }
    }
    json_decref(again);
    kv_buf_free(&once);
    kv_buf_free(&twice);
}

static void check_quote(const char *text, size_t n) {
    kv_buf quoted = {0};
    kv_json_quote(&quoted, text, n);
    json_t *back = NULL;
    KV_CHECK(kv_json_parse(&back, quoted.data, quoted.len, NULL) == KV_OK && json_is_string(back));
    const char *s = json_string_value(back);
    size_t len = json_string_length(back);
    KV_CHECK(kv_utf8_valid(s, len));
    if (kv_utf8_valid(text, n)) KV_CHECK(len == n && memcmp(s, text, n) == 0);
    json_decref(back);
    kv_buf_free(&quoted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    json_t *value = NULL;
    kv_error err;
    if (kv_json_parse(&value, text, size, &err) == KV_OK) {
        check_value(value);
        json_decref(value);
    } else {
        KV_CHECK(value == NULL && err.status == KV_INVALID);
        KV_CHECK(err.message[0] && kv_utf8_valid(err.message, strlen(err.message)));
    }
    check_quote(text, size);
    size_t cut = kv_utf8_complete(text, size);
    KV_CHECK(cut <= size && size - cut <= 3);
    return 0;
}
