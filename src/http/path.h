/* http/path.h: from a request target to the path that routes are matched with.
 *
 *   "/api//v1/v1/chat%2Fcompletions/?x=1"  with prefix "/api"  ─►  "/v1/chat/completions"
 *
 * Clients put base URLs together by hand, so a doubled slash, a trailing one and a doubled "/v1" (a base URL that
 * has it, and a client that adds it) mean the same path. "." and ".." are ordinary names: no file is ever opened by
 * a path.
 *
 * Thread rule: pure functions.
 */
#ifndef KV_HTTP_PATH_H
#define KV_HTTP_PATH_H

#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>

/* Replaces what `out` held. `target`: as it stood in the request line, any bytes, NUL-terminated; origin form, absolute
 * form ("http://host/path") or "*". `prefix`: NULL or "" for none, with or without slashes at its ends.
 * KV_INVALID: not a path, a broken % escape, a control character, not UTF-8. KV_NOT_FOUND: not below the prefix (then
 * `out` has the path as asked for). */
kv_status kv_path_normalise(kv_buf *out, const char *target, const char *prefix, kv_error *err);

/* Does `path` fit a route's pattern? Equal, but for one segment "{}" of the pattern, which any segment that is not empty
 * fits: "/slots/{}" fits "/slots/3"; or for its end "{*}", which any rest that is not empty fits, slashes included.
 * *segment, when it fits: that segment or rest, *n bytes of `path`; NULL without one. */
bool kv_path_fits(const char **segment, size_t *n, const char *pattern, const char *path);

#endif
