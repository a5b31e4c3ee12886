/* cli/doctor.h: `kvasir doctor`: what about this machine and these settings costs cache, and what to do about it.
 *
 *   arguments, environment, --config (those of `serve`) ─► options
 *     doctor_machine.c   engine, memory, processors, files ─┐
 *     doctor_disk.c      directory, volume, room, speed    ─┼─► a finding each: ok | warn | bad, text, advice ─► a line,
 *     doctor.c           settings; with -m the model       ─┘   or with --json one object
 *
 * Nothing in the cache is changed: the file that the speed is measured with has no name any more while it is written,
 * and no other process is asked or disturbed. With -m, what is measured for the model is remembered, as `serve` does.
 *
 * Exit status: 0 nothing is bad, 1 something is, 2 wrong usage.
 *
 * Thread rule: the main thread.
 */
#ifndef KV_CLI_DOCTOR_H
#define KV_CLI_DOCTOR_H

/* argv[0] is "doctor"; env is NULL-terminated. Returns the exit status. */
int kv_doctor(int argc, char **argv, char *const *env);

#endif
