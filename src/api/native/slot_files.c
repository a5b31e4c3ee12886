#include "api/native/slot_files.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "api/body.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/scope.h"
#include "base/json.h"
#include "os/machine.h"

#define FORMAT "kvasir slot 1"

/* ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The character at *s, which is valid UTF-8; *s moves behind it. */
static uint32_t next_character(const unsigned char **s) {
    uint32_t c = *(*s)++;
    int more = c < 0x80 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    if (more) c &= 0x3Fu >> more;
    while (more-- > 0) c = c << 6 | (*(*s)++ & 0x3F);
    return c;
}

static bool is_forbidden(uint32_t c) {
    static const uint32_t list[] = {'/', '\\', ':', '*', '?', '"', '<', '>', '|',
                                    /* look like '.', '/', '\'; replacement character, byte order mark */
                                    0xFF0E, 0x2215, 0x2216, 0xFFFD, 0xFEFF};
    if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return true;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (c == list[i]) return true;
    return false;
}

bool kv_slot_file_name_ok(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > 255 || !kv_utf8_valid(name, n)) return false;
    for (const unsigned char *s = (const unsigned char *)name; *s;)
        if (is_forbidden(next_character(&s))) return false;
    if (name[0] == ' ' || name[n - 1] == ' ' || name[n - 1] == '.') return false;
    return strstr(name, "..") == NULL;
}

void kv_slot_folder(kv_buf *out, const char *dir, const char *scope) {
    kv_buf_adds(out, dir);
    if (!*scope) return;
    char hex[33];
    kv_hash_hex(hex, kv_hash_bytes(scope, strlen(scope)));
    kv_buf_addf(out, "/scope:%s", hex);
}

/* ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static void checksum(char out[33], kv_hash ns, const kv_token *tokens, size_t n) {
    kv_hash_hex(out, kv_hash_chain(ns, tokens, n));
}

void kv_slot_file_write(kv_buf *out, kv_hash ns, const char *model, const kv_token *tokens, size_t n) {
    char space[33], sum[33];
    kv_hash_hex(space, ns);
    checksum(sum, ns, tokens, n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(tokens[i]));
    json_t *o = json_pack("{s:s, s:s, s:o, s:o, s:s}", "format", FORMAT, "namespace", space, "model",
                          kv_json_text0(model), "tokens", list, "checksum", sum);
    kv_json_dump(out, o);
    kv_buf_adds(out, "\n");
    json_decref(o);
}

/* llama-server's slot and session files: "ggsq" or "ggsn" as a number of either byte order. */
static bool is_foreign(const char *text, size_t n) {
    static const char *const magic[] = {"qsgg", "ggsq", "nsgg", "ggsn"};
    for (int i = 0; i < 4; i++)
        if (n >= 4 && memcmp(text, magic[i], 4) == 0) return true;
    return false;
}

static kv_status damaged(const char *name, const char *what, kv_error *err) {
    return kv_fail_field(err, "filename",
                         "Unable to restore slot: %.100s is no slot file, or damaged (%s); save it again", name, what);
}

static kv_status read_tokens(kv_tokens *out, const json_t *list, const char *name, kv_error *err) {
    if (!json_is_array(list)) return damaged(name, "it has no tokens", err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t token;
        if (!kv_json_as_int(&token, json_array_get(list, i), 0, INT32_MAX))
            return damaged(name, "a token is no number", err);
        kv_tokens_add(out, (kv_token)token);
    }
    return KV_OK;
}

static kv_status read_file(kv_tokens *out, const json_t *file, kv_hash ns, const char *name, kv_error *err) {
    const char *format = json_string_value(json_object_get(file, "format"));
    const char *space = json_string_value(json_object_get(file, "namespace"));
    const char *sum = json_string_value(json_object_get(file, "checksum"));
    kv_hash written;
    if (!format || !space || !sum || !kv_hash_from_hex(&written, space)) return damaged(name, "parts are missing", err);
    if (strcmp(format, FORMAT) != 0)
        return kv_fail_field(err, "filename",
                             "Unable to restore slot: %.100s has the format \"%.40s\", this version reads \"" FORMAT
                             "\"; save it again with this one",
                             name, format);
    kv_status st = read_tokens(out, json_object_get(file, "tokens"), name, err);
    if (st != KV_OK) return st;
    char real[33];
    checksum(real, written, out->data, out->len);
    if (strcmp(real, sum) != 0) return damaged(name, "its checksum differs", err);
    if (kv_hash_equal(written, ns)) return KV_OK;
    const char *model = json_string_value(json_object_get(file, "model"));
    return kv_fail_field(err, "filename",
                         "Unable to restore slot: %.100s was saved with another model, other engine settings or in "
                         "another scope (model %.100s): start the server as it was then, or save it again",
                         name, model ? model : "?");
}

kv_status kv_slot_file_read(kv_tokens *out, const char *text, size_t n, kv_hash ns, const char *name, kv_error *err) {
    if (is_foreign(text, n))
        return kv_fail_field(err, "filename",
                             "Unable to restore slot: %.100s is a file of llama-server (GGSQ), whose cells kvasir "
                             "cannot take over; send that conversation once, then save the slot here",
                             name);
    json_t *file;
    if (kv_json_parse(&file, text, n, NULL) != KV_OK) return damaged(name, "it is no JSON", err);
    size_t before = out->len;
    kv_status st = read_file(out, file, ns, name, err);
    if (st != KV_OK) out->len = before;
    json_decref(file);
    return st;
}

/* ── actions ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct action {
    kv_app *app;
    kv_http_request *req;
    int slot;
    json_t *body;         /* owned */
    const char *filename; /* of body */
    kv_buf folder, path;  /* owned */
    char *scope;          /* owned; the request's */
    kv_tokens tokens;     /* owned */
    int64_t started_us;
} action;

#define POLL_MS   20 /* until a busy slot is looked at again */
#define SETTLE_US (30 * 1000000ll)

static void free_action(action *a) {
    json_decref(a->body);
    kv_buf_free(&a->folder);
    kv_buf_free(&a->path);
    kv_tokens_free(&a->tokens);
    free(a->scope);
}

static double ms_since(int64_t us) {
    return (double)(kv_now_us(kv_clock_real()) - us) / 1000;
}

static kv_status read_body(action *a, kv_error *err) {
    const char *salt = NULL;
    kv_status st = kv_body_read(&a->body, a->req, err);
    if (st == KV_OK && !json_is_object(a->body))
        st = kv_fail(err, KV_INVALID, "the request body must be a JSON object with a \"filename\"");
    if (st == KV_OK) st = kv_json_str(&a->filename, a->body, "filename", err);
    if (st == KV_OK && !a->filename) st = kv_fail_field(err, "filename", "'filename' is required");
    if (st == KV_OK && !kv_slot_file_name_ok(a->filename))
        st = kv_fail_field(err, "filename",
                           "Invalid filename: a name of 1 to 255 bytes without path, control or reserved characters");
    if (st == KV_OK) st = kv_json_str(&salt, a->body, "cache_salt", err);
    if (st == KV_OK) st = kv_scope_of(&a->scope, a->req, salt, err);
    if (st == KV_OK) st = kv_app_require_generator(a->app, err); /* it holds no conversations */
    if (st == KV_OK && !a->app->cache)
        st = kv_fail(err, KV_UNSUPPORTED,
                     "slot files name what the cache keeps, and this server has no cache: start it without "
                     "--cache-ram 0, or with --cache-dir");
    if (st != KV_OK) return st;
    kv_slot_folder(&a->folder, a->app->opt->slot_save_path, a->scope);
    kv_buf_addf(&a->path, "%s/%s", kv_buf_str(&a->folder), a->filename);
    return KV_OK;
}

/* As in llama-server, a request for a busy slot waits. */
static kv_status read_slot(action *a, char **scope, kv_error *err) {
    for (;;) {
        kv_status st = kv_sched_read_slot(&a->tokens, scope, a->app->sched, a->slot, err);
        if (st != KV_BUSY) return st;
        if (kv_http_wait(a->req, NULL, POLL_MS) == KV_WAIT_HUNG_UP)
            return kv_fail(err, KV_CANCELLED, "the client hung up");
    }
}

static void set_wake(void *wake) {
    kv_wake_set(wake);
}

/* Tokens from the start that the cache can put back. */
static kv_status count_kept(int32_t *n, const action *a, kv_error *err) {
    *n = 0;
    if (a->tokens.len == 0) return KV_OK;
    kv_wake wake;
    kv_status st = kv_wake_init(&wake, err);
    if (st != KV_OK) return st;
    kv_tokens more = {0}; /* one more, since of a prompt the last one is never taken from the cache */
    kv_tokens_append(&more, a->tokens.data, a->tokens.len);
    kv_tokens_add(&more, 0);
    kv_lookup *l = kv_lookup_start(a->app->cache, a->scope, more.data, more.len, set_wake, &wake);
    while (st == KV_OK && !kv_lookup_ready(l))
        if (kv_http_wait(a->req, &wake, -1) == KV_WAIT_HUNG_UP) st = kv_fail(err, KV_CANCELLED, "the client hung up");
    if (st == KV_OK) *n = kv_lookup_get(l)->position;
    if (*n > (int32_t)a->tokens.len) *n = (int32_t)a->tokens.len;
    kv_lookup_free(l); /* from here on nobody sets the wake */
    kv_wake_free(&wake);
    kv_tokens_free(&more);
    return st;
}

/* Until what was captured is on disk, or long enough. */
static kv_status settle(const action *a, kv_error *err) {
    int64_t until = kv_now_us(kv_clock_real()) + SETTLE_US;
    while (!kv_cache_settle(a->app->cache, 0) && kv_now_us(kv_clock_real()) < until)
        if (kv_http_wait(a->req, NULL, POLL_MS) == KV_WAIT_HUNG_UP)
            return kv_fail(err, KV_CANCELLED, "the client hung up");
    return KV_OK;
}

static kv_status save(action *a, kv_http_response *res, kv_error *err) {
    char *scope = NULL;
    int32_t kept;
    kv_buf file = {0};
    kv_status st = read_slot(a, &scope, err);
    if (st == KV_OK && scope && strcmp(scope, a->scope) != 0)
        st = kv_fail(err, KV_FORBIDDEN,
                     "slot %d holds a conversation of another scope: save it with the key, header and "
                     "cache_salt that it was sent with",
                     a->slot);
    if (st != KV_OK) goto done;
    st = settle(a, err);
    if (st == KV_OK) st = count_kept(&kept, a, err);
    if (st == KV_OK && kept == 0 && a->tokens.len)
        st = kv_fail(err, KV_NO_MEMORY,
                     "Unable to save slot: the cache keeps none of its %zu tokens; give it more room (--cache-ram, "
                     "--cache-disk)",
                     a->tokens.len);
    if (st != KV_OK) goto done;
    kv_slot_file_write(&file, kv_cache_root_key(a->app->cache, a->scope), a->app->model_name, a->tokens.data,
                       (size_t)kept);
    st = kv_dir_make(kv_buf_str(&a->folder), err); /* of a scope, or the whole one, that somebody removed */
    if (st == KV_OK) st = kv_file_publish(kv_buf_str(&a->path), file.data, file.len, err);
    if (st != KV_OK) goto done;
    json_t *o = json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", a->slot, "filename", a->filename, "n_saved",
                          (int)kept, "n_written", (json_int_t)file.len, "timings", "save_ms", ms_since(a->started_us));
    kv_json_dump_new(&res->body, o);
done:
    free(scope);
    kv_buf_free(&file);
    return st;
}

/* Runs a prompt that generates nothing: it leaves the slot with the first n of the tokens. */
static kv_status put_back(action *a, int32_t n, kv_error *err) {
    kv_wake wake;
    kv_status st = kv_wake_init(&wake, err);
    if (st != KV_OK) return st;
    kv_gen_params p = {
        .prompt = a->tokens.data,
        .n_prompt = (size_t)n,
        .n_predict = 0,
        .cache_prompt = true,
        .scope = a->scope,
        .id_slot = a->slot,
        .t_max_predict_ms = -1,
        .wake = set_wake,
        .wake_ctx = &wake,
    };
    kv_gen *g = kv_gen_new(&p);
    st = kv_sched_submit(a->app->sched, &g, 1, err);
    for (bool over = st != KV_OK; !over;) {
        kv_gen_event e;
        if (!kv_gen_next(&e, g)) {
            if (kv_http_wait(a->req, &wake, -1) != KV_WAIT_HUNG_UP) continue;
            st = kv_fail(err, KV_CANCELLED, "the client hung up");
            break;
        }
        over = e.kind == KV_EVENT_DONE;
        if (over && e.finish == KV_FINISH_ERROR) {
            st = e.error.status;
            if (err) *err = e.error;
        }
        kv_gen_event_free(&e);
    }
    if (st == KV_CANCELLED) kv_gen_cancel(g);
    kv_gen_detach(g); /* from here on nobody sets the wake */
    kv_gen_unref(g);
    kv_wake_free(&wake);
    return st;
}

static kv_status check_kept(const action *a, int32_t kept, kv_error *err) {
    if (kept == 0)
        return kv_fail_field(
            err, "filename",
            "Unable to restore slot: the cache keeps none of the %zu tokens of %.100s any more; send the "
            "conversation again",
            a->tokens.len, a->filename);
    if ((int64_t)a->tokens.len < a->app->n_ctx_served) return KV_OK;
    return kv_fail_context(err, (int64_t)a->tokens.len, a->app->n_ctx_served);
}

static kv_status restore(action *a, kv_http_response *res, kv_error *err) {
    kv_buf file = {0};
    int32_t kept = 0, n = 0;
    kv_status st = kv_file_read(&file, kv_buf_str(&a->path), KV_SLOT_FILE_MAX, err);
    if (st == KV_NOT_FOUND)
        st = kv_fail_field(err, "filename", "Unable to restore slot: there is no file %.100s", a->filename);
    if (st == KV_OK)
        st = kv_slot_file_read(&a->tokens, kv_buf_str(&file), file.len, kv_cache_root_key(a->app->cache, a->scope),
                               a->filename, err);
    if (st == KV_OK && a->tokens.len) {
        st = count_kept(&kept, a, err);
        if (st == KV_OK) st = check_kept(a, kept, err);
        n = kept < (int32_t)a->tokens.len ? kept + 1 : kept; /* the last one is computed */
        if (st == KV_OK) st = put_back(a, n, err);
    }
    if (st == KV_OK) {
        json_t *o =
            json_pack("{s:i, s:s, s:i, s:I, s:{s:f}}", "id_slot", a->slot, "filename", a->filename, "n_restored",
                      (int)n, "n_read", (json_int_t)file.len, "timings", "restore_ms", ms_since(a->started_us));
        kv_json_dump_new(&res->body, o);
    }
    kv_buf_free(&file);
    return st;
}

static kv_status erase(action *a, kv_http_response *res, kv_error *err) {
    int32_t n;
    for (;;) {
        kv_status st = kv_sched_erase_slot(a->app->sched, a->slot, &n, err);
        if (st == KV_OK) break;
        if (st != KV_BUSY) return st;
        if (kv_http_wait(a->req, NULL, POLL_MS) == KV_WAIT_HUNG_UP)
            return kv_fail(err, KV_CANCELLED, "the client hung up");
    }
    json_t *o = json_pack("{s:i, s:i}", "id_slot", a->slot, "n_erased", (int)n);
    kv_json_dump_new(&res->body, o);
    return KV_OK;
}

static kv_status which_slot(int *slot, const kv_app *app, const kv_http_request *req, kv_error *err) {
    const char *text = kv_http_segment(req);
    char *end;
    long n = strtol(text, &end, 10);
    *slot = (int)n;
    if (end != text && !*end && n >= 0 && n < app->engine_info.n_slots) return KV_OK;
    return kv_fail_field(err, "id_slot", "Invalid slot ID: got \"%.40s\", there are slots 0 to %d", text,
                         app->engine_info.n_slots - 1);
}

kv_status kv_serve_slot_action(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    action a = {.app = ctx, .req = req, .started_us = kv_now_us(kv_clock_real())};
    const char *what = kv_http_query(req, "action");
    kv_status st = kv_app_require_ready(a.app, err);
    if (st != KV_OK) return st;
    if (!a.app->opt->slot_save_path)
        return kv_fail(err, KV_UNSUPPORTED,
                       "This server does not support slots action. Start it with `--slot-save-path`");
    st = which_slot(&a.slot, a.app, req, err);
    if (st != KV_OK) return st;
    if (what && strcmp(what, "erase") == 0) return erase(&a, res, err);
    bool saves = what && strcmp(what, "save") == 0;
    if (!saves && !(what && strcmp(what, "restore") == 0))
        return kv_fail_field(err, "action", "Invalid action: got \"%.40s\", takes save, restore or erase",
                             what ? what : "");
    st = read_body(&a, err);
    if (st == KV_OK) st = saves ? save(&a, res, err) : restore(&a, res, err);
    free_action(&a);
    return st;
}
