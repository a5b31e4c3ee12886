/* store/format: what is written is read, and no damaged byte is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/format.h"

enum { N = 300 };

static kv_token tokens[N];

static kv_record_head sample(void) {
    kv_record_head h = {.kind = KV_RECORD_BLOCK,
                        .canonical = true,
                        .q = 512,
                        .e = 512 + N,
                        .n_tokens = N,
                        .compute_ms = 77,
                        .n_payload = 5000,
                        .created = 1700000000,
                        .engine = "v0.5.0 avx2"};
    for (int i = 0; i < N; i++) tokens[i] = i * 31;
    h.ns = kv_hash_bytes("ns", 2);
    h.parent = kv_hash_bytes("parent", 6);
    h.key = kv_hash_chain(h.parent, tokens, N);
    h.payload_hash = kv_hash_bytes("payload", 7);
    h.shape_class = kv_hash_bytes("shape", 5);
    return h;
}

static void round_trip(void **state) {
    (void)state;
    kv_record_head h = sample(), got;
    uint32_t n = kv_format_head_bytes(N);
    assert_int_equal(n % KV_FORMAT_ALIGN, 0);
    assert_int_equal(kv_format_file_bytes(N, 5000), n + 8192);
    void *file = malloc(n);
    kv_format_write(file, &h, tokens);
    const kv_token *read;
    kv_error err;
    assert_int_equal(kv_format_read(&got, &read, file, n, n + 8192, &err), KV_OK);
    assert_memory_equal(read, tokens, sizeof tokens);
    assert_memory_equal(&got.ns, &h.ns, sizeof h.ns);
    assert_memory_equal(&got.key, &h.key, sizeof h.key);
    assert_memory_equal(&got.payload_hash, &h.payload_hash, sizeof h.key);
    assert_memory_equal(&got.shape_class, &h.shape_class, sizeof h.key);
    assert_int_equal(got.q, h.q);
    assert_int_equal(got.e, h.e);
    assert_int_equal(got.n_payload, h.n_payload);
    assert_int_equal(got.created, h.created);
    assert_int_equal(got.compute_ms, 77);
    assert_true(got.canonical);
    assert_string_equal(got.engine, h.engine);
    /* With the first bytes alone the sizes are known, the tokens not yet. */
    assert_int_equal(kv_format_read(&got, &read, file, 256, n + 8192, &err), KV_OK);
    assert_null(read);
    assert_int_equal(got.n_tokens, N);
    free(file);
}

static void every_flipped_bit_is_seen(void **state) {
    (void)state;
    kv_record_head h = sample(), got;
    uint32_t n = kv_format_head_bytes(N);
    unsigned char *file = malloc(n);
    kv_format_write(file, &h, tokens);
    kv_error err;
    for (size_t bit = 0; bit < (256 + N * 4) * 8; bit++) {
        file[bit / 8] ^= (unsigned char)(1 << bit % 8);
        kv_status status = kv_format_read(&got, NULL, file, n, n + 8192, &err);
        assert_true(status == KV_CORRUPT || (status == KV_UNSUPPORTED && bit / 8 >= 8 && bit / 8 < 10));
        file[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    assert_int_equal(kv_format_read(&got, NULL, file, n, n + 8192, &err), KV_OK);
    assert_int_equal(kv_format_read(&got, NULL, file, n, n + 4096, &err), KV_CORRUPT); /* cut short */
    assert_int_equal(kv_format_read(&got, NULL, file, 100, 100, &err), KV_CORRUPT);
    free(file);
}

static void a_swapped_record_is_not_its_own(void **state) {
    (void)state;
    kv_record_head h = sample(), got;
    h.key.lo ^= 1; /* a file that names itself after other tokens */
    uint32_t n = kv_format_head_bytes(N);
    void *file = malloc(n);
    kv_format_write(file, &h, tokens);
    kv_error err;
    assert_int_equal(kv_format_read(&got, NULL, file, n, n + 8192, &err), KV_CORRUPT);
    assert_non_null(strstr(err.message, "key"));
    free(file);
}

static void names_tell_records_apart(void **state) {
    (void)state;
    kv_record_head h = sample();
    char block[64], window[64], checkpoint[64];
    kv_format_name(block, &h);
    h.kind = KV_RECORD_WINDOW;
    kv_format_name(window, &h);
    h.kind = KV_RECORD_CHECKPOINT;
    kv_format_name(checkpoint, &h);
    assert_string_not_equal(block, window);
    assert_string_not_equal(block, checkpoint);
    char hex[33];
    kv_hash back;
    kv_hash_hex(hex, h.key);
    assert_true(kv_hash_from_hex(&back, hex));
    assert_true(kv_hash_equal(back, h.key));
    assert_memory_equal(block + 3, hex, 32);
    assert_false(kv_hash_from_hex(&back, "xyz"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(every_flipped_bit_is_seen),
        cmocka_unit_test(a_swapped_record_is_not_its_own),
        cmocka_unit_test(names_tell_records_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
