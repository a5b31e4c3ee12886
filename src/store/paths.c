/* store/paths.c: where things lie below a cache directory, small files there, and faults that are told once. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/store_private.h"

void kv_store_path(kv_path *out, const kv_store *s, const char *fmt, ...) {
    size_t n = (size_t)snprintf(out->s, sizeof out->s, "%s", s->cfg.dir);
    KV_CHECK(n <= KV_STORE_DIR_MAX);
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(out->s + n, sizeof out->s - n, fmt, ap);
    va_end(ap);
    KV_CHECK(more >= 0 && (size_t)more < sizeof out->s - n);
}

void kv_store_record_path(kv_path *out, const kv_store *s, const kv_record_head *head) {
    char ns[33], name[64];
    kv_hash_hex(ns, head->ns);
    kv_format_name(name, head);
    kv_store_path(out, s, "/ns/%s/%s", ns, name);
}

void kv_store_tmp_path(kv_path *out, const kv_store *s, uint64_t n) {
    char id[33];
    kv_hash_hex(id, s->id);
    kv_store_path(out, s, "/tmp/%s-%llu.tmp", id, (unsigned long long)n);
}

bool kv_store_parse_name(kv_hash *key, kv_record_kind *kind, const char *name) {
    if (strlen(name) != 34 || name[32] != '.') return false;
    char hex[33];
    memcpy(hex, name, 32);
    hex[32] = '\0';
    switch (name[33]) {
    case 'b': *kind = KV_RECORD_BLOCK; break;
    case 'w': *kind = KV_RECORD_WINDOW; break;
    case 'c': *kind = KV_RECORD_CHECKPOINT; break;
    case 's': *kind = KV_RECORD_WHOLE; break;
    default: return false;
    }
    return kv_hash_from_hex(key, hex);
}

static const char *const fault_texts[] = {
#define X(name, text) text,
    KV_STORE_FAULT_TABLE(X)
#undef X
};

kv_status kv_store_faulted(kv_store *s, kv_store_fault kind, int64_t code, const char *path, kv_error *err) {
    if (code == -ENOSPC || code == -EDQUOT) kind = KV_STORE_FAULT_FULL;
    const char *why = code < 0 ? strerror((int)-code) : "it ends early";
    atomic_fetch_add(&s->n_faults[kind], 1);
    if (!atomic_exchange(&s->faulty[kind], true))
        KV_WARN("the disk cache %s: %s: %s (said once until it works again)", fault_texts[kind], path, why);
    return kv_fail(err, kind == KV_STORE_FAULT_FULL ? KV_NO_MEMORY : KV_IO, "the disk cache %s: %s: %s",
                   fault_texts[kind], path, why);
}

void kv_store_went_well(kv_store *s, kv_store_fault kind) {
    if (atomic_load(&s->faulty[kind]) && atomic_exchange(&s->faulty[kind], false))
        KV_INFO("the disk cache works again (it was: %s)", fault_texts[kind]);
}

int64_t kv_store_now(const kv_store *s) {
    int64_t now = s->cfg.now ? s->cfg.now(s->cfg.now_ctx) : kv_wall_seconds();
    return now < 0 ? 0 : now > UINT32_MAX ? UINT32_MAX : now;
}

bool kv_store_read_small(kv_buf *out, kv_store *s, const char *path, size_t max) {
    kv_file_info info;
    kv_buf_clear(out);
    if (s->f->stat(s->f, path, &info) != 0 || !info.is_regular || !info.is_mine || info.size > max) return false;
    int fd = s->f->open(s->f, path, KV_OPEN_READ);
    if (fd < 0) return false;
    kv_buf_reserve(out, (size_t)info.size + 1);
    int64_t n = s->f->read_at(s->f, fd, out->data, (size_t)info.size, 0);
    s->f->close(s->f, fd);
    if (n >= 0) out->len = (size_t)n;
    out->data[out->len] = '\0';
    return n == (int64_t)info.size;
}

kv_status kv_store_write_small(kv_store *s, const char *dir, const char *path, const void *data, size_t n,
                               kv_error *err) {
    kv_path tmp;
    kv_file_info info;
    kv_status status = KV_OK;
    uint64_t room = n + KV_STORE_SLACK;
    int64_t stored = 0;
    if (kv_accounts_take(&s->acc, room) != 0)
        return kv_fail(err, KV_NO_MEMORY, "the disk cache is full: no room for %s", path);
    kv_store_tmp_path(&tmp, s, atomic_fetch_add(&s->next_tmp, 1));
    int fd = s->f->open(s->f, tmp.s, KV_OPEN_CREATE);
    if (fd < 0) {
        status = kv_store_faulted(s, KV_STORE_FAULT_OPEN, fd, tmp.s, err);
        goto done;
    }
    int64_t code = s->f->write_at(s->f, fd, data, n, 0);
    if (code < 0) status = kv_store_faulted(s, KV_STORE_FAULT_WRITE, code, tmp.s, err);
    if (status == KV_OK && (code = s->f->sync(s->f, fd)) < 0)
        status = kv_store_faulted(s, KV_STORE_FAULT_SYNC, code, tmp.s, err);
    atomic_fetch_add(&s->n_fsyncs, 1);
    s->f->close(s->f, fd);
    if (status == KV_OK && (code = s->f->stat(s->f, tmp.s, &info)) < 0)
        status = kv_store_faulted(s, KV_STORE_FAULT_OPEN, code, tmp.s, err);
    if (status == KV_OK && (code = s->f->rename(s->f, tmp.s, path)) < 0)
        status = kv_store_faulted(s, KV_STORE_FAULT_RENAME, code, path, err);
    if (status != KV_OK) {
        /* What cannot be removed stays in the account until the next opening clears tmp/. */
        if (s->f->remove(s->f, tmp.s) != 0)
            stored = (int64_t)((n + KV_FORMAT_ALIGN - 1) / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN);
    } else {
        stored = (int64_t)info.disk;
        (void)s->f->sync_dir(s->f, dir);
    }
done:
    kv_accounts_settle(&s->acc, room, stored, 0);
    return status;
}

int kv_store_remove_small(kv_store *s, const char *path) {
    kv_file_info info;
    int code = s->f->stat(s->f, path, &info);
    if (code == 0) code = info.is_mine ? s->f->remove(s->f, path) : -EPERM;
    if (code == 0) kv_accounts_settle(&s->acc, 0, -(int64_t)info.disk, 0);
    return code == -ENOENT ? 0 : code;
}

void kv_store_note_dir(kv_store *s, uint32_t *known, const char *path) {
    kv_file_info info;
    int code = s->f->stat(s->f, path, &info);
    if (code == -ENOENT) return;
    pthread_mutex_lock(&s->mutex);
    if (code != 0) info.disk = *known + 4096; /* it may have grown by a block; the next look will tell */
    int64_t grown = (int64_t)info.disk - (int64_t)*known;
    *known = (uint32_t)info.disk;
    pthread_mutex_unlock(&s->mutex);
    if (grown) kv_accounts_settle(&s->acc, 0, grown, 0);
}
