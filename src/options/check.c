/* Settings that are right each by itself and wrong together. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "options/table.h"

bool kv_options_host_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (!host) return false;
    if (strcasecmp(host, "localhost") == 0 || kv_options_host_is_socket(host)) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) != 1) return false;
    if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool quantised(const char *type) {
    return type && strcmp(type, "f32") != 0 && strcmp(type, "f16") != 0 && strcmp(type, "bf16") != 0;
}

bool kv_options_host_is_socket(const char *host) {
    size_t n = strlen(host);
    return strchr(host, '/') || (n > 5 && strcmp(host + n - 5, ".sock") == 0);
}

static kv_status check_hosts(const kv_options *o, kv_error *err) {
    bool keyed = o->api_key.n > 0 || o->api_key_file || o->no_auth;
    if (o->host.n == 0)
        return kv_fail_field(err, "--host",
                             "--host: takes an address, such as 127.0.0.1, ::1, 0.0.0.0 or /run/kvasir.sock");
    for (int i = 0; i < o->host.n; i++) {
        const char *host = o->host.item[i];
        if (strchr(host, ' '))
            return kv_fail_field(err, "--host",
                                 "--host: \"%.80s\" is not an address; several stand with commas between", host);
        for (int k = 0; k < i; k++)
            if (strcmp(host, o->host.item[k]) == 0)
                return kv_fail_field(err, "--host", "--host: %.80s is given twice", host);
        if (!keyed && !kv_options_host_is_loopback(host))
            return kv_fail_field(
                err, "--host",
                "--host %.80s can be reached from other machines, and no key is set: give --api-key-file "
                "FILE (or --api-key KEY), listen on 127.0.0.1, or say --no-auth if everyone may use it",
                host);
    }
    if (!o->ssl_key_file != !o->ssl_cert_file)
        return kv_fail_field(err, o->ssl_key_file ? "--ssl-cert-file" : "--ssl-key-file",
                             "%s is missing: HTTPS needs a key and its certificate",
                             o->ssl_key_file ? "--ssl-cert-file" : "--ssl-key-file");
    return KV_OK;
}

/* Where the model comes from: one place. */
static kv_status check_model_source(const kv_options *o, kv_error *err) {
    if (o->hf_repo && o->model && o->model[0])
        return kv_fail_field(err, "--hf-repo",
                             "--hf-repo and --model exclude each other: each names the model to serve");
    if (o->hf_repo && o->model_url)
        return kv_fail_field(err, "--hf-repo",
                             "--hf-repo and --model-url exclude each other: each names the model to serve");
    if (o->hf_file && !o->hf_repo)
        return kv_fail_field(err, "--hf-file", "--hf-file names a file of a repository, which -hf USER/REPO must give");
    return KV_OK;
}

static kv_status check_pairs(const kv_options *o, kv_error *err) {
    static const struct {
        size_t a, b;
        const char *names[2];
    } pairs[] = {
        {offsetof(kv_options, chat_template),
         offsetof(kv_options, chat_template_file),
         {"--chat-template", "--chat-template-file"}},
        {offsetof(kv_options, grammar), offsetof(kv_options, grammar_file), {"--grammar", "--grammar-file"}},
        {offsetof(kv_options, json_schema),
         offsetof(kv_options, json_schema_file),
         {"--json-schema", "--json-schema-file"}},
        {offsetof(kv_options, grammar), offsetof(kv_options, json_schema), {"--grammar", "--json-schema"}},
        {offsetof(kv_options, grammar_file), offsetof(kv_options, json_schema), {"--grammar-file", "--json-schema"}},
        {offsetof(kv_options, grammar), offsetof(kv_options, json_schema_file), {"--grammar", "--json-schema-file"}},
        {offsetof(kv_options, grammar_file),
         offsetof(kv_options, json_schema_file),
         {"--grammar-file", "--json-schema-file"}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *a = *(char *const *)((const char *)o + pairs[i].a), *b = *(char *const *)((const char *)o + pairs[i].b);
        if (a && b)
            return kv_fail_field(err, pairs[i].names[0], "%s and %s exclude each other: give one", pairs[i].names[0],
                                 pairs[i].names[1]);
    }
    return KV_OK;
}

static kv_status check_rules(const kv_options *o, kv_error *err) {
    for (int i = 0; o->canonicalise.n > 1 && i < o->canonicalise.n; i++)
        if (strcmp(o->canonicalise.item[i], "none") == 0)
            return kv_fail_field(err, "--canonicalise", "--canonicalise: none stands alone, not among rules");
    return KV_OK;
}

static kv_status check_slot_path(const kv_options *o, kv_error *err) {
    struct stat s;
    if (!o->slot_save_path || (stat(o->slot_save_path, &s) == 0 && S_ISDIR(s.st_mode))) return KV_OK;
    return kv_fail_field(err, "--slot-save-path", "--slot-save-path: %.200s is no directory", o->slot_save_path);
}

static kv_status check_embeddings(const kv_options *o, kv_error *err) {
    bool rank = o->pooling && strcmp(o->pooling, "rank") == 0;
    if (o->reranking && o->pooling && !rank)
        return kv_fail_field(err, "--pooling", "--reranking needs --pooling rank, not %s: leave one of them out",
                             o->pooling);
    return KV_OK;
}

kv_status kv_options_check(const kv_options *o, kv_error *err) {
    if (!o->model && !o->fake && !o->hf_repo && !o->model_url)
        return kv_fail_field(err, "--model", "no model: give one with -m FILE.gguf or -hf USER/REPO");
    if (o->exact && o->n_parallel > 1)
        return kv_fail_field(err, "--exact", "--exact runs one request at a time: -np %lld cannot be had with it",
                             (long long)o->n_parallel);
    if (o->sleep_idle_seconds <= 0 && o->sleep_idle_seconds != -1)
        return kv_fail_field(err, "--sleep-idle-seconds",
                             "--sleep-idle-seconds takes a number of seconds above 0, or -1");
    if (quantised(o->type_v) && o->flash_attn == KV_FA_OFF)
        return kv_fail_field(err, "--cache-type-v",
                             "--cache-type-v %s needs flash attention: leave -fa off out, or use "
                             "-ctv f16",
                             o->type_v);
    if (o->rope_scale > 0 && o->rope_freq_scale > 0)
        return kv_fail_field(err, "--rope-scale", "--rope-scale and --rope-freq-scale exclude each other: give one");
    if (o->api_prefix && (o->api_prefix[0] != '/' || o->api_prefix[strlen(o->api_prefix) - 1] == '/'))
        return kv_fail_field(err, "--api-prefix",
                             "--api-prefix: got \"%.80s\", takes a path that begins with '/' and does "
                             "not end with it",
                             o->api_prefix);
    kv_status st = check_pairs(o, err);
    if (st == KV_OK) st = check_embeddings(o, err);
    if (st == KV_OK) st = check_rules(o, err);
    if (st == KV_OK) st = check_slot_path(o, err);
    if (st == KV_OK) st = check_model_source(o, err);
    return st == KV_OK ? check_hosts(o, err) : st;
}
