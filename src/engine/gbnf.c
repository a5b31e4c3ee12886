/* engine/gbnf.c: see gbnf.h.
 *
 * Rules become lists of items. A group `( … )` is a rule of its own, as in the engine; what a repetition expands to is
 * only counted.
 *
 *   root ::= "a" (b | "c")* b       root:  terminal → rule 1?, → rule b
 *                                   1:     → rule b, ALT, terminal
 */
#include "engine/gbnf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/buf.h"

enum {
    MAX_GROUP_DEPTH = 200,    /* the engine's parser recurses; hand-written and generated grammars stay below 30 */
    MAX_LEFT_DEPTH = 1000,    /* so does its test for left recursion, along chains of leftmost rules */
    MAX_LEFT_STEPS = 1 << 22, /* calls of that test: without a memory it walks every path (here about 20 ms) */
    MAX_ELEMENTS = 4 << 20,   /* what the rules expand to, 8 bytes each in the engine */
    MAX_REPETITIONS = 2000,   /* the engine's own limit */
};

typedef enum item_kind { ITEM_TERMINAL, ITEM_RULE, ITEM_ALT } item_kind;

typedef struct item {
    item_kind kind;
    int32_t rule;   /* ITEM_RULE */
    int32_t next;   /* index of the next item of the same rule, -1 = last */
    bool optional;  /* repeated zero or more times */
    bool removed;   /* {0}: the engine keeps nothing of it */
    bool endless;   /* repeated without a maximum */
    uint64_t extra; /* helper rules that its repetition makes the engine test */
} item;

typedef struct rule {
    const char *name; /* into the grammar; NULL for a group */
    uint32_t n_name;
    int32_t first; /* item, -1 = none */
    bool defined, nullable;
    int mark; /* left-recursion walk: 0 new, 1 on the path, 2 done */
    uint64_t steps;
    uint32_t depth;
} rule;

typedef struct parser {
    const char *text, *at;
    item *items;
    size_t n_items, cap_items;
    rule *rules;
    size_t n_rules, cap_rules;
    int32_t *table; /* rules by name: open addressing, -1 = free; cap_table is a power of two */
    size_t cap_table;
    uint64_t n_symbols; /* as the engine numbers them: rules and helper rules */
    uint64_t n_elements;
    bool (*is_token)(void *, const char *, size_t);
    void *ctx;
    kv_error *err;
    bool failed;
} parser;

/* One alternate while it is read. */
typedef struct sequence {
    int32_t last;          /* last item of the rule so far, -1 = none */
    bool has_symbol;       /* a symbol that a repetition can refer to was just read */
    int32_t symbol;        /* its item */
    uint64_t symbol_size;  /* elements it takes */
    uint64_t n_prev_rules; /* rules it made: the engine bounds repetitions by this */
} sequence;

/* ── errors ── */

__attribute__((format(printf, 2, 3))) static void fail_at(parser *p, const char *fmt, ...) {
    if (p->failed) return;
    p->failed = true;
    size_t line = 1, column = 1;
    for (const char *c = p->text; c < p->at; c++) {
        column++;
        if (*c == '\n') {
            line++;
            column = 1;
        }
    }
    char why[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    kv_fail_field(p->err, "grammar", "the grammar is wrong at line %zu, column %zu: %s", line, column, why);
}

/* ── rules and items ── */

static int32_t add_rule(parser *p, const char *name, size_t n_name) {
    if (p->n_rules == p->cap_rules) {
        p->cap_rules = p->cap_rules ? p->cap_rules * 2 : 64;
        p->rules = kv_realloc(p->rules, p->cap_rules * sizeof *p->rules);
    }
    p->rules[p->n_rules] = (rule){.name = name, .n_name = (uint32_t)n_name, .first = -1};
    p->n_symbols++;
    return (int32_t)p->n_rules++;
}

static size_t slot_of(const parser *p, const char *name, size_t n) {
    size_t i = XXH3_64bits(name, n) & (p->cap_table - 1);
    while (p->table[i] >= 0) {
        const rule *r = &p->rules[p->table[i]];
        if (r->n_name == n && memcmp(r->name, name, n) == 0) break;
        i = (i + 1) & (p->cap_table - 1);
    }
    return i;
}

static void grow_table(parser *p) {
    free(p->table);
    p->cap_table = p->cap_table ? p->cap_table * 2 : 256;
    p->table = kv_alloc(p->cap_table * sizeof *p->table);
    memset(p->table, 0xff, p->cap_table * sizeof *p->table);
    for (size_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].name) p->table[slot_of(p, p->rules[i].name, p->rules[i].n_name)] = (int32_t)i;
}

static int32_t rule_named(parser *p, const char *name, size_t n) {
    if (p->n_rules * 2 >= p->cap_table) grow_table(p);
    size_t i = slot_of(p, name, n);
    if (p->table[i] < 0) {
        int32_t id = add_rule(p, name, n);
        p->table[i] = id;
    }
    return p->table[i];
}

static void add_item(parser *p, int32_t in_rule, sequence *s, item_kind kind, int32_t ref, uint64_t size) {
    if (p->n_items == p->cap_items) {
        p->cap_items = p->cap_items ? p->cap_items * 2 : 256;
        p->items = kv_realloc(p->items, p->cap_items * sizeof *p->items);
    }
    int32_t id = (int32_t)p->n_items++;
    p->items[id] = (item){.kind = kind, .rule = ref, .next = -1};
    if (s->last >= 0) p->items[s->last].next = id;
    else p->rules[in_rule].first = id;
    s->last = id;
    p->n_elements += size;
    if (p->n_elements > MAX_ELEMENTS) fail_at(p, "it is too large (more than %d elements)", MAX_ELEMENTS);
    if (kind == ITEM_ALT) return;
    s->has_symbol = true;
    s->symbol = id;
    s->symbol_size = size;
    s->n_prev_rules = 1;
}

/* ── characters ── */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c);
}
static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void skip_space(parser *p, bool newlines) {
    for (;; p->at++) {
        if (*p->at == '#')
            while (p->at[1] && p->at[1] != '\r' && p->at[1] != '\n') p->at++;
        else if (*p->at != ' ' && *p->at != '\t' && !(newlines && (*p->at == '\r' || *p->at == '\n'))) return;
    }
}

/* One character of a literal or a class, escaped or not. */
static void skip_char(parser *p) {
    if (*p->at == '\0') {
        fail_at(p, "it ends inside a literal or a character class");
        return;
    }
    if (*p->at != '\\') {
        int n = (unsigned char)*p->at < 0xC0   ? 1
                : (unsigned char)*p->at < 0xE0 ? 2
                : (unsigned char)*p->at < 0xF0 ? 3
                                               : 4;
        while (n-- > 0 && *p->at) p->at++;
        return;
    }
    int n_hex = p->at[1] == 'x' ? 2 : p->at[1] == 'u' ? 4 : p->at[1] == 'U' ? 8 : 0;
    if (n_hex == 0 && (p->at[1] == '\0' || !strchr("trn\\\"[]-", p->at[1]))) {
        fail_at(p, "unknown escape");
        return;
    }
    for (int i = 0; i < n_hex; i++)
        if (!is_hex(p->at[2 + i])) {
            fail_at(p, "an escape needs %d hexadecimal digits", n_hex);
            return;
        }
    p->at += 2 + n_hex;
}

/* ── symbols ── */

static void parse_literal(parser *p, int32_t in_rule, sequence *s) {
    p->at++;
    uint64_t n = 0;
    for (; *p->at != '"' && !p->failed; n++) skip_char(p);
    if (p->failed) return;
    p->at++;
    s->has_symbol = false;
    if (n > 0) add_item(p, in_rule, s, ITEM_TERMINAL, -1, n);
}

static void parse_class(parser *p, int32_t in_rule, sequence *s) {
    p->at++;
    if (*p->at == '^') p->at++;
    uint64_t n = 0;
    for (; *p->at != ']' && !p->failed; n++) {
        skip_char(p);
        if (!p->failed && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            skip_char(p);
            n++;
        }
    }
    if (p->failed) return;
    p->at++;
    s->has_symbol = false;
    if (n > 0) add_item(p, in_rule, s, ITEM_TERMINAL, -1, n);
}

/* <[123]> or <text>, either with a ! before it: one token of the vocabulary. */
static void parse_token(parser *p, int32_t in_rule, sequence *s) {
    if (*p->at == '!') p->at++;
    if (*p->at != '<') {
        fail_at(p, "expected '<' after '!'");
        return;
    }
    const char *end = p->at + 1;
    if (*end == '[') {
        const char *digits = ++end;
        while (is_digit(*end)) end++;
        if (end == digits || end - digits > 9 || end[0] != ']' || end[1] != '>') {
            fail_at(p, "expected a token number as <[123]>");
            return;
        }
        end += 2;
    } else {
        while (*end && *end != '>') end++;
        if (!*end) {
            fail_at(p, "expected '>'");
            return;
        }
        end++;
        if (p->is_token && !p->is_token(p->ctx, p->at, (size_t)(end - p->at))) {
            fail_at(p, "what stands between < and > is not one token of this model");
            return;
        }
    }
    p->at = end;
    add_item(p, in_rule, s, ITEM_TERMINAL, -1, 1);
}

static void parse_alternates(parser *p, int32_t into, int depth);

static void parse_group(parser *p, int32_t in_rule, sequence *s, int depth) {
    if (depth >= MAX_GROUP_DEPTH) {
        fail_at(p, "more than %d groups inside each other", MAX_GROUP_DEPTH);
        return;
    }
    p->at++;
    skip_space(p, true);
    uint64_t before = p->n_symbols;
    int32_t group = add_rule(p, NULL, 0);
    p->rules[group].defined = true;
    parse_alternates(p, group, depth + 1);
    if (!p->failed && *p->at != ')') fail_at(p, "expected ')'");
    if (p->failed) return;
    p->at++;
    uint64_t made = p->n_symbols - before;
    add_item(p, in_rule, s, ITEM_RULE, group, 1);
    s->n_prev_rules = made;
}

/* ── repetitions ── */

#define NO_MAX UINT64_MAX

static uint64_t parse_number(parser *p) {
    if (!is_digit(*p->at)) {
        fail_at(p, "expected a number");
        return 0;
    }
    uint64_t n = 0;
    for (; is_digit(*p->at); p->at++)
        if (n < 1000000000) n = n * 10 + (uint64_t)(*p->at - '0');
    return n;
}

static void parse_bounds(parser *p, uint64_t *min, uint64_t *max, bool nested) {
    p->at++;
    skip_space(p, nested);
    *min = parse_number(p);
    *max = *min;
    skip_space(p, nested);
    if (!p->failed && *p->at == ',') {
        p->at++;
        skip_space(p, nested);
        *max = NO_MAX;
        if (is_digit(*p->at)) *max = parse_number(p);
        skip_space(p, nested);
    }
    if (!p->failed && *p->at != '}') fail_at(p, "expected '}'");
    if (p->failed) return;
    p->at++;
    if (*min > MAX_REPETITIONS) fail_at(p, "more than %d repetitions", MAX_REPETITIONS);
    if (*max != NO_MAX && *max < *min) fail_at(p, "{m,n} with n below m"); /* the engine would loop 2^64 times */
    if (*max != NO_MAX && *max > MAX_REPETITIONS) *max = NO_MAX;           /* as the engine does */
}

static void repeat(parser *p, sequence *s, uint64_t min, uint64_t max) {
    if (p->failed) return;
    if (!s->has_symbol) {
        fail_at(p, "there is nothing to repeat");
        return;
    }
    uint64_t times = max != NO_MAX && max > 0 ? max : min > 0 ? min : 1;
    if (s->n_prev_rules * times > MAX_REPETITIONS) {
        fail_at(p, "repetitions of repetitions make more than %d rules", MAX_REPETITIONS);
        return;
    }
    s->n_prev_rules *= times;
    uint64_t n_opt = max == NO_MAX ? 1 : max - min;
    item *it = &p->items[s->symbol];
    if (max == NO_MAX && it->optional) {
        fail_at(p, "an endless repetition of what may be empty");
        return;
    }
    if (max == NO_MAX) it->endless = true;
    if (min == 0) it->optional = true;
    it->extra += n_opt;
    p->n_symbols += n_opt;
    p->n_elements += (min > 1 ? min - 1 : 0) * s->symbol_size + n_opt * (s->symbol_size + 3);
    if (p->n_elements > MAX_ELEMENTS) fail_at(p, "it is too large (more than %d elements)", MAX_ELEMENTS);
    s->symbol_size = (min > 0 ? min * s->symbol_size : 0) + (n_opt > 0);
    if (s->symbol_size > 0) return;
    it->removed = true;
    s->has_symbol = false;
}

/* ── sequences and rules ── */

static void parse_sequence(parser *p, int32_t in_rule, sequence *s, int depth) {
    bool nested = depth > 0;
    while (*p->at && !p->failed) {
        uint64_t min = 0, max = NO_MAX;
        switch (*p->at) {
        case '"': parse_literal(p, in_rule, s); break;
        case '[': parse_class(p, in_rule, s); break;
        case '<':
        case '!': parse_token(p, in_rule, s); break;
        case '(': parse_group(p, in_rule, s, depth); break;
        case '.':
            p->at++;
            add_item(p, in_rule, s, ITEM_TERMINAL, -1, 1);
            break;
        case '*':
            p->at++;
            repeat(p, s, 0, NO_MAX);
            break;
        case '+':
            p->at++;
            repeat(p, s, 1, NO_MAX);
            break;
        case '?':
            p->at++;
            repeat(p, s, 0, 1);
            break;
        case '{':
            parse_bounds(p, &min, &max, nested);
            repeat(p, s, min, max);
            break;
        default:
            if (!is_word(*p->at)) return;
            const char *name = p->at;
            while (is_word(*p->at)) p->at++;
            add_item(p, in_rule, s, ITEM_RULE, rule_named(p, name, (size_t)(p->at - name)), 1);
        }
        skip_space(p, nested);
    }
}

static void parse_alternates(parser *p, int32_t into, int depth) {
    sequence s = {.last = -1};
    parse_sequence(p, into, &s, depth);
    while (!p->failed && *p->at == '|') {
        p->at++;
        skip_space(p, true);
        add_item(p, into, &s, ITEM_ALT, -1, 1);
        s.has_symbol = false;
        parse_sequence(p, into, &s, depth);
    }
}

static void parse_rule(parser *p) {
    const char *name = p->at;
    while (is_word(*p->at)) p->at++;
    if (p->at == name) {
        fail_at(p, "expected the name of a rule (letters, digits and '-')");
        return;
    }
    int32_t id = rule_named(p, name, (size_t)(p->at - name));
    skip_space(p, false);
    if (strncmp(p->at, "::=", 3) != 0) {
        fail_at(p, "expected '::=' after a rule's name");
        return;
    }
    p->at += 3;
    skip_space(p, true);
    p->rules[id].first = -1; /* a second definition replaces the first */
    p->rules[id].defined = true;
    parse_alternates(p, id, 0);
    if (p->failed) return;
    if (*p->at && *p->at != '\r' && *p->at != '\n') fail_at(p, "expected the end of the line");
    if (!p->failed) skip_space(p, true);
}

/* ── what it means ── */

static bool item_nullable(const parser *p, const item *it) {
    return it->optional || (it->kind == ITEM_RULE && p->rules[it->rule].nullable);
}

static bool rule_nullable(const parser *p, const rule *r) {
    bool all = true;
    for (int32_t i = r->first; i >= 0; i = p->items[i].next) {
        if (p->items[i].kind == ITEM_ALT) {
            if (all) return true;
            all = true;
        } else if (!item_nullable(p, &p->items[i])) {
            all = false;
        }
    }
    return all;
}

/* To the fixpoint, from the last rule to the first: rules usually stand before those that they use, so a few rounds
 * do. The bound keeps a hostile order from making it quadratic; false when it does not suffice. */
static bool find_nullable(parser *p) {
    for (int round = 0; round < 64; round++) {
        bool changed = false;
        for (size_t i = p->n_rules; i-- > 0;) {
            rule *r = &p->rules[i];
            if (!r->nullable && rule_nullable(p, r)) r->nullable = changed = true;
        }
        if (!changed) return true;
    }
    return false;
}

/* The next item at or after `i` that can stand leftmost in its rule; *open says whether `i` still can. -1: none. */
static int32_t next_left(const parser *p, int32_t i, bool *open) {
    for (; i >= 0; i = p->items[i].next) {
        const item *it = &p->items[i];
        if (it->kind == ITEM_ALT) {
            *open = true;
            continue;
        }
        if (!*open) continue;
        *open = item_nullable(p, it);
        if (it->kind == ITEM_RULE) return i;
    }
    return -1;
}

typedef struct visit {
    int32_t rule, item; /* the item to look at next */
    bool open;
} visit;

/* Depth-first over "can stand leftmost in", with a stack of its own. Sums up the steps that the engine's memoryless
 * test will take: each rule's own, times the ways to reach it. */
static bool walk_left(parser *p, visit *stack, int32_t start, uint64_t *total) {
    int n = 0;
    stack[n++] = (visit){start, p->rules[start].first, true};
    p->rules[start].mark = 1;
    p->rules[start].steps = 1;
    while (n > 0) {
        visit *v = &stack[n - 1];
        rule *r = &p->rules[v->rule];
        bool open = v->open;
        int32_t i = next_left(p, v->item, &open);
        if (i < 0) {
            r->mark = 2;
            r->depth++;
            *total += r->steps;
            n--;
            continue;
        }
        rule *to = &p->rules[p->items[i].rule];
        if (to->mark == 1) {
            const rule *named = to->name ? to : r->name ? r : &p->rules[stack[0].rule];
            kv_fail_field(p->err, "grammar", "the grammar is left recursive: the rule \"%.*s\" can begin with itself",
                          named->name ? (int)(named->n_name < 60 ? named->n_name : 60) : 5,
                          named->name ? named->name : "group");
            return false;
        }
        if (to->mark == 0) {
            if (n >= MAX_LEFT_DEPTH) {
                kv_fail_field(p->err, "grammar", "the grammar is too deep: %d rules begin with one another",
                              MAX_LEFT_DEPTH);
                return false;
            }
            to->mark = 1;
            to->steps = 1;
            stack[n++] = (visit){p->items[i].rule, to->first, true};
            continue; /* and come back to this item when it is done */
        }
        r->steps += to->steps;
        *total += to->steps * p->items[i].extra;
        if (to->depth > r->depth) r->depth = to->depth;
        v->item = p->items[i].next;
        v->open = open;
        if (r->steps > MAX_LEFT_STEPS || *total > MAX_LEFT_STEPS || r->depth >= MAX_LEFT_DEPTH) {
            kv_fail_field(p->err, "grammar", "the grammar is too ambiguous: too many ways lead to its first character");
            return false;
        }
    }
    return true;
}

/* An alternate without anything in it. Only this makes the engine see a rule as possibly empty when it is repeated; it
 * then calls the repetition left recursive. */
static bool has_empty_alternate(const parser *p, const rule *r) {
    bool empty = true;
    for (int32_t i = r->first; i >= 0; i = p->items[i].next) {
        if (p->items[i].kind != ITEM_ALT) empty = empty && p->items[i].removed;
        else if (empty) return true;
        else empty = true;
    }
    return empty;
}

static bool check_repetitions(parser *p) {
    for (size_t i = 0; i < p->n_items; i++) {
        const item *it = &p->items[i];
        if (!it->endless || it->kind != ITEM_RULE || !has_empty_alternate(p, &p->rules[it->rule])) continue;
        const rule *r = &p->rules[it->rule];
        kv_fail_field(p->err, "grammar", "the grammar repeats without end what may be empty: %s%.*s",
                      r->name ? "the rule " : "a group", r->name ? (int)(r->n_name < 60 ? r->n_name : 60) : 0,
                      r->name ? r->name : "");
        return false;
    }
    return true;
}

static bool check_meaning(parser *p) {
    for (size_t i = 0; i < p->n_rules; i++) {
        const rule *r = &p->rules[i];
        if (r->defined) continue;
        kv_fail_field(p->err, "grammar", "the grammar uses the rule \"%.*s\" but does not define it",
                      (int)(r->n_name < 60 ? r->n_name : 60), r->name);
        return false;
    }
    if (p->n_rules == 0 || p->table[slot_of(p, "root", 4)] < 0) {
        kv_fail_field(p->err, "grammar", "the grammar has no rule named \"root\"");
        return false;
    }
    if (!find_nullable(p)) {
        kv_fail_field(p->err, "grammar", "the grammar has too long chains of rules that may be empty");
        return false;
    }
    if (!check_repetitions(p)) return false;
    visit *stack = kv_alloc(MAX_LEFT_DEPTH * sizeof *stack);
    uint64_t total = 0;
    bool ok = true;
    for (size_t i = 0; i < p->n_rules && ok; i++)
        if (p->rules[i].mark == 0) ok = walk_left(p, stack, (int32_t)i, &total);
    free(stack);
    return ok;
}

kv_status kv_gbnf_check(const char *grammar, bool (*is_token)(void *ctx, const char *text, size_t n), void *ctx,
                        kv_error *err) {
    parser p = {.text = grammar, .at = grammar, .is_token = is_token, .ctx = ctx, .err = err};
    grow_table(&p);
    skip_space(&p, true);
    while (*p.at && !p.failed) parse_rule(&p);
    bool ok = !p.failed && check_meaning(&p);
    free(p.items);
    free(p.rules);
    free(p.table);
    return ok ? KV_OK : KV_INVALID;
}
