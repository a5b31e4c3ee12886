/* cli/cache_tool.h: what the files of `kvasir cache` share. Only src/cli/cache_*.c includes it.
 *
 * Thread rule: the main thread.
 */
#ifndef KV_CLI_CACHE_TOOL_H
#define KV_CLI_CACHE_TOOL_H

#include "base/json.h"
#include "store/store.h"

#define KV_KINDS 5 /* by kv_record_kind; 0 is none */

typedef struct kv_cache_ns {
    kv_hash ns;
    char hex[33];
    json_t *about;             /* owned, an object; empty where there is none */
    char *text;                /* owned: about.json as it stands */
    const char *model, *scope; /* of about, "" when it does not say */
    const char *divided;       /* hash of a scope that a header or salt divides, else "" */
    uint64_t bytes, records, n_pinned, n_kind[KV_KINDS], bytes_of_kind[KV_KINDS];
    int64_t last_used;
    bool selected;
} kv_cache_ns;

typedef struct kv_cache_tool {
    /* arguments; borrowed */
    const char *prefix, *file, *scope, *model;
    const char *url, *key; /* of a running server that is told, too; key: NULL without one */
    bool dry_run, all, json, trust;
    int64_t older_than; /* seconds, -1 = not given */

    kv_buf dir;
    kv_files_of_user files; /* where root looks at another user's directory */
    kv_store *store;        /* NULL where there is no directory and that is fine */
    int64_t now;
    kv_cache_ns *list; /* by namespace */
    size_t n;
    kv_store_row *rows; /* all, by q */
    size_t n_rows;
    json_t *out; /* what --json prints */
} kv_cache_tool;

/* cache_look.c, cache_change.c, cache_warm.c, cache_carry.c: a verb each. Exit status; KV_EXIT_FAILURE with *err filled,
 * or with an empty message when all was said. */
int kv_cache_ls(kv_cache_tool *t, kv_error *err);
int kv_cache_show(kv_cache_tool *t, kv_error *err);
int kv_cache_stat(kv_cache_tool *t, kv_error *err);
int kv_cache_verify(kv_cache_tool *t, kv_error *err);
int kv_cache_gc(kv_cache_tool *t, kv_error *err);
int kv_cache_rm(kv_cache_tool *t, kv_error *err);
int kv_cache_pin(kv_cache_tool *t, kv_error *err);
int kv_cache_unpin(kv_cache_tool *t, kv_error *err);
int kv_cache_warm_files(kv_cache_tool *t, kv_error *err);
int kv_cache_export(kv_cache_tool *t, kv_error *err);
int kv_cache_import(kv_cache_tool *t, kv_error *err);

/* cache_command.c: the one namespace that the prefix names; NULL: none or several, *err says so. */
kv_cache_ns *kv_cache_the_one(kv_cache_tool *t, kv_error *err);
const char *kv_cache_kind_name(int kind);

/* cache_text.c */
void kv_cache_say(const kv_cache_tool *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));           /* to stdout, unless --json */
void kv_cache_add_bytes(kv_buf *out, uint64_t n);    /* "1.25 GiB" */
void kv_cache_add_age(kv_buf *out, int64_t age);     /* "3 d ago" */
void kv_cache_add_clean(kv_buf *out, const char *s); /* what a terminal might obey becomes '?' */

/* Cells separated by '\t', lines by '\n', columns aligned; those of which `right` has an 'r' to the right. */
void kv_cache_print_table(const kv_buf *cells, const char *right);

typedef struct kv_cache_bar {
    const char *doing;
    bool on;
    int percent; /* as last drawn */
} kv_cache_bar;
void kv_cache_bar_init(kv_cache_bar *b, const char *doing); /* on when stderr is a terminal */
void kv_cache_bar_draw(void *bar, uint64_t done, uint64_t total);
void kv_cache_bar_end(kv_cache_bar *b);

#endif
