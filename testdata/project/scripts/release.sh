#!/bin/sh
# Commits everything in the repository DIR and tags it.   release.sh DIR VERSION
set -eu
dir=${1:?usage: release.sh DIR VERSION} version=${2:?usage: release.sh DIR VERSION}
case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*) echo "release.sh: $version is not vN.N.N" >&2; exit 2 ;;
esac
cd "$dir"
git add -A
git commit -q -m "Release $version"
git tag -a "$version" -m "$version"
git describe
