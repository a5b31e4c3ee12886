#include "http/inflate.h"

#include <stdlib.h>
#include <strings.h>
#include <zlib.h>

#define AUTO_DETECT (15 + 32) /* zlib's windowBits: the largest window, gzip's or zlib's header */
#define STEP        (64u << 10)

struct kv_inflate {
    z_stream stream;
    bool begun; /* a byte came */
    bool ended; /* the last member is complete */
};

bool kv_inflate_knows(const char *coding) {
    return strcasecmp(coding, "gzip") == 0 || strcasecmp(coding, "x-gzip") == 0 || strcasecmp(coding, "deflate") == 0;
}

kv_inflate *kv_inflate_new(void) {
    kv_inflate *z = kv_alloc(sizeof *z);
    KV_CHECK(inflateInit2(&z->stream, AUTO_DETECT) == Z_OK);
    return z;
}

void kv_inflate_free(kv_inflate *z) {
    if (!z) return;
    inflateEnd(&z->stream);
    free(z);
}

/* One call of zlib, into at most a step of room. */
static kv_status inflate_some(kv_buf *out, kv_inflate *z, size_t max, kv_error *err) {
    size_t room = max - out->len < STEP ? max - out->len : STEP;
    char beyond; /* with the buffer full, a further byte would be too many */
    kv_buf_reserve(out, room);
    z->stream.next_out = room ? (Bytef *)(out->data + out->len) : (Bytef *)&beyond;
    z->stream.avail_out = room ? (uInt)room : 1;
    int got = inflate(&z->stream, Z_NO_FLUSH);
    size_t n = (room ? room : 1) - z->stream.avail_out;
    if (!room && n)
        return kv_fail(err, KV_TOO_LARGE, "the request body unpacks to more than the limit of %zu bytes", max);
    out->len += n;
    if (room) out->data[out->len] = '\0';
    z->ended = got == Z_STREAM_END;
    if (got == Z_OK || got == Z_STREAM_END || got == Z_BUF_ERROR) return KV_OK;
    return kv_fail(err, KV_INVALID, "the request body is not what its Content-Encoding says: %s",
                   z->stream.msg ? z->stream.msg : "it cannot be unpacked");
}

kv_status kv_inflate_feed(kv_buf *out, kv_inflate *z, const char *data, size_t n, size_t max, kv_error *err) {
    z->begun |= n > 0;
    /* zlib counts in 32 bits; a piece of a body is far smaller */
    KV_CHECK(n <= UINT32_MAX);
    z->stream.next_in = (Bytef *)data;
    z->stream.avail_in = (uInt)n;
    kv_status st = KV_OK;
    uInt room_left = 0;
    while (st == KV_OK && (z->stream.avail_in || room_left == 0)) {
        if (z->ended && z->stream.avail_in == 0) break;
        if (z->ended) inflateReset(&z->stream); /* gzip's members may follow one another */
        st = inflate_some(out, z, max, err);
        room_left = z->stream.avail_out;
    }
    return st;
}

kv_status kv_inflate_end(const kv_inflate *z, kv_error *err) {
    if (z->ended || !z->begun) return KV_OK;
    return kv_fail(err, KV_INVALID, "the compressed request body ends in the middle");
}
