/* bench/traffic.c: a day of agent traffic, for `make bench` and, in a small form, for CTest: how many prompt tokens are
 * computed for each that is really new, with a disk that holds everything, half of it and a tenth of it.
 *
 * usage: traffic [--small] [--seed N] [--kind full|window|hybrid|…] [--policy N] [--tell]     docs/traffic.md
 *        traffic --check    a small day without what is there for comparison only; fails when a bound is not held
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine_fake.h"
#include "traffic_run.h"

typedef struct policy {
    const char *name;
    bool by_use, fixed;
} policy;

static const policy policies[] = {
    {"worth, places", false, false},
    {"least recently used, places", true, false},
    {"worth, fixed intervals", false, true},
};
enum { N_POLICIES = sizeof policies / sizeof *policies, N_BUDGETS = 3 };
static const double shares[N_BUDGETS] = {0, 0.5, 0.1}; /* 0 = everything */
static const double goals[N_BUDGETS] = {1.05, 1.2, 2.0}, small_goals[N_BUDGETS] = {1.05, 1.1, 1.4};
#define EVERYTHING (1ull << 40)

typedef struct options {
    uint64_t seed;
    int kind, policy; /* -1 = all */
    bool small, check, tell;
} options;

static double ratio(uint64_t a, uint64_t b) {
    return b ? (double)a / (double)b : 0;
}

static bool run(run_result *out, const options *o, kv_memory_kind kind, const policy *p, uint64_t budget) {
    char dir[] = "/tmp/kvasir-traffic.XXXXXX", inside[64], in_memory[] = "/dev/shm/kvasir-traffic.XXXXXX";
    char *base = access("/dev/shm", W_OK) == 0 ? in_memory : dir, command[128];
    if (!mkdtemp(base)) {
        perror(base);
        return false;
    }
    snprintf(inside, sizeof inside, "%s/cache", base);
    const run_params params = {.day = {.seed = o->seed, .shrink = o->small ? 8 : 1, .part = o->small ? 0.3 : 1},
                               .memory = kind,
                               .dir = inside,
                               .budget = budget,
                               .evicts_by_use = p->by_use,
                               .fixed_intervals = p->fixed,
                               .check_one_in = o->small ? 1 : 16,
                               .tells = o->tell};
    bool ok = run_day(out, &params);
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    return system(command) == 0 && ok;
}

static void tell_shares(const run_result *r) {
    for (int i = 0; i < RUN_KINDS && r->by_kind[i].kind; i++) {
        const run_share *s = &r->by_kind[i];
        printf("    %-10s %5llu requests  %9llu prompt tokens  %8llu new  computed ÷ new %.3f\n", s->kind,
               (unsigned long long)s->n_requests, (unsigned long long)s->n_prompt, (unsigned long long)s->n_new,
               ratio(s->n_computed, s->n_new));
    }
}

static void tell_day(const run_result *r) {
    printf("  %llu requests in %.1f hours, %llu prompt tokens, %llu of them new, %llu answered; asleep %llu times, "
           "restarted %llu times; %.0f MB stored (%.0f MB blocks, %.0f MB windows, %.0f MB states)\n",
           (unsigned long long)r->n_requests, r->hours, (unsigned long long)r->n_prompt, (unsigned long long)r->n_new,
           (unsigned long long)r->n_answer, (unsigned long long)r->n_sleeps, (unsigned long long)r->n_restarts,
           (double)r->bytes_stored / 1e6, (double)r->bytes_by_kind[1] / 1e6, (double)r->bytes_by_kind[2] / 1e6,
           (double)r->bytes_by_kind[3] / 1e6);
    tell_shares(r);
}

/* One line of the table. *everything: what the first run stored, for the budgets of all others. False: not to be had, or
 * wrong. */
static bool run_line(uint64_t *everything, const options *o, kv_memory_kind kind, const policy *p, bool *held) {
    double got[N_BUDGETS], written[N_BUDGETS];
    for (int b = 0; b < N_BUDGETS; b++) {
        run_result r;
        uint64_t budget = shares[b] > 0 ? (uint64_t)(shares[b] * (double)*everything) : EVERYTHING;
        if (!run(&r, o, kind, p, budget)) return false;
        if (*everything == 0) {
            *everything = r.bytes_stored;
            tell_day(&r);
        }
        got[b] = ratio(r.n_computed, r.n_new);
        written[b] = (double)r.bytes_written / 1e6;
        if (!r.n_checked || r.n_wrong) {
            printf("  %llu of %llu answers are wrong\n", (unsigned long long)r.n_wrong,
                   (unsigned long long)r.n_checked);
            return false;
        }
        *held = *held && got[b] <= (o->check ? small_goals : goals)[b];
    }
    printf("  %-8s %-28s %8.3f %8.3f %8.3f   written: %.0f, %.0f, %.0f MB\n", kv_memory_kind_name(kind), p->name,
           got[0], got[1], got[2], written[0], written[1], written[2]);
    fflush(stdout);
    return true;
}

static bool run_kind(const options *o, kv_memory_kind kind, bool *held) {
    uint64_t everything = 0;
    printf("%s\n", kv_memory_kind_name(kind));
    for (int i = 0; i < N_POLICIES; i++) {
        bool ignored = true;
        if (o->policy > i || (i > 0 && (o->check || (o->policy >= 0 && o->policy != i)))) continue;
        if (policies[i].fixed && kind == KV_MEMORY_FULL) continue; /* it has no states */
        if (!run_line(&everything, o, kind, &policies[i], i == 0 ? held : &ignored)) return false;
    }
    return true;
}

static bool parse(options *o, int argc, char **argv) {
    *o = (options){.seed = 1, .kind = -1, .policy = -1};
    for (int i = 1; i < argc; i++) {
        kv_memory_kind kind;
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--check") == 0) o->check = o->small = true;
        else if (strcmp(argv[i], "--small") == 0) o->small = true;
        else if (strcmp(argv[i], "--tell") == 0) o->tell = true;
        else if (strcmp(argv[i], "--seed") == 0 && more) o->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--policy") == 0 && more) o->policy = atoi(argv[++i]);
        else if (strcmp(argv[i], "--kind") == 0 && more && kv_fake_kind_parse(&kind, argv[++i])) o->kind = (int)kind;
        else return false;
    }
    return true;
}

int main(int argc, char **argv) {
    static const kv_memory_kind kinds[] = {KV_MEMORY_FULL, KV_MEMORY_WINDOW, KV_MEMORY_HYBRID};
    options o;
    bool held = true;
    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "usage: traffic [--check | --small] [--seed N] [--kind KIND] [--policy N] [--tell]\n");
        return 2;
    }
    printf("a %s, ", o.small ? "small day" : "day");
    printf(
        "prompt tokens computed ÷ new, seed %llu; disk budget: everything, a half, a tenth; goals %.2f, %.2f, %.2f\n",
        (unsigned long long)o.seed, goals[0], goals[1], goals[2]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((o.kind < 0 || o.kind == (int)kinds[i]) && !run_kind(&o, kinds[i], &held)) return 1;
    if (o.check && !held) fprintf(stderr, "traffic: a bound is not held\n");
    return o.check && !held;
}
