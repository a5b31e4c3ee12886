/* bench/traffic_day.h: a day of clients: what they send, when, and what they do with the answers. docs/traffic.md tells
 * which sessions there are; the numbers stand in traffic_day.c.
 *
 *   day_next ──► a request that is due ──► (server) ──► day_answer ──► its session goes on, now or later
 *
 * Every session draws from dice of its own, seeded by the day's seed and its place in the day. So prompts do not depend on
 * how fast anybody was served; only the instants at which they are sent do.
 *
 * Knows nothing of caches and engines.
 * Thread rule: none; one owner.
 */
#ifndef KV_BENCH_TRAFFIC_DAY_H
#define KV_BENCH_TRAFFIC_DAY_H

#include "base/buf.h"

typedef struct day day;

typedef struct day_params {
    uint64_t seed;
    int32_t shrink; /* all lengths are divided by it; 1 = as documented */
    double part;    /* of the sessions; 1 = all */
} day_params;

typedef struct day_request {
    int session;
    const char *kind;       /* of the session: "agent", "sub-agent", "chat", "document", "title"; static */
    const kv_token *prompt; /* n_prompt tokens, borrowed until day_answer */
    size_t n_prompt;
    const int32_t *starts; /* borrowed likewise: where messages begin, n_starts of them, ascending; the first is 0 */
    int n_starts;
    const char *scope; /* static */
    int32_t n_predict;
    uint32_t seed; /* of sampling; 0 = greedy */
    int32_t
        hang_up_at; /* the client is gone once so many of the prompt's tokens are done, and asks again; 0 = it stays */
} day_request;

day *day_new(const day_params *p);
void day_free(day *d);
/* The longest prompt with its answer that can come, in tokens. */
int32_t day_longest(const day *d);
/* The request that is longest due. False: none is, at now_us. */
bool day_next(day_request *out, day *d, int64_t now_us);
/* When the next one is due; INT64_MAX: only answers bring new ones, or the day is over. */
int64_t day_due_us(const day *d);
/* r: as day_next gave it. For one that was hung up, too, with what came until then. */
void day_answer(day *d, const day_request *r, const kv_token *answer, size_t n, int64_t now_us);
bool day_is_over(const day *d);

#endif
