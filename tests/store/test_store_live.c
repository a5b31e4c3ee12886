/* store with many threads at once, and with processes that are killed while they store. */
#include "rig.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { THREADS = 4, EACH = 60 };

typedef struct worker {
    rig *r;
    uint32_t number;
    int stored, read;
} worker;

static void count_done(void *ctx, const kv_record_head *head, kv_status status) {
    (void)head;
    *(int *)ctx += status == KV_OK;
}

static void *work(void *arg) {
    worker *w = arg;
    kv_store *s = w->r->store;
    for (uint32_t i = 0; i < EACH; i++) {
        rec x = make_rec(KV_RECORD_BLOCK, NULL, w->number * 1000 + i, 20000 + i * 100, 100 * (i + 1));
        double worth = kv_store_worth(x.head.compute_ms, 0, x.head.n_payload);
        if (kv_store_reserve(s, &x.head, worth, false, NULL) == KV_OK)
            (void)kv_store_write(s, &x.head, x.tokens, x.payload, NULL);
        if (i % 3 == 0) (void)kv_store_commit(s, count_done, &w->stored, NULL); /* also what others wrote */
        if (kv_store_has(s, &x.head)) {
            kv_status status = read_rec(w->r, &x);
            assert_true(status == KV_OK || status == KV_NOT_FOUND); /* evicted between the two */
            w->read += status == KV_OK;
            kv_store_touch(s, &x.head, 3);
        }
        uint64_t bytes, records;
        if (i % 20 == 19) assert_int_equal(kv_store_gc(s, false, &bytes, &records, NULL), KV_OK);
        free(x.payload);
    }
    return NULL;
}

static void count_gone(void *ctx, const kv_record_head *head) {
    (void)head;
    __atomic_fetch_add((int *)ctx, 1, __ATOMIC_RELAXED);
}

static void many_threads(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 2 << 20, 1);
    r.cfg.files = kv_files_real();
    rig_open(&r);
    int gone = 0, stored = 0;
    kv_store_on_gone(r.store, count_gone, &gone);
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){&r, i, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(kv_store_commit(r.store, count_done, &stored, NULL), KV_OK);
    for (int i = 0; i < THREADS; i++) stored += workers[i].stored;
    rig_check(&r);
    kv_store_stats stats;
    kv_store_get_stats(&stats, r.store);
    assert_int_equal(stats.n_evicted, gone);
    assert_int_equal(stats.records + stats.n_evicted, stored);
    uint64_t bad;
    assert_int_equal(kv_store_verify(r.store, true, NULL, NULL, &bad, NULL), KV_OK);
    assert_int_equal(bad, 0);
    rig_close(&r);
    rig_open(&r);
    rig_check(&r);
    rig_free(&r);
}

/* Tells the parent about every record that was reported stored, for ever. */
static _Noreturn void store_until_killed(rig *r, int to, uint32_t salt) {
    if (kv_store_open(&r->store, &r->cfg, NULL) != KV_OK) _exit(1);
    for (uint32_t i = 0;; i++) {
        rec x = make_rec(KV_RECORD_BLOCK, NULL, salt + i, 30000, 100);
        int stored = 0;
        if (kv_store_reserve(r->store, &x.head, 1, false, NULL) == KV_OK) {
            (void)kv_store_write(r->store, &x.head, x.tokens, x.payload, NULL);
            (void)kv_store_commit(r->store, count_done, &stored, NULL);
        }
        if (stored && write(to, &i, sizeof i) != (ssize_t)sizeof i) _exit(1);
        free(x.payload);
    }
}

static void killed_while_storing(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 32 << 20, 1);
    r.cfg.files = kv_files_real();
    for (uint32_t round = 0; round < 8; round++) {
        int pipe_fd[2];
        assert_int_equal(pipe(pipe_fd), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) store_until_killed(&r, pipe_fd[1], round * 1000);
        close(pipe_fd[1]);
        uint32_t last = 0;
        for (uint32_t n = 0; n < 1 + round * 2; n++)
            assert_int_equal(read(pipe_fd[0], &last, sizeof last), sizeof last);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        for (uint32_t more; read(pipe_fd[0], &more, sizeof more) == (ssize_t)sizeof more;) last = more;
        close(pipe_fd[0]);
        rig_open(&r);
        rig_check(&r);
        assert_int_equal(count_files(r.dir, ".tmp"), 0);
        for (uint32_t i = 0; i <= last; i++) {
            rec x = make_rec(KV_RECORD_BLOCK, NULL, round * 1000 + i, 30000, 100);
            assert_int_equal(read_rec(&r, &x), KV_OK);
            free(x.payload);
        }
        uint64_t bad;
        assert_int_equal(kv_store_verify(r.store, true, NULL, NULL, &bad, NULL), KV_OK);
        assert_int_equal(bad, 0);
        rig_close(&r);
    }
    rig_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_storing),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
