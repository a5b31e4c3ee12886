/* cli/cache_look.c: ls, show, stat: what only looks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cache_tool.h"
#include "cli/cli.h"

#define SHORT_HEX    12 /* digits that `ls` shows; enough to name one */
#define LONGEST_MOST 10

static void add_int(json_t *o, const char *name, uint64_t value) {
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static void add_text(json_t *o, const char *name, const char *s) {
    json_object_set_new(o, name, json_string(s));
}

static const char *or_dash(const char *s) {
    return s[0] ? s : "-";
}

/* ── ls ────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *ns_json(const kv_cache_ns *x) {
    json_t *o = json_object();
    add_text(o, "namespace", x->hex);
    add_text(o, "model", x->model);
    add_text(o, "scope", x->scope);
    json_object_set_new(o, "divided", json_boolean(x->divided[0] != '\0'));
    add_int(o, "bytes", x->bytes);
    add_int(o, "records", x->records);
    add_int(o, "pinned", x->n_pinned);
    add_int(o, "last_used", (uint64_t)x->last_used);
    return o;
}

static int by_use(const void *a, const void *b) {
    const kv_cache_ns *x = *(kv_cache_ns *const *)a, *y = *(kv_cache_ns *const *)b;
    return (x->last_used < y->last_used) - (x->last_used > y->last_used);
}

static void add_line(kv_buf *cells, const kv_cache_tool *t, const kv_cache_ns *x) {
    kv_buf_addf(cells, "%.*s\t", SHORT_HEX, x->hex);
    kv_cache_add_clean(cells, or_dash(x->model));
    kv_buf_adds(cells, "\t");
    kv_cache_add_clean(cells, or_dash(x->scope));
    if (x->divided[0]) { /* its own text is a secret */
        char part[8];
        snprintf(part, sizeof part, "/#%.5s", x->divided);
        kv_cache_add_clean(cells, part);
    }
    kv_buf_adds(cells, "\t");
    kv_cache_add_bytes(cells, x->bytes);
    kv_buf_addf(cells, "\t%llu\t", (unsigned long long)x->records);
    if (x->last_used) kv_cache_add_age(cells, t->now - x->last_used);
    else kv_buf_adds(cells, "-");
    kv_buf_adds(cells, !x->n_pinned ? "\n" : x->n_pinned == x->records ? "\tpinned\n" : "\tpartly pinned\n");
}

int kv_cache_ls(kv_cache_tool *t, kv_error *err) {
    (void)err;
    kv_cache_ns **shown = kv_alloc(t->n * sizeof *shown);
    size_t n = 0;
    uint64_t bytes = 0, records = 0;
    for (size_t i = 0; i < t->n; i++) {
        kv_cache_ns *x = &t->list[i];
        if (!x->selected || (t->older_than >= 0 && x->last_used >= t->now - t->older_than)) continue;
        shown[n++] = x;
        bytes += x->bytes;
        records += x->records;
    }
    qsort(shown, n, sizeof *shown, by_use);
    json_t *list = json_array();
    kv_buf cells = {0};
    kv_buf_adds(&cells, "NAMESPACE\tMODEL\tSCOPE\tSIZE\tRECORDS\tUSED\n");
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, ns_json(shown[i]));
        add_line(&cells, t, shown[i]);
    }
    add_text(t->out, "dir", t->dir.data);
    json_object_set_new(t->out, "namespaces", list);
    add_int(t->out, "bytes", bytes);
    add_int(t->out, "records", records);
    if (!t->json && n > 0) kv_cache_print_table(&cells, "...rr.");
    kv_buf_clear(&cells);
    kv_cache_add_bytes(&cells, bytes);
    kv_cache_say(t, "%s%s: %llu records, %s\n", n ? "\n" : "", t->dir.data, (unsigned long long)records, cells.data);
    kv_buf_free(&cells);
    free(shown);
    return KV_EXIT_OK;
}

/* ── show ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int by_hash(const void *a, const void *b) {
    return memcmp(a, b, sizeof(kv_hash));
}

static int longer(const void *a, const void *b) {
    const kv_store_row *x = *(kv_store_row *const *)a, *y = *(kv_store_row *const *)b;
    if (x->head.e != y->head.e) return x->head.e < y->head.e ? 1 : -1;
    int by_key = memcmp(&x->head.key, &y->head.key, sizeof x->head.key);
    return by_key ? by_key : (int)x->head.kind - (int)y->head.kind;
}

/* Ends of paths: records on which nothing hangs, one a node, the longest first. Owned array. */
static const kv_store_row **path_ends(size_t *n_ends, const kv_cache_tool *t, kv_hash ns) {
    kv_hash *parents = kv_alloc(t->n_rows * sizeof *parents);
    const kv_store_row **ends = kv_alloc(t->n_rows * sizeof *ends);
    size_t n_parents = 0, n = 0, kept = 0;
    for (size_t i = 0; i < t->n_rows; i++)
        if (kv_hash_equal(t->rows[i].head.ns, ns)) parents[n_parents++] = t->rows[i].head.parent;
    qsort(parents, n_parents, sizeof *parents, by_hash);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kv_store_row *r = &t->rows[i];
        if (kv_hash_equal(r->head.ns, ns) && !bsearch(&r->head.key, parents, n_parents, sizeof *parents, by_hash))
            ends[n++] = r;
    }
    qsort(ends, n, sizeof *ends, longer);
    for (size_t i = 0; i < n; i++) /* records of one node are neighbours now */
        if (!kept || !kv_hash_equal(ends[kept - 1]->head.key, ends[i]->head.key)) ends[kept++] = ends[i];
    free(parents);
    *n_ends = kept;
    return ends;
}

static void show_paths(kv_cache_tool *t, const kv_cache_ns *x) {
    size_t n;
    const kv_store_row **ends = path_ends(&n, t, x->ns);
    json_t *list = json_array();
    kv_buf cells = {0};
    kv_buf_adds(&cells, "  TOKENS\tENDS AT\tUSED\tHITS\n");
    for (size_t i = 0; i < n && i < LONGEST_MOST; i++) {
        char hex[33];
        kv_hash_hex(hex, ends[i]->head.key);
        json_t *o = json_object();
        add_int(o, "tokens", (uint64_t)ends[i]->head.e);
        add_text(o, "key", hex);
        add_int(o, "last_used", (uint64_t)ends[i]->last_used);
        json_object_set_new(o, "hits", json_real(ends[i]->hits));
        json_array_append_new(list, o);
        kv_buf_addf(&cells, "%d\t%.*s\t", ends[i]->head.e, SHORT_HEX, hex);
        kv_cache_add_age(&cells, t->now - ends[i]->last_used);
        kv_buf_addf(&cells, "\t%.1f\n", ends[i]->hits);
    }
    add_int(t->out, "paths", n);
    json_object_set_new(t->out, "longest", list);
    if (n) kv_cache_say(t, "\n%zu paths, the longest:\n", n);
    if (n && !t->json) kv_cache_print_table(&cells, "r..r");
    kv_buf_free(&cells);
    free(ends);
}

static void add_about(kv_buf *cells, const char *indent, const json_t *about) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)about, name, value) {
        if (json_is_object(value)) continue;
        kv_buf_adds(cells, indent);
        kv_cache_add_clean(cells, name);
        kv_buf_adds(cells, "\t");
        kv_buf text = {0};
        if (json_is_string(value)) kv_buf_adds(&text, json_string_value(value));
        else kv_json_dump(&text, value);
        kv_cache_add_clean(cells, kv_buf_str(&text));
        kv_buf_free(&text);
        kv_buf_adds(cells, "\n");
    }
}

static void add_kinds(kv_buf *cells, json_t *out, const uint64_t *n, const uint64_t *bytes) {
    json_t *kinds = json_object();
    for (int k = 1; k < KV_KINDS; k++) {
        json_t *o = json_object();
        add_int(o, "records", n[k]);
        add_int(o, "bytes", bytes[k]);
        json_object_set_new(kinds, kv_cache_kind_name(k), o);
        if (!n[k]) continue;
        kv_buf_addf(cells, "  %s\t%llu\t", kv_cache_kind_name(k), (unsigned long long)n[k]);
        kv_cache_add_bytes(cells, bytes[k]);
        kv_buf_adds(cells, "\n");
    }
    json_object_set_new(out, "kinds", kinds);
}

int kv_cache_show(kv_cache_tool *t, kv_error *err) {
    kv_cache_ns *x = kv_cache_the_one(t, err);
    if (!x) return KV_EXIT_FAILURE;
    kv_buf cells = {0};
    json_t *facts = ns_json(x);
    json_object_update(t->out, facts);
    json_decref(facts);
    json_object_set(t->out, "about", x->about);
    kv_buf_addf(&cells, "namespace\t%s\n", x->hex);
    add_about(&cells, "", x->about);
    add_about(&cells, "  ", json_object_get(x->about, "parts"));
    if (!t->json) kv_cache_print_table(&cells, "");
    kv_buf_clear(&cells);
    kv_cache_add_bytes(&cells, x->bytes);
    kv_cache_say(t, "\n%llu records, %s, %llu of them pinned:\n", (unsigned long long)x->records, cells.data,
                 (unsigned long long)x->n_pinned);
    kv_buf_clear(&cells);
    add_kinds(&cells, t->out, x->n_kind, x->bytes_of_kind);
    if (!t->json) kv_cache_print_table(&cells, ".rr");
    kv_buf_free(&cells);
    show_paths(t, x);
    return KV_EXIT_OK;
}

/* ── stat ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_size(kv_buf *cells, const char *name, uint64_t bytes) {
    kv_buf_addf(cells, "%s\t", name);
    kv_cache_add_bytes(cells, bytes);
    kv_buf_adds(cells, "\n");
}

int kv_cache_stat(kv_cache_tool *t, kv_error *err) {
    const kv_files *f = kv_files_real();
    kv_store_stats stats;
    kv_disk_info disk = {0};
    kv_buf cells = {0}, kinds = {0};
    uint64_t q_bytes, q_files, n_kind[KV_KINDS] = {0}, records = 0;
    kv_status status = kv_store_clear_quarantine(t->store, NULL, true, &q_bytes, &q_files, err);
    if (status != KV_OK) return KV_EXIT_FAILURE;
    kv_store_get_stats(&stats, t->store);
    bool known = stats.budget != KV_STORE_BUDGET_LAST;
    int sharers = kv_store_sharers(t->store);
    for (size_t i = 0; i < t->n_rows; i++) n_kind[t->rows[i].head.kind]++;
    for (int k = 1; k < KV_KINDS; k++) records += stats.by_kind_bytes[k];
    uint64_t rest = stats.bytes > records + q_bytes ? stats.bytes - records - q_bytes : 0;
    bool has_disk = f->disk(f, t->dir.data, &disk) == 0;

    add_text(t->out, "dir", t->dir.data);
    add_int(t->out, "bytes", stats.bytes);
    json_object_set_new(t->out, "budget", known ? json_integer((json_int_t)stats.budget) : json_null());
    add_int(t->out, "records", t->n_rows);
    add_int(t->out, "namespaces", t->n);
    add_kinds(&kinds, t->out, n_kind, stats.by_kind_bytes);
    add_int(t->out, "quarantine_bytes", q_bytes);
    add_int(t->out, "quarantine_files", q_files);
    add_int(t->out, "other_bytes", rest);
    add_int(t->out, "written_today", stats.bytes_written_today);
    json_object_set_new(t->out, "volume_free", has_disk ? json_integer((json_int_t)disk.free) : json_null());
    add_int(t->out, "servers", (uint64_t)sharers);

    kv_buf_addf(&cells, "directory\t%s\n", t->dir.data);
    add_size(&cells, "in use", stats.bytes);
    if (known) add_size(&cells, "budget", stats.budget);
    else kv_buf_adds(&cells, "budget\tnot known: no server has used this directory yet\n");
    add_size(&cells, "written today", stats.bytes_written_today);
    if (has_disk) add_size(&cells, "free on the volume", disk.free);
    kv_buf_addf(&cells, "servers using it now\t%d\n", sharers);
    if (!t->json) {
        kv_cache_print_table(&cells, "");
        kv_cache_say(t, "\n%zu records in %zu namespaces:\n", t->n_rows, t->n);
        kv_buf_addf(&kinds, "  quarantine\t%llu\t", (unsigned long long)q_files);
        kv_cache_add_bytes(&kinds, q_bytes);
        kv_buf_adds(&kinds, "\n  index, folders\t\t");
        kv_cache_add_bytes(&kinds, rest);
        kv_buf_adds(&kinds, "\n");
        kv_cache_print_table(&kinds, ".rr");
    }
    kv_buf_free(&cells);
    kv_buf_free(&kinds);
    return KV_EXIT_OK;
}
