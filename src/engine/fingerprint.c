#include "engine/fingerprint.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/llama_border.h"
#include "engine/llama_internal.h"
#include "gguf.h"
#include "os/files.h"

#define SAMPLE         4096u       /* bytes, from each of three places */
#define OVERRIDES_MOST 2048u       /* bytes of text; it is shown to people and kept in about.json */
#define PARTS_MOST     4096        /* files of one split model */
#define FORMAT         "weights 1" /* changes with everything below that changes a hash */

/* ── what is hashed, as (name, hash of the rest) sorted by name ────────────────────────────────────────────────── */

typedef struct item {
    char *name; /* owned */
    kv_hash hash;
} item;

typedef struct items {
    item *data;
    size_t n, cap;
    kv_buf scratch;
} items;

static void add_item(items *list, const char *prefix, const char *name) {
    if (list->n == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 512;
        list->data = kv_realloc(list->data, list->cap * sizeof *list->data);
    }
    kv_buf full = {0};
    kv_buf_addf(&full, "%s%s", prefix, name);
    list->data[list->n++] =
        (item){.name = kv_buf_take(&full), .hash = kv_hash_bytes(list->scratch.data, list->scratch.len)};
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const item *)a)->name, ((const item *)b)->name);
}

static kv_hash hash_items(items *list) {
    kv_buf all = {0};
    kv_buf_add(&all, FORMAT, sizeof FORMAT);
    if (list->n > 0) qsort(list->data, list->n, sizeof *list->data, by_name);
    for (size_t i = 0; i < list->n; i++) {
        kv_buf_add(&all, list->data[i].name, strlen(list->data[i].name) + 1);
        kv_buf_add(&all, &list->data[i].hash, sizeof list->data[i].hash);
    }
    kv_hash h = kv_hash_bytes(all.data, all.len);
    kv_buf_free(&all);
    return h;
}

static void items_free(items *list) {
    for (size_t i = 0; i < list->n; i++) free(list->data[i].name);
    free(list->data);
    kv_buf_free(&list->scratch);
}

/* ── metadata ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* What is not known to be without effect counts: a needless miss is better than a wrong hit. */
static bool counts(const char *key) {
    static const char *const texts[] = {"tokenizer.chat_template", "tokenizer.huggingface.json", "split.", "quantize.",
                                        "adapter.lora.task_name",  "adapter.lora.prompt_prefix", NULL};
    if (begins(key, "general.")) return strcmp(key, "general.architecture") == 0;
    for (size_t i = 0; texts[i]; i++)
        if (begins(key, texts[i])) return false;
    return true;
}

static size_t type_bytes(enum gguf_type type) {
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64: return 8;
    default: return 0;
    }
}

static void put_text(kv_buf *b, const char *text) {
    kv_buf_add(b, text, strlen(text) + 1);
}

static void put_value(kv_buf *b, const struct gguf_context *g, int64_t id) {
    enum gguf_type type = gguf_get_kv_type(g, id);
    enum gguf_type item_type = type == GGUF_TYPE_ARRAY ? gguf_get_arr_type(g, id) : type;
    size_t n = type == GGUF_TYPE_ARRAY ? gguf_get_arr_n(g, id) : 1;
    kv_buf_addf(b, "%d %d %zu ", (int)type, (int)item_type, n);
    if (item_type != GGUF_TYPE_STRING) {
        if (n > 0)
            kv_buf_add(b, type == GGUF_TYPE_ARRAY ? gguf_get_arr_data(g, id) : gguf_get_val_data(g, id),
                       n * type_bytes(item_type));
    } else if (type == GGUF_TYPE_ARRAY) {
        for (size_t i = 0; i < n; i++) put_text(b, gguf_get_arr_str(g, id, i));
    } else {
        put_text(b, gguf_get_val_str(g, id));
    }
}

static void add_metadata(items *list, const struct gguf_context *g) {
    for (int64_t id = 0; id < gguf_get_n_kv(g); id++) {
        const char *key = gguf_get_key(g, id);
        if (!counts(key)) continue;
        kv_buf_clear(&list->scratch);
        put_value(&list->scratch, g, id);
        add_item(list, "key ", key);
    }
}

/* ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct source {
    const char *path;
    const kv_files *files;
    int fd;
} source;

static kv_status put_bytes(kv_buf *b, const source *s, uint64_t offset, size_t n, kv_error *err) {
    kv_buf_reserve(b, n);
    int64_t got = s->files->read_at(s->files, s->fd, b->data + b->len, n, offset);
    if (got < 0) return kv_fail(err, KV_IO, "cannot read %s: %s", s->path, strerror((int)-got));
    if ((size_t)got < n) return kv_fail(err, KV_INVALID, "%s ends before its last tensor", s->path);
    b->len += n;
    b->data[b->len] = '\0';
    return KV_OK;
}

static kv_status put_sample(kv_buf *b, const source *s, uint64_t offset, uint64_t n, kv_error *err) {
    if (n <= 3 * SAMPLE) return put_bytes(b, s, offset, (size_t)n, err);
    kv_status st = put_bytes(b, s, offset, SAMPLE, err);
    if (st == KV_OK) st = put_bytes(b, s, offset + (n - SAMPLE) / 2, SAMPLE, err);
    return st == KV_OK ? put_bytes(b, s, offset + n - SAMPLE, SAMPLE, err) : st;
}

static kv_status add_tensors(items *list, const struct gguf_context *g, const source *s, kv_error *err) {
    uint64_t data = gguf_get_data_offset(g);
    for (int64_t id = 0; id < gguf_get_n_tensors(g); id++) {
        const int64_t *ne = gguf_get_tensor_ne(g, id);
        kv_buf_clear(&list->scratch);
        kv_buf_addf(&list->scratch, "%d %lld %lld %lld %lld ", (int)gguf_get_tensor_type(g, id), (long long)ne[0],
                    (long long)ne[1], (long long)ne[2], (long long)ne[3]);
        kv_status st =
            put_sample(&list->scratch, s, data + gguf_get_tensor_offset(g, id), gguf_get_tensor_size(g, id), err);
        if (st != KV_OK) return st;
        add_item(list, "tensor ", gguf_get_tensor_name(g, id));
    }
    return KV_OK;
}

/* ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* n_parts: of the whole model; only wanted of the first part. */
static kv_status add_file(items *list, int *n_parts, const char *path, bool first, kv_error *err) {
    struct gguf_context *g = NULL;
    source s = {.path = path, .files = kv_files_real(), .fd = -1};
    char *resolved = realpath(path, NULL); /* kv_files follows no link, and models often lie behind one */
    kv_status st = resolved ? kv_border_gguf_open(&g, resolved, err)
                            : kv_fail(err, KV_IO, "cannot read %s: %s", path, strerror(errno));
    if (st != KV_OK) goto done;
    s.fd = s.files->open(s.files, resolved, KV_OPEN_READ);
    if (s.fd < 0) {
        st = kv_fail(err, KV_IO, "cannot read %s: %s", path, strerror(-s.fd));
        goto done;
    }
    if (first) {
        int64_t id = gguf_find_key(g, "split.count");
        *n_parts = id >= 0 && gguf_get_kv_type(g, id) == GGUF_TYPE_UINT16 ? gguf_get_val_u16(g, id) : 1;
        add_metadata(list, g);
    }
    st = add_tensors(list, g, &s, err);
done:
    if (s.fd >= 0) s.files->close(s.files, s.fd);
    gguf_free(g);
    free(resolved);
    return st;
}

kv_status kv_fingerprint_file(kv_hash *out, const char *path, kv_error *err) {
    items list = {0};
    int n_parts = 1;
    char prefix[PATH_MAX], part[PATH_MAX];
    *out = (kv_hash){0};
    kv_status st = add_file(&list, &n_parts, path, true, err);
    if (st == KV_OK && n_parts > PARTS_MOST)
        st = kv_fail(err, KV_INVALID, "%s is one of %d files; at most %d are taken", path, n_parts, PARTS_MOST);
    if (st == KV_OK && n_parts > 1 && llama_split_prefix(prefix, sizeof prefix, path, 0, n_parts) <= 0)
        st = kv_fail(err, KV_INVALID, "%s is not named as the first of %d files", path, n_parts);
    for (int i = 1; st == KV_OK && i < n_parts; i++) {
        llama_split_path(part, sizeof part, prefix, i, n_parts);
        st = add_file(&list, NULL, part, false, err);
    }
    if (st == KV_OK) *out = hash_items(&list);
    items_free(&list);
    return st;
}

/* ── models ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status describe_adapters(char **out, const kv_llama_model *m, kv_error *err) {
    kv_buf text = {0};
    kv_status st = KV_OK;
    for (int i = 0; i < m->n_loras && st == KV_OK; i++) {
        kv_hash h;
        char hex[33];
        if (m->lora_scales[i] == 0) continue; /* the engine leaves it out */
        st = kv_fingerprint_file(&h, m->lora_paths[i], err);
        kv_hash_hex(hex, h);
        kv_buf_addf(&text, "%s%s × %.9g", text.len ? ", " : "", hex, (double)m->lora_scales[i]);
    }
    if (text.len == 0) kv_buf_adds(&text, "none");
    *out = kv_buf_take(&text);
    kv_buf_free(&text);
    return st;
}

static void put_override(kv_buf *b, const struct llama_model_kv_override *o) {
    kv_buf_addf(b, "%s%.127s=", b->len ? ", " : "", o->key);
    switch (o->tag) {
    case LLAMA_KV_OVERRIDE_TYPE_INT: kv_buf_addf(b, "%lld", (long long)o->val_i64); break;
    case LLAMA_KV_OVERRIDE_TYPE_FLOAT: kv_buf_addf(b, "%.17g", o->val_f64); break;
    case LLAMA_KV_OVERRIDE_TYPE_BOOL: kv_buf_adds(b, o->val_bool ? "true" : "false"); break;
    case LLAMA_KV_OVERRIDE_TYPE_STR: kv_buf_addf(b, "\"%.127s\"", o->val_str); break;
    }
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(const struct llama_model_kv_override *const *)a)->key,
                  (*(const struct llama_model_kv_override *const *)b)->key);
}

static char *describe_overrides(const kv_llama_model *m) {
    const struct llama_model_kv_override **list = kv_alloc(((size_t)m->n_overrides + 1) * sizeof *list);
    size_t n = 0;
    for (int i = 0; i < m->n_overrides; i++) {
        const struct llama_model_kv_override *o = &m->overrides[i];
        if (counts(o->key) && kv_llama_override(m, o->key, o->tag) == o) list[n++] = o;
    }
    if (n > 0) qsort(list, n, sizeof *list, by_key);
    kv_buf text = {0};
    for (size_t i = 0; i < n; i++) put_override(&text, list[i]);
    if (text.len > OVERRIDES_MOST) {
        char hex[33];
        kv_hash_hex(hex, kv_hash_bytes(text.data, text.len));
        kv_buf_clear(&text);
        kv_buf_addf(&text, "%zu values, %s", n, hex);
    }
    if (text.len == 0) kv_buf_adds(&text, "none");
    free(list);
    return kv_buf_take(&text);
}

kv_status kv_llama_fingerprint(kv_fingerprint *out, const kv_model *base, kv_error *err) {
    const kv_llama_model *m = (const kv_llama_model *)base;
    kv_status st = kv_fingerprint_file(&out->weights, m->path, err);
    if (st == KV_OK) st = describe_adapters(&out->adapters, m, err);
    if (st == KV_OK) out->overrides = describe_overrides(m);
    else kv_fingerprint_free(out);
    return st;
}

void kv_fingerprint_free(kv_fingerprint *f) {
    free(f->adapters);
    free(f->overrides);
    *f = (kv_fingerprint){0};
}
