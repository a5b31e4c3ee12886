#include "store/accounts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

enum {
    SIZE = KV_ACCOUNTS_SIZE,
    AT_STORED = 8,
    AT_DAY = 16,
    AT_WRITTEN = 24,
    AT_SLOTS = 32,
    SLOT = 32,
    AT_BUDGET = 2080,
    AT_CHECKSUM = 4088
};
static const char magic[8] = {'K', 'V', 'A', 'C', 'C', 'T', '\0', '\1'};
_Static_assert(AT_SLOTS + KV_ACCOUNTS_SLOTS * SLOT <= AT_BUDGET, "the slots fit");

typedef union page {
    unsigned char bytes[SIZE];
    uint64_t words[SIZE / 8];
} page;

static uint64_t *word(page *p, size_t at) {
    return &p->words[at / 8];
}

static kv_hash slot_id(page *p, int i) {
    return (kv_hash){*word(p, AT_SLOTS + (size_t)i * SLOT), *word(p, AT_SLOTS + (size_t)i * SLOT + 8)};
}

static void set_slot(page *p, int i, kv_hash id, uint64_t reserved) {
    *word(p, AT_SLOTS + (size_t)i * SLOT) = id.lo;
    *word(p, AT_SLOTS + (size_t)i * SLOT + 8) = id.hi;
    *word(p, AT_SLOTS + (size_t)i * SLOT + 16) = reserved;
}

static uint64_t slot_reserved(page *p, int i) {
    return *word(p, AT_SLOTS + (size_t)i * SLOT + 16);
}

void kv_accounts_init(kv_accounts *a, const kv_files *files, const char *dir, uint64_t budget, kv_hash id,
                      bool shared) {
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->mutex, NULL);
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/accounts", dir);
    a->path = kv_buf_take(&path);
    a->files = files;
    a->budget = budget;
    a->id = id;
    a->shared = shared;
}

void kv_accounts_free(kv_accounts *a) {
    free(a->path);
    for (int i = 0; i < 6; i++) free(a->index[i]);
    pthread_mutex_destroy(&a->mutex);
}

static void measure_too(kv_accounts *a, int from, const char *const paths[3]) {
    for (int i = 0; i < 3; i++) {
        free(a->index[from + i]);
        a->index[from + i] = kv_strdup(paths[i]);
    }
}

void kv_accounts_with_index(kv_accounts *a, const char *const paths[3], uint64_t room) {
    pthread_mutex_lock(&a->mutex);
    measure_too(a, 0, paths);
    a->index_room = room;
    pthread_mutex_unlock(&a->mutex);
}

void kv_accounts_with_spellings(kv_accounts *a, const char *const paths[3]) {
    pthread_mutex_lock(&a->mutex);
    measure_too(a, 3, paths);
    pthread_mutex_unlock(&a->mutex);
}

static void measure_index(kv_accounts *a) {
    kv_file_info info;
    uint64_t sum = 0;
    for (int i = 0; i < 6; i++) {
        if (!a->index[i]) continue;
        int status = a->files->stat(a->files, a->index[i], &info);
        if (status == 0) sum += info.disk;
        else if (status != -ENOENT) {
            a->index_unseen = true; /* what was last seen stands */
            return;
        }
    }
    a->index_unseen = false;
    a->index_bytes = sum;
}

static bool is_whole(page *p, int64_t n) {
    return n == SIZE && memcmp(p, magic, sizeof magic) == 0 && *word(p, AT_CHECKSUM) == kv_hash_bytes64(p, AT_CHECKSUM);
}

/* A descriptor that holds the lock, the file's content in *p; -1: the file cannot be used now. valid: it was whole. */
static int begin(kv_accounts *a, page *p, bool *valid) {
    *valid = false;
    if (!a->shared) return -1;
    int fd = a->files->lock(a->files, a->path, true);
    int64_t n = fd < 0 ? fd : a->files->read_at(a->files, fd, p, SIZE, 0);
    if (n < 0) {
        a->n_faults++;
        if (fd >= 0) a->files->close(a->files, fd);
        return -1;
    }
    *valid = is_whole(p, n);
    return fd;
}

uint64_t kv_accounts_peek(kv_accounts *a) {
    page p;
    for (int tries = 0; tries < 4; tries++) { /* it may be in the middle of a change */
        int fd = a->files->open(a->files, a->path, KV_OPEN_READ);
        if (fd < 0) return 0;
        int64_t n = a->files->read_at(a->files, fd, &p, SIZE, 0);
        a->files->close(a->files, fd);
        if (n < 0 || !is_whole(&p, n)) continue;
        a->day = (int64_t)*word(&p, AT_DAY);
        a->written = *word(&p, AT_WRITTEN);
        return *word(&p, AT_BUDGET);
    }
    return 0;
}

static void end(kv_accounts *a, page *p, int fd) {
    *word(p, AT_STORED) = a->stored;
    *word(p, AT_DAY) = (uint64_t)a->day;
    *word(p, AT_WRITTEN) = a->written;
    memcpy(p, magic, sizeof magic);
    *word(p, AT_CHECKSUM) = kv_hash_bytes64(p, AT_CHECKSUM);
    if (a->files->write_at(a->files, fd, p, SIZE, 0) == SIZE) {
        a->stored_delta = a->written_delta = 0;
    } else {
        a->n_faults++;
    }
    a->files->close(a->files, fd);
}

static uint64_t plus(uint64_t a, int64_t delta) {
    return delta < 0 && (uint64_t)-delta > a ? 0 : a + (uint64_t)delta;
}

/* Take over what other processes did since. */
static void take_in(kv_accounts *a, page *p) {
    a->stored = plus(*word(p, AT_STORED), a->stored_delta);
    int64_t day = (int64_t)*word(p, AT_DAY);
    if (day >= a->day) {
        a->written = plus(*word(p, AT_WRITTEN), day == a->day ? a->written_delta : 0);
        a->day = day;
    }
    a->reserved_by_others = 0;
    int mine = -1, unused = -1;
    for (int i = 0; i < KV_ACCOUNTS_SLOTS; i++) {
        kv_hash id = slot_id(p, i);
        if (kv_hash_equal(id, a->id)) mine = i;
        else if (kv_hash_is_zero(id)) unused = i;
        else a->reserved_by_others += slot_reserved(p, i);
    }
    if (mine < 0) mine = unused; /* the file was lost and made anew; with 64 processes one counts for itself alone */
    if (mine >= 0) set_slot(p, mine, a->id, a->reserved);
}

/* Runs `change` between reading and writing the file. With the mutex held. */
static uint64_t transact(kv_accounts *a, uint64_t (*change)(kv_accounts *a, const void *arg), const void *arg) {
    page p;
    bool valid;
    int fd = begin(a, &p, &valid);
    if (fd >= 0 && !valid) { /* lost or half written: what this process last saw in it stands */
        memset(&p, 0, sizeof p);
        *word(&p, AT_STORED) = plus(a->stored, -a->stored_delta);
        *word(&p, AT_DAY) = (uint64_t)a->day;
        *word(&p, AT_WRITTEN) = plus(a->written, -a->written_delta);
        *word(&p, AT_BUDGET) = a->budget == UINT64_MAX ? 0 : a->budget;
    }
    if (fd >= 0) take_in(a, &p);
    uint64_t result = change(a, arg);
    for (int i = 0; fd >= 0 && i < KV_ACCOUNTS_SLOTS; i++)
        if (kv_hash_equal(slot_id(&p, i), a->id)) set_slot(&p, i, a->id, a->reserved);
    if (fd >= 0) end(a, &p, fd);
    return result;
}

void kv_accounts_open(kv_accounts *a, bool (*alive)(void *ctx, kv_hash id), uint64_t (*count)(void *ctx), void *ctx) {
    pthread_mutex_lock(&a->mutex);
    page p;
    bool valid, others = false;
    int fd = begin(a, &p, &valid);
    if (!valid) memset(&p, 0, sizeof p);
    for (int i = 0; i < KV_ACCOUNTS_SLOTS; i++) {
        kv_hash id = slot_id(&p, i);
        if (kv_hash_is_zero(id)) continue;
        if (alive(ctx, id)) others = true;
        else set_slot(&p, i, (kv_hash){0, 0}, 0);
    }
    if (!others) *word(&p, AT_STORED) = count(ctx);
    if (a->budget != UINT64_MAX) *word(&p, AT_BUDGET) = a->budget;
    take_in(a, &p);
    if (fd >= 0) end(a, &p, fd);
    measure_index(a);
    pthread_mutex_unlock(&a->mutex);
}

void kv_accounts_close(kv_accounts *a) {
    pthread_mutex_lock(&a->mutex);
    page p;
    bool valid;
    int fd = begin(a, &p, &valid);
    if (fd >= 0 && valid) {
        take_in(a, &p);
        for (int i = 0; i < KV_ACCOUNTS_SLOTS; i++)
            if (kv_hash_equal(slot_id(&p, i), a->id)) set_slot(&p, i, (kv_hash){0, 0}, 0);
        end(a, &p, fd);
    } else if (fd >= 0) {
        a->files->close(a->files, fd);
    }
    pthread_mutex_unlock(&a->mutex);
}

static uint64_t in_use(const kv_accounts *a) {
    return a->stored + a->reserved + a->reserved_by_others + a->index_bytes + a->index_room;
}

static uint64_t take(kv_accounts *a, const void *arg) {
    uint64_t n = *(const uint64_t *)arg, used = in_use(a);
    if (used + n > a->budget) return used + n - a->budget;
    a->reserved += n;
    return 0;
}

uint64_t kv_accounts_take(kv_accounts *a, uint64_t n) {
    pthread_mutex_lock(&a->mutex);
    measure_index(a);
    uint64_t missing = transact(a, take, &n);
    pthread_mutex_unlock(&a->mutex);
    return missing;
}

typedef struct settlement {
    uint64_t n, written;
    int64_t stored;
} settlement;

static uint64_t apply(kv_accounts *a, const void *arg) {
    const settlement *s = arg;
    a->reserved -= s->n < a->reserved ? s->n : a->reserved;
    a->stored = plus(a->stored, s->stored);
    a->stored_delta += s->stored;
    a->written += s->written;
    a->written_delta += (int64_t)s->written;
    return 0;
}

void kv_accounts_settle(kv_accounts *a, uint64_t n, int64_t stored_delta, uint64_t written) {
    settlement s = {n, written, stored_delta};
    pthread_mutex_lock(&a->mutex);
    transact(a, apply, &s);
    pthread_mutex_unlock(&a->mutex);
}

static uint64_t above(kv_accounts *a, const void *arg) {
    (void)arg;
    uint64_t used = in_use(a);
    return used > a->budget ? used - a->budget : 0;
}

uint64_t kv_accounts_over(kv_accounts *a) {
    pthread_mutex_lock(&a->mutex);
    measure_index(a);
    uint64_t over = transact(a, above, NULL);
    pthread_mutex_unlock(&a->mutex);
    return over;
}

bool kv_accounts_index_may_grow(kv_accounts *a) {
    uint64_t over = kv_accounts_over(a);
    pthread_mutex_lock(&a->mutex);
    bool yes = !over && !a->index_unseen;
    pthread_mutex_unlock(&a->mutex);
    return yes;
}

static uint64_t new_day(kv_accounts *a, const void *arg) {
    int64_t day = *(const int64_t *)arg;
    if (day > a->day) {
        a->day = day;
        a->written = 0;
        a->written_delta = 0;
    }
    return 0;
}

void kv_accounts_set_day(kv_accounts *a, int64_t day) {
    pthread_mutex_lock(&a->mutex);
    if (day > a->day) transact(a, new_day, &day);
    pthread_mutex_unlock(&a->mutex);
}

static uint64_t look(kv_accounts *a, const void *arg) {
    (void)a, (void)arg;
    return 0;
}

void kv_accounts_see(kv_accounts_view *out, kv_accounts *a) {
    pthread_mutex_lock(&a->mutex);
    measure_index(a);
    transact(a, look, NULL);
    *out = (kv_accounts_view){a->stored, a->reserved + a->reserved_by_others, a->index_bytes, a->written};
    pthread_mutex_unlock(&a->mutex);
}
