/* options/table.h: the shape of the option table. Only files in options/ include it.
 *
 * Thread rule: static data.
 */
#ifndef KV_OPTIONS_TABLE_H
#define KV_OPTIONS_TABLE_H

#include "options/options.h"

typedef enum kv_opt_kind {
    OPT_BOOL, /* bool; a flag without value, or on|off in file and environment */
    OPT_TRI,  /* int: on|off|auto = 1, 0, -1 */
    OPT_INT64,
    OPT_INT32,
    OPT_SEED, /* uint32_t; -1 = random */
    OPT_FLOAT,
    OPT_DOUBLE,
    OPT_TEXT,   /* char * */
    OPT_WORD,   /* char *, one of `words` */
    OPT_LIST,   /* kv_str_list; comma-separated (CSV quoting), repeats add */
    OPT_PRESET, /* a flag that sets other options: `words` is "name=value;name=value" */
    OPT_LOAD,   /* --load-mode: several fields at once */
} kv_opt_kind;

typedef enum kv_opt_group {
    GROUP_MODEL,
    GROUP_ENGINE,
    GROUP_SAMPLING,
    GROUP_CHAT,
    GROUP_SCHED,
    GROUP_CACHE,
    GROUP_SERVER,
    GROUP_PROCESS,
    GROUP_COUNT
} kv_opt_group;

enum {
    OPT_HIDDEN = 1,    /* not in --help (test aids) */
    OPT_SECRET = 2,    /* never printed */
    OPT_ARGV_ONLY = 4, /* not from file or environment: KVASIR_VERSION may well be set for other reasons */
    OPT_NO_SPLIT = 8,  /* a list whose items may contain commas: one item an occurrence */
    OPT_BARE_OK = 16,  /* a TRI whose flag may stand without value and then means on, as llama-server's -fa did */
    OPT_NOT_IN_FILE = 32,
    OPT_BYTES = 64,   /* a number may have K, M, G or T behind it, powers of 1024 */
    OPT_SECONDS = 128 /* or s, m, h or d */
};

typedef struct kv_opt {
    const char *names; /* "-c,--ctx-size"; the first long one is the name in files and messages */
    const char *neg;   /* names that turn a BOOL off, NULL = "--no-" + name is not offered */
    const char *env;   /* llama-server's variable ("LLAMA_ARG_CTX_SIZE"), NULL = none */
    kv_opt_kind kind;
    kv_opt_group group;
    unsigned flags;
    size_t at;         /* offset in kv_options */
    double min, max;   /* numbers: inclusive */
    const char *words; /* WORD: "a,b,c"; numbers: "auto=-1,all=99999,-2=99999" beside the range; LIST: what may be in
                          it, NULL = any text */
    const char *hint;  /* what --help calls the value: "N" */
    const char *help;
} kv_opt;

extern const kv_opt kv_opt_table[];
extern const int kv_opt_count;
const char *kv_opt_group_name(kv_opt_group g);  /* "model": what `kvasir help GROUP` takes */
const char *kv_opt_group_title(kv_opt_group g); /* "Model" */

/* llama-server's options without a counterpart. `what` completes "NAME …". */
typedef struct kv_foreign {
    const char *names;    /* as in kv_opt; a trailing '*' matches any rest: "--spec-*"; NULL: only a variable */
    const char *env;      /* its variable, NULL = none */
    const char *harmless; /* values, comma-separated, under which nothing is lost ("none", "-1"); NULL = none */
    const char *quiet;    /* spellings of the flag that say what kvasir does anyway; NULL = none */
    bool refused;         /* else accepted with one warning */
    bool takes_value;     /* an accepted one: skip its value */
    const char *what;
} kv_foreign;

extern const kv_foreign kv_foreign_table[];
extern const int kv_foreign_count;

/* True when `name` ("-c", "--ctx-size") is in the comma-separated list. */
bool kv_opt_list_has(const char *list, const char *name, size_t n);
/* The i-th entry of a comma-separated list; NULL past the end. Not NUL-terminated: *n bytes. */
const char *kv_opt_list_item(const char *list, int i, size_t *n);
/* The first long name without its dashes ("ctx-size"), into buf. */
const char *kv_opt_name(const char *names, char *buf, size_t cap);

/* value.c: text ⇄ field. `label` names the option as the user wrote it. `fresh`: a list begins anew. */
kv_status kv_opt_set(kv_options *o, const kv_opt *opt, const char *label, const char *value, bool fresh, kv_error *err);
void kv_opt_format(kv_buf *out, const kv_options *o, const kv_opt *opt);   /* one line's value; lists as CSV */
void kv_opt_format_item(kv_buf *out, const kv_opt *opt, const char *item); /* one item of a list */
bool kv_opt_equal(const kv_options *a, const kv_options *b, const kv_opt *opt);
void kv_opt_takes(kv_buf *out, const kv_opt *opt);                         /* "a whole number from 0 to 65535" */
bool kv_opt_truth(const char *s, bool *value);                             /* on/off in llama-server's spellings */
const kv_opt *kv_opt_find(const char *name, size_t n, bool *negated);      /* with dashes, as on the command line */
const kv_opt *kv_opt_find_bare(const char *name, size_t n, bool *negated); /* long name without dashes */
void kv_list_free(kv_str_list *l);
void kv_list_add(kv_str_list *l, const char *s, size_t n); /* caller has checked the room */

/* configfile.c: calls `set` for each `name = value` line. `path` only names the file in messages. */
typedef kv_status (*kv_config_set)(void *ctx, const char *label, const char *name, const char *value, kv_error *err);
kv_status kv_config_parse(const char *path, const char *text, size_t n, kv_config_set set, void *ctx, kv_error *err);
/* Appends the value so that kv_config_parse reads it back: in quotes where it must be. */
void kv_config_quote(kv_buf *out, const char *value);

/* suggest.c: the known name (with dashes) that is nearest to `name`; NULL when none is near. Static text in buf. */
const char *kv_opt_nearest(const char *name, char *buf, size_t cap);

/* finish.c: what parsing leaves to do once all sources were read. */
kv_status kv_opt_finish(kv_options *o, kv_error *err);

#endif
