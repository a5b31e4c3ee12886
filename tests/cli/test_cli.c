/* cli/: subcommands and exit statuses, and whole lives of a server on the fake engine, each in a process of its own. */
#define _GNU_SOURCE 1
#include "http/client.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cli/cli.h"
#include "cli/load.h"
#include "cli/signals.h"

typedef struct child {
    pid_t pid;
    int fd;      /* its stdout and stderr */
    kv_buf text; /* what it wrote so far */
    int port;
} child;

/* Runs `kvasir LINE` (words split at blanks); env: one more variable, or NULL. */
static child start(const char *line, const char *env) {
    int ends[2];
    child c = {0};
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    c.pid = fork();
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        char copy[1024], *argv[32] = {"kvasir"}, *vars[] = {(char *)env, NULL};
        int argc = 1;
        close(ends[0]);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[1]);
        strcpy(copy, line);
        for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
        exit(kv_cli_main(argc, argv, vars));
    }
    close(ends[1]);
    c.fd = ends[0];
    return c;
}

/* Reads more of its output; false at the end. */
static bool listen_more(child *c) {
    char piece[4096];
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (poll(&p, 1, 60000) <= 0) {
        kill(c->pid, SIGKILL);
        fail_msg("nothing came for 60 s after: %s", kv_buf_str(&c->text));
    }
    ssize_t n = read(c->fd, piece, sizeof piece);
    if (n <= 0) return false;
    kv_buf_add(&c->text, piece, (size_t)n);
    return true;
}

static void wait_for(child *c, const char *what) {
    while (!strstr(kv_buf_str(&c->text), what))
        if (!listen_more(c)) fail_msg("it ended without \"%s\": %s", what, kv_buf_str(&c->text));
}

/* Its exit status, or 1000 + signal. */
static int finish(child *c) {
    int status;
    while (listen_more(c)) {
    }
    close(c->fd);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void assert_ends(child *c, int want) {
    int status = finish(c);
    if (status != want) fail_msg("it ended with %d, not %d: %s", status, want, kv_buf_str(&c->text));
}

static void assert_said(child *c, const char *what) {
    if (!strstr(kv_buf_str(&c->text), what)) fail_msg("\"%s\" is not in: %s", what, kv_buf_str(&c->text));
}

static void end(child *c) {
    kv_buf_free(&c->text);
}

static int run(child *c, const char *line) {
    *c = start(line, NULL);
    return finish(c);
}

/* Until the server listens, then until it is ready. */
static child serve(const char *more) {
    char line[512];
    snprintf(line, sizeof line, "serve --port 0 %s", more);
    child c = start(line, NULL);
    wait_for(&c, "listening on http://");
    wait_for(&c, "\n");
    const char *at = strstr(c.text.data, "listening on http://");
    assert_int_equal(sscanf(strchr(at + 20, ':') + 1, "%d", &c.port), 1);
    wait_for(&c, "ready after");
    return c;
}

static int post(answer *a, int port, const char *path, const char *body) {
    kv_buf rest = {0};
    char line[128];
    kv_buf_addf(&rest, "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                strlen(body), body);
    snprintf(line, sizeof line, "POST %s", path);
    int status = ask(a, port, line, rest.data);
    kv_buf_free(&rest);
    return status;
}

/* ── subcommands ── */

static void test_statuses(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int status;
        const char *said;
    } cases[] = {
        {"", 2, "usage: kvasir serve -m FILE.gguf"},
        {"frobnicate", 2, "there is no command \"frobnicate\""},
        {"version", 0, "kvasir " KVASIR_VERSION},
        {"--version", 0, "engine: llama.cpp v"},
        {"serve --version", 0, "kvasir "},
        {"help", 0, "--ctx-size"},
        {"--help", 0, "usage: kvasir serve"},
        {"serve --help", 0, "Scheduling"},
        {"help server", 0, "--api-key-file"},
        {"help llama-server", 0, "--mmproj"},
        {"help markdown", 0, "| option | meaning |"},
        {"help nonsense", 2, "there is no group \"nonsense\""},
        {"completion", 0, "complete -o filenames -F _kvasir kvasir"},
        {"serve", 2, "no model: give one with -m FILE.gguf"},
        {"serve model.gguf", 2, "options begin with '-'"},
        {"-m x --ctx-siz 4", 2, "did you mean --ctx-size?"},
        {"-m x -c many", 2, "takes a whole number"},
        {"-m x --mmproj y", 2, "images"},
        {"-m x --host 0.0.0.0", 2, "--no-auth"},
        {"-m x --config /nonexistent/file", 2, "/nonexistent/file"},
        {"-m x --log-file /nonexistent/dir/log", 1, "log file"},
        {"-m /nonexistent/model.gguf --port 0", 1, "/nonexistent/model.gguf"},
        {"-m /nonexistent/model.gguf --check", 1, "/nonexistent/model.gguf"},
        {"--test-fake full --check --grammar-file /nonexistent.gbnf", 1, "/nonexistent.gbnf"},
        {"--test-fake full --check --grammar nonsense", 1, "grammar"},
        {"--test-fake full --check --samplers top_k;sideways", 1, "sideways"},
        {"--test-fake full --check -c 16777216", 0, "16777216 tokens"},
        {"serve --print-config -m x -c 512 --test-sampler", 0, "ctx-size = 512"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        child c;
        int status = run(&c, cases[i].line);
        if (status != cases[i].status) fail_msg("kvasir %s: %d: %s", cases[i].line, status, kv_buf_str(&c.text));
        assert_said(&c, cases[i].said);
        end(&c);
    }
}

static void test_check_prints_the_plan(void **state) {
    (void)state;
    static const struct {
        const char *line, *said[4];
    } cases[] = {
        {"--test-fake full --check -c 4096",
         {"memory full", "4096 tokens in 4 slots, each request up to 4096", "chunk       256"}},
        {"--test-fake window --check -c 4096", {"memory window", "in 2 slots", "in blocks of 64", "512 window cells"}},
        {"--test-fake hybrid --check -c 4096 -np 8",
         {"memory hybrid", "in 8 slots, each request up to 512", "9 states"}},
        {"--test-fake hybrid_window --check", {"memory hybrid-window"}},
        {"--test-fake recurrent --check", {"memory recurrent"}},
        {"--test-fake whole --check", {"memory whole"}},
        {"--test-fake full --check -ub 100", {"chunk       64 tokens", "in blocks of 64"}},
        {"--test-fake full --check -b 600", {"chunk       512 tokens"}},
        {"--test-fake full --check -c 256", {"256 tokens in 4 slots", "chunk       128 tokens"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        child c;
        if (run(&c, cases[i].line) != 0) fail_msg("%s: %s", cases[i].line, kv_buf_str(&c.text));
        for (int k = 0; k < 4 && cases[i].said[k]; k++) assert_said(&c, cases[i].said[k]);
        end(&c);
    }
}

/* ── a server's life ── */

static void test_serves_and_ends(void **state) {
    (void)state;
    static const char *const kinds[] = {"full", "window", "hybrid", "hybrid_window", "recurrent", "whole"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char line[128];
        snprintf(line, sizeof line, "--test-fake %s -c 2048 --alias first,second", kinds[i]);
        child c = serve(line);
        answer a = {0};
        assert_int_equal(ask(&a, c.port, "GET /health", NULL), 200);
        assert_int_equal(
            post(&a, c.port, "/v1/chat/completions",
                 "{\"model\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":4}"),
            200);
        assert_non_null(strstr(a.body.data, "\"model\":\"first\""));
        assert_int_equal(kill(c.pid, i % 2 ? SIGINT : SIGTERM), 0);
        assert_ends(&c, 0);
        assert_said(&c, "no API key is set");
        assert_said(&c, "slots ");
        assert_said(&c, "stopping: no new requests");
        assert_said(&c, "stopped");
        free_answer(&a);
        end(&c);
    }
}

static void test_prefix_strict_model_and_prompt_limit(void **state) {
    (void)state;
    child c = serve("--test-fake full -c 1024 -np 2 --strict-model --alias only --api-prefix /llm --no-metrics");
    answer a = {0};
    assert_said(&c, "/llm\n");
    assert_int_equal(ask(&a, c.port, "GET /llm/health", NULL), 200);
    assert_int_equal(ask(&a, c.port, "GET /health", NULL), 404);
    assert_int_equal(ask(&a, c.port, "GET /llm/metrics", NULL), 501);
    assert_int_equal(post(&a, c.port, "/llm/v1/completions", "{\"model\":\"other\",\"prompt\":\"x\",\"max_tokens\":1}"),
                     404);
    assert_int_equal(post(&a, c.port, "/llm/v1/completions", "{\"model\":\"only\",\"prompt\":\"x\",\"max_tokens\":1}"),
                     200);
    kv_buf body = {0};
    kv_buf_adds(&body, "{\"model\":\"only\",\"prompt\":\"");
    for (int i = 0; i < 600; i++) kv_buf_adds(&body, "a"); /* 600 tokens; a slot has 1024 / 2 */
    kv_buf_adds(&body, "\"}");
    assert_int_equal(post(&a, c.port, "/llm/v1/completions", body.data), 400);
    assert_non_null(strstr(a.body.data, "exceeds the available context size"));
    assert_non_null(strstr(a.body.data, "\"n_ctx\":512"));
    kill(c.pid, SIGTERM);
    assert_ends(&c, 0);
    kv_buf_free(&body);
    free_answer(&a);
    end(&c);
}

static void test_port_taken(void **state) {
    (void)state;
    child c = serve("--test-fake full -c 512"), second;
    char line[64];
    snprintf(line, sizeof line, "serve --test-fake full -c 512 --port %d", c.port);
    assert_int_equal(run(&second, line), 1);
    assert_said(&second, "another program has it");
    kill(c.pid, SIGTERM);
    assert_ends(&c, 0);
    end(&second);
    end(&c);
}

static int health_with_key(int port, const char *key) {
    answer a = {0};
    char rest[160];
    snprintf(rest, sizeof rest, "Host: localhost\r\nAuthorization: Bearer %s\r\n\r\n", key);
    int status = ask(&a, port, "GET /v1/props", rest);
    free_answer(&a);
    return status;
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* SIGHUP: keys and log file are read anew. */
static void test_hup(void **state) {
    (void)state;
    char dir[] = "/tmp/kvasir-cli-XXXXXX", keys[64], log[64], moved[64], line[300];
    assert_non_null(mkdtemp(dir));
    snprintf(keys, sizeof keys, "%s/keys", dir);
    snprintf(log, sizeof log, "%s/log", dir);
    snprintf(moved, sizeof moved, "%s/log.1", dir);
    write_text(keys, "old-key\n");
    snprintf(line, sizeof line,
             "serve --port 0 --test-fake full -c 512 --host 127.0.0.1 --api-key-file %s --log-file %s", keys, log);
    child c = start(line, NULL);
    wait_for(&c, "listening on http://127.0.0.1:"); /* on stdout, as the log goes to a file */
    wait_for(&c, "\n");
    assert_int_equal(sscanf(strstr(c.text.data, "127.0.0.1:") + 10, "%d", &c.port), 1);
    answer a = {0};
    while (ask(&a, c.port, "GET /health", NULL) != 200) assert_int_equal(a.status, 503);
    assert_int_equal(health_with_key(c.port, "old-key"), 200);
    assert_int_equal(health_with_key(c.port, "new-key"), 401);
    write_text(keys, "new-key\n");
    assert_int_equal(rename(log, moved), 0);
    kill(c.pid, SIGHUP);
    while (health_with_key(c.port, "new-key") != 200) {
    }
    assert_int_equal(health_with_key(c.port, "old-key"), 401);
    kill(c.pid, SIGTERM);
    assert_ends(&c, 0);
    struct stat st;
    assert_int_equal(stat(log, &st), 0); /* opened anew under its name */
    assert_true(st.st_size > 0);
    unlink(keys);
    unlink(log);
    unlink(moved);
    rmdir(dir);
    free_answer(&a);
    end(&c);
}

/* A stream that its client does not read: in flight until it is cut off. */
static client stuck_stream(int port) {
    client s = dial(port);
    const char *body = "{\"prompt\":\"x\",\"n_predict\":100000,\"ignore_eos\":true,\"stream\":true,\"n_probs\":5}";
    char text[300];
    snprintf(text, sizeof text, "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    say(&s, text);
    assert_true(want(&s, 12)); /* the header is out: it is queued, or runs */
    return s;
}

static void test_stop_cuts_off_after_its_time(void **state) {
    (void)state;
    child c = serve("--test-fake full --stop-timeout 60");
    client s = stuck_stream(c.port);
    kill(c.pid, SIGTERM);
    assert_ends(&c, 0);
    assert_said(&c, "1 running get up to 3.0 s");
    assert_said(&c, "1 requests are cut off");
    hang_up(&s);
    end(&c);
}

static void test_second_signal_ends_at_once(void **state) {
    (void)state;
    child c = serve("--test-fake full --stop-timeout 3600");
    client s = stuck_stream(c.port);
    kill(c.pid, SIGTERM);
    wait_for(&c, "stopping: no new requests");
    kill(c.pid, SIGTERM);
    assert_ends(&c, 1);
    assert_said(&c, "second signal");
    hang_up(&s);
    end(&c);
}

/* Whatever hangs: here the whole process does nothing at all. */
static void test_watchdog(void **state) {
    (void)state;
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        kv_wake w;
        freopen("/dev/null", "w", stderr);
        if (kv_wake_init(&w, NULL) != KV_OK || kv_signals_start(&w, NULL) != KV_OK) _exit(77);
        kv_watchdog_arm(0.02);
        for (;;) pause();
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), KV_EXIT_FAILURE);
}

/* ── loading ── */

static bool refuse_at_half(void *ctx, float done) {
    *(float *)ctx = done;
    return done < 0.5f;
}

static void test_load_settings(void **state) {
    (void)state;
    kv_options o;
    kv_loaded l;
    kv_error err = {0};
    float seen = 0;
    char *argv[] = {"kvasir", "--test-fake",  "window", "-c",     "2048", "-t",          "3", "-tb",
                    "5",      "--rope-scale", "4",      "--temp", "0.5",  "--max-queue", "7"};
    kv_options_defaults(&o);
    assert_int_equal(kv_options_parse(&o, sizeof argv / sizeof *argv, argv, NULL, NULL, &err), KV_OK);
    if (kv_load_plan(&l, &o, refuse_at_half, &seen, &err) != KV_OK) fail_msg("%s", err.message);
    assert_int_equal(l.params.n_threads, 3);
    assert_int_equal(l.params.n_threads_batch, 5);
    assert_true(l.params.rope_freq_scale == 0.25f);
    assert_int_equal(l.params.n_slots, 2);
    assert_int_equal(l.block, 64);
    assert_int_equal(l.params.n_batch, l.tuning.chunk + 2);
    assert_int_equal(l.params.flash_attn, KV_FA_OFF);
    assert_int_equal(l.memory, KV_MEMORY_WINDOW);
    assert_int_equal(l.shape.n_ctx_train, 4 * 131072);
    assert_int_equal(kv_load_engine(&l, &o, &err), KV_OK);
    kv_sched_config cfg;
    kv_load_sched_config(&cfg, &l, &o);
    assert_int_equal(cfg.n_ctx_served, 2048);
    assert_int_equal(cfg.max_queue, 7);
    assert_int_equal(cfg.block, 64);
    kv_sampling s;
    l.grammar = kv_strdup("root ::= \"a\"");
    l.grammar_type = KV_GRAMMAR_USER;
    kv_load_sampling(&s, &l, &o);
    assert_string_equal(s.grammar, "root ::= \"a\"");
    assert_int_equal(s.grammar_type, KV_GRAMMAR_USER);
    assert_true(s.temperature == 0.5f);
    kv_loaded_free(&l);
    kv_options_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_check_prints_the_plan),
        cmocka_unit_test(test_serves_and_ends),
        cmocka_unit_test(test_prefix_strict_model_and_prompt_limit),
        cmocka_unit_test(test_port_taken),
        cmocka_unit_test(test_hup),
        cmocka_unit_test(test_stop_cuts_off_after_its_time),
        cmocka_unit_test(test_second_signal_ends_at_once),
        cmocka_unit_test(test_watchdog),
        cmocka_unit_test(test_load_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
