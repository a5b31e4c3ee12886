/* llama-server's command line, option by option: each line of llama-flags.txt says what becomes of one, and here it is
 * held to that, by flag, by the flag that turns it off, by variable and by file. That the list is complete is checked
 * by scripts/llama-flags.py --check (the test "llama_flags"). KVASIR_SHOW_CLASSES=1 prints the classes as found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "options/table.h"

typedef struct row {
    char names[256], off[128], env[64], removed[16], kind[64];
    int values;
} row;

static FILE *open_list(void) {
    char path[1024];
    snprintf(path, sizeof path, "%s", __FILE__);
    strcpy(strrchr(path, '/') + 1, "llama-flags.txt");
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s cannot be read", path);
    return f;
}

static bool next_row(FILE *f, row *r) {
    char line[600];
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#' || line[0] == '\n') continue;
        int n =
            sscanf(line, "%255s %127s %d %63s %15s %63s", r->names, r->off, &r->values, r->env, r->removed, r->kind);
        if (n != 6) fail_msg("not a line of the list: %s", line);
        return true;
    }
    return false;
}

/* A value that the option takes: one of its words, or the least number. */
static void sample(char *out, size_t cap, const kv_opt *opt) {
    size_t n;
    const char *word = opt ? kv_opt_list_item(opt->words, 0, &n) : NULL;
    if (!opt) snprintf(out, cap, "7");
    else if (opt->kind == OPT_WORD || opt->kind == OPT_LOAD) snprintf(out, cap, "%.*s", (int)n, word);
    else if (opt->kind == OPT_TRI || opt->kind == OPT_BOOL) snprintf(out, cap, "on");
    else if (opt->kind == OPT_LIST && strstr(opt->names, "--logit-bias")) snprintf(out, cap, "1+1");
    else if (opt->kind == OPT_TEXT && strstr(opt->names, "kwargs")) snprintf(out, cap, "{}");
    else if (opt->kind == OPT_TEXT || opt->kind == OPT_LIST) snprintf(out, cap, "text");
    else snprintf(out, cap, "%.0f", opt->min < 1 && opt->max >= 1 ? 1.0 : opt->min);
}

static int count_lines(const kv_buf *b) {
    int n = 0;
    for (size_t i = 0; i < b->len; i++) n += b->data[i] == '\n';
    return n;
}

/* What becomes of a command line and environment; `own`: the option is in kvasir's table. */
static const char *class_of(int argc, char **argv, char *const *env, bool own, const char *label) {
    static const char *const classes[] = {"honoured", "accepted", "refused", "quiet"};
    kv_options o;
    kv_buf warnings = {0};
    kv_error err = {0};
    int found;
    kv_options_defaults(&o);
    kv_status st = kv_options_parse(&o, argc, argv, env, &warnings, &err);
    if (st == KV_UNSUPPORTED) {
        found = 2;
        if (!strstr(err.message, label) || strlen(err.message) < strlen(label) + 20)
            fail_msg("%s: the message says too little: %s", label, err.message);
    } else {
        if (st != KV_OK) fail_msg("%s: %s", label, err.message);
        if (count_lines(&warnings) > 1) fail_msg("%s: more than one warning: %s", label, kv_buf_str(&warnings));
        found = warnings.len > 0 ? 1 : own ? 0 : 3;
        if (found == 1 && !strstr(kv_buf_str(&warnings), label)) fail_msg("%s: %s", label, kv_buf_str(&warnings));
    }
    kv_buf_free(&warnings);
    kv_options_free(&o);
    return classes[found];
}

static void expect(const char *want, const char *got, const char *label) {
    if (strcmp(want, got) != 0) fail_msg("%s is %s, the list says %s", label, got, want);
}

static const kv_opt *own_option(const char *name) {
    bool negated;
    return kv_opt_find(name, strlen(name), &negated);
}

/* Each spelling of `list` with as many values as llama-server's takes. */
static void try_flags(const char *list, int values, const char *want, char *found) {
    size_t n;
    const char *item;
    for (int i = 0; (item = kv_opt_list_item(list, i, &n)); i++) {
        char name[64], value[64], second[] = "8";
        snprintf(name, sizeof name, "%.*s", (int)n, item);
        const kv_opt *opt = own_option(name);
        sample(value, sizeof value, opt);
        char *argv[] = {"kvasir", name, values > 0 ? value : NULL, values > 1 ? second : NULL, NULL};
        const char *got = class_of(2 + values, argv, NULL, opt != NULL, name);
        if (want) expect(want, got, name);
        strcpy(found, got);
    }
}

static void try_env(const char *variable, const kv_opt *opt, const char *value, const char *want, char *found) {
    char setting[200], *argv[] = {"kvasir", NULL}, *env[] = {setting, NULL}, text[64];
    sample(text, sizeof text, opt);
    snprintf(setting, sizeof setting, "%s=%s", variable, value ? value : text);
    const char *got = class_of(1, argv, env, opt != NULL, variable);
    if (want) expect(want, got, variable);
    if (found) strcpy(found, got);
}

/* "honoured" or "accepted,quiet": the option, and the spelling that turns it off. */
static void classes_of(const row *r, char *on, char *off) {
    snprintf(on, 32, "%.*s", (int)strcspn(r->kind, ","), r->kind);
    const char *comma = strchr(r->kind, ',');
    snprintf(off, 32, "%s", comma ? comma + 1 : on);
}

static void no_variable(char *out, size_t cap, const char *env) {
    snprintf(out, cap, "LLAMA_ARG_NO_%s", env + strlen("LLAMA_ARG_"));
}

static void check_row(const row *r, bool show) {
    char on[32], off[32], found_on[32] = "", found_off[32] = "", no[96];
    classes_of(r, on, off);
    bool variable = strcmp(r->names, "env") == 0, has_off = strcmp(r->off, "-") != 0;
    if (variable) {
        try_env(r->env, NULL, NULL, show || !strcmp(on, "honoured") ? NULL : on, found_on);
        if (show) printf("%s - 1 %s - %s\n", r->names, r->env, found_on);
        return;
    }
    char first[64];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(r->names, ","), r->names);
    const kv_opt *opt = own_option(first);
    try_flags(r->names, r->values, show ? NULL : on, found_on);
    if (has_off) try_flags(r->off, r->values, show ? NULL : off, found_off);
    if (show) {
        printf("%s %s %d %s %s %s%s%s\n", r->names, r->off, r->values, r->env, r->removed, found_on,
               has_off && strcmp(found_on, found_off) ? "," : "",
               has_off && strcmp(found_on, found_off) ? found_off : "");
        return;
    }
    if (strcmp(r->env, "-") == 0) return;
    try_env(r->env, opt, opt || r->values ? NULL : "1", on, NULL);
    if (!has_off || strncmp(r->env, "LLAMA_ARG_", 10) != 0) return;
    try_env(r->env, opt, "off", off, NULL);
    no_variable(no, sizeof no, r->env); /* set to anything, it turns the option off */
    try_env(no, opt, "1", off, NULL);
}

static void test_every_option_has_its_class(void **state) {
    (void)state;
    bool show = getenv("KVASIR_SHOW_CLASSES") != NULL;
    FILE *f = open_list();
    int n = 0;
    for (row r; next_row(f, &r); n++) check_row(&r, show);
    fclose(f);
    assert_true(n > 250);
}

/* ── precedence: flag > KVASIR_ > LLAMA_ARG_ > file ── */

enum { IN_FILE, IN_LLAMA_ENV, IN_OWN_ENV, IN_ARGV, SOURCES };

/* The k-th of four values that an option takes, neighbours differing. */
static void value_of(char *out, size_t cap, const kv_opt *opt, int k) {
    size_t n;
    const char *word;
    switch (opt->kind) {
    case OPT_BOOL:
    case OPT_TRI: snprintf(out, cap, "%s", k % 2 ? "on" : "off"); return;
    case OPT_WORD:
        word = kv_opt_list_item(opt->words, k % 2, &n);
        snprintf(out, cap, "%.*s", (int)n, word);
        return;
    case OPT_LIST:
        if (opt->words) {
            word = kv_opt_list_item(opt->words, k % 2, &n);
            snprintf(out, cap, "%.*s", (int)n, word);
            return;
        }
        /* fall through */
    case OPT_TEXT: snprintf(out, cap, strstr(opt->names, "--logit-bias") ? "%d+1" : "{\"text\":%d}", k); return;
    default: break;
    }
    double span = opt->max - opt->min;
    bool whole = opt->kind != OPT_FLOAT && opt->kind != OPT_DOUBLE;
    if (whole) snprintf(out, cap, "%.0f", opt->min + k % ((int)(span < 100 ? span : 100) + 1));
    else snprintf(out, cap, "%.15g", opt->min + (span >= 8 ? k : span / 8 * k));
}

/* Every option in each set of sources: the strongest one counts. */
static void check_precedence(const kv_opt *opt, unsigned set) {
    char name[70], flag[160], text[SOURCES][64], path[] = "/tmp/kvasir-precedence-XXXXXX", config[64], llama[128],
                                                 own[128];
    char *env[3] = {NULL}, *argv[5] = {"kvasir"};
    int n_env = 0, argc = 1, strongest = -1;
    kv_opt_name(opt->names, name, sizeof name);
    for (int k = 0; k < SOURCES; k++) {
        value_of(text[k], sizeof text[k], opt, k);
        if (set & 1u << k) strongest = k;
    }
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    if (set & 1u << IN_FILE) assert_true(dprintf(fd, "%s = %s\n", name, text[IN_FILE]) > 0);
    close(fd);
    snprintf(config, sizeof config, "--config=%s", path);
    argv[argc++] = config;
    snprintf(llama, sizeof llama, "%s=%s", opt->env ? opt->env : "NONE", text[IN_LLAMA_ENV]);
    int at = snprintf(own, sizeof own, "KVASIR_");
    for (const char *p = name; *p; p++) own[at++] = *p == '-' ? '_' : (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
    snprintf(own + at, sizeof own - (size_t)at, "=%s", text[IN_OWN_ENV]);
    if (set & 1u << IN_LLAMA_ENV) env[n_env++] = llama;
    if (set & 1u << IN_OWN_ENV) env[n_env++] = own;
    snprintf(flag, sizeof flag, "--%s=%s", name, text[IN_ARGV]);
    if (set & 1u << IN_ARGV) argv[argc++] = flag;

    kv_options o, want;
    kv_error err = {0};
    kv_buf warnings = {0};
    kv_options_defaults(&o);
    kv_options_defaults(&want);
    kv_status st = kv_options_parse(&o, argc, argv, env, &warnings, &err);
    unlink(path);
    if (st != KV_OK) fail_msg("%s: %s", name, err.message);
    assert_int_equal(warnings.len, 0);
    assert_int_equal(kv_opt_set(&want, opt, name, text[strongest], true, &err), KV_OK);
    if (!kv_opt_equal(&o, &want, opt)) fail_msg("%s in sources %x", name, set);
    kv_buf_free(&warnings);
    kv_options_free(&o);
    kv_options_free(&want);
}

static void test_precedence_of_every_option(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        if (opt->kind == OPT_PRESET || opt->kind == OPT_LOAD || opt->flags & (OPT_ARGV_ONLY | OPT_NOT_IN_FILE))
            continue;
        /* --reasoning-effort and its like end up in these */
        bool kwargs = strcmp(opt->names, "--chat-template-kwargs") == 0;
        for (unsigned set = 1; set < 1u << SOURCES; set++) {
            if (kwargs || (set & 1u << IN_LLAMA_ENV && !opt->env)) continue;
            check_precedence(opt, set);
            n++;
        }
    }
    assert_true(n > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_option_has_its_class),
        cmocka_unit_test(test_precedence_of_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
