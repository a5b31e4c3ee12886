/* sched/text: stop strings, held-back characters and indentation do not depend on where tokens end. */
#include "testing.h"

#include "base/json.h"
#include "sched/text.h"

typedef struct result {
    kv_buf text;
    kv_text_end end;
    char stop[64];
} result;

/* Feed `bytes` cut at the given places (n_cuts ascending offsets), then flush. */
static result run(const char *bytes, size_t n, const size_t *cuts, int n_cuts, const char *const *stops, int n_stops,
                  int n_indent) {
    result r = {0};
    kv_text t;
    kv_text_init(&t, stops, n_stops, n_indent);
    size_t at = 0;
    for (int i = 0; i <= n_cuts && t.end == KV_TEXT_GOES_ON; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        kv_text_feed(&r.text, &t, bytes + at, to - at);
        at = to;
    }
    r.end = t.end;
    kv_text_flush(&r.text, &t);
    snprintf(r.stop, sizeof r.stop, "%s", t.stop_word ? t.stop_word : "");
    kv_text_free(&t);
    return r;
}

static void table(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        const char *stops[3];
        int n_indent;
        const char *text;
        kv_text_end end;
        const char *stop;
    } rows[] = {
        {"hello", {0}, 0, "hello", KV_TEXT_GOES_ON, ""},
        {"", {"x"}, 0, "", KV_TEXT_GOES_ON, ""},
        {"one STOP two", {"STOP"}, 0, "one ", KV_TEXT_STOPPED, "STOP"},
        {"STOP", {"STOP"}, 0, "", KV_TEXT_STOPPED, "STOP"},
        {"one STO", {"STOP"}, 0, "one STO", KV_TEXT_GOES_ON, ""}, /* an unfinished one is text */
        {"ababababc", {"ababc"}, 0, "abab", KV_TEXT_STOPPED, "ababc"},
        {"aaab", {"aab"}, 0, "a", KV_TEXT_STOPPED, "aab"},
        {"xabcy", {"b", "abc"}, 0, "xa", KV_TEXT_STOPPED, "b"},   /* complete first */
        {"xabcy", {"bc", "abc"}, 0, "x", KV_TEXT_STOPPED, "abc"}, /* complete together: the longest */
        {"ab", {""}, 0, "ab", KV_TEXT_GOES_ON, ""},
        {"a\xE2\x82\xAC", {0}, 0, "a\xE2\x82\xAC", KV_TEXT_GOES_ON, ""},
        {"a\xE2\x82", {0}, 0, "a", KV_TEXT_GOES_ON, ""}, /* an unfinished character never goes out */
        {"a\xE2\x82\xAC|b", {"\xE2\x82\xAC|"}, 0, "a", KV_TEXT_STOPPED, "\xE2\x82\xAC|"},
        {"if:\n    a\n  b\n", {0}, 4, "if:\n    a\n", KV_TEXT_OUTDENTED, ""},
        {"if:\n    a\n\n    b", {0}, 4, "if:\n    a\n", KV_TEXT_OUTDENTED, ""}, /* an empty line has no indentation */
        {"if:\n\t\ta\n", {0}, 2, "if:\n\t\ta\n", KV_TEXT_GOES_ON, ""},
        {"  a\nb", {0}, 1, "  a\n", KV_TEXT_OUTDENTED, ""},
        {"a\n  ", {0}, 4, "a\n  ", KV_TEXT_GOES_ON, ""}, /* not decided when the answer ends */
        {"a\n  <|x|>", {"<|x|>"}, 4, "a\n", KV_TEXT_OUTDENTED, ""},
        {"a\n  b", {"\n  b"}, 4, "a", KV_TEXT_STOPPED, "\n  b"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n_stops = 0;
        while (n_stops < 3 && rows[i].stops[n_stops]) n_stops++;
        size_t n = strlen(rows[i].bytes), cuts[64];
        for (int way = 0; way < 2; way++) { /* whole, and byte by byte */
            int n_cuts = 0;
            for (size_t c = 1; way && c < n; c++) cuts[n_cuts++] = c;
            result r = run(rows[i].bytes, n, cuts, n_cuts, rows[i].stops, n_stops, rows[i].n_indent);
            assert_string_equal(kv_buf_str(&r.text), rows[i].text);
            assert_int_equal(r.end, rows[i].end);
            assert_string_equal(r.stop, rows[i].stop);
            kv_buf_free(&r.text);
        }
    }
}

static void what_can_be_sent_is_sent(void **state) {
    (void)state;
    const char *stops[] = {"<end>"};
    kv_text t;
    kv_buf out = {0};
    kv_text_init(&t, stops, 1, 0);
    kv_text_feed(&out, &t, "abc", 3);
    assert_string_equal(kv_buf_str(&out), "abc");
    kv_text_feed(&out, &t, "d<e", 3);
    assert_string_equal(kv_buf_str(&out), "abcd");
    kv_text_feed(&out, &t, "nx\xC3", 3);
    assert_string_equal(kv_buf_str(&out), "abcd<enx");
    assert_false(t.new_line);
    kv_text_feed(&out, &t, "\xA4\n", 2);
    assert_string_equal(kv_buf_str(&out), "abcd<enx\xC3\xA4\n");
    assert_true(t.new_line);
    kv_text_feed(&out, &t, "z", 1);
    assert_false(t.new_line);
    kv_text_flush(&out, &t);
    kv_text_free(&t);
    kv_buf_free(&out);
}

/* The naive model: look at the whole text after each byte. Returns where the text ends. */
static size_t naive(kv_text_end *end, const char **stop, const char *bytes, size_t n, const char *const *stops,
                    int n_stops, int n_indent) {
    *end = KV_TEXT_GOES_ON;
    *stop = "";
    for (size_t e = 1; e <= n; e++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            size_t w = strlen(stops[i]);
            if (w <= e && w > longest && memcmp(bytes + e - w, stops[i], w) == 0) {
                longest = w;
                *stop = stops[i];
            }
        }
        if (longest) {
            *end = KV_TEXT_STOPPED;
            return e - longest;
        }
        if (!n_indent || bytes[e - 1] == ' ' || bytes[e - 1] == '\t') continue;
        size_t line = e - 1; /* the line that this byte stands in */
        while (line > 0 && bytes[line - 1] != '\n') line--;
        size_t blanks = line;
        while (bytes[blanks] == ' ' || bytes[blanks] == '\t') blanks++;
        if (line > 0 && blanks == e - 1 && (int)(blanks - line) < n_indent) {
            *end = KV_TEXT_OUTDENTED;
            return line;
        }
    }
    return n;
}

static void random_against_naive(void **state) {
    (void)state;
    dice d = {testing_seed("text")};
    static const char *const letters[] = {"a", "b", "ab", "\n", " ", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (int round = 0; round < 20000; round++) {
        char bytes[128], words[3][8];
        const char *stops[3];
        size_t n = 0, cuts[64];
        int n_stops = dice_below(&d, 4), n_cuts = 0, n_indent = dice_one_in(&d, 3) ? dice_from(&d, 1, 2) : 0;
        for (int k = dice_below(&d, 24); k > 0; k--) {
            const char *l = letters[dice_below(&d, 8)];
            memcpy(bytes + n, l, strlen(l));
            n += strlen(l);
        }
        if (n && dice_one_in(&d, 4)) n--; /* perhaps inside a character */
        bytes[n] = '\0';
        for (int i = 0; i < n_stops; i++) {
            words[i][0] = '\0';
            for (int k = dice_from(&d, 1, 3); k > 0; k--) {
                const char *l = letters[dice_below(&d, 4)];
                if (strlen(words[i]) + strlen(l) < 6) memcpy(words[i] + strlen(words[i]), l, strlen(l) + 1);
            }
            stops[i] = words[i];
        }
        for (size_t c = 0; c <= n && n_cuts < 60; c++)
            if (dice_one_in(&d, 3)) cuts[n_cuts++] = c;
        kv_text_end end;
        const char *stop;
        size_t to = naive(&end, &stop, bytes, n, stops, n_stops, n_indent);
        to = kv_utf8_complete(bytes, to);
        result r = run(bytes, n, cuts, n_cuts, stops, n_stops, n_indent);
        assert_int_equal(r.end, end);
        assert_string_equal(r.stop, stop);
        assert_int_equal(r.text.len, to);
        assert_memory_equal(kv_buf_str(&r.text), bytes, to);
        kv_buf_free(&r.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(what_can_be_sent_is_sent),
        cmocka_unit_test(random_against_naive),
    };
    return cmocka_run_group_tests_name("sched/text", tests, NULL, NULL);
}
