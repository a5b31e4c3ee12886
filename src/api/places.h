/* api/places.h: places in a job's prompt that are worth coming back to, as hints for where to keep what cannot be cut.
 *
 *   the end of system prompt and tools, and the beginning of the last message (chat/turns.h): of every chat
 *   the client's breakpoints (anthropic_mark.c)
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_PLACES_H
#define KV_API_PLACES_H

#include "api/job.h"

/* How many of the prompt's tokens lie within the first n bytes of its text. */
size_t kv_places_tokens(const kv_job *j, size_t n);
/* One more hint; of two at one position the longer time counts. Outside (0, prompt - 1]: nothing happens. */
void kv_places_add(kv_job *j, size_t position, int32_t keep_seconds);
/* Those of a chat's turns. */
void kv_places_add_turns(kv_job *j);

#endif
