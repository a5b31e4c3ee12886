/* cli/load_cache.c: from options and what memory is left to a cache, and to its directory. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cache/probe.h"
#include "cli/disk_plan.h"
#include "cli/load.h"
#include "os/machine.h"

/* llama-server's default; more than that is rarely a conversation that comes back. With a disk the page cache does most
 * of that, and memory keeps the hottest. */
#define RAM_MOST       (8192ull << 20)
#define RAM_MOST_DISK  (1024ull << 20)
#define RAM_SHARE_DISK 4 /* of half of what is left */
/* Captures wait here for their hashing, insertion and the disk; it must hold what one prefill brings meanwhile. */
#define QUEUE_MOST  (1024ull << 20)
#define QUEUE_LEAST (64ull << 20)
/* Buffers between disk and engine: some blocks ahead, and the largest group that is needed at once. */
#define READ_LEAST  (64ull << 20)
#define READ_BLOCKS 8

/* ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void describe_bytes(kv_buf *out, uint64_t bytes) {
    if (bytes >= 10ull << 30) kv_buf_addf(out, "%.0f GiB", (double)bytes / (1 << 30));
    else if (bytes >= 1ull << 30) kv_buf_addf(out, "%.1f GiB", (double)bytes / (1 << 30));
    else kv_buf_addf(out, "%.1f MiB", (double)bytes / (1 << 20));
}

/* A directory that was named must be usable; the platform's own may be what it is. */
static kv_status open_store(kv_loaded *l, const kv_options *opt, kv_error *err) {
    kv_disk_plan p;
    kv_buf size = {0};
    kv_disk_plan_make(&p, opt);
    kv_status st = KV_OK;
    if (p.why[0] && !p.dir.len) KV_WARN("nothing is kept on disk: %s (--cache-dir names a place)", p.why);
    else if (p.why[0])
        KV_INFO("nothing is kept on disk in %s: %s (--cache-dir or --cache-disk SIZE overrides)", kv_buf_str(&p.dir),
                p.why);
    if (!p.budget) goto done;
    if (p.budget < KV_STORE_MIN) {
        st = kv_fail_field(err, "--cache-disk", "--cache-disk: %lld bytes are too few, at least 1M",
                           (long long)opt->cache_disk);
        goto done;
    }
    st = opt->cache_readonly ? KV_OK : kv_dir_make(kv_buf_str(&p.dir), err);
    kv_store_config cfg = {.dir = kv_buf_str(&p.dir),
                           .budget = p.budget,
                           .keep_free = p.keep_free,
                           .max_age_s = opt->cache_max_age,
                           .write_max_day = (uint64_t)opt->cache_write_max,
                           .read_only = opt->cache_readonly};
    if (opt->slow_disk) {
        kv_files_slow_init(&l->slow, opt->slow_disk);
        cfg.files = &l->slow.files;
    }
    if (st == KV_OK) st = kv_store_open(&l->store, &cfg, err);
    if (st != KV_OK && !opt->cache_dir) {
        KV_WARN("nothing is kept on disk: %s", err->message);
        st = KV_OK;
    }
    if (!l->store) goto done;
    kv_store_stats stats;
    kv_store_get_stats(&stats, l->store);
    describe_bytes(&size, stats.bytes);
    kv_buf_adds(&size, opt->cache_readonly ? ", read only" : " of ");
    if (!opt->cache_readonly) describe_bytes(&size, p.budget);
    KV_INFO("cache on disk: %s, %s in %llu records, not encrypted", kv_buf_str(&p.dir), kv_buf_str(&size),
            (unsigned long long)stats.records);
done:
    kv_disk_plan_free(&p);
    kv_buf_free(&size);
    return st;
}

/* What of this model's cache cannot be used, and which setting made it so. */
static void tell_unusable(kv_loaded *l) {
    kv_buf why = {0};
    kv_error err;
    if (kv_namespace_report(&why, l->store, &l->ns, NULL, &err) == KV_OK && why.len) KV_WARN("%s", kv_buf_str(&why));
    kv_buf_free(&why);
}

static void set_engine_apart(kv_loaded *l) {
    l->engine_apart = true;
    kv_namespace_add(&l->ns, KV_NAMESPACE_ENGINE, kv_engine_get_info(l->engine)->version);
}

static kv_status make_namespace(kv_loaded *l, const kv_options *opt, kv_error *err) {
    kv_fingerprint f = {0};
    kv_status st = kv_model_fingerprint(&f, l->model, err);
    if (st == KV_OK)
        kv_namespace_init(&l->ns, kv_model_get_info(l->model), kv_engine_get_info(l->engine), &f, l->block);
    kv_fingerprint_free(&f);
    if (st == KV_OK && opt->exact) {
        const kv_engine_info *e = kv_engine_get_info(l->engine);
        kv_buf shapes = {0};
        kv_buf_addf(&shapes, "chunk %d, %d and %d threads, engine %s on %s, %s", l->tuning.chunk, e->n_threads,
                    e->n_threads_batch, e->version ? e->version : "?", e->backends ? e->backends : "?",
                    kv_buf_str(&l->placement));
        kv_namespace_add(&l->ns, "exact", kv_buf_str(&shapes));
        kv_buf_free(&shapes);
    }
    if (st == KV_OK && l->engine_apart) set_engine_apart(l);
    return st;
}

kv_status kv_load_namespace(kv_loaded *l, const kv_options *opt, kv_error *err) {
    return make_namespace(l, opt, err);
}

/* ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static uint64_t clamp(uint64_t n, uint64_t least, uint64_t most) {
    return n < least ? least : n > most ? most : n;
}

static uint64_t choose_ram(const kv_loaded *l, const kv_options *opt) {
    uint64_t left = l->plan.bytes_left / 2;
    if (opt->cache_ram >= 0) return (uint64_t)opt->cache_ram << 20;
    return l->store ? clamp(left / RAM_SHARE_DISK, 0, RAM_MOST_DISK) : clamp(left, 0, RAM_MOST);
}

/* Bytes of what is kept at a position beside blocks and window parts. */
static uint64_t state_bytes(const kv_engine_info *e) {
    uint64_t cell = e->bytes_per_cell + e->bytes_per_window_cell;
    return e->bytes_recurrent + (e->memory == KV_MEMORY_WHOLE ? (uint64_t)e->n_ctx * cell : 0);
}

static uint64_t read_buffers(const kv_loaded *l) {
    const kv_engine_info *e = kv_engine_get_info(l->engine);
    uint64_t block = (uint64_t)l->block * (e->bytes_per_cell + e->bytes_per_window_cell);
    uint64_t state = state_bytes(e) + (uint64_t)e->n_window * e->bytes_per_window_cell;
    uint64_t group = (block + state) + (block + state) / 8 + (1u << 20); /* with the notes of each cell */
    return READ_LEAST > group + READ_BLOCKS * block ? READ_LEAST : group + READ_BLOCKS * block;
}

/* What is captured and not yet written, or inserted: one state and what hangs on it at least, and the window parts that
 * each slot holds until a position asks for them. Less than that, and nothing would ever be kept at a position. */
static uint64_t queue_bytes(const kv_loaded *l, uint64_t room, uint64_t share) {
    const kv_engine_info *e = kv_engine_get_info(l->engine);
    uint64_t block = (uint64_t)l->block * e->bytes_per_cell, part = (uint64_t)l->block * e->bytes_per_window_cell;
    uint64_t state = state_bytes(e);
    uint64_t parts = e->n_window ? (uint64_t)(e->n_window / l->block + 2) * part : 0;
    uint64_t need = 2 * (state + block) + (uint64_t)e->n_slots * (parts + block);
    need += need / 8 + (1u << 20); /* with the notes of each cell */
    uint64_t bytes = clamp(share, QUEUE_LEAST, QUEUE_MOST);
    if (bytes >= need) return bytes;
    uint64_t most = room / 2;
    if (need > most && bytes < state + block)
        KV_WARN(
            "a state of this model takes %.0f MiB, more than the %.0f MiB that can wait for being kept: no state is, "
            "and conversations are computed again; give --cache-ram more, or -c less",
            (double)(state + block) / (1 << 20), (double)(most > bytes ? most : bytes) / (1 << 20));
    return need < most ? need : most > bytes ? most : bytes;
}

static kv_status make_cache(kv_loaded *l, kv_cache_config *cfg, kv_error *err) {
    l->io = kv_io_new_threads(2, 1);
    if (!l->io) return kv_fail(err, KV_NO_MEMORY, "could not start the I/O threads");
    cfg->io = l->io;
    cfg->ns = kv_namespace_hash(&l->ns);
    kv_error why;
    if (l->store && kv_namespace_find_others(&l->others, l->store, &l->ns, &why) != KV_OK)
        KV_WARN("misses will not tell what lies under other settings: %s", why.message);
    cfg->others = &l->others;
    kv_status st = kv_cache_new(&l->cache, cfg, err);
    if (st == KV_OK && l->store) kv_cache_warm(l->cache);
    return st;
}

/* What another build of the engine left is used when a probe agrees, else this build gets a namespace of its own. */
static kv_status probe(kv_loaded *l, kv_cache_config *cfg, kv_error *err) {
    if (kv_probe_run(l->cache, l->engine) != KV_PROBE_DIFFERS) return KV_OK;
    kv_io_free(l->io);
    kv_cache_free(l->cache);
    l->io = NULL;
    l->cache = NULL;
    set_engine_apart(l);
    return make_cache(l, cfg, err);
}

kv_status kv_load_cache(kv_loaded *l, const kv_options *opt, kv_error *err) {
    const kv_engine_info *info = kv_engine_get_info(l->engine);
    if (info->memory == KV_MEMORY_NONE) return KV_OK;
    if (kv_memory_has_window(info->memory) && l->block > info->n_window) {
        KV_WARN("no cache beside the slots: the model's window of %d tokens is too small for blocks",
                (int)info->n_window);
        return KV_OK;
    }
    kv_status st = open_store(l, opt, err);
    if (st != KV_OK) return st;
    uint64_t ram = choose_ram(l, opt);
    if (ram == 0 && !l->store) {
        KV_INFO("no cache beside the slots%s", opt->cache_ram < 0 ? ": no memory is left for it" : " (--cache-ram 0)");
        return KV_OK;
    }
    l->engine_apart = false;
    st = make_namespace(l, opt, err);
    if (st != KV_OK) return st;
    kv_cache_config cfg = {.engine = info,
                           .block = l->block,
                           /* none: a byte, in which nothing finds room */
                           .path_bytes = opt->cache_checkpoints < 0    ? 0
                                         : opt->cache_checkpoints == 0 ? 1
                                                                       : (uint64_t)opt->cache_checkpoints,
                           .exact_chunk = opt->exact ? l->tuning.chunk : 0,
                           .queue_bytes = l->store ? queue_bytes(l, l->plan.bytes_left, l->plan.bytes_left / 4)
                                                   : queue_bytes(l, ram, ram / 8),
                           .ram_bytes = ram,
                           .read_bytes = l->store ? read_buffers(l) : 0,
                           .store = l->store,
                           .about = kv_namespace_about_text,
                           .about_ctx = &l->ns,
                           .clock = kv_clock_real(),
                           .readonly = opt->cache_readonly};
    st = make_cache(l, &cfg, err);
    if (st == KV_OK && !opt->exact) st = probe(l, &cfg, err); /* --exact has the build in its namespace */
    if (st != KV_OK) return st;
    if (l->store) tell_unusable(l);
    uint64_t context =
        (uint64_t)info->n_ctx * (info->bytes_per_cell + info->bytes_per_window_cell) + info->bytes_recurrent;
    l->keeps_well = !opt->cache_readonly && (l->store || ram >= 2 * context);
    if (ram > 0)
        KV_INFO("cache in memory: up to %.1f GiB for conversations that left their slots", (double)ram / (1 << 30));
    return KV_OK;
}

void kv_load_flush_cache(kv_loaded *l, double seconds) {
    if (!l->cache) return;
    uint64_t dropped = kv_cache_flush(l->cache, (int64_t)(seconds * 1e6));
    if (dropped) KV_WARN("the cache of %llu tokens was not written in time", (unsigned long long)dropped);
}

bool kv_load_cache_suits(const kv_loaded *before, kv_loaded *l, const kv_options *opt, kv_error *err) {
    l->engine_apart = before->engine_apart;
    if (make_namespace(l, opt, err) != KV_OK) {
        KV_WARN("the cache cannot be kept: %s", err->message);
        return false;
    }
    if (kv_hash_equal(kv_namespace_hash(&before->ns), kv_namespace_hash(&l->ns))) return true;
    kv_buf about = {0}, what = {0};
    kv_namespace_about(&about, &before->ns, NULL);
    kv_namespace_diff(&what, &l->ns, kv_buf_str(&about));
    KV_WARN("the model is not the one that fell asleep: %s", kv_buf_str(&what));
    kv_buf_free(&about);
    kv_buf_free(&what);
    return false;
}

void kv_load_drop_cache(kv_loaded *l) {
    kv_io_free(l->io); /* runs what is left, which uses the cache */
    kv_cache_free(l->cache);
    kv_store_close(l->store);
    kv_namespace_free(&l->ns);
    kv_namespace_others_free(&l->others);
    l->io = NULL;
    l->cache = NULL;
    l->store = NULL;
}
