/* fuzz/fuzz_http.c: what http/ decides from a request line and headers, on arbitrary bytes.
 *
 *  1. a path that is taken is in normal form: "/" or "/a/b", no "//", no doubled "/v1", no control characters, UTF-8
 *  2. what is refused has a message that is valid UTF-8
 *  3. a Host is only taken when it is an IP literal, localhost or a name that was given
 *  4. an Origin is only local when its host is; a request id that is taken is safe in a header and a log
 *  5. only the very key matches
 *
 * The input is cut at newlines: target, prefix, Host, Origin, key.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/json.h"
#include "fuzz.h"
#include "http/auth.h"
#include "http/cors.h"
#include "http/path.h"

static void check_path(const char *target, const char *prefix) {
    kv_buf path = {0};
    kv_error err = {0};
    kv_status status = kv_path_normalise(&path, target, prefix, &err);
    if (status == KV_OK && strcmp(path.data, "*") != 0) {
        KV_CHECK(path.data[0] == '/' && strlen(path.data) == path.len);
        KV_CHECK(!strstr(path.data, "//") && (path.len == 1 || path.data[path.len - 1] != '/'));
        KV_CHECK(strncmp(path.data, "/v1/v1/", 7) != 0 && strcmp(path.data, "/v1/v1") != 0);
        KV_CHECK(kv_utf8_valid(path.data, path.len));
        for (size_t i = 0; i < path.len; i++) KV_CHECK((unsigned char)path.data[i] >= ' ' && path.data[i] != 0x7f);
    }
    if (status != KV_OK) {
        KV_CHECK(status == KV_INVALID || status == KV_NOT_FOUND);
        KV_CHECK(err.status == status && err.message[0] && kv_utf8_valid(err.message, strlen(err.message)));
    }
    kv_buf_free(&path);
}

static void check_names(const char *host, const char *origin) {
    static const char *const names[] = {"box.lan"};
    if (kv_host_allowed(host, NULL, 0)) {
        KV_CHECK(kv_host_allowed(host, names, 1)); /* more names never take one away */
        /* what a browser could have resolved elsewhere has a letter in its name, and is not localhost */
        size_t n = strcspn(host, ":");
        KV_CHECK(host[0] == '[' || strspn(host, "0123456789.") >= n || strncasecmp(host, "localhost", 9) == 0);
    }
    if (kv_origin_allowed("localhost", origin)) {
        KV_CHECK(strncasecmp(origin, "http", 4) == 0);
        KV_CHECK(kv_host_allowed(strstr(origin, "://") + 3, NULL, 0));
    }
    if (kv_origin_is_host(origin, host)) KV_CHECK(strstr(origin, "://") && !strchr(strstr(origin, "://") + 3, '/'));
    if (kv_request_id_valid(host)) KV_CHECK(strlen(host) <= 128 && !strpbrk(host, " \r\n\t\"<>%"));
    if (kv_header_names_valid(host)) KV_CHECK(!strpbrk(host, "\r\n:"));
}

static void check_key(const char *key, const char *other) {
    kv_keys keys;
    kv_keys_init(&keys);
    kv_status status = kv_keys_load(&keys, &key, 1, NULL, NULL);
    KV_CHECK(kv_keys_any(&keys) == (status == KV_OK));
    KV_CHECK(kv_keys_match(NULL, &keys, NULL, key) == (status == KV_OK));
    KV_CHECK(!kv_keys_match(NULL, &keys, NULL, other) || strcmp(key, other) == 0);
    KV_CHECK(!kv_keys_match(NULL, &keys, key, NULL) || strlen(key) > 7);
    kv_keys_free(&keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *line[5];
    size_t at = 0;
    for (int i = 0; i < 5; i++) {
        const uint8_t *end = at < size ? memchr(data + at, '\n', size - at) : NULL;
        size_t n = at >= size ? 0 : end ? (size_t)(end - (data + at)) : size - at;
        line[i] = kv_strndup(n ? (const char *)data + at : "", n);
        at += n + 1;
    }
    check_path(line[0], line[1]);
    check_names(line[2], line[3]);
    check_key(line[4], line[2]);
    for (int i = 0; i < 5; i++) free(line[i]);
    return 0;
}
