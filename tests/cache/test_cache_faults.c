/* cache with a store: each file call of a scripted run fails once, with each errno that fits, and each is once the last
 * before a power cut.
 *
 *   two conversations ─ restart ─ one goes on ─ restart, smaller budget ─ others push them out ─ a record is damaged ─
 *   restart ─ both again
 *
 * Whatever fails: the logits are right, checks are clean, the budget holds, no descriptor is lost; and afterwards the
 * directory opens, holds no temporary files, and what cannot be read of it is set aside.
 */
#include <signal.h>
#include <time.h>

#include "../store/watch.h"
#include "conversations.h"

enum { LARGE = 1 << 24, FIRST_BUDGET = 1400 << 10, BUDGET = 1 << 20, N_TALKS = 4, LONGEST = 100 };

static const kv_memory_kind kinds[] = {KV_MEMORY_FULL, KV_MEMORY_HYBRID_WINDOW};
static const char *const call_names[KV_CALL_COUNT + 1] = {"open",   "read",   "write",    "sync",       "close",
                                                          "rename", "remove", "make_dir", "remove_dir", "sync_dir",
                                                          "stat",   "disk",   "list",     "lock",       "any"};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EIO_EVERY = 5 }; /* they are slow */
#else
enum { EIO_EVERY = 1 };
#endif

/* What is injected: the nth call of its kind fails with `code`, or, with code 0, meets a power cut. */
typedef struct injection {
    kv_files_call call;
    uint64_t nth;
    int code;
} injection;

static struct {
    world w;
    rig r;
    watch eye;
    kv_token talk[N_TALKS][LONGEST];
    injection now;
    int n_runs, n_unopened, n_set_aside;
    int32_t from_disk; /* in the last run */
    uint64_t n_evicted;
} t;

static int64_t now_s(void *ctx) {
    return kv_now_us(&((world *)ctx)->clock.base) / 1000000;
}

static char *about(void *ctx, const char *scope) {
    (void)ctx;
    kv_buf b = {0};
    kv_buf_addf(&b, "{\"scope\":\"%s\"}", scope);
    return b.data;
}

/* Large cells: a few records fill the directory. */
static void open_model(kv_memory_kind kind) {
    world *w = &t.w;
    kv_error err = {0};
    kv_fake_params fp;
    kv_engine_params p;
    memset(&t, 0, sizeof t);
    kv_clock_virtual_init(&w->clock, 1000000);
    kv_fake_params_defaults(&fp);
    fp.memory = kind;
    fp.n_window = W;
    fp.clock = &w->clock;
    fp.bytes_per_cell = kind == KV_MEMORY_FULL ? 11000 : 4000;
    fp.bytes_per_window_cell = 2000;
    fp.bytes_recurrent = 9000;
    check(kv_model_load_fake(&w->model, &fp, &err), &err);
    kv_engine_params_defaults(&p);
    p.n_ctx = 4 * LONGEST;
    p.n_slots = 3;
    p.n_batch = CHUNK + 4;
    check(kv_engine_new(&w->engine, w->model, &p, &err), &err);
    check(kv_state_init(&w->state, w->engine, &err), &err);
    w->io = kv_io_new_inline(0);
    w->cfg = (kv_cache_config){.engine = kv_engine_get_info(w->engine),
                               .block = B,
                               .ns = kv_hash_bytes("test", 4),
                               .queue_bytes = LARGE,
                               .read_bytes = LARGE,
                               .interval = INTERVAL,
                               .about = about,
                               .io = w->io,
                               .clock = &w->clock.base};
    w->n_vocab = kv_model_get_info(w->model)->n_vocab;
    w->got = malloc((size_t)w->n_vocab * sizeof(float));
    w->want = malloc((size_t)w->n_vocab * sizeof(float));
    for (int i = 0; i < N_TALKS; i++) fill(t.talk[i], 0, LONGEST, (uint32_t)i + 7);
}

static void close_model(void) {
    world *w = &t.w;
    kv_io_free(w->io);
    kv_state_free(&w->state);
    kv_engine_free(w->engine);
    kv_model_free(w->model);
    free(w->got);
    free(w->want);
}

/* ── the script ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A power cut may bring removed files back; the next opening sees to it. */
static void check_all(void) {
    kv_cache_self_check(t.w.cache);
    if (!t.r.store) return;
    kv_store_stats stats;
    kv_store_check(t.r.store);
    kv_store_get_stats(&stats, t.r.store); /* reads the accounts: this too may meet the power cut */
    if (kv_files_faulty_crashed(t.r.faulty)) return;
    uint64_t there = watch_bytes(&t.eye);
    if (there > t.eye.allowed || there > stats.bytes)
        fail_msg("%llu bytes there, %llu believed, %llu allowed", (unsigned long long)there,
                 (unsigned long long)stats.bytes, (unsigned long long)t.eye.allowed);
    t.eye.allowed = there > t.r.cfg.budget ? there : t.r.cfg.budget;
}

static void begin_process(uint64_t budget) {
    kv_error err = {0};
    t.r.cfg.budget = budget;
    t.eye.allowed = 0;
    if (kv_store_open(&t.r.store, &t.r.cfg, &err) != KV_OK) { /* a server goes on without */
        if (!t.now.nth) fail_msg("open: %s", err.message);
        t.n_unopened++;
    }
    watch_begin(&t.eye);
    uint64_t there = watch_bytes(&t.eye);
    t.eye.allowed = there > budget ? there : budget; /* more only where something could not be removed */
    if (!t.now.nth) assert_true(there <= budget);
    t.w.cfg.store = t.r.store;
    check(kv_cache_new(&t.w.cache, &t.w.cfg, &err), &err);
    check_all();
}

static void end_process(void) {
    kv_cache_flush(t.w.cache, INT64_MAX / 4);
    settle(&t.w);
    check_all();
    kv_store_stats stats = {0};
    if (t.r.store) kv_store_get_stats(&stats, t.r.store);
    t.n_evicted += stats.n_evicted;
    kv_cache_free(t.w.cache);
    kv_store_close(t.r.store);
    t.r.store = NULL;
    assert_int_equal(kv_files_faulty_open_files(t.r.faulty), 0);
    kv_files_faulty_revive(t.r.faulty);
}

static void ask(int talk, const char *scope, int n_prompt, int n) {
    kv_lookup_result res;
    serve(&t.w, scope, t.talk[talk], n_prompt, n, &res);
    t.from_disk += t.w.n_disk;
    t.w.n_disk = 0;
    t.w.clock.us += 1000000;
    settle(&t.w);
    check_all();
}

/* One bit of the block that a walk meets first. */
static bool damage_in(const char *path) {
    struct dirent **names;
    bool done = false;
    int n = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        struct stat st;
        kv_buf child = {0};
        kv_buf_addf(&child, "%s/%s", path, names[i]->d_name);
        size_t len = strlen(names[i]->d_name);
        bool is_dir = lstat(child.data, &st) == 0 && S_ISDIR(st.st_mode);
        if (!done && is_dir && names[i]->d_name[0] != '.') done = damage_in(child.data);
        if (!done && !is_dir && len > 2 && strcmp(names[i]->d_name + len - 2, ".b") == 0) {
            FILE *f = fopen(child.data, "r+b");
            assert_non_null(f);
            (void)fseek(f, 8000, SEEK_SET);
            int byte = fgetc(f);
            (void)fseek(f, 8000, SEEK_SET);
            fputc(byte ^ 16, f);
            fclose(f);
            done = true;
        }
        kv_buf_free(&child);
        free(names[i]);
    }
    if (n >= 0) free(names);
    return done;
}

static void run_script(void) {
    char records[200];
    t.from_disk = 0;
    t.n_evicted = 0;
    begin_process(FIRST_BUDGET);
    ask(0, "", 33, 36);
    ask(1, "b", 17, 20);
    end_process();
    begin_process(FIRST_BUDGET);
    ask(0, "", 33, 36);
    ask(0, "", 44, 50);
    end_process();
    begin_process(BUDGET);
    t.w.us_per_token = 10000; /* dearer ones, which push out what is cheap */
    for (int i = 2; i < N_TALKS; i++) ask(i, "", 33, 36);
    t.w.us_per_token = 100;
    ask(0, "", 44, 50);
    end_process();
    snprintf(records, sizeof records, "%s/ns", t.r.dir);
    (void)damage_in(records);
    begin_process(BUDGET);
    ask(0, "", 44, 50);
    ask(1, "b", 17, 20);
    ask(N_TALKS - 1, "", 33, 36);
    end_process();
}

/* Afterwards nothing fails any more: the directory is in order. */
static void look_at_what_is_left(void) {
    kv_error err = {0};
    uint64_t bad = 0;
    kv_store_stats stats;
    kv_files_faulty_fail(t.r.faulty, KV_CALL_ANY, 0, 0, 0);
    kv_files_faulty_crash_at(t.r.faulty, 0);
    t.now = (injection){0};
    begin_process(BUDGET);
    assert_int_equal(count_files(t.r.dir, ".tmp"), 0);
    check(kv_store_verify(t.r.store, false, NULL, NULL, &bad, &err), &err);
    kv_store_get_stats(&stats, t.r.store);
    if (bad > stats.n_quarantined) fail_msg("%d of %d bad records were set aside", (int)stats.n_quarantined, (int)bad);
    t.n_set_aside += (int)bad;
    check(kv_store_verify(t.r.store, false, NULL, NULL, &bad, &err), &err);
    assert_int_equal(bad, 0);
    ask(0, "", 44, 50);
    ask(1, "b", 17, 20);
    end_process();
}

static void run_with(injection what, uint64_t counts[KV_CALL_COUNT + 1]) {
    rig_init(&t.r, FIRST_BUDGET, what.nth + 1);
    watch_init(&t.eye, &t.r, what.nth + 1);
    t.eye.every = 16;
    t.r.cfg.now = now_s;
    t.r.cfg.now_ctx = &t.w;
    t.w.disk = NULL;
    t.w.clock.us = 1000000;
    t.w.rng = 5;
    t.w.may_fail = true;
    t.now = what;
    if (what.nth && what.code) kv_files_faulty_fail(t.r.faulty, what.call, what.nth, 1, what.code);
    else if (what.nth) kv_files_faulty_crash_at(t.r.faulty, what.nth);
    run_script();
    for (int i = 0; counts && i <= KV_CALL_COUNT; i++) counts[i] = kv_files_faulty_count(t.r.faulty, (kv_files_call)i);
    look_at_what_is_left();
    rig_free(&t.r);
    watch_forget(&t.eye);
    t.n_runs++;
}

/* ── every call ────────────────────────────────────────────────────────────────────────────────────────────────── */

static int codes_of(int out[3], kv_files_call call) {
    int n = 0;
    out[n++] = EIO;
    if (call == KV_CALL_WRITE) out[n++] = ENOSPC;
    if (call == KV_CALL_OPEN || call == KV_CALL_LOCK) out[n++] = EMFILE;
    if (call == KV_CALL_WRITE || call == KV_CALL_MAKE_DIR || call == KV_CALL_RENAME) out[n++] = EROFS;
    return n;
}

/* KVASIR_FAULT="call nth errno": only this one. */
static bool only(injection *out) {
    const char *given = getenv("KVASIR_FAULT");
    char name[16];
    unsigned long long nth;
    if (!given || sscanf(given, "%15s %llu %d", name, &nth, &out->code) != 3) return false;
    out->nth = nth;
    for (int i = 0; i <= KV_CALL_COUNT; i++)
        if (strcmp(call_names[i], name) == 0) out->call = (kv_files_call)i;
    return true;
}

static void right_whatever_fails(void **state) {
    kv_memory_kind kind = *(const kv_memory_kind *)*state;
    uint64_t counts[KV_CALL_COUNT + 1];
    injection what = {0};
    open_model(kind);
    run_with(what, counts);
    print_message("%s: %llu file calls, %d tokens from disk, %llu records evicted\n", kv_memory_kind_name(kind),
                  (unsigned long long)counts[KV_CALL_ANY], t.from_disk, (unsigned long long)t.n_evicted);
    assert_true(t.from_disk > 0 && t.n_evicted > 0 && t.n_unopened == 0);
    if (only(&what)) {
        run_with(what, NULL);
        close_model();
        return;
    }
    /* EIO at each call; the rest, unless KVASIR_ALL is set, at one in eight, others each time. */
    uint64_t every = getenv("KVASIR_ALL") ? 1 : 8, first = 1 + (uint64_t)time(NULL) % every;
    for (int call = 0; call < KV_CALL_COUNT; call++) {
        int codes[3], n = codes_of(codes, (kv_files_call)call);
        for (uint64_t nth = 1; nth <= counts[call]; nth += EIO_EVERY)
            run_with((injection){(kv_files_call)call, nth, EIO}, NULL);
        for (int i = 1; i < n; i++)
            for (uint64_t nth = first; nth <= counts[call]; nth += every)
                run_with((injection){(kv_files_call)call, nth, codes[i]}, NULL);
    }
    for (uint64_t nth = first; nth <= counts[KV_CALL_ANY]; nth += every)
        run_with((injection){KV_CALL_ANY, nth, 0}, NULL);
    print_message("%d runs, %d openings failed, %d records were set aside afterwards\n", t.n_runs, t.n_unopened,
                  t.n_set_aside);
    assert_true(t.n_unopened > 0);
    close_model();
}

static int say_which(void **state) {
    (void)state;
    if (t.now.nth)
        print_message("KVASIR_FAULT=\"%s %llu %d\"\n", call_names[t.now.call], (unsigned long long)t.now.nth,
                      t.now.code);
    return 0;
}

/* A failed check aborts: say what was injected. */
static void on_abort(int sig) {
    (void)sig;
    (void)say_which(NULL);
}

int main(void) {
    static kv_memory_kind each[2];
    memcpy(each, kinds, sizeof each);
    const struct CMUnitTest tests[] = {
        {"full", right_whatever_fails, NULL, say_which, &each[0]},
        {"hybrid-window", right_whatever_fails, NULL, say_which, &each[1]},
    };
    signal(SIGABRT, on_abort);
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1); /* much faster */
    return cmocka_run_group_tests_name("cache/faults", tests, NULL, NULL);
}
