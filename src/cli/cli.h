/* cli/cli.h: the program: subcommands, and one server's life from arguments to exit status.
 *
 *   kv_cli_main ──► help, version, completion (manual.h), --print-config, --check, cache (cache_command.h),
 *        │          doctor (doctor.h), why and status (ask.h: they ask a running server)
 *        └────────► kv_serve: main thread                        engine thread (engine_thread.c)
 *                   signals, HTTP up ─────────────────────────►  load, tune, plan, warm up
 *                   waits: signal, HUP, engine thread's end  ◄─  READY: kv_sched_run …
 *                   drain ─► stop ─► HTTP down ───────────────►  frees scheduler, engine, model
 *
 * Exit status: 0 a clean end, 1 a failure, 2 wrong usage. KV_EXIT_… below.
 *
 * Thread rule: the main thread.
 */
#ifndef KV_CLI_CLI_H
#define KV_CLI_CLI_H

#include "options/options.h"

#define KV_EXIT_OK      0
#define KV_EXIT_FAILURE 1
#define KV_EXIT_USAGE   2

/* argv[0] is the program; env is NULL-terminated. Returns the exit status. */
int kv_cli_main(int argc, char **argv, char *const *env);
/* Runs a server until it is told to stop. Options are parsed and checked. */
int kv_serve(const kv_options *opt);
/* Loads the model, prints the plan to stdout. */
int kv_serve_check(const kv_options *opt);

#endif
