#include "store/index.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { LAYOUT = 2, BUSY_MS = 250, PAGE = 4096 };

struct kv_index {
    pthread_mutex_t mutex;
    sqlite3 *db;
    sqlite3_stmt *put, *remove, *add_place;
    uint64_t max_wal;
    int wal_pages;
};

void kv_index_paths(char *paths[3], const char *dir) {
    static const char *const ends[3] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        kv_buf b = {0};
        kv_buf_addf(&b, "%s/index.sqlite%s", dir, ends[i]);
        paths[i] = kv_buf_take(&b);
    }
}

void kv_index_delete(const kv_files *files, const char *dir) {
    char *paths[3];
    kv_index_paths(paths, dir);
    for (int i = 2; i >= 0; i--) {
        (void)files->remove(files, paths[i]);
        free(paths[i]);
    }
}

static kv_status failed(kv_index *x, int code, const char *doing, kv_error *err) {
    kv_status status = KV_IO;
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: status = KV_BUSY; break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR: /* no such table, say: somebody else's file */
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH: status = KV_CORRUPT; break;
    default: break;
    }
    return kv_fail(err, status, "cannot %s the cache's index: %s", doing,
                   x->db ? sqlite3_errmsg(x->db) : sqlite3_errstr(code));
}

static int on_wal(void *ctx, sqlite3 *db, const char *name, int pages) {
    (void)db, (void)name;
    ((kv_index *)ctx)->wal_pages = pages;
    return SQLITE_OK;
}

static int exec(kv_index *x, const char *sql) {
    return sqlite3_exec(x->db, sql, NULL, NULL, NULL);
}

static int pragma_int(kv_index *x, const char *sql, int *value) {
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(x->db, sql, -1, &q, NULL);
    if (code == SQLITE_OK) code = sqlite3_step(q);
    if (code == SQLITE_ROW) {
        *value = sqlite3_column_int(q, 0);
        code = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return code;
}

static const char *const schema =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS record("
    " key BLOB NOT NULL, kind INTEGER NOT NULL, ns BLOB NOT NULL, parent BLOB NOT NULL, shape BLOB NOT NULL,"
    " canonical INTEGER NOT NULL, q INTEGER NOT NULL, e INTEGER NOT NULL, compute_ms INTEGER NOT NULL,"
    " n_payload INTEGER NOT NULL, created INTEGER NOT NULL, disk INTEGER NOT NULL, last_used INTEGER NOT NULL,"
    " hits REAL NOT NULL, place INTEGER NOT NULL DEFAULT 0, keep INTEGER NOT NULL DEFAULT 0,"
    " PRIMARY KEY(key, kind)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS place(kind INTEGER PRIMARY KEY, kept INTEGER NOT NULL, hits INTEGER NOT NULL);"
    "PRAGMA user_version=2;"
    "COMMIT";
static const char *const from_layout_1 =
    "BEGIN IMMEDIATE;"
    "ALTER TABLE record ADD COLUMN place INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE record ADD COLUMN keep INTEGER NOT NULL DEFAULT 0;"
    "CREATE TABLE IF NOT EXISTS place(kind INTEGER PRIMARY KEY, kept INTEGER NOT NULL, hits INTEGER NOT NULL);"
    "PRAGMA user_version=2;"
    "COMMIT";
_Static_assert(LAYOUT == 2, "the schema's user_version is the layout's number");

static kv_status set_up(kv_index *x, bool read_only, kv_error *err) {
    sqlite3_busy_timeout(x->db, BUSY_MS);
    int version = 0, code = exec(x, "PRAGMA cache_size=-2048; PRAGMA temp_store=MEMORY");
    if (code == SQLITE_OK && !read_only)
        code = exec(x, "PRAGMA page_size=4096; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL");
    if (code == SQLITE_OK) code = pragma_int(x, "PRAGMA user_version", &version);
    if (code == SQLITE_OK && (version == 0 || version == 1) && !read_only) {
        code = exec(x, version == 0 ? schema : from_layout_1);
        if (code != SQLITE_OK) (void)exec(x, "ROLLBACK");
        version = LAYOUT;
    }
    if (code != SQLITE_OK) return failed(x, code, "open", err);
    if (version != LAYOUT) return kv_fail(err, KV_CORRUPT, "the cache's index has an unknown layout (%d)", version);
    if (!read_only) (void)exec(x, "PRAGMA wal_checkpoint(TRUNCATE)"); /* what a crash left long */
    sqlite3_wal_autocheckpoint(x->db, 0); /* also takes the hook's place: the hook comes after */
    sqlite3_wal_hook(x->db, on_wal, x);
    if (read_only) return KV_OK;
    code = sqlite3_prepare_v3(x->db, "INSERT OR REPLACE INTO record VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", -1,
                              SQLITE_PREPARE_PERSISTENT, &x->put, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_prepare_v3(x->db, "DELETE FROM record WHERE key=? AND kind=?", -1, SQLITE_PREPARE_PERSISTENT,
                                  &x->remove, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_prepare_v3(x->db,
                                  "INSERT INTO place VALUES(?1,?2,?3) ON CONFLICT(kind) DO UPDATE SET kept=kept+?2, "
                                  "hits=hits+?3",
                                  -1, SQLITE_PREPARE_PERSISTENT, &x->add_place, NULL);
    return code == SQLITE_OK ? KV_OK : failed(x, code, "open", err);
}

/* "Immutable" is the only way in which SQLite makes no files beside a WAL database. What another process changes
 * meanwhile may be missed or read half: each row is checked, and only believed where a file stands for it. */
static void immutable_uri(kv_buf *out, const char *path) {
    kv_buf_adds(out, "file:");
    for (const char *c = path; *c; c++) {
        if (strchr("%?#", *c)) kv_buf_addf(out, "%%%02x", (unsigned char)*c);
        else kv_buf_add(out, c, 1);
    }
    kv_buf_adds(out, "?immutable=1");
}

kv_status kv_index_open(kv_index **out, const char *dir, bool read_only, uint64_t max_wal, kv_error *err) {
    *out = NULL;
    kv_index *x = kv_alloc(sizeof *x);
    pthread_mutex_init(&x->mutex, NULL);
    x->max_wal = max_wal;
    char *paths[3];
    kv_index_paths(paths, dir);
    const kv_files *real = kv_files_real(); /* SQLite does its own file calls; 0600 must stand before it comes */
    int fd = read_only ? -1 : real->open(real, paths[0], KV_OPEN_CREATE);
    if (fd >= 0) real->close(real, fd);
    int how = read_only ? SQLITE_OPEN_READONLY | SQLITE_OPEN_URI : SQLITE_OPEN_READWRITE;
    kv_buf name = {0};
    if (read_only) immutable_uri(&name, paths[0]);
    else kv_buf_adds(&name, paths[0]);
    int code = sqlite3_open_v2(name.data, &x->db, how | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL);
    kv_buf_free(&name);
    kv_status status = code == SQLITE_OK ? set_up(x, read_only, err) : failed(x, code, "open", err);
    for (int i = 0; i < 3; i++) free(paths[i]);
    if (status == KV_OK) *out = x;
    else kv_index_close(x);
    return status;
}

void kv_index_close(kv_index *x) {
    if (!x) return;
    sqlite3_finalize(x->put);
    sqlite3_finalize(x->remove);
    sqlite3_finalize(x->add_place);
    sqlite3_close(x->db); /* the last connection checkpoints and removes the WAL */
    pthread_mutex_destroy(&x->mutex);
    free(x);
}

static bool column_hash(kv_hash *out, sqlite3_stmt *q, int i) {
    const void *bytes = sqlite3_column_blob(q, i);
    if (!bytes || sqlite3_column_bytes(q, i) != (int)sizeof *out) return false;
    memcpy(out, bytes, sizeof *out);
    return true;
}

static bool column_uint(uint64_t *out, sqlite3_stmt *q, int i, uint64_t max) {
    int64_t value = sqlite3_column_int64(q, i);
    *out = (uint64_t)value;
    return value >= 0 && (uint64_t)value <= max;
}

static bool read_row(kv_table_row *r, kv_hash *ns, sqlite3_stmt *q) {
    uint64_t kind, canonical, from, to, ms, created, used, place, keep;
    memset(r, 0, sizeof *r);
    if (!column_hash(&r->key, q, 0) || !column_uint(&kind, q, 1, KV_RECORD_WHOLE) || kind == 0) return false;
    if (!column_hash(ns, q, 2) || !column_hash(&r->parent, q, 3) || !column_hash(&r->shape_class, q, 4)) return false;
    if (!column_uint(&canonical, q, 5, 1) || !column_uint(&from, q, 6, INT32_MAX) || !column_uint(&to, q, 7, INT32_MAX))
        return false;
    if (!column_uint(&ms, q, 8, UINT32_MAX) || !column_uint(&r->n_payload, q, 9, UINT64_MAX / 2) || r->n_payload == 0)
        return false;
    if (!column_uint(&created, q, 10, UINT32_MAX) || !column_uint(&r->disk, q, 11, UINT64_MAX / 2)) return false;
    if (!column_uint(&used, q, 12, UINT32_MAX)) return false;
    if (!column_uint(&place, q, 14, UINT8_MAX) || !column_uint(&keep, q, 15, UINT32_MAX)) return false;
    double hits = sqlite3_column_double(q, 13);
    if (!(hits >= 0 && hits < 1e9)) return false;
    r->kind = (uint8_t)kind;
    r->flags = canonical ? KV_ROW_CANONICAL : 0;
    r->q = (int32_t)from;
    r->e = (int32_t)to;
    r->compute_ms = (uint32_t)ms;
    r->created = (uint32_t)created;
    r->last_used = (uint32_t)used;
    r->hits = (float)hits;
    r->place = place < KV_PLACE_COUNT ? (uint8_t)place : 0;
    r->keep = (uint32_t)keep;
    int32_t n = kv_table_n_tokens(r);
    return n >= 1 && n <= 1 << 24;
}

kv_status kv_index_load(kv_index *x, void (*fn)(void *ctx, kv_table_row *row, kv_hash ns), void *ctx, kv_error *err) {
    pthread_mutex_lock(&x->mutex);
    kv_status status = KV_OK;
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(x->db, "SELECT * FROM record", -1, &q, NULL);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(q);
        if (code != SQLITE_ROW) break;
        kv_table_row row;
        kv_hash ns;
        if (!read_row(&row, &ns, q)) {
            status = kv_fail(err, KV_CORRUPT, "the cache's index has a row that cannot be");
            break;
        }
        fn(ctx, &row, ns);
    }
    if (status == KV_OK && code != SQLITE_DONE) status = failed(x, code, "read", err);
    sqlite3_finalize(q);
    pthread_mutex_unlock(&x->mutex);
    return status;
}

static int bind_hash(sqlite3_stmt *q, int i, const kv_hash *h) {
    return sqlite3_bind_blob(q, i, h, (int)sizeof *h, SQLITE_STATIC);
}

static int put_row(kv_index *x, const kv_index_row *in) {
    sqlite3_stmt *q = x->put;
    const kv_table_row *r = &in->row;
    bind_hash(q, 1, &r->key);
    sqlite3_bind_int(q, 2, r->kind);
    bind_hash(q, 3, &in->ns);
    bind_hash(q, 4, &r->parent);
    bind_hash(q, 5, &r->shape_class);
    sqlite3_bind_int(q, 6, r->flags & KV_ROW_CANONICAL ? 1 : 0);
    sqlite3_bind_int(q, 7, r->q);
    sqlite3_bind_int(q, 8, r->e);
    sqlite3_bind_int64(q, 9, r->compute_ms);
    sqlite3_bind_int64(q, 10, (sqlite3_int64)r->n_payload);
    sqlite3_bind_int64(q, 11, r->created);
    sqlite3_bind_int64(q, 12, (sqlite3_int64)r->disk);
    sqlite3_bind_int64(q, 13, r->last_used);
    sqlite3_bind_double(q, 14, (double)r->hits);
    sqlite3_bind_int(q, 15, r->place);
    sqlite3_bind_int64(q, 16, r->keep);
    int code = sqlite3_step(q);
    sqlite3_reset(q);
    return code;
}

static int remove_row(kv_index *x, const kv_index_row *in) {
    bind_hash(x->remove, 1, &in->row.key);
    sqlite3_bind_int(x->remove, 2, in->row.kind);
    int code = sqlite3_step(x->remove);
    sqlite3_reset(x->remove);
    return code;
}

/* The WAL is cut to nothing once it is longer than was agreed; while a reader in another process holds it, the next
 * change tries again. */
static void shorten_wal(kv_index *x) {
    if ((uint64_t)x->wal_pages * PAGE <= x->max_wal) return;
    if (sqlite3_wal_checkpoint_v2(x->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) == SQLITE_OK) x->wal_pages = 0;
}

/* Of a transaction that began (or not: `begun`) under the mutex and came to `code`. Releases the mutex. */
static kv_status end_change(kv_index *x, int code, bool begun, kv_error *err) {
    if (code == SQLITE_OK) code = exec(x, "COMMIT");
    kv_status status = code == SQLITE_OK ? KV_OK : failed(x, code, "change", err);
    if (code != SQLITE_OK && begun) (void)exec(x, "ROLLBACK");
    if (code == SQLITE_OK) shorten_wal(x);
    pthread_mutex_unlock(&x->mutex);
    return status;
}

static kv_status change(kv_index *x, int (*one)(kv_index *, const kv_index_row *), const kv_index_row *rows, size_t n,
                        kv_error *err) {
    if (!n) return KV_OK;
    pthread_mutex_lock(&x->mutex);
    int code = exec(x, "BEGIN IMMEDIATE");
    bool begun = code == SQLITE_OK;
    for (size_t i = 0; i < n && code == SQLITE_OK; i++) {
        code = one(x, &rows[i]);
        if (code == SQLITE_DONE) code = SQLITE_OK;
    }
    return end_change(x, code, begun, err);
}

kv_status kv_index_put(kv_index *x, const kv_index_row *rows, size_t n, kv_error *err) {
    return change(x, put_row, rows, n, err);
}

kv_status kv_index_remove(kv_index *x, const kv_index_row *rows, size_t n, kv_error *err) {
    return change(x, remove_row, rows, n, err);
}

kv_status kv_index_add_places(kv_index *x, const uint64_t *kept, const uint64_t *hits, kv_error *err) {
    pthread_mutex_lock(&x->mutex);
    int code = exec(x, "BEGIN IMMEDIATE");
    bool begun = code == SQLITE_OK;
    for (int k = 0; k < KV_PLACE_COUNT && code == SQLITE_OK; k++) {
        if (!kept[k] && !hits[k]) continue;
        sqlite3_bind_int(x->add_place, 1, k);
        sqlite3_bind_int64(x->add_place, 2, (sqlite3_int64)kept[k]);
        sqlite3_bind_int64(x->add_place, 3, (sqlite3_int64)hits[k]);
        code = sqlite3_step(x->add_place);
        sqlite3_reset(x->add_place);
        if (code == SQLITE_DONE) code = SQLITE_OK;
    }
    return end_change(x, code, begun, err);
}

kv_status kv_index_get_places(kv_index *x, uint64_t *kept, uint64_t *hits, kv_error *err) {
    pthread_mutex_lock(&x->mutex);
    sqlite3_stmt *q = NULL;
    memset(kept, 0, KV_PLACE_COUNT * sizeof *kept);
    memset(hits, 0, KV_PLACE_COUNT * sizeof *hits);
    int code = sqlite3_prepare_v2(x->db, "SELECT kind, kept, hits FROM place", -1, &q, NULL);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(q);
        if (code != SQLITE_ROW) break;
        int kind = sqlite3_column_int(q, 0);
        if (kind < 0 || kind >= KV_PLACE_COUNT) continue;
        (void)column_uint(&kept[kind], q, 1, UINT64_MAX / 2);
        (void)column_uint(&hits[kind], q, 2, UINT64_MAX / 2);
    }
    kv_status status = code == SQLITE_DONE ? KV_OK : failed(x, code, "read", err);
    sqlite3_finalize(q);
    pthread_mutex_unlock(&x->mutex);
    return status;
}
