/* mkmodel/family.h: the shapes that can be made. One entry a file; the architecture's own rules live in its builder. */
#ifndef MKMODEL_FAMILY_H
#define MKMODEL_FAMILY_H

#include "out.h"

/* Sizes of one model. What an architecture does not have is 0. */
typedef struct mk_shape {
    const char *name; /* file name without .gguf */
    const char *arch; /* general.architecture */
    void (*build)(mk_out *out, const struct mk_shape *s, uint32_t n_vocab);
    uint32_t n_embd, n_layer, n_ff;
    uint32_t n_head, n_head_kv, head_dim;
    /* layers that attend, as a string: 'A' attention, 'R' recurrent, 'F' feed-forward only; NULL = all attend, or as
     * the architecture's own interval says */
    const char *layers;
    uint32_t attention_interval; /* every k-th layer attends (DeltaNet families) */
    uint32_t n_window;           /* tokens */
    uint32_t n_expert;           /* all are used: see the note on routing in family.c */
    struct {
        uint32_t conv, inner, state, heads, groups;
    } ssm;
    float embd_rms; /* root mean square of an embedding's values */
} mk_shape;

extern const mk_shape mk_tiny[];     /* for tests: byte tokenizer, F32; ends with a NULL name */
extern const mk_shape mk_real[];     /* of a real model's shape: a donor's tokenizer, Q8_0; ends with a NULL name */
extern const mk_shape mk_rerank;     /* a tiny model that scores documents */
extern const mk_shape mk_encoders[]; /* tiny, without memory: "embeds", "ranks"; ends with a NULL name */
const mk_shape *mk_shape_find(const mk_shape *list, const char *name); /* NULL when there is none */

/* A LoRA adapter for the tiny llama: rank 4 on every attention matrix. */
void mk_build_lora(mk_out *out, const mk_shape *llama);

#endif
