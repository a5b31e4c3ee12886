/* chat/messages.h: OpenAI "messages" and "tools", checked before the chat renderer sees them.
 *
 * The renderer trusts its input: what it does not know it drops, prints into an error or throws on half-way. So each
 * message, content part and tool is checked here, errors name the place as the client wrote it
 * (`messages[3].content[1]`), and the result is a new, tidy array that holds only members the renderer knows:
 *
 *   message  role, content (text, or an array of {"type":"text","text"}), reasoning_content, name, tool_call_id,
 *            tool_calls [{id?, type:"function", function {name, arguments (text)}}]
 *   tool     {type:"function", function {name, description?, parameters (an object)}}
 *
 * null stands for absent everywhere. Roles are not limited to OpenAI's: templates have their own ("ipython",
 * "observation"), and "developer" becomes "system" in the renderer where the template does not know it.
 *
 * Knows nothing of models or templates.
 *
 * Thread rule: none; input is only read.
 */
#ifndef KV_CHAT_MESSAGES_H
#define KV_CHAT_MESSAGES_H

#include "chat/media.h"

/* `messages` may be NULL (absent). *out is a new array, owned by the caller. */
kv_status kv_chat_check_messages(json_t **out, const json_t *messages, kv_on_image on_image, kv_error *err);

/* Each tool becomes rules of a grammar and is compared by name with the others; each message takes memory before it is
 * found to be too much for the context. */
#define KV_CHAT_MAX_TOOLS    1024
#define KV_CHAT_MAX_MESSAGES 100000

/* `tools` NULL, null or []: KV_OK and *out NULL. Else a new array, owned by the caller. */
kv_status kv_chat_check_tools(json_t **out, const json_t *tools, kv_error *err);

/* `tool_choice` of a request: "auto", "none", "required", {"type":"function","function":{"name":…}}, or
 * {"type":"allowed_tools","allowed_tools":{"mode":…,"tools":[…]}}. *choice is one of the three words (static), NULL when
 * absent. A named function becomes "required"; `tools` (may be NULL) is cut down to what is named, since the tool grammar
 * has no other way to insist on it. The prompt should show all of them all the same (kv_chat_params.shown_tools_json): the
 * cached prefix of a conversation stays the same then, whatever is to be called. */
kv_status kv_chat_check_tool_choice(const char **choice, json_t *tools, const json_t *tool_choice, kv_error *err);

#endif
