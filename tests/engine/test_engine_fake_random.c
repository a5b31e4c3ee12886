/* Random workloads on every kind of memory: whatever is done to it by the rules, the fake engine answers as the naive
 * model does, which knows nothing of cells. KVASIR_SEED replays a run, KVASIR_ROUNDS makes it longer. */
#include "engine/fake_rig.h"

enum { MAX_LEN = 240, MAX_SEQ = 6, N_STORED = 5, MAX_BLOCKS = MAX_LEN / 8 };

/* What was captured of a path: blocks, window parts, and the partial (whole: full) state at each block's end. */
typedef struct tape {
    kv_token tokens[MAX_LEN];
    int n_blocks;
    blob block[MAX_BLOCKS], part[MAX_BLOCKS], state[MAX_BLOCKS];
} tape;

typedef struct live {
    kv_token tokens[MAX_LEN];
    int32_t n;
    bool taping; /* captured at every block edge so far */
    tape *tape;
} live;

typedef struct world {
    rig r;
    kv_memory_kind kind;
    int32_t n_seq, B;
    uint64_t rng;
    live live[MAX_SEQ];
    tape *stored[N_STORED];
    bool damage_next;
    /* the batch being made */
    kv_token token[64];
    kv_pos pos[64];
    kv_seq seq[64];
    bool want[64];
    int32_t n_batch;
} world;

typedef struct counts {
    int decodes, rows, no_cells, damages, forks, trims, refused_trims, restores, no_room, rewinds, moves;
} counts;
static counts done;

static bool has_window(const world *w) {
    return kv_memory_has_window(w->kind);
}
static bool has_state(const world *w) {
    return kv_memory_has_recurrent(w->kind) || w->kind == KV_MEMORY_WHOLE;
}

static kv_status inject(void *ctx, uint64_t no) {
    world *w = ctx;
    (void)no;
    bool now = w->damage_next;
    w->damage_next = false;
    return now ? KV_ENGINE_DAMAGED : KV_OK;
}

static void free_tape(tape *t) {
    if (!t) return;
    for (int i = 0; i < MAX_BLOCKS; i++) free_blob(&t->block[i]), free_blob(&t->part[i]), free_blob(&t->state[i]);
    free(t);
}

static void open_world(world *w, kv_memory_kind kind, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->kind = kind;
    w->rng = seed;
    rig_params(&w->r, kind);
    w->n_seq = 1 + below(&w->rng, MAX_SEQ - 1);
    w->r.ep.n_slots = w->n_seq;
    w->r.ep.n_ctx = below(&w->rng, 3) ? 512 : 256;
    w->r.ep.n_batch = w->n_seq + 1 + below(&w->rng, 64 - w->n_seq);
    w->r.mp.n_window = 8 + below(&w->rng, 40);
    w->r.mp.window_is_chunked = below(&w->rng, 4) == 0;
    if (w->r.mp.window_is_chunked) w->r.mp.n_window = 16 << below(&w->rng, 2); /* a block lies in one chunk */
    w->r.mp.seed = rnd(&w->rng);
    w->r.mp.inject = inject;
    w->r.mp.inject_ctx = w;
    w->B = w->r.mp.n_window >= 16 && below(&w->rng, 2) ? 16 : 8;
    rig_start(&w->r);
}

static void close_world(world *w) {
    for (int i = 0; i < N_STORED; i++) free_tape(w->stored[i]);
    for (int s = 0; s < MAX_SEQ; s++) free_tape(w->live[s].tape);
    rig_close(&w->r);
}

/* Its tape goes among the stored ones in place of another. */
static void forget(world *w, kv_seq s) {
    live *l = &w->live[s];
    assert_true(kv_engine_seq_rm(w->r.e, s, -1, -1));
    if (l->tape && l->tape->n_blocks > 0) {
        int i = below(&w->rng, N_STORED);
        free_tape(w->stored[i]);
        memcpy(l->tape->tokens, l->tokens, sizeof l->tokens);
        w->stored[i] = l->tape;
    } else {
        free_tape(l->tape);
    }
    *l = (live){0};
}

/* Where a chunk of a chunked window ends, all its cells are free to anybody, and once they are taken the sequence
 * looks empty, as it does in libllama. */
static bool lost_at_chunk_end(world *w, kv_seq s) {
    const live *l = &w->live[s];
    return has_window(w) && w->r.mp.window_is_chunked && l->n > 0 && l->n % w->r.mp.n_window == 0 &&
           kv_engine_pos_max(w->r.e, s) == -1;
}

static void check(world *w) {
    kv_fake_check(w->r.e);
    for (kv_seq s = 0; s < w->n_seq; s++)
        if (lost_at_chunk_end(w, s)) forget(w, s);
    for (kv_seq s = 0; s < w->n_seq; s++) assert_int_equal(kv_engine_pos_max(w->r.e, s), w->live[s].n - 1);
    assert_int_equal(kv_engine_pos_max(w->r.e, w->r.scratch), -1);
}

/* ── decode ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* n more tokens of s; a sequence that is being taped stops at its next block edge. */
static void add_run(world *w, kv_seq s, int32_t n, bool exactly) {
    live *l = &w->live[s];
    if (l->n == 0 && !l->tape) {
        l->tape = kv_alloc(sizeof *l->tape);
        l->taping = true;
    }
    int32_t to_edge = w->B - l->n % w->B;
    if (l->taping && n > to_edge) {
        if (!exactly && below(&w->rng, 8)) n = to_edge;
        else l->taping = false; /* a chunk across an edge: that block is not captured, and the path ends before it */
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t k = w->n_batch++;
        w->token[k] = l->tokens[l->n + i] = below(&w->rng, 5) ? 97 + below(&w->rng, 4) : below(&w->rng, 261);
        w->pos[k] = l->n + i;
        w->seq[k] = s;
        w->want[k] = i == n - 1 || below(&w->rng, 20) == 0;
    }
    l->n += n; /* taken back when the call fails */
}

static int32_t room(const world *w, kv_seq s) {
    int32_t a = MAX_LEN - 2 - w->live[s].n, b = w->r.ep.n_batch - w->n_batch;
    return a < b ? a : b;
}

/* Tokens of several sequences, and on plain attention and windows perhaps a chunk of one; in any order. */
static void make_batch(world *w) {
    w->n_batch = 0;
    int32_t each = 1;
    if (has_state(w)) each = below(&w->rng, 3) ? 1 : 1 + below(&w->rng, w->r.ep.n_batch / w->n_seq);
    kv_seq chunk = !has_state(w) || below(&w->rng, 2) ? below(&w->rng, w->n_seq) : -1;
    if (has_state(w) && chunk >= 0) { /* the chunk alone */
        if (room(w, chunk) > 0) add_run(w, chunk, 1 + below(&w->rng, room(w, chunk)), false);
        return;
    }
    kv_seq first = below(&w->rng, w->n_seq);
    for (int k = 0; k < w->n_seq; k++) {
        kv_seq s = (first + k) % w->n_seq;
        if (s == chunk || below(&w->rng, 3) == 0 || room(w, s) < each) continue;
        add_run(w, s, each, true);
    }
    if (chunk >= 0 && room(w, chunk) > 0) add_run(w, chunk, 1 + below(&w->rng, room(w, chunk)), false);
}

static void take_back(world *w) {
    for (int32_t i = 0; i < w->n_batch; i++) w->live[w->seq[i]].n--;
}

/* At once, before anybody's next decode. */
static void tape_edges(world *w) {
    for (kv_seq s = 0; s < w->n_seq; s++) {
        live *l = &w->live[s];
        if (!l->taping || l->n == 0 || l->n % w->B != 0 || l->n / w->B != l->tape->n_blocks + 1) continue;
        tape *t = l->tape;
        int i = t->n_blocks++;
        t->state[i] = get_blob(&w->r, s, w->kind == KV_MEMORY_WHOLE ? 0 : KV_STATE_PARTIAL);
        if (w->kind != KV_MEMORY_WHOLE && w->kind != KV_MEMORY_RECURRENT)
            capture_block(&t->block[i], &t->part[i], &w->r, s, l->n - w->B, l->n);
    }
}

static void after_damage(world *w) {
    done.damages++;
    take_back(w);
    bool gone[MAX_SEQ] = {false};
    for (int32_t i = 0; i < w->n_batch; i++) gone[w->seq[i]] = true;
    for (kv_seq s = 0; s < w->n_seq; s++)
        if (has_state(w) || gone[s]) forget(w, s);
}

static void do_decode(world *w) {
    make_batch(w);
    if (w->n_batch == 0) return;
    w->damage_next = below(&w->rng, 60) == 0;
    kv_batch b = {w->n_batch, w->token, w->pos, w->seq, w->want};
    int32_t used = kv_fake_cells_used(w->r.e), window_used = kv_fake_window_cells_used(w->r.e);
    kv_status st = kv_engine_decode(w->r.e, &b, NULL);
    if (st == KV_ENGINE_DAMAGED) {
        after_damage(w);
    } else if (st == KV_NO_CELLS) {
        done.no_cells++;
        take_back(w);
        for (kv_seq s = 0; s < w->n_seq; s++) w->live[s].taping = false;
        assert_true(used + w->n_batch > w->r.e->info.n_ctx ||
                    (has_window(w) && window_used + w->n_batch > w->r.e->info.n_window_cells));
        assert_int_equal(kv_fake_cells_used(w->r.e), used);
        check(w);
        forget(w, below(&w->rng, w->n_seq));
    } else {
        assert_int_equal(st, KV_OK);
        done.decodes++;
        for (int32_t i = 0; i < w->n_batch; i++) {
            if (!w->want[i]) continue;
            done.rows++;
            assert_true(same_logits(&w->r, i, w->live[w->seq[i]].tokens, w->pos[i] + 1));
        }
        tape_edges(w);
    }
}

/* ── the rest ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What follows P is computed anew, perhaps with other tokens, and is not taped. */
static void cut_tape(world *w, live *l, kv_pos P) {
    l->taping = false;
    if (l->tape && l->tape->n_blocks > P / w->B) l->tape->n_blocks = P / w->B;
}

/* A fork may fail for want of room, and then leaves nothing. */
static void do_fork(world *w) {
    kv_seq a = below(&w->rng, w->n_seq), b = below(&w->rng, w->n_seq);
    if (a == b || w->live[a].n == 0) return;
    forget(w, b);
    kv_status st = kv_engine_fork(w->r.e, a, b, w->live[a].n, NULL);
    if (st == KV_OK) {
        memcpy(w->live[b].tokens, w->live[a].tokens, sizeof w->live[a].tokens);
        w->live[b].n = w->live[a].n;
        done.forks++;
    } else {
        assert_true(has_window(w) || w->kind == KV_MEMORY_WHOLE);
        done.no_room++;
    }
}

static void do_trim(world *w) {
    kv_seq s = below(&w->rng, w->n_seq);
    live *l = &w->live[s];
    if (l->n == 0) return;
    kv_pos P = l->n - below(&w->rng, l->n < 60 ? l->n : 60);
    kv_pos min = kv_engine_pos_min(w->r.e, s);
    bool did = kv_engine_trim(w->r.e, s, P);
    if (w->kind == KV_MEMORY_FULL) assert_true(did);
    if (has_state(w)) assert_int_equal(did, P == l->n);
    kv_pos W = w->r.mp.n_window, need = w->r.mp.window_is_chunked ? P / W * W : P - W + 1;
    if (need >= P) need = P - 1; /* the last cell must stay, to tell where the sequence ends */
    if (did && w->kind == KV_MEMORY_WINDOW && P < l->n) assert_true(min <= 0 || min <= need);
    if (did && P < l->n) {
        l->n = P;
        cut_tape(w, l, P);
        done.trims++;
    }
    done.refused_trims += !did;
}

/* Rewind a hybrid in place with a checkpoint of its own. */
static void do_rewind(world *w) {
    kv_seq s = below(&w->rng, w->n_seq);
    live *l = &w->live[s];
    if (!kv_memory_has_recurrent(w->kind) || !l->tape || l->tape->n_blocks == 0) return;
    int i = below(&w->rng, l->tape->n_blocks);
    if (!set_blob(&w->r, &l->tape->state[i], s, KV_STATE_PARTIAL)) { /* no room for its window; the slot is lost */
        assert_int_equal(w->kind, KV_MEMORY_HYBRID_WINDOW);
        done.no_room++;
        forget(w, s);
        return;
    }
    l->n = (i + 1) * w->B;
    cut_tape(w, l, l->n);
    assert_true(kv_engine_seq_rm(w->r.e, s, l->n, -1));
    done.rewinds++;
}

static bool load(world *w, const tape *t, kv_seq s, kv_pos P) {
    rig *r = &w->r;
    const blob *state = &t->state[(P - 1) / w->B];
    if (w->kind == KV_MEMORY_WHOLE) return set_blob(r, state, s, 0);
    for (int i = 0; i * w->B < P && w->kind != KV_MEMORY_RECURRENT; i++) {
        bool part = w->kind == KV_MEMORY_WINDOW && (i + 1) * w->B > P - r->mp.n_window + 1;
        if (!load_block(r, &t->block[i], part ? &t->part[i] : NULL, s, i * w->B, (i + 1) * w->B)) return false;
    }
    if (kv_memory_has_recurrent(w->kind) && !set_blob(r, state, s, KV_STATE_PARTIAL)) return false;
    return kv_engine_seq_rm(r->e, s, P, -1);
}

static void do_restore(world *w) {
    const tape *t = w->stored[below(&w->rng, N_STORED)];
    kv_seq s = below(&w->rng, w->n_seq);
    if (!t) return;
    kv_pos P = has_state(w) ? (1 + below(&w->rng, t->n_blocks)) * w->B : 1 + below(&w->rng, t->n_blocks * w->B);
    kv_token tokens[MAX_LEN];
    memcpy(tokens, t->tokens, sizeof tokens);
    if (below(&w->rng, 4) == 0) { /* into an empty context, else beside the others */
        kv_engine_clear(w->r.e);
        for (kv_seq q = 0; q < w->n_seq; q++)
            if (q != s) free_tape(w->live[q].tape), w->live[q] = (live){0};
    }
    assert_true(kv_engine_seq_rm(w->r.e, s, -1, -1));
    free_tape(w->live[s].tape);
    w->live[s] = (live){0};
    if (!load(w, t, s, P)) {
        assert_int_equal(kv_engine_pos_max(w->r.e, w->r.scratch), -1);
        kv_engine_seq_rm(w->r.e, s, -1, -1);
        done.no_room++;
        return;
    }
    memcpy(w->live[s].tokens, tokens, sizeof tokens);
    w->live[s].n = P;
    done.restores++;
}

static void do_move(world *w) {
    kv_seq s = below(&w->rng, w->n_seq);
    if (w->live[s].n == 0) return;
    blob b = get_blob(&w->r, s, 0);
    assert_true(kv_engine_seq_rm(w->r.e, s, -1, -1));
    if (set_blob(&w->r, &b, s, 0)) done.moves++;
    else forget(w, s); /* what it shared it can need for itself now */
    free_blob(&b);
}

static void round_of(kv_memory_kind kind, uint64_t seed) {
    static world w;
    open_world(&w, kind, seed);
    for (int op = 0; op < 50; op++) {
        int what = below(&w.rng, 100);
        if (what < 62) do_decode(&w);
        else if (what < 70) do_fork(&w);
        else if (what < 78) do_trim(&w);
        else if (what < 88) do_restore(&w);
        else if (what < 92) forget(&w, below(&w.rng, w.n_seq));
        else if (what < 96) do_move(&w);
        else do_rewind(&w);
        check(&w);
    }
    close_world(&w);
}

static void random_workloads(void **state) {
    (void)state;
    uint64_t seed = rig_seed("random_workloads");
    const char *given = getenv("KVASIR_ROUNDS");
    int rounds = given ? atoi(given) : 500;
    for (int k = 0; k < N_KINDS; k++) {
        done = (counts){0};
        for (int i = 0; i < rounds; i++) round_of((kv_memory_kind)k, seed + 0x10001u * (uint64_t)i + (uint64_t)k);
        printf("%s: %d rounds, %d decodes, %d rows compared, %d without cells, %d damaged, %d forks, %d trims (%d "
               "refused), "
               "%d restores, %d rewinds, %d moves, %d without room\n",
               kv_memory_kind_name((kv_memory_kind)k), rounds, done.decodes, done.rows, done.no_cells, done.damages,
               done.forks, done.trims, done.refused_trims, done.restores, done.rewinds, done.moves, done.no_room);
        assert_true(done.restores > 0 && done.forks > 0 && done.damages > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_workloads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
