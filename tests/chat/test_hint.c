/* What stands at a place of a prompt, and whose words it lies in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chat/hint.h"

/* ── what it looks like ────────────────────────────────────────────────────────────────────────────────────────────
 *
 * '|' stands before the first byte that differs; what is seen is in brackets behind. */

static const struct {
    const char *text;
    kv_suspect kind;
    const char *seen;
} sights[] = {
    /* times */
    {"Now: 2026-11-30T02:1|5:07Z here", KV_SUSPECT_TIME, "2026-11-30T02:15:07Z"},
    {"Now: |2026-11-30T02:15:07.123+01:00", KV_SUSPECT_TIME, "2026-11-30T02:15:07.123+01:00"},
    {"date and time: Monday, March 9, 2026 at 06:00:3|1 PM PDT", KV_SUSPECT_TIME,
     "Monday, March 9, 2026 at 06:00:31 PM"},
    {"Current time is 15:09:|34. Today's date is 2026-09-09.", KV_SUSPECT_TIME, "15:09:34"},
    {"at |2:15 sharp", KV_SUSPECT_TIME, "2:15"},
    {"timestamp=17960049|07;", KV_SUSPECT_TIME, "1796004907"},
    {"t: 17960049070|12", KV_SUSPECT_TIME, "1796004907012"},
    {"2026-11-30 02:15 UTC and 2026-11-3|0 02:16", KV_SUSPECT_TIME, "2026-11-30 02:16"},
    /* dates */
    {"Today's date: 2026-11-3|0\n", KV_SUSPECT_DATE, "2026-11-30"},
    {"Today is |Monday, 30 November 2026.", KV_SUSPECT_DATE, "Monday, 30 November 2026"},
    {"Today is Mon|day.", KV_SUSPECT_DATE, "Monday"},
    {"on 30.11.2|026 or", KV_SUSPECT_DATE, "30.11.2026"},
    {"on 11/30/202|6", KV_SUSPECT_DATE, "11/30/2026"},
    {"since Nov 3|0, it", KV_SUSPECT_DATE, "Nov 30"},
    {"since |June 2024 it", KV_SUSPECT_DATE, "June 2024"},
    /* ids */
    {"scratch/fc9aab5b-da05-4cc7-bbe2-410a1c4721|51/pad", KV_SUSPECT_ID, "fc9aab5b-da05-4cc7-bbe2-410a1c472151"},
    {"Request |3f2504e0-4f89-11d3-9a0c-0305e82c3301 at", KV_SUSPECT_ID, "3f2504e0-4f89-11d3-9a0c-0305e82c3301"},
    {"cch=|fa690;", KV_SUSPECT_ID, "fa690"},
    {"HEAD is 9f|c04b1 on main", KV_SUSPECT_ID, "9fc04b1"},
    {"at 0x7f|f", KV_SUSPECT_ID, "0x7ff"},
    {"call_9fK2xQ|7vLm made", KV_SUSPECT_ID, "call_9fK2xQ7vLm"},
    {"session V1StGXR8_Z5jdHi6B|-myT.", KV_SUSPECT_ID, "V1StGXR8_Z5jdHi6B-myT"},
    /* numbers */
    {"You have 19|342 tokens left", KV_SUSPECT_NUMBER, "19342"},
    {"\"message_id\": \"48|21\",", KV_SUSPECT_NUMBER, "4821"},
    {"used 1,0|24 of", KV_SUSPECT_NUMBER, "1,024"},
    {"version 2.1.|37 of", KV_SUSPECT_NUMBER, "2.1.37"},
    {"turn |4", KV_SUSPECT_NUMBER, "4"},
    /* a number among words is not a time, a word with figures no id, a short word no date */
    {"3:|7 is odd", KV_SUSPECT_NUMBER, "7"},
    {"it may |be so", KV_SUSPECT_NONE, ""},
    {"March| on, soldiers", KV_SUSPECT_NONE, ""},
    {"They |Sat down", KV_SUSPECT_NONE, ""},
    {"a facade |added", KV_SUSPECT_NONE, ""},
    {"mcp__browser_|click", KV_SUSPECT_NONE, ""},
    {"gpt4|all", KV_SUSPECT_NONE, ""},
    {"utf|8 text", KV_SUSPECT_NONE, ""},
    {"sha256sum of| it", KV_SUSPECT_NONE, ""},
    {"at 12:00 |we eat", KV_SUSPECT_NONE, ""}, /* beside it */
    {"|we eat at 12:00", KV_SUSPECT_NONE, ""},
    {"Zür|ich", KV_SUSPECT_NONE, ""},
    {"|", KV_SUSPECT_NONE, ""},
    {"end|", KV_SUSPECT_NONE, ""},
};

static void test_sights(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sights / sizeof *sights; i++) {
        const char *bar = strchr(sights[i].text, '|');
        size_t at = (size_t)(bar - sights[i].text), n = strlen(sights[i].text) - 1;
        char text[256];
        memcpy(text, sights[i].text, at);
        strcpy(text + at, bar + 1);
        kv_sighting got = kv_hint_suspect(text, n, at, at + 1);
        if (got.kind != sights[i].kind || got.end - got.start != strlen(sights[i].seen) ||
            memcmp(text + got.start, sights[i].seen, got.end - got.start) != 0)
            fail_msg("%s: %d \"%.*s\"", sights[i].text, got.kind, (int)(got.end - got.start), text + got.start);
    }
    /* a token that begins with a blank and ends with what differs */
    assert_int_equal(kv_hint_suspect("turn 4", 6, 4, 6).kind, KV_SUSPECT_NUMBER);
}

/* Any place in any bytes: nothing outside of the text is read (the sanitizers see it), and what is found covers it. */
static void test_sights_random(void **state) {
    (void)state;
    unsigned seed = 20261130;
    static const char letters[] = "0123456789:-T/. ,ZaAfMarPMxé_%";
    for (int round = 0; round < 20000; round++) {
        size_t n = (seed = seed * 1103515245 + 12345) / 65536 % 40;
        char *text = malloc(n + 1);
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1103515245 + 12345;
            text[i] = letters[seed / 65536 % (sizeof letters - 1)];
        }
        char *exact = malloc(n ? n : 1);
        memcpy(exact, text, n);
        for (size_t at = 0; at <= n; at++) {
            kv_sighting s = kv_hint_suspect(exact, n, at, at + 1 + round % 4);
            if (s.kind == KV_SUSPECT_NONE) continue;
            assert_true(s.start < s.end && s.end <= n);
            assert_true(s.end > at && s.start < at + 1 + (size_t)(round % 4));
        }
        free(exact);
        free(text);
    }
}

/* ── whose words ───────────────────────────────────────────────────────────────────────────────────────────────────── */

#define TOOL(name, what)                                                                                               \
    "{\"type\": \"function\", \"function\": {\"name\": \"" name "\", \"description\": \"" what                         \
    "\", \"parameters\": {\"type\": \"object\"}}}"

static const char messages_json[] =
    "[{\"role\":\"system\",\"content\":\"Rules: \\\"beta\\\" is a tool. Now: 02:15:07\"},"
    "{\"role\":\"user\",\"content\":\" hi \"},"
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"beta\","
    "\"arguments\":\"{\\\"n\\\": 41}\"}}]},"
    "{\"role\":\"tool\",\"content\":\"result of the first call\"},"
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"It is "
    "\"},{\"type\":\"text\",\"text\":\"done.\"}]},"
    "{\"role\":\"user\",\"content\":\"the second question 5\"}]";
static const char tools_json[] = "[" TOOL("alpha", "first") "," TOOL("beta", "second") "," TOOL("gamma", "third") "]";
static const char rendered[] =
    "<s>system\nRules: \"beta\" is a tool. Now: 02:15:07\n\n# Tools\n<tools>\n" TOOL("alpha", "first") "\n" TOOL(
        "beta", "second") "\n" TOOL("gamma",
                                    "third") "\n</tools><e>\n<s>user\nhi<e>\n<s>assistant\n<call>{\"name\": "
                                             "\"beta\", \"arguments\": {\"n\": 41}}</call><e>\n<s>tool\nresult of the "
                                             "first call<e>\n<s>assistant\nIt is done.<e>\n"
                                             "<s>user\nthe second question 5<e>\n<s>assistant\n";

static const struct {
    const char *before; /* the place is where this begins, the first time */
    kv_whose whose;
    int number;
    size_t byte;
    const char *name;
    bool behind, fresh;
    const char *says; /* with much behind it; NULL: nothing */
} places[] = {
    {"Rules", KV_WHOSE_SYSTEM, 1, 0, "system", false, false,
     "the system prompt differs from byte 0 on: nothing behind"},
    {"02:15", KV_WHOSE_SYSTEM, 1, 30, "system", false, false,
     "the system prompt differs from byte 30 on, at what looks like a time (02:15:07), in the line \"Rules: \"beta\" "
     "is a "
     "tool. Now: 02:15:07\": nothing behind it can be reused; move it out of the system prompt"},
    {"\n\n# Tools", KV_WHOSE_TOOLS, 1, 0, "alpha", false, false, "the tools differ from the 1st on (alpha): send all"},
    {"alpha", KV_WHOSE_TOOLS, 1, 0, "alpha", false, false, "the tools differ from the 1st on (alpha)"},
    {"beta\", \"desc", KV_WHOSE_TOOLS, 2, 0, "beta", false, false, "the tools differ from the 2nd on (beta)"},
    {"econd\"", KV_WHOSE_TOOLS, 2, 0, "beta", false, false, "the tools differ from the 2nd on (beta)"},
    {"amma", KV_WHOSE_TOOLS, 3, 0, "gamma", false, false, "the tools differ from the 3rd on (gamma)"},
    {"/tools>", KV_WHOSE_TOOLS, 3, 0, "gamma", true, false,
     "the tools differ behind the 3rd (gamma), which is the last: send all tools each time"},
    {"hi<e>", KV_WHOSE_MESSAGE, 1, 1, "user", false, false, "message 1 (user) differs from byte 1 on: nothing"},
    {"41}", KV_WHOSE_MESSAGE, 2, 6, "assistant", false, false,
     "message 2 (assistant) differs from byte 6 on, at what looks like a number (41), in the line"},
    {"of the first", KV_WHOSE_MESSAGE, 3, 7, "tool", false, false, "message 3 (tool) differs from byte 7 on"},
    {"done", KV_WHOSE_MESSAGE, 4, 6, "assistant", false, false, "message 4 (assistant) differs from byte 6 on"},
    /* what is new may be new */
    {"second question", KV_WHOSE_MESSAGE, 5, 4, "user", false, true, NULL},
    {"5<e>", KV_WHOSE_MESSAGE, 5, 20, "user", false, true, NULL},
    {"<e>\n<s>user\nthe", KV_WHOSE_MESSAGE, 5, 0, "user", false, true, NULL},
};

static size_t place_of(const char *before) {
    const char *at = strstr(rendered, before);
    if (!at) fail_msg("%s is not in the text", before);
    return (size_t)(at - rendered);
}

static void test_places(void **state) {
    (void)state;
    json_t *messages = json_loads(messages_json, 0, NULL), *tools = json_loads(tools_json, 0, NULL);
    assert_non_null(messages);
    assert_non_null(tools);
    const kv_hint_chat c = {
        .text = rendered, .n = sizeof rendered - 1, .messages = messages, .tools = tools, .turn = "<s>"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t at = place_of(places[i].before);
        kv_hint_place p = kv_hint_find(&c, at);
        if (p.whose != places[i].whose || p.number != places[i].number || p.byte != places[i].byte ||
            strcmp(p.name ? p.name : "", places[i].name) != 0 || p.behind != places[i].behind ||
            p.fresh != places[i].fresh)
            fail_msg("%s: %d, %d, %zu, %s, %d, %d", places[i].before, p.whose, p.number, p.byte, p.name ? p.name : "-",
                     p.behind, p.fresh);
        kv_buf said = {0};
        bool any = kv_hint_of_chat(&said, &c, at, at + 1, true);
        const char *want = places[i].says ? places[i].says : "";
        if (any != (places[i].says != NULL) || strncmp(kv_buf_str(&said), want, strlen(want)) != 0)
            fail_msg("%s: \"%s\"", places[i].before, kv_buf_str(&said));
        kv_buf_free(&said);
    }
    /* late in a prompt, only what looks like something is told */
    kv_buf said = {0};
    assert_false(kv_hint_of_chat(&said, &c, place_of("of the first"), place_of("of the first") + 1, false));
    assert_int_equal(said.len, 0);
    assert_true(kv_hint_of_chat(&said, &c, place_of("41}"), place_of("41}") + 1, false));
    kv_buf_free(&said);
    json_decref(messages);
    json_decref(tools);
}

/* A template that writes other texts than the request has, or none of the tools: less is said, nothing wrong. */
static void test_other_templates(void **state) {
    (void)state;
    json_t *messages = json_loads(messages_json, 0, NULL), *tools = json_loads(tools_json, 0, NULL);
    static const char other[] = "RULES! 2026 [user] THE 1st [end]";
    kv_hint_chat c = {.text = other, .n = sizeof other - 1, .messages = messages, .tools = tools};
    kv_buf said = {0};
    for (size_t at = 0; at <= c.n; at++) assert_int_equal(kv_hint_find(&c, at).whose, KV_WHOSE_NOBODY);
    assert_true(kv_hint_of_chat(&said, &c, 7, 8, false));
    assert_non_null(strstr(said.data, "the prompt differs between its messages, at what looks like a number (2026)"));
    kv_buf_clear(&said);
    c.messages = c.tools = NULL;
    assert_false(kv_hint_of_chat(&said, &c, 1, 2, false));
    c.n = 0;
    assert_false(kv_hint_of_chat(&said, &c, 0, 1, false));
    assert_int_equal(said.len, 0);
    kv_buf_free(&said);
    json_decref(messages);
    json_decref(tools);
}

static void test_ordinals(void **state) {
    (void)state;
    static const struct {
        int n;
        const char *want;
    } all[] = {{4, "4th"}, {11, "11th"}, {12, "12th"}, {13, "13th"}, {21, "21st"}, {22, "22nd"}, {112, "112th"}};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "question of the user"),
           *tools = json_array();
    kv_buf text = {0};
    for (int i = 1; i <= 112; i++) {
        char name[16];
        snprintf(name, sizeof name, "tool%d", i);
        json_array_append_new(tools, json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
        kv_buf_addf(&text, "{\"name\": \"%s\"}\n", name);
    }
    kv_buf_adds(&text, "question of the user");
    const kv_hint_chat c = {.text = text.data, .n = text.len, .messages = messages, .tools = tools};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char what[64];
        kv_buf said = {0};
        snprintf(what, sizeof what, "tool%d\"", all[i].n);
        size_t at = (size_t)(strstr(text.data, what) - text.data);
        assert_true(kv_hint_of_chat(&said, &c, at, at + 1, false));
        snprintf(what, sizeof what, "the tools differ from the %s on", all[i].want);
        assert_int_equal(strncmp(said.data, what, strlen(what)), 0);
        kv_buf_free(&said);
    }
    kv_buf_free(&text);
    json_decref(messages);
    json_decref(tools);
}

/* Long things are cut between characters; so is a line. */
static void test_cuts(void **state) {
    (void)state;
    kv_buf text = {0}, said = {0};
    for (int i = 0; i < 60; i++) kv_buf_adds(&text, "€");
    size_t at = text.len + 1;
    kv_buf_adds(&text, " 0123456789012345678901234567890123456789012345678901234567890123456789 ");
    for (int i = 0; i < 60; i++) kv_buf_adds(&text, "€");
    assert_true(kv_hint_of_text(&said, text.data, text.len, at, at + 1, true));
    assert_true(kv_utf8_valid(said.data, said.len));
    assert_non_null(strstr(said.data, "a number (0123456789012345678901234567890123456789…)"));
    assert_true(said.len < 500);
    kv_buf_clear(&said);
    assert_false(kv_hint_of_text(&said, text.data, text.len, at, at + 1, false));
    assert_true(kv_hint_of_text(&said, "plain words", 11, 3, 4, true));
    assert_non_null(strstr(said.data, "such as a date"));
    kv_buf_free(&said);
    kv_buf_free(&text);
}

/* Texts made to take long: what is looked at has an end. */
static void test_endless(void **state) {
    (void)state;
    kv_buf text = {0}, said = {0};
    for (int i = 0; i < 400000; i++) kv_buf_adds(&text, i % 2 ? "-a1" : "\"x\"");
    kv_hint_suspect(text.data, text.len, text.len / 2, text.len / 2 + 1);
    kv_hint_suspect(text.data, text.len, 1, text.len);
    json_t *messages = json_array(), *tools = json_array();
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", text.data));
    for (int i = 0; i < 20000; i++)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", i % 2 ? "user" : "assistant", "content", "b2"));
    for (int i = 0; i < 1000; i++)
        json_array_append_new(tools, json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", "x"));
    kv_hint_chat c = {.text = text.data, .n = text.len, .messages = messages, .tools = tools, .turn = "<turn>"};
    kv_hint_of_chat(&said, &c, text.len / 2, text.len / 2 + 1, true);
    assert_int_equal(strncmp(said.data, "message 1 (user) differs from byte ", 35), 0);
    kv_buf_clear(&said);
    c.turn = "-a1";
    kv_hint_of_chat(&said, &c, text.len - 1, text.len, true);
    json_array_remove(messages, 0);
    kv_hint_of_chat(&said, &c, text.len / 2, text.len / 2 + 1, true);
    json_decref(messages);
    json_decref(tools);
    kv_buf_free(&text);
    kv_buf_free(&said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sights),          cmocka_unit_test(test_sights_random), cmocka_unit_test(test_places),
        cmocka_unit_test(test_other_templates), cmocka_unit_test(test_ordinals),      cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_endless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
