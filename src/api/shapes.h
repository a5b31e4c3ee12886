/* api/shapes.h: the parts that several responses have in common.
 *
 * Thread rule: none. Every json_t returned is new.
 */
#ifndef KV_API_SHAPES_H
#define KV_API_SHAPES_H

#include "api/job.h"

/* llama-server's "timings". The first token comes with the prompt's last batch, so speeds count n - 1 steps. */
json_t *kv_shape_timings(const kv_timings *t);
/* Of the choices of one prompt, the one that had to compute it; NULL when it has none. Borrowed from the job. */
const kv_timings *kv_shape_prompt_timings(const kv_job *j, int prompt);
/* Of all choices: tokens are summed, a prompt counts once, decoding ran side by side. */
kv_timings kv_shape_total(const kv_job *j);
/* OpenAI's "usage", of the whole job. */
json_t *kv_shape_usage(const kv_job *j);
/* Sets "prompt_progress": {"total","cache","processed","time_ms"}, and with timings_per_token the "timings" so far. */
void kv_shape_tell_progress(json_t *event, const kv_job *j, const kv_gen_event *e);
/* One token of "completion_probabilities" and of logprobs' "content". */
json_t *kv_shape_prob(const kv_job *j, const kv_gen_event *e);
/* The choice's pending probabilities, at most up to the end of its visible text; NULL when there are none. The choice
 * gives them up. */
json_t *kv_shape_take_probs(const kv_job *j, kv_choice *c);
/* {"id","object","created","model","system_fingerprint","choices":choices}; takes the reference of `choices`. */
json_t *kv_shape_completion(const kv_job *j, const char *object, json_t *choices);
/* "stop" or "length"; tool calls are chat's own business */
const char *kv_shape_finish(const kv_choice *c);
/* "kvasir-0.1.0+v0.5.0": this server and its engine. Static once the model is there. */
void kv_shape_fingerprint(char *out, size_t room, const kv_app *app);
/* Fills `out` with prefix and 32 random letters and digits. */
void kv_shape_id(char *out, size_t room, const char *prefix);
/* RFC 3339, UTC. A new string. */
json_t *kv_shape_time(int64_t unix_seconds);
/* "path/to/member" as far as it exists: {"path/to/member": value} for each path. */
json_t *kv_shape_pick(const json_t *from, const json_t *paths);

#endif
