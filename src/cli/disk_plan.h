/* cli/disk_plan.h: where the disk cache goes, and how much it may take: options and volume ─► directory and budget.
 *
 * Thread rule: any thread. Nothing is written, and nothing said.
 */
#ifndef KV_CLI_DISK_PLAN_H
#define KV_CLI_DISK_PLAN_H

#include "options/options.h"
#include "os/files.h"

typedef struct kv_disk_plan {
    kv_buf dir;     /* owned; empty without a home directory, or where none is wanted */
    kv_buf nearest; /* owned; dir, or the nearest folder above it that is there */
    kv_disk_info disk;
    uint64_t budget, keep_free; /* bytes; budget 0: nothing is kept on disk */
    bool asked_for;             /* a directory or a size was named */
    char why[256];              /* why nothing is kept although it is not turned off; else "" */
} kv_disk_plan;

void kv_disk_plan_make(kv_disk_plan *out, const kv_options *opt);
void kv_disk_plan_free(kv_disk_plan *p);

#endif
