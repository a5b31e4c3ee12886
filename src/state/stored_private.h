/* state/stored_private.h: what the files of state/ share.
 *
 *   file.c      the file: opening, its layout, putting it aside when it is damaged
 *   stored.c    the calls
 */
#ifndef KV_STATE_STORED_PRIVATE_H
#define KV_STATE_STORED_PRIVATE_H

#include <pthread.h>
#include <sqlite3.h>

#include "state/stored.h"

struct kv_stored {
    pthread_mutex_t mutex;
    char *dir;   /* owned; NULL = in memory */
    sqlite3 *db; /* NULL while there is neither a file nor anything to put into one */
    bool in_memory;
    int64_t max_age_s;
    uint64_t max_bytes;
    int64_t (*now)(void);
    int64_t pruned_at; /* Unix seconds */
};

/* With the mutex held. */

/* make: also where there is no file yet. After it s->db is there, or there is nothing to read. */
void kv_stored_connect(kv_stored *s, bool make);
/* `code` is of s->db. True when it says that the file is damaged: it was put aside, and s->db is an empty one. */
bool kv_stored_heal(kv_stored *s, int code);
void kv_stored_disconnect(kv_stored *s);
/* What was put aside goes: nobody can tell whose responses are in it. */
void kv_stored_forget_damaged(const kv_stored *s);

#endif
