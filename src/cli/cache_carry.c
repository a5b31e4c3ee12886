/* cli/cache_carry.c: export and import.
 *
 *   about.json in the file ─ base ─┬─ --trust: the namespace as it was
 *                                  └─ else: base + a scope of its own ─► another namespace, other keys (transfer.h)
 *
 * The scope is one that the key file can name (KEY scope=NAME): after the content ("import-" and 8 digits of its
 * checksum) unless --scope says otherwise. Its about.json tells from which content it was made, and only the same file
 * goes there again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/namespace.h"
#include "cli/cache_tool.h"
#include "cli/cli.h"
#include "store/transfer.h"

static void add_int(json_t *o, const char *name, uint64_t value) {
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

int kv_cache_export(kv_cache_tool *t, kv_error *err) {
    kv_cache_ns *x = kv_cache_the_one(t, err);
    kv_transfer_sum sum;
    kv_cache_bar bar;
    if (!x) return KV_EXIT_FAILURE;
    kv_cache_bar_init(&bar, "exporting");
    kv_status status = kv_transfer_export(&sum, t->store, x->ns, x->text, t->file, kv_cache_bar_draw, &bar, err);
    kv_cache_bar_end(&bar);
    if (status != KV_OK) return KV_EXIT_FAILURE;
    json_object_set_new(t->out, "namespace", json_string(x->hex));
    json_object_set_new(t->out, "file", json_string(t->file));
    add_int(t->out, "records", sum.records);
    add_int(t->out, "bytes", sum.bytes);
    add_int(t->out, "left_out", sum.left_out);
    kv_buf size = {0};
    kv_cache_add_bytes(&size, sum.bytes);
    kv_cache_say(t, "%s: %llu records, %s, not encrypted\n", t->file, (unsigned long long)sum.records,
                 kv_buf_str(&size));
    if (sum.left_out)
        kv_cache_say(t, "left out: %llu records that are damaged or hang on such a one\n",
                     (unsigned long long)sum.left_out);
    kv_buf_free(&size);
    return KV_EXIT_OK;
}

/* The namespace without its scope (cache/namespace.h). */
static bool base_of(kv_hash *base, const json_t *about) {
    const char *hex = json_string_value(json_object_get(about, "namespace"));
    if (!hex) hex = json_string_value(json_object_get(about, "base"));
    return hex && kv_hash_from_hex(base, hex);
}

/* Where the description says enough, it must be that of the records. */
static bool is_theirs(const json_t *about, kv_hash ns) {
    const char *scope = json_string_value(json_object_get(about, "scope"));
    kv_hash base;
    if (!scope || json_is_true(json_object_get(about, "divided")) || scope[0] == '#' || !base_of(&base, about))
        return true;
    return kv_hash_equal(kv_namespace_root(base, scope), ns);
}

typedef struct target {
    kv_hash ns;
    char hex[33];
    kv_buf scope, about;
} target;

static kv_status own_scope(target *to, const kv_cache_tool *t, const kv_import *m, json_t *about, kv_error *err) {
    kv_hash base;
    char content[33], hex[33];
    if (!base_of(&base, about))
        return kv_fail(
            err, KV_UNSUPPORTED,
            "%s does not say what its namespace is made of, so it cannot go into another scope; --trust stores it "
            "as it is",
            t->file);
    kv_hash_hex(content, kv_import_content(m));
    if (t->scope) kv_buf_adds(&to->scope, t->scope);
    else kv_buf_addf(&to->scope, "import-%.8s", content);
    to->ns = kv_namespace_root(base, to->scope.data);
    json_object_set_new(about, "scope", kv_json_text(to->scope.data, to->scope.len));
    kv_hash_hex(hex, kv_hash_bytes(to->scope.data, to->scope.len));
    json_object_set_new(about, "scope_hash", json_string(hex));
    json_object_set_new(about, "divided", json_false());
    json_object_set_new(about, "imported", json_string(content));
    kv_json_dump(&to->about, about);
    for (size_t i = 0; i < t->n; i++) {
        if (!kv_hash_equal(t->list[i].ns, to->ns)) continue;
        const char *from = json_string_value(json_object_get(t->list[i].about, "imported"));
        if (!from || strcmp(from, content) != 0)
            return kv_fail(err, KV_INVALID, "scope \"%s\" is in use for this model: choose another --scope",
                           to->scope.data);
    }
    return KV_OK;
}

static kv_status choose_target(target *to, const kv_cache_tool *t, const kv_import *m, kv_error *err) {
    const char *text = kv_import_about(m);
    json_t *about = NULL;
    if (text[0] && (kv_json_parse(&about, text, strlen(text), NULL) != KV_OK || !json_is_object(about))) {
        json_decref(about);
        return kv_fail(err, KV_CORRUPT, "%s: its description is not a JSON object", t->file);
    }
    kv_status status = KV_OK;
    if (!is_theirs(about, kv_import_ns(m))) {
        status = kv_fail(err, KV_CORRUPT, "%s: its description is that of another namespace", t->file);
    } else if (t->trust) {
        const char *scope = json_string_value(json_object_get(about, "scope"));
        to->ns = kv_import_ns(m);
        kv_buf_adds(&to->scope, scope ? scope : "");
        kv_buf_adds(&to->about, text);
    } else {
        status = own_scope(to, t, m, about, err);
    }
    kv_hash_hex(to->hex, to->ns);
    json_decref(about);
    return status;
}

static void tell_imported(kv_cache_tool *t, const target *to, const kv_transfer_sum *sum) {
    json_object_set_new(t->out, "namespace", json_string(to->hex));
    json_object_set_new(t->out, "scope", kv_json_text(kv_buf_str(&to->scope), to->scope.len));
    add_int(t->out, "records", sum->records);
    add_int(t->out, "bytes", sum->bytes);
    add_int(t->out, "already_there", sum->left_out);
    json_object_set_new(t->out, "dry_run", json_boolean(t->dry_run));
    kv_buf scope = {0}, size = {0};
    kv_cache_add_clean(&scope, kv_buf_str(&to->scope));
    kv_cache_add_bytes(&size, sum->bytes);
    if (t->dry_run)
        kv_cache_say(t, "%s is whole; it would go into scope \"%s\" (%.12s)\n", t->file, kv_buf_str(&scope), to->hex);
    else
        kv_cache_say(t, "stored %llu records, %s (%llu were there already) in scope \"%s\" (%.12s)\n",
                     (unsigned long long)sum->records, kv_buf_str(&size), (unsigned long long)sum->left_out,
                     kv_buf_str(&scope), to->hex);
    if (!t->trust) kv_cache_say(t, "a key with scope=%s in the server's key file uses it\n", kv_buf_str(&scope));
    kv_buf_free(&scope);
    kv_buf_free(&size);
}

int kv_cache_import(kv_cache_tool *t, kv_error *err) {
    kv_import *m = NULL;
    kv_cache_bar bar;
    target to = {0};
    kv_transfer_sum sum = {0};
    char *path = realpath(t->file, NULL); /* the store follows no links; whoever names a file may mean one */
    kv_status status = kv_import_open(&m, NULL, path ? path : t->file, err);
    if (status == KV_OK) status = choose_target(&to, t, m, err);
    if (status == KV_OK) {
        kv_cache_bar_init(&bar, "checking");
        status = kv_import_verify(m, kv_cache_bar_draw, &bar, err);
        kv_cache_bar_end(&bar);
    }
    if (status == KV_OK && !t->dry_run && to.about.len > 0)
        status = kv_store_set_about(t->store, to.ns, to.about.data, err);
    if (status == KV_OK && !t->dry_run) {
        kv_cache_bar_init(&bar, "storing");
        status = kv_import_store(&sum, m, t->store, to.ns, kv_cache_bar_draw, &bar, err);
        kv_cache_bar_end(&bar);
    }
    if (status == KV_OK || sum.records) tell_imported(t, &to, &sum);
    if (status == KV_OK && !t->dry_run && kv_store_sharers(t->store))
        fprintf(stderr, "kvasir cache import: a server uses this directory: it sees the import when it next starts\n");
    kv_import_close(m);
    kv_buf_free(&to.scope);
    kv_buf_free(&to.about);
    free(path);
    return status == KV_OK ? KV_EXIT_OK : KV_EXIT_FAILURE;
}
