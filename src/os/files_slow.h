/* os/files_slow.h: the operating system's files, as if each write of more than a page took long: for tests of what does
 * not get written in time.
 *
 * Thread rule: any thread.
 */
#ifndef KV_OS_FILES_SLOW_H
#define KV_OS_FILES_SLOW_H

#include "os/files.h"

typedef struct kv_files_slow {
    kv_files files;
    int64_t write_ms;
} kv_files_slow;

/* &out->files can be used while `out` lives, and is not copied. */
void kv_files_slow_init(kv_files_slow *out, int64_t write_ms);

#endif
