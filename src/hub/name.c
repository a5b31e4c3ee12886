/* hub/name.c: names of models, OWNER/NAME[:QUANT], and of the files in a repository: which of them are meant. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hub/hub_private.h"

#define REPO_MAX 256

/* ── lists of files ── */

void kv_hub_files_add(kv_hub_files *f, const char *path, const char *local, const char *oid, uint64_t size) {
    if (f->n >= KV_HUB_MAX_FILES) return;
    if (f->n % 64 == 0) f->item = kv_realloc(f->item, (size_t)(f->n + 64) * sizeof *f->item);
    f->item[f->n++] = (kv_hub_file){kv_strdup(path), kv_strdup(local), kv_strdup(oid), size};
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const kv_hub_file *)a)->path, ((const kv_hub_file *)b)->path);
}

void kv_hub_files_sort(kv_hub_files *f) {
    if (f->n > 1) qsort(f->item, (size_t)f->n, sizeof *f->item, by_path);
}

void kv_hub_files_free(kv_hub_files *f) {
    for (int i = 0; i < f->n; i++) {
        free(f->item[i].path);
        free(f->item[i].local);
        free(f->item[i].oid);
    }
    free(f->item);
    free(f->commit);
    *f = (kv_hub_files){0};
}

/* ── repositories ── */

static bool is_base(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool kv_hub_repo_valid(const char *repo) {
    int slashes = 0;
    bool special = true; /* neither at the start nor two in a row nor at the end */
    size_t n = strlen(repo);
    if (n > REPO_MAX) return false;
    for (const char *p = repo; *p; p++) {
        if (!is_base(*p) && (special || !strchr("/.-", *p))) return false;
        special = !is_base(*p);
        slashes += *p == '/';
    }
    return !special && slashes == 1;
}

kv_status kv_hub_split_name(char **repo, char **quant, const char *name, kv_error *err) {
    const char *colon = strchr(name, ':');
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    *quant = NULL;
    *repo = kv_strndup(name, n);
    bool ok = kv_hub_repo_valid(*repo);
    for (const char *p = colon ? colon + 1 : NULL; ok && p && *p; p++) ok = is_base(*p) || *p == '-' || *p == '.';
    if (ok) {
        if (colon && colon[1]) *quant = kv_strdup(colon + 1);
        return KV_OK;
    }
    free(*repo);
    *repo = NULL;
    return kv_fail_field(err, "--hf-repo",
                         "--hf-repo: got \"%.120s\", takes USER/REPO or USER/REPO:QUANT, such as "
                         "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
                         name);
}

bool kv_hub_is_hex(const char *s, size_t n) {
    return s && strlen(s) == n && strspn(s, "0123456789abcdefABCDEF") == n;
}

bool kv_hub_path_safe(const char *path) {
    if (!path || !*path || *path == '/' || strlen(path) > 1024) return false;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 0x20 || p[i] == '\\' || p[i] == 0x7f) return false;
        p += n;
        if (*p == '/' && !*++p) return false;
    }
    return true;
}

/* ── files ── */

static bool ends_in_gguf(const char *path, size_t *stem) {
    size_t n = strlen(path);
    if (n < 6 || strcasecmp(path + n - 5, ".gguf") != 0) return false;
    *stem = n - 5;
    return true;
}

/* "-00001-of-00003" has 15 characters. */
kv_hub_part kv_hub_part_of(const char *path) {
    kv_hub_part whole = {1, 1, strlen(path)}, part;
    size_t stem;
    if (!ends_in_gguf(path, &stem)) return whole;
    whole.prefix_len = stem;
    if (stem < 16) return whole;
    const char *p = path + stem - 15;
    bool shaped = p[0] == '-' && strncasecmp(p + 6, "-of-", 4) == 0;
    for (int i = 1; i <= 5 && shaped; i++) shaped = isdigit((unsigned char)p[i]) && isdigit((unsigned char)p[i + 9]);
    if (!shaped) return whole;
    part = (kv_hub_part){(int)strtol(p + 1, NULL, 10), (int)strtol(p + 10, NULL, 10), stem - 15};
    return part.index >= 1 && part.index <= part.count ? part : whole;
}

void kv_hub_part_path(kv_buf *out, const char *path, int i) {
    kv_hub_part p = kv_hub_part_of(path);
    kv_buf_add(out, path, p.prefix_len);
    kv_buf_addf(out, "-%05d-of-%05d%s", i, p.count, path + strlen(path) - 5); /* ".gguf" as it is written there */
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool kv_hub_is_model(const char *path) {
    static const char *const others[] = {"mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"};
    size_t stem;
    if (!ends_in_gguf(path, &stem)) return false;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(base_name(path), others[i])) return false;
    return true;
}

/* The quant followed by '.' or '-', in any case, as llama-server looks for it. */
static bool has_quant(const char *path, const char *quant) {
    size_t n = strlen(quant);
    for (const char *p = path; *p; p++)
        if (strncasecmp(p, quant, n) == 0 && (p[n] == '.' || p[n] == '-')) return true;
    return false;
}

static int first_with(const kv_hub_files *f, const char *quant) {
    for (int i = 0; i < f->n; i++) {
        const char *path = f->item[i].path;
        if (kv_hub_is_model(path) && kv_hub_part_of(path).index == 1 && (!quant || has_quant(path, quant))) return i;
    }
    return -1;
}

int kv_hub_choose(const kv_hub_files *f, const char *quant, const char *file) {
    static const char *const wanted[] = {"Q4_K_M", "Q8_0", NULL};
    if (file) {
        for (int i = 0; i < f->n; i++)
            if (strcmp(f->item[i].path, file) == 0) return i;
        return -1;
    }
    if (quant) return first_with(f, quant);
    int found = -1;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && found < 0; i++) found = first_with(f, wanted[i]);
    return found;
}

bool kv_hub_quant_of(kv_buf *out, const char *path) {
    size_t end = kv_hub_part_of(path).prefix_len, at = end;
    while (at > 0 && is_base(path[at - 1])) at--;
    if (at == 0 || at == end || (path[at - 1] != '-' && path[at - 1] != '.')) return false;
    kv_buf_add(out, path + at, end - at);
    return true;
}

void kv_hub_show_url(kv_buf *out, const char *url) {
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t n = strcspn(host, "/?#"), user = n;
    while (user > 0 && host[user - 1] != '@') user--;
    kv_buf_add(out, url, (size_t)(host - url));
    kv_buf_add(out, host + user, strcspn(host, "?#") - user);
    if (host[strcspn(host, "?#")]) kv_buf_adds(out, "?…");
}
