/* cache/state.h: taking a sequence's state out of the engine in pieces, and putting pieces back.
 *
 * What can be taken when (docs/engine.md "Capture", "Restore"), for a sequence that has consumed [0, P):
 *
 *   memory           block [q, e)         window part [q, e)      checkpoint at P
 *   full             attention cells      –                       –
 *   window           global cells         window cells            –
 *   hybrid           attention cells      –                       recurrent state
 *   hybrid-window    global cells         –                       window cells + recurrent state
 *   recurrent        –                    –                       recurrent state
 *   whole            –                    –                       everything
 *
 * Blocks can be taken as long as the cells are there; window parts and checkpoints only before the next decode or
 * set of anybody, since the engine may then reuse their cells or overwrite the state.
 *
 *      slot  ──seq_cp [q,e)──►  scratch  ──get──►  payload          capture: costs no cell, scratch is empty after
 *   payload  ──set──►  scratch  ──seq_cp [q,e)──►  slot             restore: block by block, then the checkpoint,
 *                                                                   then the trim to P, all in one step
 *
 * A payload is a blob of the engine: 8 bytes of header (magic, sequence number; set to 0 here), then cells and states.
 * Each cell notes position and sequence; the engine reads that sequence number and ignores it. Blocks and window parts
 * are always taken from scratch, so they depend on nothing but the path (and the number of slots, by that note).
 *
 * Thread rule: the engine thread. The scratch sequence (number n_slots) is empty between calls.
 */
#ifndef KV_CACHE_STATE_H
#define KV_CACHE_STATE_H

#include "engine/engine.h"

/* What a kind of memory needs. */
bool kv_state_has_blocks(kv_memory_kind kind);
bool kv_state_has_windows(kv_memory_kind kind);     /* window parts as records of their own */
bool kv_state_has_checkpoints(kv_memory_kind kind); /* state that only one position has, "whole" included */

typedef struct kv_state {
    kv_engine *engine; /* borrowed */
    kv_memory_kind memory;
    kv_seq scratch;
    int32_t window; /* W, 0 = none */
    bool window_is_chunked;
    kv_buf empty; /* a partial blob that restores nothing */
} kv_state;

kv_status kv_state_init(kv_state *s, kv_engine *engine, kv_error *err);
void kv_state_free(kv_state *s);

/* First position whose window cells a sequence at P still needs: max(0, P - W + 1), ⌊P/W⌋·W where windows are chunked;
 * P without windows. */
kv_pos kv_state_window_start(const kv_state *s, kv_pos P);

/* Take [q, e) of a sequence. `block` and `window` are replaced; either may be NULL (not wanted). */
kv_status kv_state_capture(kv_buf *block, kv_buf *window, kv_state *s, kv_seq seq, kv_pos q, kv_pos e, kv_error *err);
/* Take what only the present end of the sequence has. Replaces `checkpoint`. */
kv_status kv_state_checkpoint(kv_buf *checkpoint, kv_state *s, kv_seq seq, kv_error *err);

/* Put [q, e) behind what the sequence holds, which ends at q or, when it was trimmed into the block, between q and e:
 * `from` is that end, and only [from, e) is taken. window may be NULL: no cell of it is needed any more. */
kv_status kv_state_put(kv_state *s, kv_seq seq, const void *block, size_t n_block, const void *window, size_t n_window,
                       kv_pos q, kv_pos from, kv_pos e, kv_error *err);
/* After the last block: set the checkpoint (NULL where the memory has none), cut to [0, P), and check the positions.
 * Any failure leaves the sequence empty. */
kv_status kv_state_finish(kv_state *s, kv_seq seq, const void *checkpoint, size_t n_checkpoint, kv_pos P,
                          kv_error *err);

/* Lays the window cells of a sequence that holds [0, P), alone in the engine, the way a restore lays them: sums over
 * cells then run in the same order, to the last bit. Nothing to do for memories without windows. On failure the sequence
 * is empty. */
kv_status kv_state_repack(kv_state *s, kv_seq seq, kv_pos P, int32_t block, kv_error *err);

#endif
