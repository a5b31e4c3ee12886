/* cli/cache_warm.c: warm.
 *
 * A server reads what is in the page cache through it and anything else around it, so nothing that it does brings an
 * old conversation's files there. This does: newest use first, as far as memory is free, since beyond that each file read
 * would push out another.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cache_tool.h"
#include "cli/cli.h"
#include "os/machine.h"

#define PIECE (1u << 20) /* one read; the system reads ahead by itself */

static bool is_chosen(const kv_cache_tool *t, const kv_store_row *row) {
    for (size_t i = 0; i < t->n; i++)
        if (kv_hash_equal(t->list[i].ns, row->head.ns)) return t->list[i].selected;
    return false;
}

static int by_last_use(const void *a, const void *b) {
    int64_t x = ((const kv_store_row *)a)->last_used, y = ((const kv_store_row *)b)->last_used;
    return (x < y) - (x > y);
}

/* 0 or -errno. *done: bytes read so far, of all files. */
static int read_through(uint64_t *done, const kv_cache_tool *t, const kv_record_head *head, void *piece) {
    const kv_files *f = kv_files_real();
    kv_buf path = {0};
    char ns[33], name[64];
    kv_hash_hex(ns, head->ns);
    kv_format_name(name, head);
    kv_buf_addf(&path, "%s/ns/%s/%s", t->dir.data, ns, name);
    int fd = f->open(f, path.data, KV_OPEN_READ);
    kv_buf_free(&path);
    if (fd < 0) return fd;
    int64_t n;
    uint64_t at = 0;
    while ((n = f->read_at(f, fd, piece, PIECE, at)) > 0) at += (uint64_t)n;
    f->close(f, fd);
    *done += at;
    return n < 0 ? (int)n : 0;
}

static void add_number(kv_cache_tool *t, const char *name, uint64_t n) {
    json_object_set_new(t->out, name, json_integer((json_int_t)n));
}

static void tell(kv_cache_tool *t, uint64_t records, uint64_t bytes, uint64_t left_records, uint64_t left_bytes) {
    kv_buf size = {0};
    add_number(t, "records", records);
    add_number(t, "bytes", bytes);
    add_number(t, "left_records", left_records);
    add_number(t, "left_bytes", left_bytes);
    json_object_set_new(t->out, "dry_run", json_boolean(t->dry_run));
    kv_cache_add_bytes(&size, bytes);
    kv_cache_say(t, "%s %llu records, %s\n", t->dry_run ? "would read" : "read", (unsigned long long)records,
                 kv_buf_str(&size));
    kv_buf_clear(&size);
    kv_cache_add_bytes(&size, left_bytes);
    if (left_records)
        kv_cache_say(t, "%llu records more, %s, do not fit into the memory that is free\n",
                     (unsigned long long)left_records, kv_buf_str(&size));
    kv_buf_free(&size);
}

int kv_cache_warm_files(kv_cache_tool *t, kv_error *err) {
    uint64_t room = kv_machine_memory_available(), total = 0, done = 0, left = 0;
    size_t n = 0, fits = 0, n_read = 0, n_failed = 0;
    kv_cache_bar bar;
    if (t->prefix && !kv_cache_the_one(t, err)) return KV_EXIT_FAILURE;
    for (size_t i = 0; i < t->n_rows; i++)
        if (is_chosen(t, &t->rows[i])) t->rows[n++] = t->rows[i];
    t->n_rows = n;
    if (n > 1) qsort(t->rows, n, sizeof *t->rows, by_last_use);
    while (fits < n && t->rows[fits].disk_bytes <= room - total) total += t->rows[fits++].disk_bytes;
    for (size_t i = fits; i < n; i++) left += t->rows[i].disk_bytes;
    if (t->dry_run) {
        tell(t, fits, total, n - fits, left);
        return KV_EXIT_OK;
    }
    void *piece = kv_alloc(PIECE);
    int code = 0;
    kv_cache_bar_init(&bar, "reading");
    for (size_t i = 0; i < fits; i++) {
        int failed = read_through(&done, t, &t->rows[i].head, piece);
        n_read += failed == 0;
        if (failed && failed != -ENOENT) code = failed, n_failed++; /* evicted meanwhile: no matter */
        kv_cache_bar_draw(&bar, done < total ? done : total, total);
    }
    kv_cache_bar_end(&bar);
    free(piece);
    tell(t, n_read, done, n - fits, left);
    if (!n_failed) return KV_EXIT_OK;
    (void)kv_fail(err, KV_IO, "%zu records cannot be read: %s (`kvasir cache verify` sets damaged ones aside)",
                  n_failed, strerror(-code));
    return KV_EXIT_FAILURE;
}
