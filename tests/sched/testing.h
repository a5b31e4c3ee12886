/* tests/sched/testing.h: what these tests share: cmocka and a seeded generator of random numbers. */
#ifndef KV_TESTS_SCHED_TESTING_H
#define KV_TESTS_SCHED_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

typedef struct dice {
    uint64_t state;
} dice;

static inline uint64_t dice_next(dice *d) { /* splitmix64's step */
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline int dice_below(dice *d, int n) {
    return (int)(dice_next(d) % (uint64_t)n);
} /* 0 … n-1 */
static inline int dice_from(dice *d, int lo, int hi) {
    return lo + dice_below(d, hi - lo + 1);
} /* lo … hi */
static inline bool dice_one_in(dice *d, int n) {
    return dice_below(d, n) == 0;
}

/* KVASIR_SEED replays a run; else every run has its own. Printed, so that a failure can be replayed. */
static inline uint64_t testing_seed(const char *what) {
    const char *given = getenv("KVASIR_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)t.tv_sec * 1000003u ^ (uint64_t)t.tv_nsec;
    printf("%s: KVASIR_SEED=%llu\n", what, (unsigned long long)seed);
    return seed;
}

#endif
