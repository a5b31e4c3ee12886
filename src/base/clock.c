#include "base/clock.h"

#include <time.h>

static int64_t real_now(const kv_clock *self) {
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static const kv_clock real_clock = {real_now};

const kv_clock *kv_clock_real(void) {
    return &real_clock;
}

int64_t kv_wall_seconds(void) {
    return (int64_t)time(NULL);
}

static int64_t virtual_now(const kv_clock *self) {
    return ((const kv_clock_virtual *)self)->us;
}

void kv_clock_virtual_init(kv_clock_virtual *c, int64_t start_us) {
    c->base.now_us = virtual_now;
    c->us = start_us;
}
