#!/usr/bin/env bash
# Unpacks an archive of scripts/dist.sh somewhere new and holds it to its promise: everything is in it, it asks for
# nothing from where it was built, starts, answers and stops.
#
# usage: scripts/dist-test.sh ARCHIVE MODEL.gguf
set -euo pipefail
[ $# = 2 ] || { sed -n '2,/^set /{ /^set /d; s/^# \{0,1\}//; p; }' "$0" >&2; exit 2; }
archive=$1 model=$2
source_tree=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "dist-test: $*" >&2; exit 1; }
where=$(mktemp -d "${TMPDIR:-/tmp}/kvasir dist test.XXXXXX") # a blank in the path, as people have
server=
end() {
  if [ -n "$server" ]; then kill -KILL "$server" 2>/dev/null || true; fi
  rm -rf "$where"
}
trap end EXIT

tar -C "$where" -xzf "$archive"
tree=$(echo "$where"/kvasir-*)
for part in bin/kvasir share/man/man1/kvasir.1 share/bash-completion/completions/kvasir \
  share/zsh/site-functions/_kvasir share/fish/vendor_completions.d/kvasir.fish share/doc/kvasir/LICENSE \
  share/doc/kvasir/LICENSE.llama.cpp share/doc/kvasir/examples/kvasir.conf REQUIRES; do
  [ -s "$tree/$part" ] || fail "$part is missing"
done
kvasir=$tree/bin/kvasir
if [ "$(uname -s)" = Linux ]; then
  [ -s "$tree/lib/systemd/system/kvasir.service" ] || fail "the unit is missing"
  libraries=$(ldd "$kvasir" "$tree"/lib/kvasir/libllama.*so)
  if grep "not found" <<< "$libraries"; then fail "libraries are missing"; fi
  # Nothing from the source or build tree; the engine and each packed library from here.
  if grep -F "$source_tree/" <<< "$libraries"; then fail "it still needs the source tree"; fi
  for library in "$tree"/lib/kvasir/*; do
    base=$(basename "$library")
    if grep -F "	$base => " <<< "$libraries" | grep -vF "=> $tree/"; then fail "$base comes from elsewhere"; fi
    case $base in libllama* | libggml*) ;; lib*) [ -s "$tree/share/doc/kvasir/LICENSE.${base%%.so*}" ] || fail "no licence for $base" ;; esac
  done
  # shellcheck disable=SC2016 # $ORIGIN is the loader's
  if objdump -p "$kvasir" | grep -E 'R(UN)?PATH' | grep -vqF '$ORIGIN/../lib/kvasir'; then fail "the program names its build folder"; fi
fi

# A bare environment, from elsewhere.
run() { (cd / && exec env -i PATH="$PATH" TMPDIR="$where" "$@"); }
run "$kvasir" version | grep -q '^kvasir ' || fail "it does not tell its version"
run "$kvasir" help man | cmp -s - "$tree/share/man/man1/kvasir.1" || fail "the man page is another program's"

log=$where/log
mkfifo "$where/out"
(cd / && exec env -i PATH="$PATH" TMPDIR="$where" "$kvasir" serve -m "$model" -c 512 -t 1 --port 0 \
  --cache-dir "$where/cache" --cache-disk 64M) > "$where/out" 2>&1 &
server=$!
exec 3< "$where/out"
until grep -q "ready after" "$log" 2>/dev/null; do # each line as it comes; the end when the program ends
  IFS= read -r line <&3 || { cat "$log" >&2; fail "it did not start"; }
  echo "$line" >> "$log"
done
cat <&3 >> "$log" &
url=$(sed -n 's/.*listening on \(http[^ ]*\).*/\1/p' "$log" | head -n 1)
answer=$(node -e 'fetch(process.argv[1] + "/v1/completions", { method: "POST", body: JSON.stringify({ prompt: "Hello",
  max_tokens: 4, ignore_eos: true }) }).then(async (r) => console.log(r.status, (await r.json()).usage.completion_tokens))' "$url")
[ "$answer" = "200 4" ] || fail "a wrong answer: $answer"
# The engine's backend is loaded at run time, by where the engine lies.
if [ -r "/proc/$server/maps" ]; then
  grep -q "$tree/lib/kvasir/libggml-cpu" "/proc/$server/maps" || fail "the engine's backend is not the packed one"
fi
kill -TERM "$server"
wait "$server" || { cat "$log" >&2; fail "it did not stop cleanly"; }
server=
echo "dist-test: $(basename "$archive") unpacks, starts, answers and stops ($(du -sk "$tree" | cut -f1) KiB)"
