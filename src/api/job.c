#include "api/job.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/account.h"
#include "api/body.h"
#include "api/errors.h"
#include "api/respelling.h"
#include "api/scope.h"
#include "api/shapes.h"
#include "api/spell.h"
#include "api/stream.h"

kv_job *kv_job_new(const kv_app *app, const kv_dialect *dialect) {
    kv_job *j = kv_alloc(sizeof *j);
    j->app = app;
    j->dialect = dialect;
    j->created = kv_wall_seconds();
    j->started_us = kv_now_us(kv_clock_real());
    kv_shape_id(j->id, sizeof j->id, dialect->id_prefix);
    return j;
}

static void drop_gen(kv_choice *c) {
    if (!c->gen) return;
    if (!c->done) kv_gen_cancel(c->gen);
    kv_gen_detach(c->gen); /* the wake goes with the job */
    kv_gen_unref(c->gen);
    c->gen = NULL;
}

static void free_choice(kv_choice *c) {
    drop_gen(c);
    kv_chat_stream_free(c->chat);
    kv_buf_free(&c->text);
    kv_tokens_free(&c->tokens);
    json_decref(c->probs);
    json_decref(c->call);
    free(c->stop_word);
}

void kv_job_free(kv_job *j) {
    if (!j) return;
    kv_account_record(j); /* a client that went away in the middle is no reason not to count */
    for (int i = 0; i < j->n_choices; i++) free_choice(&j->choice[i]);
    free(j->choice);
    if (j->dialect->free) j->dialect->free(j);
    if (j->has_wake) kv_wake_free(&j->wake);
    kv_chat_prompt_free(j->chat);
    kv_prompts_free(&j->prompts);
    kv_params_free(&j->params);
    free(j->hints);
    free(j->respelled);
    free(j->scope);
    free(j);
}

void kv_job_cancel(kv_job *j) {
    for (int i = 0; i < j->n_choices; i++)
        if (j->choice[i].gen && !j->choice[i].done) kv_gen_cancel(j->choice[i].gen);
    j->over = true;
}

/* ── preparing ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void wake_job(void *ctx) {
    kv_wake_set(ctx);
}

static kv_status check_lengths(const kv_job *j, kv_error *err) {
    for (int p = 0; p < j->prompts.n; p++) {
        const kv_tokens *t = &j->prompts.list[p];
        /* one token of room for the answer, as in llama-server */
        if ((int64_t)t->len >= j->app->n_ctx_served) return kv_fail_context(err, (int64_t)t->len, j->app->n_ctx_served);
        kv_status st = kv_sched_check(j->app->sched, t->data, t->len, j->params.n, err);
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

/* An answer that is not streamed keeps the probabilities of all its tokens, each about 1 KiB as JSON. This many may always
 * be asked for; on a large context also OpenAI's 20 alternatives for four answers without a limit, which stand for whole
 * contexts and are far shorter as a rule. */
#define PROBS_MAX          4000000
#define PROBS_CONTEXTS_MAX 4
#define PROBS_A_TOKEN      21

static kv_status check_probs(const kv_job *j, kv_error *err) {
    const kv_params *p = &j->params;
    const int64_t n_ctx = j->app->n_ctx_served, a_token = p->n_probs + 1; /* the chosen one, too */
    int64_t n_tokens = 0, most = PROBS_CONTEXTS_MAX * PROBS_A_TOKEN * n_ctx;
    if (p->stream || !p->want_probs) return KV_OK;
    for (int i = 0; i < j->prompts.n; i++) {
        int64_t left = n_ctx - (int64_t)j->prompts.list[i].len;
        n_tokens += p->n * (p->n_predict >= 0 && p->n_predict < left ? p->n_predict : left);
    }
    if (most < PROBS_MAX) most = PROBS_MAX;
    if (n_tokens * a_token <= most) return KV_OK;
    return kv_fail_field(err,
                         p->api == KV_API_NATIVE ? "n_probs"
                         : p->api == KV_API_CHAT ? "top_logprobs"
                                                 : "logprobs",
                         "%d alternatives for each of up to %lld tokens (%d choices of at most %d tokens) are %lld "
                         "probabilities in one answer; at most %lld are possible unless it is streamed: set 'stream', "
                         "or ask for fewer alternatives, tokens or choices",
                         (int)p->n_probs, (long long)n_tokens, j->prompts.n * p->n,
                         (int)(p->n_predict >= 0 && p->n_predict < n_ctx ? p->n_predict : n_ctx),
                         (long long)(n_tokens * a_token), (long long)most);
}

/* n-th choice of a prompt: a given seed is counted on, so that the choices differ and can be had again. */
static kv_status new_sampler(kv_sampler **out, const kv_job *j, int nth, kv_error *err) {
    *out = NULL;
    if (j->params.n_predict == 0) return KV_OK;
    kv_sampling s = j->params.sampling;
    if (s.seed != KV_SEED_RANDOM) s.seed += (uint32_t)nth;
    kv_status st = kv_sampler_new(out, j->app->model, &s, j->chat, err);
    if (st == KV_INVALID && err && !err->field[0] && j->params.grammar)
        snprintf(err->field, sizeof err->field, "grammar");
    return st;
}

/* The request's stop strings and those of the chat format. Borrowed texts in a list that the caller frees. */
static const char **all_stops(int *n, const kv_job *j) {
    int n_format = j->chat ? kv_chat_prompt_n_stops(j->chat) : 0;
    const char **list = kv_alloc((size_t)(j->params.n_stops + n_format + 1) * sizeof *list);
    *n = 0;
    for (int i = 0; i < j->params.n_stops; i++) list[(*n)++] = j->params.stops[i];
    for (int i = 0; i < n_format; i++) list[(*n)++] = kv_chat_prompt_stop(j->chat, i);
    return list;
}

static kv_gen *new_gen(kv_job *j, const kv_tokens *prompt, kv_sampler *sampler, int nth) {
    const kv_params *p = &j->params;
    int n_stops;
    const char **stops = all_stops(&n_stops, j);
    kv_buf about = {0}; /* for /slots */
    json_t *brief = kv_params_json(p, NULL, true);
    kv_json_dump(&about, brief);
    json_decref(brief);
    kv_gen_params gp = {
        .prompt = prompt->data,
        .n_prompt = prompt->len,
        .sampler = sampler,
        .n_predict = p->n_predict,
        .stops = stops,
        .n_stops = n_stops,
        .n_probs = p->want_probs && p->n_probs == 0 ? 1 : p->n_probs, /* 0 would leave the chosen one out, too */
        .post_sampling_probs = p->post_sampling_probs,
        .cache_prompt = p->cache_prompt,
        .scope = j->scope,
        .about = kv_buf_str(&about),
        .special_pieces = j->chat != NULL, /* formats mark tool calls and reasoning with control tokens */
        .hints = j->hints,
        .n_hints = j->n_hints,
        .id_slot = nth == 0 ? p->id_slot : -1,
        .t_max_predict_ms = p->t_max_predict_ms,
        .n_indent = p->n_indent,
        .group = j->group,
        .wake = wake_job,
        .wake_ctx = &j->wake,
    };
    kv_gen *g = kv_gen_new(&gp);
    kv_buf_free(&about);
    free(stops);
    return g;
}

static kv_status make_gen(kv_job *j, kv_choice *c, kv_error *err) {
    int nth = c->index % j->params.n;
    kv_sampler *sampler;
    kv_status st = new_sampler(&sampler, j, nth, err);
    if (st != KV_OK) return st;
    c->gen = new_gen(j, &j->prompts.list[c->prompt], sampler, nth);
    if (j->params.want_probs) c->probs = json_array();
    c->forced_call = j->params.forced_call;
    c->spell = j->params.spell;
    return j->chat ? kv_chat_stream_new(&c->chat, j->chat, err) : KV_OK;
}

/* The generations of one prompt, not queued yet. */
static kv_status make_gens(kv_job *j, int prompt, kv_error *err) {
    kv_status st = KV_OK;
    for (int k = 0; st == KV_OK && k < j->params.n; k++) {
        kv_choice *c = &j->choice[prompt * j->params.n + k];
        if (!c->gen) st = make_gen(j, c, err);
    }
    return st;
}

kv_status kv_job_prepare(kv_job *j, kv_error *err) {
    static _Atomic uint64_t last_group;
    kv_status st = kv_app_require_generator(j->app, err);
    if (st == KV_OK) st = check_lengths(j, err);
    if (st == KV_OK) st = check_probs(j, err);
    if (st == KV_OK) st = kv_wake_init(&j->wake, err);
    if (st != KV_OK) return st;
    j->has_wake = true;
    j->group = atomic_fetch_add(&last_group, 1) + 1;
    j->n_choices = j->prompts.n * j->params.n;
    j->choice = kv_alloc((size_t)j->n_choices * sizeof *j->choice);
    for (int i = 0; i < j->n_choices; i++) j->choice[i] = (kv_choice){.index = i, .prompt = i / j->params.n};
    /* All prompts have the same parameters: if one can be sampled, all can. The others' samplers are made when their
     * turn comes, since each holds memory of the vocabulary's size once it has sampled. */
    return make_gens(j, 0, err);
}

/* Queue prompts, at most about two for each slot at a time, so that a large batch neither holds the queue nor all its
 * samplers. KV_BUSY only when nothing of the job is under way. */
static kv_status queue_prompts(kv_job *j, kv_error *err) {
    const int n = j->params.n;
    while (j->n_started < j->prompts.n) {
        int under_way = j->n_started * n - j->n_done;
        if (under_way && under_way + n > 2 * j->app->engine_info.n_slots) return KV_OK;
        kv_status st = make_gens(j, j->n_started, err);
        if (st != KV_OK) return st;
        kv_gen **gens = kv_alloc((size_t)n * sizeof *gens);
        for (int k = 0; k < n; k++) gens[k] = j->choice[j->n_started * n + k].gen;
        st = kv_sched_submit(j->app->sched, gens, n, err);
        free(gens);
        if (st == KV_BUSY && under_way) return KV_OK;
        if (st != KV_OK) return st;
        j->n_started++;
    }
    return KV_OK;
}

/* ── running ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void take_token(kv_job *j, kv_choice *c, const kv_gen_event *e) {
    if (e->n_text) kv_buf_add(&c->text, e->text, e->n_text);
    kv_tokens_add(&c->tokens, e->token);
    if (c->probs) json_array_append_new(c->probs, kv_shape_prob(j, e));
    if (!j->first_token_us) j->first_token_us = kv_now_us(kv_clock_real());
    c->timings = e->timings;
}

static void take_done(kv_job *j, kv_choice *c, kv_gen_event *e) {
    c->done = true;
    c->finish = e->finish;
    c->timings = e->timings;
    c->stop_word = e->stop_word;
    e->stop_word = NULL;
    j->n_done++;
    drop_gen(c); /* its sampler is large */
    if (e->finish == KV_FINISH_ERROR && j->error.status == KV_OK) j->error = e->error;
    if (e->finish == KV_FINISH_CANCELLED && j->error.status == KV_OK)
        kv_fail(&j->error, KV_CANCELLED, "the request was cancelled");
}

/* e is the choice's first: its prompt's numbers count from here on. */
static void begin(kv_job *j, kv_choice *c, const kv_gen_event *e, kv_buf *out) {
    c->begun = true;
    if (e->kind == KV_EVENT_PROGRESS) c->timings.n_cached = e->n_cache;
    if (out && j->dialect->begin && !(e->kind == KV_EVENT_DONE && e->finish > KV_FINISH_LENGTH))
        j->dialect->begin(out, j, c);
}

/* The newest progress takes the place of one that nobody has read: where that was the first, it is told all the same,
 * since clients see by it what came from the cache. */
static void tell_progress(kv_job *j, kv_choice *c, const kv_gen_event *e, bool first, kv_buf *out) {
    kv_gen_event start = *e;
    start.n_processed = e->n_cache;
    start.time_ms = 0;
    if (first && e->n_processed > e->n_cache) j->dialect->progress(out, j, c, &start);
    j->dialect->progress(out, j, c, e);
}

static void take_event(kv_job *j, kv_choice *c, kv_gen_event *e, kv_buf *out) {
    bool first = !c->begun;
    if (first) begin(j, c, e, out);
    switch (e->kind) {
    case KV_EVENT_PROGRESS:
        if (out && j->params.return_progress && j->dialect->progress) tell_progress(j, c, e, first, out);
        break;
    case KV_EVENT_TOKEN:
        take_token(j, c, e);
        if (out) j->dialect->token(out, j, c, e);
        break;
    case KV_EVENT_DONE:
        take_done(j, c, e);
        if (out && j->error.status == KV_OK) j->dialect->done(out, j, c);
        break;
    }
}

/* Most that is written before the client gets some of it: a fast engine could keep a stream busy without end. */
#define PUMP_BYTES (64u << 10)

bool kv_job_pump(kv_job *j, kv_buf *out) {
    bool any = false;
    int done_before = j->n_done;
    size_t before = out ? out->len : 0;
    for (int i = 0; i < j->n_choices; i++) {
        kv_choice *c = &j->choice[i];
        kv_gen_event e;
        while (c->gen && j->error.status == KV_OK && !(out && out->len - before > PUMP_BYTES) &&
               kv_gen_next(&e, c->gen)) {
            any = true;
            take_event(j, c, &e, out);
            kv_gen_event_free(&e);
        }
    }
    if (j->n_done > done_before && j->error.status == KV_OK) queue_prompts(j, &j->error);
    return any;
}

static kv_status wait_for_all(kv_job *j, kv_http_request *req, kv_error *err) {
    while (kv_job_pump(j, NULL), j->n_done < j->n_choices && j->error.status == KV_OK) {
        if (kv_http_wait(req, &j->wake, -1) != KV_WAIT_HUNG_UP) continue;
        kv_job_cancel(j);
        return kv_fail(err, KV_CANCELLED, "the client hung up");
    }
    if (j->error.status == KV_OK) return KV_OK;
    if (err) *err = j->error;
    return j->error.status;
}

static void tell_header(kv_http_response *res, const kv_job *j) {
    kv_account a = kv_account_of_job(j);
    kv_buf text = {0};
    kv_account_header(&text, &a);
    kv_http_header(res, "X-Kvasir-Cache", kv_buf_str(&text));
    kv_buf_free(&text);
}

kv_status kv_job_run(kv_job *j, kv_http_request *req, kv_http_response *res, kv_error *err) {
    snprintf(j->request_id, sizeof j->request_id, "%s", kv_http_request_id(req));
    kv_status st = kv_scope_of(&j->scope, req, j->params.cache_salt, err);
    if (st == KV_OK) kv_job_respell(j);
    if (st == KV_OK) st = kv_job_prepare(j, err);
    if (st == KV_OK) st = queue_prompts(j, err);
    if (st == KV_OK) kv_spell_keep(j->params.spell);
    if (st == KV_OK && j->params.stream) {
        j->last_sent_us = kv_now_us(kv_clock_real());
        res->content_type = j->dialect->stream_type;
        res->stream = (kv_http_stream){.next = kv_stream_next, .free = kv_stream_free, .ctx = j};
        return KV_OK;
    }
    if (st == KV_OK) st = wait_for_all(j, req, err);
    if (j->n_started) kv_job_note(req, j);
    kv_account_record(j);
    if (st == KV_OK) {
        tell_header(res, j);
        kv_json_dump_new(&res->body, j->dialect->body(j));
    }
    kv_job_free(j);
    return st;
}

kv_status kv_job_serve_prompt(const kv_app *app, kv_http_request *req, kv_http_response *res, kv_api api,
                              const kv_dialect *dialect, kv_error *err) {
    kv_status st = kv_app_require_ready(app, err);
    if (st != KV_OK) return st;
    kv_job *j = kv_job_new(app, dialect);
    json_t *body;
    st = kv_body_read_for_model(&body, req, app, err);
    if (st == KV_OK) st = kv_params_parse(&j->params, body, api, app, err);
    if (st == KV_OK) st = kv_prompts_parse(&j->prompts, app->model, json_object_get(body, "prompt"), err);
    json_decref(body);
    if (st == KV_OK) return kv_job_run(j, req, res, err);
    kv_job_free(j);
    return st;
}

static const char *note_finish(const kv_job *j) {
    static const char *const words[] = {"running", "stop", "stop word", "length", "cancelled", "error"};
    if (j->error.status == KV_CANCELLED || (j->over && j->n_done < j->n_choices)) return "cancelled";
    if (j->error.status != KV_OK) return "error";
    return words[j->n_choices == 1 ? j->choice[0].finish : j->n_done == j->n_choices ? KV_FINISH_EOS : KV_FINISH_NONE];
}

void kv_job_note(kv_http_request *req, const kv_job *j) {
    kv_timings t = kv_shape_total(j);
    double steps = t.n_decoded > 1 ? t.n_decoded - 1 : 0;
    long n_prompt = 0;
    for (int p = 0; p < j->prompts.n; p++) n_prompt += (long)j->prompts.list[p].len;
    kv_account a = kv_account_of_job(j);
    char many[32] = "", miss[64] = "", respelled[32] = "";
    if (j->n_choices > 1) snprintf(many, sizeof many, ", %d choices", j->n_choices);
    if (a.respelled) snprintf(respelled, sizeof respelled, ", respelled %d", (int)a.respelled);
    if (a.miss != KV_MISS_NONE) snprintf(miss, sizeof miss, ", miss %s@%d", kv_account_reason(a.miss), (int)a.position);
    kv_http_note(req,
                 "prompt %ld (cached %d: engine %d, ram %d, disk %d%s%s), decoded %d, queue %.0f ms, restore %.0f ms, "
                 "prefill %.1f tok/s, decode %.1f tok/s, %s%s",
                 n_prompt, (int)t.n_cached, (int)a.engine, (int)a.ram, (int)a.disk, respelled, miss, (int)t.n_decoded,
                 t.queue_ms, a.restore_ms, t.prompt_ms > 0 ? 1e3 * t.n_prompt / t.prompt_ms : 0.0,
                 t.decode_ms > 0 ? 1e3 * steps / t.decode_ms : 0.0, note_finish(j), many);
}
