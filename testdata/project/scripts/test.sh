#!/bin/bash
# Tests of the scripts, in TAP. Each runs in a temporary directory of its own.
set -u
here=$(cd "$(dirname "$0")" && pwd)
count=0 failed=0
check() { # check NAME: runs test_NAME in a subshell that stops at the first failure
	count=$((count + 1))
	local dir out
	dir=$(mktemp -d)
	if out=$(cd "$dir" && set -e && "test_$1" 2>&1); then
		echo "ok $count - $1"
	else
		failed=$((failed + 1))
		echo "not ok $count - $1"
		printf '%s\n' "$out" | sed 's/^/# /'
	fi
	rm -rf "$dir"
}

test_rotate() {
	printf 'one\n' >log && "$here/rotate.sh" log 2
	printf 'two\n' >log && "$here/rotate.sh" log 2
	printf 'three\n' >log && "$here/rotate.sh" log 2
	[ ! -s log ] && [ "$(zcat log.1.gz log.2.gz | tr '\n' ' ')" = "three two " ] && [ ! -e log.3.gz ]
}

test_rotate_missing() {
	! "$here/rotate.sh" none 2>err && grep -q 'no such file' err
}

test_release() {
	export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
	git init -q repo
	echo 1 >repo/f
	[ "$("$here/release.sh" "$PWD/repo" v1.0.0)" = v1.0.0 ]
	echo 2 >repo/f
	"$here/release.sh" "$PWD/repo" v1.1.0
	[ "$(git -C repo log --format=%s | tr '\n' ' ')" = "Release v1.1.0 Release v1.0.0 " ]
	git -C repo fsck --strict
}

test_release_bad_version() {
	"$here/release.sh" "$PWD" latest && return 1 || [ $? = 2 ]
}

test_plumbing() { # what shells need of the system: fifo, substitution, here-document, background job
	mkfifo fifo
	(echo through >fifo) &
	[ "$(cat fifo)" = through ] && wait
	[ "$(sort <(echo b) <(echo a) | tr -d '\n')" = ab ]
	[ "$(cat <<-EOF
		here
	EOF
	)" = here ]
	sleep 30 & kill $!
	local status=0
	wait $! || status=$?
	[ $status = 143 ]
}

for name in rotate rotate_missing release release_bad_version plumbing; do check $name; done
echo "1..$count"
[ $failed = 0 ]
