/* api/account.h: where a request's prompt came from, in each of the places that tell it.
 *
 *   "kvasir": {"cached": {"engine": 0, "ram": 512, "disk": 0}, "computed": 13, "restore_ms": 2.1, "prefill_ms": 80.5,
 *              "miss": null | {"reason": "diverged", "position": 512, "explanation": "…", "text": "…", "hint": "…"},
 *              "canonicalised": ["billing-header"],       (only where a rule of chat/canonical.h changed something)
 *              "respelled": 12}                           (only where tokens were taken over: cache/respell.h)
 *   X-Kvasir-Cache: engine=0, ram=512, disk=0, computed=13; miss=diverged@512
 *   the log line: the same without the times; metrics and the admin's list of misses: ledger.h
 *
 * Choices of one prompt share it: what the first of them cost is what the prompt cost. Of several prompts the numbers
 * are summed, and the miss is the first prompt's that has one.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_ACCOUNT_H
#define KV_API_ACCOUNT_H

#include "api/advice.h"

/* A miss's reason, and of OTHER_NAMESPACE what differs there (borrowed; may be NULL). */
void kv_account_set_miss(kv_account *a, kv_miss miss, int32_t position, const char *elsewhere);
/* Of one prompt; false while nothing of it was computed yet. */
bool kv_account_of_prompt(kv_account *out, const kv_job *j, int prompt);
/* Of all of them. */
kv_account kv_account_of_job(const kv_job *j);

/* Adds the member "kvasir" to an answer of the job, unless --plain-json. */
void kv_account_tell(json_t *answer, const kv_job *j, const kv_account *a);
/* {"reason", "position", "explanation"} with "text" (the prompt's own, from there on) and "hint" where there are any;
 * null without a miss. A new value. */
json_t *kv_account_miss(const kv_asked *q, const kv_account *a);
/* The prompt's text from `position` on, about 32 tokens of it, valid UTF-8. False when it is past the end. */
bool kv_account_text(kv_buf *out, const kv_model *model, const kv_tokens *prompt, int32_t position);
/* The reason as a sentence, with what differs elsewhere. Appended. */
void kv_account_explain(kv_buf *out, const kv_account *a);
/* "diverged": as responses, metrics and log spell it. Static. */
const char *kv_account_reason(kv_miss miss);

/* "engine=0, ram=512, disk=0, computed=13; miss=diverged@512", for a header. */
void kv_account_header(kv_buf *out, const kv_account *a);
/* Enter the job into the app's ledger; later calls do nothing. */
void kv_account_record(kv_job *j);

#endif
