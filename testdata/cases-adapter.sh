#!/bin/bash
# Adapter for a runner of confinement cases: turns its neutral policy words into agentguard's
# flags and becomes `agentguard exec`, with the case as the command. It reads
#   AG_POLICY  words joined by "; ", AG_WS workspace, AG_RO readable tree, AG_TRACE where the
#   record goes (AG_STATE: elsewhere; empty: where it goes by default); AGENTGUARD the binary
#   (default: bin/agentguard of this tree); AG_FLAGS more flags for exec, AG_WORKSPACE
#   the workspace's mode where a word does not say (default: cow).
# No gap is accepted here that no word names: what cannot be enforced makes the run fail, as it should.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${AGENTGUARD:-$here/../bin/agentguard}
mode=${AG_WORKSPACE:-cow} commit=success # what a run writes is committed when it succeeds, but for protected paths
path=/usr/local/bin:/usr/bin:/bin
home=()
read -ra flags <<<"${AG_FLAGS:-}"

IFS=';' read -ra words <<<"$AG_POLICY"
for word in "${words[@]}"; do
	word=${word# }
	value=${word#*=}
	case $word in
	base | env=empty | fds=0,1,2 | tmp=private | listen=none | hide=ungranted | net=none | net=allow) ;; # what a run is anyway
	trace=on | tty=yes | protect=* | exec=system-only | families=*) ;;      # likewise
	stdout=safe-for-terminal) flags+=(--tty never) ;; # text and colours; a terminal of its own lets through what editors need
	home=WS | "home=$AG_WS") home=(--env "HOME=$AG_WS") ;;
	ro=/usr/local/go) flags+=(--ro "$value") path=/usr/local/go/bin:$path ;;
	ro=*) flags+=(--ro "$value") ;;
	allow=udp:*) flags+=(--allow "udp://${value#udp:}") ;;
	allow=*) flags+=(--allow "$value") ;;
	resolve=*) flags+=(--resolve "${value/>/=}") ;;
	mem=*) flags+=(--memory "$value") ;;
	cpu=*) flags+=(--cpu "$value") ;;
	wall=*) flags+=(--wall "$value") ;;
	procs=*) flags+=(--pids "$value") ;;
	fsize=*) flags+=(--file-size "$value") ;;
	disk=*) flags+=(--output "$value") ;;
	files=*) flags+=(--files "$value") ;;
	out=*) flags+=(--stdout "$value") ;;
	overlay=*) mode=cow ;;
	commit=no) commit=never ;;
	commit=yes) ;;
	gap=*) flags+=(--allow-gap "$value") ;;
	collect=*) flags+=(--collect "$value") ;;
	*) echo "cases-adapter.sh: no such policy word: $word" >&2; exit 125 ;;
	esac
done

state=${AG_STATE-$AG_TRACE}
[[ -z $state ]] || flags+=(--state "$state")
# LANG and TERM are for the command; everything else of this environment stays here.
exec "$bin" exec -q -w "$AG_WS" --mode "$mode" --commit "$commit" --ro "$AG_RO" \
	--env "PATH=$path" --env LANG=C.UTF-8 --env "TERM=${TERM:-dumb}" "${home[@]}" "${flags[@]}" -- "$@"
