#!/usr/bin/env bash
# Runs llama-server's own test suite (tools/server/tests of the pinned engine's source; it is never committed here)
# against kvasir, on local models, and compares the outcomes with tests/llama-server/expected.json. Fails on a failure
# that is not explained there, and on a pass that is. A run of everything writes docs/compat.md.
#
# usage: scripts/llama-server-suite.sh [FILE[::TEST]…]     such as test_basic.py; default: all, some minutes
#   KVASIR_BIN   the program to test (build/kvasir)
#   SUITE_BIN    another program that takes llama-server's command line as it is, such as a llama-server, to see which
#                tests pass there on the same stand-in models; outcomes are then only printed
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
PATH=$root/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
ours=$root/tests/llama-server
work=$root/build/llama-server
say() { echo "llama-server-suite: $*"; }
fail() { echo "llama-server-suite: $*" >&2; exit 1; }

kvasir=$(realpath "${KVASIR_BIN:-build/kvasir}")
[ -x "$kvasir" ] || fail "no program $kvasir: run make, or name it with KVASIR_BIN"
scripts/fetch-engine.sh
scripts/make-fixtures.sh
scripts/fetch-models.sh smollm2
mkdir -p "$work"

python=$work/venv/bin/python
if ! cmp -s "$ours/requirements.txt" "$work/venv/.requirements"; then
  say "installing what the tests import"
  python3 -m venv "$work/venv"
  "$python" -m pip install --quiet --disable-pip-version-check -r "$ours/requirements.txt"
  cp "$ours/requirements.txt" "$work/venv/.requirements"
fi
models=$work/models
if [ "$ours/models.py" -nt "$models/words.gguf" ]; then
  "$python" "$ours/models.py" "$models" build/models/tiny/llama.gguf build/models/SmolLM2-135M-Instruct.Q4_1.gguf \
    build/engine/source/tools/server/tests/unit
fi

# A copy, laid out as in its repository: the tests write beside themselves and read ../../../models/templates.
source=$work/source
rm -rf "$source" && mkdir -p "$source/tools" "$source/models"
cp -R build/engine/source/tools/server "$source/tools/"
cp -R build/engine/source/models/templates "$source/models/"
mkdir "$source/tools/server/tests/tmp" # where slots are saved

home=$(mktemp -d "${TMPDIR:-/tmp}/kvasir-suite.XXXXXX")
trap 'rm -rf "$home"' EXIT
program=${SUITE_BIN:-}
if [ -z "$program" ]; then
  program=$home/llama-server
  # Nothing of a test lands in the user's directories.
  printf '#!/bin/sh\nexec env HOME="%s" KVASIR_CACHE_DISK=0 "%s" serve "$@"\n' "$home" "$kvasir" > "$program"
  chmod +x "$program"
fi

results=$work/results.jsonl
: > "$results"
export LLAMA_SERVER_BIN_PATH=$program PYTHONPATH=$ours PYTHONDONTWRITEBYTECODE=1
export KVASIR_SUITE_MODELS=$models KVASIR_SUITE_TINY=$root/build/models/tiny/llama.gguf KVASIR_SUITE_RESULT=$results
PORT=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export PORT
unset SLOW_TESTS N_GPU_LAYERS DEBUG DEBUG_EXTERNAL
# Several threads wait for one another at every layer, which takes seconds a token on a machine that is busy.
export LLAMA_ARG_THREADS=1

whole=no files=("$@")
if [ $# -eq 0 ]; then
  whole=yes
  while IFS= read -r file; do files+=("$(basename "$file")"); done < <(find "$source/tools/server/tests/unit" -name 'test_*.py' | sort)
fi
mkdir -p "$work/log"
for file in "${files[@]}"; do
  log=$work/log/$(basename "${file%%::*}" .py).log
  # Status 1 is "some failed", which the comparison judges; anything above means that the tests did not run.
  status=0
  (cd "$source/tools/server/tests" &&
    "$python" -m pytest -p kvasir_suite -p no:cacheprovider --timeout 120 -q --tb=short "unit/$file") > "$log" 2>&1 || status=$?
  [ $status -le 1 ] || { tail -n 20 "$log" >&2; fail "pytest could not run $file (status $status)"; }
  say "$file: $(tail -n 1 "$log")"
done

options=()
if [ -n "${SUITE_BIN:-}" ]; then options+=(--only-print); fi
if [ $whole = yes ]; then options+=(--page docs/compat.md); fi
"$python" "$ours/report.py" ${options[@]+"${options[@]}"} "$results" "$ours/expected.json" ||
  fail "see the tests' output in ${work#"$root"/}/log"
