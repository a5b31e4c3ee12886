/* store/recover.c: what opening makes of the files.
 *
 *   rows of the index ─► table ─┐
 *   names and sizes of all files ┴► known: bytes as they are      in the index only: the row goes
 *                                   unknown: header read, row made; damaged: quarantine; newer format: left alone
 *   sum of all bytes ─► accounts (unless other processes live: then theirs stands)
 *   tmp/: files of processes that are gone are removed
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/store_private.h"

/* ── tmp/ ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool parse_owner(kv_hash *id, const char *name) {
    char hex[33] = {0};
    if (strlen(name) < 33) return false;
    memcpy(hex, name, 32);
    return (name[32] == '-' || strcmp(name + 32, ".alive") == 0) && kv_hash_from_hex(id, hex);
}

typedef enum life { DEAD, ALIVE, IN_DOUBT } life;

/* A process lives while it holds the lock on its file. */
static life life_of(kv_store *s, kv_hash id) {
    kv_path path;
    kv_file_info info;
    char hex[33];
    if (kv_hash_equal(id, s->id)) return ALIVE;
    kv_hash_hex(hex, id);
    kv_store_path(&path, s, "/tmp/%s.alive", hex);
    if (s->f->stat(s->f, path.s, &info) == -ENOENT) return DEAD;
    int fd = s->f->lock(s->f, path.s, false);
    if (fd < 0) return fd == -EWOULDBLOCK ? ALIVE : IN_DOUBT;
    s->f->close(s->f, fd);
    return DEAD;
}

static bool is_alive(void *ctx, kv_hash id) {
    return life_of(ctx, id) != DEAD; /* in doubt: the safe side */
}

typedef struct sharers {
    kv_store *s;
    int n;
} sharers;

static bool count_sharer(void *ctx, const char *name) {
    sharers *c = ctx;
    kv_hash id;
    if (parse_owner(&id, name) && name[32] == '.' && !kv_hash_equal(id, c->s->id) && is_alive(c->s, id)) c->n++;
    return true;
}

int kv_store_sharers(kv_store *s) {
    sharers c = {.s = s};
    kv_path dir;
    kv_store_path(&dir, s, "/tmp");
    (void)s->f->list(s->f, dir.s, count_sharer, &c);
    return c.n;
}

typedef struct tmp_walk {
    kv_store *s;
    bool markers; /* second round: the .alive files themselves */
    bool dry_run;
    uint64_t removed, left; /* bytes; left: not removed, and in nobody's reservation */
    int status;             /* -errno of what could not be seen */
} tmp_walk;

static bool clean_tmp_entry(void *ctx, const char *name) {
    tmp_walk *w = ctx;
    kv_path path;
    kv_file_info info;
    kv_hash id;
    if (!parse_owner(&id, name) || (name[32] == '.') != w->markers) return true;
    life owner = life_of(w->s, id);
    if (owner == ALIVE) return true;
    kv_store_path(&path, w->s, "/tmp/%s", name);
    int code = w->s->f->stat(w->s->f, path.s, &info);
    if (code != 0 && code != -ENOENT) w->status = code;
    if (code != 0 || !info.is_mine || !info.is_regular) return true;
    if (owner == DEAD && (w->dry_run || w->s->f->remove(w->s->f, path.s) == 0)) w->removed += info.disk;
    else w->left += info.disk;
    return true;
}

static void clean(tmp_walk *w) {
    kv_path dir;
    kv_store_path(&dir, w->s, "/tmp");
    int code = w->s->f->list(w->s->f, dir.s, clean_tmp_entry, w);
    if (code != 0 && code != -ENOENT) w->status = code;
    w->markers = true;
    if (!w->dry_run && w->left == 0 && w->status == 0) (void)w->s->f->list(w->s->f, dir.s, clean_tmp_entry, w);
}

uint64_t kv_store_clean_tmp(kv_store *s, bool dry_run) {
    tmp_walk w = {.s = s, .dry_run = dry_run};
    clean(&w);
    return w.removed;
}

/* ── the walk ──────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct walk {
    kv_store *s;
    uint64_t sum;
    unsigned char *seen; /* a bit for each row that the index brought */
    uint32_t n_known;
    kv_record_head *damaged, *pinned;
    size_t n_damaged, n_pinned;
    int status;   /* -errno of a folder that could not be listed: nothing is concluded from what was not seen */
    kv_path path; /* of the folder being listed */
    kv_hash ns;
    uint16_t ns_number;
    int sub;
} walk;

static void push_head(kv_record_head **list, size_t *n, const kv_record_head *h) {
    if ((*n & (*n - 1)) == 0) *list = kv_realloc(*list, (*n ? *n * 2 : 1) * sizeof **list);
    (*list)[(*n)++] = *h;
}

/* Of w->path. False: it is not there any more, not ours, or not to be seen, which the walk's status says. */
static bool stat_entry(walk *w, kv_file_info *info) {
    int code = w->s->f->stat(w->s->f, w->path.s, info);
    if (code != 0 && code != -ENOENT) w->status = code;
    return code == 0 && info->is_mine;
}

/* Anything else below DIR: counted, left alone. */
static bool count_entry(void *ctx, const char *name) {
    walk *w = ctx;
    kv_file_info info;
    size_t n = strlen(w->path.s);
    if (n + 1 + strlen(name) >= sizeof w->path.s) return true;
    w->path.s[n] = '/';
    strcpy(w->path.s + n + 1, name);
    if (stat_entry(w, &info)) {
        w->sum += info.disk;
        int status = info.is_dir ? w->s->f->list(w->s->f, w->path.s, count_entry, w) : 0;
        if (status != 0) w->status = status;
    }
    w->path.s[n] = '\0';
    return true;
}

static void add_row(walk *w, const kv_record_head *h, const kv_file_info *info) {
    int64_t now = kv_store_now(w->s);
    kv_table_row row = {
        .key = h->key,
        .parent = h->parent,
        .shape_class = h->shape_class,
        .n_payload = h->n_payload,
        .disk = info->disk,
        .q = h->q,
        .e = h->e,
        .compute_ms = h->compute_ms,
        .keep = h->keep_seconds,
        .place = (uint8_t)h->place,
        .last_used = (uint32_t)(info->mtime < 0     ? 0
                                : info->mtime < now ? info->mtime
                                                    : now),
        .created = (uint32_t)(h->created < 0     ? 0
                              : h->created < now ? h->created
                                                 : now),
        .ns = w->ns_number,
        .kind = (uint8_t)h->kind,
        .flags = (uint8_t)(KV_ROW_USED | (h->canonical ? KV_ROW_CANONICAL : 0)),
    };
    kv_table_add(&w->s->table, &row);
    w->s->n_used++;
}

/* KV_OK, KV_CORRUPT, KV_UNSUPPORTED, or KV_IO: not now. */
static kv_status read_head(kv_record_head *h, kv_store *s, const char *path, uint64_t size) {
    int fd = s->f->open(s->f, path, KV_OPEN_READ);
    if (fd < 0)
        return fd == -EACCES || fd == -EPERM ? KV_CORRUPT : kv_store_faulted(s, KV_STORE_FAULT_OPEN, fd, path, NULL);
    size_t n = KV_FORMAT_ALIGN; /* of most records header and tokens are in the first page */
    void *front = kv_alloc(n);
    const kv_token *tokens = NULL;
    int64_t got = s->f->read_at(s->f, fd, front, n, 0);
    kv_status status = got < 0 ? KV_IO : kv_format_read(h, &tokens, front, (size_t)got, size, NULL);
    if (status == KV_OK && !tokens) {
        n = kv_format_head_bytes(h->n_tokens);
        front = kv_realloc(front, n);
        got = s->f->read_at(s->f, fd, front, n, 0);
        status = got < 0 ? KV_IO : kv_format_read(h, &tokens, front, (size_t)got, size, NULL);
        if (status == KV_OK && !tokens) status = KV_CORRUPT;
    }
    if (got < 0) (void)kv_store_faulted(s, KV_STORE_FAULT_READ, got, path, NULL);
    s->f->close(s->f, fd);
    free(front);
    return status;
}

static void record_file(walk *w, const kv_hash *key, kv_record_kind kind, const char *path, const kv_file_info *info) {
    kv_store *s = w->s;
    kv_record_head h = {.kind = kind, .ns = w->ns, .key = *key}, got = {0};
    uint32_t i = kv_table_find(&s->table, w->ns, *key, kind);
    if (i != KV_NO_ROW && i < w->n_known) {
        kv_table_row *r = &s->table.rows[i];
        w->seen[i / 8] |= (unsigned char)(1 << i % 8);
        if (kv_format_file_bytes(kv_table_n_tokens(r), r->n_payload) != info->size) {
            push_head(&w->damaged, &w->n_damaged, &h);
        } else if (r->disk != info->disk) {
            s->table.bytes_of_kind[kind] += info->disk - r->disk;
            r->disk = info->disk;
            kv_table_changed(&s->table, i);
        }
        return;
    }
    kv_status status = read_head(&got, s, path, info->size);
    bool other = got.kind != kind || !kv_hash_equal(got.key, *key) || !kv_hash_equal(got.ns, w->ns);
    if (status == KV_OK && !other) add_row(w, &got, info);
    else if (status == KV_OK || status == KV_CORRUPT) push_head(&w->damaged, &w->n_damaged, &h);
}

static bool record_entry(void *ctx, const char *name) {
    walk *w = ctx;
    kv_file_info info;
    kv_hash key;
    kv_record_kind kind;
    size_t n = strlen(w->path.s), m = strlen(name);
    if (n + 1 + m >= sizeof w->path.s) return true;
    w->path.s[n] = '/';
    strcpy(w->path.s + n + 1, name);
    if (stat_entry(w, &info)) {
        w->sum += info.disk;
        char stem[35] = {0};
        if (m >= 34) memcpy(stem, name, 34);
        bool is_record = info.is_regular && kv_store_parse_name(&key, &kind, stem) && (int)(key.hi >> 56) == w->sub;
        if (is_record && m == 34) {
            record_file(w, &key, kind, w->path.s, &info);
        } else if (is_record && strcmp(name + 34, ".pin") == 0) {
            kv_record_head h = {.kind = kind, .ns = w->ns, .key = key};
            push_head(&w->pinned, &w->n_pinned, &h);
        }
    }
    w->path.s[n] = '\0';
    return true;
}

/* "ab" below a namespace, and about.json beside it. */
static bool sub_entry(void *ctx, const char *name) {
    walk *w = ctx;
    static const char digits[] = "0123456789abcdef";
    kv_file_info info;
    size_t n = strlen(w->path.s);
    if (strlen(name) > 64) return true;
    w->path.s[n] = '/';
    strcpy(w->path.s + n + 1, name);
    if (stat_entry(w, &info)) {
        w->sum += info.disk;
        const char *high = strchr(digits, name[0]), *low = high ? strchr(digits, name[1]) : NULL;
        if (info.is_dir && strlen(name) == 2 && high && low) {
            w->sub = (int)(high - digits) * 16 + (int)(low - digits);
            kv_ns_dirs *d = kv_store_dirs(w->s, w->ns_number);
            d->sub[w->sub] = (uint32_t)info.disk;
            d->sub_made[w->sub] = true;
            int status = w->s->f->list(w->s->f, w->path.s, record_entry, w);
            if (status != 0) w->status = status;
        }
    }
    w->path.s[n] = '\0';
    return true;
}

static bool ns_entry(void *ctx, const char *name) {
    walk *w = ctx;
    kv_file_info info;
    size_t n = strlen(w->path.s);
    if (strlen(name) != 32 || !kv_hash_from_hex(&w->ns, name)) return count_entry(ctx, name);
    w->path.s[n] = '/';
    strcpy(w->path.s + n + 1, name);
    if (stat_entry(w, &info) && info.is_dir && kv_table_ns(&w->ns_number, &w->s->table, w->ns)) {
        w->sum += info.disk;
        kv_ns_dirs *d = kv_store_dirs(w->s, w->ns_number);
        d->own = (uint32_t)info.disk;
        d->made = true;
        /* A process that was killed may have made folders and not synced them. */
        if (!w->s->cfg.read_only && w->s->f->sync_dir(w->s->f, w->path.s) != 0) w->status = -EIO;
        int status = w->s->f->list(w->s->f, w->path.s, sub_entry, w);
        if (status != 0) w->status = status;
    }
    w->path.s[n] = '\0';
    return true;
}

static bool root_entry(void *ctx, const char *name) {
    if (strncmp(name, "index.sqlite", 12) == 0 || strncmp(name, KV_SPELLINGS_FILE, sizeof KV_SPELLINGS_FILE - 1) == 0 ||
        strcmp(name, "ns") == 0 || strcmp(name, "tmp") == 0 || strcmp(name, "accounts") == 0)
        return true; /* the databases are measured when it matters; the others are counted apart */
    return count_entry(ctx, name);
}

static uint32_t size_of(walk *w, const char *name) {
    kv_path path;
    kv_file_info info;
    kv_store_path(&path, w->s, "%s", name);
    int code = w->s->f->stat(w->s->f, path.s, &info);
    if (code != 0 && code != -ENOENT) w->status = code;
    return code == 0 ? (uint32_t)info.disk : 0;
}

static void walk_all(walk *w) {
    kv_store *s = w->s;
    s->root_size = size_of(w, "");
    s->ns_size = size_of(w, "/ns");
    s->tmp_size = size_of(w, "/tmp");
    s->quarantine_size = size_of(w, "/quarantine");
    uint32_t accounts = size_of(w, "/accounts"); /* where there is none, it is about to be written */
    w->sum += s->root_size + s->ns_size + s->tmp_size + (accounts > KV_ACCOUNTS_SIZE ? accounts : KV_ACCOUNTS_SIZE);
    kv_store_path(&w->path, s, "%s", "");
    int status = s->f->list(s->f, w->path.s, root_entry, w);
    if (status != 0) w->status = status;
    kv_store_path(&w->path, s, "/ns");
    if (!s->cfg.read_only) (void)s->f->sync_dir(s->f, w->path.s);
    status = s->f->list(s->f, w->path.s, ns_entry, w);
    if (status != 0 && status != -ENOENT) w->status = status;
}

typedef struct opening {
    walk *w;
    kv_store *s;
} opening;
static bool opening_alive(void *ctx, kv_hash id) {
    return is_alive(((opening *)ctx)->s, id);
}
static uint64_t opening_count(void *ctx) {
    return ((opening *)ctx)->w->sum;
}

/* Rows of the index whose file was not met. */
static void drop_unseen(walk *w) {
    kv_store *s = w->s;
    kv_index_row *gone = NULL;
    size_t n = 0;
    for (uint32_t i = 0; i < w->n_known; i++) {
        if (!s->table.rows[i].kind || w->seen[i / 8] & 1 << i % 8) continue;
        if ((n & (n - 1)) == 0) gone = kv_realloc(gone, (n ? n * 2 : 1) * sizeof *gone);
        kv_table_take_out(&gone[n].row, &s->table, i);
        gone[n].ns = s->table.ns[gone[n].row.ns];
        n++;
    }
    kv_store_index_remove(s, gone, n);
    free(gone);
}

static void set_pins(walk *w) {
    kv_store *s = w->s;
    for (size_t i = 0; i < w->n_pinned; i++) {
        uint32_t k = kv_table_find(&s->table, w->pinned[i].ns, w->pinned[i].key, w->pinned[i].kind);
        if (k == KV_NO_ROW) continue;
        s->table.rows[k].flags |= KV_ROW_PINNED;
        kv_table_changed(&s->table, k);
    }
}

kv_status kv_store_recover(kv_store *s, kv_error *err) {
    walk w = {.s = s, .n_known = s->table.n_slots};
    tmp_walk tmp = {.s = s};
    kv_status status = KV_OK;
    w.seen = kv_alloc(w.n_known / 8 + 1);
    if (!s->cfg.read_only) clean(&tmp);
    w.status = tmp.status;
    walk_all(&w);
    w.sum += tmp.left;
    if (w.status != 0) { /* a budget cannot be kept over files that cannot be seen */
        status = kv_store_faulted(s, KV_STORE_FAULT_OPEN, w.status, s->cfg.dir, err);
        goto done;
    }
    opening o = {&w, s};
    kv_accounts_open(&s->acc, opening_alive, opening_count, &o);
    drop_unseen(&w);
    set_pins(&w);
    for (size_t i = 0; i < w.n_damaged; i++) kv_store_quarantine(s, &w.damaged[i], "found at start");
done:
    free(w.seen);
    free(w.damaged);
    free(w.pinned);
    return status;
}
