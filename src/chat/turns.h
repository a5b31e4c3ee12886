/* chat/turns.h: where the messages of a rendered conversation begin.
 *
 *   <|im_start|>system\n…<|im_end|>\n <|im_start|>user\n…<|im_end|>\n <|im_start|>user\n…<|im_end|>\n <|im_start|>assistant\n
 *                                     ▲ first                         ▲ last                         ▲ generation
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
    /* Owned; what an assistant's turn begins with, "<|assistant|>", or what ends a user's, "[/INST]"; NULL: `any` says. */
    char *assistant;
    /* Owned; what a text ends with for an answer to come where no generation prompt is told; NULL = nothing. */
    char *open;
    /* Owned; what stands between a user's text and an earlier answer to it, "<|im_end|>\n<|im_start|>assistant\n". */
    char *between;
} kv_turns;

/* Never fails: a template that does not render the marked conversation has no turns that could be found. */
void kv_turns_learn(kv_turns *out, const kv_model *model);
void kv_turns_free(kv_turns *t);

/* In bytes of the text before the place. */
typedef struct kv_turn_places {
    size_t *start; /* owned, n of them, ascending: each turn's beginning but at 0, and but the one to be generated */
    size_t n;
    size_t
        first; /* before the first user's turn: system prompt and tools where they have a turn of their own; 0 = none */
    size_t last;       /* before the last turn but the one to be generated; 0 = none */
    size_t generation; /* before the generation prompt; 0 = there is none */
    /* The answer will not stand behind this generation prompt once it is an earlier one ("…assistant\n<think>\n"): the
     * next turn parts from this one there, or a little behind it. */
    bool generation_parts;
} kv_turn_places;

/* Places in `text`, n bytes, that ends with `generation` (the generation prompt; "" = none), in one pass for each of the
 * two openers. */
void kv_turns_find(kv_turn_places *out, const kv_turns *t, const char *text, size_t n, const char *generation);
void kv_turn_places_free(kv_turn_places *p);

#endif
