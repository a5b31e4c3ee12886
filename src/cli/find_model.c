#include "cli/find_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hub/hub.h"

#define LOG_EVERY_US 10000000 /* where no terminal shows the line that is written over */

typedef struct progress {
    bool terminal;
    int64_t began_us, logged_us;
    uint64_t began_at; /* bytes that were there before */
} progress;

static void describe(char *out, size_t cap, const progress *p, const char *name, uint64_t done, uint64_t total) {
    double seconds = (double)(kv_now_us(kv_clock_real()) - p->began_us) / 1e6;
    double rate = seconds > 0 ? (double)(done - p->began_at) / seconds : 0;
    if (total == 0) snprintf(out, cap, "fetching %.120s: %.1f MB, %.1f MB/s", name, (double)done / 1e6, rate / 1e6);
    else
        snprintf(out, cap, "fetching %.120s: %.1f of %.1f MB, %d %%, %.1f MB/s", name, (double)done / 1e6,
                 (double)total / 1e6, (int)((double)done * 100 / (double)total), rate / 1e6);
}

static bool show(void *ctx, const char *name, uint64_t done, uint64_t total) {
    progress *p = ctx;
    char line[300];
    int64_t now = kv_now_us(kv_clock_real());
    if (p->began_us == 0 || done < p->began_at) *p = (progress){p->terminal, now, 0, done};
    bool over = total > 0 && done == total;
    describe(line, sizeof line, p, name, done, total);
    if (p->terminal) {
        fprintf(stderr, "\r\033[K%s%s", line, over ? "\n" : "");
        fflush(stderr);
    } else if (over || now - p->logged_us >= LOG_EVERY_US) {
        KV_INFO("%s", line);
        p->logged_us = now;
    }
    if (over) p->began_us = 0; /* the next part's speed is its own */
    return true;
}

kv_status kv_find_model(kv_options *o, bool offline, kv_error *err) {
    progress p = {.terminal = isatty(STDERR_FILENO) && !o->log_jsonl && kv_log_enabled(KV_LOG_INFO)};
    if (!o->hf_repo && !o->model_url) return o->model ? kv_hub_check_parts(o->model, err) : KV_OK;
    char *path = NULL;
    kv_hub_ask ask = {.repo = o->hf_repo,
                      .file = o->hf_file,
                      .url = o->model_url,
                      .path = o->model,
                      .token = o->hf_token,
                      .offline = offline || o->offline,
                      .progress = show,
                      .ctx = &p};
    kv_status st = kv_hub_find(&path, &ask, err);
    if (st != KV_OK) return st;
    free(o->model);
    o->model = path;
    kv_buf shown = {0};
    if (!o->hf_repo) kv_hub_show_url(&shown, o->model_url);
    KV_INFO("%s is %s", o->hf_repo ? o->hf_repo : kv_buf_str(&shown), path);
    kv_buf_free(&shown);
    return KV_OK;
}
