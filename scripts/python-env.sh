#!/usr/bin/env bash
# Makes build/python-env, the Python environment with the clients of tests/python, and prints its interpreter. Anew only
# when tests/python/requirements.txt has changed.
#
# usage: scripts/python-env.sh
set -euo pipefail
cd "$(dirname "$0")/.."
env=$PWD/build/python-env
list=tests/python/requirements.txt
if ! cmp -s $list "$env/.kvasir-requirements"; then
  rm -rf "$env"
  mkdir -p build
  python3 -m venv "$env" >&2 || { echo "python-env: python3 has no venv (scripts/setup.sh installs it)" >&2; exit 1; }
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check -r $list >&2
  cp $list "$env/.kvasir-requirements"
fi
echo "$env/bin/python"
