/* api/spell.h: one request's part of what was spelled before: the rules of memory of chat/canonical.h.
 *
 *   body ─► tools, messages ─► kv_spell_tools, kv_spell_messages ─► template ─► queued ─► … answer ends ─► kv_spell_learn
 *                                     ▲  └─ what came first ──────────► kv_spell_keep ─┐                       │
 *                                     │                                                ▼                       ▼
 *                                  the scope's rows of the app's spellings (store/spellings.h)
 *
 * A rule that is off neither looks nor learns. Requests that ask not to use the cache, and --exact, have no kv_spell.
 *
 * Thread rule: the connection's thread; calls read and write files.
 */
#ifndef KV_API_SPELL_H
#define KV_API_SPELL_H

#include "api/app.h"

typedef struct kv_spell kv_spell;

/* NULL when no rule of memory is on, or nothing is kept. */
kv_spell *kv_spell_new(const kv_app *app, const char *scope);
void kv_spell_free(kv_spell *s); /* NULL is fine, here and below */

/* Change what was checked (chat/messages.h) in place; return the rules that did. Nothing is written: a request that is
 * refused, or only counted, leaves all as it was. */
kv_rules kv_spell_tools(kv_spell *s, json_t *tools);
kv_rules kv_spell_messages(kv_spell *s, json_t *messages);

/* The request runs: what came first with it is entered. */
void kv_spell_keep(kv_spell *s);

/* What the answer will follow: to be said once, before kv_spell_learn; later calls do nothing. The template's arguments,
 * and whether it was asked to think (kv_chat_params). continued: the answer goes on with the last message. */
void kv_spell_expect(kv_spell *s, const json_t *messages, const json_t *kwargs, int thinking, bool continued);
/* A message as the parser made it of `sampled`; NULL: it made none. */
void kv_spell_learn(kv_spell *s, const json_t *message, const kv_buf *sampled);

#endif
