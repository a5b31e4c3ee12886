/* api/chat_body.h: a chat completion's body, rendered through the model's template.
 *
 * What /v1/chat/completions, /apply-template and token counting have in common: messages, tools, tool_choice, template
 * arguments, reasoning, and how the answer is constrained.
 *
 * Thread rule: any thread; never the engine thread (templates and grammars take milliseconds).
 */
#ifndef KV_API_CHAT_BODY_H
#define KV_API_CHAT_BODY_H

#include "api/job.h"

/* `params` is what kv_params_parse made of the same body; its reasoning budget is dropped when the template has no
 * thinking section. */
kv_status kv_chat_body_render(kv_chat_prompt **out, const json_t *body, kv_params *params, const kv_app *app,
                              kv_error *err);

/* `body` checked as a chat body: its parameters and the rendered prompt, both owned. On failure they are empty. req: whose
 * spellings are known (api/spell.h); NULL: those of the default scope. */
kv_status kv_chat_body_read(kv_params *params, kv_chat_prompt **prompt, const json_t *body, const kv_http_request *req,
                            const kv_app *app, kv_error *err);
/* The same as a job that is ready for kv_job_run. Other APIs translate their bodies into OpenAI's and come here, too. */
kv_status kv_chat_job_new(kv_job **out, const kv_dialect *dialect, const json_t *body, const kv_http_request *req,
                          const kv_app *app, kv_error *err);
/* How many tokens its prompt has. */
kv_status kv_chat_count_tokens(size_t *n_tokens, const json_t *body, const kv_http_request *req, const kv_app *app,
                               kv_error *err);

#endif
