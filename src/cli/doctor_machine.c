/* cli/doctor_machine.c: engine, memory, processors, open files. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cache_tool.h"
#include "cli/doctor_tool.h"
#include "engine/llama_lib.h"
#include "os/machine.h"

#define GIB            ((uint64_t)1 << 30)
#define LITTLE_MEMORY  GIB /* a small model, its context and a pool of conversations */
#define FILES_BASE     256 /* as the HTTP server asks for: three a connection, one connection in eight to spare */
#define FILES_PER_CONN 3
#define SPARE_CONNS    8
#define SPARE_CONNS_OF 8

void kv_doctor_engine(kv_doctor_tool *t) {
    kv_error err = {0};
    if (kv_llama_lib_init(&err) != KV_OK) {
        kv_doctor_find(t, KV_VERDICT_BAD, "engine", "run `make` again, which fetches the engine that belongs to it",
                       NULL, "%s", err.message);
        return;
    }
    kv_doctor_find(t, KV_VERDICT_OK, "engine", NULL,
                   json_pack("{s:s, s:s, s:b}", "release", KVASIR_ENGINE_RELEASE, "backends", kv_llama_lib_backends(),
                             "gpu", kv_llama_lib_has_gpu()),
                   "kvasir %s, llama.cpp %s on %s", KVASIR_VERSION, KVASIR_ENGINE_RELEASE, kv_llama_lib_backends());
}

void kv_doctor_memory(kv_doctor_tool *t) {
    uint64_t total = kv_machine_memory_total(), left = kv_machine_memory_available();
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t physical = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : total;
    bool limited = total < physical / 64 * 63; /* the kernel's own share aside */
    kv_buf text = {0};
    kv_cache_add_bytes(&text, left);
    kv_buf_adds(&text, " available of ");
    kv_cache_add_bytes(&text, total);
    if (limited) {
        kv_buf_adds(&text, ", to which a cgroup limits this process (the machine has ");
        kv_cache_add_bytes(&text, physical);
        kv_buf_adds(&text, ")");
    }
    json_t *values = json_pack("{s:I, s:I, s:I, s:b}", "available_bytes", (json_int_t)left, "total_bytes",
                               (json_int_t)total, "physical_bytes", (json_int_t)physical, "cgroup", limited);
    bool little = left < LITTLE_MEMORY;
    kv_doctor_find(t, little ? KV_VERDICT_WARN : KV_VERDICT_OK, "memory",
                   !little   ? NULL
                   : limited ? "raise the container's or service's memory limit"
                             : "end what else takes memory, or use a smaller model",
                   values, "%s", kv_buf_str(&text));
    kv_buf_free(&text);
}

void kv_doctor_processors(kv_doctor_tool *t) {
    int cores = kv_machine_cores(), allowed = kv_machine_processors();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    double load = 0;
    if (getloadavg(&load, 1) != 1) load = 0;
    int64_t asked = t->opt.threads > t->opt.threads_batch ? t->opt.threads : t->opt.threads_batch;
    char advice[160] = "";
    if (asked > cores)
        snprintf(advice, sizeof advice, "leave -t and -tb out: %lld threads on %d cores wait for each other",
                 (long long)asked, cores);
    else if (load > cores)
        snprintf(advice, sizeof advice, "something else computes: each token waits for the slowest thread");
    else if (online > allowed)
        snprintf(advice, sizeof advice,
                 "if that is not meant: taskset, the container's cpuset, the service's "
                 "CPUAffinity");
    json_t *values = json_pack("{s:i, s:i, s:I, s:f}", "cores", cores, "processors", allowed, "online",
                               (json_int_t)online, "load", load);
    kv_doctor_find(
        t, asked > cores || load > cores ? KV_VERDICT_WARN : KV_VERDICT_OK, "processors", *advice ? advice : NULL,
        values, "%d threads are of use (cores that affinity and quota leave), %d of %ld processors allowed, load %.1f",
        cores, allowed, online, load);
}

void kv_doctor_files(kv_doctor_tool *t) {
    uint64_t conns = (uint64_t)t->opt.max_connections, spare = SPARE_CONNS + conns / SPARE_CONNS_OF;
    uint64_t want = (conns + spare) * FILES_PER_CONN + FILES_BASE, got = kv_machine_raise_open_files(want);
    json_t *values = json_pack("{s:I, s:I}", "limit", (json_int_t)got, "wanted", (json_int_t)want);
    kv_doctor_find(t, got < want ? KV_VERDICT_WARN : KV_VERDICT_OK, "open files",
                   got < want ? "ulimit -n, LimitNOFILE= of the service, or fewer --max-connections" : NULL, values,
                   "%llu can be open, %llu are enough for %llu connections", (unsigned long long)got,
                   (unsigned long long)want, (unsigned long long)conns);
}
