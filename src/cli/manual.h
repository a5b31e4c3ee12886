/* cli/manual.h: what kvasir can be asked to do, as one table, and what is made of it and of the option table: the usage
 * text, the man page, completions for three shells. The build writes the last two with the program itself
 * (cmake/install.cmake), so they are never out of date.
 *
 * Thread rule: any thread.
 */
#ifndef KV_CLI_MANUAL_H
#define KV_CLI_MANUAL_H

#include "base/buf.h"
#include "base/error.h"

typedef struct kv_command_info {
    const char *name;     /* "cache" */
    const char *synopsis; /* what follows "kvasir ", a few words */
    const char *what;     /* one line; a second one behind '\n' */
    const char *words;    /* what may stand next, comma-separated; NULL = nothing fixed */
} kv_command_info;

extern const kv_command_info kv_commands[]; /* ends with a NULL name */

void kv_manual_usage(kv_buf *out); /* "usage: kvasir serve …" */
void kv_manual_page(kv_buf *out);  /* kvasir(1), as man(7) macros */
/* shell: "bash", "zsh", "fish"; KV_NOT_FOUND names them for another one. */
kv_status kv_completion(kv_buf *out, const char *shell, kv_error *err);

#endif
