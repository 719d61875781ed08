#!/bin/bash
# Runs each fuzz target for a short time.   .ci/fuzz.sh [INPUTS]
#
# A number of inputs and no time: at the end of a time the coordinator of Go 1.26 now and then takes its own deadline for a
# failure of the target (golang/go#75804, mended in 1.27).
set -euo pipefail
cd "$(dirname "$0")/.."
inputs=${1:-20000}
list=$(go test -list '^Fuzz' ./...) || { printf '%s\n' "$list"; exit 1; }
names=() ran=0
while read -r first second _; do
	case $first in
	Fuzz*) names+=("$first") ;;
	ok)
		for name in "${names[@]}"; do
			echo "== $second $name"
			go test -run '^$' -fuzz "^$name\$" -fuzztime "${inputs}x" -parallel 2 "$second"
			ran=$((ran + 1))
		done
		names=()
		;;
	esac
done <<<"$list"
((ran > 0)) || { echo "fuzz.sh: no fuzz target found" >&2; exit 1; }
echo "$ran fuzz targets, $inputs inputs each"
