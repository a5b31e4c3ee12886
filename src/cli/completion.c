/* Completion scripts from the tables. See manual.h. */
#include <string.h>

#include "cli/manual.h"
#include "options/table.h"

/* `text` with each character of `special` behind `mark`. */
static void add_escaped(kv_buf *out, const char *text, const char *special, const char *mark) {
    for (const char *p = text; p && *p; p++) {
        if (strchr(special, *p)) kv_buf_adds(out, mark);
        kv_buf_add(out, p, 1);
    }
}

static void add_replaced(kv_buf *out, const char *text, char from, const char *to) {
    for (const char *p = text; p && *p; p++) {
        if (*p == from) kv_buf_adds(out, to);
        else kv_buf_add(out, p, 1);
    }
}

/* What may be written behind the option, comma-separated; NULL = anything, or nothing. */
static const char *words_of(const kv_opt *opt) {
    if (opt->kind == OPT_TRI) return "on,off,auto";
    bool words = opt->kind == OPT_WORD || opt->kind == OPT_LOAD || opt->kind == OPT_LIST;
    return words ? opt->words : NULL;
}

static bool takes_value(const kv_opt *opt) {
    return opt->kind != OPT_BOOL && opt->kind != OPT_PRESET && !(opt->flags & OPT_BARE_OK);
}

typedef enum place { PLACE_NONE, PLACE_FILE, PLACE_DIR } place;

static place place_of(const kv_opt *opt) {
    if (!opt->hint) return PLACE_NONE;
    if (strncmp(opt->hint, "FILE", 4) == 0) return PLACE_FILE;
    return strncmp(opt->hint, "DIR", 3) == 0 ? PLACE_DIR : PLACE_NONE;
}

static bool shown(const kv_opt *opt) {
    return !(opt->flags & OPT_HIDDEN);
}

/* The commands' names, each once, with `between` between. */
static void add_command_names(kv_buf *out, const char *between) {
    for (const kv_command_info *c = kv_commands; c->name; c++) {
        if (c > kv_commands && strcmp(c->name, c[-1].name) == 0) continue;
        kv_buf_addf(out, "%s%s", c > kv_commands ? between : "", c->name);
    }
}

/* ── bash ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void bash_choice(kv_buf *out, const char *pattern, const char *words) {
    kv_buf_adds(out, "    ");
    add_replaced(out, pattern, ',', "|");
    kv_buf_adds(out, ") COMPREPLY=($(compgen -W \"");
    add_replaced(out, words, ',', " ");
    kv_buf_adds(out, "\" -- \"$word\")); return ;;\n");
}

static void bash_places(kv_buf *out, place p, const char *how) {
    bool any = false;
    for (int i = 0; i < kv_opt_count; i++) {
        if (!shown(&kv_opt_table[i]) || place_of(&kv_opt_table[i]) != p) continue;
        kv_buf_adds(out, any ? "|" : "    ");
        add_replaced(out, kv_opt_table[i].names, ',', "|");
        any = true;
    }
    if (any) kv_buf_addf(out, ") COMPREPLY=($(compgen %s -- \"$word\")); return ;;\n", how);
}

static void bash(kv_buf *out) {
    kv_buf_adds(out, "# bash completion for kvasir\n_kvasir() {\n"
                     "    local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
                     "    case \"$before\" in\n");
    for (int i = 0; i < kv_opt_count; i++)
        if (shown(&kv_opt_table[i]) && words_of(&kv_opt_table[i]))
            bash_choice(out, kv_opt_table[i].names, words_of(&kv_opt_table[i]));
    bash_places(out, PLACE_FILE, "-f");
    bash_places(out, PLACE_DIR, "-d");
    kv_buf_adds(out, "    esac\n    if [ \"$COMP_CWORD\" = 2 ]; then case \"$before\" in\n");
    for (const kv_command_info *c = kv_commands; c->name; c++)
        if (c->words) bash_choice(out, c->name, c->words);
    kv_buf_adds(out, "    esac; fi\n    case \"$word\" in\n    -*) COMPREPLY=($(compgen -W \"");
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        if (!shown(opt)) continue;
        add_replaced(out, opt->names, ',', " ");
        kv_buf_adds(out, " ");
        add_replaced(out, opt->neg, ',', " ");
        if (opt->neg) kv_buf_adds(out, " ");
    }
    kv_buf_adds(out, "\" -- \"$word\")); return ;;\n    esac\n"
                     "    if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W \"");
    add_command_names(out, " ");
    kv_buf_adds(out, "\" -- \"$word\")); else COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\n"
                     "complete -o filenames -F _kvasir kvasir\n");
}

/* ── zsh ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* '(-c --ctx-size)'{-c,--ctx-size}'[what it does]:N:' — in single quotes, in which only ' needs care. */
static void zsh_spec(kv_buf *out, const kv_opt *opt, const char *names, bool value) {
    const char *words = words_of(opt);
    kv_buf help = {0};
    kv_buf_adds(out, "    '(");
    add_replaced(out, names, ',', " ");
    kv_buf_adds(out, ")'");
    kv_buf_addf(out, strchr(names, ',') ? "{%s}" : "%s", names);
    kv_buf_adds(out, "'[");
    add_escaped(&help, opt->help, "[]:\\", "\\");
    add_replaced(out, kv_buf_str(&help), '\'', "'\\''");
    kv_buf_adds(out, "]");
    if (value || (words && opt->flags & OPT_BARE_OK && names == opt->names)) {
        kv_buf_adds(out, value ? ":" : "::"); /* two: the value may be missing */
        add_escaped(out, opt->hint ? opt->hint : "value", ":[]\\", "\\");
        kv_buf_adds(out, ":");
        if (words) {
            kv_buf_adds(out, "(");
            add_replaced(out, words, ',', " ");
            kv_buf_adds(out, ")");
        } else if (place_of(opt) != PLACE_NONE) {
            kv_buf_adds(out, place_of(opt) == PLACE_DIR ? "_files -/" : "_files");
        }
    }
    kv_buf_adds(out, "'\n");
    kv_buf_free(&help);
}

static void zsh(kv_buf *out) {
    kv_buf_adds(out, "#compdef kvasir\n# zsh completion for kvasir\n_kvasir() {\n"
                     "  local -a options commands\n  options=(\n");
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        if (!shown(opt)) continue;
        zsh_spec(out, opt, opt->names, takes_value(opt));
        if (opt->neg) zsh_spec(out, opt, opt->neg, false);
    }
    kv_buf_adds(out, "  )\n  commands=(");
    add_command_names(out, " ");
    kv_buf_adds(out, ")\n  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
                     "    compadd -a commands\n    return\n  fi\n  case $words[2] in\n");
    for (const kv_command_info *c = kv_commands; c->name; c++) {
        if (!c->words) continue;
        kv_buf_addf(out, "  %s) (( CURRENT == 3 )) && { compadd -- ", c->name);
        add_replaced(out, c->words, ',', " ");
        kv_buf_adds(out, "; return } ;;\n");
    }
    kv_buf_adds(out, "  esac\n  _arguments \"$options[@]\" '*:file:_files'\n}\n"
                     "if [ \"$funcstack[1]\" = _kvasir ]; then _kvasir \"$@\"; else compdef _kvasir kvasir; fi\n");
}

/* ── fish ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void fish_option(kv_buf *out, const kv_opt *opt, const char *names, bool value) {
    const char *item, *words = names == opt->names ? words_of(opt) : NULL;
    size_t n;
    kv_buf_adds(out, "complete -c kvasir");
    for (int i = 0; (item = kv_opt_list_item(names, i, &n)); i++) {
        bool is_long = item[1] == '-';
        /* -l --long, -s one letter, -o one dash and several letters */
        kv_buf_addf(out, " -%c %.*s",
                    is_long  ? 'l'
                    : n == 2 ? 's'
                             : 'o',
                    (int)(n - (is_long ? 2 : 1)), item + (is_long ? 2 : 1));
    }
    if (words) {
        kv_buf_adds(out, value ? " -x -a '" : " -f -a '");
        add_replaced(out, words, ',', " ");
        kv_buf_adds(out, "'");
    } else if (value && place_of(opt) == PLACE_DIR) {
        kv_buf_adds(out, " -x -a '(__fish_complete_directories)'");
    } else if (value) {
        kv_buf_adds(out, place_of(opt) == PLACE_FILE ? " -r -F" : " -x");
    }
    kv_buf_adds(out, " -d '");
    add_escaped(out, opt->help, "'\\", "\\");
    kv_buf_adds(out, "'\n");
}

static void fish(kv_buf *out) {
    kv_buf what = {0};
    kv_buf_adds(out, "# fish completion for kvasir\n");
    for (const kv_command_info *c = kv_commands; c->name; c++) {
        if (c > kv_commands && strcmp(c->name, c[-1].name) == 0) continue;
        kv_buf_addf(out, "complete -c kvasir -n __fish_use_subcommand -f -a %s -d '", c->name);
        kv_buf_clear(&what);
        add_replaced(&what, c->what, '\n', " ");
        add_escaped(out, kv_buf_str(&what), "'\\", "\\");
        kv_buf_adds(out, "'\n");
        if (!c->words) continue;
        kv_buf_addf(out, "complete -c kvasir -n '__fish_seen_subcommand_from %s' -f -a '", c->name);
        add_replaced(out, c->words, ',', " ");
        kv_buf_adds(out, "'\n");
    }
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        if (!shown(opt)) continue;
        fish_option(out, opt, opt->names, takes_value(opt));
        if (opt->neg) fish_option(out, opt, opt->neg, false);
    }
    kv_buf_free(&what);
}

kv_status kv_completion(kv_buf *out, const char *shell, kv_error *err) {
    if (strcmp(shell, "bash") == 0) bash(out);
    else if (strcmp(shell, "zsh") == 0) zsh(out);
    else if (strcmp(shell, "fish") == 0) fish(out);
    else
        return kv_fail(err, KV_NOT_FOUND, "there is no completion for \"%.60s\"; for bash, zsh and fish there is",
                       shell);
    return KV_OK;
}
