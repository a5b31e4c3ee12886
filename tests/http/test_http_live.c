/* What lives longer than one answer: streams, hang-ups, stopping, limits on connections, leaks.
 *
 * Handlers and the test take turns through wakes: `entered` says that a handler is there, `go` lets it on, `left` that
 * it is through. Nothing sleeps. */
#include "client.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"

static kv_http *server;
static int port;
static answer a; /* of the last request; freed by the next */
static kv_wake entered, go, left;
static kv_wait seen;          /* what the last kv_http_wait gave; written before `left` is set */
static _Atomic int n_freed;   /* streams */
static _Atomic int n_waiting; /* handlers inside kv_http_wait */

static void expect_wake(kv_wake *w) {
    assert_int_equal(kv_wake_wait(w, -1, 20000), KV_WAIT_WOKEN);
}

/* The peer has an answer a moment before the server is done with the request. */
static void until_served(void) {
    for (int i = 0; i < 100000000 && kv_http_in_flight(server) > 0; i++) sched_yield();
    assert_int_equal(kv_http_in_flight(server), 0);
}

/* ── handlers ── */

static kv_status on_hello(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)req, (void)err;
    kv_buf_adds(&res->body, "\"hello\"");
    return KV_OK;
}

/* Blocks as a prefill does, until `go`. */
static kv_status on_wait(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app;
    kv_wake_set(&entered);
    kv_wait got = seen = kv_http_wait(req, &go, -1);
    kv_wake_set(&left);
    if (got != KV_WAIT_WOKEN) return kv_fail(err, KV_CANCELLED, "the client hung up");
    kv_buf_adds(&res->body, "\"waited\"");
    return KV_OK;
}

/* Blocks with a wake of its own, so that many can at once. */
static kv_status on_block(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)res;
    kv_wake mine;
    kv_status status = kv_wake_init(&mine, err);
    if (status != KV_OK) return status;
    atomic_fetch_add(&n_waiting, 1);
    kv_wake_set(&entered);
    kv_wait got = kv_http_wait(req, &mine, -1);
    atomic_fetch_sub(&n_waiting, 1);
    kv_wake_free(&mine);
    if (got == KV_WAIT_HUNG_UP) kv_wake_set(&left);
    return kv_fail(err, KV_CANCELLED, "the server stops");
}

/* A stream that gives "one", "two", … one at each `go`, and ends after `n`. */
typedef struct counting {
    int given, n;
    size_t piece; /* bytes of each item; 0 = just its line */
} counting;

static bool counting_next(void *ctx, kv_http_request *req, kv_buf *out) {
    counting *s = ctx;
    kv_wake_set(&entered);
    seen = kv_http_wait(req, &go, -1);
    if (seen != KV_WAIT_WOKEN) return false;
    if (s->given == s->n) return false;
    kv_buf_addf(out, "data: %d\n\n", ++s->given);
    while (out->len < s->piece) kv_buf_add(out, "0123456789abcdef", 16);
    kv_http_note(req, "gave %d", s->given);
    return true;
}

static void counting_free(void *ctx) {
    free(ctx);
    atomic_fetch_add(&n_freed, 1);
    kv_wake_set(&left);
}

static kv_status on_stream(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)err;
    counting *s = kv_alloc(sizeof *s);
    const char *n = kv_http_query(req, "n"), *piece = kv_http_query(req, "piece");
    s->n = n ? atoi(n) : 1;
    s->piece = piece ? (size_t)atoi(piece) : 0;
    res->stream = (kv_http_stream){counting_next, counting_free, s};
    if (kv_http_query(req, "fail")) return kv_fail(err, KV_INVALID, "refused after all");
    return KV_OK;
}

/* Never waits: always has more. */
static bool endless_next(void *ctx, kv_http_request *req, kv_buf *out) {
    (void)ctx, (void)req;
    for (int i = 0; i < 1000; i++) kv_buf_adds(out, "data: all work and no play makes a dull stream\n\n");
    return true;
}

static void endless_free(void *ctx) {
    (void)ctx;
    kv_wake_set(&left);
}

static kv_status on_endless(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)req, (void)err;
    res->stream = (kv_http_stream){endless_next, endless_free, NULL};
    return KV_OK;
}

/* Ends by itself after `n` items of which none waits, for many requests at once. */
static bool quick_next(void *ctx, kv_http_request *req, kv_buf *out) {
    (void)req;
    int *n = ctx;
    if (*n == 0) return false;
    kv_buf_addf(out, "data: %d\n\n", (*n)--);
    return true;
}

static kv_status on_quick(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)req, (void)err;
    int *n = kv_alloc(sizeof *n);
    *n = 5;
    res->stream = (kv_http_stream){quick_next, free, n};
    return KV_OK;
}

static const kv_http_route routes[] = {
    {"GET", "/hello", on_hello, true, NULL},     {"POST", "/hello", on_hello, true, NULL},
    {"GET", "/wait", on_wait, false, NULL},      {"POST", "/wait", on_wait, false, NULL},
    {"GET", "/block", on_block, false, NULL},    {"GET", "/stream", on_stream, false, NULL},
    {"POST", "/stream", on_stream, false, NULL}, {"GET", "/endless", on_endless, false, NULL},
    {"GET", "/quick", on_quick, false, NULL},    {NULL, NULL, NULL, false, NULL},
};

static void start(kv_http_config cfg) {
    kv_error err = {0};
    cfg.routes = routes;
    if (kv_http_start(&server, &cfg, &err) != KV_OK) fail_msg("%s", err.message);
    port = kv_http_port(server);
}

static int setup_wakes(void **state) {
    (void)state;
    atomic_store(&n_freed, 0);
    return kv_wake_init(&entered, NULL) || kv_wake_init(&go, NULL) || kv_wake_init(&left, NULL);
}

static int setup(void **state) {
    setup_wakes(state);
    start((kv_http_config){0});
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free_answer(&a);
    a = (answer){0};
    kv_http_stop(server);
    server = NULL;
    kv_wake_free(&entered);
    kv_wake_free(&go);
    kv_wake_free(&left);
    return 0;
}

static void get(client *c, const char *target) {
    kv_buf text = {0};
    kv_buf_addf(&text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", target);
    say(c, text.data);
    kv_buf_free(&text);
}

/* ── streams ── */

/* Each item is read before the next is let go, so one that is held back anywhere would hang the test. */
static void test_stream(void **state) {
    (void)state;
    client c = dial(port);
    for (int round = 0; round < 2; round++) { /* twice over one connection */
        get(&c, "/stream?n=3");
        assert_true(read_head(&c, &a)); /* the header comes before there is any body */
        assert_int_equal(a.status, 200);
        assert_string_equal(header_of(&a, "Content-Type"), "text/event-stream");
        assert_string_equal(header_of(&a, "Cache-Control"), "no-cache");
        assert_string_equal(header_of(&a, "X-Accel-Buffering"), "no");
        assert_string_equal(header_of(&a, "Transfer-Encoding"), "chunked");
        assert_memory_equal(header_of(&a, "x-request-id"), "req_", 4);
        assert_string_equal(header_of(&a, "Server"), "kvasir/" KVASIR_VERSION);
        for (int i = 1; i <= 3; i++) {
            char item[32];
            snprintf(item, sizeof item, "data: %d\n\n", i);
            expect_wake(&entered);
            assert_int_equal(kv_http_in_flight(server), 1);
            kv_buf_clear(&a.body);
            kv_wake_set(&go);
            assert_true(read_chunk(&c, &a));
            assert_string_equal(a.body.data, item);
        }
        expect_wake(&entered);
        kv_wake_set(&go);
        assert_false(read_chunk(&c, &a));
        assert_false(a.closed);
        expect_wake(&left);
        assert_int_equal(atomic_load(&n_freed), round + 1);
    }
    hang_up(&c);
}

static void test_stream_old_and_head(void **state) {
    (void)state;
    client c = dial(port);
    say(&c, "GET /stream?n=2 HTTP/1.0\r\n\r\n"); /* no chunks, ends with the connection */
    assert_true(read_head(&c, &a));
    assert_null(header_of(&a, "Transfer-Encoding"));
    for (int i = 1; i <= 2; i++) {
        expect_wake(&entered);
        kv_wake_set(&go);
        assert_true(take(&c, &a.body, 9));
    }
    assert_string_equal(a.body.data, "data: 1\n\ndata: 2\n\n");
    expect_wake(&entered);
    kv_wake_set(&go);
    assert_true(ended(&c));
    expect_wake(&left);
    hang_up(&c);

    c = dial(port);
    say(&c, "HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(read_answer(&c, &a, true));
    assert_int_equal(a.status, 200);
    expect_wake(&left); /* freed, though never asked for anything */
    get(&c, "/stream?fail=1");
    assert_true(read_answer(&c, &a, false));
    error_of(&a, 400, "invalid_request_error");
    expect_wake(&left);
    assert_int_equal(atomic_load(&n_freed), 3);
    hang_up(&c);
}

static void test_stream_large_items(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/stream?n=2&piece=3000000");
    assert_true(read_head(&c, &a));
    for (int i = 0; i < 3; i++) {
        expect_wake(&entered);
        kv_wake_set(&go);
        while (a.body.len < 3000000u * (unsigned)(i + 1) && read_chunk(&c, &a)) {
        }
    }
    assert_int_equal(a.body.len, 2 * (9 + 3000000)); /* "data: N\n\n" and whole pieces of 16 bytes */
    hang_up(&c);
}

static void test_stream_hang_up(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++) {
        client c = dial(port);
        get(&c, "/stream?n=3");
        assert_true(read_head(&c, &a));
        expect_wake(&entered);
        kv_wake_set(&go);
        assert_true(read_chunk(&c, &a));
        expect_wake(&entered); /* waits for the second item */
        if (half) shutdown(c.fd, SHUT_WR);
        else close(c.fd), c.fd = -1;
        expect_wake(&left);
        if (half) { /* cut off, not ended: the last chunk must not come */
            while (read_chunk(&c, &a)) {
            }
            assert_true(a.closed);
        }
        assert_int_equal(seen, KV_WAIT_HUNG_UP);
        if (c.fd >= 0) hang_up(&c);
        kv_buf_free(&c.in);
    }
    assert_int_equal(ask(&a, port, "GET /hello", NULL), 200);
}

/* A peer that reads nothing, of a stream that never waits: seen when it goes. */
static void test_endless_hang_up(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/endless");
    assert_true(read_head(&c, &a));
    assert_true(read_chunk(&c, &a));
    hang_up(&c);
    expect_wake(&left);
}

/* ── hang-ups in handlers ── */

static void test_wait_answers(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/wait");
    expect_wake(&entered);
    kv_wake_set(&go);
    assert_true(read_answer(&c, &a, false));
    assert_string_equal(a.body.data, "\"waited\"");
    hang_up(&c);
}

static void test_hang_up(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/wait");
    expect_wake(&entered);
    hang_up(&c);
    expect_wake(&left);
    assert_int_equal(seen, KV_WAIT_HUNG_UP);

    /* with a body, all of it read */
    c = dial(port);
    say(&c, "POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody");
    expect_wake(&entered);
    hang_up(&c);
    expect_wake(&left);
    assert_int_equal(seen, KV_WAIT_HUNG_UP);

    /* a reset */
    c = dial(port);
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    get(&c, "/wait");
    expect_wake(&entered);
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    hang_up(&c);
    expect_wake(&left);
    assert_int_equal(seen, KV_WAIT_HUNG_UP);
    assert_int_equal(ask(&a, port, "GET /hello", NULL), 200);
}

static void test_half_close(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/wait");
    expect_wake(&entered);
    shutdown(c.fd, SHUT_WR);
    expect_wake(&left);
    assert_int_equal(seen, KV_WAIT_HUNG_UP);
    assert_true(read_answer(&c, &a, false)); /* it still reads, and is told */
    error_of(&a, 499, "cancelled_error");
    hang_up(&c);
}

/* The next request lies in the socket while the first waits. */
static void test_pipelined_is_no_hang_up(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/wait");
    expect_wake(&entered);
    say(&c, "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
    assert_int_equal(kv_wake_wait(&left, -1, 50),
                     KV_WAIT_TIMEOUT); /* still waits; a wrong hang-up would be here by now */
    kv_wake_set(&go);
    expect_wake(&left);
    assert_int_equal(seen, KV_WAIT_WOKEN);
    assert_true(read_answer(&c, &a, false));
    assert_string_equal(a.body.data, "\"waited\"");
    assert_true(read_answer(&c, &a, false));
    assert_string_equal(a.body.data, "\"hello\"");
    hang_up(&c);
}

/* ── quiesce and stop ── */

static void test_quiesce(void **state) {
    (void)state;
    client busy = dial(port), idle = dial(port);
    get(&idle, "/hello");
    assert_true(read_answer(&idle, &a, false));
    get(&busy, "/wait");
    expect_wake(&entered);
    kv_http_quiesce(server);
    kv_http_quiesce(server); /* twice is harmless */

    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);

    get(&idle, "/hello"); /* connections go on, for one more answer */
    assert_true(read_answer(&idle, &a, false));
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Connection"), "close");
    assert_true(ended(&idle));
    assert_int_equal(kv_http_in_flight(server), 1);
    kv_wake_set(&go);
    assert_true(read_answer(&busy, &a, false));
    assert_string_equal(a.body.data, "\"waited\"");
    hang_up(&busy);
    hang_up(&idle);
}

enum { N_STOPPED = 20 };

static void test_stop_wakes_all(void **state) {
    (void)state;
    int fds = count_fds();
    kv_http_stop(server);
    start((kv_http_config){0});
    client c[N_STOPPED + 3];
    for (int i = 0; i < N_STOPPED; i++) {
        c[i] = dial(port);
        get(&c[i], "/block");
    }
    while (atomic_load(&n_waiting) < N_STOPPED) expect_wake(&entered);
    c[N_STOPPED] = dial(port); /* says nothing */
    c[N_STOPPED + 1] = dial(port);
    say(&c[N_STOPPED + 1], "GET /hello HT"); /* says half a request */
    c[N_STOPPED + 2] = dial(port);
    get(&c[N_STOPPED + 2], "/endless"); /* is being sent to, and does not read */
    assert_true(read_head(&c[N_STOPPED + 2], &a));
    assert_int_equal(kv_http_in_flight(server), N_STOPPED + 1);
    kv_http_stop(server);
    assert_int_equal(atomic_load(&n_waiting), 0);
    for (int i = 0; i < N_STOPPED + 3; i++) {
        kv_buf rest = {0};
        read_to_end(&c[i], &rest);
        kv_buf_free(&rest);
        hang_up(&c[i]);
    }
    start((kv_http_config){0}); /* for the teardown, and to compare like with like */
    assert_int_equal(count_fds(), fds);
}

static void test_stop_cuts_streams(void **state) {
    (void)state;
    client c = dial(port);
    get(&c, "/stream?n=3");
    assert_true(read_head(&c, &a));
    expect_wake(&entered);
    kv_http_stop(server);
    assert_int_equal(seen, KV_WAIT_HUNG_UP);
    assert_int_equal(atomic_load(&n_freed), 1);
    while (read_chunk(&c, &a)) {
    }
    assert_true(a.closed); /* not as if it were whole */
    hang_up(&c);
    start((kv_http_config){0});
}

/* ── limits on connections ── */

static void test_connection_limit(void **state) {
    (void)state;
    start((kv_http_config){.max_connections = 3});
    client busy[3];
    for (int i = 0; i < 3; i++) {
        busy[i] = dial(port);
        get(&busy[i], "/block");
    }
    while (atomic_load(&n_waiting) < 3) expect_wake(&entered);
    for (int i = 0; i < 20; i++) { /* refused ones leave nothing behind */
        ask(&a, port, "GET /hello", NULL);
        if (a.status == -1) continue; /* more at once than are even told: closed unread */
        error_of(&a, 503, "unavailable_error");
        assert_string_equal(header_of(&a, "Retry-After"), "1");
        assert_string_equal(header_of(&a, "Connection"), "close");
    }
    hang_up(&busy[0]);
    expect_wake(&left);
    do ask(&a, port, "GET /hello", NULL); /* until the listener has seen the end of that one */
    while (a.status != 200);
    hang_up(&busy[1]);
    hang_up(&busy[2]);
}

static void test_idle_ones_make_room(void **state) {
    (void)state;
    start((kv_http_config){.max_connections = 3});
    client idle[3];
    for (int i = 0; i < 3; i++) {
        idle[i] = dial(port);
        get(&idle[i], "/hello");
        assert_true(read_answer(&idle[i], &a, false));
        until_served();
    }
    assert_int_equal(ask(&a, port, "GET /hello", NULL), 200);
    assert_true(ended(&idle[0])); /* the one that was idle longest */
    for (int i = 1; i < 3; i++) {
        get(&idle[i], "/hello");
        assert_true(read_answer(&idle[i], &a, false));
        assert_int_equal(a.status, 200);
    }
    for (int i = 0; i < 3; i++) hang_up(&idle[i]);
}

/* Sends a byte now and then, as long as the server takes them. Ends by itself, or the read limit fails the test. */
static void drip(const char *first, const char *then) {
    client c = dial(port);
    struct timeval pace = {.tv_usec = 50000};
    kv_buf answer_text = {0};
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_RCVTIMEO, &pace, sizeof pace), 0);
    say(&c, first);
    for (int i = 0; i < 400; i++) {
        char byte;
        ssize_t n = recv(c.fd, &byte, 1, 0); /* waits for the server to hang up, 50 ms at most */
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
            hang_up(&c);
            kv_buf_free(&answer_text);
            return;
        }
        if (!try_send(&c, then, strlen(then))) continue;
    }
    fail_msg("still open after 400 drips");
}

static void test_slow_ones_are_cut(void **state) {
    (void)state;
    start((kv_http_config){.idle_timeout_s = 1});
    drip("GET /hello HT", "T");                                     /* the request line never ends */
    drip("GET /hello HTTP/1.1\r\nHost: localhost\r\n", "X: y\r\n"); /* the headers never end */
    drip("POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", "z");
    drip("POST /hello HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nz\r\n");

    client silent = dial(port), kept = dial(port), busy = dial(port);
    get(&kept, "/hello");
    assert_true(read_answer(&kept, &a, false));
    get(&busy, "/wait");
    expect_wake(&entered);
    assert_true(ended(&silent));
    assert_true(ended(&kept));
    assert_int_equal(kv_wake_wait(&left, -1, 1500), KV_WAIT_TIMEOUT); /* a request being handled is not cut */
    kv_wake_set(&go);
    assert_true(read_answer(&busy, &a, false));
    assert_string_equal(a.body.data, "\"waited\"");
    hang_up(&silent);
    hang_up(&kept);
    hang_up(&busy);

    client deaf = dial(port); /* takes nothing of what it asked for */
    get(&deaf, "/endless");
    expect_wake(&left); /* from the wait above */
    expect_wake(&left);
    hang_up(&deaf);
}

/* ── many ── */

enum { N_ROUNDS = 1500, N_THREADS = 4 };

static void *many(void *arg) {
    static const char *const texts[] = {
        "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde",
        "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };
    unsigned x = *(unsigned *)arg;
    answer mine = {0};
    client c = dial(port);
    bool right = true;
    for (int i = 0; right && i < N_ROUNDS; i++) {
        x = x * 1664525 + 1013904223;
        unsigned kind = (x >> 16) % 8;
        if (kind == 6) { /* ask and go away */
            try_send(&c, texts[2], strlen(texts[2]));
            hang_up(&c);
            c = dial(port);
        } else if (kind == 7) { /* go away in the middle of asking */
            try_send(&c, texts[1], (x >> 20) % strlen(texts[1]));
            hang_up(&c);
            c = dial(port);
        } else {
            /* no assert here: cmocka's work on the main thread only */
            right = try_send(&c, texts[kind % 4], strlen(texts[kind % 4])) && read_answer(&c, &mine, false) &&
                    mine.status == (kind % 4 == 3 ? 404 : 200);
            if (!right) print_error("round %d, kind %u: %d %s\n", i, kind, mine.status, kv_buf_str(&mine.body));
        }
    }
    hang_up(&c);
    free_answer(&mine);
    return right ? arg : NULL;
}

static int base_threads; /* before any server, and one that ThreadSanitizer starts later */

static int count_threads(void) {
    int n = -1;
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) sscanf(line, "Threads: %d", &n);
    if (f) fclose(f);
    return n; /* -1 where there is no /proc */
}

/* A thread that was joined may be listed for an instant longer. */
static bool threads_fall_to(int n) {
    for (int i = 0; i < 1000000; i++)
        if (count_threads() <= n) return true;
    return false;
}

static void test_nothing_leaks(void **state) {
    (void)state;
    int fds = count_fds();
    assert_true(threads_fall_to(base_threads)); /* those of the tests before */
    start((kv_http_config){0});
    unsigned seeds[N_THREADS];
    pthread_t t[N_THREADS];
    for (unsigned i = 0; i < N_THREADS; i++) {
        seeds[i] = (unsigned)getpid() * 7919 + i;
        print_message("seed %u\n", seeds[i]);
        assert_int_equal(pthread_create(&t[i], NULL, many, &seeds[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        void *ok = NULL;
        pthread_join(t[i], &ok);
        assert_non_null(ok);
    }
    /* while it runs: ended connections are given back as others come, not only at the stop */
    assert_in_range(count_fds(), fds, fds + 40);
    assert_int_equal(ask(&a, port, "GET /hello", NULL), 200);
    kv_http_stop(server);
    server = NULL;
    assert_int_equal(count_fds(), fds);
    assert_true(threads_fall_to(base_threads));
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_OWN(test)    cmocka_unit_test_setup_teardown(test, setup_wakes, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_stream),
        WITH_SERVER(test_stream_old_and_head),
        WITH_SERVER(test_stream_large_items),
        WITH_SERVER(test_stream_hang_up),
        WITH_SERVER(test_endless_hang_up),
        WITH_SERVER(test_wait_answers),
        WITH_SERVER(test_hang_up),
        WITH_SERVER(test_half_close),
        WITH_SERVER(test_pipelined_is_no_hang_up),
        WITH_SERVER(test_quiesce),
        WITH_SERVER(test_stop_wakes_all),
        WITH_SERVER(test_stop_cuts_streams),
        WITH_OWN(test_connection_limit),
        WITH_OWN(test_idle_ones_make_room),
        WITH_OWN(test_slow_ones_are_cut),
        WITH_OWN(test_nothing_leaks),
    };
    base_threads = count_threads() + 1;
    kv_log_init(&(kv_log_config){.level = KV_LOG_ERROR}, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
