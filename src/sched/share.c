/* sched/share.c: what several generations have in common is computed once.
 *
 *   one prompt, several choices   the others wait until it is computed, and fork its state
 *   a common beginning            whoever comes while another computes it waits until that one is past it, and finds it
 *                                 in the cache: six agents with one system prompt, or a retry of a request that runs
 *
 *       leader  ├──────────────────┼───▶ ┄┄┄┄┄┄┄┤         computes, leaves blocks and, at ▲, a state in the cache
 *       led     ├──────────────────▲   ┄┄┄┄┤              waits until the leader is past ▲, looks up anew, resumes there
 */
#include "sched/sched_private.h"

#include <string.h>

/* ── one prompt for several generations ────────────────────────────────────────────────────────────────────────── */

/* It has not sampled yet, so that another with the same prompt can start from its state. */
static bool is_fresh(const kv_gen *g) {
    return g->run.twins && g->run.n_decoded == 0;
}

/* True while a generation of the same request computes the prompt that g waits for. */
bool kv_sched_twin_computes(const kv_sched *s, const kv_gen *g) {
    for (int i = 0; i < s->n_slots && is_fresh(g); i++)
        if (s->slots[i].gen && is_fresh(s->slots[i].gen) && s->slots[i].gen->run.twins == g->run.twins) return true;
    return false;
}

static kv_gen *next_twin(const kv_sched *s, const kv_gen *leader) {
    kv_gen *first = NULL;
    for (int i = 0; i < s->n_waiting; i++) {
        kv_gen *g = s->waiting[i];
        if (g->run.twins != leader->run.twins || !is_fresh(g)) continue;
        if (g->id_slot >= 0 && s->slots[g->id_slot].gen) continue;
        if (!first || g->run.id < first->run.id) first = g;
    }
    return first;
}

/* Give g a slot with the state of `src`, which holds all of the prompt but its last token. */
static bool fork_twin(kv_sched *s, kv_gen *g, int src) {
    int dst = kv_sched_least_valuable(s, g->id_slot);
    int32_t n = (int32_t)s->slots[src].held.len;
    if (dst < 0 || !kv_sched_fits(s, g, dst, n, s->cells.forks_share ? n : 0)) return false;
    if (!kv_sched_claim(s, dst)) return true; /* erased this moment: just look again */
    kv_sched_empty_slot(s, dst);
    while (!kv_cells_can_fork(&s->cells, src, s->n_slots) && kv_sched_evict(s, n)) continue;
    bool ok = kv_cells_can_fork(&s->cells, src, s->n_slots) && kv_engine_fork(s->engine, src, dst, n, NULL) == KV_OK;
    if (!ok) {
        /* The fork left dst empty. g is computed for itself, later. */
        pthread_mutex_lock(&s->mutex);
        s->busy[dst] = false;
        pthread_mutex_unlock(&s->mutex);
        return false;
    }
    kv_tokens_append(&s->slots[dst].held, s->slots[src].held.data, (size_t)n);
    s->slots[dst].window_from = s->slots[src].window_from;
    kv_cells_fork(&s->cells, src, dst);
    kv_sched_touch(s, dst);
    kv_sched_stop_waiting(s, g);
    kv_sched_seat(s, g, dst);
    kv_sched_start_computing(s, dst, n);
    s->slots[dst].sound = s->slots[src].sound;
    s->stats.n_forked++;
    return true;
}

/* Where a prompt is computed but for its last token, the others of its request take it over as far as slots go. */
bool kv_sched_share_prompts(kv_sched *s) {
    bool did = false;
    for (int i = 0; i < s->n_slots; i++) {
        kv_gen *leader = s->slots[i].gen, *g;
        if (!leader || s->slots[i].restoring || !is_fresh(leader)) continue;
        int32_t held = (int32_t)s->slots[i].held.len;
        if (held == 0 || held != leader->n_prompt - 1) continue;
        while ((g = next_twin(s, leader)) && fork_twin(s, g, i)) did = true;
    }
    return did;
}

/* ── a common beginning ────────────────────────────────────────────────────────────────────────────────────────── */

/* Whole blocks of g's tokens that the generation in the slot has, too, as far as both compute them as a prompt. */
static int32_t common_blocks(const kv_sched *s, kv_gen *g, int number) {
    const kv_gen *l = s->slots[number].gen;
    kv_match *m = &g->run.led[number];
    if (m->version != l->run.id) {
        m->version = l->run.id;
        m->common = (int32_t)kv_tokens_common(l->tokens.data, (size_t)l->n_prompt, g->tokens.data, g->tokens.len);
    }
    int32_t most = (int32_t)g->tokens.len - 1, n = m->common < most ? m->common : most;
    if (n > l->n_prompt - 1) n = l->n_prompt - 1;
    return n / s->cfg.block * s->cfg.block;
}

/* The slot whose generation has most in common with g, at least a block more than the `have` tokens that it can have
 * now; -1: none. */
static int find_leader(const kv_sched *s, kv_gen *g, int32_t have, int32_t *upto) {
    int best = -1;
    *upto = have + s->cfg.block - 1;
    for (int i = 0; i < s->n_slots; i++) {
        const kv_gen *l = s->slots[i].gen;
        if (!l || !l->cache_prompt || l->run.starts_over || strcmp(l->scope, g->scope) != 0) continue;
        int32_t n = common_blocks(s, g, i);
        if (n <= *upto) continue;
        *upto = n;
        best = i;
    }
    return best;
}

void kv_sched_look_up_anew(kv_sched *s, kv_gen *g) {
    kv_lookup_free(g->run.lookup);
    g->run.lookup = NULL;
    kv_sched_look_up(s, g);
}

/* Between blocks nothing is kept for it: a state must be. */
static void ask_to_keep(const kv_sched *s, int number, int32_t upto) {
    kv_gen *l = s->slots[number].gen;
    if (kv_cache_keeps_places(s->cfg.cache) && upto > (int32_t)s->slots[number].held.len)
        kv_gen_add_hint(l, upto, KV_PLACE_BRANCH);
}

/* Whether g may be led at all. */
static bool follows(const kv_sched *s, const kv_gen *g) {
    return s->cfg.cache && !s->cfg.exact && g->cache_prompt && !g->run.starts_over &&
           !kv_cache_is_readonly(s->cfg.cache);
}

bool kv_sched_waits_for_look_up(const kv_sched *s, kv_gen *g) {
    if (!kv_sched_looks_up(g)) return false;
    int32_t upto;
    int number = follows(s, g) ? find_leader(s, g, 0, &upto) : -1;
    uint64_t leader = number < 0 ? 0 : s->slots[number].gen->run.id;
    if (leader && g->run.keeper != leader) ask_to_keep(s, number, upto);
    g->run.keeper = leader;
    return true;
}

/* Who waits for the leader goes no later for that: the leader has the place of the most urgent of them. */
static void urge(const kv_sched *s, kv_gen *leader, const kv_gen *g, int32_t have) {
    kv_queue_key key = kv_run_key(g, (int32_t)g->tokens.len - have);
    kv_run *run = &leader->run;
    if (run->is_urged && kv_queue_compare(&run->urge, &key, (int64_t)s->cfg.max_wait_ms * 1000) <= 0) return;
    run->is_urged = true;
    run->urge = key;
}

bool kv_sched_is_led(kv_sched *s, kv_gen *g, int32_t have) {
    if (!follows(s, g)) return false;
    int32_t upto;
    int number = find_leader(s, g, have, &upto);
    uint64_t leader = number < 0 ? 0 : s->slots[number].gen->run.id;
    if (number >= 0 && (int32_t)s->slots[number].held.len < upto) {
        if (g->run.leader != leader) s->stats.n_led++;
        g->run.leader = leader;
        ask_to_keep(s, number, upto);
        urge(s, s->slots[number].gen, g, have);
        return true;
    }
    /* The leader is past it, or gone, or was so when g looked: what it left is found now, if it was not asked for yet. */
    uint64_t ask = leader ? leader : g->run.leader;
    if (ask == 0 || g->run.asked_after == ask) return false;
    g->run.asked_after = ask;
    g->run.leader = 0;
    kv_sched_look_up_anew(s, g);
    return true;
}
