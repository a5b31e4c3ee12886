/* Schemas: what is rewritten, what is refused and where the error says it stands; patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chat/pattern.h"
#include "chat/schema.h"

static json_t *parse(const char *text) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!v) fail_msg("bad JSON in the test: %s", text);
    return v;
}

/* ── patterns ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char *in, *out;
} patterns[] = {
    {"^abc$", "^(?:abc)$"},
    {"^\\d{3}-\\d{2,4}$", "^(?:[0-9]{3}-[0-9]{2,4})$"},
    {"^ab+c$", "^(?:a(?:b)+c)$"},
    {"^a|b$", NULL}, /* opens on both sides: only that it is read */
    {"^(a|b)*?$", "^(?:(?:a|b)*)$"},
    {"^(?:a|[0-9])$", "^(?:(?:a|[0-9]))$"},
    {"^(?<year>[0-9]{4})$", "^(?:(?:[0-9]{4}))$"},
    {"^a$|^b$", "^(?:a|b)$"},
    {"^a\"b$", "^(?:a\\\\\"b)$"},
    {"^a\\\\b$", "^(?:a\\\\\\\\b)$"},
    {"^\\n$", "^(?:\\\\n)$"},
    {"^a\\/b\\.c\\$$", "^(?:a/b\\.c\\$)$"},
    {"^[a-cx]$", "^(?:[a-cx])$"},
    {"^[a\"]$", "^(?:(?:[a]|\\\\\"))$"},
    {"^[\\w-]+$", "^(?:[\\x2D0-9A-Z_a-z]+)$"},
    {"^\\u00e9$", "^(?:\\u00E9)$"},
    {"^\xc3\xa9$", "^(?:\\u00E9)$"},
    {"^[^\\x00-\\x7f]$", NULL},
    {"^.\\S\\D\\W[^a]$", NULL},
    {"x", NULL},
};

static const struct {
    const char *in, *why;
} bad_patterns[] = {
    {"^(?=a)$", "ahead"},   {"^(?!a)b$", "ahead"},     {"^(?<=a)$", "ahead"},  {"^\\bword$", "word boundary"},
    {"^(a)\\1$", "back"},   {"^\\p{L}$", "property"},  {"^(a", "without end"}, {"^a)$", "not opened"},
    {"^[a", "without end"}, {"^[b-a]$", "backwards"},  {"^*a$", "escaped"},    {"^a{x}$", "cannot be read"},
    {"^a\\", "backslash"},  {"^[\\x00-\\x1f]$", NULL}, {"^$", "empty"},        {"a^b", "anchor"},
    {"^\\xg0$", "number"},  {"^\\q$", "escape"},
};

static void test_patterns(void **state) {
    (void)state;
    kv_error err = {0};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        kv_buf out = {0};
        if (kv_chat_pattern(&out, patterns[i].in, &err) != KV_OK) fail_msg("%s: %s", patterns[i].in, err.message);
        if (patterns[i].out) assert_string_equal(kv_buf_str(&out), patterns[i].out);
        kv_buf_free(&out);
    }
    for (size_t i = 0; i < sizeof bad_patterns / sizeof *bad_patterns; i++) {
        kv_buf out = {0};
        bool passed = kv_chat_pattern(&out, bad_patterns[i].in, &err) == KV_OK;
        if (bad_patterns[i].why) {
            if (passed || !strstr(err.message, bad_patterns[i].why))
                fail_msg("%s: %s", bad_patterns[i].in, passed ? kv_buf_str(&out) : err.message);
        }
        kv_buf_free(&out);
    }
}

/* Every group that is inside another one up to the limit, and past it; every prefix of a long pattern. */
static void test_pattern_edges(void **state) {
    (void)state;
    kv_error err = {0};
    char deep[300];
    for (int n = 1; n < 100; n++) {
        int at = 0;
        for (int i = 0; i < n; i++) deep[at++] = '(';
        deep[at++] = 'a';
        for (int i = 0; i < n; i++) deep[at++] = ')';
        deep[at] = '\0';
        kv_buf out = {0};
        assert_int_equal(kv_chat_pattern(&out, deep, &err) == KV_OK, n <= 50);
        kv_buf_free(&out);
    }
    const char *text = "^(a|\\d{2,3}?)[^\\w\\-\"x-z]*\\u00e9(?:b)+\\\\.$";
    for (size_t n = 0; n <= strlen(text); n++) {
        char *cut = kv_strndup(text, n);
        kv_buf out = {0};
        kv_chat_pattern(&out, cut, &err);
        kv_buf_free(&out);
        free(cut);
    }
}

/* ── schemas ───────────────────────────────────────────────────────────────────────────────────────────────────── */

#define P(body) "{\"type\":\"object\",\"properties\":{\"a\":" body "}}"

/* NULL: stays as it is */
static const struct {
    const char *in, *out;
} good[] = {
    {"{}", NULL},
    {P("{\"type\":\"string\",\"minLength\":1,\"maxLength\":20}"), NULL},
    {P("{\"type\":[\"integer\",\"null\"],\"minimum\":1,\"title\":\"t\",\"description\":\"d\",\"x-own\":1}"), NULL},
    {P("{\"enum\":[1,\"b\",null]}"), NULL},
    {P("{\"const\":null}"), NULL},
    {P("{\"type\":\"string\",\"format\":\"uuid\"}"), NULL},
    {P("{\"type\":\"string\",\"format\":\"what-is-this\"}"), NULL},
    {P("{\"type\":\"integer\",\"minLength\":3,\"multipleOf\":1}"), NULL}, /* says nothing of an integer */
    {P("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"uniqueItems\":false}"), NULL},
    {P("{\"type\":\"array\",\"items\":true,\"maxItems\":3.0}"), P("{\"type\":\"array\",\"items\":{},\"maxItems\":3}")},
    {P("{\"type\":\"array\",\"prefixItems\":[{\"const\":1},true],\"items\":false,\"minItems\":2}"),
     P("{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{}],\"minItems\":2}")},
    {P("{\"type\":\"string\",\"pattern\":\"^\\\\d$\"}"), P("{\"type\":\"string\",\"pattern\":\"^(?:[0-9])$\"}")},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/b\"}],\"title\":\"t\",\"default\":null,\"$defs\":{\"b\":{\"const\":1}}}",
     "{\"$ref\":\"#/$defs/b\",\"title\":\"t\",\"default\":null,\"$defs\":{\"b\":{\"const\":1}}}"},
    {"{\"type\":\"object\",\"properties\":{\"b\":{\"const\":1}},\"required\":[\"b\"],\"pattern\":null,\"$schema\":"
     "\"s\"}",
     "{\"type\":\"object\",\"properties\":{\"b\":{\"const\":1}},\"required\":[\"b\"],\"$schema\":\"s\"}"},
    {"{\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}",
     "{\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}],\"type\":\"object\"}"},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"default\":\"x\"}", NULL},
    {"{\"type\":\"object\",\"oneOf\":[{\"type\":\"object\"},{\"$ref\":\"#/$defs/"
     "a\"}],\"$defs\":{\"a\":{\"type\":\"object\"}}}",
     NULL},
    {"{\"$ref\":\"#/definitions/a\",\"definitions\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/definitions/"
     "a\"}}}}",
     NULL},
    {"{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#\"}},\"$defs\":{\"unused\":{\"not\":{}}}}",
     "{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#/$defs/"
     "kvasir-root\"}},\"$defs\":{\"unused\":{\"not\":{}},"
     "\"kvasir-root\":{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#/$defs/kvasir-root\"}}}}}"},
    {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":{\"type\":\"boolean\"}}",
     NULL},
    {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"minProperties\":1,\"required\":[\"a\"],\"maxProperties\":1}",
     NULL},
};

static const struct {
    const char *in, *field, *keyword;
} bad[] = {
    {P("{\"not\":{\"const\":1}}"), "s.properties.a", "'not'"},
    {P("{\"type\":\"string\",\"not\":{}}"), "s.properties.a", "'not'"},
    {"{\"if\":{},\"then\":{}}", "s", "'if'"},
    {P("{\"type\":\"number\",\"minimum\":0}"), "s.properties.a", "'minimum'"},
    {P("{\"type\":\"number\",\"exclusiveMaximum\":1}"), "s.properties.a", "'exclusiveMaximum'"},
    {P("{\"type\":\"integer\",\"multipleOf\":5}"), "s.properties.a", "'multipleOf'"},
    {P("{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":5}"), "s.properties.a", "'exclusiveMinimum'"},
    {P("{\"type\":\"integer\",\"exclusiveMinimum\":true}"), "s.properties.a", "a number"},
    {P("{\"minimum\":3}"), "s.properties.a", "'minimum'"},
    {P("{\"type\":\"array\",\"uniqueItems\":true}"), "s.properties.a", "'uniqueItems'"},
    {P("{\"type\":\"array\",\"contains\":{}}"), "s.properties.a", "'contains'"},
    {P("{\"type\":\"array\",\"items\":{\"not\":{}}}"), "s.properties.a.items", "'not'"},
    {P("{\"type\":\"array\",\"items\":[{},{\"not\":{}}]}"), "s.properties.a.items[1]", "'not'"},
    {P("{\"type\":\"array\",\"prefixItems\":[{}],\"items\":{}}"), "s.properties.a", "'items'"},
    {P("{\"type\":\"array\",\"prefixItems\":[{}],\"minItems\":2}"), "s.properties.a", "'minItems'"},
    {P("{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}"), "s.properties.a", "'minItems'"},
    {P("{\"type\":\"array\",\"minItems\":-1}"), "s.properties.a", "'minItems'"},
    {P("{\"type\":\"string\",\"maxLength\":5000}"), "s.properties.a", "'maxLength'"},
    {P("{\"type\":\"string\",\"pattern\":\"(?=x)\"}"), "s.properties.a", "'pattern'"},
    {P("{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":3}"), "s.properties.a", "'minLength'"},
    {P("{\"type\":\"string\",\"pattern\":5}"), "s.properties.a", "'pattern'"},
    {P("{\"type\":\"string\",\"format\":5}"), "s.properties.a", "'format'"},
    {P("{\"type\":\"text\"}"), "s.properties.a", "'type'"},
    {P("{\"type\":[]}"), "s.properties.a", "'type'"},
    {P("{\"type\":{}}"), "s.properties.a", "'type'"},
    {P("{\"enum\":[]}"), "s.properties.a", "'enum'"},
    {P("{\"enum\":\"a\"}"), "s.properties.a", "'enum'"},
    {P("false"), "s.properties.a", "false"},
    {P("5"), "s.properties.a", "object"},
    {"{\"type\":\"object\",\"properties\":[]}", "s", "'properties'"},
    {"{\"type\":\"object\",\"required\":[\"x\"]}", "s", "'required'"},
    {"{\"type\":\"object\",\"required\":\"x\"}", "s", "'required'"},
    {"{\"type\":\"object\",\"patternProperties\":{\"a\":{}}}", "s", "'patternProperties'"},
    {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"a\"}}", "s", "'propertyNames'"},
    {"{\"type\":\"object\",\"minProperties\":2}", "s", "'minProperties'"},
    {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}}", "s", "'dependentRequired'"},
    {"{\"type\":\"object\",\"additionalProperties\":{\"not\":{}}}", "s.additionalProperties", "'not'"},
    {"{\"anyOf\":[]}", "s", "'anyOf'"},
    {"{\"anyOf\":{}}", "s", "'anyOf'"},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"if\":{}}]}", "s.anyOf[1]", "'if'"},
    {"{\"anyOf\":[{\"type\":\"object\"}],\"properties\":{}}", "s", "'properties'"},
    {"{\"anyOf\":[{}],\"oneOf\":[{}]}", "s", "'anyOf'"},
    {"{\"type\":\"object\",\"anyOf\":[{\"required\":[\"a\"]}]}", "s", "'type'"},
    {"{\"allOf\":[{\"type\":\"string\"},{\"minLength\":2}]}", "s", "'allOf'"},
    {"{\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"a\":{}}}]}", "s", "'allOf'"},
    {P("{\"$ref\":\"#/$defs/nowhere\"}"), "s.properties.a", "nowhere"},
    {P("{\"$ref\":\"https://example.com/s\"}"), "s.properties.a", "'$ref'"},
    {P("{\"$ref\":5}"), "s.properties.a", "'$ref'"},
    {"{\"$ref\":\"#/$defs/b\",\"$defs\":{\"b\":{\"type\":\"array\",\"items\":{\"not\":{}}}}}", "s.$defs.b.items",
     "'not'"},
    {"{\"$ref\":\"#/$defs/b\",\"minLength\":3,\"$defs\":{\"b\":{}}}", "s", "'minLength'"},
    {"{\"$dynamicRef\":\"#a\"}", "s", "'$dynamicRef'"},
};

static void test_good(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        json_t *in = parse(good[i].in), *copy = json_deep_copy(in), *out;
        kv_error err = {0};
        kv_status st = kv_chat_schema(&out, in, "s", true, &err);
        if (st != KV_OK) fail_msg("%s: %s", good[i].in, err.message);
        json_t *want = parse(good[i].out ? good[i].out : good[i].in);
        if (!json_equal(out, want)) {
            kv_buf text = {0};
            kv_json_dump(&text, out);
            fail_msg("%s became %s", good[i].in, kv_buf_str(&text));
        }
        assert_true(json_equal(in, copy)); /* the caller's own is not touched */
        json_decref(in), json_decref(copy), json_decref(want), json_decref(out);
    }
}

static void test_bad(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *in = parse(bad[i].in), *out;
        kv_error err = {0};
        if (kv_chat_schema(&out, in, "s", true, &err) != KV_INVALID) fail_msg("accepted: %s", bad[i].in);
        if (strcmp(err.field, bad[i].field) != 0 || !strstr(err.message, bad[i].keyword))
            fail_msg("%s: field %s, %s", bad[i].in, err.field, err.message);
        assert_null(out);
        /* and when less will do: accepted unless it cannot be read at all */
        if (strstr(err.message, "is not supported") && strstr(err.message, "\"strict\": false")) {
            if (kv_chat_schema(&out, in, "s", false, &err) != KV_OK) fail_msg("%s: %s", bad[i].in, err.message);
            json_decref(out);
        }
        json_decref(in);
    }
}

/* References that lead in circles, and chains of them. */
static void test_loops(void **state) {
    (void)state;
    json_t *defs = json_object(), *root = json_pack("{s:s, s:o}", "$ref", "#/$defs/0", "$defs", defs), *out;
    for (int i = 0; i < 1000; i++) {
        char name[16], ref[32];
        snprintf(name, sizeof name, "%d", i);
        snprintf(ref, sizeof ref, "#/$defs/%d", (i + 1) % 1000);
        json_object_set_new(defs, name, json_pack("{s:s}", "$ref", ref));
    }
    kv_error err = {0};
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "inside each other"));
    json_decref(root);
    root = parse("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}}}");
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_OK); /* the grammar's own check finds the loop */
    json_decref(out);
    json_decref(root);
}

/* References back into what is rewritten while it is walked: nothing in use may be freed, whatever the answer is. */
static void test_rewritten_while_walked(void **state) {
    (void)state;
    static const struct {
        kv_status st;
        bool strict;
        const char *text;
    } rows[] = {
        {KV_OK, false,
         "{'type':'object','properties':{'a':{'$ref':'#/$defs/P/not'}},'$defs':{'P':{'type':'string','not':{"
         "'type':'object','properties':{'y':{'$ref':'#/$defs/P'},'z':{'type':'string'}}}}}}"},
        {KV_OK, true,
         "{'type':'object','properties':{'a':{'$ref':'#/$defs/P/allOf/0'}},'$defs':{'P':{'allOf':[{"
         "'type':'object','properties':{'y':{'$ref':'#/$defs/P'},'z':{'type':'string'}},"
         "'additionalProperties':{'type':'string'}}]}}}"},
        /* the properties as a schema of their own, which loses some */
        {KV_OK, false,
         "{'type':'object','properties':{'a':{'$ref':'#/properties'},'not':{'type':'string'},"
         "'if':{'type':'string'},'z':{'type':'string'}}}"},
        /* where the copy of the root goes */
        {KV_INVALID, true,
         "{'type':'object','properties':{'a':{'$ref':'#/$defs/0'}},'$defs':[{'type':'object','properties':{"
         "'y':{'$ref':'#'},'z':{'type':'string'}}}]}"},
        {KV_OK, true,
         "{'type':'object','properties':{'a':{'$ref':'#/$defs/kvasir-root'}},'$defs':{'kvasir-root':{"
         "'type':'object','properties':{'y':{'$ref':'#'},'z':{'type':'string'}}}}}"},
        /* a member that the only part of an allOf has, too */
        {KV_OK, true,
         "{'type':'object','properties':{'a':{'$ref':'#/$defs/N/$defs/X'}},'$defs':{'N':{'allOf':[{"
         "'type':'string','$defs':{}}],'$defs':{'X':{'type':'object','properties':{"
         "'y':{'$ref':'#/$defs/N'},'z':{'type':'string'}}}}}}}"},
        {KV_OK, false,
         "{'type':'object','properties':{'a':{'$ref':'#/$defs/N/items'}},'$defs':{'N':{'type':'array',"
         "'prefixItems':[{'type':'string'}],'items':{'type':'object','properties':{"
         "'y':{'$ref':'#/$defs/N'},'z':{'type':'string'}}}}}}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_error_t je;
        char *text = kv_strdup(rows[i].text);
        for (char *c = text; *c; c++) *c = *c == '\'' ? '"' : *c;
        json_t *root = json_loads(text, 0, &je), *out;
        free(text);
        if (!root) fail_msg("bad JSON in the test: %s", rows[i].text);
        kv_error err = {0};
        if (kv_chat_schema(&out, root, "s", rows[i].strict, &err) != rows[i].st)
            fail_msg("row %zu: %s", i, err.message);
        if (out) assert_true(json_is_object(json_object_get(json_object_get(out, "properties"), "a")));
        json_decref(out);
        json_decref(root);
    }
}

/* A name of n characters, as a property's and as a reference's. */
static void try_name(size_t n, kv_status expected) {
    char *name = kv_alloc(n + 1), *ref = kv_alloc(n + 9);
    memset(name, '_', n);
    snprintf(ref, n + 9, "#/$defs/%s", name);
    json_t *properties = json_pack("{s:s, s:{s:{s:s}}}", "type", "object", "properties", name, "type", "string"), *out;
    json_t *reference = json_pack("{s:s, s:{s:{s:s}}}", "$ref", ref, "$defs", name, "type", "string");
    kv_error err = {0};
    for (int strict = 0; strict < 2; strict++) {
        assert_int_equal(kv_chat_schema(&out, properties, "s", strict, &err), expected);
        if (expected == KV_OK) json_decref(out);
        else assert_non_null(strstr(err.message, "at most 1024"));
    }
    if (expected != KV_OK) assert_int_equal(kv_chat_schema(&out, reference, "s", true, &err), KV_INVALID);
    json_decref(properties);
    json_decref(reference);
    free(name);
    free(ref);
}

static void test_large(void **state) {
    (void)state;
    try_name(1024, KV_OK);
    try_name(1025, KV_INVALID);
    try_name(500000, KV_INVALID); /* the converter's regular expressions would use up the stack */
    json_t *list = json_array(), *root = json_pack("{s:o}", "anyOf", list), *out;
    kv_error err = {0};
    for (int i = 0; i < 30000; i++) json_array_append_new(list, json_pack("{s:s}", "type", "null"));
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "more than 20000"));
    json_decref(root);
}

/* An object with properties a0, a1 … */
static json_t *object_of(const char *prefix, int n) {
    json_t *properties = json_object();
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%d", prefix, i);
        json_object_set_new(properties, name, json_pack("{s:s}", "type", "null"));
    }
    return json_pack("{s:s, s:o}", "type", "object", "properties", properties);
}

static void test_many_properties(void **state) {
    (void)state;
    kv_error err = {0};
    for (int n = 500; n < 502; n++) {
        json_t *root = object_of("a", n), *out = NULL;
        assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), n == 500 ? KV_OK : KV_INVALID);
        json_decref(out);
        json_decref(root);
    }
    /* and what is merged into one */
    json_t *root = json_pack("{s:[o, {s:s}], s:{s:o}}", "allOf", object_of("a", 300), "$ref", "#/$defs/b", "$defs", "b",
                             object_of("b", 300)),
           *out;
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_INVALID);
    assert_non_null(strstr(err.message, "600 properties"));
    json_decref(root);
    root = parse(
        "{\"allOf\":[{\"$ref\":\"\"},{\"type\":\"object\",\"properties\":{}}]}"); /* nothing behind its end is read */
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_INVALID);
    json_decref(root);
}

/* The converter writes every optional name behind every other. */
static void test_optional_properties(void **state) {
    (void)state;
    kv_error err = {0};
    json_t *root = json_pack("{s:s, s:{}}", "type", "object", "properties"), *out = NULL;
    json_t *properties = json_object_get(root, "properties"), *required = json_array();
    char name[260] = "";
    memset(name, 'p', 200);
    for (int i = 0; i < 500; i++) {
        snprintf(name + 200, sizeof name - 200, "%d", i);
        json_object_set_new(properties, name, json_pack("{s:s}", "type", "null"));
        json_array_append_new(required, json_string(name));
    }
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_INVALID);
    assert_string_equal(err.message,
                        "s: its optional properties are too many, 3.2 times of what is possible: make some "
                        "'required', shorten their names, or leave some out");
    json_object_set(root, "required", required);
    assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), KV_OK);
    json_decref(out);
    json_decref(required);
    json_decref(root);
    json_t *list = json_array(); /* each object alone is fine, all together are not */
    root = json_pack("{s:o}", "anyOf", list);
    for (int n = 1; n <= 3; n++) {
        json_array_append_new(list, object_of("a", 450));
        assert_int_equal(kv_chat_schema(&out, root, "s", true, &err), n == 1 ? KV_OK : KV_INVALID);
        json_decref(out);
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_pattern_edges),
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_rewritten_while_walked),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_many_properties),
        cmocka_unit_test(test_optional_properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
