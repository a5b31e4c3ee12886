/* hub/remote.c: what the hub says about a repository: its commit and its files. */
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "hub/hub_private.h"

#define ANSWER_MAX (64u << 20) /* bytes of a list of files */

const char *kv_hub_endpoint(kv_buf *buf) {
    const char *at = getenv("MODEL_ENDPOINT");
    if (!at || !*at) at = getenv("HF_ENDPOINT");
    kv_buf_adds(buf, at && *at ? at : "https://huggingface.co");
    if (buf->data[buf->len - 1] != '/') kv_buf_adds(buf, "/");
    return kv_buf_str(buf);
}

/* Each part of a path as a URL has it. */
static void add_escaped(kv_buf *out, const char *path) {
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        char *part = curl_easy_escape(NULL, p, (int)n);
        kv_buf_adds(out, part ? part : "");
        curl_free(part);
        p += n;
        if (*p == '/') kv_buf_add(out, p++, 1);
    }
}

void kv_hub_remote_url(kv_buf *out, const char *repo, const char *commit, const char *path) {
    kv_hub_endpoint(out);
    kv_buf_addf(out, "%s/resolve/%s/", repo, commit);
    add_escaped(out, path);
}

/* What the server says for an error: {"error": "…"} or nothing of use. */
static kv_status say_refused(const char *repo, long http, const kv_buf *body, const char *token, kv_error *err) {
    json_t *answer = NULL;
    const char *text = NULL;
    kv_json_parse(&answer, kv_buf_str(body), body->len, NULL);
    if (json_is_object(answer)) text = json_string_value(json_object_get(answer, "error"));
    kv_status st;
    if (http == 401 || http == 403 || http == 404)
        st = kv_fail(err, http == 404 ? KV_NOT_FOUND : KV_FORBIDDEN,
                     "%s: the server says %ld%s%.120s: there is no such repository, or %s", repo, http,
                     text ? ", " : "", text ? text : "",
                     token ? "the token (--hf-token, HF_TOKEN) does not open it"
                           : "it wants an access token: give HF_TOKEN or --hf-token");
    else st = kv_fail(err, KV_IO, "%s: the server says %ld%s%.120s", repo, http, text ? ", " : "", text ? text : "");
    json_decref(answer);
    return st;
}

/* {endpoint}api/models/{repo}/{what} as JSON. */
static kv_status ask_api(json_t **out, const char *repo, const char *what, const char *token, kv_error *err) {
    kv_buf url = {0}, body = {0};
    kv_error inner = {0};
    long http;
    *out = NULL;
    kv_hub_endpoint(&url);
    kv_buf_addf(&url, "api/models/%s/%s", repo, what);
    kv_status st = kv_hub_get(&body, &http, kv_buf_str(&url), token, ANSWER_MAX, err);
    if (st == KV_OK && http != 200) st = say_refused(repo, http, &body, token, err);
    if (st == KV_OK && kv_json_parse(out, kv_buf_str(&body), body.len, &inner) != KV_OK)
        st = kv_fail(err, KV_IO, "%s: what came is not JSON: %s", kv_buf_str(&url), inner.message);
    kv_buf_free(&url);
    kv_buf_free(&body);
    return st;
}

/* The commit of the branch main, else of the first one. */
static char *commit_of(const json_t *refs) {
    const char *found = NULL;
    size_t i;
    json_t *branch;
    json_array_foreach(json_object_get(refs, "branches"), i, branch) {
        const char *name = json_string_value(json_object_get(branch, "name"));
        const char *commit = json_string_value(json_object_get(branch, "targetCommit"));
        if (!name || !kv_hub_is_hex(commit, 40)) continue;
        if (!found || strcmp(name, "main") == 0) found = commit;
        if (strcmp(name, "main") == 0) break;
    }
    return kv_strdup(found);
}

static void read_tree(kv_hub_files *out, const json_t *tree) {
    size_t i;
    json_t *item;
    json_array_foreach(tree, i, item) {
        const char *type = json_string_value(json_object_get(item, "type"));
        const char *path = json_string_value(json_object_get(item, "path"));
        const json_t *lfs = json_object_get(item, "lfs");
        const json_t *from = json_is_object(lfs) ? lfs : item;
        const char *oid = json_string_value(json_object_get(from, "oid"));
        json_int_t size = json_integer_value(json_object_get(from, "size"));
        if (!type || strcmp(type, "file") != 0 || !kv_hub_path_safe(path)) continue;
        if (oid && !kv_hub_is_hex(oid, 40) && !kv_hub_is_hex(oid, 64)) continue;
        kv_hub_files_add(out, path, NULL, oid, size > 0 ? (uint64_t)size : 0);
    }
    kv_hub_files_sort(out);
}

kv_status kv_hub_remote_files(kv_hub_files *out, const char *repo, const char *token, kv_error *err) {
    json_t *answer = NULL;
    char what[80];
    *out = (kv_hub_files){0};
    kv_status st = ask_api(&answer, repo, "refs", token, err);
    if (st != KV_OK) return st;
    out->commit = commit_of(answer);
    json_decref(answer);
    if (!out->commit) return kv_fail(err, KV_IO, "%s: the server names no commit of it", repo);
    snprintf(what, sizeof what, "tree/%s?recursive=true", out->commit);
    st = ask_api(&answer, repo, what, token, err);
    if (st == KV_OK && !json_is_array(answer))
        st = kv_fail(err, KV_IO, "%s: the server gives no list of its files", repo);
    if (st == KV_OK) read_tree(out, answer);
    json_decref(answer);
    if (st != KV_OK) kv_hub_files_free(out);
    return st;
}
