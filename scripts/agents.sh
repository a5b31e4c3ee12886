#!/usr/bin/env bash
# Coding agents do a task against a built kvasir: tests/agents/agents.mjs. Installs those that it runs, in the versions of
# tests/agents/agents.txt, under build/agents (150 to 700 MB each; anew only when the version there changes).
#
# usage: scripts/agents.sh [BUILD_DIR [AGENT…]]      without names: all of the list
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
build=${1:-build}
shift || true
agents=("$@")
list=tests/agents/agents.txt
if [ ${#agents[@]} -eq 0 ]; then
  while read -r name _; do agents+=("$name"); done < $list
fi

install() { # PACKAGE FOLDER: npm's NAME@VERSION, or PyPI's NAME==VERSION
  case $1 in
    *==*) python3 -m venv "$2" && "$2/bin/pip" install --quiet --disable-pip-version-check "$1" ;;
    *) echo '{"private": true}' > "$2/package.json"
       npm install --silent --no-audit --no-fund --no-package-lock --prefix "$2" "$1" ;;
  esac
}

scripts/fetch-models.sh
for name in "${agents[@]}"; do
  package=$(sed -n "s/^$name //p" $list)
  if [ -z "$package" ]; then echo "agents: there is no $name in $list" >&2; exit 2; fi
  home=build/agents/$name
  if [ "$(cat "$home/installed" 2>/dev/null)" = "$package" ]; then continue; fi
  rm -rf "$home"
  mkdir -p "$home"
  install "$package" "$home" || { echo "agents: $package could not be installed" >&2; exit 1; }
  echo "$package" > "$home/installed"
done

KVASIR_AGENTS=$(IFS=,; echo "${agents[*]}") KVASIR_BIN=$build/kvasir \
  exec node --test --test-reporter=spec tests/agents/agents.mjs
