/* /rerank, /reranking, with and without /v1: documents ordered by how well they answer a query.
 *
 *   {"query", "documents": […], "top_n"}   Jina's  ─► {"model", "object": "list", "usage", "results": [{"index",
 *                                                      "relevance_score"}]}
 *   {"query", "texts": […], "return_text"} TEI's   ─► [{"index", "score", "text"}]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/body.h"
#include "api/embed.h"
#include "api/endpoints.h"
#include "api/params.h"
#include "api/prompt.h"

#define DOCUMENTS_MAX 2048

typedef struct question {
    json_t *body; /* owned */
    const char *model, *query;
    const json_t *documents; /* of body; array of strings */
    const char *field;       /* "documents" or "texts" */
    bool tei, return_text;
    int64_t top_n;
    kv_tokens *prompts; /* owned, one a document */
    int n;
    float *scores; /* owned */
} question;

typedef struct place {
    int document;
    float score;
} place;

static void free_question(question *q) {
    for (int i = 0; q->prompts && i < q->n; i++) kv_tokens_free(&q->prompts[i]);
    free(q->prompts);
    free(q->scores);
    json_decref(q->body);
}

static kv_status check_documents(question *q, kv_error *err) {
    size_t n = json_array_size(q->documents);
    if (n == 0) return kv_fail_field(err, q->field, "\"%s\" must be a non-empty string array", q->field);
    if (n > DOCUMENTS_MAX)
        return kv_fail_field(err, q->field, "'%s' has %zu documents, at most %d are taken", q->field, n, DOCUMENTS_MAX);
    for (size_t i = 0; i < n; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s[%zu]", q->field, i);
        if (!json_is_string(json_array_get(q->documents, i)))
            return kv_fail_field(err, path, "\"%s\" must be a non-empty string array: '%s' is no string", q->field,
                                 path);
    }
    q->n = (int)n;
    return KV_OK;
}

static kv_status read_question(question *q, const kv_app *app, kv_http_request *req, kv_error *err) {
    kv_status st = kv_body_read_for_model(&q->body, req, app, err);
    if (st != KV_OK) return st;
    q->model = app->model_name;
    q->tei = kv_json_get(q->body, "texts") != NULL;
    q->field = kv_json_get(q->body, "documents") || !q->tei ? "documents" : "texts";
    q->documents = kv_json_get(q->body, q->field);
    st = kv_json_str(&q->model, q->body, "model", err);
    if (st == KV_OK) st = kv_json_str(&q->query, q->body, "query", err);
    if (st == KV_OK && !q->query) st = kv_fail_field(err, "query", "\"query\" must be provided");
    if (st == KV_OK) st = check_documents(q, err);
    q->top_n = q->n;
    if (st == KV_OK) st = kv_json_int(&q->top_n, q->body, "top_n", 0, INT32_MAX, err);
    if (st == KV_OK) st = kv_json_bool(&q->return_text, q->body, "return_text", err);
    return st;
}

/* ── prompts ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The template with both in their places. Unlike llama-server's, a query that holds "{document}" stays as it is: with
 * the document in each of its places a small request would be of any size. */
static void fill_template(kv_buf *out, const char *template, const char *query, const char *document) {
    static const char query_mark[] = "{query}", document_mark[] = "{document}";
    for (const char *p = template; *p;) {
        size_t n = strcspn(p, "{");
        kv_buf_add(out, p, n);
        p += n;
        if (strncmp(p, query_mark, sizeof query_mark - 1) == 0) {
            kv_buf_adds(out, query);
            p += sizeof query_mark - 1;
        } else if (strncmp(p, document_mark, sizeof document_mark - 1) == 0) {
            kv_buf_adds(out, document);
            p += sizeof document_mark - 1;
        } else if (*p) {
            kv_buf_add(out, p++, 1);
        }
    }
}

static kv_status by_template(kv_tokens *out, const kv_model *model, const char *query, const char *document,
                             kv_error *err) {
    kv_buf text = {0};
    fill_template(&text, kv_model_get_info(model)->rerank_template, query, document);
    kv_status st = kv_model_tokenize(out, model, kv_buf_str(&text), text.len, false, true, err);
    kv_buf_free(&text);
    return st;
}

/* [BOS] query [EOS] [SEP] document [EOS], each where the vocabulary wants it. */
static kv_status side_by_side(kv_tokens *out, const kv_model *model, const char *query, const char *document,
                              kv_error *err) {
    const kv_model_info *m = kv_model_get_info(model);
    kv_token eos = m->eos >= 0 ? m->eos : m->sep;
    if (m->add_bos && m->bos >= 0) kv_tokens_add(out, m->bos);
    kv_status st = kv_model_tokenize(out, model, query, strlen(query), false, false, err);
    if (m->add_eos && eos >= 0) kv_tokens_add(out, eos);
    if (m->add_sep && m->sep >= 0) kv_tokens_add(out, m->sep);
    if (st == KV_OK) st = kv_model_tokenize(out, model, document, strlen(document), false, false, err);
    if (m->add_eos && eos >= 0) kv_tokens_add(out, eos);
    return st;
}

/* Each is measured as it is made: a long query stands in all of them. */
static kv_status make_prompts(question *q, const kv_app *app, kv_error *err) {
    const kv_model *model = app->model;
    kv_status st = KV_OK;
    q->prompts = kv_alloc((size_t)q->n * sizeof *q->prompts);
    for (int i = 0; st == KV_OK && i < q->n; i++) {
        const char *document = json_string_value(json_array_get(q->documents, (size_t)i));
        st = kv_model_get_info(model)->rerank_template ? by_template(&q->prompts[i], model, q->query, document, err)
                                                       : side_by_side(&q->prompts[i], model, q->query, document, err);
        if (st == KV_OK) st = kv_embed_check_text(app->embed, &q->prompts[i], q->field, q->n > 1 ? i : -1, err);
    }
    return st;
}

/* ── answer ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Best first; of equals the earlier one. */
static int by_score(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->document - y->document;
}

static json_t *results(const question *q) {
    place *list = kv_alloc((size_t)q->n * sizeof *list);
    json_t *out = json_array();
    for (int i = 0; i < q->n; i++) list[i] = (place){i, q->scores[i]};
    qsort(list, (size_t)q->n, sizeof *list, by_score);
    for (int i = 0; i < q->n && i < q->top_n; i++) {
        json_t *o = json_pack("{s:i, s:f}", "index", list[i].document, q->tei ? "score" : "relevance_score",
                              (double)list[i].score);
        if (q->tei && q->return_text)
            json_object_set(o, "text", json_array_get(q->documents, (size_t)list[i].document));
        json_array_append_new(out, o);
    }
    free(list);
    return out;
}

static json_t *answer(const question *q) {
    json_t *list = results(q);
    if (q->tei) return list;
    json_int_t n_tokens = 0;
    for (int i = 0; i < q->n; i++) n_tokens += (json_int_t)q->prompts[i].len;
    return json_pack("{s:o, s:s, s:{s:I, s:I}, s:o}", "model", kv_json_text0(q->model), "object", "list", "usage",
                     "prompt_tokens", n_tokens, "total_tokens", n_tokens, "results", list);
}

kv_status kv_serve_rerank(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    question q = {0};
    kv_status st = kv_app_require_ready(app, err);
    if (st == KV_OK && (!app->embed || kv_embed_get_info(app->embed)->pooling != KV_POOLING_RANK))
        st = kv_fail(err, KV_UNSUPPORTED, "This server does not support reranking. Start it with `--reranking`");
    if (st == KV_OK) st = read_question(&q, app, req, err);
    if (st == KV_OK) st = make_prompts(&q, app, err);
    if (st == KV_OK) st = kv_embed_run(&q.scores, app, q.prompts, q.n, q.field, req, err);
    if (st == KV_OK) {
        json_t *o = answer(&q);
        kv_json_dump_new(&res->body, o);
        kv_http_note(req, "ranked %d documents", q.n);
    }
    free_question(&q);
    return st;
}
