/* api/params.h: what a request body asks of a generation: sampling, limits, output switches.
 *
 * One declarative table (params.c) names each field with its aliases, its type, its limits and where it goes, under
 * llama-server's names and meanings. A limit either refuses (400 naming the field) or clamps, as llama-server does.
 * `null` stands for absent, 3.0 is an integer, fields that nobody knows are ignored, and a field whose feature is not
 * there is refused by name instead of being ignored.
 *
 * What a field means depends on the API: `logprobs` is a number in completions and a switch in chat.
 *
 * Thread rule: none; the model behind the app is read-only.
 */
#ifndef KV_API_PARAMS_H
#define KV_API_PARAMS_H

#include "api/app.h"
#include "base/json.h"

/* Bits, so that a table row can name several. */
typedef enum kv_api {
    KV_API_NATIVE = 1,      /* llama-server's /completion */
    KV_API_COMPLETIONS = 2, /* /v1/completions */
    KV_API_CHAT = 4,        /* /v1/chat/completions */
} kv_api;

#define KV_PARAMS_MAX_PROBS  1000 /* alternatives a token: every one is a JSON object in the answer */
#define KV_PARAMS_MAX_STOPS  256
#define KV_PARAMS_MAX_FIELDS 256 /* response_fields */

typedef struct kv_params {
    kv_api api;
    kv_sampling sampling; /* its pointers lead into the lists below, or into the options */
    /* output */
    bool stream, include_usage, timings_per_token, return_tokens, return_progress, echo;
    bool post_sampling_probs;
    bool want_probs;           /* token probabilities are part of the answer */
    int32_t n_probs;           /* alternatives to show a token; 0 is possible with want_probs */
    int32_t sse_ping_interval; /* seconds, -1 = off */
    json_t *response_fields;   /* owned array of strings, NULL = all */
    /* limits */
    int32_t n;         /* choices a prompt */
    int32_t n_predict; /* -1 = up to the context limit */
    int32_t n_indent, n_keep, n_discard, n_cache_reuse, id_slot;
    int64_t t_max_predict_ms;
    bool cache_prompt; /* also false with "kvasir": {"store": false} */
    char *cache_salt;  /* owned; divides the cache (scope.h); NULL = none */
    char **stops;      /* owned, ended by NULL */
    int n_stops;
    /* what the answer must look like; at most one of the two */
    char *grammar;     /* owned GBNF, NULL = none */
    char *json_schema; /* owned JSON text, NULL = none */
    /* chat */
    const char *reasoning_format; /* static */
    json_t *messages, *tools;     /* owned; as the template got them; NULL: not a chat, no tools */
    kv_rules canonicalised;       /* rules that changed something of them */
    struct kv_spell *spell; /* owned; what was spelled before (spell.h), NULL = nothing is known, or to be learnt */
    bool forced_call;       /* the answer is a call that the template knows nothing of (chat/forced.h) */
    /* owned lists that `sampling` points into */
    kv_logit_bias *logit_bias;
    size_t n_logit_bias, cap_logit_bias;
    char **samplers, **breakers; /* ended by NULL */
    char *budget_message;
    kv_tokens play;
} kv_params;

/* `body` is the request's JSON object. On failure `out` is empty and freed. */
kv_status kv_params_parse(kv_params *out, const json_t *body, kv_api api, const kv_app *app, kv_error *err);
void kv_params_free(kv_params *p);
/* For tests: the answer will be this text, its tokens one after the other, whatever the model says. */
kv_status kv_params_play(kv_params *p, const kv_model *model, const char *text, size_t n, kv_error *err);

/* llama-server's "generation_settings". brief: without the lists (stop, grammar, logit_bias, breakers), as /props and
 * /slots have it; model may be NULL then: whose ends of an answer ignore_eos bans. A new object. */
json_t *kv_params_json(const kv_params *p, const kv_model *model, bool brief);

/* KV_INVALID unless `body` is an object; then what every generating endpoint checks first: `model` is a string that
 * --strict-model knows (KV_NOT_FOUND on field "model" otherwise). */
kv_status kv_params_check_body(const json_t *body, const kv_app *app, kv_error *err);

#endif
