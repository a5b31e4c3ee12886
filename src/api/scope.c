#include "api/scope.h"

#include <string.h>

char *kv_scope_join(const char *key, const char *header, const char *salt) {
    const char *parts[] = {key ? key : "", header ? header : "", salt ? salt : ""};
    if (!*parts[1] && !*parts[2]) return kv_strdup(parts[0]);
    kv_buf text = {0};
    for (int i = 0; i < 3; i++) kv_buf_addf(&text, "%zu:%s", strlen(parts[i]), parts[i]);
    return kv_buf_take(&text);
}

kv_status kv_scope_of(char **out, const kv_http_request *req, const char *salt, kv_error *err) {
    *out = NULL;
    const char *name = kv_http_get_header(req, KV_SCOPE_HEADER);
    /* Of two, a proxy in front may have set one and the client the other. */
    if (kv_http_count_header(req, KV_SCOPE_HEADER) > 1)
        return kv_fail_field(err, KV_SCOPE_HEADER, "the header " KV_SCOPE_HEADER " must not be sent more than once");
    for (const char *p = name; p && *p; p++)
        if (*p < ' ' || *p > '~' || p - name >= KV_SCOPE_HEADER_MAX)
            return kv_fail_field(err, KV_SCOPE_HEADER,
                                 "the header " KV_SCOPE_HEADER " must be at most %d printable ASCII characters",
                                 KV_SCOPE_HEADER_MAX);
    *out = kv_scope_join(kv_http_key_scope(req), name, salt);
    return KV_OK;
}
