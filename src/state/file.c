/* The file behind state.h.
 *
 *   response  id, scope (key), previous, created, used (Unix seconds), bytes, n_shared, object, input, tokens
 *   item      which response has an item of this id
 *
 * user_version is the layout's number. One connection, used under the mutex of kv_stored; other processes may have the
 * same file open.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "os/files.h"
#include "os/machine.h"
#include "state/stored_private.h"

enum { LAYOUT = 1, BUSY_MS = 2000 };
#define WAL_LIMIT "4194304" /* bytes that the log keeps of its file after a checkpoint */

static const char *const ends[3] = {"", "-wal", "-shm"};

static const char *const schema =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS response("
    " id TEXT NOT NULL, scope TEXT NOT NULL, previous TEXT, created INTEGER NOT NULL, used INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, n_shared INTEGER NOT NULL, object BLOB NOT NULL, input BLOB NOT NULL, tokens BLOB NOT "
    "NULL,"
    " PRIMARY KEY(scope, id));"
    "CREATE INDEX IF NOT EXISTS response_use ON response(used, bytes);"
    "CREATE TABLE IF NOT EXISTS item("
    " scope TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL,"
    " PRIMARY KEY(scope, id, response),"
    " FOREIGN KEY(scope, response) REFERENCES response(scope, id) ON DELETE CASCADE) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS item_response ON item(scope, response);"
    "PRAGMA user_version=1;"
    "COMMIT";
_Static_assert(LAYOUT == 1, "the schema's user_version is the layout's number");

static void path_of(kv_buf *out, const kv_stored *s, const char *middle, const char *end) {
    kv_buf_clear(out);
    kv_buf_addf(out, "%s/" KV_STORED_FILE "%s%s", s->dir, middle, end);
}

/* Our statements are right, so that a table or column that is not there is the file's fault. */
static bool is_damage(int code, sqlite3 *db) {
    code &= 0xff;
    if (code == SQLITE_ERROR) return db && strncmp(sqlite3_errmsg(db), "no such ", 8) == 0;
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_MISMATCH;
}

static int read_version(int *version, sqlite3 *db) {
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &q, NULL);
    if (code == SQLITE_OK) code = sqlite3_step(q);
    if (code == SQLITE_ROW) {
        *version = sqlite3_column_int(q, 0);
        code = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return code;
}

/* SQLITE_OK, an error, or SQLITE_DONE for a file of a newer layout. */
static int set_up(sqlite3 *db) {
    int version = 0;
    sqlite3_busy_timeout(db, BUSY_MS);
    /* auto_vacuum has to stand before the first table. What is erased is overwritten with zeros. */
    int code = sqlite3_exec(db,
                            "PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                            "PRAGMA journal_size_limit=" WAL_LIMIT "; PRAGMA secure_delete=ON; PRAGMA foreign_keys=ON;"
                            "PRAGMA cache_size=-2048; PRAGMA temp_store=MEMORY",
                            NULL, NULL, NULL);
    if (code == SQLITE_OK) code = read_version(&version, db);
    if (code != SQLITE_OK || version == LAYOUT) return code;
    if (version > LAYOUT) return SQLITE_DONE;
    return sqlite3_exec(db, schema, NULL, NULL, NULL);
}

static void use_memory(kv_stored *s, const char *why) {
    KV_WARN("responses are kept in memory only, until the server ends: %s", why);
    s->in_memory = true;
    KV_CHECK(sqlite3_open(":memory:", &s->db) == SQLITE_OK && set_up(s->db) == SQLITE_OK);
}

static void put_aside(const kv_stored *s, const char *why) {
    const kv_files *f = kv_files_real();
    kv_buf from = {0}, to = {0};
    for (int i = 0; i < 3; i++) {
        path_of(&from, s, "", ends[i]);
        path_of(&to, s, ".damaged", ends[i]);
        (void)f->remove(f, to.data);
        int code = f->rename(f, from.data, to.data);
        if (i == 0 && code == 0)
            KV_WARN("%s is damaged (%s): put aside as %s, stored responses begin anew", from.data, why, to.data);
    }
    kv_buf_free(&from);
    kv_buf_free(&to);
}

void kv_stored_forget_damaged(const kv_stored *s) {
    const kv_files *f = kv_files_real();
    kv_buf path = {0};
    for (int i = 0; s->dir && i < 3; i++) {
        path_of(&path, s, ".damaged", ends[i]);
        (void)f->remove(f, path.data);
    }
    kv_buf_free(&path);
}

static int open_file(kv_stored *s) {
    const kv_files *f = kv_files_real();
    kv_buf path = {0};
    path_of(&path, s, "", "");
    int fd = f->open(f, path.data, KV_OPEN_CREATE); /* SQLite gives its other files this one's mode */
    if (fd >= 0) f->close(f, fd);
    int code =
        sqlite3_open_v2(path.data, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL);
    if (code == SQLITE_OK) code = set_up(s->db);
    kv_buf_free(&path);
    return code;
}

/* A file, or memory: s->db is there afterwards. */
static void connect_file(kv_stored *s) {
    kv_error err;
    if (kv_dir_make(s->dir, &err) != KV_OK) {
        use_memory(s, err.message);
        return;
    }
    for (int attempt = 0;; attempt++) {
        int code = open_file(s);
        if (code == SQLITE_OK) return;
        bool damaged = is_damage(code, s->db);
        char why[200];
        snprintf(why, sizeof why, "%s", s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(code));
        kv_stored_disconnect(s);
        if (code == SQLITE_DONE) {
            use_memory(s, KV_STORED_FILE " was written by a newer kvasir, and is left alone");
            return;
        }
        if (attempt > 0 || !damaged) {
            kv_buf line = {0};
            kv_buf_addf(&line, "%s/" KV_STORED_FILE ": %s", s->dir, why);
            use_memory(s, line.data);
            kv_buf_free(&line);
            return;
        }
        put_aside(s, why);
    }
}

void kv_stored_connect(kv_stored *s, bool make) {
    if (s->db) return;
    if (!s->dir) {
        s->in_memory = true;
        KV_CHECK(sqlite3_open(":memory:", &s->db) == SQLITE_OK && set_up(s->db) == SQLITE_OK);
        return;
    }
    kv_file_info info;
    kv_buf path = {0};
    path_of(&path, s, "", "");
    bool there = kv_files_real()->stat(kv_files_real(), path.data, &info) == 0;
    kv_buf_free(&path);
    if (there || make) connect_file(s);
}

bool kv_stored_heal(kv_stored *s, int code) {
    if (s->in_memory || !is_damage(code, s->db)) return false;
    char why[200];
    snprintf(why, sizeof why, "%s", sqlite3_errmsg(s->db));
    kv_stored_disconnect(s);
    put_aside(s, why);
    connect_file(s);
    return true;
}

void kv_stored_disconnect(kv_stored *s) {
    sqlite3_close(s->db); /* the last connection takes the log into the file */
    s->db = NULL;
}
