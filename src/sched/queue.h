/* sched/queue.h: who goes first among those that wait.
 *
 * The one with the least left to compute: with jobs of known length that makes the mean wait the shortest. Pure, it
 * lets a long prompt starve, so each one's time of being overtaken is added up, and whoever was overtaken for
 * max_wait goes before all that were not, in order of arrival:
 *
 *     overtaken for max_wait, by arrival   │   the others, by what is left, then by arrival
 *
 * Once it is on the left side, no prompt of one that came later is computed before it: it is never overtaken for longer than
 * max_wait plus the batch that was under way. One that decodes already keeps its slot until its answer ends. What counts is being overtaken, not waiting: a long prompt that computes alone
 * for a minute keeps no short one behind it.
 *
 * Thread rule: none.
 */
#ifndef KV_SCHED_QUEUE_H
#define KV_SCHED_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kv_queue_key {
    uint64_t arrival;     /* running number: smaller came earlier */
    int64_t overtaken_us; /* time so far in which one that came later was served before it */
    int32_t left;         /* tokens still to compute */
} kv_queue_key;

static inline bool kv_queue_overdue(const kv_queue_key *k, int64_t max_wait_us) {
    return k->overtaken_us >= max_wait_us;
}
/* < 0 when a goes before b; a total order as arrivals differ. */
int kv_queue_compare(const kv_queue_key *a, const kv_queue_key *b, int64_t max_wait_us);

#endif
