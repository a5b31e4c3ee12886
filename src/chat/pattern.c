#include "chat/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define LAST_CODE_POINT 0x10FFFF
#define MAX_RANGES      256 /* in one class; the widest of ours, \S, has 13 */
#define MAX_DEPTH       50  /* groups inside each other; the converter's own limit is 100 */

typedef struct range {
    uint32_t from, to; /* inclusive */
} range;

typedef struct set {
    range r[MAX_RANGES];
    int n;
} set;

typedef struct reader {
    const char *text, *p;
    int depth;
    kv_error *err;
} reader;

static kv_status fail(const reader *s, const char *what) {
    return kv_fail(s->err, KV_INVALID, "%s at character %d", what, (int)(s->p - s->text) + 1);
}

/* ── sets of characters ────────────────────────────────────────────────────────────────────────────────────────── */

static bool add_range(set *s, uint32_t from, uint32_t to) {
    if (s->n == MAX_RANGES) return false;
    s->r[s->n++] = (range){from, to};
    return true;
}

static int by_start(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Sorted, without overlaps. */
static void normalise(set *s) {
    qsort(s->r, (size_t)s->n, sizeof *s->r, by_start);
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (n && s->r[i].from <= s->r[n - 1].to + 1) {
            if (s->r[i].to > s->r[n - 1].to) s->r[n - 1].to = s->r[i].to;
        } else {
            s->r[n++] = s->r[i];
        }
    }
    s->n = n;
}

/* Of a normalised one; false when it would not fit. */
static bool complement(set *s) {
    set out = {.n = 0};
    uint32_t next = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->r[i].from > next && !add_range(&out, next, s->r[i].from - 1)) return false;
        next = s->r[i].to + 1;
    }
    if (next <= LAST_CODE_POINT && !add_range(&out, next, LAST_CODE_POINT)) return false;
    *s = out;
    return true;
}

static bool has(const set *s, uint32_t c) {
    for (int i = 0; i < s->n; i++)
        if (c >= s->r[i].from && c <= s->r[i].to) return true;
    return false;
}

/* What stands in a JSON string as itself. */
static bool keep_safe(set *s) {
    static const range unsafe[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}, {0xD800, 0xDFFF}};
    normalise(s);
    if (!complement(s)) return false;
    for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++)
        if (!add_range(s, unsafe[i].from, unsafe[i].to)) return false;
    normalise(s);
    return complement(s);
}

static const range digits[] = {{'0', '9'}};
static const range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const range space[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static bool add_list(set *s, const range *list, size_t n, bool negated) {
    set part = {.n = 0};
    for (size_t i = 0; i < n; i++)
        if (!add_range(&part, list[i].from, list[i].to)) return false;
    if (negated && !complement(&part)) return false;
    for (int i = 0; i < part.n; i++)
        if (!add_range(s, part.r[i].from, part.r[i].to)) return false;
    return true;
}
#define ADD_LIST(s, list, negated) add_list(s, list, sizeof list / sizeof *list, negated)

/* \d \D \w \W \s \S; false for any other letter. */
static bool add_class_escape(set *s, char letter) {
    switch (letter) {
    case 'd': return ADD_LIST(s, digits, false);
    case 'D': return ADD_LIST(s, digits, true);
    case 'w': return ADD_LIST(s, word, false);
    case 'W': return ADD_LIST(s, word, true);
    case 's': return ADD_LIST(s, space, false);
    case 'S': return ADD_LIST(s, space, true);
    default: return false;
    }
}

/* ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* One character of a class, in an escape that the converter hands on. */
static void write_member(kv_buf *out, uint32_t c) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == ' ' || c == '_';
    if (plain) kv_buf_addf(out, "%c", (char)c);
    else if (c < 0x80) kv_buf_addf(out, "\\x%02X", (unsigned)c);
    else if (c < 0x10000) kv_buf_addf(out, "\\u%04X", (unsigned)c);
    else kv_buf_addf(out, "\\U%08X", (unsigned)c);
}

static void write_class(kv_buf *out, const set *s) {
    kv_buf_adds(out, "[");
    for (int i = 0; i < s->n; i++) {
        write_member(out, s->r[i].from);
        if (s->r[i].to == s->r[i].from) continue;
        kv_buf_adds(out, "-");
        write_member(out, s->r[i].to);
    }
    kv_buf_adds(out, "]");
}

/* The characters that JSON writes with a backslash, as the converter must be told to write them. */
static const struct {
    uint32_t c;
    const char *written;
} escaped[] = {
    {'"', "\\\\\""}, {'\\', "\\\\\\\\"}, {'\n', "\\\\n"}, {'\r', "\\\\r"}, {'\t', "\\\\t"}, {'\f', "\\\\f"},
};
#define N_ESCAPED (sizeof escaped / sizeof *escaped)

/* A class that may hold characters that JSON escapes; only those that were meant (not by a negation) are kept. */
static bool write_set(kv_buf *out, set *s, bool keep_escaped) {
    kv_buf alternatives = {0};
    normalise(s);
    for (size_t i = 0; i < N_ESCAPED && keep_escaped; i++)
        if (has(s, escaped[i].c)) kv_buf_addf(&alternatives, "%s%s", alternatives.len ? "|" : "", escaped[i].written);
    bool fits = keep_safe(s) && (s->n || alternatives.len);
    if (fits && alternatives.len) {
        kv_buf_adds(out, "(?:");
        if (s->n) write_class(out, s), kv_buf_adds(out, "|");
        kv_buf_addf(out, "%s)", kv_buf_str(&alternatives));
    } else if (fits) {
        write_class(out, s);
    }
    kv_buf_free(&alternatives);
    return fits;
}

static void write_literal(kv_buf *out, uint32_t c) {
    for (size_t i = 0; i < N_ESCAPED; i++) {
        if (escaped[i].c != c) continue;
        kv_buf_adds(out, escaped[i].written);
        return;
    }
    bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (plain || (c < 0x80 && c >= ' ' && c != 0x7F && !strchr("^$.[]()|{}*+?", (int)c)))
        kv_buf_addf(out, "%c", (char)c);
    else if (c < 0x20 || c == 0x7F) kv_buf_addf(out, "\\\\u%04X", (unsigned)c);
    else if (c < 0x80) kv_buf_addf(out, "\\%c", (char)c);
    else write_member(out, c); /* the same escapes outside of a class */
}

static void write_any(kv_buf *out) {
    set s = {.n = 0};
    ADD_LIST(&s, line_ends, true);
    write_set(out, &s, false);
}

/* ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The text is valid UTF-8: jansson has checked it. */
static uint32_t next_code_point(reader *s) {
    unsigned char c = (unsigned char)*s->p++;
    if (c < 0x80) return c;
    int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
    uint32_t value = c & (0x3Fu >> more);
    for (; more > 0 && *s->p; more--) value = value << 6 | ((unsigned char)*s->p++ & 0x3Fu);
    return value;
}

static bool read_hex(uint32_t *out, reader *s, int n) {
    uint32_t value = 0;
    for (int i = 0; i < n; i++) {
        char c = s->p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        value = value << 4 | (uint32_t)digit;
    }
    s->p += n;
    *out = value;
    return true;
}

/* What follows a backslash and stands for one character. */
static kv_status read_escape(uint32_t *out, reader *s) {
    char c = *s->p;
    static const char names[] = "nrtfv0", values[] = "\n\r\t\f\v";
    const char *at = c ? strchr(names, c) : NULL;
    if (!c) return fail(s, "ends with a backslash");
    if (at) {
        s->p++;
        *out = (unsigned char)values[at - names];
        return KV_OK;
    }
    if (c == 'x' || c == 'u') {
        s->p++;
        if (read_hex(out, s, c == 'x' ? 2 : 4) && (*out < 0xD800 || *out > 0xDFFF)) return KV_OK;
        return fail(s, "has a number that cannot be read");
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
        return fail(s, c == 'b' || c == 'B'                 ? "has a word boundary, which is not supported,"
                       : c == 'p' || c == 'P'               ? "has a Unicode property, which is not supported,"
                       : c == 'k' || (c >= '1' && c <= '9') ? "has a back reference, which is not supported,"
                                                            : "has an escape that is not supported");
    *out = next_code_point(s);
    return KV_OK;
}

/* One end of a range in a class. *is_class: it was \d or the like, and is in the set already. */
static kv_status read_member(uint32_t *c, bool *is_class, set *members, reader *s) {
    *is_class = false;
    if (*s->p != '\\') {
        *c = next_code_point(s);
        return KV_OK;
    }
    s->p++;
    if (*s->p && strchr("dDwWsS", *s->p)) {
        *is_class = true;
        return add_class_escape(members, *s->p++) ? KV_OK : fail(s, "has a class that is too large");
    }
    if (*s->p == 'b') { /* backspace, here */
        s->p++;
        *c = 8;
        return KV_OK;
    }
    return read_escape(c, s);
}

static kv_status read_class(kv_buf *out, reader *s) {
    set members = {.n = 0};
    bool negated = *s->p == '^', is_class;
    if (negated) s->p++;
    while (*s->p != ']') {
        if (!*s->p) return fail(s, "has a class without end");
        uint32_t from, to;
        kv_status st = read_member(&from, &is_class, &members, s);
        if (st != KV_OK) return st;
        if (is_class) continue;
        to = from;
        if (s->p[0] == '-' && s->p[1] && s->p[1] != ']') {
            s->p++;
            st = read_member(&to, &is_class, &members, s);
            if (st != KV_OK) return st;
            if (is_class || to < from) return fail(s, "has a range that runs backwards");
        }
        if (!add_range(&members, from, to)) return fail(s, "has a class that is too large");
    }
    s->p++;
    normalise(&members);
    if (negated && !complement(&members)) return fail(s, "has a class that is too large");
    if (!write_set(out, &members, !negated)) return fail(s, "has a class in which nothing is left for a JSON string");
    return KV_OK;
}

static kv_status read_choices(kv_buf *out, reader *s, bool top);

static kv_status read_group(kv_buf *out, reader *s) {
    if (*s->p == '?') {
        if (s->p[1] == ':') s->p += 2;
        else if (s->p[1] == '<' && s->p[2] != '=' && s->p[2] != '!' && strchr(s->p, '>')) s->p = strchr(s->p, '>') + 1;
        else return fail(s, "looks ahead or behind, which is not supported,");
    }
    if (++s->depth > MAX_DEPTH) return fail(s, "has too many groups inside each other");
    kv_buf_adds(out, "(?:");
    kv_status st = read_choices(out, s, false);
    if (st != KV_OK) return st;
    if (*s->p != ')') return fail(s, "has a group without end");
    s->p++;
    s->depth--;
    kv_buf_adds(out, ")");
    return KV_OK;
}

static kv_status read_atom(kv_buf *out, reader *s) {
    char c = *s->p;
    uint32_t literal;
    if (strchr("*+?{}]", c)) return fail(s, "has a character that must be escaped");
    if (c == '^' || c == '$') return fail(s, "has an anchor inside, which is not supported,");
    if (strchr(".[(", c)) s->p++;
    if (c == '.') {
        write_any(out);
        return KV_OK;
    }
    if (c == '[') return read_class(out, s);
    if (c == '(') return read_group(out, s);
    if (c != '\\') {
        write_literal(out, next_code_point(s));
        return KV_OK;
    }
    s->p++;
    set members = {.n = 0};
    if (*s->p && strchr("dDwWsS", *s->p)) {
        add_class_escape(&members, *s->p++);
        return write_set(out, &members, false) ? KV_OK : fail(s, "has a class that is too large");
    }
    kv_status st = read_escape(&literal, s);
    if (st == KV_OK) write_literal(out, literal);
    return st;
}

/* *, +, ?, {2}, {2,} or {2,4}, and the sign for as few as possible, which changes nothing in what matches. */
static kv_status read_quantifier(kv_buf *out, reader *s, const kv_buf *atom) {
    size_t n = strspn(s->p, "*+?");
    if (*s->p == '{') {
        n = 1 + strspn(s->p + 1, "0123456789,");
        if (s->p[n] != '}' || n == 1 || s->p[1] == ',') return fail(s, "has a repetition that cannot be read");
        n++;
    } else if (n > 1) {
        n = 1;
    }
    bool group = n > 0 && kv_buf_str(atom)[0] != '[' && strncmp(kv_buf_str(atom), "(?:", 3) != 0;
    kv_buf_addf(out, "%s%s%s%.*s", group ? "(?:" : "", kv_buf_str(atom), group ? ")" : "", (int)n, s->p);
    s->p += n;
    if (n && *s->p == '?') s->p++;
    return KV_OK;
}

/* One alternative. At the top it is anchored where the pattern says so, else anything may stand around it. */
static kv_status read_choice(kv_buf *out, reader *s, bool top) {
    bool open_end = top;
    if (top && *s->p == '^') s->p++;
    else if (top) write_any(out), kv_buf_adds(out, "*");
    while (*s->p && *s->p != '|' && *s->p != ')') {
        if (top && *s->p == '$' && (s->p[1] == '\0' || s->p[1] == '|')) {
            s->p++;
            open_end = false;
            break;
        }
        kv_buf atom = {0};
        kv_status st = read_atom(&atom, s);
        if (st == KV_OK) st = read_quantifier(out, s, &atom);
        kv_buf_free(&atom);
        if (st != KV_OK) return st;
    }
    if (open_end) write_any(out), kv_buf_adds(out, "*");
    return KV_OK;
}

static kv_status read_choices(kv_buf *out, reader *s, bool top) {
    for (;;) {
        kv_status st = read_choice(out, s, top);
        if (st != KV_OK || *s->p != '|') return st;
        s->p++;
        kv_buf_adds(out, "|");
    }
}

kv_status kv_chat_pattern(kv_buf *out, const char *pattern, kv_error *err) {
    reader s = {.text = pattern, .p = pattern, .err = err};
    if (strcmp(pattern, "^$") == 0) return fail(&s, "allows only the empty text");
    kv_buf_adds(out, "^(?:");
    kv_status st = read_choices(out, &s, true);
    if (st != KV_OK) return st;
    if (*s.p) return fail(&s, "has a group that was not opened");
    kv_buf_adds(out, ")$");
    return KV_OK;
}
