/* Text to field and back. Every value that enters, from whatever source, enters through kv_opt_set. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "options/table.h"

/* Longest value of an option: a chat template given on the command line is the largest that makes sense. */
#define VALUE_MAX (1u << 20)

/* ── lists ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_list_free(kv_str_list *l) {
    for (int i = 0; i < l->n; i++) free(l->item[i]);
    *l = (kv_str_list){0};
}

void kv_list_add(kv_str_list *l, const char *s, size_t n) {
    KV_CHECK(l->n < KV_OPTIONS_MAX_LIST);
    l->item[l->n++] = kv_strndup(s, n);
}

const char *kv_opt_list_item(const char *list, int i, size_t *n) {
    while (list && *list) {
        *n = strcspn(list, ",");
        if (i-- == 0) return list;
        list += *n + (list[*n] == ',');
    }
    return NULL;
}

bool kv_opt_list_has(const char *list, const char *name, size_t n) {
    size_t len;
    const char *item;
    for (int i = 0; (item = kv_opt_list_item(list, i, &len)); i++) {
        if (len > 0 && item[len - 1] == '*') {
            if (n >= len - 1 && memcmp(item, name, len - 1) == 0) return true;
        } else if (len == n && memcmp(item, name, n) == 0) {
            return true;
        }
    }
    return false;
}

const char *kv_opt_name(const char *names, char *buf, size_t cap) {
    size_t n;
    const char *item;
    for (int i = 0; (item = kv_opt_list_item(names, i, &n)); i++) {
        if (n < 3 || item[1] != '-') continue;
        if (n - 2 >= cap) n = cap + 1;
        memcpy(buf, item + 2, n - 2);
        buf[n - 2] = 0;
        return buf;
    }
    buf[0] = 0;
    return buf;
}

static const kv_opt *find(const char *name, size_t n, bool *negated) {
    for (int i = 0; i < kv_opt_count; i++) {
        *negated = kv_opt_list_has(kv_opt_table[i].neg, name, n);
        if (*negated || kv_opt_list_has(kv_opt_table[i].names, name, n)) return &kv_opt_table[i];
    }
    return NULL;
}

const kv_opt *kv_opt_find(const char *name, size_t n, bool *negated) {
    char copy[64];
    *negated = false;
    if (n < 2 || n >= sizeof copy || name[0] != '-') return NULL;
    memcpy(copy, name, n);
    if (name[1] == '-') { /* llama-server takes --ctx_size too */
        for (size_t i = 2; i < n; i++) {
            if (copy[i] == '_') copy[i] = '-';
        }
    }
    return find(copy, n, negated);
}

const kv_opt *kv_opt_find_bare(const char *name, size_t n, bool *negated) {
    char copy[64] = "--";
    *negated = false;
    if (n == 0 || n + 2 >= sizeof copy) return NULL;
    memcpy(copy + 2, name, n);
    return kv_opt_find(copy, n + 2, negated);
}

/* ── text → field ──────────────────────────────────────────────────────────────────────────────────────────────── */

bool kv_opt_truth(const char *s, bool *value) {
    static const char *const yes[] = {"on", "enabled", "true", "yes", "1"};
    static const char *const no[] = {"off", "disabled", "false", "no", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        if (strcasecmp(s, yes[i]) == 0) return *value = true, true;
        if (strcasecmp(s, no[i]) == 0) return *value = false, true;
    }
    return false;
}

/* A number that stands for another one, since llama-server takes it so: not worth telling. */
static bool is_numeral(const char *word) {
    return word[0] == '-' || isdigit((unsigned char)word[0]);
}

/* "a, b, c"; NULL = nothing. */
static void add_words(kv_buf *out, const char *words) {
    size_t n;
    const char *item;
    for (int i = 0; (item = kv_opt_list_item(words, i, &n)); i++)
        kv_buf_addf(out, "%s%.*s", i ? ", " : "", (int)n, item);
}

void kv_opt_takes(kv_buf *out, const kv_opt *opt) {
    size_t n;
    const char *item;
    switch (opt->kind) {
    case OPT_BOOL: kv_buf_adds(out, "on or off"); return;
    case OPT_TRI: kv_buf_adds(out, "on, off or auto"); return;
    case OPT_TEXT: kv_buf_adds(out, "a text"); return;
    case OPT_LIST:
        if (!opt->words) kv_buf_addf(out, "up to %d texts", KV_OPTIONS_MAX_LIST);
        else kv_buf_adds(out, "one or more, with commas between, of ");
        add_words(out, opt->words);
        return;
    case OPT_PRESET: kv_buf_adds(out, "no value"); return;
    case OPT_WORD:
    case OPT_LOAD:
        kv_buf_adds(out, "one of ");
        add_words(out, opt->words);
        return;
    default: break;
    }
    kv_buf words = {0};
    for (int i = 0; (item = kv_opt_list_item(opt->words, i, &n)); i++)
        if (!is_numeral(item)) kv_buf_addf(&words, "%s%.*s", words.len ? ", " : "", (int)strcspn(item, "="), item);
    if (words.len) kv_buf_addf(out, "%s or ", kv_buf_str(&words));
    kv_buf_free(&words);
    if (opt->flags & OPT_BYTES) kv_buf_adds(out, "bytes, as a whole number with or without K, M, G or T: ");
    if (opt->flags & OPT_SECONDS) kv_buf_adds(out, "seconds, as a whole number with or without s, m, h or d: ");
    bool whole = opt->kind != OPT_FLOAT && opt->kind != OPT_DOUBLE;
    kv_buf_addf(out, "a %snumber from %.15g to %.15g", whole ? "whole " : "", opt->min, opt->max);
}

static kv_status refuse(kv_error *err, const kv_opt *opt, const char *label, const char *value) {
    kv_buf takes = {0};
    kv_opt_takes(&takes, opt);
    size_t n = strlen(value);
    bool shown = n <= 100 && kv_utf8_valid(value, n) && !(opt->flags & OPT_SECRET);
    for (size_t i = 0; shown && i < n; i++) shown = (unsigned char)value[i] >= 0x20;
    kv_status st =
        shown ? kv_fail_field(err, label, "%s: got \"%s\", takes %s", label, value, kv_buf_str(&takes))
              : kv_fail_field(err, label, "%s: takes %s, not what was given (%zu bytes)", label, kv_buf_str(&takes), n);
    kv_buf_free(&takes);
    return st;
}

typedef struct unit {
    char letter;
    double factor;
} unit;

/* The units of an option, the largest first, ended by factor 0. */
static const unit *units_of(const kv_opt *opt) {
    static const unit bytes[] = {{'T', 1099511627776.0}, {'G', 1073741824.0}, {'M', 1048576.0}, {'K', 1024.0}, {0, 0}};
    static const unit seconds[] = {{'d', 86400.0}, {'h', 3600.0}, {'m', 60.0}, {'s', 1.0}, {0, 0}};
    return opt->flags & OPT_BYTES ? bytes : opt->flags & OPT_SECONDS ? seconds : NULL;
}

/* Digits and a unit, "20G" or "20g". */
static bool parse_with_unit(double *out, const kv_opt *opt, const char *value) {
    const unit *u = units_of(opt);
    size_t n = strspn(value, "0123456789");
    if (!u || n == 0 || n > 15 || !value[n]) return false;
    const char *rest = value + n + 1; /* "20GB" and "20GiB" are the same */
    bool plain = !*rest || (opt->flags & OPT_BYTES && (strcasecmp(rest, "b") == 0 || strcasecmp(rest, "ib") == 0));
    if (!plain) return false;
    while (u->factor > 0 && tolower((unsigned char)u->letter) != tolower((unsigned char)value[n])) u++;
    *out = strtod(value, NULL) * u->factor; /* strtod ends at the letter; no unit is e or x */
    return u->factor > 0 && *out >= opt->min && *out <= opt->max;
}

/* A named number ("auto=-1") or one in the range. A name's number is taken as a number too. */
static bool parse_number(double *out, const kv_opt *opt, const char *value) {
    size_t n;
    const char *item;
    char *end;
    for (int i = 0; (item = kv_opt_list_item(opt->words, i, &n)); i++) {
        size_t word = strcspn(item, "=");
        double named = strtod(item + word + 1, NULL);
        if (strlen(value) == word && strncasecmp(value, item, word) == 0) return *out = named, true;
        double given = strtod(value, &end);
        if (end != value && *end == 0 && given == named) return *out = named, true;
    }
    if (parse_with_unit(out, opt, value)) return true;
    if (value[0] == 0 || strspn(value, "+-.0123456789eE") != strlen(value)) return false; /* no hex, inf, nan, blanks */
    if (opt->kind == OPT_FLOAT || opt->kind == OPT_DOUBLE) {
        *out = strtod(value, &end);
    } else {
        errno = 0;
        long long whole = strtoll(value, &end, 10);
        if (errno) return false;
        *out = (double)whole; /* exact: every range ends below 2^53 */
        if (*out > opt->max) return false;
    }
    return end != value && *end == 0 && isfinite(*out) && *out >= opt->min && *out <= opt->max;
}

static void store_number(void *at, kv_opt_kind kind, double v) {
    switch (kind) {
    case OPT_INT64: *(int64_t *)at = (int64_t)v; return;
    case OPT_INT32: *(int32_t *)at = (int32_t)v; return;
    case OPT_SEED: *(uint32_t *)at = v < 0 ? KV_SEED_RANDOM : (uint32_t)v; return;
    case OPT_FLOAT: *(float *)at = (float)v; return;
    default: *(double *)at = v; return;
    }
}

static double load_number(const void *at, kv_opt_kind kind) {
    switch (kind) {
    case OPT_INT64: return (double)*(const int64_t *)at;
    case OPT_INT32: return *(const int32_t *)at;
    case OPT_SEED: return *(const uint32_t *)at == KV_SEED_RANDOM ? -1.0 : (double)*(const uint32_t *)at;
    case OPT_FLOAT: return *(const float *)at;
    default: return *(const double *)at;
    }
}

static bool is_word(const kv_opt *opt, const char *value) {
    return !strchr(value, ',') && !strchr(value, '*') && kv_opt_list_has(opt->words, value, strlen(value));
}

static void store_text(char **at, const char *value) {
    free(*at);
    *at = value[0] ? kv_strdup(value) : NULL;
}

/* One CSV row: a,"b,c","say ""x""". Items that are empty are left out. */
static kv_status add_items(kv_str_list *list, const kv_opt *opt, const char *label, const char *value, kv_error *err) {
    kv_buf item = {0};
    kv_status st = KV_OK;
    const char *p = value;
    while (st == KV_OK) {
        kv_buf_clear(&item);
        bool quoted = !(opt->flags & OPT_NO_SPLIT) && *p == '"', open = quoted;
        if (quoted) p++;
        for (; *p && (open || *p != ',' || (opt->flags & OPT_NO_SPLIT)); p++) {
            if (open && *p == '"') {
                if (p[1] == '"') p++;
                else {
                    open = false;
                    continue;
                }
            }
            kv_buf_add(&item, p, 1);
        }
        if (open) st = kv_fail_field(err, label, "%s: a quote is not closed", label);
        else if (item.len > 0) {
            if (list->n == KV_OPTIONS_MAX_LIST)
                st = kv_fail_field(err, label, "%s: more than %d values", label, list->n);
            else if (opt->words && !is_word(opt, item.data)) st = refuse(err, opt, label, item.data);
            else kv_list_add(list, item.data, item.len);
        }
        if (*p == 0) break;
        p++;
    }
    kv_buf_free(&item);
    return st;
}

void kv_opt_format_item(kv_buf *out, const kv_opt *opt, const char *item) {
    bool quote = !(opt->flags & OPT_NO_SPLIT) && (item[0] == '"' || strchr(item, ','));
    if (!quote) {
        kv_buf_adds(out, item);
        return;
    }
    kv_buf_adds(out, "\"");
    for (const char *p = item; *p; p++) {
        if (*p == '"') kv_buf_adds(out, "\"");
        kv_buf_add(out, p, 1);
    }
    kv_buf_adds(out, "\"");
}

static kv_status set_preset(kv_options *o, const kv_opt *opt, const char *label, kv_error *err) {
    kv_status st = KV_OK;
    for (const char *p = opt->words; *p && st == KV_OK;) {
        bool negated;
        char value[128];
        size_t name = strcspn(p, "="), n = strcspn(p, ";");
        snprintf(value, sizeof value, "%.*s", (int)(n - name - 1), p + name + 1);
        st = kv_opt_set(o, kv_opt_find_bare(p, name, &negated), label, value, true, err);
        p += n + (p[n] == ';');
    }
    return st;
}

kv_status kv_opt_set(kv_options *o, const kv_opt *opt, const char *label, const char *value, bool fresh,
                     kv_error *err) {
    void *at = (char *)o + opt->at;
    bool truth;
    double number;
    if (strlen(value) > VALUE_MAX) return refuse(err, opt, label, value);
    switch (opt->kind) {
    case OPT_BOOL:
        if (!kv_opt_truth(value, &truth)) return refuse(err, opt, label, value);
        *(bool *)at = truth;
        return KV_OK;
    case OPT_TRI:
        if (strcasecmp(value, "auto") == 0 || strcmp(value, "-1") == 0) *(int *)at = -1;
        else if (kv_opt_truth(value, &truth)) *(int *)at = truth;
        else return refuse(err, opt, label, value);
        return KV_OK;
    case OPT_TEXT: store_text(at, value); return KV_OK;
    case OPT_WORD:
        if (!is_word(opt, value)) return refuse(err, opt, label, value);
        store_text(at, value);
        return KV_OK;
    case OPT_LIST:
        if (fresh) kv_list_free(at);
        return add_items(at, opt, label, value, err);
    case OPT_LOAD:
        if (!kv_opt_list_has(opt->words, value, strlen(value))) return refuse(err, opt, label, value);
        o->mlock = strstr(value, "mlock") != NULL;
        o->mmap = strstr(value, "mmap") != NULL || strcmp(value, "auto") == 0;
        return KV_OK;
    case OPT_PRESET: return set_preset(o, opt, label, err);
    default:
        if (!parse_number(&number, opt, value)) return refuse(err, opt, label, value);
        store_number(at, opt->kind, number);
        return KV_OK;
    }
}

/* ── field → text ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* The shortest decimal that reads back as the same number. */
static void format_real(kv_buf *out, double v, bool single) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (single ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v) break;
    }
    kv_buf_adds(out, text);
}

void kv_opt_format(kv_buf *out, const kv_options *o, const kv_opt *opt) {
    const void *at = (const char *)o + opt->at;
    size_t n;
    const char *item;
    switch (opt->kind) {
    case OPT_BOOL: kv_buf_adds(out, *(const bool *)at ? "on" : "off"); return;
    case OPT_TRI: kv_buf_adds(out, *(const int *)at < 0 ? "auto" : *(const int *)at ? "on" : "off"); return;
    case OPT_TEXT:
    case OPT_WORD: kv_buf_adds(out, *(char *const *)at ? *(char *const *)at : ""); return;
    case OPT_LIST:
        for (int i = 0; i < ((const kv_str_list *)at)->n; i++) {
            if (i) kv_buf_adds(out, ",");
            kv_opt_format_item(out, opt, ((const kv_str_list *)at)->item[i]);
        }
        return;
    case OPT_PRESET:
    case OPT_LOAD: return;
    default: break;
    }
    double v = load_number(at, opt->kind);
    for (int i = 0; (item = kv_opt_list_item(opt->words, i, &n)); i++) {
        size_t word = strcspn(item, "=");
        if (!is_numeral(item) && strtod(item + word + 1, NULL) == v) {
            kv_buf_add(out, item, word);
            return;
        }
    }
    for (const unit *u = units_of(opt); u && u->factor > 0 && v > 0; u++)
        if (fmod(v, u->factor) == 0) {
            kv_buf_addf(out, "%.0f%c", v / u->factor, u->letter);
            return;
        }
    if (opt->kind == OPT_FLOAT || opt->kind == OPT_DOUBLE) format_real(out, v, opt->kind == OPT_FLOAT);
    else kv_buf_addf(out, "%.0f", v);
}

bool kv_opt_equal(const kv_options *a, const kv_options *b, const kv_opt *opt) {
    if (opt->kind == OPT_LIST) {
        const kv_str_list *x = (const void *)((const char *)a + opt->at),
                          *y = (const void *)((const char *)b + opt->at);
        bool same = x->n == y->n;
        for (int i = 0; same && i < x->n; i++) same = strcmp(x->item[i], y->item[i]) == 0;
        return same;
    }
    kv_buf x = {0}, y = {0};
    kv_opt_format(&x, a, opt);
    kv_opt_format(&y, b, opt);
    bool same = strcmp(kv_buf_str(&x), kv_buf_str(&y)) == 0;
    kv_buf_free(&x);
    kv_buf_free(&y);
    return same;
}
