/* api/native/lora.h: what requests may say of adapters.
 *
 * Thread rule: none.
 */
#ifndef KV_API_NATIVE_LORA_H
#define KV_API_NATIVE_LORA_H

#include "api/params_fields.h"

/* KV_OK when the list asks for the scales in effect; what it leaves out counts as 0, as in llama-server. KV_INVALID
 * otherwise, naming `field` or a part of it. */
kv_status kv_lora_check(const json_t *list, const char *field, const kv_model_info *m, kv_error *err);

/* The field `lora` of a request. An empty list asks for nothing. */
kv_status kv_field_lora(kv_params *p, const kv_app *app, const json_t *value, const char *name, kv_error *err);

#endif
