/* hub/hub_private.h: what the files of hub/ share.
 *
 *   name.c     what names say: repositories, quants, parts; which file of many is meant
 *   place.c    the caches on this machine
 *   remote.c   what a repository on the server has
 *   fetch.c    one file over HTTP: goes on where it stopped, checked, published whole
 *   hub.c      from what was asked to a path
 *
 * Thread rule: as hub.h, one thread.
 */
#ifndef KV_HUB_HUB_PRIVATE_H
#define KV_HUB_HUB_PRIVATE_H

#include "hub/hub.h"

#define KV_HUB_MAX_FILES 20000 /* of a repository; the largest have some thousands */

typedef struct kv_hub_file {
    char *path;    /* owned: in the repository, "a/b.gguf" */
    char *local;   /* owned: where it is; NULL: on the server */
    char *oid;     /* owned: its content's SHA-256 (64 digits) or git's own id (40); NULL = unknown */
    uint64_t size; /* bytes; 0 = unknown */
} kv_hub_file;

typedef struct kv_hub_files {
    kv_hub_file *item; /* owned; sorted by path when a function below filled it */
    int n;
    char *commit; /* owned; NULL = none known */
} kv_hub_files;

void kv_hub_files_add(kv_hub_files *f, const char *path, const char *local, const char *oid, uint64_t size);
void kv_hub_files_sort(kv_hub_files *f);
void kv_hub_files_free(kv_hub_files *f);

/* name.c */
typedef struct kv_hub_part {
    int index, count;  /* 1 of 1 for what is not split */
    size_t prefix_len; /* of the path, up to "-00001-of-…" or ".gguf" */
} kv_hub_part;

bool kv_hub_repo_valid(const char *repo); /* "user/repo": letters, digits, and single . - between them */
/* "user/repo:quant" → both, owned; *quant is NULL without one. */
kv_status kv_hub_split_name(char **repo, char **quant, const char *name, kv_error *err);
bool kv_hub_is_hex(const char *s, size_t n); /* exactly n digits and no more */
/* Relative, no empty, "." or ".." part, no control character or backslash: may stand below a directory of ours. */
bool kv_hub_path_safe(const char *path);
kv_hub_part kv_hub_part_of(const char *path);
/* The name of part i, for a path that is one of `count`. */
void kv_hub_part_path(kv_buf *out, const char *path, int i);
/* Which file: `file` itself; else the first with the quant in its name; without one Q4_K_M, Q8_0, or any model. A split
 * model's first part. -1 = none. */
int kv_hub_choose(const kv_hub_files *f, const char *quant, const char *file);
/* "Q4_K_M" of "a/b-Q4_K_M-00001-of-00002.gguf", as written; false when it has none. */
bool kv_hub_quant_of(kv_buf *out, const char *path);
bool kv_hub_is_model(const char *path); /* a GGUF that is no projector, draft head or matrix */

/* place.c */
void kv_hub_main_place(kv_buf *out); /* where to fetch to; empty: there is no home */
void kv_hub_flat_place(kv_buf *out); /* llama.cpp's own directory; empty likewise */
void kv_hub_repo_dir(kv_buf *out, const char *place, const char *repo);
/* Looks through all caches for the file that is meant, whole; NULL = none. `looked`: the directories, for messages. */
char *kv_hub_find_cached(const char *repo, const char *quant, const char *file, kv_buf *looked);

/* remote.c */
const char *kv_hub_endpoint(kv_buf *buf); /* with a '/' at its end */
kv_status kv_hub_remote_files(kv_hub_files *out, const char *repo, const char *token, kv_error *err);
void kv_hub_remote_url(kv_buf *out, const char *repo, const char *commit, const char *path);

/* fetch.c */
typedef struct kv_hub_fetch {
    const char *url, *path;   /* from, to; its directory is made */
    const char *sha256;       /* 64 digits; NULL = what the server's headers say, if they say */
    const char *token, *name; /* name: for progress and messages */
    uint64_t size;            /* 0 = unknown */
    bool keep_etag;           /* write PATH.etag, as llama.cpp does beside what --model-url fetched */
    const kv_hub_ask *ask;    /* progress */
} kv_hub_fetch;
kv_status kv_hub_fetch_file(const kv_hub_fetch *f, kv_error *err);
/* A small answer, at most `max` bytes; *http: its status. KV_IO when there was none. */
kv_status kv_hub_get(kv_buf *out, long *http, const char *url, const char *token, size_t max, kv_error *err);

#endif
