/* tests/os/wipe.h: removes a test's own directory with all that is in it. */
#ifndef KV_TESTS_OS_WIPE_H
#define KV_TESTS_OS_WIPE_H

#include <stdio.h>
#include <unistd.h>

#include "os/files.h"

static inline bool wipe_entry(void *ctx, const char *name) {
    char child[512];
    snprintf(child, sizeof child, "%s/%s", (const char *)ctx, name);
    if (unlink(child) != 0) {
        kv_files_real()->list(kv_files_real(), child, wipe_entry, child);
        rmdir(child);
    }
    return true;
}

/* As rmdir. */
static inline int wipe(char *dir) {
    kv_files_real()->list(kv_files_real(), dir, wipe_entry, dir);
    return rmdir(dir);
}

#endif
