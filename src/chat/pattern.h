/* chat/pattern.h: a JSON schema's `pattern` in the words of the engine's converter.
 *
 * The converter takes patterns as a description of the bytes between the quotes of a JSON string. It wants them
 * anchored, knows few escapes, and lets "." or "[^a]" stand for a quotation mark or a line break, which ends the
 * JSON string or breaks it. So each pattern is read (ECMA 262, without look-around and back references) and written
 * anew:
 *
 *   \d{3}|x   ─►   ^(?:[safe]*(?:[0-9]){3}[safe]*|[safe]*x[safe]*)$
 *
 * where every character that JSON escapes stands as its escape, or has left the class it was in. What the result
 * matches is a part of what the pattern matches.
 *
 * Thread rule: pure function.
 */
#ifndef KV_CHAT_PATTERN_H
#define KV_CHAT_PATTERN_H

#include "base/buf.h"
#include "base/error.h"

/* Appends to `out`. KV_INVALID with a message that completes "the pattern …" ("has a look-ahead at character 3"). */
kv_status kv_chat_pattern(kv_buf *out, const char *pattern, kv_error *err);

#endif
