/* mkmodel/family.c: see family.h.
 *
 * The builders declare what libllama's loader asks for (its src/models/<arch>.cpp); names and shapes are its file
 * format. Scales are chosen so that the tests have something to see:
 *   - Attention is uneven (scores deviate by 1): even weights over hundreds of tokens would hide a wrong restore, much
 *     sharper ones amplify rounding. After 400 tokens the first one still moves the logits by 1e-2 or more, after 2,000
 *     by 2e-3, while another batch shape moves them by at most 3e-4 (flash attention off; on, up to 5e-3).
 *   - Recurrent decay is slow for the same reason: some heads still hold a tenth after a thousand tokens.
 *   - Embeddings are small beside what the layers add, so that logits are about the context, not the last token.
 *   - Every expert is used. With fewer, a router's near tie turns rounding noise into another expert, and two correct
 *     runs in different batch shapes could not be compared.
 */
#include "family.h"
#include "tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Long enough for agent-sized prompts at a token a byte, and for llama4 to cross its chunk edge at 8,192. */
#define TINY_CONTEXT 32768
#define REAL_CONTEXT 131072
/* An indexer's top_k beyond the context, so that it selects everything: a real one (2,048) picks another of two blocks
 * that score alike when the batch shape changes. */
#define INDEX_ALL (4 * TINY_CONTEXT)

/* Query and key gain: the deviation of a score is its square. */
#define QK_GAIN 1.0f
/* Deviation of a logit. Half a unit keeps what batch shapes move below 5e-4. */
#define LOGIT_GAIN  0.5f
#define NORM_SPREAD 0.2f

/* ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void matrix(mk_out *o, int il, const char *name, int64_t n_in, int64_t n_out) {
    mk_matrix(o, il, name, n_in, n_out, 0, 1.0f);
}

static void norm(mk_out *o, int il, const char *name, int64_t n) {
    mk_vector(o, il, name, n, 1.0f, NORM_SPREAD);
}

static bool attends(const mk_shape *s, uint32_t il) {
    if (s->layers) return s->layers[il] == 'A';
    return s->attention_interval == 0 || (il + 1) % s->attention_interval == 0;
}

static void common_keys(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    mk_set_u32(o, ".vocab_size", n_vocab);
    mk_set_u32(o, ".context_length", s->embd_rms > 0 ? TINY_CONTEXT : REAL_CONTEXT);
    mk_set_u32(o, ".embedding_length", s->n_embd);
    mk_set_u32(o, ".block_count", s->n_layer);
    mk_set_f32(o, ".attention.layer_norm_rms_epsilon", 1e-6f);
    if (s->n_head) mk_set_u32(o, ".attention.head_count", s->n_head);
    if (s->n_ff) mk_set_u32(o, ".feed_forward_length", s->n_ff);
    if (s->head_dim && s->n_head) {
        mk_set_u32(o, ".attention.key_length", s->head_dim);
        mk_set_u32(o, ".attention.value_length", s->head_dim);
    }
    if (s->n_window) mk_set_u32(o, ".attention.sliding_window", s->n_window);
}

/* head_count_kv: one number, or one a layer where some do not attend. */
static void kv_head_keys(mk_out *o, const mk_shape *s) {
    if (!s->layers) {
        mk_set_u32(o, ".attention.head_count_kv", s->n_head_kv);
        return;
    }
    uint32_t per_layer[64] = {0};
    for (uint32_t il = 0; il < s->n_layer; il++) per_layer[il] = attends(s, il) ? s->n_head_kv : 0;
    mk_set_u32s(o, ".attention.head_count_kv", per_layer, s->n_layer);
}

static void ssm_keys(mk_out *o, const mk_shape *s) {
    mk_set_u32(o, ".ssm.conv_kernel", s->ssm.conv);
    mk_set_u32(o, ".ssm.inner_size", s->ssm.inner);
    mk_set_u32(o, ".ssm.state_size", s->ssm.state);
    mk_set_u32(o, ".ssm.time_step_rank", s->ssm.heads);
    mk_set_u32(o, ".ssm.group_count", s->ssm.groups);
}

static void expert_keys(mk_out *o, const mk_shape *s) {
    mk_set_u32(o, ".expert_count", s->n_expert);
    mk_set_u32(o, ".expert_used_count", s->n_expert);
    mk_set_u32(o, ".expert_feed_forward_length", s->n_ff);
}

/* Embedding, output and final norm. Real shapes tie the output to the embedding, as their models do; tiny ones do
 * not, since tied random weights answer with the token just read. */
static void ends(mk_out *o, const mk_shape *s, uint32_t n_vocab, const char *final_norm) {
    if (s->embd_rms > 0) {
        /* a lookup: no sum over n_embd, so the gain undoes mk_matrix's scale */
        mk_matrix(o, -1, "token_embd.weight", s->n_embd, n_vocab, 0, s->embd_rms * sqrtf((float)s->n_embd));
        mk_matrix(o, -1, "output.weight", s->n_embd, n_vocab, 0, LOGIT_GAIN);
    } else {
        matrix(o, -1, "token_embd.weight", s->n_embd, n_vocab);
    }
    if (final_norm) norm(o, -1, final_norm, s->n_embd);
}

/* Separate q, k, v and output. q_parts 2: an output gate interleaved with the query (Qwen3-Next and on). */
static void attention(mk_out *o, const mk_shape *s, int il, int q_parts, bool qk_norm) {
    int64_t q = (int64_t)s->head_dim * s->n_head, kv = (int64_t)s->head_dim * s->n_head_kv;
    mk_matrix(o, il, "attn_q.weight", s->n_embd, q * q_parts, 0, QK_GAIN);
    mk_matrix(o, il, "attn_k.weight", s->n_embd, kv, 0, QK_GAIN);
    matrix(o, il, "attn_v.weight", s->n_embd, kv);
    matrix(o, il, "attn_output.weight", q, s->n_embd);
    if (qk_norm) {
        mk_vector(o, il, "attn_q_norm.weight", s->head_dim, QK_GAIN, NORM_SPREAD);
        mk_vector(o, il, "attn_k_norm.weight", s->head_dim, QK_GAIN, NORM_SPREAD);
    }
}

static void feed_forward(mk_out *o, const mk_shape *s, int il) {
    matrix(o, il, "ffn_gate.weight", s->n_embd, s->n_ff);
    matrix(o, il, "ffn_up.weight", s->n_embd, s->n_ff);
    matrix(o, il, "ffn_down.weight", s->n_ff, s->n_embd);
}

static void experts(mk_out *o, const mk_shape *s, int il, bool shared) {
    matrix(o, il, "ffn_gate_inp.weight", s->n_embd, s->n_expert);
    mk_matrix(o, il, "ffn_gate_exps.weight", s->n_embd, s->n_ff, s->n_expert, 1.0f);
    mk_matrix(o, il, "ffn_up_exps.weight", s->n_embd, s->n_ff, s->n_expert, 1.0f);
    mk_matrix(o, il, "ffn_down_exps.weight", s->n_ff, s->n_embd, s->n_expert, 1.0f);
    if (!shared) return;
    matrix(o, il, "ffn_gate_shexp.weight", s->n_embd, s->n_ff);
    matrix(o, il, "ffn_up_shexp.weight", s->n_embd, s->n_ff);
    matrix(o, il, "ffn_down_shexp.weight", s->n_ff, s->n_embd);
}

/* A Mamba-2 mixer. ssm_a is −exp(A_log) in a file, so negative, and multiplies a time step of about 0.7. */
static void mamba2_mixer(mk_out *o, const mk_shape *s, int il) {
    int64_t inner = s->ssm.inner, heads = s->ssm.heads, groups = s->ssm.groups;
    int64_t conv = inner + 2 * groups * s->ssm.state;
    matrix(o, il, "ssm_in.weight", s->n_embd, inner + conv + heads);
    mk_tensor(o, GGML_TYPE_F32, il, "ssm_conv1d.weight", MK_DIMS(s->ssm.conv, conv), (mk_fill){0.25f, 0.5f});
    mk_vector(o, il, "ssm_conv1d.bias", conv, 0, 0.1f);
    mk_vector(o, il, "ssm_dt.bias", heads, 0, 0.5f);
    mk_tensor(o, GGML_TYPE_F32, il, "ssm_a", MK_DIMS(1, heads), (mk_fill){-0.011f, 0.01f});
    mk_tensor(o, GGML_TYPE_F32, il, "ssm_d", MK_DIMS(1, heads), (mk_fill){0.5f, 0.2f});
    mk_tensor(o, GGML_TYPE_F32, il, "ssm_norm.weight", MK_DIMS(inner / groups, groups), (mk_fill){1.0f, NORM_SPREAD});
    matrix(o, il, "ssm_out.weight", inner, s->n_embd);
}

/* A gated DeltaNet mixer. `joined`: one matrix for beta and alpha (Qwen3-Next) instead of two. */
static void delta_net_mixer(mk_out *o, const mk_shape *s, int il, bool joined) {
    int64_t keys = (int64_t)s->ssm.state * s->ssm.groups, values = (int64_t)s->ssm.state * s->ssm.heads;
    matrix(o, il, "attn_qkv.weight", s->n_embd, 2 * keys + values);
    matrix(o, il, "attn_gate.weight", s->n_embd, values);
    mk_tensor(o, GGML_TYPE_F32, il, "ssm_conv1d.weight", MK_DIMS(s->ssm.conv, 2 * keys + values),
              (mk_fill){0.25f, 0.5f});
    mk_vector(o, il, "ssm_dt.bias", s->ssm.heads, 0, 0.5f);
    mk_vector(o, il, "ssm_a", s->ssm.heads, -0.006f, 0.005f);
    if (joined) {
        matrix(o, il, "ssm_ba.weight", s->n_embd, 2 * s->ssm.heads);
    } else {
        matrix(o, il, "ssm_beta.weight", s->n_embd, s->ssm.heads);
        matrix(o, il, "ssm_alpha.weight", s->n_embd, s->ssm.heads);
    }
    norm(o, il, "ssm_norm.weight", s->ssm.state);
    matrix(o, il, "ssm_out.weight", values, s->n_embd);
}

/* ── families ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void build_llama(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    mk_set_u32(o, ".rope.dimension_count", s->head_dim);
    if (s->embd_rms <= 0) mk_set_f32(o, ".rope.freq_base", 500000.0f);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        attention(o, s, il, 1, false);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        feed_forward(o, s, il);
    }
}

/* As Qwen3-Reranker is converted: a head of two outputs on the last token, whose softmax gives the score. */
static void build_rerank(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    const char *labels[] = {"yes", "no"};
    const uint32_t POOLING_RANK = 4; /* llama_pooling_type */
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    mk_set_u32(o, ".pooling_type", POOLING_RANK);
    gguf_set_arr_str(mk_out_gguf(o), "qwen3.classifier.output_labels", labels, 2);
    mk_set_str(o, "tokenizer.chat_template.rerank", "<|im_start|>{query}\n{document}<|im_end|>");
    ends(o, s, n_vocab, "output_norm.weight");
    matrix(o, -1, "cls.output.weight", s->n_embd, 2);
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        attention(o, s, il, 1, true);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        feed_forward(o, s, il);
    }
}

/* As BGE and its like are converted: no memory, attention both ways, a learnt vector for each of 512 positions. "ranks"
 * has the head of a cross-encoder, which scores. */
static void build_bert(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    enum { POSITIONS = 512, POOLING_CLS = 2, POOLING_RANK = 4 /* llama_pooling_type */ };
    const bool ranks = strcmp(s->name, "ranks") == 0;
    const float scale = sqrtf((float)s->n_embd); /* look-ups: no sum over n_embd */
    const char *const parts[] = {"attn_q", "attn_k", "attn_v", "attn_output"};
    char name[64];
    common_keys(o, s, n_vocab);
    mk_set_u32(o, ".context_length", POSITIONS);
    mk_set_f32(o, ".attention.layer_norm_epsilon", 1e-6f);
    mk_set_bool(o, ".attention.causal", false);
    mk_set_u32(o, ".pooling_type", ranks ? POOLING_RANK : POOLING_CLS);
    mk_matrix(o, -1, "token_embd.weight", s->n_embd, n_vocab, 0, s->embd_rms * scale);
    mk_matrix(o, -1, "token_types.weight", s->n_embd, 2, 0, s->embd_rms * scale);
    mk_matrix(o, -1, "position_embd.weight", s->n_embd, POSITIONS, 0, s->embd_rms * scale);
    norm(o, -1, "token_embd_norm.weight", s->n_embd);
    mk_vector(o, -1, "token_embd_norm.bias", s->n_embd, 0, 0.1f);
    for (int il = 0; il < (int)s->n_layer; il++) {
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            snprintf(name, sizeof name, "%s.weight", parts[i]);
            matrix(o, il, name, s->n_embd, s->n_embd);
            snprintf(name, sizeof name, "%s.bias", parts[i]);
            mk_vector(o, il, name, s->n_embd, 0, 0.1f);
        }
        norm(o, il, "attn_output_norm.weight", s->n_embd);
        mk_vector(o, il, "attn_output_norm.bias", s->n_embd, 0, 0.1f);
        matrix(o, il, "ffn_up.weight", s->n_embd, s->n_ff);
        mk_vector(o, il, "ffn_up.bias", s->n_ff, 0, 0.1f);
        matrix(o, il, "ffn_down.weight", s->n_ff, s->n_embd);
        mk_vector(o, il, "ffn_down.bias", s->n_embd, 0, 0.1f);
        norm(o, il, "layer_output_norm.weight", s->n_embd);
        mk_vector(o, il, "layer_output_norm.bias", s->n_embd, 0, 0.1f);
    }
    if (!ranks) return;
    matrix(o, -1, "cls.weight", s->n_embd, s->n_embd);
    mk_vector(o, -1, "cls.bias", s->n_embd, 0, 0.1f);
    matrix(o, -1, "cls.output.weight", s->n_embd, 1);
    mk_vector(o, -1, "cls.output.bias", 1, 0, 0.1f);
}

/* Five layers with a window, then a global one. The norms behind each half bring even a faint result to full strength,
 * rounding noise included, so they are scaled down. */
static void build_gemma3(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    const float POST = 0.2f;
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    mk_set_u32(o, ".attention.sliding_window_pattern", 6);
    mk_set_f32(o, ".rope.freq_base", 1e6f);
    mk_set_f32(o, ".rope.freq_base_swa", 1e4f);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        attention(o, s, il, 1, true);
        mk_vector(o, il, "post_attention_norm.weight", s->n_embd, POST, NORM_SPREAD);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        feed_forward(o, s, il);
        mk_vector(o, il, "post_ffw_norm.weight", s->n_embd, POST, NORM_SPREAD);
    }
}

/* Window layers and global ones in turn, attention sinks, biases on everything in the feed-forward. */
static void build_gpt_oss(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    expert_keys(o, s);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        attention(o, s, il, 1, false);
        mk_vector(o, il, "attn_output.bias", s->n_embd, 0, 0.1f);
        mk_vector(o, il, "attn_sinks.weight", s->n_head, 0, 1.0f);
        norm(o, il, "post_attention_norm.weight", s->n_embd);
        experts(o, s, il, false);
        mk_tensor(o, GGML_TYPE_F32, il, "ffn_gate_inp.bias", MK_DIMS(s->n_expert), (mk_fill){0, 0.1f});
        mk_tensor(o, GGML_TYPE_F32, il, "ffn_gate_exps.bias", MK_DIMS(s->n_ff, s->n_expert), (mk_fill){0, 0.1f});
        mk_tensor(o, GGML_TYPE_F32, il, "ffn_up_exps.bias", MK_DIMS(s->n_ff, s->n_expert), (mk_fill){0, 0.1f});
        mk_tensor(o, GGML_TYPE_F32, il, "ffn_down_exps.bias", MK_DIMS(s->n_embd, s->n_expert), (mk_fill){0, 0.1f});
    }
}

/* Three chunked layers, then a full one without RoPE. libllama sets the chunk to 8,192 whatever the file says (a
 * sliding_window of 0 turns chunks off, other values are ignored), so a test must go past 8,192 tokens to see an edge;
 * the key is left out. */
static void build_llama4(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    expert_keys(o, s);
    mk_set_u32(o, ".interleave_moe_layer_step", 2);
    mk_set_f32(o, ".rope.freq_base", 500000.0f);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        attention(o, s, il, 1, false);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        if ((il + 1) % 2 == 0) {
            experts(o, s, il, true);
        } else {
            feed_forward(o, s, il);
        }
    }
}

/* Multi-head latent attention: a cell holds one latent vector and one rotated key part, no values of its own. */
static void build_deepseek2(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    enum { LATENT = 96, ROPE = 32, NOPE = 32, VALUE = 32, Q_RANK = 64 };
    common_keys(o, s, n_vocab);
    expert_keys(o, s);
    mk_set_u32(o, ".attention.head_count_kv", 1); /* as seen by the cache */
    mk_set_u32(o, ".attention.key_length", LATENT + ROPE);
    mk_set_u32(o, ".attention.value_length", LATENT);
    mk_set_u32(o, ".attention.key_length_mla", NOPE + ROPE);
    mk_set_u32(o, ".attention.value_length_mla", VALUE);
    mk_set_u32(o, ".attention.q_lora_rank", Q_RANK);
    mk_set_u32(o, ".attention.kv_lora_rank", LATENT);
    mk_set_u32(o, ".rope.dimension_count", ROPE);
    mk_set_u32(o, ".leading_dense_block_count", 1);
    mk_set_u32(o, ".expert_shared_count", 1);
    mk_set_f32(o, ".expert_weights_scale", 1.0f);
    mk_set_bool(o, ".expert_weights_norm", true);
    mk_set_u32(o, ".expert_gating_func", 2); /* sigmoid */
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        matrix(o, il, "attn_q_a.weight", s->n_embd, Q_RANK);
        norm(o, il, "attn_q_a_norm.weight", Q_RANK);
        mk_matrix(o, il, "attn_q_b.weight", Q_RANK, (int64_t)s->n_head * (NOPE + ROPE), 0, QK_GAIN);
        mk_matrix(o, il, "attn_kv_a_mqa.weight", s->n_embd, LATENT + ROPE, 0, QK_GAIN);
        norm(o, il, "attn_kv_a_norm.weight", LATENT);
        mk_matrix(o, il, "attn_k_b.weight", NOPE, LATENT, s->n_head, QK_GAIN);
        mk_matrix(o, il, "attn_v_b.weight", LATENT, VALUE, s->n_head, 1.0f);
        matrix(o, il, "attn_output.weight", (int64_t)s->n_head * VALUE, s->n_embd);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        if (il == 0) {
            feed_forward(o, s, il);
        } else {
            experts(o, s, il, true);
        }
    }
}

static void build_mamba2(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    ssm_keys(o, s);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        mamba2_mixer(o, s, il);
    }
}

/* A layer is one of attention, Mamba-2 or feed-forward, told apart by zeros in two arrays. */
static void build_nemotron_h(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    uint32_t heads[64] = {0}, kv[64] = {0}, ff[64] = {0};
    for (uint32_t il = 0; il < s->n_layer; il++) {
        if (s->layers[il] == 'A') heads[il] = s->n_head, kv[il] = s->n_head_kv;
        if (s->layers[il] == 'F') ff[il] = s->n_ff;
    }
    common_keys(o, s, n_vocab);
    ssm_keys(o, s);
    mk_set_u32s(o, ".attention.head_count", heads, s->n_layer);
    mk_set_u32s(o, ".attention.head_count_kv", kv, s->n_layer);
    mk_set_u32s(o, ".feed_forward_length", ff, s->n_layer);
    mk_set_f32(o, ".attention.layer_norm_epsilon", 1e-6f);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        if (s->layers[il] == 'R') {
            mamba2_mixer(o, s, il);
        } else if (s->layers[il] == 'A') {
            attention(o, s, il, 1, false);
        } else {
            matrix(o, il, "ffn_up.weight", s->n_embd, s->n_ff);
            matrix(o, il, "ffn_down.weight", s->n_ff, s->n_embd);
        }
    }
}

/* The loader insists on an inner size of twice the embedding. */
static void build_granite_hybrid(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    ssm_keys(o, s);
    mk_set_f32(o, ".logit_scale", 1.0f);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        if (attends(s, (uint32_t)il)) {
            attention(o, s, il, 1, false);
        } else {
            mamba2_mixer(o, s, il);
        }
        norm(o, il, "ffn_norm.weight", s->n_embd);
        feed_forward(o, s, il);
    }
}

/* Every layer has attention and a Mamba-2 mixer side by side. */
static void build_falcon_h1(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    ssm_keys(o, s);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        attention(o, s, il, 1, false);
        mamba2_mixer(o, s, il);
        norm(o, il, "ffn_norm", s->n_embd); /* this one has no ".weight" in the format */
        feed_forward(o, s, il);
    }
}

/* Short convolutions (a state of two tokens) and attention. With a window, all its attention layers have it: then the
 * global pool is there, but without layers, and the tokens long past live on only by what nearer ones took up. */
static void build_lfm2(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    mk_set_u32(o, ".shortconv.l_cache", 3);
    mk_set_f32(o, ".rope.freq_base", 1e6f);
    ends(o, s, n_vocab, "token_embd_norm.weight"); /* the format's name for this family's final norm */
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        feed_forward(o, s, il);
        if (attends(s, (uint32_t)il)) {
            attention(o, s, il, 1, true);
        } else {
            mk_tensor(o, GGML_TYPE_F32, il, "shortconv.conv.weight", MK_DIMS(3, s->n_embd), (mk_fill){0.3f, 0.5f});
            matrix(o, il, "shortconv.in_proj.weight", s->n_embd, 3 * (int64_t)s->n_embd);
            matrix(o, il, "shortconv.out_proj.weight", s->n_embd, s->n_embd);
        }
    }
}

/* Keys shared by the DeltaNet families. RoPE turns a quarter of each head, in sections as M-RoPE wants them. */
static void delta_net_keys(mk_out *o, const mk_shape *s, bool sections) {
    uint32_t rope = s->head_dim / 4;
    ssm_keys(o, s);
    mk_set_u32(o, ".full_attention_interval", s->attention_interval);
    mk_set_u32(o, ".rope.dimension_count", rope);
    mk_set_f32(o, ".rope.freq_base", 1e7f);
    if (sections) {
        uint32_t third = (rope / 2 + 2) / 3;
        mk_set_u32s(o, ".rope.dimension_sections", (uint32_t[]){third, third, rope / 2 - 2 * third, 0}, 4);
    }
}

static void build_qwen35(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    delta_net_keys(o, s, true);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        norm(o, il, "post_attention_norm.weight", s->n_embd);
        feed_forward(o, s, il);
        if (attends(s, (uint32_t)il)) {
            attention(o, s, il, 2, true);
        } else {
            delta_net_mixer(o, s, il, false);
        }
    }
}

static void shared_expert_gate(mk_out *o, const mk_shape *s, int il) {
    mk_vector(o, il, "ffn_gate_inp_shexp.weight", s->n_embd, 0, 0.1f);
}

static void build_qwen3next(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    expert_keys(o, s);
    mk_set_u32(o, ".expert_shared_feed_forward_length", s->n_ff);
    delta_net_keys(o, s, false);
    ends(o, s, n_vocab, "output_norm.weight");
    for (int il = 0; il < (int)s->n_layer; il++) {
        norm(o, il, "attn_norm.weight", s->n_embd);
        norm(o, il, "post_attention_norm.weight", s->n_embd);
        experts(o, s, il, true);
        shared_expert_gate(o, s, il);
        if (attends(s, (uint32_t)il)) {
            attention(o, s, il, 2, true);
        } else {
            delta_net_mixer(o, s, il, true);
        }
    }
}

/* Several residual streams (hyper-connections) in place of layer norms, one mixer before each half of a layer. */
enum { STREAMS = 4, STREAM_RANK = 16 };

static void hyper_connection(mk_out *o, const mk_shape *s, int il, const char *part, bool inject) {
    char norm_name[64], down[64], up[64], inject_name[64];
    int64_t wide = (int64_t)STREAMS * s->n_embd;
    snprintf(norm_name, sizeof norm_name, "%s_norm.weight", part);
    snprintf(down, sizeof down, "%s_down.weight", part);
    snprintf(up, sizeof up, "%s_up.weight", part);
    snprintf(inject_name, sizeof inject_name, "%s_inject.weight", part);
    norm(o, il, norm_name, wide);
    matrix(o, il, down, wide, STREAM_RANK);
    matrix(o, il, up, STREAM_RANK, wide);
    if (inject) matrix(o, il, inject_name, wide, STREAMS);
}

/* Embeddings of the last N tokens' hash, in layer 0. The hash starts over at the end of a turn. */
enum { NGRAM = 3, NGRAM_HEADS = (NGRAM - 1) * 2 };

static void ngram_keys(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    uint64_t offsets[NGRAM_HEADS], sizes[NGRAM_HEADS];
    for (int h = 0; h < NGRAM_HEADS; h++) {
        offsets[h] = (uint64_t)h * n_vocab;
        sizes[h] = n_vocab;
    }
    mk_set_u32s(o, ".ple.layers", (uint32_t[]){0}, 1);
    mk_set_u32(o, ".ple.ngram_size", NGRAM);
    mk_set_u32(o, ".ple.heads_per_ngram", 2);
    mk_set_u32(o, ".ple.conv_kernel", 4);
    mk_set_u32(o, ".ple.eos_token_id", MK_TOKEN_END_OF_TURN);
    mk_set_u32(o, ".embedding_length_per_layer_input", s->n_embd / NGRAM_HEADS);
    mk_set_u64s(o, ".ple.layer_multipliers", (uint64_t[]){1, 3, 5}, NGRAM);
    mk_set_u64s(o, ".ple.head_offsets", offsets, NGRAM_HEADS);
    mk_set_u64s(o, ".ple.head_vocab_sizes", sizes, NGRAM_HEADS);
}

static void ngram_layer(mk_out *o, const mk_shape *s, int il) {
    int64_t wide = (int64_t)STREAMS * s->n_embd;
    matrix(o, il, "ple_key.weight", s->n_embd, wide);
    matrix(o, il, "ple_value.weight", s->n_embd, s->n_embd);
    norm(o, il, "ple_norm_key.weight", wide);
    norm(o, il, "ple_norm_query.weight", wide);
    norm(o, il, "ple_norm_conv.weight", wide);
    mk_tensor(o, GGML_TYPE_F32, il, "ple_conv1d.weight", MK_DIMS(4, wide), (mk_fill){0.25f, 0.3f});
}

/* DeltaNet layers, and attention that an indexer narrows to the best blocks of four tokens. The index is a third part
 * of a sequence's state, [attention][recurrent][index], and no part of a partial blob; each cell of it also keeps the
 * token that the n-gram hash needs. Copies of ranges came out bit-identical on this fixture all the same. */
static void build_qwen4exp(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    enum { INDEX_HEADS = 4, RATIO = 4 };
    uint32_t ratios[64];
    for (uint32_t il = 0; il < s->n_layer; il++) ratios[il] = RATIO;
    common_keys(o, s, n_vocab);
    kv_head_keys(o, s);
    expert_keys(o, s);
    mk_set_u32(o, ".expert_shared_feed_forward_length", s->n_ff);
    delta_net_keys(o, s, true);
    mk_set_u32(o, ".hyper_connection.count", STREAMS);
    mk_set_u32(o, ".hyper_connection.low_rank", STREAM_RANK);
    mk_set_u32(o, ".attention.indexer.head_count", INDEX_HEADS);
    mk_set_u32(o, ".attention.indexer.key_length", s->head_dim);
    mk_set_u32(o, ".attention.indexer.top_k", INDEX_ALL);
    mk_set_u32s(o, ".attention.compress_ratios", ratios, s->n_layer);
    ngram_keys(o, s, n_vocab);
    ends(o, s, n_vocab, NULL);
    hyper_connection(o, s, -1, "output_hc", false);
    mk_matrix(o, -1, "per_layer_token_embd.weight", s->n_embd / NGRAM_HEADS, (int64_t)NGRAM_HEADS * n_vocab, 0, 1.0f);
    for (int il = 0; il < (int)s->n_layer; il++) {
        hyper_connection(o, s, il, "hc_attn", true);
        hyper_connection(o, s, il, "hc_ffn", true);
        experts(o, s, il, true);
        shared_expert_gate(o, s, il);
        if (il == 0) ngram_layer(o, s, il);
        if (attends(s, (uint32_t)il)) {
            attention(o, s, il, 2, true);
            matrix(o, il, "indexer.q_proj.weight", s->n_embd, INDEX_HEADS * (int64_t)s->head_dim);
            matrix(o, il, "indexer.k_proj.weight", s->n_embd, s->head_dim);
            norm(o, il, "indexer.q_norm.weight", s->head_dim);
            norm(o, il, "indexer.k_norm.weight", s->head_dim);
        } else {
            delta_net_mixer(o, s, il, false);
        }
    }
}

/* Window attention over compressed memories of 4 and of 128 tokens each, with hyper-connections. Its memory aborts the
 * process on a seq_cp of a range, so it must never be asked: it is here for the check that decides so. */
enum { DS4_Q_RANK = 64, DS4_OUT_GROUPS = 4, DS4_OUT_RANK = 32, DS4_INDEX_HEADS = 4, DS4_INDEX_DIM = 64 };
static const uint32_t ds4_ratios[] = {0, 4, 128, 0}; /* tokens a memory, one entry a layer; 0 = window only */

static void deepseek4_keys(mk_out *o, const mk_shape *s) {
    kv_head_keys(o, s);
    expert_keys(o, s);
    mk_set_u32(o, ".rope.dimension_count", s->head_dim / 2);
    mk_set_u32(o, ".expert_shared_count", 1);
    mk_set_f32(o, ".expert_weights_scale", 1.0f);
    mk_set_bool(o, ".expert_weights_norm", true);
    mk_set_u32(o, ".expert_gating_func", 4); /* √softplus */
    mk_set_f32(o, ".swiglu_clamp_exp", 10.0f);
    mk_set_u32(o, ".attention.q_lora_rank", DS4_Q_RANK);
    mk_set_u32(o, ".attention.output_group_count", DS4_OUT_GROUPS);
    mk_set_u32(o, ".attention.output_lora_rank", DS4_OUT_RANK);
    mk_set_u32s(o, ".attention.compress_ratios", ds4_ratios, s->n_layer);
    mk_set_f32(o, ".attention.compress_rope_freq_base", 160000.0f);
    mk_set_u32(o, ".attention.indexer.head_count", DS4_INDEX_HEADS);
    mk_set_u32(o, ".attention.indexer.key_length", DS4_INDEX_DIM);
    mk_set_u32(o, ".attention.indexer.top_k", INDEX_ALL);
    mk_set_u32(o, ".hyper_connection.count", STREAMS);
    mk_set_u32(o, ".hyper_connection.sinkhorn_iterations", 2);
    mk_set_f32(o, ".hyper_connection.epsilon", 1e-6f);
    mk_set_u32(o, ".hash_layer_count", 0);
}

/* Queries and outputs through low ranks, one key that is also the value. */
static void deepseek4_attention(mk_out *o, const mk_shape *s, int il) {
    int64_t dim = s->head_dim, q = dim * s->n_head;
    norm(o, il, "attn_norm.weight", s->n_embd);
    mk_vector(o, il, "attn_sinks.weight", s->n_head, 0, 1.0f);
    matrix(o, il, "attn_q_a.weight", s->n_embd, DS4_Q_RANK);
    norm(o, il, "attn_q_a_norm.weight", DS4_Q_RANK);
    matrix(o, il, "attn_q_b.weight", DS4_Q_RANK, q);
    matrix(o, il, "attn_kv.weight", s->n_embd, dim);
    norm(o, il, "attn_kv_a_norm.weight", dim);
    matrix(o, il, "attn_output_a.weight", q / DS4_OUT_GROUPS, DS4_OUT_GROUPS * DS4_OUT_RANK);
    matrix(o, il, "attn_output_b.weight", DS4_OUT_GROUPS * DS4_OUT_RANK, s->n_embd);
}

/* `prefix` "attn" or "indexer": what makes one memory out of `ratio` tokens' vectors of `dim` values. */
static void deepseek4_compressor(mk_out *o, const mk_shape *s, int il, const char *prefix, int64_t dim, int64_t ratio) {
    int64_t parts = ratio == 4 ? 2 : 1; /* memories of four tokens overlap */
    char kv[64], gate[64], ape[64], norm_name[64];
    snprintf(kv, sizeof kv, "%s_compressor_kv.weight", prefix);
    snprintf(gate, sizeof gate, "%s_compressor_gate.weight", prefix);
    snprintf(ape, sizeof ape, "%s_compressor_ape.weight", prefix);
    snprintf(norm_name, sizeof norm_name, "%s_compressor_norm.weight", prefix);
    matrix(o, il, kv, s->n_embd, parts * dim);
    matrix(o, il, gate, s->n_embd, parts * dim);
    mk_tensor(o, GGML_TYPE_F32, il, ape, MK_DIMS(parts * dim, ratio), (mk_fill){0, 0.1f});
    norm(o, il, norm_name, dim);
}

static void build_deepseek4(mk_out *o, const mk_shape *s, uint32_t n_vocab) {
    enum { MIX = (2 + STREAMS) * STREAMS };
    const int64_t wide = (int64_t)STREAMS * s->n_embd;
    common_keys(o, s, n_vocab);
    deepseek4_keys(o, s);
    ends(o, s, n_vocab, "output_norm.weight");
    matrix(o, -1, "output_hc_fn.weight", wide, STREAMS);
    mk_vector(o, -1, "output_hc_base.weight", STREAMS, 0, 0.1f);
    mk_vector(o, -1, "output_hc_scale.weight", 1, 1.0f, 0.1f);
    for (int il = 0; il < (int)s->n_layer; il++) {
        deepseek4_attention(o, s, il);
        for (int half = 0; half < 2; half++) {
            matrix(o, il, half ? "hc_ffn_fn.weight" : "hc_attn_fn.weight", wide, MIX);
            mk_vector(o, il, half ? "hc_ffn_base.weight" : "hc_attn_base.weight", MIX, 0, 0.1f);
            mk_vector(o, il, half ? "hc_ffn_scale.weight" : "hc_attn_scale.weight", 3, 1.0f, 0.1f);
        }
        if (ds4_ratios[il]) deepseek4_compressor(o, s, il, "attn", s->head_dim, ds4_ratios[il]);
        if (ds4_ratios[il] == 4) {
            deepseek4_compressor(o, s, il, "indexer", DS4_INDEX_DIM, 4);
            matrix(o, il, "indexer.proj.weight", s->n_embd, DS4_INDEX_HEADS);
            matrix(o, il, "indexer.attn_q_b.weight", DS4_Q_RANK, DS4_INDEX_HEADS * DS4_INDEX_DIM);
        }
        mk_vector(o, il, "exp_probs_b.bias", s->n_expert, 0, 0.1f);
        norm(o, il, "ffn_norm.weight", s->n_embd);
        experts(o, s, il, true);
    }
}

/* ── adapter ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void mk_build_lora(mk_out *o, const mk_shape *s) {
    enum { RANK = 4 };
    const int64_t q = (int64_t)s->head_dim * s->n_head, kv = (int64_t)s->head_dim * s->n_head_kv;
    const struct {
        const char *name;
        int64_t n_in, n_out;
    } parts[] = {
        {"attn_q", s->n_embd, q}, {"attn_k", s->n_embd, kv}, {"attn_v", s->n_embd, kv}, {"attn_output", q, s->n_embd}};
    mk_set_str(o, "general.type", "adapter");
    mk_set_str(o, "general.name", "tiny-llama-lora");
    mk_set_str(o, "adapter.type", "lora");
    mk_set_f32(o, "adapter.lora.alpha", 2.0f * RANK); /* so that scale 1 multiplies by 2 */
    for (int il = 0; il < (int)s->n_layer; il++) {
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char a[64], b[64];
            snprintf(a, sizeof a, "%s.weight.lora_a", parts[i].name);
            snprintf(b, sizeof b, "%s.weight.lora_b", parts[i].name);
            matrix(o, il, a, parts[i].n_in, RANK);
            mk_matrix(o, il, b, RANK, parts[i].n_out, 0, 0.25f);
        }
    }
}

/* ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* clang-format off */
/* Windows: 128 as in the real gpt-oss, 32 so that a short prompt wraps the ring many times, 48 because nothing says a
 * window is a power of two. */
const mk_shape mk_tiny[] = {
    {.name = "llama", .arch = "llama", .build = build_llama, .n_embd = 256, .n_layer = 2, .n_ff = 384, .n_head = 4,
     .n_head_kv = 2, .head_dim = 64, .embd_rms = 0.5f},
    {.name = "gemma3", .arch = "gemma3", .build = build_gemma3, .n_embd = 256, .n_layer = 6, .n_ff = 256, .n_head = 4,
     .n_head_kv = 1, .head_dim = 64, .n_window = 32, .embd_rms = 1.0f / 16}, /* it multiplies embeddings by √n_embd */
    {.name = "gpt-oss", .arch = "gpt-oss", .build = build_gpt_oss, .n_embd = 256, .n_layer = 4, .n_ff = 128,
     .n_head = 4, .n_head_kv = 1, .head_dim = 64, .n_window = 128, .n_expert = 2, .embd_rms = 0.5f},
    {.name = "llama4", .arch = "llama4", .build = build_llama4, .n_embd = 256, .n_layer = 4, .n_ff = 128, .n_head = 4,
     .n_head_kv = 1, .head_dim = 64, .n_expert = 2, .embd_rms = 0.5f},
    {.name = "deepseek2", .arch = "deepseek2", .build = build_deepseek2, .n_embd = 256, .n_layer = 3, .n_ff = 128,
     .n_head = 4, .n_expert = 2, .embd_rms = 0.5f},
    {.name = "qwen35", .arch = "qwen35", .build = build_qwen35, .n_embd = 256, .n_layer = 4, .n_ff = 256, .n_head = 4,
     .n_head_kv = 1, .head_dim = 64, .attention_interval = 2, .ssm = {4, 128, 64, 2, 2}, .embd_rms = 0.5f},
    {.name = "qwen3next", .arch = "qwen3next", .build = build_qwen3next, .n_embd = 256, .n_layer = 4, .n_ff = 64,
     .n_head = 4, .n_head_kv = 1, .head_dim = 64, .attention_interval = 2, .n_expert = 2, .ssm = {4, 256, 64, 4, 2},
     .embd_rms = 0.5f},
    {.name = "qwen4exp", .arch = "qwen4exp", .build = build_qwen4exp, .n_embd = 128, .n_layer = 4, .n_ff = 64,
     .n_head = 4, .n_head_kv = 1, .head_dim = 64, .attention_interval = 2, .n_expert = 2, .ssm = {4, 128, 64, 2, 2},
     .embd_rms = 0.5f},
    {.name = "deepseek4", .arch = "deepseek4", .build = build_deepseek4, .n_embd = 128, .n_layer = 4, .n_ff = 64,
     .n_head = 4, .n_head_kv = 1, .head_dim = 64, .n_window = 32, .n_expert = 2, .embd_rms = 0.5f},
    {.name = "nemotron_h", .arch = "nemotron_h", .build = build_nemotron_h, .n_embd = 256, .n_layer = 4, .n_ff = 384,
     .n_head = 4, .n_head_kv = 2, .head_dim = 64, .layers = "ARFR", .ssm = {4, 256, 32, 8, 2}, .embd_rms = 0.5f},
    {.name = "granitehybrid", .arch = "granitehybrid", .build = build_granite_hybrid, .n_embd = 128, .n_layer = 3,
     .n_ff = 256, .n_head = 4, .n_head_kv = 2, .head_dim = 32, .layers = "RAR", .ssm = {4, 256, 32, 8, 2},
     .embd_rms = 0.5f},
    {.name = "falcon-h1", .arch = "falcon-h1", .build = build_falcon_h1, .n_embd = 256, .n_layer = 2, .n_ff = 256,
     .n_head = 4, .n_head_kv = 2, .head_dim = 64, .ssm = {4, 256, 32, 8, 2}, .embd_rms = 0.5f},
    {.name = "lfm2", .arch = "lfm2", .build = build_lfm2, .n_embd = 256, .n_layer = 4, .n_ff = 256, .n_head = 4,
     .n_head_kv = 2, .head_dim = 64, .layers = "RARA", .embd_rms = 0.5f},
    {.name = "lfm2-window", .arch = "lfm2", .build = build_lfm2, .n_embd = 256, .n_layer = 6, .n_ff = 256,
     .n_head = 4, .n_head_kv = 2, .head_dim = 64, .layers = "RARARA", .n_window = 48, .embd_rms = 0.5f},
    {.name = "mamba2", .arch = "mamba2", .build = build_mamba2, .n_embd = 256, .n_layer = 3,
     .ssm = {4, 512, 32, 8, 2}, .embd_rms = 0.5f},
    {0},
};

const mk_shape mk_rerank = {.name = "rerank", .arch = "qwen3", .build = build_rerank, .n_embd = 256, .n_layer = 2,
                            .n_ff = 384, .n_head = 4, .n_head_kv = 2, .head_dim = 64, .embd_rms = 0.5f};

const mk_shape mk_encoders[] = {
    {.name = "embeds", .arch = "bert", .build = build_bert, .n_embd = 64, .n_layer = 2, .n_ff = 128, .n_head = 2,
     .embd_rms = 0.5f},
    {.name = "ranks", .arch = "bert", .build = build_bert, .n_embd = 64, .n_layer = 2, .n_ff = 128, .n_head = 2,
     .embd_rms = 0.5f},
    {0},
};

/* As the models of these names: Liquid LFM2-350M, Qwen3.5-0.8B, Llama-3.2-1B. The tiny two are nobody's: small
 * enough for a unit test, which is how the way through a donor is tested, and for long conversations. */
const mk_shape mk_real[] = {
    {.name = "lfm2-350m", .arch = "lfm2", .build = build_lfm2, .n_embd = 1024, .n_layer = 16, .n_ff = 4608,
     .n_head = 16, .n_head_kv = 8, .head_dim = 64, .layers = "RRARRARRARARARAR"},
    {.name = "qwen35-0.8b", .arch = "qwen35", .build = build_qwen35, .n_embd = 1024, .n_layer = 24, .n_ff = 3584,
     .n_head = 8, .n_head_kv = 2, .head_dim = 256, .attention_interval = 4, .ssm = {4, 2048, 128, 16, 16}},
    {.name = "llama-1b", .arch = "llama", .build = build_llama, .n_embd = 2048, .n_layer = 16, .n_ff = 8192,
     .n_head = 32, .n_head_kv = 8, .head_dim = 64},
    {.name = "qwen35-tiny", .arch = "qwen35", .build = build_qwen35, .n_embd = 128, .n_layer = 4, .n_ff = 256,
     .n_head = 2, .n_head_kv = 1, .head_dim = 128, .attention_interval = 4, .ssm = {4, 256, 128, 2, 2}},
    {.name = "lfm2-tiny", .arch = "lfm2", .build = build_lfm2, .n_embd = 128, .n_layer = 4, .n_ff = 256, .n_head = 2,
     .n_head_kv = 1, .head_dim = 64, .layers = "RARA"},
    {0},
};
/* clang-format on */

const mk_shape *mk_shape_find(const mk_shape *list, const char *name) {
    for (const mk_shape *s = list; s->name; s++) {
        if (strcmp(s->name, name) == 0) return s;
    }
    return NULL;
}
