/* fuzz/fuzz_gbnf.c: the check that stands before the engine's grammar parser, on arbitrary text.
 *
 *  1. it ends, quickly, and gives KV_OK or KV_INVALID with a message that is valid UTF-8
 *  2. what it said once it says again
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "engine/gbnf.h"
#include "fuzz.h"

static bool any_token(void *ctx, const char *text, size_t n) {
    (void)ctx;
    return n % 2 == 0 && (n == 0 || text[0] != 'x');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *grammar = kv_strndup((const char *)data, size);
    kv_error err = {0};
    kv_status status = kv_gbnf_check(grammar, any_token, NULL, &err);
    KV_CHECK(status == KV_OK || status == KV_INVALID);
    if (status != KV_OK) KV_CHECK(err.message[0] && kv_utf8_valid(err.message, strlen(err.message)));
    KV_CHECK(kv_gbnf_check(grammar, any_token, NULL, NULL) == status);
    free(grammar);
    return 0;
}
