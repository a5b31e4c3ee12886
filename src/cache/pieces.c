#include "cache/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct kv_pieces {
    int32_t n_vocab;
    kv_buf bytes;    /* of all tokens, one after the other */
    uint32_t *at;    /* owned, n_vocab + 1: where a token's bytes begin */
    bool *special;   /* owned, n_vocab */
    uint32_t *heads; /* owned, n_heads, a power of two: first token of a slot + 1; 0 = none */
    uint32_t *next;  /* owned, n_vocab: the next one in its slot + 1 */
    size_t n_heads;
    bool *lengths; /* owned, longest + 1: some token is so long */
    size_t longest;
};

static uint32_t *head_of(const kv_pieces *p, const char *bytes, size_t n) {
    return &p->heads[kv_hash_bytes64(bytes, n) & (p->n_heads - 1)];
}

static void read_vocabulary(kv_pieces *p, const kv_model *model) {
    for (kv_token t = 0; t < p->n_vocab; t++) {
        p->at[t] = (uint32_t)p->bytes.len;
        kv_model_piece(&p->bytes, model, t, true);
        size_t n = p->bytes.len - p->at[t];
        p->special[t] = n == 0 || kv_model_is_special(model, t);
        if (!p->special[t] && n > p->longest) p->longest = n;
    }
    p->at[p->n_vocab] = (uint32_t)p->bytes.len;
}

static void fill_table(kv_pieces *p) {
    for (kv_token t = p->n_vocab; t-- > 0;) { /* backwards, so that the lowest of equal ones comes first */
        if (p->special[t]) continue;
        size_t n;
        const char *bytes = kv_pieces_bytes(&n, p, t);
        uint32_t *head = head_of(p, bytes, n);
        p->next[t] = *head;
        *head = (uint32_t)t + 1;
        p->lengths[n] = true;
    }
}

kv_pieces *kv_pieces_new(const kv_model *model) {
    kv_pieces *p = kv_alloc(sizeof *p);
    p->n_vocab = kv_model_get_info(model)->n_vocab;
    size_t n = (size_t)p->n_vocab;
    p->at = kv_alloc((n + 1) * sizeof *p->at);
    p->special = kv_alloc(n * sizeof *p->special);
    p->next = kv_alloc(n * sizeof *p->next);
    for (p->n_heads = 16; p->n_heads < n; p->n_heads *= 2) continue;
    p->heads = kv_alloc(p->n_heads * sizeof *p->heads);
    read_vocabulary(p, model);
    p->lengths = kv_alloc((p->longest + 1) * sizeof *p->lengths);
    fill_table(p);
    return p;
}

void kv_pieces_free(kv_pieces *p) {
    if (!p) return;
    kv_buf_free(&p->bytes);
    free(p->at);
    free(p->special);
    free(p->heads);
    free(p->next);
    free(p->lengths);
    free(p);
}

bool kv_pieces_is_special(const kv_pieces *p, kv_token t) {
    return t < 0 || t >= p->n_vocab || p->special[t];
}

const char *kv_pieces_bytes(size_t *n, const kv_pieces *p, kv_token t) {
    *n = p->at[t + 1] - p->at[t];
    return kv_buf_str(&p->bytes) + p->at[t];
}

int kv_pieces_beginning(kv_token *out, int room, const kv_pieces *p, const char *text, size_t n) {
    int found = 0;
    for (size_t len = 1; len <= n && len <= p->longest; len++) {
        if (!p->lengths[len]) continue;
        for (uint32_t i = *head_of(p, text, len); i && found < room; i = p->next[i - 1]) {
            size_t has;
            const char *bytes = kv_pieces_bytes(&has, p, (kv_token)(i - 1));
            if (has == len && memcmp(bytes, text, len) == 0) out[found++] = (kv_token)(i - 1);
        }
    }
    return found;
}
