/* cli/doctor_tool.h: what the files of `kvasir doctor` share. Only src/cli/doctor*.c includes it.
 *
 * Thread rule: the main thread.
 */
#ifndef KV_CLI_DOCTOR_TOOL_H
#define KV_CLI_DOCTOR_TOOL_H

#include "base/json.h"
#include "cli/disk_plan.h"
#include "options/options.h"

typedef enum kv_verdict { KV_VERDICT_OK, KV_VERDICT_WARN, KV_VERDICT_BAD, KV_VERDICT_COUNT } kv_verdict;

typedef struct kv_doctor_tool {
    kv_options opt;
    int argc;
    char **argv;      /* owned array of borrowed words: the command line without doctor's own words */
    char *const *env; /* borrowed */
    bool json, no_speed;
    kv_disk_plan disk;
    json_t *findings; /* owned */
    int n[KV_VERDICT_COUNT];
} kv_doctor_tool;

/* One finding, printed at once unless --json. advice: what to do, NULL = nothing. values: numbers behind the text, the
 * reference is taken; NULL = none. */
void kv_doctor_find(kv_doctor_tool *t, kv_verdict verdict, const char *check, const char *advice, json_t *values,
                    const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* doctor_machine.c, doctor_disk.c: a finding or several each. */
void kv_doctor_engine(kv_doctor_tool *t);
void kv_doctor_memory(kv_doctor_tool *t);
void kv_doctor_processors(kv_doctor_tool *t);
void kv_doctor_files(kv_doctor_tool *t);
void kv_doctor_disk(kv_doctor_tool *t); /* directory, volume and room of t->disk */
void kv_doctor_speed(kv_doctor_tool *t);

/* Is t->disk.dir a cache already? */
bool kv_doctor_has_cache(const kv_doctor_tool *t);

#endif
