#!/usr/bin/env bash
# test-vm.sh [PREFIX...]
#
# Boots the newest Debian kernel of each version prefix ("6.12.", "newest"; default both) once and runs smoke.sh in it.
# Fails on any "not ok", on a missing or wrong count, and when the guest does not end in order.
# The cases of agentguard itself are skipped only while cmd/agentguard has no Go file: code that does not compile fails.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

boot_limit=${AGENTGUARD_VM_LIMIT:-150} # seconds for smoke.sh in one boot
kernel_packages='^(bpf|landlock|internal|supervisor)(/|$)' # directories whose tests talk to the kernel

# build fills $out: the static binary and the test binaries of the packages that talk to the kernel.
build() {
  local list dirs dir name
  cd "$vm_repo"
  export CGO_ENABLED=0 GOARCH=amd64
  if compgen -G 'cmd/agentguard/*.go' >/dev/null; then
    go build -trimpath -o "$out/agentguard" ./cmd/agentguard || die "cmd/agentguard does not build"
  else
    log "cmd/agentguard has no code: its cases will be skipped"
  fi
  mkdir "$out/tests"
  : >"$out/tests/manifest"
  list=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...) || die "go list failed"
  mapfile -t dirs < <(sed "s|^$vm_repo/||" <<<"$list" | grep -E "$kernel_packages")
  for dir in "${dirs[@]}"; do
    name=${dir//\//-}.test
    go test -c -o "$out/tests/$name" "./$dir" || die "the tests of $dir do not build"
    printf '%s\t%s\n' "$name" "$dir" >>"$out/tests/manifest"
  done
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

# smoke KDIR boots one kernel; its verdict is the function's status.
smoke() {
  local kdir=$1 release status=0 start=$SECONDS binary=''
  release=$(basename "$kdir")
  [[ -x $out/agentguard ]] && binary=$out/agentguard
  echo "== $release"
  "$vm_dir/vmrun.sh" -d "$vm_repo" -t "$boot_limit" -e SMOKE_RELEASE="$release" -e SMOKE_BIN="$binary" \
    -e SMOKE_TESTS="$out/tests" "$kdir" "$vm_dir/smoke.sh" | tee "$out/smoke.log" || status=$?
  if judge "$out/smoke.log" "$status"; then
    echo "== $release: good, $((SECONDS - start)) s"
  else
    echo "== $release: BAD (status $status), $((SECONDS - start)) s"
    return 1
  fi
}

install_deps
mkdir -p "$vm_cache"
# Below the cache, which vmrun.sh shows to the guest wherever it is.
out=$(mktemp -d "$vm_cache/build.XXXXXX")
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
(build)
(($#)) || set -- 6.12. newest
# Two prefixes may name one kernel: it is booted once.
mapfile -t kernels < <("$vm_dir/fetch-kernels.sh" "$vm_cache/kernels" "$@" | awk '!seen[$0]++')
((${#kernels[@]})) || die "no kernel"
bad=()
for kdir in "${kernels[@]}"; do smoke "$kdir" || bad+=("$(basename "$kdir")"); done
((${#bad[@]} == 0)) || { log "failed on ${bad[*]}" && exit 1; }
