#!/usr/bin/env bash
# test-vm.sh [PREFIX...]
#
# Boots the newest Debian kernel of each version prefix ("6.12.", "newest"; default both) once and runs smoke.sh in it.
# Fails on any "not ok", on a missing or wrong count, and when the guest does not end in order.
# The cases of agentguard itself are skipped only while cmd/agentguard has no Go file: code that does not compile fails.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

boot_limit=${AGENTGUARD_VM_LIMIT:-1700} # seconds for smoke.sh in one boot
cases=$(realpath "${CASES:-$vm_repo/../shared/cases}")
# Directories whose tests find out what differs by kernel. AGENTGUARD_VM_PACKAGES: others, '.' for all.
kernel_packages=${AGENTGUARD_VM_PACKAGES:-'^(bpf|landlock|supervisor|supervisor/init|internal/(cgroup|codewatch|loopfs|netguard|notify|outer|overlay|seccomp|tally|terminal))$'}

# build fills $out: the static binary and the test binaries of the packages that talk to the kernel.
build() {
  local module list dirs dir name
  cd "$vm_repo"
  export CGO_ENABLED=0 GOARCH=amd64
  if compgen -G 'cmd/agentguard/*.go' >/dev/null; then
    go build -trimpath -o "$out/agentguard" ./cmd/agentguard || die "cmd/agentguard does not build"
    GOTOOLCHAIN=${HTTP_TOOLCHAIN:-local} go build -trimpath -o "$out/agentguard-http" ./cmd/agentguard-http || die "cmd/agentguard-http does not build"
    # For the tests that switch layers off: the guest has no Go, and building there would take minutes.
    go build -trimpath -tags agentguard_seam -o "$out/agentguard-seam" ./cmd/agentguard || die "the seam build fails"
  else
    log "cmd/agentguard has no code: its cases will be skipped"
  fi
  mkdir "$out/tests"
  : >"$out/tests/manifest"
  module=$(go list -m)
  # -e, and no end at a package that does not build: its binary is missed in the guest, the others still run.
  list=$(go list -e -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...) || die "go list failed"
  mapfile -t dirs < <(awk -v n=$((${#module} + 2)) '{ print substr($0, n) }' <<<"$list" | grep -E "$kernel_packages")
  for dir in "${dirs[@]}"; do
    name=${dir//\//-}.test
    go test -c -o "$out/tests/$name" "./$dir" || log "the tests of $dir do not build"
    printf '%s\t%s\t\n' "$name" "$dir" >>"$out/tests/manifest"
  done
  # Of the whole program's tests, the one that holds the record against strace: what the sensor sees differs by kernel.
  go test -c -o "$out/tests/agentguard.test" ./cmd/agentguard || log "the tests of cmd/agentguard do not build"
  printf 'agentguard.test\tcmd/agentguard\tTestGroundTruth\n' >>"$out/tests/manifest"
}

# judge FILE STATUS checks what smoke.sh printed against its own count.
judge() {
  local file=$1 status=$2 good bad summary
  good=$(grep -c '^ok ' "$file" || true)
  bad=$(grep -c '^not ok ' "$file" || true)
  summary=$(grep '^# smoke: ' "$file" || true)
  if [[ ! $summary =~ ^'# smoke: total='([0-9]+)' failed='([0-9]+)' skipped='[0-9]+$ ]]; then
    log "no final count: smoke.sh did not end"
    return 1
  fi
  if ((BASH_REMATCH[1] != good + bad || BASH_REMATCH[2] != bad || good == 0)); then
    log "the count is '$summary' but there are $good ok and $bad not ok"
    return 1
  fi
  ((bad == 0 && status == 0)) || return 1
}

# smoke KDIR boots one kernel; its verdict is the function's status. What it prints begins with the kernel's version:
# kernels run beside each other.
smoke() {
  local kdir=$1 release status=0 start=$SECONDS binary='' log
  release=$(basename "$kdir")
  log=$out/$release.log
  [[ -x $out/agentguard ]] && binary=$out/agentguard
  : >"$log"
  "$vm_dir/vmrun.sh" -d "$vm_repo" -t "$boot_limit" -e SMOKE_RELEASE="$release" -e SMOKE_BIN="$binary" \
    -e SMOKE_TESTS="$out/tests" -e SMOKE_CASES="$([[ ! -x $cases/run_case.sh ]] || echo "$cases")" \
    -e AGENTGUARD_TEST_SEAM_BINARY="${binary:+$binary-seam}" -e AGENTGUARD_TEST_PROGRAMS="$out" \
    "$kdir" "$vm_dir/smoke.sh" >"$log" &
  local vm_pid=$!
  # In the background, so that a signal to this process reaches the trap at once and the VM by it.
  # shellcheck disable=SC2064 # the pid of now
  trap "kill $vm_pid; exit 143" TERM
  tail -n +1 -s 0.2 --pid="$vm_pid" -f "$log" | sed -u "s/^/${release%%[-+]*}: /" &
  wait "$vm_pid" || status=$?
  wait
  if judge "$log" "$status"; then
    echo "== $release: good, $((SECONDS - start)) s"
  else
    echo "== $release: BAD (status $status), $((SECONDS - start)) s"
    return 1
  fi
}

# shellcheck disable=SC2317 # called by the trap
cleanup() {
  if ((${#boots[@]})); then
    kill "${boots[@]}" 2>/dev/null || true
    wait || true
  fi
  rm -rf "$out"
}

install_deps
mkdir -p "$vm_cache"
find "$vm_cache" -maxdepth 1 -name 'build.*' -mmin +600 -exec rm -rf {} + # of scripts that were killed -9
# Below the cache, which vmrun.sh shows to the guest wherever it is.
out=$(mktemp -d "$vm_cache/build.XXXXXX")
boots=()
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
(build)
(($#)) || set -- 6.12. newest
list=$("$vm_dir/fetch-kernels.sh" "$vm_cache/kernels" "$@") || die "not all kernels are to be had"
mapfile -t kernels < <(awk '!seen[$0]++' <<<"$list") # two prefixes may name one kernel: it is booted once
bad=0
for kdir in "${kernels[@]}"; do
  smoke "$kdir" &
  boots+=($!)
done
for pid in "${boots[@]}"; do wait "$pid" || bad=1; done
boots=()
exit "$bad"
