#include "engine/sampling_check.h"

#include <math.h>
#include <string.h>

kv_status kv_sampling_check(const kv_sampling *s, int32_t n_vocab, kv_error *err) {
    if (s->mirostat < 0 || s->mirostat > 2) return kv_fail_field(err, "mirostat", "mirostat is 0, 1 or 2");
    if (s->min_keep < 0) return kv_fail_field(err, "min_keep", "min_keep is not negative");
    if (!(s->repeat_penalty > 0) || !isfinite(s->repeat_penalty) || !isfinite(1 / s->repeat_penalty))
        return kv_fail_field(err, "repeat_penalty", "repeat_penalty is a finite number above 0");
    const struct {
        const char *name;
        float value;
    } finite[] = {{"temperature", s->temperature},
                  {"frequency_penalty", s->frequency_penalty},
                  {"presence_penalty", s->presence_penalty},
                  {"dry_multiplier", s->dry_multiplier},
                  {"dry_base", s->dry_base},
                  {"mirostat_tau", s->mirostat_tau},
                  {"mirostat_eta", s->mirostat_eta},
                  {"dynatemp_range", s->dynatemp_range},
                  {"dynatemp_exponent", s->dynatemp_exponent},
                  {"top_p", s->top_p},
                  {"min_p", s->min_p},
                  {"typical_p", s->typical_p},
                  {"xtc_probability", s->xtc_probability},
                  {"xtc_threshold", s->xtc_threshold},
                  {"top_n_sigma", s->top_n_sigma},
                  {"adaptive_target", s->adaptive_target},
                  {"adaptive_decay", s->adaptive_decay}};
    for (size_t i = 0; i < sizeof finite / sizeof *finite; i++)
        if (!isfinite(finite[i].value))
            return kv_fail_field(err, finite[i].name, "%s is not a finite number", finite[i].name);
    for (int i = 0; i < s->n_logit_bias; i++) {
        const kv_logit_bias b = s->logit_bias[i];
        if (b.token < 0 || b.token >= n_vocab)
            return kv_fail_field(err, "logit_bias", "token %d is not in the vocabulary (0 to %d)", b.token,
                                 n_vocab - 1);
        if (isnan(b.bias) || (isinf(b.bias) && b.bias > 0))
            return kv_fail_field(err, "logit_bias", "the bias of token %d is neither a number nor a ban", b.token);
    }
    if (s->reasoning_budget_message && strlen(s->reasoning_budget_message) > KV_SAMPLING_TEXT_MAX)
        return kv_fail_field(err, "reasoning_budget_message", "reasoning_budget_message has more than %zu bytes",
                             (size_t)KV_SAMPLING_TEXT_MAX);
    if (s->dry_breakers && s->n_dry_breakers == 0)
        return kv_fail_field(err, "dry_sequence_breakers", "dry_sequence_breakers is an empty list");
    for (int i = 0; s->dry_breakers && i < s->n_dry_breakers; i++)
        if (!s->dry_breakers[i] || !*s->dry_breakers[i])
            return kv_fail_field(err, "dry_sequence_breakers", "dry_sequence_breakers has an empty string");
    return KV_OK;
}
