#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cli/signals.h"
#include "os/wake.h"

static void test_hup_after_the_stop(void **state) {
    (void)state;
    kv_wake wake;
    assert_int_equal(kv_wake_init(&wake, NULL), KV_OK);
    assert_int_equal(kv_signals_start(&wake, NULL), KV_OK);
    assert_int_equal(raise(SIGHUP), 0);
    assert_true(kv_signals_take_hup());
    assert_false(kv_signals_take_hup());
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(kv_signals_asked_to_stop());
    kv_signals_stop();
    assert_int_equal(raise(SIGHUP), 0); /* would end this program */
    assert_false(kv_signals_take_hup());
    kv_wake_free(&wake);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hup_after_the_stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
