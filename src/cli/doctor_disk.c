/* cli/doctor_disk.c: the cache's directory, its volume, how much room there is, and how fast it is.
 *
 * The speed is measured with a file that is opened three times (to write, to read around the page cache, to read through
 * it) and then unlinked, before a byte is in it: whatever ends the process, nothing stays, and no server that shares the
 * directory counts it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cache_tool.h"
#include "cli/doctor_tool.h"

#define FILE_BYTES ((size_t)64 << 20)
#define PIECE      ((size_t)4 << 20) /* about a block of a small model */
#define ALIGN      4096              /* as O_DIRECT wants it */
#define N_SYNCS    16
#define SLOW_READ  100.0 /* MB/s: 2,000 tokens of a small model (50 MB) take half a second */
#define SLOW_WRITE 50.0  /* MB/s: behind a prefill of a few hundred tokens a second at 100 KiB each */
#define SLOW_SYNC  50.0  /* ms; a commit has a file, its folder and the group's others to sync within a second */

/* ── the directory ─────────────────────────────────────────────────────────────────────────────────────────────── */

static int stat_below(kv_file_info *out, const char *dir, const char *name) {
    const kv_files *f = kv_files_real();
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/%s", dir, name);
    int code = f->stat(f, path.data, out);
    kv_buf_free(&path);
    return code;
}

bool kv_doctor_has_cache(const kv_doctor_tool *t) {
    kv_file_info info;
    return t->disk.dir.len > 0 && stat_below(&info, t->disk.dir.data, "ns") == 0 && info.is_dir;
}

/* 0, or -errno of making a file there. */
static int try_to_write(const char *dir) {
    const kv_files *f = kv_files_real();
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/.kvasir-doctor-%ld", dir, (long)getpid());
    int fd = f->open(f, path.data, KV_OPEN_CREATE);
    if (fd >= 0) {
        (void)f->remove(f, path.data);
        f->close(f, fd);
    }
    kv_buf_free(&path);
    return fd < 0 ? fd : 0;
}

static void check_missing(kv_doctor_tool *t) {
    const char *dir = kv_buf_str(&t->disk.dir), *near = kv_buf_str(&t->disk.nearest);
    int code = access(near, W_OK | X_OK) == 0 ? 0 : -errno;
    json_t *values = json_pack("{s:s, s:b}", "path", dir, "exists", 0);
    if (code == 0)
        kv_doctor_find(t, KV_VERDICT_OK, "cache directory", NULL, values, "%s: not there yet, a server makes it", dir);
    else
        kv_doctor_find(t, KV_VERDICT_BAD, "cache directory", "name another with --cache-dir, or make that one yours",
                       values, "%s: not there, and cannot be made in %s: %s", dir, near, strerror(-code));
}

static void check_directory(kv_doctor_tool *t) {
    const char *dir = kv_buf_str(&t->disk.dir), *advice = NULL;
    kv_verdict verdict = KV_VERDICT_OK;
    kv_file_info info;
    int code = stat_below(&info, dir, "."); /* a link in its place is followed, as the server does */
    if (code == -ENOENT) {
        check_missing(t);
        return;
    }
    if (code != 0) {
        kv_doctor_find(t, KV_VERDICT_BAD, "cache directory", "name another with --cache-dir",
                       json_pack("{s:s}", "path", dir), "%s: %s", dir, strerror(-code));
        return;
    }
    code = t->opt.cache_readonly ? 0 : try_to_write(dir);
    bool open_to_others = info.mode & 077;
    kv_buf text = {0};
    kv_buf_addf(&text, "%s, mode %04o, ", dir, (unsigned)info.mode);
    if (info.is_mine) kv_buf_adds(&text, "yours");
    else kv_buf_addf(&text, "of user %u", (unsigned)info.owner);
    if (code != 0) {
        kv_buf_addf(&text, ", cannot be written: %s", strerror(-code));
        verdict = KV_VERDICT_BAD;
        advice = "make it yours and writable, name another with --cache-dir, or say --cache-readonly";
    } else if (!info.is_mine) {
        verdict = KV_VERDICT_WARN;
        advice = "a directory of your own (--cache-dir): what another user stored is not used";
    } else if (open_to_others) {
        verdict = KV_VERDICT_WARN;
        advice = "chmod 700: names and sizes of what is stored are for others to see (its files are not)";
    }
    json_t *values =
        json_pack("{s:s, s:b, s:i, s:i, s:b, s:b}", "path", dir, "exists", 1, "mode", (int)info.mode, "owner",
                  (int)info.owner, "yours", info.is_mine, "writable", code == 0 && !t->opt.cache_readonly);
    kv_doctor_find(t, verdict, "cache directory", advice, values, "%s", kv_buf_str(&text));
    kv_buf_free(&text);
}

/* ── the volume ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void check_volume(kv_doctor_tool *t) {
    const kv_disk_info *d = &t->disk.disk;
    const char *kind = d->memory    ? "in memory"
                       : d->overlay ? "a container's own layer"
                       : d->network ? "on the network"
                                    : "a local disk";
    const char *text = d->memory    ? "it lies in memory: all of it goes with a restart of the machine"
                       : d->overlay ? "a container's own layer: all of it goes with the container"
                       : d->network ? "a file system on the network: slow, and its locks may not hold"
                                    : "a local disk";
    kv_verdict verdict = d->memory || d->overlay || d->network ? KV_VERDICT_WARN : KV_VERDICT_OK;
    const char *advice = verdict == KV_VERDICT_OK ? NULL
                         : d->overlay             ? "mount a volume and name it with --cache-dir"
                                                  : "name a place on a local disk with --cache-dir";
    if (d->read_only && !t->opt.cache_readonly) {
        verdict = KV_VERDICT_BAD;
        text = "it is mounted read-only";
        advice = "name another place with --cache-dir, or say --cache-readonly";
    }
    json_t *values = json_pack("{s:s, s:b}", "kind", kind, "read_only", d->read_only);
    kv_doctor_find(t, verdict, "file system", advice, values, "%s%s", text,
                   verdict == KV_VERDICT_WARN && !t->disk.budget ? "; so nothing is kept on disk" : "");
}

/* ── room ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Bytes below the directory, 0 where there is no cache. */
static uint64_t bytes_used(const kv_doctor_tool *t) {
    kv_store *s = NULL;
    kv_store_stats stats = {0};
    kv_store_config cfg = {.dir = kv_buf_str(&t->disk.dir), .budget = KV_STORE_BUDGET_LAST, .read_only = true};
    if (!kv_doctor_has_cache(t) || kv_store_open(&s, &cfg, NULL) != KV_OK) return 0;
    kv_store_get_stats(&stats, s);
    kv_store_close(s);
    return stats.bytes;
}

static void check_room(kv_doctor_tool *t) {
    const kv_disk_plan *p = &t->disk;
    const kv_disk_info *d = &p->disk;
    if (!p->budget && (d->memory || d->overlay || d->network || d->read_only)) return; /* said of the volume */
    uint64_t used = bytes_used(t), free_now = p->disk.free;
    uint64_t more = free_now > p->keep_free ? free_now - p->keep_free : 0, most = used + more;
    json_t *values =
        json_pack("{s:I, s:I, s:I, s:I}", "used_bytes", (json_int_t)used, "budget_bytes", (json_int_t)p->budget,
                  "free_bytes", (json_int_t)free_now, "keep_free_bytes", (json_int_t)p->keep_free);
    kv_buf text = {0};
    kv_cache_add_bytes(&text, used);
    kv_buf_adds(&text, " used of ");
    kv_cache_add_bytes(&text, p->budget);
    kv_buf_adds(&text, "; the volume has ");
    kv_cache_add_bytes(&text, free_now);
    kv_buf_adds(&text, " free, of which ");
    kv_cache_add_bytes(&text, p->keep_free);
    kv_buf_adds(&text, " stay so");
    if (!p->budget)
        kv_doctor_find(t, KV_VERDICT_WARN, "room", "--cache-dir or --cache-disk SIZE overrides", values,
                       "nothing is kept on disk: %s", p->why);
    else if (p->budget < KV_STORE_MIN)
        kv_doctor_find(t, KV_VERDICT_BAD, "room", "--cache-disk takes at least 1M", values, "%s", kv_buf_str(&text));
    else if (used < p->budget && more == 0)
        kv_doctor_find(t, KV_VERDICT_BAD, "room", "make room on the volume, or name another with --cache-dir", values,
                       "%s: nothing more is stored", kv_buf_str(&text));
    else if (most < p->budget)
        kv_doctor_find(t, KV_VERDICT_WARN, "room", "make room on the volume, or name another with --cache-dir", values,
                       "%s: the budget cannot be filled", kv_buf_str(&text));
    else kv_doctor_find(t, KV_VERDICT_OK, "room", NULL, values, "%s", kv_buf_str(&text));
    kv_buf_free(&text);
}

void kv_doctor_disk(kv_doctor_tool *t) {
    kv_disk_plan_make(&t->disk, &t->opt);
    if (!t->disk.dir.len) {
        bool off = !t->disk.why[0];
        kv_doctor_find(t, off ? KV_VERDICT_OK : KV_VERDICT_WARN, "cache directory",
                       off ? NULL : "name a place with --cache-dir", NULL, "nothing is kept on disk%s%s",
                       off ? ", as asked for" : ": ", t->disk.why);
        return;
    }
    check_directory(t);
    check_volume(t);
    check_room(t);
}

/* ── speed ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct speed {
    int out, direct, plain; /* descriptors of one file; -errno */
    unsigned char *piece;
    double write_mb_s, direct_mb_s, plain_mb_s; /* 10^6 bytes a second */
    double sync_ms;                             /* median of N_SYNCS */
} speed;

static double seconds_since(int64_t us) {
    double s = (double)(kv_now_us(kv_clock_real()) - us) / 1e6;
    return s > 1e-9 ? s : 1e-9;
}

/* The same bytes whenever they are asked for; nothing that a file system could compress. */
static void fill(unsigned char *piece, uint64_t number) {
    uint64_t x = number * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < PIECE; i += sizeof x) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 */
        memcpy(piece + i, &x, sizeof x);
    }
}

static bool is_filled(const unsigned char *piece, uint64_t number) {
    uint64_t x = number * 0x9e3779b97f4a7c15u + 1;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return memcmp(piece, &x, sizeof x) == 0;
}

static int open_all(speed *m, const char *dir) {
    const kv_files *f = kv_files_real();
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/.kvasir-doctor-%ld", dir, (long)getpid());
    m->out = f->open(f, path.data, KV_OPEN_CREATE);
    if (m->out >= 0) {
        m->direct = f->open(f, path.data, KV_OPEN_READ_DIRECT);
        m->plain = f->open(f, path.data, KV_OPEN_READ);
        (void)f->remove(f, path.data);
    }
    kv_buf_free(&path);
    return m->out < 0 ? m->out : m->direct < 0 ? m->direct : m->plain < 0 ? m->plain : 0;
}

static int measure_write(speed *m) {
    const kv_files *f = kv_files_real();
    double spent = 0;
    for (size_t i = 0; i < FILE_BYTES / PIECE; i++) {
        fill(m->piece, i);
        int64_t start = kv_now_us(kv_clock_real());
        int64_t n = f->write_at(f, m->out, m->piece, PIECE, i * PIECE);
        if (n < 0) return (int)n;
        spent += seconds_since(start);
    }
    int64_t start = kv_now_us(kv_clock_real());
    int code = f->sync(f, m->out);
    m->write_mb_s = (double)FILE_BYTES / 1e6 / (spent + seconds_since(start));
    return code;
}

static int measure_read(double *mb_s, speed *m, int fd) {
    const kv_files *f = kv_files_real();
    double spent = 0;
    for (size_t i = 0; i < FILE_BYTES / PIECE; i++) {
        int64_t start = kv_now_us(kv_clock_real());
        int64_t n = f->read_at(f, fd, m->piece, PIECE, i * PIECE);
        spent += seconds_since(start);
        if (n < 0) return (int)n;
        if (n != (int64_t)PIECE || !is_filled(m->piece, i)) return -EIO;
    }
    *mb_s = (double)FILE_BYTES / 1e6 / spent;
    return 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure_sync(speed *m) {
    const kv_files *f = kv_files_real();
    double ms[N_SYNCS];
    for (size_t i = 0; i < N_SYNCS; i++) {
        int64_t n = f->write_at(f, m->out, m->piece, ALIGN, FILE_BYTES + i * ALIGN);
        if (n < 0) return (int)n;
        int64_t start = kv_now_us(kv_clock_real());
        int code = f->sync(f, m->out);
        if (code != 0) return code;
        ms[i] = seconds_since(start) * 1e3;
    }
    qsort(ms, N_SYNCS, sizeof *ms, by_size);
    m->sync_ms = ms[N_SYNCS / 2];
    return 0;
}

static int measure(speed *m, const char *dir) {
    const kv_files *f = kv_files_real();
    *m = (speed){.out = -1, .direct = -1, .plain = -1};
    m->piece = aligned_alloc(ALIGN, PIECE);
    KV_CHECK(m->piece != NULL);
    int code = open_all(m, dir);
    if (code == 0) code = measure_write(m);
    if (code == 0) code = measure_read(&m->direct_mb_s, m, m->direct);
    if (code == 0) code = measure_read(&m->plain_mb_s, m, m->plain);
    if (code == 0) code = measure_sync(m);
    int fds[] = {m->out, m->direct, m->plain};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) f->close(f, fds[i]);
    free(m->piece);
    return code;
}

static void tell_speed(kv_doctor_tool *t, const speed *m) {
    bool reads = m->direct_mb_s < SLOW_READ, writes = m->write_mb_s<SLOW_WRITE, syncs = m->sync_ms> SLOW_SYNC;
    const char *advice = reads    ? "a faster disk (--cache-dir): bringing conversations back is slow on this one"
                         : writes ? "a faster disk (--cache-dir): writing falls behind long prompts on this one"
                         : syncs  ? "a faster disk (--cache-dir): a crash may cost the last seconds' work on this one"
                                  : NULL;
    json_t *values = json_pack("{s:f, s:f, s:f, s:f}", "write_mb_s", m->write_mb_s, "direct_mb_s", m->direct_mb_s,
                               "buffered_mb_s", m->plain_mb_s, "fsync_ms", m->sync_ms);
    kv_doctor_find(t, advice ? KV_VERDICT_WARN : KV_VERDICT_OK, "disk speed", advice, values,
                   "writes %.0f MB/s with fsync, reads %.0f around the page cache, %.0f from it; fsync %.1f ms",
                   m->write_mb_s, m->direct_mb_s, m->plain_mb_s, m->sync_ms);
}

void kv_doctor_speed(kv_doctor_tool *t) {
    const kv_disk_plan *p = &t->disk;
    kv_file_info info;
    if (!p->dir.len || t->no_speed || p->disk.read_only || t->opt.cache_readonly) return;
    if (p->disk.free < FILE_BYTES * 2) {
        kv_doctor_find(t, KV_VERDICT_WARN, "disk speed", "make room on the volume", NULL,
                       "not measured: the volume is nearly full");
        return;
    }
    kv_buf place = {0};
    kv_buf_adds(&place, kv_buf_str(&p->nearest));
    if (stat_below(&info, kv_buf_str(&p->dir), "tmp") == 0 && info.is_dir) kv_buf_adds(&place, "/tmp");
    speed m;
    int code = measure(&m, kv_buf_str(&place));
    if (code == 0) tell_speed(t, &m);
    else
        kv_doctor_find(t, code == -EIO ? KV_VERDICT_BAD : KV_VERDICT_WARN, "disk speed",
                       code == -EIO ? "do not trust this disk: name another place with --cache-dir" : NULL, NULL,
                       "not measured in %s: %s", kv_buf_str(&place), strerror(-code));
    kv_buf_free(&place);
}
