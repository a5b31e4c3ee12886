/* api/native/slot_files.h: what POST /slots/N?action=save writes and ?action=restore reads.
 *
 *   {"format": "kvasir slot 1", "namespace": "<hex>", "model": "NAME", "tokens": [12, 34, …], "checksum": "<hex>"}
 *
 * A slot file names a conversation; its state stays in the cache. namespace: of model, settings and scope, as the
 * cache's records have it: only there the state can be found. checksum: the chained hash of the tokens below it. The
 * tokens are the conversation's text, so the file is 0600. One of the default scope is DIR/NAME, where users of
 * llama-server look for it; one of another scope is DIR/scope:<hash>/NAME, so that no scope can overwrite or find out
 * about another's. NAME has no ':', so it is no such folder.
 *
 * Thread rule: pure functions.
 */
#ifndef KV_API_NATIVE_SLOT_FILES_H
#define KV_API_NATIVE_SLOT_FILES_H

#include "base/buf.h"
#include "base/error.h"
#include "base/hash.h"

#define KV_SLOT_FILE_MAX ((size_t)256 << 20) /* bytes: many more tokens than any context has */

/* llama-server's rule: 1 to 255 bytes of UTF-8; no path, no control or reserved characters, nothing that another system
 * would strip. */
bool kv_slot_file_name_ok(const char *name);

/* Appends DIR, or the folder in it that a scope's files are in. */
void kv_slot_folder(kv_buf *out, const char *dir, const char *scope);

/* Appends the file's text. */
void kv_slot_file_write(kv_buf *out, kv_hash ns, const char *model, const kv_token *tokens, size_t n);
/* Appends the tokens of a file's text. KV_INVALID: it is none, is damaged, or belongs to another namespace than `ns`;
 * the message says which, and what to do. name: for messages. */
kv_status kv_slot_file_read(kv_tokens *out, const char *text, size_t n, kv_hash ns, const char *name, kv_error *err);

#endif
