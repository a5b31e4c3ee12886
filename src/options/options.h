/* options/options.h: every setting, from four places: flag > KVASIR_… > LLAMA_ARG_… > --config file > default.
 *
 * One table (table.c) holds each option once: its names, environment variables, kind, range, group, help
 * line and where in kv_options it goes. Parsing, --help, `help markdown`, --print-config, the man page and the
 * completions are made from it. Options that llama-server has and kvasir has not stand in foreign.c, each with what
 * becomes of it.
 *
 * Environment: KVASIR_<LONG NAME>, with '-' as '_': KVASIR_CTX_SIZE; and what follows llama-server's LLAMA_ARG_.
 * Config file: `name = value` lines, names without dashes in front; '#' begins a comment at the start of a line or
 * after a blank; a value that needs it stands in double quotes, with JSON's escapes. A repeated name adds to a list.
 *
 * Thread rule: filled by main before any thread starts; read-only afterwards.
 */
#ifndef KV_OPTIONS_OPTIONS_H
#define KV_OPTIONS_OPTIONS_H

#include "base/buf.h"
#include "base/error.h"
#include "engine/engine.h"
#include <stdbool.h>
#include <stdint.h>

#define KV_CACHE_RAM_AUTO   (-2)
#define KV_CACHE_DISK_AUTO  (-1)
#define KV_OPTIONS_MAX_LIST 32

typedef struct kv_str_list {
    char *item[KV_OPTIONS_MAX_LIST]; /* owned */
    int n;
} kv_str_list;

typedef struct kv_options {
    /* model */
    char *model;         /* -m, --model */
    char *hf_repo;       /* -hf USER/REPO[:QUANT]; hub/ finds or fetches it, cli/ puts the file's name into `model` */
    char *hf_file;       /* -hff: that file of the repository */
    char *hf_token;      /* -hft, HF_TOKEN */
    char *model_url;     /* -mu; with -m, that is where it is put */
    bool offline;        /* --offline: nothing is fetched */
    bool cache_list;     /* -cl: print the models in the caches */
    char *alias;         /* -a, --alias (comma-separated) */
    char *chat_template; /* --chat-template: name or Jinja source */
    char *chat_template_file;
    char *chat_template_kwargs;
    char *lora, *lora_scaled; /* comma-separated paths; PATH:SCALE */
    kv_str_list override_kv;
    bool strict_model;
    bool mmap, mlock, check_tensors;
    char *fake;        /* --test-fake KIND: engine_fake instead of a model (tests) */
    bool test_sampler; /* --test-sampler: accept the request field that plays an answer (tests) */
    char *test_script; /* --test-script FILE: what chats are answered (tests; api/script.h) */
    int64_t slow_disk; /* --test-slow-disk: milliseconds that each write of the cache's files takes longer (tests) */
    /* engine */
    int64_t n_ctx;                  /* -c; 0 = automatic */
    int64_t n_parallel;             /* -np; -1 = automatic */
    bool n_parallel_set;            /* given explicitly */
    int kv_unified;                 /* -kvu; -1 = automatic */
    int64_t n_batch, n_ubatch;      /* -b, -ub; 0 = automatic */
    int64_t threads, threads_batch; /* -t, -tb; -1 = automatic */
    kv_flash_attn flash_attn;       /* -fa on|off|auto */
    char *type_k, *type_v;          /* -ctk, -ctv */
    int64_t n_gpu_layers;           /* -ngl N|auto|all; -1 = all that fit */
    char *devices, *split_mode, *tensor_split;
    int64_t main_gpu;
    bool kv_offload, op_offload;
    char *rope_scaling;
    double rope_freq_base, rope_freq_scale, rope_scale;
    double yarn_ext_factor, yarn_attn_factor, yarn_beta_slow, yarn_beta_fast;
    int64_t yarn_orig_ctx;
    bool warmup;
    /* sampling defaults; the same names as kv_sampling */
    kv_sampling sampling;
    char *samplers, *sampler_seq;
    int64_t n_predict; /* -n; -1 = up to the context limit */
    char *grammar, *grammar_file, *json_schema, *json_schema_file;
    kv_str_list dry_breaker; /* --dry-sequence-breaker; "none" = no breakers */
    bool escape;             /* -e: those texts have escapes, such as \\n */
    kv_str_list logit_bias;  /* TOKEN+BIAS or TOKEN-BIAS */
    /* chat */
    char *reasoning_format; /* none | auto | deepseek | deepseek-legacy */
    int64_t reasoning_budget;
    char *reasoning_budget_message;
    int reasoning;          /* --reasoning on|off|auto: 1, 0, -1 */
    char *reasoning_effort; /* put into chat_template_kwargs after parsing; NULL = the template's default */
    int reasoning_preserve; /* likewise; 1, 0, -1 = the template's default */
    bool jinja;
    char *on_image;           /* error | placeholder */
    kv_str_list canonicalise; /* --canonicalise: rules of chat/canonical.h, or "all" or "none" */
    /* scheduling */
    int64_t max_stall_ms, max_wait_ms, max_queue;
    double slot_prompt_similarity;
    /* cache */
    int64_t cache_ram;                      /* -cram, --cache-ram: MiB; 0 = none; KV_CACHE_RAM_AUTO */
    bool cache_prompt;                      /* --no-cache-prompt turns it off */
    char *cache_dir;                        /* NULL = the platform's */
    int64_t cache_disk;                     /* bytes; 0 = none; KV_CACHE_DISK_AUTO */
    int64_t cache_max_age, cache_write_max; /* seconds; bytes a day; 0 = no limit */
    int64_t cache_checkpoints;              /* bytes for each conversation; -1 = auto */
    bool cache_readonly;
    bool exact;                /* --exact */
    double sleep_idle_seconds; /* --sleep-idle-seconds; -1 = never */
    /* server */
    kv_str_list host; /* addresses, names, paths of UNIX sockets; at least one */
    int64_t port;
    bool reuse_port;
    char *ssl_key_file, *ssl_cert_file; /* both or none */
    char *api_prefix;
    kv_str_list api_key;
    char *api_key_file;
    bool no_auth;
    char *cors_origins; /* --cors-origins */
    kv_str_list allowed_host;
    int64_t sse_ping_interval; /* seconds, -1 = off */
    double stop_timeout;       /* seconds */
    int64_t max_body_mib, max_headers_kib, max_connections, idle_timeout;
    bool ui, slots_endpoint, metrics_endpoint, props_endpoint;
    char *slot_save_path; /* directory of slot files; NULL = none */
    bool embeddings, reranking, spm_infill;
    char *pooling; /* none, mean, cls, last, rank; NULL = the model's */
    int64_t embd_normalize;
    bool plain_json;
    char *state_dir;                               /* NULL = the platform's */
    int64_t responses_max_age, responses_max_size; /* seconds, bytes; 0 = no limit */
    /* process */
    char *config; /* --config FILE */
    int64_t verbosity;
    char *log_file;
    bool log_jsonl, log_timestamps;
    bool check; /* --check */
    bool print_config, help, version, completion;
    /* what parsing made of the texts above; `sampling` points into it, so a filled kv_options is never copied */
    kv_str_list sampler_name, dry_breaker_text;
    kv_logit_bias *logit_bias_item; /* owned */
} kv_options;

#define KV_NGL_ALL 99999 /* -ngl all: more layers than any model has */

void kv_options_defaults(kv_options *o);
/* Reads environment, config file and argv[1..argc). KV_INVALID names the option, what it got and what it takes, and
 * for an unknown one the nearest known; KV_UNSUPPORTED for a llama-server option whose feature is not there. Warnings
 * (an option without meaning here) are appended to `warnings`, a line each. */
kv_status kv_options_parse(kv_options *o, int argc, char **argv, char *const *env, kv_buf *warnings, kv_error *err);
/* Cross-checks: quantised V needs flash attention, an outside address needs a key … */
kv_status kv_options_check(const kv_options *o, kv_error *err);
/* NULL = all groups; KV_NOT_FOUND naming the groups for an unknown one. "llama-server" lists foreign options. */
kv_status kv_options_help(kv_buf *out, const char *group, kv_error *err);
void kv_options_markdown(kv_buf *out);                   /* one table a group */
void kv_options_print(kv_buf *out, const kv_options *o); /* as a --config file, secrets left out */
void kv_options_free(kv_options *o);
/* True for what ends in ".sock" or has a '/': llama-server's rule is the ending. */
bool kv_options_host_is_socket(const char *host);
/* True for 127.0.0.0/8, ::1, "localhost" and UNIX sockets: what only this machine reaches, and so needs no key. */
bool kv_options_host_is_loopback(const char *host);

#endif
