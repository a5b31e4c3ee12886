/* sched/cells: the count equals that of a naive pool whose cells carry the set of their owners. */
#include "testing.h"

#include "base/error.h"
#include "sched/cells.h"

enum { SEQS = 6, TOTAL = 400 };

/* A naive pool: each sequence lists the cells of its positions, each cell counts its owners. */
typedef struct pool {
    int cell[SEQS][TOTAL], len[SEQS], owners[TOTAL];
    bool forks_share;
} pool;

static int used(const pool *p) {
    int n = 0;
    for (int i = 0; i < TOTAL; i++) n += p->owners[i] > 0;
    return n;
}

static int top(const pool *p) {
    int t = 0;
    for (int i = 0; i < TOTAL; i++)
        if (p->owners[i]) t = i + 1;
    return t;
}

static void append(pool *p, int s, int n) {
    for (int i = 0; n > 0; i++) {
        assert_true(i < TOTAL);
        if (p->owners[i]) continue;
        p->owners[i] = 1;
        p->cell[s][p->len[s]++] = i;
        n--;
    }
}

static void cut(pool *p, int s, int len) {
    while (p->len[s] > len) p->owners[p->cell[s][--p->len[s]]]--;
}

static void fork_seq(pool *p, int src, int dst) {
    if (!p->forks_share) {
        append(p, dst, p->len[src]);
        return;
    }
    p->len[dst] = p->len[src];
    memcpy(p->cell[dst], p->cell[src], sizeof p->cell[src]);
    for (int i = 0; i < p->len[src]; i++) p->owners[p->cell[src][i]]++;
}

static void swap_seqs(pool *p, int a, int b) {
    pool old = *p;
    memcpy(p->cell[a], old.cell[b], sizeof old.cell[b]);
    memcpy(p->cell[b], old.cell[a], sizeof old.cell[a]);
    p->len[a] = old.len[b];
    p->len[b] = old.len[a];
}

/* Cells owned by any of in[]; `also` (or -1) counts with its first `len` only. */
static int union_of(const pool *p, const bool *in, int also, int len) {
    bool seen[TOTAL] = {false};
    int n = 0;
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < (s == also ? len : in[s] ? p->len[s] : 0); i++) seen[p->cell[s][i]] = true;
    for (int i = 0; i < TOTAL; i++) n += seen[i];
    return n;
}

static void compare(const kv_cells *c, const pool *p, dice *d) {
    kv_cells_check(c);
    assert_int_equal(c->used, used(p));
    assert_true(kv_cells_top(c) >= top(p) && kv_cells_top(c) <= TOTAL);
    bool in[SEQS];
    int seq = dice_below(d, SEQS);
    for (int s = 0; s < SEQS; s++) {
        assert_int_equal(c->len[s], p->len[s]);
        in[s] = dice_one_in(d, 2);
    }
    assert_int_equal(kv_cells_of(c, in), union_of(p, in, -1, 0));
    in[seq] = false;
    int len = dice_from(d, 0, c->len[seq]);
    assert_int_equal(kv_cells_beside(c, in, seq, len), union_of(p, in, seq, len) - union_of(p, in, -1, 0));
}

static void random_against_naive(void **state) {
    (void)state;
    dice d = {testing_seed("cells")};
    for (int round = 0; round < 200; round++) {
        pool p = {.forks_share = !dice_one_in(&d, 4)};
        kv_cells c;
        kv_cells_init(&c, SEQS, TOTAL, p.forks_share);
        for (int step = 0; step < 150; step++) {
            int a = dice_below(&d, SEQS), b = dice_below(&d, SEQS);
            switch (dice_below(&d, 6)) {
            case 0:
            case 1:
            case 2: {
                int n = dice_from(&d, 1, 30);
                if (n > kv_cells_left(&c)) break;
                kv_cells_append(&c, a, n);
                append(&p, a, n);
                break;
            }
            case 3: {
                int len = dice_one_in(&d, 3) ? 0 : dice_from(&d, 0, c.len[a]);
                kv_cells_cut(&c, a, len);
                cut(&p, a, len);
                break;
            }
            case 4:
                if (a == b || c.len[b] || !kv_cells_can_fork(&c, a, 0)) break;
                kv_cells_fork(&c, a, b);
                fork_seq(&p, a, b);
                break;
            case 5:
                kv_cells_swap(&c, a, b);
                if (a != b) swap_seqs(&p, a, b);
                break;
            }
            compare(&c, &p, &d);
        }
        kv_cells_free(&c);
    }
}

static void window_pool(void **state) {
    (void)state;
    kv_cells c;
    kv_cells_init(&c, 3, 1000, true);
    kv_cells_set_window(&c, 64, 256);
    kv_cells_append(&c, 0, 100);
    assert_int_equal(kv_cells_left(&c), 256 - 64);
    kv_cells_fork(&c, 0, 1); /* shares 100 cells, copies 64 of the window */
    assert_int_equal(c.used, 100);
    assert_int_equal(kv_cells_left(&c), 256 - 128);
    assert_true(kv_cells_can_fork(&c, 0, 64));
    assert_false(kv_cells_can_fork(&c, 0, 65));
    kv_cells_cut(&c, 1, 10);
    assert_int_equal(kv_cells_left(&c), 256 - 74);
    kv_cells_check(&c);
    kv_cells_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_against_naive),
        cmocka_unit_test(window_pool),
    };
    return cmocka_run_group_tests_name("sched/cells", tests, NULL, NULL);
}
