/* base/error.h: status codes and the error that explains them.
 *
 * A function that can fail returns a `kv_status`; where the caller can act on the reason it also takes a
 * `kv_error *` as its last argument. The error says what failed, on what, and what the user can do about it.
 * A `kv_error *` may be NULL: then only the status comes back. Library code never prints and never exits.
 *
 * Thread rule: a kv_error belongs to the caller; nothing here is shared.
 */
#ifndef KV_BASE_ERROR_H
#define KV_BASE_ERROR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, HTTP status when it reaches a client, OpenAI-style error type) */
#define KV_STATUS_TABLE(X)                                                                                             \
    X(OK, 200, "")                                                                                                     \
    X(INVALID, 400, "invalid_request_error")          /* the caller's input is wrong */                                \
    X(CONTEXT_FULL, 400, "exceed_context_size_error") /* prompt longer than the served context */                      \
    X(UNAUTHORIZED, 401, "authentication_error")                                                                       \
    X(FORBIDDEN, 403, "permission_error")                                                                              \
    X(NOT_FOUND, 404, "not_found_error")                                                                               \
    X(BAD_METHOD, 405, "invalid_request_error")                                                                        \
    X(TOO_LARGE, 413, "invalid_request_error") /* body or header over its stated maximum */                            \
    X(UNSUPPORTED, 501, "not_supported_error") /* a feature this build or model lacks */                               \
    X(BUSY, 503, "unavailable_error")          /* queue full, loading, draining: try again */                          \
    X(CANCELLED, 499, "cancelled_error")       /* the client hung up or the server stops */                            \
    X(NO_MEMORY, 500, "server_error")          /* malloc or a memory budget said no */                                 \
    X(NO_CELLS, 500, "server_error")           /* the engine's cell pool is full; nothing was processed */             \
    X(ENGINE_DAMAGED, 500, "server_error")     /* a compute failed half-way: sequences are no longer valid */          \
    X(NOT_NUMBERS, 500, "server_error")        /* the engine computed NaN: nothing in its memory is valid */           \
    X(ENGINE, 500, "server_error")             /* the engine refused or threw; its state is as before */               \
    X(IO, 500, "server_error")                 /* a system call failed; message carries errno's text */                \
    X(CORRUPT, 500, "server_error")            /* data from disk failed its check */                                   \
    X(INTERNAL, 500, "server_error")

typedef enum kv_status {
#define X(name, http, type) KV_##name,
    KV_STATUS_TABLE(X)
#undef X
        KV_STATUS_COUNT
} kv_status;

typedef struct kv_error {
    kv_status status;
    char message[768];       /* one or two sentences, NUL-terminated, always valid UTF-8 */
    char field[96];          /* the request field or option at fault, "" when none */
    int64_t n_prompt_tokens; /* CONTEXT_FULL only, else 0 */
    int64_t n_ctx;           /* CONTEXT_FULL only, else 0 */
    const char *request_id;  /* borrowed; whose error it is, while its body is written. NULL elsewhere */
} kv_error;

/* Fill `err` (may be NULL) and return `status`, so that `return kv_fail(err, KV_INVALID, "...", ...)` reads well. */
kv_status kv_fail(kv_error *err, kv_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same, naming the request field or option at fault. */
kv_status kv_fail_field(kv_error *err, const char *field, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* KV_IO with errno's text appended: "open /a/b: Permission denied". Reads errno before anything else. */
kv_status kv_fail_errno(kv_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const char *kv_status_name(kv_status status); /* "INVALID"; static */
int kv_status_http(kv_status status);         /* 400 */
const char *kv_status_type(kv_status status); /* "invalid_request_error"; static */

/* Always on, unlike assert(): a broken promise inside kvasir. Prints and aborts; never for outside data. */
#define KV_CHECK(cond)                                                                                                 \
    do {                                                                                                               \
        if (!(cond)) kv_check_failed(#cond, __FILE__, __LINE__);                                                       \
    } while (0)
_Noreturn void kv_check_failed(const char *cond, const char *file, int line);

#endif
