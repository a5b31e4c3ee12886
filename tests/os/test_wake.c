#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/wake.h"

static int readable(const kv_wake *w) {
    struct pollfd p = {.fd = w->fd[0], .events = POLLIN};
    return poll(&p, 1, 0);
}

static void test_level(void **state) {
    (void)state;
    kv_wake w;
    assert_int_equal(kv_wake_init(&w, NULL), KV_OK);
    assert_int_equal(kv_wake_wait(&w, -1, 0), KV_WAIT_TIMEOUT);
    for (int i = 0; i < 100000; i++) kv_wake_set(&w); /* more than a pipe holds: must not block */
    assert_int_equal(readable(&w), 1);
    assert_int_equal(kv_wake_wait(&w, -1, -1), KV_WAIT_WOKEN);
    assert_int_equal(readable(&w), 0);
    assert_int_equal(kv_wake_wait(&w, -1, 1), KV_WAIT_TIMEOUT);
    kv_wake_free(&w);
    kv_wake_free(&w); /* twice is harmless */
    assert_int_equal(w.fd[0], -1);
}

static void test_hang_up(void **state) {
    (void)state;
    int s[2];
    kv_wake w;
    assert_int_equal(kv_wake_init(&w, NULL), KV_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    assert_int_equal(kv_wake_wait(&w, s[0], 0), KV_WAIT_TIMEOUT);

    /* bytes of a next request are not a hang-up */
    assert_int_equal(write(s[1], "GET", 3), 3);
    assert_int_equal(kv_wake_wait(&w, s[0], 1), KV_WAIT_TIMEOUT);

    /* half-closed is, and it is told before the wake, which stays set */
    kv_wake_set(&w);
    assert_int_equal(shutdown(s[1], SHUT_WR), 0);
    assert_int_equal(kv_wake_wait(&w, s[0], -1), KV_WAIT_HUNG_UP);
    assert_int_equal(kv_wake_wait(&w, -1, 0), KV_WAIT_WOKEN);
    close(s[1]);
    assert_int_equal(kv_wake_wait(&w, s[0], -1), KV_WAIT_HUNG_UP);
    close(s[0]);
    kv_wake_free(&w);
}

static void test_stop(void **state) {
    (void)state;
    kv_wake w, stop;
    assert_int_equal(kv_wake_init(&w, NULL), KV_OK);
    assert_int_equal(kv_wake_init(&stop, NULL), KV_OK);
    assert_int_equal(kv_wake_wait_or(&w, &stop, -1, 0), KV_WAIT_TIMEOUT);
    kv_wake_set(&stop);
    for (int i = 0; i < 3; i++) assert_int_equal(kv_wake_wait_or(&w, &stop, -1, -1), KV_WAIT_HUNG_UP);
    assert_int_equal(kv_wake_wait_or(NULL, &stop, -1, -1), KV_WAIT_HUNG_UP);
    assert_int_equal(kv_wake_wait_or(NULL, NULL, -1, 0), KV_WAIT_TIMEOUT);
    kv_wake_free(&w);
    kv_wake_free(&stop);
}

typedef struct ping {
    kv_wake there, back;
    int n; /* written by one thread before a set, read by the other after its wait: TSan checks the order */
} ping;

static void *answer(void *arg) {
    ping *p = arg;
    for (int i = 0; i < 2000; i++) {
        if (kv_wake_wait(&p->there, -1, -1) != KV_WAIT_WOKEN) return NULL;
        p->n++;
        kv_wake_set(&p->back);
    }
    return p;
}

static void test_two_threads(void **state) {
    (void)state;
    ping p = {.n = 0};
    pthread_t thread;
    void *ok = NULL;
    assert_int_equal(kv_wake_init(&p.there, NULL), KV_OK);
    assert_int_equal(kv_wake_init(&p.back, NULL), KV_OK);
    assert_int_equal(pthread_create(&thread, NULL, answer, &p), 0);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(p.n, i);
        kv_wake_set(&p.there);
        assert_int_equal(kv_wake_wait(&p.back, -1, -1), KV_WAIT_WOKEN);
    }
    pthread_join(thread, &ok);
    assert_non_null(ok);
    assert_int_equal(p.n, 2000);
    kv_wake_free(&p.there);
    kv_wake_free(&p.back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_level),
        cmocka_unit_test(test_hang_up),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
