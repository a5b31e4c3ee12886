/* One file over HTTP.
 *
 *   nothing ─► PATH.downloadInProgress grows ─► whole, SHA-256 right, fsync ─► renamed to PATH
 *                 ▲          │ cut off
 *                 └──────────┘ the next try asks for the rest (Range); a server that sends all again is taken from 0
 *
 * What has no SHA-256 to be held against must not be put together from two versions: the server's ETag is kept beside the
 * unfinished file, and the rest is only asked for if the file still has it (If-Range).
 *
 * The hash runs along with what is written, and over what was there before. An exclusive lock on the unfinished file keeps
 * a second kvasir out. */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hub/hub_private.h"
#include "os/files.h"
#include "os/machine.h"

#define TRIES         4  /* as long as each gets further, there are more */
#define STALLED_S     60 /* without a byte */
#define CONNECT_S     30
#define TELL_EVERY_US 200000
#define REDIRECTS     10
#define LOCK_TRIES    10 /* each is lost to a program that was done just then */
#define COPY_BYTES    (1u << 20)

typedef struct transfer {
    const kv_hub_fetch *f;
    int fd;
    uint64_t done, total; /* bytes of the file; total 0: unknown */
    crypto_hash_sha256_state hash;
    CURL *curl;
    bool begun; /* this answer's first bytes were looked at */
    bool cancelled, bad_disk;
    int disk_errno;
    int64_t told_us;
    char sha256[65];     /* of the server's headers; "" = none */
    char validator[200]; /* the strong ETag of what is in the unfinished file; "" = none */
    const char *unfinished;
    const char *shown; /* the URL for messages, without what may be secret in it */
    char etag[200];
    kv_buf body; /* of an answer that is no file: for the message */
} transfer;

/* ── answers ── */

static CURL *new_handle(const char *url, const char *token, struct curl_slist **headers) {
    CURL *c = curl_easy_init();
    if (!c) return NULL;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)REDIRECTS);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "kvasir/" KVASIR_VERSION);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
    if (token) { /* curl sends it to the first host only, not to where a redirect leads */
        curl_easy_setopt(c, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
        curl_easy_setopt(c, CURLOPT_XOAUTH2_BEARER, token);
    }
    if (headers && *headers) curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers);
    return c;
}

typedef struct small {
    kv_buf *out;
    size_t max;
} small;

static size_t take_small(char *data, size_t size, size_t n, void *ctx) {
    small *s = ctx;
    n *= size;
    if (s->out->len + n > s->max) return 0;
    kv_buf_add(s->out, data, n);
    return n;
}

kv_status kv_hub_get(kv_buf *out, long *http, const char *url, const char *token, size_t max, kv_error *err) {
    struct curl_slist *headers = curl_slist_append(NULL, "Accept: application/json");
    CURL *c = new_handle(url, token, &headers);
    small s = {out, max};
    char detail[CURL_ERROR_SIZE] = "";
    kv_status st = KV_OK;
    *http = 0;
    if (!c) {
        curl_slist_free_all(headers);
        return kv_fail(err, KV_INTERNAL, "libcurl cannot be started");
    }
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_small);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &s);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, detail);
    CURLcode code = curl_easy_perform(c);
    if (code != CURLE_OK) st = kv_fail(err, KV_IO, "%s: %s", url, detail[0] ? detail : curl_easy_strerror(code));
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, http);
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    return st;
}

/* ── the unfinished file ── */

static bool hash_what_is_there(transfer *t) {
    char *bytes = malloc(COPY_BYTES);
    ssize_t n = -1;
    crypto_hash_sha256_init(&t->hash);
    t->done = 0;
    while (bytes && (n = pread(t->fd, bytes, COPY_BYTES, (off_t)t->done)) > 0) {
        crypto_hash_sha256_update(&t->hash, (const unsigned char *)bytes, (unsigned long long)n);
        t->done += (uint64_t)n;
    }
    free(bytes);
    return n == 0;
}

static bool from_the_start(transfer *t) {
    t->done = 0;
    crypto_hash_sha256_init(&t->hash);
    return ftruncate(t->fd, 0) == 0;
}

/* False when who had the lock before has published the file meanwhile, or removed it: writing into it would write into
 * the model. */
static bool stands_at(int fd, const char *path) {
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

static kv_status open_unfinished(transfer *t, const char *path, kv_error *err) {
    kv_buf dir = {0};
    const char *slash = strrchr(path, '/');
    kv_status st = KV_OK;
    if (slash && slash > path) {
        kv_buf_add(&dir, path, (size_t)(slash - path));
        st = kv_dir_make(kv_buf_str(&dir), err);
    }
    kv_buf_free(&dir);
    if (st != KV_OK) return st;
    int tries = 0;
    do {
        if (t->fd >= 0) close(t->fd);
        t->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (t->fd < 0) return kv_fail_errno(err, "open %s", path);
        bool locked = flock(t->fd, LOCK_EX | LOCK_NB) == 0;
        if (!locked && errno != EWOULDBLOCK) return kv_fail_errno(err, "lock %s", path);
        if (!locked || ++tries == LOCK_TRIES) {
            return kv_fail(err, KV_BUSY, "another program is fetching %s: start again when it is done", t->f->name);
        }
    } while (!stands_at(t->fd, path));
    if (!hash_what_is_there(t)) return kv_fail_errno(err, "read %s", path);
    return KV_OK;
}

static bool is_published(const kv_hub_fetch *f) {
    struct stat s;
    return stat(f->path, &s) == 0 && S_ISREG(s.st_mode);
}

/* Where the size is known: better to say now that it does not fit than in an hour. */
static kv_status check_room(const transfer *t, kv_error *err) {
    kv_disk_info disk;
    uint64_t left = t->f->size > t->done ? t->f->size - t->done : 0;
    if (left == 0 || kv_files_real()->disk(kv_files_real(), t->unfinished, &disk) != 0 || disk.free > left)
        return KV_OK;
    return kv_fail(err, KV_IO, "%s needs %.1f GB more, and the disk of %s has %.1f GB free", t->f->name,
                   (double)left / 1e9, t->f->path, (double)disk.free / 1e9);
}

/* ── one try ── */

static void tell(transfer *t, bool at_any_rate) {
    const kv_hub_ask *ask = t->f->ask;
    int64_t now = kv_now_us(kv_clock_real());
    if (!ask || !ask->progress || (!at_any_rate && now - t->told_us < TELL_EVERY_US)) return;
    t->told_us = now;
    t->cancelled = !ask->progress(ask->ctx, t->f->name, t->done, t->total);
}

/* The value of a header line, without blanks around it; false when the line is another header. */
static bool header_is(char *out, size_t cap, const char *line, size_t n, const char *name) {
    size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':') return false;
    const char *s = line + len + 1, *e = line + n;
    while (s < e && *s == ' ') s++;
    while (e > s && strchr("\r\n ", e[-1])) e--;
    if ((size_t)(e - s) >= cap) return false;
    memcpy(out, s, (size_t)(e - s));
    out[e - s] = 0;
    return true;
}

/* Of a redirect too: the Hugging Face server names the content's hash in the answer that sends us on. */
static size_t take_header(char *line, size_t size, size_t n, void *ctx) {
    transfer *t = ctx;
    char value[200];
    n *= size;
    if (n > 5 && memcmp(line, "HTTP/", 5) == 0) t->etag[0] = 0; /* the next answer */
    if (header_is(value, sizeof value, line, n, "ETag")) snprintf(t->etag, sizeof t->etag, "%s", value);
    if (header_is(value, sizeof value, line, n, "X-Linked-ETag") && strlen(value) == 66) {
        value[65] = 0; /* between its quotes */
        if (kv_hub_is_hex(value + 1, 64)) memcpy(t->sha256, value + 1, 65);
    }
    return n;
}

static void etag_path(kv_buf *out, const transfer *t) {
    kv_buf_addf(out, "%s.etag", t->unfinished);
}

/* Of an answer that begins anew. */
static void keep_validator(transfer *t) {
    kv_buf path = {0};
    bool strong = t->etag[0] == '"';
    if (t->f->sha256) return;
    snprintf(t->validator, sizeof t->validator, "%s", strong ? t->etag : "");
    etag_path(&path, t);
    if (strong) kv_file_publish(kv_buf_str(&path), t->etag, strlen(t->etag), NULL);
    else unlink(kv_buf_str(&path));
    kv_buf_free(&path);
}

static void read_validator(transfer *t) {
    kv_buf path = {0}, text = {0};
    etag_path(&path, t);
    bool ok = kv_file_read(&text, kv_buf_str(&path), sizeof t->validator - 1, NULL) == KV_OK;
    if (ok && !strpbrk(kv_buf_str(&text), "\r\n")) snprintf(t->validator, sizeof t->validator, "%s", kv_buf_str(&text));
    kv_buf_free(&path);
    kv_buf_free(&text);
}

/* Whether the answer goes on where we are, begins anew, or is no file at all. */
static bool begin(transfer *t) {
    long http = 0;
    curl_off_t length = -1;
    t->begun = true;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (http == 200 && t->done > 0 && !from_the_start(t)) {
        t->bad_disk = true;
        t->disk_errno = errno;
        return false;
    }
    if (http == 200) keep_validator(t);
    if (http == 200 || http == 206) t->total = length >= 0 ? t->done + (uint64_t)length : t->f->size;
    return http == 200 || http == 206;
}

static size_t take_bytes(char *data, size_t size, size_t n, void *ctx) {
    transfer *t = ctx;
    n *= size;
    if (!t->begun && !begin(t) && t->bad_disk) return 0;
    long http = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
    if (http != 200 && http != 206) {
        if (t->body.len < 300) kv_buf_add(&t->body, data, n > 300 ? 300 : n);
        return n;
    }
    for (size_t at = 0; at < n;) {
        ssize_t w = pwrite(t->fd, data + at, n - at, (off_t)(t->done + at));
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) {
            t->bad_disk = true;
            t->disk_errno = errno;
            return 0;
        }
        at += (size_t)w;
    }
    crypto_hash_sha256_update(&t->hash, (const unsigned char *)data, n);
    t->done += n;
    tell(t, false);
    return t->cancelled ? 0 : n;
}

static kv_status refused(const transfer *t, long http, kv_error *err) {
    const char *name = t->f->name;
    if (http == 401 || http == 403)
        return kv_fail(err, KV_FORBIDDEN, "%s: the server says %ld: %s", name, http,
                       t->f->token ? "the token (--hf-token, HF_TOKEN) does not open it"
                                   : "it wants an access token: give HF_TOKEN or --hf-token");
    if (http == 404) return kv_fail(err, KV_NOT_FOUND, "%s: there is nothing at %s", name, t->shown);
    return kv_fail(err, KV_IO, "%s: the server says %ld at %s", name, http, t->shown);
}

/* KV_OK: the file is whole. *again: it is worth another try. */
static kv_status try_once(transfer *t, bool *again, kv_error *err) {
    char range[40], detail[CURL_ERROR_SIZE] = "";
    long http = 0;
    *again = false;
    if (t->f->size > 0 && t->done == t->f->size) return KV_OK; /* only the renaming was missing */
    if (t->done > 0 && !t->f->sha256 && !t->validator[0] && !from_the_start(t))
        return kv_fail_errno(err, "empty %s", t->unfinished);
    struct curl_slist *headers = NULL;
    if (t->done > 0 && !t->f->sha256) {
        char line[220];
        snprintf(line, sizeof line, "If-Range: %s", t->validator);
        headers = curl_slist_append(NULL, line);
    }
    t->curl = new_handle(t->f->url, t->f->token, &headers);
    if (!t->curl) {
        curl_slist_free_all(headers);
        return kv_fail(err, KV_INTERNAL, "libcurl cannot be started");
    }
    t->begun = false;
    kv_buf_clear(&t->body);
    snprintf(range, sizeof range, "%llu-", (unsigned long long)t->done);
    if (t->done > 0) curl_easy_setopt(t->curl, CURLOPT_RANGE, range);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(t->curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, detail);
    CURLcode code = curl_easy_perform(t->curl);
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
    if (code == CURLE_OK && !t->begun) begin(t); /* an answer without a byte */
    curl_easy_cleanup(t->curl);
    curl_slist_free_all(headers);
    t->curl = NULL;

    if (t->cancelled)
        return kv_fail(err, KV_CANCELLED, "%s: fetching was ended; a new start goes on there", t->f->name);
    if (t->bad_disk) {
        errno = t->disk_errno;
        return kv_fail_errno(err, "write %s", t->f->name);
    }
    if (http == 416) { /* what is here is as long as the file, or longer: then it is another file's */
        *again = from_the_start(t);
        return refused(t, http, err);
    }
    *again = code != CURLE_OK || http >= 500 || http == 429 || http == 408;
    if (code != CURLE_OK && code != CURLE_WRITE_ERROR)
        return kv_fail(err, KV_IO, "%s: %s: %s", t->f->name, t->shown, detail[0] ? detail : curl_easy_strerror(code));
    return http == 200 || http == 206 ? KV_OK : refused(t, http, err);
}

/* ── all tries, and the end ── */

static void wait_before(int failures) {
    struct timespec pause = {.tv_sec = failures - 1, .tv_nsec = 300 * 1000000}; /* 0.3, 1.3, 2.3 s */
    nanosleep(&pause, NULL);
}

static kv_status fetch(transfer *t, kv_error *err) {
    int failures = 0;
    for (;;) {
        bool again;
        uint64_t before = t->done;
        kv_status st = try_once(t, &again, err);
        if (st == KV_OK) return KV_OK;
        failures = t->done > before ? 1 : failures + 1;
        if (!again || failures == TRIES) return st;
        KV_WARN("%s; trying again at byte %llu", err ? err->message : "fetching failed", (unsigned long long)t->done);
        wait_before(failures);
    }
}

static kv_status check(transfer *t, kv_error *err) {
    unsigned char sum[crypto_hash_sha256_BYTES];
    char hex[2 * sizeof sum + 1];
    const char *want = t->f->sha256 ? t->f->sha256 : t->sha256[0] ? t->sha256 : NULL;
    crypto_hash_sha256_final(&t->hash, sum);
    sodium_bin2hex(hex, sizeof hex, sum, sizeof sum);
    bool right = (!want || strcasecmp(hex, want) == 0) && (t->f->size == 0 || t->done == t->f->size);
    if (right) return KV_OK;
    unlink(t->unfinished); /* going on from here would give the same again */
    if (t->f->size && t->done != t->f->size)
        return kv_fail(err, KV_CORRUPT, "%s: %llu bytes came, the repository says %llu; it was removed, try again",
                       t->f->name, (unsigned long long)t->done, (unsigned long long)t->f->size);
    return kv_fail(err, KV_CORRUPT,
                   "%s: the SHA-256 of what came is %.16s…, it should be %.16s…; it was removed, try again", t->f->name,
                   hex, want);
}

static kv_status publish(transfer *t, kv_error *err) {
    const kv_files *files = kv_files_real();
    const char *path = t->f->path, *slash = strrchr(path, '/');
    kv_buf dir = {0};
    int code = files->sync(files, t->fd);
    if (code == 0) code = files->rename(files, t->unfinished, path);
    kv_buf_add(&dir, slash ? path : ".", slash ? (size_t)(slash - path) : 1);
    if (code == 0) code = files->sync_dir(files, dir.len ? kv_buf_str(&dir) : "/");
    kv_buf_free(&dir);
    if (code != 0) {
        errno = -code;
        return kv_fail_errno(err, "publish %s", path);
    }
    kv_buf etag = {0};
    etag_path(&etag, t);
    if (!t->f->sha256) unlink(kv_buf_str(&etag));
    kv_buf_free(&etag);
    if (!t->f->keep_etag || !t->etag[0]) return KV_OK;
    kv_buf_addf(&etag, "%s.etag", path);
    kv_file_publish(kv_buf_str(&etag), t->etag, strlen(t->etag), NULL); /* of use only to llama-server */
    kv_buf_free(&etag);
    return KV_OK;
}

kv_status kv_hub_fetch_file(const kv_hub_fetch *f, kv_error *err) {
    kv_error inner = {0}; /* retries tell what went wrong, also to a caller who does not ask */
    kv_buf unfinished = {0}, shown = {0};
    transfer t = {.f = f, .fd = -1};
    if (sodium_init() < 0) return kv_fail(err, KV_INTERNAL, "libsodium cannot be started");
    kv_buf_addf(&unfinished, "%s.downloadInProgress", f->path);
    t.unfinished = kv_buf_str(&unfinished);
    kv_hub_show_url(&shown, f->url);
    t.shown = kv_buf_str(&shown);
    kv_status st = open_unfinished(&t, t.unfinished, &inner);
    if (st == KV_OK && is_published(f)) { /* by who had the lock until now */
        unlink(t.unfinished);
        goto done;
    }
    if (st == KV_OK && !f->sha256) read_validator(&t);
    if (st == KV_OK) st = check_room(&t, &inner);
    if (st == KV_OK) st = fetch(&t, &inner);
    if (st == KV_OK) st = check(&t, &inner);
    if (st == KV_OK) st = publish(&t, &inner);
    if (st == KV_OK) {
        t.total = t.done;
        tell(&t, true);
    }
done:
    if (t.fd >= 0) close(t.fd);
    if (st != KV_OK && err) *err = inner;
    kv_buf_free(&unfinished);
    kv_buf_free(&shown);
    kv_buf_free(&t.body);
    return st;
}
