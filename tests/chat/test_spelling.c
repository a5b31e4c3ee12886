/* chat/spelling: what is one JSON value and what is not, and that tools, calls and texts get the spelling they had. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "chat/messages.h"
#include "chat/spelling.h"

/* ── a book: a list ────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct entry {
    kv_hash key;
    char *text;
    size_t n;
} entry;

typedef struct list {
    entry *e;
    size_t n;
    int n_new; /* puts that entered or changed something */
} list;

static bool get(void *ctx, kv_buf *out, kv_hash key) {
    list *l = ctx;
    kv_buf_clear(out);
    for (size_t i = 0; i < l->n; i++) {
        if (!kv_hash_equal(l->e[i].key, key)) continue;
        kv_buf_add(out, l->e[i].text, l->e[i].n);
        return true;
    }
    return false;
}

static void put(void *ctx, kv_hash key, const char *text, size_t n, bool replace) {
    list *l = ctx;
    size_t i = 0;
    while (i < l->n && !kv_hash_equal(l->e[i].key, key)) i++;
    if (i < l->n && !replace) return;
    if (i == l->n) {
        l->e = kv_realloc(l->e, ++l->n * sizeof *l->e);
        l->e[i].text = NULL;
    }
    free(l->e[i].text);
    char *copy = kv_alloc(n);
    memcpy(copy, text, n);
    l->e[i] = (entry){key, copy, n};
    l->n_new++;
}

static list l;
static const kv_spelling_book book = {get, put, &l};

static int tear_down(void **state) {
    (void)state;
    for (size_t i = 0; i < l.n; i++) free(l.e[i].text);
    free(l.e);
    l = (list){0};
    return 0;
}

/* ── canonical JSON ────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_buf canonical(bool *is_json, const char *text) {
    kv_buf form = {0};
    bool yes = kv_spelling_canonical(&form, text, strlen(text));
    if (is_json) *is_json = yes;
    return form;
}

static bool equal(const char *a, const char *b) {
    kv_buf x = canonical(NULL, a), y = canonical(NULL, b);
    bool same = x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    kv_buf_free(&x);
    kv_buf_free(&y);
    return same;
}

static void one_value_in_several_spellings(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"{\"a\":1,\"b\":[true,null]}", " {\n\"b\" : [ true , null ] , \"a\" : 1 } "},
        {"{\"n\":1}", "{\"n\":1.0}"},
        {"{\"n\":1}", "{\"n\":10e-1}"},
        {"{\"n\":1}", "{\"n\":0.001E+3}"},
        {"[100]", "[1e2]"},
        {"[0]", "[0.000]"},
        {"[0]", "[0e9]"},
        {"[-0]", "[-0.0]"},
        {"[1.50]", "[1.5]"},
        {"[12345678901234567890123]", "[12345678901234567890123.000]"},
        {"[1e400]", "[10e399]"},
        {"{\"\\u0061\":\"\\u00e9\\n\\/\"}", "{\"a\":\"é\\u000a/\"}"},
        {"\"\\ud83d\\ude00\"", "\"😀\""},
        {"{\"a\":{\"x\":1,\"y\":{\"q\":[],\"p\":{}}}}", "{\"a\":{\"y\":{\"p\":{},\"q\":[]},\"x\":1}}"},
        {"[\"\\u0000\"]", "[ \"\\u0000\" ]"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!equal(pairs[i][0], pairs[i][1])) fail_msg("not the same: %s and %s", pairs[i][0], pairs[i][1]);
}

/* All of them are different from each other. */
static void different_values(void **state) {
    (void)state;
    static const char *const list[] = {
        "0",
        "-0",
        "1",
        "-1",
        "1.5",
        "\"1\"",
        "\"n1e0\"",
        "\"s1\"",
        "10",
        "0.1",
        "0.10000000000000000001",
        "9007199254740992",
        "9007199254740993",
        "9007199254740993.5",
        "18446744073709551616",
        "18446744073709551617",
        "1e400",
        "1e401",
        "-1e400",
        "1e-400",
        "1e99999999999999999999",
        "1e99999999999999999998",
        "[]",
        "{}",
        "[[]]",
        "null",
        "true",
        "false",
        "\"\"",
        "\"true\"",
        "[1,2]",
        "[2,1]",
        "[12]",
        "{\"a\":1}",
        "{\"a\":\"1\"}",
        "{\"a\":null}",
        "{\"A\":1}",
        "{\"a\":1,\"b\":2}",
        "{\"a\":2,\"b\":1}",
        "{\"a \":1}",
        /* twice the same key: what it means depends on the reader */
        "{\"a\":1,\"a\":2}",
        "{\"a\":2,\"a\":1}",
        "{\"a\":2,\"a\":2}",
        "{\"a\":1,\"\\u0061\":1}",
        "{\"a\":1, \"a\":2}",
        /* no JSON */
        "",
        " ",
        "{",
        "}",
        "{\"a\":}",
        "{\"a\":1}x",
        "01",
        "1.",
        ".1",
        "+1",
        "-",
        "1e",
        "1e+",
        "--1",
        "0x10",
        "NaN",
        "Infinity",
        "'a'",
        "{a:1}",
        "[1,]",
        "[1 2]",
        "[1\"a\"]",
        "\"a",
        "\"\\",
        "\"\\ud800\"",
        "\"\x01\"",
        "\"\xff\"",
        "{\"\\u0000\":1}",
        "1-2",
        "[1-2]",
        "1.2.3",
        "tru",
        "truee",
        "j\"s\"",
        "b",
        "jnull",
    };
    const size_t n = sizeof list / sizeof *list;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (equal(list[i], list[k])) fail_msg("the same: %s and %s", list[i], list[k]);
}

static void what_is_no_json_is_said(void **state) {
    (void)state;
    static const char *const no[] = {"",
                                     "{",
                                     "01",
                                     "1.",
                                     "-",
                                     "{\"a\":1,\"a\":1}",
                                     "\"a",
                                     "[1,]",
                                     "1 2",
                                     "\"\xc3\"",
                                     "{\"\\u0000\":1}",
                                     "nul",
                                     "[1e]",
                                     "\"\\\"",
                                     "\"\\ud800\""};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        bool yes;
        kv_buf form = canonical(&yes, no[i]);
        if (yes) fail_msg("taken for JSON: %s", no[i]);
        kv_buf_free(&form);
    }
    kv_buf deep = {0};
    for (int i = 0; i < 100000; i++) kv_buf_adds(&deep, "[");
    for (int i = 0; i < 100000; i++) kv_buf_adds(&deep, "]");
    bool yes;
    kv_buf form = canonical(&yes, deep.data);
    assert_false(yes);
    assert_int_equal(form.len, deep.len + 1);
    kv_buf_free(&form);
    kv_buf_free(&deep);
}

/* ── random values ─────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t seed;

static unsigned draw(unsigned n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

static json_t *random_value(int depth) {
    switch (draw(depth > 0 ? 7 : 5)) {
    case 0: return json_integer((json_int_t)draw(2000) - 1000);
    case 1: return json_string(draw(2) ? "é\"\\/\n" : "plain");
    case 2: return json_boolean(draw(2));
    case 3: return json_null();
    case 4: return json_real((int)draw(64) / 8.0 + 0.125);
    case 5: {
        json_t *a = json_array();
        for (unsigned k = draw(4); k > 0; k--) json_array_append_new(a, random_value(depth - 1));
        return a;
    }
    default: {
        json_t *o = json_object();
        char key[8];
        for (unsigned k = draw(5); k > 0; k--) {
            snprintf(key, sizeof key, "k%u", draw(9));
            json_object_set_new(o, key, random_value(depth - 1));
        }
        return o;
    }
    }
}

static void blanks(kv_buf *out) {
    for (unsigned k = draw(3); k > 0; k--) kv_buf_add(out, &" \n\t\r"[draw(4)], 1);
}

static void spell_text(kv_buf *out, const char *s) {
    kv_buf_adds(out, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') kv_buf_addf(out, draw(2) ? "\\%c" : "\\u%04x", c);
        else if (c < 0x20) kv_buf_addf(out, c == '\n' && draw(2) ? "\\n" : "\\u%04X", c);
        else if (c < 0x80 && draw(3) == 0) kv_buf_addf(out, "\\u%04x", c);
        else kv_buf_add(out, s, 1);
    }
    kv_buf_adds(out, "\"");
}

/* The value in a random spelling. */
static void spell(kv_buf *out, json_t *v) {
    blanks(out);
    switch (json_typeof(v)) {
    case JSON_INTEGER: {
        long long n = json_integer_value(v);
        switch (n ? draw(4) : 0) {
        case 0: kv_buf_addf(out, "%lld", n); break;
        case 1: kv_buf_addf(out, "%lld.0", n); break;
        case 2: kv_buf_addf(out, "%lld00e-2", n); break;
        default: kv_buf_addf(out, "%lld.00E%s0", n, draw(2) ? "+" : ""); break;
        }
        break;
    }
    case JSON_REAL: kv_buf_addf(out, draw(2) ? "%.3f" : "%.6f", json_real_value(v)); break;
    case JSON_STRING: spell_text(out, json_string_value(v)); break;
    case JSON_ARRAY:
        kv_buf_adds(out, "[");
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i) kv_buf_adds(out, ",");
            spell(out, json_array_get(v, i));
        }
        kv_buf_adds(out, "]");
        break;
    case JSON_OBJECT: {
        const char *keys[16], *key;
        json_t *member;
        size_t n = 0;
        json_object_foreach(v, key, member) keys[n++] = key;
        for (size_t i = n; i > 1; i--) {
            size_t k = draw((unsigned)i);
            const char *was = keys[i - 1];
            keys[i - 1] = keys[k];
            keys[k] = was;
        }
        kv_buf_adds(out, "{");
        for (size_t i = 0; i < n; i++) {
            if (i) kv_buf_adds(out, ",");
            blanks(out);
            spell_text(out, keys[i]);
            blanks(out);
            kv_buf_adds(out, ":");
            spell(out, json_object_get(v, keys[i]));
        }
        kv_buf_adds(out, "}");
        break;
    }
    default: kv_json_dump(out, v); break;
    }
    blanks(out);
}

/* json_equal is the naive model: no value here is a real number that is whole. */
static void random_values(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_SEED");
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    uint64_t first = seed;
    for (int i = 0; i < 4000; i++) {
        json_t *a = random_value(3), *b = draw(3) ? random_value(2) : json_deep_copy(a);
        kv_buf x = {0}, y = {0};
        spell(&x, a);
        spell(&y, b);
        if (equal(x.data, y.data) != json_equal(a, b))
            fail_msg("KVASIR_SEED=%llu: round %d: %s and %s", (unsigned long long)first, i, x.data, y.data);
        kv_buf_free(&x);
        kv_buf_free(&y);
        json_decref(a);
        json_decref(b);
    }
}

/* ── tools, calls, texts ───────────────────────────────────────────────────────────────────────────────────────── */

/* '…' for "…". */
static json_t *of(const char *text) {
    char *s = kv_strdup(text);
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *v = json_loads(s, 0, NULL);
    if (!v) fail_msg("bad JSON in the test: %s", s);
    free(s);
    return v;
}

static json_t *messages_of(const char *text) {
    json_t *v = of(text), *messages;
    kv_error err = {0};
    if (kv_chat_check_messages(&messages, v, KV_IMAGE_ERROR, &err) != KV_OK) fail_msg("%s: %s", text, err.message);
    json_decref(v);
    return messages;
}

static json_t *tools_of(const char *text) {
    json_t *v = of(text), *tools;
    kv_error err = {0};
    if (kv_chat_check_tools(&tools, v, &err) != KV_OK) fail_msg("%s: %s", text, err.message);
    json_decref(v);
    return tools;
}

static void assert_dump(json_t *v, const char *expected) {
    kv_buf text = {0};
    kv_json_dump(&text, v);
    json_t *e = of(expected);
    kv_buf want = {0};
    kv_json_dump(&want, e);
    assert_string_equal(text.data, want.data);
    kv_buf_free(&text);
    kv_buf_free(&want);
    json_decref(e);
}

#define FIND                                                                                                           \
    "{'type':'function','function':{'name':'find','description':'Finds.','parameters':{'type':'object',"               \
    "'properties':{'z':{'type':'string'},'a':{'type':'integer','minimum':1}},'required':['z','a']}}}"
#define FIND_AGAIN                                                                                                     \
    "{'function':{'parameters':{'required':['z','a'],'properties':{'a':{'minimum':1.0,'type':'integer'},"              \
    "'z':{'type':'string'}},'type':'object'},'description':'Finds.','name':'find'},'type':'function'}"

static void tools_are_spelled_as_they_came_first(void **state) {
    (void)state;
    json_t *first = tools_of("[" FIND "]"), *again = tools_of("[" FIND_AGAIN "]");
    assert_false(kv_spelling_tools(first, &book));
    assert_int_equal(l.n_new, 1);
    assert_true(kv_spelling_tools(again, &book));
    assert_int_equal(l.n_new, 1);
    assert_dump(again, "[" FIND "]"); /* properties in the order of the first: none is sorted */
    assert_false(kv_spelling_tools(again, &book));
    json_decref(first);
    json_decref(again);
}

static void another_tool_is_another(void **state) {
    (void)state;
    json_t *first = tools_of("[" FIND "]");
    kv_spelling_tools(first, &book);
    static const char *const others[] = {
        "[{'type':'function','function':{'name':'find','parameters':{'required':['z','a'],'properties':{'a':{'minimum':"
        "1,"
        "'type':'integer'},'z':{'type':'string'}},'type':'object'}}}]",
        "[{'type':'function','function':{'name':'find','description':'Finds.','parameters':{'type':'object',"
        "'properties':{'a':{'type':'integer','minimum':1},'z':{'type':'string'}},'required':['a','z']}}}]",
        "[{'type':'function','function':{'name':'find','description':'Finds.','parameters':{'type':'object',"
        "'properties':{'a':{'type':'integer','minimum':1.5},'z':{'type':'string'}},'required':['z','a']}}}]",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        json_t *other = tools_of(others[i]), *copy = json_deep_copy(other);
        assert_false(kv_spelling_tools(other, &book));
        assert_true(json_equal(other, copy));
        json_decref(other);
        json_decref(copy);
    }
    json_decref(first);
}

/* The order of tools among each other is the client's. */
static void tools_keep_their_order(void **state) {
    (void)state;
#define TOOL(name)       "{'type':'function','function':{'name':'" name "','parameters':{'x':1,'y':2}}}"
#define TOOL_AGAIN(name) "{'type':'function','function':{'name':'" name "','parameters':{'y':2,'x':1}}}"
    json_t *a = tools_of("[" TOOL("one") "," TOOL("two") "]"), *b = tools_of("[" TOOL_AGAIN("two") "," TOOL("one") "]");
    kv_spelling_tools(a, &book);
    assert_true(kv_spelling_tools(b, &book));
    assert_dump(b, "[" TOOL("two") "," TOOL("one") "]");
    json_decref(a);
    json_decref(b);
}

#define CALL(id, args)                                                                                                 \
    "{'role':'assistant','content':null,'tool_calls':[{'id':'" id                                                      \
    "','type':'function','function':{'name':'f','arguments':" args "}}]}"
#define USER "{'role':'user','content':'q'}"

static const char *arguments_of(json_t *messages, size_t i) {
    const json_t *call = json_array_get(json_object_get(json_array_get(messages, i), "tool_calls"), 0);
    return json_string_value(json_object_get(json_object_get(call, "function"), "arguments"));
}

static void calls_are_spelled_as_they_were_sampled(void **state) {
    (void)state;
    json_t *sampled = of(CALL("c1", "'{\\'b\\': 1, \\'a\\': [2.0]}'"));
    kv_spelling_learn_calls(sampled, &book);
    json_t *m = messages_of(
        "[" USER "," CALL("c1", "'{\\'a\\':[2],\\'b\\':1.0}'") "," USER "," CALL("else", "{'a':[2],'b':1}") "]");
    json_t *others = messages_of("[" USER "," CALL("c1", "'{\\'a\\':[2],\\'b\\':2}'") "]");
    assert_true(kv_spelling_calls(m, &book));
    assert_string_equal(arguments_of(m, 1), "{\"b\": 1, \"a\": [2.0]}");
    assert_string_equal(arguments_of(m, 3), "{\"b\": 1, \"a\": [2.0]}"); /* a client that makes ids of its own */
    assert_false(kv_spelling_calls(others, &book));
    assert_string_equal(arguments_of(others, 1), "{\"a\":[2],\"b\":2}");
    json_decref(sampled);
    json_decref(m);
    json_decref(others);
}

/* The same call sampled twice in two spellings: each is found by its id, and without one it is the first. */
static void calls_are_told_apart_by_their_ids(void **state) {
    (void)state;
    json_t *one = of(CALL("c1", "'{\\'n\\':1}'")), *two = of(CALL("c2", "'{ \\'n\\': 1 }'"));
    kv_spelling_learn_calls(one, &book);
    kv_spelling_learn_calls(two, &book);
    json_t *m = messages_of("[" USER "," CALL("c2", "'{\\'n\\':1.0}'") "," CALL("c1", "'{\\'n\\':1.0}'") "," CALL(
        "c3", "'{\\'n\\':1.0}'") "]");
    assert_true(kv_spelling_calls(m, &book));
    assert_string_equal(arguments_of(m, 1), "{ \"n\": 1 }");
    assert_string_equal(arguments_of(m, 2), "{\"n\":1}");
    assert_string_equal(arguments_of(m, 3), "{\"n\":1}");
    json_decref(one);
    json_decref(two);
    json_decref(m);
}

static void calls_of_a_client_keep_their_first_spelling(void **state) {
    (void)state;
    json_t *a = messages_of("[" USER "," CALL("x", "'{\\'n\\': 1}'") "]");
    json_t *b = messages_of("[" USER "," CALL("x", "'{\\'n\\':1}'") "]");
    assert_false(kv_spelling_calls(a, &book));
    assert_true(kv_spelling_calls(b, &book));
    assert_string_equal(arguments_of(b, 1), "{\"n\": 1}");
    json_decref(a);
    json_decref(b);
}

static void arguments_that_are_no_json_stay(void **state) {
    (void)state;
    static const char *const args[] = {"'{\\'a\\':1,\\'a\\':2}'", "'{\\'a\\':2, \\'a\\':1}'", "'{\\'a\\':'", "''"};
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        kv_buf text = {0};
        kv_buf_addf(&text, "[" USER ",{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':%s}}]}]",
                    args[i]);
        json_t *m = messages_of(text.data), *copy = json_deep_copy(m);
        assert_false(kv_spelling_calls(m, &book));
        assert_true(json_equal(m, copy));
        json_decref(m);
        json_decref(copy);
        kv_buf_free(&text);
    }
    assert_int_equal(l.n, 0);
}

/* What a damaged or forged file says is not believed. */
static void only_the_same_value_is_taken(void **state) {
    (void)state;
    json_t *m = messages_of("[" USER "," CALL("x", "'{\\'n\\': 1}'") "]"), *tools = tools_of("[" FIND "]");
    kv_spelling_calls(m, &book);
    kv_spelling_tools(tools, &book);
    static const char *const lies[] = {"{\"n\":2}", "", "rubbish", "{\"n\":1,\"n\":1}", "null"};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        for (size_t k = 0; k < l.n; k++) {
            free(l.e[k].text);
            l.e[k].text = kv_strdup(lies[i]);
            l.e[k].n = strlen(lies[i]);
        }
        json_t *mine = json_deep_copy(m), *own = json_deep_copy(tools);
        assert_false(kv_spelling_calls(mine, &book));
        assert_false(kv_spelling_tools(own, &book));
        assert_true(json_equal(mine, m));
        assert_true(json_equal(own, tools));
        json_decref(mine);
        json_decref(own);
    }
    json_decref(m);
    json_decref(tools);
}

/* ── blanks: templates in C ────────────────────────────────────────────────────────────────────────────────────── */

static int n_renders;
static bool trims;

/* A template that writes what it gets (or without the blanks around it) between "A:" and a call on a line of its own
 * where `newline` says so. */
static bool render_with(kv_buf *out, const json_t *message, const char *before_call) {
    const char *said = json_string_value(json_object_get(message, "content"));
    const char *thought = json_string_value(json_object_get(message, "reasoning_content"));
    n_renders++;
    kv_buf_adds(out, "Q:?\nA:");
    if (thought) kv_buf_addf(out, "<think>%s</think>", thought);
    for (const char *s = said ? said : ""; *s; s++)
        if (!trims || (*s != '\n' && *s != ' ')) kv_buf_add(out, s, 1);
    if (json_array_size(json_object_get(message, "tool_calls"))) kv_buf_addf(out, "%s<call>f</call>", before_call);
    kv_buf_adds(out, "<end>\n");
    return true;
}

static bool plain(void *ctx, kv_buf *out, const json_t *message) {
    (void)ctx;
    return render_with(out, message, "");
}

static bool with_line(void *ctx, kv_buf *out, const json_t *message) {
    (void)ctx;
    return render_with(out, message, "\n");
}

static bool never(void *ctx, kv_buf *out, const json_t *message) {
    (void)ctx, (void)out, (void)message;
    return false;
}

/* What the conversation [user q, this message] is spelled as, when that was sampled. */
static const char *said_after(const char *sampled, const char *parsed, const char *returned,
                              kv_spelling_render render) {
    static char said[256];
    json_t *user = of(USER), *message = of(parsed);
    kv_spelling_learn_text(message, sampled, strlen(sampled), kv_spelling_place(user), (kv_hash){1, 2}, render, NULL,
                           &book);
    kv_buf text = {0};
    kv_buf_addf(&text, "[" USER ",%s," USER "]", returned);
    json_t *m = messages_of(text.data);
    kv_spelling_texts(m, &book);
    const json_t *one = json_array_get(m, 1), *content = json_object_get(one, "content");
    if (json_is_array(content)) content = json_object_get(json_array_get(content, 0), "text");
    snprintf(said, sizeof said, "%s|%s", json_string_value(content),
             json_object_get(one, "reasoning_content") ? json_string_value(json_object_get(one, "reasoning_content"))
                                                       : "");
    json_decref(user);
    json_decref(message);
    json_decref(m);
    kv_buf_free(&text);
    return said;
}

#define F_CALL     ",'tool_calls':[{'id':'c','type':'function','function':{'name':'f','arguments':'{}'}}]"
#define SAID(text) "{'role':'assistant','content':'" text "'" F_CALL "}"

/* F5: the client cut the line break off, or the template adds one of its own. */
static void the_blanks_that_were_sampled(void **state) {
    (void)state;
    trims = false;
    assert_string_equal(said_after("Look.\n<call>f</call>", SAID("Look.\\n"), SAID("Look."), plain), "Look.\n|");
    tear_down(NULL);
    assert_string_equal(said_after("Look.\n<call>f</call>", SAID("Look.\\n"), SAID("Look.\\n"), with_line), "Look.|");
    tear_down(NULL);
    assert_string_equal(said_after("Look.\n\n<call>f</call>", SAID("Look."), SAID("Look."), with_line), "Look.\n|");
    tear_down(NULL);
    assert_string_equal(said_after("  Look.<call>f</call>", SAID("Look."),
                                   "{'role':'assistant','content':[{'type':'text','text':'Look. '}]" F_CALL "}", plain),
                        "  Look.|");
}

static void thoughts_likewise(void **state) {
    (void)state;
    trims = false;
#define THOUGHT(text) "{'role':'assistant','content':'Yes.','reasoning_content':'" text "'}"
    assert_string_equal(said_after("<think>\nhm\n</think>Yes.", THOUGHT("\\nhm\\n"), THOUGHT("hm"), plain),
                        "Yes.|\nhm\n");
    /* whoever leaves them out gets what was asked for */
    assert_string_equal(
        said_after("<think>\nhm\n</think>Yes.", THOUGHT("\\nhm\\n"), "{'role':'assistant','content':'Yes.'}", plain),
        "Yes.|");
    assert_string_equal(said_after("<think>\nhm\n</think>Yes.", THOUGHT("\\nhm\\n"), THOUGHT("hum"), plain),
                        "Yes.|hum");
}

static void nothing_is_kept_where_nothing_is_in_doubt(void **state) {
    (void)state;
    n_renders = 0;
    trims = false;
    (void)said_after("Look.<call>f</call>", SAID("Look."), SAID("Look."), plain);
    assert_int_equal(l.n, 0);
    assert_int_equal(n_renders, 0);
    trims = true; /* the template does not care: only that is noted */
    assert_string_equal(said_after("Look.\n<call>f</call>", SAID("Look.\\n"), SAID("Look. "), plain), "Look. |");
    assert_int_equal(l.n, 1);
    assert_true(n_renders > 0);
    n_renders = 0; /* and the template is not asked again */
    (void)said_after("Other.\n<call>f</call>", SAID("Other.\\n"), SAID("Other."), plain);
    assert_int_equal(n_renders, 0);
    assert_int_equal(l.n, 1);
    trims = false;
    tear_down(NULL);
    assert_string_equal(said_after("Look.\n<call>f</call>", SAID("Look.\\n"), SAID("Look."), never), "Look.|");
}

static void only_behind_the_same_message(void **state) {
    (void)state;
    trims = false;
    (void)said_after("Look.\n<call>f</call>", SAID("Look.\\n"), SAID("Look."), plain);
    json_t *m = messages_of("[{'role':'user','content':'other'}," SAID(
        "Look.") ",{'role':'user','content':[{'type':'text',"
                 "'text':'q'}]}," SAID("Look.") ",{'role':'user','content':'q'},{'role':'assistant','content':"
                                                "'Look.'}]");
    assert_true(kv_spelling_texts(m, &book));
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 1), "content")), "Look.");
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 3), "content")), "Look.\n");
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 5), "content")), "Look."); /* no call */
    json_decref(m);
}

/* An answer that is to be gone on with begins where the client says. */
static void not_what_is_continued(void **state) {
    (void)state;
    trims = false;
    (void)said_after("Look.\n<call>f</call>", SAID("Look.\\n"), SAID("Look."), plain);
    json_t *m = messages_of("[" USER "," SAID("Look.") "]");
    assert_false(kv_spelling_texts(m, &book));
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 1), "content")), "Look.");
    json_decref(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_value_in_several_spellings),
        cmocka_unit_test(different_values),
        cmocka_unit_test(what_is_no_json_is_said),
        cmocka_unit_test(random_values),
        cmocka_unit_test_teardown(tools_are_spelled_as_they_came_first, tear_down),
        cmocka_unit_test_teardown(another_tool_is_another, tear_down),
        cmocka_unit_test_teardown(tools_keep_their_order, tear_down),
        cmocka_unit_test_teardown(calls_are_spelled_as_they_were_sampled, tear_down),
        cmocka_unit_test_teardown(calls_are_told_apart_by_their_ids, tear_down),
        cmocka_unit_test_teardown(calls_of_a_client_keep_their_first_spelling, tear_down),
        cmocka_unit_test_teardown(arguments_that_are_no_json_stay, tear_down),
        cmocka_unit_test_teardown(only_the_same_value_is_taken, tear_down),
        cmocka_unit_test_teardown(the_blanks_that_were_sampled, tear_down),
        cmocka_unit_test_teardown(thoughts_likewise, tear_down),
        cmocka_unit_test_teardown(nothing_is_kept_where_nothing_is_in_doubt, tear_down),
        cmocka_unit_test_teardown(only_behind_the_same_message, tear_down),
        cmocka_unit_test_teardown(not_what_is_continued, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
