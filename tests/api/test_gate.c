/* Who is let in when, and what a request is told that comes while the model is asleep. The test is the engine's thread,
 * so that it decides when the model is back; nothing here waits for time to pass but for one ping. */
#include "api/rig.h"

#include "api/asleep.h"
#include "api/gate.h"

/* ── the gate alone ────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_closes_only_when_idle(void **state) {
    (void)state;
    kv_gate *g = kv_gate_new();
    kv_ticket t = {0};
    assert_int_equal(kv_gate_enter(g, &t, NULL), KV_ENTRY_INSIDE);
    assert_int_equal(kv_gate_enter(g, &t, NULL), KV_ENTRY_INSIDE); /* asked again, it counts once */
    assert_int_equal(kv_gate_idle_left(g, 5000000), 5000000);
    assert_false(kv_gate_close(g, 0));
    kv_gate_leave(g, &t);
    int64_t left = kv_gate_idle_left(g, 3600000000);
    assert_true(left > 0 && left <= 3600000000);
    assert_false(kv_gate_close(g, 3600000000)); /* not idle for so long */
    assert_true(kv_gate_look(g));
    kv_gate_look_away(g);
    assert_true(kv_gate_close(g, 0));
    assert_false(kv_gate_look(g));
    assert_false(kv_gate_close(g, 0)); /* it is */
    kv_gate_open(g);
    kv_gate_free(g);
}

static void test_waiting(void **state) {
    (void)state;
    kv_gate *g = kv_gate_new();
    kv_ticket a = {0}, b = {0}, c = {0};
    kv_error err = {0};
    assert_true(kv_gate_close(g, 0));
    assert_false(kv_gate_wanted(g));
    assert_int_equal(kv_gate_enter(g, &a, &err), KV_ENTRY_WAIT);
    assert_int_equal(kv_gate_enter(g, &b, &err), KV_ENTRY_WAIT);
    assert_int_equal(kv_gate_enter(g, &c, &err), KV_ENTRY_WAIT);
    assert_true(kv_gate_wanted(g) && kv_gate_wait(g));
    kv_gate_leave(g, &b); /* its client hung up */
    kv_gate_open(g);
    assert_int_equal(kv_wake_wait(&a.wake, -1, -1), KV_WAIT_WOKEN);
    assert_false(kv_gate_close(g, 0)); /* who was let in is inside before it notices */
    assert_int_equal(kv_gate_enter(g, &a, &err), KV_ENTRY_INSIDE);
    kv_gate_leave(g, &a);
    assert_false(kv_gate_close(g, 0));
    kv_gate_leave(g, &c); /* let in, and gone without having looked */
    assert_true(kv_gate_close(g, 0));
    assert_false(kv_gate_wanted(g));
    kv_gate_free(g);
}

static void test_failure_and_stop(void **state) {
    (void)state;
    kv_gate *g = kv_gate_new();
    kv_ticket a = {0}, b = {0};
    kv_error err = {0}, why = {0};
    kv_fail(&why, KV_BUSY, "no such file");
    assert_true(kv_gate_close(g, 0));
    assert_int_equal(kv_gate_enter(g, &a, &err), KV_ENTRY_WAIT);
    kv_gate_fail(g, &why);
    assert_int_equal(kv_wake_wait(&a.wake, -1, -1), KV_WAIT_WOKEN);
    assert_int_equal(kv_gate_enter(g, &a, &err), KV_ENTRY_REFUSED);
    assert_string_equal(err.message, "no such file");
    kv_gate_leave(g, &a);
    assert_false(kv_gate_wanted(g));
    assert_int_equal(kv_gate_enter(g, &b, &err), KV_ENTRY_WAIT); /* the next one tries again */
    assert_true(kv_gate_wanted(g));
    kv_gate_stop(g);
    assert_false(kv_gate_wait(g));
    assert_int_equal(kv_gate_enter(g, &b, &err), KV_ENTRY_REFUSED);
    assert_int_equal(err.status, KV_BUSY);
    kv_gate_leave(g, &b);
    kv_ticket late = {0};
    assert_int_equal(kv_gate_enter(g, &late, &err), KV_ENTRY_REFUSED);
    kv_gate_leave(g, &late);
    kv_gate_free(g);
}

/* ── many at once ──────────────────────────────────────────────────────────────────────────────────────────────── */

#define VISITORS 6
#define VISITS   1500

typedef struct place {
    kv_gate *gate;
    _Atomic bool model; /* there */
    _Atomic int visits, sleeps, failures;
    _Atomic bool over;
} place;

static void *visit(void *ctx) {
    place *p = ctx;
    kv_error err;
    for (int i = 0; i < VISITS; i++) {
        kv_ticket t = {0};
        kv_entry entry;
        while ((entry = kv_gate_enter(p->gate, &t, &err)) == KV_ENTRY_WAIT) kv_wake_wait(&t.wake, -1, -1);
        if (entry == KV_ENTRY_INSIDE) {
            KV_CHECK(atomic_load(&p->model));
            if (i % 3 == 0) sched_yield();
            KV_CHECK(atomic_load(&p->model));
            atomic_fetch_add(&p->visits, 1);
        } else {
            atomic_fetch_add(&p->failures, 1);
            i--; /* again */
        }
        kv_gate_leave(p->gate, &t);
        if (kv_gate_look(p->gate)) {
            KV_CHECK(atomic_load(&p->model));
            kv_gate_look_away(p->gate);
        }
        if (i % 5 == 0) sched_yield();
    }
    return NULL;
}

static void *keep(void *ctx) {
    place *p = ctx;
    kv_error err = {0};
    kv_fail(&err, KV_BUSY, "not today");
    while (!atomic_load(&p->over)) {
        if (!kv_gate_close(p->gate, 0)) {
            sched_yield();
            continue;
        }
        atomic_store(&p->model, false);
        int n = atomic_fetch_add(&p->sleeps, 1);
        for (int fails = n % 4 == 3; kv_gate_wait(p->gate) && fails; fails--) kv_gate_fail(p->gate, &err);
        if (atomic_load(&p->over)) break;
        atomic_store(&p->model, true);
        kv_gate_open(p->gate);
    }
    return NULL;
}

static void test_many(void **state) {
    (void)state;
    place p = {.gate = kv_gate_new()};
    atomic_init(&p.model, true);
    pthread_t keeper, visitor[VISITORS];
    assert_int_equal(pthread_create(&keeper, NULL, keep, &p), 0);
    for (int i = 0; i < VISITORS; i++) assert_int_equal(pthread_create(&visitor[i], NULL, visit, &p), 0);
    for (int i = 0; i < VISITORS; i++) pthread_join(visitor[i], NULL);
    atomic_store(&p.over, true);
    kv_gate_stop(p.gate);
    pthread_join(keeper, NULL);
    assert_int_equal(atomic_load(&p.visits), VISITORS * VISITS); /* nobody was lost */
    kv_gate_free(p.gate);
}

/* ── over HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static rig r;

static client post(const char *path, const char *body) {
    kv_buf text = {0};
    char *json = json_text(body);
    kv_buf_addf(&text, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(json),
                json);
    client c = dial(kv_http_port(r.http));
    say(&c, text.data);
    kv_buf_free(&text);
    free(json);
    return c;
}

static void fall_asleep(void) {
    kv_asleep_note(r.app.asleep, &r.app);
    while (!kv_gate_close(r.app.gate, 0)) sched_yield(); /* the last request's connection still cleans up */
    atomic_store(&r.app.state, KV_APP_ASLEEP);
}

static void wake_up(void) {
    atomic_store(&r.app.state, KV_APP_READY);
    kv_gate_open(r.app.gate);
}

static const struct {
    const char *path, *body;
} streams[] = {
    {"/v1/chat/completions", "{'messages':[{'role':'user','content':'a'}],'max_tokens':2,'stream':true}"},
    {"/v1/completions", "{'prompt':'a','max_tokens':2,'stream':true}"},
    {"/completion", "{'prompt':'a','n_predict':2,'stream':true}"},
};

static void test_stream_waits(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        fall_asleep();
        client c = post(streams[i].path, streams[i].body);
        answer a = {0};
        assert_true(read_head(&c, &a)); /* the answer is there before the model */
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(header_of(&a, "Content-Type"), "text/event-stream"));
        assert_true(kv_gate_wait(r.app.gate));
        wake_up();
        while (read_chunk(&c, &a)) {
        }
        json_t *v = events_of(&a);
        assert_true(json_array_size(v) >= 2);
        assert_null(json_object_get(json_array_get(v, 0), "error"));
        json_decref(v);
        free_answer(&a);
        hang_up(&c);
    }
}

/* Waits for one ping, which is one second. */
static void test_stream_pings(void **state) {
    (void)state;
    fall_asleep();
    client c = post("/v1/completions", "{'prompt':'a','max_tokens':2,'stream':true,'sse_ping_interval':1}");
    answer a = {0};
    assert_true(read_head(&c, &a));
    assert_true(read_chunk(&c, &a));
    assert_string_equal(kv_buf_str(&a.body), ":\n\n");
    wake_up();
    while (read_chunk(&c, &a)) {
    }
    assert_non_null(strstr(kv_buf_str(&a.body), "data: [DONE]\n\n"));
    free_answer(&a);
    hang_up(&c);
}

static void test_waits_for_one_body(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } list[] = {
        {"/v1/completions", "{'prompt':'a','max_tokens':2}"},
        {"/tokenize", "{'content':'abc'}"},
        {"/apply-template", "{'messages':[{'role':'user','content':'a'}]}"},
        {"/v1/chat/completions/input_tokens", "{'messages':[{'role':'user','content':'a'}],'stream':true}"},
        {"/kvasir/explain", "{'prompt':'a'}"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        fall_asleep();
        client c = post(list[i].path, list[i].body);
        assert_true(kv_gate_wait(r.app.gate));
        wake_up();
        answer a = {0};
        assert_true(read_answer(&c, &a, false));
        assert_int_equal(a.status, 200);
        assert_null(header_of(&a, "Transfer-Encoding"));
        free_answer(&a);
        hang_up(&c);
    }
}

static void test_waits_without_body(void **state) {
    (void)state;
    fall_asleep();
    client c = dial(kv_http_port(r.http));
    say(&c, "DELETE /kvasir/cache?all=true HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(kv_gate_wait(r.app.gate));
    wake_up();
    answer a = {0};
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 200);
    free_answer(&a);
    hang_up(&c);
}

static void test_failed_waking(void **state) {
    (void)state;
    kv_error why = {0};
    kv_fail(&why, KV_BUSY, "the disk is on fire");
    fall_asleep();
    client c = post("/v1/completions", "{'prompt':'a','max_tokens':2,'stream':true}");
    client whole = post("/v1/completions", "{'prompt':'a','max_tokens':2}");
    answer a = {0};
    assert_true(read_head(&c, &a));
    assert_true(kv_gate_wait(r.app.gate));
    answer b = {0};
    do { /* the two come at different times */
        kv_gate_fail(r.app.gate, &why);
        sched_yield();
    } while (kv_gate_wanted(r.app.gate));
    while (read_chunk(&c, &a)) {
    }
    json_t *v = events_of(&a);
    assert_int_equal(json_array_size(v), 1);
    assert_int_equal(int_at(v, "0.error.code"), 503);
    assert_string_equal(str_at(v, "0.error.message"), "the disk is on fire");
    json_decref(v);
    /* the second may have come after the last failure: then it waits, and gets its answer now */
    wake_up();
    assert_true(read_answer(&whole, &b, false));
    if (b.status != 200) assert_string_equal(error_of(&b, 503, "unavailable_error"), "the disk is on fire");
    free_answer(&a);
    free_answer(&b);
    hang_up(&c);
    hang_up(&whole);
}

static void test_hang_up_while_waiting(void **state) {
    (void)state;
    fall_asleep();
    client c = post("/v1/completions", "{'prompt':'a','max_tokens':2}");
    client s = post("/v1/completions", "{'prompt':'a','max_tokens':2,'stream':true}");
    assert_true(kv_gate_wait(r.app.gate));
    answer a = {0};
    assert_true(read_head(&s, &a));
    free_answer(&a);
    hang_up(&c);
    hang_up(&s);
    while (kv_gate_wanted(r.app.gate) || kv_http_in_flight(r.http) > 0) sched_yield(); /* noticed without waking */
    wake_up();
}

/* What only reads gets its answer, and wakes nobody; nor does what could not be served anyhow. */
static void test_looking(void **state) {
    (void)state;
    static const char *const paths[] = {"/health", "/props", "/v1/models", "/slots", "/kvasir/cache"};
    json_t *awake[5];
    for (int i = 0; i < 5; i++) awake[i] = rig_json(&r, paths[i], NULL);
    fall_asleep();
    kv_model *model = r.app.model;
    kv_sched *sched = r.app.sched;
    r.app.model = NULL;
    r.app.sched = NULL;
    for (int i = 0; i < 5; i++) {
        json_t *v = rig_json(&r, paths[i], NULL);
        if (i == 1) {
            assert_true(json_is_true(json_object_get(v, "is_sleeping")));
            json_object_set_new(v, "is_sleeping", json_false());
        }
        if (i == 3) assert_int_equal(json_array_size(v), json_array_size(awake[i]));
        else assert_true(json_equal(v, awake[i]));
        json_decref(v);
        json_decref(awake[i]);
    }
    answer a = {0};
    assert_int_equal(rig_ask(&a, &r, "/metrics", NULL), 200);
    assert_non_null(strstr(kv_buf_str(&a.body), "\nkvasir_asleep 1\n"));
    assert_non_null(strstr(kv_buf_str(&a.body), "\nkvasir_weights_bytes 0\n"));
    free_answer(&a);
    a = (answer){0};
    assert_int_equal(rig_ask(&a, &r, "/v1/completions", "{'prompt':"), 400);
    free_answer(&a);
    assert_false(kv_gate_wanted(r.app.gate));
    r.app.model = model;
    r.app.sched = sched;
    wake_up();
    a = (answer){0};
    assert_int_equal(rig_ask(&a, &r, "/metrics", NULL), 200);
    assert_non_null(strstr(kv_buf_str(&a.body), "\nkvasir_asleep 0\n"));
    free_answer(&a);
}

static int open_rig(void **state) {
    (void)state;
    rig_open(&r);
    r.opt.metrics_endpoint = r.opt.slots_endpoint = true;
    r.app.gate = kv_gate_new();
    r.app.asleep = kv_asleep_new();
    rig_serve(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    kv_gate *gate = r.app.gate;
    kv_asleep *asleep = r.app.asleep;
    rig_close(&r);
    kv_gate_free(gate);
    kv_asleep_free(asleep);
    return 0;
}

int main(void) {
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(test_closes_only_when_idle),
        cmocka_unit_test(test_waiting),
        cmocka_unit_test(test_failure_and_stop),
        cmocka_unit_test(test_many),
    };
    const struct CMUnitTest served[] = {
        cmocka_unit_test(test_stream_waits),
        cmocka_unit_test(test_stream_pings),
        cmocka_unit_test(test_waits_for_one_body),
        cmocka_unit_test(test_waits_without_body),
        cmocka_unit_test(test_failed_waking),
        cmocka_unit_test(test_hang_up_while_waiting),
        cmocka_unit_test(test_looking),
    };
    int failed = cmocka_run_group_tests(alone, NULL, NULL);
    return failed + cmocka_run_group_tests(served, open_rig, close_rig);
}
