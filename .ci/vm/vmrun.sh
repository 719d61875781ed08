#!/usr/bin/env bash
# vmrun.sh [-a APPEND] [-d DIR] [-e NAME=VALUE]... [-m MIB] [-s CPUS] [-t SECONDS] KDIR CMD [ARG...]
#
# Boots the kernel of KDIR (from fetch-kernels.sh) under qemu's software emulation with this machine's root directory
# (read-only, changes go to the guest's memory), runs CMD as root and exits with its status.
#   -a  added to the kernel's command line, for example lsm=lockdown,yama,bpf, cgroup_disable=memory,
#       sysctl.user.max_user_namespaces=0
#   -d  working directory of CMD in the guest (default: this one)
#   -e  added to CMD's environment, which is otherwise vminit's
#   -m  memory (default 1024), -s  virtual CPUs (default 1), -t  limit for CMD (default 120; the boot has 60 more)
# CMD's output (both streams) goes to stdout, vminit's and the kernel's complaints to stderr when something went wrong.
# Status 124: the limit struck; 125: the guest did not run CMD or did not power off in order.
#
# KVM is never used, even where /dev/kvm opens: a nested KVM may not boot a stock kernel, and a test that depends on
# the machine's mood is none. As many VMs run at a time as the machine has CPUs, two at most (locks): each emulates one CPU
# by one thread, and more would only starve each other into their limits.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

boot_seconds=60
append='' dir=$PWD mem=1024 cpus=1 limit=120 env=()
while getopts a:d:e:m:s:t: opt; do
  case $opt in
  a) append=$OPTARG ;;
  d) dir=$OPTARG ;;
  e) env+=("$OPTARG") ;;
  m) mem=$OPTARG ;;
  s) cpus=$OPTARG ;;
  t) limit=$OPTARG ;;
  *) die "usage: see the head of vmrun.sh" ;;
  esac
done
shift $((OPTIND - 1))
(($# >= 2)) || die "usage: vmrun.sh [options] KDIR CMD..."
kdir=$1
shift
[[ $EUID == 0 ]] || die "must run as root: the guest needs all of the host's files to read"
[[ -f $kdir/vmlinux ]] || die "$kdir holds no vmlinux: run fetch-kernels.sh"

# take_place waits for one of the places for a VM, which is held by descriptor 9, and sets $place.
take_place() {
  local n places deadline=$((SECONDS + 900))
  places=$(nproc)
  ((places < 2)) || places=2
  while ((SECONDS < deadline)); do
    for ((n = 1; n <= places; n++)); do
      exec 9>"$vm_cache/vm.lock.$n"
      if flock -n 9; then
        place=$n
        return 0
      fi
    done
    sleep 1
  done
  die "other VMs held $vm_cache/vm.lock.* for 15 minutes"
}

# remove_run DIR removes a run's directory. Never recursive: DIR/root is where a daemon's mount namespace has the
# whole machine.
remove_run() {
  rm -f "$1"/* 2>/dev/null || true
  rmdir "$1/root" "$1" 2>/dev/null || true
}

mkdir -p "$vm_cache/run"
place=''
take_place
run=$vm_cache/run/vm.$place
remove_run "$run" # of a script that was killed -9: we hold its place, so it is not alive
mkdir "$run"
fsd_pid='' qemu_pid=''

# shellcheck disable=SC2317 # called by the trap
# end_child PID ends one child of ours: asks, then kills after a second.
end_child() {
  [[ -n $1 ]] || return 0
  kill "$1" 2>/dev/null || return 0
  for _ in {1..20}; do
    kill -0 "$1" 2>/dev/null || break
    sleep 0.05
  done
  kill -9 "$1" 2>/dev/null || true
}

# shellcheck disable=SC2317
cleanup() {
  end_child "$qemu_pid"
  end_child "$fsd_pid"
  remove_run "$run"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The initramfs: vminit and modules, then what to run.
vminit=$run/vminit
(cd "$vm_repo" && CGO_ENABLED=0 GOARCH=amd64 go build -trimpath -ldflags '-s -w' -o "$vminit" ./.ci/vm/vminit) ||
  die "vminit does not build"
"$vm_dir/mkinitrd.sh" "$kdir" "$vminit" "$run/initrd"
{
  printf 'dir=%s\0' "$dir"
  printf 'timeout=%s\0' "$limit"
  printf 'share=%s\0' "$vm_repo" "$vm_cache" "$dir"
  for e in ${env[@]+"${env[@]}"}; do printf 'env=%s\0' "$e"; done
  printf 'arg=%s\0' "$@"
} >"$run/vmrun"
(cd "$run" && echo vmrun | cpio --quiet -o -H newc -R 0:0) >>"$run/initrd"

# start_virtiofsd shares a read-only copy of this machine's mount tree, made in a mount namespace of the daemon's own:
# whatever the guest's root does, nothing here changes. (The guest mounts it read-only as well.)
start_virtiofsd() {
  local daemon options
  daemon=$(virtiofsd_path) || die "no virtiofsd"
  case $daemon in
  */qemu/*) options=(--socket-path="$run/fs.sock" -o source="$run/root" -o cache=always -o sandbox=chroot -o no_posix_lock) ;;
  *) options=(--socket-path="$run/fs.sock" --shared-dir="$run/root" --cache=always --sandbox=chroot) ;;
  esac
  mkdir "$run/root"
  # shellcheck disable=SC2016 # expanded by the inner shell
  setpriv --pdeathsig KILL unshare --mount --propagation private bash -euc '
    root=$1; shift
    mount --rbind / "$root"
    # What others unmount and remove meanwhile is gone from here too.
    findmnt -rno TARGET -R "$root" | while IFS= read -r m; do
      m=$(printf "%b" "$m")
      mount -o remount,bind,ro "$m" || ! mountpoint -q "$m"
    done
    exec "$@"' bash "$run/root" "$daemon" "${options[@]}" >"$run/fsd.log" 2>&1 9>&- &
  fsd_pid=$!
  for _ in {1..100}; do
    [[ -S $run/fs.sock ]] && return 0
    kill -0 "$fsd_pid" 2>/dev/null || break
    sleep 0.05
  done
  cat "$run/fsd.log" >&2
  die "virtiofsd did not start"
}

# start_qemu boots. -cpu qemu64 and one CPU are the fastest under emulation; mitigations cost only time here.
# When this script is killed -9, timeout gets TERM and ends qemu; the daemon dies with us or with qemu's connection.
start_qemu() {
  local cmdline="console=ttyS0 panic=-1 oops=panic quiet loglevel=3 mitigations=off nokaslr random.trust_cpu=on"
  setpriv --pdeathsig TERM timeout -k 5 $((boot_seconds + limit + 10)) setpriv --pdeathsig KILL qemu-system-x86_64 \
    -accel tcg,thread=single,tb-size=512 -cpu qemu64,+rdrand -smp "$cpus" -m "$mem" \
    -machine q35,memory-backend=m0 -object memory-backend-memfd,id=m0,size="${mem}M",share=on \
    -nodefaults -no-user-config -display none -no-reboot \
    -chardev socket,id=c0,path="$run/fs.sock" -device vhost-user-fs-pci,chardev=c0,tag=hostroot \
    -serial file:"$run/console" -serial stdio \
    -device isa-debug-exit,iobase=0xf4,iosize=1 \
    -kernel "$kdir/vmlinux" -initrd "$run/initrd" -append "$cmdline cgroup_no_v1=all $append" \
    </dev/null 2>"$run/qemu.log" 9>&- &
  qemu_pid=$!
}

start_virtiofsd
start_qemu
qemu_status=0
wait "$qemu_pid" || qemu_status=$?
qemu_pid=''

status=$(tr -d '\r' <"$run/console" | sed -n 's/^VMEXIT \([0-9]*\)$/\1/p' | tail -n 1)
if [[ -z $status ]]; then
  tail -n 40 "$run/console" >&2
  cat "$run/qemu.log" >&2
  if ((qemu_status == 124 || qemu_status == 137)); then
    log "no end within $((boot_seconds + limit + 10)) s"
    exit 124
  fi
  die "the guest ended without a status (qemu: $qemu_status)"
fi
# isa-debug-exit gives an odd status; 0 is the reset that vminit falls back to.
if ((qemu_status != 0 && qemu_status != ((status & 0x7f) << 1 | 1))); then
  die "the command ended with $status but qemu with $qemu_status"
fi
((status == 125)) && cat "$run/console" >&2
exit "$status"
