#!/usr/bin/env bash
# Checks layout, mistakes and house rules, without changing anything; with --fix, lays the C sources out instead.
# `scripts/setup.sh --dev` installs the tools; one that is missing is named and counts as a failure.
#
# usage: scripts/lint.sh [--fix] [BUILD_DIR]     BUILD_DIR (default build) has the compile commands for clang-tidy
set -uo pipefail
cd "$(dirname "$0")/.." || exit
fix=no
if [ "${1:-}" = --fix ]; then fix=yes; shift; fi
build=${1:-build}
status=0
find_tool() { # the tool, or its newest numbered name (clang-format-19)
  local name
  for name in "$1" $(compgen -c "$1-" | grep -E "^$1-[0-9]+$" | sort -t- -k3 -nr); do
    if command -v "$name" >/dev/null; then echo "$name"; return; fi
  done
  echo "lint: $1 is missing (scripts/setup.sh --dev)" >&2
  return 1
}
step() { echo "lint: $*"; }
sources() { git ls-files --cached --others --exclude-standard "$@"; }

if format=$(find_tool clang-format); then
  if [ $fix = yes ]; then
    sources '*.c' '*.h' '*.cpp' | xargs "$format" -i
    exit 0
  fi
  step "$format"
  sources '*.c' '*.h' '*.cpp' | xargs "$format" --dry-run --Werror || status=1
else
  status=1
fi
step "module dependencies"
scripts/check-modules.py || status=1
if shellcheck=$(find_tool shellcheck); then
  step "$shellcheck"
  sources '*.sh' .ci/run | xargs "$shellcheck" || status=1
else
  status=1
fi
if tidy=$(find_tool clang-tidy); then
  step "$tidy"
  jobs=$(getconf _NPROCESSORS_ONLN)
  sources 'src/*.c' 'tools/*.c' 'fuzz/*.c' | xargs -P "$jobs" -n 4 "$tidy" --quiet -p "$build" 2> /dev/null || status=1
  # gcc leaves its default standard out of the compile commands, and clang's is another.
  sources 'src/*.cpp' | xargs "$tidy" --quiet -p "$build" --extra-arg=-std=gnu++17 2> /dev/null || status=1
else
  status=1
fi
if [ $status = 0 ]; then step "clean"; else step "findings above"; fi
exit $status
