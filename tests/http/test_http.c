/* Requests and fixed answers: routing, the checks before a handler, bodies and their limits. What lives longer than one
 * answer (streams, hang-ups, stopping, limits on connections) is in test_http_live.c. */
#include "client.h"

#include <sys/un.h>
#include <zlib.h>

#include "base/log.h"

static kv_http *server;
static int port;
static answer a; /* of the last request; freed by the next */

/* ── handlers ── */

static kv_status on_models(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req, (void)err;
    assert_ptr_equal(app, &server);
    kv_buf_adds(&res->body, "{\"ok\":true}");
    return KV_OK;
}

static kv_status on_echo(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)err;
    size_t n;
    const char *body = kv_http_body(req, &n);
    res->content_type = "application/octet-stream";
    kv_buf_add(&res->body, body, n);
    return KV_OK;
}

static kv_status on_segment(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)err;
    kv_buf_adds(&res->body, kv_http_segment(req));
    return KV_OK;
}

static const char *or_none(const char *s) {
    return s ? s : "(none)";
}

static kv_status on_info(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app, (void)err;
    res->status = 201;
    res->content_type = "text/plain";
    kv_buf_addf(&res->body, "%s %s q=%s h=%s l=%d id=%s", kv_http_method(req), kv_http_path(req),
                or_none(kv_http_query(req, "q")), or_none(kv_http_get_header(req, "x-test")), kv_http_is_loopback(req),
                kv_http_request_id(req));
    kv_http_header(res, "X-Extra", "1");
    kv_http_header(res, "X-Extra", "2");
    kv_http_header(res, "X-Split", "a\r\nSet-Cookie: b");
    snprintf(res->note, sizeof res->note, "a note");
    return KV_OK;
}

static kv_status on_fail(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)app;
    const char *how = or_none(kv_http_query(req, "how"));
    kv_buf_adds(&res->body, "left over");
    if (strcmp(how, "field") == 0) return kv_fail_field(err, "max_tokens", "max_tokens must be \"positive\"");
    if (strcmp(how, "busy") == 0) return kv_fail(err, KV_BUSY, "Loading model");
    if (strcmp(how, "later") == 0) {
        kv_http_header(res, "Retry-After", "30");
        return kv_fail(err, KV_BUSY, "the queue is full");
    }
    if (strcmp(how, "silent") == 0) return KV_ENGINE;
    kv_fail(err, KV_CONTEXT_FULL, "too long");
    err->n_prompt_tokens = 9000;
    err->n_ctx = 4096;
    return KV_CONTEXT_FULL;
}

static void other_family(kv_buf *out, const kv_error *err) {
    kv_buf_addf(out, "{\"type\":\"error\",\"status\":\"%s\"}", kv_status_name(err->status));
}

static const kv_http_route routes[] = {
    {"GET", "/health", on_models, true, NULL},
    {"GET", "/v1/models", on_models, true, NULL},
    {"POST", "/v1/echo", on_echo, false, NULL},
    {"GET", "/info", on_info, false, NULL},
    {"POST", "/info", on_info, false, NULL},
    {"DELETE", "/info", on_info, false, NULL},
    {"GET", "/fail", on_fail, false, NULL},
    {"GET", "/things/first", on_models, false, NULL},
    {"GET", "/things/{}", on_segment, false, NULL},
    {"POST", "/things/{}/parts", on_segment, false, NULL},
    {"GET", "/v1/other", on_fail, false, other_family},
    {NULL, NULL, NULL, false, NULL},
};

static void start(kv_http_config cfg) {
    kv_error err = {0};
    cfg.routes = routes;
    cfg.app = &server;
    if (kv_http_start(&server, &cfg, &err) != KV_OK) fail_msg("%s", err.message);
    port = kv_http_port(server);
    assert_in_range(port, 1, 65535);
}

static int setup(void **state) {
    (void)state;
    start((kv_http_config){0});
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free_answer(&a);
    a = (answer){0};
    kv_http_stop(server);
    server = NULL;
    return 0;
}

/* ── routing ── */

static void test_routes(void **state) {
    (void)state;
    static const char *const same[] = {"/v1/models", "/v1/models/", "//v1//models", "/v1/v1/models", "/v1/models?a=b"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char line[64];
        snprintf(line, sizeof line, "GET %s", same[i]);
        assert_int_equal(ask(&a, port, line, NULL), 200);
        assert_string_equal(a.body.data, "{\"ok\":true}");
        assert_string_equal(header_of(&a, "Content-Type"), "application/json; charset=utf-8");
    }
    ask(&a, port, "GET /v1/nothing", NULL);
    assert_non_null(strstr(error_of(&a, 404, "not_found_error"), "/v1/nothing"));
    ask(&a, port, "GET /V1/models", NULL);
    error_of(&a, 404, "not_found_error");
    ask(&a, port, "GET /models", NULL);
    error_of(&a, 404, "not_found_error");

    ask(&a, port, "POST /v1/models", "Host: localhost\r\nContent-Length: 2\r\n\r\n{}");
    assert_non_null(strstr(error_of(&a, 405, "invalid_request_error"), "GET"));
    assert_string_equal(header_of(&a, "Allow"), "GET, HEAD, OPTIONS");
    ask(&a, port, "PUT /info", NULL);
    error_of(&a, 405, "invalid_request_error");
    assert_string_equal(header_of(&a, "Allow"), "GET, HEAD, POST, DELETE, OPTIONS");
    ask(&a, port, "HEAD /v1/echo", NULL);
    assert_int_equal(a.status, 405);
    ask(&a, port, "BREW /v1/echo", NULL);
    error_of(&a, 405, "invalid_request_error");

    ask(&a, port, "GET /info%00", NULL);
    error_of(&a, 400, "invalid_request_error");
    ask(&a, port, "GET info", NULL);
    error_of(&a, 400, "invalid_request_error");
    ask(&a, port, "GET /v1/other", NULL); /* a route's own family of errors */
    assert_int_equal(a.status, 400);
    assert_string_equal(a.body.data, "{\"type\":\"error\",\"status\":\"CONTEXT_FULL\"}");
    ask(&a, port, "POST /v1/other", NULL);
    assert_int_equal(a.status, 405);
    assert_string_equal(a.body.data, "{\"type\":\"error\",\"status\":\"BAD_METHOD\"}");
}

static void test_segments(void **state) {
    (void)state;
    assert_int_equal(ask(&a, port, "GET /things/42", NULL), 200);
    assert_string_equal(a.body.data, "42");
    ask(&a, port, "GET /things/a%20b/?c=d", NULL);
    assert_string_equal(a.body.data, "a b");
    ask(&a, port, "GET /things/first", NULL); /* the first that fits */
    assert_string_equal(a.body.data, "{\"ok\":true}");
    ask(&a, port, "POST /things/x/parts", NULL);
    assert_string_equal(a.body.data, "x");
    ask(&a, port, "GET /things", NULL);
    error_of(&a, 404, "not_found_error");
    ask(&a, port, "GET /things/x/y", NULL);
    error_of(&a, 404, "not_found_error");
    ask(&a, port, "GET /things/x/parts", NULL);
    error_of(&a, 405, "invalid_request_error");
    assert_string_equal(header_of(&a, "Allow"), "POST, OPTIONS");
}

static void test_head(void **state) {
    (void)state;
    client c = dial(port);
    for (int i = 0; i < 2; i++) { /* the second answer would be off if a body had followed the first */
        say(&c, "HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_true(read_answer(&c, &a, true));
        assert_int_equal(a.status, 200);
        assert_string_equal(header_of(&a, "Content-Length"), "11");
    }
    hang_up(&c);
}

static void test_prefix(void **state) {
    (void)state;
    start((kv_http_config){.prefix = "/llm/"});
    assert_int_equal(ask(&a, port, "GET /llm/v1/models", NULL), 200);
    assert_int_equal(ask(&a, port, "GET /llm//v1/v1/models/", NULL), 200);
    ask(&a, port, "GET /v1/models", NULL);
    assert_non_null(strstr(error_of(&a, 404, "not_found_error"), "/llm"));
    assert_int_equal(ask(&a, port, "GET /llmv1/models", NULL), 404);
}

static void test_request_parts(void **state) {
    (void)state;
    ask(&a, port, "GET //info/?q=a%20b&r", "Host: localhost\r\nX-Test: v w\r\nx-request-id: abc-1\r\n\r\n");
    assert_int_equal(a.status, 201);
    assert_string_equal(a.body.data, "GET /info q=a b h=v w l=1 id=abc-1");
    assert_string_equal(header_of(&a, "Content-Type"), "text/plain");
    assert_string_equal(header_of(&a, "X-Extra"), "1");
    assert_non_null(strstr(a.head.data, "X-Extra: 2\n"));
    assert_null(header_of(&a, "Set-Cookie"));
    assert_null(header_of(&a, "X-Split"));
    assert_string_equal(header_of(&a, "x-request-id"), "abc-1");

    ask(&a, port, "GET /info", "Host: localhost\r\nX-Forwarded-For: 8.8.8.8\r\n\r\n");
    assert_non_null(strstr(a.body.data, "q=(none) h=(none) l=0 "));
    ask(&a, port, "GET http://localhost:1/info?q=1", NULL);
    assert_non_null(strstr(a.body.data, "GET /info q=1 "));
}

static void test_request_id(void **state) {
    (void)state;
    char first[64], rest[256];
    static const char *const bad[] = {"a b", "", "\x01", "<script>"};
    ask(&a, port, "GET /v1/models", NULL);
    snprintf(first, sizeof first, "%.63s", header_of(&a, "x-request-id"));
    assert_int_equal(strlen(first), 4 + 32);
    assert_memory_equal(first, "req_", 4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(rest, sizeof rest, "Host: localhost\r\nX-Request-Id: %s\r\n\r\n", bad[i]);
        ask(&a, port, "GET /nothing", rest);
        assert_memory_equal(header_of(&a, "x-request-id"), "req_", 4);
        assert_string_not_equal(header_of(&a, "x-request-id"), first);
        assert_string_equal(header_of(&a, "Server"), "kvasir/" KVASIR_VERSION);
    }
}

static void test_handler_errors(void **state) {
    (void)state;
    ask(&a, port, "GET /fail?how=field", NULL);
    assert_string_equal(error_of(&a, 400, "invalid_request_error"), "max_tokens must be \"positive\"");
    assert_non_null(strstr(a.body.data, "\"param\":\"max_tokens\""));
    ask(&a, port, "GET /fail?how=busy", NULL);
    assert_string_equal(error_of(&a, 503, "unavailable_error"), "Loading model");
    assert_string_equal(header_of(&a, "Retry-After"), "1");
    ask(&a, port, "GET /fail?how=later", NULL);
    error_of(&a, 503, "unavailable_error");
    assert_string_equal(header_of(&a, "Retry-After"), "30");
    ask(&a, port, "GET /fail?how=silent", NULL);
    assert_string_equal(error_of(&a, 500, "server_error"), "ENGINE");
    ask(&a, port, "GET /fail", NULL);
    assert_int_equal(a.status, 400);
    assert_string_equal(a.body.data,
                        "{\"error\":{\"code\":\"context_length_exceeded\",\"message\":\"too long\","
                        "\"type\":\"exceed_context_size_error\",\"n_prompt_tokens\":9000,\"n_ctx\":4096}}");
}

/* ── who may ask ── */

static void test_host(void **state) {
    (void)state;
    static const struct {
        const char *host;
        int status;
    } table[] = {
        {"Host: localhost:99", 200},
        {"Host: 127.0.0.1", 200},
        {"Host: [::1]:1", 200},
        {"Host: box.lan:80", 200},
        {"Host: evil.example", 403},
        {"Host: box.lan.x", 403},
        {"Host: localhost.evil", 403},
        {"X-Host: localhost", 400},
        {"Host:", 403},
        {"Host: localhost\r\nHost: box.lan", 400},
    };
    static const char *const names[] = {"box.lan"};
    start((kv_http_config){.allowed_hosts = names, .n_allowed_hosts = 1});
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char rest[128];
        snprintf(rest, sizeof rest, "%s\r\n\r\n", table[i].host);
        if (ask(&a, port, "GET /v1/models", rest) != table[i].status) fail_msg("%s: %d", table[i].host, a.status);
    }
    ask(&a, port, "GET /v1/models", "Host: evil.example\r\n\r\n");
    assert_non_null(strstr(error_of(&a, 403, "permission_error"), "--allowed-host"));

    client c = dial(port);
    say(&c, "GET /v1/models HTTP/1.0\r\n\r\n"); /* HTTP/1.0 has no Host, and no browser speaks it */
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 200);
    assert_true(ended(&c));
    hang_up(&c);
}

#define FROM(origin) "Host: localhost:8080\r\nOrigin: " origin "\r\n"
#define PREFLIGHT                                                                                                      \
    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-a\r\n"                     \
    "Access-Control-Request-Private-Network: true\r\n\r\n"

static void test_cors(void **state) {
    (void)state;
    ask(&a, port, "GET /info", FROM("http://localhost:3000") "\r\n");
    assert_int_equal(a.status, 201);
    assert_string_equal(header_of(&a, "Access-Control-Allow-Origin"), "http://localhost:3000");
    assert_string_equal(header_of(&a, "Vary"), "Origin");
    assert_string_equal(header_of(&a, "Access-Control-Expose-Headers"), "x-request-id, X-Kvasir-Cache");
    ask(&a, port, "GET /nothing", FROM("http://localhost:3000") "\r\n"); /* a page must be able to read errors too */
    assert_string_equal(header_of(&a, "Access-Control-Allow-Origin"), "http://localhost:3000");

    ask(&a, port, "OPTIONS /v1/echo", FROM("http://127.0.0.1:3000") PREFLIGHT);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.len, 0);
    assert_string_equal(header_of(&a, "Access-Control-Allow-Origin"), "http://127.0.0.1:3000");
    assert_string_equal(header_of(&a, "Access-Control-Allow-Credentials"), "true");
    assert_string_equal(header_of(&a, "Access-Control-Allow-Methods"), "POST, OPTIONS");
    assert_string_equal(header_of(&a, "Access-Control-Allow-Headers"), "authorization,x-a");
    assert_string_equal(header_of(&a, "Access-Control-Allow-Private-Network"), "true");

    ask(&a, port, "OPTIONS /v1/echo", FROM("https://evil.example") PREFLIGHT);
    assert_int_equal(a.status, 200);
    assert_null(strstr(a.head.data, "Access-Control"));
    ask(&a, port, "GET /info", FROM("https://evil.example") "\r\n");
    assert_int_equal(a.status, 201);
    assert_null(strstr(a.head.data, "Access-Control"));
    /* a "simple" POST needs no preflight: it must not get to a handler */
    ask(&a, port, "POST /v1/echo", FROM("https://evil.example") "Content-Length: 1\r\n\r\nx");
    assert_non_null(strstr(error_of(&a, 403, "permission_error"), "--cors-origins"));
    ask(&a, port, "POST /v1/echo", FROM("http://localhost:8080") "Content-Length: 1\r\n\r\nx");
    assert_int_equal(a.status, 200);
    ask(&a, port, "POST /v1/echo", "Host: 10.0.0.1:8080\r\nOrigin: http://10.0.0.1:8080\r\nContent-Length: 1\r\n\r\nx");
    assert_int_equal(a.status, 200); /* our own page */

    ask(&a, port, "OPTIONS /info", NULL); /* no browser at all */
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Allow"), "GET, HEAD, POST, DELETE, OPTIONS");
}

static void test_cors_lists(void **state) {
    (void)state;
    start((kv_http_config){.cors_origins = "https://a.example"});
    ask(&a, port, "POST /v1/echo", FROM("https://a.example") "Content-Length: 1\r\n\r\nx");
    assert_string_equal(header_of(&a, "Access-Control-Allow-Origin"), "https://a.example");
    assert_int_equal(ask(&a, port, "POST /v1/echo", FROM("http://localhost:1") "Content-Length: 1\r\n\r\nx"), 403);
    teardown(NULL);
    start((kv_http_config){.cors_origins = "*"});
    ask(&a, port, "OPTIONS /v1/echo", FROM("null") PREFLIGHT);
    assert_string_equal(header_of(&a, "Access-Control-Allow-Origin"), "*");
    assert_null(header_of(&a, "Access-Control-Allow-Credentials"));
    assert_int_equal(ask(&a, port, "POST /v1/echo", FROM("null") "Content-Length: 1\r\n\r\nx"), 200);
    teardown(NULL);
    start((kv_http_config){.cors_origins = ""});
    ask(&a, port, "GET /info", FROM("http://localhost") "\r\n");
    assert_null(header_of(&a, "Access-Control-Allow-Origin"));
}

static void test_keys(void **state) {
    (void)state;
    char file[] = "/tmp/kvasir-http-keys.XXXXXX";
    int fd = mkstemp(file);
    assert_int_equal(write(fd, "sk-file\n", 8), 8);
    static const char *const given[] = {"sk-line"};
    kv_error err;
    start((kv_http_config){.api_keys = given, .n_api_keys = 1, .api_key_file = file});
    ask(&a, port, "GET /info", NULL);
    assert_string_equal(error_of(&a, 401, "authentication_error"), "Invalid API Key");
    assert_string_equal(a.body.data,
                        "{\"error\":{\"code\":401,\"message\":\"Invalid API Key\",\"type\":\"authentication_error\"}}");
    assert_string_equal(header_of(&a, "WWW-Authenticate"), "Bearer");
    assert_int_equal(ask(&a, port, "GET /nothing", NULL), 401);   /* which paths exist is nobody's business */
    assert_int_equal(ask(&a, port, "GET /v1/models", NULL), 200); /* open */
    assert_int_equal(ask(&a, port, "HEAD /health", NULL), 200);
    assert_int_equal(ask(&a, port, "OPTIONS /info", NULL), 200);
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nAuthorization: Bearer sk-line\r\n\r\n"), 201);
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nX-Api-Key: sk-file\r\n\r\n"), 201);
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nX-Api-Key: sk-fil\r\n\r\n"), 401);

    assert_int_equal(pwrite(fd, "sk-next\n", 8, 0), 8);
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nX-Api-Key: sk-next\r\n\r\n"), 401);
    assert_int_equal(kv_http_reload_keys(server, &err), KV_OK);
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nX-Api-Key: sk-next\r\n\r\n"), 201);
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nX-Api-Key: sk-file\r\n\r\n"), 401);
    close(fd);
    unlink(file);
    assert_int_equal(kv_http_reload_keys(server, &err), KV_NOT_FOUND); /* and the keys stay */
    assert_int_equal(ask(&a, port, "GET /info", "Host: localhost\r\nX-Api-Key: sk-next\r\n\r\n"), 201);
}

/* ── bodies ── */

static void post(client *c, const char *headers, const char *body, size_t n) {
    kv_buf text = {0};
    kv_buf_addf(&text, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n%s\r\n", headers);
    kv_buf_add(&text, body, n);
    assert_true(try_send(c, text.data, text.len));
    kv_buf_free(&text);
}

static void test_bodies(void **state) {
    (void)state;
    client c = dial(port);
    post(&c, "Content-Length: 7\r\n", "a\0b{}\r\n", 7);
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.len, 7);
    assert_memory_equal(a.body.data, "a\0b{}\r\n", 7);
    post(&c, "Content-Length: 0\r\n", "", 0);
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.body.len, 0);
    post(&c, "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n", 36);
    assert_true(read_answer(&c, &a, false));
    assert_string_equal(a.body.data, "abcde");
    hang_up(&c);
}

static void test_large_body(void **state) {
    (void)state;
    size_t n = 10u << 20;
    char *large = kv_alloc(n);
    for (size_t i = 0; i < n; i++) large[i] = (char)(i * 2654435761u >> 13);
    client c = dial(port);
    kv_buf head = {0};
    kv_buf_addf(&head, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", n);
    assert_true(try_send(&c, head.data, head.len));
    assert_true(try_send(&c, large, n)); /* the server answers only after all of it */
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.len, n);
    assert_memory_equal(a.body.data, large, n);

    kv_buf_clear(&head);
    kv_buf_adds(&head, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0; at < n; at += n / 8) {
        kv_buf_addf(&head, "%zx\r\n", n / 8);
        kv_buf_add(&head, large + at, n / 8);
        kv_buf_adds(&head, "\r\n");
    }
    kv_buf_adds(&head, "0\r\n\r\n");
    assert_true(try_send(&c, head.data, head.len));
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.body.len, n);
    assert_memory_equal(a.body.data, large, n);
    kv_buf_free(&head);
    free(large);
    hang_up(&c);
}

static void test_body_limit(void **state) {
    (void)state;
    start((kv_http_config){.max_body = 1000});
    const size_t huge = 8 << 20; /* more than the sockets' buffers hold */
    char *filler = kv_alloc(huge);
    memset(filler, 'x', huge);

    client c = dial(port);
    post(&c, "Content-Length: 1000\r\n", filler, 1000);
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 200);

    /* a known length is refused before any of the body was sent */
    post(&c, "Content-Length: 100000000\r\n", "", 0);
    assert_true(read_answer(&c, &a, false));
    assert_non_null(strstr(error_of(&a, 413, "invalid_request_error"), "limit of 1000"));
    hang_up(&c);

    /* a client that sends it all the same, and reads only then, is not cut off before it has read the answer */
    c = dial(port);
    post(&c, "Content-Length: 8388608\r\n", filler, huge);
    assert_true(read_answer(&c, &a, false));
    error_of(&a, 413, "invalid_request_error");
    assert_true(ended(&c));
    hang_up(&c);

    /* small enough to be read away: the connection stays */
    c = dial(port);
    post(&c, "Content-Length: 1001\r\n", filler, 1001);
    assert_true(read_answer(&c, &a, false));
    error_of(&a, 413, "invalid_request_error");
    post(&c, "Content-Length: 1\r\n", "y", 1);
    assert_true(read_answer(&c, &a, false));
    assert_string_equal(a.body.data, "y");

    /* chunks are refused when they exceed, not at their end, which never comes here */
    post(&c, "Transfer-Encoding: chunked\r\n", "3e8\r\n", 5);
    assert_true(try_send(&c, filler, 1000));
    say(&c, "\r\n1\r\n");
    say(&c, "x\r\n");
    assert_true(read_answer(&c, &a, false));
    error_of(&a, 413, "invalid_request_error");
    assert_string_equal(header_of(&a, "Connection"), "close");
    assert_memory_equal(header_of(&a, "x-request-id"), "req_", 4);
    assert_string_equal(header_of(&a, "Server"), "kvasir/" KVASIR_VERSION);
    hang_up(&c);
    free(filler);
}

static void test_expect(void **state) {
    (void)state;
    start((kv_http_config){.max_body = 1000});
    client c = dial(port);
    post(&c, "Content-Length: 2\r\nExpect: 100-continue\r\n", "", 0);
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 100);
    say(&c, "ab");
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body.data, "ab");
    post(&c, "Content-Length: 1001\r\nExpect: 100-continue\r\n", "", 0);
    assert_true(read_answer(&c, &a, false));
    error_of(&a, 413, "invalid_request_error"); /* instead of the 100: nothing was sent in vain */
    hang_up(&c);
}

/* n bytes packed as gzip's (bits 31) or zlib's (15) format. */
static size_t pack(char *out, size_t room, const char *text, size_t n, int bits) {
    z_stream z = {.next_in = (Bytef *)text, .avail_in = (uInt)n, .next_out = (Bytef *)out, .avail_out = (uInt)room};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, bits, 9, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static void post_packed(client *c, const char *coding, const char *bytes, size_t n) {
    char headers[128];
    snprintf(headers, sizeof headers, "Content-Encoding: %s\r\nContent-Length: %zu\r\n", coding, n);
    post(c, headers, bytes, n);
    assert_true(read_answer(c, &a, false));
}

static void test_content_encoding(void **state) {
    (void)state;
    static char zeros[500000];
    char packed[1000];
    start((kv_http_config){.max_body = 1000});
    client c = dial(port);
    post_packed(&c, "identity", "x", 1);
    assert_int_equal(a.status, 200);
    size_t n = pack(packed, sizeof packed, "hello", 5, 31);
    post_packed(&c, "gzip", packed, n);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body.data, "hello");
    n += pack(packed + n, sizeof packed - n, ", you", 5, 31); /* members may follow one another */
    post_packed(&c, "X-GZip", packed, n);
    assert_string_equal(a.body.data, "hello, you");
    n = pack(packed, sizeof packed, "deflated", 8, 15);
    post_packed(&c, "deflate", packed, n);
    assert_string_equal(a.body.data, "deflated");
    n = pack(packed, sizeof packed, zeros, 1000, 31); /* the limit itself */
    post_packed(&c, "gzip", packed, n);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.len, 1000);
    post_packed(&c, "gzip", "", 0);
    assert_int_equal(a.status, 200);
    /* what cannot be unpacked leaves the connection as it is */
    post_packed(&c, "gzip", packed, n - 3);
    assert_non_null(strstr(error_of(&a, 400, "invalid_request_error"), "ends in the middle"));
    post_packed(&c, "gzip", "{\"a\":1}", 7);
    assert_non_null(strstr(error_of(&a, 400, "invalid_request_error"), "Content-Encoding"));
    post_packed(&c, "br", "abc", 3);
    assert_non_null(strstr(error_of(&a, 415, "invalid_request_error"), "\"br\""));
    post_packed(&c, "gzip, gzip", "abc", 3);
    error_of(&a, 415, "invalid_request_error");
    /* and so much that 1,000 bytes were a few: refused where it passes the limit */
    n = pack(packed, sizeof packed, zeros, 1001, 31);
    post_packed(&c, "gzip", packed, n);
    assert_non_null(strstr(error_of(&a, 413, "invalid_request_error"), "1000"));
    assert_true(ended(&c));
    hang_up(&c);
    c = dial(port);
    n = pack(packed, sizeof packed, zeros, sizeof zeros, 15);
    post_packed(&c, "deflate", packed, n);
    error_of(&a, 413, "invalid_request_error");
    hang_up(&c);
}

static void test_header_limit(void **state) {
    (void)state;
    start((kv_http_config){.max_headers = 4000});
    static const size_t sizes[] = {3000, 5000, 60000, 500000, 3000};
    static const int status[] = {200, 431, 431, 431, 200};
    for (size_t i = 0; i < 5; i++) {
        kv_buf rest = {0};
        kv_buf_adds(&rest, "Host: localhost\r\n");
        for (size_t n = 0; n < sizes[i]; n += 100) kv_buf_addf(&rest, "X-%06zu: %091d\r\n", n, 0);
        kv_buf_adds(&rest, "\r\n");
        if (ask(&a, port, "GET /v1/models", rest.data) != status[i]) fail_msg("%zu: %d", sizes[i], a.status);
        if (i == 1) error_of(&a, 431, "invalid_request_error");
        kv_buf_free(&rest);
    }
    kv_buf line = {0};
    kv_buf_addf(&line, "GET /v1/models?%05000d", 0);
    ask(&a, port, line.data, NULL);
    error_of(&a, 431, "invalid_request_error");
    kv_buf_free(&line);
}

/* ── what is no proper HTTP ── */

static void test_framing(void **state) {
    (void)state;
    static const struct {
        const char *rest;
        int status;
    } table[] = {
        {"Host: a\r\nHost: b\r\n\r\n", 400},
        {"Host: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"Host: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
        {"Host: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
        {"Host: localhost\r\nTransfer-Encoding: identity\r\n\r\n", 501},
        {"Host: localhost\r\nContent-Length : 3\r\n\r\nabc", 400},
        {"Host: localhost\r\nContent-Length: -1\r\n\r\n", 400},
        {"Host: localhost\r\nContent-Length: 3x\r\n\r\nabc", 400},
        {"Host: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
        {"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        {"Host: localhost\r\nno colon\r\n\r\n", 400},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        client c = dial(port);
        say(&c, "POST /v1/echo HTTP/1.1\r\n");
        say(&c, table[i].rest);
        if (!read_answer(&c, &a, false)) fail_msg("%s: no answer", table[i].rest);
        if (a.status != table[i].status) fail_msg("%s: %d", table[i].rest, a.status);
        assert_true(ended(&c)); /* what follows cannot be trusted to be a request */
        hang_up(&c);
    }
}

static void test_garbage(void **state) {
    (void)state;
    unsigned seed = getenv("KVASIR_SEED") ? (unsigned)atoi(getenv("KVASIR_SEED")) : (unsigned)getpid();
    static const char *const bits[] = {"GET ",
                                       "POST ",
                                       "/",
                                       "/info",
                                       " HTTP/1.1",
                                       "\r\n",
                                       "\r\n\r\n",
                                       ":",
                                       "Host: localhost",
                                       "\n",
                                       " ",
                                       "%",
                                       "\t",
                                       "Content-Length: 5",
                                       "Transfer-Encoding: chunked",
                                       "\xff",
                                       "0",
                                       "ffff",
                                       "HTTP/9.9",
                                       "Expect: 100-continue",
                                       "Connection: close"};
    print_message("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < 400; i++) {
        client c = dial(port);
        kv_buf text = {0};
        kv_buf_adds(&text, rand() % 2 ? "POST /info HTTP/1.1\r\nHost: localhost\r\n" : "");
        for (int n = rand() % 40; n > 0; n--) {
            if (rand() % 10 == 0) kv_buf_add(&text, "\0\1\2", (size_t)(rand() % 4));
            else kv_buf_adds(&text, bits[(size_t)rand() % (sizeof bits / sizeof *bits)]);
        }
        try_send(&c, kv_buf_str(&text), text.len);
        shutdown(c.fd, SHUT_WR);
        kv_buf_clear(&text);
        read_to_end(&c, &text); /* it must end, however */
        kv_buf_free(&text);
        hang_up(&c);
    }
    assert_int_equal(ask(&a, port, "GET /v1/models", NULL), 200);
}

static void test_keep_alive(void **state) {
    (void)state;
    client c = dial(port);
    kv_buf text = {0};
    for (int i = 0; i < 50; i++) /* all sent before any answer is read */
        kv_buf_addf(&text, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n%02d", i);
    assert_true(try_send(&c, text.data, text.len));
    kv_buf_free(&text);
    for (int i = 0; i < 50; i++) {
        assert_true(read_answer(&c, &a, false));
        assert_int_equal(a.status, 200);
        assert_int_equal(atoi(a.body.data), i);
    }
    /* refused requests keep it too */
    say(&c, "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 404);
    say(&c, "GET /info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_true(read_answer(&c, &a, false));
    assert_int_equal(a.status, 201);
    assert_true(ended(&c));
    hang_up(&c);
}

/* ── the log ── */

static void test_log_line(void **state) {
    (void)state;
    char file[] = "/tmp/kvasir-http-log.XXXXXX", text[4096] = "";
    int fd = mkstemp(file);
    assert_int_equal(kv_log_init(&(kv_log_config){.level = KV_LOG_INFO, .file = file}, NULL), KV_OK);
    ask(&a, port, "GET //info/?q=secret",
        "Host: localhost\r\nx-request-id: id7\r\nAuthorization: Bearer secret\r\n\r\n");
    ask(&a, port, "POST /v1/echo", "Host: localhost\r\nContent-Length: 6\r\n\r\nsecret");
    ask(&a, port, "GET /bad%1bpath", NULL);
    ask(&a, port, "GET /unread", "Host: localhost\r\nno colon\r\n\r\n"); /* libmicrohttpd answers this one */
    teardown(NULL); /* every line is there when the threads are gone */
    assert_int_equal(kv_log_init(&(kv_log_config){.level = KV_LOG_ERROR}, NULL), KV_OK);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    unlink(file);
    assert_null(strstr(text, "secret"));
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "GET /info 201 "));
    assert_non_null(strstr(text, " ms id7 a note\n"));
    assert_non_null(strstr(text, "POST /v1/echo 200 6 B "));
    assert_non_null(strstr(text, "GET ? 400 "));
    assert_non_null(strstr(text, "? /unread 400 "));
    int lines = 0;
    for (const char *p = text; (p = strstr(p, " ms ")); p++) lines++;
    assert_int_equal(lines, 4); /* one a request, beside the warning about X-Split */
}

/* ── starting ── */

static void test_start_errors(void **state) {
    (void)state;
    kv_http *second = NULL;
    kv_error err;
    int fds = count_fds();
    kv_http_config cfg = {.port = port, .routes = routes};
    assert_int_equal(kv_http_start(&second, &cfg, &err), KV_IO);
    assert_null(second);
    assert_non_null(strstr(err.message, "--port"));
    const char *host = "no such host";
    cfg = (kv_http_config){.hosts = &host, .n_hosts = 1, .routes = routes};
    assert_int_equal(kv_http_start(&second, &cfg, &err), KV_INVALID);
    assert_string_equal(err.field, "--host");
    host = "192.0.2.1"; /* not an address of this machine */
    assert_int_equal(kv_http_start(&second, &cfg, &err), KV_IO);
    cfg = (kv_http_config){.api_key_file = "/nonexistent/keys", .routes = routes};
    assert_int_equal(kv_http_start(&second, &cfg, &err), KV_NOT_FOUND);
    assert_int_equal(count_fds(), fds);
}

static void test_bind_names(void **state) {
    (void)state;
    static const char *const hosts[] = {"localhost", "0.0.0.0", "127.0.0.1", "::", "[::]"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        kv_error err = {0};
        kv_http_config cfg = {.hosts = &hosts[i], .n_hosts = 1, .routes = routes, .app = &server};
        if (kv_http_start(&server, &cfg, &err) != KV_OK) {
            if (strchr(hosts[i], ':')) continue; /* a machine without IPv6 */
            fail_msg("%s: %s", hosts[i], err.message);
        }
        port = kv_http_port(server);
        assert_int_equal(ask(&a, port, "GET /info", NULL), 201); /* over IPv4 */
        assert_non_null(strstr(a.body.data, " l=1 "));
        teardown(NULL);
    }
}

#ifdef __linux__ /* elsewhere a full queue looks like nobody */

/* A program that is there but does not take connections is neither waited for nor put out of its place. */
static void test_busy_unix_socket(void **state) {
    (void)state;
    char dir[] = "/tmp/kvasir-http-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/s.sock", dir);
    int busy = socket(AF_UNIX, SOCK_STREAM, 0), waiting[16], n = 0;
    assert_int_equal(bind(busy, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(busy, 0), 0);
    do waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    while (connect(waiting[n++], (struct sockaddr *)&at, sizeof at) == 0 && n < 16);
    assert_int_equal(errno, EAGAIN);
    const char *host = at.sun_path;
    kv_error err = {0};
    kv_http *second;
    assert_int_equal(kv_http_start(&second, &(kv_http_config){.hosts = &host, .n_hosts = 1, .routes = routes}, &err),
                     KV_INVALID);
    assert_non_null(strstr(err.message, "another program listens there"));
    assert_int_equal(access(at.sun_path, F_OK), 0);
    while (n > 0) close(waiting[--n]);
    close(busy);
    unlink(at.sun_path);
    rmdir(dir);
}

#endif

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_OWN(test)    cmocka_unit_test_setup_teardown(test, NULL, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_routes),
        WITH_SERVER(test_segments),
        WITH_SERVER(test_head),
        WITH_OWN(test_prefix),
        WITH_SERVER(test_request_parts),
        WITH_SERVER(test_request_id),
        WITH_SERVER(test_handler_errors),
        WITH_OWN(test_host),
        WITH_SERVER(test_cors),
        WITH_OWN(test_cors_lists),
        WITH_OWN(test_keys),
        WITH_SERVER(test_bodies),
        WITH_SERVER(test_large_body),
        WITH_OWN(test_body_limit),
        WITH_OWN(test_expect),
        WITH_SERVER(test_content_encoding),
        WITH_OWN(test_header_limit),
        WITH_SERVER(test_framing),
        WITH_SERVER(test_garbage),
        WITH_SERVER(test_keep_alive),
        WITH_SERVER(test_log_line),
        WITH_SERVER(test_start_errors),
        WITH_OWN(test_bind_names),
#ifdef __linux__
        cmocka_unit_test(test_busy_unix_socket),
#endif
    };
    kv_log_init(&(kv_log_config){.level = KV_LOG_ERROR}, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
