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

#define HASH_MAX 32 /* digits; 5 and 3 have been seen */

/* Writes '0' over the hexadecimal digits that s[0, n) is made of; false, and nothing is written, if it has any other. */
static bool blank_hash(char *s, size_t n) {
    bool changed = false;
    if (n == 0 || n > HASH_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)s[i])) return false;
        changed |= s[i] != '0';
    }
    memset(s, '0', n);
    return changed;
}

/* What stands behind the third dot of "2.1.37.fbe": 2.1.37 is the version of the program, the rest a hash. */
static size_t version_length(const char *s, size_t n) {
    size_t i = 0;
    for (int part = 0; part < 3; part++) {
        size_t first = i;
        while (i < n && s[i] >= '0' && s[i] <= '9') i++;
        if (i == first || i == n || s[i] != '.') return n;
        i++;
    }
    return i;
}

static const char billing_header[] = "x-anthropic-billing-header: ";

static bool begins_billing(const char *text, size_t n) {
    return n >= sizeof billing_header - 1 && memcmp(text, billing_header, sizeof billing_header - 1) == 0;
}

/* "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=5a0f1;", which other text may follow at once:
 * `cch` is a hash of the request, the version ends in one of its first message. Each keeps its length. Nothing of the
 * line is meant for the model, but the line stays, since what it says besides is the client's business. */
static bool blank_billing(char *text, size_t n) {
    static const char version[] = "cc_version=", hash[] = "cch=";
    size_t n_version = sizeof version - 1, n_hash = sizeof hash - 1;
    bool changed = false;
    char *line = memchr(text, '\n', n), *end = line ? line : text + n, *stop;
    for (char *p = text + sizeof billing_header - 1; p < end && (stop = memchr(p, ';', (size_t)(end - p)));
         p = stop + 1) {
        while (p < stop && *p == ' ') p++;
        size_t len = (size_t)(stop - p), name = 0;
        while (name < len && (islower((unsigned char)p[name]) || p[name] == '_')) name++;
        if (name == 0 || name == len || p[name] != '=' || memchr(p, ' ', len)) break; /* other text begins */
        if (len > n_hash && memcmp(p, hash, n_hash) == 0) {
            changed |= blank_hash(p + n_hash, len - n_hash);
        } else if (len > n_version && memcmp(p, version, n_version) == 0) {
            size_t at = n_version + version_length(p + n_version, len - n_version);
            changed |= blank_hash(p + at, len - at);
        }
    }
    return changed;
}

/* ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The text at obj[member], with the rules applied. */
static kv_rules apply(json_t *obj, const char *member, kv_rules rules) {
    const json_t *value = json_object_get(obj, member);
    size_t n = json_string_length(value);
    if (!kv_canonical_has(rules, KV_RULE_BILLING_HEADER) || !begins_billing(json_string_value(value), n))
        return KV_RULES_NONE;
    char *text = kv_strndup(json_string_value(value), n);
    kv_rules did = blank_billing(text, n) ? 1u << KV_RULE_BILLING_HEADER : KV_RULES_NONE;
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
