#!/usr/bin/env bash
# fetch-kernels.sh OUT PREFIX...
#
# For each version prefix ("6.12.", or "newest" for any version) finds Debian's newest cloud kernel for amd64, unpacks
# it into OUT/<release>/ and prints that directory, one line a prefix, in order:
#   vmlinux   uncompressed ELF: qemu boots it by PVH, which under emulation saves 2-4 s of decompression
#   config    the kernel's configuration
#   modules/  what vminit loads, uncompressed; modules/order is the load order
#
# Point versions vanish from the mirrors, so a version is resolved at run time and never pinned. The index is kept for
# half a day; without a network the newest kernel already in OUT is used, and the script says so.
# apt runs with a state directory and sources of its own: the machine's are read (mirror, keyring, proxy), never changed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Suites that carry kernels: stable ones get theirs through -security, backports and sid have the newest.
main_suites=(trixie-backports sid)
security_suites=(bookworm-security trixie-security)
index_max_age_min=720
# What vminit needs before it can switch to the host's root, and loop for tests that want an ext4 of their own.
modules=(virtio_pci virtiofs overlay loop)

# system_mirror SUITE_PATTERN DEFAULT prints the machine's own mirror for a suite: apt resolves one-line and deb822
# sources alike. The default is the name that Debian itself documents.
system_mirror() {
  local uri
  # shellcheck disable=SC2016 # apt's own variables
  uri=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v re="$1" '$2 ~ re && $3 == "main" { print $1; exit }')
  printf '%s\n' "${uri:-$2}"
}

apt_setup() {
  local apt=$1 key=/usr/share/keyrings/debian-archive-keyring.gpg main security s codename
  [[ -r $key ]] || die "no $key: install debian-archive-keyring"
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
  main=$(system_mirror "^(${codename}|stable|oldstable)\$" http://deb.debian.org/debian)
  security=$(system_mirror '-security$' http://deb.debian.org/debian-security)
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  {
    for s in "${main_suites[@]}"; do echo "deb [arch=amd64 target=Packages signed-by=$key] $main $s main"; done
    for s in "${security_suites[@]}"; do echo "deb [arch=amd64 target=Packages signed-by=$key] $security $s main"; done
  } >"$apt/sources.list"
  cat >"$apt/apt.conf" <<EOF
Dir::State::Lists "$apt/lists";
Dir::State::Status "/dev/null";
Dir::Cache "$apt/cache";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "-";
Acquire::Languages "none";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
APT::Update::Post-Invoke "";
EOF
  export APT_CONFIG=$apt/apt.conf
}

# refresh_index updates the package lists when they are old. Failure is not fatal: a cached kernel may do.
refresh_index() {
  local apt=$1
  [[ -n $(find "$apt/stamp" -mmin "-$index_max_age_min" 2>/dev/null) ]] && return 0
  log "updating the kernel index"
  if apt-get update -qq >&2; then touch "$apt/stamp"; else log "apt-get update failed: using what is known"; fi
}

# releases prints every kernel release that can be had whole, oldest first. Up to 6.18 linux-image has everything;
# from 6.19 the kernel is in linux-binary and the modules in linux-modules, which the mirror drops earlier.
releases() {
  apt-cache pkgnames linux- | awk '
    match($0, /^linux-(image|binary|modules)-/) && /^linux-[a-z]+-[0-9]+\.[0-9]+\.[0-9].*-cloud-amd64$/ {
      kind = substr($0, 7, RLENGTH - 7); have[kind, substr($0, RLENGTH + 1)] = 1; seen[substr($0, RLENGTH + 1)] = 1
    }
    END {
      for (r in seen)
        if ((("image", r) in have && !(("binary", r) in have)) || (("binary", r) in have && ("modules", r) in have)) print r
    }' | sort -V
}

# newest PREFIX prints the highest of the releases on stdin that begins with PREFIX, or nothing.
newest() { awk -v p="$1" 'p == "newest" || index($0, p) == 1' | tail -n 1; }

# extract_vmlinux BZIMAGE OUT: the payload's place is in the boot header (Documentation/arch/x86/boot.rst: setup_sects
# at 0x1f1, payload_offset at 0x248, payload_length at 0x24c; the last 4 bytes of the payload are its unpacked size).
extract_vmlinux() {
  local image=$1 out=$2 sects offset length magic
  u() { od -An -v -t "u$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
  sects=$(u $((0x1f1)) 1) offset=$(u $((0x248)) 4) length=$(u $((0x24c)) 4)
  offset=$(((sects + 1) * 512 + offset))
  magic=$(od -An -v -t x1 -j "$offset" -N 4 "$image" | tr -d ' ')
  local unpack
  case $magic in
  28b52ffd) unpack=(zstd -dc) ;;
  02214c18) unpack=(lz4 -dc) ;;
  *) die "$image: payload is neither zstd nor lz4 (magic $magic)" ;;
  esac
  # dd and not head: a pipe that closes early would be an error under pipefail.
  dd if="$image" iflag=skip_bytes,count_bytes skip="$offset" count=$((length - 4)) bs=1M status=none | "${unpack[@]}" >"$out"
  [[ $(od -An -v -t x1 -N 4 "$out" | tr -d ' ') == 7f454c46 ]] || die "$image: payload is not an ELF file"
}

# pick_modules TREE RELEASE OUT copies the wanted modules and their dependencies, and writes the load order.
pick_modules() {
  local tree=$1 release=$2 out=$3 base=$1/usr/lib/modules/$2 m line file name
  depmod -b "$tree" "$release"
  mkdir -p "$out"
  for m in "${modules[@]}"; do
    # Names in modules.dep and modules.builtin use - and _ freely.
    line=$(grep -E "/${m//_/[-_]}\.ko[^/ :]*:" "$base/modules.dep" || true)
    if [[ -z $line ]]; then
      grep -qE "/${m//_/[-_]}\.ko$" "$base/modules.builtin" || die "$release has no module $m, neither built in"
      continue
    fi
    # "module: dependency ..." has the deepest dependency last.
    for file in $(tr -d : <<<"$line" | tr ' ' '\n' | tac); do
      name=$(basename "$file")
      name=${name%.xz}
      [[ -e $out/$name ]] && continue
      if [[ $file == *.xz ]]; then xz -dc "$base/$file" >"$out/$name"; else cp "$base/$file" "$out/$name"; fi
      echo "$name" >>"$out/order"
    done
  done
  touch "$out/order"
}

# download RELEASE DIR fetches a release's packages. The caller decides what a failure means.
download() {
  local release=$1 dir=$2 pkgs=() p
  for p in image binary modules base; do
    # A package that is only named in another's dependencies is known too, but has no version.
    [[ -n $(apt-cache madison "linux-$p-$release" 2>/dev/null) ]] && pkgs+=("linux-$p-$release")
  done
  log "fetching ${pkgs[*]}"
  (cd "$dir" && apt-get download -qq "${pkgs[@]}" >&2)
}

# unpack RELEASE TMP DIR makes DIR out of the packages in TMP.
unpack() {
  local release=$1 tmp=$2 dir=$3 p tree=$2/tree image config
  mkdir -p "$tree/usr/lib" "$tmp/out"
  ln -s usr/lib "$tree/lib" # one tree for packages from before and after the merged /usr
  # tar through the lib symlink: dpkg -x would replace it by the package's own lib directory.
  for p in "$tmp"/*.deb; do dpkg --fsys-tarfile "$p" | tar -x --keep-directory-symlink -C "$tree"; done
  image=$tree/boot/vmlinuz-$release config=$tree/boot/config-$release
  [[ -e $image ]] || image=$tree/usr/lib/modules/$release/vmlinuz
  [[ -e $config ]] || config=$tree/usr/lib/modules/$release/config
  extract_vmlinux "$image" "$tmp/out/vmlinux"
  cp "$config" "$tmp/out/config"
  pick_modules "$tree" "$release" "$tmp/out/modules"
  mv "$tmp/out" "$dir" # last: a directory that is there is complete
}

# kernel_dir OUT PREFIX prints the directory of the newest kernel for PREFIX, fetching it when it is not there yet.
kernel_dir() {
  local out=$1 prefix=$2 release tmp
  release=$(releases | newest "$prefix")
  if [[ -n $release && ! -d $out/$release ]]; then
    tmp=$(mktemp -d "$out/$release.tmp.XXXXXX")
    if download "$release" "$tmp"; then unpack "$release" "$tmp" "$out/$release"; else release=; fi
    rm -rf "$tmp"
  fi
  if [[ -z $release ]]; then
    release=$(find "$out" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort -V | newest "$prefix")
    [[ -n $release ]] || die "no kernel for prefix $prefix, neither on the mirror nor in $out"
    log "prefix $prefix: the mirror has none to give, using $release from the cache"
  fi
  printf '%s\n' "$out/$release"
}

main() {
  (($# >= 2)) || die "usage: fetch-kernels.sh OUT PREFIX..."
  local out=$1 prefix
  shift
  mkdir -p "$out" "$vm_cache"
  exec 8>"$vm_cache/fetch.lock"
  flock 8
  find "$out" -maxdepth 1 -name '*.tmp.*' -exec rm -rf {} + # what an interrupted fetch left: we hold the lock
  apt_setup "$vm_cache/apt"
  refresh_index "$vm_cache/apt"
  for prefix in "$@"; do kernel_dir "$out" "$prefix"; done
}

main "$@"
