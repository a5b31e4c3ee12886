/* api/errors.h: errors that several endpoints make.
 *
 * Thread rule: none.
 */
#ifndef KV_API_ERRORS_H
#define KV_API_ERRORS_H

#include "base/error.h"

/* KV_CONTEXT_FULL. The message has the words that agents look for: llama-server's "exceeds the available context
 * size" and OpenAI's "maximum context length is N tokens". */
kv_status kv_fail_context(kv_error *err, int64_t n_prompt_tokens, int64_t n_ctx);

#endif
