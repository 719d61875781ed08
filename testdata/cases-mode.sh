#!/bin/bash
# Runs one confinement case in the mode that AG_MODE names, by cases-adapter.sh, which see:
#   root     in process
#   helper   as an ordinary user (AG_UID, default 424203) through the privileged helper. Its socket is
#            AG_HELPER; where there is none, or where the case has a network of its own for the host's,
#            a helper is started here
#   userns   as that user, without a helper
#   landlock as that user, without a helper and where nobody may make a user namespace
# The runner is root's: what a user's run recorded is copied to where the runner looks for it. The
# verdict of `trace verify` on the record becomes a line of the file AG_VERDICTS.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${AGENTGUARD:-$here/../bin/agentguard} uid=${AG_UID:-424203} mode=${AG_MODE:-root}
export AGENTGUARD=$bin

as_user() { setpriv --reuid="$uid" --regid="$uid" --clear-groups "$@"; }

# as_cornered is as_user in a user namespace where everybody is who he is, and which may have no other.
as_cornered() {
	if [[ $(</proc/sys/user/max_user_namespaces) == 0 ]]; then
		as_user "$@"
		return
	fi
	python3 -c '
import ctypes, os, sys
me, (r, w) = os.getpid(), os.pipe()
child = os.fork()
if child == 0: # from outside it may write the maps
    os.read(r, 1)
    for name in "uid_map", "gid_map":
        open(f"/proc/{me}/{name}", "w").write("0 0 4294967295")
    os._exit(0)
if ctypes.CDLL(None).unshare(0x10000000): # CLONE_NEWUSER
    sys.exit("unshare failed")
os.write(w, b"x")
os.waitpid(child, 0)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])' "$uid" "$@"
}

# verdict CMD... notes what a `trace verify` of the case's record says.
verdict() {
	[[ -n ${AG_VERDICTS:-} ]] || return 0
	local said rc
	said=$("$@" 2>&1 </dev/null)
	rc=$?
	[[ $said != "agentguard: there is no run in "* ]] || { rc=0 said='never started'; } # refused, as the case's own result says
	printf '%s\t%s\n' "$rc" "${said%%$'\n'*}" >>"$AG_VERDICTS"
}

# serve starts a helper in the namespaces that the case is to see as the host's.
serve() {
	work=$(mktemp -d /tmp/agentguard-cases.XXXXXX) && chmod 755 "$work"
	(
		for fd in /proc/self/fd/*; do # what the case leaves open is for the command, not for the helper
			fd=${fd##*/}
			((fd > 2)) && eval "exec $fd>&-"
		done 2>/dev/null
		exec env -i PATH="$PATH" "$bin" helper --socket "$work/socket"
	) </dev/null >/dev/null 2>"$work/log" &
	helper=$!
	for _ in {1..600}; do
		[[ -S $work/socket ]] && break
		sleep 0.05
	done
	AG_HELPER=$work/socket
}

case $mode in
root)
	"$here/cases-adapter.sh" "$@"
	status=$?
	verdict "$bin" trace verify --state "$AG_TRACE" last
	;;
helper)
	helper='' work=''
	chown -R "$uid:$uid" "$AG_WS"
	[[ -S ${AG_HELPER:-} && ${AG_HELPER_NET:-} == "$(readlink /proc/self/ns/net)" ]] || serve
	export AGENTGUARD_SOCKET=$AG_HELPER AG_STATE='' # of a user's runs the helper keeps the records
	as_user "$here/cases-adapter.sh" "$@"
	status=$?
	if [[ $(</proc/sys/user/max_user_namespaces) != 0 ]]; then
		verdict as_user "$bin" trace verify last
	else # no mount by which the user could read it (decision 0027)
		verdict "$bin" trace verify --state "/var/lib/agentguard/users/$uid" last
	fi
	[[ -z $helper ]] || { kill "$helper" && wait "$helper"; }
	cp -a "/var/lib/agentguard/users/$uid/." "$AG_TRACE/" 2>/dev/null
	rm -rf "/var/lib/agentguard/users/$uid" ${work:+"$work"}
	;;
userns | landlock)
	chown -R "$uid:$uid" "$AG_WS" "$AG_TRACE"
	if [[ $mode == userns ]]; then
		AG_FLAGS=--without-helper as_user "$here/cases-adapter.sh" "$@"
	else # nothing can be staged here
		AG_FLAGS='--without-helper --allow-gap landlock' AG_WORKSPACE=rw as_cornered "$here/cases-adapter.sh" "$@"
	fi
	status=$?
	verdict as_user "$bin" trace verify --state "$AG_TRACE" last
	;;
*)
	echo "cases-mode.sh: no such mode: $mode" >&2
	status=125
	;;
esac
exit "$status"
