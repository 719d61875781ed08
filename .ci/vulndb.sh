#!/bin/bash
# Makes the vulnerability database that govulncheck reads (where there is only a module
# proxy, vuln.go.dev cannot be asked), and prints its file:// address.
# The reports are a Go module like any other; VULNDB is its version: newer ones find newer
# faults, so raise the pin with each release (VULNDB=latest .ci/vulndb.sh shows what is new).
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VULNDB:-v0.0.0-20261105234957-e22db6528018}
out=$PWD/.cache/vulndb-$version
if [[ $version == latest || ! -e $out/index/modules.json ]]; then
	# `go mod download` wants to be in a module; this one's go.mod need not name the database.
	src=$(cd .ci && go mod download -modfile=tools.mod -json "golang.org/x/vulndb@$version" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
	[[ -n $src ]] || { echo "vulndb.sh: golang.org/x/vulndb@$version cannot be downloaded" >&2; exit 1; }
	rm -rf "$out" "$out.new"
	mkdir -p .cache
	(cd "$src" && GOFLAGS=-mod=readonly go run ./cmd/indexdb -vulns data/osv -out "$out.new") >&2
	mv "$out.new" "$out"
fi
echo "file://$out"
