#!/bin/bash
# Installs the Debian packages that a task needs and this machine lacks.
#   .ci/deps.sh TASK...     tasks: demo test clients check generate race bench bench-record cases compat
# Nothing is touched when all is there. Without root it only says what to install. Go is
# taken as given: Debian's own is older than go.mod asks for.
set -euo pipefail

# PROGRAM:PACKAGE, for each task. A file instead of a program begins with "/". PACKAGE? is one
# that the task does without where it is not to be had.
needs() {
	case $1 in
	demo) echo git:git python3:python3 gzip:gzip ;;
	test) echo git:git python3:python3 gzip:gzip strace:strace make:make gcc:gcc /usr/include/stdio.h:libc6-dev setpriv:util-linux ip:iproute2 vim:vim less:less top:procps pgrep:procps mkfs.xfs:xfsprogs? mkfs.btrfs:btrfs-progs? bindfs:bindfs? ;;
	clients) echo /usr/lib/python3/dist-packages/requests:python3-requests curl:curl wget:wget pip3:python3-pip node:nodejs npm:npm javac:default-jdk-headless psql:postgresql-client /usr/lib/postgresql:postgresql redis-cli:redis-tools redis-server:redis-server musl-gcc:musl-tools ssh:openssh-client /usr/sbin/sshd:openssh-server ;;
	check) echo git:git shellcheck:shellcheck ;;
	generate) echo clang-19:clang-19 ld.lld-19:lld-19 llvm-strip-19:llvm-19 ;;
	race) echo gcc:gcc /usr/include/stdio.h:libc6-dev ;;
	bench) echo bwrap:bubblewrap ;;
	bench-record) echo strace:strace gcc:gcc make:make /usr/include/stdio.h:libc6-dev git:git python3:python3 node:nodejs bpftrace:bpftrace? ;;
	cases) echo python3:python3 gcc:gcc /usr/include/stdio.h:libc6-dev git:git make:make setsid:util-linux ps:procps ;;
	compat) echo git:git node:nodejs npm:npm python3:python3 /usr/lib/python3/dist-packages/pytest:python3-pytest jupyter-execute:python3-nbclient /usr/lib/python3/dist-packages/ipykernel:python3-ipykernel cargo:cargo gcc:gcc make:make javac:default-jdk-headless mvn:maven ruby:ruby perl:perl sqlite3:sqlite3 /usr/lib/postgresql:postgresql psql:postgresql-client redis-server:redis-server redis-cli:redis-tools tmux:tmux vim:vim less:less top:procps htop:htop script:bsdutils ssh-keygen:openssh-client jq:jq zip:zip gdb:gdb strace:strace chromium:chromium curl:curl docker:docker.io sudo:sudo ping:iputils-ping ;;
	*) echo "deps.sh: no task $1" >&2; exit 2 ;;
	esac
}

have() {
	case $1 in
	/*) [[ -e $1 ]] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

missing() {
	local task pair
	for task in "$@"; do
		for pair in $(needs "$task"); do
			have "${pair%%:*}" || echo "${pair##*:}"
		done
	done | sort -u
}

command -v go >/dev/null || { echo "deps.sh: no go on PATH: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }
for task in "$@"; do needs "$task" >/dev/null; done
mapfile -t all < <(missing "$@")
want=() spare=()
for package in "${all[@]}"; do
	if [[ $package == *'?' ]]; then spare+=("${package%'?'}"); else want+=("$package"); fi
done
((${#all[@]})) || exit 0
if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
	((${#want[@]})) || exit 0
	echo "deps.sh: missing packages (Debian's names): ${want[*]}; as root: apt-get install ${want[*]}" >&2
	exit 1
fi
echo "deps.sh: installing ${want[*]} ${spare[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
if [[ ! -e /usr/sbin/policy-rc.d ]]; then # the tests start the servers that they need; nothing else does
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq || ((${#want[@]} == 0))
((${#want[@]} == 0)) || apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null
for package in "${spare[@]}"; do
	apt-get install -y -qq --no-install-recommends "$package" >/dev/null || echo "deps.sh: no $package to be had: what needs it is left out" >&2
done
mapfile -t want < <(missing "$@" | grep -v '?$')
((${#want[@]} == 0)) || { echo "deps.sh: still missing after apt-get install: ${want[*]}" >&2; exit 1; }
