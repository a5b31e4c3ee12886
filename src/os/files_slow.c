#include "os/files_slow.h"

#include <errno.h>
#include <time.h>

#define PAGE 4096 /* accounts take no more */

static int64_t write_slowly(const kv_files *self, int fd, const void *src, size_t n, uint64_t offset) {
    const kv_files_slow *slow = self->ctx;
    struct timespec left = {.tv_sec = slow->write_ms / 1000, .tv_nsec = slow->write_ms % 1000 * 1000000};
    while (n > PAGE && nanosleep(&left, &left) != 0 && errno == EINTR) continue;
    const kv_files *real = kv_files_real();
    return real->write_at(real, fd, src, n, offset);
}

void kv_files_slow_init(kv_files_slow *out, int64_t write_ms) {
    out->files = *kv_files_real(); /* none of its calls needs its own ctx */
    out->files.write_at = write_slowly;
    out->files.ctx = out;
    out->write_ms = write_ms;
}
