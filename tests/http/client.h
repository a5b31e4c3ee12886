/* tests/http/client.h: a client on a raw socket, which can do what no polite one does, and a server to talk to.
 *
 * Every read gives up after 20 s, so that a bug fails a test instead of hanging it; no test waits for that.
 */
#ifndef KV_TESTS_HTTP_CLIENT_H
#define KV_TESTS_HTTP_CLIENT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* memmem */
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/buf.h"
#include "http/http.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

typedef struct client {
    int fd;
    kv_buf in; /* read and not used yet */
} client;

typedef struct answer {
    int status;
    kv_buf head; /* status line and headers, without the empty line */
    kv_buf body; /* without chunk framing */
    bool closed; /* the connection ended with it */
} answer;

static inline client dial(int port) {
    client c = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
    struct timeval limit = {.tv_sec = 20};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(c.fd >= 0);
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(c.fd, (struct sockaddr *)&at, sizeof at), 0);
    return c;
}

static inline void hang_up(client *c) {
    close(c->fd);
    c->fd = -1;
    kv_buf_free(&c->in);
}

static inline bool try_send(client *c, const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t done = send(c->fd, p, n, MSG_NOSIGNAL);
        if (done <= 0) return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

static inline void say(client *c, const char *text) {
    assert_true(try_send(c, text, strlen(text)));
}

/* Reads more; false at the end of the connection (a reset is one too). */
static inline bool more(client *c) {
    char piece[65536];
    ssize_t n = recv(c->fd, piece, sizeof piece, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) fail_msg("nothing came for 20 s");
    if (n <= 0) return false;
    kv_buf_add(&c->in, piece, (size_t)n);
    return true;
}

static inline bool want(client *c, size_t n) {
    while (c->in.len < n)
        if (!more(c)) return false;
    return true;
}

/* Moves n bytes from the client to `to`. */
static inline bool take(client *c, kv_buf *to, size_t n) {
    if (!want(c, n)) return false;
    kv_buf_add(to, c->in.data, n);
    kv_buf_drop_front(&c->in, n);
    return true;
}

/* Moves a line, with its end cut off. */
static inline bool take_line(client *c, kv_buf *to) {
    char *end;
    while (!c->in.len || !(end = memmem(c->in.data, c->in.len, "\r\n", 2)))
        if (!more(c)) return false;
    size_t n = (size_t)(end - c->in.data);
    kv_buf_add(to, c->in.data, n);
    kv_buf_drop_front(&c->in, n + 2);
    return true;
}

static inline void free_answer(answer *a) {
    kv_buf_free(&a->head);
    kv_buf_free(&a->body);
}

/* A header's value, or NULL; valid until the thread's next call. */
static inline const char *header_of(const answer *a, const char *name) {
    static _Thread_local char value[1024];
    size_t n = strlen(name);
    for (const char *p = kv_buf_str(&a->head); (p = strchr(p, '\n'));) {
        p++;
        if (strncasecmp(p, name, n) != 0 || p[n] != ':') continue;
        p += n + 1 + strspn(p + n + 1, " ");
        snprintf(value, sizeof value, "%.*s", (int)strcspn(p, "\n"), p);
        return value;
    }
    return NULL;
}

/* Status line and headers. False when the connection ended first. */
static inline bool read_head(client *c, answer *a) {
    free_answer(a);
    *a = (answer){0};
    for (kv_buf line = {0};; kv_buf_clear(&line)) {
        bool ok = take_line(c, &line);
        if (ok && line.len) kv_buf_addf(&a->head, "%s\n", line.data);
        if (ok && line.len) continue;
        kv_buf_free(&line);
        if (!ok) return false;
        break;
    }
    assert_int_equal(sscanf(kv_buf_str(&a->head), "HTTP/1.1 %d", &a->status), 1);
    return true;
}

/* One chunk of a chunked body, appended; false at the last one or at the connection's end (a->closed tells). */
static inline bool read_chunk(client *c, answer *a) {
    kv_buf line = {0};
    size_t n = 0;
    bool ok = take_line(c, &line);
    if (ok) n = strtoul(line.data, NULL, 16);
    kv_buf_clear(&line);
    ok = ok && take(c, &a->body, n) && take_line(c, &line) && line.len == 0;
    kv_buf_free(&line);
    a->closed = !ok;
    return ok && n > 0;
}

static inline void read_to_end(client *c, kv_buf *to) {
    while (more(c)) {
    }
    kv_buf_add(to, kv_buf_str(&c->in), c->in.len);
    kv_buf_clear(&c->in);
}

/* The whole answer to a request that was sent. `head`: it was a HEAD request. */
static inline bool read_answer(client *c, answer *a, bool head) {
    if (!read_head(c, a)) return false;
    const char *length = header_of(a, "Content-Length");
    if (head || a->status == 204 || a->status == 100) return true;
    if (length) return take(c, &a->body, strtoul(length, NULL, 10));
    if (header_of(a, "Transfer-Encoding")) {
        while (read_chunk(c, a)) {
        }
        return !a->closed;
    }
    read_to_end(c, &a->body);
    a->closed = true;
    return true;
}

/* Did the server end the connection? Waits for it, or for 20 s. */
static inline bool ended(client *c) {
    return !more(c);
}

/* One request on a fresh connection: everything after the request line, or NULL for a plain Host header. */
static inline int ask(answer *a, int port, const char *line, const char *rest) {
    client c = dial(port);
    kv_buf text = {0};
    kv_buf_addf(&text, "%s HTTP/1.1\r\n%s", line, rest ? rest : "Host: localhost\r\n\r\n");
    try_send(&c, text.data, text.len);
    kv_buf_free(&text);
    if (!read_answer(&c, a, strncmp(line, "HEAD ", 5) == 0)) a->status = -1;
    hang_up(&c);
    return a->status;
}

/* Checks an OpenAI error body and returns its message; valid until the next call. */
static inline const char *error_of(const answer *a, int code, const char *type) {
    static char message[800];
    json_error_t e;
    json_t *root = json_loadb(kv_buf_str(&a->body), a->body.len, 0, &e), *err = json_object_get(root, "error");
    if (!err) fail_msg("not an error body: %s", kv_buf_str(&a->body));
    assert_int_equal(a->status, code);
    assert_int_equal(json_integer_value(json_object_get(err, "code")), code);
    assert_string_equal(json_string_value(json_object_get(err, "type")), type);
    snprintf(message, sizeof message, "%s", json_string_value(json_object_get(err, "message")));
    assert_true(message[0] != '\0');
    json_decref(root);
    return message;
}

static inline int count_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

#endif
