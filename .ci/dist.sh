#!/bin/bash
# Makes dist/agentguard-VERSION-linux-ARCH.tar.gz for amd64 and arm64, and SHA256SUMS. The
# same commit gives the same bytes: no build path, no time but the commit's, sorted names.
#   .ci/dist.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: dist.sh VERSION}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
mkdir dist
for arch in amd64 arm64; do
	name=agentguard-$version-linux-$arch
	mkdir -p "$work/$name"
	make -s build GOARCH=$arch BIN="$work/$name" VERSION="$version"
	SOURCE_DATE_EPOCH=$epoch make -s share BIN="$work/$name" VERSION="$version"
	cp -r README.md CHANGELOG.md SECURITY.md LICENSE LICENSES "$work/$name/"
	.ci/licenses.sh "$work/$name/third_party"
	chmod -R u=rwX,go=rX "$work/$name"
	tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | gzip -n -9 >"dist/$name.tar.gz"
done
(cd dist && sha256sum ./*.tar.gz >SHA256SUMS && cat SHA256SUMS)
