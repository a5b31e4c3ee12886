/* Where a chat's messages begin in its tokens: each one is found, and for a long chat finding them all takes one look at
 * each token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "../engine/real.h"
#include "api/chat_body.h"
#include "api/ledger.h"
#include "api/places.h"
#include "base/json.h"
#include "engine/engine_fake.h"

enum { LONG = 500 };

static const kv_dialect nothing = {.id_prefix = "x"};
static uint64_t n_pieces, n_tokenized;
static const kv_model_ops *real_ops;

static void count_piece(kv_buf *out, const kv_model *m, kv_token token, bool special) {
    n_pieces++;
    real_ops->piece(out, m, token, special);
}

static kv_status count_tokenize(kv_tokens *out, const kv_model *m, const char *text, size_t n, bool add_special,
                                bool parse_special, kv_error *err) {
    n_tokenized += n;
    return real_ops->tokenize(out, m, text, n, add_special, parse_special, err);
}

typedef struct desk {
    kv_options opt;
    kv_app app;
    kv_engine *engine;
    kv_io *io;
    kv_model_ops ops;
} desk;

/* A hybrid's engine with this vocabulary (NULL: bytes and ChatML), and a cache. */
static void desk_open(desk *d, const char *vocabulary) {
    memset(d, 0, sizeof *d);
    kv_options_defaults(&d->opt);
    kv_fake_params mp;
    kv_fake_params_defaults(&mp);
    mp.memory = KV_MEMORY_HYBRID;
    mp.vocab_path = vocabulary;
    kv_error err = {0};
    check(kv_model_load_fake(&d->app.model, &mp, &err), &err);
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.n_ctx = 1024;
    check(kv_engine_new(&d->engine, d->app.model, &p, &err), &err);
    d->io = kv_io_new_inline(0);
    const kv_cache_config cfg = {.engine = kv_engine_get_info(d->engine),
                                 .block = 256,
                                 .queue_bytes = 1 << 20,
                                 .ram_bytes = 1 << 20,
                                 .io = d->io,
                                 .clock = kv_clock_real()};
    check(kv_cache_new(&d->app.cache, &cfg, &err), &err);
    d->app.opt = &d->opt;
    d->app.sampling_defaults = d->opt.sampling;
    d->app.n_ctx_served = 1 << 20;
    d->app.ledger = kv_ledger_new();
    kv_turns_learn(&d->app.turns, d->app.model);
    real_ops = d->app.model->ops;
    d->ops = *real_ops;
    d->ops.piece = count_piece;
    d->ops.tokenize = count_tokenize;
    d->app.model->ops = &d->ops;
    n_pieces = n_tokenized = 0;
}

static void desk_close(desk *d) {
    kv_cache_free(d->app.cache);
    kv_io_free(d->io);
    kv_engine_free(d->engine);
    kv_turns_free(&d->app.turns);
    kv_ledger_free(d->app.ledger);
    d->app.model->ops = real_ops;
    kv_model_free(d->app.model);
    kv_options_free(&d->opt);
}

static void add_message(json_t *messages, const char *role, int number, int n_words) {
    kv_buf text = {0};
    kv_buf_addf(&text, "Message %d:", number);
    for (int i = 0; i < n_words; i++) kv_buf_addf(&text, " word%d", (number * 31 + i * 17) % 1000);
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", kv_buf_str(&text)));
    kv_buf_free(&text);
}

static json_t *conversation(int n_messages, int n_words) {
    json_t *messages = json_array();
    add_message(messages, "system", 0, n_words);
    for (int i = 1; i < n_messages; i++) add_message(messages, i % 2 ? "user" : "assistant", i, n_words);
    return json_pack("{s:o}", "messages", messages);
}

/* The hints are the beginnings of the messages behind the first, then the generation prompt's. */
static void check_hints(const kv_job *j, const kv_model *m, int n_messages) {
    assert_int_equal(j->n_hints, n_messages);
    for (int i = 0; i < j->n_hints; i++) {
        const kv_hint *h = &j->hints[i];
        bool last = i == n_messages - 1;
        kv_buf text = {0}, want = {0};
        kv_prompt_spell(&text, m, j->prompts.list[0].data + h->position, j->prompts.list[0].len - (size_t)h->position,
                        true);
        kv_buf_addf(&want, "<|im_start|>%s\nMessage %d:", i % 2 ? "assistant" : "user", i + 1);
        if (last) want.len = strlen("<|im_start|>assistant\n");
        if (text.len < want.len || memcmp(text.data, want.data, want.len) != 0)
            fail_msg("hint %d, token %d: %.60s", i, (int)h->position, kv_buf_str(&text));
        assert_int_equal(h->kind, i == 0                ? KV_PLACE_SYSTEM_END
                                  : last                ? KV_PLACE_GENERATION
                                  : i == n_messages - 2 ? KV_PLACE_LAST_MESSAGE
                                                        : KV_PLACE_MESSAGE);
        kv_buf_free(&text);
        kv_buf_free(&want);
    }
}

static kv_job *ask(desk *d, json_t *body) {
    kv_error err = {0};
    kv_job *j;
    check(kv_chat_job_new(&j, &nothing, body, NULL, &d->app, &err), &err);
    json_decref(body);
    return j;
}

static void test_each_message(void **state) {
    (void)state;
    static const char *const vocabularies[] = {NULL, SMOL};
    for (int v = 0; v < 2; v++)
        for (int n = 4; n <= 12; n += 4) {
            desk d;
            desk_open(&d, vocabularies[v] ? fixture(vocabularies[v]) : NULL);
            kv_job *j = ask(&d, conversation(n, 7));
            check_hints(j, d.app.model, n);
            kv_job_free(j);
            desk_close(&d);
        }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Work is counted: one pass over the text's tokens, and no text is tokenised but the prompt's. The time is only told. */
static void test_long_chat(void **state) {
    (void)state;
    desk d;
    desk_open(&d, fixture(SMOL));
    kv_job *j = ask(&d, conversation(LONG, 90));
    size_t n_text, n_tokens = j->prompts.list[0].len;
    const char *text = kv_chat_prompt_text(j->chat, &n_text);
    assert_int_equal(n_tokenized, n_text);
    check_hints(j, d.app.model, LONG);
    n_pieces = 0;
    j->n_hints = 0;
    double t0 = seconds();
    kv_places_add_turns(j);
    double t1 = seconds();
    assert_true(n_pieces <= n_tokens);
    assert_int_equal(n_tokenized, n_text);
    kv_prompts again = {0};
    assert_int_equal(kv_prompts_from_text(&again, d.app.model, text, n_text, NULL), KV_OK);
    double t2 = seconds();
    kv_prompts_free(&again);
    print_message("%d messages, %zu tokens: places in %.1f ms, %.1f %% of the %.1f ms of tokenising\n", LONG, n_tokens,
                  (t1 - t0) * 1e3, (t1 - t0) / (t2 - t1) * 100, (t2 - t1) * 1e3);
    assert_true(n_tokens > 90000);
    check_hints(j, d.app.model, LONG);
    kv_job_free(j);
    desk_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_message),
        cmocka_unit_test(test_long_chat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
