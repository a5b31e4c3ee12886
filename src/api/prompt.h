/* api/prompt.h: the field `prompt` of a completion, as token lists.
 *
 *   "text"                          one prompt
 *   [12, 34]                        one prompt, token ids
 *   [12, "text", 34]                one prompt, mixed; BOS only when the first element is a text
 *   {"prompt_string": "text"}       one prompt, llama-server's object form
 *   ["a", [1, 2], {…}, [1, "b"]]    a batch: no number stands at the top level
 *
 * Texts are tokenised with BOS where the vocabulary wants one, and with control tokens parsed, as in llama-server.
 *
 * Thread rule: none.
 */
#ifndef KV_API_PROMPT_H
#define KV_API_PROMPT_H

#include "base/json.h"
#include "engine/engine.h"

#define KV_PROMPTS_MAX 512 /* prompts in one batch */

typedef struct kv_prompts {
    kv_tokens *list; /* owned, n of them */
    /* Owned, n of them: the client gave ids of tokens, so they are what it means, and not only what they spell. NULL: it
     * did so for none. */
    bool *is_given;
    int n;
} kv_prompts;

/* `prompt` NULL: KV_INVALID "is required". Errors name the element: "prompt[2][0]". */
kv_status kv_prompts_parse(kv_prompts *out, const kv_model *model, const json_t *prompt, kv_error *err);
/* The same of another field, at most n_max prompts. */
kv_status kv_prompts_parse_field(kv_prompts *out, const kv_model *model, const json_t *value, const char *field,
                                 size_t n_max, kv_error *err);
/* One prompt from rendered text. */
kv_status kv_prompts_from_text(kv_prompts *out, const kv_model *model, const char *text, size_t n, kv_error *err);
void kv_prompts_free(kv_prompts *p);

/* A text or a mixed array, appended to `out`; `field` names it in errors. Also what /tokenize takes. */
kv_status kv_prompt_mixed(kv_tokens *out, const kv_model *model, const json_t *value, const char *field,
                          bool add_special, bool parse_special, kv_error *err);

/* The text that tokens spell. special: control tokens too. */
void kv_prompt_spell(kv_buf *out, const kv_model *model, const kv_token *tokens, size_t n, bool special);

#endif
