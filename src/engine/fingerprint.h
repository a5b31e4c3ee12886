/* engine/fingerprint.h: which weights a model is, told from its files' contents.
 *
 * Two models with equal fingerprints compute the same from the same tokens, and turn text into the same tokens. Hashed
 * are
 *
 *   metadata   every key but those that only describe (general.* without the architecture), texts and defaults for
 *              requests (chat templates, general.sampling.*), and how the file is cut (split.*, alignment)
 *   tensors    name, type and shape of each
 *   data       of each tensor the first, the middle and the last 4 KiB; small ones whole
 *
 * in the order of their names. So the hash does not change with a file's name, age or place, with the order of its
 * parts, with a new chat template, or with the model being cut into several files.
 *
 * Adapters are files of the same kind, hashed alike. Overridden metadata is told apart from the weights, so that it can
 * be named when it differs.
 *
 * Thread rule: any thread. Reads files: milliseconds from the page cache.
 */
#ifndef KV_ENGINE_FINGERPRINT_H
#define KV_ENGINE_FINGERPRINT_H

#include "base/hash.h"
#include "engine/engine.h"

typedef struct kv_fingerprint {
    kv_hash weights;
    char *adapters;  /* owned; "none", or "<hash> × <scale>" of each in order; those of scale 0 do nothing: left out */
    char *overrides; /* owned; "none", or "key=value" of each, by key; more than fit are told by their hash */
} kv_fingerprint;

/* KV_IO or KV_INVALID when a file can no longer be read. Reads the files as they are now: to be called right after the
 * model was loaded, each time it is. */
static inline kv_status kv_model_fingerprint(kv_fingerprint *out, const kv_model *m, kv_error *err) {
    *out = (kv_fingerprint){0};
    if (!m->ops->fingerprint) return kv_fail(err, KV_UNSUPPORTED, "this kind of model has no fingerprint");
    return m->ops->fingerprint(out, m, err);
}
void kv_fingerprint_free(kv_fingerprint *f);
/* One GGUF file, with the other parts of a split one. */
kv_status kv_fingerprint_file(kv_hash *out, const char *path, kv_error *err);

#endif
