#include "os/machine.h"

#ifdef __APPLE__

#include <inttypes.h>
#include <mach/mach.h>
#include <sys/sysctl.h>
#include <unistd.h>

static uint64_t sysctl_number(const char *name) {
    uint64_t value = 0;
    size_t n = sizeof value;
    if (sysctlbyname(name, &value, &n, NULL, 0) != 0) return 0;
    return n == 4 ? *(uint32_t *)(void *)&value : value;
}

int kv_machine_cores(void) {
    uint64_t n = sysctl_number("hw.perflevel0.physicalcpu"); /* the fast cores of Apple silicon */
    if (n == 0) n = sysctl_number("hw.physicalcpu");
    return n > 0 ? (int)n : 1;
}

int kv_machine_processors(void) {
    uint64_t n = sysctl_number("hw.logicalcpu");
    return n > 0 ? (int)n : 1;
}

uint64_t kv_machine_memory_total(void) {
    return sysctl_number("hw.memsize");
}

uint64_t kv_machine_memory_available(void) {
    vm_statistics64_data_t vm;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &n) != KERN_SUCCESS) return 0;
    uint64_t pages = (uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t kv_machine_rss(void) {
    mach_task_basic_info_data_t info;
    mach_msg_type_number_t n = MACH_TASK_BASIC_INFO_COUNT;
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &n) != KERN_SUCCESS) return 0;
    return info.resident_size;
}

void kv_machine_fingerprint(kv_buf *out) {
    char model[128] = "unknown processor";
    size_t n = sizeof model - 1;
    sysctlbyname("machdep.cpu.brand_string", model, &n, NULL, 0);
    kv_buf_addf(out, "%s; %d cores; %08" PRIx64, model, kv_machine_cores(), sysctl_number("hw.cpufamily"));
}

#endif
