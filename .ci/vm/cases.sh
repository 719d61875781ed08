#!/usr/bin/env bash
# cases.sh DIR [PREFIX...]
#
# Runs all confinement cases of DIR on the newest Debian kernel of each version prefix (default: 6.12. and newest), for
# a user without root, in each mode, and in those that need no user namespace once more with user.max_user_namespaces=0.
# A boot for each: 10 to 20 minutes, most of it for A-use-02, which compiles.
#   MODES  the modes (default: helper userns landlock), ONLY=CASE,CASE... some of the cases
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

limit=3600 # seconds for the cases of one mode
cases=$(realpath "${1:?usage: cases.sh DIR [PREFIX...]}")
shift
[[ -x $cases/run_case.sh ]] || die "no cases in $cases"
read -ra modes <<<"${MODES:-helper userns landlock}"
install_deps
mkdir -p "$vm_cache"
out=$(mktemp -d "$vm_cache/build.XXXXXX")
trap 'rm -rf "$out"' EXIT
(cd "$vm_repo" && CGO_ENABLED=0 go build -trimpath -o "$out/agentguard" ./cmd/agentguard) || die "cmd/agentguard does not build"
(($#)) || set -- 6.12. newest
list=$("$vm_dir/fetch-kernels.sh" "$vm_cache/kernels" "$@") || die "not all kernels are to be had"
mapfile -t kernels < <(awk '!seen[$0]++' <<<"$list")

# boot KDIR MODE APPEND: one case opens descriptor 2048, hence the limit; the guest is slow, hence the factor.
boot() {
  echo "== $(basename "$1"), $2${3:+, $3}"
  # shellcheck disable=SC2016 # expanded in the guest
  "$vm_dir/vmrun.sh" -d "$vm_repo" -m 2048 -t "$limit" ${3:+-a "$3"} -e AGENTGUARD="$out/agentguard" -e AG_CASES_SLOW=15 -e AG_CASES_VERBOSE=1 \
    "$1" bash -c 'ulimit -Sn 4096; exec .ci/cases.sh "$@"' bash "$cases" "$2${ONLY:+=$ONLY}"
}

bad=0
for kdir in "${kernels[@]}"; do
  for mode in "${modes[@]}"; do
    boot "$kdir" "$mode" '' || bad=1
    [[ $mode == userns ]] || boot "$kdir" "$mode" sysctl.user.max_user_namespaces=0 || bad=1
  done
done
exit "$bad"
