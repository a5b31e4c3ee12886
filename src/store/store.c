#include "store/store.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/store_private.h"

/* ── the index, from the store's side ──────────────────────────────────────────────────────────────────────────── */

/* Rows in one change. Each may touch a page of its own, so that half of the room is the WAL's growth, and a quarter
 * what the WAL may keep (kv_index_open); the rest is for the main file. */
static size_t rows_a_change(const kv_store *s) {
    return (size_t)(s->index_room / 8192);
}

static void index_failed(kv_store *s, kv_status status, const kv_error *err) {
    atomic_fetch_add(&s->n_faults[KV_STORE_FAULT_INDEX], 1);
    if (!atomic_exchange(&s->faulty[KV_STORE_FAULT_INDEX], true))
        KV_WARN("%s; the cache works without it (said once)", err->message);
    if (status != KV_CORRUPT) return;
    /* Made anew; every row is to be written again. */
    kv_index_close(s->index);
    s->index = NULL;
    kv_index_delete(s->f, s->cfg.dir);
    if (kv_index_open(&s->index, s->cfg.dir, false, s->index_room / 4, NULL) != KV_OK) return;
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->table.n_slots; i++)
        if (s->table.rows[i].kind) s->table.rows[i].flags |= KV_ROW_USED;
    s->n_used = s->table.n_rows;
    pthread_mutex_unlock(&s->mutex);
}

static void mark_known(kv_store *s, const kv_index_row *rows, size_t n) {
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < n; i++) {
        uint32_t k = kv_table_find(&s->table, rows[i].ns, rows[i].row.key, rows[i].row.kind);
        kv_table_row *r = k == KV_NO_ROW ? NULL : &s->table.rows[k];
        if (!r || r->last_used != rows[i].row.last_used || r->hits != rows[i].row.hits) continue; /* used meanwhile */
        if (r->flags & KV_ROW_USED && s->n_used) s->n_used--;
        r->flags &= (uint8_t)~KV_ROW_USED;
    }
    pthread_mutex_unlock(&s->mutex);
}

static int by_key(const void *a, const void *b) {
    return memcmp(&((const kv_index_row *)a)->row.key, &((const kv_index_row *)b)->row.key, sizeof(kv_hash));
}

void kv_store_index_put(kv_store *s, kv_index_row *rows, size_t n) {
    kv_error err;
    pthread_mutex_lock(&s->index_mutex);
    qsort(rows, n, sizeof *rows, by_key); /* neighbours share pages */
    for (size_t at = 0; s->index && at < n;) {
        size_t part = n - at < rows_a_change(s) ? n - at : rows_a_change(s);
        if (!kv_accounts_index_may_grow(&s->acc)) break; /* no room to grow: the rows are found at the next start */
        kv_status status = kv_index_put(s->index, rows + at, part, &err);
        if (status != KV_OK) {
            index_failed(s, status, &err);
            break;
        }
        kv_store_went_well(s, KV_STORE_FAULT_INDEX);
        mark_known(s, rows + at, part);
        at += part;
    }
    pthread_mutex_unlock(&s->index_mutex);
}

void kv_store_index_remove(kv_store *s, const kv_index_row *rows, size_t n) {
    kv_error err;
    if (s->cfg.read_only) return;
    pthread_mutex_lock(&s->index_mutex);
    for (size_t at = 0; s->index && at < n;) {
        size_t part = n - at < rows_a_change(s) ? n - at : rows_a_change(s);
        if (!kv_accounts_index_may_grow(&s->acc)) break; /* a row without a file goes at the next start */
        kv_status status = kv_index_remove(s->index, rows + at, part, &err);
        if (status != KV_OK) {
            index_failed(s, status, &err);
            break;
        }
        at += part;
    }
    pthread_mutex_unlock(&s->index_mutex);
}

/* What the index does not know of the counts by kind of position. */
static void flush_places(kv_store *s) {
    kv_error err;
    uint64_t kept[KV_PLACE_COUNT], hit[KV_PLACE_COUNT], any = 0;
    pthread_mutex_lock(&s->index_mutex);
    pthread_mutex_lock(&s->mutex);
    memcpy(kept, s->new_kept, sizeof kept);
    memcpy(hit, s->new_hit, sizeof hit);
    for (int k = 0; k < KV_PLACE_COUNT; k++) any |= kept[k] | hit[k];
    pthread_mutex_unlock(&s->mutex);
    kv_status status = KV_BUSY;
    if (any && s->index && kv_accounts_index_may_grow(&s->acc)) {
        status = kv_index_add_places(s->index, kept, hit, &err);
        if (status != KV_OK) index_failed(s, status, &err);
    }
    pthread_mutex_lock(&s->mutex);
    for (int k = 0; k < KV_PLACE_COUNT && status == KV_OK; k++) { /* else the next flush tries again */
        s->new_kept[k] -= kept[k];
        s->new_hit[k] -= hit[k];
    }
    pthread_mutex_unlock(&s->mutex);
    pthread_mutex_unlock(&s->index_mutex);
}

void kv_store_index_flush(kv_store *s) {
    kv_index_row *rows = NULL;
    size_t n = 0, cap = 0;
    if (s->cfg.read_only) return;
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; s->n_used && i < s->table.n_slots; i++) {
        const kv_table_row *r = &s->table.rows[i];
        if (!r->kind || !(r->flags & KV_ROW_USED) || r->flags & KV_ROW_PENDING) continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 256;
            rows = kv_realloc(rows, cap * sizeof *rows);
        }
        rows[n++] = (kv_index_row){*r, s->table.ns[r->ns]};
    }
    if (!n) s->n_used = 0;
    pthread_mutex_unlock(&s->mutex);
    if (n) kv_store_index_put(s, rows, n);
    free(rows);
    flush_places(s);
}

static void index_row(void *ctx, kv_table_row *row, kv_hash ns) {
    kv_store *s = ctx;
    int64_t now = kv_store_now(s);
    if (row->last_used > now) row->last_used = (uint32_t)now; /* the clock was set back */
    if (!kv_table_ns(&row->ns, &s->table, ns)) return;
    if (kv_table_find(&s->table, ns, row->key, row->kind) == KV_NO_ROW) kv_table_add(&s->table, row);
}

/* What lies there of an index is counted, also when it is not ours to use: one that could not be deleted, say. */
static void count_index(kv_store *s, uint64_t room) {
    char *paths[3];
    kv_index_paths(paths, s->cfg.dir);
    kv_accounts_with_index(&s->acc, (const char *const *)paths, room);
    for (int i = 0; i < 3; i++) free(paths[i]);
}

/* Opens the index and brings its rows into the table; damaged, it is begun anew, locked, the files are read instead. */
static void open_index(kv_store *s) {
    kv_error err;
    if (s->cfg.budget < KV_STORE_INDEX_MIN && !s->cfg.read_only) {
        kv_index_delete(s->f, s->cfg.dir); /* of a larger budget; its bytes would count */
        count_index(s, 0);
        return;
    }
    for (int tries = 0; tries < 2; tries++) {
        kv_status status = kv_index_open(&s->index, s->cfg.dir, s->cfg.read_only, s->index_room / 4, &err);
        if (status == KV_OK) status = kv_index_load(s->index, index_row, s, &err);
        if (status == KV_OK) status = kv_index_get_places(s->index, s->places_kept, s->places_hit, &err);
        if (status == KV_OK) break;
        kv_table_free(&s->table);
        kv_index_close(s->index);
        s->index = NULL;
        if (s->cfg.read_only) return;
        atomic_fetch_add(&s->n_faults[KV_STORE_FAULT_INDEX], 1);
        KV_WARN("%s; it is rebuilt from the files", err.message);
        if (status == KV_CORRUPT) kv_index_delete(s->f, s->cfg.dir);
    }
    count_index(s, s->index ? s->index_room : 0);
}

/* ── spellings ─────────────────────────────────────────────────────────────────────────────────────────────────── */

#define SPELLINGS_SHARE 128 /* of the budget, at most so many bytes */
#define SPELLINGS_MOST  (16ull << 20)

static bool take_for_spellings(void *ctx, uint64_t n) {
    return kv_accounts_take(&((kv_store *)ctx)->acc, n) == 0;
}

static void give_back(void *ctx, uint64_t n) {
    kv_accounts_settle(&((kv_store *)ctx)->acc, n, 0, 0); /* the files are measured as they are */
}

static int64_t spellings_now(void *ctx) {
    return kv_store_now(ctx);
}

static void open_spellings(kv_store *s) {
    bool in_memory = s->cfg.read_only || s->cfg.budget < KV_STORE_INDEX_MIN;
    uint64_t share = s->cfg.budget / SPELLINGS_SHARE;
    char *paths[3];
    kv_spellings_paths(paths, s->cfg.dir);
    for (int i = 2; i >= 0; i--)
        if (in_memory && !s->cfg.read_only) (void)s->f->remove(s->f, paths[i]); /* of a larger budget */
    kv_accounts_with_spellings(&s->acc, (const char *const *)paths);
    for (int i = 0; i < 3; i++) free(paths[i]);
    s->spellings = kv_spellings_new(&(kv_spellings_config){.dir = in_memory ? NULL : s->cfg.dir,
                                                           .max_bytes = share < SPELLINGS_MOST ? share : SPELLINGS_MOST,
                                                           .take = take_for_spellings,
                                                           .give = give_back,
                                                           .now = spellings_now,
                                                           .ctx = s});
}

kv_spellings *kv_store_spellings(kv_store *s) {
    return s->spellings;
}

/* ── open and close ────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_store *new_store(const kv_store_config *cfg) {
    kv_store *s = kv_alloc(sizeof *s);
    s->cfg = *cfg;
    char *dir = kv_strdup(cfg->dir);
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--) dir[n - 1] = '\0';
    s->cfg.dir = dir;
    s->f = cfg->files ? cfg->files : kv_files_real();
    s->table.by_use = cfg->order == KV_STORE_BY_USE;
    s->alive_fd = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->index_mutex, NULL);
    pthread_mutex_init(&s->quarantine_mutex, NULL);
    static atomic_uint_fast64_t openings; /* two stores of one process must differ too */
    struct {
        int64_t pid, wall, us;
        uint64_t n;
    } seed = {getpid(), kv_wall_seconds(), kv_now_us(kv_clock_real()), atomic_fetch_add(&openings, 1)};
    s->id = kv_hash_bytes(&seed, sizeof seed);
    kv_accounts_init(&s->acc, s->f, s->cfg.dir, cfg->budget, s->id, !cfg->read_only);
    uint64_t last = kv_accounts_peek(&s->acc);
    if (cfg->budget == KV_STORE_BUDGET_LAST && last >= KV_STORE_MIN) s->cfg.budget = s->acc.budget = last;
    uint64_t eighth = s->cfg.budget / 8;
    s->quarantine_max = eighth < KV_STORE_QUARANTINE_MAX ? eighth : KV_STORE_QUARANTINE_MAX;
    uint64_t room = s->cfg.budget / 256; /* at least half a MiB, at most 8 */
    s->index_room = room < 512u << 10 ? 512u << 10 : room > 8u << 20 ? 8u << 20 : room;
    return s;
}

static kv_status make_folders(kv_store *s, kv_error *err) {
    static const char *const names[] = {"", "/ns", "/tmp"};
    kv_file_info info;
    kv_path path;
    for (int i = 0; i < 3; i++) {
        kv_store_path(&path, s, "%s", names[i]);
        int code = s->cfg.read_only ? 0 : s->f->make_dir(s->f, path.s);
        if (code == 0) code = s->f->stat(s->f, path.s, &info);
        if (code == -ENOENT && s->cfg.read_only) {
            if (i > 0) continue;
            return kv_fail(err, KV_NOT_FOUND, "there is no cache directory %s", path.s);
        }
        if (code != 0) return kv_store_faulted(s, KV_STORE_FAULT_OPEN, code, path.s, err);
        if (!info.is_dir) return kv_fail(err, KV_INVALID, "%s is not a directory", path.s);
        if (!info.is_mine)
            return kv_fail(err, KV_FORBIDDEN, "%s belongs to another user; choose another --cache-dir", path.s);
    }
    return KV_OK;
}

/* The folders' own names must outlive a power cut before anything published below them can. */
static kv_status sync_folders(kv_store *s, kv_error *err) {
    kv_path dir, parent;
    kv_store_path(&dir, s, "%s", "");
    parent = dir;
    char *slash = strrchr(parent.s, '/');
    if (slash) slash[slash == parent.s] = '\0';
    else strcpy(parent.s, ".");
    (void)s->f->sync_dir(s->f, parent.s); /* may be another user's */
    int code = s->f->sync_dir(s->f, dir.s);
    return code == 0 ? KV_OK : kv_store_faulted(s, KV_STORE_FAULT_SYNC, code, dir.s, err);
}

/* So that backup programs leave the directory out; bford.info/cachedir describes the file. */
static void write_tag(kv_store *s) {
    static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                               "# This directory holds kvasir's cache; it can be deleted while kvasir does not run.\n";
    kv_path path;
    kv_file_info info;
    kv_store_path(&path, s, "/CACHEDIR.TAG");
    if (s->f->stat(s->f, path.s, &info) == -ENOENT)
        (void)kv_store_write_small(s, s->cfg.dir, path.s, text, sizeof text - 1, NULL);
}

static kv_status mark_alive(kv_store *s, kv_error *err) {
    kv_path path;
    char hex[33];
    kv_hash_hex(hex, s->id);
    kv_store_path(&path, s, "/tmp/%s.alive", hex);
    s->alive_fd = s->f->lock(s->f, path.s, true);
    return s->alive_fd < 0 ? kv_store_faulted(s, KV_STORE_FAULT_OPEN, s->alive_fd, path.s, err) : KV_OK;
}

kv_status kv_store_open(kv_store **out, const kv_store_config *cfg, kv_error *err) {
    *out = NULL;
    if (strlen(cfg->dir) == 0 || strlen(cfg->dir) > KV_STORE_DIR_MAX)
        return kv_fail(err, KV_INVALID, "the cache directory's name must have 1 to %d bytes", KV_STORE_DIR_MAX);
    if (!cfg->read_only && cfg->budget < KV_STORE_MIN)
        return kv_fail(err, KV_INVALID, "a disk cache needs at least %llu MiB",
                       (unsigned long long)(KV_STORE_MIN >> 20));
    kv_store *s = new_store(cfg);
    kv_path path;
    int lock = -1;
    kv_status status = make_folders(s, err);
    if (status == KV_OK && !cfg->read_only) status = sync_folders(s, err);
    if (status != KV_OK) goto done;
    if (!cfg->read_only) {
        kv_store_path(&path, s, "/lock"); /* one process at a time opens, and none evicts meanwhile */
        lock = s->f->lock(s->f, path.s, true);
        if (lock < 0) status = kv_store_faulted(s, KV_STORE_FAULT_OPEN, lock, path.s, err);
        else status = mark_alive(s, err);
        if (status != KV_OK) goto done;
    }
    open_index(s);
    open_spellings(s);
    status = kv_store_recover(s, err);
    if (status == KV_OK) kv_accounts_set_day(&s->acc, kv_store_now(s) / 86400);
    if (status != KV_OK || cfg->read_only) goto done;
    uint64_t over = kv_accounts_over(&s->acc);
    if (over) kv_store_evict(s, over, INFINITY, true, true, false, NULL);
    write_tag(s);
    kv_store_index_flush(s);
done:
    if (lock >= 0) s->f->close(s->f, lock);
    if (status == KV_OK) *out = s;
    else kv_store_close(s);
    return status;
}

static void drop_written(kv_store *s) {
    kv_path tmp;
    for (size_t i = 0; i < s->n_written; i++) {
        if (s->written[i].fd >= 0) s->f->close(s->f, s->written[i].fd);
        kv_store_tmp_path(&tmp, s, s->written[i].n);
        (void)s->f->remove(s->f, tmp.s);
    }
    free(s->written);
}

void kv_store_close(kv_store *s) {
    if (!s) return;
    drop_written(s);
    if (s->index) kv_store_index_flush(s);
    kv_index_close(s->index);
    kv_spellings_free(s->spellings);
    if (s->alive_fd >= 0) {
        kv_path path;
        char hex[33];
        kv_accounts_close(&s->acc);
        kv_hash_hex(hex, s->id);
        kv_store_path(&path, s, "/tmp/%s.alive", hex);
        (void)s->f->remove(s->f, path.s);
        s->f->close(s->f, s->alive_fd);
    }
    kv_accounts_free(&s->acc);
    kv_table_free(&s->table);
    for (uint16_t i = 0; i < s->n_dirs; i++) free(s->dirs[i]);
    free(s->dirs);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->index_mutex);
    pthread_mutex_destroy(&s->quarantine_mutex);
    free((char *)s->cfg.dir);
    free(s);
}

/* ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int by_start(const void *a, const void *b) {
    const kv_record_head *x = &((const kv_store_row *)a)->head, *y = &((const kv_store_row *)b)->head;
    if (x->q != y->q) return x->q < y->q ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind);
}

/* ns: NULL = all. */
static void load_rows(kv_store *s, const kv_hash *ns, void (*fn)(void *ctx, const kv_store_row *row), void *ctx) {
    size_t n = 0;
    pthread_mutex_lock(&s->mutex);
    kv_store_row *rows = kv_alloc(s->table.n_rows * sizeof *rows);
    for (uint32_t i = 0; i < s->table.n_slots; i++) {
        const kv_table_row *r = &s->table.rows[i];
        if (!r->kind || r->flags & KV_ROW_PENDING || (ns && !kv_hash_equal(s->table.ns[r->ns], *ns))) continue;
        kv_table_head(&rows[n].head, &s->table, r);
        rows[n].disk_bytes = r->disk;
        rows[n].last_used = r->last_used;
        rows[n].hits = (double)r->hits;
        rows[n++].pinned = r->flags & KV_ROW_PINNED;
    }
    pthread_mutex_unlock(&s->mutex);
    qsort(rows, n, sizeof *rows, by_start);
    for (size_t i = 0; i < n; i++) fn(ctx, &rows[i]);
    free(rows);
}

kv_status kv_store_load(kv_store *s, kv_hash ns, void (*fn)(void *ctx, const kv_store_row *row), void *ctx,
                        kv_error *err) {
    (void)err;
    load_rows(s, &ns, fn, ctx);
    return KV_OK;
}

kv_status kv_store_load_all(kv_store *s, void (*fn)(void *ctx, const kv_store_row *row), void *ctx, kv_error *err) {
    (void)err;
    load_rows(s, NULL, fn, ctx);
    return KV_OK;
}

bool kv_store_has(kv_store *s, const kv_record_head *head) {
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
    bool has = i != KV_NO_ROW && !(s->table.rows[i].flags & KV_ROW_PENDING);
    pthread_mutex_unlock(&s->mutex);
    return has;
}

void kv_store_touch(kv_store *s, const kv_record_head *head, double hits) {
    int64_t now = kv_store_now(s);
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
    if (i != KV_NO_ROW) {
        kv_table_row *r = &s->table.rows[i];
        kv_table_tell(&s->table, now);
        r->hits = hits > 0 ? (float)(hits < 1e6 ? hits : 1e6) : 0;
        r->last_used = (uint32_t)now;
        if (!(r->flags & KV_ROW_USED)) s->n_used++;
        r->flags |= KV_ROW_USED;
        kv_table_changed(&s->table, i);
    }
    pthread_mutex_unlock(&s->mutex);
}

bool kv_store_is_pinned(kv_store *s, const kv_record_head *head) {
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
    bool pinned = i != KV_NO_ROW && s->table.rows[i].flags & KV_ROW_PINNED;
    pthread_mutex_unlock(&s->mutex);
    return pinned;
}

void kv_store_count_place(kv_store *s, kv_place_kind kind, uint64_t n_kept, uint64_t n_hits) {
    pthread_mutex_lock(&s->mutex);
    s->places_kept[kind] += n_kept;
    s->places_hit[kind] += n_hits;
    s->new_kept[kind] += n_kept;
    s->new_hit[kind] += n_hits;
    pthread_mutex_unlock(&s->mutex);
}

void kv_store_get_places(kv_store *s, uint64_t kept[KV_PLACE_COUNT], uint64_t hits[KV_PLACE_COUNT]) {
    pthread_mutex_lock(&s->mutex);
    memcpy(kept, s->places_kept, sizeof s->places_kept);
    memcpy(hits, s->places_hit, sizeof s->places_hit);
    pthread_mutex_unlock(&s->mutex);
}

kv_status kv_store_pin(kv_store *s, const kv_record_head *head, bool pinned, kv_error *err) {
    if (s->cfg.read_only) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    if (!kv_store_has(s, head)) return kv_fail(err, KV_NOT_FOUND, "the record is not in the disk cache");
    kv_path path, pin, dir;
    char hex[33];
    kv_hash_hex(hex, head->ns);
    kv_store_record_path(&path, s, head);
    kv_store_path(&pin, s, "%s.pin", path.s + strlen(s->cfg.dir));
    kv_store_path(&dir, s, "/ns/%s/%02x", hex, (int)(head->key.hi >> 56));
    int code;
    if (pinned) {
        if (kv_accounts_take(&s->acc, KV_STORE_SLACK) != 0)
            return kv_fail(err, KV_NO_MEMORY, "the disk cache has no room for a pin");
        int fd = s->f->open(s->f, pin.s, KV_OPEN_CREATE);
        if (fd >= 0) s->f->close(s->f, fd);
        code = fd >= 0 || fd == -EEXIST ? 0 : fd;
        pthread_mutex_lock(&s->mutex);
        uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
        uint32_t *known = i == KV_NO_ROW ? NULL : &kv_store_dirs(s, s->table.rows[i].ns)->sub[head->key.hi >> 56];
        pthread_mutex_unlock(&s->mutex);
        if (known) kv_store_note_dir(s, known, dir.s);
        kv_accounts_settle(&s->acc, KV_STORE_SLACK, 0, 0);
    } else {
        code = s->f->remove(s->f, pin.s);
        if (code == -ENOENT) code = 0;
    }
    if (code == 0) code = s->f->sync_dir(s->f, dir.s);
    if (code != 0) return kv_store_faulted(s, KV_STORE_FAULT_WRITE, code, pin.s, err);
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
    if (i != KV_NO_ROW) {
        uint8_t flags = s->table.rows[i].flags;
        s->table.rows[i].flags = (uint8_t)(pinned ? flags | KV_ROW_PINNED : flags & ~KV_ROW_PINNED);
        kv_table_changed(&s->table, i);
    }
    pthread_mutex_unlock(&s->mutex);
    return KV_OK;
}

void kv_store_on_gone(kv_store *s, void (*gone)(void *ctx, const kv_record_head *head), void *ctx) {
    s->gone = gone;
    s->gone_ctx = ctx;
}

/* ── namespaces ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A namespace's own folder, counted. */
static kv_status make_ns_folder(kv_path *dir, kv_store *s, kv_hash ns, kv_error *err) {
    kv_path all;
    char hex[33];
    uint16_t number;
    kv_hash_hex(hex, ns);
    kv_store_path(&all, s, "/ns");
    kv_store_path(dir, s, "/ns/%s", hex);
    pthread_mutex_lock(&s->mutex);
    bool ok = kv_table_ns(&number, &s->table, ns);
    kv_ns_dirs *d = ok ? kv_store_dirs(s, number) : NULL;
    pthread_mutex_unlock(&s->mutex);
    if (!ok || kv_accounts_take(&s->acc, KV_STORE_SLACK) != 0)
        return kv_fail(err, KV_NO_MEMORY, "the disk cache is full: no room for %s", dir->s);
    int code = s->f->make_dir(s->f, dir->s);
    if (code == 0) code = s->f->sync_dir(s->f, all.s);
    kv_store_note_dir(s, &s->ns_size, all.s);
    kv_store_note_dir(s, &d->own, dir->s);
    kv_accounts_settle(&s->acc, KV_STORE_SLACK, 0, 0);
    return code == 0 ? KV_OK : kv_store_faulted(s, KV_STORE_FAULT_WRITE, code, dir->s, err);
}

kv_status kv_store_set_about(kv_store *s, kv_hash ns, const char *json, kv_error *err) {
    kv_path dir, path;
    kv_file_info info;
    char hex[33];
    size_t n = strlen(json);
    if (n > KV_STORE_ABOUT_MAX)
        return kv_fail(err, KV_TOO_LARGE, "a namespace's description has %zu bytes, at most %u", n, KV_STORE_ABOUT_MAX);
    kv_hash_hex(hex, ns);
    kv_store_path(&path, s, "/ns/%s/about.json", hex);
    if (s->f->stat(s->f, path.s, &info) == 0) return KV_OK;
    if (s->cfg.read_only) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    kv_status status = make_ns_folder(&dir, s, ns, err);
    return status == KV_OK ? kv_store_write_small(s, dir.s, path.s, json, n, err) : status;
}

static void note_path(kv_path *out, const kv_store *s, kv_hash ns) {
    char hex[33];
    kv_hash_hex(hex, ns);
    kv_store_path(out, s, "/ns/%s/probe.json", hex);
}

kv_status kv_store_set_note(kv_store *s, kv_hash ns, const char *json, kv_error *err) {
    kv_path dir, path;
    kv_file_info old = {0};
    size_t n = json ? strlen(json) : 0;
    note_path(&path, s, ns);
    if (s->cfg.read_only) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    if (n > KV_STORE_ABOUT_MAX)
        return kv_fail(err, KV_TOO_LARGE, "a namespace's note has %zu bytes, at most %u", n, KV_STORE_ABOUT_MAX);
    if (!json) {
        int code = kv_store_remove_small(s, path.s);
        return code == 0 ? KV_OK : kv_store_faulted(s, KV_STORE_FAULT_RENAME, code, path.s, err);
    }
    int there = s->f->stat(s->f, path.s, &old);
    if (there == 0 && !old.is_mine) return kv_fail(err, KV_FORBIDDEN, "%s belongs to another user", path.s);
    /* It is worth more than any one record: without it a new engine build is believed or doubted unseen. */
    kv_status status = kv_store_make_room(s, n + 2 * KV_STORE_SLACK, INFINITY, true, err);
    if (status != KV_OK) return status;
    kv_accounts_settle(&s->acc, n + 2 * KV_STORE_SLACK, 0, 0);
    status = make_ns_folder(&dir, s, ns, err);
    if (status == KV_OK) status = kv_store_write_small(s, dir.s, path.s, json, n, err);
    if (status == KV_OK && there == 0) kv_accounts_settle(&s->acc, 0, -(int64_t)old.disk, 0);
    return status;
}

bool kv_store_get_note(kv_buf *out, kv_store *s, kv_hash ns) {
    kv_path path;
    note_path(&path, s, ns);
    bool ok = kv_store_read_small(out, s, path.s, KV_STORE_ABOUT_MAX);
    if (!ok) kv_buf_clear(out);
    return ok;
}

typedef struct ns_sum {
    kv_hash ns;
    uint64_t bytes, records;
} ns_sum;

kv_status kv_store_namespaces(kv_store *s,
                              void (*fn)(void *ctx, kv_hash ns, const char *about, uint64_t bytes, uint64_t records),
                              void *ctx, kv_error *err) {
    (void)err;
    pthread_mutex_lock(&s->mutex);
    uint16_t n = s->table.n_ns;
    ns_sum *sums = kv_alloc(n * sizeof *sums);
    for (uint16_t i = 0; i < n; i++) sums[i].ns = s->table.ns[i];
    for (uint32_t i = 0; i < s->table.n_slots; i++) {
        const kv_table_row *r = &s->table.rows[i];
        if (!r->kind || r->flags & KV_ROW_PENDING) continue;
        sums[r->ns].bytes += r->disk;
        sums[r->ns].records++;
    }
    pthread_mutex_unlock(&s->mutex);
    kv_buf about = {0};
    for (uint16_t i = 0; i < n; i++) {
        kv_path path;
        char hex[33];
        kv_hash_hex(hex, sums[i].ns);
        kv_store_path(&path, s, "/ns/%s/about.json", hex);
        bool has = kv_store_read_small(&about, s, path.s, KV_STORE_ABOUT_MAX);
        if (has || sums[i].records) fn(ctx, sums[i].ns, has ? kv_buf_str(&about) : "", sums[i].bytes, sums[i].records);
    }
    kv_buf_free(&about);
    free(sums);
    return KV_OK;
}

/* ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_store_get_stats(kv_store_stats *out, kv_store *s) {
    kv_accounts_view view;
    kv_accounts_see(&view, &s->acc);
    memset(out, 0, sizeof *out);
    out->bytes = view.stored + view.reserved + view.index;
    out->budget = s->cfg.budget;
    out->bytes_written_today = view.written_today;
    out->bytes_written = atomic_load(&s->bytes_written);
    out->n_evicted = atomic_load(&s->n_evicted);
    out->n_quarantined = atomic_load(&s->n_quarantined);
    out->n_fsyncs = atomic_load(&s->n_fsyncs);
    for (int i = 0; i < KV_STORE_FAULT_COUNT; i++) out->n_faults[i] = atomic_load(&s->n_faults[i]);
    pthread_mutex_lock(&s->mutex);
    out->records = s->table.n_rows;
    memcpy(out->by_kind_bytes, s->table.bytes_of_kind, sizeof out->by_kind_bytes);
    out->table_bytes = kv_table_bytes(&s->table);
    pthread_mutex_unlock(&s->mutex);
}

void kv_store_check(kv_store *s) {
    pthread_mutex_lock(&s->mutex);
    kv_table_check(&s->table);
    pthread_mutex_unlock(&s->mutex);
}
