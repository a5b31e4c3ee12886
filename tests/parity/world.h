/* tests/parity/world.h: the product's own cache over libllama, driven as the server drives it, and where the runs of a
 * model stop to be compared.
 *
 *   main run  0 ──── B ──── 2B ──── 3B ········ 3B + B/2 + 1 ········ 4B ──── n_prompt - 1 ········ end
 *                                   edge        inside                        checkpoint
 *   long run  0 ────  …  more tokens than the window pool has cells  …  ──── wrap ········ end
 *
 *   ──── prefilled in blocks, ···· single tokens, whose logits are kept, and then on to the next stop
 *
 * On real models the edge is at B, and what comes behind it follows closely: a prefill of a few tokens is slow.
 *
 * That run is the reference: it is captured while it goes on, and never restored. What is restored at a stop decodes the
 * same tokens one by one and is held against it.
 *
 * Thread rule: one thread; the cache's I/O is inline.
 */
#ifndef KV_TESTS_PARITY_WORLD_H
#define KV_TESTS_PARITY_WORLD_H

#include "cache/cache.h"

enum { N_SLOTS = 2, MAX_STOPS = 3 };

typedef struct kv_types {
    const char *k, *v;
    bool flash_attn;
} kv_types;

/* One token sequence with the stops on it, and the logits that the uninterrupted run had behind each. */
typedef struct run {
    kv_tokens tokens; /* n of them, more are not looked at */
    int32_t n, n_prompt;
    int n_stops;
    kv_pos stop[MAX_STOPS];
    float *logits; /* owned; n_stops × tail × n_vocab */
} run;

enum { STOP_EDGE, STOP_INSIDE, STOP_CHECKPOINT }; /* of the main run */

typedef struct world {
    kv_model *model; /* borrowed */
    kv_types types;
    bool tiny;
    int32_t block, interval, n_ctx, n_vocab;
    int32_t tail;   /* tokens compared behind a stop */
    run main, wrap; /* wrap.n 0: there is no window, or it cannot be outgrown */
    char dir[256];  /* of the store */
    kv_engine *engine;
    kv_state state;
    kv_io *io;
    kv_store *store;
    kv_cache *cache;
} world;

_Noreturn void die(const char *what, const kv_error *err); /* err may be NULL */
void must(kv_status status, const char *what, const kv_error *err);

/* Lays out the runs; nothing is open yet. */
void world_init(world *w, kv_model *model, kv_types types, bool tiny);
void world_free(world *w);
kv_status world_open_engine(world *w, kv_error *err);
void world_open_cache(world *w);
void world_close(world *w); /* cache, store and engine, whatever of them is open; the store's files stay */

/* Plays a run from its first token in the empty sequence 0, which is empty again afterwards. Prefill chunks end at
 * multiples of `chunk`. capture: with a trail, as the server does it. out: n_stops × tail × n_vocab logits. */
void world_play(float *out, world *w, const run *r, int32_t chunk, bool capture);
/* Waits until all that was captured is where it belongs; dies when something was dropped. */
void world_settle(world *w);

/* Where the tokens of a visit come from, and what else happens to them. */
typedef enum source { COMPUTED, FROM_RAM, FROM_DISK } source; /* COMPUTED: in the run's own chunks, without the cache */
typedef enum twist {
    NOTHING,
    FORKED, /* copied into a second sequence, and both go on, in turns */
    MOVED   /* another sequence lay below, and was removed */
} twist;
/* Asks for the prompt that ends one token behind `ask`, takes what the cache offers, which must be [0, expect), a stop of
 * the run, and goes on from there: largest absolute difference of logits to the reference. */
float world_visit(world *w, const run *r, kv_pos ask, kv_pos expect, twist twist, source from);

float largest_difference(const float *a, const float *b, size_t n);

#endif
