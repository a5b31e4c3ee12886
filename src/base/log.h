/* base/log.h: one line a message, to stderr (or a file), readable by people or, with --log-jsonl, by programs.
 *
 * Levels follow llama-server's verbosity: 0 errors only, 1 warnings, 2 the same, 3 info (default), 4 debug.
 * No message carries prompt or answer text at any level.
 *
 * Thread rule: any thread, at any time after kv_log_init (before it: info to stderr). A line is written whole.
 */
#ifndef KV_BASE_LOG_H
#define KV_BASE_LOG_H

#include "base/error.h"
#include <stdbool.h>

typedef enum kv_log_level { KV_LOG_ERROR, KV_LOG_WARN, KV_LOG_INFO, KV_LOG_DEBUG } kv_log_level;

typedef struct kv_log_config {
    kv_log_level level;
    bool jsonl;       /* one JSON object a line: {"ts":…,"level":"info","msg":…} */
    bool timestamps;  /* prefix text lines with local time */
    const char *file; /* borrowed for the call; NULL = stderr */
} kv_log_config;

kv_status kv_log_init(const kv_log_config *cfg, kv_error *err);
/* Opens the file anew by its name (SIGHUP, logrotate); a no-op on stderr. On an error the log goes on in the old one. */
kv_status kv_log_reopen(kv_error *err);
void kv_log_close(void);
bool kv_log_enabled(kv_log_level level);
void kv_log(kv_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define KV_ERROR(...) kv_log(KV_LOG_ERROR, __VA_ARGS__)
#define KV_WARN(...)  kv_log(KV_LOG_WARN, __VA_ARGS__)
#define KV_INFO(...)  kv_log(KV_LOG_INFO, __VA_ARGS__)
#define KV_DEBUG(...)                                                                                                  \
    do {                                                                                                               \
        if (kv_log_enabled(KV_LOG_DEBUG)) kv_log(KV_LOG_DEBUG, __VA_ARGS__);                                           \
    } while (0)

#endif
