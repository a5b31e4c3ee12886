/* Where settings come from, the weakest first: config file, LLAMA_ARG_…, KVASIR_…, command line. Each source is read
 * whole before the next, so a stronger one simply overwrites; a list of a stronger source replaces the weaker one's.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "options/table.h"
#include "os/machine.h"

#define CONFIG_MAX  (4u << 20) /* bytes; a chat template or two */
#define OPTIONS_MAX 256        /* of each table */

typedef enum kv_source { FROM_DEFAULT, FROM_FILE, FROM_LLAMA_ENV, FROM_ENV, FROM_ARGV } kv_source;

typedef struct reader {
    kv_options *o;
    kv_source source;
    unsigned char from[OPTIONS_MAX]; /* kv_source that wrote kv_opt_table[i] last */
    bool warned[OPTIONS_MAX];        /* kv_foreign_table[i] */
    bool config_only;                /* first pass: look for --config and nothing else */
    kv_buf *warnings;
} reader;

static kv_status set(reader *r, const kv_opt *opt, const char *label, const char *value, kv_error *err) {
    ptrdiff_t i = opt - kv_opt_table;
    if (r->config_only && opt->at != offsetof(kv_options, config)) return KV_OK;
    bool fresh = r->from[i] != r->source;
    r->from[i] = (unsigned char)r->source;
    return kv_opt_set(r->o, opt, label, value, fresh, err);
}

/* ── llama-server's options that are not kvasir's ──────────────────────────────────────────────────────────────── */

static const kv_foreign *find_foreign(const char *name, size_t n) {
    char copy[64];
    if (n < 2 || n >= sizeof copy) return NULL;
    memcpy(copy, name, n);
    for (size_t i = 2; name[1] == '-' && i < n; i++) {
        if (copy[i] == '_') copy[i] = '-';
    }
    for (int i = 0; i < kv_foreign_count; i++) {
        if (kv_opt_list_has(kv_foreign_table[i].names, copy, n)) return &kv_foreign_table[i];
    }
    return NULL;
}

static kv_status meet_foreign(reader *r, const kv_foreign *f, const char *label, const char *value, kv_error *err) {
    ptrdiff_t i = f - kv_foreign_table;
    if (r->config_only) return KV_OK;
    if (value && f->harmless && kv_opt_list_has(f->harmless, value, strlen(value))) return KV_OK;
    if (f->refused) {
        kv_fail_field(err, label, "%s %s", label, f->what);
        if (err) err->status = KV_UNSUPPORTED;
        return KV_UNSUPPORTED;
    }
    if (!r->warned[i] && r->warnings) kv_buf_addf(r->warnings, "%s %s\n", label, f->what);
    r->warned[i] = true;
    return KV_OK;
}

static bool is_negative_name(const char *name, size_t n) {
    return (n > 5 && memcmp(name, "--no-", 5) == 0) || (n > 4 && memcmp(name, "-no-", 4) == 0);
}

/* Has a spelling that turns it on, and one that turns it off. */
static bool has_opposite(const kv_foreign *f) {
    size_t n;
    const char *item;
    bool negative = false, positive = false;
    for (int i = 0; (item = kv_opt_list_item(f->names, i, &n)); i++) {
        if (is_negative_name(item, n)) negative = true;
        else positive = true;
    }
    return negative && positive;
}

/* From file or environment a flag has a value. True when that value says what kvasir does anyway. */
static bool foreign_flag_is_quiet(const kv_foreign *f, bool on) {
    size_t n;
    const char *quiet = kv_opt_list_item(f->quiet, 0, &n);
    if (!quiet) return !on && (f->refused || !has_opposite(f)); /* off is how it is; else both are only noted */
    return is_negative_name(quiet, n) != on;
}

static kv_status set_foreign(reader *r, const kv_foreign *f, const char *label, bool negated, const char *value,
                             kv_error *err) {
    bool on;
    if (f->takes_value) return meet_foreign(r, f, label, value, err);
    if (!kv_opt_truth(value, &on))
        return kv_fail_field(err, label, "%s: got \"%.100s\", takes on or off", label, value);
    if (foreign_flag_is_quiet(f, on != negated)) return KV_OK;
    return meet_foreign(r, f, label, NULL, err);
}

/* ── config file ───────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status unknown(const char *label, const char *name, kv_error *err) {
    char near[64];
    if (kv_opt_nearest(name, near, sizeof near))
        return kv_fail_field(err, label, "%s%s%.80s is not an option; did you mean %s?",
                             strcmp(label, name) ? label : "", strcmp(label, name) ? ": " : "", name, near);
    return kv_fail_field(err, label, "%s%s%.80s is not an option; `kvasir help` lists them",
                         strcmp(label, name) ? label : "", strcmp(label, name) ? ": " : "", name);
}

static kv_status set_from_file(void *ctx, const char *at, const char *name, const char *value, kv_error *err) {
    reader *r = ctx;
    bool negated, on;
    char label[200], dashed[70];
    const kv_opt *opt = kv_opt_find_bare(name, strlen(name), &negated);
    snprintf(label, sizeof label, "%s: %s", at, name);
    if (opt && (opt->flags & (OPT_ARGV_ONLY | OPT_NOT_IN_FILE)))
        return kv_fail_field(err, label, "%s belongs on the command line", label);
    if (opt && negated) {
        if (!kv_opt_truth(value, &on))
            return kv_fail_field(err, label, "%s: got \"%.100s\", takes on or off", label, value);
        return set(r, opt, label, on ? "off" : "on", err);
    }
    if (opt) return set(r, opt, label, value, err);
    snprintf(dashed, sizeof dashed, "--%s", name);
    const kv_foreign *f = find_foreign(dashed, strlen(dashed));
    if (f) return set_foreign(r, f, label, is_negative_name(dashed, strlen(dashed)), value, err);
    return unknown(at, name, err);
}

static kv_status read_config(reader *r, kv_error *err) {
    kv_buf text = {0};
    r->source = FROM_FILE;
    kv_status st = kv_file_read(&text, r->o->config, CONFIG_MAX, err);
    if (st == KV_OK) st = kv_config_parse(r->o->config, kv_buf_str(&text), text.len, set_from_file, r, err);
    kv_buf_free(&text);
    return st;
}

/* ── environment ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* The value of a variable; NULL when it is not set or empty (compose files set many to nothing). */
static const char *env_get(char *const *env, const char *name) {
    size_t n = strlen(name);
    for (; env && *env; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return (*env)[n + 1] ? *env + n + 1 : NULL;
    }
    return NULL;
}

/* "--ctx-size" → "KVASIR_CTX_SIZE" */
static void env_name(char *out, size_t cap, const char *option, size_t n) {
    size_t len = (size_t)snprintf(out, cap, "KVASIR_");
    for (size_t i = 2; i < n && len + 1 < cap; i++)
        out[len++] = option[i] == '-' ? '_' : (char)toupper((unsigned char)option[i]);
    out[len] = 0;
}

static kv_status set_negated(reader *r, const kv_opt *opt, const char *label, const char *value, kv_error *err) {
    bool on;
    if (!kv_opt_truth(value, &on))
        return kv_fail_field(err, label, "%s: got \"%.100s\", takes on or off", label, value);
    return set(r, opt, label, on ? "off" : "on", err);
}

/* LLAMA_ARG_NO_X of a foreign flag that has an opposite: as X=off. */
static kv_status read_foreign_no(reader *r, const kv_foreign *f, char *const *env, kv_error *err) {
    char no[96];
    if (!has_opposite(f) || f->takes_value || strncmp(f->env, "LLAMA_ARG_", 10) != 0) return KV_OK;
    snprintf(no, sizeof no, "LLAMA_ARG_NO_%s", f->env + 10);
    return env_get(env, no) ? set_foreign(r, f, no, false, "off", err) : KV_OK;
}

/* LLAMA_ARG_X; and LLAMA_ARG_NO_X, whatever its value, as llama-server reads it. */
static kv_status read_llama_env(reader *r, char *const *env, kv_error *err) {
    r->source = FROM_LLAMA_ENV;
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        char no[96];
        kv_status st = KV_OK;
        const char *value = opt->env ? env_get(env, opt->env) : NULL;
        if (value) st = set(r, opt, opt->env, value, err);
        if (st == KV_OK && opt->neg && opt->env && strncmp(opt->env, "LLAMA_ARG_", 10) == 0) {
            snprintf(no, sizeof no, "LLAMA_ARG_NO_%s", opt->env + 10);
            if (env_get(env, no)) st = set(r, opt, no, "off", err);
        }
        if (st != KV_OK) return st;
    }
    for (int i = 0; i < kv_foreign_count && !r->config_only; i++) {
        const kv_foreign *f = &kv_foreign_table[i];
        const char *value = f->env ? env_get(env, f->env) : NULL;
        kv_status st = value ? set_foreign(r, f, f->env, false, value, err) : KV_OK;
        if (st == KV_OK && f->env) st = read_foreign_no(r, f, env, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

/* The KVASIR_ variable of one option, in any of its spellings. */
static kv_status read_own_env_of(reader *r, const kv_opt *opt, char *const *env, kv_error *err) {
    char name[96];
    size_t n;
    const char *item, *value;
    for (int i = 0; (item = kv_opt_list_item(opt->names, i, &n)); i++) {
        if (n < 3 || item[1] != '-') continue;
        env_name(name, sizeof name, item, n);
        if ((value = env_get(env, name))) return set(r, opt, name, value, err);
    }
    for (int i = 0; (item = kv_opt_list_item(opt->neg, i, &n)); i++) {
        if (n < 3 || item[1] != '-') continue;
        env_name(name, sizeof name, item, n);
        if ((value = env_get(env, name))) return set_negated(r, opt, name, value, err);
    }
    if (opt->env && strncmp(opt->env, "LLAMA_ARG_", 10) == 0) {
        snprintf(name, sizeof name, "KVASIR_%s", opt->env + 10);
        if ((value = env_get(env, name))) return set(r, opt, name, value, err);
    }
    return KV_OK;
}

static kv_status read_own_env(reader *r, char *const *env, kv_error *err) {
    r->source = FROM_ENV;
    for (int i = 0; i < kv_opt_count; i++) {
        if (kv_opt_table[i].flags & OPT_ARGV_ONLY) continue;
        kv_status st = read_own_env_of(r, &kv_opt_table[i], env, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

/* A misspelt variable would be silently without effect: say so when it is near to a real one. */
static void warn_unknown_env(reader *r, char *const *env) {
    for (; env && *env && r->warnings; env++) {
        const char *eq = strchr(*env, '=');
        char dashed[70] = "--", near[64], meant[96];
        size_t n = 2;
        if (!eq || strncmp(*env, "KVASIR_", 7) != 0 || eq - *env - 7 > 60) continue;
        for (const char *p = *env + 7; p < eq; p++) dashed[n++] = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
        dashed[n] = 0;
        bool negated, known = kv_opt_find(dashed, n, &negated) || find_foreign(dashed, n);
        for (int i = 0; i < kv_opt_count && !known; i++) {
            const char *theirs = kv_opt_table[i].env;
            known = theirs && strncmp(theirs, "LLAMA_ARG_", 10) == 0 &&
                    strlen(theirs + 10) == (size_t)(eq - *env - 7) &&
                    memcmp(theirs + 10, *env + 7, (size_t)(eq - *env - 7)) == 0;
        }
        if (known || !kv_opt_nearest(dashed, near, sizeof near) || near[1] != '-') continue;
        env_name(meant, sizeof meant, near, strlen(near));
        kv_buf_addf(r->warnings, "%.*s is not a variable of kvasir; did you mean %s?\n", (int)(eq - *env), *env, meant);
    }
}

static void warn_llama_config_at(reader *r, const char *dir, const char *below) {
    char path[1024];
    if (!dir || (size_t)snprintf(path, sizeof path, "%s%s/llama.cpp/config.ini", dir, below) >= sizeof path) return;
    if (access(path, R_OK) != 0) return;
    kv_buf_addf(r->warnings, "%s is not read: settings come from --config FILE, as --print-config writes it\n", path);
}

/* llama-server reads files of its own by itself, of another form. */
static void warn_llama_config(reader *r, char *const *env) {
    const char *xdg = env_get(env, "XDG_CONFIG_HOME");
    if (r->o->config || !r->warnings) return;
    warn_llama_config_at(r, "/etc", "");
    if (xdg) warn_llama_config_at(r, xdg, "");
    else warn_llama_config_at(r, env_get(env, "HOME"), "/.config");
}

/* ── command line ──────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct argument {
    const char *name;  /* as typed, without "=value" */
    const char *value; /* behind '=', NULL without */
} argument;

static bool is_known(const char *arg) {
    bool negated;
    return kv_opt_find(arg, strlen(arg), &negated) || find_foreign(arg, strlen(arg));
}

/* The value of an option that must have one: behind '=', or the next argument unless that is an option itself. */
static kv_status need_value(const char **value, const kv_opt *opt, const argument *a, char *next, kv_error *err) {
    *value = a->value ? a->value : next;
    if (*value && (a->value || !is_known(*value))) return KV_OK;
    kv_buf takes = {0};
    kv_opt_takes(&takes, opt);
    kv_status st =
        *value ? kv_fail_field(err, a->name, "%s: a value is missing before %s; it takes %s", a->name, *value,
                               kv_buf_str(&takes))
               : kv_fail_field(err, a->name, "%s: a value is missing; it takes %s", a->name, kv_buf_str(&takes));
    kv_buf_free(&takes);
    return st;
}

/* One option of our own. *used: further arguments taken. */
static kv_status set_from_argv(reader *r, const kv_opt *opt, bool negated, const argument *a, char *next, int *used,
                               kv_error *err) {
    bool truth;
    const char *value;
    if (negated) return a->value ? set_negated(r, opt, a->name, a->value, err) : set(r, opt, a->name, "off", err);
    if (opt->kind == OPT_PRESET && a->value) return kv_fail_field(err, a->name, "%s: takes no value", a->name);
    if (opt->kind == OPT_BOOL || opt->kind == OPT_PRESET) return set(r, opt, a->name, a->value ? a->value : "on", err);
    if (opt->flags & OPT_BARE_OK && !a->value) {
        bool is_value = next && (kv_opt_truth(next, &truth) || strcmp(next, "auto") == 0 || strcmp(next, "-1") == 0);
        *used = is_value;
        return set(r, opt, a->name, is_value ? next : "on", err);
    }
    kv_status st = need_value(&value, opt, a, next, err);
    if (st != KV_OK) return st;
    *used = !a->value;
    return set(r, opt, a->name, value, err);
}

static kv_status foreign_from_argv(reader *r, const kv_foreign *f, const argument *a, char *next, int *used,
                                   kv_error *err) {
    if (!f->takes_value) {
        if (f->quiet && kv_opt_list_has(f->quiet, a->name, strlen(a->name))) return KV_OK;
        if (!f->quiet && f->refused && is_negative_name(a->name, strlen(a->name))) return KV_OK;
        return meet_foreign(r, f, a->name, NULL, err);
    }
    const char *value = a->value ? a->value : next;
    if (!value && !f->refused) return kv_fail_field(err, a->name, "%s: a value is missing", a->name);
    *used = !a->value && value;
    return meet_foreign(r, f, a->name, value, err);
}

static kv_status read_argv(reader *r, int argc, char **argv, kv_error *err) {
    r->source = FROM_ARGV;
    for (int i = 1; i < argc && argv[i]; i++) {
        char name[64];
        const char *arg = argv[i], *eq = arg[0] == '-' && arg[1] == '-' ? strchr(arg, '=') : NULL;
        char *next = i + 1 < argc ? argv[i + 1] : NULL;
        size_t n = eq ? (size_t)(eq - arg) : strlen(arg);
        bool negated = false;
        int used = 0;
        kv_status st;
        if (arg[0] != '-') return kv_fail_field(err, "", "\"%.80s\" is not an option: options begin with '-'", arg);
        if (n >= sizeof name) return kv_fail_field(err, "", "%.80s… is not an option; `kvasir help` lists them", arg);
        memcpy(name, arg, n);
        name[n] = 0;
        argument a = {name, eq ? eq + 1 : NULL};
        const kv_opt *opt = kv_opt_find(name, n, &negated);
        const kv_foreign *f = opt ? NULL : find_foreign(name, n);
        if (opt) st = set_from_argv(r, opt, negated, &a, next, &used, err);
        else if (f) st = foreign_from_argv(r, f, &a, next, &used, err);
        else st = unknown(name, name, err);
        if (st != KV_OK) return st;
        i += used;
    }
    return KV_OK;
}

/* ── all together ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* The config file's name comes from the stronger sources, which are read later: look for it first. Errors here are
 * met again in the second pass, in their order. */
static void find_config(reader *r, int argc, char **argv, char *const *env) {
    const char *value = env_get(env, "KVASIR_CONFIG");
    r->config_only = true;
    if (value) kv_opt_set(r->o, kv_opt_find_bare("config", 6, &(bool){0}), "KVASIR_CONFIG", value, true, NULL);
    read_argv(r, argc, argv, NULL);
    r->config_only = false;
}

kv_status kv_options_parse(kv_options *o, int argc, char **argv, char *const *env, kv_buf *warnings, kv_error *err) {
    reader r = {.o = o, .warnings = warnings};
    KV_CHECK(kv_opt_count <= OPTIONS_MAX && kv_foreign_count <= OPTIONS_MAX);
    find_config(&r, argc, argv, env);
    kv_status st = o->config ? read_config(&r, err) : KV_OK;
    if (st == KV_OK) st = read_llama_env(&r, env, err);
    if (st == KV_OK) st = read_own_env(&r, env, err);
    if (st == KV_OK) st = read_argv(&r, argc, argv, err);
    if (st == KV_OK) st = kv_opt_finish(o, err);
    if (st == KV_OK) warn_unknown_env(&r, env);
    if (st == KV_OK) warn_llama_config(&r, env);
    return st;
}
