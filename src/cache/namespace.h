/* cache/namespace.h: everything that must be equal for a stored state to be valid, as a list of named parts.
 *
 *   part                 value, for example                 from
 *   weights              dadff4be47771bc4f600b573c3909cb0   files of the model (engine/fingerprint.h)
 *   adapters             none                               its LoRAs: hash and scale of each, in order
 *   metadata overrides   none                               --override-kv
 *   K type, V type       f16                                the engine as it was made
 *   flash attention      off
 *   attention rotation   automatic                          LLAMA_ATTN_ROT_DISABLE, where it matters
 *   RoPE scaling, RoPE base, RoPE scale, YaRN               in effect; "the model's": not asked for
 *   context length       up to 4096                         only longrope models: which factors they take
 *   memory, window       window, 512
 *   block                256
 *   state format         ggsq 3, kvasir 1                   the engine's blobs and how the cache cuts them
 *
 *        parts ──► base hash ──► hash (base ‖ scope), a root of the tree and a folder of the store: ns/<hex>/about.json
 *
 * about.json (one for each scope, written once):
 *   {"format":1, "model":"…", "engine":"v0.5.0", "namespace":"<base, hex>", "parts":{"weights":"…", …},
 *    "scope":"default", "scope_hash":"<hex>", "divided":false}
 * scope is the name that the key file gives, else "default"; null where the text does not say. divided: a header or salt
 * divides that scope: they are secrets of their clients, so only the hash of the whole stands there. The engine's build
 * is for people and the probe: another one alone makes no other namespace.
 *
 * Thread rule: a kv_namespace is not changed once made; any thread. Reports read files: never the engine thread.
 */
#ifndef KV_CACHE_NAMESPACE_H
#define KV_CACHE_NAMESPACE_H

#include "engine/engine.h"
#include "engine/fingerprint.h"
#include "store/store.h"

/* How the cache cuts the engine's blobs into records; to be raised when that changes. */
#define KV_NAMESPACE_LAYOUT 1

#define KV_NAMESPACE_PARTS_MAX 20
/* A part that only a namespace has whose engine's build does not agree with an older one (cache/probe.h). */
#define KV_NAMESPACE_ENGINE "engine"

typedef struct kv_namespace_part {
    const char *name; /* static */
    char *value;      /* owned */
} kv_namespace_part;

typedef struct kv_namespace {
    char *model, *engine; /* owned; for people, not hashed */
    kv_namespace_part part[KV_NAMESPACE_PARTS_MAX];
    int n_parts;
} kv_namespace;

/* Everything is copied. */
void kv_namespace_init(kv_namespace *out, const kv_model_info *model, const kv_engine_info *engine,
                       const kv_fingerprint *fingerprint, int32_t block);
/* One more part, before the hash is taken. name: static. */
void kv_namespace_add(kv_namespace *ns, const char *name, const char *value);
void kv_namespace_free(kv_namespace *ns);

/* The base hash: kv_cache_config.ns. */
kv_hash kv_namespace_hash(const kv_namespace *ns);

/* The namespace of one scope below a base: what records and folders are named by. scope NULL or "": the default one. */
kv_hash kv_namespace_root(kv_hash base, const char *scope);

/* Appends about.json. scope: its text as requests carry it (api/scope.h); NULL or "" = the default one. */
void kv_namespace_about(kv_buf *out, const kv_namespace *ns, const char *scope);
/* The same as kv_cache_config.about wants it; ns: the kv_namespace. */
char *kv_namespace_about_text(void *ns, const char *scope);

/* Appends which parts differ between a stored namespace and this one: "flash attention on → off, K type f16 → q8_0", from
 * what is stored to what is now. Nothing where all are equal: it is the same namespace, perhaps of another scope.
 * "another model (NAME)" where the weights differ. */
void kv_namespace_diff(kv_buf *out, const kv_namespace *now, const char *about_json);

/* Appends how much of this model's cache cannot be used and what made it so: "18 GB of this model's cache cannot be
 * used: flash attention on → off". Nothing when all can. Other models do not count. scope: only what belongs to it (for
 * a miss: "" = the default one); NULL = of all scopes (for who runs the server). */
kv_status kv_namespace_report(kv_buf *out, kv_store *s, const kv_namespace *now, const char *scope, kv_error *err);

/* The other bases that a store has records of: the tokens of a prompt that finds nothing may lie there. */
typedef struct kv_namespace_other {
    kv_hash base;
    char *why; /* owned; the parts that differ, as kv_namespace_diff tells them */
} kv_namespace_other;

typedef struct kv_namespace_others {
    kv_namespace_other *list; /* owned, n of them, at most KV_NAMESPACE_OTHERS_MAX */
    int n;
} kv_namespace_others;

#define KV_NAMESPACE_OTHERS_MAX 64

/* What was there before in `out` is freed, so that it begins zeroed. */
kv_status kv_namespace_find_others(kv_namespace_others *out, kv_store *s, const kv_namespace *now, kv_error *err);
void kv_namespace_others_free(kv_namespace_others *o);

#endif
