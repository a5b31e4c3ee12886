/* sched/round.c: what one round computes, the calls to the engine, and what comes of each row.
 *
 *   one call    [chunk rows of one prompt][a row of each decoding slot]
 *   two calls   [a row of each decoding slot, by sequence id]  then  [chunk rows]      with recurrent layers
 */
#include "sched/chunk.h"
#include "sched/sched_private.h"

/* ── planning ──────────────────────────────────────────────────────────────────────────────────────────────────── */

kv_queue_key kv_slot_key(const kv_sched *s, const kv_slot *slot) {
    const kv_run *run = &slot->gen->run;
    kv_queue_key own = kv_run_key(slot->gen, kv_slot_left(slot));
    bool urged = run->is_urged && kv_queue_compare(&run->urge, &own, (int64_t)s->cfg.max_wait_ms * 1000) < 0;
    return urged ? run->urge : own;
}

/* The slot that has this round for itself, because its generation is a suspect; -1: the round is everybody else's. */
static int next_alone(const kv_sched *s) {
    int alone = -1;
    bool others = false;
    for (int i = 0; i < s->n_slots; i++) {
        const kv_slot *slot = &s->slots[i];
        if (!slot->gen) continue;
        if (slot->gen->run.n_nan) alone = i;
        else if (!slot->restoring) others = true;
    }
    bool restores = alone >= 0 && s->slots[alone].restoring; /* then nobody computes */
    return others && s->suspect_ran && !restores ? -1 : alone;
}

static bool takes_part(const kv_sched *s, int number, int alone) {
    const kv_slot *slot = &s->slots[number];
    return kv_slot_runs(slot) && (alone < 0 ? !slot->gen->run.n_nan : number == alone);
}

/* The prompt that is next to be computed: -1 when none is left. */
static int next_to_prefill(const kv_sched *s, int alone) {
    int best = -1;
    kv_queue_key best_key = {0};
    for (int i = 0; i < s->n_slots; i++) {
        const kv_slot *slot = &s->slots[i];
        if (!takes_part(s, i, alone) || kv_slot_left(slot) < 2) continue;
        kv_queue_key key = kv_slot_key(s, slot);
        if (best >= 0 && kv_queue_compare(&key, &best_key, (int64_t)s->cfg.max_wait_ms * 1000) > 0) continue;
        best = i;
        best_key = key;
    }
    return best;
}

/* Upper bound of the highest cell while n more tokens are computed; nothing depends on it without attention. */
static int32_t depth_with(const kv_sched *s, int32_t n) {
    if (s->cells.total == INT32_MAX) return 0;
    int32_t top = kv_cells_top(&s->cells), after = s->cells.used + n;
    return top > after ? top : after;
}

typedef struct forecast {
    const kv_sched *s;
    int32_t n_others; /* rows of others in the same call */
} forecast;

static int64_t predict_chunk(const void *ctx, int32_t n) {
    const forecast *f = ctx;
    int32_t rows = n + f->n_others;
    return kv_cost_predict_us(&f->s->cost, rows, depth_with(f->s, rows));
}

/* Where the slot's next chunk must end: at the last known token, or before it where something is kept. */
static int32_t prefill_end(const kv_sched *s, int slot) {
    const kv_gen *g = s->slots[slot].gen;
    int32_t pos = (int32_t)s->slots[slot].held.len, end = (int32_t)g->tokens.len - 1;
    const kv_places places = kv_gen_places(g); /* behind it lies what was generated before a preemption */
    if (!s->cfg.cache || pos >= places.n_prompt) return end;
    int32_t edge = kv_cache_next_edge(s->cfg.cache, pos, &places);
    return edge < end ? edge : end;
}

/* streaming: somebody who decodes waits for the chunk, be it in the round before. */
static int32_t plan_chunk(const kv_sched *s, int slot, int n_decode, bool streaming) {
    forecast f = {s, s->two_calls ? 0 : n_decode};
    int64_t budget_us = (int64_t)s->cfg.max_stall_ms * 1000 - s->restore_us;
    if (s->two_calls && n_decode) { /* between two tokens of a stream lie a chunk and a call of tokens */
        int64_t us = kv_cost_predict_us(&s->decode_cost, n_decode, depth_with(s, n_decode));
        if (us > 0) budget_us -= us;
    }
    kv_chunk_input in = {
        .pos = (int32_t)s->slots[slot].held.len,
        .n_tokens = prefill_end(s, slot) + 1,
        .block = s->cfg.block,
        .chunk = s->cfg.chunk,
        .min_chunk = s->cfg.min_chunk,
        .least = s->two_calls ? 2 : 1,
        .room = s->info->n_batch - f.n_others,
        .streaming = streaming,
        .budget_us = budget_us,
        .predict_us = predict_chunk,
        .predict_ctx = &f,
        .smallest_us =
            kv_cost_at_least_us(&s->cost, s->cfg.min_chunk + f.n_others, depth_with(s, s->cfg.min_chunk + f.n_others)),
    };
    return kv_chunk_next(&in);
}

static kv_round plan(kv_sched *s) {
    int alone = next_alone(s);
    kv_round r = {.chunk_slot = next_to_prefill(s, alone), .is_alone = alone >= 0};
    bool has_first = false;
    for (int i = 0; i < s->n_slots; i++) {
        if (!takes_part(s, i, alone) || kv_slot_left(&s->slots[i]) != 1) continue;
        s->decoding[r.n_decode++] = i;
        if (!s->slots[i].gen->run.n_decoded) has_first = true;
    }
    /* A first token waits for nobody's chunk, and a prompt that ends with it leaves the next one its cells. Not twice in a
     * row: such prompts could come all the time. */
    bool waits = has_first && s->chunked >= 0;
    if (r.chunk_slot >= 0 && !waits)
        r.n_chunk = plan_chunk(s, r.chunk_slot, r.n_decode, r.n_decode || (r.is_alone && kv_sched_n_running(s) > 1));
    if (!r.n_chunk) r.chunk_slot = -1;
    return r;
}

/* ── what comes of a row ───────────────────────────────────────────────────────────────────────────────────────── */

static kv_finish check_limits(const kv_gen *g, int64_t now_us) {
    if (g->run.n_decoded >= g->run.n_limit) return KV_FINISH_LENGTH; /* the context limit included */
    bool too_long = g->t_max_predict_ms > 0 && now_us - g->run.first_token_us > g->t_max_predict_ms * 1000;
    return too_long && g->text.new_line ? KV_FINISH_LENGTH : KV_FINISH_NONE;
}

/* The token's text goes to the event; says whether the generation ends with it. */
static kv_finish take_token(kv_sched *s, kv_gen *g, kv_token token, int64_t now_us, kv_gen_event *e) {
    kv_finish finish = KV_FINISH_NONE;
    kv_buf text = {0};
    if (kv_model_is_eog(s->engine->model, token)) {
        finish = KV_FINISH_EOS;
    } else {
        kv_buf_clear(&s->piece);
        kv_model_piece(&s->piece, s->engine->model, token, g->special_pieces);
        switch (kv_text_feed(&text, &g->text, kv_buf_str(&s->piece), s->piece.len)) {
        case KV_TEXT_STOPPED: finish = KV_FINISH_WORD; break;
        case KV_TEXT_OUTDENTED: finish = KV_FINISH_LENGTH; break;
        case KV_TEXT_GOES_ON: finish = check_limits(g, now_us); break;
        }
    }
    if (finish != KV_FINISH_NONE) kv_text_flush(&text, &g->text);
    e->n_text = text.len;
    e->text = kv_buf_take(&text);
    return finish;
}

static kv_status take_probs(kv_sched *s, kv_gen *g, int row, kv_gen_event *e, kv_error *err) {
    if (!g->n_probs) return KV_OK;
    int n = g->n_probs < s->engine->model->info.n_vocab ? g->n_probs : s->engine->model->info.n_vocab;
    e->top = kv_alloc((size_t)n * sizeof *e->top);
    kv_status status =
        kv_sampler_probs(e->top, &n, &e->chosen, g->sampler, s->engine, row, g->post_sampling_probs, err);
    e->n_top = status == KV_OK ? n : 0;
    return status;
}

/* The last known token of the slot's generation was computed: sample the next one. */
static void sample_row(kv_sched *s, int number, int row) {
    kv_gen *g = s->slots[number].gen;
    kv_error err = {0};
    kv_gen_event e = {.kind = KV_EVENT_TOKEN};
    if (!g->run.n_limit) { /* only the prompt was asked for */
        kv_sched_end(s, g, KV_FINISH_LENGTH, NULL);
        return;
    }
    kv_status status = kv_sampler_sample(&e.token, g->sampler, s->engine, row, &err);
    e.chosen.token = e.token;
    if (status == KV_OK) status = take_probs(s, g, row, &e, &err);
    if (status != KV_OK) {
        kv_gen_event_free(&e);
        kv_sched_end(s, g, KV_FINISH_ERROR, &err);
        return;
    }
    int64_t now_us = kv_now_us(s->clock);
    if (!g->run.n_decoded++) g->run.first_token_us = now_us;
    g->run.n_failed = 0;
    s->stats.n_decoded++;
    kv_finish finish = take_token(s, g, e.token, now_us, &e);
    e.timings = kv_sched_timings(g, now_us);
    kv_gen_push(g, &e);
    if (finish != KV_FINISH_NONE) kv_sched_end(s, g, finish, NULL);
    else kv_tokens_add(&g->tokens, e.token);
}

/* n more of its generation's tokens are in the slot's cells. */
static void consumed(kv_sched *s, int number, int32_t n) {
    kv_slot *slot = &s->slots[number];
    kv_gen *g = slot->gen;
    kv_tokens_append(&slot->held, g->tokens.data + slot->held.len, (size_t)n);
    kv_cells_append(&s->cells, number, n);
    int32_t held = (int32_t)slot->held.len, done = held < g->n_prompt ? held : g->n_prompt;
    if (held > s->stats.n_tokens_max) s->stats.n_tokens_max = held;
    if (done <= g->run.n_prompt_done) return;
    g->run.n_prompt_done = done;
    kv_sched_tell_progress(g, kv_now_us(s->clock));
}

/* The logits of its last token were numbers, so everything that they come of is. */
static void gave_numbers(kv_sched *s, int number) {
    kv_slot *slot = &s->slots[number];
    kv_run *run = &slot->gen->run;
    if (run->starts_over && run->n_nan) kv_sched_forget(s, number, 0, run->n_resumed);
    run->n_nan = 0;
    slot->sound = (int32_t)slot->held.len;
}

/* ── a call ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void add_row(kv_sched *s, int number, int32_t ahead, bool want_logits) {
    const kv_slot *slot = &s->slots[number];
    kv_batch *b = &s->batch;
    int32_t pos = (int32_t)slot->held.len + ahead;
    b->token[b->n] = slot->gen->tokens.data[pos];
    b->pos[b->n] = pos;
    b->seq[b->n] = number;
    b->want_logits[b->n] = want_logits;
    b->n++;
    s->in_call[number] = true;
}

static void count_call(kv_sched *s, const kv_round *r, int64_t us) {
    int32_t n_rows = s->batch.n;
    uint64_t n_prompt = (uint64_t)r->n_chunk;
    for (int i = 0; i < r->n_decode; i++) n_prompt += s->slots[s->decoding[i]].gen->run.n_decoded == 0;
    double seconds = (double)us / 1e6, share = (double)r->n_chunk / n_rows;
    s->stats.n_prompt_computed += n_prompt;
    s->stats.n_decode_calls++;
    s->stats.prompt_seconds += seconds * share;
    s->stats.decode_seconds += seconds * (1 - share);
    for (int i = 0; i < s->n_slots; i++) s->stats.n_busy_slots_sum += s->slots[i].gen != NULL;
}

static void failed(kv_sched *s, kv_status status, const kv_error *err) {
    s->last_failure = *err;
    switch (status) {
    case KV_NO_CELLS: kv_sched_no_cells(s, err); break;
    case KV_ENGINE_DAMAGED: kv_sched_damaged(s, s->in_call, err); break;
    case KV_NOT_NUMBERS: kv_sched_not_numbers(s, s->in_call, err); break;
    default: kv_sched_refused(s, s->in_call, err); break;
    }
}

/* What it would take to compute one of the rows again: as part of a prompt, with others. A token that was decoded alone
 * took a call over all weights for itself. */
static double us_to_compute_again(const kv_sched *s, int32_t depth, double us_per_row) {
    int64_t us = kv_cost_predict_us(&s->cost, s->cfg.chunk, depth);
    double with_others = us > 0 ? (double)us / s->cfg.chunk : us_per_row;
    return with_others < us_per_row ? with_others : us_per_row;
}

/* Compute r's rows in one call. False when it failed; then what was to be done about it is done. */
static bool run_call(kv_sched *s, const kv_round *r) {
    kv_error err = {0};
    s->batch.n = 0;
    for (int i = 0; i < s->n_slots; i++) s->in_call[i] = false;
    for (int32_t k = 0; k < r->n_chunk; k++) add_row(s, r->chunk_slot, k, r->is_alone && k == r->n_chunk - 1);
    for (int i = 0; i < r->n_decode; i++) add_row(s, s->decoding[i], 0, true);
    KV_CHECK(s->batch.n <= s->info->n_batch); /* one call is one ubatch */
    int32_t depth = depth_with(s, s->batch.n);
    int64_t start_us = kv_now_us(s->clock);
    kv_status status = kv_engine_decode(s->engine, &s->batch, &err);
    if (status != KV_OK) {
        failed(s, status, &err);
        return false;
    }
    s->short_of_cells = false;
    count_call(s, r, kv_now_us(s->clock) - start_us);
    double us_per_token = us_to_compute_again(s, depth, (double)(kv_now_us(s->clock) - start_us) / s->batch.n);
    if (r->n_chunk) consumed(s, r->chunk_slot, r->n_chunk);
    if (r->n_chunk && r->is_alone) s->slots[r->chunk_slot].sound = (int32_t)s->slots[r->chunk_slot].held.len;
    for (int i = 0; i < r->n_decode; i++) {
        int number = s->decoding[i];
        consumed(s, number, 1);
        gave_numbers(s, number);
        kv_sched_keep_probe(s, number, r->n_chunk + i);
        sample_row(s, number, r->n_chunk + i);
    }
    /* Windows and states are only there until the next call. */
    if (r->n_chunk) kv_sched_capture(s, r->chunk_slot, us_per_token);
    for (int i = 0; i < r->n_decode; i++) kv_sched_capture(s, s->decoding[i], us_per_token);
    /* Sampling counts: with a grammar it takes its time, and a stream waits for it like for the rest. */
    int64_t us = kv_now_us(s->clock) - start_us;
    kv_cost_observe(r->n_chunk || !s->two_calls ? &s->cost : &s->decode_cost, s->batch.n, depth, us);
    return true;
}

/* ── the round ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Who waited while one that came later was served. */
static void account_waits(kv_sched *s) {
    int64_t now_us = kv_now_us(s->clock), us = now_us - s->round_us;
    uint64_t youngest = 0, chunked = 0;
    s->round_us = now_us;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].gen && s->slots[i].gen->run.id > youngest) youngest = s->slots[i].gen->run.id;
    for (int i = 0; i < s->n_waiting; i++)
        if (s->waiting[i]->run.id < youngest) s->waiting[i]->run.overtaken_us += us;
    if (s->chunked < 0 || !s->slots[s->chunked].gen) return;
    chunked = s->slots[s->chunked].gen->run.id;
    for (int i = 0; i < s->n_slots; i++) {
        kv_gen *g = s->slots[i].gen;
        if (g && kv_slot_left(&s->slots[i]) >= 2 && g->run.id < chunked) g->run.overtaken_us += us;
    }
}

/* In its first rounds: generations that ran when it was admitted may have ended since, so idle cells are cleared once more. */
static bool has_just_begun(const kv_sched *s, int slot) {
    const kv_run *run = &s->slots[slot].gen->run;
    return run->n_prompt_done - run->n_cached <= s->cfg.chunk;
}

bool kv_sched_round(kv_sched *s) {
    kv_round r;
    bool preempted = false;
    kv_sched_make_dense(s);
    while (r = plan(s), !kv_sched_make_room(s, r.n_chunk + r.n_decode)) preempted = true;
    s->suspect_ran = r.is_alone;
    if (r.n_chunk && has_just_begun(s, r.chunk_slot)) kv_sched_clear_way(s, r.chunk_slot);
    s->chunked = r.chunk_slot;
    if (!r.n_chunk && !r.n_decode) return preempted;
    if (!s->two_calls) {
        run_call(s, &r);
    } else {
        const kv_gen *prefilling = r.n_chunk ? s->slots[r.chunk_slot].gen : NULL;
        kv_round tokens = {.chunk_slot = -1, .n_decode = r.n_decode};
        kv_round chunk = {.chunk_slot = r.chunk_slot, .n_chunk = r.n_chunk, .is_alone = r.is_alone};
        bool ok = !r.n_decode || run_call(s, &tokens);
        /* When the first call failed, the second one's generation may have been sent back to the queue. */
        if (r.n_chunk && (ok || s->slots[r.chunk_slot].gen == prefilling)) run_call(s, &chunk);
    }
    account_waits(s);
    return true;
}
