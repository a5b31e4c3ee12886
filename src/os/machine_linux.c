/* A cgroup limits a process from its own group upwards: each ancestor's limit holds too, so all levels are read and
 * the smallest wins.
 *
 *   /proc/self/cgroup          4:memory:/a/b        v1: one line a controller      0::/a/b   v2: one line for all
 *   /proc/self/mountinfo       … /a /sys/fs/cgroup/memory … - cgroup … memory      (root "/a" is what is mounted there)
 *   levels                     <mount point>/b, then <mount point>
 *
 * In a container the mounted root and the path are often both "/docker/<id>", or the path is one of the host that is
 * not visible: levels that do not exist are skipped, the mount point itself always does.
 */
#ifdef __linux__
#define _GNU_SOURCE 1 /* sched_getaffinity, CPU_ALLOC */
#endif
#include "os/machine_linux.h"
#include "os/machine.h"

#ifdef __linux__

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define NO_LIMIT      UINT64_MAX
#define MAX_PROC_FILE (8u << 20) /* /proc/cpuinfo is 1.5 KiB a processor */

/* Reads root + path; false, with an empty buffer, when it cannot be read. */
static bool slurp(kv_buf *out, const char *root, const char *path) {
    kv_buf full = {0};
    kv_buf_addf(&full, "%s%s", root, path);
    bool ok = kv_file_read(out, kv_buf_str(&full), MAX_PROC_FILE, NULL) == KV_OK;
    kv_buf_free(&full);
    if (!ok) kv_buf_clear(out);
    return ok;
}

/* A file that holds one number; NO_LIMIT for "max", "-1" or anything else. */
static uint64_t read_number(const char *dir, const char *name) {
    kv_buf text = {0};
    uint64_t value = NO_LIMIT;
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/%s", dir, name);
    if (slurp(&text, "", kv_buf_str(&path)) && text.len && text.data[0] >= '0' && text.data[0] <= '9')
        value = strtoull(text.data, NULL, 10);
    kv_buf_free(&path);
    kv_buf_free(&text);
    return value;
}

/* The number after `key` at the start of a line; 0 when there is none. */
static uint64_t keyed_number(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':' || line[n] == '\t')) {
            const char *p = line + n;
            while (*p == ' ' || *p == ':' || *p == '\t') p++;
            return strtoull(p, NULL, 10);
        }
    }
    return 0;
}

/* Is `word` one of the comma-separated words of list[0..n)? */
static bool has_word(const char *list, size_t n, const char *word) {
    size_t len = strlen(word);
    for (const char *p = list, *end = list + n; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t part = comma ? (size_t)(comma - p) : (size_t)(end - p);
        if (part == len && memcmp(p, word, len) == 0) return true;
        p += part + 1;
    }
    return false;
}

/* This process's path in the hierarchy that carries `controller`. */
static bool cgroup_path(kv_buf *path, bool *v2, const char *root, const char *controller) {
    kv_buf text = {0};
    bool found = false;
    slurp(&text, root, "/proc/self/cgroup");
    char *save = NULL;
    for (char *line = text.len ? strtok_r(text.data, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':');
        char *where = list ? strchr(list + 1, ':') : NULL;
        if (!where) continue;
        bool unified = where == list + 1 && strncmp(line, "0:", 2) == 0;
        if (!unified && !has_word(list + 1, (size_t)(where - list - 1), controller)) continue;
        if (unified && found) continue; /* on a hybrid host the v1 hierarchy has the controller */
        kv_buf_clear(path);
        kv_buf_adds(path, where + 1);
        *v2 = unified;
        found = true;
        if (!unified) break;
    }
    kv_buf_free(&text);
    return found;
}

/* Where that hierarchy is mounted, and which part of it. Both are cut from one line of mountinfo. */
static bool cgroup_mount(kv_buf *point, kv_buf *part, const char *root, bool v2, const char *controller) {
    kv_buf text = {0};
    bool found = false;
    slurp(&text, root, "/proc/self/mountinfo");
    char *save = NULL;
    for (char *line = text.len ? strtok_r(text.data, "\n", &save) : NULL; line && !found;
         line = strtok_r(NULL, "\n", &save)) {
        char *tail = strstr(line, " - ");
        if (!tail) continue;
        char type[32], options[512], mounted[512], at[512];
        if (sscanf(tail, " - %31s %*s %511s", type, options) != 2) continue;
        if (sscanf(line, "%*s %*s %*s %511s %511s", mounted, at) != 2) continue;
        if (strcmp(type, v2 ? "cgroup2" : "cgroup") != 0) continue;
        if (!v2 && !has_word(options, strlen(options), controller)) continue;
        kv_buf_adds(point, at);
        kv_buf_adds(part, mounted);
        found = true;
    }
    kv_buf_free(&text);
    return found;
}

typedef uint64_t (*level_fn)(const char *dir, bool v2);

/* The smallest value of `fn` over this process's group and all that contain it. */
static uint64_t cgroup_min(const char *root, const char *controller, level_fn fn) {
    kv_buf path = {0}, point = {0}, part = {0}, dir = {0};
    bool v2 = false;
    uint64_t least = NO_LIMIT;
    if (!cgroup_path(&path, &v2, root, controller) || !cgroup_mount(&point, &part, root, v2, controller)) goto done;

    kv_buf_addf(&dir, "%s%s", root, kv_buf_str(&point));
    size_t top = dir.len;
    const char *rest = kv_buf_str(&path);
    size_t cut = strcmp(kv_buf_str(&part), "/") == 0 ? 0 : part.len;
    if (strncmp(rest, kv_buf_str(&part), cut) == 0 && (rest[cut] == '/' || rest[cut] == '\0')) rest += cut;
    if (!strstr(rest, "/..")) kv_buf_adds(&dir, rest); /* "/../x": a group outside of what this container sees */
    for (;;) {
        uint64_t value = fn(kv_buf_str(&dir), v2);
        if (value < least) least = value;
        if (dir.len <= top) break;
        while (dir.len > top && dir.data[dir.len - 1] != '/') dir.len--;
        if (dir.len > top) dir.len--; /* the slash */
        dir.data[dir.len] = '\0';
    }
done:
    kv_buf_free(&path);
    kv_buf_free(&point);
    kv_buf_free(&part);
    kv_buf_free(&dir);
    return least;
}

/* CPU quota in thousandths of a CPU. */
static uint64_t cpu_quota(const char *dir, bool v2) {
    uint64_t quota = NO_LIMIT, period = NO_LIMIT;
    if (v2) {
        kv_buf text = {0}, path = {0};
        kv_buf_addf(&path, "%s/cpu.max", dir);
        slurp(&text, "", kv_buf_str(&path));
        if (sscanf(kv_buf_str(&text), "%" SCNu64 " %" SCNu64, &quota, &period) != 2)
            quota = NO_LIMIT; /* "max 100000" */
        kv_buf_free(&path);
        kv_buf_free(&text);
    } else {
        quota = read_number(dir, "cpu.cfs_quota_us");
        period = read_number(dir, "cpu.cfs_period_us");
    }
    if (quota == NO_LIMIT || period == NO_LIMIT || period == 0 || quota > NO_LIMIT / 1000) return NO_LIMIT;
    return quota * 1000 / period;
}

static uint64_t memory_limit(const char *dir, bool v2) {
    if (!v2) return read_number(dir, "memory.limit_in_bytes");
    uint64_t max = read_number(dir, "memory.max"), high = read_number(dir, "memory.high");
    return max < high ? max : high; /* above `high` the kernel slows the group down until it has shrunk */
}

static uint64_t memory_left(const char *dir, bool v2) {
    uint64_t limit = memory_limit(dir, v2);
    uint64_t used = read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == NO_LIMIT || used == NO_LIMIT) return limit;
    kv_buf text = {0}, path = {0};
    kv_buf_addf(&path, "%s/memory.stat", dir);
    slurp(&text, "", kv_buf_str(&path));
    uint64_t cache = keyed_number(kv_buf_str(&text), v2 ? "inactive_file" : "total_inactive_file") +
                     keyed_number(kv_buf_str(&text), v2 ? "active_file" : "total_active_file");
    kv_buf_free(&path);
    kv_buf_free(&text);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

static uint64_t meminfo(const char *root, const char *key) {
    kv_buf text = {0};
    slurp(&text, root, "/proc/meminfo");
    uint64_t kib = keyed_number(kv_buf_str(&text), key);
    kv_buf_free(&text);
    return kib * 1024;
}

uint64_t kv_linux_memory_total(const char *root) {
    uint64_t total = meminfo(root, "MemTotal"), limit = cgroup_min(root, "memory", memory_limit);
    return limit < total ? limit : total;
}

uint64_t kv_linux_memory_available(const char *root) {
    uint64_t left = meminfo(root, "MemAvailable"), limit = cgroup_min(root, "memory", memory_left);
    return limit < left ? limit : left;
}

/* Is `cpu` in a kernel list such as "0-7,16,18-19"? */
static bool in_cpu_list(const char *list, int cpu) {
    for (const char *p = list; *p >= '0' && *p <= '9';) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (cpu >= first && cpu <= last) return true;
        p = *end == ',' ? end + 1 : end;
    }
    return false;
}

/* The lowest processor id on the same core, which names the core; `cpu` itself where the kernel does not tell. */
static int core_of(const char *root, int cpu) {
    static const char *const lists[] = {"core_cpus_list", "thread_siblings_list"};
    kv_buf path = {0}, text = {0};
    int core = cpu;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        kv_buf_clear(&path);
        kv_buf_addf(&path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, lists[i]);
        if (!slurp(&text, root, kv_buf_str(&path)) || text.data[0] < '0' || text.data[0] > '9') continue;
        core = atoi(text.data);
        break;
    }
    kv_buf_free(&path);
    kv_buf_free(&text);
    return core;
}

static int physical_cores(const char *root, const int *cpus, int n, const char *only) {
    int *seen = kv_alloc((size_t)n * sizeof *seen);
    int cores = 0;
    for (int i = 0; i < n; i++) {
        if (only && !in_cpu_list(only, cpus[i])) continue;
        int core = core_of(root, cpus[i]), j = 0;
        while (j < cores && seen[j] != core) j++;
        if (j == cores) seen[cores++] = core;
    }
    free(seen);
    return cores;
}

int kv_linux_cores(const char *root, const int *cpus, int n) {
    kv_buf fast = {0};
    int cores = 0;
    if (slurp(&fast, root, "/sys/devices/cpu_core/cpus")) cores = physical_cores(root, cpus, n, kv_buf_str(&fast));
    if (cores == 0) cores = physical_cores(root, cpus, n, NULL);
    kv_buf_free(&fast);
    uint64_t quota = cgroup_min(root, "cpu", cpu_quota) / 1000;
    if (quota < (uint64_t)cores) cores = (int)quota;
    return cores > 0 ? cores : 1;
}

/* The value of a /proc/cpuinfo line, or NULL when the line has another key. Stops at the line's end. */
static const char *cpuinfo_value(const char *line, size_t n, const char *key, size_t *len) {
    size_t k = strlen(key);
    if (n < k || strncmp(line, key, k) != 0) return NULL;
    const char *p = line + k, *end = line + n;
    while (p < end && (*p == ' ' || *p == '\t')) p++;
    if (p == end || *p != ':') return NULL; /* "model name" is not "model" */
    p++;
    while (p < end && *p == ' ') p++;
    *len = (size_t)(end - p);
    return p;
}

void kv_linux_fingerprint(kv_buf *out, const char *root, int cores) {
    static const char *const names[] = {"model name", "Model", "Hardware", "cpu model", "uarch", "cpu"};
    static const char *const kinds[] = {"flags", "Features", "isa", "CPU implementer", "CPU part", "CPU variant"};
    kv_buf text = {0}, model = {0}, seen = {0};
    slurp(&text, root, "/proc/cpuinfo");
    size_t best = sizeof names / sizeof *names;
    for (const char *line = kv_buf_str(&text); *line;) {
        size_t n = strcspn(line, "\n"), len;
        for (size_t i = 0; i < best; i++) {
            const char *v = cpuinfo_value(line, n, names[i], &len);
            if (!v) continue;
            kv_buf_clear(&model);
            kv_buf_add(&model, v, len);
            best = i;
        }
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (cpuinfo_value(line, n, kinds[i], &len)) {
                kv_buf entry = {0};
                kv_buf_add(&entry, line, n);
                kv_buf_adds(&entry, "\n");
                /* each kind of core once, however many there are */
                if (!strstr(kv_buf_str(&seen), kv_buf_str(&entry))) kv_buf_adds(&seen, kv_buf_str(&entry));
                kv_buf_free(&entry);
            }
        line += n + (line[n] == '\n');
    }
    kv_buf_addf(out, "%s; %d cores; %08" PRIx64, model.len ? kv_buf_str(&model) : "unknown processor", cores,
                (uint64_t)XXH3_64bits(kv_buf_str(&seen), seen.len) >> 32);
    kv_buf_free(&text);
    kv_buf_free(&model);
    kv_buf_free(&seen);
}

/* The processors of the affinity mask, ascending; the caller frees. Never empty. */
static int *allowed_cpus(int *count) {
    for (int size = 1024; size <= 1 << 20; size *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)size);
        KV_CHECK(set != NULL);
        size_t bytes = CPU_ALLOC_SIZE((size_t)size);
        int failed = sched_getaffinity(0, bytes, set), code = errno;
        int *cpus = kv_alloc((size_t)size * sizeof *cpus), n = 0;
        for (int i = 0; !failed && i < size; i++)
            if (CPU_ISSET_S((size_t)i, bytes, set)) cpus[n++] = i;
        CPU_FREE(set);
        *count = n;
        if (n) return cpus;
        free(cpus);
        if (code != EINVAL) break; /* EINVAL: the kernel's mask is larger */
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *count = online > 0 ? (int)online : 1;
    int *cpus = kv_alloc((size_t)*count * sizeof *cpus);
    for (int i = 0; i < *count; i++) cpus[i] = i;
    return cpus;
}

int kv_machine_cores(void) {
    int n;
    int *cpus = allowed_cpus(&n);
    int cores = kv_linux_cores("", cpus, n);
    free(cpus);
    return cores;
}

int kv_machine_processors(void) {
    int n;
    free(allowed_cpus(&n));
    return n;
}

uint64_t kv_machine_memory_total(void) {
    return kv_linux_memory_total("");
}

uint64_t kv_machine_memory_available(void) {
    return kv_linux_memory_available("");
}

uint64_t kv_machine_rss(void) {
    kv_buf text = {0};
    uint64_t pages = 0;
    slurp(&text, "", "/proc/self/statm");
    if (sscanf(kv_buf_str(&text), "%*u %" SCNu64, &pages) != 1) pages = 0;
    kv_buf_free(&text);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void kv_machine_fingerprint(kv_buf *out) {
    kv_linux_fingerprint(out, "", kv_machine_cores());
}

#endif
