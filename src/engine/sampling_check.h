/* engine/sampling_check.h: what of a request's sampling parameters the engine would abort on, or take for something else.
 *
 * Thread rule: pure function.
 */
#ifndef KV_ENGINE_SAMPLING_CHECK_H
#define KV_ENGINE_SAMPLING_CHECK_H

#include "engine/engine.h"

/* Bytes of a text that a request gives beside its prompt, and that is tokenised. See tokenize in model_llama.c. */
#define KV_SAMPLING_TEXT_MAX 4096

/* KV_INVALID names the field. n_vocab: tokens of the vocabulary. */
kv_status kv_sampling_check(const kv_sampling *s, int32_t n_vocab, kv_error *err);

#endif
