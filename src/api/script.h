/* api/script.h: answers that tests give to chats whose client cannot name one (--test-script FILE).
 *
 * An agent sends its own bodies, so `kvasir.play` is out of reach; the server is told beforehand what to say:
 *
 *   [{"role": "user", "last": "hello.txt", "answer": "<tool_call>…</tool_call>"},
 *    {"role": "tool", "answer": "Done."},
 *    {"prompt": "a short title", "answer": "A title"}]
 *
 * `role` is the last message's (instructions aside), `last` a part of its text, `prompt` a part of the rendered prompt;
 * what a rule does not name may be anything. The first rule that fits answers; its text, in the template's own syntax,
 * is tokenised and sampled token by token, and all the rest (prompt, cache, parser, dialect) is as ever. A body with
 * `kvasir.play` keeps its own answer. Only with --test-sampler.
 *
 * Thread rule: read-only once it is open.
 */
#ifndef KV_API_SCRIPT_H
#define KV_API_SCRIPT_H

#include "api/params.h"

typedef struct kv_script kv_script;

/* *out is owned by the caller; NULL when opt->test_script is. KV_INVALID (or the file's error) on field
 * "--test-script". */
kv_status kv_script_open(kv_script **out, const kv_options *opt, kv_error *err);
void kv_script_close(kv_script *s); /* NULL is fine */

/* Puts the answer to `body` (a chat's) into `params`. KV_INVALID when no rule fits: a test should not get an answer that
 * nobody wrote. */
kv_status kv_script_play(kv_params *params, const kv_app *app, const json_t *body, const kv_chat_prompt *prompt,
                         kv_error *err);

#endif
