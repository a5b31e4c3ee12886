/* sched/queue.c: see queue.h. */
#include "sched/queue.h"

int kv_queue_compare(const kv_queue_key *a, const kv_queue_key *b, int64_t max_wait_us) {
    bool overdue_a = kv_queue_overdue(a, max_wait_us), overdue_b = kv_queue_overdue(b, max_wait_us);
    if (overdue_a != overdue_b) return overdue_a ? -1 : 1;
    if (!overdue_a && a->left != b->left) return a->left < b->left ? -1 : 1;
    return a->arrival < b->arrival ? -1 : a->arrival > b->arrival;
}
