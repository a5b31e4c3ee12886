/* tests/sched/watched.h: what a scheduler asks of its engine, written down call by call, with the virtual time it took.
 *
 * A row whose logits nobody wants belongs to a prefill chunk: the scheduler's last prompt token is a row of its own.
 */
#ifndef KV_TESTS_SCHED_WATCHED_H
#define KV_TESTS_SCHED_WATCHED_H

#include "world.h"

enum { WATCH_CALLS = 8 };

typedef struct watched_call {
    int32_t n_rows, n_chunk; /* n_chunk: rows of the prefill chunk, 0 = none */
    kv_seq chunk_seq;
    kv_pos chunk_pos; /* of its first row */
    bool has_tokens;  /* rows of decoding slots */
    int64_t us;       /* that it took */
} watched_call;

/* Of the step that runs or ran last; `most` over all of them. One world at a time. */
static struct {
    const kv_engine_ops *real;
    kv_engine_ops ops;
    kv_clock_virtual *clock;
    watched_call calls[WATCH_CALLS];
    int n_calls;
    int64_t get_us, set_us; /* taking state out, putting it back */
    int64_t most_get_us, most_set_once_us;
    int32_t most_depth;
} watched;

static inline kv_status watched_decode(kv_engine *e, const kv_batch *b, kv_error *err) {
    assert_true(watched.n_calls < WATCH_CALLS);
    watched_call *c = &watched.calls[watched.n_calls++];
    *c = (watched_call){.n_rows = b->n, .chunk_seq = -1};
    for (int32_t i = 0; i < b->n; i++) {
        if (b->want_logits[i]) {
            c->has_tokens = true;
            continue;
        }
        assert_true(c->chunk_seq < 0 || c->chunk_seq == b->seq[i]); /* one prompt at a time */
        if (!c->n_chunk++) c->chunk_pos = b->pos[i];
        c->chunk_seq = b->seq[i];
    }
    int64_t start_us = watched.clock->us;
    kv_status status = watched.real->decode(e, b, err);
    c->us = watched.clock->us - start_us;
    int32_t depth = kv_fake_cells_top(e);
    if (depth > watched.most_depth) watched.most_depth = depth;
    return status;
}

static inline size_t watched_get(kv_engine *e, void *dst, size_t cap, kv_seq seq, uint32_t flags) {
    int64_t start_us = watched.clock->us;
    size_t n = watched.real->state_get(e, dst, cap, seq, flags);
    watched.get_us += watched.clock->us - start_us;
    if (watched.get_us > watched.most_get_us) watched.most_get_us = watched.get_us;
    return n;
}

static inline size_t watched_set(kv_engine *e, const void *src, size_t n, kv_seq seq, uint32_t flags) {
    int64_t start_us = watched.clock->us;
    size_t done = watched.real->state_set(e, src, n, seq, flags);
    int64_t us = watched.clock->us - start_us;
    watched.set_us += us;
    if (us > watched.most_set_once_us) watched.most_set_once_us = us;
    return done;
}

/* After world_start. */
static inline void watch_world(world *w) {
    memset(&watched, 0, sizeof watched);
    watched.real = w->engine->ops;
    watched.ops = *watched.real;
    watched.ops.decode = watched_decode;
    watched.ops.state_get = watched_get;
    watched.ops.state_set = watched_set;
    watched.clock = &w->clock;
    w->engine->ops = &watched.ops;
}

/* Before each step. */
static inline void watch_step(void) {
    watched.n_calls = 0;
    watched.get_us = watched.set_us = 0;
}

/* The chunk of the last step, NULL = none. */
static inline const watched_call *watched_chunk(void) {
    const watched_call *chunk = NULL;
    for (int i = 0; i < watched.n_calls; i++) {
        if (!watched.calls[i].n_chunk) continue;
        assert_null(chunk); /* one a round */
        chunk = &watched.calls[i];
    }
    return chunk;
}

#endif
