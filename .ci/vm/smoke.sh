#!/usr/bin/env bash
# smoke.sh runs inside the guest, as root, from test-vm.sh. TAP-like: "ok N - name", "not ok N - name" (with the
# case's output as "# " lines before it), "ok N - name # SKIP why", and last the count that test-vm.sh insists on.
#
#   SMOKE_RELEASE   the kernel release that must be running
#   SMOKE_BIN       the agentguard binary; empty while cmd/agentguard has no code: its cases are skipped, loudly
#   SMOKE_CASES     the confinement cases (docs/cases.md); empty where they are not to be had
#   SMOKE_TESTS     directory with Go test binaries and "manifest" (binary, package directory, tests: a regular
#                   expression or nothing for all; tabs between)
# The working directory is the repository. For the Go tests, AGENTGUARD_TEST_SEAM_BINARY is a build with that tag and
# AGENTGUARD_TEST_PROGRAMS the directory of the binary.
#
# A case is a function whose status decides: 0 good, 77 skip (reason on its last line), else bad.
set -uo pipefail

count=0 failed=0 skipped=0
work=$(mktemp -d /var/tmp/smoke.XXXXXX) # what cases keep for each other; outside what case_nothing_left looks at

# run_case NAME FUNCTION ARG...: the output goes to a file and not through a pipe, which a process that a case left
# behind would keep open for ever.
run_case() {
  local name=$1 status start=$SECONDS
  shift
  count=$((count + 1))
  (
    set -e
    "$@"
  ) >"$work/output" 2>&1 </dev/null
  status=$?
  ((SECONDS - start < 5)) || name+=" ($((SECONDS - start)) s)"
  case $status in
  0)
    sed -n 's/^note: /# /p' "$work/output"
    echo "ok $count - $name"
    ;;
  77)
    skipped=$((skipped + 1))
    echo "ok $count - $name # SKIP $(tail -n 1 "$work/output")"
    ;;
  *)
    failed=$((failed + 1))
    tail -n 60 "$work/output" | cut -c -240 | sed 's/^/# /'
    echo "not ok $count - $name (status $status)"
    ;;
  esac
}

# await SECONDS CMD... until CMD succeeds. The time only ends a hang: this machine may stand still for seconds.
await() {
  local until=$((SECONDS + $1))
  shift
  while ! "$@"; do
    ((SECONDS < until)) || { echo "waited in vain: $*" && return 1; }
    sleep 0.1
  done
}

# expect WANT GOT WHAT fails the case with a sentence.
expect() {
  [[ $1 == "$2" ]] && return 0
  echo "$3: got '$2', want '$1'"
  return 1
}

# ---------------------------------------------------------------------------------------------------------------------
# The guest itself: were these wrong, the cases below would prove nothing.

guest_kernel() { expect "$SMOKE_RELEASE" "$(uname -r)" "running kernel"; }

guest_cgroup_v2() {
  local c
  expect cgroup2fs "$(stat -f -c %T /sys/fs/cgroup)" "/sys/fs/cgroup"
  expect "" "$(awk '$3 == "cgroup"' /proc/mounts)" "cgroup v1 mounts"
  for c in cpu memory pids; do
    grep -qw "$c" /sys/fs/cgroup/cgroup.controllers || { echo "no controller $c" && return 1; }
  done
}

guest_btf() { [[ -s /sys/kernel/btf/vmlinux ]]; }

# The Landlock ABI each kernel brings at least (kernel version where it came: Documentation/userspace-api/landlock.rst).
guest_landlock() {
  local abi want=0 version entry
  version=$(uname -r | cut -d. -f1,2)
  for entry in 6.1:2 6.7:4 6.10:5 6.12:6 6.15:7 7.0:8 7.1:9 7.2:10 7.3:11; do
    if printf '%s\n' "${entry%:*}" "$version" | sort -VC; then want=${entry#*:}; fi
  done
  # landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION)
  abi=$(python3 -c 'import ctypes; print(ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1))')
  ((abi >= want)) || { echo "Landlock ABI $abi, want at least $want on $version" && return 1; }
}

guest_lsm() {
  local lsm
  for lsm in landlock bpf; do
    grep -qE "(^|,)$lsm(,|\$)" /sys/kernel/security/lsm || { cat /sys/kernel/security/lsm && return 1; }
  done
}

guest_host_tools() {
  expect 4 "$(python3 -c 'print(2 + 2)')" python3
  expect 5 "$(bash -c 'echo $((2 + 3))')" bash
  git init -q /tmp/guest-git
  git -C /tmp/guest-git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first
  expect first "$(git -C /tmp/guest-git log --format=%s)" "git log"
}

# The host's files can be written here, but only here.
guest_root_is_private() {
  echo changed >/etc/agentguard-vm-marker
  mkdir -p /tmp/hostroot
  mount -t virtiofs hostroot /tmp/hostroot
  [[ ! -e /tmp/hostroot/etc/agentguard-vm-marker ]]
  if touch /tmp/hostroot/etc/agentguard-vm-marker 2>/dev/null; then echo "the host's root is writable" && return 1; fi
  umount /tmp/hostroot
}

guest_loopback() {
  python3 - <<'EOF'
import socket
s = socket.create_server(("127.0.0.1", 0))
socket.create_connection(s.getsockname(), timeout=5).close()
EOF
}

# An ext4 for workspaces: the guest's root is an overlay, which no kernel before 7.x can map ids on.
guest_scratch() {
  mkdir -p "$scratch"
  truncate -s 256M /tmp/scratch.img # the file systems that tests make lie in it
  mkfs.ext4 -q /tmp/scratch.img
  mount -o loop /tmp/scratch.img "$scratch"
}

scratch=/mnt/scratch

run_case "guest: kernel $SMOKE_RELEASE" guest_kernel
run_case "guest: pure cgroup v2 with cpu, memory, pids" guest_cgroup_v2
run_case "guest: BTF" guest_btf
run_case "guest: Landlock ABI" guest_landlock
run_case "guest: landlock and bpf in the LSM list" guest_lsm
run_case "guest: the host's python3, bash, git run" guest_host_tools
run_case "guest: the host's root cannot be written" guest_root_is_private
run_case "guest: loopback is up" guest_loopback
run_case "guest: ext4 scratch" guest_scratch

# ---------------------------------------------------------------------------------------------------------------------
# The Go tests of the packages that talk to the kernel.

# go_test BINARY DIR TESTS: under emulation everything is 10-18 times slower, hence -short. The guest has all that is
# required below: a skip for want of it fails. Other skips are shown, and what takes more than ten seconds.
go_test() {
  local status=0
  [[ -x $SMOKE_TESTS/$1 ]] || { echo "$1 was not built" && return 1; }
  cd "$2"
  AGENTGUARD_TEST_REQUIRE=root,cgroup,bpf,landlock,userns,strace,python3,gcc,make,loop AGENTGUARD_TEST_DISK=$scratch \
    "$SMOKE_TESTS/$1" -test.v -test.short -test.run="$3" -test.timeout=600s >"$work/go_test" 2>&1 || status=$?
  sed -n 's/^ *--- SKIP: /note: skipped: /p; s/^--- PASS: \(.* ([1-9][0-9]\+\.[0-9]*s)\)$/note: slow: \1/p' "$work/go_test"
  # Of each test that passed, nothing; what is left at the end is a panic's or a timeout's.
  awk '/^ +--- PASS/ { next } /^=== RUN +[^\/]+$/ { block = "" } { block = block $0 "\n" }
    /^--- (PASS|SKIP)/ { block = "" } /^--- FAIL/ { printf "%s", block; block = "" } END { printf "%s", block }' "$work/go_test"
  return "$status"
}

if [[ -n ${SMOKE_TESTS:-} ]]; then
  while IFS=$'\t' read -r binary dir tests; do
    run_case "go test $dir${tests:+ $tests}" go_test "$binary" "$dir" "$tests"
  done <"$SMOKE_TESTS/manifest"
fi

# ---------------------------------------------------------------------------------------------------------------------
# agentguard: the main job, a dozen cases. The full set is the business of the script tests and of shared cases on a
# development machine; here is what differs by kernel and by cgroup layout.

state=$work/state
workspace=$scratch/work
run_seconds=60 # no case may hang the boot

# ag FLAGS... -- CMD...: one run in the root-owned workspace, which is writable.
ag() { timeout -k 2 "$run_seconds" "$SMOKE_BIN" exec --state "$state" --mode rw -w "$workspace" "$@"; }

# status CMD... prints the exit status and nothing else on stdout.
status() {
  local s=0
  "$@" >&2 || s=$?
  echo "$s"
}

# bpf_objects prints how many BPF programs, maps and links there are (BPF_*_GET_NEXT_ID of bpf(2)).
bpf_objects() {
  python3 - <<'EOF'
import ctypes, struct
libc = ctypes.CDLL(None)
for name, command in ("programs", 11), ("maps", 12), ("links", 31):
    attr, n = ctypes.create_string_buffer(16), 0
    while libc.syscall(321, command, attr, 16) == 0:
        last = struct.unpack_from("I", attr, 4)[0]
        struct.pack_into("II", attr, 0, last, 0)
        n += 1
    print("bpf", name, n)
EOF
}

# debris prints what a run could leave: cgroups, mounts, processes (kernel threads aside), BPF objects, runtime files.
debris() {
  bpf_objects
  find /sys/fs/cgroup -mindepth 1 -type d -not -name 'agentguard*-net' | sort # which the first run with an allowlist makes
  awk '{ print "mount", $5 }' /proc/self/mountinfo | sort
  ps -e -o ppid=,comm= | awk '$1 != 2 && $2 !~ /^(ps|awk|sort|bash|smoke.sh)$/ { print "process", $2 }' | sort
  find /run /tmp /dev/shm -mindepth 1 -not -path '/run/agentguard/bpf/*' -not -path '/run/agentguard/code/*' 2>/dev/null | sed 's/^/file /' | sort
}

# The first run makes what stays for all later ones (parent cgroup, bpffs with the pinned programs): the base line for
# case_nothing_left is taken after it, when what it gave back has gone: the kernel frees BPF objects some time after
# their last user, a program after its link and a map after its program. What were counted on the way would be missed.
case_true() {
  local start=$SECONDS run_seconds=120 same=0 # it takes all programs through the verifier
  ag -- /bin/true || {
    ((SECONDS - start < run_seconds)) || touch "$work/hung"
    return 1
  }
  debris >"$work"/debris.before
  for _ in {1..30}; do
    sleep 1
    debris >"$work"/debris.now
    if cmp -s "$work"/debris.before "$work"/debris.now; then same=$((same + 1)); else same=0; fi
    mv "$work"/debris.now "$work"/debris.before
    ((same < 2)) || return 0
  done
  echo "what the machine holds does not come to rest" && return 1
}

case_exit_status() { expect 42 "$(status ag -- sh -c 'exit 42')" "exit status"; }

case_env() {
  local out
  out=$(API_TOKEN=sesame ag -- env)
  if grep -qi sesame <<<"$out"; then echo "the token came through: $out" && return 1; fi
  grep -q '^PATH=' <<<"$out"
}

# Cases of refusal print a word from inside: a run that did not start at all must not pass for one that was refused.
case_shadow() {
  expect refused "$(ag -- sh -c 'if cat /etc/shadow >/dev/null; then echo read; else echo refused; fi')" "/etc/shadow"
}

# The pattern's bracket keeps grep from finding itself.
case_host_pid() {
  local pid seen
  sleep 98765.4321 >/dev/null 2>&1 &
  pid=$!
  await 60 grep -qs '98765[.]4321' "/proc/$pid/cmdline" # until its execve it has the shell's
  seen=$(ag -- sh -c "grep -las '98765[.]4321' /proc/[0-9]*/cmdline || echo unseen") || true
  kill "$pid"
  expect unseen "$seen" "a host process"
}

# Copy on write: changes are seen inside and nowhere else.
case_cow() {
  mkdir -p "$workspace/cow/d" && echo old >"$workspace/cow/d/f"
  local seen
  seen=$(timeout -k 2 "$run_seconds" "$SMOKE_BIN" exec --state "$state" --mode cow -w "$workspace/cow" -- \
    sh -c 'mv d e && echo new >e/f && rm -f e/g && cat e/f && ls')
  expect "new e" "$(tr '\n' ' ' <<<"$seen" | sed 's/ $//')" "inside"
  expect old "$(cat "$workspace/cow/d/f")" "outside"
}

# errno_of BODY prints a program that runs the Python statement BODY and prints "success" or the error's name.
errno_of() {
  cat <<EOF
import ctypes, errno, os, socket
def call(number, *args):
    if ctypes.CDLL(None, use_errno=True).syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "syscall")
try:
    $1
    print("success")
except OSError as e:
    print(errno.errorcode.get(e.errno, e))
EOF
}

# expect_refused BODY: EPERM inside and not outside, else the case would pass on a kernel that refuses it to everybody.
# What the kernel does not have at all (UDP-Lite is gone in 7.x) may show as that.
expect_refused() {
  local outside inside
  outside=$(python3 -c "$(errno_of "$1")")
  inside=$(ag -- python3 -c "$(errno_of "$1")")
  if [[ $outside == EPERM ]]; then echo "EPERM even outside" && return 1; fi
  [[ $outside == EPROTONOSUPPORT && $inside == EPROTONOSUPPORT ]] || expect EPERM "$inside" "$1"
}

case_tcp_connect() { expect_refused 'socket.create_connection(("192.0.2.1", 80), timeout=5)'; }
case_udp_send() { expect_refused 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))'; }
case_udplite() { expect_refused 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)'; }
# io_uring_setup(1, NULL) is EFAULT where it is allowed.
case_io_uring() { expect_refused 'call(425, 1, None)'; }

# A name that leads to the guest's own loopback is reached on the allowed port, by both families, and nothing else is.
case_allowlist() {
  : >"$work/port" # the server may open it later than it is looked at
  python3 - <<'EOF' >"$work/port" &
import socket
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(8); l.settimeout(300); print(l.getsockname()[1], flush=True)
while True:
    c = l.accept()[0]; c.sendall(b"reached"); c.close()
EOF
  local server=$! port got
  await 60 test -s "$work/port"
  port=$(cat "$work/port")
  printf 'sandbox:\n  filesystem: {workspace: {path: .}}\n  network: {allowlist: ["db.example.com:%s"], allow_private: [db.example.com], resolve: {db.example.com: 127.0.0.1}}\n' \
    "$port" >"$workspace/allow.yaml"
  got=$(ag -p "$workspace/allow.yaml" -- python3 -c '
import errno, socket, sys
port = int(sys.argv[1])
def go(host, p, fam=socket.AF_INET):
    s = socket.socket(fam); s.settimeout(20)
    try: s.connect((socket.getaddrinfo(host, p, fam)[0][4][0], p)); return s.recv(9).decode()
    except socket.gaierror: return "unknown"
    except OSError as e: return errno.errorcode.get(e.errno, e)
print(go("db.example.com", port), go("db.example.com", port, socket.AF_INET6), go("db.example.com", port + 1), go("other.example.com", port), go("127.0.0.1", port))
' "$port") || true
  kill "$server"
  expect "reached reached EPERM unknown ECONNREFUSED" "$got" "what was reached"
}

case_memory_limit() {
  expect 137 "$(status ag --memory 96M -- python3 -c 'b = bytearray(400 << 20); print(len(b))')" "exit status"
}

case_pids_limit() {
  local out
  out=$(ag --pids 12 -- python3 -c '
import errno, os, signal, time
children = []
try:
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        children.append(pid)
    print("no limit")
except OSError as e:
    print(errno.errorcode[e.errno], 5 < len(children) <= 12)
for pid in children:
    os.kill(pid, signal.SIGKILL)
')
  expect "EAGAIN True" "$out" "fork"
}

# ag's own time limit gives 124 too, hence the look at the clock.
case_wall_limit() {
  local start=$SECONDS
  expect 124 "$(status ag --wall 2s -- sleep 100)" "exit status"
  ((SECONDS - start < run_seconds / 2)) || { echo "took $((SECONDS - start)) s" && return 1; }
}

# The workspace is root's: the command has a uid of its own and the mount maps it back.
# shellcheck disable=SC2016 # for the inner shell
case_workspace_root() {
  ag -- sh -c 'test "$(id -u)" != 0 && echo hello >made'
  expect "hello" "$(cat "$workspace/made")" "contents"
  expect "0:0" "$(stat -c %u:%g "$workspace/made")" "owner"
}

case_workspace_user() {
  mkdir -p "$scratch/user"
  chown 1234:1234 "$scratch/user"
  timeout "$run_seconds" "$SMOKE_BIN" exec --state "$state" --mode rw -w "$scratch/user" -- sh -c 'echo hello >made'
  expect "1234:1234" "$(stat -c %u:%g "$scratch/user/made")" "owner"
}

case_workspace_ro() {
  local out
  out=$(timeout "$run_seconds" "$SMOKE_BIN" exec --state "$state" --mode ro -w "$workspace" -- \
    sh -c 'if (echo x >new); then echo written; else echo refused; fi')
  expect refused "$out" "write in a read-only workspace"
  [[ ! -e $workspace/new ]]
}

case_record() {
  local before after id f
  before=$(ls "$state/runs" 2>/dev/null || true)
  ag -- uname -m >/dev/null
  after=$(ls "$state/runs")
  id=$(comm -13 <(sort <<<"$before") <(sort <<<"$after"))
  for f in plan.json trace.jsonl stdout stderr; do
    [[ -e $state/runs/$id/$f ]] || { echo "no $f in run '$id'" && return 1; }
  done
  expect "$(uname -m)" "$(cat "$state/runs/$id/stdout")" "recorded stdout"
  # 1: sealed; the kernel may skip the sensor on a slow CPU, which is told.
  "$SMOKE_BIN" trace show --state "$state" "$id" >"$work/shown" || [[ $? == 1 ]]
  grep -F uname "$work/shown"
  "$SMOKE_BIN" trace verify --state "$state" "$id" || [[ $? == 1 ]]
}

# Names by fentry on every kernel, refusals by Landlock's own tracepoints from 7.3 on: those of the command's own domain too.
# Of a record that says it is incomplete the event that is asked for may be what it lacks: then once more.
case_record_tier() {
  local try
  for try in 1 2 3 4 5; do
    tier_run
    "$SMOKE_BIN" trace verify --state "$state" last >"$work/verdict" && break
    echo "attempt $try:" && cat "$work/verdict"
  done
  tier_check
}

tier_run() {
  mkdir -p "$workspace/real" && rm -rf "$workspace/real/d" && ln -sfn real "$workspace/link" && touch "$workspace/own"
  ag -- python3 -c '
import ctypes, os
os.mkdir("link/d")
def tried(f):
    try: f()
    except PermissionError: pass
tried(lambda: os.open("/proc/self/comm", os.O_WRONLY))
libc = ctypes.CDLL(None)
rules = libc.syscall(444, bytes([4] + [0] * 7), 8, 0)  # handles fs.read_file, grants none
libc.prctl(38, 1, 0, 0, 0)
libc.syscall(446, rules, 0)
tried(lambda: os.open("own", os.O_RDONLY))
'
}

tier_check() {
  local id
  # shellcheck disable=SC2012 # ids of ours
  id=$(ls -t "$state/runs" | head -n 1)
  python3 - "$state/runs/$id/trace.jsonl" "$workspace" "$(uname -r)" <<'EOF'
import json, sys
record, workspace, release = sys.argv[1:]
told = tuple(int(n) for n in release.split(".")[:2]) >= (7, 3)
events = [e for e in map(json.loads, open(record)) if e["kind"] == "start" or e.get("phase") == "command"]
want = "tracepoints+fentry" + "+landlock" * told
assert events[0]["tier"] == want, events[0]
made = [e for e in events if e["kind"] == "mkdir"]
assert [(e["path"], e["path_source"], e["path_given"]) for e in made] == [(workspace + "/real/d", "kernel", "link/d")], made
refused = {e["path"].rsplit("/", 1)[-1]: e for e in events if e["kind"] == "open" and e.get("errno") == "EACCES"}
comm, own = refused["comm"], refused["own"]
assert comm["layer"] == "landlock" and comm["certainty"] == ("certain" if told else "inferred"), comm
if told:
    assert comm["path_source"] == "kernel" and "fs.write_file" in comm["blockers"] and comm["path"] != "/proc/self/comm", comm
    assert own["layer"] == "none" and own["blockers"] == "fs.read_file" and own["path_source"] == "kernel", own
EOF
}

lives() { pgrep -f '^sleep 4567[.]89' >/dev/null; }
dead() { ! lives; }

# The supervisor is killed -9: the run must die with it.
case_supervisor_killed() {
  local pid
  "$SMOKE_BIN" exec --state "$state" --mode rw -w "$workspace" -- sleep 4567.89 >/dev/null 2>&1 &
  pid=$!
  await "$run_seconds" lives
  kill -9 "$pid"
  await 30 dead
  ag -- /bin/true # the next start sweeps what the dead one left
}

case_nothing_left() {
  # The kernel frees BPF objects and namespaces some time after their last user.
  for _ in {1..20}; do
    debris >"$work"/debris.after
    cmp -s "$work"/debris.before "$work"/debris.after && return 0
    sleep 0.5
  done
  diff "$work"/debris.before "$work"/debris.after
}

# agentguard_case CASE...: after a first run that hung, the others would only eat the boot's time limit one by one.
agentguard_case() {
  if [[ -z ${SMOKE_BIN:-} ]]; then
    echo "binary not built: cmd/agentguard has no code yet"
    return 77
  fi
  [[ ! -e $work/hung ]] || { echo "not tried: the first run hung" && return 1; }
  "$@"
}

mkdir -p "$workspace"
agentguard_cases=(true exit_status cow env shadow host_pid tcp_connect udp_send udplite io_uring allowlist memory_limit pids_limit wall_limit
  workspace_root workspace_user workspace_ro record record_tier supervisor_killed nothing_left)
for c in "${agentguard_cases[@]}"; do run_case "agentguard: ${c//_/ }" agentguard_case "case_$c"; done

# ---------------------------------------------------------------------------------------------------------------------
# Confinement cases for users without root: those whose layers differ by kernel (`make cases-vm` runs all). Of Landlock by
# its ABI, sockets by path and by abstract name, signals, links; of cgroup v2 alone, the limits; of the overlay's and the
# user namespace's rules, the workspace; of the sensor's tier, the record of refusals.
by_kernel=A-unix-01,A-unix-02,A-proc-01,A-fs-02,A-lim-01,A-ovl-02,A-trc-04,A-sec-01

# confinement MODE=CASES...
confinement() {
  local status=0
  ulimit -Sn 4096 # one case opens descriptor 2048
  AG_CASES_SLOW=15 AGENTGUARD=$SMOKE_BIN .ci/cases.sh "$SMOKE_CASES" "$@" >"$work/cases" 2>&1 || status=$?
  sed 's/^/note: /' "$work/cases"
  return "$status"
}

# Without user namespaces for anybody, which is a setting of hardened hosts.
confinement_without_userns() {
  local status=0 most
  most=$(cat /proc/sys/user/max_user_namespaces)
  echo 0 >/proc/sys/user/max_user_namespaces
  confinement "$@" || status=$?
  echo "$most" >/proc/sys/user/max_user_namespaces
  return "$status"
}

if [[ -n ${SMOKE_CASES:-} ]]; then
  run_case "confinement: a user, through the helper and without" agentguard_case \
    confinement "helper=$by_kernel" userns=A-unix-01,A-unix-02,A-proc-01,A-fs-02,A-ovl-02,A-sec-01
  case $SMOKE_RELEASE in
  6.*) ;; # one kernel will do
  *) run_case "confinement: max_user_namespaces=0" agentguard_case \
    confinement_without_userns helper=A-fs-02,A-lim-01,A-ovl-02,A-trc-04 landlock=A-unix-01,A-unix-02,A-proc-01,A-fs-02 ;;
  esac
fi

echo "# smoke: total=$count failed=$failed skipped=$skipped"
((failed == 0))
