/* state/stored.h: the responses that clients may come back to, kept in one SQLite file.
 *
 *   <dir>/responses.sqlite (+ -wal, -shm)     0600, in a directory of 0700
 *
 *   resp_c ──previous──► resp_b ──previous──► resp_a       a chain is a conversation; several may stand on one response
 *   each: its object, what was said to it (its own input only), and the tokens it added to those of the one before
 *
 * A response belongs to one scope (api/scope.h) and is not there for any other. It goes when it is deleted, when its
 * scope is erased, when it was not used for `max_age_s` (use of a response is use of all before it), and when the whole
 * is larger than `max_bytes`: the longest unused first.
 *
 * Nothing here is worth a stop: a file that is damaged is put aside as responses.sqlite.damaged (the one put aside
 * before goes), a file of a newer layout is left alone, and where no file can be had the responses are kept in memory.
 * Each is said in the log once. What was put survives the end of the process at any instant; a power cut may take the
 * last seconds.
 *
 * The texts are the caller's: nothing here knows their format, HTTP, or models.
 *
 * Thread rule: any thread; one mutex inside, a leaf. Calls write files: never from the engine's thread.
 */
#ifndef KV_STATE_STORED_H
#define KV_STATE_STORED_H

#include "base/buf.h"
#include "base/error.h"

#define KV_STORED_FILE      "responses.sqlite"
#define KV_STORED_CHAIN_MAX 10000 /* responses in one conversation */
#define KV_STORED_ID_MAX    256   /* bytes of an id; longer ones are not found */

typedef struct kv_stored kv_stored;

typedef struct kv_stored_config {
    const char *dir;      /* made when the first response is put; NULL = in memory */
    int64_t max_age_s;    /* 0 = for ever */
    uint64_t max_bytes;   /* of all responses; 0 = no limit */
    int64_t (*now)(void); /* Unix seconds; NULL = the wall clock */
} kv_stored_config;

typedef struct kv_stored_response {
    char *id, *previous; /* owned; previous NULL: the first of its conversation */
    kv_buf object;       /* what a client gets */
    kv_buf input;        /* what was said to it */
    kv_tokens tokens;    /* its prompt and answer from token `n_shared` on */
    size_t n_shared;     /* tokens that begin as those of the one before */
} kv_stored_response;

void kv_stored_response_free(kv_stored_response *r);

/* Never fails: see above. What is there and too old goes now. Strings of `cfg` are copied. */
kv_stored *kv_stored_open(const kv_stored_config *cfg);
void kv_stored_close(kv_stored *s); /* NULL is fine */

/* item_ids: of its input and output, for kv_stored_find_item. KV_TOO_LARGE, KV_IO: it is not kept. */
kv_status kv_stored_put(kv_stored *s, const char *scope, const kv_stored_response *r, const char *const *item_ids,
                        size_t n_item_ids, kv_error *err);
/* KV_NOT_FOUND also for what belongs to another scope. */
kv_status kv_stored_get(kv_stored_response *out, kv_stored *s, const char *scope, const char *id, kv_error *err);

typedef struct kv_stored_chain {
    kv_stored_response *list; /* owned, n of them, the conversation's first one first */
    size_t n;
} kv_stored_chain;
/* The response and all before it, which count as used. KV_NOT_FOUND too when one before it is gone. */
kv_status kv_stored_get_chain(kv_stored_chain *out, kv_stored *s, const char *scope, const char *id, kv_error *err);
void kv_stored_chain_free(kv_stored_chain *c);

/* The newest response that has an item of this id. *response: owned. */
kv_status kv_stored_find_item(char **response, kv_stored *s, const char *scope, const char *item_id, kv_error *err);
/* What stands on it stays, but is no conversation to go on with any more. */
kv_status kv_stored_delete(kv_stored *s, const char *scope, const char *id, kv_error *err);
/* How many were erased: the scope's, or all with NULL. The bytes are overwritten; a file that was put aside goes, too. */
uint64_t kv_stored_erase(kv_stored *s, const char *scope);

typedef struct kv_stored_stats {
    uint64_t responses, bytes;
    bool in_memory;
} kv_stored_stats;
void kv_stored_get_stats(kv_stored_stats *out, kv_stored *s);

#endif
