#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static const struct {
    const char *name;
    int http;
    const char *type;
} statuses[KV_STATUS_COUNT] = {
#define X(name, http, type) {#name, http, type},
    KV_STATUS_TABLE(X)
#undef X
};

/* Puts '?' for each byte that belongs to no UTF-8 character: the text goes into JSON, and what it quotes (arguments, file
 * names, request fields) may be any bytes, or be cut by a precision. */
static void make_valid(char *s) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        size_t len = 1, most = n - i < 4 ? n - i : 4;
        while (len <= most && !kv_utf8_valid(s + i, len)) len++;
        if (len > most) {
            s[i] = '?';
            len = 1;
        }
        i += len;
    }
}

static void set_message(kv_error *err, const char *fmt, va_list args) {
    int n = vsnprintf(err->message, sizeof err->message, fmt, args);
    if (n < 0) err->message[0] = '\0';
    /* A message that was cut may end inside a character. */
    if ((size_t)n >= sizeof err->message) err->message[kv_utf8_complete(err->message, strlen(err->message))] = '\0';
    make_valid(err->message);
}

kv_status kv_fail(kv_error *err, kv_status status, const char *fmt, ...) {
    if (err) {
        memset(err, 0, sizeof *err);
        err->status = status;
        va_list args;
        va_start(args, fmt);
        set_message(err, fmt, args);
        va_end(args);
    }
    return status;
}

kv_status kv_fail_field(kv_error *err, const char *field, const char *fmt, ...) {
    if (err) {
        memset(err, 0, sizeof *err);
        err->status = KV_INVALID;
        snprintf(err->field, sizeof err->field, "%s", field);
        make_valid(err->field);
        va_list args;
        va_start(args, fmt);
        set_message(err, fmt, args);
        va_end(args);
    }
    return KV_INVALID;
}

kv_status kv_fail_errno(kv_error *err, const char *fmt, ...) {
    int code = errno;
    if (err) {
        memset(err, 0, sizeof *err);
        err->status = KV_IO;
        va_list args;
        va_start(args, fmt);
        set_message(err, fmt, args);
        va_end(args);
        size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof err->message - n, ": %s", strerror(code));
    }
    return KV_IO;
}

const char *kv_status_name(kv_status status) {
    return (unsigned)status < KV_STATUS_COUNT ? statuses[status].name : "UNKNOWN";
}

int kv_status_http(kv_status status) {
    return (unsigned)status < KV_STATUS_COUNT ? statuses[status].http : 500;
}

const char *kv_status_type(kv_status status) {
    return (unsigned)status < KV_STATUS_COUNT ? statuses[status].type : "server_error";
}

_Noreturn void kv_check_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "kvasir: broken promise: %s (%s:%d)\n", cond, file, line);
    abort();
}
