/* sched/gen.h: one generation: a prompt, its sampler, and the tokens it brings forth.
 *
 * A request with n choices is n generations. The HTTP thread makes one and submits it; the engine thread runs it and
 * pushes events; the HTTP thread takes them out.
 *
 *   HTTP thread                              engine thread
 *   kv_gen_new ── kv_sched_submit ─────────►  waiting → prefilling → decoding → done
 *   kv_gen_next ◄─── event queue ◄───────────  progress, token, token, …, done
 *   kv_gen_cancel ─────────────────────────►  seen between two batches
 *
 * The queue holds at most one event a token and one progress event (the newest), so its bound is the context length.
 *
 * Thread rule: reference-counted; events under the generation's own mutex (a leaf: nothing is locked inside it).
 */
#ifndef KV_SCHED_GEN_H
#define KV_SCHED_GEN_H

#include "base/buf.h"
#include "cache/cache.h"
#include "cache/policy.h"

typedef enum kv_finish {
    KV_FINISH_NONE,      /* still running */
    KV_FINISH_EOS,       /* the model ended its turn */
    KV_FINISH_WORD,      /* a stop string was met */
    KV_FINISH_LENGTH,    /* n_predict, t_max_predict_ms, n_indent or the context limit */
    KV_FINISH_CANCELLED, /* hang-up */
    KV_FINISH_ERROR,     /* see error */
} kv_finish;

typedef struct kv_gen_params {
    const kv_token *prompt; /* copied; ≥ 1 token */
    size_t n_prompt;
    kv_sampler *sampler;      /* transferred; NULL only with n_predict 0 */
    int32_t n_predict;        /* most new tokens; -1 = up to the context limit; 0 = only evaluate the prompt */
    const char *const *stops; /* copied */
    int n_stops;
    int32_t n_probs; /* report this many alternatives a token; 0 = none */
    bool post_sampling_probs;
    bool cache_prompt;    /* false: reuse nothing, and leave nothing that others reuse */
    const char *scope;    /* copied; whose cache it is. NULL or "" = the default one */
    const char *about;    /* copied; what kv_sched_about_slot tells while and after it runs. NULL = nothing */
    bool special_pieces;  /* spell control tokens in the text */
    const kv_hint *hints; /* copied, n_hints of them, positions ascending; NULL = none */
    int n_hints;
    int32_t id_slot;          /* -1 = any */
    int64_t t_max_predict_ms; /* from the first token, checked when a newline was made; ≤ 0 = none */
    int32_t n_indent;         /* stop at a line indented less than this (code completion); 0 = off */
    uint64_t group;           /* generations of one request share it; same prompt → computed once. 0 = alone */
    /* Called after events were pushed, on the engine thread, with the generation's mutex held: it must not block or
     * call back. Never again once kv_gen_next gave DONE or kv_gen_detach returned, so its context may go then. */
    void (*wake)(void *ctx);
    void *wake_ctx;
} kv_gen_params;

typedef struct kv_timings {
    int slot;                            /* on which it runs; -1 = none yet, or not any more */
    int32_t n_cached;                    /* prompt tokens not computed, from wherever they came */
    int32_t n_cached_ram, n_cached_disk; /* of those: restored from memory, from disk; the rest lay in the engine */
    int32_t n_prompt;                    /* prompt tokens computed */
    int32_t n_decoded;                   /* tokens sampled, the one that ended the turn included */
    double queue_ms, restore_ms;         /* before admission; of that or after it: putting stored state back */
    double prompt_ms, decode_ms;
    kv_miss miss;          /* why not more than n_cached: NONE where all but the last prompt token was */
    const char *elsewhere; /* of OTHER_NAMESPACE: what differs there; borrowed from the cache, else NULL */
    int32_t miss_position; /* tokens up to where the miss reason holds; the prompt's own tokens there say where */
    int32_t n_matched;     /* tokens that are known from earlier prompts; n_cached or more */
} kv_timings;

typedef enum kv_event_kind { KV_EVENT_PROGRESS, KV_EVENT_TOKEN, KV_EVENT_DONE } kv_event_kind;

typedef struct kv_gen_event {
    kv_event_kind kind;
    /* PROGRESS: prompt tokens in total, taken from the cache, and done so far (the cached ones included) */
    int32_t n_total, n_cache, n_processed;
    double time_ms;
    /* TOKEN, one for each sampled token, also for the one that ends the turn.
     * text: what can be sent now: whole UTF-8 characters, free of any start of a stop string; may be "". The last
     * token's text includes what was held back until then. A control token adds nothing unless special_pieces, one
     * that ends the turn never does. */
    kv_token token;
    char *text; /* owned by the event */
    size_t n_text;
    kv_token_prob chosen;
    kv_token_prob *top; /* owned, n_top of them, best first; NULL without n_probs */
    int n_top;
    /* DONE */
    kv_finish finish;
    char *stop_word; /* owned; the stop string met, else NULL */
    /* TOKEN and DONE */
    kv_timings timings;
    /* DONE with finish ERROR; stays last, the queue keeps no room for it in other events */
    kv_error error;
} kv_gen_event;

typedef struct kv_gen kv_gen;

kv_gen *kv_gen_new(const kv_gen_params *p); /* one reference, the caller's */
void kv_gen_ref(kv_gen *g);
void kv_gen_unref(kv_gen *g); /* frees sampler and events with the last one */
/* Take the oldest event; false when there is none. Free it with kv_gen_event_free. */
bool kv_gen_next(kv_gen_event *out, kv_gen *g);
void kv_gen_event_free(kv_gen_event *e);
/* Ask for an end; safe at any time, also before submit or after done. A DONE event follows. */
void kv_gen_cancel(kv_gen *g);
/* From now on nobody is woken: for a reader that goes away without waiting for DONE. */
void kv_gen_detach(kv_gen *g);

#endif
