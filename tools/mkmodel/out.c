/* mkmodel/out.c: see out.h. */
#include "out.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define MAX_TENSORS 2048 /* the largest shape has 320; a fixed table needs no growth */

/* Values made at once: whole Q8_0 blocks and whole 64-bit draws, and small enough to stay in the first cache level. */
#define PIECE 4096

/* Root mean square of the uniform integers -127 … 127 that fill a Q8_0 block. */
#define Q8_RMS 73.32f

typedef struct q8_block {
    ggml_fp16_t scale;
    int8_t v[32];
} q8_block;
_Static_assert(sizeof(q8_block) == 34, "a Q8_0 block is 34 bytes in the file");

struct mk_out {
    const char *arch;
    uint64_t seed;
    enum ggml_type matrix_type;
    struct gguf_context *gguf;
    struct ggml_context *ggml; /* descriptors only */
    int n_tensors;
    struct ggml_tensor *tensors[MAX_TENSORS];
    mk_fill fills[MAX_TENSORS];
};

void mk_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("mkmodel: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

mk_out *mk_out_new(const char *arch, const char *scope, uint64_t seed, enum ggml_type matrix_type) {
    mk_out *out = calloc(1, sizeof *out);
    if (!out) mk_die("out of memory");
    out->arch = arch;
    out->seed = XXH3_64bits_withSeed(scope, strlen(scope), seed);
    out->matrix_type = matrix_type;
    out->gguf = gguf_init_empty();
    out->ggml =
        ggml_init((struct ggml_init_params){.mem_size = MAX_TENSORS * ggml_tensor_overhead(), .no_alloc = true});
    if (!out->gguf || !out->ggml) mk_die("out of memory");
    mk_set_str(out, "general.architecture", arch);
    mk_set_u32(out, "general.quantization_version", 2);
    /* llama_ftype: 0 = all F32, 7 = mostly Q8_0 */
    mk_set_u32(out, "general.file_type", matrix_type == GGML_TYPE_Q8_0 ? 7 : 0);
    return out;
}

void mk_out_free(mk_out *out) {
    if (!out) return;
    gguf_free(out->gguf);
    ggml_free(out->ggml);
    free(out);
}

struct gguf_context *mk_out_gguf(mk_out *out) {
    return out->gguf;
}

/* ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static const char *full_key(char room[static 128], const mk_out *out, const char *key) {
    if (key[0] != '.') return key;
    snprintf(room, 128, "%s%s", out->arch, key);
    return room;
}

void mk_set_u32(mk_out *out, const char *key, uint32_t v) {
    char room[128];
    gguf_set_val_u32(out->gguf, full_key(room, out, key), v);
}

void mk_set_f32(mk_out *out, const char *key, float v) {
    char room[128];
    gguf_set_val_f32(out->gguf, full_key(room, out, key), v);
}

void mk_set_bool(mk_out *out, const char *key, bool v) {
    char room[128];
    gguf_set_val_bool(out->gguf, full_key(room, out, key), v);
}

void mk_set_str(mk_out *out, const char *key, const char *v) {
    char room[128];
    gguf_set_val_str(out->gguf, full_key(room, out, key), v);
}

void mk_set_u32s(mk_out *out, const char *key, const uint32_t *v, size_t n) {
    char room[128];
    gguf_set_arr_data(out->gguf, full_key(room, out, key), GGUF_TYPE_UINT32, v, n);
}

void mk_set_u64s(mk_out *out, const char *key, const uint64_t *v, size_t n) {
    char room[128];
    gguf_set_arr_data(out->gguf, full_key(room, out, key), GGUF_TYPE_UINT64, v, n);
}

/* ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void mk_tensor(mk_out *out, enum ggml_type type, int layer, const char *name, mk_dims dims, mk_fill fill) {
    if (out->n_tensors == MAX_TENSORS) mk_die("more than %d tensors", MAX_TENSORS);
    int n_dims = 4;
    while (n_dims > 1 && dims.n[n_dims - 1] == 0) n_dims--;
    if (dims.n[0] % ggml_blck_size(type) != 0) {
        mk_die("%s: rows of %lld values do not divide into %s blocks", name, (long long)dims.n[0],
               ggml_type_name(type));
    }
    struct ggml_tensor *t = ggml_new_tensor(out->ggml, type, n_dims, dims.n);
    if (layer < 0) {
        ggml_set_name(t, name);
    } else {
        char room[GGML_MAX_NAME];
        snprintf(room, sizeof room, "blk.%d.%s", layer, name);
        ggml_set_name(t, room);
    }
    gguf_add_tensor(out->gguf, t);
    out->tensors[out->n_tensors] = t;
    out->fills[out->n_tensors] = fill;
    out->n_tensors++;
}

void mk_matrix(mk_out *out, int layer, const char *name, int64_t n_in, int64_t n_out, int64_t n_expert, float gain) {
    /* a uniform value in [-s, s) has the root mean square s/√3 */
    float spread = gain * sqrtf(3.0f / (float)n_in);
    mk_tensor(out, out->matrix_type, layer, name, MK_DIMS(n_in, n_out, n_expert), (mk_fill){0, spread});
}

void mk_vector(mk_out *out, int layer, const char *name, int64_t n, float center, float spread) {
    mk_tensor(out, GGML_TYPE_F32, layer, name, MK_DIMS(n), (mk_fill){center, spread});
}

/* ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* 64 random bits: a hash of the index. XXH3's values are fixed by its specification. */
static uint64_t random_bits(uint64_t seed, uint64_t i) {
    return XXH3_64bits_withSeed(&i, sizeof i, seed);
}

/* The top 24 bits as an exact float in [-1, 1). */
static float unit(uint32_t bits) {
    return (float)((int32_t)(bits >> 8) - (1 << 23)) * 0x1p-23f;
}

static size_t make_f32(float *dst, uint64_t seed, uint64_t at, size_t n, mk_fill fill) {
    for (size_t i = 0; i < n; i += 2) {
        uint64_t bits = random_bits(seed, (at + i) / 2);
        dst[i] = fill.center + fill.spread * unit((uint32_t)bits);
        if (i + 1 < n) dst[i + 1] = fill.center + fill.spread * unit((uint32_t)(bits >> 32));
    }
    return n * sizeof *dst;
}

static size_t make_q8(q8_block *dst, uint64_t seed, uint64_t at, size_t n, mk_fill fill) {
    ggml_fp16_t scale = ggml_fp32_to_fp16(fill.spread / sqrtf(3.0f) / Q8_RMS);
    for (size_t b = 0; b < n / 32; b++) {
        dst[b].scale = scale;
        for (size_t i = 0; i < 32; i += 8) {
            uint64_t bits = random_bits(seed, (at + b * 32 + i) / 8);
            memcpy(dst[b].v + i, &bits, 8);
        }
        /* quantisers never write -128, and some kernels take the absolute value in 8 bits */
        for (size_t i = 0; i < 32; i++) {
            if (dst[b].v[i] == -128) dst[b].v[i] = 0;
        }
    }
    return n / 32 * sizeof *dst;
}

static void write_tensor(FILE *f, const mk_out *out, int i) {
    const struct ggml_tensor *t = out->tensors[i];
    uint64_t seed = XXH3_64bits_withSeed(t->name, strlen(t->name), out->seed);
    uint64_t n = (uint64_t)ggml_nelements(t);
    union {
        float f32[PIECE];
        q8_block q8[PIECE / 32];
    } piece;
    for (uint64_t at = 0; at < n; at += PIECE) {
        size_t now = n - at < PIECE ? (size_t)(n - at) : PIECE;
        size_t bytes = 0;
        if (t->type == GGML_TYPE_F32) {
            bytes = make_f32(piece.f32, seed, at, now, out->fills[i]);
        } else if (t->type == GGML_TYPE_Q8_0) {
            bytes = make_q8(piece.q8, seed, at, now, out->fills[i]);
        } else {
            mk_die("%s: no filling for type %s", t->name, ggml_type_name(t->type));
        }
        if (fwrite(&piece, 1, bytes, f) != bytes) return; /* ferror tells at the end */
    }
    static const char zeros[GGUF_DEFAULT_ALIGNMENT];
    size_t over = ggml_nbytes(t) % GGUF_DEFAULT_ALIGNMENT;
    if (over) fwrite(zeros, 1, GGUF_DEFAULT_ALIGNMENT - over, f);
}

uint64_t mk_out_write(mk_out *out, const char *path) {
    char temp[4096];
    if (snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temp)
        mk_die("%s: too long", path);
    FILE *f = fopen(temp, "wb");
    if (!f) mk_die("%s: %s", temp, strerror(errno));
    bool ok = gguf_write_to_file_ptr(out->gguf, f, true);
    for (int i = 0; ok && i < out->n_tensors; i++) {
        write_tensor(f, out, i);
        ok = !ferror(f);
    }
    long long size = ok ? (long long)ftello(f) : -1;
    if (fclose(f) != 0 || size < 0 || rename(temp, path) != 0) {
        int why = errno;
        unlink(temp);
        mk_die("%s: %s", path, strerror(why));
    }
    return (uint64_t)size;
}
