/* chat/canonical.h: rules that undo what clients change between requests for no reason that the model could see.
 *
 *   request ─► checked messages, tools ─► rules ─► template ─► text ─► tokens ─► look-up
 *
 * One word that differs near a prompt's beginning costs everything behind it. Each rule has a name, is on unless
 * --canonicalise leaves it out, and is told in the answer when it changed something. No rule changes what a prompt means:
 * dates, times, folders and counters are the model's to read, and stay.
 *
 * Two kinds of rules:
 *
 *   of the request   the result is a function of the request alone, so they hold with --exact, too
 *   of memory        the result depends on what was seen before (the spelling that came first): off with --exact
 *
 * Those of the request that work on the system prompt are applied here; the others, by whoever knows the spellings.
 * What each looks for stands in docs/canonicalise.md.
 *
 * Thread rule: none; pure functions.
 */
#ifndef KV_CHAT_CANONICAL_H
#define KV_CHAT_CANONICAL_H

#include "base/json.h"

/* X(constant, name, kind, what it does). options/table.c spells the names again, for it stands beside this module. */
#define KV_RULE_TABLE(X)                                                                                               \
    X(BILLING_HEADER, "billing-header", REQUEST,                                                                       \
      "the checksums in the billing line that begins Claude Code's system prompt are blanked")                         \
    X(TOOL_CALLS, "tool-calls", MEMORY,                                                                                \
      "arguments of earlier tool calls are spelled as they were when the model made the call")                         \
    X(ASSISTANT_TEXT, "assistant-text", MEMORY,                                                                        \
      "earlier answers get back the blanks around them that the client cut off")                                       \
    X(TOOL_SCHEMAS, "tool-schemas", MEMORY, "tools are spelled as when they first came: order of keys, blanks")

typedef enum kv_rule {
#define X(name, word, kind, what) KV_RULE_##name,
    KV_RULE_TABLE(X)
#undef X
        KV_RULE_COUNT
} kv_rule;

/* A set of rules, 1 << rule each. */
typedef unsigned kv_rules;
#define KV_RULES_NONE 0u
#define KV_RULES_ALL  ((1u << KV_RULE_COUNT) - 1)

const char *kv_rule_name(kv_rule rule); /* "billing-header"; static */
const char *kv_rule_text(kv_rule rule); /* what it does, without a full stop; static */

static inline bool kv_canonical_has(kv_rules rules, kv_rule rule) {
    return rules >> rule & 1;
}

/* --canonicalise: names of rules, or "all" or "none"; no names at all are all rules. exact: only rules of the request.
 * A name that is no rule counts as nothing; options/ has refused it. */
kv_rules kv_canonical_rules(char *const *names, int n, bool exact);

/* Applies the rules that work on the system prompt to `messages`, as kv_chat_check_messages made them: it is changed
 * where a rule finds something, and nothing that it shares with the request is. Returns the rules that did. */
kv_rules kv_canonical_messages(json_t *messages, kv_rules rules);

/* The names of a set, in the table's order; a new array. */
json_t *kv_canonical_names(kv_rules rules);

#endif
