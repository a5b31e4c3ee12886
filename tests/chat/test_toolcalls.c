/* A tool call's way round, for the families whose templates the engine's source has: what the template itself writes for
 * an assistant that thinks and calls a tool is played as if it had been sampled, parsed in pieces and as a whole, put
 * back into the conversation as a client does, and rendered again. The new prompt must begin with the old one and the
 * sampled text, for the next turn to find all of it in the cache; where a template itself writes something else, the
 * table says what.
 *
 * Only templates and parsers: no model and no tokens. A text that begins with another one begins with its tokens up to
 * the last, which byte matching makes good. */
#include "engine/real.h"

#include "base/json.h"
#include "engine/llama_border.h"

#define TOOLS                                                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather of a city\","            \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"           \
    "\"integer\"}},\"required\":[\"city\"]}}}]"
#define USER   "{\"role\":\"user\",\"content\":\"Weather in Paris?\"}"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"abcdef123\",\"content\":\"sunny\"}"
#define CALL                                                                                                           \
    "\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\","              \
    "\"arguments\":"                                                                                                   \
    "\"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 2}\"}}]"

#define CITY         "{\"city\": \"Paris\", \"days\": 2}"
#define DEEPSEEK_END "<｜end▁of▁sentence｜>"

typedef struct family {
    const char *name, *end; /* the file without .jinja; what ends the assistant's turn */
    const char *sampled;    /* NULL: what the template writes after its prompt */
    bool plain;             /* the assistant does not think first */
    const char *differs;    /* what the sampled text (or the prompt before it) has where the new prompt parts from it */
    const char *has;        /* and what the new prompt has there */
} family;

static const family families[] = {
    {.name = "Apertus-8B-Instruct", .end = "<|tools_suffix|>"},
    {.name = "Bielik-11B-v3.0-Instruct", .end = "<|im_end|>"},
    {.name = "ByteDance-Seed-OSS", .end = "<seed:eos>"},
    {.name = "Cohere2MoE", .end = "<|END_OF_TURN_TOKEN|>"},
    {.name = "CohereForAI-c4ai-command-r7b-12-2024-tool_use", .end = "<|END_OF_TURN_TOKEN|>"},
    {.name = "fireworks-ai-llama-3-firefunction-v2", .end = "<|eot_id|>"},
    {.name = "GigaChat3.1-10B-A1.8B", .end = "<|message_sep|>"},
    {.name = "GLM-4.6", .end = "<|observation|>"},
    {.name = "GLM-4.7-Flash", .end = "<|observation|>"},
    {"google-gemma-4-31B-it", "<|tool_response>", .plain = true},
    {.name = "google-gemma-4-31B-it-interleaved", .end = "<|tool_response>"},
    {.name = "ibm-granite-granite-4.0", .end = "<|end_of_text|>"},
    {.name = "ibm-granite-granite-4.1", .end = "<|end_of_text|>"},
    {.name = "inclusionai-ling-3.0-flash", .end = "<|role_end|>"},
    {.name = "Kimi-K2-Instruct", .end = "<|im_end|>"},
    {.name = "Kimi-K2-Thinking", .end = "<|im_end|>"},
    {.name = "Kimi-K3", .end = "<|end_of_msg|>"},
    {.name = "LFM2.5-8B-A1B", .end = "<|im_end|>"},
    {.name = "meetkai-functionary-medium-v3.1", .end = "<|eom_id|>"},
    {.name = "meetkai-functionary-medium-v3.2", .end = "<|eot_id|>"},
    {.name = "meta-llama-Llama-3.1-8B-Instruct", .end = "<|eot_id|>"},
    {.name = "meta-llama-Llama-3.2-3B-Instruct", .end = "<|eot_id|>"},
    {.name = "meta-llama-Llama-3.3-70B-Instruct", .end = "<|eot_id|>"},
    {.name = "MiMo-VL", .end = "<|im_end|>"},
    {.name = "MiniMax-M1", .end = "<end_of_sentence>"},
    {.name = "MiniMax-M3", .end = "[e~["},
    {.name = "mistralai-Ministral-3-14B-Reasoning-2512", .end = "</s>"},
    {.name = "mistralai-Mistral-Nemo-Instruct-2407", .end = "</s>"},
    {.name = "moonshotai-Kimi-K2", .end = "<|im_end|>"},
    {.name = "muse-glimmer", .end = "<|eot|>"},
    {.name = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", .end = "<|im_end|>"},
    {.name = "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", .end = "<|im_end|>"},
    {"openai-gpt-oss-120b", "<|call|>", .plain = true},
    {.name = "openbmb-MiniCPM5-1B", .end = "<|im_end|>"},
    {.name = "poolside-Laguna-S-2.1", .end = "</assistant>"},
    {.name = "poolside-Laguna-XS-2.1", .end = "</assistant>"},
    {.name = "poolside-Laguna-XS.2", .end = "</assistant>"},
    {.name = "Qwen-Qwen2.5-7B-Instruct", .end = "<|im_end|>"},
    {.name = "Qwen-Qwen3-0.6B", .end = "<|im_end|>"},
    {.name = "Qwen3-Coder", .end = "<|im_end|>"},
    {.name = "Qwen3.5-4B", .end = "<|im_end|>"},
    {.name = "Reka-Edge", .end = "<sep>"},
    {.name = "StepFun3.5-Flash", .end = "<|im_end|>"},
    {.name = "unsloth-mistral-Devstral-Small-2507", .end = "</s>"},
    {"deepseek-ai-DeepSeek-V3.1", DEEPSEEK_END, .plain = true},
    {.name = "deepseek-ai-DeepSeek-V3.2", .end = DEEPSEEK_END},
    {.name = "deepseek-ai-DeepSeek-V4", .end = DEEPSEEK_END},
    {.name = "deepseek-ai-DeepSeek-V4-Flash-0731", .end = DEEPSEEK_END},
    {.name = "Spark2.5", .end = DEEPSEEK_END},
    {"tencent-Hy3", "<｜hy_eos:opensource｜>", .plain = true},
    /* gpt-oss: the channel of the call stands before its recipient when it is sampled, behind it when it is rendered */
    {"openai-gpt-oss-120b", "",
     .sampled = "<|channel|>analysis<|message|>Hm, look.<|end|><|start|>assistant<|channel|>commentary "
                "to=functions.get_weather <|constrain|>json<|message|>" CITY,
     .differs = "<|channel|>commentary to=", .has = " to=functions"},
    /* writes no calls of earlier turns at all */
    {"LFM2-8B-A1B", "", .sampled = "<|tool_call_start|>[get_weather(city=\"Paris\", days=2)]<|tool_call_end|>",
     .differs = "tool_call_start|>", .has = "im_end|>"},
    /* begin the answer with <think> and leave thoughts out of the history */
    {"llama-cpp-deepseek-r1", "",
     .sampled = "Hm, "
                "look.\n</"
                "think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" CITY
                "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     .differs = "<think>\nHm", .has = "\n\n<"},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "",
     .sampled = "Hm, "
                "look.\n</"
                "think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" CITY
                "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     .differs = "think>\nHm", .has = "｜tool▁calls▁begin｜>"},
    {"NVIDIA-Nemotron-Nano-v2", "",
     .sampled = "Hm, look.\n</think>\n<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": " CITY "}]</TOOLCALL>",
     .differs = "think>\nHm", .has = "TOOLCALL>"},
    {"Qwen-QwQ-32B", "",
     .sampled =
         "Hm, look.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " CITY "}\n</tool_call>",
     .differs = "<think>\nHm", .has = "\n<tool_call>"},
    /* write a line end after the thoughts, which have one already as they were sampled */
    {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<|im_end|>", .differs = "</think>", .has = "\n</think>"},
    {"MiniMax-M2", "[e~[", .differs = "</think>", .has = "\n</think>"},
    {"google-gemma-4-31B-it", "<|tool_response>", .differs = "<channel|>", .has = "\n<channel|>"},
};

/* ── rendering ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_model load_template(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/models/templates/%s.jinja", KVASIR_ENGINE_SOURCE, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing: scripts/fetch-engine.sh unpacks it", path);
    kv_buf source = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) kv_buf_add(&source, part, n);
    fclose(f);
    kv_error err = {0};
    kv_model m = {0};
    check(kv_border_model_new(&m.border, NULL, kv_buf_str(&source), "<s>", "</s>", &err), &err);
    kv_buf_free(&source);
    return m;
}

static kv_chat_prompt *render(const kv_model *m, const char *messages) {
    kv_chat_params p = {.messages_json = messages,
                        .tools_json = TOOLS,
                        .enable_thinking = -1,
                        .add_generation_prompt = true,
                        .reasoning_format = "auto",
                        .now_seconds = 1700000000};
    kv_error err = {0};
    kv_chat_prompt *c;
    check(kv_chat_render(&c, m, &p, &err), &err);
    return c;
}

/* The next prompt, with `message` and a tool's result. Owned by the caller. */
static char *render_next(const kv_model *m, const char *message) {
    kv_buf messages = {0};
    kv_buf_addf(&messages, "[" USER ",%s," RESULT "]", message);
    kv_chat_prompt *c = render(m, kv_buf_str(&messages));
    char *text = kv_strdup(kv_chat_prompt_text(c, NULL));
    kv_chat_prompt_free(c);
    kv_buf_free(&messages);
    return text;
}

static size_t common(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

/* What the template writes after its prompt for a turn that calls the tool, without its end. */
static char *own_text(const family *f, const kv_model *m, const char *prompt) {
    char *next = render_next(
        m, f->plain ? "{\"role\":\"assistant\",\"content\":null," CALL "}"
                    : "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"Hm, look.\"," CALL "}");
    size_t n = common(prompt, next);
    if (prompt[n]) fail_msg("%s: its prompt has \"%.40s\", where a turn has \"%.60s\"", f->name, prompt + n, next + n);
    const char *end = strstr(next + n, f->end);
    if (!end) fail_msg("%s: no %s in \"%.300s\"", f->name, f->end, next + n);
    char *text = kv_strndup(next + n, (size_t)(end - next) - n);
    free(next);
    return text;
}

/* ── parsing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The message that the deltas of a stream add up to, fed in pieces of `piece` bytes (0: all at once), and the parsed
 * one are the same. Returned as text, with the id that the result carries. */
static char *parse(const family *f, const kv_chat_prompt *prompt, const char *text, size_t piece) {
    kv_error err = {0};
    kv_chat_stream *s;
    check(kv_chat_stream_new(&s, prompt, &err), &err);
    size_t n = strlen(text);
    kv_buf args = {0}, deltas = {0}, whole = {0};
    int n_heads = 0;
    for (size_t at = 0; at < n || at == 0;) {
        size_t step = piece && piece < n - at ? piece : n - at;
        while (at + step < n && ((unsigned char)text[at + step] & 0xC0) == 0x80) step++;
        kv_buf_clear(&deltas);
        check(kv_chat_stream_feed(&deltas, s, text + at, step, at + step == n, &err), &err);
        json_t *list, *delta;
        size_t i;
        check(kv_json_parse(&list, deltas.data, deltas.len, &err), &err);
        json_array_foreach(list, i, delta) {
            json_t *function = json_object_get(json_array_get(json_object_get(delta, "tool_calls"), 0), "function");
            const char *more = json_string_value(json_object_get(function, "arguments"));
            if (json_object_get(function, "name")) n_heads++;
            if (more) kv_buf_adds(&args, more);
        }
        json_decref(list);
        at += step;
        if (at == n) break;
    }
    check(kv_chat_stream_message(&whole, s, &err), &err);
    json_t *message, *got, *want = json_pack("{s:s, s:i}", "city", "Paris", "days", 2);
    check(kv_json_parse(&message, whole.data, whole.len, &err), &err);
    json_t *calls = json_object_get(message, "tool_calls"), *call = json_array_get(calls, 0);
    const char *arguments = json_string_value(json_object_get(json_object_get(call, "function"), "arguments"));
    if (json_array_size(calls) != 1 || n_heads != 1)
        fail_msg("%s: %d calls in \"%s\": %s", f->name, (int)json_array_size(calls), text, kv_buf_str(&whole));
    assert_string_equal(json_string_value(json_object_get(json_object_get(call, "function"), "name")), "get_weather");
    assert_string_equal(arguments, kv_buf_str(&args));
    check(kv_json_parse(&got, arguments, strlen(arguments), &err), &err);
    if (!json_equal(got, want)) fail_msg("%s: arguments %s", f->name, arguments);
    json_object_set_new(call, "id", json_string("abcdef123"));
    kv_buf_clear(&whole);
    kv_json_dump(&whole, message);
    json_decref(got), json_decref(want), json_decref(message);
    kv_buf_free(&args), kv_buf_free(&deltas);
    kv_chat_stream_free(s);
    return kv_buf_take(&whole);
}

/* ── the way round ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void check_next(const family *f, const char *prompt, const char *sampled, const char *next) {
    kv_buf told = {0};
    kv_buf_addf(&told, "%s%s", prompt, sampled);
    size_t n = common(kv_buf_str(&told), next);
    const char *rest = kv_buf_str(&told) + n;
    if (!f->differs) {
        if (*rest) fail_msg("%s: sampled \"%.80s\", rendered \"%.80s\"", f->name, rest, next + n);
    } else if (strncmp(rest, f->differs, strlen(f->differs)) != 0 || strncmp(next + n, f->has, strlen(f->has)) != 0) {
        fail_msg("%s: sampled \"%.80s\", rendered \"%.80s\", but the table says \"%s\" and \"%s\"", f->name, rest,
                 next + n, f->differs, f->has);
    }
    kv_buf_free(&told);
}

static void test_way_round(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const family *f = &families[i];
        kv_model m = load_template(f->name);
        kv_chat_prompt *c = render(&m, "[" USER "]");
        const char *prompt = kv_chat_prompt_text(c, NULL);
        char *sampled = f->sampled ? kv_strdup(f->sampled) : own_text(f, &m, prompt);
        char *whole = parse(f, c, sampled, 0);
        for (size_t piece = 1; piece <= 7; piece += 3) {
            char *same = parse(f, c, sampled, piece);
            assert_string_equal(same, whole);
            free(same);
        }
        char *next = render_next(&m, whole);
        check_next(f, prompt, sampled, next);
        free(next), free(whole), free(sampled);
        kv_chat_prompt_free(c);
        kv_border_model_free(m.border);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_way_round)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
