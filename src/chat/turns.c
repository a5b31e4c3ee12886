#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "chat/turns.h"

#include <stdlib.h>
#include <string.h>

/* Texts that no template contains. */
#define ONE   "kvqone"
#define TWO   "kvqtwo"
#define THREE "kvqthree"

/* The first `<|…|>`, `<…>` or `[…]` of an opener; where there is none, all of it. Owned by the caller. */
static char *first_tag(const char *opener) {
    size_t start = strcspn(opener, "<[");
    const char *end = opener[start] ? strpbrk(opener + start, opener[start] == '<' ? ">" : "]") : NULL;
    return end ? kv_strndup(opener + start, (size_t)(end - opener) + 1 - start) : kv_strdup(opener);
}

static const char *find(const char *text, size_t n, const char *what) {
    return memmem(text, n, what, strlen(what));
}

static const char *find_last(const char *text, size_t n, const char *what) {
    const char *found = NULL, *at = text;
    while ((at = find(at, n - (size_t)(at - text), what))) found = at++;
    return found;
}

/* How many bytes two texts share at their ends. */
static size_t common_end(const char *a, size_t na, const char *b, size_t nb) {
    size_t n = 0;
    while (n < na && n < nb && a[na - 1 - n] == b[nb - 1 - n]) n++;
    return n;
}

/* What remains of the last n bytes from the first tag on, which may have a tag's rest before it ("s>[INST]"), or without
 * the blanks at its start. */
static size_t from_tag(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && s[i] != '<' && s[i] != '[') i++;
    return i < n ? n - i : n - (n ? strspn(s, " \t\r\n") : 0);
}

/* From the rendered text of ONE, TWO (the assistant's), THREE: what is between the end of TWO and THREE is the end of an
 * assistant's turn and the beginning of a user's; before ONE stands the beginning of a user's again. */
static void learn(kv_turns *out, const char *text, size_t n, const char *generation) {
    const char *one = find(text, n, ONE), *two = find(text, n, TWO), *three = find(text, n, THREE);
    if (!one || !two || !three || one > two || two > three) return;
    const char *gap = two + strlen(TWO);
    size_t n_gap = (size_t)(three - gap), shared = common_end(text, (size_t)(one - text), gap, n_gap);
    char *tag = generation[0] ? first_tag(generation) : NULL;
    const char *opener = tag && *tag ? find_last(gap, n_gap, tag) : NULL;
    if (opener) { /* user and assistant begin alike */
        out->user = kv_strndup(opener, (size_t)(three - opener));
        out->any = tag;
        return;
    }
    free(tag);
    size_t kept = from_tag(three - shared, shared);
    if (kept == 0) return;
    out->user = kv_strndup(three - kept, kept);
    out->any = kv_strdup(out->user);
}

void kv_turns_learn(kv_turns *out, const kv_model *model) {
    *out = (kv_turns){0};
    const kv_chat_params p = {
        .messages_json = "[{\"role\":\"user\",\"content\":\"" ONE "\"},{\"role\":\"assistant\",\"content\":\"" TWO
                         "\"},{\"role\":\"user\",\"content\":\"" THREE "\"}]",
        .reasoning_format = "none",
        .enable_thinking = -1,
        .add_generation_prompt = true,
    };
    kv_chat_prompt *prompt = NULL;
    if (kv_chat_render(&prompt, model, &p, NULL) != KV_OK) return;
    size_t n;
    const char *text = kv_chat_prompt_text(prompt, &n);
    learn(out, text, n, kv_chat_prompt_generation(prompt));
    kv_chat_prompt_free(prompt);
}

void kv_turns_free(kv_turns *t) {
    free(t->user);
    free(t->any);
    *t = (kv_turns){0};
}

kv_turn_places kv_turns_find(const kv_turns *t, const char *text, size_t n, const char *generation) {
    kv_turn_places places = {0};
    if (!t->user || !*t->user) return places;
    size_t n_generation = strlen(generation);
    if (n_generation <= n && memcmp(text + n - n_generation, generation, n_generation) == 0) n -= n_generation;
    const char *first = find(text, n, t->user), *last = find_last(text, n, t->any);
    if (first) places.first = (size_t)(first - text);
    if (last) places.last = (size_t)(last - text);
    return places;
}
