/* hub/place.c: where fetched models lie, also those that the Hugging Face tools or llama.cpp fetched. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "hub/hub_private.h"
#include "os/machine.h"

#define MAX_DEPTH  8 /* of folders in a repository */
#define MAX_PLACES 8

typedef struct places {
    char *dir[MAX_PLACES]; /* owned */
    int n;
} places;

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void add_place(places *p, const char *base, const char *below) {
    kv_buf dir = {0};
    if (!base || p->n == MAX_PLACES) return;
    size_t n = strlen(base);
    while (n > 1 && base[n - 1] == '/') n--;
    kv_buf_add(&dir, base, n);
    if (below) kv_buf_addf(&dir, "/%s", below);
    for (int i = 0; i < p->n; i++) {
        if (strcmp(p->dir[i], kv_buf_str(&dir)) == 0) {
            kv_buf_free(&dir);
            return;
        }
    }
    p->dir[p->n++] = kv_buf_take(&dir);
}

/* llama-server's order. */
static void find_places(places *p) {
    *p = (places){0};
    add_place(p, variable("LLAMA_CACHE"), NULL);
    add_place(p, variable("HF_HUB_CACHE"), NULL);
    add_place(p, variable("HUGGINGFACE_HUB_CACHE"), NULL);
    add_place(p, variable("HF_HOME"), "hub");
    add_place(p, variable("XDG_CACHE_HOME"), "huggingface/hub");
    add_place(p, variable("HOME"), ".cache/huggingface/hub");
}

static void free_places(places *p) {
    for (int i = 0; i < p->n; i++) free(p->dir[i]);
}

void kv_hub_main_place(kv_buf *out) {
    places p;
    find_places(&p);
    if (p.n > 0) kv_buf_adds(out, p.dir[0]);
    free_places(&p);
}

void kv_hub_flat_place(kv_buf *out) {
    const char *llama = variable("LLAMA_CACHE"), *xdg = variable("XDG_CACHE_HOME"), *home = variable("HOME");
#ifdef __APPLE__
    if (llama) kv_buf_adds(out, llama);
    else if (home) kv_buf_addf(out, "%s/Library/Caches/llama.cpp", home);
    (void)xdg;
#else
    if (llama) kv_buf_adds(out, llama);
    else if (xdg) kv_buf_addf(out, "%s/llama.cpp", xdg);
    else if (home) kv_buf_addf(out, "%s/.cache/llama.cpp", home);
#endif
}

void kv_hub_repo_dir(kv_buf *out, const char *place, const char *repo) {
    const char *slash = strchr(repo, '/');
    kv_buf_addf(out, "%s/models--%.*s--%s", place, (int)(slash - repo), repo, slash + 1);
}

/* ── one repository ── */

/* Files below dir, by their path in the repository; a link counts as what it leads to. */
static void add_below(kv_hub_files *out, const char *dir, const char *inner, int depth) {
    struct stat s;
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        kv_buf full = {0}, path = {0};
        kv_buf_addf(&full, "%s/%s", dir, e->d_name);
        kv_buf_addf(&path, "%s%s%s", inner, *inner ? "/" : "", e->d_name);
        if (e->d_name[0] != '.' && stat(kv_buf_str(&full), &s) == 0) {
            if (S_ISREG(s.st_mode))
                kv_hub_files_add(out, kv_buf_str(&path), kv_buf_str(&full), NULL, (uint64_t)s.st_size);
            if (S_ISDIR(s.st_mode) && depth < MAX_DEPTH) add_below(out, full.data, kv_buf_str(&path), depth + 1);
        }
        kv_buf_free(&full);
        kv_buf_free(&path);
    }
    closedir(d);
}

/* The commit that refs/NAME holds; false when it holds none. */
static bool read_ref(char commit[41], const char *repo_dir, const char *name) {
    kv_buf path = {0}, text = {0};
    kv_buf_addf(&path, "%s/refs/%s", repo_dir, name);
    bool ok = kv_file_read(&text, kv_buf_str(&path), 256, NULL) == KV_OK;
    snprintf(commit, 41, "%.40s", kv_buf_str(&text));
    size_t n = strlen(commit);
    ok = ok && kv_hub_is_hex(commit, 40) && strspn(kv_buf_str(&text) + n, " \r\n") == text.len - n;
    kv_buf_free(&path);
    kv_buf_free(&text);
    return ok;
}

/* Where the file that is meant lies in this snapshot, all its parts being there. */
static char *find_in_snapshot(const char *dir, const char *quant, const char *file) {
    kv_hub_files f = {0};
    char *found = NULL;
    add_below(&f, dir, "", 0);
    kv_hub_files_sort(&f);
    int i = kv_hub_choose(&f, quant, file);
    if (i >= 0 && kv_hub_check_parts(f.item[i].local, NULL) == KV_OK) found = kv_strdup(f.item[i].local);
    kv_hub_files_free(&f);
    return found;
}

/* The snapshot of refs/main first, then what else is there. */
static char *find_in_repo(const char *repo_dir, const char *quant, const char *file) {
    char commit[41], *found = NULL;
    kv_buf dir = {0};
    bool has_ref = read_ref(commit, repo_dir, "main");
    if (has_ref) {
        kv_buf_addf(&dir, "%s/snapshots/%s", repo_dir, commit);
        found = find_in_snapshot(kv_buf_str(&dir), quant, file);
    }
    kv_buf_clear(&dir);
    kv_buf_addf(&dir, "%s/snapshots", repo_dir);
    DIR *d = found ? NULL : opendir(kv_buf_str(&dir));
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        if (!kv_hub_is_hex(e->d_name, 40)) continue;
        kv_buf_clear(&dir);
        kv_buf_addf(&dir, "%s/snapshots/%s", repo_dir, e->d_name);
        found = find_in_snapshot(kv_buf_str(&dir), quant, file);
    }
    if (d) closedir(d);
    kv_buf_free(&dir);
    return found;
}

/* Older llama.cpp: USER_REPO_FILE in one directory, with '/' as '_'. */
static char *find_flat(const char *dir, const char *repo, const char *quant, const char *file) {
    kv_hub_files f = {0};
    kv_buf prefix = {0}, wanted = {0}, full = {0};
    char *found = NULL;
    kv_buf_addf(&prefix, "%s_", repo);
    *strchr(prefix.data, '/') = '_';
    kv_buf_adds(&wanted, file ? file : "");
    for (char *p = wanted.data; p && *p; p++)
        if (*p == '/') *p = '_';
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, kv_buf_str(&prefix), prefix.len) != 0) continue;
        kv_buf_clear(&full);
        kv_buf_addf(&full, "%s/%s", dir, e->d_name);
        kv_hub_files_add(&f, e->d_name + prefix.len, kv_buf_str(&full), NULL, 0);
    }
    if (d) closedir(d);
    kv_hub_files_sort(&f);
    int i = kv_hub_choose(&f, quant, file ? kv_buf_str(&wanted) : NULL);
    if (i >= 0 && kv_hub_check_parts(f.item[i].local, NULL) == KV_OK) found = kv_strdup(f.item[i].local);
    kv_hub_files_free(&f);
    kv_buf_free(&prefix);
    kv_buf_free(&wanted);
    kv_buf_free(&full);
    return found;
}

/* ── all ── */

char *kv_hub_find_cached(const char *repo, const char *quant, const char *file, kv_buf *looked) {
    places p;
    kv_buf dir = {0};
    char *found = NULL;
    find_places(&p);
    for (int i = 0; i < p.n && !found; i++) {
        kv_buf_clear(&dir);
        kv_hub_repo_dir(&dir, p.dir[i], repo);
        kv_buf_addf(looked, "%s%s", looked->len ? ", " : "", p.dir[i]);
        found = find_in_repo(kv_buf_str(&dir), quant, file);
    }
    kv_buf_clear(&dir);
    kv_hub_flat_place(&dir);
    if (!found && dir.len > 0) {
        if (p.n == 0 || strcmp(kv_buf_str(&dir), p.dir[0]) != 0)
            kv_buf_addf(looked, "%s%s", looked->len ? ", " : "", kv_buf_str(&dir));
        found = find_flat(kv_buf_str(&dir), repo, quant, file);
    }
    free_places(&p);
    kv_buf_free(&dir);
    return found;
}

/* "models--user--repo" → "user/repo"; user names have no "--". */
static bool repo_of_folder(kv_buf *out, const char *folder) {
    if (strncmp(folder, "models--", 8) != 0) return false;
    const char *user = folder + 8, *dashes = strstr(user, "--");
    if (!dashes) return false;
    kv_buf_addf(out, "%.*s/%s", (int)(dashes - user), user, dashes + 2);
    return kv_hub_repo_valid(kv_buf_str(out));
}

static void list_repo(kv_buf *out, const char *repo_dir, const char *repo) {
    char commit[41];
    kv_buf dir = {0};
    kv_hub_files f = {0};
    if (!read_ref(commit, repo_dir, "main")) return;
    kv_buf_addf(&dir, "%s/snapshots/%s", repo_dir, commit);
    add_below(&f, kv_buf_str(&dir), "", 0);
    kv_hub_files_sort(&f);
    for (int i = 0; i < f.n; i++) {
        kv_buf quant = {0};
        const char *path = f.item[i].path;
        if (kv_hub_is_model(path) && kv_hub_part_of(path).index == 1) {
            bool named = kv_hub_quant_of(&quant, path);
            kv_buf_addf(out, "%s%s%s\n", repo, named ? ":" : "", kv_buf_str(&quant));
        }
        kv_buf_free(&quant);
    }
    kv_hub_files_free(&f);
    kv_buf_free(&dir);
}

void kv_hub_list(kv_buf *out) {
    places p;
    find_places(&p);
    for (int i = 0; i < p.n; i++) {
        DIR *d = opendir(p.dir[i]);
        for (struct dirent *e; d && (e = readdir(d));) {
            kv_buf repo = {0}, dir = {0};
            kv_buf_addf(&dir, "%s/%s", p.dir[i], e->d_name);
            if (repo_of_folder(&repo, e->d_name)) list_repo(out, kv_buf_str(&dir), kv_buf_str(&repo));
            kv_buf_free(&repo);
            kv_buf_free(&dir);
        }
        if (d) closedir(d);
    }
    free_places(&p);
}
