/* store/spellings.h: a bounded map from keys to short texts, kept beside the records of a cache directory.
 *
 *   <DIR>/spellings.sqlite (+ -wal, -shm)        spelling(ns, key | base, text, bytes, used)
 *
 * What chat/spelling.h learns: how something was spelled when it came here first. Each row belongs to one namespace (of a
 * model and a scope: store.h's `ns`) and is not there for any other. It goes when its namespace is erased, when it was
 * not used for longer than the store's max_age_s, and when all together are larger than the bound: the longest unused
 * first. Texts are the caller's, who checks what comes back: the file may be anybody's by then.
 *
 * Nothing here is worth a stop or a word to the client: a damaged file is deleted and begun anew, one of a newer layout
 * is left alone, and then, as without a file, the map is in memory until the process ends. What was put survives the end
 * of the process at any instant; a power cut may take the last seconds. Several processes may share a file.
 *
 * Bytes: the main file has at most max_bytes. Before each change `take` is asked for the KV_SPELLINGS_GROWTH bytes by which
 * the files may grow, and `give` gets them back when they have; where there are none the change is left out, unless it
 * erases. Changes are cut into small ones for that.
 *
 * Thread rule: any thread, one at a time inside; take and give are called there (the store's accounts come after it). Get
 * and put wait a quarter of a second for another at most: while a drive hangs they find and keep nothing. Calls write
 * files: never from the engine's thread.
 */
#ifndef KV_STORE_SPELLINGS_H
#define KV_STORE_SPELLINGS_H

#include "base/buf.h"
#include "base/hash.h"

#define KV_SPELLINGS_FILE     "spellings.sqlite"
#define KV_SPELLINGS_TEXT_MAX (64u << 10) /* bytes of one text; longer ones are not kept */
#define KV_SPELLINGS_MIN      (256u << 10)
#define KV_SPELLINGS_GROWTH   (5u << 18) /* bytes by which one change and what follows from it may lengthen the files */
#define KV_SPELLINGS_TOUCH_S  600        /* a use is noted when the last noted one is so long ago */

typedef struct kv_spellings kv_spellings;

typedef struct kv_spellings_config {
    const char *dir;    /* copied; NULL = in memory */
    uint64_t max_bytes; /* at least KV_SPELLINGS_MIN */
    bool (*take)(void *ctx, uint64_t n);
    void (*give)(void *ctx, uint64_t n); /* both NULL: nobody counts */
    void *ctx;
    int64_t (*now)(void *ctx); /* Unix seconds; NULL = the wall clock */
} kv_spellings_config;

/* Never fails: see above. The file is made with the first put. */
kv_spellings *kv_spellings_new(const kv_spellings_config *cfg);
void kv_spellings_free(kv_spellings *s);                  /* NULL is fine */
void kv_spellings_paths(char *paths[3], const char *dir); /* owned by the caller */

/* Replaces `out`. False and empty: there is none. */
bool kv_spellings_get(kv_buf *out, kv_spellings *s, kv_hash ns, kv_hash key);

typedef struct kv_spelling_row {
    kv_hash key;
    const char *text;
    size_t n;
    bool replace; /* false: what is there stays */
} kv_spelling_row;
/* base: of the model, so that all scopes of one can be erased. What finds no room is not kept. */
void kv_spellings_put(kv_spellings *s, kv_hash base, kv_hash ns, const kv_spelling_row *rows, size_t n);

/* How many rows went: of a namespace; of all of a model; those of a namespace (NULL: of all) not used since `before`; all.
 * The bytes are overwritten. */
uint64_t kv_spellings_erase(kv_spellings *s, kv_hash ns);
uint64_t kv_spellings_erase_model(kv_spellings *s, kv_hash base);
uint64_t kv_spellings_erase_old(kv_spellings *s, const kv_hash *ns, int64_t before);
uint64_t kv_spellings_erase_all(kv_spellings *s);

typedef struct kv_spellings_stats {
    uint64_t rows, bytes; /* of texts and keys */
    bool in_memory;
} kv_spellings_stats;
void kv_spellings_get_stats(kv_spellings_stats *out, kv_spellings *s);

#endif
