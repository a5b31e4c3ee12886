/* engine/llama_border.cpp: the one C++ file. See llama_border.h.
 *
 * Every entry runs inside guard(): exceptions become statuses, and what the engine has to say about a failure is
 * caught by the log trap and told to the caller instead of the log.
 *
 * What the engine would abort() on, and where it is refused first:
 *   grammar "%llguidance…", mirostat outside 0..2, unknown samplers, token ids out of range,
 *   NaN biases, unbounded history lengths                                  check_sampling
 *   a row without logits                                                   sampler_sample
 *   grammars that recurse without end in its parser                        gbnf.c
 *   messages or tools of a wrong shape                                     chat_inputs
 */
#define _Noreturn __attribute__((noreturn)) /* C's spelling, used by base/error.h */

#include "engine/llama_border.h"

extern "C" {
#include "base/json.h"
#include "engine/llama_lib.h"
}

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "chat.h"
#include "common.h"
#include "ggml-backend.h"
#include "gguf.h"
#include "json-schema-to-grammar.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"

namespace {

/* A kv_error's message must be valid UTF-8, and exceptions may quote bytes of a request. */
kv_status fail_text(kv_error *err, kv_status status, const char *before, const std::string &text) {
    std::string clean;
    for (size_t i = 0; i < text.size();) {
        size_t n = 1;
        while (n < 4 && i + n < text.size() && !kv_utf8_valid(text.data() + i, n)) n++;
        if (kv_utf8_valid(text.data() + i, n)) {
            clean.append(text, i, n);
            i += n;
        } else {
            clean += '?';
            i++;
        }
    }
    while (!clean.empty() && (clean.back() == '\n' || clean.back() == ' ')) clean.pop_back();
    return kv_fail(err, status, "%s%s", before, clean.c_str());
}

/* Runs f (→ kv_status); an exception becomes `on_throw`. Opens the trap so that f can read kv_llama_trap_text(). */
template <typename F> kv_status guard(kv_error *err, kv_status on_throw, F &&f) noexcept {
    kv_llama_trap_begin();
    kv_status status;
    try {
        status = f();
    } catch (const std::bad_alloc &) {
        status = kv_fail(err, KV_NO_MEMORY, "out of memory inside the engine");
    } catch (const std::exception &e) {
        try {
            status = fail_text(err, on_throw, "", e.what());
        } catch (...) {
            status = kv_fail(err, KV_NO_MEMORY, "out of memory inside the engine");
        }
    } catch (...) {
        status = kv_fail(err, KV_ENGINE, "the engine threw something that is no std::exception");
    }
    kv_llama_trap_end();
    return status;
}

/* The engine's own last words, for messages: ": <text>" or nothing. */
std::string said() {
    const char *t = kv_llama_trap_text();
    return *t ? std::string(": ") + t : std::string();
}

} // namespace

void kv_border_silence(void) { common_log_set_verbosity_thold(-1); }

/* ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_border_gguf_arch(kv_buf *arch, kv_buf *type, const char *path, kv_error *err) {
    return guard(err, KV_INVALID, [&] {
        gguf_init_params params = {/*no_alloc =*/true, /*ctx =*/nullptr};
        std::unique_ptr<gguf_context, void (*)(gguf_context *)> g(gguf_init_from_file(path, params), gguf_free);
        if (!g) return fail_text(err, KV_INVALID, "", std::string(path) + " is not a readable GGUF file" + said());
        auto text = [&](kv_buf *out, const char *key) {
            int64_t id = gguf_find_key(g.get(), key);
            if (id >= 0 && gguf_get_kv_type(g.get(), id) == GGUF_TYPE_STRING) kv_buf_adds(out, gguf_get_val_str(g.get(), id));
        };
        text(arch, "general.architecture");
        text(type, "general.type");
        return KV_OK;
    });
}

kv_status kv_border_parse_override(llama_model_kv_override *out, const char *text, kv_error *err) {
    return guard(err, KV_INVALID, [&] {
        std::vector<llama_model_kv_override> parsed;
        if (!string_parse_kv_override(text, parsed) || parsed.size() != 1)
            return kv_fail_field(err, "override-kv",
                                 "cannot read the override \"%s\": it is KEY=TYPE:VALUE with TYPE int, float, bool or "
                                 "str, KEY and VALUE shorter than 128 bytes",
                                 text);
        *out = parsed[0];
        return KV_OK;
    });
}

kv_status kv_border_model_load(llama_model **out, const char *path, const llama_model_params *params, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        *out = llama_model_load_from_file(path, *params);
        if (!*out) return fail_text(err, KV_INVALID, "", std::string("cannot load ") + path + said());
        return KV_OK;
    });
}

kv_status kv_border_lora_load(llama_adapter_lora **out, llama_model *model, const char *path, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        *out = llama_adapter_lora_init(model, path);
        if (!*out) return fail_text(err, KV_INVALID, "", std::string("cannot load the adapter ") + path + said());
        return KV_OK;
    });
}

kv_status kv_border_context_new(llama_context **out, llama_model *model, const llama_context_params *params,
                                kv_error *err) {
    *out = nullptr;
    return guard(err, KV_ENGINE, [&] {
        *out = llama_init_from_model(model, *params);
        if (!*out)
            return fail_text(err, KV_ENGINE, "",
                             "the engine could not make a context of " + std::to_string(params->n_ctx) + " cells" + said());
        return KV_OK;
    });
}

kv_status kv_border_set_loras(llama_context *ctx, llama_adapter_lora **loras, float *scales, size_t n, kv_error *err) {
    return guard(err, KV_ENGINE, [&] {
        if (llama_set_adapters_lora(ctx, loras, n, scales) != 0)
            return fail_text(err, KV_ENGINE, "", "the adapters do not fit the context" + said());
        return KV_OK;
    });
}

/* src/llama-ext.h of the pinned release; not among its public headers. */
struct llama_memory_breakdown_data {
    size_t model;
    size_t context;
    size_t compute;
};
std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> llama_get_memory_breakdown(const llama_context *ctx);

kv_status kv_border_memory_bytes(uint64_t *state, uint64_t *compute, const llama_context *ctx, kv_error *err) {
    *state = *compute = 0;
    return guard(err, KV_ENGINE, [&] {
        for (const auto &entry : llama_get_memory_breakdown(ctx)) {
            *state += entry.second.context;
            *compute += entry.second.compute;
        }
        return KV_OK;
    });
}

/* ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_border_tokenize(kv_tokens *out, const llama_model *model, const char *text, size_t n, bool add_special,
                             bool parse_special, kv_error *err) {
    if (n > INT32_MAX / 2) return kv_fail(err, KV_TOO_LARGE, "the text has %zu bytes, too many to tokenise at once", n);
    return guard(err, KV_ENGINE, [&] {
        std::vector<llama_token> tokens =
            common_tokenize(llama_model_get_vocab(model), std::string(text, n), add_special, parse_special);
        kv_tokens_append(out, tokens.data(), tokens.size());
        return KV_OK;
    });
}

/* ── compute ───────────────────────────────────────────────────────────────────────────────────────────────────── */

int32_t kv_border_decode(llama_context *ctx, llama_batch batch, kv_error *err) {
    int32_t ret = INT32_MIN;
    guard(err, KV_ENGINE, [&] {
        ret = llama_decode(ctx, batch);
        if (ret != 0) return fail_text(err, KV_ENGINE, "", "llama_decode returned " + std::to_string(ret) + said());
        return KV_OK;
    });
    return ret;
}

size_t kv_border_state_size(llama_context *ctx, int32_t seq, uint32_t flags) {
    size_t n = 0;
    guard(nullptr, KV_ENGINE, [&] {
        n = llama_state_seq_get_size_ext(ctx, seq, flags);
        return KV_OK;
    });
    return n;
}

size_t kv_border_state_get(llama_context *ctx, void *dst, size_t cap, int32_t seq, uint32_t flags) {
    size_t n = 0;
    guard(nullptr, KV_ENGINE, [&] {
        n = llama_state_seq_get_data_ext(ctx, static_cast<uint8_t *>(dst), cap, seq, flags);
        return KV_OK;
    });
    return n;
}

size_t kv_border_state_set(llama_context *ctx, const void *src, size_t n_src, int32_t seq, uint32_t flags) {
    size_t n = 0;
    guard(nullptr, KV_ENGINE, [&] {
        n = llama_state_seq_set_data_ext(ctx, static_cast<const uint8_t *>(src), n_src, seq, flags);
        return KV_OK;
    });
    return n;
}

/* ── sampling ──────────────────────────────────────────────────────────────────────────────────────────────────── */

namespace {

/* Longest history a penalty looks at, in tokens: it is allocated in full, and a request may ask for 2^31. */
constexpr int32_t max_history = 1 << 20;

struct border_sampler {
    kv_sampler base; /* first: a kv_sampler * points here */
    common_sampler_ptr chain;
    llama_context *(*ctx_of)(kv_engine *);
};

border_sampler *self(kv_sampler *s) { return reinterpret_cast<border_sampler *>(s); }
const border_sampler *self(const kv_sampler *s) { return reinterpret_cast<const border_sampler *>(s); }

void sampler_free(kv_sampler *s) { delete self(s); }

kv_status sampler_prime(kv_sampler *s, const kv_token *prompt, size_t n, kv_error *err) {
    return guard(err, KV_ENGINE, [&] {
        for (size_t i = 0; i < n; i++) common_sampler_accept(self(s)->chain.get(), prompt[i], /*is_generated=*/false);
        return KV_OK;
    });
}

kv_status sampler_sample(kv_token *out, kv_sampler *s, kv_engine *e, int row, kv_error *err) {
    *out = -1;
    if (!kv_engine_logits(e, row))
        return kv_fail(err, KV_INTERNAL, "row %d of the last batch has no logits to sample from", row);
    return guard(err, KV_ENGINE, [&] {
        llama_token token = common_sampler_sample(self(s)->chain.get(), self(s)->ctx_of(e), row);
        common_sampler_accept(self(s)->chain.get(), token, /*is_generated=*/true);
        *out = token;
        return KV_OK;
    });
}

/* The n best of the raw distribution: a log-softmax over the whole row. */
void raw_probs(kv_token_prob *top, int *n_top, kv_token_prob *chosen, const float *logits, int n_vocab) {
    float max = *std::max_element(logits, logits + n_vocab);
    double sum = 0;
    for (int i = 0; i < n_vocab; i++) sum += std::exp(static_cast<double>(logits[i] - max));
    const double norm = max + std::log(sum);
    if (chosen->token >= 0 && chosen->token < n_vocab)
        chosen->logprob = static_cast<float>(logits[chosen->token] - norm);
    std::vector<kv_token> order(n_vocab);
    for (int i = 0; i < n_vocab; i++) order[i] = i;
    int n = std::min(*n_top, n_vocab);
    std::partial_sort(order.begin(), order.begin() + n, order.end(),
                      [&](kv_token a, kv_token b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    for (int i = 0; i < n; i++) top[i] = {order[i], static_cast<float>(logits[order[i]] - norm)};
    *n_top = n;
}

kv_status sampler_probs(kv_token_prob *top, int *n_top, kv_token_prob *chosen, kv_sampler *s, kv_engine *e, int row,
                        bool post_sampling, kv_error *err) {
    const float *logits = kv_engine_logits(e, row);
    if (!logits) return kv_fail(err, KV_INTERNAL, "row %d of the last batch has no logits", row);
    return guard(err, KV_ENGINE, [&] {
        chosen->token = common_sampler_last(self(s)->chain.get());
        chosen->logprob = -INFINITY;
        if (!post_sampling) {
            raw_probs(top, n_top, chosen, logits, llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(self(s)->ctx_of(e)))));
            return KV_OK;
        }
        const llama_token_data_array *cur = common_sampler_get_candidates(self(s)->chain.get(), /*do_sort=*/true);
        int n = 0;
        for (size_t i = 0; i < cur->size; i++) {
            const float logprob = std::log(cur->data[i].p);
            if (cur->data[i].id == chosen->token) chosen->logprob = logprob;
            if (n < *n_top && cur->data[i].p > 0) top[n++] = {cur->data[i].id, logprob};
        }
        *n_top = n;
        return KV_OK;
    });
}

uint32_t sampler_seed(const kv_sampler *s) { return common_sampler_get_seed(self(s)->chain.get()); }

const kv_sampler_ops sampler_ops = {sampler_free, sampler_prime, sampler_sample, sampler_probs, sampler_seed};

} // namespace

kv_status kv_border_sampler_new(kv_sampler **out, const llama_model *model, const kv_sampling *s,
                                const kv_chat_prompt *chat, llama_context *(*ctx_of)(kv_engine *), kv_error *err) {
    *out = nullptr;
    (void)chat;
    return guard(err, KV_INVALID, [&] {
        common_params_sampling p;
        p.temp = s->temperature;
        p.seed = s->seed;
        auto made = std::make_unique<border_sampler>();
        made->base.ops = &sampler_ops;
        made->ctx_of = ctx_of;
        made->chain.reset(common_sampler_init(model, p));
        *out = &made.release()->base;
        return KV_OK;
    });
}

/* ── templates ─────────────────────────────────────────────────────────────────────────────────────────────────── */

struct kv_border_model {
    common_chat_templates_ptr templates;
    std::string source;
    bool explicit_template;
};

kv_status kv_border_model_new(kv_border_model **out, const llama_model *model, const char *template_src, const char *bos,
                              const char *eos, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        auto made = std::make_unique<kv_border_model>();
        made->templates = common_chat_templates_init(model, template_src ? template_src : (model ? "" : "chatml"), bos, eos);
        made->source = common_chat_templates_source(made->templates.get());
        made->explicit_template = common_chat_templates_was_explicit(made->templates.get());
        *out = made.release();
        return KV_OK;
    });
}

const char *kv_border_template(const kv_border_model *m, bool *explicit_template) {
    *explicit_template = m->explicit_template;
    return m->source.c_str();
}

void kv_border_model_free(kv_border_model *m) { delete m; }
