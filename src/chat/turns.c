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

/* Where turns share no beginning: what the assistant's has, or, where it has nothing of its own, the end of the user's. */
static char *learn_assistant(const char *one, const char *two, const char *generation, const char *user) {
    const char *gap = one + strlen(ONE);
    size_t n_gap = (size_t)(two - gap);
    char *tag = generation[0] ? first_tag(generation) : NULL;
    if (!tag || !*tag || !find(gap, n_gap, tag)) {
        free(tag);
        size_t kept = from_tag(gap, n_gap);
        char *opener = kv_strndup(two - kept, kept);
        tag = first_tag(opener);
        free(opener);
    }
    if (*tag && strcmp(tag, user) != 0) return tag;
    free(tag);
    return NULL;
}

/* Where the engine knows of no generation prompt, what the text ends with all the same for an answer to come. */
static char *learn_open(const char *tail, const char *end, const kv_turns *t) {
    size_t n = (size_t)(end - tail);
    const char *at = find_last(tail, n, t->any), *other = t->assistant ? find_last(tail, n, t->assistant) : NULL;
    if (!at || (other && other > at)) at = other;
    return at ? kv_strndup(at, (size_t)(end - at)) : NULL;
}

/* From the rendered text of ONE, TWO (the assistant's), THREE: what is between the end of TWO and THREE is the end of an
 * assistant's turn and the beginning of a user's; before ONE stands the beginning of a user's again. */
static void learn(kv_turns *out, const char *text, size_t n, const char *generation) {
    const char *one = find(text, n, ONE), *two = find(text, n, TWO), *three = find(text, n, THREE);
    if (!one || !two || !three || one > two || two > three) return;
    out->between = kv_strndup(one + strlen(ONE), (size_t)(two - one) - strlen(ONE));
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
    out->assistant = learn_assistant(one, two, generation, out->user);
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
    const char *text = kv_chat_prompt_text(prompt, &n), *generation = kv_chat_prompt_generation(prompt);
    learn(out, text, n, generation);
    const char *three = find(text, n, THREE);
    if (out->any && !generation[0]) out->open = learn_open(three + strlen(THREE), text + n, out);
    kv_chat_prompt_free(prompt);
}

void kv_turns_free(kv_turns *t) {
    free(t->user);
    free(t->any);
    free(t->assistant);
    free(t->open);
    free(t->between);
    *t = (kv_turns){0};
}

/* The next opener at `at` or behind it; NULL: none. */
static const char *next_opener(const char *at, const char *end, const char *what) {
    return at && what ? find(at, (size_t)(end - at), what) : NULL;
}

static void add_start(kv_turn_places *p, size_t *cap, size_t start) {
    if (start == 0) return;
    if (p->n == *cap) {
        *cap = *cap ? *cap * 2 : 64;
        p->start = kv_realloc(p->start, *cap * sizeof *p->start);
    }
    p->start[p->n++] = start;
}

void kv_turns_find(kv_turn_places *out, const kv_turns *t, const char *text, size_t n, const char *generation) {
    *out = (kv_turn_places){0};
    if (!t->user || !*t->user) return;
    if (!generation[0] && t->open) generation = t->open;
    size_t n_generation = strlen(generation), cap = 0;
    if (n_generation && n_generation < n && memcmp(text + n - n_generation, generation, n_generation) == 0) {
        n -= n_generation;
        out->generation = n;
        size_t n_between = t->between ? strlen(t->between) : 0;
        out->generation_parts = n_between && common_end(t->between, n_between, generation, n_generation) < n_generation;
    }
    const char *end = text + n, *first = find(text, n, t->user);
    const char *one = next_opener(text, end, t->any), *other = next_opener(text, end, t->assistant);
    while (one || other) { /* each opener is looked for behind its last one: the text is read once for each */
        const char *at = !other || (one && one < other) ? one : other;
        add_start(out, &cap, (size_t)(at - text));
        if (at == one) one = next_opener(at + 1, end, t->any);
        if (at == other) other = next_opener(at + 1, end, t->assistant);
    }
    if (first) out->first = (size_t)(first - text);
    if (out->n) out->last = out->start[out->n - 1];
}

void kv_turn_places_free(kv_turn_places *p) {
    free(p->start);
    *p = (kv_turn_places){0};
}
