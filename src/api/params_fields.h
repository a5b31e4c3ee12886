/* api/params_fields.h: the fields that a table row cannot describe. For params.c only.
 *
 * Thread rule: none.
 */
#ifndef KV_API_PARAMS_FIELDS_H
#define KV_API_PARAMS_FIELDS_H

#include "api/params.h"

/* `value` is never null; `name` is the spelling that the client used. */
typedef kv_status (*kv_field_reader)(kv_params *p, const kv_app *app, const json_t *value, const char *name,
                                     kv_error *err);

kv_status kv_field_stop(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_logit_bias(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_samplers(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_breakers(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_seed(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_dry_base(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_n_probs(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_n_predict(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_n(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_id_slot(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_stream_options(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_response_fields(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_reasoning_format(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_budget_message(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_cache_salt(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_kvasir(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
/* Accepted without effect: a text, an object of texts, a boolean, a guess of the answer. */
kv_status kv_field_text_without_effect(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_metadata(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_store(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_prediction(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
/* Features that are not there: refused unless the value asks for nothing (false, 0, 1 for counts, "", [], {}). */
kv_status kv_field_unsupported(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_web_search(kv_params *, const kv_app *, const json_t *, const char *, kv_error *); /* even {} asks */
kv_status kv_field_modalities(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);
kv_status kv_field_best_of(kv_params *, const kv_app *, const json_t *, const char *, kv_error *);

/* Fields that belong together, after the table was read. */
kv_status kv_fields_chat_logprobs(kv_params *p, const json_t *body, kv_error *err);
kv_status kv_fields_format(kv_params *p, const json_t *body, const kv_app *app, kv_error *err);

#endif
