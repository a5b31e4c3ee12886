#include "cli/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cache_tool.h"
#include "cli/cli.h"
#include "cli/doctor_tool.h"
#include "cli/find_model.h"
#include "cli/load.h"
#include "engine/llama_lib.h"
#include "options/table.h"

static const char usage[] =
    "usage: kvasir doctor [-m FILE.gguf] [options of `kvasir serve`] [--no-speed] [--json]\n"
    "Looks at the cache's directory and disk, memory, processors and limits, at the engine, and at settings that cost\n"
    "cache, wherever they stand (command line, environment, --config FILE). One line each: ok, warn or bad, and what "
    "to\n"
    "do. With -m it also loads the model and says how much of what is stored it can use, and what made the rest "
    "useless.\n"
    "  --no-speed   write nothing: leave the disk's speed out (64 MiB, removed at once)\n"
    "  --json       one JSON object: {\"findings\": [{\"level\", \"check\", \"text\", \"advice\", \"values\"}, …], …}\n"
    "Exit status: 0 nothing is bad, 1 something is, 2 wrong usage.\n";

#define DAY_S           86400
#define LITTLE_TO_WRITE (1ll << 30) /* a day: a few long conversations */

/* ── findings ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *const verdict_names[KV_VERDICT_COUNT] = {"ok", "warn", "bad"};

void kv_doctor_find(kv_doctor_tool *t, kv_verdict verdict, const char *check, const char *advice, json_t *values,
                    const char *fmt, ...) {
    char raw[1600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    t->n[verdict]++;
    json_t *o = json_object();
    json_object_set_new(o, "level", json_string(verdict_names[verdict]));
    json_object_set_new(o, "check", json_string(check));
    json_object_set_new(o, "text", kv_json_text0(raw));
    if (advice) json_object_set_new(o, "advice", json_string(advice));
    if (values) json_object_set_new(o, "values", values);
    json_array_append_new(t->findings, o);
    if (t->json) return;
    kv_buf line = {0};
    kv_buf_addf(&line, "%-4s  %-15s  ", verdict_names[verdict], check);
    kv_cache_add_clean(&line, raw);
    if (advice) kv_buf_addf(&line, " → %s", advice);
    puts(line.data);
    fflush(stdout); /* the next check may take a while */
    kv_buf_free(&line);
}

/* ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *variable_of(char *const *env, const char *name) {
    size_t n = strlen(name);
    for (; env && *env; env++)
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return name;
    return NULL;
}

static bool on_command_line(const kv_doctor_tool *t, const kv_opt *o) {
    for (int i = 1; i < t->argc; i++) {
        size_t n = strcspn(t->argv[i], "=");
        if (kv_opt_list_has(o->names, t->argv[i], n) || (o->neg && kv_opt_list_has(o->neg, t->argv[i], n))) return true;
    }
    return false;
}

/* Appends " (from …)" unless it stands on this very command line. */
static void add_source(kv_buf *out, const kv_doctor_tool *t, const kv_opt *o) {
    char name[64], own[80];
    if (on_command_line(t, o)) return;
    snprintf(own, sizeof own, "KVASIR_%.64s", kv_opt_name(o->names, name, sizeof name));
    for (char *p = own; *p; p++) *p = *p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
    const char *from = variable_of(t->env, own);
    if (!from && o->env) from = variable_of(t->env, o->env);
    kv_buf_addf(out, " (from %s)", from ? from : t->opt.config ? t->opt.config : "the environment");
}

static void find_option(kv_doctor_tool *t, const char *name, const char *what, const char *advice) {
    bool negated;
    const kv_opt *o = kv_opt_find(name, strlen(name), &negated);
    KV_CHECK(o != NULL);
    kv_buf text = {0}, value = {0};
    if (o->kind == OPT_BOOL) kv_buf_adds(&text, name);
    else {
        kv_opt_format(&value, &t->opt, o);
        kv_buf_addf(&text, "%s %.200s", name, kv_buf_str(&value));
    }
    add_source(&text, t, o);
    kv_doctor_find(t, KV_VERDICT_WARN, "setting", advice, json_pack("{s:s}", "option", name), "%s: %s",
                   kv_buf_str(&text), what);
    kv_buf_free(&text);
    kv_buf_free(&value);
}

static const char keep[] = "keep it the same from start to start";

/* What K and V hang on (cache/namespace.h). */
static const char *const dividing[] = {
    "--cache-type-k",    "--cache-type-v",     "--lora",           "--lora-scaled",     "--override-kv",
    "--rope-scaling",    "--rope-scale",       "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx",
    "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast",
};

static int find_dividing(kv_doctor_tool *t, const kv_options *usual) {
    int found = 0;
    for (size_t i = 0; i < sizeof dividing / sizeof *dividing; i++) {
        bool negated;
        const kv_opt *o = kv_opt_find(dividing[i], strlen(dividing[i]), &negated);
        KV_CHECK(o != NULL);
        if (kv_opt_equal(&t->opt, usual, o)) continue;
        find_option(t, dividing[i], "has a cache of its own: what was stored with another value is not used", keep);
        found++;
    }
    if (variable_of(t->env, "LLAMA_ATTN_ROT_DISABLE")) {
        kv_doctor_find(t, KV_VERDICT_WARN, "setting", keep, json_pack("{s:s}", "option", "LLAMA_ATTN_ROT_DISABLE"),
                       "LLAMA_ATTN_ROT_DISABLE is set: with quantised K and V a cache of its own");
        found++;
    }
    return found;
}

static bool runs_on_cpu(const kv_options *o) {
    return o->n_gpu_layers == 0 || (o->devices && strcmp(o->devices, "none") == 0) ||
           (kv_llama_lib_init(NULL) == KV_OK && !kv_llama_lib_has_gpu());
}

static void check_settings(kv_doctor_tool *t) {
    const kv_options *o = &t->opt;
    kv_options usual;
    kv_options_defaults(&usual);
    bool small = kv_load_choose_block(o, 0) < kv_load_choose_block(&usual, 0);
    bool ubatch = o->n_ubatch > 0 && (o->n_batch <= 0 || o->n_ubatch <= o->n_batch);
    const struct {
        bool costs;
        const char *name, *what, *advice;
    } list[] = {
        {o->cache_disk == 0, "--cache-disk", "every conversation is gone when the server ends", "leave it out"},
        {o->cache_ram == 0, "--cache-ram", "what left its slot and is not on disk is computed again", "leave it out"},
        {!o->cache_prompt, "--no-cache-prompt", "requests that do not ask for it reuse and leave nothing",
         "leave it out"},
        {o->cache_readonly, "--cache-readonly", "nothing new is kept", "leave it out once the cache may grow"},
        {o->exact, "--exact", "one request at a time, and only what --exact itself stored is used",
         "leave it out unless answers must be a cold run's, bit for bit"},
        {small, ubatch ? "--ubatch-size" : "--batch-size",
         "less than a block of 256 tokens: more and smaller files, and what is stored in other blocks is not used",
         "256 or more"},
        {o->flash_attn == KV_FA_ON && runs_on_cpu(o), "--flash-attn",
         "on a CPU each token of an answer, and each short rest of a prompt, takes longer with it",
         "leave it out: it is measured once"},
        {o->cache_max_age > 0 && o->cache_max_age < DAY_S, "--cache-max-age", "what is not used for hours is removed",
         "a day or more"},
        {o->cache_write_max > 0 && o->cache_write_max < LITTLE_TO_WRITE, "--cache-write-max",
         "after a few long prompts a day only what came back before is stored", "some GB a day"},
    };
    int found = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (!list[i].costs) continue;
        find_option(t, list[i].name, list[i].what, list[i].advice);
        found++;
    }
    found += find_dividing(t, &usual);
    if (!found) kv_doctor_find(t, KV_VERDICT_OK, "settings", NULL, NULL, "none that costs cache");
    kv_options_free(&usual);
}

/* As `serve` would refuse them; that no model is named is fine here. */
static void check_together(kv_doctor_tool *t) {
    kv_error err = {0};
    char *model = t->opt.model;
    if (!model) t->opt.model = "";
    kv_status st = kv_options_check(&t->opt, &err);
    t->opt.model = model;
    if (st != KV_OK)
        kv_doctor_find(t, KV_VERDICT_BAD, "settings", "a server does not start with them", NULL, "%s", err.message);
}

/* ── the model's cache ─────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct usable {
    char base[33]; /* hash of the namespace without its scope */
    uint64_t bytes, records, all_bytes;
} usable;

static void count_usable(void *ctx, kv_hash ns, const char *about_json, uint64_t bytes, uint64_t records) {
    (void)ns;
    usable *u = ctx;
    json_t *about = NULL;
    u->all_bytes += bytes;
    if (!*about_json || kv_json_parse(&about, about_json, strlen(about_json), NULL) != KV_OK) return;
    const char *base = json_string_value(json_object_get(about, "namespace"));
    if (base && strcmp(base, u->base) == 0) {
        u->bytes += bytes;
        u->records += records;
    }
    json_decref(about);
}

static kv_status look_into_store(kv_doctor_tool *t, const kv_namespace *ns, kv_error *err) {
    kv_store *s = NULL;
    usable u = {0};
    kv_buf why = {0}, text = {0};
    kv_store_config cfg = {.dir = kv_buf_str(&t->disk.dir), .budget = KV_STORE_BUDGET_LAST, .read_only = true};
    kv_status st = kv_store_open(&s, &cfg, err);
    if (st != KV_OK) return st;
    kv_hash_hex(u.base, kv_namespace_hash(ns));
    st = kv_store_namespaces(s, count_usable, &u, err);
    if (st == KV_OK) st = kv_namespace_report(&why, s, ns, NULL, err);
    if (st == KV_OK) {
        kv_cache_add_bytes(&text, u.bytes);
        kv_buf_addf(&text, " in %llu records can be used, of ", (unsigned long long)u.records);
        kv_cache_add_bytes(&text, u.all_bytes);
        kv_buf_adds(&text, " stored for all models");
        if (why.len) kv_buf_addf(&text, "; %s", why.data);
        json_t *values =
            json_pack("{s:I, s:I, s:I, s:s}", "usable_bytes", (json_int_t)u.bytes, "usable_records",
                      (json_int_t)u.records, "all_bytes", (json_int_t)u.all_bytes, "unusable", kv_buf_str(&why));
        kv_doctor_find(t, why.len ? KV_VERDICT_WARN : KV_VERDICT_OK, "model's cache",
                       why.len ? "start with the settings of then, or `kvasir cache rm` what will not come back" : NULL,
                       values, "%s", kv_buf_str(&text));
    }
    kv_store_close(s);
    kv_buf_free(&why);
    kv_buf_free(&text);
    return st;
}

static void check_model(kv_doctor_tool *t) {
    kv_loaded l = {0};
    kv_error err = {0};
    t->opt.warmup = false;
    t->opt.mlock = false;
    kv_status st = kv_load_plan(&l, &t->opt, NULL, NULL, &err);
    if (st == KV_OK) st = kv_load_engine(&l, &t->opt, &err);
    if (st != KV_OK) {
        kv_doctor_find(t, KV_VERDICT_BAD, "model", "a server does not start with it", NULL, "%s", err.message);
        kv_loaded_free(&l);
        return;
    }
    const kv_model_info *m = kv_model_get_info(l.model);
    const kv_engine_info *e = kv_engine_get_info(l.engine);
    bool cached = !kv_memory_has_window(e->memory) || l.block <= e->n_window;
    if (e->memory == KV_MEMORY_NONE) {
        kv_doctor_find(t, KV_VERDICT_OK, "model", NULL,
                       json_pack("{s:s, s:s, s:s, s:i}", "name", m->name ? m->name : "", "arch", m->arch ? m->arch : "",
                                 "memory", kv_memory_kind_name(e->memory), "context", (int)l.plan.n_ctx),
                       "%s, architecture %s, an encoder: context %d, nothing to cache", m->name ? m->name : "?",
                       m->arch ? m->arch : "?", (int)l.plan.n_ctx);
        kv_loaded_free(&l);
        return;
    }
    kv_doctor_find(t, cached ? KV_VERDICT_OK : KV_VERDICT_WARN, "model", NULL,
                   json_pack("{s:s, s:s, s:s, s:i, s:i, s:b}", "name", m->name ? m->name : "", "arch",
                             m->arch ? m->arch : "", "memory", kv_memory_kind_name(e->memory), "context",
                             (int)l.plan.n_ctx, "block", (int)l.block, "flash_attention", e->flash_attn),
                   "%s, architecture %s, memory %s, context %d, %s %d, flash attention %s", m->name ? m->name : "?",
                   m->arch ? m->arch : "?", kv_memory_kind_name(e->memory), (int)l.plan.n_ctx,
                   cached ? "blocks of" : "no cache beside the slots: its window is smaller than a block of",
                   (int)l.block, e->flash_attn ? "on" : "off");
    if (cached && t->disk.budget && kv_doctor_has_cache(t)) {
        st = kv_load_namespace(&l, &t->opt, &err);
        if (st == KV_OK) st = look_into_store(t, &l.ns, &err);
        if (st != KV_OK) kv_doctor_find(t, KV_VERDICT_BAD, "model's cache", NULL, NULL, "%s", err.message);
    } else if (cached) {
        kv_doctor_find(t, KV_VERDICT_OK, "model's cache", NULL, NULL, "nothing is stored yet");
    }
    kv_loaded_free(&l);
}

/* ── the command ───────────────────────────────────────────────────────────────────────────────────────────────── */

static int run(kv_doctor_tool *t) {
    kv_log_config log = {.level = KV_LOG_ERROR};
    (void)kv_log_init(&log, NULL);
    kv_doctor_engine(t);
    kv_doctor_memory(t);
    kv_doctor_processors(t);
    kv_doctor_files(t);
    kv_doctor_disk(t);
    kv_doctor_speed(t);
    check_together(t);
    check_settings(t);
    kv_error err = {0};
    if (kv_find_model(&t->opt, true, &err) != KV_OK) fprintf(stderr, "kvasir doctor: %s\n", err.message);
    if (t->opt.model || t->opt.fake) check_model(t);
    if (t->json) {
        json_t *o = json_pack("{s:i, s:i, s:i, s:O}", "ok", t->n[KV_VERDICT_OK], "warn", t->n[KV_VERDICT_WARN], "bad",
                              t->n[KV_VERDICT_BAD], "findings", t->findings);
        kv_buf text = {0};
        kv_json_dump(&text, o);
        puts(kv_buf_str(&text));
        kv_buf_free(&text);
        json_decref(o);
    }
    kv_log_close();
    if (fflush(stdout) != 0) return KV_EXIT_FAILURE;
    return t->n[KV_VERDICT_BAD] ? KV_EXIT_FAILURE : KV_EXIT_OK;
}

/* doctor's own words out of argv; the rest is serve's. */
static bool take_own(kv_doctor_tool *t, int argc, char **argv) {
    bool help = false;
    t->argv = kv_alloc(((size_t)argc + 1) * sizeof *t->argv);
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) t->json = true;
        else if (strcmp(argv[i], "--no-speed") == 0) t->no_speed = true;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) help = true;
        else t->argv[t->argc++] = argv[i];
    }
    return help;
}

int kv_doctor(int argc, char **argv, char *const *env) {
    kv_doctor_tool t = {.env = env};
    kv_buf warnings = {0};
    kv_error err = {0};
    int status = KV_EXIT_OK;
    bool help = take_own(&t, argc, argv);
    kv_options_defaults(&t.opt);
    t.findings = json_array();
    if (help) {
        fputs(usage, stdout);
    } else if (kv_options_parse(&t.opt, t.argc, t.argv, env, &warnings, &err) != KV_OK) {
        fprintf(stderr, "kvasir doctor: %s\n(`kvasir doctor --help` shows how)\n", err.message);
        status = KV_EXIT_USAGE;
    } else {
        fputs(kv_buf_str(&warnings), stderr);
        status = run(&t);
    }
    kv_buf_free(&warnings);
    kv_disk_plan_free(&t.disk);
    kv_options_free(&t.opt);
    json_decref(t.findings);
    free(t.argv);
    return status;
}
