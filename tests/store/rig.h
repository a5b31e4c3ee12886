/* A store in a folder of its own, records with made-up tokens, and a walk that counts every byte below the folder. */
#ifndef KV_TESTS_STORE_RIG_H
#define KV_TESTS_STORE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/files_faulty.h"
#include "store/store.h"

typedef struct rig {
    char base[128], dir[160], grave[160];
    kv_files_faulty *faulty;
    kv_store *store;
    kv_store_config cfg;
    int64_t now;
    kv_tokens gone; /* number of records reported gone */
    size_t n_gone;
} rig;

typedef struct rec {
    kv_record_head head;
    kv_token tokens[64];
    unsigned char *payload;
} rec;

static inline int64_t rig_now(void *ctx) {
    return ((rig *)ctx)->now;
}

static inline void rig_init(rig *r, uint64_t budget, uint64_t seed) {
    memset(r, 0, sizeof *r);
    const char *tmp = getenv("TMPDIR");
    snprintf(r->base, sizeof r->base, "%s/kvasir-store.XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(r->base));
    snprintf(r->dir, sizeof r->dir, "%s/cache", r->base);
    snprintf(r->grave, sizeof r->grave, "%s/grave", r->base);
    assert_int_equal(mkdir(r->grave, 0700), 0);
    r->faulty = kv_files_faulty_new(kv_files_real(), r->dir, r->grave, seed);
    r->now = 1700000000;
    r->cfg = (kv_store_config){
        .dir = r->dir, .files = kv_files_faulty_files(r->faulty), .budget = budget, .now = rig_now, .now_ctx = r};
}

static inline void rig_gone(void *ctx, const kv_record_head *head) {
    (void)head;
    ((rig *)ctx)->n_gone++;
}

static inline void rig_open(rig *r) {
    kv_error err = {0};
    if (kv_store_open(&r->store, &r->cfg, &err) != KV_OK) fail_msg("open: %s", err.message);
    kv_store_on_gone(r->store, rig_gone, r);
}

static inline void rig_close(rig *r) {
    kv_store_close(r->store);
    r->store = NULL;
}

static inline uint64_t tree_bytes(const char *path, bool remove_it) {
    struct stat st;
    if (lstat(path, &st) != 0) return 0;
    uint64_t sum = (uint64_t)st.st_blocks * 512;
    if (!S_ISDIR(st.st_mode)) {
        if (remove_it) (void)unlink(path);
        return sum;
    }
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        kv_buf child = {0};
        kv_buf_addf(&child, "%s/%s", path, e->d_name);
        sum += tree_bytes(child.data, remove_it);
        kv_buf_free(&child);
    }
    closedir(dir);
    if (remove_it) (void)rmdir(path);
    return sum;
}

static inline void rig_free(rig *r) {
    rig_close(r);
    assert_int_equal(kv_files_faulty_open_files(r->faulty), 0);
    kv_files_faulty_free(r->faulty);
    (void)tree_bytes(r->base, true);
}

/* The budget holds, and what the store believes is in use is not less than what there is. */
static inline void rig_check(rig *r) {
    kv_store_stats stats;
    uint64_t there = tree_bytes(r->dir, false);
    kv_store_check(r->store);
    kv_store_get_stats(&stats, r->store);
    if (there > r->cfg.budget || there > stats.bytes)
        fail_msg("%llu bytes there, %llu believed, budget %llu", (unsigned long long)there,
                 (unsigned long long)stats.bytes, (unsigned long long)r->cfg.budget);
}

static inline int count_files(const char *path, const char *part) {
    DIR *dir = opendir(path);
    if (!dir) return 0;
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        kv_buf child = {0};
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        kv_buf_addf(&child, "%s/%s", path, e->d_name);
        if (lstat(child.data, &st) == 0 && S_ISDIR(st.st_mode)) n += count_files(child.data, part);
        else n += strstr(e->d_name, part) != NULL;
        kv_buf_free(&child);
    }
    closedir(dir);
    return n;
}

/* A record below `parent` (NULL: the namespace's root) of 16 tokens drawn from `salt`. */
static inline rec make_rec(kv_record_kind kind, const rec *parent, uint32_t salt, size_t n_payload, uint32_t ms) {
    rec r = {.head = {.kind = kind, .n_tokens = 16, .n_payload = n_payload, .compute_ms = ms, .created = 1600000000}};
    r.head.ns = kv_hash_bytes("test", 4);
    r.head.parent = parent ? parent->head.key : kv_hash_bytes("root", 4);
    r.head.q = parent ? parent->head.e : 0;
    r.head.e = r.head.q + 16;
    snprintf(r.head.engine, sizeof r.head.engine, "test");
    for (int i = 0; i < 16; i++) r.tokens[i] = (kv_token)(salt * 16 + (uint32_t)i);
    r.head.key = kv_hash_chain(r.head.parent, r.tokens, 16);
    r.payload = aligned_alloc(4096, (n_payload + 4095) / 4096 * 4096);
    for (size_t i = 0; i < n_payload; i++) r.payload[i] = (unsigned char)(salt * 31 + i * 7 + i / 251 + kind);
    return r;
}

static inline kv_status store_rec(rig *r, const rec *x, double worth) {
    kv_status status = kv_store_reserve(r->store, &x->head, worth, false, NULL);
    if (status == KV_OK) status = kv_store_write(r->store, &x->head, x->tokens, x->payload, NULL);
    if (status == KV_OK) status = kv_store_commit(r->store, NULL, NULL, NULL);
    return status;
}

/* KV_OK only when tokens and payload are those that were stored. */
static inline kv_status read_rec(rig *r, const rec *x) {
    kv_token tokens[64] = {0};
    kv_error err = {0};
    void *payload = aligned_alloc(4096, (x->head.n_payload + 4095) / 4096 * 4096);
    kv_status status =
        kv_store_read(r->store, tokens, payload, (x->head.n_payload + 4095) / 4096 * 4096, NULL, &x->head, &err);
    if (status == KV_OK) {
        assert_memory_equal(tokens, x->tokens, 16 * sizeof *tokens);
        assert_memory_equal(payload, x->payload, x->head.n_payload);
    }
    free(payload);
    return status;
}

static inline void rec_path(char out[512], rig *r, const rec *x) {
    char ns[33], name[64];
    kv_hash_hex(ns, x->head.ns);
    kv_format_name(name, &x->head);
    snprintf(out, 512, "%s/ns/%s/%s", r->dir, ns, name);
}

#endif
