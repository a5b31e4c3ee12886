/* sched/resume.c: between slots and the cache.
 *
 *   submit ─► look-up ─(wake)─► admitted ─► restored, slice by slice ─► computes on, captured after each call ─► leaves:
 *                                   ▲            │ failed                                 what is still open is captured
 *                                   └─ look-up ◄─┘
 *
 * A slot's own content goes before the cache's where it reaches as far: it costs nothing. Without a cache everything
 * here does nothing.
 */
#include "sched/sched_private.h"

#include <string.h>

#include "base/log.h"
#include "cache/probe.h"

/* A slice of a restore takes about this part of the time that a stream may stall: a chunk comes in the same round. */
#define RESTORE_SHARE 4

kv_status kv_sched_open_cache(kv_sched *s, kv_error *err) {
    if (!s->cfg.cache && !s->cfg.exact) return KV_OK;
    kv_status status = kv_state_init(&s->state, s->engine, err);
    if (status != KV_OK || !s->cfg.cache) return status;
    for (int i = 0; i < s->n_slots; i++) s->slots[i].trail = kv_trail_new(s->cfg.cache);
    return KV_OK;
}

void kv_sched_close_cache(kv_sched *s) {
    for (int i = 0; i < s->n_slots; i++) kv_trail_free(s->slots[i].trail);
    kv_state_free(&s->state);
}

/* ── look-up ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void wake(void *ctx) {
    kv_sched *s = ctx;
    pthread_mutex_lock(&s->mutex);
    s->woken = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->mutex);
}

void kv_sched_look_up(kv_sched *s, kv_gen *g) {
    if (!s->cfg.cache || !g->cache_prompt || g->run.lookup || g->run.starts_over) return;
    g->run.lookup = kv_lookup_start(s->cfg.cache, g->scope, g->tokens.data, g->tokens.len, wake, s);
}

bool kv_sched_looks_up(const kv_gen *g) {
    return g->run.lookup && !kv_lookup_ready(g->run.lookup);
}

int32_t kv_sched_resumable(const kv_gen *g) {
    return g->run.lookup && kv_lookup_ready(g->run.lookup) ? kv_lookup_get(g->run.lookup)->position : 0;
}

/* ── restore ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What of the slot's content stays while [0, P) is put into it: all of it where it leads there, or, with a state that
 * is set last, everything up to P where it leads beyond. */
static int32_t keeps(kv_sched *s, int number, const kv_gen *g, int32_t usable, int32_t P) {
    const kv_slot *slot = &s->slots[number];
    int32_t held = (int32_t)slot->held.len;
    if (usable == held || s->cut_free) return usable;
    bool beyond = s->info->memory == KV_MEMORY_HYBRID && held > P && strcmp(slot->scope, g->scope) == 0 &&
                  kv_tokens_common(slot->held.data, (size_t)P, g->tokens.data, (size_t)P) == (size_t)P;
    return beyond ? P : 0;
}

/* Cells for tokens [have, P), in whole blocks, from idle slots. */
static bool make_room(kv_sched *s, int32_t have, int32_t P) {
    bool ok;
    while (!(ok = kv_cells_can_restore(&s->cells, have, P, s->cfg.block)))
        if (!kv_sched_evict(s, P - have + s->cfg.block)) break;
    return ok;
}

/* The slot's content up to `have`; returns what is left of it. */
static int32_t cut_to(kv_sched *s, int number, int32_t have) {
    kv_slot *slot = &s->slots[number];
    if (have == (int32_t)slot->held.len) return have;
    if (have > 0 && s->info->memory == KV_MEMORY_HYBRID) return have; /* the last step cuts, once the state is set */
    if (have == 0 || !kv_engine_trim(s->engine, number, have)) {
        kv_sched_empty_slot(s, number);
        return 0;
    }
    slot->held.len = (size_t)have;
    kv_cells_cut(&s->cells, number, have);
    return have;
}

bool kv_sched_begin_restore(kv_sched *s, int number, kv_gen *g, int32_t usable) {
    kv_slot *slot = &s->slots[number];
    int32_t P = kv_sched_resumable(g);
    if (P <= usable) return false;
    int32_t have = cut_to(s, number, keeps(s, number, g, usable, P));
    slot->gen = g; /* so that it does not count as an idle one, which could be emptied */
    bool room = make_room(s, have, P);
    slot->gen = NULL;
    if (!room) {
        kv_sched_empty_slot(s, number);
        g->run.miss = KV_MISS_NO_MEMORY;
        return false;
    }
    /* From now on the slot is described by what it is going to hold. */
    slot->held.len = 0;
    kv_tokens_append(&slot->held, g->tokens.data, (size_t)P);
    /* What lies behind P of a content that stays until the state is set takes its cells until then. */
    if (s->cells.len[number] < P) kv_cells_append(&s->cells, number, P - s->cells.len[number]);
    kv_sched_touch(s, number);
    slot->restoring = true;
    slot->sound = P;
    slot->restore_from = have;
    kv_pos window = kv_state_window_start(&s->state, P);
    if (have < window) slot->window_from = window;
    g->run.restore_began_us = kv_now_us(s->clock);
    return true;
}

static void restored(kv_sched *s, int number) {
    kv_slot *slot = &s->slots[number];
    kv_gen *g = slot->gen;
    int32_t P = (int32_t)slot->held.len, ram, disk;
    kv_restore_sources(&ram, &disk, g->run.lookup);
    slot->restoring = false;
    kv_cells_cut(&s->cells, number, P);
    g->run.restore_us += kv_now_us(s->clock) - g->run.restore_began_us;
    if (!g->run.counted) {
        g->run.n_cached_ram = ram < P ? ram : P;
        g->run.n_cached_disk = disk;
    }
    s->stats.n_prompt_restored += (uint64_t)(P - slot->restore_from);
    kv_sched_start_computing(s, number, P);
}

/* Its stored state could not be had. What the cache has forgotten by now it will not find again, so it looks once more;
 * after some failures it is computed from the start. */
static void not_restored(kv_sched *s, int number, const kv_error *err) {
    kv_gen *g = s->slots[number].gen;
    s->last_failure = *err;
    s->stats.n_restore_failed++;
    KV_DEBUG("restoring %d tokens failed: %s", (int)s->slots[number].held.len, err->message);
    kv_sched_empty_slot(s, number);
    g->run.restore_us += kv_now_us(s->clock) - g->run.restore_began_us;
    g->run.miss = kv_restore_failure(g->run.lookup);
    kv_lookup_free(g->run.lookup);
    g->run.lookup = NULL;
    if (++g->run.n_restore_failed <= KV_SCHED_RETRIES) {
        kv_sched_requeue(s, number);
    } else {
        kv_sched_start_computing(s, number, 0);
    }
}

/* A slice; true when something was done. */
static bool restore_slice(kv_sched *s, int number, int64_t budget_us) {
    kv_slot *slot = &s->slots[number];
    kv_error err = {0};
    kv_restore step = kv_restore_step(slot->gen->run.lookup, &s->state, number, slot->restore_from, budget_us, &err);
    if (step == KV_RESTORE_WAIT) return false;
    if (step == KV_RESTORE_DONE && s->cfg.exact &&
        kv_state_repack(&s->state, number, (kv_pos)slot->held.len, s->cfg.block, &err) != KV_OK)
        step = KV_RESTORE_FAILED;
    if (step == KV_RESTORE_DONE) restored(s, number);
    if (step == KV_RESTORE_FAILED) not_restored(s, number, &err);
    return true;
}

/* The slices of one round share its time, and take turns at being the first, which moves a block at least; what they took
 * is missing from the round's chunk. */
bool kv_sched_restore_some(kv_sched *s) {
    bool did = false, alone = true;
    int first = s->restore_turn;
    int64_t start_us = kv_now_us(s->clock), budget_us = (int64_t)s->cfg.max_stall_ms * 1000 / RESTORE_SHARE;
    for (int i = 0; i < s->n_slots; i++) alone = alone && (!s->slots[i].gen || s->slots[i].restoring);
    for (int i = 0; i < s->n_slots; i++) {
        int number = (first + i) % s->n_slots;
        int64_t left_us = alone ? INT64_MAX : budget_us - (kv_now_us(s->clock) - start_us);
        if (!s->slots[number].restoring || (did && left_us <= 0)) continue;
        if (s->slots[number].gen->run.n_nan) left_us = INT64_MAX; /* nobody computes beside what may not be numbers */
        if (restore_slice(s, number, left_us)) did = true;
        s->restore_turn = (number + 1) % s->n_slots;
    }
    s->restore_us = kv_now_us(s->clock) - start_us;
    return did;
}

void kv_sched_note_miss(kv_gen *g, int32_t cached) {
    const kv_lookup_result *found =
        g->run.lookup && kv_lookup_ready(g->run.lookup) ? kv_lookup_get(g->run.lookup) : NULL;
    if (cached >= g->n_prompt - 1) {
        g->run.miss = KV_MISS_NONE;
    } else if (!g->cache_prompt) {
        g->run.miss = KV_MISS_DISABLED;
    } else if (g->run.miss == KV_MISS_NONE) {
        g->run.miss = found ? found->miss : KV_MISS_DISABLED;
        if (found && found->miss == KV_MISS_NONE) g->run.miss = KV_MISS_DIVERGED;
        g->run.elsewhere = found ? found->elsewhere : NULL;
    }
    g->run.miss_position = found && found->miss_position > cached ? found->miss_position : cached;
    g->run.n_matched = found && found->n_match > cached ? found->n_match : cached;
}

/* ── capture ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_sched_begin_trail(kv_sched *s, int number, const kv_gen *g) {
    kv_slot *slot = &s->slots[number];
    slot->captured_at = -1;
    if (slot->trail && g->cache_prompt) kv_trail_reset(slot->trail, g->scope, slot->held.data, (int32_t)slot->held.len);
}

/* With --exact: at each edge where a restore could end, a cold run must go on as a restored one. */
static bool repack(kv_sched *s, int number) {
    kv_slot *slot = &s->slots[number];
    int32_t held = (int32_t)slot->held.len;
    if (!s->cfg.exact || !slot->gen || held % s->cfg.chunk || held >= slot->gen->n_prompt) return true;
    if (kv_state_repack(&s->state, number, held, s->cfg.block, &s->last_failure) == KV_OK) return true;
    kv_gen *g = slot->gen;
    kv_sched_empty_slot(s, number);
    kv_sched_requeue(s, number);
    kv_sched_count_failure(s, g, &s->last_failure);
    return false;
}

void kv_sched_capture(kv_sched *s, int number, double us_per_token) {
    const kv_slot *slot = &s->slots[number];
    if (!repack(s, number)) return;
    if (!kv_slot_is_captured(slot)) return;
    const kv_places places = kv_gen_places(slot->gen);
    kv_trail_advance(slot->trail, &s->state, number, slot->held.data, (int32_t)slot->held.len, &places, us_per_token);
}

void kv_sched_keep_probe(kv_sched *s, int number, int row) {
    const kv_slot *slot = &s->slots[number];
    int32_t held = (int32_t)slot->held.len;
    /* Alone, so that it is computed in the shape in which the probe computes it again. */
    if (!slot->trail || !slot->gen->cache_prompt || held != slot->gen->n_prompt || s->batch.n != 1) return;
    if (!kv_probe_wants(s->cfg.cache, slot->gen->scope, held)) return;
    kv_probe_keep(s->cfg.cache, slot->held.data, held, kv_engine_logits(s->engine, row),
                  s->engine->model->info.n_vocab);
}

void kv_sched_capture_end(kv_sched *s, int number) {
    kv_slot *slot = &s->slots[number];
    int32_t held = (int32_t)slot->held.len;
    if (slot->is_kept && slot->captured_at == held) return; /* just now */
    slot->is_kept = false;
    if (!slot->trail || slot->restoring) return;
    bool captured = kv_slot_is_captured(slot);
    slot->is_kept = kv_trail_end(slot->trail, &s->state, number, slot->held.data, captured ? held : 0);
    if (captured) slot->captured_at = held;
}

void kv_sched_forget(kv_sched *s, int number, int32_t from, int32_t n) {
    const kv_slot *slot = &s->slots[number];
    if (!slot->trail || !slot->gen->cache_prompt || from >= n) return;
    KV_DEBUG("of generation %llu tokens %d to %d are forgotten: they may be no numbers",
             (unsigned long long)slot->gen->run.id, (int)from, (int)n);
    kv_cache_forget(s->cfg.cache, slot->gen->scope, slot->held.data, n, from);
}

void kv_sched_clear_way(kv_sched *s, int number) {
    if (!s->cfg.cache || !s->cfg.evict_idle || s->cells.total == INT32_MAX) return;
    for (int i = 0; i < s->n_slots; i++)
        if (i != number && !s->slots[i].gen && s->slots[i].held.len && s->slots[i].is_kept) kv_sched_empty_slot(s, i);
}
