/* options/: every source, its order, every kind of value, and what is told when something is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "options/table.h"

#define MAX_ARGS 24

typedef struct parsed {
    kv_options o;
    kv_buf warnings;
    kv_error err;
    kv_status status;
} parsed;

/* Parses "a b c": words split at blanks. env: NULL-terminated, may be NULL. */
static parsed parse(const char *line, char *const *env) {
    char copy[1024], *argv[MAX_ARGS] = {"kvasir"};
    int argc = 1;
    parsed p = {0};
    assert_true(strlen(line) < sizeof copy);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        assert_true(argc < MAX_ARGS);
        argv[argc++] = word;
    }
    kv_options_defaults(&p.o);
    p.status = kv_options_parse(&p.o, argc, argv, env, &p.warnings, &p.err);
    return p;
}

static void done(parsed *p) {
    kv_options_free(&p->o);
    kv_buf_free(&p->warnings);
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* A temporary file with this text; the caller unlinks it. */
static void write_file(char path[64], const char *text) {
    strcpy(path, "/tmp/kvasir-options-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* ── the tables themselves ── */

static bool seen_before(const char *name, size_t n, int until_opt, int until_foreign) {
    for (int i = 0; i < until_opt; i++) {
        if (kv_opt_list_has(kv_opt_table[i].names, name, n) || kv_opt_list_has(kv_opt_table[i].neg, name, n))
            return true;
    }
    for (int i = 0; i < until_foreign; i++) {
        if (kv_opt_list_has(kv_foreign_table[i].names, name, n)) return true;
    }
    return false;
}

static void test_tables_are_sound(void **state) {
    (void)state;
    size_t n;
    const char *item;
    char name[64];
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        for (int k = 0; (item = kv_opt_list_item(opt->names, k, &n)); k++) assert_false(seen_before(item, n, i, 0));
        for (int k = 0; (item = kv_opt_list_item(opt->neg, k, &n)); k++) assert_false(seen_before(item, n, i, 0));
        assert_true(kv_opt_name(opt->names, name, sizeof name)[0] != 0);
        assert_true(opt->help && opt->help[0]);
        assert_true(!opt->neg || opt->kind == OPT_BOOL || opt->kind == OPT_TRI);
        assert_true(opt->min <= opt->max);
        for (int j = 0; j < i && opt->env; j++)
            assert_true(!kv_opt_table[j].env || strcmp(opt->env, kv_opt_table[j].env));
    }
    for (int i = 0; i < kv_foreign_count; i++) {
        for (int k = 0; (item = kv_opt_list_item(kv_foreign_table[i].names, k, &n)); k++)
            assert_false(seen_before(item, n, kv_opt_count, i));
        assert_true(kv_foreign_table[i].refused || kv_foreign_table[i].what != NULL);
    }
}

/* Every default must be a value that the option itself takes. */
static void test_defaults_are_allowed(void **state) {
    (void)state;
    kv_options a, b;
    kv_error err = {0};
    kv_options_defaults(&a);
    kv_options_defaults(&b);
    for (int i = 0; i < kv_opt_count; i++) {
        const kv_opt *opt = &kv_opt_table[i];
        if (opt->kind == OPT_PRESET || opt->kind == OPT_LOAD) continue;
        kv_buf text = {0};
        kv_opt_format(&text, &a, opt);
        if (text.len > 0 && kv_opt_set(&b, opt, "x", text.data, true, &err) != KV_OK) fail_msg("%s", err.message);
        if (!kv_opt_equal(&a, &b, opt)) fail_msg("%s changes", opt->names);
        kv_buf_free(&text);
    }
    kv_options_free(&a);
    kv_options_free(&b);
}

/* ── values ── */

static void test_kinds(void **state) {
    (void)state;
    parsed p = parse("-m a.gguf -c 4096 -np 3 -fa --temp 0.25 --seed 7 -ngl all --no-mmap --cors_origins=* -ctk q8_0 "
                     "--top-k=5 -kvu --stop-timeout 1.5",
                     NULL);
    assert_int_equal(p.status, KV_OK);
    assert_string_equal(p.o.model, "a.gguf");
    assert_int_equal(p.o.n_ctx, 4096);
    assert_int_equal(p.o.n_parallel, 3);
    assert_true(p.o.n_parallel_set);
    assert_int_equal(p.o.flash_attn, KV_FA_ON);
    assert_true(p.o.sampling.temperature == 0.25f);
    assert_int_equal(p.o.sampling.seed, 7);
    assert_int_equal(p.o.n_gpu_layers, KV_NGL_ALL);
    assert_false(p.o.mmap);
    assert_string_equal(p.o.cors_origins, "*");
    assert_string_equal(p.o.type_k, "q8_0");
    assert_int_equal(p.o.sampling.top_k, 5);
    assert_int_equal(p.o.kv_unified, 1);
    assert_true(p.o.stop_timeout == 1.5);
    assert_int_equal(p.warnings.len, 0);
    done(&p);
}

static void test_rules(void **state) {
    (void)state;
    static const struct {
        const char *line, *first;
        int n;
        kv_status checked;
    } cases[] = {{"-m x", "all", 1, KV_OK},
                 {"-m x --canonicalise none", "none", 1, KV_OK},
                 {"-m x --canonicalize tool-calls,billing-header", "tool-calls", 2, KV_OK},
                 {"-m x --canonicalise tool-calls,none", "tool-calls", 2, KV_INVALID}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p = parse(cases[i].line, NULL);
        assert_int_equal(p.status, KV_OK);
        assert_int_equal(p.o.canonicalise.n, cases[i].n);
        assert_string_equal(p.o.canonicalise.item[0], cases[i].first);
        assert_int_equal(kv_options_check(&p.o, NULL), cases[i].checked);
        done(&p);
    }
}

static void test_defaults(void **state) {
    (void)state;
    parsed p = parse("", NULL);
    assert_int_equal(p.status, KV_OK);
    assert_int_equal(p.o.n_ctx, 0);
    assert_false(p.o.n_parallel_set);
    assert_int_equal(p.o.flash_attn, KV_FA_AUTO);
    assert_string_equal(p.o.host.item[0], "127.0.0.1");
    assert_int_equal(p.o.port, 8080);
    assert_int_equal(p.o.sse_ping_interval, 15);
    assert_true(p.o.stop_timeout == 8);
    assert_int_equal(p.o.max_stall_ms, 250);
    assert_int_equal(p.o.sampling.seed, KV_SEED_RANDOM);
    assert_true(p.o.mmap && p.o.warmup && p.o.cache_prompt && p.o.jinja);
    done(&p);
}

static void test_flash_attention_spellings(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int want;
    } cases[] = {
        {"-fa", 1},        {"-fa on", 1},          {"-fa off", 0},     {"-fa auto", -1},    {"-fa 0", 0},
        {"-fa 1", 1},      {"-fa -1", -1},         {"-fa enabled", 1}, {"-fa disabled", 0}, {"--flash-attn=off", 0},
        {"-fa -c 512", 1}, {"-fa true -c 512", 1}, {"-fa FALSE", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p = parse(cases[i].line, NULL);
        if (p.status != KV_OK || (int)p.o.flash_attn != cases[i].want) fail_msg("%s: %s", cases[i].line, p.err.message);
        done(&p);
    }
}

static void test_bad_values(void **state) {
    (void)state;
    static const struct {
        const char *line, *told, *also;
    } cases[] = {
        {"-c abc", "-c: got \"abc\"", "a whole number from 0 to 16777216"},
        {"-c 4096x", "got \"4096x\"", "whole number"},
        {"-c -1", "got \"-1\"", "from 0"},
        {"-c 99999999999999999999", "got", "whole number"},
        {"-c 1e3", "got \"1e3\"", "whole number"},
        {"-c", "a value is missing", "whole number"},
        {"-c --port 80", "a value is missing before --port", "whole number"},
        {"--temp nan", "got \"nan\"", "a number from 0"},
        {"--temp inf", "got \"inf\"", "a number from 0"},
        {"--temp 0x10", "got \"0x10\"", "a number from 0"},
        {"--temp 1,5", "got \"1,5\"", "a number from 0"},
        {"--top-p 1.5", "got \"1.5\"", "from 0 to 1"},
        {"--port 65536", "got \"65536\"", "from 0 to 65535"},
        {"-np 0", "got \"0\"", "auto or a whole number from 1 to 255"},
        {"-ngl some", "got \"some\"", "auto, all or a whole number"},
        {"-ctk q3", "got \"q3\"", "one of f32, f16"},
        {"-ctk f32,f16", "got \"f32,f16\"", "one of"},
        {"--mirostat 3", "got \"3\"", "from 0 to 2"},
        {"--canonicalise tool-calls,dates", "got \"dates\"", "one or more, with commas between, of all, none,"},
        {"--reasoning maybe", "got \"maybe\"", "on, off or auto"},
        {"--mmap=perhaps", "got \"perhaps\"", "on or off"},
        {"--test-fake cube", "got \"cube\"", "one of full, window"},
        {"-l 12", "got \"12\"", "a token id, a sign and a number"},
        {"-l 12+-3", "got \"12+-3\"", "a token id"},
        {"--seed -2", "got \"-2\"", "random or a whole number"},
        {"-v=1", "-v=1 is not an option", ""},
        {"--verbose=1", "--verbose: takes no value", ""},
        {"--chat-template-kwargs [1]", "takes a JSON object", ""},
        {"--chat-template-kwargs {", "takes a JSON object", ""},
        {"model.gguf", "\"model.gguf\" is not an option", "begin with '-'"},
        {"--api-key \"a", "--api-key: a quote is not closed", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p = parse(cases[i].line, NULL);
        if (p.status != KV_INVALID) fail_msg("%s: status %s", cases[i].line, kv_status_name(p.status));
        assert_has(p.err.message, cases[i].told);
        assert_has(p.err.message, cases[i].also);
        done(&p);
    }
}

static void test_secrets_are_not_told(void **state) {
    (void)state;
    parsed p = parse("--api-key sesame,open", NULL);
    assert_int_equal(p.o.api_key.n, 2);
    assert_string_equal(p.o.api_key.item[1], "open");
    kv_buf out = {0};
    kv_options_print(&out, &p.o);
    assert_null(strstr(out.data, "sesame"));
    assert_has(out.data, "# api-key is set, and not printed");
    kv_buf_free(&out);
    done(&p);
}

static void test_unknown_options_are_answered_with_the_nearest(void **state) {
    (void)state;
    static const struct {
        const char *line, *near;
    } cases[] = {{"--ctx-siz 1", "--ctx-size"}, {"--ctx 1", "--ctx-size"},     {"--modle x", "--model"},
                 {"-ctkk f16", "-ctk"},         {"--paralel 1", "--parallel"}, {"--flash-atn", "--flash-attn"},
                 {"--no-mmapp", "--no-mmap"},   {"--mmprojj x", "--mmproj"},   {"-port 1", "--port"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[64];
        parsed p = parse(cases[i].line, NULL);
        assert_int_equal(p.status, KV_INVALID);
        snprintf(want, sizeof want, "did you mean %s?", cases[i].near);
        assert_has(p.err.message, want);
        done(&p);
    }
    parsed p = parse("--xyzzy-quux", NULL);
    assert_int_equal(p.status, KV_INVALID);
    assert_null(strstr(p.err.message, "did you mean"));
    assert_has(p.err.message, "`kvasir help`");
    done(&p);
}

static void test_lists(void **state) {
    (void)state;
    parsed p =
        parse("--override-kv a=int:1,\"b=str:x,y\" --override-kv c=bool:true --dry-sequence-breaker a,b -l 5+1.5,7-inf "
              "--samplers top_k;temperature",
              NULL);
    assert_int_equal(p.status, KV_OK);
    assert_int_equal(p.o.override_kv.n, 3);
    assert_string_equal(p.o.override_kv.item[1], "b=str:x,y");
    assert_int_equal(p.o.dry_breaker.n, 1);
    assert_string_equal(p.o.sampling.dry_breakers[0], "a,b");
    assert_int_equal(p.o.sampling.n_logit_bias, 2);
    assert_int_equal(p.o.sampling.logit_bias[0].token, 5);
    assert_true(p.o.sampling.logit_bias[0].bias == 1.5f);
    assert_true(p.o.sampling.logit_bias[1].bias < -1e30f);
    assert_int_equal(p.o.sampling.n_samplers, 2);
    assert_string_equal(p.o.sampling.samplers[1], "temperature");
    done(&p);

    p = parse("--dry-sequence-breaker none", NULL);
    assert_non_null(p.o.sampling.dry_breakers);
    assert_int_equal(p.o.sampling.n_dry_breakers, 0);
    done(&p);

    char line[512] = "--allowed-host x0";
    for (int i = 1; i <= KV_OPTIONS_MAX_LIST; i++) snprintf(line + strlen(line), sizeof line - strlen(line), ",x%d", i);
    p = parse(line, NULL);
    assert_int_equal(p.status, KV_INVALID);
    assert_has(p.err.message, "more than 32 values");
    done(&p);
}

static void test_combined_options(void **state) {
    (void)state;
    parsed p = parse(
        "--load-mode mlock -v --reasoning-effort high --no-reasoning-preserve --chat-template-kwargs {\"a\":1}", NULL);
    assert_int_equal(p.status, KV_OK);
    assert_true(p.o.mlock);
    assert_false(p.o.mmap);
    assert_int_equal(p.o.verbosity, 4);
    assert_has(p.o.chat_template_kwargs, "\"a\":1");
    assert_has(p.o.chat_template_kwargs, "\"reasoning_effort\":\"high\"");
    assert_has(p.o.chat_template_kwargs, "\"preserve_reasoning\":false");
    done(&p);
    p = parse("--reasoning-effort default", NULL);
    assert_null(p.o.chat_template_kwargs);
    done(&p);
}

/* ── sources ── */

static void test_precedence(void **state) {
    (void)state;
    char path[64], line[128];
    write_file(path,
               "ctx-size = 1000\nport = 1001\ntop-k = 1002\nbatch-size = 1003\napi-key = a,b\nallowed-host = f\n");
    char *env[] = {"LLAMA_ARG_CTX_SIZE=2000",
                   "LLAMA_ARG_PORT=2001",
                   "LLAMA_ARG_TOP_K=2002",
                   "KVASIR_CTX_SIZE=3000",
                   "KVASIR_PORT=3001",
                   "KVASIR_API_KEY=c,d,e",
                   "KVASIR_ALIAS=",
                   "OTHER=1",
                   NULL};
    snprintf(line, sizeof line, "-c 4000 --allowed-host g --allowed-host h --config %s", path);
    parsed p = parse(line, env);
    unlink(path);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_int_equal(p.o.n_ctx, 4000);
    assert_int_equal(p.o.port, 3001);
    assert_int_equal(p.o.sampling.top_k, 2002);
    assert_int_equal(p.o.n_batch, 1003);
    assert_int_equal(p.o.api_key.n, 3); /* a stronger source's list replaces the weaker one's */
    assert_string_equal(p.o.api_key.item[0], "c");
    assert_int_equal(p.o.allowed_host.n, 2);
    assert_string_equal(p.o.allowed_host.item[0], "g");
    assert_null(p.o.alias);
    done(&p);
}

static void test_environment_spellings(void **state) {
    (void)state;
    static const struct {
        const char *var;
        int mmap, kvu;
    } cases[] = {{"LLAMA_ARG_NO_MMAP=1", 0, -1},    {"KVASIR_NO_MMAP=1", 0, -1},
                 {"KVASIR_NO_MMAP=0", 1, -1},       {"KVASIR_MMAP=off", 0, -1},
                 {"LLAMA_ARG_MMAP=false", 0, -1},   {"LLAMA_ARG_KV_UNIFIED=1", 1, 1},
                 {"KVASIR_NO_KV_UNIFIED=on", 1, 0}, {"LLAMA_ARG_NO_KV_UNIFIED=", 1, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *env[] = {(char *)cases[i].var, NULL};
        parsed p = parse("", env);
        if (p.status != KV_OK || p.o.mmap != cases[i].mmap || p.o.kv_unified != cases[i].kvu)
            fail_msg("%s", cases[i].var);
        done(&p);
    }
    char *suffix[] = {"KVASIR_N_PREDICT=9", "KVASIR_THINK_BUDGET=11", NULL}; /* as behind LLAMA_ARG_ */
    parsed p = parse("", suffix);
    assert_int_equal(p.o.n_predict, 9);
    assert_int_equal(p.o.reasoning_budget, 11);
    done(&p);
    char *key[] = {"LLAMA_API_KEY=k1,k2", "HF_TOKEN=x", "KVASIR_VERSION=1", NULL};
    p = parse("", key);
    assert_int_equal(p.status, KV_OK);
    assert_int_equal(p.o.api_key.n, 2);
    assert_false(p.o.version);
    done(&p);
    char *bad[] = {"KVASIR_CTX_SIZE=many", NULL};
    p = parse("", bad);
    assert_int_equal(p.status, KV_INVALID);
    assert_has(p.err.message, "KVASIR_CTX_SIZE: got \"many\"");
    done(&p);
    char *misspelt[] = {"KVASIR_CTX_SIZ=1", "KVASIR_QUITE_ANOTHER_THING=1", NULL};
    p = parse("", misspelt);
    assert_int_equal(p.status, KV_OK);
    assert_has(kv_buf_str(&p.warnings), "did you mean KVASIR_CTX_SIZE?");
    assert_null(strstr(kv_buf_str(&p.warnings), "QUITE"));
    done(&p);
}

static void test_config_file(void **state) {
    (void)state;
    char path[64], line[128];
    write_file(path, "# comment\r\n\n  ctx-size=512   # behind a blank\r\nalias = a#b\nchat-template = \"{{ x "
                     "}}\\n\\\"q\\\" # in\"  # out\n"
                     "no-mmap = yes\nmodel = with space.gguf\nmetrics=off\nctx-checkpoints = 8\nwebui = off\nn_predict "
                     "= 3\ntemp = 0.5");
    snprintf(line, sizeof line, "--config=%s", path);
    parsed p = parse(line, NULL);
    unlink(path);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_int_equal(p.o.n_ctx, 512);
    assert_string_equal(p.o.alias, "a#b");
    assert_string_equal(p.o.chat_template, "{{ x }}\n\"q\" # in");
    assert_false(p.o.mmap);
    assert_string_equal(p.o.model, "with space.gguf");
    assert_false(p.o.metrics_endpoint);
    assert_false(p.o.ui);
    assert_int_equal(p.o.n_predict, 3);
    assert_true(p.o.sampling.temperature == 0.5f);
    assert_has(kv_buf_str(&p.warnings), "ctx-checkpoints is ignored");
    done(&p);
}

static void test_config_file_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *told;
    } cases[] = {
        {"ctx-size = 512\nctx-siz = 1\n", ":2: ctx-siz is not an option; did you mean --ctx-size?"},
        {"[section]\n", ":1: takes lines of the form \"name = value\""},
        {"jinja\n", "takes lines of the form"},
        {"= 1\n", "takes lines of the form"},
        {"port = 99999\n", ":1: port: got \"99999\", takes a whole number from 0 to 65535"},
        {"alias = \"open\n", "a quote is not closed"},
        {"alias = \"a\" b\n", "text after the closing quote"},
        {"alias = \"\\u0000\"\n", "bad text in quotes"},
        {"config = other\n", "belongs on the command line"},
        {"help = on\n", "belongs on the command line"},
        {"mmproj = x\n", "images, audio or video"},
        {"no-mmap = perhaps\n", "takes on or off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64], line[128];
        write_file(path, cases[i].text);
        snprintf(line, sizeof line, "--config %s", path);
        parsed p = parse(line, NULL);
        unlink(path);
        if (p.status == KV_OK) fail_msg("accepted: %s", cases[i].text);
        assert_has(p.err.message, cases[i].told);
        done(&p);
    }
    parsed p = parse("--config /nonexistent/kvasir.conf", NULL);
    assert_true(p.status == KV_IO || p.status == KV_NOT_FOUND);
    assert_has(p.err.message, "/nonexistent/kvasir.conf");
    done(&p);
    char *env[] = {"KVASIR_CONFIG=/nonexistent/env.conf", NULL};
    p = parse("", env);
    assert_has(p.err.message, "/nonexistent/env.conf");
    done(&p);
}

/* llama-server's own file is not read, and that is told. */
static void test_llama_config_is_noted(void **state) {
    (void)state;
    char dir[] = "/tmp/kvasir-options-XXXXXX", sub[64], file[80], home[80];
    assert_non_null(mkdtemp(dir));
    snprintf(sub, sizeof sub, "%s/llama.cpp", dir);
    snprintf(file, sizeof file, "%s/config.ini", sub);
    snprintf(home, sizeof home, "XDG_CONFIG_HOME=%s", dir);
    char *env[] = {home, NULL};
    parsed p = parse("-c 512", env);
    assert_int_equal(p.warnings.len, 0);
    done(&p);
    assert_int_equal(mkdir(sub, 0700), 0);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    p = parse("-c 512", env);
    assert_has(kv_buf_str(&p.warnings), "config.ini is not read: settings come from --config FILE");
    done(&p);
    p = parse("--config /dev/null", env);
    assert_null(strstr(kv_buf_str(&p.warnings), "config.ini"));
    done(&p);
    unlink(file);
    rmdir(sub);
    rmdir(dir);
}

/* ── llama-server's other options ── */

static void test_refused_options(void **state) {
    (void)state;
    static const struct {
        const char *line, *told;
    } cases[] = {{"--mmproj x.gguf", "images"},
                 {"-md d.gguf", "speculative"},
                 {"--spec-draft-n-max 4", "speculative"},
                 {"--spec_type draft-mtp", "speculative"},
                 {"-dr gemma3", "Docker"},
                 {"--models-dir x", "several models"},
                 {"--context-shift", "finish_reason length"},
                 {"--fim-qwen-7b-spec", "speculative"},
                 {"-ot a=CPU", "tensors"},
                 {"--control-vector-layer-range 1 2", "control vectors"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p = parse(cases[i].line, NULL);
        if (p.status != KV_UNSUPPORTED) fail_msg("%s: %s", cases[i].line, kv_status_name(p.status));
        assert_int_equal(p.err.status, KV_UNSUPPORTED);
        assert_has(p.err.message, cases[i].told);
        done(&p);
    }
    char *env[] = {"LLAMA_ARG_MMPROJ=x.gguf", NULL};
    parsed p = parse("", env);
    assert_int_equal(p.status, KV_UNSUPPORTED);
    assert_has(p.err.message, "LLAMA_ARG_MMPROJ");
    done(&p);
}

static void test_accepted_options(void **state) {
    (void)state;
    parsed p =
        parse("--ui-config x --log-colors on --cache-reuse 256 --cache-reuse 128 --ctx-checkpoints 8 -nocb --poll 50 "
              "--swa-full -c 512",
              NULL);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_int_equal(p.o.n_ctx, 512);
    const char *w = kv_buf_str(&p.warnings);
    assert_has(w, "--ui-config is ignored");
    assert_has(w, "--log-colors is ignored");
    assert_has(w, "--ctx-checkpoints is ignored");
    assert_has(w, "-nocb is ignored");
    assert_has(w, "--swa-full is ignored");
    const char *first = strstr(w, "--cache-reuse");
    assert_non_null(first);
    assert_null(strstr(first + 1, "--cache-reuse")); /* one warning, not two */
    done(&p);

    /* What kvasir does anyway needs no word. */
    p = parse(
        "--cont-batching --no-context-shift --cache-reuse 0 --spec-type none --no-mmproj --keep 0 --offline -c 768",
        NULL);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_int_equal(p.warnings.len, 0);
    assert_int_equal(p.o.n_ctx, 768);
    done(&p);

    char *env[] = {"LLAMA_ARG_SWA_FULL=0",
                   "LLAMA_ARG_CONT_BATCHING=1",
                   "LLAMA_ARG_CONTEXT_SHIFT=off",
                   "LLAMA_ARG_TOOLS=",
                   "LLAMA_ARG_UI=0",
                   "LLAMA_ARG_UI_CONFIG={}",
                   NULL};
    p = parse("", env);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_has(kv_buf_str(&p.warnings), "LLAMA_ARG_UI_CONFIG is ignored");
    assert_false(p.o.ui);
    assert_null(strstr(kv_buf_str(&p.warnings), "SWA"));
    assert_null(strstr(kv_buf_str(&p.warnings), "CONT_BATCHING"));
    done(&p);

    p = parse("--cache-reuse", NULL);
    assert_int_equal(p.status, KV_INVALID);
    done(&p);
}

/* llama-server's names for certain models stand for several settings; what follows them still counts. */
static void test_named_models(void **state) {
    (void)state;
    parsed p = parse("--gpt-oss-20b-default --port 9000", NULL);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_string_equal(p.o.hf_repo, "ggml-org/gpt-oss-20b-GGUF");
    assert_string_equal(p.o.hf_file, "gpt-oss-20b-mxfp4.gguf");
    assert_int_equal(p.o.port, 9000);
    assert_int_equal(p.o.n_ctx, 262144);
    assert_int_equal(p.o.n_parallel, 2);
    assert_int_equal(p.o.sampling.top_k, 0);
    done(&p);
    p = parse("--fim-qwen-1.5b-default", NULL);
    assert_int_equal(p.status, KV_OK);
    assert_string_equal(p.o.hf_repo, "ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF");
    assert_int_equal(p.o.port, 8012);
    done(&p);
}

/* Every preset names options that exist, with values that they take. */
static void test_presets_are_sound(void **state) {
    (void)state;
    for (int i = 0; i < kv_opt_count; i++) {
        char name[70] = "--";
        if (kv_opt_table[i].kind != OPT_PRESET) continue;
        kv_opt_name(kv_opt_table[i].names, name + 2, sizeof name - 2);
        parsed p = parse(name, NULL);
        if (p.status != KV_OK) fail_msg("%s: %s", name, p.err.message);
        done(&p);
    }
}

/* Values that llama-server takes for more than their number. */
static void test_numbers_that_mean_others(void **state) {
    (void)state;
    parsed p = parse("-t 0 -tb 0 -ngl -2 -n -2 --top-k -1 -lm dio", NULL);
    if (p.status != KV_OK) fail_msg("%s", p.err.message);
    assert_int_equal(p.o.threads, -1);
    assert_int_equal(p.o.threads_batch, -1);
    assert_int_equal(p.o.n_gpu_layers, KV_NGL_ALL);
    assert_int_equal(p.o.n_predict, -1);
    assert_int_equal(p.o.sampling.top_k, 0);
    assert_false(p.o.mmap);
    kv_buf text = {0};
    kv_options_print(&text, &p.o);
    assert_has(kv_buf_str(&text), "# threads = auto\n");
    assert_has(kv_buf_str(&text), "gpu-layers = all\n");
    assert_has(kv_buf_str(&text), "# predict = -1\n");
    assert_has(kv_buf_str(&text), "top-k = 0\n");
    kv_buf_free(&text);
    done(&p);
    p = parse("-t -3", NULL);
    assert_int_equal(p.status, KV_INVALID);
    assert_has(p.err.message, "takes auto or a whole number from 1 to 512");
    done(&p);
}

/* Stop texts of DRY may be written with escapes, as llama-server takes them. */
static void test_escapes(void **state) {
    (void)state;
    static const char given[] = "--dry-sequence-breaker \\n --dry-sequence-breaker a\\t\\x41\\q\\\\\\x4";
    parsed p = parse(given, NULL);
    assert_int_equal(p.status, KV_OK);
    assert_int_equal(p.o.sampling.n_dry_breakers, 2);
    assert_string_equal(p.o.sampling.dry_breakers[0], "\n");
    assert_string_equal(p.o.sampling.dry_breakers[1], "a\tA\\q\\\\x4");
    assert_string_equal(p.o.dry_breaker.item[0], "\\n"); /* as given, for --print-config */
    done(&p);
    p = parse("--no-escape --dry-sequence-breaker \\n", NULL);
    assert_string_equal(p.o.sampling.dry_breakers[0], "\\n");
    done(&p);
}

/* ── cross-checks ── */

static void test_check(void **state) {
    (void)state;
    static const struct {
        const char *line;
        kv_status want;
        const char *told;
    } cases[] = {
        {"-m a", KV_OK, ""},
        {"", KV_INVALID, "-m FILE.gguf"},
        {"--test-fake full", KV_OK, ""},
        {"-m a --host 0.0.0.0", KV_INVALID, "--no-auth"},
        {"-m a --host :: ", KV_INVALID, "--api-key-file"},
        {"-m a --host myhost", KV_INVALID, "other machines"},
        {"-m a --host 0.0.0.0 --no-auth", KV_OK, ""},
        {"-m a --host 0.0.0.0 --api-key k", KV_OK, ""},
        {"-m a --host 0.0.0.0 --api-key-file k", KV_OK, ""},
        {"-m a --host 127.8.8.8", KV_OK, ""},
        {"-m a --host ::1", KV_OK, ""},
        {"-m a --host ::ffff:127.0.0.1", KV_OK, ""},
        {"-m a --host LOCALHOST", KV_OK, ""},
        {"-m a --host 127.0.0.1.evil.example", KV_INVALID, "other machines"},
        {"-m a --host /run/k.sock", KV_OK, ""},
        {"-m a --host 127.0.0.1,::1,k.sock", KV_OK, ""},
        {"-m a --host 127.0.0.1,0.0.0.0", KV_INVALID, "--host 0.0.0.0 can be reached"},
        {"-m a --host 127.0.0.1 --host 127.0.0.1", KV_INVALID, "given twice"},
        {"-m a --host ,", KV_INVALID, "takes an address"},
        {"-m a --ssl-key-file k", KV_INVALID, "--ssl-cert-file is missing"},
        {"-m a --ssl-cert-file c", KV_INVALID, "--ssl-key-file is missing"},
        {"-m a --ssl-cert-file c --ssl-key-file k", KV_OK, ""},
        {"-hf a/b:Q4_K_M --offline", KV_OK, ""},
        {"-hf a/b -m c", KV_INVALID, "exclude each other"},
        {"-hf a/b -mu http://c/d.gguf", KV_INVALID, "exclude each other"},
        {"-mu http://c/d.gguf -m e.gguf", KV_OK, ""},
        {"-m a -hff b.gguf", KV_INVALID, "-hf USER/REPO"},
        {"--gpt-oss-20b-default", KV_OK, ""},
        {"-m a -fa off -ctv q8_0", KV_INVALID, "needs flash attention"},
        {"-m a -fa on -ctv q8_0", KV_OK, ""},
        {"-m a -ctv q8_0", KV_OK, ""},
        {"-m a -fa off -ctk q8_0 -ctv bf16", KV_OK, ""},
        {"-m a -c 1024 -np 8", KV_OK, ""}, /* rounded up to 256 tokens each */
        {"-m a -c 1024 -np 8 -kvu", KV_OK, ""},
        {"-m a --grammar x --json-schema {}", KV_INVALID, "exclude each other"},
        {"-m a --api-prefix llm", KV_INVALID, "begins with '/'"},
        {"-m a --api-prefix /llm", KV_OK, ""},
        {"-m a --rope-scale 2 --rope-freq-scale 0.5", KV_INVALID, "exclude each other"},
        {"-m a --sleep-idle-seconds -1", KV_OK, ""},
        {"-m a --sleep-idle-seconds 0.5", KV_OK, ""},
        {"-m a --sleep-idle-seconds 900", KV_OK, ""},
        {"-m a --sleep-idle-seconds 0", KV_INVALID, "above 0"},
        {"-m a --sleep-idle-seconds -0.5", KV_INVALID, "above 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p = parse(cases[i].line, NULL);
        assert_int_equal(p.status, KV_OK);
        kv_status st = kv_options_check(&p.o, &p.err);
        if (st != cases[i].want) fail_msg("%s: %s %s", cases[i].line, kv_status_name(st), p.err.message);
        if (st != KV_OK) assert_has(p.err.message, cases[i].told);
        done(&p);
    }
}

/* ── output ── */

static void test_help(void **state) {
    (void)state;
    kv_buf all = {0}, one = {0};
    kv_error err = {0};
    assert_int_equal(kv_options_help(&all, NULL, &err), KV_OK);
    for (int i = 0; i < kv_opt_count; i++) {
        char name[70] = "--";
        kv_opt_name(kv_opt_table[i].names, name + 2, sizeof name - 2);
        bool shown = strstr(all.data, name) != NULL;
        if (shown != !(kv_opt_table[i].flags & OPT_HIDDEN)) fail_msg("%s", name);
    }
    assert_int_equal(kv_options_help(&one, "engine", &err), KV_OK);
    assert_has(one.data, "--ctx-size");
    assert_null(strstr(one.data, "--api-key"));
    for (const char *p = all.data; *p;) {
        size_t n = strcspn(p, "\n"), bytes_of_utf8 = 0;
        for (size_t i = 0; i < n; i++) bytes_of_utf8 += ((unsigned char)p[i] & 0xC0) == 0x80;
        if (n - bytes_of_utf8 > 100) fail_msg("too wide: %.*s", (int)n, p);
        p += n + (p[n] == '\n');
    }
    assert_int_equal(kv_options_help(&one, "nonsense", &err), KV_NOT_FOUND);
    assert_has(err.message, "sampling");
    kv_buf_clear(&one);
    assert_int_equal(kv_options_help(&one, "llama-server", &err), KV_OK);
    assert_has(one.data, "--mmproj");
    kv_buf_clear(&one);
    kv_options_markdown(&one);
    assert_has(one.data, "| `-c, --ctx-size N` |");
    kv_buf_free(&all);
    kv_buf_free(&one);
}

/* ── round trip ── */

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

static void random_text(char *out, size_t cap, uint64_t *seed) {
    static const char *const pieces[] = {"a",  "b7", " ", "#",  "\"", ",", "=", "\\",
                                         "\n", "é",  "-", "\t", ";",  "'", "$", "{}"};
    size_t n = next_random(seed) % 12;
    out[0] = 0;
    for (size_t i = 0; i < n && strlen(out) + 4 < cap; i++)
        strcat(out, pieces[next_random(seed) % (sizeof pieces / sizeof *pieces)]);
}

static void random_word(char *out, size_t cap, const char *words, uint64_t *seed) {
    size_t n;
    int count = 0;
    while (kv_opt_list_item(words, count, &n)) count++;
    const char *item = kv_opt_list_item(words, (int)(next_random(seed) % (uint64_t)count), &n);
    snprintf(out, cap, "%.*s", (int)n, item);
}

/* A random allowed value of one option, set directly. */
static void set_random(kv_options *o, const kv_opt *opt, uint64_t *seed) {
    char text[128];
    switch (opt->kind) {
    case OPT_PRESET:
    case OPT_LOAD: return;
    case OPT_BOOL: strcpy(text, next_random(seed) % 2 ? "on" : "off"); break;
    case OPT_TRI: strcpy(text, next_random(seed) % 3 ? "on" : next_random(seed) % 2 ? "off" : "auto"); break;
    case OPT_WORD: random_word(text, sizeof text, opt->words, seed); break;
    case OPT_TEXT: random_text(text, sizeof text, seed); break;
    case OPT_LIST: {
        kv_str_list *l = (kv_str_list *)((char *)o + opt->at);
        kv_list_free(l);
        for (int i = (int)(next_random(seed) % 4); i > 0; i--) {
            if (opt->words) random_word(text, sizeof text, opt->words, seed);
            else random_text(text, sizeof text, seed);
            if (text[0]) kv_list_add(l, text, strlen(text));
        }
        return;
    }
    default: {
        double u = (double)(next_random(seed) >> 11) / 9007199254740992.0, v = opt->min + u * (opt->max - opt->min);
        bool real = opt->kind == OPT_FLOAT || opt->kind == OPT_DOUBLE;
        snprintf(text, sizeof text, real ? "%.17g" : "%.0f", real ? v : (double)(int64_t)v);
    }
    }
    kv_error err = {0};
    if (kv_opt_set(o, opt, "x", text, true, &err) != KV_OK) fail_msg("%s: %s", opt->names, err.message);
}

static void test_print_config_round_trip(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 300; round++) {
        kv_options a, b;
        kv_buf text = {0}, again = {0};
        kv_error err = {0};
        char path[64], *argv[] = {"kvasir", "--config", path};
        kv_options_defaults(&a);
        kv_options_defaults(&b);
        for (int i = 0; i < kv_opt_count; i++) {
            const kv_opt *opt = &kv_opt_table[i];
            /* texts with a grammar of their own are not random; a secret is not printed */
            bool own = opt->at == offsetof(kv_options, logit_bias) || opt->at == offsetof(kv_options, samplers) ||
                       opt->at == offsetof(kv_options, chat_template_kwargs) ||
                       opt->at == offsetof(kv_options, reasoning_effort) ||
                       opt->at == offsetof(kv_options, reasoning_preserve);
            bool skip = own || opt->flags & (OPT_ARGV_ONLY | OPT_NOT_IN_FILE | OPT_SECRET);
            if (!skip && next_random(&seed) % 2) set_random(&a, opt, &seed);
        }
        kv_options_print(&text, &a);
        write_file(path, text.data);
        kv_status st = kv_options_parse(&b, 3, argv, NULL, NULL, &err);
        unlink(path);
        if (st != KV_OK) fail_msg("%s in:\n%s", err.message, text.data);
        for (int i = 0; i < kv_opt_count; i++) {
            if (kv_opt_table[i].at == offsetof(kv_options, config)) continue;
            if (!kv_opt_equal(&a, &b, &kv_opt_table[i]))
                fail_msg("%s differs in:\n%s", kv_opt_table[i].names, text.data);
        }
        kv_options_print(&again, &b);
        assert_string_equal(text.data, again.data);
        kv_buf_free(&text);
        kv_buf_free(&again);
        kv_options_free(&a);
        kv_options_free(&b);
    }
}

/* Arbitrary argument vectors, environments and files: an answer, never a crash. */
static void test_random_input(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)time(NULL) * 40503u + 7;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 3000; round++) {
        char words[8][96], env_text[2][160], *argv[9] = {"kvasir"}, *env[3] = {0};
        int argc = 1 + (int)(next_random(&seed) % 8);
        for (int i = 1; i < argc; i++) {
            argv[i] = words[i - 1];
            size_t n;
            uint64_t kind = next_random(&seed) % 4;
            const char *item = kv_opt_list_item(kv_opt_table[next_random(&seed) % (uint64_t)kv_opt_count].names, 0, &n);
            if (kind == 0) snprintf(argv[i], sizeof words[0], "%.*s", (int)n, item);
            else if (kind == 1)
                snprintf(argv[i], sizeof words[0], "%.*s=%llu", (int)n, item, (unsigned long long)next_random(&seed));
            else random_text(argv[i], sizeof words[0], &seed);
            if (strncmp(argv[i], "--config", 8) == 0) argv[i][2] = 'x';
        }
        for (int i = 0; i < 2; i++) {
            char value[96];
            random_text(value, sizeof value, &seed);
            const char *var = kv_opt_table[next_random(&seed) % (uint64_t)kv_opt_count].env;
            snprintf(env_text[i], sizeof env_text[i], "%s=%s", var ? var : "KVASIR_", value);
            env[i] = env_text[i];
        }
        kv_options o;
        kv_error err = {0};
        kv_buf warnings = {0};
        kv_options_defaults(&o);
        kv_status st = kv_options_parse(&o, argc, argv, env, &warnings, &err);
        if (st != KV_OK) assert_true(err.message[0] != 0 && err.status == st);
        else kv_options_check(&o, &err);
        kv_options_free(&o);
        kv_buf_free(&warnings);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_are_sound),
        cmocka_unit_test(test_defaults_are_allowed),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_flash_attention_spellings),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_secrets_are_not_told),
        cmocka_unit_test(test_unknown_options_are_answered_with_the_nearest),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_combined_options),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_environment_spellings),
        cmocka_unit_test(test_config_file),
        cmocka_unit_test(test_config_file_errors),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_accepted_options),
        cmocka_unit_test(test_named_models),
        cmocka_unit_test(test_presets_are_sound),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_llama_config_is_noted),
        cmocka_unit_test(test_numbers_that_mean_others),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_print_config_round_trip),
        cmocka_unit_test(test_random_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
