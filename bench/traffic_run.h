/* bench/traffic_run.h: the day of traffic_day.h on a server without HTTP: scheduler, cache and store as they are, on
 * engine_fake, one thread and a virtual clock. Every run of a seed is the same, to the token.
 *
 *   new        tokens of a prompt behind its longest common prefix with any prompt that was sent before it in its scope,
 *              with that one's answer as far as it had come (of a prompt that was hung up: as far as it is computed)
 *   computed   prompt tokens that passed through the model, for whatever reason
 *
 * Thread rule: none.
 */
#ifndef KV_BENCH_TRAFFIC_RUN_H
#define KV_BENCH_TRAFFIC_RUN_H

#include "engine/engine.h"
#include "traffic_day.h"

typedef struct run_params {
    day_params day;
    kv_memory_kind memory;
    const char *dir;      /* must not be there; made, filled and removed */
    uint64_t budget;      /* of the disk, bytes */
    bool evicts_by_use;   /* what was used longest ago goes first, instead of what is worth least */
    bool fixed_intervals; /* states are kept at intervals alone, instead of at places */
    int check_one_in;     /* so many answers are compared with the naive model's; 1 = all, 0 = none */
    bool tells;           /* a line for each request on stderr */
} run_params;

enum { RUN_KINDS = 5 };

typedef struct run_share {
    const char *kind; /* of sessions; NULL: no more */
    uint64_t n_requests, n_prompt, n_new, n_computed;
} run_share;

typedef struct run_result {
    uint64_t n_requests, n_prompt, n_new, n_computed, n_answer; /* tokens */
    uint64_t bytes_stored, bytes_written;                       /* at the end; in all */
    uint64_t n_evicted, n_checked, n_wrong, n_restarts, n_sleeps, n_preempted;
    double hours; /* on the virtual clock */
    run_share by_kind[RUN_KINDS];
    uint64_t bytes_by_kind[5]; /* stored, by kv_record_kind */
} run_result;

/* False with a line on stderr: something failed that must not. */
bool run_day(run_result *out, const run_params *p);

#endif
