#!/usr/bin/env bash
# Writes docs/scenarios-long.md (at the stated lengths, on the fake engine) and docs/scenarios.md: what each conversation of
# the scenarios costs on SmolLM2, gemma-3-270m and two hybrid shapes, in memory and after restarts, in normal mode and with
# --exact. Ends with 1 when one costs more than it may. On a machine that does nothing else: three of the figures are times.
#
# usage: scripts/scenarios.sh [BUILD_DIR [--shapes "S4 F7"] [--models "SmolLM2;…"] [--normal | --exact] [--out FILE]]
#   with a choice, the table goes to standard output; --long alone writes docs/scenarios-long.md, which takes minutes
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
build=${1:-build}
shift || true
scripts/make-fixtures.sh
scripts/fetch-models.sh
scripts/make-fixtures.sh --shapes qwen35-tiny lfm2-tiny
export KVASIR_BIN=$build/kvasir
if [ $# -gt 0 ]; then exec node tests/http-node/scenario-table.mjs "$@"; fi
node tests/http-node/scenario-table.mjs --long
exec node tests/http-node/scenario-table.mjs
