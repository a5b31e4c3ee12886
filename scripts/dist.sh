#!/usr/bin/env bash
# Packs a build into one archive that runs where it is unpacked: program, engine, man page, completions, units and
# licences. Libraries of the system that few machines have are packed too, with their licences; those that carry TLS and
# its policies (curl, GnuTLS, OpenSSL …) and the C and C++ runtimes stay the system's, and REQUIRES names them.
#
# usage: scripts/dist.sh [BUILD_DIR [OUT_DIR]]     (default build, build/dist); prints the archive's path
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)
out=${2:-build/dist}
fail() { echo "dist: $*" >&2; exit 1; }
[ -x "$build/kvasir" ] || fail "there is no $build/kvasir (make)"

# What is packed: small, self-contained, and of no say in security policies.
packed='libmicrohttpd|libjansson|libxxhash|libsqlite3|libsodium'
prefix=/opt/kvasir # what the units say until they are edited
version=$("$build/kvasir" version | awk 'NR == 1 { print $2 }')
system=$(uname -s | tr '[:upper:]' '[:lower:]')
name=kvasir-$version-$system-$(uname -m)

stage=$(mktemp -d "${TMPDIR:-/tmp}/kvasir-dist.XXXXXX")
trap 'rm -rf "$stage"' EXIT
DESTDIR=$stage cmake --install "$build" --prefix $prefix --strip > "$stage/log" || { cat "$stage/log" >&2; exit 1; }
tree=$stage/$name
mv "$stage$prefix" "$tree"
for part in share/man/man1/kvasir.1 share/bash-completion/completions/kvasir; do
  [ -s "$tree/$part" ] || fail "$build has no $part: a build with a sanitizer, or for another machine"
done
doc=$tree/share/doc/kvasir
cp README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md "$doc"
cp -R docs "$doc"

licence_of() { # the licence of the package that a library came with, into the file $2
  local package
  if command -v dpkg-query > /dev/null; then
    # Merged /usr: the database may know the file by either name.
    package=$({ dpkg-query -S "$1" || dpkg-query -S "/usr$1" || dpkg-query -S "${1#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1)
    [ -n "$package" ] && cp "/usr/share/doc/$package/copyright" "$2" || return 1
    # Debian keeps the long licences once; they go along, under their names.
    { grep -o '/usr/share/common-licenses/LGPL-[0-9.]*[0-9]' "$2" || true; } | sort -u | while read -r text; do
      cp -L "$text" "$doc/$(basename "$text")"
    done
  elif command -v rpm > /dev/null; then
    package=$(rpm -qf --qf '%{NAME}' "$1") && rpm -q --licensefiles "$package" | xargs cat > "$2"
  else
    return 1
  fi
}
# What is compiled into the engine's libraries and into the program.
engine=$(sed -n 's/^KVASIR_LLAMA_DIR:PATH=//p' "$build/CMakeCache.txt")
if [ -z "$engine" ]; then
  platform=$(sed -n 's/^KVASIR_ENGINE_PLATFORM:STRING=//p' "$build/CMakeCache.txt")
  engine=build/engine${platform:+-$platform}/source
fi
find "$engine/vendor" -name 'LICENSE*' | while read -r file; do
  cp "$file" "$doc/LICENSE.$(basename "$(dirname "$file")")"
done
{ # its header names the licence and does not hold it; the terms are those of our own file
  echo "JSON for Modern C++ (nlohmann/json)"
  sed -n 's/.*SPDX-FileCopyrightText: \(.*\)/Copyright (c) \1/p' "$engine/vendor/nlohmann/json.hpp" | sort -u
  sed -n '/^Permission is hereby granted/,$p' LICENSE
} > "$doc/LICENSE.nlohmann-json"

if [ "$system" = linux ]; then
  while read -r soname path; do
    [[ $soname =~ ^($packed)\. ]] || continue
    cp -L "$path" "$tree/lib/kvasir/$soname"
    chmod 755 "$tree/lib/kvasir/$soname"
    licence_of "$(readlink -f "$path")" "$doc/LICENSE.${soname%%.so*}" ||
      fail "the licence of $path cannot be found, so it cannot be packed"
  done < <(ldd "$build/kvasir" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }')
fi

# What is left to the system: of the program and of what is packed, the libraries asked for by name that are not here.
needed() {
  if [ "$system" = darwin ]; then otool -L "$1" | awk 'NR > 1 && $1 !~ /^@/ { print $1 }'
  else objdump -p "$1" 2>/dev/null | awk '$1 == "NEEDED" { print $2 }'; fi
}
{
  echo "Libraries that the system must have:"
  for file in "$tree/bin/kvasir" "$tree"/lib/kvasir/*; do needed "$file"; done | sort -u | while read -r library; do
    [ -e "$tree/lib/kvasir/$library" ] || echo "  $library"
  done
} > "$tree/REQUIRES"

mkdir -p "$out"
archive=$(cd "$out" && pwd)/$name.tar.gz
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$archive.tmp" "$name" 2>/dev/null ||
  tar -C "$stage" -czf "$archive.tmp" "$name" # a tar without GNU's options
mv "$archive.tmp" "$archive"
echo "$archive"
