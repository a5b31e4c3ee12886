#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/json.h"

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static struct {
    pthread_mutex_t mutex; /* guards file and path; a leaf */
    FILE *file;            /* NULL = stderr */
    char *path;
    bool jsonl, timestamps;
    _Atomic int level;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .level = KV_LOG_INFO};

kv_status kv_log_init(const kv_log_config *cfg, kv_error *err) {
    FILE *file = NULL;
    if (cfg->file) {
        file = fopen(cfg->file, "ae");
        if (!file) return kv_fail_errno(err, "log file: open %s", cfg->file);
    }
    pthread_mutex_lock(&state.mutex);
    if (state.file) fclose(state.file);
    free(state.path);
    state.file = file;
    state.path = kv_strdup(cfg->file);
    state.jsonl = cfg->jsonl;
    state.timestamps = cfg->timestamps;
    atomic_store(&state.level, cfg->level);
    pthread_mutex_unlock(&state.mutex);
    return KV_OK;
}

kv_status kv_log_reopen(kv_error *err) {
    kv_status st = KV_OK;
    pthread_mutex_lock(&state.mutex);
    if (state.path) {
        FILE *file = fopen(state.path, "ae");
        if (file) { /* else keep writing to the old one: a log is not lost because its directory is gone */
            fclose(state.file);
            state.file = file;
        } else {
            st = kv_fail_errno(err, "log file: open %s", state.path);
        }
    }
    pthread_mutex_unlock(&state.mutex);
    return st;
}

void kv_log_close(void) {
    pthread_mutex_lock(&state.mutex);
    if (state.file) fclose(state.file);
    free(state.path);
    state.file = NULL;
    state.path = NULL;
    pthread_mutex_unlock(&state.mutex);
}

bool kv_log_enabled(kv_log_level level) {
    return (int)level <= atomic_load_explicit(&state.level, memory_order_relaxed);
}

static void format_line(kv_buf *line, kv_log_level level, const char *text, size_t n) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (state.jsonl) {
        kv_buf_addf(line, "{\"ts\":%lld.%03ld,\"level\":\"%s\",\"msg\":", (long long)now.tv_sec, now.tv_nsec / 1000000,
                    level_names[level]);
        kv_json_quote(line, text, n);
        kv_buf_adds(line, "}");
    } else {
        if (state.timestamps) {
            struct tm tm;
            localtime_r(&now.tv_sec, &tm);
            char stamp[32];
            strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &tm);
            kv_buf_addf(line, "%s.%03ld ", stamp, now.tv_nsec / 1000000);
        }
        if (level < KV_LOG_INFO) kv_buf_addf(line, "%s: ", level == KV_LOG_WARN ? "warning" : "error");
        /* One message is one line: what comes from outside cannot forge another. */
        for (size_t i = 0; i < n; i++) {
            unsigned char c = (unsigned char)text[i];
            if (c < 0x20 || c == 0x7f) kv_buf_addf(line, "\\x%02x", c);
            else kv_buf_add(line, &text[i], 1);
        }
    }
    kv_buf_adds(line, "\n");
}

void kv_log(kv_log_level level, const char *fmt, ...) {
    if (!kv_log_enabled(level)) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0) return;
    size_t len = strlen(text);
    while (len && text[len - 1] == '\n') len--;
    pthread_mutex_lock(&state.mutex);
    kv_buf line = {0};
    format_line(&line, level, text, len);
    FILE *out = state.file ? state.file : stderr;
    fwrite(line.data, 1, line.len, out);
    fflush(out);
    pthread_mutex_unlock(&state.mutex);
    kv_buf_free(&line);
}
