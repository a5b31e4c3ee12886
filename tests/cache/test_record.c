/* The accounts of records in memory, and the buffers that are read into again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cache/record.h"

enum { LIVE = 12 };

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static kv_record *make(kv_pool *p, kv_account account, uint64_t n_payload) {
    return kv_record_new(p, account, &(kv_record_head){.n_tokens = 4, .e = 4, .n_payload = n_payload}, NULL);
}

static void test_accounts_have_a_hard_maximum(void **state) {
    (void)state;
    kv_pool p = {0};
    uint64_t one = kv_record_bytes(4, 1000);
    kv_pool_init(&p, 2 * one, one, one);
    kv_record *a = make(&p, KV_ACCOUNT_QUEUE, 1000), *b = make(&p, KV_ACCOUNT_QUEUE, 1000);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(make(&p, KV_ACCOUNT_QUEUE, 1));
    assert_true(kv_record_to_ram(a));
    assert_false(kv_record_to_ram(b));
    kv_record_unref(a);
    assert_true(kv_record_to_ram(b));
    assert_int_equal(atomic_load(&p.used[KV_ACCOUNT_QUEUE]), 0);
    kv_record_unref(b);
    assert_int_equal(atomic_load(&p.used[KV_ACCOUNT_RAM]), 0);
    kv_pool_free(&p);
}

static void test_a_buffer_is_read_into_again(void **state) {
    (void)state;
    kv_pool p = {0};
    kv_pool_init(&p, 0, 0, 100000);
    kv_record *r = make(&p, KV_ACCOUNT_READ, 9000);
    assert_int_equal(kv_record_make_room(r, NULL), KV_OK);
    void *data = r->payload.data;
    kv_record_unref(r);
    kv_pool_check(&p);
    assert_int_equal(atomic_load(&p.used[KV_ACCOUNT_READ]), 0);
    r = make(&p, KV_ACCOUNT_READ, 8500);
    assert_int_equal(kv_record_make_room(r, NULL), KV_OK);
    assert_ptr_equal(r->payload.data, data);
    /* one that needs all room takes it from the spare ones */
    kv_record_unref(r);
    assert_int_equal(p.n_spare, 1);
    r = make(&p, KV_ACCOUNT_READ, 99000);
    assert_non_null(r);
    assert_int_equal(p.n_spare, 0);
    kv_record_unref(r);
    kv_pool_free_spare(&p);
    assert_int_equal(p.spare_bytes, 0);
    kv_pool_free(&p);
}

static void test_random_reads(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 4711, s = seed;
    print_message("seed %u\n", seed);
    kv_pool p = {0};
    kv_pool_init(&p, 0, 0, 300000);
    kv_record *live[LIVE] = {NULL};
    uint64_t used = 0;
    for (int i = 0; i < 20000; i++) {
        kv_record **at = &live[next(&s) % LIVE];
        if (*at) {
            for (uint64_t k = 0; k < (*at)->head.n_payload; k += 997)
                assert_int_equal((*at)->payload.data[k], (char)(*at)->head.key.lo);
            used -= (*at)->counted;
            kv_record_unref(*at);
            *at = NULL;
        } else {
            uint64_t n = 1 + next(&s) % (next(&s) % 4 ? 20000 : 120000), bytes = kv_record_bytes(4, n);
            kv_record *r = make(&p, KV_ACCOUNT_READ, n);
            assert_true((r != NULL) == (used + bytes <= 300000));
            if (r) {
                assert_int_equal(kv_record_make_room(r, NULL), KV_OK);
                assert_int_equal((uintptr_t)r->payload.data % KV_FORMAT_ALIGN, 0);
                assert_true(r->payload.cap >= n);
                r->head.key.lo = (uint64_t)i;
                memset(r->payload.data, i, n);
                used += bytes;
                *at = r;
            }
        }
        assert_int_equal(atomic_load(&p.used[KV_ACCOUNT_READ]), used);
        kv_pool_check(&p);
    }
    for (int i = 0; i < LIVE; i++) kv_record_unref(live[i]);
    assert_int_equal(atomic_load(&p.used[KV_ACCOUNT_READ]), 0);
    kv_pool_check(&p);
    kv_pool_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accounts_have_a_hard_maximum),
        cmocka_unit_test(test_a_buffer_is_read_into_again),
        cmocka_unit_test(test_random_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
