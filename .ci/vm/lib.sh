# shellcheck shell=bash disable=SC2034 # the variables are for those who source this
# What the VM scripts have in common: the cache directory, messages, and the packages they need.
# Sourced, never run. A caller sets -euo pipefail itself.

vm_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_repo=$(cd "$vm_dir/../.." && pwd)
vm_cache=${AGENTGUARD_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/agentguard-vm}

log() { printf 'vm: %s\n' "$*" >&2; }

die() {
  log "$*"
  exit 125
}

# virtiofsd_path prints the daemon's path: C in Debian 12's qemu-system-common, Rust in Debian 13's own package.
virtiofsd_path() {
  local p
  for p in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd; do
    [[ -x $p ]] && printf '%s\n' "$p" && return 0
  done
  return 1
}

# missing_deps prints the Debian packages whose programs are not there.
missing_deps() {
  local pair
  for pair in qemu-system-x86_64:qemu-system-x86 cpio:cpio lz4:lz4 zstd:zstd xz:xz-utils depmod:kmod \
    findmnt:util-linux setpriv:util-linux flock:util-linux mkfs.ext4:e2fsprogs; do
    command -v "${pair%%:*}" >/dev/null || printf '%s\n' "${pair##*:}"
  done
  if ! virtiofsd_path >/dev/null; then
    # Debian 12 has it in qemu-system-common, which qemu-system-x86 pulls in.
    if apt-cache show virtiofsd >/dev/null 2>&1; then echo virtiofsd; else echo qemu-system-common; fi
  fi
}

# install_deps installs what is missing, or says what to install. Nothing is touched when all is there.
install_deps() {
  local want
  mapfile -t want < <(missing_deps | sort -u)
  ((${#want[@]})) || return 0
  [[ $EUID == 0 ]] || die "missing packages: ${want[*]} (run as root to have them installed)"
  log "installing ${want[*]}"
  apt-get update -qq >&2
  # A first update makes apt-cache able to say whether virtiofsd is a package of its own.
  mapfile -t want < <(missing_deps | sort -u)
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${want[@]}" >&2
  mapfile -t want < <(missing_deps)
  ((${#want[@]} == 0)) || die "still missing after apt-get install: ${want[*]}"
}
