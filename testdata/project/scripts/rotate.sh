#!/bin/sh
# Rotates FILE: FILE.N.gz becomes FILE.N+1.gz, FILE becomes FILE.1.gz and is
# left empty. At most KEEP old ones stay.   rotate.sh FILE [KEEP]
set -eu
file=${1:?usage: rotate.sh FILE [KEEP]} keep=${2:-3}
[ -f "$file" ] || { echo "rotate.sh: $file: no such file" >&2; exit 1; }
rm -f "$file.$keep.gz"
n=$keep
while [ "$n" -gt 1 ]; do
	prev=$((n - 1))
	if [ -f "$file.$prev.gz" ]; then mv "$file.$prev.gz" "$file.$n.gz"; fi
	n=$prev
done
gzip -c "$file" >"$file.1.gz"
: >"$file"
