/* base/clock.h: where time comes from.
 *
 * Everything that decides by time takes a `const kv_clock *`, so that a test drives it: the scheduler under
 * engine_fake runs on a virtual clock that only the fake's cost model advances.
 *
 * Thread rule: kv_clock_real() may be read from any thread; a kv_clock_virtual belongs to one.
 */
#ifndef KV_BASE_CLOCK_H
#define KV_BASE_CLOCK_H

#include <stdint.h>

typedef struct kv_clock {
    int64_t (*now_us)(const struct kv_clock *self); /* monotonic microseconds from an arbitrary start */
} kv_clock;

static inline int64_t kv_now_us(const kv_clock *c) {
    return c->now_us(c);
}

const kv_clock *kv_clock_real(void); /* static; CLOCK_MONOTONIC */
int64_t kv_wall_seconds(void);       /* Unix time, for `created` fields and logs only */

typedef struct kv_clock_virtual {
    kv_clock base;
    int64_t us; /* the current instant; add to it to let time pass */
} kv_clock_virtual;

void kv_clock_virtual_init(kv_clock_virtual *c, int64_t start_us);

#endif
