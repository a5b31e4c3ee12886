#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "chat/hint.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ── what it looks like ────────────────────────────────────────────────────────────────────────────────────────────
 *
 * Each recogniser reads from s up to, at most, the end of the text, and returns where what it knows ends, NULL when it is
 * not there. They are tried at every beginning of a word near the place; what touches the place counts, the recogniser
 * that stands first in the list before the others. */

/* Bytes before the place where something that covers it may begin, longer than any date or id; and behind it, where it
 * must end. */
#define REACH 72
#define SIGHT 256

typedef const char *recogniser(const char *s, const char *end);

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static size_t digits(const char *s, const char *end) {
    size_t n = 0;
    while (s + n < end && is_digit(s[n])) n++;
    return n;
}

/* Between lo and hi digits that make a number of at most `top`. */
static const char *number_up_to(const char *s, const char *end, size_t lo, size_t hi, int top) {
    size_t n = digits(s, end);
    int value = 0;
    if (n < lo || n > hi) return NULL;
    for (size_t i = 0; i < n; i++) value = value * 10 + (s[i] - '0');
    return value <= top ? s + n : NULL;
}

/* 02:15, 2:15:07.123, with " PM", "Z", "+01:00" behind it */
static const char *read_clock(const char *s, const char *end) {
    const char *p = number_up_to(s, end, 1, 2, 23), *q;
    if (!p || p == end || *p != ':' || !(p = number_up_to(p + 1, end, 2, 2, 59))) return NULL;
    if (p < end && *p == ':' && (q = number_up_to(p + 1, end, 2, 2, 60))) {
        p = q;
        if (p + 1 < end && (*p == '.' || *p == ',') && is_digit(p[1])) p += 1 + digits(p + 1, end);
    }
    q = p < end && *p == ' ' ? p + 1 : p;
    if (q + 1 < end && strchr("AaPp", *q) && strchr("Mm", q[1])) return q + 2;
    if (p < end && *p == 'Z') return p + 1;
    if (p < end && (*p == '+' || *p == '-') && digits(p + 1, end) >= 2) {
        p += 1 + digits(p + 1, end);
        if (p < end && *p == ':' && digits(p + 1, end) == 2) p += 3;
    }
    return p;
}

/* 2026-11-30, 2026/11/30, 30.11.2026, 11/30/2026 */
static const char *read_figures(const char *s, const char *end) {
    bool year_first = digits(s, end) == 4;
    const char *p = year_first ? number_up_to(s, end, 4, 4, 2999) : number_up_to(s, end, 1, 2, 31);
    if (!p || p == end || !strchr("-/.", *p)) return NULL;
    char between = *p;
    p = number_up_to(p + 1, end, year_first ? 2 : 1, 2, 31);
    if (!p || p == end || *p != between) return NULL;
    return year_first ? number_up_to(p + 1, end, 2, 2, 31) : number_up_to(p + 1, end, 4, 4, 2999);
}

/* One of the names, whole or as its first three letters. As a name it begins with a capital: "may" is a word. */
static const char *read_name(const char *const *names, const char *s, const char *end) {
    size_t n = 0;
    while (s + n < end && isalpha((unsigned char)s[n])) n++;
    if (n == 0 || !isupper((unsigned char)*s)) return NULL;
    for (; *names; names++)
        if ((n == 3 || n == strlen(*names)) && strncasecmp(*names, s, n) == 0) return s + n;
    return NULL;
}

static const char *read_month(const char *s, const char *end) {
    static const char *const names[] = {"January", "February",  "March",   "April",    "May",      "June", "July",
                                        "August",  "September", "October", "November", "December", NULL};
    return read_name(names, s, end);
}

static const char *read_weekday(const char *s, const char *end) {
    static const char *const names[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                        "Friday", "Saturday", "Sunday",    NULL};
    return read_name(names, s, end);
}

static const char *skip(const char *s, const char *end, const char *what) {
    while (s < end && strchr(what, *s)) s++;
    return s;
}

/* Monday, March 9, 2026; 9 March 2026; March 2026; Monday */
static const char *read_words(const char *s, const char *end) {
    const char *day = read_weekday(s, end), *p = day ? skip(day, end, ", ") : s, *q;
    const char *first = number_up_to(p, end, 1, 2, 31);
    if (day && day - s == 3) day = NULL; /* "Sat" alone may be a verb */
    const char *month = read_month(first ? skip(first, end, " .") : p, end);
    if (!month) return day;
    const char *last = month;
    if (!first && (q = number_up_to(skip(month, end, " ."), end, 1, 2, 31))) last = q;
    if ((q = number_up_to(skip(last, end, ", "), end, 4, 4, 2999))) last = q;
    return first || last > month ? last : day;
}

static const char *read_date(const char *s, const char *end) {
    const char *p = read_figures(s, end);
    return p ? p : read_words(s, end);
}

/* A date with a time behind it, a time alone, or seconds since 1970: from 2017 to 2033, or in milliseconds. */
static const char *read_time(const char *s, const char *end) {
    const char *p = read_date(s, end), *q;
    if (p) {
        q = skip(p, end, "T, ");
        if (q + 3 < end && memcmp(q, "at ", 3) == 0) q += 3;
        return q > p ? read_clock(q, end) : NULL;
    }
    size_t n = digits(s, end);
    if ((n == 10 || n == 13) && s[0] == '1' && s[1] >= '5') return s + n;
    return read_clock(s, end);
}

static size_t hex_digits(const char *s, const char *end) {
    size_t n = 0;
    while (s + n < end && isxdigit((unsigned char)s[n])) n++;
    return n;
}

static const char *read_uuid(const char *s, const char *end) {
    static const size_t groups[] = {8, 4, 4, 4, 12};
    for (size_t i = 0; i < 5; i++) {
        if (i > 0 && (s == end || *s++ != '-')) return NULL;
        if (hex_digits(s, end) != groups[i]) return NULL;
        s += groups[i];
    }
    return s;
}

/* Five and more hexadecimal digits, of both sorts, which words hardly have. */
static const char *read_hex(const char *s, const char *end) {
    if (s + 1 < end && s[0] == '0' && s[1] == 'x' && hex_digits(s + 2, end) > 0) return s + 2 + hex_digits(s + 2, end);
    size_t n = hex_digits(s, end), figures = 0;
    for (size_t i = 0; i < n; i++) figures += is_digit(s[i]);
    return n >= 5 && figures > 0 && figures < n ? s + n : NULL;
}

/* What generators of ids make, with or without a prefix: call_9fK2xQ7vLm. In one part of it, letters and figures, or
 * capitals and small letters, change places oftener than names do. */
static const char *read_random(const char *s, const char *end) {
    const char *p = s;
    bool random = false;
    while (p < end && (is_word(*p) || *p == '-')) {
        size_t n = 0, changes = 0, figures = 0;
        for (; p + n < end && isalnum((unsigned char)p[n]); n++) {
            figures += is_digit(p[n]);
            changes += n > 0 && is_digit(p[n]) != is_digit(p[n - 1]);
            changes += n > 0 && islower((unsigned char)p[n - 1]) && isupper((unsigned char)p[n]);
        }
        random |= n >= 8 && changes >= 3 && figures >= 1;
        p += n;
        if (p < end && n == 0) p++;
    }
    return random ? p : NULL;
}

static const char *read_id(const char *s, const char *end) {
    const char *p = read_uuid(s, end);
    if (!p) p = read_hex(s, end);
    if (p && (p == end || !is_word(*p))) return p;
    return read_random(s, end);
}

/* 4, 1,024, 3.5, 12% */
static const char *read_number(const char *s, const char *end) {
    size_t n = digits(s, end);
    if (n == 0) return NULL;
    s += n;
    while (s + 1 < end && (*s == '.' || *s == ',') && is_digit(s[1])) s += 1 + digits(s + 1, end);
    return s;
}

kv_sighting kv_hint_suspect(const char *text, size_t n, size_t at, size_t end) {
    static const struct {
        kv_suspect kind;
        recogniser *read;
    } all[] = {{KV_SUSPECT_TIME, read_time},
               {KV_SUSPECT_DATE, read_date},
               {KV_SUSPECT_ID, read_id},
               {KV_SUSPECT_NUMBER, read_number}};
    if (end > n) end = n;
    const char *stop = text + (n - end > SIGHT ? end + SIGHT : n);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (size_t s = at > REACH ? at - REACH : 0; s < end; s++) {
            bool inside = s > 0 && (is_word(text[s - 1]) || (all[i].kind == KV_SUSPECT_NUMBER && text[s - 1] == '.'));
            if (inside || !is_word(text[s])) continue;
            const char *p = all[i].read(text + s, stop);
            if (!p || (size_t)(p - text) <= at || (p < text + n && is_word(*p))) continue;
            return (kv_sighting){all[i].kind, s, (size_t)(p - text)};
        }
    }
    return (kv_sighting){0};
}

/* ── whose words ───────────────────────────────────────────────────────────────────────────────────────────────────
 *
 * The texts of the messages are looked for in the rendered text, one after the other; a template may have changed some,
 * which are passed over then. What lies between them is the template's, and the tools'. */

#define NEEDLE       64        /* bytes that tell a text from the others */
#define SHORT        16        /* bytes; a shorter text may stand in the template, too */
#define SEARCH_MAX   (1 << 20) /* bytes to look through for one text: more than tools take */
#define FAILURES_MAX 32        /* texts not found, until the search ends */
#define WORK_MAX     (1 << 26) /* bytes looked at, until it ends: some 10 ms */

typedef struct span {
    size_t start, end; /* of the rendered text */
    size_t byte;       /* of the message's text: what stands at `start` */
    int message;
} span;

typedef struct spans {
    span *list; /* owned */
    size_t n, cap;
    size_t cursor;
    int failures, last; /* the message that was looked for */
    size_t work;        /* bytes looked at */
} spans;

static const char *find(const char *text, size_t n, const char *what, size_t n_what) {
    return memmem(text, n, what, n_what);
}

static const char *find_from(spans *out, const kv_hint_chat *c, size_t from, const char *s, size_t n) {
    size_t room = c->n - from < SEARCH_MAX ? c->n - from : SEARCH_MAX;
    const char *at = find(c->text + from, room, s, n < NEEDLE ? n : NEEDLE);
    out->work += at ? (size_t)(at - c->text) - from : room;
    return at;
}

/* Behind what the next turn begins with; where it is not known, the cursor. */
static size_t behind_turn(spans *out, const kv_hint_chat *c) {
    size_t n = c->turn ? strlen(c->turn) : 0;
    const char *turn = n ? find_from(out, c, out->cursor, c->turn, n) : NULL;
    return turn ? (size_t)(turn - c->text) + n : out->cursor;
}

/* `byte`: where the value begins in the message's text. */
static void add_span(spans *out, const kv_hint_chat *c, int message, const json_t *value, size_t byte) {
    const char *s = json_string_value(value);
    size_t n = json_string_length(value);
    while (n && isspace((unsigned char)s[0])) s++, n--, byte++;
    while (n && isspace((unsigned char)s[n - 1])) n--;
    if (n == 0 || out->failures >= FAILURES_MAX || out->work >= WORK_MAX) return;
    const char *at = NULL;
    if (n < SHORT && out->last != message) at = find_from(out, c, behind_turn(out, c), s, n);
    if (!at) at = find_from(out, c, out->cursor, s, n);
    out->last = message;
    if (!at) {
        out->failures++;
        return;
    }
    if (out->n == out->cap) {
        out->cap = out->cap ? 2 * out->cap : 16;
        out->list = kv_realloc(out->list, out->cap * sizeof *out->list);
    }
    size_t start = (size_t)(at - c->text), end = c->n - start < n ? c->n : start + n;
    out->list[out->n++] = (span){start, end, byte, message};
    out->cursor = end;
}

static void add_message(spans *out, const kv_hint_chat *c, int i, const json_t *message) {
    const json_t *content = json_object_get(message, "content"), *part, *call;
    size_t k, byte = 0;
    add_span(out, c, i, json_object_get(message, "reasoning_content"), 0);
    if (json_is_string(content)) add_span(out, c, i, content, 0);
    json_array_foreach(content, k, part) {
        const json_t *text = json_object_get(part, "text");
        add_span(out, c, i, text, byte);
        byte += json_string_length(text);
    }
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
        add_span(out, c, i, json_object_get(json_object_get(call, "function"), "arguments"), 0);
    }
}

static const char *role_of(const json_t *messages, size_t i) {
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role ? role : "";
}

static bool is_system(const char *role) {
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
}

static kv_hint_place in_message(const kv_hint_chat *c, const span *s, size_t at) {
    int leading = 0, answers = 0;
    size_t n = json_array_size(c->messages);
    while ((size_t)leading < n && is_system(role_of(c->messages, (size_t)leading))) leading++;
    for (size_t i = (size_t)s->message; i < n; i++) answers += strcmp(role_of(c->messages, i), "assistant") == 0;
    kv_hint_place p = {.whose = KV_WHOSE_MESSAGE,
                       .number = s->message - leading + 1,
                       .byte = s->byte + at - s->start,
                       .name = role_of(c->messages, (size_t)s->message)};
    if (s->message < leading) {
        p.whose = KV_WHOSE_SYSTEM;
        p.number = s->message + 1;
    } else {
        p.fresh = answers == 0;
    }
    return p;
}

/* The tool's name in quotes, from `from` on, outside of all messages; SIZE_MAX: not there. */
static size_t find_tool(const kv_hint_chat *c, const spans *m, const char *name, size_t from) {
    kv_buf quoted = {0};
    kv_buf_addf(&quoted, "\"%s\"", name);
    size_t found = SIZE_MAX, i = 0;
    for (const char *at; (at = find(c->text + from, c->n - from, quoted.data, quoted.len)); from = m->list[i].end) {
        from = (size_t)(at - c->text);
        while (i < m->n && m->list[i].end <= from) i++;
        if (i < m->n && m->list[i].start <= from) continue;
        found = from + 1;
        break;
    }
    kv_buf_free(&quoted);
    return found;
}

static const char *tool_name(const json_t *tool) {
    const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
    return name ? name : "";
}

/* Bytes that a tool takes at least behind the start of its name, in JSON. */
static size_t rest_of_tool(const json_t *tool) {
    kv_buf text = {0};
    kv_json_dump(&text, tool);
    const char *name = find(kv_buf_str(&text), text.len, tool_name(tool), strlen(tool_name(tool)));
    size_t n = name ? text.len - (size_t)(name - text.data) : SIZE_MAX;
    kv_buf_free(&text);
    return n;
}

/* `at` lies in [lo, hi), between two messages. */
static bool among_tools(kv_hint_place *out, const kv_hint_chat *c, const spans *m, size_t lo, size_t hi, size_t at) {
    size_t i, cursor = 0, start = 0;
    const json_t *tool, *last = NULL;
    bool here = false;
    json_array_foreach(c->tools, i, tool) {
        cursor = find_tool(c, m, tool_name(tool), cursor);
        if (cursor == SIZE_MAX) return false;
        here |= cursor >= lo && cursor < hi;
        if (last && cursor > at) continue;
        last = tool;
        start = cursor;
        out->number = (int)i + 1;
    }
    if (!here) return false;
    out->whose = KV_WHOSE_TOOLS;
    out->name = tool_name(last);
    bool is_last = (size_t)out->number == json_array_size(c->tools);
    out->behind = is_last && at > start && at - start >= rest_of_tool(last);
    return true;
}

kv_hint_place kv_hint_find(const kv_hint_chat *c, size_t at) {
    spans m = {.last = -1};
    kv_hint_place place = {0};
    size_t i, k = 0;
    const json_t *message;
    json_array_foreach(c->messages, i, message) {
        add_message(&m, c, (int)i, message);
    }
    while (k < m.n && m.list[k].end <= at) k++;
    if (k < m.n && m.list[k].start <= at) {
        place = in_message(c, &m.list[k], at);
    } else if (!among_tools(&place, c, &m, k ? m.list[k - 1].end : 0, k < m.n ? m.list[k].start : c->n, at)) {
        /* In front of a message it is that one: another role, or another message was there. */
        place = (kv_hint_place){0};
        if (k < m.n) place = in_message(c, &m.list[k], m.list[k].start);
        else place.fresh = m.n > 0;
    }
    free(m.list);
    return place;
}

/* ── in words ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

#define LOOKS_MAX  40  /* bytes shown of what it looks like */
#define LINE_SHOWN 160 /* and of its line, on each side of the place half of them */

/* text[from, to), at most `most` bytes of it, whole characters. */
static void add_cut(kv_buf *out, const char *text, size_t from, size_t to, size_t most) {
    bool cut = to - from > most;
    size_t n = cut ? kv_utf8_complete(text + from, most) : to - from;
    kv_buf_add(out, text + from, n);
    if (cut) kv_buf_adds(out, "…");
}

/* The line around what was seen, where it says more than that. */
static void add_line(kv_buf *out, const char *text, size_t n, const kv_sighting *seen) {
    size_t from = seen->start, to = seen->end;
    size_t first = from > LINE_SHOWN / 2 ? from - LINE_SHOWN / 2 : 0;
    while (from > first && text[from - 1] != '\n') from--;
    while (from < seen->start && ((unsigned char)text[from] & 0xc0) == 0x80) from++; /* not in the middle of a letter */
    while (to < n && text[to] != '\n' && to - seen->end < LINE_SHOWN) to++;
    if (from == seen->start && to == seen->end) return;
    kv_buf_adds(out, ", in the line \"");
    add_cut(out, text, from, to, LINE_SHOWN);
    kv_buf_adds(out, "\"");
}

static bool add_looks(kv_buf *out, const char *text, size_t n, size_t at, size_t end) {
    static const char *const kinds[] = {"", "a time", "a date", "an id", "a number"};
    kv_sighting seen = kv_hint_suspect(text, n, at, end);
    if (seen.kind == KV_SUSPECT_NONE) return false;
    kv_buf_addf(out, ", at what looks like %s (", kinds[seen.kind]);
    add_cut(out, text, seen.start, seen.end, LOOKS_MAX);
    kv_buf_adds(out, ")");
    add_line(out, text, n, &seen);
    return true;
}

static const char *ending(int n) {
    static const char *const endings[] = {"th", "st", "nd", "rd"};
    return n % 10 < 4 && (n % 100 < 11 || n % 100 > 13) ? endings[n % 10] : "th";
}

static void add_place(kv_buf *out, const kv_hint_place *p) {
    switch (p->whose) {
    case KV_WHOSE_SYSTEM: kv_buf_addf(out, "the system prompt differs from byte %zu on", p->byte); return;
    case KV_WHOSE_MESSAGE:
        kv_buf_addf(out, "message %d (%.40s) differs from byte %zu on", p->number, p->name, p->byte);
        return;
    case KV_WHOSE_TOOLS:
        kv_buf_addf(out,
                    p->behind ? "the tools differ behind the %d%s (%.80s), which is the last"
                              : "the tools differ from the %d%s on (%.80s)",
                    p->number, ending(p->number), p->name);
        return;
    case KV_WHOSE_NOBODY: kv_buf_adds(out, "the prompt differs between its messages"); return;
    }
}

bool kv_hint_of_chat(kv_buf *out, const kv_hint_chat *c, size_t at, size_t end, bool early) {
    static const char *const advice[] = {
        [KV_WHOSE_SYSTEM] = "move it out of the system prompt, into the newest message",
        [KV_WHOSE_MESSAGE] = "leave earlier messages as they were, and put it into the newest one",
        [KV_WHOSE_NOBODY] = "leave it out, or put it into the newest message",
    };
    kv_hint_place place = kv_hint_find(c, at);
    size_t mark = out->len;
    if (place.fresh) return false;
    add_place(out, &place);
    if (place.whose == KV_WHOSE_TOOLS) {
        kv_buf_adds(out,
                    ": send all tools each time, in one order and with the same words; what stands behind the first "
                    "that changed is computed again");
        return true;
    }
    if (add_looks(out, c->text, c->n, at, end)) {
        kv_buf_addf(out, ": nothing behind it can be reused; %s", advice[place.whose]);
        return true;
    }
    if (early) {
        kv_buf_adds(out, ": nothing behind this place can be reused; if these prompts should share more, look here for "
                         "what changes with each request");
        return true;
    }
    out->len = mark;
    if (out->data) out->data[mark] = 0;
    return false;
}

bool kv_hint_of_text(kv_buf *out, const char *text, size_t n, size_t at, size_t end, bool early) {
    if (!early) return false;
    kv_buf looks = {0};
    bool seen = add_looks(&looks, text, n, at, end);
    if (seen)
        kv_buf_addf(out, "the prompt differs%s: nothing behind it can be reused; move it towards the end",
                    kv_buf_str(&looks));
    else
        kv_buf_adds(out,
                    "nothing behind this place can be reused: if these prompts should share more, look here for what "
                    "changes with each request, such as a date, an id, or the order of tools, and move it towards "
                    "the end");
    kv_buf_free(&looks);
    return true;
}
