/* http/auth.h: who may ask, and as whom: API keys, from the command line and from a file that can be read again.
 *
 * A key is 1 to 255 bytes without spaces or control characters. Each is kept in a record of fixed size, and a
 * candidate is compared with all of every record, so that the time taken tells nothing about any key.
 *
 *   # comment                     a line of the file
 *   KEY [scope=NAME] [admin]      NAME: 1 to 64 of A-Z a-z 0-9 . _ -
 *
 * Where a key stands twice, its last line counts; the file comes after the command line.
 *
 * Thread rule: kv_keys_match from any thread; kv_keys_load and kv_keys_free from one. The lock inside is a leaf.
 */
#ifndef KV_HTTP_AUTH_H
#define KV_HTTP_AUTH_H

#include "base/error.h"
#include <pthread.h>
#include <stdbool.h>

#define KV_KEY_MAX       255 /* bytes; a JWT does not fit, and is no API key of ours */
#define KV_KEY_SCOPE_MAX 64

/* What comes with a key. All zero: nothing beyond being served. */
typedef struct kv_rights {
    char scope[KV_KEY_SCOPE_MAX + 1]; /* whose cache it is; "" = the default one, also where the file says "default" */
    bool admin;
} kv_rights;

typedef struct kv_key {
    unsigned char bytes[KV_KEY_MAX + 1]; /* padded with zeros, so that the length is compared too */
    kv_rights rights;
} kv_key;

typedef struct kv_keys {
    pthread_rwlock_t lock; /* guards the rest */
    kv_key *list;          /* owned */
    int n;
} kv_keys;

void kv_keys_init(kv_keys *k);
void kv_keys_free(kv_keys *k);
/* Replaces the set by `given` (n of them) and those in `file` (NULL = none).
 * On any error the old set stays. A file without a key is an error: a server with a key file never opens up. */
kv_status kv_keys_load(kv_keys *k, const char *const *given, int n, const char *file, kv_error *err);
bool kv_keys_any(kv_keys *k); /* are there any, that is: is one needed? */
/* `authorization`: the header's value ("Bearer <key>"), `x_api_key` likewise; NULL = not sent. One that is right is
 * enough. `rights` (may be NULL) becomes that key's; when there is no match, none. */
bool kv_keys_match(kv_rights *rights, kv_keys *k, const char *authorization, const char *x_api_key);

#endif
