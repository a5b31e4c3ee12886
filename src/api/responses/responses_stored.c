/* Stored responses: the conversation that a request goes on with, and GET, DELETE, cancel and input_items.
 *
 *   GET    /v1/responses/{id}                the response object as it was sent
 *   DELETE /v1/responses/{id}                {"id", "object": "response", "deleted": true}
 *   POST   /v1/responses/{id}/cancel         400: only what runs in the background could be cancelled
 *   GET    /v1/responses/{id}/input_items    all items that the model read: ?limit=20&order=desc&after=ITEM
 *
 * What belongs to another scope is a 404. A response made under a cache_salt is found with ?cache_salt=SALT.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/endpoints.h"
#include "api/responses/responses.h"
#include "api/scope.h"
#include "base/log.h"

#define LIST_DEFAULT 20
#define LIST_MAX     100

/* A stored text, which was JSON when it was put; what is not any more is an empty `fallback`. */
static json_t *parse(const kv_buf *text, bool array) {
    json_t *v = NULL;
    kv_json_parse(&v, kv_buf_str(text), text->len, NULL);
    if (array ? json_is_array(v) : json_is_object(v)) return v;
    json_decref(v);
    return array ? json_array() : json_object();
}

static kv_status no_store(kv_error *err, const char *id) {
    return kv_fail(err, KV_NOT_FOUND, "there is no response with the id '%.80s': this server stores none", id);
}

/* ── the conversation before ───────────────────────────────────────────────────────────────────────────────────── */

static void extend(json_t *items, json_t *list) {
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item) if (json_is_object(item) && json_is_string(json_object_get(item, "type")))
        json_array_append(items, item);
}

void kv_response_tokens_free(kv_response_tokens *t) {
    kv_tokens_free(&t->all);
    free(t->answers);
    *t = (kv_response_tokens){0};
}

/* Its tokens begin as those before. Where its answer stands in them, the object's usage tells. */
static void add_tokens(kv_response_tokens *t, const kv_stored_response *one, const json_t *object) {
    size_t shared = one->n_shared < t->all.len ? one->n_shared : t->all.len;
    t->all.len = shared;
    kv_tokens_append(&t->all, one->tokens.data, one->tokens.len);
    while (t->n && t->answers[t->n - 1].end > shared) t->n--;
    const json_t *usage = json_object_get(object, "usage"), *details = json_object_get(usage, "output_tokens_details");
    json_int_t start = json_integer_value(json_object_get(usage, "input_tokens"));
    json_int_t n_reasoning = json_integer_value(json_object_get(details, "reasoning_tokens"));
    if (start <= 0 || start >= (json_int_t)t->all.len || n_reasoning < 0) return;
    t->answers = kv_realloc(t->answers, (t->n + 1) * sizeof *t->answers);
    t->answers[t->n++] = (kv_response_answer){(size_t)start, t->all.len, (size_t)n_reasoning};
}

/* tokens: may be NULL. */
static void add_response(json_t *items, kv_response_tokens *tokens, const kv_stored_response *one, bool with_output) {
    json_t *input = parse(&one->input, true), *object = with_output ? parse(&one->object, false) : NULL;
    extend(items, input);
    extend(items, json_object_get(object, "output"));
    if (tokens) add_tokens(tokens, one, object);
    json_decref(input);
    json_decref(object);
}

kv_status kv_response_load(json_t *items, kv_response_tokens *tokens, const char *id, const char *scope,
                           const kv_app *app, kv_error *err) {
    kv_stored_chain chain;
    if (!app->responses) return no_store(err, id);
    kv_status st = kv_stored_get_chain(&chain, app->responses, scope, id, err);
    if (st != KV_OK) return st;
    for (size_t i = 0; i < chain.n; i++) add_response(items, tokens, &chain.list[i], true);
    kv_stored_chain_free(&chain);
    return KV_OK;
}

/* owners: response: {id: true, …} */
static kv_status find_owners(json_t *owners, json_t *items, const char **missing, const char *scope, const kv_app *app,
                             kv_error *err) {
    json_t *unused;
    json_object_foreach(items, *missing, unused) {
        (void)unused;
        char *owner;
        if (!app->responses) return no_store(err, *missing);
        kv_status st = kv_stored_find_item(&owner, app->responses, scope, *missing, err);
        if (st != KV_OK) return st;
        json_t *wanted = json_object_get(owners, owner);
        if (!wanted) json_object_set_new(owners, owner, wanted = json_object());
        json_object_set_new(wanted, *missing, json_true());
        free(owner);
    }
    return KV_OK;
}

/* The first item of each id that is wanted of this response; what is found is not wanted any more. */
static kv_status take_items(json_t *items, json_t *wanted, const char *owner, const char *scope, const kv_app *app,
                            kv_error *err) {
    kv_stored_response from;
    kv_status st = kv_stored_get(&from, app->responses, scope, owner, err);
    if (st != KV_OK) return st;
    json_t *all = json_array(), *item;
    size_t i;
    add_response(all, NULL, &from, true);
    json_array_foreach(all, i, item) {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (id && json_object_del(wanted, id) == 0) json_object_set(items, id, item);
    }
    json_decref(all);
    kv_stored_response_free(&from);
    return KV_OK;
}

kv_status kv_response_find_items(json_t *items, const char **missing, const char *scope, const kv_app *app,
                                 kv_error *err) {
    json_t *owners = json_object(), *wanted;
    const char *owner;
    kv_status st = find_owners(owners, items, missing, scope, app, err);
    if (st != KV_OK) goto done;
    json_object_foreach(owners, owner, wanted) {
        st = take_items(items, wanted, owner, scope, app, err);
        const char *left = json_object_iter_key(json_object_iter(wanted));
        if (!left) continue;
        if (st == KV_OK) st = kv_fail(err, KV_NOT_FOUND, "no stored response has an item with the id '%.80s'", left);
        *missing = json_object_iter_key(json_object_iter_at(items, left)); /* `wanted` goes */
        break;
    }
done:
    json_decref(owners);
    return st;
}

/* ── keeping one ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void collect_ids(const char **ids, size_t *n, const json_t *list) {
    const json_t *item;
    size_t i;
    json_array_foreach(list, i, item) {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (id) ids[(*n)++] = id;
    }
}

static void set_tokens(kv_stored_response *out, const kv_response *r, const kv_job *j) {
    kv_tokens all = {0};
    kv_tokens_append(&all, j->prompts.list[0].data, j->prompts.list[0].len);
    kv_tokens_append(&all, j->choice[0].tokens.data, j->choice[0].tokens.len);
    out->n_shared = kv_tokens_common(r->before.all.data, r->before.all.len, all.data, all.len);
    kv_tokens_append(&out->tokens, all.data + out->n_shared, all.len - out->n_shared);
    kv_tokens_free(&all);
}

bool kv_response_save(const kv_response *r, const kv_job *j, const json_t *object) {
    if (!j->app->responses) return false;
    kv_stored_response one = {.id = (char *)j->id, .previous = r->previous};
    const char **ids = kv_alloc((json_array_size(r->input) + json_array_size(r->output) + 1) * sizeof *ids);
    size_t n = 0;
    kv_error err;
    collect_ids(ids, &n, r->input);
    collect_ids(ids, &n, r->output);
    kv_json_dump(&one.object, object);
    kv_json_dump(&one.input, r->input);
    set_tokens(&one, r, j);
    kv_status st = kv_stored_put(j->app->responses, r->scope, &one, ids, n, &err);
    if (st != KV_OK) KV_WARN("%s is not stored: %s", j->id, err.message);
    free(ids);
    kv_buf_free(&one.object);
    kv_buf_free(&one.input);
    kv_tokens_free(&one.tokens);
    return st == KV_OK;
}

/* ── the same tokens again ─────────────────────────────────────────────────────────────────────────────────────── */

typedef struct side {
    const kv_tokens *tokens;
    size_t n;     /* tokens spelled so far */
    kv_buf ahead; /* their bytes that the other side has not spelled yet */
} side;

/* False at the end of its tokens. */
static bool spell_next(side *s, const kv_model *model) {
    if (s->n >= s->tokens->len) return false;
    kv_token t = s->tokens->data[s->n];
    if (t < 0 || t >= kv_model_get_info(model)->n_vocab) return false; /* of another model */
    s->n++;
    kv_model_piece(&s->ahead, model, t, true);
    return true;
}

/* Takes off what both have; false when they differ. */
static bool match_ahead(side *a, side *b) {
    size_t n = a->ahead.len < b->ahead.len ? a->ahead.len : b->ahead.len;
    if (n && memcmp(a->ahead.data, b->ahead.data, n) != 0) return false;
    kv_buf_drop_front(&a->ahead, n);
    kv_buf_drop_front(&b->ahead, n);
    return true;
}

static bool are_ours(const kv_tokens *t, size_t from, size_t to, const kv_model *model) {
    for (size_t i = from; i < to; i++)
        if (t->data[i] < 0 || t->data[i] >= kv_model_get_info(model)->n_vocab) return false;
    return true;
}

/* The two differ behind the place where both have n tokens' ends. True when that is inside an answer that may be taken as
 * it was sampled: both sides go on behind its end. In the prompt that is the first end of generation of any kind, which
 * has to be the same one. */
static bool skip_answer(side *a, side *b, size_t n_before, size_t n_prompt, const kv_response_tokens *before,
                        const kv_model *model) {
    for (size_t i = 0; i < before->n; i++) {
        const kv_response_answer *s = &before->answers[i];
        if (n_before < s->start + s->n_reasoning || n_before >= s->end) continue;
        kv_token last = before->all.data[s->end - 1];
        size_t k = n_prompt;
        if (!kv_model_is_eog(model, last)) return false;
        while (k < b->tokens->len && !kv_model_is_eog(model, b->tokens->data[k])) k++;
        if (k >= b->tokens->len || b->tokens->data[k] != last) return false;
        if (!are_ours(&before->all, n_before, s->end, model)) return false; /* sampled by another model */
        a->n = s->end;
        b->n = k + 1;
        kv_buf_clear(&a->ahead);
        kv_buf_clear(&b->ahead);
        return true;
    }
    return false;
}

void kv_response_reuse(kv_tokens *prompt, const kv_response_tokens *before, const kv_model *model) {
    const kv_tokens *old = &before->all;
    side a = {old, 0, {0}}, b = {prompt, 0, {0}};
    size_t n_before = 0, n_prompt = 0; /* the last place where both have a token's end */
    for (;;) {
        bool even = a.ahead.len == b.ahead.len; /* then both are 0 */
        if (even) {
            n_before = a.n;
            n_prompt = b.n;
        }
        if (even && a.n < old->len && b.n < prompt->len && old->data[a.n] == prompt->data[b.n]) {
            a.n++;
            b.n++;
            continue;
        }
        /* After a match at least one side has nothing ahead: it spells its next token. */
        bool more = a.ahead.len > 0 || spell_next(&a, model);
        if (more && b.ahead.len == 0) more = spell_next(&b, model);
        if (more && match_ahead(&a, &b)) continue;
        if (!skip_answer(&a, &b, n_before, n_prompt, before, model)) break;
    }
    kv_buf_free(&a.ahead);
    kv_buf_free(&b.ahead);
    if (n_before == 0) return;
    kv_tokens whole = {0};
    kv_tokens_append(&whole, old->data, n_before);
    kv_tokens_append(&whole, prompt->data + n_prompt, prompt->len - n_prompt);
    kv_tokens_free(prompt);
    *prompt = whole;
}

/* ── endpoints ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status get(kv_stored_response *out, char **scope, const kv_app *app, const kv_http_request *req,
                     kv_error *err) {
    const char *id = kv_http_segment(req);
    *out = (kv_stored_response){0};
    kv_status st = kv_scope_of(scope, req, kv_http_query(req, "cache_salt"), err);
    if (st != KV_OK) return st;
    return app->responses ? kv_stored_get(out, app->responses, *scope, id, err) : no_store(err, id);
}

kv_status kv_serve_get_response(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    const char *stream = kv_http_query(req, "stream");
    if (stream && strcmp(stream, "false") != 0)
        return kv_fail_field(err, "stream", "'stream' is not supported here: a stored response is sent whole");
    char *scope;
    kv_stored_response found;
    kv_status st = get(&found, &scope, ctx, req, err);
    if (st == KV_OK) kv_buf_add(&res->body, found.object.data, found.object.len);
    kv_stored_response_free(&found);
    free(scope);
    return st;
}

kv_status kv_serve_delete_response(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    const kv_app *app = ctx;
    const char *id = kv_http_segment(req);
    char *scope;
    kv_status st = kv_scope_of(&scope, req, kv_http_query(req, "cache_salt"), err);
    if (st != KV_OK) return st;
    st = app->responses ? kv_stored_delete(app->responses, scope, id, err) : no_store(err, id);
    free(scope);
    if (st != KV_OK) return st;
    json_t *o = json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1);
    kv_json_dump_new(&res->body, o);
    return KV_OK;
}

kv_status kv_serve_cancel_response(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)res;
    char *scope;
    kv_stored_response found;
    kv_status st = get(&found, &scope, ctx, req, err);
    if (st == KV_OK)
        st = kv_fail(err, KV_INVALID,
                     "the response '%.80s' cannot be cancelled: only background responses can, and this server has "
                     "none; hang up to end one that is being made",
                     kv_http_segment(req));
    kv_stored_response_free(&found);
    free(scope);
    return st;
}

/* ── input_items ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* Of what came before as much as is still there; the response's own always. */
static json_t *items_of(const kv_stored_response *r, const char *scope, const kv_app *app) {
    json_t *items = json_array();
    if (r->previous) kv_response_load(items, NULL, r->previous, scope, app, NULL);
    add_response(items, NULL, r, false);
    return items;
}

typedef struct listing {
    int64_t limit;
    bool ascending;
    const char *after; /* NULL = from the first one */
} listing;

static kv_status read_listing(listing *l, const kv_http_request *req, kv_error *err) {
    const char *limit = kv_http_query(req, "limit"), *order = kv_http_query(req, "order");
    *l = (listing){.limit = LIST_DEFAULT, .after = kv_http_query(req, "after")};
    if (limit) {
        char *end;
        l->limit = strtoll(limit, &end, 10);
        if (*end || end == limit || l->limit < 1 || l->limit > LIST_MAX)
            return kv_fail_field(err, "limit", "'limit' must be an integer between 1 and %d", LIST_MAX);
    }
    l->ascending = order && strcmp(order, "asc") == 0;
    if (order && !l->ascending && strcmp(order, "desc") != 0)
        return kv_fail_field(err, "order", "'order' must be \"asc\" or \"desc\"");
    return KV_OK;
}

/* One page of `items`, which are in the order of the conversation. A new object, NULL with an error. */
static json_t *page(const json_t *items, const listing *l, kv_error *err) {
    json_t *data = json_array();
    size_t n = json_array_size(items);
    bool begun = !l->after, more = false;
    for (size_t i = 0; i < n && !more; i++) {
        json_t *item = json_array_get(items, l->ascending ? i : n - 1 - i);
        const char *id = json_string_value(json_object_get(item, "id"));
        if (begun && json_array_size(data) == (size_t)l->limit) more = true;
        else if (begun) json_array_append(data, item);
        else begun = id && strcmp(id, l->after) == 0;
    }
    if (!begun) {
        json_decref(data);
        kv_fail_field(err, "after", "'after' is \"%.80s\", and no item of this response has that id", l->after);
        return NULL;
    }
    size_t got = json_array_size(data);
    const json_t *first = json_object_get(json_array_get(data, 0), "id");
    const json_t *last = got ? json_object_get(json_array_get(data, got - 1), "id") : NULL;
    return json_pack("{s:s, s:o, s:O?, s:O?, s:b}", "object", "list", "data", data, "first_id", first, "last_id", last,
                     "has_more", more);
}

kv_status kv_serve_response_input_items(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    listing l;
    char *scope = NULL;
    kv_stored_response found = {0};
    json_t *list = NULL;
    kv_status st = read_listing(&l, req, err);
    if (st == KV_OK) st = get(&found, &scope, ctx, req, err);
    if (st == KV_OK) {
        json_t *items = items_of(&found, scope, ctx);
        list = page(items, &l, err);
        json_decref(items);
        if (list) kv_json_dump(&res->body, list);
        else st = KV_INVALID;
    }
    json_decref(list);
    kv_stored_response_free(&found);
    free(scope);
    return st;
}
