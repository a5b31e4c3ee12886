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

/* Tokens that do not spell their text: of a vocabulary that rewrites it first. What lies between two places is tokenised
 * by itself, as far as that gives the prompt's tokens. */
static void tokenize_between(size_t *tokens, const kv_job *j, const char *text, const size_t *bytes, size_t n) {
    const kv_tokens *all = &j->prompts.list[0];
    kv_tokens cut = {0};
    size_t from = 0, reach = 0;
    bool ok = true;
    for (size_t i = 0; i < n; from = bytes[i], i++) {
        ok = ok && kv_model_tokenize(&cut, j->app->model, text + from, bytes[i] - from, from == 0, true, NULL) == KV_OK;
        if (ok) reach = kv_tokens_common(cut.data, cut.len, all->data, all->len);
        ok = ok && reach == cut.len;
        tokens[i] = reach;
    }
    kv_tokens_free(&cut);
}

/* Short pieces that were asked for lately: a text has few different tokens, and asking takes longer than comparing. */
enum { MEMO = 4096, MEMO_BYTES = 24 };
typedef struct memo {
    kv_token token;
    uint8_t len; /* 0 = nothing */
    char bytes[MEMO_BYTES];
} memo;

static void look_up_piece(kv_buf *piece, memo *memos, const kv_model *model, kv_token token) {
    memo *m = &memos[(uint32_t)token % MEMO];
    kv_buf_clear(piece);
    if (m->len && m->token == token) {
        kv_buf_add(piece, m->bytes, m->len);
        return;
    }
    kv_model_piece(piece, model, token, true);
    if (piece->len == 0 || piece->len > MEMO_BYTES) return;
    m->token = token;
    m->len = (uint8_t)piece->len;
    memcpy(m->bytes, piece->data, piece->len);
}

void kv_places_tokens_all(size_t *tokens, const kv_job *j, const size_t *bytes, size_t n) {
    size_t n_text, at = 0, i = 0, done = 0;
    const char *text = kv_chat_prompt_text(j->chat, &n_text);
    const kv_tokens *all = &j->prompts.list[0];
    memo *memos = kv_alloc(MEMO * sizeof *memos);
    kv_buf piece = {0};
    long got = 0;
    for (; i < all->len && done < n; i++, at += (size_t)got) {
        look_up_piece(&piece, memos, j->app->model, all->data[i]);
        got = fits(&piece, text + at, n_text - at, at == 0);
        if (got < 0) break;
        while (done < n && at + (size_t)got > bytes[done]) tokens[done++] = i;
    }
    free(memos);
    kv_buf_free(&piece);
    if (got < 0) tokenize_between(tokens, j, text, bytes, n);
    else
        while (done < n) tokens[done++] = i;
}

size_t kv_places_tokens(const kv_job *j, size_t n) {
    size_t tokens;
    kv_places_tokens_all(&tokens, j, &n, 1);
    return tokens;
}

void kv_places_add(kv_job *j, size_t position, kv_place_kind kind, int32_t keep_seconds) {
    if (position == 0 || position + 1 > j->prompts.list[0].len) return;
    const kv_hint hint = {.position = (int32_t)position, .keep_seconds = keep_seconds, .kind = kind};
    int at = j->n_hints; /* most come in order */
    while (at > 0 && (size_t)j->hints[at - 1].position >= position) at--;
    if (at < j->n_hints && (size_t)j->hints[at].position == position) {
        kv_hint_join(&j->hints[at], &hint);
        return;
    }
    if ((j->n_hints & (j->n_hints - 1)) == 0)
        j->hints = kv_realloc(j->hints, (size_t)(j->n_hints ? j->n_hints * 2 : 1) * sizeof *j->hints);
    memmove(&j->hints[at + 1], &j->hints[at], (size_t)(j->n_hints - at) * sizeof *j->hints);
    j->hints[at] = hint;
    j->n_hints++;
}

/* A chat's places in bytes, ascending: its turns, not more than KV_PLACES_MAX of them, and the generation prompt. */
static size_t choose_turns(size_t *bytes, kv_place_kind *kinds, const kv_turn_places *at) {
    size_t every = at->n / KV_PLACES_MAX + 1, n = 0;
    for (size_t i = 0; i < at->n; i++) {
        bool first = at->start[i] == at->first, last = i == at->n - 1;
        if (!first && !last && i % every) continue;
        bytes[n] = at->start[i];
        kinds[n++] = first ? KV_PLACE_SYSTEM_END : last ? KV_PLACE_LAST_MESSAGE : KV_PLACE_MESSAGE;
    }
    if (!at->generation) return n;
    bytes[n] = at->generation;
    kinds[n++] = at->generation_parts ? KV_PLACE_LAST_MESSAGE : KV_PLACE_GENERATION; /* the next turn goes on there */
    return n;
}

void kv_places_add_turns(kv_job *j) {
    if (!j->params.cache_prompt || !j->app->cache || !kv_cache_keeps_places(j->app->cache)) return;
    if ((int64_t)j->prompts.list[0].len >= j->app->n_ctx_served) return; /* it will be refused */
    size_t n;
    const char *text = kv_chat_prompt_text(j->chat, &n);
    kv_turn_places at;
    kv_turns_find(&at, &j->app->turns, text, n, kv_chat_prompt_generation(j->chat));
    size_t room = (at.n < 2 * KV_PLACES_MAX ? at.n : 2 * KV_PLACES_MAX) + 3;
    size_t *bytes = kv_alloc(2 * room * sizeof *bytes), *tokens = bytes + room;
    kv_place_kind *kinds = kv_alloc(room * sizeof *kinds);
    size_t n_places = choose_turns(bytes, kinds, &at);
    kv_places_tokens_all(tokens, j, bytes, n_places);
    for (size_t i = 0; i < n_places; i++) kv_places_add(j, tokens[i], kinds[i], 0);
    free(kinds);
    free(bytes);
    kv_turn_places_free(&at);
}
