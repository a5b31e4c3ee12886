/* api/respelling.h: a request's prompts in the tokens that are stored for their bytes (cache/respell.h), before anything
 * counts, cuts or looks up their tokens.
 *
 * What the client gave as ids of tokens stays as it is, and so does a prompt that would not fit any more: a stored
 * spelling may take more tokens than the tokeniser's.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_RESPELLING_H
#define KV_API_RESPELLING_H

#include "api/job.h"
#include "cache/respell.h"

/* One of the prompts; returns how many tokens were taken over. how: where (the caller's to free); NULL = nobody asks. */
int32_t kv_respell_prompt(kv_respelling *how, kv_prompts *prompts, int prompt, const kv_app *app,
                          const kv_params *params, const char *scope);
/* All of a job's, its hints moved along. j->scope is set. */
void kv_job_respell(kv_job *j);

#endif
