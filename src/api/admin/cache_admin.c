/* The admin's view of the cache: what it holds, how a prompt would fare, why the last ones missed.
 *
 *   GET  /kvasir/cache      {"enabled", "ram_bytes", …, "misses": {"diverged": 3, …}}
 *   DELETE /kvasir/cache?scope=NAME | ?all=true     forgets this model's cache of a scope, or all of it, idle slots too,
 *                                                 and the scope's stored responses and texts of misses
 *   POST /kvasir/explain    a body of /v1/chat/completions or of /v1/completions ─► what a look-up finds; nothing runs
 *   GET  /kvasir/why        the newest miss, or with ?id=REQUEST that request's; ?id=last is the newest, too
 *
 * With keys in use these take one marked `admin`; without, a client on this machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/account.h"
#include "api/body.h"
#include "api/chat_body.h"
#include "api/endpoints.h"
#include "api/respelling.h"
#include "api/scope.h"
#include "cache/namespace.h"
#include "state/stored.h"
#include "store/spellings.h"

static kv_status require_admin(const kv_http_request *req, kv_error *err) {
    if (kv_http_is_admin(req)) return KV_OK;
    return kv_fail(err, KV_FORBIDDEN,
                   "this path takes a key that the key file (--api-key-file) marks as admin; without any keys it "
                   "answers to clients on the same machine only");
}

static json_t *number(uint64_t n) {
    return json_integer((json_int_t)n);
}

/* ── /kvasir/cache ─────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *stats_json(const kv_cache_stats *c) {
    const struct {
        const char *name;
        uint64_t n;
    } list[] = {
        {"lookups", c->n_lookups},
        {"tokens_looked_up", c->tokens_looked_up},
        {"tokens_matched", c->tokens_matched},
        {"tokens_restored", c->tokens_restored},
        {"blocks", c->n_blocks},
        {"windows", c->n_windows},
        {"checkpoints", c->n_checkpoints},
        {"bytes_captured", c->bytes_captured},
        {"dropped", c->n_dropped},
        {"evicted", c->n_evicted},
        {"written", c->n_written},
        {"bytes_written", c->bytes_written},
        {"not_written", c->n_not_written},
        {"read", c->n_read},
        {"bytes_read", c->bytes_read},
        {"read_failed", c->n_read_failed},
        {"orphans", c->n_orphans},
        {"queue_bytes", c->queue_bytes},
        {"ram_bytes", c->ram_bytes},
        {"read_bytes", c->read_bytes},
        {"nodes", c->nodes},
        {"tree_bytes", c->tree_bytes},
    };
    json_t *o = json_object(), *misses = json_object();
    json_object_set_new(o, "enabled", json_true());
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) json_object_set_new(o, list[i].name, number(list[i].n));
    for (int m = KV_MISS_NONE + 1; m < KV_MISS_COUNT; m++)
        json_object_set_new(misses, kv_account_reason((kv_miss)m), number(c->n_miss[m]));
    json_object_set_new(o, "misses", misses);
    return o;
}

kv_status kv_serve_cache(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    kv_status st = require_admin(req, err);
    if (st == KV_OK) st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    kv_cache_stats stats;
    kv_metrics_input in;
    if (kv_gate_look(app->gate)) {
        in.cache = app->cache ? &stats : NULL;
        if (app->cache) kv_cache_get_stats(&stats, app->cache);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_metrics(&in, &stats, app->asleep);
    }
    kv_json_dump_new(&res->body, in.cache ? stats_json(&stats) : json_pack("{s:b}", "enabled", 0));
    return KV_OK;
}

/* ── /kvasir/explain ───────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct question {
    kv_params params;     /* owned */
    kv_prompts prompts;   /* owned; one */
    kv_chat_prompt *chat; /* owned; NULL without messages */
    char *scope;          /* owned */
} question;

static void free_question(question *q) {
    kv_params_free(&q->params);
    kv_prompts_free(&q->prompts);
    kv_chat_prompt_free(q->chat);
    free(q->scope);
}

static kv_status read_chat(question *q, const kv_app *app, const json_t *body, const kv_http_request *req,
                           kv_error *err) {
    kv_status st = kv_chat_body_read(&q->params, &q->chat, body, req, app, err);
    if (st != KV_OK) return st;
    size_t n;
    const char *text = kv_chat_prompt_text(q->chat, &n);
    return kv_prompts_from_text(&q->prompts, app->model, text, n, err);
}

static kv_status read_question(question *q, const kv_app *app, const kv_http_request *req, kv_error *err) {
    json_t *body = NULL;
    kv_status st = kv_body_read_for_model(&body, req, app, err);
    if (st != KV_OK) return st;
    if (kv_json_get(body, "messages")) {
        st = read_chat(q, app, body, req, err);
    } else {
        st = kv_params_parse(&q->params, body, KV_API_COMPLETIONS, app, err);
        if (st == KV_OK) st = kv_prompts_parse(&q->prompts, app->model, json_object_get(body, "prompt"), err);
    }
    if (st == KV_OK && q->prompts.n != 1) st = kv_fail_field(err, "prompt", "'prompt' must be one prompt here");
    if (st == KV_OK && q->prompts.list[0].len == 0) st = kv_fail_field(err, "prompt", "'prompt' must not be empty");
    if (st == KV_OK) st = kv_scope_of(&q->scope, req, q->params.cache_salt, err);
    json_decref(body);
    return st;
}

static void set_wake(void *wake) {
    kv_wake_set(wake);
}

static kv_status look_up(kv_lookup_result *out, const kv_app *app, const question *q, kv_http_request *req,
                         kv_error *err) {
    *out = (kv_lookup_result){.miss = KV_MISS_DISABLED};
    if (!app->cache || !q->params.cache_prompt) return KV_OK;
    const kv_tokens *t = &q->prompts.list[0];
    kv_wake wake;
    kv_status st = kv_wake_init(&wake, err);
    if (st != KV_OK) return st;
    kv_lookup *l = kv_lookup_start(app->cache, q->scope, t->data, t->len, set_wake, &wake);
    while (st == KV_OK && !kv_lookup_ready(l))
        if (kv_http_wait(req, &wake, -1) == KV_WAIT_HUNG_UP) st = kv_fail(err, KV_CANCELLED, "the client hung up");
    if (st == KV_OK) *out = *kv_lookup_get(l);
    kv_lookup_free(l); /* from here on nobody sets the wake */
    kv_wake_free(&wake);
    return st;
}

kv_status kv_serve_explain(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    question q = {0};
    kv_lookup_result found;
    kv_status st = require_admin(req, err);
    if (st == KV_OK) st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = read_question(&q, app, req, err);
    int32_t n_respelled = st == KV_OK ? kv_respell_prompt(NULL, &q.prompts, 0, app, &q.params, q.scope) : 0;
    if (st == KV_OK) st = look_up(&found, app, &q, req, err);
    if (st == KV_OK) {
        const kv_tokens *prompt = &q.prompts.list[0];
        const kv_asked asked = kv_asked_of(app, &q.params, prompt, q.chat);
        kv_account a = {.matched = found.n_match};
        kv_account_set_miss(&a, found.miss, found.miss_position, found.elsewhere);
        kv_json_dump_new(&res->body,
                         json_pack("{s:I, s:i, s:i, s:I, s:o, s:o*}", "prompt_tokens", (json_int_t)prompt->len,
                                   "matched", (int)found.n_match, "resumable", (int)found.position, "bytes",
                                   (json_int_t)found.bytes, "miss", kv_account_miss(&asked, &a), "respelled",
                                   n_respelled ? json_integer((json_int_t)n_respelled) : NULL));
    }
    free_question(&q);
    return st;
}

/* ── DELETE /kvasir/cache ──────────────────────────────────────────────────────────────────────────────────────── */

/* The scope to be erased, owned by the caller; NULL for all. */
static kv_status which_scope(char **out, const kv_http_request *req, kv_error *err) {
    const char *all = kv_http_query(req, "all"), *scope = kv_http_query(req, "scope");
    *out = NULL;
    bool everything = all && strcmp(all, "true") == 0;
    if (everything != (scope && *scope)) {
        if (everything) return KV_OK;
        bool header_too = kv_http_get_header(req, KV_SCOPE_HEADER) != NULL;
        *out = kv_scope_join(strcmp(scope, "default") == 0 ? "" : scope,
                             header_too ? kv_http_get_header(req, KV_SCOPE_HEADER) : NULL, NULL);
        return KV_OK;
    }
    return kv_fail_field(
        err, "scope", "say what to erase: ?scope=NAME (\"default\" is the one without a name), or ?all=true; not both");
}

kv_status kv_serve_erase_cache(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    char *scope;
    kv_status st = require_admin(req, err);
    if (st == KV_OK) st = kv_app_require_ready(app, err);
    if (st == KV_OK) st = which_scope(&scope, req, err);
    if (st != KV_OK) return st;
    /* What runs keeps its slot; idle ones may hold anybody's tokens, and only cost a restore. */
    for (int i = 0; i < app->engine_info.n_slots; i++) kv_sched_erase_slot(app->sched, i, NULL, NULL);
    uint64_t records = app->cache ? kv_cache_erase(app->cache, scope, err) : 0;
    uint64_t responses = app->responses ? kv_stored_erase(app->responses, scope) : 0;
    if (app->spellings && scope) kv_spellings_erase(app->spellings, kv_namespace_root(app->cache_base, scope));
    else if (app->spellings) kv_spellings_erase_model(app->spellings, app->cache_base);
    kv_ledger_forget_texts(app->ledger, scope);
    free(scope);
    kv_json_dump_new(&res->body, json_pack("{s:I, s:I}", "erased_records", (json_int_t)records, "erased_responses",
                                           (json_int_t)responses));
    return KV_OK;
}

/* ── /kvasir/why ───────────────────────────────────────────────────────────────────────────────────────────────── */

kv_status kv_serve_why(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    kv_ledger_miss m;
    kv_status st = require_admin(req, err);
    if (st != KV_OK) return st;
    const char *id = kv_http_query(req, "id");
    bool any = !id || !*id || strcmp(id, "last") == 0;
    if (!kv_ledger_find(&m, app->ledger, any ? NULL : id))
        return kv_fail(err, KV_NOT_FOUND,
                       any ? "no request missed anything yet"
                           : "no miss is kept under this id: the request reused all it could, is not over yet, or is "
                             "older than the last %d misses",
                       KV_LEDGER_MISSES);
    const kv_account *a = &m.account;
    kv_buf why = {0};
    kv_account_explain(&why, a);
    json_t *o = json_pack("{s:s, s:I, s:s, s:i, s:o, s:i, s:{s:i, s:i, s:i}, s:i, s:f, s:f}", "id", m.id, "time",
                          (json_int_t)m.time, "reason", kv_account_reason(a->miss), "position", (int)a->position,
                          "explanation", kv_json_text(kv_buf_str(&why), why.len), "prompt_tokens",
                          (int)(a->engine + a->ram + a->disk + a->computed), "cached", "engine", (int)a->engine, "ram",
                          (int)a->ram, "disk", (int)a->disk, "computed", (int)a->computed, "restore_ms", a->restore_ms,
                          "prefill_ms", a->prefill_ms);
    if (m.text) json_object_set_new(o, "text", kv_json_text0(m.text));
    if (m.hint) json_object_set_new(o, "hint", kv_json_text0(m.hint));
    kv_json_dump_new(&res->body, o);
    kv_buf_free(&why);
    free(m.text);
    free(m.hint);
    return KV_OK;
}
