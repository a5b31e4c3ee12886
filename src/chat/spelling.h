/* chat/spelling.h: one meaning, one spelling: what clients send back is spelled as it was here first.
 *
 *   answer ends ─► learn ──► book: key of a canonical form ─► the bytes as they were sampled
 *   request comes ─► apply ◄─┘   (tools, and calls that nobody sampled here, are entered as they first come)
 *
 *   rule            what is compared                                     what is put in its place
 *   tool-schemas    a tool as JSON value                                 its first spelling: order of keys, 1.0 or 1
 *   tool-calls      a call's name and arguments as JSON value            the argument bytes that the model sampled
 *   assistant-text  an answer's text without the blanks around it,       the text with the blanks that make the template
 *                   its calls, and the message before it; thoughts       write what was sampled
 *                   likewise
 *
 * A JSON value is the same in any order of keys, with any blanks and escapes, and with a number written in any way that
 * is the same decimal number (1.0, 10e-1 and 1; -0 is not 0). Order in arrays counts. What is no JSON, has a key twice in
 * one object, or is nested deeper than KV_JSON_MAX_DEPTH is only the same as itself, byte by byte.
 *
 * What a book gives is not believed: it is used when its canonical form is that of what it stands for.
 *
 * Knows nothing of where a book lies, of scopes, requests and templates.
 *
 * Thread rule: none; pure but for the book.
 */
#ifndef KV_CHAT_SPELLING_H
#define KV_CHAT_SPELLING_H

#include "base/hash.h"
#include "base/json.h"

#define KV_SPELLING_MAX (64u << 10) /* bytes: longer ones are left as they come */

typedef struct kv_spelling_book {
    bool (*get)(void *ctx, kv_buf *out, kv_hash key); /* replaces `out`; false: not there */
    /* replace: false when one that is there stays. The text is copied. */
    void (*put)(void *ctx, kv_hash key, const char *text, size_t n, bool replace);
    void *ctx;
} kv_spelling_book;

/* Appends the canonical form of a JSON text. False: it is none that can be compared, and its bytes stand for it; no such
 * form is the same as one of a JSON value. */
bool kv_spelling_canonical(kv_buf *out, const char *text, size_t n);

/* Each changes the array (made by chat/messages.h) in place, and nothing that it shares with the request. True when
 * something was spelled otherwise than it came. */
bool kv_spelling_tools(json_t *tools, const kv_spelling_book *book);
bool kv_spelling_calls(json_t *messages, const kv_spelling_book *book);
bool kv_spelling_texts(json_t *messages, const kv_spelling_book *book);

/* Enters the calls of a sampled message: {"tool_calls": [{"id"?, "function": {"name", "arguments"}}]}. */
void kv_spelling_learn_calls(const json_t *message, const kv_spelling_book *book);

/* What an answer follows: the last message before it (NULL: none). */
kv_hash kv_spelling_place(const json_t *before);

/* How a template writes a message, for kv_spelling_learn_text. False: it does not. */
typedef bool (*kv_spelling_render)(void *ctx, kv_buf *out, const json_t *message);

/* Enters text and thoughts of a sampled message {"content", "reasoning_content"?, "tool_calls"?}, if the blanks around
 * them are in doubt. `sampled`: the text that the parser made it of. `shape`: of the template and what else decides on
 * blanks; what was found out for a shape is entered too, so that `render` is asked once for each kind of message. */
void kv_spelling_learn_text(const json_t *message, const char *sampled, size_t n, kv_hash place, kv_hash shape,
                            kv_spelling_render render, void *ctx, const kv_spelling_book *book);

#endif
