/* api/embed.h: the server's one embedder, and how requests share it.
 *
 *   connections ─► kv_embed_run: lengths ─┬─► lock ─► some texts in one call ─► unlock ─┐
 *                                         └────────────── the rest ◄────────────────────┘
 *
 * It computes on the threads of the connections, one call at a time, beside the engine's thread: both then share the
 * processors. A request of many texts lets others in between its calls.
 *
 * Thread rule: open and free: the engine's thread, while nobody is inside the gate. run: any thread inside it.
 */
#ifndef KV_API_EMBED_H
#define KV_API_EMBED_H

#include "api/app.h"
#include "base/json.h"
#include "engine/embedder.h"

typedef struct kv_embed kv_embed;

/* NULL and KV_OK when the options ask for none, unless the model is an encoder, which has nothing else. `params`: the engine's; model and params are borrowed (params for the
 * call). n_ctx_served: most tokens of one text where the pooling allows more than a batch. */
kv_status kv_embed_open(kv_embed **out, kv_model *model, const kv_engine_params *params, const kv_options *opt,
                        int32_t n_ctx_served, kv_error *err);
void kv_embed_free(kv_embed *e);
const kv_embedder_info *kv_embed_get_info(const kv_embed *e);

/* Floats of all rows of n texts. */
size_t kv_embed_room(const kv_embed *e, const kv_tokens *texts, int n);
/* KV_INVALID when it has no tokens, or more than one text may have; named as field[i], or as field with i -1. */
kv_status kv_embed_check_text(const kv_embed *e, const kv_tokens *text, const char *field, int i, kv_error *err);
/* Through app->embed; its tokens count in app->embedded. *rows: owned by the caller, one row after the other, not
 * normalised. KV_INVALID names the first text that is
 * too long: "input[2]", or says that there would be too many numbers; KV_CANCELLED after a hang-up; KV_ENGINE: what the
 * model computes is not finite. */
kv_status kv_embed_run(float **rows, kv_app *app, const kv_tokens *texts, int n, const char *field,
                       kv_http_request *req, kv_error *err);
/* In place, as llama-server: -1 nothing, 0 largest number to 32760, 1 by the sum of sizes, 2 to length 1, p by the
 * p-norm. A row of zeros stays. */
void kv_embed_normalise(float *row, size_t n, int how);
/* A row as an array of numbers; a new value. */
json_t *kv_embed_json(const float *row, size_t n);

#endif
