/* base/json.h: reading request bodies with clear errors, over jansson.
 *
 * Clients differ in small ways that carry no meaning: `null` stands for "not given", and 1.0 for 1. The getters
 * here take both, name the field when a value has the wrong type or range, and leave `*out` as it was when the
 * field is absent, so that callers preset the default.
 *
 * Thread rule: a json_t belongs to one thread at a time.
 */
#ifndef KV_BASE_JSON_H
#define KV_BASE_JSON_H

#include "base/buf.h"
#include "base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Nesting deeper than this is refused before it is parsed, so that no recursion (ours, jansson's or the engine's)
 * can run out of stack. jansson's own limit is 2048, far past any real schema. */
#define KV_JSON_MAX_DEPTH 256

/* A tree is far larger than its text: an empty object has about 230 bytes in it, a number 40, and a member with its
 * number 130. With these bounds it stays below 1 GiB, and what is sent in earnest far below them: a prompt of a million
 * token ids has a million values, 100,000 messages with a tool call each 600,000 containers. */
#define KV_JSON_MAX_CONTAINERS 1000000 /* objects and arrays */
#define KV_JSON_MAX_VALUES     8000000 /* commas, colons and containers: values, and names of members */

/* Parse one JSON value that fills the whole text. KV_INVALID with line and column on syntax errors, invalid UTF-8,
 * NUL bytes in strings that jansson cannot carry, duplicate garbage after the value, too deep nesting or too many values.
 * `*out` is owned by the caller (json_decref). */
kv_status kv_json_parse(json_t **out, const char *text, size_t n, kv_error *err);

/* KV_INVALID when the text, read as JSON, is nested deeper than that or has more in it. Whether it is JSON at all is not
 * looked at. */
kv_status kv_json_check_depth(const char *text, size_t n, kv_error *err);
/* How many brackets at most were open at a time in a text that comes in pieces; those in strings count, too. *open: those
 * that are, 0 at the start. */
int kv_json_nesting(int *open, const char *text, size_t n);

/* Absent or null: KV_OK and *out unchanged. Wrong type: KV_INVALID naming the field. */
kv_status kv_json_bool(bool *out, const json_t *obj, const char *field, kv_error *err);
kv_status kv_json_int(int64_t *out, const json_t *obj, const char *field, int64_t min, int64_t max, kv_error *err);
kv_status kv_json_double(double *out, const json_t *obj, const char *field, double min, double max, kv_error *err);
/* *out is borrowed from obj. */
kv_status kv_json_str(const char **out, const json_t *obj, const char *field, kv_error *err);
/* The member, or NULL when absent or null. Borrowed. */
json_t *kv_json_get(const json_t *obj, const char *field);
/* An integer in any spelling (3, 3.0) inside [min, max]; false otherwise. */
bool kv_json_as_int(int64_t *out, const json_t *value, int64_t min, int64_t max);

/* Appends `s` (n bytes, any content) as a JSON string with quotes; invalid UTF-8 becomes U+FFFD. */
void kv_json_quote(kv_buf *out, const char *s, size_t n);
/* A new json string from n bytes of any content; invalid UTF-8 becomes U+FFFD. Never NULL. */
json_t *kv_json_text(const char *s, size_t n);
/* The same of a text that ends with a NUL; NULL is an empty one. */
json_t *kv_json_text0(const char *s);
/* Appends the compact text of `value`. Real numbers keep 17 significant digits at most. */
void kv_json_dump(kv_buf *out, const json_t *value);
/* The same; takes the reference of `value`. */
void kv_json_dump_new(kv_buf *out, json_t *value);

/* Length of the longest prefix of s that ends on a UTF-8 character boundary: what can be sent now. A trailing
 * incomplete character (at most 3 bytes) is left for the next call; invalid bytes count as complete. */
size_t kv_utf8_complete(const char *s, size_t n);
/* True when all n bytes are valid UTF-8. */
bool kv_utf8_valid(const char *s, size_t n);

#endif
