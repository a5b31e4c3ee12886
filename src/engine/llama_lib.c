/* engine/llama_lib.c: one-time set-up of libllama, and its log. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include "engine/llama_lib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "ggml-backend.h"
#include "llama.h"

/* ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────── */

#define LINE_MAX_BYTES 1024 /* longer engine lines are cut */

/* The engine writes lines in pieces (a level, then CONT pieces), each thread its own. */
typedef struct thread_log {
    char line[LINE_MAX_BYTES];
    size_t len;
    enum ggml_log_level level;
    int trap_depth;
    bool trap_warnings;
    enum ggml_log_level trapped_level;
    char trapped[LINE_MAX_BYTES];
} thread_log;

static _Thread_local thread_log tl;

static void emit_line(void) {
    while (tl.len > 0 && (tl.line[tl.len - 1] == ' ' || tl.line[tl.len - 1] == '\r')) tl.len--;
    tl.line[tl.len] = '\0';
    if (tl.len == 0) return;
    tl.len = 0;
    kv_log_level level = KV_LOG_DEBUG;
    bool is_error = tl.level == GGML_LOG_LEVEL_ERROR;
    if (is_error || tl.level == GGML_LOG_LEVEL_WARN) {
        if (tl.trap_depth > 0 && tl.level >= tl.trapped_level) {
            tl.trapped_level = tl.level;
            memcpy(tl.trapped, tl.line, sizeof tl.trapped);
        }
        bool quiet = tl.trap_depth > 0 && (is_error || tl.trap_warnings);
        if (!quiet) level = is_error ? KV_LOG_ERROR : KV_LOG_WARN;
    }
    if (kv_log_enabled(level)) kv_log(level, "engine: %s", tl.line);
}

static void on_engine_log(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    if (level != GGML_LOG_LEVEL_CONT) {
        emit_line();
        tl.level = level;
    }
    for (const char *p = text; *p; p++) {
        if (*p == '\n') emit_line();
        else if (tl.len < LINE_MAX_BYTES - 1) tl.line[tl.len++] = *p;
    }
}

void kv_llama_trap_begin(bool warnings) {
    if (tl.trap_depth++ == 0) {
        tl.trap_warnings = warnings;
        tl.trapped[0] = '\0';
        tl.trapped_level = GGML_LOG_LEVEL_NONE;
    }
}

const char *kv_llama_trap_text(void) {
    emit_line();
    return tl.trapped;
}

void kv_llama_trap_end(void) {
    KV_CHECK(tl.trap_depth > 0);
    emit_line();
    tl.trap_depth--;
}

/* ── set-up ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kv_error init_error;
static char backends_text[512];

/* Where the backends lie: beside libllama, so that an installed or moved tree works without a setting. */
static bool library_dir(char *out, size_t cap) {
    const char *env = getenv("KVASIR_ENGINE_DIR");
    if (env && *env) {
        strncpy(out, env, cap - 1);
        out[cap - 1] = '\0';
        return true;
    }
    /* ISO C has no cast between the two kinds of pointer. */
    union {
        void (*function)(void);
        void *object;
    } address = {.function = llama_backend_init};
    Dl_info where;
    if (!dladdr(address.object, &where) || !where.dli_fname) return false;
    char *real = realpath(where.dli_fname, NULL);
    if (!real) return false;
    char *slash = strrchr(real, '/');
    bool ok = slash && (size_t)(slash - real) < cap;
    if (ok) {
        memcpy(out, real, (size_t)(slash - real));
        out[slash - real] = '\0';
    }
    free(real);
    return ok;
}

static void describe_backends(void) {
    kv_buf b = {0};
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (b.len) kv_buf_adds(&b, ", ");
        const char *name = ggml_backend_dev_name(dev), *desc = ggml_backend_dev_description(dev);
        kv_buf_adds(&b, name ? name : "?");
        if (desc && *desc) kv_buf_addf(&b, " (%s)", desc);
    }
    strncpy(backends_text, kv_buf_str(&b), sizeof backends_text - 1);
    kv_buf_free(&b);
}

/* "0.5.0-dev" (as the prebuilt packages say) and "0.5.0" are both release v0.5.0. */
static bool is_release(const char *version, const char *release) {
    if (*release == 'v') release++;
    if (*version == 'v') version++;
    size_t n = strlen(release);
    return strncmp(version, release, n) == 0 && (version[n] == '\0' || version[n] == '-');
}

static void init_once(void) {
    llama_log_set(on_engine_log, NULL);
    const char *version = llama_version();
    if (!version || !is_release(version, KVASIR_ENGINE_RELEASE)) {
        kv_fail(&init_error, KV_ENGINE,
                "the loaded libllama says it is release \"%s\", but kvasir was built for %s; run the set-up again or "
                "point the library path at the right one",
                version ? version : "?", KVASIR_ENGINE_RELEASE);
        return;
    }
    char dir[4096];
    if (!library_dir(dir, sizeof dir)) {
        kv_fail(&init_error, KV_ENGINE,
                "cannot tell which directory libllama was loaded from; name it in KVASIR_ENGINE_DIR");
        return;
    }
    ggml_backend_load_all_from_path(dir);
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        kv_fail(&init_error, KV_ENGINE,
                "no CPU backend of the engine was found in %s; name the directory of its libraries in "
                "KVASIR_ENGINE_DIR",
                dir);
        return;
    }
    llama_backend_init();
    describe_backends();
}

kv_status kv_llama_lib_init(kv_error *err) {
    pthread_once(&once, init_once);
    if (init_error.status != KV_OK && err) *err = init_error;
    return init_error.status;
}

const char *kv_llama_lib_backends(void) {
    return backends_text;
}

bool kv_llama_lib_has_gpu(void) {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) ||
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
}
