#include "cli/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/engine_fake.h"
#include "os/machine.h"
#include "plan/remember.h"

#define TEXT_FILE_MAX (4u << 20) /* templates, grammars and schemas */
#define MAX_LORAS     32
/* 256 tokens: with 10–200 KiB a token a block is a few MiB, the size at which a disk reads at full speed. */
#define BLOCK       256
#define BLOCK_LEAST 16

/* ── model ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The text itself, or the file's content; *out is owned, NULL when neither is given. */
static kv_status text_or_file(char **out, const char *text, const char *path, kv_error *err) {
    kv_buf b = {0};
    *out = kv_strdup(text);
    if (!path) return KV_OK;
    kv_status st = kv_file_read(&b, path, TEXT_FILE_MAX, err);
    if (st == KV_OK && b.len > 0) *out = kv_buf_take(&b);
    if (st == KV_OK && !*out) st = kv_fail(err, KV_INVALID, "%s is empty", path);
    kv_buf_free(&b);
    return st;
}

/* "a.gguf,b.gguf" and "c.gguf:0.5". `texts` owns the paths. */
static kv_status add_loras(kv_lora_spec *specs, int *n, char *texts, bool scaled, kv_error *err) {
    char *save = NULL;
    for (char *item = texts ? strtok_r(texts, ",", &save) : NULL; item; item = strtok_r(NULL, ",", &save)) {
        float scale = 1;
        if (*n == MAX_LORAS) return kv_fail_field(err, "--lora", "--lora: more than %d adapters", MAX_LORAS);
        if (scaled) {
            char *colon = strrchr(item, ':'), *end = NULL;
            if (colon) scale = strtof(colon + 1, &end);
            if (!colon || end == colon + 1 || *end)
                return kv_fail_field(err, "--lora-scaled",
                                     "--lora-scaled: got \"%.100s\", takes FILE:SCALE, such as "
                                     "style.gguf:0.5",
                                     item);
            *colon = 0;
        }
        specs[(*n)++] = (kv_lora_spec){.path = item, .scale = scale};
    }
    return KV_OK;
}

static kv_status load_real(kv_loaded *l, const kv_options *opt, const char *chat_template,
                           bool (*progress)(void *, float), void *ctx, kv_error *err) {
    kv_lora_spec loras[MAX_LORAS];
    int n_loras = 0;
    char *plain = kv_strdup(opt->lora), *scaled = kv_strdup(opt->lora_scaled);
    kv_status st = add_loras(loras, &n_loras, plain, false, err);
    if (st == KV_OK) st = add_loras(loras, &n_loras, scaled, true, err);
    if (st == KV_OK)
        st = kv_model_load_llama(&l->model,
                                 &(kv_model_params){
                                     .path = opt->model,
                                     .alias = opt->alias,
                                     .n_gpu_layers = (int)opt->n_gpu_layers,
                                     .devices = opt->devices,
                                     .split_mode = opt->split_mode,
                                     .tensor_split = opt->tensor_split,
                                     .main_gpu = (int)opt->main_gpu,
                                     .use_mmap = opt->mmap,
                                     .use_mlock = opt->mlock,
                                     .check_tensors = opt->check_tensors,
                                     .chat_template = chat_template,
                                     .kv_overrides = (const char *const *)opt->override_kv.item,
                                     .n_kv_overrides = opt->override_kv.n,
                                     .loras = loras,
                                     .n_loras = n_loras,
                                     .progress = progress,
                                     .progress_ctx = ctx,
                                 },
                                 err);
    free(plain);
    free(scaled);
    return st;
}

static kv_status load_fake(kv_loaded *l, const kv_options *opt, const char *chat_template, kv_error *err) {
    kv_fake_params p;
    kv_fake_params_defaults(&p);
    if (!kv_fake_kind_parse(&p.memory, opt->fake))
        return kv_fail_field(err, "--test-fake", "--test-fake: there is no kind \"%s\"", opt->fake);
    p.vocab_path = opt->model;
    p.chat_template = chat_template;
    return kv_model_load_fake(&l->model, &p, err);
}

static kv_status load_model(kv_loaded *l, const kv_options *opt, bool (*progress)(void *, float), void *ctx,
                            kv_error *err) {
    char *chat_template = NULL;
    kv_status st = text_or_file(&chat_template, opt->chat_template, opt->chat_template_file, err);
    if (st == KV_OK)
        st = opt->fake ? load_fake(l, opt, chat_template, err) : load_real(l, opt, chat_template, progress, ctx, err);
    free(chat_template);
    return st;
}

/* ── engine settings ───────────────────────────────────────────────────────────────────────────────────────────── */

static int32_t smaller(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}

/* -b and -ub both bound a chunk; 0 = neither is given. */
static int32_t chunk_cap(const kv_options *opt) {
    if (opt->n_batch > 0 && opt->n_ubatch > 0) return smaller(opt->n_batch, opt->n_ubatch);
    return (int32_t)(opt->n_batch > 0 ? opt->n_batch : opt->n_ubatch);
}

/* Tokens of a block: 256, or the largest power of two within the window; nor larger than the largest chunk. */
int32_t kv_load_choose_block(const kv_options *opt, int32_t n_window) {
    int32_t block = BLOCK, cap = chunk_cap(opt);
    while (n_window > 0 && block > n_window && block > BLOCK_LEAST) block /= 2;
    while (cap > 0 && block > cap && block > BLOCK_LEAST) block /= 2;
    return block;
}

static void engine_params(kv_loaded *l, const kv_options *opt) {
    kv_engine_params *p = &l->params;
    const kv_model_info *m = kv_model_get_info(l->model);
    kv_engine_params_defaults(p);
    p->n_slots = opt->exact ? 1 : opt->n_parallel > 0 ? (int32_t)opt->n_parallel : m->n_window > 0 ? 2 : 4;
    p->n_threads = opt->threads > 0 ? (int32_t)opt->threads : kv_machine_cores();
    p->n_threads_batch = opt->threads_batch > 0 ? (int32_t)opt->threads_batch : p->n_threads;
    p->type_k = opt->type_k;
    p->type_v = opt->type_v;
    p->offload_kqv = opt->kv_offload;
    p->op_offload = opt->op_offload;
    p->rope_freq_base = (float)opt->rope_freq_base;
    p->rope_freq_scale = (float)(opt->rope_scale > 0 ? 1 / opt->rope_scale : opt->rope_freq_scale);
    p->rope_scaling = opt->rope_scaling;
    p->yarn_ext_factor = (float)opt->yarn_ext_factor;
    p->yarn_attn_factor = (float)opt->yarn_attn_factor;
    p->yarn_beta_fast = (float)opt->yarn_beta_fast;
    p->yarn_beta_slow = (float)opt->yarn_beta_slow;
    p->yarn_orig_ctx = (int32_t)opt->yarn_orig_ctx;
    kv_buf_addf(&l->placement, "ngl %lld dev %s sm %s ts %s mg %lld", (long long)opt->n_gpu_layers,
                opt->devices ? opt->devices : "", opt->split_mode ? opt->split_mode : "",
                opt->tensor_split ? opt->tensor_split : "", (long long)opt->main_gpu);
}

/* The directory for what is remembered; NULL (and `out` empty) where there is none. */
static const char *state_dir(kv_buf *out, const kv_options *opt) {
    if (opt->fake) return NULL;
    if (opt->state_dir) kv_buf_adds(out, opt->state_dir);
    else if (kv_dir_state(out, NULL) != KV_OK) return NULL;
    return kv_buf_str(out);
}

static kv_status choose_tuning(kv_loaded *l, const kv_options *opt, const char *dir, kv_error *err) {
    int32_t cap = chunk_cap(opt);
    if (opt->fake) { /* costs nothing, so there is nothing to measure */
        l->tuning = (kv_tuning){.flash_attn = opt->flash_attn == KV_FA_ON, .min_chunk = 16, .on_cpu = true};
        l->tuning.chunk = cap > 0 ? cap / l->block * l->block : BLOCK;
        snprintf(l->tuning.reason, sizeof l->tuning.reason, "a made-up engine of kind %s: nothing is measured",
                 opt->fake);
        return KV_OK;
    }
    kv_tune_ask ask = {
        /* the CPU's kernel sums over cells in an order that depends on where the window lies */
        .flash_attn = opt->exact && opt->flash_attn < 0 && kv_model_get_info(l->model)->n_window > 0 ? KV_FA_OFF
                                                                                                     : opt->flash_attn,
        .chunk = opt->n_ubatch > 0 ? cap : 0,
        .chunk_max = cap,
        .block = l->block,
        .cpu_only = opt->n_gpu_layers == 0 || (opt->devices && strcmp(opt->devices, "none") == 0),
        .placement = kv_buf_str(&l->placement),
        .state_dir = dir,
    };
    return kv_tune(&l->tuning, l->model, &l->params, &ask, kv_clock_real(), err);
}

/* ── plan ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status make_plan(kv_loaded *l, const kv_options *opt, int64_t n_ctx, kv_error *err) {
    bool unified = opt->kv_unified == 1;
    kv_status st = kv_plan_make(&l->plan, &l->shape, l->bytes_available, (int32_t)n_ctx, l->params.n_slots,
                                opt->n_parallel_set && opt->kv_unified != 1, unified, l->params.n_batch, err);
    if (st == KV_OK && opt->n_ctx > 0 && opt->n_ctx / l->params.n_slots < 256 && l->plan.n_ctx > opt->n_ctx + 255)
        KV_WARN("--ctx-size %lld is less than 256 tokens for each of %d slots: rounded up to %d (-kvu shares them)",
                (long long)opt->n_ctx, l->params.n_slots, (int)l->plan.n_ctx);
    return st;
}

/* The automatic context depends on the memory that happens to be free. It is kept from start to start while it fits
 * and is not less than half of what would be chosen today: clients see the limit, and it can decide between the long
 * and short factors of a model, hence what its cache is worth. */
static kv_status plan_automatic(kv_loaded *l, const kv_options *opt, const char *dir, kv_error *err) {
    const kv_model_info *m = kv_model_get_info(l->model);
    const kv_engine_params *p = &l->params;
    kv_buf key = {0}, machine = {0};
    kv_error inner = {0};
    int64_t kept = 0;
    kv_status st = make_plan(l, opt, 0, err);
    if (st != KV_OK || !dir) return st;
    kv_machine_fingerprint(&machine);
    kv_buf_addf(&key, "context/%s/%s/%llu/%s/%llu/%s/%s-%s/fa%d/s%d-%d-%d/b%d", m->arch, m->desc,
                (unsigned long long)m->size_bytes, kv_buf_str(&machine), (unsigned long long)kv_machine_memory_total(),
                kv_buf_str(&l->placement), p->type_k, p->type_v, l->tuning.flash_attn, p->n_slots, opt->n_parallel_set,
                opt->kv_unified, p->n_batch);
    json_t *value = kv_remember_get(dir, kv_buf_str(&key));
    int32_t today = l->plan.n_ctx;
    bool known = kv_json_as_int(&kept, value, 1, today * 2LL) && kept >= today / 2;
    if (known && kept != today && make_plan(l, opt, kept, &inner) != KV_OK) {
        known = false;
        st = make_plan(l, opt, 0, err);
    }
    if (st == KV_OK && !known && kv_remember_put(dir, kv_buf_str(&key), json_integer(today), &inner) != KV_OK)
        KV_DEBUG("the context length cannot be remembered: %s", inner.message);
    json_decref(value);
    kv_buf_free(&key);
    kv_buf_free(&machine);
    return st;
}

/* A batch is never larger than the context (libllama would cut it), and a chunk leaves room for a token of each slot:
 * only contexts of a few hundred tokens are touched by this. */
static void fit_chunk(kv_loaded *l) {
    kv_tuning *t = &l->tuning;
    while (t->chunk + l->params.n_slots > l->plan.n_ctx && t->chunk > 1) {
        if (t->chunk > l->block) t->chunk -= l->block;
        else t->chunk = l->block = l->block / 2;
    }
    if (t->min_chunk > t->chunk) t->min_chunk = t->chunk;
    l->params.n_batch = t->chunk + l->params.n_slots;
    l->params.n_ctx = l->plan.n_ctx;
}

static kv_status read_grammar(kv_loaded *l, const kv_options *opt, kv_error *err) {
    char *schema = NULL;
    kv_status st = text_or_file(&l->grammar, opt->grammar, opt->grammar_file, err);
    l->grammar_type = l->grammar ? KV_GRAMMAR_USER : KV_GRAMMAR_NONE;
    if (st == KV_OK) st = text_or_file(&schema, opt->json_schema, opt->json_schema_file, err);
    if (st == KV_OK && schema) {
        kv_buf gbnf = {0};
        st = kv_schema_to_grammar(&gbnf, schema, err);
        if (st == KV_OK) {
            l->grammar = kv_buf_take(&gbnf);
            l->grammar_type = KV_GRAMMAR_SCHEMA;
        }
        kv_buf_free(&gbnf);
    }
    free(schema);
    return st;
}

/* What every request begins with must be able to run: unknown samplers and bad grammars show here, not in answers. */
static kv_status check_sampling(const kv_loaded *l, const kv_options *opt, kv_error *err) {
    kv_sampling s;
    kv_sampler *sampler = NULL;
    kv_load_sampling(&s, l, opt);
    kv_status st = kv_sampler_new(&sampler, l->model, &s, NULL, err);
    kv_sampler_free(sampler);
    return st;
}

/* Model, and what options alone say of its engine. */
static kv_status begin(kv_loaded *l, const kv_options *opt, bool (*progress)(void *, float), void *ctx, kv_error *err) {
    kv_buf identity = {0};
    *l = (kv_loaded){.bytes_available = kv_machine_memory_available()};
    kv_status st = load_model(l, opt, progress, ctx, err);
    if (st != KV_OK) return st;
    const kv_model_info *m = kv_model_get_info(l->model);
    kv_buf_addf(&identity, "%s/%s/%llu/%d/%d", m->arch, m->desc, (unsigned long long)m->size_bytes, (int)m->n_ctx_train,
                (int)m->n_window);
    l->identity = kv_buf_take(&identity);
    st = read_grammar(l, opt, err);
    if (st == KV_OK) st = check_sampling(l, opt, err);
    l->block = kv_load_choose_block(opt, m->n_window);
    engine_params(l, opt);
    return st;
}

static void use_tuning(kv_loaded *l) {
    l->params.flash_attn = l->tuning.flash_attn ? KV_FA_ON : KV_FA_OFF;
    l->params.n_batch = l->tuning.chunk + l->params.n_slots;
}

/* An encoder generates nothing, so there is nothing to measure and no cell to plan for. How long a text can be, its
 * embedder says, within what is asked for here. */
static kv_status choose_for_encoder(kv_loaded *l, const kv_options *opt) {
    const kv_model_info *m = kv_model_get_info(l->model);
    int32_t n = m->n_ctx_train > 1 ? m->n_ctx_train : 2;
    if (opt->rope_scale > 1 && n < INT32_MAX / opt->rope_scale) n = (int32_t)(n * opt->rope_scale);
    if (opt->n_ctx > 1) n = (int32_t)opt->n_ctx;
    l->memory = KV_MEMORY_NONE;
    l->tuning = (kv_tuning){.flash_attn = opt->flash_attn == KV_FA_ON, .chunk = l->block, .min_chunk = 16};
    l->tuning.on_cpu = true;
    snprintf(l->tuning.reason, sizeof l->tuning.reason, "an encoder: nothing is generated, so nothing is measured");
    l->shape = (kv_shape){.n_ctx_train = m->n_ctx_train, .bytes_weights = m->size_bytes};
    l->plan =
        (kv_plan){.n_ctx = n, .n_ctx_served = n, .n_slots = l->params.n_slots, .bytes_memory = l->bytes_available};
    if (l->bytes_available > m->size_bytes) l->plan.bytes_left = l->bytes_available - m->size_bytes;
    use_tuning(l);
    l->params.n_ctx = n;
    return KV_OK;
}

static kv_status choose(kv_loaded *l, const kv_options *opt, kv_error *err) {
    if (kv_model_get_info(l->model)->is_encoder) return choose_for_encoder(l, opt);
    kv_buf dir_text = {0};
    const char *dir = state_dir(&dir_text, opt);
    kv_status st = choose_tuning(l, opt, dir, err);
    if (st != KV_OK) goto done;
    use_tuning(l);
    st = kv_shape_probe(&l->shape, &l->memory, l->model, &l->params, err);
    if (st != KV_OK) goto done;
    /* who stretches the positions stretches the trained length */
    if (opt->rope_scale > 1 && l->shape.n_ctx_train < INT32_MAX / opt->rope_scale)
        l->shape.n_ctx_train = (int32_t)(l->shape.n_ctx_train * opt->rope_scale);
    st = opt->n_ctx > 0 ? make_plan(l, opt, opt->n_ctx, err) : plan_automatic(l, opt, dir, err);
    if (st == KV_OK) fit_chunk(l);
done:
    kv_buf_free(&dir_text);
    return st;
}

/* What was chosen for the same model before: what was measured is part of the cache's namespace, and the context is the
 * limit that clients know. */
static kv_status choose_as_before(kv_loaded *l, const kv_loaded *before, const kv_options *opt, kv_error *err) {
    if (strcmp(l->identity, before->identity) != 0 || before->memory == KV_MEMORY_NONE) return choose(l, opt, err);
    int32_t block = l->block;
    l->tuning = before->tuning;
    l->block = before->block;
    l->shape = before->shape;
    l->memory = before->memory;
    use_tuning(l);
    kv_status st = make_plan(l, opt, before->plan.n_ctx, err);
    if (st == KV_OK) {
        fit_chunk(l);
    } else if (opt->n_ctx == 0) {
        KV_WARN("a context of %d tokens does not fit any more: %s", before->plan.n_ctx, err->message);
        l->block = block;
        st = choose(l, opt, err);
    }
    return st;
}

kv_status kv_load_plan(kv_loaded *l, const kv_options *opt, bool (*progress)(void *, float), void *ctx, kv_error *err) {
    kv_status st = begin(l, opt, progress, ctx, err);
    return st == KV_OK ? choose(l, opt, err) : st;
}

/* ── engine ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* One token, so that weights are read, kernels compiled and the first request is not the slow one. */
static kv_status warm_up(kv_engine *e, kv_error *err) {
    const kv_model_info *m = kv_model_get_info(e->model);
    kv_token token = m->bos >= 0 ? m->bos : m->eos >= 0 ? m->eos : 0;
    kv_pos pos = 0;
    kv_seq seq = 0;
    bool want = true;
    kv_status st = kv_engine_decode(e, &(kv_batch){1, &token, &pos, &seq, &want}, err);
    kv_engine_clear(e);
    if (st != KV_NOT_NUMBERS) return st;
    KV_WARN("after a single token %s", err->message); /* with others it may do better */
    return KV_OK;
}

kv_status kv_load_engine(kv_loaded *l, const kv_options *opt, kv_error *err) {
    kv_status st = kv_engine_new(&l->engine, l->model, &l->params, err);
    /* The plan knows the machine's memory, not a device's own. */
    while (st != KV_OK && opt->n_ctx == 0 && !l->tuning.on_cpu && l->plan.n_ctx >= 1024) {
        int32_t half = l->plan.n_ctx / 2;
        KV_WARN("no context of %d tokens can be made, trying %d: %s", l->plan.n_ctx, half, err->message);
        st = make_plan(l, opt, half, err);
        if (st != KV_OK) return st;
        fit_chunk(l);
        st = kv_engine_new(&l->engine, l->model, &l->params, err);
    }
    if (st == KV_OK && opt->warmup && l->memory != KV_MEMORY_NONE) st = warm_up(l->engine, err);
    return st;
}

void kv_load_sched_config(kv_sched_config *out, const kv_loaded *l, const kv_options *opt) {
    kv_sched_config_defaults(out);
    out->n_ctx_served = l->plan.n_ctx_served;
    out->block = l->block;
    out->chunk = l->tuning.chunk;
    out->min_chunk = l->tuning.min_chunk;
    out->max_stall_ms = (int32_t)opt->max_stall_ms;
    out->max_wait_ms = (int32_t)opt->max_wait_ms;
    out->max_queue = (int32_t)opt->max_queue;
    out->slot_similarity = (float)opt->slot_prompt_similarity;
    out->cache = l->cache;
    out->exact = opt->exact;
    out->evict_idle = l->keeps_well;
}

void kv_load_sampling(kv_sampling *out, const kv_loaded *l, const kv_options *opt) {
    *out = opt->sampling;
    out->grammar = l->grammar;
    out->grammar_type = l->grammar_type;
}

void kv_loaded_free(kv_loaded *l) {
    kv_load_drop_cache(l);
    kv_load_unload(l);
    kv_buf_free(&l->placement);
    free(l->grammar);
    free(l->identity);
    *l = (kv_loaded){0};
}

/* ── unloading, and loading again ──────────────────────────────────────────────────────────────────────────────── */

void kv_load_unload(kv_loaded *l) {
    kv_engine_free(l->engine);
    kv_model_free(l->model);
    l->engine = NULL;
    l->model = NULL;
}

/* Everything but the cache. Its namespace is not even written: I/O threads may look at it. */
static void take_over(kv_loaded *l, kv_loaded *next) {
    kv_buf_free(&l->placement);
    free(l->grammar);
    free(l->identity);
    l->model = next->model;
    l->engine = next->engine;
    l->params = next->params;
    l->tuning = next->tuning;
    l->shape = next->shape;
    l->plan = next->plan;
    l->block = next->block;
    l->memory = next->memory;
    l->placement = next->placement;
    l->grammar = next->grammar;
    l->grammar_type = next->grammar_type;
    l->bytes_available = next->bytes_available;
    l->identity = next->identity;
    kv_namespace_free(&next->ns);
    *next = (kv_loaded){0};
}

kv_status kv_load_again(kv_loaded *l, const kv_options *opt, bool (*progress)(void *, float), void *ctx,
                        kv_error *err) {
    kv_loaded next;
    kv_status st = begin(&next, opt, progress, ctx, err);
    if (st == KV_OK) st = choose_as_before(&next, l, opt, err);
    if (st == KV_OK) st = kv_load_engine(&next, opt, err);
    bool keep = st == KV_OK && l->cache && kv_load_cache_suits(l, &next, opt, err);
    if (st == KV_OK && l->cache && !keep) kv_load_drop_cache(l);
    if (st != KV_OK) {
        kv_loaded_free(&next);
        return st;
    }
    take_over(l, &next);
    if (!keep) st = kv_load_cache(l, opt, err);
    if (st == KV_OK) return KV_OK;
    kv_load_drop_cache(l);
    kv_load_unload(l);
    return st;
}
