/* base/buf.h: a growable byte buffer, and a growable array of tokens.
 *
 * A zero-initialised kv_buf is a valid empty one. `data` is NUL-terminated whenever it is not NULL (the NUL is not
 * counted in `len`), so text can be passed on as a C string; bytes inside may be 0 all the same.
 * Growing aborts the process when malloc fails (KV_CHECK): callers bound sizes before they grow.
 *
 * Thread rule: none; one owner at a time.
 */
#ifndef KV_BASE_BUF_H
#define KV_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kv_buf {
    char *data; /* owned; NULL while nothing was ever added */
    size_t len;
    size_t cap;
} kv_buf;

void kv_buf_reserve(kv_buf *b, size_t extra); /* room for `extra` more bytes and the NUL */
void kv_buf_add(kv_buf *b, const void *bytes, size_t n);
void kv_buf_adds(kv_buf *b, const char *s);
void kv_buf_addf(kv_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kv_buf_clear(kv_buf *b);                /* len = 0, memory kept */
void kv_buf_drop_front(kv_buf *b, size_t n); /* removes the first n bytes; n <= len */
void kv_buf_fit(kv_buf *b);                  /* gives back what lies behind the NUL: for what is kept for long */
void kv_buf_free(kv_buf *b);                 /* frees and zeroes */
char *kv_buf_take(kv_buf *b);                /* transfers the bytes to the caller (free()); never NULL */
const char *kv_buf_str(const kv_buf *b);     /* "" for an empty one */

typedef int32_t kv_token;

typedef struct kv_tokens {
    kv_token *data; /* owned */
    size_t len;     /* in tokens */
    size_t cap;
} kv_tokens;

void kv_tokens_add(kv_tokens *t, kv_token token);
void kv_tokens_append(kv_tokens *t, const kv_token *tokens, size_t n);
void kv_tokens_reserve(kv_tokens *t, size_t extra);
void kv_tokens_free(kv_tokens *t);
/* Length of the longest common prefix of two token arrays, in tokens. */
size_t kv_tokens_common(const kv_token *a, size_t na, const kv_token *b, size_t nb);

/* Checked allocation: abort (KV_CHECK) instead of returning NULL. Sizes of 0 give a valid pointer. */
void *kv_alloc(size_t n); /* zeroed */
void *kv_realloc(void *p, size_t n);
char *kv_strdup(const char *s); /* NULL in, NULL out */
char *kv_strndup(const char *s, size_t n);

#endif
