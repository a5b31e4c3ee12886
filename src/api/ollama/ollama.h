/* api/ollama/ollama.h: what the files of Ollama's API share. Private to them.
 *
 *   ollama_body.c      a request's common fields and `options`, as an OpenAI body
 *   ollama_messages.c  messages and tools, likewise
 *   ollama_chat.c      /api/chat and /api/generate: from body to job
 *   ollama_answer.c    the dialect: objects a line (NDJSON), or one
 *   ollama_embed.c     /api/embed and the older /api/embeddings
 *   ollama_models.c    tags, show, ps, version, and what is refused: pull, push, create, copy, delete
 *
 * A request is translated once, into what OpenAI's API takes, and from there on is any chat. Ollama's own words are put
 * back into what comes out: field names in errors, `thinking`, arguments as objects, durations in nanoseconds.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_OLLAMA_OLLAMA_H
#define KV_API_OLLAMA_OLLAMA_H

#include "api/job.h"

/* The version of Ollama whose API this follows (api/types.go); clients ask for one that has tools, thinking and
 * logprobs. */
#define KV_OLLAMA_VERSION "0.20.0"

/* What a request wants beyond its OpenAI body; a job's state. */
typedef struct kv_ollama {
    char *model;        /* owned; as the request names it, and as answers name it */
    bool generate;      /* /api/generate, else /api/chat */
    bool stream;        /* true unless told otherwise */
    bool unload;        /* keep_alive 0 */
    bool thinks;        /* `think` asks for it */
    bool render_only;   /* _debug_render_only */
    bool logprobs;      /* and … */
    int64_t n_top;      /* … how many alternatives */
    json_t *warnings;   /* owned array of texts: what was accepted without its effect; NULL = none */
    json_t *calls;      /* owned array: a stream's tool calls that were not told yet, arguments still a text */
    bool tells_context; /* the answer has `context` */
} kv_ollama;

void kv_ollama_free(kv_ollama *o); /* NULL is fine */

/* ── ollama_body.c ─────────────────────────────────────────────────────────────────────────────────────────────── */

/* The fields that both endpoints have. *out and *openai are new, also *openai's members, NULL on failure. */
kv_status kv_ollama_read(kv_ollama **out, json_t **openai, const json_t *body, bool generate, const kv_app *app,
                         kv_error *err);
/* `name`, with or without ":latest", is one that --strict-model takes, or any is. KV_NOT_FOUND otherwise. */
kv_status kv_ollama_check_model(const kv_app *app, const char *name, kv_error *err);
/* The same of a body's `model` or old `name`, which must be a text. *out: borrowed from the body or the app. */
kv_status kv_ollama_model_of(const char **out, const json_t *body, const kv_app *app, kv_error *err);
bool kv_ollama_knows_model(const kv_app *app, const char *name); /* really, whatever --strict-model says */
/* Seconds of a number or of Go's spelling ("5m", "1h30m", "-1"). False: neither. */
bool kv_ollama_seconds(double *out, const json_t *keep_alive);
/* The OpenAI body's names in an error become those of Ollama's. */
void kv_ollama_rename(kv_error *err);
/* {"error": "…"}; the route's error body. */
void kv_ollama_error_body(kv_buf *out, const kv_error *err);

/* ── ollama_messages.c ─────────────────────────────────────────────────────────────────────────────────────────── */

/* Arrays as OpenAI's API has them; what is no object is passed on for OpenAI's checks to find. */
kv_status kv_ollama_messages(json_t **out, const json_t *messages, const kv_app *app, kv_error *err);
json_t *kv_ollama_tools(const json_t *tools);
/* A message's `images`: refused, or content parts to stand in their place appended to `parts`. path: "messages[3]", or
 * "" at the top. */
kv_status kv_ollama_images(json_t *parts, const json_t *images, const char *path, const kv_app *app, kv_error *err);

/* ── ollama_chat.c ─────────────────────────────────────────────────────────────────────────────────────────────── */

/* From body to job, as the handlers do it, for tests; errors have Ollama's names. *out: owned by the caller; NULL without
 * an error when the body says nothing to answer. */
kv_status kv_ollama_job(kv_job **out, json_t *body, bool generate, kv_app *app, kv_error *err);

/* ── ollama_answer.c ───────────────────────────────────────────────────────────────────────────────────────────── */

extern const kv_dialect kv_ollama_dialect; /* of jobs whose state is a kv_ollama */
/* An answer's beginning: model, created_at and an empty message or response. A new object. */
json_t *kv_ollama_object(const kv_ollama *o, const char *text, size_t n, bool done);
/* "X-…: warnings" as the answer's member, unless --plain-json. */
void kv_ollama_warn(json_t *answer, const kv_ollama *o, const kv_app *app);

/* ── ollama_models.c ───────────────────────────────────────────────────────────────────────────────────────────── */

/* All that tags, show and ps tell of the model, as a JSON object; noted before sleep (asleep.h). */
void kv_ollama_facts_write(kv_buf *out, const kv_app *app);

#endif
