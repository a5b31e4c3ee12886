/* fuzz/fuzz.h: what every fuzzer here has in common.
 *
 * A fuzzer defines kv's side of libFuzzer's one function. It may assume nothing of the bytes, and states what must hold
 * of them with KV_CHECK. It keeps no state between inputs, so that one input alone reproduces what it found.
 */
#ifndef KV_FUZZ_FUZZ_H
#define KV_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
