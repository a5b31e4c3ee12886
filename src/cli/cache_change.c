/* cli/cache_change.c: verify, gc, rm, pin, unpin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ask.h"
#include "cli/cache_tool.h"
#include "cli/cli.h"

static void add_int(json_t *o, const char *name, uint64_t value) {
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static int end_of(kv_status status) {
    return status == KV_OK ? KV_EXIT_OK : KV_EXIT_FAILURE;
}

/* ── verify ────────────────────────────────────────────────────────────────────────────────────────────────────── */

int kv_cache_verify(kv_cache_tool *t, kv_error *err) {
    kv_store_stats stats;
    kv_cache_bar bar;
    uint64_t bad = 0, bytes = 0;
    for (size_t i = 0; i < t->n_rows; i++) bytes += t->rows[i].disk_bytes;
    kv_store_get_stats(&stats, t->store);
    uint64_t at_open = stats.n_quarantined; /* the walk over the files found these damaged */
    kv_cache_bar_init(&bar, "verifying");
    kv_status status = kv_store_verify(t->store, t->dry_run, kv_cache_bar_draw, &bar, &bad, err);
    kv_cache_bar_end(&bar);
    bad += at_open;
    add_int(t->out, "records", t->n_rows + at_open);
    add_int(t->out, "bytes", bytes);
    add_int(t->out, "damaged", bad);
    json_object_set_new(t->out, "set_aside", json_boolean(bad > 0 && !t->dry_run));
    json_object_set_new(t->out, "complete", json_boolean(status == KV_OK));
    kv_buf size = {0};
    kv_cache_add_bytes(&size, bytes);
    kv_cache_say(t, "%llu records read, %s: ", (unsigned long long)(t->n_rows + at_open), kv_buf_str(&size));
    if (!bad) kv_cache_say(t, "%s\n", status == KV_OK ? "all whole" : "no damage seen");
    else kv_cache_say(t, "%llu damaged%s\n", (unsigned long long)bad, t->dry_run ? "" : " (set aside in quarantine/)");
    kv_buf_free(&size);
    if (status != KV_OK) return KV_EXIT_FAILURE;
    return bad ? KV_EXIT_FAILURE : KV_EXIT_OK;
}

/* ── gc and rm ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_total(kv_cache_tool *t, uint64_t records, uint64_t bytes) {
    add_int(t->out, "records", records);
    add_int(t->out, "bytes", bytes);
    json_object_set_new(t->out, "dry_run", json_boolean(t->dry_run));
    kv_buf size = {0};
    kv_cache_add_bytes(&size, bytes);
    kv_cache_say(t, "%s %llu records, %s\n", t->dry_run ? "would remove" : "removed", (unsigned long long)records,
                 kv_buf_str(&size));
    kv_buf_free(&size);
}

int kv_cache_gc(kv_cache_tool *t, kv_error *err) {
    uint64_t bytes, records;
    kv_status status = kv_store_gc(t->store, t->dry_run, &bytes, &records, err);
    add_total(t, records, bytes);
    return end_of(status);
}

static kv_status remove_one(kv_cache_tool *t, const kv_cache_ns *x, uint64_t *bytes, uint64_t *records, kv_error *err) {
    if (t->older_than >= 0) {
        kv_status status =
            kv_store_remove_old(t->store, x->ns, t->now - t->older_than, t->dry_run, bytes, records, err);
        if (status != KV_OK || t->dry_run || *records < x->records || kv_store_sharers(t->store)) return status;
        uint64_t more, n; /* all of it went, and nobody adds to it: its description goes too */
        return kv_store_remove_namespace(t->store, x->ns, &more, &n, err);
    }
    *bytes = x->bytes;
    *records = x->records;
    return t->dry_run ? KV_OK : kv_store_remove_namespace(t->store, x->ns, bytes, records, err);
}

static void tell_removed(kv_cache_tool *t, json_t *list, const kv_cache_ns *x, uint64_t bytes, uint64_t records) {
    json_t *o = json_object();
    json_object_set_new(o, "namespace", json_string(x->hex));
    json_object_set_new(o, "model", json_string(x->model));
    json_object_set_new(o, "scope", json_string(x->scope));
    add_int(o, "records", records);
    add_int(o, "bytes", bytes);
    json_array_append_new(list, o);
    kv_buf line = {0};
    kv_buf_addf(&line, "%.12s  ", x->hex);
    kv_cache_add_clean(&line, x->model[0] ? x->model : "-");
    kv_buf_adds(&line, "  ");
    kv_cache_add_clean(&line, x->scope[0] ? x->scope : "-");
    kv_buf_addf(&line, ": %llu records, ", (unsigned long long)records);
    kv_cache_add_bytes(&line, bytes);
    kv_cache_say(t, "%s\n", line.data);
    kv_buf_free(&line);
}

/* Damaged records hold prompts too. By age they are not chosen: they went aside for somebody to look at. */
static kv_status clear_quarantine(kv_cache_tool *t, uint64_t *bytes, uint64_t *files, kv_error *err) {
    uint64_t b, n;
    *bytes = *files = 0;
    if (t->older_than >= 0 || !t->store) return KV_OK;
    if (t->all && !t->dry_run)
        (void)kv_spellings_erase_all(kv_store_spellings(t->store)); /* also of what has no records */
    if (t->all) return kv_store_clear_quarantine(t->store, NULL, t->dry_run, bytes, files, err);
    for (size_t i = 0; i < t->n; i++) {
        if (!t->list[i].selected) continue;
        kv_status status = kv_store_clear_quarantine(t->store, &t->list[i].ns, t->dry_run, &b, &n, err);
        *bytes += b;
        *files += n;
        if (status != KV_OK) return status;
    }
    return KV_OK;
}

/* After the directory: what the server wrote meanwhile goes now, with what it holds in memory and idle slots. */
static kv_status tell_server(kv_cache_tool *t, kv_error *err) {
    json_t *answer = NULL;
    kv_error inner = {0};
    if (t->dry_run) {
        kv_cache_say(t, "would have %s forget %s%s\n", t->url, t->all ? "everything" : "scope ",
                     t->all ? "" : t->scope);
        return KV_OK;
    }
    kv_status status = t->all
                           ? kv_ask_server(&answer, "DELETE", t->url, t->key, "/kvasir/cache?all=", "true", &inner)
                           : kv_ask_server(&answer, "DELETE", t->url, t->key, "/kvasir/cache?scope=", t->scope, &inner);
    if (status != KV_OK)
        return kv_fail(err, status, "the directory is done, but the server was not told: %s", inner.message);
    uint64_t n = (uint64_t)json_integer_value(json_object_get(answer, "erased_records"));
    add_int(t->out, "server_records", n);
    kv_cache_say(t, "the server forgot %llu records more\n", (unsigned long long)n);
    json_decref(answer);
    return KV_OK;
}

int kv_cache_rm(kv_cache_tool *t, kv_error *err) {
    kv_status status = KV_OK;
    uint64_t all_bytes = 0, all_records = 0, files = 0, q_bytes = 0;
    bool any = false;
    if (t->prefix && !kv_cache_the_one(t, err) && err->status == KV_INVALID) return KV_EXIT_FAILURE;
    json_t *list = json_array();
    json_object_set_new(t->out, "removed", list);
    for (size_t i = 0; i < t->n && status == KV_OK; i++) {
        uint64_t bytes = 0, records = 0;
        if (!t->list[i].selected) continue;
        any = true;
        status = remove_one(t, &t->list[i], &bytes, &records, err);
        all_bytes += bytes;
        all_records += records;
        if (records || t->older_than < 0) tell_removed(t, list, &t->list[i], bytes, records);
    }
    if (status == KV_OK) status = clear_quarantine(t, &q_bytes, &files, err);
    add_int(t->out, "quarantine_files", files);
    if (files) kv_cache_say(t, "quarantine: %llu files\n", (unsigned long long)files);
    add_total(t, all_records, all_bytes + q_bytes);
    if (status == KV_OK && t->url) return end_of(tell_server(t, err));
    if (status == KV_OK && !any && !t->all) {
        (void)kv_fail(err, KV_NOT_FOUND, "nothing in %s is meant by that selection", t->dir.data);
        return KV_EXIT_FAILURE;
    }
    if (!t->dry_run && all_records && kv_store_sharers(t->store))
        fprintf(stderr, "kvasir cache rm: a server uses this directory: what it holds in memory stays until it ends "
                        "(--url tells it)\n");
    return end_of(status);
}

/* ── pins ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int set_pins(kv_cache_tool *t, bool pinned, kv_error *err) {
    kv_cache_ns *x = kv_cache_the_one(t, err);
    if (!x) return KV_EXIT_FAILURE;
    kv_cache_bar bar;
    uint64_t n = 0;
    kv_status status = KV_OK;
    kv_cache_bar_init(&bar, pinned ? "pinning" : "unpinning");
    for (size_t i = 0; i < t->n_rows && status == KV_OK; i++) {
        const kv_store_row *r = &t->rows[i];
        if (!kv_hash_equal(r->head.ns, x->ns) || r->pinned == pinned) continue;
        status = kv_store_pin(t->store, &r->head, pinned, err);
        if (status == KV_NOT_FOUND) status = KV_OK; /* evicted meanwhile */
        else n += status == KV_OK;
        kv_cache_bar_draw(&bar, i + 1, t->n_rows);
    }
    kv_cache_bar_end(&bar);
    json_object_set_new(t->out, "namespace", json_string(x->hex));
    add_int(t->out, pinned ? "pinned" : "unpinned", n);
    kv_cache_say(t, "%s %llu records of %.12s\n", pinned ? "pinned" : "unpinned", (unsigned long long)n, x->hex);
    return end_of(status);
}

int kv_cache_pin(kv_cache_tool *t, kv_error *err) {
    return set_pins(t, true, err);
}

int kv_cache_unpin(kv_cache_tool *t, kv_error *err) {
    return set_pins(t, false, err);
}
