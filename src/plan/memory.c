#include "plan/memory.h"

#include <string.h>

#define CELLS_STEP 256 /* libllama rounds a context up to it */
#define CELLS_MIN  512

/* ── arithmetic that cannot wrap: huge is huge ─────────────────────────────────────────────────────────────────── */

static uint64_t mul(uint64_t a, uint64_t b) {
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
static uint64_t sub(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static int32_t round_up(int64_t n) {
    int64_t r = (n + CELLS_STEP - 1) / CELLS_STEP * CELLS_STEP;
    int64_t top = INT32_MAX / CELLS_STEP * CELLS_STEP;
    return (int32_t)(r < top ? r : top);
}

int32_t kv_plan_window_cells(int32_t n_window, int32_t n_seq_max, int32_t n_batch) {
    return n_window > 0 ? round_up((int64_t)n_window * n_seq_max + n_batch) : 0;
}

/* ── what n_ctx cells cost ─────────────────────────────────────────────────────────────────────────────────────── */

static void fill(kv_plan *p, const kv_shape *s, int32_t n_ctx, int32_t n_batch) {
    int32_t n_seq_max = p->n_slots + 1;
    p->n_ctx = n_ctx;
    p->n_window_cells = s->bytes_per_window_cell ? kv_plan_window_cells(s->n_window, n_seq_max, n_batch) : 0;
    if (p->n_window_cells > n_ctx) p->n_window_cells = n_ctx;
    p->bytes_main = mul((uint64_t)n_ctx, s->bytes_per_cell);
    p->bytes_window = mul((uint64_t)p->n_window_cells, s->bytes_per_window_cell);
    p->bytes_recurrent = mul((uint64_t)n_seq_max, s->bytes_recurrent);
    p->bytes_context = add(p->bytes_main, add(p->bytes_window, p->bytes_recurrent));
    p->bytes_compute = add(s->bytes_compute, mul((uint64_t)n_ctx, s->bytes_compute_per_cell));
}

/* What grows with the context: its own bytes and the growing part of the compute buffers. */
static uint64_t growing_bytes(const kv_plan *p, const kv_shape *s) {
    return add(p->bytes_context, sub(p->bytes_compute, s->bytes_compute));
}

/* The largest multiple of `step` up to `most` whose growing bytes are at most `room`; 0 when not even `step` is. */
static int32_t largest(kv_plan scratch, const kv_shape *s, int32_t step, int32_t most, int32_t n_batch, uint64_t room) {
    int32_t low = 0, high = most / step; /* in steps; low fits, high + 1 does not */
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        fill(&scratch, s, middle * step, n_batch);
        if (growing_bytes(&scratch, s) <= room) low = middle;
        else high = middle - 1;
    }
    return low * step;
}

/* ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_bytes(kv_buf *out, uint64_t n) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1024 && u < 6) v /= 1024, u++;
    kv_buf_addf(out, u == 0 || v >= 100 ? "%.0f %s" : v >= 10 ? "%.1f %s" : "%.2f %s", v, unit[u]);
}

static void add_product(kv_buf *out, const char *before, uint64_t n, const char *what, uint64_t each, uint64_t total) {
    kv_buf_addf(out, "%s%llu %s × ", before, (unsigned long long)n, what);
    add_bytes(out, each);
    kv_buf_adds(out, " = ");
    add_bytes(out, total);
}

/* "131072 cells × 160 KiB = 20.0 GiB, 4608 window cells × …" */
static void add_context(kv_buf *out, const kv_plan *p, const kv_shape *s, const char *separator) {
    if (s->bytes_per_cell) add_product(out, "", (uint64_t)p->n_ctx, "cells", s->bytes_per_cell, p->bytes_main);
    if (p->n_window_cells)
        add_product(out, out->len ? separator : "", (uint64_t)p->n_window_cells, "window cells",
                    s->bytes_per_window_cell, p->bytes_window);
    if (s->bytes_recurrent)
        add_product(out, out->len ? separator : "", (uint64_t)p->n_slots + 1, "states", s->bytes_recurrent,
                    p->bytes_recurrent);
}

static kv_status refuse(const kv_plan *p, const kv_shape *s, int32_t asked, int32_t fits, kv_error *err) {
    kv_buf sum = {0}, total = {0}, memory = {0};
    add_context(&sum, p, s, " + ");
    kv_buf_adds(&sum, " + compute ");
    add_bytes(&sum, p->bytes_compute);
    if (!p->weights_paged) {
        kv_buf_adds(&sum, " + weights ");
        add_bytes(&sum, s->bytes_weights);
    }
    uint64_t all = add(p->bytes_context, p->bytes_compute);
    add_bytes(&total, p->weights_paged ? all : add(all, s->bytes_weights));
    add_bytes(&memory, p->weights_paged ? p->bytes_memory / 2 : p->bytes_memory);
    kv_status st;
    if (fits > 0)
        st = kv_fail_field(err, "--ctx-size",
                           "--ctx-size %d does not fit: %s make %s, and %s of memory %s; the largest "
                           "that fits is -c %d, less with fewer slots or a smaller -ctk",
                           asked, kv_buf_str(&sum), kv_buf_str(&total), kv_buf_str(&memory),
                           p->weights_paged ? "(half, as the weights do not fit either) are there" : "are there", fits);
    else
        st = kv_fail_field(err, "--ctx-size",
                           "--ctx-size %d does not fit: %s make %s, and %s of memory are there; no "
                           "context fits: use a smaller model, or free memory",
                           asked, kv_buf_str(&sum), kv_buf_str(&total), kv_buf_str(&memory));
    kv_buf_free(&sum);
    kv_buf_free(&total);
    kv_buf_free(&memory);
    return st;
}

/* ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The most cells that the automatic context takes, whatever the memory. */
static int32_t automatic_top(const kv_shape *s) {
    int32_t top = s->n_ctx_train > 0 ? s->n_ctx_train : 4096; /* llama-server's fallback for --fit too */
    if (s->longrope_limit && s->n_ctx_orig > 0 && s->n_ctx_orig < top) top = s->n_ctx_orig;
    return top < CELLS_MIN ? CELLS_MIN : top;
}

kv_status kv_plan_make(kv_plan *out, const kv_shape *shape, uint64_t bytes_memory, int32_t n_ctx_asked, int32_t n_slots,
                       bool slots_explicit, bool kv_unified, int32_t n_batch, kv_error *err) {
    *out = (kv_plan){.n_slots = n_slots, .bytes_memory = bytes_memory};
    if (n_slots < 1 || n_ctx_asked < 0) return kv_fail(err, KV_INVALID, "a plan needs at least one slot");
    bool divided = slots_explicit && !kv_unified && n_slots > 1;
    uint64_t fixed = add(shape->bytes_weights, shape->bytes_compute);
    out->weights_paged = fixed >= bytes_memory;
    uint64_t left = out->weights_paged ? sub(bytes_memory / 2, shape->bytes_compute) : bytes_memory - fixed;
    int32_t step = divided ? CELLS_STEP * n_slots : CELLS_STEP;
    int32_t n_ctx;
    if (n_ctx_asked > 0) {
        n_ctx = divided ? round_up(n_ctx_asked / n_slots > 0 ? n_ctx_asked / n_slots : 1) : round_up(n_ctx_asked);
        if (divided) n_ctx = n_ctx > INT32_MAX / n_slots ? INT32_MAX / step * step : n_ctx * n_slots;
        fill(out, shape, n_ctx, n_batch);
        if (growing_bytes(out, shape) > left) {
            int32_t fits = largest(*out, shape, step, n_ctx, n_batch, left);
            return refuse(out, shape, n_ctx_asked, fits, err);
        }
    } else {
        n_ctx = largest(*out, shape, step, automatic_top(shape), n_batch, left / 2);
        if (n_ctx < CELLS_MIN || n_ctx < step) n_ctx = step > CELLS_MIN ? step : CELLS_MIN;
        fill(out, shape, n_ctx, n_batch);
    }
    out->n_ctx_served = divided ? n_ctx / n_slots : n_ctx;
    if (shape->n_ctx_train > 0 && out->n_ctx_served > shape->n_ctx_train) {
        out->n_ctx_served = shape->n_ctx_train;
        out->capped = true;
    }
    out->bytes_left = sub(
        bytes_memory, add(add(out->weights_paged ? 0 : shape->bytes_weights, out->bytes_compute), out->bytes_context));
    return KV_OK;
}

void kv_plan_print(kv_buf *out, const kv_plan *plan, const kv_shape *shape) {
    kv_buf context = {0};
    add_context(&context, plan, shape, "\n            ");
    kv_buf_addf(out, "context     %d tokens in %d slots, each request up to %d%s\n", plan->n_ctx, plan->n_slots,
                plan->n_ctx_served, plan->capped ? " (the trained length)" : "");
    kv_buf_adds(out, "memory      ");
    add_bytes(out, plan->bytes_memory);
    kv_buf_adds(out, " at hand\nweights     ");
    add_bytes(out, shape->bytes_weights);
    if (plan->weights_paged) kv_buf_adds(out, " (more than the memory holds: read from the file again and again)");
    kv_buf_adds(out, "\ncompute     ");
    add_bytes(out, plan->bytes_compute);
    kv_buf_adds(out, " at most\ncache       ");
    kv_buf_adds(out, kv_buf_str(&context));
    kv_buf_adds(out, "\nleft        ");
    add_bytes(out, plan->bytes_left);
    kv_buf_adds(out, "\n");
    kv_buf_free(&context);
}
