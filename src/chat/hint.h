/* chat/hint.h: what a client could do about a prompt that parts from what is stored.
 *
 *   the system prompt differs from byte 35 on, at what looks like a time (02:15:07), in the line "Now: 02:15:07":
 *   nothing behind it can be reused; move it to the newest message
 *
 * Two questions, both about the caller's own text: in whose words does the place lie (system prompt, tools, which
 * message), and does what stands there look like something that a program puts in anew each time: a time, a date, an id,
 * a number. What is stored is never looked at.
 *
 * Thread rule: none; pure functions.
 */
#ifndef KV_CHAT_HINT_H
#define KV_CHAT_HINT_H

#include "base/json.h"

typedef enum kv_suspect {
    KV_SUSPECT_NONE,
    KV_SUSPECT_TIME,   /* 02:15, 2026-11-30T02:15:07Z, 1796004907 */
    KV_SUSPECT_DATE,   /* 2026-11-30, 30.11.2026, November 30, Monday */
    KV_SUSPECT_ID,     /* a UUID, hexadecimal digits, what nanoid makes */
    KV_SUSPECT_NUMBER, /* 4, 1,024, 3.5 */
} kv_suspect;

typedef struct kv_sighting {
    kv_suspect kind;
    size_t start, end; /* bytes of the text; start < end unless NONE */
} kv_sighting;

/* What lies at text[at, end), the first token that differs, or around it. */
kv_sighting kv_hint_suspect(const char *text, size_t n, size_t at, size_t end);

typedef enum kv_whose { KV_WHOSE_NOBODY, KV_WHOSE_SYSTEM, KV_WHOSE_TOOLS, KV_WHOSE_MESSAGE } kv_whose;

typedef struct kv_hint_place {
    kv_whose whose;
    int number;       /* from 1: of a message, without the system prompt at the start; of a tool */
    size_t byte;      /* in the message's own text, from 0 */
    const char *name; /* borrowed from the request: the message's role, the tool's name; NULL otherwise */
    bool behind;      /* of the last tool: all tools are as before, but there were more */
    bool fresh;       /* it lies in what came after the last answer, and is expected to differ */
} kv_hint_place;

/* A chat's prompt. Texts are borrowed. */
typedef struct kv_hint_chat {
    const char *text; /* rendered, n bytes */
    size_t n;
    const json_t *messages, *tools; /* as the template got them (chat/messages.h); tools may be NULL */
    const char *turn;               /* what turns begin with (kv_turns.any); NULL = not known */
} kv_hint_chat;

kv_hint_place kv_hint_find(const kv_hint_chat *c, size_t at);

/* The sentence, appended. It is valid UTF-8 if the texts are. chat NULL: a prompt without messages; `text` around the
 * place then, and the place in tokens. early: most of the prompt lies behind the place, so that it is worth a word even
 * if nothing there looks like anything. False: there is nothing to say. */
bool kv_hint_of_chat(kv_buf *out, const kv_hint_chat *c, size_t at, size_t end, bool early);
bool kv_hint_of_text(kv_buf *out, const char *text, size_t n, size_t at, size_t end, bool early);

#endif
