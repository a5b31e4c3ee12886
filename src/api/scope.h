/* api/scope.h: whose cache a request uses.
 *
 *   key's scope (key file)   X-Kvasir-Scope   cache_salt      scope
 *   none                     none             none            ""                     the default one
 *   team                     none             none            team
 *   team                     eu               x:1             4:team2:eu3:x:1
 *
 * Header and salt only divide the key's own scope. A name has no ':' (http/auth.h), so that no two ways of asking give
 * the same text. Nothing else in a request makes a scope.
 *
 * Thread rule: none.
 */
#ifndef KV_API_SCOPE_H
#define KV_API_SCOPE_H

#include "http/http.h"

#define KV_SCOPE_HEADER     "X-Kvasir-Scope"
#define KV_SCOPE_HEADER_MAX 128 /* characters */
#define KV_SCOPE_SALT_MAX   256 /* bytes */

/* *out: owned by the caller; never NULL on success. `salt`: the body's, NULL = none. KV_INVALID names the header. */
kv_status kv_scope_of(char **out, const kv_http_request *req, const char *salt, kv_error *err);
/* The same from its three parts, each may be NULL or "". */
char *kv_scope_join(const char *key, const char *header, const char *salt);

#endif
