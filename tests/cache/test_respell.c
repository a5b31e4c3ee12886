/* respell: prompts whose bytes are stored in other tokens, against a naive model that tries every stored path. */
#include "cache/respell.h"
#include "conversations.h"
#include <time.h>

/* ── a vocabulary over three letters ───────────────────────────────────────────────────────────────────────────── */

enum { N_VOCAB = 64, LETTERS = 3, FIRST_SPECIAL = 56, EMPTY_SPECIAL = 63, MAX_PIECE = 5, MAX_TEXT = 400, PATHS = 12 };
enum { LARGE = 1 << 26 };

typedef struct vocabulary {
    kv_model model;
    char piece[N_VOCAB][8];
} vocabulary;

static void spell(kv_buf *out, const kv_model *m, kv_token t, bool special) {
    (void)special;
    kv_buf_adds(out, ((const vocabulary *)m)->piece[t]);
}

static bool is_special(const kv_model *m, kv_token t) {
    (void)m;
    return t >= FIRST_SPECIAL;
}

static const kv_model_ops ops = {.piece = spell, .is_special = is_special};

/* Letters, strings of them, and special tokens: some spelled as text is, one that spells nothing. */
static void make_vocabulary(vocabulary *v, world *w) {
    *v = (vocabulary){.model = {.ops = &ops, .info = {.n_vocab = N_VOCAB}}};
    for (kv_token t = 0; t < N_VOCAB; t++) {
        int n = t < LETTERS ? 1 : 1 + (int)rnd(w, MAX_PIECE);
        for (int i = 0; i < n; i++) v->piece[t][i] = (char)('a' + (t < LETTERS ? (uint32_t)t : rnd(w, LETTERS)));
    }
    strcpy(v->piece[FIRST_SPECIAL], "<s>");
    strcpy(v->piece[EMPTY_SPECIAL], "");
    strcpy(v->piece[EMPTY_SPECIAL - 8], ""); /* a text token that spells nothing */
}

/* A text: letters, and special tokens as themselves. */
typedef struct text {
    int n;
    kv_token atom[MAX_TEXT];
} text;

static void grow(text *t, world *w, int n) {
    for (; n > 0 && t->n < MAX_TEXT; n--)
        t->atom[t->n++] = rnd(w, 12) ? (kv_token)rnd(w, LETTERS) : (kv_token)(FIRST_SPECIAL + rnd(w, 8));
}

/* Whether the token stands at atom i. */
static bool stands(const vocabulary *v, const text *t, int i, kv_token token) {
    const char *s = v->piece[token];
    if (token >= FIRST_SPECIAL) return t->atom[i] == token;
    if (!*s) return false;
    for (; *s; s++, i++)
        if (i == t->n || t->atom[i] >= FIRST_SPECIAL || *s != v->piece[t->atom[i]][0]) return false;
    return true;
}

/* mode 0: the longest token each time, as a tokeniser does; else any that fits, the letters alone more seldom. */
static int cut(kv_token *out, const vocabulary *v, world *w, const text *t, int mode) {
    int n = 0;
    for (int i = 0; i < t->n;) {
        kv_token best = t->atom[i];
        uint32_t seen = 1;
        for (kv_token k = 0; k < FIRST_SPECIAL; k++) {
            if (!stands(v, t, i, k)) continue;
            bool longer = strlen(v->piece[k]) > strlen(v->piece[best]);
            if (mode == 0 ? best < FIRST_SPECIAL && longer : rnd(w, ++seen) == 0) best = k;
        }
        out[n++] = best;
        i += best >= FIRST_SPECIAL ? 1 : (int)strlen(v->piece[best]);
    }
    return n;
}

/* ── the naive model ───────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct path {
    int n;
    kv_token token[MAX_TEXT];
    text text;
} path;

static size_t bytes_of(kv_buf *out, const vocabulary *v, const kv_token *tokens, int n) {
    kv_buf_clear(out);
    for (int i = 0; i < n; i++) kv_buf_adds(out, v->piece[tokens[i]]);
    return out->len;
}

/* How many bytes of the prompt a path spells, up to the last place where both have a token's end. */
static size_t even_bytes(const vocabulary *v, const path *p, const kv_token *prompt, int n) {
    size_t start[MAX_TEXT + 1], at = 0, best = 0;
    kv_buf bytes = {0}, own = {0};
    for (int i = 0; i <= n; i++) start[i] = bytes_of(&bytes, v, prompt, i);
    bytes_of(&bytes, v, prompt, n);
    int i = 0; /* the prompt's token that begins at `at`; -1: none does */
    for (int k = 0; k < p->n && at <= bytes.len; k++) {
        kv_token t = p->token[k];
        size_t len = bytes_of(&own, v, &t, 1);
        if (i >= 0 && i < n && prompt[i] == t) {
            at += len;
            best = at;
            i++;
            continue;
        }
        if (t >= FIRST_SPECIAL || len == 0 || at + len > bytes.len) break;
        if (memcmp(bytes.data + at, own.data, len) != 0) break;
        bool crosses = false;
        for (int j = i >= 0 ? i : 0; j < n; j++) { /* special tokens in between, or where it begins */
            bool special = prompt[j] >= FIRST_SPECIAL || !*v->piece[prompt[j]];
            bool inside = start[j] < at + len && (start[j] > at || (start[j] == at && j == i) || start[j + 1] > at);
            if (special && inside) crosses = true;
        }
        if (crosses) break;
        at += len;
        int j = i >= 0 ? i + 1 : 0;
        while (j <= n && start[j] < at) j++;
        i = j <= n && start[j] == at ? j : -1;
        if (i >= 0) best = at;
    }
    kv_buf_free(&bytes);
    kv_buf_free(&own);
    return best;
}

static size_t matched_bytes(const vocabulary *v, const path *paths, int n_paths, const kv_token *tokens, int n) {
    size_t most = 0;
    for (int i = 0; i < n_paths; i++) {
        size_t common = kv_tokens_common(paths[i].token, (size_t)paths[i].n, tokens, (size_t)n);
        if (common > most) most = common;
    }
    kv_buf bytes = {0};
    size_t len = bytes_of(&bytes, v, tokens, (int)most);
    kv_buf_free(&bytes);
    return len;
}

/* The new spelling says the same, and its runs tell where it differs. */
static void check_spelling(const vocabulary *v, const kv_respelling *r, const kv_token *prompt, int n) {
    kv_buf a = {0}, b = {0};
    bytes_of(&a, v, prompt, n);
    bytes_of(&b, v, r->tokens.data, (int)r->tokens.len);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(kv_buf_str(&a), kv_buf_str(&b), a.len);
    int32_t from = 0, at = 0, sum = 0;
    assert_true(r->n_runs > 0);
    for (int i = 0; i <= r->n_runs; i++) {
        int32_t to = i < r->n_runs ? r->runs[i].from : n, end = i < r->n_runs ? r->runs[i].at : (int32_t)r->tokens.len;
        assert_int_equal(to - from, end - at);
        for (int32_t k = 0; k < to - from; k++) {
            assert_int_equal(prompt[from + k], r->tokens.data[at + k]);
            assert_int_equal(kv_respelling_position(r, from + k), at + k);
        }
        if (i == r->n_runs) break;
        assert_true(r->runs[i].to > r->runs[i].from && r->runs[i].end > r->runs[i].at);
        for (int32_t k = r->runs[i].from; k < r->runs[i].to; k++)
            assert_int_equal(kv_respelling_position(r, k), r->runs[i].at);
        sum += r->runs[i].end - r->runs[i].at;
        from = r->runs[i].to;
        at = r->runs[i].end;
    }
    assert_int_equal(kv_respelling_position(r, n), (int32_t)r->tokens.len);
    assert_int_equal(sum, r->n_respelled);
    kv_buf_free(&a);
    kv_buf_free(&b);
}

/* True when it took something over. */
static bool check_prompt(world *w, vocabulary *v, const path *paths, int n_paths, const kv_token *prompt, int n) {
    kv_respelling r;
    kv_respell(&r, w->cache, "", &v->model, prompt, (size_t)n);
    bool taken = r.tokens.len > 0;
    if (taken) check_spelling(v, &r, prompt, n);
    const kv_token *now = taken ? r.tokens.data : prompt;
    size_t before = matched_bytes(v, paths, n_paths, prompt, n);
    size_t after = matched_bytes(v, paths, n_paths, now, taken ? (int)r.tokens.len : n), want = 0;
    for (int i = 0; i < n_paths; i++) {
        size_t even = even_bytes(v, &paths[i], prompt, n);
        if (even > want) want = even;
    }
    if (taken) assert_true(after >= before); /* more tokens of the prompt, though they may spell nothing */
    kv_buf bytes = {0};
    size_t enough = bytes_of(&bytes, v, prompt, n - 1); /* the last token is computed anyway */
    kv_buf_free(&bytes);
    assert_true(after <= want);
    if (after < want && after < enough && r.n_read < 64)
        fail_msg("%zu bytes found, %zu by tokens alone, %zu are there", after, before, want);
    kv_respelling_free(&r);
    return taken;
}

/* ── tests ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t seed_of_day(void) {
    const char *given = getenv("KVASIR_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("KVASIR_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void store_path(world *w, const path *p) {
    kv_lookup_result r;
    if (p->n < 2) return;
    serve(w, "", p->token, 1 + (int)rnd(w, (uint32_t)p->n - 1), p->n, &r);
    settle(w);
}

static void random_spellings(void **state) {
    (void)state;
    uint64_t seed = seed_of_day();
    int n_taken = 0, n_asked = 0;
    for (int round = 0; round < 80; round++) {
        world w;
        vocabulary v;
        static path paths[PATHS];
        open_world(&w, round % 4 ? KV_MEMORY_FULL : (kv_memory_kind)(round / 4 % (KV_MEMORY_WHOLE + 1)),
                   seed + (uint64_t)round, LARGE, LARGE, false);
        make_vocabulary(&v, &w);
        for (int i = 0; i < PATHS; i++) {
            path *p = &paths[i];
            const path *old = &paths[rnd(&w, (uint32_t)i + 1)];
            p->text.n = 0;
            if (old != p && rnd(&w, 4)) {
                p->text = old->text;
                p->text.n = (int)rnd(&w, (uint32_t)old->text.n + 1);
            }
            grow(&p->text, &w, 1 + (int)rnd(&w, 120));
            p->n = cut(p->token, &v, &w, &p->text, (int)rnd(&w, 3));
            if (p->n >= 2) store_path(&w, p);
            else p->n = 0;
        }
        for (int i = 0; i < 40; i++) {
            text t = paths[rnd(&w, PATHS)].text;
            kv_token prompt[MAX_TEXT];
            if (rnd(&w, 2)) t.n = (int)rnd(&w, (uint32_t)t.n + 1);
            grow(&t, &w, (int)rnd(&w, 20));
            int n = cut(prompt, &v, &w, &t, (int)rnd(&w, 2));
            if (n < 2) continue;
            n_asked++;
            n_taken += check_prompt(&w, &v, paths, PATHS, prompt, n);
        }
        close_world(&w);
    }
    print_message("%d of %d prompts respelled\n", n_taken, n_asked);
    assert_true(n_taken > n_asked / 10);
}

/* "abc" sampled letter by letter, and a tokeniser that has a token for it. */
enum { ABC = 3, AB, BC, CA };

static void make_abc(vocabulary *v) {
    static const char *const pieces[] = {"a", "b", "c", "abc", "ab", "bc", "ca"};
    *v = (vocabulary){.model = {.ops = &ops, .info = {.n_vocab = N_VOCAB}}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) strcpy(v->piece[i], pieces[i]);
    strcpy(v->piece[FIRST_SPECIAL], "<s>");
    strcpy(v->piece[FIRST_SPECIAL + 1], "ab");
}

/* A conversation of questions (tokens that differ) and answers "abcabc…", which are stored letter by letter. */
static int converse(kv_token *sampled, int *n_prompt, kv_token *sent, int turns, int answer) {
    int n = 0, k = 0;
    for (int turn = 0; turn < turns; turn++) {
        for (int i = 0; i < 30; i++) sampled[n++] = sent[k++] = (i * 7 + turn) % 3 == 0 ? 1 : 2;
        sampled[n++] = sent[k++] = FIRST_SPECIAL;
        for (int i = 0; i < answer; i++) sampled[n++] = i % 3;
        for (int i = 0; i < answer / 3; i++) sent[k++] = ABC;
        sampled[n++] = sent[k++] = FIRST_SPECIAL;
    }
    *n_prompt = k;
    return n;
}

static void all_answers_of_a_conversation_are_taken_over(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        vocabulary v;
        kv_token sampled[MAX], sent[MAX];
        kv_lookup_result res;
        kv_respelling r;
        int n_sent, n = converse(sampled, &n_sent, sent, 5, 60);
        open_world(&w, kind, 1, LARGE, LARGE, false);
        make_abc(&v);
        serve(&w, "", sampled, 40, n, &res);
        settle(&w);
        for (int i = 0; i < 10; i++) sent[n_sent++] = 1;
        kv_respell(&r, w.cache, "", &v.model, sent, (size_t)n_sent);
        assert_int_equal(r.n_respelled, 300);
        assert_int_equal(r.n_runs, 5 * 20); /* even after each token of the prompt */
        assert_int_equal(r.tokens.len, n + 10);
        assert_memory_equal(r.tokens.data, sampled, (size_t)n * sizeof *sampled);
        /* what is respelled is a prompt like any other */
        int len = (int)r.tokens.len;
        for (int i = 0; i < 5; i++) kv_tokens_add(&r.tokens, 0);
        assert_int_equal(serve(&w, "", r.tokens.data, len, len + 5, &res), 10);
        assert_int_equal(res.n_match, n);
        kv_respelling_free(&r);
        /* another scope has nothing to take */
        kv_respell(&r, w.cache, "other", &v.model, sent, (size_t)n_sent);
        assert_int_equal(r.tokens.len, 0);
        kv_respelling_free(&r);
        close_world(&w);
    }
}

static void a_cut_answer_is_taken_up_to_where_both_are_even(void **state) {
    (void)state;
    world w;
    vocabulary v;
    kv_respelling r;
    kv_lookup_result res;
    /* ab c ab c ab c …: what the client has ends inside the third "ab" */
    kv_token sampled[] = {0, FIRST_SPECIAL, AB, 2, AB, 2, AB, 2, AB}, sent[] = {0, FIRST_SPECIAL, ABC, ABC, 0};
    open_world(&w, KV_MEMORY_FULL, 1, LARGE, LARGE, false);
    make_abc(&v);
    serve(&w, "", sampled, 2, 9, &res);
    settle(&w);
    kv_respell(&r, w.cache, "", &v.model, sent, 5);
    const kv_token want[] = {0, FIRST_SPECIAL, AB, 2, AB, 2, 0};
    assert_int_equal(r.tokens.len, 7);
    assert_memory_equal(r.tokens.data, want, sizeof want);
    assert_int_equal(r.n_respelled, 4);
    kv_respelling_free(&r);
    /* a special token's text in other tokens is not it, on either side */
    const kv_token as_text[] = {0, FIRST_SPECIAL, FIRST_SPECIAL + 1, 2, 0, 0};
    kv_respell(&r, w.cache, "", &v.model, as_text, 6);
    assert_int_equal(r.tokens.len, 0);
    kv_respelling_free(&r);
    serve(&w, "", as_text, 4, 6, &res);
    settle(&w);
    const kv_token plain[] = {0, FIRST_SPECIAL, 0, BC, 0, 0};
    kv_respell(&r, w.cache, "", &v.model, plain, 6);
    const kv_token other[] = {0, FIRST_SPECIAL, AB, 2, 0, 0}; /* never what begins with the special "ab" */
    assert_int_equal(r.tokens.len, 6);
    assert_memory_equal(r.tokens.data, other, sizeof other);
    kv_respelling_free(&r);
    close_world(&w);
}

/* What is not respelled costs next to nothing, however many siblings there are. */
static void few_nodes_are_read(void **state) {
    (void)state;
    world w;
    vocabulary v;
    kv_respelling r;
    kv_lookup_result res;
    kv_token tokens[MAX];
    open_world(&w, KV_MEMORY_FULL, 1, LARGE, LARGE, false);
    make_abc(&v);
    for (int i = 0; i < 2 * B; i++) tokens[i] = i % 2;
    tokens[2 * B + 12] = 1;          /* the answer */
    for (int i = 0; i < 2000; i++) { /* 2,000 short blocks below one */
        for (int k = 0; k < 12; k++) tokens[2 * B + k] = i >> (11 - k) & 1;
        serve(&w, "", tokens, 2 * B + 12, 2 * B + 13, &res);
        settle(&w);
    }
    int n = 2 * B + 12;
    kv_respell(&r, w.cache, "", &v.model, tokens, (size_t)n); /* all of it is there */
    assert_true(r.n_read <= 1 && r.tokens.len == 0);
    kv_respelling_free(&r);
    tokens[n++] = 2;
    tokens[n++] = 2;
    tokens[n++] = 2;
    kv_respell(&r, w.cache, "", &v.model, tokens, (size_t)n); /* appended to it */
    assert_true(r.n_read <= 4 && r.tokens.len == 0);
    kv_respelling_free(&r);
    /* one of the 2,000 in other tokens: abab… twelve letters as six tokens */
    n = 2 * B;
    for (int k = 0; k < 6; k++) tokens[n++] = AB;
    tokens[n++] = 2;
    tokens[n++] = 2;
    kv_respell(&r, w.cache, "", &v.model, tokens, (size_t)n);
    assert_int_equal(r.n_respelled, 12);
    assert_true(r.n_read <= 40);
    kv_respelling_free(&r);
    close_world(&w);
}

static void exact_takes_nothing_over(void **state) {
    (void)state;
    world w;
    vocabulary v;
    kv_respelling r;
    kv_lookup_result res;
    kv_token sampled[MAX], sent[MAX];
    int n_sent, n = converse(sampled, &n_sent, sent, 2, 60);
    open_exact_world(&w, KV_MEMORY_FULL, 1, LARGE, LARGE, false, CHUNK);
    make_abc(&v);
    serve(&w, "", sampled, 40, n, &res);
    settle(&w);
    kv_respell(&r, w.cache, "", &v.model, sent, (size_t)n_sent);
    assert_int_equal(r.tokens.len, 0);
    assert_int_equal(r.n_read, 0);
    kv_respelling_free(&r);
    close_world(&w);
}

/* From disk, where siblings are known by their keys alone. */
static void after_a_restart(void **state) {
    (void)state;
    world w;
    rig disk;
    vocabulary v;
    kv_respelling r;
    kv_error err = {0};
    kv_lookup_result res;
    kv_token sampled[MAX], sent[MAX];
    int n_sent, n = converse(sampled, &n_sent, sent, 4, 60);
    open_world(&w, KV_MEMORY_HYBRID, 1, LARGE, 0, false);
    kv_cache_free(w.cache);
    rig_init(&disk, LARGE, 1);
    w.disk = &disk;
    w.cfg.read_bytes = LARGE;
    make_abc(&v);
    for (int life = 0; life < 2; life++) {
        check(kv_store_open(&disk.store, &disk.cfg, &err), &err);
        w.cfg.store = disk.store;
        check(kv_cache_new(&w.cache, &w.cfg, &err), &err);
        if (life == 1) break;
        serve(&w, "", sampled, 40, n, &res);
        settle(&w);
        for (int i = 35; i < 60; i += 3) { /* others part from it in several places */
            kv_token old = sampled[i];
            sampled[i] = CA;
            serve(&w, "", sampled, 70, 75, &res);
            settle(&w);
            sampled[i] = old;
        }
        kv_cache_free(w.cache);
        kv_store_close(disk.store);
    }
    kv_respell(&r, w.cache, "", &v.model, sent, (size_t)n_sent);
    assert_int_equal(r.n_respelled, 240);
    assert_int_equal(r.tokens.len, n);
    assert_memory_equal(r.tokens.data, sampled, (size_t)n * sizeof *sampled);
    kv_respelling_free(&r);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_spellings),
        cmocka_unit_test(all_answers_of_a_conversation_are_taken_over),
        cmocka_unit_test(a_cut_answer_is_taken_up_to_where_both_are_even),
        cmocka_unit_test(few_nodes_are_read),
        cmocka_unit_test(exact_takes_nothing_over),
        cmocka_unit_test(after_a_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
