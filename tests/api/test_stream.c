/* A stream while nothing comes: the 200 at once, pings in every state, a full queue; and errors after the 200. The
 * engine stands still as long as a test wants, so nothing here depends on speed. */
#include "api/rig.h"

static rig r;

#define BODY "{'prompt':'a','max_tokens':2,'stream':true,'sse_ping_interval':%d,'kvasir':{'play':'xyz'}}"

/* Waits for one ping, which is one second. */
static void test_ping_while_prefilling(void **state) {
    (void)state;
    char body[200];
    snprintf(body, sizeof body, BODY, 1);
    rig_set(&r, true, false);
    client c = rig_post(&r, "/v1/completions", body);
    answer a = {0};
    assert_true(read_head(&c, &a)); /* nothing was computed, the answer is there all the same */
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "X-Accel-Buffering"), "no");
    assert_true(read_chunk(&c, &a));
    assert_string_equal(kv_buf_str(&a.body), ":\n\n");
    rig_set(&r, false, false);
    while (read_chunk(&c, &a)) {
    }
    json_t *v = events_of(&a);
    assert_true(json_is_null(json_array_get(v, 0)));
    assert_string_equal(json_string_value(json_array_get(v, json_array_size(v) - 1)), "[DONE]");
    json_decref(v);
    free_answer(&a);
    hang_up(&c);
}

/* Four run, two wait, the next is told to come back; and after that everybody gets an answer. */
static void test_queue_full(void **state) {
    (void)state;
    char body[200];
    snprintf(body, sizeof body, BODY, -1);
    rig_set(&r, true, false);
    client c[6];
    answer a[6] = {0};
    for (int i = 0; i < 6; i++) {
        c[i] = rig_post(&r, "/v1/completions", body);
        assert_true(read_head(&c[i], &a[i]));
        assert_int_equal(a[i].status, 200);
    }
    answer full = {0};
    assert_int_equal(rig_ask(&full, &r, "/completion", "{'prompt':'a'}"), 503);
    assert_non_null(header_of(&full, "Retry-After"));
    assert_non_null(strstr(error_of(&full, 503, "unavailable_error"), "queue"));
    free_answer(&full);
    json_t *v = rig_json(&r, "/health", NULL); /* looking never waits for the engine */
    json_decref(v);
    v = rig_json(&r, "/slots", NULL);
    assert_int_equal(json_array_size(v), 4);
    json_decref(v);
    rig_set(&r, false, false);
    for (int i = 0; i < 6; i++) {
        while (read_chunk(&c[i], &a[i])) {
        }
        assert_non_null(strstr(kv_buf_str(&a[i].body), "data: [DONE]\n\n"));
        free_answer(&a[i]);
        hang_up(&c[i]);
    }
}

/* A client that leaves while its prompt waits: its place in the queue is free again. */
static void test_hang_up_in_queue(void **state) {
    (void)state;
    char body[200];
    snprintf(body, sizeof body, BODY, -1);
    rig_set(&r, true, false);
    client c[6];
    for (int i = 0; i < 6; i++) {
        answer a = {0};
        c[i] = rig_post(&r, "/completion", body);
        assert_true(read_head(&c[i], &a));
        free_answer(&a);
    }
    for (int i = 0; i < 6; i++) hang_up(&c[i]);
    rig_set(&r, false, false);
    while (!kv_sched_idle(r.app.sched)) sched_yield();
    json_decref(rig_json(&r, "/completion", "{'prompt':'a','n_predict':1}"));
}

static void test_engine_error(void **state) {
    (void)state;
    rig_set(&r, true, true);
    char body[200];
    snprintf(body, sizeof body, BODY, -1);
    static const char *const streams[] = {"/v1/completions", "/completion"};
    for (int i = 0; i < 2; i++) {
        rig_set(&r, true, true);
        client c = rig_post(&r, streams[i], body);
        answer a = {0};
        assert_true(read_head(&c, &a));
        assert_int_equal(a.status, 200);
        rig_set(&r, false, true);
        while (read_chunk(&c, &a)) {
        }
        json_t *v = events_of(&a); /* the error is all, and the stream ends with it */
        assert_int_equal(json_array_size(v), 1);
        assert_int_equal(int_at(v, "0.error.code"), 500);
        assert_string_equal(str_at(v, "0.error.type"), "server_error");
        json_decref(v);
        free_answer(&a);
        hang_up(&c);
    }
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, "/completion", "{'prompt':'a','n_predict':2}"), 500);
    error_of(&a, 500, "server_error");
    free_answer(&a);
    rig_set(&r, false, false);
    json_decref(rig_json(&r, "/completion", "{'prompt':'a','n_predict':2}"));
}

static int open_rig(void **state) {
    (void)state;
    r.max_queue = 2;
    rig_open(&r);
    r.opt.test_sampler = true;
    rig_serve(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    rig_set(&r, false, false);
    rig_close(&r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ping_while_prefilling),
        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_hang_up_in_queue),
        cmocka_unit_test(test_engine_error),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
