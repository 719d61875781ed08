#!/bin/bash
# As cases-adapter.sh, but the case runs for an ordinary user through the privileged helper. The
# runner is root's, and starts a helper in whatever namespaces the case is to see as the host's;
# the records are copied to where the runner looks for them. AG_UID is the user (default 424203).
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${AGENTGUARD:-$here/../bin/agentguard} uid=${AG_UID:-424203}
work=$(mktemp -d /tmp/agentguard-cases.XXXXXX) && chmod 755 "$work"
chown -R "$uid:$uid" "$AG_WS"
(
	for fd in /proc/self/fd/*; do # what the case leaves open is for the command, not for the helper
		fd=${fd##*/}
		((fd > 2)) && eval "exec $fd>&-"
	done 2>/dev/null
	exec env -i PATH="$PATH" "$bin" helper --socket "$work/socket"
) </dev/null >/dev/null 2>"$work/log" &
helper=$!
for _ in {1..200}; do
	[[ -S $work/socket ]] && break
	sleep 0.05
done
export AG_USER=$uid AGENTGUARD_SOCKET=$work/socket AGENTGUARD=$bin
setpriv --reuid="$uid" --regid="$uid" --clear-groups "$here/cases-adapter.sh" "$@"
status=$?
kill "$helper" && wait "$helper"
cp -a "/var/lib/agentguard/users/$uid/." "$AG_TRACE/" 2>/dev/null
rm -rf "/var/lib/agentguard/users/$uid" "$work"
exit $status
