#!/usr/bin/env bash
# Writes docs/parity.md: how far logits are from the uninterrupted run's after a restore, for every kind of model, types of
# K and V, life of the process and position. Ends with 1 when a difference is above its bound. About a quarter of an hour
# on 2 cores, two minutes of it on the tiny models.
#
# usage: scripts/parity.sh [BUILD_DIR [NAME…]]      with names: only these rows, on standard output
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
build=${1:-build}
shift || true
scripts/make-fixtures.sh
scripts/fetch-models.sh
scripts/make-fixtures.sh --shapes lfm2-350m qwen35-0.8b
cmake --build "$build" --target parity > "$build/parity.log" || { cat "$build/parity.log" >&2; exit 1; }
rm -f "$build/parity.log"
program=$build/tests/parity/parity
if [ $# -gt 0 ]; then exec "$program" --models build/models "$@"; fi

page=$(mktemp)
trap 'rm -f "$page"' EXIT
status=0
cat > "$page" <<'TEXT'
# Parity

Written by `make parity`. A cell is the largest absolute difference of any logit between a sequence that was restored and
the run that was never interrupted, over the next tokens (8 on tiny models, 4 on real ones), decoded one by one; `=` is
exactly zero, `–` is a position that the model has not. Each is the largest of three lives: in the same process after the
sequence was removed, restored from memory; after a restart (cache, store and engine closed and opened anew), from the
disk; after SIGKILL of another process, which had just been told by its store that all is there, from its disk. Where
tokens came from is asserted.

TEXT
"$program" --models build/models | tee /dev/stderr >> "$page" || status=$?
cat >> "$page" <<'TEXT'

## What is compared

- **The reference** is the captured run itself, going on token by token behind each position, in the chunks in which it was
  captured. It is never restored.
- **block edge**: three blocks of B tokens (one on real models), and what comes then. **inside a block**: a few tokens on;
  where the memory has checkpoints (recurrent layers, whole sequences) nothing can be resumed there, the same question is
  asked, and what must be offered is the edge before it. **checkpoint**: one token before the prompt's end, no multiple of
  anything. **after ring wrap**: a sequence longer than the window pool has cells. llama4's window (8,192) would need more
  context than these runs have; deepseek4 does not report one.
- **fork**: what was restored at the edge is copied into a second sequence, and both go on in turns. **after compaction**:
  another sequence lay below while the checkpoint was restored, and was removed: the restored cells lie higher, new ones
  go below.
- tiny models: random F32 weights (`tools/mkmodel`); shapes: random Q8_0 weights of a real model's shape. One thread.

## Bounds

- **Zero** at block edge, inside a block, checkpoint and after a ring wrap, restored into an otherwise empty context: the
  blobs are raw bytes, whatever their type, and cells come to lie where the same numbers are added in the same order.
- **Twice the shape noise** for fork and compaction. Shape noise is what the same engine does to the same tokens without any
  cache: chunks of 3B/2 instead of B, a fork, and a sequence that lay below and was removed (of the long run too where zero
  is not asked). Other cells are summed in other
  lanes, and a rounding that flips in a quantised K or V is seen in a logit.
- Never less than **5e-4** on tiny models with f16 K and V, which is what another batch shape does to them.
- Two exceptions from zero are held to the same bounds as fork and compaction:
  - *Windows with flash attention on the CPU* (gemma3, gpt-oss, llama4, lfm2-window): that kernel sums in f16 and splits
    by cells. Its restores may differ, and where the table has `=` they did not.
  - *Memories whose window is saved in one piece* (lfm2-window: window and recurrent state at a position; deepseek4: the
    whole sequence). The engine saves the W cells before P without the older ones that still lie before them, and puts
    them side by side from the first free cell on. What is restored is the same: captured again it has the same bytes. But
    unless P - W is a multiple of the vector length each cell lies in another lane of the sum over cells. P from 224 to
    254, with f16, W = 32: deepseek4 gives zero at 224 alone and up to 1.2e-4 at all others, lfm2-window zero at 224 and
    nearly all even ones, up to 9.4e-5 at the others. Blocks and window parts, which begin at multiples of B, do not have
    this: gemma3, gpt-oss and llama4 give zero everywhere. The difference is the same in
    all three lives. Their bound is 5e-4 at least with every type: deepseek4 keeps one stream a sequence, so that
    neither a fork nor another sequence moves its cells, and its own shape noise shows nothing.
TEXT
chmod 644 "$page"
mv "$page" docs/parity.md
trap - EXIT
exit $status
