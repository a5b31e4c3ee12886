/* fuzz/app.h: what the fuzzers of request bodies have in common: an app without a server, on the fake engine's model, with
 * bytes for tokens and ChatML for a template.
 */
#ifndef KV_FUZZ_APP_H
#define KV_FUZZ_APP_H

#include <stdlib.h>
#include <string.h>

#include "api/app.h"
#include "base/json.h"
#include "engine/engine_fake.h"
#include "fuzz.h"

static kv_options options[2]; /* images: refused; replaced */
static kv_app app;

/* False: it was made for an earlier input. */
static inline bool open_app(int32_t n_ctx_served) {
    if (app.model) return false;
    for (int i = 0; i < 2; i++) kv_options_defaults(&options[i]);
    free(options[1].on_image);
    options[1].on_image = kv_strdup("placeholder");
    kv_fake_params fake;
    kv_fake_params_defaults(&fake);
    KV_CHECK(kv_model_load_fake(&app.model, &fake, NULL) == KV_OK);
    app.opt = &options[0];
    app.n_ctx_served = n_ctx_served;
    app.engine_info.n_slots = 4;
    strcpy(app.model_name, "fuzz");
    kv_sampling_defaults(&app.sampling_defaults);
    return true;
}

/* A status that a client gets as 4xx or 501, with a message that is valid UTF-8. */
static inline void check_status(kv_status st, const kv_error *err) {
    int http = kv_status_http(st);
    KV_CHECK((http >= 400 && http < 500) || st == KV_UNSUPPORTED);
    KV_CHECK(err->status == st && err->message[0] && kv_utf8_valid(err->message, strlen(err->message)));
    KV_CHECK(kv_utf8_valid(err->field, strlen(err->field)));
}

#endif
