#include "cache/policy.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define FIRST_INTERVAL 2048
/* What a chunk's edge costs more, as tokens: a place whose chunk would be short must save more than that on average. */
#define EDGE_TOKENS 32

/* Of a hundred positions of a kind so many are gone on at, and so many were seen that a store's own hits weigh as much as
 * that. Of intervals: prompts that part within one. */
#define PRIOR_SEEN 50
static const unsigned char prior[KV_PLACE_COUNT] = {
    [KV_PLACE_UNKNOWN] = 5, [KV_PLACE_PROMPT_END] = 30,   [KV_PLACE_ANSWER_END] = 70, [KV_PLACE_SYSTEM_END] = 60,
    [KV_PLACE_MESSAGE] = 5, [KV_PLACE_LAST_MESSAGE] = 20, [KV_PLACE_GENERATION] = 10, [KV_PLACE_MARK] = 65,
    [KV_PLACE_BRANCH] = 50, [KV_PLACE_INTERVAL] = 3,
};

/* ── a prompt's places ─────────────────────────────────────────────────────────────────────────────────────────── */

kv_place_kind kv_policy_likelier(kv_place_kind a, kv_place_kind b) {
    return prior[b] > prior[a] ? b : a;
}

void kv_hint_join(kv_hint *there, const kv_hint *more) {
    if (there->keep_seconds < more->keep_seconds) there->keep_seconds = more->keep_seconds;
    there->kind = kv_policy_likelier(there->kind, more->kind);
}

static const kv_hint *hint_at(int32_t P, const kv_places *prompt) {
    for (int i = 0; i < prompt->n_hints; i++)
        if (prompt->hints[i].position == P && !prompt->hints[i].is_left_out) return &prompt->hints[i];
    return NULL;
}

bool kv_policy_keeps(const kv_policy *p, int32_t P, const kv_places *prompt) {
    const int32_t n_prompt = prompt->n_prompt;
    if (P <= 0) return false;
    if (p->only_intervals) return P % p->interval == 0;
    if (p->exact_chunk) { /* the last full chunk, and the first one behind each interval */
        bool edge = P % p->exact_chunk == 0 && P < n_prompt;
        return edge && (P + p->exact_chunk > n_prompt - 1 || P / p->interval != (P - p->exact_chunk) / p->interval);
    }
    if (P >= n_prompt) return false;
    return P == n_prompt - 1 || (P % p->interval == 0 && !prompt->are_chosen) || hint_at(P, prompt);
}

kv_place_kind kv_policy_kind(int32_t P, const kv_places *prompt) {
    const kv_hint *hint = P < prompt->n_prompt ? hint_at(P, prompt) : NULL;
    kv_place_kind own = P == prompt->n_prompt - 1 ? KV_PLACE_PROMPT_END
                        : P >= prompt->n_prompt   ? KV_PLACE_ANSWER_END
                                                  : KV_PLACE_INTERVAL;
    return hint ? kv_policy_likelier(own, hint->kind) : own;
}

int32_t kv_policy_keep_seconds(int32_t P, const kv_places *prompt) {
    int32_t most = 0;
    for (int i = 0; i < prompt->n_hints; i++)
        if (prompt->hints[i].position >= P && prompt->hints[i].keep_seconds > most)
            most = prompt->hints[i].keep_seconds;
    return most;
}

int32_t kv_policy_next(const kv_policy *p, int32_t pos, const kv_places *prompt) {
    const int32_t n_prompt = prompt->n_prompt;
    int32_t next = p->exact_chunk || prompt->are_chosen ? n_prompt : (pos / p->interval + 1) * p->interval;
    for (int i = 0; i < prompt->n_hints && !p->exact_chunk && !p->only_intervals; i++) {
        const kv_hint *h = &prompt->hints[i];
        if (h->position > pos && h->position < next && !h->is_left_out) next = h->position;
    }
    if (pos < n_prompt - 1 && next > n_prompt - 1) next = n_prompt - 1;
    return next < n_prompt ? next : n_prompt;
}

int32_t kv_policy_near(int32_t interval, uint64_t state_bytes, uint64_t cell_bytes) {
    if (!state_bytes || !cell_bytes) return 0;
    uint64_t tokens = state_bytes / cell_bytes / 8;
    return tokens < (uint64_t)interval / 4 ? (int32_t)tokens : interval / 4;
}

int32_t kv_policy_interval(int32_t block, uint64_t checkpoint_bytes, uint64_t cell_bytes) {
    int32_t interval = FIRST_INTERVAL > block ? FIRST_INTERVAL / block * block : block;
    /* Without cells (recurrent only) there is nothing to hold them against. */
    while (cell_bytes && interval < 1 << 20 && checkpoint_bytes > cell_bytes * (uint64_t)interval) interval *= 2;
    return interval;
}

uint64_t kv_policy_budget(int32_t interval, uint64_t checkpoint_bytes, int32_t n) {
    return checkpoint_bytes * (KV_POLICY_LEAST + (uint64_t)(n / interval));
}

/* ── chances ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_policy_chances(double chance[KV_PLACE_COUNT], const kv_place_count count[KV_PLACE_COUNT]) {
    for (int k = 0; k < KV_PLACE_COUNT; k++) {
        double hits = PRIOR_SEEN * prior[k] / 100.0 + (double)count[k].n_hits,
               of = PRIOR_SEEN + (double)count[k].n_kept;
        chance[k] = hits < of ? hits / of : 1; /* one that is gone on at again and again */
    }
}

/* Where a turn ends there are several positions, one behind the other. Once a later turn has its own, the earlier ones
 * are where a message begins. 0: of another kind. */
static int rank_in_turn(kv_place_kind kind) {
    switch (kind) {
    case KV_PLACE_LAST_MESSAGE: return 1;
    case KV_PLACE_GENERATION: return 2;
    case KV_PLACE_PROMPT_END: return 3;
    case KV_PLACE_ANSWER_END: return 4;
    default: return 0;
    }
}

/* mass[i]: the chances of the spots before i; mass[n]: of all. An interval's is spread over its tokens. */
static void weigh(double *mass, const kv_spot *spots, int n, const kv_policy_terms *t) {
    int least = INT32_MAX;
    for (int i = n - 1; i >= 0; i--) {
        kv_place_kind kind = spots[i].kind;
        int rank = rank_in_turn(kind);
        if (rank && rank >= least) kind = KV_PLACE_MESSAGE;
        if (rank && rank < least) least = rank;
        mass[i + 1] = kind == KV_PLACE_INTERVAL ? 0 : t->chance[kind];
    }
    mass[0] = 0;
    for (int i = 0; i < n; i++) mass[i + 1] += mass[i];
}

/* ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What spot i saves while `prev` and `next` are kept (-1, n: none there), in tokens that a prompt computes less. */
static double saves(const kv_spot *spots, int i, int prev, int next, int n, const double *mass,
                    const kv_policy_terms *t) {
    int32_t P = spots[i].position, from = prev < 0 ? 0 : spots[prev].position;
    int32_t to = next < n ? spots[next].position : t->end > P ? t->end : P;
    double anywhere = t->interval > 0 ? t->chance[KV_PLACE_INTERVAL] * (to - P) / t->interval : 0;
    return (P - from) * (mass[next] - mass[i] + anywhere);
}

/* Window cells of [P - window, P) that neither neighbour has. */
static uint64_t takes(const kv_spot *spots, int i, int prev, int next, int n, const kv_policy_terms *t) {
    if (!t->window) return spots[i].bytes;
    int32_t P = spots[i].position, a = P > t->window ? P - t->window : 0, b = P;
    if (prev >= 0 && spots[prev].position > a) a = spots[prev].position;
    if (next < n && spots[next].position - t->window < b) b = spots[next].position - t->window;
    return spots[i].bytes + (b > a ? (uint64_t)(b - a) * t->window_cell_bytes : 0);
}

static int kept_before(const kv_spot *spots, int i) {
    do i--;
    while (i >= 0 && !spots[i].is_kept);
    return i;
}

uint64_t kv_policy_bytes(const kv_spot *spots, int n, const kv_policy_terms *t) {
    uint64_t sum = 0;
    for (int i = 0, prev = -1; i < n; i++) {
        if (!spots[i].is_kept) continue;
        sum += takes(spots, i, prev, n, n, t);
        prev = i;
    }
    return sum;
}

double kv_policy_saves_us(const kv_spot *spots, int n, const kv_policy_terms *t) {
    double *mass = kv_alloc(((size_t)n + 1) * sizeof *mass), sum = 0;
    weigh(mass, spots, n, t);
    for (int i = n - 1, next = n; i >= 0; i--) {
        if (!spots[i].is_kept) continue;
        /* All that lies from here to the next one goes on here, and would have begun at 0. */
        sum += saves(spots, i, -1, next, n, mass, t);
        next = i;
    }
    free(mass);
    return sum * t->us_per_token;
}

static bool is_message(kv_place_kind kind) {
    return kind == KV_PLACE_MESSAGE || kind == KV_PLACE_GENERATION;
}

/* Put where it is nobody's way, so nobody gives way to it. */
static bool is_filler(const kv_spot *s) {
    return s->kind == KV_PLACE_INTERVAL && !s->is_stored && !s->is_fixed;
}

/* What would be kept if bytes were no matter: messages that begin too near to another place would cut the prefill into
 * small chunks for little. */
static void sift(kv_spot *spots, int n, const kv_policy_terms *t) {
    double generation = t->chance[KV_PLACE_GENERATION];
    for (int i = 0, prev = -1; i < n; i++) {
        kv_spot *s = &spots[i];
        s->is_kept = s->is_fixed || s->is_stored || s->is_possible;
        if (s->is_kept && is_message(s->kind) && !s->is_fixed && !s->is_stored) {
            int32_t back = s->position - (prev < 0 ? 0 : spots[prev].position);
            bool near = back < t->spacing;
            if (s->kind == KV_PLACE_GENERATION) near = near || back * generation < EDGE_TOKENS;
            for (int k = i + 1; k < n && s->kind == KV_PLACE_MESSAGE && spots[k].position - s->position < t->spacing;
                 k++)
                near = near || (spots[k].is_possible && !is_message(spots[k].kind) && !is_filler(&spots[k]));
            if (near) s->is_kept = false;
        }
        if (s->is_kept && !is_filler(s)) prev = i;
    }
}

typedef struct choice {
    kv_spot *spots;
    int n;
    const kv_policy_terms *t;
    const double *mass; /* see weigh */
    const bool *wanted; /* what sift left */
    int *next;          /* of each spot: the next one that is kept; n: none */
} choice;

/* The spot that is worth most beside those that are kept, and fits; -1: none. */
static int worthiest(const choice *c, uint64_t room, bool by_byte) {
    int best = -1;
    double most = 0;
    for (int i = 0, prev = -1; i < c->n; i++) {
        if (c->spots[i].is_kept) {
            prev = i;
            continue;
        }
        if (!c->wanted[i]) continue;
        uint64_t bytes = takes(c->spots, i, prev, c->next[i], c->n, c->t);
        if (bytes > room) continue;
        double worth = saves(c->spots, i, prev, c->next[i], c->n, c->mass, c->t);
        if (by_byte) worth /= (double)(bytes ? bytes : 1);
        if (best >= 0 && worth <= most) continue;
        best = i;
        most = worth;
    }
    return best;
}

/* The worthiest first, until nothing fits any more. Returns what that saves. */
static double take_worthiest(const choice *c, bool by_byte) {
    for (int i = c->n - 1, after = c->n; i >= 0; i--) {
        c->spots[i].is_kept = c->spots[i].is_fixed;
        c->next[i] = after;
        if (c->spots[i].is_kept) after = i;
    }
    uint64_t used = kv_policy_bytes(c->spots, c->n, c->t);
    for (;;) {
        int i = used < c->t->budget ? worthiest(c, c->t->budget - used, by_byte) : -1;
        if (i < 0) return kv_policy_saves_us(c->spots, c->n, c->t);
        int prev = kept_before(c->spots, i);
        used += takes(c->spots, i, prev, c->next[i], c->n, c->t);
        c->spots[i].is_kept = true;
        for (int k = prev < 0 ? 0 : prev; k < i; k++) c->next[k] = i;
    }
}

void kv_policy_choose(kv_spot *spots, int n, const kv_policy_terms *t) {
    sift(spots, n, t);
    if (n == 0 || kv_policy_bytes(spots, n, t) <= t->budget) return;
    double *mass = kv_alloc(((size_t)n + 1) * sizeof *mass);
    bool *wanted = kv_alloc((size_t)n);
    int *next = kv_alloc((size_t)n * sizeof *next);
    weigh(mass, spots, n, t);
    for (int i = 0; i < n; i++) wanted[i] = spots[i].is_kept;
    const choice c = {spots, n, t, mass, wanted, next};
    /* Many that take little may leave no room for one that saves more than all of them. */
    double large = t->window ? take_worthiest(&c, false) : 0;
    if (take_worthiest(&c, true) < large) take_worthiest(&c, false);
    free(next);
    free(wanted);
    free(mass);
}

int kv_policy_fill(kv_spot *spots, int n, int room, int32_t from, int32_t block, uint64_t bytes,
                   const kv_policy_terms *t) {
    sift(spots, n, t);
    int32_t last = 0;
    for (int i = 0; i <= n; i++) {
        int32_t to = i < n ? spots[i].position : t->end;
        if (i < n && !spots[i].is_kept) continue;
        while (to - last > t->interval) {
            int32_t P = (last + t->interval) / block * block;
            if (P <= last) P = last + t->interval;
            if (i < n && to - P < t->spacing) P = (to - t->spacing) / block * block;
            if (P <= last) break;
            last = P;
            if (P <= from) continue;
            int at = i;
            while (at > 0 && spots[at - 1].position >= P) at--;
            if (at < n && spots[at].position == P) { /* it was left out as a message that begins too near */
                spots[at].kind = KV_PLACE_INTERVAL;
                spots[at].is_possible = spots[at].is_kept = true;
                continue;
            }
            if (n == room) return n;
            memmove(&spots[at + 1], &spots[at], (size_t)(n - at) * sizeof *spots);
            spots[at] = (kv_spot){
                .position = P, .kind = KV_PLACE_INTERVAL, .bytes = bytes, .is_possible = true, .is_kept = true};
            n++;
            i++;
        }
        last = to;
    }
    return n;
}
