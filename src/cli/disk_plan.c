#include "cli/disk_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/machine.h"
#include "store/store.h"

/* --cache-disk auto */
#define DISK_MOST      (64ull << 30)
#define DISK_KEEP_FREE (10ull << 30)
#define DISK_SHARE     10
#define DISK_TINY      (1ull << 30) /* below this a budget is of no use by itself */

/* Why nothing is kept on such a volume unless it was asked for; NULL: all is well. */
static const char *unsuitable(const kv_disk_info *d, uint64_t budget) {
    if (d->memory) return "it lies in memory";
    if (d->overlay) return "it lies in a container's own layer, which goes with the container";
    if (d->network) return "it lies on a network file system";
    if (d->read_only) return "it cannot be written";
    return budget < DISK_TINY ? "the volume has too little room" : NULL;
}

/* The nearest folder above that is there. */
static int disk_of(kv_disk_plan *p) {
    const kv_files *f = kv_files_real();
    int code;
    kv_buf_adds(&p->nearest, kv_buf_str(&p->dir));
    while ((code = f->disk(f, kv_buf_str(&p->nearest), &p->disk)) != 0) {
        char *slash = p->nearest.data ? strrchr(p->nearest.data, '/') : NULL;
        if (!slash || slash == p->nearest.data) break;
        *slash = '\0';
        p->nearest.len = (size_t)(slash - p->nearest.data);
    }
    return code;
}

void kv_disk_plan_make(kv_disk_plan *p, const kv_options *opt) {
    kv_error err = {0};
    *p = (kv_disk_plan){.asked_for = opt->cache_dir || opt->cache_disk > 0};
    if (opt->cache_disk == 0 || (opt->fake && !p->asked_for)) return;
    if (opt->cache_dir) {
        kv_buf_adds(&p->dir, opt->cache_dir);
    } else if (kv_dir_cache(&p->dir, &err) != KV_OK) {
        snprintf(p->why, sizeof p->why, "%.255s", err.message);
        return;
    }
    int code = disk_of(p);
    uint64_t tenth = p->disk.total / DISK_SHARE, budget = tenth < DISK_MOST ? tenth : DISK_MOST;
    p->keep_free = tenth > DISK_KEEP_FREE ? tenth : DISK_KEEP_FREE;
    if (opt->cache_disk > 0) {
        p->budget = (uint64_t)opt->cache_disk;
        p->keep_free =
            p->disk.total / 100; /* who names a size wants it; the volume is not filled to the brim all the same */
        return;
    }
    const char *why = code != 0 ? strerror(-code) : unsuitable(&p->disk, p->disk.free > p->keep_free ? budget : 0);
    if (why && !opt->cache_dir) snprintf(p->why, sizeof p->why, "%s", why);
    else p->budget = budget > KV_STORE_MIN ? budget : KV_STORE_MIN;
}

void kv_disk_plan_free(kv_disk_plan *p) {
    kv_buf_free(&p->dir);
    kv_buf_free(&p->nearest);
}
