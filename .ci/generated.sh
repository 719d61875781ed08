#!/bin/bash
# Generates everything again in a copy of the tree and compares: what is committed (BPF
# objects, init programs, tables) is what the sources say, byte for byte.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
stamp=$(mktemp)
trap 'rm -rf "$copy" "$stamp"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
	[[ -e $f ]] && printf '%s\0' "$f"
done | tar --null -T - -cf - | tar -xf - -C "$copy"
# Generators must write what they promise, not merely leave the old file alone.
grep -rlE --include='*.go' '^// Code generated .* DO NOT EDIT\.$' "$copy" | grep -v /testdata/ | xargs -r touch -d @0
find "$copy" \( -name '*.elf' -o -name '*_bpfe?.o' \) -exec touch -d @0 {} +
touch "$stamp"
make -s -C "$copy" generate
stale=$(find "$copy" -type f ! -newermt @1 -printf '%P\n')
[[ -z $stale ]] || { echo "generated.sh: make generate does not write: $stale" >&2; exit 1; }
bad=0
while IFS= read -r f; do
	cmp -s "$copy/$f" "$f" && continue
	bad=1
	echo "generated.sh: $f is not what make generate writes" >&2
	case $f in *.go) diff -u "$f" "$copy/$f" | head -40 >&2 || : ;; esac
done < <(find "$copy" -type f -newer "$stamp" -printf '%P\n')
exit $bad
