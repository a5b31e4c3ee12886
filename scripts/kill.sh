#!/usr/bin/env bash
# Kills a loaded server N times (200) at random instants and checks what is left each time: tests/kill/kill.mjs.
# usage: scripts/kill.sh [N [SEED]]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
scripts/make-fixtures.sh
exec node tests/kill/kill.mjs "${1:-200}" ${2+"$2"}
