/* cache with a store: what was computed once is there after a restart and after a crash, in any order of I/O, with files
 * that go wrong; the logits are always those of a run that computed everything. */
#include "cache/namespace.h"
#include "conversations.h"
#include <time.h>

static int64_t disk_now(void *ctx) {
    return kv_now_us(&((world *)ctx)->clock.base) / 1000000;
}

static void open_store(world *w) {
    kv_error err = {0};
    check(kv_store_open(&w->disk->store, &w->disk->cfg, &err), &err);
    w->cfg.store = w->disk->store;
}

static void open_with_disk(world *w, rig *r, kv_memory_kind kind, uint64_t seed, uint64_t queue, uint64_t ram,
                           uint64_t read, uint64_t budget, bool shuffle) {
    kv_error err = {0};
    open_world(w, kind, seed, queue, ram, shuffle);
    kv_cache_free(w->cache);
    rig_init(r, budget, seed);
    r->cfg.now = disk_now;
    r->cfg.now_ctx = w;
    w->disk = r;
    open_store(w);
    w->cfg.read_bytes = read;
    check(kv_cache_new(&w->cache, &w->cfg, &err), &err);
}

/* The process ends and another one begins; crash: what was not synced is gone. */
static void begin_anew(world *w, bool crash, bool everything) {
    kv_error err = {0};
    if (crash) kv_files_faulty_crash(w->disk->faulty, everything);
    settle(w);
    kv_cache_free(w->cache);
    kv_store_close(w->disk->store);
    if (crash) kv_files_faulty_revive(w->disk->faulty);
    open_store(w);
    check(kv_cache_new(&w->cache, &w->cfg, &err), &err);
}

enum { LARGE = 1 << 26 };

static void after_a_restart_one_token_is_computed(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (int crash = 0; crash < 3; crash++) {
            world w;
            rig r;
            open_with_disk(&w, &r, kind, 1, LARGE, 0, LARGE, LARGE, false);
            kv_token tokens[MAX];
            fill(tokens, 0, MAX, 7);
            kv_lookup_result res;
            assert_int_equal(serve(&w, "", tokens, 301, 330, &res), 301);
            assert_int_equal(serve(&w, "b", tokens, 301, 302, &res), 301);
            settle(&w);
            begin_anew(&w, crash > 0, crash == 2);
            assert_int_equal(serve(&w, "", tokens, 301, 330, &res), 1);
            assert_int_equal(w.n_disk, 300);
            assert_int_equal(res.miss, KV_MISS_NONE);
            settle(&w);
            /* the next turn, and a scope of its own */
            assert_int_equal(serve(&w, "", tokens, 360, 380, &res), 30);
            assert_int_equal(w.n_disk, 330);
            assert_int_equal(serve(&w, "b", tokens, 301, 302, &res), 1);
            assert_int_equal(serve(&w, "c", tokens, 301, 302, &res), 301);
            settle(&w);
            rig_check(&r);
            kv_cache_stats stats;
            kv_cache_get_stats(&stats, w.cache);
            assert_int_equal(stats.n_orphans, 0);
            assert_int_equal(stats.read_bytes, 0);
            close_world(&w);
        }
}

/* One scope is erased, in memory, in the queue and on disk; the others stay; it can be filled again. */
static void erased_is_gone(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (int settled = 0; settled < 2; settled++) {
            world w;
            rig r;
            kv_error err = {0};
            open_with_disk(&w, &r, kind, 1, LARGE, LARGE, LARGE, LARGE, false);
            kv_token tokens[MAX];
            fill(tokens, 0, MAX, 7);
            kv_lookup_result res;
            serve(&w, "b", tokens, 301, 330, &res);
            settle(&w);
            serve(&w, "", tokens, 301, 330, &res);
            if (settled) settle(&w);
            else kv_io_run_one(w.io);
            assert_true(kv_cache_erase(w.cache, "", &err) > 0);
            settle(&w);
            kv_cache_self_check(w.cache);
            serve(&w, "", tokens, 301, 302, &res);
            assert_int_equal(res.position, 0);
            assert_int_equal(kv_cache_erase(w.cache, "", &err) > 0, true);
            settle(&w);
            begin_anew(&w, false, false);
            serve(&w, "", tokens, 301, 302, &res);
            assert_int_equal(res.miss, KV_MISS_EMPTY);
            settle(&w);
            assert_int_equal(serve(&w, "b", tokens, 301, 302, &res), 1);
            settle(&w);
            assert_true(kv_cache_erase(w.cache, NULL, &err) > 0);
            kv_store_stats stats;
            kv_store_get_stats(&stats, r.store);
            assert_int_equal(stats.records, 0);
            close_world(&w);
        }
}

/* Sequence 0 holds `from` tokens and is computed up to n, with a place to come back to at `place`; nothing of it is inserted or
 * written yet. */
static void capture_from(world *w, kv_trail *t, const kv_token *tokens, int from, int n, int place) {
    kv_hint hint = {.position = place, .kind = KV_PLACE_MESSAGE};
    const kv_places places = {.n_prompt = n + 1, .hints = &hint, .n_hints = 1, .are_chosen = true};
    kv_trail_reset(t, "", tokens, from);
    for (int pos = from, e; pos < n; pos = e) {
        e = kv_cache_next_edge(w->cache, pos, &places);
        if (e > (pos / B + 1) * B) e = (pos / B + 1) * B;
        if (e > n) e = n;
        decode(w, 0, tokens, pos, e);
        kv_trail_advance(t, &w->state, 0, tokens, e, &places, 100);
    }
    kv_trail_end(t, &w->state, 0, tokens, n);
}

/* A path is forgotten from a position on, with what others computed on top of it, in memory, in the queue and on disk; what
 * parts from it before stays. */
static void forgotten_is_not_found(void **state) {
    (void)state;
    enum { N = 330, FORK = 200, LATE = 300 };
    static const int from[] = {0, 17, 250, 256, N - 3};
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++)
        for (size_t f = 0; f < sizeof from / sizeof *from; f++)
            for (int settled = 0; settled < 2; settled++) {
                world w;
                rig r;
                open_with_disk(&w, &r, kind, f + 1, LARGE, LARGE, LARGE, LARGE, false);
                kv_token tokens[MAX], early[MAX], late[MAX];
                kv_lookup_result res;
                fill(tokens, 0, MAX, 7);
                fill(early, 0, FORK, 7), fill(early, FORK, MAX, 8);
                fill(late, 0, LATE, 7), fill(late, LATE, MAX, 9);
                const kv_hint places[] = {{.position = 7, .kind = KV_PLACE_BRANCH},
                                          {.position = 251, .kind = KV_PLACE_BRANCH}};
                w.hints = places, w.n_hints = 2, w.us_per_token = 100000;
                serve(&w, "", tokens, N - 10, N, &res);
                w.n_hints = 0;
                serve(&w, "", early, N, N + 1, &res);
                serve(&w, "", late, N, N + 1, &res);
                serve(&w, "b", tokens, N, N + 1, &res);
                if (settled) settle(&w);
                kv_cache_forget(w.cache, "", tokens, N, from[f]);
                for (int anew = 0; anew < 2; anew++) {
                    const kv_token *who[] = {tokens, early, late};
                    for (int i = 0; i < 3; i++) {
                        kv_lookup *l = kv_lookup_start(w.cache, "", who[i], N, NULL, NULL);
                        settle(&w);
                        res = *kv_lookup_get(l);
                        kv_lookup_free(l);
                        int fork = i == 0 ? N : i == 1 ? FORK : LATE, below = from[f] / B * B;
                        if (from[f] < fork / B * B) assert_in_range(res.n_match, below, below + B - 1);
                        else assert_int_equal(res.n_match, i ? N : N / B * B);
                        if (from[f] < fork / B * B) assert_true(res.position <= from[f]);
                    }
                    if (!anew) begin_anew(&w, false, false);
                }
                kv_cache_self_check(w.cache);
                serve(&w, "b", tokens, N, N + 1, &res);
                assert_int_equal(res.n_match, N);
                serve(&w, "", tokens, N, N + 1, &res); /* it can be filled again */
                serve(&w, "", tokens, N, N + 1, &res);
                assert_int_equal(res.position, N - 1);
                rig_check(&r);
                close_world(&w);
            }
}

/* A sequence is cut a little in its slot and goes on otherwise, with a place soon behind: that has all of its window. */
static void a_place_behind_a_cut_has_its_window(void **state) {
    (void)state;
    for (int n = 200; n < 200 + B; n++)
        for (int cut = 1; cut < B; cut += 4) {
            world w;
            kv_token tokens[MAX], other[MAX];
            kv_lookup_result res;
            open_world(&w, KV_MEMORY_WINDOW, 1, LARGE, LARGE, false);
            fill(tokens, 0, MAX, 7);
            fill(other, 0, n - cut, 7), fill(other, n - cut, MAX, 8);
            kv_trail *t = kv_trail_new(w.cache);
            capture_from(&w, t, tokens, 0, n, n);
            assert_true(kv_engine_trim(w.engine, 0, n - cut));
            capture_from(&w, t, other, n - cut, n + 9, n - cut + 2);
            kv_trail_free(t);
            kv_engine_seq_rm(w.engine, 0, -1, -1);
            settle(&w);
            fill(other, n - cut + 2, MAX, 9);
            serve(&w, "", other, n + 30, n + 31, &res);
            assert_int_equal(res.position, n - cut + 2);
            close_world(&w);
        }
}

static void capture(world *w, kv_trail *t, const kv_token *tokens, int n) {
    capture_from(w, t, tokens, 0, n, n);
    kv_engine_seq_rm(w->engine, 0, -1, -1);
}

/* Captured again while what was forgotten still waits for the disk: the later one is what is there after a restart. */
static void forgotten_and_captured_again(void **state) {
    (void)state;
    enum { N = 199 };
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        kv_token tokens[MAX];
        kv_lookup_result res;
        open_with_disk(&w, &r, kind, 1, LARGE, LARGE, LARGE, LARGE, false);
        fill(tokens, 0, MAX, 7);
        kv_trail *t = kv_trail_new(w.cache);
        capture(&w, t, tokens, N);
        kv_cache_forget(w.cache, "", tokens, N, 0);
        capture(&w, t, tokens, N);
        kv_trail_free(t);
        settle(&w);
        begin_anew(&w, false, false);
        assert_int_equal(serve(&w, "", tokens, N + 1, N + 2, &res), 1);
        rig_check(&r);
        close_world(&w);
    }
}

/* The same tokens under other settings are no hit, and the miss says which settings; other tokens, or another scope's,
 * are not spoken of. */
static void other_settings_are_named(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        open_with_disk(&w, &r, kind, 1, LARGE, LARGE, LARGE, LARGE, false);
        kv_token tokens[MAX], strange[MAX];
        fill(tokens, 0, MAX, 7);
        fill(strange, 0, MAX, 8);
        kv_lookup_result res;
        serve(&w, "", tokens, 301, 330, &res);
        settle(&w);
        char why[] = "K type f16 → q8_0", unlike[] = "another model";
        kv_namespace_other list[] = {{{4, 4}, unlike}, {w.cfg.ns, why}};
        kv_namespace_others others = {list, 2};
        w.cfg.others = &others;
        w.cfg.ns.hi++;
        begin_anew(&w, false, false);
        serve(&w, "b", tokens, 301, 302, &res);
        assert_int_equal(res.miss, KV_MISS_EMPTY);
        serve(&w, "", strange, 301, 302, &res);
        assert_int_equal(res.miss, KV_MISS_EMPTY);
        assert_null(res.elsewhere);
        assert_int_equal(serve(&w, "", tokens, 301, 302, &res), 301);
        assert_int_equal(res.miss, KV_MISS_OTHER_NAMESPACE);
        assert_ptr_equal(res.elsewhere, why);
        settle(&w);
        assert_int_equal(serve(&w, "", tokens, 301, 302, &res), 1);
        assert_null(res.elsewhere);
        close_world(&w);
    }
}

/* Room for all, and a prompt of 301 tokens with its answer to 330 on disk; tokens: MAX of them. */
static void open_with_a_talk(world *w, rig *r, kv_token *tokens) {
    kv_lookup_result res;
    open_with_disk(w, r, KV_MEMORY_FULL, 1, LARGE, LARGE, LARGE, LARGE, false);
    fill(tokens, 0, MAX, 7);
    serve(w, "", tokens, 301, 330, &res);
    settle(w);
}

typedef struct saved {
    bool states; /* or window parts: which of them are looked at */
    uint32_t ms;
    int n;
} saved;

static void add_saved(void *ctx, const kv_store_row *row) {
    saved *s = ctx;
    if (row->head.kind == KV_RECORD_BLOCK || (row->head.kind == KV_RECORD_WINDOW) == s->states) return;
    if (row->head.compute_ms > s->ms) s->ms = row->head.compute_ms;
    s->n++;
}

/* A state saves what lies before it, at most an interval, and the parts of a window as much together: those of a prompt of
 * five tokens push nobody out. */
static void a_state_is_worth_what_it_saves(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_WINDOW; kind <= KV_MEMORY_WHOLE; kind++)
        for (int n = 5; n <= 301; n += 296) {
            world w;
            rig r;
            kv_token tokens[MAX];
            kv_lookup_result res;
            open_with_disk(&w, &r, kind, 1, LARGE, 0, LARGE, LARGE, false);
            fill(tokens, 0, MAX, 7);
            w.us_per_token = 10000;
            serve(&w, "", tokens, n, n + 1, &res);
            settle(&w);
            for (int states = 0; states < 2; states++) {
                if (!(states ? kv_state_has_checkpoints(kind) : kv_state_has_windows(kind))) continue;
                saved most = {.states = states};
                assert_int_equal(kv_store_load_all(r.store, add_saved, &most, NULL), KV_OK);
                assert_true(most.n > 0);
                int way = n + 1 < INTERVAL ? n + 1 : INTERVAL;
                if (!states) way = n + 1 < B ? n + 1 : INTERVAL * B / W; /* its share, or its own tokens */
                assert_int_equal(most.ms, 10 * way);
            }
            close_world(&w);
        }
}

/* Memory takes what the disk has too while there is room, and lets it go without loss. */
static void memory_goes_before_disk(void **state) {
    (void)state;
    world w;
    rig r;
    kv_token tokens[MAX];
    kv_lookup_result res;
    open_with_a_talk(&w, &r, tokens);
    assert_int_equal(serve(&w, "", tokens, 301, 330, &res), 1);
    assert_int_equal(w.n_ram, 300);
    assert_int_equal(w.n_disk, 0);
    close_world(&w);
}

typedef struct find {
    int32_t e;
    kv_record_head head;
    int n;
} find;

static void find_block(void *ctx, const kv_store_row *row) {
    find *f = ctx;
    f->n += f->e == row->head.e && row->head.kind == KV_RECORD_BLOCK;
    if (f->e == row->head.e && row->head.kind == KV_RECORD_BLOCK) f->head = row->head;
}

static find block_that_ends(const rig *r, int32_t e) {
    find f = {.e = e};
    assert_int_equal(kv_store_load_all(r->store, find_block, &f, NULL), KV_OK);
    return f;
}

/* A longer block takes the place of the one that it begins with, but not of one that somebody pinned. */
static void a_pinned_block_outlives_a_longer_one(void **state) {
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        world w;
        rig r;
        kv_error err = {0};
        kv_token tokens[MAX];
        kv_lookup_result res;
        open_with_a_talk(&w, &r, tokens);
        find open_end = block_that_ends(&r, 330);
        assert_int_equal(open_end.n, 1);
        if (pinned) check(kv_store_pin(r.store, &open_end.head, true, &err), &err);
        serve(&w, "", tokens, 360, 380, &res);
        settle(&w);
        assert_int_equal(block_that_ends(&r, 336).n, 1);
        assert_int_equal(block_that_ends(&r, 330).n, pinned);
        close_world(&w);
    }
}

/* What nothing leads to is removed, but not where another process writes: what leads to it may just have come. */
static void orphans_of_a_shared_directory_stay(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        world w;
        rig r;
        kv_error err = {0};
        kv_token tokens[MAX];
        kv_lookup_result res;
        open_with_a_talk(&w, &r, tokens);
        find parent = block_that_ends(&r, 16 * B);
        kv_store *other = NULL;
        if (shared) check(kv_store_open(&other, &r.cfg, &err), &err);
        check(kv_store_remove(r.store, &parent.head, &err), &err);
        begin_anew(&w, false, false);
        kv_cache_warm(w.cache);
        serve(&w, "", tokens, 10, 11, &res); /* loads the scope */
        settle(&w);
        kv_cache_stats stats;
        kv_cache_get_stats(&stats, w.cache);
        assert_true(stats.n_orphans > 0);
        assert_int_equal(block_that_ends(&r, 17 * B).n, shared);
        kv_store_close(other);
        close_world(&w);
    }
}

/* Buffers for two blocks and a window part: the reader waits for the engine thread, also when several restore at once. */
static void reading_keeps_to_its_budget(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        open_with_disk(&w, &r, kind, 1, LARGE, 0, LARGE, LARGE, false);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result res;
        serve(&w, "", tokens, 481, 500, &res);
        settle(&w);
        uint64_t largest = 0;
        kv_store_stats stats;
        kv_store_get_stats(&stats, r.store);
        for (int k = 1; k <= 4; k++)
            if (stats.by_kind_bytes[k]) largest += 60000;
        w.cfg.read_bytes = largest;
        begin_anew(&w, false, false);
        kv_lookup *l[2];
        kv_restore step[2] = {KV_RESTORE_MORE, KV_RESTORE_MORE};
        kv_error err = {0};
        for (int i = 0; i < 2; i++) l[i] = kv_lookup_start(w.cache, "", tokens, 481, NULL, NULL);
        while (!kv_lookup_ready(l[0]) || !kv_lookup_ready(l[1])) assert_true(kv_io_run_one(w.io));
        for (int turns = 0, idle = 0; step[0] != KV_RESTORE_DONE || step[1] != KV_RESTORE_DONE; turns++) {
            bool ran = kv_io_run_one(w.io), waits = true;
            kv_cache_stats now;
            kv_cache_get_stats(&now, w.cache);
            assert_true(now.read_bytes <= largest);
            for (int i = 0; i < 2; i++) {
                if (step[i] == KV_RESTORE_DONE) continue;
                step[i] = kv_restore_step(l[i], &w.state, i, 0, 0, &err);
                if (step[i] == KV_RESTORE_FAILED) fail_msg("%s", err.message);
                waits = waits && step[i] == KV_RESTORE_WAIT;
            }
            idle = ran || !waits ? 0 : idle + 1; /* the first step only begins to read */
            if (idle > 1) fail_msg("two restores wait for each other");
            assert_true(turns < 10000);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(kv_lookup_get(l[i])->position, 480);
            kv_lookup_free(l[i]);
            decode(&w, i, tokens, 480, 481);
            assert_logits(&w, tokens, 481);
            kv_engine_seq_rm(w.engine, i, -1, -1);
        }
        close_world(&w);
    }
}

/* One bit of one record is wrong: the restore says so, the record is forgotten, the next one does with less. */
static void a_damaged_record_is_a_miss(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        open_with_disk(&w, &r, kind, 3, LARGE, 0, LARGE, LARGE, false);
        kv_token tokens[MAX];
        fill(tokens, 0, MAX, 7);
        kv_lookup_result res;
        serve(&w, "", tokens, 301, 330, &res);
        settle(&w);
        begin_anew(&w, false, false);
        w.may_fail = true;
        int n_good = 0;
        for (int nth = 1; nth < 200; nth += 3) {
            kv_files_faulty_flip(r.faulty, (uint64_t)nth);
            int before = w.n_failed;
            int computed = serve(&w, "", tokens, 301, 330, &res);
            if (w.n_failed > before) assert_true(w.failure == KV_MISS_DAMAGED || w.failure == KV_MISS_IO_ERROR);
            else n_good++;
            assert_true(computed >= 1);
            settle(&w);
            kv_files_faulty_flip(r.faulty, 0);
            /* computed again and written again, so that it is whole once more */
            assert_int_equal(serve(&w, "", tokens, 301, 330, &res) >= 1, true);
            settle(&w);
            kv_cache_self_check(w.cache);
            rig_check(&r);
        }
        assert_true(n_good > 0);
        int failures = w.n_failed;
        assert_int_equal(serve(&w, "", tokens, 301, 330, &res), 1);
        assert_int_equal(w.n_failed, failures);
        close_world(&w);
    }
}

/* ── the end on a slow disk ── */

static world *slow_world;
static const kv_files *fast_files;

static int64_t write_slowly(const kv_files *self, int fd, const void *src, size_t n, uint64_t offset) {
    slow_world->clock.us += 10000;
    return fast_files->write_at(self, fd, src, n, offset);
}

/* Of two conversations the queue is full of, the one that took long to compute is written, from its beginning on; the
 * flush ends in time, and says how much of the other is lost. */
static void a_flush_writes_the_most_valuable_first(void **state) {
    (void)state;
    for (kv_memory_kind kind = KV_MEMORY_FULL; kind <= KV_MEMORY_WHOLE; kind++) {
        world w;
        rig r;
        open_with_disk(&w, &r, kind, 1, LARGE, 0, LARGE, LARGE, false);
        kv_files slow = *r.cfg.files;
        fast_files = r.cfg.files;
        slow_world = &w;
        kv_token cheap[MAX], dear[MAX];
        fill(cheap, 0, MAX, 7);
        fill(dear, 0, MAX, 8);
        kv_lookup_result res;
        begin_anew(&w, false, false);
        kv_cache_free(w.cache);
        kv_store_close(r.store);
        slow.write_at = write_slowly;
        r.cfg.files = &slow;
        open_store(&w);
        kv_error err = {0};
        check(kv_cache_new(&w.cache, &w.cfg, &err), &err);
        w.us_per_token = 1000;
        serve(&w, "", cheap, 321, 322, &res);
        w.us_per_token = 50000;
        serve(&w, "", dear, 161, 162, &res);
        kv_cache_stats before, after;
        kv_cache_get_stats(&before, w.cache);
        int64_t began = w.clock.us;
        uint64_t dropped = kv_cache_flush(w.cache, 1200000);
        assert_true(w.clock.us - began <= 1200000 + 200000); /* and the last commit's writes */
        kv_cache_get_stats(&after, w.cache);
        assert_true(after.n_written > before.n_written);
        if (dropped < 100 || dropped > 322) fail_msg("kind %d: %llu tokens dropped", kind, (unsigned long long)dropped);
        settle(&w);
        begin_anew(&w, false, false);
        int rest = serve(&w, "", dear, 161, 162, &res);
        if (rest != 1) fail_msg("kind %d: %d tokens of the valuable conversation were computed", kind, rest);
        assert_true(serve(&w, "", cheap, 321, 322, &res) > 100);
        rig_check(&r);
        close_world(&w);
    }
}

/* Conversations that branch and go on, small budgets, restarts, crashes, faults, I/O in any order: always right. */
static void random_conversations(void **state) {
    (void)state;
    const char *given = getenv("KVASIR_SEED"), *rounds = getenv("KVASIR_ROUNDS");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    int n_rounds = rounds ? atoi(rounds) : 48, n_restarts = 0, n_failed = 0;
    uint64_t from_disk = 0, refused = 0, orphans = 0;
    print_message("KVASIR_SEED=%llu\n", (unsigned long long)seed);
    for (int round = 0; round < n_rounds; round++) {
        kv_memory_kind kind = (kv_memory_kind)(round % (KV_MEMORY_WHOLE + 1));
        world w;
        rig r;
        open_with_disk(&w, &r, kind, seed + (uint64_t)round, 1 << (17 + round % 6),
                       round % 3 ? 1 << (16 + round % 5) : 0, 1 << (18 + round % 4), (uint64_t)1 << (21 + round % 5),
                       round % 2);
        w.may_fail = true;
        kv_token talk[4][MAX];
        int len[4] = {0};
        for (int step = 0; step < 30; step++) {
            int i = (int)rnd(&w, 4), j = (int)rnd(&w, 4);
            if (rnd(&w, 3) == 0 && len[j]) { /* branch off another conversation */
                len[i] = 1 + (int)rnd(&w, (uint32_t)len[j]);
                memmove(talk[i], talk[j], (size_t)len[i] * sizeof *talk[i]);
            } else if (rnd(&w, 6) == 0) {
                len[i] = 0;
            }
            int n_prompt = len[i] + 1 + (int)rnd(&w, 120), n = n_prompt + (int)rnd(&w, 30);
            if (n > MAX) {
                len[i] = 0;
                continue;
            }
            for (int k = len[i]; k < n; k++) talk[i][k] = (kv_token)rnd(&w, 3);
            if (rnd(&w, 4) == 0)
                kv_files_faulty_fail(r.faulty, (kv_files_call)rnd(&w, KV_CALL_COUNT + 1), 1 + rnd(&w, 40),
                                     1 + rnd(&w, 3), rnd(&w, 2) ? EIO : ENOSPC);
            if (rnd(&w, 8) == 0) kv_files_faulty_flip(r.faulty, 1 + rnd(&w, 60));
            kv_lookup_result res;
            serve(&w, rnd(&w, 5) ? "" : "b", talk[i], n_prompt, n, &res);
            from_disk += (uint64_t)w.n_disk;
            len[i] = n;
            w.clock.us += rnd(&w, 100) * 1000000;
            if (rnd(&w, 2)) settle(&w);
            kv_cache_self_check(w.cache);
            if (rnd(&w, 6) == 0) {
                kv_cache_stats stats;
                kv_cache_get_stats(&stats, w.cache);
                refused += stats.n_not_written;
                orphans += stats.n_orphans;
                kv_files_faulty_fail(r.faulty, KV_CALL_ANY, 0, 0, 0);
                kv_files_faulty_flip(r.faulty, 0);
                uint32_t how = rnd(&w, 3);
                begin_anew(&w, how > 0, how == 2);
                n_restarts++;
            }
            kv_files_faulty_fail(r.faulty, KV_CALL_ANY, 0, 0, 0); /* the check's own calls shall not meet it */
            rig_check(&r);
        }
        kv_files_faulty_fail(r.faulty, KV_CALL_ANY, 0, 0, 0);
        n_failed += w.n_failed;
        close_world(&w);
    }
    print_message("%d restarts, %llu tokens from disk, %d restores failed, %llu records refused, %llu orphans\n",
                  n_restarts, (unsigned long long)from_disk, n_failed, (unsigned long long)refused,
                  (unsigned long long)orphans);
    assert_true(from_disk > 0 && n_restarts > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_restart_one_token_is_computed),
        cmocka_unit_test(erased_is_gone),
        cmocka_unit_test(forgotten_is_not_found),
        cmocka_unit_test(forgotten_and_captured_again),
        cmocka_unit_test(a_place_behind_a_cut_has_its_window),
        cmocka_unit_test(other_settings_are_named),
        cmocka_unit_test(a_state_is_worth_what_it_saves),
        cmocka_unit_test(memory_goes_before_disk),
        cmocka_unit_test(a_pinned_block_outlives_a_longer_one),
        cmocka_unit_test(orphans_of_a_shared_directory_stay),
        cmocka_unit_test(reading_keeps_to_its_budget),
        cmocka_unit_test(a_damaged_record_is_a_miss),
        cmocka_unit_test(a_flush_writes_the_most_valuable_first),
        cmocka_unit_test(random_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
