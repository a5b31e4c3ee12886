/* cache/restore.c: a plan's records into the engine, step by step, while an I/O thread reads ahead.
 *
 * A step needs its group's buffers at once, and they are reserved at once; a restore that finds no room waits in line
 * while it holds only groups that the engine thread can use up. So somebody always goes on.
 */
#include "cache/lookup_private.h"

#include <stdlib.h>

#include "base/log.h"

/* Reading goes on for about this much, then others get a turn on the thread. */
#define READ_TURN_BYTES (32u << 20)
/* Of one restore, at a time. */
enum { READERS = 2 };

/* ── reading ahead (I/O threads) ───────────────────────────────────────────────────────────────────────────────── */

static int n_groups(const kv_lookup *l) {
    return l->n_steps ? l->n_steps : 1;
}

/* The parts of a group that are still to be read. */
static int parts_of(kv_part *out[3], kv_lookup *l, int group) {
    int n = 0;
    kv_part *all[3] = {NULL, NULL, group == n_groups(l) - 1 ? &l->checkpoint : NULL};
    if (group < l->n_steps) {
        all[0] = &l->steps[group].block;
        all[1] = &l->steps[group].window;
    }
    for (int i = 0; i < 3; i++)
        if (all[i] && all[i]->is_needed && all[i]->from_disk) out[n++] = all[i];
    return n;
}

static void give_back(kv_part *const *parts, int n) {
    for (int i = 0; i < n; i++) {
        kv_record_unref(parts[i]->record);
        parts[i]->record = NULL;
    }
}

/* Buffers for a whole group, or none. */
static bool reserve(kv_lookup *l, kv_part *const *parts, int n) {
    for (int i = 0; i < n; i++) {
        parts[i]->record = kv_record_new(&l->cache->pool, KV_ACCOUNT_READ, &parts[i]->head, NULL);
        if (parts[i]->record) continue;
        give_back(parts, i);
        return false;
    }
    return true;
}

static bool could_ever_fit(const kv_lookup *l, kv_part *const *parts, int n) {
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += kv_record_bytes(parts[i]->head.n_tokens, parts[i]->head.n_payload);
    return bytes <= l->cache->pool.max[KV_ACCOUNT_READ];
}

/* NONE, or why it cannot be had. */
static kv_miss read_parts(kv_lookup *l, kv_part *const *parts, int n, uint64_t *bytes, bool *from_drive) {
    *from_drive = false;
    for (int i = 0; i < n; i++) {
        kv_error err;
        bool drive = false;
        kv_status status = kv_cache_read(l->cache, parts[i]->record, &drive, &err);
        if (status == KV_OK && !kv_part_matches(l, parts[i], parts[i]->record)) {
            status = kv_fail(&err, KV_CORRUPT, "a record of other tokens has this prompt's hash");
            KV_WARN("cache: %s; it is not used", err.message);
        }
        if (status != KV_OK) {
            give_back(parts, n);
            return status == KV_CORRUPT     ? KV_MISS_DAMAGED
                   : status == KV_NOT_FOUND ? KV_MISS_NOT_STORED
                                            : KV_MISS_IO_ERROR;
        }
        *bytes += parts[i]->head.n_payload;
        *from_drive = *from_drive || drive;
    }
    return KV_MISS_NONE;
}

static void wake(kv_lookup *l) {
    pthread_mutex_lock(&l->cache->mutex);
    if (!atomic_load(&l->abandoned) && l->wake) l->wake(l->wake_ctx);
    pthread_mutex_unlock(&l->cache->mutex);
}

static void tell_engine(kv_lookup *l) {
    if (atomic_exchange(&l->starving, false)) wake(l);
}

static void read_ahead(void *ctx);

/* Into the line of those that wait for room. The job's reference goes with it. */
static void wait_for_room(kv_lookup *l) {
    kv_cache *c = l->cache;
    pthread_mutex_lock(&c->mutex);
    bool abandoned = atomic_load(&l->abandoned);
    if (!abandoned) {
        if (c->n_hungry == c->cap_hungry) {
            c->cap_hungry = c->cap_hungry * 2 + 8;
            c->hungry = kv_realloc(c->hungry, (size_t)c->cap_hungry * sizeof(kv_lookup *));
        }
        c->hungry[c->n_hungry++] = l;
    }
    pthread_mutex_unlock(&c->mutex);
    if (abandoned) kv_lookup_drop(l);
    /* Room that was given back just before nobody told of. */
    else if (atomic_load(&c->pool.used[KV_ACCOUNT_READ]) == 0) kv_cache_feed_hungry(c);
}

void kv_cache_feed_hungry(kv_cache *c) {
    kv_lookup *l = NULL;
    pthread_mutex_lock(&c->mutex);
    if (c->n_hungry) {
        l = c->hungry[0];
        c->n_hungry--;
        for (int i = 0; i < c->n_hungry; i++) c->hungry[i] = c->hungry[i + 1];
    }
    pthread_mutex_unlock(&c->mutex);
    if (l) kv_io_submit(c->cfg.io, KV_IO_READ, read_ahead, l);
}

typedef enum claim { CLAIM_GROUP, CLAIM_NO_ROOM, CLAIM_TOO_LARGE, CLAIM_NOTHING } claim;

/* The next group, with buffers for it. Without room only the last reader stays, to wait for it. */
static claim claim_group(int *group, kv_part **parts, int *n, kv_lookup *l) {
    kv_cache *c = l->cache;
    claim result = CLAIM_NOTHING;
    pthread_mutex_lock(&c->mutex);
    bool over = atomic_load(&l->abandoned) || atomic_load(&l->failure) != KV_MISS_NONE;
    if (!over && l->n_claimed < n_groups(l)) {
        *group = l->n_claimed;
        *n = parts_of(parts, l, *group);
        result = !could_ever_fit(l, parts, *n) ? CLAIM_TOO_LARGE
                 : reserve(l, parts, *n)       ? CLAIM_GROUP
                 : l->n_readers > 1            ? CLAIM_NOTHING
                                               : CLAIM_NO_ROOM;
    }
    if (result == CLAIM_GROUP) l->n_claimed++;
    if (result == CLAIM_NOTHING) l->n_readers--;
    pthread_mutex_unlock(&c->mutex);
    return result;
}

/* The group is in memory. False: this reader is one too many, and is not counted any more. What comes from the page cache
 * is copied and checked by one as fast as the engine thread can take it, and two would be in its way. */
static bool count_read(kv_lookup *l, int group, bool from_drive) {
    pthread_mutex_lock(&l->cache->mutex);
    l->done[group] = true;
    int n = atomic_load(&l->n_read);
    while (n < n_groups(l) && l->done[n]) n++;
    atomic_store(&l->n_read, n);
    bool stays = from_drive || l->n_readers == 1;
    if (!stays) l->n_readers--;
    pthread_mutex_unlock(&l->cache->mutex);
    return stays;
}

static void fail_reading(kv_lookup *l, kv_miss why) {
    int none = KV_MISS_NONE;
    atomic_compare_exchange_strong(&l->failure, &none, (int)why);
    tell_engine(l);
}

static void start_reader(kv_lookup *l) {
    atomic_fetch_add(&l->refs, 1);
    kv_io_submit(l->cache->cfg.io, KV_IO_READ, read_ahead, l);
}

static void read_ahead(void *ctx) {
    kv_lookup *l = ctx;
    uint64_t bytes = 0;
    for (;;) {
        int group, n;
        bool from_drive;
        kv_part *parts[3];
        if (bytes >= READ_TURN_BYTES) {
            kv_io_submit(l->cache->cfg.io, KV_IO_READ, read_ahead, l);
            return;
        }
        claim got = claim_group(&group, parts, &n, l);
        if (got == CLAIM_NOTHING) break;
        if (got == CLAIM_NO_ROOM) {
            wait_for_room(l);
            return;
        }
        kv_miss failure = got == CLAIM_GROUP ? read_parts(l, parts, n, &bytes, &from_drive) : KV_MISS_NO_MEMORY;
        if (failure != KV_MISS_NONE) {
            fail_reading(l, failure);
            continue; /* which ends it */
        }
        bool stays = count_read(l, group, from_drive);
        tell_engine(l);
        if (!stays) break;
    }
    kv_lookup_drop(l);
}

/* ── putting (engine thread) ───────────────────────────────────────────────────────────────────────────────────── */

static void begin(kv_lookup *l, int32_t have) {
    int32_t P = l->result.position;
    kv_part *parts[3];
    bool from_disk = false;
    l->begun = true;
    /* The last block may reach beyond P; what lies there is not needed. */
    while (l->next < l->n_steps && (l->steps[l->next].e < P ? l->steps[l->next].e : P) <= have) l->next++;
    int group = l->next < n_groups(l) ? l->next : n_groups(l) - 1;
    /* All blocks may be there already, and only the checkpoint is missing. */
    for (int i = 0; i < l->next && i < l->n_steps; i++)
        l->steps[i].block.is_needed = l->steps[i].window.is_needed = false;
    for (int i = group; i < n_groups(l); i++) from_disk = from_disk || parts_of(parts, l, i) > 0;
    atomic_store(&l->n_read, from_disk ? group : n_groups(l));
    if (!from_disk) return;
    l->done = kv_alloc((size_t)n_groups(l) * sizeof *l->done);
    l->n_claimed = group;
    l->n_readers = n_groups(l) - group > 1 ? READERS : 1;
    for (int i = l->n_readers; i > 0; i--) start_reader(l);
}

static bool is_read(kv_lookup *l, int group) {
    return atomic_load(&l->n_read) > group;
}

/* Frees what came from the disk, so that more can. */
static void used_up(kv_lookup *l, kv_part *p) {
    if (!p->from_disk) return;
    give_back(&p, 1);
    kv_cache_feed_hungry(l->cache);
}

static kv_status put(kv_lookup *l, kv_state *state, kv_seq seq, int32_t have, kv_error *err) {
    kv_restore_part *step = &l->steps[l->next++];
    int32_t from = have > step->q ? have : step->q, P = l->result.position;
    const kv_record *block = step->block.record, *window = step->window.record;
    kv_status status =
        kv_state_put(state, seq, block->payload.data, block->payload.len, window ? window->payload.data : NULL,
                     window ? window->payload.len : 0, step->q, from, step->e, err);
    int32_t moved = (step->e < P ? step->e : P) - from;
    if (step->block.from_disk) l->n_disk += moved;
    else l->n_ram += moved;
    used_up(l, &step->block);
    used_up(l, &step->window);
    return status;
}

static kv_restore failed(kv_lookup *l, kv_state *state, kv_seq seq) {
    int none = KV_MISS_NONE; /* else the reader knows better */
    kv_engine_seq_rm(state->engine, seq, -1, -1);
    atomic_compare_exchange_strong(&l->failure, &none, KV_MISS_NO_MEMORY);
    return KV_RESTORE_FAILED;
}

kv_restore kv_restore_step(kv_lookup *l, kv_state *state, kv_seq seq, int32_t have, int64_t budget_us, kv_error *err) {
    kv_cache *c = l->cache;
    int64_t start = kv_now_us(c->cfg.clock);
    int32_t P = l->result.position;
    KV_CHECK(kv_lookup_ready(l) && have <= P);
    if (!l->begun) begin(l, have);
    for (;;) {
        int group = l->next < n_groups(l) ? l->next : n_groups(l) - 1;
        if (!is_read(l, group)) {
            atomic_store(&l->starving, true);
            if (!is_read(l, group)) {
                if (atomic_load(&l->failure) == KV_MISS_NONE) return KV_RESTORE_WAIT;
                kv_fail(err, KV_IO, "a stored record could not be read");
                return failed(l, state, seq);
            }
        }
        if (group == n_groups(l) - 1) break;
        if (put(l, state, seq, have, err) != KV_OK) return failed(l, state, seq);
        if (kv_now_us(c->cfg.clock) - start >= budget_us) return KV_RESTORE_MORE;
    }
    /* The last block, the checkpoint and the cut are one step: between them, window cells that P needs count as free. */
    if (l->next < l->n_steps && put(l, state, seq, have, err) != KV_OK) return failed(l, state, seq);
    const kv_record *r = l->checkpoint.record;
    kv_status status = kv_state_finish(state, seq, r ? r->payload.data : NULL, r ? r->payload.len : 0, P, err);
    if (status != KV_OK) return failed(l, state, seq);
    if (!l->n_steps && l->checkpoint.from_disk) l->n_disk += P - have;
    else if (!l->n_steps) l->n_ram += P - have;
    used_up(l, &l->checkpoint);
    pthread_mutex_lock(&c->mutex);
    c->stats.tokens_restored += (uint64_t)(P - have);
    pthread_mutex_unlock(&c->mutex);
    return KV_RESTORE_DONE;
}

void kv_restore_sources(int32_t *ram, int32_t *disk, const kv_lookup *l) {
    *ram = l->n_ram;
    *disk = l->n_disk;
}

kv_miss kv_restore_failure(kv_lookup *l) {
    return (kv_miss)atomic_load(&l->failure);
}
