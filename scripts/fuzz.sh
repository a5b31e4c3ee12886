#!/usr/bin/env bash
# Builds the fuzzers with clang and runs each for SECONDS (default 60) on its corpus. New inputs go to
# build-fuzz/corpus/, not into the repository; a crash leaves its input in build-fuzz/ and stops the run.
#
# usage: scripts/fuzz.sh [SECONDS [NAME…]]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
seconds=${1:-60}
shift || true
clang=
for name in clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
  if command -v "$name" >/dev/null; then clang=$name; break; fi
done
if [ -z "$clang" ]; then echo "fuzz: clang is missing; run scripts/setup.sh --dev" >&2; exit 1; fi
cmake --preset fuzz -DCMAKE_C_COMPILER="$clang" -DCMAKE_CXX_COMPILER="${clang/clang/clang++}" > /dev/null
if [ $# -eq 0 ]; then
  for source in fuzz/fuzz_*.c; do name=${source#fuzz/fuzz_}; set -- "$@" "${name%.c}"; done
fi
cmake --build --preset fuzz --target "${@/#/fuzz_}"
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
for name in "$@"; do
  echo "fuzz: $name for $seconds s"
  mkdir -p "build-fuzz/corpus/$name"
  dictionary=()
  if [ -e "fuzz/$name.dict" ]; then dictionary=(-dict="fuzz/$name.dict"); fi
  # Time and memory limits are findings too: no input may take 5 s or 1 GiB.
  "build-fuzz/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=1024 -max_len=16384 \
    -artifact_prefix="build-fuzz/$name-" -print_final_stats=1 ${dictionary[@]+"${dictionary[@]}"} \
    "build-fuzz/corpus/$name" "fuzz/corpus/$name" 2> "build-fuzz/$name.log" ||
    { tail -n 40 "build-fuzz/$name.log"; echo "fuzz: $name: a finding; the input is in build-fuzz/$name-*" >&2; exit 1; }
  grep -E '^stat::(number_of_executed_units|new_units_added|peak_rss_mb)' "build-fuzz/$name.log"
done
echo "fuzz: clean"
