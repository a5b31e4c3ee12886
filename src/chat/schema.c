#include "chat/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/pattern.h"

#define MAX_COUNT      2000  /* repetitions that a grammar counts; the engine reads more as "any number" */
#define MAX_NODES      20000 /* schemas in one; each is looked up among those before it */
#define MAX_NAME       1024  /* bytes; the converter's regular expressions recurse once for each character of a name */
#define MAX_PROPERTIES 500   /* of one object; the converter recurses on them */
#define MAX_DEPTH      300   /* nodes inside each other, references followed: the converter recurses as we do */
#define ROOT_COPY      "kvasir-root"
#define ROOT_COPY_REF  "#/$defs/" ROOT_COPY

typedef struct walk {
    const json_t *original;
    json_t *root; /* owned; changed in place */
    const char *base;
    bool strict;
    json_t **seen; /* owned list: nodes that were walked, or are being walked. No walked node is freed before the end */
    size_t n_seen, cap_seen;
    json_t *kept; /* owned array: what was taken out. References lead into it, and it may be what is being walked */
    int depth;
    bool root_copied; /* $defs has a copy of the root */
    kv_error *err;
} walk;

typedef struct place {
    char path[160];
} place;

static place below(const place *at, const char *name) {
    place p;
    snprintf(p.path, sizeof p.path, "%.100s.%.48s", at->path, name);
    return p;
}

static place item(const place *at, const char *name, size_t i) {
    place p;
    snprintf(p.path, sizeof p.path, "%.100s.%.30s[%zu]", at->path, name, i);
    return p;
}

/* Removes a member, which lives on to the end of the walk. */
static void take_out(walk *w, json_t *s, const char *name) {
    json_t *value = json_object_get(s, name);
    if (!value) return;
    json_array_append(w->kept, value);
    json_object_del(s, name);
}

/* Not supported here: an error, or the keyword goes. `why` is empty or begins with a blank. */
static kv_status drop(walk *w, json_t *s, const char *keyword, const place *at, const char *why) {
    if (!w->strict) {
        take_out(w, s, keyword);
        return KV_OK;
    }
    return kv_fail_field(w->err, at->path,
                         "%s: '%s' is not supported%s; leave it out, or send \"strict\": false to have the rest of the "
                         "schema followed",
                         at->path, keyword, why);
}

/* Of the wrong type, whatever `strict` says: no converter could read it. */
static kv_status wrong(walk *w, const char *keyword, const place *at, const char *what) {
    return kv_fail_field(w->err, at->path, "%s: '%s' must be %s", at->path, keyword, what);
}

static kv_status walk_node(walk *w, json_t *s, const place *at);
static kv_status walk_body(walk *w, json_t *s, const place *at);

/* ── which keywords say something of which type ────────────────────────────────────────────────────────────────── */

enum { STRING = 1, NUMBER = 2, INTEGER = 4, OBJECT = 8, ARRAY = 16, OTHER = 32, ANY = 63 };

static const struct {
    const char *name;
    unsigned types;
} bounds[] = {
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMBER | INTEGER},
    {"maximum", NUMBER | INTEGER},
    {"exclusiveMinimum", NUMBER | INTEGER},
    {"exclusiveMaximum", NUMBER | INTEGER},
    {"multipleOf", NUMBER | INTEGER},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"patternProperties", OBJECT},
    {"propertyNames", OBJECT},
    {"minProperties", OBJECT},
    {"maxProperties", OBJECT},
    {"dependencies", OBJECT},
    {"dependentRequired", OBJECT},
    {"dependentSchemas", OBJECT},
    {"unevaluatedProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"additionalItems", ARRAY},
    {"unevaluatedItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"uniqueItems", ARRAY},
    {"contains", ARRAY},
    {"minContains", ARRAY},
    {"maxContains", ARRAY},
    {"anyOf", ANY},
    {"oneOf", ANY},
    {"allOf", ANY},
    {"not", ANY},
    {"if", ANY},
    {"then", ANY},
    {"else", ANY},
    {"$ref", ANY},
    {"$dynamicRef", ANY},
    {"$recursiveRef", ANY},
    {"const", ANY},
    {"enum", ANY},
    {"type", ANY},
};
#define N_BOUNDS (sizeof bounds / sizeof *bounds)

/* Never expressed, wherever they stand. */
static const char *const never[] = {"not",
                                    "if",
                                    "then",
                                    "else",
                                    "$dynamicRef",
                                    "contains",
                                    "minContains",
                                    "maxContains",
                                    "propertyNames",
                                    "dependencies",
                                    "multipleOf",
                                    "dependentRequired",
                                    "uniqueItems",
                                    "$recursiveRef",
                                    "minProperties",
                                    "maxProperties",
                                    "dependentSchemas",
                                    "patternProperties",
                                    "unevaluatedProperties",
                                    "unevaluatedItems",
                                    NULL};

static const struct {
    const char *name;
    unsigned bit;
} types[] = {
    {"string", STRING}, {"number", NUMBER}, {"integer", INTEGER}, {"object", OBJECT},
    {"array", ARRAY},   {"boolean", OTHER}, {"null", OTHER},
};

static unsigned type_bit(const json_t *name) {
    for (size_t i = 0; json_is_string(name) && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, json_string_value(name)) == 0) return types[i].bit;
    return 0;
}

static kv_status read_types(unsigned *out, walk *w, const json_t *s, const place *at) {
    *out = 0;
    const json_t *type = json_object_get(s, "type"), *one;
    size_t i;
    if (!type) return KV_OK;
    if (json_is_string(type)) *out = type_bit(type);
    json_array_foreach(type, i, one) {
        unsigned bit = type_bit(one);
        if (!bit) return wrong(w, "type", at, "the name of a JSON type, or an array of them");
        *out |= bit;
    }
    return *out ? KV_OK : wrong(w, "type", at, "the name of a JSON type, or an array of them");
}

/* What the value must be although the schema has no "type": the converter decides in this order. */
static unsigned implied_type(const json_t *s) {
    const json_t *additional = json_object_get(s, "additionalProperties");
    if (json_object_get(s, "properties") || (additional && !json_is_true(additional))) return OBJECT;
    if (json_object_get(s, "items") || json_object_get(s, "prefixItems")) return ARRAY;
    if (json_object_get(s, "pattern") || json_object_get(s, "minLength") || json_object_get(s, "maxLength") ||
        json_object_get(s, "format"))
        return STRING;
    return 0;
}

/* Does the keyword ask for nothing? */
static bool vacuous(const char *name, const json_t *value) {
    if (strcmp(name, "uniqueItems") == 0) return json_is_false(value);
    if (strncmp(name, "unevaluated", 11) == 0) return json_is_boolean(value); /* nothing is added anyway */
    if (strcmp(name, "multipleOf") == 0) return false;
    if (strcmp(name, "minContains") == 0 || strcmp(name, "maxContains") == 0) return true; /* without `contains` */
    if (strcmp(name, "minProperties") == 0) return json_is_integer(value) && json_integer_value(value) == 0;
    bool table = strcmp(name, "patternProperties") == 0 || strncmp(name, "depende", 7) == 0;
    return (table && json_object_size(value) == 0) || (strcmp(name, "propertyNames") == 0 && json_is_true(value));
}

/* multipleOf 1 says nothing new of an integer; properties can be counted where each is required or none can be added. */
static bool follows(const json_t *s, const char *name, const json_t *value, unsigned type) {
    if (strcmp(name, "multipleOf") == 0) return type == INTEGER && json_number_value(value) == 1;
    size_t n = json_object_size(json_object_get(s, "properties")),
           n_required = json_array_size(json_object_get(s, "required"));
    if (strcmp(name, "minProperties") == 0) return json_number_value(value) <= (double)n_required;
    const json_t *additional = json_object_get(s, "additionalProperties");
    if (strcmp(name, "maxProperties") == 0)
        return n > 0 && (!additional || json_is_false(additional)) && json_number_value(value) >= (double)n;
    /* every key is a text: {"type": "string"}, which generators write, says nothing */
    if (strcmp(name, "propertyNames") == 0)
        return json_object_size(value) == 1 && type_bit(json_object_get(value, "type")) == STRING;
    return false;
}

static kv_status drop_never(walk *w, json_t *s, unsigned type, const place *at) {
    for (int i = 0; never[i]; i++) {
        const json_t *value = json_object_get(s, never[i]);
        if (!value || vacuous(never[i], value) || follows(s, never[i], value, type)) continue;
        unsigned about = ANY;
        for (size_t k = 0; k < N_BOUNDS; k++)
            if (strcmp(bounds[k].name, never[i]) == 0) about = bounds[k].types;
        if (type && !(about & type)) continue; /* says nothing of such a value */
        if (!type && about != ANY && (json_object_get(s, "enum") || json_object_get(s, "const"))) continue;
        kv_status st = drop(w, s, never[i], at, "");
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

/* The converter reads only `keyword` and leaves out what stands beside it. */
static kv_status alone(walk *w, json_t *s, const char *keyword, const char *const *but, const place *at) {
    for (size_t i = 0; i < N_BOUNDS; i++) {
        const char *name = bounds[i].name;
        if (strcmp(name, keyword) == 0 || !json_object_get(s, name)) continue;
        bool fine = false;
        for (int k = 0; but && but[k]; k++) fine |= strcmp(but[k], name) == 0;
        char why[64];
        snprintf(why, sizeof why, " beside '%s'", keyword);
        kv_status st = fine ? KV_OK : drop(w, s, name, at, why);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

/* ── references ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* "#/a/b/0" → the node; NULL when there is none. */
static json_t *resolve(walk *w, const char *ref) {
    json_t *at = w->root;
    const char *p = ref + 1;
    while (at && *p == '/') {
        size_t n = strcspn(++p, "/");
        char *key = kv_strndup(p, n);
        int64_t index = strtoll(key, NULL, 10);
        if (json_is_array(at))
            at = index >= 0 && key[0] >= '0' && key[0] <= '9' ? json_array_get(at, (size_t)index) : NULL;
        else at = json_object_get(at, key);
        free(key);
        p += n;
    }
    return at;
}

/* The converter knows no reference to the whole: a copy of the root stands among the definitions. */
static void copy_root(walk *w) {
    if (w->root_copied) return;
    w->root_copied = true;
    json_t *defs = json_object_get(w->root, "$defs");
    if (!json_is_object(defs)) {
        take_out(w, w->root, "$defs");
        json_object_set_new(w->root, "$defs", defs = json_object());
    }
    take_out(w, defs, ROOT_COPY);
    json_t *copy = json_deep_copy(w->original);
    json_object_del(copy, "$defs");
    json_object_set_new(defs, ROOT_COPY, copy);
}

static kv_status walk_ref(walk *w, json_t *s, const place *at) {
    json_t *value = json_object_get(s, "$ref");
    if (!json_is_string(value)) return wrong(w, "$ref", at, "a string");
    if (strcmp(json_string_value(value), "#") == 0) {
        copy_root(w);
        json_object_set_new(s, "$ref", value = json_string(ROOT_COPY_REF));
    }
    const char *ref = json_string_value(value);
    if (strncmp(ref, "#/", 2) != 0 || strchr(ref, '~') || strchr(ref, '%'))
        return kv_fail_field(
            w->err, at->path,
            "%s: '$ref' to \"%.60s\" is not supported; a reference must lead into the same schema and begin "
            "with \"#/\"",
            at->path, ref);
    json_t *target = resolve(w, ref);
    if (!target)
        return kv_fail_field(w->err, at->path, "%s: '$ref' leads to \"%.60s\", which is not there", at->path, ref);
    kv_status st = alone(w, s, "$ref", NULL, at);
    if (st != KV_OK) return st;
    place there = {{0}};
    snprintf(there.path, sizeof there.path, "%.90s", w->base);
    for (const char *p = ref + 2; *p;) {
        size_t n = strcspn(p, "/");
        char key[49];
        snprintf(key, sizeof key, "%.*s", (int)(n < 48 ? n : 48), p);
        there = below(&there, key);
        p += n + (p[n] == '/');
    }
    return walk_node(w, target, &there);
}

/* ── combinations ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* In place: a boolean schema is not known to the converter. `false` stands for nothing that could be generated. */
static kv_status tidy_boolean(walk *w, json_t *parent, const char *key, size_t i, const json_t *value,
                              const place *at) {
    if (json_is_object(value)) return KV_OK;
    if (!json_is_true(value))
        return kv_fail_field(w->err, at->path,
                             json_is_false(value) ? "%s: a schema that is false, which nothing fits, is not supported"
                                                  : "%s: a schema must be an object",
                             at->path);
    if (key) json_object_set_new(parent, key, json_object());
    else json_array_set_new(parent, i, json_object());
    return KV_OK;
}

static kv_status walk_member(walk *w, json_t *parent, const char *key, const place *at) {
    kv_status st = tidy_boolean(w, parent, key, 0, json_object_get(parent, key), at);
    return st == KV_OK ? walk_node(w, json_object_get(parent, key), at) : st;
}

static kv_status walk_list(walk *w, json_t *s, const char *key, const place *at) {
    json_t *list = json_object_get(s, key);
    if (!json_is_array(list) || json_array_size(list) == 0)
        return wrong(w, key, at, "an array of schemas that is not empty");
    for (size_t i = 0; i < json_array_size(list); i++) {
        place p = item(at, key, i);
        kv_status st = tidy_boolean(w, list, NULL, i, json_array_get(list, i), &p);
        if (st == KV_OK) st = walk_node(w, json_array_get(list, i), &p);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

/* "type" may stand beside alternatives that each say what they are. */
static bool each_has_type(const json_t *list) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (!json_object_get(one, "type") && !json_object_get(one, "const") && !json_object_get(one, "enum") &&
            !json_object_get(one, "$ref"))
            return false;
    }
    return true;
}

static kv_status walk_alternatives(walk *w, json_t *s, const char *key, const place *at) {
    static const char *const type[] = {"type", NULL};
    kv_status st = alone(w, s, key, each_has_type(json_object_get(s, key)) ? type : NULL, at);
    return st == KV_OK ? walk_list(w, s, key, at) : st;
}

static const json_t *through_refs(walk *w, const json_t *s) {
    for (int i = 0; i < 32 && json_is_object(s); i++) {
        const char *ref = json_string_value(json_object_get(s, "$ref"));
        if (!ref) return s;
        if (ref[0] != '#') return NULL;
        s = strcmp(ref, "#") == 0 ? w->root : resolve(w, ref);
    }
    return NULL;
}

/* The converter merges objects; of other parts it takes what it finds. */
static kv_status check_merge(walk *w, json_t *s, const place *at) {
    const json_t *list = json_object_get(s, "allOf"), *part, *value;
    const char *name;
    size_t i;
    json_t *names = json_object();
    bool fine = true;
    json_array_foreach(list, i, part) {
        const json_t *o = through_refs(w, part);
        fine = fine && o && json_is_object(json_object_get(o, "properties")) && !json_object_get(o, "anyOf") &&
               !json_object_get(o, "oneOf") && !json_object_get(o, "allOf") && !json_object_get(o, "enum") &&
               !json_object_get(o, "const") && !json_is_object(json_object_get(o, "additionalProperties"));
        json_object_foreach((json_t *)(fine ? json_object_get(o, "properties") : NULL), name, value) {
            fine = fine && !json_object_get(names, name);
            json_object_set_new(names, name, json_true());
        }
    }
    json_decref(names);
    return fine ? KV_OK : drop(w, s, "allOf", at, " but for objects whose properties have different names");
}

static kv_status walk_all_of(walk *w, json_t *s, const place *at) {
    static const char *const type[] = {"type", NULL};
    json_t *list = json_object_get(s, "allOf");
    if (json_array_size(list) == 1 && json_is_object(json_array_get(list, 0))) { /* as if it stood here itself */
        kv_status st = alone(w, s, "allOf", type, at);
        if (st != KV_OK) return st;
        json_t *only = json_array_get(list, 0);
        if (json_object_get(only, "$ref")) take_out(w, s, "type");
        take_out(w, s, "allOf");
        json_array_append_new(w->kept, json_copy(s)); /* some of its members may be replaced */
        json_object_update(s, only);
        return walk_body(w, s, at);
    }
    kv_status st = alone(w, s, "allOf", type, at);
    if (st == KV_OK) st = check_merge(w, s, at);
    if (st != KV_OK || !json_object_get(s, "allOf")) return st;
    json_object_set_new(s, "type", json_string("object"));
    return walk_list(w, s, "allOf", at);
}

/* ── one type each ─────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_count(walk *w, json_t *s, const char *name, const place *at) {
    const json_t *value = json_object_get(s, name);
    int64_t n;
    if (!value) return KV_OK;
    if (!kv_json_as_int(&n, value, 0, INT64_MAX)) return wrong(w, name, at, "a whole number, 0 or more");
    if (n > MAX_COUNT) return drop(w, s, name, at, " above 2000, to which answers can be counted");
    json_object_set_new(s, name, json_integer(n)); /* the converter does not read 3.0 */
    return KV_OK;
}

static kv_status check_counts(walk *w, json_t *s, const char *min, const char *max, const place *at) {
    kv_status st = check_count(w, s, min, at);
    if (st == KV_OK) st = check_count(w, s, max, at);
    const json_t *a = json_object_get(s, min), *b = json_object_get(s, max);
    if (st == KV_OK && a && b && json_integer_value(a) > json_integer_value(b))
        return kv_fail_field(w->err, at->path, "%s: '%s' is more than '%s'", at->path, min, max);
    return st;
}

/* Formats that a pattern can say. What it says is a part of the format, as long as it is. */
static const struct {
    const char *format, *pattern;
} formats[] = {
    {"email", "^[a-z0-9]{1,20}(\\.[a-z0-9]{1,20})?@[a-z0-9]{1,20}(\\.[a-z0-9]{1,20})?\\.[a-z]{2,8}$"},
    {"hostname", "^[a-z0-9]{1,20}(\\.[a-z0-9]{1,20}){0,3}\\.[a-z]{2,8}$"},
    {"ipv4", "^(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}$"},
    {"ipv6", "^[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}$"},
    {"uri", "^https?://[a-z0-9]{1,20}(\\.[a-z0-9]{1,20}){0,3}\\.[a-z]{2,8}(/[A-Za-z0-9_-]{1,40}){0,8}/?$"},
    {"duration", "^P([1-9][0-9]?D)?T([1-9][0-9]?H)?[1-9][0-9]?M([1-9][0-9]?S)?$"},
    /* the converter's own date has a 30th of February */
    {"date", "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"},
    {"time", "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{3})?(Z|[+-](0[0-9]|1[0-2]):[0-5][0-9])$"},
    {"date-time", "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-"
                  "9]{3})?(Z|[+-](0["
                  "0-9]|1[0-2]):[0-5][0-9])$"},
};

static kv_status walk_string(walk *w, json_t *s, const place *at) {
    kv_status st = check_counts(w, s, "minLength", "maxLength", at);
    if (st != KV_OK) return st;
    const json_t *format = json_object_get(s, "format"), *pattern = json_object_get(s, "pattern");
    if (format && !json_is_string(format)) return wrong(w, "format", at, "a string");
    if (pattern && !json_is_string(pattern)) return wrong(w, "pattern", at, "a string");
    const char *text = json_string_value(pattern), *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].format, name) != 0) continue;
        if (pattern) return drop(w, s, "format", at, " beside 'pattern'");
        text = formats[i].pattern;
    }
    if (name && strncmp(name, "uuid", 4) == 0 && pattern) return drop(w, s, "format", at, " beside 'pattern'");
    if (!text) return KV_OK;
    kv_buf tidy = {0};
    kv_error why = {0};
    char what[200];
    st = kv_chat_pattern(&tidy, text, &why);
    if (st == KV_OK) json_object_set_new(s, "pattern", json_string(kv_buf_str(&tidy)));
    snprintf(what, sizeof what, " here: it %.180s", why.message);
    kv_buf_free(&tidy);
    if (st != KV_OK) return drop(w, s, "pattern", at, what);
    take_out(w, s, "format");
    char beside[40];
    snprintf(beside, sizeof beside, " beside '%s'", pattern ? "pattern" : "format");
    if (json_object_get(s, "minLength")) st = drop(w, s, "minLength", at, beside);
    if (st == KV_OK && json_object_get(s, "maxLength")) st = drop(w, s, "maxLength", at, beside);
    return st;
}

static kv_status check_number(walk *w, json_t *s, unsigned type, const place *at) {
    static const char *const limits[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    for (int i = 0; i < 4; i++) {
        const json_t *value = json_object_get(s, limits[i]);
        if (!value) continue;
        if (!json_is_number(value)) return wrong(w, limits[i], at, "a number");
        if (fabs(json_number_value(value)) > 9e15) return drop(w, s, limits[i], at, " beyond 9e15");
        kv_status st = KV_OK;
        if (type & NUMBER) st = drop(w, s, limits[i], at, " for a number that need not be whole");
        else if (i % 2 && json_object_get(s, limits[i - 1])) {
            char beside[40];
            snprintf(beside, sizeof beside, " beside '%s'", limits[i - 1]);
            st = drop(w, s, limits[i], at, beside);
        }
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static kv_status check_required(walk *w, json_t *s, const place *at) {
    json_t *required = json_object_get(s, "required");
    const json_t *properties = json_object_get(s, "properties"), *name;
    size_t i;
    if (!required) return KV_OK;
    if (!json_is_array(required)) return wrong(w, "required", at, "an array of names");
    json_array_foreach(required, i, name) {
        if (!json_is_string(name)) return wrong(w, "required", at, "an array of names");
        if (json_object_get(properties, json_string_value(name))) continue;
        char why[100];
        snprintf(why, sizeof why, " for \"%.40s\", which is not among 'properties'", json_string_value(name));
        return drop(w, s, "required", at, why);
    }
    return KV_OK;
}

static kv_status walk_object(walk *w, json_t *s, const place *at) {
    kv_status st = check_required(w, s, at);
    json_t *properties = json_object_get(s, "properties"), *additional = json_object_get(s, "additionalProperties");
    if (st != KV_OK) return st;
    if (properties && !json_is_object(properties)) return wrong(w, "properties", at, "an object of schemas");
    const char *name;
    json_t *value, *names = json_copy(properties); /* a reference to "…/properties" takes members out meanwhile */
    place inside = below(at, "properties");
    json_object_foreach(names, name, value) {
        place p = below(&inside, name);
        if (json_object_get(properties, name)) st = walk_member(w, properties, name, &p);
        if (st != KV_OK) break;
    }
    json_decref(names);
    if (st != KV_OK) return st;
    if (!additional || json_is_boolean(additional)) return KV_OK;
    place p = below(at, "additionalProperties");
    return walk_member(w, s, "additionalProperties", &p);
}

/* The converter's tuple has exactly its items. */
static kv_status walk_tuple(walk *w, json_t *s, const char *key, const place *at) {
    json_int_t n = (json_int_t)json_array_size(json_object_get(s, key));
    const json_t *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems");
    if ((min && json_integer_value(min) > n) || (max && json_integer_value(max) < n))
        return drop(w, s, min && json_integer_value(min) > n ? "minItems" : "maxItems", at,
                    " that is another number than that of the items listed");
    return walk_list(w, s, key, at);
}

static kv_status walk_array(walk *w, json_t *s, const place *at) {
    kv_status st = check_counts(w, s, "minItems", "maxItems", at);
    if (st != KV_OK) return st;
    json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    if (json_is_array(items)) return walk_tuple(w, s, "items", at);
    if (prefix) {
        if (!json_is_array(prefix)) return wrong(w, "prefixItems", at, "an array of schemas that is not empty");
        if (items && !json_is_boolean(items)) st = drop(w, s, "items", at, " beside 'prefixItems'");
        if (st != KV_OK) return st;
        take_out(w, s, "items");
        return walk_tuple(w, s, "prefixItems", at);
    }
    if (!items) return KV_OK;
    place p = below(at, "items");
    return walk_member(w, s, "items", &p);
}

/* ── one node ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_values(walk *w, const json_t *s, const place *at) {
    const json_t *values = json_object_get(s, "enum");
    if (!values || (json_is_array(values) && json_array_size(values) > 0)) return KV_OK;
    return wrong(w, "enum", at, "an array that is not empty");
}

static kv_status walk_typed(walk *w, json_t *s, unsigned type, const place *at) {
    kv_status st = KV_OK;
    if (type & STRING) st = walk_string(w, s, at);
    if (st == KV_OK && (type & (NUMBER | INTEGER))) st = check_number(w, s, type, at);
    if (st == KV_OK && (type & OBJECT)) st = walk_object(w, s, at);
    if (st == KV_OK && (type & ARRAY)) st = walk_array(w, s, at);
    return st;
}

/* Without a type the converter takes any value, so nothing may be said of some types only. */
static kv_status check_untyped(walk *w, json_t *s, const place *at) {
    for (size_t i = 0; i < N_BOUNDS; i++) {
        if (!json_object_get(s, bounds[i].name) || bounds[i].types == ANY) continue;
        if (strcmp(bounds[i].name, "additionalProperties") == 0 || strcmp(bounds[i].name, "format") == 0) continue;
        kv_status st = drop(w, s, bounds[i].name, at, " without 'type'");
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static kv_status walk_body(walk *w, json_t *s, const place *at) {
    unsigned type;
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(s, next, name, value) {
        if (json_is_null(value) && strcmp(name, "const") != 0 && strcmp(name, "default") != 0) json_object_del(s, name);
    }
    kv_status st = read_types(&type, w, s, at);
    if (st == KV_OK) st = drop_never(w, s, type ? type : implied_type(s), at);
    if (st != KV_OK) return st;
    if (json_object_get(s, "$ref")) return walk_ref(w, s, at);
    if (json_object_get(s, "oneOf")) return walk_alternatives(w, s, "oneOf", at);
    if (json_object_get(s, "anyOf")) return walk_alternatives(w, s, "anyOf", at);
    if (json_object_get(s, "allOf")) return walk_all_of(w, s, at);
    if (json_object_get(s, "const")) return KV_OK;
    if (json_object_get(s, "enum")) return check_values(w, s, at);
    if (!type) type = implied_type(s);
    return type ? walk_typed(w, s, type, at) : check_untyped(w, s, at);
}

/* Each node once: references may lead back, and what was rewritten must not be read again. */
static kv_status walk_node(walk *w, json_t *s, const place *at) {
    if (!json_is_object(s)) return kv_fail_field(w->err, at->path, "%s: a schema must be an object", at->path);
    for (size_t i = 0; i < w->n_seen; i++)
        if (w->seen[i] == s) return KV_OK;
    if (w->n_seen == MAX_NODES)
        return kv_fail_field(w->err, at->path, "%s: the schema has more than %d schemas in it", at->path, MAX_NODES);
    if (w->depth == MAX_DEPTH)
        return kv_fail_field(w->err, at->path, "%s: more than %d schemas inside each other", at->path, MAX_DEPTH);
    if (w->n_seen == w->cap_seen) {
        w->cap_seen = w->cap_seen ? 2 * w->cap_seen : 64;
        w->seen = kv_realloc(w->seen, w->cap_seen * sizeof(json_t *));
    }
    w->seen[w->n_seen++] = s;
    w->depth++;
    kv_status st = walk_body(w, s, at);
    w->depth--;
    return st;
}

/* ── costs ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

#define COST_OF_RULE 50 /* bytes that come with each name; fitted to times of 60 to 500 names of 4 and 203 bytes */

/* Of the properties that an object itself has: how many are optional, and the bytes of their names. */
static void add_optional(double *n, double *bytes, const json_t *s) {
    const json_t *required = json_object_get(s, "required"), *value;
    json_t *needed = json_object();
    const char *name;
    size_t i;
    json_array_foreach(required, i, value) {
        if (json_is_string(value)) json_object_set_new(needed, json_string_value(value), json_true());
    }
    json_object_foreach((json_t *)json_object_get(s, "properties"), name, value) {
        if (json_object_get(needed, name)) continue;
        *n += 1;
        *bytes += (double)strlen(name) + COST_OF_RULE;
    }
    json_decref(needed);
}

static double sum_costs(walk *w, const json_t *s) {
    const char *name;
    const json_t *value;
    double n = 0, bytes = 0, cost = 0;
    size_t i;
    if (json_is_object(s)) {
        add_optional(&n, &bytes, s);
        json_array_foreach(json_object_get(s, "allOf"), i, value) add_optional(&n, &bytes, through_refs(w, value));
        cost = n * bytes;
    }
    json_object_foreach((json_t *)s, name, value) cost += sum_costs(w, value);
    json_array_foreach(s, i, value) cost += sum_costs(w, value);
    return cost;
}

double kv_chat_schema_cost(const json_t *schema) {
    walk w = {.root = (json_t *)schema};
    return sum_costs(&w, schema);
}

/* ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Properties that the converter puts into one object: its own, and those of what it merges. */
static size_t count_properties(walk *w, const json_t *s) {
    size_t n = json_object_size(json_object_get(s, "properties")), i;
    const json_t *part;
    json_array_foreach(json_object_get(s, "allOf"), i, part) n +=
        json_object_size(json_object_get(through_refs(w, part), "properties"));
    return n;
}

static kv_status check_object(walk *w, const json_t *s) {
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    size_t n_ref = ref ? strlen(ref) : 0, n = count_properties(w, s);
    if (n_ref > MAX_NAME)
        return kv_fail_field(w->err, w->base, "%s: a '$ref' has %zu bytes; at most %d are possible", w->base, n_ref,
                             MAX_NAME);
    if (n > MAX_PROPERTIES)
        return kv_fail_field(w->err, w->base, "%s: an object has %zu properties; at most %d are possible", w->base, n,
                             MAX_PROPERTIES);
    if (w->n_seen++ == MAX_NODES)
        return kv_fail_field(w->err, w->base, "%s: the schema has more than %d objects in it", w->base, MAX_NODES);
    return KV_OK;
}

static kv_status check_size(walk *w, const json_t *s) {
    const char *name;
    json_t *value;
    size_t i;
    kv_status st = json_is_object(s) ? check_object(w, s) : KV_OK;
    json_object_foreach((json_t *)s, name, value) {
        if (st == KV_OK && strlen(name) > MAX_NAME)
            st = kv_fail_field(w->err, w->base, "%s: a name, \"%.40s…\", has %zu bytes; at most %d are possible",
                               w->base, name, strlen(name), MAX_NAME);
        if (st == KV_OK) st = check_size(w, value);
        if (st != KV_OK) return st;
    }
    json_array_foreach(s, i, value) {
        st = check_size(w, value);
        if (st != KV_OK) return st;
    }
    return st;
}

kv_status kv_chat_schema_size(const json_t *schema, const char *path, kv_error *err) {
    walk w = {.root = (json_t *)schema, .base = path, .err = err};
    kv_status st = check_size(&w, schema);
    if (st != KV_OK) return st;
    double cost = kv_chat_schema_cost(schema);
    if (cost <= KV_SCHEMA_MAX_COST) return KV_OK;
    return kv_fail_field(err, path,
                         "%s: its optional properties are too many, %.1f times of what is possible: make some "
                         "'required', shorten their names, or leave some out",
                         path, cost / KV_SCHEMA_MAX_COST);
}

kv_status kv_chat_schema(json_t **out, const json_t *schema, const char *path, bool strict, kv_error *err) {
    *out = NULL;
    kv_status sized = kv_chat_schema_size(schema, path, err);
    if (sized != KV_OK) return sized;
    walk w = {.original = schema, .root = json_deep_copy(schema), .base = path, .strict = strict, .err = err};
    w.kept = json_array();
    place at = {{0}};
    snprintf(at.path, sizeof at.path, "%.90s", path);
    kv_status st = walk_node(&w, w.root, &at);
    if (st == KV_OK) *out = json_incref(w.root);
    json_decref(w.root);
    json_decref(w.kept);
    free(w.seen);
    return st;
}
