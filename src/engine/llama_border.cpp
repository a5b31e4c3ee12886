/* engine/llama_border.cpp: the one C++ file. See llama_border.h.
 *
 * Every entry runs inside guard(): exceptions become statuses, and what the engine has to say about a failure is
 * caught by the log trap and told to the caller instead of the log.
 *
 * What the engine would abort() on, and where it is refused first:
 *   grammar "%llguidance…", mirostat outside 0..2, unknown samplers, token ids out of range,
 *   NaN biases, unbounded history lengths                                  sampling_check.c, take_numbers
 *   a row without logits                                                   sampler_sample
 *   grammars that recurse without end in its parser                        gbnf.c
 *   texts and names on which its regular expressions recurse               model_llama.c, sampling_check.h, schema.c
 *   messages or tools of a wrong shape                                     chat_inputs
 */
#define _Noreturn __attribute__((noreturn)) /* C's spelling, used by base/error.h */

#include "engine/llama_border.h"

extern "C" {
#include "base/json.h"
#include "engine/gbnf.h"
#include "engine/llama_lib.h"
#include "engine/sampling_check.h"
}

#include <algorithm>
#include <cctype>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstring>
#include <ctime>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "chat.h"
#include "common.h"
#include "fit.h"
#include "ggml-backend.h"
#include "gguf.h"
#include "json-schema-to-grammar.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"

namespace {

/* The common library prints prompts, grammars and unparsable answers to the terminal; before main there is nobody yet
 * who could race for this. */
const bool silenced = (common_log_set_verbosity_thold(-1), true);

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
template <typename F> kv_status guard(kv_error *err, kv_status on_throw, F &&f, bool trap_warnings = true) noexcept {
    static_cast<void>(silenced);
    kv_llama_trap_begin(trap_warnings);
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

/* ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_border_gguf_open(gguf_context **out, const char *path, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        gguf_init_params params = {/*no_alloc =*/true, /*ctx =*/nullptr};
        *out = gguf_init_from_file(path, params);
        if (!*out) return fail_text(err, KV_INVALID, "", std::string(path) + " is not a readable GGUF file" + said());
        return KV_OK;
    });
}

kv_status kv_border_gguf_head(kv_gguf_head *out, const char *path, kv_error *err) {
    return guard(err, KV_INVALID, [&] {
        gguf_context *opened = nullptr;
        kv_status st = kv_border_gguf_open(&opened, path, err);
        if (st != KV_OK) return st;
        std::unique_ptr<gguf_context, void (*)(gguf_context *)> g(opened, gguf_free);
        auto text = [&](const std::string &key) -> std::string {
            int64_t id = gguf_find_key(g.get(), key.c_str());
            return id >= 0 && gguf_get_kv_type(g.get(), id) == GGUF_TYPE_STRING ? gguf_get_val_str(g.get(), id) : "";
        };
        const std::string arch = text("general.architecture");
        kv_buf_adds(&out->arch, arch.c_str());
        kv_buf_adds(&out->type, text("general.type").c_str());
        /* What makes the engine choose between short and long factors by the context's size is that both are there. */
        const int64_t id = gguf_find_key(g.get(), (arch + ".rope.scaling.original_context_length").c_str());
        const bool longrope = text(arch + ".rope.scaling.type") == "longrope" ||
                              gguf_find_tensor(g.get(), "rope_factors_long.weight") >= 0;
        if (longrope && id >= 0 && gguf_get_kv_type(g.get(), id) == GGUF_TYPE_UINT32)
            out->n_ctx_longrope = static_cast<int32_t>(gguf_get_val_u32(g.get(), id));
        return KV_OK;
    });
}

void kv_border_fit_layers(llama_model_params *params, float *split, llama_model_tensor_buft_override *overrides,
                          const char *path, uint32_t n_ctx) {
    guard(nullptr, KV_ENGINE, [&] {
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx = n_ctx;
        cp.kv_unified = true;
        cp.swa_full = false;
        std::vector<size_t> margins(llama_max_devices(), size_t(1) << 30); /* bytes to leave free, as llama-server */
        common_fit_params(path, params, &cp, split, overrides, margins.data(), n_ctx, nullptr, GGML_LOG_LEVEL_ERROR);
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
    /* What a model file has wrong is worth a warning, once. */
    auto load = [&] {
        *out = llama_model_load_from_file(path, *params);
        if (!*out) return fail_text(err, KV_INVALID, "", std::string("cannot load ") + path + said());
        return KV_OK;
    };
    return guard(err, KV_INVALID, load, /*trap_warnings=*/false);
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
                             "the engine could not make a context of " + std::to_string(params->n_ctx) + " cells" +
                                 said());
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

/* ── templates ─────────────────────────────────────────────────────────────────────────────────────────────────── */

struct kv_border_model {
    common_chat_templates_ptr templates;
    std::string source;
    bool explicit_template;
    bool builtin; /* one of libllama's own formatters, chosen by name: no Jinja, no tools */
    bool thinks;  /* the template takes enable_thinking */
};

struct kv_chat_prompt {
    common_chat_params chat;
    std::string user_grammar;
    /* Streams keep it beyond the prompt's life. */
    std::shared_ptr<const common_chat_parser_params> parser;
};

struct kv_chat_stream {
    std::shared_ptr<const common_chat_parser_params> parser;
    std::string text;    /* all that was fed */
    common_chat_msg msg; /* what the deltas told so far */
    std::vector<std::string> ids;
    std::vector<bool> named; /* whose name and id went out */
    int open = 0;            /* brackets */
    bool too_deep = false;   /* for the parser, which recurses: what comes is content */
};

namespace {

/* A local ISO date as the template's "today": libllama-common reads the wall clock, the caller gives its own. */
std::string date_text(int64_t seconds, const char *format) {
    std::time_t t = static_cast<std::time_t>(seconds);
    std::tm parts{};
    char text[64];
    if (!localtime_r(&t, &parts) || std::strftime(text, sizeof text, format, &parts) == 0) return "";
    return text;
}

/* " (line 12, column 3 of the template)": the innermost of the places that the interpreter names. */
std::string template_place(const std::string &what) {
    static const char before[] = " at line ", after[] = " in source:";
    size_t end = what.rfind(after), at = end == std::string::npos ? end : what.rfind(before, end);
    if (at == std::string::npos) return "";
    at += sizeof before - 6; /* from "line " on */
    return " (" + what.substr(at, end - at) + " of the template)";
}

/* What the template itself said (raise_exception), and where, without the interpreter's stack of places. */
std::string template_message(const std::string &what) {
    static const char raised[] = "Jinja Exception: ", error[] = "\nError: ";
    size_t at = what.rfind(raised);
    if (at != std::string::npos) return what.substr(at + sizeof raised - 1) + template_place(what);
    at = what.rfind(error);
    return at == std::string::npos ? what : what.substr(at + sizeof error - 1) + template_place(what);
}

bool is_builtin_template(const char *name) {
    int32_t n = llama_chat_builtin_templates(nullptr, 0);
    std::vector<const char *> names(std::max(n, 0));
    llama_chat_builtin_templates(names.data(), names.size());
    return std::any_of(names.begin(), names.end(), [&](const char *known) { return std::strcmp(known, name) == 0; });
}

bool probe_thinking(const common_chat_templates *templates) {
    try {
        return common_chat_templates_support_enable_thinking(templates);
    } catch (const std::exception &) {
        return false; /* the template does not like the probe's lone user message */
    }
}

} // namespace

kv_status kv_border_model_new(kv_border_model **out, const llama_model *model, const char *template_src,
                              const char *bos, const char *eos, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        std::string source = template_src && *template_src ? template_src : (model ? "" : "chatml");
        auto made = std::make_unique<kv_border_model>();
        made->builtin = source != "chatml" && is_builtin_template(source.c_str());
        try {
            made->templates = common_chat_templates_init(model, source, bos ? bos : "", eos ? eos : "");
        } catch (const std::exception &e) {
            /* It rethrows a sliced copy without the text: parse once more to hear it. */
            const char *own = model && source.empty() ? llama_model_chat_template(model, nullptr) : nullptr;
            std::string why = e.what();
            try {
                common_chat_template again(own ? own : source, "", "");
            } catch (const std::exception &told) {
                why = told.what();
            }
            return fail_text(err, KV_INVALID, "the chat template cannot be used: ", template_message(why));
        }
        made->source = common_chat_templates_source(made->templates.get());
        made->explicit_template = common_chat_templates_was_explicit(made->templates.get()) && source != "chatml";
        made->thinks = !made->builtin && probe_thinking(made->templates.get());
        *out = made.release();
        return KV_OK;
    });
}

const char *kv_border_template(const kv_border_model *m, bool *explicit_template) {
    *explicit_template = m->explicit_template;
    return m->source.c_str();
}

void kv_border_model_free(kv_border_model *m) {
    delete m;
}

kv_status kv_chat_caps(kv_buf *json, const kv_model *m, kv_error *err) {
    return guard(err, KV_ENGINE, [&] {
        common_json caps = common_json::object();
        for (const auto &cap : common_chat_templates_get_caps(m->border->templates.get())) caps[cap.first] = cap.second;
        kv_buf_adds(json, caps.dump().c_str());
        return KV_OK;
    });
}

kv_status kv_schema_to_grammar(kv_buf *gbnf, const char *schema_json, kv_error *err) {
    return guard(err, KV_INVALID, [&] {
        kv_buf_adds(gbnf, json_schema_to_grammar(common_json::parse(schema_json), /*force_gbnf=*/true).c_str());
        return KV_OK;
    });
}

/* ── rendering ─────────────────────────────────────────────────────────────────────────────────────────────────── */

namespace {

/* Template variables of a request, and enable_thinking, which is one of them and an option of its own. */
kv_status chat_kwargs(common_chat_templates_inputs &in, const kv_border_model *m, const kv_chat_params *p,
                      kv_error *err) {
    in.chat_template_kwargs["datetime"] = common_json(date_text(p->now_seconds, "%b %d %Y")).dump();
    in.chat_template_kwargs["date_string"] = common_json(date_text(p->now_seconds, "%d %b %Y")).dump();
    in.enable_thinking = p->enable_thinking < 0 ? m->thinks : p->enable_thinking != 0;
    if (!p->kwargs_json) return KV_OK;
    const common_json kwargs = common_json::parse(p->kwargs_json);
    if (!kwargs.is_object())
        return kv_fail_field(err, "chat_template_kwargs", "chat_template_kwargs must be an object");
    for (const auto &item : kwargs.items()) in.chat_template_kwargs[item.key()] = item.value().dump();
    if (kwargs.contains("enable_thinking")) {
        const common_json &value = kwargs.at("enable_thinking");
        if (!value.is_boolean())
            return kv_fail_field(err, "chat_template_kwargs", "enable_thinking must be true or false");
        in.enable_thinking = value.get<bool>();
    }
    return KV_OK;
}

kv_status chat_continuation(common_chat_templates_inputs &in, const kv_chat_params *p, kv_error *err) {
    in.add_generation_prompt = p->add_generation_prompt;
    if (!p->continue_final_message) return KV_OK;
    if (in.messages.empty() || in.messages.back().role != "assistant")
        return kv_fail_field(err, "messages", "only a last message of the assistant can be continued");
    if (in.messages.size() >= 2 && in.messages[in.messages.size() - 2].role == "assistant")
        return kv_fail_field(err, "messages",
                             "the list ends with two messages of the assistant: which one to continue?");
    if (!in.messages.back().tool_calls.empty())
        return kv_fail_field(err, "messages", "a message that calls tools cannot be continued");
    in.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
    in.add_generation_prompt = false;
    return KV_OK;
}

kv_status chat_inputs(common_chat_templates_inputs &in, const kv_border_model *m, const kv_chat_params *p,
                      kv_error *err) {
    const common_json messages = common_json::parse(p->messages_json ? p->messages_json : "[]");
    in.messages = common_chat_msgs_parse_oaicompat(messages);
    if (in.messages.empty()) return kv_fail_field(err, "messages", "messages is empty");
    if (p->tools_json) in.tools = common_chat_tools_parse_oaicompat(common_json::parse(p->tools_json));
    in.tool_choice = common_chat_tool_choice_parse_oaicompat(p->tool_choice ? p->tool_choice : "auto");
    in.reasoning_format = common_reasoning_format_from_name(p->reasoning_format ? p->reasoning_format : "auto");
    in.parallel_tool_calls = p->parallel_tool_calls;
    in.use_jinja = !m->builtin;
    in.now = std::chrono::system_clock::from_time_t(static_cast<std::time_t>(p->now_seconds));
    const bool calls = !in.tools.empty() && in.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    if (m->builtin && calls)
        return kv_fail_field(err, "tools",
                             "the chat template in use is a built-in one without tools; start with a Jinja template");
    if (in.tools.empty() && in.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED)
        return kv_fail_field(err, "tool_choice", "a tool call is required, but there are no tools");
    if (p->grammar && calls) return kv_fail_field(err, "grammar", "grammar and tools cannot be used together");
    if (p->grammar && p->json_schema)
        return kv_fail_field(err, "grammar", "grammar and a JSON schema cannot be used together");
    if (p->grammar) in.grammar = p->grammar;
    if (p->json_schema) {
        /* An empty schema means any object, as in llama-server. */
        common_json schema = common_json::parse(p->json_schema);
        if (schema.is_object() && schema.empty()) schema["type"] = "object";
        in.json_schema = schema.dump();
    }
    kv_status status = chat_continuation(in, p, err);
    return status == KV_OK ? chat_kwargs(in, m, p, err) : status;
}

} // namespace

kv_status kv_chat_render(kv_chat_prompt **out, const kv_model *model, const kv_chat_params *p, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        const kv_border_model *m = model->border;
        common_chat_templates_inputs in;
        kv_status status = chat_inputs(in, m, p, err);
        if (status != KV_OK) return status;
        auto made = std::make_unique<kv_chat_prompt>();
        try {
            {
                /* It prints the date with localtime(), whose result is one buffer for all threads. */
                static std::mutex mutex;
                std::lock_guard<std::mutex> lock(mutex);
                made->chat = common_chat_templates_apply(m->templates.get(), in);
                /* Grammar and parser are for what may be called, the prompt is what it would be anyway. */
                if (p->shown_tools_json) {
                    in.tools = common_chat_tools_parse_oaicompat(common_json::parse(p->shown_tools_json));
                    made->chat.prompt = common_chat_templates_apply(m->templates.get(), in).prompt;
                }
            }
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &e) {
            return fail_text(err, KV_INVALID,
                             "the chat template refused this conversation: ", template_message(e.what()));
        }
        auto parser = std::make_shared<common_chat_parser_params>(made->chat);
        parser->reasoning_format = in.reasoning_format;
        parser->is_continuation = p->continue_final_message;
        if (!made->chat.parser.empty()) parser->parser.load(made->chat.parser);
        made->parser = std::move(parser);
        made->user_grammar = in.grammar;
        *out = made.release();
        return KV_OK;
    });
}

const char *kv_chat_prompt_text(const kv_chat_prompt *p, size_t *n) {
    if (n) *n = p->chat.prompt.size();
    return p->chat.prompt.c_str();
}

const char *kv_chat_prompt_generation(const kv_chat_prompt *p) {
    return p->chat.generation_prompt.c_str();
}
int kv_chat_prompt_n_stops(const kv_chat_prompt *p) {
    return static_cast<int>(p->chat.additional_stops.size());
}
const char *kv_chat_prompt_stop(const kv_chat_prompt *p, int i) {
    return p->chat.additional_stops.at(i).c_str();
}
bool kv_chat_prompt_thinks(const kv_chat_prompt *p) {
    return p->chat.supports_thinking && !p->chat.thinking_end_tags.empty();
}
bool kv_chat_prompt_binds(const kv_chat_prompt *p) {
    return !p->chat.grammar.empty();
}
void kv_chat_prompt_free(kv_chat_prompt *p) {
    delete p;
}

/* ── parsing what was generated ────────────────────────────────────────────────────────────────────────────────── */

namespace {

/* Mistral templates insist on nine letters or digits when the conversation comes back; nobody else minds. */
std::string random_id() {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    static thread_local std::mt19937_64 rng{std::random_device{}()};
    std::string id;
    for (int i = 0; i < 9; i++) id += letters[rng() % (sizeof letters - 1)];
    return id;
}

common_json call_delta(size_t index, const common_chat_tool_call &call, bool with_name) {
    common_json function = common_json::object(), delta = common_json::object();
    delta["index"] = index;
    if (with_name) {
        delta["id"] = call.id;
        delta["type"] = "function";
        function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    delta["function"] = function;
    common_json calls = common_json::array(), result = common_json::object();
    calls.push_back(delta);
    result["tool_calls"] = calls;
    return result;
}

/* The name of a call grows while it is parsed, and clients append what they get: so a call's first delta, with id and
 * whole name, waits until its arguments begin, another part follows, or the text ends. */
void tell_calls(common_json &deltas, kv_chat_stream *s, size_t upto) {
    s->named.resize(std::max(s->named.size(), s->msg.tool_calls.size()), false);
    for (size_t i = 0; i < std::min(upto, s->msg.tool_calls.size()); i++) {
        if (s->named[i]) continue;
        common_chat_tool_call head = s->msg.tool_calls[i];
        head.arguments.clear();
        deltas.push_back(call_delta(i, head, true));
        s->named[i] = true;
    }
}

void tell(common_json &deltas, kv_chat_stream *s, const std::vector<common_chat_msg_diff> &diffs) {
    for (const common_chat_msg_diff &d : diffs) {
        if (d.tool_call_index == std::string::npos) {
            if (d.reasoning_content_delta.empty() && d.content_delta.empty()) continue;
            common_json delta = common_json::object();
            if (!d.reasoning_content_delta.empty()) delta["reasoning_content"] = d.reasoning_content_delta;
            if (!d.content_delta.empty()) delta["content"] = d.content_delta;
            deltas.push_back(delta);
            continue;
        }
        tell_calls(deltas, s, d.tool_call_index);
        if (d.tool_call_delta.arguments.empty()) continue;
        tell_calls(deltas, s, d.tool_call_index + 1);
        deltas.push_back(call_delta(d.tool_call_index, d.tool_call_delta, false));
    }
}

/* Takes a newly parsed message over: the difference goes to `deltas`. */
void advance(common_json &deltas, kv_chat_stream *s, common_chat_msg next) {
    next.set_tool_call_ids(s->ids, random_id);
    const auto diffs = common_chat_msg_diff::compute_diffs(s->msg, next); /* throws when next takes something back */
    s->msg = std::move(next);
    tell(deltas, s, diffs);
}

/* The text does not follow the format to its end (cut by a limit, or the model erred). Nothing that was generated may
 * get lost, and nothing that was told can be taken back: what is still untold becomes content. */
void advance_unparsed(common_json &deltas, kv_chat_stream *s) {
    if (!s->msg.tool_calls.empty() || !s->msg.reasoning_content.empty()) return;
    common_chat_msg next = s->msg;
    if (s->text.compare(0, s->msg.content.size(), s->msg.content) != 0) return;
    next.content = s->text;
    advance(deltas, s, std::move(next));
}

/* Of brackets inside each other, whatever they mean. Parser and grammar go through all that are open at every token and
 * character: 500 take 0.4 s in all, 2000 over 1.5. */
constexpr int max_nesting = 500;

} // namespace

kv_status kv_chat_stream_new(kv_chat_stream **out, const kv_chat_prompt *p, kv_error *err) {
    *out = nullptr;
    return guard(err, KV_ENGINE, [&] {
        auto made = std::make_unique<kv_chat_stream>();
        made->parser = p->parser;
        made->msg.role = "assistant";
        /* What the client itself wrote into the continued message is not told back. */
        const std::string &begun = p->parser->generation_prompt;
        made->too_deep = kv_json_nesting(&made->open, begun.data(), begun.size()) > max_nesting;
        if (p->parser->is_continuation && !made->too_deep) made->msg = common_chat_parse("", true, *p->parser);
        *out = made.release();
        return KV_OK;
    });
}

kv_status kv_chat_stream_feed(kv_buf *deltas_json, kv_chat_stream *s, const char *text, size_t n, bool final,
                              kv_error *err) {
    return guard(err, KV_ENGINE, [&] {
        s->text.append(text, n);
        if (kv_json_nesting(&s->open, text, n) > max_nesting) s->too_deep = true;
        common_json deltas = common_json::array();
        try {
            common_chat_msg next = s->too_deep ? s->msg : common_chat_parse(s->text, !final, *s->parser);
            if (s->too_deep) next.content.append(text, n);
            if (!next.empty()) advance(deltas, s, std::move(next));
            else if (final) advance_unparsed(deltas, s);
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &) {
            if (final) advance_unparsed(deltas, s);
        }
        if (final) tell_calls(deltas, s, s->msg.tool_calls.size());
        kv_buf_adds(deltas_json, deltas.dump_safe().c_str());
        return KV_OK;
    });
}

kv_status kv_chat_stream_message(kv_buf *message_json, kv_chat_stream *s, kv_error *err) {
    return guard(err, KV_ENGINE, [&] {
        common_json msg = common_json::object();
        msg["role"] = "assistant";
        if (s->msg.content.empty() && !s->msg.tool_calls.empty()) msg["content"] = nullptr;
        else msg["content"] = s->msg.content;
        if (!s->msg.reasoning_content.empty()) msg["reasoning_content"] = s->msg.reasoning_content;
        if (!s->msg.tool_calls.empty()) {
            common_json calls = common_json::array();
            for (const auto &call : s->msg.tool_calls) {
                common_json function = common_json::object(), one = common_json::object();
                function["name"] = call.name;
                function["arguments"] = call.arguments;
                one["id"] = call.id;
                one["type"] = "function";
                one["function"] = function;
                calls.push_back(one);
            }
            msg["tool_calls"] = calls;
        }
        kv_buf_adds(message_json, msg.dump_safe().c_str());
        return KV_OK;
    });
}

bool kv_chat_stream_has_tool_calls(const kv_chat_stream *s) {
    return !s->msg.tool_calls.empty();
}
void kv_chat_stream_free(kv_chat_stream *s) {
    delete s;
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

border_sampler *self(kv_sampler *s) {
    return reinterpret_cast<border_sampler *>(s);
}
const border_sampler *self(const kv_sampler *s) {
    return reinterpret_cast<const border_sampler *>(s);
}

void sampler_free(kv_sampler *s) {
    delete self(s);
}

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
        /* When everything is banned (by biases, or a grammar that has come to a dead end) some token comes back all the
         * same, and accepting an end token that the grammar does not allow aborts the process. */
        const llama_token_data_array *cur = common_sampler_get_candidates(self(s)->chain.get(), /*do_sort=*/false);
        const float logit = cur->selected >= 0 ? cur->data[cur->selected].logit : NAN;
        if (std::isnan(logit)) return kv_fail(err, KV_ENGINE, "the model's logits are not numbers");
        if (std::isinf(logit) && logit < 0)
            return kv_fail(err, KV_INVALID,
                           "no token is left to choose: the grammar or the biases of the request ban all of them");
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
            raw_probs(top, n_top, chosen, logits,
                      llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(self(s)->ctx_of(e)))));
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

uint32_t sampler_seed(const kv_sampler *s) {
    return common_sampler_get_seed(self(s)->chain.get());
}

const kv_sampler_ops sampler_ops = {sampler_free, sampler_prime, sampler_sample, sampler_probs, sampler_seed};

/* ── from kv_sampling to the engine's parameters ── */

/* -1 means the whole context; longer than any context makes no difference but in memory. */
int32_t history(int32_t asked, int32_t n_ctx_train) {
    return std::min(asked < 0 ? n_ctx_train : asked, max_history);
}

void take_numbers(common_params_sampling &p, const kv_sampling *s, int32_t n_ctx_train) {
    p.seed = s->seed;
    p.n_prev = std::clamp(s->n_prev, 0, max_history);
    p.min_keep = s->min_keep;
    p.top_k = s->top_k;
    p.top_p = s->top_p;
    p.min_p = s->min_p;
    p.xtc_probability = s->xtc_probability;
    p.xtc_threshold = s->xtc_threshold;
    p.typ_p = s->typical_p;
    p.temp = s->temperature;
    p.dynatemp_range = s->dynatemp_range;
    p.dynatemp_exponent = s->dynatemp_exponent;
    p.penalty_last_n = history(s->repeat_last_n, n_ctx_train);
    p.penalty_repeat = s->repeat_penalty;
    p.penalty_freq = s->frequency_penalty;
    p.penalty_present = s->presence_penalty;
    p.dry_multiplier = s->dry_multiplier;
    p.dry_base = s->dry_base < 1 ? p.dry_base : s->dry_base; /* as llama-server: below 1 is the default */
    p.dry_allowed_length = std::max(s->dry_allowed_length, 0);
    p.dry_penalty_last_n = history(s->dry_penalty_last_n, n_ctx_train);
    if (s->dry_breakers) p.dry_sequence_breakers.assign(s->dry_breakers, s->dry_breakers + s->n_dry_breakers);
    p.adaptive_target = std::min(s->adaptive_target, 1.0f);
    p.adaptive_decay = std::clamp(s->adaptive_decay, 0.0f, 0.99f);
    p.mirostat = s->mirostat;
    p.mirostat_tau = s->mirostat_tau;
    p.mirostat_eta = s->mirostat_eta;
    p.top_n_sigma = s->top_n_sigma;
    p.no_perf = true;
}

void take_biases(common_params_sampling &p, const kv_sampling *s, const llama_vocab *vocab) {
    for (int i = 0; i < s->n_logit_bias; i++) p.logit_bias.push_back({s->logit_bias[i].token, s->logit_bias[i].bias});
    p.ignore_eos = s->ignore_eos;
    if (!s->ignore_eos) return;
    for (llama_token t = 0; t < llama_vocab_n_tokens(vocab); t++)
        if (llama_vocab_is_eog(vocab, t)) p.logit_bias.push_back({t, -INFINITY});
}

kv_status take_samplers(common_params_sampling &p, const kv_sampling *s, kv_error *err) {
    if (s->samplers) {
        p.samplers.clear();
        for (int i = 0; i < s->n_samplers; i++) {
            const auto one = common_sampler_types_from_names({s->samplers[i]}); /* leaves unknown names out */
            if (one.size() != 1) return kv_fail_field(err, "samplers", "there is no sampler \"%.60s\"", s->samplers[i]);
            p.samplers.push_back(one[0]);
        }
    } else if (s->sampler_chars) {
        const std::string chars = s->sampler_chars;
        p.samplers = common_sampler_types_from_chars(chars);
        if (p.samplers.size() != chars.size())
            return kv_fail_field(err, "samplers", "\"%.60s\" has a letter that stands for no sampler",
                                 s->sampler_chars);
    }
    /* infill compares every candidate's text with every other's: over a whole vocabulary that takes minutes. */
    const auto infill = std::find(p.samplers.begin(), p.samplers.end(), COMMON_SAMPLER_TYPE_INFILL);
    if (infill != p.samplers.end() &&
        (p.top_k <= 0 || p.top_k > 1000 || std::find(p.samplers.begin(), infill, COMMON_SAMPLER_TYPE_TOP_K) == infill))
        return kv_fail_field(err, "samplers", "the infill sampler needs top_k, between 1 and 1000, before it");
    return KV_OK;
}

/* A marker that is one token triggers as that token; it must be spelled by the sampler, so it is preserved. */
void take_trigger(common_params_sampling &p, const common_grammar_trigger &t, const llama_vocab *vocab) {
    if (t.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
        const auto ids = common_tokenize(vocab, t.value, false, true);
        if (ids.size() == 1 && p.preserved_tokens.count(ids[0])) {
            common_grammar_trigger token;
            token.type = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
            token.value = t.value;
            token.token = ids[0];
            p.grammar_triggers.push_back(token);
            return;
        }
    }
    p.grammar_triggers.push_back(t);
}

struct token_check {
    const llama_vocab *vocab;
};

bool names_one_token(void *ctx, const char *text, size_t n) {
    if (n > KV_SAMPLING_TEXT_MAX) return false;
    try {
        return common_tokenize(static_cast<token_check *>(ctx)->vocab, std::string(text, n), false, true).size() == 1;
    } catch (const std::exception &) {
        return false;
    }
}

/* The request's own grammar, else that of its tools or answer schema. */
kv_status take_grammar(common_params_sampling &p, const kv_sampling *s, const kv_chat_prompt *chat,
                       const llama_vocab *vocab, kv_error *err) {
    std::string text = s->grammar ? s->grammar : "";
    common_grammar_type type =
        s->grammar_type == KV_GRAMMAR_SCHEMA ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT : COMMON_GRAMMAR_TYPE_USER;
    if (text.empty() && chat && !chat->chat.grammar.empty()) {
        text = chat->chat.grammar;
        type = COMMON_GRAMMAR_TYPE_TOOL_CALLS;
        p.grammar_lazy = chat->chat.grammar_lazy;
        for (const auto &t : chat->chat.preserved_tokens) {
            const auto ids = common_tokenize(vocab, t, false, true);
            if (ids.size() == 1) p.preserved_tokens.insert(ids[0]);
        }
        for (const auto &t : chat->chat.grammar_triggers) take_trigger(p, t, vocab);
        if (p.grammar_lazy && p.grammar_triggers.empty())
            return kv_fail(err, KV_ENGINE, "the tool grammar has no trigger");
    } else if (text.empty() && chat) {
        text = chat->user_grammar;
    }
    if (chat) p.generation_prompt = chat->chat.generation_prompt;
    if (text.empty()) return KV_OK;
    int open = 0; /* what is continued is read by the grammar first */
    if (kv_json_nesting(&open, p.generation_prompt.data(), p.generation_prompt.size()) > max_nesting)
        return kv_fail_field(
            err, "messages",
            "the message that is continued has more than %d brackets inside each other, which a grammar "
            "for its rest cannot follow",
            max_nesting);
    token_check check = {vocab};
    kv_status status = kv_gbnf_check(text.c_str(), names_one_token, &check, err);
    if (status != KV_OK) return status;
    p.grammar = common_grammar(type, text);
    return KV_OK;
}

/* The end of a text, from the beginning of a character on. */
const char *last_bytes(const std::string &text, size_t n) {
    size_t from = text.size() > n ? text.size() - n : 0;
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) from++;
    return text.c_str() + from;
}

void take_reasoning(common_params_sampling &p, const kv_sampling *s, const kv_chat_prompt *chat,
                    const llama_vocab *vocab) {
    if (chat->chat.thinking_end_tags.empty() || chat->chat.thinking_start_tag.empty()) return;
    p.reasoning_budget_tokens = s->reasoning_budget < 0 ? -1 : s->reasoning_budget;
    p.reasoning_budget_start = common_tokenize(vocab, chat->chat.thinking_start_tag, false, true);
    for (const auto &tag : chat->chat.thinking_end_tags)
        if (!tag.empty()) p.reasoning_budget_end.push_back(common_tokenize(vocab, tag, false, true));
    if (p.reasoning_budget_end.empty()) return;
    if (s->reasoning_budget_message && *s->reasoning_budget_message)
        p.reasoning_budget_forced = common_tokenize(vocab, s->reasoning_budget_message, false, true);
    const llama_tokens &end = p.reasoning_budget_end.front();
    p.reasoning_budget_forced.insert(p.reasoning_budget_forced.end(), end.begin(), end.end());
}

/* What goes before the answer, token by token as common_sampler_init feeds it to the grammar. That one throws where the
 * grammar does not take it, and leaks what it has made by then: so it is tried here first. */
bool takes_what_goes_before(const common_params_sampling &p, const llama_vocab *vocab) {
    const std::string &text = p.generation_prompt;
    if (p.grammar_lazy || text.empty() || !common_grammar_needs_prefill(p.grammar)) return true;
    const std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> grammar(
        llama_sampler_init_grammar(vocab, common_grammar_value(p.grammar).c_str(), "root"), llama_sampler_free);
    const llama_tokens tokens = common_tokenize(vocab, text, false, true);
    try {
        for (size_t i = 0; grammar && i < tokens.size(); i++) {
            const std::string piece = common_token_to_piece(vocab, tokens[i], true);
            /* a blank that the tokenizer puts before the first special token */
            if (i == 0 && std::isspace(static_cast<unsigned char>(piece[0])) &&
                !std::isspace(static_cast<unsigned char>(text[0])))
                continue;
            llama_sampler_accept(grammar.get(), tokens[i]);
        }
    } catch (const std::exception &) {
        return false;
    }
    return true;
}

} // namespace

kv_status kv_border_sampler_new(kv_sampler **out, const llama_model *model, const kv_sampling *s,
                                const kv_chat_prompt *chat, llama_context *(*ctx_of)(kv_engine *), kv_error *err) {
    *out = nullptr;
    return guard(err, KV_INVALID, [&] {
        const llama_vocab *vocab = llama_model_get_vocab(model);
        common_params_sampling p;
        kv_status status = kv_sampling_check(s, llama_vocab_n_tokens(vocab), err);
        if (status != KV_OK) return status;
        take_numbers(p, s, llama_model_n_ctx_train(model));
        take_biases(p, s, vocab);
        status = take_samplers(p, s, err);
        if (status == KV_OK) status = take_grammar(p, s, chat, vocab, err);
        if (status != KV_OK) return status;
        if (chat) take_reasoning(p, s, chat, vocab);
        auto made = std::make_unique<border_sampler>();
        made->base.ops = &sampler_ops;
        made->ctx_of = ctx_of;
        if (!takes_what_goes_before(p, vocab))
            return kv_fail_field(err, "messages",
                                 "the answer continues \"%.100s\", which does not fit the format that is asked for "
                                 "(response_format, tools or a schema): let the assistant message at the end begin as "
                                 "that format does, or leave it out",
                                 last_bytes(p.generation_prompt, 100));
        made->chain.reset(common_sampler_init(model, p));
        if (!made->chain)
            return fail_text(err, KV_INVALID, "", "the engine refused these sampling parameters" + said());
        *out = &made.release()->base;
        return KV_OK;
    });
}
