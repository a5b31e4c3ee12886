/* cli/cache_command: each verb on a directory that the store filled, in a process of its own as users run it. */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "store/transfer.h"

enum { B = 16, N = 7 }; /* tokens a block; records a namespace */

static char base[128], dir[160], other[160], file[160];
static kv_buf out, errors;

/* ── a directory ── */

static void remove_tree(const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0) return;
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char child[600];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        remove_tree(child);
    }
    if (d) closedir(d);
    (void)(d ? rmdir(path) : unlink(path));
}

/* The cache's own rule: base ‖ scope. */
static kv_hash ns_of(const char *model, const char *scope) {
    kv_buf b = {0};
    kv_hash h = kv_hash_bytes(model, strlen(model));
    kv_buf_add(&b, &h, sizeof h);
    kv_buf_adds(&b, scope);
    h = kv_hash_bytes(b.data, b.len);
    kv_buf_free(&b);
    return h;
}

static int64_t fixed_now(void *ctx) {
    return *(int64_t *)ctx;
}

static kv_store *open_at(const char *where, int64_t *now) {
    kv_store *s;
    kv_error err;
    kv_store_config cfg = {.dir = where, .budget = 64 << 20, .now = now ? fixed_now : NULL, .now_ctx = now};
    if (kv_store_open(&s, &cfg, &err) != KV_OK) fail_msg("%s", err.message);
    return s;
}

typedef struct rec {
    kv_record_head head;
    kv_token tokens[B];
    unsigned char payload[6000];
} rec;

static void make(rec *r, kv_hash ns, kv_record_kind kind, const rec *parent, int salt) {
    memset(r, 0, sizeof *r);
    r->head = (kv_record_head){.kind = kind,
                               .ns = ns,
                               .parent = parent ? parent->head.key : ns,
                               .q = parent ? parent->head.e : 0,
                               .n_tokens = B,
                               .n_payload = sizeof r->payload - (size_t)salt,
                               .compute_ms = 50};
    r->head.e = r->head.q + B;
    for (int i = 0; i < B; i++) r->tokens[i] = salt * B + i;
    for (size_t i = 0; i < sizeof r->payload; i++) r->payload[i] = (unsigned char)(i * 7 + (size_t)salt + kind);
    r->head.key = kv_hash_chain(r->head.parent, r->tokens, B);
}

/* 0 ─ 1 ─ 2 ─ 3, 4 beside 2; a window beside 1, a checkpoint at 3 */
static void make_all(rec r[N], kv_hash ns) {
    for (int i = 0; i < 4; i++) make(&r[i], ns, KV_RECORD_BLOCK, i ? &r[i - 1] : NULL, i);
    make(&r[4], ns, KV_RECORD_BLOCK, &r[1], 9);
    make(&r[5], ns, KV_RECORD_WINDOW, &r[0], 1);
    make(&r[6], ns, KV_RECORD_CHECKPOINT, &r[2], 3);
}

static void fill(const char *where, const char *model, const char *scope, int64_t age) {
    int64_t now = (int64_t)time(NULL) - age;
    kv_store *s = open_at(where, &now);
    kv_hash ns = ns_of(model, scope), b = kv_hash_bytes(model, strlen(model));
    char hex[33], about[512];
    kv_error err;
    static rec r[N];
    kv_hash_hex(hex, b);
    snprintf(
        about, sizeof about,
        "{\"model\":\"%s\",\"engine\":\"test\",\"namespace\":\"%s\",\"scope\":\"%s\",\"parts\":{\"type_k\":\"f16\"}}",
        model, hex, scope);
    assert_int_equal(kv_store_set_about(s, ns, about, NULL), KV_OK);
    make_all(r, ns);
    for (int i = 0; i < N; i++) {
        if (kv_store_reserve(s, &r[i].head, 1, false, &err) != KV_OK) fail_msg("%s", err.message);
        assert_int_equal(kv_store_write(s, &r[i].head, r[i].tokens, r[i].payload, NULL), KV_OK);
    }
    assert_int_equal(kv_store_commit(s, NULL, NULL, NULL), KV_OK);
    kv_store_close(s);
}

static void path_of(char path[400], const char *where, const kv_record_head *h) {
    char ns[33], name[64];
    kv_hash_hex(ns, h->ns);
    kv_format_name(name, h);
    snprintf(path, 400, "%s/ns/%s/%s", where, ns, name);
}

static int set_up(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(base, sizeof base, "%s/kvasir-cache.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(base)) return -1;
    snprintf(dir, sizeof dir, "%s/cache", base);
    snprintf(other, sizeof other, "%s/other", base);
    snprintf(file, sizeof file, "%s/out.kvx", base);
    fill(dir, "SmolLM2", "default", 3600);
    fill(dir, "SmolLM2", "team", 10 * 86400);
    fill(dir, "gemma-3", "default", 60);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    remove_tree(base);
    return 0;
}

/* ── running ── */

static void read_all(kv_buf *b, FILE *f) {
    char piece[4096];
    kv_buf_clear(b);
    rewind(f);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) kv_buf_add(b, piece, n);
    fclose(f);
}

/* `kvasir cache LINE --cache-dir WHERE` (NULL: without); leaves `out` and `errors`. The exit status. */
static int cache_at(const char *where, const char *fmt, ...) {
    char line[1024], *argv[32] = {"kvasir", "cache"}, *env[] = {NULL};
    int argc = 2, status;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    if (where) {
        argv[argc++] = "--cache-dir";
        argv[argc++] = (char *)where;
    }
    FILE *o = tmpfile(), *e = tmpfile();
    assert_true(o && e);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(o), STDOUT_FILENO);
        dup2(fileno(e), STDERR_FILENO);
        exit(kv_cli_main(argc, argv, env));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    read_all(&out, o);
    read_all(&errors, e);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define CACHE(...) cache_at(dir, __VA_ARGS__)

static void assert_ends(int status, int want) {
    if (status != want) fail_msg("it ended with %d, not %d: %s%s", status, want, kv_buf_str(&out), kv_buf_str(&errors));
}
static void assert_said(const kv_buf *where, const char *what) {
    if (!strstr(kv_buf_str(where), what)) fail_msg("\"%s\" is not in: %s", what, kv_buf_str(where));
}

/* One object, whole, on stdout. */
static json_t *object(void) {
    json_t *o = NULL;
    kv_error err;
    if (kv_json_parse(&o, kv_buf_str(&out), out.len, &err) != KV_OK)
        fail_msg("%s in: %s", err.message, kv_buf_str(&out));
    assert_true(json_is_object(o));
    return o;
}
static int64_t number(const char *name) {
    json_t *o = object(), *v = json_object_get(o, name);
    if (!json_is_integer(v)) fail_msg("no number %s in: %s", name, kv_buf_str(&out));
    int64_t n = json_integer_value(v);
    json_decref(o);
    return n;
}
static int64_t records_at(const char *where) {
    assert_ends(cache_at(where, "ls --json"), 0);
    return number("records");
}
static const char *hex_of(const char *model, const char *scope) {
    static char hex[33];
    kv_hash_hex(hex, ns_of(model, scope));
    return hex;
}

/* ── verbs ── */

static void usage_errors(void **state) {
    (void)state;
    static const char *const wrong[] = {"",
                                        "frobnicate",
                                        "ls --nonsense",
                                        "ls --trust",
                                        "ls a b",
                                        "ls --model",
                                        "ls --older-than 7",
                                        "ls --older-than -7d",
                                        "ls --older-than x",
                                        "show",
                                        "show xyz",
                                        "show ../..",
                                        "stat --all",
                                        "rm",
                                        "rm --dry-run",
                                        "rm --all --model x",
                                        "rm --all --api-key k",
                                        "rm --url http://127.0.0.1:1",
                                        "rm 12 --url http://127.0.0.1:1",
                                        "rm --scope x --model y --url http://127.0.0.1:1",
                                        "rm --older-than 1d --url http://127.0.0.1:1",
                                        "ls --url http://127.0.0.1:1",
                                        "warm --all",
                                        "warm a b",
                                        "pin",
                                        "export",
                                        "export 12",
                                        "import",
                                        "import f --scope default",
                                        "import f --scope a:b",
                                        "import f --scope x --trust",
                                        "gc --model x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int status = CACHE("%s", wrong[i]);
        if (status != 2) fail_msg("kvasir cache %s: %d", wrong[i], status);
        assert_said(&errors, "kvasir cache");
        assert_int_equal(out.len, 0);
    }
    assert_ends(CACHE("--help"), 0);
    assert_said(&out, "kvasir cache rm");
    assert_ends(CACHE("rm --help"), 0);
    assert_int_equal(records_at(dir), 3 * N);
}

/* Nothing is made, and nothing removed, where no cache is. */
static void wrong_directory(void **state) {
    (void)state;
    char kept[200];
    assert_ends(cache_at("/nonexistent/cache", "ls"), 1);
    assert_said(&errors, "there is no cache directory");
    assert_int_equal(mkdir(other, 0700), 0);
    snprintf(kept, sizeof kept, "%s/letter.txt", other);
    fclose(fopen(kept, "w"));
    static const char *const lines[] = {"ls", "rm --all", "gc", "verify", "pin 12", "import /nonexistent"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_ends(cache_at(other, "%s", lines[i]), 1);
        assert_said(&errors, "not a cache directory");
    }
    assert_int_equal(access(kept, F_OK), 0);
    assert_int_equal(unlink(kept), 0);
    assert_int_equal(rmdir(other), 0); /* nothing else was made in it */
}

static void lists(void **state) {
    (void)state;
    assert_ends(CACHE("ls"), 0);
    assert_said(&out, "SmolLM2");
    assert_said(&out, "gemma-3");
    assert_said(&out, "team");
    assert_said(&out, "10 d ago");
    assert_said(&out, "21 records");
    assert_ends(CACHE("ls --json --model smol"), 0);
    assert_int_equal(number("records"), 2 * N);
    assert_ends(CACHE("ls --json --model smol --scope team"), 0);
    assert_int_equal(number("records"), N);
    assert_ends(CACHE("ls --json --older-than 7d"), 0);
    assert_int_equal(number("records"), N);
    assert_ends(CACHE("ls --json %.6s", hex_of("gemma-3", "default")), 0);
    assert_int_equal(number("records"), N);
}

static void shows(void **state) {
    (void)state;
    assert_ends(CACHE("show %.8s", hex_of("gemma-3", "default")), 0);
    assert_said(&out, "type_k");
    assert_said(&out, "checkpoint");
    assert_said(&out, "2 paths");
    assert_ends(CACHE("show %.8s --json", hex_of("gemma-3", "default")), 0);
    json_t *o = object();
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "about"), "model")), "gemma-3");
    json_t *longest = json_object_get(o, "longest"), *kinds = json_object_get(o, "kinds");
    assert_int_equal(json_array_size(longest), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(longest, 0), "tokens")), 4 * B);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(longest, 1), "tokens")), 3 * B);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(kinds, "block"), "records")), 5);
    json_decref(o);
    assert_ends(CACHE("show 0123456789abcdef"), 1);
    assert_said(&errors, "no namespace");
}

static void stat_counts(void **state) {
    (void)state;
    assert_ends(CACHE("stat"), 0);
    assert_said(&out, "64.0 MiB");
    assert_ends(CACHE("stat --json"), 0);
    assert_int_equal(number("budget"), 64 << 20);
    assert_int_equal(number("records"), 3 * N);
    assert_int_equal(number("servers"), 0);
    assert_int_equal(number("quarantine_files"), 0);
    assert_true(number("bytes") > 3 * N * 8192);
    assert_true(number("written_today") > 0);
    kv_store *server = open_at(dir, NULL); /* also beside a server */
    assert_ends(CACHE("stat --json"), 0);
    assert_int_equal(number("servers"), 1);
    kv_store_close(server);
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void verify_finds_damage(void **state) {
    (void)state;
    static rec r[N];
    char path[400];
    assert_ends(CACHE("verify"), 0);
    assert_said(&out, "21 records read");
    assert_said(&out, "all whole");
    make_all(r, ns_of("gemma-3", "default"));
    path_of(path, dir, &r[4].head);
    flip(path, 4096 + 17);
    path_of(path, dir, &r[6].head);
    assert_int_equal(truncate(path, 5000), 0); /* seen at open already */
    assert_ends(CACHE("verify --dry-run --json"), 1);
    assert_int_equal(number("damaged"), 2);
    assert_int_equal(access(path, F_OK), 0);
    assert_ends(CACHE("verify --json"), 1);
    assert_int_equal(number("damaged"), 2);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_ends(CACHE("verify"), 0);
    assert_said(&out, "19 records read");
    assert_ends(CACHE("stat --json"), 0);
    assert_int_equal(number("quarantine_files"), 2);
    assert_ends(CACHE("rm %s", hex_of("gemma-3", "default")), 0);
    assert_said(&out, "quarantine: 2 files");
    assert_ends(CACHE("stat --json"), 0);
    assert_int_equal(number("quarantine_files"), 0);
    assert_int_equal(records_at(dir), 2 * N);
}

static void removes_what_is_selected(void **state) {
    (void)state;
    assert_ends(CACHE("rm --model gemma --dry-run --json"), 0);
    assert_int_equal(number("records"), N);
    assert_int_equal(records_at(dir), 3 * N);
    assert_ends(CACHE("rm --model nothing"), 1);
    assert_ends(CACHE("rm --scope team --older-than 20d --json"), 0);
    assert_int_equal(number("records"), 0);
    assert_ends(CACHE("rm --older-than 7d --dry-run --json"), 0);
    assert_int_equal(number("records"), N);
    assert_ends(CACHE("rm --older-than 7d"), 0);
    assert_said(&out, "team: 7 records");
    assert_int_equal(records_at(dir), 2 * N);
    assert_ends(CACHE("ls"), 0);
    assert_null(strstr(out.data, "team"));
    kv_store *server = open_at(dir, NULL);
    assert_ends(CACHE("rm %.10s --yes", hex_of("gemma-3", "default")), 0);
    assert_said(&errors, "a server uses this directory");
    kv_store_close(server);
    assert_int_equal(records_at(dir), N);
    assert_ends(CACHE("rm --all"), 0);
    assert_said(&out, "removed 7 records");
    assert_int_equal(records_at(dir), 0);
    assert_ends(CACHE("verify"), 0);
    assert_ends(CACHE("rm --all"), 0); /* once more: nothing to do is no failure */
}

static void gc_and_pins(void **state) {
    (void)state;
    assert_ends(CACHE("pin %.8s --json", hex_of("SmolLM2", "team")), 0);
    assert_int_equal(number("pinned"), N);
    assert_ends(CACHE("ls"), 0);
    assert_said(&out, "pinned");
    assert_ends(CACHE("gc --json"), 0);
    assert_int_equal(number("records"), 0);
    assert_ends(CACHE("gc --older-than 7d --json"), 0); /* pinned */
    assert_int_equal(number("records"), 0);
    assert_ends(CACHE("unpin %.8s --json", hex_of("SmolLM2", "team")), 0);
    assert_int_equal(number("unpinned"), N);
    assert_ends(CACHE("gc --older-than 7d --dry-run --json"), 0);
    assert_int_equal(number("records"), N);
    assert_int_equal(records_at(dir), 3 * N);
    assert_ends(CACHE("gc --older-than 7d"), 0);
    assert_int_equal(records_at(dir), 2 * N);
}

/* ── export and import ── */

static void assert_holds(const char *where, kv_hash ns) {
    static rec r[N];
    static unsigned char payload[8192] __attribute__((aligned(4096)));
    kv_token tokens[B];
    kv_store *s = open_at(where, NULL);
    make_all(r, ns);
    for (int i = 0; i < N; i++) {
        assert_int_equal(kv_store_read(s, tokens, payload, sizeof payload, NULL, &r[i].head, NULL), KV_OK);
        assert_memory_equal(tokens, r[i].tokens, sizeof tokens);
        assert_memory_equal(payload, r[i].payload, r[i].head.n_payload);
    }
    kv_store_close(s);
}

static void travels_with_trust(void **state) {
    (void)state;
    struct stat st;
    assert_ends(CACHE("export %.8s %s", hex_of("SmolLM2", "default"), file), 0);
    assert_said(&out, "7 records");
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_ends(CACHE("export %.8s %s", hex_of("SmolLM2", "default"), file), 1); /* there already */
    assert_ends(cache_at(other, "import %s --trust --dry-run", file), 0);
    assert_int_not_equal(access(other, F_OK), 0);
    assert_ends(cache_at(other, "import %s --trust --json", file), 0);
    assert_int_equal(number("records"), N);
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_holds(other, ns_of("SmolLM2", "default"));
    assert_ends(cache_at(other, "ls"), 0);
    assert_said(&out, "SmolLM2");
    assert_ends(cache_at(other, "verify"), 0);
}

static void travels_into_a_scope_of_its_own(void **state) {
    (void)state;
    assert_ends(CACHE("export %.8s %s", hex_of("SmolLM2", "default"), file), 0);
    assert_ends(cache_at(other, "import %s --json", file), 0);
    json_t *o = object();
    char scope[64];
    snprintf(scope, sizeof scope, "%s", json_string_value(json_object_get(o, "scope")));
    json_decref(o);
    assert_memory_equal(scope, "import-", 7);
    assert_holds(other, ns_of("SmolLM2", scope));
    assert_ends(cache_at(other, "ls --json --scope %s", scope), 0);
    assert_int_equal(number("records"), N);
    assert_int_equal(records_at(other), N);
    assert_ends(cache_at(other, "import %s --json", file), 0); /* again: nothing new */
    assert_int_equal(number("records"), 0);
    assert_int_equal(number("already_there"), N);
    assert_ends(cache_at(other, "import %s --scope mine", file), 0);
    assert_holds(other, ns_of("SmolLM2", "mine"));
    assert_int_equal(records_at(other), 2 * N);
    assert_ends(CACHE("import %s --scope team", file), 1); /* somebody's already */
    assert_said(&errors, "in use");
    assert_ends(cache_at(other, "verify"), 0);
}

static void import_refuses_damage(void **state) {
    (void)state;
    struct stat st;
    assert_ends(CACHE("export %.8s %s", hex_of("SmolLM2", "default"), file), 0);
    assert_int_equal(stat(file, &st), 0);
    for (int i = 0; i < 12; i++) {
        long at = i < 4 ? i * 16 : 4096 + (long)(st.st_size - 4096) * i / 12;
        flip(file, at);
        assert_ends(cache_at(other, "import %s --trust", file), 1);
        flip(file, at);
    }
    assert_int_equal(records_at(other), 0);
    assert_ends(cache_at(other, "import %s", base), 1); /* a directory */
    assert_int_equal(truncate(file, st.st_size - 4096), 0);
    assert_ends(cache_at(other, "import %s", file), 1);
    assert_said(&errors, "cut short");
}

/* What a header or salt divides is listed without its text, and goes with its key's scope. */
static void divided_scopes(void **state) {
    (void)state;
    kv_store *s = open_at(dir, NULL);
    kv_hash ns = ns_of("SmolLM2", "4:team2:eu0:");
    assert_int_equal(
        kv_store_set_about(
            s, ns, "{\"model\":\"SmolLM2\",\"scope\":\"team\",\"scope_hash\":\"abcdef0123\",\"divided\":true}", NULL),
        KV_OK);
    kv_store_close(s);
    assert_ends(CACHE("ls"), 0);
    assert_said(&out, "team/#abcde");
    assert_ends(CACHE("rm --scope team"), 0);
    assert_ends(CACHE("ls"), 0);
    assert_null(strstr(out.data, "team"));
}

/* Another namespace's description in front of records would put them where they do not belong. */
static void description_of_another(void **state) {
    (void)state;
    kv_store *s = open_at(dir, NULL);
    kv_transfer_sum sum;
    char hex[33], about[256];
    kv_hash_hex(hex, kv_hash_bytes("gemma-3", 7));
    snprintf(about, sizeof about, "{\"model\":\"x\",\"namespace\":\"%s\",\"scope\":\"default\"}", hex);
    assert_int_equal(kv_transfer_export(&sum, s, ns_of("SmolLM2", "default"), about, file, NULL, NULL, NULL), KV_OK);
    kv_store_close(s);
    assert_ends(cache_at(other, "import %s --trust", file), 1);
    assert_said(&errors, "another namespace");
    assert_ends(cache_at(other, "import %s", file), 1);
    assert_int_equal(records_at(other), 0);
}

/* Without a description: listed, and carried only as it is. */
static void namespace_without_description(void **state) {
    (void)state;
    kv_hash ns = ns_of("nameless", "x");
    fill(dir, "nameless", "x", 0);
    char path[300], hex[33];
    kv_hash_hex(hex, ns);
    snprintf(path, sizeof path, "%s/ns/%s/about.json", dir, hex);
    assert_int_equal(unlink(path), 0);
    assert_ends(CACHE("show %s", hex), 0);
    assert_ends(CACHE("export %s %s", hex, file), 0);
    assert_ends(cache_at(other, "import %s", file), 1);
    assert_said(&errors, "--trust");
    assert_ends(cache_at(other, "import %s --trust", file), 0);
    assert_holds(other, ns);
}

/* Text of somebody else's file reaches no terminal as commands. */
static void escapes_are_not_printed(void **state) {
    (void)state;
    kv_store *s = open_at(dir, NULL);
    kv_hash ns = ns_of("evil", "x");
    assert_int_equal(kv_store_set_about(s, ns, "{\"model\":\"a\\u001b]0;b\\u0007\\u009bc\\td\",\"scope\":7}", NULL),
                     KV_OK);
    kv_store_close(s);
    assert_ends(CACHE("ls"), 0);
    assert_said(&out, "a?]0;b??c?d");
    assert_ends(CACHE("show %s", hex_of("evil", "x")), 0);
    assert_null(strchr(out.data, 0x1b));
}

static void directory_from_environment(void **state) {
    (void)state;
    char home[200], path[260];
    snprintf(home, sizeof home, "%s/home", base);
    setenv("HOME", home, 1);
    unsetenv("XDG_CACHE_HOME");
    assert_ends(cache_at(NULL, "ls"), 1);
    assert_said(&errors, home);
#ifndef __APPLE__
    setenv("XDG_CACHE_HOME", base, 1);
    assert_ends(cache_at(NULL, "ls"), 1);
    snprintf(path, sizeof path, "there is no cache directory %s/kvasir", base);
    assert_said(&errors, path);
    unsetenv("XDG_CACHE_HOME");
#else
    (void)path;
#endif
}

/* Port 1 answers nobody. The live half is in tests/http-node/tools.test.mjs. */
static void rm_asks_the_server_too(void **state) {
    (void)state;
    assert_ends(CACHE("rm --scope team --url http://127.0.0.1:1 --dry-run"), 0);
    assert_said(&out, "would have http://127.0.0.1:1 forget scope team");
    assert_int_equal(records_at(dir), 3 * N);
    assert_ends(CACHE("rm --scope team --url http://127.0.0.1:1"), 1);
    assert_said(&errors, "the directory is done, but the server was not told");
    assert_int_equal(records_at(dir), 2 * N);
    assert_ends(cache_at(other, "rm --all --url http://127.0.0.1:1"), 1); /* no directory: the server all the same */
    assert_said(&errors, "does not answer");
    assert_int_equal(access(other, F_OK), -1);
}

static void warms(void **state) {
    (void)state;
    assert_ends(CACHE("warm --dry-run --json"), 0);
    assert_int_equal(number("records"), 3 * N);
    assert_int_equal(number("left_records"), 0);
    int64_t all = number("bytes");
    assert_true(all > 0);
    assert_ends(CACHE("warm %.8s --json", hex_of("gemma-3", "default")), 0);
    assert_int_equal(number("records"), N);
    int64_t bytes = number("bytes");
    assert_true(bytes >= N * 5900 && bytes <= all); /* the files' sizes; the dry run tells what they take on disk */
    assert_ends(CACHE("warm"), 0);
    assert_said(&out, "read 21 records");
    assert_ends(CACHE("warm 0123456789abcdef"), 1);
    assert_said(&errors, "no namespace");
    assert_int_equal(records_at(dir), 3 * N);
}

/* A link in a record's place is never followed. */
static void warm_follows_no_link(void **state) {
    (void)state;
    static rec r[N];
    char path[400], outside[400];
    make_all(r, ns_of("gemma-3", "default"));
    path_of(path, dir, &r[3].head);
    snprintf(outside, sizeof outside, "%s/outside", base);
    assert_int_equal(rename(path, outside), 0);
    assert_int_equal(symlink(outside, path), 0);
    assert_ends(CACHE("warm --json"), 0);
    assert_int_equal(number("records"), 3 * N - 1);
}

/* As root finds the directory of a systemd service. */
static void give_to(const char *path, uid_t owner) {
    assert_int_equal(lchown(path, owner, (gid_t)owner), 0);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char child[600];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        give_to(child, owner);
    }
    if (d) closedir(d);
}

static void root_looks_at_what_is_anothers(void **state) {
    (void)state;
    static rec r[N];
    char path[400];
    if (geteuid() != 0) skip(); /* only root can make files that are another's */
    make_all(r, ns_of("SmolLM2", "default"));
    give_to(dir, 54321);
    path_of(path, dir, &r[3].head);
    assert_int_equal(lchown(path, 0, 0), 0); /* not its owner's: not the cache's */
    assert_ends(CACHE("stat --json"), 0);
    assert_int_equal(number("records"), 3 * N - 1);
    assert_ends(CACHE("export %.12s %s", hex_of("gemma-3", "default"), file), 0);
    assert_ends(CACHE("verify --dry-run"), 0);
    assert_ends(CACHE("verify"), 1);
    assert_said(&errors, "belongs to another user");
    give_to(dir, 0);
    assert_ends(CACHE("verify"), 0);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(usage_errors),
        T(wrong_directory),
        T(lists),
        T(shows),
        T(stat_counts),
        T(verify_finds_damage),
        T(removes_what_is_selected),
        T(gc_and_pins),
        T(travels_with_trust),
        T(travels_into_a_scope_of_its_own),
        T(import_refuses_damage),
        T(divided_scopes),
        T(description_of_another),
        T(namespace_without_description),
        T(escapes_are_not_printed),
        T(directory_from_environment),
        T(rm_asks_the_server_too),
        T(warms),
        T(warm_follows_no_link),
        T(root_looks_at_what_is_anothers),
    };
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    kv_buf_free(&out);
    kv_buf_free(&errors);
    return status;
}
