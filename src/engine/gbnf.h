/* engine/gbnf.h: checks a grammar before the engine parses it.
 *
 * The engine's own parser prints a grammar that it cannot read to stderr, recurses without a bound, and expands
 * repetitions in place; its left-recursion test takes exponential time on some grammars and misses recursion through
 * rules that are empty only by way of others, on which sampling then never ends. A grammar comes with a request, so
 * here it is parsed first, in linear time and bounded memory: syntax (with line and column), rules that are missing,
 * left recursion of every kind, and the size of what it expands to.
 *
 * Thread rule: none.
 */
#ifndef KV_ENGINE_GBNF_H
#define KV_ENGINE_GBNF_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

/* `is_token` tells whether "<text>" (n bytes, brackets included) is exactly one token; NULL: any text is taken.
 * KV_INVALID, field "grammar". */
kv_status kv_gbnf_check(const char *grammar, bool (*is_token)(void *ctx, const char *text, size_t n), void *ctx,
                        kv_error *err);

#endif
