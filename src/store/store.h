/* store/store.h: the SSD tier's files: publish, read, list, remove; hard budgets; the derived index.
 *
 *   DIR/CACHEDIR.TAG
 *   DIR/index.sqlite(-wal,-shm)          derived: deleted or damaged, it is rebuilt from the files
 *   DIR/spellings.sqlite(-wal,-shm)      how what clients send back was spelled here first (store/spellings.h)
 *   DIR/accounts                         bytes in use and bytes reserved, of all servers that share DIR (accounts.h)
 *   DIR/lock                             eviction and opening take it
 *   DIR/ns/<namespace hex>/about.json    what made this namespace, in words, for `cache ls` and the miss reason
 *   DIR/ns/<namespace hex>/probe.json    what an engine build answered to a stored prompt (cache/probe.h)
 *   DIR/ns/<namespace hex>/ab/<key hex>.b|.w|.c|.s       records (store/format.h); an empty "….pin" beside a pinned one
 *   DIR/tmp/<process>-<n>.tmp            being written; removed at open when their process is gone
 *   DIR/tmp/<process>.alive              locked while that process lives
 *   DIR/quarantine/…                     damaged records, bounded (64 MiB, in the budget), oldest removed
 *
 *   reserve ──► write ──► commit                   a row is on disk, whole, and will survive a power cut
 *      │          └─ fails: reservation given back
 *      └─ unreserve
 *
 * A record is published whole: written to tmp/, fsynced with others of its group, renamed, and the directory fsynced.
 * It is never edited. A file of another user is not ours: never touched, never quarantined, not counted.
 *
 * Budget: all bytes below DIR, as the file system counts them (st_blocks, directories too), index and quarantine
 * included, never pass `budget` at any instant: room is reserved before a byte is written, and eviction makes it
 * before. Only a volume that grows files on its own, or a budget smaller than last time's, can be above it, at open,
 * until kv_store_open has evicted down to it. A budget below KV_STORE_INDEX_MIN has no index: there are few files then,
 * and walking them is quick.
 *
 * Worth of a record: milliseconds of computing that it saves × uses ÷ bytes ÷ time since the last use. A use counts one
 * and halves in a week; having been made counts as one. Eviction takes the least worth first, leaves first: a block goes only when no
 * record that hangs on it is left (its child nodes' records, its own node's window part and checkpoint). What is
 * pinned or being published does not go. For a record that is to be stored only what is worth less goes (by a tenth at
 * least, so that equals do not push each other out), and never the record's own parent. What a record says for how long
 * it is to be kept after its last use goes after all that need not be kept, and for a record to be stored only when that
 * says so too.
 *
 * Thread rule: any thread but the engine's (every call may do file I/O). Locks, in this order, none held during file
 * I/O on records: `index_mutex`, `mutex` of the table, `mutex` of the accounts. Callbacks run under none.
 */
#ifndef KV_STORE_STORE_H
#define KV_STORE_STORE_H

#include "os/files.h"
#include "store/format.h"
#include "store/spellings.h"

#define KV_STORE_MIN            (1ull << 20) /* the smallest budget: below, folders would take a good part of it */
#define KV_STORE_INDEX_MIN      (16ull << 20)
#define KV_STORE_QUARANTINE_MAX (64ull << 20) /* or an eighth of the budget, if that is less */
#define KV_STORE_GROUP_MAX      64            /* files held open for one commit; what comes then is synced at once */
#define KV_STORE_BUDGET_LAST    UINT64_MAX /* a tool's budget: that of the last opening that named one; none: no limit */

typedef struct kv_store kv_store;

/* By use: what was used longest ago, whatever it is worth. Nobody serves with it: bench/traffic.c compares the two. */
typedef enum kv_store_order { KV_STORE_BY_WORTH, KV_STORE_BY_USE } kv_store_order;

typedef struct kv_store_config {
    const char *dir;           /* made when missing (its parent must be there unless kv_dir_make made it) */
    const kv_files *files;     /* borrowed; NULL = kv_files_real() */
    uint64_t budget;           /* bytes, hard, at least KV_STORE_MIN (when read_only only told), or …_BUDGET_LAST */
    uint64_t keep_free;        /* never less than this free on the volume */
    int64_t max_age_s;         /* unused for longer is removed; 0 = no limit */
    uint64_t write_max_day;    /* bytes a day (UTC); 0 = no limit */
    bool read_only;            /* no call changes anything below dir */
    int64_t (*now)(void *ctx); /* Unix seconds; NULL = the wall clock */
    void *now_ctx;
    kv_store_order order; /* what goes first when room is needed */
} kv_store_config;

typedef struct kv_store_row {
    kv_record_head head; /* payload_hash and engine left empty */
    uint64_t disk_bytes;
    int64_t last_used;
    double hits; /* as of last_used; the record's making not counted */
    bool pinned;
} kv_store_row;

/* Opens or makes the directory, clears what crashes left, compares index and files (names and sizes; records that the
 * index does not know are read as far as their header), evicts down to the budget. */
kv_status kv_store_open(kv_store **out, const kv_store_config *cfg, kv_error *err);
/* Writes uses to the index and lets go. What was written and not committed is removed. NULL is fine. */
void kv_store_close(kv_store *s);

/* All rows of a namespace, parents before children (by q). From memory; fn is called under no lock. */
kv_status kv_store_load(kv_store *s, kv_hash ns, void (*fn)(void *ctx, const kv_store_row *row), void *ctx,
                        kv_error *err);
/* The same of all namespaces, by q. */
kv_status kv_store_load_all(kv_store *s, void (*fn)(void *ctx, const kv_store_row *row), void *ctx, kv_error *err);
bool kv_store_has(kv_store *s, const kv_record_head *head); /* ns, key and kind decide */

/* What a record is worth that was used this moment, in milliseconds a byte; hits without its making. */
double kv_store_worth(uint32_t compute_ms, double hits, uint64_t bytes);
/* The part of it that is left when nobody has used the record for so long: 1 … 0. What was used a minute ago is likelier
 * to be used in the next minute than what was used yesterday: between two uses lie seconds, minutes, hours or days, and
 * each of them about as often as the others, so the chance falls with one over the time. */
double kv_store_fade(int64_t idle_s);
/* Reserve room for a record (ns, key, parent, kind, q, e, n_tokens, compute_ms and n_payload are used), evicting by
 * worth if it pays. wanted: its path was hit before, so the day's cap does not stop it. KV_NO_MEMORY with the reason:
 * over the budget, over today's writes, volume nearly full. KV_INVALID: it is stored, or being stored, already.
 * KV_NOT_FOUND: its parent block is neither stored nor being stored, or that of which it is a window or a state at the
 * end is not: it would be of no use to anybody.
 * The reservation is used up by kv_store_write, whether that succeeds or not, or given back by kv_store_unreserve. */
kv_status kv_store_reserve(kv_store *s, const kv_record_head *head, double worth, bool wanted, kv_error *err);
void kv_store_unreserve(kv_store *s, const kv_record_head *head);
/* Write one record to tmp/ (header, tokens, payload). Not visible before kv_store_commit. A payload_hash of zeros is
 * computed here. */
kv_status kv_store_write(kv_store *s, const kv_record_head *head, const kv_token *tokens, const void *payload,
                         kv_error *err);
/* fsync all written since the last commit, rename them, fsync their directories, enter them in the index. Each is
 * reported: KV_OK, or why it is not stored. KV_OK when all are. */
kv_status kv_store_commit(kv_store *s, void (*done)(void *ctx, const kv_record_head *head, kv_status status), void *ctx,
                          kv_error *err);

/* Read a record: its tokens (n_tokens; may be NULL), and the payload into dst (n_payload bytes from the head; best
 * aligned to 4096, with room for that many rounded up to 4096), or without payload when dst is NULL. from_drive (may be
 * NULL): it was read around the page cache. All checks made: also that it is the record asked for.
 * KV_CORRUPT: it was damaged or unreadable and quarantined, the caller forgets it (the gone callback has run).
 * KV_NOT_FOUND: the file is gone, or is not ours. KV_UNSUPPORTED: a newer format, left alone. KV_IO: try later. */
kv_status kv_store_read(kv_store *s, kv_token *tokens, void *dst, size_t room, bool *from_drive,
                        const kv_record_head *head, kv_error *err);
/* The record's whole file into dst (kv_format_file_bytes long, aligned to 4), with all checks and consequences of
 * kv_store_read; *full gets all of its header. */
kv_status kv_store_read_file(kv_store *s, void *dst, kv_record_head *full, const kv_record_head *head, kv_error *err);
/* KV_NOT_FOUND when there is none. The gone callback is not called. */
kv_status kv_store_remove(kv_store *s, const kv_record_head *head, kv_error *err);
/* Removes everything of a namespace, pinned or not, with its folder; the gone callback is called for each record. */
kv_status kv_store_remove_namespace(kv_store *s, kv_hash ns, uint64_t *bytes, uint64_t *records, kv_error *err);
/* Removes records of a namespace that were not used since `before` (Unix seconds), leaves first: what newer records hang
 * on stays, and what is pinned. With dry_run only count. */
kv_status kv_store_remove_old(kv_store *s, kv_hash ns, int64_t before, bool dry_run, uint64_t *bytes, uint64_t *records,
                              kv_error *err);
/* Removes what quarantine/ holds of a namespace (and what does not say any more whose it was), NULL: all of it. With
 * dry_run only count. */
kv_status kv_store_clear_quarantine(kv_store *s, const kv_hash *ns, bool dry_run, uint64_t *bytes, uint64_t *files,
                                    kv_error *err);
int kv_store_sharers(kv_store *s); /* other processes (openings) that have the directory open for writing now */
/* hits: decayed to now, without the record's making. Kept in memory, written to the index now and then. */
void kv_store_touch(kv_store *s, const kv_record_head *head, double hits);
bool kv_store_is_pinned(kv_store *s, const kv_record_head *head); /* as this process knows */
/* So many more positions of a kind were kept, or gone on at; the sums are of all processes and times that used the
 * directory with an index. Kept in memory, written to the index now and then. */
void kv_store_count_place(kv_store *s, kv_place_kind kind, uint64_t n_kept, uint64_t n_hits);
void kv_store_get_places(kv_store *s, uint64_t kept[KV_PLACE_COUNT], uint64_t hits[KV_PLACE_COUNT]);
/* Another process that shares the directory heeds a pin too: it looks before it removes. */
kv_status kv_store_pin(kv_store *s, const kv_record_head *head, bool pinned, kv_error *err);

/* Called when the store evicts or quarantines a record on its own, so that the tree forgets it. May run on any thread
 * that calls the store, under no lock of it. Set before other threads use the store. */
void kv_store_on_gone(kv_store *s, void (*gone)(void *ctx, const kv_record_head *head), void *ctx);

/* about.json of a namespace: written once, when there is none (at most 64 KiB). */
kv_status kv_store_set_about(kv_store *s, kv_hash ns, const char *json, kv_error *err);
/* probe.json of a namespace, for cache/probe.h: replaced whole (at most 64 KiB); NULL: removed. It goes with the
 * namespace. Where the budget is used up something makes room for it. */
kv_status kv_store_set_note(kv_store *s, kv_hash ns, const char *json, kv_error *err);
/* Replaces `out`. False and empty: there is none, or it cannot be read. */
bool kv_store_get_note(kv_buf *out, kv_store *s, kv_hash ns);
/* Each namespace with what it takes; about is "" where there is none. */
kv_status kv_store_namespaces(kv_store *s,
                              void (*fn)(void *ctx, kv_hash ns, const char *about, uint64_t bytes, uint64_t records),
                              void *ctx, kv_error *err);

/* The directory's map of spellings, within its budget; in memory when it is read_only or the budget below
 * KV_STORE_INDEX_MIN. Borrowed, lives as long as the store. A namespace's rows go with it. */
kv_spellings *kv_store_spellings(kv_store *s);

/* Housekeeping: remove what is too old, leftovers in tmp/, what is over the budget or the volume's free space; write
 * uses to the index. With dry_run only count. bytes, records: what went (or would). */
kv_status kv_store_gc(kv_store *s, bool dry_run, uint64_t *bytes, uint64_t *records, kv_error *err);
/* Reads and checks every record; damaged ones are quarantined unless dry_run. Progress in bytes. */
kv_status kv_store_verify(kv_store *s, bool dry_run, void (*progress)(void *ctx, uint64_t done, uint64_t total),
                          void *ctx, uint64_t *n_bad, kv_error *err);

#define KV_STORE_FAULT_TABLE(X)                                                                                        \
    X(OPEN, "cannot open files")                                                                                       \
    X(READ, "cannot read")                                                                                             \
    X(WRITE, "cannot write")                                                                                           \
    X(SYNC, "cannot sync")                                                                                             \
    X(RENAME, "cannot rename or remove files")                                                                         \
    X(FULL, "the volume is full")                                                                                      \
    X(CORRUPT, "finds damaged records")                                                                                \
    X(INDEX, "cannot use its index")

typedef enum kv_store_fault {
#define X(name, text) KV_STORE_FAULT_##name,
    KV_STORE_FAULT_TABLE(X)
#undef X
        KV_STORE_FAULT_COUNT
} kv_store_fault;

typedef struct kv_store_stats {
    uint64_t bytes;  /* all below DIR, what is reserved included */
    uint64_t budget; /* KV_STORE_BUDGET_LAST: not known */
    uint64_t records, bytes_written_today, bytes_written, n_evicted, n_quarantined, n_fsyncs;
    uint64_t n_faults[KV_STORE_FAULT_COUNT];
    uint64_t by_kind_bytes[5]; /* by kv_record_kind */
    uint64_t table_bytes;      /* memory of the rows */
} kv_store_stats;
void kv_store_get_stats(kv_store_stats *out, kv_store *s);
/* Walks the table and aborts on a broken invariant. */
void kv_store_check(kv_store *s);

#endif
