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

/* vsnprintf may cut inside a UTF-8 character: the message must stay valid, it goes into JSON. */
static void set_message(kv_error *err, const char *fmt, va_list args) {
    int n = vsnprintf(err->message, sizeof err->message, fmt, args);
    if (n < 0) err->message[0] = '\0';
    size_t len = strlen(err->message);
    if ((size_t)n >= sizeof err->message) err->message[kv_utf8_complete(err->message, len)] = '\0';
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
