/* api/places.h: places in a job's prompt that are worth coming back to, as hints for where to keep what cannot be cut.
 *
 *   where each message begins, and where the answer will (chat/turns.h): of every chat
 *   the client's breakpoints (anthropic_mark.c)
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_PLACES_H
#define KV_API_PLACES_H

#include "api/job.h"

/* Of a chat's messages so many are told as places at most, evenly chosen: what a generation carries stays bounded. */
#define KV_PLACES_MAX 1000

/* How many of the prompt's tokens lie within the first n bytes of its text. */
size_t kv_places_tokens(const kv_job *j, size_t n);
/* The same for n ascending numbers of bytes, in one pass over the tokens. */
void kv_places_tokens_all(size_t *tokens, const kv_job *j, const size_t *bytes, size_t n);
/* One more hint; of two at one position the longer time and the kind that is likelier to be asked for count. Outside
 * (0, prompt - 1]: nothing happens. */
void kv_places_add(kv_job *j, size_t position, kv_place_kind kind, int32_t keep_seconds);
/* Those of a chat's turns. */
void kv_places_add_turns(kv_job *j);

#endif
