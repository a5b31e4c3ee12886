#!/usr/bin/env bash
# Runs scheduler, cache and store on the fake engine through OPERATIONS random operations (default 1,000,000) over all
# kinds of memory, and fails each file call of the cache's script in each way. Totals are printed for each kind; a
# failure prints the seed and the round that replay it:
#
#   KVASIR_SEED=… KVASIR_ROUND=… build/tests/test_sched_soak
#
# usage: scripts/soak.sh [OPERATIONS]
set -euo pipefail
cd "$(dirname "$0")/.."
operations=${1:-1000000}
case $operations in '' | *[!0-9]*) echo "usage: scripts/soak.sh [OPERATIONS]" >&2; exit 2 ;; esac
log=build/soak.log
started=$(date +%s)
status=0
rm -f "$log"
for program in "env KVASIR_OPS=$operations build/tests/test_sched_soak" "env KVASIR_ALL=1 build/tests/test_cache_faults"; do
  set +e # what the store says of the faults is many lines: they stay in the log
  $program 2>&1 | tee -a "$log" | grep --line-buffered -avE '^(warning: )?the disk cache '
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then status=1; fi
  set -e
done
echo "soak: $operations operations in $(($(date +%s) - started)) s; all that was said is in $log"
exit $status
