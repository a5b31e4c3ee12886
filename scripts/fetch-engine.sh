#!/usr/bin/env bash
# Brings the pinned engine (cmake/engine.pin) into DIR (default build/engine): shared libraries in DIR/lib, the headers
# of the same release in DIR/source. Packages come through the npm client and are checked against the pin. Does nothing
# when the right version is there already. CMake calls it at configure time.
#
# usage: scripts/fetch-engine.sh [DIR [PLATFORM]]
#   PLATFORM  a "platform:" of cmake/engine.pin: linux-x64, linux-arm64, linux-x64-vulkan, linux-x64-cuda (CUDA 13),
#             linux-x64-cuda12; or "source" (compile the pinned source here, about 8 minutes on 2 cores), which is the
#             default where no prebuilt package is pinned; or "none" (headers only)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/build/tools/bin:$PATH # what setup.sh put there because the system has it only too old
pin=$root/cmake/engine.pin
dir=${1:-$root/build/engine}
say() { echo "fetch-engine: $*" >&2; } # not stdout: the Makefile hides CMake's chatter there
fail() { say "$*"; exit 1; }
field() { awk -v k="$1" '$1 == k { $1 = ""; sub(/^ /, ""); print; exit }' "$pin"; }

platform=${2:-}
# The prebuilt libraries want glibc 2.34 (Debian 12, Ubuntu 22.04); an older one, or musl, gets a compiled engine.
new_glibc() {
  local have
  have=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ print $2 }') && [ -n "$have" ] &&
    awk -v v="$have" 'BEGIN { split(v, a, "."); exit !(a[1] > 2 || a[1] == 2 && a[2] >= 34) }'
}
if [ -z "$platform" ] && [ "$(uname -s)" = Linux ] && ! new_glibc; then
  platform=source
elif [ -z "$platform" ]; then
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) platform=linux-x64 ;;
    Linux-aarch64) platform=linux-arm64 ;;
    *) platform=source ;;
  esac
fi
packages=$(field "platform:$platform")
case $platform in
  none | source) ;;
  *) [ -n "$packages" ] || fail "unknown platform '$platform'; cmake/engine.pin has: $(sed -n 's/^platform:\([^ ]*\).*/\1/p' "$pin" | tr '\n' ' ')source none" ;;
esac
version=$(field package-version)
release=$(field engine-release)
stamp="$version $platform"
if [ "$(cat "$dir/.stamp" 2>/dev/null || true)" = "$stamp" ]; then exit 0; fi

for tool in npm openssl git tar; do
  command -v "$tool" >/dev/null || fail "$tool is missing; run scripts/setup.sh"
done
mkdir -p "$(dirname "$dir")"
dir=$(cd "$(dirname "$dir")" && pwd)/$(basename "$dir")
new=$dir.new.$$ # laid out beside DIR and moved into place whole, so that an interrupted run leaves the old one
tmp=$(mktemp -d "${TMPDIR:-/tmp}/kvasir-engine.XXXXXX")
trap 'rm -rf "$tmp" "$new"' EXIT

fetch() { # package, pin key: unpacks into $tmp/KEY
  local want file got
  want=$(field "$2")
  [ -n "$want" ] || fail "cmake/engine.pin has no checksum for $2"
  say "$1@$version"
  file=$(cd "$tmp" && npm pack --silent "$1@$version" | tail -n 1) || fail "npm could not fetch $1@$version"
  got="sha512-$(openssl dgst -sha512 -binary "$tmp/$file" | openssl base64 -A)"
  [ "$got" = "$want" ] || fail "$1@$version: checksum is $got, cmake/engine.pin wants $want"
  mkdir -p "$tmp/$2" && tar -xzf "$tmp/$file" -C "$tmp/$2" && rm "$tmp/$file"
}

libraries_of() { # copies the shared libraries of a package; "fallback/" holds those of a companion package
  local bins=$1/package/bins
  find "$bins" \( -name '*.so' -o -name '*.so.*' -o -name '*.dylib' -o -name '*.metal' \) -exec cp {} "$new/lib/" \;
}

# Compiles libllama, ggml and llama-common as relocatable shared libraries. The tree stays in DIR.build until it is
# done, so that a second run goes on where the first was stopped.
compile() {
  local work=$dir.build origin="\$ORIGIN" generator=()
  [ "$(uname -s)" = Darwin ] && origin='@loader_path'
  command -v ninja >/dev/null && generator=(-G Ninja)
  if [ "$(cat "$work/.stamp" 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf "$work" && mkdir -p "$work" && cp -R "$tmp/source" "$work/source"
    # The package's patches, so that both ways give the same engine.
    for patch in "$tmp/headers/package/llama/patches/"*.diff; do
      [ -e "$patch" ] || continue
      git -C "$work/source" apply "$patch" || fail "$(basename "$patch") does not apply to llama.cpp $release"
    done
    echo "$stamp" > "$work/.stamp"
  fi
  say "compiling llama.cpp $release (once; takes minutes)"
  cmake -S "$work/source" -B "$work/build" ${generator[@]+"${generator[@]}"} -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
    -DCMAKE_INSTALL_RPATH="$origin" -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_CURL=OFF \
    -DLLAMA_OPENSSL=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF > "$work/configure.log" ||
    fail "cmake failed; see $work/configure.log"
  cmake --build "$work/build" --target llama llama-common ggml --parallel "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" >&2
  cp -R "$work/build/bin/"lib* "$new/lib/"
  find "$work/build/bin" -name '*.metal' -exec cp {} "$new/lib/" \;
}

fetch "node-llama-cpp" headers
git clone -q "$tmp/headers/package/llama/gitRelease.bundle" "$tmp/source" 2> "$tmp/clone.log" ||
  fail "the source bundle cannot be read: $(cat "$tmp/clone.log")"
mkdir -p "$new/lib" "$new/source"
for key in $packages; do
  fetch "@node-llama-cpp/$key" "$key"
  libraries_of "$tmp/$key"
done
if [ "$platform" = source ]; then compile; fi
for part in include ggml/include common vendor models/templates tools/server LICENSE; do
  mkdir -p "$new/source/$(dirname "$part")" && cp -R "$tmp/source/$part" "$new/source/$part"
done
echo "$release" > "$new/RELEASE"
echo "$stamp" > "$new/.stamp"
rm -rf "$dir" && mv "$new" "$dir" && rm -rf "$dir.build"
say "llama.cpp $release for $platform in ${dir#"$root"/}"
