/* What people and programs read: --help, --print-config, the README's list. All from the table. */
#include <string.h>

#include "options/table.h"

#define WIDTH  100 /* columns of --help */
#define INDENT 34  /* where the explanation begins */

/* Appends `text` with each `from` written as `to`. */
static void add_replaced(kv_buf *out, const char *text, char from, const char *to) {
    for (const char *p = text; p && *p; p++) {
        if (*p == from) kv_buf_adds(out, to);
        else kv_buf_add(out, p, 1);
    }
}

/* "-c, --ctx-size N" */
static void add_names(kv_buf *out, const kv_opt *opt) {
    add_replaced(out, opt->names, ',', ", ");
    if (opt->neg) kv_buf_adds(out, ", ");
    add_replaced(out, opt->neg, ',', ", ");
    if (opt->hint) kv_buf_addf(out, " %s", opt->hint);
    else if (opt->kind == OPT_TRI) kv_buf_adds(out, opt->flags & OPT_BARE_OK ? " [on|off|auto]" : " on|off|auto");
}

static bool has_range(const kv_opt *opt) {
    return opt->kind == OPT_INT64 || opt->kind == OPT_INT32 || opt->kind == OPT_FLOAT || opt->kind == OPT_DOUBLE ||
           opt->kind == OPT_SEED;
}

/* Explanation, range, default: one paragraph. */
static void add_text(kv_buf *out, const kv_opt *opt, const kv_options *defaults) {
    kv_buf_adds(out, opt->help);
    if (has_range(opt) && opt->max < 1e6) kv_buf_addf(out, " (%.15g to %.15g)", opt->min, opt->max);
    if (opt->kind == OPT_WORD || (opt->kind == OPT_LIST && opt->words)) {
        kv_buf_adds(out, " (");
        add_replaced(out, opt->words, ',', ", ");
        kv_buf_adds(out, ")");
    }
    size_t before = out->len;
    kv_buf_adds(out, " [default ");
    size_t mark = out->len;
    if (!(opt->flags & OPT_ARGV_ONLY)) kv_opt_format(out, defaults, opt);
    if (out->len == mark) {
        out->len = before;
        out->data[before] = 0;
    } else {
        kv_buf_adds(out, "]");
    }
}

/* Columns of UTF-8 text: bytes that do not continue a character. */
static size_t columns(const char *s, size_t n) {
    size_t c = 0;
    for (size_t i = 0; i < n; i++) c += ((unsigned char)s[i] & 0xC0) != 0x80;
    return c;
}

static void add_wrapped(kv_buf *out, const char *names, const char *text) {
    size_t at = columns(names, strlen(names)) + 2;
    kv_buf_addf(out, "  %s", names);
    if (at + 1 > INDENT) {
        kv_buf_adds(out, "\n");
        at = 0;
    }
    while (*text) {
        size_t n = strcspn(text, " "), width = columns(text, n);
        if (at > INDENT && at + 1 + width > WIDTH) {
            kv_buf_adds(out, "\n");
            at = 0;
        }
        if (at <= INDENT) {
            kv_buf_addf(out, "%*s", (int)(INDENT - at), "");
            at = INDENT;
        } else {
            kv_buf_adds(out, " ");
            at++;
        }
        kv_buf_add(out, text, n);
        at += width;
        if (at == INDENT) at++; /* an empty first word must not look like a fresh line */
        text += n + (text[n] == ' ');
    }
    kv_buf_adds(out, "\n");
}

static void add_group(kv_buf *out, kv_opt_group g, const kv_options *defaults) {
    kv_buf names = {0}, text = {0};
    kv_buf_addf(out, "%s%s\n", out->len ? "\n" : "", kv_opt_group_title(g));
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        if (opt->group != g || opt->flags & OPT_HIDDEN) continue;
        kv_buf_clear(&names);
        kv_buf_clear(&text);
        add_names(&names, opt);
        add_text(&text, opt, defaults);
        add_wrapped(out, kv_buf_str(&names), kv_buf_str(&text));
    }
    kv_buf_free(&names);
    kv_buf_free(&text);
}

static void add_foreign(kv_buf *out) {
    kv_buf names = {0};
    for (int refused = 1; refused >= 0; refused--) {
        kv_buf_adds(out, refused ? "llama-server's options that stop the start\n"
                                 : "\nllama-server's options that are accepted without effect\n");
        for (int i = 0; i < kv_foreign_count; i++) {
            if (kv_foreign_table[i].refused != refused) continue;
            kv_buf_clear(&names);
            const kv_foreign *f = &kv_foreign_table[i];
            add_replaced(&names, f->names ? f->names : f->env, ',', ", ");
            add_wrapped(out, kv_buf_str(&names), kv_foreign_table[i].what);
        }
    }
    kv_buf_free(&names);
}

kv_status kv_options_help(kv_buf *out, const char *group, kv_error *err) {
    kv_options defaults;
    bool found = false;
    if (group && strcmp(group, "llama-server") == 0) {
        add_foreign(out);
        return KV_OK;
    }
    kv_options_defaults(&defaults);
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (group && strcmp(group, kv_opt_group_name(g)) != 0) continue;
        add_group(out, g, &defaults);
        found = true;
    }
    kv_options_free(&defaults);
    if (found && !group)
        kv_buf_adds(
            out, "\nEach option is also read from the environment as KVASIR_<NAME> (--ctx-size: KVASIR_CTX_SIZE) or\n"
                 "as llama-server's LLAMA_ARG_ variable, and from the file that --config names.\n");
    if (found) return KV_OK;
    kv_buf names = {0};
    for (int g = 0; g < GROUP_COUNT; g++) kv_buf_addf(&names, "%s, ", kv_opt_group_name(g));
    kv_fail_field(err, "help", "there is no group \"%.60s\"; there are %sllama-server", group, kv_buf_str(&names));
    kv_buf_free(&names);
    if (err) err->status = KV_NOT_FOUND;
    return KV_NOT_FOUND;
}

/* ── --print-config ────────────────────────────────────────────────────────────────────────────────────────────── */

static void print_list(kv_buf *out, const kv_opt *opt, const char *name, const kv_str_list *list) {
    kv_buf item = {0};
    if (list->n == 0) kv_buf_addf(out, "%s = \"\"\n", name); /* its default is not empty */
    for (int i = 0; i < list->n; i++) {
        kv_buf_clear(&item);
        kv_opt_format_item(&item, opt, list->item[i]);
        kv_buf_addf(out, "%s = ", name);
        kv_config_quote(out, kv_buf_str(&item));
        kv_buf_adds(out, "\n");
    }
    kv_buf_free(&item);
}

static void print_one(kv_buf *out, const kv_options *o, const kv_options *defaults, const kv_opt *opt) {
    char name[64];
    kv_buf value = {0};
    bool same = kv_opt_equal(o, defaults, opt);
    kv_opt_name(opt->names, name, sizeof name);
    if (opt->flags & OPT_HIDDEN && same) return;
    if (opt->flags & OPT_SECRET) {
        kv_buf_addf(out, "# %s is %s\n", name, same ? "not set" : "set, and not printed");
    } else if (opt->kind == OPT_LIST && !same) {
        print_list(out, opt, name, (const kv_str_list *)((const char *)o + opt->at));
    } else {
        kv_opt_format(&value, o, opt);
        kv_buf_addf(out, "%s%s = ", same ? "# " : "", name);
        kv_config_quote(out, kv_buf_str(&value));
        kv_buf_adds(out, "\n");
    }
    kv_buf_free(&value);
}

void kv_options_print(kv_buf *out, const kv_options *o) {
    kv_options defaults;
    kv_options_defaults(&defaults);
    kv_buf_adds(out, "# kvasir's settings, for --config FILE. A line behind '#' is a default.\n");
    for (int g = 0; g < GROUP_COUNT; g++) {
        kv_buf_addf(out, "\n# %s\n", kv_opt_group_title(g));
        for (int i = 0; i < kv_opt_count; i++) {
            const kv_opt *opt = &kv_opt_table[i];
            bool in_file =
                !(opt->flags & (OPT_ARGV_ONLY | OPT_NOT_IN_FILE)) && opt->kind != OPT_PRESET && opt->kind != OPT_LOAD;
            if ((int)opt->group == g && in_file) print_one(out, o, &defaults, opt);
        }
    }
    kv_options_free(&defaults);
}

/* ── README ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_options_markdown(kv_buf *out) {
    kv_options defaults;
    kv_buf names = {0}, text = {0};
    kv_options_defaults(&defaults);
    for (int g = 0; g < GROUP_COUNT; g++) {
        kv_buf_addf(out, "%s### %s\n\n| option | meaning |\n|---|---|\n", g ? "\n" : "", kv_opt_group_title(g));
        for (int i = 0; i < kv_opt_count; i++) {
            const kv_opt *opt = &kv_opt_table[i];
            if ((int)opt->group != g || opt->flags & OPT_HIDDEN) continue;
            kv_buf_clear(&names);
            kv_buf_clear(&text);
            add_names(&names, opt);
            add_text(&text, opt, &defaults);
            kv_buf_adds(out, "| `");
            add_replaced(out, kv_buf_str(&names), '|', "\\|");
            kv_buf_adds(out, "` | ");
            add_replaced(out, kv_buf_str(&text), '|', "\\|");
            kv_buf_adds(out, " |\n");
        }
    }
    kv_buf_free(&names);
    kv_buf_free(&text);
    kv_options_free(&defaults);
}
