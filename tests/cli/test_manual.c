#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "cli/manual.h"
#include "options/options.h"
#include "options/table.h"

/* Calls fn for each name of each option, "-c" and "--ctx-size" and "--no-mmap". */
static void each_name(void (*fn)(void *ctx, const kv_opt *opt, const char *name), void *ctx) {
    for (int i = 0; i < kv_opt_count; i++) {
        const char *lists[] = {kv_opt_table[i].names, kv_opt_table[i].neg}, *item;
        for (int l = 0; l < 2; l++) {
            size_t n;
            for (int k = 0; lists[l] && (item = kv_opt_list_item(lists[l], k, &n)); k++) {
                char name[64];
                snprintf(name, sizeof name, "%.*s", (int)n, item);
                fn(ctx, &kv_opt_table[i], name);
            }
        }
    }
}

/* True when `name` stands in the text and is no part of a longer name. */
static bool has_word(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *p = text; (p = strstr(p, name)); p += n) {
        bool begins = p == text || !strchr("-abcdefghijklmnopqrstuvwxyz0123456789", p[-1]);
        if (begins && !strchr("-abcdefghijklmnopqrstuvwxyz0123456789", p[n])) return true;
    }
    return false;
}

static void check_name(void *ctx, const kv_opt *opt, const char *name) {
    bool want = !(opt->flags & OPT_HIDDEN);
    if (has_word(ctx, name) != want) fail_msg("%s is %s the text", name, want ? "missing from" : "in");
}

static void test_every_option_is_in_the_completions(void **state) {
    (void)state;
    const char *const shells[] = {"bash", "zsh"};
    for (int i = 0; i < 2; i++) {
        kv_buf out = {0};
        assert_int_equal(kv_completion(&out, shells[i], NULL), KV_OK);
        each_name(check_name, out.data);
        for (const kv_command_info *c = kv_commands; c->name; c++) assert_true(has_word(out.data, c->name));
        kv_buf_free(&out);
    }
}

/* fish writes "-l ctx-size", "-s c" and "-o np". */
static void check_fish_name(void *ctx, const kv_opt *opt, const char *name) {
    char spelt[80];
    bool is_long = name[1] == '-';
    snprintf(spelt, sizeof spelt, " -%c %s ", is_long ? 'l' : strlen(name) == 2 ? 's' : 'o', name + 1 + is_long);
    bool want = !(opt->flags & OPT_HIDDEN);
    if ((strstr(ctx, spelt) != NULL) != want) fail_msg("%s is %s the script", name, want ? "missing from" : "in");
}

static void test_every_option_is_in_fish(void **state) {
    (void)state;
    kv_buf out = {0};
    assert_int_equal(kv_completion(&out, "fish", NULL), KV_OK);
    each_name(check_fish_name, out.data);
    kv_buf_free(&out);
}

/* The man page without its escapes. */
static void plain(kv_buf *out) {
    kv_buf page = {0};
    kv_manual_page(&page);
    for (const char *p = page.data; *p; p++) {
        if (p[0] == '\\' && p[1] == 'f') p += 2;
        else if (p[0] == '\\' && p[1] == '-') kv_buf_adds(out, "-"), p++;
        else if (p[0] == '\\' && p[1] == '&') p++;
        else kv_buf_add(out, p, 1);
    }
    kv_buf_free(&page);
}

static void test_every_option_is_in_the_man_page(void **state) {
    (void)state;
    kv_buf page = {0};
    plain(&page);
    each_name(check_name, page.data);
    for (int i = 0; i < kv_opt_count; i++)
        if (kv_opt_table[i].env && !(kv_opt_table[i].flags & OPT_HIDDEN))
            assert_non_null(strstr(page.data, kv_opt_table[i].env));
    for (int i = 0; i < kv_foreign_count; i++) {
        const kv_foreign *f = &kv_foreign_table[i];
        const char *item, *names = f->names ? f->names : f->env;
        size_t n;
        for (int k = 0; (item = kv_opt_list_item(names, k, &n)); k++) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)n, item);
            if (!strstr(page.data, name)) fail_msg("%s is missing", name);
        }
    }
    for (const kv_command_info *c = kv_commands; c->name; c++) assert_non_null(strstr(page.data, c->synopsis));
    kv_buf_free(&page);
}

/* A line that begins with a dot is a macro that the page means; nothing of an option's text can be one. */
static void test_roff_is_wellformed(void **state) {
    (void)state;
    kv_buf page = {0};
    kv_manual_page(&page);
    const char *const macros[] = {".TH ", ".SH ", ".SS ", ".TP", ".B ", ".BR ", ".I ", ".RI ", ".br"};
    for (char *line = strtok(page.data, "\n"); line; line = strtok(NULL, "\n")) {
        bool known = line[0] != '.';
        for (size_t i = 0; i < sizeof macros / sizeof *macros; i++)
            if (strncmp(line, macros[i], strlen(macros[i])) == 0) known = true;
        if (!known || line[0] == '\'') fail_msg("the page has the line \"%s\"", line);
    }
    kv_buf_free(&page);
}

static void test_usage_and_groups(void **state) {
    (void)state;
    kv_buf usage = {0}, groups = {0};
    kv_manual_usage(&usage);
    assert_memory_equal(usage.data, "usage: kvasir serve -m FILE.gguf", 32);
    for (const kv_command_info *c = kv_commands; c->name; c++) {
        assert_non_null(strstr(usage.data, c->synopsis));
        if (strcmp(c->name, "help") == 0) kv_buf_addf(&groups, "%s,%s", c->words, c->what);
    }
    for (int g = 0; g < GROUP_COUNT; g++) { /* in the words, and in the text for people */
        const char *name = kv_opt_group_name((kv_opt_group)g), *first = strstr(groups.data, name);
        assert_non_null(first);
        assert_non_null(strstr(first + 1, name));
    }
    kv_buf_free(&usage);
    kv_buf_free(&groups);
}

static void test_unknown_shell(void **state) {
    (void)state;
    kv_buf out = {0};
    kv_error err = {0};
    assert_int_equal(kv_completion(&out, "tcsh", &err), KV_NOT_FOUND);
    assert_non_null(strstr(err.message, "bash, zsh and fish"));
    kv_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_option_is_in_the_completions),
        cmocka_unit_test(test_every_option_is_in_fish),
        cmocka_unit_test(test_every_option_is_in_the_man_page),
        cmocka_unit_test(test_roff_is_wellformed),
        cmocka_unit_test(test_usage_and_groups),
        cmocka_unit_test(test_unknown_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
