#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "state/stored_private.h"

#define PRUNE_EVERY_S 3600
#define ROOM_LEFT     10  /* a tenth of the limit is made free at once, so that not every put has to */
#define ROW_BYTES     256 /* a row's part of pages, indexes and its items, roughly */

void kv_stored_response_free(kv_stored_response *r) {
    free(r->id);
    free(r->previous);
    kv_buf_free(&r->object);
    kv_buf_free(&r->input);
    kv_tokens_free(&r->tokens);
    *r = (kv_stored_response){0};
}

void kv_stored_chain_free(kv_stored_chain *c) {
    for (size_t i = 0; i < c->n; i++) kv_stored_response_free(&c->list[i]);
    free(c->list);
    *c = (kv_stored_chain){0};
}

/* ── statements ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct bound {
    char kind; /* t: text, i: integer, b: blob */
    const void *data;
    int64_t n;
} bound;

#define TEXT(s)    ((bound){'t', s, 0})
#define INT(i)     ((bound){'i', NULL, i})
#define BLOB(p, n) ((bound){'b', p, (int64_t)(n)})

static int prepare(sqlite3_stmt **q, kv_stored *s, const char *sql, const bound *b, int n) {
    int code = sqlite3_prepare_v2(s->db, sql, -1, q, NULL);
    for (int i = 0; code == SQLITE_OK && i < n; i++) {
        if (b[i].kind == 'i') code = sqlite3_bind_int64(*q, i + 1, b[i].n);
        else if (b[i].kind == 't') code = sqlite3_bind_text(*q, i + 1, b[i].data, -1, SQLITE_STATIC);
        else if (b[i].n == 0) code = sqlite3_bind_zeroblob(*q, i + 1, 0);
        else code = sqlite3_bind_blob64(*q, i + 1, b[i].data, (sqlite3_uint64)b[i].n, SQLITE_STATIC);
    }
    return code;
}

/* SQLITE_OK after the last row. */
static int run(kv_stored *s, const char *sql, const bound *b, int n) {
    sqlite3_stmt *q = NULL;
    int code = prepare(&q, s, sql, b, n);
    while (code == SQLITE_OK || code == SQLITE_ROW) code = sqlite3_step(q);
    sqlite3_finalize(q);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static int exec(kv_stored *s, const char *sql) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL);
}

static int get_int(int64_t *out, kv_stored *s, const char *sql) {
    sqlite3_stmt *q = NULL;
    int code = prepare(&q, s, sql, NULL, 0);
    if (code == SQLITE_OK) code = sqlite3_step(q);
    if (code == SQLITE_ROW) {
        *out = sqlite3_column_int64(q, 0);
        code = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return code;
}

static kv_status failed(kv_stored *s, const char *doing, kv_error *err) {
    return kv_fail(err, KV_IO, "could not %s: %s", doing, sqlite3_errmsg(s->db));
}

static kv_status not_found(kv_error *err, const char *id) {
    return kv_fail(err, KV_NOT_FOUND,
                   "there is no response with the id '%.80s': it was never stored, was deleted, or is too old", id);
}

static int64_t now_of(const kv_stored *s) {
    return s->now ? s->now() : kv_wall_seconds();
}

/* ── what goes by itself ───────────────────────────────────────────────────────────────────────────────────────── */

/* The longest unused, until at most `most` bytes are left. */
static int make_room(kv_stored *s, int64_t most) {
    int64_t total = 0;
    int code = get_int(&total, s, "SELECT coalesce(sum(bytes), 0) FROM response");
    if (code != SQLITE_OK || total <= most) return code;
    most -= most / ROOM_LEFT;
    return run(s,
               "DELETE FROM response WHERE rowid IN (SELECT rowid FROM (SELECT rowid, sum(bytes) OVER (ORDER BY used, "
               "rowid ROWS UNBOUNDED PRECEDING) - bytes AS before FROM response) WHERE before < ?)",
               &INT(total - most), 1);
}

/* Gives pages back to the file system, and what was erased is in no log any more. */
static void tidy(kv_stored *s) {
    (void)exec(s, "PRAGMA incremental_vacuum");
    if (!s->in_memory) (void)exec(s, "PRAGMA wal_checkpoint(TRUNCATE)");
}

static int prune_old(kv_stored *s) {
    int64_t now = now_of(s);
    if (!s->max_age_s || (s->pruned_at && now - s->pruned_at < PRUNE_EVERY_S && now >= s->pruned_at)) return SQLITE_OK;
    s->pruned_at = now;
    int code = run(s, "DELETE FROM response WHERE used < ?", &INT(now - s->max_age_s), 1);
    if (code == SQLITE_OK && sqlite3_changes(s->db) > 0) tidy(s);
    return code;
}

/* ── life ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_stored *kv_stored_open(const kv_stored_config *cfg) {
    kv_stored *s = kv_alloc(sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    s->dir = kv_strdup(cfg->dir);
    s->max_age_s = cfg->max_age_s;
    s->max_bytes = cfg->max_bytes;
    s->now = cfg->now;
    kv_stored_connect(s, false);
    if (s->db) (void)kv_stored_heal(s, prune_old(s));
    return s;
}

void kv_stored_close(kv_stored *s) {
    if (!s) return;
    kv_stored_disconnect(s);
    pthread_mutex_destroy(&s->mutex);
    free(s->dir);
    free(s);
}

/* ── putting ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static int insert(kv_stored *s, const char *scope, const kv_stored_response *r, const char *const *items,
                  size_t n_items, int64_t bytes) {
    const bound row[] = {TEXT(r->id),
                         TEXT(scope),
                         TEXT(r->previous),
                         INT(now_of(s)),
                         INT(now_of(s)),
                         INT(bytes),
                         INT((int64_t)r->n_shared),
                         BLOB(r->object.data, r->object.len),
                         BLOB(r->input.data, r->input.len),
                         BLOB(r->tokens.data, r->tokens.len * sizeof(kv_token))};
    int code = run(s, "INSERT OR REPLACE INTO response VALUES(?,?,?,?,?,?,?,?,?,?)", row, 10);
    for (size_t i = 0; code == SQLITE_OK && i < n_items; i++) {
        const bound item[] = {TEXT(scope), TEXT(items[i]), TEXT(r->id)};
        code = run(s, "INSERT OR IGNORE INTO item VALUES(?,?,?)", item, 3);
    }
    return code;
}

static int put(kv_stored *s, const char *scope, const kv_stored_response *r, const char *const *items, size_t n_items,
               int64_t bytes) {
    int code = exec(s, "BEGIN IMMEDIATE");
    if (code != SQLITE_OK) return code;
    code = prune_old(s);
    if (code == SQLITE_OK) code = insert(s, scope, r, items, n_items, bytes);
    if (code == SQLITE_OK && s->max_bytes) code = make_room(s, (int64_t)s->max_bytes);
    return code == SQLITE_OK ? exec(s, "COMMIT") : code;
}

kv_status kv_stored_put(kv_stored *s, const char *scope, const kv_stored_response *r, const char *const *item_ids,
                        size_t n_item_ids, kv_error *err) {
    int64_t bytes = (int64_t)(r->object.len + r->input.len + r->tokens.len * sizeof(kv_token) + ROW_BYTES);
    if (s->max_bytes && (uint64_t)bytes > s->max_bytes)
        return kv_fail(err, KV_TOO_LARGE, "the response takes %lld bytes, and all together may take %llu",
                       (long long)bytes, (unsigned long long)s->max_bytes);
    pthread_mutex_lock(&s->mutex);
    kv_stored_connect(s, true);
    int code = put(s, scope, r, item_ids, n_item_ids, bytes);
    if (code != SQLITE_OK && kv_stored_heal(s, code)) code = put(s, scope, r, item_ids, n_item_ids, bytes);
    if (code != SQLITE_OK && !sqlite3_get_autocommit(s->db)) (void)exec(s, "ROLLBACK");
    kv_status st =
        code == SQLITE_OK ? KV_OK : kv_fail(err, KV_IO, "could not store the response: %s", sqlite3_errstr(code));
    pthread_mutex_unlock(&s->mutex);
    return st;
}

/* ── getting ───────────────────────────────────────────────────────────────────────────────────────────────────── */

#define COLUMNS "id, previous, n_shared, object, input, tokens"

/* False: the row is not one of ours. */
static bool read_row(kv_stored_response *out, sqlite3_stmt *q) {
    *out = (kv_stored_response){0};
    int n_tokens = sqlite3_column_bytes(q, 5);
    int64_t n_shared = sqlite3_column_int64(q, 2);
    if (!sqlite3_column_text(q, 0) || n_shared < 0 || n_shared > 1 << 30 || n_tokens % (int)sizeof(kv_token))
        return false;
    out->id = kv_strdup((const char *)sqlite3_column_text(q, 0));
    out->previous = kv_strdup((const char *)sqlite3_column_text(q, 1));
    out->n_shared = (size_t)n_shared;
    kv_buf_add(&out->object, sqlite3_column_blob(q, 3), (size_t)sqlite3_column_bytes(q, 3));
    kv_buf_add(&out->input, sqlite3_column_blob(q, 4), (size_t)sqlite3_column_bytes(q, 4));
    const void *tokens = sqlite3_column_blob(q, 5);
    if (n_tokens) kv_tokens_append(&out->tokens, tokens, (size_t)n_tokens / sizeof(kv_token));
    return true;
}

/* SQLITE_ROW with it, SQLITE_DONE without. */
static int get(kv_stored_response *out, kv_stored *s, const char *scope, const char *id) {
    sqlite3_stmt *q = NULL;
    const bound key[] = {TEXT(scope), TEXT(id), INT(s->max_age_s ? now_of(s) - s->max_age_s : INT64_MIN)};
    *out = (kv_stored_response){0};
    int code = prepare(&q, s, "SELECT " COLUMNS " FROM response WHERE scope=? AND id=? AND used>=?", key, 3);
    if (code == SQLITE_OK) code = sqlite3_step(q);
    if (code == SQLITE_ROW && !read_row(out, q)) code = SQLITE_CORRUPT;
    sqlite3_finalize(q);
    return code;
}

static int touch(kv_stored *s, const char *scope, const char *id) {
    const bound b[] = {INT(now_of(s)), TEXT(scope), TEXT(id)};
    return run(s, "UPDATE response SET used=? WHERE scope=? AND id=?", b, 3);
}

/* Whether there can be anything to find. */
static bool can_find(kv_stored *s, const char *id) {
    kv_stored_connect(s, false);
    return s->db && strlen(id) <= KV_STORED_ID_MAX;
}

/* What a failed reading comes to: not there, as soon as the damaged file was put aside. */
static kv_status ended(kv_stored *s, int code, const char *id, kv_error *err) {
    if (code == SQLITE_DONE || kv_stored_heal(s, code)) return not_found(err, id);
    return failed(s, "read the stored responses", err);
}

kv_status kv_stored_get(kv_stored_response *out, kv_stored *s, const char *scope, const char *id, kv_error *err) {
    *out = (kv_stored_response){0};
    pthread_mutex_lock(&s->mutex);
    int code = can_find(s, id) ? get(out, s, scope, id) : SQLITE_DONE;
    if (code == SQLITE_ROW) (void)touch(s, scope, id);
    kv_status st = code == SQLITE_ROW ? KV_OK : ended(s, code, id, err);
    pthread_mutex_unlock(&s->mutex);
    return st;
}

static void reverse(kv_stored_chain *c) {
    for (size_t i = 0, k = c->n; i + 1 < k; i++) {
        kv_stored_response r = c->list[i];
        c->list[i] = c->list[--k];
        c->list[k] = r;
    }
}

/* From `id` back to the first one; *missing: the one that is not there, owned. */
static int walk(kv_stored_chain *out, char **missing, kv_stored *s, const char *scope, const char *id) {
    char *next = kv_strdup(id);
    int code = SQLITE_ROW;
    while (next && code == SQLITE_ROW) {
        kv_stored_response r;
        code = out->n < KV_STORED_CHAIN_MAX ? get(&r, s, scope, next) : SQLITE_DONE;
        if (code != SQLITE_ROW) break;
        out->list = kv_realloc(out->list, (out->n + 1) * sizeof *out->list);
        out->list[out->n++] = r;
        free(next);
        next = kv_strdup(r.previous);
    }
    *missing = next;
    return code;
}

kv_status kv_stored_get_chain(kv_stored_chain *out, kv_stored *s, const char *scope, const char *id, kv_error *err) {
    *out = (kv_stored_chain){0};
    char *missing = NULL;
    pthread_mutex_lock(&s->mutex);
    int code = can_find(s, id) ? walk(out, &missing, s, scope, id) : SQLITE_DONE;
    kv_status st = KV_OK;
    if (code != SQLITE_ROW) {
        st = ended(s, code, id, err);
        if (st == KV_NOT_FOUND && out->n)
            kv_fail(err, st, "the response '%.80s' cannot be continued: '%.80s', which came before it, is gone", id,
                    missing ? missing : "");
    }
    if (st == KV_OK) {
        bool in_one = exec(s, "BEGIN IMMEDIATE") == SQLITE_OK; /* one writing, not one each */
        for (size_t i = 0; in_one && i < out->n; i++) (void)touch(s, scope, out->list[i].id);
        if (in_one && exec(s, "COMMIT") != SQLITE_OK) (void)exec(s, "ROLLBACK");
    }
    pthread_mutex_unlock(&s->mutex);
    free(missing);
    if (st != KV_OK) kv_stored_chain_free(out);
    reverse(out);
    return st;
}

kv_status kv_stored_find_item(char **response, kv_stored *s, const char *scope, const char *item_id, kv_error *err) {
    *response = NULL;
    const bound b[] = {TEXT(scope), TEXT(item_id)};
    sqlite3_stmt *q = NULL;
    pthread_mutex_lock(&s->mutex);
    int code = SQLITE_DONE;
    if (can_find(s, item_id)) {
        code = prepare(&q, s,
                       "SELECT r.id FROM item i JOIN response r ON r.scope=i.scope AND r.id=i.response "
                       "WHERE i.scope=? AND i.id=? ORDER BY r.rowid DESC LIMIT 1",
                       b, 2);
        if (code == SQLITE_OK) code = sqlite3_step(q);
        if (code == SQLITE_ROW) *response = kv_strdup((const char *)sqlite3_column_text(q, 0));
        sqlite3_finalize(q);
    }
    kv_status st = *response ? KV_OK : ended(s, code, item_id, err);
    if (st == KV_NOT_FOUND) kv_fail(err, st, "no stored response has an item with the id '%.80s'", item_id);
    pthread_mutex_unlock(&s->mutex);
    return st;
}

/* ── erasing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_stored_delete(kv_stored *s, const char *scope, const char *id, kv_error *err) {
    const bound b[] = {TEXT(scope), TEXT(id)};
    pthread_mutex_lock(&s->mutex);
    int code = SQLITE_OK, n = 0;
    if (can_find(s, id)) {
        code = run(s, "DELETE FROM response WHERE scope=? AND id=?", b, 2);
        n = code == SQLITE_OK ? sqlite3_changes(s->db) : 0;
        if (n) tidy(s);
    }
    kv_status st = n ? KV_OK : ended(s, code == SQLITE_OK ? SQLITE_DONE : code, id, err);
    pthread_mutex_unlock(&s->mutex);
    return st;
}

uint64_t kv_stored_erase(kv_stored *s, const char *scope) {
    pthread_mutex_lock(&s->mutex);
    uint64_t n = 0;
    kv_stored_connect(s, false);
    if (s->db) {
        int code = scope ? run(s, "DELETE FROM response WHERE scope=?", &TEXT(scope), 1)
                         : run(s, "DELETE FROM response", NULL, 0);
        if (code == SQLITE_OK) n = (uint64_t)sqlite3_changes(s->db);
        else if (!kv_stored_heal(s, code)) KV_WARN("stored responses could not be erased: %s", sqlite3_errmsg(s->db));
        tidy(s);
    }
    kv_stored_forget_damaged(s);
    pthread_mutex_unlock(&s->mutex);
    return n;
}

void kv_stored_get_stats(kv_stored_stats *out, kv_stored *s) {
    *out = (kv_stored_stats){0};
    int64_t n = 0, bytes = 0;
    pthread_mutex_lock(&s->mutex);
    kv_stored_connect(s, false);
    if (s->db && get_int(&n, s, "SELECT count(*) FROM response") == SQLITE_OK &&
        get_int(&bytes, s, "SELECT coalesce(sum(bytes), 0) FROM response") == SQLITE_OK)
        *out = (kv_stored_stats){(uint64_t)n, (uint64_t)bytes, false};
    out->in_memory = s->in_memory;
    pthread_mutex_unlock(&s->mutex);
}
