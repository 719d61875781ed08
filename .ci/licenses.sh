#!/bin/bash
# Collects the licence texts of the modules that are linked into the program.
#   .ci/licenses.sh          checks that each has one, of a kind that may be linked
#   .ci/licenses.sh DIR      and copies them to DIR
set -euo pipefail
cd "$(dirname "$0")/.."
dest=${1:-}
bad=0
modules=$(go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' ./cmd/agentguard ./cmd/agentguard-http | sort -u)
while read -r path dir; do
	[[ -n $path ]] || continue
	found=0
	for f in "$dir"/LICENSE* "$dir"/License* "$dir"/COPYING* "$dir"/NOTICE*; do
		[[ -f $f ]] || continue
		found=1
		if grep -qE 'GNU (AFFERO |LESSER )?GENERAL PUBLIC|SERVER SIDE PUBLIC|Business Source' "$f" &&
			! grep -q 'Redistribution and use in source and binary forms' "$f"; then # not a choice of two
			echo "licenses.sh: $path: $(basename "$f") is not a licence that may be linked" >&2
			bad=1
		fi
		[[ -z $dest ]] || install -D -m 644 "$f" "$dest/$path/$(basename "$f")"
	done
	[[ $found == 1 ]] || { echo "licenses.sh: $path has no licence text" >&2; bad=1; }
done <<<"$modules"
exit $bad
