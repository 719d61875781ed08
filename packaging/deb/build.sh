#!/bin/bash
# Makes agentguard_VERSION_ARCH.deb of what `make build share` put into BIN.
#   packaging/deb/build.sh BIN VERSION ARCH TO
set -euo pipefail
bin=$1 version=$2 arch=$3
to=$(realpath "$4")
cd "$(dirname "$0")/../.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
: "${SOURCE_DATE_EPOCH:?}"

# A version of Debian's begins with a digit; what is before the first tag sorts below all releases.
deb=${version#v}
deb=$(tr -c 'A-Za-z0-9.+~\n' + <<<"$deb")
[[ $deb =~ ^[0-9]+\. ]] || deb=0~$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M).$deb

make -s install BIN="$bin" DESTDIR="$root" PREFIX=/usr
doc=$root/usr/share/doc/agentguard
rm "$doc/LICENSE" # Debian's copyright file names where it is
cat >"$doc/changelog" <<END
agentguard ($deb) unstable; urgency=medium

  * Built from its source; what changed is in CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' packaging/deb/control)  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
gzip -9n "$doc/changelog" "$root"/usr/share/man/man1/*.1
install -m 644 packaging/deb/copyright "$doc/copyright"

mkdir "$root/DEBIAN"
(cd "$root" && find etc -type f -printf '/%p\n' | LC_ALL=C sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
sed -e "s|@VERSION@|$deb|" -e "s|@ARCH@|$arch|" -e "s|@SIZE@|$(du -k -s --apparent-size "$root/usr" | cut -f1)|" packaging/deb/control >"$root/DEBIAN/control"
install -m 755 packaging/deb/{postinst,prerm,postrm} "$root/DEBIAN/"
chmod -R u=rwX,go=rX "$root"
# One thread: how many there are decides how xz cuts its input.
dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$root" "$to/agentguard_${deb}_$arch.deb" >/dev/null
