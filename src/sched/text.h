/* sched/text.h: the text of an answer as it grows, in pieces that can be sent at once.
 *
 *   bytes of tokens ─► pending ─► out
 *                      │ held back: an incomplete UTF-8 character, the start of a stop string,
 *                      │ the indentation of a line that n_indent may cut
 *
 * Where a token ends plays no part: each byte is a step, the stop string that is complete first wins, of several
 * complete at the same byte the longest. The same bytes in other pieces give the same text and the same end.
 *
 * Thread rule: none; one owner at a time.
 */
#ifndef KV_SCHED_TEXT_H
#define KV_SCHED_TEXT_H

#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kv_text_end {
    KV_TEXT_GOES_ON,
    KV_TEXT_STOPPED,  /* a stop string was met; it and what follows are cut off */
    KV_TEXT_OUTDENTED /* a line began left of n_indent; it is cut off */
} kv_text_end;

/* One stop string with its automaton (Knuth–Morris–Pratt). */
typedef struct kv_text_stop {
    char *word; /* owned, not empty */
    size_t n;
    size_t *back; /* owned: back[k] = longest proper border of the first k bytes */
    size_t met;   /* bytes of the word that the text ends with now */
} kv_text_stop;

typedef struct kv_text {
    kv_text_stop *stops; /* owned */
    int n_stops;
    int32_t n_indent;  /* 0 = off */
    kv_buf pending;    /* not handed out yet */
    bool in_indent;    /* after a newline, only blanks so far; with n_indent only */
    int32_t indent;    /* blanks of that line */
    size_t line_start; /* where in `pending` that line begins */
    bool new_line;     /* the last feed brought a newline */
    kv_text_end end;
    const char *stop_word; /* the one met; borrowed from `stops` */
} kv_text;

/* Copies the stop strings; empty ones are ignored. n_indent as in llama-server: every line after the first needs that
 * many blanks in front, an empty line has none. */
void kv_text_init(kv_text *t, const char *const *stops, int n_stops, int32_t n_indent);
void kv_text_free(kv_text *t);
/* Take n bytes of a token; appends to `out` what is free to send. After an end nothing more may be fed. */
kv_text_end kv_text_feed(kv_buf *out, kv_text *t, const char *bytes, size_t n);
/* The answer ends here: appends what was held back, but for an incomplete character, which is dropped. */
void kv_text_flush(kv_buf *out, kv_text *t);

#endif
