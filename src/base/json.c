#include "base/json.h"

#include <math.h>
#include <string.h>

/* ── UTF-8 ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Length of the character that starts at s (n ≥ 1 bytes left): 1 … 4 when valid, 0 when invalid, -1 when the bytes
 * at hand are a proper start of one that is longer than n. RFC 3629: no surrogates, no overlong forms, ≤ U+10FFFF. */
static int utf8_char(const unsigned char *s, size_t n) {
    unsigned char c = s[0];
    if (c < 0x80) return 1;
    int len;
    unsigned lo = 0x80, hi = 0xBF;
    if (c >= 0xC2 && c <= 0xDF) len = 2;
    else if (c >= 0xE0 && c <= 0xEF) {
        len = 3;
        if (c == 0xE0) lo = 0xA0;
        if (c == 0xED) hi = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        len = 4;
        if (c == 0xF0) lo = 0x90;
        if (c == 0xF4) hi = 0x8F;
    } else return 0;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) return -1;
        if (s[i] < lo || s[i] > hi) return 0;
        lo = 0x80, hi = 0xBF;
    }
    return len;
}

size_t kv_utf8_complete(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        if (u[n - back] < 0x80) break;
        if (u[n - back] >= 0xC0) return utf8_char(u + n - back, back) == -1 ? n - back : n;
    }
    return n;
}

bool kv_utf8_valid(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t i = 0; i < n;) {
        int len = utf8_char(u + i, n - i);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

/* ── parsing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_json_check_depth(const char *text, size_t n, kv_error *err) {
    int depth = 0;
    size_t n_containers = 0, n_marks = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            n_containers++;
            if (++depth > KV_JSON_MAX_DEPTH)
                return kv_fail(err, KV_INVALID, "invalid JSON: nested deeper than %d levels at byte %zu",
                               KV_JSON_MAX_DEPTH, i);
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',' || c == ':') {
            n_marks++;
        }
    }
    if (n_containers > KV_JSON_MAX_CONTAINERS)
        return kv_fail(err, KV_INVALID, "the JSON has %zu objects and arrays; at most %d are possible", n_containers,
                       KV_JSON_MAX_CONTAINERS);
    if (n_containers + n_marks > KV_JSON_MAX_VALUES)
        return kv_fail(err, KV_INVALID, "the JSON has %zu values and names of members; at most %d are possible",
                       n_containers + n_marks, KV_JSON_MAX_VALUES);
    return KV_OK;
}

kv_status kv_json_parse(json_t **out, const char *text, size_t n, kv_error *err) {
    *out = NULL;
    kv_status st = kv_json_check_depth(text, n, err);
    if (st != KV_OK) return st;
    json_error_t je;
    /* JSON_ALLOW_NUL: a \u0000 in a prompt is a byte like any other; who cannot take it (kv_json_str) says so. */
    *out = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (*out) return KV_OK;
    if (n == 0) return kv_fail(err, KV_INVALID, "invalid JSON: the body is empty");
    /* jansson puts a piece of the text after "near"; request text does not belong in a log. */
    char *near = strstr(je.text, " near ");
    if (near) *near = '\0';
    return kv_fail(err, KV_INVALID, "invalid JSON: %s at line %d, column %d", je.text, je.line, je.column);
}

int kv_json_nesting(int *open, const char *text, size_t n) {
    int deepest = *open;
    for (size_t i = 0; i < n; i++) {
        if ((text[i] == '[' || text[i] == '{') && ++*open > deepest) deepest = *open;
        if ((text[i] == ']' || text[i] == '}') && *open > 0) --*open;
    }
    return deepest;
}

/* ── getters ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

json_t *kv_json_get(const json_t *obj, const char *field) {
    json_t *v = json_object_get(obj, field);
    return v && !json_is_null(v) ? v : NULL;
}

kv_status kv_json_bool(bool *out, const json_t *obj, const char *field, kv_error *err) {
    const json_t *v = kv_json_get(obj, field);
    if (!v) return KV_OK;
    if (!json_is_boolean(v)) return kv_fail_field(err, field, "'%s' must be a boolean, not %s", field, type_name(v));
    *out = json_is_true(v);
    return KV_OK;
}

bool kv_json_as_int(int64_t *out, const json_t *value, int64_t min, int64_t max) {
    int64_t i;
    if (json_is_integer(value)) {
        i = json_integer_value(value);
    } else if (json_is_real(value)) {
        double d = json_real_value(value);
        /* 2^63 is the first double past INT64_MAX: casting it would be undefined. */
        if (d != floor(d) || d < -0x1p63 || d >= 0x1p63) return false;
        i = (int64_t)d;
    } else {
        return false;
    }
    if (i < min || i > max) return false;
    *out = i;
    return true;
}

kv_status kv_json_int(int64_t *out, const json_t *obj, const char *field, int64_t min, int64_t max, kv_error *err) {
    const json_t *v = kv_json_get(obj, field);
    if (!v) return KV_OK;
    if (kv_json_as_int(out, v, min, max)) return KV_OK;
    int64_t any;
    if (kv_json_as_int(&any, v, INT64_MIN, INT64_MAX))
        return kv_fail_field(err, field, "'%s' must be between %lld and %lld, but got %lld", field, (long long)min,
                             (long long)max, (long long)any);
    if (json_is_real(v))
        return kv_fail_field(err, field, "'%s' must be an integer, but got %g", field, json_real_value(v));
    return kv_fail_field(err, field, "'%s' must be an integer, not %s", field, type_name(v));
}

kv_status kv_json_double(double *out, const json_t *obj, const char *field, double min, double max, kv_error *err) {
    const json_t *v = kv_json_get(obj, field);
    if (!v) return KV_OK;
    if (!json_is_number(v)) return kv_fail_field(err, field, "'%s' must be a number, not %s", field, type_name(v));
    double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return kv_fail_field(err, field, "'%s' must be between %g and %g, but got %g", field, min, max, d);
    *out = d;
    return KV_OK;
}

kv_status kv_json_str(const char **out, const json_t *obj, const char *field, kv_error *err) {
    const json_t *v = kv_json_get(obj, field);
    if (!v) return KV_OK;
    if (!json_is_string(v)) return kv_fail_field(err, field, "'%s' must be a string, not %s", field, type_name(v));
    if (strlen(json_string_value(v)) != json_string_length(v))
        return kv_fail_field(err, field, "'%s' must not contain NUL characters", field);
    *out = json_string_value(v);
    return KV_OK;
}

/* ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Appends s with every invalid byte replaced by U+FFFD. */
static void add_valid_utf8(kv_buf *out, const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    size_t from = 0, i = 0;
    while (i < n) {
        int len = utf8_char(u + i, n - i);
        if (len > 0) {
            i += (size_t)len;
            continue;
        }
        kv_buf_add(out, s + from, i - from);
        kv_buf_adds(out, "\xEF\xBF\xBD");
        from = ++i;
    }
    kv_buf_add(out, s + from, n - from);
}

json_t *kv_json_text(const char *s, size_t n) {
    json_t *v = json_stringn(s, n);
    if (v) return v;
    kv_buf clean = {0};
    add_valid_utf8(&clean, s, n);
    v = json_stringn(kv_buf_str(&clean), clean.len);
    kv_buf_free(&clean);
    KV_CHECK(v != NULL);
    return v;
}

json_t *kv_json_text0(const char *s) {
    return kv_json_text(s ? s : "", s ? strlen(s) : 0);
}

static int add_chunk(const char *bytes, size_t n, void *out) {
    kv_buf_add(out, bytes, n);
    return 0;
}

void kv_json_dump(kv_buf *out, const json_t *value) {
    KV_CHECK(json_dump_callback(value, add_chunk, out, JSON_COMPACT | JSON_ENCODE_ANY) == 0);
}

void kv_json_dump_new(kv_buf *out, json_t *value) {
    kv_json_dump(out, value);
    json_decref(value);
}

void kv_json_quote(kv_buf *out, const char *s, size_t n) {
    kv_json_dump_new(out, kv_json_text(s, n));
}
