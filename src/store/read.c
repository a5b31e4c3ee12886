/* store/read.c: a record comes back, or says why not; damaged ones go to quarantine/.
 *
 * What is in the page cache is read through it; a larger payload that is not, around it (O_DIRECT is up to twice as
 * fast from a drive, and leaves the page cache to what is used again). Where the destination is not aligned, always
 * through it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/store_private.h"

#define DIRECT_MIN (256u << 10) /* below, a second open costs more than it gains */

/* ── quarantine ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct oldest {
    kv_store *s;
    uint64_t sum;
    char name[128]; /* the first in order: names begin with the time */
} oldest;

static bool look_for_oldest(void *ctx, const char *name) {
    oldest *o = ctx;
    kv_path path;
    kv_file_info info;
    if (strlen(name) >= sizeof o->name) return true;
    kv_store_path(&path, o->s, "/quarantine/%s", name);
    if (o->s->f->stat(o->s->f, path.s, &info) != 0 || !info.is_regular || !info.is_mine) return true;
    o->sum += info.disk;
    if (!o->name[0] || strcmp(name, o->name) < 0) strcpy(o->name, name);
    return true;
}

static void trim_quarantine(kv_store *s) {
    for (;;) {
        kv_path dir, path;
        kv_file_info info;
        oldest o = {.s = s};
        kv_store_path(&dir, s, "/quarantine");
        if (s->f->list(s->f, dir.s, look_for_oldest, &o) != 0 || o.sum <= s->quarantine_max || !o.name[0]) return;
        kv_store_path(&path, s, "/quarantine/%s", o.name);
        if (s->f->stat(s->f, path.s, &info) != 0 || s->f->remove(s->f, path.s) != 0) return;
        kv_accounts_settle(&s->acc, 0, -(int64_t)info.disk, 0);
    }
}

/* Moves the file aside; where that cannot be, or it is larger than the whole quarantine, removes it. */
static void set_aside(kv_store *s, const kv_record_head *head, const char *path) {
    kv_path dir, to;
    kv_file_info info;
    char key[33];
    if (s->f->stat(s->f, path, &info) != 0 || !info.is_mine) return;
    kv_hash_hex(key, head->key);
    kv_store_path(&dir, s, "/quarantine");
    kv_store_path(&to, s, "/quarantine/%010lld-%06llu-%s.%d", (long long)kv_store_now(s),
                  (unsigned long long)(atomic_fetch_add(&s->next_tmp, 1) % 1000000), key, (int)head->kind);
    pthread_mutex_lock(&s->quarantine_mutex);
    bool room = info.disk <= s->quarantine_max && kv_accounts_take(&s->acc, KV_STORE_SLACK) == 0;
    int code = room ? s->f->make_dir(s->f, dir.s) : -ENOSPC;
    if (code == 0) code = s->f->rename(s->f, path, to.s);
    if (room) {
        kv_store_note_dir(s, &s->quarantine_size, dir.s);
        kv_accounts_settle(&s->acc, KV_STORE_SLACK, 0, 0);
    }
    if (code == 0) trim_quarantine(s);
    else if (s->f->remove(s->f, path) == 0) kv_accounts_settle(&s->acc, 0, -(int64_t)info.disk, 0);
    pthread_mutex_unlock(&s->quarantine_mutex);
}

void kv_store_quarantine(kv_store *s, const kv_record_head *head, const char *why) {
    kv_path path;
    kv_store_record_path(&path, s, head);
    atomic_fetch_add(&s->n_quarantined, 1);
    atomic_fetch_add(&s->n_faults[KV_STORE_FAULT_CORRUPT], 1);
    if (!atomic_exchange(&s->faulty[KV_STORE_FAULT_CORRUPT], true))
        KV_WARN("the disk cache set a damaged record aside: %s: %s (more are only counted)", path.s, why);
    if (!s->cfg.read_only) set_aside(s, head, path.s);
    kv_store_forget(s, head, true);
}

typedef struct clearing {
    kv_store *s;
    const kv_hash *ns; /* NULL = all */
    bool dry_run;
    int code; /* of the first that could not be removed */
    uint64_t bytes, files;
} clearing;

/* True also when the file does not tell: it may be theirs. */
static bool may_be_of(kv_store *s, const char *path, kv_hash ns) {
    unsigned char part[32];
    kv_hash its;
    int fd = s->f->open(s->f, path, KV_OPEN_READ);
    int64_t n = fd < 0 ? fd : s->f->read_at(s->f, fd, part, sizeof part, 0);
    if (fd >= 0) s->f->close(s->f, fd);
    return n < 0 || !kv_format_peek_ns(&its, part, (size_t)n) || kv_hash_equal(its, ns);
}

static bool clear_entry(void *ctx, const char *name) {
    clearing *c = ctx;
    kv_path path;
    kv_file_info info;
    if (strlen(name) >= 128) return true;
    kv_store_path(&path, c->s, "/quarantine/%s", name);
    if (c->s->f->stat(c->s->f, path.s, &info) != 0 || !info.is_regular || !info.is_mine) return true;
    if (c->ns && !may_be_of(c->s, path.s, *c->ns)) return true;
    int code = c->dry_run ? 0 : c->s->f->remove(c->s->f, path.s);
    if (code == -ENOENT) return true;
    if (code != 0) {
        c->code = code;
        return true;
    }
    if (!c->dry_run) kv_accounts_settle(&c->s->acc, 0, -(int64_t)info.disk, 0);
    c->bytes += info.disk;
    c->files++;
    return true;
}

kv_status kv_store_clear_quarantine(kv_store *s, const kv_hash *ns, bool dry_run, uint64_t *bytes, uint64_t *files,
                                    kv_error *err) {
    clearing c = {.s = s, .ns = ns, .dry_run = dry_run};
    kv_path dir;
    *bytes = *files = 0;
    if (s->cfg.read_only && !dry_run) return kv_fail(err, KV_FORBIDDEN, "the disk cache is open read-only");
    kv_store_path(&dir, s, "/quarantine");
    pthread_mutex_lock(&s->quarantine_mutex);
    int code = s->f->list(s->f, dir.s, clear_entry, &c);
    pthread_mutex_unlock(&s->quarantine_mutex);
    *bytes = c.bytes;
    *files = c.files;
    if (code == -ENOENT) return KV_OK;
    if (code == 0) code = c.code;
    return code == 0 ? KV_OK : kv_store_faulted(s, KV_STORE_FAULT_OPEN, code, dir.s, err);
}

/* ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct reading {
    kv_store *s;
    const kv_record_head *want;
    kv_path path;
    int fd;
    uint64_t size;
    void *front; /* header and tokens */
    kv_record_head head;
    const kv_token *tokens; /* into front */
    bool from_drive;        /* the payload was read around the page cache */
} reading;

/* Errors that the file itself has, and that asking again will not mend. */
static bool is_damage(int64_t code) {
    return code == -EIO || code == -EACCES || code == -EPERM || code == -ELOOP || code == -ENXIO || code == -EISDIR;
}

static kv_status damaged(reading *r, kv_error *err, const char *why) {
    return kv_fail(err, KV_CORRUPT, "%s: %s", r->path.s, why);
}

static kv_status read_failed(reading *r, kv_store_fault kind, int64_t code, kv_error *err) {
    if (code == -ENOENT || code == -ENOTDIR) return kv_fail(err, KV_NOT_FOUND, "%s is gone", r->path.s);
    kv_status status = kv_store_faulted(r->s, kind, code, r->path.s, err);
    if (!is_damage(code)) return status;
    if (err) err->status = KV_CORRUPT;
    return KV_CORRUPT;
}

static kv_status open_record(reading *r, kv_error *err) {
    kv_file_info info;
    int code = r->s->f->stat(r->s->f, r->path.s, &info);
    if (code < 0) return read_failed(r, KV_STORE_FAULT_OPEN, code, err);
    if (!info.is_mine) return kv_fail(err, KV_NOT_FOUND, "%s belongs to another user", r->path.s);
    if (!info.is_regular) return damaged(r, err, "not a regular file");
    r->size = info.size;
    r->fd = r->s->f->open(r->s->f, r->path.s, KV_OPEN_READ);
    return r->fd < 0 ? read_failed(r, KV_STORE_FAULT_OPEN, r->fd, err) : KV_OK;
}

static kv_status read_front(reading *r, kv_error *err) {
    const kv_record_head *w = r->want;
    uint32_t n = kv_format_head_bytes(w->n_tokens);
    r->front = kv_alloc(n);
    int64_t got = r->s->f->read_at(r->s->f, r->fd, r->front, n, 0);
    if (got < 0) return read_failed(r, KV_STORE_FAULT_READ, got, err);
    kv_status status = kv_format_read(&r->head, &r->tokens, r->front, (size_t)got, r->size, err);
    if (status != KV_OK) return status;
    const kv_record_head *h = &r->head;
    if (!r->tokens || h->kind != w->kind || !kv_hash_equal(h->ns, w->ns) || !kv_hash_equal(h->key, w->key) ||
        h->e != w->e || h->n_tokens != w->n_tokens || h->n_payload != w->n_payload ||
        (h->kind != KV_RECORD_WHOLE && h->q != w->q))
        return damaged(r, err, "the file holds another record than its name says");
    return KV_OK;
}

static bool lies_in_cache(reading *r, uint64_t from, uint64_t n) {
    const kv_files *f = r->s->f;
    return f->cached(f, r->fd, from) && f->cached(f, r->fd, from + n / 2) && f->cached(f, r->fd, from + n - 1);
}

static kv_status read_payload(reading *r, void *dst, size_t room, kv_error *err) {
    const kv_files *f = r->s->f;
    uint64_t from = kv_format_head_bytes(r->head.n_tokens), n = r->head.n_payload, done = 0;
    if (n >= DIRECT_MIN && (uintptr_t)dst % KV_FORMAT_ALIGN == 0 && !lies_in_cache(r, from, n)) {
        int fd = f->open(f, r->path.s, KV_OPEN_READ_DIRECT);
        /* Files end on a page, so that the last bytes come with the rest where there is room for the whole page: to ask
         * for them alone would wait for the drive once more. */
        uint64_t whole = (n + KV_FORMAT_ALIGN - 1) / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN;
        if (whole > room) whole = n / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN;
        int64_t got = fd < 0 ? 0 : f->read_at(f, fd, dst, (size_t)whole, from);
        if (fd >= 0) f->close(f, fd);
        if (got == (int64_t)whole) done = whole < n ? whole : n; /* else as if never tried */
        r->from_drive = done > 0;
    }
    int64_t got = done == n ? 0 : f->read_at(f, r->fd, (char *)dst + done, (size_t)(n - done), from + done);
    if (got < 0) return read_failed(r, KV_STORE_FAULT_READ, got, err);
    if (done + (uint64_t)got != n) return damaged(r, err, "cut short while it was read");
    if (!kv_hash_equal(kv_hash_bytes(dst, (size_t)n), r->head.payload_hash))
        return damaged(r, err, "the payload's checksum does not hold");
    return KV_OK;
}

/* All checks, no consequences. */
static kv_status check_record(kv_store *s, kv_token *tokens, void *dst, size_t room, bool *from_drive,
                              const kv_record_head *want, kv_error *err) {
    reading r = {.s = s, .want = want, .fd = -1};
    kv_store_record_path(&r.path, s, want);
    kv_status status = open_record(&r, err);
    if (status == KV_OK) status = read_front(&r, err);
    if (status == KV_OK && dst) status = read_payload(&r, dst, room, err);
    if (status == KV_OK && tokens) memcpy(tokens, r.tokens, (size_t)r.head.n_tokens * sizeof *tokens);
    if (r.fd >= 0) s->f->close(s->f, r.fd);
    free(r.front);
    if (from_drive) *from_drive = r.from_drive;
    return status;
}

static void conclude(kv_store *s, const kv_record_head *head, kv_status status, const char *why) {
    if (status == KV_CORRUPT) kv_store_quarantine(s, head, why);
    if (status == KV_NOT_FOUND || status == KV_UNSUPPORTED) kv_store_forget(s, head, false);
    if (status == KV_OK) {
        kv_store_went_well(s, KV_STORE_FAULT_OPEN);
        kv_store_went_well(s, KV_STORE_FAULT_READ);
    }
}

kv_status kv_store_read(kv_store *s, kv_token *tokens, void *dst, size_t room, bool *from_drive,
                        const kv_record_head *head, kv_error *err) {
    kv_error own;
    if (!err) err = &own;
    err->message[0] = '\0';
    KV_CHECK(head->n_tokens > 0 && head->n_payload > 0);
    kv_status status = check_record(s, tokens, dst, room, from_drive, head, err);
    conclude(s, head, status, err->message);
    return status;
}

static kv_status read_whole(reading *r, void *dst, kv_error *err) {
    int64_t got = r->s->f->read_at(r->s->f, r->fd, dst, (size_t)r->size, 0);
    if (got < 0) return read_failed(r, KV_STORE_FAULT_READ, got, err);
    if (got != (int64_t)r->size) return damaged(r, err, "cut short while it was read");
    const kv_token *tokens;
    kv_record_head again;
    kv_status status = kv_format_read(&again, &tokens, dst, (size_t)got, r->size, err);
    const char *payload = (const char *)dst + kv_format_head_bytes(r->head.n_tokens);
    if (status == KV_OK && (!tokens || !kv_hash_equal(again.key, r->head.key) ||
                            !kv_hash_equal(kv_hash_bytes(payload, (size_t)again.n_payload), again.payload_hash)))
        status = damaged(r, err, "the payload's checksum does not hold");
    return status;
}

kv_status kv_store_read_file(kv_store *s, void *dst, kv_record_head *full, const kv_record_head *head, kv_error *err) {
    kv_error own;
    if (!err) err = &own;
    err->message[0] = '\0';
    reading r = {.s = s, .want = head, .fd = -1};
    kv_store_record_path(&r.path, s, head);
    kv_status status = open_record(&r, err);
    if (status == KV_OK) status = read_front(&r, err); /* also that the file is as long as dst */
    if (status == KV_OK) status = read_whole(&r, dst, err);
    *full = r.head;
    if (r.fd >= 0) s->f->close(s->f, r.fd);
    free(r.front);
    conclude(s, head, status, err->message);
    return status;
}

/* ── verify ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct to_verify {
    kv_record_head *heads;
    size_t n;
    uint64_t bytes;
} to_verify;

static void list_records(to_verify *v, kv_store *s) {
    pthread_mutex_lock(&s->mutex);
    v->heads = kv_alloc(s->table.n_rows * sizeof *v->heads);
    for (uint32_t i = 0; i < s->table.n_slots; i++) {
        const kv_table_row *r = &s->table.rows[i];
        if (!r->kind || r->flags & KV_ROW_PENDING) continue;
        kv_table_head(&v->heads[v->n++], &s->table, r);
        v->bytes += r->disk;
    }
    pthread_mutex_unlock(&s->mutex);
}

kv_status kv_store_verify(kv_store *s, bool dry_run, void (*progress)(void *ctx, uint64_t done, uint64_t total),
                          void *ctx, uint64_t *n_bad, kv_error *err) {
    to_verify v = {0};
    uint64_t done = 0;
    kv_status result = KV_OK;
    *n_bad = 0;
    list_records(&v, s);
    for (size_t i = 0; i < v.n; i++) {
        const kv_record_head *h = &v.heads[i];
        uint64_t n = (h->n_payload + KV_FORMAT_ALIGN - 1) / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN;
        kv_error why = {0};
        void *payload = aligned_alloc(KV_FORMAT_ALIGN, (size_t)n);
        kv_status status =
            payload ? check_record(s, NULL, payload, (size_t)n, NULL, h, &why)
                    : kv_fail(&why, KV_NO_MEMORY, "no memory to read a record of %llu bytes", (unsigned long long)n);
        free(payload);
        if (status == KV_CORRUPT) ++*n_bad;
        else if (status != KV_OK && status != KV_NOT_FOUND && status != KV_UNSUPPORTED) {
            result = status; /* of the others one can still be sure */
            if (err) *err = why;
        }
        if (!dry_run) conclude(s, h, status, why.message);
        done += n + kv_format_head_bytes(h->n_tokens);
        if (progress) progress(ctx, done < v.bytes ? done : v.bytes, v.bytes);
    }
    free(v.heads);
    return result;
}
