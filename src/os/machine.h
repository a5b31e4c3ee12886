/* os/machine.h: what this machine lets the process use.
 *
 * Thread rule: any thread; nothing is cached, callers keep what they need.
 */
#ifndef KV_OS_MACHINE_H
#define KV_OS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/error.h"

/* Physical cores the process may use: affinity mask and cgroup (v1 and v2) CPU quota included, ≥ 1. */
int kv_machine_cores(void);
/* Bytes of memory: the smaller of physical memory and the cgroup limit; and what of it is available now. */
uint64_t kv_machine_memory_total(void);
uint64_t kv_machine_memory_available(void);
/* Resident set of this process in bytes. */
uint64_t kv_machine_rss(void);
/* A short text that is equal on the same machine and differs on another kind: CPU model, cores, flags hash. */
void kv_machine_fingerprint(kv_buf *out);

/* The directory where kvasir remembers small facts (measured choices): $XDG_STATE_HOME/kvasir, ~/.local/state/kvasir,
 * on macOS ~/Library/Application Support/kvasir. KV_NOT_FOUND when there is no home. Not created. */
kv_status kv_dir_state(kv_buf *out, kv_error *err);
/* Directory of the running executable, without a trailing slash. */
kv_status kv_dir_executable(kv_buf *out, kv_error *err);
/* mkdir -p with mode 0700 for what it makes. */
kv_status kv_dir_make(const char *path, kv_error *err);
/* Read a whole regular file (at most `max` bytes) into out. */
kv_status kv_file_read(kv_buf *out, const char *path, size_t max, kv_error *err);
/* Publish a small file whole: temporary in the same directory, 0600, fsync, rename, fsync of the directory. */
kv_status kv_file_publish(const char *path, const void *data, size_t n, kv_error *err);

#endif
