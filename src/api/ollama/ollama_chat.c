/* /api/chat and /api/generate: from a body to a job.
 *
 * generate has four ways to a prompt: the template around `system` and `prompt`; the same behind a `context` of tokens;
 * `raw`, as it is; `suffix`, filled in between. One without anything to say loads the model, or with keep_alive 0
 * unloads it.
 */
#include <stdlib.h>
#include <string.h>

#include "api/body.h"
#include "api/chat_body.h"
#include "api/endpoints.h"
#include "api/native/infill.h"
#include "api/ollama/ollama.h"

/* An answer in an earlier turn, behind which a `context` is continued: what the template writes after it is what
 * belongs between that context's end and the next answer. */
#define TURN_MARK "kvasir~context~ends~here"

/* What a body asks for, on its way to a job. */
typedef struct asking {
    kv_app *app;
    const kv_http_request *req;
    json_t *body;   /* owned */
    json_t *openai; /* owned */
    kv_ollama *o;   /* owned, until a job has it */
} asking;

static void free_asking(asking *a) {
    kv_ollama_free(a->o);
    json_decref(a->openai);
    json_decref(a->body);
}

static kv_status read_asking(asking *a, kv_app *app, bool generate, const kv_http_request *req, kv_error *err) {
    *a = (asking){.app = app, .req = req};
    kv_status st = kv_body_read(&a->body, req, err);
    if (st == KV_OK) st = kv_ollama_read(&a->o, &a->openai, a->body, generate, app, err);
    return st;
}

/* ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status render(kv_job **out, const asking *a, kv_error *err) {
    if (a->o->logprobs) {
        json_object_set_new(a->openai, "logprobs", json_true());
        json_object_set_new(a->openai, "top_logprobs", json_integer(a->o->n_top));
    }
    kv_status st = kv_chat_job_new(out, &kv_ollama_dialect, a->openai, a->req, a->app, err);
    if (st != KV_OK) return st;
    if (!a->o->thinks || kv_chat_prompt_thinks((*out)->chat)) return KV_OK;
    kv_job_free(*out);
    *out = NULL;
    return kv_fail_field(err, "think", "\"%.100s\" does not support thinking; leave out 'think'", a->o->model);
}

static void set_messages(const asking *a, json_t *messages) {
    json_object_set_new(a->openai, "messages", messages);
}

static json_t *message(const char *role, json_t *content) {
    return json_pack("{s:s, s:o}", "role", role, "content", content);
}

/* ── generate: the template ────────────────────────────────────────────────────────────────────────────────────── */

/* system and prompt with its images, behind a turn that ends with the mark or not. */
static kv_status turn(json_t **out, const asking *a, bool marked, kv_error *err) {
    json_t *prompt = kv_json_get(a->body, "prompt"), *system = kv_json_get(a->body, "system");
    json_t *parts = json_array(), *list = json_array();
    kv_status st = kv_ollama_images(parts, kv_json_get(a->body, "images"), "", a->app, err);
    if (json_array_size(parts)) {
        json_array_insert_new(parts, 0, json_pack("{s:s, s:O}", "type", "text", "text", prompt));
        prompt = parts;
    }
    if (json_string_length(system)) json_array_append_new(list, message("system", json_incref(system)));
    if (marked) {
        json_array_append_new(list, message("user", json_string("?")));
        json_array_append_new(list, message("assistant", json_string(TURN_MARK)));
    }
    json_array_append_new(list, message("user", json_incref(prompt)));
    json_decref(parts);
    *out = list;
    return st;
}

static kv_status read_context(kv_tokens *out, const json_t *context, const kv_app *app, kv_error *err) {
    for (size_t i = 0; i < json_array_size(context); i++)
        if (!json_is_number(json_array_get(context, i)))
            return kv_fail_field(err, "context", "'context' must be an array of token ids");
    kv_status st = kv_prompt_mixed(out, app->model, context, "context", false, false, err);
    while (st == KV_OK && out->len && kv_model_is_eog(app->model, out->data[out->len - 1])) out->len--;
    return st;
}

/* The job's prompt becomes the context and what the template writes behind the mark. False: the mark is not there. */
static bool put_behind(kv_job *j, const kv_tokens *context, kv_status *st, kv_error *err) {
    size_t n;
    const char *text = kv_chat_prompt_text(j->chat, &n);
    const char *mark = strstr(text, TURN_MARK);
    if (!mark) return false;
    const char *rest = mark + strlen(TURN_MARK);
    kv_tokens *prompt = &j->prompts.list[0];
    prompt->len = 0;
    kv_tokens_append(prompt, context->data, context->len);
    *st = kv_model_tokenize(prompt, j->app->model, rest, n - (size_t)(rest - text), false, true, err);
    return true;
}

/* Where the template shows no earlier answer, a new conversation follows on the context. */
static kv_status append_conversation(kv_job *j, const kv_tokens *context) {
    kv_tokens all = {0}, *prompt = &j->prompts.list[0];
    const kv_model_info *m = kv_model_get_info(j->app->model);
    size_t from = prompt->len && prompt->data[0] == m->bos ? 1 : 0;
    kv_tokens_append(&all, context->data, context->len);
    kv_tokens_append(&all, prompt->data + from, prompt->len - from);
    kv_tokens_free(prompt);
    *prompt = all;
    return KV_OK;
}

static kv_status continue_context(kv_job **out, const asking *a, const json_t *context, kv_error *err) {
    kv_tokens tokens = {0};
    json_t *messages = NULL;
    kv_status st = read_context(&tokens, context, a->app, err);
    if (st == KV_OK) st = turn(&messages, a, true, err);
    if (st == KV_OK) {
        set_messages(a, messages);
        messages = NULL;
        st = render(out, a, err);
    }
    if (st == KV_OK && !put_behind(*out, &tokens, &st, err)) {
        kv_job_free(*out);
        *out = NULL;
        st = turn(&messages, a, false, err);
        set_messages(a, messages);
        messages = NULL;
        if (st == KV_OK) st = render(out, a, err);
        if (st == KV_OK) st = append_conversation(*out, &tokens);
    }
    if (st != KV_OK) {
        kv_job_free(*out);
        *out = NULL;
    }
    if (st == KV_OK) {
        free((*out)->prompts.is_given);
        (*out)->prompts.is_given = kv_alloc(sizeof(bool));
        (*out)->prompts.is_given[0] = true;
    }
    json_decref(messages);
    kv_tokens_free(&tokens);
    return st;
}

static kv_status generate_turn(kv_job **out, const asking *a, kv_error *err) {
    const json_t *context = kv_json_get(a->body, "context");
    if (context && !json_is_array(context))
        return kv_fail_field(err, "context", "'context' must be an array of token ids");
    a->o->tells_context = true;
    if (json_array_size(context)) return continue_context(out, a, context, err);
    json_t *messages;
    kv_status st = turn(&messages, a, false, err);
    set_messages(a, messages);
    return st == KV_OK ? render(out, a, err) : st;
}

/* ── generate: without a template ──────────────────────────────────────────────────────────────────────────────── */

/* A job without a chat, and without a prompt so far. */
static kv_status plain_job(kv_job **out, const asking *a, kv_error *err) {
    *out = kv_job_new(a->app, &kv_ollama_dialect);
    if (a->o->logprobs) json_object_set_new(a->openai, "n_probs", json_integer(a->o->n_top > 0 ? a->o->n_top : 1));
    kv_status st = kv_params_parse(&(*out)->params, a->openai, KV_API_COMPLETIONS, a->app, err);
    if (st == KV_OK) return KV_OK;
    kv_job_free(*out);
    *out = NULL;
    return st;
}

/* A text or a list that is not empty. */
static bool is_given(const json_t *v) {
    return json_string_length(v) || json_array_size(v);
}

static kv_status generate_raw(kv_job **out, const asking *a, kv_error *err) {
    static const char *const unfit[] = {"template", "system", "context", "images", "suffix"};
    for (size_t i = 0; i < sizeof unfit / sizeof *unfit; i++)
        if (is_given(kv_json_get(a->body, unfit[i])))
            return kv_fail_field(err, unfit[i], "'raw' takes the prompt as it is: leave out '%s'", unfit[i]);
    const json_t *prompt = kv_json_get(a->body, "prompt");
    kv_status st = plain_job(out, a, err);
    if (st == KV_OK)
        st = kv_prompts_from_text(&(*out)->prompts, a->app->model, json_string_value(prompt),
                                  json_string_length(prompt), err);
    return st;
}

static kv_status generate_between(kv_job **out, const asking *a, kv_error *err) {
    static const char *const unfit[] = {"context", "images", "system"};
    const kv_model_info *m = kv_model_get_info(a->app->model);
    for (size_t i = 0; i < sizeof unfit / sizeof *unfit; i++)
        if (is_given(kv_json_get(a->body, unfit[i])))
            return kv_fail_field(err, unfit[i], "'suffix' only takes a 'prompt' before it: leave out '%s'", unfit[i]);
    if (m->fim.pre < 0 || m->fim.suf < 0 || m->fim.mid < 0)
        return kv_fail_field(err, "suffix", "\"%.100s\" does not support insert: it has no tokens to fill in between",
                             a->o->model);
    kv_status st = plain_job(out, a, err);
    if (st != KV_OK) return st;
    kv_prompts *p = &(*out)->prompts;
    *p = (kv_prompts){.list = kv_alloc(sizeof *p->list), .n = 1};
    /* As /infill puts it together; the whole context is there for prefix and suffix. */
    const kv_infill_limits limits = {
        .n_batch = a->app->n_ctx_served, .n_ctx = a->app->n_ctx_served, .suffix_first = a->app->opt->spm_infill};
    json_t *sides = json_pack("{s:O*, s:O*}", "input_prefix", kv_json_get(a->body, "prompt"), "input_suffix",
                              kv_json_get(a->body, "suffix"));
    st = kv_infill_prompt(p->list, a->app->model, sides, &limits, err);
    json_decref(sides);
    return st;
}

static kv_status generate_job(kv_job **out, const asking *a, kv_error *err) {
    bool raw = false;
    const char *suffix = NULL;
    *out = NULL;
    kv_status st = kv_json_bool(&raw, a->body, "raw", err);
    if (st == KV_OK) st = kv_json_str(&suffix, a->body, "suffix", err);
    if (st != KV_OK) return st;
    if (raw) st = generate_raw(out, a, err);
    else if (suffix && *suffix) st = generate_between(out, a, err);
    else st = generate_turn(out, a, err);
    if (st == KV_OK) return KV_OK;
    kv_job_free(*out);
    *out = NULL;
    return st;
}

/* ── chat ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status chat_job(kv_job **out, const asking *a, kv_error *err) {
    json_t *messages, *tools = kv_json_get(a->body, "tools");
    kv_status st = kv_ollama_messages(&messages, kv_json_get(a->body, "messages"), a->app, err);
    if (st != KV_OK) return st;
    set_messages(a, messages);
    if (tools) json_object_set_new(a->openai, "tools", kv_ollama_tools(tools));
    return render(out, a, err);
}

/* ── the handlers ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* The prompt without generating anything: what its tokens spell. */
static void tell_rendered(kv_http_response *res, const kv_job *j) {
    json_t *object = kv_ollama_object(j->state, "", 0, false);
    kv_buf text = {0};
    const kv_tokens *t = &j->prompts.list[0];
    kv_prompt_spell(&text, j->app->model, t->data, t->len, true);
    json_object_set_new(object, "_debug_info",
                        json_pack("{s:o}", "rendered_template", kv_json_text(kv_buf_str(&text), text.len)));
    kv_json_dump(&res->body, object);
    kv_buf_free(&text);
    json_decref(object);
}

static kv_status make_job(kv_job **out, asking *a, kv_error *err) {
    kv_status st = a->o->generate ? generate_job(out, a, err) : chat_job(out, a, err);
    if (st != KV_OK) return st;
    (*out)->state = a->o;
    a->o = NULL;
    return KV_OK;
}

static kv_status run(asking *a, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_job *j = NULL;
    kv_status st = make_job(&j, a, err);
    if (st != KV_OK) return st;
    if (!((kv_ollama *)j->state)->render_only) return kv_job_run(j, req, res, err);
    tell_rendered(res, j);
    kv_job_free(j);
    return KV_OK;
}

/* Nothing to answer: the model is only to be there, or to go. */
static bool says_nothing(const asking *a) {
    if (!a->o->generate) {
        const json_t *messages = kv_json_get(a->body, "messages");
        return !messages || (json_is_array(messages) && json_array_size(messages) == 0);
    }
    const json_t *prompt = kv_json_get(a->body, "prompt"), *suffix = kv_json_get(a->body, "suffix");
    return (!prompt || (json_is_string(prompt) && json_string_length(prompt) == 0)) && json_string_length(suffix) == 0;
}

/* What is not looked at elsewhere. */
static kv_status check_generate(const asking *a, kv_error *err) {
    const char *text = NULL, *template = NULL;
    if (!a->o->generate) return KV_OK;
    kv_status st = kv_json_str(&text, a->body, "prompt", err);
    if (st == KV_OK) st = kv_json_str(&text, a->body, "system", err);
    if (st == KV_OK) st = kv_json_str(&text, a->body, "suffix", err);
    if (st == KV_OK) st = kv_json_str(&template, a->body, "template", err);
    if (st == KV_OK && template && *template)
        st = kv_fail_field(err, "template",
                           "'template' is not supported: the server's own is used (--chat-template); "
                           "send 'raw': true with a prompt that is written out");
    return st;
}

static void tell_nothing(kv_http_response *res, const asking *a) {
    json_t *object = kv_ollama_object(a->o, "", 0, true);
    json_object_set_new(object, "done_reason", json_string(a->o->unload ? "unload" : "load"));
    kv_ollama_warn(object, a->o, a->app);
    kv_json_dump_new(&res->body, object);
}

kv_status kv_ollama_job(kv_job **out, json_t *body, bool generate, kv_app *app, kv_error *err) {
    *out = NULL;
    asking a = {.app = app, .body = json_incref(body)};
    kv_status st = kv_ollama_read(&a.o, &a.openai, a.body, generate, app, err);
    if (st == KV_OK) st = check_generate(&a, err);
    if (st == KV_OK && !says_nothing(&a)) st = make_job(out, &a, err);
    if (st != KV_OK) kv_ollama_rename(err);
    free_asking(&a);
    return st;
}

/* Inside the gate: the model is there. */
static kv_status serve_inside(void *app, bool generate, kv_http_request *req, kv_http_response *res, kv_error *err) {
    asking a;
    kv_status st = kv_app_require_ready(app, err);
    if (st != KV_OK) return st;
    st = read_asking(&a, app, generate, req, err);
    if (st == KV_OK) st = check_generate(&a, err);
    if (st == KV_OK && says_nothing(&a)) tell_nothing(res, &a);
    else if (st == KV_OK) st = run(&a, req, res, err);
    if (st != KV_OK) kv_ollama_rename(err);
    free_asking(&a);
    return st;
}

static kv_status inside_chat(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve_inside(app, false, req, res, err);
}

static kv_status inside_generate(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve_inside(app, true, req, res, err);
}

/* Is it a request to unload, and no more? Such a one waits for nobody, and does not wake what is asleep. */
static bool peek_unload(const kv_http_request *req, bool generate) {
    size_t n;
    double seconds = -1;
    const char *text = kv_http_body(req, &n);
    if (!strstr(text, "keep_alive")) return false; /* nearly all: parsed once, inside */
    json_t *body = NULL;
    kv_ollama o = {.generate = generate};
    if (kv_json_parse(&body, text, n, NULL) != KV_OK) return false;
    bool unload = json_is_object(body) && kv_ollama_seconds(&seconds, kv_json_get(body, "keep_alive")) &&
                  seconds == 0 && says_nothing(&(asking){.body = body, .o = &o});
    json_decref(body);
    return unload;
}

static kv_status serve_unload(kv_app *app, bool generate, kv_http_request *req, kv_http_response *res, kv_error *err) {
    asking a;
    kv_status st = read_asking(&a, app, generate, req, err);
    if (st == KV_OK) st = check_generate(&a, err);
    if (st == KV_OK) {
        if (app->opt->sleep_idle_seconds > 0) kv_gate_ask_to_close(app->gate);
        tell_nothing(res, &a);
    }
    free_asking(&a);
    return st;
}

/* While the model is loaded: lines as pings of a running answer are (ollama_answer.c). Which model it is, the first real
 * one says. */
static void say_line(kv_buf *out, bool generate) {
    char nameless[] = "";
    json_t *object = kv_ollama_object(&(kv_ollama){.generate = generate, .model = nameless}, "", 0, false);
    json_object_del(object, "model");
    kv_json_dump_new(out, object);
    kv_buf_adds(out, "\n");
}

static void ping_chat(kv_buf *out) {
    say_line(out, false);
}

static void ping_generate(kv_buf *out) {
    say_line(out, true);
}

static void say_error(kv_buf *out, const kv_http_request *req, const kv_error *err) {
    (void)req;
    kv_ollama_error_body(out, err);
    kv_buf_adds(out, "\n");
}

static void say_whole(kv_buf *out, const kv_buf *body) {
    kv_buf_add(out, body->data, body->len);
    kv_buf_adds(out, "\n");
}

static const kv_gate_voice chat_voice = {
    .ping = ping_chat,
    .error = say_error,
    .whole = say_whole,
    .stream_type = "application/x-ndjson",
    .by_default = true,
};
static const kv_gate_voice generate_voice = {
    .ping = ping_generate,
    .error = say_error,
    .whole = say_whole,
    .stream_type = "application/x-ndjson",
    .by_default = true,
};

static kv_status serve(kv_app *app, bool generate, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    if (peek_unload(req, generate)) return serve_unload(app, generate, req, res, err);
    if (generate) return kv_gate_serve_as(&generate_voice, inside_generate, true, app, req, res, err);
    return kv_gate_serve_as(&chat_voice, inside_chat, true, app, req, res, err);
}

kv_status kv_serve_ollama_chat(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve(app, false, req, res, err);
}

kv_status kv_serve_ollama_generate(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {
    return serve(app, true, req, res, err);
}
