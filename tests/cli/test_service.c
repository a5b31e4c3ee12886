#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/service.h"

#define S 1000000ll /* microseconds */

typedef struct rig {
    kv_service service;
    int fd; /* the manager's end */
    char dir[32], path[64];
} rig;

static void rig_init(rig *r, const char *watchdog_usec) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(r->dir, "/tmp/kv-service-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->path, sizeof r->path, "%s/socket", r->dir);
    strcpy(a.sun_path, r->path);
    r->fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(r->fd, (struct sockaddr *)&a, sizeof a), 0);
    setenv("NOTIFY_SOCKET", r->path, 1);
    if (watchdog_usec) setenv("WATCHDOG_USEC", watchdog_usec, 1);
    kv_service_open(&r->service);
    kv_service_name(&r->service, "tiny\nREADY=1", "http://127.0.0.1:8080");
}

static void rig_free(rig *r) {
    kv_service_close(&r->service);
    close(r->fd);
    unlink(r->path);
    rmdir(r->dir);
}

/* The next message, "" when there is none. */
static const char *next(rig *r) {
    static char text[1000];
    ssize_t n = recv(r->fd, text, sizeof text - 1, MSG_DONTWAIT);
    text[n < 0 ? 0 : n] = '\0';
    return text;
}

static int tend(rig *r, kv_app_state state, int percent, bool busy, uint64_t marker, int64_t now_us) {
    kv_service_view v = {.state = state, .percent = percent, .busy = busy, .marker = marker};
    return kv_service_tend(&r->service, &v, now_us);
}

static void test_life(void **state) {
    (void)state;
    rig r;
    rig_init(&r, NULL);
    assert_true(tend(&r, KV_APP_LOADING, 0, false, 0, 0) > 0);
    assert_string_equal(next(&r), "STATUS=loading tiny READY=1: 0 %"); /* a name forges no line */
    tend(&r, KV_APP_LOADING, 0, false, 0, 1 * S);
    assert_string_equal(next(&r), ""); /* nothing new */
    tend(&r, KV_APP_LOADING, 42, false, 0, 2 * S);
    assert_string_equal(next(&r), "STATUS=loading tiny READY=1: 42 %");
    kv_service_reloading(&r.service); /* a SIGHUP while loading must not end in READY=1 */
    kv_service_reloaded(&r.service);
    assert_string_equal(next(&r), "");

    assert_int_equal(tend(&r, KV_APP_READY, 100, false, 1, 3 * S), -1); /* no watchdog: nothing is due */
    assert_string_equal(next(&r), "READY=1\nSTATUS=serving tiny READY=1 on http://127.0.0.1:8080");
    assert_int_equal(tend(&r, KV_APP_READY, 100, true, 2, 4 * S), -1);
    assert_string_equal(next(&r), "");

    kv_service_reloading(&r.service);
    const char *text = next(&r);
    assert_memory_equal(text, "RELOADING=1\nMONOTONIC_USEC=", 27);
    assert_true(atoll(text + 27) > 0 && atoll(text + 27) <= kv_notify_monotonic_us());
    kv_service_reloaded(&r.service);
    assert_memory_equal(next(&r), "READY=1\n", 8);

    tend(&r, KV_APP_ASLEEP, 100, false, 0, 5 * S);
    assert_memory_equal(next(&r), "STATUS=asleep", 13);
    kv_service_reloading(&r.service);
    kv_service_reloaded(&r.service);
    assert_memory_equal(next(&r), "RELOADING=1", 11);
    assert_string_equal(next(&r), "READY=1"); /* and it still sleeps */
    tend(&r, KV_APP_ASLEEP, 7, true, 7, 6 * S);
    assert_string_equal(next(&r), "STATUS=loading tiny READY=1: 7 %");
    tend(&r, KV_APP_READY, 100, true, 1, 7 * S);
    assert_memory_equal(next(&r), "READY=1\nSTATUS=serving", 22);

    kv_service_stopping(&r.service, NULL);
    assert_string_equal(next(&r), "STOPPING=1\nSTATUS=stopping");
    assert_string_equal(next(&r), "");
    rig_free(&r);
}

static void test_failure_is_told(void **state) {
    (void)state;
    rig r;
    rig_init(&r, NULL);
    tend(&r, KV_APP_FAILED, 10, false, 0, 0);
    assert_string_equal(next(&r), ""); /* never READY */
    kv_service_stopping(&r.service, "no such file\nREADY=1");
    assert_string_equal(next(&r), "STOPPING=1\nSTATUS=no such file READY=1");
    rig_free(&r);
}

static void test_watchdog_follows_the_engine(void **state) {
    (void)state;
    rig r;
    rig_init(&r, "60000000"); /* 60 s: a sign of life is due each 30 s */
    assert_int_equal(tend(&r, KV_APP_LOADING, 0, false, 0, 0), 500);
    next(&r);
    assert_int_equal(tend(&r, KV_APP_READY, 100, false, 5, 10 * S), 30000);
    assert_memory_equal(next(&r), "READY=1\n", 8);
    assert_string_equal(next(&r), "WATCHDOG=1");
    assert_int_equal(tend(&r, KV_APP_READY, 100, false, 5, 11 * S), 29000); /* woken early: not yet */
    assert_string_equal(next(&r), "");
    assert_int_equal(tend(&r, KV_APP_READY, 100, false, 5, 40 * S), 30000); /* idle is alive */
    assert_string_equal(next(&r), "WATCHDOG=1");
    assert_int_equal(tend(&r, KV_APP_READY, 100, true, 5, 70 * S), 30000); /* work that just began counts from here */
    assert_string_equal(next(&r), "WATCHDOG=1");
    for (int64_t at = 100; at < 130; at += 3) { /* a call that does not return */
        assert_int_equal(tend(&r, KV_APP_READY, 100, true, 5, at * S), 3000);
        assert_string_equal(next(&r), "");
    }
    assert_int_equal(tend(&r, KV_APP_READY, 100, true, 6, 130 * S), 30000); /* it returned at last */
    assert_string_equal(next(&r), "WATCHDOG=1");
    assert_int_equal(tend(&r, KV_APP_ASLEEP, 100, false, 100, 160 * S), 30000);
    assert_memory_equal(next(&r), "STATUS=asleep", 13);
    assert_string_equal(next(&r), "WATCHDOG=1");
    assert_int_equal(tend(&r, KV_APP_ASLEEP, 3, true, 3, 190 * S), 30000); /* waking, weights come in */
    assert_memory_equal(next(&r), "STATUS=loading", 14);
    assert_string_equal(next(&r), "WATCHDOG=1");
    assert_int_equal(tend(&r, KV_APP_ASLEEP, 3, true, 3, 220 * S), 3000); /* and no more */
    assert_string_equal(next(&r), "");
    rig_free(&r);
}

static void test_ready_is_tried_again(void **state) {
    (void)state;
    rig r;
    int n = 0;
    rig_init(&r, NULL);
    while (kv_notify_send(&r.service.notify, "STATUS=")) n++;
    assert_int_equal(tend(&r, KV_APP_READY, 100, false, 1, 0), 500);
    while (n-- > 0) assert_string_equal(next(&r), "STATUS=");
    assert_int_equal(tend(&r, KV_APP_READY, 100, false, 1, S), -1);
    assert_memory_equal(next(&r), "READY=1\n", 8);
    rig_free(&r);
}

static void test_nobody_listens(void **state) {
    (void)state;
    kv_service s;
    unsetenv("NOTIFY_SOCKET");
    kv_service_open(&s);
    kv_service_view v = {.state = KV_APP_LOADING};
    assert_int_equal(kv_service_tend(&s, &v, 0), -1);
    v.state = KV_APP_READY;
    assert_int_equal(kv_service_tend(&s, &v, 0), -1);
    kv_service_reloading(&s);
    kv_service_reloaded(&s);
    kv_service_stopping(&s, "why");
    kv_service_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_failure_is_told),
        cmocka_unit_test(test_watchdog_follows_the_engine),
        cmocka_unit_test(test_ready_is_tried_again),
        cmocka_unit_test(test_nobody_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
