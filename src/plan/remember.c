#include "plan/remember.h"

#include <string.h>

#include "base/clock.h"
#include "os/machine.h"

#define FILE_MAX_BYTES (1u << 20) /* 64 entries of about a KiB, with room */
#define FORMAT_VERSION 1

static void file_path(kv_buf *out, const char *state_dir) {
    kv_buf_addf(out, "%s/measured.json", state_dir);
}

/* A new reference to the entries array; an empty one when the file is missing, damaged or of another version. */
static json_t *load_entries(const char *state_dir) {
    kv_buf path = {0}, text = {0};
    json_t *root = NULL, *entries = NULL;
    int64_t version = 0;
    file_path(&path, state_dir);
    if (kv_file_read(&text, path.data, FILE_MAX_BYTES, NULL) == KV_OK && text.len > 0 &&
        kv_json_parse(&root, text.data, text.len, NULL) == KV_OK && json_is_object(root) &&
        kv_json_int(&version, root, "version", 0, 1 << 20, NULL) == KV_OK && version == FORMAT_VERSION)
        entries = json_incref(kv_json_get(root, "entries"));
    if (!json_is_array(entries)) {
        json_decref(entries);
        entries = json_array();
    }
    json_decref(root);
    kv_buf_free(&path);
    kv_buf_free(&text);
    return entries;
}

static bool has_key(const json_t *entry, const char *key) {
    const char *theirs = json_string_value(json_object_get(entry, "key"));
    return theirs && strcmp(theirs, key) == 0;
}

json_t *kv_remember_get(const char *state_dir, const char *key) {
    if (!state_dir) return NULL;
    json_t *entries = load_entries(state_dir), *entry, *value = NULL;
    size_t i;
    json_array_foreach(entries, i, entry) {
        if (!value && has_key(entry, key)) value = json_incref(json_object_get(entry, "value"));
    }
    json_decref(entries);
    return value;
}

kv_status kv_remember_put(const char *state_dir, const char *key, json_t *value, kv_error *err) {
    if (!state_dir) {
        json_decref(value);
        return KV_OK;
    }
    kv_buf path = {0}, text = {0};
    json_t *old = load_entries(state_dir), *entries = json_array(), *entry, *root = json_object();
    size_t i;
    entry = json_object();
    json_object_set_new(entry, "key", kv_json_text0(key));
    json_object_set_new(entry, "at", json_integer(kv_wall_seconds()));
    json_object_set_new(entry, "value", value);
    json_array_append_new(entries, entry);
    json_array_foreach(old, i, entry) {
        if (!has_key(entry, key) && json_array_size(entries) < KV_REMEMBER_MAX) json_array_append(entries, entry);
    }
    json_object_set_new(root, "version", json_integer(FORMAT_VERSION));
    json_object_set_new(root, "entries", entries);
    kv_json_dump(&text, root);
    kv_buf_adds(&text, "\n");
    file_path(&path, state_dir);
    kv_status st = kv_dir_make(state_dir, err);
    if (st == KV_OK) st = kv_file_publish(path.data, text.data, text.len, err);
    json_decref(old);
    json_decref(root);
    kv_buf_free(&path);
    kv_buf_free(&text);
    return st;
}
