/* api/chat_answer.h: what a choice of a chat job sampled, parsed into OpenAI's message and its deltas.
 *
 * The dialects of all chat APIs stand on this: OpenAI's writes the deltas as they are, the others translate them.
 *
 *   delta: {"role"?, "content"?, "reasoning_content"?, "tool_calls": [{"index", "id"?, "type"?, "function": {…}}]?}
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_CHAT_ANSWER_H
#define KV_API_CHAT_ANSWER_H

#include "api/job.h"

/* What the parser makes of more text: an array of deltas, a new value, empty when nothing new can be told. final: the
 * text is complete. A text that does not parse to its end (a tool call that broke off) is told as far as it goes. */
json_t *kv_chat_answer_feed(kv_choice *c, const char *text, size_t n, bool final);
/* The parsed message of all its text, when nothing of it was fed before: {"role", "content", "reasoning_content"?,
 * "tool_calls"?}, a new value. The plain text stands in when nothing could be parsed of it. */
json_t *kv_chat_answer_message(kv_choice *c);
/* "stop", "length" or "tool_calls". Static. */
const char *kv_chat_answer_finish(const kv_choice *c);

/* How many of the choice's sampled tokens were thoughts: all up to the one with which the answer or a tool call begins,
 * the format's own markers around the thoughts included (those that were sampled, not those of the prompt). 0 when no
 * thought was told. Of a choice that is done; the same number for a stream and for a whole answer. */
int kv_chat_answer_reasoning_tokens(const kv_job *j, kv_choice *c);
/* OpenAI's usage of a chat job: kv_shape_usage with completion_tokens_details.reasoning_tokens, over all choices. */
json_t *kv_chat_answer_usage(kv_job *j);

#endif
