/* engine/llama_lib.h: the loaded libllama as a whole: backends, version, and where its messages go.
 *
 * Thread rule: any thread. A trap belongs to the thread that opened it.
 */
#ifndef KV_ENGINE_LLAMA_LIB_H
#define KV_ENGINE_LLAMA_LIB_H

#include <stdbool.h>

#include "base/error.h"

/* Once a process: routes the engine's messages to kv_log, checks that the library is the release whose headers
 * kvasir was built with, and loads its backends from the directory that libllama itself lies in (KVASIR_ENGINE_DIR
 * names another one). Later calls return what the first one did. */
kv_status kv_llama_lib_init(kv_error *err);
const char *kv_llama_lib_backends(void); /* "CPU (…)"; static once initialised */
bool kv_llama_lib_has_gpu(void);         /* any device but processors was found; once initialised */

/* While a trap is open on this thread, the engine's errors are kept instead of logged, and with `warnings` its warnings
 * too: what a request causes is told to that request. Traps nest; the outermost decides. `text` is the last error's
 * text (or the last warning's when there was no error) since the outermost begin, "" when there was none; it stays until
 * the next begin on this thread. */
void kv_llama_trap_begin(bool warnings);
const char *kv_llama_trap_text(void);
void kv_llama_trap_end(void);

#endif
