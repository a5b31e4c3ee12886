#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

void *kv_alloc(size_t n) {
    void *p = calloc(1, n ? n : 1);
    KV_CHECK(p != NULL);
    return p;
}

void *kv_realloc(void *p, size_t n) {
    p = realloc(p, n ? n : 1);
    KV_CHECK(p != NULL);
    return p;
}

char *kv_strndup(const char *s, size_t n) {
    if (!s) return NULL;
    char *copy = kv_alloc(n + 1);
    memcpy(copy, s, n);
    return copy;
}

char *kv_strdup(const char *s) {
    return s ? kv_strndup(s, strlen(s)) : NULL;
}

/* The next capacity that holds `need`: at least half as much again, so that appending is linear in total. */
static size_t grown(size_t cap, size_t need, size_t first) {
    size_t next = cap + cap / 2;
    if (next < first) next = first;
    return next < need ? need : next;
}

void kv_buf_reserve(kv_buf *b, size_t extra) {
    KV_CHECK(extra < SIZE_MAX - b->len - 1);
    size_t need = b->len + extra + 1;
    if (need <= b->cap) return;
    b->cap = grown(b->cap, need, 64);
    b->data = kv_realloc(b->data, b->cap);
    b->data[b->len] = '\0';
}

void kv_buf_fit(kv_buf *b) {
    if (!b->data || b->cap <= b->len + 1) return;
    b->cap = b->len + 1;
    b->data = kv_realloc(b->data, b->cap);
}

void kv_buf_add(kv_buf *b, const void *bytes, size_t n) {
    kv_buf_reserve(b, n);
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void kv_buf_adds(kv_buf *b, const char *s) {
    kv_buf_add(b, s, strlen(s));
}

void kv_buf_addf(kv_buf *b, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    KV_CHECK(n >= 0);
    kv_buf_reserve(b, (size_t)n);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
    va_end(again);
    b->len += (size_t)n;
}

void kv_buf_clear(kv_buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = '\0';
}

void kv_buf_drop_front(kv_buf *b, size_t n) {
    KV_CHECK(n <= b->len);
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

void kv_buf_free(kv_buf *b) {
    free(b->data);
    *b = (kv_buf){0};
}

char *kv_buf_take(kv_buf *b) {
    kv_buf_reserve(b, 0);
    char *data = b->data;
    *b = (kv_buf){0};
    return data;
}

const char *kv_buf_str(const kv_buf *b) {
    return b->data ? b->data : "";
}

void kv_tokens_reserve(kv_tokens *t, size_t extra) {
    KV_CHECK(extra < SIZE_MAX / sizeof *t->data - t->len);
    size_t need = t->len + extra;
    if (need <= t->cap) return;
    t->cap = grown(t->cap, need, 32);
    t->data = kv_realloc(t->data, t->cap * sizeof *t->data);
}

void kv_tokens_add(kv_tokens *t, kv_token token) {
    kv_tokens_reserve(t, 1);
    t->data[t->len++] = token;
}

void kv_tokens_append(kv_tokens *t, const kv_token *tokens, size_t n) {
    if (n == 0) return;
    kv_tokens_reserve(t, n);
    memcpy(t->data + t->len, tokens, n * sizeof *tokens);
    t->len += n;
}

void kv_tokens_free(kv_tokens *t) {
    free(t->data);
    *t = (kv_tokens){0};
}

size_t kv_tokens_common(const kv_token *a, size_t na, const kv_token *b, size_t nb) {
    size_t n = na < nb ? na : nb;
    size_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}
