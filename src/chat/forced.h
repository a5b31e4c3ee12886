/* chat/forced.h: a tool call that must be made, with a template that knows no tools.
 *
 * The renderer leaves tools out then, and "tool_choice": "required" with them. So the tools are told in a system message,
 * the answer is held to a JSON schema, and what it says becomes the call:
 *
 *   {"name": "get_weather", "arguments": {"city": "Paris"}}
 *
 * Knows nothing of models or templates.
 *
 * Thread rule: none.
 */
#ifndef KV_CHAT_FORCED_H
#define KV_CHAT_FORCED_H

#include "base/json.h"

/* `messages` and `tools` as kv_chat_check_messages and kv_chat_check_tools made them. *out: new messages, with the tools
 * in front and earlier calls as the texts that they were sampled as. */
void kv_chat_forced_messages(json_t **out, const json_t *messages, const json_t *tools);

/* *out: a new schema: one of the tools with its arguments. KV_INVALID when a tool's parameters cannot be read. */
kv_status kv_chat_forced_schema(json_t **out, const json_t *tools, kv_error *err);

/* What an answer under that schema calls: {"id","type":"function","function":{"name","arguments" (text)}}, a new value;
 * NULL when it broke off. */
json_t *kv_chat_forced_call(const char *text, size_t n);

#endif
