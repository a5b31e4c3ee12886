/* cli/find_model.h: what -m, -hf or --model-url name, as a file: from a cache, or fetched with a line of progress.
 *
 * Thread rule: main, before any other thread.
 */
#ifndef KV_CLI_FIND_MODEL_H
#define KV_CLI_FIND_MODEL_H

#include "options/options.h"

/* Sets o->model where -hf or --model-url was given, and checks that no part of a split model is missing. offline: fetch
 * nothing, as with --offline. Errors as in hub/hub.h. */
kv_status kv_find_model(kv_options *o, bool offline, kv_error *err);

#endif
