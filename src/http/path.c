#include "http/path.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Where the path of an absolute-form target begins; the target itself for the other forms. */
static const char *skip_authority(const char *target) {
    const char *p = target;
    if (strncasecmp(p, "http://", 7) == 0) p += 7;
    else if (strncasecmp(p, "https://", 8) == 0) p += 8;
    else return target;
    p += strcspn(p, "/?#");
    return *p == '/' ? p : "/";
}

/* Appends one decoded byte, folding runs of slashes. */
static void add_folded(kv_buf *out, char c) {
    if (c == '/' && out->len && out->data[out->len - 1] == '/') return;
    kv_buf_add(out, &c, 1);
}

static void trim_slash(kv_buf *out) {
    if (out->len > 1 && out->data[out->len - 1] == '/') out->data[--out->len] = '\0';
}

static bool starts_with_segments(const kv_buf *path, const kv_buf *prefix) {
    if (path->len < prefix->len || memcmp(path->data, prefix->data, prefix->len) != 0) return false;
    return path->len == prefix->len || path->data[prefix->len] == '/';
}

static kv_status decode(kv_buf *out, const char *p, kv_error *err) {
    for (; *p && *p != '?' && *p != '#'; p++) {
        int c = (unsigned char)*p;
        if (c == '%') {
            int hi = hex_digit(p[1]), lo = hi < 0 ? -1 : hex_digit(p[2]);
            if (lo < 0) return kv_fail(err, KV_INVALID, "the request path has a '%%' without two hex digits after it");
            c = hi * 16 + lo;
            p += 2;
        }
        if (c < 0x20 || c == 0x7f) return kv_fail(err, KV_INVALID, "the request path has a control character in it");
        add_folded(out, (char)c);
    }
    trim_slash(out);
    if (!kv_utf8_valid(kv_buf_str(out), out->len)) return kv_fail(err, KV_INVALID, "the request path is not UTF-8");
    return KV_OK;
}

kv_status kv_path_normalise(kv_buf *out, const char *target, const char *prefix, kv_error *err) {
    kv_buf_clear(out);
    if (strcmp(target, "*") == 0) {
        kv_buf_adds(out, "*");
        return KV_OK;
    }
    const char *p = skip_authority(target);
    if (*p != '/') return kv_fail(err, KV_INVALID, "the request path does not begin with '/'");
    kv_status status = decode(out, p, err);
    if (status != KV_OK) return status;

    kv_buf first = {0};
    kv_buf_adds(&first, "/");
    for (const char *s = prefix ? prefix : ""; *s; s++) add_folded(&first, *s);
    trim_slash(&first);
    if (first.len > 1) {
        if (starts_with_segments(out, &first)) {
            kv_buf_drop_front(out, first.len);
            if (out->len == 0) kv_buf_adds(out, "/");
        } else {
            status = kv_fail(err, KV_NOT_FOUND, "all paths of this server begin with %s", first.data);
        }
    }
    kv_buf_free(&first);

    while (strncmp(out->data, "/v1/v1", 6) == 0 && (out->data[6] == '/' || out->data[6] == '\0'))
        kv_buf_drop_front(out, 3);
    return status;
}

bool kv_path_fits(const char **segment, size_t *n, const char *pattern, const char *path) {
    const char *hole = strchr(pattern, '{');
    *segment = NULL;
    *n = 0;
    if (!hole) return strcmp(pattern, path) == 0;
    size_t before = (size_t)(hole - pattern);
    if (strncmp(pattern, path, before) != 0) return false;
    bool rest = strcmp(hole, "{*}") == 0;
    size_t len = rest ? strlen(path + before) : strcspn(path + before, "/");
    if (len == 0 || (!rest && strcmp(path + before + len, hole + 2) != 0)) return false;
    *segment = path + before;
    *n = len;
    return true;
}
