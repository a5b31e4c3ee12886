#!/usr/bin/env bash
# Attacks a sanitized server through every API at once, for N rounds (20): tests/http-node/hostile.mjs.
# usage: scripts/hostile.sh [N [SEED]]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
scripts/make-fixtures.sh
export KVASIR_BIN=${KVASIR_BIN:-build-asan/kvasir} KVASIR_ROUNDS=${1:-20}
if [ $# -gt 1 ]; then export KVASIR_SEED=$2; fi
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
exec node tests/http-node/hostile.mjs
