/* sched/text.c: see text.h. */
#include "sched/text.h"

#include "base/error.h"
#include "base/json.h"
#include <stdlib.h>
#include <string.h>

static void stop_init(kv_text_stop *s, const char *word) {
    s->word = kv_strdup(word);
    s->n = strlen(word);
    s->met = 0;
    s->back = kv_alloc((s->n + 1) * sizeof *s->back);
    for (size_t i = 1, k = 0; i < s->n; i++) {
        while (k && word[i] != word[k]) k = s->back[k];
        if (word[i] == word[k]) k++;
        s->back[i + 1] = k;
    }
}

/* One more byte of text. True when the word is complete with it. */
static bool stop_step(kv_text_stop *s, char byte) {
    while (s->met && s->word[s->met] != byte) s->met = s->back[s->met];
    if (s->word[s->met] == byte) s->met++;
    return s->met == s->n;
}

void kv_text_init(kv_text *t, const char *const *stops, int n_stops, int32_t n_indent) {
    memset(t, 0, sizeof *t);
    t->stops = kv_alloc((size_t)(n_stops > 0 ? n_stops : 0) * sizeof *t->stops);
    for (int i = 0; i < n_stops; i++)
        if (stops[i] && *stops[i]) stop_init(&t->stops[t->n_stops++], stops[i]);
    t->n_indent = n_indent > 0 ? n_indent : 0;
}

void kv_text_free(kv_text *t) {
    for (int i = 0; i < t->n_stops; i++) {
        free(t->stops[i].word);
        free(t->stops[i].back);
    }
    free(t->stops);
    kv_buf_free(&t->pending);
    memset(t, 0, sizeof *t);
}

/* The longest stop string that the byte completes, else NULL. Every automaton takes the step. */
static const kv_text_stop *stops_step(kv_text *t, char byte) {
    const kv_text_stop *met = NULL;
    for (int i = 0; i < t->n_stops; i++)
        if (stop_step(&t->stops[i], byte) && (!met || t->stops[i].n > met->n)) met = &t->stops[i];
    return met;
}

/* True when the byte shows that its line begins too far left. `pending` already ends with it. */
static bool indent_step(kv_text *t, char byte) {
    if (!t->n_indent) return false;
    if (t->in_indent) {
        if (byte == ' ' || byte == '\t') {
            t->indent++;
            return false;
        }
        if (t->indent < t->n_indent) return true;
        t->in_indent = false;
    }
    if (byte == '\n') {
        t->in_indent = true;
        t->indent = 0;
        t->line_start = t->pending.len;
    }
    return false;
}

/* Hand out the first `limit` bytes of `pending`, back to the last whole character. */
static void release(kv_buf *out, kv_text *t, size_t limit) {
    size_t n = kv_utf8_complete(kv_buf_str(&t->pending), limit);
    if (!n) return;
    kv_buf_add(out, t->pending.data, n);
    kv_buf_drop_front(&t->pending, n);
    t->line_start -= t->line_start < n ? t->line_start : n;
}

static size_t held_back(const kv_text *t) {
    size_t held = 0;
    for (int i = 0; i < t->n_stops; i++)
        if (t->stops[i].met > held) held = t->stops[i].met;
    if (t->in_indent && t->pending.len - t->line_start > held) held = t->pending.len - t->line_start;
    return held;
}

static void cut(kv_buf *out, kv_text *t, size_t keep, kv_text_end end) {
    release(out, t, keep);
    kv_buf_clear(&t->pending);
    t->end = end;
}

kv_text_end kv_text_feed(kv_buf *out, kv_text *t, const char *bytes, size_t n) {
    KV_CHECK(t->end == KV_TEXT_GOES_ON);
    t->new_line = false;
    for (size_t i = 0; i < n; i++) {
        kv_buf_add(&t->pending, &bytes[i], 1);
        if (bytes[i] == '\n') t->new_line = true;
        const kv_text_stop *met = stops_step(t, bytes[i]);
        if (met) {
            t->stop_word = met->word;
            /* A stop string may begin in an under-indented line's blanks, but never before `pending`: its start was
             * held back. */
            cut(out, t, t->pending.len - met->n, KV_TEXT_STOPPED);
            return t->end;
        }
        if (indent_step(t, bytes[i])) {
            cut(out, t, t->line_start, KV_TEXT_OUTDENTED);
            return t->end;
        }
    }
    release(out, t, t->pending.len - held_back(t));
    return t->end;
}

void kv_text_flush(kv_buf *out, kv_text *t) {
    if (t->end == KV_TEXT_GOES_ON) release(out, t, t->pending.len);
    kv_buf_clear(&t->pending);
}
