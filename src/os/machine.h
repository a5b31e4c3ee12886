/* os/machine.h: what this machine lets the process use.
 *
 * Thread rule: any thread; nothing is cached, callers keep what they need.
 */
#ifndef KV_OS_MACHINE_H
#define KV_OS_MACHINE_H

#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

/* Physical cores the process may use: affinity mask and cgroup (v1 and v2) CPU quota included, ≥ 1. On processors
 * with fast and slow cores only the fast ones count (where the process may use any): a batch waits for its slowest
 * thread. A quota of 3.5 CPUs is 3 cores: a thread too many is throttled, and the others spin for it. */
int kv_machine_cores(void);
/* Processors (hardware threads) that the affinity mask allows, quotas and kinds of cores left out of account, ≥ 1. */
int kv_machine_processors(void);
/* Bytes of memory: the smaller of physical memory and the cgroup limits; and what of it is available now (what the
 * page cache holds counts as available). */
uint64_t kv_machine_memory_total(void);
uint64_t kv_machine_memory_available(void);
/* Resident set of this process in bytes. */
uint64_t kv_machine_rss(void);
/* Before other threads run: what is freed goes back to the system by itself, but for a few MiB a thread. */
void kv_machine_set_up_memory(void);
/* Gives memory that was freed, but is kept for later by the allocator, back to the system, where that can be had. */
void kv_machine_give_back_memory(void);
/* A short text that is equal on the same machine and differs on another kind: CPU model, cores, flags hash. */
void kv_machine_fingerprint(kv_buf *out);
/* Raise the limit on open files to `want`, or as far as the system lets us; returns what it is now. */
uint64_t kv_machine_raise_open_files(uint64_t want);

/* The directory where kvasir remembers small facts (measured choices): what systemd's StateDirectory= gave
 * ($STATE_DIRECTORY; a folder kvasir in it where its name is another), $XDG_STATE_HOME/kvasir, ~/.local/state/kvasir, on
 * macOS ~/Library/Application Support/kvasir. KV_NOT_FOUND when there is no home. Not created. */
kv_status kv_dir_state(kv_buf *out, kv_error *err);
/* The directory of the disk cache where none is named: likewise $CACHE_DIRECTORY, $XDG_CACHE_HOME/kvasir,
 * ~/.cache/kvasir, on macOS ~/Library/Caches/kvasir. KV_NOT_FOUND when there is no home. Not created. */
kv_status kv_dir_cache(kv_buf *out, kv_error *err);
/* Directory of the running executable, without a trailing slash. */
kv_status kv_dir_executable(kv_buf *out, kv_error *err);
/* mkdir -p with mode 0700 for what it makes. */
kv_status kv_dir_make(const char *path, kv_error *err);
/* Read a whole regular file (at most `max` bytes, else KV_TOO_LARGE) into out, replacing what it held. KV_NOT_FOUND
 * when there is none. */
kv_status kv_file_read(kv_buf *out, const char *path, size_t max, kv_error *err);
/* Publish a small file whole: temporary in the same directory, 0600, fsync, rename, fsync of the directory. */
kv_status kv_file_publish(const char *path, const void *data, size_t n, kv_error *err);

#endif
