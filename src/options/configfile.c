/* The --config format: see options.h. Data from outside: every line is checked, none is trusted to end. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "options/table.h"

static bool blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* [*s, *e) without blanks at both ends. */
static void trim(const char **s, const char **e) {
    while (*s < *e && blank(**s)) (*s)++;
    while (*e > *s && blank((*e)[-1])) (*e)--;
}

/* `"…"` at s: the JSON string's end (behind its closing quote), or NULL. */
static const char *quoted_end(const char *s, const char *e) {
    for (const char *p = s + 1; p < e; p++) {
        if (*p == '\\') p++;
        else if (*p == '"') return p + 1;
    }
    return NULL;
}

static kv_status read_quoted(kv_buf *out, const char *label, const char *s, const char *e, kv_error *err) {
    const char *end = quoted_end(s, e), *rest = end;
    if (!end) return kv_fail_field(err, label, "%s: a quote is not closed", label);
    while (rest < e && blank(*rest)) rest++;
    if (rest < e && *rest != '#') return kv_fail_field(err, label, "%s: text after the closing quote", label);
    json_t *value = NULL;
    kv_error inner = {0};
    kv_status st = kv_json_parse(&value, s, (size_t)(end - s), &inner);
    if (st != KV_OK) st = kv_fail_field(err, label, "%s: bad text in quotes: %s", label, inner.message);
    else if (memchr(json_string_value(value), 0, json_string_length(value)))
        st = kv_fail_field(err, label, "%s: bad text in quotes: a NUL character", label);
    else kv_buf_adds(out, json_string_value(value));
    json_decref(value);
    return st;
}

/* One line [s, e). */
static kv_status read_line(const char *path, int line, const char *s, const char *e, kv_config_set set, void *ctx,
                           kv_error *err) {
    char label[96];
    trim(&s, &e);
    if (s == e || *s == '#') return KV_OK;
    snprintf(label, sizeof label, "%.64s:%d", path, line);
    const char *eq = memchr(s, '=', (size_t)(e - s));
    if (*s == '[' || !eq || eq == s)
        return kv_fail_field(err, label, "%s: takes lines of the form \"name = value\"", label);
    const char *name_end = eq, *v = eq + 1;
    trim(&s, &name_end);
    trim(&v, &e);
    char name[64];
    if (name_end - s >= (ptrdiff_t)sizeof name)
        return kv_fail_field(err, label, "%s: no option has so long a name", label);
    memcpy(name, s, (size_t)(name_end - s));
    name[name_end - s] = 0;

    kv_buf value = {0};
    kv_status st = KV_OK;
    if (v < e && *v == '"') st = read_quoted(&value, label, v, e, err);
    else {
        const char *end = v;
        while (end < e && !(*end == '#' && (end == v || blank(end[-1])))) end++;
        trim(&v, &end);
        kv_buf_add(&value, v, (size_t)(end - v));
    }
    if (st == KV_OK) st = set(ctx, label, name, kv_buf_str(&value), err);
    kv_buf_free(&value);
    return st;
}

kv_status kv_config_parse(const char *path, const char *text, size_t n, kv_config_set set, void *ctx, kv_error *err) {
    if (memchr(text, 0, n)) return kv_fail(err, KV_INVALID, "%s: is not a text file", path);
    const char *end = text + n;
    int line = 0;
    while (text < end) {
        const char *e = memchr(text, '\n', (size_t)(end - text));
        if (!e) e = end;
        kv_status st = read_line(path, ++line, text, e, set, ctx, err);
        if (st != KV_OK) return st;
        text = e < end ? e + 1 : end;
    }
    return KV_OK;
}

void kv_config_quote(kv_buf *out, const char *value) {
    size_t n = strlen(value);
    bool quote = n == 0 || blank(value[0]) || blank(value[n - 1]) || value[0] == '"' || strchr(value, '#');
    for (size_t i = 0; !quote && i < n; i++) quote = value[i] == '\n' || value[i] == '\r';
    if (quote) kv_json_quote(out, value, n);
    else kv_buf_adds(out, value);
}
