/* Where a prompt came from, in each place that tells it; scopes; the admin's paths, without a cache behind them. The
 * cache itself answers in tests/http-node/why.test.mjs. */
#include "api/rig.h"

#include "api/account.h"
#include "api/scope.h"

#define COMPLETIONS "/v1/completions"

static rig r;

/* ── accounts ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_tokens tokens_of(const char *text) {
    kv_tokens t = {0};
    assert_int_equal(kv_model_tokenize(&t, r.app.model, text, strlen(text), false, true, NULL), KV_OK);
    return t;
}

static const kv_dialect dialect = {.id_prefix = "x-"};

/* Two prompts with two choices each, as if they had run. */
static kv_job *job_of(const char *first, const char *second) {
    kv_job *j = kv_job_new(&r.app, &dialect);
    j->params.cache_prompt = true;
    j->params.n = 2;
    j->prompts = (kv_prompts){.list = kv_alloc(2 * sizeof(kv_tokens)), .n = 2};
    j->prompts.list[0] = tokens_of(first);
    j->prompts.list[1] = tokens_of(second);
    j->n_choices = 4;
    j->choice = kv_alloc(4 * sizeof *j->choice);
    for (int i = 0; i < 4; i++) j->choice[i] = (kv_choice){.index = i, .prompt = i / 2, .done = true};
    snprintf(j->request_id, sizeof j->request_id, "req_of_the_test");
    return j;
}

static void test_account(void **state) {
    (void)state;
    kv_job *j = job_of("abcdefgh", "one two three");
    kv_account a;
    assert_false(kv_account_of_prompt(&a, j, 0)); /* nothing ran yet */
    j->choice[0].timings = (kv_timings){.n_cached = 7, .n_prompt = 1, .n_cached_ram = 2, .n_cached_disk = 4};
    j->choice[2].timings = (kv_timings){.n_cached = 2,
                                        .n_prompt = 5,
                                        .n_cached_ram = 2,
                                        .restore_ms = 1.5,
                                        .prompt_ms = 20,
                                        .miss = KV_MISS_DIVERGED,
                                        .miss_position = 4};
    /* the others took over from the first choice of their prompt */
    j->choice[1].timings = j->choice[3].timings = (kv_timings){.n_cached = 7};
    assert_true(kv_account_of_prompt(&a, j, 0));
    assert_int_equal(a.engine, 1);
    assert_int_equal(a.ram, 2);
    assert_int_equal(a.disk, 4);
    assert_int_equal(a.miss, KV_MISS_NONE);
    a = kv_account_of_job(j);
    assert_int_equal(a.engine, 1);
    assert_int_equal(a.ram, 4);
    assert_int_equal(a.computed, 6);
    assert_int_equal(a.prompt, 1); /* the one that missed */
    kv_buf text = {0};
    kv_account_header(&text, &a);
    assert_string_equal(text.data, "engine=1, ram=4, disk=4, computed=6; miss=diverged@4");
    kv_buf_free(&text);

    json_t *o = json_object();
    kv_account_tell(o, j, &a);
    assert_int_equal(int_at(o, "kvasir.cached.engine"), 1);
    assert_int_equal(int_at(o, "kvasir.cached.ram"), 4);
    assert_int_equal(int_at(o, "kvasir.cached.disk"), 4);
    assert_int_equal(int_at(o, "kvasir.computed"), 6);
    assert_true(json_real_value(at(o, "kvasir.restore_ms")) == 1.5);
    assert_true(json_real_value(at(o, "kvasir.prefill_ms")) == 20);
    assert_string_equal(str_at(o, "kvasir.miss.reason"), "diverged");
    assert_int_equal(int_at(o, "kvasir.miss.position"), 4);
    assert_string_equal(str_at(o, "kvasir.miss.explanation"), kv_miss_text(KV_MISS_DIVERGED));
    kv_tokens rest = {.data = j->prompts.list[1].data + 4, .len = j->prompts.list[1].len - 4};
    kv_prompt_spell(&text, r.app.model, rest.data, rest.len, true);
    assert_string_equal(str_at(o, "kvasir.miss.text"), text.data);
    kv_buf_free(&text);
    json_decref(o);

    /* in the ledger: one entry a prompt, once */
    kv_ledger_totals before, after;
    kv_ledger_miss m;
    kv_ledger_get(&before, r.app.ledger);
    kv_account_record(j);
    kv_account_record(j);
    kv_ledger_get(&after, r.app.ledger);
    assert_int_equal(after.ram - before.ram, 4);
    assert_int_equal(after.computed - before.computed, 6);
    assert_int_equal(after.n_miss[KV_MISS_DIVERGED] - before.n_miss[KV_MISS_DIVERGED], 1);
    assert_int_equal(after.restore.n - before.restore.n, 2);
    assert_int_equal(after.first_token.n - before.first_token.n, 0); /* there was none */
    assert_true(kv_ledger_find(&m, r.app.ledger, "req_of_the_test"));
    assert_int_equal(m.account.position, 4);
    free(m.text);
    free(m.hint);
    kv_job_free(j);
}

static void test_disabled_and_plain(void **state) {
    (void)state;
    kv_job *j = job_of("a", "b");
    kv_account a;
    j->params.cache_prompt = false;
    j->choice[0].timings = (kv_timings){.n_prompt = 1};
    assert_true(kv_account_of_prompt(&a, j, 0));
    assert_int_equal(a.miss, KV_MISS_DISABLED);
    json_t *o = json_object();
    kv_account_tell(o, j, &a);
    assert_string_equal(str_at(o, "kvasir.miss.reason"), "disabled");
    json_object_clear(o);
    r.opt.plain_json = true;
    kv_account_tell(o, j, &a);
    assert_int_equal(json_object_size(o), 0);
    r.opt.plain_json = false;
    json_decref(o);
    kv_job_free(j);
}

/* The text at any position is the prompt's, whole characters only, and absent past the end. */
static void test_text(void **state) {
    (void)state;
    static const char prompt[] =
        "aé€😀 <|im_start|>ü and much more of it than thirty-two tokens will ever cover, so that "
        "it must end somewhere in the middle of this sentence, with €€€€€€€€€€€€€€€€€€ in it";
    kv_tokens t = tokens_of(prompt);
    for (int32_t p = 0; p <= (int32_t)t.len + 1; p++) {
        kv_buf text = {0};
        bool found = kv_account_text(&text, r.app.model, &t, p);
        assert_int_equal(found, p < (int32_t)t.len);
        assert_true(kv_utf8_valid(kv_buf_str(&text), text.len));
        assert_null(strstr(kv_buf_str(&text), "\xef\xbf\xbd"));
        assert_non_null(strstr(prompt, kv_buf_str(&text)));
        if (found && p + 4 < (int32_t)t.len) assert_true(text.len > 0);
        kv_buf_free(&text);
    }
    kv_buf text = {0};
    assert_false(kv_account_text(&text, r.app.model, &t, -1));
    kv_tokens_free(&t);
}

static void test_reasons(void **state) {
    (void)state;
    assert_string_equal(kv_account_reason(KV_MISS_NONE), "none");
    assert_string_equal(kv_account_reason(KV_MISS_NO_CHECKPOINT), "no_checkpoint");
    assert_string_equal(kv_account_reason(KV_MISS_OTHER_NAMESPACE), "other_namespace");
    assert_string_equal(kv_account_reason(KV_MISS_COUNT), "unknown");
}

/* ── the ledger ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void test_ledger(void **state) {
    (void)state;
    kv_ledger *l = kv_ledger_new();
    kv_ledger_miss m;
    assert_false(kv_ledger_find(&m, l, NULL));
    kv_account hit = {.engine = 5, .computed = 1};
    kv_ledger_add(l, "hit", "", &hit, NULL, NULL);
    assert_false(kv_ledger_find(&m, l, NULL)); /* only misses are kept */
    for (int i = 0; i < KV_LEDGER_MISSES + 30; i++) {
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        kv_account a = {.computed = i, .miss = KV_MISS_EMPTY, .position = i};
        kv_ledger_add(l, id, i % 4 == 1 ? "team" : NULL, &a, i % 2 ? "text" : NULL, i % 2 ? "hint" : NULL);
    }
    assert_false(kv_ledger_find(&m, l, "r29"));
    assert_true(kv_ledger_find(&m, l, "r30"));
    assert_int_equal(m.account.position, 30);
    assert_null(m.text);
    assert_true(kv_ledger_find(&m, l, NULL));
    assert_string_equal(m.id, "r129");
    assert_string_equal(m.text, "text");
    assert_string_equal(m.hint, "hint");
    free(m.text);
    free(m.hint);

    char huge[4 * KV_LEDGER_TEXT_MAX + 2] = "a"; /* € is three bytes, and the limit falls into one */
    for (size_t i = 0; i < KV_LEDGER_TEXT_MAX; i++) strcpy(huge + 1 + 3 * i, "€");
    kv_account a = {.miss = KV_MISS_DIVERGED};
    kv_ledger_add(l, "r129", "team", &a, huge, huge);
    assert_true(kv_ledger_find(&m, l, "r129")); /* the newest of the name */
    assert_int_equal(m.account.miss, KV_MISS_DIVERGED);
    assert_true(strlen(m.text) > KV_LEDGER_TEXT_MAX - 3 && strlen(m.text) <= KV_LEDGER_TEXT_MAX);
    assert_true(kv_utf8_valid(m.text, strlen(m.text)));
    assert_string_equal(m.hint, m.text);
    free(m.text);
    free(m.hint);

    kv_ledger_forget_texts(l, ""); /* the default scope's only */
    assert_true(kv_ledger_find(&m, l, "r127"));
    assert_int_equal(m.account.position, 127); /* the numbers stay */
    assert_null(m.text);
    assert_null(m.hint);
    assert_true(kv_ledger_find(&m, l, "r125"));
    assert_string_equal(m.text, "text");
    free(m.text);
    free(m.hint);
    kv_ledger_forget_texts(l, NULL);
    assert_true(kv_ledger_find(&m, l, "r129"));
    assert_null(m.text);
    assert_null(m.hint);
    kv_ledger_forget_texts(NULL, NULL);

    kv_ledger_totals t;
    kv_ledger_first_token(l, 5);       /* ms: below the first bound */
    kv_ledger_first_token(l, 1000000); /* above the last */
    kv_ledger_get(&t, l);
    assert_int_equal(t.first_token.count[0], 1);
    assert_int_equal(t.first_token.count[KV_HISTOGRAM_BOUNDS], 1);
    assert_int_equal(t.first_token.n, 2);
    assert_int_equal(t.engine, 5);
    assert_int_equal(t.n_miss[KV_MISS_EMPTY], KV_LEDGER_MISSES + 30);
    assert_int_equal(t.restore.n, 0);
    assert_int_equal(t.n_canonicalised[KV_RULE_BILLING_HEADER], 0);
    kv_ledger_canonicalised(l, 1u << KV_RULE_BILLING_HEADER);
    kv_ledger_canonicalised(l, KV_RULES_ALL);
    kv_ledger_canonicalised(NULL, KV_RULES_ALL);
    kv_ledger_get(&t, l);
    assert_int_equal(t.n_canonicalised[KV_RULE_BILLING_HEADER], 2);
    assert_int_equal(t.n_canonicalised[KV_RULE_TOOL_CALLS], 1);
    kv_ledger_free(l);
}

/* ── scopes ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* No two ways to ask give one scope, but for those that say the same. */
static void test_scope_join(void **state) {
    (void)state;
    static const char *const keys[] = {NULL, "a", "ab", "0", "3"};
    static const char *const parts[] = {NULL, "a", "b", "ab", ":", "0:", "1:a", "1:a1:b", "3:abc", "a0:"};
    enum { K = sizeof keys / sizeof *keys, P = sizeof parts / sizeof *parts, N = K * P * P };
    char *all[N];
    int n = 0;
    for (int k = 0; k < K; k++)
        for (int h = 0; h < P; h++)
            for (int s = 0; s < P; s++) all[n++] = kv_scope_join(keys[k], parts[h], parts[s]);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) assert_string_not_equal(all[i], all[k]);
    assert_string_equal(all[0], "");
    assert_string_equal(all[P * P], "a");
    for (int i = 0; i < n; i++) free(all[i]);
    char *empty = kv_scope_join("", "", "");
    assert_string_equal(empty, "");
    free(empty);
}

/* POST with further header lines; the answer's status. */
static int post(answer *a, const char *path, const char *headers, const char *body) {
    kv_buf line = {0}, rest = {0};
    char *text = json_text(body);
    kv_buf_addf(&line, "POST %s", path);
    kv_buf_addf(&rest, "Host: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", headers, strlen(text), text);
    int status = ask(a, kv_http_port(r.http), line.data, rest.data);
    kv_buf_free(&line);
    kv_buf_free(&rest);
    free(text);
    return status;
}

static void test_scope_input(void **state) {
    (void)state;
    char longest[160] = "X-Kvasir-Scope: ", salt[400], body[600];
    answer a = {0};
    memset(longest + 16, 's', 128);
    strcpy(longest + 16 + 128, "\r\n");
    assert_int_equal(post(&a, COMPLETIONS, longest, "{'prompt':'a','max_tokens':1}"), 200);
    strcpy(longest + 16 + 128, "s\r\n");
    const char *bad[] = {longest, "X-Kvasir-Scope: caf\xc3\xa9\r\n", "X-Kvasir-Scope: a\tb\r\n",
                         "X-Kvasir-Scope: canary\r\nx-kvasir-scope: b\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        free_answer(&a);
        assert_int_equal(post(&a, COMPLETIONS, bad[i], "{'prompt':'a','max_tokens':1}"), 400);
        assert_non_null(strstr(error_of(&a, 400, "invalid_request_error"), "X-Kvasir-Scope"));
        assert_null(strstr(kv_buf_str(&a.body), "canary"));
    }
    memset(salt, 's', 257);
    salt[256] = '\0';
    snprintf(body, sizeof body, "{'prompt':'a','max_tokens':1,'cache_salt':'%s'}", salt);
    free_answer(&a);
    assert_int_equal(post(&a, COMPLETIONS, "", body), 200);
    salt[256] = 's', salt[257] = '\0';
    snprintf(body, sizeof body, "{'prompt':'a','max_tokens':1,'cache_salt':'%s'}", salt);
    const char *salts[] = {body, "{'prompt':'a','cache_salt':7}", "{'prompt':'a','cache_salt':'a\\u0000b'}"};
    for (size_t i = 0; i < sizeof salts / sizeof *salts; i++) {
        free_answer(&a);
        assert_int_equal(post(&a, COMPLETIONS, "", salts[i]), 400);
        assert_non_null(strstr(error_of(&a, 400, "invalid_request_error"), "'cache_salt'"));
    }
    free_answer(&a);
}

static void test_kvasir_field(void **state) {
    (void)state;
    static const char *const bad[] = {"1", "'x'", "[]", "true", "{'store':1}", "{'store':'no'}"};
    for (int test_sampler = 0; test_sampler < 2; test_sampler++) {
        r.opt.test_sampler = test_sampler;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            char body[100];
            answer a = {0};
            snprintf(body, sizeof body, "{'prompt':'a','kvasir':%s}", bad[i]);
            assert_int_equal(post(&a, COMPLETIONS, "", body), 400);
            assert_non_null(strstr(error_of(&a, 400, "invalid_request_error"), "'kvasir"));
            free_answer(&a);
        }
    }
    r.opt.test_sampler = true;
    static const struct {
        const char *body;
        bool cache_prompt;
    } want[] = {{"{}", true},
                {"{'kvasir':{}}", true},
                {"{'kvasir':null}", true},
                {"{'kvasir':{'store':true}}", true},
                {"{'kvasir':{'store':null}}", true},
                {"{'kvasir':{'store':false}}", false},
                {"{'cache_prompt':false}", false},
                {"{'cache_prompt':true,'kvasir':{'store':false}}", false},
                {"{'cache_prompt':false,'kvasir':{'store':true}}", false}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        json_t *body = json_of(want[i].body);
        kv_params p;
        assert_int_equal(kv_params_parse(&p, body, KV_API_CHAT, &r.app, NULL), KV_OK);
        assert_int_equal(p.cache_prompt, want[i].cache_prompt);
        kv_params_free(&p);
        json_decref(body);
    }
}

/* ── responses ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void assert_account(const json_t *v) {
    assert_true(json_is_object(at(v, "kvasir.cached")));
    assert_true(int_at(v, "kvasir.computed") >= 1);
    assert_true(json_is_number(at(v, "kvasir.restore_ms")));
    assert_true(json_is_number(at(v, "kvasir.prefill_ms")));
    assert_non_null(at(v, "kvasir.miss"));
}

static void test_responses(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *finish; /* where a stream's last chunk has its finish reason */
    } calls[] = {
        {"/v1/chat/completions", "'messages':[{'role':'user','content':'hi'}],'max_tokens':2",
         "choices.0.finish_reason"},
        {COMPLETIONS, "'prompt':'hi','max_tokens':2", "choices.0.finish_reason"},
        {"/completion", "'prompt':'hi','n_predict':2", "stop_type"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char body[200];
        answer a = {0};
        snprintf(body, sizeof body, "{%s}", calls[i].body);
        json_t *v = rig_json(&r, calls[i].path, body);
        assert_account(v);
        json_decref(v);
        assert_int_equal(rig_ask(&a, &r, calls[i].path, body), 200);
        const char *header = header_of(&a, "X-Kvasir-Cache");
        assert_non_null(header);
        assert_memory_equal(header, "engine=", 7);
        free_answer(&a);

        snprintf(body, sizeof body, "{%s,'stream':true,'stream_options':{'include_usage':true}}", calls[i].body);
        v = rig_stream(&r, calls[i].path, body);
        int told = 0;
        for (size_t k = 0; k < json_array_size(v); k++) {
            const json_t *event = json_array_get(v, k);
            if (!json_is_object(event)) continue;
            bool last = json_is_string(at(event, calls[i].finish));
            assert_int_equal(at(event, "kvasir") != NULL, last);
            if (last) assert_account(event);
            told += last;
        }
        assert_int_equal(told, 1);
        json_decref(v);

        r.opt.plain_json = true;
        snprintf(body, sizeof body, "{%s}", calls[i].body);
        v = rig_json(&r, calls[i].path, body);
        assert_null(at(v, "kvasir"));
        json_decref(v);
        r.opt.plain_json = false;
    }
}

/* ── the admin's paths ─────────────────────────────────────────────────────────────────────────────────────────── */

static void test_admin(void **state) {
    (void)state;
    answer a = {0};
    json_t *v = rig_json(&r, "/kvasir/cache", NULL);
    assert_true(json_is_false(at(v, "enabled")));
    json_decref(v);

    kv_account miss = {.ram = 3, .computed = 7, .miss = KV_MISS_NOT_STORED, .position = 3};
    kv_ledger_add(r.app.ledger, "one", NULL, &miss, "text \x1b of one", "hint \x1b of one");
    kv_ledger_add(r.app.ledger, "two", NULL, &miss, NULL, NULL);
    static const char *const paths[] = {"/kvasir/why", "/kvasir/why?id=last", "/kvasir/why?id=two",
                                        "/kvasir/why?id=one"};
    for (int i = 0; i < 4; i++) {
        v = rig_json(&r, paths[i], NULL);
        assert_string_equal(str_at(v, "id"), i == 3 ? "one" : "two");
        assert_string_equal(str_at(v, "reason"), "not_stored");
        assert_int_equal(int_at(v, "prompt_tokens"), 10);
        assert_int_equal(int_at(v, "cached.ram"), 3);
        assert_string_equal(str_at(v, "text"), i == 3 ? "text \x1b of one" : "(none)");
        assert_string_equal(str_at(v, "hint"), i == 3 ? "hint \x1b of one" : "(none)");
        json_decref(v);
    }
    assert_int_equal(rig_ask(&a, &r, "/kvasir/why?id=three", NULL), 404);
    free_answer(&a);

    v = rig_json(&r, "/kvasir/explain", "{'prompt':[1,2,3]}");
    assert_int_equal(int_at(v, "prompt_tokens"), 3);
    assert_int_equal(int_at(v, "resumable"), 0);
    assert_string_equal(str_at(v, "miss.reason"), "disabled");
    json_decref(v);
    v = rig_json(&r, "/kvasir/explain", "{'messages':[{'role':'user','content':'hi'}]}");
    assert_true(int_at(v, "prompt_tokens") > 2);
    json_decref(v);
    static const char *const bad[] = {
        "{}", "[]", "{'prompt':['a','b']}", "{'prompt':[]}", "{'messages':7}", "{'prompt':'a','cache_salt':1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (rig_ask(&a, &r, "/kvasir/explain", bad[i]) != 400) fail_msg("%s: %d", bad[i], a.status);
        free_answer(&a);
    }
    /* a proxy on this machine asks for somebody else */
    static const char *const all[] = {"GET /kvasir/cache", "GET /kvasir/why", "POST /kvasir/explain"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(ask(&a, kv_http_port(r.http), all[i],
                             "Host: localhost\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 0\r\n\r\n"),
                         403);
        free_answer(&a);
    }
}

static int open_rig(void **state) {
    (void)state;
    rig_open(&r);
    r.opt.test_sampler = true;
    rig_serve(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    rig_close(&r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account),     cmocka_unit_test(test_disabled_and_plain),
        cmocka_unit_test(test_text),        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_ledger),      cmocka_unit_test(test_scope_join),
        cmocka_unit_test(test_scope_input), cmocka_unit_test(test_kvasir_field),
        cmocka_unit_test(test_responses),   cmocka_unit_test(test_admin),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
