/* cli/cache_command.h: `kvasir cache …`: look at the disk cache, check it, clear it, carry it away.
 *
 *   kv_cache_command   arguments ─► directory ─► store (read-only for what only looks) ─► namespaces ─► verb
 *   cache_look.c       ls, show, stat                      cache_change.c   verify, gc, rm, pin, unpin
 *   cache_carry.c      export, import                      cache_text.c     tables, sizes, ages, progress
 *   cache_warm.c       warm
 *
 * Works on the directory itself, beside a running server and without one; the store's locks see to that. A running
 * server sees what went when it next reads it, and what came when it next starts.
 *
 * Exit status: 0 done, 1 failed or damage found, 2 wrong usage.
 *
 * Thread rule: the main thread.
 */
#ifndef KV_CLI_CACHE_COMMAND_H
#define KV_CLI_CACHE_COMMAND_H

/* argv[0] is "cache"; env is NULL-terminated. Returns the exit status. */
int kv_cache_command(int argc, char **argv, char *const *env);

#endif
