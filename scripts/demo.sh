#!/usr/bin/env bash
# `make demo`: from a fresh clone to five answered questions over one document, and a table of what each cost. Installs
# what is missing, builds, fetches SmolLM2 (where it cannot: makes a small random model, and says so), serves on a free
# port of the loopback, and leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
scripts/setup.sh
make --no-print-directory all

if scripts/fetch-models.sh smollm2; then
  exec node scripts/demo/demo.mjs build/models/SmolLM2-135M-Instruct.Q4_1.gguf
fi
echo "demo: SmolLM2 could not be fetched. A tiny model with random weights stands in: its answers are noise, its token"
echo "demo: counts and the reuse of the document are real. It reads bytes, so it gets 1,900 bytes of the document."
scripts/make-fixtures.sh
exec node scripts/demo/demo.mjs build/models/tiny/llama.gguf 1900
