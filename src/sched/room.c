/* sched/room.c: who gives up cells when they run out, and what happens when a call breaks.
 *
 * Cells are taken from idle slots first, least recently used first, then from the youngest generation. The oldest is
 * never preempted while there is another, and alone it always fits (sched_private.h, S4), so it reaches its end; then the next
 * one is the oldest. A preempted generation is not admitted before there is room for it.
 */
#include "base/log.h"
#include "sched/sched_private.h"

void kv_sched_touch(kv_sched *s, int slot) {
    s->slots[slot].version = ++s->ticks;
}

void kv_sched_empty_slot(kv_sched *s, int number) {
    kv_slot *slot = &s->slots[number];
    kv_engine_seq_rm(s->engine, number, -1, -1);
    kv_cells_cut(&s->cells, number, 0);
    slot->held.len = 0;
    slot->restoring = false;
    slot->window_from = 0;
    kv_sched_touch(s, number);
}

void kv_sched_release_slot(kv_sched *s, int number, bool keep) {
    kv_sched_capture_end(s, number);
    /* What started over is not in the cache, so nobody may go on with it as if it were. */
    keep = keep && !s->slots[number].restoring && !s->slots[number].gen->run.starts_over;
    kv_sched_note_last(s, number, keep);
    s->slots[number].gen = NULL;
    s->slots[number].used_at = ++s->ticks;
    kv_sched_touch(s, number);
    if (!keep) kv_sched_empty_slot(s, number);
}

static int least_recent_idle(const kv_sched *s) {
    int best = -1;
    for (int i = 0; i < s->n_slots; i++) {
        const kv_slot *slot = &s->slots[i];
        if (slot->gen || !slot->held.len) continue;
        if (best < 0 || slot->used_at < s->slots[best].used_at) best = i;
    }
    return best;
}

/* Where any prefix can be kept, only the blocks at the end go that are needed: a preempted generation then has less
 * to compute again. */
bool kv_sched_evict(kv_sched *s, int32_t need) {
    int number = least_recent_idle(s);
    if (number < 0) return false;
    kv_slot *slot = &s->slots[number];
    int32_t keep = (int32_t)slot->held.len - (need > 0 ? need : 1);
    keep = keep > 0 ? keep / s->cfg.block * s->cfg.block : 0;
    if (!s->cut_free || keep == 0 || !kv_engine_trim(s->engine, number, keep)) {
        kv_sched_empty_slot(s, number);
        return true;
    }
    slot->held.len = (size_t)keep;
    kv_cells_cut(&s->cells, number, keep);
    kv_sched_touch(s, number);
    return true;
}

/* Back to the queue. The slot keeps its content, as an idle one, unless nobody may reuse it. */
void kv_sched_requeue(kv_sched *s, int number) {
    kv_gen *g = s->slots[number].gen;
    kv_sched_release_slot(s, number, g->cache_prompt);
    pthread_mutex_lock(&s->mutex);
    s->busy[number] = false;
    pthread_mutex_unlock(&s->mutex);
    kv_sched_wait(s, g);
    kv_lookup_free(g->run.lookup); /* of a restore that was interrupted: begun, it cannot begin again */
    g->run.lookup = NULL;
    kv_sched_look_up(s, g);
}

/* Nothing says yet that what was computed of it would be lost. */
static bool may_be_kept(const kv_slot *slot) {
    int32_t held = (int32_t)slot->held.len;
    if (held == 0) return true;
    return kv_slot_is_captured(slot) && (slot->is_kept || slot->captured_at != held);
}

/* It came later, so all that was computed of it was computed while the one with `key` waited. */
static bool has_overtaken(const kv_slot *slot, const kv_queue_key *key) {
    return slot->gen->run.id > key->arrival;
}

/* The prompt that comes last of those that are being computed, if it comes after `key`, and not only by so little that
 * putting it back would cost more: of those that may be kept, or of those that have overtaken. */
static int last_behind(const kv_sched *s, const kv_queue_key *key, bool overtakers) {
    int last = -1;
    int64_t max_wait_us = (int64_t)s->cfg.max_wait_ms * 1000;
    kv_queue_key last_key = *key;
    if (!kv_queue_overdue(key, max_wait_us)) last_key.left += s->cfg.block;
    for (int i = 0; i < s->n_slots; i++) {
        const kv_slot *slot = &s->slots[i];
        if (!kv_slot_runs(slot) || kv_slot_left(slot) < 2 || slot->gen->id_slot >= 0) continue;
        if (overtakers ? !has_overtaken(slot, key) : !may_be_kept(slot)) continue;
        kv_queue_key its = kv_slot_key(s, slot);
        if (kv_queue_compare(&its, &last_key, max_wait_us) <= 0) continue;
        last = i;
        last_key = its;
    }
    return last;
}

/* Prompts are computed one after the other, so that one which is not its turn needs no slot as long as what there is of
 * it can be had again. Where it cannot, it loses that to one that was overtaken for too long: no more than what it took
 * while it overtook. */
bool kv_sched_give_way(kv_sched *s, const kv_gen *g, const kv_queue_key *key) {
    int number;
    while ((number = last_behind(s, key, false)) >= 0) {
        kv_slot *slot = &s->slots[number];
        int32_t held = (int32_t)slot->held.len;
        if (!kv_sched_fits(s, g, number, 0, 0)) return false;
        if (held && slot->captured_at != held) kv_sched_capture_end(s, number);
        if (!held || slot->is_kept) break; /* else not asked again before it has computed more */
    }
    if (number < 0 && kv_queue_overdue(key, (int64_t)s->cfg.max_wait_ms * 1000)) number = last_behind(s, key, true);
    if (number < 0 || !kv_sched_fits(s, g, number, 0, 0)) return false;
    kv_sched_requeue(s, number);
    s->stats.n_gave_way++;
    return true;
}

int kv_sched_n_running(const kv_sched *s) {
    int n = 0;
    for (int i = 0; i < s->n_slots; i++) n += s->slots[i].gen != NULL;
    return n;
}

static int youngest(const kv_sched *s) {
    int best = -1;
    for (int i = 0; i < s->n_slots; i++) {
        if (!s->slots[i].gen) continue;
        if (best < 0 || s->slots[i].gen->run.id > s->slots[best].gen->run.id) best = i;
    }
    return best;
}

static int preempt_youngest(kv_sched *s) {
    int number = youngest(s);
    kv_sched_requeue(s, number);
    s->stats.n_preempted++;
    return number;
}

bool kv_sched_make_room(kv_sched *s, int32_t need) {
    while (kv_cells_left(&s->cells) < need) {
        if (kv_sched_evict(s, need - kv_cells_left(&s->cells))) continue;
        KV_CHECK(kv_sched_n_running(s) > 1); /* S4 */
        preempt_youngest(s);
        return false;
    }
    return true;
}

void kv_sched_no_cells(kv_sched *s, const kv_error *err) {
    s->stats.n_no_cells++;
    s->short_of_cells = true;
    int idle = least_recent_idle(s);
    if (idle >= 0) {
        kv_sched_empty_slot(s, idle);
    } else if (kv_sched_n_running(s) > 1) {
        kv_sched_empty_slot(s, preempt_youngest(s));
    } else {
        kv_sched_count_failure(s, s->slots[youngest(s)].gen, err);
    }
}

/* The call was refused; nothing happened, so it is simply tried again. */
void kv_sched_refused(kv_sched *s, const bool *in, const kv_error *err) {
    s->stats.n_failed++;
    for (int i = 0; i < s->n_slots; i++)
        if (in[i] && s->slots[i].gen) kv_sched_count_failure(s, s->slots[i].gen, err);
}

/* A failed call may leave NaN in cells that were never handed out again: all sequences go, and the memory is zeroed. */
void kv_sched_damaged(kv_sched *s, const bool *in, const kv_error *err) {
    s->stats.n_damaged++;
    kv_engine_clear(s->engine);
    for (int i = 0; i < s->n_slots; i++) {
        kv_gen *g = s->slots[i].gen;
        kv_sched_empty_slot(s, i);
        if (!g) continue;
        kv_sched_requeue(s, i);
        if (in[i]) kv_sched_count_failure(s, g, err);
    }
}

/* A suspect's own call leaves no doubt; else all that are there may have been the first: they are suspects, and what no
 * logits have vouched for is forgotten. */
void kv_sched_not_numbers(kv_sched *s, const bool *in, const kv_error *err) {
    KV_WARN("%s (all requests are computed again from what is known to be right)", err->message);
    for (int i = 0; i < s->n_slots; i++) {
        const kv_slot *slot = &s->slots[i];
        if (!slot->gen || (s->suspect_ran && !in[i])) continue;
        kv_run *run = &slot->gen->run;
        if (in[i] || !run->n_nan) run->n_nan++;
        if (run->n_nan > 1) run->starts_over = true;
        kv_sched_forget(s, i, slot->sound, (int32_t)slot->held.len);
    }
    for (int i = 0; i < s->n_waiting; i++) kv_sched_look_up_anew(s, s->waiting[i]); /* they hold what they found */
    kv_sched_damaged(s, in, err);
}

/* ── dense sequence ids ────────────────────────────────────────────────────────────────────────────────────────── */

/* Give the running generation of slot `from` the id `to` of an idle slot, which takes `from` with what it holds. False
 * when the engine could not; then at most the idle content is lost. */
static bool swap_slots(kv_sched *s, int from, int to) {
    kv_slot *running = &s->slots[from], *idle = &s->slots[to];
    kv_seq scratch = s->n_slots;
    int32_t n = (int32_t)idle->held.len;
    bool keep = n > 0 && kv_engine_fork(s->engine, to, scratch, n, NULL) == KV_OK;
    kv_sched_empty_slot(s, to);
    bool moved =
        running->held.len == 0 || kv_engine_fork(s->engine, from, to, (int32_t)running->held.len, NULL) == KV_OK;
    if (moved) kv_engine_seq_rm(s->engine, from, -1, -1);
    int home = moved ? from : to;
    if (keep && kv_engine_fork(s->engine, scratch, home, n, NULL) == KV_OK) {
        idle->held.len = (size_t)n; /* the tokens are still there */
        kv_cells_append(&s->cells, to, n);
    }
    kv_engine_seq_rm(s->engine, scratch, -1, -1);
    if (!moved) return false;
    kv_cells_swap(&s->cells, from, to);
    kv_slot t = *running;
    *running = *idle;
    *idle = t;
    idle->gen->run.slot = to;
    kv_sched_touch(s, from);
    kv_sched_touch(s, to);
    return true;
}

/* Purely recurrent memory takes one pass over all weights for each run of adjacent ids (docs/engine.md "Batches"), so a
 * gap between running ones costs more than to move a state once. A generation that asked for its slot stays. */
void kv_sched_make_dense(kv_sched *s) {
    if (s->info->memory != KV_MEMORY_RECURRENT) return;
    for (int moves = 0; moves < s->n_slots; moves++) {
        int first = -1, last = -1, gap = -1;
        for (int i = 0; i < s->n_slots; i++) {
            if (!s->slots[i].gen) continue;
            if (first < 0) first = i;
            last = i;
        }
        for (int i = first; first >= 0 && i < last && gap < 0; i++)
            if (!s->slots[i].gen) gap = i;
        if (gap < 0 || s->slots[last].gen->id_slot >= 0 || s->slots[last].restoring) return;
        pthread_mutex_lock(&s->mutex);
        bool free_to_go = !s->erase[gap];
        if (free_to_go) s->busy[gap] = true;
        pthread_mutex_unlock(&s->mutex);
        if (!free_to_go) return; /* it is emptied before the next round */
        bool moved = swap_slots(s, last, gap);
        pthread_mutex_lock(&s->mutex);
        kv_slot_last t = s->last[gap];
        if (moved) s->last[gap] = s->last[last], s->last[last] = t;
        s->busy[moved ? last : gap] = false;
        pthread_mutex_unlock(&s->mutex);
        if (!moved) return;
    }
}
