#!/usr/bin/env bash
# mkinitrd.sh KDIR VMINIT OUT
#
# Packs VMINIT as /init and the modules of KDIR into an uncompressed initramfs (unpacking under emulation is dear).
# vmrun.sh appends a second archive with what to run: the kernel unpacks one after the other.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

(($# == 3)) || die "usage: mkinitrd.sh KDIR VMINIT OUT"
kdir=$1 vminit=$2 out=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/root"
chmod 0755 "$tmp/root" # it becomes the guest's first /: with 0700 nobody but root could exec anything
install -m 0755 "$vminit" "$tmp/root/init"
cp -R "$kdir/modules" "$tmp/root/modules"
(cd "$tmp/root" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) >"$tmp/initrd"
mv "$tmp/initrd" "$out"
