/* api/job.h: one request that generates: its prompts, its choices, and what became of them.
 *
 *   body ─► params, prompts ─► kv_job_run: check ─ samplers ─ submit ─┬─► wait for all, one body
 *           (the endpoint)                                            └─► 200, a stream of events (stream.h)
 *
 * A job has prompts × n choices, numbered prompt by prompt, each one generation. How events and bodies look is the
 * endpoint's dialect; everything else is the same for all of them.
 *
 * Thread rule: the connection's thread. The engine thread only touches the wake, through its generations.
 */
#ifndef KV_API_JOB_H
#define KV_API_JOB_H

#include "api/app.h"
#include "api/ledger.h"
#include "api/params.h"
#include "api/prompt.h"

typedef struct kv_job kv_job;
typedef struct kv_choice kv_choice;

/* Each call of a stream appends whole events to `out`. What may be NULL is said so. */
typedef struct kv_dialect {
    const char *id_prefix;   /* "chatcmpl-" */
    const char *stream_type; /* content type of a stream; NULL = "text/event-stream" */
    /* The choice's prompt is restored as far as the cache has it, and computing begins: where its tokens came from is
     * known: c->timings.n_cached, which stays what it is. Once a choice, before anything else of it. NULL = nothing to
     * tell. */
    void (*begin)(kv_buf *out, kv_job *, kv_choice *);
    /* only with return_progress; NULL = nothing to tell */
    void (*progress)(kv_buf *out, kv_job *, kv_choice *, const kv_gen_event *);
    void (*token)(kv_buf *out, kv_job *, kv_choice *, const kv_gen_event *);
    void (*done)(kv_buf *out, kv_job *, kv_choice *);
    void (*end)(kv_buf *out, kv_job *);   /* after the last choice is done */
    void (*error)(kv_buf *out, kv_job *); /* instead of an end: j->error; NULL = OpenAI's */
    void (*ping)(kv_buf *out, kv_job *);  /* nothing was sent for a while; NULL = an SSE comment */
    json_t *(*body)(kv_job *);            /* the whole answer; a new value */
    void (*free)(kv_job *);               /* what it keeps in j->state; NULL = nothing */
} kv_dialect;

struct kv_choice {
    int index;              /* in the response */
    int prompt;             /* which of the job's prompts */
    kv_gen *gen;            /* one reference, from its making until it is done */
    kv_chat_stream *chat;   /* owned; NULL without a chat prompt */
    bool forced_call;       /* of the job's params: the answer's text is a call */
    struct kv_spell *spell; /* of the job's params; NULL = nothing is to be learnt of the answer */
    json_t *call;           /* owned: that call, once it is complete; else NULL */
    kv_buf text;            /* all text so far */
    kv_tokens tokens;       /* all sampled tokens so far */
    json_t *probs;          /* owned array: entries not yet told; NULL without token probabilities */
    bool begun;             /* dialect->begin was called */
    bool started;           /* the stream's first chunk of this choice went out */
    bool done;
    kv_finish finish;
    char *stop_word; /* owned; NULL unless finish is WORD */
    kv_timings timings;
};

struct kv_job {
    const kv_app *app;
    const kv_dialect *dialect;
    kv_params params;     /* owned */
    kv_prompts prompts;   /* owned */
    kv_chat_prompt *chat; /* owned; NULL for completions */
    kv_hint *hints;       /* owned, n_hints of them: places in its one prompt that the client marked; NULL = none */
    int n_hints;
    int32_t *respelled; /* owned, one a prompt: tokens taken over from a stored spelling; NULL = none of any */
    void *state;        /* the dialect's own */
    char id[64];
    char request_id[132]; /* the HTTP request's, as in its header and log line */
    char *scope;          /* owned; whose cache it uses */
    int64_t created;
    kv_wake wake;
    bool has_wake;
    kv_choice *choice; /* owned, n_choices of them */
    int n_choices, n_done;
    int n_started;                      /* prompts whose generations were queued */
    uint64_t group;                     /* of its generations */
    bool over;                          /* nothing more will be sent */
    kv_error error;                     /* of the first choice that failed; status OK while none did */
    int64_t started_us, first_token_us; /* 0 = none yet */
    bool recorded;                      /* in the app's ledger */
    int64_t last_sent_us;               /* for pings */
};

/* An empty job; the endpoint fills params, prompts and chat. */
kv_job *kv_job_new(const kv_app *app, const kv_dialect *dialect);
/* Cancels what still runs. NULL is fine. */
void kv_job_free(kv_job *j);

/* Everything that can refuse, without queueing anything: lengths, queue, sampler with its grammar. */
kv_status kv_job_prepare(kv_job *j, kv_error *err);
/* Prepare, queue, and answer into `res`. The job is transferred, also on failure. */
kv_status kv_job_run(kv_job *j, kv_http_request *req, kv_http_response *res, kv_error *err);
/* A completions endpoint: body → params and prompts → kv_job_run. */
kv_status kv_job_serve_prompt(const kv_app *app, kv_http_request *req, kv_http_response *res, kv_api api,
                              const kv_dialect *dialect, kv_error *err);

/* Take what the generations have told so far. With `out` (a stream) the dialect writes it there; with NULL it is only
 * kept. False when nothing was there. It may leave some of a fast answer for the next call. */
bool kv_job_pump(kv_job *j, kv_buf *out);
void kv_job_cancel(kv_job *j);

/* The request's line in the log: tokens, speeds, finish. No text of the request. */
void kv_job_note(kv_http_request *req, const kv_job *j);

#endif
