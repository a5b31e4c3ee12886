#include "cli/manual.h"

#include <string.h>

#include "options/options.h"
#include "options/table.h"

const kv_command_info kv_commands[] = {
    {"serve", "serve -m FILE.gguf [options]", "serve a model (`serve` may be left out)", NULL},
    {"serve", "serve --check -m FILE.gguf", "print the memory plan and exit", NULL},
    {"why", "why [last | REQUEST-ID]", "why a request could not reuse more", "last"},
    {"status", "status", "what a running server's cache does", NULL},
    {"doctor", "doctor [-m FILE.gguf]", "what here costs cache, and what to do about it", NULL},
    {"cache", "cache ls|stat|show|verify|…", "look at, check, clear the disk cache (--help)",
     "ls,show,stat,verify,gc,rm,warm,pin,unpin,export,import"},
    {"help", "help [GROUP]",
     "options: model, engine, sampling, chat, scheduling,\ncache, server, process, llama-server",
     "model,engine,sampling,chat,scheduling,cache,server,process,llama-server,man,markdown"},
    {"completion", "completion [SHELL]", "a completion script for bash, zsh or fish", "bash,zsh,fish"},
    {"version", "version", "this version, and the engine's", NULL},
    {NULL, NULL, NULL, NULL},
};

#define USAGE_COLUMN 32 /* where the explanation begins */

void kv_manual_usage(kv_buf *out) {
    for (const kv_command_info *c = kv_commands; c->name; c++) {
        const char *second = strchr(c->what, '\n');
        size_t first = second ? (size_t)(second - c->what) : strlen(c->what);
        kv_buf_addf(out, "%s kvasir %-*s%.*s\n", c == kv_commands ? "usage:" : "      ",
                    USAGE_COLUMN + (int)(strstr(c->synopsis, "…") ? 2 : 0) - 1, c->synopsis, (int)first, c->what);
        if (second) kv_buf_addf(out, "%*s%s\n", USAGE_COLUMN + 13, "", second + 1);
    }
}

/* ── man page ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Plain text for roff: hyphens that can be copied, no control lines. */
static void add_roff(kv_buf *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool line_start = out->len == 0 || out->data[out->len - 1] == '\n';
        if (text[i] == '\\') kv_buf_adds(out, "\\e");
        else if (text[i] == '-') kv_buf_adds(out, "\\-");
        else if (text[i] == '\n') kv_buf_adds(out, " ");
        else {
            if (line_start && (text[i] == '.' || text[i] == '\'')) kv_buf_adds(out, "\\&");
            kv_buf_add(out, &text[i], 1);
        }
    }
}

static void add_roffs(kv_buf *out, const char *text) {
    add_roff(out, text, strlen(text));
}

/* ".TP" and "\fB-c\fR, \fB--ctx-size\fR" */
static void add_names(kv_buf *out, const char *names, const char *more) {
    const char *lists[] = {names, more}, *item;
    size_t n;
    bool first = true;
    kv_buf_adds(out, ".TP\n");
    for (int l = 0; l < 2; l++) {
        for (int i = 0; lists[l] && (item = kv_opt_list_item(lists[l], i, &n)); i++) {
            kv_buf_adds(out, first ? "\\fB" : ", \\fB");
            add_roff(out, item, n);
            kv_buf_adds(out, "\\fR");
            first = false;
        }
    }
}

static bool takes_number(const kv_opt *opt) {
    return opt->kind == OPT_INT64 || opt->kind == OPT_INT32 || opt->kind == OPT_FLOAT || opt->kind == OPT_DOUBLE ||
           opt->kind == OPT_SEED;
}

static void add_sentence(kv_buf *out, const char *what, const kv_buf *value) {
    if (!value->len) return;
    kv_buf_addf(out, " %s ", what);
    add_roff(out, value->data, value->len);
    kv_buf_adds(out, ".");
}

static void add_option(kv_buf *out, const kv_opt *opt, const kv_options *defaults) {
    kv_buf takes = {0}, value = {0};
    add_names(out, opt->names, opt->neg);
    if (opt->hint) {
        kv_buf_adds(out, " \\fI");
        add_roffs(out, opt->hint);
        kv_buf_adds(out, "\\fR");
    } else if (opt->kind == OPT_TRI) {
        kv_buf_adds(out, opt->flags & OPT_BARE_OK ? " [on|off|auto]" : " on|off|auto");
    }
    kv_buf_adds(out, "\n");
    add_roffs(out, opt->help);
    kv_buf_adds(out, ".");
    if ((takes_number(opt) && opt->max < 1e6) || opt->kind == OPT_WORD || (opt->kind == OPT_LIST && opt->words))
        kv_opt_takes(&takes, opt);
    if (!(opt->flags & (OPT_ARGV_ONLY | OPT_SECRET))) kv_opt_format(&value, defaults, opt);
    add_sentence(out, "Takes", &takes);
    add_sentence(out, "Default:", &value);
    if (opt->env) {
        kv_buf_adds(out, " Also ");
        add_roffs(out, opt->env);
        kv_buf_adds(out, ".");
    }
    kv_buf_adds(out, "\n");
    kv_buf_free(&takes);
    kv_buf_free(&value);
}

static void add_options(kv_buf *out) {
    kv_options defaults;
    kv_options_defaults(&defaults);
    kv_buf_adds(out, ".SH OPTIONS\nOf \\fBkvasir serve\\fR; those of llama\\-server have its names and meanings.\n");
    for (int g = 0; g < GROUP_COUNT; g++) {
        kv_buf_adds(out, ".SS ");
        add_roffs(out, kv_opt_group_title((kv_opt_group)g));
        kv_buf_adds(out, "\n");
        for (int i = 0; i < kv_opt_count; i++) {
            const kv_opt *opt = &kv_opt_table[i];
            if ((int)opt->group == g && !(opt->flags & OPT_HIDDEN)) add_option(out, opt, &defaults);
        }
    }
    kv_options_free(&defaults);
}

static void add_foreign(kv_buf *out) {
    for (int refused = 1; refused >= 0; refused--) {
        kv_buf_adds(out, refused ? ".SH LLAMA-SERVER'S OPTIONS THAT STOP THE START\n"
                                 : ".SH LLAMA-SERVER'S OPTIONS WITHOUT EFFECT\nAccepted, with a warning.\n");
        for (int i = 0; i < kv_foreign_count; i++) {
            const kv_foreign *f = &kv_foreign_table[i];
            if (f->refused != (bool)refused) continue;
            add_names(out, f->names ? f->names : f->env, NULL);
            kv_buf_adds(out, "\n");
            add_roffs(out, f->what);
            kv_buf_adds(out, ".\n");
        }
    }
}

static void add_commands(kv_buf *out) {
    kv_buf_adds(out, ".SH COMMANDS\n");
    for (const kv_command_info *c = kv_commands; c->name; c++) {
        kv_buf_adds(out, ".TP\n\\fBkvasir ");
        add_roffs(out, c->synopsis);
        kv_buf_adds(out, "\\fR\n");
        add_roffs(out, c->what);
        kv_buf_adds(out, ".\n");
    }
}

void kv_manual_page(kv_buf *out) {
    kv_buf_adds(out,
                ".TH KVASIR 1 \"\" \"kvasir " KVASIR_VERSION "\" \"User Commands\"\n"
                ".SH NAME\nkvasir \\- local LLM server that never computes the same prompt token twice\n"
                ".SH SYNOPSIS\n.B kvasir serve \\-m\n.I FILE.gguf\n.RI [ options ]\n.br\n"
                ".B kvasir\n.I COMMAND\n.RI [ arguments ]\n"
                ".SH DESCRIPTION\n"
                "kvasir serves a GGUF model through libllama over HTTP, with OpenAI's and llama\\-server's APIs, "
                "and keeps the state of every conversation, for every kind of layer, in memory and on disk: it goes "
                "on from the last token that matches, after a restart or a crash too.\n");
    add_commands(out);
    add_options(out);
    kv_buf_adds(
        out, ".SH ENVIRONMENT\n"
             "Each option is also read as KVASIR_ and its name (KVASIR_CTX_SIZE for \\-\\-ctx\\-size), then under "
             "llama\\-server's variable, then from the file that \\-\\-config names; the command line wins.\n"
             ".TP\n\\fBCACHE_DIRECTORY\\fR, \\fBSTATE_DIRECTORY\\fR\nDirectories that systemd made for the "
             "service; they come before XDG_CACHE_HOME, XDG_STATE_HOME and HOME. Without any of them nothing is "
             "kept on disk.\n"
             ".TP\n\\fBKVASIR_URL\\fR, \\fBKVASIR_API_KEY\\fR\nThe server that why and status ask "
             "(http://127.0.0.1:8080; unix:/run/k.sock for a socket), and a key that its key file marks as admin.\n"
             ".TP\n\\fBNOTIFY_SOCKET\\fR, \\fBWATCHDOG_USEC\\fR\nWhere and how often the service manager wants "
             "to be told; see\n.BR sd_notify (3).\n"
             ".SH SIGNALS\n"
             ".TP\n\\fBSIGTERM\\fR, \\fBSIGINT\\fR\nStop within \\-\\-stop\\-timeout; a second one ends at once.\n"
             ".TP\n\\fBSIGHUP\\fR\nThe log file is opened anew, and the keys are read again.\n"
             ".SH FILES\n"
             ".TP\n\\fI~/.cache/kvasir\\fR\nThe cache, not encrypted; \\-\\-cache\\-dir names another place.\n"
             ".TP\n\\fI~/.local/state/kvasir\\fR\nWhat was measured once, and the stored responses of /v1/responses, "
             "not encrypted; \\-\\-state\\-dir names another place.\n"
             ".SH EXIT STATUS\n0 after a clean end, 1 after a failure, 2 for wrong usage.\n");
    add_foreign(out);
    kv_buf_adds(out, ".SH SEE ALSO\n.BR systemd.service (5),\n.BR logrotate (8)\n");
}
