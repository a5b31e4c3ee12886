#include "engine/gbnf.h"
kv_status kv_gbnf_check(const char *grammar, bool (*is_token)(void *ctx, const char *text, size_t n), void *ctx,
                        kv_error *err) {
    (void)is_token, (void)ctx;
    if (*grammar == '%') return kv_fail_field(err, "grammar", "expected a rule name");
    return KV_OK;
}
