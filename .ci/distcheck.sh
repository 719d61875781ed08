#!/bin/bash
# make dist, twice: here, and in a clone that lies elsewhere with another umask, language and
# time zone. All bytes must be the same. Then the packages are looked into and the .deb is
# installed and removed, in a directory of its own.
#   .ci/distcheck.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: distcheck.sh VERSION}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "distcheck.sh: $*" >&2; exit 1; }

[[ -z $(git status --porcelain) ]] || fail "uncommitted changes: the clone would not have them"
.ci/dist.sh "$version"
git clone -q . "$work/a clone"
(umask 077 && cd "$work/a clone" && LC_ALL=C.UTF-8 TZ=Asia/Tokyo .ci/dist.sh "$version" >/dev/null)
diff dist/SHA256SUMS "$work/a clone/dist/SHA256SUMS" || fail "a second build is not the same"
(cd dist && sha256sum --quiet -c SHA256SUMS)

# What the program says is linked in, and what the list says: the same modules.
listed() {
	python3 -c 'import json, sys
for c in json.load(open(sys.argv[1]))["components"]:
    if c["name"] != "std": print(c["name"], c["version"])' "$1" | LC_ALL=C sort
}
for arch in amd64 arm64; do
	name=agentguard-$version-linux-$arch
	mkdir "$work/$arch"
	tar -C "$work/$arch" --strip-components=1 -xf "dist/$name.tar.gz"
	for f in bin/agentguard bin/agentguard-http share/man/man1/agentguard-exec.1 share/doc/agentguard/{NOTICE,docs/record.md,examples/ceiling.yaml.example} lib/systemd/system/agentguard-recover.service; do
		[[ -s $work/$arch/$f ]] || fail "$name.tar.gz lacks $f"
	done
	cmp "dist/$name.cdx.json" "$work/$arch/share/doc/agentguard/sbom.cdx.json"
	diff <(go version -m "$work/$arch/bin/agentguard" | awk '$1 == "dep" { print $2, $3 }' | LC_ALL=C sort) <(listed "dist/$name.cdx.json") || fail "$name.cdx.json is not what is linked in"
done

command -v dpkg >/dev/null || { echo 'distcheck.sh: no dpkg here: the .deb is not looked at' >&2; exit 0; }
debs=(dist/*.deb)
[[ ${#debs[@]} == 2 ]] || fail "not two packages: ${debs[*]}"
for deb in "${debs[@]}"; do
	[[ -z $(dpkg-deb -c "$deb" | grep -v 'root/root' || :) ]] || fail "$deb: not all of it is root's"
done
deb=$(ls dist/*_"$(dpkg --print-architecture)".deb)
root=$work/root
mkdir -p "$root"/var/lib/dpkg/{info,updates}
touch "$root/var/lib/dpkg/status"
instdeb() { dpkg --root="$root" --force-not-root --force-script-chrootless --log="$work/dpkg.log" "$@" >/dev/null; }
instdeb -i "$deb"
[[ $("$root/usr/bin/agentguard" --version) == "$version" ]] || fail "the program in $deb is of another version"
(cd "$root" && md5sum --quiet -c var/lib/dpkg/info/agentguard.md5sums)
(cd "$root" && find etc usr -type f ! -path '*/dpkg/*' -printf '%m /%p\n') | sed -e 's|\(/share/doc/agentguard/\).*|\1|' -e 's|\(/man1/agentguard\).*\.1\.gz|\1*.1|' | LC_ALL=C sort -u | diff packaging/manifest - || fail "$deb holds what packaging/manifest does not say"
instdeb -P agentguard
[[ -z $(find "$root/etc" "$root/usr" -type f 2>/dev/null) ]] || fail "files are left after a purge"
echo "twice the same: $(wc -l <dist/SHA256SUMS) files; installed and purged: $deb"
