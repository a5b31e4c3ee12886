#include "chat/canonical.h"

#include <ctype.h>
#include <string.h>

enum { REQUEST, MEMORY };

static const struct {
    const char *name, *text;
    int kind;
} table[] = {
#define X(name, word, kind, what) {word, what, kind},
    KV_RULE_TABLE(X)
#undef X
};

const char *kv_rule_name(kv_rule rule) {
    return (unsigned)rule < KV_RULE_COUNT ? table[rule].name : "unknown";
}

const char *kv_rule_text(kv_rule rule) {
    return (unsigned)rule < KV_RULE_COUNT ? table[rule].text : "";
}

kv_rules kv_canonical_rules(char *const *names, int n, bool exact) {
    kv_rules rules = n == 0 ? KV_RULES_ALL : KV_RULES_NONE;
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], "all") == 0) rules = KV_RULES_ALL;
        for (int r = 0; r < KV_RULE_COUNT; r++)
            if (strcmp(names[i], table[r].name) == 0) rules |= 1u << r;
    }
    for (int r = 0; exact && r < KV_RULE_COUNT; r++)
        if (table[r].kind == MEMORY) rules &= ~(1u << r);
    return rules;
}

json_t *kv_canonical_names(kv_rules rules) {
    json_t *names = json_array();
    for (int r = 0; r < KV_RULE_COUNT; r++)
        if (kv_canonical_has(rules, (kv_rule)r)) json_array_append_new(names, json_string(table[r].name));
    return names;
}

/* ── the system prompt's first line ────────────────────────────────────────────────────────────────────────────── */

/* Writes '0' over the hexadecimal digits at s, up to `end`. True when that changed something. */
static bool blank_hex(char *s, const char *end) {
    bool changed = false;
    for (; s < end && isxdigit((unsigned char)*s); s++) {
        changed |= *s != '0';
        *s = '0';
    }
    return changed;
}

/* "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=5a0f1;": the version ends in a checksum of
 * the conversation, `cch` is one of the request. Nothing of the line is meant for the model. */
static bool blank_billing(char *text, size_t n) {
    static const char header[] = "x-anthropic-billing-header:";
    size_t n_header = sizeof header - 1;
    bool changed = false;
    if (n < n_header || memcmp(text, header, n_header) != 0) return false;
    const char *line = memchr(text, '\n', n), *end = line ? line : text + n;
    for (char *p = text + n_header; p < end;) {
        while (p < end && (*p == ' ' || *p == ';')) p++;
        char *stop = p;
        while (stop < end && *stop != ';') stop++;
        if (stop - p > 4 && memcmp(p, "cch=", 4) == 0) changed |= blank_hex(p + 4, stop);
        p = stop;
    }
    return changed;
}

/* ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The text at obj[member], with the rules applied. */
static kv_rules apply(json_t *obj, const char *member, kv_rules rules) {
    const json_t *value = json_object_get(obj, member);
    if (!json_is_string(value)) return KV_RULES_NONE;
    size_t n = json_string_length(value);
    char *text = kv_strndup(json_string_value(value), n);
    kv_rules did = KV_RULES_NONE;
    if (kv_canonical_has(rules, KV_RULE_BILLING_HEADER) && blank_billing(text, n)) did |= 1u << KV_RULE_BILLING_HEADER;
    if (did) json_object_set_new(obj, member, kv_json_text(text, n));
    free(text);
    return did;
}

kv_rules kv_canonical_messages(json_t *messages, kv_rules rules) {
    json_t *first = json_array_get(messages, 0), *content = json_object_get(first, "content");
    const char *role = json_string_value(json_object_get(first, "role"));
    if (!role || (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)) return KV_RULES_NONE;
    if (json_is_array(content)) return apply(json_array_get(content, 0), "text", rules);
    return apply(first, "content", rules);
}
