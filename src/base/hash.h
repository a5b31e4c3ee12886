/* base/hash.h: 128-bit identities and checksums (XXH3), and the chain that names a token path.
 *
 * Thread rule: pure functions; the streaming state belongs to one thread.
 */
#ifndef KV_BASE_HASH_H
#define KV_BASE_HASH_H

#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kv_hash {
    uint64_t lo, hi;
} kv_hash;

static inline bool kv_hash_equal(kv_hash a, kv_hash b) {
    return a.lo == b.lo && a.hi == b.hi;
}
static inline bool kv_hash_is_zero(kv_hash a) {
    return a.lo == 0 && a.hi == 0;
}
kv_hash kv_hash_bytes(const void *data, size_t n);
uint64_t kv_hash_bytes64(const void *data, size_t n);
/* key of a path that goes on: XXH3-128(parent key ‖ tokens), tokens as little-endian 32-bit integers */
kv_hash kv_hash_chain(kv_hash parent, const kv_token *tokens, size_t n);
void kv_hash_hex(char out[33], kv_hash h);
bool kv_hash_from_hex(kv_hash *out, const char *hex);

#endif
