/* mkmodel/tokenizer.h: the vocabulary and chat template of a made model. */
#ifndef MKMODEL_TOKENIZER_H
#define MKMODEL_TOKENIZER_H

#include "out.h"

/* One token a byte (ids 0 … 255 in the order of byte values), then the marks of a ChatML conversation with reasoning
 * and tool calls. No merges, no BOS added, end of turn = <|im_end|>. Returns the number of tokens. */
uint32_t mk_tokenizer_bytes(mk_out *out, const char *chat_template);
/* An encoder's: [CLS] … [SEP], and words of printable ASCII, a token a letter; the rest is [UNK]. No template. */
uint32_t mk_tokenizer_words(mk_out *out);
/* Tokenizer and template of another GGUF. */
uint32_t mk_tokenizer_donor(mk_out *out, const char *donor_path, const char *chat_template);
/* chat_template in the others: a Jinja source that is used instead, or NULL. */

/* The token that ends a turn, also what qwen4exp's n-gram hash starts over at. */
#define MK_TOKEN_END_OF_TURN 258

#endif
