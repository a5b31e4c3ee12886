/* os/io: every job runs once, lanes keep their order and READ goes first, inline order replays from its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "os/io.h"

typedef struct note {
    kv_tokens *log;
    int value;
} note;

static void write_down(void *ctx) {
    note *n = ctx;
    kv_tokens_add(n->log, n->value);
}

static void test_inline_in_order(void **state) {
    (void)state;
    kv_tokens log = {0};
    note notes[8];
    kv_io *io = kv_io_new_inline(0);
    assert_false(kv_io_run_one(io));
    for (int i = 0; i < 8; i++) {
        notes[i] = (note){&log, i};
        kv_io_submit(io, i % 2 ? KV_IO_READ : KV_IO_WRITE, write_down, &notes[i]);
    }
    assert_int_equal(kv_io_waiting(io, KV_IO_READ), 4);
    assert_int_equal(kv_io_waiting(io, KV_IO_WRITE), 4);
    while (kv_io_run_one(io)) {
    }
    const kv_token want[] = {1, 3, 5, 7, 0, 2, 4, 6};
    assert_int_equal(log.len, 8);
    assert_memory_equal(log.data, want, sizeof want);
    kv_io_free(io);
    kv_tokens_free(&log);
}

static void run_drawn(kv_tokens *log, uint64_t seed) {
    note notes[200];
    kv_io *io = kv_io_new_inline(seed);
    for (int i = 0; i < 200; i++) {
        notes[i] = (note){log, i};
        kv_io_submit(io, i % 2 ? KV_IO_READ : KV_IO_WRITE, write_down, &notes[i]);
    }
    kv_io_free(io); /* runs what is left */
    assert_int_equal(log->len, 200);
}

static void test_inline_replays(void **state) {
    (void)state;
    kv_tokens a = {0}, b = {0}, c = {0};
    run_drawn(&a, 7);
    run_drawn(&b, 7);
    run_drawn(&c, 8);
    assert_memory_equal(a.data, b.data, 200 * sizeof(kv_token));
    assert_memory_not_equal(a.data, c.data, 200 * sizeof(kv_token));
    bool seen[200] = {false};
    int last_write = -1, reads_out_of_order = 0, last_read = -1;
    for (size_t i = 0; i < a.len; i++) {
        int v = a.data[i];
        assert_false(seen[v]);
        seen[v] = true;
        if (v % 2 == 0) { /* WRITE jobs keep their order */
            assert_true(v > last_write);
            last_write = v;
        } else {
            reads_out_of_order += v < last_read;
            last_read = v;
        }
    }
    assert_true(reads_out_of_order > 0);
    kv_tokens_free(&a);
    kv_tokens_free(&b);
    kv_tokens_free(&c);
}

/* Jobs that submit jobs, from several threads, while the executor ends. */
typedef struct tree {
    kv_io *io;
    atomic_int *count;
    int depth;
} tree;

static void grow(void *ctx) {
    tree *t = ctx;
    atomic_fetch_add(t->count, 1);
    for (int i = 0; i < 2 && t->depth > 0; i++) {
        tree *child = kv_alloc(sizeof *child);
        *child = (tree){t->io, t->count, t->depth - 1};
        kv_io_submit(t->io, i ? KV_IO_READ : KV_IO_WRITE, grow, child);
    }
    free(t);
}

static void *plant(void *ctx) {
    tree *t = ctx;
    for (int i = 0; i < 50; i++) {
        tree *root = kv_alloc(sizeof *root);
        *root = (tree){t->io, t->count, 4};
        kv_io_submit(t->io, i % 2 ? KV_IO_READ : KV_IO_WRITE, grow, root);
    }
    return NULL;
}

static void test_threads_run_everything_once(void **state) {
    (void)state;
    for (int round = 0; round < 5; round++) {
        atomic_int count = 0;
        tree t = {kv_io_new_threads(round, 1 + round % 2), &count, 0};
        pthread_t planters[3];
        for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&planters[i], NULL, plant, &t), 0);
        for (int i = 0; i < 3; i++) pthread_join(planters[i], NULL);
        kv_io_free(t.io);
        assert_int_equal(count, 3 * 50 * 31);
    }
}

/* The only writer is busy until READ and WRITE jobs wait; then READ goes first and both lanes keep their order. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool open;
} gate;

static void wait_at(void *ctx) {
    gate *g = ctx;
    pthread_mutex_lock(&g->mutex);
    while (!g->open) pthread_cond_wait(&g->cond, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
}

static void test_one_writer_keeps_order(void **state) {
    (void)state;
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    kv_tokens log = {0};
    note notes[6];
    kv_io *io = kv_io_new_threads(0, 1);
    kv_io_submit(io, KV_IO_WRITE, wait_at, &g);
    for (int i = 0; i < 6; i++) {
        notes[i] = (note){&log, i};
        kv_io_submit(io, i < 3 ? KV_IO_WRITE : KV_IO_READ, write_down, &notes[i]);
    }
    /* The gate's job may not have been taken yet: then a READ job runs before it, which the order allows. */
    pthread_mutex_lock(&g.mutex);
    g.open = true;
    pthread_cond_broadcast(&g.cond);
    pthread_mutex_unlock(&g.mutex);
    kv_io_free(io);
    const kv_token want[] = {3, 4, 5, 0, 1, 2};
    assert_int_equal(log.len, 6);
    assert_memory_equal(log.data, want, sizeof want);
    kv_tokens_free(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inline_in_order),
        cmocka_unit_test(test_inline_replays),
        cmocka_unit_test(test_threads_run_everything_once),
        cmocka_unit_test(test_one_writer_keeps_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
