/* http/inflate.h: request bodies that come compressed, unpacked as they come.
 *
 * The limit counts what comes out: a body that would grow past it is refused at the byte where it does, whatever it was
 * packed into.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_HTTP_INFLATE_H
#define KV_HTTP_INFLATE_H

#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>

typedef struct kv_inflate kv_inflate;

/* A Content-Encoding that we unpack: gzip (x-gzip) or deflate, in any case of letters. */
bool kv_inflate_knows(const char *coding);
kv_inflate *kv_inflate_new(void);
void kv_inflate_free(kv_inflate *z); /* NULL is fine */
/* Appends what the next n bytes become to `out`. KV_TOO_LARGE when `out` would be longer than max, KV_INVALID when they
 * are not gzip's or zlib's format. After an error it must not be called again. */
kv_status kv_inflate_feed(kv_buf *out, kv_inflate *z, const char *data, size_t n, size_t max, kv_error *err);
/* The body is there: KV_INVALID when it ends in the middle. */
kv_status kv_inflate_end(const kv_inflate *z, kv_error *err);

#endif
