/* Prometheus text: every name that llama-server has, well-formed lines, the right numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/admin/metrics.h"

static double value_of(const char *text, const char *name) {
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *p = strstr(text, line);
    if (!p) fail_msg("no %s", name);
    return atof(p + strlen(line));
}

static void assert_kind(const char *text, const char *name, const char *kind) {
    char line[128];
    snprintf(line, sizeof line, "# TYPE %s %s\n", name, kind);
    if (!strstr(text, line)) fail_msg("no %s", line);
    snprintf(line, sizeof line, "# HELP %s ", name);
    if (!strstr(text, line)) fail_msg("no %s", line);
}

static void test_metrics(void **state) {
    (void)state;
    kv_metrics_input in = {
        .sched = {.n_prompt_computed = 1000,
                  .n_prompt_cached = 3000,
                  .n_decoded = 50,
                  .n_decode_calls = 20,
                  .n_requests = 7,
                  .n_preempted = 1,
                  .n_cancelled = 2,
                  .prompt_seconds = 4,
                  .decode_seconds = 2,
                  .n_busy_slots_sum = 30,
                  .n_processing = 3,
                  .n_waiting = 5,
                  .n_tokens_max = 900,
                  .cells_used = 11,
                  .cells_total = 4096},
        .ledger = {.engine = 100, .ram = 200, .disk = 300, .computed = 400, .n_miss = {[KV_MISS_DIVERGED] = 6}},
        .n_slots = 4,
        .n_ctx = 2048,
        .bytes_rss = 123456789012,
        .started_at = 1000,
        .now = 1060,
        .version = "1.2.3",
        .engine = "v0",
    };
    kv_ledger_totals none;
    kv_ledger_get(&none, NULL);
    in.ledger.restore = none.restore;
    in.ledger.first_token = none.first_token;
    in.ledger.restore.count[0] = 2; /* within the first bound */
    in.ledger.restore.count[3] = 1;
    in.ledger.restore.count[KV_HISTOGRAM_BOUNDS] = 4; /* above them all */
    in.ledger.restore.n = 7;
    in.ledger.restore.sum = 99.5;
    kv_cache_stats cache = {
        .queue_bytes = 21, .ram_bytes = 22, .nodes = 23, .tree_bytes = 24, .n_evicted = 25, .n_dropped = 26};
    for (int k = 0; k < KV_PLACE_COUNT; k++) cache.places[k].n_hits = 30 + (uint64_t)k;
    in.cache = &cache;
    kv_buf out = {0};
    kv_metrics_render(&out, &in);
    const char *text = kv_buf_str(&out);
    static const struct {
        const char *name, *kind;
        double value;
    } want[] = {
        {"llamacpp:prompt_tokens_total", "counter", 1000},
        {"llamacpp:prompt_tokens_cached_total", "counter", 3000},
        {"llamacpp:prompt_seconds_total", "counter", 4},
        {"llamacpp:tokens_predicted_total", "counter", 50},
        {"llamacpp:tokens_predicted_seconds_total", "counter", 2},
        {"llamacpp:n_decode_total", "counter", 20},
        {"llamacpp:n_tokens_max", "counter", 900},
        {"llamacpp:spec_decode_num_draft_tokens_total", "counter", 0},
        {"llamacpp:spec_decode_num_accepted_tokens_total", "counter", 0},
        {"llamacpp:spec_decode_num_drafts_total", "counter", 0},
        {"llamacpp:prompt_tokens_seconds", "gauge", 250},
        {"llamacpp:predicted_tokens_seconds", "gauge", 25},
        {"llamacpp:requests_processing", "gauge", 3},
        {"llamacpp:requests_deferred", "gauge", 5},
        {"llamacpp:n_busy_slots_per_decode", "gauge", 1.5},
        {"kvasir_requests_total", "counter", 7},
        {"kvasir_requests_cancelled_total", "counter", 2},
        {"kvasir_preemptions_total", "counter", 1},
        {"kvasir_slots", "gauge", 4},
        {"kvasir_slots_busy", "gauge", 3},
        {"kvasir_queue_length", "gauge", 5},
        {"kvasir_context_tokens", "gauge", 2048},
        {"kvasir_cells", "gauge", 4096},
        {"kvasir_cells_used", "gauge", 11},
        {"kvasir_resident_bytes", "gauge", 123456789012},
        {"kvasir_uptime_seconds", "gauge", 60},
        {"kvasir_cache_queue_bytes", "gauge", 21},
        {"kvasir_cache_ram_bytes", "gauge", 22},
        {"kvasir_cache_nodes", "gauge", 23},
        {"kvasir_cache_tree_bytes", "gauge", 24},
        {"kvasir_cache_evicted_total", "counter", 25},
        {"kvasir_cache_dropped_total", "counter", 26},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_kind(text, want[i].name, want[i].kind);
        assert_true(value_of(text, want[i].name) == want[i].value);
    }
    for (int k = 0; k < KV_PLACE_COUNT; k++) {
        kv_buf line = {0};
        kv_buf_addf(&line, "\nkvasir_cache_places_hit_total{place=\"%s\"} %d\n", kv_place_name((kv_place_kind)k),
                    30 + k);
        assert_non_null(strstr(text, kv_buf_str(&line)));
        kv_buf_free(&line);
    }
    assert_non_null(strstr(text, "\nkvasir_build_info{version=\"1.2.3\",engine=\"v0\"} 1\n"));

    assert_true(value_of(text, "kvasir_cache_tokens_total{tier=\"engine\"}") == 100);
    assert_true(value_of(text, "kvasir_cache_tokens_total{tier=\"ram\"}") == 200);
    assert_true(value_of(text, "kvasir_cache_tokens_total{tier=\"disk\"}") == 300);
    assert_true(value_of(text, "kvasir_cache_miss_total{reason=\"diverged\"}") == 6);
    assert_true(value_of(text, "kvasir_cache_miss_total{reason=\"no_checkpoint\"}") == 0);
    assert_null(strstr(text, "reason=\"none\""));
    /* buckets count all below their bound */
    assert_true(value_of(text, "kvasir_cache_restore_seconds_bucket{le=\"0.0005\"}") == 2);
    assert_true(value_of(text, "kvasir_cache_restore_seconds_bucket{le=\"0.0025\"}") == 2);
    assert_true(value_of(text, "kvasir_cache_restore_seconds_bucket{le=\"0.005\"}") == 3);
    assert_true(value_of(text, "kvasir_cache_restore_seconds_bucket{le=\"10\"}") == 3);
    assert_true(value_of(text, "kvasir_cache_restore_seconds_bucket{le=\"+Inf\"}") == 7);
    assert_true(value_of(text, "kvasir_cache_restore_seconds_sum") == 99.5);
    assert_true(value_of(text, "kvasir_cache_restore_seconds_count") == 7);
    assert_kind(text, "kvasir_cache_restore_seconds", "histogram");
    assert_kind(text, "kvasir_time_to_first_token_seconds", "histogram");
    assert_kind(text, "kvasir_cache_tokens_total", "counter");
    assert_kind(text, "kvasir_cache_miss_total", "counter");

    /* each line is a comment or `name value`, and no name comes twice */
    for (char *save = NULL, *line = strtok_r(out.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#') continue;
        char name[128], rest[64], extra;
        assert_int_equal(sscanf(line, "%127s %63s %c", name, rest, &extra), 2);
        char *end;
        strtod(rest, &end);
        assert_true(*end == '\0');
        char again[160];
        snprintf(again, sizeof again, "\n%s ", name);
        if (save && strstr(save, again)) fail_msg("%s comes twice", name);
    }
    kv_buf_free(&out);
}

/* Nothing happened yet: no division by zero. */
static void test_empty(void **state) {
    (void)state;
    kv_metrics_input in = {0};
    kv_ledger_get(&in.ledger, NULL);
    kv_buf out = {0};
    kv_metrics_render(&out, &in);
    assert_null(strstr(kv_buf_str(&out), " nan\n"));
    assert_null(strstr(kv_buf_str(&out), " inf\n"));
    kv_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_metrics), cmocka_unit_test(test_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
