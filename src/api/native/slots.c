/* /slots: what each slot holds and does. No text of anybody's prompt. */
#include <stdlib.h>

#include "api/endpoints.h"
#include "base/json.h"

/* The parameters of what runs there, or ran last. */
static void add_params(json_t *o, kv_sched *sched, int slot) {
    char *about = kv_sched_about_slot(sched, slot);
    json_t *params = about ? json_loads(about, 0, NULL) : NULL;
    if (params) json_object_set_new(o, "params", params);
    free(about);
}

static json_t *slot_json(const kv_slot_view *s, kv_sched *sched) {
    json_t *o = json_pack("{s:i, s:i, s:b, s:b}", "id", s->id, "n_ctx", (int)s->n_ctx, "speculative", 0,
                          "is_processing", (int)s->processing);
    if (!s->gen_id && s->n_tokens == 0) return o; /* nothing ran on it yet */
    json_object_set_new(o, "id_task", json_integer((json_int_t)s->gen_id));
    json_object_set_new(o, "n_prompt_tokens", json_integer(s->processing ? s->n_prompt : s->n_tokens));
    json_object_set_new(o, "n_prompt_tokens_processed", json_integer(s->n_prompt_done));
    json_object_set_new(o, "n_tokens", json_integer(s->n_tokens));
    add_params(o, sched, s->id);
    json_object_set_new(o, "is_prefilling", json_boolean(s->prefilling));
    json_object_set_new(o, "next_token",
                        json_pack("[{s:b, s:i, s:i}]", "has_next_token", (int)s->processing, "n_remain",
                                  s->processing ? (int)s->n_remain : -1, "n_decoded",
                                  s->processing ? (int)s->n_decoded : 0));
    return o;
}

void kv_slots_write(kv_buf *out, int *n_idle, const kv_app *app, bool asleep) {
    int room = app->engine_info.n_slots > 0 ? app->engine_info.n_slots : 1, idle = 0;
    kv_slot_view *view = kv_alloc((size_t)room * sizeof *view);
    int n = kv_sched_get_slots(view, room, app->sched);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        if (asleep) view[i] = (kv_slot_view){.id = view[i].id, .n_ctx = view[i].n_ctx}; /* nothing will be in it */
        if (!view[i].processing) idle++;
        json_array_append_new(list, slot_json(&view[i], app->sched));
    }
    kv_json_dump_new(out, list);
    free(view);
    if (n_idle) *n_idle = idle;
}

kv_status kv_serve_slots(void *ctx, kv_http_request *req, kv_http_response *res, kv_error *err) {
    kv_app *app = ctx;
    kv_status st = kv_app_require_model(app, err);
    if (st != KV_OK) return st;
    if (!app->opt->slots_endpoint)
        return kv_fail(err, KV_UNSUPPORTED, "This server does not support slots endpoint. Start it with `--slots`");
    int n_idle = 1;
    if (kv_gate_look(app->gate)) {
        kv_slots_write(&res->body, &n_idle, app, false);
        kv_gate_look_away(app->gate);
    } else {
        kv_asleep_get_page(&res->body, app->asleep, KV_ASLEEP_SLOTS);
    }
    const char *fail = kv_http_query(req, "fail_on_no_slot");
    return fail && *fail && n_idle == 0 ? kv_fail(err, KV_BUSY, "no slot available") : KV_OK;
}
