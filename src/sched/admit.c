/* sched/admit.c: from the queue into slots.
 *
 * Slots are given out one by one. Each waiting generation names the slot it would take and how much of its content it
 * can use; the first in the order of queue.h whose tokens will find room gets it. One that was overtaken for too long
 * and finds no room for its cells closes the door behind itself: what runs ends some day, and then there is room.
 */
#include "sched/sched_private.h"
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    kv_gen *gen;
    int slot;
    int32_t usable;
    kv_queue_key key;
    int64_t max_wait_us;
} candidate;

/* ── which slot ────────────────────────────────────────────────────────────────────────────────────────────────── */

static int32_t common_prefix(const kv_slot *slot, int number, kv_gen *g) {
    kv_match *m = &g->run.match[number];
    if (m->version != slot->version) {
        m->common = (int32_t)kv_tokens_common(slot->held.data, slot->held.len, g->tokens.data, g->tokens.len);
        m->version = slot->version;
    }
    return m->common;
}

/* True when the sequence of a windowed memory still has the window that a token at P needs. */
static bool has_window_at(kv_sched *s, int slot, int32_t P) {
    int32_t W = s->info->n_window, from = P - W + 1;
    if (s->info->window_is_chunked) from = P / W * W < P ? P / W * W : P - 1; /* the sequence's end at least */
    if (from < 0) from = 0;
    return kv_engine_pos_min(s->engine, slot) <= from && s->slots[slot].window_from <= from;
}

/* Tokens of the idle slot's content that g can go on after. At least one token is always computed. */
static int32_t usable_prefix(kv_sched *s, int number, kv_gen *g) {
    kv_slot *slot = &s->slots[number];
    int32_t held = (int32_t)slot->held.len, most = (int32_t)g->tokens.len - 1;
    if (s->cfg.exact || !g->cache_prompt || g->run.starts_over || !held || strcmp(slot->scope, g->scope) != 0) return 0;
    int32_t n = common_prefix(slot, number, g);
    if (n > most) n = most;
    if (n == held || s->cut_free) return n;
    return n > 0 && s->info->memory == KV_MEMORY_WINDOW && has_window_at(s, number, n) ? n : 0;
}

/* Least recently used first, but before all of them those that hold nothing. */
static bool is_better_to_lose(const kv_slot *a, const kv_slot *b) {
    bool content_a = a->held.len > 0, content_b = b->held.len > 0;
    return content_a != content_b ? content_b : a->used_at < b->used_at;
}

int kv_sched_least_valuable(const kv_sched *s, int wanted) {
    int best = -1;
    for (int i = 0; i < s->n_slots; i++) {
        if (s->slots[i].gen || (wanted >= 0 && wanted != i)) continue;
        if (best < 0 || is_better_to_lose(&s->slots[i], &s->slots[best])) best = i;
    }
    return best;
}

/* The idle slot with the longest usable prefix, when that is a large enough share of the tokens; of equals the one
 * that loses least. */
static int most_similar_idle(kv_sched *s, kv_gen *g) {
    int best = -1;
    int32_t best_usable = 0;
    if (s->cfg.slot_similarity <= 0) return -1; /* as in llama-server, 0 turns it off */
    for (int i = 0; i < s->n_slots; i++) {
        if (s->slots[i].gen) continue;
        int32_t usable = usable_prefix(s, i, g);
        if (usable <= 0 || (float)usable / (float)g->tokens.len <= s->cfg.slot_similarity) continue;
        if (best < 0 || usable > best_usable ||
            (usable == best_usable && s->slots[i].held.len < s->slots[best].held.len)) {
            best = i;
            best_usable = usable;
        }
    }
    return best;
}

static int choose_slot(kv_sched *s, kv_gen *g) {
    int best = g->id_slot < 0 ? most_similar_idle(s, g) : -1;
    return best >= 0 ? best : kv_sched_least_valuable(s, g->id_slot);
}

/* ── room ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

bool kv_sched_fits(kv_sched *s, const kv_gen *g, int slot, int32_t usable, int32_t shared) {
    int64_t n_running = 0, need = (int64_t)g->tokens.len - usable;
    for (int i = 0; i < s->n_slots; i++) {
        s->mask[i] = i != slot && s->slots[i].gen != NULL;
        if (!s->mask[i]) continue;
        n_running++;
        need += kv_slot_left(&s->slots[i]);
    }
    if (!n_running) return true;
    need += kv_cells_of(&s->cells, s->mask);
    need += shared ? usable - shared : kv_cells_beside(&s->cells, s->mask, slot, usable);
    return need + KV_SCHED_HEADROOM * (n_running + 1) <= s->cells.total;
}

/* ── into the slot ─────────────────────────────────────────────────────────────────────────────────────────────── */

bool kv_sched_claim(kv_sched *s, int slot) {
    pthread_mutex_lock(&s->mutex);
    bool erase = s->erase[slot];
    s->erase[slot] = false;
    s->busy[slot] = !erase;
    pthread_mutex_unlock(&s->mutex);
    if (erase) kv_sched_empty_slot(s, slot);
    return !erase;
}

/* Cut the slot's content to what is used. Returns what is left: 0 when the memory did not obey. */
static int32_t keep_prefix(kv_sched *s, int number, int32_t usable) {
    kv_slot *slot = &s->slots[number];
    if (usable == 0 || slot->held.len == 0 || !kv_engine_trim(s->engine, number, usable) ||
        !kv_engine_holds(s->engine, number, usable)) {
        kv_sched_empty_slot(s, number);
        return 0;
    }
    slot->held.len = (size_t)usable;
    kv_cells_cut(&s->cells, number, usable);
    kv_sched_touch(s, number);
    return usable;
}

void kv_sched_tell_progress(kv_gen *g, int64_t now_us) {
    kv_gen_event e = {
        .kind = KV_EVENT_PROGRESS,
        .n_total = g->n_prompt,
        .n_cache = g->run.n_cached,
        .n_processed = g->run.n_prompt_done,
        .time_ms = (double)(now_us - g->run.admitted_us) / 1000,
    };
    kv_gen_push(g, &e);
}

void kv_sched_seat(kv_sched *s, kv_gen *g, int number) {
    kv_slot *slot = &s->slots[number];
    slot->gen = g;
    slot->is_kept = false;
    free(slot->scope);
    slot->scope = kv_strdup(g->scope);
    pthread_mutex_lock(&s->mutex);
    free(s->last[number].about);
    s->last[number].about = kv_strdup(g->about);
    pthread_mutex_unlock(&s->mutex);
    g->run.state = KV_RUN_IN_SLOT;
    g->run.slot = number;
    if (!g->run.admitted) g->run.admitted_us = kv_now_us(s->clock);
    g->run.admitted = true;
}

/* A branch nearer than this to a place that is kept is not worth one, whatever it costs: templates make some of them. */
#define NEAR_BRANCH 16

/* Where the prompt parts from what is stored: once seen, a place to come back to. */
static void mark_branch(const kv_sched *s, kv_gen *g, int32_t cached) {
    if (g->run.counted || !g->run.lookup || !kv_lookup_ready(g->run.lookup)) return;
    int32_t branch = kv_lookup_get(g->run.lookup)->n_match, near = kv_cache_near(s->cfg.cache);
    if (branch >= cached + (near > NEAR_BRANCH ? near : NEAR_BRANCH) && branch < g->n_prompt - 1 &&
        kv_cache_keeps_places(s->cfg.cache))
        kv_gen_add_hint(g, branch, KV_PLACE_BRANCH);
}

/* Which of its places are worth a state, now that it is known where it resumes. */
static void choose_places(const kv_sched *s, kv_gen *g, int32_t cached) {
    if (!s->cfg.cache || !g->cache_prompt || !kv_cache_keeps_places(s->cfg.cache)) return;
    if (!g->run.counted) kv_cache_note_resumed(s->cfg.cache, g->run.lookup, cached);
    kv_cache_choose_places(s->cfg.cache, &g->hints, &g->n_hints, g->n_prompt, cached, g->run.lookup);
    g->places_are_chosen = true;
}

void kv_sched_start_computing(kv_sched *s, int slot, int32_t cached) {
    kv_gen *g = s->slots[slot].gen;
    s->slots[slot].sound = cached;
    if (!g->run.starts_over) g->run.n_resumed = cached;
    if (g->run.n_nan) s->suspect_ran = false; /* it shows first whether what it found are numbers */
    kv_sched_begin_trail(s, slot, g);
    if (!g->run.counted) kv_sched_note_miss(g, cached);
    mark_branch(s, g, cached);
    choose_places(s, g, cached);
    kv_lookup_free(g->run.lookup);
    g->run.lookup = NULL;
    if (g->run.counted) return;
    g->run.counted = true;
    g->run.n_cached = g->run.n_prompt_done = cached < g->n_prompt ? cached : g->n_prompt;
    s->stats.n_prompt_cached += (uint64_t)g->run.n_cached;
    kv_sched_tell_progress(g, kv_now_us(s->clock));
}

void kv_sched_stop_waiting(kv_sched *s, const kv_gen *g) {
    for (int i = 0; i < s->n_waiting; i++)
        if (s->waiting[i] == g) {
            s->waiting[i] = s->waiting[--s->n_waiting];
            return;
        }
    KV_CHECK(!"not among the waiting");
}

/* ── admission ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static int by_order(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return kv_queue_compare(&x->key, &y->key, x->max_wait_us);
}

/* A suspect waits until no other is there: then only its own calls can give NaN. */
static bool waits_as_suspect(const kv_sched *s, const kv_gen *g) {
    bool waits = false;
    for (int i = 0; i < s->n_slots && g->run.n_nan; i++)
        waits = waits || (s->slots[i].gen && s->slots[i].gen->run.n_nan);
    return waits;
}

/* Everybody who could have a slot now, in order. The caller frees the array. */
static candidate *list_candidates(int *n, kv_sched *s) {
    candidate *list = kv_alloc((size_t)s->n_waiting * sizeof *list);
    *n = 0;
    for (int i = 0; i < s->n_waiting; i++) {
        kv_gen *g = s->waiting[i];
        bool waits = waits_as_suspect(s, g) || kv_sched_twin_computes(s, g) || kv_sched_waits_for_look_up(s, g);
        int slot = waits ? -1 : choose_slot(s, g);
        if (slot < 0) continue;
        int32_t usable = usable_prefix(s, slot, g), resumes = kv_sched_resumable(g);
        if (kv_sched_is_led(s, g, usable > resumes ? usable : resumes)) continue;
        int32_t left = (int32_t)g->tokens.len - (usable > resumes ? usable : resumes);
        list[(*n)++] = (candidate){g, slot, usable, kv_run_key(g, left), (int64_t)s->cfg.max_wait_ms * 1000};
    }
    qsort(list, (size_t)*n, sizeof *list, by_order);
    return list;
}

/* All slots are taken: the first of those that wait, if it goes before a prompt that is being computed, takes its place. */
static bool make_way(kv_sched *s) {
    kv_gen *first = NULL;
    kv_queue_key first_key = {0};
    for (int i = 0; i < s->n_waiting; i++) {
        kv_gen *g = s->waiting[i];
        int32_t have = kv_sched_resumable(g);
        if (g->id_slot >= 0 || waits_as_suspect(s, g)) continue;
        if (kv_sched_twin_computes(s, g) || kv_sched_waits_for_look_up(s, g)) continue;
        if (kv_sched_is_led(s, g, have)) continue;
        kv_queue_key key = kv_run_key(g, (int32_t)g->tokens.len - have);
        if (first && kv_queue_compare(&key, &first_key, (int64_t)s->cfg.max_wait_ms * 1000) > 0) continue;
        first = g;
        first_key = key;
    }
    return first && kv_sched_give_way(s, first, &first_key);
}

/* True when one was admitted, or an erased slot makes another look necessary. */
static bool admit_one(kv_sched *s) {
    if (!s->n_waiting) return false;
    if (kv_sched_least_valuable(s, -1) < 0) return make_way(s);
    int n;
    bool did = false;
    candidate *list = list_candidates(&n, s);
    for (int i = 0; i < n && !did; i++) {
        candidate *c = &list[i];
        if (!kv_sched_fits(s, c->gen, c->slot, c->usable, 0)) {
            if (!kv_queue_overdue(&c->key, c->max_wait_us)) continue;
            did = kv_sched_give_way(s, c->gen, &c->key);
            break;
        }
        did = true;
        if (!kv_sched_claim(s, c->slot)) break;
        kv_sched_stop_waiting(s, c->gen);
        kv_sched_clear_way(s, c->slot);
        if (s->cfg.exact) { /* the first cells, as on an empty server */
            kv_sched_empty_slot(s, c->slot);
            kv_engine_clear(s->engine);
        }
        bool restoring = kv_sched_begin_restore(s, c->slot, c->gen, c->usable);
        int32_t cached = restoring ? 0 : keep_prefix(s, c->slot, c->usable);
        kv_sched_seat(s, c->gen, c->slot);
        if (!restoring) kv_sched_start_computing(s, c->slot, cached);
    }
    free(list);
    return did;
}

bool kv_sched_admit(kv_sched *s) {
    bool did = false;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].gen) s->slots[i].gen->run.is_urged = false;
    /* Who was sent back for lack of cells would come again at once, and what is left would never run alone. */
    if (s->short_of_cells && kv_sched_n_running(s)) return false;
    do {
        if (kv_sched_share_prompts(s)) did = true;
        if (!admit_one(s)) return did;
        did = true;
    } while (true);
}
