/* Where checkpoints are kept, and where prefills stop for them: each position of many prompts against a naive rule, and
 * the choice within a budget against the best of all choices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/policy.h"

enum { B = 16, INTERVAL = 64 };

static bool marked(int32_t P, const kv_places *prompt) {
    for (int i = 0; i < prompt->n_hints; i++)
        if (prompt->hints[i].position == P) return true;
    return false;
}

static void test_kept_places(void **state) {
    (void)state;
    const kv_policy p = {.block = B, .interval = INTERVAL};
    const kv_hint hints[] = {{.position = 100}, {.position = 17}, {.position = 64}, {.position = 250}};
    for (int32_t n_prompt = 1; n_prompt < 300; n_prompt++)
        for (int n_hints = 0; n_hints <= 4; n_hints += 2) {
            const kv_places prompt = {.n_prompt = n_prompt, .hints = hints, .n_hints = n_hints};
            for (int32_t P = 0; P < n_prompt + 80; P++) {
                bool keeps = P > 0 && P < n_prompt && (P == n_prompt - 1 || P % INTERVAL == 0 || marked(P, &prompt));
                assert_int_equal(kv_policy_keeps(&p, P, &prompt), keeps);
            }
            /* a prefill that goes from stop to stop passes by everything that is kept */
            for (int32_t pos = 0, next; pos < n_prompt; pos = next) {
                next = kv_policy_next(&p, pos, &prompt);
                assert_true(next > pos && next <= n_prompt);
                for (int32_t P = pos + 1; P < next; P++) assert_false(kv_policy_keeps(&p, P, &prompt));
                assert_true(next == n_prompt || kv_policy_keeps(&p, next, &prompt));
            }
        }
}

/* Exact answers resume only where a cold run's chunk ends, wherever the client's marks are. */
static void test_exact(void **state) {
    (void)state;
    const kv_policy p = {.block = B, .interval = INTERVAL, .exact_chunk = 2 * B};
    const kv_hint hints[] = {{.position = 33}, {.position = 48}};
    for (int32_t n_prompt = 1; n_prompt < 300; n_prompt++) {
        const kv_places prompt = {.n_prompt = n_prompt, .hints = hints, .n_hints = 2};
        for (int32_t P = 0; P < n_prompt + 40; P++)
            if (kv_policy_keeps(&p, P, &prompt)) assert_true(P % (2 * B) == 0 && P < n_prompt);
        assert_int_equal(kv_policy_next(&p, 0, &prompt), n_prompt > 1 ? n_prompt - 1 : 1);
        if (n_prompt > 2 * B) assert_true(kv_policy_keeps(&p, (n_prompt - 1) / (2 * B) * 2 * B, &prompt));
    }
    assert_int_equal(kv_policy_resumes(&p, 95), 64);
}

static void test_interval(void **state) {
    (void)state;
    assert_int_equal(kv_policy_interval(256, 0, 1000), 2048);
    assert_int_equal(kv_policy_interval(256, 2048 * 1000, 1000), 2048);
    assert_int_equal(kv_policy_interval(256, 2048 * 1000 + 1, 1000), 4096);
    assert_int_equal(kv_policy_interval(4096, 0, 1000), 4096);
    assert_int_equal(kv_policy_interval(256, UINT64_MAX, 0), 2048);
}

static void test_near(void **state) {
    (void)state;
    assert_int_equal(kv_policy_near(2048, 0, 1000), 0);
    assert_int_equal(kv_policy_near(2048, 50 << 20, 0), 0);
    assert_int_equal(kv_policy_near(2048, 50 << 20, 40 << 10), 160); /* 50 MiB of state, 40 KiB a token */
    assert_int_equal(kv_policy_near(2048, UINT64_MAX, 1), 512);
}

/* Once hints were chosen, they alone are kept, and the last token's. */
static void test_chosen(void **state) {
    (void)state;
    const kv_policy p = {.block = B, .interval = INTERVAL};
    const kv_hint hints[] = {{.position = 40, .kind = KV_PLACE_SYSTEM_END, .keep_seconds = 300},
                             {.position = 70, .kind = KV_PLACE_MESSAGE, .is_left_out = true, .keep_seconds = 60},
                             {.position = 99, .kind = KV_PLACE_GENERATION}};
    const kv_places prompt = {.n_prompt = 200, .hints = hints, .n_hints = 3, .are_chosen = true};
    for (int32_t P = 0; P < 260; P++) assert_int_equal(kv_policy_keeps(&p, P, &prompt), P == 40 || P == 99 || P == 199);
    static const int32_t stops[] = {40, 99, 199, 200};
    for (int32_t pos = 0, i = 0; pos < 200; i++) {
        pos = kv_policy_next(&p, pos, &prompt);
        assert_int_equal(pos, stops[i]);
    }
    assert_int_equal(kv_policy_kind(40, &prompt), KV_PLACE_SYSTEM_END);
    assert_int_equal(kv_policy_kind(99, &prompt), KV_PLACE_GENERATION);
    assert_int_equal(kv_policy_kind(64, &prompt), KV_PLACE_INTERVAL);
    assert_int_equal(kv_policy_kind(199, &prompt), KV_PLACE_PROMPT_END);
    assert_int_equal(kv_policy_kind(230, &prompt), KV_PLACE_ANSWER_END);
    assert_int_equal(kv_policy_keep_seconds(40, &prompt), 300);
    assert_int_equal(kv_policy_keep_seconds(41, &prompt), 60);
    assert_int_equal(kv_policy_keep_seconds(71, &prompt), 0);
}

static void test_budget(void **state) {
    (void)state;
    assert_true(kv_policy_budget(2048, 100, 0) == 100 * KV_POLICY_LEAST);
    assert_true(kv_policy_budget(2048, 100, 2048 * 10) == 100 * (KV_POLICY_LEAST + 10));
}

/* A kind's chance goes from what is supposed to what was counted. */
static void test_chances(void **state) {
    (void)state;
    kv_place_count count[KV_PLACE_COUNT] = {0};
    double before[KV_PLACE_COUNT], chance[KV_PLACE_COUNT];
    kv_policy_chances(before, count);
    for (int k = 0; k < KV_PLACE_COUNT; k++) assert_true(before[k] > 0 && before[k] < 1);
    assert_true(before[KV_PLACE_ANSWER_END] > before[KV_PLACE_MESSAGE]);
    for (int n = 1; n < 100000; n *= 10) {
        count[KV_PLACE_MESSAGE] = (kv_place_count){.n_kept = (uint64_t)n * 10, .n_hits = (uint64_t)n * 4};
        count[KV_PLACE_ANSWER_END] = (kv_place_count){.n_kept = (uint64_t)n * 10, .n_hits = (uint64_t)n};
        count[KV_PLACE_BRANCH] = (kv_place_count){.n_kept = 1, .n_hits = (uint64_t)n * 1000};
        double last = n == 1 ? before[KV_PLACE_MESSAGE] : chance[KV_PLACE_MESSAGE];
        kv_policy_chances(chance, count);
        assert_true(chance[KV_PLACE_MESSAGE] > last && chance[KV_PLACE_MESSAGE] < 0.4);
        assert_true(chance[KV_PLACE_BRANCH] <= 1);
        assert_true(chance[KV_PLACE_SYSTEM_END] == before[KV_PLACE_SYSTEM_END]);
    }
    assert_true(chance[KV_PLACE_MESSAGE] > 0.39 && chance[KV_PLACE_ANSWER_END] < 0.11);
}

/* ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_policy_terms terms(uint64_t budget, int32_t end) {
    kv_policy_terms t = {.budget = budget, .us_per_token = 100, .end = end, .interval = 2048};
    const kv_place_count none[KV_PLACE_COUNT] = {{0}};
    kv_policy_chances(t.chance, none);
    return t;
}

/* A letter a spot, ten tokens apart unless said: m message, l last message, s system end, b branch, p prompt's end (fixed),
 * a answer's end; in capitals it is stored already. `.` ten tokens more; ? what can only be asked for. */
static int spots_of(kv_spot *spots, const char *text, uint64_t bytes) {
    int n = 0;
    int32_t at = 0;
    for (const char *c = text; *c; c++) {
        at += 10;
        if (*c == '.') continue;
        static const char letters[] = "mlsbpag?";
        static const kv_place_kind kinds[] = {KV_PLACE_MESSAGE,    KV_PLACE_LAST_MESSAGE, KV_PLACE_SYSTEM_END,
                                              KV_PLACE_BRANCH,     KV_PLACE_PROMPT_END,   KV_PLACE_ANSWER_END,
                                              KV_PLACE_GENERATION, KV_PLACE_MESSAGE};
        char low = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
        spots[n++] = (kv_spot){.position = at,
                               .kind = kinds[strchr(letters, low) - letters],
                               .bytes = bytes,
                               .is_stored = low != *c,
                               .is_possible = low == *c && low != '?',
                               .is_fixed = low == 'p'};
    }
    return n;
}

static void test_choice_table(void **state) {
    (void)state;
    static const struct {
        const char *spots;
        int budget; /* states */
        int32_t spacing;
        const char *kept; /* x below what is kept */
    } rows[] = {
        {"smmmmlp", 99, 0, "xxxxxxx"},   /* room for all */
        {"smmmmlp", 0, 0, "      x"},    /* what is fixed stays */
        {"smmmmlp", 99, 15, "x x  xx"},  /* messages that begin too near to another place */
        {"smmmmlgp", 99, 0, "xxxxxx x"}, /* the last message is too short for the place behind it */
        {"smmmml..................................gp", 99, 0, "xxxxxx                                  xx"},
        {"mmmmmmmmm", 1, 0, "    x    "}, /* of equals the one that most lies before and behind */
        {"mmmmmmmmm", 3, 0, " x  x x  "}, /* then in the middle of what is left */
        {"m??????mm", 1, 0, "       x "}, /* nothing can be kept at ?, but it may be asked for */
        {"s..................m", 1, 0, "                   x"},
        {"s...m", 1, 0, "x    "}, /* the likelier one, though it saves less */
        {"mmbmmmmm", 1, 0, "  x     "},
        {"MMMMALpa", 8, 0, "xxxxxxxx"},
        {"smmmAmmmmlp", 3, 0,
         "x     x   x"}, /* where an answer ended is a message's beginning once the next has begun */
    };
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kv_spot spots[64];
        int n = spots_of(spots, rows[i].spots, 100);
        kv_policy_terms t = terms((uint64_t)rows[i].budget * 100, 10 * (int32_t)strlen(rows[i].spots));
        t.spacing = rows[i].spacing;
        char kept[64] = {0};
        memset(kept, ' ', strlen(rows[i].spots));
        kv_policy_choose(spots, n, &t);
        for (int k = 0; k < n; k++)
            if (spots[k].is_kept) kept[spots[k].position / 10 - 1] = 'x';
        if (strcmp(kept, rows[i].kept) != 0)
            print_error("\n%s, %d\n%s\n%s\n", rows[i].spots, rows[i].budget, kept, rows[i].kept);
        n_wrong += strcmp(kept, rows[i].kept) != 0;
    }
    assert_int_equal(n_wrong, 0);
}

static uint32_t next_random(uint64_t *rng, uint32_t n) {
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*rng >> 33) % n;
}

static int random_spots(kv_spot *spots, int most, uint64_t *rng) {
    int n = 1 + (int)next_random(rng, (uint32_t)most);
    int32_t at = 0;
    for (int i = 0; i < n; i++) {
        uint32_t how = next_random(rng, 4);
        spots[i] = (kv_spot){.position = at += 1 + (int32_t)next_random(rng, 400),
                             .kind = (kv_place_kind)next_random(rng, KV_PLACE_COUNT),
                             .bytes = 1000,
                             .is_stored = how == 0,
                             .is_possible = how > 1,
                             .is_fixed = how == 3 && next_random(rng, 6) == 0};
    }
    return n;
}

/* All choices that keep what is fixed and fit; the best one's saving. */
static double best_of_all(const kv_spot *spots, int n, const kv_policy_terms *t) {
    double best = 0;
    for (uint32_t set = 0; set < 1u << n; set++) {
        kv_spot all[16];
        bool ok = true;
        for (int i = 0; i < n; i++) {
            all[i] = spots[i];
            all[i].is_kept = set >> i & 1;
            ok = ok && (all[i].is_kept ? all[i].is_stored || all[i].is_possible || all[i].is_fixed : !all[i].is_fixed);
        }
        if (!ok || kv_policy_bytes(all, n, t) > t->budget) continue;
        double saves = kv_policy_saves_us(all, n, t);
        if (saves > best) best = saves;
    }
    return best;
}

/* The worthiest first is never far from the best of all choices, for states and for windows that overlap, and never
 * over the budget. */
static void test_against_the_best(void **state) {
    (void)state;
    for (int windows = 0; windows < 2; windows++) {
        double worst = 1, sum = 0;
        int n_cases = 0;
        uint64_t rng = 7;
        for (int run = 0; run < 1500; run++) {
            kv_spot spots[16], again[16];
            int n = random_spots(spots, 11, &rng);
            kv_policy_terms t = terms(1000 * (uint64_t)next_random(&rng, 8), spots[n - 1].position + 50);
            if (windows) {
                for (int i = 0; i < n; i++) spots[i].bytes = 0;
                t.window = 300;
                t.window_cell_bytes = 10;
                t.budget *= 2;
            }
            memcpy(again, spots, sizeof again);
            kv_policy_choose(spots, n, &t);
            kv_policy_choose(again, n, &t);
            uint64_t fixed = 0;
            for (int i = 0; i < n; i++) {
                assert_int_equal(spots[i].is_kept, again[i].is_kept);
                assert_true(!spots[i].is_fixed || spots[i].is_kept);
                assert_true(!spots[i].is_kept || spots[i].is_fixed || spots[i].is_stored || spots[i].is_possible);
                fixed += spots[i].is_fixed;
            }
            assert_true(fixed || kv_policy_bytes(spots, n, &t) <= t.budget);
            double best = best_of_all(spots, n, &t), got = kv_policy_saves_us(spots, n, &t);
            /* a place before the generation prompt may be left out for its chunk's sake */
            bool generation = false;
            for (int i = 0; i < n; i++) generation = generation || spots[i].kind == KV_PLACE_GENERATION;
            if (best <= 0 || generation) continue;
            double share = got / best;
            assert_true(share < 1 + 1e-9);
            if (share < worst) worst = share;
            sum += share;
            n_cases++;
        }
        print_message("%s: %d cases, %.3f of the best on an average, %.3f at worst\n", windows ? "windows" : "states",
                      n_cases, sum / n_cases, worst);
        assert_true(n_cases > 300 && sum / n_cases > 0.97 && worst > 0.63);
    }
}

/* Between places that are far from each other there are more, so that no gap is longer than the interval. */
static void test_fill(void **state) {
    (void)state;
    uint64_t rng = 3;
    for (int run = 0; run < 500; run++) {
        kv_spot spots[128];
        int n = random_spots(spots, 12, &rng), before = n;
        for (int i = 0; i < n; i++) spots[i].position *= 5;
        kv_policy_terms t = terms(UINT64_MAX, spots[n - 1].position + (int32_t)next_random(&rng, 9000));
        t.spacing = run % 2 ? 16 : 0;
        t.interval = 512;
        n = kv_policy_fill(spots, n, 128, 0, 32, 1000, &t);
        kv_policy_choose(spots, n, &t);
        assert_true(n >= before && n < 128);
        int32_t last = 0;
        for (int i = 0; i < n; i++) {
            assert_true(i == 0 || spots[i].position > spots[i - 1].position);
            if (!spots[i].is_kept) continue;
            if (spots[i].position - last > 512) fail_msg("run %d: nothing from %d to %d", run, last, spots[i].position);
            last = spots[i].position;
        }
        assert_true(t.end - last <= 512);
        /* what is computed already cannot be kept */
        n = random_spots(spots, 1, &rng);
        spots[0] = (kv_spot){.position = 3000, .is_stored = true};
        t.end = 6000;
        n = kv_policy_fill(spots, n, 128, 3000, 32, 1000, &t);
        for (int i = 1; i < n; i++) assert_true(spots[i].position > 3000);
        assert_int_equal(spots[0].position, 3000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_places),      cmocka_unit_test(test_exact),
        cmocka_unit_test(test_interval),         cmocka_unit_test(test_near),
        cmocka_unit_test(test_chosen),           cmocka_unit_test(test_budget),
        cmocka_unit_test(test_chances),          cmocka_unit_test(test_choice_table),
        cmocka_unit_test(test_against_the_best), cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
