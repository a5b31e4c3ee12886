/* api/advice.h: a miss, with what its client could do about it (chat/hint.h has the words).
 *
 * Thread rule: any thread but the engine's.
 */
#ifndef KV_API_ADVICE_H
#define KV_API_ADVICE_H

#include "api/job.h"

/* A prompt as it was asked. All borrowed. */
typedef struct kv_asked {
    const kv_model *model;
    const kv_tokens *tokens;
    const kv_chat_prompt *chat; /* NULL: not of a chat; the rest is NULL then, too */
    const json_t *messages, *tools;
    const char *turn; /* what the template's turns begin with; may be NULL */
} kv_asked;

kv_asked kv_asked_of(const kv_app *app, const kv_params *params, const kv_tokens *tokens, const kv_chat_prompt *chat);

/* A sentence for the user, valid UTF-8, appended; with the prompt's own text where it parts from what is stored, never
 * with what is stored. False: there is nothing to be done, or nothing to say. */
bool kv_advice(kv_buf *out, const kv_asked *q, const kv_account *a);

#endif
