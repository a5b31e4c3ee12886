/* sched/gen: the event queue, waking, references. */
#include "testing.h"

#include "sched/gen_private.h"

static int woken;
static void wake(void *ctx) {
    ++*(int *)ctx;
}

static kv_gen *make(void) {
    static const kv_token prompt[] = {1, 2, 3};
    kv_gen_params p = {.prompt = prompt, .n_prompt = 3, .cache_prompt = true, .id_slot = -1};
    p.wake = wake;
    p.wake_ctx = &woken;
    woken = 0;
    return kv_gen_new(&p);
}

static void push(kv_gen *g, kv_event_kind kind, int32_t number) {
    kv_gen_event e = {.kind = kind, .token = number, .n_processed = number};
    if (kind == KV_EVENT_TOKEN) {
        e.text = kv_strdup("text");
        e.top = kv_alloc(sizeof *e.top);
        e.n_top = 1;
    }
    if (kind == KV_EVENT_DONE) {
        e.stop_word = kv_strdup("stop");
        kv_fail(&e.error, KV_BUSY, "number %d", (int)number);
    }
    kv_gen_push(g, &e);
}

static void events_in_order(void **state) {
    (void)state;
    kv_gen *g = make();
    kv_gen_event e;
    assert_false(kv_gen_next(&e, g));
    push(g, KV_EVENT_PROGRESS, 1);
    push(g, KV_EVENT_PROGRESS, 2); /* takes the place of the first */
    assert_true(kv_gen_next(&e, g));
    assert_int_equal(e.n_processed, 2);
    kv_gen_event_free(&e);
    assert_false(kv_gen_next(&e, g));
    push(g, KV_EVENT_PROGRESS, 3);
    push(g, KV_EVENT_TOKEN, 4);
    push(g, KV_EVENT_TOKEN, 5);
    push(g, KV_EVENT_DONE, 6);
    assert_int_equal(woken, 6);
    static const kv_event_kind kinds[] = {KV_EVENT_PROGRESS, KV_EVENT_TOKEN, KV_EVENT_TOKEN, KV_EVENT_DONE};
    for (int i = 0; i < 4; i++) {
        assert_true(kv_gen_next(&e, g));
        assert_int_equal(e.kind, kinds[i]);
        assert_int_equal(e.token, 3 + i);
        assert_int_equal(e.error.status, i == 3 ? KV_BUSY : KV_OK);
        if (i == 3) assert_string_equal(e.error.message, "number 6");
        kv_gen_event_free(&e);
    }
    assert_false(kv_gen_next(&e, g));
    kv_gen_unref(g);
}

static void unread_events_go_with_the_last_reference(void **state) {
    (void)state;
    kv_gen *g = make();
    kv_gen_ref(g);
    push(g, KV_EVENT_TOKEN, 1);
    kv_gen_unref(g);
    push(g, KV_EVENT_TOKEN, 2); /* still there */
    kv_gen_detach(g);
    push(g, KV_EVENT_DONE, 3);
    assert_int_equal(woken, 2);
    kv_gen_unref(g); /* ASan looks for what is left */
    kv_gen_unref(NULL);
}

static void a_million_progress_events_are_one(void **state) {
    (void)state;
    kv_gen *g = make();
    kv_gen_event e;
    for (int i = 0; i < 1000000; i++) push(g, KV_EVENT_PROGRESS, i);
    assert_true(kv_gen_next(&e, g));
    assert_int_equal(e.n_processed, 999999);
    assert_false(kv_gen_next(&e, g));
    kv_gen_unref(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_in_order),
        cmocka_unit_test(unread_events_go_with_the_last_reference),
        cmocka_unit_test(a_million_progress_events_are_one),
    };
    return cmocka_run_group_tests_name("sched/gen", tests, NULL, NULL);
}
