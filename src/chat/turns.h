/* chat/turns.h: where the turns of a rendered conversation begin.
 *
 *   <|im_start|>system\n…<|im_end|>\n <|im_start|>user\n…<|im_end|>\n <|im_start|>user\n…<|im_end|>\n <|im_start|>assistant\n
 *                                     ▲ first                         ▲ last                         generation prompt
 *
 * What a template writes in front of a turn is learned once, from a conversation of marked texts, and then looked for in
 * the text of a prompt: in one pass, whatever the template does to earlier messages. A message that spells such a mark
 * itself gives a place more, which harms nobody: places are hints.
 *
 * Thread rule: kv_turns is read-only once learned; any thread.
 */
#ifndef KV_CHAT_TURNS_H
#define KV_CHAT_TURNS_H

#include "engine/engine.h"

typedef struct kv_turns {
    /* Owned; what stands in front of a user's text, "<|im_start|>user\n"; NULL: no template, or none found. */
    char *user;
    /* Owned; what every turn begins with, "<|im_start|>"; where turns share nothing, the same as user. */
    char *any;
} kv_turns;

/* Never fails: a template that does not render the marked conversation has no turns that could be found. */
void kv_turns_learn(kv_turns *out, const kv_model *model);
void kv_turns_free(kv_turns *t);

typedef struct kv_turn_places {
    /* Bytes before the first user's turn: system prompt and tools, where they stand in a turn of their own. */
    size_t first;
    /* Bytes before the last turn but the one to be generated. */
    size_t last;
} kv_turn_places;

/* Places in `text`, n bytes, that ends with `generation` (the generation prompt; "" = none). 0 = not found. */
kv_turn_places kv_turns_find(const kv_turns *t, const char *text, size_t n, const char *generation);

#endif
