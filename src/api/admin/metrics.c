#include "api/admin/metrics.h"

#include <stdio.h>

#include "api/account.h"
#include "api/asleep.h"
#include "api/endpoints.h"
#include "os/machine.h"

typedef struct metric {
    const char *name, *kind, *help;
    double value;
} metric;

static void write_metrics(kv_buf *out, const char *prefix, const metric *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const metric *m = &list[i];
        kv_buf_addf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n%s%s %.15g\n", prefix, m->name, m->help, prefix, m->name,
                    m->kind, prefix, m->name, m->value);
    }
}

static double per(double a, double b) {
    return b > 0 ? a / b : 0;
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Texts that vectors are computed of are prompts there. */
static void write_llamacpp(kv_buf *out, const kv_metrics_input *in) {
    const kv_sched_stats *s = &in->sched;
    const double n_prompt = (double)(s->n_prompt_computed + in->n_embedded);
    const double prompt_seconds = s->prompt_seconds + in->embed_seconds;
    const metric list[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens computed, without cached ones.", n_prompt},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens taken from a slot.", (double)s->n_prompt_cached},
        {"prompt_seconds_total", "counter", "Time spent on prompts in seconds.", prompt_seconds},
        {"tokens_predicted_total", "counter", "Tokens generated.", (double)s->n_decoded},
        {"tokens_predicted_seconds_total", "counter", "Time spent generating in seconds.", s->decode_seconds},
        {"n_decode_total", "counter", "Engine calls.", (double)(s->n_decode_calls + in->n_embed_calls)},
        {"n_tokens_max", "counter", "Longest sequence seen, prompt and answer.", (double)s->n_tokens_max},
        {"spec_decode_num_draft_tokens_total", "counter", "Speculative decoding: not in use.", 0},
        {"spec_decode_num_accepted_tokens_total", "counter", "Speculative decoding: not in use.", 0},
        {"spec_decode_num_drafts_total", "counter", "Speculative decoding: not in use.", 0},
        {"prompt_tokens_seconds", "gauge", "Average prompt speed in tokens a second.", per(n_prompt, prompt_seconds)},
        {"predicted_tokens_seconds", "gauge", "Average generation speed in tokens a second.",
         per((double)s->n_decoded, s->decode_seconds)},
        {"requests_processing", "gauge", "Generations running.", s->n_processing},
        {"requests_deferred", "gauge", "Generations waiting.", s->n_waiting},
        {"n_busy_slots_per_decode", "gauge", "Average busy slots an engine call.",
         per((double)s->n_busy_slots_sum, (double)s->n_decode_calls)},
    };
    write_metrics(out, "llamacpp:", list, COUNT(list));
}

static void write_kvasir(kv_buf *out, const kv_metrics_input *in) {
    const kv_sched_stats *s = &in->sched;
    const metric list[] = {
        {"requests_total", "counter", "Generations queued.", (double)s->n_requests},
        {"requests_cancelled_total", "counter", "Generations that the client gave up.", (double)s->n_cancelled},
        {"preemptions_total", "counter", "Generations sent back to the queue for want of cells.",
         (double)s->n_preempted},
        {"gave_way_total", "counter", "Prompts that left a slot to one that goes before them, and came back later.",
         (double)s->n_gave_way},
        {"led_total", "counter", "Generations that waited for another to compute the beginning of their prompt.",
         (double)s->n_led},
        {"prompt_tokens_computed_total", "counter", "Prompt tokens computed.", (double)s->n_prompt_computed},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens not computed, from wherever they came.",
         (double)s->n_prompt_cached},
        {"tokens_generated_total", "counter", "Tokens generated.", (double)s->n_decoded},
        {"prompt_seconds_total", "counter", "Time spent on prompts in seconds.", s->prompt_seconds},
        {"decode_seconds_total", "counter", "Time spent generating in seconds.", s->decode_seconds},
        {"embedded_tokens_total", "counter", "Tokens of texts whose vectors or scores were computed.",
         (double)in->n_embedded},
        {"embed_seconds_total", "counter", "Time spent on them in seconds.", in->embed_seconds},
        {"asleep", "gauge", "1 while the model is unloaded because nobody asked for it.", in->asleep},
        {"sleeps_total", "counter", "Times the model was unloaded for that.", (double)in->n_sleeps},
        {"slots", "gauge", "Slots.", in->n_slots},
        {"slots_busy", "gauge", "Slots with a generation.", s->n_processing},
        {"queue_length", "gauge", "Generations waiting.", s->n_waiting},
        {"context_tokens", "gauge", "Most tokens of one request, prompt and answer.", in->n_ctx},
        {"cells", "gauge", "KV cells of the main pool.", s->cells_total},
        {"cells_used", "gauge", "KV cells in use.", s->cells_used},
        {"resident_bytes", "gauge", "Resident memory of the process.", (double)in->bytes_rss},
        {"context_bytes", "gauge", "KV and state buffers.", (double)in->bytes_context},
        {"weights_bytes", "gauge", "Model weights.", (double)in->bytes_weights},
        {"start_time_seconds", "gauge", "Unix time of the start.", (double)in->started_at},
        {"uptime_seconds", "gauge", "Seconds since the start.", (double)(in->now - in->started_at)},
    };
    write_metrics(out, "kvasir_", list, COUNT(list));
    kv_buf_addf(out,
                "# HELP kvasir_build_info Version of the server and its engine.\n# TYPE kvasir_build_info gauge\n"
                "kvasir_build_info{version=\"%s\",engine=\"%s\"} 1\n",
                in->version ? in->version : "", in->engine ? in->engine : "");
}

static void write_head(kv_buf *out, const char *name, const char *kind, const char *help) {
    kv_buf_addf(out, "# HELP kvasir_%s %s\n# TYPE kvasir_%s %s\n", name, help, name, kind);
}

static void write_histogram(kv_buf *out, const char *name, const char *help, const kv_histogram *h) {
    uint64_t below = 0;
    write_head(out, name, "histogram", help);
    for (int i = 0; i < KV_HISTOGRAM_BOUNDS; i++) {
        below += h->count[i];
        kv_buf_addf(out, "kvasir_%s_bucket{le=\"%g\"} %llu\n", name, h->bounds[i], (unsigned long long)below);
    }
    kv_buf_addf(out, "kvasir_%s_bucket{le=\"+Inf\"} %llu\nkvasir_%s_sum %.15g\nkvasir_%s_count %llu\n", name,
                (unsigned long long)h->n, name, h->sum, name, (unsigned long long)h->n);
}

/* Of requests that are over; kvasir_prompt_tokens_… count while they run. */
static void write_ledger(kv_buf *out, const kv_ledger_totals *t) {
    const struct {
        const char *tier;
        uint64_t n;
    } tiers[] = {{"engine", t->engine}, {"ram", t->ram}, {"disk", t->disk}};
    write_head(out, "cache_tokens_total", "counter", "Prompt tokens not computed, by where they lay.");
    for (size_t i = 0; i < COUNT(tiers); i++)
        kv_buf_addf(out, "kvasir_cache_tokens_total{tier=\"%s\"} %llu\n", tiers[i].tier,
                    (unsigned long long)tiers[i].n);
    write_head(out, "cache_miss_total", "counter", "Prompts that could not reuse more, by the reason.");
    for (int m = KV_MISS_NONE + 1; m < KV_MISS_COUNT; m++)
        kv_buf_addf(out, "kvasir_cache_miss_total{reason=\"%s\"} %llu\n", kv_account_reason((kv_miss)m),
                    (unsigned long long)t->n_miss[m]);
    write_head(out, "respelled_tokens_total", "counter",
               "Prompt tokens that spell the prompt's bytes as an earlier path does, not as the tokeniser would.");
    kv_buf_addf(out, "kvasir_respelled_tokens_total %llu\n", (unsigned long long)t->respelled);
    write_head(out, "canonicalised_total", "counter", "Requests that a rule of the canonicaliser changed.");
    for (int r = 0; r < KV_RULE_COUNT; r++)
        kv_buf_addf(out, "kvasir_canonicalised_total{rule=\"%s\"} %llu\n", kv_rule_name((kv_rule)r),
                    (unsigned long long)t->n_canonicalised[r]);
    write_histogram(out, "cache_restore_seconds", "Time to put a prompt's stored state back.", &t->restore);
    write_histogram(out, "time_to_first_token_seconds", "From a request's arrival to its first token.",
                    &t->first_token);
}

/* States and window parts, by what kind of position they were kept for. */
static void write_places(kv_buf *out, const kv_cache_stats *c) {
    uint64_t kept[KV_PLACE_COUNT], hits[KV_PLACE_COUNT];
    for (int k = 0; k < KV_PLACE_COUNT; k++) {
        kept[k] = c->places[k].n_kept;
        hits[k] = c->places[k].n_hits;
    }
    const struct {
        const char *name, *help;
        const uint64_t *n;
    } lists[] = {
        {"cache_places_kept_total", "States and window parts kept, by kind of position, restarts included.", kept},
        {"cache_places_hit_total", "Prompts that went on at one, by its kind, restarts included.", hits},
        {"cache_places_bytes_total", "Bytes of those captured since the start, by kind.", c->place_bytes},
        {"cache_places_written_bytes_total", "Bytes of those written to disk since the start, by kind.",
         c->place_bytes_written},
    };
    for (size_t i = 0; i < COUNT(lists); i++) {
        write_head(out, lists[i].name, "counter", lists[i].help);
        for (int k = 0; k < KV_PLACE_COUNT; k++)
            kv_buf_addf(out, "kvasir_%s{place=\"%s\"} %llu\n", lists[i].name, kv_place_name((kv_place_kind)k),
                        (unsigned long long)lists[i].n[k]);
    }
}

static void write_cache(kv_buf *out, const kv_cache_stats *c) {
    const metric list[] = {
        {"cache_queue_bytes", "gauge", "Captured state that waits to be stored.", (double)c->queue_bytes},
        {"cache_ram_bytes", "gauge", "Stored state in memory.", (double)c->ram_bytes},
        {"cache_read_buffer_bytes", "gauge", "Buffers of what is on its way from disk.", (double)c->read_bytes},
        {"cache_nodes", "gauge", "Blocks known by their tokens.", (double)c->nodes},
        {"cache_tree_bytes", "gauge", "Memory of the tree that finds them.", (double)c->tree_bytes},
        {"cache_evicted_total", "counter", "Blocks given up for want of room.", (double)c->n_evicted},
        {"cache_dropped_total", "counter", "Captures that found no room in the queue.", (double)c->n_dropped},
        {"cache_written_total", "counter", "Records that went to disk.", (double)c->n_written},
        {"cache_written_bytes_total", "counter", "Bytes of them.", (double)c->bytes_written},
        {"cache_not_written_total", "counter", "Records that the store on disk refused.", (double)c->n_not_written},
        {"cache_read_total", "counter", "Records read from disk.", (double)c->n_read},
        {"cache_read_bytes_total", "counter", "Bytes of them.", (double)c->bytes_read},
        {"cache_read_failed_total", "counter", "Records that could not be read.", (double)c->n_read_failed},
    };
    write_metrics(out, "kvasir_", list, COUNT(list));
    write_places(out, c);
}

void kv_metrics_render(kv_buf *out, const kv_metrics_input *in) {
    write_llamacpp(out, in);
    write_kvasir(out, in);
    write_ledger(out, &in->ledger);
    if (in->cache) write_cache(out, in->cache);
}

void kv_metrics_add(kv_sched_stats *sum, const kv_sched_stats *more) {
    sum->n_prompt_restored += more->n_prompt_restored;
    sum->n_restore_failed += more->n_restore_failed;
    sum->n_prompt_computed += more->n_prompt_computed;
    sum->n_prompt_cached += more->n_prompt_cached;
    sum->n_decoded += more->n_decoded;
    sum->n_decode_calls += more->n_decode_calls;
    sum->n_requests += more->n_requests;
    sum->n_preempted += more->n_preempted;
    sum->n_cancelled += more->n_cancelled;
    sum->prompt_seconds += more->prompt_seconds;
    sum->decode_seconds += more->decode_seconds;
    sum->n_busy_slots_sum += more->n_busy_slots_sum;
    if (more->n_tokens_max > sum->n_tokens_max) sum->n_tokens_max = more->n_tokens_max;
    sum->n_no_cells += more->n_no_cells;
    sum->n_damaged += more->n_damaged;
    sum->n_failed += more->n_failed;
    sum->n_forked += more->n_forked;
    sum->n_gave_way += more->n_gave_way;
    sum->n_led += more->n_led;
}

void kv_metrics_collect(kv_metrics_input *out, kv_cache_stats *cache, const kv_app *app) {
    *out = (kv_metrics_input){
        .n_slots = app->engine_info.n_slots,
        .n_ctx = app->n_ctx_served,
        .bytes_context = app->engine_info.bytes_state_total,
        .bytes_weights = kv_model_get_info(app->model)->size_bytes,
        .engine = app->engine_info.version,
        .n_sleeps = app->n_sleeps,
    };
    kv_sched_get_stats(&out->sched, app->sched);
    kv_metrics_add(&out->sched, &app->sched_before);
    if (!app->cache) return;
    kv_cache_get_stats(cache, app->cache);
    out->cache = cache;
}

kv_status kv_serve_metrics(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    (void)req;
    kv_app *app = ctx;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    if (!app->opt->metrics_endpoint)
        return kv_fail(err, KV_UNSUPPORTED, "This server does not support metrics endpoint. Start it with `--metrics`");
    kv_metrics_input in;
    kv_cache_stats cache;
    if (kv_gate_look(app->gate)) {
        kv_metrics_collect(&in, &cache, app);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_metrics(&in, &cache, app->asleep);
    }
    in.bytes_rss = kv_machine_rss();
    in.started_at = app->started_at;
    in.now = kv_wall_seconds();
    in.version = KVASIR_VERSION;
    in.n_embedded = atomic_load(&app->embedded.n_tokens);
    in.n_embed_calls = atomic_load(&app->embedded.n_calls);
    in.embed_seconds = (double)atomic_load(&app->embedded.us) / 1e6;
    kv_ledger_get(&in.ledger, app->ledger);
    kv_metrics_render(&res->body, &in);
    char started[32];
    snprintf(started, sizeof started, "%lld", (long long)app->started_at);
    kv_http_header(res, "Process-Start-Time-Unix", started);
    res->content_type = "text/plain; version=0.0.4";
    return KV_OK;
}
