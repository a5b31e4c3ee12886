#include "hub/hub.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "hub/hub_private.h"
#include "os/machine.h"

#define NAMED_FILES 12 /* of a repository in a message */

static bool is_there(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

kv_status kv_hub_check_parts(const char *path, kv_error *err) {
    kv_hub_part p = kv_hub_part_of(path);
    kv_buf other = {0};
    kv_status st = KV_OK;
    if (p.count <= 1) return KV_OK;
    if (p.index != 1) {
        kv_hub_part_path(&other, path, 1);
        st = kv_fail_field(err, "--model", "%s is part %d of %d of a model: give the first one, %s", path, p.index,
                           p.count, kv_buf_str(&other));
    }
    for (int i = 2; i <= p.count && st == KV_OK; i++) {
        kv_buf_clear(&other);
        kv_hub_part_path(&other, path, i);
        if (is_there(path) && !is_there(kv_buf_str(&other)))
            st =
                kv_fail(err, KV_NOT_FOUND, "part %d of %d of the model is missing: %s", i, p.count, kv_buf_str(&other));
    }
    kv_buf_free(&other);
    return st;
}

/* ── from a repository ── */

typedef struct wanted {
    const kv_hub_ask *ask;
    char *repo, *quant;
    kv_buf repo_dir;
    kv_hub_files files;
} wanted;

static kv_status make_parents(const char *path, kv_error *err) {
    const char *slash = strrchr(path, '/');
    char *dir = kv_strndup(path, slash ? (size_t)(slash - path) : 0);
    kv_status st = dir[0] ? kv_dir_make(dir, err) : KV_OK;
    free(dir);
    return st;
}

/* snapshots/COMMIT/a/b.gguf → ../../../blobs/OID */
static kv_status link_to_blob(const char *at, const char *path, const char *oid, kv_error *err) {
    kv_buf target = {0};
    kv_status st = make_parents(at, err);
    for (const char *p = path; *p; p++)
        if (*p == '/') kv_buf_adds(&target, "../");
    kv_buf_addf(&target, "../../blobs/%s", oid);
    if (st == KV_OK && symlink(kv_buf_str(&target), at) != 0 && errno != EEXIST)
        st = kv_fail_errno(err, "make the link %s", at);
    kv_buf_free(&target);
    return st;
}

/* One file into the cache; *local: where it is then. */
static kv_status fetch_one(kv_buf *local, const wanted *w, const kv_hub_file *file, kv_error *err) {
    const char *dir = kv_buf_str(&w->repo_dir);
    kv_buf url = {0}, blob = {0};
    kv_buf_addf(local, "%s/snapshots/%s/%s", dir, w->files.commit, file->path);
    if (is_there(kv_buf_str(local))) return KV_OK;
    kv_buf_addf(&blob, "%s/blobs/%s", dir, file->oid ? file->oid : "");
    kv_hub_remote_url(&url, w->repo, w->files.commit, file->path);
    kv_hub_fetch f = {.url = kv_buf_str(&url),
                      .path = file->oid ? kv_buf_str(&blob) : kv_buf_str(local),
                      .sha256 = file->oid && strlen(file->oid) == 64 ? file->oid : NULL,
                      .token = w->ask->token,
                      .name = file->path,
                      .size = file->size,
                      .ask = w->ask};
    kv_status st = file->oid && is_there(kv_buf_str(&blob)) ? KV_OK : kv_hub_fetch_file(&f, err);
    if (st == KV_OK && file->oid) {
        unlink(kv_buf_str(local)); /* a link that leads nowhere */
        st = link_to_blob(kv_buf_str(local), file->path, file->oid, err);
    }
    kv_buf_free(&url);
    kv_buf_free(&blob);
    return st;
}

static kv_status write_ref(const wanted *w, kv_error *err) {
    kv_buf path = {0};
    kv_buf_addf(&path, "%s/refs/main", kv_buf_str(&w->repo_dir));
    kv_status st = make_parents(kv_buf_str(&path), err);
    if (st == KV_OK) st = kv_file_publish(kv_buf_str(&path), w->files.commit, strlen(w->files.commit), err);
    kv_buf_free(&path);
    return st;
}

static kv_status say_not_in_repo(const wanted *w, kv_error *err) {
    kv_buf names = {0};
    int n = 0;
    for (int i = 0; i < w->files.n; i++) {
        const char *path = w->files.item[i].path;
        if (!kv_hub_is_model(path) || kv_hub_part_of(path).index != 1) continue;
        if (n < NAMED_FILES) kv_buf_addf(&names, "%s%s", n ? ", " : "", path);
        n++;
    }
    const char *what = w->ask->file ? w->ask->file : w->quant ? w->quant : "a GGUF file";
    kv_status st = kv_fail(err, KV_NOT_FOUND, "%s has no %s; %s%s%s", w->repo, what,
                           n ? "it has " : "it has no model in GGUF form at all", kv_buf_str(&names),
                           n > NAMED_FILES ? " and more" : "");
    kv_buf_free(&names);
    return st;
}

/* The chosen file and, when it is split, its other parts. */
static kv_status fetch_parts(char **path, const wanted *w, int chosen, kv_error *err) {
    const char *first = w->files.item[chosen].path;
    int count = kv_hub_part_of(first).count;
    kv_status st = KV_OK;
    for (int i = 1; i <= count && st == KV_OK; i++) {
        kv_buf name = {0}, local = {0};
        if (count > 1) kv_hub_part_path(&name, first, i);
        else kv_buf_adds(&name, first);
        int at = kv_hub_choose(&w->files, NULL, kv_buf_str(&name));
        if (at < 0)
            st = kv_fail(err, KV_NOT_FOUND, "%s has no %s, part %d of %d", w->repo, kv_buf_str(&name), i, count);
        else st = fetch_one(&local, w, &w->files.item[at], err);
        if (st == KV_OK && i == 1) *path = kv_strdup(kv_buf_str(&local));
        kv_buf_free(&name);
        kv_buf_free(&local);
    }
    return st;
}

static kv_status fetch_from_repo(char **path, wanted *w, kv_error *err) {
    kv_buf place = {0};
    kv_hub_main_place(&place);
    kv_status st = place.len > 0 ? KV_OK
                                 : kv_fail(err, KV_NOT_FOUND,
                                           "there is no place to put a model: HOME is not set, and neither "
                                           "is LLAMA_CACHE");
    if (st == KV_OK) st = kv_hub_remote_files(&w->files, w->repo, w->ask->token, err);
    if (st == KV_OK) {
        kv_hub_repo_dir(&w->repo_dir, kv_buf_str(&place), w->repo);
        int chosen = kv_hub_choose(&w->files, w->quant, w->ask->file);
        if (chosen < 0) st = say_not_in_repo(w, err);
        else if (kv_hub_part_of(w->files.item[chosen].path).index != 1)
            st = kv_fail_field(err, "--hf-file", "--hf-file %s is a later part of a model: give its first one",
                               w->ask->file);
        else st = fetch_parts(path, w, chosen, err);
    }
    if (st == KV_OK) st = write_ref(w, err);
    kv_buf_free(&place);
    return st;
}

static kv_status find_repo(char **path, const kv_hub_ask *ask, kv_error *err) {
    wanted w = {.ask = ask};
    kv_buf looked = {0};
    kv_status st = kv_hub_split_name(&w.repo, &w.quant, ask->repo, err);
    if (st != KV_OK) return st;
    if (ask->file && !kv_hub_path_safe(ask->file)) {
        st = kv_fail_field(err, "--hf-file", "--hf-file: got \"%.120s\", takes the path of a file in the repository",
                           ask->file);
        goto done;
    }
    *path = kv_hub_find_cached(w.repo, w.quant, ask->file, &looked);
    if (*path) goto done;
    if (ask->offline) {
        st =
            kv_fail(err, KV_NOT_FOUND, "%s%s%s is not on this machine, and --offline forbids to fetch it; looked in %s",
                    w.repo, ask->file || w.quant ? ", " : "",
                    ask->file ? ask->file
                    : w.quant ? w.quant
                              : "",
                    looked.len ? kv_buf_str(&looked) : "no directory, since HOME is not set");
        goto done;
    }
    st = fetch_from_repo(path, &w, err);
done:
    if (st != KV_OK) {
        free(*path);
        *path = NULL;
    }
    kv_hub_files_free(&w.files);
    kv_buf_free(&w.repo_dir);
    kv_buf_free(&looked);
    free(w.repo);
    free(w.quant);
    return st;
}

/* ── from an address ── */

/* The part of a URL behind the last '/' and before '?' or '#'; its file's name as a URL spells it. */
static kv_status name_of_url(kv_buf *out, size_t *end, const char *url, kv_error *err) {
    *end = strcspn(url, "?#");
    size_t at = *end;
    while (at > 0 && url[at - 1] != '/') at--;
    const char *rest = strstr(url, "://");
    bool http = strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0;
    kv_buf_add(out, url + at, *end - at);
    if (http && rest && url + at > rest + 3 && kv_hub_path_safe(kv_buf_str(out))) return KV_OK;
    kv_buf shown = {0};
    kv_hub_show_url(&shown, url);
    kv_status st =
        kv_fail_field(err, "--model-url", "--model-url: got \"%.160s\", takes the http or https address of a GGUF file",
                      kv_buf_str(&shown));
    kv_buf_free(&shown);
    return st;
}

/* Where part i of the model goes, and where it comes from. */
static void place_part(kv_buf *path, kv_buf *from, const kv_hub_ask *ask, const char *name, size_t end, int i,
                       int count) {
    kv_buf part = {0};
    if (count > 1) kv_hub_part_path(&part, name, i);
    else kv_buf_adds(&part, name);
    kv_buf_add(from, ask->url, end - strlen(name));
    kv_buf_addf(from, "%s%s", kv_buf_str(&part), ask->url + end);
    if (ask->path && count == 1) {
        kv_buf_adds(path, ask->path);
    } else if (ask->path) { /* as llama-server: the parts keep their names, in that directory */
        const char *slash = strrchr(ask->path, '/');
        if (slash) kv_buf_add(path, ask->path, (size_t)(slash - ask->path) + 1);
        kv_buf_adds(path, kv_buf_str(&part));
    } else {
        kv_hub_flat_place(path);
        kv_buf_addf(path, "/%s", kv_buf_str(&part));
    }
    kv_buf_free(&part);
}

/* The token is for the server of models, not for any host that a URL names. */
static const char *token_for(const kv_hub_ask *ask) {
    kv_buf endpoint = {0};
    kv_hub_endpoint(&endpoint);
    bool same = strncmp(ask->url, kv_buf_str(&endpoint), endpoint.len) == 0;
    kv_buf_free(&endpoint);
    return same ? ask->token : NULL;
}

static kv_status find_url(char **path, const kv_hub_ask *ask, kv_error *err) {
    kv_buf name = {0}, flat = {0};
    size_t end;
    kv_status st = name_of_url(&name, &end, ask->url, err);
    kv_hub_flat_place(&flat);
    if (st == KV_OK && !ask->path && flat.len == 0)
        st = kv_fail(err, KV_NOT_FOUND, "there is no place to put the model: HOME is not set; say where with -m");
    kv_hub_part part = kv_hub_part_of(kv_buf_str(&name));
    if (st == KV_OK && part.index != 1)
        st = kv_fail_field(err, "--model-url", "--model-url: %s is a later part of a model: give its first one",
                           kv_buf_str(&name));
    for (int i = 1; i <= part.count && st == KV_OK; i++) {
        kv_buf local = {0}, from = {0};
        place_part(&local, &from, ask, kv_buf_str(&name), end, i, part.count);
        kv_hub_fetch f = {.url = kv_buf_str(&from),
                          .path = kv_buf_str(&local),
                          .token = token_for(ask),
                          .name = kv_buf_str(&name),
                          .keep_etag = true,
                          .ask = ask};
        if (is_there(f.path)) st = KV_OK;
        else if (ask->offline)
            st = kv_fail(err, KV_NOT_FOUND, "%s is not on this machine, and --offline forbids to fetch it", f.path);
        else st = kv_hub_fetch_file(&f, err);
        if (st == KV_OK && i == 1) *path = kv_strdup(f.path);
        kv_buf_free(&local);
        kv_buf_free(&from);
    }
    if (st != KV_OK) {
        free(*path);
        *path = NULL;
    }
    kv_buf_free(&name);
    kv_buf_free(&flat);
    return st;
}

kv_status kv_hub_find(char **path, const kv_hub_ask *ask, kv_error *err) {
    *path = NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    kv_status st = ask->repo ? find_repo(path, ask, err) : find_url(path, ask, err);
    curl_global_cleanup();
    return st;
}
