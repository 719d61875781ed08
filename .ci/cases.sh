#!/bin/bash
# Runs the confinement cases in DIR in each MODE, all modes beside each other, and holds the results
# against docs/cases.md: what the table says to hold must pass, what it says not to hold must not.
#   .ci/cases.sh DIR [MODE[=CASE,CASE...]]...      MODE: a column of the table (default: all four)
# AG_CASES_VERBOSE: the runner's own output too. AG_CASES_SLOW=N: time limits are N times as long (emulation).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:?usage: cases.sh DIR [MODE[=CASE,CASE...]]...}
shift
(($#)) || set -- root helper userns landlock
if [[ ! -x $dir/run_case.sh ]]; then
	echo "cases.sh: no cases in $dir: nothing run"
	exit 0
fi
work=$(mktemp -d)
helper=''
cleanup() {
	if [[ -n $helper ]]; then kill "$helper" && wait "$helper" || :; fi
	rm -rf "$work"
}
trap cleanup EXIT
# Where an ordinary user reaches it: the tree may lie in a directory of root's.
chmod 755 "$work"
install -m 755 "${AGENTGUARD:-bin/agentguard}" "$work/agentguard"
install -m 755 -t "$work" testdata/cases-{mode,adapter}.sh
export AGENTGUARD=$work/agentguard
# shellcheck disable=SC2016 # run_case.sh evaluates it, with its own TRACE
export AG_DIFF_CMD='"$AGENTGUARD" diff --state "$TRACE"'

# serve starts the helper of all cases that see this network as the host's.
serve() {
	mkdir -m 755 "$work/served"
	env -i PATH="$PATH" "$AGENTGUARD" helper --socket "$work/served/socket" </dev/null >/dev/null 2>"$work/helper.log" &
	helper=$!
	export AG_HELPER=$work/served/socket AG_HELPER_NET
	AG_HELPER_NET=$(readlink /proc/self/ns/net)
	for _ in {1..600}; do
		[[ -S $AG_HELPER ]] && return
		sleep 0.1
	done
	cat "$work/helper.log"
	return 1
}

# adapt MODE ID prints for sed what a mode needs of a case: that is accepted which the mode refuses and the case is not
# about: a bound on tasks (they are bounded for the user and not for the run), chmod by path, and /proc, without
# which some attempts break off before they have tried anything.
adapt() {
	case $1.$2 in
	landlock.A-lim-*) ;;
	landlock.A-trc-02) echo 's/policy: .*/&; gap=filesystem.metadata/' ;;
	landlock.A-env-01 | landlock.A-fs-07 | landlock.A-int-01 | landlock.A-net-03 | landlock.A-proc-02) echo 's/policy: .*/&; gap=process.proc/' ;;
	landlock.*) echo 's/policy: .*procs=.*/&; gap=process.max_subprocesses/' ;;
	esac
}

# stretch makes a case's time limits AG_CASES_SLOW times as long: the runner's, the policy's but for the 3 s that one case is
# about, the attempt's own, and what it does for longer than a wall clock may let it, so that no case is easier. Of cpu limits, the compiler's.
stretch() {
	((${AG_CASES_SLOW:-1} > 1)) || exec cat
	# shellcheck disable=SC2016 # perl's
	perl -0777 -pe 'my $slow = $ENV{AG_CASES_SLOW};
		s/^([#* ]+)policy: .*\n/$&$1timeout: 60\n/m unless /^[#* ]+timeout: /m; # what the runner does without
		s/\b(sleep[ (]|alarm\()(\d\d+)/$1 . $2 * $slow/ge if /^[#* ]+policy: .*wall=/m;
		s/\b(timeout: |wall=(?=\d\d)|cpu=(?=60s)|wall_le |timeout=|settimeout\()(\d+)/$1 . $2 * $slow/ge'
}

# choose MODE CASES fills the mode's directory with the runner and the chosen cases.
choose() {
	local dest=$work/$1 cases=$2 f id
	mkdir "$dest"
	ln -s "$(realpath "$dir")"/{run_case.sh,fixtures.py} "$dest"
	for f in "$dir"/A-*; do
		[[ $f =~ /(A-[a-z]+-[0-9]+)-[^/]*$ ]] || continue
		id=${BASH_REMATCH[1]}
		[[ -z $cases || ,$cases, == *,$id,* ]] || continue
		sed "$(adapt "$1" "$id")" "$f" | stretch >"$dest/${f##*/}"
	done
}

# lane MODE CASES runs cases in one mode, one after the other. What a flood of output has kept from saying that it
# started (both streams share one budget) has no result, and is run again.
lane() {
	local again
	choose "$1" "$2"
	: >"$work/$1.results"
	: >"$work/$1.verdicts"
	cases_of "$1"
	again=$(awk -F '\t' '$2 == "FAIL" && $3 ~ /^the case did not start: /{ printf "%s%s", sep, $1; sep = "," }' "$work/$1.results")
	[[ -n $again ]] || return 0
	rm -r "${work:?}/$1"
	choose "$1" "$again"
	mv "$work/$1.results" "$work/$1.first"
	: >"$work/$1.results"
	cases_of "$1"
	awk -F '\t' -v again=",$again," 'index(again, "," $1 ",") == 0' "$work/$1.first" >>"$work/$1.results"
}

cases_of() {
	AG_MODE=$1 AG_VERDICTS=$work/$1.verdicts "$work/$1/run_case.sh" --results "$work/$1.results" \
		-- "$work/cases-mode.sh" >>"$work/$1.log" 2>&1 || : # the table judges
}

# judge MODE holds the results against the mode's column. An attempt that broke off by itself, and was not ended (124 and
# above), has proved nothing, whatever the runner says.
judge() {
	awk -F '\t' -v mode="$1" -v kernel="$(uname -r)" '
	FILENAME ~ /\.md$/ {
		if ($0 !~ /^\| /) next
		n = split($0, cell, / *\| */)
		if (cell[2] == "case") for (i = 3; i < n; i++) if (cell[i] == mode) column = i
		if (column && cell[2] ~ /^A-/) says[cell[2]] = cell[column]
		next
	}
	$2 == "PASS" && match($3, /no RESULT line, rc=[0-9]+/) && substr($3, RSTART + 19, RLENGTH - 19) + 0 < 124 { $2 = "broke off" }
	$2 == "SKIP" { skipped = skipped " " $1 ": " $3 "\n"; next }
	says[$1] ~ /^mostly: / { mostly = mostly " " $1 " (" $2 ")"; next }
	says[$1] == "holds" && $2 == "PASS" { good = good " " $1; passed++; next }
	says[$1] != "holds" && $2 == "FAIL" && $1 in says { cannot = cannot " " $1; next }
	$2 == "PASS" { bad = bad "\n  " $1 ": passes, and docs/cases.md says: " says[$1]; next }
	{ bad = bad "\n  " $1 ": fails: " $3 }
	END {
		printf "%s, %s: %d hold:%s\n", mode, kernel, passed, good
		if (cannot) printf "%s, %s: cannot, as docs/cases.md says:%s\n", mode, kernel, cannot
		if (mostly) printf "%s, %s: mostly, as docs/cases.md says:%s\n", mode, kernel, mostly
		if (skipped) printf "%s: skipped:%s\n", mode, skipped
		if (bad) printf "%s: not as docs/cases.md says:%s\n", mode, bad
		exit bad != "" || passed == 0
	}' docs/cases.md "$work/$1.results"
}

# records MODE counts what trace verify said of the records that the cases left.
records() {
	awk -F '\t' -v mode="$1" '{ sub(/:.*/, "", $2); n[$1 " " $2]++ } END {
		printf "%s: records by verdict:", mode
		for (v in n) { split(v, w, " "); printf " %d %s (%s);", n[v], substr(v, length(w[1]) + 2), w[1]; if (w[1] > 1) bad = 1 }
		printf "\n"
		exit bad
	}' "$work/$1.verdicts"
}

[[ " $* " != *" helper"* ]] || serve
pids=()
for arg; do
	cases=${arg#*=}
	[[ $arg == *=* ]] || cases=''
	lane "${arg%%=*}" "$cases" &
	pids+=($!)
done
wait "${pids[@]}"
status=0
for arg; do
	mode=${arg%%=*}
	[[ -z ${AG_CASES_VERBOSE:-} ]] || cat "$work/$mode.log"
	judge "$mode" || status=1
	records "$mode" || status=1
done
exit "$status"
