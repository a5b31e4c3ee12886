/* store/publish.c: reserve, write, commit.
 *
 *   reserve   room in the accounts; a pending row, which keeps the parent from being evicted meanwhile
 *   write     tmp/<process>-<n>.tmp: header, tokens, payload, zeros
 *   commit    fsync each file ─► rename ─► fsync each folder once ─► accounts, rows, index ─► done
 *
 * A power cut before the rename leaves a file in tmp/, which the next opening removes; after it, either name or
 * nothing; after the folder's fsync the record is there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/store_private.h"

static uint64_t room_for(const kv_record_head *h) {
    return kv_format_file_bytes(h->n_tokens, h->n_payload) + KV_STORE_SLACK;
}

kv_ns_dirs *kv_store_dirs(kv_store *s, uint16_t ns) {
    if (ns >= s->n_dirs) {
        s->dirs = kv_realloc(s->dirs, (ns + 1u) * sizeof *s->dirs);
        for (uint16_t i = s->n_dirs; i <= ns; i++) s->dirs[i] = kv_alloc(sizeof **s->dirs);
        s->n_dirs = (uint16_t)(ns + 1);
    }
    return s->dirs[ns];
}

/* ── reserve ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static const kv_table_row *block_row(const kv_store *s, kv_hash ns, kv_hash key) {
    uint32_t i = kv_table_find(&s->table, ns, key, KV_RECORD_BLOCK);
    return i == KV_NO_ROW ? NULL : &s->table.rows[i];
}

/* The blocks that a record is of use with: the one before it, and for what lies on its own block's end that block, too.
 * How long a block is, the one before it tells. With the mutex held. */
static bool has_its_path(const kv_store *s, const kv_record_head *h) {
    if (h->q == 0) return true;
    const kv_table_row *before = block_row(s, h->ns, h->parent);
    if (!before) return false;
    bool on_end = h->kind != KV_RECORD_BLOCK && h->e - h->q == (int32_t)(before->e - before->q);
    return !on_end || block_row(s, h->ns, h->key);
}

static kv_status add_pending(kv_store *s, const kv_record_head *h, kv_error *err) {
    kv_table_row row = {
        .key = h->key,
        .parent = h->parent,
        .shape_class = h->shape_class,
        .n_payload = h->n_payload,
        .q = h->q,
        .e = h->e,
        .compute_ms = h->compute_ms,
        .keep = h->keep_seconds,
        .place = (uint8_t)h->place,
        .kind = (uint8_t)h->kind,
        .flags = (uint8_t)(KV_ROW_PENDING | (h->canonical ? KV_ROW_CANONICAL : 0)),
    };
    kv_status status = KV_OK;
    pthread_mutex_lock(&s->mutex);
    if (kv_table_find(&s->table, h->ns, h->key, h->kind) != KV_NO_ROW)
        status = kv_fail(err, KV_INVALID, "the record is stored, or being stored, already");
    else if (!has_its_path(s, h))
        status = kv_fail(err, KV_NOT_FOUND, "the block it hangs on is not in the disk cache, so nobody could use it");
    else if (!kv_table_ns(&row.ns, &s->table, h->ns))
        status = kv_fail(err, KV_NO_MEMORY, "the disk cache has too many namespaces");
    else kv_table_add(&s->table, &row);
    pthread_mutex_unlock(&s->mutex);
    return status;
}

static void drop_pending(kv_store *s, const kv_record_head *h) {
    pthread_mutex_lock(&s->mutex);
    uint32_t i = kv_table_find(&s->table, h->ns, h->key, h->kind);
    if (i != KV_NO_ROW && s->table.rows[i].flags & KV_ROW_PENDING) kv_table_take_out(NULL, &s->table, i);
    pthread_mutex_unlock(&s->mutex);
}

/* Bytes that the volume lacks for `need` more and what is reserved. */
static uint64_t volume_lacks(kv_store *s, uint64_t need) {
    kv_disk_info disk;
    kv_accounts_view view;
    if (s->f->disk(s->f, s->cfg.dir, &disk) != 0) return 0; /* the write will tell */
    kv_accounts_see(&view, &s->acc);
    uint64_t wanted = s->cfg.keep_free + view.reserved + need;
    return wanted > disk.free ? wanted - disk.free : 0;
}

/* One try: 0, or how much is missing. */
static uint64_t try_room(kv_store *s, uint64_t need, bool *volume) {
    uint64_t lacks = s->cfg.keep_free ? volume_lacks(s, need) : 0;
    *volume = lacks > 0;
    return lacks ? lacks : kv_accounts_take(&s->acc, need);
}

kv_status kv_store_make_room(kv_store *s, uint64_t need, double worth, bool is_kept, kv_error *err) {
    bool volume;
    uint64_t missing = try_room(s, need, &volume);
    if (!missing) return KV_OK;
    /* One thread of one process at a time evicts: others wait here, and then mostly find room. */
    kv_path path;
    kv_store_path(&path, s, "/lock");
    int lock = s->f->lock(s->f, path.s, true);
    for (int tries = 0; tries < 4; tries++) {
        missing = try_room(s, need, &volume);
        if (!missing || need > s->cfg.budget ||
            kv_store_evict(s, missing, worth / 1.1, is_kept, false, false, NULL) == 0)
            break;
    }
    if (missing) missing = try_room(s, need, &volume);
    if (lock >= 0) s->f->close(s->f, lock);
    if (!missing) return KV_OK;
    if (volume)
        return kv_fail(err, KV_NO_MEMORY,
                       "the disk cache's volume is nearly full (--cache-disk keeps some of it free)");
    return kv_fail(err, KV_NO_MEMORY, "the disk cache is full, and nothing in it is worth less than this");
}

kv_status kv_store_reserve(kv_store *s, const kv_record_head *head, double worth, bool wanted, kv_error *err) {
    uint64_t need = room_for(head), file = need - KV_STORE_SLACK;
    if (s->cfg.read_only) return kv_fail(err, KV_NO_MEMORY, "the disk cache is open read-only");
    kv_accounts_set_day(&s->acc, kv_store_now(s) / 86400);
    if (s->cfg.write_max_day && !wanted) {
        kv_accounts_view view;
        kv_accounts_see(&view, &s->acc);
        if (view.written_today + view.reserved + file > s->cfg.write_max_day)
            return kv_fail(err, KV_NO_MEMORY, "the disk cache has written what it may in a day (--cache-write-max)");
    }
    kv_status status = add_pending(s, head, err);
    if (status != KV_OK) return status;
    status = kv_store_make_room(s, need, worth, head->keep_seconds > 0, err);
    if (status != KV_OK) drop_pending(s, head);
    return status;
}

void kv_store_unreserve(kv_store *s, const kv_record_head *head) {
    drop_pending(s, head);
    kv_accounts_settle(&s->acc, room_for(head), 0, 0);
}

/* ── write ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int64_t put_content(kv_store *s, int fd, kv_record_head *head, const kv_token *tokens, const void *payload) {
    static const char zeros[KV_FORMAT_ALIGN];
    uint32_t head_bytes = kv_format_head_bytes(head->n_tokens);
    uint64_t end = head_bytes + head->n_payload, whole = kv_format_file_bytes(head->n_tokens, head->n_payload);
    if (kv_hash_is_zero(head->payload_hash)) head->payload_hash = kv_hash_bytes(payload, (size_t)head->n_payload);
    if (!head->created) head->created = kv_store_now(s);
    void *front = kv_alloc(head_bytes);
    kv_format_write(front, head, tokens);
    int64_t code = s->f->write_at(s->f, fd, front, head_bytes, 0);
    free(front);
    if (code >= 0) code = s->f->write_at(s->f, fd, payload, (size_t)head->n_payload, head_bytes);
    if (code >= 0 && whole > end) code = s->f->write_at(s->f, fd, zeros, (size_t)(whole - end), end);
    return code;
}

/* Where many wait for one commit, the file is synced at once instead of its descriptor being held. */
static int64_t sync_now(kv_store *s, int *fd) {
    int64_t code = s->f->sync(s->f, *fd);
    atomic_fetch_add(&s->n_fsyncs, 1);
    s->f->close(s->f, *fd);
    *fd = -1;
    return code;
}

kv_status kv_store_write(kv_store *s, const kv_record_head *head, const kv_token *tokens, const void *payload,
                         kv_error *err) {
    kv_path tmp;
    kv_status status = KV_OK;
    kv_written w = {.head = *head, .reserved = room_for(head), .n = atomic_fetch_add(&s->next_tmp, 1)};
    kv_store_tmp_path(&tmp, s, w.n);
    w.fd = s->f->open(s->f, tmp.s, KV_OPEN_CREATE);
    if (w.fd < 0) {
        status = kv_store_faulted(s, KV_STORE_FAULT_OPEN, w.fd, tmp.s, err);
        goto failed;
    }
    int64_t code = put_content(s, w.fd, &w.head, tokens, payload);
    if (code < 0) {
        status = kv_store_faulted(s, KV_STORE_FAULT_WRITE, code, tmp.s, err);
        goto failed;
    }
    pthread_mutex_lock(&s->mutex);
    bool hold = s->n_held < KV_STORE_GROUP_MAX;
    if (hold) s->n_held++;
    pthread_mutex_unlock(&s->mutex);
    if (!hold && (code = sync_now(s, &w.fd)) < 0) {
        status = kv_store_faulted(s, KV_STORE_FAULT_SYNC, code, tmp.s, err);
        goto failed;
    }
    pthread_mutex_lock(&s->mutex);
    if (s->n_written == s->cap_written) {
        s->cap_written = s->cap_written ? s->cap_written * 2 : 16;
        s->written = kv_realloc(s->written, s->cap_written * sizeof *s->written);
    }
    s->written[s->n_written++] = w;
    pthread_mutex_unlock(&s->mutex);
    return KV_OK;
failed:
    if (w.fd >= 0) s->f->close(s->f, w.fd);
    int removed = s->f->remove(s->f, tmp.s);
    drop_pending(s, head);
    /* What cannot be removed stays counted, and goes when the next opening clears tmp/. */
    if (removed == 0 || removed == -ENOENT) kv_accounts_settle(&s->acc, w.reserved, 0, 0);
    return status;
}

/* ── commit ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct group { /* one commit's files, kept in step */
    kv_written *w;
    kv_status *status;
    uint64_t *disk;
    uint16_t *ns;
    bool *renamed;
    size_t n;
} group;

static void take_group(group *g, kv_store *s) {
    memset(g, 0, sizeof *g);
    pthread_mutex_lock(&s->mutex);
    g->w = s->written;
    g->n = s->n_written;
    s->written = NULL;
    s->n_written = s->cap_written = 0;
    g->ns = kv_alloc(g->n * sizeof *g->ns);
    for (size_t i = 0; i < g->n; i++) (void)kv_table_ns(&g->ns[i], &s->table, g->w[i].head.ns); /* reserve made it */
    pthread_mutex_unlock(&s->mutex);
    g->status = kv_alloc(g->n * sizeof *g->status);
    g->disk = kv_alloc(g->n * sizeof *g->disk);
    g->renamed = kv_alloc(g->n * sizeof *g->renamed);
}

static void sync_file(kv_store *s, group *g, size_t i, kv_error *err) {
    kv_path tmp;
    kv_file_info info;
    kv_store_tmp_path(&tmp, s, g->w[i].n);
    if (g->w[i].fd >= 0) {
        int64_t code = sync_now(s, &g->w[i].fd);
        pthread_mutex_lock(&s->mutex);
        s->n_held--;
        pthread_mutex_unlock(&s->mutex);
        if (code < 0) g->status[i] = kv_store_faulted(s, KV_STORE_FAULT_SYNC, code, tmp.s, err);
    }
    int code = g->status[i] == KV_OK ? s->f->stat(s->f, tmp.s, &info) : 0;
    if (code < 0) g->status[i] = kv_store_faulted(s, KV_STORE_FAULT_OPEN, code, tmp.s, err);
    else if (g->status[i] == KV_OK) g->disk[i] = info.disk;
}

static int sub_of(const kv_record_head *h) {
    return (int)(h->key.hi >> 56); /* the first two digits of the key's name */
}

/* Makes the record's folder. New names are durable before anything is published below them. */
static int make_folder(kv_store *s, uint16_t ns, const kv_record_head *h) {
    pthread_mutex_lock(&s->mutex);
    kv_ns_dirs *d = kv_store_dirs(s, ns); /* stays where it is */
    bool made = d->made, sub_made = d->sub_made[sub_of(h)];
    pthread_mutex_unlock(&s->mutex);
    if (sub_made) return 0;
    char hex[33];
    kv_path all, own, sub;
    kv_hash_hex(hex, h->ns);
    kv_store_path(&all, s, "/ns");
    kv_store_path(&own, s, "/ns/%s", hex);
    kv_store_path(&sub, s, "/ns/%s/%02x", hex, sub_of(h));
    int code = made ? 0 : s->f->make_dir(s->f, own.s);
    if (code == 0 && !made) code = s->f->sync_dir(s->f, all.s);
    if (code == 0) code = s->f->make_dir(s->f, sub.s);
    if (code == 0) code = s->f->sync_dir(s->f, own.s);
    kv_store_note_dir(s, &s->ns_size, all.s); /* also after a failure: they may be there */
    kv_store_note_dir(s, &d->own, own.s);
    kv_store_note_dir(s, &d->sub[sub_of(h)], sub.s);
    if (code != 0) return code;
    pthread_mutex_lock(&s->mutex);
    d->made = d->sub_made[sub_of(h)] = true;
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

static void forget_folder(kv_store *s, uint16_t ns, const kv_record_head *h) {
    pthread_mutex_lock(&s->mutex);
    kv_ns_dirs *d = kv_store_dirs(s, ns);
    d->made = d->sub_made[sub_of(h)] = false;
    pthread_mutex_unlock(&s->mutex);
}

static void publish_file(kv_store *s, group *g, size_t i, kv_error *err) {
    const kv_record_head *h = &g->w[i].head;
    kv_path tmp, path;
    kv_file_info there;
    kv_store_tmp_path(&tmp, s, g->w[i].n);
    kv_store_record_path(&path, s, h);
    /* Another process may have stored the same, or a file that this one could not read, and forgot, is in the way: it
     * is replaced, unless it is another user's. */
    int code = make_folder(s, g->ns[i], h);
    bool replaces = code == 0 && s->f->stat(s->f, path.s, &there) == 0;
    if (replaces && !there.is_mine) code = -EEXIST;
    if (code == 0) code = s->f->rename(s->f, tmp.s, path.s);
    if (code == -ENOENT) { /* somebody removed the folder: once more from the start */
        forget_folder(s, g->ns[i], h);
        code = make_folder(s, g->ns[i], h);
        if (code == 0) code = s->f->rename(s->f, tmp.s, path.s);
    }
    if (code == 0 && replaces) kv_accounts_settle(&s->acc, 0, -(int64_t)there.disk, 0);
    if (code < 0) g->status[i] = kv_store_faulted(s, KV_STORE_FAULT_RENAME, code, path.s, err);
    g->renamed[i] = code == 0;
}

static bool same_folder(const group *g, size_t a, size_t b) {
    return g->ns[a] == g->ns[b] && sub_of(&g->w[a].head) == sub_of(&g->w[b].head);
}

/* One fsync a folder. One that fails costs what it was for: the files are there, but may not outlive a power cut, so
 * they are taken back. */
static void sync_folder(kv_store *s, group *g, size_t i, kv_error *err) {
    for (size_t k = 0; k < i; k++)
        if (g->renamed[k] && same_folder(g, i, k)) return;
    kv_path path;
    char hex[33];
    kv_hash_hex(hex, g->w[i].head.ns);
    kv_store_path(&path, s, "/ns/%s/%02x", hex, sub_of(&g->w[i].head));
    int code = s->f->sync_dir(s->f, path.s);
    atomic_fetch_add(&s->n_fsyncs, 1);
    pthread_mutex_lock(&s->mutex);
    uint32_t *known = &kv_store_dirs(s, g->ns[i])->sub[sub_of(&g->w[i].head)];
    pthread_mutex_unlock(&s->mutex);
    kv_store_note_dir(s, known, path.s);
    if (code == 0) return;
    kv_status status = kv_store_faulted(s, KV_STORE_FAULT_SYNC, code, path.s, err);
    for (size_t k = i; k < g->n; k++)
        if (g->renamed[k] && same_folder(g, i, k)) g->status[k] = status;
}

/* The row gets its bytes, or goes; what is not stored leaves no file. */
static bool settle_one(kv_store *s, group *g, size_t i, kv_index_row *out) {
    const kv_record_head *h = &g->w[i].head;
    bool ok = g->status[i] == KV_OK, left = false;
    kv_path path;
    if (!ok) {
        if (g->renamed[i]) kv_store_record_path(&path, s, h);
        else kv_store_tmp_path(&path, s, g->w[i].n);
        int code = s->f->remove(s->f, path.s);
        left = code != 0 && code != -ENOENT;
    }
    /* A file that cannot be removed stays counted: in tmp/ as reserved, else as stored. */
    if (!left || g->renamed[i])
        kv_accounts_settle(&s->acc, g->w[i].reserved, ok || left ? (int64_t)g->disk[i] : 0,
                           ok ? kv_format_file_bytes(h->n_tokens, h->n_payload) : 0);
    pthread_mutex_lock(&s->mutex);
    uint32_t k = kv_table_find(&s->table, h->ns, h->key, h->kind);
    if (k != KV_NO_ROW && !ok) kv_table_take_out(NULL, &s->table, k);
    if (k != KV_NO_ROW && ok) {
        kv_table_row *r = &s->table.rows[k];
        r->last_used = (uint32_t)kv_store_now(s);
        r->created = (uint32_t)h->created;
        r->flags |= KV_ROW_USED;
        s->n_used++;
        kv_table_finish(&s->table, k, g->disk[i]);
        *out = (kv_index_row){*r, h->ns};
    }
    pthread_mutex_unlock(&s->mutex);
    if (ok) atomic_fetch_add(&s->bytes_written, g->disk[i]);
    return ok && k != KV_NO_ROW;
}

static void all_went_well(kv_store *s) {
    static const kv_store_fault kinds[] = {KV_STORE_FAULT_OPEN, KV_STORE_FAULT_WRITE, KV_STORE_FAULT_SYNC,
                                           KV_STORE_FAULT_RENAME, KV_STORE_FAULT_FULL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) kv_store_went_well(s, kinds[i]);
}

kv_status kv_store_commit(kv_store *s, void (*done)(void *ctx, const kv_record_head *head, kv_status status), void *ctx,
                          kv_error *err) {
    group g;
    kv_status status = KV_OK;
    take_group(&g, s);
    for (size_t i = 0; i < g.n; i++) sync_file(s, &g, i, err);
    for (size_t i = 0; i < g.n; i++)
        if (g.status[i] == KV_OK) publish_file(s, &g, i, err);
    for (size_t i = 0; i < g.n; i++)
        if (g.renamed[i]) sync_folder(s, &g, i, err);
    if (g.n) {
        kv_path tmp;
        kv_store_path(&tmp, s, "/tmp");
        kv_store_note_dir(s, &s->tmp_size, tmp.s);
    }
    kv_index_row *rows = kv_alloc(g.n * sizeof *rows);
    size_t n_rows = 0;
    for (size_t i = 0; i < g.n; i++) {
        if (settle_one(s, &g, i, &rows[n_rows])) n_rows++;
        if (g.status[i] != KV_OK) status = g.status[i];
    }
    if (n_rows) kv_store_index_put(s, rows, n_rows);
    pthread_mutex_lock(&s->mutex);
    bool many = s->n_used > 256; /* uses, or an index begun anew */
    pthread_mutex_unlock(&s->mutex);
    if (many) kv_store_index_flush(s);
    if (g.n && status == KV_OK) all_went_well(s);
    for (size_t i = 0; i < g.n && done; i++) done(ctx, &g.w[i].head, g.status[i]);
    free(rows);
    free(g.w);
    free(g.ns);
    free(g.status);
    free(g.disk);
    free(g.renamed);
    return status;
}
