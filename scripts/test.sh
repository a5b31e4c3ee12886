#!/usr/bin/env bash
# Runs the tests of a built tree: unit tests under CTest, then the HTTP tests under node's runner with the official
# clients. First makes what they need (build/models, tests/http-node/node_modules). Says what it skips and why, before
# the runners' own closing lines; with CI set nothing may be skipped. Several HTTP test files run one after the other:
# two servers at once on few cores only slow each other.
#
# usage: scripts/test.sh [BUILD_DIR [HTTP_TEST_FILE…]]      with files: only these HTTP tests
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
build=${1:-build}
shift || true
skipped=()
min_node=18

node_major=$(node --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/' || true)
if [ "${node_major:-0}" -lt $min_node ]; then
  skipped+=("all HTTP tests: node is $(node --version 2>/dev/null || echo missing) and they need $min_node (scripts/setup.sh)")
fi
if [ "$build" = build-tsan ]; then
  # The prebuilt engine is not instrumented: the fake one stands in, and units that load a real model stay out.
  export KVASIR_TEST_FAKE=full
  skipped+=("tests on real models: libllama is not built for the thread sanitizer")
fi

limit=600 # seconds for a unit test; sanitizers make some of them twenty times as slow
case $build in
  build-*) # sanitizers: what the engine itself leaks is left out
    limit=3000
    export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0 ;;
esac

if [ $# -eq 0 ]; then
  scripts/make-fixtures.sh
  if ! scripts/fetch-models.sh; then
    skipped+=("tests on SmolLM2 and gemma-3-270m: scripts/fetch-models.sh could not get them")
  fi
  # Ends this script when a unit test fails.
  ctest --test-dir "$build" --output-on-failure --timeout $limit --parallel "$(getconf _NPROCESSORS_ONLN)"
  while IFS= read -r line; do skipped+=("unit test $line"); done < <(
    sed -n 's/^\[  SKIPPED \] \([a-z][^ ]*\)$/\1/p' "$build/Testing/Temporary/LastTest.log" 2>/dev/null | sort -u)
fi
if [ ${#skipped[@]} -gt 0 ]; then
  printf 'test: skipped %s\n' "${skipped[@]}"
  if [ -n "${CI:-}" ] && [ "$build" = build ]; then echo "test: CI skips nothing" >&2; exit 1; fi
elif [ $# -eq 0 ]; then
  echo "test: no unit test was skipped; node's closing lines tell for the HTTP tests"
fi
if [ "${node_major:-0}" -lt $min_node ]; then exit 0; fi

lock=tests/http-node/package-lock.json
if ! cmp -s $lock tests/http-node/node_modules/.kvasir-lock; then
  (cd tests/http-node && npm ci --silent) || { echo "test: npm could not install the clients of tests/http-node" >&2; exit 1; }
  cp $lock tests/http-node/node_modules/.kvasir-lock
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  while IFS= read -r file; do
    # Under the fake engine only those that let modelArgs() choose.
    if [ -z "${KVASIR_TEST_FAKE:-}" ] || grep -q 'modelArgs(' "$file"; then files+=("$file"); fi
  done < <(git ls-files --cached --others --exclude-standard 'tests/*.test.mjs')
fi
export KVASIR_BIN=$build/kvasir
# The unit tests' random rounds cost little under a sanitizer, those over HTTP much.
case $build in build-*) export KVASIR_ROUNDS=${KVASIR_ROUNDS:-5} ;; esac
concurrency=()
if [ "$node_major" -ge 20 ]; then concurrency=(--test-concurrency=1); fi
exec node --test ${concurrency[@]+"${concurrency[@]}"} --test-reporter=spec "${files[@]}"
