#include "cli/ask.h"

#include <curl/curl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/cli.h"

#define DEFAULT_URL "http://127.0.0.1:8080"
#define ANSWER_MAX  (16u << 20)
#define TIMEOUT_S   30L

static const char usage[] =
    "usage: kvasir why [last | REQUEST-ID]    why a request could not reuse more of its prompt\n"
    "       kvasir status                     what the cache holds and how much it spared\n"
    "  --url URL        the server, default " DEFAULT_URL " (or KVASIR_URL); unix:/run/k.sock for a UNIX socket\n"
    "  --api-key KEY    a key marked admin in the server's key file (or KVASIR_API_KEY, which others cannot see)\n"
    "  --json           the server's own answer\n";

typedef struct question {
    const char *url, *key, *id;
    bool json;
} question;

/* ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *env_of(char *const *env, const char *name) {
    size_t n = strlen(name);
    for (; env && *env; env++)
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=' && (*env)[n + 1]) return *env + n + 1;
    return NULL;
}

/* KV_EXIT_OK to go on; another status, or -1 for a clean end after --help. */
static int read_arguments(question *q, int argc, char **argv, char *const *env, int most_words) {
    static const struct option options[] = {{"url", required_argument, NULL, 'u'},
                                            {"api-key", required_argument, NULL, 'k'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *url = env_of(env, "KVASIR_URL");
    *q = (question){.url = url ? url : DEFAULT_URL, .key = env_of(env, "KVASIR_API_KEY"), .id = "last"};
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case 'u': q->url = optarg; break;
        case 'k': q->key = optarg; break;
        case 'j': q->json = true; break;
        case 'h': fputs(usage, stdout); return -1;
        default: fputs(usage, stderr); return KV_EXIT_USAGE;
        }
    }
    if (argc - optind > most_words) {
        fprintf(stderr, "kvasir: too many words after %s\n%s", argv[0], usage);
        return KV_EXIT_USAGE;
    }
    if (optind < argc) q->id = argv[optind];
    return KV_EXIT_OK;
}

/* ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static size_t take(char *data, size_t size, size_t n, void *to) {
    kv_buf *answer = to;
    if (answer->len + size * n > ANSWER_MAX) return 0;
    kv_buf_add(answer, data, size * n);
    return size * n;
}

/* What the server's error body says; "" when it is none. */
static void error_message(kv_buf *out, const kv_buf *answer) {
    json_t *body = NULL;
    if (kv_json_parse(&body, kv_buf_str(answer), answer->len, NULL) == KV_OK) {
        const char *message = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
        if (message) kv_buf_adds(out, message);
    }
    json_decref(body);
}

static kv_status perform(kv_buf *answer, CURL *curl, const char *url, kv_error *err) {
    char why[CURL_ERROR_SIZE] = "";
    long status = 0;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*"); /* http_proxy is meant for elsewhere than this server */
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK)
        return kv_fail(err, KV_IO, "%.200s does not answer (--url names another server): %s", url,
                       why[0] ? why : curl_easy_strerror(code));
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200) return KV_OK;
    kv_buf message = {0};
    error_message(&message, answer);
    kv_fail(err, KV_INVALID, "the server says %ld%s%.500s", status, message.len ? ": " : "", kv_buf_str(&message));
    kv_buf_free(&message);
    return KV_INVALID;
}

/* The part in front of the path; for "unix:/run/k.sock" curl gets the socket, and a name to say to it. */
static void add_base(kv_buf *url, CURL *curl, const char *server) {
    size_t n = strlen(server);
    if (strncmp(server, "unix:", 5) == 0) {
        curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, server + 5);
        kv_buf_adds(url, "http://localhost");
        return;
    }
    while (n > 0 && server[n - 1] == '/') n--;
    kv_buf_add(url, server, n);
}

/* url + path (+ query's value, escaped). */
static kv_status send_request(kv_buf *answer, const char *method, const question *q, const char *path,
                              const char *value, kv_error *err) {
    kv_status st = KV_OK;
    kv_buf url = {0}, header = {0};
    struct curl_slist *headers = NULL;
    char *escaped = NULL;
    CURL *curl = curl_easy_init();
    if (!curl) return kv_fail(err, KV_NO_MEMORY, "libcurl could not be started");
    add_base(&url, curl, q->url);
    kv_buf_adds(&url, path);
    if (value) {
        escaped = curl_easy_escape(curl, value, 0);
        kv_buf_adds(&url, escaped ? escaped : "");
    }
    if (q->key) {
        kv_buf_addf(&header, "Authorization: Bearer %s", q->key);
        headers = curl_slist_append(NULL, header.data);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    }
    if (strcmp(method, "GET") != 0) curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    st = perform(answer, curl, url.data, err);
    curl_slist_free_all(headers);
    curl_free(escaped);
    curl_easy_cleanup(curl);
    kv_buf_free(&url);
    kv_buf_free(&header);
    return st;
}

static kv_status request_json(json_t **out, kv_buf *answer, const char *method, const question *q, const char *path,
                              const char *value, kv_error *err) {
    *out = NULL;
    kv_status st = send_request(answer, method, q, path, value, err);
    if (st == KV_OK) st = kv_json_parse(out, kv_buf_str(answer), answer->len, err);
    if (st == KV_OK && !json_is_object(*out)) st = kv_fail(err, KV_INVALID, "the server's answer is no JSON object");
    return st;
}

kv_status kv_ask_server(json_t **out, const char *method, const char *url, const char *key, const char *path,
                        const char *value, kv_error *err) {
    question q = {.url = url, .key = key};
    kv_buf answer = {0};
    curl_global_init(CURL_GLOBAL_DEFAULT);
    kv_status st = request_json(out, &answer, method, &q, path, value, err);
    curl_global_cleanup();
    kv_buf_free(&answer);
    return st;
}

/* ── printing ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Text from outside, for a terminal: no control characters, neither C0 and DEL nor C1 (C2 80 … C2 9F). */
static void add_safe(kv_buf *out, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f;
        if (*p == '\n') kv_buf_adds(out, "\\n");
        else if (*p == '\t') kv_buf_adds(out, "\\t");
        else if (*p < ' ' || *p == 0x7f || c1) kv_buf_adds(out, "?");
        else kv_buf_add(out, p, 1);
        if (c1) p++;
    }
}

static void add_line(kv_buf *out, const char *name, const char *text) {
    kv_buf_addf(out, "%-11s ", name);
    add_safe(out, text);
    kv_buf_adds(out, "\n");
}

static const char *text_of(const json_t *o, const char *name) {
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

static long long number_of(const json_t *o, const char *name) {
    return (long long)json_integer_value(json_object_get(o, name));
}

static int finish(kv_status st, kv_buf *out, const kv_error *err) {
    if (st == KV_OK) fputs(kv_buf_str(out), stdout);
    else fprintf(stderr, "kvasir: %s\n", err->message);
    kv_buf_free(out);
    curl_global_cleanup();
    return st == KV_OK && fflush(stdout) == 0 ? KV_EXIT_OK : KV_EXIT_FAILURE;
}

/* ── why ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void print_why(kv_buf *out, const json_t *o) {
    kv_buf line = {0};
    char when[64] = "";
    time_t t = (time_t)number_of(o, "time");
    struct tm local;
    const json_t *cached = json_object_get(o, "cached");
    if (localtime_r(&t, &local)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    add_line(out, "request", text_of(o, "id"));
    add_line(out, "when", when);
    kv_buf_addf(&line, "%s: %s", text_of(o, "reason"), text_of(o, "explanation"));
    add_line(out, "reason", line.data);
    kv_buf_clear(&line);
    kv_buf_addf(&line, "at token %lld of %lld", number_of(o, "position"), number_of(o, "prompt_tokens"));
    add_line(out, "where", line.data);
    if (json_object_get(o, "text")) {
        kv_buf_clear(&line);
        kv_buf_addf(&line, "\"%s\"", text_of(o, "text"));
        add_line(out, "text there", line.data);
    }
    if (json_object_get(o, "hint")) add_line(out, "hint", text_of(o, "hint"));
    kv_buf_clear(&line);
    kv_buf_addf(&line, "%lld tokens from the engine, %lld from memory, %lld from disk; %lld computed",
                number_of(cached, "engine"), number_of(cached, "ram"), number_of(cached, "disk"),
                number_of(o, "computed"));
    add_line(out, "reused", line.data);
    kv_buf_free(&line);
}

int kv_ask_why(int argc, char **argv, char *const *env) {
    question q;
    int status = read_arguments(&q, argc, argv, env, 1);
    if (status != KV_EXIT_OK) return status < 0 ? KV_EXIT_OK : status;
    kv_buf answer = {0}, out = {0};
    kv_error err = {0};
    json_t *o = NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    kv_status st = request_json(&o, &answer, "GET", &q, "/kvasir/why?id=", q.id, &err);
    if (st == KV_OK && q.json) kv_buf_addf(&out, "%s\n", kv_buf_str(&answer));
    else if (st == KV_OK) print_why(&out, o);
    json_decref(o);
    kv_buf_free(&answer);
    return finish(st, &out, &err);
}

/* ── status ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The value of one line of Prometheus text, 0 without it. */
static double metric(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ' ') return strtod(line + n, NULL);
    }
    return 0;
}

static void add_bytes(kv_buf *out, double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++) bytes /= 1024;
    kv_buf_addf(out, "%.*f %s", u == 0 ? 0 : 1, bytes, units[u]);
}

static void print_metrics(kv_buf *out, const char *m) {
    double computed = metric(m, "kvasir_prompt_tokens_computed_total"),
           cached = metric(m, "kvasir_prompt_tokens_cached_total"),
           n = metric(m, "kvasir_time_to_first_token_seconds_count");
    kv_buf_addf(out, "%-11s %.0f, %.0f running, %.0f waiting; up for %.0f s\n", "requests",
                metric(m, "kvasir_requests_total"), metric(m, "kvasir_slots_busy"), metric(m, "kvasir_queue_length"),
                metric(m, "kvasir_uptime_seconds"));
    kv_buf_addf(
        out, "%-11s %.0f computed, %.0f not (%.1f %%): %.0f from the engine, %.0f from memory, %.0f from disk\n",
        "prompts", computed, cached, computed + cached > 0 ? 100 * cached / (computed + cached) : 0.0,
        metric(m, "kvasir_cache_tokens_total{tier=\"engine\"}"), metric(m, "kvasir_cache_tokens_total{tier=\"ram\"}"),
        metric(m, "kvasir_cache_tokens_total{tier=\"disk\"}"));
    if (n > 0)
        kv_buf_addf(out, "%-11s %.3f s on average\n", "first token",
                    metric(m, "kvasir_time_to_first_token_seconds_sum") / n);
}

static void print_cache(kv_buf *out, const json_t *o) {
    kv_buf line = {0};
    if (!json_is_true(json_object_get(o, "enabled"))) {
        add_line(out, "cache", "none beside the slots");
        return;
    }
    add_bytes(&line, (double)number_of(o, "ram_bytes"));
    kv_buf_adds(&line, " in memory, ");
    add_bytes(&line, (double)number_of(o, "queue_bytes"));
    kv_buf_addf(&line, " on the way there; %lld blocks known, %lld evicted, %lld dropped", number_of(o, "nodes"),
                number_of(o, "evicted"), number_of(o, "dropped"));
    add_line(out, "cache", line.data);
    kv_buf_free(&line);
}

/* Misses as requests met them, from /metrics; /kvasir/cache counts look-ups, also those of /kvasir/explain. */
static void print_misses(kv_buf *out, const char *m) {
    static const char prefix[] = "kvasir_cache_miss_total{reason=\"";
    kv_buf line = {0};
    for (const char *p = m; (p = strstr(p, prefix)) != NULL;) {
        p += sizeof prefix - 1;
        int n = (int)strcspn(p, "\"\n");
        const char *blank = strchr(p, ' ');
        double count = blank ? strtod(blank, NULL) : 0;
        if (count > 0) kv_buf_addf(&line, "%s%.*s %.0f", line.len ? ", " : "", n, p, count);
    }
    add_line(out, "misses", line.len ? line.data : "none");
    kv_buf_free(&line);
}

int kv_ask_status(int argc, char **argv, char *const *env) {
    question q;
    int status = read_arguments(&q, argc, argv, env, 0);
    if (status != KV_EXIT_OK) return status < 0 ? KV_EXIT_OK : status;
    kv_buf answer = {0}, metrics = {0}, out = {0};
    kv_error err = {0};
    json_t *o = NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    kv_status st = request_json(&o, &answer, "GET", &q, "/kvasir/cache", NULL, &err);
    if (st == KV_OK && q.json) {
        kv_buf_addf(&out, "%s\n", kv_buf_str(&answer));
    } else if (st == KV_OK) {
        st = send_request(&metrics, "GET", &q, "/metrics", NULL, &err);
        if (st == KV_OK) {
            print_metrics(&out, kv_buf_str(&metrics));
            print_cache(&out, o);
            print_misses(&out, kv_buf_str(&metrics));
        }
    }
    json_decref(o);
    kv_buf_free(&answer);
    kv_buf_free(&metrics);
    return finish(st, &out, &err);
}
