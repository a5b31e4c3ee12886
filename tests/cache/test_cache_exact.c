/* --exact: on an engine whose results depend on every chunk's edges, whatever is restored, the logits are those of a cold
 * run of the same prompt: chunks of C from 0, the last prompt token alone, then token by token. */
#include "conversations.h"
#include <time.h>

static void a_longer_prompt_resumes_where_a_cold_chunk_ends(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        open_exact_world(&w, kind, 1, 1 << 26, 1 << 26, false, CHUNK);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result r;
        assert_int_equal(serve(&w, "", tokens, 301, 330, &r), 301);
        settle(&w);
        assert_int_equal(serve(&w, "", tokens, 301, 330, &r), 301 - 288);
        assert_int_equal(r.miss, KV_MISS_DIVERGED); /* nothing behind that edge is stored */
        settle(&w);
        assert_int_equal(serve(&w, "", tokens, 360, 380, &r), 360 - 288);
        close_world(&w);
    }
}

static void random_conversations(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL), restored = 0;
    print_message("KVASIR_SEED=%llu\n", (unsigned long long)seed);
    for (int round = 0; round < 60; round++) {
        world w;
        open_exact_world(&w, (kv_memory_kind)(round % (KV_MEMORY_WHOLE + 1)), seed + (uint64_t)round,
                         1 << (16 + round % 7), 1 << (17 + round % 9), round % 2, CHUNK);
        kv_token talk[4][MAX];
        int len[4] = {0};
        for (int step = 0; step < 30; step++) {
            int i = (int)rnd(&w, 4), j = (int)rnd(&w, 4);
            if (rnd(&w, 3) == 0 && len[j]) {
                len[i] = 1 + (int)rnd(&w, (uint32_t)len[j]);
                memmove(talk[i], talk[j], (size_t)len[i] * sizeof *talk[i]);
            }
            int n_prompt = len[i] + 1 + (int)rnd(&w, 120), n = n_prompt + (int)rnd(&w, 30);
            if (n > MAX) {
                len[i] = 0;
                continue;
            }
            for (int k = len[i]; k < n; k++) talk[i][k] = (kv_token)rnd(&w, 3);
            kv_lookup_result r;
            serve(&w, "", talk[i], n_prompt, n, &r);
            assert_int_equal(r.position % CHUNK, 0);
            len[i] = n;
            if (rnd(&w, 2)) settle(&w);
        }
        kv_cache_stats stats;
        settle(&w);
        kv_cache_get_stats(&stats, w.cache);
        restored += stats.tokens_restored;
        close_world(&w);
    }
    print_message("restored %llu tokens\n", (unsigned long long)restored);
    assert_true(restored > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longer_prompt_resumes_where_a_cold_chunk_ends),
        cmocka_unit_test(random_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
