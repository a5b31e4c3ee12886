#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>

#include "base/error.h"

static kv_hash from_xxh(XXH128_hash_t h) {
    return (kv_hash){h.low64, h.high64};
}

kv_hash kv_hash_bytes(const void *data, size_t n) {
    return from_xxh(XXH3_128bits(data, n));
}

uint64_t kv_hash_bytes64(const void *data, size_t n) {
    return XXH3_64bits(data, n);
}

/* Where integers are big-endian, tokens are hashed in pieces that were put in order. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define TO_LE64(x) __builtin_bswap64(x)
#define TO_LE32(x) __builtin_bswap32(x)
#else
#define TO_LE64(x) (x)
#define TO_LE32(x) (x)
#endif

kv_hash kv_hash_chain(kv_hash parent, const kv_token *tokens, size_t n) {
    uint64_t head[2] = {TO_LE64(parent.lo), TO_LE64(parent.hi)};
    uint32_t piece[256];
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, sizeof head);
    for (size_t i = 0; i < n;) {
        size_t k = n - i < 256 ? n - i : 256;
        for (size_t j = 0; j < k; j++) piece[j] = TO_LE32((uint32_t)tokens[i + j]);
        XXH3_128bits_update(&state, piece, k * sizeof *piece);
        i += k;
    }
    return from_xxh(XXH3_128bits_digest(&state));
}

void kv_hash_hex(char out[33], kv_hash h) {
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}

static bool parse_hex64(uint64_t *out, const char *hex) {
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef";
        const char *d = hex[i] ? strchr(digits, hex[i]) : NULL;
        if (!d) return false;
        *out = *out << 4 | (uint64_t)(d - digits);
    }
    return true;
}

bool kv_hash_from_hex(kv_hash *out, const char *hex) {
    return strlen(hex) == 32 && parse_hex64(&out->hi, hex) && parse_hex64(&out->lo, hex + 16);
}
