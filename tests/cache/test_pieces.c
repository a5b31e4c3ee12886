/* pieces: which tokens spell the beginning of a text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/pieces.h"

static const char *const texts[] = {"a", "ab", "b", "abc", "ab", "", "<s>", "\xc3", "\xc3\xa4", "abx"};
enum { N = sizeof texts / sizeof *texts, CONTROL = 6 };

static void piece(kv_buf *out, const kv_model *m, kv_token t, bool special) {
    (void)m;
    (void)special;
    kv_buf_adds(out, texts[t]);
}

static bool is_special(const kv_model *m, kv_token t) {
    (void)m;
    return t == CONTROL;
}

static const kv_model_ops ops = {.piece = piece, .is_special = is_special};

static void check(const kv_pieces *p, const char *text, size_t n, int n_want, const kv_token *want) {
    kv_token found[N];
    assert_int_equal(kv_pieces_beginning(found, N, p, text, n), n_want);
    assert_memory_equal(found, want, (size_t)n_want * sizeof *want);
}

static void finds_what_begins_a_text(void **state) {
    (void)state;
    const kv_model model = {.ops = &ops, .info = {.n_vocab = N}};
    kv_pieces *p = kv_pieces_new(&model);
    check(p, "abcd", 4, 4, (kv_token[]){0, 1, 4, 3});
    check(p, "ab", 2, 3, (kv_token[]){0, 1, 4}); /* two of the same bytes */
    check(p, "a", 1, 1, (kv_token[]){0});
    check(p, "", 0, 0, (kv_token[]){0});
    check(p, "<s>", 3, 0, (kv_token[]){0});
    check(p, "\xc3\xa4", 2, 2, (kv_token[]){7, 8});
    kv_token one;
    assert_int_equal(kv_pieces_beginning(&one, 1, p, "abcd", 4), 1);
    size_t n;
    assert_memory_equal(kv_pieces_bytes(&n, p, 3), "abc", 3);
    assert_int_equal(n, 3);
    assert_true(kv_pieces_is_special(p, CONTROL) && kv_pieces_is_special(p, 5)); /* spells nothing */
    assert_true(kv_pieces_is_special(p, -1) && kv_pieces_is_special(p, N));
    assert_false(kv_pieces_is_special(p, 0) || kv_pieces_is_special(p, 7));
    kv_pieces_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_what_begins_a_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
