#include "store/transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/store_private.h"

enum {
    AT_VERSION = 8,
    AT_ABOUT = 12,
    AT_NS = 16,
    AT_RECORDS = 32,
    AT_BYTES = 40,
    AT_CHAIN = 48,
    AT_CHECKSUM = 248,
    HEAD = 256,
    COMMIT_RECORDS = KV_STORE_GROUP_MAX, /* one fsync a folder for so many */
};
static const char magic[8] = {'K', 'V', 'E', 'X', 'P', 'O', 'R', 'T'};
/* The store runs on little-endian machines only, so that numbers are copied as they are. */

static uint64_t front_bytes(uint32_t n_about) {
    return (HEAD + (uint64_t)n_about + KV_FORMAT_ALIGN - 1) / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN;
}

static kv_hash chained(kv_hash chain, kv_hash record) {
    kv_hash both[2] = {chain, record};
    return kv_hash_bytes(both, sizeof both);
}

static kv_status io_failed(int64_t code, const char *doing, const char *path, kv_error *err) {
    kv_status status = code == -ENOSPC || code == -EDQUOT ? KV_NO_MEMORY : KV_IO;
    return kv_fail(err, status, "cannot %s %s: %s", doing, path, code < 0 ? strerror((int)-code) : "it ends early");
}

/* ── which blocks are there, and under which key ───────────────────────────────────────────────────────────────── */

typedef struct known {
    kv_hash from, to;
    int32_t e;
    bool used;
} known;

typedef struct known_set { /* open addressing, at most half full */
    known *slots;
    size_t cap, n;
} known_set;

static known *slot_of(const known_set *k, kv_hash from) {
    size_t i = from.lo & (k->cap - 1);
    while (k->slots[i].used && !kv_hash_equal(k->slots[i].from, from)) i = (i + 1) & (k->cap - 1);
    return &k->slots[i];
}

static const known *find_known(const known_set *k, kv_hash from) {
    known *s = k->cap ? slot_of(k, from) : NULL;
    return s && s->used ? s : NULL;
}

static void add_known(known_set *k, kv_hash from, kv_hash to, int32_t e) {
    if (2 * (k->n + 1) > k->cap) {
        known_set more = {.cap = k->cap ? k->cap * 2 : 256};
        more.slots = kv_alloc(more.cap * sizeof *more.slots);
        for (size_t i = 0; i < k->cap; i++)
            if (k->slots[i].used) *slot_of(&more, k->slots[i].from) = k->slots[i];
        more.n = k->n;
        free(k->slots);
        *k = more;
    }
    known *s = slot_of(k, from);
    if (!s->used) k->n++;
    *s = (known){from, to, e, true};
}

/* ── export ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct exporting {
    kv_store *s;
    kv_hash ns, chain;
    known_set blocks;
    kv_record_head *heads; /* owned */
    size_t n_heads;
    int fd;
    uint64_t at, total;
    const char *path;
    kv_transfer_sum sum;
} exporting;

static void list_head(void *ctx, const kv_store_row *row) {
    exporting *x = ctx;
    if ((x->n_heads & (x->n_heads - 1)) == 0)
        x->heads = kv_realloc(x->heads, (x->n_heads ? x->n_heads * 2 : 1) * sizeof *x->heads);
    x->heads[x->n_heads++] = row->head;
    x->total += kv_format_file_bytes(row->head.n_tokens, row->head.n_payload);
}

static bool hangs(const known_set *blocks, kv_hash ns, const kv_record_head *h) {
    if (h->q == 0) return kv_hash_equal(h->parent, ns);
    const known *parent = find_known(blocks, h->parent);
    return parent && parent->e == h->q;
}

static kv_status export_record(exporting *x, const kv_record_head *h, kv_error *err) {
    const kv_files *f = x->s->f;
    uint64_t n = kv_format_file_bytes(h->n_tokens, h->n_payload);
    if (!hangs(&x->blocks, x->ns, h)) {
        x->sum.left_out++;
        return KV_OK;
    }
    void *file = aligned_alloc(KV_FORMAT_ALIGN, (size_t)n);
    if (!file) return kv_fail(err, KV_NO_MEMORY, "no memory for a record of %llu bytes", (unsigned long long)n);
    kv_record_head full;
    kv_status status = kv_store_read_file(x->s, file, &full, h, err);
    if (status == KV_CORRUPT || status == KV_NOT_FOUND || status == KV_UNSUPPORTED) {
        x->sum.left_out++;
        status = KV_OK;
    } else if (status == KV_OK) {
        int64_t code = f->write_at(f, x->fd, file, (size_t)n, x->at);
        if (code < 0) status = io_failed(code, "write", x->path, err);
        x->chain = chained(x->chain, kv_hash_bytes(file, (size_t)n));
        x->at += n;
        x->sum.records++;
        x->sum.bytes += n;
        if (h->kind == KV_RECORD_BLOCK) add_known(&x->blocks, h->key, h->key, h->e);
    }
    free(file);
    return status;
}

static kv_status write_front(exporting *x, const char *about, uint32_t n_about, kv_error *err) {
    const kv_files *f = x->s->f;
    uint32_t version = KV_TRANSFER_VERSION;
    size_t n = (size_t)front_bytes(n_about);
    unsigned char *p = kv_alloc(n);
    memcpy(p, magic, sizeof magic);
    memcpy(p + AT_VERSION, &version, 4);
    memcpy(p + AT_ABOUT, &n_about, 4);
    memcpy(p + AT_NS, &x->ns, 16);
    memcpy(p + AT_RECORDS, &x->sum.records, 8);
    memcpy(p + AT_BYTES, &x->sum.bytes, 8);
    memcpy(p + AT_CHAIN, &x->chain, 16);
    uint64_t checksum = kv_hash_bytes64(p, AT_CHECKSUM);
    memcpy(p + AT_CHECKSUM, &checksum, 8);
    memcpy(p + HEAD, about, n_about);
    int64_t code = f->write_at(f, x->fd, p, n, 0);
    free(p);
    return code < 0 ? io_failed(code, "write", x->path, err) : KV_OK;
}

static kv_status export_all(exporting *x, const char *about, kv_transfer_progress progress, void *ctx, kv_error *err) {
    kv_status status = kv_store_load(x->s, x->ns, list_head, x, err);
    uint64_t done = 0;
    uint32_t n_about = (uint32_t)strlen(about);
    x->at = front_bytes(n_about);
    x->chain = kv_hash_bytes(about, n_about);
    for (size_t i = 0; i < x->n_heads && status == KV_OK; i++) {
        status = export_record(x, &x->heads[i], err);
        done += kv_format_file_bytes(x->heads[i].n_tokens, x->heads[i].n_payload);
        if (progress) progress(ctx, done, x->total);
    }
    return status == KV_OK ? write_front(x, about, n_about, err) : status;
}

kv_status kv_transfer_export(kv_transfer_sum *out, kv_store *s, kv_hash ns, const char *about, const char *path,
                             kv_transfer_progress progress, void *ctx, kv_error *err) {
    exporting x = {.s = s, .ns = ns, .fd = -1, .path = path};
    kv_file_info info;
    kv_buf tmp = {0}, dir = {0};
    kv_status status = KV_OK;
    *out = (kv_transfer_sum){0};
    if (strlen(about) > KV_STORE_ABOUT_MAX) return kv_fail(err, KV_TOO_LARGE, "the description is too long");
    if (s->f->stat(s->f, path, &info) != -ENOENT)
        return kv_fail(err, KV_INVALID, "there is something named %s already: remove it or give another name", path);
    kv_buf_addf(&tmp, "%s.%d.tmp", path, (int)getpid());
    const char *slash = strrchr(path, '/');
    kv_buf_add(&dir, slash ? path : ".", slash > path ? (size_t)(slash - path) : 1);
    x.fd = s->f->open(s->f, tmp.data, KV_OPEN_CREATE);
    if (x.fd < 0) {
        status = io_failed(x.fd, "write", tmp.data, err);
        goto done;
    }
    status = export_all(&x, about, progress, ctx, err);
    int code = status == KV_OK ? s->f->sync(s->f, x.fd) : 0;
    if (code < 0) status = io_failed(code, "write", path, err);
    code = s->f->close(s->f, x.fd);
    if (status == KV_OK && code == 0) code = s->f->rename(s->f, tmp.data, path);
    if (status == KV_OK && code < 0) status = io_failed(code, "write", path, err);
    if (status == KV_OK) (void)s->f->sync_dir(s->f, dir.data); /* some network file systems refuse */
    else (void)s->f->remove(s->f, tmp.data);
    *out = x.sum;
done:
    free(x.heads);
    free(x.blocks.slots);
    kv_buf_free(&tmp);
    kv_buf_free(&dir);
    return status;
}

/* ── import ────────────────────────────────────────────────────────────────────────────────────────────────────── */

struct kv_import {
    const kv_files *f;
    char *path;
    int fd;
    kv_hash ns, chain;
    uint64_t records, bytes, at; /* at: where the records begin */
    char *about;
};

static kv_status bad(const kv_import *m, kv_error *err, const char *why) {
    return kv_fail(err, KV_CORRUPT, "%s: %s", m->path, why);
}

static kv_status read_header(kv_import *m, uint64_t size, kv_error *err) {
    unsigned char p[HEAD];
    uint32_t version, n_about;
    uint64_t checksum;
    int64_t n = m->f->read_at(m->f, m->fd, p, HEAD, 0);
    if (n < 0) return io_failed(n, "read", m->path, err);
    if (n != HEAD || memcmp(p, magic, sizeof magic) != 0) return bad(m, err, "not a file that `cache export` wrote");
    memcpy(&version, p + AT_VERSION, 4);
    if (version > KV_TRANSFER_VERSION)
        return kv_fail(err, KV_UNSUPPORTED, "%s was exported in layout %u; this kvasir knows %d", m->path, version,
                       KV_TRANSFER_VERSION);
    memcpy(&checksum, p + AT_CHECKSUM, 8);
    if (version != KV_TRANSFER_VERSION || checksum != kv_hash_bytes64(p, AT_CHECKSUM))
        return bad(m, err, "its header is damaged");
    memcpy(&n_about, p + AT_ABOUT, 4);
    memcpy(&m->ns, p + AT_NS, 16);
    memcpy(&m->records, p + AT_RECORDS, 8);
    memcpy(&m->bytes, p + AT_BYTES, 8);
    memcpy(&m->chain, p + AT_CHAIN, 16);
    m->at = front_bytes(n_about);
    if (n_about > KV_STORE_ABOUT_MAX || m->at > size || size - m->at != m->bytes)
        return bad(m, err, "its length does not agree with its header (cut short?)");
    m->about = kv_alloc(n_about + 1u);
    n = m->f->read_at(m->f, m->fd, m->about, n_about, HEAD);
    if (n != (int64_t)n_about) return io_failed(n, "read", m->path, err);
    return strlen(m->about) == n_about ? KV_OK : bad(m, err, "its description is damaged");
}

kv_status kv_import_open(kv_import **out, const kv_files *files, const char *path, kv_error *err) {
    kv_file_info info;
    *out = NULL;
    kv_import *m = kv_alloc(sizeof *m);
    m->f = files ? files : kv_files_real();
    m->path = kv_strdup(path);
    m->fd = m->f->open(m->f, path, KV_OPEN_READ);
    int code = m->fd < 0 ? m->fd : m->f->stat(m->f, path, &info);
    kv_status status = KV_OK;
    if (code < 0) status = io_failed(code, "read", path, err);
    else if (!info.is_regular) status = kv_fail(err, KV_INVALID, "%s is not a regular file", path);
    else status = read_header(m, info.size, err);
    if (status == KV_OK) *out = m;
    else kv_import_close(m);
    return status;
}

void kv_import_close(kv_import *m) {
    if (!m) return;
    if (m->fd >= 0) m->f->close(m->f, m->fd);
    free(m->path);
    free(m->about);
    free(m);
}

kv_hash kv_import_ns(const kv_import *m) {
    return m->ns;
}
kv_hash kv_import_content(const kv_import *m) {
    return m->chain;
}
const char *kv_import_about(const kv_import *m) {
    return m->about;
}

/* The record at `at`, read into *file (owned by the caller) and checked by itself. *n: its bytes. */
static kv_status read_record(void **file, uint64_t *n, kv_record_head *h, const kv_token **tokens, const kv_import *m,
                             uint64_t at, kv_error *err) {
    uint64_t left = m->at + m->bytes - at;
    _Alignas(8) unsigned char front[HEAD];
    *file = NULL;
    int64_t got = left < HEAD ? 0 : m->f->read_at(m->f, m->fd, front, HEAD, at);
    if (got < 0) return io_failed(got, "read", m->path, err);
    /* Its length stands in its own header, which is believed for so long only that it fits. */
    uint64_t n_payload = 0;
    int32_t n_tokens = 0;
    if (got != HEAD || !kv_format_peek_sizes(&n_tokens, &n_payload, front, HEAD) || n_payload > left ||
        kv_format_file_bytes(n_tokens, n_payload) > left)
        return bad(m, err, "a record in it is damaged or cut short");
    *n = kv_format_file_bytes(n_tokens, n_payload);
    *file = aligned_alloc(KV_FORMAT_ALIGN, (size_t)*n);
    if (!*file) return kv_fail(err, KV_NO_MEMORY, "no memory for a record of %llu bytes", (unsigned long long)*n);
    got = m->f->read_at(m->f, m->fd, *file, (size_t)*n, at);
    if (got != (int64_t)*n) return io_failed(got, "read", m->path, err);
    kv_error why;
    kv_status status = kv_format_read(h, tokens, *file, (size_t)*n, *n, &why);
    if (status != KV_OK) return kv_fail(err, status, "%s: a record in it is not whole: %s", m->path, why.message);
    const char *payload = (const char *)*file + kv_format_head_bytes(h->n_tokens);
    if (!*tokens || !kv_hash_equal(kv_hash_bytes(payload, (size_t)h->n_payload), h->payload_hash))
        return bad(m, err, "a record's payload checksum does not hold");
    return KV_OK;
}

/* The record in its place: of this namespace, below a block that came before it. Its last tokens make its key. */
static kv_status check_place(const kv_import *m, const known_set *blocks, const kv_record_head *h,
                             const kv_token *tokens, kv_error *err) {
    int32_t own = h->e - h->q;
    if (!kv_hash_equal(h->ns, m->ns)) return bad(m, err, "a record in it is of another namespace");
    if (h->q < 0 || own < 1 || !hangs(blocks, m->ns, h)) return bad(m, err, "a record in it hangs on nothing");
    if (!kv_hash_equal(h->key, kv_hash_chain(h->parent, tokens + (h->n_tokens - own), (size_t)own)))
        return bad(m, err, "a record's key is not that of its tokens");
    return KV_OK;
}

/* Calls `each` for every record, checked; it says under which key a block is known from then on. */
typedef kv_status (*each_record)(void *ctx, kv_hash *key, const kv_record_head *h, kv_hash parent,
                                 const kv_token *tokens, const void *payload, kv_error *err);

static kv_status walk_records(kv_import *m, kv_hash ns, each_record each, void *each_ctx, kv_transfer_progress progress,
                              void *ctx, kv_error *err) {
    known_set blocks = {0};
    kv_hash chain = kv_hash_bytes(m->about, strlen(m->about));
    kv_status status = KV_OK;
    uint64_t at = m->at, end = m->at + m->bytes, n_records = 0;
    while (status == KV_OK && at < end) {
        void *file;
        uint64_t n = 0;
        kv_record_head h;
        const kv_token *tokens;
        status = read_record(&file, &n, &h, &tokens, m, at, err);
        if (status == KV_OK) status = check_place(m, &blocks, &h, tokens, err);
        if (status == KV_OK) {
            const known *parent = h.q > 0 ? find_known(&blocks, h.parent) : NULL;
            kv_hash key = h.key;
            chain = chained(chain, kv_hash_bytes(file, (size_t)n));
            status = each(each_ctx, &key, &h, parent ? parent->to : ns, tokens,
                          (const char *)file + kv_format_head_bytes(h.n_tokens), err);
            if (h.kind == KV_RECORD_BLOCK) add_known(&blocks, h.key, key, h.e);
            at += n;
            n_records++;
            if (progress) progress(ctx, at - m->at, m->bytes);
        }
        free(file);
    }
    free(blocks.slots);
    if (status != KV_OK) return status;
    if (n_records != m->records || !kv_hash_equal(chain, m->chain)) return bad(m, err, "its checksum does not hold");
    return KV_OK;
}

static kv_status only_look(void *ctx, kv_hash *key, const kv_record_head *h, kv_hash parent, const kv_token *tokens,
                           const void *payload, kv_error *err) {
    (void)ctx, (void)key, (void)h, (void)parent, (void)tokens, (void)payload, (void)err;
    return KV_OK;
}

kv_status kv_import_verify(kv_import *m, kv_transfer_progress progress, void *ctx, kv_error *err) {
    return walk_records(m, m->ns, only_look, NULL, progress, ctx, err);
}

typedef struct storing {
    kv_store *s;
    kv_hash ns;
    kv_transfer_sum sum;
    int waiting; /* written, not committed */
} storing;

static void count_stored(void *ctx, const kv_record_head *h, kv_status status) {
    storing *x = ctx;
    if (status != KV_OK) return;
    x->sum.records++;
    x->sum.bytes += kv_format_file_bytes(h->n_tokens, h->n_payload);
}

static kv_status store_record(void *ctx, kv_hash *key, const kv_record_head *from, kv_hash parent,
                              const kv_token *tokens, const void *payload, kv_error *err) {
    storing *x = ctx;
    kv_record_head h = *from;
    int32_t own = h.e - h.q;
    h.ns = x->ns;
    h.parent = parent;
    h.key = *key = kv_hash_chain(parent, tokens + (h.n_tokens - own), (size_t)own);
    uint64_t bytes = kv_format_file_bytes(h.n_tokens, h.n_payload);
    kv_status status = kv_store_reserve(x->s, &h, kv_store_worth(h.compute_ms, 0, bytes), true, err);
    if (status == KV_INVALID) { /* from an earlier import, or twice in the file */
        x->sum.left_out++;
        return KV_OK;
    }
    if (status == KV_OK) status = kv_store_write(x->s, &h, tokens, payload, err);
    if (status != KV_OK || ++x->waiting < COMMIT_RECORDS) return status;
    x->waiting = 0;
    return kv_store_commit(x->s, count_stored, x, err);
}

kv_status kv_import_store(kv_transfer_sum *out, kv_import *m, kv_store *s, kv_hash ns, kv_transfer_progress progress,
                          void *ctx, kv_error *err) {
    storing x = {.s = s, .ns = ns};
    kv_status status = walk_records(m, ns, store_record, &x, progress, ctx, err);
    kv_status last = kv_store_commit(s, count_stored, &x, status == KV_OK ? err : NULL);
    *out = x.sum;
    return status == KV_OK ? last : status;
}
