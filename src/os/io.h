/* os/io.h: where jobs with file I/O, hashing and comparing run.
 *
 * Threads in the server; in tests "inline": jobs wait in a list until the test runs them, in order or in an order
 * drawn from its seed, so that a random workload with I/O is one thread and replays.
 *
 *   READ lane   somebody waits for these   ──►  readers take only these; writers take them before any WRITE job
 *   WRITE lane  nobody waits               ──►  writers
 *
 * Each lane is a FIFO queue: jobs of one lane start in order, so with one writer thread WRITE jobs never overlap.
 * Inline with a seed, WRITE jobs run in order, READ jobs in any order among the first few, as with several readers.
 *
 * At most KV_IO_MAX_WAITING jobs wait in a lane. A thread that submits more is held until there is room; an I/O thread
 * is not (it would wait for itself).
 *
 * Thread rule: submit from any thread; jobs run on I/O threads and may submit jobs.
 */
#ifndef KV_OS_IO_H
#define KV_OS_IO_H

#include <stdbool.h>
#include <stdint.h>

#define KV_IO_MAX_WAITING 65536 /* far above what byte budgets of the callers let through: a stop for runaways */

typedef struct kv_io kv_io;
typedef enum kv_io_lane { KV_IO_READ, KV_IO_WRITE } kv_io_lane;

kv_io *kv_io_new_threads(int n_readers, int n_writers); /* at least one writer; fewer when the system gives fewer */
kv_io *kv_io_new_inline(uint64_t seed);                 /* seed 0: in order */
void kv_io_free(kv_io *io); /* runs what is left, and what that submits, then ends the threads */
void kv_io_submit(kv_io *io, kv_io_lane lane, void (*fn)(void *ctx), void *ctx);
bool kv_io_is_inline(const kv_io *io);
bool kv_io_run_one(kv_io *io); /* inline only: false when nothing waits */
int kv_io_waiting(const kv_io *io, kv_io_lane lane);

#endif
