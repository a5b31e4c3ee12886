/* tests/sched/alone.h: what a request answers when it runs alone on an engine of its own, with nothing reused: what it
 * must answer wherever it runs.
 */
#ifndef KV_TESTS_SCHED_ALONE_H
#define KV_TESTS_SCHED_ALONE_H

#include "world.h"

static inline request run_alone(world *w, const request *like) {
    request r;
    request_init(&r, like->prompt.data, like->prompt.len);
    r.temperature = like->temperature;
    r.seed = like->seed;
    r.params = like->params;
    r.params.n_stops = 0;
    r.params.cache_prompt = false;
    r.params.id_slot = -1;
    r.params.group = 0;
    memcpy(r.stops, like->stops, sizeof r.stops);
    request_submit(&r, w);
    world_finish(w, &r, 1);
    return r;
}

/* The oracle itself is checked against the model's naive one, which knows no cells. */
static inline void check_oracle(world *w, const request *r) {
    if (r->temperature > 0 || r->answer.len == 0) return;
    kv_tokens naive = {0};
    kv_fake_reference_greedy(&naive, w->model, r->prompt.data, r->prompt.len, (int32_t)r->answer.len);
    assert_true(naive.len >= r->answer.len);
    assert_memory_equal(naive.data, r->answer.data, r->answer.len * sizeof(kv_token));
    kv_tokens_free(&naive);
}

/* `w`: where r runs alone. What was cut short is a beginning of the whole. */
static inline void compare_alone(world *w, const request *r) {
    request ref = run_alone(w, r);
    bool cut = r->finish == KV_FINISH_CANCELLED || r->finish == KV_FINISH_ERROR;
    check_oracle(w, &ref);
    assert_true(cut ? r->answer.len <= ref.answer.len : r->answer.len == ref.answer.len);
    if (r->answer.len) assert_memory_equal(r->answer.data, ref.answer.data, r->answer.len * sizeof(kv_token));
    assert_true(r->text.len <= ref.text.len);
    if (r->text.len) assert_memory_equal(r->text.data, ref.text.data, r->text.len);
    if (!cut) {
        assert_int_equal(r->finish, ref.finish);
        assert_int_equal(r->text.len, ref.text.len);
        assert_string_equal(r->stop_word, ref.stop_word);
        assert_int_equal(r->timings.n_cached + r->timings.n_prompt, r->prompt.len);
        assert_true(r->timings.n_prompt >= 1);
        if (!r->params.cache_prompt && !r->params.group) assert_int_equal(r->timings.n_cached, 0);
    }
    request_free(&ref);
}

#endif
