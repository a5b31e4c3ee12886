#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "chat/spelling.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ── canonical JSON ────────────────────────────────────────────────────────────────────────────────────────────── */

/* jansson reads numbers into 64 bits, which would make different ones equal. So they are handed to it as texts: a text
 * "x" becomes "sx", the number 1.50e3 becomes "n15e2". It sees to everything else: what is JSON, escapes, keys that
 * stand twice, order. */

#define EXPONENT_DIGITS 15 /* more are beyond any arithmetic: such a number is compared as it is written */

static size_t digits(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

typedef struct number {
    bool negative;
    const char *whole, *part; /* digits before and behind the point */
    size_t n_whole, n_part;
    const char *exponent; /* with its sign, NULL = none */
    size_t n_exponent;    /* of its digits */
    size_t n;             /* bytes in all */
} number;

/* At s: the longest number by JSON's grammar. False: none. */
static bool read_number(number *out, const char *s, size_t n) {
    *out = (number){.negative = *s == '-'};
    size_t i = out->negative;
    out->whole = s + i;
    out->n_whole = i < n && s[i] == '0' ? 1 : digits(s + i, n - i);
    if (!out->n_whole) return false;
    i += out->n_whole;
    if (i + 1 < n && s[i] == '.' && (out->n_part = digits(s + i + 1, n - i - 1)) > 0) {
        out->part = s + i + 1;
        i += 1 + out->n_part;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        size_t sign = i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-');
        out->n_exponent = digits(s + i + 1 + sign, n - i - 1 - sign);
        if (out->n_exponent) {
            out->exponent = s + i + 1;
            i += 1 + sign + out->n_exponent;
        }
    }
    out->n = i;
    return true;
}

/* The same text for the same decimal number: digits without zeros at either end, and the power of ten of the last. */
static void add_number(kv_buf *out, const number *x, const char *s) {
    if (x->n_exponent > EXPONENT_DIGITS) {
        kv_buf_adds(out, "\"w");
        kv_buf_add(out, s, x->n);
        kv_buf_adds(out, "\"");
        return;
    }
    kv_buf all = {0};
    kv_buf_add(&all, x->whole, x->n_whole);
    if (x->n_part) kv_buf_add(&all, x->part, x->n_part);
    long long power = x->exponent ? strtoll(x->exponent, NULL, 10) : 0;
    power -= (long long)x->n_part;
    size_t from = 0, to = all.len;
    while (from < to && all.data[from] == '0') from++;
    while (to > from && all.data[to - 1] == '0') to--, power++;
    kv_buf_adds(out, x->negative ? "\"n-" : "\"n");
    kv_buf_add(out, all.data + from, to - from);
    if (to > from) kv_buf_addf(out, "e%lld", power);
    kv_buf_adds(out, "\"");
    kv_buf_free(&all);
}

/* False: no JSON, as far as that is seen here. */
static bool make_texts(kv_buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        if (s[i] == '"') {
            size_t end = i + 1;
            while (end < n && s[end] != '"') end += s[end] == '\\' ? 2 : 1;
            if (end >= n) return false;
            kv_buf_adds(out, "\"s");
            kv_buf_add(out, s + i + 1, end - i);
            i = end + 1;
        } else if (s[i] == '-' || (s[i] >= '0' && s[i] <= '9')) {
            number x;
            if (!read_number(&x, s + i, n - i)) return false;
            add_number(out, &x, s + i);
            i += x.n;
        } else {
            kv_buf_add(out, s + i, 1);
            i++;
        }
    }
    return true;
}

bool kv_spelling_canonical(kv_buf *out, const char *text, size_t n) {
    kv_buf texts = {0};
    json_t *value = NULL;
    if (kv_json_check_depth(text, n, NULL) == KV_OK && make_texts(&texts, text, n))
        value =
            json_loadb(kv_buf_str(&texts), texts.len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    kv_buf_free(&texts);
    char *sorted = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(value);
    kv_buf_adds(out, sorted ? "j" : "b");
    if (sorted) kv_buf_adds(out, sorted);
    else kv_buf_add(out, text, n);
    free(sorted);
    return sorted != NULL;
}

static bool same_form(const kv_buf *canonical, const char *text, size_t n) {
    kv_buf form = {0};
    bool same = kv_spelling_canonical(&form, text, n) && form.len == canonical->len &&
                memcmp(form.data, canonical->data, form.len) == 0;
    kv_buf_free(&form);
    return same;
}

/* Parts of keys do not run into each other. */
static void add_part(kv_buf *out, const char *s, size_t n) {
    kv_buf_addf(out, "%zu:", n);
    kv_buf_add(out, s, n);
}

static void add_text(kv_buf *out, const json_t *text) {
    add_part(out, json_is_string(text) ? json_string_value(text) : "", json_string_length(text));
}

static kv_hash take_key(kv_buf *parts) {
    kv_hash key = kv_hash_bytes(parts->data, parts->len);
    kv_buf_free(parts);
    return key;
}

static bool equals(const kv_buf *b, const json_t *text) {
    return b->len == json_string_length(text) && memcmp(kv_buf_str(b), json_string_value(text), b->len) == 0;
}

/* ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The tool as it is to be spelled, a new value; NULL: as it came. */
static json_t *known_tool(const json_t *tool, const kv_spelling_book *book) {
    kv_buf text = {0}, form = {0}, parts = {0}, first = {0};
    json_t *known = NULL;
    kv_json_dump(&text, tool);
    if (text.len > KV_SPELLING_MAX || !kv_spelling_canonical(&form, text.data, text.len)) goto done;
    kv_buf_adds(&parts, "tool;");
    add_part(&parts, form.data, form.len);
    kv_hash key = take_key(&parts);
    if (!book->get(book->ctx, &first, key)) {
        book->put(book->ctx, key, text.data, text.len, false);
        goto done;
    }
    bool changed = first.len != text.len || memcmp(first.data, text.data, text.len) != 0;
    if (changed && same_form(&form, kv_buf_str(&first), first.len)) kv_json_parse(&known, first.data, first.len, NULL);
done:
    kv_buf_free(&text);
    kv_buf_free(&form);
    kv_buf_free(&first);
    return known;
}

bool kv_spelling_tools(json_t *tools, const kv_spelling_book *book) {
    bool changed = false;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *known = known_tool(json_array_get(tools, i), book);
        if (!known) continue;
        json_array_set_new(tools, i, known);
        changed = true;
    }
    return changed;
}

/* ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* id: NULL = of any call that is the same. */
static kv_hash call_key(const json_t *name, const json_t *id, const kv_buf *form) {
    kv_buf parts = {0};
    kv_buf_adds(&parts, id ? "call;" : "calls;");
    if (id) add_text(&parts, id);
    add_text(&parts, name);
    add_part(&parts, form->data, form->len);
    return take_key(&parts);
}

static bool known_call(kv_buf *out, kv_hash key, const kv_buf *form, const kv_spelling_book *book) {
    return book->get(book->ctx, out, key) && same_form(form, kv_buf_str(out), out->len);
}

static bool is_id(const json_t *id) {
    return json_string_length(id) > 0;
}

/* The arguments' canonical form. False: they are left alone. */
static bool call_form(kv_buf *form, const json_t *args) {
    return json_is_string(args) && json_string_length(args) <= KV_SPELLING_MAX &&
           kv_spelling_canonical(form, json_string_value(args), json_string_length(args));
}

/* By its id it is this very call; else any with the same arguments. */
static bool spell_call(json_t *call, const kv_spelling_book *book) {
    json_t *function = json_object_get(call, "function"), *args = json_object_get(function, "arguments");
    const json_t *name = json_object_get(function, "name"), *id = json_object_get(call, "id");
    kv_buf form = {0}, first = {0};
    bool changed = false;
    if (!call_form(&form, args)) goto done;
    kv_hash any = call_key(name, NULL, &form);
    if ((is_id(id) && known_call(&first, call_key(name, id, &form), &form, book)) ||
        known_call(&first, any, &form, book)) {
        changed = !equals(&first, args);
        if (changed) json_object_set_new(function, "arguments", kv_json_text(kv_buf_str(&first), first.len));
    } else {
        book->put(book->ctx, any, json_string_value(args), json_string_length(args), false);
    }
done:
    kv_buf_free(&form);
    kv_buf_free(&first);
    return changed;
}

bool kv_spelling_calls(json_t *messages, const kv_spelling_book *book) {
    bool changed = false;
    json_t *message, *call;
    size_t i, k;
    json_array_foreach(messages, i, message) {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) changed |= spell_call(call, book);
    }
    return changed;
}

void kv_spelling_learn_calls(const json_t *message, const kv_spelling_book *book) {
    const json_t *call;
    size_t i;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        const json_t *function = json_object_get(call, "function"), *args = json_object_get(function, "arguments");
        const json_t *name = json_object_get(function, "name"), *id = json_object_get(call, "id");
        kv_buf form = {0};
        if (call_form(&form, args)) {
            const char *text = json_string_value(args);
            size_t n = json_string_length(args);
            if (is_id(id)) book->put(book->ctx, call_key(name, id, &form), text, n, true);
            book->put(book->ctx, call_key(name, NULL, &form), text, n, false);
        }
        kv_buf_free(&form);
    }
}

/* ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct span {
    const char *s;
    size_t n;
} span;

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static span trim(span t) {
    while (t.n && is_blank(t.s[0])) t.s++, t.n--;
    while (t.n && is_blank(t.s[t.n - 1])) t.n--;
    return t;
}

static bool same(span a, span b) {
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
}

static span span_of(const json_t *text) {
    return json_is_string(text) ? (span){json_string_value(text), json_string_length(text)} : (span){"", 0};
}

/* A message's one text; NULL: there is none, or there are several parts. */
static json_t *text_of(const json_t *message) {
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content))
        content = json_array_size(content) == 1 ? json_object_get(json_array_get(content, 0), "text") : NULL;
    return json_is_string(content) ? content : NULL;
}

kv_hash kv_spelling_place(const json_t *before) {
    kv_buf parts = {0};
    const json_t *content = json_object_get(before, "content"), *part;
    size_t i;
    kv_buf_adds(&parts, "place;");
    add_text(&parts, json_object_get(before, "role"));
    if (json_is_string(content)) add_text(&parts, content);
    json_array_foreach(content, i, part) add_text(&parts, json_object_get(part, "text"));
    return take_key(&parts);
}

/* word: "said" or "thought". */
static kv_hash text_key(const char *word, kv_hash place, span bare, const json_t *message) {
    kv_buf parts = {0};
    const json_t *call;
    size_t i;
    kv_buf_addf(&parts, "%s;", word);
    add_part(&parts, (const char *)&place, sizeof place);
    add_part(&parts, bare.s, bare.n);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        const json_t *function = json_object_get(call, "function");
        span args = span_of(json_object_get(function, "arguments"));
        kv_buf form = {0};
        add_text(&parts, json_object_get(function, "name"));
        (void)kv_spelling_canonical(&form, args.s, args.n);
        add_part(&parts, form.data, form.len);
        kv_buf_free(&form);
    }
    return take_key(&parts);
}

/* *out: a new text, as it was sampled; NULL: as it came. */
static json_t *known_text(const char *word, kv_hash place, const json_t *text, const json_t *message,
                          const kv_spelling_book *book) {
    span came = span_of(text), bare = trim(came);
    kv_buf known = {0};
    json_t *out = NULL;
    if (bare.n == 0 || came.n > KV_SPELLING_MAX) return NULL;
    if (book->get(book->ctx, &known, text_key(word, place, bare, message)) &&
        same(trim((span){kv_buf_str(&known), known.len}), bare) && !equals(&known, text))
        out = kv_json_text(kv_buf_str(&known), known.len);
    kv_buf_free(&known);
    return out;
}

static bool spell_text(json_t *message, kv_hash place, const kv_spelling_book *book) {
    json_t *said = known_text("said", place, text_of(message), message, book);
    json_t *thought = known_text("thought", place, json_object_get(message, "reasoning_content"), message, book);
    bool changed = said || thought;
    if (said && json_is_array(json_object_get(message, "content")))
        json_object_set_new(message, "content", json_pack("[{s:s, s:o}]", "type", "text", "text", said));
    else if (said) json_object_set_new(message, "content", said);
    if (thought) json_object_set_new(message, "reasoning_content", thought);
    return changed;
}

bool kv_spelling_texts(json_t *messages, const kv_spelling_book *book) {
    bool changed = false;
    /* An answer at the end is to be gone on with, from where the client says. */
    for (size_t i = 0; i + 1 < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!role || strcmp(role, "assistant") != 0) continue;
        changed |= spell_text(message, kv_spelling_place(i ? json_array_get(messages, i - 1) : NULL), book);
    }
    return changed;
}

/* ── which blanks ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* A text in what was sampled, and the blanks around it there. */
typedef struct found {
    span bare, before, after;
    bool there;
} found;

static const char *find(const char *s, size_t n, span t) {
    return t.n && t.n <= n ? memmem(s, n, t.s, t.n) : NULL;
}

static found find_text(span sampled, size_t from, span bare) {
    const char *at = find(sampled.s + from, sampled.n - from, bare);
    if (!at) return (found){.there = false};
    const char *left = at, *right = at + bare.n, *end = sampled.s + sampled.n;
    while (left > sampled.s + from && is_blank(left[-1])) left--;
    while (right < end && is_blank(*right)) right++;
    return (found){{at, bare.n}, {left, (size_t)(at - left)}, {at + bare.n, (size_t)(right - at) - bare.n}, true};
}

#define BLANKS_MAX 8 /* more of them in a row are no habit of a template */

/* Of both texts: how many bytes agree, going away from what stands in the middle. */
static size_t agree_left(span a, const char *at_a, span b, const char *at_b) {
    size_t n = 0, left_a = (size_t)(at_a - a.s), left_b = (size_t)(at_b - b.s);
    while (n < left_a && n < left_b && at_a[-1 - (long)n] == at_b[-1 - (long)n]) n++;
    return n;
}

static size_t agree_right(span a, const char *at_a, span b, const char *at_b) {
    size_t n = 0, right_a = a.n - (size_t)(at_a - a.s), right_b = b.n - (size_t)(at_b - b.s);
    while (n < right_a && n < right_b && at_a[n] == at_b[n]) n++;
    return n;
}

/* Words that stand for text and thoughts while the template is asked. */
#define STAND_IN_SAID    "kvasir~said"
#define STAND_IN_THOUGHT "kvasir~thought"

typedef struct asking {
    const json_t *message;
    span sampled;
    kv_spelling_render render;
    void *ctx;
} asking;

typedef struct scores {
    size_t left, right;
} scores;

/* The template writes `word` with these blanks around it as `member`: how far is that what was sampled? */
static bool score(scores *out, const asking *a, const char *member, const char *word, const found *f, span before,
                  span after) {
    json_t *message = json_copy((json_t *)a->message);
    kv_buf text = {0}, written = {0};
    kv_buf_add(&text, before.s, before.n);
    kv_buf_adds(&text, word);
    kv_buf_add(&text, after.s, after.n);
    json_object_set_new(message, member, kv_json_text(text.data, text.len));
    bool ok = a->render(a->ctx, &written, message);
    const char *at = ok ? find(kv_buf_str(&written), written.len, (span){word, strlen(word)}) : NULL;
    if (at) {
        span all = {written.data, written.len};
        out->left = agree_left(all, at, a->sampled, f->bare.s);
        out->right = agree_right(all, at + strlen(word), a->sampled, f->bare.s + f->bare.n);
    }
    json_decref(message);
    kv_buf_free(&text);
    kv_buf_free(&written);
    return at != NULL;
}

/* Blanks before and behind that make the template write most of what was sampled; false: they make no difference. The
 * fewest that do it, and of the sampled ones those next to the text. */
static bool choose(span *before, span *after, const asking *a, const char *member, const char *word, const found *f) {
    scores best, one;
    const span none = {"", 0};
    *before = *after = none;
    if (!score(&best, a, member, word, f, none, none)) return false;
    bool matters = false;
    for (size_t k = 1; k <= f->before.n && k <= BLANKS_MAX; k++) {
        span b = {f->bare.s - k, k};
        if (!score(&one, a, member, word, f, b, none)) return false;
        matters |= one.left != best.left;
        if (one.left <= best.left) continue;
        best.left = one.left;
        *before = b;
    }
    for (size_t k = 1; k <= f->after.n && k <= BLANKS_MAX; k++) {
        span b = {f->after.s, k};
        if (!score(&one, a, member, word, f, none, b)) return false;
        matters |= one.right != best.right;
        if (one.right <= best.right) continue;
        best.right = one.right;
        *after = b;
    }
    return matters;
}

/* Asks the book before the template: "0", or "1" with how many blanks stand before and behind. */
static bool choose_once(span *before, span *after, const asking *a, kv_hash shape, const char *member, const char *word,
                        const found *f, const kv_spelling_book *book) {
    kv_buf parts = {0}, known = {0};
    bool thinks = json_string_length(json_object_get(a->message, "reasoning_content")) > 0;
    bool calls = json_array_size(json_object_get(a->message, "tool_calls")) > 0;
    bool says = json_string_length(json_object_get(a->message, "content")) > 0;
    kv_buf_addf(&parts, "blanks;%s;%d%d%d;", member, thinks, calls, says);
    add_part(&parts, (const char *)&shape, sizeof shape);
    add_part(&parts, f->before.s, f->before.n);
    add_part(&parts, f->after.s, f->after.n);
    kv_hash key = take_key(&parts);
    unsigned n_before = 0, n_after = 0;
    bool matters;
    if (book->get(book->ctx, &known, key) && known.len == 3 && known.data[0] >= '0' && known.data[0] <= '1' &&
        known.data[1] >= '0' && known.data[2] >= '0' && (n_before = (unsigned)(known.data[1] - '0')) <= f->before.n &&
        (n_after = (unsigned)(known.data[2] - '0')) <= f->after.n) {
        matters = known.data[0] == '1';
        *before = (span){f->bare.s - n_before, n_before};
        *after = (span){f->after.s, n_after};
    } else {
        matters = choose(before, after, a, member, word, f);
        char answer[3] = {(char)('0' + matters), (char)('0' + before->n), (char)('0' + after->n)};
        book->put(book->ctx, key, answer, sizeof answer, true);
    }
    kv_buf_free(&known);
    return matters;
}

/* `parsed`: the text as the client gets it. */
static void learn(const asking *a, kv_hash place, kv_hash shape, const char *member, const char *key_word,
                  const char *word, span parsed, const found *f, const kv_spelling_book *book) {
    span before, after;
    if (!f->there || parsed.n > KV_SPELLING_MAX - 2 * BLANKS_MAX) return;
    if (f->before.n + f->after.n == 0 && parsed.n == f->bare.n) return; /* nothing to be in doubt about */
    if (!choose_once(&before, &after, a, shape, member, word, f, book)) return;
    if (before.n + after.n == 0 && parsed.n == f->bare.n) return; /* it comes back so, if the client leaves it alone */
    kv_buf text = {0};
    kv_buf_add(&text, before.s, before.n);
    kv_buf_add(&text, f->bare.s, f->bare.n);
    kv_buf_add(&text, after.s, after.n);
    book->put(book->ctx, text_key(key_word, place, f->bare, a->message), text.data, text.len, true);
    kv_buf_free(&text);
}

void kv_spelling_learn_text(const json_t *message, const char *sampled, size_t n, kv_hash place, kv_hash shape,
                            kv_spelling_render render, void *ctx, const kv_spelling_book *book) {
    const span all = {sampled, n};
    span said = span_of(json_object_get(message, "content"));
    span thought = span_of(json_object_get(message, "reasoning_content"));
    found t = find_text(all, 0, trim(thought));
    if (trim(thought).n && !t.there) return;
    found s = find_text(all, t.there ? (size_t)(t.bare.s - sampled) + t.bare.n : 0, trim(said));
    const asking a = {message, all, render, ctx};
    learn(&a, place, shape, "content", "said", STAND_IN_SAID, said, &s, book);
    learn(&a, place, shape, "reasoning_content", "thought", STAND_IN_THOUGHT, thought, &t, book);
}
