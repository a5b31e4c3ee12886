/* mkmodel/tokenizer.c: see tokenizer.h. */
#include "tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* llama_token_type */
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4 };

/* Control tokens are not spelled in an answer; user-defined ones are, since reasoning and tool calls are parsed from
 * the answer's text. */
static const struct mark {
    const char *text;
    int32_t type;
} marks[] = {
    {"<|endoftext|>", TOKEN_CONTROL},
    {"<|im_start|>", TOKEN_CONTROL},
    {"<|im_end|>", TOKEN_CONTROL},
    {"<think>", TOKEN_USER_DEFINED},
    {"</think>", TOKEN_USER_DEFINED},
    {"<tool_call>", TOKEN_USER_DEFINED},
    {"</tool_call>", TOKEN_USER_DEFINED},
    {"<tool_response>", TOKEN_USER_DEFINED},
    {"</tool_response>", TOKEN_USER_DEFINED},
};
#define N_MARKS  (sizeof marks / sizeof *marks)
#define N_TOKENS (256 + N_MARKS)

/* ChatML with a system prompt, reasoning, tools as JSON schemas and tool calls as JSON between marks. The sentence
 * about tools is short because a token is a byte. */
static const char chatml[] =
    "{%- set first_is_system = messages and messages[0].role == 'system' -%}\n"
    "{%- if tools or first_is_system -%}\n"
    "{{- '<|im_start|>system\\n' -}}\n"
    "{%- if first_is_system -%}{{- messages[0].content -}}{%- endif -%}\n"
    "{%- if tools -%}\n"
    "{%- if first_is_system -%}{{- '\\n\\n' -}}{%- endif -%}\n"
    "{{- 'Tools:\\n<tools>' -}}\n"
    "{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}\n"
    "{{- '\\n</tools>\\nCall one by:\\n<tool_call>\\n{\"name\": NAME, \"arguments\": OBJECT}\\n</tool_call>' -}}\n"
    "{%- endif -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "{%- if message.role == 'assistant' -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- if message.reasoning_content -%}\n"
    "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- if message.content -%}{{- message.content -}}{%- endif -%}\n"
    "{%- if message.tool_calls -%}\n"
    "{%- for call in message.tool_calls -%}\n"
    "{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}\n"
    "{{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' -}}\n"
    "{%- if call.function.arguments is string -%}{{- call.function.arguments -}}\n"
    "{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}\n"
    "{{- '}\\n</tool_call>' -}}\n"
    "{%- endfor -%}\n"
    "{%- endif -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- elif message.role == 'tool' -%}\n"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}\n"
    "{%- elif not (loop.first and first_is_system) -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}\n"
    "{%- endif -%}\n";

/* Byte-level BPE vocabularies spell a byte as one printable character: the printable bytes of Latin-1 as themselves,
 * the other 68 as U+0100 and up, in order. Writes UTF-8. */
static void spell_bytes(char spelling[256][4]) {
    int n_other = 0;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        int code = printable ? b : 0x100 + n_other++;
        char *s = spelling[b];
        if (code < 0x80) {
            s[0] = (char)code;
            s[1] = 0;
        } else {
            s[0] = (char)(0xC0 | code >> 6);
            s[1] = (char)(0x80 | (code & 0x3F));
            s[2] = 0;
        }
    }
}

uint32_t mk_tokenizer_bytes(mk_out *out, const char *chat_template) {
    char spelling[256][4];
    const char *texts[N_TOKENS];
    int32_t types[N_TOKENS];
    spell_bytes(spelling);
    for (size_t i = 0; i < 256; i++) {
        texts[i] = spelling[i];
        types[i] = TOKEN_NORMAL;
    }
    for (size_t i = 0; i < N_MARKS; i++) {
        texts[256 + i] = marks[i].text;
        types[256 + i] = marks[i].type;
    }
    struct gguf_context *g = mk_out_gguf(out);
    mk_set_str(out, "tokenizer.ggml.model", "gpt2");
    mk_set_str(out, "tokenizer.ggml.pre", "qwen2");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", texts, N_TOKENS);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, N_TOKENS);
    gguf_set_arr_str(g, "tokenizer.ggml.merges", texts, 0); /* must be there, may be empty */
    mk_set_u32(out, "tokenizer.ggml.bos_token_id", 256);
    mk_set_u32(out, "tokenizer.ggml.eos_token_id", MK_TOKEN_END_OF_TURN);
    mk_set_u32(out, "tokenizer.ggml.padding_token_id", 256);
    mk_set_bool(out, "tokenizer.ggml.add_bos_token", false);
    mk_set_str(out, "tokenizer.chat_template", chat_template ? chat_template : chatml);
    return N_TOKENS;
}

uint32_t mk_tokenizer_words(mk_out *out) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    enum { PAD, UNK, CLS, SEP, MASK, N_SPECIAL, ROOM = N_SPECIAL + 2 * 96 };
    char spelling[ROOM][8];
    const char *texts[ROOM];
    int32_t types[ROOM];
    size_t n = 0;
    for (; n < N_SPECIAL; n++) {
        texts[n] = special[n];
        types[n] = TOKEN_CONTROL;
    }
    for (int c = '!'; c <= '~'; c++) { /* each at the beginning of a word, and inside one; texts are lowercased */
        if (c >= 'A' && c <= 'Z') continue;
        for (int inside = 0; inside < 2; inside++, n++) {
            snprintf(spelling[n], sizeof spelling[n], "%s%c", inside ? "" : "\xe2\x96\x81", c);
            texts[n] = spelling[n];
            types[n] = TOKEN_NORMAL;
        }
    }
    struct gguf_context *g = mk_out_gguf(out);
    mk_set_str(out, "tokenizer.ggml.model", "bert");
    mk_set_str(out, "tokenizer.ggml.pre", "default");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", texts, n);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, n);
    mk_set_u32(out, "tokenizer.ggml.token_type_count", 2);
    mk_set_u32(out, "tokenizer.ggml.padding_token_id", PAD);
    mk_set_u32(out, "tokenizer.ggml.unknown_token_id", UNK);
    mk_set_u32(out, "tokenizer.ggml.bos_token_id", CLS);
    mk_set_u32(out, "tokenizer.ggml.cls_token_id", CLS);
    mk_set_u32(out, "tokenizer.ggml.seperator_token_id", SEP); /* the format's spelling */
    mk_set_u32(out, "tokenizer.ggml.mask_token_id", MASK);
    return (uint32_t)n;
}

uint32_t mk_tokenizer_donor(mk_out *out, const char *donor_path, const char *chat_template) {
    struct gguf_context *donor = gguf_init_from_file(donor_path, (struct gguf_init_params){.no_alloc = true});
    if (!donor) mk_die("%s: not a readable GGUF file", donor_path);
    for (int64_t i = gguf_get_n_kv(donor); i-- > 0;) {
        char key[256];
        snprintf(key, sizeof key, "%s", gguf_get_key(donor, i));
        if (strncmp(key, "tokenizer.", strlen("tokenizer.")) != 0) gguf_remove_key(donor, key);
    }
    gguf_set_kv(mk_out_gguf(out), donor);
    gguf_free(donor);

    struct gguf_context *g = mk_out_gguf(out);
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens");
    if (tokens < 0) mk_die("%s: has no tokens", donor_path);
    uint32_t n = (uint32_t)gguf_get_arr_n(g, tokens);
    if (chat_template) mk_set_str(out, "tokenizer.chat_template", chat_template);
    if (gguf_find_key(g, "tokenizer.chat_template") < 0) {
        mk_die("%s: has no chat template; give one with --template", donor_path);
    }
    return n;
}
