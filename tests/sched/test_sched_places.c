/* A long conversation can be edited at any message: with room for all states it is computed again from that message's
 * beginning, with a tenth of them from the nearest that was kept, and those that were kept are the worthiest. And a
 * conversation that grows never has more bytes of them than its budget. */
#include "alone.h"
#include "cache/cache_private.h"

enum { MESSAGES = 500, LEAST = 130, MORE = 140, STATE = 4096, BLOCK = 256, ANSWER = 4 };

typedef struct chat {
    kv_tokens tokens;
    int32_t start[MESSAGES + 1]; /* where message i begins; the last: where the answer does */
    kv_hint hints[MESSAGES + 1];
    int n_hints;
} chat;

static world_params params(kv_memory_kind kind, uint64_t path_bytes) {
    world_params p = world_defaults(kind);
    p.fake.end_one_in = -1;
    p.fake.bytes_recurrent = STATE;
    p.engine.n_ctx = 131072;
    p.engine.n_batch = 512 + 4;
    p.sched.block = BLOCK;
    p.sched.chunk = 512;
    p.cache_queue = p.cache_ram = 256 << 20;
    p.path_bytes = path_bytes;
    return p;
}

static void add_message(chat *c, dice *d, int i) {
    c->start[i] = (int32_t)c->tokens.len;
    random_tokens(&c->tokens, d, dice_from(d, LEAST, LEAST + MORE));
}

/* The hints that the API would make of the first n messages, of which the last is a user's. */
static void hint_at_messages(chat *c, int n) {
    c->n_hints = 0;
    for (int i = 1; i < n; i++)
        c->hints[c->n_hints++] = (kv_hint){.position = c->start[i],
                                           .kind = i == 1       ? KV_PLACE_SYSTEM_END
                                                   : i == n - 1 ? KV_PLACE_LAST_MESSAGE
                                                                : KV_PLACE_MESSAGE};
}

static void make_chat(chat *c, int n, uint64_t seed) {
    dice d = {seed};
    memset(c, 0, sizeof *c);
    for (int i = 0; i < n; i++) add_message(c, &d, i);
    c->start[n] = (int32_t)c->tokens.len;
    hint_at_messages(c, n);
}

static void ask(request *r, world *w, const kv_token *tokens, size_t n, const chat *c) {
    request_init(r, tokens, n);
    r->params.n_predict = ANSWER;
    r->params.hints = c->hints;
    while (r->params.n_hints < c->n_hints && c->hints[r->params.n_hints].position < (int32_t)n) r->params.n_hints++;
    request_submit(r, w);
    world_finish(w, r, 1);
    assert_int_equal(r->finish, KV_FINISH_LENGTH);
}

/* Where a prompt would resume that has the conversation's first n tokens, and goes on otherwise. */
static int32_t resumes(world *w, const chat *c, int32_t n) {
    kv_tokens t = {0};
    kv_tokens_append(&t, c->tokens.data, (size_t)n);
    kv_tokens_add(&t, 7);
    kv_lookup *l = kv_lookup_start(w->cache, "", t.data, t.len, NULL, NULL);
    while (!kv_lookup_ready(l)) assert_true(kv_io_run_one(w->io));
    int32_t P = kv_lookup_get(l)->position;
    kv_lookup_free(l);
    kv_tokens_free(&t);
    return P;
}

static void test_room_for_all(void **state) {
    (void)state;
    static const kv_memory_kind kinds[] = {KV_MEMORY_RECURRENT, KV_MEMORY_HYBRID};
    for (int k = 0; k < 2; k++) {
        int n = kinds[k] == KV_MEMORY_RECURRENT ? MESSAGES : MESSAGES / 10;
        world w;
        chat c;
        request r, edit;
        world_params p = params(kinds[k], 1ull << 40);
        make_chat(&c, n, 5);
        world_open(&w, &p);
        ask(&r, &w, c.tokens.data, c.tokens.len, &c);
        print_message("%s: %d messages, %zu tokens, %llu calls\n", kv_memory_kind_name(kinds[k]), n, c.tokens.len,
                      (unsigned long long)kv_fake_n_decodes(w.engine));
        for (int i = 1; i < n; i++) assert_int_equal(resumes(&w, &c, c.start[i]), c.start[i]);
        dice d = {3};
        for (int i = 1; i < n; i += n / 12) {
            kv_tokens t = {0};
            kv_tokens_append(&t, c.tokens.data, (size_t)c.start[i]);
            random_tokens(&t, &d, 50);
            ask(&edit, &w, t.data, t.len, &c);
            assert_int_equal(edit.timings.n_cached, c.start[i]);
            assert_int_equal(edit.timings.n_prompt, 50);
            if (i == 1) compare_alone(&w, &edit);
            kv_tokens_free(&t);
            request_free(&edit);
        }
        request_free(&r);
        kv_tokens_free(&c.tokens);
        world_close(&w);
    }
}

static kv_policy_terms terms_for(uint64_t budget, int32_t end) {
    const kv_place_count none[KV_PLACE_COUNT] = {{0}};
    kv_policy_terms t = {.budget = budget, .us_per_token = 1, .end = end, .interval = 4 * BLOCK, .spacing = 64};
    kv_policy_chances(t.chance, none);
    return t;
}

/* The spots that the scheduler sees of a cold prompt, chosen: what is kept when it is computed. */
static int choose(kv_spot *spots, const chat *c, uint64_t budget, uint64_t bytes) {
    int32_t end = (int32_t)c->tokens.len;
    kv_policy_terms t = terms_for(budget, end);
    int n = 0;
    for (int i = 0; i < c->n_hints; i++)
        spots[n++] =
            (kv_spot){.position = c->hints[i].position, .kind = c->hints[i].kind, .bytes = bytes, .is_possible = true};
    spots[n++] = (kv_spot){
        .position = end - 1, .kind = KV_PLACE_PROMPT_END, .bytes = bytes, .is_possible = true, .is_fixed = true};
    kv_policy_choose(spots, n, &t);
    return n;
}

/* Bytes of states, or of window parts, along a conversation's path. */
static uint64_t path_bytes(world *w, const kv_tokens *t) {
    int n;
    uint64_t sum = 0;
    kv_radix_match m;
    kv_radix_node *root = kv_cache_root(w->cache, "");
    kv_radix_find(&m, w->cache->tree, root, t->data, t->len);
    kv_radix_node *last = m.candidate ? m.candidate : m.n_path ? m.path[m.n_path - 1] : NULL;
    kv_spot *spots = kv_path_kept(&n, w->cache, last, NULL, 0);
    for (int i = 0; i < n; i++) sum += spots[i].bytes;
    free(spots);
    kv_radix_match_free(&m, w->cache->tree);
    kv_radix_unref(w->cache->tree, root);
    return sum;
}

static void test_a_tenth(void **state) {
    (void)state;
    world w;
    chat c;
    request r;
    make_chat(&c, MESSAGES, 6);
    /* with some room for what a record has beside the state */
    uint64_t one = STATE + 256, budget = one * MESSAGES / 10;
    world_params p = params(KV_MEMORY_RECURRENT, budget);
    world_open(&w, &p);
    ask(&r, &w, c.tokens.data, c.tokens.len, &c);
    kv_spot *spots = calloc(MESSAGES + 2, sizeof *spots);
    uint64_t bytes = kv_engine_get_info(w.engine)->bytes_recurrent;
    int n = choose(spots, &c, budget, bytes), n_kept = 0, n_seen = 0, n_same = 0;
    assert_true(path_bytes(&w, &c.tokens) <= budget);
    for (int i = 0; i < n; i++) n_kept += spots[i].is_kept;
    assert_true(n_kept >= MESSAGES / 11 && n_kept <= MESSAGES / 8);
    /* Behind the prompt the answer's end was kept, for which the least of them went. */
    for (int i = 0, nearest = 0; i < n; i++) {
        int32_t P = resumes(&w, &c, spots[i].position);
        if (P == spots[i].position) nearest = P;
        assert_int_equal(P, nearest);
        n_seen += P == spots[i].position;
        n_same += (P == spots[i].position) == spots[i].is_kept;
    }
    print_message("%d of %d places kept, %d as chosen for the prompt alone\n", n_seen, n, n_same);
    assert_true(n_seen >= n_kept - 3 && n_seen <= n_kept);
    assert_true(n_same >= n - 3);
    free(spots);
    request_free(&r);
    kv_tokens_free(&c.tokens);
    world_close(&w);
}

static void test_growth(void **state) {
    (void)state;
    uint64_t seed = testing_seed("places");
    for (int k = 0; k < N_KINDS; k++) {
        if (all_kinds[k] == KV_MEMORY_FULL || all_kinds[k] == KV_MEMORY_WHOLE) continue;
        world w;
        chat c = {0};
        dice d = {seed + (uint64_t)k};
        uint64_t budget = 12 * (STATE + 1024);
        world_params p = params(all_kinds[k], budget);
        p.fake.n_window = p.sched.block = 32;
        p.fake.bytes_per_window_cell = 128;
        p.engine.n_ctx = 16384;
        world_open(&w, &p);
        for (int turn = 0, i = 0; turn < 25; turn++) {
            request r;
            add_message(&c, &d, i++);
            if (turn == 0) add_message(&c, &d, i++);
            c.start[i] = (int32_t)c.tokens.len;
            hint_at_messages(&c, i);
            ask(&r, &w, c.tokens.data, c.tokens.len, &c);
            while (kv_io_run_one(w.io)) continue;
            c.start[i++] = (int32_t)c.tokens.len;
            kv_tokens_append(&c.tokens, r.answer.data, r.answer.len);
            if (turn > 0) /* what the last turn left is gone on at */
                assert_true(r.timings.n_cached >= c.start[i - 2] - 1);
            uint64_t bytes = path_bytes(&w, &c.tokens);
            if (bytes > budget || bytes == 0)
                fail_msg("%s, turn %d: %llu bytes of %llu", kv_memory_kind_name(all_kinds[k]), turn,
                         (unsigned long long)bytes, (unsigned long long)budget);
            if (turn % 8 == 0) compare_alone(&w, &r);
            request_free(&r);
        }
        kv_tokens_free(&c.tokens);
        world_close(&w);
    }
}

/* Short messages do not cut a cold prompt into small chunks. */
static void test_short_messages(void **state) {
    (void)state;
    for (int size = 8; size <= 256; size *= 2) {
        double ms[2];
        for (int hinted = 0; hinted < 2; hinted++) {
            world w;
            chat c = {0};
            request r;
            dice d = {1};
            world_params p = params(KV_MEMORY_RECURRENT, 1ull << 40);
            kv_fake_params like;
            kv_fake_params_defaults(&like);
            p.fake.cost = like.cost;
            world_open(&w, &p);
            for (int i = 0; i < MESSAGES / 2; i++) {
                c.start[i] = (int32_t)c.tokens.len;
                random_tokens(&c.tokens, &d, size);
            }
            if (hinted) hint_at_messages(&c, MESSAGES / 2);
            ask(&r, &w, c.tokens.data, c.tokens.len, &c);
            ms[hinted] = r.timings.prompt_ms;
            request_free(&r);
            kv_tokens_free(&c.tokens);
            world_close(&w);
        }
        print_message("messages of %d tokens: the prompt takes %.2f times as long\n", size, ms[1] / ms[0]);
        assert_true(ms[1] < 1.25 * ms[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_for_all),
        cmocka_unit_test(test_a_tenth),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_short_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
