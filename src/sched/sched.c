/* sched/sched.c: what other threads call, the step, ends, views and checks. See sched_private.h for the rest. */
#include "sched/sched.h"

#include "sched/sched_private.h"
#include <stdlib.h>
#include <string.h>

void kv_sched_config_defaults(kv_sched_config *c) {
    *c = (kv_sched_config){
        .block = 256,
        .chunk = 256,
        .min_chunk = 16,
        .max_stall_ms = 250,
        .max_wait_ms = 10000,
        .max_queue = 256,
        .slot_similarity = 0.1f,
    };
}

/* ── making and freeing ────────────────────────────────────────────────────────────────────────────────────────── */

static kv_status check_config(kv_sched_config *c, const kv_engine_info *info, bool counts_cells, kv_error *err) {
    if (c->n_ctx_served == 0) c->n_ctx_served = info->n_ctx;
    if (c->n_ctx_served < 2 || c->block < 1 || c->chunk < 1 || c->min_chunk < 1 || c->max_stall_ms < 0 ||
        c->max_wait_ms < 0 || c->max_queue < 0)
        return kv_fail(err, KV_INVALID, "the scheduler's block, chunks, times and limits must not be negative");
    if (c->exact && info->n_slots > 1)
        return kv_fail(err, KV_INVALID, "exact answers need a single slot, there are %d", (int)info->n_slots);
    if (counts_cells && c->n_ctx_served > info->n_ctx)
        return kv_fail(err, KV_INVALID, "a served context of %d tokens does not fit the engine's %d cells",
                       (int)c->n_ctx_served, (int)info->n_ctx);
    if (info->n_batch < info->n_slots + 1)
        return kv_fail(err, KV_INVALID, "a batch of %d rows is too small for %d slots and a prompt", (int)info->n_batch,
                       (int)info->n_slots);
    int32_t power = 1;
    while (power <= c->min_chunk / 2) power *= 2;
    c->min_chunk = power;
    return KV_OK;
}

kv_status kv_sched_new(kv_sched **out, kv_engine *engine, const kv_clock *clock, const kv_sched_config *cfg,
                       kv_error *err) {
    const kv_engine_info *info = kv_engine_get_info(engine);
    kv_memory_kind kind = info->memory;
    kv_sched_config checked = *cfg;
    *out = NULL;
    kv_status status = check_config(&checked, info, kind != KV_MEMORY_RECURRENT, err);
    if (status != KV_OK) return status;
    kv_engine_clear(engine); /* whatever warmed it up */
    kv_sched *s = kv_alloc(sizeof *s);
    size_t n = (size_t)info->n_slots, rows = (size_t)info->n_batch;
    s->engine = engine;
    s->info = info;
    s->clock = clock;
    s->cfg = checked;
    s->n_slots = info->n_slots;
    /* What cannot share ranges may hide recurrent layers (qwen4exp): the careful way in everything. */
    s->two_calls = kv_memory_has_recurrent(kind) || kind == KV_MEMORY_WHOLE;
    s->cut_free = kind == KV_MEMORY_FULL;
    s->slots = kv_alloc(n * sizeof *s->slots);
    for (int i = 0; i < s->n_slots; i++) kv_sched_touch(s, i);
    kv_cells_init(&s->cells, s->n_slots, kind == KV_MEMORY_RECURRENT ? INT32_MAX : info->n_ctx,
                  kind != KV_MEMORY_WHOLE);
    if (kv_memory_has_window(kind)) kv_cells_set_window(&s->cells, info->n_window, info->n_window_cells);
    kv_cost_init(&s->cost, 2);
    kv_cost_init(&s->decode_cost, 1);
    s->chunked = -1;
    s->round_us = kv_now_us(clock);
    s->decoding = kv_alloc(n * sizeof *s->decoding);
    s->mask = kv_alloc(n * sizeof *s->mask);
    s->in_call = kv_alloc(n * sizeof *s->in_call);
    s->batch.token = kv_alloc(rows * sizeof *s->batch.token);
    s->batch.pos = kv_alloc(rows * sizeof *s->batch.pos);
    s->batch.seq = kv_alloc(rows * sizeof *s->batch.seq);
    s->batch.want_logits = kv_alloc(rows * sizeof *s->batch.want_logits);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->work, NULL);
    s->busy = kv_alloc(n * sizeof *s->busy);
    s->erase = kv_alloc(n * sizeof *s->erase);
    s->views = kv_alloc(n * sizeof *s->views);
    s->last = kv_alloc(n * sizeof *s->last);
    for (int i = 0; i < s->n_slots; i++) s->views[i] = (kv_slot_view){.id = i, .n_ctx = s->cfg.n_ctx_served};
    status = kv_sched_open_cache(s, err);
    if (status != KV_OK) {
        kv_sched_free(s);
        return status;
    }
    *out = s;
    return KV_OK;
}

static bool end_everything(kv_sched *s);
static bool take_orders(kv_sched *s, bool *stopping);

void kv_sched_free(kv_sched *s) {
    if (!s) return;
    bool stopping;
    kv_sched_stop(s);
    take_orders(s, &stopping);
    end_everything(s);
    kv_sched_close_cache(s);
    for (int i = 0; i < s->n_slots; i++) {
        kv_tokens_free(&s->slots[i].held);
        free(s->slots[i].scope);
        kv_tokens_free(&s->last[i].tokens);
        free(s->last[i].scope);
        free(s->last[i].about);
    }
    free(s->last);
    free(s->slots);
    free(s->waiting);
    free(s->inbox);
    kv_cells_free(&s->cells);
    free(s->decoding);
    free(s->mask);
    free(s->in_call);
    free(s->batch.token);
    free(s->batch.pos);
    free(s->batch.seq);
    free(s->batch.want_logits);
    kv_buf_free(&s->piece);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->work);
    free(s->busy);
    free(s->erase);
    free(s->views);
    free(s);
}

/* ── any thread ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Under the mutex. */
static kv_status check_room(const kv_sched *s, int n_gens, kv_error *err) {
    if (s->draining) return kv_fail(err, KV_BUSY, "server is shutting down");
    if (s->n_live + n_gens > s->n_slots + s->cfg.max_queue)
        return kv_fail(err, KV_BUSY, "the queue is full: %d requests are running or waiting; try again later",
                       s->n_live);
    return KV_OK;
}

static kv_status check_prompt(const kv_sched *s, const kv_token *prompt, size_t n_prompt, int n_gens, kv_error *err) {
    int32_t n_vocab = s->engine->model->info.n_vocab;
    if (n_prompt == 0) return kv_fail_field(err, "prompt", "the prompt is empty");
    if (n_gens < 1 || n_gens > s->n_slots)
        return kv_fail_field(err, "n", "n must be between 1 and %d, the number of slots", s->n_slots);
    for (size_t i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= n_vocab)
            return kv_fail_field(err, "prompt", "token %d of the prompt is %d, the vocabulary has 0 to %d", (int)i,
                                 (int)prompt[i], (int)n_vocab - 1);
    if (n_prompt < (size_t)s->cfg.n_ctx_served) return KV_OK;
    kv_fail(err, KV_CONTEXT_FULL,
            "the request has %zu tokens, which exceeds the available context size (%d tokens): this model's maximum "
            "context length is %d tokens; shorten the prompt",
            n_prompt, (int)s->cfg.n_ctx_served, (int)s->cfg.n_ctx_served);
    if (err) {
        err->n_prompt_tokens = (int64_t)n_prompt;
        err->n_ctx = s->cfg.n_ctx_served;
    }
    return KV_CONTEXT_FULL;
}

kv_status kv_sched_check(kv_sched *s, const kv_token *prompt, size_t n_prompt, int n_gens, kv_error *err) {
    kv_status status = check_prompt(s, prompt, n_prompt, n_gens, err);
    if (status != KV_OK) return status;
    pthread_mutex_lock(&s->mutex);
    status = check_room(s, n_gens, err);
    pthread_mutex_unlock(&s->mutex);
    return status;
}

static kv_status check_gen(const kv_sched *s, const kv_gen *g, int n_gens, kv_error *err) {
    KV_CHECK(g->run.state == KV_RUN_NEW);
    kv_status status = check_prompt(s, g->tokens.data, g->tokens.len, n_gens, err);
    if (status != KV_OK) return status;
    if (g->id_slot >= s->n_slots)
        return kv_fail_field(err, "id_slot", "id_slot is %d, there are slots 0 to %d", (int)g->id_slot, s->n_slots - 1);
    if (g->prime_status != KV_OK && err) *err = g->prime_error;
    return g->prime_status;
}

static bool same_prompt(const kv_gen *a, const kv_gen *b) {
    return a->group && a->group == b->group && a->tokens.len == b->tokens.len &&
           memcmp(a->tokens.data, b->tokens.data, a->tokens.len * sizeof *a->tokens.data) == 0;
}

static void prepare(kv_sched *s, kv_gen *g) {
    int32_t most = s->cfg.n_ctx_served - g->n_prompt;
    g->run.state = KV_RUN_WAITING;
    g->run.n_limit = g->n_predict < 0 || g->n_predict > most ? most : g->n_predict;
    g->run.submitted_us = kv_now_us(s->clock);
    g->run.match = kv_alloc((size_t)s->n_slots * sizeof *g->run.match);
    g->run.led = kv_alloc((size_t)s->n_slots * sizeof *g->run.led);
}

static void forget_look_ups(kv_gen *const *gens, int n) {
    for (int i = 0; i < n; i++) {
        kv_lookup_free(gens[i]->run.lookup);
        gens[i]->run.lookup = NULL;
    }
}

kv_status kv_sched_submit(kv_sched *s, kv_gen *const *gens, int n, kv_error *err) {
    for (int i = 0; i < n; i++) {
        kv_status status = check_gen(s, gens[i], n, err);
        if (status != KV_OK) return status;
    }
    pthread_mutex_lock(&s->mutex);
    kv_status status = check_room(s, n, err);
    pthread_mutex_unlock(&s->mutex);
    if (status != KV_OK) return status;
    /* Not under the mutex: they take the cache's, under which they wake us, so it comes first in the order. */
    for (int i = 0; i < n; i++) kv_sched_look_up(s, gens[i]);
    pthread_mutex_lock(&s->mutex);
    status = check_room(s, n, err); /* others came meanwhile */
    if (status != KV_OK) goto done;
    if (s->n_inbox + n > s->inbox_room) {
        s->inbox_room = s->n_inbox + n + 16;
        s->inbox = kv_realloc(s->inbox, (size_t)s->inbox_room * sizeof(kv_gen *));
    }
    for (int i = 0; i < n; i++) {
        kv_gen *g = gens[i];
        prepare(s, g);
        g->run.id = ++s->n_ids;
        g->run.twins = g->group ? g->run.id : 0;
        for (int k = 0; k < i; k++)
            if (same_prompt(g, gens[k])) g->run.twins = gens[k]->run.twins;
        kv_gen_ref(g);
        s->inbox[s->n_inbox++] = g;
    }
    s->n_live += n;
    pthread_cond_signal(&s->work);
done:
    pthread_mutex_unlock(&s->mutex);
    if (status != KV_OK) forget_look_ups(gens, n); /* who tries again later looks again */
    return status;
}

void kv_sched_drain(kv_sched *s) {
    pthread_mutex_lock(&s->mutex);
    s->draining = true;
    pthread_mutex_unlock(&s->mutex);
}

void kv_sched_stop(kv_sched *s) {
    pthread_mutex_lock(&s->mutex);
    s->draining = s->stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->mutex);
}

kv_status kv_sched_erase_slot(kv_sched *s, int slot, int32_t *n_erased, kv_error *err) {
    if (n_erased) *n_erased = 0;
    if (slot < 0 || slot >= s->n_slots)
        return kv_fail_field(err, "id_slot", "there is no slot %d, only 0 to %d", slot, s->n_slots - 1);
    kv_status status = KV_OK;
    pthread_mutex_lock(&s->mutex);
    if (s->busy[slot]) {
        status = kv_fail(err, KV_BUSY, "slot %d is processing a request", slot);
    } else {
        int32_t last = (int32_t)s->last[slot].tokens.len, held = s->views[slot].n_tokens;
        if (n_erased) *n_erased = held > last ? held : last;
        s->last[slot].tokens.len = 0;
        s->views[slot].n_tokens = 0;
        s->erase[slot] = true;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->mutex);
    return status;
}

kv_status kv_sched_read_slot(kv_tokens *tokens, char **scope, kv_sched *s, int slot, kv_error *err) {
    *scope = NULL;
    if (slot < 0 || slot >= s->n_slots)
        return kv_fail_field(err, "id_slot", "there is no slot %d, only 0 to %d", slot, s->n_slots - 1);
    kv_status status = KV_OK;
    pthread_mutex_lock(&s->mutex);
    const kv_slot_last *last = &s->last[slot];
    if (s->busy[slot]) {
        status = kv_fail(err, KV_BUSY, "slot %d is processing a request", slot);
    } else if (last->tokens.len) {
        kv_tokens_append(tokens, last->tokens.data, last->tokens.len);
        *scope = kv_strdup(last->scope);
    }
    pthread_mutex_unlock(&s->mutex);
    return status;
}

char *kv_sched_about_slot(kv_sched *s, int slot) {
    pthread_mutex_lock(&s->mutex);
    char *about = slot >= 0 && slot < s->n_slots ? kv_strdup(s->last[slot].about) : NULL;
    pthread_mutex_unlock(&s->mutex);
    return about;
}

void kv_sched_note_last(kv_sched *s, int number, bool keep) {
    const kv_slot *slot = &s->slots[number];
    kv_slot_last *last = &s->last[number];
    pthread_mutex_lock(&s->mutex);
    last->tokens.len = 0;
    free(last->scope);
    last->scope = kv_strdup(slot->scope);
    if (keep) kv_tokens_append(&last->tokens, slot->held.data, slot->held.len);
    pthread_mutex_unlock(&s->mutex);
}

void kv_sched_get_stats(kv_sched_stats *out, kv_sched *s) {
    pthread_mutex_lock(&s->mutex);
    *out = s->stats_view;
    out->n_waiting += s->n_inbox;
    pthread_mutex_unlock(&s->mutex);
}

int kv_sched_get_slots(kv_slot_view *out, int room, kv_sched *s) {
    int n = room < s->n_slots ? room : s->n_slots;
    pthread_mutex_lock(&s->mutex);
    if (n > 0) memcpy(out, s->views, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&s->mutex);
    return n > 0 ? n : 0;
}

bool kv_sched_idle(kv_sched *s) {
    pthread_mutex_lock(&s->mutex);
    bool idle = s->n_live == 0;
    pthread_mutex_unlock(&s->mutex);
    return idle;
}

/* ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static double ms_between(int64_t from_us, int64_t to_us) {
    return (double)(to_us - from_us) / 1000;
}

kv_timings kv_sched_timings(const kv_gen *g, int64_t now_us) {
    const kv_run *r = &g->run;
    kv_timings t = {.slot = r->slot,
                    .n_cached = r->n_cached,
                    .n_cached_ram = r->n_cached_ram,
                    .n_cached_disk = r->n_cached_disk,
                    .n_prompt = r->n_prompt_done - r->n_cached,
                    .n_decoded = r->n_decoded,
                    .restore_ms = ms_between(0, r->restore_us),
                    .miss = r->miss,
                    .elsewhere = r->elsewhere,
                    .miss_position = r->miss_position,
                    .n_matched = r->n_matched};
    t.queue_ms = ms_between(r->submitted_us, r->admitted ? r->admitted_us : now_us);
    if (r->admitted) t.prompt_ms = ms_between(r->admitted_us, r->n_decoded ? r->first_token_us : now_us);
    if (r->n_decoded) t.decode_ms = ms_between(r->first_token_us, now_us);
    return t;
}

static kv_slot_view view_of(const kv_sched *s, int number) {
    const kv_slot *slot = &s->slots[number];
    const kv_gen *g = slot->gen;
    kv_slot_view v = {.id = number, .n_ctx = s->cfg.n_ctx_served, .n_tokens = (int32_t)slot->held.len};
    if (!g) return v;
    v.processing = true;
    v.prefilling = kv_slot_left(slot) >= 2 || !g->run.n_decoded;
    v.n_prompt = g->n_prompt;
    v.n_prompt_done = g->run.n_prompt_done;
    v.n_decoded = g->run.n_decoded;
    v.n_remain = g->run.n_limit - g->run.n_decoded;
    v.gen_id = g->run.id;
    return v;
}

/* What other threads may see. */
static void publish(kv_sched *s) {
    bool counts = s->cells.total != INT32_MAX;
    s->stats.n_processing = kv_sched_n_running(s);
    s->stats.n_waiting = s->n_waiting;
    s->stats.cells_used = counts ? s->cells.used : 0;
    s->stats.cells_total = counts ? s->cells.total : 0;
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < s->n_slots; i++) {
        s->views[i] = view_of(s, i);
        if (s->erase[i]) s->views[i].n_tokens = 0; /* promised, done before the next round */
    }
    s->stats_view = s->stats;
    pthread_mutex_unlock(&s->mutex);
}

void kv_sched_end(kv_sched *s, kv_gen *g, kv_finish finish, const kv_error *err) {
    int slot = g->run.slot;
    kv_gen_event e = {.kind = KV_EVENT_DONE, .finish = finish, .timings = kv_sched_timings(g, kv_now_us(s->clock))};
    if (finish == KV_FINISH_WORD) e.stop_word = kv_strdup(g->text.stop_word);
    if (err) e.error = *err;
    if (finish == KV_FINISH_CANCELLED) s->stats.n_cancelled++;
    if (g->run.state == KV_RUN_IN_SLOT) kv_sched_release_slot(s, slot, g->cache_prompt);
    else kv_sched_stop_waiting(s, g);
    kv_lookup_free(g->run.lookup);
    g->run.lookup = NULL;
    g->run.state = KV_RUN_DONE;
    g->run.slot = -1;
    pthread_mutex_lock(&s->mutex);
    if (slot >= 0) s->busy[slot] = false;
    s->n_live--;
    pthread_mutex_unlock(&s->mutex);
    publish(s); /* who has the answer finds it counted */
    kv_gen_push(g, &e);
    kv_gen_unref(g);
}

void kv_sched_count_failure(kv_sched *s, kv_gen *g, const kv_error *err) {
    if (++g->run.n_failed > KV_SCHED_RETRIES) kv_sched_end(s, g, KV_FINISH_ERROR, err);
}

void kv_sched_wait(kv_sched *s, kv_gen *g) {
    if (s->n_waiting == s->waiting_room) {
        s->waiting_room = s->waiting_room * 2 + 16;
        s->waiting = kv_realloc(s->waiting, (size_t)s->waiting_room * sizeof(kv_gen *));
    }
    g->run.state = KV_RUN_WAITING;
    g->run.slot = -1;
    /* it may have more tokens than last time */
    memset(g->run.match, 0, (size_t)s->n_slots * sizeof *g->run.match);
    memset(g->run.led, 0, (size_t)s->n_slots * sizeof *g->run.led);
    s->waiting[s->n_waiting++] = g;
}

static bool end_everything(kv_sched *s) {
    kv_error err = {0};
    bool did = false;
    kv_fail(&err, KV_BUSY, "server is shutting down");
    while (s->n_waiting) {
        kv_sched_end(s, s->waiting[0], KV_FINISH_ERROR, &err);
        did = true;
    }
    for (int i = 0; i < s->n_slots; i++) {
        if (!s->slots[i].gen) continue;
        kv_sched_end(s, s->slots[i].gen, KV_FINISH_ERROR, &err);
        did = true;
    }
    return did;
}

static bool end_cancelled(kv_sched *s) {
    bool did = false;
    for (int i = 0; i < s->n_waiting;) {
        kv_gen *g = s->waiting[i];
        if (!atomic_load(&g->cancelled)) {
            i++;
            continue;
        }
        kv_sched_end(s, g, KV_FINISH_CANCELLED, NULL);
        did = true;
    }
    for (int i = 0; i < s->n_slots; i++) {
        kv_gen *g = s->slots[i].gen;
        if (!g || !atomic_load(&g->cancelled)) continue;
        kv_sched_end(s, g, KV_FINISH_CANCELLED, NULL);
        did = true;
    }
    return did;
}

/* ── the step ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What other threads asked for since the last step. True when there was something. */
static bool take_orders(kv_sched *s, bool *stopping) {
    bool did = false;
    pthread_mutex_lock(&s->mutex);
    *stopping = s->stopping;
    s->woken = false;
    for (int i = 0; i < s->n_slots; i++) {
        s->in_call[i] = s->erase[i] && !s->busy[i];
        s->erase[i] = false;
    }
    for (int i = 0; i < s->n_inbox; i++) {
        kv_sched_wait(s, s->inbox[i]);
        s->stats.n_requests++;
        did = true;
    }
    s->n_inbox = 0;
    pthread_mutex_unlock(&s->mutex);
    for (int i = 0; i < s->n_slots; i++) {
        if (!s->in_call[i]) continue;
        kv_sched_empty_slot(s, i);
        did = true;
    }
    return did;
}

bool kv_sched_step(kv_sched *s) {
    bool stopping;
    if (!s->n_waiting && !kv_sched_n_running(s)) s->round_us = kv_now_us(s->clock); /* nobody waited in the meantime */
    bool did = take_orders(s, &stopping);
    if (stopping) {
        if (end_everything(s)) did = true;
    } else {
        if (end_cancelled(s)) did = true;
        if (kv_sched_admit(s)) did = true;
        if (kv_sched_restore_some(s)) did = true;
        if (kv_sched_round(s)) did = true;
    }
    s->stats.n_steps++;
    publish(s);
    return did;
}

void kv_sched_run(kv_sched *s) {
    for (bool over = false; !over;) {
        if (kv_sched_step(s)) continue;
        pthread_mutex_lock(&s->mutex);
        /* A step finds nothing to do only when nobody is there, or all there wait for look-ups. */
        KV_CHECK(s->n_live == s->n_inbox || s->cfg.cache);
        for (;;) {
            bool orders = s->n_inbox > 0 || s->woken;
            for (int i = 0; i < s->n_slots; i++)
                if (s->erase[i]) orders = true;
            over = s->stopping && !s->n_inbox;
            if (orders || over) break;
            pthread_cond_wait(&s->work, &s->mutex);
        }
        pthread_mutex_unlock(&s->mutex);
    }
}

/* ── for people, and for tests ─────────────────────────────────────────────────────────────────────────────────── */

static void dump_gen(kv_buf *out, const kv_gen *g) {
    kv_buf_addf(out, "gen %llu: %d prompt, %d decoded of %d, overtaken %.0f ms, %d failures%s\n",
                (unsigned long long)g->run.id, (int)g->n_prompt, (int)g->run.n_decoded, (int)g->run.n_limit,
                (double)g->run.overtaken_us / 1000, (int)g->run.n_failed, g->run.twins ? ", has twins" : "");
}

void kv_sched_dump(kv_buf *out, kv_sched *s) {
    kv_buf_addf(out, "%s memory, cells %d of %d, top at most %d, window cells held %d of %d\n",
                kv_memory_kind_name(s->info->memory), (int)s->cells.used, (int)s->cells.total,
                (int)kv_cells_top(&s->cells), (int)s->cells.window_held, (int)s->cells.window_total);
    for (int i = 0; i < s->n_slots; i++) {
        kv_buf_addf(out, "slot %d: %d tokens, ", i, (int)s->slots[i].held.len);
        if (s->slots[i].gen) dump_gen(out, s->slots[i].gen);
        else kv_buf_addf(out, "idle since %llu\n", (unsigned long long)s->slots[i].used_at);
    }
    for (int i = 0; i < s->n_waiting; i++) {
        kv_buf_adds(out, "waiting: ");
        dump_gen(out, s->waiting[i]);
    }
    if (s->last_failure.status)
        kv_buf_addf(out, "last failed call: %s: %s\n", kv_status_name(s->last_failure.status), s->last_failure.message);
}

void kv_sched_self_check(kv_sched *s) {
    int n_here = 0;
    kv_cells_check(&s->cells);
    for (int i = 0; i < s->n_slots; i++) {
        const kv_slot *slot = &s->slots[i];
        KV_CHECK(slot->restoring || kv_engine_pos_max(s->engine, i) + 1 == (kv_pos)slot->held.len); /* S1 */
        KV_CHECK(!slot->restoring || (slot->gen && slot->gen->run.lookup));
        KV_CHECK(s->cells.len[i] == (int32_t)slot->held.len ||
                 (slot->restoring && s->cells.len[i] > (int32_t)slot->held.len));
        if (!slot->gen) continue;
        n_here++;
        KV_CHECK(slot->gen->run.state == KV_RUN_IN_SLOT && slot->gen->run.slot == i);
        KV_CHECK(slot->held.len < slot->gen->tokens.len); /* S3 */
        KV_CHECK(kv_tokens_common(slot->held.data, slot->held.len, slot->gen->tokens.data, slot->gen->tokens.len) ==
                 slot->held.len);
        KV_CHECK(slot->gen->run.n_decoded < slot->gen->run.n_limit || !slot->gen->run.n_limit);
    }
    KV_CHECK(kv_engine_pos_max(s->engine, s->n_slots) == -1); /* scratch is never held across a step */
    for (int i = 0; i < s->n_waiting; i++) {                  /* S2 */
        KV_CHECK(s->waiting[i]->run.state == KV_RUN_WAITING && s->waiting[i]->run.slot == -1);
        for (int k = 0; k < i; k++) KV_CHECK(s->waiting[k] != s->waiting[i]);
    }
    KV_CHECK(s->cells.total == INT32_MAX || s->cfg.n_ctx_served <= s->cells.total); /* S4 */
    pthread_mutex_lock(&s->mutex);
    KV_CHECK(s->n_live == n_here + s->n_waiting + s->n_inbox);
    KV_CHECK(s->n_live <= s->n_slots + s->cfg.max_queue);
    for (int i = 0; i < s->n_slots; i++) KV_CHECK(s->busy[i] == (s->slots[i].gen != NULL));
    pthread_mutex_unlock(&s->mutex);
}
