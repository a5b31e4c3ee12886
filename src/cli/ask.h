/* cli/ask.h: subcommands that ask a running server: `kvasir why` and `kvasir status`.
 *
 * Thread rule: the main thread, before anything else runs.
 */
#ifndef KV_CLI_ASK_H
#define KV_CLI_ASK_H

#include "base/json.h"

/* argv[0] is the subcommand. They return the exit status (cli.h). */
int kv_ask_why(int argc, char **argv, char *const *env);
int kv_ask_status(int argc, char **argv, char *const *env);

/* One request to a running server: url + path, then `value` (may be NULL) escaped behind it; key may be NULL. *out: the
 * answer, a JSON object, owned by the caller; anything but a 200 is an error with the server's words. Sets libcurl up
 * and takes it down again: no other thread may use it meanwhile. */
kv_status kv_ask_server(json_t **out, const char *method, const char *url, const char *key, const char *path,
                        const char *value, kv_error *err);

#endif
