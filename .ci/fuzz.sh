#!/bin/bash
# Runs each fuzz target for a short time.   .ci/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-3}
list=$(go test -list '^Fuzz' ./...) || { printf '%s\n' "$list"; exit 1; }
names=() ran=0
while read -r first second _; do
	case $first in
	Fuzz*) names+=("$first") ;;
	ok)
		for name in "${names[@]}"; do
			echo "== $second $name"
			go test -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" -parallel 2 "$second"
			ran=$((ran + 1))
		done
		names=()
		;;
	esac
done <<<"$list"
((ran > 0)) || { echo "fuzz.sh: no fuzz target found" >&2; exit 1; }
echo "$ran fuzz targets, ${seconds}s each"
