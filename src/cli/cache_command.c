#ifdef __linux__
#define _GNU_SOURCE 1 /* strcasestr */
#endif
#include "cli/cache_command.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cache_tool.h"
#include "cli/cli.h"
#include "http/auth.h"
#include "os/machine.h"

static const char usage[] =
    "usage: kvasir cache ls [NS] [--model TEXT] [--scope NAME] [--older-than AGE]\n"
    "                                         namespaces: model, scope, size, records, last used\n"
    "       kvasir cache show NS              what made a namespace, records by kind, longest paths\n"
    "       kvasir cache stat                 bytes of the budget, by kind, written today\n"
    "       kvasir cache verify [--dry-run]   read and check every record; damaged ones are set aside\n"
    "       kvasir cache gc [--older-than AGE] [--dry-run]\n"
    "                                         leftovers, what is over the budget, what is old\n"
    "       kvasir cache rm NS|--model TEXT|--scope NAME|--older-than AGE|--all [--dry-run]\n"
    "                                         remove; several selections narrow each other down\n"
    "       kvasir cache rm --scope NAME|--all --url URL [--api-key KEY]\n"
    "                                         and have the server there forget its model's part, in memory too\n"
    "       kvasir cache warm [NS] [--model TEXT] [--scope NAME] [--dry-run]\n"
    "                                         read it once, so that the system's page cache has it\n"
    "       kvasir cache pin|unpin NS         keep what a namespace holds now from being evicted\n"
    "       kvasir cache export NS FILE       one namespace as one file (it holds prompts, unencrypted)\n"
    "       kvasir cache import FILE [--scope NAME|--trust] [--dry-run]\n"
    "                                         check a file, store it in a scope of its own; --trust: where it was\n"
    "\n"
    "NS is the beginning of a namespace's number as `ls` shows it. AGE: 90m, 12h, 7d, 2w.\n"
    "  --cache-dir DIR   default: $KVASIR_CACHE_DIR, else kvasir in the platform's cache directory\n"
    "  --json            one JSON object on stdout\n"
    "  --api-key KEY     one that the server's key file marks admin; $KVASIR_API_KEY, which others cannot see\n"
    "Exit status: 0 done, 1 failed or damage found, 2 wrong usage. docs/format.md describes the files.\n";

enum { O_DRY_RUN = 1, O_OLDER = 2, O_SCOPE = 4, O_MODEL = 8, O_ALL = 16, O_TRUST = 32, O_URL = 64, O_KEY = 128 };

typedef struct verb {
    const char *name;
    int (*run)(kv_cache_tool *t, kv_error *err);
    int least, most; /* arguments that are no options */
    unsigned options;
    bool looks; /* changes nothing */
} verb;

static const verb verbs[] = {
    {"ls", kv_cache_ls, 0, 1, O_OLDER | O_SCOPE | O_MODEL, true},
    {"show", kv_cache_show, 1, 1, 0, true},
    {"stat", kv_cache_stat, 0, 0, 0, true},
    {"verify", kv_cache_verify, 0, 0, O_DRY_RUN, false},
    {"gc", kv_cache_gc, 0, 0, O_OLDER | O_DRY_RUN, false},
    {"rm", kv_cache_rm, 0, 1, O_OLDER | O_SCOPE | O_MODEL | O_ALL | O_DRY_RUN | O_URL | O_KEY, false},
    {"warm", kv_cache_warm_files, 0, 1, O_SCOPE | O_MODEL | O_DRY_RUN, true},
    {"pin", kv_cache_pin, 1, 1, 0, false},
    {"unpin", kv_cache_unpin, 1, 1, 0, false},
    {"export", kv_cache_export, 2, 2, 0, true},
    {"import", kv_cache_import, 1, 1, O_SCOPE | O_TRUST | O_DRY_RUN, false},
};

/* ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static int fail_usage(const char *fmt, const char *what) {
    fprintf(stderr, "kvasir cache: ");
    fprintf(stderr, fmt, what);
    fprintf(stderr, "\n(`kvasir cache --help` shows how)\n");
    return KV_EXIT_USAGE;
}

/* "12h" in seconds; -1: not an age. */
static int64_t parse_age(const char *s) {
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}};
    char *end;
    errno = 0;
    long long n = strtoll(s, &end, 10);
    if (s[0] < '0' || s[0] > '9' || errno || n > 1000000000 || !end[0] || end[1]) return -1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (*end == units[i].unit) return n * units[i].seconds;
    return -1;
}

static bool is_hex(const char *s) {
    return s[0] && strlen(s) <= 32 && s[strspn(s, "0123456789abcdef")] == '\0';
}

enum { LONG_DIR = 256, LONG_JSON, LONG_HELP, LONG_FIRST };
static const struct option longs[] = {
    {"cache-dir", required_argument, NULL, LONG_DIR},
    {"json", no_argument, NULL, LONG_JSON},
    {"help", no_argument, NULL, LONG_HELP},
    {"yes", no_argument, NULL, LONG_FIRST}, /* nothing is asked: scripts may say it all the same */
    {"dry-run", no_argument, NULL, LONG_FIRST + O_DRY_RUN},
    {"older-than", required_argument, NULL, LONG_FIRST + O_OLDER},
    {"scope", required_argument, NULL, LONG_FIRST + O_SCOPE},
    {"model", required_argument, NULL, LONG_FIRST + O_MODEL},
    {"all", no_argument, NULL, LONG_FIRST + O_ALL},
    {"trust", no_argument, NULL, LONG_FIRST + O_TRUST},
    {"url", required_argument, NULL, LONG_FIRST + O_URL},
    {"api-key", required_argument, NULL, LONG_FIRST + O_KEY},
    {0},
};

static int take_option(kv_cache_tool *t, int option) {
    switch (option) {
    case LONG_DIR:
        kv_buf_clear(&t->dir);
        kv_buf_adds(&t->dir, optarg);
        return KV_EXIT_OK;
    case LONG_JSON: t->json = true; return KV_EXIT_OK;
    case LONG_FIRST + O_DRY_RUN: t->dry_run = true; return KV_EXIT_OK;
    case LONG_FIRST + O_SCOPE: t->scope = optarg; return KV_EXIT_OK;
    case LONG_FIRST + O_MODEL: t->model = optarg; return KV_EXIT_OK;
    case LONG_FIRST + O_ALL: t->all = true; return KV_EXIT_OK;
    case LONG_FIRST + O_TRUST: t->trust = true; return KV_EXIT_OK;
    case LONG_FIRST + O_URL: t->url = optarg; return KV_EXIT_OK;
    case LONG_FIRST + O_KEY: t->key = optarg; return KV_EXIT_OK;
    case LONG_FIRST + O_OLDER:
        t->older_than = parse_age(optarg);
        if (t->older_than < 0) return fail_usage("--older-than takes an age such as 12h or 7d, got \"%.40s\"", optarg);
        return KV_EXIT_OK;
    default: return KV_EXIT_OK;
    }
}

static int check_arguments(const kv_cache_tool *t, const verb *v) {
    bool narrowed = t->prefix || t->model || t->scope || t->older_than >= 0;
    if (t->prefix && !is_hex(t->prefix))
        return fail_usage("\"%.64s\" is not the beginning of a namespace's number", t->prefix);
    if (v->run == kv_cache_rm && !narrowed && !t->all)
        return fail_usage("%s needs a selection: a namespace, --model, --scope, --older-than or --all", "rm");
    if (v->run == kv_cache_rm && narrowed && t->all)
        return fail_usage("%s removes everything and goes with no other selection", "--all");
    if (t->url && (t->prefix || t->model || t->older_than >= 0 || (t->scope && !t->scope[0])))
        return fail_usage("%s goes with --scope NAME or --all: a server forgets a whole scope, or everything", "--url");
    if (t->key && !t->url) return fail_usage("%s is for the server that --url names", "--api-key");
    if (v->run != kv_cache_import) return KV_EXIT_OK;
    if (t->trust && t->scope) return fail_usage("%s and --scope exclude each other", "--trust");
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (t->scope && (strlen(t->scope) > KV_KEY_SCOPE_MAX || t->scope[strspn(t->scope, allowed)]))
        return fail_usage("--scope takes a name as in a key file, letters, digits and \"._-\", got \"%.80s\"",
                          t->scope);
    if (t->scope && (!t->scope[0] || strcmp(t->scope, "default") == 0))
        return fail_usage("an import goes into a scope of its own, not \"%s\" (--trust: where it was exported)",
                          t->scope);
    return KV_EXIT_OK;
}

/* *v stays NULL when help was asked for. */
static int parse(kv_cache_tool *t, const verb **v, int argc, char **argv) {
    int option, status;
    unsigned given = 0;
    optind = 1;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", longs, NULL)) != -1) {
        if (option == LONG_HELP || option == 'h') return KV_EXIT_OK;
        if (option == ':') return fail_usage("%s needs a value", argv[optind - 1]);
        if (option == '?') return fail_usage("there is no option %.80s", argv[optind - 1]);
        if (option > LONG_FIRST) given |= (unsigned)(option - LONG_FIRST);
        status = take_option(t, option);
        if (status != KV_EXIT_OK) return status;
    }
    if (optind == argc)
        return fail_usage("what is to be done? %s", "ls, show, stat, verify, gc, rm, pin, unpin, warm, export, import");
    const char *name = argv[optind++];
    if (strcmp(name, "help") == 0) return KV_EXIT_OK;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(name, verbs[i].name) == 0) *v = &verbs[i];
    if (!*v) return fail_usage("there is no \"%.40s\"", name);
    for (size_t i = 0; longs[i].name; i++)
        if (longs[i].val > LONG_FIRST && given & (unsigned)(longs[i].val - LONG_FIRST) & ~(*v)->options) {
            fprintf(stderr, "kvasir cache: %s takes no --%s\n", name, longs[i].name);
            return KV_EXIT_USAGE;
        }
    int n = argc - optind;
    if (n < (*v)->least) return fail_usage("%s needs more arguments", name);
    if (n > (*v)->most) return fail_usage("%s: too many arguments", name);
    bool file_first = (*v)->run == kv_cache_import;
    if (n > 0 && !file_first) t->prefix = argv[optind];
    if (n > 0 && (file_first || n > 1)) t->file = argv[optind + n - 1];
    return check_arguments(t, *v);
}

/* ── the directory ─────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *env_of(char *const *env, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; env && env[i]; i++)
        if (strncmp(env[i], name, n) == 0 && env[i][n] == '=' && env[i][n + 1]) return env[i] + n + 1;
    return NULL;
}

static kv_status find_dir(kv_cache_tool *t, char *const *env, kv_error *err) {
    const char *named = env_of(env, "KVASIR_CACHE_DIR");
    if (t->url && !t->key) t->key = env_of(env, "KVASIR_API_KEY");
    if (t->dir.len == 0 && named) kv_buf_adds(&t->dir, named);
    return t->dir.len > 0 ? KV_OK : kv_dir_cache(&t->dir, err);
}

static bool any_entry(void *ctx, const char *name) {
    (void)name;
    *(bool *)ctx = true;
    return false;
}

/* A tool must not make a cache out of somebody's home: the directory is one already, or, for an import, empty. */
static kv_status check_dir(const kv_cache_tool *t, bool may_make, kv_error *err) {
    const kv_files *f = kv_files_real();
    kv_file_info info;
    kv_buf below = {0};
    bool any = false;
    kv_buf_addf(&below, "%s/ns", t->dir.data);
    int code = f->stat(f, below.data, &info);
    kv_buf_free(&below);
    if (code == 0 && info.is_dir) return KV_OK;
    code = f->list(f, t->dir.data, any_entry, &any);
    if (code == -ENOENT && may_make) return kv_dir_make(t->dir.data, err);
    if (code == -ENOENT) return kv_fail(err, KV_NOT_FOUND, "there is no cache directory %s", t->dir.data);
    if (code < 0) return kv_fail(err, KV_IO, "cannot read %s: %s", t->dir.data, strerror(-code));
    if (!any && may_make) return KV_OK;
    return kv_fail(err, KV_INVALID, "%s is not a cache directory of kvasir", t->dir.data);
}

static kv_status open_store(kv_cache_tool *t, const verb *v, kv_error *err) {
    const kv_files *f = kv_files_real();
    kv_disk_info disk;
    bool imports = v->run == kv_cache_import;
    kv_status status = check_dir(t, imports && !t->dry_run, err);
    kv_store_config cfg = {
        .dir = t->dir.data,
        .budget = KV_STORE_BUDGET_LAST,
        .read_only = v->looks || t->dry_run,
        .max_age_s = v->run == kv_cache_gc && t->older_than > 0 ? t->older_than : 0,
    };
    kv_file_info info;
    if (cfg.read_only && f->stat(f, t->dir.data, &info) == 0 && !info.is_mine &&
        kv_files_as_root(&t->files, info.owner))
        cfg.files = &t->files.files;
    if (imports && t->dry_run && status == KV_NOT_FOUND) return KV_OK; /* the file alone is looked at */
    if (t->url && status == KV_NOT_FOUND) return KV_OK;                /* that server may keep all of it in memory */
    if (status != KV_OK) return status;
    /* Where no server ever said how much it may be, an import leaves a tenth of the volume. */
    if (imports && f->disk(f, t->dir.data, &disk) == 0) cfg.keep_free = disk.total / 10;
    return kv_store_open(&t->store, &cfg, err);
}

/* ── what is there ─────────────────────────────────────────────────────────────────────────────────────────────── */

const char *kv_cache_kind_name(int kind) {
    static const char *const names[KV_KINDS] = {"", "block", "window", "checkpoint", "whole"};
    return names[kind];
}

static const char *text_of(const json_t *about, const char *field) {
    const char *s = json_string_value(json_object_get(about, field));
    return s ? s : "";
}

static void add_ns(void *ctx, kv_hash ns, const char *about, uint64_t bytes, uint64_t records) {
    kv_cache_tool *t = ctx;
    t->list = kv_realloc(t->list, (t->n + 1) * sizeof *t->list);
    kv_cache_ns *x = &t->list[t->n++];
    *x = (kv_cache_ns){.ns = ns, .bytes = bytes, .records = records, .text = kv_strdup(about)};
    kv_hash_hex(x->hex, ns);
    if (!about[0] || kv_json_parse(&x->about, about, strlen(about), NULL) != KV_OK || !json_is_object(x->about)) {
        json_decref(x->about);
        x->about = json_object();
    }
    x->model = text_of(x->about, "model");
    x->scope = text_of(x->about, "scope");
    x->divided = json_is_true(json_object_get(x->about, "divided")) ? text_of(x->about, "scope_hash") : "";
}

static int by_hex(const void *a, const void *b) {
    return strcmp(((const kv_cache_ns *)a)->hex, ((const kv_cache_ns *)b)->hex);
}

static void add_row(void *ctx, const kv_store_row *row) {
    kv_cache_tool *t = ctx;
    if ((t->n_rows & (t->n_rows - 1)) == 0)
        t->rows = kv_realloc(t->rows, (t->n_rows ? t->n_rows * 2 : 1) * sizeof *t->rows);
    t->rows[t->n_rows++] = *row;
    kv_cache_ns key;
    kv_hash_hex(key.hex, row->head.ns);
    kv_cache_ns *x = t->n ? bsearch(&key, t->list, t->n, sizeof key, by_hex) : NULL;
    if (!x) return; /* published in this instant */
    x->n_kind[row->head.kind]++;
    x->bytes_of_kind[row->head.kind] += row->disk_bytes;
    x->n_pinned += row->pinned;
    if (row->last_used > x->last_used) x->last_used = row->last_used;
}

static bool is_selected(const kv_cache_tool *t, const kv_cache_ns *x) {
    return (!t->prefix || strncmp(x->hex, t->prefix, strlen(t->prefix)) == 0) &&
           (!t->scope || strcmp(x->scope, t->scope) == 0) && (!t->model || strcasestr(x->model, t->model));
}

static kv_status list_all(kv_cache_tool *t, kv_error *err) {
    if (!t->store) return KV_OK;
    kv_status status = kv_store_namespaces(t->store, add_ns, t, err);
    if (t->n) qsort(t->list, t->n, sizeof *t->list, by_hex);
    if (status == KV_OK) status = kv_store_load_all(t->store, add_row, t, err);
    for (size_t i = 0; i < t->n; i++) t->list[i].selected = is_selected(t, &t->list[i]);
    return status;
}

kv_cache_ns *kv_cache_the_one(kv_cache_tool *t, kv_error *err) {
    kv_cache_ns *found = NULL;
    for (size_t i = 0; i < t->n; i++) {
        if (!t->list[i].selected) continue;
        if (found) {
            (void)kv_fail(err, KV_INVALID, "several namespaces begin with %s: %s, %s …", t->prefix, found->hex,
                          t->list[i].hex);
            return NULL;
        }
        found = &t->list[i];
    }
    if (!found) (void)kv_fail(err, KV_NOT_FOUND, "no namespace in %s begins with %s", t->dir.data, t->prefix);
    return found;
}

/* ── the command ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void free_tool(kv_cache_tool *t) {
    for (size_t i = 0; i < t->n; i++) {
        json_decref(t->list[i].about);
        free(t->list[i].text);
    }
    free(t->list);
    free(t->rows);
    kv_store_close(t->store);
    json_decref(t->out);
    kv_buf_free(&t->dir);
}

static int print_json(const kv_cache_tool *t) {
    kv_buf text = {0};
    kv_json_dump(&text, t->out);
    puts(kv_buf_str(&text));
    kv_buf_free(&text);
    return KV_EXIT_OK;
}

static int run(kv_cache_tool *t, const verb *v, char *const *env) {
    kv_error err = {0};
    kv_log_config log = {.level = KV_LOG_WARN};
    int status = KV_EXIT_FAILURE;
    (void)kv_log_init(&log, NULL);
    t->now = kv_wall_seconds();
    t->out = json_object();
    if (find_dir(t, env, &err) == KV_OK && open_store(t, v, &err) == KV_OK && list_all(t, &err) == KV_OK) {
        err.message[0] = '\0';
        status = v->run(t, &err);
        if (t->json && (status == KV_EXIT_OK || json_object_size(t->out) > 0)) (void)print_json(t);
    }
    if (status != KV_EXIT_OK && err.message[0]) fprintf(stderr, "kvasir cache %s: %s\n", v->name, err.message);
    if (fflush(stdout) != 0 && status == KV_EXIT_OK) status = KV_EXIT_FAILURE;
    kv_log_close();
    return status;
}

int kv_cache_command(int argc, char **argv, char *const *env) {
    kv_cache_tool t = {.older_than = -1};
    const verb *v = NULL;
    int status = parse(&t, &v, argc, argv);
    if (status == KV_EXIT_OK && v) status = run(&t, v, env);
    else if (status == KV_EXIT_OK) fputs(usage, stdout);
    free_tool(&t);
    return status;
}
