/* hub/hub.h: a model named by its Hugging Face repository or its address, as a file on this machine.
 *
 * What is in a cache is taken as it is, without a word to anybody. What is not is fetched into the first cache, laid out as
 * llama-server and the Hugging Face tools lay it out, so that each finds what the others fetched:
 *
 *   CACHE/models--USER--REPO/refs/main                       the commit, 40 hexadecimal digits
 *                            snapshots/COMMIT/a/b.gguf  ──►  ../../../blobs/OID   (a symbolic link)
 *                            blobs/OID                       OID: the SHA-256 of the content
 *                            blobs/OID.downloadInProgress    what was fetched so far; a later try goes on there
 *
 * CACHE is the first that is set of $LLAMA_CACHE, $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub,
 * $XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub; all of them are looked through. So is the flat directory of
 * older llama.cpp releases (USER_REPO_FILE.gguf), which is also where --model-url puts files.
 *
 * The server asked is $MODEL_ENDPOINT, $HF_ENDPOINT or https://huggingface.co. Proxies are those of the environment
 * (https_proxy, no_proxy …). A file is published by renaming it when it is whole, its SHA-256 is right, and it is on disk.
 *
 * Must not know: options, the engine. Thread rule: one thread, before others start (curl's global state, getenv).
 */
#ifndef KV_HUB_HUB_H
#define KV_HUB_HUB_H

#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct kv_hub_ask {
    const char *repo;  /* "user/repo[:quant]", or NULL */
    const char *file;  /* that file of the repository, in place of a quant; NULL = choose */
    const char *url;   /* without repo: where the file is; of a split model its first part */
    const char *path;  /* of a url: where to put it; NULL = llama.cpp's cache directory */
    const char *token; /* NULL = none */
    bool offline;      /* fetch nothing */
    /* While a file comes in, now and then, and at its end; total 0: unknown. False ends it: KV_CANCELLED, and what is there
     * stays for the next try. May be NULL. */
    bool (*progress)(void *ctx, const char *name, uint64_t done, uint64_t total);
    void *ctx;
} kv_hub_ask;

/* The path of the model's (first) file, every part of it being there; owned by the caller. KV_INVALID: a name that cannot
 * be one. KV_NOT_FOUND: in no cache and offline, or not in the repository, whose files are named then. KV_IO: the server,
 * or the disk. KV_CORRUPT: what came is not what the repository says it is. KV_BUSY: another program is fetching it. */
kv_status kv_hub_find(char **path, const kv_hub_ask *ask, kv_error *err);
/* Appends a line for each model in the caches: "user/repo:QUANT". */
void kv_hub_list(kv_buf *out);
/* Of "x-00001-of-00003.gguf", that the other parts are there. KV_NOT_FOUND names the missing one; KV_INVALID for a later
 * part names the first. Any other name is fine, and so is a file that is not there: whoever opens it says so. */
kv_status kv_hub_check_parts(const char *path, kv_error *err);

/* Appends the URL for messages and logs: without user, password, query and fragment, which may be secret. */
void kv_hub_show_url(kv_buf *out, const char *url);

#endif
