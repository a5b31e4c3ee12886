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

#include "os/notify.h"

/* A manager's end: a bound datagram socket. `name` as NOTIFY_SOCKET has it. */
static int listen_at(const char *name) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    assert_true(n < sizeof a.sun_path);
    memcpy(a.sun_path, name, n);
    if (name[0] == '@') a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_true(fd >= 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] != '@'));
    assert_int_equal(bind(fd, (struct sockaddr *)&a, length), 0);
    return fd;
}

static const char *receive(int fd) {
    static char text[1000];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    if (n < 0) return NULL;
    text[n] = '\0';
    return text;
}

static void check_at(const char *name) {
    kv_notify n;
    kv_error err = {0};
    int fd = listen_at(name);
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(kv_notify_open(&n, &err), KV_OK);
    assert_true(kv_notify_on(&n));
    assert_null(getenv("NOTIFY_SOCKET")); /* no child speaks for us */
    assert_true(kv_notify_send(&n, "READY=1\nSTATUS=serving"));
    assert_string_equal(receive(fd), "READY=1\nSTATUS=serving");
    assert_null(receive(fd));
    close(fd);
    assert_false(kv_notify_send(&n, "STOPPING=1")); /* nobody is there: no signal, no wait */
    if (name[0] == '/') unlink(name);
    fd = listen_at(name); /* a manager that was started anew is found again */
    assert_true(kv_notify_send(&n, "STOPPING=1"));
    assert_string_equal(receive(fd), "STOPPING=1");
    close(fd);
    if (name[0] == '/') unlink(name);
    kv_notify_close(&n);
    assert_false(kv_notify_on(&n));
}

static void test_path(void **state) {
    (void)state;
    char dir[] = "/tmp/kv-notify-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/socket", dir);
    check_at(path);
    rmdir(dir);
}

static void test_abstract(void **state) {
    (void)state;
#ifdef __linux__
    char name[64];
    snprintf(name, sizeof name, "@kv-notify-%d", (int)getpid());
    check_at(name);
#endif
}

static void test_full_queue_never_waits(void **state) {
    (void)state;
    char dir[] = "/tmp/kv-notify-XXXXXX", path[64];
    kv_notify n;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/socket", dir);
    int fd = listen_at(path), sent = 0;
    setenv("NOTIFY_SOCKET", path, 1);
    assert_int_equal(kv_notify_open(&n, NULL), KV_OK);
    while (sent < 1000000 && kv_notify_send(&n, "WATCHDOG=1")) sent++;
    assert_true(sent < 1000000);
    assert_non_null(receive(fd));
    assert_true(kv_notify_send(&n, "READY=1"));
    kv_notify_close(&n);
    close(fd);
    unlink(path);
    rmdir(dir);
}

static void test_without(void **state) {
    (void)state;
    kv_notify n;
    unsetenv("NOTIFY_SOCKET");
    setenv("WATCHDOG_USEC", "1000000", 1);
    assert_int_equal(kv_notify_open(&n, NULL), KV_OK);
    assert_false(kv_notify_on(&n));
    assert_int_equal(n.watchdog_us, 0);
    assert_true(kv_notify_send(&n, "READY=1"));
    kv_notify_close(&n);
}

static void test_bad_addresses(void **state) {
    (void)state;
    char longer[300];
    memset(longer, 'a', sizeof longer);
    longer[0] = '/';
    longer[sizeof longer - 1] = '\0';
    const char *bad[] = {"relative/socket", "/", "@", "vsock:2:1234", longer};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kv_notify n;
        kv_error err = {0};
        setenv("NOTIFY_SOCKET", bad[i], 1);
        assert_int_not_equal(kv_notify_open(&n, &err), KV_OK);
        assert_non_null(strstr(err.message, "NOTIFY_SOCKET"));
        assert_false(kv_notify_on(&n));
        assert_true(kv_notify_send(&n, "READY=1"));
    }
}

static void test_watchdog(void **state) {
    (void)state;
    char mine[32], path[] = "/tmp/kv-notify-nobody";
    snprintf(mine, sizeof mine, "%d", (int)getpid());
    const struct {
        const char *usec, *pid;
        int64_t want;
    } rows[] = {
        {NULL, NULL, 0},
        {"30000000", NULL, 30000000},
        {"30000000", mine, 30000000},
        {"30000000", "1", 0},
        {"30000000", "me", 0},
        {"0", NULL, 0},
        {"-5", NULL, 0},
        {"12s", NULL, 0},
        {"99999999999999999999", NULL, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kv_notify n;
        setenv("NOTIFY_SOCKET", path, 1);
        if (rows[i].usec) setenv("WATCHDOG_USEC", rows[i].usec, 1);
        if (rows[i].pid) setenv("WATCHDOG_PID", rows[i].pid, 1);
        assert_int_equal(kv_notify_open(&n, NULL), KV_OK);
        assert_int_equal(n.watchdog_us, rows[i].want);
        assert_null(getenv("WATCHDOG_USEC"));
        assert_null(getenv("WATCHDOG_PID"));
        kv_notify_close(&n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_abstract),
        cmocka_unit_test(test_full_queue_never_waits),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_bad_addresses),
        cmocka_unit_test(test_watchdog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
