/* engine/model_llama.c: loading a GGUF through libllama, its facts, and text ↔ tokens. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/llama_border.h"
#include "engine/llama_internal.h"
#include "engine/llama_lib.h"
#include "ggml-backend.h"

static kv_llama_model *self(kv_model *m) {
    return (kv_llama_model *)m;
}
static const kv_llama_model *self_const(const kv_model *m) {
    return (const kv_llama_model *)m;
}

/* ── what kvasir cannot serve ──────────────────────────────────────────────────────────────────────────────────── */

static bool in_list(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

/* The architectures for which the pinned release creates no memory, and of which texts' vectors are had. */
static bool is_encoder(const char *arch) {
    static const char *const encoders[] = {"bert",         "modern-bert",  "nomic-bert", "nomic-bert-moe",  "neo-bert",
                                           "jina-bert-v2", "jina-bert-v3", "eurobert",   "gemma-embedding", NULL};
    return in_list(arch, encoders);
}

/* Told from the file's head, before gigabytes are read. The lists are of the pinned release, too. */
static kv_status refuse_kind(const char *arch, const char *type, const char *path, kv_error *err) {
    static const char *const diffusion[] = {"dream", "llada", "llada-moe", "rnd1", NULL};
    static const char *const drafts[] = {"eagle3", "dflash", "gemma4-assistant", NULL};
    if (!*arch) return kv_fail(err, KV_INVALID, "%s names no architecture (general.architecture)", path);
    if (strcmp(type, "adapter") == 0)
        return kv_fail(err, KV_UNSUPPORTED, "%s is an adapter, not a model: give it with --lora beside its model",
                       path);
    if (strcmp(arch, "clip") == 0 || strcmp(type, "mmproj") == 0)
        return kv_fail(err, KV_UNSUPPORTED, "%s is a vision or audio projector, not a language model", path);
    if (strcmp(arch, "t5") == 0 || strcmp(arch, "t5encoder") == 0)
        return kv_fail(err, KV_UNSUPPORTED,
                       "%s is, or was, half of an encoder-decoder model (%s); kvasir serves decoders, and encoders of "
                       "BERT's kind",
                       path, arch);
    if (strcmp(arch, "wavtokenizer-dec") == 0)
        return kv_fail(err, KV_UNSUPPORTED, "%s turns tokens into sound (%s), which kvasir does not serve", path, arch);
    if (in_list(arch, diffusion))
        return kv_fail(err, KV_UNSUPPORTED, "%s is a diffusion model (%s): it does not generate from left to right",
                       path, arch);
    if (in_list(arch, drafts))
        return kv_fail(err, KV_UNSUPPORTED, "%s only drafts tokens for another model (%s) and cannot be served alone",
                       path, arch);
    return KV_OK;
}

/* The same for what only the loaded model tells (architectures newer than the lists above). */
static kv_status refuse_loaded(const struct llama_model *m, const char *path, kv_error *err) {
    if (llama_model_has_encoder(m) || !llama_model_has_decoder(m))
        return kv_fail(err, KV_UNSUPPORTED, "%s has an encoder beside its decoder, or none: kvasir does not serve it",
                       path);
    if (llama_model_is_diffusion(m))
        return kv_fail(err, KV_UNSUPPORTED, "%s is a diffusion model: it does not generate from left to right", path);
    const struct llama_vocab *vocab = llama_model_get_vocab(m);
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE || llama_vocab_n_tokens(vocab) <= 0)
        return kv_fail(err, KV_UNSUPPORTED, "%s has no vocabulary", path);
    return KV_OK;
}

/* ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────── */

#define MAX_DEVICES 64

typedef struct load_plan {
    struct llama_model_params params;
    ggml_backend_dev_t devices[MAX_DEVICES + 1];        /* ended by NULL */
    float *split;                                       /* owned; llama_max_devices() entries */
    struct llama_model_tensor_buft_override *placement; /* owned; what fit_layers decides */
    struct llama_model_kv_override *overrides;          /* owned; ended by an empty key */
    const kv_model_params *asked;
    bool aborted; /* the progress callback said no */
} load_plan;

static kv_status plan_devices(load_plan *plan, const char *names, kv_error *err) {
    if (!names || !*names) return KV_OK;
    plan->params.devices = plan->devices;
    if (strcmp(names, "none") == 0) return KV_OK;
    int n = 0;
    kv_status status = KV_OK;
    char *copy = kv_strdup(names), *save = NULL;
    for (char *name = strtok_r(copy, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        ggml_backend_dev_t dev = ggml_backend_dev_by_name(name);
        if (!dev || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            status = kv_fail_field(err, "device", "there is no device \"%s\" to offload to; known are: %s", name,
                                   kv_llama_lib_backends());
            break;
        }
        if (n == MAX_DEVICES) {
            status = kv_fail_field(err, "device", "more than %d devices", MAX_DEVICES);
            break;
        }
        plan->devices[n++] = dev;
    }
    free(copy);
    return status;
}

static kv_status plan_split(load_plan *plan, const kv_model_params *p, kv_error *err) {
    static const struct {
        const char *name;
        enum llama_split_mode mode;
    } modes[] = {{"none", LLAMA_SPLIT_MODE_NONE},
                 {"layer", LLAMA_SPLIT_MODE_LAYER},
                 {"row", LLAMA_SPLIT_MODE_ROW},
                 {"tensor", LLAMA_SPLIT_MODE_TENSOR}};
    if (p->split_mode && *p->split_mode) {
        size_t i = 0;
        while (i < 4 && strcmp(p->split_mode, modes[i].name) != 0) i++;
        if (i == 4)
            return kv_fail_field(err, "split-mode", "\"%s\" is none of none, layer, row, tensor", p->split_mode);
        plan->params.split_mode = modes[i].mode;
    }
    if (!p->tensor_split || !*p->tensor_split) return KV_OK;
    const char *at = p->tensor_split;
    for (int n = 0;; n++) {
        char *end;
        double share = strtod(at, &end);
        if (end == at || !isfinite(share) || share < 0 || (*end && *end != ',' && *end != '/'))
            return kv_fail_field(err, "tensor-split", "\"%s\" is not a list of shares such as 3,1", p->tensor_split);
        if ((size_t)n >= llama_max_devices())
            return kv_fail_field(err, "tensor-split", "more shares than the engine takes devices (%zu)",
                                 llama_max_devices());
        plan->split[n] = (float)share;
        if (!*end) break;
        at = end + 1;
    }
    plan->params.tensor_split = plan->split;
    return KV_OK;
}

static bool on_progress(float done, void *ctx) {
    load_plan *plan = ctx;
    if (!plan->asked->progress(plan->asked->progress_ctx, done)) plan->aborted = true;
    return !plan->aborted;
}

/* A context this large shall fit beside the layers that are put on the devices; what the plan takes later depends on
 * the model, which is not loaded yet. */
#define FIT_CONTEXT 8192

/* -1 layers: all that fit, where there is anything to fit into and the user did not split by hand. */
static void fit_layers(load_plan *plan) {
    const kv_model_params *p = plan->asked;
    bool has_gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) ||
                   ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    bool cpu_only = plan->params.devices && !plan->params.devices[0];
    if (p->n_gpu_layers >= 0 || p->vocab_only || !has_gpu || cpu_only || plan->params.tensor_split) return;
    plan->placement = kv_alloc(llama_max_tensor_buft_overrides() * sizeof *plan->placement);
    kv_border_fit_layers(&plan->params, plan->split, plan->placement, p->path, FIT_CONTEXT);
}

static void plan_free(load_plan *plan) {
    free(plan->split);
    free(plan->placement);
    free(plan->overrides);
}

static kv_status plan_load(load_plan *plan, const kv_model_params *p, kv_error *err) {
    plan->split = kv_alloc(llama_max_devices() * sizeof *plan->split);
    plan->asked = p;
    plan->params = llama_model_default_params();
    plan->params.n_gpu_layers = p->n_gpu_layers;
    plan->params.main_gpu = p->main_gpu;
    plan->params.vocab_only = p->vocab_only;
    plan->params.check_tensors = p->check_tensors;
    plan->params.load_mode = p->use_mmap ? (p->use_mlock ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP)
                                         : (p->use_mlock ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE);
    if (p->progress) {
        plan->params.progress_callback = on_progress;
        plan->params.progress_callback_user_data = plan;
    }
    kv_status status = plan_devices(plan, p->devices, err);
    if (status == KV_OK) status = plan_split(plan, p, err);
    if (status == KV_OK && p->n_kv_overrides > 0) {
        plan->overrides = kv_alloc(((size_t)p->n_kv_overrides + 1) * sizeof *plan->overrides);
        for (int i = 0; i < p->n_kv_overrides && status == KV_OK; i++)
            status = kv_border_parse_override(&plan->overrides[i], p->kv_overrides[i], err);
        plan->params.kv_overrides = plan->overrides;
    }
    if (status == KV_OK) fit_layers(plan);
    return status;
}

/* ── text and tokens ───────────────────────────────────────────────────────────────────────────────────────────── */

/* Many vocabularies are split by std::regex, which calls itself once for each character that a repetition takes: 200 to
 * 420 bytes of stack each, as measured with libstdc++ 12. No expression of the engine's has blanks and others in one
 * repetition, so the longest run of either bounds the depth, and with it the stack that is needed. */
#define STACK_A_BYTE 1024
#define RUN_HERE     4096                 /* bytes; takes half of the 8 MiB that threads have here */
#define RUN_MOST     KV_MODEL_LONGEST_RUN /* on a stack of 1 GiB, of which only what is used takes memory */

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static size_t longest_run(const char *text, size_t n) {
    size_t longest = 0, from = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && is_blank(text[i]) != is_blank(text[i - 1])) from = i;
        if (i - from + 1 > longest) longest = i - from + 1;
    }
    return longest;
}

typedef struct tokenizing {
    kv_tokens *out;
    const struct llama_model *model;
    const char *text;
    size_t n;
    bool add_special, parse_special;
    kv_error *err;
    kv_status status;
} tokenizing;

static void *tokenize_there(void *arg) {
    tokenizing *t = arg;
    t->status = kv_border_tokenize(t->out, t->model, t->text, t->n, t->add_special, t->parse_special, t->err);
    return NULL;
}

/* One at a time: each may use up its stack. */
static kv_status tokenize_on_large_stack(tokenizing *t, size_t bytes) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attr;
    pthread_t thread;
    pthread_mutex_lock(&mutex);
    errno = pthread_attr_init(&attr);
    bool made = errno == 0;
    if (errno == 0) errno = pthread_attr_setstacksize(&attr, bytes);
    if (errno == 0) errno = pthread_create(&thread, &attr, tokenize_there, t);
    if (errno == 0) pthread_join(thread, NULL);
    else t->status = kv_fail_errno(t->err, "make a stack of %zu MiB to tokenise a text on", bytes >> 20);
    if (made) pthread_attr_destroy(&attr);
    pthread_mutex_unlock(&mutex);
    return t->status;
}

static kv_status tokenize(kv_tokens *out, const kv_model *m, const char *text, size_t n, bool add_special,
                          bool parse_special, kv_error *err) {
    tokenizing t = {out, self_const(m)->model, text, n, add_special, parse_special, err, KV_OK};
    size_t run = longest_run(text, n);
    if (run > RUN_MOST)
        return kv_fail(err, KV_INVALID,
                       "the text has %zu bytes in a row without a blank, or of blanks alone; at most %d can be "
                       "tokenised",
                       run, RUN_MOST);
    if (run > RUN_HERE) return tokenize_on_large_stack(&t, (run + RUN_HERE) * STACK_A_BYTE);
    tokenize_there(&t);
    return t.status;
}

static void piece(kv_buf *out, const kv_model *m, kv_token token, bool special) {
    if (token < 0 || token >= m->info.n_vocab) return;
    char small[64];
    int32_t n = llama_token_to_piece(self_const(m)->vocab, token, small, sizeof small, 0, special);
    if (n >= 0) {
        kv_buf_add(out, small, (size_t)n);
        return;
    }
    kv_buf_reserve(out, (size_t)-n);
    n = llama_token_to_piece(self_const(m)->vocab, token, out->data + out->len, -n, 0, special);
    if (n > 0) {
        out->len += (size_t)n;
        out->data[out->len] = '\0';
    }
}

static bool is_eog(const kv_model *m, kv_token token) {
    return token >= 0 && token < m->info.n_vocab && llama_vocab_is_eog(self_const(m)->vocab, token);
}

static bool is_special(const kv_model *m, kv_token token) {
    if (token < 0 || token >= m->info.n_vocab || is_eog(m, token)) return true;
    enum llama_token_attr attr = llama_vocab_get_attr(self_const(m)->vocab, token);
    if (attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) return true;
    if (!(attr & LLAMA_TOKEN_ATTR_USER_DEFINED)) return false;
    kv_buf text = {0};
    piece(&text, m, token, true);
    bool blank = strspn(kv_buf_str(&text), " \t\r\n") == text.len; /* Gemma's runs of newlines and spaces */
    kv_buf_free(&text);
    return !blank;
}

static kv_status sampler_new(kv_sampler **out, const kv_model *m, const kv_sampling *s, const kv_chat_prompt *chat,
                             kv_error *err) {
    *out = NULL;
    if (s->play) {
        kv_token end = m->info.eot >= 0 ? m->info.eot : m->info.eos;
        return kv_sampler_play_new(out, s->play, s->n_play, end);
    }
    return kv_border_sampler_new(out, self_const(m)->model, s, chat, kv_llama_engine_context, err);
}

/* ── the model object ──────────────────────────────────────────────────────────────────────────────────────────── */

static void model_free(kv_model *base) {
    kv_llama_model *m = self(base);
    kv_border_model_free(m->base.border);
    if (m->model) llama_model_free(m->model); /* and its adapters */
    for (int i = 0; i < m->n_loras; i++) {
        free(m->lora_paths[i]);
        free((char *)m->lora_infos[i].task_name);
        free((char *)m->lora_infos[i].prompt_prefix);
    }
    free(m->lora_paths);
    free(m->lora_infos);
    free(m->loras);
    free(m->lora_scales);
    free(m->overrides);
    free(m->name);
    free(m->arch);
    free(m->desc);
    free(m->path);
    free(m->bos_text);
    free(m->eos_text);
    free(m->ftype);
    free(m);
}

static const kv_model_ops ops = {
    .free = model_free,
    .tokenize = tokenize,
    .piece = piece,
    .is_eog = is_eog,
    .is_special = is_special,
    .engine_new = kv_llama_engine_new,
    .sampler_new = sampler_new,
    .fingerprint = kv_llama_fingerprint,
    .embedder_new = kv_llama_embedder_new,
};

const struct llama_model_kv_override *kv_llama_override(const kv_llama_model *m, const char *key,
                                                        enum llama_model_kv_override_type type) {
    for (int i = 0; i < m->n_overrides; i++)
        if (strcmp(m->overrides[i].key, key) == 0) return m->overrides[i].tag == type ? &m->overrides[i] : NULL;
    return NULL;
}

static char *meta_text(const struct llama_model *m, const char *key) {
    char small[256];
    int32_t n = llama_model_meta_val_str(m, key, small, sizeof small);
    return n > 0 ? kv_strdup(small) : NULL;
}

static char *file_stem(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".gguf") == 0) n -= 5;
    return kv_strndup(base, n);
}

static char *token_text(const kv_model *m, kv_token token) {
    kv_buf b = {0};
    piece(&b, m, token, true);
    return kv_buf_take(&b);
}

static void fill_info(kv_llama_model *m, const char *path, const char *arch) {
    kv_model_info *info = &m->base.info;
    const struct llama_model *lm = m->model;
    char desc[128];
    llama_model_desc(lm, desc, sizeof desc);
    m->path = kv_strdup(path);
    m->arch = kv_strdup(arch);
    m->desc = kv_strdup(desc);
    m->ftype = kv_strdup(llama_ftype_name(llama_model_ftype(lm)));
    m->name = meta_text(lm, "general.name");
    if (!m->name) m->name = file_stem(path);
    info->n_vocab = llama_vocab_n_tokens(m->vocab);
    info->bos = llama_vocab_bos(m->vocab);
    info->eos = llama_vocab_eos(m->vocab);
    info->eot = llama_vocab_eot(m->vocab);
    m->bos_text = token_text(&m->base, info->bos);
    m->eos_text = token_text(&m->base, info->eos);
    info->name = m->name;
    info->arch = m->arch;
    info->desc = m->desc;
    info->path = m->path;
    info->ftype = m->ftype;
    info->bos_text = m->bos_text;
    info->eos_text = m->eos_text;
    info->sep = llama_vocab_sep(m->vocab);
    info->add_sep = llama_vocab_get_add_sep(m->vocab);
    info->fim = (kv_fim_tokens){.pre = llama_vocab_fim_pre(m->vocab),
                                .suf = llama_vocab_fim_suf(m->vocab),
                                .mid = llama_vocab_fim_mid(m->vocab),
                                .rep = llama_vocab_fim_rep(m->vocab),
                                .sep = llama_vocab_fim_sep(m->vocab)};
    info->rerank_template = llama_model_chat_template(lm, "rerank");
    info->add_bos = llama_vocab_get_add_bos(m->vocab);
    info->add_eos = llama_vocab_get_add_eos(m->vocab);
    info->vocab_type = (int)llama_vocab_type(m->vocab);
    info->n_ctx_train = llama_model_n_ctx_train(lm);
    info->n_embd = llama_model_n_embd(lm);
    info->n_layer = llama_model_n_layer(lm);
    if (info->n_layer > 0) { /* loaded vocab-only it has no layers, and asking for their heads aborts */
        info->n_head = llama_model_n_head(lm);
        info->n_head_kv = llama_model_n_head_kv(lm);
    }
    info->n_window = llama_model_n_swa(lm);
    info->window_is_chunked = info->n_window > 0 && strcmp(arch, "llama4") == 0;
    info->n_params = llama_model_n_params(lm);
    info->size_bytes = llama_model_size(lm);
    info->is_recurrent = llama_model_is_recurrent(lm);
    info->is_hybrid = llama_model_is_hybrid(lm);
    info->is_encoder = is_encoder(arch);
}

static char *adapter_text(const struct llama_adapter_lora *a, const char *key) {
    char text[1024];
    return kv_strdup(llama_adapter_meta_val_str(a, key, text, sizeof text) >= 0 ? text : "");
}

static kv_status load_loras(kv_llama_model *m, const kv_model_params *p, kv_error *err) {
    if (p->n_loras <= 0 || p->vocab_only) return KV_OK;
    m->loras = kv_alloc((size_t)p->n_loras * sizeof *m->loras);
    m->lora_scales = kv_alloc((size_t)p->n_loras * sizeof *m->lora_scales);
    m->lora_paths = kv_alloc((size_t)p->n_loras * sizeof *m->lora_paths);
    m->lora_infos = kv_alloc((size_t)p->n_loras * sizeof *m->lora_infos);
    for (int i = 0; i < p->n_loras; i++) {
        const kv_lora_spec *spec = &p->loras[i];
        if (!isfinite(spec->scale))
            return kv_fail_field(err, "lora-scaled", "the scale of %s is no number", spec->path);
        if (access(spec->path, R_OK) != 0) {
            int code = errno;
            return kv_fail_field(err, "lora", "cannot read the adapter %s: %s", spec->path, strerror(code));
        }
        kv_status status = kv_border_lora_load(&m->loras[i], m->model, spec->path, err);
        if (status != KV_OK) return status;
        /* An activated LoRA changes K and V only after its invocation tokens: blocks before and after would differ
         * with the place where it was invoked. */
        if (llama_adapter_get_alora_n_invocation_tokens(m->loras[i]) > 0)
            return kv_fail(err, KV_UNSUPPORTED, "%s is an activated LoRA (aLoRA), which kvasir cannot serve",
                           spec->path);
        m->lora_scales[i] = spec->scale;
        m->lora_paths[i] = kv_strdup(spec->path);
        m->lora_infos[i] = (kv_lora_info){.path = m->lora_paths[i],
                                          .scale = spec->scale,
                                          .task_name = adapter_text(m->loras[i], "adapter.lora.task_name"),
                                          .prompt_prefix = adapter_text(m->loras[i], "adapter.lora.prompt_prefix")};
        m->n_loras = i + 1;
    }
    m->base.info.loras = m->lora_infos;
    m->base.info.n_loras = m->n_loras;
    return KV_OK;
}

static kv_status check_file(kv_gguf_head *head, const kv_model_params *p, kv_error *err) {
    if (!p->path || !*p->path) return kv_fail_field(err, "model", "no model file was named (-m FILE)");
    if (access(p->path, R_OK) != 0) {
        int code = errno;
        return kv_fail_field(err, "model", "cannot read the model %s: %s", p->path, strerror(code));
    }
    kv_status status = kv_border_gguf_head(head, p->path, err);
    return status == KV_OK ? refuse_kind(kv_buf_str(&head->arch), kv_buf_str(&head->type), p->path, err) : status;
}

/* The engine compares the context's size with the overridden length. */
static void apply_longrope_override(kv_llama_model *m) {
    char key[128];
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", m->arch);
    const struct llama_model_kv_override *o = kv_llama_override(m, key, LLAMA_KV_OVERRIDE_TYPE_INT);
    if (o && m->base.info.n_ctx_longrope > 0) m->base.info.n_ctx_longrope = (int32_t)o->val_i64;
}

kv_status kv_model_load_llama(kv_model **out, const kv_model_params *p, kv_error *err) {
    *out = NULL;
    load_plan plan = {0};
    kv_gguf_head head = {0};
    kv_llama_model *m = kv_alloc(sizeof *m);
    m->base.ops = &ops;
    m->vocab_only = p->vocab_only;
    kv_status status = kv_llama_lib_init(err);
    if (status != KV_OK) goto done;
    status = check_file(&head, p, err);
    if (status != KV_OK) goto done;
    status = plan_load(&plan, p, err);
    if (status != KV_OK) goto done;
    status = kv_border_model_load(&m->model, p->path, &plan.params, err);
    if (plan.aborted) status = kv_fail(err, KV_CANCELLED, "loading %s was stopped", p->path);
    if (status != KV_OK) goto done;
    status = refuse_loaded(m->model, p->path, err);
    if (status != KV_OK) goto done;
    m->vocab = llama_model_get_vocab(m->model);
    fill_info(m, p->path, kv_buf_str(&head.arch));
    m->base.info.n_ctx_longrope = head.n_ctx_longrope;
    m->overrides = plan.overrides;
    m->n_overrides = p->n_kv_overrides;
    plan.overrides = NULL;
    apply_longrope_override(m);
    status = load_loras(m, p, err);
    if (status != KV_OK) goto done;
    status = kv_border_model_new(&m->base.border, m->model, p->chat_template, m->bos_text, m->eos_text, err);
    if (status != KV_OK) goto done;
    m->base.info.chat_template = kv_border_template(m->base.border, &m->base.info.chat_template_explicit);
    *out = &m->base;
    m = NULL;
done:
    if (m) model_free(&m->base);
    plan_free(&plan);
    kv_buf_free(&head.arch);
    kv_buf_free(&head.type);
    return status;
}
