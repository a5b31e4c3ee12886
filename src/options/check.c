/* Settings that are right each by itself and wrong together. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "options/table.h"

bool kv_options_host_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (!host) return false;
    if (strcasecmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) != 1) return false;
    if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool quantised(const char *type) {
    return type && strcmp(type, "f32") != 0 && strcmp(type, "f16") != 0 && strcmp(type, "bf16") != 0;
}

static kv_status check_host(const kv_options *o, kv_error *err) {
    if (!o->host || strchr(o->host, ',') || strchr(o->host, ' '))
        return kv_fail_field(err, "--host", "--host: takes one address, such as 127.0.0.1, ::1 or 0.0.0.0");
    size_t n = strlen(o->host);
    if (strchr(o->host, '/') || (n > 5 && strcmp(o->host + n - 5, ".sock") == 0)) {
        kv_fail_field(err, "--host", "--host: kvasir does not listen on UNIX sockets; give an address");
        if (err) err->status = KV_UNSUPPORTED;
        return KV_UNSUPPORTED;
    }
    if (kv_options_host_is_loopback(o->host) || o->api_key.n > 0 || o->api_key_file || o->no_auth) return KV_OK;
    return kv_fail_field(err, "--host",
                         "--host %.80s can be reached from other machines, and no key is set: give --api-key-file FILE "
                         "(or --api-key KEY), listen on 127.0.0.1, or say --no-auth if everyone may use it",
                         o->host);
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

static kv_status check_embeddings(const kv_options *o, kv_error *err) {
    bool rank = o->pooling && strcmp(o->pooling, "rank") == 0;
    if (o->reranking && o->pooling && !rank)
        return kv_fail_field(err, "--pooling", "--reranking needs --pooling rank, not %s: leave one of them out",
                             o->pooling);
    return KV_OK;
}

kv_status kv_options_check(const kv_options *o, kv_error *err) {
    if (!o->model && !o->fake) return kv_fail_field(err, "--model", "no model: give one with -m FILE.gguf");
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
    if (o->n_ctx > 0 && o->n_parallel > 0 && o->kv_unified != 1 && o->n_ctx / o->n_parallel < 256)
        return kv_fail_field(err, "--ctx-size",
                             "--ctx-size %lld over %lld slots leaves %lld tokens each, less than 256: "
                             "give a larger -c, fewer -np, or -kvu",
                             (long long)o->n_ctx, (long long)o->n_parallel, (long long)(o->n_ctx / o->n_parallel));
    if (o->rope_scale > 0 && o->rope_freq_scale > 0)
        return kv_fail_field(err, "--rope-scale", "--rope-scale and --rope-freq-scale exclude each other: give one");
    if (o->api_prefix && (o->api_prefix[0] != '/' || o->api_prefix[strlen(o->api_prefix) - 1] == '/'))
        return kv_fail_field(err, "--api-prefix",
                             "--api-prefix: got \"%.80s\", takes a path that begins with '/' and does "
                             "not end with it",
                             o->api_prefix);
    kv_status st = check_pairs(o, err);
    if (st == KV_OK) st = check_embeddings(o, err);
    return st == KV_OK ? check_host(o, err) : st;
}
