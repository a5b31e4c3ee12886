#include "api/account.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/advice.h"
#include "api/shapes.h"

/* Enough to recognise the place, and little beside any prompt that is worth caching. */
#define TEXT_TOKENS 32

/* ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────── */

void kv_account_set_miss(kv_account *a, kv_miss miss, int32_t position, const char *elsewhere) {
    a->miss = miss;
    a->position = position;
    const char *s = elsewhere ? elsewhere : "";
    size_t n = strlen(s), most = sizeof a->elsewhere - 1;
    snprintf(a->elsewhere, sizeof a->elsewhere, "%.*s", (int)kv_utf8_complete(s, n < most ? n : most), s);
}

bool kv_account_of_prompt(kv_account *out, const kv_job *j, int prompt) {
    const kv_timings *t = kv_shape_prompt_timings(j, prompt);
    *out = (kv_account){.prompt = prompt};
    if (!t || t->n_cached + t->n_prompt == 0) return false;
    int32_t stored = t->n_cached_ram + t->n_cached_disk;
    out->engine = t->n_cached > stored ? t->n_cached - stored : 0;
    out->ram = t->n_cached_ram;
    out->disk = t->n_cached_disk;
    out->computed = t->n_prompt;
    out->respelled = j->respelled ? j->respelled[prompt] : 0;
    out->restore_ms = t->restore_ms;
    out->prefill_ms = t->prompt_ms;
    out->matched = t->n_matched;
    if (j->params.cache_prompt) kv_account_set_miss(out, t->miss, t->miss_position, t->elsewhere);
    else out->miss = KV_MISS_DISABLED;
    return true;
}

kv_account kv_account_of_job(const kv_job *j) {
    kv_account sum = {0}, a;
    for (int p = 0; p < j->prompts.n; p++) {
        if (!kv_account_of_prompt(&a, j, p)) continue;
        sum.engine += a.engine;
        sum.ram += a.ram;
        sum.disk += a.disk;
        sum.computed += a.computed;
        sum.respelled += a.respelled;
        sum.restore_ms += a.restore_ms;
        sum.prefill_ms += a.prefill_ms;
        if (sum.miss != KV_MISS_NONE) continue;
        kv_account_set_miss(&sum, a.miss, a.position, a.elsewhere);
        sum.matched = a.matched;
        sum.prompt = p;
    }
    return sum;
}

/* ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static char reasons[KV_MISS_COUNT][32];
static pthread_once_t reasons_once = PTHREAD_ONCE_INIT;

static void fill_reasons(void) {
    for (int m = 0; m < KV_MISS_COUNT; m++) {
        const char *name = kv_miss_name((kv_miss)m);
        for (size_t i = 0; name[i] && i < sizeof reasons[m] - 1; i++)
            reasons[m][i] = (char)tolower((unsigned char)name[i]);
    }
}

const char *kv_account_reason(kv_miss miss) {
    pthread_once(&reasons_once, fill_reasons);
    return (unsigned)miss < KV_MISS_COUNT ? reasons[miss] : "unknown";
}

void kv_account_explain(kv_buf *out, const kv_account *a) {
    kv_buf_adds(out, kv_miss_text(a->miss));
    if (a->elsewhere[0]) kv_buf_addf(out, ": %s", a->elsewhere);
}

/* Bytes at the start that belong to a character of the token before. */
static size_t cut_character(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && i < 3 && ((unsigned char)s[i] & 0xc0) == 0x80) i++;
    return i;
}

bool kv_account_text(kv_buf *out, const kv_model *model, const kv_tokens *prompt, int32_t position) {
    if (position < 0 || (size_t)position >= prompt->len) return false;
    kv_buf text = {0};
    size_t n = prompt->len - (size_t)position;
    kv_prompt_spell(&text, model, prompt->data + position, n < TEXT_TOKENS ? n : TEXT_TOKENS, true);
    const char *s = kv_buf_str(&text);
    size_t from = position > 0 ? cut_character(s, text.len) : 0;
    json_t *valid = kv_json_text(s + from, kv_utf8_complete(s + from, text.len - from));
    kv_buf_add(out, json_string_value(valid), json_string_length(valid));
    json_decref(valid);
    kv_buf_free(&text);
    return true;
}

/* ── JSON, header, ledger ──────────────────────────────────────────────────────────────────────────────────────── */

json_t *kv_account_miss(const kv_asked *q, const kv_account *a) {
    if (a->miss == KV_MISS_NONE) return json_null();
    kv_buf text = {0};
    kv_account_explain(&text, a);
    json_t *o = json_pack("{s:s, s:i, s:o}", "reason", kv_account_reason(a->miss), "position", (int)a->position,
                          "explanation", kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_clear(&text);
    if (kv_account_text(&text, q->model, q->tokens, a->position))
        json_object_set_new(o, "text", kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_clear(&text);
    if (kv_advice(&text, q, a)) json_object_set_new(o, "hint", kv_json_text(kv_buf_str(&text), text.len));
    kv_buf_free(&text);
    return o;
}

static kv_asked asked(const kv_job *j, int prompt) {
    return kv_asked_of(j->app, &j->params, &j->prompts.list[prompt], j->chat);
}

static double microseconds(double ms) {
    return round(ms * 1e3) / 1e3;
}

void kv_account_tell(json_t *answer, const kv_job *j, const kv_account *a) {
    if (j->app->opt->plain_json) return;
    const kv_asked q = asked(j, a->prompt);
    json_t *miss = kv_account_miss(&q, a);
    json_t *canonicalised = j->params.canonicalised ? kv_canonical_names(j->params.canonicalised) : NULL;
    json_object_set_new(answer, "kvasir",
                        json_pack("{s:{s:i, s:i, s:i}, s:i, s:f, s:f, s:o, s:o*}", "cached", "engine", (int)a->engine,
                                  "ram", (int)a->ram, "disk", (int)a->disk, "computed", (int)a->computed, "restore_ms",
                                  microseconds(a->restore_ms), "prefill_ms", microseconds(a->prefill_ms), "miss", miss,
                                  "canonicalised", canonicalised));
    if (a->respelled)
        json_object_set_new(json_object_get(answer, "kvasir"), "respelled", json_integer((json_int_t)a->respelled));
}

void kv_account_header(kv_buf *out, const kv_account *a) {
    kv_buf_addf(out, "engine=%d, ram=%d, disk=%d, computed=%d", (int)a->engine, (int)a->ram, (int)a->disk,
                (int)a->computed);
    if (a->miss != KV_MISS_NONE) kv_buf_addf(out, "; miss=%s@%d", kv_account_reason(a->miss), (int)a->position);
}

void kv_account_record(kv_job *j) {
    if (j->recorded) return;
    j->recorded = true;
    kv_account a;
    for (int p = 0; p < j->prompts.n; p++) {
        if (!kv_account_of_prompt(&a, j, p)) continue;
        kv_buf text = {0}, hint = {0};
        const kv_asked q = asked(j, p);
        bool missed = a.miss != KV_MISS_NONE;
        bool has_text = missed && kv_account_text(&text, q.model, q.tokens, a.position);
        bool has_hint = missed && kv_advice(&hint, &q, &a);
        kv_ledger_add(j->app->ledger, j->request_id, j->scope, &a, has_text ? kv_buf_str(&text) : NULL,
                      has_hint ? kv_buf_str(&hint) : NULL);
        kv_buf_free(&text);
        kv_buf_free(&hint);
    }
    kv_ledger_canonicalised(j->app->ledger, j->params.canonicalised);
    if (j->first_token_us) kv_ledger_first_token(j->app->ledger, (double)(j->first_token_us - j->started_us) / 1e3);
}
