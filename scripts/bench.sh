#!/usr/bin/env bash
# Prefill and decode over HTTP against a bare llama_decode loop, interleaved, on each real model. Nothing else should
# run meanwhile: two busy programs on one machine's cores slow each other down many times over.
#
# usage: scripts/bench.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
scripts/fetch-models.sh
cmake --build build --target bare_decode
for model in build/models/SmolLM2-135M-Instruct.Q4_1.gguf build/models/gemma-3-270m-q4_k_m.gguf; do
  node bench/throughput.mjs build "$model" "${1:-3}"
done
