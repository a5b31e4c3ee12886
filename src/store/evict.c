/* store/evict.c: what goes when room is needed, when it is too old, or on request.
 *
 *   under the mutex     take rows out, the least worth first; a parent becomes a leaf when its last child is out
 *                       not enough for what it is for? put all back, nothing happened
 *   under no mutex      remove the files; each success takes its bytes off the accounts
 *                       a file that cannot be removed gets its row back, marked stuck
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/store_private.h"

typedef struct victims {
    kv_index_row *rows;
    size_t n, cap;
    uint64_t bytes;
} victims;

double kv_store_worth(uint32_t compute_ms, double hits, uint64_t bytes) {
    double ms = compute_ms ? compute_ms : 0.5;
    return (1.0 + hits) * ms / (bytes ? (double)bytes : 1.0);
}

/* Below this many seconds one idle time is as good as another. */
#define FRESH_S 10.0

double kv_store_fade(int64_t idle_s) {
    return FRESH_S / (FRESH_S + (idle_s > 0 ? (double)idle_s : 0));
}

static void take_victim(victims *v, kv_store *s, uint32_t i) {
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 16;
        v->rows = kv_realloc(v->rows, v->cap * sizeof *v->rows);
    }
    kv_index_row *out = &v->rows[v->n++];
    kv_table_take_out(&out->row, &s->table, i);
    out->ns = s->table.ns[out->row.ns];
    v->bytes += out->row.disk;
}

static void put_back(victims *v, kv_store *s) {
    while (v->n) kv_table_add(&s->table, &v->rows[--v->n].row);
    v->bytes = 0;
}

/* Rows worth less than `limit`, until `want` bytes are together. With the mutex held. */
static void gather(victims *v, kv_store *s, uint64_t want, double limit, bool is_kept, bool partly) {
    int64_t now = kv_store_now(s);
    kv_table_tell(&s->table, now);
    kv_table_rescore(&s->table, now);
    double limit_score = log2(limit) + (is_kept ? KV_TABLE_KEPT : 0);
    if (isinf(limit) || s->table.by_use) limit_score = INFINITY;
    while (v->bytes < want) {
        uint32_t i = kv_table_worst(&s->table);
        if (i == KV_NO_ROW || !(s->table.rows[i].score < limit_score)) break;
        take_victim(v, s, i);
    }
    if (v->bytes < want && !partly) put_back(v, s);
}

/* Rows (of one namespace, or NULL: of all) not used since `before` that nothing hangs on, and what then hangs on
 * nothing. With the mutex held. */
static void gather_old(victims *v, kv_store *s, const kv_hash *ns, int64_t before) {
    for (bool more = true; more;) {
        more = false;
        for (uint32_t k = 0; k < s->table.n_heap;) {
            uint32_t i = s->table.heap[k];
            const kv_table_row *r = &s->table.rows[i];
            if (r->last_used >= before || (ns && !kv_hash_equal(s->table.ns[r->ns], *ns))) {
                k++;
                continue;
            }
            take_victim(v, s, i); /* another row is at k now, or the parent came in somewhere */
            more = true;
        }
    }
}

static bool remove_file(kv_store *s, const kv_record_head *head, uint64_t disk) {
    kv_path path;
    kv_store_record_path(&path, s, head);
    int code = s->f->remove(s->f, path.s);
    if (code == 0) kv_accounts_settle(&s->acc, 0, -(int64_t)disk, 0);
    else if (code != -ENOENT) (void)kv_store_faulted(s, KV_STORE_FAULT_RENAME, code, path.s, NULL);
    return code == 0 || code == -ENOENT; /* another process was first, and took the bytes off */
}

/* By another process, say: the row does not know. */
static bool is_pinned_on_disk(kv_store *s, const kv_record_head *head) {
    kv_path path, pin;
    kv_file_info info;
    kv_store_record_path(&path, s, head);
    kv_store_path(&pin, s, "%s.pin", path.s + strlen(s->cfg.dir));
    return s->f->stat(s->f, pin.s, &info) == 0 && info.is_mine;
}

/* With the mutex held: a record that could not go after all keeps what it hangs on. */
static bool is_needed(kv_store *s, const kv_table_row *row) {
    return row->kind == KV_RECORD_BLOCK && kv_table_has_dependents(&s->table, row);
}

/* Removes what was gathered, leaves first. Under no lock. all: also what another process pinned, or needs. */
static void carry_out(victims *v, kv_store *s, bool all) {
    size_t kept = 0;
    bool any_kept = false;
    for (size_t i = 0; i < v->n; i++) {
        kv_record_head head;
        pthread_mutex_lock(&s->mutex);
        kv_table_head(&head, &s->table, &v->rows[i].row);
        bool needed = !all && any_kept && is_needed(s, &v->rows[i].row);
        pthread_mutex_unlock(&s->mutex);
        bool pinned = !all && !needed && is_pinned_on_disk(s, &head);
        if (!needed && !pinned && remove_file(s, &head, v->rows[i].row.disk)) {
            v->rows[kept++] = v->rows[i];
            continue;
        }
        any_kept = true;
        v->bytes -= v->rows[i].row.disk;
        if (!needed) v->rows[i].row.flags |= pinned ? KV_ROW_PINNED : KV_ROW_STUCK;
        pthread_mutex_lock(&s->mutex);
        if (kv_table_find(&s->table, head.ns, head.key, head.kind) == KV_NO_ROW)
            kv_table_add(&s->table, &v->rows[i].row);
        pthread_mutex_unlock(&s->mutex);
    }
    v->n = kept;
    if (kept) kv_store_went_well(s, KV_STORE_FAULT_RENAME);
    kv_store_index_remove(s, v->rows, v->n);
    for (size_t i = 0; i < v->n && s->gone; i++) {
        kv_record_head head;
        pthread_mutex_lock(&s->mutex);
        kv_table_head(&head, &s->table, &v->rows[i].row);
        pthread_mutex_unlock(&s->mutex);
        s->gone(s->gone_ctx, &head);
    }
}

/* Either really, or only counted and put back. */
static uint64_t finish(victims *v, kv_store *s, bool dry_run, uint64_t *records) {
    if (!dry_run) {
        carry_out(v, s, false);
        atomic_fetch_add(&s->n_evicted, v->n);
    }
    if (records) *records += v->n;
    uint64_t bytes = v->bytes;
    free(v->rows);
    return bytes;
}

uint64_t kv_store_evict(kv_store *s, uint64_t want, double limit, bool is_kept, bool partly, bool dry_run,
                        uint64_t *records) {
    victims v = {0};
    pthread_mutex_lock(&s->mutex);
    gather(&v, s, want, limit, is_kept, partly);
    if (dry_run) {
        uint64_t bytes = v.bytes;
        if (records) *records += v.n;
        put_back(&v, s);
        pthread_mutex_unlock(&s->mutex);
        free(v.rows);
        return bytes;
    }
    pthread_mutex_unlock(&s->mutex);
    return finish(&v, s, false, records);
}

void kv_store_forget(kv_store *s, const kv_record_head *head, bool tell) {
    kv_index_row row;
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
    bool there = i != KV_NO_ROW && !(s->table.rows[i].flags & KV_ROW_PENDING);
    if (there) kv_table_take_out(&row.row, &s->table, i);
    pthread_mutex_unlock(&s->mutex);
    if (!there) return;
    row.ns = head->ns;
    kv_store_index_remove(s, &row, 1);
    if (tell && s->gone) s->gone(s->gone_ctx, head);
}

static void remove_pin(kv_store *s, const kv_record_head *head) {
    kv_path path, pin;
    kv_store_record_path(&path, s, head);
    kv_store_path(&pin, s, "%s.pin", path.s + strlen(s->cfg.dir));
    (void)s->f->remove(s->f, pin.s);
}

kv_status kv_store_remove(kv_store *s, const kv_record_head *head, kv_error *err) {
    if (s->cfg.read_only) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    kv_table_row row = {0};
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, head->ns, head->key, head->kind);
    bool there = i != KV_NO_ROW && !(s->table.rows[i].flags & KV_ROW_PENDING);
    if (there) row = s->table.rows[i];
    pthread_mutex_unlock(&s->mutex);
    if (!there) return kv_fail(err, KV_NOT_FOUND, "the record is not in the disk cache");
    if (!remove_file(s, head, row.disk))
        return kv_fail(err, KV_IO, "the record's file in %s cannot be removed", s->cfg.dir);
    if (row.flags & KV_ROW_PINNED) remove_pin(s, head);
    kv_store_forget(s, head, false);
    return KV_OK;
}

kv_status kv_store_remove_namespace(kv_store *s, kv_hash ns, uint64_t *bytes, uint64_t *records, kv_error *err) {
    victims v = {0};
    *bytes = *records = 0;
    if (s->cfg.read_only) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->table.n_slots; i++) {
        kv_table_row *r = &s->table.rows[i];
        if (r->kind && kv_hash_equal(s->table.ns[r->ns], ns) && !(r->flags & KV_ROW_PENDING)) take_victim(&v, s, i);
    }
    pthread_mutex_unlock(&s->mutex);
    size_t all = v.n;
    for (size_t i = 0; i < v.n; i++) {
        kv_record_head head;
        pthread_mutex_lock(&s->mutex);
        kv_table_head(&head, &s->table, &v.rows[i].row);
        pthread_mutex_unlock(&s->mutex);
        remove_pin(s, &head);
    }
    carry_out(&v, s, true);
    *bytes = v.bytes;
    *records = v.n;
    free(v.rows);
    char hex[33];
    kv_path path;
    kv_hash_hex(hex, ns);
    kv_store_path(&path, s, "/ns/%s/about.json", hex);
    (void)kv_store_remove_small(s, path.s);
    kv_store_path(&path, s, "/ns/%s/probe.json", hex);
    (void)kv_store_remove_small(s, path.s);
    (void)kv_spellings_erase(s->spellings, ns);
    /* Folders stay: they are small, and another process may be publishing into them. */
    return *records == all ? KV_OK : kv_fail(err, KV_IO, "%zu records could not be removed", all - (size_t)*records);
}

/* It has a prompt's tokens, as records do. */
static void remove_old_note(kv_store *s, kv_hash ns, int64_t before) {
    char hex[33];
    kv_path path;
    kv_file_info info;
    kv_hash_hex(hex, ns);
    kv_store_path(&path, s, "/ns/%s/probe.json", hex);
    if (s->f->stat(s->f, path.s, &info) == 0 && info.mtime < before) (void)kv_store_remove_small(s, path.s);
}

kv_status kv_store_remove_old(kv_store *s, kv_hash ns, int64_t before, bool dry_run, uint64_t *bytes, uint64_t *records,
                              kv_error *err) {
    victims v = {0};
    *bytes = *records = 0;
    if (s->cfg.read_only && !dry_run) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    pthread_mutex_lock(&s->mutex);
    gather_old(&v, s, &ns, before);
    *bytes = v.bytes;
    *records = v.n;
    if (dry_run) put_back(&v, s);
    pthread_mutex_unlock(&s->mutex);
    if (!dry_run) *records = 0;
    if (!dry_run) remove_old_note(s, ns, before);
    if (!dry_run) (void)kv_spellings_erase_old(s->spellings, &ns, before);
    if (dry_run) free(v.rows);
    else *bytes = finish(&v, s, false, records);
    return KV_OK;
}

/* What the volume lacks to have keep_free free. */
static uint64_t volume_wants(kv_store *s) {
    kv_disk_info disk;
    if (!s->cfg.keep_free || s->f->disk(s->f, s->cfg.dir, &disk) != 0) return 0;
    return s->cfg.keep_free > disk.free ? s->cfg.keep_free - disk.free : 0;
}

kv_status kv_store_gc(kv_store *s, bool dry_run, uint64_t *bytes, uint64_t *records, kv_error *err) {
    *bytes = *records = 0;
    if (s->cfg.read_only && !dry_run) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    victims v = {0};
    uint64_t over = kv_accounts_over(&s->acc), lacks = volume_wants(s), want = over > lacks ? over : lacks;
    int64_t before = s->cfg.max_age_s ? kv_store_now(s) - s->cfg.max_age_s : 0;
    if (!dry_run) {
        pthread_mutex_lock(&s->mutex);
        for (uint32_t i = 0; i < s->table.n_slots; i++) { /* what could not be removed may be removable now */
            if (!s->table.rows[i].kind || !(s->table.rows[i].flags & KV_ROW_STUCK)) continue;
            s->table.rows[i].flags &= (uint8_t)~KV_ROW_STUCK;
            kv_table_changed(&s->table, i);
        }
        pthread_mutex_unlock(&s->mutex);
    }
    pthread_mutex_lock(&s->mutex);
    if (before > 0) gather_old(&v, s, NULL, before);
    gather(&v, s, want, INFINITY, true, true); /* what is too old counts towards it */
    *bytes = v.bytes;
    *records = v.n;
    if (dry_run) put_back(&v, s);
    pthread_mutex_unlock(&s->mutex);
    if (!dry_run) {
        *records = 0;
        *bytes = finish(&v, s, false, records);
        kv_store_index_flush(s);
        (void)kv_spellings_erase_old(s->spellings, NULL, before);
    } else {
        free(v.rows);
    }
    if (s->cfg.read_only) {
        *bytes += kv_store_clean_tmp(s, true);
        return KV_OK;
    }
    kv_path path;
    kv_store_path(&path, s, "/lock"); /* no process begins while tmp/ is cleared */
    int lock = s->f->lock(s->f, path.s, true);
    if (lock < 0) return kv_store_faulted(s, KV_STORE_FAULT_OPEN, lock, path.s, err);
    *bytes += kv_store_clean_tmp(s, dry_run);
    s->f->close(s->f, lock);
    return KV_OK;
}
