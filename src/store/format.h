/* store/format.h: one record as a self-describing file.
 *
 *   offset size  field (little-endian)
 *        0    8  magic "KVASIR\0\1"
 *        8    2  format version: KV_FORMAT_VERSION; a newer one is left alone
 *       10    1  kind (kv_record_kind)
 *       11    1  flags: bit 0 canonical (its whole path was computed in the shapes of a cold run)
 *       12    4  H: bytes of header and tokens, a multiple of 4096; the payload begins there
 *       16   16  namespace
 *       32   16  key: chained hash of all tokens [0, e)
 *       48   16  key of the parent node ([0, q)); the namespace's root key when q is 0
 *       64    4  q: first position of the block
 *       68    4  e: one past the last position; a checkpoint's position
 *       72    4  number of tokens stored: e - q; of a whole-sequence snapshot e
 *       76    4  milliseconds that computing these tokens took (worth)
 *       80    8  payload bytes, > 0
 *       88   16  XXH3-128 of the payload
 *      104   16  shape class; zeros when not canonical
 *      120    8  created, Unix seconds
 *      128   32  engine build, NUL-padded text
 *      160    1  what kind of position it was kept for (kv_place_kind); one that is not known counts as 0
 *      161    3  zero
 *      164    4  seconds after its last use for which it is worth keeping
 *      168   80  zero
 *      248    8  XXH3-64 of (XXH3-128 of bytes [0, 248) ‖ XXH3-128 of the tokens)
 *      256   4n  the tokens
 *        H    …  payload, then zeros up to a multiple of 4096
 *
 * Valid ⇔ magic and version match ∧ sizes are consistent with the file's length ∧ the header checksum holds ∧ key =
 * XXH3-128(parent ‖ tokens) (not of whole-sequence snapshots) ∧, once read, the payload's checksum holds. Everything
 * else is a damaged record.
 *
 * Thread rule: pure functions.
 */
#ifndef KV_STORE_FORMAT_H
#define KV_STORE_FORMAT_H

#include "base/buf.h"
#include "base/error.h"
#include "base/hash.h"
#include <stdbool.h>

#define KV_FORMAT_VERSION 1
#define KV_FORMAT_ALIGN   4096u

typedef enum kv_record_kind {
    KV_RECORD_BLOCK = 1,      /* attention cells of tokens [q, e) */
    KV_RECORD_WINDOW = 2,     /* window cells of tokens [q, e) */
    KV_RECORD_CHECKPOINT = 3, /* recurrent state (with window cells on hybrids with windows) at e */
    KV_RECORD_WHOLE = 4,      /* everything of [0, e) in one blob, for memories without range copy */
} kv_record_kind;

/* What kind of position a record was kept for. The numbers stand in files: new ones come at the end.
 * X(name, spelling in metrics) */
#define KV_PLACE_TABLE(X)                                                                                              \
    X(UNKNOWN, "unknown")           /* nobody said; records from before there were kinds */                            \
    X(PROMPT_END, "prompt_end")     /* one token before a prompt's end */                                              \
    X(ANSWER_END, "answer_end")     /* where a sequence was left */                                                    \
    X(SYSTEM_END, "system_end")     /* system prompt and tools end there */                                            \
    X(MESSAGE, "message")           /* a message begins */                                                             \
    X(LAST_MESSAGE, "last_message") /* the last message of its prompt begins */                                        \
    X(GENERATION, "generation")     /* the generation prompt begins */                                                 \
    X(MARK, "mark")                 /* the client marked it */                                                         \
    X(BRANCH, "branch")             /* two prompts were seen to part there */                                          \
    X(INTERVAL, "interval")         /* nothing is there, but it is far from all that is kept */

typedef enum kv_place_kind {
#define X(name, text) KV_PLACE_##name,
    KV_PLACE_TABLE(X)
#undef X
        KV_PLACE_COUNT
} kv_place_kind;
const char *kv_place_name(kv_place_kind kind); /* "answer_end" */

typedef struct kv_record_head {
    kv_record_kind kind;
    bool canonical;
    kv_hash ns, key, parent;
    int32_t q, e;
    int32_t n_tokens;
    uint32_t compute_ms;
    uint64_t n_payload;
    kv_hash payload_hash;
    kv_hash shape_class;
    int64_t created;
    kv_place_kind place;   /* of window parts, checkpoints and snapshots */
    uint32_t keep_seconds; /* after its last use it does not go before what is not so kept */
    char engine[33];
} kv_record_head;

/* Bytes of header + tokens (H), and of the whole file. */
uint32_t kv_format_head_bytes(int32_t n_tokens);
uint64_t kv_format_file_bytes(int32_t n_tokens, uint64_t n_payload);
/* Write header and tokens into dst (kv_format_head_bytes long, zeroed past the tokens). */
void kv_format_write(void *dst, const kv_record_head *head, const kv_token *tokens);
/* Check and read the first bytes of a file whose length is file_bytes. `n` bytes are at hand, 4-byte aligned: with
 * fewer than header and tokens the sizes alone are checked and *tokens stays NULL. *tokens points into src; the file
 * is little-endian, and so must the machine be (checked at start). KV_CORRUPT says what is wrong, KV_UNSUPPORTED: a
 * newer format. */
kv_status kv_format_read(kv_record_head *head, const kv_token **tokens, const void *src, size_t n, uint64_t file_bytes,
                         kv_error *err);
/* The namespace that a file's first bytes name, unchecked; false when they are no record's. */
bool kv_format_peek_ns(kv_hash *ns, const void *src, size_t n);
/* The sizes that a file's first bytes name, within their ranges but unchecked; false when they are no record's. */
bool kv_format_peek_sizes(int32_t *n_tokens, uint64_t *n_payload, const void *src, size_t n);
/* "ab/abcdef….b": folder and name below the namespace's folder, from key, kind and position. `out` ≥ 64 bytes. */
void kv_format_name(char *out, const kv_record_head *head);

#endif
