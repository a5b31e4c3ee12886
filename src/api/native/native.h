/* api/native/native.h: llama-server's own shape of an answer, which /completion and /infill have in common (native.c).
 *
 * Thread rule: as job.h.
 */
#ifndef KV_API_NATIVE_NATIVE_H
#define KV_API_NATIVE_NATIVE_H

#include "api/job.h"

extern const kv_dialect kv_native_dialect;

#endif
