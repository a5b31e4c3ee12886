/* api/native/infill.h: the prompt of a completion in the middle of a text, as llama-server puts it together.
 *
 *   [rep] myproject\n   [sep] FILENAME\n TEXT …   [sep] filename\n   BOS [pre] PREFIX PROMPT   [suf] SUFFIX   [mid]
 *   └── where the vocabulary knows these; of all this the last tokens that the context leaves room for ┘
 *
 * Without a separator token a snippet mark stands for it. With --spm-infill the suffix comes before the prefix. Of the
 * prefix the last 3/4 of a batch's tokens are taken, of the suffix the first of what is left.
 *
 * Thread rule: none.
 */
#ifndef KV_API_NATIVE_INFILL_H
#define KV_API_NATIVE_INFILL_H

#include "api/app.h"
#include "base/json.h"

/* Sizes in tokens. */
typedef struct kv_infill_limits {
    int32_t n_batch, n_predict, n_ctx;
    bool suffix_first;
} kv_infill_limits;

/* KV_UNSUPPORTED: the vocabulary lacks FIM tokens. KV_INVALID names the field. *out: empty at entry. */
kv_status kv_infill_prompt(kv_tokens *out, const kv_model *model, const json_t *body, const kv_infill_limits *limits,
                           kv_error *err);

#endif
