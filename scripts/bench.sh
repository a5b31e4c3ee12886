#!/usr/bin/env bash
# Prefill and decode over HTTP against a bare llama_decode loop; who waits how long for whom; what the cache gives and
# costs; restores against memcpy and raw reads; a start with 100,000 records; a day of agent traffic on the fake engine.
# Interleaved, as ratios, on each real model. Nothing else should run meanwhile: two busy programs on one machine's cores
# slow each other down many times over.
#
# usage: scripts/bench.sh [ROUNDS [engine|sched|cache|restore|start|traffic …]]      default: 3, all of them
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
rounds=${1:-3}
shift || true
parts=${*:-engine sched cache restore start traffic}
scripts/fetch-models.sh
cmake --build build --target bare_decode cache_restore traffic
models="build/models/SmolLM2-135M-Instruct.Q4_1.gguf build/models/gemma-3-270m-q4_k_m.gguf"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/kvasir-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
threads=$(nproc)
for part in $parts; do
  case $part in
    engine) for model in $models; do node bench/throughput.mjs build "$model" "$rounds"; done ;;
    sched) for model in $models; do node bench/sched.mjs build "$model" "$rounds"; done ;;
    cache) for model in $models; do for fa in off on; do node bench/cache.mjs build "$model" $fa "$rounds"; done; done ;;
    restore)
      for model in $models; do
        for fa in 0 1; do
          echo "$(basename "$model"), flash attention $fa"
          build/bench/cache_restore "$model" $fa 8000 "$threads" "$work/$fa-$(basename "$model")"
        done
      done ;;
    start) build/bench/cache_restore --start 100000 "$work/start" ;;
    traffic) build/bench/traffic ;;
    *) echo "bench: there is no part $part" >&2; exit 2 ;;
  esac
done
