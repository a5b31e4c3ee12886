/* cache/probe.h: may what another build of the engine left in the cache be used? One stored prompt tells.
 *
 *   serving   a prompt's last token, decoded alone after [0, n-1), which is stored:
 *             its tokens and the best of its logits ──► ns/<default scope>/probe.json
 *   start     another build: probe.json ──► look-up ──► restore [0, n-1) ──► decode the last token ──► compare
 *
 * probe.json (of the default scope alone: other scopes' prompts are theirs), rewritten when a build has agreed:
 *   {"format":1, "engine":"v0.5.0", "tokens":[…], "top":[[token, logit], …],
 *    "sum":"<XXH3-128 of the text without it, hex>"}
 * engine is the last build that agreed, top the answer of the one that computed the path, so that many small steps from
 * build to build do not add up unseen. It holds tokens of a prompt, as records do, and goes when they are gone.
 *
 * Thread rule: kv_probe_run, _wants and _keep: the engine thread; the first before requests are served. The note is
 * written on an I/O thread.
 */
#ifndef KV_CACHE_PROBE_H
#define KV_CACHE_PROBE_H

#include "cache/cache.h"

/* Short ones are quick to restore; too short ones say little about the state that went in. */
#define KV_PROBE_MIN 256
#define KV_PROBE_MAX 2048
#define KV_PROBE_TOP 8

/* Logits of other kernels differ in single tokens by up to about 3 on quantised models, by a quarter in the mean. Seen on
 * 24 prompts each of SmolLM2 and gemma-3-270m: flash attention on against off, and other chunks, 0.63 in the mean of the
 * eight at most; behind another prompt's state 1.2 at least. With the best token all of the first agree, none of the
 * second. */
#define KV_PROBE_MEAN_MAX 1.0f

typedef enum kv_probe_result {
    KV_PROBE_SAME,    /* this build, or nothing is stored */
    KV_PROBE_AGREES,  /* another build, and the stored prompt's answer is the same */
    KV_PROBE_DIFFERS, /* it is not: nothing of this namespace may be used */
    KV_PROBE_UNKNOWN, /* another build, or nobody knows which, and nothing to tell by */
} kv_probe_result;

/* Says what it finds, but for SAME, in one line of the log. The engine is empty, and is cleared. With an inline io its
 * jobs are run. Without a store: SAME. From then on a prompt is noted if none is. */
kv_probe_result kv_probe_run(kv_cache *c, kv_engine *engine);

/* Whether a prompt of n tokens should be noted. */
bool kv_probe_wants(const kv_cache *c, const char *scope, int32_t n);
/* Notes it: `logits` (n_vocab, borrowed for the call) came of its last token, decoded in a call of its own. */
void kv_probe_keep(kv_cache *c, const kv_token *tokens, int32_t n, const float *logits, int32_t n_vocab);

/* Whether two rows' best logits are of the same state: `then` are the n best of then, best first; now has all. */
bool kv_probe_agrees(const kv_token *token, const float *then, int n, const float *now, int32_t n_vocab);

#endif
