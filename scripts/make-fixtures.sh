#!/usr/bin/env bash
# Makes the models that tests run on, with tools/mkmodel: once, and again when mkmodel changed.
#
# usage: scripts/make-fixtures.sh [--mkmodel PROGRAM]
#        scripts/make-fixtures.sh --shapes [--mkmodel PROGRAM] [--donor MODEL.gguf] [--template FILE.jinja] [NAME…]
#   without --shapes   a tiny random model of every family: build/models/tiny/<family>.gguf, and a LoRA adapter for
#                      the tiny llama: build/models/tiny/lora/llama.gguf, and a model that scores documents:
#                      build/models/tiny/rerank/qwen3.gguf, and two without memory: build/models/tiny/encoder/
#                      embeds.gguf and ranks.gguf (90 MB in all, a second)
#   --shapes           random weights of a real model's shape: build/models/shape/<name>.gguf (0.4 to 1.2 GB each),
#                      around the tokenizer and template of SmolLM2 or of --donor; with names, only these
#   --mkmodel          take this program instead of building the target mkmodel in build/
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
fail() { echo "make-fixtures: $*" >&2; exit 1; }

kind=tiny mkmodel='' donor='' names=() options=()
while [ $# -gt 0 ]; do
  case $1 in
    --shapes) kind=shape ;;
    --mkmodel) mkmodel=${2:?}; shift ;;
    --donor) donor=${2:?}; shift ;;
    --template) options+=(--template "${2:?}"); shift ;;
    -*) sed -n '2,/^set /{ /^set /d; s/^# \{0,1\}//; p; }' "$0" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
if [ $kind = tiny ] && [ ${#names[@]} -gt 0 ]; then fail "names only go with --shapes"; fi
dir=build/models/$kind
stamps=$dir/.made
mkdir -p "$stamps"

# A model is made anew when its stamp differs: mkmodel's sources, and of a shape also donor and template.
key=$(cat tools/mkmodel/*.[ch] | openssl dgst -sha256 -r | cut -c 1-64)
if [ $kind = shape ]; then
  if [ -z "$donor" ]; then
    scripts/fetch-models.sh smollm2
    donor=build/models/SmolLM2-135M-Instruct.Q4_1.gguf
  fi
  key="$key $donor ${options[*]-}"
fi
made() { [ -s "$dir/$1.gguf" ] && [ "$(cat "$stamps/${1//\//-}" 2>/dev/null)" = "$key" ]; }

# The names of the last run stand in a file, so that a run with nothing to do builds and starts nothing.
list=$stamps/list
if [ "$(head -n 1 "$list" 2>/dev/null)" = "$key" ]; then
  missing=no
  if [ ${#names[@]} -gt 0 ]; then wanted=("${names[@]}"); else
    wanted=()
    while IFS= read -r name; do wanted+=("$name"); done < <(tail -n +2 "$list")
  fi
  for name in "${wanted[@]}"; do made "$name" || missing=yes; done
  if [ $missing = no ]; then exit 0; fi
fi

if [ -z "$mkmodel" ]; then
  if [ ! -f build/CMakeCache.txt ]; then cmake --preset release > /dev/null; fi
  cmake --build build --target mkmodel > build/mkmodel.log || { cat build/mkmodel.log >&2; exit 1; }
  rm -f build/mkmodel.log
  mkmodel=build/tools/mkmodel
  [ -x $mkmodel ] || mkmodel=$(find build -name mkmodel -type f -perm -100 | head -n 1)
fi
[ -x "$mkmodel" ] || fail "no program mkmodel: build it first, or name it with --mkmodel"

# Each file is renamed into place whole, so tests that run meanwhile see an old or a new one.
all=()
while IFS= read -r name; do all+=("$name"); done < <("$mkmodel" list $kind)
if [ ${#names[@]} -eq 0 ]; then names=("${all[@]}"); fi
for name in "${names[@]}"; do
  made "$name" && continue
  if [ $kind = tiny ]; then
    "$mkmodel" tiny "$name" "$dir/$name.gguf" > /dev/null
  else
    "$mkmodel" ${options[@]+"${options[@]}"} shape "$name" "$donor" "$dir/$name.gguf"
  fi
  echo "$key" > "$stamps/$name"
done
if [ $kind = tiny ]; then
  extra=(lora/llama rerank/qwen3 encoder/embeds encoder/ranks)
  all+=("${extra[@]}")
  mkdir -p $dir/lora $dir/rerank $dir/encoder
  "$mkmodel" lora $dir/lora/llama.gguf > /dev/null
  "$mkmodel" rerank $dir/rerank/qwen3.gguf > /dev/null
  for name in embeds ranks; do "$mkmodel" encoder $name $dir/encoder/$name.gguf > /dev/null; done
  for name in "${extra[@]}"; do echo "$key" > "$stamps/${name//\//-}"; done
  echo "make-fixtures: $((${#all[@]} - ${#extra[@]})) tiny models, an adapter, a reranker and two encoders in $dir"
fi
printf '%s\n' "$key" "${all[@]}" > "$list"
# What an older mkmodel made under another name.
for file in "$dir"/*.gguf; do
  name=$(basename "$file" .gguf)
  case " ${all[*]} " in *" $name "*) ;; *) rm -f "$file" "$stamps/$name" ;; esac
done
