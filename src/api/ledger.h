/* api/ledger.h: the books of what prompts cost: tokens by where they came from, misses by reason, waiting times, and
 * the last misses in full, for the admin alone.
 *
 * The text and the hint of a miss quote the caller's own prompt, and never leave but by kv_ledger_find.
 *
 * Thread rule: any thread; one mutex inside, a leaf. A NULL ledger is fine everywhere and keeps nothing.
 */
#ifndef KV_API_LEDGER_H
#define KV_API_LEDGER_H

#include "cache/cache.h"
#include "chat/canonical.h"

#define KV_LEDGER_MISSES    100
#define KV_LEDGER_TEXT_MAX  1000 /* bytes of a miss's text */
#define KV_HISTOGRAM_BOUNDS 14

/* Where one prompt's tokens came from. */
typedef struct kv_account {
    int32_t engine, ram, disk, computed; /* tokens */
    int32_t respelled;                   /* tokens taken over from a stored spelling (cache/respell.h) */
    double restore_ms, prefill_ms;
    kv_miss miss;        /* NONE: all was reused that can be */
    int32_t position;    /* where the miss begins, in tokens of the prompt; meaningless without one */
    int32_t matched;     /* tokens of the prompt that are known from earlier ones, reusable or not */
    int prompt;          /* which of the request's prompts missed */
    char elsewhere[160]; /* of OTHER_NAMESPACE: what differs there; "" otherwise */
} kv_account;

typedef struct kv_histogram {
    const double *bounds; /* static, KV_HISTOGRAM_BOUNDS of them, upper ends in seconds; above them all: +Inf */
    uint64_t count[KV_HISTOGRAM_BOUNDS + 1], n;
    double sum;
} kv_histogram;

typedef struct kv_ledger_totals {
    uint64_t engine, ram, disk, computed;    /* prompt tokens */
    uint64_t respelled;                      /* of those, taken over from stored spellings */
    uint64_t n_miss[KV_MISS_COUNT];          /* prompts */
    uint64_t n_canonicalised[KV_RULE_COUNT]; /* requests that a rule changed */
    kv_histogram restore, first_token;
} kv_ledger_totals;

typedef struct kv_ledger_miss {
    char id[132]; /* the request's */
    int64_t time; /* Unix */
    kv_account account;
    char *text; /* owned; NULL past the prompt's end */
    char *hint; /* owned; NULL without any */
} kv_ledger_miss;

typedef struct kv_ledger kv_ledger;

kv_ledger *kv_ledger_new(void);
void kv_ledger_free(kv_ledger *l);
/* One prompt of a scope (NULL or "" = the default one) is over. `text`, `hint`: of its miss, copied up to
 * KV_LEDGER_TEXT_MAX each; NULL = none. */
void kv_ledger_add(kv_ledger *l, const char *id, const char *scope, const kv_account *a, const char *text,
                   const char *hint);
/* Forgets the misses' texts of a scope, or with NULL of all; their numbers stay. */
void kv_ledger_forget_texts(kv_ledger *l, const char *scope);
/* A request was changed by these rules. */
void kv_ledger_canonicalised(kv_ledger *l, kv_rules rules);
/* A request's first token came after so long. */
void kv_ledger_first_token(kv_ledger *l, double ms);
void kv_ledger_get(kv_ledger_totals *out, kv_ledger *l);
/* The newest miss of the request `id` (NULL = of any). False when none is kept. Free out->text and
 * out->hint. */
bool kv_ledger_find(kv_ledger_miss *out, kv_ledger *l, const char *id);

#endif
