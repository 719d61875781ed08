#!/bin/bash
# Runs everyday tools inside, in each mode of the workspace, and writes docs/compat.md from
# what happened.
#   .ci/compat.sh [ROW...]  all rows, or these by name: the others stay as the document has them
# It fails when a row did not come out as it is stated here. A tool that the machine lacks is
# said to be missing: .ci/deps.sh compat installs what Debian has, npm the rest.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
top=$PWD
ag=${AGENTGUARD:-$top/bin/agentguard}
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
only=" $* "
bad=0
table=$work/table
: >"$table"
export LC_ALL=C.UTF-8 GOTOOLCHAIN=local

# once NAME FLAGS MODE SCRIPT runs the script in a fresh copy of the row's directory. MODE
# native is without agentguard.
once() {
	local dir=$work/run mode=$3
	rm -rf "$dir"
	cp -a "$work/base" "$dir"
	cd "$dir" || return 1
	if [[ $mode == native ]]; then
		timeout 300 bash -euo pipefail -c "$4"
	else
		# shellcheck disable=SC2086 # FLAGS are words
		timeout 300 "$ag" exec -q --state "$work/state" --mode "$mode" --stdout none $2 -- bash -euo pipefail -c "$4"
	fi >"$work/log" 2>&1 </dev/null
	local status=$?
	cd "$top" || exit 1
	return $status
}

# row NAME WANT VERSION FLAGS WHAT SCRIPT
#   WANT     yes: works untouched; flag: needs FLAGS; no: is refused, and must be. ",user": does
#            not run as root, so that root does not try it outside; ",spare": it may be missing,
#            and then the table says that it was not tried
#   VERSION  a command that prints it, or fails where the tool is missing
# The row's files are what `setup` has put into $work/base.
row() {
	local name=$1 want=$2 version=$3 flags=$4 what=$5 script=$6 got cells='' mode cow=''
	if [[ $only != "  " && $only != *" $name "* ]]; then
		keep "$name"
		return
	fi
	if ! got=$(bash -c "$version" 2>"$work/err"); then
		echo "missing  $name"
		[[ $want == no || $want == *,spare ]] || bad=1
		[[ $want != *,spare ]] || grep -q "^| $name |" docs/compat.md || untried "$name" "$what" "$flags"
		keep "$name"
		return
	fi
	if [[ $want != no && ($want != *,user || $EUID != 0) ]] && ! once "$name" '' native "$script"; then
		echo "NATIVE   $name fails without agentguard:"
		sed 's/^/    /' "$work/log" | tail -n 20
		bad=1
		keep "$name"
		return
	fi
	[[ -n $got ]] || got=$(<"$work/err")
	want=${want%,*} got=$(sed 's/\x1b[^m]*m//g' <<<"$got" | grep -oE '[0-9][0-9A-Za-z.+~-]*' | head -n 1)
	for mode in cow rw ro; do
		local cell=no
		if once "$name" '' "$mode" "$script"; then
			cell=yes
		elif [[ $mode == cow ]]; then
			cp "$work/log" "$work/first"
		fi
		# shellcheck disable=SC2031
		if [[ $cell == no && -n $flags ]] && once "$name" "$flags" "$mode" "$script"; then
			cell=flag
		fi
		[[ $mode != cow ]] || cow=$cell
		cells+=" | $cell"
	done
	if [[ $cow != "$want" ]]; then
		echo "WRONG    $name: $cow in cow mode, and not $want:"
		sed 's/^/    /' "$work/first" "$work/log" 2>/dev/null | tail -n 40
		bad=1
	else
		echo "ok       $name ($cow)"
	fi
	printf '| %s | %s | %s%s | %s |\n' "$name" "${got//|/\/}" "$what" "$cells" "$(shown "$flags")" >>"$table"
	fresh
}

# keep NAME leaves the row as the document has it.
keep() {
	grep "^| $1 |" docs/compat.md >>"$table"
	fresh
}

# untried NAME WHAT FLAGS adds the row of a tool that is not to be had here.
untried() {
	printf '| %s | | %s | not tried | not tried | not tried | %s |\n' "$1" "$2" "$(shown "$3")" >>"$table"
}

# shown FLAGS: the policy file by what it says.
shown() {
	case $1 in
	'') ;;
	*/ptrace.yaml) echo '`process.seccomp_allow: [ptrace]`' ;;
	*) echo "\`$1\`" ;;
	esac
}

fresh() {
	rm -rf "$work/base"
	mkdir "$work/base"
}
fresh
file() { # file PATH: its text on stdin
	mkdir -p "$(dirname "$work/base/$1")"
	cat >"$work/base/$1"
}

.ci/deps.sh compat || exit 1
[[ -x $ag ]] || make --no-print-directory build || exit 1
# Package managers that Debian does not have come from npm and PyPI, to a directory like a user's own.
npm install --silent --no-audit --no-fund --prefix "$work/npm" pnpm@10 yarn@1 >/dev/null 2>&1 || echo "compat.sh: pnpm and yarn are not to be had" >&2
{ python3 -m venv "$work/uv" && "$work/uv/bin/pip" install -q uv; } >/dev/null 2>&1 || echo "compat.sh: uv is not to be had" >&2
mkdir "$work/bin"
[[ ! -e $work/uv/bin/uv ]] || cp "$work/uv/bin/uv" "$work/bin" # alone: the python beside it is not the machine's
export PATH=$PATH:$work/npm/node_modules/.bin:$work/bin

cat >"$work/ptrace.yaml" <<'EOF'
sandbox:
  filesystem: {workspace: {path: run}}
  process: {seccomp_allow: [ptrace]}
EOF

# shellcheck source=/dev/null
. .ci/compat-rows.sh

{
	sed '/^| tool /,$d' docs/compat.md
	printf '| tool | version | what was run | cow | rw | ro | flags |\n|---|---|---|---|---|---|---|\n'
	cat "$table"
} >"$work/compat.md"
cp "$work/compat.md" docs/compat.md
exit $bad
