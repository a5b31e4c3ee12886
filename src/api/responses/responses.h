/* api/responses/responses.h: what the files of OpenAI's Responses API share. Private to responses*.c.
 *
 *   body ─► responses_body.c: fields ─┬─► a chat body ─► kv_chat_job_new ─► kv_job_run
 *             responses_tools.c       │                                        │ deltas
 *             responses_input.c ──────┘        responses_output.c: items, events ◄┘
 *               items ─► messages                      │ the response object
 *                 ▲                                    ▼
 *                 └──── responses_stored.c: the conversation so far, kept by kv_stored
 *
 * A conversation is a list of items, each with an id: those of every response before (its input, then its output), then
 * the request's own. It is rendered anew each time, and the tokens of the previous prompt and answer are taken as they
 * were computed (kv_response_reuse), so that the cache has them all.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_RESPONSES_RESPONSES_H
#define KV_API_RESPONSES_RESPONSES_H

#include "api/gate.h"
#include "api/job.h"
#include "state/stored.h"

typedef enum kv_response_open { KV_OPEN_NOTHING, KV_OPEN_REASONING, KV_OPEN_MESSAGE, KV_OPEN_CALL } kv_response_open;

/* Where an answer stands among the tokens of its conversation, its end of generation included. */
typedef struct kv_response_answer {
    size_t start, end;
    size_t n_reasoning; /* tokens of thought at its beginning */
} kv_response_answer;

/* The tokens of a conversation up to a response: its prompt and answer, with the answers before it inside. */
typedef struct kv_response_tokens {
    kv_tokens all;               /* owned */
    kv_response_answer *answers; /* owned, n of them, in order: those that stand in `all` as they were sampled */
    size_t n;
} kv_response_tokens;

/* One request and its answer: the state of its job. */
typedef struct kv_response {
    /* what was asked */
    json_t *chat;              /* owned; the body for kv_chat_job_new */
    json_t *echo;              /* owned; members of the response object that repeat the request */
    json_t *input;             /* owned; its own input items, complete with ids */
    json_t *names;             /* owned; what a tool's name in the chat stands for: {"type", "name", "namespace"?} */
    json_t *origin;            /* owned; of each chat message the index in `input` that it began with, -1 = none */
    char *previous;            /* owned; NULL = the first of its conversation */
    char *scope;               /* owned */
    kv_response_tokens before; /* of the previous one */
    bool store, stored;
    bool logprobs, encrypted; /* are part of the answer */
    bool summary;             /* reasoning is told as its summary */
    /* the answer so far */
    json_t *output; /* owned array of items */
    json_int_t n_events;
    bool begun;
    kv_response_open open;
    json_t *item;    /* borrowed from output: the open one */
    kv_buf text;     /* of the open one: its text or arguments */
    json_t *probs;   /* owned; of the open message */
    json_int_t call; /* index of the open call among the calls */
} kv_response;

void kv_response_free(kv_response *r); /* NULL is fine */

/* ── responses_body.c ──────────────────────────────────────────────────────────────────────────────────────────── */

/* The whole body, with the conversation that it goes on with. */
kv_status kv_response_read(kv_response **out, const json_t *body, const char *scope, const kv_app *app, kv_error *err);
/* An error about the chat body, in the words of the body it was made from. */
void kv_response_rename_error(kv_error *err, const kv_response *r);

/* ── responses_tools.c ─────────────────────────────────────────────────────────────────────────────────────────── */

/* *chat: a new array, NULL without tools. names: gets an entry for each. */
kv_status kv_response_tools(json_t **chat, json_t *names, const json_t *tools, kv_error *err);
/* *chat: a new value, NULL when absent. `tools`, the chat's, is cut down to those allowed; may be NULL. */
kv_status kv_response_tool_choice(json_t **chat, json_t *tools, const json_t *choice, kv_error *err);
/* How a tool is called in the chat. */
void kv_response_tool_name(kv_buf *out, const char *namespace, const char *name);

/* ── responses_input.c ─────────────────────────────────────────────────────────────────────────────────────────── */

/* Checks `input` (a text, items, or NULL) and appends complete items with ids to `out`. References are looked up. */
kv_status kv_response_items(json_t *out, const json_t *input, const kv_app *app, const char *scope, kv_error *err);
/* *messages, *origin: new arrays. items: all of the conversation; from n_before on they are the request's own. */
kv_status kv_response_messages(json_t **messages, json_t **origin, const char *instructions, const json_t *items,
                               size_t n_before, kv_error *err);

/* How reasoning goes out as `encrypted_content`, and comes back: this, and the text. The client may read it anyway. */
#define KV_RESPONSE_REASONING "kvasir.reasoning.1:"

/* ── responses_stored.c ────────────────────────────────────────────────────────────────────────────────────────── */

/* Appends the items of the conversation up to response `id`, and its prompt's and answer's tokens (may be NULL). */
kv_status kv_response_load(json_t *items, kv_response_tokens *tokens, const char *id, const char *scope,
                           const kv_app *app, kv_error *err);
/* Items by their ids, the keys of `items`, which has an integer of the caller's for each: these become the items. Each
 * response that has some of them is read once. On failure *missing, a key with its integer, is the id at fault. */
kv_status kv_response_find_items(json_t *items, const char **missing, const char *scope, const kv_app *app,
                                 kv_error *err);
/* Keeps a finished response: `object` is what the client gets. False: it could not be kept, as the log says. */
bool kv_response_save(const kv_response *r, const kv_job *j, const json_t *object);
void kv_response_tokens_free(kv_response_tokens *t);
/* Takes the tokens of `before` for the part of the prompt that they spell, up to where both have a token's end. An answer
 * that the template spells otherwise (a tool call's blanks, say) is taken as it was sampled, to its end of generation;
 * but not where a thought of it is left out: that is the template's to decide. */
void kv_response_reuse(kv_tokens *prompt, const kv_response_tokens *before, const kv_model *model);

/* ── responses_output.c ────────────────────────────────────────────────────────────────────────────────────────── */

extern const kv_dialect kv_response_dialect;
extern const kv_gate_voice kv_response_voice;

#endif
