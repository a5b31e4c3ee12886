/* api/chat_body.h: a chat completion's body, rendered through the model's template.
 *
 * What /v1/chat/completions, /apply-template and token counting have in common: messages, tools, tool_choice, template
 * arguments, reasoning, and how the answer is constrained.
 *
 * Thread rule: any thread; never the engine thread (templates and grammars take milliseconds).
 */
#ifndef KV_API_CHAT_BODY_H
#define KV_API_CHAT_BODY_H

#include "api/params.h"

/* `params` is what kv_params_parse made of the same body; its reasoning budget is dropped when the template has no
 * thinking section. */
kv_status kv_chat_body_render(kv_chat_prompt **out, const json_t *body, kv_params *params, const kv_app *app,
                              kv_error *err);

/* Parse and check `text` as a chat body: the JSON (owned by the caller), its parameters, the rendered prompt. On
 * failure everything is freed and NULL or empty. */
kv_status kv_chat_body_read(json_t **body, kv_params *params, kv_chat_prompt **prompt, const char *text, size_t n,
                            const kv_app *app, kv_error *err);

#endif
