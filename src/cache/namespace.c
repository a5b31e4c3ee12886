#include "cache/namespace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define ABOUT_FORMAT 1
#define WEIGHTS      "weights"
#define SCOPE_MAX    64 /* characters of a scope's name that are shown */
#define GROUPS       6  /* reasons that a report tells apart */

/* ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_part(kv_namespace *ns, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void add_part(kv_namespace *ns, const char *name, const char *fmt, ...) {
    char value[160];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    KV_CHECK(ns->n_parts < KV_NAMESPACE_PARTS_MAX && n >= 0 && (size_t)n < sizeof value);
    ns->part[ns->n_parts++] = (kv_namespace_part){name, kv_strdup(value)};
}

static void add_text(kv_namespace *ns, const char *name, const char *value) {
    KV_CHECK(ns->n_parts < KV_NAMESPACE_PARTS_MAX);
    ns->part[ns->n_parts++] = (kv_namespace_part){name, kv_strdup(value)};
}

static void add_number(kv_namespace *ns, const char *name, float value) {
    if (value == 0) add_part(ns, name, "the model's");
    else add_part(ns, name, "%.9g", (double)value);
}

static void add_yarn(kv_namespace *ns, const kv_rope *r) {
    kv_buf text = {0};
    const struct {
        const char *name;
        float value;
    } asked[] = {{"extrapolation", r->yarn_ext_factor},
                 {"attention", r->yarn_attn_factor},
                 {"beta fast", r->yarn_beta_fast},
                 {"beta slow", r->yarn_beta_slow}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (asked[i].value >= 0)
            kv_buf_addf(&text, "%s%s %.9g", text.len ? ", " : "", asked[i].name, (double)asked[i].value);
    if (r->yarn_orig_ctx > 0) kv_buf_addf(&text, "%soriginal context %d", text.len ? ", " : "", (int)r->yarn_orig_ctx);
    add_text(ns, "YaRN", text.len ? kv_buf_str(&text) : "the model's");
    kv_buf_free(&text);
}

void kv_namespace_init(kv_namespace *out, const kv_model_info *model, const kv_engine_info *engine,
                       const kv_fingerprint *fingerprint, int32_t block) {
    char hex[33];
    kv_hash_hex(hex, fingerprint->weights);
    *out = (kv_namespace){.model = kv_strdup(model->name ? model->name : ""),
                          .engine = kv_strdup(engine->version ? engine->version : "")};
    add_part(out, WEIGHTS, "%s", hex);
    add_text(out, "adapters", fingerprint->adapters ? fingerprint->adapters : "none");
    add_text(out, "metadata overrides", fingerprint->overrides ? fingerprint->overrides : "none");
    add_text(out, "K type", engine->type_k ? engine->type_k : "f16");
    add_text(out, "V type", engine->type_v ? engine->type_v : "f16");
    add_part(out, "flash attention", "%s", engine->flash_attn ? "on" : "off");
    add_part(out, "attention rotation", "%s", engine->attn_rot_disabled ? "disabled" : "automatic");
    add_part(out, "RoPE scaling", "%s", engine->rope.scaling ? engine->rope.scaling : "the model's");
    add_number(out, "RoPE base", engine->rope.freq_base);
    add_number(out, "RoPE scale", engine->rope.freq_scale);
    add_yarn(out, &engine->rope);
    /* the engine compares its whole pool with the length, whatever a single sequence may use */
    if (model->n_ctx_longrope > 0)
        add_part(out, "context length", "%s %d", engine->n_ctx > model->n_ctx_longrope ? "over" : "up to",
                 (int)model->n_ctx_longrope);
    add_part(out, "memory", "%s", kv_memory_kind_name(engine->memory));
    if (kv_memory_has_window(engine->memory))
        add_part(out, "window", "%d%s", (int)engine->n_window, engine->window_is_chunked ? ", chunked" : "");
    add_part(out, "block", "%d", (int)block);
    add_part(out, "state format", "%s, kvasir %d", engine->state_format ? engine->state_format : "unknown",
             KV_NAMESPACE_LAYOUT);
}

void kv_namespace_add(kv_namespace *ns, const char *name, const char *value) {
    add_text(ns, name, value);
}

void kv_namespace_free(kv_namespace *ns) {
    for (int i = 0; i < ns->n_parts; i++) free(ns->part[i].value);
    free(ns->model);
    free(ns->engine);
    *ns = (kv_namespace){0};
}

kv_hash kv_namespace_hash(const kv_namespace *ns) {
    kv_buf all = {0};
    kv_buf_adds(&all, "kvasir namespace");
    for (int i = 0; i < ns->n_parts; i++) {
        const kv_namespace_part *p = &ns->part[i];
        kv_buf_add(&all, p->name, strlen(p->name) + 1);
        kv_buf_add(&all, p->value, strlen(p->value) + 1);
    }
    kv_hash h = kv_hash_bytes(all.data, all.len);
    kv_buf_free(&all);
    return h;
}

kv_hash kv_namespace_root(kv_hash base, const char *scope) {
    kv_buf b = {0};
    kv_buf_add(&b, &base, sizeof base);
    kv_buf_adds(&b, scope && *scope ? scope : "default");
    kv_hash h = kv_hash_bytes(b.data, b.len);
    kv_buf_free(&b);
    return h;
}

/* ── about.json ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Names have no ':'; a divided scope is "<length>:<name><length>:…", its first name being the key's. NULL: neither. */
static json_t *scope_name(const char *scope, bool *divided) {
    const char *name = scope;
    size_t n = strlen(scope);
    *divided = strchr(scope, ':') != NULL;
    if (*divided) {
        char *end;
        if (*scope < '0' || *scope > '9') return json_null();
        unsigned long len = strtoul(scope, &end, 10);
        if (*end != ':' || len > strlen(end + 1)) return json_null();
        name = end + 1;
        n = len;
        if (memchr(name, ':', n)) return json_null();
    }
    if (n > SCOPE_MAX) return json_null();
    return n == 0 ? json_string("default") : kv_json_text(name, n);
}

static void scope_hash(char hex[33], const char *scope) {
    kv_hash_hex(hex, kv_hash_bytes(scope, strlen(scope)));
}

void kv_namespace_about(kv_buf *out, const kv_namespace *ns, const char *scope) {
    if (!scope || !*scope) scope = "default";
    bool divided;
    char base_hex[33], scope_hex[33];
    kv_hash_hex(base_hex, kv_namespace_hash(ns));
    scope_hash(scope_hex, scope);
    json_t *root = json_object(), *parts = json_object(), *name = scope_name(scope, &divided);
    KV_CHECK(root && parts);
    for (int i = 0; i < ns->n_parts; i++)
        json_object_set_new(parts, ns->part[i].name, kv_json_text0(ns->part[i].value));
    json_object_set_new(root, "format", json_integer(ABOUT_FORMAT));
    json_object_set_new(root, "model", kv_json_text0(ns->model));
    json_object_set_new(root, "engine", kv_json_text0(ns->engine));
    json_object_set_new(root, "namespace", json_string(base_hex));
    json_object_set_new(root, "parts", parts);
    json_object_set_new(root, "scope", name);
    json_object_set_new(root, "scope_hash", json_string(scope_hex));
    json_object_set_new(root, "divided", json_boolean(divided));
    kv_json_dump(out, root);
    json_decref(root);
}

char *kv_namespace_about_text(void *ns, const char *scope) {
    kv_buf text = {0};
    kv_namespace_about(&text, ns, scope);
    return kv_buf_take(&text);
}

/* What is read back may be anybody's: anything but an object is as nothing. */
static json_t *read_about(const char *about_json) {
    json_t *about = NULL;
    if (!about_json || kv_json_parse(&about, about_json, strlen(about_json), NULL) != KV_OK) return NULL;
    if (json_is_object(about)) return about;
    json_decref(about);
    return NULL;
}

static const char *text_of(const json_t *obj, const char *field) {
    const char *text = NULL;
    return kv_json_str(&text, obj, field, NULL) == KV_OK ? text : NULL;
}

/* ── what differs ──────────────────────────────────────────────────────────────────────────────────────────────── */

#define SHOW_MOST 120u /* bytes of one value */

/* For people, whoever wrote it: hashes shortened, no control characters, not endless. */
static void show(kv_buf *out, const char *value) {
    size_t n = strlen(value), limit = kv_utf8_complete(value, n < SHOW_MOST ? n : SHOW_MOST);
    for (size_t i = 0; i < limit;) {
        size_t hex = strspn(value + i, "0123456789abcdef");
        unsigned char c = (unsigned char)value[i];
        if (hex == 32) {
            kv_buf_add(out, value + i, 8);
            kv_buf_adds(out, "…");
            i += hex;
        } else if (hex > 0) {
            size_t take = hex < limit - i ? hex : limit - i;
            kv_buf_add(out, value + i, take);
            i += take;
        } else if (c == 0xC2 && (unsigned char)value[i + 1] < 0xA0) { /* U+0080 … U+009F */
            kv_buf_adds(out, "?");
            i += 2;
        } else {
            kv_buf_add(out, c < 0x20 || c == 0x7F ? "?" : value + i, 1);
            i++;
        }
    }
    if (limit < n) kv_buf_adds(out, "…");
}

/* NULL: that side does not have it. */
static void add_change(kv_buf *out, size_t start, const char *name, const char *from, const char *to) {
    if (out->len > start) kv_buf_adds(out, ", ");
    show(out, name);
    kv_buf_adds(out, " ");
    show(out, from ? from : "unknown");
    kv_buf_adds(out, " → ");
    show(out, to ? to : "none");
}

static const char *value_now(const kv_namespace *now, const char *name) {
    for (int i = 0; i < now->n_parts; i++)
        if (strcmp(now->part[i].name, name) == 0) return now->part[i].value;
    return NULL;
}

static bool same_weights(const kv_namespace *now, const json_t *about) {
    const char *stored = text_of(json_object_get(about, "parts"), WEIGHTS);
    return stored && strcmp(stored, value_now(now, WEIGHTS)) == 0;
}

static void add_diff(kv_buf *out, const kv_namespace *now, const json_t *about) {
    size_t start = out->len;
    const json_t *parts = json_object_get(about, "parts");
    for (int i = 0; i < now->n_parts; i++) {
        const kv_namespace_part *p = &now->part[i];
        const char *stored = text_of(parts, p->name);
        if (!stored && strcmp(p->name, KV_NAMESPACE_ENGINE) == 0) stored = text_of(about, "engine");
        if (!stored || strcmp(stored, p->value) != 0) add_change(out, start, p->name, stored, p->value);
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)parts, name, value) {
        if (value_now(now, name)) continue;
        const char *to = strcmp(name, KV_NAMESPACE_ENGINE) == 0 ? now->engine : NULL;
        add_change(out, start, name, json_is_string(value) ? json_string_value(value) : NULL, to);
    }
}

void kv_namespace_diff(kv_buf *out, const kv_namespace *now, const char *about_json) {
    json_t *about = read_about(about_json);
    const char *stored = about ? text_of(json_object_get(about, "parts"), WEIGHTS) : NULL;
    if (!stored) {
        kv_buf_adds(out, "settings that were not noted");
    } else if (same_weights(now, about)) {
        add_diff(out, now, about);
    } else {
        const char *name = text_of(about, "model");
        kv_buf_adds(out, "another model");
        if (name && *name) {
            kv_buf_adds(out, " (");
            show(out, name);
            kv_buf_adds(out, ")");
        }
    }
    json_decref(about);
}

/* ── report ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct group {
    kv_buf why;
    uint64_t bytes;
} group;

typedef struct report {
    const kv_namespace *now;
    char scope_hex[33]; /* "" = all */
    group group[GROUPS];
    int n;
    uint64_t bytes, bytes_other; /* other: of reasons that found no group */
} report;

static void count_namespace(void *ctx, kv_hash ns, const char *about_json, uint64_t bytes, uint64_t records) {
    (void)ns;
    report *r = ctx;
    json_t *about = records > 0 ? read_about(about_json) : NULL;
    kv_buf why = {0};
    if (!about || !same_weights(r->now, about)) goto done;
    const char *scope = text_of(about, "scope_hash");
    if (*r->scope_hex && (!scope || strcmp(scope, r->scope_hex) != 0)) goto done;
    add_diff(&why, r->now, about);
    if (why.len == 0) goto done;
    r->bytes += bytes;
    int i = 0;
    while (i < r->n && strcmp(kv_buf_str(&r->group[i].why), kv_buf_str(&why)) != 0) i++;
    if (i == GROUPS) {
        r->bytes_other += bytes;
        goto done;
    }
    if (i == r->n) {
        r->group[r->n++].why = why;
        why = (kv_buf){0};
    }
    r->group[i].bytes += bytes;
done:
    kv_buf_free(&why);
    json_decref(about);
}

static void add_bytes(kv_buf *out, uint64_t bytes) {
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int i = 0;
    for (; value >= 999.5 && i < 4; i++) value /= 1000;
    kv_buf_addf(out, "%.*f %s", i > 0 && value < 9.95 ? 1 : 0, value, unit[i]);
}

static int by_bytes(const void *a, const void *b) {
    uint64_t x = ((const group *)a)->bytes, y = ((const group *)b)->bytes;
    return (x < y) - (x > y);
}

static void write_report(kv_buf *out, report *r) {
    add_bytes(out, r->bytes);
    kv_buf_adds(out, " of this model's cache cannot be used: ");
    qsort(r->group, (size_t)r->n, sizeof *r->group, by_bytes);
    for (int i = 0; i < r->n; i++) {
        if (i > 0) kv_buf_adds(out, "; ");
        kv_buf_adds(out, kv_buf_str(&r->group[i].why));
        if (r->n == 1) continue;
        kv_buf_adds(out, " (");
        add_bytes(out, r->group[i].bytes);
        kv_buf_adds(out, ")");
    }
    if (r->bytes_other == 0) return;
    kv_buf_adds(out, "; other settings (");
    add_bytes(out, r->bytes_other);
    kv_buf_adds(out, ")");
}

kv_status kv_namespace_report(kv_buf *out, kv_store *s, const kv_namespace *now, const char *scope, kv_error *err) {
    report r = {.now = now};
    if (scope) scope_hash(r.scope_hex, *scope ? scope : "default");
    kv_status st = kv_store_namespaces(s, count_namespace, &r, err);
    if (st == KV_OK && r.n > 0) write_report(out, &r);
    for (int i = 0; i < r.n; i++) kv_buf_free(&r.group[i].why);
    return st;
}

/* ── elsewhere ─────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct finding {
    kv_namespace_others *out;
    const kv_namespace *now;
    char mine[33];
} finding;

static void note_other(void *ctx, kv_hash ns, const char *about_json, uint64_t bytes, uint64_t records) {
    (void)ns, (void)bytes;
    finding *f = ctx;
    kv_namespace_others *o = f->out;
    json_t *about = records > 0 && o->n < KV_NAMESPACE_OTHERS_MAX ? read_about(about_json) : NULL;
    const char *hex = about ? text_of(about, "namespace") : NULL;
    kv_hash base;
    if (!hex || !kv_hash_from_hex(&base, hex) || strcmp(hex, f->mine) == 0) goto done;
    for (int i = 0; i < o->n; i++) /* another scope of it */
        if (kv_hash_equal(o->list[i].base, base)) goto done;
    kv_buf why = {0};
    kv_namespace_diff(&why, f->now, about_json);
    o->list = kv_realloc(o->list, (size_t)(o->n + 1) * sizeof *o->list);
    o->list[o->n++] = (kv_namespace_other){base, kv_buf_take(&why)};
done:
    json_decref(about);
}

kv_status kv_namespace_find_others(kv_namespace_others *out, kv_store *s, const kv_namespace *now, kv_error *err) {
    finding f = {.out = out, .now = now};
    kv_namespace_others_free(out);
    kv_hash_hex(f.mine, kv_namespace_hash(now));
    return kv_store_namespaces(s, note_other, &f, err);
}

void kv_namespace_others_free(kv_namespace_others *o) {
    for (int i = 0; i < o->n; i++) free(o->list[i].why);
    free(o->list);
    *o = (kv_namespace_others){0};
}
