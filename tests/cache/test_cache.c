/* cache: conversations on the fake engine, of every kind of memory: whatever is restored, the logits are those of a run
 * that computed everything, and what need not be computed is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/record.h"
#include "conversations.h"
#include <time.h>

static void the_same_prompt_again_costs_one_token(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        open_world(&w, kind, 1, 1 << 26, 1 << 26, false);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result r;
        assert_int_equal(serve(&w, "", tokens, 301, 330, &r), 301);
        assert_int_equal(r.miss, KV_MISS_EMPTY);
        settle(&w);
        assert_int_equal(serve(&w, "", tokens, 301, 320, &r), 1);
        assert_int_equal(r.miss, KV_MISS_NONE);
        settle(&w);
        /* regenerate: another answer, then the next turn of the first one */
        fill(tokens, 301, MAX, 9);
        assert_int_equal(serve(&w, "", tokens, 301, 325, &r), 1);
        settle(&w);
        fill(tokens, 301, MAX, 7);
        assert_int_equal(serve(&w, "", tokens, 360, 380, &r), 30); /* goes on at the first answer's end */
        assert_int_equal(r.position, 330);
        /* another scope sees nothing */
        assert_int_equal(serve(&w, "other", tokens, 301, 302, &r), 301);
        assert_int_equal(r.miss, KV_MISS_EMPTY);
        close_world(&w);
    }
}

static void a_parting_prompt_goes_back_to_what_is_kept(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        open_world(&w, kind, 1, 1 << 26, 1 << 26, false);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result r;
        serve(&w, "", tokens, 301, 310, &r);
        settle(&w);
        fill(tokens, 205, MAX, 8); /* parts inside a block */
        serve(&w, "", tokens, 301, 310, &r);
        assert_int_equal(r.n_match, 205);
        if (kind == KV_MEMORY_FULL) {
            assert_int_equal(r.position, 205);
            assert_int_equal(r.miss, KV_MISS_DIVERGED);
        } else {
            assert_int_equal(r.position, 192); /* 3 × INTERVAL */
            assert_int_equal(r.miss, kv_state_has_windows(kind) ? KV_MISS_NO_WINDOW : KV_MISS_NO_CHECKPOINT);
        }
        close_world(&w);
    }
}

/* A kept position inside a block stays one, however long the answer grows behind it, and after full blocks lie over it. */
static void a_kept_position_stays_one(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (int answer = 1; answer < 200; answer += 13)
            for (int n_prompt = 145; n_prompt <= 161; n_prompt += 4) { /* 160, 161: on and behind a block's edge */
                world w;
                open_world(&w, kind, 1, 1 << 26, 1 << 26, false);
                kv_token tokens[MAX];
                fill(tokens, 0, MAX, 7);
                kv_lookup_result r;
                serve(&w, "", tokens, n_prompt, n_prompt + answer, &r);
                settle(&w);
                if (serve(&w, "", tokens, n_prompt, n_prompt + 3, &r) != 1)
                    fail_msg("%s: prompt %d, answer %d: again only %d (miss %s)", kv_memory_kind_name(kind), n_prompt,
                             answer, (int)r.position, kv_miss_name(r.miss));
                settle(&w);
                /* the answer is edited behind the prompt: what was kept before it is the best there is */
                fill(tokens, n_prompt + answer - 1, MAX, 9);
                int n = n_prompt + answer + 20;
                serve(&w, "", tokens, n, n + 1, &r);
                if (r.position < n_prompt - 1)
                    fail_msg("%s: prompt %d, answer %d, edited: %d offered (miss %s)", kv_memory_kind_name(kind),
                             n_prompt, answer, (int)r.position, kv_miss_name(r.miss));
                close_world(&w);
            }
}

/* Two questions after the same answer: the second one parts from the first inside a block that goes over the answer's
 * end, and resumes at that end at least. */
static void a_second_question_resumes_at_the_answers_end(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (int end = 150; end < 170; end++)
            for (int shared = 0; shared < 20; shared += 3) {
                world w;
                open_world(&w, kind, 1, 1 << 26, 1 << 26, false);
                kv_token tokens[MAX];
                fill(tokens, 0, MAX, 7);
                kv_lookup_result r;
                serve(&w, "", tokens, 120, end, &r);
                settle(&w);
                for (int question = 0; question < 3; question++) {
                    fill(tokens, end + shared, MAX, 8 + (uint32_t)question);
                    serve(&w, "", tokens, end + shared + 43, end + shared + 50, &r);
                    settle(&w);
                    if (r.position < end)
                        fail_msg("%s: answer's end %d, %d shared, question %d: %d offered (miss %s)",
                                 kv_memory_kind_name(kind), end, shared, question, (int)r.position,
                                 kv_miss_name(r.miss));
                }
                close_world(&w);
            }
}

/* Bytes of a record with a block's cells, or its window cells. */
static void measure(uint64_t *block, uint64_t *part) {
    world w;
    kv_error err = {0};
    kv_token tokens[B];
    kv_buf cells = {0}, window = {0};
    open_world(&w, KV_MEMORY_WINDOW, 1, 1 << 20, 1 << 20, false);
    fill(tokens, 0, B, 7);
    decode(&w, 0, tokens, 0, B);
    check(kv_state_capture(&cells, &window, &w.state, 0, 0, B, &err), &err);
    *block = kv_record_bytes(B, cells.len);
    *part = kv_record_bytes(B, window.len);
    kv_buf_free(&cells);
    kv_buf_free(&window);
    close_world(&w);
}

/* Room for the parts of one window and the blocks of a chunk: parts behind the window let go of theirs. */
static void a_small_queue_keeps_the_last_window(void **state) {
    (void)state;
    world w;
    uint64_t block, part;
    measure(&block, &part);
    open_world(&w, KV_MEMORY_WINDOW, 1, 4 * part + CHUNK / B * block, 1 << 26, false);
    w.at_once = true;
    kv_token tokens[MAX];
    fill(tokens, 0, MAX, 7);
    kv_lookup_result r;
    assert_int_equal(serve(&w, "", tokens, 501, 530, &r), 501);
    settle(&w);
    kv_cache_stats stats;
    kv_cache_get_stats(&stats, w.cache);
    assert_int_equal(stats.n_dropped, 0);
    assert_int_equal(serve(&w, "", tokens, 501, 530, &r), 1);
    assert_int_equal(serve(&w, "", tokens, 531, 540, &r), 1);
    close_world(&w);
}

static uint64_t seed_of_day(void) {
    const char *given = getenv("KVASIR_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("KVASIR_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Conversations that branch and go on, small budgets, I/O in any order: always the right logits. */
static void random_conversations(void **state) {
    (void)state;
    uint64_t seed = seed_of_day(), restored = 0, evicted = 0, dropped = 0;
    for (int round = 0; round < 60; round++) {
        kv_memory_kind kind = (kv_memory_kind)(round % (KV_MEMORY_WHOLE + 1));
        world w;
        open_world(&w, kind, seed + (uint64_t)round, 1 << (16 + round % 7), 1 << (17 + round % 9), round % 2);
        kv_token talk[4][MAX];
        int len[4] = {0};
        for (int step = 0; step < 40; step++) {
            int i = (int)rnd(&w, 4), j = (int)rnd(&w, 4);
            if (rnd(&w, 3) == 0 && len[j]) { /* branch off another conversation */
                len[i] = 1 + (int)rnd(&w, (uint32_t)len[j]);
                memmove(talk[i], talk[j], (size_t)len[i] * sizeof *talk[i]);
            } else if (rnd(&w, 6) == 0) {
                len[i] = 0;
            }
            int n_prompt = len[i] + 1 + (int)rnd(&w, 120), n = n_prompt + (int)rnd(&w, 30);
            if (n > MAX) {
                len[i] = 0;
                continue;
            }
            for (int k = len[i]; k < n; k++) talk[i][k] = (kv_token)rnd(&w, 3);
            kv_lookup_result r;
            serve(&w, rnd(&w, 5) ? "" : "b", talk[i], n_prompt, n, &r);
            len[i] = n;
            if (rnd(&w, 2)) settle(&w);
            kv_cache_self_check(w.cache);
        }
        settle(&w);
        kv_cache_stats stats;
        kv_cache_get_stats(&stats, w.cache);
        restored += stats.tokens_restored;
        evicted += stats.n_evicted;
        dropped += stats.n_dropped;
        close_world(&w);
    }
    print_message("restored %llu tokens, evicted %llu nodes, dropped %llu captures\n", (unsigned long long)restored,
                  (unsigned long long)evicted, (unsigned long long)dropped);
    assert_true(restored > 0 && evicted > 0 && dropped > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_prompt_again_costs_one_token),
        cmocka_unit_test(a_parting_prompt_goes_back_to_what_is_kept),
        cmocka_unit_test(a_kept_position_stays_one),
        cmocka_unit_test(a_second_question_resumes_at_the_answers_end),
        cmocka_unit_test(a_small_queue_keeps_the_last_window),
        cmocka_unit_test(random_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
