/* mkmodel/out.h: a GGUF file being declared (keys, tensors) and then written.
 *
 * Owns the metadata and, of each tensor, only its shape and how to fill it: values are made while the file is written,
 * a few pages at a time, so a 1.3 GB file needs no more memory than a 2 MB one.
 *
 *   mk_out_new → mk_set_… , mk_tensor … → mk_out_write → mk_out_free
 *
 * Every value is a pure function of (seed, scope, tensor name, index): the same call gives the same bytes on every
 * machine and at any time, and a tensor added to a family leaves the others as they were.
 *
 * This is a command-line tool: what cannot be done ends the program with a sentence (mk_die).
 */
#ifndef MKMODEL_OUT_H
#define MKMODEL_OUT_H

#include "ggml.h"
#include "gguf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mk_out mk_out;

/* Values are uniform in [center - spread, center + spread). */
typedef struct mk_fill {
    float center, spread;
} mk_fill;

/* `arch` prefixes keys that begin with a dot (".block_count" → "llama.block_count"). `scope` keeps two models with
 * equal tensor names from having equal weights. `matrix_type`: F32 or Q8_0, for tensors declared by mk_matrix. */
mk_out *mk_out_new(const char *arch, const char *scope, uint64_t seed, enum ggml_type matrix_type);
void mk_out_free(mk_out *out);
struct gguf_context *mk_out_gguf(mk_out *out); /* borrowed, for keys that the setters below do not cover */

void mk_set_u32(mk_out *out, const char *key, uint32_t v);
void mk_set_f32(mk_out *out, const char *key, float v);
void mk_set_bool(mk_out *out, const char *key, bool v);
void mk_set_str(mk_out *out, const char *key, const char *v);
void mk_set_u32s(mk_out *out, const char *key, const uint32_t *v, size_t n);
void mk_set_u64s(mk_out *out, const char *key, const uint64_t *v, size_t n);

/* Sizes in ggml's order, fastest first; unused ones are 0. The name is blk.<layer>.<name>, or only <name> when the
 * layer is negative. */
typedef struct mk_dims {
    int64_t n[4];
} mk_dims;
#define MK_DIMS(...) ((mk_dims){{__VA_ARGS__}})

void mk_tensor(mk_out *out, enum ggml_type type, int layer, const char *name, mk_dims dims, mk_fill fill);
/* A weight matrix n_in → n_out (× n_expert, 0 = a plain matrix) whose outputs have `gain` times the root mean square
 * of its inputs. */
void mk_matrix(mk_out *out, int layer, const char *name, int64_t n_in, int64_t n_out, int64_t n_expert, float gain);
/* An F32 vector. */
void mk_vector(mk_out *out, int layer, const char *name, int64_t n, float center, float spread);

/* Write to a temporary file beside `path`, then rename it over. Returns its size in bytes. */
uint64_t mk_out_write(mk_out *out, const char *path);

_Noreturn void mk_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
