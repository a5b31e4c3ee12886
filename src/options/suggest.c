/* "Did you mean": the nearest known option by the number of single-character edits. */
#include <string.h>

#include "options/table.h"

#define NAME_MAX_LEN 48

static int min3(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Optimal string alignment distance: insert, delete, replace, swap two neighbours. na, nb ≤ NAME_MAX_LEN. */
static int distance(const char *a, size_t na, const char *b, size_t nb) {
    int row[3][NAME_MAX_LEN + 1];
    int *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= nb; j++) last[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
        int *spare = before;
        before = last, last = now, now = spare;
    }
    return last[nb];
}

static void strip(const char **s, size_t *n) {
    while (*n && **s == '-') (*s)++, (*n)--;
}

typedef struct search {
    const char *name;
    size_t n;
    int best;
    const char *found;
    size_t n_found;
} search;

static void look(search *s, const char *list) {
    size_t n;
    const char *item;
    for (int i = 0; (item = kv_opt_list_item(list, i, &n)); i++) {
        const char *known = item;
        size_t n_known = n;
        strip(&known, &n_known);
        if (n_known == 0 || n_known > NAME_MAX_LEN || item[n - 1] == '*') continue;
        int d = distance(s->name, s->n, known, n_known);
        /* a name left off half-way ("--ctx") is nearer than its distance says */
        if (s->n >= 3 && s->n < n_known && memcmp(s->name, known, s->n) == 0) d = 1;
        if (d < s->best) s->best = d, s->found = item, s->n_found = n;
    }
}

const char *kv_opt_nearest(const char *name, char *buf, size_t cap) {
    search s = {.name = name, .n = strlen(name)};
    strip(&s.name, &s.n);
    if (s.n == 0 || s.n > NAME_MAX_LEN) return NULL;
    s.best = (int)(s.n / 3) + 1; /* a third of it may be wrong */
    for (int i = 0; i < kv_opt_count; i++) {
        if (kv_opt_table[i].flags & OPT_HIDDEN) continue;
        look(&s, kv_opt_table[i].names);
        look(&s, kv_opt_table[i].neg);
    }
    for (int i = 0; i < kv_foreign_count; i++) look(&s, kv_foreign_table[i].names);
    if (!s.found || s.n_found >= cap) return NULL;
    memcpy(buf, s.found, s.n_found);
    buf[s.n_found] = 0;
    return buf;
}
