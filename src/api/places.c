#include "api/places.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the token that are the text's there; -1 when they are not. The first ones may be the vocabulary's own: BOS,
 * or a space before the first word. */
static long fits(const kv_buf *piece, const char *text, size_t n, bool first) {
    if (piece->len <= n && memcmp(kv_buf_str(piece), text, piece->len) == 0) return (long)piece->len;
    if (!first) return -1;
    if (piece->len && piece->data[0] == ' ' && piece->len - 1 <= n &&
        memcmp(piece->data + 1, text, piece->len - 1) == 0)
        return (long)piece->len - 1;
    return 0;
}

size_t kv_places_tokens(const kv_job *j, size_t n) {
    size_t n_text, at = 0, i = 0;
    const char *text = kv_chat_prompt_text(j->chat, &n_text);
    const kv_tokens *tokens = &j->prompts.list[0];
    kv_buf piece = {0};
    long got = 0;
    for (; i < tokens->len; i++, at += (size_t)got) {
        kv_buf_clear(&piece);
        kv_model_piece(&piece, j->app->model, tokens->data[i], true);
        got = fits(&piece, text + at, n_text - at, at == 0);
        if (got < 0 || at + (size_t)got > n) break;
    }
    kv_buf_free(&piece);
    if (got >= 0) return i;
    /* Tokens that do not spell their text: of a vocabulary that rewrites it first. */
    kv_prompts cut = {0};
    i = 0;
    if (kv_prompts_from_text(&cut, j->app->model, text, n, NULL) == KV_OK)
        i = kv_tokens_common(cut.list[0].data, cut.list[0].len, tokens->data, tokens->len);
    kv_prompts_free(&cut);
    return i;
}

void kv_places_add(kv_job *j, size_t position, int32_t keep_seconds) {
    if (position == 0 || position + 1 > j->prompts.list[0].len) return;
    int at = 0;
    while (at < j->n_hints && (size_t)j->hints[at].position < position) at++;
    if (at < j->n_hints && (size_t)j->hints[at].position == position) {
        if (j->hints[at].keep_seconds < keep_seconds) j->hints[at].keep_seconds = keep_seconds;
        return;
    }
    j->hints = kv_realloc(j->hints, (size_t)(j->n_hints + 1) * sizeof *j->hints);
    memmove(&j->hints[at + 1], &j->hints[at], (size_t)(j->n_hints - at) * sizeof *j->hints);
    j->hints[at] = (kv_hint){.position = (int32_t)position, .keep_seconds = keep_seconds};
    j->n_hints++;
}

void kv_places_add_turns(kv_job *j) {
    if (!j->params.cache_prompt || !j->app->cache || !kv_cache_keeps_places(j->app->cache)) return;
    if ((int64_t)j->prompts.list[0].len >= j->app->n_ctx_served) return; /* it will be refused */
    size_t n;
    const char *text = kv_chat_prompt_text(j->chat, &n);
    kv_turn_places at = kv_turns_find(&j->app->turns, text, n, kv_chat_prompt_generation(j->chat));
    if (at.first) kv_places_add(j, kv_places_tokens(j, at.first), 0);
    if (at.last > at.first) kv_places_add(j, kv_places_tokens(j, at.last), 0);
}
