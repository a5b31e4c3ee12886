#include "os/io.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct job {
    void (*fn)(void *ctx);
    void *ctx;
} job;

/* A ring that doubles. */
typedef struct lane {
    job *jobs;
    size_t head, len, cap;
} lane;

struct kv_io {
    pthread_mutex_t mutex; /* a leaf: jobs run without it */
    pthread_cond_t work;   /* a job came, or the end */
    pthread_cond_t room;   /* a full lane got shorter */
    lane lanes[2];
    bool is_inline, ending;
    uint64_t random; /* inline: 0 = in order */
    int n_threads, n_running;
    pthread_t *threads;
};

static _Thread_local const kv_io *my_io; /* set on I/O threads, and while an inline job runs */

static void push(lane *l, job j) {
    if (l->len == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        job *jobs = kv_alloc(cap * sizeof *jobs);
        for (size_t i = 0; i < l->len; i++) jobs[i] = l->jobs[(l->head + i) % l->cap];
        free(l->jobs);
        *l = (lane){jobs, 0, l->len, cap};
    }
    l->jobs[(l->head + l->len++) % l->cap] = j;
}

/* Take the i-th waiting job; those before it keep their order. */
static job take(lane *l, size_t i) {
    job j = l->jobs[(l->head + i) % l->cap];
    for (; i > 0; i--) l->jobs[(l->head + i) % l->cap] = l->jobs[(l->head + i - 1) % l->cap];
    l->head = (l->head + 1) % l->cap;
    l->len--;
    return j;
}

static kv_io *new_io(void) {
    kv_io *io = kv_alloc(sizeof *io);
    pthread_mutex_init(&io->mutex, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_cond_init(&io->room, NULL);
    return io;
}

/* With the mutex held. A lane is left only when nothing can be submitted to it any more: at the end jobs that run may
 * still submit. */
static bool wait_for_job(kv_io *io, job *out, bool may_write) {
    for (;;) {
        lane *l = &io->lanes[KV_IO_READ];
        if (!l->len && may_write) l = &io->lanes[KV_IO_WRITE];
        if (l->len) {
            *out = take(l, 0);
            pthread_cond_broadcast(&io->room);
            return true;
        }
        if (io->ending && io->n_running == 0) {
            pthread_cond_broadcast(&io->work); /* the last one out tells the others */
            return false;
        }
        pthread_cond_wait(&io->work, &io->mutex);
    }
}

static void work(kv_io *io, bool may_write) {
    my_io = io;
    pthread_mutex_lock(&io->mutex);
    job j;
    while (wait_for_job(io, &j, may_write)) {
        io->n_running++;
        pthread_mutex_unlock(&io->mutex);
        j.fn(j.ctx);
        pthread_mutex_lock(&io->mutex);
        io->n_running--;
        if (io->ending && io->n_running == 0) pthread_cond_broadcast(&io->work);
    }
    pthread_mutex_unlock(&io->mutex);
}

static void *reader(void *arg) {
    work(arg, false);
    return NULL;
}

static void *writer(void *arg) {
    work(arg, true);
    return NULL;
}

kv_io *kv_io_new_threads(int n_readers, int n_writers) {
    KV_CHECK(n_readers >= 0 && n_writers >= 1);
    kv_io *io = new_io();
    io->threads = kv_alloc((size_t)(n_readers + n_writers) * sizeof *io->threads);
    for (int i = 0; i < n_writers + n_readers; i++) { /* writers first: they can do everything */
        bool ok = pthread_create(&io->threads[io->n_threads], NULL, i < n_writers ? writer : reader, io) == 0;
        if (ok) io->n_threads++;
        else KV_CHECK(i > 0); /* without any thread nothing would ever end */
    }
    return io;
}

kv_io *kv_io_new_inline(uint64_t seed) {
    kv_io *io = new_io();
    io->is_inline = true;
    io->random = seed;
    return io;
}

void kv_io_free(kv_io *io) {
    if (!io) return;
    if (io->is_inline)
        while (kv_io_run_one(io)) {
        }
    pthread_mutex_lock(&io->mutex);
    io->ending = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->mutex);
    for (int i = 0; i < io->n_threads; i++) pthread_join(io->threads[i], NULL);
    KV_CHECK(io->lanes[0].len == 0 && io->lanes[1].len == 0);
    pthread_cond_destroy(&io->room);
    pthread_cond_destroy(&io->work);
    pthread_mutex_destroy(&io->mutex);
    free(io->lanes[0].jobs);
    free(io->lanes[1].jobs);
    free(io->threads);
    free(io);
}

void kv_io_submit(kv_io *io, kv_io_lane which, void (*fn)(void *ctx), void *ctx) {
    pthread_mutex_lock(&io->mutex);
    lane *l = &io->lanes[which];
    while (l->len >= KV_IO_MAX_WAITING && !io->is_inline && my_io != io) pthread_cond_wait(&io->room, &io->mutex);
    push(l, (job){fn, ctx});
    pthread_cond_broadcast(&io->work); /* a signal could wake a reader for a WRITE job */
    pthread_mutex_unlock(&io->mutex);
}

static uint64_t draw(kv_io *io, uint64_t below) { /* xorshift64* */
    io->random ^= io->random >> 12;
    io->random ^= io->random << 25;
    io->random ^= io->random >> 27;
    return (io->random * 0x2545f4914f6cdd1dULL >> 32) % below;
}

bool kv_io_is_inline(const kv_io *io) {
    return io->is_inline;
}

bool kv_io_run_one(kv_io *io) {
    KV_CHECK(io->is_inline);
    pthread_mutex_lock(&io->mutex);
    lane *reads = &io->lanes[KV_IO_READ], *writes = &io->lanes[KV_IO_WRITE];
    bool any = reads->len || writes->len;
    job j = {NULL, NULL};
    if (any) {
        bool write = !reads->len;
        if (io->random && reads->len && writes->len) write = draw(io, 3) == 0;
        size_t few = reads->len < 4 ? reads->len : 4;
        j = write ? take(writes, 0) : take(reads, io->random ? draw(io, few) : 0);
    }
    pthread_mutex_unlock(&io->mutex);
    if (any) {
        const kv_io *outer = my_io;
        my_io = io;
        j.fn(j.ctx);
        my_io = outer;
    }
    return any;
}

int kv_io_waiting(const kv_io *io, kv_io_lane which) {
    kv_io *unlocked = (kv_io *)io; /* the mutex is not part of what callers see */
    pthread_mutex_lock(&unlocked->mutex);
    int n = (int)io->lanes[which].len;
    pthread_mutex_unlock(&unlocked->mutex);
    return n;
}
