/* cli/cache_text.c: what `kvasir cache` prints: sizes, ages, tables, progress. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cache_tool.h"

void kv_cache_say(const kv_cache_tool *t, const char *fmt, ...) {
    if (t->json) return;
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
}

void kv_cache_add_bytes(kv_buf *out, uint64_t n) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1024 && u < 6) v /= 1024, u++;
    kv_buf_addf(out, u == 0 || v >= 100 ? "%.0f %s" : v >= 10 ? "%.1f %s" : "%.2f %s", v, unit[u]);
}

void kv_cache_add_age(kv_buf *out, int64_t age) {
    static const struct {
        int64_t seconds;
        const char *unit;
    } steps[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (age < steps[i].seconds * (i < 3 ? 2 : 1)) continue; /* "47 h", then "2 d" */
        kv_buf_addf(out, "%lld %s ago", (long long)(age / steps[i].seconds), steps[i].unit);
        return;
    }
    kv_buf_adds(out, "now");
}

void kv_cache_add_clean(kv_buf *out, const char *s) {
    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0; /* U+0080 … U+009F */
        kv_buf_add(out, *p < 0x20 || *p == 0x7f || c1 ? "?" : (const char *)p, 1);
        if (c1) p++;
    }
}

/* Characters of a cell, where each takes one column. */
static size_t width_of(const char *s, size_t n) {
    size_t w = 0;
    for (size_t i = 0; i < n; i++) w += ((unsigned char)s[i] & 0xc0) != 0x80;
    return w;
}

enum { MAX_COLUMNS = 16 };

static void print_line(const char *line, const size_t widths[MAX_COLUMNS], const char *right) {
    for (int c = 0; c < MAX_COLUMNS; c++) {
        size_t n = strcspn(line, "\t\n"), pad = widths[c] - width_of(line, n);
        bool last = line[n] != '\t', to_right = strchr(right, 'r') && (size_t)c < strlen(right) && right[c] == 'r';
        if (to_right) printf("%*s", (int)pad, "");
        printf("%.*s", (int)n, line);
        if (last) break;
        printf("%*s", to_right ? 2 : (int)pad + 2, "");
        line += n + 1;
    }
    printf("\n");
}

void kv_cache_print_table(const kv_buf *cells, const char *right) {
    size_t widths[MAX_COLUMNS] = {0};
    int c = 0;
    for (const char *at = kv_buf_str(cells); *at;) {
        size_t n = strcspn(at, "\t\n"), w = width_of(at, n);
        if (c < MAX_COLUMNS && w > widths[c]) widths[c] = w;
        c = at[n] == '\t' ? c + 1 : 0;
        at += n + (at[n] != '\0');
    }
    for (const char *at = kv_buf_str(cells); *at;) {
        print_line(at, widths, right);
        at += strcspn(at, "\n");
        at += *at != '\0';
    }
}

void kv_cache_bar_init(kv_cache_bar *b, const char *doing) {
    *b = (kv_cache_bar){.doing = doing, .on = isatty(STDERR_FILENO), .percent = -1};
}

void kv_cache_bar_draw(void *bar, uint64_t done, uint64_t total) {
    enum { WIDTH = 32 };
    static const char full[] = "################################", empty[] = "................................";
    kv_cache_bar *b = bar;
    int percent = total ? (int)((double)done * 100 / (double)total) : 100;
    if (!b->on || percent == b->percent) return;
    b->percent = percent;
    int n = percent * WIDTH / 100;
    kv_buf of = {0};
    kv_cache_add_bytes(&of, total);
    fprintf(stderr, "\r%s [%.*s%.*s] %3d %% of %s", b->doing, n, full, WIDTH - n, empty, percent, kv_buf_str(&of));
    kv_buf_free(&of);
}

void kv_cache_bar_end(kv_cache_bar *b) {
    if (b->on && b->percent >= 0) fprintf(stderr, "\r\x1b[K"); /* the line goes */
}
