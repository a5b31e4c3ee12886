#!/usr/bin/env bash
# Runs public judges of prefix caches, `cache-pressure`, `agent-sim` and `abort-sim` of the Python package cache-pressure,
# against a kvasir of its own with a fresh cache directory. Scaled to a machine with two cores: contexts of 1,500 tokens, of
# which twelve are more than twice what fits the engine's context of 8,192; two agents that grow to 3,000 tokens between
# others' work; a client that hangs up after 64 tokens of an answer to 3,000 and goes on from there. Ends with status 0 when
# all pass: cache-pressure itself only counts, so all contexts must have been kept; the others judge, by their defaults.
#
# usage: scripts/cache-pressure.sh [SERVER_OPTION…]
# KVASIR_BIN: another program; MODEL: another file than SmolLM2 (the windowed gemma-3-270m, shapes of hybrids that
# make-fixtures.sh --shapes makes); JUDGES: only these; PYTHON: a Python ≥ 3.12; CONTEXT: all sizes in proportion, from the
# context's (8192)
set -euo pipefail
cd "$(dirname "$0")/.."
kvasir=${KVASIR_BIN:-build/kvasir}
model=${MODEL:-build/models/SmolLM2-135M-Instruct.Q4_1.gguf}
judges=${JUDGES:-cache-pressure agent-sim abort-sim}
tools=build/tools/cache-pressure
version=0.6.3
context=${CONTEXT:-8192}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; }
find_python() {
  for python in ${PYTHON:-} python3 python3.14 python3.13 python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
    if new_enough "$python"; then echo "$python"; return; fi
  done
  echo "cache-pressure: it needs Python 3.12 or newer; PYTHON=… names one" >&2
  return 1
}

if [ -z "${MODEL:-}" ]; then scripts/fetch-models.sh smollm2; fi
if [ ! -x $tools/bin/agent-sim ]; then
  python=$(find_python)
  "$python" -m venv $tools
  $tools/bin/pip install --quiet --disable-pip-version-check cache-pressure==$version
fi

work=$(mktemp -d)
server=
# shellcheck disable=SC2317 # the trap calls it
finish() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$work"
}
trap finish EXIT
"$kvasir" serve -m "$model" -c "$context" --cache-dir "$work/cache" --port 0 "$@" 2> "$work/log" &
server=$!
until grep -q 'ready after' "$work/log"; do
  if ! kill -0 $server 2>/dev/null; then cat "$work/log" >&2; exit 1; fi
  sleep 0.2
done
url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$work/log" | head -1)/v1

pressure() {
  $tools/bin/cache-pressure --base-url "$url" --kv-size "$context" --context-tokens $((context * 3 / 16)) \
    --num-contexts 12 --timeout 1200 --output "$work/pressure.json"
  $tools/bin/python - "$work/pressure.json" <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))
errors = [r["error"] for r in run["hydrate"] + run["verify"] if r["error"]]
print(f"cache-pressure: {run['retained']} of {run['num_contexts']} contexts kept, {len(errors)} errors")
sys.exit(run["retained"] != run["num_contexts"] or bool(errors))
PY
}
agents() {
  $tools/bin/agent-sim --base-url "$url" --sessions 2 --main-tokens $((context * 5 / 16)) \
    --step-tokens $((context * 5 / 64)) --sub-tokens $((context / 8)) --sub-windows 2 --finalize-tokens $((context / 32)) \
    --max-context "$context" --max-tokens 32 --no-viz
}
aborts() {
  $tools/bin/abort-sim --base-url "$url" --context-tokens $((context * 3 / 8)) --thinking-tokens $((context / 128)) \
    --max-tokens $((context / 4)) --max-context "$context"
}

status=0
for judge in $judges; do
  case $judge in
    cache-pressure) pressure || status=1 ;;
    agent-sim) agents || status=1 ;;
    abort-sim) aborts || status=1 ;;
    *) echo "cache-pressure: there is no judge $judge" >&2; exit 2 ;;
  esac
done
exit $status
