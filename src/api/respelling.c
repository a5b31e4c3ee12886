#include "api/respelling.h"

#include <stdlib.h>

static bool fits(const kv_app *app, const kv_params *params, const kv_tokens *t) {
    if ((int64_t)t->len >= app->n_ctx_served) return false;
    return kv_sched_check(app->sched, t->data, t->len, params->n, NULL) == KV_OK;
}

int32_t kv_respell_prompt(kv_respelling *how, kv_prompts *prompts, int prompt, const kv_app *app,
                          const kv_params *params, const char *scope) {
    kv_respelling own = {0}, *r = how ? how : &own;
    kv_tokens *t = &prompts->list[prompt];
    int32_t n = 0;
    *r = (kv_respelling){0};
    if (!app->cache || !params->cache_prompt || (prompts->is_given && prompts->is_given[prompt])) return 0;
    if (!fits(app, params, t)) return 0; /* it will be refused, in its own tokens */
    kv_respell(r, app->cache, scope, app->model, t->data, t->len);
    if (r->tokens.len && fits(app, params, &r->tokens)) {
        kv_tokens old = *t;
        *t = r->tokens;
        r->tokens = (kv_tokens){0};
        kv_tokens_free(&old);
        n = r->n_respelled;
    } else {
        kv_respelling_free(r);
    }
    kv_respelling_free(&own);
    return n;
}

/* Positions ascend, and two may have become one. */
static void move_hints(kv_job *j, const kv_respelling *r) {
    int n = 0;
    for (int i = 0; i < j->n_hints; i++) {
        kv_hint hint = j->hints[i];
        hint.position = kv_respelling_position(r, hint.position);
        if (n > 0 && j->hints[n - 1].position == hint.position) kv_hint_join(&j->hints[n - 1], &hint);
        else if (hint.position > 0) j->hints[n++] = hint;
    }
    j->n_hints = n;
}

void kv_job_respell(kv_job *j) {
    for (int p = 0; p < j->prompts.n; p++) {
        kv_respelling how;
        int32_t n = kv_respell_prompt(&how, &j->prompts, p, j->app, &j->params, j->scope);
        if (n > 0) {
            if (!j->respelled) j->respelled = kv_alloc((size_t)j->prompts.n * sizeof *j->respelled);
            j->respelled[p] = n;
            move_hints(j, &how);
        }
        kv_respelling_free(&how);
    }
}
