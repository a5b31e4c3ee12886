#include "store/spellings.h"

#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "os/files.h"

enum { LAYOUT = 1, BUSY_MS = 250, PAGE = 4096 };

#define ROW_BYTES ((int64_t)96) /* a row's keys, numbers and part of the pages */
#define WAL_MOST  (256 << 10)   /* bytes after which the log goes into the file */
/* One change: each row may touch three pages of its own (table and two indexes), which stand in the log, then in the
 * file: less than KV_SPELLINGS_GROWTH together. */
#define CHANGE_ROWS  64
#define CHANGE_BYTES (96 << 10)

typedef struct touch {
    kv_hash ns, key;
    int64_t now;
} touch;

struct kv_spellings {
    pthread_mutex_t mutex; /* guards the next three lines; the rest is for whoever is inside */
    pthread_cond_t left;
    bool inside;             /* somebody is */
    bool stuck;              /* and for so long that others do not wait */
    kv_spellings_config cfg; /* cfg.dir is owned */
    sqlite3 *db;             /* NULL while there is neither a file nor anything to put into one */
    sqlite3_stmt *get;
    bool in_memory;
    int64_t bytes; /* of all rows, as far as this process knows */
    int wal_pages;
    touch touched[CHANGE_ROWS]; /* uses that are not in the file yet */
    int n_touched;
};

#define WAIT_MS 250 /* for who is inside, mostly microseconds: longer, and a drive hangs */

/* One thread at a time. patient: however long that takes. False: not now. */
static bool enter(kv_spellings *s, bool patient) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WAIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&s->mutex);
    while (s->inside && (patient || !s->stuck)) {
        if (patient) pthread_cond_wait(&s->left, &s->mutex);
        else if (pthread_cond_timedwait(&s->left, &s->mutex, &until) == ETIMEDOUT && s->inside) s->stuck = true;
    }
    bool mine = !s->inside;
    if (mine) s->inside = true;
    pthread_mutex_unlock(&s->mutex);
    return mine;
}

static void leave(kv_spellings *s) {
    pthread_mutex_lock(&s->mutex);
    s->inside = s->stuck = false;
    pthread_cond_broadcast(&s->left);
    pthread_mutex_unlock(&s->mutex);
}

static int64_t now_of(const kv_spellings *s) {
    return s->cfg.now ? s->cfg.now(s->cfg.ctx) : kv_wall_seconds();
}

/* ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_spellings_paths(char *paths[3], const char *dir) {
    static const char *const ends[3] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        kv_buf b = {0};
        kv_buf_addf(&b, "%s/" KV_SPELLINGS_FILE "%s", dir, ends[i]);
        paths[i] = kv_buf_take(&b);
    }
}

static int exec(kv_spellings *s, const char *sql) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL);
}

static int get_int(int64_t *out, kv_spellings *s, const char *sql) {
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(s->db, sql, -1, &q, NULL);
    if (code == SQLITE_OK) code = sqlite3_step(q);
    if (code == SQLITE_ROW) {
        *out = sqlite3_column_int64(q, 0);
        code = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return code;
}

static int on_wal(void *ctx, sqlite3 *db, const char *name, int pages) {
    (void)db, (void)name;
    ((kv_spellings *)ctx)->wal_pages = pages;
    return SQLITE_OK;
}

static const char *const schema =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS spelling("
    " ns BLOB NOT NULL, key BLOB NOT NULL, base BLOB NOT NULL, text BLOB NOT NULL, bytes INTEGER NOT NULL,"
    " used INTEGER NOT NULL, PRIMARY KEY(ns, key));"
    "CREATE INDEX IF NOT EXISTS spelling_used ON spelling(used);"
    "PRAGMA user_version=1;"
    "COMMIT";
_Static_assert(LAYOUT == 1, "the schema's user_version is the layout's number");

/* SQLITE_OK, an error, or SQLITE_DONE for a file of a newer layout. */
static int set_up(kv_spellings *s) {
    int64_t version = 0, bytes = 0;
    sqlite3_busy_timeout(s->db, BUSY_MS);
    /* What is erased is overwritten with zeros, and its pages go back to the file system. */
    int code = exec(s, "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;"
                       "PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON; PRAGMA cache_size=-1024;"
                       "PRAGMA temp_store=MEMORY");
    if (code == SQLITE_OK) code = get_int(&version, s, "PRAGMA user_version");
    if (code == SQLITE_OK && version > LAYOUT) return SQLITE_DONE;
    if (code == SQLITE_OK && version != LAYOUT) code = exec(s, schema);
    if (code != SQLITE_OK) return code;
    kv_buf sql = {0};
    kv_buf_addf(&sql, "PRAGMA max_page_count=%llu", (unsigned long long)(s->cfg.max_bytes / PAGE));
    code = exec(s, sql.data); /* a file that is longer already stays so long, until rows went */
    kv_buf_free(&sql);
    if (code == SQLITE_OK && !s->in_memory) (void)exec(s, "PRAGMA wal_checkpoint(TRUNCATE)"); /* what a crash left */
    sqlite3_wal_autocheckpoint(s->db, 0); /* also takes the hook's place: the hook comes after */
    sqlite3_wal_hook(s->db, on_wal, s);
    s->wal_pages = 0;
    if (code == SQLITE_OK)
        code = sqlite3_prepare_v3(s->db, "SELECT text, used FROM spelling WHERE ns=? AND key=?", -1,
                                  SQLITE_PREPARE_PERSISTENT, &s->get, NULL);
    if (code == SQLITE_OK) code = get_int(&bytes, s, "SELECT coalesce(sum(bytes), 0) FROM spelling");
    s->bytes = bytes;
    return code;
}

static void disconnect(kv_spellings *s) {
    sqlite3_finalize(s->get);
    sqlite3_close(s->db); /* the last connection takes the log into the file */
    s->get = NULL;
    s->db = NULL;
}

static void use_memory(kv_spellings *s) {
    s->in_memory = true;
    KV_CHECK(sqlite3_open(":memory:", &s->db) == SQLITE_OK && set_up(s) == SQLITE_OK);
}

/* Statements are right, so that a table or column that is not there is the file's fault. */
static bool is_damage(int code) {
    code &= 0xff;
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_MISMATCH || code == SQLITE_ERROR;
}

static void delete_files(const kv_spellings *s) {
    const kv_files *f = kv_files_real();
    char *paths[3];
    kv_spellings_paths(paths, s->cfg.dir);
    for (int i = 2; i >= 0; i--) {
        (void)f->remove(f, paths[i]);
        free(paths[i]);
    }
}

static int open_file(kv_spellings *s, const char *path) {
    const kv_files *f = kv_files_real();
    int fd = f->open(f, path, KV_OPEN_CREATE); /* SQLite gives its other files this one's mode */
    if (fd >= 0) f->close(f, fd);
    int code = sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL);
    return code == SQLITE_OK ? set_up(s) : code;
}

/* A file, or memory: s->db is there afterwards. */
static void connect_file(kv_spellings *s, const char *path) {
    for (int tries = 0; tries < 2; tries++) {
        int code = open_file(s, path);
        if (code == SQLITE_OK) return;
        KV_WARN("%s: %s%s", path, code == SQLITE_DONE ? "written by a newer kvasir" : sqlite3_errmsg(s->db),
                is_damage(code) && !tries ? "; begun anew" : "; spellings are kept in memory until the server ends");
        disconnect(s);
        if (!is_damage(code)) break;
        delete_files(s);
    }
    use_memory(s);
}

/* make: also where there is no file yet. False: nothing is there to be read. */
static bool connect(kv_spellings *s, bool make) {
    if (s->db) return true;
    if (!s->cfg.dir) {
        if (make) use_memory(s);
        return make;
    }
    kv_file_info info;
    char *paths[3];
    kv_spellings_paths(paths, s->cfg.dir);
    bool there = kv_files_real()->stat(kv_files_real(), paths[0], &info) == 0;
    if (there && !info.is_mine) use_memory(s);
    else if (there || make) connect_file(s, paths[0]);
    for (int i = 0; i < 3; i++) free(paths[i]);
    return s->db != NULL;
}

/* The connection after an error: a damaged file is begun anew with the next call. */
static void after(kv_spellings *s, int code) {
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
    if (!sqlite3_get_autocommit(s->db)) (void)exec(s, "ROLLBACK");
    if (s->in_memory || (code & 0xff) == SQLITE_ERROR || !is_damage(code)) return;
    KV_WARN(KV_SPELLINGS_FILE ": %s; begun anew", sqlite3_errstr(code));
    disconnect(s);
    delete_files(s);
}

/* ── life ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_spellings *kv_spellings_new(const kv_spellings_config *cfg) {
    kv_spellings *s = kv_alloc(sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->left, NULL);
    s->cfg = *cfg;
    s->cfg.dir = kv_strdup(cfg->dir);
    if (s->cfg.max_bytes < KV_SPELLINGS_MIN) s->cfg.max_bytes = KV_SPELLINGS_MIN;
    return s;
}

/* ── statements ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void bind_hash(sqlite3_stmt *q, int i, const kv_hash *h) {
    sqlite3_bind_blob(q, i, h, (int)sizeof *h, SQLITE_STATIC);
}

typedef struct statement {
    sqlite3_stmt *q;
    int code;
} statement;

static statement prepare(kv_spellings *s, const char *sql) {
    statement st = {NULL, SQLITE_OK};
    st.code = sqlite3_prepare_v2(s->db, sql, -1, &st.q, NULL);
    return st;
}

/* Runs it, and again with other values. SQLITE_OK. */
static int run(statement *st) {
    if (st->code != SQLITE_OK) return st->code;
    int code = sqlite3_step(st->q);
    sqlite3_reset(st->q);
    return code == SQLITE_DONE || code == SQLITE_ROW ? SQLITE_OK : code;
}

/* The log does not grow past its bound; while a reader in another process holds it, the next change tries again. */
static void shorten_wal(kv_spellings *s, bool now) {
    if (s->in_memory || (!now && s->wal_pages * PAGE <= WAL_MOST)) return;
    if (sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) == SQLITE_OK) s->wal_pages = 0;
}

/* What one change is made of. */
typedef struct change {
    const kv_hash *base, *ns; /* rows to be put, or with `where` a namespace or a base to erase */
    const kv_spelling_row *rows;
    size_t n;
    const char *where, *order; /* rows that go; NULL: none */
    int64_t before, most;      /* of `where`; bytes that are to go */
    int64_t n_gone;
} change;

static int flush_touched(kv_spellings *s) {
    if (!s->n_touched) return SQLITE_OK;
    statement st = prepare(s, "UPDATE spelling SET used=max(used, ?) WHERE ns=? AND key=?");
    int code = st.code;
    for (int i = 0; i < s->n_touched && code == SQLITE_OK; i++) {
        sqlite3_bind_int64(st.q, 1, s->touched[i].now);
        bind_hash(st.q, 2, &s->touched[i].ns);
        bind_hash(st.q, 3, &s->touched[i].key);
        code = run(&st);
    }
    sqlite3_finalize(st.q);
    return code;
}

/* Takes a row out that is to be replaced. */
static int take_out(kv_spellings *s, statement *del, const kv_hash *ns, const kv_hash *key) {
    bind_hash(del->q, 1, ns);
    bind_hash(del->q, 2, key);
    if (sqlite3_step(del->q) == SQLITE_ROW) s->bytes -= sqlite3_column_int64(del->q, 0);
    return sqlite3_reset(del->q);
}

static int insert(kv_spellings *s, const change *c) {
    statement del = prepare(s, "DELETE FROM spelling WHERE ns=? AND key=? RETURNING bytes");
    statement put = prepare(s, "INSERT OR IGNORE INTO spelling VALUES(?,?,?,?,?,?)");
    int code = del.code != SQLITE_OK ? del.code : put.code;
    for (size_t i = 0; i < c->n && code == SQLITE_OK; i++) {
        const kv_spelling_row *row = &c->rows[i];
        if (row->n > KV_SPELLINGS_TEXT_MAX) continue;
        if (row->replace) code = take_out(s, &del, c->ns, &row->key);
        bind_hash(put.q, 1, c->ns);
        bind_hash(put.q, 2, &row->key);
        bind_hash(put.q, 3, c->base);
        if (row->n) sqlite3_bind_blob64(put.q, 4, row->text, row->n, SQLITE_STATIC);
        else sqlite3_bind_zeroblob(put.q, 4, 0);
        sqlite3_bind_int64(put.q, 5, (int64_t)row->n + ROW_BYTES);
        sqlite3_bind_int64(put.q, 6, now_of(s));
        if (code == SQLITE_OK) code = run(&put);
        if (code == SQLITE_OK && sqlite3_changes(s->db) > 0) s->bytes += (int64_t)row->n + ROW_BYTES;
    }
    sqlite3_finalize(del.q);
    sqlite3_finalize(put.q);
    return code;
}

/* Some of the rows that are to go. */
static int delete_some(kv_spellings *s, change *c) {
    kv_buf sql = {0};
    kv_buf_addf(
        &sql,
        "DELETE FROM spelling WHERE rowid IN (SELECT row FROM (SELECT row, sum(bytes) OVER (ORDER BY used, row "
        "ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (SELECT rowid AS row, bytes, used FROM spelling WHERE %s "
        "%s LIMIT %d)) WHERE before < ?) RETURNING bytes",
        c->where, c->order, CHANGE_ROWS);
    statement st = prepare(s, sql.data);
    kv_buf_free(&sql);
    if (st.code != SQLITE_OK) return st.code;
    int i = 1, code;
    if (c->ns) bind_hash(st.q, i++, c->ns);
    if (c->before) sqlite3_bind_int64(st.q, i++, c->before);
    sqlite3_bind_int64(st.q, i, c->most < CHANGE_BYTES ? c->most : CHANGE_BYTES);
    while ((code = sqlite3_step(st.q)) == SQLITE_ROW) {
        s->bytes -= sqlite3_column_int64(st.q, 0);
        c->most -= sqlite3_column_int64(st.q, 0);
        c->n_gone++;
    }
    sqlite3_finalize(st.q);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

/* One transaction. SQLITE_BUSY: not now; what erases is done also where nothing is to be had of the budget. */
static int change_once(kv_spellings *s, change *c) {
    bool in_file = !s->in_memory && s->cfg.dir && s->cfg.take;
    bool taken = in_file && s->cfg.take(s->cfg.ctx, KV_SPELLINGS_GROWTH);
    int64_t bytes = s->bytes;
    int code = SQLITE_BUSY;
    if ((!in_file || taken || c->where) && connect(s, !c->where)) {
        code = exec(s, "BEGIN IMMEDIATE");
        if (code == SQLITE_OK) code = flush_touched(s);
        if (code == SQLITE_OK) code = c->where ? delete_some(s, c) : insert(s, c);
        if (code == SQLITE_OK) code = exec(s, "COMMIT");
        if (code == SQLITE_OK) {
            s->n_touched = 0;
        } else {
            if (!sqlite3_get_autocommit(s->db)) (void)exec(s, "ROLLBACK");
            s->bytes = bytes;
        }
        shorten_wal(s, false);
    }
    if (taken) s->cfg.give(s->cfg.ctx, KV_SPELLINGS_GROWTH);
    return code;
}

/* Of rows, within the pages that the main file may have. */
static int64_t bound(const kv_spellings *s) {
    return (int64_t)(s->cfg.max_bytes / 5 * 4);
}

/* The longest unused go, until so many bytes are left. */
static int make_room(kv_spellings *s, int64_t most) {
    int64_t total = 0;
    int code = get_int(&total, s, "SELECT coalesce(sum(bytes), 0) FROM spelling"); /* others may have put and erased */
    if (code == SQLITE_OK) s->bytes = total;
    while (code == SQLITE_OK && s->bytes > most) {
        change c = {.where = "1", .order = "ORDER BY used, rowid", .most = s->bytes - most};
        code = change_once(s, &c);
        if (c.n_gone == 0) break;
    }
    return code;
}

/* ── getting ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void note_use(kv_spellings *s, kv_hash ns, kv_hash key, int64_t used) {
    int64_t now = now_of(s);
    if (now - used < KV_SPELLINGS_TOUCH_S && now >= used) return;
    for (int i = 0; i < s->n_touched; i++)
        if (kv_hash_equal(s->touched[i].key, key) && kv_hash_equal(s->touched[i].ns, ns)) {
            s->touched[i].now = now;
            return;
        }
    if (s->n_touched < CHANGE_ROWS) s->touched[s->n_touched++] = (touch){ns, key, now};
}

bool kv_spellings_get(kv_buf *out, kv_spellings *s, kv_hash ns, kv_hash key) {
    bool found = false;
    kv_buf_clear(out);
    if (!enter(s, false)) return false;
    if (connect(s, false)) {
        bind_hash(s->get, 1, &ns);
        bind_hash(s->get, 2, &key);
        int code = sqlite3_step(s->get);
        if (code == SQLITE_ROW) {
            const void *text = sqlite3_column_blob(s->get, 0);
            int n = sqlite3_column_bytes(s->get, 0);
            if (n > 0) kv_buf_add(out, text, (size_t)n);
            note_use(s, ns, key, sqlite3_column_int64(s->get, 1));
            found = true;
        }
        sqlite3_reset(s->get);
        sqlite3_clear_bindings(s->get);
        after(s, code);
    }
    leave(s);
    return found;
}

/* ── putting ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Pages can run out before the bytes do: rows that do not share them well. */
static int put(kv_spellings *s, change *c) {
    int code = change_once(s, c);
    for (int tries = 0; tries < 4 && (code & 0xff) == SQLITE_FULL && s->db; tries++) {
        code = make_room(s, s->bytes - s->bytes / 8);
        if (code == SQLITE_OK) code = change_once(s, c);
    }
    if (code == SQLITE_OK && s->bytes > bound(s)) code = make_room(s, bound(s));
    return code;
}

void kv_spellings_put(kv_spellings *s, kv_hash base, kv_hash ns, const kv_spelling_row *rows, size_t n) {
    if (!enter(s, false)) return;
    for (size_t at = 0; at < n;) {
        size_t k = at, bytes = 0;
        while (k < n && k - at < CHANGE_ROWS && (k == at || bytes + rows[k].n <= CHANGE_BYTES)) bytes += rows[k++].n;
        change c = {.base = &base, .ns = &ns, .rows = rows + at, .n = k - at};
        at = k;
        int code = put(s, &c);
        if (s->db) after(s, code);
        if (code != SQLITE_OK) break;
    }
    leave(s);
}

/* ── erasing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The pages go back, and no log has the texts any more. before: 0 = whenever it was used. */
static uint64_t erase(kv_spellings *s, const char *where, const kv_hash *ns, int64_t before) {
    change c = {.where = where, .order = "", .ns = ns, .before = before};
    (void)enter(s, true);
    if (connect(s, false)) {
        int code = SQLITE_OK;
        for (int64_t gone = -1; code == SQLITE_OK && c.n_gone > gone;) {
            gone = c.n_gone;
            c.most = INT64_MAX;
            code = change_once(s, &c);
        }
        if (code == SQLITE_OK && c.n_gone > 0) {
            (void)exec(s, "PRAGMA incremental_vacuum");
            shorten_wal(s, true);
        }
        if (code != SQLITE_OK) KV_WARN("spellings could not be erased: %s", sqlite3_errmsg(s->db));
        after(s, code);
    }
    leave(s);
    return (uint64_t)c.n_gone;
}

uint64_t kv_spellings_erase(kv_spellings *s, kv_hash ns) {
    return erase(s, "ns=?", &ns, 0);
}

uint64_t kv_spellings_erase_model(kv_spellings *s, kv_hash base) {
    return erase(s, "base=?", &base, 0);
}

uint64_t kv_spellings_erase_old(kv_spellings *s, const kv_hash *ns, int64_t before) {
    if (before <= 0) return 0;
    return ns ? erase(s, "ns=? AND used<?", ns, before) : erase(s, "used<?", NULL, before);
}

uint64_t kv_spellings_erase_all(kv_spellings *s) {
    return erase(s, "1", NULL, 0);
}

void kv_spellings_free(kv_spellings *s) {
    if (!s) return;
    if (s->db && s->n_touched) {
        change nothing = {0};
        int code = change_once(s, &nothing);
        if (s->db) after(s, code);
    }
    if (s->db) disconnect(s);
    pthread_cond_destroy(&s->left);
    pthread_mutex_destroy(&s->mutex);
    free((char *)s->cfg.dir);
    free(s);
}

void kv_spellings_get_stats(kv_spellings_stats *out, kv_spellings *s) {
    int64_t rows = 0, bytes = 0;
    *out = (kv_spellings_stats){0};
    (void)enter(s, true);
    if (connect(s, false)) {
        int code = get_int(&rows, s, "SELECT count(*) FROM spelling");
        if (code == SQLITE_OK) code = get_int(&bytes, s, "SELECT coalesce(sum(bytes), 0) FROM spelling");
        if (code == SQLITE_OK) *out = (kv_spellings_stats){(uint64_t)rows, (uint64_t)bytes, false};
        after(s, code);
    }
    out->in_memory = s->in_memory || !s->cfg.dir;
    leave(s);
}
