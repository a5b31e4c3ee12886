#!/usr/bin/env bash
# Fetches the pinned engine (cmake/engine.pin) through the npm client: prebuilt libraries and the headers of the same
# release, unpacked under DIR (default build/engine). Does nothing when the right version is there already.
#
# usage: scripts/fetch-engine.sh [DIR [PLATFORM]]     PLATFORM: linux-x64, mac-arm64-metal, linux-x64-vulkan, …
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
pin=$root/cmake/engine.pin
dir=${1:-$root/build/engine}
field() { awk -v k="$1" '$1 == k { print $2; exit }' "$pin"; }

platform=${2:-}
if [ -z "$platform" ]; then
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) platform=linux-x64 ;;
    Linux-aarch64) platform=linux-arm64 ;;
    Darwin-arm64) platform=mac-arm64-metal ;;
    Darwin-x86_64) platform=mac-x64 ;;
    *) echo "fetch-engine: no prebuilt engine for $(uname -s) $(uname -m); build llama.cpp and use -DKVASIR_LLAMA_DIR=DIR" >&2; exit 1 ;;
  esac
fi
version=$(field package-version)
stamp="$version $platform"
if [ "$(cat "$dir/.stamp" 2>/dev/null || true)" = "$stamp" ]; then exit 0; fi

tmp=$(mktemp -d "${TMPDIR:-/tmp}/kvasir-engine.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
fetch() { # package, pin key
  local want file got
  want=$(field "$2")
  if [ -z "$want" ]; then echo "fetch-engine: cmake/engine.pin has no checksum for $2" >&2; exit 1; fi
  echo "fetch-engine: $1@$version"
  file=$(cd "$tmp" && npm pack --silent "$1@$version" | tail -n 1)
  got="sha512-$(openssl dgst -sha512 -binary "$tmp/$file" | openssl base64 -A)"
  if [ "$got" != "$want" ]; then
    echo "fetch-engine: $1@$version: checksum is $got, cmake/engine.pin wants $want" >&2; exit 1
  fi
  mkdir -p "$tmp/$2" && tar -xzf "$tmp/$file" -C "$tmp/$2"
}
fetch "node-llama-cpp" headers
git clone -q "$tmp/headers/package/llama/gitRelease.bundle" "$tmp/source" 2>/dev/null
release=$(field engine-release)

rm -rf "$dir" && mkdir -p "$dir/lib" "$dir/source"
if [ "$platform" != none ]; then
  fetch "@node-llama-cpp/$platform" "$platform"
  cp -R "$tmp/$platform/package/bins/"*/. "$dir/lib/"
fi
for part in include ggml/include common vendor models/templates tools/server LICENSE; do
  mkdir -p "$dir/source/$(dirname "$part")" && cp -R "$tmp/source/$part" "$dir/source/$part"
done
echo "$release" > "$dir/RELEASE"
echo "$stamp" > "$dir/.stamp"
echo "fetch-engine: llama.cpp $release for $platform in $dir"
