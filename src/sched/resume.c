/* sched/resume.c: between slots and the cache.
 *
 *   submit ─► look-up ─(wake)─► admitted: restored into its slot ─► computes on, captured after each call ─► leaves:
 *                                                                                 what is still open is captured
 *
 * A slot's own content goes before the cache's where it reaches as far: it costs nothing. Without a cache everything
 * here does nothing.
 */
#include "sched/sched_private.h"
#include <string.h>

/* Time a restore may take before others get a turn. */
#define RESTORE_SLICE_US INT64_MAX

kv_status kv_sched_open_cache(kv_sched *s, kv_error *err) {
    if (!s->cfg.cache) return KV_OK;
    kv_status status = kv_state_init(&s->state, s->engine, err);
    if (status != KV_OK) return status;
    for (int i = 0; i < s->n_slots; i++) s->slots[i].trail = kv_trail_new(s->cfg.cache);
    return KV_OK;
}

void kv_sched_close_cache(kv_sched *s) {
    if (!s->cfg.cache) return;
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
    if (!s->cfg.cache || !g->cache_prompt || g->run.lookup) return;
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

/* Cells for [have, P), in whole blocks, from idle slots. */
static bool make_room(kv_sched *s, int32_t need) {
    need += s->cfg.block;
    while (kv_cells_left(&s->cells) < need && kv_sched_evict(s, need - kv_cells_left(&s->cells))) continue;
    return kv_cells_left(&s->cells) >= need;
}

int32_t kv_sched_restore(kv_sched *s, int number, kv_gen *g, int32_t usable) {
    kv_slot *slot = &s->slots[number];
    kv_lookup *lookup = g->run.lookup;
    int32_t P = kv_sched_resumable(g), have = P > usable ? keeps(s, number, g, usable, P) : 0;
    if (P <= usable) return usable;
    if (have == 0) kv_sched_empty_slot(s, number);
    else if (have < P && !kv_engine_trim(s->engine, number, have)) {
        kv_sched_empty_slot(s, number);
        have = 0;
    }
    if (have < P && have > 0) {
        slot->held.len = (size_t)have;
        kv_cells_cut(&s->cells, number, have);
    }
    kv_restore step = KV_RESTORE_FAILED;
    slot->gen = g; /* so that it does not count as an idle one, which could be emptied */
    bool room = make_room(s, P - have);
    slot->gen = NULL;
    if (room) do
            step = kv_restore_step(lookup, &s->state, number, have, RESTORE_SLICE_US, NULL);
        while (step == KV_RESTORE_MORE);
    if (step != KV_RESTORE_DONE) {
        kv_sched_empty_slot(s, number);
        return 0;
    }
    slot->held.len = 0;
    kv_tokens_append(&slot->held, g->tokens.data, (size_t)P);
    if (s->cells.len[number] > P) kv_cells_cut(&s->cells, number, P);
    else kv_cells_append(&s->cells, number, P - s->cells.len[number]);
    kv_sched_touch(s, number);
    s->stats.n_prompt_restored += (uint64_t)(P - have);
    return P;
}

/* ── capture ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_sched_begin_trail(kv_sched *s, int number, const kv_gen *g) {
    const kv_slot *slot = &s->slots[number];
    if (slot->trail && g->cache_prompt) kv_trail_reset(slot->trail, g->scope, slot->held.data, (int32_t)slot->held.len);
}

void kv_sched_capture(kv_sched *s, int number, double us_per_token) {
    const kv_slot *slot = &s->slots[number];
    if (!slot->trail || !slot->gen || !slot->gen->cache_prompt) return;
    kv_trail_advance(slot->trail, &s->state, number, slot->held.data, (int32_t)slot->held.len, slot->gen->n_prompt,
                     us_per_token);
}

void kv_sched_capture_end(kv_sched *s, int number) {
    const kv_slot *slot = &s->slots[number];
    if (!slot->trail || !slot->gen || !slot->gen->cache_prompt) return;
    kv_trail_end(slot->trail, &s->state, number, slot->held.data, (int32_t)slot->held.len);
}
