/* cache/respell.h: the bytes of a prompt in the tokens that are stored for them.
 *
 * What a model sampled is not always what the tokeniser makes of the same text, so an answer that a client sends back
 * parts from the stored path at the first token that differs, although every byte is the same:
 *
 *   prompt   … │Hello│ world│,│ how│ are│ you│<|im_end|>│…      bounds of the prompt's tokens
 *   stored   … │Hel│lo│ wor│ld│,│ how│ are│ you│<|im_end|>│…
 *              └──── taken ───┘ from here on both go on with the same tokens
 *
 * The prompt is followed through the tree by its bytes. Where a stored token ends with one of the prompt's, the two are
 * even, and the rest could be the prompt's own tokens. Of all stored paths the one is taken that is even with the prompt
 * farthest, when that is farther than tokens alone reach; the result spells exactly the same bytes. Special tokens (see
 * pieces.h) match only themselves and are never crossed: their texts, spelled by other tokens, are not they.
 *
 * The search follows whole blocks by hash, as a look-up does, and reads tokens only of nodes where paths part from the
 * prompt; of many siblings only those that go on with a token that could spell the prompt's next bytes. It is bounded by
 * the prompt's length, and costs a walk by hash when nothing parts from the prompt before its stored path ends.
 *
 * Under --exact nothing is taken over: a cold run has nothing to take it from.
 *
 * Thread rule: any thread but the engine's; it waits for captures and may read files.
 */
#ifndef KV_CACHE_RESPELL_H
#define KV_CACHE_RESPELL_H

#include "cache/cache.h"

/* Tokens [from, to) of the prompt became [at, end). */
typedef struct kv_respelled_run {
    int32_t from, to, at, end;
} kv_respelled_run;

typedef struct kv_respelling {
    kv_tokens tokens;       /* owned; the prompt, respelled. Empty when it stays as it is */
    kv_respelled_run *runs; /* owned, n_runs, in order: where it differs */
    int n_runs;
    int32_t n_respelled; /* tokens of the runs, in the new spelling */
    int32_t n_read;      /* nodes whose tokens were read */
} kv_respelling;

/* scope: "" = the default one. model: the one that the cache is of; its vocabulary is looked at. */
void kv_respell(kv_respelling *out, kv_cache *c, const char *scope, const kv_model *model, const kv_token *tokens,
                size_t n);
/* Where a position of the prompt lies now; one inside a run at the run's beginning. */
int32_t kv_respelling_position(const kv_respelling *r, int32_t position);
void kv_respelling_free(kv_respelling *r);

#endif
