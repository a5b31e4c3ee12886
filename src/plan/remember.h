/* plan/remember.h: small facts that were measured once and must not change from start to start.
 *
 * One JSON file in the state directory: {"version":1,"entries":[{"key":…,"at":Unix time,"value":{…}}, …]}, newest
 * first, at most KV_REMEMBER_MAX. It is published whole; of two servers that write at once one entry may be lost and
 * is measured again. A file that cannot be read counts as empty.
 *
 * Thread rule: none; one thread at a time for a directory.
 */
#ifndef KV_PLAN_REMEMBER_H
#define KV_PLAN_REMEMBER_H

#include "base/json.h"

#define KV_REMEMBER_MAX 64

/* The value under `key`: a new reference, or NULL when there is none (or state_dir is NULL). */
json_t *kv_remember_get(const char *state_dir, const char *key);
/* Takes the reference `value`. Makes the directory. */
kv_status kv_remember_put(const char *state_dir, const char *key, json_t *value, kv_error *err);

#endif
