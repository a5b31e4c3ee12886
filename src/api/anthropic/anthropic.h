/* api/anthropic/anthropic.h: Anthropic's Messages API, over the chat machinery that all APIs share.
 *
 *   body ─► kv_anthropic_read ─► an OpenAI chat body ─► kv_chat_job_new ─► kv_job_run ─► dialect (anthropic.c)
 *             anthropic_body.c      tools, thinking, limits, output format
 *             anthropic_content.c   messages and their blocks
 *             anthropic_mark.c      cache_control: which tokens its breakpoints stand behind
 *
 * How Anthropic's blocks become OpenAI's messages: one user or assistant message for each run of messages of that role;
 * a tool_result is a message of the role "tool", in its place among the user's blocks; thinking is reasoning_content;
 * the texts of `system` are one system message, a line break between them. An image stands under --on-image. What
 * cannot be said to a model of text (PDFs, files, results of server tools) is refused by name.
 *
 * usage splits the prompt's tokens, the same in message_start and message_delta:
 *
 *   cache_read_input_tokens       taken from the cache, wherever it lay
 *   cache_creation_input_tokens   computed, and kept for the next request: with the cache on, all but the prompt's last
 *                                 token, which is always computed; 0 with cache_prompt off or without a cache
 *   input_tokens                  the rest: computed and not kept
 *
 * Without `thinking` the template's own default stands, as in llama-server. A named or forced tool leaves the prompt as
 * it is. This server's own fields are taken, too: cache_prompt, cache_salt, chat_template_kwargs, kvasir, seed,
 * sse_ping_interval.
 *
 * Accepted without effect: metadata, service_tier, inference_geo, speed, diagnostics, context_management, betas, the
 * headers anthropic-version and anthropic-beta, of a tool strict, defer_loading, allowed_callers, input_examples and
 * eager_input_streaming, and every field that nobody knows.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_ANTHROPIC_ANTHROPIC_H
#define KV_API_ANTHROPIC_ANTHROPIC_H

#include "api/job.h"

#define KV_ANTHROPIC_MARKS_MAX    4          /* breakpoints in a request, as in Anthropic's API */
#define KV_ANTHROPIC_MESSAGES_MAX 100000     /* likewise */
#define KV_ANTHROPIC_SIGNED       "kvasir1." /* begins the signatures that are made here */

/* A breakpoint: behind a block of the conversation. */
typedef struct kv_anthropic_mark {
    json_t *messages; /* owned: OpenAI messages up to and with the block; NULL = behind tools and system prompt */
    int32_t keep_seconds;
} kv_anthropic_mark;

typedef struct kv_anthropic {
    json_t *chat; /* owned; the OpenAI chat body */
    kv_anthropic_mark mark[KV_ANTHROPIC_MARKS_MAX];
    int n_marks;
    bool has_system;    /* the first message is the system prompt */
    bool omit_thinking; /* thinking.display "omitted": only its signature is told */
    bool wants_edits;   /* context_management was sent: its answer says that nothing was edited */
} kv_anthropic;

/* count_only: a body of count_tokens, where max_tokens may be missing. On failure `out` is empty. Errors name the field
 * as the client wrote it: "messages[2].content[0].source". */
kv_status kv_anthropic_read(kv_anthropic *out, const json_t *body, bool count_only, const kv_app *app, kv_error *err);
void kv_anthropic_free(kv_anthropic *a);

/* Where in the job's prompt the breakpoints are, as the job's hints. One that cannot be found is left out. */
void kv_anthropic_find_marks(kv_job *j, const kv_anthropic *a);

/* {"type":"error","error":{"type","message"},"request_id"} */
void kv_anthropic_error_body(kv_buf *out, const kv_error *err);

/* ── shared by the files above ─────────────────────────────────────────────────────────────────────────────────── */

/* The place of a value in the request: "messages[3].content[1]". Long ones are cut. */
typedef struct kv_path {
    char s[96];
} kv_path;
kv_path kv_path_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A member; absent or null: *out NULL. KV_INVALID naming `at`.name when it has another type, or when it is missing and
 * `need`. `at` may be "" for the body itself. */
kv_status kv_anthropic_text(json_t **out, const json_t *obj, const char *name, const char *at, bool need,
                            kv_error *err);
kv_status kv_anthropic_object(json_t **out, const json_t *obj, const char *name, const char *at, kv_error *err);
kv_status kv_anthropic_array(json_t **out, const json_t *obj, const char *name, const char *at, kv_error *err);
/* Its member "type", a text that must be there. Borrowed. */
kv_status kv_anthropic_type(const char **out, const json_t *obj, const char *at, kv_error *err);

/* Its cache_control. *keep_seconds is 0 without one. */
kv_status kv_anthropic_cache_control(int32_t *keep_seconds, const json_t *block, const char *at, kv_error *err);
/* Notes a breakpoint behind `messages` (copied; NULL = behind tools and system prompt). */
kv_status kv_anthropic_add_mark(kv_anthropic *a, const json_t *messages, int32_t keep_seconds, const char *at,
                                kv_error *err);

/* `system` and `messages` as a new array of OpenAI messages; with marks. */
kv_status kv_anthropic_messages(json_t **out, kv_anthropic *a, const json_t *body, const kv_app *app, kv_error *err);
/* Contents as the renderer takes them: one text is a string. Changes the messages. */
void kv_anthropic_tidy(json_t *messages);

/* The signature of a thinking block. keep: the text itself is inside, for a block that is told without it. A new value. */
json_t *kv_anthropic_sign(const char *thinking, size_t n, bool keep);
/* The text inside such a signature; false when there is none. */
bool kv_anthropic_signed_text(kv_buf *out, const char *signature);

#endif
