/* store/spellings: a map that is bounded, belongs to its namespaces, and lives on; and the store's part of it. */
#include "store/rig.h"

#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"

static char base[128];
static int64_t wall;
static int n_open; /* taken and not given back */
static bool refuse;
static pthread_mutex_t drive = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static _Atomic bool hangs, arrived; /* a change waits for the drive */
static uint64_t most_growth, size_before;

static int64_t now(void *ctx) {
    (void)ctx;
    return wall;
}

static uint64_t size_of_files(void) {
    char *paths[3];
    uint64_t sum = 0;
    struct stat st;
    kv_spellings_paths(paths, base);
    for (int i = 0; i < 3; i++) {
        if (stat(paths[i], &st) == 0) sum += (uint64_t)st.st_blocks * 512;
        free(paths[i]);
    }
    return sum;
}

static bool take(void *ctx, uint64_t n) {
    (void)ctx;
    assert_int_equal(n, KV_SPELLINGS_GROWTH);
    if (refuse) return false;
    if (hangs) {
        pthread_mutex_lock(&drive);
        arrived = true;
        pthread_cond_broadcast(&moved);
        while (hangs) pthread_cond_wait(&moved, &drive);
        pthread_mutex_unlock(&drive);
    }
    n_open++;
    size_before = size_of_files();
    return true;
}

static void give(void *ctx, uint64_t n) {
    (void)ctx;
    assert_int_equal(n, KV_SPELLINGS_GROWTH);
    n_open--;
    uint64_t size = size_of_files();
    if (size > size_before && size - size_before > most_growth) most_growth = size - size_before;
}

static int set_up(void **state) {
    (void)state;
    kv_log_config quiet = {.level = KV_LOG_ERROR};
    kv_log_init(&quiet, NULL);
    const char *tmp = getenv("TMPDIR");
    snprintf(base, sizeof base, "%s/kvasir-spell.XXXXXX", tmp ? tmp : "/tmp");
    wall = 1700000000;
    refuse = false;
    n_open = 0;
    most_growth = 0;
    return mkdtemp(base) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    tree_bytes(base, true);
    return rmdir(base) == 0 || errno == ENOENT ? 0 : -1;
}

static kv_spellings *open_in(const char *dir, uint64_t max) {
    return kv_spellings_new(
        &(kv_spellings_config){.dir = dir, .max_bytes = max, .take = take, .give = give, .now = now});
}

static const kv_hash A = {1, 2}, B = {3, 4}, MODEL = {9, 9}, OTHER = {8, 8};

static kv_hash key(uint64_t n) {
    return kv_hash_bytes(&n, sizeof n);
}

static void put(kv_spellings *s, kv_hash ns, uint64_t k, const char *text, bool replace) {
    const kv_spelling_row row = {key(k), text, strlen(text), replace};
    kv_spellings_put(s, MODEL, ns, &row, 1);
}

static const char *get(kv_spellings *s, kv_hash ns, uint64_t k) {
    static char text[256];
    kv_buf b = {0};
    bool found = kv_spellings_get(&b, s, ns, key(k));
    snprintf(text, sizeof text, "%s", found ? kv_buf_str(&b) : "(none)");
    kv_buf_free(&b);
    return text;
}

static uint64_t rows(kv_spellings *s) {
    kv_spellings_stats stats;
    kv_spellings_get_stats(&stats, s);
    return stats.rows;
}

static char *file(const char *end) {
    static char path[256];
    snprintf(path, sizeof path, "%s/" KV_SPELLINGS_FILE "%s", base, end);
    return path;
}

static void put_and_get(void **state) {
    (void)state;
    const char *dirs[] = {base, NULL};
    for (int i = 0; i < 2; i++) {
        kv_spellings *s = open_in(dirs[i], 1 << 20);
        assert_string_equal(get(s, A, 1), "(none)");
        assert_int_equal(rows(s), 0);
        if (i == 0) assert_int_equal(access(file(""), F_OK), -1); /* looking makes no file */
        put(s, A, 1, "first", false);
        put(s, A, 1, "second", false);
        assert_string_equal(get(s, A, 1), "first");
        put(s, A, 1, "third", true);
        assert_string_equal(get(s, A, 1), "third");
        assert_string_equal(get(s, B, 1), "(none)"); /* another's namespace */
        assert_string_equal(get(s, A, 2), "(none)");
        put(s, A, 3, "", true);
        assert_string_equal(get(s, A, 3), "");
        char *large = kv_alloc(KV_SPELLINGS_TEXT_MAX + 2);
        memset(large, 'x', KV_SPELLINGS_TEXT_MAX + 1);
        put(s, A, 4, large, true);
        assert_string_equal(get(s, A, 4), "(none)");
        large[KV_SPELLINGS_TEXT_MAX] = '\0';
        put(s, A, 4, large, true);
        kv_buf b = {0};
        assert_true(kv_spellings_get(&b, s, A, key(4)));
        assert_int_equal(b.len, KV_SPELLINGS_TEXT_MAX);
        kv_buf_free(&b);
        free(large);
        kv_spellings_stats stats;
        kv_spellings_get_stats(&stats, s);
        assert_int_equal(stats.rows, 3);
        assert_int_equal(stats.in_memory, i);
        kv_spellings_free(s);
        assert_int_equal(n_open, 0);
    }
    struct stat st;
    assert_int_equal(stat(file(""), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    kv_spellings *s = open_in(base, 1 << 20);
    assert_string_equal(get(s, A, 1), "third");
    kv_spellings_free(s);
}

/* Killed between any two calls: what was put is there. */
static void survives_a_kill(void **state) {
    (void)state;
    for (int life = 0; life < 3; life++) {
        pid_t child = fork();
        if (child == 0) {
            kv_spellings *s = open_in(base, 1 << 20);
            char text[32];
            for (int i = 0; i < 40; i++) {
                snprintf(text, sizeof text, "%d.%d", life, i);
                put(s, A, (uint64_t)(life * 100 + i), text, false);
            }
            raise(SIGKILL);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        kv_spellings *s = open_in(base, 1 << 20);
        for (int l = 0; l <= life; l++)
            for (int i = 0; i < 40; i++) {
                char text[32];
                snprintf(text, sizeof text, "%d.%d", l, i);
                assert_string_equal(get(s, A, (uint64_t)(l * 100 + i)), text);
            }
        kv_spellings_free(s);
    }
}

static void erasing(void **state) {
    (void)state;
    for (int in_file = 0; in_file < 2; in_file++) {
        kv_spellings *s = open_in(in_file ? base : NULL, 4 << 20);
        assert_int_equal(kv_spellings_erase(s, A), 0);
        for (uint64_t i = 0; i < 300; i++) put(s, i % 2 ? A : B, i, "the secret text of a client", false);
        const kv_spelling_row row = {key(1), "of another model", 16, false};
        kv_spellings_put(s, OTHER, (kv_hash){7, 7}, &row, 1);
        assert_int_equal(kv_spellings_erase(s, A), 150);
        assert_string_equal(get(s, A, 1), "(none)");
        assert_string_equal(get(s, B, 2), "the secret text of a client");
        wall += 1000;
        put(s, B, 1000, "new", false);
        assert_int_equal(kv_spellings_erase_old(s, &A, wall), 0);
        assert_int_equal(kv_spellings_erase_old(s, &B, wall - 1000), 0);
        assert_string_equal(get(s, B, 2), "the secret text of a client"); /* a use */
        assert_int_equal(kv_spellings_erase_old(s, &B, wall), 149);
        assert_string_equal(get(s, B, 1000), "new");
        assert_int_equal(kv_spellings_erase_model(s, MODEL), 2);
        assert_int_equal(rows(s), 1);
        assert_int_equal(kv_spellings_erase_old(s, NULL, wall), 1);
        assert_int_equal(rows(s), 0);
        put(s, A, 1, "the secret text of a client", false);
        refuse = true; /* erasing needs no leave */
        assert_int_equal(kv_spellings_erase_all(s), 1);
        refuse = false;
        if (in_file) { /* neither the file nor its log has it any more */
            static const char *const ends[] = {"", "-wal"};
            for (int i = 0; i < 2; i++) {
                kv_buf all = {0};
                char part[4096];
                FILE *f = fopen(file(ends[i]), "rb");
                for (size_t n; f && (n = fread(part, 1, sizeof part, f)) > 0;) kv_buf_add(&all, part, n);
                if (f) fclose(f);
                for (size_t k = 0; k + 6 <= all.len; k++) assert_int_not_equal(memcmp(all.data + k, "secret", 6), 0);
                kv_buf_free(&all);
            }
        }
        kv_spellings_free(s);
    }
}

static void without_room_nothing_is_kept(void **state) {
    (void)state;
    kv_spellings *s = open_in(base, 1 << 20);
    refuse = true;
    put(s, A, 1, "one", false);
    assert_string_equal(get(s, A, 1), "(none)");
    assert_int_equal(access(file(""), F_OK), -1);
    refuse = false;
    put(s, A, 1, "one", false);
    assert_string_equal(get(s, A, 1), "one");
    refuse = true;
    put(s, A, 1, "two", true);
    put(s, A, 2, "two", true);
    assert_string_equal(get(s, A, 1), "one");
    assert_string_equal(get(s, A, 2), "(none)");
    kv_spellings_free(s);
}

static void *put_one(void *map) {
    put(map, A, 2, "two", false);
    return NULL;
}

/* Whoever comes while a drive hangs goes on without. */
static void a_drive_that_hangs(void **state) {
    (void)state;
    kv_spellings *s = open_in(base, 1 << 20);
    put(s, A, 1, "one", false);
    pthread_t thread;
    hangs = true;
    assert_int_equal(pthread_create(&thread, NULL, put_one, s), 0);
    pthread_mutex_lock(&drive);
    while (!arrived) pthread_cond_wait(&moved, &drive);
    pthread_mutex_unlock(&drive);
    assert_string_equal(get(s, A, 1), "(none)");
    put(s, A, 3, "three", false);
    pthread_mutex_lock(&drive);
    hangs = false;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&drive);
    pthread_join(thread, NULL);
    assert_string_equal(get(s, A, 1), "one");
    assert_string_equal(get(s, A, 2), "two");
    assert_string_equal(get(s, A, 3), "(none)");
    kv_spellings_free(s);
}

/* Whatever lies there is no reason to fail. */
static void any_file(void **state) {
    (void)state;
    for (int how = 0; how < 6; how++) {
        kv_spellings *s = open_in(base, 1 << 20);
        for (uint64_t i = 0; i < 200; i++) put(s, A, i, "a text that takes some room in the file, and some more", true);
        kv_spellings_free(s);
        struct stat st;
        assert_int_equal(stat(file(""), &st), 0);
        FILE *f = how < 3 ? fopen(file(""), how == 0 ? "wb" : "r+b") : NULL;
        if (how == 0) fputs("this is no database at all, but it is long enough to be one", f);
        if (how == 1) assert_int_equal(ftruncate(fileno(f), st.st_size / 2), 0);
        for (long at = 4096; how == 2 && at < st.st_size; at += 512) {
            fseek(f, at, SEEK_SET);
            fputs("damage", f);
        }
        if (f) fclose(f);
        sqlite3 *db = NULL;
        if (how >= 3) assert_int_equal(sqlite3_open(file(""), &db), SQLITE_OK);
        if (how == 3) sqlite3_exec(db, "DROP TABLE spelling", NULL, NULL, NULL);
        if (how == 4) sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL);
        if (how == 5) sqlite3_exec(db, "UPDATE spelling SET text=17, used='x', bytes='y'", NULL, NULL, NULL);
        sqlite3_close(db);
        s = open_in(base, 1 << 20);
        for (uint64_t i = 0; i < 200; i++) (void)get(s, A, i);
        put(s, A, 1000, "put", true);
        put(s, A, 1000, "put", true); /* the first may have found the damage */
        assert_string_equal(get(s, A, 1000), "put");
        kv_spellings_stats stats;
        kv_spellings_get_stats(&stats, s);
        assert_int_equal(stats.in_memory, how == 4);
        (void)kv_spellings_erase_all(s);
        kv_spellings_free(s);
        if (how == 4) assert_int_equal(unlink(file("")), 0);
    }
    assert_int_equal(unlink(file("")), 0);
    assert_int_equal(mkdir(file(""), 0700), 0);
    kv_spellings *s = open_in(base, 1 << 20);
    put(s, A, 1, "in memory", false);
    assert_string_equal(get(s, A, 1), "in memory");
    kv_spellings_free(s);
    assert_int_equal(rmdir(file("")), 0);
}

/* ── against a naive map ───────────────────────────────────────────────────────────────────────────────────────── */

#define KEYS 400

typedef struct model_row {
    bool there;
    int64_t used;
    unsigned n; /* of the text: a letter, n times */
    char letter;
} model_row;

static uint64_t seed;
static unsigned draw(unsigned n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

/* In a bounded map everything that is found is right, what was used last stays, and no file is longer than it may be. */
static void against_a_naive_map(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    seed = first;
    const uint64_t max = KV_SPELLINGS_MIN;
    model_row model[2][KEYS] = {0};
    kv_spellings *s = open_in(base, max);
    char *text = kv_alloc(9000);
    kv_buf got = {0};
    for (int op = 0; op < 4000; op++) {
        unsigned which = draw(2), k = draw(KEYS), what = draw(100);
        kv_hash ns = which ? A : B;
        model_row *m = &model[which][k];
        wall += KV_SPELLINGS_TOUCH_S; /* so that each use is noted */
        if (what < 45) {
            unsigned n = draw(8) ? draw(1500) : draw(9000);
            char letter = (char)('a' + draw(26));
            memset(text, letter, n);
            const kv_spelling_row row = {key(k), text, n, draw(2)};
            bool found = kv_spellings_get(&got, s, ns, key(k));
            kv_spellings_put(s, MODEL, ns, &row, 1);
            if (!found || row.replace) *m = (model_row){true, wall, n, letter};
            else m->used = wall;
        } else if (what < 97) {
            bool found = kv_spellings_get(&got, s, ns, key(k));
            if (found && !m->there) fail_msg("KVASIR_SEED=%llu: op %d: never put", (unsigned long long)first, op);
            if (found && (got.len != m->n || (m->n && (got.data[0] != m->letter || got.data[m->n - 1] != m->letter))))
                fail_msg("KVASIR_SEED=%llu: op %d: another text", (unsigned long long)first, op);
            if (!found) m->there = false;
            else m->used = wall;
        } else if (what < 98 && op < 3000) {
            kv_spellings_erase(s, ns);
            memset(model[which], 0, sizeof model[which]);
        } else {
            kv_spellings_free(s);
            s = open_in(base, max);
        }
        assert_int_equal(n_open, 0);
        struct stat st;
        if (stat(file(""), &st) == 0 && (uint64_t)st.st_size > max)
            fail_msg("KVASIR_SEED=%llu: op %d: %lld bytes", (unsigned long long)first, op, (long long)st.st_size);
        if (size_of_files() > max + KV_SPELLINGS_GROWTH)
            fail_msg("KVASIR_SEED=%llu: op %d: %llu bytes in all", (unsigned long long)first, op,
                     (unsigned long long)size_of_files());
    }
    assert_true(most_growth <= KV_SPELLINGS_GROWTH);
    /* The least recently used went: whatever is gone is older than all that is there. */
    int64_t youngest_gone = 0, oldest_there = INT64_MAX;
    uint64_t bytes = 0;
    for (int w = 0; w < 2; w++)
        for (uint64_t k = 0; k < KEYS; k++) {
            if (!model[w][k].there) continue;
            bool found = kv_spellings_get(&got, s, w ? A : B, key(k));
            if (found && model[w][k].used < oldest_there) oldest_there = model[w][k].used;
            if (!found && model[w][k].used > youngest_gone) youngest_gone = model[w][k].used;
            if (found) bytes += model[w][k].n;
        }
    if (youngest_gone > oldest_there)
        fail_msg("KVASIR_SEED=%llu: one used at %lld went before one of %lld", (unsigned long long)first,
                 (long long)youngest_gone, (long long)oldest_there);
    assert_true(bytes > max / 8);
    kv_buf_free(&got);
    free(text);
    kv_spellings_free(s);
}

/* Many at once, more than fit. */
static void many_rows(void **state) {
    (void)state;
    enum { N = 3000 };
    kv_spellings *s = open_in(base, 1 << 20);
    kv_spelling_row *list = kv_alloc(N * sizeof *list);
    char *text = kv_alloc(3000);
    memset(text, 'x', 3000);
    for (uint64_t i = 0; i < N; i++) list[i] = (kv_spelling_row){key(i), text, i % 7 ? 100 : 3000, false};
    kv_spellings_put(s, MODEL, A, list, N);
    assert_string_not_equal(get(s, A, N - 1), "(none)");
    kv_spellings_stats stats;
    kv_spellings_get_stats(&stats, s);
    assert_true(stats.rows > 500 && stats.bytes <= 1 << 20);
    assert_true(size_of_files() <= (1 << 20) + KV_SPELLINGS_GROWTH);
    assert_true(most_growth <= KV_SPELLINGS_GROWTH);
    most_growth = 0;
    assert_int_equal(kv_spellings_erase(s, A), stats.rows);
    assert_true(most_growth <= KV_SPELLINGS_GROWTH);
    kv_spellings_free(s);
    free(list);
    free(text);
}

/* ── the store's ───────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t store_bytes(const rig *r) {
    kv_store_stats stats;
    kv_store_get_stats(&stats, r->store);
    return stats.bytes;
}

static void counted_and_erased_by_the_store(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 64 << 20, 1);
    rig_open(&r);
    uint64_t before = store_bytes(&r);
    char text[900];
    memset(text, 'x', sizeof text);
    for (uint64_t i = 0; i < 150; i++) {
        const kv_spelling_row row = {key(i), text, sizeof text, false};
        kv_spellings_put(kv_store_spellings(r.store), MODEL, i % 2 ? A : B, &row, 1);
        assert_int_equal(store_bytes(&r), tree_bytes(r.dir, false)); /* each byte is counted, at each instant */
    }
    assert_true(store_bytes(&r) > before + 150 * sizeof text);
    rig_close(&r);
    rig_open(&r);
    assert_int_equal(store_bytes(&r), tree_bytes(r.dir, false));
    uint64_t bytes, records;
    kv_error err = {0};
    assert_int_equal(kv_store_remove_namespace(r.store, A, &bytes, &records, &err), KV_OK);
    assert_string_equal(get(kv_store_spellings(r.store), A, 1), "(none)");
    assert_int_equal(rows(kv_store_spellings(r.store)), 75);
    r.now += 1000;
    assert_int_equal(kv_store_remove_old(r.store, B, r.now - 2000, false, &bytes, &records, &err), KV_OK);
    assert_int_equal(rows(kv_store_spellings(r.store)), 75);
    assert_int_equal(kv_store_remove_old(r.store, B, r.now - 500, true, &bytes, &records, &err), KV_OK);
    assert_int_equal(rows(kv_store_spellings(r.store)), 75);
    assert_int_equal(kv_store_remove_old(r.store, B, r.now - 500, false, &bytes, &records, &err), KV_OK);
    assert_int_equal(rows(kv_store_spellings(r.store)), 0);
    assert_int_equal(store_bytes(&r), tree_bytes(r.dir, false));
    rig_free(&r);
}

/* A full directory keeps none; a small budget and a read-only one have no file. */
static void only_within_the_budget(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 2 << 20, 1);
    rig_open(&r);
    put(kv_store_spellings(r.store), A, 1, "one", false);
    assert_string_equal(get(kv_store_spellings(r.store), A, 1), "one");
    kv_spellings_stats stats;
    kv_spellings_get_stats(&stats, kv_store_spellings(r.store));
    assert_true(stats.in_memory);
    assert_int_equal(store_bytes(&r), tree_bytes(r.dir, false));
    rig_close(&r);
    r.cfg.budget = 64 << 20;
    rig_open(&r);
    put(kv_store_spellings(r.store), A, 1, "one", false);
    rig_close(&r);
    r.cfg.read_only = true;
    rig_open(&r);
    uint64_t bytes = tree_bytes(r.dir, false);
    put(kv_store_spellings(r.store), A, 2, "two", false);
    assert_int_equal(tree_bytes(r.dir, false), bytes);
    rig_close(&r);
    r.cfg.read_only = false;
    r.cfg.budget = 2 << 20; /* what a larger one left would count */
    rig_open(&r);
    assert_true(store_bytes(&r) < 1 << 20);
    assert_int_equal(store_bytes(&r), tree_bytes(r.dir, false));
    rig_free(&r);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(put_and_get),
        TEST(survives_a_kill),
        TEST(erasing),
        TEST(without_room_nothing_is_kept),
        TEST(a_drive_that_hangs),
        TEST(any_file),
        TEST(against_a_naive_map),
        TEST(many_rows),
        TEST(counted_and_erased_by_the_store),
        TEST(only_within_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
