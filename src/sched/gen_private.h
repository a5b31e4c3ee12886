/* sched/gen_private.h: the inside of a generation, for the scheduler. Only files in sched/ include this header.
 *
 *             kv_gen_new … kv_sched_submit        engine thread               any thread, under `mutex`
 *   given ──────────── written ───────────────────► read only
 *   run   ─────────────────────────────────────────► the scheduler's
 *   events ──────────────────────────────────────────────────────────────────► queue
 */
#ifndef KV_SCHED_GEN_PRIVATE_H
#define KV_SCHED_GEN_PRIVATE_H

#include "cache/cache.h"
#include "sched/gen.h"
#include "sched/queue.h"
#include "sched/text.h"
#include <pthread.h>
#include <stdatomic.h>

typedef enum kv_run_state { KV_RUN_NEW, KV_RUN_WAITING, KV_RUN_IN_SLOT, KV_RUN_DONE } kv_run_state;

/* What a slot has in common with a waiting generation's tokens, remembered while the slot's content stays. */
typedef struct kv_match {
    uint64_t version; /* of the slot's content; 0 = never compared */
    int32_t common;   /* tokens */
} kv_match;

/* What the scheduler knows of a generation. */
typedef struct kv_run {
    kv_run_state state;
    uint64_t id;           /* running number, also the order of arrival */
    uint64_t twins;        /* equal for generations of one request with the same prompt; 0 = none */
    int slot;              /* its slot while IN_SLOT, else -1 */
    int64_t overtaken_us;  /* see queue.h */
    int32_t n_limit;       /* most tokens it may sample */
    int32_t n_failed;      /* batches that failed since its last token */
    int32_t n_nan;         /* > 0: a suspect. Calls whose logits were not numbers while it was there, or its own */
    bool starts_over;      /* after one of its own: nothing stored is used, and nothing is kept */
    int32_t n_resumed;     /* tokens that it began to compute behind, before that */
    int n_restore_failed;  /* since it was submitted */
    bool admitted;         /* had a slot before */
    bool counted;          /* what it had cached is known: from when it first began to compute */
    int32_t n_prompt_done; /* prompt tokens it ever had, the cached ones included: progress never goes back */
    int64_t submitted_us, admitted_us, first_token_us; /* the last two count once admitted, once n_decoded > 0 */
    int32_t n_cached, n_cached_ram, n_cached_disk, n_decoded;
    int64_t restore_us, restore_began_us;
    kv_miss miss;
    const char *elsewhere;
    int32_t miss_position, n_matched;
    kv_match *match; /* owned; one a slot */
    kv_match *led;   /* owned; one a slot: with the prompt of the generation in it, whose id is the version */
    /* Ids, 0 = nobody: who computes what it waits for; after whom it looked up anew; who keeps a place for it. */
    uint64_t leader, asked_after, keeper;
    bool is_urged; /* this round: one that waits for what it computes goes first, with the key `urge` */
    kv_queue_key urge;
    kv_lookup *lookup; /* owned; what the cache has of its tokens, while it waits; NULL = not asked */
} kv_run;

/* A queued event. A slow reader may have thousands, so only DONE carries the (large) error. */
typedef struct kv_gen_node {
    struct kv_gen_node *next;
    size_t n; /* bytes of the event that are kept */
    _Alignas(kv_gen_event) char event[];
} kv_gen_node;

struct kv_gen {
    _Atomic int refs;
    _Atomic bool cancelled;
    /* given */
    kv_tokens tokens; /* owned; the prompt, and every sampled token that the answer goes on after */
    int32_t n_prompt;
    kv_sampler *sampler; /* owned */
    int32_t n_predict, n_probs, id_slot;
    bool post_sampling_probs, cache_prompt, special_pieces;
    int64_t t_max_predict_ms;
    uint64_t group;
    kv_hint *hints; /* owned, n_hints of them; NULL = none */
    int n_hints;
    bool places_are_chosen; /* hints say what is kept (kv_cache_choose_places) */
    char *scope;            /* owned; "" = default */
    char *about;            /* owned; NULL = nothing */
    kv_status prime_status; /* what the sampler said to the prompt; submit returns it */
    kv_error prime_error;
    /* the answer so far */
    kv_text text;
    kv_run run;
    /* events */
    pthread_mutex_t mutex;
    kv_gen_node *head, *tail;
    kv_gen_node *progress; /* the PROGRESS event that is still in the queue, or NULL */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

/* One more place to come back to, while it runs or waits. A generation has at most KV_GEN_HINTS; more are left out. */
#define KV_GEN_HINTS 4096
void kv_gen_add_hint(kv_gen *g, int32_t position, kv_place_kind kind);

static inline kv_places kv_gen_places(const kv_gen *g) {
    return (kv_places){
        .n_prompt = g->n_prompt, .hints = g->hints, .n_hints = g->n_hints, .are_chosen = g->places_are_chosen};
}

/* Puts an event into the queue (its owned parts are transferred) and wakes the reader. */
void kv_gen_push(kv_gen *g, const kv_gen_event *event);

#endif
