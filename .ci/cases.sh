#!/bin/bash
# Runs the confinement cases in DIR through testdata/cases-adapter.sh and holds the result
# against .ci/cases-pending.txt: everything else must pass, and nothing there may.
#   .ci/cases.sh DIR [ID|KIND [ADAPTER]]
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:?usage: cases.sh DIR [ID|KIND [ADAPTER]]} only=${2:-all} adapter=${3:-cases-adapter.sh}
if [[ ! -x $dir/run_case.sh ]]; then
	echo "cases.sh: no cases in $dir: nothing run"
	exit 0
fi
results=$(mktemp)
trap 'rm -f "$results"' EXIT
export AGENTGUARD=$PWD/bin/agentguard
# shellcheck disable=SC2016 # run_case.sh evaluates it, with its own TRACE
export AG_DIFF_CMD='"$AGENTGUARD" diff --state "$TRACE"'
"$dir/run_case.sh" --only "$only" --results "$results" -- "$PWD/testdata/$adapter" || :
awk -F '\t' '
	FNR == NR { if ($0 !~ /^#/ && NF) { split($0, w, " "); pending[w[1]] = 1 } next }
	$2 == "PASS" && !($1 in pending) { passed++ }
	$2 == "FAIL" && !($1 in pending) { failed++; bad = bad "\n  " $1 ": " $3 }
	$2 == "PASS" && ($1 in pending) { failed++; bad = bad "\n  " $1 ": passes now: take it off .ci/cases-pending.txt" }
	$2 == "FAIL" && ($1 in pending) { waiting++ }
	$2 == "SKIP" { skipped++ }
	END {
		printf "cases: %d as they must, %d not, %d skipped, %d not built yet%s\n", passed, failed, skipped, waiting, bad
		exit failed > 0 || passed == 0
	}' .ci/cases-pending.txt "$results"
