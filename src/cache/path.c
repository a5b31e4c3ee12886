/* cache/path.c: what is kept along a path, from the root to one of its nodes: which places of a prompt are worth keeping
 * beside it, and what of it goes when the path's budget is used up.
 *
 *   root ── block ──┬── block ──┬── block          a path has its blocks' records, and those of the shorter siblings that
 *                   └─ short    └─ short           are the beginnings of its blocks: places inside of them
 */
#include <stdlib.h>
#include <string.h>

#include "cache/lookup_private.h"

#define MAX_SHORTER 64 /* places inside one block that are looked at */
/* Messages nearer than this would cut the prefill into chunks that are slow for their size: kernels want as many tokens. */
#define LEAST_SPACING 64

typedef struct kept {
    kv_radix_node *node; /* referenced */
    kv_spot spot;
    int32_t q;
} kept;

typedef struct kept_list {
    kv_cache *c;
    kept *list; /* owned, n of them */
    int n, cap;
} kept_list;

static kv_radix_slot slot_of(const kv_cache *c) {
    if (c->memory == KV_MEMORY_WHOLE) return KV_RADIX_WHOLE;
    return kv_state_has_windows(c->memory) ? KV_RADIX_WINDOW : KV_RADIX_CHECKPOINT;
}

/* ── gathering ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add(kept_list *l, kv_radix_node *node) {
    kv_radix_record rec;
    if (!kv_radix_get_record(&rec, l->c->tree, node, slot_of(l->c))) return;
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 32;
        l->list = kv_realloc(l->list, (size_t)l->cap * sizeof *l->list);
    }
    int32_t q = kv_radix_start(node);
    kv_radix_ref(l->c->tree, node);
    l->list[l->n++] = (kept){.node = node,
                             .q = q,
                             .spot = {.position = q + kv_radix_n_tokens(node),
                                      .kind = (kv_place_kind)rec.place,
                                      .bytes = rec.bytes,
                                      .is_stored = true}};
}

static void add_with_shorter(kept_list *l, kv_radix_node *node) {
    kv_radix_node *shorter[MAX_SHORTER];
    int n = kv_radix_prefixes(shorter, MAX_SHORTER, l->c->tree, node);
    add(l, node);
    for (int i = 0; i < n; i++) {
        add(l, shorter[i]);
        kv_radix_unref(l->c->tree, shorter[i]);
    }
}

static int by_position(const void *a, const void *b) {
    int32_t x = ((const kept *)a)->spot.position, y = ((const kept *)b)->spot.position;
    return (x > y) - (x < y);
}

/* All that is kept from the root to the node. settle: also what is known by key alone, which may read files. */
static void gather(kept_list *l, kv_cache *c, kv_radix_node *node, bool settle) {
    *l = (kept_list){.c = c};
    for (kv_radix_node *parent; (parent = kv_radix_parent(node)); node = parent) {
        if (settle) (void)kv_cache_settle_children(c, parent);
        add_with_shorter(l, node);
    }
    if (l->n) qsort(l->list, (size_t)l->n, sizeof *l->list, by_position);
}

static void kept_free(kept_list *l) {
    for (int i = 0; i < l->n; i++) kv_radix_unref(l->c->tree, l->list[i].node);
    free(l->list);
    *l = (kept_list){0};
}

static kv_spot *spots_of(const kept_list *l, int room) {
    kv_spot *spots = kv_alloc((size_t)(l->n + room) * sizeof *spots);
    for (int i = 0; i < l->n; i++) spots[i] = l->list[i].spot;
    return spots;
}

kv_spot *kv_path_kept(int *n, kv_cache *c, kv_radix_node *last, kv_radix_node *const *more, int n_more) {
    kept_list l = {.c = c};
    if (last) gather(&l, c, last, false);
    for (int i = 0; i < n_more; i++) add(&l, more[i]);
    kv_spot *spots = l.n ? spots_of(&l, 0) : NULL;
    *n = l.n;
    kept_free(&l);
    return spots;
}

/* ── terms ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Bytes of what one position needs that nothing else shares. */
static uint64_t state_bytes(const kv_cache *c, int32_t position) {
    if (c->memory == KV_MEMORY_WHOLE)
        return c->state_bytes + (uint64_t)position * (c->cell_bytes + c->window_cell_bytes);
    uint64_t window = (uint64_t)c->window * c->window_cell_bytes;
    return kv_state_has_windows(c->memory) ? 0 : c->state_bytes + window;
}

static kv_policy_terms terms_of(kv_cache *c, int32_t end) {
    kv_policy_terms t = {.us_per_token = 1, /* where one path is weighed, its speed is the same everywhere */
                         .spacing = LEAST_SPACING,
                         .end = end,
                         .interval = c->policy.interval,
                         .budget = c->cfg.path_bytes};
    uint64_t one = state_bytes(c, end);
    if (kv_state_has_windows(c->memory)) {
        t.window = c->window;
        t.window_cell_bytes = c->window_cell_bytes;
        one = (uint64_t)c->window * c->window_cell_bytes;
    }
    if (!t.budget) {
        t.budget = kv_policy_budget(t.interval, one, end);
        if (c->near > t.spacing) t.spacing = c->near;
    }
    pthread_mutex_lock(&c->mutex);
    kv_policy_chances(t.chance, c->stats.places);
    pthread_mutex_unlock(&c->mutex);
    return t;
}

/* ── the choice for a prompt ───────────────────────────────────────────────────────────────────────────────────── */

static int spot_by_position(const void *a, const void *b) {
    int32_t x = ((const kv_spot *)a)->position, y = ((const kv_spot *)b)->position;
    return (x > y) - (x < y);
}

/* Ascending, one spot a position. */
static int merge(kv_spot *spots, int n) {
    int m = 0;
    qsort(spots, (size_t)n, sizeof *spots, spot_by_position);
    for (int i = 0; i < n; i++) {
        kv_spot *last = m ? &spots[m - 1] : NULL;
        if (!last || last->position != spots[i].position) {
            spots[m++] = spots[i];
            continue;
        }
        last->kind = kv_policy_likelier(last->kind, spots[i].kind);
        last->bytes = last->bytes > spots[i].bytes ? last->bytes : spots[i].bytes;
        last->is_stored |= spots[i].is_stored;
        last->is_possible |= spots[i].is_possible;
        last->is_fixed |= spots[i].is_fixed;
    }
    return m;
}

/* What an earlier choice put between the prompt's own places. */
static int without_fillers(kv_hint *hints, int n) {
    int m = 0;
    for (int i = 0; i < n; i++)
        if (hints[i].kind != KV_PLACE_INTERVAL) hints[m++] = hints[i];
    return m;
}

static int spots_of_prompt(kv_spot *spots, const kv_cache *c, const kv_hint *hints, int n_hints, int32_t n_prompt,
                           int32_t cached, const kv_lookup *l) {
    int n = 0;
    for (int i = 0; i < n_hints; i++) {
        int32_t P = hints[i].position;
        if (P <= 0 || P >= n_prompt) continue;
        spots[n++] = (kv_spot){.position = P,
                               .kind = hints[i].kind,
                               .bytes = state_bytes(c, P),
                               .is_possible = P > cached,
                               .is_fixed = P > cached && hints[i].keep_seconds > 0};
    }
    for (int i = 0; l && i < l->n_kept; i++)
        if (l->kept[i].position < n_prompt) spots[n++] = l->kept[i];
    if (cached > 0) spots[n++] = (kv_spot){.position = cached, .is_stored = true, .is_fixed = true};
    if (n_prompt > 1)
        spots[n++] = (kv_spot){.position = n_prompt - 1,
                               .kind = KV_PLACE_PROMPT_END,
                               .bytes = state_bytes(c, n_prompt - 1),
                               .is_possible = n_prompt - 1 > cached,
                               .is_fixed = true};
    return merge(spots, n);
}

static const kv_spot *find_spot(const kv_spot *spots, int n, int32_t position) {
    const kv_spot key = {.position = position};
    return n ? bsearch(&key, spots, (size_t)n, sizeof *spots, spot_by_position) : NULL;
}

void kv_cache_choose_places(kv_cache *c, kv_hint **hints, int *n_hints, int32_t n_prompt, int32_t cached,
                            const kv_lookup *l) {
    kv_policy_terms t = terms_of(c, n_prompt);
    *n_hints = without_fillers(*hints, *n_hints);
    int room = *n_hints + (l ? l->n_kept : 0) + 4 + 2 * (n_prompt / t.interval + 1);
    kv_spot *spots = kv_alloc((size_t)room * sizeof *spots);
    int n = spots_of_prompt(spots, c, *hints, *n_hints, n_prompt, cached, l);
    n = kv_policy_fill(spots, n, room, cached, c->cfg.block, state_bytes(c, n_prompt), &t);
    kv_policy_choose(spots, n, &t);
    for (int i = 0; i < *n_hints; i++) {
        kv_hint *h = &(*hints)[i];
        const kv_spot *s = find_spot(spots, n, h->position);
        h->is_left_out = h->position > cached && s && !s->is_kept;
    }
    for (int i = 0; i < n; i++) {
        if (spots[i].kind != KV_PLACE_INTERVAL || !spots[i].is_possible || !spots[i].is_kept) continue;
        *hints = kv_realloc(*hints, (size_t)(*n_hints + 1) * sizeof **hints);
        (*hints)[(*n_hints)++] = (kv_hint){.position = spots[i].position, .kind = KV_PLACE_INTERVAL};
    }
    free(spots);
}

/* ── hits ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_cache_count_place(kv_cache *c, kv_place_kind kind, bool hit) {
    pthread_mutex_lock(&c->mutex);
    if (hit) c->stats.places[kind].n_hits++;
    else c->stats.places[kind].n_kept++;
    pthread_mutex_unlock(&c->mutex);
    if (c->cfg.store) kv_store_count_place(c->cfg.store, kind, !hit, hit);
}

void kv_cache_note_resumed(kv_cache *c, const kv_lookup *l, int32_t position) {
    if (!l || position <= 0 || !kv_cache_keeps_places(c)) return;
    const kv_spot *best = NULL; /* with windows the part that has the position may go on behind it */
    for (int i = 0; i < l->n_kept; i++) {
        const kv_spot *s = &l->kept[i];
        if (s->position >= position && (!best || s->position < best->position)) best = s;
    }
    if (best && (best->position == position || kv_state_has_windows(c->memory)))
        kv_cache_count_place(c, best->kind, true);
}

/* ── the path's budget ─────────────────────────────────────────────────────────────────────────────────────────── */

/* Chooses what stays beside the new one, the last of the spots of which one is each of the list's, in order; what is
 * pinned stays, and where two prompts parted as long as something else can go. False: it does not fit. */
static bool choose_states(kv_spot *spots, const kept_list *l, kv_policy_terms *t) {
    int n = l->n + 1;
    for (int soft = 1; soft >= 0; soft--) {
        for (int i = 0; i < l->n; i++)
            spots[i].is_fixed =
                kv_cache_is_pinned(l->c, l->list[i].node, slot_of(l->c)) || (soft && spots[i].kind == KV_PLACE_BRANCH);
        spots[l->n].is_fixed = true;
        kv_policy_choose(spots, n, t);
        if (kv_policy_bytes(spots, n, t) <= t->budget) return true;
    }
    return false;
}

/* A budget that nobody named is so many states or windows, of the size that they really have. */
static void widen(kv_policy_terms *t, const kv_cache *c, const kv_record *r) {
    uint64_t supposed =
        kv_state_has_windows(c->memory) ? (uint64_t)r->head.n_tokens * c->window_cell_bytes : state_bytes(c, r->head.e);
    if (c->cfg.path_bytes || !supposed || r->payload.len <= supposed) return;
    t->budget = (uint64_t)((double)t->budget * ((double)r->payload.len / (double)supposed));
}

/* States: a new one at e. */
static bool make_room_for_state(kv_cache *c, kept_list *l, const kv_record *r) {
    kv_policy_terms t = terms_of(c, r->head.e);
    widen(&t, c, r);
    uint64_t sum = r->payload.len;
    for (int i = 0; i < l->n; i++) sum += l->list[i].spot.bytes;
    if (sum <= t.budget) return true;
    kv_spot *spots = spots_of(l, 1);
    spots[l->n] = (kv_spot){
        .position = r->head.e, .kind = r->head.place, .bytes = r->payload.len, .is_possible = true, .is_fixed = true};
    bool ok = choose_states(spots, l, &t);
    for (int i = 0; i < l->n && ok; i++)
        if (!spots[i].is_kept) kv_cache_remove(c, l->list[i].node, slot_of(c));
    free(spots);
    return ok;
}

/* Window parts: those of the last window, which are about to be used, stay. Of the positions that all parts before them
 * lead to, the worthiest are chosen, and parts that none of these needs go. */
static bool is_whole(const kept_list *l, int i, int32_t block, int32_t from) {
    int32_t q = l->list[i].q;
    for (int k = i - 1; q > from && k >= 0; k--) {
        if (l->list[k].spot.position == q && l->list[k].q == q - block) q -= block;
        else if (l->list[k].spot.position < q) break;
    }
    return q <= from;
}

static uint64_t parts_needed(bool *needed, const kept_list *l, const kv_spot *spots, int n, int32_t last_from) {
    const kv_cache *c = l->c;
    uint64_t sum = 0;
    for (int i = 0; i < l->n; i++) {
        int32_t q = l->list[i].q, e = l->list[i].spot.position;
        needed[i] = e > last_from || kv_cache_is_pinned(l->c, l->list[i].node, slot_of(l->c));
        for (int k = 0; k < n && !needed[i]; k++) {
            int32_t P = spots[k].position;
            needed[i] = spots[k].is_kept && q < P && e > kv_window_start(c->window, c->window_is_chunked, P) && e <= P;
        }
        if (needed[i]) sum += l->list[i].spot.bytes;
    }
    return sum;
}

static bool make_room_for_part(kv_cache *c, kept_list *l, const kv_record *r) {
    kv_policy_terms t = terms_of(c, r->head.e);
    widen(&t, c, r);
    uint64_t budget = t.budget, sum = r->payload.len;
    for (int i = 0; i < l->n; i++) sum += l->list[i].spot.bytes;
    if (sum <= budget) return true;
    kv_spot *spots = spots_of(l, 1);
    bool *needed = kv_alloc((size_t)l->n + 1);
    int32_t last_from = kv_window_start(c->window, c->window_is_chunked, r->head.q);
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        int32_t P = l->list[i].spot.position;
        if (P > last_from || !is_whole(l, i, c->cfg.block, kv_window_start(c->window, c->window_is_chunked, P)))
            continue;
        spots[n] = l->list[i].spot;
        spots[n++].bytes = 0; /* what windows take is reckoned by their cells */
    }
    bool ok = false;
    for (int tries = 0; tries < 12 && !ok; tries++) { /* parts are whole blocks: more than the cells that are needed */
        kv_policy_choose(spots, n, &t);
        ok = parts_needed(needed, l, spots, n, last_from) + r->payload.len <= budget;
        t.budget = tries < 10 ? t.budget / 4 * 3 : 0;
    }
    for (int i = 0; i < l->n && ok; i++)
        if (!needed[i]) kv_cache_remove(c, l->list[i].node, slot_of(c));
    free(needed);
    free(spots);
    return ok;
}

bool kv_cache_make_path_room(kv_cache *c, kv_radix_node *node, const kv_record *r) {
    if (kv_cache_slot_of(r->head.kind) != slot_of(c)) return true;
    kept_list l;
    gather(&l, c, node, true);
    bool ok = slot_of(c) == KV_RADIX_WINDOW ? make_room_for_part(c, &l, r) : make_room_for_state(c, &l, r);
    for (int i = 0; i < l.n; i++) {
        kv_cache_prune(c, l.list[i].node); /* takes the reference */
        l.list[i].node = NULL;
    }
    free(l.list);
    return ok;
}
