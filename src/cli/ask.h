/* cli/ask.h: subcommands that ask a running server: `kvasir why` and `kvasir status`.
 *
 * Thread rule: the main thread, before anything else runs.
 */
#ifndef KV_CLI_ASK_H
#define KV_CLI_ASK_H

/* argv[0] is the subcommand. They return the exit status (cli.h). */
int kv_ask_why(int argc, char **argv, char *const *env);
int kv_ask_status(int argc, char **argv, char *const *env);

#endif
