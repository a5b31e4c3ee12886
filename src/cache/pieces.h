/* cache/pieces.h: a vocabulary by the bytes that its tokens spell.
 *
 *   token ─► its bytes            bytes of a text ─► the tokens that spell a beginning of them
 *
 *   heads[hash of bytes] ─► token ─► next token of the same slot ─► …        all tokens but the special ones
 *
 * Special tokens (engine.h) mean more than what they spell, and a token that spells nothing can stand anywhere: both are
 * only ever equal to themselves, and no text finds them.
 *
 * Thread rule: read-only once made; any thread. It keeps nothing of the model.
 */
#ifndef KV_CACHE_PIECES_H
#define KV_CACHE_PIECES_H

#include "engine/engine.h"

typedef struct kv_pieces kv_pieces;

/* Looks at every token: 10 to 50 ms. */
kv_pieces *kv_pieces_new(const kv_model *model);
void kv_pieces_free(kv_pieces *p); /* NULL is fine */

/* Also of an id outside the vocabulary. */
bool kv_pieces_is_special(const kv_pieces *p, kv_token t);
/* The bytes of a token of the vocabulary, control tokens spelled too; borrowed, n of them, not ended by a NUL. */
const char *kv_pieces_bytes(size_t *n, const kv_pieces *p, kv_token t);
/* The tokens that spell the first bytes of `text`, the shortest first, at most `room`. Those that need more than n bytes
 * are not found. */
int kv_pieces_beginning(kv_token *out, int room, const kv_pieces *p, const char *text, size_t n);

#endif
