#!/bin/bash
# Makes in dist/, for amd64 and arm64: agentguard-VERSION-linux-ARCH.tar.gz, which is what belongs
# below /usr/local, the .deb, a CycloneDX list of what is linked in, and SHA256SUMS of all. The
# same commit gives the same bytes: no build path, no time but the commit's, sorted names.
#   .ci/dist.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C TZ=UTC
version=${1:?usage: dist.sh VERSION}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
mkdir dist

# Modules and their digests, read from the program itself. The tool's own digest is in it, so it
# is built without its paths.
sbom() { # sbom PROGRAM TO
	GOFLAGS="-trimpath -buildvcs=false" go tool -modfile=.ci/tools.mod cyclonedx-gomod bin \
		-json -std -noserial -notimestamp -version "$version" -output "$2" "$1" 2>"$work/sbom.log" || { cat "$work/sbom.log" >&2; return 1; }
}

tarball() { # tarball NAME
	local tree=$work/$1
	make -s install BIN="$bin" DESTDIR="$work/local" PREFIX=/usr/local
	mv "$work/local/usr/local" "$tree"
	mkdir "$tree/share/doc/agentguard/examples"
	mv "$work"/local/etc/agentguard/* "$tree/share/doc/agentguard/examples/"
	rm -r "$work/local"
	chmod -R u=rwX,go=rX "$tree"
	tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$1" | gzip -n -9 >"dist/$1.tar.gz"
	rm -r "$tree"
}

for arch in amd64 arm64; do
	bin=$work/bin-$arch
	name=agentguard-$version-linux-$arch
	make -s build GOARCH=$arch BIN="$bin" VERSION="$version"
	make -s share BIN="$bin" VERSION="$version"
	sbom "$bin/agentguard" "dist/$name.cdx.json"
	sbom "$bin/agentguard-http" "dist/agentguard-http-$version-linux-$arch.cdx.json"
	cp "dist/$name.cdx.json" "$bin/share/doc/agentguard/sbom.cdx.json"
	tarball "$name"
	if command -v dpkg-deb >/dev/null; then
		packaging/deb/build.sh "$bin" "$version" $arch dist
	else
		echo 'dist.sh: no dpkg-deb here: no .deb is made' >&2
	fi
done
shopt -s nullglob
(cd dist && sha256sum -- *.tar.gz *.json *.deb >SHA256SUMS && cat SHA256SUMS)
