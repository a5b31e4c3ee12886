/* os/machine_linux.h: the readers of /proc, /sys and cgroup files behind machine.h.
 *
 * Each takes the directory that stands for "/", so that a test can give it a made-up machine ("" is the real one).
 * What cannot be read counts as "no limit". Private to os/ and its tests.
 *
 * Thread rule: any thread.
 */
#ifndef KV_OS_MACHINE_LINUX_H
#define KV_OS_MACHINE_LINUX_H

#include "base/buf.h"
#include <stdint.h>

/* cpus: the ids of the processors that the affinity mask allows, n of them, ascending. */
int kv_linux_cores(const char *root, const int *cpus, int n);
uint64_t kv_linux_memory_total(const char *root);
uint64_t kv_linux_memory_available(const char *root);
void kv_linux_fingerprint(kv_buf *out, const char *root, int cores);

#endif
